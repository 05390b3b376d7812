//! Many small files, of which little is under way when a further login has to be begun.

use std::time::Duration;

use super::Growth;

/// What a file weighs on the path beside its bytes: OPEN, WRITE or READ, CLOSE, rename, answers.
const FILE: u64 = 600;
/// Of fewer each may be cut, and how many connections that is worth is measured.
const FILES: u64 = 16;
/// From so many bytes on further logins are begun at once. Of 2,000 files of 4 KiB at 114 ms the
/// first connection has sent all before its slow start is over; three more, begun with it, left
/// theirs early (HyStart, RFC 9406, where the path is shared) and made 2.4 s into 2.7 s.
const MANY: u64 = 32 << 20;
/// So many connections there are then.
const CONNECTIONS: u32 = 4;
/// Where a login takes no time worth saving, its processor time counts.
const LONG: Duration = Duration::from_millis(20);

impl Growth {
    /// So many files with so many bytes are about to come; the next sample is due at once where
    /// that is news.
    pub fn expect(&mut self, files: u64, bytes: u64) {
        if files < FILES {
            return;
        }
        let expected = files.saturating_mul(FILE).saturating_add(bytes);
        if expected > self.expected {
            self.expected = expected;
            if self.planned.0 < self.for_many() {
                self.next = None;
            }
        }
    }

    /// Raises what was planned to what the expected files are worth.
    pub(super) fn plan_for_many(&mut self) {
        self.planned.0 = self.planned.0.max(self.for_many());
    }

    fn for_many(&self) -> u32 {
        let long = self.measure.trip().is_none_or(|rtt| rtt >= LONG);
        let fixed = self.config.connections.is_some() || self.config.limit.is_some();
        match self.expected >= MANY && long && !fixed && !self.no_connections {
            true => CONNECTIONS,
            false => 0,
        }
    }
}
