//! The SFTP server of one client: requests in, answers out.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;
use sftp::{
    Init, MARKER_PROTOCOL, MessageSplitter, MessageSplitterOutput, OPENSSH_EXTENSIONS,
    OUR_EXTENSIONS, Request, Version, frame,
};
use wire::{Field, PacketPool, RemainingBytes};

use super::answers::{AnswerChunk, AnswerQueue, DATA_HEADER};
use super::direct_write::{LargeWritePredictor, WriteTarget};
use super::handles::OpenFileLimit;
use super::incoming::IncomingStream;
use super::remaining_requests::RemainingRequests;
use super::session::{LONGEST, LONGEST_DATA, LONGEST_WRITE, SftpSession};
use super::transfer_log::TransferCounters;
use crate::ExportedTree;
use crate::error::ServeError;

/// Bytes of unsent answers, or of answers that wait for a channel's window, at which requests wait.
/// Two of the longest answers fit, so that data are encrypted soon after they are read.
pub(crate) const ANSWERS: usize = 384 << 10;
/// Time after which existing answers are sent before further requests are carried out: checksums of
/// a large file take seconds, and the client can use the first of them meanwhile.
const TURN: Duration = Duration::from_millis(5);
/// Number of packets kept for further answers.
const KEPT: usize = 2;

/// The SFTP server of one client. Answers have the order of the requests, which clients that know
/// sftp-server rely on.
pub struct SftpServer<'e> {
    session: SftpSession<'e>,
    splitter: MessageSplitter,
    greeted: bool,
    answers: AnswerQueue,
    /// A request that waits for earlier ones, with the part of a WRITE that is not in the message.
    held: Option<(Bytes, Vec<Bytes>)>,
    large: LargeWritePredictor,
    remaining: RemainingRequests,
    /// Reads the clock.
    clock: fn() -> Instant,
}

impl<'e> SftpServer<'e> {
    /// Creates a server that expects INIT.
    pub fn new(export: &'e ExportedTree) -> Self {
        // One packet per answer, because nobody splits them.
        let slot = LONGEST_DATA as usize + DATA_HEADER;
        Self::answering_in(PacketPool::new(slot, KEPT), slot, export, usize::MAX)
    }

    /// Creates a server that reads files into packets of `pool` with up to `slot` bytes each, and
    /// has at most `handles` files and directories open at once.
    pub fn answering_in(
        pool: PacketPool,
        slot: usize,
        export: &'e ExportedTree,
        handles: impl Into<OpenFileLimit>,
    ) -> Self {
        Self {
            session: SftpSession::new(export, handles.into()),
            splitter: MessageSplitter::streaming_writes(LONGEST, LONGEST_WRITE),
            greeted: false,
            answers: AnswerQueue::new(pool, slot),
            held: None,
            large: LargeWritePredictor::default(),
            remaining: RemainingRequests::All,
            clock: Instant::now,
        }
    }

    /// Replaces the clock by one that does not depend on the load of the machine.
    #[cfg(test)]
    pub(crate) fn with_clock(self, clock: fn() -> Instant) -> Self {
        Self { clock, ..self }
    }

    /// Current time.
    pub(super) fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Enables the blocking pool for requests that wait for a disk. With `told`,
    /// [`SftpServer::waker`] signals their completion, and [`SftpServer::handle`] must be called
    /// then; otherwise it waits for them.
    pub fn several_at_once(&mut self, told: bool) {
        self.session.use_pool(told);
    }

    /// Stops all work that serves only the answers, because the client has disconnected; further
    /// calls of [`SftpServer::handle`] carry out received requests that change something. If a
    /// long copy was under way, it ends incomplete and nothing behind it is carried out.
    pub(crate) fn leave(&mut self) {
        self.remaining = match self.session.leave() {
            true => RemainingRequests::None,
            false => RemainingRequests::Changes,
        };
    }

    /// Descriptor that becomes readable when a request in the blocking pool has finished.
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.session.waker()
    }

    /// True if requests are in the blocking pool or wait for one that is.
    pub fn awaits(&self) -> bool {
        self.session.files().awaits() || self.held.is_some()
    }

    /// True if [`SftpServer::handle`] has work that needs no new input.
    pub fn goes_on(&self) -> bool {
        let news = self.session.files().has_news();
        news || self.splitter.is_at_end() || (self.held.is_some() && !self.waits())
    }

    /// True if a held request, or the next one, must wait for others.
    fn waits(&self) -> bool {
        let files = self.session.files();
        files.awaits() || (self.held.is_some() && files.is_still_sent())
    }

    /// True if all further work waits for the blocking pool.
    pub fn is_stuck(&self) -> bool {
        let full = self.answers.len() >= ANSWERS;
        self.waits() && !self.goes_on() && (full || self.held.is_some())
    }

    /// Carries out the requests in `received` until 384 KiB of answers wait, or any answer after 5
    /// ms; the rest stays in `received` for the next call. The last small files that are to be
    /// durable may be held ([`SftpServer::holds`]).
    ///
    /// # Errors
    /// The client does not speak SFTP. Answers to earlier requests are still valid.
    pub fn handle(&mut self, received: &mut Bytes) -> Result<(), ServeError> {
        self.session.begin_turn(&mut self.answers);
        if self.drops(received) {
            return Ok(());
        }
        if let Some((message, data)) = self.held.take() {
            self.answer(message, data)?;
        }
        let clock = self.clock;
        let over = clock() + TURN;
        let waits = |answers: &AnswerQueue| match answers.len() {
            0 => false,
            len => len >= ANSWERS || clock() >= over,
        };
        while self.held.is_none()
            && self.remaining != RemainingRequests::None
            && !waits(&self.answers)
        {
            let piece = self.splitter.next(received);
            match piece.map_err(ServeError::Protocol)? {
                Some(MessageSplitterOutput::Message(message)) if self.greeted => {
                    self.answer(message, Vec::new())?
                }
                Some(MessageSplitterOutput::Message(message)) => self.greet(&message)?,
                Some(MessageSplitterOutput::Write { head, data }) if self.greeted => {
                    self.answer(head, data)?
                }
                Some(MessageSplitterOutput::Write { .. }) => return Err(ServeError::NoInit),
                // Data pieces come only from splitters that stream data.
                Some(MessageSplitterOutput::Data { .. }) => {}
                None => break,
            }
        }
        self.drops(received);
        Ok(())
    }

    /// Drops what is received if nothing more is to be carried out.
    fn drops(&mut self, received: &mut Bytes) -> bool {
        let drops = self.remaining == RemainingRequests::None;
        if drops {
            self.held = None;
            received.clear();
        }
        drops
    }

    /// True if small files are held, to be made durable together with later ones.
    pub fn holds(&self) -> bool {
        self.session.holds()
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
        self.session.moved()
    }

    /// Gives back the mappings of files that were sent.
    pub fn trim(&mut self) {
        self.session.trim();
    }

    /// True if a file or directory is open.
    pub fn has_open(&self) -> bool {
        self.session.has_open()
    }

    /// Has `incoming` read further input while a request takes long.
    pub(super) fn read_ahead(&mut self, incoming: &'e IncomingStream<'e>) {
        self.session.read_ahead(incoming);
    }

    /// Puts the results of the blocking pool into their places among the answers.
    pub(super) fn hear(&mut self) {
        self.session.hear(&mut self.answers);
    }

    /// Bytes of the answers that are not yet taken.
    pub(super) fn waiting(&self) -> usize {
        self.answers.len()
    }

    /// True if one of the last requests was a WRITE with much data.
    pub(crate) fn takes_large(&self) -> bool {
        self.large.are_expected()
    }

    /// True if the next bytes are data of a WRITE that has begun.
    pub(crate) fn is_within(&self) -> bool {
        self.splitter.arriving().is_some()
    }

    /// Target of the next data, if they may go there directly: they belong to a WRITE to a file,
    /// none of them are in memory, and nothing has to be carried out before.
    pub(crate) fn place(&mut self) -> Option<WriteTarget> {
        if self.held.is_some() {
            return None;
        }
        let (request, left) = self.splitter.arriving()?;
        self.session.target(&request, left).filter(|_| left > 0)
    }

    /// Records that `n` more bytes are on their way to the file, or that an earlier write failed.
    pub(crate) fn placed(&mut self, n: usize, done: Result<(), Errno>) {
        self.splitter.skip(n);
        self.session.note_placed(n, done);
    }

    /// Deadline of requests in the blocking pool.
    #[cfg(test)]
    pub(super) fn deadline(&self) -> Option<super::pooled_requests::LongRequestDeadline> {
        self.session.files().deadline()
    }

    fn greet(&mut self, message: &Bytes) -> Result<(), ServeError> {
        Init::decode(message).map_err(|_| ServeError::NoInit)?;
        self.greeted = true;
        let mut pairs = Vec::new();
        for (name, data) in OPENSSH_EXTENSIONS.iter().chain(&OUR_EXTENSIONS) {
            name.as_bytes().write(&mut pairs);
            data.as_bytes().write(&mut pairs);
        }
        let version = Version {
            version: 3,
            extensions: RemainingBytes(&pairs),
        };
        frame(self.answers.bytes(), |out| version.encode(out));
        Ok(())
    }

    fn answer(&mut self, message: Bytes, data: Vec<Bytes>) -> Result<(), ServeError> {
        let (id, request) = Request::decode(&message).map_err(ServeError::Message)?;
        if !self.remaining.admit(&request) {
            return Ok(());
        }
        let placed = self.session.files().placed();
        self.large.note(&request, &data, placed);
        if self.session.files().lets(&request) {
            let copies = matches!(request, Request::CopyData { .. });
            self.session.answer(id, request, &data, &mut self.answers);
            // The copy may have ended incomplete, whose file no later request may name.
            if copies && self.session.is_abandoned() {
                self.remaining = RemainingRequests::None;
            }
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
