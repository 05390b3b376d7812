//! The result of a race, as stored in results/DATE-race.json and described in docs/results.md.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stats::RunStatistics;

/// Version of the stored form, raised when a member changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// Result of one race by `make bench`: the machine, the tools, and the runs of every scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramComparisonResult {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// Date, as 2026-11-21.
    pub date: String,
    /// `quick` or `full`, with the changes made by environment variables.
    pub preset: String,
    /// Number of runs of each tool.
    pub runs: u32,
    /// Factor that sizes and numbers of files were multiplied by.
    pub scale: f64,
    /// The machine it ran on.
    pub machine: MachineProperties,
    /// Every tool of the table, including missing ones.
    pub tools: Vec<BenchmarkProgram>,
    /// Every scenario that ran.
    pub scenarios: Vec<Scenario>,
    /// Round trips of copying a tiny file, measured with two lengths of the path.
    #[serde(default)]
    pub round_trips: Vec<ToolRoundTrips>,
    /// The published reports that this project answers, with their scenarios.
    #[serde(default)]
    pub cases: Vec<PublishedReport>,
}

/// The properties of a machine that figures depend on, without its name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MachineProperties {
    /// The processor's model, if known.
    pub cpu: Option<String>,
    /// Number of usable processors.
    pub cores: usize,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// The commit that was measured.
    pub commit: String,
}

/// Program that is compared in a benchmark, or the reason why this machine cannot run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchmarkProgram {
    /// Name in the race.
    pub name: String,
    /// Version, as the tool reports it.
    pub version: Option<String>,
    /// The reason why the tool did not run.
    pub missing: Option<String>,
}

/// The direction of a copy, seen from the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyDirection {
    /// To the far side.
    Up,
    /// From the far side.
    Down,
}

impl std::fmt::Display for CopyDirection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}

/// Size of the data that every tool copies in a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadSize {
    /// Number of files.
    pub files: u64,
    /// Bytes in all files.
    pub bytes: u64,
}

/// Figure by which a scenario compares its tools, computed from each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScenarioMetric {
    /// 10^6 bytes a second from start to exit.
    Rate,
    /// Files a second from start to exit.
    Files,
    /// Seconds from start to exit.
    Seconds,
}

impl ScenarioMetric {
    /// Returns true if smaller figures are better.
    pub fn less_is_better(self) -> bool {
        self == Self::Seconds
    }

    /// The unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Rate => "MB/s",
            Self::Files => "files/s",
            Self::Seconds => "s",
        }
    }
}

/// One scenario with the results of each tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Name, with the direction at the end: `transatlantic-file/up`.
    pub name: String,
    /// Description in one sentence.
    pub about: String,
    /// Path options of `longhaul lab`; empty on loopback.
    pub path: Vec<String>,
    /// Round trip of the path in seconds, if there is one.
    pub rtt_seconds: Option<f64>,
    /// The direction.
    pub way: CopyDirection,
    /// The copied data.
    pub payload: PayloadSize,
    /// The figure to compare.
    pub measure: ScenarioMetric,
    /// Time limit of a run, in seconds.
    pub limit_seconds: f64,
    /// The tools, in the table's order.
    pub entries: Vec<ToolResult>,
    /// The goals for longhaul in this scenario.
    #[serde(default)]
    pub bars: Vec<GoalResult>,
}

/// Runs of one tool in one scenario, or the reason why there are none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The tool's name.
    pub tool: String,
    /// The command, with placeholders for paths; empty if there is none.
    pub command: Vec<String>,
    /// The reason for leaving the tool out.
    pub left_out: Option<String>,
    /// The runs in order.
    pub samples: Vec<ScenarioRun>,
}

/// End of one run, judged by exit status and by comparing the copy with the original.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum RunOutcome {
    /// Exit status 0, and the copy equals the original.
    Done,
    /// The run was ended at its time limit.
    TimedOut {
        /// Files at the target by then, including unfinished ones.
        files: u64,
        /// Bytes in these files.
        bytes: u64,
    },
    /// Another exit status, or a signal.
    Failed {
        /// The tool's message.
        why: String,
    },
    /// Exit status 0, but the copy differs from the original.
    Wrong {
        /// The first difference.
        why: String,
    },
}

/// Progress of a run: seconds since the start, and bytes on the path by then, including headers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProgressPoint(pub f64, pub u64);

/// Measurements of one run of a tool in a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioRun {
    /// The end of the run.
    pub ending: RunOutcome,
    /// Seconds from start to exit.
    pub seconds: f64,
    /// Bytes that count for the rate: those of the payload, or those moved by a tool without a
    /// payload.
    pub bytes: u64,
    /// Number of files copied.
    pub files: u64,
    /// Processor seconds of the client and its child processes.
    pub client_cpu_seconds: f64,
    /// Processor seconds of the server's processes; `None` if they could not be identified.
    pub server_cpu_seconds: Option<f64>,
    /// Peak resident memory of the largest process on the client's side, in bytes.
    pub peak_memory_bytes: u64,
    /// Progress over time, kept for the middle run only.
    #[serde(default)]
    pub curve: Vec<ProgressPoint>,
    /// 10^6 bytes of the payload a second in the last half of the bytes, from the curve.
    pub last_half_rate: Option<f64>,
    /// The lab's figures of the path.
    #[serde(default)]
    pub path: Value,
}

/// Goal for longhaul in a scenario, with the figure that decides if it was met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GoalResult {
    /// The goal in words.
    pub what: String,
    /// The measured figure; `None` if there is none.
    pub measured: Option<f64>,
    /// The required figure.
    pub bar: f64,
    /// The goal was met.
    pub met: bool,
}

impl GoalResult {
    /// The outcome in a word or two.
    pub fn shown(&self) -> &'static str {
        match (self.measured, self.met) {
            (None, _) => "not measured",
            (Some(_), true) => "met",
            (Some(_), false) => "missed",
        }
    }
}

/// Number of round trips in which one tool copies a tiny file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolRoundTrips {
    /// The tool's name.
    pub tool: String,
    /// State of the client before: the things that it already knew.
    pub when: String,
    /// Number of round trips.
    pub number: f64,
}

/// A published report, with the scenarios that reproduce its subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedReport {
    /// Number in the list of cases.
    pub number: u32,
    /// Subject of the report.
    pub title: String,
    /// The scenarios that reproduce it.
    pub scenarios: Vec<String>,
    /// The missing part, if it is not answered yet.
    pub waits_for: Option<String>,
}

impl ScenarioRun {
    /// Returns true if the run counts.
    pub fn done(&self) -> bool {
        self.ending == RunOutcome::Done
    }

    /// The run's value of the figure.
    pub fn figure(&self, measure: ScenarioMetric) -> f64 {
        match measure {
            ScenarioMetric::Rate => self.bytes as f64 / 1e6 / self.seconds,
            ScenarioMetric::Files => self.files as f64 / self.seconds,
            ScenarioMetric::Seconds => self.seconds,
        }
    }
}

impl ToolResult {
    /// The runs that count.
    pub fn done(&self) -> impl Iterator<Item = &ScenarioRun> {
        self.samples.iter().filter(|sample| sample.done())
    }

    /// Median and spread of a figure over the runs; `None` unless all of them count.
    pub fn spread(&self, figure: impl Fn(&ScenarioRun) -> f64) -> Option<RunStatistics> {
        if self.trouble().is_some() {
            return None;
        }
        RunStatistics::of(self.done().map(figure))
    }

    /// The first run that does not count.
    pub fn trouble(&self) -> Option<&ScenarioRun> {
        self.samples.iter().find(|sample| !sample.done())
    }

    /// The run with the median time.
    pub fn middle(&self) -> Option<&ScenarioRun> {
        let mut samples: Vec<&ScenarioRun> = self.done().collect();
        samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        samples.get(samples.len() / 2).copied()
    }

    /// Peak memory in MiB.
    pub fn memory(&self) -> Option<RunStatistics> {
        self.spread(|sample| sample.peak_memory_bytes as f64 / f64::from(1 << 20))
    }
}

impl Scenario {
    /// The entry of a tool.
    pub fn entry(&self, tool: &str) -> Option<&ToolResult> {
        self.entries.iter().find(|entry| entry.tool == tool)
    }

    /// Duration in round trips, for a single file too small to show a rate.
    pub fn trips(&self, entry: &ToolResult) -> Option<RunStatistics> {
        let rtt = self.rtt_seconds.filter(|_| self.payload.bytes <= 4096)?;
        (self.payload.files == 1).then_some(())?;
        entry.spread(|sample| sample.seconds / rtt)
    }

    /// Returns true if there are enough bytes to state processor time for each 10^9 bytes. With
    /// fewer, connecting or opening files dominates, and the time is shown as it is.
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

    /// Client processor seconds, for 10^9 bytes if [`Self::cpu_per_gb`] holds.
    pub fn client_cpu(&self, entry: &ToolResult) -> Option<RunStatistics> {
        entry.spread(|sample| self.cpu(sample, sample.client_cpu_seconds))
    }

    /// Server processor seconds, for 10^9 bytes if [`Self::cpu_per_gb`] holds.
    pub fn server_cpu(&self, entry: &ToolResult) -> Option<RunStatistics> {
        entry.spread(|sample| self.cpu(sample, sample.server_cpu_seconds.unwrap_or(f64::NAN)))
    }

    fn cpu(&self, sample: &ScenarioRun, seconds: f64) -> f64 {
        if self.cpu_per_gb() {
            return seconds / (sample.bytes as f64 / 1e9);
        }
        seconds
    }

    /// Keeps one curve and one set of path figures for each tool: those of the middle run, or else
    /// of the last.
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

impl ProgramComparisonResult {
    /// The scenario with this name.
    pub fn scenario(&self, name: &str) -> Option<&Scenario> {
        self.scenarios.iter().find(|scenario| scenario.name == name)
    }
}
