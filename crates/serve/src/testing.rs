//! Helpers for tests that send requests to a server.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sftp::{
    Attrs, Init, MessageSplitter, MessageSplitterOutput, PutFlags, Request, RequestId, Response,
    StatusCode, frame,
};
use wire::RemainingBytes;

use crate::{Access, AnswerChunk, ExportedTree, SftpServer};

/// Clock that stands still: a server handles all available requests in one turn, however busy the
/// machine is.
pub(crate) fn still_clock() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Clock on which every reading takes a millisecond.
pub(crate) fn counting_clock() -> Instant {
    thread_local! {
        static READ: Cell<u32> = const { Cell::new(0) };
    }
    let read = READ.get() + 1;
    READ.set(read);
    still_clock() + read * Duration::from_millis(1)
}

/// Encodes requests, preceded by INIT if `first` is set.
pub(crate) fn input(requests: &[Request<'_>], first: bool) -> Bytes {
    let mut input = Vec::new();
    let init = Init {
        version: 3,
        extensions: RemainingBytes(&[]),
    };
    if first {
        frame(&mut input, |out| init.encode(out));
    }
    for (id, request) in (0..).zip(requests) {
        request.encode(RequestId(id), &mut input);
    }
    input.into()
}

/// All answers to the bytes in `received`, without their lengths, and the number of waits for the
/// blocking pool.
pub(crate) fn served(server: &mut SftpServer<'_>, mut received: Bytes) -> (Vec<Bytes>, usize) {
    let (mut output, mut waited) = (Vec::new(), 0);
    loop {
        server.handle(&mut received).expect("sound requests");
        let taken = server.take_answers(|answer| {
            match answer {
                AnswerChunk::Bytes(bytes) => output.extend_from_slice(bytes),
                AnswerChunk::Block(block) => output.extend_from_slice(&block.to_vec()),
            }
            Ok::<_, ()>(())
        });
        taken.expect("ours");
        if server.holds() {
            server.end_set();
        } else if !server.goes_on()
            && (server.is_stuck() || (received.is_empty() && server.awaits()))
        {
            let Some(waker) = server.waker() else {
                continue;
            };
            waited += 1;
            let mut fds = [PollFd::from_borrowed_fd(waker, PollFlags::IN)];
            let limit = Timespec::try_from(Duration::from_secs(20)).expect("short");
            let woken = poll(&mut fds, Some(&limit)).expect("a descriptor");
            assert_eq!(woken, 1, "nobody has rung");
        } else if received.is_empty() && !server.goes_on() && !server.awaits() {
            break;
        }
    }
    let (mut splitter, mut output) = (MessageSplitter::new(1 << 20), Bytes::from(output));
    let mut found = Vec::new();
    while let Some(MessageSplitterOutput::Message(message)) =
        splitter.next(&mut output).expect("sound lengths")
    {
        found.push(message);
    }
    (found, waited)
}

/// The answers to `requests`, without their lengths and without VERSION.
pub(crate) fn answers(export: &ExportedTree, requests: &[Request<'_>]) -> Vec<Bytes> {
    let mut server = SftpServer::new(export);
    let (mut found, _) = served(&mut server, input(requests, true));
    found.remove(0);
    let ids = found
        .iter()
        .map(|answer| Response::decode(answer).map(|(id, _)| id));
    assert!(ids.eq((0..requests.len() as u32).map(|id| Ok(RequestId(id)))));
    found
}

/// Code and text of each answer, which must be a STATUS.
pub(crate) fn statuses(
    export: &ExportedTree,
    requests: &[Request<'_>],
) -> Vec<(StatusCode, String)> {
    let answers = answers(export, requests);
    let status = answers.iter().map(|answer| match Response::decode(answer) {
        Ok((_, Response::Status { code, text })) => {
            (code, String::from_utf8_lossy(text.message).into_owned())
        }
        other => panic!("{other:?}"),
    });
    status.collect()
}

pub(crate) fn put<'a>(path: &'a [u8], flags: PutFlags, data: &'a [u8]) -> Request<'a> {
    Request::PutFile {
        path,
        flags,
        tag: 7,
        mode: 0o644,
        attrs: Attrs::default(),
        data,
    }
}

pub(crate) fn code(export: &ExportedTree, request: Request<'_>) -> StatusCode {
    statuses(export, &[request])[0].0
}

pub(crate) fn bytes_of(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("our folder");
    let name = |e: std::io::Result<fs::DirEntry>| e.map(|e| e.file_name());
    let mut names: Vec<String> = entries
        .map(|e| name(e).expect("it").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Runs `check` on a folder that is served as `/`, and as part of the whole file system; passes the
/// export and the prefix of names.
pub(crate) fn both(access: Access, check: impl Fn(&ExportedTree, &[u8], &Path)) {
    for beneath in [true, false] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        match beneath {
            true => {
                let export = ExportedTree::beneath(path, access).expect("openat2");
                check(&export, b"/", path);
            }
            false => {
                let before = [bytes_of(path), b"/"].concat();
                check(&ExportedTree::everything(access), &before, path);
            }
        }
    }
}

pub(crate) fn at(before: &[u8], name: &str) -> Vec<u8> {
    [before, name.as_bytes()].concat()
}
