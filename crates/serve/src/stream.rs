use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::Timespec;
use sftp::{
    Init, MARKER_PROTOCOL, OPENSSH_EXTENSIONS, OUR_EXTENSIONS, Request, SplitOutput, Splitter,
    Version, frame,
};
use wire::{Field, Pool, Rest};

use crate::Export;
use crate::answer::{LONGEST, LONGEST_DATA, LONGEST_WRITE, Session, TransferCounters};
use crate::answers::{AnswerChunk, AnswerQueue, DATA_HEADER};
use crate::blocking_pool::BlockingPool;
use crate::direct_write::LargeWrites;
use crate::error::StreamError;
use crate::handles::Allowance;
use crate::incoming::IncomingStream;

/// Bytes of unsent answers, or of answers that wait for a channel's window, at which requests wait.
/// Two of the longest answers fit, so that data are encrypted soon after they are read.
pub(crate) const ANSWERS: usize = 384 << 10;
/// Time after which existing answers are sent before further requests are carried out: checksums of
/// a large file take seconds, and the client can use the first of them meanwhile.
const TURN: Duration = Duration::from_millis(5);
/// Bytes of answers below which they wait for further ones.
const FEW: usize = 16 * 1024;
/// Longest time for which answers wait for further ones. sshd encrypts and sends whatever it finds:
/// for it and the client, ten answers about small files at once cost hardly more than one.
const WAITS: Duration = Duration::from_millis(2);
/// Number of packets kept for further answers.
const KEPT: usize = 2;

/// The SFTP server of one client. Answers have the order of the requests, which clients that know
/// sftp-server rely on.
pub struct Server<'e> {
    pub(crate) session: Session<'e>,
    pub(crate) splitter: Splitter,
    greeted: bool,
    answers: AnswerQueue,
    /// A request that waits for earlier ones, with the part of a WRITE that is not in the message.
    pub(crate) held: Option<(Bytes, Vec<Bytes>)>,
    pub(crate) large: LargeWrites,
}

impl<'e> Server<'e> {
    /// Creates a server that expects INIT.
    pub fn new(export: &'e Export) -> Self {
        // One packet per answer, because nobody splits them.
        let slot = LONGEST_DATA as usize + DATA_HEADER;
        Self::answering_in(Pool::new(slot, KEPT), slot, export, usize::MAX)
    }

    /// Creates a server that reads files into packets of `pool` with up to `slot` bytes each, and
    /// has at most `handles` files and directories open at once.
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
            answers: AnswerQueue::new(pool, slot),
            held: None,
            large: LargeWrites::default(),
        }
    }

    /// Enables the blocking pool for requests that wait for a disk. With `told`, [`Server::bell`]
    /// signals their completion, and [`Server::handle`] must be called then; otherwise it waits for
    /// them.
    pub fn several_at_once(&mut self, told: bool) {
        self.session.is_left = !told;
        match &mut self.session.aside {
            Some(aside) if !told => aside.wait(),
            aside => *aside = Some(BlockingPool::new(told)),
        }
    }

    /// Descriptor that becomes readable when a request in the blocking pool has finished.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.session.aside.as_ref()?.bell()
    }

    /// True if requests are in the blocking pool or wait for one that is.
    pub fn awaits(&self) -> bool {
        self.session.awaits() || self.held.is_some()
    }

    /// True if [`Server::handle`] has work that needs no new input.
    pub fn goes_on(&self) -> bool {
        let news = self
            .session
            .aside
            .as_ref()
            .is_some_and(BlockingPool::has_news);
        news || self.splitter.is_at_end() || (self.held.is_some() && !self.waits())
    }

    /// True if a held request, or the next one, must wait for others.
    fn waits(&self) -> bool {
        self.session.awaits() || (self.held.is_some() && self.session.is_still_sent())
    }

    /// True if all further work waits for the blocking pool.
    pub fn is_stuck(&self) -> bool {
        let full = self.answers.len() >= ANSWERS;
        self.waits() && !self.goes_on() && (full || self.held.is_some())
    }

    /// Carries out the requests in `received` until 384 KiB of answers wait, or any answer after 5
    /// ms; the rest stays in `received` for the next call. The last small files that are to be
    /// durable may be held ([`Server::holds`]).
    ///
    /// # Errors
    /// The client does not speak SFTP. Answers to earlier requests are still valid.
    pub fn handle(&mut self, received: &mut Bytes) -> Result<(), StreamError> {
        self.session.parent = None;
        self.session.hear(&mut self.answers);
        if let Some((message, data)) = self.held.take() {
            self.answer(message, data)?;
        }
        let begun = Instant::now();
        let waits = |answers: &AnswerQueue| match answers.len() {
            0 => false,
            len => len >= ANSWERS || begun.elapsed() >= TURN,
        };
        while self.held.is_none() && !waits(&self.answers) {
            let piece = self.splitter.next(received);
            match piece.map_err(StreamError::Protocol)? {
                Some(SplitOutput::Message(message)) if self.greeted => {
                    self.answer(message, Vec::new())?
                }
                Some(SplitOutput::Message(message)) => self.greet(&message)?,
                Some(SplitOutput::Write { head, data }) if self.greeted => {
                    self.answer(head, data)?
                }
                Some(SplitOutput::Write { .. }) => return Err(StreamError::NoInit),
                // Data pieces come only from splitters that stream data.
                Some(SplitOutput::Data { .. }) => {}
                None => break,
            }
        }
        Ok(())
    }

    /// True if small files are held, to be made durable together with later ones.
    pub fn holds(&self) -> bool {
        !self.session.unsynced.is_empty()
    }

    /// Makes held files durable and answers them, when no more input is available.
    pub fn end_set(&mut self) {
        self.session.end_set(&mut self.answers);
    }

    /// Passes the answers to `to` in their order.
    ///
    /// # Errors
    /// The errors of `to`.
    pub fn take_answers<E>(
        &mut self,
        to: impl FnMut(AnswerChunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.answers.take(to)
    }

    /// True if part of a request has arrived: the rest is on its way, so another answer follows
    /// soon.
    pub fn expects_more(&self) -> bool {
        self.splitter.is_within()
    }

    /// Transfer counters of the client so far.
    pub fn moved(&self) -> TransferCounters {
        self.session.moved
    }

    /// Gives back the mappings of files that were sent.
    pub fn trim(&mut self) {
        self.session.windows.trim();
    }

    /// True if a file or directory is open.
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

/// Identifies this server as longhaul to a longhaul client that speaks version `theirs` of the
/// protocol that follows; sends the newest version that both speak.
///
/// # Errors
/// The errors of `output`.
pub fn show_marker(output: &mut impl Write, theirs: u32, software: &str) -> io::Result<()> {
    let protocol = theirs.min(MARKER_PROTOCOL);
    output.write_all(&sftp::marker(protocol, software))?;
    output.flush()
}

/// Serves one client until its stream ends.
///
/// # Errors
/// The client does not speak SFTP, or one of the streams failed. Answers to earlier requests were
/// sent if possible.
pub fn stdio(input: impl AsFd, mut output: impl Write, export: &Export) -> Result<(), StreamError> {
    let incoming = IncomingStream::new(input.as_fd());
    let mut server = Server::new(export);
    server.session.incoming = Some(&incoming);
    server.several_at_once(false);
    // Time since which answers wait or are being made. An answer that took long, as the first part
    // of a counted tree, leaves at once; otherwise it would share a packet of sshd's with later
    // ones.
    let mut since = None;
    loop {
        let mut received = incoming.next().map_err(StreamError::Io)?;
        if received.is_empty() {
            // Remaining answers belong to complete requests.
            server.handle(&mut received)?;
            server.end_set();
            return send(&mut server, &mut output).map(|_| ());
        }
        loop {
            let waiting = *since.get_or_insert_with(Instant::now);
            if let Err(error) = server.handle(&mut received) {
                // Earlier requests stay carried out, even if their answers cannot be sent.
                server.end_set();
                let _ = send(&mut server, &mut output);
                return Err(error);
            }
            // While one file is made durable, more arrive, so groups grow by themselves.
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

/// True if more requests arrive before answers that wait since `since` have waited for [`WAITS`].
fn comes_soon(server: &Server<'_>, incoming: &IncomingStream<'_>, since: Instant) -> bool {
    if server.answers.len() == 0 {
        return false;
    }
    let Some(left) = WAITS.checked_sub(since.elapsed()) else {
        return false;
    };
    comes(server, incoming, left)
}

/// True if more requests are available; waits up to `patience` for the rest of one that has begun
/// to arrive.
fn comes(server: &Server<'_>, incoming: &IncomingStream<'_>, patience: Duration) -> bool {
    let left = match server.expects_more() {
        true => patience,
        false => Duration::ZERO,
    };
    let left = Timespec::try_from(left).unwrap_or_default();
    incoming.has_kept() || incoming.comes_within(&left)
}

/// Sends the available answers; false if there are none.
fn send(server: &mut Server<'_>, output: &mut impl Write) -> Result<bool, StreamError> {
    server.session.hear(&mut server.answers);
    let mut any = false;
    let written = server.take_answers(|answer| {
        any = true;
        match answer {
            AnswerChunk::Bytes(bytes) => output.write_all(bytes),
            AnswerChunk::Block(block) => {
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
