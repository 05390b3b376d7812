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
    (Limiter::Unknown, "nothing measurable"),
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
    (Limiter::UserLimit, "the rate limit"),
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
