//! Whole sessions in virtual time: the real decisions, lanes and scheduler, with modelled servers,
//! paths, disk and logins. A seed repeats a run.

#[allow(
    dead_code,
    reason = "the model of the disk serves the lanes' own tests too"
)]
#[path = "../../../../schedule/tests/lane/disk.rs"]
mod disk;
mod losing;
mod purity;
mod reconnecting;
mod stalling;
mod throttling;
mod world;

use super::machine::{MachineAccess, MachineSample};

/// Machine without processors' load, whose random bytes are zeros and whose time stands still.
pub(super) fn machine() -> MachineAccess {
    MachineAccess {
        random: |bytes| bytes.fill(0),
        unix_seconds: || 1_700_000_000,
        sample: MachineSample::default,
        processors: || 2,
        tcp_buffer: |_| Some(4 << 20),
    }
}
