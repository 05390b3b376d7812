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

use super::machine::{MachineFunctions, ProcessorUseSample};

/// Machine without processors' load, whose random bytes are zeros and whose time stands still.
pub(super) fn machine() -> MachineFunctions {
    MachineFunctions {
        random: |bytes| bytes.fill(0),
        unix_seconds: || 1_700_000_000,
        sample: ProcessorUseSample::default,
        processors: || 2,
        tcp_buffer: |_| Some(4 << 20),
    }
}
