use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use sftp::{Attrs, OpenFlags, Request, RequestId, Response, StatusCode};
use testkit::Seed;

use crate::testing::{input, served, still_clock};
use crate::{Access, ExportedTree, SftpServer};

const LEN: usize = 1 << 20;

/// A folder with files that are not in memory, if the file system allows that.
fn folder(files: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..files {
        let path = folder.path().join(n.to_string());
        fs::write(&path, Seed::new(n as u64).bytes(LEN)).expect("ours");
        forget(&path);
    }
    folder
}

/// Drops the file's pages from memory.
fn forget(path: &Path) {
    let file = File::open(path).expect("ours");
    file.sync_all().expect("ours");
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
}

fn open<'a>(path: &'a [u8], flags: OpenFlags) -> Request<'a> {
    let attrs = Attrs::default();
    Request::Open { path, flags, attrs }
}

fn read(handle: &[u8], offset: u64, len: u32) -> Request<'_> {
    Request::Read {
        handle,
        offset,
        len,
    }
}

/// Answers have the order of the requests, whether completion is signalled or waited for, and a
/// read returns the data from before a later write.
#[test]
fn answers_have_the_order_of_the_requests_whoever_carries_them_out() {
    for told in [true, false] {
        let folder = folder(1);
        let export = ExportedTree::beneath(folder.path(), Access::Full).expect("Linux 5.6");
        let mut server = SftpServer::new(&export).with_clock(still_clock);
        server.several_at_once(told);
        let handle = 0_u32.to_be_bytes();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let write = Request::Write {
            handle: &handle,
            offset: 700_000,
            data: b"something else",
        };
        let asked = [
            open(b"/0", both),
            read(&handle, 700_000, 32_768),
            read(&handle, 100_000, 32_768),
            read(&handle, LEN as u64 - 9, 32_768),
            read(&handle, LEN as u64, 32_768),
            write,
            read(&handle, 700_000, 16_384),
            Request::Fsync { handle: &handle },
            Request::Close { handle: &handle },
            read(&handle, 0, 32_768),
        ];
        let (answers, _) = served(&mut server, input(&asked, true));
        let content = Seed::new(0).bytes(LEN);
        let mut data = Vec::new();
        for (n, answer) in answers[1..].iter().enumerate() {
            let (id, response) = Response::decode(answer).expect("sound");
            assert_eq!(id, RequestId(n as u32), "told: {told}");
            match response {
                Response::Data { data: bytes } => data.push(bytes.to_vec()),
                Response::Status { code, .. } => {
                    let wanted = match n {
                        4 => StatusCode::EOF,
                        9 => StatusCode::NO_SUCH_FILE,
                        _ => StatusCode::OK,
                    };
                    assert_eq!(code, wanted, "{n}");
                }
                _ => assert_eq!(n, 0),
            }
        }
        assert_eq!(answers.len(), asked.len() + 1);
        assert_eq!(data[0], content[700_000..732_768]);
        assert_eq!(data[1], content[100_000..132_768]);
        assert_eq!(data[2], content[LEN - 9..]);
        assert_eq!(&data[3][..14], b"something else");
        assert_eq!(server.moved().sent, 32_768 * 2 + 9 + 16_384);
        assert!(!server.has_open() && !server.awaits());
    }
}

/// While another thread makes the file durable, input is handled and requests that change nothing
/// are carried out.
#[test]
fn what_makes_a_file_durable_keeps_nobody_waiting() {
    let folder = folder(1);
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("Linux 5.6");
    let mut server = SftpServer::new(&export).with_clock(still_clock);
    server.several_at_once(true);
    let handle = 0_u32.to_be_bytes();
    let asked = [
        open(b"/0", OpenFlags::READ | OpenFlags::WRITE),
        Request::Fsync { handle: &handle },
        Request::Stat { path: b"/0" },
        Request::Mkdir {
            path: b"/made",
            attrs: Attrs::default(),
        },
    ];
    let mut received = input(&asked, true);
    server.handle(&mut received).expect("sound requests");
    assert!(received.is_empty(), "all was looked at");
    assert!(server.awaits());
    assert!(
        !folder.path().join("made").exists(),
        "it waits for the sync"
    );
    let (answers, waited) = served(&mut server, received);
    assert_eq!(answers.len(), 5);
    assert!(waited <= 1, "{waited}");
    assert!(folder.path().join("made").exists());
}

fn copy_data<'a>(from: &'a [u8], to: &'a [u8]) -> Request<'a> {
    Request::CopyData {
        from,
        from_offset: 0,
        len: 0,
        to,
        to_offset: 0,
    }
}

/// Bug: 8 GB were copied by the connection's thread; its other channels starved, and the copy
/// continued after the client had left.
#[test]
fn a_long_copy_keeps_nobody_else_waiting_and_ends_with_its_client() {
    let folder = folder(1);
    let path = folder.path().join("0");
    let long = File::options().write(true).open(&path).expect("ours");
    long.set_len(1 << 42).expect("a hole");
    let path = path.to_str().expect("ours").as_bytes();
    let export = ExportedTree::everything(Access::Full);
    let mut server = SftpServer::new(&export).with_clock(still_clock);
    server.several_at_once(true);
    let (from, to) = (0_u32.to_be_bytes(), 1_u32.to_be_bytes());
    let asked = [
        open(path, OpenFlags::READ),
        open(b"/dev/null", OpenFlags::WRITE),
        copy_data(&from, &to),
        read(&from, 0, 9),
    ];
    let begun = Instant::now();
    let mut received = input(&asked, true);
    server.handle(&mut received).expect("sound requests");
    assert!(server.awaits() && server.waker().is_some());
    assert!(server.is_stuck(), "what is behind it waits for it");
    let until = server.deadline().expect("some");
    assert!(!until.is_over());
    drop(server);
    assert!(until.is_over(), "nobody hears of it");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_long_copy_is_answered_in_its_place() {
    let folder = folder(1);
    let path = folder.path().join("0");
    fs::write(&path, Seed::new(7).bytes(9 << 20)).expect("ours");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("Linux 5.6");
    let mut server = SftpServer::new(&export).with_clock(still_clock);
    server.several_at_once(true);
    let (from, to) = (0_u32.to_be_bytes(), 1_u32.to_be_bytes());
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let asked = [
        open(b"/0", OpenFlags::READ),
        open(b"/1", both | OpenFlags::CREAT),
        copy_data(&from, &to),
        read(&to, (9 << 20) - 9, 100),
    ];
    let (answers, _) = served(&mut server, input(&asked, true));
    let content = Seed::new(7).bytes(9 << 20);
    assert!(fs::read(folder.path().join("1")).expect("it") == content);
    let data = &content[content.len() - 9..];
    let last = Response::decode(&answers[4]).expect("sound");
    assert_eq!(last, (RequestId(3), Response::Data { data }));
}

/// /dev/zero has no end.
#[test]
fn what_is_no_file_is_not_copied() {
    let export = ExportedTree::everything(Access::Full);
    let (from, to) = (0_u32.to_be_bytes(), 1_u32.to_be_bytes());
    let asked = [
        open(b"/dev/zero", OpenFlags::READ),
        open(b"/dev/null", OpenFlags::WRITE),
        copy_data(&from, &to),
    ];
    let answers = crate::testing::answers(&export, &asked);
    let Ok((_, Response::Status { code, .. })) = Response::decode(&answers[2]) else {
        panic!("no STATUS");
    };
    assert_eq!(code, StatusCode::FAILURE);
}

/// Compares random requests about uncached files with a server that handles one after the other.
#[test]
fn it_makes_no_difference_to_the_client() {
    for round in 0..40 {
        let mut seed = Seed::new(round);
        let mut below = |most: u64| seed.below(most);
        let handles: Vec<[u8; 4]> = (0..3_u32).map(u32::to_be_bytes).collect();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let data = Seed::new(99).bytes(5000);
        let paths = [b"/0", b"/1", b"/2"];
        let mut asked: Vec<Request<'_>> = paths.iter().map(|path| open(*path, both)).collect();
        for _ in 0..60 {
            let handle: &[u8] = &handles[below(3) as usize];
            let offset = below(LEN as u64 + 10_000);
            asked.push(match below(10) {
                0 => Request::Write {
                    handle,
                    offset,
                    data: &data,
                },
                1 => Request::Fsync { handle },
                2 => Request::Fsetstat {
                    handle,
                    attrs: Attrs {
                        size: Some(offset),
                        ..Attrs::default()
                    },
                },
                3 => open(paths[below(3) as usize], OpenFlags::READ),
                4 => Request::Close { handle },
                _ => read(handle, offset, 1000 * below(200) as u32),
            });
        }
        let all = |told: Option<bool>| {
            let folder = folder(3);
            let export = ExportedTree::beneath(folder.path(), Access::Full).expect("Linux 5.6");
            let mut server = SftpServer::new(&export).with_clock(still_clock);
            if let Some(told) = told {
                server.several_at_once(told);
            }
            let answers = served(&mut server, input(&asked, true)).0;
            let files = (0..3).map(|n| fs::read(folder.path().join(n.to_string())).expect("ours"));
            (answers, files.collect::<Vec<_>>(), server.moved())
        };
        let plain = all(None);
        assert!(plain == all(Some(true)), "round {round}");
        assert!(plain == all(Some(false)), "round {round}");
    }
}
