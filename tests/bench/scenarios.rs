//! Scenarios of the race: path, content, directions, and the requirements on longhaul.

mod both_ends;
mod first_seconds;
mod programs;

use std::io::{self, Write};

use measure::{CopyDirection, PublishedReport, ScenarioMetric};

use crate::bars::Asked;
use crate::content::Content;
use crate::settings::{Preset, Settings};
use crate::tools::Ask;

const BOTH: &[CopyDirection] = &[CopyDirection::Up, CopyDirection::Down];
const UP: &[CopyDirection] = &[CopyDirection::Up];
const DOWN: &[CopyDirection] = &[CopyDirection::Down];

/// Part of a scenario in the quick preset.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quick {
    /// The scenario does not run.
    No,
    /// Runs with this share of the content.
    Share(f64),
    /// Runs with this share of the content, uploads only.
    Up(f64),
}

/// One scenario.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Options of the lab; empty for loopback.
    pub(crate) lab: &'static [&'static str],
    pub(crate) rtt: Option<f64>,
    pub(crate) content: Content,
    pub(crate) ways: &'static [CopyDirection],
    pub(crate) compress: bool,
    pub(crate) dscp: Option<&'static str>,
    /// Flags that limit longhaul to less than it would choose.
    pub(crate) held: &'static [&'static str],
    /// Tools to compare; empty for all that can run the scenario.
    among: &'static [&'static str],
    /// Settings of sshd_config in the lab.
    pub(crate) sshd: &'static [&'static str],
    /// The command has run once before on the same path, so that it can use its host memory.
    pub(crate) primed: bool,
    pub(crate) measure: ScenarioMetric,
    pub(crate) quick: Quick,
    /// Time limit of a run in the full race, in seconds.
    pub(crate) limit: f64,
    pub(crate) reference_cc: Option<&'static str>,
    /// `longhaul serve` takes part, in addition to sshd.
    served: bool,
    /// A longhaul at the far end takes part, in addition to sshd alone.
    both_ends: bool,
    /// `longhaul dial` takes part, in addition to direct connections.
    dialed: bool,
    /// `longhaul wrap` takes part, in addition to unwrapped programs.
    wrapped: bool,
    /// Tool to which the requirements apply.
    pub(crate) ours: &'static str,
    cipher: Option<&'static str>,
    plain: bool,
    /// The scenario is part of the sweep over numbers of connections and channels.
    swept: bool,
    asked: &'static [Asked],
    /// Requirements for downloads, if they differ.
    asked_down: Option<&'static [Asked]>,
}

const PLAIN: Scenario = Scenario {
    name: "",
    about: "",
    lab: &[],
    rtt: None,
    content: Content::File(1 << 30),
    ways: BOTH,
    compress: false,
    dscp: None,
    held: &[],
    among: &[],
    sshd: &[],
    primed: false,
    measure: ScenarioMetric::Rate,
    quick: Quick::No,
    limit: 120.0,
    reference_cc: None,
    served: false,
    both_ends: false,
    dialed: false,
    wrapped: false,
    ours: "longhaul",
    cipher: None,
    plain: false,
    swept: false,
    asked: &[],
    asked_down: None,
};

const TRANSATLANTIC: Scenario = Scenario {
    lab: &["--path", "transatlantic", "--tcp", "stock", "--cc", "cubic"],
    rtt: Some(0.114),
    ..PLAIN
};

const TUNED: Scenario = Scenario {
    lab: &["--path", "transatlantic", "--tcp", "tuned", "--cc", "cubic"],
    ..TRANSATLANTIC
};

const POLICED: Scenario = Scenario {
    lab: &["--path", "policed-uplink", "--cc", "cubic"],
    rtt: Some(0.010),
    content: Content::File(64 << 20),
    quick: Quick::Up(0.05),
    ..PLAIN
};

const LOSSY: Scenario = Scenario {
    lab: &[
        "--rtt", "100ms", "--rate", "1Gbit", "--loss", "1%", "--cc", "cubic",
    ],
    rtt: Some(0.100),
    content: Content::File(32 << 20),
    limit: 600.0,
    ..PLAIN
};

const BBR_PERMITTED: &[&str] = &[
    "--rtt",
    "100ms",
    "--rate",
    "1Gbit",
    "--loss",
    "1%",
    "--cc",
    "cubic",
    "--allow-cc",
    "bbr",
];

/// longhaul's own server beside sshd, with one connection: the cost of a byte at both ends.
const SERVED: Scenario = Scenario {
    content: Content::File(4 << 30),
    held: ONE,
    served: true,
    ours: "longhaul to serve",
    ..PLAIN
};

const IPERF: &str = "iperf3 -P 8";

const ONE: &[&str] = &["--connections", "1", "--channels", "1"];

/// Path that is slower than zlib, so that compression can pay.
const SLOW: Scenario = Scenario {
    lab: &["--rtt", "40ms", "--rate", "50Mbit", "--cc", "cubic"],
    rtt: Some(0.040),
    content: Content::Text { files: 256 },
    ways: UP,
    ..PLAIN
};

/// Returns all scenarios.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    let others = both_ends::SCENARIOS.iter().chain(programs::SCENARIOS);
    let others = others.chain(first_seconds::SCENARIOS);
    SCENARIOS.iter().chain(others)
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "transatlantic-file",
        swept: true,
        about: "1 Gbit/s at 114 ms, TCP as an untouched Linux sets it: one large file.",
        quick: Quick::Share(1.0 / 32.0),
        asked: &[Asked::Rate(90.0), Asked::LastHalf(105.0), Asked::Best],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "transatlantic-4g",
        about: "The same with a file long enough for the rate to be sustained.",
        content: Content::File(4 << 30),
        limit: 240.0,
        asked: &[Asked::LastHalf(105.0), Asked::Best],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "transatlantic-tuned",
        swept: true,
        about: "1 Gbit/s at 114 ms, TCP buffers of a tuned data-transfer node: one large file.",
        asked: &[Asked::LastHalf(108.0), Asked::Best],
        ..TUNED
    },
    Scenario {
        name: "transatlantic-tuned-4g",
        about: "The same with a file long enough for the rate to be sustained.",
        content: Content::File(4 << 30),
        limit: 240.0,
        asked: &[Asked::LastHalf(108.0), Asked::Best],
        ..TUNED
    },
    Scenario {
        name: "transatlantic-small",
        about: "1 Gbit/s at 114 ms: many small files, where round trips count.",
        content: Content::Small {
            files: 2_000,
            size: 4096,
        },
        measure: ScenarioMetric::Files,
        quick: Quick::Share(1.0),
        asked: &[Asked::Seconds(2.2), Asked::ShareOfTime(0.75, "tar")],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "transatlantic-mixed",
        about: "1 Gbit/s at 114 ms: a tree of mixed sizes, up to 1 MiB.",
        content: Content::Mixed { files: 20_000 },
        measure: ScenarioMetric::Files,
        asked: &[Asked::Best],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "transatlantic-100k",
        about: "1 Gbit/s at 114 ms: a hundred thousand small files.",
        content: Content::Small {
            files: 100_000,
            size: 4096,
        },
        measure: ScenarioMetric::Files,
        asked: &[Asked::Files(8_000.0), Asked::Best],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "transatlantic-small-one",
        about: "1 Gbit/s at 114 ms, and a host that lets nobody log in twice: one connection.",
        // Slow start takes two seconds, and the far end's send buffer then allows 5,100 files per
        // second.
        content: Content::Small {
            files: 40_000,
            size: 4096,
        },
        measure: ScenarioMetric::Files,
        held: &["--connections", "1"],
        asked: &[Asked::Files(4_000.0)],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "transatlantic-tiny",
        about: "1 Gbit/s at 114 ms: one file of 1 KiB, which is connecting and little else.",
        content: Content::File(1024),
        measure: ScenarioMetric::Seconds,
        quick: Quick::Up(1.0),
        asked: &[Asked::RoundTrips(11.5), Asked::Best],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "transatlantic-tiny-again",
        about: "The same after the same command ran once, so that it may remember the host.",
        content: Content::File(1024),
        measure: ScenarioMetric::Seconds,
        primed: true,
        asked: &[Asked::RoundTrips(8.0), Asked::Best],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "loopback-file",
        about: "No path at all: one large file, where processors count.",
        content: Content::File(4 << 30),
        quick: Quick::Share(1.0 / 16.0),
        asked: &[Asked::Times(1.35, "scp"), Asked::Best],
        asked_down: Some(&[Asked::Times(1.2, "scp"), Asked::Best]),
        ..PLAIN
    },
    Scenario {
        name: "loopback-file-one",
        about: "The same on one connection, as scp has it: what a byte costs this processor.",
        content: Content::File(4 << 30),
        held: &["--connections", "1", "--channels", "1"],
        // The requirement of 0.55 s/GB comes from a machine on which scp takes 1.3.
        asked: &[
            Asked::Times(1.35, "scp"),
            Asked::Cpu(0.55),
            Asked::ShareOfCpu(0.42, "scp"),
        ],
        asked_down: Some(&[
            Asked::Times(1.2, "scp"),
            Asked::Cpu(0.55),
            Asked::ShareOfCpu(0.42, "scp"),
        ]),
        ..PLAIN
    },
    Scenario {
        name: "serve-one",
        about: "No path at all, one connection to a server of ours: one large file, beside others \
                to their own.",
        asked: &[
            Asked::Times(2.0, "scp"),
            Asked::Times(2.0, "hpnscp to hpnsshd"),
            Asked::Times(2.0, "hpnscp to hpnsshd, AES"),
            Asked::ShareOfBothCpu(0.6, "scp"),
        ],
        ..SERVED
    },
    Scenario {
        name: "serve-lanes",
        about: "The same with as many connections as there come to be, beside what moves bytes \
                alone.",
        held: &[],
        among: &["longhaul to serve", "scp", IPERF],
        asked: &[
            Asked::Times(2.0, "scp"),
            Asked::AfterCipher(0.8, IPERF),
            Asked::OfProcessors(0.8, IPERF),
            Asked::Best,
        ],
        ..SERVED
    },
    Scenario {
        name: "serve-chacha",
        about: "One connection to a server of ours, chacha20-poly1305: one large file.",
        cipher: Some("chacha20-poly1305@openssh.com"),
        asked: &[Asked::Times(1.6, "scp")],
        ..SERVED
    },
    Scenario {
        name: "serve-none",
        about: "One connection to a server of ours, neither cipher nor MAC behind the login, beside \
                HPN-SSH's NONE and our own default: one large file.",
        plain: true,
        asked: &[
            Asked::Times(1.15, "longhaul to serve, encrypted"),
            Asked::Times(1.0, "hpnscp to hpnsshd"),
        ],
        ..SERVED
    },
    Scenario {
        name: "serve-none-inplace",
        about: "The same over a file that stands there already: what memory costs that nobody has \
                touched, as much on some guests as all else together, is not in it.",
        content: Content::Changed {
            size: 2 << 30,
            places: 100,
        },
        ways: DOWN,
        held: &[
            "--connections",
            "1",
            "--channels",
            "1",
            "--inplace",
            "--no-delta",
        ],
        among: &["longhaul to serve", "longhaul to serve, encrypted"],
        plain: true,
        asked: &[Asked::Times(1.15, "longhaul to serve, encrypted")],
        ..SERVED
    },
    Scenario {
        name: "serve-transatlantic",
        about: "1 Gbit/s at 114 ms, tuned TCP buffers, one connection to a server of ours: one \
                large file.",
        content: Content::File(4 << 30),
        held: ONE,
        limit: 300.0,
        served: true,
        ours: "longhaul to serve",
        asked: &[Asked::LastHalf(108.0)],
        ..TUNED
    },
    Scenario {
        name: "serve-transatlantic-scp",
        about: "1 Gbit/s at 114 ms, tuned TCP buffers: OpenSSH's scp to a server of ours, beside \
                sshd.",
        // Login and slow start take three seconds with either tool.
        content: Content::File(2 << 30),
        limit: 300.0,
        ways: UP,
        served: true,
        ours: "scp to serve",
        asked: &[Asked::Times(5.0, "scp")],
        ..TUNED
    },
    Scenario {
        name: "loopback-small",
        about: "No path at all: many small files.",
        content: Content::Small {
            files: 10_000,
            size: 4096,
        },
        measure: ScenarioMetric::Files,
        quick: Quick::Share(1.0),
        asked: &[Asked::Times(1.0, "rsync")],
        ..PLAIN
    },
    Scenario {
        name: "loopback-million",
        about: "A million files: memory must not grow with the tree.",
        content: Content::Small {
            files: 1_000_000,
            size: 64,
        },
        measure: ScenarioMetric::Files,
        limit: 600.0,
        asked: &[Asked::Memory(150.0)],
        ..PLAIN
    },
    Scenario {
        name: "policed-uplink",
        about: "120 Mbit/s at 10 ms, where CS1 is held to 10 Mbit/s: packets not marked.",
        ..POLICED
    },
    Scenario {
        name: "policed-uplink-cs1",
        about: "The same with packets marked CS1, as OpenSSH does by default since 7.8.",
        dscp: Some("cs1"),
        ..POLICED
    },
    Scenario {
        name: "loss-cubic",
        swept: true,
        about: "1 Gbit/s at 100 ms, one packet in a hundred lost, and no congestion control but \
                CUBIC.",
        // Root may use BBR even if the kernel permits it to nobody else.
        held: &["--congestion", "cubic"],
        quick: Quick::Up(0.25),
        asked: &[Asked::Times(8.0, "scp"), Asked::Times(1.15, "mscp -n 16")],
        ..LOSSY
    },
    Scenario {
        name: "loss-bbr-permitted",
        swept: true,
        about: "The same, where BBR is permitted though not the default; iperf3 uses it.",
        lab: BBR_PERMITTED,
        content: Content::File(1 << 30),
        reference_cc: Some("bbr"),
        asked: &[Asked::Times(0.8, "iperf3 -P 8")],
        // The far side sends, and longhaul cannot choose its congestion control.
        asked_down: Some(&[]),
        ..LOSSY
    },
    Scenario {
        name: "loss-bbr",
        about: "The same, where BBR is the default of both ends.",
        lab: &[
            "--rtt", "100ms", "--rate", "1Gbit", "--loss", "1%", "--cc", "bbr",
        ],
        content: Content::File(256 << 20),
        asked: &[Asked::Best],
        ..LOSSY
    },
    Scenario {
        name: "limit",
        about: "1 Gbit/s at 10 ms, and --limit 20MB: the rate that was set, with as many \
                connections as there come to be.",
        lab: &["--rtt", "10ms", "--rate", "1Gbit", "--cc", "cubic"],
        rtt: Some(0.010),
        content: Content::File(300_000_000),
        held: &["--limit", "20MB"],
        among: &["longhaul"],
        asked: &[Asked::Within3(20.0)],
        ..PLAIN
    },
    Scenario {
        name: "limit-lanes",
        about: "The same at 114 ms, with four connections of two channels each.",
        content: Content::File(300_000_000),
        held: &["--limit", "20MB", "--connections", "4", "--channels", "2"],
        among: &["longhaul"],
        asked: &[Asked::Within3(20.0)],
        ..TRANSATLANTIC
    },
    Scenario {
        name: "satellite",
        swept: true,
        about: "300 Mbit/s at 600 ms: one large file.",
        lab: &["--path", "satellite", "--cc", "cubic"],
        rtt: Some(0.600),
        limit: 180.0,
        asked: &[Asked::Rate(22.5), Asked::LastHalf(28.1), Asked::Best],
        ..PLAIN
    },
    Scenario {
        name: "text",
        about: "50 Mbit/s at 40 ms: files of words, not compressed.",
        ..SLOW
    },
    Scenario {
        name: "text-compressed",
        about: "50 Mbit/s at 40 ms: files of words, compressed on the way.",
        compress: true,
        ..SLOW
    },
    Scenario {
        name: "random",
        about: "50 Mbit/s at 40 ms: files that do not compress, not compressed.",
        content: Content::Noise { files: 256 },
        ..SLOW
    },
    Scenario {
        name: "random-compressed",
        about: "50 Mbit/s at 40 ms: files that do not compress, compressed all the same.",
        content: Content::Noise { files: 256 },
        compress: true,
        ..SLOW
    },
];

/// Published reports of problems, and the scenarios that answer them.
const CASES: &[(u32, &str, &[&str], Option<&str>)] = &[
    (
        1,
        "Uploads crawl, downloads fly",
        &[
            "policed-uplink",
            "policed-uplink-cs1",
            "policed-uplink-dial",
            "policed-uplink-wrap",
            "policed-uplink-relay",
        ],
        None,
    ),
    (
        2,
        "A filter slipped into ssh",
        &["transatlantic-file", "policed-uplink-carried"],
        None,
    ),
    (
        3,
        "HPN-SSH: windows that follow the path",
        &["transatlantic-file", "transatlantic-tuned"],
        None,
    ),
    (
        4,
        "Which cipher, and whether to compress",
        &[
            "loopback-file",
            "text",
            "text-compressed",
            "random",
            "random-compressed",
        ],
        None,
    ),
    (
        5,
        "A TLS relay that stalls",
        &[],
        Some("nothing: it is a test (tests/relay/tls.rs) rather than a race"),
    ),
];

/// Returns the cases for the report.
pub(crate) fn cases() -> Vec<PublishedReport> {
    CASES
        .iter()
        .map(|(number, title, scenarios, waits)| PublishedReport {
            number: *number,
            title: (*title).to_owned(),
            scenarios: scenarios.iter().map(|name| (*name).to_owned()).collect(),
            waits_for: waits.map(str::to_owned),
        })
        .collect()
}

impl Scenario {
    /// Returns the name in the report.
    pub(crate) fn name(&self, way: CopyDirection) -> String {
        format!("{}/{way}", self.name)
    }

    /// Describes the task for the tools.
    pub(crate) fn ask(&self, way: CopyDirection) -> Ask {
        Ask {
            way,
            file: self.content.is_file(),
            tiny: self.measure != ScenarioMetric::Rate,
            name: self.content.name(),
            compress: self.compress,
            dscp: self.dscp,
            held: self.held,
            among: self.among,
            path: !self.lab.is_empty(),
            reference_cc: self.reference_cc,
            served: self.served,
            both_ends: self.both_ends,
            dialed: self.dialed,
            wrapped: self.wrapped,
            through: &[],
            cipher: self.cipher,
            plain: self.plain,
        }
    }

    /// Reports if the scenario runs.
    pub(crate) fn chosen(&self, settings: &Settings, way: CopyDirection) -> bool {
        let named = settings.wants_scenario(&self.name(way));
        let either = named.zip(settings.wants_scenario(self.name));
        let by_name = either.map(|(one, other)| one || other);
        by_name.unwrap_or(match (settings.preset, self.quick) {
            (Preset::Full, _) => true,
            (Preset::Sweep, _) => self.swept,
            (Preset::Quick, Quick::Share(_)) => true,
            (Preset::Quick, Quick::Up(_)) => way == CopyDirection::Up,
            (Preset::Quick, Quick::No) => false,
        })
    }

    /// Returns the share of the full content.
    pub(crate) fn share(&self, settings: &Settings) -> f64 {
        match (settings.preset, self.quick) {
            (Preset::Quick, Quick::Share(share) | Quick::Up(share)) => settings.scale * share,
            _ => settings.scale,
        }
    }

    /// Returns the time limit of a run, in seconds.
    pub(crate) fn limit(&self, settings: &Settings) -> f64 {
        settings.limit.unwrap_or(match settings.preset {
            Preset::Full | Preset::Sweep => self.limit,
            Preset::Quick => 12.0,
        })
    }

    /// Returns the requirements on longhaul.
    pub(crate) fn asked(&self, way: CopyDirection, settings: &Settings) -> Vec<Asked> {
        if settings.preset == Preset::Sweep {
            return vec![Asked::OfBest(0.95)];
        }
        let asked = match (way, self.asked_down) {
            (CopyDirection::Down, Some(down)) => down,
            _ => self.asked,
        };
        let full = self.share(settings) == 1.0;
        let applies = |asked: &&Asked| full || !asked.needs_full_size();
        asked.iter().filter(applies).copied().collect()
    }
}

/// Prints the scenarios until the reader closes the output.
pub(crate) fn list() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for scenario in all() {
        let ways: Vec<String> = scenario.ways.iter().map(CopyDirection::to_string).collect();
        let path = if scenario.lab.is_empty() {
            "loopback".to_owned()
        } else {
            format!("lab {}", scenario.lab.join(" "))
        };
        let payload = measure::shown::payload(scenario.content.payload());
        writeln!(out, "{} ({})", scenario.name, ways.join(", "))?;
        writeln!(out, "    {}\n    {payload}; {path}", scenario.about)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_and_bars_name_what_is_there() {
        for (number, _, scenarios, waits) in CASES {
            assert!(!scenarios.is_empty() || waits.is_some(), "case {number}");
            for name in *scenarios {
                assert!(all().any(|scenario| scenario.name == *name), "{name}");
            }
        }
        for scenario in all() {
            for asked in scenario
                .asked
                .iter()
                .chain(scenario.asked_down.unwrap_or_default())
            {
                if let Some(tool) = asked.beside() {
                    assert!(crate::tools::TOOLS.iter().any(|t| t.name == tool), "{tool}");
                }
            }
            let copies = all().filter(|other| other.name == scenario.name);
            assert_eq!(copies.count(), 1, "{}", scenario.name);
            for tool in scenario.among {
                assert!(
                    crate::tools::TOOLS.iter().any(|t| t.name == *tool),
                    "{tool}"
                );
            }
            assert!(scenario.about.ends_with('.'), "{}", scenario.about);
            assert_eq!(scenario.lab.is_empty(), scenario.rtt.is_none());
        }
    }
}
