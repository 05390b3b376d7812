//! Large WRITEs that are neither enciphered nor authenticated go from the socket to their files, without coming to
//! memory.
//!
//! Behind a large WRITE no more is read of what the socket has than must be looked at: the head of a packet of data,
//! and what may be that of another WRITE that begins with it.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::ioctl_fionread;
use ssh::channel::ChannelId;
use ssh::{DATA_HEAD, Front};
use sys::SplicePipe;
use tracing::debug;

use super::connection::Connection;
use super::session::Session;
use crate::direct_write::Place;
use crate::error::ConnectionError;

/// A WRITE of SFTP in front of its data: lengths, number, request id, our handle and offset.
const WRITE_HEAD: usize = 29;

/// What a connection has for it.
#[derive(Default)]
pub(super) struct ZeroCopyWrite {
    /// There is one, once it was needed.
    passage: Option<SplicePipe>,
    /// What is in it goes there: as much at once as it holds, since file systems that give out many pages at once
    /// zero what a write has not of one.
    target: Option<Target>,
    /// All that went through it.
    bytes: u64,
    /// There is to be none: it can't be had, or the client sends copies, which are read with less work.
    pub(super) never: bool,
}

/// Where the bytes of a passage go.
struct Target {
    id: ChannelId,
    file: Arc<File>,
    offset: u64,
}

impl ZeroCopyWrite {
    /// Gives back what is kept for more.
    pub(super) fn trim(&mut self) {
        if self.target.is_none() {
            self.passage = None;
        }
    }
}

impl Drop for ZeroCopyWrite {
    fn drop(&mut self) {
        if self.bytes > 0 {
            debug!(bytes = self.bytes, "to files without coming to memory");
        }
    }
}

impl Connection<'_> {
    /// A step of it: how many bytes have come, of which none may be there. `None` where all is to be read that
    /// there is.
    pub(super) fn pass_by(&mut self, now: Instant) -> Result<Option<usize>, ConnectionError> {
        if self.conn.coming().is_none() {
            let may = self.conn.hears_clear() && !self.passing.never;
            if !may || !self.takes_large() {
                self.set_down();
                return Ok(None);
            }
            let received = self.segments.received();
            match self.conn.begin_data(now, received)? {
                Front::Begun => {}
                Front::Short => {
                    let most = DATA_HEAD - received.len();
                    let more = if self.is_within() { 0 } else { WRITE_HEAD };
                    return self.receive(most + more).map(Some);
                }
                Front::Other => {
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
            // What follows the last of a WRITE begins with the next one.
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
            // What comes to memory is written behind it.
            self.set_down();
        }
        let some = self.segments.received().len();
        self.handle(now)?;
        self.turn_session(now, id);
        Ok(Some(some))
    }

    /// Handles the packet at the front, or reads what is missing of it and nothing behind it.
    fn read_packet(&mut self, now: Instant) -> Result<Option<usize>, ConnectionError> {
        let before = self.segments.received().len();
        self.handle(now)?;
        let after = self.segments.received().len();
        match self.conn.wanted().checked_sub(after) {
            _ if after < before => Ok(Some(before - after)),
            Some(missing @ 1..) => self.receive(missing).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether the data that come next are more of a WRITE, and do not begin one.
    fn is_within(&mut self) -> bool {
        self.sessions.values_mut().any(Session::is_within)
    }

    fn takes_large(&mut self) -> bool {
        self.sessions.values_mut().any(Session::takes_large)
    }

    fn place(&mut self, id: ChannelId) -> Option<Place> {
        let channels = self.conn.channels();
        self.sessions.get_mut(&id)?.place(channels)
    }

    fn turn_session(&mut self, now: Instant, id: ChannelId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.turn(now, self.conn.channels());
        }
    }

    /// Reads at most so many bytes; none where none are there.
    fn receive(&mut self, most: usize) -> Result<usize, ConnectionError> {
        match self.segments.read_most(&self.stream, most, most) {
            Ok(0) => Err(ConnectionError::Gone),
            Ok(n) => Ok(n),
            Err(e) => self.none_there(e),
        }
    }

    fn none_there(&mut self, e: io::Error) -> Result<usize, ConnectionError> {
        match e.kind() {
            io::ErrorKind::WouldBlock => self.readable = false,
            io::ErrorKind::Interrupted => {}
            _ => return Err(e.into()),
        }
        Ok(0)
    }

    /// Some of the `left` bytes that are coming for this channel go to their place.
    fn pass(
        &mut self,
        now: Instant,
        id: ChannelId,
        left: usize,
        place: Place,
    ) -> Result<usize, ConnectionError> {
        let target = self.passing.target.as_ref();
        if target.is_some_and(|target| target.id != id) {
            // That of another channel, whose WRITE goes on later.
            self.set_down();
        }
        let passage = match &mut self.passing.passage {
            Some(passage) => passage,
            none => match SplicePipe::new() {
                Ok(new) => none.insert(new),
                // There are no descriptors: they come to memory, as others do.
                Err(_) => {
                    self.passing.never = true;
                    return Ok(0);
                }
            },
        };
        let n = match passage.fill(&self.stream, left.min(place.left)) {
            Ok(0) => return Err(ConnectionError::Gone),
            Ok(n) => n,
            // It may be full.
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
        let ends = place.left == n;
        self.passing.target.get_or_insert(Target {
            id,
            file: place.file,
            offset: place.offset,
        });
        if let Some(session) = self.sessions.get_mut(&id) {
            session.placed(n, Ok(()));
        }
        if ends {
            self.set_down();
            self.turn_session(now, id);
        }
        Ok(n)
    }

    /// Writes what is on its way to a file.
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
