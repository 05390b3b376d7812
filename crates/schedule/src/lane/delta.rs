//! Upload by delta: the server copies unchanged parts from an older version of the file, and only
//! the rest is sent (docs/design/0009-delta.md).

mod check;
mod open;
mod rebuild;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use sftp::blocks::{StrongSum, SumKey};
use sftp::{Handle, Reply, Request, StatusCode};

use super::core::{LaneContext, RequestTag};
use super::messages;
use super::put::Put;
use super::put_owner::OwnerOutcome;
use super::task::{Misprediction, TaskStep};
use crate::delta::{BasisIndex, MatchedRange};
use crate::{DiskReply, DiskRequest, Fault, FileMeta, FileState, JobId, LaneEvent, PutOptions};

/// Rebuilds a file at the far end beside its basis file, which keeps its name until the end.
///
/// The job is given up for a plain upload ([`LaneEvent::Abandoned`]), leaving nothing behind, as
/// soon as the delta turns out to be impossible or not to pay.
#[derive(Debug)]
pub(super) struct DeltaUpload {
    pub(super) id: JobId,
    source: PathBuf,
    /// Path of the existing file, which is replaced.
    path: Vec<u8>,
    options: PutOptions,
    /// Use a delta on any path.
    always: bool,
    stage: Stage,
    meta: FileMeta,
    source_open: bool,
    /// Result of LSTAT on the basis file.
    old: Option<OldFile>,
    temp: Option<Vec<u8>>,
    key: SumKey,
    block: u32,
    basis: OldSums,
    /// Block sums of the source, by segment offset.
    own: BTreeMap<u64, Vec<StrongSum>>,
    differs: BTreeMap<u64, u64>,
    search: Option<Search>,
    copies: VecDeque<MatchedRange>,
    literals: VecDeque<(u64, u64)>,
    reads: BTreeMap<u64, u64>,
    /// WRITEs and copy-data requests without an answer.
    moving: usize,
    checked: RebuildCheck,
    handles: Handles,
    pending: usize,
    disk_pending: usize,
    fault: Option<Fault>,
    /// The file is to be uploaded plainly.
    plain: bool,
    removing: bool,
    /// The temporary has the mode of the basis file.
    mode_set: bool,
    /// Owner of the temporary.
    owner: OwnerOutcome,
}

#[derive(Debug)]
enum Stage {
    /// Looks at the target and the source.
    Looking,
    /// Waits for its turn and for both handles.
    Opening,
    Rebuilding,
    /// Compares the rebuilt file with the source.
    Checking,
    Closing,
    /// Attributes and final name are being set.
    Finishing(Box<Put>),
}

#[derive(Clone, Copy, Debug)]
struct OldFile {
    size: u64,
    mode: u32,
    owner: Option<(u32, u32)>,
}

/// Block sums of the basis file.
#[derive(Debug, Default)]
struct OldSums {
    asked: u64,
    in_flight: usize,
    comparing: usize,
    sums: BTreeMap<u64, Bytes>,
}

/// Search of the whole basis file for ranges that did not match at their own offset.
#[derive(Debug)]
struct Search {
    basis: Arc<BasisIndex>,
    todo: VecDeque<(u64, u64)>,
    running: usize,
    /// Results by start offset, handled in order, since a match may extend into the next range.
    results: BTreeMap<u64, (u64, Vec<MatchedRange>)>,
    order: VecDeque<u64>,
    /// Offset up to which everything is known.
    covered: u64,
    /// Number of bytes that differed, that were searched, and that were found.
    all: u64,
    seen: u64,
    found: u64,
}

/// Progress of comparing the rebuilt file with the source.
#[derive(Debug, Default)]
struct RebuildCheck {
    /// Bytes of each segment that have been neither copied nor sent.
    unsent: BTreeMap<u64, u64>,
    /// Segments that are complete.
    ready: VecDeque<u64>,
    asked: u64,
    in_flight: usize,
}

#[derive(Debug, Default)]
struct Handles {
    opening: usize,
    /// The job has the lane's turn to open.
    turn: bool,
    old: Option<Handle>,
    new: Option<Handle>,
    /// Handle of the basis file for sum requests: the predicted one until the real one has come.
    sums: Option<Handle>,
    /// The temporary was created.
    created: bool,
    closing: bool,
}

/// Step numbers of [`RequestTag::Step`] in a delta.
const OPEN_OLD: u8 = 0;
const OPEN_NEW: u8 = 1;
const CLOSE: u8 = 2;
const MODE: u8 = 3;
const WHOSE: u8 = 4;

impl DeltaUpload {
    pub(super) fn new(
        id: JobId,
        source: PathBuf,
        path: Vec<u8>,
        options: PutOptions,
        always: bool,
    ) -> Self {
        Self {
            id,
            source,
            path,
            options,
            always,
            stage: Stage::Looking,
            meta: FileMeta::default(),
            source_open: false,
            old: None,
            temp: None,
            key: SumKey::default(),
            block: 0,
            basis: OldSums::default(),
            own: BTreeMap::new(),
            differs: BTreeMap::new(),
            search: None,
            copies: VecDeque::new(),
            literals: VecDeque::new(),
            reads: BTreeMap::new(),
            moving: 0,
            checked: RebuildCheck::default(),
            handles: Handles::default(),
            pending: 0,
            disk_pending: 0,
            fault: None,
            plain: false,
            removing: false,
            mode_set: false,
            owner: OwnerOutcome::default(),
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: &Reply,
    ) -> Result<TaskStep, Misprediction> {
        if let Stage::Finishing(put) = &mut self.stage {
            return put.on_reply(core, what, reply);
        }
        self.pending -= 1;
        match what {
            RequestTag::Look => self.on_look(reply),
            RequestTag::Step(step @ (OPEN_OLD | OPEN_NEW)) => self.on_open(core, step, reply)?,
            RequestTag::Sums {
                offset,
                len,
                rebuilt,
            } => {
                // A sign of progress, so that the scheduler does not take the lane for stalled.
                core.event(LaneEvent::Progress(self.id, 0));
                core.stream(self.id);
                match rebuilt {
                    true => self.on_checked(core, offset, len, reply),
                    false => self.on_sums(core, offset, len, reply),
                }
            }
            RequestTag::Copied { len } => {
                self.on_moved(core, len, reply);
                if messages::status(reply).is_ok() {
                    core.event(LaneEvent::Reused(self.id, len));
                }
            }
            RequestTag::Write { len, .. } => self.on_moved(core, len, reply),
            // A mode that could not be set is tried again by name, and then reported.
            RequestTag::Step(MODE) => self.mode_set = messages::status(reply).is_ok(),
            RequestTag::Step(WHOSE) => self.owner.learn(reply),
            RequestTag::Step(CLOSE) if !self.given_up() => {
                if let Err(status) = messages::status(reply) {
                    self.fail(messages::refused(messages::CLOSING, status));
                }
            }
            RequestTag::RemoveTemp => self.on_removed(core, reply),
            _ => {}
        }
        Ok(self.settle(core))
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> TaskStep {
        if let Stage::Finishing(put) = &mut self.stage {
            return put.on_disk(core, reply);
        }
        self.disk_pending = self.disk_pending.saturating_sub(1);
        match reply {
            DiskReply::Opened { meta, eof, .. } => {
                self.meta = meta;
                self.source_open = !eof;
                self.plain |= eof || meta.stream;
                if !self.plain {
                    core.event(LaneEvent::Attributes(self.id, meta.attributes));
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
            } => self.on_searched(from, to, found),
            DiskReply::Read { offset, block, .. } => self.on_read(core, offset, block),
            DiskReply::Failed { fault, .. } => self.fail(fault),
            _ => {}
        }
        self.settle(core)
    }

    /// Starts all work that is possible now.
    fn settle(&mut self, core: &mut LaneContext) -> TaskStep {
        if self.given_up() {
            return self.give_up(core);
        }
        match self.stage {
            Stage::Looking => self.decide(core),
            Stage::Opening if self.handles.opening == 0 && self.handles.created => {
                self.begin(core);
            }
            Stage::Rebuilding => self.rebuild(core),
            Stage::Opening | Stage::Checking | Stage::Closing | Stage::Finishing(_) => {}
        }
        if self.given_up() {
            return self.give_up(core);
        }
        if matches!(self.stage, Stage::Closing) && self.pending == 0 && self.disk_pending == 0 {
            return self.finish(core);
        }
        TaskStep::Goes
    }

    /// Sends the next request; false if nothing can be sent now.
    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.stage {
            _ if self.fault.is_some() || self.plain => false,
            // The check follows in the same flight as the last data.
            Stage::Rebuilding => self.send_next(core) || self.is_sent(core) && self.ask_next(core),
            Stage::Checking => self.ask_next(core),
            Stage::Finishing(put) => put.stream(core),
            _ => false,
        }
    }

    /// Fails the job, unless the rename is in flight.
    pub(super) fn cancel(
        &mut self,
        core: &mut LaneContext,
        fault: Fault,
        leaving: bool,
    ) -> TaskStep {
        if let Stage::Finishing(put) = &mut self.stage {
            put.cancel(fault, leaving);
            return put.settle(core);
        }
        self.fail(fault);
        self.settle(core)
    }

    /// Returns the temporary that may exist now.
    pub(super) fn temporary(&self) -> Option<(JobId, &[u8])> {
        let temp = match &self.stage {
            Stage::Finishing(put) => put.attempt.temp.as_deref(),
            _ => self.temp.as_deref(),
        };
        temp.map(|temp| (self.id, temp))
    }

    /// Returns true if the disk side may hold the source open.
    pub(super) fn holds_source(&self) -> bool {
        self.source_open || self.disk_pending > 0
    }

    fn on_removed(&mut self, core: &mut LaneContext, reply: &Reply) {
        let Some(temp) = self.temp.take() else { return };
        match messages::status(reply) {
            Err(status) if status.code != StatusCode::NO_SUCH_FILE => {
                let name = sftp::printable(&temp, 4096);
                let text = format!("cannot remove the temporary file {name}");
                match &mut self.fault {
                    Some(fault) => fault.what.push_str(&format!("; {text}")),
                    None => core.event(LaneEvent::Warning(self.id, text)),
                }
            }
            _ => {}
        }
    }

    fn given_up(&self) -> bool {
        self.fault.is_some() || self.plain
    }

    fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Gives the job up: closes the handles, waits for all answers and removes the temporary.
    fn give_up(&mut self, core: &mut LaneContext) -> TaskStep {
        let withdrawn = core.withdraw_writes(self.id);
        self.pending -= withdrawn;
        self.moving -= withdrawn;
        if self.handles.opening == 0 {
            self.close(core);
        }
        if std::mem::take(&mut self.source_open) {
            self.ask_disk(core, DiskRequest::CloseSource { job: self.id });
        }
        if self.pending > 0 || self.disk_pending > 0 {
            return TaskStep::Goes;
        }
        let reading: u64 = self.reads.values().sum();
        core.reading = core.reading.saturating_sub(reading);
        self.reads.clear();
        if let (true, false, Some(temp)) = (self.handles.created, self.removing, self.temp.clone())
        {
            self.removing = true;
            self.send(
                core,
                RequestTag::RemoveTemp,
                &Request::Remove { path: &temp },
            );
            return TaskStep::Goes;
        }
        core.event(match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Abandoned(self.id),
        });
        TaskStep::Over
    }

    /// Sends CLOSE for the open handles and lets other jobs open.
    fn close(&mut self, core: &mut LaneContext) {
        if std::mem::replace(&mut self.handles.closing, true) {
            return;
        }
        // The lowest number is closed last: a server like sftp-server assigns it next, as
        // predicted.
        let handles = [self.handles.new.take(), self.handles.old.take()];
        for handle in handles.into_iter().flatten() {
            let handle = handle.as_bytes();
            self.send(core, RequestTag::Step(CLOSE), &Request::Close { handle });
        }
        if std::mem::take(&mut self.handles.turn) {
            core.closes(self.id);
        }
    }

    fn send(&mut self, core: &mut LaneContext, what: RequestTag, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }

    fn ask_disk(&mut self, core: &mut LaneContext, request: DiskRequest) {
        self.disk_pending += 1;
        core.disk.push_back(request);
    }

    fn reach(&self, core: &mut LaneContext, state: FileState) {
        core.event(LaneEvent::State(self.id, state));
    }
}
