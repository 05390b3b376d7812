use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use sftp::{Attrs, PutFlags, Request, Response, StatusCode, tagged_name};
use wire::FieldReader;

use crate::testing::{answers, at, both, code, names, put, statuses};
use crate::{Access, ExportedTree};

const PLAIN: PutFlags = PutFlags(0);

fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).expect("ours");
}

#[test]
fn a_file_is_put_and_replaced_whole() {
    both(Access::Full, |export, before, folder| {
        let path = at(before, "a");
        assert_eq!(code(export, put(&path, PLAIN, b"new")), StatusCode::OK);
        assert_eq!(fs::read(folder.join("a")).expect("it"), b"new");
        let inode = fs::metadata(folder.join("a")).expect("it").ino();
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(folder.join("a"), mode).expect("ours");
        assert_eq!(code(export, put(&path, PLAIN, b"newer")), StatusCode::OK);
        let stat = fs::metadata(folder.join("a")).expect("it");
        assert_eq!(fs::read(folder.join("a")).expect("it"), b"newer");
        assert_eq!(stat.permissions().mode() & 0o7777, 0o640, "it stays");
        assert_ne!(stat.ino(), inode, "renamed, and not written into");
        let kept = Request::PutFile {
            path: &path,
            flags: PutFlags::FSYNC,
            tag: 7,
            mode: 0o644,
            attrs: Attrs {
                size: Some(1),
                owner: Some((1, 1)),
                permissions: Some(0o4755),
                times: Some((1111, 2222)),
                nanoseconds: Some((3, 4)),
                link: None,
                expected: None,
            },
            data: b"kept",
        };
        assert_eq!(code(export, kept), StatusCode::OK);
        let stat = fs::metadata(folder.join("a")).expect("it");
        assert_eq!((stat.len(), stat.mtime(), stat.atime()), (4, 2222, 1111));
        assert_eq!(stat.permissions().mode() & 0o7777, 0o4755);
        assert_eq!(stat.mtime_nsec(), 4);
        // The owner is set before the mode, since chown clears setuid; without root the owner
        // cannot be set.
        assert_eq!(stat.uid() == 1, testkit::missing::is_root());
        assert_eq!(names(folder), ["a"]);
    });
}

/// Bug: a replaced file became the account's own.
#[test]
fn a_file_that_is_replaced_stays_its_owners() {
    if !testkit::missing::is_root() {
        return;
    }
    both(Access::Full, |export, before, folder| {
        fs::write(folder.join("a"), "old").expect("ours");
        std::os::unix::fs::chown(folder.join("a"), Some(7), Some(8)).expect("ours");
        let path = at(before, "a");
        assert_eq!(code(export, put(&path, PLAIN, b"new")), StatusCode::OK);
        let stat = fs::metadata(folder.join("a")).expect("it");
        assert_eq!((stat.uid(), stat.gid()), (7, 8));
        assert_eq!(fs::read(folder.join("a")).expect("it"), b"new");
    });
}

#[test]
fn what_is_more_than_a_rename_is_left_to_other_requests() {
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("dir")).expect("ours");
        fs::write(folder.join("ro"), "old").expect("ours");
        let mode = fs::Permissions::from_mode(0o444);
        fs::set_permissions(folder.join("ro"), mode).expect("ours");
        symlink("ro", folder.join("link")).expect("ours");
        symlink("none", folder.join("dangling")).expect("ours");
        fifo(&folder.join("fifo"));
        let before_names = names(folder);
        let long_way = StatusCode::OP_UNSUPPORTED;
        let unknown = PutFlags(0x100);
        for (name, flags, expected) in [
            ("dir", PLAIN, StatusCode::FAILURE),
            ("dir", PutFlags::FRESH, StatusCode::FAILURE),
            // OPEN shows whether the file may be written, as root may.
            ("ro", PLAIN, long_way),
            ("link", PLAIN, long_way),
            ("dangling", PLAIN, long_way),
            ("fifo", PLAIN, long_way),
            ("a", unknown, long_way),
            ("a/", PLAIN, long_way),
            ("dir/..", PLAIN, long_way),
            ("dir/.", PLAIN, long_way),
            ("none/a", PLAIN, StatusCode::NO_SUCH_FILE),
            ("ro/a", PLAIN, StatusCode::NO_SUCH_FILE),
        ] {
            let path = at(before, name);
            let got = statuses(export, &[put(&path, flags, b"new")]).remove(0);
            assert_eq!(got.0, expected, "{name} {}", got.1);
            assert!(!got.1.is_empty());
        }
        assert_eq!(names(folder), before_names, "nothing is left of them");
        assert_eq!(fs::read(folder.join("ro")).expect("it"), b"old");
        // A symlink is replaced if requested.
        let path = at(before, "link");
        let replaced = put(&path, PutFlags::REPLACE_LINK, b"new");
        assert_eq!(code(export, replaced), StatusCode::OK);
        let meta = fs::symlink_metadata(folder.join("link")).expect("it");
        assert!(meta.is_file());
        assert_eq!(fs::read(folder.join("ro")).expect("it"), b"old");
    });
}

#[test]
fn a_name_that_is_taken_is_counted_up_and_nothing_of_others_is_touched() {
    both(Access::Full, |export, before, folder| {
        let path = at(before, "a");
        let taken = |n: u64| {
            let name = tagged_name(b"a", 7 + n);
            folder.join(String::from_utf8(name).expect("letters"))
        };
        for n in 0..2 {
            fs::write(taken(n), "another's").expect("ours");
        }
        assert_eq!(code(export, put(&path, PLAIN, b"x")), StatusCode::OK);
        fs::write(taken(2), "another's").expect("ours");
        assert_eq!(code(export, put(&path, PLAIN, b"y")), StatusCode::FAILURE);
        assert_eq!(fs::read(folder.join("a")).expect("it"), b"x");
        for n in 0..3 {
            assert_eq!(fs::read(taken(n)).expect("it"), b"another's");
        }
    });
}

#[test]
fn access_holds() {
    both(Access::ReadOnly, |export, before, folder| {
        fs::write(folder.join("a"), "old").expect("ours");
        let path = at(before, "a");
        let denied = StatusCode::PERMISSION_DENIED;
        assert_eq!(code(export, put(&path, PLAIN, b"new")), denied);
        assert_eq!(fs::read(folder.join("a")).expect("it"), b"old");
        assert_eq!(get(export, &path, 100).1.as_deref(), Some(&b"old"[..]));
    });
    both(Access::WriteOnly, |export, before, folder| {
        fs::write(folder.join("a"), "theirs").expect("ours");
        symlink("a", folder.join("link")).expect("ours");
        let theirs = names(folder);
        for name in ["a", "link"] {
            for flags in [PLAIN, PutFlags::FRESH, PutFlags::REPLACE_LINK] {
                let path = at(before, name);
                let got = code(export, put(&path, flags, b"new"));
                assert_ne!(got, StatusCode::OK, "{name} {flags:?}");
            }
        }
        assert_eq!(names(folder), theirs);
        assert_eq!(fs::read(folder.join("a")).expect("it"), b"theirs");
        let path = at(before, "a");
        let len = 100;
        let request = Request::GetFile { path: &path, len };
        assert_eq!(code(export, request), StatusCode::PERMISSION_DENIED);
        // A new file may be put, and the client's own file replaced.
        let new = at(before, "new");
        let twice = [put(&new, PLAIN, b"1"), put(&new, PLAIN, b"2")];
        let got = statuses(export, &twice);
        assert!(
            got.iter().all(|(code, _)| *code == StatusCode::OK),
            "{got:?}"
        );
        assert_eq!(fs::read(folder.join("new")).expect("it"), b"2");
    });
}

/// Bug: sftp's mkdir, which asks for the mode 0777, made directories that everyone could write.
#[test]
fn a_drop_box_does_not_give_directories_what_the_umask_takes() {
    both(Access::WriteOnly, |export, before, folder| {
        let path = at(before, "dir");
        let attrs = Attrs {
            permissions: Some(0o777),
            ..Attrs::default()
        };
        let make = Request::Mkdir { path: &path, attrs };
        assert_eq!(code(export, make), StatusCode::OK);
        let mode = || fs::metadata(folder.join("dir")).expect("it").mode() & 0o777;
        assert_eq!(mode(), 0o777 & !sys::umask());
        // On another channel, which does not know the directory, the mode counts as set.
        let set = Request::Setstat { path: &path, attrs };
        assert_eq!(code(export, set), StatusCode::OK);
        assert_eq!(mode(), 0o777 & !sys::umask());
    });
}

#[test]
fn nothing_leads_out_of_a_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    fs::create_dir(&root).expect("ours");
    fs::write(folder.path().join("secret"), "secret").expect("ours");
    symlink("..", root.join("up")).expect("ours");
    symlink("../secret", root.join("link")).expect("ours");
    let export = ExportedTree::beneath(&root, Access::Full).expect("openat2");
    for path in ["../x", "up/x", "/../x", "x/../../x"] {
        let path = path.as_bytes();
        let _ = statuses(&export, &[put(path, PLAIN, b"new")]);
        let len = 100;
        assert!(matches!(
            Response::decode(&answers(&export, &[Request::GetFile { path, len }])[0]),
            Ok((_, Response::Status { .. } | Response::ExtendedReply { .. }))
        ));
    }
    assert_eq!(names(folder.path()), ["root", "secret"]);
    for path in ["../secret", "up/secret", "link"] {
        let path = path.as_bytes();
        let got = answers(&export, &[Request::GetFile { path, len: 100 }]);
        assert!(
            !got[0].windows(6).any(|w| w == b"secret"),
            "{path:?} leads out"
        );
    }
}

/// The answer of get-file: attributes and data.
fn get(export: &ExportedTree, path: &[u8], len: u32) -> (Attrs, Option<Vec<u8>>) {
    let answer = answers(export, &[Request::GetFile { path, len }]).remove(0);
    let Ok((_, Response::ExtendedReply { body })) = Response::decode(&answer) else {
        panic!("{:?}", Response::decode(&answer));
    };
    let mut r = FieldReader::new(body.0);
    let attrs = <Attrs as wire::Field<'_>>::read(&mut r).expect("attributes");
    let there = r.u8().expect("whether there are data") == 1;
    let data = there.then(|| r.string().expect("data").to_vec());
    r.finish().expect("no more");
    (attrs, data)
}

#[test]
fn a_file_comes_whole_or_not_at_all() {
    both(Access::Full, |export, before, folder| {
        for (size, len, whole) in [
            // Nothing was requested, so completeness is unknown.
            (0, 0, false),
            (0, 100, true),
            (1, 100, true),
            (99, 100, true),
            (100, 100, true),
            (101, 100, false),
            (200_000, 260_000, true),
            // No answer is longer than a READ's.
            (261_121, u32::MAX, false),
        ] {
            let content: Vec<u8> = (0..size).map(|i| i as u8).collect();
            fs::write(folder.join("a"), &content).expect("ours");
            let (attrs, data) = get(export, &at(before, "a"), len);
            assert_eq!(attrs.size, Some(size as u64));
            assert_eq!(data, whole.then_some(content), "{size} {len}");
        }
    });
}

#[test]
fn only_regular_files_are_read_and_symlinks_are_followed() {
    both(Access::Full, |export, before, folder| {
        fs::write(folder.join("a"), "a").expect("ours");
        fs::create_dir(folder.join("dir")).expect("ours");
        symlink("a", folder.join("link")).expect("ours");
        fifo(&folder.join("fifo"));
        let link = get(export, &at(before, "link"), 10);
        assert_eq!(link.1.as_deref(), Some(&b"a"[..]));
        for name in ["dir", "fifo"] {
            let (attrs, data) = get(export, &at(before, name), 10);
            assert_ne!(attrs.permissions.expect("a mode") & 0o170_000, 0o100_000);
            assert_eq!(data, None, "{name}");
        }
        let path = at(before, "none");
        let none = Request::GetFile {
            path: &path,
            len: 9,
        };
        assert_eq!(code(export, none), StatusCode::NO_SUCH_FILE);
    });
}

/// Files that report size 0 and have contents.
#[test]
fn files_of_proc_are_read_to_their_end() {
    let export = ExportedTree::everything(Access::Full);
    let (attrs, data) = get(&export, b"/proc/self/mounts", 200_000);
    assert_eq!(attrs.size, Some(0));
    let expected = fs::read("/proc/self/mounts").expect("it");
    assert_eq!(data, Some(expected));
}

/// The cached directory is not used after it may have been moved.
#[test]
fn a_directory_that_was_renamed_in_between_is_found_anew() {
    both(Access::Full, |export, before, folder| {
        fs::create_dir(folder.join("dir")).expect("ours");
        let (a, b) = (at(before, "dir/a"), at(before, "dir/b"));
        let (dir, moved) = (at(before, "dir"), at(before, "moved"));
        let requests = [
            put(&a, PLAIN, b"a"),
            Request::Rename {
                from: &dir,
                to: &moved,
            },
            put(&b, PLAIN, b"b"),
        ];
        let got: Vec<StatusCode> = statuses(export, &requests).iter().map(|s| s.0).collect();
        let gone = StatusCode::NO_SUCH_FILE;
        assert_eq!(got, [StatusCode::OK, StatusCode::OK, gone]);
        assert_eq!(names(&folder.join("moved")), ["a"]);
    });
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut packer = sftp::packed::BlockCompressor::new().expect("memory");
    assert!(packer.pack(bytes, &mut out));
    out
}

#[test]
fn a_packed_file_is_put_and_one_that_is_not_what_it_claims_is_not() {
    both(Access::Full, |export, before, folder| {
        let path = at(before, "a");
        let content = b"again and again and again; ".repeat(1000);
        let data = packed(&content);
        let put = |len: u32, data| Request::PutFileZstd {
            path: &path,
            flags: PLAIN,
            tag: 7,
            mode: 0o644,
            attrs: Attrs::default(),
            len,
            data,
        };
        let len = content.len() as u32;
        for (len, data) in [
            (len - 1, &data[..]),
            (len + 1, &data),
            (u32::MAX, &data),
            (300_000, &data),
            (len, &data[..data.len() - 1]),
            (5, b"plain"),
        ] {
            let told = code(export, put(len, data));
            assert_eq!(told, StatusCode::BAD_MESSAGE, "{len}");
            assert_eq!(names(folder), Vec::<String>::new());
        }
        assert_eq!(code(export, put(len, &data)), StatusCode::OK);
        assert!(fs::read(folder.join("a")).expect("it") == content);
        assert_eq!(names(folder), ["a"]);
    });
    both(Access::ReadOnly, |export, before, folder| {
        let path = at(before, "a");
        let put = Request::PutFileZstd {
            path: &path,
            flags: PLAIN,
            tag: 7,
            mode: 0o644,
            attrs: Attrs::default(),
            len: 100,
            data: &packed(&[b'a'; 100]),
        };
        assert_eq!(code(export, put), StatusCode::PERMISSION_DENIED);
        assert_eq!(names(folder), Vec::<String>::new());
    });
}

#[test]
fn a_file_comes_packed_where_that_makes_it_smaller() {
    both(Access::Full, |export, before, folder| {
        let text = b"again and again and again; ".repeat(1000);
        let noise: Vec<u8> = (0..200_u32)
            .flat_map(|n| *blake3::hash(&n.to_be_bytes()).as_bytes())
            .collect();
        for (content, len, expected) in [
            (&text[..], 100_000, 2),
            (&text, text.len() as u32, 2),
            (&text, text.len() as u32 - 1, 0),
            (&text[..500], 100_000, 1),
            (&noise, 100_000, 1),
            (b"", 100_000, 1),
        ] {
            fs::write(folder.join("a"), content).expect("ours");
            let path = at(before, "a");
            let asked = Request::GetFileZstd { path: &path, len };
            let answer = answers(export, &[asked]).remove(0);
            let Ok((_, Response::ExtendedReply { body })) = Response::decode(&answer) else {
                panic!("{:?}", Response::decode(&answer));
            };
            let mut r = FieldReader::new(body.0);
            let attrs = <Attrs as wire::Field<'_>>::read(&mut r).expect("attributes");
            assert_eq!(attrs.size, Some(content.len() as u64));
            let how = r.u8().expect("how");
            assert_eq!(how, expected, "{} of {len}", content.len());
            let got = match how {
                0 => None,
                1 => Some(r.string().expect("data").to_vec()),
                _ => {
                    let len = r.u32().expect("a length");
                    let mut unpacker = sftp::packed::BlockDecompressor::new().expect("memory");
                    unpacker.unpack(r.string().expect("data"), len)
                }
            };
            r.finish().expect("no more");
            assert!(got == (how > 0).then(|| content.to_vec()));
        }
    });
}
