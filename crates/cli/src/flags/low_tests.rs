use super::*;
use crate::flags::flag::ScpCompatibility;

fn cp(args: &[&str]) -> Result<CopyArgs, String> {
    let words = ["longhaul", "cp"].iter().chain(args).map(OsString::from);
    match parse(words, clap::ColorChoice::Never) {
        Ok(ParsedCommandLine::Copy(args)) => Ok(*args),
        Ok(other) => panic!("not a copy: {other:?}"),
        Err(UsageError(text)) => Err(text),
    }
}

#[test]
fn letters_combine_and_values_attach_as_in_getopt() {
    let args = cp(&[
        "-rpvP2222",
        "-l800",
        "-oUser=x",
        "-o",
        "-strange",
        "a",
        "h:b",
    ])
    .unwrap();
    assert!(args.recursive && args.preserve);
    assert_eq!(
        (args.port, args.limit_kbit, args.verbose),
        (Some(2222), Some(800), 1)
    );
    assert_eq!(args.options, ["User=x", "-strange"]);
    assert_eq!(
        (args.sources, args.destination),
        (vec!["a".into()], "h:b".into())
    );
}

#[test]
fn lanes_and_rate_are_bounded_and_may_not_contradict() {
    let args = cp(&[
        "--connections=64",
        "--channels",
        "10",
        "--limit=8Mbit",
        "a",
        "b:",
    ])
    .unwrap();
    assert_eq!((args.connections, args.channels), (Some(64), Some(10)));
    assert_eq!(args.limit(), Some(1_000_000));
    assert_eq!(cp(&["-l", "8", "a", "b:"]).unwrap().limit(), Some(1024));
    assert_eq!(cp(&["a", "b:"]).unwrap().limit(), None);
    for (wrong, says) in [
        (vec!["--connections", "0"], "1 to 64"),
        (vec!["--connections", "65"], "1 to 64"),
        (vec!["--channels=11"], "1 to 10"),
        (vec!["--channels=-1"], "1 to 10"),
        (vec!["--limit", "fast"], "10MB"),
        (vec!["-l", "8", "--limit", "1MB"], "-l and --limit"),
        (vec!["-S", "ssh", "--connections", "2"], "-S"),
        (vec!["-D", "sftp-server", "--channels", "2"], "-D"),
        (vec!["-S", "ssh", "--congestion", "cubic"], "--congestion"),
        (vec!["-D", "sftp-server", "--background"], "--background"),
        (vec!["--background", "--connections=2"], "one connection"),
    ] {
        let error = cp(&[wrong.as_slice(), &["a", "b:"]].concat()).unwrap_err();
        assert!(error.contains(says), "{wrong:?}: {error}");
    }
    assert!(cp(&["-S", "ssh", "--connections", "1", "a", "b:"]).is_ok());
}

#[test]
fn flags_may_follow_operands_until_a_double_dash() {
    let args = cp(&["a", "-r", "b", "--", "-p", "h:"]).unwrap();
    assert!(args.recursive && !args.preserve);
    assert_eq!(args.sources, ["a", "b", "-p"]);
    assert_eq!(args.destination, "h:");
}

#[test]
fn relaying_hosts_are_a_list_or_auto() {
    let through = |args: &[&str]| cp(&[args, &["a", "h:b"]].concat()).map(|args| args.via);
    assert_eq!(through(&["--via", "auto"]), Ok(Some(ViaHosts::Auto)));
    let Ok(Some(ViaHosts::Through(hosts))) = through(&["--via=u@g:2222,[2001:db8::1]:22"]) else {
        panic!("a list of hosts");
    };
    let shown: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["u@g:2222", "[2001:db8::1]:22"]);
    for (wrong, words) in [
        (&["--via", ""][..], "not a list of hosts"),
        (&["--via", "g,"], "not a list of hosts"),
        (&["--via", "-oProxyCommand=x"], "not a list of hosts"),
        (
            &["--via", "g", "-J", "g"],
            "--via and -J cannot be combined",
        ),
        (
            &["--via", "g", "-S", "ssh"],
            "--via cannot be combined with -S",
        ),
    ] {
        let why = through(wrong).expect_err("a contradiction");
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn the_last_of_a_repeated_flag_counts() {
    let args = cp(&["-P", "1", "-P", "2", "-r", "-r", "-4", "-6", "a", "b:"]).unwrap();
    assert_eq!((args.port, args.family), (Some(2), AddressFamilyArg::V6));
    assert_eq!(
        cp(&["-6", "-4", "a", "b:"]).unwrap().family,
        AddressFamilyArg::V4
    );
    let args = cp(&["-i", "k1", "-i", "k2", "a", "b:"]).unwrap();
    assert_eq!(args.identities, [PathBuf::from("k1"), PathBuf::from("k2")]);
}

#[test]
fn progress_alone_means_always_and_takes_no_operand() {
    assert_eq!(cp(&["a", "b:"]).unwrap().progress, TerminalSetting::Auto);
    let args = cp(&["--progress", "never", "b:"]).unwrap();
    assert_eq!(
        (args.progress, args.sources),
        (TerminalSetting::Always, vec!["never".into()])
    );
    assert_eq!(
        cp(&["--progress=never", "a", "b:"]).unwrap().progress,
        TerminalSetting::Never
    );
    assert!(cp(&["--progress=often", "a", "b:"]).is_err());
}

#[test]
fn verbosity_counts() {
    assert_eq!(cp(&["-vv", "--verbose", "a", "b:"]).unwrap().verbose, 3);
}

#[test]
fn each_refused_flag_gives_its_reason_even_without_operands() {
    for flag in rows() {
        let ScpCompatibility::Refused(reason) = flag.scp else {
            continue;
        };
        let letter = flag.spelled();
        let mut words = vec![letter.as_str()];
        if flag.takes.value_name().is_some() {
            words.push("value");
        }
        let error = cp(&words).unwrap_err();
        assert!(error.contains(reason) && error.contains(&letter), "{error}");
    }
}

#[test]
fn flags_without_effect_change_nothing() {
    let plain = cp(&["a", "b:"]).unwrap();
    for flag in rows() {
        if let ScpCompatibility::NoEffect(_) = flag.scp {
            assert_eq!(cp(&[&flag.spelled(), "a", "b:"]).unwrap(), plain);
        }
    }
}

#[test]
fn values_that_cannot_be_are_named() {
    for (words, part) in [
        (&["-P", "0", "a", "b:"][..], "-P: '0' is not a port"),
        (&["-P", "70000", "a", "b:"], "-P: '70000'"),
        (&["-l", "0", "a", "b:"], "-l: '0' is not a limit"),
        (&["--dscp", "LF", "a", "b:"], "--dscp: 'LF' is neither"),
        (&["--dscp", "CS9", "a", "b:"], "--dscp: 'CS9' is neither"),
        (&["-P", "\u{1b}[2J", "a", "b:"], "-P: '\\u{1b}[2J'"),
        (&["--nonsense", "a", "b:"], "--nonsense"),
        (&["-rf", "a", "b:"], "always replaces files: leave -f out"),
        (&["-p2222", "a", "b:"], "-p2222: the port is -P 2222"),
        // These are letters that exist.
        (&["-r", "-p4466", "a", "b:"], "-p4466: the port is -P 4466"),
        (
            &["--preserve=mode", "a", "b:"],
            "--preserve: takes no value: use -p",
        ),
        (
            &["--recursive=yes", "a", "b:"],
            "--recursive: takes no value",
        ),
        (
            &["--files-from=", "a", "b:"],
            "--files-from: the name is empty",
        ),
        (&["-i", "", "a", "b:"], "-i: the name is empty"),
        (&["--limit", "10", "a", "b:"], "write 10kB for kilobytes"),
        (
            &["a"],
            "no destination given: name at least one source and a destination",
        ),
        (
            &[],
            "no destination given: name at least one source and a destination",
        ),
        (
            &["", "b:"],
            "SRC or DST is an empty string (\"\"): check for an unset shell variable; HOST: alone \
             means the home directory there",
        ),
    ] {
        let error = cp(words).unwrap_err();
        assert!(error.contains(part), "{words:?}: {error}");
        assert!(error.contains("Usage: longhaul cp"), "{error}");
    }
}

#[test]
fn a_letter_and_a_digit_are_no_port() {
    let args = cp(&["-p4", "a", "b:"]).unwrap();
    assert!(args.preserve && args.family == AddressFamilyArg::V4);
    assert_eq!(
        cp(&["-r", "--", "-p2222", "b:"]).unwrap().sources,
        ["-p2222"]
    );
}

#[cfg(unix)]
#[test]
fn operands_need_not_be_unicode() {
    use std::os::unix::ffi::OsStringExt;
    let name = OsString::from_vec(b"\xff\n".to_vec());
    let words = ["longhaul".into(), "cp".into(), name.clone(), "h:".into()];
    match parse(words, clap::ColorChoice::Never) {
        Ok(ParsedCommandLine::Copy(args)) => assert_eq!(args.sources, [name]),
        other => panic!("{other:?}"),
    }
}

fn lab(args: &[&str]) -> Result<LabArgs, String> {
    let words = ["longhaul", "lab"].iter().chain(args).map(OsString::from);
    match parse(words, clap::ColorChoice::Never) {
        Ok(ParsedCommandLine::Lab(args)) => Ok(*args),
        Ok(other) => panic!("not a lab: {other:?}"),
        Err(UsageError(text)) => Err(text),
    }
}

#[test]
fn what_follows_the_command_is_the_commands() {
    for dash in [&["--"][..], &[]] {
        let words = [&["--rtt", "5ms", "-q"], dash, &["ping", "-q", "--", "far"]].concat();
        let args = lab(&words).unwrap();
        assert_eq!(args.command, ["ping", "-q", "--", "far"]);
        assert_eq!(args.options, [("rtt", "5ms".to_owned())]);
        assert!(args.quiet);
    }
}

#[test]
fn options_of_the_path_are_kept_in_order() {
    let args = lab(&[
        "--path",
        "satellite",
        "--at",
        "5s reset",
        "--at",
        "1s blackout=1s",
        "--bleach",
        "true",
    ])
    .unwrap();
    assert_eq!(args.path.as_deref(), Some("satellite"));
    let options: Vec<_> = args
        .options
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    assert_eq!(
        options,
        [("bleach", ""), ("at", "5s reset"), ("at", "1s blackout=1s")]
    );
}

#[test]
fn labs_that_cannot_be_are_named() {
    for (words, part) in [
        (&[][..], "no command given: name one, or use --shell"),
        (&["--shell", "true"], "--shell takes no command"),
        (
            &["--sshd-option", "A=1", "true"],
            "--sshd-option needs --sshd",
        ),
        (
            &["--sshd", "--sshd-option", "A", "true"],
            "'A' is not KEY=VALUE",
        ),
        (&["--far-port", "7", "true"], "--far-port needs --far"),
        (
            &["--far", "x", "--far-port", "0", "true"],
            "'0' is not a port",
        ),
    ] {
        let error = lab(words).unwrap_err();
        assert!(error.contains(part), "{words:?}: {error}");
        assert!(error.contains("Usage: longhaul lab"), "{error}");
    }
}
