use crate::path::BitRate;

/// One byte in the unit of [`LeakyBucket::level`].
const BYTE: u128 = 8_000_000_000;

/// A leaky bucket, filled by bytes and drained at a rate: a link with its queue, or a policer's
/// token bucket inverted. It is exact: the level counts bits times nanoseconds and needs no
/// rounding.
#[derive(Debug)]
pub(super) struct LeakyBucket {
    rate: u64,
    /// Bits a second that drain the level: the rate without the share of other traffic.
    drain: u64,
    limit: u128,
    level: u128,
    peak: u128,
    at: u64,
}

impl LeakyBucket {
    /// Creates an empty bucket for `limit` bytes.
    pub(super) fn new(rate: BitRate, limit: u64) -> Self {
        Self {
            rate: rate.bits(),
            drain: rate.bits(),
            limit: u128::from(limit) * BYTE,
            level: 0,
            peak: 0,
            at: 0,
        }
    }

    /// Lets constant traffic of others take its part: bytes wait as long as the link needs for
    /// them, and the level falls at the rest of the rate.
    pub(super) fn shared_with(mut self, others: Option<BitRate>) -> Self {
        self.drain = self
            .rate
            .saturating_sub(others.map_or(0, BitRate::bits))
            .max(1);
        self
    }

    /// Drains up to the time `now`, in nanoseconds.
    pub(super) fn advance(&mut self, now: u64) {
        if now > self.at {
            let drained = u128::from(now - self.at) * u128::from(self.drain);
            self.level = self.level.saturating_sub(drained);
            self.at = now;
        }
    }

    /// Returns true if there is room for these bytes.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.level + u128::from(bytes) * BYTE <= self.limit
    }

    /// Returns true if a packet of this size is accepted: there is room, or the bucket is empty.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        self.level == 0 || self.has_room(bytes)
    }

    /// Adds bytes.
    pub(super) fn add(&mut self, bytes: u64) {
        self.level += u128::from(bytes) * BYTE;
        self.peak = self.peak.max(self.level);
    }

    /// Time that the link needs for these bytes, in nanoseconds.
    pub(super) fn time_of(&self, bytes: u64) -> u64 {
        let time = (u128::from(bytes) * BYTE).div_ceil(u128::from(self.rate));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Time at which the bucket will be empty.
    pub(super) fn empty_at(&self) -> u64 {
        let rest = self.level.div_ceil(u128::from(self.rate));
        self.at
            .saturating_add(u64::try_from(rest).unwrap_or(u64::MAX))
    }

    /// The highest level so far, in bytes and in nanoseconds to drain them.
    pub(super) fn peak(&self) -> (u64, u64) {
        let time = self.peak / u128::from(self.rate);
        let bytes = self.peak.div_ceil(BYTE);
        let narrow = |number| u64::try_from(number).unwrap_or(u64::MAX);
        (narrow(bytes), narrow(time))
    }
}
