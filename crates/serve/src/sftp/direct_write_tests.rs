use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use sftp::{Attrs, OpenFlags, Response, StatusCode};
use tempfile::TempDir;

use super::*;
use crate::testing::{bytes_of, input, served};
use crate::{Access, ExportedTree, SftpServer};

/// A served folder with a file in it.
struct Scene {
    export: ExportedTree,
    path: PathBuf,
    _folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, [1; 1000]).expect("our folder");
        Self {
            export: ExportedTree::everything(Access::Full),
            path,
            _folder: folder,
        }
    }

    /// A server that has opened the file, and the handle.
    fn opened(&self, flags: OpenFlags) -> (SftpServer<'_>, Vec<u8>) {
        let mut server = SftpServer::new(&self.export);
        let open = Request::Open {
            path: bytes_of(&self.path),
            flags,
            attrs: Attrs::default(),
        };
        let (answers, _) = served(&mut server, input(&[open], true));
        let answer = answers.last().expect("an answer");
        let Ok((_, Response::Handle { handle })) = Response::decode(answer) else {
            panic!("{answer:?}");
        };
        (server, handle.to_vec())
    }

    fn content(&self) -> Vec<u8> {
        fs::read(&self.path).expect("it is there")
    }
}

/// A WRITE of 200 KiB at offset 10, split into the bytes before its data and the data.
fn write(handle: &[u8]) -> (Bytes, Bytes) {
    let data: Vec<u8> = (0..=250).cycle().take(200 << 10).collect();
    let write = Request::Write {
        handle,
        offset: 10,
        data: &data,
    };
    let mut head = input(&[write], false);
    let data = head.split_off(head.len() - data.len());
    (head, data)
}

fn codes(answers: &[Bytes]) -> Vec<StatusCode> {
    let code = |answer: &Bytes| match Response::decode(answer) {
        Ok((_, Response::Status { code, .. })) => code,
        other => panic!("{other:?}"),
    };
    answers.iter().map(code).collect()
}

#[test]
fn what_went_to_the_file_and_what_came_to_memory_are_one_write() {
    for placed in [0, 1, 100_000, 200 << 10] {
        let scene = Scene::new();
        let (mut server, handle) = scene.opened(OpenFlags::WRITE);
        let (head, mut data) = write(&handle);
        assert!(server.place().is_none() && !server.takes_large());
        assert!(served(&mut server, head).0.is_empty());
        let mut gone = 0;
        while gone < placed {
            let place = server.place().expect("it is known");
            assert_eq!(place.left(), (200 << 10) - gone);
            let n = (placed - gone).min(70_000);
            let part = data.split_to(n);
            let (file, offset) = place.into_place();
            file.write_all_at(&part, offset).expect("room");
            server.placed(n, Ok(()));
            gone += n;
        }
        let (answers, _) = served(&mut server, data);
        assert_eq!(codes(&answers), [StatusCode::OK]);
        let content = scene.content();
        assert_eq!(content[..10], [1; 10]);
        assert!(content[10..] == write(&handle).1, "{placed}");
        assert_eq!(server.moved().received, 200 << 10);
        assert!(server.takes_large() && server.place().is_none());
        // The next WRITE is small.
        let small = Request::Write {
            handle: &handle,
            offset: 3,
            data: b"x",
        };
        let (answers, _) = served(&mut server, input(&[small], false));
        assert_eq!(codes(&answers), [StatusCode::OK]);
        assert_eq!(scene.content()[..5], [1, 1, 1, b'x', 1]);
        assert!(!server.takes_large());
    }
}

#[test]
fn a_write_whose_file_has_not_taken_it_fails_and_the_next_one_does_not() {
    let scene = Scene::new();
    let (mut server, handle) = scene.opened(OpenFlags::WRITE);
    let (head, mut data) = write(&handle);
    served(&mut server, head.clone());
    assert!(server.place().is_some());
    let _ = data.split_to(5000);
    server.placed(5000, Err(Errno::NOSPC));
    // The rest is read into memory and discarded.
    assert!(server.place().is_none());
    let (answers, _) = served(&mut server, data);
    assert_eq!(codes(&answers), [StatusCode::FAILURE]);
    assert_eq!(scene.content(), [1; 1000]);
    assert_eq!(server.moved().received, 0);
    // The first error is reported, even if others follow.
    served(&mut server, head);
    assert!(server.place().is_some());
    server.placed(5000, Ok(()));
    server.placed(0, Err(Errno::DQUOT));
    server.placed((200 << 10) - 5000, Ok(()));
    let (answers, _) = served(&mut server, Bytes::new());
    assert_eq!(codes(&answers), [StatusCode::FAILURE]);
    let (head, data) = write(&handle);
    let (answers, _) = served(&mut server, [head, data].concat().into());
    assert_eq!(codes(&answers), [StatusCode::OK]);
}

#[test]
fn only_what_may_be_written_at_its_place_has_one() {
    // Appending, and an empty WRITE.
    let scene = Scene::new();
    let flags = OpenFlags::WRITE | OpenFlags::APPEND;
    let (mut server, handle) = scene.opened(flags);
    served(&mut server, write(&handle).0);
    assert!(server.place().is_none());
    let (mut server, _) = scene.opened(OpenFlags::WRITE);
    served(&mut server, write(b"none").0);
    assert!(server.place().is_none());
    // A device has no offsets.
    let mut scene = Scene::new();
    scene.path = "/dev/null".into();
    let (mut server, handle) = scene.opened(OpenFlags::WRITE);
    served(&mut server, write(&handle).0);
    assert!(server.place().is_none());
    // A read-only export.
    let mut scene = Scene::new();
    scene.export = ExportedTree::everything(Access::ReadOnly);
    let (mut server, handle) = scene.opened(OpenFlags::READ);
    served(&mut server, write(&handle).0);
    assert!(server.place().is_none());
}
