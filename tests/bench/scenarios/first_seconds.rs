//! Files that a copy of seconds moves: login, slow start and the answers at the end.

use measure::ScenarioMetric;

use super::{Scenario, TRANSATLANTIC};
use crate::bars::Asked;
use crate::content::Content;

const TOOLS: &[&str] = &[
    "longhaul",
    "scp",
    "rsync",
    "rclone",
    "rclone tuned",
    "mscp -n 16",
];

const FIRST: Scenario = Scenario {
    among: TOOLS,
    measure: ScenarioMetric::Seconds,
    ..TRANSATLANTIC
};

/// The host memory makes a difference to longhaul only.
const AGAIN: Scenario = Scenario {
    among: &["longhaul"],
    primed: true,
    ..FIRST
};

/// Scenarios with files of 1 to 256 MiB.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "first-seconds-1m",
        about: "1 Gbit/s at 114 ms, first contact, no start-up files of a shell: one file of 1 MiB.",
        content: Content::File(1 << 20),
        asked: &[Asked::Seconds(1.15), Asked::Best],
        ..FIRST
    },
    Scenario {
        name: "first-seconds-1m-again",
        about: "1 MiB after the same command ran once, so that it may remember the host.",
        content: Content::File(1 << 20),
        asked: &[Asked::Seconds(1.0)],
        ..AGAIN
    },
    Scenario {
        name: "first-seconds-16m",
        about: "1 Gbit/s at 114 ms, first contact: one file of 16 MiB.",
        content: Content::File(16 << 20),
        asked: &[Asked::Seconds(1.9), Asked::Best],
        ..FIRST
    },
    Scenario {
        name: "first-seconds-16m-again",
        about: "16 MiB after the same command ran once.",
        content: Content::File(16 << 20),
        asked: &[Asked::Seconds(1.7)],
        ..AGAIN
    },
    Scenario {
        name: "first-seconds-64m",
        about: "1 Gbit/s at 114 ms, first contact: one file of 64 MiB.",
        content: Content::File(64 << 20),
        asked: &[Asked::Seconds(2.45), Asked::Best],
        ..FIRST
    },
    Scenario {
        name: "first-seconds-64m-again",
        about: "64 MiB after the same command ran once.",
        content: Content::File(64 << 20),
        asked: &[Asked::Seconds(2.2)],
        ..AGAIN
    },
    Scenario {
        name: "first-seconds-256m",
        about: "1 Gbit/s at 114 ms, first contact: one file of 256 MiB.",
        content: Content::File(256 << 20),
        asked: &[Asked::Seconds(4.5), Asked::Best],
        ..FIRST
    },
    Scenario {
        name: "first-seconds-256m-again",
        about: "256 MiB after the same command ran once.",
        content: Content::File(256 << 20),
        asked: &[Asked::Seconds(4.2)],
        ..AGAIN
    },
];
