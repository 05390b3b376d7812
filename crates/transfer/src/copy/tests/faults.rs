//! Faults that happen to a simulated copy.

use sftp::StatusCode;
use testkit::sftp_model::Rng;

/// A fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimFault {
    /// One connection is lost.
    ConnectionLost,
    /// All connections are lost.
    HostLost,
    /// The server refuses the next request of this type.
    Refused(&'static str, StatusCode),
    /// The disk of the host, or of this machine, is full until the next run.
    HostFull,
    LocalFull,
    /// The next operation on this machine's disk fails.
    LocalError,
    /// The user interrupts the copy.
    Interrupted,
    /// A clock jumps by this many seconds.
    HostClock(i64),
    LocalClock(i64),
    /// The host restarts, without what it had only in memory.
    HostRestarted,
    /// The process is killed.
    Killed,
    /// This machine restarts, without what it had only in memory.
    LocalRestarted,
    /// The source file of this number gets other contents.
    SourceChanged(u64),
    /// Somebody else writes to the target file of this number, which becomes longer.
    TargetChanged(u64),
    /// A byte of the target file of this number changes, and neither its size nor its times.
    TargetDamaged(u64),
}

/// Requests that a server may refuse.
const REQUESTS: [&str; 12] = [
    "OPEN",
    "WRITE",
    "CLOSE",
    "READ",
    "FSETSTAT",
    "posix-rename@openssh.com",
    "fsync@openssh.com",
    "STAT",
    "LSTAT",
    "MKDIR",
    "put-file@longhaul",
    "get-file@longhaul",
];

impl SimFault {
    /// Chooses a fault.
    pub(super) fn any(rng: &mut Rng) -> Self {
        let request = REQUESTS[rng.below(REQUESTS.len() as u64) as usize];
        let code = match rng.below(2) {
            0 => StatusCode::FAILURE,
            _ => StatusCode::PERMISSION_DENIED,
        };
        let jump = match rng.below(4) {
            0 => -86_400,
            1 => -5,
            2 => 40,
            _ => 7200,
        };
        match rng.below(25) {
            0..=2 => Self::ConnectionLost,
            3 | 4 => Self::HostLost,
            5 | 6 => Self::Refused(request, code),
            7 => Self::HostFull,
            8 => Self::LocalFull,
            9 => Self::LocalError,
            10 => Self::Interrupted,
            11 => Self::HostClock(jump),
            12 => Self::LocalClock(jump),
            13 | 14 => Self::HostRestarted,
            15..=17 => Self::Killed,
            18 | 19 => Self::LocalRestarted,
            20..=22 => Self::SourceChanged(rng.next_u64()),
            23 => Self::TargetChanged(rng.next_u64()),
            _ => Self::TargetDamaged(rng.next_u64()),
        }
    }
}
