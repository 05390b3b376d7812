//! Counts a program's waits for a connection to become readable or writable, by length.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Shortest wait that is counted, in microseconds.
pub(crate) const LEAST_US: u64 = 10_000;

/// Lower bound of each length class, in microseconds.
const FROM_US: [u64; CLASSES] = [LEAST_US, 20_000, 50_000, 100_000, 200_000, 500_000];
/// Number of length classes.
pub const CLASSES: usize = 6;

/// Readiness that a program has waited for: data to read, or room to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    Reading,
    Writing,
}

/// Counts, total and longest of a program's waits for one connection in one direction, by length.
pub(crate) struct SocketWaitHistogram {
    classes: [AtomicU32; CLASSES],
    total_us: AtomicU64,
    longest_us: AtomicU64,
}

/// Sums of a connection's waits of one kind at the time of reading, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSnapshot {
    /// Number of waits in each class: from 10, 20, 50, 100, 200 and 500 ms on.
    pub classes: [u32; CLASSES],
    /// All waits together, in microseconds.
    pub total_us: u64,
    /// The longest wait, in microseconds.
    pub longest_us: u64,
}

impl SocketWaitHistogram {
    pub(crate) const fn new() -> Self {
        Self {
            classes: [const { AtomicU32::new(0) }; CLASSES],
            total_us: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
        }
    }

    pub(crate) fn forget(&self) {
        self.classes
            .iter()
            .for_each(|class| class.store(0, Relaxed));
        self.total_us.store(0, Relaxed);
        self.longest_us.store(0, Relaxed);
    }

    pub(crate) fn add(&self, us: u64) {
        let class = FROM_US.iter().rposition(|from| us >= *from);
        let Some(class) = class.and_then(|class| self.classes.get(class)) else {
            return;
        };
        class.fetch_add(1, Relaxed);
        self.total_us.fetch_add(us, Relaxed);
        self.longest_us.fetch_max(us, Relaxed);
    }

    pub(crate) fn read(&self) -> WaitSnapshot {
        let mut waited = WaitSnapshot {
            total_us: self.total_us.load(Relaxed),
            longest_us: self.longest_us.load(Relaxed),
            ..WaitSnapshot::default()
        };
        for (to, from) in waited.classes.iter_mut().zip(&self.classes) {
            *to = from.load(Relaxed);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_in_the_class_of_its_length() {
        let waits = SocketWaitHistogram::new();
        for us in [
            0, 9_999, 10_000, 19_999, 20_000, 499_999, 500_000, 90_000_000,
        ] {
            waits.add(us);
        }
        let waited = waits.read();
        assert_eq!(waited.classes, [2, 1, 0, 0, 1, 2]);
        assert_eq!(waited.longest_us, 90_000_000);
        assert_eq!(waited.total_us, 91_049_998);
        waits.forget();
        assert_eq!(waits.read(), WaitSnapshot::default());
    }
}
