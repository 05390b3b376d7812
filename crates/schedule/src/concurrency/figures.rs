use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use diagnose::share;

use super::{ConnectionSample, LaneSample, LimiterEvidence, RunMeasurements, TransferDirection};
use crate::{ConnectionId, LaneId};

/// Turns counters into figures of the interval between two samples.
#[derive(Debug, Default)]
pub(super) struct IntervalRateCalculator {
    last: Option<PreviousCounters>,
    min_rtt: Option<Duration>,
    /// Lowest response time of any request.
    answer: Option<Duration>,
    /// True once a sample showed idle processor time on this machine.
    unhurried: bool,
}

/// Counters of the previous sample, to be subtracted from those of the next.
#[derive(Debug)]
struct PreviousCounters {
    now: Instant,
    moved: u64,
    done: u64,
    cpu: Duration,
    wanted_cpu: Option<Duration>,
    silent: Duration,
    connections: BTreeMap<ConnectionId, ConnectionSample>,
    lanes: BTreeMap<LaneId, LaneSample>,
}

/// Rates and shares of the interval between two samples, by which limiters are found and trials
/// judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IntervalRates {
    /// Bytes per second, with a weight for each finished job: the figure that more lanes should
    /// raise.
    work: f64,
    shown: LimiterEvidence,
    /// A connection is still in slow start and not limited by anything else.
    slow_start: bool,
    /// Part of the response time that the path does not explain, as a share.
    server_share: f64,
    /// Lowest response time of any lane, beyond the round trip.
    quickest: Duration,
    /// See [`RunMeasurements::bears_losses`].
    bears_losses: bool,
}

/// Weight of a finished job in bytes: the amount that a long path moves in the time that
/// sftp-server needs for a small file's requests.
const JOB: f64 = 16_384.0;
/// Factor over TCP's round trip that the quickest response must exceed before TCP is assumed to end
/// before the server (at a proxy). A server that is slow to answer is no long path.
const BEYOND: u32 = 3;
const LEAST_BEYOND: Duration = Duration::from_millis(20);
/// Idle share of the local processors above which this machine is not busy; a busy one answers
/// slowly even on loopback.
const SPARE: f64 = 0.08;

/// Bytes of a lane that lie unanswered at a quick far end: an incomplete WRITE and a little more.
const UNANSWERED: f64 = 512.0 * 1024.0;
/// Response time, beyond the round trip, above which a request keeps the server busy.
const SLOW_ANSWER: Duration = Duration::from_millis(8);
/// Bytes that one READ can bring: so many bytes per response time mean that the server answers
/// READs one after the other.
const ONE_REQUEST: std::ops::Range<f64> = 16e3..300e3;
/// Share of silent time above which the server lags. A connection whose window is too small for the
/// path is silent for less than a round trip each time.
const SILENT: f64 = 0.3;

impl IntervalRateCalculator {
    /// Returns the figures since the last sample; `None` at the first.
    pub(super) fn take(
        &mut self,
        direction: TransferDirection,
        e: &RunMeasurements,
    ) -> Option<IntervalRates> {
        for c in &e.connections {
            if let Some(tcp) = c.tcp
                && tcp.min_rtt > Duration::ZERO
            {
                let lowest = self.min_rtt.map_or(tcp.min_rtt, |m| m.min(tcp.min_rtt));
                self.min_rtt = Some(lowest);
            }
        }
        let answers = e.lanes.iter().map(|lane| lane.latency);
        self.unhurried |= e.idle.is_some_and(|idle| idle > SPARE);
        let known = answers.filter(|latency| *latency > Duration::ZERO);
        self.answer = known.chain(self.answer).min();
        let last = self.last.replace(PreviousCounters {
            now: e.now,
            moved: e.moved,
            done: e.done,
            cpu: e.cpu,
            wanted_cpu: e.wanted_cpu,
            silent: e.silent,
            connections: e
                .connections
                .iter()
                .map(|c| (c.connection, c.clone()))
                .collect(),
            lanes: e.lanes.iter().map(|l| (l.lane, *l)).collect(),
        })?;
        let over = e.now.saturating_duration_since(last.now).as_secs_f64();
        if over <= 0.0 {
            return None;
        }
        let moved = e.moved.saturating_sub(last.moved) as f64 / over;
        // An answer confirms a quarter of a megabyte at a time, which takes seconds on a slow or
        // lossy path; sockets count each segment.
        let rate = match sockets(e, &last) {
            Some(bytes) => bytes as f64 / over,
            None => moved,
        };
        let done = e.done.saturating_sub(last.done) as f64 / over;
        let mut figures = IntervalRates {
            work: rate + done * JOB,
            ..IntervalRates::default()
        };
        let min_rtt = self.min_rtt.unwrap_or_default();
        figures.shown = LimiterEvidence {
            rate,
            connections: e.connections.len() as u32,
            lanes: e.lanes.len() as u32,
            min_rtt,
            cpu: e.cpu.saturating_sub(last.cpu).as_secs_f64() / over,
            idle: e.idle,
            wanted_cpu: match (e.wanted_cpu, last.wanted_cpu) {
                (Some(now), Some(then)) => share(now.saturating_sub(then).as_secs_f64(), over),
                _ => 0.0,
            },
            // A silence is counted when it ends, and may have begun before the last sample.
            silent: share(e.silent.saturating_sub(last.silent).as_secs_f64(), over),
            held: match direction {
                TransferDirection::Up => held(e),
                TransferDirection::Down => 0,
            },
            ..LimiterEvidence::default()
        };
        figures.take_connections(direction, e, &last);
        figures.take_lanes(e, &last, over, self.trip().unwrap_or_default());
        figures.bears_losses = e.bears_losses;
        Some(figures)
    }

    /// Returns the round trip to the server. TCP's round trip ends at a forwarded port or a proxy,
    /// and a connection through a command has none: there the quickest response counts.
    pub(super) fn trip(&self) -> Option<Duration> {
        match (self.min_rtt, self.answer) {
            (Some(tcp), Some(answer)) if self.unhurried && answer > tcp * BEYOND + LEAST_BEYOND => {
                Some(answer)
            }
            (None, answer) => answer,
            (tcp, _) => tcp,
        }
    }
}

/// Returns the bytes through the sockets since the last sample, if a kernel counts them.
fn sockets(e: &RunMeasurements, last: &PreviousCounters) -> Option<u64> {
    let counted = e.connections.iter().filter(|c| c.tcp.is_some());
    let since = counted.filter_map(|c| {
        let then = last.connections.get(&c.connection)?;
        Some(c.bytes.saturating_sub(then.bytes))
    });
    since.reduce(|sum, bytes| sum + bytes)
}

/// Returns the number of bytes that the far end's TCP has acknowledged and its SFTP server has not
/// answered.
fn held(e: &RunMeasurements) -> u64 {
    let lanes = e.lanes.iter();
    let sent: u64 = lanes.map(|l| l.in_flight.saturating_sub(l.unsent)).sum();
    let tcp = e.connections.iter().filter_map(|c| c.tcp);
    let under_way: u64 = tcp.map(|tcp| tcp.unacked + tcp.notsent).sum();
    sent.saturating_sub(under_way)
}

impl IntervalRates {
    /// Returns bytes per second, with a weight for each finished job.
    pub(super) fn work(&self) -> f64 {
        self.work
    }

    /// Returns the figures that are shown to the user.
    pub(super) fn shown(&self) -> &LimiterEvidence {
        &self.shown
    }

    /// Returns true if a connection is in slow start and not limited by anything else.
    pub(super) fn is_in_slow_start(&self) -> bool {
        self.slow_start
    }

    /// Returns the share of the response time that the path does not explain.
    pub(super) fn server_share(&self) -> f64 {
        self.server_share
    }

    #[cfg(test)]
    pub(super) fn set_window_blocked(&mut self, share: f64) {
        self.shown.window_blocked = share;
    }

    fn take_connections(
        &mut self,
        direction: TransferDirection,
        e: &RunMeasurements,
        last: &PreviousCounters,
    ) {
        let (mut sent, mut again, mut rtts) = (0u64, 0u64, Vec::new());
        let (mut busy, mut rwnd, mut sndbuf) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for c in &e.connections {
            let (Some(tcp), Some(then)) = (c.tcp, last.connections.get(&c.connection)) else {
                continue;
            };
            let Some(was) = then.tcp else { continue };
            rtts.push(match direction {
                TransferDirection::Down if tcp.rcv_rtt > Duration::ZERO => tcp.rcv_rtt.min(tcp.rtt),
                _ => tcp.rtt,
            });
            busy += tcp.busy.saturating_sub(was.busy);
            rwnd += tcp.rwnd_limited.saturating_sub(was.rwnd_limited);
            sndbuf += tcp.sndbuf_limited.saturating_sub(was.sndbuf_limited);
            match direction {
                TransferDirection::Up => {
                    sent += tcp.segments.saturating_sub(was.segments);
                    again += tcp.retransmitted.saturating_sub(was.retransmitted);
                    self.slow_start |= tcp.slow_start && tcp.cwnd > was.cwnd + was.cwnd / 8;
                }
                TransferDirection::Down => {
                    sent += c.bytes.saturating_sub(then.bytes) / 1400;
                    again += tcp.out_of_order.saturating_sub(was.out_of_order);
                }
            }
        }
        let of_busy = |part: Duration| share(part.as_secs_f64(), busy.as_secs_f64());
        self.shown.rwnd_limited = of_busy(rwnd);
        self.shown.sndbuf_limited = of_busy(sndbuf);
        self.shown.loss = share(again as f64, sent.max(1) as f64);
        if !rtts.is_empty() {
            self.shown.rtt = rtts.iter().sum::<Duration>() / rtts.len() as u32;
            let each = self.shown.rate / rtts.len() as f64;
            self.shown.per_connection = (each * self.shown.rtt.as_secs_f64()) as u64;
        }
    }

    fn take_lanes(
        &mut self,
        e: &RunMeasurements,
        last: &PreviousCounters,
        over: f64,
        trip: Duration,
    ) {
        let (mut blocked, mut stalls, mut counted) = (0.0, 0, 0u32);
        let mut latency = Duration::ZERO;
        let mut quickest = Duration::MAX;
        for lane in &e.lanes {
            let Some(then) = last.lanes.get(&lane.lane) else {
                continue;
            };
            let waited = lane.window_blocked.saturating_sub(then.window_blocked);
            blocked += share(waited.as_secs_f64(), over);
            stalls += lane.stalls_disk.saturating_sub(then.stalls_disk);
            latency += lane.latency;
            quickest = quickest.min(lane.latency);
            counted += 1;
        }
        if counted == 0 {
            return;
        }
        self.shown.window_blocked = blocked / f64::from(counted);
        self.shown.disk_stalls = stalls as f64 / over;
        self.quickest = quickest.saturating_sub(self.shown.rtt.max(trip));
        let latency = latency / counted;
        self.shown.server = latency.saturating_sub(self.shown.rtt.max(trip));
        self.server_share =
            self.shown.server.as_secs_f64() / latency.as_secs_f64().max(f64::MIN_POSITIVE);
    }

    /// Returns true if the far end is slow to take data that the path has delivered, or to produce
    /// requested data.
    ///
    /// Upload: more bytes lie unanswered at the server than answers in flight explain. Download:
    /// every request takes its time, one after the other, regardless of their number; or nothing
    /// arrives for several round trips while TCP loses nothing (sshd limited to a tenth of a
    /// processor is silent for 90 of 100 ms).
    pub(super) fn server_lags(&self, direction: TransferDirection) -> bool {
        let shown = &self.shown;
        let lanes = f64::from(shown.lanes.max(1));
        let answers = shown.rate * shown.rtt.as_secs_f64() + lanes * UNANSWERED;
        match direction {
            TransferDirection::Up => shown.held as f64 > answers,
            TransferDirection::Down => {
                let each = shown.rate / lanes * self.quickest.as_secs_f64();
                let in_turn = self.quickest > SLOW_ANSWER && ONE_REQUEST.contains(&each);
                in_turn || shown.silent > SILENT
            }
        }
    }

    /// Returns true if the path's queue fills, so that more data would only wait longer.
    pub(super) fn queueing(&self) -> bool {
        self.shown.is_queueing()
    }

    /// Returns true if the connections' congestion control tolerates losses, with or without actual
    /// ones.
    pub(super) fn is_borne(&self) -> bool {
        self.bears_losses
    }

    /// Returns true if packets are lost and the connections tolerate it.
    pub(super) fn bears_losses(&self) -> bool {
        self.shown.loses() && self.bears_losses
    }

    /// Returns true if packets are lost and this slows the connections down.
    pub(super) fn lossy(&self) -> bool {
        self.shown.loses() && !self.bears_losses && self.shown.loss_tells()
    }
}
