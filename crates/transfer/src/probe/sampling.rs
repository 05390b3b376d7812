//! Turns counters of loaded connections into a rung of the ladder.

use std::time::{Duration, Instant};

use diagnose::Rung;

use super::connection::{ChannelIndex, Connections};
use crate::session::this_machine;

/// Parts of a measurement, of which the later ones are the plateau.
const PARTS: usize = 20;
/// Part at which the plateau begins.
const PLATEAU: usize = 10;
/// Fall of the rate that a burst ends with.
const FALL: f64 = 1.5;

/// Bytes in a segment of Ethernet with TCP timestamps.
const USUAL_SEGMENT: f64 = 1448.0;

/// Counters of all loaded connections.
#[derive(Clone, Debug, Default)]
struct Counters {
    moved: u64,
    /// Bytes that arrived at the receiver, in order or not.
    delivered: u64,
    segments: u64,
    retransmitted: u64,
    reordered: u64,
    vain: u64,
    busy: Duration,
    rwnd: Duration,
    sndbuf: Duration,
    blocked: Duration,
    cpu: Duration,
    wanted: Option<Duration>,
    ticks: Option<(u64, u64)>,
    silent: Duration,
}

/// Samples a load while it runs.
pub(super) struct LoadSampler {
    up: bool,
    channels: Vec<ChannelIndex>,
    connections: Vec<usize>,
    start: Instant,
    length: Duration,
    marks: Vec<(Instant, Counters)>,
    rtts: Vec<f64>,
    windows: Option<(u64, u64)>,
    held: Vec<u64>,
    last_moved: (Instant, u64),
    silent: Duration,
    cwnd: Vec<u64>,
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
        all: &Connections,
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

    fn counters(&self, all: &Connections) -> Counters {
        let machine = (this_machine().sample)();
        let mut sum = Counters {
            cpu: machine.processor_time,
            wanted: machine.wanted_cpu,
            ticks: machine.ticks,
            silent: self.silent,
            moved: self.moved(all),
            ..Counters::default()
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
            sum.busy += tcp.busy;
            sum.rwnd += tcp.rwnd_limited;
            sum.sndbuf += tcp.sndbuf_limited;
        }
        let blocked = self.channels.iter().filter_map(|at| all.channel(*at));
        sum.blocked = blocked.map(|c| c.blocked).sum();
        sum
    }

    /// Bytes that passed: acknowledged or received by TCP, else confirmed by SFTP.
    fn moved(&self, all: &Connections) -> u64 {
        let of = |connection: &usize| {
            let sample = all.sample(*connection);
            match (self.up, sample.tcp) {
                (true, Some(tcp)) => tcp.bytes_acked,
                (false, _) => sample.received,
                (true, None) => {
                    let own = self.channels.iter().filter(|c| c.0 == *connection);
                    own.filter_map(|at| all.channel(*at)).map(|c| c.moved).sum()
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
    pub(super) fn passed(&self, all: &Connections) -> u64 {
        let before = self.marks.first().map_or(0, |mark| mark.1.moved);
        self.moved(all).saturating_sub(before)
    }

    /// Takes a sample if one is due.
    pub(super) fn turn(&mut self, all: &mut Connections) {
        let now = Instant::now();
        self.watch_silence(now, all);
        if now.saturating_duration_since(self.sampled) < Duration::from_millis(10) {
            return;
        }
        self.sampled = now;
        let part = self.length.as_secs_f64() / PARTS as f64;
        let passed = now.saturating_duration_since(self.start).as_secs_f64();
        if passed / part >= self.marks.len() as f64 {
            let counters = self.counters(all);
            self.marks.push((now, counters));
        }
        let late = self.marks.len() > PLATEAU;
        let mut held = 0;
        for connection in &self.connections {
            let Some(tcp) = all.sample(*connection).tcp else {
                continue;
            };
            if late && tcp.rcv_mss > 0 {
                self.segment = f64::from(tcp.rcv_mss);
            }
            let window = u64::from(tcp.snd_wnd);
            if window > 0 {
                let (low, high) = self.windows.unwrap_or((window, window));
                self.windows = Some((low.min(window), high.max(window)));
            }
            if late {
                let rtt = match self.up || tcp.rcv_rtt.is_zero() {
                    true => tcp.rtt,
                    false => tcp.rcv_rtt.min(tcp.rtt),
                };
                self.rtts.push(rtt.as_secs_f64());
                self.slow_start = tcp.snd_cwnd < tcp.snd_ssthresh;
                self.cwnd.push(u64::from(tcp.snd_cwnd));
            }
            if self.up && late {
                held += self.held_at(*connection, &tcp, all);
            }
        }
        if late {
            self.held.push(held);
        }
    }

    /// Bytes of a connection that the server's TCP has and its SFTP server has not answered.
    fn held_at(&self, connection: usize, tcp: &sys::TcpInfo, all: &mut Connections) -> u64 {
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
    fn watch_silence(&mut self, now: Instant, all: &Connections) {
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
    pub(super) fn finish(mut self, all: &mut Connections) -> Option<Rung> {
        let now = Instant::now();
        let counters = self.counters(all);
        self.marks.push((now, counters));
        if self.marks.len() < PLATEAU {
            return None;
        }
        let rates = self.rates();
        let plateau = self.marks.len() / 2;
        let (from, to) = (self.marks.get(plateau)?, self.marks.last()?);
        let over = to.0.saturating_duration_since(from.0).as_secs_f64();
        if over <= 0.0 {
            return None;
        }
        let (was, is) = (&from.1, &to.1);
        let share = |part: Duration, was: Duration| {
            let busy = is.busy.saturating_sub(was_busy(from)).as_secs_f64();
            match busy > 0.0 {
                true => part.saturating_sub(was).as_secs_f64() / busy,
                false => 0.0,
            }
        };
        let rate = is.moved.saturating_sub(was.moved) as f64 / over;
        let again = is.retransmitted.saturating_sub(was.retransmitted) as f64;
        let vain = is.vain.saturating_sub(was.vain) as f64;
        let segments = is.segments.saturating_sub(was.segments).max(1) as f64;
        let ticks = was.ticks.zip(is.ticks).map(|(a, b)| {
            let (idle, of) = (b.0.saturating_sub(a.0), b.1.saturating_sub(a.1));
            idle as f64 / of.max(1) as f64
        });
        let min_rtt = self.connections.iter().filter_map(|c| all.sample(*c).tcp);
        let min_rtt = min_rtt.map(|tcp| tcp.min_rtt.as_secs_f64());
        let min_rtt = min_rtt.fold(f64::INFINITY, f64::min).min(60.0);
        let rtt = median(&mut self.rtts.clone());
        let loss = self.loss(from, to, rtt);
        let loss_ever = self.loss(self.marks.first()?, to, rtt);
        let window = self.channels.first().map_or(0, |at| all.window(*at).0);
        let (before_burst, burst) = self.burst(&rates);
        let per_channel = self.channels.len().max(1) as f64;
        Some(Rung {
            connections: self.connections.len() as u32,
            channels: (self.channels.len() / self.connections.len().max(1)) as u32,
            rate,
            noise: noise(&rates, rate),
            seconds: now.saturating_duration_since(self.start).as_secs_f64(),
            before_burst,
            burst,
            min_rtt,
            rtt,
            loss,
            loss_ever,
            rwnd_limited: share(is.rwnd, was.rwnd),
            sndbuf_limited: share(is.sndbuf, was.sndbuf),
            window_blocked: is.blocked.saturating_sub(was.blocked).as_secs_f64()
                / over
                / per_channel,
            window,
            peer_window: self.windows,
            held: median_of(&mut self.held),
            silent: is.silent.saturating_sub(was.silent).as_secs_f64() / over,
            cpu: is.cpu.saturating_sub(was.cpu).as_secs_f64() / over,
            wanted_cpu: match (was.wanted, is.wanted) {
                (Some(was), Some(is)) => is.saturating_sub(was).as_secs_f64() / over,
                _ => 0.0,
            },
            idle: ticks,
            slow_start: self.up && self.slow_start && self.grows(),
            reordered: is.reordered.saturating_sub(was.reordered) as f64 / segments,
            spurious: vain / again.max(1.0),
            ..Rung::default()
        })
    }

    /// Rates between the samples.
    fn rates(&self) -> Vec<f64> {
        let rate = |pair: &[(Instant, Counters)]| match pair {
            [a, b] => {
                let over = b.0.saturating_duration_since(a.0).as_secs_f64();
                (over > 0.002).then(|| passed(&a.1, &b.1, self.up) as f64 / over)
            }
            _ => None,
        };
        self.marks.windows(2).filter_map(rate).collect()
    }

    /// Share of lost segments between two samples.
    fn loss(&self, from: &(Instant, Counters), to: &(Instant, Counters), rtt: f64) -> f64 {
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
                // A virtual network device passes several segments as one, which Linux counts as one.
                let bytes = is.moved.saturating_sub(was.moved) as f64;
                let sent = (bytes / self.segment).max(segments);
                lost_of_late(again / segments, sent / trips / connections)
            }
        }
    }

    /// True if the congestion window still grew at the end.
    fn grows(&self) -> bool {
        let (first, last) = (self.cwnd.first(), self.cwnd.last());
        first
            .zip(last)
            .is_some_and(|(first, last)| *last > first + first / 4)
    }

    /// Returns the rate before a lasting fall, and the bytes that passed until then.
    fn burst(&self, rates: &[f64]) -> (Option<f64>, u64) {
        let late = rates.get(rates.len() * 2 / 3..).unwrap_or_default();
        let high = late.iter().copied().fold(0.0, f64::max);
        let fast = |rate: &f64| *rate > FALL * high;
        // Slow start comes first, and the burst may have dips.
        let (Some(early), Some(last)) = (rates.iter().position(fast), rates.iter().rposition(fast))
        else {
            return (None, 0);
        };
        let end = last + 1;
        let burst = rates.get(early..end).unwrap_or_default();
        let mean = burst.iter().sum::<f64>() / burst.len().max(1) as f64;
        if burst.len() < 2 || high <= 0.0 || !fast(&mean) || end >= rates.len() * 2 / 3 {
            return (None, 0);
        }
        let start = self.marks.first().map_or(0, |mark| mark.1.moved);
        let passed = self.marks.get(end).map_or(0, |mark| mark.1.moved);
        (Some(mean), passed.saturating_sub(start))
    }
}

/// Bytes that arrived at the receiver between two samples. Acknowledged bytes would jump whenever a
/// lost segment is repaired.
fn passed(from: &Counters, to: &Counters, up: bool) -> u64 {
    match up && to.delivered > from.delivered {
        true => to.delivered - from.delivered,
        false => to.moved.saturating_sub(from.moved),
    }
}

/// Share of lost segments in a download, of which this end sees only the share `late` of segments
/// that came out of order. Each loss makes all segments late until it is repaired: those of a round
/// trip, `window` on average, and the three after which the sender repeats a segment (RACK, RFC 8985).
/// 1 - late = (1 - p)^(all of these).
fn lost_of_late(late: f64, window: f64) -> f64 {
    let in_order = (1.0 - late).clamp(1e-6, 1.0);
    1.0 - in_order.powf(1.0 / (window + 3.0))
}

fn was_busy(mark: &(Instant, Counters)) -> Duration {
    mark.1.busy
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
