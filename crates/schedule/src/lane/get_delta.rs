//! Download by delta: unchanged parts are copied from an older local version of the file, and only
//! the rest is read (docs/design/0009-delta.md).

mod blocks;
mod ending;
mod read;
mod rebuild;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use sftp::blocks::SumKey;
use sftp::{Attrs, Handle, OpenFlags, Reply, Request};

use self::blocks::Blocks;
use self::rebuild::Search;
use super::core::{LaneContext, RequestTag};
use super::messages::refused;
use super::task::{Misprediction, TaskStep, attributes};
use crate::delta::{MatchedRange, block_len, may_be_forms};
use crate::{
    Attributes, DiskReply, DiskRequest, EntryKind, Fault, FileState, JobId, LaneEvent, LocalPath,
    PutOptions,
};

/// Rebuilds a file beside its basis file, which keeps its name until the end.
///
/// The server sends the block sums of the file, which are searched in the basis file: first at
/// their own offset, then everywhere. The job is given up for a plain download
/// ([`LaneEvent::Abandoned`]), leaving nothing behind, as soon as the delta turns out to be
/// impossible or not to pay.
#[derive(Debug)]
pub(super) struct GetDelta {
    pub(super) id: JobId,
    source: Vec<u8>,
    target: LocalPath,
    options: PutOptions,
    /// Use a delta on any path.
    always: bool,
    stage: Stage,
    /// Latest attributes, from the listing, STAT or FSTAT.
    attrs: Option<Attributes>,
    /// Size of the basis file in bytes, once it is open.
    older: Option<u64>,
    key: SumKey,
    /// Blocks of the file and their sums.
    blocks: Blocks,
    remote: RemoteFile,
    asked: u64,
    /// Sum requests and comparisons without an answer.
    asking: usize,
    comparing: usize,
    /// Ranges of the file without any known match, as first byte and first byte after the range.
    missing: BTreeMap<u64, u64>,
    /// Ranges of the basis file that did not match at their own offset.
    unused: VecDeque<(u64, u64)>,
    search: Option<Search>,
    copies: VecDeque<MatchedRange>,
    copying: usize,
    literals: VecDeque<(u64, u64)>,
    /// READs without an answer, and the data that arrived.
    reads: usize,
    arriving: BTreeMap<u64, Vec<Bytes>>,
    unwritten: u64,
    /// Bytes of each segment that are not in the temporary yet.
    left: BTreeMap<u64, u64>,
    /// Bytes of the temporary whose sums were verified.
    checked: u64,
    /// The disk side holds the basis file and the temporary.
    created: bool,
    discarding: bool,
    finished: bool,
    pending: usize,
    disk_pending: usize,
    fault: Option<Fault>,
    /// The file is to be downloaded plainly.
    plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Looks at both files.
    Looking,
    /// Waits for its turn and for the handle.
    Opening,
    Rebuilding,
    /// All bytes are present; attributes and final name are being set.
    Finishing,
}

/// State of the remote file.
#[derive(Debug, Default)]
struct RemoteFile {
    handle: Option<Handle>,
    opening: bool,
    closing: bool,
    closed: bool,
}

impl GetDelta {
    pub(super) fn new(
        id: JobId,
        source: Vec<u8>,
        target: LocalPath,
        known: Option<Attributes>,
        options: PutOptions,
        always: bool,
    ) -> Self {
        // A listing describes a symlink itself, but only its target counts.
        let attrs = known.filter(|k| k.size.is_some() && k.kind() == EntryKind::File);
        Self {
            id,
            source,
            target,
            options,
            always,
            stage: Stage::Looking,
            attrs,
            older: None,
            key: SumKey::default(),
            blocks: Blocks::default(),
            remote: RemoteFile::default(),
            asked: 0,
            asking: 0,
            comparing: 0,
            missing: BTreeMap::new(),
            unused: VecDeque::new(),
            search: None,
            copies: VecDeque::new(),
            copying: 0,
            literals: VecDeque::new(),
            reads: 0,
            arriving: BTreeMap::new(),
            unwritten: 0,
            left: BTreeMap::new(),
            checked: 0,
            created: false,
            discarding: false,
            finished: false,
            pending: 0,
            disk_pending: 0,
            fault: None,
            plain: false,
        }
    }

    pub(super) fn start(&mut self, core: &mut LaneContext) -> TaskStep {
        let keep = self.options.keep.as_ref();
        let left = keep.is_some_and(|keep| keep.left.is_some());
        if self.options.inplace || left || !core.server.sums {
            core.event(LaneEvent::Abandoned(self.id));
            return TaskStep::Over;
        }
        // The latency of the path may be unknown before the first request.
        let unknown = !self.always && !core.sends_slower_than_hashing();
        if self.attrs.is_none() || unknown {
            let path = self.source.clone();
            self.send(core, RequestTag::Look, &Request::Stat { path: &path });
        }
        let request = DiskRequest::OpenOlder {
            job: self.id,
            target: self.target.clone(),
            keep: self.options.keep.clone(),
            sparse: self.options.sparse,
        };
        self.ask_disk(core, request);
        TaskStep::Goes
    }

    /// Sends OPEN when the job's turn has come.
    pub(super) fn open(&mut self, core: &mut LaneContext) {
        if self.given_up() || self.remote.opening || self.remote.handle.is_some() {
            return;
        }
        let path = self.source.clone();
        self.remote.opening = true;
        self.remote.handle = core.opens(self.id);
        let open = Request::Open {
            path: &path,
            flags: OpenFlags::READ,
            attrs: Attrs::default(),
        };
        self.send(core, RequestTag::Open, &open);
        self.begin(core);
    }

    fn begin(&mut self, core: &mut LaneContext) {
        if let Some(handle) = self.remote.handle.clone() {
            let handle = handle.as_bytes();
            self.send(core, RequestTag::Fstat, &Request::Fstat { handle });
            self.stage = Stage::Rebuilding;
            core.stream(self.id);
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: Reply,
    ) -> Result<TaskStep, Misprediction> {
        if !matches!(reply, Reply::Data { last: false, .. }) {
            self.pending -= 1;
        }
        match what {
            RequestTag::Look => match &reply {
                Reply::Attrs(attrs) => self.attrs = Some(attributes(attrs)),
                // A plain download will report the reason.
                _ => self.plain = true,
            },
            RequestTag::Open => self.on_open(core, &reply)?,
            RequestTag::Fstat => {
                if let Reply::Attrs(attrs) = &reply {
                    let seen = attributes(attrs);
                    // The opened file is not the one that was looked at.
                    self.plain |= seen.size.is_some_and(|size| size != self.blocks.size);
                    self.attrs = Some(seen);
                }
            }
            RequestTag::Sums { offset, len, .. } => {
                // A sign of progress, so that the scheduler does not take the lane for stalled.
                core.event(LaneEvent::Progress(self.id, 0));
                self.on_sums(core, offset, len, &reply);
                core.stream(self.id);
            }
            RequestTag::Read { offset, len } => self.on_read(core, offset, len, reply),
            RequestTag::ReadPacked { offset, len } => {
                core.answered_packed(&reply);
                self.on_read(core, offset, len, reply);
            }
            // All data have arrived; the result of closing a read handle does not matter.
            RequestTag::Close => self.remote.closed = true,
            _ => {}
        }
        Ok(self.settle(core))
    }

    fn on_open(&mut self, core: &mut LaneContext, reply: &Reply) -> Result<(), Misprediction> {
        self.remote.opening = false;
        match reply {
            Reply::Handle(handle) => {
                if self.remote.handle.as_ref().is_some_and(|h| h != handle) {
                    return Err(Misprediction::Handle);
                }
                if self.remote.handle.is_none() {
                    self.remote.handle = Some(handle.clone());
                    if !self.given_up() {
                        self.begin(core);
                    }
                }
            }
            Reply::Status(status) => {
                self.fail(refused("cannot open the file", status));
                if !self.remote.closing {
                    core.closes(self.id);
                }
                self.remote.handle = None;
                self.remote.closing = true;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> TaskStep {
        self.disk_pending = self.disk_pending.saturating_sub(1);
        match reply {
            DiskReply::Older { size, .. } => {
                self.older = size;
                self.created = size.is_some();
                self.plain |= size.is_none();
                if self.created {
                    core.event(LaneEvent::State(self.id, FileState::Created));
                }
            }
            DiskReply::Compared {
                offset,
                len,
                compared,
                ..
            } => self.on_compared(offset, len, compared),
            DiskReply::Searched {
                from, to, found, ..
            } => self.on_searched((from, to), found),
            DiskReply::Copied { at, len, whole, .. } => {
                // The basis file has become shorter.
                self.plain |= !whole;
                self.on_copied(core, at, len);
            }
            DiskReply::Written { offset, len, .. } => {
                let unwritten = len.min(self.unwritten);
                self.unwritten -= unwritten;
                core.unwritten = core.unwritten.saturating_sub(unwritten);
                core.event(LaneEvent::Progress(self.id, len));
                self.is_there(core, offset, len);
            }
            DiskReply::Checked { len, same, .. } => {
                self.checked += len;
                // One of the two files has changed meanwhile, or the server is wrong.
                self.plain |= !same;
            }
            DiskReply::Finished { stored, .. } => {
                stored.events(self.id).for_each(|event| core.event(event));
                self.finished = true;
                let synced = self.options.fsync.then_some(FileState::Synced);
                let states = [Some(FileState::Written), Some(FileState::Closed), synced];
                for state in states.into_iter().flatten() {
                    core.event(LaneEvent::State(self.id, state));
                }
                core.event(LaneEvent::State(self.id, FileState::Renamed));
            }
            DiskReply::Failed { fault, .. } => self.fail(fault),
            _ => {}
        }
        self.settle(core)
    }

    /// Starts all work that is possible now.
    pub(super) fn settle(&mut self, core: &mut LaneContext) -> TaskStep {
        if !self.given_up() {
            match self.stage {
                Stage::Looking => self.decide(core),
                Stage::Rebuilding => self.rebuild(core),
                Stage::Opening | Stage::Finishing => {}
            }
        }
        if self.given_up() {
            return self.give_up(core);
        }
        let over = self.finished && self.remote.closed;
        if over && self.pending == 0 && self.disk_pending == 0 {
            core.event(LaneEvent::Done(self.id));
            return TaskStep::Over;
        }
        TaskStep::Goes
    }

    /// Chooses between delta and plain download, once both files were looked at.
    fn decide(&mut self, core: &mut LaneContext) {
        let (Some(older), Some(attrs), 0) = (self.older, self.attrs, self.pending) else {
            return;
        };
        let size = attrs.size.unwrap_or(0);
        let regular = attrs.kind() == EntryKind::File;
        let pays = may_be_forms(size, older) && (self.always || core.sends_slower_than_hashing());
        match block_len(size.max(older)).filter(|_| regular && pays) {
            Some(block) => {
                self.blocks = Blocks::new(size, block);
                (core.config.random)(&mut self.key);
                self.stage = Stage::Opening;
                core.openers.push_back(self.id);
            }
            None => self.plain = true,
        }
    }

    /// Returns true if the disk side holds files for the job.
    pub(super) fn holds_target(&self) -> bool {
        self.created && !self.finished && !self.discarding
    }

    fn send(&mut self, core: &mut LaneContext, what: RequestTag, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }

    fn ask_disk(&mut self, core: &mut LaneContext, request: DiskRequest) {
        self.disk_pending += 1;
        core.disk.push_back(request);
    }
}
