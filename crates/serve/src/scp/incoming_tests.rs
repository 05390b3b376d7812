use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;

use bytes::Bytes;
use rustix::io::Errno;
use sftp::Request;

use super::super::files::InjectedFailure;
use super::super::tests::{feed, mode, shown, started, talk};
use crate::testing::{at, both, names};
use crate::{Access, AnswerChunk, ExportedTree};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn made(path: &Path, mode: u32) {
    fs::write(path, "the old one").expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

#[test]
fn nobody_reads_a_file_meanwhile_who_could_not_read_the_old_one() {
    both(Access::Full, |export, before, folder| {
        for (command, wanted) in [("scp -t", 0o600), ("scp -pt", 0o644)] {
            made(&folder.join("file"), 0o600);
            let command = format!("{command} '{}'", shown(&at(before, "file")));
            let mut scp = started(export, &command);
            feed(&mut scp, b"C0644 3 x\nne");
            let all = names(folder);
            let temporary = all.iter().find(|name| *name != "file").expect("beside it");
            assert_eq!(mode(&folder.join(temporary)), 0o600);
            feed(&mut scp, b"w\0");
            drop(scp);
            assert_eq!(
                (names(folder), mode(&folder.join("file"))),
                (vec!["file".into()], wanted)
            );
        }
    });
}

#[test]
fn a_file_of_several_names_or_of_another_owner_is_written_in_place() {
    both(Access::Full, |export, before, folder| {
        made(&folder.join("two"), 0o640);
        fs::hard_link(folder.join("two"), folder.join("names")).expect("ours");
        made(&folder.join("theirs"), 0o640);
        if is_root() {
            chown(folder.join("theirs"), Some(12345), Some(23456)).expect("root may");
        }
        for name in ["two", "theirs"] {
            let file = folder.join(name);
            let before_it = fs::metadata(&file).expect("it");
            let command = format!("scp -t '{}'", shown(&at(before, name)));
            // New files that are longer and shorter than the old one.
            for new in ["a file longer than the old", "new", ""] {
                let input = format!("C0600 {} x\n{new}\0", new.len());
                assert_eq!(talk(export, &command, input.as_bytes(), 5).1, 0);
                assert_eq!(fs::read(&file).expect("it"), new.as_bytes());
            }
            let after = fs::metadata(&file).expect("it");
            let whose = |meta: &fs::Metadata| (meta.uid(), meta.gid(), meta.mode(), meta.nlink());
            assert_eq!(whose(&after), whose(&before_it), "{name}");
            assert_eq!(names(folder), ["names", "theirs", "two"]);
        }
        assert_eq!(fs::read(folder.join("names")).expect("it"), b"");
    });
}

#[cfg(target_os = "linux")]
#[test]
fn extended_attributes_and_access_lists_stay() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    // Entries for the owner, a user by ID, the group, the mask, and others (acl(5), as the kernel
    // stores it).
    const LIST: [(u16, u16, u32); 5] = [
        (0x01, 6, u32::MAX),
        (0x02, 4, 12345),
        (0x04, 4, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let entry = |(tag, perm, id): &(u16, u16, u32)| {
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let list = [
        &2_u32.to_le_bytes()[..],
        &LIST.iter().flat_map(entry).collect::<Vec<_>>(),
    ]
    .concat();
    both(Access::Full, |export, before, folder| {
        for (name, value) in [
            ("user.longhaul", b"kept".as_slice()),
            ("system.posix_acl_access", &list),
        ] {
            let file = folder.join("file");
            made(&file, 0o640);
            if setxattr(&file, name, value, XattrFlags::empty()).is_err() {
                eprintln!("this file system has no {name}");
                continue;
            }
            let command = format!("scp -t '{}'", shown(&at(before, "file")));
            assert_eq!(talk(export, &command, b"C0600 3 x\nnew\0", 5).1, 0);
            assert_eq!(fs::read(&file).expect("it"), b"new");
            let mut kept = vec![0; 256];
            let len = getxattr(&file, name, &mut kept).expect(name);
            assert_eq!(&kept[..len], value);
            assert_eq!(names(folder), ["file"]);
            fs::remove_file(&file).expect("ours");
        }
    });
}

#[test]
fn what_may_not_be_written_is_not_replaced() {
    // root may write the file.
    if is_root() {
        return;
    }
    both(Access::Full, |export, before, folder| {
        made(&folder.join("file"), 0o444);
        let command = format!("scp -t '{}'", shown(&at(before, "file")));
        let (said, status) = talk(export, &command, b"C0644 3 x\nnew\0", 99);
        assert!(status == 1 && shown(&said).contains("/file: Permission denied\n"));
        assert_eq!(fs::read(folder.join("file")).expect("it"), b"the old one");
        assert_eq!(names(folder), ["file"]);
    });
}

#[test]
fn what_a_symlink_leads_to_is_made_where_it_is_not_there() {
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("dir")).expect("ours");
        symlink("dir/second", folder.join("first")).expect("ours");
        symlink("../real", folder.join("dir/second")).expect("ours");
        symlink("round", folder.join("round")).expect("ours");
        let command = format!("scp -t '{}'", shown(&at(before, "first")));
        let (_, status) = talk(export, &command, b"C0644 3 x\nnew\0", 99);
        assert_eq!(
            (status, fs::read(folder.join("real")).ok()),
            (0, Some(b"new".to_vec()))
        );
        assert!(folder.join("first").is_symlink() && folder.join("dir/second").is_symlink());
        assert_eq!(names(folder), ["dir", "first", "real", "round"]);
    });
}

#[test]
fn a_fifo_is_waited_for_by_nobody() {
    both(Access::Full, |export, before, folder| {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("ours");
        let path = shown(&at(before, "fifo"));
        let (said, status) = talk(export, &format!("scp -t '{path}'"), b"C0644 3 x\nnew\0", 9);
        assert!(
            status == 1 && shown(&said).contains("/fifo: No such device"),
            "{}",
            shown(&said)
        );
        let (said, _) = talk(export, &format!("scp -f '{path}'"), &[0; 3], 1);
        assert!(shown(&said).ends_with("/fifo: not a regular file\n"));
    });
}

/// Output and status when `fails` injects errors after the first bytes.
fn failing(export: &ExportedTree, command: &str, fails: InjectedFailure) -> (String, u32) {
    let mut scp = started(export, command);
    scp.files.fails = Some(fails);
    // A turn ends after some milliseconds, with something left of what was received.
    let mut received = Bytes::from_static(b"T7 0 1 0\nC0644 3 x\nnew\0");
    while !received.is_empty() {
        scp.handle(&mut received);
    }
    let mut said = Vec::new();
    let taken = scp.take_answers(|answer| {
        if let AnswerChunk::Bytes(bytes) = answer {
            said.extend_from_slice(bytes);
        }
        Ok::<_, ()>(())
    });
    taken.expect("ours");
    (shown(&said), scp.end())
}

#[test]
fn a_file_whose_mode_or_times_cannot_be_set_is_kept_and_that_is_said() {
    both(Access::Full, |export, before, folder| {
        made(&folder.join("file"), 0o604);
        let path = shown(&at(before, "file"));
        let fails = |request: &Request<'_>| {
            matches!(request, Request::Fsetstat { .. }).then_some(Errno::IO)
        };
        let (said, status) = failing(export, &format!("scp -pt '{path}'"), fails);
        let words = "copied, but cannot set its mode or times: Input/output error";
        assert_eq!(said, format!("\0\0\0\x01scp: {path}: {words}\n"));
        let content = fs::read(folder.join("file")).expect("it");
        assert_eq!((status, content), (1, b"new".to_vec()));
        assert_eq!(names(folder), ["file"]);
    });
}

#[test]
fn a_file_that_cannot_be_replaced_is_written_in_place() {
    both(Access::Full, |export, before, folder| {
        made(&folder.join("file"), 0o604);
        let inode = || fs::metadata(folder.join("file")).expect("it").ino();
        let before_it = inode();
        // As for a file that is a mount point.
        let fails = |request: &Request<'_>| renamed(request, Errno::BUSY);
        let command = format!("scp -pt '{}'", shown(&at(before, "file")));
        assert_eq!(failing(export, &command, fails), ("\0\0\0\0".into(), 0));
        let meta = fs::metadata(folder.join("file")).expect("it");
        assert_eq!(
            (inode(), meta.mtime(), meta.mode() & 0o777),
            (before_it, 7, 0o644)
        );
        assert_eq!(fs::read(folder.join("file")).expect("it"), b"new");
        assert_eq!(names(folder), ["file"]);
    });
}

#[test]
fn a_disk_that_fails_at_the_rename_costs_nothing_of_the_old_file() {
    both(Access::Full, |export, before, folder| {
        made(&folder.join("file"), 0o604);
        let cases: [(InjectedFailure, _); 2] = [
            (|request| renamed(request, Errno::IO), "Input/output error"),
            (
                |request| renamed(request, Errno::DQUOT),
                "Disk quota exceeded",
            ),
        ];
        for (fails, words) in cases {
            let path = shown(&at(before, "file"));
            let (said, status) = failing(export, &format!("scp -t '{path}'"), fails);
            assert_eq!(said, format!("\0\0\0\x01scp: {path}: {words}\n"));
            let content = fs::read(folder.join("file")).expect("it");
            assert_eq!((status, content), (1, b"the old one".to_vec()));
            assert_eq!(names(folder), ["file"]);
        }
    });
}

fn renamed(request: &Request<'_>, fails: Errno) -> Option<Errno> {
    matches!(request, Request::PosixRename { .. }).then_some(fails)
}

#[test]
fn a_file_that_is_half_written_in_place_is_kept_beside_it_and_named() {
    both(Access::Full, |export, before, folder| {
        made(&folder.join("file"), 0o604);
        let path = shown(&at(before, "file"));
        let fails = |request: &Request<'_>| match request {
            Request::PosixRename { .. } => Some(Errno::XDEV),
            Request::CopyData { .. } => Some(Errno::NOSPC),
            _ => None,
        };
        let (said, status) = failing(export, &format!("scp -t '{path}'"), fails);
        let all = names(folder);
        let kept = all.iter().find(|name| *name != "file").expect("beside it");
        let kept_at = shown(&at(before, kept));
        let words = format!("No space left on device; the complete data is in {kept_at}");
        assert_eq!(said, format!("\0\0\0\x01scp: {path}: {words}\n"));
        assert_eq!((status, all.len()), (1, 2));
        assert_eq!(fs::read(folder.join(kept)).expect("it"), b"new");
        fs::remove_file(folder.join(kept)).expect("ours");
    });
}
