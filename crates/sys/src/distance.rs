//! Which hosts are near and which are far, and what a far connection is given: numbers alone. The
//! preloaded library (crates/shim), which links nothing, compiles this file as its own.

/// Below this round trip, in microseconds, a host is on this network: nothing that a wide area
/// network does to marked packets is done here.
pub const NEAR_US: u32 = 1_000;

/// From this round trip on, in microseconds, another congestion control is worth it: below it
/// losses are few and repaired at once, and the system's own is as good.
pub const LOSSES_US: u32 = 4_000;

/// What bears losses where the kernel permits it: CUBIC takes each for congestion.
pub const CONGESTION: &str = "bbr";

/// Unsent bytes that the kernel holds before it takes no more. Below it the congestion window is
/// never starved (bytes in flight do not count), above it memory only waits, and what is urgent
/// waits behind it.
pub const NOTSENT_LOWAT: u32 = 1 << 20;

/// Where the fields of `struct tcp_info` are that more than one reads (linux/tcp.h, which only
/// ever grows at its end).
pub mod tcp_info {
    /// Smoothed round trip, in microseconds, 32 bits.
    pub const RTT: usize = 68;
    /// Segments sent again, 32 bits.
    pub const TOTAL_RETRANS: usize = 100;
    /// Bytes acknowledged, 64 bits (Linux 4.1).
    pub const BYTES_ACKED: usize = 120;
    /// Bytes received, 64 bits (Linux 4.1).
    pub const BYTES_RECEIVED: usize = 128;
    /// The lowest round trip, in microseconds, 32 bits; all ones until one was measured.
    pub const MIN_RTT: usize = 148;
}
