use crate::path::Rate;

/// A byte, in the units of [`LeakyBucket::level`].
const BYTE: u128 = 8_000_000_000;

/// What fills by bytes and drains at a rate: a link and its queue, or a policer's bucket upside
/// down. Exact: a level that counts bits times nanoseconds has nothing to round.
#[derive(Debug)]
pub(super) struct LeakyBucket {
    rate: u64,
    limit: u128,
    level: u128,
    peak: u128,
    at: u64,
}

impl LeakyBucket {
    /// Empty; holds up to `limit` bytes.
    pub(super) fn new(rate: Rate, limit: u64) -> Self {
        Self {
            rate: rate.bits(),
            limit: u128::from(limit) * BYTE,
            level: 0,
            peak: 0,
            at: 0,
        }
    }

    /// Drains until `now`, in nanoseconds.
    pub(super) fn advance(&mut self, now: u64) {
        if now > self.at {
            let drained = u128::from(now - self.at) * u128::from(self.rate);
            self.level = self.level.saturating_sub(drained);
            self.at = now;
        }
    }

    /// Whether there is room for these bytes.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.level + u128::from(bytes) * BYTE <= self.limit
    }

    /// Whether a packet of these bytes is taken: there is room, or nothing in its way.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        self.level == 0 || self.has_room(bytes)
    }

    /// Adds bytes.
    pub(super) fn add(&mut self, bytes: u64) {
        self.level += u128::from(bytes) * BYTE;
        self.peak = self.peak.max(self.level);
    }

    /// When it will be empty.
    pub(super) fn empty_at(&self) -> u64 {
        let rest = self.level.div_ceil(u128::from(self.rate));
        self.at
            .saturating_add(u64::try_from(rest).unwrap_or(u64::MAX))
    }

    /// The highest level so far: bytes, and nanoseconds to drain them.
    pub(super) fn peak(&self) -> (u64, u64) {
        let time = self.peak / u128::from(self.rate);
        let bytes = self.peak.div_ceil(BYTE);
        let narrow = |number| u64::try_from(number).unwrap_or(u64::MAX);
        (narrow(bytes), narrow(time))
    }
}
