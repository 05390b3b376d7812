//! Loads channels for a time, and measures meanwhile.

use std::time::{Duration, Instant};

use diagnose::{ThroughputMeasurement, TransferStall};
use sftp::{Handle, OpenFlags};

use super::connection::{ChannelIndex, ChannelUse, ProbeConnections};
use super::measurement_error::MeasurementError;
use super::sampling::{LoadSampler, median};
use crate::cancel::CancelToken;

/// Time between two pings on the idle connection.
const PING: Duration = Duration::from_millis(150);
/// Silence after which data no longer passes, beyond [`STALLED_TRIPS`]: TCP has repeated a segment
/// four times by then.
const STALLED: Duration = Duration::from_secs(4);
/// Round trips of silence after which data no longer passes, beyond [`STALLED`].
const STALLED_TRIPS: u32 = 8;
/// Longest wait for data in flight after a load.
const DRAIN: Duration = Duration::from_secs(2);

/// Time of an answer on the idle connection, and how long it took in seconds.
type PingAnswer = (Instant, f64);

/// Answers on the idle connection that tell its round trip under a load, at least: all of them, and
/// those of the second half of the load.
const LEAST_PINGS: (usize, usize) = (3, 2);

/// Median answer time in seconds, after the queue has filled: on a long path most of the pings were
/// sent before that. `None` if there are too few.
fn loaded_answer(pings: &[PingAnswer], middle: Instant) -> Option<f64> {
    if pings.len() < LEAST_PINGS.0 {
        return None;
    }
    let times = |from: usize| -> Vec<f64> {
        let answers = pings.get(from..).unwrap_or_default();
        answers.iter().map(|(_, time)| *time).collect()
    };
    let from = pings.iter().filter(|(came, _)| *came < middle).count();
    let mut late = match pings.len() - from >= LEAST_PINGS.1 {
        true => times(from),
        false => times(0),
    };
    Some(median(&mut late))
}

/// Load that a probe puts on channels in one direction, until a time or an amount of data.
pub(super) struct ProbeLoad<'a> {
    pub up: bool,
    pub channels: &'a [ChannelIndex],
    pub time: Duration,
    /// Bytes after which the load ends early.
    pub data: u64,
    /// Channel of an idle connection on which round trips are measured meanwhile.
    pub idle: Option<ChannelIndex>,
    /// The far end may pause for longer, as a disk does.
    pub pauses: bool,
    /// Time that is added if the rate is not steady at the end.
    pub extension: Duration,
}

/// Result of loading the path for a time: rate, answer times and the reason for an early end.
pub(super) struct LoadTestResult {
    pub rung: Option<ThroughputMeasurement>,
    /// Median answer time of the idle connection.
    pub answer: Option<f64>,
    pub bytes: u64,
    /// Duration.
    pub seconds: f64,
    /// The amount of data ended the load.
    pub data_used: bool,
    /// Reason for an early end.
    pub lost: Option<MeasurementError>,
    /// Broken connection.
    pub stall: Option<TransferStall>,
}

impl ProbeConnections {
    /// Opens /dev/null or /dev/zero on a channel.
    pub(super) fn device(
        &mut self,
        at: ChannelIndex,
        up: bool,
        until: Instant,
    ) -> Result<Handle, MeasurementError> {
        let (path, flags): (&[u8], _) = match up {
            true => (b"/dev/null", OpenFlags::WRITE),
            false => (b"/dev/zero", OpenFlags::READ),
        };
        let shown = String::from_utf8_lossy(path);
        let opened = self.open_file(at, path, flags, until);
        opened.map_err(|error| error.at_step(format_args!("cannot open {shown} on the server")))
    }

    /// Runs a load with handles that are open already.
    pub(super) fn load(&mut self, load: &ProbeLoad<'_>, cancel: &CancelToken) -> LoadTestResult {
        let mut sampler = LoadSampler::new(load.up, load.channels.to_vec(), load.time, self);
        let start = Instant::now();
        let mut end = start + load.time;
        let mut extension = Some(load.extension).filter(|time| !time.is_zero());
        let (mut pings, mut awaited, mut pinged) = (Vec::new(), None, start);
        let mut lost = None;
        let patience = STALLED + self.round_trip(load.channels) * STALLED_TRIPS;
        let (mut asked, mut silent) = (false, Duration::ZERO);
        while (Instant::now() < end || silent > patience / 4) && !cancel.is_cancelled() {
            self.turn(end.max(Instant::now() + PING));
            sampler.turn(self);
            if Instant::now() + PING > end
                && let Some(more) = extension.take()
                && !sampler.is_steady()
            {
                end += more;
            }
            silent = match load.pauses {
                true => Duration::ZERO,
                false => sampler.silence(Instant::now()),
            };
            if silent > patience / 2 && !asked {
                // A request in flight tells a broken connection from a server that is busy.
                asked = load.channels.iter().all(|at| self.ping(*at).is_some());
            }
            if silent > patience {
                match self.unacknowledged(load.channels) {
                    Some(connection) => {
                        lost = Some(self.give_up(connection));
                        break;
                    }
                    None if Instant::now() >= end => break,
                    None => {}
                }
            }
            if let Some(idle) = load.idle {
                self.watch(idle, &mut awaited, &mut pinged, &mut pings);
            }
            lost = self.trouble(load.channels);
            if lost.is_some() || sampler.passed(self) > load.data {
                break;
            }
        }
        let (bytes, seconds) = (sampler.passed(self), start.elapsed().as_secs_f64());
        let broken = load.channels.iter().find(|at| self.loss(at.0).is_some());
        let stall = broken.and_then(|at| self.stall(at.0, silent > patience));
        let rung = sampler.finish(self);
        for at in load.channels {
            self.set_use(*at, ChannelUse::Idle);
        }
        self.drain(load.channels);
        LoadTestResult {
            rung,
            answer: loaded_answer(&pings, start + start.elapsed() / 2),
            bytes,
            seconds,
            data_used: bytes > load.data,
            lost,
            stall,
        }
    }

    /// Keeps one ping on the way, and notes the times of the answers.
    fn watch(
        &mut self,
        idle: ChannelIndex,
        awaited: &mut Option<(sftp::RequestId, Instant)>,
        pinged: &mut Instant,
        pings: &mut Vec<PingAnswer>,
    ) {
        match *awaited {
            Some((id, sent)) => {
                if let Some(came) = self.answered(idle, id) {
                    pings.push((came, came.saturating_duration_since(sent).as_secs_f64()));
                    *awaited = None;
                }
            }
            None if pinged.elapsed() >= PING => {
                *pinged = Instant::now();
                *awaited = self.ping(idle);
            }
            None => {}
        }
    }

    /// Longest round trip of the connections of these channels.
    fn round_trip(&self, channels: &[ChannelIndex]) -> Duration {
        let tcp = channels.iter().filter_map(|at| self.sample(at.0).tcp);
        tcp.map(|tcp| tcp.rtt)
            .max()
            .unwrap_or_else(|| self.carried_rtt())
    }

    /// A connection whose data the peer's TCP does not acknowledge.
    fn unacknowledged(&self, channels: &[ChannelIndex]) -> Option<usize> {
        let waits = |at: &&ChannelIndex| self.sample(at.0).tcp.is_some_and(|tcp| tcp.unacked > 0);
        channels.iter().find(waits).map(|at| at.0)
    }

    /// Marks a connection as lost; returns the reason.
    fn give_up(&mut self, connection: usize) -> MeasurementError {
        let why = MeasurementError::lost("no more data moved over the connection");
        self.lose(connection, why.clone());
        why
    }

    fn trouble(&self, channels: &[ChannelIndex]) -> Option<MeasurementError> {
        channels.iter().find_map(|at| {
            let lost = self.loss(at.0).cloned();
            lost.or_else(|| self.channel(*at)?.failure())
        })
    }

    /// Waits for the answers to what is in flight.
    fn drain(&mut self, channels: &[ChannelIndex]) {
        let until = Instant::now() + DRAIN;
        while Instant::now() < until
            && channels.iter().any(|at| self.pending(at.0) > 0)
            && self.trouble(channels).is_none()
        {
            self.turn(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue of 3 s that fills in 6 s was not seen: most pings had been answered before.
    #[test]
    fn the_round_trip_under_load_is_that_of_the_filled_queue() {
        let start = Instant::now();
        let at = |seconds: f64, took: f64| (start + Duration::from_secs_f64(seconds), took);
        let pings = [
            at(0.7, 0.6),
            at(1.5, 0.6),
            at(2.3, 0.6),
            at(3.2, 0.7),
            at(5.0, 1.4),
            at(7.2, 2.0),
            at(9.4, 2.1),
        ];
        let middle = start + Duration::from_secs(6);
        let found = loaded_answer(&pings, middle).expect("an answer time");
        assert!(found >= 2.0, "{found}");
        // One late answer is no median.
        assert_eq!(loaded_answer(&pings[..6], middle), Some(0.7));
        assert_eq!(loaded_answer(&pings[..2], middle), None);
    }
}
