use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What held a transfer back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limiter {
    /// Too little was moved to tell.
    Unknown,
    /// The path takes no more: its queue fills, or more connections brought nothing.
    Path,
    /// Packets are lost, and the congestion control slows down for each.
    Loss,
    /// The server's channel windows were empty while data waited.
    ServerWindow,
    /// The server takes long to answer while path and windows are free: its processor or its
    /// disk, which look the same from here.
    Server,
    /// The processors of this end.
    LocalCpu,
    /// The disk of this end.
    LocalDisk,
    /// This end's TCP send buffer: `net.ipv4.tcp_wmem`.
    SendBuffer,
    /// The far end's TCP receive buffer: `net.ipv4.tcp_rmem` there.
    FarReceiveBuffer,
    /// This end's TCP receive buffer: `net.ipv4.tcp_rmem`.
    ReceiveBuffer,
    /// The far end sends no more than this in a round trip, whatever the reason: most likely its
    /// `net.ipv4.tcp_wmem`.
    FarSendBuffer,
    /// The rate that the user set.
    UserLimit,
    /// Other traffic, to which it yields as it was told: it had what that left.
    OtherTraffic,
    /// The number of connections or channels: refused by the server, or set by the user.
    Lanes,
    /// Nothing: it was over before it was at full speed.
    Startup,
}

/// As the end of "limited by ..."; at the far end it is the server's.
const WORDS: [(Limiter, &str); 15] = [
    (Limiter::Unknown, "nothing that could be measured"),
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
    (Limiter::UserLimit, "the rate that was set"),
    (Limiter::OtherTraffic, "what other traffic left"),
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
    /// All.
    pub fn all() -> impl Iterator<Item = Self> {
        WORDS.iter().map(|(limiter, _)| *limiter)
    }

    /// The setting that would lift it, and whether it is at the far end.
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

/// The figures that a [`Limiter`] was named by, of the last measured interval at full speed.
/// Shares are 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimiterEvidence {
    /// Bytes a second.
    pub rate: f64,
    /// Connections.
    pub connections: u32,
    /// Lanes.
    pub lanes: u32,
    /// The lowest round trip.
    pub min_rtt: Duration,
    /// The usual one.
    pub rtt: Duration,
    /// Of segments sent, those sent again; down: those that came out of order.
    pub loss: f64,
    /// Of the time with data to send, what the receiver's window held back.
    pub rwnd_limited: f64,
    /// Of it, what our send buffer held back.
    pub sndbuf_limited: f64,
    /// Of the time, what the channels' windows held back, mean of the lanes.
    pub window_blocked: f64,
    /// How long requests take to be answered, beyond a round trip.
    pub server: Duration,
    /// Processors that this process used.
    pub cpu: f64,
    /// What is idle of this machine's processors.
    pub idle: Option<f64>,
    /// Stalls for the local disk a second.
    pub disk_stalls: f64,
    /// Bytes that a connection had under way: its rate times its round trip.
    pub per_connection: u64,
    /// Of the time, for how long the thread that moves the bytes ran or waited for a processor.
    pub wanted_cpu: f64,
    /// Of the time, for how long nothing came beyond what a round trip explains.
    pub silent: f64,
    /// Bytes that the server's TCP has taken and its SFTP server has not answered (up).
    pub held: u64,
}
