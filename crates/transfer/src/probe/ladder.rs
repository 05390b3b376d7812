//! Loads over growing numbers of channels and connections, in one direction after the other.

use std::time::{Duration, Instant};

use diagnose::{Evidence, NearLinkLoad, ReducedRateLoad, ThroughputMeasurement, ThroughputScaling};

use super::budget::answer_deadline;
use super::connection::ChannelIndex;
use super::measurement_error::{MeasurementError, MeasurementFailure};
use super::path::{ProbedConnections, SHORT_SHARE};

/// Gain from a second connection from which on four and eight are tried.
const WORTH: f64 = 1.1;
/// Shares of the time for the first rung, each further one, and those of downloads.
const FIRST: f64 = 0.16;
const FURTHER: f64 = SHORT_SHARE;
const DOWN: (f64, f64) = (0.12, 0.06);
/// Round trips of a login.
const LOGIN_TRIPS: f64 = 16.0;
/// Pause before a measurement is repeated.
const PAUSE: Duration = Duration::from_millis(1500);
/// Gain of the second measurement from which on the first one was disturbed.
const STAYS: f64 = 1.25;
/// Share of time from which on a second channel is worth a measurement.
const BLOCKED: f64 = 0.1;
/// Share of lost segments from which on a connection is tried below its rate, that rate as a share
/// of the first one, and the losses expected there if they are random.
const RESTRAINED_LOSS: f64 = 0.001;
const RESTRAINED: f64 = 0.6;
const RESTRAINED_LOSSES: f64 = 8.0;
/// Least and largest share of the measuring time for the load at [`RESTRAINED`] times the rate.
const RESTRAINED_SHARES: (f64, f64) = (0.05, 0.1);
/// Rate of a load near that of a link, as a share of the rate at which the link's queue overflowed, and
/// its share of the measuring time: the bucket of a policer with 95 % of that rate has to run empty.
const NEAR_LINK: f64 = 0.98;
const NEAR_LINK_TIME: f64 = 0.14;
/// Connection of that load, which has lost nothing yet: before and after the load over two connections.
const NEW: usize = 2;
const NEW_AFTER_TWO: usize = 3;

/// Loads in one direction, over more and more channels and connections.
pub(super) struct StepwiseLoadTest<'p, 'a> {
    path: &'p mut ProbedConnections<'a>,
    evidence: &'p mut Evidence,
    up: bool,
    /// Time that later measurements need, apart from downloads.
    reserve: Duration,
}

impl<'p, 'a> StepwiseLoadTest<'p, 'a> {
    /// The ladder of uploads or downloads, which leaves the time `reserve` to later measurements.
    pub(super) fn new(
        path: &'p mut ProbedConnections<'a>,
        evidence: &'p mut Evidence,
        up: bool,
        reserve: Duration,
    ) -> Self {
        Self {
            path,
            evidence,
            up,
            reserve,
        }
    }

    fn ladder(&mut self) -> &mut ThroughputScaling {
        match self.up {
            true => &mut self.evidence.up,
            false => &mut self.evidence.down,
        }
    }

    /// Adds a measurement; returns its rate, or `None` if it was too short.
    fn rung(
        &mut self,
        channels: &[ChannelIndex],
        share: f64,
    ) -> Result<Option<f64>, MeasurementError> {
        let what = if self.up { "upload" } else { "download" };
        let budget = self.path.budget();
        budget.step(&format!("{what} over {} connection(s)", channels.len()))?;
        let mut result = self.path.load(channels, self.up, share)?;
        if result.rung.is_none() && !self.path.budget().is_cancelled() {
            let flag = if result.data_used { "--data" } else { "--time" };
            let connections = if channels.len() == 1 {
                "connection"
            } else {
                "connections"
            };
            self.evidence.unseen.push(format!(
                "{what}s over {} {connections}: {:.1} MB in {:.2} s are too little to measure: \
                 raise {flag}",
                channels.len(),
                result.bytes as f64 / 1e6,
                result.seconds
            ));
        }
        let beyond = self.evidence.server_answer.unwrap_or_default();
        // Neither the receiver of data nor a connection through another one sees a round trip.
        let blind = !self.up || self.evidence.tcp.is_none();
        let ladder = self.ladder();
        if let Some(answer) = result.answer {
            let answer = (answer - beyond).max(0.0);
            ladder.loaded = Some(ladder.loaded.map_or(answer, |l| l.max(answer)));
            if let Some(rung) = &mut result.rung {
                rung.idle_rtt = Some(answer);
            }
            if let Some(rung) = result.rung.as_mut().filter(|_| blind) {
                rung.rtt = rung.rtt.max(answer);
            }
        }
        ladder.rungs.extend(result.rung);
        Ok(result.rung.map(|rung| rung.rate))
    }

    /// True if a channel window held back the first upload, and the path's queue did not fill.
    fn is_blocked(&self) -> bool {
        let one = self.evidence.up.rung(1, 1);
        let filled = |one: &ThroughputMeasurement| self.queues(one);
        one.is_some_and(|one| one.window_blocked > BLOCKED && !filled(one))
    }

    /// True if the path's queue filled under this load.
    fn queues(&self, rung: &ThroughputMeasurement) -> bool {
        rung.rtt > 1.25 * self.evidence.unloaded_rtt(rung) + 0.005
    }

    /// Loads one connection. A rate that fell is measured again after a pause: a shaper lets
    /// another burst pass and falls again, and a disturbance does not return.
    fn first_rung(&mut self, first: f64) -> Result<Option<f64>, MeasurementError> {
        self.rung(&[(1, 0)], first)?;
        let Some(mut rung) = self.ladder().rungs.pop() else {
            return Ok(None);
        };
        let checked = self.look_again(&mut rung, first);
        // The first measurement is kept if the second one is interrupted.
        self.ladder().rungs.push(rung);
        checked.map(|()| Some(rung.rate))
    }

    /// Repeats the measurement of a rate that fell, and tries an upload that lost packets below its
    /// rate.
    fn look_again(
        &mut self,
        rung: &mut ThroughputMeasurement,
        first: f64,
    ) -> Result<(), MeasurementError> {
        if rung.before_burst.is_some() {
            let until = Instant::now() + PAUSE.min(self.path.budget().left() / 8);
            while Instant::now() < until && !self.path.budget().is_cancelled() {
                self.path.connections().turn(until);
            }
            let budget = self.path.budget();
            budget.step("repeating the measurement of a rate that fell")?;
            let again = self.path.load(&[(1, 0)], self.up, first)?;
            if let Some(again) = again.rung {
                rung.repeated = Some(again.rate);
                rung.fell_again = again.before_burst.is_some();
                if !rung.fell_again && again.rate > STAYS * rung.rate {
                    *rung = ThroughputMeasurement {
                        repeated: rung.repeated,
                        ..again
                    };
                }
            }
        }
        if self.up {
            rung.restrained = self.restrained(rung)?;
        }
        Ok(())
    }

    /// Loss of a connection that is held below the rate at which it lost packets, if that can be
    /// told in a reasonable time: a policer drops nothing then, and random loss stays.
    fn restrained(
        &mut self,
        rung: &ThroughputMeasurement,
    ) -> Result<Option<ReducedRateLoad>, MeasurementError> {
        let queued = self.queues(rung);
        let loss = rung.loss.max(rung.loss_ever);
        if self.evidence.tcp.is_none() || queued || loss < RESTRAINED_LOSS {
            return Ok(None);
        }
        let rate = RESTRAINED * rung.rate;
        let losses_per_second =
            loss * rate / f64::from(self.evidence.tcp.map_or(1448, |tcp| tcp.mss.max(1)));
        // Only the second half of a load is evaluated.
        let time = 2.0 * RESTRAINED_LOSSES / losses_per_second;
        let share = time / self.path.budget().time().as_secs_f64();
        if share > RESTRAINED_SHARES.1 {
            return Ok(None);
        }
        let budget = self.path.budget();
        budget.step("upload below the rate that loses packets")?;
        self.path.connections().limit_rate((1, 0), Some(rate));
        let share = share.max(RESTRAINED_SHARES.0);
        let result = self.path.load(&[(1, 0)], true, share);
        self.path.connections().limit_rate((1, 0), None);
        Ok(result?.rung.map(|held| ReducedRateLoad {
            rate: held.rate,
            loss: held.loss,
            expected: loss,
        }))
    }

    /// Loads the connection `new` just below the rate of the link, if uploads overflowed its queue, one
    /// connection has left it empty since and loses nothing at a lower rate: the link passes that load,
    /// and a policer drops a part of it.
    fn near_link(&mut self, new: usize) -> Result<(), MeasurementError> {
        let one = self.evidence.up.rung(1, 1);
        let is_measured = one.is_none_or(|one| one.near_link.is_some());
        let link = self.evidence.link_above_uploads();
        let Some(link) = link.filter(|_| self.evidence.tcp.is_some() && !is_measured) else {
            return Ok(());
        };
        if self.path.connect(new) < new {
            return Ok(());
        }
        if self.path.connections().channel((new, 0)).is_none() {
            self.path.connections().open(new, answer_deadline())?;
        }
        let target = NEAR_LINK * link;
        self.path.add_time_for(NEAR_LINK_TIME);
        let budget = self.path.budget();
        budget.step("upload just below the rate of the link")?;
        let limited = |path: &mut ProbedConnections<'_>, rate| {
            path.connections().limit_rate((new, 0), rate);
        };
        limited(self.path, Some(target));
        let result = self.path.load(&[(new, 0)], true, NEAR_LINK_TIME);
        limited(self.path, None);
        let load = result?.rung.map(|load| NearLinkLoad {
            target,
            rate: load.rate,
            rtt: load.rtt,
            loss: load.loss_ever,
            at_losses: load.at_losses,
            between_losses: load.between_losses,
        });
        let rungs = &mut self.evidence.up.rungs;
        if let Some(one) = rungs
            .iter_mut()
            .find(|r| (r.connections, r.channels) == (1, 1))
        {
            one.near_link = load;
        }
        Ok(())
    }

    /// Climbs the ladder, as far as the next rung is worth its time.
    ///
    /// # Errors
    /// The budget is used up, or a connection was lost.
    pub(super) fn climb(mut self) -> Result<(), MeasurementError> {
        let (first, further) = match self.up {
            true => (FIRST, FURTHER),
            false => DOWN,
        };
        let one = match self.first_rung(first) {
            Ok(Some(rate)) => rate,
            Ok(None) => return Ok(()),
            // The other direction may be open, and the findings so far are complete.
            Err(why) if why.cause() == MeasurementFailure::DeviceRefused => {
                let what = if self.up { "uploads" } else { "downloads" };
                self.evidence.unseen.push(format!("{what}: {why}"));
                return Ok(());
            }
            Err(why) => return Err(why),
        };
        if self.up {
            self.near_link(NEW)?;
            match self.path.connections().open(1, answer_deadline()) {
                // Channels tell nothing where no channel window is in the way.
                Ok(second) if self.is_blocked() => {
                    self.rung(&[(1, 0), second], further)?;
                }
                Ok(_) => {}
                // A channel that ends as it begins was refused as well.
                Err(why) if why.is_refusal() || why.cause() == MeasurementFailure::ChannelEnded => {
                    tracing::debug!("a second channel: {why}");
                    self.evidence.channels_refused = true;
                }
                Err(why) => return Err(why),
            }
        }
        let mut before = one;
        for count in [2, 4, 8] {
            // Two connections tell most causes apart, further ones the path's rate.
            let pays = count == 2 || self.has_time_for_rung(further);
            if !pays || self.path.connect(count) < count {
                break;
            }
            let channels: Vec<_> = (1..=count).map(|c| (c, 0)).collect();
            let result = self.rung(&channels, further)?;
            if self.up && count == 2 {
                self.near_link(NEW_AFTER_TWO)?;
            }
            match result {
                Some(rate) if rate >= WORTH * before => before = rate,
                _ => break,
            }
        }
        Ok(())
    }

    /// True if another rung of a ladder leaves enough time for the DSCP classes, and after uploads
    /// for the first two rungs of downloads.
    fn has_time_for_rung(&self, share: f64) -> bool {
        let budget = self.path.budget();
        let mut later = budget.time().mul_f64(share) + self.reserve;
        if self.up {
            let logins = Duration::from_secs_f64(LOGIN_TRIPS * self.path.rtt());
            later += budget.time().mul_f64(DOWN.0 + DOWN.1) + logins;
        }
        budget.left() > later
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::test_support::{options, path, settings};

    /// Bug: the loss of another connection at the OPEN was told as a refusal of /dev/zero, and
    /// nobody looked for a broken connection.
    #[test]
    fn a_lost_connection_was_taken_for_a_refused_download() {
        let (target, options) = (settings(), options());
        let (mut path, [idle, load]) = path(&target, &options);
        let mut evidence = Evidence::default();
        load.refuse("OPEN");
        let until = answer_deadline();
        path.connections().open(1, until).expect("a channel");
        let refused = path.load(&[(1, 1)], true, FIRST).err();
        let refused = refused.map(|error| error.cause());
        assert_eq!(refused, Some(MeasurementFailure::DeviceRefused));
        idle.lose();
        let down = StepwiseLoadTest::new(&mut path, &mut evidence, false, Duration::ZERO);
        let error = down.climb().unwrap_err();
        assert!(error.is_lost(), "{error}");
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    }

    /// Bug: the loss of another connection was told as MaxSessions of the server.
    #[test]
    fn a_lost_connection_was_taken_for_a_refused_second_channel() {
        let (target, options) = (settings(), options());
        let (mut path, [idle, load]) = path(&target, &options);
        let mut evidence = Evidence::default();
        load.lose_other_at(2, &idle);
        let up = StepwiseLoadTest::new(&mut path, &mut evidence, true, Duration::ZERO);
        let error = up.climb().unwrap_err();
        assert!(error.is_lost(), "{error}");
        assert!(!evidence.channels_refused);
    }
}
