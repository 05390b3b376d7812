//! Resource that limits a transfer, decided from its figures.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Resource that limits a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limiter {
    /// Unknown: too little was moved.
    Unknown,
    /// The path: its queue fills, or more connections brought nothing.
    Path,
    /// Packet loss: the congestion control slows down at each lost packet.
    Loss,
    /// The server's channel windows, which were empty while data waited.
    ServerWindow,
    /// The server's processor or disk, which cannot be told apart from here: it answers slowly
    /// while path and windows are free.
    Server,
    /// The local processors.
    LocalCpu,
    /// The local disk.
    LocalDisk,
    /// The local TCP send buffer (`net.ipv4.tcp_wmem`).
    SendBuffer,
    /// The far end's TCP receive buffer (`net.ipv4.tcp_rmem` there).
    FarReceiveBuffer,
    /// The local TCP receive buffer (`net.ipv4.tcp_rmem`).
    ReceiveBuffer,
    /// The far end's limit per round trip, most likely its TCP send buffer (`net.ipv4.tcp_wmem`).
    FarSendBuffer,
    /// The rate limit that the user set.
    UserLimit,
    /// Other traffic, to which a background copy yields.
    OtherTraffic,
    /// The number of connections or channels: refused by the server, or set by the user.
    Lanes,
    /// Nothing: the transfer ended before it reached full speed.
    Startup,
}

/// Texts that follow "limited by"; the far end is called the server.
const WORDS: [(Limiter, &str); 15] = [
    (Limiter::Unknown, "no bottleneck found"),
    (Limiter::Path, "the path"),
    (Limiter::Loss, "packet loss"),
    (Limiter::ServerWindow, "the server's channel windows"),
    (Limiter::Server, "the server's processor or disk"),
    (Limiter::LocalCpu, "this machine's processor"),
    (Limiter::LocalDisk, "this machine's disk"),
    (Limiter::SendBuffer, "this machine's TCP send buffer"),
    (Limiter::FarReceiveBuffer, "the server's TCP receive buffer"),
    (Limiter::ReceiveBuffer, "this machine's TCP receive buffer"),
    (Limiter::FarSendBuffer, "the server's TCP send buffer"),
    (Limiter::UserLimit, "the rate of --limit"),
    (Limiter::OtherTraffic, "the rate that other traffic left"),
    (Limiter::Lanes, "the number of connections"),
    (Limiter::Startup, "TCP's slow start"),
];

impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = WORDS.iter().find(|(limiter, _)| limiter == self);
        f.write_str(words.map_or("", |(_, words)| words))
    }
}

impl Limiter {
    /// Returns all limiters.
    pub fn all() -> impl Iterator<Item = Self> {
        WORDS.iter().map(|(limiter, _)| *limiter)
    }

    /// Returns the sysctl that would lift the limit, and true if it is to be set at the far end.
    pub fn sysctl(self) -> Option<(&'static str, bool)> {
        match self {
            Self::SendBuffer => Some(("net.ipv4.tcp_wmem", false)),
            Self::ReceiveBuffer => Some(("net.ipv4.tcp_rmem", false)),
            Self::FarReceiveBuffer => Some(("net.ipv4.tcp_rmem", true)),
            Self::FarSendBuffer => Some(("net.ipv4.tcp_wmem", true)),
            _ => None,
        }
    }
}

/// Figures from which a [`Limiter`] was determined, of the last interval measured at full speed.
/// Shares are 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimiterEvidence {
    /// Rate in bytes per second.
    pub rate: f64,
    /// Number of connections.
    pub connections: u32,
    /// Number of lanes.
    pub lanes: u32,
    /// Lowest round trip.
    pub min_rtt: Duration,
    /// Typical round trip.
    pub rtt: Duration,
    /// Share of sent segments that were retransmitted; for downloads, share of received segments
    /// that came out of order.
    pub loss: f64,
    /// Share of the time with data to send in which the receiver's window limited the sender.
    pub rwnd_limited: f64,
    /// Share of the time with data to send in which the local send buffer limited the sender.
    pub sndbuf_limited: f64,
    /// Share of time in which the channels' windows limited the sender, mean over the lanes.
    pub window_blocked: f64,
    /// Response time beyond a round trip.
    pub server: Duration,
    /// Number of processors that this process used.
    pub cpu: f64,
    /// Idle share of this machine's processors.
    pub idle: Option<f64>,
    /// Stalls for the local disk per second.
    pub disk_stalls: f64,
    /// Bytes that a connection had in flight: its rate times its round trip.
    pub per_connection: u64,
    /// Share of time in which the thread that moves the bytes ran or waited for a processor.
    pub wanted_cpu: f64,
    /// Share of time in which nothing arrived, beyond a round trip.
    pub silent: f64,
    /// Bytes that the server's TCP has taken and its SFTP server has not answered (up).
    pub held: u64,
}

/// Largest segment of Ethernet with TCP timestamps, in bytes.
const SEGMENT: f64 = 1448.0;
/// Share of lost segments below which losses are no limit.
const FEW_LOSSES: f64 = 0.0005;
/// Share of the time that a window or buffer must block the sender to be the limit.
const BLOCKED: f64 = 0.3;
/// Share of the time that is most of it.
const MOSTLY: f64 = 0.5;
/// Stalls for the local disk per second from which on it is the limit.
const DISK_STALLS: f64 = 20.0;
/// Share of a thread's time from which on it has no processor time left.
const ALL_OF_A_CORE: f64 = 0.85;
/// Share of a processor that a process limited by it uses or waits for, at least.
const SOME_OF_A_CORE: f64 = 0.3;
/// Share of the largest receive buffer that autotuning offers as window, with a margin.
const FULL_BUFFER: f64 = 0.35;
/// Round trip from which on a channel window or a socket buffer can be the limit.
const LONG: Duration = Duration::from_millis(4);

/// Returns which share `part` is of `whole`: 0 of nothing, and never more than all of it.
pub fn share(part: f64, whole: f64) -> f64 {
    match whole > 0.0 {
        true => (part / whole).clamp(0.0, 1.0),
        false => 0.0,
    }
}

impl LimiterEvidence {
    /// Returns true if the path's queue fills, so that more data would only wait longer. On 1
    /// Gbit/s and 114 ms, five connections limited by their send buffers had 1.4 times the round
    /// trip of the empty path and 97 % of its rate; five more brought only losses of 19 %.
    pub fn is_queueing(&self) -> bool {
        self.rtt > self.min_rtt.mul_f64(1.25) + Duration::from_millis(5)
    }

    /// Returns true if packets are lost.
    pub fn loses(&self) -> bool {
        self.loss > FEW_LOSSES
    }

    /// Returns true if the measured loss could make connections as slow as these (Mathis et al.
    /// 1997). On loopback, packets delayed on a busy machine are retransmitted even at 500 MB/s.
    pub fn loss_tells(&self) -> bool {
        self.rate / f64::from(self.connections.max(1)) > self.loss_bound() / 8.0
    }

    /// Returns true if the process uses or waits for a noticeable part of a processor. Beside
    /// compilers, a copy that waited for its server used 0.0 cores and was said to be limited by this
    /// machine's processor.
    pub fn wants_processor(&self) -> bool {
        !self.hardly_uses_processor() || self.wanted_cpu >= SOME_OF_A_CORE
    }

    /// Returns true if the process uses less of a processor than one that is limited by it.
    pub fn hardly_uses_processor(&self) -> bool {
        self.cpu < SOME_OF_A_CORE
    }

    /// Returns the rate in bytes per second that these losses permit one connection in the long run
    /// (Mathis et al. 1997).
    pub fn loss_bound(&self) -> f64 {
        let rtt = self.min_rtt.as_secs_f64().max(f64::MIN_POSITIVE);
        1.22 * SEGMENT / (rtt * self.loss.sqrt())
    }
}

/// Facts about a transfer beyond its [`LimiterEvidence`], from which [`limiter`] decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransferFacts {
    /// True if this end sends.
    pub up: bool,
    /// Figures of the last interval.
    pub figures: LimiterEvidence,
    /// Limit that was set on purpose and is reached.
    pub held_to: Option<Limiter>,
    /// The processors of this machine have no time left.
    pub processors_full: bool,
    /// Facts about the server.
    pub server: ServerFacts,
    /// The path's queue was filled in one of the last intervals.
    pub queued_lately: bool,
    /// Facts about lost packets.
    pub losses: LossFacts,
    /// Use of further connections.
    pub growth: FurtherConnectionEffect,
    /// A connection is still in slow start.
    pub slow_start: bool,
    /// Round trip to the server.
    pub round_trip: Duration,
    /// Largest TCP receive buffer of this machine, in bytes.
    pub receive_buffer: Option<u64>,
}

/// Facts about the server of a transfer that tell if it is the bottleneck.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerFacts {
    /// The server is slow to take or produce data ([`LimiterEvidence`] alone does not tell).
    pub lags: bool,
    /// A whole channel window has arrived at the server and waits there, whatever the path does.
    pub holds_window: bool,
    /// Share of the response time that the path does not explain.
    pub share: f64,
}

/// Facts about packets that were lost on the path.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossFacts {
    /// Packets were lost in one of the last intervals.
    pub lately: bool,
    /// True if the connections use BBR, which does not take each lost packet for congestion.
    pub borne: bool,
}

/// Effect of further connections on a transfer, if they were tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FurtherConnectionEffect {
    /// More connections were not tried, or brought something.
    #[default]
    Open,
    /// The number of connections cannot grow.
    Fixed,
    /// More connections brought nothing.
    Sated,
}

/// Returns the resource that limits a transfer. The closing line of `longhaul cp`, the control of
/// the number of connections and `longhaul doctor` all ask here.
pub fn limiter(t: &TransferFacts) -> Limiter {
    let f = &t.figures;
    if let Some(limit) = t.held_to {
        return limit;
    }
    if t.processors_full && f.wants_processor() {
        return Limiter::LocalCpu;
    }
    // More connections to a lagging server bring nothing either. An upload that waits at the server
    // shows the lag, whatever this end waits for; a download that this end did not receive only
    // looks like silence.
    let queueing = f.is_queueing();
    // A sender that mostly waits for the channel window is not the one that losses slow down.
    let losses_tell = t.losses.lately && !(t.up && f.window_blocked > MOSTLY);
    let lags = t.server.lags && (t.server.holds_window || !queueing && !losses_tell);
    if t.up && lags {
        return Limiter::Server;
    }
    if f.wanted_cpu > ALL_OF_A_CORE {
        return Limiter::LocalCpu;
    }
    if f.disk_stalls > DISK_STALLS && f.window_blocked < BLOCKED {
        return Limiter::LocalDisk;
    }
    let lossy = f.loses() && !t.losses.borne && f.loss_tells();
    if lossy && !queueing && !t.queued_lately {
        return Limiter::Loss;
    }
    if queueing {
        return Limiter::Path;
    }
    if lags {
        return Limiter::Server;
    }
    if t.growth == FurtherConnectionEffect::Sated {
        return Limiter::Path;
    }
    if t.up && f.sndbuf_limited > BLOCKED {
        return Limiter::SendBuffer;
    }
    if t.up && f.rwnd_limited > BLOCKED {
        return Limiter::FarReceiveBuffer;
    }
    if t.up && f.window_blocked > BLOCKED {
        // On a short path the window reopens as soon as the server has taken the data.
        return match t.round_trip < LONG {
            true => Limiter::Server,
            false => Limiter::ServerWindow,
        };
    }
    if t.slow_start {
        return Limiter::Startup;
    }
    if t.server.share > 0.5 && f.server > Duration::from_millis(2) {
        return match t.losses.lately {
            true if t.losses.borne => Limiter::Path,
            true => Limiter::Loss,
            false => Limiter::Server,
        };
    }
    if !t.up && t.round_trip >= LONG {
        let full = t.receive_buffer.map(|b| (b as f64 * FULL_BUFFER) as u64);
        return match full.is_some_and(|full| f.per_connection >= full) {
            true => Limiter::ReceiveBuffer,
            false => Limiter::FarSendBuffer,
        };
    }
    match t.growth {
        FurtherConnectionEffect::Fixed => Limiter::Lanes,
        FurtherConnectionEffect::Open | FurtherConnectionEffect::Sated => Limiter::Path,
    }
}
