use std::ffi::OsString;
use std::path::PathBuf;

use crate::path::PathSpec;

/// The lab itself failed, and its command with it. As with timeout(1) and env(1), whose numbers
/// these are.
pub const FAILED: u8 = 125;
/// The command is there and can't be run.
pub const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;

/// What a lab is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lab {
    /// The path between near and far.
    pub path: PathSpec,
    /// An OpenSSH server on the far side, with these settings of sshd_config(5) before the lab's.
    pub sshd: Option<Vec<(String, String)>>,
    /// A command for `sh -c` on the far side.
    pub far: Option<OsString>,
    /// Where it listens; the lab waits for it.
    pub far_port: Option<u16>,
    /// Congestion controls that programs in the lab may choose for themselves.
    pub allow_cc: Vec<String>,
    /// The near side's command and its arguments.
    pub command: Vec<OsString>,
    /// Say nothing about the path at the end.
    pub quiet: bool,
    /// Write the figures of the path here, as JSON.
    pub figures: Option<PathBuf>,
}
