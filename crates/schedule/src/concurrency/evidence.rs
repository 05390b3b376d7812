use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{ConnectionId, LaneId};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// This end sends.
    Up,
    /// This end receives.
    Down,
}

/// What was measured until now; all counters run from the beginning of what they count.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// When.
    pub now: Instant,
    /// Bytes still to be moved, as far as that is known.
    pub remaining: Option<u64>,
    /// Bytes that the receiving side has confirmed, over all lanes that ever were.
    pub moved: u64,
    /// Jobs that are done, over all lanes that ever were.
    pub done: u64,
    /// Processor time of this process so far.
    pub cpu: Duration,
    /// How much of this machine's processors is idle, 0 to 1; `None` where it cannot be told.
    pub idle: Option<f64>,
    /// For how long the thread that moves the bytes has run so far, or was ready to and waited for a
    /// processor; `None` where it cannot be told.
    pub wanted_cpu: Option<Duration>,
    /// Time so far for which nothing came although answers were awaited, beyond what a round trip
    /// explains.
    pub silent: Duration,
    /// How long the server takes to start what serves files on a channel, beyond a round trip: what
    /// the quickest took, or how long the first has been waited for.
    pub start_up: Duration,
    /// Channels that were opened and have not answered.
    pub starting: u32,
    /// The connections send with a congestion control that does not take a lost packet for
    /// congestion (BBR).
    pub bears_losses: bool,
    /// The connections that are authenticated.
    pub connections: Vec<ConnectionSample>,
    /// The lanes that have jobs or may get some.
    pub lanes: Vec<LaneSample>,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct ConnectionSample {
    /// Which.
    pub connection: ConnectionId,
    /// Bytes acknowledged (up) or received (down) on its socket.
    pub bytes: u64,
    /// What the kernel says, where there is a kernel's TCP under it.
    pub tcp: Option<TcpSample>,
}

/// What TCP_INFO says of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpSample {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// The lowest.
    pub min_rtt: Duration,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Below its threshold, the window still doubles.
    pub slow_start: bool,
    /// Bytes a second, as the kernel last measured it.
    pub delivery_rate: u64,
    /// Segments sent.
    pub segments: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Time with data to send.
    pub busy: Duration,
    /// Of it: held back by the receiver's window.
    pub rwnd_limited: Duration,
    /// Of it: held back by our send buffer.
    pub sndbuf_limited: Duration,
    /// Bytes sent and not acknowledged.
    pub unacked: u64,
    /// Bytes in the socket that have not been sent.
    pub notsent: u64,
    /// Receiver's estimate of its round trip (`tcpi_rcv_rtt`).
    pub rcv_rtt: Duration,
    /// Received and not in order: losses on the way here (`tcpi_rcv_ooopack`).
    pub out_of_order: u64,
    /// What the receive buffer may grow to be used for (`tcpi_rcv_space`).
    pub rcv_space: u64,
}

/// A lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneSample {
    /// Which.
    pub lane: LaneId,
    /// Bytes confirmed.
    pub bytes: u64,
    /// The channel's window as the server first gave it; 0 before that.
    pub window: u64,
    /// Time in which data waited and the channel's window was empty.
    pub window_blocked: Duration,
    /// Bytes in requests that are not answered.
    pub in_flight: u64,
    /// Of them, those that wait at this end for the channel's window or for the socket.
    pub unsent: u64,
    /// How many may be.
    pub depth: u64,
    /// The lowest that a request took, from leaving to the answer; zero while unknown.
    pub latency: Duration,
    /// Times that requests were held back for the local disk ([`crate::LaneStats::stalls_disk`]),
    /// or that nothing was there to be sent since the disk had not read it.
    pub stalls_disk: u64,
    /// Times that something could have been sent and its own depth forbade it.
    pub stalls_depth: u64,
}
