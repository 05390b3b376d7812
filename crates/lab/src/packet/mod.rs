//! Frames of a TUN device with `IFF_VNET_HDR`: a `virtio_net_hdr` and an IP packet, which may be a
//! super-packet of many TCP segments.

mod checksum;
mod frame;
mod headers;
mod options;
mod pool;
mod reset;
mod split;
mod vnet;

pub use frame::{MAX_FRAME, TunFrame};
pub use headers::{PacketHeaders, TcpHeader};
pub use pool::FramePool;
pub use reset::{ResetSegment, reset};
pub use vnet::{VNET_LEN, VnetHeader};

pub(crate) use options::rewrite_handshake;
pub(crate) use split::{SegmentLayout, clear_dscp, copy_segments, keep_segments};
