//! Reads client input while a long request is carried out. Checksums or copies of a large file take
//! seconds; meanwhile further input would stay in the channel, and its window would not open. sshd
//! grants 2 MiB (channels.h), which is one round trip's worth.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use bytes::{Buf as _, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Bytes per read.
const SEGMENT: usize = 256 * 1024;
/// Free space below which a buffer is replaced: reads in between return little at a time.
const ROOM: usize = 32 * 1024;
/// Maximum bytes that are read ahead; further input waits in the channel.
const MOST: usize = 8 << 20;

/// Time limit of a poll(2) that does not wait.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Input of the client on a pipe or socket. During a long request at most 8 MiB are read ahead and
/// kept for the next reads.
#[derive(Debug)]
pub(crate) struct IncomingStream<'i> {
    input: BorrowedFd<'i>,
    /// Descriptor that the answers go to, which tells whether somebody can still read them.
    output: Option<BorrowedFd<'i>>,
    segment: RefCell<BytesMut>,
    kept: RefCell<VecDeque<Bytes>>,
    bytes: Cell<usize>,
}

impl<'i> IncomingStream<'i> {
    pub(crate) fn new(input: BorrowedFd<'i>) -> Self {
        Self {
            input,
            output: None,
            segment: RefCell::default(),
            kept: RefCell::default(),
            bytes: Cell::default(),
        }
    }

    /// Watches the descriptor that the answers go to.
    pub(crate) fn watching(self, output: BorrowedFd<'i>) -> Self {
        Self {
            output: Some(output),
            ..self
        }
    }

    /// True if nobody can read answers any more: the other end of the output is closed.
    pub(crate) fn is_abandoned(&self) -> bool {
        let Some(output) = &self.output else {
            return false;
        };
        let mut fds = [PollFd::new(output, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&NOW));
        let ended = PollFlags::ERR | PollFlags::HUP;
        polled.is_ok() && fds[0].revents().intersects(ended)
    }

    /// Waits for the next input. Empty at the end of the stream.
    ///
    /// # Errors
    /// The errors of read(2).
    pub(crate) fn next(&self) -> io::Result<Bytes> {
        if let Some(bytes) = self.kept.borrow_mut().pop_front() {
            self.bytes.set(self.bytes.get() - bytes.remaining());
            return Ok(bytes);
        }
        let mut segment = self.segment.borrow_mut();
        segment.reserve(SEGMENT);
        loop {
            match sys::read_spare(self.input, &mut segment) {
                Err(e) if Errno::from_io_error(&e) == Some(Errno::INTR) => {}
                read => return read.map(|_| segment.split().freeze()),
            }
        }
    }

    /// True if input was read ahead.
    pub(crate) fn has_kept(&self) -> bool {
        self.bytes.get() > 0
    }

    /// True if input becomes readable within this time.
    pub(crate) fn comes_within(&self, time: &Timespec) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
        // The next read reports any error.
        matches!(poll(&mut fds, Some(time)), Ok(1..))
    }

    /// Reads available input between two parts of a long request. An error or the end of the stream
    /// is left for the next read.
    pub(crate) fn keep(&self) {
        if self.bytes.get() >= MOST || !self.comes_within(&NOW) {
            return;
        }
        let mut segment = self.segment.borrow_mut();
        if segment.capacity() - segment.len() < ROOM {
            segment.reserve(SEGMENT);
        }
        if let Ok(n @ 1..) = sys::read_spare(self.input, &mut segment) {
            self.bytes.set(self.bytes.get() + n);
            self.kept.borrow_mut().push_back(segment.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_kept_comes_in_its_order_and_is_bounded() {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let incoming = IncomingStream::new(near.as_fd());
        incoming.keep();
        assert!(!incoming.has_kept(), "nothing has come yet");
        let sent: Vec<u8> = (0..200).collect();
        for part in sent.chunks(50) {
            far.write_all(part).expect("there is room");
            incoming.keep();
        }
        assert!(incoming.has_kept());
        far.write_all(b"behind").expect("there is room");
        let mut got = Vec::new();
        while got.len() < sent.len() + 6 {
            got.extend_from_slice(&incoming.next().expect("it can be read"));
        }
        assert_eq!(got, [&sent[..], b"behind"].concat());
        assert!(!incoming.has_kept());

        let part = vec![7; 64 << 10];
        let mut sent = 0;
        while incoming.bytes.get() < MOST {
            far.write_all(&part).expect("there is room");
            sent += part.len();
            incoming.keep();
            assert!(incoming.bytes.get() < MOST + SEGMENT);
        }
        far.write_all(b"not yet").expect("there is room");
        let before = incoming.bytes.get();
        incoming.keep();
        assert_eq!(incoming.bytes.get(), before, "it was full");
        drop(far);
        let mut got = 0;
        loop {
            match incoming.next().expect("it can be read").len() {
                0 => break,
                n => got += n,
            }
        }
        assert_eq!(got, sent + 7, "what did not fit comes behind it");
    }
}
