//! Drives a file that is cut over lanes until it is complete or given up.

use super::super::assignments::AssignedRole;
use super::super::queues::QueuedJob;
use super::super::state::SchedulerState;
use super::super::{LaneId, LaneOrder};
use super::checkpoints::{SplitFileFsync, UnjournaledBytes};
use super::{ClaimedRange, RunningFilePart, SplitFile, SplitFiles, SplitStage};
use crate::byte_ranges::ByteRanges;
use crate::{
    Attributes, DiskReply, DiskRequest, FileCopyState, JobFailure, JobFailureKind, JobId, JobKind,
    LaneEvent, RemotePath, SHARED_TEMP_LOST, SOURCE_CHANGED, SourceFileMeta,
};

use std::collections::BTreeMap;
use std::time::Instant;

use wire::PayloadBlock;

/// Number of lost lanes after which a cut file, whose parts are on all lanes, is assumed to be the
/// cause.
const MOST_PART_LOSSES: u32 = 40;
/// Number of lost lanes that one lost with the file's rename counts for: each rename has to wait
/// for all that the lane had sent, and perhaps for the whole file once more.
const RENAME_LOSS: u32 = 5;
const RENAME_UNANSWERED: &str =
    "the server has answered none of several requests to rename it to this name";
const NOT_CONTINUED: &str = "the server cannot resume this file, which an earlier run has begun: \
    it is sent from the start";
/// Failure of a range whose source differs from that of the other ranges.
const SHARED_CHANGED: &str =
    "the source changed while shards copied it: make a new plan in another folder";

/// Failure of a file whose other ranges are written by other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum SharedFileFailure {
    /// The temporary of all ranges cannot be used.
    TempLost,
    /// The source differs from that of the other ranges.
    SourceChanged,
}

impl SharedFileFailure {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::TempLost => SHARED_TEMP_LOST,
            Self::SourceChanged => SHARED_CHANGED,
        }
    }

    pub(super) fn kind(self) -> JobFailureKind {
        match self {
            Self::TempLost => JobFailureKind::SharedTemp,
            Self::SourceChanged => JobFailureKind::Other,
        }
    }
}

impl SplitFiles {
    pub(in super::super) fn new(now: Instant) -> Self {
        Self {
            files: BTreeMap::new(),
            left_fences: BTreeMap::new(),
            checkpoints: UnjournaledBytes::new(now),
        }
    }

    pub(in super::super) fn get(&self, id: JobId) -> Option<&SplitFile> {
        self.files.get(&id)
    }

    pub(in super::super) fn get_mut(&mut self, id: JobId) -> Option<&mut SplitFile> {
        self.files.get_mut(&id)
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (JobId, &SplitFile)> {
        self.files.iter().map(|(id, file)| (*id, file))
    }

    /// Returns true if `is` holds for any file.
    pub(in super::super) fn any(&self, is: impl Fn(&SplitFile) -> bool) -> bool {
        self.files.values().any(is)
    }

    pub(in super::super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the number of bytes of each file that no lane has.
    pub(in super::super) fn left(&self) -> impl Iterator<Item = u64> {
        self.files.values().map(SplitFile::left)
    }

    /// Returns the number of bytes of each file that were not reported yet.
    pub(in super::super) fn untold(&self) -> impl Iterator<Item = u64> {
        let untold = |file: &SplitFile| file.size().saturating_sub(file.told);
        self.files.values().map(untold)
    }

    /// Returns the number of files that the disk side opens.
    pub(in super::super) fn opening(&self) -> usize {
        self.files.values().filter(|f| f.is_opening()).count()
    }

    /// Resets the loss counters.
    pub(in super::super) fn forgive(&mut self) {
        self.files.values_mut().for_each(|f| f.losses = 0);
    }

    /// Returns the first file of which a part may be assigned, if its directory exists where it has
    /// no temporary yet (`may`).
    pub(in super::super) fn next_claimable(&self, may: impl Fn(&JobKind) -> bool) -> Option<JobId> {
        let claimable =
            |file: &SplitFile| file.claimable() && (file.head.begun || may(&file.job.kind));
        let found = self.files.iter().find(|(_, file)| claimable(file));
        found.map(|(id, _)| *id)
    }

    /// Returns the job of a file whose temporary no lane creates yet.
    pub(in super::super) fn head_of(&self, id: JobId) -> Option<&JobKind> {
        let file = self.files.get(&id).filter(|file| !file.head.begun)?;
        Some(&file.job.kind)
    }

    /// Takes about `piece` bytes of a file for a part.
    pub(in super::super) fn claim(&mut self, id: JobId, piece: u64) -> Option<ClaimedRange> {
        let file = self.files.get_mut(&id)?;
        let (from, mut to) = file.claim(piece)?;
        if file.is_put() && !file.head.begun {
            file.head.begun = true;
            if !file.access.is_in_order() {
                // The first part has a length; other lanes take the bytes after it.
                let until = to.min(file.size().max(1));
                file.unclaimed.insert(until, to);
                to = until;
            }
        }
        let kind = file.part(from, to)?;
        Some(ClaimedRange { from, to, kind })
    }

    /// Records that a lane does a part; returns its job and the number of its bytes.
    pub(in super::super) fn runs(
        &mut self,
        id: JobId,
        part: JobId,
        lane: LaneId,
        ClaimedRange { from, to, kind }: ClaimedRange,
    ) -> (JobKind, u64) {
        let Some(file) = self.files.get_mut(&id) else {
            return (kind, 0);
        };
        let bytes = to.min(file.size()).saturating_sub(from);
        if let JobKind::CreateTemp { alone: true, .. } = kind {
            file.head.alone = Some(part);
        }
        let running = RunningFilePart {
            lane,
            from,
            to,
            progress: 0,
            written: ByteRanges::default(),
            has_our_version: false,
            overtaken: false,
            abandoned: false,
        };
        file.running.insert(part, running);
        (kind, bytes)
    }

    /// Starts to cut a file; returns the request that opens it at the disk side.
    pub(in super::super) fn begin(
        &mut self,
        queued: QueuedJob,
        one_handle: bool,
    ) -> Option<DiskRequest> {
        let losses = queued.losses().count();
        let (job, hint) = queued.into_job();
        let id = job.id;
        let (request, attributes) = match &job.kind {
            JobKind::Put {
                source, options, ..
            } => {
                let open = DiskRequest::OpenSource {
                    job: id,
                    path: source.clone(),
                    first: PayloadBlock::default(),
                    sparse: options.sparse && !one_handle,
                    pack: None,
                };
                (open, Attributes::default())
            }
            JobKind::Get {
                target,
                known,
                options,
                ..
            } => {
                let known = known.unwrap_or_default();
                let create = DiskRequest::CreateTarget {
                    job: id,
                    target: target.clone(),
                    inplace: options.inplace,
                    size: known.size,
                    keep: options.keep.clone(),
                    stays: options.keep.is_some(),
                    sparse: options.sparse,
                };
                (create, known)
            }
            _ => return None,
        };
        let mut file = SplitFile::new(job, hint, attributes, one_handle);
        file.attributes.size = file.attributes.size.or(hint.size);
        file.losses = losses;
        self.files.insert(id, file);
        Some(request)
    }

    pub(in super::super) fn on_disk(&mut self, board: &mut SchedulerState, reply: DiskReply) {
        let id = reply.job();
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match reply {
            // The job may have been given up already.
            DiskReply::Opened { .. } | DiskReply::Created { .. } | DiskReply::Adopted { .. }
                if file.stage != SplitStage::Opening => {}
            DiskReply::Opened { meta, .. } => self.on_opened(board, id, meta),
            DiskReply::Adopted { .. } => {
                file.has_target = true;
                self.on_adopted(board, id);
            }
            DiskReply::SourceReady { .. } => {
                self.begin_moving(board, id);
                self.tell_news(board, id);
            }
            DiskReply::Synced { mtime, .. } => self.on_disk_synced(board, id, mtime),
            DiskReply::Created { seekable, .. } => {
                if file.shared().is_some() {
                    return self.shared_failed(board, id, SharedFileFailure::TempLost);
                }
                file.access.seekable = seekable;
                file.has_target = true;
                let keep = file.job.kind.put_options().and_then(|o| o.keep.as_ref());
                if keep.is_some_and(|keep| keep.left.is_some()) {
                    self.tell_restarted(board, id);
                }
                self.state(board, id, FileCopyState::Created);
                self.begin_moving(board, id);
            }
            DiskReply::Finished { stored, .. } => {
                file.held = false;
                let renamed = !stored.in_place;
                stored.events(id).for_each(|event| board.tell(event));
                self.on_named(board, id, renamed);
            }
            DiskReply::Released { .. } => {
                file.held = false;
                if file.stage == SplitStage::Naming && file.shared().is_some() && !file.is_put() {
                    self.files.remove(&id);
                    self.state(board, id, FileCopyState::Written);
                    self.state(board, id, FileCopyState::Closed);
                    board.tell(LaneEvent::Done(id));
                    return;
                }
                self.go_on(board, id);
            }
            DiskReply::Failed { fault, .. } => {
                file.fail(fault);
                if file.stage == SplitStage::Naming && !file.is_put() {
                    file.stage = SplitStage::GivingUp;
                }
                self.go_on(board, id);
            }
            _ => {}
        }
    }

    fn on_opened(&mut self, board: &mut SchedulerState, id: JobId, meta: SourceFileMeta) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.attributes = meta.attributes;
        let small = file.size() < board.options().split_from;
        let resumes = file.shared().is_some() || file.access.relayed;
        let whole = small && !resumes || meta.stream;
        if whole && file.stage == SplitStage::Opening {
            self.do_whole(board, id);
            return;
        }
        let keep = file.job.kind.put_options().and_then(|o| o.keep.as_ref());
        let left = keep.and_then(|keep| keep.left.as_ref());
        // The source has changed since the earlier run; a mix of both versions must not result.
        let changed = left.is_some_and(|left| !left.is_of(&meta.attributes));
        let shared = file.shared().is_some();
        board.tell(LaneEvent::Attributes(id, meta.attributes));
        if changed && shared {
            return self.shared_failed(board, id, SharedFileFailure::SourceChanged);
        }
        if changed {
            self.leave_aside(board, id);
        }
        if !self.ask_to_adopt(board, id) {
            self.begin_moving(board, id);
        }
    }

    pub(in super::super) fn begin_moving(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match file.stage {
            SplitStage::Opening if file.is_put() && file.is_relayed() => {
                file.stage = SplitStage::AwaitingSource;
                board.ask_disk(DiskRequest::AwaitSource { job: id });
            }
            SplitStage::Opening | SplitStage::AwaitingSource => {
                file.stage = SplitStage::Moving;
                board.count_cut();
            }
            _ => {}
        }
        self.go_on(board, id);
    }

    pub(in super::super) fn on_part(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        part: JobId,
        event: LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::Progress(_, n) => {
                if let Some(running) = file.running.get_mut(&part) {
                    running.progress += n;
                }
                self.tell_news(board, id);
            }
            LaneEvent::Written(_, offset, len) => {
                file.part_wrote(part, offset, len);
                self.on_written(board, id, offset, len);
            }
            // The part has found out that the file must be written in place.
            LaneEvent::WhyInPlace(_, why) if file.access.relayed => {
                board.tell(LaneEvent::WhyInPlace(id, why));
            }
            LaneEvent::SourceGrew(_) if file.notes_growth() => {
                board.tell(LaneEvent::SourceGrew(id));
            }
            LaneEvent::Temp(_, temp) => {
                file.temp = Some(temp.clone());
                board.tell(LaneEvent::Temp(id, temp));
                self.state(board, id, FileCopyState::Created);
                self.go_on(board, id);
            }
            LaneEvent::Ended(_, at) => {
                file.ends(at);
                self.go_on(board, id);
            }
            // Parts of two versions must not be mixed. One lane that opens the file once reads one
            // version.
            LaneEvent::Attributes(_, seen) if !file.accepts_version(&seen) => {
                if file.shared().is_none() {
                    board.tell(LaneEvent::Warning(id, SOURCE_CHANGED.to_owned()));
                }
                self.do_whole(board, id);
            }
            LaneEvent::Attributes(..) => file.part_has_our_version(part),
            LaneEvent::NotKept(_, parts, why) => board.tell(LaneEvent::NotKept(id, parts, why)),
            LaneEvent::Refused(_, found, why) => board.tell(LaneEvent::Refused(id, found, why)),
            LaneEvent::Done(_) => {
                file.head.set |= file.head.alone == Some(part);
                let part = file.part_over(part, true);
                // No temporary can be created for this target.
                if file.is_put() && file.temp.is_none() && file.stage == SplitStage::Moving {
                    return self.do_in_place(board, id);
                }
                self.tell_news(board, id);
                self.tell_safe(board, id, part.map(|part| part.from));
                self.go_on(board, id);
            }
            LaneEvent::Abandoned(_) => {
                let part = file.part_over(part, false);
                self.tell_safe(board, id, part.map(|part| part.from));
                self.go_on(board, id);
            }
            LaneEvent::Failed(_, fault) => {
                file.part_over(part, false);
                self.on_part_failed(board, id, fault);
            }
            _ => {}
        }
    }

    fn on_part_failed(&mut self, board: &mut SchedulerState, id: JobId, fault: JobFailure) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        // A server that takes data in order only, as into an object store, continues no file.
        if file.starts_anew_after(&fault) {
            board.tell(LaneEvent::Warning(id, NOT_CONTINUED.to_owned()));
            return self.do_whole(board, id);
        }
        match file.stage {
            // Even if others have completed the range: no request of a file may have been refused
            // when it gets its name.
            SplitStage::Moving => self.fail_file(board, id, fault),
            _ => self.go_on(board, id),
        }
    }

    pub(in super::super) fn tell_news(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let news = match file.stage {
            SplitStage::Moving => file.news(),
            _ => 0,
        };
        if news > 0 {
            board.tell(LaneEvent::Progress(id, news));
        }
    }

    /// Reports the settled range around `offset` after a part has ended.
    fn tell_safe(&self, board: &mut SchedulerState, id: JobId, offset: Option<u64>) {
        let file = self
            .files
            .get(&id)
            .filter(|f| f.stage == SplitStage::Moving);
        let settled = file.and_then(|f| f.settled(board.now(), offset?));
        if let Some((from, to)) = settled {
            board.tell(LaneEvent::Safe(id, from, to));
        }
    }

    pub(super) fn state(&self, board: &mut SchedulerState, id: JobId, state: FileCopyState) {
        board.tell(LaneEvent::State(id, state));
    }

    /// Moves a file to its next stage, if nothing is pending.
    pub(in super::super) fn go_on(&mut self, board: &mut SchedulerState, id: JobId) {
        board.has_work();
        self.abandon_needless(board, id);
        let now = board.now();
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if !file.running.is_empty() {
            return;
        }
        match file.stage {
            SplitStage::Moving if file.is_complete() && file.fence.is_over(now) => {
                self.name(board, id)
            }
            SplitStage::GivingUp => self.clean(board, id),
            SplitStage::Cleaning(then) if !file.held => self.over(board, id, then),
            _ => {}
        }
    }

    /// Abandons parts whose bytes others have completed, and all parts of a file that is given up.
    fn abandon_needless(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let (end, moving) = (file.end.at, file.stage == SplitStage::Moving);
        // Without its temporary even an empty file is not complete.
        let made = !file.is_put() || file.temp.is_some();
        for (part, running) in &mut file.running {
            let to = running.to.min(end.unwrap_or(u64::MAX));
            // Only the last part can tell the end of the file.
            let needed = end.is_none() && running.to == u64::MAX;
            let done = made && !needed && file.safe.contains(running.from, to);
            if (done || !moving) && !running.abandoned {
                running.abandoned = true;
                board.order(LaneOrder::Abandon(running.lane, *part));
            }
        }
    }

    /// Handles the loss of a lane with parts of the file, which the file may have caused (`counts`).
    /// The lane may write them until `until`; `None` if it cannot write them now.
    pub(in super::super) fn lane_lost(
        &mut self,
        id: JobId,
        lane: LaneId,
        counts: bool,
        until: Option<Instant>,
    ) {
        if let Some(file) = self.files.get_mut(&id) {
            file.losses += u32::from(counts);
            // Only writes into the temporary can arrive after the rename.
            if let (Some(until), true) = (until, file.is_put() && file.temp.is_some()) {
                file.fence.lost(lane, until);
            }
        }
    }

    /// Handles the loss of a part with its lane.
    pub(in super::super) fn part_lost(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        part: JobId,
        why: &str,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let had = file.part_lost(part);
        if file.lacks_temp() {
            // Without a temporary, no bytes count as written.
            file.keeping.forget_written();
            file.head.begun = false;
            file.end.at = None;
            if file.stage == SplitStage::Moving {
                file.unclaimed = ByteRanges::all();
            }
        }
        let began = had.is_some_and(|part| part.progress > 0);
        if file.access.relayed {
            // The bytes that the lane had taken from the relay, or would have put into it, are gone.
            let fault = JobFailure::new(why, true).of_kind(JobFailureKind::ConnectionLost);
            self.fail_file(board, id, fault);
        } else if file.losses >= MOST_PART_LOSSES {
            let fault = JobFailure::new(why, true);
            self.fail_file(board, id, fault);
        } else if !file.access.seekable && began {
            self.do_whole(board, id);
        } else {
            self.go_on(board, id);
        }
    }

    /// Handles the loss of the rename with its lane, which the file may have caused (`counts`).
    pub(in super::super) fn finish_lost(&mut self, id: JobId, counts: bool) -> bool {
        let file = self.files.get_mut(&id);
        file.is_some_and(|file| {
            file.finish_lost = true;
            file.losses += if counts { RENAME_LOSS } else { 0 };
            if file.losses >= MOST_PART_LOSSES {
                file.fail(JobFailure::new(RENAME_UNANSWERED, true));
            }
            true
        })
    }

    /// Starts the file over under another name, since a lost lane may still create this temporary.
    pub(in super::super) fn temp_is_uncertain(&mut self, id: JobId) {
        if let Some(file) = self.files.get_mut(&id).filter(|f| f.temp.is_none()) {
            file.another_name();
        }
    }

    /// Looks for the temporary of a file whose rename was lost.
    pub(in super::super) fn check(&self, board: &mut SchedulerState, id: JobId) {
        // If the rename has happened, making room for it again would move the new file itself
        // aside.
        if let Some(path) = self.files.get(&id).and_then(SplitFile::temporary) {
            let follow = false;
            board.urgent(JobKind::Stat { path, follow }, AssignedRole::Check(id));
        }
    }

    /// Records that no more requests of a lane are executed after `until`.
    pub(in super::super) fn lane_ends(&mut self, lane: LaneId, until: Option<Instant>) {
        let fences = self.files.values_mut().map(|file| &mut file.fence);
        for fence in fences.chain(self.left_fences.values_mut()) {
            fence.ends(lane, until);
        }
    }

    /// Renames files that waited until lost lanes could no longer write them.
    pub(in super::super) fn name_what_waited(&mut self, board: &mut SchedulerState) {
        let now = board.now();
        let waits = |(_, f): &(&JobId, &SplitFile)| f.waits_for_name() && f.fence.is_over(now);
        let ids: Vec<JobId> = self.files.iter().filter(waits).map(|(id, _)| *id).collect();
        for id in ids {
            self.go_on(board, id);
        }
    }

    /// Returns the time of the next delayed rename.
    pub(in super::super) fn next_name(&self) -> Option<Instant> {
        let waiting = self.files.values().filter(|f| f.waits_for_name());
        waiting.filter_map(|f| f.fence.until()).min()
    }

    /// Fails every file.
    pub(in super::super) fn fail_all(&mut self, board: &mut SchedulerState, fault: &JobFailure) {
        let ids: Vec<JobId> = self.files.keys().copied().collect();
        for id in ids {
            self.fail_file(board, id, fault.clone());
        }
    }

    /// Gives all files up, since no lane is left: returns each with its fault and the temporary
    /// that is left, unless the journal has it.
    pub(in super::super) fn give_up(
        &mut self,
        board: &mut SchedulerState,
    ) -> Vec<(JobId, Option<JobFailure>, Option<RemotePath>)> {
        let mut given = Vec::new();
        for (id, file) in std::mem::take(&mut self.files) {
            if file.is_kept() {
                board.leave();
            }
            self.let_go(board, &file);
            let temporary = file.temporary().filter(|_| !file.is_kept());
            given.push((id, file.fault, temporary));
        }
        given
    }

    /// Returns true if a large journaled file is in progress.
    pub(in super::super) fn keeps(&self) -> bool {
        self.files.values().any(SplitFile::is_kept)
    }

    /// Checks the temporary of an earlier run once the source of an upload is open; false if there
    /// is none.
    pub(in super::super) fn ask_to_adopt(&self, board: &mut SchedulerState, id: JobId) -> bool {
        let Some(kind) = self.files.get(&id).and_then(SplitFile::adoption) else {
            return false;
        };
        board.urgent(kind, AssignedRole::Adopt(id));
        true
    }

    pub(in super::super) fn on_adopt(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        event: LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::Temp(_, temp) if file.stage == SplitStage::Opening => {
                if let Some(fence) = self.left_fences.remove(&temp.temp) {
                    file.fence = fence;
                }
                file.temp = Some(temp);
                file.head.begun = true;
                file.take_over();
                board.tell(LaneEvent::State(id, FileCopyState::Created));
            }
            LaneEvent::Done(_) | LaneEvent::Failed(..) => {
                if file.temp.is_none() && file.shared().is_some() {
                    return self.shared_failed(board, id, SharedFileFailure::TempLost);
                }
                if file.temp.is_none() {
                    self.leave_aside(board, id);
                }
                self.begin_moving(board, id);
                self.tell_news(board, id);
            }
            _ => {}
        }
    }

    /// Resumes a download whose local temporary of an earlier run is open.
    pub(in super::super) fn on_adopted(&mut self, board: &mut SchedulerState, id: JobId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.take_over();
            board.tell(LaneEvent::State(id, FileCopyState::Created));
            self.begin_moving(board, id);
            self.tell_news(board, id);
        }
    }

    pub(in super::super) fn on_written(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        offset: u64,
        len: u64,
    ) {
        if let Some(file) = self.files.get_mut(&id)
            && file.is_kept()
        {
            file.keeping.wrote(offset, len);
            self.checkpoints.wrote(len);
            if self.checkpoints.is_report_due(board.now()) {
                self.tell_written(board);
            }
            if self.checkpoints.is_sync_due() {
                self.sync(board);
            }
        }
    }

    /// Reports ranges that were answered and are not known to be durable.
    pub(in super::super) fn tell_written(&mut self, board: &mut SchedulerState) {
        let reports = self.checkpoints.take_reports(&mut self.files, board.now());
        reports.into_iter().for_each(|report| board.tell(report));
    }

    /// Returns the time of the next sync.
    pub(in super::super) fn next_sync(&self) -> Option<Instant> {
        self.checkpoints.next_sync()
    }

    pub(in super::super) fn sync_if_due(&mut self, board: &mut SchedulerState) {
        if self.next_sync().is_some_and(|at| at <= board.now()) {
            self.sync(board);
        }
    }

    /// Starts a sync of every file with data that are not durable.
    fn sync(&mut self, board: &mut SchedulerState) {
        let now = board.now();
        let begun = (self.checkpoints).begin_syncs(&mut self.files, now, || board.own_id());
        for sync in begun {
            match sync {
                SplitFileFsync::Upload { file, sync, temp } => {
                    let kind = JobKind::SyncTemp { temp };
                    board.queues_mut().push_sync(sync, kind, file);
                }
                SplitFileFsync::Download { file } => {
                    board.ask_disk(DiskRequest::SyncTarget { job: file });
                }
            }
        }
        board.has_work();
    }

    pub(in super::super) fn on_sync(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        event: LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::State(_, FileCopyState::Synced) => file.keeping.is_durable(),
            LaneEvent::Attributes(_, seen) => {
                let seconds = seen.times.map_or(0, |(_, m)| u64::from(m));
                file.keeping.set_mtime(seconds * 1_000_000_000);
            }
            LaneEvent::Done(sync) => self.on_synced(board, id, sync),
            // The written ranges stay not durable; the next sync may succeed.
            LaneEvent::Failed(sync, _) | LaneEvent::Abandoned(sync) => self.sync_lost(id, sync),
            _ => {}
        }
    }

    pub(in super::super) fn sync_lost(&mut self, id: JobId, sync: JobId) {
        let file = self.files.get_mut(&id);
        if file.is_some_and(|file| file.keeping.sync_lost(sync)) {
            self.checkpoints.sync_lost();
        }
    }

    /// Handles the disk's reply to a sync of a download's target.
    pub(in super::super) fn on_disk_synced(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        mtime: u64,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.keeping.is_durable();
        file.keeping.set_mtime(mtime);
        if let Some(sync) = file.keeping.syncing() {
            self.on_synced(board, id, sync);
        }
    }

    fn on_synced(&mut self, board: &mut SchedulerState, id: JobId, sync: JobId) {
        let file = self.files.get_mut(&id);
        if let Some(kept) = file.and_then(|file| file.synced(sync)) {
            board.tell(LaneEvent::Kept(id, kept));
        }
    }
}
