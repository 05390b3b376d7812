//! What a client sends while a long request of its own is carried out. Sums of a large file take
//! seconds, and so do copies of it: what follows would wait in the channel, whose window would not open
//! meanwhile. An sshd of OpenSSH gives 2 MiB (channels.h), which is one round trip's worth.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use bytes::{Buf as _, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Read at once.
const SEGMENT: usize = 256 * 1024;
/// What is read in between comes a little at a time: a buffer is used while it has so much room.
const ROOM: usize = 32 * 1024;
/// Bytes that are kept until their turn comes. What is behind them waits in the channel.
const MOST: usize = 8 << 20;

/// The client's side of a stream.
#[derive(Debug)]
pub(crate) struct IncomingStream<'i> {
    input: BorrowedFd<'i>,
    segment: RefCell<BytesMut>,
    kept: RefCell<VecDeque<Bytes>>,
    bytes: Cell<usize>,
}

impl<'i> IncomingStream<'i> {
    pub(crate) fn new(input: BorrowedFd<'i>) -> Self {
        Self {
            input,
            segment: RefCell::default(),
            kept: RefCell::default(),
            bytes: Cell::default(),
        }
    }

    /// What comes next, which is waited for. Nothing where the stream is at its end.
    ///
    /// # Errors
    /// Those of read(2).
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

    /// Whether more was read already.
    pub(crate) fn has_kept(&self) -> bool {
        self.bytes.get() > 0
    }

    /// Whether something is there to be read within this time.
    pub(crate) fn comes_within(&self, time: &Timespec) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
        // Whatever is wrong with it the next read finds out.
        matches!(poll(&mut fds, Some(time)), Ok(1..))
    }

    /// Reads what has come, between two parts of a long request. An error and the end of the stream are
    /// met by the next read again.
    pub(crate) fn keep(&self) {
        const NOW: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
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
