//! Turns counters of loaded connections into a rung of the ladder.

mod at_losses;
mod between_losses;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use diagnose::{ThroughputMeasurement, share};

use super::connection::{ChannelIndex, ProbeChannel, ProbeConnections};
use crate::session::this_machine;

/// Parts of a measurement, of which the later ones are the plateau.
const PARTS: usize = 20;
/// Samples in a part: a load may end early, and is divided into parts of its real length.
const FINER: usize = 8;
/// Parts of which a measurement consists at least.
const LEAST_PARTS: usize = 10;
/// Round trips of a measurement at least: before, slow start has hardly begun.
const LEAST_TRIPS: f64 = 6.0;
/// Growth within the plateau from which on a load is worth an extension.
const GROWING: f64 = 1.15;
/// Rate of the last third of the plateau, as a share of the first third's, below which it is held
/// up.
const HELD_UP: f64 = 0.6;
/// Segments per lost one from which on losses do not shape the rate.
const FEW: u64 = 2000;
/// Fall of the rate that a burst ends with.
const FALL: f64 = 1.5;
/// Seconds of a part in which a burst is looked for, at least. A burst has two parts. Linux hands
/// out the processor time of a group in periods of 100 ms (`cpu.max`), so that a load on a machine
/// that becomes busy slows down after a period or two as behind a shaper.
const MOMENT: f64 = 0.2;

/// Adjacent parts over which the highest rate of a load is taken: more than two round trips of the
/// longest path, in which TCP sends volleys.
const PEAK_PARTS: usize = 3;
/// Time over which it is taken at least: in half a second the bucket of a policer adds a fifth to its rate.
const PEAK_TIME: Duration = Duration::from_millis(1500);

/// Bytes in a segment of Ethernet with TCP timestamps.
const USUAL_SEGMENT: f64 = 1448.0;

/// Counters of all loaded connections.
#[derive(Clone, Debug, Default)]
struct LoadCounters {
    moved: u64,
    /// Bytes that arrived at the receiver, in order or not.
    delivered: u64,
    segments: u64,
    retransmitted: u64,
    reordered: u64,
    vain: u64,
    /// Segments received by the sender, most of them acknowledgements.
    acknowledgements: u64,
    busy: Duration,
    rwnd: Duration,
    sndbuf: Duration,
    blocked: Duration,
    cpu: Duration,
    wanted: Option<Duration>,
    ticks: Option<(u64, u64)>,
    silent: Duration,
}

/// Counters and their time.
type LoadMark = (Instant, LoadCounters);

/// Samples a load while it runs.
pub(super) struct LoadSampler {
    up: bool,
    channels: Vec<ChannelIndex>,
    connections: Vec<usize>,
    start: Instant,
    length: Duration,
    marks: Vec<LoadMark>,
    rtts: Vec<(Instant, f64)>,
    windows: Option<(u64, u64)>,
    held: Vec<(Instant, u64)>,
    last_moved: (Instant, u64),
    silent: Duration,
    cwnd: Vec<(Instant, u64)>,
    slow_start: bool,
    /// Largest segment that the peer sent, in bytes.
    segment: f64,
    sampled: Instant,
}

impl LoadSampler {
    pub(super) fn new(
        up: bool,
        channels: Vec<ChannelIndex>,
        length: Duration,
        all: &ProbeConnections,
    ) -> Self {
        let now = Instant::now();
        let mut connections: Vec<usize> = channels.iter().map(|c| c.0).collect();
        connections.dedup();
        let mut sampler = Self {
            up,
            channels,
            connections,
            start: now,
            length,
            marks: Vec::new(),
            rtts: Vec::new(),
            windows: None,
            held: Vec::new(),
            last_moved: (now, 0),
            silent: Duration::ZERO,
            cwnd: Vec::new(),
            slow_start: false,
            segment: USUAL_SEGMENT,
            sampled: now,
        };
        let first = sampler.counters(all);
        sampler.last_moved.1 = first.moved;
        sampler.marks.push((now, first));
        sampler
    }

    fn counters(&self, all: &ProbeConnections) -> LoadCounters {
        let machine = (this_machine().sample)();
        let mut sum = LoadCounters {
            cpu: machine.processor_time,
            wanted: machine.wanted_cpu,
            ticks: machine.ticks,
            silent: self.silent,
            moved: self.moved(all),
            ..LoadCounters::default()
        };
        for connection in &self.connections {
            let Some(tcp) = all.sample(*connection).tcp else {
                continue;
            };
            let (sent, again) = match self.up {
                true => (tcp.data_segs_out, tcp.total_retrans),
                false => (tcp.data_segs_in, tcp.rcv_ooopack),
            };
            sum.segments += u64::from(sent);
            sum.retransmitted += u64::from(again);
            sum.delivered += u64::from(tcp.delivered) * u64::from(tcp.snd_mss);
            sum.reordered += u64::from(tcp.reord_seen);
            sum.vain += u64::from(tcp.dsack_dups);
            sum.acknowledgements += u64::from(tcp.segs_in);
            sum.busy += tcp.busy;
            sum.rwnd += tcp.rwnd_limited;
            sum.sndbuf += tcp.sndbuf_limited;
        }
        let blocked = self.channels.iter().filter_map(|at| all.channel(*at));
        sum.blocked = blocked.map(ProbeChannel::blocked).sum();
        sum
    }

    /// Bytes that passed: acknowledged or received by TCP, else confirmed by SFTP.
    fn moved(&self, all: &ProbeConnections) -> u64 {
        let of = |connection: &usize| {
            let sample = all.sample(*connection);
            match (self.up, sample.tcp) {
                (true, Some(tcp)) => tcp.bytes_acked,
                (false, _) => sample.received,
                (true, None) => {
                    let own = self.channels.iter().filter(|c| c.0 == *connection);
                    own.filter_map(|at| all.channel(*at))
                        .map(ProbeChannel::moved)
                        .sum()
                }
            }
        };
        self.connections.iter().map(of).sum()
    }

    /// Time in which nothing has passed, up to now.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_moved.0)
    }

    /// Bytes that passed since the start.
    pub(super) fn passed(&self, all: &ProbeConnections) -> u64 {
        let before = self.marks.first().map_or(0, |mark| mark.1.moved);
        self.moved(all).saturating_sub(before)
    }

    /// False if the rate still grows, or if a lost packet of a download holds up what follows it,
    /// so that the end of the load would tell too little.
    pub(super) fn is_steady(&self) -> bool {
        // Lost packets make a rate rise and fall without an end.
        let middle = self.marks.get(self.marks.len() / 2);
        let lost = middle.zip(self.marks.last()).is_some_and(|(from, to)| {
            let sent = to.1.segments.saturating_sub(from.1.segments);
            let again = to.1.retransmitted.saturating_sub(from.1.retransmitted);
            again > sent / FEW
        });
        let growth = growth(&rates(&self.marks, self.up));
        let grows = growth > GROWING && !lost;
        let waits = growth < HELD_UP && !self.up;
        !grows && !waits
    }

    /// Takes a sample if one is due.
    pub(super) fn turn(&mut self, all: &mut ProbeConnections) {
        let now = Instant::now();
        self.watch_silence(now, all);
        if now.saturating_duration_since(self.sampled) < Duration::from_millis(10) {
            return;
        }
        self.sampled = now;
        let part = self.length.as_secs_f64() / (PARTS * FINER) as f64;
        let passed = now.saturating_duration_since(self.start).as_secs_f64();
        if passed / part >= self.marks.len() as f64 {
            let counters = self.counters(all);
            self.marks.push((now, counters));
        }
        let mut held = 0;
        for connection in &self.connections {
            let Some(tcp) = all.sample(*connection).tcp else {
                continue;
            };
            if tcp.rcv_mss > 0 {
                self.segment = f64::from(tcp.rcv_mss);
            }
            let window = u64::from(tcp.snd_wnd);
            if window > 0 {
                let (low, high) = self.windows.unwrap_or((window, window));
                self.windows = Some((low.min(window), high.max(window)));
            }
            let rtt = match self.up || tcp.rcv_rtt.is_zero() {
                true => tcp.rtt,
                false => tcp.rcv_rtt.min(tcp.rtt),
            };
            self.rtts.push((now, rtt.as_secs_f64()));
            self.slow_start = tcp.snd_cwnd < tcp.snd_ssthresh;
            self.cwnd.push((now, u64::from(tcp.snd_cwnd)));
            if self.up {
                held += self.held_at(*connection, &tcp, all);
            }
        }
        self.held.push((now, held));
    }

    /// Bytes of a connection that the server's TCP has and its SFTP server has not answered.
    fn held_at(&self, connection: usize, tcp: &sys::TcpInfo, all: &mut ProbeConnections) -> u64 {
        let own: Vec<_> = self.channels.iter().filter(|c| c.0 == connection).collect();
        let mut in_flight = 0;
        let mut queued = all.sample(connection).unwritten;
        for at in own {
            in_flight += all.channel(*at).map_or(0, |c| c.in_flight());
            queued += all.window(*at).1;
        }
        let under_way = u64::from(tcp.unacked) * u64::from(tcp.snd_mss);
        in_flight.saturating_sub(queued + under_way + u64::from(tcp.notsent_bytes))
    }

    /// Counts time in which nothing arrived, beyond a round trip.
    fn watch_silence(&mut self, now: Instant, all: &ProbeConnections) {
        let moved = self.moved(all);
        let (then, before) = self.last_moved;
        if moved == before {
            return;
        }
        let gap = now.saturating_duration_since(then);
        let rtt = self.connections.first().and_then(|c| all.sample(*c).tcp);
        let rtt = rtt.map(|tcp| tcp.rtt).unwrap_or_default();
        self.silent += gap.saturating_sub(rtt + Duration::from_millis(5));
        self.last_moved = (now, moved);
    }

    /// Ends the measurement; `None` if too little was seen.
    pub(super) fn finish(mut self, all: &mut ProbeConnections) -> Option<ThroughputMeasurement> {
        let now = Instant::now();
        let counters = self.counters(all);
        self.marks.push((now, counters));
        // Without TCP's counters the round trip is that of the idle path.
        let carried = all.carried_rtt().as_secs_f64();
        let min_rtt = self.connections.iter().filter_map(|c| all.sample(*c).tcp);
        let min_rtt = min_rtt.map(|tcp| tcp.min_rtt.as_secs_f64());
        let min_rtt = min_rtt.min_by(f64::total_cmp).unwrap_or(carried);
        let length = now.saturating_duration_since(self.start);
        let seconds = length.as_secs_f64();
        let (before_burst, burst) = lasting_burst(&self.marks, now, min_rtt, self.up);
        let at_losses = at_losses::at_losses(&self.marks, &self.rtts, min_rtt, self.up);
        let between_losses = match self.up {
            true => between_losses::between_losses(&self.marks, &self.rtts, min_rtt),
            false => None,
        };
        self.marks = divided(&self.marks, now, PARTS);
        if self.marks.len() <= LEAST_PARTS || seconds < LEAST_TRIPS * min_rtt {
            return None;
        }
        let middle = self.start + length / 2;
        let rates = rates(&self.marks, self.up);
        let plateau = LoadPlateau::of(&self.marks)?;
        let rtt = median(&mut later(&self.rtts, middle)).max(min_rtt.min(carried));
        let rate = plateau.rate(&rates);
        Some(ThroughputMeasurement {
            connections: self.connections.len() as u32,
            channels: (self.channels.len() / self.connections.len().max(1)) as u32,
            rate,
            noise: noise(&rates, rate),
            seconds,
            before_burst,
            burst,
            min_rtt,
            rtt,
            loss: self.loss(plateau.from, plateau.to, rtt),
            loss_ever: self.loss(self.marks.first()?, plateau.to, rtt),
            window: self.channels.first().map_or(0, |at| all.window(*at).0),
            peer_window: self.windows,
            held: median_of(&mut later(&self.held, middle)),
            slow_start: self.up && self.slow_start && self.grows(middle),
            growth: growth(&rates),
            peak: peak(&self.marks, self.up),
            at_losses,
            between_losses,
            ..plateau.shares(self.up, self.channels.len())
        })
    }

    /// Share of lost segments between two samples.
    fn loss(&self, from: &LoadMark, to: &LoadMark, rtt: f64) -> f64 {
        let over = to.0.saturating_duration_since(from.0).as_secs_f64();
        let (was, is) = (&from.1, &to.1);
        let segments = is.segments.saturating_sub(was.segments).max(1) as f64;
        let again = is.retransmitted.saturating_sub(was.retransmitted) as f64;
        let vain = is.vain.saturating_sub(was.vain) as f64;
        match self.up {
            true => (again - vain).max(0.0) / segments,
            false => {
                let trips = (over / rtt.max(1e-4)).max(1.0);
                let connections = self.connections.len().max(1) as f64;
                // A virtual network device passes several segments as one, which Linux counts as
                // one.
                let bytes = is.moved.saturating_sub(was.moved) as f64;
                let sent = (bytes / self.segment).max(segments);
                lost_of_late(again / segments, sent / trips / connections)
            }
        }
    }

    /// True if the congestion window still grew at the end.
    fn grows(&self, middle: Instant) -> bool {
        let late = later(&self.cwnd, middle);
        let ends = late.first().zip(late.last());
        ends.is_some_and(|(first, last)| *last > first + first / 4)
    }
}

/// Plateau of a load: its second half, after slow start.
struct LoadPlateau<'a> {
    from: &'a LoadMark,
    to: &'a LoadMark,
    /// Seconds between the two.
    over: f64,
}

impl<'a> LoadPlateau<'a> {
    /// Returns the second half of a load; `None` if it has no length.
    fn of(marks: &'a [LoadMark]) -> Option<Self> {
        let (from, to) = (marks.get(marks.len() / 2)?, marks.last()?);
        let over = to.0.saturating_duration_since(from.0).as_secs_f64();
        (over > 0.0).then_some(Self { from, to, over })
    }

    /// Growth of a counter.
    fn grown(&self, counter: fn(&LoadCounters) -> u64) -> f64 {
        counter(&self.to.1).saturating_sub(counter(&self.from.1)) as f64
    }

    /// Growth of a counter of time, in seconds.
    fn spent(&self, counter: fn(&LoadCounters) -> Duration) -> f64 {
        let spent = counter(&self.to.1).saturating_sub(counter(&self.from.1));
        spent.as_secs_f64()
    }

    /// Bytes per second. `rates` are those between the samples of the whole load.
    fn rate(&self, rates: &[f64]) -> f64 {
        let again = self.grown(|c| c.retransmitted) as u64;
        let segments = self.grown(|c| c.segments) as u64;
        match growth(rates) > GROWING && again * FEW <= segments {
            // The end of a measurement that was too short is closest to the plateau.
            true => last_third(rates),
            false => self.grown(|c| c.moved) / self.over,
        }
    }

    /// Returns a rung with the shares of time and of segments that follow from the counters alone.
    fn shares(&self, up: bool, channels: usize) -> ThroughputMeasurement {
        let busy = self.spent(|c| c.busy);
        let of_busy = |part: f64| match busy > 0.0 {
            true => part / busy,
            false => 0.0,
        };
        let again = self.grown(|c| c.retransmitted);
        let vain = self.grown(|c| c.vain);
        let segments = self.grown(|c| c.segments).max(1.0);
        let idle = self.from.1.ticks.zip(self.to.1.ticks).map(|(a, b)| {
            let (idle, of) = (b.0.saturating_sub(a.0), b.1.saturating_sub(a.1));
            idle as f64 / of.max(1) as f64
        });
        let blocked = self.spent(|c| c.blocked) / self.over;
        let wanted = self.from.1.wanted.zip(self.to.1.wanted);
        ThroughputMeasurement {
            rwnd_limited: of_busy(self.spent(|c| c.rwnd)),
            sndbuf_limited: of_busy(self.spent(|c| c.sndbuf)),
            window_blocked: blocked / channels.max(1) as f64,
            silent: share(self.spent(|c| c.silent), self.over),
            cpu: self.spent(|c| c.cpu) / self.over,
            wanted_cpu: wanted.map_or(0.0, |(was, is)| {
                share(is.saturating_sub(was).as_secs_f64(), self.over)
            }),
            idle,
            reordered: share(self.grown(|c| c.reordered), segments),
            spurious: share(vain, again.max(1.0)),
            vain: share(vain, segments),
            acknowledgements: match up {
                true => self.grown(|c| c.acknowledgements) / self.over,
                false => 0.0,
            },
            ..ThroughputMeasurement::default()
        }
    }
}

/// Rates between samples.
fn rates(marks: &[LoadMark], up: bool) -> Vec<f64> {
    let rate = |pair: &[LoadMark]| match pair {
        [a, b] => {
            let over = b.0.saturating_duration_since(a.0).as_secs_f64();
            (over > 0.002).then(|| passed(&a.1, &b.1, up) as f64 / over)
        }
        _ => None,
    };
    marks.windows(2).filter_map(rate).collect()
}

/// Returns one sample for each of so many parts of the time until `end`, and the last one.
fn divided(marks: &[LoadMark], end: Instant, parts: usize) -> Vec<LoadMark> {
    let Some(start) = marks.first().map(|mark| mark.0) else {
        return Vec::new();
    };
    let part = end.saturating_duration_since(start) / parts.max(1) as u32;
    let mut due = start;
    let last = marks.len() - 1;
    let mut kept = Vec::new();
    for (at, mark) in marks.iter().enumerate() {
        if mark.0 >= due && mark.0 + part / 2 < end || at == last {
            due += part;
            kept.push(mark.clone());
        }
    }
    kept
}

/// Returns the rate before a lasting fall, and the bytes that passed until then. Long bursts are
/// steadier in large parts, and a short one ends within one of them. No part is shorter than a
/// round trip, in which TCP sends one volley, or than [`MOMENT`].
fn lasting_burst(marks: &[LoadMark], end: Instant, min_rtt: f64, up: bool) -> (Option<f64>, u64) {
    let start = marks.first().map_or(end, |mark| mark.0);
    let seconds = end.saturating_duration_since(start).as_secs_f64();
    let most = (seconds / min_rtt.max(MOMENT)) as usize;
    let found = [PARTS, PARTS * FINER / 2].into_iter().find_map(|parts| {
        let marks = divided(marks, end, parts.min(most));
        burst(&marks, &rates(&marks, up))
    });
    match found {
        Some((rate, bytes)) => (Some(rate), bytes),
        None => (None, 0),
    }
}

/// Returns the rate before a lasting fall, and the bytes that passed until then.
fn burst(marks: &[LoadMark], rates: &[f64]) -> Option<(f64, u64)> {
    let settled = rates.len() * 2 / 3;
    let high = rates.get(settled..)?.iter().copied().fold(0.0, f64::max);
    let fast = |rate: &f64| *rate > FALL * high;
    // Slow start comes first, and the burst may have dips.
    let early = rates.iter().position(fast)?;
    let end = rates.iter().rposition(fast)? + 1;
    let burst = rates.get(early..end).unwrap_or_default();
    let mean = burst.iter().sum::<f64>() / burst.len().max(1) as f64;
    if burst.len() < 2 || high <= 0.0 || !fast(&mean) || end >= settled {
        return None;
    }
    let (first, last) = (marks.first()?, marks.get(end)?);
    Some((mean, last.1.moved.saturating_sub(first.1.moved)))
}

/// Bytes that arrived at the receiver between two samples. Acknowledged bytes would jump whenever a
/// lost segment is repaired.
fn passed(from: &LoadCounters, to: &LoadCounters, up: bool) -> u64 {
    match up && to.delivered > from.delivered {
        true => to.delivered - from.delivered,
        false => to.moved.saturating_sub(from.moved),
    }
}

/// Share of lost segments in a download, of which this end sees only the share `late` of segments
/// that came out of order. Each loss makes all segments late until it is repaired: those of a round
/// trip, `window` on average, and the three after which the sender repeats a segment (RACK, RFC
/// 8985). 1 - late = (1 - p)^(all of these).
fn lost_of_late(late: f64, window: f64) -> f64 {
    let in_order = (1.0 - late).clamp(1e-6, 1.0);
    1.0 - in_order.powf(1.0 / (window + 3.0))
}

/// Highest mean rate over [`PEAK_PARTS`] adjacent parts, or [`PEAK_TIME`] if they are shorter, after the
/// first lost packet; 0 without one. Losses come first because a policer's bucket lets a burst pass until
/// then.
fn peak(marks: &[LoadMark], up: bool) -> f64 {
    let lost = |pair: &[LoadMark]| match pair {
        [a, b] => b.1.retransmitted > a.1.retransmitted,
        _ => false,
    };
    let Some(first) = marks.windows(2).position(lost) else {
        return 0.0;
    };
    let after = rates(marks.get(first + 1..).unwrap_or_default(), up);
    let all = marks.first().zip(marks.last());
    let time = all.map_or(Duration::ZERO, |(from, to)| to.0 - from.0);
    let part = time.as_secs_f64() / (marks.len() - 1) as f64;
    let wanted = (PEAK_TIME.as_secs_f64() / part.max(1e-3)).ceil() as usize;
    let parts = wanted.clamp(PEAK_PARTS, after.len().max(PEAK_PARTS));
    let mean = |parts: &[f64]| parts.iter().sum::<f64>() / parts.len() as f64;
    after.windows(parts).map(mean).fold(0.0, f64::max)
}

/// Rate of the last third of the plateau.
fn last_third(rates: &[f64]) -> f64 {
    let late = rates.get(rates.len() * 5 / 6..).unwrap_or_default();
    late.iter().sum::<f64>() / late.len().max(1) as f64
}

/// Rate of the last third of the plateau, as a share of that of its first third; 1 if unknown.
fn growth(rates: &[f64]) -> f64 {
    let late = rates.get(rates.len() / 2..).unwrap_or_default();
    let size = (late.len() / 3).max(1);
    let sum = |part: Option<&[f64]>| part.unwrap_or_default().iter().sum::<f64>();
    let first = sum(late.get(..size));
    let last = sum(late.get(late.len().saturating_sub(size)..));
    match first > 0.0 && last > 0.0 {
        true => last / first,
        false => 1.0,
    }
}

/// Values from this time on.
fn later<T: Copy>(values: &[(Instant, T)], from: Instant) -> Vec<T> {
    let late = values.iter().filter(|value| value.0 >= from);
    late.map(|value| value.1).collect()
}

/// Half the range between the thirds of the plateau, as a share of the rate.
fn noise(rates: &[f64], rate: f64) -> f64 {
    let late = rates.get(rates.len() / 2..).unwrap_or_default();
    let size = (late.len() / 3).max(1);
    let means = late.chunks(size).filter(|part| part.len() == size);
    let means: Vec<f64> = means.map(|p| p.iter().sum::<f64>() / size as f64).collect();
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(0.0, f64::max);
    match rate > 0.0 && high >= low {
        true => (high - low) / 2.0 / rate,
        false => 0.0,
    }
}

/// Median of some figures; zero without any.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn median_of(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
