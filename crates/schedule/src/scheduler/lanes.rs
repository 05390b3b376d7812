use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::LN_2;
use std::time::{Duration, Instant};

use super::meter::RateMeter;
use super::{LaneId, LaneReport};
use crate::{JobId, RefusedOperations};

/// The scheduler's state of one lane: its unfinished jobs, its measured rate and its fitness for
/// further jobs.
#[derive(Debug)]
pub(super) struct LaneState {
    report: LaneReport,
    /// The lane is for listings only.
    listing: bool,
    /// Bytes of large files that the lane may take in one piece if all lanes get equal shares.
    share: u64,
    usage: LaneAvailability,
    /// True once the lane has reported an event, so the server did not refuse it.
    spoke: bool,
    end: ChannelCloseState,
    /// Unfinished jobs of the lane, with the remaining bytes of each.
    jobs: BTreeMap<JobId, u64>,
    /// Remaining bytes plus the weight of each job; 128 bits, since sizes come from the server.
    load: u128,
    /// Parts of this lane that were assigned to other lanes as well.
    overtaken: BTreeSet<JobId>,
    meter: RateMeter,
    /// Start of the time in which the lane has had only parts that others completed.
    losing_since: Option<Instant>,
    /// Time of the lane's last event, or of its first job.
    heard: Instant,
    /// Time of the report since which some READ or WRITE request has always been unanswered.
    awaiting_since: Option<Instant>,
}

/// Availability of a lane for further jobs: open, retiring or closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneAvailability {
    Open,
    /// The lane gets no further jobs.
    Retiring,
    /// The owner was asked to close the lane.
    Closing(LaneCloseReason),
}

/// Reason for closing a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneCloseReason {
    /// Other lanes have completed all of its parts, and it takes too long to end them.
    Needless,
    /// The lane has reported nothing for too long.
    Silent,
}

/// End of a lane's channel, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChannelCloseState {
    Unknown,
    /// The connection was cut locally: only data that had arrived by then can still be executed.
    Cut,
    /// The server has confirmed the end.
    Confirmed,
}

/// Kinds of work that a lane may be given; a lane with room for a range takes whole jobs too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LaneCapacity {
    None,
    Jobs,
    Ranges,
}

/// Weight of a job in addition to its bytes.
const WEIGHT: u128 = 16 << 10;
/// Minimum depth in bytes that makes a lane worthwhile.
const LEAST_DEPTH: u64 = 4 << 20;
/// Budget in bytes of a lane with unknown rate.
const UNKNOWN_BUDGET: u64 = 1 << 20;
const LEAST_BUDGET: u64 = 512 << 10;
/// [`LEAST_BUDGET`] of a lane with unknown rate.
const LEAST_UNKNOWN: u64 = 64 << 10;

impl LaneState {
    pub(super) fn new(now: Instant, listing: bool, report: LaneReport) -> Self {
        Self {
            report,
            listing,
            share: u64::MAX,
            usage: LaneAvailability::Open,
            spoke: false,
            end: ChannelCloseState::Unknown,
            jobs: BTreeMap::new(),
            load: 0,
            overtaken: BTreeSet::new(),
            losing_since: None,
            meter: RateMeter::default(),
            heard: now,
            awaiting_since: report.awaits_data.then_some(now),
        }
    }

    pub(super) fn report(&self) -> &LaneReport {
        &self.report
    }

    /// Returns true if the lane is for listings only.
    pub(super) fn is_listing(&self) -> bool {
        self.listing
    }

    /// Returns the bytes that the lane may take in one piece.
    pub(super) fn share(&self) -> u64 {
        self.share
    }

    /// Gives the lane no further jobs.
    pub(super) fn retire(&mut self) {
        if self.usage == LaneAvailability::Open {
            self.usage = LaneAvailability::Retiring;
        }
    }

    /// Records that the owner is asked to close the lane.
    pub(super) fn close(&mut self, reason: LaneCloseReason) {
        self.usage = LaneAvailability::Closing(reason);
    }

    /// Returns true if the owner was asked to close the lane.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.usage, LaneAvailability::Closing(_))
    }

    /// Returns true if the loss of the lane may be the fault of a job that it had: it has reported
    /// something, and was not closed because others had completed its parts.
    pub(super) fn counts_as_loss(&self) -> bool {
        self.spoke && self.usage != LaneAvailability::Closing(LaneCloseReason::Needless)
    }

    /// Returns true once the lane has reported an event.
    pub(super) fn has_spoken(&self) -> bool {
        self.spoke
    }

    /// Records an event of the lane.
    pub(super) fn speaks(&mut self) {
        self.spoke = true;
    }

    /// Records the time at which the lane last showed activity.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Returns the time of the lane's last activity.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Returns the time for which the lane has reported nothing although its server owes it answers
    /// to READ or WRITE requests.
    pub(super) fn unanswered(&self, now: Instant) -> Option<Duration> {
        let since = self.awaiting_since?.max(self.heard);
        Some(now.saturating_duration_since(since))
    }

    /// Returns the state of the channel's end.
    pub(super) fn end(&self) -> ChannelCloseState {
        self.end
    }

    /// Records news of the end of the channel.
    pub(super) fn ends(&mut self, end: ChannelCloseState) {
        self.end = self.end.max(end);
    }

    /// Returns the unfinished jobs of the lane, in ascending order.
    pub(super) fn jobs(&self) -> impl DoubleEndedIterator<Item = JobId> + Clone {
        self.jobs.keys().copied()
    }

    /// Returns true if the lane has no unfinished job.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Records that a part of the lane is assigned to others as well.
    pub(super) fn is_overtaken(&mut self, part: JobId) {
        self.overtaken.insert(part);
    }

    /// Returns the time for which the lane has had only parts that others completed, if it does
    /// now (`losing`).
    pub(super) fn loses(&mut self, now: Instant, losing: bool) -> Duration {
        self.losing_since = losing.then(|| self.losing_since.unwrap_or(now));
        now.saturating_duration_since(self.losing_since.unwrap_or(now))
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

    /// Returns true if the lane has bytes to move, as far as sizes are known.
    fn moves(&self) -> bool {
        self.load > WEIGHT * self.jobs.len() as u128
    }

    /// Records the end of a job, with any result.
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

    /// Returns the number of bytes that the lane should hold so that it never runs dry: three
    /// seconds of data, up to twice the amount that may be in flight. Work on a slow lane is not
    /// available to others, and a slow-start rate does not last: of 32 MiB over a lossy path the
    /// first of 32 lanes took everything, and as much again was sent twice. Near the end the lane
    /// gets its share of the remainder, or the amount that keeps it busy until its next assignment.
    pub(super) fn budget(&self) -> u64 {
        let rate = self.meter.so_far();
        let moves = rate.map_or(UNKNOWN_BUDGET, |rate| (3.0 * rate) as u64);
        let busy = 3.0 * self.report.latency.as_secs_f64() + 0.25;
        let busy = rate.map_or(0, |rate| (busy * rate) as u64);
        // A file that was cut small for lanes that are still logging in is not taken by the first.
        let least = match rate {
            None => LEAST_BUDGET.min(self.share.max(LEAST_UNKNOWN)),
            Some(_) => LEAST_BUDGET,
        };
        moves
            .min(self.share.max(busy))
            .clamp(least, 2 * self.report.depth.max(LEAST_DEPTH))
    }

    /// Returns true if the lane is open and has nothing to do.
    pub(super) fn is_free(&self) -> bool {
        self.is_open() && !self.listing && self.jobs.is_empty()
    }

    pub(super) fn is_open(&self) -> bool {
        self.usage == LaneAvailability::Open
    }

    /// Returns true if the lane may be given a range.
    pub(super) fn has_room(&self) -> bool {
        self.takes_jobs() && self.overtaken.is_empty() && self.load < u128::from(self.budget())
    }

    /// Returns true if the lane may be given a whole job.
    pub(super) fn takes_jobs(&self) -> bool {
        self.is_open() && !self.listing && self.report.wants > 0
    }

    /// Returns true if the lane may be given a job that could go to other lanes too. Bytes of whole
    /// files count: 64 files of 256 KiB on each of four lanes of the first connection delayed a
    /// copy by 1.3 s after all other connections had finished.
    pub(super) fn takes_more(&self) -> bool {
        let bytes = self.load - WEIGHT * self.jobs.len() as u128;
        self.takes_jobs() && bytes < u128::from(self.budget().max(LEAST_DEPTH))
    }

    /// Returns the kinds of work that the lane may be given now.
    pub(super) fn room(&self) -> LaneCapacity {
        match self.has_room() {
            true => LaneCapacity::Ranges,
            false if self.takes_more() => LaneCapacity::Jobs,
            false => LaneCapacity::None,
        }
    }

    pub(super) fn takes_lists(&self) -> bool {
        self.is_open() && self.report.wants > 0
    }

    /// Returns true if the lane's rate is known.
    pub(super) fn is_known(&self) -> bool {
        self.meter.rate().is_some()
    }

    /// Returns the number of bytes that the lane moves in `seconds`, from its observed rate.
    pub(super) fn lasting(&self, seconds: f64) -> u64 {
        self.meter.lasting(seconds)
    }

    /// Returns the current rate in bytes per second: the last measured rate, less if the lane has
    /// been silent since.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        Some(self.slowed(now, self.meter.rate()?))
    }

    fn slowed(&self, now: Instant, rate: f64) -> f64 {
        // An idle lane is not slow.
        if self.jobs.is_empty() {
            return rate;
        }
        let silent = now.saturating_duration_since(self.heard).as_secs_f64();
        let owed = (silent * rate).max(1.0);
        match self.is_silent(now) {
            true => (rate * rate / owed).max(1.0),
            false => rate,
        }
    }

    /// Returns true if the lane has been silent for longer than its usual response time: it has
    /// become slower, or stopped.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let silent = now.saturating_duration_since(self.heard);
        silent > 2 * self.report.latency + Duration::from_millis(250)
    }

    /// Estimates the rate of a lane that has moved nothing yet: the usual rate, less the longer its
    /// first answer takes.
    fn guessed(&self, now: Instant, usual: f64) -> f64 {
        let silent = now.saturating_duration_since(self.heard).as_secs_f64();
        match self.jobs.is_empty() || silent < 2.0 * self.report.latency.as_secs_f64() + 0.5 {
            true => usual,
            false => usual / (1.0 + 4.0 * silent),
        }
    }

    /// Returns the time for the lane's current work and `more` bytes.
    pub(super) fn takes(&self, now: Instant, more: u64, usual: f64) -> Duration {
        let rate = self.rate(now).unwrap_or_else(|| self.guessed(now, usual));
        self.lasts(more, rate)
    }

    /// Returns the time after which the lane will have finished its work. In slow start its rate
    /// doubles with each answer: at the rate seen so far, every lane of a copy of 16 MiB over 114
    /// ms looked slow, so twice the file was sent and the rename waited for all of it.
    pub(super) fn ends_after(&self, now: Instant, usual: f64) -> Duration {
        let steady = self.takes(now, 0, usual);
        let trip = self.report.latency.as_secs_f64();
        let silent = now.saturating_duration_since(self.heard) > 2 * self.report.latency;
        let Some(rate) = self.meter.growing().filter(|_| !silent && trip > 0.0) else {
            return steady;
        };
        let trips = (self.load as f64 * LN_2 / (rate * trip).max(1.0)).ln_1p() / LN_2;
        let doubling = Duration::try_from_secs_f64((trips + 1.0) * trip).unwrap_or(steady);
        steady.min(doubling)
    }

    /// Returns the time for the lane's current work at its observed rate, if there is one.
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

/// All lanes, and figures common to them.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_id: BTreeMap<LaneId, LaneState>,
    /// Lowest latency of a request over all lanes that ever existed, zero if unknown. Lanes share
    /// it since they lead to one server: a lane opened behind a full connection never measures less
    /// than seconds.
    least_latency: Duration,
}

/// Assumed rate of an unknown lane in bytes per second: a stock window on a long path.
const UNKNOWN_RATE: f64 = 10e6;

impl Lanes {
    pub(super) fn insert(&mut self, id: LaneId, lane: LaneState) {
        self.by_id.insert(id, lane);
    }

    pub(super) fn remove(&mut self, id: LaneId) -> Option<LaneState> {
        self.by_id.remove(&id)
    }

    pub(super) fn get(&self, id: LaneId) -> Option<&LaneState> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LaneId) -> Option<&mut LaneState> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneId, &LaneState)> + Clone {
        self.by_id.iter().map(|(id, lane)| (*id, lane))
    }

    /// Returns true if `is` holds for any lane.
    pub(super) fn any(&self, is: impl Fn(&LaneState) -> bool) -> bool {
        self.by_id.values().any(is)
    }

    /// Sets the bytes that each lane may take in one piece.
    pub(super) fn set_share(&mut self, share: u64) {
        self.by_id.values_mut().for_each(|lane| lane.share = share);
    }

    /// Returns the lowest latency over all lanes that ever existed, zero if unknown.
    pub(super) fn least_latency(&self) -> Duration {
        self.least_latency
    }

    pub(super) fn usual_rate(&self, now: Instant) -> f64 {
        let rates: Vec<f64> = self.by_id.values().filter_map(|l| l.rate(now)).collect();
        match rates.is_empty() {
            true => UNKNOWN_RATE,
            false => rates.iter().sum::<f64>() / rates.len() as f64,
        }
    }

    /// Returns the lane that would finish first, among those for which `may` holds.
    pub(super) fn best(&self, now: Instant, may: impl Fn(&LaneState) -> bool) -> Option<LaneId> {
        let usual = self.usual_rate(now);
        // A lane without any event yet is assumed to be as far away as the farthest lane.
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

    /// Updates the report of a lane.
    pub(super) fn reports(&mut self, now: Instant, lane: LaneId, report: LaneReport) {
        if let Some(state) = self.by_id.get_mut(&lane) {
            state.report = report;
            let since = state.awaiting_since.unwrap_or(now);
            state.awaiting_since = report.awaits_data.then_some(since);
        }
        let known = [self.least_latency, report.latency].into_iter();
        let known = known.filter(|latency| !latency.is_zero());
        self.least_latency = known.min().unwrap_or_default();
    }

    /// Returns true if the server supports several open handles for one file, as OpenSSH's and ours
    /// do; other servers lock the file, take data only in order, or act on every CLOSE. `None`
    /// while unknown.
    pub(super) fn share_files(&self) -> Option<bool> {
        let open = self.by_id.values().filter(|l| l.is_open());
        let shares = open.filter_map(|l| l.report.shares_files);
        shares.reduce(|all, one| all && one)
    }

    /// Returns the operations that the server refuses.
    pub(super) fn refusals(&self) -> RefusedOperations {
        let each = self.by_id.values().map(|l| l.report.refusals);
        each.reduce(RefusedOperations::and).unwrap_or_default()
    }

    /// Returns the number of lanes that move files.
    pub(super) fn working(&self) -> usize {
        let works = |l: &&LaneState| l.is_open() && !l.listing;
        self.by_id.values().filter(works).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: lanes in slow start looked slow, so other lanes sent their data once more.
    #[test]
    fn a_lane_in_slow_start_ends_sooner_than_its_rate_says() {
        let mut now = testkit::sftp_model::epoch();
        let report = LaneReport {
            latency: Duration::from_millis(100),
            ..LaneReport::default()
        };
        let mut lane = LaneState::new(now, false, report);
        let job = JobId(1);
        lane.gets(now, job, 8 << 20);
        let mut moves = |lane: &mut LaneState, bytes| {
            for _ in 0..25 {
                now += Duration::from_millis(10);
                lane.moved(now, job, bytes);
            }
            now
        };
        for bytes in [10_000, 40_000] {
            moves(&mut lane, bytes);
        }
        let at = moves(&mut lane, 160_000);
        assert!(lane.takes(at, 0, 1e6) > Duration::from_millis(400));
        assert!(lane.ends_after(at, 1e6) < Duration::from_millis(300));
        let silent = at + Duration::from_millis(300);
        assert_eq!(lane.ends_after(silent, 1e6), lane.takes(silent, 0, 1e6));
    }
}
