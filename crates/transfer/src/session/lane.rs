use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::{ConnectionId, Job, Lane, LaneError, LaneId, LaneReport, LaneSample, OldestRequest};
use sftp::{MarkerLine, MarkerSearch};

use super::sftp_server_selector::{check, not_ours};
use super::stalls::{AnswerWait, Waiter};
use super::{LinkChannelId, RemoteWindowState};

/// Work that a lane carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneRole {
    /// Files, and whatever the scheduler assigns.
    Data,
    /// Listings and requests that block a channel, beside a lane that predicts handles.
    Listing,
}

/// Server that a channel is opened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelServer {
    /// The lane uses the SFTP server that the SSH server starts.
    Stock,
    /// A longhaul that a command starts.
    Command,
}

/// Server at the far end of a lane's channel: the stock one, or a longhaul, and whether it has
/// greeted.
#[derive(Debug)]
enum LaneServerState {
    Stock,
    /// A longhaul started by a command, whose greeting is not complete yet. `awaited` is the time
    /// from which the greeting is due.
    Greeting {
        preamble: MarkerSearch,
        awaited: Option<Instant>,
    },
    /// A longhaul started by a command that has greeted.
    Greeted,
}

/// Measurements of a lane beyond those of [`Lane::stats`].
#[derive(Debug, Default)]
struct LaneMeter {
    /// Bytes that receivers have confirmed.
    bytes: u64,
    /// Total time that data waited for the channel's window, and the start of the current wait.
    blocked: Duration,
    blocked_since: Option<Instant>,
    /// Bytes requested and sent when the background pace was last set.
    paced: u64,
    /// Bytes answered when the background pace was last set.
    answered: u64,
}

/// A lane with the channel that carries it.
pub(super) struct LaneOnChannel {
    id: LaneId,
    channel: LinkChannelId,
    lane: Lane,
    role: LaneRole,
    /// The lane receives no further jobs and closes when its work is done.
    retiring: bool,
    far: LaneServerState,
    /// Time at which the lane was opened.
    opened: Instant,
    /// Time of the server's first answer.
    greeted: Option<Instant>,
    meter: LaneMeter,
    /// Last report to the scheduler; `None` if the next one must be sent in any case.
    reported: Option<LaneReport>,
}

impl LaneOnChannel {
    pub(super) fn new(
        now: Instant,
        (id, channel): (LaneId, LinkChannelId),
        lane: Lane,
        role: LaneRole,
        server: ChannelServer,
    ) -> Self {
        Self {
            id,
            channel,
            role,
            retiring: false,
            far: match server {
                ChannelServer::Stock => LaneServerState::Stock,
                ChannelServer::Command => LaneServerState::Greeting {
                    preamble: MarkerSearch::default(),
                    awaited: None,
                },
            },
            opened: now,
            greeted: None,
            meter: LaneMeter::default(),
            reported: Some(LaneReport::of(&lane)),
            lane,
        }
    }

    pub(super) fn id(&self) -> LaneId {
        self.id
    }

    pub(super) fn connection(&self) -> ConnectionId {
        self.id.connection
    }

    pub(super) fn channel(&self) -> LinkChannelId {
        self.channel
    }

    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(super) fn lane_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }

    pub(super) fn into_lane(self) -> Lane {
        self.lane
    }

    pub(super) fn role(&self) -> LaneRole {
        self.role
    }

    pub(super) fn is_listing(&self) -> bool {
        self.role == LaneRole::Listing
    }

    /// True for a lane that carries files and keeps getting jobs.
    pub(super) fn is_working(&self) -> bool {
        !self.is_listing() && !self.retiring
    }

    pub(super) fn is_retiring(&self) -> bool {
        self.retiring
    }

    pub(super) fn retire(&mut self) {
        self.retiring = true;
    }

    /// True if a longhaul that a command started is at the far end.
    pub(super) fn is_served(&self) -> bool {
        !matches!(self.far, LaneServerState::Stock)
    }

    /// True while the greeting of a longhaul that a command started is not complete.
    pub(super) fn awaits_greeting(&self) -> bool {
        matches!(self.far, LaneServerState::Greeting { .. })
    }

    /// Starts the time in which the greeting must come, if that has not happened yet.
    pub(super) fn expect_greeting(&mut self, now: Instant) {
        if let LaneServerState::Greeting { awaited, .. } = &mut self.far {
            awaited.get_or_insert(now);
        }
    }

    /// Time from which the greeting is due.
    pub(super) fn greeting_awaited(&self) -> Option<Instant> {
        match &self.far {
            LaneServerState::Greeting { awaited, .. } => *awaited,
            LaneServerState::Stock | LaneServerState::Greeted => None,
        }
    }

    /// Time at which the lane was opened, and time of the server's first answer.
    pub(super) fn answered(&self) -> (Instant, Option<Instant>) {
        (self.opened, self.greeted)
    }

    /// Takes data of the lane's channel. Returns the remote longhaul's greeting once, when it is
    /// complete.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        mut bytes: Bytes,
    ) -> Result<Option<MarkerLine>, LaneError> {
        let mut greeting = None;
        if let LaneServerState::Greeting { preamble, .. } = &mut self.far {
            let taken = preamble.take(&mut bytes);
            let taken = taken.map_err(not_ours)?;
            let Some(ours) = taken else { return Ok(None) };
            check(&ours)?;
            self.far = LaneServerState::Greeted;
            greeting = Some(ours);
        }
        self.greeted.get_or_insert(now);
        self.lane.handle_input(now, bytes)?;
        Ok(greeting)
    }

    /// Assigns a job to the lane.
    pub(super) fn assign(&mut self, now: Instant, job: Job) {
        self.lane.push(now, job);
        // The scheduler has deducted the job from the demand that was reported last.
        self.reported = None;
    }

    /// Returns the lane's report if it differs from the last one.
    pub(super) fn changed_report(&mut self) -> Option<LaneReport> {
        let report = LaneReport::of(&self.lane);
        (self.reported.replace(report) != Some(report)).then_some(report)
    }

    /// Counts bytes that the receiver has confirmed.
    pub(super) fn confirmed(&mut self, bytes: u64) {
        self.meter.bytes += bytes;
    }

    /// Notes if the channel's window holds data back now.
    pub(super) fn note_window(&mut self, now: Instant, stalled: bool) {
        let meter = &mut self.meter;
        match (meter.blocked_since, stalled) {
            (None, true) => meter.blocked_since = Some(now),
            (Some(since), _) => {
                meter.blocked += now.saturating_duration_since(since);
                meter.blocked_since = stalled.then_some(now);
            }
            (None, false) => {}
        }
    }

    /// True if the channel's window holds data back.
    pub(super) fn is_blocked(&self) -> bool {
        self.meter.blocked_since.is_some()
    }

    /// Bytes that were answered since the last call.
    pub(super) fn take_answered(&mut self) -> u64 {
        let in_flight = self.lane.stats().bytes_in_flight;
        let answered = self.lane.paced().saturating_sub(in_flight);
        let more = answered.saturating_sub(self.meter.answered);
        self.meter.answered += more;
        more
    }

    /// Bytes that were requested or sent since the last call.
    pub(super) fn take_paced(&mut self) -> u64 {
        let more = self.lane.paced().saturating_sub(self.meter.paced);
        self.meter.paced += more;
        more
    }

    /// Longest unanswered request of the lane, or the start of its server, for [`super::stalls::StallDetector`]. `open_since` is
    /// the time since which the server has permitted channels. A longhaul that a command starts has
    /// its own limit.
    pub(super) fn wait(&self, open_since: Instant) -> Option<AnswerWait> {
        let begins =
            matches!(self.far, LaneServerState::Stock) && self.lane.server_info().is_none();
        let start = || OldestRequest {
            request: "the request to start the SFTP server",
            path: None,
            since: self.opened.max(open_since),
            ahead: 1,
            overtaken: false,
            takes_time: false,
        };
        // Requests that were sent before the server has started are not what it does not answer.
        let oldest = match begins {
            true => start(),
            false => self.lane.waits_for()?,
        };
        let drops = self.lane.server_info().is_some() && !self.lane.works_in_order();
        Some(AnswerWait {
            waiter: Waiter::Lane(self.id),
            repeatable: drops && !oldest.takes_time,
            latency: self.lane.stats().latency.unwrap_or_default(),
            oldest,
        })
    }

    /// Sample for the concurrency controller.
    pub(super) fn sample(
        &self,
        now: Instant,
        window: RemoteWindowState,
        deflates: bool,
    ) -> LaneSample {
        let stats = self.lane.stats();
        let since = |at| now.saturating_duration_since(at);
        let waits = self.meter.blocked_since.map(since).unwrap_or_default();
        LaneSample {
            lane: self.id,
            bytes: self.meter.bytes,
            window: window.largest,
            window_blocked: self.meter.blocked + waits,
            in_flight: stats.bytes_in_flight,
            // Sizes before compression cannot be compared with the bytes that TCP holds.
            unsent: match deflates || stats.packed.0 > 0 {
                true => stats.bytes_in_flight,
                false => window.queued,
            },
            depth: stats.bytes_depth,
            latency: stats.latency.unwrap_or_default(),
            stalls_disk: stats.stalls_disk,
            stalls_depth: stats.stalls_depth,
        }
    }
}
