use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::meter::RateMeter;
use super::{LaneId, LaneReport};
use crate::JobId;

/// A lane as the spreader knows it.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) report: LaneReport,
    /// Only listings.
    pub(super) listing: bool,
    /// What is left of large files for it, if all get the same.
    pub(super) share: u64,
    /// Gets nothing more.
    pub(super) retiring: bool,
    /// It has told something: it was not refused.
    pub(super) spoke: bool,
    /// The server has said that it is at its end.
    pub(super) over: bool,
    /// Its connection was cut: what had arrived there by then is all that comes.
    pub(super) cut: bool,
    /// It was asked to be closed.
    pub(super) closing: bool,
    /// What it was given and has not finished, with the bytes of each.
    pub(super) jobs: BTreeMap<JobId, u64>,
    /// What it still has to move, with the weight of each job; wide, since sizes are a server's
    /// word.
    load: u128,
    /// Its ranges have been given to others as well.
    pub(super) overtaken: BTreeSet<JobId>,
    meter: RateMeter,
    /// Since when it has nothing but parts that others have done.
    pub(super) losing_since: Option<Instant>,
    /// When it last told of anything, or got its first job.
    pub(super) heard: Instant,
}

/// What a lane may be given: one that has room for a range takes whole jobs too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LaneRoom {
    None,
    Jobs,
    Ranges,
}

/// What a job weighs beside its bytes.
const WEIGHT: u128 = 16 << 10;
/// Less than this is not worth a lane's while.
const LEAST_DEPTH: u64 = 4 << 20;
/// What a lane gets of which nothing is known.
const UNKNOWN_BUDGET: u64 = 1 << 20;
const LEAST_BUDGET: u64 = 512 << 10;

impl LaneState {
    pub(super) fn new(now: Instant, listing: bool, report: LaneReport) -> Self {
        Self {
            report,
            listing,
            share: u64::MAX,
            retiring: false,
            spoke: false,
            over: false,
            cut: false,
            closing: false,
            jobs: BTreeMap::new(),
            load: 0,
            overtaken: BTreeSet::new(),
            losing_since: None,
            meter: RateMeter::default(),
            heard: now,
        }
    }

    pub(super) fn gets(&mut self, now: Instant, job: JobId, bytes: u64) {
        if self.jobs.is_empty() {
            self.heard = now;
        }
        let idle = !self.moves();
        self.jobs.insert(job, bytes);
        self.load += u128::from(bytes) + WEIGHT;
        if idle && self.moves() {
            self.meter.works(now, true);
        }
        self.report.wants = self.report.wants.saturating_sub(1);
    }

    pub(super) fn moved(&mut self, now: Instant, job: JobId, bytes: u64) {
        self.heard = now;
        self.meter.moved(now, bytes);
        if let Some(left) = self.jobs.get_mut(&job) {
            let taken = bytes.min(*left);
            *left -= taken;
            self.load -= u128::from(taken);
        }
        if !self.moves() {
            self.meter.works(now, false);
        }
    }

    /// It has something to move, as far as is known.
    fn moves(&self) -> bool {
        self.load > WEIGHT * self.jobs.len() as u128
    }

    /// A job is over, whichever way.
    pub(super) fn ended(&mut self, now: Instant, job: JobId) {
        self.heard = now;
        self.overtaken.remove(&job);
        if let Some(left) = self.jobs.remove(&job) {
            self.load -= u128::from(left) + WEIGHT;
            self.report.wants += 1;
        }
        if !self.moves() {
            self.meter.works(now, false);
        }
    }

    /// How much it should have, so that it never waits for more: what it moves in three seconds,
    /// up to twice what may be in flight. What a slow lane holds, others cannot do, and a rate of
    /// slow start is not kept: of 32 MiB over a path with losses the first of 32 lanes took all,
    /// and as much again was done twice. So near the end it has its share of what is left, and
    /// what keeps it busy until it can be given more.
    pub(super) fn budget(&self) -> u64 {
        let rate = self.meter.so_far();
        let moves = rate.map_or(UNKNOWN_BUDGET, |rate| (3.0 * rate) as u64);
        let busy = 3.0 * self.report.latency.as_secs_f64() + 0.25;
        let busy = rate.map_or(0, |rate| (busy * rate) as u64);
        moves
            .min(self.share.max(busy))
            .clamp(LEAST_BUDGET, 2 * self.report.depth.max(LEAST_DEPTH))
    }

    /// It could do something, and has nothing.
    pub(super) fn is_free(&self) -> bool {
        self.is_open() && !self.listing && self.jobs.is_empty()
    }

    pub(super) fn is_open(&self) -> bool {
        !self.retiring && !self.closing
    }

    /// Whether a range may be given to it.
    pub(super) fn has_room(&self) -> bool {
        self.takes_jobs() && self.overtaken.is_empty() && self.load < u128::from(self.budget())
    }

    /// Whether a whole job may be.
    pub(super) fn takes_jobs(&self) -> bool {
        self.is_open() && !self.listing && self.report.wants > 0
    }

    /// Whether it may be another that need not be on this lane. Files that are not cut have their bytes
    /// too: 64 of 256 KiB on each of four lanes of the first connection kept a copy waiting for 1.3 s when
    /// all other connections were through.
    pub(super) fn takes_more(&self) -> bool {
        let bytes = self.load - WEIGHT * self.jobs.len() as u128;
        self.takes_jobs() && bytes < u128::from(self.budget().max(LEAST_DEPTH))
    }

    /// What it may be given now.
    pub(super) fn room(&self) -> LaneRoom {
        match self.has_room() {
            true => LaneRoom::Ranges,
            false if self.takes_more() => LaneRoom::Jobs,
            false => LaneRoom::None,
        }
    }

    pub(super) fn takes_lists(&self) -> bool {
        self.is_open() && self.report.wants > 0
    }

    /// It has shown how fast it is.
    pub(super) fn is_known(&self) -> bool {
        self.meter.rate().is_some()
    }

    /// What it moves in `seconds`, as far as it has shown.
    pub(super) fn lasting(&self, seconds: f64) -> u64 {
        self.meter.lasting(seconds)
    }

    /// Bytes a second, now: what it last reached, less if it has been silent since.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        Some(self.slowed(now, self.meter.rate()?))
    }

    fn slowed(&self, now: Instant, rate: f64) -> f64 {
        // One that has nothing to do is not slow.
        if self.jobs.is_empty() {
            return rate;
        }
        let silent = now.saturating_duration_since(self.heard).as_secs_f64();
        let owed = (silent * rate).max(1.0);
        // Silent for longer than its requests take: it is slower than it was.
        match silent > 2.0 * self.report.latency.as_secs_f64() + 0.25 {
            true => (rate * rate / owed).max(1.0),
            false => rate,
        }
    }

    /// What a lane is taken for that has moved nothing yet: the usual, and less the longer its
    /// first answer takes.
    fn guessed(&self, now: Instant, usual: f64) -> f64 {
        let silent = now.saturating_duration_since(self.heard).as_secs_f64();
        match self.jobs.is_empty() || silent < 2.0 * self.report.latency.as_secs_f64() + 0.5 {
            true => usual,
            false => usual / (1.0 + 4.0 * silent),
        }
    }

    /// How long what it has will take, and `more` on top.
    pub(super) fn takes(&self, now: Instant, more: u64, usual: f64) -> Duration {
        let rate = self.rate(now).unwrap_or_else(|| self.guessed(now, usual));
        self.lasts(more, rate)
    }

    /// How long what it has will take as fast as it has begun, if it has.
    pub(super) fn drains(&self, now: Instant) -> Option<Duration> {
        let rate = self.slowed(now, self.meter.so_far()?);
        Some(self.lasts(0, rate))
    }

    fn lasts(&self, more: u64, rate: f64) -> Duration {
        let bytes = (self.load + u128::from(more)) as f64;
        let moving = Duration::try_from_secs_f64(bytes / rate.max(1.0)).unwrap_or(Duration::MAX);
        moving.saturating_add(self.report.latency)
    }
}

/// The lanes, and what is usual among them.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub(super) by_id: BTreeMap<LaneId, LaneState>,
    /// What a request takes that waits behind nothing, zero if not known: the least of all lanes
    /// there ever were, since they lead to one server. One that was opened behind a full
    /// connection has never seen less than seconds.
    pub(super) least_latency: Duration,
}

/// What a lane is taken for of which nothing is known: what a stock window moves on a long path.
const UNKNOWN_RATE: f64 = 10e6;

impl Lanes {
    pub(super) fn usual_rate(&self, now: Instant) -> f64 {
        let rates: Vec<f64> = self.by_id.values().filter_map(|l| l.rate(now)).collect();
        match rates.is_empty() {
            true => UNKNOWN_RATE,
            false => rates.iter().sum::<f64>() / rates.len() as f64,
        }
    }

    /// The lane that would be done first, among those that `may`.
    pub(super) fn best(&self, now: Instant, may: impl Fn(&LaneState) -> bool) -> Option<LaneId> {
        let usual = self.usual_rate(now);
        // One that has told nothing yet is no nearer than the others.
        let far = self.by_id.values().map(|l| l.report.latency).max();
        let takes = |lane: &LaneState| {
            let unheard = far.filter(|_| !lane.spoke).unwrap_or_default();
            let unheard = unheard.saturating_sub(lane.report.latency);
            lane.takes(now, 0, usual).saturating_add(unheard)
        };
        let candidates = self.by_id.iter().filter(|(_, lane)| may(lane));
        candidates
            .min_by_key(|(id, lane)| (takes(lane), lane.jobs.len(), **id))
            .map(|(id, _)| *id)
    }

    /// What a lane can take has changed.
    pub(super) fn reports(&mut self, lane: LaneId, report: LaneReport) {
        if let Some(state) = self.by_id.get_mut(&lane) {
            state.report = report;
        }
        let known = [self.least_latency, report.latency].into_iter();
        let known = known.filter(|latency| !latency.is_zero());
        self.least_latency = known.min().unwrap_or_default();
    }

    /// Whether the server bears one file to be open several times: OpenSSH's and ours do, while
    /// others lock it, take data in order only, or act on every CLOSE. `None` before it is known.
    pub(super) fn share_files(&self) -> Option<bool> {
        let known = |l: &&LaneState| l.is_open() && l.report.known;
        let shares = self
            .by_id
            .values()
            .filter(known)
            .map(|l| l.report.shares_files);
        shares.reduce(|all, one| all && one)
    }

    /// Whether uploads are written in place.
    pub(super) fn in_place(&self) -> bool {
        self.by_id.values().any(|l| l.report.in_place)
    }

    /// Lanes that move files.
    pub(super) fn working(&self) -> usize {
        let works = |l: &&LaneState| l.is_open() && !l.listing;
        self.by_id.values().filter(works).count()
    }
}
