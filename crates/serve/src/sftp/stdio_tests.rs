use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use bytes::Bytes;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use sftp::blocks::BlockSumKind;
use sftp::{Attrs, Init, OpenFlags, Request, RequestId, frame};
use wire::{BorrowPolicy, PacketPool, PayloadBlock, RemainingBytes};

use super::{SftpServer, run, stdio};
use crate::error::ServeError;
use crate::sftp::answers::{AnswerChunk, DATA_HEADER};
use crate::sftp::incoming::IncomingStream;
use crate::testing::{counting_clock, still_clock};
use crate::{Access, ExportedTree};

/// Counts written bytes and flushes.
#[derive(Default)]
struct CountingWriter {
    bytes: usize,
    flushes: Vec<usize>,
}

impl Write for CountingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.flushes.last() != Some(&self.bytes) {
            self.flushes.push(self.bytes);
        }
        Ok(())
    }
}

fn requests(requests: &[Request<'_>]) -> Vec<u8> {
    let init = Init {
        version: 3,
        extensions: RemainingBytes(&[]),
    };
    let mut input = Vec::new();
    frame(&mut input, |out| init.encode(out));
    for (id, request) in (0..).zip(requests) {
        request.encode(RequestId(id), &mut input);
    }
    input
}

fn export() -> (tempfile::TempDir, ExportedTree) {
    let folder = tempfile::tempdir().expect("a folder");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("Linux 5.6");
    (folder, export)
}

/// Output of a server that reads `input` in these pieces, each of which is available before it
/// starts.
fn served(input: &[u8], cuts: &[usize]) -> CountingWriter {
    let (_folder, export) = export();
    // Each read returns one message, like the data that sshd has passed on by then.
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::empty(),
        None,
    );
    let (ours, theirs): (OwnedFd, OwnedFd) = pair.expect("two sockets");
    let mut from = 0;
    for to in cuts.iter().copied().chain([input.len()]) {
        send(&ours, &input[from..to], SendFlags::empty()).expect("it is not full");
        from = to;
    }
    drop(ours);
    let mut output = CountingWriter::default();
    let incoming = IncomingStream::new(theirs.as_fd());
    let server = SftpServer::new(&export).with_clock(still_clock);
    run(server, &incoming, &mut output).expect("sound requests");
    output
}

#[test]
fn answers_leave_together_while_more_requests_are_here() {
    let paths = [Request::Realpath { path: b"." }; 9];
    let input = requests(&paths);
    let one = requests(&paths[..1]).len() - requests(&[]).len();
    let whole = served(&input, &[]);
    assert_eq!(whole.flushes.len(), 1);
    // Cuts within requests and between them.
    for beyond in [0, 1, one - 1] {
        let first = requests(&[]).len() + one + beyond;
        let cuts: Vec<usize> = (0..7).map(|n| first + n * one).collect();
        let cut = served(&input, &cuts);
        assert_eq!(cut.flushes, whole.flushes, "{beyond}");
    }
}

#[test]
fn an_answer_does_not_wait_for_a_request_that_does_not_come() {
    let (_folder, export) = export();
    let input = requests(&[Request::Realpath { path: b"." }; 2]);
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let (answers, out) = UnixStream::pair().expect("two sockets");
    let serving = std::thread::spawn(move || stdio(theirs, out, &export).is_ok());
    (&ours).write_all(&input[..input.len() - 1]).expect("open");
    let patience = std::time::Duration::from_secs(10);
    answers.set_read_timeout(Some(patience)).expect("a socket");
    let mut first = [0; 1024];
    let n = io::Read::read(&mut &answers, &mut first).expect("the first answers come");
    assert!(n > 0);
    (&ours).write_all(&input[input.len() - 1..]).expect("open");
    drop(ours);
    assert!(serving.join().expect("no panic"));
}

#[test]
fn what_is_answered_leaves_before_what_takes_long_is_over() {
    let (folder, export) = export();
    let file = File::create(folder.path().join("file")).expect("our folder");
    file.set_len(1 << 20).expect("a file system with holes");
    let open = Request::Open {
        path: b"file",
        flags: OpenFlags::READ,
        attrs: Attrs::default(),
    };
    let hash = Request::Hash {
        handle: &[0; 4],
        offset: 0,
        len: 1 << 20,
        block: 1 << 20,
        kind: BlockSumKind::Rolling.name().as_bytes(),
        key: &[7; 32],
    };
    let mut all = vec![open];
    all.extend([hash; 8]);
    let mut input = Bytes::from(requests(&all));
    let mut calls = 0;
    let mut server = SftpServer::new(&export).with_clock(counting_clock);
    while !input.is_empty() {
        let before = input.len();
        server.handle(&mut input).expect("sound requests");
        assert!(input.len() < before);
        let mut any = false;
        let taken = server.take_answers(|_| {
            any = true;
            Ok::<_, ()>(())
        });
        taken.expect("ours");
        assert!(any);
        calls += 1;
    }
    // INIT, OPEN and 8 times HASH, each of which takes a millisecond of the 5 ms of a turn.
    assert_eq!(calls, 2);
    fs::remove_file(folder.path().join("file")).expect("it is there");
}

/// Bug: the window of sshd's channel did not open before a whole file was hashed or copied.
#[test]
fn what_comes_meanwhile_is_read_while_a_request_takes_long() {
    let (folder, export) = export();
    for name in ["from", "to"] {
        let file = File::create(folder.path().join(name)).expect("our folder");
        file.set_len(8 << 20).expect("a file system with holes");
    }
    let open = |path| Request::Open {
        path,
        flags: OpenFlags::READ | OpenFlags::WRITE,
        attrs: Attrs::default(),
    };
    let hash = Request::Hash {
        handle: &[0; 4],
        offset: 0,
        len: 8 << 20,
        block: 1 << 20,
        kind: BlockSumKind::Strong.name().as_bytes(),
        key: &[7; 32],
    };
    let copy = Request::CopyData {
        from: &[0; 4],
        from_offset: 0,
        len: 8 << 20,
        to: &[0, 0, 0, 1],
        to_offset: 0,
    };
    for long in [hash, copy] {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let incoming = IncomingStream::new(ours.as_fd());
        let mut server = SftpServer::new(&export);
        server.read_ahead(&incoming);
        let mut input = Bytes::from(requests(&[open(b"from"), open(b"to")]));
        while !input.is_empty() {
            server.handle(&mut input).expect("sound requests");
            server.take_answers(|_| Ok::<_, ()>(())).expect("ours");
        }
        (&theirs).write_all(b"what follows").expect("there is room");
        let mut request = Vec::new();
        long.encode(RequestId(9), &mut request);
        server.handle(&mut Bytes::from(request)).expect("sound");
        assert!(incoming.has_kept(), "{long:?}");
        assert_eq!(&incoming.next().expect("it was read")[..], b"what follows");
    }
}

/// Bug: behind an sshd, a copy at the server went on to its end after the client had left.
#[test]
fn a_long_copy_ends_once_nobody_can_read_its_answer() {
    let (folder, export) = export();
    let from = File::create(folder.path().join("from")).expect("our folder");
    from.set_len(1 << 42).expect("a file system with holes");
    File::create(folder.path().join("to")).expect("our folder");
    let open = |path, flags| Request::Open {
        path,
        flags,
        attrs: Attrs::default(),
    };
    let asked = [
        open(b"from", OpenFlags::READ),
        open(b"to", OpenFlags::WRITE),
        Request::CopyData {
            from: &[0; 4],
            from_offset: 0,
            len: 0,
            to: &[0, 0, 0, 1],
            to_offset: 0,
        },
    ];
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let (answers, out) = UnixStream::pair().expect("a pair of sockets");
    (&far).write_all(&requests(&asked)).expect("there is room");
    drop(answers);
    assert!(matches!(stdio(near, out, &export), Err(ServeError::Io(_))));
    let copied = fs::metadata(folder.path().join("to")).expect("ours").len();
    assert!(copied < 1 << 42, "{copied}");
}

#[test]
fn a_fifo_is_opened_without_its_other_end() {
    let (folder, export) = export();
    let path = folder.path().join("fifo");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("ours");
    let open = |flags| Request::Open {
        path: b"fifo",
        flags,
        attrs: Attrs::default(),
    };
    // Bug: OPEN blocked on the FIFO, with all other requests of the connection behind it.
    let code = |flags| crate::testing::code(&export, open(flags));
    assert_eq!(code(OpenFlags::WRITE), sftp::StatusCode::FAILURE);
    let answers = crate::testing::answers(&export, &[open(OpenFlags::READ)]);
    let answer = sftp::Response::decode(&answers[0]).map(|(_, answer)| answer);
    assert!(matches!(answer, Ok(sftp::Response::Handle { .. })));
}

/// Without encryption, file data are not read into memory, and a file is closed when the client
/// closes it.
#[test]
fn what_nobody_seals_is_sent_from_where_the_kernel_has_it() {
    let (folder, export) = export();
    let content: Vec<u8> = (0..300_000_u32).map(|n| (n / 7) as u8).collect();
    write_synced(&folder.path().join("file"), &content);
    let handle = &[0; 4];
    let read = |offset, len| Request::Read {
        handle,
        offset,
        len,
    };
    let open = Request::Open {
        path: b"/file",
        flags: OpenFlags::READ,
        attrs: Attrs::default(),
    };
    for borrow_policy in [
        BorrowPolicy::UntilSent,
        BorrowPolicy::UntilSealed,
        BorrowPolicy::Never,
    ] {
        let pool = PacketPool::new(256 << 10, 4);
        pool.set_borrow_policy(borrow_policy);
        let lies = borrow_policy != BorrowPolicy::Never;
        let server = SftpServer::answering_in(pool, 256 << 10, &export, 10);
        let mut server = server.with_clock(still_clock);
        server.several_at_once(true);
        let all = [
            open,
            read(1000, 200_000),
            read(250_000, 9000),
            read(250_000, 100_000),
            read(300_000, 100_000),
        ];
        let mut outside = Vec::new();
        server.handle(&mut requests(&all).into()).expect("sound");
        let taken = server.take_answers(|answer| {
            if let AnswerChunk::Block(block) = answer {
                let payload = block.to_vec();
                let data = payload[DATA_HEADER..].to_vec();
                outside.push((block.lies_outside(), data));
            }
            Ok::<_, ()>(())
        });
        taken.expect("ours");
        let parts = [1000..201_000, 250_000..259_000, 250_000..300_000];
        let expected: Vec<_> = parts
            .into_iter()
            .map(|part| (lies && part.len() == 200_000, content[part].to_vec()))
            .collect();
        assert!(outside == expected);
        assert!(is_open(&folder.path().join("file")));
        let mut close = Vec::new();
        Request::Close { handle }.encode(RequestId(9), &mut close);
        server.handle(&mut close.into()).expect("sound");
        assert!(!is_open(&folder.path().join("file")));
    }
}

/// Answered file data are read only when they are sent: requests that would change them wait until
/// then.
#[test]
fn a_read_tells_what_was_there_when_it_was_asked() {
    let (folder, export) = export();
    let path = folder.path().join("file");
    write_synced(&path, &[1; 300_000]);
    let handle = &[0; 4];
    let open = Request::Open {
        path: b"/file",
        flags: OpenFlags::READ | OpenFlags::WRITE,
        attrs: Attrs::default(),
    };
    let read = Request::Read {
        handle,
        offset: 0,
        len: 100_000,
    };
    let write = Request::Write {
        handle,
        offset: 0,
        data: &[2; 1000],
    };
    let cut = Request::Fsetstat {
        handle,
        attrs: Attrs {
            size: Some(50_000),
            ..Attrs::default()
        },
    };
    let close = Request::Close { handle };
    for changes in [&[write, close][..], &[cut, close]] {
        write_synced(&path, &[1; 300_000]);
        let before = fs::read(&path).expect("ours");
        let pool = PacketPool::new(256 << 10, 4);
        pool.set_borrow_policy(BorrowPolicy::UntilSealed);
        let server = SftpServer::answering_in(pool, 256 << 10, &export, 10);
        let mut server = server.with_clock(still_clock);
        server.several_at_once(true);
        let mut received: Bytes = requests(&[&[open, read], changes].concat()).into();
        server.handle(&mut received).expect("sound");
        let mut blocks = blocks_of(&mut server);
        for _ in 0..3 {
            assert!(server.is_stuck() && server.awaits() && !server.goes_on());
            server.handle(&mut received).expect("sound");
            assert!(fs::read(&path).expect("ours") == before);
        }
        assert_eq!(blocks.len(), 1);
        assert!(blocks[0].lies_outside() && blocks[0].to_vec()[DATA_HEADER..] == before[..100_000]);
        blocks.clear();
        assert!(server.goes_on() && !server.is_stuck());
        server.handle(&mut received).expect("sound");
        assert!(received.is_empty() && !server.awaits() && !server.has_open());
        assert!(fs::read(&path).expect("ours") != before);

        // Data that will never be sent block nothing.
        write_synced(&path, &[1; 300_000]);
        let mut received: Bytes = input_of(&[&[open, read], changes].concat());
        server.handle(&mut received).expect("sound");
        blocks.extend(blocks_of(&mut server));
        assert!(server.is_stuck());
        server.several_at_once(false);
        server.handle(&mut received).expect("sound");
        assert!(!server.has_open() && fs::read(&path).expect("ours") != before);
    }
}

/// Data behind an answer that waits for a disk are read at once, instead of staying in the file for
/// long.
#[test]
fn what_waits_behind_another_answer_is_read_when_it_was_asked() {
    let (folder, export) = export();
    write_synced(&folder.path().join("file"), &[1; 300_000]);
    let handle = &[0; 4];
    let open = Request::Open {
        path: b"/file",
        flags: OpenFlags::READ | OpenFlags::WRITE,
        attrs: Attrs::default(),
    };
    let read = Request::Read {
        handle,
        offset: 0,
        len: 100_000,
    };
    let pool = PacketPool::new(256 << 10, 4);
    pool.set_borrow_policy(BorrowPolicy::UntilSealed);
    let server = SftpServer::answering_in(pool, 256 << 10, &export, 10);
    let mut server = server.with_clock(still_clock);
    server.several_at_once(true);
    let sync = Request::Fsync { handle };
    let mut received: Bytes = requests(&[open, read, sync, read]).into();
    let mut lying = Vec::new();
    testkit::wait::up_to(std::time::Duration::from_secs(30), || {
        server.handle(&mut received).expect("sound");
        let blocks = blocks_of(&mut server);
        lying.extend(blocks.iter().map(PayloadBlock::lies_outside));
        lying.len() >= 2
    });
    assert_eq!(lying, [true, false]);
}

/// Writes a file to the disk. While ext4 writes a file out, st_blocks may briefly indicate holes,
/// and files with holes are read into memory.
fn write_synced(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("our folder");
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.expect("our file");
}

/// Blocks of the available answers.
fn blocks_of(server: &mut SftpServer<'_>) -> Vec<PayloadBlock> {
    let mut blocks = Vec::new();
    let taken = server.take_answers(|answer| {
        if let AnswerChunk::Block(block) = answer {
            blocks.push(block);
        }
        Ok::<_, ()>(())
    });
    taken.expect("ours");
    blocks
}

fn input_of(all: &[Request<'_>]) -> Bytes {
    let mut input = Vec::new();
    for (id, request) in (10..).zip(all) {
        request.encode(RequestId(id), &mut input);
    }
    input.into()
}

/// True if this process has the file open.
fn is_open(path: &Path) -> bool {
    let all = fs::read_dir("/proc/self/fd").expect("Linux").flatten();
    let mut files = all.filter_map(|fd| fs::read_link(fd.path()).ok());
    files.any(|file| file == path)
}
