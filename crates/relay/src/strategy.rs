//! Path memory of a pair: what connections have learned about the path to the peer relay, and the
//! number of stripes with which the next one starts.

use std::fmt;
use std::time::Duration;

use pair::{StripeController, StripeTrialResult};

use crate::peer::{PairRelaySettings, StripeCount};

/// Result of a pair's trials on a path, stored when a connection ends so that the next one starts
/// with as many stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedStripeCount {
    /// Number of stripes that paid.
    pub legs: usize,
    /// Rate that they carried, in bytes per second.
    pub rate: u64,
    /// Round-trip time of the path.
    pub rtt: Duration,
}

/// Memory of stripe counts across connections, by target and round-trip time. The caller of the
/// crate implements it and decides where the counts are kept.
pub trait StripeCountStore: fmt::Debug + Send + Sync {
    /// Returns the findings for a path with this round-trip time to a target, and their age.
    fn recall(&self, target: &str, rtt: Duration) -> Option<(LearnedStripeCount, Duration)>;

    /// Stores the findings for the next connection.
    fn keep(&self, target: &str, learned: LearnedStripeCount);
}

/// Returns the controller for the number of stripes that a connection starts with, and an
/// explanation for the log. `uplinks` is the number of uplinks that lead to the peer relay.
pub(crate) fn begin(
    facing: &PairRelaySettings,
    target: &str,
    rtt: Duration,
    uplinks: usize,
) -> (StripeController, String) {
    let most = match facing.stripes {
        StripeCount::Fixed(1) => {
            return (
                StripeController::fixed(1),
                "one stripe, as set by --stripes".to_owned(),
            );
        }
        StripeCount::Fixed(legs) => {
            return (
                StripeController::fixed(legs),
                format!("{legs} stripes, as set by --stripes"),
            );
        }
        StripeCount::UpTo(most) => most,
    };
    let paths = facing.paths.as_ref();
    let learned = paths.and_then(|paths| paths.recall(target, rtt));
    match learned.filter(|(learned, _)| learned.legs >= uplinks) {
        None if uplinks > 1 => {
            let growth = StripeController::beginning(uplinks, most);
            let why = format!(
                "{}: one for each uplink that leads there",
                legs(growth.wanted())
            );
            (growth, why)
        }
        None => (
            StripeController::new(most),
            "one stripe, and more if they pay: no earlier measurement of this path".to_owned(),
        ),
        Some((learned, age)) => {
            let growth = StripeController::beginning(learned.legs, most);
            let why = format!(
                "{}: that many carried {} at a round trip of {:.1} ms, measured {}",
                legs(growth.wanted()),
                rate(learned.rate as f64),
                learned.rtt.as_secs_f64() * 1e3,
                ago(age),
            );
            (growth, why)
        }
    }
}

/// Describes the findings of a connection for the log.
pub(crate) fn shown(found: &StripeTrialResult) -> String {
    let (others, carried) = found.other;
    format!(
        "{} carried {}, and {} {}",
        legs(found.legs),
        rate(found.rate),
        legs(others),
        rate(carried),
    )
}

fn legs(count: usize) -> String {
    match count {
        1 => "one stripe".to_owned(),
        count => format!("{count} stripes"),
    }
}

fn rate(bytes: f64) -> String {
    format!("{:.1} MB/s", bytes / 1e6)
}

fn ago(age: Duration) -> String {
    match age.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 60..3600 => format!("{} min ago", seconds / 60),
        seconds @ 3600..86_400 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}
