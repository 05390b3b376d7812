//! A session channel of a connection: an SFTP server, scp's old protocol, an allowed program, or an
//! explanation that nothing else is available.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::PollFlags;
use rustix::io::Errno;
use sftp::ReceivedSliceQueue;
use ssh::channel::{ChannelId, Channels, OutgoingRequest};
use tracing::{info, warn};
use wire::FieldReader;

use super::ServedClientSettings;
use super::program::RunningProgram;
use super::serving::ChannelFileServer;
use crate::scp::{self, ScpServer};
use crate::sftp::ANSWERS;
use crate::sftp::OpenFileLimit;
use crate::sftp::WriteTarget;
use crate::{ExportedTree, SftpServer, TransferCounters};

/// Message for a client that requests a shell or a command, as from sshd's internal-sftp.
const FILES_ONLY: &str =
    "This server transfers files only: it has no shell and runs no commands.\r\n";
/// Received bytes that stay in their segments: the limit at which reading stops, plus one read.
const WAITING: usize = 2 << 20;
/// Number of unprocessed bytes at which reading pauses, as long as they can be handled.
const BEHIND: usize = 1 << 20;
/// Length of the buffers into which further bytes are copied.
const GATHERED: usize = 64 << 10;
/// Slices shorter than this are always copied together.
const SMALL: usize = 2 << 10;
/// Maximum time for which the requests of a client that has disconnected are carried out, for all of
/// its channels together.
pub(super) const FINISHING: Duration = Duration::from_secs(10);
/// Maximum bytes of requests handled in a turn, and the longest time, so that other channels get
/// their turn and answers leave.
const TURN: usize = 1 << 20;
const TURN_TIME: Duration = Duration::from_millis(5);

/// A session channel (RFC 4254 section 6).
pub(super) struct SessionChannel<'s> {
    id: ChannelId,
    allowance: OpenFileLimit,
    server: Option<ChannelFileServer<'s>>,
    program: Option<RunningProgram>,
    /// Received and not yet handled bytes, bounded by the window.
    received: ReceivedSliceQueue,
    /// Number of bytes in `received`.
    waiting: usize,
    /// The client has sent EOF.
    ended: bool,
    /// The session has ended; nothing more is handled.
    over: bool,
}

impl<'s> SessionChannel<'s> {
    pub(super) fn new(id: ChannelId, allowance: OpenFileLimit) -> Self {
        Self {
            id,
            allowance,
            server: None,
            program: None,
            received: ReceivedSliceQueue::new(SMALL, GATHERED),
            waiting: 0,
            ended: false,
            over: false,
        }
    }

    /// Handles a channel request (RFC 4254 section 6).
    pub(super) fn request(
        &mut self,
        channels: &mut Channels,
        (served, export): (&ServedClientSettings, &'s ExportedTree),
        name: &[u8],
        data: &[u8],
        want_reply: bool,
    ) {
        let free = self.server.is_none() && self.program.is_none() && !self.over;
        let sftp = name == b"subsystem" && FieldReader::new(data).string() == Ok(b"sftp");
        let program = matches!(name, b"exec" | b"shell");
        let granted = free && (sftp || program);
        if want_reply {
            channels.answer(self.id, granted);
        }
        let command = match granted && name == b"exec" {
            true => FieldReader::new(data).string().unwrap_or_default(),
            false => b"",
        };
        let (pool, slot) = (channels.pool(), channels.packet_room(self.id));
        if granted && sftp {
            let allowance = self.allowance.clone();
            let mut server = SftpServer::answering_in(pool, slot, export, allowance);
            server.several_at_once(true);
            self.server = Some(ChannelFileServer::Sftp(Box::new(server)));
        } else if let Some(asked) = scp::ScpCommand::parse(command).filter(|_| !served.runs("scp"))
        {
            match asked {
                Ok(asked) => {
                    info!("the old scp protocol");
                    let allowance = self.allowance.clone();
                    let scp = ScpServer::new(pool, slot, export, allowance, asked);
                    self.server = Some(ChannelFileServer::Scp(Box::new(scp)));
                }
                Err(why) => {
                    info!("refused to run scp: {why}");
                    self.end(channels, 1, Some(&format!("{why}\r\n")));
                }
            }
        } else if granted && name == b"exec" && served.runs_programs() {
            match RunningProgram::start(&served.allowed, served.owner.as_ref(), command) {
                Ok(program) => self.program = Some(program),
                Err(why) => {
                    info!("refused to run a program: {why}");
                    self.end(channels, 127, Some(&format!("{why}\r\n")));
                }
            }
        } else if granted {
            info!("refused to run a program");
            self.end(channels, 1, Some(FILES_ONLY));
        }
    }

    /// Queues client data. Beyond [`WAITING`] bytes they are copied together: a client that sends
    /// small packets, each of which keeps its whole segment alive, must not make the server hold
    /// many times its window.
    pub(super) fn data(&mut self, bytes: Bytes) {
        self.waiting += bytes.len();
        match self.waiting > WAITING {
            true => self.received.push_copied(&bytes),
            false => self.received.push(bytes),
        }
    }

    /// Notes that the client has sent EOF.
    pub(super) fn eof(&mut self) {
        self.ended = true;
    }

    /// True if there is something to handle or to send.
    pub(super) fn is_busy(&self, channels: &Channels) -> bool {
        let runs = self.program.is_some() && !self.over;
        runs || self.awaits() || !self.received.is_empty() || channels.queued(self.id) > 0
    }

    /// True if a file or directory is open, which suggests a running transfer.
    pub(super) fn has_open(&self) -> bool {
        !self.over
            && self
                .server
                .as_ref()
                .is_some_and(ChannelFileServer::has_open)
    }

    /// Bytes that wait for the client's window.
    pub(super) fn waiting(&self, channels: &Channels) -> usize {
        channels.queued(self.id)
    }

    /// True if [`SessionChannel::turn`] has something to do.
    pub(super) fn has_work(&self, channels: &Channels) -> bool {
        // A program's descriptors are polled; see `watch`.
        let runs = self.program.is_some() && !self.over;
        let any = !self.received.is_empty() || self.goes_on();
        !runs && any && !self.is_stuck() && channels.queued(self.id) < ANSWERS
    }

    /// Gives back memory that is kept for further requests.
    pub(super) fn trim(&mut self) {
        if let Some(ChannelFileServer::Sftp(server)) = &mut self.server {
            server.trim();
        }
    }

    /// True if all remaining work waits for the blocking pool.
    fn is_stuck(&self) -> bool {
        !self.over
            && self
                .server
                .as_ref()
                .is_some_and(ChannelFileServer::is_stuck)
    }

    /// True if the blocking pool has requests that are not answered yet.
    fn awaits(&self) -> bool {
        !self.over && self.server.as_ref().is_some_and(ChannelFileServer::awaits)
    }

    /// True if there is work that needs no new input.
    fn goes_on(&self) -> bool {
        !self.over
            && self
                .server
                .as_ref()
                .is_some_and(ChannelFileServer::has_more)
    }

    /// True if requests should be handled before more is read: if the disk or this processor is
    /// slower than the client, a whole window would wait here, copied.
    pub(super) fn is_behind(&self, channels: &Channels) -> bool {
        self.waiting >= BEHIND && self.has_work(channels)
    }

    /// Descriptors to poll in addition to the client's socket.
    pub(super) fn watch(
        &self,
        channels: &Channels,
    ) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let runs = self.program.as_ref().filter(|_| !self.over);
        // After the end nobody handles the completions of the pool.
        let hears = self.server.as_ref().filter(|_| !self.over);
        let waker = hears.and_then(ChannelFileServer::waker);
        runs.into_iter()
            .flat_map(|program| program.watch(self.id, channels, &self.received))
            .chain(waker.map(|waker| (waker, PollFlags::IN)))
    }

    /// Time at which the session needs a turn without any event of [`SessionChannel::watch`].
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        self.program.as_ref()?.look(now)
    }

    /// Moves bytes between the client and the program.
    fn pass_on(&mut self, now: Instant, channels: &mut Channels) {
        let Some(program) = &mut self.program else {
            return;
        };
        let taken = program.feed(self.received.queue(), self.ended);
        self.waiting -= taken;
        channels.consumed(now, self.id, taken);
        if let Some(status) = program.listen(self.id, channels) {
            self.end(channels, status, None);
        }
    }

    /// The SFTP server of this channel, if it is still running.
    fn sftp(&mut self) -> Option<&mut SftpServer<'s>> {
        match self.server.as_mut().filter(|_| !self.over) {
            Some(ChannelFileServer::Sftp(server)) => Some(server),
            _ => None,
        }
    }

    /// True if a large WRITE came recently.
    pub(super) fn takes_large(&mut self) -> bool {
        self.sftp().is_some_and(|server| server.takes_large())
    }

    /// True if the next bytes are data of a WRITE that has begun.
    pub(super) fn is_within(&mut self) -> bool {
        self.sftp().is_some_and(|server| server.is_within())
    }

    /// Target of the next data, if they can go there without being copied to memory.
    pub(super) fn place(&mut self, channels: &Channels) -> Option<WriteTarget> {
        let ready = self.received.is_empty() && channels.queued(self.id) < ANSWERS;
        self.sftp().filter(|_| ready)?.place()
    }

    /// Records that `n` more bytes are on their way to the target, or that an earlier write failed.
    pub(super) fn placed(&mut self, n: usize, done: Result<(), Errno>) {
        if let Some(server) = self.sftp() {
            server.placed(n, done);
        }
    }

    /// Handles received requests while there is room for answers.
    pub(super) fn turn(&mut self, now: Instant, channels: &mut Channels) {
        if self.program.is_some() && !self.over {
            self.pass_on(now, channels);
            return;
        }
        let (mut done, begun) = (0, Instant::now());
        while done < TURN
            && begun.elapsed() < TURN_TIME
            && channels.queued(self.id) < ANSWERS
            && !self.is_stuck()
            && (!self.received.is_empty() || self.goes_on())
        {
            let mut bytes = self.received.queue().pop_front().unwrap_or_default();
            let before = bytes.len();
            let served = match (&mut self.server, self.over) {
                (Some(server), false) => server.handle(&mut bytes),
                // Without a server, input is discarded.
                _ => {
                    bytes.clear();
                    Ok(())
                }
            };
            done += before - bytes.len();
            self.waiting -= before - bytes.len();
            channels.consumed(now, self.id, before - bytes.len());
            if !bytes.is_empty() {
                self.received.queue().push_front(bytes);
            }
            if let Some(server) = &mut self.server {
                // More requests may arrive on the socket while these are made durable.
                if self.received.is_empty() || served.is_err() {
                    server.end_set();
                }
                server.answer(self.id, channels);
                if let Some(status) = server.status().filter(|_| !self.over) {
                    self.end(channels, status, None);
                }
            }
            if let Err(e) = served {
                warn!("{e}");
                self.end(channels, 1, Some(&format!("{e}\r\n")));
            }
        }
        let done = self.received.is_empty() && !self.goes_on() && !self.awaits();
        if self.ended && !self.over && done {
            let status = self.server.as_mut().map_or(0, |server| {
                let status = server.end();
                server.answer(self.id, channels);
                status
            });
            self.end(channels, status, None);
        }
    }

    /// Handles the requests that were received in whole before the client closed the channel or
    /// vanished, as sshd does (nchan.c), until `until`. libssh2 sends a file's last byte, EOF and
    /// CLOSE at once. Requests that change nothing are dropped.
    pub(super) fn finish(&mut self, closed: bool, until: Instant) {
        let Some(server) = self.server.as_mut().filter(|_| !self.over) else {
            return;
        };
        self.over = true;
        if let ChannelFileServer::Sftp(server) = server {
            server.leave();
        }
        for mut bytes in self.received.take() {
            while !bytes.is_empty() && Instant::now() < until {
                if let Err(e) = server.finish(&mut bytes) {
                    warn!("{e}");
                    return server.end_set();
                }
            }
            if !bytes.is_empty() {
                return warn!(
                    "the client disconnected: its unfinished requests were dropped after \
                     {FINISHING:?}"
                );
            }
        }
        while server.awaits() && Instant::now() < until {
            if let Err(e) = server.finish(&mut Bytes::new()) {
                return warn!("{e}");
            }
        }
        server.end_set();
        // Without EOF or CLOSE the client may have been about to declare the file invalid.
        if self.ended || closed {
            server.end();
        }
    }

    /// Asks the program of the channel to end, if there is one.
    pub(super) fn terminate(&mut self) {
        self.program.iter_mut().for_each(RunningProgram::terminate);
    }

    /// True if a program is still running.
    pub(super) fn runs_program(&self) -> bool {
        self.program.is_some() && !self.over
    }

    /// True if the program has work left after the client closed the channel: to read earlier
    /// input, or to process all of it.
    pub(super) fn goes_on_alone(&mut self) -> bool {
        let goes_on = self.runs_program() && (self.ended || !self.received.is_empty());
        self.ended = true;
        goes_on
    }

    /// Reports the counters of the session after its end.
    pub(super) fn tell(&self, over: &dyn Fn(TransferCounters)) {
        if let Some(server) = &self.server {
            over(server.moved());
        }
        if let Some(program) = &self.program {
            over(program.moved());
        }
    }

    fn end(&mut self, channels: &mut Channels, status: u32, words: Option<&str>) {
        self.over = true;
        if let Some(words) = words {
            channels.write_stderr(self.id, words.as_bytes());
        }
        channels.request(self.id, OutgoingRequest::ExitStatus(status), false);
        channels.send_eof(self.id);
        channels.close(self.id);
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
