//! The description of the emulated path, and its options.

mod check;
mod dscp;
mod event;
mod handshake;
mod limit;
mod middlebox;
mod named;
mod options;
mod tcp;
mod units;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use dscp::{Dscp, DscpError};
pub use event::{NetworkPathEvent, PathEventKind};
pub use handshake::TcpHandshakeChanges;
pub use limit::{LimitScope, RateLimit};
pub use middlebox::{Middlebox, MiddleboxAction, MiddleboxLimit};
pub use named::{NAMED, NamedNetworkPath};
pub use options::{NetworkPathError, NetworkPathOption, OPTIONS};
pub use tcp::TcpBufferSettings;
pub use units::{BitRate, Fraction, time};

/// Direction of a packet on the path, which has a queue, loss and figures for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketDirection {
    /// From the near side, where the command runs, to the far side: the data of an upload.
    NearToFar,
    /// From the far side to the near side.
    FarToNear,
}

impl PacketDirection {
    /// Both directions, near to far first.
    pub const BOTH: [Self; 2] = [Self::NearToFar, Self::FarToNear];

    /// The opposite direction.
    pub fn opposite(self) -> Self {
        match self {
            Self::NearToFar => Self::FarToNear,
            Self::FarToNear => Self::NearToFar,
        }
    }
}

/// The properties of an emulated network path. [`NetworkPathSpec::build`] creates and checks one; a
/// value made otherwise is not checked.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPathSpec {
    /// Round-trip time of an empty path; half of it each way.
    pub rtt: Duration,
    /// Variation of the one-way delay above and below its mean.
    pub jitter: Duration,
    /// IP bits a second, from near to far and from far to near.
    pub rate: [BitRate; 2],
    /// Size of the queue in each direction.
    pub queue: QueueCapacity,
    /// Random loss behind the queue.
    pub loss: LossModel,
    /// Packets that later ones overtake.
    pub reorder: ReorderModel,
    /// Packets that arrive twice.
    pub duplicate: Fraction,
    /// Longest IP packet of the devices, in bytes; the emulator accepts any.
    pub mtu: u16,
    /// Constant traffic of others, from near to far and from far to near.
    pub cross: [Option<BitRate>; 2],
    /// Rate limits before the queue, which drop the excess.
    pub police: Vec<RateLimit>,
    /// Rate limits behind the link, which delay the excess. The first one that applies to a packet
    /// counts.
    pub shape: Vec<RateLimit>,
    /// Longest IP packet that passes; longer ones vanish without an ICMP message.
    pub black_hole: Option<u16>,
    /// Changes to TCP's options.
    pub handshake: TcpHandshakeChanges,
    /// A device that breaks connections.
    pub middlebox: Option<Middlebox>,
    /// Clear the DSCP, after the policers.
    pub bleach: bool,
    /// Seed of all randomness.
    pub seed: u64,
    /// TCP and UDP destination ports whose packets are dropped, in both directions.
    pub block: Vec<RangeInclusive<u16>>,
    /// Events with their times.
    pub events: Vec<NetworkPathEvent>,
    /// Socket buffers of the namespaces; `None` for the machine's own.
    pub tcp: Option<TcpBufferSettings>,
    /// Congestion control of the namespaces; `None` for the machine's own.
    pub congestion_control: Option<String>,
}

impl Default for NetworkPathSpec {
    /// 10 Gbit/s without delay or loss. Every link has a rate, so that the bytes in flight are
    /// bounded.
    fn default() -> Self {
        Self {
            rtt: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: [BitRate::from_bits(10_000_000_000); 2],
            queue: QueueCapacity::Default,
            loss: LossModel::NONE,
            reorder: ReorderModel::NONE,
            duplicate: Fraction::NONE,
            mtu: 1500,
            cross: [None; 2],
            police: Vec::new(),
            shape: Vec::new(),
            black_hole: None,
            handshake: TcpHandshakeChanges::default(),
            middlebox: None,
            bleach: false,
            seed: 1,
            block: Vec::new(),
            events: Vec::new(),
            tcp: None,
            congestion_control: None,
        }
    }
}

/// The capacity of the queue in each direction; excess packets are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueCapacity {
    /// One bandwidth-delay product, at least 2 ms and [`QueueCapacity::LEAST`].
    ///
    /// A single flow that reduces its window to 0.7 (cubic, RFC 9438) after a drop keeps the link
    /// busy with a queue of 0.43 products, one that halves it (Reno) with one (Appenzeller,
    /// Keslassy, McKeown: Sizing Router Buffers, 2004). One product is also usual for routers on
    /// long paths, and at most doubles the round trip. On a short path a window leaves the sender
    /// at once, before the link can drain it: 2 ms is a switch's buffer for a port, 2.5 MB at 10
    /// Gbit/s.
    Default,
    /// IP bytes.
    Bytes(u64),
    /// The bytes that the link sends in this time.
    Time(Duration),
    /// FQ-CoDel (RFC 8290), of [`QueueCapacity::LONGEST`].
    FqCodel,
}

impl QueueCapacity {
    /// Two of the largest super-packets with the headers of their segments: a TUN device delivers
    /// 64 KiB at once, which a real wire would spread out.
    pub const LEAST: u64 = 160 * 1024;

    const SHORTEST: Duration = Duration::from_millis(2);
    /// Longest queue of FQ-CoDel: about its limit of 10,240 packets at 100 Mbit/s.
    pub const LONGEST: Duration = Duration::from_secs(1);

    /// Size in bytes for a link of this rate and round trip.
    pub fn bytes(self, rate: BitRate, rtt: Duration) -> u64 {
        match self {
            Self::Default => rate.bytes_in(rtt.max(Self::SHORTEST)).max(Self::LEAST),
            Self::Bytes(bytes) => bytes,
            Self::Time(time) => rate.bytes_in(time),
            Self::FqCodel => rate.bytes_in(Self::LONGEST).max(Self::LEAST),
        }
    }
}

/// Random loss of packets that have passed the queue, uniform or in bursts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossModel {
    /// Share of all packets.
    pub share: Fraction,
    /// Mean length of a burst in packets; `None` for uniform loss. The model is Gilbert's (1960): a
    /// good state that loses nothing and a bad state that loses everything.
    pub burst: Option<f64>,
}

impl LossModel {
    /// No loss.
    pub const NONE: Self = Self {
        share: Fraction::NONE,
        burst: None,
    };
}

/// Random reordering: packets are held back, so that later ones overtake them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReorderModel {
    /// Share of all packets.
    pub share: Fraction,
    /// Time for which they are held.
    pub held: Duration,
}

impl ReorderModel {
    /// No reordering.
    pub const NONE: Self = Self {
        share: Fraction::NONE,
        held: Duration::from_millis(1),
    };
}

impl NetworkPathSpec {
    /// Maximum bytes in queues and in flight, both directions together.
    pub fn under_way(&self) -> u64 {
        check::under_way(self)
    }

    /// Size of the queue of a direction, in bytes.
    pub fn queue_bytes(&self, direction: PacketDirection) -> u64 {
        self.queue.bytes(self.rate[direction as usize], self.rtt)
    }

    /// Settings below /proc/sys for both namespaces, as (path, value), such as
    /// ("net/ipv4/tcp_rmem", "4096 131072 6291456").
    pub fn sysctls(&self) -> Vec<(&'static str, &str)> {
        let mut all = self.tcp.map_or(Vec::new(), |tcp| tcp.sysctls().to_vec());
        if let Some(name) = &self.congestion_control {
            all.push(("net/ipv4/tcp_congestion_control", name));
        }
        all
    }
}
