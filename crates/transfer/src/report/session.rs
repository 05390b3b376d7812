use std::time::Duration;

use schedule::{Direction, Limiter, LimiterEvidence, TrialResult};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Name, seconds};

/// How the bytes went to or from one host, and what held them back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionReport {
    /// As the user wrote it.
    pub host: Name,
    /// Which way.
    pub direction: Direction,
    /// Connections that were used at last.
    pub connections: u32,
    /// Channels on each of them.
    pub channels: u32,
    /// Their number was set, not found.
    #[serde(skip)]
    pub fixed: bool,
    /// What held it back for most of the last half.
    pub limiter: Limiter,
    /// From the first measurement to the last.
    #[serde(serialize_with = "seconds")]
    pub measured: Duration,
    /// What the limiter was named by.
    #[serde(serialize_with = "figures")]
    pub evidence: LimiterEvidence,
    /// What the last try with more connections or channels brought.
    #[serde(skip)]
    pub tried: Option<TrialResult>,
}

/// What served at the far end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FarEnd {
    /// As the user wrote it.
    pub host: Name,
    /// How deep longhaul was there.
    pub depth: Depth,
    /// The version of the longhaul there, where one served.
    pub software: Option<String>,
    /// Why it was not more, one clause.
    pub reason: Option<String>,
    /// There should have been more: the reason is worth telling.
    #[serde(skip)]
    pub less: bool,
}

/// What serves at the far end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// The SSH server's own SFTP server.
    #[default]
    Stock,
    /// A longhaul that was started through the SSH server, in its place.
    Exec,
    /// The same, over connections that went straight to it.
    Direct,
    /// longhaul is the SSH server, or the SFTP server that it has.
    Server,
}

/// Times in seconds, as everywhere in the events.
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
