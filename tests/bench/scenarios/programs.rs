//! Scenarios with unmodified programs that use `longhaul dial` or `longhaul wrap`.

use super::{BBR_PERMITTED, LOSSY, POLICED, Quick, Scenario, UP};
use crate::bars::Asked;
use crate::content::Content;

/// Scenarios with unmodified programs.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "policed-uplink-dial",
        about: "The same: OpenSSH's scp as it is, and through longhaul dial.",
        dscp: Some("cs1"),
        dialed: true,
        ways: UP,
        quick: Quick::No,
        among: &["scp", "scp by dial"],
        ours: "scp by dial",
        asked: &[Asked::Times(10.0, "scp")],
        ..POLICED
    },
    Scenario {
        name: "policed-uplink-carried",
        about: "The same where longhaul dial carries the bytes.",
        dscp: Some("cs1"),
        dialed: true,
        ways: UP,
        quick: Quick::No,
        among: &["scp", "scp by dial, carried"],
        ours: "scp by dial, carried",
        asked: &[Asked::Times(10.0, "scp")],
        ..POLICED
    },
    Scenario {
        name: "policed-uplink-relay",
        about: "The same: OpenSSH's scp as it is, and through longhaul relay on standard streams.",
        dscp: Some("cs1"),
        dialed: true,
        ways: UP,
        quick: Quick::No,
        among: &["scp", "scp by relay"],
        ours: "scp by relay",
        asked: &[Asked::Times(10.0, "scp")],
        ..POLICED
    },
    Scenario {
        name: "policed-uplink-wrap",
        about: "The same: OpenSSH's scp as it is, and by longhaul wrap.",
        dscp: Some("cs1"),
        wrapped: true,
        ways: UP,
        quick: Quick::No,
        among: &["scp", "scp wrapped"],
        ours: "scp wrapped",
        asked: &[Asked::Times(10.0, "scp")],
        ..POLICED
    },
    Scenario {
        name: "loss-dial",
        about: "1 Gbit/s at 100 ms, one packet in a hundred lost, BBR permitted though not the \
                default: rsync as it is, and through longhaul dial.",
        lab: BBR_PERMITTED,
        content: Content::File(16 << 20),
        dialed: true,
        ways: UP,
        among: &["rsync", "rsync by dial"],
        ours: "rsync by dial",
        asked: &[Asked::Times(10.0, "rsync")],
        ..LOSSY
    },
];
