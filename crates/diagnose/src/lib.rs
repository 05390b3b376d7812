//! Finds the cause of a slow path from measurements.
//!
//! [`Evidence`] goes in, a [`Diagnosis`] comes out: one sentence, the limits with their figures and
//! remedies, and a list of what could not be seen. [`limiter()`] is the rule for a running
//! transfer, which `longhaul cp` and the ladder of `longhaul doctor` share. Pure: no I/O, clock or
//! threads.

mod cause;
mod evidence;
mod finding;
mod finished;
mod hops;
mod kernel;
mod limiter;
mod rules;
#[cfg(test)]
mod tests;
mod units;
mod verdict;

pub use cause::{Cause, Remedy, RemedyActor};
pub use evidence::{
    DscpMeasurement, DscpMeasurements, Evidence, LadderRung, MachineFacts, MinMedianMax,
    RestrainedLoad, SmallFileRate, TcpPath, ThroughputLadder, TimedLoginStep, TransferStall,
};
pub use finding::{Certainty, DataDirection, Finding};
pub use finished::{FinishedTransfer, explain};
pub use hops::compare_hops;
pub use limiter::{
    ConnectionGrowth, Limiter, LimiterEvidence, LossFacts, ServerFacts, TransferFacts, limiter,
};
pub use verdict::{Diagnosis, diagnose};
