//! What a race measured, as it is kept in results/DATE-race.json. docs/results.md describes it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stats::Spread;

/// The version of the kept form; raised when a member changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// All of one race.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Race {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// The day, as 2026-11-21.
    pub date: String,
    /// `quick` or `full`, and what the environment changed about it.
    pub preset: String,
    /// How many runs each tool was given.
    pub runs: u32,
    /// Sizes and numbers of files were multiplied by this.
    pub scale: f64,
    /// Where it ran.
    pub machine: Machine,
    /// Every tool of the table, the missing ones too.
    pub tools: Vec<Tool>,
    /// Every scenario that ran.
    pub scenarios: Vec<Scenario>,
    /// The round trips of copying a tiny file, counted with a path of two lengths.
    #[serde(default)]
    pub round_trips: Vec<RoundTrips>,
    /// The reports this project answers, and where.
    #[serde(default)]
    pub cases: Vec<Case>,
}

/// What figures depend on, without the machine's name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model, if it has a name.
    pub cpu: Option<String>,
    /// Processors that may be used.
    pub cores: usize,
    /// Name and release.
    pub kernel: String,
    /// Bytes of main memory.
    pub memory_bytes: u64,
    /// The commit that was measured.
    pub commit: String,
}

/// A program of the race.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name in the race.
    pub name: String,
    /// Its version, as it says itself.
    pub version: Option<String>,
    /// Why it did not run.
    pub missing: Option<String>,
}

/// Which way the bytes go, seen from where the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// To the far side.
    Up,
    /// From the far side.
    Down,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// The figure a scenario is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// 10^6 bytes a second from start to exit.
    Rate,
    /// Files a second from start to exit.
    Files,
    /// Seconds from start to exit.
    Seconds,
}

impl Measure {
    /// Whether the smaller figure wins.
    pub fn less_is_better(self) -> bool {
        self == Self::Seconds
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Rate => "MB/s",
            Self::Files => "files/s",
            Self::Seconds => "s",
        }
    }
}

/// One situation and how each tool did in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Its name, with the way at its end: `transatlantic-file/up`.
    pub name: String,
    /// What it is about, in a sentence.
    pub about: String,
    /// `longhaul lab`'s path options; empty on loopback.
    pub path: Vec<String>,
    /// The path's round trip in seconds, where there is one.
    pub rtt_seconds: Option<f64>,
    /// Which way.
    pub way: Way,
    /// What is copied.
    pub payload: Payload,
    /// The figure that counts.
    pub measure: Measure,
    /// When a run is ended, in seconds.
    pub limit_seconds: f64,
    /// The tools, in the table's order.
    pub entries: Vec<Entry>,
    /// What was asked of longhaul here.
    #[serde(default)]
    pub bars: Vec<Bar>,
}

/// One tool in one scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The tool's name.
    pub tool: String,
    /// The command, with placeholders for paths; empty where there is none.
    pub command: Vec<String>,
    /// Why the tool takes no part.
    pub left_out: Option<String>,
    /// Its runs, in order.
    pub samples: Vec<Sample>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Ending {
    /// With exit status 0, and the copy is the original.
    Done,
    /// It was ended when its time was over.
    TimedOut {
        /// Files at the target then, unfinished ones included.
        files: u64,
        /// Bytes in them.
        bytes: u64,
    },
    /// With another status, or without one.
    Failed {
        /// What it said.
        why: String,
    },
    /// With exit status 0, but the copy is not the original.
    Wrong {
        /// The first difference.
        why: String,
    },
}

/// How far it was: seconds since the start, and bytes on the path (headers included) until then.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point(pub f64, pub u64);

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// How it ended.
    pub ending: Ending,
    /// From start to exit.
    pub seconds: f64,
    /// Bytes that count for the rate: the payload's, or what a tool without a payload moved.
    pub bytes: u64,
    /// Files copied.
    pub files: u64,
    /// Processor seconds of the client and all it started.
    pub client_cpu_seconds: f64,
    /// Processor seconds of the server's processes; None where they could not be told apart.
    pub server_cpu_seconds: Option<f64>,
    /// Resident bytes of the largest process on the client's side, at its peak.
    pub peak_memory_bytes: u64,
    /// Bytes over time. Kept of the run in the middle only.
    #[serde(default)]
    pub curve: Vec<Point>,
    /// 10^6 bytes of the payload a second over the last half of them, from the curve.
    pub last_half_rate: Option<f64>,
    /// The figures of the path, as the lab gives them.
    #[serde(default)]
    pub path: Value,
}

/// What was asked, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// In words.
    pub what: String,
    /// The measured figure; None if it could not be measured.
    pub measured: Option<f64>,
    /// The figure asked for.
    pub bar: f64,
    /// Whether it was met.
    pub met: bool,
}

impl Bar {
    /// In a word or two.
    pub fn shown(&self) -> &'static str {
        match (self.measured, self.met) {
            (None, _) => "not measured",
            (Some(_), true) => "met",
            (Some(_), false) => "missed",
        }
    }
}

/// Round trips of one tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// The tool's name.
    pub tool: String,
    /// What the client knew before.
    pub when: String,
    /// How many.
    pub number: f64,
}

/// A published report that this project answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Its number in the list of cases.
    pub number: u32,
    /// What it is about.
    pub title: String,
    /// The scenarios that show it.
    pub scenarios: Vec<String>,
    /// What it still waits for.
    pub waits_for: Option<String>,
}

impl Sample {
    /// Whether it counts.
    pub fn done(&self) -> bool {
        self.ending == Ending::Done
    }

    /// The figure a scenario is about.
    pub fn figure(&self, measure: Measure) -> f64 {
        match measure {
            Measure::Rate => self.bytes as f64 / 1e6 / self.seconds,
            Measure::Files => self.files as f64 / self.seconds,
            Measure::Seconds => self.seconds,
        }
    }
}

impl Entry {
    /// The runs that count.
    pub fn done(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| sample.done())
    }

    /// Median and spread of a figure over the runs that count; None unless all of them do.
    pub fn spread(&self, figure: impl Fn(&Sample) -> f64) -> Option<Spread> {
        if self.trouble().is_some() {
            return None;
        }
        Spread::of(self.done().map(figure))
    }

    /// The first run that does not count.
    pub fn trouble(&self) -> Option<&Sample> {
        self.samples.iter().find(|sample| !sample.done())
    }

    /// The run in the middle, by its time.
    pub fn middle(&self) -> Option<&Sample> {
        let mut samples: Vec<&Sample> = self.done().collect();
        samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        samples.get(samples.len() / 2).copied()
    }

    /// Peak memory in 2^20 bytes.
    pub fn memory(&self) -> Option<Spread> {
        self.spread(|sample| sample.peak_memory_bytes as f64 / f64::from(1 << 20))
    }
}

impl Scenario {
    /// A tool's entry.
    pub fn entry(&self, tool: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.tool == tool)
    }

    /// The round trips a tool's whole run took, for what is too small to be about rate.
    pub fn trips(&self, entry: &Entry) -> Option<Spread> {
        let rtt = self.rtt_seconds.filter(|_| self.payload.bytes <= 4096)?;
        (self.payload.files == 1).then_some(())?;
        entry.spread(|sample| sample.seconds / rtt)
    }

    /// Whether there are enough bytes for processor time to be about them: else it is about
    /// connecting, or about files, and is shown as it is.
    pub fn cpu_per_gb(&self) -> bool {
        self.payload.bytes >= 50_000_000
    }

    /// The unit of [`Self::client_cpu`] and [`Self::server_cpu`].
    pub fn cpu_unit(&self) -> &'static str {
        if self.cpu_per_gb() {
            "CPU s/GB"
        } else {
            "CPU s"
        }
    }

    /// Client processor seconds, for 10^9 bytes where there are enough.
    pub fn client_cpu(&self, entry: &Entry) -> Option<Spread> {
        entry.spread(|sample| self.cpu(sample, sample.client_cpu_seconds))
    }

    /// Server processor seconds, likewise.
    pub fn server_cpu(&self, entry: &Entry) -> Option<Spread> {
        entry.spread(|sample| self.cpu(sample, sample.server_cpu_seconds.unwrap_or(f64::NAN)))
    }

    fn cpu(&self, sample: &Sample, seconds: f64) -> f64 {
        if self.cpu_per_gb() {
            return seconds / (sample.bytes as f64 / 1e9);
        }
        seconds
    }

    /// Keeps one curve and one path's figures for each tool: the middle run's, or else the last's.
    pub fn thin(&mut self) {
        for entry in &mut self.entries {
            let middle = entry.middle().map(|sample| sample.seconds);
            let last = entry.samples.len().saturating_sub(1);
            let mut kept = false;
            for (number, sample) in entry.samples.iter_mut().enumerate() {
                let this = middle.map_or(number == last, |middle| sample.seconds == middle);
                if kept || !this {
                    sample.curve.clear();
                    sample.path = Value::Null;
                }
                kept |= this;
            }
        }
    }
}

impl Race {
    /// A scenario by its name.
    pub fn scenario(&self, name: &str) -> Option<&Scenario> {
        self.scenarios.iter().find(|scenario| scenario.name == name)
    }
}
