//! A path with TCP flows as a fluid model: windows over round trips, one bottleneck with a queue,
//! random loss, buffers at both ends and channel windows.

use std::time::{Duration, Instant};

use schedule::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionId, ConnectionSample,
    LaneId, LaneOpenFailure, LaneSample, LearnedConcurrency, Limiter, RunMeasurements, TcpSample,
    TransferDirection,
};
use testkit::sftp_model::Rng;

const MSS: f64 = 1448.0;
const MIB: f64 = (1 << 20) as f64;

/// Properties of a simulated path and of the machines at its ends; times are in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// Rate in bytes per second.
    pub(crate) rate: f64,
    pub(crate) rtt: f64,
    /// Capacity of the bottleneck's queue in bytes.
    pub(crate) queue: f64,
    /// Share of packets lost at random.
    pub(crate) loss: f64,
    /// Usable bytes of the sender's (`sndbuf`) and the receiver's (`rcvbuf`) buffer.
    pub(crate) sndbuf: f64,
    pub(crate) rcvbuf: f64,
    /// Window of a channel in bytes; for uploads only.
    pub(crate) window: f64,
    /// Rate in bytes per second that the processors of both ends reach together (`cpu`), and for
    /// one connection (`cpu_each`).
    pub(crate) cpu: f64,
    pub(crate) cpu_each: f64,
    pub(crate) direction: TransferDirection,
    pub(crate) max_startups: u32,
    pub(crate) max_sessions: u32,
    /// TCP's round trip if it ends at a proxy.
    pub(crate) hop: Option<f64>,
    /// Share of this machine's processors that other programs leave idle.
    pub(crate) idle: f64,
    /// Rate in bytes per second above which a policer drops packets without queueing.
    pub(crate) policed: Option<f64>,
    /// The sender's congestion control does not take loss for congestion.
    pub(crate) bears_losses: bool,
}

pub(crate) fn transatlantic(direction: TransferDirection) -> Path {
    Path {
        rate: 117e6,
        rtt: 0.114,
        queue: 4e6,
        loss: 0.0,
        sndbuf: 0.75 * 4.0 * MIB,
        rcvbuf: 0.5 * 6.0 * MIB,
        window: 2.0 * MIB,
        cpu: 2e9,
        cpu_each: 500e6,
        direction,
        max_startups: 10,
        max_sessions: 10,
        hop: None,
        idle: 1.0,
        policed: None,
        bears_losses: false,
    }
}

/// One TCP connection of the simulated transfer with its channels; times are in seconds, amounts in
/// bytes.
struct Flow {
    id: ConnectionId,
    /// Time at which the connection is authenticated.
    ready: f64,
    told: bool,
    cwnd: f64,
    ssthresh: f64,
    /// CUBIC's window at the last loss (`top`), and the time of that loss (`lost_at`).
    top: f64,
    lost_at: f64,
    channels: u32,
    next_channel: u32,
    tcp: TcpSample,
    bytes: f64,
    lane_bytes: f64,
    blocked: f64,
    retired: bool,
    seen_loss: f64,
}

/// Simulated transfer of `total` bytes whose connections a controller decides.
pub(crate) struct Run {
    path: Path,
    growth: ConcurrencyController,
    start: Instant,
    pub(crate) now: f64,
    flows: Vec<Flow>,
    next: u32,
    queued: f64,
    pub(crate) moved: f64,
    total: f64,
    cpu: f64,
    rng: Rng,
    sample_at: f64,
    /// Bytes moved up to each tenth of a second.
    pub(crate) history: Vec<f64>,
    pub(crate) most_connections: usize,
    pub(crate) refused: u32,
    idle: f64,
    pub(crate) changes: Vec<(f64, ConcurrencyChange)>,
}

/// Result of a simulated transfer.
pub(crate) struct Outcome {
    /// Seconds from start to exit.
    pub(crate) took: f64,
    /// Mean rate in bytes per second, from start to exit.
    pub(crate) mean: f64,
    /// Mean rate over the last half of the time.
    pub(crate) steady: f64,
    pub(crate) connections: usize,
    pub(crate) channels: u32,
    pub(crate) limiter: Limiter,
    /// Number of logins that the server refused.
    pub(crate) refused: u32,
    /// Record from which the next run starts.
    pub(crate) learned: Option<LearnedConcurrency>,
}

impl Run {
    pub(crate) fn new(path: Path, config: ConcurrencyConfig, total: f64, seed: u64) -> Self {
        let mut run = Self {
            path,
            growth: ConcurrencyController::new(config),
            start: testkit::sftp_model::epoch(),
            now: 0.0,
            flows: Vec::new(),
            next: 0,
            queued: 0.0,
            moved: 0.0,
            total,
            cpu: 0.0,
            rng: Rng::new(seed),
            sample_at: 0.0,
            history: Vec::new(),
            most_connections: 0,
            refused: 0,
            idle: 1.0,
            changes: Vec::new(),
        };
        run.connect();
        run
    }

    fn connect(&mut self) {
        let waiting = self.flows.iter().filter(|f| f.ready > self.now).count() as u32;
        if waiting >= self.path.max_startups {
            self.refused += 1;
            let now = self.instant();
            self.growth.refused(now, LaneOpenFailure::Connection);
            return;
        }
        self.next += 1;
        self.flows.push(Flow {
            id: ConnectionId(self.next),
            // Staggered, and the processors at both ends take time.
            ready: self.now + 5.5 * self.path.rtt + 0.03 + 0.02 * f64::from(waiting),
            told: self.next == 1,
            cwnd: 10.0 * MSS,
            ssthresh: f64::MAX,
            top: 0.0,
            lost_at: -10.0,
            channels: 1,
            next_channel: 1,
            tcp: TcpSample::default(),
            bytes: 0.0,
            lane_bytes: 0.0,
            blocked: 0.0,
            retired: false,
            seen_loss: -10.0,
        });
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.now)
    }

    pub(crate) fn run(self) -> Outcome {
        self.observed(&mut Vec::new())
    }

    /// Runs the transfer and records each change with its time.
    pub(crate) fn observed(mut self, changes: &mut Vec<(f64, ConcurrencyChange)>) -> Outcome {
        let step = (self.path.rtt / 20.0).clamp(0.0002, 0.005);
        while self.moved < self.total && self.now < 600.0 {
            self.step(step);
            self.now += step;
            while self.history.len() < (self.now * 10.0) as usize {
                self.history.push(self.moved);
            }
            self.steer();
        }
        changes.append(&mut self.changes);
        // The end: CLOSE and the rename.
        let took = self.now + 2.0 * self.path.rtt;
        let from = self.history.len() / 2;
        let half = self.history.get(from).copied().unwrap_or(0.0);
        let over = self.now - from as f64 / 10.0 - 0.1;
        Outcome {
            took,
            mean: self.moved / took,
            steady: (self.moved - half) / over.max(0.01),
            connections: self.flows.iter().filter(|f| !f.retired).count(),
            channels: self.flows.iter().map(|f| f.channels).max().unwrap_or(0),
            limiter: self.growth.limiter(),
            refused: self.refused,
            learned: self.growth.learned(1000),
        }
    }

    fn step(&mut self, dt: f64) {
        let path = self.path;
        let rtt = path.rtt + self.queued / path.rate;
        let mut wants = Vec::new();
        for flow in &mut self.flows {
            let channels = match path.direction {
                TransferDirection::Up => f64::from(flow.channels) * path.window,
                TransferDirection::Down => f64::MAX,
            };
            let buffers = path.sndbuf.min(path.rcvbuf);
            let window = flow.cwnd.min(buffers).min(channels);
            let active = flow.ready <= self.now && !flow.retired;
            let want = if active { window / rtt } else { 0.0 };
            wants.push(want.min(path.cpu_each));
            if !active {
                continue;
            }
            let held = Duration::from_secs_f64(dt);
            flow.tcp.busy += held;
            if window == channels && channels < flow.cwnd.min(buffers) {
                flow.blocked += dt;
            } else if flow.cwnd > buffers {
                match path.sndbuf <= path.rcvbuf {
                    true => flow.tcp.sndbuf_limited += held,
                    false => flow.tcp.rwnd_limited += held,
                }
            }
        }
        let sum: f64 = wants.iter().sum();
        let able = path.cpu.min(sum);
        self.idle = 1.0 - able / path.cpu;
        self.cpu += dt * 2.0 * able / path.cpu;
        let scale_cpu = able / sum.max(1.0);
        self.queued += (able - path.rate) * dt;
        self.queued = self.queued.max(0.0);
        let policed = path.policed.filter(|rate| able > *rate);
        let full = self.queued > path.queue || policed.is_some();
        self.queued = self.queued.min(path.queue);
        let passes = path.policed.unwrap_or(path.rate).min(path.rate);
        let scale = (passes / able.max(1.0)).min(1.0) * scale_cpu;
        for (flow, want) in self.flows.iter_mut().zip(&wants) {
            let bytes = want * scale * dt;
            if bytes <= 0.0 {
                continue;
            }
            flow.bytes += bytes;
            flow.lane_bytes += bytes;
            self.moved += bytes;
            let packets = bytes / MSS;
            flow.tcp.segments = (flow.bytes / MSS) as u64;
            let chance = 1.0 - (1.0 - path.loss).powf(packets);
            let lost = (self.rng.below(1 << 30) as f64 / f64::from(1 << 30)) < chance;
            flow.tcp.retransmitted += u64::from(lost);
            let hit = (lost && !path.bears_losses || full) && self.now - flow.seen_loss > rtt;
            if hit {
                flow.tcp.retransmitted += u64::from(full);
                flow.seen_loss = self.now;
                flow.top = flow.cwnd;
                flow.cwnd = (flow.cwnd * 0.7).max(2.0 * MSS);
                flow.ssthresh = flow.cwnd;
                flow.lost_at = self.now;
            } else if path.bears_losses || want * rtt >= flow.cwnd * 0.9 {
                flow.grow(bytes, self.now, rtt);
            }
            flow.tcp.rtt = Duration::from_secs_f64(rtt);
            flow.tcp.min_rtt = Duration::from_secs_f64(path.rtt);
            flow.tcp.rcv_rtt = flow.tcp.rtt;
            flow.tcp.cwnd = flow.cwnd as u64;
            flow.tcp.slow_start = flow.cwnd < flow.ssthresh;
            flow.tcp.out_of_order = flow.tcp.retransmitted;
        }
    }

    fn steer(&mut self) {
        let now = self.instant();
        let mut came = Vec::new();
        for flow in &mut self.flows {
            if !flow.told && flow.ready <= self.now {
                flow.told = true;
                came.push(flow.id);
            }
        }
        for id in came {
            for change in self.growth.connection_opened(now, id) {
                self.changes.push((self.now, change));
                self.apply(now, change);
            }
        }
        let first = self.flows.first().is_some_and(|f| f.ready <= self.now);
        if !first || self.now < self.sample_at {
            return;
        }
        let evidence = self.evidence(now);
        self.most_connections = self.most_connections.max(evidence.connections.len());
        for change in self.growth.sample(&evidence) {
            self.changes.push((self.now, change));
            self.apply(now, change);
        }
        self.sample_at = self.now + self.growth.interval().as_secs_f64();
    }

    fn apply(&mut self, now: Instant, change: ConcurrencyChange) {
        match change {
            ConcurrencyChange::AddConnection => self.connect(),
            ConcurrencyChange::AddChannel(id) => {
                let most = self.path.max_sessions;
                let Some(flow) = self.flows.iter_mut().find(|f| f.id == id) else {
                    return;
                };
                if flow.channels >= most {
                    self.refused += 1;
                    self.growth.refused(now, LaneOpenFailure::Channel(id));
                } else {
                    flow.channels += 1;
                    flow.next_channel += 1;
                }
            }
            ConcurrencyChange::RetireConnection(id) => {
                for flow in self.flows.iter_mut().filter(|f| f.id == id) {
                    flow.retired = true;
                }
            }
            ConcurrencyChange::RetireLane(lane) => {
                for flow in self.flows.iter_mut().filter(|f| f.id == lane.connection) {
                    flow.channels -= 1;
                }
            }
        }
    }

    fn tcp(&self, flow: &Flow) -> TcpSample {
        let min_rtt = Duration::from_secs_f64(self.path.hop.unwrap_or(self.path.rtt));
        let rtt = match self.path.hop {
            Some(_) => min_rtt,
            None => flow.tcp.rtt.max(min_rtt),
        };
        TcpSample {
            min_rtt,
            rtt,
            ..flow.tcp
        }
    }

    fn evidence(&self, now: Instant) -> RunMeasurements {
        let there = self
            .flows
            .iter()
            .filter(|f| f.ready <= self.now && !f.retired);
        let mut lanes = Vec::new();
        for flow in there.clone() {
            for channel in 0..flow.channels {
                let lane = LaneId {
                    connection: flow.id,
                    channel,
                };
                lanes.push(LaneSample {
                    lane,
                    bytes: (flow.lane_bytes / f64::from(flow.channels)) as u64,
                    window: self.path.window as u64,
                    window_blocked: Duration::from_secs_f64(flow.blocked),
                    in_flight: 0,
                    unsent: 0,
                    depth: 4 << 20,
                    latency: Duration::from_secs_f64(self.path.rtt),
                    stalls_disk: 0,
                    stalls_depth: 0,
                });
            }
        }
        RunMeasurements {
            now,
            remaining: Some((self.total - self.moved).max(0.0) as u64),
            moved: self.moved as u64,
            done: 0,
            cpu: Duration::from_secs_f64(self.cpu),
            idle: Some(self.idle.min(self.path.idle)),
            wanted_cpu: None,
            silent: Duration::ZERO,
            start_up: Duration::ZERO,
            starting: 0,
            bears_losses: self.path.bears_losses,
            connections: there
                .map(|f| ConnectionSample {
                    connection: f.id,
                    bytes: f.bytes as u64,
                    tcp: Some(self.tcp(f)),
                })
                .collect(),
            lanes,
        }
    }
}

impl Flow {
    /// Grows the window as in RFC 9438, with Reno's growth if that is faster.
    fn grow(&mut self, acked: f64, now: f64, rtt: f64) {
        if self.cwnd < self.ssthresh {
            self.cwnd += acked;
            return;
        }
        let top = self.top / MSS;
        let k = (top * 0.3 / 0.4).cbrt();
        let t = now - self.lost_at;
        let cubic = (0.4 * (t - k).powi(3) + top) * MSS;
        let reno = self.cwnd + 0.53 * MSS * acked / self.cwnd;
        let soft = self.cwnd + (cubic - self.cwnd).max(0.0) * (acked / self.cwnd).min(1.0);
        self.cwnd = soft.max(reno);
        let _ = rtt;
    }
}
