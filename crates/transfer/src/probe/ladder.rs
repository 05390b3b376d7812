//! Loads over growing numbers of channels and connections, in one direction after the other.

use std::time::{Duration, Instant};

use diagnose::{LadderRung, RestrainedLoad};

use super::connection::{ChannelIndex, ChannelUse};
use super::load::{LoadResult, ProbeLoad};
use super::plan::{DATA_USED, IDLE, ProbeRun, TIME_UP};

/// Gain from a second connection from which on four and eight are tried.
const WORTH: f64 = 1.1;
/// Shares of the time for the first rung, each further one, and those of downloads.
const FIRST: f64 = 0.16;
const FURTHER: f64 = 0.08;
const DOWN: (f64, f64) = (0.12, 0.06);
/// Round trips of a login.
const LOGIN_TRIPS: f64 = 16.0;
/// Pause before a measurement is repeated.
const PAUSE: Duration = Duration::from_millis(1500);
/// Gain of the second measurement from which on the first one was disturbed.
const STAYS: f64 = 1.25;
/// Share of time from which on a second channel is worth a measurement.
const BLOCKED: f64 = 0.1;
/// Round trips of a measurement, at most a share of the time.
const LEAST_TRIPS: f64 = 14.0;
const LONGEST: f64 = 0.16;
/// Share of lost segments from which on a connection is tried below its rate, that rate as a share
/// of the first one, and the losses expected there if they are random.
const RESTRAINED_LOSS: f64 = 0.001;
const RESTRAINED: f64 = 0.6;
const RESTRAINED_LOSSES: f64 = 8.0;
/// Least and largest share of the time for that.
const RESTRAINED_SHARES: (f64, f64) = (0.05, 0.1);

impl ProbeRun<'_> {
    /// Opens a device on the first channels of connections.
    fn prepare(&mut self, channels: &[ChannelIndex], up: bool) -> Result<(), String> {
        for at in channels {
            while self.all.channel(*at).is_none() {
                self.all.open(at.0, self.until())?;
            }
            let opened = self.device(*at, up);
            let refused = matches!(&opened, Err(error) if !error.is_no_answer());
            self.device_refused = refused && self.all.is_usable(*at);
            let file = opened?;
            self.all.set_use(*at, purpose(up, file));
        }
        Ok(())
    }

    /// Loads channels for a share of the time.
    pub(super) fn load(
        &mut self,
        channels: &[ChannelIndex],
        up: bool,
        share: f64,
    ) -> Result<LoadResult, String> {
        self.prepare(channels, up)?;
        // Slow start takes some ten round trips on a long path.
        let most = self.time.as_secs_f64() * LONGEST;
        let least = Duration::from_secs_f64((LEAST_TRIPS * self.rtt).min(most).max(0.3));
        let time = self.time.mul_f64(share).max(least).min(self.left());
        if time < least / 2 {
            return Err(TIME_UP.to_owned());
        }
        let left = self.options.data.saturating_sub(self.bytes);
        if left == 0 {
            return Err(DATA_USED.to_owned());
        }
        let data = ((self.options.data as f64 * share * 1.2) as u64).min(left);
        let idle = (channels.iter().all(|at| at.0 != 0)).then_some(IDLE);
        // One connection alone may need longer for slow start.
        let extension = match (channels, share < FURTHER) {
            ([_], false) => time.min(self.left().saturating_sub(time) / 4),
            _ => Duration::ZERO,
        };
        let load = ProbeLoad {
            up,
            channels,
            time,
            data,
            idle,
            pauses: false,
            extension,
        };
        let result = self.all.load(&load, &self.target.cancel);
        self.bytes += result.bytes;
        if let Some(why) = &result.lost {
            self.e.stall = self.e.stall.or(result.stall);
            return Err(why.clone());
        }
        Ok(result)
    }

    /// Adds a measurement to a ladder; returns its rate, or `None` if it was too short.
    fn rung(
        &mut self,
        channels: &[ChannelIndex],
        up: bool,
        share: f64,
    ) -> Result<Option<f64>, String> {
        let what = if up { "upload" } else { "download" };
        self.step(&format!("{what} over {} connection(s)", channels.len()))?;
        let mut result = self.load(channels, up, share)?;
        if result.rung.is_none() && !self.target.cancel.is_cancelled() {
            let flag = if result.data_used { "--data" } else { "--time" };
            let connections = if channels.len() == 1 {
                "connection"
            } else {
                "connections"
            };
            self.e.unseen.push(format!(
                "{what}s over {} {connections}: {:.1} MB in {:.2} s are too little to measure \
                 ({flag})",
                channels.len(),
                result.bytes as f64 / 1e6,
                result.seconds
            ));
        }
        let ladder = match up {
            true => &mut self.e.up,
            false => &mut self.e.down,
        };
        let beyond = self.e.server_answer.unwrap_or_default();
        if let Some(answer) = result.answer {
            let answer = (answer - beyond).max(0.0);
            ladder.loaded = Some(ladder.loaded.map_or(answer, |l| l.max(answer)));
            // Neither the receiver of data nor a connection through another one sees a round trip.
            let blind = !up || self.e.tcp.is_none();
            if let Some(rung) = result.rung.as_mut().filter(|_| blind) {
                rung.rtt = rung.rtt.max(answer);
            }
        }
        ladder.rungs.extend(result.rung);
        Ok(result.rung.map(|rung| rung.rate))
    }

    /// Replaces the connections for load: uploads fill queues, and the server's TCP takes the
    /// longer round trip for congestion and leaves slow start before it has sent anything
    /// (HyStart).
    pub(super) fn renew(&mut self) -> bool {
        if self.facts.asked || !self.factory.is_open() {
            return true;
        }
        self.all.cut_from(1);
        let admitted = self.connect(2) > 0;
        if !admitted {
            let why = format!("downloads: {}", self.no_further_connection());
            self.e.unseen.push(why);
        }
        admitted
    }

    /// True if a channel window held back the first upload, and the path's queue did not fill.
    fn is_blocked(&self) -> bool {
        let one = self.e.up.rung(1, 1);
        let filled = |one: &LadderRung| self.queues(one);
        one.is_some_and(|one| one.window_blocked > BLOCKED && !filled(one))
    }

    /// True if the path's queue filled under this load.
    fn queues(&self, rung: &LadderRung) -> bool {
        rung.rtt > 1.25 * self.e.unloaded_rtt(rung) + 0.005
    }

    /// Loads one connection. A rate that fell is measured again after a pause: a shaper lets
    /// another burst pass and falls again, and a disturbance does not return.
    fn first_rung(&mut self, up: bool, first: f64) -> Result<Option<f64>, String> {
        self.rung(&[(1, 0)], up, first)?;
        let measured = match up {
            true => self.e.up.rungs.pop(),
            false => self.e.down.rungs.pop(),
        };
        let Some(mut rung) = measured else {
            return Ok(None);
        };
        let checked = self.look_again(&mut rung, up, first);
        // The first measurement is kept if the second one is interrupted.
        match up {
            true => self.e.up.rungs.push(rung),
            false => self.e.down.rungs.push(rung),
        }
        checked.map(|()| Some(rung.rate))
    }

    /// Repeats the measurement of a rate that fell, and tries an upload that lost packets below its
    /// rate.
    fn look_again(&mut self, rung: &mut LadderRung, up: bool, first: f64) -> Result<(), String> {
        if rung.before_burst.is_some() {
            let until = Instant::now() + PAUSE.min(self.left() / 8);
            while Instant::now() < until && !self.target.cancel.is_cancelled() {
                self.all.turn(until);
            }
            self.step("repeating the measurement of a rate that fell")?;
            let again = self.load(&[(1, 0)], up, first)?;
            if let Some(again) = again.rung {
                rung.repeated = Some(again.rate);
                rung.fell_again = again.before_burst.is_some();
                if !rung.fell_again && again.rate > STAYS * rung.rate {
                    *rung = LadderRung {
                        repeated: rung.repeated,
                        ..again
                    };
                }
            }
        }
        if up {
            rung.restrained = self.restrained(rung)?;
        }
        Ok(())
    }

    /// Loss of a connection that is held below the rate at which it lost packets, if that can be
    /// told in a reasonable time: a policer drops nothing then, and random loss stays.
    fn restrained(&mut self, rung: &LadderRung) -> Result<Option<RestrainedLoad>, String> {
        let queued = self.queues(rung);
        let loss = rung.loss.max(rung.loss_ever);
        if self.e.tcp.is_none() || queued || loss < RESTRAINED_LOSS {
            return Ok(None);
        }
        let rate = RESTRAINED * rung.rate;
        let losses_per_second =
            loss * rate / f64::from(self.e.tcp.map_or(1448, |tcp| tcp.mss.max(1)));
        // Only the second half of a load is evaluated.
        let time = 2.0 * RESTRAINED_LOSSES / losses_per_second;
        let share = time / self.time.as_secs_f64();
        if share > RESTRAINED_SHARES.1 {
            return Ok(None);
        }
        self.step("upload below the rate that loses packets")?;
        self.all.limit_rate((1, 0), Some(rate));
        let result = self.load(&[(1, 0)], true, share.max(RESTRAINED_SHARES.0));
        self.all.limit_rate((1, 0), None);
        Ok(result?.rung.map(|held| RestrainedLoad {
            rate: held.rate,
            loss: held.loss,
            expected: loss,
        }))
    }

    pub(super) fn ladder(&mut self, up: bool) -> Result<(), String> {
        let (first, further) = match up {
            true => (FIRST, FURTHER),
            false => DOWN,
        };
        let one = match self.first_rung(up, first) {
            Ok(Some(rate)) => rate,
            Ok(None) => return Ok(()),
            // The other direction may be open, and the findings so far are complete.
            Err(why) if self.device_refused => {
                let what = if up { "uploads" } else { "downloads" };
                self.e.unseen.push(format!("{what}: {why}"));
                return Ok(());
            }
            Err(why) => return Err(why),
        };
        if up {
            match self.all.open(1, self.until()) {
                // Channels tell nothing where no channel window is in the way.
                Ok(second) if self.is_blocked() => {
                    self.rung(&[(1, 0), second], up, further)?;
                }
                Ok(_) => {}
                Err(silence) if silence.is_no_answer() => return Err(silence.into()),
                Err(why) => {
                    tracing::debug!("a second channel: {why}");
                    self.e.channels_refused = self.all.all.get(1).is_some_and(|c| c.lost.is_none());
                }
            }
        }
        let mut before = one;
        for count in [2, 4, 8] {
            // Two connections tell most causes apart, further ones the path's rate.
            let pays = count == 2 || self.has_time_for_rung(up, further);
            if !pays || self.connect(count) < count {
                break;
            }
            let channels: Vec<_> = (1..=count).map(|c| (c, 0)).collect();
            match self.rung(&channels, up, further)? {
                Some(rate) if rate >= WORTH * before => before = rate,
                _ => break,
            }
        }
        Ok(())
    }

    /// True if another rung of a ladder leaves enough time for the DSCP classes, and after uploads
    /// for the first two rungs of downloads.
    fn has_time_for_rung(&self, up: bool, share: f64) -> bool {
        let mut later = self.time.mul_f64(share);
        if self.can_mark() {
            // Two further pairs confirm a class that seems slow.
            later += self.marks_time() + self.slice_time() * 4;
        }
        if up {
            let logins = Duration::from_secs_f64(LOGIN_TRIPS * self.rtt);
            later += self.time.mul_f64(DOWN.0 + DOWN.1) + logins;
        }
        self.left() > later
    }
}

fn purpose(up: bool, file: sftp::Handle) -> ChannelUse {
    match up {
        true => ChannelUse::Writing {
            file,
            advances: false,
        },
        false => ChannelUse::Reading { file },
    }
}
