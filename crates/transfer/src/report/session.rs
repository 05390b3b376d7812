//! Reports about a session's transfer and about the far end's SFTP server.

use std::time::Duration;

use schedule::{Limiter, LimiterEvidence, TransferDirection, TrialResult};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{EscapedName, seconds};

/// The transfer to or from one host, and its limiter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionReport {
    /// The host as the user wrote it.
    pub host: EscapedName,
    /// The direction of the data.
    pub direction: TransferDirection,
    /// The final number of connections.
    pub connections: u32,
    /// Channels per connection.
    pub channels: u32,
    /// True if the user set these numbers.
    #[serde(skip)]
    pub fixed: bool,
    /// The limiter during most of the last half of the copy.
    pub limiter: Limiter,
    /// The time from the first measurement to the last.
    #[serde(serialize_with = "seconds")]
    pub measured: Duration,
    /// The time in stalls: nothing moved for three seconds or more each time, and
    /// neither this machine nor a limit was the reason.
    #[serde(serialize_with = "seconds")]
    pub stalled: Duration,
    /// The figures from which the limiter was determined.
    #[serde(serialize_with = "figures")]
    pub evidence: LimiterEvidence,
    /// The result of the last trial with more connections or channels.
    #[serde(skip)]
    pub tried: Option<TrialResult>,
}

/// The SFTP server at a far end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FarEndServerReport {
    /// The host as the user wrote it.
    pub host: EscapedName,
    /// The server mode.
    pub depth: ServerMode,
    /// The version of the remote longhaul, if one served.
    pub software: Option<String>,
    /// The reason for not using a greater depth, one clause.
    pub reason: Option<String>,
    /// True if the depth is less than expected, so that the reason is worth a message.
    #[serde(skip)]
    pub less: bool,
}

/// How a far end serves files: by its stock SFTP server, or by a longhaul that was started there or
/// is the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerMode {
    /// The server's own SFTP server.
    #[default]
    Stock,
    /// A longhaul started through the SSH server.
    Exec,
    /// A longhaul started through the SSH server, with direct connections to it.
    Direct,
    /// The SSH server, or its SFTP subsystem, is a longhaul.
    Server,
}

/// Serializes the evidence with times in seconds, as in all events.
fn figures<S: Serializer>(e: &LimiterEvidence, serializer: S) -> Result<S::Ok, S::Error> {
    let LimiterEvidence {
        rate,
        connections: _,
        lanes: _,
        min_rtt,
        rtt,
        loss,
        rwnd_limited,
        sndbuf_limited,
        window_blocked,
        server,
        cpu,
        idle,
        disk_stalls,
        per_connection,
        wanted_cpu,
        silent,
        held,
    } = *e;
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("rate", &(rate as u64))?;
    map.serialize_entry("min_rtt", &min_rtt.as_secs_f64())?;
    map.serialize_entry("rtt", &rtt.as_secs_f64())?;
    map.serialize_entry("loss", &loss)?;
    map.serialize_entry("rwnd_limited", &rwnd_limited)?;
    map.serialize_entry("sndbuf_limited", &sndbuf_limited)?;
    map.serialize_entry("window_blocked", &window_blocked)?;
    map.serialize_entry("server", &server.as_secs_f64())?;
    map.serialize_entry("cpu", &cpu)?;
    map.serialize_entry("idle", &idle)?;
    map.serialize_entry("disk_stalls", &disk_stalls)?;
    map.serialize_entry("per_connection", &per_connection)?;
    map.serialize_entry("wanted_cpu", &wanted_cpu)?;
    map.serialize_entry("silent", &silent)?;
    map.serialize_entry("held", &held)?;
    map.end()
}
