//! Which change is worth trying.

use std::time::{Duration, Instant};

use super::trial::Trial;
use super::{
    ConcurrencyChange, ConcurrencyController, Direction, Evidence, Limiter, LimiterEvidence,
};

/// A new connection costs so many round trips of login, and as many again until it is fast.
const LOGIN: f64 = 6.0;
const SLOW_START: f64 = 8.0;
/// What a path is taken to carry where only the size of this end's buffers and of the file speak
/// for more connections, in bytes a second: a gigabit. At 114 ms that takes five of them, and more
/// filled the path's queue until it lost packets. At 600 ms CUBIC leaves slow start at 2 MB/s, with
/// a window that a file's time is too short to open.
pub const USUAL_RATE: f64 = 117e6;
/// The far end's buffer may be smaller and grows later: five downloads stood at 61 MB/s after
/// three seconds, five uploads at 119.
const FAR: f64 = 1.3;
/// How many to open at most without having seen what they bring.
const SPECULATIVE: u32 = 16;
/// What a buffer is good for: the kernel counts its own overhead in.
const USABLE: f64 = 0.6;
/// From so many connections on the next step is a small one, unless the last one brought its
/// share: to double five of them on a path that they filled cost a quarter of the rate for two
/// seconds.
const CAUTIOUS: u32 = 4;
/// What Linux lets a send buffer grow to if nobody changed it (tcp(7), tcp_wmem).
const STOCK_SEND_BUFFER: u64 = 4 << 20;
/// The window that OpenSSH gives a channel.
const STOCK_WINDOW: u64 = 2 << 20;
/// So few bytes are under way at once on any path.
const LITTLE: u64 = 64 << 10;
/// With less than this of a processor of its own, it is others that keep the machine busy.
const OWN: f64 = 0.5;
/// Of the processor time that a connection takes here, what has to be idle for another one on a short
/// path. With both ends on two processors, of which a sixth was idle, a second connection took 13 to
/// 35 % off the rate for 0.4 s before it was given back.
const BEARS: f64 = 0.5;
/// On a short path no more than these are begun with, whatever paid the last time: more are there
/// within a second if they pay, and what each costs both ends is more than it brings where both are
/// one machine. 13 of them wrote 290 MB/s into a file, where one wrote 570.
const SHORT: u32 = 2;
/// The same where both ends are known to be one machine: two connections that had paid once, beside a
/// slow disk, moved 1.6 GB/s between two processors where one moved 2.1.
const ONE_MACHINE: u32 = 1;
/// [`BEARS`] where both ends are known to be one machine: the far end works as much as this one.
const BEARS_BOTH: f64 = 2.0;
/// Of the time: a thread that runs or waits to run for more of it than this has no time for anything
/// else.
const ALL_OF_IT: f64 = 0.85;
/// So little of the processors is idle where they are busy.
const BUSY: f64 = 0.08;
/// Where they are busy, with this share of them it is the copy that keeps them so.
const GOOD_PART: f64 = 0.25;
/// A server that takes longer than this beyond a round trip to start what serves files has a login
/// shell that is slow to start.
pub(super) const SLOW_START_UP: Duration = Duration::from_millis(250);
/// Below this a channel's window holds nothing back.
pub(super) const LONG: Duration = Duration::from_millis(4);

impl ConcurrencyController {
    /// The first look: how many there shall be before anything was measured.
    pub(super) fn plan(&mut self, evidence: &Evidence) {
        let rtt = self.trip();
        self.planned_for = rtt;
        let (mut connections, mut channels) = (1, 1);
        if let (Some(buffer), Some(left), true) =
            (self.config.buffer, evidence.remaining, rtt >= LONG)
        {
            connections = self.worth(buffer, left, rtt);
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
                // Of those, as many as the user's rate is shared by.
                let shared = limit.saturating_mul(paid.into()) / learned.rate.max(1);
                let needed = shared.saturating_add(1);
                paid = paid.min(u32::try_from(needed).unwrap_or(u32::MAX));
            }
            // So little is over before more than that could be of use.
            let little = evidence.remaining.is_some_and(|left| {
                let lasts = left as f64 / learned.rate.max(1) as f64;
                lasts < self.costs().as_secs_f64()
            });
            if little {
                paid = paid.min(connections);
            }
            // What is begun with where nothing is known stays the least: with fewer that were
            // enough at full speed, slow start took longer, and a known host was the slower one.
            connections = connections.max(paid);
            channels = channels.max(learned.channels);
            // It was welcome the last time.
            self.at_once = super::MOST_AT_ONCE;
        }
        self.planned = (
            self.config.connections.unwrap_or(connections),
            self.config.channels.unwrap_or(channels),
        );
    }

    /// How many connections so many bytes are worth, where nothing but the size of this end's
    /// buffers speaks.
    pub(super) fn worth(&self, buffer: u64, left: u64, rtt: Duration) -> u32 {
        // What one connection can reach at most, and how long the rest takes then. What the
        // far end sends from is its own affair, and hardly anybody's is larger.
        let buffer = match self.config.direction {
            Direction::Up => buffer,
            Direction::Down => buffer.min(STOCK_SEND_BUFFER),
        };
        let cap = buffer as f64 * USABLE / rtt.as_secs_f64();
        // One is enough for what the user allows.
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

    /// What is planned and not there yet.
    pub(super) fn carry_out(&mut self, evidence: &Evidence) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        // What was closed for falling behind is not missed at the end.
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

    /// Channels that each connection shall have without trying.
    pub(super) fn wanted_channels(&self) -> u32 {
        // Where losses hold the connections, none has a window that is too small.
        match self.figures.lossy() && self.config.channels.is_none() {
            true => 1,
            false => self.planned.1.min(self.most_channels()),
        }
    }

    /// So many channels' windows hold as much as a connection can have under way.
    pub(super) fn windows_of_buffer(&self) -> u32 {
        let buffer = self.config.buffer.unwrap_or_default();
        (buffer as f64 * USABLE / STOCK_WINDOW as f64).ceil() as u32
    }

    /// In slow start a connection reaches its channels' windows within three round trips, and has
    /// more to send than that: as many channels again are there in time when asked for now.
    pub(super) fn outgrows_window(&self, evidence: &Evidence) -> bool {
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

    /// Connections that are planned beyond those that are there.
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

    /// Whether this machine has processor time left for more. Where others keep it busy, what it
    /// costs to fill a long path is had all the same: a satellite's took a tenth of a core, and
    /// stayed half empty beside a compiler. On a short one the far end may be this machine, and
    /// what is idle has to bear another connection at both ends.
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

    /// The processors that this process may use are busy, and it takes a good part of them.
    fn fills_processors(&self) -> bool {
        let shown = &self.figures.shown;
        let share = shown.cpu / f64::from(self.config.processors.max(1));
        shown.idle.is_some_and(|idle| idle <= BUSY) && share > GOOD_PART
    }

    /// How long the rest takes at this rate. Of what nobody knows the length, as much is taken
    /// to come as there was.
    pub(super) fn lasts(&self, evidence: &Evidence) -> Duration {
        let rate = self.figures.shown.rate;
        let elapsed = self.began.map_or(Duration::ZERO, |at| evidence.now - at);
        match evidence.remaining {
            // Whatever it waits for, no other connection brings it sooner.
            Some(left) if left < LITTLE => Duration::ZERO,
            Some(left) if rate > 0.0 => {
                Duration::try_from_secs_f64(left as f64 / rate).unwrap_or(Duration::MAX)
            }
            _ => elapsed,
        }
    }

    /// The rate no longer grows by itself.
    pub(super) fn is_level(&self) -> bool {
        match self.rates.as_slice() {
            [now, before, ..] => *now < before * 1.15,
            _ => false,
        }
    }

    /// The same over two steps, since answers come in bursts: before a login is asked for.
    fn is_steady(&self) -> bool {
        match self.rates.as_slice() {
            [now, before, first, ..] => *now < before * 1.15 && *now < first * 1.2,
            _ => false,
        }
    }

    pub(super) fn choose(&mut self, evidence: &Evidence) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        let now = evidence.now;
        let resting = self.rest_until.is_some_and(|at| now < at);
        if resting || self.is_limited() || !self.has_cpu() {
            return changes;
        }
        let bound = self.limiter();
        // A loss says at once that the window will stay small; what is on its way already was
        // asked for without knowing that.
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
        // All channels of a connection wait for the packet that it lost: another connection does
        // not. Of 100 MB/s that BBR takes with eight connections over 1 % loss, six had 70.
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
            // The slow start of more overfills a path that is nearly full: six more than ten that
            // bear losses cost half a second.
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

    /// The rate is what the user allows.
    pub(super) fn is_limited(&self) -> bool {
        let set = self.config.limit;
        self.throttled || set.is_some_and(|l| self.figures.shown.rate >= 0.9 * l as f64)
    }

    /// How long another connection takes to become one of many.
    pub(super) fn costs(&self) -> Duration {
        self.trip().mul_f64(LOGIN + SLOW_START) + Duration::from_millis(300) + 2 * self.start_up
    }

    /// A login shell takes long to start what serves files: no further one is begun before the last
    /// has answered, since they may wait for each other, or where the rest is over sooner.
    fn awaits_start(&self, evidence: &Evidence) -> bool {
        let slow = self.start_up > SLOW_START_UP;
        slow && (evidence.starting > 0 || self.rest(evidence) < 2 * self.start_up)
    }

    /// How long the rest takes; as at the usual rate before there is one.
    fn rest(&self, evidence: &Evidence) -> Duration {
        match evidence.remaining {
            Some(left) if self.figures.shown.rate <= 0.0 => {
                Duration::from_secs_f64(left as f64 / USUAL_RATE)
            }
            _ => self.lasts(evidence),
        }
    }

    /// Whether `more` connections beside those that it `has` would save more than they may cost, if
    /// they brought their share: on a path that is full their slow start is soon over, and what they
    /// hold then comes late. Of 100,000 files, for the last two seconds of which a sixth connection was
    /// tried, the end came by 0.4 to 2 s later.
    fn may_pay(&self, lasts: Duration, has: u32, more: u32) -> bool {
        let share = f64::from(more) / f64::from((has + more).max(1));
        lasts.saturating_sub(self.costs()).mul_f64(share) > 2 * self.trip()
    }

    /// As many again on each connection.
    fn more_channels(&self, evidence: &Evidence, changes: &mut Vec<ConcurrencyChange>) {
        let most = self.most_channels();
        for c in &evidence.connections {
            let has = self.channels.get(&c.connection).copied().unwrap_or(0);
            let more = has.max(1).min(most.saturating_sub(has));
            if self.config.channels.is_none() {
                changes.extend((0..more).map(|_| ConcurrencyChange::AddChannel(c.connection)));
            }
        }
    }

    /// Work a second of late: the mean of two intervals, since answers come in bursts.
    pub(super) fn work(&self) -> f64 {
        match self.rates.as_slice() {
            [now, before, ..] => (now + before) / 2.0,
            [now] => *now,
            [] => 0.0,
        }
    }

    /// What holds the transfer back now.
    pub fn limiter(&self) -> Limiter {
        let f = &self.figures;
        let shown = &f.shown;
        if self.rates.len() < 2 {
            return Limiter::Unknown;
        }
        if self.is_limited() {
            let set = self.config.limit;
            let set = set.is_some_and(|l| shown.rate >= 0.9 * l as f64);
            return match self.config.background && !set {
                true => Limiter::OtherTraffic,
                false => Limiter::UserLimit,
            };
        }
        let up = self.config.direction == Direction::Up;
        if !self.has_cpu() || self.fills_processors() {
            return Limiter::LocalCpu;
        }
        // More connections to a server that lags bring nothing either. An upload lies there whatever
        // this end waits for; a download that was not received here looks like silence.
        let lags = !f.queueing() && !self.has_lost_lately() && f.server_lags(self.config.direction);
        if up && lags {
            return Limiter::Server;
        }
        if shown.wanted_cpu > ALL_OF_IT {
            return Limiter::LocalCpu;
        }
        if shown.disk_stalls > 20.0 && shown.window_blocked < 0.3 {
            return Limiter::LocalDisk;
        }
        if f.lossy() && !f.queueing() && !self.has_queued_lately() {
            return Limiter::Loss;
        }
        if f.queueing() {
            return Limiter::Path;
        }
        if lags {
            return Limiter::Server;
        }
        if self.sated {
            return Limiter::Path;
        }
        if up && shown.sndbuf_limited > 0.3 {
            return Limiter::SendBuffer;
        }
        if up && shown.rwnd_limited > 0.3 {
            return Limiter::FarReceiveBuffer;
        }
        if up && shown.window_blocked > 0.3 {
            // It is opened anew with what the server has taken, which no path delays here.
            return match self.trip() < LONG {
                true => Limiter::Server,
                false => Limiter::ServerWindow,
            };
        }
        if f.slow_start {
            return Limiter::Startup;
        }
        if f.server_share > 0.5 && shown.server > Duration::from_millis(2) {
            return match self.has_lost_lately() {
                true if f.is_borne() => Limiter::Path,
                true => Limiter::Loss,
                false => Limiter::Server,
            };
        }
        let full = self.config.buffer.map(|b| (b as f64 * 0.35) as u64);
        if !up && self.trip() >= LONG {
            let reached = full.is_some_and(|full| shown.per_connection >= full);
            return match reached {
                true => Limiter::ReceiveBuffer,
                false => Limiter::FarSendBuffer,
            };
        }
        if self.no_connections || self.config.connections.is_some() {
            return Limiter::Lanes;
        }
        Limiter::Path
    }

    /// The figures behind [`ConcurrencyController::limiter`].
    pub fn limiter_evidence(&self) -> LimiterEvidence {
        self.figures.shown
    }
}
