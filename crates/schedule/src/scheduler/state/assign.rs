//! Chooses the next job for each lane.

use super::super::dirs::{self, DirReadiness};
use super::super::lanes::{LaneState, Lanes};
use super::super::queues::{JobQueueKind, QueuedJob};
use super::super::split::SplitFiles;
use super::super::{LaneId, LaneOrder, total};
use super::{AssignedRole, SchedulerState};
use crate::{Job, JobKind, RefusedOperations};

/// Maximum number of cut files whose source or target the disk is opening.
const OPENING: usize = 4;
/// Number of MKDIRs in flight over all lanes up to which a lane may exceed its share of jobs.
const MAKING: usize = 64;
/// Number of pieces per lane into which the remaining bytes are cut.
const PIECES: u64 = 3;
/// Seconds of data in a piece on a lane so fast that this exceeds the largest piece size. Pieces of
/// 4 MiB are 800 per second on loopback, each of which is opened, closed and logged.
const LASTS: f64 = 0.1;

impl SchedulerState {
    /// Assigns what can be assigned, parts of `files` last.
    pub(in super::super) fn give(&mut self, files: &mut SplitFiles) {
        self.give_urgent();
        self.give_syncs(files);
        self.give_lists();
        self.give_dirs();
        self.give_jobs();
        self.give_ranges(files);
    }

    fn give_urgent(&mut self) {
        while self.queues.has_urgent() {
            let open = |l: &LaneState| l.is_open() && !l.is_listing();
            let any = |l: &LaneState| l.is_open();
            let lanes = &self.lanes;
            let Some(lane) = lanes
                .best(self.now, open)
                .or_else(|| lanes.best(self.now, any))
            else {
                return;
            };
            if let Some((id, kind, role)) = self.queues.pop_urgent() {
                self.assign(lane, Job { id, kind }, role, 0);
            }
        }
    }

    fn give_syncs(&mut self, files: &SplitFiles) {
        while self.queues.next_sync(|file| files.get(file).is_some()) {
            let side = |l: &LaneState| l.is_open() && l.is_listing();
            let any = |l: &LaneState| l.is_open();
            // An owner that cannot open another lane has tried before.
            let waits = self.wants_side_lane() && !self.no_side_lane;
            let lanes = &self.lanes;
            let lane = match lanes.best(self.now, side) {
                None if waits => None,
                None => lanes.best(self.now, any),
                lane => lane,
            };
            let Some(lane) = lane else { return };
            if let Some((id, kind, file)) = self.queues.pop_sync() {
                self.assign(lane, Job { id, kind }, AssignedRole::Sync(file), 0);
            }
        }
    }

    fn give_lists(&mut self) {
        let plain = |l: &LaneState| l.takes_lists() && !l.report().predicts;
        while !self.queues.of(JobQueueKind::LongLists).is_empty() {
            let Some(lane) = self.lanes.best(self.now, plain) else {
                break;
            };
            if let Some(queued) = self.queues.pop(JobQueueKind::LongLists) {
                self.assign_whole(lane, queued, 0);
            }
        }
        while !self.queues.of(JobQueueKind::Lists).is_empty() {
            // Prefer a lane for listings; otherwise take any lane.
            let own = |l: &LaneState| l.takes_lists() && l.is_listing();
            let lanes = &self.lanes;
            let lane = lanes.best(self.now, own);
            let Some(lane) = lane.or_else(|| lanes.best(self.now, LaneState::takes_lists)) else {
                return;
            };
            if let Some(queued) = self.queues.pop(JobQueueKind::Lists) {
                self.assign_whole(lane, queued, 0);
            }
        }
    }

    fn place(&self, kind: &JobKind) -> DirReadiness {
        dirs::place(&self.dirs, kind)
    }

    /// Returns the lane for work in directory state `place`: the lane that makes the directory, if
    /// it handles requests in order and `may` holds, or the `best` lane.
    fn lane_for(
        &self,
        place: DirReadiness,
        may: impl Fn(&LaneState) -> bool,
        best: impl FnOnce(&Lanes) -> Option<LaneId>,
    ) -> Option<LaneId> {
        match place {
            DirReadiness::Exists => best(&self.lanes),
            DirReadiness::Unassigned => None,
            DirReadiness::MakeInFlight(lane) => {
                let state = self.lanes.get(lane)?;
                (state.report().in_order && may(state)).then_some(lane)
            }
        }
    }

    /// Assigns MKDIRs before other jobs: files in a directory whose MKDIR is unanswered can go to
    /// one lane only. With 1,000 files of 4 KiB in each directory, 110 MB/s fill one directory in a
    /// third of a round trip.
    fn give_dirs(&mut self) {
        // A directory whose parent is queued behind it lets the parent pass: a second source that
        // is merged into the same directory makes the parent once more.
        let ready = |dirs: &_, queued: &QueuedJob| {
            dirs::place(dirs, queued.kind()) != DirReadiness::Unassigned
        };
        while let Some((at, queued)) = self
            .queues
            .of(JobQueueKind::Makes)
            .iter()
            .enumerate()
            .find(|(_, queued)| ready(&self.dirs, queued))
        {
            let few = self.dirs.begun() < MAKING;
            let may = |l: &LaneState| l.takes_jobs() || few && l.is_open() && !l.is_listing();
            let best = |lanes: &Lanes| {
                // Avoid lanes on a new, still slow connection: of 100,000 files none was in flight
                // for half a second.
                let known = |l: &LaneState| may(l) && l.is_known();
                let lane = lanes.best(self.now, known);
                lane.or_else(|| lanes.best(self.now, may))
            };
            let Some(lane) = self.lane_for(self.place(queued.kind()), may, best) else {
                return;
            };
            let Some(queued) = self.queues.take(JobQueueKind::Makes, at) else {
                return;
            };
            if let Some(path) = dirs::target(queued.kind()) {
                self.dirs.begin(path, queued.id(), lane);
            }
            self.assign_whole(lane, queued, 0);
        }
    }

    fn give_jobs(&mut self) {
        while let Some(queued) = self.queues.of(JobQueueKind::Waiting).front() {
            let sets = matches!(queued.kind(), JobKind::SetAttributes { .. });
            let place = match sets {
                true => self
                    .settings
                    .lane()
                    .map_or(DirReadiness::Exists, DirReadiness::MakeInFlight),
                false => self.place(queued.kind()),
            };
            let best = |lanes: &Lanes| lanes.best(self.now, LaneState::takes_more);
            let Some(lane) = self.lane_for(place, LaneState::takes_jobs, best) else {
                return;
            };
            let Some(queued) = self.queues.pop(JobQueueKind::Waiting) else {
                return;
            };
            let in_order = |l: &LaneState| l.report().in_order;
            if sets && self.lanes.get(lane).is_some_and(in_order) {
                self.settings.begin(queued.id(), lane);
            }
            let size = queued.hint().size.unwrap_or(0);
            self.assign_whole(lane, queued, size);
        }
    }

    /// Assigns parts of cut files.
    pub(in super::super) fn give_ranges(&mut self, files: &mut SplitFiles) {
        loop {
            let share = self.share(files);
            self.lanes.set_share(share);
            let Some(lane) = self.lanes.best(self.now, LaneState::has_room) else {
                return;
            };
            // The file's directory exists, or will exist before the file on its lane.
            let may = |kind: &JobKind| match self.place(kind) {
                DirReadiness::Exists => true,
                place => self.lane_for(place, LaneState::is_open, |_| None).is_some(),
            };
            match files.next_claimable(may) {
                Some(id) => self.give_range(lane, id, files),
                None => return self.begin_files(files),
            }
        }
    }

    /// Returns the size of the next piece in bytes. Each lane gets several pieces of the remainder,
    /// and the last pieces are small, since the lane with the last piece delays all others.
    fn piece(&self, lane: LaneId) -> u64 {
        let lane = self.lanes.get(lane);
        let depth = lane.map_or(0, |l| l.report().depth);
        // Keeps a fast lane from spending its time on opening and closing the file.
        let lasting = lane.map_or(0, |l| l.lasting(LASTS));
        let most = depth
            .clamp(self.options.most / 4, self.options.most)
            .max(lasting);
        // A slow lane gets at most two seconds of data, since the lane with the last piece delays
        // the file.
        let rate = lane.and_then(|l| l.rate(self.now));
        let rate = rate.unwrap_or_else(|| self.lanes.usual_rate(self.now));
        let quick = (2.0 * rate) as u64;
        let least = self.options.least.min(quick).max(self.options.unit);
        let share = lane.map_or(0, LaneState::share);
        let piece = share.clamp(least, most.min(quick).max(least));
        piece.next_multiple_of(self.options.unit.max(1))
    }

    /// Returns the bytes left of large files, divided by the number of lanes and by [`PIECES`].
    fn share(&self, files: &SplitFiles) -> u64 {
        let large = self.queues.of(JobQueueKind::Large).iter();
        let queued = large.map(|q| q.hint().size.unwrap_or(0));
        let left = total(queued.chain(files.left()));
        let lanes = self.lanes.working().max(self.expected.lanes()).max(1);
        left / (lanes as u64 * PIECES)
    }

    fn give_range(&mut self, lane: LaneId, id: crate::JobId, files: &mut SplitFiles) {
        let piece = self.piece(lane);
        let lane = match files.head_of(id).map(|kind| self.place(kind)) {
            Some(DirReadiness::MakeInFlight(above)) => above,
            _ => lane,
        };
        let Some(claimed) = files.claim(id, piece) else {
            return;
        };
        let part = self.own_id();
        let (kind, bytes) = files.runs(id, part, lane, claimed);
        self.assign(lane, Job { id: part, kind }, AssignedRole::Part(id), bytes);
    }

    fn assign_whole(&mut self, lane: LaneId, queued: QueuedJob, bytes: u64) {
        let job = queued.job().clone();
        self.assign(lane, job, AssignedRole::Whole(Box::new(queued)), bytes);
    }

    fn assign(&mut self, lane: LaneId, job: Job, role: AssignedRole, bytes: u64) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.gets(self.now, job.id, bytes);
        }
        self.assigned.insert(job.id, lane, role);
        self.orders.push_back(LaneOrder::Push(lane, job));
    }

    /// Opens the next large files; their parts are assigned once the disk has answered.
    fn begin_files(&mut self, files: &mut SplitFiles) {
        // Before the server's VERSION, nothing could be sent anyway.
        let Some(shares) = self.lanes.share_files() else {
            return;
        };
        let refusals = self.lanes.refusals();
        if refusals.in_place_somewhere() {
            self.do_uploads_whole(refusals);
        }
        while files.opening() < OPENING {
            let Some(queued) = self.queues.pop(JobQueueKind::Large) else {
                return;
            };
            let one_handle = !shares || self.options.one_handle;
            if let Some(request) = files.begin(queued, one_handle) {
                self.disk.push_back(request);
            }
        }
    }

    /// Queues large uploads as whole files, one lane each, where the server allows no temporaries.
    fn do_uploads_whole(&mut self, refusals: RefusedOperations) {
        for mut queued in self.queues.take_large_uploads(refusals).into_iter().rev() {
            queued.make_whole();
            self.queue(queued, true);
        }
        self.give_jobs();
    }
}
