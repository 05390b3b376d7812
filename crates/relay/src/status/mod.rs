//! How relays and their connections are, as data: for a page, for figures, for a terminal.

mod history;
mod watch;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sys::TcpInfo;

pub use history::SECONDS;
pub use watch::Watch;

/// How everything is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Since it is watched.
    pub seconds: f64,
    /// In the order in which they were told.
    pub relays: Vec<RelayStatus>,
    /// Of this many connections...
    pub connections: usize,
    /// ...those that move most, at most [`LISTED`].
    pub listed: Vec<ConnectionStatus>,
}

/// So many connections are listed.
pub const LISTED: usize = 256;

/// How a relay is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayStatus {
    /// Where connections come in.
    pub relay: String,
    /// Where they go.
    pub targets: Vec<TargetStatus>,
    /// Connections taken so far.
    pub accepted: u64,
    /// Connections turned away so far.
    pub turned_away: u64,
    /// Connections that are there now.
    pub connections: u64,
    /// How connections have ended.
    pub ends: BTreeMap<String, u64>,
    /// Bytes to the server, and back.
    pub bytes: [u64; 2],
    /// Segments sent again to clients and to servers, of connections that have ended.
    pub retransmissions: [u64; 2],
    /// Bytes a second to the server and back, the last [`SECONDS`].
    pub rates: [Vec<u64>; 2],
}

/// How a target is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Its name.
    pub target: String,
    /// It answered when it was asked last.
    pub answers: bool,
}

/// How a connection is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Its number.
    pub connection: u64,
    /// Where it came in.
    pub relay: String,
    /// `entering`, `connecting` or `relaying`.
    pub stage: String,
    /// Who has come.
    pub client: LegStatus,
    /// Where the client is from, as its PROXY header has it.
    pub source: Option<String>,
    /// Where it leads, once it is connected.
    pub server: Option<LegStatus>,
    /// Since it came.
    pub seconds: f64,
    /// Since something has moved.
    pub idle_seconds: f64,
    /// Bytes to the server, and back.
    pub bytes: [u64; 2],
    /// Bytes a second to the server and back, the last [`SECONDS`]; empty where nothing moved.
    pub rates: [Vec<u64>; 2],
}

/// How a leg is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LegStatus {
    /// The other end.
    pub peer: String,
    /// Which version of TLS is spoken, if it is.
    pub tls: Option<String>,
    /// What the kernel says, where it is TCP.
    pub tcp: Option<TcpStatus>,
}

/// What the kernel says of a leg.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpStatus {
    /// Smoothed round trip, in milliseconds.
    pub rtt_ms: f64,
    /// Segments sent again.
    pub retransmissions: u32,
    /// Bytes acknowledged by the other end.
    pub bytes_acked: u64,
    /// Bytes received from it.
    pub bytes_received: u64,
    /// Congestion window, in segments.
    pub congestion_window: u32,
}

/// What a connection has moved, to the server and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) connection: u64,
    pub(crate) bytes: [u64; 2],
}

impl LegStatus {
    pub(crate) fn new(peer: String, tls: Option<String>, tcp: Option<TcpInfo>) -> Self {
        let tcp = tcp.map(|tcp| TcpStatus {
            rtt_ms: tcp.rtt.as_secs_f64() * 1e3,
            retransmissions: tcp.total_retrans,
            bytes_acked: tcp.bytes_acked,
            bytes_received: tcp.bytes_received,
            congestion_window: tcp.snd_cwnd,
        });
        Self { peer, tls, tcp }
    }
}
