use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::drain::LeakyBucket;
use crate::packet::PacketHeaders;
use crate::path::{LimitScope, RateLimit};

/// Maximum number of connections with a bucket of their own; further ones share one.
const MOST_FLOWS: usize = 65_536;

/// Addresses and ports of a connection, in one direction.
pub(super) type FlowKey = (IpAddr, u16, IpAddr, u16);

/// The connection of a packet, if it has ports.
pub(super) fn flow_of(headers: &PacketHeaders) -> Option<FlowKey> {
    let ((from, to), (source, destination)) = headers.addresses.zip(headers.ports)?;
    Some((from, source, to, destination))
}

/// The buckets of a policer or shaper.
#[derive(Debug)]
pub(super) struct LimitBuckets {
    limit: RateLimit,
    size: u64,
    shared: LeakyBucket,
    flows: BTreeMap<FlowKey, LeakyBucket>,
}

impl LimitBuckets {
    fn new(limit: RateLimit, size: u64) -> Self {
        Self {
            limit,
            size,
            shared: LeakyBucket::new(limit.rate, size),
            flows: BTreeMap::new(),
        }
    }

    pub(super) fn policer(limit: RateLimit, rtt: Duration) -> Self {
        Self::new(limit, limit.police_burst(rtt))
    }

    pub(super) fn shaper(limit: RateLimit, rtt: Duration) -> Self {
        let (burst, queue) = limit.shape_sizes(rtt);
        Self::new(limit, burst.saturating_add(queue))
    }

    /// Time that the tokens of a full bucket stand for, in nanoseconds.
    pub(super) fn burst_time(&self) -> u64 {
        let bits = u128::from(self.limit.burst.unwrap_or(0)) * 8_000_000_000;
        u64::try_from(bits / u128::from(self.limit.rate.bits())).unwrap_or(u64::MAX)
    }

    /// The bucket of a packet; `None` if the limit does not apply to it.
    pub(super) fn bucket(&mut self, dscp: u8, flow: Option<FlowKey>) -> Option<&mut LeakyBucket> {
        match self.limit.scope {
            LimitScope::Class(class) => (class.value() == dscp).then_some(&mut self.shared),
            LimitScope::All => Some(&mut self.shared),
            LimitScope::EachFlow => {
                let flow = flow?;
                if self.flows.len() >= MOST_FLOWS && !self.flows.contains_key(&flow) {
                    return Some(&mut self.shared);
                }
                let (rate, size) = (self.limit.rate, self.size);
                let new = || LeakyBucket::new(rate, size);
                Some(self.flows.entry(flow).or_insert_with(new))
            }
        }
    }
}
