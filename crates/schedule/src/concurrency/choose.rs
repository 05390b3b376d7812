//! Chooses the next change in the number of connections and channels.

use std::time::{Duration, Instant};

use super::plan::{LOGIN, LONG, SLOW_START, USUAL_RATE};
use super::trial::{ConcurrencyTrial, retire};
use super::{
    ConcurrencyChange, ConcurrencyController, Limiter, RunMeasurements, TransferDirection,
};

/// Number of connections from which the next step is small, unless the last one brought its share:
/// doubling five connections on a path that they filled cost a quarter of the rate for two seconds.
const CAUTIOUS: u32 = 4;
/// Start time of the SFTP server, beyond a round trip, above which the login shell counts as slow.
pub(super) const SLOW_START_UP: Duration = Duration::from_millis(250);
/// Factor by which all connections together must exceed the best earlier rate. That rate may be
/// from slow start before its first loss, several times the lasting one.
const BEYOND: f64 = 1.5;
/// Number of connections that are kept regardless of their gain, since the earlier rate is not
/// known well enough.
const FEW: usize = 8;
/// Maximum number of connections without a judgement if they tolerate losses. On 1 Gbit/s and 100
/// ms eight moved 104 MB/s, ten 113; sixteen overfilled the queue in their slow start.
const BORNE: u32 = 12;

impl ConcurrencyController {
    /// Returns changes for planned connections and channels that are missing.
    pub(super) fn carry_out(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        // Near the end, a connection that was closed for falling behind is not replaced.
        let over =
            self.history.intervals() > 2 && self.history.lasts(evidence) < 2 * self.history.trip();
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
        match self.history.figures().lossy() && self.config.channels.is_none() {
            true => 1,
            false => self.plan.channels().min(self.most_channels()),
        }
    }

    /// Returns true if a connection will outgrow its channels' windows: in slow start it reaches
    /// them within three round trips, and twice the channels are ready in time if requested now.
    pub(super) fn outgrows_window(&self, evidence: &RunMeasurements) -> bool {
        let up = self.config.direction == TransferDirection::Up;
        if !up || self.history.figures().lossy() || self.history.trip() < LONG {
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
        let have = have + self.logins.opening();
        let planned = self.plan.connections().min(self.most_connections());
        self.logins.add(now, planned.saturating_sub(have), to);
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

    pub(super) fn choose(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        let now = evidence.now;
        let resting = self.trials.rests(now);
        if resting || self.situation().is_limited() || !self.situation().has_cpu() {
            return changes;
        }
        let bound = self.situation().limiter();
        // A loss shows at once that the window will stay small; connections already opening were
        // requested without this knowledge.
        if self.situation().loses_at_random() {
            changes = self.meet_losses(evidence);
        }
        if !changes.is_empty() || bound == Limiter::Loss || self.logins.opening() > 0 {
            return changes;
        }
        let lasts = self.history.lasts(evidence);
        let rtt = self.history.trip();
        if !self.history.is_level() {
            return changes;
        }
        if self.awaits_start(evidence) {
            return changes;
        }
        let channel_pays = lasts > 6 * rtt + Duration::from_millis(50) + 2 * self.start_up;
        // All channels of a connection wait for its lost packet, another connection does not. BBR
        // reached 100 MB/s with eight connections over 1 % loss, and 70 with six.
        let borne = self.history.figures().bears_losses();
        let open = self.config.connections.is_none() && self.logins.may_connect(now);
        if bound == Limiter::ServerWindow && channel_pays && !(borne && open) {
            self.more_channels(evidence, &mut changes);
        }
        let connects = open && !self.history.figures().queueing() && self.history.is_steady();
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
                true if self.trials.is_bold() || have < CAUTIOUS => have,
                true => have / 3,
                false => (have / 4).max(1),
            };
            let step = step.min(room);
            if self.may_pay(lasts, have, step) {
                self.logins.add(now, step, &mut changes);
            }
        }
        if changes.is_empty() && channel_pays && self.logins.are_over() {
            self.more_channels(evidence, &mut changes);
        }
        if !changes.is_empty() {
            let trial = ConcurrencyTrial::new(now, &changes, self.history.work(), self.counts.0);
            self.trials.go_on(trial);
        }
        changes
    }

    /// Judges the trial; continues it if it is too early to tell.
    pub(super) fn judge(
        &mut self,
        mut trial: ConcurrencyTrial,
        evidence: &RunMeasurements,
    ) -> Vec<ConcurrencyChange> {
        let now = evidence.now;
        let random = |(before, _)| !self.history.has_risen(before);
        if trial.losses().is_some_and(random) {
            let more = self.more_for_losses(evidence);
            if !more.is_empty() {
                trial.add(&more);
                self.trials.go_on(trial);
                return more;
            }
        }
        let awaits = self.logins.opening() > 0 && !trial.is_late(now);
        let measured = trial.measured(evidence, &self.history);
        let Some((result, proportional)) = measured.filter(|_| !awaits) else {
            self.trials.go_on(trial);
            return Vec::new();
        };
        let kept = trial.losses().is_some_and(|losses| self.bears_more(losses));
        self.trials.judged(result, proportional);
        if !result.paid() && !kept {
            let gave_back = trial.to_miss(self.history.work());
            self.trials.was_in_vain(now, gave_back);
            return trial.give_back(evidence);
        }
        self.trials.kept();
        let surplus = trial.surplus(result.gain);
        if !proportional && !kept && surplus > 0 {
            // The path is full with fewer connections.
            self.trials.is_full(now);
            return retire(evidence, surplus);
        }
        self.choose(evidence)
    }

    /// Starts a trial of further connections because packets are lost.
    pub(super) fn meet_losses(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let changes = self.more_for_losses(evidence);
        if !changes.is_empty() {
            let trial =
                ConcurrencyTrial::new(evidence.now, &changes, self.history.work(), self.counts.0);
            let loss = self.history.figures().shown().loss;
            let trial = trial.because_of_losses(loss, self.history.best());
            self.trials.go_on(trial);
        }
        changes
    }

    /// Adds as many connections as may log in at once while the evidence holds: waiting each time
    /// until the last ones are judged took five of ten seconds.
    pub(super) fn more_for_losses(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        let holds = self.situation().loses_at_random() && self.config.connections.is_none();
        let have = evidence.connections.len() as u32 + self.logins.opening();
        let lasts = self.history.lasts_with_losses(evidence, have);
        if holds && self.situation().has_cpu() && lasts > self.costs() {
            let most = match self.history.figures().bears_losses() {
                true => self.config.most_connections.min(BORNE),
                false => self.config.most_lossy,
            };
            let room = most.saturating_sub(have);
            self.logins.add(evidence.now, room, &mut changes);
        }
        changes
    }

    /// Returns true if the added connections do no harm: each brings its share.
    pub(super) fn bears_more(&self, (before, best): (f64, f64)) -> bool {
        let few = self.counts.0 as usize <= FEW;
        !self.history.has_risen(before)
            && !self.history.figures().queueing()
            && (few || self.history.work() > BEYOND * best)
    }

    /// Returns the time until another connection moves its share.
    pub(super) fn costs(&self) -> Duration {
        self.history.trip().mul_f64(LOGIN + SLOW_START)
            + Duration::from_millis(300)
            + 2 * self.start_up
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
            Some(left) if self.history.figures().shown().rate <= 0.0 => {
                Duration::from_secs_f64(left as f64 / USUAL_RATE)
            }
            _ => self.history.lasts(evidence),
        }
    }

    /// Returns true if `more` connections beside the `has` existing ones would save more than they
    /// may cost, assuming that they bring their share: on a full path their slow start soon ends,
    /// and the data that they hold then come late. For 100,000 files, a sixth connection tried in
    /// the last two seconds delayed the end by 0.4 to 2 s.
    fn may_pay(&self, lasts: Duration, has: u32, more: u32) -> bool {
        let share = f64::from(more) / f64::from((has + more).max(1));
        lasts.saturating_sub(self.costs()).mul_f64(share) > 2 * self.history.trip()
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
}
