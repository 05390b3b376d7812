use std::fs;
use std::os::unix::fs::symlink;

use sftp::Request;

use super::super::tests::{shown, started, talk};
use crate::testing::{at, both};
use crate::{Access, ExportedTree};

#[test]
fn patterns_are_those_of_a_shell() {
    both(Access::Full, |export, before, folder| {
        for dir in ["a", "b", ".c"] {
            fs::create_dir(folder.join(dir)).expect("ours");
            for name in ["1.txt", "2.txt", "2.bin", "*.txt", ".3.txt", "[x"] {
                fs::write(folder.join(dir).join(name), "").expect("ours");
            }
        }
        for (pattern, wanted) in [
            ("a/*.txt", &["*.txt", "1.txt", "2.txt"][..]),
            ("a/'*.txt'", &["*.txt"]),
            (r"a/\*.txt", &["*.txt"]),
            ("*/2.???", &["2.bin", "2.txt", "2.bin", "2.txt"]),
            ("[b]/[2-3].txt", &["2.txt"]),
            ("*/1.txt", &["1.txt", "1.txt"]),
            ("*/../*/1.txt", &["1.txt", "1.txt", "1.txt", "1.txt"]),
            (".c/2.b*", &["2.bin"]),
            ("a/.*.txt", &[".3.txt"]),
            ("a/[x", &["[x"]),
            ("a/[[:digit:]].bin", &["2.bin"]),
        ] {
            let command = format!("scp -f {}{pattern}", shown(before));
            let (said, status) = talk(export, &command, &[0; 20], 1);
            let wanted: Vec<String> = wanted
                .iter()
                .map(|name| format!("C0644 0 {name}\n\0"))
                .collect();
            assert_eq!((shown(&said), status), (wanted.concat(), 0), "{pattern}");
        }
        let (said, status) = talk(export, &format!("scp -f {}z*", shown(before)), &[0], 1);
        assert!(status == 1 && shown(&said).contains("z*: No such file or directory"));
        // A trailing slash matches only directories.
        let (said, _) = talk(export, &format!("scp -f {}a/*/", shown(before)), &[0], 1);
        assert!(shown(&said).contains("a/*: No such file"));
        let (said, _) = talk(export, &format!("scp -rf {}*/", shown(before)), &[0], 1);
        assert_eq!(said, b"D0755 0 a\n");
        // Without a pattern the path is not found, as in OpenSSH.
        let (said, status) = talk(
            export,
            &format!("scp -f {}a/1.txt/", shown(before)),
            &[0; 3],
            1,
        );
        assert_eq!((shown(&said), status), ("C0644 0 1.txt\n\0".into(), 0));
    });
}

#[test]
fn a_pattern_is_nobodys_home() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("~a")).expect("ours");
    fs::write(folder.path().join("~a/x"), "").expect("ours");
    fs::write(folder.path().join("y1"), "").expect("ours");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("openat2");
    for (word, name) in [
        ("~*/x", "x"),
        ("~?/x", "x"),
        ("~/y*", "y1"),
        ("~/~a/[x]", "x"),
    ] {
        let (said, status) = talk(&export, &format!("scp -f {word}"), &[0; 3], 1);
        assert_eq!(
            (shown(&said), status),
            (format!("C0644 0 {name}\n\0"), 0),
            "{word}"
        );
    }
    for word in ["~*", "~", "~[", "~none*", "*~"] {
        let (said, _) = talk(&export, &format!("scp -f {word}"), &[0; 3], 1);
        assert!(said.starts_with(b"\x01scp: "), "{word}: {}", shown(&said));
    }
}

#[test]
fn what_is_too_much_to_be_found_is_an_error_and_no_part_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..24 {
        symlink(".", folder.path().join(format!("s{n}"))).expect("ours");
    }
    fs::write(folder.path().join("file"), "").expect("ours");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("openat2");
    let words = "the pattern matches too many names: use a narrower one";
    // One long pattern, and many that are acceptable alone.
    let many = "*/*/fil[e] ".repeat(10);
    let long = "*/".repeat(40);
    for command in [
        format!("scp -rf {long}"),
        format!("scp -rt {long}"),
        format!("scp -f {many}"),
    ] {
        let (said, status) = talk(&export, &command, &[0; 3], 1);
        let said = shown(&said);
        assert!(status == 1 && said.ends_with(&format!(": {words}\n")));
        assert!(said.starts_with("\x01scp: */") && said.matches('\n').count() == 1);
    }
    let (_, status) = talk(&export, "scp -f */*/fil[e]", &[0; 1200], 1200);
    assert_eq!(status, 0, "one of them is bearable");
}

#[test]
fn other_channels_have_their_turn_while_names_are_looked_for() {
    both(Access::Full, |export, before, folder| {
        for n in 0..20 {
            symlink(".", folder.join(format!("s{n}"))).expect("ours");
        }
        let command = format!("scp -f {}", shown(&at(before, "*/*/x*")));
        let mut scp = started(export, &command);
        let mut turns = 0;
        while scp.has_more() && scp.status().is_none() {
            scp.handle(&mut bytes::Bytes::new());
            turns += 1;
        }
        assert!(turns > 1, "it was done in one turn");
    });
}

#[test]
fn a_directory_that_cannot_be_read_to_its_end_is_an_error() {
    both(Access::Full, |export, before, folder| {
        fs::write(folder.join("file"), "").expect("ours");
        for command in ["scp -f", "scp -t"] {
            let mut scp = started(export, &format!("{command} {}", shown(&at(before, "f*"))));
            scp.files.fails = Some(|request| {
                matches!(request, Request::Readdir { .. }).then_some(rustix::io::Errno::IO)
            });
            scp.handle(&mut bytes::Bytes::new());
            assert_eq!(scp.status(), Some(1), "{command}");
        }
    });
}
