//! Scenarios with longhaul at both ends, behind an unmodified sshd.

use measure::ScenarioMetric;

use super::{BBR_PERMITTED, DOWN, IPERF, LOSSY, PLAIN, Quick, Scenario, TRANSATLANTIC, UP};
use crate::bars::Asked;
use crate::content::Content;

const EXEC: &str = "longhaul exec";
const AUTO: &str = "longhaul auto";
const DIRECT: &str = "longhaul direct";

/// Compares the far end's own SFTP server with a longhaul there.
const BOTH_ENDS: Scenario = Scenario {
    both_ends: true,
    among: &["longhaul", EXEC, AUTO],
    ours: EXEC,
    ..TRANSATLANTIC
};

/// Scenarios with longhaul at both ends.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "both-ends-100k",
        about: "1 Gbit/s at 114 ms, a longhaul at the far end: a hundred thousand small files.",
        content: Content::Small {
            files: 100_000,
            size: 4096,
        },
        measure: ScenarioMetric::Files,
        asked: &[Asked::Files(18_000.0), Asked::LastHalfFiles(25_000.0)],
        ..BOTH_ENDS
    },
    Scenario {
        name: "both-ends-small",
        about: "1 Gbit/s at 114 ms, a longhaul at the far end: few small files, where the login \
                and slow start count.",
        content: Content::Small {
            files: 2_000,
            size: 4096,
        },
        among: &["longhaul", EXEC, AUTO, "tar"],
        measure: ScenarioMetric::Files,
        quick: Quick::Share(1.0),
        asked: &[Asked::Seconds(1.8), Asked::Times(1.0, "tar")],
        ..BOTH_ENDS
    },
    Scenario {
        name: "both-ends-loopback-small",
        about: "No path at all, a longhaul at the far end: many small files.",
        content: Content::Small {
            files: 10_000,
            size: 4096,
        },
        both_ends: true,
        among: &["longhaul", EXEC, "tar", "rsync"],
        ours: EXEC,
        measure: ScenarioMetric::Files,
        asked: &[Asked::Times(1.0, "tar")],
        ..PLAIN
    },
    Scenario {
        name: "both-ends-fsync",
        about: "No path at all, a longhaul at the far end, each file made durable: few small files. It \
                says something where BENCH_DIR is on a disk; the stock server syncs no names.",
        content: Content::Small {
            files: 2_000,
            size: 4096,
        },
        both_ends: true,
        ways: UP,
        held: &["--fsync"],
        among: &["longhaul", EXEC],
        ours: EXEC,
        measure: ScenarioMetric::Files,
        ..PLAIN
    },
    Scenario {
        name: "both-ends-delta",
        about: "1 Gbit/s at 114 ms, a longhaul at the far end, which has an older form of the \
                file: a hundredth of it, in a hundred places, is new.",
        content: Content::Changed {
            size: 1 << 30,
            places: 100,
        },
        ways: UP,
        // For a host without host memory, it is not known in time that delta is possible.
        held: &["--delta"],
        among: &["longhaul", EXEC, "rsync"],
        measure: ScenarioMetric::Seconds,
        asked: &[
            // 3 s are required after the far end has read its copy, which takes 0.3 s from memory.
            Asked::Seconds(3.3),
            Asked::Wire(20.0),
            Asked::Times(1.0, "rsync"),
        ],
        ..BOTH_ENDS
    },
    Scenario {
        name: "both-ends-text",
        about: "1 Gbit/s at 114 ms, a longhaul at the far end: files of words, of which zstd makes \
                less than half on the way.",
        content: Content::Text { files: 4_096 },
        asked: &[Asked::Times(1.6, "longhaul")],
        ..BOTH_ENDS
    },
    Scenario {
        name: "both-ends-sources",
        about: "1 Gbit/s at 114 ms, a longhaul at the far end, first contact: sources as they lie, \
                2,400 folders of six files of words, 15 kB each.",
        content: Content::Sources { files: 14_400 },
        among: &["longhaul", EXEC, "tar", "rsync"],
        measure: ScenarioMetric::Seconds,
        ..BOTH_ENDS
    },
    Scenario {
        name: "both-ends-random",
        about: "The same with files that do not compress: trying must not cost.",
        content: Content::Noise { files: 4_096 },
        asked: &[Asked::Times(0.97, "longhaul")],
        ..BOTH_ENDS
    },
    Scenario {
        name: "direct-loss",
        about: "1 Gbit/s at 100 ms, one packet in a hundred lost, BBR permitted at both ends though \
                not their default, and a longhaul at the far end that is reached straight.",
        lab: BBR_PERMITTED,
        content: Content::File(1 << 30),
        both_ends: true,
        ways: DOWN,
        among: &[EXEC, DIRECT, IPERF],
        ours: DIRECT,
        reference_cc: Some("bbr"),
        asked: &[Asked::Times(0.8, IPERF)],
        ..LOSSY
    },
    Scenario {
        name: "direct-first-byte",
        about: "1 Gbit/s at 114 ms, after the same command ran once: one file of 1 KiB over a \
                connection that goes straight to a longhaul.",
        content: Content::File(1024),
        among: &["longhaul", EXEC, DIRECT],
        ours: DIRECT,
        measure: ScenarioMetric::Seconds,
        primed: true,
        asked: &[Asked::TripsBehind(3.5, "longhaul")],
        ..BOTH_ENDS
    },
    Scenario {
        name: "one-login",
        about: "1 Gbit/s at 114 ms, a server with one session a connection that takes a key once, \
                as where each login costs a code: what goes straight has connections all the same.",
        sshd: &[
            "MaxSessions=1",
            "AuthorizedKeysFile=none",
            "AuthorizedKeysCommandUser=$USER",
            "AuthorizedKeysCommand=/bin/sh -c \"mkdir $SCRATCH/logged-in && echo $0 $1\" %t %k",
        ],
        among: &["longhaul", EXEC, DIRECT, IPERF],
        ours: DIRECT,
        asked: &[Asked::LastHalf(105.0)],
        ..BOTH_ENDS
    },
];
