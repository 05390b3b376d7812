//! Invalid command lines, and rejected flags.

use longhaul_tests::Client;

#[test]
fn refused_flags_say_why() {
    let client = Client::new();
    if client.is_scp() {
        return;
    }
    for (flags, reason) in [
        (&["-O"][..], "scp protocol"),
        (&["-R"], "through this machine"),
        (&["-1"], "obsolete"),
        (&["-t"], "scp protocol"),
        (&["-f"], "leave -f out"),
    ] {
        let outcome = client.cp().args(flags).args(["a", "peer:b"]).run();
        outcome.expect_code(2).expect_err(&[reason]);
    }
}

#[test]
fn usage_errors_are_2_and_say_what() {
    let client = Client::new();
    if client.is_scp() {
        return;
    }
    for (words, named) in [
        (&[][..], "SRC"),
        (&["only-one"], "DST"),
        (&["--no-such-flag", "a", "peer:b"], "no-such-flag"),
        (&["-P", "port", "a", "peer:b"], "port"),
        (&["-P", "70000", "a", "peer:b"], "70000"),
        (&["-l", "-5", "a", "peer:b"], "-l"),
        (&["-X", "nrequests=0", "a", "peer:b"], "-x"),
        (&["-X", "buffer=1", "a", "peer:b"], "-x"),
        (&["-X", "speed=3", "a", "peer:b"], "-x"),
        (&["a", "scp://peer:99999/b"], "99999"),
    ] {
        let outcome = client.cp().args(words).run().expect_code(2);
        let lower = outcome.err().to_lowercase();
        assert!(
            lower.contains(&named.to_lowercase()) || lower.contains("usage"),
            "{named} is not named: {outcome}"
        );
    }
}

#[test]
fn scps_own_flags_are_understood() {
    let client = Client::new();
    if client.is_scp() {
        return;
    }
    // Nothing is copied: the host does not exist, which is reported after the flags were parsed.
    for flags in [
        &["-3"][..],
        &["-4"],
        &["-6"],
        &["-A"],
        &["-B"],
        &["-C"],
        &["-p"],
        &["-q"],
        &["-r"],
        &["-s"],
        &["-T"],
        &["-v"],
        &["-c", "aes128-ctr"],
        &["-i", "/nonexistent"],
        &["-l", "1000"],
        &["-o", "User=x"],
        &["-P", "2"],
        &["-rpqC"],
    ] {
        let run = client
            .cp()
            .args(flags)
            .args(["/dev/null", "host.invalid:b"]);
        let outcome = run.run();
        assert!(outcome.code == Some(255), "{flags:?}: {outcome}");
    }
}

#[test]
fn help_and_version_succeed() {
    let client = Client::new();
    let longhaul_tests::Program::Longhaul(program) = &client.program else {
        return;
    };
    for words in [
        &["--help"][..],
        &["--version"],
        &["cp", "--help"],
        &["cp", "-h"],
    ] {
        let outcome = client.dir.run(program).args(words).run().expect_code(0);
        assert!(!outcome.stdout.is_empty(), "{outcome}");
    }
}

/// Regression: the h in rsync's `-avh` showed the help, copied nothing and ended with 0.
#[test]
fn an_h_among_letters_is_no_request_for_help() {
    let client = Client::new();
    let longhaul_tests::Program::Longhaul(program) = &client.program else {
        return;
    };
    for word in ["-avh", "-rh", "-avhP", "-avhz"] {
        let words = ["cp", word, "/dev/null", "host.invalid:b"];
        let outcome = client.dir.run(program).args(words).run().expect_code(2);
        assert!(outcome.stdout.is_empty(), "{word}: {outcome}");
    }
}

/// Regression: scripts took a mistake in a setting for a lost connection, and tried again.
#[test]
fn a_wrong_setting_is_an_invalid_command_line() {
    let client = Client::new();
    let longhaul_tests::Program::Longhaul(program) = &client.program else {
        return;
    };
    for (flags, says) in [
        (["-o", "Nonsense=1"], "-o Nonsense=1: no such option"),
        (["-c", "foo"], "unknown algorithm foo"),
        (["-o", "ConnectTimeout=x"], "invalid time value"),
        (
            ["-F", "/nonexistent/config"],
            "-F /nonexistent/config: cannot read the configuration file: no such file",
        ),
    ] {
        for command in ["cp", "sync"] {
            // In a sync, -c is rsync's.
            let flags = match (command, flags) {
                ("sync", ["-c", cipher]) => ["--cipher", cipher],
                (_, flags) => flags,
            };
            let run = client.dir.run(program).arg(command).args(flags);
            let run = run.args(["/dev", "host.invalid:b"]).run();
            run.expect_code(2).expect_err(&[says]);
        }
    }
}

/// Bug: a host that cannot be reached ended `longhaul bootstrap` with 1, although its man page says
/// 255, and a wrong setting too, although it says 2.
#[test]
fn an_unreachable_host_ended_bootstrap_like_a_failed_file() {
    let client = Client::new();
    let longhaul_tests::Program::Longhaul(program) = &client.program else {
        return;
    };
    for (words, code) in [
        (&["host.invalid"][..], 255),
        (&["-o", "ConnectTimeout=x", "host.invalid"], 2),
    ] {
        let run = client.dir.run(program).arg("bootstrap");
        run.args(words).run().expect_code(code);
    }
}
