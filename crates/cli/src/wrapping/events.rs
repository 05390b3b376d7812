//! Report lines of carried connections: the library's own line, completed with the carrier's
//! measurements.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shim::line::{ConnectionReport, TcpCounters};

/// Waiting times of both sides, in microseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct CarriedWaits {
    #[serde(rename = "by")]
    pub(super) how: CarriedConnectionReason,
    /// Waiting for the program to write.
    pub(super) program_wrote: WaitMicros,
    /// Waiting for the network to accept the program's bytes.
    pub(super) network_took: WaitMicros,
    /// Waiting for bytes from the network.
    pub(super) network_sent: WaitMicros,
    /// Waiting for the program to read the network's bytes.
    pub(super) program_read: WaitMicros,
}

/// Reason why the carrier has a connection, which the report names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CarriedConnectionReason {
    /// A filter names the destination.
    Filter,
    /// The connection goes over a SOCKS proxy.
    Socks,
    /// The proxy refused it, so it was connected directly.
    Direct,
}

/// Waits of one side of a carried connection, in microseconds, as written to the report.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct WaitMicros {
    pub(super) total_us: u64,
    pub(super) longest_us: u64,
}

/// Facts that the carrier knows about a connection; a report line is made from them if the library
/// has sent none.
pub(super) struct CarriedConnection<'a> {
    pub(super) program: &'a str,
    pub(super) pid: u32,
    pub(super) peer: SocketAddr,
    pub(super) via: Option<SocketAddr>,
    pub(super) lasted: Duration,
    /// Bytes that the network has accepted from the program, and the program from the network.
    pub(super) bytes: (u64, u64),
}

/// Appends the report line. `line` is the library's; it is missing if the program was killed or
/// closed the connection unnoticed. Errors are ignored, as in the library.
pub(super) fn append(
    file: &Path,
    line: Option<&[u8]>,
    connection: &CarriedConnection<'_>,
    tcp: Option<&sys::TcpInfo>,
    carried: &CarriedWaits,
) {
    let line = whole(line, connection, tcp, carried);
    let mut options = OpenOptions::new();
    let file = options.append(true).create(true).mode(0o600).open(file);
    if let (Ok(mut file), Some(line)) = (file, line) {
        drop(file.write_all(line.as_bytes()));
    }
}

fn whole(
    line: Option<&[u8]>,
    connection: &CarriedConnection<'_>,
    tcp: Option<&sys::TcpInfo>,
    carried: &CarriedWaits,
) -> Option<String> {
    let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let tcp = tcp.map(|tcp| TcpCounters {
        // SYN and FIN are acknowledged like bytes, and the SOCKS handshake is not the program's
        // data.
        sent: tcp.bytes_acked.saturating_sub(1).min(connection.bytes.0),
        received: connection.bytes.1,
        rtt_us: us(tcp.rtt),
        min_rtt_us: us(tcp.min_rtt),
        retransmitted: tcp.total_retrans,
    });
    let record = ConnectionReport {
        program: connection.program,
        pid: connection.pid,
        peer: connection.peer,
        via: connection.via,
        lasted_us: connection.lasted.as_micros() as u64,
        tcp,
        dscp: None,
        kept_off: 0,
        changed: 0,
        reading: Default::default(),
        writing: Default::default(),
    };
    let read = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).ok();
    let own = read(record.line().bytes())?;
    let mut said = line.and_then(read).unwrap_or_else(|| own.clone());
    for field in ["tcp", "via"] {
        said[field] = own[field].clone();
    }
    said["carried"] = serde_json::to_value(carried).ok()?;
    Some(said.to_string() + "\n")
}
