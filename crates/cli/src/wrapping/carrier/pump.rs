//! Carries one connection of a program between the program's end and the network's, and measures
//! the waits of both sides.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read};
use rustix::net::{SendFlags, Shutdown, send, shutdown};

/// Bytes and waits of one direction of a carried connection, from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectionStats {
    /// Bytes that the other side has accepted.
    pub(super) bytes: u64,
    /// Time waiting for bytes to carry.
    pub(super) for_source: WaitTotals,
    /// Time waiting for room in the other side's socket.
    pub(super) for_sink: WaitTotals,
}

/// Waiting times: all together, and the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitTotals {
    pub(super) total: Duration,
    pub(super) longest: Duration,
}

/// End of a carried connection, from which the carrier decides how the program's socket ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PumpOutcome {
    /// Both sides have closed it, or the program has.
    Closed,
    /// The program has reset it, or has closed it with unread bytes.
    Reset,
    /// The network connection was lost.
    Lost(Errno),
}

/// One direction with its buffer.
struct PumpDirection {
    buffer: Vec<u8>,
    at: usize,
    len: usize,
    /// The source has reached its end.
    ended: bool,
    /// The sink was shut down, or accepts nothing more.
    closed: bool,
    way: DirectionStats,
}

impl PumpDirection {
    fn new(piece: usize) -> Self {
        Self {
            buffer: vec![0; piece],
            at: 0,
            len: 0,
            ended: false,
            closed: false,
            way: DirectionStats::default(),
        }
    }

    fn is_empty(&self) -> bool {
        self.at == self.len
    }

    fn wants_source(&self) -> bool {
        self.is_empty() && !self.ended && !self.closed
    }

    fn wants_sink(&self) -> bool {
        !self.is_empty() && !self.closed
    }

    fn close(&mut self) {
        (self.at, self.len) = (0, 0);
        (self.ended, self.closed) = (true, true);
    }

    /// Fills the buffer from the source. Returns true if anything happened.
    fn read(&mut self, from: BorrowedFd<'_>) -> Result<bool, Errno> {
        if !self.wants_source() {
            return Ok(false);
        }
        match read(from, &mut self.buffer[..]) {
            Ok(0) => self.ended = true,
            Ok(len) => (self.at, self.len) = (0, len),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn write(&mut self, to: BorrowedFd<'_>) -> Result<bool, Errno> {
        if self.wants_sink() {
            match send(to, &self.buffer[self.at..self.len], SendFlags::NOSIGNAL) {
                Ok(len) => {
                    self.at += len;
                    self.way.bytes += len as u64;
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Shuts the sink down once the source has ended and all its bytes are written.
    fn finish(&mut self, to: BorrowedFd<'_>) -> bool {
        let now = self.ended && self.is_empty() && !self.closed;
        if now {
            self.closed = true;
            let _ = shutdown(to, Shutdown::Write);
        }
        now
    }

    fn waited(&mut self, time: Duration) {
        let of = match (self.wants_source(), self.wants_sink()) {
            (true, _) => &mut self.way.for_source,
            (_, true) => &mut self.way.for_sink,
            _ => return,
        };
        of.total += time;
        of.longest = of.longest.max(time);
    }
}

/// A connection being carried. Both sockets must be non-blocking.
pub(super) struct ConnectionPump<'a> {
    program: BorrowedFd<'a>,
    net: BorrowedFd<'a>,
    up: PumpDirection,
    down: PumpDirection,
    /// The program has closed its end.
    gone: bool,
    lost: Option<Errno>,
    dropped: bool,
}

impl<'a> ConnectionPump<'a> {
    /// Prepares to carry, with a buffer of `piece` bytes in each direction.
    pub(super) fn new(program: &'a impl AsFd, net: &'a impl AsFd, piece: usize) -> Self {
        Self {
            program: program.as_fd(),
            net: net.as_fd(),
            up: PumpDirection::new(piece),
            down: PumpDirection::new(piece),
            gone: false,
            lost: None,
            dropped: false,
        }
    }

    /// Carries until the program does not need the connection any more. Calls `lost` as soon as the
    /// network connection fails, before the program sees its end.
    ///
    /// # Errors
    /// poll(2) failed.
    pub(super) fn run(
        mut self,
        mut lost: impl FnMut(Errno),
    ) -> io::Result<(DirectionStats, DirectionStats, PumpOutcome)> {
        loop {
            while self.step(&mut lost) {}
            if self.is_over() {
                let end = match (self.lost, self.dropped) {
                    (_, true) => PumpOutcome::Reset,
                    (Some(error), _) => PumpOutcome::Lost(error),
                    (None, false) => PumpOutcome::Closed,
                };
                return Ok((self.up.way, self.down.way, end));
            }
            self.wait()?;
        }
    }

    /// Moves bytes in both directions once. Returns true if anything happened.
    fn step(&mut self, told: &mut impl FnMut(Errno)) -> bool {
        let mut moved = false;
        match self.up.read(self.program) {
            Ok(more) => moved |= more,
            Err(_) => {
                self.dropped = true;
                self.gone = true;
            }
        }
        let network = [self.up.write(self.net), self.down.read(self.net)];
        for (more, up) in network.into_iter().zip([true, false]) {
            match more {
                Ok(more) => moved |= more,
                // Bytes received earlier still go to the program.
                Err(error) => {
                    if self.lost.is_none() {
                        self.lost = Some(error);
                        told(error);
                    }
                    self.up.close();
                    self.down.ended |= !up;
                    moved = true;
                }
            }
        }
        match self.down.write(self.program) {
            Ok(more) => moved |= more,
            Err(_) => {
                self.down.close();
                moved = true;
            }
        }
        moved |= self.up.finish(self.net);
        // A lost connection must not look like an end of file.
        moved |= self.lost.is_none() && self.down.finish(self.program);
        moved
    }

    /// Carrying is over once the program has closed its end and its bytes are sent, or has
    /// everything that came before a loss.
    fn is_over(&self) -> bool {
        let told = self.lost.is_some() && self.down.ended && self.down.is_empty();
        self.dropped || told || (self.gone && self.up.closed)
    }

    fn wait(&mut self) -> io::Result<()> {
        let flags = |reading, writing| {
            let reading = if reading {
                PollFlags::IN
            } else {
                PollFlags::empty()
            };
            let writing = if writing {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            reading | writing
        };
        let program = flags(self.up.wants_source(), self.down.wants_sink());
        let net = flags(self.down.wants_source(), self.up.wants_sink());
        // poll(2) reports a hang-up of the program unasked; watching it once is enough.
        let mut fds = Vec::with_capacity(2);
        if !self.gone {
            fds.push(PollFd::from_borrowed_fd(self.program, program));
        }
        if !net.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.net, net));
        }
        let since = Instant::now();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ended = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        if !self.gone && fds.first().is_some_and(ended) {
            self.gone = true;
            // The program cannot read the rest any more.
            self.down.close();
        }
        let time = since.elapsed();
        self.up.waited(time);
        self.down.waited(time);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn pumped(
        piece: usize,
        program: impl FnOnce(UnixStream),
        far: impl FnOnce(TcpStream) + Send + 'static,
    ) -> (DirectionStats, DirectionStats, PumpOutcome) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (net, peer) = tcp();
        theirs.set_nonblocking(true).unwrap();
        net.set_nonblocking(true).unwrap();
        let pump = thread::spawn(move || {
            ConnectionPump::new(&theirs, &net, piece)
                .run(|_| {})
                .unwrap()
        });
        let far = thread::spawn(move || far(peer));
        program(ours);
        far.join().unwrap();
        pump.join().unwrap()
    }

    #[test]
    fn every_byte_arrives_both_ways_whatever_the_room() {
        for piece in [1, 2, 7, 512, 65536] {
            let len = piece.min(64) * 1000 + 3;
            let sent: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let back = sent.clone();
            let program = |mut end: UnixStream| {
                let mut writer = end.try_clone().unwrap();
                let writing = thread::spawn(move || {
                    writer.write_all(&sent).unwrap();
                    writer.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let mut got = Vec::new();
                end.read_to_end(&mut got).unwrap();
                writing.join().unwrap();
                assert!(got == back, "{piece}: {} bytes", got.len());
            };
            let far = |mut peer: TcpStream| {
                let mut all = Vec::new();
                peer.read_to_end(&mut all).unwrap();
                peer.write_all(&all).unwrap();
            };
            let (up, down, end) = pumped(piece, program, far);
            assert_eq!((up.bytes, down.bytes), (len as u64, len as u64));
            assert_eq!(end, PumpOutcome::Closed);
        }
    }

    #[test]
    fn what_a_program_sends_before_it_closes_arrives() {
        let program = |mut end: UnixStream| end.write_all(&[7; 3_000_000]).unwrap();
        let far = |mut peer: TcpStream| {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            assert_eq!(all.len(), 3_000_000);
        };
        let (up, _, end) = pumped(4096, program, far);
        assert_eq!((up.bytes, end), (3_000_000, PumpOutcome::Closed));
    }

    #[test]
    fn a_reset_comes_after_the_bytes_that_were_before_it() {
        let program = |mut end: UnixStream| {
            let mut got = Vec::new();
            end.read_to_end(&mut got).unwrap();
            assert_eq!(got.len(), 50_000);
        };
        let far = |mut peer: TcpStream| {
            peer.write_all(&[7; 50_000]).unwrap();
            // Wait until the other end has received everything.
            while sys::tcp_info(&peer).unwrap().bytes_acked < 50_000 {
                thread::yield_now();
            }
            socket2::SockRef::from(&peer)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        };
        let (_, down, end) = pumped(100, program, far);
        assert_eq!(
            (down.bytes, end),
            (50_000, PumpOutcome::Lost(Errno::CONNRESET))
        );
    }

    #[test]
    fn a_program_that_closes_with_bytes_unread_has_dropped_the_connection() {
        let program = |mut end: UnixStream| {
            end.read_exact(&mut [0]).unwrap();
            drop(end);
        };
        let far = |mut peer: TcpStream| {
            let _ = peer.write_all(&[7; 1000]);
            let _ = peer.read_to_end(&mut Vec::new());
        };
        assert_eq!(pumped(4096, program, far).2, PumpOutcome::Reset);
    }

    #[test]
    fn who_was_waited_for_is_told() {
        let pause = Duration::from_millis(60);
        let program = |mut end: UnixStream| {
            // The pause is what is measured.
            thread::sleep(pause);
            end.write_all(b"x").unwrap();
            end.read_exact(&mut [0]).unwrap();
        };
        let far = move |mut peer: TcpStream| {
            peer.read_exact(&mut [0]).unwrap();
            peer.write_all(b"y").unwrap();
            let _ = peer.read(&mut [0]);
        };
        let (up, down, _) = pumped(4096, program, far);
        assert!(up.for_source.longest >= pause / 2, "{up:?}");
        assert!(down.for_source.total >= pause / 2, "{down:?}");
        assert_eq!(up.for_sink, WaitTotals::default());
    }
}
