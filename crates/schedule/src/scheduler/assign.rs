//! Chooses the next job for each lane.

use std::collections::VecDeque;

use super::dirs::DirReadiness;
use super::file::{RunningPart, SplitFile, SplitStage};
use super::lanes::{LaneState, Lanes};
use super::{Assigned, LaneId, LaneOrder, Queued, Scheduler, dirs};
use crate::{DiskRequest, Job, JobId, JobKind};

use wire::Block;

/// Maximum number of cut files whose source or target the disk is opening.
const OPENING: usize = 4;
/// Number of MKDIRs in flight over all lanes up to which a lane may exceed its share of jobs.
const MAKING: usize = 64;
/// Number of pieces per lane into which the remaining bytes are cut.
const PIECES: u64 = 3;
/// Seconds of data in a piece on a lane so fast that this exceeds the largest piece size. Pieces of
/// 4 MiB are 800 per second on loopback, each of which is opened, closed and logged.
const LASTS: f64 = 0.1;

impl Scheduler {
    pub(super) fn give(&mut self) {
        self.give_urgent();
        self.give_syncs();
        self.give_lists();
        self.give_dirs();
        self.give_jobs();
        self.give_ranges();
        if self.overtake() {
            self.give_ranges();
        }
    }

    fn give_urgent(&mut self) {
        while !self.urgent.is_empty() {
            let open = |l: &LaneState| l.is_open() && !l.listing;
            let any = |l: &LaneState| l.is_open();
            let lanes = &self.lanes;
            let Some(lane) = lanes
                .best(self.now, open)
                .or_else(|| lanes.best(self.now, any))
            else {
                return;
            };
            if let Some((id, kind, what)) = self.urgent.pop_front() {
                self.assign(lane, Job { id, kind }, what, 0);
            }
        }
    }

    fn give_lists(&mut self) {
        let plain = |l: &LaneState| l.takes_lists() && !l.report.predicts;
        while !self.long_lists.is_empty() {
            let Some(lane) = self.lanes.best(self.now, plain) else {
                break;
            };
            if let Some(queued) = self.long_lists.pop_front() {
                self.assign_whole(lane, queued, 0);
            }
        }
        while !self.lists.is_empty() {
            // Prefer a lane for listings; otherwise take any lane.
            let own = |l: &LaneState| l.takes_lists() && l.listing;
            let lanes = &self.lanes;
            let lane = lanes.best(self.now, own);
            let Some(lane) = lane.or_else(|| lanes.best(self.now, LaneState::takes_lists)) else {
                return;
            };
            if let Some(queued) = self.lists.pop_front() {
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
            DirReadiness::Anywhere => best(&self.lanes),
            DirReadiness::NotYet => None,
            DirReadiness::Behind(lane) => {
                let state = self.lanes.by_id.get(&lane)?;
                (state.report.in_order && may(state)).then_some(lane)
            }
        }
    }

    /// Assigns MKDIRs before other jobs: files in a directory whose MKDIR is unanswered can go to
    /// one lane only. With 1,000 files of 4 KiB in each directory, 110 MB/s fill one directory in a
    /// third of a round trip.
    fn give_dirs(&mut self) {
        // A directory whose parent is queued behind it lets the parent pass: a second source that is
        // merged into the same directory makes the parent once more.
        let ready =
            |dirs: &_, queued: &Queued| dirs::place(dirs, &queued.job.kind) != DirReadiness::NotYet;
        while let Some((at, queued)) = self
            .makes
            .iter()
            .enumerate()
            .find(|(_, queued)| ready(&self.dirs, queued))
        {
            let few = self.dirs.begun() < MAKING;
            let may = |l: &LaneState| l.takes_jobs() || few && l.is_open() && !l.listing;
            let best = |lanes: &Lanes| {
                // Avoid lanes on a new, still slow connection: of 100,000 files none was in flight
                // for half a second.
                let known = |l: &LaneState| may(l) && l.is_known();
                let lane = lanes.best(self.now, known);
                lane.or_else(|| lanes.best(self.now, may))
            };
            let Some(lane) = self.lane_for(self.place(&queued.job.kind), may, best) else {
                return;
            };
            let Some(queued) = self.makes.remove(at) else {
                return;
            };
            if let Some(path) = dirs::target(&queued.job.kind) {
                self.dirs.begin(path, queued.job.id, lane);
            }
            self.assign_whole(lane, queued, 0);
        }
    }

    fn give_jobs(&mut self) {
        while let Some(queued) = self.waiting.front() {
            let sets = matches!(queued.job.kind, JobKind::SetAttributes { .. });
            let place = match sets {
                true => self
                    .settings
                    .lane()
                    .map_or(DirReadiness::Anywhere, DirReadiness::Behind),
                false => self.place(&queued.job.kind),
            };
            let best = |lanes: &Lanes| lanes.best(self.now, LaneState::takes_more);
            let Some(lane) = self.lane_for(place, LaneState::takes_jobs, best) else {
                return;
            };
            let Some(queued) = self.waiting.pop_front() else {
                return;
            };
            let in_order = |l: &LaneState| l.report.in_order;
            if sets && self.lanes.by_id.get(&lane).is_some_and(in_order) {
                self.settings.begin(queued.job.id, lane);
            }
            let size = queued.hint.size.unwrap_or(0);
            self.assign_whole(lane, queued, size);
        }
    }

    pub(super) fn give_ranges(&mut self) {
        loop {
            let share = self.share();
            for lane in self.lanes.by_id.values_mut() {
                lane.share = share;
            }
            let Some(lane) = self.lanes.best(self.now, LaneState::has_room) else {
                return;
            };
            let may = |(_, file): &(&JobId, &SplitFile)| file.claimable() && self.has_place(file);
            let claimable = self.files.iter().find(may);
            let Some(id) = claimable.map(|(id, _)| *id) else {
                self.begin_files();
                return;
            };
            self.give_range(lane, id);
        }
    }

    /// Returns true if the file's directory exists, or will exist before the file on its lane.
    fn has_place(&self, file: &SplitFile) -> bool {
        match self.place(&file.job.kind) {
            _ if file.headed => true,
            DirReadiness::Anywhere => true,
            place => self.lane_for(place, LaneState::is_open, |_| None).is_some(),
        }
    }

    /// Returns the size of the next piece in bytes. Each lane gets several pieces of the remainder,
    /// and the last pieces are small, since the lane with the last piece delays all others.
    fn piece(&self, lane: LaneId) -> u64 {
        let lane = self.lanes.by_id.get(&lane);
        let depth = lane.map_or(0, |l| l.report.depth);
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
        let share = lane.map_or(0, |l| l.share);
        let piece = share.clamp(least, most.min(quick).max(least));
        piece.next_multiple_of(self.options.unit.max(1))
    }

    /// Returns the bytes left of large files, divided by the number of lanes and by [`PIECES`].
    fn share(&self) -> u64 {
        let queued = self.large.iter().map(|q| q.hint.size.unwrap_or(0));
        let left = super::total(queued.chain(self.files.values().map(SplitFile::left)));
        let lanes = self.lanes.working().max(self.expected.lanes).max(1);
        left / (lanes as u64 * PIECES)
    }

    fn give_range(&mut self, mut lane: LaneId, id: JobId) {
        let piece = self.piece(lane);
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if !file.headed
            && let DirReadiness::Behind(above) = dirs::place(&self.dirs, &file.job.kind)
        {
            lane = above;
        }
        let Some((from, mut to)) = file.claim(piece) else {
            return;
        };
        if file.is_put() && !file.headed && file.one_handle {
            file.headed = true;
        } else if file.is_put() && !file.headed {
            file.headed = true;
            // The first part has a length; other lanes take the bytes after it.
            let until = to.min(file.size().max(1));
            file.unclaimed.insert(until, to);
            to = until;
        }
        let Some(kind) = file.part(from, to) else {
            return;
        };
        let bytes = to.min(file.size()).saturating_sub(from);
        let part = self.own_id();
        let running = RunningPart {
            lane,
            from,
            to,
            progress: 0,
            overtaken: false,
            abandoned: false,
        };
        if let Some(file) = self.files.get_mut(&id) {
            if let JobKind::CreateTemp { alone: true, .. } = kind {
                file.alone = Some(part);
            }
            file.running.insert(part, running);
        }
        let job = Job { id: part, kind };
        self.assign(lane, job, Assigned::Part(id), bytes);
    }

    fn assign_whole(&mut self, lane: LaneId, queued: Queued, bytes: u64) {
        let job = queued.job.clone();
        self.assign(lane, job, Assigned::Whole(Box::new(queued)), bytes);
    }

    pub(super) fn assign(&mut self, lane: LaneId, job: Job, what: Assigned, bytes: u64) {
        if let Some(state) = self.lanes.by_id.get_mut(&lane) {
            state.gets(self.now, job.id, bytes);
        }
        self.assigned.insert(job.id, (lane, what));
        self.orders.push_back(LaneOrder::Push(lane, job));
    }

    /// Opens the next large files; their parts are assigned once the disk has answered.
    fn begin_files(&mut self) {
        // Before the server's VERSION, nothing could be sent anyway.
        let Some(shares) = self.lanes.share_files() else {
            return;
        };
        if self.lanes.in_place() {
            self.do_uploads_whole();
        }
        let opening = |f: &&SplitFile| f.stage == SplitStage::Opening;
        while self.files.values().filter(opening).count() < OPENING {
            let Some(queued) = self.large.pop_front() else {
                return;
            };
            self.begin_file(queued, !shares || self.options.one_handle);
        }
    }

    /// Queues large uploads as whole files, one lane each, since the server allows no temporaries.
    fn do_uploads_whole(&mut self) {
        let is_put = |queued: &Queued| matches!(queued.job.kind, JobKind::Put { .. });
        let large = std::mem::take(&mut self.large);
        let (puts, gets): (VecDeque<_>, VecDeque<_>) = large.into_iter().partition(is_put);
        self.large = gets;
        for mut queued in puts.into_iter().rev() {
            queued.whole = true;
            self.queue(queued, true);
        }
        self.give_jobs();
    }

    fn begin_file(&mut self, queued: Queued, one_handle: bool) {
        let Queued { job, hint, .. } = queued;
        let id = job.id;
        let (request, attributes) = match &job.kind {
            JobKind::Put {
                source, options, ..
            } => {
                let first = Block::default();
                let path = source.clone();
                let job = id;
                let open = DiskRequest::OpenSource {
                    job,
                    path,
                    first,
                    sparse: options.sparse && !one_handle,
                    pack: None,
                };
                (open, crate::Attributes::default())
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
            _ => return,
        };
        let mut file = SplitFile::new(job, hint, attributes);
        file.attributes.size = file.attributes.size.or(hint.size);
        file.losses = queued.losses;
        file.one_handle = one_handle;
        self.files.insert(id, file);
        self.disk.push_back(request);
    }
}
