//! Line ends in values. `-i "$PWD/a<line end>proxycommand touch pwned; echo /key"` ran the command:
//! `ssh -G` prints one line for each setting, and the value was parsed as several. A variable in a
//! file name had the same effect.

use std::fs;

use longhaul_tests::{Client, Program, scratch};
use testkit::Run;
use testkit::tree::write_file;

#[test]
fn no_command_runs_and_the_value_is_refused() {
    let client = Client::new();
    if client.program == Program::Scp {
        return;
    }
    let files = scratch();
    let (file, pwned) = (files.path().join("file"), files.path().join("pwned"));
    write_file(&file, b"content");
    let hostile = format!(
        "{}/a\nproxycommand touch {}; echo /key",
        files.path().display(),
        pwned.display()
    );
    let is_refused = |run: Run| {
        let outcome = run.arg(&file).arg("h.invalid:x").run();
        assert!(!pwned.exists(), "{outcome}");
        assert!(outcome.code != Some(0), "{outcome}");
        outcome.expect_err(&["control character"]);
    };
    for flag in ["-i", "-F", "-J", "-c"] {
        is_refused(client.cp().args([flag, &hostile]));
    }
    let keywords = [
        "UserKnownHostsFile",
        "GlobalKnownHostsFile",
        "BindAddress",
        "IdentityAgent",
        "IdentityFile",
        "CertificateFile",
        "HostKeyAlias",
        "HostName",
        "User",
        "ControlPath",
        "RevokedHostKeys",
        "Ciphers",
    ];
    for keyword in keywords {
        for between in ["=", " ", " = "] {
            is_refused(
                client
                    .cp()
                    .args(["-o", &format!("{keyword}{between}{hostile}")]),
            );
        }
        // As an argument of the system's ssh, too.
        let run = client
            .cp()
            .args(["-S", "ssh", "-o", &format!("{keyword}={hostile}")]);
        is_refused(run);
    }
}

#[test]
fn a_variable_that_a_file_names_is_no_further_setting() {
    let client = Client::new();
    if client.program == Program::Scp {
        return;
    }
    let files = scratch();
    let at = |name: &str| files.path().join(name);
    write_file(&at("file"), b"content");
    let config = "Host *\n  UserKnownHostsFile ${HOSTILE}\n  HostName 127.0.0.1\n  Port 9\n";
    fs::write(at("config"), config).expect("a file of ours");
    let hostile = format!("/k\nproxycommand touch {}", at("pwned").display());
    let run = client
        .dir
        .run(longhaul_tests::longhaul())
        .arg("cp")
        .arg("-F")
        .arg(at("config"));
    let outcome = run
        .env("HOSTILE", hostile)
        .arg(at("file"))
        .arg("h:x")
        .run()
        .expect_code(2);
    assert!(!at("pwned").exists(), "{outcome}");
}
