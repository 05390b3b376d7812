use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::Timespec;
use sftp::{
    Init, MARKER_PROTOCOL, OPENSSH_EXTENSIONS, OUR_EXTENSIONS, Piece, Request, Splitter, Version,
    frame,
};
use wire::{Field, Pool, Rest};

use crate::Export;
use crate::answer::{LONGEST, LONGEST_DATA, LONGEST_WRITE, Session, TransferCounters};
use crate::answers::{Answer, Answers, DATA_HEADER};
use crate::blocking_pool::BlockingPool;
use crate::direct_write::LargeWrites;
use crate::error::StreamError;
use crate::handles::Allowance;
use crate::incoming::IncomingStream;

/// Requests wait while there are so many bytes of answers, or while so many wait for a channel's window: two of the
/// longest, so that what is sealed was read just before.
pub(crate) const ANSWERS: usize = 384 << 10;
/// Requests are carried out for so long before those answers are sent that there are: sums of a
/// large file take seconds, and whoever waits for the first of them has something to do meanwhile.
const TURN: Duration = Duration::from_millis(5);
/// Answers wait for those behind them while they have fewer bytes, ...
const FEW: usize = 16 * 1024;
/// ... and no longer than this. sshd seals and sends whatever it finds: ten answers of small files
/// at once cost it, and the client, hardly more than one.
const WAITS: Duration = Duration::from_millis(2);
/// Packets that are kept for further answers.
const KEPT: usize = 2;

/// The SFTP server of one client, who is answered in the order of the requests, which clients
/// that know sftp-server rely on.
pub struct Server<'e> {
    pub(crate) session: Session<'e>,
    pub(crate) splitter: Splitter,
    greeted: bool,
    answers: Answers,
    /// A request that waits for those before it, with what a WRITE has not in itself.
    pub(crate) held: Option<(Bytes, Vec<Bytes>)>,
    pub(crate) large: LargeWrites,
}

impl<'e> Server<'e> {
    /// Before the client has said anything.
    pub fn new(export: &'e Export) -> Self {
        // A packet for each answer: nobody cuts them.
        let slot = LONGEST_DATA as usize + DATA_HEADER;
        Self::answering_in(Pool::new(slot, KEPT), slot, export, usize::MAX)
    }

    /// The same, whose files are read into packets of `pool` with up to `slot` bytes each, and with
    /// at most so many files and directories open at once.
    pub fn answering_in(
        pool: Pool,
        slot: usize,
        export: &'e Export,
        handles: impl Into<Allowance>,
    ) -> Self {
        Self {
            session: Session::new(export, handles.into()),
            splitter: Splitter::streaming_writes(LONGEST, LONGEST_WRITE),
            greeted: false,
            answers: Answers::new(pool, slot),
            held: None,
            large: LargeWrites::default(),
        }
    }

    /// Requests that wait for a disk are carried out beside others. With `told`, [`Server::bell`] says when
    /// that has ended, and [`Server::handle`] is to be called then; otherwise it waits for them.
    pub fn several_at_once(&mut self, told: bool) {
        self.session.is_left = !told;
        match &mut self.session.aside {
            Some(aside) if !told => aside.wait(),
            aside => *aside = Some(BlockingPool::new(told)),
        }
    }

    /// What becomes readable when a request that was carried out aside has ended.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.session.aside.as_ref()?.bell()
    }

    /// Whether requests are carried out aside, or wait for those.
    pub fn awaits(&self) -> bool {
        self.session.awaits() || self.held.is_some()
    }

    /// Whether [`Server::handle`] has something to do without anything new of the client.
    pub fn goes_on(&self) -> bool {
        let news = self
            .session
            .aside
            .as_ref()
            .is_some_and(BlockingPool::has_news);
        news || self.splitter.is_at_end() || (self.held.is_some() && !self.waits())
    }

    /// Whether what is held, if anything is, waits for others.
    fn waits(&self) -> bool {
        self.session.awaits() || (self.held.is_some() && self.session.is_still_sent())
    }

    /// Whether nothing goes on before one of them has ended.
    pub fn is_stuck(&self) -> bool {
        let full = self.answers.len() >= ANSWERS;
        self.waits() && !self.goes_on() && (full || self.held.is_some())
    }

    /// Carries out the requests in `received`, until 384 KiB of answers wait to be sent, or
    /// any for 5 ms: the rest stays in `received` for the next call then. The last files of it that
    /// are to be durable may be held ([`Server::holds`]).
    ///
    /// # Errors
    /// The client does not speak SFTP. What was answered stands.
    pub fn handle(&mut self, received: &mut Bytes) -> Result<(), StreamError> {
        self.session.parent = None;
        self.session.hear(&mut self.answers);
        if let Some((message, data)) = self.held.take() {
            self.answer(message, data)?;
        }
        let begun = Instant::now();
        let waits = |answers: &Answers| match answers.len() {
            0 => false,
            len => len >= ANSWERS || begun.elapsed() >= TURN,
        };
        while self.held.is_none() && !waits(&self.answers) {
            let piece = self.splitter.next(received);
            match piece.map_err(StreamError::Protocol)? {
                Some(Piece::Message(message)) if self.greeted => {
                    self.answer(message, Vec::new())?
                }
                Some(Piece::Message(message)) => self.greet(&message)?,
                Some(Piece::Write { head, data }) if self.greeted => self.answer(head, data)?,
                Some(Piece::Write { .. }) => return Err(StreamError::NoInit),
                // It comes from splitters that stream data.
                Some(Piece::Data { .. }) => {}
                None => break,
            }
        }
        Ok(())
    }

    /// Whether small files are held, to be made durable together with those behind them.
    pub fn holds(&self) -> bool {
        !self.session.unsynced.is_empty()
    }

    /// Makes them durable and answers: nothing more of the client is at hand.
    pub fn end_set(&mut self) {
        self.session.end_set(&mut self.answers);
    }

    /// Takes out the answers in their order.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn take_answers<E>(
        &mut self,
        to: impl FnMut(Answer<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.answers.take(to)
    }

    /// Whether a request has begun to arrive and its end has not: the client has sent it, so that
    /// another answer follows soon.
    pub fn expects_more(&self) -> bool {
        self.splitter.is_within()
    }

    /// What the client has moved so far.
    pub fn moved(&self) -> TransferCounters {
        self.session.moved
    }

    /// Gives back the memory that is kept for files that are sent.
    pub fn trim(&mut self) {
        self.session.windows.trim();
    }

    /// Whether a file or a directory is open.
    pub fn has_open(&self) -> bool {
        self.session.handles.has_open()
    }

    fn greet(&mut self, message: &Bytes) -> Result<(), StreamError> {
        Init::decode(message).map_err(|_| StreamError::NoInit)?;
        self.greeted = true;
        let mut pairs = Vec::new();
        for (name, data) in OPENSSH_EXTENSIONS.iter().chain(&OUR_EXTENSIONS) {
            name.as_bytes().write(&mut pairs);
            data.as_bytes().write(&mut pairs);
        }
        let version = Version {
            version: 3,
            extensions: Rest(&pairs),
        };
        frame(self.answers.bytes(), |out| version.encode(out));
        Ok(())
    }

    fn answer(&mut self, message: Bytes, data: Vec<Bytes>) -> Result<(), StreamError> {
        let (id, request) = Request::decode(&message).map_err(StreamError::Message)?;
        self.note_length(&request, &data);
        if self.session.lets(&request) {
            self.session.answer(id, request, &data, &mut self.answers);
        } else {
            self.held = Some((message, data));
        }
        Ok(())
    }
}

/// Says that this is longhaul, to a client of ours that speaks version `theirs` of what follows:
/// the newest that both speak is named.
///
/// # Errors
/// Those of `output`.
pub fn show_marker(output: &mut impl Write, theirs: u32, software: &str) -> io::Result<()> {
    let protocol = theirs.min(MARKER_PROTOCOL);
    output.write_all(&sftp::marker(protocol, software))?;
    output.flush()
}

/// Serves one client until its stream ends.
///
/// # Errors
/// The client does not speak SFTP, or one of the streams broke. What was answered stands.
pub fn stdio(input: impl AsFd, mut output: impl Write, export: &Export) -> Result<(), StreamError> {
    let incoming = IncomingStream::new(input.as_fd());
    let mut server = Server::new(export);
    server.session.incoming = Some(&incoming);
    server.several_at_once(false);
    // Since when answers wait, or are being made: one that took long, as the first part of a tree whose
    // files are counted, would leave in one packet of sshd's with those behind it.
    let mut since = None;
    loop {
        let mut received = incoming.next().map_err(StreamError::Io)?;
        if received.is_empty() {
            // What waits belongs to requests that came whole.
            server.handle(&mut received)?;
            server.end_set();
            return send(&mut server, &mut output).map(|_| ());
        }
        loop {
            let waiting = *since.get_or_insert_with(Instant::now);
            if let Err(error) = server.handle(&mut received) {
                // What was answered stands, whether or not it can be told.
                server.end_set();
                let _ = send(&mut server, &mut output);
                return Err(error);
            }
            // While one file is made durable, more of them come: a set grows by itself.
            if received.is_empty() && server.holds() && !comes(&server, &incoming, WAITS) {
                send(&mut server, &mut output)?;
                server.end_set();
            }
            let few = received.is_empty() && server.answers.len() < FEW;
            if few && comes_soon(&server, &incoming, waiting) {
                break;
            }
            since = None;
            if !send(&mut server, &mut output)? {
                break;
            }
        }
    }
}

/// Whether more requests are here before the answers that wait `since` then have waited too long.
fn comes_soon(server: &Server<'_>, incoming: &IncomingStream<'_>, since: Instant) -> bool {
    if server.answers.len() == 0 {
        return false;
    }
    let Some(left) = WAITS.checked_sub(since.elapsed()) else {
        return false;
    };
    comes(server, incoming, left)
}

/// Whether more requests are here; for one that has begun to come it waits so long.
fn comes(server: &Server<'_>, incoming: &IncomingStream<'_>, patience: Duration) -> bool {
    let left = match server.expects_more() {
        true => patience,
        false => Duration::ZERO,
    };
    let left = Timespec::try_from(left).unwrap_or_default();
    incoming.has_kept() || incoming.comes_within(&left)
}

/// Sends the answers that there are; false where there are none.
fn send(server: &mut Server<'_>, output: &mut impl Write) -> Result<bool, StreamError> {
    server.session.hear(&mut server.answers);
    let mut any = false;
    let written = server.take_answers(|answer| {
        any = true;
        match answer {
            Answer::Bytes(bytes) => output.write_all(bytes),
            Answer::Block(block) => {
                let mut packets = block.packets();
                packets.try_for_each(|packet| output.write_all(packet.payload()))
            }
        }
    });
    written
        .and_then(|()| output.flush())
        .map_err(StreamError::Io)?;
    Ok(any)
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
