use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{ConnectionId, LaneId};

/// Direction of the file data, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferDirection {
    /// Upload: this end sends.
    Up,
    /// Download: this end receives.
    Down,
}

/// Measurements up to now; counters run from the beginning of each object.
#[derive(Clone, Debug)]
pub struct RunMeasurements {
    /// Time of the sample.
    pub now: Instant,
    /// Bytes still to be moved, if known.
    pub remaining: Option<u64>,
    /// Bytes that the receiving side has confirmed, over all lanes that ever existed.
    pub moved: u64,
    /// Number of finished jobs, over all lanes that ever existed.
    pub done: u64,
    /// Processor time of this process so far.
    pub cpu: Duration,
    /// Idle share of this machine's processors, 0 to 1; `None` if unknown.
    pub idle: Option<f64>,
    /// Time so far for which the thread that moves the bytes ran or waited for a processor; `None`
    /// if unknown.
    pub wanted_cpu: Option<Duration>,
    /// Time so far in which nothing arrived although answers were due, beyond a round trip.
    pub silent: Duration,
    /// Time that the server takes to start its SFTP server on a channel, beyond a round trip: the
    /// shortest measured, or the waiting time for the first one so far.
    pub start_up: Duration,
    /// Number of channels that were opened and have not answered.
    pub starting: u32,
    /// The congestion control of the connections does not take a lost packet for congestion (BBR).
    pub bears_losses: bool,
    /// Authenticated connections.
    pub connections: Vec<ConnectionSample>,
    /// Lanes that have jobs or may get some.
    pub lanes: Vec<LaneSample>,
}

/// Counters of one connection since it was opened, taken by its session for the controller.
#[derive(Clone, Debug)]
pub struct ConnectionSample {
    /// Connection of the sample.
    pub connection: ConnectionId,
    /// Bytes acknowledged (up) or received (down) on its socket.
    pub bytes: u64,
    /// Kernel's figures; `None` if the connection is no TCP socket.
    pub tcp: Option<TcpSample>,
}

/// Figures of a connection from TCP_INFO (tcp(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpSample {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Lowest round trip.
    pub min_rtt: Duration,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// The congestion window is below the slow-start threshold, so it still doubles.
    pub slow_start: bool,
    /// Delivery rate in bytes per second, as last measured by the kernel.
    pub delivery_rate: u64,
    /// Segments sent.
    pub segments: u64,
    /// Segments retransmitted.
    pub retransmitted: u64,
    /// Time with data to send.
    pub busy: Duration,
    /// Part of `busy` in which the receiver's window limited the sender.
    pub rwnd_limited: Duration,
    /// Part of `busy` in which the local send buffer limited the sender.
    pub sndbuf_limited: Duration,
    /// Bytes sent and not acknowledged.
    pub unacked: u64,
    /// Bytes in the socket that have not been sent.
    pub notsent: u64,
    /// Receiver's estimate of its round trip (`tcpi_rcv_rtt`).
    pub rcv_rtt: Duration,
    /// Segments received out of order: losses on the way to this end (`tcpi_rcv_ooopack`).
    pub out_of_order: u64,
    /// Space of the receive buffer that may be used (`tcpi_rcv_space`), in bytes.
    pub rcv_space: u64,
}

/// Counters of one lane since its start, and the state of its requests, taken by its session for
/// the controller.
#[derive(Clone, Copy, Debug)]
pub struct LaneSample {
    /// Lane of the sample.
    pub lane: LaneId,
    /// Bytes confirmed.
    pub bytes: u64,
    /// Initial window of the channel in bytes; 0 until known.
    pub window: u64,
    /// Time in which data waited and the channel's window was empty.
    pub window_blocked: Duration,
    /// Bytes in requests without an answer.
    pub in_flight: u64,
    /// Bytes of `in_flight` that wait locally for the channel's window or for the socket.
    pub unsent: u64,
    /// Number of bytes that may be in flight.
    pub depth: u64,
    /// Lowest response time of a request, from sending to answer; zero while unknown.
    pub latency: Duration,
    /// Number of times that the local disk held requests back ([`crate::LaneStats::stalls_disk`]),
    /// or that nothing could be sent since the disk had not read it.
    pub stalls_disk: u64,
    /// Number of times that the depth kept the lane from sending.
    pub stalls_depth: u64,
}
