//! Fuzzes command line operands: nothing that a shell or an option parser would interpret becomes a
//! user or a host, and the displayed form parses back to the same operand.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuzz::{Corpus, assert_shown_safely, parse, some_bytes};
use transfer::operand::{CopyOperand, SshDestination, valid_host, valid_user};

fn check(destination: &SshDestination) {
    assert!(valid_host(&destination.host), "{destination:?}");
    assert!(
        destination.user.as_deref().is_none_or(valid_user),
        "{destination:?}"
    );
    assert_ne!(destination.port, Some(0));
    let shown = destination.to_string();
    assert_shown_safely(&shown, false);
}

#[test]
fn operands_and_destinations() {
    let names = [
        "host:path",
        "user@host:~/a b",
        "[::1]:/x",
        "user@[fe80::1%eth0]:",
        "scp://user@host:2222/a%20b",
        "sftp://[::1]:22/~x",
        "./a:b",
        "a@b@c:/d",
        "-oProxyCommand=x:y",
        "user:pass@host:22",
    ];
    let corpus = Corpus(
        names
            .iter()
            .map(|n| ("operand", n.as_bytes().to_vec()))
            .collect(),
    );
    parse(512, |u| {
        let bytes = match u.ratio(1, 8)? {
            true => some_bytes(u)?,
            false => corpus.mutant(u)?,
        };
        match CopyOperand::parse(OsStr::from_bytes(&bytes)) {
            Ok(CopyOperand::Local(path)) => assert_eq!(path.as_os_str().as_bytes(), bytes),
            Ok(CopyOperand::Remote(remote)) => {
                check(&remote.destination);
                assert!(!remote.path.0.is_empty() && !remote.path.0.contains(&0));
            }
            Err(error) => assert_shown_safely(&error.to_string(), false),
        }
        if let Ok(text) = std::str::from_utf8(&bytes) {
            match SshDestination::parse(text) {
                Ok(destination) => {
                    check(&destination);
                    // Text that is not safe to display is escaped, and names something else then.
                    let shown = destination.to_string();
                    if !shown.contains('\\') {
                        let again = SshDestination::parse(&shown);
                        assert_eq!(again.as_ref(), Ok(&destination), "{text:?}");
                    }
                }
                Err(error) => assert_shown_safely(&error.to_string(), false),
            }
        }
        Ok(())
    });
}
