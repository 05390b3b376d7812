//! Measures a path for `longhaul doctor`: loads connections of its own with SFTP requests to
//! /dev/null and from /dev/zero, without a copy, and returns [`diagnose::Evidence`].

mod budget;
mod burst;
mod classes;
mod connection;
mod devices;
mod files;
mod ladder;
mod load;
mod measurement_error;
mod path;
mod plan;
mod remote;
mod sampling;
#[cfg(test)]
mod test_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::config::HostConfig;
use crate::connect::SharedConnectSettings;
use crate::session::ConnectionOpener;

pub(crate) use burst::{BurstLoad, burst};
pub(crate) use measurement_error::MeasurementError;
pub use plan::{ProbeError, probe};

/// Shows a step, with the seconds used and the seconds left.
pub type ProbeProgress = dyn Fn(&str, f64, f64) + Send + Sync;

/// Measurements to make, and their limits of time and data.
#[derive(Clone)]
pub struct ProbeOptions {
    /// Time for all measurements; `None` for 30 s, and more on a path of over 250 ms.
    pub time: Option<Duration>,
    /// Bytes that may be sent and received altogether.
    pub data: u64,
    /// Directory at the server in which a file is written to measure the disk.
    pub remote_path: Option<Vec<u8>>,
    /// Rate of this machine's disk, if the caller measured it.
    pub local_disk: Option<f64>,
    /// Rate in bytes per second that the user expects.
    pub expected: Option<f64>,
    /// Called with the current step, the seconds used and the seconds left.
    pub progress: Arc<ProbeProgress>,
}

/// Host, connection settings and cancellation of a path measurement.
#[derive(Clone)]
pub struct ProbeSettings {
    /// The host's configuration.
    pub config: HostConfig,
    /// Settings of all connections. A timeline shows the steps of the first login.
    pub settings: SharedConnectSettings,
    /// Ends the measurement, which then returns what it has.
    pub cancel: CancelToken,
    /// Start of the measurement.
    pub start: Instant,
    /// Channels of an open connection of ssh, for a login that is refused without questions.
    pub master: Option<ControlMasterConnection>,
}

/// An open connection of ssh (ControlMaster).
#[derive(Clone)]
pub struct ControlMasterConnection {
    /// Path of the control socket, as messages show it.
    pub name: String,
    /// Opens channels on it. They share one TCP connection.
    pub channels: Arc<dyn ConnectionOpener>,
}
