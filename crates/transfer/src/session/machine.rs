use std::fmt;
use std::time::Duration;

use schedule::TransferDirection;

/// Functions that ask the machine for random bytes, time, processor use and buffer sizes; tests
/// replace them so that decisions can be repeated.
#[derive(Clone, Copy)]
pub(crate) struct MachineFunctions {
    /// Fills a slice with random bytes.
    pub random: fn(&mut [u8]),
    /// Seconds since 1970.
    pub unix_seconds: fn() -> u64,
    /// Measures the use of the processors.
    pub sample: fn() -> ProcessorUseSample,
    /// Number of processors that this process may use.
    pub processors: fn() -> u32,
    /// Largest size in bytes to which the kernel may grow a TCP buffer of this end.
    pub tcp_buffer: fn(TransferDirection) -> Option<u64>,
}

/// Use of the machine's processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessorUseSample {
    /// Processor time of this process.
    pub processor_time: Duration,
    /// Idle ticks and total ticks of the processors that this process may use.
    pub ticks: Option<(u64, u64)>,
    /// Time that this thread has run or was ready to run.
    pub wanted_cpu: Option<Duration>,
}

impl MachineFunctions {
    /// Returns a random byte.
    pub(super) fn random_byte(&self) -> u8 {
        let mut byte = [0];
        (self.random)(&mut byte);
        let [byte] = byte;
        byte
    }
}

impl fmt::Debug for MachineFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineAccess").finish_non_exhaustive()
    }
}
