//! Comparison of packets that carry a DSCP with unmarked ones.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use diagnose::{DscpMeasurement, Evidence, ThroughputMeasurement};

use super::budget::PATIENCE;
use super::measurement_error::MeasurementError;
use super::path::{ProbedConnections, SHORT_SHARE};
use super::sampling::median;
use crate::config::{ConnectTimeout, HostConfig};
use crate::connect::{self, SharedConnectSettings};
use crate::session::Link;

/// Share of the time for one slice of a DSCP class.
const SLICE: f64 = 0.02;
/// Pairs with a class that seems slow.
const PAIRS: usize = 5;
/// DSCP values that OpenSSH uses or used.
const CLASSES: [(&str, u8); 3] = [("CS1", 8), ("AF21", 18), ("EF", 46)];
/// A class whose rate is below this share of the unmarked one in every pair is measured in further
/// pairs.
const SUSPECT: f64 = 0.8;
/// Round trips that a slice needs so that slow start does not decide.
const SLICE_TRIPS: f64 = 6.0;
/// Length of the load that tells the rate of a slow class: seconds, and round trips. The bucket of a
/// policer is a third of what passes in a slice.
const RATE_TIME: f64 = 3.0;
const RATE_TRIPS: f64 = 28.0;

/// Loads the path with DSCP-marked and unmarked packets in turns.
pub(super) struct DscpComparison<'p, 'a> {
    path: &'p mut ProbedConnections<'a>,
    evidence: &'p mut Evidence,
    config: &'p HostConfig,
    settings: &'p SharedConnectSettings,
}

/// Share of the time for one slice of a DSCP class.
fn slice_share(path: &ProbedConnections<'_>) -> f64 {
    SLICE.max(SLICE_TRIPS * path.rtt() / path.budget().time().as_secs_f64())
}

/// Time for one slice, and for its data to drain.
fn slice_time(path: &ProbedConnections<'_>) -> Duration {
    let slice = path.budget().time().mul_f64(slice_share(path));
    Duration::from_secs_f64(slice.as_secs_f64().max(0.3) + 5.0 * path.rtt())
}

/// Share of the time for the load that tells the rate of a slow class.
fn rate_share(path: &ProbedConnections<'_>) -> f64 {
    let wanted = RATE_TIME.max(RATE_TRIPS * path.rtt());
    let share = wanted / path.budget().time().as_secs_f64();
    // A longer load may be extended.
    share.min(0.99 * SHORT_SHARE)
}

/// Time for the DSCP classes: four logins at once and five slices.
fn marks_time(path: &ProbedConnections<'_>) -> Duration {
    slice_time(path) * 5 + Duration::from_secs_f64(20.0 * path.rtt() + 1.0)
}

/// True if further logins and TCP's counters are available, and the user chose no class.
fn can_mark(
    path: &ProbedConnections<'_>,
    evidence: &Evidence,
    settings: &SharedConnectSettings,
) -> bool {
    path.may_log_in_again() && settings.dscp == 0 && evidence.tcp.is_some()
}

/// Returns the time that earlier measurements should leave for the DSCP classes.
pub(super) fn time_for_classes(
    path: &ProbedConnections<'_>,
    evidence: &Evidence,
    settings: &SharedConnectSettings,
) -> Duration {
    match can_mark(path, evidence, settings) {
        // Two further pairs confirm a class that seems slow.
        true => marks_time(path) + slice_time(path) * 4,
        false => Duration::ZERO,
    }
}

impl<'p, 'a> DscpComparison<'p, 'a> {
    pub(super) fn new(
        path: &'p mut ProbedConnections<'a>,
        evidence: &'p mut Evidence,
        config: &'p HostConfig,
        settings: &'p SharedConnectSettings,
    ) -> Self {
        Self {
            path,
            evidence,
            config,
            settings,
        }
    }

    /// Compares marked and unmarked packets in turns.
    ///
    /// # Errors
    /// The budget is used up, or a connection was lost.
    pub(super) fn run(mut self) -> Result<(), MeasurementError> {
        let slice = slice_share(self.path);
        if !can_mark(self.path, self.evidence, self.settings) {
            if self.evidence.tcp.is_none() {
                let why =
                    "DSCP classes: this machine has no TCP connection of its own to the server";
                self.evidence.unseen.push(why.to_owned());
            }
            return Ok(());
        }
        if self.evidence.up.rungs.is_empty() {
            return Ok(());
        }
        if self.path.budget().left() < marks_time(self.path) {
            self.evidence
                .unseen
                .push("DSCP classes: no time was left (--time)".to_owned());
            return Ok(());
        }
        let first = self.path.connections().len();
        self.path.budget().step("DSCP classes")?;
        let mut links = self.marked_links();
        // The other connections know more or less about the path than a new one.
        let Some((_, unmarked)) = links
            .iter()
            .position(|l| l.0 == 0)
            .map(|at| links.remove(at))
        else {
            self.evidence
                .unseen
                .push("DSCP classes: no further connection was admitted".to_owned());
            return Ok(());
        };
        let unmarked = self.path.connections().add(unmarked)?;
        let mut classes = Vec::new();
        for (dscp, link) in links {
            let number = self.path.connections().add(link)?;
            let name = CLASSES.iter().find(|class| class.1 == dscp);
            classes.extend(name.map(|(name, _)| (*name, number)));
        }
        let done = self.pairs(unmarked, &classes, slice);
        self.path.connections().cut_from(first);
        done
    }

    /// Opens a connection without a mark and one for each class, all at once.
    fn marked_links(&self) -> Vec<(u8, Box<dyn Link>)> {
        let (done, results) = mpsc::channel();
        let all = CLASSES.iter().map(|class| class.1).chain([0]);
        for dscp in all {
            let settings = SharedConnectSettings {
                dscp,
                opened: Arc::new(|_| {}),
                ..self.settings.clone()
            };
            let mut config = self.config.clone();
            let limit = PATIENCE.min(self.path.budget().left());
            config.connect_timeout = Some(ConnectTimeout::Fixed(limit));
            let done = done.clone();
            let thread = thread::Builder::new().name("connect".to_owned());
            let _ = thread.spawn(move || {
                let link = connect::connect(config, &settings).ok();
                let link = link.map(|(link, _)| Box::new(link) as Box<dyn Link>);
                // After a cancel there is no receiver any more.
                let _ = done.send((dscp, link));
            });
        }
        drop(done);
        let until = Instant::now() + PATIENCE.min(self.path.budget().left());
        let mut links = Vec::new();
        while Instant::now() < until && !self.path.budget().is_cancelled() {
            match results.recv_timeout(Duration::from_millis(50)) {
                Ok((dscp, Some(link))) => links.push((dscp, link)),
                Ok((_, None)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        links.sort_by_key(|(dscp, _)| *dscp);
        links
    }

    fn slice(
        &mut self,
        connection: usize,
        share: f64,
    ) -> Result<ThroughputMeasurement, MeasurementError> {
        self.path.budget().step("DSCP classes")?;
        let result = self.path.load(&[(connection, 0)], true, share)?;
        match result.rung {
            Some(rung) => Ok(rung),
            // Without a rate the class would look slow.
            None if self.path.budget().is_cancelled() => Err(MeasurementError::interrupted()),
            None if result.data_used => Err(MeasurementError::data_used_up()),
            None => Err(MeasurementError::time_used_up()),
        }
    }

    /// Rate of a slow class in a load of its own, without what the bucket of a policer lets pass at
    /// first; `None` without time for it.
    ///
    /// Bytes that arrived behind a lost packet are acknowledged all at once when it is sent again: behind a
    /// shaper of 0.714 MB/s a load of 2.4 s had 0.84 MB/s. A class with a queue passes no more than its
    /// rate in any of the slices before, of which `slice` is the fastest.
    fn class_limit(
        &mut self,
        connection: usize,
        slice: f64,
    ) -> Result<Option<f64>, MeasurementError> {
        let share = rate_share(self.path);
        self.path.add_time_for(share);
        if self.path.budget().left() < self.path.load_time(share) {
            return Ok(None);
        }
        let load = self.slice(connection, share)?;
        let unqueued = self.evidence.unqueued_rate(&load);
        Ok(Some(unqueued.unwrap_or_else(|| load.rate.min(slice))))
    }

    fn has_time_for_pair(&self) -> bool {
        self.path.budget().left() > slice_time(self.path) * 2
    }

    fn pairs(
        &mut self,
        unmarked: usize,
        classes: &[(&str, usize)],
        share: f64,
    ) -> Result<(), MeasurementError> {
        let mut results: Vec<_> = classes
            .iter()
            .map(|(name, connection)| DscpClassRates {
                name: (*name).to_owned(),
                connection: *connection,
                pairs: Vec::new(),
                limit: None,
            })
            .collect();
        let done = self.measure_pairs(unmarked, &mut results, share);
        // Pairs that were measured before the time was up count as well.
        for class in results.into_iter().filter(|class| !class.pairs.is_empty()) {
            self.evidence.marks.marks.push(class.mark());
        }
        done
    }

    fn measure_pairs(
        &mut self,
        unmarked: usize,
        results: &mut [DscpClassRates],
        share: f64,
    ) -> Result<(), MeasurementError> {
        let first = self.slice(unmarked, share)?.rate;
        let mut slices = Vec::new();
        for class in results.iter() {
            slices.push(self.slice(class.connection, share)?);
        }
        let second = self.slice(unmarked, share)?.rate;
        self.evidence.marks.noise = vec![second / first.max(1.0)];
        for (class, marked) in results.iter_mut().zip(slices) {
            // The first slice alone may have had a burst that a shaper lets pass.
            let (unmarked, marked) = (first.min(second), marked.rate);
            class.pairs.push(DscpPair { unmarked, marked });
        }
        for class in results {
            let suspect = class.is_slow();
            while suspect && class.pairs.len() < PAIRS && self.has_time_for_pair() {
                let unmarked = self.slice(unmarked, share)?.rate;
                let marked = self.slice(class.connection, share)?.rate;
                class.pairs.push(DscpPair { unmarked, marked });
            }
            if class.is_slow() {
                class.limit = self.class_limit(class.connection, class.fastest())?;
            }
        }
        Ok(())
    }
}

/// Rates of a pair of slices.
#[derive(Clone, Copy)]
struct DscpPair {
    unmarked: f64,
    marked: f64,
}

/// Rates of a class, each with that of unmarked packets before it.
struct DscpClassRates {
    name: String,
    connection: usize,
    pairs: Vec<DscpPair>,
    /// Rate of the class in a longer load, if it is slow.
    limit: Option<f64>,
}

impl DscpClassRates {
    /// True if the class seems slow in every pair.
    fn is_slow(&self) -> bool {
        let slow = |pair: &DscpPair| pair.marked < SUSPECT * pair.unmarked;
        self.pairs.iter().all(slow)
    }

    /// Highest rate of the class in a slice; the first one has a new connection.
    fn fastest(&self) -> f64 {
        let marked = self.pairs.iter().skip(1).map(|pair| pair.marked);
        marked.reduce(f64::max).unwrap_or(f64::INFINITY)
    }

    fn mark(self) -> DscpMeasurement {
        // The first pair of a class has the burst of its policer, and a new connection.
        let middle =
            |of: fn(&DscpPair) -> f64| median(&mut self.pairs.iter().map(of).collect::<Vec<_>>());
        let ratio = |pair: &DscpPair| pair.marked / pair.unmarked.max(1.0);
        DscpMeasurement {
            ratios: self.pairs.iter().map(ratio).collect(),
            rate: self.limit.unwrap_or_else(|| middle(|pair| pair.marked)),
            unmarked: middle(|pair| pair.unmarked),
            class: self.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::measurement_error::MeasurementFailure;
    use crate::probe::test_support::{options, path, settings};

    /// Bug: after Ctrl-C the report advised more time (--time).
    #[test]
    fn an_interrupted_slice_was_taken_for_one_without_time() {
        let (target, mut options) = (settings(), options());
        let cancel = target.cancel.clone();
        options.progress = Arc::new(move |_, _, _| cancel.cancel());
        let (mut path, _) = path(&target, &options);
        let mut evidence = Evidence::default();
        let (config, shared) = (&target.config, &target.settings);
        let mut classes = DscpComparison::new(&mut path, &mut evidence, config, shared);
        let error = classes.slice(1, SLICE).unwrap_err();
        assert_eq!(error.cause(), MeasurementFailure::Interrupted);
        assert_eq!(error.to_string(), "interrupted");
    }
}
