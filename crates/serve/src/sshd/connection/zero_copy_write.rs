//! Moves large WRITEs that are neither encrypted nor authenticated from the socket to their files
//! without copying them to memory (splice(2)).
//!
//! After a large WRITE, only the bytes that must be parsed are read from the socket: the header of
//! a data packet, and the header of another WRITE that may begin in it.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::ioctl_fionread;
use ssh::channel::ChannelId;
use ssh::{DATA_HEAD, DataPacketStart};
use sys::SplicePipe;
use tracing::debug;

use super::ServedConnection;
use crate::error::ConnectionEndCause;
use crate::sftp::WriteTarget;
use crate::sshd::session::SessionChannel;

/// Bytes of a WRITE before its data: lengths, number, request ID, our handle and offset.
const WRITE_HEAD: usize = 29;

/// The pipe of a connection and the file that its contents go to.
#[derive(Default)]
pub(super) struct ZeroCopyWrite {
    /// The pipe, created at the first use.
    passage: Option<SplicePipe>,
    /// Target of the bytes in the pipe. The pipe is emptied only when full, because a file system
    /// with huge pages zeroes the part of a page that a write does not cover.
    target: Option<PipeTarget>,
    /// All bytes that went through the pipe.
    bytes: u64,
    /// Disabled: no pipe can be created, or the client sends copies, which are cheaper to read.
    never: bool,
}

/// File and offset that the bytes in the pipe go to.
struct PipeTarget {
    id: ChannelId,
    file: Arc<File>,
    offset: u64,
}

impl ZeroCopyWrite {
    /// Enables the pipe for a client that sends large packets without copying, or disables it.
    pub(super) fn use_for(&mut self, large_packets: bool) {
        self.never = !large_packets;
    }

    /// Gives back the pipe if it is empty.
    pub(super) fn trim(&mut self) {
        if self.target.is_none() {
            self.passage = None;
        }
    }
}

impl Drop for ZeroCopyWrite {
    fn drop(&mut self) {
        if self.bytes > 0 {
            debug!(bytes = self.bytes, "received into files by splice(2)");
        }
    }
}

impl ServedConnection<'_> {
    /// One step: moves or reads bytes, and returns how many (possibly 0). `None` if the connection
    /// should read everything available.
    pub(super) fn pass_by(&mut self, now: Instant) -> Result<Option<usize>, ConnectionEndCause> {
        if self.conn.coming().is_none() {
            let may = self.conn.hears_clear() && !self.passing.never;
            if !may || !self.takes_large() {
                self.set_down();
                return Ok(None);
            }
            let received = self.segments.received();
            match self.conn.begin_data(now, received)? {
                DataPacketStart::DataStarted => {}
                DataPacketStart::Short => {
                    let most = DATA_HEAD - received.len();
                    let more = if self.is_within() { 0 } else { WRITE_HEAD };
                    return self.receive(most + more).map(Some);
                }
                DataPacketStart::Other => {
                    self.set_down();
                    return self.read_packet(now);
                }
            }
        }
        let Some((id, left)) = self.conn.coming() else {
            return Ok(None);
        };
        if self.segments.received().is_empty() && !self.segments.holds_more() {
            if left > 0
                && !self.passing.never
                && let Some(place) = self.place(id)
            {
                return self.pass(now, id, left, place).map(Some);
            }
            // Bytes behind the end of a WRITE begin the next one.
            let next = match left == 0 && !self.is_within() {
                true => DATA_HEAD + WRITE_HEAD,
                false => 0,
            };
            let n = self.receive(self.conn.behind() + next)?;
            if n == 0 {
                return Ok(Some(0));
            }
        }
        if left > 0 {
            // Bytes copied to memory are written after those in the pipe.
            self.set_down();
        }
        let some = self.segments.received().len();
        self.handle(now)?;
        self.turn_session(now, id);
        Ok(Some(some))
    }

    /// Handles the packet at the front, or reads its missing bytes and no others.
    fn read_packet(&mut self, now: Instant) -> Result<Option<usize>, ConnectionEndCause> {
        let before = self.segments.received().len();
        self.handle(now)?;
        let after = self.segments.received().len();
        match self.conn.wanted().checked_sub(after) {
            _ if after < before => Ok(Some(before - after)),
            Some(missing @ 1..) => self.receive(missing).map(Some),
            _ => Ok(None),
        }
    }

    /// True if the next data continue a WRITE.
    fn is_within(&mut self) -> bool {
        self.sessions.values_mut().any(SessionChannel::is_within)
    }

    fn takes_large(&mut self) -> bool {
        self.sessions.values_mut().any(SessionChannel::takes_large)
    }

    fn place(&mut self, id: ChannelId) -> Option<WriteTarget> {
        let channels = self.conn.channels();
        self.sessions.get_mut(&id)?.place(channels)
    }

    fn turn_session(&mut self, now: Instant, id: ChannelId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.turn(now, self.conn.channels());
        }
    }

    /// Reads at most `most` bytes; 0 if none are available.
    fn receive(&mut self, most: usize) -> Result<usize, ConnectionEndCause> {
        match self.segments.read_most(&self.stream, most, most) {
            Ok(0) => Err(ConnectionEndCause::Gone),
            Ok(n) => Ok(n),
            Err(e) => self.none_there(e),
        }
    }

    fn none_there(&mut self, e: io::Error) -> Result<usize, ConnectionEndCause> {
        match e.kind() {
            io::ErrorKind::WouldBlock => self.readable = false,
            io::ErrorKind::Interrupted => {}
            _ => return Err(e.into()),
        }
        Ok(0)
    }

    /// Moves some of the `left` bytes that are coming for this channel into the pipe.
    fn pass(
        &mut self,
        now: Instant,
        id: ChannelId,
        left: usize,
        place: WriteTarget,
    ) -> Result<usize, ConnectionEndCause> {
        let target = self.passing.target.as_ref();
        if target.is_some_and(|target| target.id != id) {
            // The pipe holds bytes of another channel, whose WRITE continues later.
            self.set_down();
        }
        let passage = match &mut self.passing.passage {
            Some(passage) => passage,
            none => match SplicePipe::new() {
                Ok(new) => none.insert(new),
                // No descriptors are left: read the data into memory instead.
                Err(_) => {
                    self.passing.never = true;
                    return Ok(0);
                }
            },
        };
        let n = match passage.fill(&self.stream, left.min(place.left())) {
            Ok(0) => return Err(ConnectionEndCause::Gone),
            Ok(n) => n,
            // The pipe may be full.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.passing.target.is_some() => {
                if ioctl_fionread(&self.stream).map_err(io::Error::from)? == 0 {
                    return self.none_there(e);
                }
                self.set_down();
                return Ok(0);
            }
            Err(e) => return self.none_there(e),
        };
        self.busy = Instant::now();
        self.passing.bytes += n as u64;
        self.conn.passed(n);
        self.conn.channels().consumed(now, id, n);
        let ends = place.left() == n;
        let (file, offset) = place.into_place();
        self.passing
            .target
            .get_or_insert(PipeTarget { id, file, offset });
        if let Some(session) = self.sessions.get_mut(&id) {
            session.placed(n, Ok(()));
        }
        if ends {
            self.set_down();
            self.turn_session(now, id);
        }
        Ok(n)
    }

    /// Empties the pipe into its file.
    fn set_down(&mut self) {
        let Some((target, passage)) = self
            .passing
            .target
            .take()
            .zip(self.passing.passage.as_mut())
        else {
            return;
        };
        let done = passage.empty(&target.file, target.offset);
        if let Some(session) = self.sessions.get_mut(&target.id) {
            session.placed(0, done);
        }
    }
}
