use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::path::NetworkPathSpec;

/// Exit code if the lab itself failed. The three codes are those of timeout(1) and env(1).
pub const FAILED: u8 = 125;
/// Exit code if the command exists but cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// Exit code if the command does not exist.
pub const NOT_FOUND: u8 = 127;

/// Description of a lab from the command line: the path, the servers on its far side and the
/// command on its near side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabSpec {
    /// The path between near and far.
    pub path: NetworkPathSpec,
    /// Run an OpenSSH server on the far side, with these settings of sshd_config(5) before the
    /// lab's.
    pub sshd: Option<Vec<(String, String)>>,
    /// Command for `sh -c` on the far side.
    pub far: Option<OsString>,
    /// Port of [`Self::far`] that the lab waits for.
    pub far_port: Option<u16>,
    /// Delay of each start of the account's shell on the far side, as by slow start-up files.
    pub far_start: Option<Duration>,
    /// Share of the time in which the SSH server and its sessions run.
    pub far_cpu: Option<f64>,
    /// Bytes per second that the sessions of the SSH server read from disks and write to them.
    pub far_disk: Option<u64>,
    /// Congestion controls that programs in the lab may set.
    pub allow_cc: Vec<String>,
    /// Command of the near side, with its arguments.
    pub command: Vec<OsString>,
    /// Print nothing about the path at the end.
    pub quiet: bool,
    /// File for the figures of the path, as JSON.
    pub figures: Option<PathBuf>,
}
