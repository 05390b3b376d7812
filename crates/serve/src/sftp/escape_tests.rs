//! Attempts to escape from a root: magic links of /proc, and paths that change while they are
//! resolved.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, renameat_with, statat, unlinkat};
use rustix::io::Errno;
use sftp::{Attrs, OpenFlags, PutFlags, Request, StatusCode, TreeFlags};

use crate::testing::{answers, at, bytes_of, code, names, put};
use crate::{Access, ExportedTree};

const INSIDE: &[u8] = b"what is inside";
const OUTSIDE: &[u8] = b"NOT FOR YOU";
/// Duration of each race against the kernel.
const RACE: Duration = Duration::from_millis(1500);

/// The kernel refuses magic links under RESOLVE_IN_ROOT today (EXDEV) and does not promise to do so
/// forever (openat2(2)). Therefore RESOLVE_NO_MAGICLINKS is set too, whose error is ELOOP.
#[test]
fn links_of_proc_are_not_followed_where_there_is_a_proc() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, INSIDE).unwrap();
    symlink("/proc/self/root", folder.path().join("link")).unwrap();
    let open = File::open(&file).unwrap();
    let fd = open.as_raw_fd();
    let export = ExportedTree::beneath(Path::new("/"), Access::Full).unwrap();
    let (file, folder) = (file.display(), folder.path().display());
    for path in [
        "/proc/self/exe".to_owned(),
        "/proc/self/cwd".to_owned(),
        "/proc/self/cwd/Cargo.toml".to_owned(),
        format!("/proc/self/root{file}"),
        format!("/proc/thread-self/root{file}"),
        format!("/proc/{}/root{file}", std::process::id()),
        format!("/proc/self/fd/{fd}"),
        format!("{folder}/link{file}"),
    ] {
        let opened = export
            .root()
            .open(path.as_bytes(), OFlags::RDONLY, Mode::empty());
        assert_eq!(opened.err(), Some(Errno::LOOP), "{path}");
        let path = path.as_bytes();
        for request in [
            Request::Open {
                path,
                flags: OpenFlags::READ,
                attrs: Attrs::default(),
            },
            Request::Opendir { path },
            Request::Stat { path },
            Request::GetFile { path, len: 1000 },
        ] {
            assert_eq!(code(&export, request), StatusCode::NO_SUCH_FILE);
        }
    }
    // /proc itself is served like any other folder.
    for path in ["/proc/self/status".to_owned(), file.to_string()] {
        let opened = export
            .root()
            .open(path.as_bytes(), OFlags::RDONLY, Mode::empty());
        assert!(opened.is_ok(), "{path}: {opened:?}");
    }
}

/// Requests of every kind through the folder `dir`, in order.
fn through<'a>(dir: &[u8], names: &'a mut Vec<Vec<u8>>) -> Vec<Request<'a>> {
    let all = ["file", "new", "put", "folder", "link", "hard", "moved"];
    *names = all.map(|name| at(dir, name)).to_vec();
    names.push(dir[..dir.len() - 1].to_vec());
    let [file, new, whole, folder, link, hard, moved, itself] = &names[..] else {
        unreachable!("eight");
    };
    let attrs = Attrs {
        permissions: Some(0o777),
        ..Attrs::default()
    };
    let handle = &[0; 4];
    vec![
        Request::GetFile {
            path: file,
            len: 1000,
        },
        Request::Open {
            path: file,
            flags: OpenFlags::READ,
            attrs: Attrs::default(),
        },
        Request::Read {
            handle,
            offset: 0,
            len: 1000,
        },
        Request::Close { handle },
        Request::Opendir { path: itself },
        Request::Readdir { handle },
        Request::Close { handle },
        Request::ListTree {
            tree: 1,
            flags: TreeFlags::BEGIN,
            path: itself,
        },
        Request::Open {
            path: new,
            flags: OpenFlags::WRITE | OpenFlags::CREAT,
            attrs: Attrs::default(),
        },
        Request::Write {
            handle,
            offset: 0,
            data: INSIDE,
        },
        Request::Close { handle },
        put(whole, PutFlags(0), INSIDE),
        Request::Mkdir {
            path: folder,
            attrs: Attrs::default(),
        },
        Request::Symlink {
            first: b"x",
            second: link,
        },
        Request::Hardlink {
            from: file,
            to: hard,
        },
        Request::Setstat { path: file, attrs },
        Request::Rename {
            from: new,
            to: moved,
        },
        Request::Remove { path: moved },
        Request::Remove { path: hard },
        Request::Remove { path: link },
        Request::Remove { path: whole },
        Request::Rmdir { path: folder },
    ]
}

/// Checks that files outside are neither revealed nor changed while `race` runs on another thread.
fn nothing_leads_out(root: &Path, outside: &Path, dirs: &[&[u8]], race: impl Fn() + Sync) {
    let export = ExportedTree::beneath(root, Access::Full).unwrap();
    nothing_of(&export, outside, dirs, None, race);
}

/// Checks as [`nothing_leads_out`] does; the client first names `held` as a root.
fn nothing_of(
    export: &ExportedTree,
    outside: &Path,
    dirs: &[&[u8]],
    held: Option<&[u8]>,
    race: impl Fn() + Sync,
) {
    let mode = |path: &Path| fs::metadata(path).unwrap().mode();
    fs::write(outside.join("file"), OUTSIDE).unwrap();
    let before = (names(outside), mode(&outside.join("file")));
    let (done, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut inside, mut nothing) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                race();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
        let until = Instant::now() + RACE;
        while Instant::now() < until {
            for dir in dirs {
                let mut names = Vec::new();
                let first = held.map(|path| Request::HoldRoot { path });
                let requests = first.into_iter().chain(through(dir, &mut names));
                let answered = answers(export, &requests.collect::<Vec<_>>());
                let tells = |what: &[u8]| {
                    let told = |answer: &Bytes| answer.windows(what.len()).any(|w| w == what);
                    answered.iter().any(told)
                };
                if tells(OUTSIDE) || tells(b"of-others") {
                    done.store(true, Ordering::Relaxed);
                    panic!("{}", String::from_utf8_lossy(dir));
                }
                match tells(INSIDE) {
                    true => inside += 1,
                    false => nothing += 1,
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!((names(outside), mode(&outside.join("file"))), before);
    assert_eq!(fs::read(outside.join("file")).unwrap(), OUTSIDE);
    // The race was met in both states.
    assert!(inside > 10 && nothing > 10, "{inside}, {nothing}");
    assert!(turns.into_inner() > 100);
}

/// Creates a root and an outside folder, which no answer may reveal.
fn folders() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    fs::create_dir(&root).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("of-others"), OUTSIDE).unwrap();
    (folder, root, outside)
}

/// Bug: the receiver of a copy between two hosts could read files beside the source by get-file, name
/// all that lies beside it by list-tree, and read through symlinks that are copied as such.
#[test]
fn a_client_of_some_entries_got_others() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("given/deep")).unwrap();
    fs::create_dir_all(root.join("of-others/deep")).unwrap();
    for file in [
        "file",
        "of-others/file",
        "of-others/deep/file",
        "of-others/folder",
    ] {
        fs::write(root.join(file), OUTSIDE).unwrap();
    }
    for file in ["given/file", "given/deep/file"] {
        fs::write(root.join(file), INSIDE).unwrap();
    }
    symlink("../of-others", root.join("given/to")).unwrap();
    symlink("../file", root.join("given/one")).unwrap();
    let before = [names(root), names(&root.join("of-others"))];
    let dirs: [&[u8]; 8] = [
        b"/",
        b"/./",
        b"/of-others/",
        b"/of-others/deep/",
        b"/given/../",
        b"/given/../of-others/",
        b"/given/to/",
        b"/given/to/deep/",
    ];
    for (follows, dir) in [false, true]
        .into_iter()
        .flat_map(|f| dirs.map(|dir| (f, dir)))
    {
        let export = ExportedTree::beneath(root, Access::Full).unwrap();
        let export = export.only(&[b"/given".to_vec()], follows);
        if follows && dir.starts_with(b"/given/to/") {
            continue;
        }
        let mut paths = Vec::new();
        for answer in answers(&export, &through(dir, &mut paths)) {
            for what in [OUTSIDE, b"of-others"] {
                let tells = answer.windows(what.len()).any(|w| w == what);
                assert!(!tells, "{}: {answer:?}", String::from_utf8_lossy(dir));
            }
        }
        assert_eq!([names(root), names(&root.join("of-others"))], before);
    }
    let only = |follows| {
        let export = ExportedTree::beneath(root, Access::ReadOnly).unwrap();
        export.only(&[b"/given".to_vec()], follows)
    };
    for path in [b"/given/one".as_slice(), b"/given/to/file"] {
        let get = || Request::GetFile { path, len: 1000 };
        assert_eq!(code(&only(false), get()), StatusCode::NO_SUCH_FILE);
        assert!(!answers(&only(true), &[get()]).is_empty());
    }
    for path in [b"/given/file".as_slice(), b"given/deep/file"] {
        let got = answers(&only(false), &[Request::GetFile { path, len: 1000 }]);
        let tells = |answer: &Bytes| answer.windows(INSIDE.len()).any(|w| w == INSIDE);
        assert!(got.iter().any(tells), "{got:?}");
    }
}

#[test]
fn a_folder_that_becomes_a_symlink_again_and_again_leads_nowhere_else() {
    let (_folder, root, outside) = folders();
    let (dir, link) = (root.join("dir"), root.join("to-outside"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), INSIDE).unwrap();
    for target in [bytes_of(&outside), b"../outside", b"../../../../outside"] {
        let _ = fs::remove_file(&link);
        rustix::fs::symlink(target, &link).unwrap();
        nothing_leads_out(&root, &outside, &[b"dir/", b"/dir/../dir/"], || {
            renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        });
        if dir.is_symlink() {
            renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        }
    }
}

/// A folder that is moved out of the root during resolution must not lead outside through `..`.
#[test]
fn a_folder_that_is_moved_out_and_back_takes_nobody_with_it() {
    let (_folder, root, outside) = folders();
    let (here, there) = (root.join("a/b"), outside.with_file_name("elsewhere"));
    fs::create_dir_all(&here).unwrap();
    fs::create_dir_all(&there).unwrap();
    fs::write(root.join("file"), INSIDE).unwrap();
    let there = there.join("b");
    let dirs: [&[u8]; 2] = [b"a/b/../../", b"a/b/../../outside/"];
    nothing_leads_out(&root, &outside, &dirs, || {
        fs::rename(&here, &there).unwrap();
        fs::rename(&there, &here).unwrap();
    });
}

/// Everything is served, and the client has named the root.
#[test]
fn below_a_held_root_a_folder_that_becomes_a_symlink_leads_nowhere_else() {
    let (_folder, root, outside) = folders();
    let (dir, link) = (root.join("dir"), root.join("to-outside"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), INSIDE).unwrap();
    symlink(&outside, &link).unwrap();
    let export = ExportedTree::everything(Access::Full);
    let through = at(bytes_of(&root), "/dir/");
    nothing_of(
        &export,
        &outside,
        &[&through],
        Some(bytes_of(&root)),
        || {
            renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        },
    );
}

/// Bug, found by attack: the owner of a file in a drop box was checked by one resolution of its path, and
/// the file was emptied or removed by another. Between the two, another channel of the client swapped the
/// directories, so that it took another client's file.
#[test]
fn a_swap_of_directories_gave_a_client_of_a_drop_box_the_file_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let (root, kept) = (folder.path().join("root"), folder.path().join("kept"));
    let (here, there) = (root.join("here"), root.join("there"));
    fs::create_dir_all(&here).unwrap();
    fs::create_dir(&there).unwrap();
    fs::write(&kept, OUTSIDE).unwrap();
    fs::hard_link(&kept, there.join("x")).unwrap();
    let export = ExportedTree::beneath(&root, Access::WriteOnly).unwrap();
    let held = [File::open(&here).unwrap(), File::open(&there).unwrap()];
    let path = b"here/x".as_slice();
    let open = |flags| Request::Open {
        path,
        flags,
        attrs: Attrs::default(),
    };
    let other = || Request::Rename {
        from: path,
        to: b"here/y",
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &here, CWD, &there, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let until = Instant::now() + RACE;
        let mut is_whole = true;
        while is_whole && Instant::now() < until {
            let own = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
            let first = [open(own)].into_iter();
            let opens = (0..40).map(|_| open(OpenFlags::WRITE | OpenFlags::TRUNC));
            let others = (0..10).flat_map(|_| [other(), Request::Remove { path }]);
            answers(
                &export,
                &first.chain(opens).chain(others).collect::<Vec<_>>(),
            );
            let victim = fs::metadata(&kept).unwrap();
            is_whole = victim.nlink() == 2 && fs::read(&kept).unwrap() == OUTSIDE;
            for dir in &held {
                for name in ["x", "y"] {
                    let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
                    if found.is_ok_and(|found| found.st_ino != victim.ino()) {
                        unlinkat(dir, name, AtFlags::empty()).unwrap();
                    }
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(
            is_whole,
            "another client's file was emptied, renamed or removed"
        );
    });
    let places = [here.join("x"), there.join("x")];
    assert_eq!(places.iter().filter(|place| place.exists()).count(), 1);
}
