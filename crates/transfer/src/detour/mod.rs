//! Chooses a relaying host for the connections to a host, or none (`--via auto`):
//! docs/design/0025-via.md.
//!
//! `measure` loads the direct way and each candidate for a moment; `curve` turns the arrivals into
//! figures, and `choose` compares these. The last two are pure.

mod choose;
mod curve;
mod measure;
#[cfg(test)]
mod model_tests;
mod route_error;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use choose::{WORTH, choose};
pub use measure::{DetourMeasurement, DetourTarget, MOST_CANDIDATES, measure};
pub use route_error::RouteError;

/// Figures of one way to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteFigures {
    /// Round trip of a request to the host, in microseconds.
    pub rtt_us: u32,
    /// Rate of one connection in bytes per second, at the end of the burst.
    pub rate: u64,
    /// The rate still doubled each round trip at the end of the burst, so that the way has shown no
    /// limit.
    pub grows: bool,
}

impl RouteFigures {
    /// Round trip of a request to the host.
    pub fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_us.into())
    }
}

impl fmt::Display for RouteFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rtt, rate) = (f64::from(self.rtt_us) / 1e3, self.rate as f64 / 1e6);
        write!(f, "{rtt:.1} ms, {rate:.1} MB/s over one connection")?;
        match self.grows {
            true => f.write_str(", still growing"),
            false => Ok(()),
        }
    }
}

/// Figures of a way, or the reason why there are none.
pub type RouteResult = Result<RouteFigures, RouteError>;
