use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{ConnectionSample, Direction, Evidence, LaneSample, LimiterEvidence};
use crate::{ConnectionId, LaneId};

/// Turns counters into what happened between two looks at them.
#[derive(Debug, Default)]
pub(super) struct CounterDeltas {
    last: Option<PreviousCounters>,
    min_rtt: Option<Duration>,
    /// The lowest time that any request took.
    answer: Option<Duration>,
    /// This machine had processor time to spare at some look.
    unhurried: bool,
}

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

/// What happened in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IntervalFigures {
    /// Bytes a second, with a weight for each job done: what more lanes shall raise.
    pub(super) work: f64,
    pub(super) shown: LimiterEvidence,
    /// Some connection is still below its threshold and not held back by anything else.
    pub(super) slow_start: bool,
    /// Answers take longer than the path, as a share of all the latency.
    pub(super) server_share: f64,
    /// What the quickest request of any lane took beyond the path.
    quickest: Duration,
    /// As [`Evidence::bears_losses`].
    bears_losses: bool,
}

/// A job done is worth this many bytes: what a long path moves in the time that a small file's
/// requests take in sftp-server.
const JOB: f64 = 16_384.0;
/// Bytes of data in a packet that an Ethernet carries.
const SEGMENT: f64 = 1448.0;
/// A server that is slow to answer is no long path: so much longer than TCP's round trip the
/// quickest of all requests takes only where TCP does not lead to the server.
const BEYOND: u32 = 3;
const LEAST_BEYOND: Duration = Duration::from_millis(20);
/// Nor is a machine that is busy, and answers on loopback after as long: processor time that is idle
/// on one that is not.
const SPARE: f64 = 0.08;

/// Bytes of a lane that lie at the far end unanswered where it is quick: a WRITE that is not whole,
/// and some more.
const UNANSWERED: f64 = 512.0 * 1024.0;
/// A request that takes longer than this beyond the round trip keeps the server busy.
const SLOW_ANSWER: Duration = Duration::from_millis(8);
/// Bytes that one READ can bring: of so many in the time that an answer takes, one comes after the
/// other.
const ONE_REQUEST: std::ops::Range<f64> = 16e3..300e3;
/// Of the time. A connection whose window is too small for the path is silent for less than a round
/// trip each time.
const SILENT: f64 = 0.3;

impl CounterDeltas {
    /// `None` at the first look.
    pub(super) fn take(&mut self, direction: Direction, e: &Evidence) -> Option<IntervalFigures> {
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
        // Answers come for a quarter of a megabyte at a time, which on a slow or lossy path is
        // seconds; sockets count each segment.
        let rate = match sockets(e, &last) {
            Some(bytes) => bytes as f64 / over,
            None => moved,
        };
        let done = e.done.saturating_sub(last.done) as f64 / over;
        let mut figures = IntervalFigures {
            work: rate + done * JOB,
            ..IntervalFigures::default()
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
                (Some(now), Some(then)) => now.saturating_sub(then).as_secs_f64() / over,
                _ => 0.0,
            },
            silent: e.silent.saturating_sub(last.silent).as_secs_f64() / over,
            held: match direction {
                Direction::Up => held(e),
                Direction::Down => 0,
            },
            ..LimiterEvidence::default()
        };
        figures.take_connections(direction, e, &last);
        figures.take_lanes(e, &last, over, self.trip().unwrap_or_default());
        figures.bears_losses = e.bears_losses;
        Some(figures)
    }

    /// The round trip to the server. TCP's ends where a forwarded port or a proxy begins, and
    /// behind a command there is no TCP to be asked: then it is what the quickest request took.
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

/// Bytes through the sockets since the last look, where a kernel counts them.
fn sockets(e: &Evidence, last: &PreviousCounters) -> Option<u64> {
    let counted = e.connections.iter().filter(|c| c.tcp.is_some());
    let since = counted.filter_map(|c| {
        let then = last.connections.get(&c.connection)?;
        Some(c.bytes.saturating_sub(then.bytes))
    });
    since.reduce(|sum, bytes| sum + bytes)
}

/// Bytes that the far end has acknowledged and not answered.
fn held(e: &Evidence) -> u64 {
    let lanes = e.lanes.iter();
    let sent: u64 = lanes.map(|l| l.in_flight.saturating_sub(l.unsent)).sum();
    let tcp = e.connections.iter().filter_map(|c| c.tcp);
    let under_way: u64 = tcp.map(|tcp| tcp.unacked + tcp.notsent).sum();
    sent.saturating_sub(under_way)
}

impl IntervalFigures {
    fn take_connections(&mut self, direction: Direction, e: &Evidence, last: &PreviousCounters) {
        let (mut sent, mut again, mut rtts) = (0u64, 0u64, Vec::new());
        let (mut busy, mut rwnd, mut sndbuf) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for c in &e.connections {
            let (Some(tcp), Some(then)) = (c.tcp, last.connections.get(&c.connection)) else {
                continue;
            };
            let Some(was) = then.tcp else { continue };
            rtts.push(match direction {
                Direction::Down if tcp.rcv_rtt > Duration::ZERO => tcp.rcv_rtt.min(tcp.rtt),
                _ => tcp.rtt,
            });
            busy += tcp.busy.saturating_sub(was.busy);
            rwnd += tcp.rwnd_limited.saturating_sub(was.rwnd_limited);
            sndbuf += tcp.sndbuf_limited.saturating_sub(was.sndbuf_limited);
            match direction {
                Direction::Up => {
                    sent += tcp.segments.saturating_sub(was.segments);
                    again += tcp.retransmitted.saturating_sub(was.retransmitted);
                    self.slow_start |= tcp.slow_start && tcp.cwnd > was.cwnd + was.cwnd / 8;
                }
                Direction::Down => {
                    sent += c.bytes.saturating_sub(then.bytes) / 1400;
                    again += tcp.out_of_order.saturating_sub(was.out_of_order);
                }
            }
        }
        let share = |part: Duration| match busy.is_zero() {
            true => 0.0,
            false => part.as_secs_f64() / busy.as_secs_f64(),
        };
        self.shown.rwnd_limited = share(rwnd);
        self.shown.sndbuf_limited = share(sndbuf);
        self.shown.loss = again as f64 / sent.max(1) as f64;
        if !rtts.is_empty() {
            self.shown.rtt = rtts.iter().sum::<Duration>() / rtts.len() as u32;
            let each = self.shown.rate / rtts.len() as f64;
            self.shown.per_connection = (each * self.shown.rtt.as_secs_f64()) as u64;
        }
    }

    fn take_lanes(&mut self, e: &Evidence, last: &PreviousCounters, over: f64, trip: Duration) {
        let (mut blocked, mut stalls, mut counted) = (0.0, 0, 0u32);
        let mut latency = Duration::ZERO;
        let mut quickest = Duration::MAX;
        for lane in &e.lanes {
            let Some(then) = last.lanes.get(&lane.lane) else {
                continue;
            };
            let waited = lane.window_blocked.saturating_sub(then.window_blocked);
            blocked += (waited.as_secs_f64() / over).min(1.0);
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

    /// The far end is slow to take what the path has brought to it, or to make what is asked for.
    ///
    /// An upload's bytes lie there unanswered: more than the answers that are under way explain. Of
    /// a download each request takes its time, one after the other, however many there are, or
    /// nothing comes for several round trips while TCP loses nothing: sshd, held to a tenth of a
    /// processor, is silent for 90 of 100 ms.
    pub(super) fn server_lags(&self, direction: Direction) -> bool {
        let shown = &self.shown;
        let lanes = f64::from(shown.lanes.max(1));
        let answers = shown.rate * shown.rtt.as_secs_f64() + lanes * UNANSWERED;
        match direction {
            Direction::Up => shown.held as f64 > answers,
            Direction::Down => {
                let each = shown.rate / lanes * self.quickest.as_secs_f64();
                let in_turn = self.quickest > SLOW_ANSWER && ONE_REQUEST.contains(&each);
                in_turn || shown.silent > SILENT
            }
        }
    }

    /// The path's queue fills: what is sent more only waits longer. On 1 Gbit/s and 114 ms five
    /// connections held back by their send buffers stood at 1.4 times the empty path's round trip
    /// and 97 % of its rate; five more brought losses of 19 % and nothing else.
    pub(super) fn queueing(&self) -> bool {
        let rtt = self.shown.rtt;
        rtt > self.shown.min_rtt.mul_f64(1.25) + Duration::from_millis(5)
    }

    /// The connections' congestion control bears losses, whether there are any or not.
    pub(super) fn is_borne(&self) -> bool {
        self.bears_losses
    }

    /// Packets are lost, and the connections bear it.
    pub(super) fn bears_losses(&self) -> bool {
        self.shown.loss > 0.0005 && self.bears_losses
    }

    /// Packets are lost, and that makes the connections slower.
    pub(super) fn lossy(&self) -> bool {
        self.shown.loss > 0.0005 && !self.bears_losses && self.loss_tells()
    }

    /// Whether a connection that loses so much could be as slow as these are (Mathis et al. 1997).
    /// On loopback a packet that comes late on a busy machine is sent again, at 500 MB/s.
    fn loss_tells(&self) -> bool {
        let shown = &self.shown;
        let rtt = shown.min_rtt.as_secs_f64().max(f64::MIN_POSITIVE);
        let bound = 1.22 * SEGMENT / (rtt * shown.loss.sqrt());
        shown.rate / f64::from(shown.connections.max(1)) > bound / 8.0
    }
}
