//! Status of relays and connections as data, for the web page, the metrics and the terminal.

mod history;
mod watch;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sys::TcpInfo;

pub use history::SECONDS;
pub use watch::StatusMonitor;

/// Snapshot of all relays and their busiest connections, which [`StatusMonitor::status`] takes for
/// the web page, the metrics and the terminal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Seconds since monitoring began.
    pub seconds: f64,
    /// Relays in the order of the configuration.
    pub relays: Vec<RelayStatus>,
    /// Total number of connections.
    pub connections: usize,
    /// Connections with the highest rates, at most [`LISTED`].
    pub listed: Vec<ConnectionStatus>,
}

/// Maximum number of listed connections.
pub const LISTED: usize = 256;

/// Counters of one relay since its start, and its rates of the last minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayStatus {
    /// Listening address.
    pub relay: String,
    /// Targets.
    pub targets: Vec<TargetStatus>,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections rejected so far.
    pub turned_away: u64,
    /// Current number of connections.
    pub connections: u64,
    /// Number of ended connections by kind of end.
    pub ends: BTreeMap<String, u64>,
    /// Bytes to the server, and to the client.
    pub bytes: [u64; 2],
    /// Retransmitted segments to clients and to servers, of connections that have ended.
    pub retransmissions: [u64; 2],
    /// Rates to the server and to the client in bytes per second, for the last [`SECONDS`].
    pub rates: [Vec<u64>; 2],
}

/// Target of a relay with its health, from connections and active checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Name of the target.
    pub target: String,
    /// The target answered the last attempt.
    pub answers: bool,
}

/// Snapshot of one open connection, taken by its worker; the status monitor adds the rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Serial number.
    pub connection: u64,
    /// Listening address of its relay.
    pub relay: String,
    /// `entering`, `connecting` or `relaying`.
    pub stage: String,
    /// Leg to the client.
    pub client: LegStatus,
    /// Address of the original client, from its PROXY header.
    pub source: Option<String>,
    /// Leg to the server, once it is connected.
    pub server: Option<LegStatus>,
    /// Seconds since the connection was accepted.
    pub seconds: f64,
    /// Seconds since bytes last moved.
    pub idle_seconds: f64,
    /// Bytes to the server, and to the client.
    pub bytes: [u64; 2],
    /// Rates to the server and to the client in bytes per second, for the last [`SECONDS`]; empty
    /// if nothing moved.
    pub rates: [Vec<u64>; 2],
}

/// Leg of a connection as its worker sees it. Only legs over TCP have statistics; those of a
/// striped leg are one stripe's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LegStatus {
    /// Address of the other end.
    pub peer: String,
    /// TLS version, if the leg uses TLS.
    pub tls: Option<String>,
    /// TCP statistics of the kernel.
    pub tcp: Option<TcpStatus>,
}

/// Fields of TCP_INFO (tcp(7)) of a leg's socket at the time of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpStatus {
    /// Smoothed round-trip time, in milliseconds.
    pub rtt_ms: f64,
    /// Retransmitted segments.
    pub retransmissions: u32,
    /// Bytes acknowledged by the other end.
    pub bytes_acked: u64,
    /// Bytes received from the other end.
    pub bytes_received: u64,
    /// Congestion window, in segments.
    pub congestion_window: u32,
}

/// Byte counters of a connection, to the server and to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteCounters {
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
