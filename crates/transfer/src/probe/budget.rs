//! Time and amount of data of all measurements of a probe.

use std::time::{Duration, Instant};

use super::measurement_error::MeasurementError;
use super::{ProbeOptions, ProbeSettings};
use crate::cancel::CancelToken;

/// Time for all measurements unless the user sets it, and its extension in round trips: ten pass
/// before a connection is at full speed, and the DSCP classes need a hundred.
const TIME: Duration = Duration::from_secs(30);
const TRIPS: f64 = 450.0;
const LONGEST_TIME: f64 = 75.0;
/// Longest wait for an answer of the server.
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

/// Time and data that the measurements may use, and have used.
pub(super) struct ProbeBudget<'a> {
    target: &'a ProbeSettings,
    options: &'a ProbeOptions,
    time: Duration,
    /// Time for measurements that few paths need, beyond `time`.
    extra: Duration,
    /// Bytes moved so far.
    bytes: u64,
}

impl<'a> ProbeBudget<'a> {
    pub(super) fn new(target: &'a ProbeSettings, options: &'a ProbeOptions) -> Self {
        Self {
            target,
            options,
            time: options.time.unwrap_or(TIME),
            extra: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Returns the time for all measurements.
    pub(super) fn time(&self) -> Duration {
        self.time
    }

    /// Extends the time for a path with this round trip in seconds, unless the user has set it.
    pub(super) fn extend_for(&mut self, rtt: f64) {
        if self.options.time.is_none() {
            let needed = (TRIPS * rtt).min(LONGEST_TIME);
            self.time = TIME.max(Duration::from_secs_f64(needed));
        }
    }

    /// Adds time for a measurement that few paths need, unless the user has set the time. The shares of
    /// other measurements stay the same.
    pub(super) fn add_extra(&mut self, time: Duration) {
        if self.options.time.is_none() {
            self.extra += time;
        }
    }

    /// Returns the time that is left.
    pub(super) fn left(&self) -> Duration {
        let all = self.time + self.extra;
        all.saturating_sub(self.target.start.elapsed())
    }

    /// Shows a step.
    ///
    /// # Errors
    /// The measurement was interrupted.
    pub(super) fn step(&self, what: &str) -> Result<(), MeasurementError> {
        if self.is_cancelled() {
            return Err(MeasurementError::interrupted());
        }
        let used = self.target.start.elapsed().as_secs_f64();
        (self.options.progress)(what, used, self.left().as_secs_f64());
        Ok(())
    }

    /// Returns the token that ends the measurement.
    pub(super) fn cancel(&self) -> &'a CancelToken {
        &self.target.cancel
    }

    /// Returns true if the measurement was interrupted.
    pub(super) fn is_cancelled(&self) -> bool {
        self.target.cancel.is_cancelled()
    }

    /// Returns a share of the bytes of all measurements.
    pub(super) fn share_of_data(&self, share: f64) -> u64 {
        (self.options.data as f64 * share) as u64
    }

    /// Returns the bytes that are left.
    pub(super) fn data_left(&self) -> u64 {
        self.options.data.saturating_sub(self.bytes)
    }

    /// Counts bytes that were moved.
    pub(super) fn use_data(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
}

/// Returns the latest time for the answer to a request that is sent now.
pub(super) fn answer_deadline() -> Instant {
    Instant::now() + PATIENCE
}
