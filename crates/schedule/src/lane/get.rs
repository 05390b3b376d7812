use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use sftp::{Handle, OpenFlags, Reply, Request};

use super::core::{LaneContext, RequestTag};
use super::messages::{refused, remote};
use super::task::{Misprediction, TaskStep, attributes};
use crate::{
    Attributes, ByteRange, DiskReply, DiskRequest, EntryKind, Fault, FileState, JobId, LaneEvent,
    LocalPath, PutOptions,
};

/// Largest possible file size in bytes: offsets are signed (off_t).
const LARGEST: u64 = i64::MAX as u64;

/// Downloads one file, or a range of it into a target that other lanes fill as well.
#[derive(Debug)]
pub(super) struct Get {
    pub(super) id: JobId,
    /// Job that created the target, and the range to read.
    pub(super) part: Option<(JobId, ByteRange)>,
    pub(super) source: Vec<u8>,
    pub(super) target: LocalPath,
    pub(super) options: PutOptions,
    /// Latest attributes, from the listing, STAT or FSTAT.
    pub(super) attrs: Option<Attributes>,
    pub(super) handle: Option<Handle>,
    pub(super) opening: bool,
    pub(super) closing: bool,
    pub(super) closed: bool,
    pub(super) created: bool,
    /// First offset that no READ has asked for.
    pub(super) next: u64,
    /// Ranges that short answers left out.
    pub(super) missing: VecDeque<(u64, u32)>,
    pub(super) reads: usize,
    pub(super) arriving: BTreeMap<u64, Vec<Bytes>>,
    pub(super) end: Option<u64>,
    pub(super) unwritten: u64,
    pub(super) finishing: bool,
    pub(super) finished: bool,
    pub(super) discarding: bool,
    pub(super) pending: usize,
    pub(super) disk_pending: usize,
    pub(super) fault: Option<Fault>,
    /// Another lane has completed the range.
    pub(super) abandoned: bool,
    /// The file needs several requests: the server said so, or the file is not small.
    pub(super) plain: bool,
    /// The end of the part was reported; remaining answers are ignored.
    pub(super) told: bool,
    /// Ask the server for holes.
    pub(super) sparse: bool,
    /// The FSTAT of the open file is not answered.
    stating: bool,
    short: ShortEnd,
}

/// Check of a file that ended before the size stated when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShortEnd {
    Unasked,
    Asked,
    /// The server has stated the smaller size.
    Confirmed,
}

impl Get {
    pub(super) fn new(
        id: JobId,
        source: Vec<u8>,
        target: LocalPath,
        known: Option<Attributes>,
        options: PutOptions,
    ) -> Self {
        // A listing describes a symlink itself, but only its target counts.
        let attrs = known.filter(|k| k.size.is_some() && k.kind() == EntryKind::File);
        let sparse = options.sparse;
        Self {
            id,
            part: None,
            source,
            target,
            options,
            attrs,
            handle: None,
            opening: false,
            closing: false,
            closed: false,
            created: false,
            next: 0,
            missing: VecDeque::new(),
            reads: 0,
            arriving: BTreeMap::new(),
            end: None,
            unwritten: 0,
            finishing: false,
            finished: false,
            discarding: false,
            pending: 0,
            disk_pending: 0,
            fault: None,
            abandoned: false,
            plain: false,
            told: false,
            sparse,
            stating: false,
            short: ShortEnd::Unasked,
        }
    }

    /// Creates the download of a range of a file.
    pub(super) fn range(
        id: JobId,
        file: JobId,
        source: Vec<u8>,
        known: Attributes,
        span: ByteRange,
        sparse: bool,
    ) -> Self {
        let mut get = Self::new(
            id,
            source,
            LocalPath::default(),
            None,
            PutOptions::default(),
        );
        get.sparse = sparse;
        get.part = Some((file, span));
        get.attrs = Some(known);
        get.next = span.offset;
        get
    }

    /// Returns the end of the range, unless the file ends earlier.
    pub(super) fn limit(&self) -> Option<u64> {
        self.part.and_then(|(_, span)| span.end())
    }

    /// Starts the download. A file of unknown type is checked by STAT first, since OPEN of a FIFO
    /// would block the server forever.
    pub(super) fn start(&mut self, core: &mut LaneContext) {
        if self.may_go_whole(core) {
            core.wholes.push_back(self.id);
        } else if self.attrs.is_some() {
            core.openers.push_back(self.id);
        } else {
            let path = self.source.clone();
            self.send(core, RequestTag::Look, &Request::Stat { path: &path });
        }
    }

    /// Sends OPEN when the job's turn has come.
    pub(super) fn open(&mut self, core: &mut LaneContext) {
        if self.given_up() || self.opening || self.handle.is_some() {
            return;
        }
        let path = self.source.clone();
        self.opening = true;
        self.closing = false;
        self.closed = false;
        self.handle = core.opens(self.id);
        let open = Request::Open {
            path: &path,
            flags: OpenFlags::READ,
            attrs: sftp::Attrs::default(),
        };
        self.send(core, RequestTag::Open, &open);
        self.begin(core);
    }

    pub(super) fn begin(&mut self, core: &mut LaneContext) {
        if let Some(handle) = self.handle.clone() {
            let handle = handle.as_bytes();
            self.stating = true;
            self.send(core, RequestTag::Fstat, &Request::Fstat { handle });
            core.stream(self.id);
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.attrs.and_then(|a| a.size).unwrap_or(0)
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: Reply,
    ) -> Result<TaskStep, Misprediction> {
        let more = matches!(reply, Reply::Data { last: false, .. });
        if !more {
            self.pending -= 1;
        }
        match what {
            RequestTag::Look => self.on_look(core, &reply),
            RequestTag::Open => self.on_open(core, &reply)?,
            RequestTag::Fstat => {
                self.stating = false;
                let seen = match &reply {
                    Reply::Attrs(attrs) => attributes(attrs),
                    _ => Attributes::default(),
                };
                if let Some(size) = seen.size {
                    self.attrs = Some(seen);
                    if size > LARGEST {
                        let what = format!("the server reports an impossible size of {size} bytes");
                        self.fail(remote(what));
                    }
                }
                if self.part.is_some() {
                    core.event(LaneEvent::Attributes(self.id, seen));
                }
            }
            RequestTag::SizeAgain => self.on_size_again(&reply),
            RequestTag::Read { offset, len } => self.on_read(core, offset, len, reply),
            RequestTag::GetFile { pack } => self.on_get_file(core, pack, reply),
            RequestTag::ReadPacked { offset, len } => {
                core.answered_packed(&reply);
                self.on_read(core, offset, len, reply);
            }
            // All data have arrived; the result of closing a read handle does not matter.
            RequestTag::Close => self.closed = true,
            _ => {}
        }
        Ok(self.settle(core))
    }

    fn on_look(&mut self, core: &mut LaneContext, reply: &Reply) {
        match reply {
            Reply::Attrs(attrs) => self.open_if_regular(core, attributes(attrs)),
            Reply::Status(status) => self.fail(remote(status.to_string())),
            _ => {}
        }
    }

    /// Opens the file if it is a regular one, and fails the job otherwise.
    pub(super) fn open_if_regular(&mut self, core: &mut LaneContext, attrs: Attributes) {
        let kind = attrs.kind();
        if attrs.mode.is_some_and(|m| m & 0o170_000 != 0) && kind != EntryKind::File {
            let what = match kind {
                EntryKind::Directory => "it is a directory",
                _ => "not a regular file",
            };
            self.fail(remote(what));
        } else {
            self.attrs = Some(attrs);
            core.openers.push_back(self.id);
        }
    }

    fn on_open(&mut self, core: &mut LaneContext, reply: &Reply) -> Result<(), Misprediction> {
        self.opening = false;
        match reply {
            Reply::Handle(handle) => {
                if self.handle.as_ref().is_some_and(|h| h != handle) {
                    return Err(Misprediction::Handle);
                }
                if self.handle.is_none() {
                    self.handle = Some(handle.clone());
                    if !self.given_up() {
                        self.begin(core);
                    }
                }
                if !self.created && !self.given_up() {
                    self.created = true;
                    let job = self.id;
                    let request = match self.part {
                        Some((file, _)) => DiskRequest::Join { job, file },
                        None => DiskRequest::CreateTarget {
                            job,
                            target: self.target.clone(),
                            inplace: self.options.inplace,
                            size: self.attrs.and_then(|a| a.size),
                            keep: self.options.keep.clone(),
                            stays: false,
                            sparse: self.options.sparse,
                        },
                    };
                    self.ask_disk(core, request);
                }
            }
            Reply::Status(status) => {
                self.fail(refused("cannot open the file", status));
                if !self.closing {
                    core.closes(self.id);
                }
                self.handle = None;
                self.closing = true;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> TaskStep {
        self.disk_pending = self.disk_pending.saturating_sub(1);
        match reply {
            DiskReply::Created { .. } | DiskReply::Adopted { .. } => {
                core.event(LaneEvent::State(self.id, FileState::Created));
            }
            DiskReply::Written { len, offset, .. } => {
                if self.part.is_some() {
                    core.event(LaneEvent::Written(self.id, offset, len));
                }
                let len = len.min(self.unwritten);
                self.unwritten -= len;
                core.unwritten = core.unwritten.saturating_sub(len);
                core.event(LaneEvent::Progress(self.id, len));
            }
            DiskReply::Skipped { offset, len, .. } => {
                if self.part.is_some() {
                    core.event(LaneEvent::Written(self.id, offset, len));
                }
                core.event(LaneEvent::Progress(self.id, len));
            }
            DiskReply::Finished { stored, .. } => {
                let renamed = !stored.in_place;
                stored.events(self.id).for_each(|event| core.event(event));
                self.finished = true;
                self.stored(core);
                core.event(LaneEvent::State(self.id, FileState::Written));
                core.event(LaneEvent::State(self.id, FileState::Closed));
                if self.options.fsync {
                    core.event(LaneEvent::State(self.id, FileState::Synced));
                }
                if renamed {
                    core.event(LaneEvent::State(self.id, FileState::Renamed));
                }
            }
            DiskReply::Failed { fault, .. } => self.fail(fault),
            _ => {}
        }
        self.settle(core)
    }

    pub(super) fn settle(&mut self, core: &mut LaneContext) -> TaskStep {
        if self.given_up() {
            return self.give_up(core);
        }
        let covered = self.end.is_some() || self.limit().is_some_and(|l| self.next >= l);
        let complete = covered && self.reads == 0 && self.missing.is_empty() && !self.stating;
        if complete {
            if self.end_is_sure(core) {
                self.close(core);
                self.finish(core);
            }
        } else if self.closed && self.pending == 0 {
            // CLOSE was sent after the READs for the stated size, but the file turned out longer.
            self.closed = false;
            self.handle = None;
            core.openers.push_back(self.id);
        }
        let read = self.finished && self.reads == 0 && self.disk_pending == 0;
        if read && (self.part.is_some() || self.closed && self.pending == 0) {
            self.tell_end(core, LaneEvent::Done(self.id));
        }
        self.step()
    }

    /// Reports the end once, and for a part as soon as it has released the target: the file need
    /// not wait for answers to needless READs or to CLOSE.
    fn tell_end(&mut self, core: &mut LaneContext, event: LaneEvent) {
        if !std::mem::replace(&mut self.told, true) {
            core.event(event);
        }
    }

    fn step(&self) -> TaskStep {
        match self.told && self.pending == 0 && self.disk_pending == 0 {
            true => TaskStep::Over,
            false => TaskStep::Goes,
        }
    }

    fn finish(&mut self, core: &mut LaneContext) {
        if self.part.is_some() {
            return self.leave(core);
        }
        let (Some(size), false) = (self.end, self.finishing) else {
            return;
        };
        self.finishing = true;
        self.warn_if_shrunk(core, size);
        let attributes = self.options.kept(self.attrs.unwrap_or_default());
        self.ask_disk(
            core,
            DiskRequest::FinishTarget {
                job: self.id,
                size,
                attributes,
                preserve: self.options.preserve,
                fsync: self.options.fsync,
                beyond: self.options.beyond.clone(),
            },
        );
    }

    /// Returns true unless the file ended before its stated size and the server has not confirmed
    /// that it shrank; asks for the size then. A part leaves that to a job that copies the whole
    /// file.
    fn end_is_sure(&mut self, core: &mut LaneContext) -> bool {
        let short = self.end.is_some_and(|end| end < self.size());
        if !short || self.part.is_some() || self.finishing {
            return true;
        }
        if self.short == ShortEnd::Unasked {
            self.short = ShortEnd::Asked;
            match self.handle.clone().filter(|_| !self.closing) {
                Some(handle) => {
                    let handle = handle.as_bytes();
                    self.send(core, RequestTag::SizeAgain, &Request::Fstat { handle });
                }
                None => {
                    let path = self.source.clone();
                    self.send(core, RequestTag::SizeAgain, &Request::Stat { path: &path });
                }
            }
        }
        self.short == ShortEnd::Confirmed
    }

    fn on_size_again(&mut self, reply: &Reply) {
        let end = self.end.unwrap_or(0);
        let why = match reply {
            Reply::Attrs(attrs) if attrs.size.is_some_and(|size| size <= end) => {
                self.short = ShortEnd::Confirmed;
                return;
            }
            Reply::Status(status) => status.to_string(),
            _ => "the file has not become shorter".to_owned(),
        };
        let size = self.size();
        self.fail(remote(format!(
            "the server sent {end} of {size} bytes: {why}"
        )));
    }

    pub(super) fn warn_if_shrunk(&self, core: &mut LaneContext, end: u64) {
        if end < self.size() {
            let text = "the file was truncated while it was read".to_owned();
            core.event(LaneEvent::Warning(self.id, text));
        }
    }

    /// Releases the target, which other lanes still fill; the part's bytes are on their way to the
    /// disk.
    fn leave(&mut self, core: &mut LaneContext) {
        if std::mem::replace(&mut self.finishing, true) {
            return;
        }
        self.finished = true;
        if let Some(end) = self.end
            && self.limit().is_none_or(|limit| end < limit)
        {
            core.event(LaneEvent::Ended(self.id, end));
        }
        if self.created && !std::mem::replace(&mut self.discarding, true) {
            self.ask_disk(core, DiskRequest::Discard { job: self.id });
        }
    }

    fn give_up(&mut self, core: &mut LaneContext) -> TaskStep {
        core.unwritten = core.unwritten.saturating_sub(self.unwritten);
        self.unwritten = 0;
        self.arriving.clear();
        if !self.opening || core.server.predict {
            self.close(core);
        }
        let waits = self.pending > 0 && self.part.is_none();
        if waits || self.disk_pending > 0 {
            return TaskStep::Goes;
        }
        if self.created && !self.discarding {
            self.discarding = true;
            self.ask_disk(core, DiskRequest::Discard { job: self.id });
            return TaskStep::Goes;
        }
        let end = match self.fault.clone() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Abandoned(self.id),
        };
        self.tell_end(core, end);
        self.step()
    }

    pub(super) fn given_up(&self) -> bool {
        self.fault.is_some() || self.abandoned
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Returns true if the disk side holds a target for the job.
    pub(super) fn holds_target(&self) -> bool {
        self.created && !self.finished && !self.discarding
    }

    pub(super) fn send(&mut self, core: &mut LaneContext, what: RequestTag, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }

    pub(super) fn ask_disk(&mut self, core: &mut LaneContext, request: DiskRequest) {
        self.disk_pending += 1;
        core.disk.push_back(request);
    }
}
