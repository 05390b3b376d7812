//! Round-trip thresholds for near and far hosts, and the settings of far connections. The file
//! holds only numbers: the preloaded library (crates/shim), which links nothing, compiles it too.

/// Round trip in microseconds below which a host counts as local. Connections to local hosts keep
/// their DSCP mark, which wide-area networks may mistreat.
pub const NEAR_US: u32 = 1_000;

/// Round trip in microseconds from which another congestion control pays. Below it losses are rare
/// and quickly repaired, and the system default does as well.
pub const LOSSES_US: u32 = 4_000;

/// Congestion control for far connections, where the kernel permits it. CUBIC takes every loss for
/// congestion.
pub const CONGESTION: &str = "bbr";

/// Limit of unsent bytes in the kernel's send buffer (TCP_NOTSENT_LOWAT). With 1 MiB the congestion
/// window never starves, since bytes in flight do not count; more would only hold memory and delay
/// urgent packets.
pub const NOTSENT_LOWAT: u32 = 1 << 20;

/// Offsets of the `struct tcp_info` fields that several readers use (linux/tcp.h, which only grows
/// at its end).
pub mod tcp_info {
    /// Smoothed round trip, in microseconds, 32 bits.
    pub const RTT: usize = 68;
    /// Retransmitted segments, 32 bits.
    pub const TOTAL_RETRANS: usize = 100;
    /// Bytes acknowledged, 64 bits (Linux 4.1).
    pub const BYTES_ACKED: usize = 120;
    /// Bytes received, 64 bits (Linux 4.1).
    pub const BYTES_RECEIVED: usize = 128;
    /// Lowest round trip, in microseconds, 32 bits; all ones before the first measurement.
    pub const MIN_RTT: usize = 148;
}
