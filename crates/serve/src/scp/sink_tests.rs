use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;
use sftp::Request;

use super::super::tests::{feed, mode, shown, started, talk};
use crate::testing::{at, both, names};
use crate::{Access, ExportedTree};

#[test]
fn what_the_client_says_of_a_file_is_what_it_says_to_openssh() {
    both(Access::Full, |export, before, folder| {
        let command = format!("scp -t '{}'", shown(before));
        // The next file is received, or not.
        for (verdict, said, follows) in [
            (&b"\x01cannot read it\n"[..], &[0; 5][..], true),
            (b"\x02it ends\n", &[0; 2], false),
            (b"C0644 3 b\n", &[0; 2], false),
            (b"\xff\n", &[0; 2], false),
        ] {
            let input = [b"C0644 3 a\nnew", verdict, b"C0644 3 b\nnew\0"].concat();
            let found = talk(export, &command, &input, 4);
            assert_eq!((&found.0[..], found.1), (said, 1), "{verdict:?}");
            assert_eq!(names(folder), if follows { vec!["b"] } else { vec![] });
            let _ = fs::remove_file(folder.join("b"));
        }
    });
}

#[test]
fn nothing_is_open_or_half_there_once_it_is_over() {
    both(Access::Full, |export, before, folder| {
        let command = format!("scp -rt '{}'", shown(before));
        // The client ends within a file, at its end, and after its last message.
        for (input, left, status) in [
            (&b"C0644 3 a\nne"[..], &[][..], 1),
            (b"C0644 3 a\nnew", &["a"], 0),
            (b"C0644 0 a\n", &["a"], 0),
            (b"C0644 3 a\nnew\x02", &[], 1),
        ] {
            let mut scp = started(export, &command);
            feed(&mut scp, input);
            assert_eq!(scp.end(), status, "{input:?}");
            assert!(!scp.has_open() && scp.status() == Some(status), "{input:?}");
            assert_eq!(names(folder), left, "{input:?}");
            let _ = fs::remove_file(folder.join("a"));
        }
        fs::create_dir(folder.join("dir")).expect("ours");
        fs::write(folder.join("dir/file"), "it").expect("ours");
        for heard in [&b"\0\0\0\x02"[..], b"\0\0x"] {
            let command = format!("scp -rf '{}'", shown(&at(before, "dir")));
            let mut scp = started(export, &command);
            feed(&mut scp, &heard[..2]);
            assert!(scp.has_open());
            feed(&mut scp, &heard[2..]);
            assert!(!scp.has_open() && scp.status() == Some(1), "{heard:?}");
        }
    });
}

#[test]
fn a_directory_has_the_mode_that_the_umask_leaves_it() {
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("plain")).expect("ours");
        let command = format!("scp -rt '{}'", shown(before));
        let input = b"D0577 0 dir\nC0666 1 x\nx\0E\n";
        assert_eq!(talk(export, &command, input, 5), (vec![0; 5], 0));
        let wanted = mode(&folder.join("plain")) & 0o577;
        assert_eq!(mode(&folder.join("dir")), wanted);
    });
}

#[test]
fn a_directory_whose_mode_and_times_cannot_be_kept_is_no_error() {
    both(Access::Full, |export, before, folder| {
        let mut scp = started(export, &format!("scp -rpt '{}'", shown(before)));
        scp.files.fails =
            Some(|request| matches!(request, Request::Setstat { .. }).then_some(Errno::IO));
        feed(&mut scp, b"T1 0 1 0\nD0750 0 dir\nE\n");
        assert_eq!((scp.end(), names(folder)), (0, vec!["dir".to_owned()]));
    });
}

#[test]
fn times_before_1970_are_not_those_of_2106() {
    let folder = tempfile::tempdir().expect("a folder");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("openat2");
    // Ten seconds before 1970, as an unsigned number.
    let input = b"T18446744073709551606 0 18446744073709551606 0\nC0644 1 x\nx\0\
                  T99999999999 0 1 0\nC0644 1 y\ny\0";
    assert_eq!(talk(&export, "scp -pt /", input, 50), (vec![0; 7], 0));
    let modified = |name| fs::metadata(folder.path().join(name)).expect("it").mtime();
    assert!(
        (1_000_000_000..4_000_000_000).contains(&modified("x")),
        "now"
    );
    assert_eq!(modified("y"), i64::from(u32::MAX));
}
