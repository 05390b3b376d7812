//! Tests of the operand grammar.

use super::*;

fn remote(user: Option<&str>, host: &str, port: Option<u16>, path: &[u8]) -> CopyOperand {
    CopyOperand::Remote(RemoteOperand {
        destination: SshDestination {
            user: user.map(Into::into),
            host: host.into(),
            port,
        },
        path: RemotePath(path.to_vec()),
    })
}

fn parse(bytes: &[u8]) -> Result<CopyOperand, OperandError> {
    CopyOperand::parse(OsStr::from_bytes(bytes))
}

#[test]
fn operands_as_scp_reads_them() {
    let table: &[(&[u8], CopyOperand)] = &[
        (b"h:p", remote(None, "h", None, b"p")),
        (b"h:", remote(None, "h", None, b".")),
        (b"u@h:/a/b c", remote(Some("u"), "h", None, b"/a/b c")),
        (b"h:a:b", remote(None, "h", None, b"a:b")),
        (b"h:~/x", remote(None, "h", None, b"~/x")),
        (b"h:~bob/x", remote(None, "h", None, b"~bob/x")),
        (b"h:*.txt", remote(None, "h", None, b"*.txt")),
        (b"h:\xff\xfe", remote(None, "h", None, b"\xff\xfe")),
        (b"u@d@h:p", remote(Some("u@d"), "h", None, b"p")),
        (b"dom\\u@h:p", remote(Some("dom\\u"), "h", None, b"p")),
        (b"[::1]:p", remote(None, "::1", None, b"p")),
        (
            b"u@[fe80::1%eth0]:p",
            remote(Some("u"), "fe80::1%eth0", None, b"p"),
        ),
        (b"[h]:p", remote(None, "h", None, b"p")),
        (b"[h]:", remote(None, "h", None, b".")),
        (b"scp://h", remote(None, "h", None, b".")),
        (b"scp://h/", remote(None, "h", None, b".")),
        (b"scp://h/p/q", remote(None, "h", None, b"p/q")),
        (b"scp://h//p", remote(None, "h", None, b"/p")),
        (
            b"sftp://u@h:2222/%2Fa%20b",
            remote(Some("u"), "h", Some(2222), b"/a b"),
        ),
        (
            b"sftp://u%40d@[::1]:1/x@y",
            remote(Some("u@d"), "::1", Some(1), b"x@y"),
        ),
        (
            b"scp://u;fingerprint=x@h/%ff",
            remote(Some("u"), "h", None, b"\xff"),
        ),
        (b"scp://h:/p", remote(None, "h", None, b"p")),
    ];
    for (text, operand) in table {
        assert_eq!(parse(text).as_ref(), Ok(operand), "{}", escape::name(text));
    }
}

#[test]
fn what_has_a_slash_or_nothing_before_the_colon_is_local() {
    for text in [
        b"./a:b".as_slice(),
        b"/a:b",
        b":b",
        b"a/b:c",
        b"plain",
        b"-",
        b"\xff\xfe",
        b"[a/b]:c",
        b"~/x",
        b"[ab",
    ] {
        let local = CopyOperand::Local(PathBuf::from(OsStr::from_bytes(text)));
        assert_eq!(parse(text), Ok(local));
    }
}

#[test]
fn what_a_shell_or_an_option_parser_could_misread_is_refused() {
    for text in [
        b"-oProxyCommand=x:p".as_slice(),
        b"u@-h:p",
        b"-u@h:p",
        b"u -x@h:p",
        b"$(id):p",
        b"u`id`@h:p",
        b"u;id@h:p",
        b"h\n:p",
        b"\x1b[2J:p",
        b"u\x01@h:p",
        b"u\\@h:p",
        b"a b:p",
        b"u@:p",
        b"@h:p",
        b"@[::1]:p",
        b"[]:p",
        b"\xff:p",
        b"scp://",
        b"scp:///p",
        b"scp://-h/p",
        b"scp://@h/p",
        b"scp://h:0/p",
        b"scp://h:65536/p",
        b"scp://h:+1/p",
        b"scp://h/%zz",
        b"scp://h/%4",
        b"scp://h/%00",
        b"scp://%0a@h/p",
        b"scp://[::1/p",
        b"scp://[::1]x/p",
        b"",
        b"h:a\0b",
    ] {
        let error = parse(text).expect_err("must be refused");
        assert!(!error.to_string().chars().any(char::is_control));
    }
}

/// CVE-2025-61984 and CVE-2025-61985: the user name in a URI may be percent-encoded, and becomes
/// part of a ProxyCommand (`%r`).
#[test]
fn no_encoded_control_character_gets_into_a_name() {
    for byte in (0..0x20).chain([0x7f]) {
        for text in [
            format!("scp://u%{byte:02x}x@h/p"),
            format!("sftp://u%{byte:02X}@h/p"),
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(SshDestination::parse(&format!("ssh://u%{byte:02x}@h")).is_err());
    }
    // C1 controls and bidirectional formatting would hide a part of the displayed text.
    for hidden in ["%c2%9b", "%e2%81%a7", "%e2%80%ae"] {
        assert!(parse(format!("scp://u{hidden}@h/p").as_bytes()).is_err());
    }
    for name in ["h\u{2067}x:p", "u\u{202e}@h:p"] {
        assert!(parse(name.as_bytes()).is_err(), "{name:?}");
    }
}

#[test]
fn hops_are_hosts_with_ports() {
    let hop = |t: &str| SshDestination::parse(t).map(|d| (d.user, d.host, d.port));
    let some = |s: &str| Some(s.to_owned());
    assert_eq!(hop("h"), Ok((None, "h".into(), None)));
    assert_eq!(hop("u@h:22"), Ok((some("u"), "h".into(), Some(22))));
    assert_eq!(hop("[::1]:22"), Ok((None, "::1".into(), Some(22))));
    assert_eq!(hop("::1"), Ok((None, "::1".into(), None)));
    assert_eq!(hop("ssh://u@h:22/"), Ok((some("u"), "h".into(), Some(22))));
    assert!(hop("u@h:x").is_err() && hop("@h").is_err() && hop("").is_err());
}

#[test]
fn a_destination_shown_reads_back_as_the_same() {
    for text in ["h", "u@h", "u@h:22", "[::1]:22", "u@[::1]"] {
        let shown = SshDestination::parse(text).unwrap().to_string();
        assert_eq!(shown, text);
        assert_eq!(SshDestination::parse(&shown), SshDestination::parse(text));
    }
}

#[test]
fn brackets_within_brackets_are_refused() {
    for text in ["[[]", "[]]", "user@[[::1]]"] {
        assert!(SshDestination::parse(text).is_err(), "{text}");
    }
}

/// Regression test: the host of `sftp<U+2067>TOTOa%20b` was printed unescaped and reversed the
/// following text of a message.
#[test]
fn a_host_that_steers_a_terminal_is_refused_and_shown_escaped() {
    for text in ["me@sftp\u{2067}TOTO", "h\u{200f}\u{e0041}st"] {
        let refused = SshDestination::parse(text).unwrap_err().to_string();
        assert!(
            !refused.chars().any(wire::escape::steers_terminal),
            "{refused}"
        );
    }
    let operand = CopyOperand::parse(OsStr::new("host:a\u{2028}b")).unwrap();
    assert_eq!(operand.to_string(), "host:a\\u{2028}b");
}

/// Regression: the copy tried to reach a host named rsync.
#[test]
fn addresses_of_rsync_and_other_protocols_are_answered_with_the_form_to_use() {
    for (text, says) in [
        (&b"rsync://h/module"[..], "write [user@]host:path"),
        (b"ssh://u@h/x", "write [user@]host:path"),
        (b"https://h/x", "write [user@]host:path"),
        (b"h::module/x", "host:./:NAME"),
        (b"u@h::module", "host:./:NAME"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // A host of such a name, and names that begin with a colon.
    for text in [&b"rsync:/x"[..], b"rsync:x", b"h::", b"h:./:x"] {
        assert!(matches!(parse(text), Ok(CopyOperand::Remote(_))));
    }
}
