//! Chooses the next change in the number of connections and channels.

use std::time::{Duration, Instant};

use diagnose::TransferFacts;

use super::trial::Trial;
use super::{
    ConcurrencyChange, ConcurrencyController, Direction, Limiter, LimiterEvidence, RunMeasurements,
    StartModel,
};

/// Cost of a new connection in round trips: the login, and the slow start after it.
const LOGIN: f64 = 6.0;
const SLOW_START: f64 = 8.0;
/// Assumed capacity of a path in bytes per second (one gigabit), if only the size of local buffers
/// and of the file suggest more connections. At 114 ms this takes five connections; more filled the
/// path's queue until it lost packets. At 600 ms CUBIC leaves slow start at 2 MB/s, with a window
/// that a file's time is too short to open.
pub const USUAL_RATE: f64 = 117e6;
/// Allowance for the far end's buffer, which may be smaller and grows later: five downloads had 61
/// MB/s after three seconds, five uploads 119.
const FAR: f64 = 1.3;
/// Maximum number of connections to open without having measured their effect.
const SPECULATIVE: u32 = 16;
/// Usable share of a TCP buffer: the kernel includes its own overhead in the size.
const USABLE: f64 = 0.6;
/// Number of connections from which the next step is small, unless the last one brought its share:
/// doubling five connections on a path that they filled cost a quarter of the rate for two seconds.
const CAUTIOUS: u32 = 4;
/// Default maximum of Linux for a send buffer in bytes (tcp(7), tcp_wmem).
const STOCK_SEND_BUFFER: u64 = 4 << 20;
/// Window in bytes that OpenSSH gives a channel.
const STOCK_WINDOW: u64 = 2 << 20;
/// Number of bytes that any path holds in flight at once.
const LITTLE: u64 = 64 << 10;
/// Share of a processor below which other programs keep the machine busy.
const OWN: f64 = 0.5;
/// Idle processor time that another connection needs on a short path, as a share of the time that a
/// connection takes. With both ends on two processors that were one sixth idle, a second connection
/// cost 13 to 35 % of the rate for 0.4 s before it was closed.
const BEARS: f64 = 0.5;
/// Maximum number of initial connections on a short path, even if more paid the last time: more are
/// added within a second if they pay, and each costs both ends more than it brings if both are one
/// machine. 13 connections wrote 290 MB/s into a file, one wrote 570.
const SHORT: u32 = 2;
/// Maximum number of initial connections if both ends are known to be one machine: two connections
/// that had paid once, beside a slow disk, moved 1.6 GB/s between two processors, one moved 2.1.
const ONE_MACHINE: u32 = 1;
/// [`BEARS`] if both ends are known to be one machine: the far end works as much as this one.
const BEARS_BOTH: f64 = 2.0;
/// Idle share below which processors count as busy.
const BUSY: f64 = 0.08;
/// Share of busy processors above which the copy itself keeps them busy.
const GOOD_PART: f64 = 0.25;
/// Number of intervals whose best rate predicts the time for the rest.
const RECENT: usize = 3;
/// Share of an earlier rate below which an interval was disturbed and is no measure of the path.
const COLLAPSED: f64 = 0.5;
/// Start time of the SFTP server, beyond a round trip, above which the login shell counts as slow.
pub(super) const SLOW_START_UP: Duration = Duration::from_millis(250);
/// Round trip below which a channel's window limits nothing.
pub(super) const LONG: Duration = Duration::from_millis(4);

impl ConcurrencyController {
    /// Plans the number of connections and channels at the first sample, before anything is
    /// measured.
    pub(super) fn plan(&mut self, evidence: &RunMeasurements) {
        let rtt = self.trip();
        self.planned_for = rtt;
        let (mut connections, mut channels) = (1, 1);
        if let (Some(buffer), Some(left), true) =
            (self.config.buffer, evidence.remaining, rtt >= LONG)
        {
            connections = self.worth(buffer, left, rtt);
            connections = connections.max(self.for_start(buffer, left, rtt));
            if self.config.direction == Direction::Up && left > STOCK_WINDOW * 4 {
                channels = self.windows_of_buffer().clamp(1, 3);
            }
        }
        let learned = self
            .config
            .learned
            .filter(|(l, now)| l.direction == self.config.direction && l.holds(*now, rtt));
        if let Some((learned, _)) = learned {
            let mut paid = learned.connections;
            if rtt < LONG {
                paid = paid.min(match self.config.one_machine {
                    true => ONE_MACHINE,
                    false => SHORT,
                });
            }
            if let Some(limit) = self.config.limit {
                // Use only as many as the user's rate limit can fill.
                let shared = limit.saturating_mul(paid.into()) / learned.rate.max(1);
                let needed = shared.saturating_add(1);
                paid = paid.min(u32::try_from(needed).unwrap_or(u32::MAX));
            }
            // A small copy ends before more connections than that could help.
            let little = evidence.remaining.is_some_and(|left| {
                let lasts = left as f64 / learned.rate.max(1) as f64;
                lasts < self.costs().as_secs_f64()
            });
            if little {
                paid = paid.min(connections);
            }
            // The number planned for an unknown host is the minimum: with fewer that were enough at
            // full speed, slow start took longer, and a known host was slower than an unknown one.
            connections = connections.max(paid);
            channels = channels.max(learned.channels);
            // The server accepted that many the last time.
            self.at_once = super::MOST_AT_ONCE;
        }
        if connections > 1 {
            // Their handshakes are over, so each costs only its login.
            connections = connections.max(self.config.preconnected.saturating_add(1));
        }
        self.planned = (
            self.config.connections.unwrap_or(connections),
            self.config.channels.unwrap_or(channels),
        );
    }

    /// Raises the plan while the copy is starting and more files become known: with the first
    /// hundred names of a listing the rest looked too small for several connections.
    pub(super) fn plan_start(&mut self, evidence: &RunMeasurements) {
        if self.config.connections.is_none() && self.is_starting() {
            let left = evidence.remaining.unwrap_or_default();
            self.planned.0 = self.planned.0.max(self.start_for(left));
        }
    }

    /// Returns true if so little was measured that the size still decides the plan.
    pub(super) fn is_starting(&self) -> bool {
        self.rates.len() < RECENT && self.trial.is_none()
    }

    /// Returns the number of connections to begin with for `left` bytes.
    pub(super) fn start_for(&self, left: u64) -> u32 {
        let rtt = self.trip();
        match self.config.buffer {
            Some(buffer) if rtt >= LONG => self.for_start(buffer, left, rtt),
            _ => 1,
        }
    }

    /// Returns the number of connections with which `left` bytes are copied soonest from the first
    /// moment on, if logins are cheap and their files are large enough to be cut or shared.
    fn for_start(&self, buffer: u64, left: u64, rtt: Duration) -> u32 {
        let (files, bytes) = self.announced;
        let small = files > 1 && bytes / files < super::start::SMALL;
        let cost = self.config.login_cost;
        let slow = self.start_up.max(cost.start_up()) > SLOW_START_UP;
        let dear = self.config.interactive || self.config.one_machine || slow;
        if small || dear || self.config.background || self.config.limit.is_some() {
            return 1;
        }
        let buffer = buffer.min(STOCK_SEND_BUFFER);
        let model = StartModel {
            direction: self.config.direction,
            bytes: left,
            rtt,
            rate: USUAL_RATE,
            in_flight: (buffer as f64 * USABLE) as u64,
            known: self.config.learned.is_some(),
            start_up: self.start_up.max(cost.start_up()),
        };
        model.connections(cost.most_at_start().min(self.config.most_connections))
    }

    /// Returns the number of connections that pay for `left` bytes, if only the size `buffer` of
    /// local buffers suggests more.
    pub(super) fn worth(&self, buffer: u64, left: u64, rtt: Duration) -> u32 {
        // Highest possible rate of one connection, and the time for the rest at it. The far end's
        // send buffer is unknown, but is hardly ever larger than the default.
        let buffer = match self.config.direction {
            Direction::Up => buffer,
            Direction::Down => buffer.min(STOCK_SEND_BUFFER),
        };
        let cap = buffer as f64 * USABLE / rtt.as_secs_f64();
        // One connection is enough for the user's limit.
        let enough = self.config.limit.is_some_and(|limit| limit as f64 <= cap);
        let lasts = left as f64 / cap;
        let costs = (LOGIN + SLOW_START) * rtt.as_secs_f64();
        if lasts <= 2.0 * costs || enough {
            return 1;
        }
        let fill = match self.config.direction {
            Direction::Up => USUAL_RATE / cap,
            Direction::Down => FAR * USUAL_RATE / cap,
        };
        let fill = fill.round() as u32;
        ((lasts / costs) as u32).min(fill).clamp(1, SPECULATIVE)
    }

    /// Returns changes for planned connections and channels that are missing.
    pub(super) fn carry_out(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        // Near the end, a connection that was closed for falling behind is not replaced.
        let over = self.rates.len() > 2 && self.lasts(evidence) < 2 * self.trip();
        if !over && !self.awaits_start(evidence) {
            let have = evidence.connections.len() as u32;
            self.connect_as_planned(evidence.now, have, &mut changes);
        }
        let channels = match over || self.awaits_start(evidence) {
            true => 0,
            false => self.wanted_channels(),
        };
        for (connection, has) in &self.channels {
            for _ in *has..channels {
                changes.push(ConcurrencyChange::AddChannel(*connection));
            }
        }
        changes
    }

    /// Returns the number of channels that each connection gets without a trial.
    pub(super) fn wanted_channels(&self) -> u32 {
        // If losses limit the connections, no channel window is too small.
        match self.figures.lossy() && self.config.channels.is_none() {
            true => 1,
            false => self.planned.1.min(self.most_channels()),
        }
    }

    /// Returns the number of channels whose windows hold as much as a connection can have in
    /// flight.
    pub(super) fn windows_of_buffer(&self) -> u32 {
        let buffer = self.config.buffer.unwrap_or_default();
        (buffer as f64 * USABLE / STOCK_WINDOW as f64).ceil() as u32
    }

    /// Returns true if a connection will outgrow its channels' windows: in slow start it reaches
    /// them within three round trips, and twice the channels are ready in time if requested now.
    pub(super) fn outgrows_window(&self, evidence: &RunMeasurements) -> bool {
        let up = self.config.direction == Direction::Up;
        if !up || self.figures.lossy() || self.trip() < LONG {
            return false;
        }
        evidence.connections.iter().any(|on| {
            let lanes = evidence.lanes.iter();
            let of_it = lanes.filter(|l| l.lane.connection == on.connection);
            let window: u64 = of_it.map(|l| l.window).sum();
            let more = evidence.remaining.is_none_or(|left| left > window);
            let soon = |tcp: super::TcpSample| tcp.slow_start && tcp.cwnd * 8 >= window;
            window > 0 && more && on.tcp.is_some_and(soon)
        })
    }

    /// Adds planned connections beyond the `have` existing ones.
    pub(super) fn connect_as_planned(
        &mut self,
        now: Instant,
        have: u32,
        to: &mut Vec<ConcurrencyChange>,
    ) {
        let have = have + self.opening.len() as u32;
        let planned = self.planned.0.min(self.most_connections());
        self.add_connections(now, planned.saturating_sub(have), to);
    }

    fn most_connections(&self) -> u32 {
        self.config
            .connections
            .unwrap_or(self.config.most_connections)
    }

    fn most_channels(&self) -> u32 {
        let most = self.config.channels.unwrap_or(self.config.most_channels);
        self.channels_refused.map_or(most, |n| n.min(most))
    }

    pub(super) fn may_connect(&self, now: Instant) -> bool {
        !self.no_connections && self.not_before.is_none_or(|at| now >= at)
    }

    pub(super) fn add_connections(
        &mut self,
        now: Instant,
        more: u32,
        changes: &mut Vec<ConcurrencyChange>,
    ) {
        if !self.may_connect(now) {
            return;
        }
        let free = self.at_once.saturating_sub(self.opening.len() as u32);
        for _ in 0..more.min(free) {
            self.opening.push(now);
            changes.push(ConcurrencyChange::AddConnection);
        }
    }

    /// Returns true if this machine has processor time for more connections. On a long path the
    /// load of other programs does not matter, since filling the path costs little: a satellite
    /// path needed a tenth of a core, and used to stay half empty beside a compiler. On a short
    /// path the far end may be this machine, and the idle time has to suffice for another
    /// connection at both ends.
    pub(super) fn has_cpu(&self) -> bool {
        let shown = &self.figures.shown;
        let processors = f64::from(self.config.processors);
        if shown.cpu >= 0.9 * processors {
            return false;
        }
        let Some(idle) = shown.idle else { return true };
        let busy = idle <= BUSY;
        if self.trip() >= LONG {
            return !busy || shown.cpu < OWN;
        }
        let each = shown.cpu / f64::from(shown.connections.max(1));
        let bears = match self.config.one_machine {
            true => BEARS_BOTH,
            false => BEARS,
        };
        !busy && idle * processors >= bears * each
    }

    /// Returns true if the processors available to this process are busy, and this process uses a
    /// large share of them.
    fn fills_processors(&self) -> bool {
        let shown = &self.figures.shown;
        let share = shown.cpu / f64::from(self.config.processors.max(1));
        shown.idle.is_some_and(|idle| idle <= BUSY) && share > GOOD_PART
    }

    /// Returns the time for the rest at the best rate of the last intervals. If the length is
    /// unknown, the rest is assumed to take as long as the copy so far.
    ///
    /// One interval in which a busy machine or a lost packet kept everything back says nothing
    /// about the rest: 42 MB at 60 ms were almost done when 49 MB/s fell to 7 for a tenth of a
    /// second, and the copy waited for another login.
    pub(super) fn lasts(&self, evidence: &RunMeasurements) -> Duration {
        let recent = self.goodput.iter().take(RECENT).copied();
        let rate = recent.fold(self.figures.shown.rate, f64::max);
        let elapsed = self.began.map_or(Duration::ZERO, |at| evidence.now - at);
        match evidence.remaining {
            // No other connection would speed up so few bytes.
            Some(left) if left < LITTLE => Duration::ZERO,
            Some(left) if rate > 0.0 => {
                Duration::try_from_secs_f64(left as f64 / rate).unwrap_or(Duration::MAX)
            }
            _ => elapsed,
        }
    }

    /// Returns true if the rate no longer grows by itself.
    pub(super) fn is_level(&self) -> bool {
        match self.rates.as_slice() {
            [now, before, ..] => *now < before * 1.15,
            _ => false,
        }
    }

    /// Returns true if the rate has neither grown nor collapsed over two intervals, since answers
    /// come in bursts; checked before a login is requested.
    fn is_steady(&self) -> bool {
        match self.rates.as_slice() {
            [now, before, first, ..] => {
                let grows = *now >= before * 1.15 || *now >= first * 1.2;
                let collapsed = *now < before.max(*first) * COLLAPSED;
                !grows && !collapsed
            }
            _ => false,
        }
    }

    pub(super) fn choose(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        let now = evidence.now;
        let resting = self.rest_until.is_some_and(|at| now < at);
        if resting || self.is_limited() || !self.has_cpu() {
            return changes;
        }
        let bound = self.limiter();
        // A loss shows at once that the window will stay small; connections already opening were
        // requested without this knowledge.
        if self.loses_at_random() {
            changes = self.meet_losses(evidence);
        }
        if !changes.is_empty() || bound == Limiter::Loss || !self.opening.is_empty() {
            return changes;
        }
        let lasts = self.lasts(evidence);
        let rtt = self.trip();
        if !self.is_level() {
            return changes;
        }
        if self.awaits_start(evidence) {
            return changes;
        }
        let channel_pays = lasts > 6 * rtt + Duration::from_millis(50) + 2 * self.start_up;
        // All channels of a connection wait for its lost packet, another connection does not. BBR
        // reached 100 MB/s with eight connections over 1 % loss, and 70 with six.
        let borne = self.figures.bears_losses();
        let open = self.config.connections.is_none() && self.may_connect(now);
        if bound == Limiter::ServerWindow && channel_pays && !(borne && open) {
            self.more_channels(evidence, &mut changes);
        }
        let connects = open && !self.figures.queueing() && self.is_steady();
        if changes.is_empty() && connects && bound != Limiter::LocalDisk {
            let have = evidence.connections.len() as u32;
            let room = self.config.most_connections.saturating_sub(have);
            let buffers = matches!(
                bound,
                Limiter::SendBuffer
                    | Limiter::FarReceiveBuffer
                    | Limiter::ReceiveBuffer
                    | Limiter::FarSendBuffer
                    | Limiter::ServerWindow
            );
            // The slow start of more connections overfills a path that is nearly full: six more
            // beside ten connections that tolerate losses cost half a second.
            let step = match buffers && !borne {
                true if self.bold || have < CAUTIOUS => have,
                true => have / 3,
                false => (have / 4).max(1),
            };
            let step = step.min(room);
            if self.may_pay(lasts, have, step) {
                self.add_connections(now, step, &mut changes);
            }
        }
        if changes.is_empty() && channel_pays && self.no_connections {
            self.more_channels(evidence, &mut changes);
        }
        if !changes.is_empty() {
            self.trial = Some(Trial::new(now, &changes, self.work(), self.counts.0));
        }
        changes
    }

    /// Returns true if the user's limit determines the rate.
    pub(super) fn is_limited(&self) -> bool {
        let set = self.config.limit;
        self.throttled || set.is_some_and(|l| self.figures.shown.rate >= 0.9 * l as f64)
    }

    /// Returns the time until another connection moves its share.
    pub(super) fn costs(&self) -> Duration {
        self.trip().mul_f64(LOGIN + SLOW_START) + Duration::from_millis(300) + 2 * self.start_up
    }

    /// Returns true if the login shell is slow to start the SFTP server, and either the last
    /// channel has not answered, since starts may delay each other, or the rest is done sooner.
    fn awaits_start(&self, evidence: &RunMeasurements) -> bool {
        let slow = self.start_up > SLOW_START_UP;
        slow && (evidence.starting > 0 || self.rest(evidence) < 2 * self.start_up)
    }

    /// Returns the time for the rest, at [`USUAL_RATE`] until a rate is known.
    fn rest(&self, evidence: &RunMeasurements) -> Duration {
        match evidence.remaining {
            Some(left) if self.figures.shown.rate <= 0.0 => {
                Duration::from_secs_f64(left as f64 / USUAL_RATE)
            }
            _ => self.lasts(evidence),
        }
    }

    /// Returns true if `more` connections beside the `has` existing ones would save more than they
    /// may cost, assuming that they bring their share: on a full path their slow start soon ends,
    /// and the data that they hold then come late. For 100,000 files, a sixth connection tried in
    /// the last two seconds delayed the end by 0.4 to 2 s.
    fn may_pay(&self, lasts: Duration, has: u32, more: u32) -> bool {
        let share = f64::from(more) / f64::from((has + more).max(1));
        lasts.saturating_sub(self.costs()).mul_f64(share) > 2 * self.trip()
    }

    /// Doubles the channels of each connection.
    fn more_channels(&self, evidence: &RunMeasurements, changes: &mut Vec<ConcurrencyChange>) {
        let most = self.most_channels();
        for c in &evidence.connections {
            let has = self.channels.get(&c.connection).copied().unwrap_or(0);
            let more = has.max(1).min(most.saturating_sub(has));
            if self.config.channels.is_none() {
                changes.extend((0..more).map(|_| ConcurrencyChange::AddChannel(c.connection)));
            }
        }
    }

    /// Returns the recent work per second, as the mean of two intervals, since answers come in
    /// bursts.
    pub(super) fn work(&self) -> f64 {
        match self.rates.as_slice() {
            [now, before, ..] => (now + before) / 2.0,
            [now] => *now,
            [] => 0.0,
        }
    }

    /// Returns the resource that limits the transfer now.
    pub fn limiter(&self) -> Limiter {
        match self.rates.len() < 2 {
            true => Limiter::Unknown,
            false => diagnose::limiter(&self.facts()),
        }
    }

    /// Collects the facts from which the limiter is decided.
    fn facts(&self) -> TransferFacts {
        let f = &self.figures;
        TransferFacts {
            up: self.config.direction == Direction::Up,
            figures: f.shown,
            held_to: self.is_limited().then(|| {
                let set = self.config.limit;
                let set = set.is_some_and(|l| f.shown.rate >= 0.9 * l as f64);
                match self.config.background && !set {
                    true => Limiter::OtherTraffic,
                    false => Limiter::UserLimit,
                }
            }),
            processors_full: !self.has_cpu() || self.fills_processors(),
            server_lags: f.server_lags(self.config.direction),
            queued_lately: self.has_queued_lately(),
            lost_lately: self.has_lost_lately(),
            bears_losses: f.is_borne(),
            sated: self.sated,
            slow_start: f.slow_start,
            server_share: f.server_share,
            round_trip: self.trip(),
            receive_buffer: self.config.buffer,
            fixed_connections: self.no_connections || self.config.connections.is_some(),
        }
    }

    /// Returns the figures behind [`ConcurrencyController::limiter`].
    pub fn limiter_evidence(&self) -> LimiterEvidence {
        self.figures.shown
    }
}
