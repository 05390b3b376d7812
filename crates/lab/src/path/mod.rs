//! What the emulated path is like, and how people say so.

mod check;
mod dscp;
mod event;
mod named;
mod options;
mod tcp;
mod units;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use dscp::Dscp;
pub use event::{Event, EventKind};
pub use named::{NAMED, NamedPath};
pub use options::{OPTIONS, PathError, PathOption};
pub use tcp::TcpBuffers;
pub use units::{Rate, Share};

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the near side, where the command runs, to the far side: an upload's data.
    NearToFar,
    /// Back.
    FarToNear,
}

impl Direction {
    /// Both, near to far first.
    pub const BOTH: [Self; 2] = [Self::NearToFar, Self::FarToNear];

    /// The other way.
    pub fn opposite(self) -> Self {
        match self {
            Self::NearToFar => Self::FarToNear,
            Self::FarToNear => Self::NearToFar,
        }
    }
}

/// A path. [`PathSpec::build`] makes one from options and checks it; what is put together by hand
/// is taken as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSpec {
    /// Round-trip time of an empty path; half of it each way.
    pub rtt: Duration,
    /// The one-way delay wanders this much above and below its mean.
    pub jitter: Duration,
    /// Bits a second at IP level, from near to far and from far to near.
    pub rate: [Rate; 2],
    /// What may wait for the link in each direction.
    pub queue: Queue,
    /// Packets lost, behind the queue.
    pub loss: Loss,
    /// Packets that later ones overtake.
    pub reorder: Reorder,
    /// Packets that arrive twice.
    pub duplicate: Share,
    /// Longest IP packet, bytes: for the devices; the emulator takes any.
    pub mtu: u16,
    /// Classes that are held to a rate of their own.
    pub police: Vec<Policer>,
    /// Whether the path clears the code point. Policers come first.
    pub bleach: bool,
    /// Of all that is random.
    pub seed: u64,
    /// TCP and UDP destination ports whose packets vanish, both ways.
    pub block: Vec<RangeInclusive<u16>>,
    /// What happens when.
    pub events: Vec<Event>,
    /// Socket buffers of the namespaces; the machine's own if not set.
    pub tcp: Option<TcpBuffers>,
    /// Congestion control of the namespaces; the machine's own if not set.
    pub congestion_control: Option<String>,
}

impl Default for PathSpec {
    /// 10 Gbit/s without delay, loss or mercy: what is not asked for is not emulated, except that
    /// every link has some rate, so that what is under way is bounded.
    fn default() -> Self {
        Self {
            rtt: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: [Rate::from_bits(10_000_000_000); 2],
            queue: Queue::Default,
            loss: Loss::NONE,
            reorder: Reorder::NONE,
            duplicate: Share::NONE,
            mtu: 1500,
            police: Vec::new(),
            bleach: false,
            seed: 1,
            block: Vec::new(),
            events: Vec::new(),
            tcp: None,
            congestion_control: None,
        }
    }
}

/// How much may wait for the link in each direction; what comes beyond is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// One bandwidth-delay product, at least 2 ms and [`Queue::LEAST`].
    ///
    /// A lone flow that falls back to 0.7 (cubic, RFC 9438) after a drop keeps the link busy with
    /// 0.43 of the product, one that halves (Reno) with one (Appenzeller, Keslassy, McKeown:
    /// Sizing Router Buffers, 2004). One product is also what routers on long paths are sold
    /// with, and it doubles the round trip at most.
    /// On a short path a window leaves the sender at once and the link has no time to drain it:
    /// 2 ms are what a switch has for a port, 2.5 MB at 10 Gbit/s.
    Default,
    /// IP bytes.
    Bytes(u64),
    /// As many bytes as the link sends in that time.
    Time(Duration),
}

impl Queue {
    /// Two of the largest super-packets with their segments' headers: a TUN device hands over
    /// 64 KiB at a time, which on a real wire would have been spread out.
    pub const LEAST: u64 = 160 * 1024;

    const SHORTEST: Duration = Duration::from_millis(2);

    /// Bytes, on a link of this rate and round-trip time.
    pub fn bytes(self, rate: Rate, rtt: Duration) -> u64 {
        match self {
            Self::Default => rate.bytes_in(rtt.max(Self::SHORTEST)).max(Self::LEAST),
            Self::Bytes(bytes) => bytes,
            Self::Time(time) => rate.bytes_in(time),
        }
    }
}

/// Random loss: uniform, or in bursts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Of all packets.
    pub share: Share,
    /// Mean length of a burst in packets; none for uniform loss. The model is Gilbert's (1960):
    /// a good state that loses nothing and a bad one that loses everything.
    pub burst: Option<f64>,
}

impl Loss {
    /// Nothing is lost.
    pub const NONE: Self = Self {
        share: Share::NONE,
        burst: None,
    };
}

/// Packets held back, so that later ones overtake them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Of all packets.
    pub share: Share,
    /// How long they are held.
    pub held: Duration,
}

impl Reorder {
    /// Order is kept.
    pub const NONE: Self = Self {
        share: Share::NONE,
        held: Duration::from_millis(1),
    };
}

/// A class that is held to a rate of its own, before the queue: what is over it is dropped, as a
/// network does that polices its scavenger class (RFC 3662).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// The class.
    pub dscp: Dscp,
    /// IP bits a second, in each direction.
    pub rate: Rate,
}

impl Policer {
    /// The token bucket: what the rate carries in 100 ms or in two round trips, and at least
    /// [`Queue::LEAST`] / 2. A bucket of less than a round trip would hold TCP far below the
    /// rate, since nothing smooths its bursts; the usual advice for routers is 100 ms and more.
    pub fn burst(&self, rtt: Duration) -> u64 {
        let time = Duration::from_millis(100).max(rtt * 2);
        self.rate.bytes_in(time).max(Queue::LEAST / 2)
    }
}

impl PathSpec {
    /// The queue of a direction, bytes.
    pub fn queue_bytes(&self, direction: Direction) -> u64 {
        self.queue.bytes(self.rate[direction as usize], self.rtt)
    }

    /// Settings under /proc/sys that both namespaces need, as (path, value), such as
    /// ("net/ipv4/tcp_rmem", "4096 131072 6291456").
    pub fn sysctls(&self) -> Vec<(&'static str, &str)> {
        let mut all = self.tcp.map_or(Vec::new(), |tcp| tcp.sysctls().to_vec());
        if let Some(name) = &self.congestion_control {
            all.push(("net/ipv4/tcp_congestion_control", name));
        }
        all
    }
}
