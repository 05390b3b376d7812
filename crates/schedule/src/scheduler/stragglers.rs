//! Repeats the work of slow or stalled lanes on other lanes.

use std::time::{Duration, Instant};

use super::assignments::AssignedRole;
use super::lanes::{LaneCloseReason, LaneState};
use super::split::{SplitFile, SplitFiles};
use super::state::SchedulerState;
use super::{LaneId, LaneOrder};
use crate::{JobId, JobKind};

/// Interval for comparing lanes while one of them is idle.
const COMPARE: Duration = Duration::from_millis(50);
/// Longest silence of a lane while others report events.
const SILENT: Duration = Duration::from_secs(30);
/// Longest silence of a lane whose server was asked to make data durable, which takes time.
const SYNCING: Duration = Duration::from_secs(300);
/// Longest silence while a whole file waits for its rename: a lane that looked idle may have
/// stopped long before it got the rename.
const NAMING: Duration = Duration::from_secs(15);
/// Longest silence while a whole file waits for its temporary.
const CREATING: Duration = Duration::from_secs(8);
/// Longest silence of a lane of a file between two hosts while its server owes it answers.
const RELAYED: Duration = Duration::from_secs(60);
/// Longest silence while all other lanes have finished and wait.
const LAST: Duration = Duration::from_secs(8);
/// Least gain in response times for which work of a lane that still answers is repeated: the path
/// carries its bytes twice, and a lane that recovers from losses, or gets the share of lanes that
/// have finished, becomes faster than it was. Of 16 MiB over 114 ms and 100 Mbit/s, 5 MB were sent
/// twice, and the copy took 2.80 s in place of 2.61.
const GAIN: u32 = 8;
/// Interval for looking for silent lanes.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time for ending a needless part that its file alone waits for.
const LOSER: Duration = Duration::from_secs(1);
/// Longest time for ending a needless part when every byte is there and nothing else is left to do:
/// of 1 GiB over 1 % loss, a connection that had fallen behind delayed a copy of 17 s by 2 s.
const LAST_LOSER: Duration = Duration::from_millis(250);
/// Longest time for ending a needless part if the server executes sent requests in any case: the
/// rename waits for them, with the lane closed or open.
const SENT: Duration = Duration::from_secs(4);
/// Shortest patience in multiples of the lowest latency of a request.
const LATENCIES: u32 = 20;

/// Assigns work of slow lanes to idle lanes as well; true if there is something to assign.
pub(super) fn overtake(board: &mut SchedulerState, files: &mut SplitFiles) -> bool {
    let may = board.queues().are_quiet() && board.options().overtake;
    if !may || files.any(|f| f.claimable() || f.is_opening()) {
        return false;
    }
    let Some((file, part, lane)) = slowest_part(board, files) else {
        return false;
    };
    if let Some(slow) = board.lanes_mut().get_mut(lane) {
        slow.is_overtaken(part);
    }
    let Some(file) = files.get_mut(file) else {
        return false;
    };
    let more = file.overtake(part);
    board.count_overtaken();
    more
}

/// Returns the part that another lane would complete much sooner: its file, its job and its lane.
fn slowest_part(board: &SchedulerState, files: &SplitFiles) -> Option<(JobId, JobId, LaneId)> {
    let (now, lanes) = (board.now(), board.lanes());
    let fast = lanes.get(lanes.best(now, LaneState::has_room)?)?;
    let usual = lanes.usual_rate(now);
    // Idle lanes share the work: if a lane has 1.7 MB left at 0.15 MB/s, one other lane of that
    // rate saves nothing, but thirty do.
    let idle = lanes.iter().filter(|(_, l)| l.has_room()).count() as u64;
    let unit = board.options().unit.max(1);
    let mut worst: Option<(Duration, JobId, JobId, LaneId)> = None;
    for (id, file) in files.iter() {
        for (part, lane, len) in file.parts_to_repeat() {
            let Some(slow) = lanes.get(lane) else {
                continue;
            };
            let theirs = slow.ends_after(now, usual);
            // The other lane must repeat the whole range (doubled, as the estimate is rough), and
            // data in flight to the slow lane must drain before the rename.
            let drains = match slow.rate(now) {
                Some(_) => slow.report().latency,
                None => Duration::ZERO,
            };
            let share = (len / idle.max(1)).max(unit.min(len));
            // A lane that has answered nothing yet is as far away as the slow one.
            let far = slow.report().latency;
            let far = far.saturating_sub(fast.report().latency);
            let again = fast.takes(now, share, usual).saturating_add(far);
            let again = again.saturating_mul(2);
            let latency = slow.report().latency.max(fast.report().latency);
            let gain = match slow.is_silent(now) {
                true => Duration::ZERO,
                false => latency.saturating_mul(GAIN),
            };
            let ours = again.saturating_add(drains + COMPARE);
            let ours = ours.saturating_add(gain);
            if theirs > ours && worst.as_ref().is_none_or(|(most, ..)| theirs > *most) {
                worst = Some((theirs, id, part, lane));
            }
        }
    }
    worst.map(|(_, file, part, lane)| (file, part, lane))
}

/// Returns the time of the next look for stalled lanes, after the last one at `looked`.
pub(super) fn next_look(
    board: &SchedulerState,
    files: &SplitFiles,
    looked: Instant,
) -> Option<Instant> {
    if !board.lanes().any(|lane| !lane.is_idle()) {
        return None;
    }
    let losers = files.any(|f| f.is_naming() || f.is_complete());
    let soon = losers || board.lanes().any(LaneState::is_free);
    // Counted from the last check and not from the last event: one lane may be silent while others
    // never are.
    Some(looked + if soon { COMPARE } else { LOOK })
}

/// Has stalled lanes closed.
pub(super) fn close_stalled(board: &mut SchedulerState, files: &SplitFiles) {
    let ids: Vec<LaneId> = board.lanes().iter().map(|(id, _)| id).collect();
    for id in ids {
        if let Some(reason) = reason_to_close(board, files, id)
            && let Some(lane) = board.lanes_mut().get_mut(id)
        {
            lane.close(reason);
            board.order(LaneOrder::Close(id));
        }
    }
}

/// Returns the reason for which a lane must be closed now, if there is one.
fn reason_to_close(
    board: &mut SchedulerState,
    files: &SplitFiles,
    id: LaneId,
) -> Option<LaneCloseReason> {
    let now = board.now();
    let view = StragglerContext { board, files };
    let lane = view.board.lanes().get(id)?;
    // The other host may be what such a lane waits for, and no other lane can do its work. Once the
    // lane is lost, the copy continues the file behind the bytes that have arrived.
    let is_relayed = lane.jobs().any(|job| view.is_part_of_relayed(job));
    if is_relayed && lane.unanswered(now).is_none_or(|time| time <= RELAYED) {
        return None;
    }
    let losing = view.is_losing(lane);
    // All other lanes have finished.
    let quiet = view.board.queues().are_quiet();
    let last = quiet && view.board.lanes().any(LaneState::is_free);
    let may_lose = view.patience_with_loser(lane, last);
    let may_be_silent = match view.patience(lane) {
        SILENT if last => LAST,
        patience => patience,
    };
    let may_be_silent = may_be_silent.max(lane.report().latency.saturating_mul(LATENCIES));
    // Without another working lane there is no alternative.
    let others =
        view.board.lanes().iter().any(|(other, l)| {
            other != id && l.is_open() && (l.is_idle() || l.heard() > lane.heard())
        });
    let lane = board.lanes_mut().get_mut(id)?;
    let loses = lane.loses(now, losing);
    let open = !lane.is_closing() && !lane.is_idle() && others;
    let silent = now.saturating_duration_since(lane.heard());
    match open {
        true if is_relayed => Some(LaneCloseReason::Silent),
        true if loses > may_lose => Some(LaneCloseReason::Needless),
        true if silent > may_be_silent => Some(LaneCloseReason::Silent),
        _ => None,
    }
}

/// Everything that decides how long a lane may be silent.
#[derive(Clone, Copy)]
struct StragglerContext<'a> {
    board: &'a SchedulerState,
    files: &'a SplitFiles,
}

impl StragglerContext<'_> {
    /// Returns true if the lane has needless parts, and otherwise only small jobs that other lanes
    /// can do.
    fn is_losing(&self, lane: &LaneState) -> bool {
        let mut jobs = lane.jobs();
        jobs.clone().any(|job| self.is_lost_cause(job))
            && jobs.all(|job| self.is_lost_cause(job) || self.is_movable(job))
    }

    /// Returns the time that a lane with needless parts gets to end them; `last` means that nothing
    /// else is left to do.
    fn patience_with_loser(&self, lane: &LaneState, last: bool) -> Duration {
        let least = self.board.lanes().least_latency().saturating_mul(LATENCIES);
        let mut jobs = lane.jobs();
        if !self.board.options().cuts && jobs.clone().any(|job| self.is_part_of_put(job)) {
            return SENT.max(least);
        }
        match last && jobs.all(|job| self.is_movable(job) || self.is_of_whole(job)) {
            true => LAST_LOSER,
            false => LOSER.max(least / 2),
        }
    }

    /// Returns the longest permitted silence of a lane.
    fn patience(&self, lane: &LaneState) -> Duration {
        let mut patience = SILENT;
        for job in lane.jobs() {
            match self.board.assigned().role(job) {
                Some(AssignedRole::Finish(file)) => {
                    let file = self.files.get(*file);
                    if file.is_none_or(|f| f.options().fsync || f.sync_before_name()) {
                        return SYNCING;
                    }
                    patience = NAMING;
                }
                Some(AssignedRole::Whole(queued)) => {
                    let kind = queued.kind();
                    let syncs = matches!(kind, JobKind::Put { options, .. } if options.fsync);
                    // A cold disk takes long for such requests.
                    let sums = matches!(kind, JobKind::Sum { .. });
                    if syncs || sums || super::events::rebuilds(kind) {
                        return SYNCING;
                    }
                }
                // The whole file waits for its temporary's name.
                Some(AssignedRole::Part(file)) => {
                    let file = self.files.get(*file);
                    if file.is_some_and(SplitFile::lacks_temp) {
                        patience = CREATING;
                    }
                }
                _ => {}
            }
        }
        patience
    }

    fn is_part_of_put(&self, job: JobId) -> bool {
        self.file_of_part(job).is_some_and(SplitFile::is_put)
    }

    fn is_part_of_relayed(&self, job: JobId) -> bool {
        self.file_of_part(job).is_some_and(SplitFile::is_relayed)
    }

    fn file_of_part(&self, job: JobId) -> Option<&SplitFile> {
        self.files.get(self.board.assigned().file_of_part(job)?)
    }

    /// Returns true for a small job that another lane can do from its beginning.
    fn is_movable(&self, job: JobId) -> bool {
        match self.board.assigned().role(job) {
            Some(AssignedRole::Sync(_)) => true,
            Some(AssignedRole::Whole(queued)) => {
                let least = self.board.options().least;
                let small = queued.hint().size.is_none_or(|size| size < least);
                small && !queued.hint().relayed && queued.losses().count() == 0
            }
            _ => false,
        }
    }

    /// Returns true for a part of a file whose bytes are all there.
    fn is_of_whole(&self, job: JobId) -> bool {
        self.file_of_part(job).is_some_and(SplitFile::is_complete)
    }

    /// Returns true for an abandoned part, which its file only waits to end.
    fn is_lost_cause(&self, job: JobId) -> bool {
        self.file_of_part(job).is_some_and(|f| f.is_abandoned(job))
    }
}
