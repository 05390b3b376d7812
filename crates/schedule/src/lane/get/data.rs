//! Moves the data of a download from the open file to the disk.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use sftp::{Handle, Reply, Request, StatusCode};

use super::finishing::DownloadFinishStage;
use super::{DownloadState, LaneContext, RemoteFile, ServerCapabilities};
use crate::lane::messages::{READING, refused, remote};
use crate::lane::request_purpose::RequestPurpose;
use crate::{DiskRequest, JobFailure, LaneEvent, LocalEnd, UPLOAD_BEGINS};

/// Message for data that arrive before the answer to OPEN.
const READ_UNOPENED: &str =
    "the server sent data of a file that it had not opened (SFTP protocol error)";

/// Data of a download that have come, are on their way, or are still to be asked for.
#[derive(Debug)]
pub(super) struct DownloadProgress {
    /// First offset that no READ has asked for.
    next: u64,
    /// Ranges that short answers left out.
    missing: VecDeque<(u64, u32)>,
    /// READs without an answer.
    reads: usize,
    /// Parts of answers, by offset of the READ.
    arriving: BTreeMap<u64, Vec<Bytes>>,
    end: Option<u64>,
}

impl DownloadProgress {
    /// Creates the data of a download from offset `first` on.
    pub(super) fn from(first: u64) -> Self {
        Self {
            next: first,
            missing: VecDeque::new(),
            reads: 0,
            arriving: BTreeMap::new(),
            end: None,
        }
    }

    fn ends(&mut self, at: u64) {
        let end = self.end.map_or(at, |e| e.min(at));
        self.end = Some(end);
        self.missing.retain(|(offset, _)| *offset < end);
    }
}

/// Stage in which the file is open, or OPEN was sent.
#[derive(Debug)]
pub(super) struct DownloadReadStage {
    remote: RemoteFile,
    data: DownloadProgress,
    stat: SourceStatStage,
    short: ShortFileCheck,
}

/// FSTAT of the source: when it is opened, and again behind the last READ if the first answer has
/// come by then. A file that is read within one round trip is not checked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceStatStage {
    NotSent,
    /// The first one has no answer yet.
    AtOpen,
    Opened,
    /// The second one has no answer yet.
    AtEnd,
    Compared,
}

/// Check of a file that ended before the size stated when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShortFileCheck {
    NotChecked,
    Checking,
    /// The server has stated the smaller size.
    Confirmed,
}

impl DownloadReadStage {
    pub(super) fn new(remote: RemoteFile, data: DownloadProgress) -> Self {
        Self {
            remote,
            data,
            stat: SourceStatStage::NotSent,
            short: ShortFileCheck::NotChecked,
        }
    }

    /// Asks for the attributes and the first data, once the handle is known or predicted.
    pub(super) fn begin(&mut self, load: &mut DownloadState, core: &mut LaneContext) {
        if let Some(handle) = self.remote.handle() {
            let handle = handle.as_bytes();
            let request = Request::Fstat { handle };
            load.requests.send(core, RequestPurpose::Fstat, &request);
            self.stat = SourceStatStage::AtOpen;
            core.stream(load.job());
        }
    }

    /// Sends the next READ, or CLOSE after the last; false if nothing can be sent now.
    pub(super) fn stream(&mut self, load: &mut DownloadState, core: &mut LaneContext) -> bool {
        let Some(handle) = self.remote.handle().cloned() else {
            return false;
        };
        if self.remote.is_closing() || load.waits_for_upload(core) {
            return false;
        }
        let data = &mut self.data;
        if let Some((offset, len)) = data.missing.pop_front() {
            self.read(load, core, &handle, offset, len);
            return true;
        }
        // READs reach beyond the stated size, so the one at the end of the file comes back short;
        // until then nothing is known to follow.
        let limit = load.limit().unwrap_or(u64::MAX);
        let covered = data.next > load.size();
        let all = data.next >= limit;
        if all || data.end.is_some() || (covered && data.reads > 0) {
            self.look_again(load, core, &handle);
            // An upload to another host that has begun waits for all data: its download must not wait
            // for a turn to open the file again.
            let stays =
                load.options.local_end == LocalEnd::OtherHost && self.data.next >= UPLOAD_BEGINS;
            if core.predicts() && !stays {
                // The next file may open now; a file that has grown is opened again.
                self.remote.close(&mut load.requests, core);
            }
            return false;
        }
        let offset = data.next;
        let len = u64::from(core.server().read_length()).min(limit - offset) as u32;
        data.next = offset.saturating_add(len.into());
        self.read(load, core, &handle, offset, len);
        true
    }

    /// Asks behind the last READ if the file is still as it was when it was opened.
    fn look_again(&mut self, load: &mut DownloadState, core: &mut LaneContext, handle: &Handle) {
        if self.stat == SourceStatStage::Opened {
            let handle = handle.as_bytes();
            let request = Request::Fstat { handle };
            load.requests.send(core, RequestPurpose::Fstat, &request);
            self.stat = SourceStatStage::AtEnd;
        }
    }

    fn read(
        &mut self,
        load: &mut DownloadState,
        core: &mut LaneContext,
        handle: &Handle,
        offset: u64,
        len: u32,
    ) {
        self.data.reads += 1;
        load.requests.count();
        let expected = u64::from(len).min(load.size().saturating_sub(offset));
        let sparse = load.sparse && core.can(ServerCapabilities::SPARSE);
        let how = (core.packs(expected), sparse);
        core.send_read(load.job(), handle, (offset, len), expected, how);
    }

    /// Handles the answer to a READ, or a part of it.
    pub(super) fn on_read(
        &mut self,
        load: &mut DownloadState,
        core: &mut LaneContext,
        (offset, len): (u64, u32),
        reply: Reply,
    ) -> Option<JobFailure> {
        if self.remote.is_opening() && !matches!(reply, Reply::Status(_)) {
            // Which file its predicted handle stands for is not known yet.
            self.data.reads -= usize::from(!matches!(reply, Reply::Data { last: false, .. }));
            return Some(remote(READ_UNOPENED));
        }
        let fault = match reply {
            Reply::Data { at, bytes, last } => {
                let got = at + bytes.len() as u32;
                if !bytes.is_empty() {
                    load.received(core, bytes.len() as u64);
                    self.data.arriving.entry(offset).or_default().push(bytes);
                }
                match last {
                    true => self.arrived(load, core, (offset, len), got),
                    false => None,
                }
            }
            Reply::Packed {
                len: unpacked,
                bytes,
            } => {
                if unpacked > 0 {
                    load.received(core, unpacked.into());
                    let request = DiskRequest::WritePacked {
                        job: load.job(),
                        offset,
                        len: unpacked,
                        packed: bytes,
                    };
                    load.write(core, request);
                }
                self.arrived(load, core, (offset, len), unpacked)
            }
            Reply::Hole { len: hole } => self.on_hole(load, core, (offset, len), hole),
            Reply::Status(status) => {
                self.data.reads -= 1;
                match status.code {
                    StatusCode::EOF => {
                        self.data.ends(offset);
                        None
                    }
                    _ => Some(refused(READING, &status)),
                }
            }
            _ => None,
        };
        if self.data.end.is_none() || !self.data.missing.is_empty() {
            core.stream(load.job());
        }
        fault
    }

    /// Handles the answer to a READ of `len` at `offset` that brought `got` bytes.
    fn arrived(
        &mut self,
        load: &mut DownloadState,
        core: &mut LaneContext,
        (offset, len): (u64, u32),
        got: u32,
    ) -> Option<JobFailure> {
        let data = &mut self.data;
        data.reads -= 1;
        if let Some(pieces) = data.arriving.remove(&offset) {
            let job = load.job();
            let request = DiskRequest::Write {
                job,
                offset,
                pieces,
            };
            load.write(core, request);
        }
        let end = offset.saturating_add(got.into());
        if got == 0 {
            data.ends(offset);
        } else if end >= most(load, core) && load.limit().is_none() {
            return self.ends_beyond(load, core, end);
        } else if got < len {
            // A file without a stated size, as in /proc, ends where the server reports its end.
            if load.size() > 0 && end >= load.size() {
                data.ends(end);
            } else {
                data.missing.push_back((end, len - got));
            }
        }
        None
    }

    /// Ends the file when more than [`most`] has come.
    fn ends_beyond(
        &mut self,
        load: &DownloadState,
        core: &mut LaneContext,
        end: u64,
    ) -> Option<JobFailure> {
        if self.data.end.is_some() {
            return None;
        }
        let size = load.size();
        if size == 0 {
            let what = "the file has more data than its size of 0 bytes says, as in /proc: not \
                copied, since such files may have at most";
            let most = load.options.most;
            let unstated = most.unwrap_or_else(|| core.config().unstated);
            return Some(remote(format!("{what} {unstated} bytes")));
        }
        let text = format!(
            "the file grew from {size} bytes faster than it was read: the copy has its first {end} \
             bytes"
        );
        core.event(LaneEvent::Warning(load.job(), text));
        self.data.ends(end);
        None
    }

    /// Handles the answer to a READ of `len` at `offset`: a hole of `hole` bytes.
    fn on_hole(
        &mut self,
        load: &mut DownloadState,
        core: &mut LaneContext,
        (offset, len): (u64, u32),
        hole: u64,
    ) -> Option<JobFailure> {
        self.data.reads -= 1;
        if hole == 0 {
            return Some(remote(
                "the server reported a hole of length 0 in the file (SFTP protocol error)",
            ));
        }
        let end = offset.saturating_add(len.into());
        let behind = offset.saturating_add(hole);
        skip(load, core, offset, hole.min(len.into()));
        if behind >= most(load, core) && load.size() <= offset && load.limit().is_none() {
            return self.ends_beyond(load, core, behind.min(end));
        }
        let data = &mut self.data;
        if behind < end && load.size() > 0 && behind >= load.size() {
            data.ends(behind);
        } else if behind < end {
            data.missing.push_back((behind, (end - behind) as u32));
        }
        // Skips the hole beyond the requested range, up to the end of this part or of the file as
        // far as known.
        let known = load.limit().unwrap_or(u64::MAX).min(load.size());
        let to = behind.min(known);
        if to > data.next && data.end.is_none() {
            let from = std::mem::replace(&mut data.next, to);
            skip(load, core, from, to - from);
        }
        None
    }

    /// Returns true if all data have come.
    pub(super) fn is_complete(&self, load: &DownloadState) -> bool {
        let data = &self.data;
        let covered = data.end.is_some() || load.limit().is_some_and(|l| data.next >= l);
        covered && data.reads == 0 && data.missing.is_empty() && !self.is_stating()
    }

    /// Returns true if an FSTAT has no answer yet.
    fn is_stating(&self) -> bool {
        matches!(self.stat, SourceStatStage::AtOpen | SourceStatStage::AtEnd)
    }

    /// Handles the answer to FSTAT.
    pub(super) fn on_stat(
        &mut self,
        load: &mut DownloadState,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> Option<JobFailure> {
        if self.stat == SourceStatStage::AtEnd {
            self.stat = SourceStatStage::Compared;
            load.compare_version(core, reply);
            return None;
        }
        self.stat = SourceStatStage::Opened;
        load.on_stat(core, reply)
    }

    /// Returns true unless the file ended before its stated size and the server has not confirmed
    /// that it shrank; asks for the size then. A part leaves that to a job that copies the whole
    /// file.
    pub(super) fn end_is_sure(&mut self, load: &mut DownloadState, core: &mut LaneContext) -> bool {
        let short = self.data.end.is_some_and(|end| end < load.size());
        if !short || load.part.is_some() {
            return true;
        }
        if self.short == ShortFileCheck::NotChecked {
            self.short = ShortFileCheck::Checking;
            let request = match self.remote.handle() {
                Some(handle) if !self.remote.is_closing() => {
                    let handle = handle.as_bytes();
                    Request::Fstat { handle }
                }
                _ => Request::Stat { path: &load.source },
            };
            load.requests
                .send(core, RequestPurpose::SizeAgain, &request);
        }
        self.short == ShortFileCheck::Confirmed
    }

    /// Handles the size of a file that ended early.
    pub(super) fn on_size_again(
        &mut self,
        load: &DownloadState,
        reply: &Reply,
    ) -> Option<JobFailure> {
        let end = self.data.end.unwrap_or(0);
        let why = match reply {
            Reply::Attrs(attrs) if attrs.size.is_some_and(|size| size <= end) => {
                self.short = ShortFileCheck::Confirmed;
                return None;
            }
            Reply::Status(status) => format!("its size cannot be read again: {status}"),
            _ => "the server still reports the full size; check its disk, then copy the file again"
                .to_owned(),
        };
        let size = load.size();
        Some(remote(format!(
            "the server reported the end of the file after {end} of {size} bytes: {why}"
        )))
    }

    /// Returns true if CLOSE was answered.
    pub(super) fn is_closed(&self) -> bool {
        self.remote.is_closed()
    }

    /// Makes the disk side finish the target, or leave it to the other parts.
    pub(super) fn finish(
        self,
        load: &mut DownloadState,
        core: &mut LaneContext,
    ) -> DownloadFinishStage {
        let end = self.data.end;
        if load.part.is_none() {
            load.finish_target(core, end.unwrap_or(0));
            return DownloadFinishStage::whole(self.remote);
        }
        // The part's bytes are on their way to the disk, and other lanes still fill the target.
        if let Some(end) = end
            && load.limit().is_none_or(|limit| end < limit)
        {
            core.event(LaneEvent::Ended(load.job(), end));
        }
        if load.created {
            let job = load.job();
            load.requests.ask_disk(core, DiskRequest::Discard { job });
        }
        DownloadFinishStage::part(self.remote)
    }

    pub(super) fn remote_mut(&mut self) -> &mut RemoteFile {
        &mut self.remote
    }

    pub(super) fn into_remote(self) -> RemoteFile {
        self.remote
    }

    pub(super) fn into_data(self) -> DownloadProgress {
        self.data
    }
}

/// Returns the number of bytes at which the copy ends although the server sends more than the
/// stated size. A server that answers READs forever would fill the disk.
fn most(load: &DownloadState, core: &LaneContext) -> u64 {
    if let Some(most) = load.options.most {
        // A file of just this size is no larger.
        return most.saturating_add(1);
    }
    match load.size() {
        0 => core.config().unstated,
        size => size.saturating_add(core.config().growth.max(size / 8)),
    }
}

fn skip(load: &mut DownloadState, core: &mut LaneContext, offset: u64, len: u64) {
    let job = load.job();
    load.write(core, DiskRequest::Skip { job, offset, len });
}
