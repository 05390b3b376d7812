//! Tests that each OpenSSH extension is announced and carried out by name.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use bytes::Bytes;
use sftp::{
    Attrs, OPENSSH_EXTENSIONS, OpenFlags, Request, Response, ServerLimits, StatusCode, Statvfs,
    Version,
};
use wire::{Field as _, FieldReader};

use crate::testing::{answers, at, both, bytes_of, input};
use crate::{Access, AnswerChunk, ExportedTree, SftpServer};

/// The first handle of a session.
const FIRST: &[u8] = &[0, 0, 0, 0];
const SECOND: &[u8] = &[0, 0, 0, 1];

fn open(path: &[u8], flags: OpenFlags) -> Request<'_> {
    Request::Open {
        path,
        flags,
        attrs: Attrs::default(),
    }
}

/// The last answer, which is the extension's.
fn last(export: &ExportedTree, requests: &[Request<'_>]) -> Bytes {
    answers(export, requests).pop().expect("an answer to each")
}

fn is_ok(answer: &Bytes) -> bool {
    let (_, answer) = Response::decode(answer).expect("sound");
    matches!(answer, Response::Status { code, .. } if code == StatusCode::OK)
}

fn body(answer: &Bytes) -> Bytes {
    match Response::decode(answer).expect("sound").1 {
        Response::ExtendedReply { body } => answer.slice_ref(body.0),
        other => panic!("{other:?}"),
    }
}

fn name(answer: &Bytes) -> Vec<u8> {
    match Response::decode(answer).expect("sound").1 {
        Response::Name { names } => names.0[0].filename.to_vec(),
        other => panic!("{other:?}"),
    }
}

type Carried = fn(&ExportedTree, &[u8], &Path);

/// Tests from section 4 of OpenSSH's PROTOCOL and draft-ietf-secsh-filexfer-extensions-00. Each
/// gets a folder with a file `a` of five bytes, an empty file `b`, and `link`, which leads to `a`.
const CARRIED_OUT: [(&str, Carried); 11] = [
    ("posix-rename@openssh.com", |export, before, folder| {
        let (from, to) = (at(before, "a"), at(before, "b"));
        let request = Request::PosixRename {
            from: &from,
            to: &to,
        };
        assert!(is_ok(&last(export, &[request])));
        assert_eq!(fs::read(folder.join("b")).unwrap(), b"hello");
        assert!(!folder.join("a").exists());
    }),
    ("statvfs@openssh.com", |export, before, _| {
        let path = at(before, "a");
        is_space(&body(&last(export, &[Request::Statvfs { path: &path }])));
    }),
    ("fstatvfs@openssh.com", |export, before, _| {
        let path = at(before, "a");
        let asked = Request::Fstatvfs { handle: FIRST };
        is_space(&body(&last(export, &[open(&path, OpenFlags::READ), asked])));
    }),
    ("hardlink@openssh.com", |export, before, folder| {
        let (from, to) = (at(before, "a"), at(before, "new"));
        let request = Request::Hardlink {
            from: &from,
            to: &to,
        };
        assert!(is_ok(&last(export, &[request])));
        let inode = |name| fs::metadata(folder.join(name)).unwrap().ino();
        assert_eq!(inode("a"), inode("new"));
        // An existing target is not replaced.
        let (from, to) = (at(before, "a"), at(before, "b"));
        let request = Request::Hardlink {
            from: &from,
            to: &to,
        };
        assert!(!is_ok(&last(export, &[request])));
    }),
    ("fsync@openssh.com", |export, before, _| {
        let path = at(before, "a");
        let asked = || Request::Fsync { handle: FIRST };
        let opened = open(&path, OpenFlags::WRITE);
        assert!(is_ok(&last(export, &[opened, asked()])));
        assert!(!is_ok(&last(export, &[asked()])));
    }),
    ("lsetstat@openssh.com", |export, before, folder| {
        let path = at(before, "link");
        let attrs = Attrs {
            times: Some((5, 7)),
            ..Attrs::default()
        };
        let request = Request::Lsetstat { path: &path, attrs };
        assert!(is_ok(&last(export, &[request])));
        let link = fs::symlink_metadata(folder.join("link")).unwrap();
        assert_eq!((link.atime(), link.mtime()), (5, 7));
        assert_ne!(fs::metadata(folder.join("a")).unwrap().mtime(), 7);
    }),
    ("limits@openssh.com", |export, _, _| {
        let body = body(&last(export, &[Request::Limits {}]));
        let mut r = FieldReader::new(&body);
        let limits = ServerLimits::read(&mut r).unwrap();
        assert_eq!(r.left(), 0);
        assert!(limits.read >= 32 << 10 && limits.write >= 1 << 20);
        assert!(limits.packet > limits.read && limits.packet > limits.write);
        assert!(limits.handles > 0);
    }),
    ("expand-path@openssh.com", |export, before, _| {
        let path = at(before, "./a");
        assert_eq!(
            name(&last(export, &[Request::ExpandPath { path: &path }])),
            at(before, "a")
        );
        // Beneath a root every home is `/`.
        let home = name(&last(export, &[Request::ExpandPath { path: b"~" }]));
        assert!(home.starts_with(b"/"), "{home:?}");
    }),
    ("copy-data", |export, before, folder| {
        let (from, to) = (at(before, "a"), at(before, "b"));
        let copied = Request::CopyData {
            from: FIRST,
            from_offset: 1,
            len: 0,
            to: SECOND,
            to_offset: 2,
        };
        let opened = [open(&from, OpenFlags::READ), open(&to, OpenFlags::WRITE)];
        let [a, b] = opened;
        assert!(is_ok(&last(export, &[a, b, copied])));
        assert_eq!(fs::read(folder.join("b")).unwrap(), b"\0\0ello");
    }),
    ("home-directory", |export, _, _| {
        let home = name(&last(export, &[Request::HomeDirectory { user: b"" }]));
        assert!(home.starts_with(b"/"), "{home:?}");
    }),
    ("users-groups-by-id@openssh.com", |export, _, _| {
        let root = [0, 0, 0, 0];
        let asked = Request::UsersGroupsById {
            users: &root,
            groups: &root,
        };
        let body = body(&last(export, &[asked]));
        let mut r = FieldReader::new(&body);
        let (users, groups) = (r.string().unwrap(), r.string().unwrap());
        assert_eq!((users, r.left()), (b"\0\0\0\x04root".as_slice(), 0));
        // The group with ID 0 has other names on other systems.
        assert_eq!(groups.len(), 4 + usize::from(groups[3]));
    }),
];

fn is_space(body: &[u8]) {
    let mut r = FieldReader::new(body);
    let space = Statvfs::read(&mut r).unwrap();
    assert_eq!(r.left(), 0);
    assert!(space.blocks > 0 && space.fragment > 0 && space.name_max >= 14);
    assert!(space.blocks_free <= space.blocks);
}

#[test]
fn each_extension_of_openssh_is_carried_out() {
    for (name, carried_out) in CARRIED_OUT {
        both(Access::Full, |export, before, folder| {
            fs::write(folder.join("a"), b"hello").unwrap();
            fs::write(folder.join("b"), b"").unwrap();
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(folder.join("a"), mode).unwrap();
            symlink("a", folder.join("link")).unwrap();
            println!("{name} in {}", String::from_utf8_lossy(bytes_of(folder)));
            carried_out(export, before, folder);
        });
    }
}

#[test]
fn each_extension_of_openssh_is_announced_and_has_its_test() {
    let (_folder, export) = {
        let folder = tempfile::tempdir().unwrap();
        let export = ExportedTree::beneath(folder.path(), Access::Full).unwrap();
        (folder, export)
    };
    let mut server = SftpServer::new(&export);
    server.handle(&mut input(&[], true)).unwrap();
    let mut said = Vec::new();
    let Ok(()) = server.take_answers(|answer| {
        if let AnswerChunk::Bytes(bytes) = answer {
            said.extend_from_slice(bytes);
        }
        Ok::<_, std::convert::Infallible>(())
    });
    let version = Version::decode(&said[4..]).unwrap();
    let mut r = FieldReader::new(version.extensions.0);
    let mut announced = Vec::new();
    while r.left() > 0 {
        announced.push(String::from_utf8(r.string().unwrap().to_vec()).unwrap());
        r.string().unwrap();
    }
    for (name, _) in CARRIED_OUT {
        assert!(announced.iter().any(|known| known == name), "{name}");
    }
    for (name, _) in OPENSSH_EXTENSIONS {
        let tested = CARRIED_OUT.iter().any(|(tested, _)| *tested == name);
        assert!(tested, "{name} is announced and has no test");
    }
}
