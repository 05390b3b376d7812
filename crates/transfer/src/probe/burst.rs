//! Sends or receives a limited amount of data over one connection, for `--via auto`.

use std::time::{Duration, Instant};

use sftp::Request;

use super::budget::PATIENCE;
use super::connection::{ChannelIndex, ChannelUse, ProbeConnections};
use super::measurement_error::MeasurementError;
use crate::cancel::CancelToken;
use crate::session::Link;

/// Round trips that are measured before the load.
const PINGS: usize = 3;
/// Least and longest time for the load.
const SHORTEST: Duration = Duration::from_millis(2500);
const LONGEST: Duration = Duration::from_secs(6);
/// Round trips for the load between these: slow start needs nine for 4 MiB.
const TRIPS: u32 = 12;

/// Load of one burst of data: its direction, its size, and a function that is told of each arrival.
pub(crate) struct BurstLoad<'a> {
    up: bool,
    size: u64,
    arrived: &'a mut dyn FnMut(Duration, u64),
}

impl<'a> BurstLoad<'a> {
    /// A load of `size` bytes, from this machine to the server if `up`. `arrived` is called with the
    /// time since the start and all bytes that the receiver has by then.
    pub(crate) fn new(up: bool, size: u64, arrived: &'a mut dyn FnMut(Duration, u64)) -> Self {
        Self { up, size, arrived }
    }
}

/// Outcome of a burst: round trip, duration, and whether it was complete.
pub(crate) struct BurstResult {
    rtt: Duration,
    took: Duration,
    complete: bool,
}

impl BurstResult {
    /// Returns the round trip of a request before the load.
    pub(crate) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Returns the time of the load.
    pub(crate) fn took(&self) -> Duration {
        self.took
    }

    /// Returns true if all bytes have arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }
}

/// Measures the round trip of requests, then moves data to /dev/null or from /dev/zero of the
/// server, and disconnects.
///
/// # Errors
/// The server does not serve this, or the connection is lost.
pub(crate) fn burst(
    link: Box<dyn Link>,
    burst: &mut BurstLoad<'_>,
    cancel: &CancelToken,
) -> Result<BurstResult, MeasurementError> {
    let mut all = ProbeConnections::new()?;
    all.add(link)?;
    let done = measured(&mut all, burst, cancel);
    all.cut_from(0);
    done
}

fn measured(
    all: &mut ProbeConnections,
    burst: &mut BurstLoad<'_>,
    cancel: &CancelToken,
) -> Result<BurstResult, MeasurementError> {
    let until = Instant::now() + PATIENCE;
    let at = all.open(0, until)?;
    let file = all.device(at, burst.up, until)?;
    let mut rtt = PATIENCE;
    for _ in 0..PINGS {
        let (_, time) = all.ask(at, &Request::Realpath { path: b"." }, until)?;
        rtt = rtt.min(time);
    }
    all.set_carried_rtt(rtt);
    let purpose = match burst.up {
        true => ChannelUse::Writing {
            file,
            advances: false,
        },
        false => ChannelUse::Reading { file },
    };
    let longest = (rtt * TRIPS).clamp(SHORTEST, LONGEST);
    let start = Instant::now();
    all.set_use(at, purpose);
    loop {
        all.turn(start + longest);
        let took = start.elapsed();
        let (moved, in_flight) = moved(all, at)?;
        (burst.arrived)(took, moved);
        if moved + in_flight >= burst.size {
            all.set_use(at, ChannelUse::Idle);
        }
        let complete = moved >= burst.size;
        if complete || took >= longest || cancel.is_cancelled() {
            return Ok(BurstResult {
                rtt,
                took,
                complete,
            });
        }
    }
}

/// Bytes of a channel that have arrived, and those in flight.
fn moved(all: &ProbeConnections, at: ChannelIndex) -> Result<(u64, u64), MeasurementError> {
    if let Some(why) = all.loss(at.0) {
        return Err(why.clone());
    }
    let Some(channel) = all.channel(at) else {
        return Err(MeasurementError::channel_ended("the channel was closed"));
    };
    match channel.failure() {
        Some(why) => Err(why),
        None => Ok((channel.moved(), channel.in_flight())),
    }
}
