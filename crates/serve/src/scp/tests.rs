use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::Access;
use crate::testing::{at, both, names};

/// Packet size of channels.
const SLOT: usize = 32 << 10;

pub(super) fn started<'e>(export: &'e ExportedTree, command: &str) -> ScpServer<'e> {
    let asked = ScpCommand::parse(command.as_bytes())
        .expect("scp")
        .expect("a far end");
    ScpServer::new(PacketPool::new(SLOT, 2), SLOT, export, 100, asked)
}

/// Sends all of `input`. A busy machine ends the server's turn before it has taken the whole.
pub(super) fn feed(scp: &mut ScpServer<'_>, input: &[u8]) {
    let mut received = Bytes::copy_from_slice(input);
    let turns = (0..1_000_000).take_while(|_| {
        scp.handle(&mut received);
        !received.is_empty()
    });
    assert!(turns.count() < 1_000_000, "input is left");
}

/// Output for the input `input`, sent in pieces of `piece` bytes, and the exit status.
pub(super) fn talk(
    export: &ExportedTree,
    command: &str,
    input: &[u8],
    piece: usize,
) -> (Vec<u8>, u32) {
    let mut scp = started(export, command);
    let mut said = Vec::new();
    let mut pieces = input.chunks(piece);
    loop {
        let mut received = match scp.has_more() {
            true => Bytes::new(),
            false => match pieces.next() {
                Some(piece) => Bytes::copy_from_slice(piece),
                None => break,
            },
        };
        loop {
            scp.handle(&mut received);
            let taken = scp.take_answers(|answer| {
                match answer {
                    AnswerChunk::Bytes(bytes) => said.extend_from_slice(bytes),
                    AnswerChunk::Block(block) => said.extend_from_slice(&block.to_vec()),
                }
                Ok::<_, ()>(())
            });
            taken.expect("ours");
            if received.is_empty() {
                break;
            }
        }
        if scp.status().is_some() {
            break;
        }
    }
    let status = scp.status().unwrap_or_else(|| scp.end());
    (said, status)
}

pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

pub(super) fn mode(path: &Path) -> u32 {
    fs::metadata(path)
        .expect("it is there")
        .permissions()
        .mode()
        & 0o7777
}

#[test]
fn what_is_asked_for_is_a_far_end_of_scps() {
    for (command, takes, trees, times, paths) in [
        ("scp -t x", true, false, false, 1),
        ("scp -qrpt -- -x", true, true, true, 1),
        ("scp -v -r -p -d -t 'a b'", true, true, true, 1),
        ("  scp -f a b", false, false, false, 2),
        ("/usr/bin/scp -qrt DIR", true, true, false, 1),
        ("bin/scp -f x", false, false, false, 1),
    ] {
        let found = ScpCommand::parse(command.as_bytes())
            .expect("scp")
            .expect(command);
        let ScpFlags {
            trees: t, times: p, ..
        } = found.how;
        assert_eq!((found.takes, t, p), (takes, trees, times), "{command}");
        assert_eq!(found.paths.len(), paths, "{command}");
    }
    for command in [
        "",
        "rsync --server",
        "scpx -t x",
        "/usr/bin/scp/ -t x",
        "/scp/x -t x",
    ] {
        assert_eq!(ScpCommand::parse(command.as_bytes()), None, "{command}");
    }
    for command in [
        "scp",
        "scp a b:",
        "scp -t",
        "scp -t a b",
        "scp -f",
        "scp -S x -t y",
        "scp -t $(id)",
        "scp -t x; id",
        "scp -f 'x",
    ] {
        let refused = ScpCommand::parse(command.as_bytes()).expect("scp");
        assert!(refused.is_err(), "{command}");
    }
}

#[test]
fn files_and_trees_are_taken_whole_in_any_pieces() {
    for piece in [1, 3, 4096] {
        both(Access::Full, |export, before, folder| {
            let command = format!("scp -rpt '{}'", shown(before));
            let input = b"T1000000000 0 900000000 0\nC0640 5 one\nhello\0D0750 0 dir\n\
                          C0600 0 empty\n\0T7 0 8 0\nD0700 0 in\nE\nE\n";
            let (said, status) = talk(export, &command, input, piece);
            assert_eq!((said, status), (vec![0; 11], 0));
            assert_eq!(names(folder), ["dir", "one"]);
            let meta = fs::metadata(folder.join("one")).expect("it");
            assert_eq!((meta.mtime(), meta.atime()), (1_000_000_000, 900_000_000));
            assert_eq!(fs::read(folder.join("one")).expect("it"), b"hello");
            assert_eq!(mode(&folder.join("one")), 0o640);
            assert_eq!(mode(&folder.join("dir")), 0o750);
            assert_eq!(names(&folder.join("dir")), ["empty", "in"]);
            assert_eq!(fs::metadata(folder.join("dir/in")).expect("it").mtime(), 7);
        });
    }
}

#[test]
fn a_file_that_does_not_come_whole_leaves_what_was_there() {
    both(Access::Full, |export, before, folder| {
        let file = folder.join("file");
        fs::write(&file, "old").expect("ours");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o604)).expect("ours");
        let command = format!("scp -t '{}'", shown(&at(before, "file")));
        // The connection is lost, or the client reports that it could not read the whole file.
        for (input, said) in [
            (&b"C0777 9 x\nnewne"[..], &[0, 0][..]),
            (
                b"C0777 3 x\nnew\x01scp: x: Input/output error\n",
                &[0, 0, 0],
            ),
        ] {
            let found = talk(export, &command, input, 2);
            assert_eq!((&found.0[..], found.1), (said, 1));
            assert_eq!(fs::read(&file).expect("it"), b"old");
            assert_eq!(names(folder), ["file"]);
        }
        // libssh2 sends nothing after the last byte and closes.
        assert_eq!(talk(export, &command, b"C0777 3 x\nowt", 2).1, 0);
        assert_eq!(fs::read(&file).expect("it"), b"owt");
        let found = talk(export, &command, b"C0777 3 x\nnew\0", 2);
        assert_eq!(found, (vec![0; 3], 0));
        assert_eq!(fs::read(&file).expect("it"), b"new");
        assert_eq!(
            (names(folder), mode(&file)),
            (vec!["file".to_owned()], 0o604)
        );
    });
}

#[test]
fn what_a_symlink_stands_for_is_written_and_the_link_stays() {
    both(Access::Full, |export, before, folder| {
        fs::write(folder.join("real"), "old").expect("ours");
        symlink("real", folder.join("link")).expect("ours");
        let command = format!("scp -t '{}'", shown(&at(before, "link")));
        assert_eq!(talk(export, &command, b"C0644 3 x\nnew\0", 99).1, 0);
        assert_eq!(fs::read(folder.join("real")).expect("it"), b"new");
        assert!(folder.join("link").is_symlink());
    });
}

#[test]
fn names_that_lead_elsewhere_and_lines_that_are_none_end_it() {
    both(Access::Full, |export, before, folder| {
        let dir = at(before, "dir");
        fs::create_dir(folder.join("dir")).expect("ours");
        let long = [b"C0644 1 ", &vec![b'x'; LONGEST_LINE][..]].concat();
        for input in [
            &b"C0644 1 ../x\nx\0"[..],
            b"C0644 1 /etc/x\nx\0",
            b"C0644 1 ..\nx\0",
            b"C0644 1 .\nx\0",
            b"C0644 1 \nx\0",
            b"C0644 1 a\0b\nx\0",
            b"D0755 0 ..\n",
            b"C9999 1 x\n",
            b"C10000 1 x\n",
            b"C+644 1 x\n",
            b"C0644 -1 x\n",
            b"C0644 18446744073709551615 x\n",
            b"C0644 99999999999999999999999 x\n",
            b"C0644\n",
            b"T1 2\n",
            b"hello\n",
            b"\n",
            &long,
        ] {
            let (said, status) = talk(export, &format!("scp -rt '{}'", shown(&dir)), input, 7);
            assert_eq!((said[..2].to_vec(), status), (vec![0, 1], 1), "{input:?}");
            assert_eq!(names(folder), ["dir"]);
            assert_eq!(names(&folder.join("dir")), [""; 0], "{input:?}");
        }
        // A tree is refused if none was requested.
        let (_, status) = talk(
            export,
            &format!("scp -t '{}'", shown(&dir)),
            b"D0755 0 x\n",
            9,
        );
        assert_eq!((status, names(&folder.join("dir"))), (1, Vec::new()));
    });
}

#[test]
fn one_that_fails_is_told_and_the_others_come() {
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("a")).expect("ours");
        let command = format!("scp -rt '{}'", shown(before));
        let (said, status) = talk(export, &command, b"C0644 1 a\nC0644 1 b\nx\0E\n", 5);
        let words = String::from_utf8_lossy(&said).into_owned();
        assert!(words.contains("/a: Is a directory\n"), "{words}");
        assert_eq!((status, names(folder)), (1, vec!["a".into(), "b".into()]));
        let command = format!("scp -dt '{}'", shown(&at(before, "b")));
        let (said, status) = talk(export, &command, b"", 1);
        assert!(said.ends_with(b"/b: Not a directory\n") && status == 1);
    });
}

#[test]
fn files_and_trees_are_given() {
    both(Access::Full, |export, before, folder| {
        let content: Vec<u8> = (0..700_000u32).map(|n| (n % 251) as u8).collect();
        fs::create_dir_all(folder.join("dir/in")).expect("ours");
        fs::write(folder.join("dir/in/file"), &content).expect("ours");
        fs::set_permissions(folder.join("dir/in/file"), PermissionsExt::from_mode(0o640))
            .expect("ours");
        fs::set_permissions(folder.join("dir/in"), PermissionsExt::from_mode(0o750)).expect("ours");
        let command = format!("scp -rf '{}/'", shown(&at(before, "dir/in")));
        let (said, status) = talk(export, &command, &[0; 20], 1);
        let wanted = [&b"D0750 0 in\nC0640 700000 file\n"[..], &content, b"\0E\n"];
        assert!(said == wanted.concat() && status == 0);
        let times = fs::metadata(folder.join("dir/in/file")).expect("it");
        let command = format!("scp -pf '{}'", shown(&at(before, "dir/in/file")));
        let (said, _) = talk(export, &command, &[0; 2], 1);
        let line = format!("T{} 0 {} 0\n", times.mtime(), times.atime());
        assert_eq!(shown(&said), format!("{line}C0640 700000 file\n"));
        // A client without room continues with the next file.
        let command = format!("scp -f '{0}' '{0}'", shown(&at(before, "dir/in/file")));
        let (said, status) = talk(export, &command, b"\0\x01no room\n\0\0", 3);
        assert_eq!((said.len(), status), (2 * 18 + 700_001, 1));
        let (_, status) = talk(export, &command, b"\0\x02", 3);
        assert_eq!(status, 1);
    });
}

#[test]
fn what_cannot_be_given_is_told_with_its_name() {
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("dir")).expect("ours");
        fs::write(folder.join("new\nline"), "x").expect("ours");
        for (name, why) in [
            ("none", "No such file or directory"),
            ("dir", "not a regular file"),
            (
                "new\nline",
                "the old scp protocol cannot carry a name with a newline",
            ),
        ] {
            let path = shown(&at(before, name));
            let (said, status) = talk(export, &format!("scp -f '{path}'"), &[0], 1);
            let path = path.replace('\n', "?");
            assert_eq!(
                (shown(&said), status),
                (format!("\x01scp: {path}: {why}\n"), 1)
            );
        }
    });
}

#[test]
fn who_may_only_read_or_only_put_does_no_more() {
    both(Access::ReadOnly, |export, before, folder| {
        fs::write(folder.join("there"), "old").expect("ours");
        let path = shown(&at(before, "there"));
        let (_, status) = talk(export, &format!("scp -t '{path}'"), b"C0644 3 x\nnew\0", 9);
        assert_eq!(
            (status, fs::read(folder.join("there")).expect("it")),
            (1, b"old".to_vec())
        );
        assert_eq!(talk(export, &format!("scp -f '{path}'"), &[0; 3], 1).1, 0);
    });
    both(Access::WriteOnly, |export, before, folder| {
        fs::write(folder.join("there"), "former").expect("ours");
        let path = shown(&at(before, "there"));
        let (said, status) = talk(export, &format!("scp -f '{path}'"), &[0; 3], 1);
        assert!(status == 1 && !shown(&said).contains("former"));
        let (_, status) = talk(export, &format!("scp -t '{path}'"), b"C0644 3 x\nnew\0", 9);
        assert_eq!(
            (status, fs::read(folder.join("there")).expect("it")),
            (1, b"former".to_vec())
        );
        let path = shown(&at(before, "fresh"));
        assert_eq!(
            talk(export, &format!("scp -t '{path}'"), b"C0644 3 x\nnew\0", 9).1,
            0
        );
        assert_eq!(names(folder), ["fresh", "there"]);
    });
}

#[test]
fn nothing_beyond_a_root_is_reached() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    fs::create_dir(&root).expect("ours");
    fs::write(folder.path().join("secret"), "x").expect("ours");
    symlink("../secret", root.join("link")).expect("ours");
    let export = ExportedTree::beneath(&root, Access::Full).expect("openat2");
    let paths = ["/../secret", "../secret", "link", "/link"];
    for path in paths {
        let (said, _) = talk(&export, &format!("scp -f {path}"), &[0; 3], 1);
        let said = shown(&said);
        assert!(said.contains(": No such file"), "{path}: {said}");
    }
    for path in paths {
        talk(&export, &format!("scp -t {path}"), b"C0644 3 x\nnew\0", 9);
        assert_eq!(fs::read(folder.path().join("secret")).expect("it"), b"x");
    }
    // Nothing is above the root: all names meant one file.
    assert_eq!(names(&root), ["link", "secret"]);
}
