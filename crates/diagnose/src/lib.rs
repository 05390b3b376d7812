//! Finds the cause of a slow path from measurements.
//!
//! [`Evidence`] goes in, a [`PathDiagnosis`] comes out: one sentence, the limits with their figures and
//! remedies, and a list of what could not be seen. [`limiter()`] is the rule for a running
//! transfer, which `longhaul cp` and the ladder of `longhaul doctor` share. Pure: no I/O, clock or
//! threads.

mod diagnosis_finding;
mod evidence;
mod finished;
mod hops;
mod kernel;
mod limit_cause;
mod limiter;
mod rules;
#[cfg(test)]
mod tests;
mod units;
mod verdict;

pub use diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
pub use evidence::{
    DscpMeasurement, DscpMeasurements, Evidence, LossConditions, MachineFacts, MinMedianMax,
    NearLinkLoad, NegotiatedTcpOptions, ReducedRateLoad, SmallFileRate, ThroughputMeasurement,
    ThroughputScaling, TimedLoginStep, TransferStall,
};
pub use finished::{FinishedTransfer, explain};
pub use hops::compare_hops;
pub use limit_cause::{LimitCause, Remedy, RemedyActor};
pub use limiter::{
    FurtherConnectionEffect, Limiter, LimiterEvidence, LossFacts, ServerFacts, TransferFacts,
    limiter, share,
};
pub use verdict::{PathDiagnosis, diagnose};
