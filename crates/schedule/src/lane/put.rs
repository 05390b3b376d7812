use std::collections::BTreeMap;
use std::path::PathBuf;

use sftp::packed::LEAST_FILE;
use sftp::{Handle, OpenFlags, Reply, Request, Status};
use wire::Block;

use super::core::{LaneContext, RequestTag};
use super::messages::{self, refused, remote};
use super::put_owner::OwnerOutcome;
use super::replace::Replace;
use super::task::{Misprediction, TaskStep};
use crate::{
    Attributes, ByteRange, DiskReply, DiskRequest, Fault, FileMeta, FileState, JobId, LaneEvent,
    PutOptions,
};

/// Uploads one file, or a part of one.
///
/// The temporary is opened beside the target as soon as the source's first bytes are read, while
/// the LSTAT of the target is still in flight. Its result is applied before the rename; if it
/// requires another way (a symlink, a device), the temporary is removed and the job starts over.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) id: JobId,
    pub(super) part: UploadPart,
    pub(super) options: PutOptions,
    /// Final path of the file: the target, or the target of a symlink.
    pub(super) path: Vec<u8>,
    pub(super) target: UploadTarget,
    pub(super) tries: u8,
    pub(super) hops: u8,
    pub(super) attempt: Attempt,
    /// The file needs several requests: the server said so, or the file is not small.
    pub(super) plain: bool,
    /// First cause of failure.
    pub(super) fault: Option<Fault>,
    /// Another lane has completed the range.
    pub(super) abandoned: bool,
    /// Reason to start over once nothing of this attempt is left.
    pub(super) redo: Option<RetryReason>,
    /// Status with which OPEN of the temporary was refused; the final name is tried then.
    pub(super) refused_temp: Option<Status>,
    /// The server says that nothing exists at the target.
    pub(super) missing: bool,
    /// A symlink to be replaced exists at the target.
    pub(super) is_link: bool,
    /// Create the temporary without the flag EXCL.
    pub(super) unexclusive: bool,
    /// The existing file is read-only: an OPEN shows if the server lets it be written.
    pub(super) probing: bool,
    /// The OPEN of the read-only file succeeded, or the file is replaced in any case.
    pub(super) writable: bool,
    /// OPEN waits for the LSTAT of the target.
    pub(super) waits: bool,
    /// Bytes reported as confirmed, over all attempts.
    told: u64,
    /// Requests without an answer, of the server (`pending`) and the disk (`disk_pending`).
    pub(super) pending: usize,
    pub(super) disk_pending: usize,
    state: FileState,
}

/// Part of the upload that this job does.
#[derive(Debug)]
pub(super) enum UploadPart {
    /// The whole file.
    Whole { source: PathBuf },
    /// Creates the temporary and writes the first `len` bytes.
    Head {
        file: JobId,
        attributes: Attributes,
        len: u64,
        /// The job writes the whole file and sets its attributes: no other job opens it.
        alone: bool,
        /// Other jobs know the temporary.
        announced: bool,
    },
    /// A range of the file.
    Range {
        file: JobId,
        attributes: Attributes,
        span: ByteRange,
    },
    /// Only an fsync.
    Sync,
    /// Attributes and rename.
    Finish {
        attributes: Attributes,
        cut: Option<u64>,
        /// The attributes are set already.
        set: bool,
    },
}

/// State of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadTarget {
    /// The LSTAT is in flight.
    Unknown,
    /// Nothing exists at the target.
    New,
    /// A regular file exists; its attributes are kept, as scp does.
    Existing(ReplacedAttributes),
    /// Write in place, opened with these flags.
    Direct(OpenFlags),
}

/// Attributes of the replaced file, as far as the server sends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplacedAttributes {
    /// Permission bits.
    pub(super) mode: Option<u32>,
    pub(super) owner: Option<(u32, u32)>,
}

/// Reason why an attempt is repeated in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryReason {
    /// The temporary's name may have been taken; the protocol does not tell.
    NewName,
    /// The target is a symlink.
    Follow,
    /// Write in place.
    Direct(OpenFlags),
    /// Write in place, since no temporary can be created or renamed.
    InPlace,
    /// Check if the existing file may be written.
    Probe,
    /// Use the requests of stock SFTP.
    Plainly,
}

/// One attempt at sending the file.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) temp: Option<Vec<u8>>,
    pub(super) meta: FileMeta,
    pub(super) first: Option<Block>,
    /// Minimum number of bytes from which the first block is compressed (`packs`), and its size
    /// before compression if it was (`packed`).
    pub(super) packs: Option<u64>,
    pub(super) packed: Option<u64>,
    pub(super) handle: Option<Handle>,
    pub(super) opening: bool,
    pub(super) opened: bool,
    /// OPEN failed, so later requests on the predicted handle failed too.
    pub(super) refused: bool,
    pub(super) prefetched: bool,
    pub(super) source_open: bool,
    pub(super) next_read: u64,
    pub(super) reads: BTreeMap<u64, u64>,
    /// Data read out of order, for a server that may accept data only in order, with their
    /// decompressed size.
    pub(super) held: BTreeMap<u64, (Block, Option<u64>)>,
    /// First offset that was not written yet.
    pub(super) next_write: u64,
    pub(super) end: Option<u64>,
    pub(super) written_to: u64,
    /// Holes were skipped.
    pub(super) skipped: bool,
    pub(super) writes: usize,
    /// Bytes answered OK or skipped.
    pub(super) confirmed: u64,
    pub(super) closing: bool,
    pub(super) closed: bool,
    pub(super) synced: bool,
    pub(super) mode_set: bool,
    /// Permission bits in OPEN.
    pub(super) mode: u32,
    pub(super) owner: OwnerOutcome,
    pub(super) removing: bool,
    pub(super) renaming: bool,
    pub(super) replace: Option<Replace>,
    /// The old file is moved aside, or may be.
    pub(super) aside: bool,
}

/// Size in bytes up to which a file is read with one disk request and sent in one flight.
pub(super) const FIRST: usize = 32 * 1024;

impl Put {
    pub(super) fn new(id: JobId, part: UploadPart, path: Vec<u8>, options: PutOptions) -> Self {
        let target = match (options.inplace, options.fresh) {
            (true, _) => {
                UploadTarget::Direct(OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC)
            }
            (false, true) => UploadTarget::New,
            (false, false) => UploadTarget::Unknown,
        };
        Self {
            id,
            part,
            options,
            path,
            target,
            tries: 0,
            hops: 0,
            attempt: Attempt::default(),
            plain: false,
            fault: None,
            abandoned: false,
            redo: None,
            refused_temp: None,
            missing: false,
            is_link: false,
            unexclusive: false,
            probing: false,
            writable: false,
            waits: false,
            told: 0,
            pending: 0,
            disk_pending: 0,
            state: FileState::Planned,
        }
    }

    pub(super) fn start(&mut self, core: &mut LaneContext) {
        match self.part {
            UploadPart::Finish { .. } => return self.start_finish(core),
            UploadPart::Sync => return self.start_sync(core),
            _ => {}
        }
        self.go_in_place(core);
        let whole = self.may_go_whole(core);
        if !whole {
            self.look(core);
        }
        let handle = if core.server.predict { 4 } else { Handle::MAX };
        self.attempt.prefetched = true;
        core.prefetched += 1;
        let pack = match self.part {
            UploadPart::Whole { .. } if whole && core.server.zstd_files => {
                core.packs_file().then_some(LEAST_FILE)
            }
            UploadPart::Whole { .. } => core.packs_first().then_some(u64::MAX),
            _ => None,
        };
        self.attempt.packs = pack;
        let job = self.id;
        let request = match &self.part {
            UploadPart::Whole { source } => DiskRequest::OpenSource {
                job,
                path: source.clone(),
                first: match (whole, pack.is_some()) {
                    (true, _) => self.whole_block(core, handle),
                    (false, true) => core.block_to_pack(handle, FIRST),
                    (false, false) => core.block(handle, FIRST),
                },
                sparse: self.may_skip(core),
                pack,
            },
            UploadPart::Head { file, .. } | UploadPart::Range { file, .. } => {
                DiskRequest::Join { job, file: *file }
            }
            UploadPart::Finish { .. } | UploadPart::Sync => return,
        };
        self.ask_disk(core, request);
    }

    /// Asks for the attributes of the target, if unknown.
    pub(super) fn look(&mut self, core: &mut LaneContext) {
        if self.target == UploadTarget::Unknown {
            let path = std::mem::take(&mut self.path);
            self.send(core, RequestTag::Look, &Request::Lstat { path: &path });
            self.path = path;
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: &Reply,
    ) -> Result<TaskStep, Misprediction> {
        self.pending -= 1;
        if let RequestTag::PutFile { len } = what {
            return Ok(self.on_put_file(core, len, reply));
        }
        match what {
            RequestTag::Open => self.on_open(core, reply)?,
            RequestTag::Write { .. }
            | RequestTag::Size
            | RequestTag::Owner
            | RequestTag::OwnerIs
            | RequestTag::Metadata
            | RequestTag::Attributes
            | RequestTag::Sync
            | RequestTag::Close
                if self.attempt.refused => {}
            RequestTag::Write { offset, len } => self.on_write(core, offset, len, reply),
            RequestTag::Fstat => self.on_stat(core, reply),
            RequestTag::Attributes | RequestTag::Mode => {
                // scp also reports this and goes on; some file systems have no modes.
                if let Err(status) = messages::status(reply) {
                    self.attributes_refused(core, status);
                }
            }
            RequestTag::OwnerIs | RequestTag::KeepOwner | RequestTag::KeepGroup => {
                self.on_owner(core, what, reply)
            }
            RequestTag::Owner | RequestTag::Metadata => core.on_set(self.id, what, reply),
            RequestTag::Size => {
                if let Err(status) = messages::status(reply) {
                    self.fail(refused(messages::WRITING, status));
                }
            }
            RequestTag::Sync => match messages::status(reply) {
                Ok(()) => self.attempt.synced = true,
                Err(status) => self.fail(refused(messages::SYNCING, status)),
            },
            RequestTag::Close => match messages::status(reply) {
                Err(status) if !self.probing => self.fail(refused(messages::CLOSING, status)),
                _ => self.attempt.closed = true,
            },
            _ => self.on_target(core, what, reply),
        }
        Ok(self.settle(core))
    }

    fn on_open(&mut self, core: &mut LaneContext, reply: &Reply) -> Result<(), Misprediction> {
        self.attempt.opening = false;
        core.opens_succeed = matches!(reply, Reply::Handle(_));
        if let Reply::Handle(handle) = reply {
            self.attempt.opened = true;
            match &self.attempt.handle {
                Some(predicted) if predicted != handle => return Err(Misprediction::Handle),
                Some(_) => {
                    if self.attempt.end.is_none() && !self.given_up() {
                        core.stream(self.id);
                    }
                }
                None => {
                    self.attempt.handle = Some(handle.clone());
                    match self.probing {
                        true => self.close(core),
                        false if !self.given_up() => self.begin(core),
                        false => {}
                    }
                }
            }
            if !self.probing {
                self.open_allowed(core);
                self.reach(core, FileState::Created);
            }
            return Ok(());
        }
        let closed_already = self.attempt.closing;
        if !closed_already {
            core.closes(self.id);
        }
        self.attempt.handle = None;
        self.attempt.closing = true;
        self.attempt.refused = true;
        if let Err(status) = messages::status(reply) {
            self.open_refused(core, status);
        }
        Ok(())
    }

    fn on_write(&mut self, core: &mut LaneContext, offset: u64, len: u64, reply: &Reply) {
        self.attempt.writes -= 1;
        match messages::status(reply) {
            Ok(()) => {
                if self.is_piece() {
                    core.event(LaneEvent::Written(self.id, offset, len));
                }
                self.progress(core, len);
            }
            Err(status) => self.fail(refused(messages::WRITING, status)),
        }
        if self.attempt.writes == 0 {
            self.finish_data(core);
        }
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> TaskStep {
        self.disk_pending = self.disk_pending.saturating_sub(1);
        match reply {
            DiskReply::Opened {
                meta,
                first,
                packed,
                eof,
                ..
            } => {
                let a = &mut self.attempt;
                a.meta = meta;
                a.next_read = packed.unwrap_or(first.len() as u64);
                a.packed = packed;
                match a.packs {
                    Some(_) if !eof => core.packed(a.next_read, first.len() as u64),
                    Some(least) if a.next_read >= least => {
                        core.packed_file(a.next_read, first.len() as u64);
                    }
                    _ => {}
                }
                // A file that came in one piece is of one version.
                if matches!(self.part, UploadPart::Whole { .. }) && !eof && !meta.stream {
                    core.event(LaneEvent::Attributes(self.id, meta.attributes));
                }
                a.end = eof.then_some(a.next_read);
                a.first = Some(first);
                a.source_open = !eof;
                if !self.given_up() {
                    self.wait_to_open(core, eof);
                }
            }
            DiskReply::Joined { .. } => self.on_joined(core),
            DiskReply::Read { offset, block, .. } => self.on_read(core, offset, block, None),
            DiskReply::Packed {
                offset,
                len,
                smaller,
                block,
                ..
            } => {
                core.packed(len, if smaller { block.len() as u64 } else { len });
                self.on_read(core, offset, block, smaller.then_some(len));
            }
            DiskReply::Hole { offset, len, .. } => self.on_hole(core, offset, len),
            DiskReply::Failed { fault, .. } => self.fail(fault),
            _ => {}
        }
        self.settle(core)
    }

    /// Moves to the next step if nothing is pending: rename, cleanup, or end.
    pub(super) fn settle(&mut self, core: &mut LaneContext) -> TaskStep {
        if self.given_up() {
            return self.give_up(core);
        }
        let a = &self.attempt;
        if a.opened && a.closing && a.writes == 0 && !self.probing {
            self.reach(core, FileState::Written);
        }
        self.announce(core);
        // The rename may leave only after every request of this file was answered; a server may
        // answer CLOSE before WRITE.
        if !self.attempt.closed || self.pending > 0 || self.disk_pending > 0 {
            return TaskStep::Goes;
        }
        if self.probing {
            self.probing = false;
            self.writable = true;
            self.attempt = Attempt::default();
            self.start(core);
            return TaskStep::Goes;
        }
        self.reach(core, FileState::Closed);
        if self.attempt.synced && !self.syncs_name(core) {
            self.reach(core, FileState::Synced);
        }
        match self.part {
            UploadPart::Whole { .. } | UploadPart::Finish { .. } => self.name(core),
            UploadPart::Head { .. } | UploadPart::Range { .. } | UploadPart::Sync => {
                core.event(LaneEvent::Done(self.id));
                TaskStep::Over
            }
        }
    }

    pub(super) fn done(&mut self, core: &mut LaneContext) -> TaskStep {
        if self.options.fsync && !self.attempt.synced {
            self.warn(core, "the server does not support fsync");
        }
        if self.attempt.synced {
            self.reach(core, FileState::Synced);
        }
        match self.target {
            UploadTarget::Direct(_) => core.event(LaneEvent::InPlace(self.id)),
            _ => self.reach(core, FileState::Renamed),
        }
        core.event(LaneEvent::Done(self.id));
        TaskStep::Over
    }

    /// Returns true if data was sent to the final name itself.
    pub(super) fn spoiled(&self) -> bool {
        matches!(self.target, UploadTarget::Direct(_)) && self.attempt.opened
    }

    /// Fails the job, unless the rename was sent: the file may exist then, and only the answer
    /// tells.
    pub(super) fn cancel(&mut self, fault: Fault, leaving: bool) {
        if self.attempt.renaming {
            return;
        }
        self.fail(fault);
        let named = matches!(self.part, UploadPart::Finish { .. }) && self.options.keep.is_some();
        if leaving && named && !self.attempt.aside {
            // The temporary is complete and in the journal, so it stays.
            self.attempt.temp = None;
        }
    }

    /// Returns true if the disk side may hold the source open.
    pub(super) fn holds_source(&self) -> bool {
        self.attempt.source_open || self.disk_pending > 0
    }

    pub(super) fn given_up(&self) -> bool {
        self.fault.is_some() || self.redo.is_some() || self.abandoned
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.redo = None;
        self.fault.get_or_insert(fault);
    }

    pub(super) fn fail_remote(&mut self, what: &str) {
        self.fail(remote(what));
    }

    pub(super) fn release_prefetch(&mut self, core: &mut LaneContext) {
        if std::mem::take(&mut self.attempt.prefetched) {
            core.prefetched = core.prefetched.saturating_sub(1);
        }
    }

    pub(super) fn send(&mut self, core: &mut LaneContext, what: RequestTag, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }

    pub(super) fn ask_disk(&mut self, core: &mut LaneContext, request: DiskRequest) {
        self.disk_pending += 1;
        core.disk.push_back(request);
    }

    /// Counts `len` more confirmed bytes. Bytes that an earlier attempt has reported are not
    /// reported again.
    pub(super) fn progress(&mut self, core: &mut LaneContext, len: u64) {
        self.attempt.confirmed += len;
        let news = self.attempt.confirmed.saturating_sub(self.told);
        if news > 0 {
            self.told += news;
            core.event(LaneEvent::Progress(self.id, news));
        }
    }

    pub(super) fn warn(&self, core: &mut LaneContext, text: &str) {
        core.event(LaneEvent::Warning(self.id, text.to_owned()));
    }

    pub(super) fn reach(&mut self, core: &mut LaneContext, state: FileState) {
        if state > self.state {
            self.state = state;
            core.event(LaneEvent::State(self.id, state));
        }
    }
}
