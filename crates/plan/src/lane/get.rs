use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use bytes::Bytes;
use sftp::{Handle, OpenFlags, Reply, Request, StatusCode};

use super::core::{Core, What};
use super::task::{Step, Surprise, attributes};
use super::words::{refused, remote};
use crate::{
    Attributes, DiskReply, DiskRequest, EntryKind, Fault, FileState, JobId, LaneEvent, PutOptions,
};

/// Downloads one file.
#[derive(Debug)]
pub(super) struct Get {
    id: JobId,
    source: Vec<u8>,
    target: PathBuf,
    options: PutOptions,
    /// From the listing, STAT or FSTAT, the latest.
    attrs: Option<Attributes>,
    handle: Option<Handle>,
    opening: bool,
    closing: bool,
    closed: bool,
    created: bool,
    /// The first offset that no READ has asked for.
    next: u64,
    /// Ranges that short answers left out.
    missing: VecDeque<(u64, u32)>,
    reads: usize,
    arriving: BTreeMap<u64, Vec<Bytes>>,
    end: Option<u64>,
    unwritten: u64,
    finishing: bool,
    finished: bool,
    discarding: bool,
    pending: usize,
    disk_pending: usize,
    fault: Option<Fault>,
}

impl Get {
    pub(super) fn new(
        id: JobId,
        source: Vec<u8>,
        target: PathBuf,
        known: Option<Attributes>,
        options: PutOptions,
    ) -> Self {
        // A listing tells of a symlink itself, and only what it leads to counts.
        let attrs = known.filter(|k| k.size.is_some() && k.kind() == EntryKind::File);
        Self {
            id,
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
        }
    }

    /// What is no regular file is never opened: OPEN of a FIFO would hold the server for good.
    pub(super) fn start(&mut self, core: &mut Core) {
        if self.attrs.is_some() {
            core.openers.push_back(self.id);
        } else {
            let path = self.source.clone();
            self.send(core, What::Look, &Request::Stat { path: &path });
        }
    }

    /// Its turn to open has come.
    pub(super) fn open(&mut self, core: &mut Core) {
        if self.fault.is_some() || self.opening || self.handle.is_some() {
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
        self.send(core, What::Open, &open);
        self.begin(core);
    }

    fn begin(&mut self, core: &mut Core) {
        if let Some(handle) = self.handle.clone() {
            let handle = handle.as_bytes();
            self.send(core, What::Fstat, &Request::Fstat { handle });
            core.stream(self.id);
        }
    }

    fn size(&self) -> u64 {
        self.attrs.and_then(|a| a.size).unwrap_or(0)
    }

    /// Sends the next READ, or CLOSE behind the last; false when there is nothing to send now.
    pub(super) fn stream(&mut self, core: &mut Core) -> bool {
        let Some(handle) = self.handle.clone() else {
            return false;
        };
        if self.closing || self.fault.is_some() {
            return false;
        }
        if let Some((offset, len)) = self.missing.pop_front() {
            self.read(core, &handle, offset, len);
            return true;
        }
        // READs ask beyond the size, so the one that covers the end comes back short; until it
        // has, nothing lies behind it as far as is known.
        let covered = self.next > self.size();
        if self.end.is_some() || (covered && self.reads > 0) {
            if core.server.predict {
                // The next file may open now; should this one have grown, it is opened again.
                self.close(core);
            }
            return false;
        }
        let len = core.server.read;
        let offset = self.next;
        self.next += u64::from(len);
        self.read(core, &handle, offset, len);
        true
    }

    fn read(&mut self, core: &mut Core, handle: &Handle, offset: u64, len: u32) {
        self.reads += 1;
        self.pending += 1;
        let expected = u64::from(len).min(self.size().saturating_sub(offset));
        core.send_read(self.id, handle, offset, len, expected);
    }

    fn close(&mut self, core: &mut Core) {
        let handle = self.handle.clone();
        if let (Some(handle), false) = (handle, self.closing) {
            self.closing = true;
            let handle = handle.as_bytes();
            self.send(core, What::Close, &Request::Close { handle });
            core.closes(self.id);
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut Core,
        what: What,
        reply: Reply,
    ) -> Result<Step, Surprise> {
        let more = matches!(reply, Reply::Data { last: false, .. });
        if !more {
            self.pending -= 1;
        }
        match what {
            What::Look => self.on_look(core, &reply),
            What::Open => self.on_open(core, &reply)?,
            What::Fstat => {
                if let Reply::Attrs(attrs) = &reply {
                    let seen = attributes(attrs);
                    if seen.size.is_some() {
                        self.attrs = Some(seen);
                    }
                }
            }
            What::Read { offset, len } => self.on_read(core, offset, len, reply),
            // All data are here; what a read handle's CLOSE says changes nothing.
            What::Close => self.closed = true,
            _ => {}
        }
        Ok(self.settle(core))
    }

    fn on_look(&mut self, core: &mut Core, reply: &Reply) {
        match reply {
            Reply::Attrs(attrs) => {
                let attrs = attributes(attrs);
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
            Reply::Status(status) => self.fail(remote(status.to_string())),
            _ => {}
        }
    }

    fn on_open(&mut self, core: &mut Core, reply: &Reply) -> Result<(), Surprise> {
        self.opening = false;
        match reply {
            Reply::Handle(handle) => {
                if self.handle.as_ref().is_some_and(|h| h != handle) {
                    return Err(Surprise::Handle);
                }
                if self.handle.is_none() {
                    self.handle = Some(handle.clone());
                    if self.fault.is_none() {
                        self.begin(core);
                    }
                }
                if !self.created && self.fault.is_none() {
                    self.created = true;
                    self.ask_disk(
                        core,
                        DiskRequest::CreateTarget {
                            job: self.id,
                            target: self.target.clone(),
                            inplace: self.options.inplace,
                            size: self.attrs.and_then(|a| a.size),
                        },
                    );
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

    fn on_read(&mut self, core: &mut Core, offset: u64, len: u32, reply: Reply) {
        match reply {
            Reply::Data { at, bytes, last } => {
                let got = at + bytes.len() as u32;
                if self.fault.is_none() && !bytes.is_empty() {
                    let n = bytes.len() as u64;
                    self.unwritten += n;
                    core.unwritten += n;
                    self.arriving.entry(offset).or_default().push(bytes);
                }
                if last {
                    self.reads -= 1;
                    self.arrived(core, offset, len, got);
                }
            }
            Reply::Status(status) => {
                self.reads -= 1;
                if status.code == StatusCode::EOF {
                    self.ends(offset);
                } else {
                    self.fail(refused("cannot read", &status));
                }
            }
            _ => {}
        }
        if self.end.is_none() || !self.missing.is_empty() {
            core.stream(self.id);
        }
    }

    /// A READ of `len` at `offset` brought `got` bytes.
    fn arrived(&mut self, core: &mut Core, offset: u64, len: u32, got: u32) {
        if self.fault.is_some() {
            return;
        }
        if let Some(pieces) = self.arriving.remove(&offset) {
            self.ask_disk(
                core,
                DiskRequest::Write {
                    job: self.id,
                    offset,
                    pieces,
                },
            );
        }
        let end = offset + u64::from(got);
        if got == 0 {
            self.ends(offset);
        } else if got < len {
            // Files that know no size, as those of /proc, end where the server says so.
            if self.size() > 0 && end >= self.size() {
                self.ends(end);
            } else {
                self.missing.push_back((end, len - got));
            }
        }
    }

    fn ends(&mut self, at: u64) {
        let end = self.end.map_or(at, |e| e.min(at));
        self.end = Some(end);
        self.missing.retain(|(offset, _)| *offset < end);
    }

    pub(super) fn on_disk(&mut self, core: &mut Core, reply: DiskReply) -> Step {
        self.disk_pending = self.disk_pending.saturating_sub(1);
        match reply {
            DiskReply::Created { .. } => {
                core.event(LaneEvent::State(self.id, FileState::Created));
            }
            DiskReply::Written { len, .. } => {
                let len = len.min(self.unwritten);
                self.unwritten -= len;
                core.unwritten = core.unwritten.saturating_sub(len);
                core.event(LaneEvent::Progress(self.id, len));
            }
            DiskReply::Finished { .. } => {
                self.finished = true;
                core.event(LaneEvent::State(self.id, FileState::Written));
                core.event(LaneEvent::State(self.id, FileState::Closed));
                if self.options.fsync {
                    core.event(LaneEvent::State(self.id, FileState::Synced));
                }
                if !self.options.inplace {
                    core.event(LaneEvent::State(self.id, FileState::Renamed));
                }
            }
            DiskReply::Failed { fault, .. } => self.fail(fault),
            _ => {}
        }
        self.settle(core)
    }

    pub(super) fn settle(&mut self, core: &mut Core) -> Step {
        if self.fault.is_some() {
            return self.give_up(core);
        }
        let complete = self.end.is_some() && self.reads == 0 && self.missing.is_empty();
        if complete {
            self.close(core);
            self.finish(core);
        } else if self.closed && self.pending == 0 {
            // Closed behind the READs that the size asked for, and the file turned out longer.
            self.closed = false;
            self.handle = None;
            core.openers.push_back(self.id);
        }
        if self.finished && self.closed && self.pending == 0 && self.disk_pending == 0 {
            core.event(LaneEvent::Done(self.id));
            return Step::Over;
        }
        Step::Goes
    }

    fn finish(&mut self, core: &mut Core) {
        let (Some(size), false) = (self.end, self.finishing) else {
            return;
        };
        self.finishing = true;
        if size < self.size() {
            let text = "the file shrank while it was read".to_owned();
            core.event(LaneEvent::Warning(self.id, text));
        }
        self.ask_disk(
            core,
            DiskRequest::FinishTarget {
                job: self.id,
                size,
                attributes: self.attrs.unwrap_or_default(),
                preserve: self.options.preserve,
                fsync: self.options.fsync,
            },
        );
    }

    fn give_up(&mut self, core: &mut Core) -> Step {
        core.unwritten = core.unwritten.saturating_sub(self.unwritten);
        self.unwritten = 0;
        self.arriving.clear();
        if !self.opening || core.server.predict {
            self.close(core);
        }
        if self.pending > 0 || self.disk_pending > 0 {
            return Step::Goes;
        }
        if self.created && !self.discarding {
            self.discarding = true;
            self.ask_disk(core, DiskRequest::Discard { job: self.id });
            return Step::Goes;
        }
        if let Some(fault) = self.fault.take() {
            core.event(LaneEvent::Failed(self.id, fault));
        }
        Step::Over
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Whether the disk holds a target for it.
    pub(super) fn holds_target(&self) -> bool {
        self.created && !self.finished && !self.discarding
    }

    fn send(&mut self, core: &mut Core, what: What, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }

    fn ask_disk(&mut self, core: &mut Core, request: DiskRequest) {
        self.disk_pending += 1;
        core.disk.push_back(request);
    }
}
