use std::fmt;
use std::time::Duration;

use super::units::{InvalidValue, rate, size};
use super::{BitRate, Dscp, QueueCapacity};

/// The traffic that a [`RateLimit`] applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitScope {
    /// Packets with this DSCP, together.
    Class(Dscp),
    /// All packets together.
    All,
    /// Each connection (addresses and ports) on its own.
    EachFlow,
}

/// A rate limit with a token bucket, in each direction. A policer drops the excess, as networks do
/// with their scavenger class (RFC 3662); a shaper delays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The traffic that shares the rate.
    pub scope: LimitScope,
    /// IP bits a second.
    pub rate: BitRate,
    /// Bytes of the token bucket; `None` for the default.
    pub burst: Option<u64>,
}

impl RateLimit {
    /// Bytes that pass a policer at once. The default is 100 ms or two round trips at the rate, at
    /// least [`QueueCapacity::LEAST`] / 2. A bucket below a round trip would keep TCP far below the
    /// rate, since nothing smooths its bursts; the usual advice for routers is 100 ms and more.
    pub fn police_burst(&self, rtt: Duration) -> u64 {
        let time = Duration::from_millis(100).max(rtt * 2);
        let usual = self.rate.bytes_in(time).max(QueueCapacity::LEAST / 2);
        self.burst.unwrap_or(usual)
    }

    /// Bytes that pass a shaper undelayed, and bytes that wait in it: its queue is one
    /// bandwidth-delay product, as the link's.
    pub fn shape_sizes(&self, rtt: Duration) -> (u64, u64) {
        let queue = QueueCapacity::Default.bytes(self.rate, rtt);
        (self.burst.unwrap_or(0), queue)
    }

    /// Parses `CS1=10Mbit`, `all=50Mbit/20MB` or `flow=5Mbit`.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidValue> {
        let (scope, limit) = text
            .split_once('=')
            .ok_or("is not DSCP=RATE, such as CS1=10Mbit")?;
        let scope = match scope {
            "all" => LimitScope::All,
            "flow" => LimitScope::EachFlow,
            class => LimitScope::Class(
                class
                    .parse()
                    .map_err(|why| format!("has an unknown DSCP: {class:?} {why}"))?,
            ),
        };
        // "10Mbit/s" is a rate as well.
        let (rated, burst) = match limit.rsplit_once('/') {
            Some((rated, bytes)) if bytes != "s" => (rated, Some(size(bytes)?)),
            _ => (limit, None),
        };
        Ok(Self {
            scope,
            rate: rate(rated)?,
            burst,
        })
    }
}

impl fmt::Display for LimitScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(dscp) => dscp.fmt(f),
            Self::All => f.write_str("all"),
            Self::EachFlow => f.write_str("flow"),
        }
    }
}
