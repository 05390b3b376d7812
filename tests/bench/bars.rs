//! Requirements on longhaul's figures in the race, and how they are judged.

use std::sync::OnceLock;
use std::time::Duration;

use measure::{GoalResult, Scenario, ScenarioMetric, ToolResult};

use crate::watch::rate_between;

/// Requirement on one of longhaul's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Asked {
    /// Minimum rate in MB/s from start to exit.
    Rate(f64),
    /// Minimum rate in MB/s over the last half.
    LastHalf(f64),
    /// Rate in MB/s that must be met within 3 %, measured between the first and the last hundredth
    /// of the path's bytes, so that login and close are excluded.
    Within3(f64),
    /// Minimum number of files per second.
    Files(f64),
    /// Minimum number of files per second over the last half; all files have one size.
    LastHalfFiles(f64),
    /// Maximum time in seconds from start to exit.
    Seconds(f64),
    /// Maximum CPU seconds per GB on the client's side.
    Cpu(f64),
    /// Maximum share of the CPU seconds of this tool; a ratio, since the speed of processors
    /// differs.
    ShareOfCpu(f64, &'static str),
    /// Maximum share of the CPU seconds of this tool, client and server together.
    ShareOfBothCpu(f64, &'static str),
    /// Maximum memory of the largest process, in MiB.
    Memory(f64),
    /// Maximum number of round trips.
    RoundTrips(f64),
    /// Maximum number of round trips above those of this tool.
    TripsBehind(f64, &'static str),
    /// Maximum 10^6 bytes of packets on the path, both directions together.
    Wire(f64),
    /// Minimum ratio to the figure of this tool.
    Times(f64, &'static str),
    /// Maximum share of the time of this tool.
    ShareOfTime(f64, &'static str),
    /// Minimum share of this tool's rate, after adding to its time per byte the processor time that
    /// AES-GCM takes at both ends.
    AfterCipher(f64, &'static str),
    /// Minimum share of the rate at which no process ever waits: from the processor time per byte
    /// of this tool plus that of AES-GCM. The rate is above the tool's own if it leaves a processor
    /// idle, and files are not included.
    OfProcessors(f64, &'static str),
    /// Better than every other tool.
    Best,
    /// Minimum share of the best fixed setting of a sweep.
    OfBest(f64),
}

impl Asked {
    /// Reports if the requirement concerns a figure that needs full sizes.
    pub(crate) fn needs_full_size(self) -> bool {
        !matches!(
            self,
            Self::Times(..)
                | Self::ShareOfTime(..)
                | Self::ShareOfCpu(..)
                | Self::ShareOfBothCpu(..)
                | Self::AfterCipher(..)
                | Self::OfProcessors(..)
                | Self::Best
                | Self::OfBest(_)
        )
    }

    /// Returns the tool for the comparison.
    #[cfg(test)]
    pub(crate) fn beside(self) -> Option<&'static str> {
        match self {
            Self::Times(_, tool)
            | Self::ShareOfTime(_, tool)
            | Self::ShareOfCpu(_, tool)
            | Self::ShareOfBothCpu(_, tool)
            | Self::AfterCipher(_, tool)
            | Self::OfProcessors(_, tool)
            | Self::TripsBehind(_, tool) => Some(tool),
            _ => None,
        }
    }

    /// Judges the requirement for the tool `ours`.
    pub(crate) fn judged(self, ours: &str, scenario: &Scenario) -> GoalResult {
        let name = ours;
        let ours = scenario.entry(ours);
        let median =
            |entry: Option<&ToolResult>,
             figure: &dyn Fn(&ToolResult) -> Option<measure::RunStatistics>| {
                Some(figure(entry?)?.median)
            };
        let main = |entry: &ToolResult| entry.spread(|sample| sample.figure(scenario.measure));
        let rate = |entry: &ToolResult| entry.spread(|sample| sample.figure(ScenarioMetric::Rate));
        let seconds = |entry: &ToolResult| entry.spread(|sample| sample.seconds);
        let better = |entry: &ToolResult| {
            median(Some(entry), &main).map(|figure| goodness(scenario.measure, figure))
        };
        let (what, bar, measured, at_most) = match self {
            Self::Rate(bar) => (
                "MB/s from start to exit".to_owned(),
                bar,
                median(ours, &rate),
                false,
            ),
            Self::LastHalf(bar) => {
                let half = |entry: &ToolResult| {
                    entry.spread(|sample| sample.last_half_rate.unwrap_or(f64::NAN))
                };
                (
                    "MB/s over the last half".to_owned(),
                    bar,
                    median(ours, &half),
                    false,
                )
            }
            Self::Within3(set) => {
                let off = |entry: &ToolResult| {
                    entry.spread(|sample| {
                        let rate = rate_between(&sample.curve, sample.bytes, 0.01, 0.99);
                        rate.map_or(f64::NAN, |rate| (rate / set - 1.0).abs())
                    })
                };
                (
                    format!("off {set} MB/s, as a share, at most"),
                    0.03,
                    median(ours, &off),
                    true,
                )
            }
            Self::Files(bar) => {
                let files = |entry: &ToolResult| {
                    entry.spread(|sample| sample.figure(ScenarioMetric::Files))
                };
                (
                    "files a second".to_owned(),
                    bar,
                    median(ours, &files),
                    false,
                )
            }
            Self::LastHalfFiles(bar) => {
                let files = |entry: &ToolResult| {
                    entry.spread(|sample| {
                        // All files have one size, so that their number is proportional to the
                        // bytes.
                        let rate = rate_between(&sample.curve, sample.files, 0.5, 0.99);
                        rate.map_or(f64::NAN, |rate| rate * 1e6)
                    })
                };
                (
                    "files a second over the last half".to_owned(),
                    bar,
                    median(ours, &files),
                    false,
                )
            }
            Self::Seconds(bar) => (
                "seconds from start to exit, at most".to_owned(),
                bar,
                median(ours, &seconds),
                true,
            ),
            Self::Cpu(bar) => (
                format!("{} here, at most", scenario.cpu_unit()),
                bar,
                ours.and_then(|entry| Some(scenario.client_cpu(entry)?.median)),
                true,
            ),
            Self::ShareOfCpu(bar, tool) => {
                let cpu = |entry: &ToolResult| Some(scenario.client_cpu(entry)?.median);
                let theirs = scenario.entry(tool).and_then(cpu);
                let measured = ours.and_then(cpu).zip(theirs).map(|(a, b)| a / b);
                (
                    format!("of the CPU time of {tool} here, at most"),
                    bar,
                    measured,
                    true,
                )
            }
            Self::ShareOfBothCpu(bar, tool) => {
                let cpu = |entry: &ToolResult| {
                    let both = |sample: &measure::ScenarioRun| {
                        sample.client_cpu_seconds + sample.server_cpu_seconds.unwrap_or(f64::NAN)
                    };
                    Some(entry.spread(both)?.median)
                };
                let theirs = scenario.entry(tool).and_then(cpu);
                let measured = ours.and_then(cpu).zip(theirs).map(|(a, b)| a / b);
                (
                    format!("of the CPU time of {tool}, both ends, at most"),
                    bar,
                    measured,
                    true,
                )
            }
            Self::Memory(bar) => (
                "MiB of memory, at most".to_owned(),
                bar,
                median(ours, &ToolResult::memory),
                true,
            ),
            Self::RoundTrips(bar) => {
                let trips = |entry: &ToolResult| scenario.trips(entry);
                (
                    "round trips, at most".to_owned(),
                    bar,
                    median(ours, &trips),
                    true,
                )
            }
            Self::TripsBehind(bar, tool) => {
                let trips = |entry: &ToolResult| scenario.trips(entry);
                let theirs = median(scenario.entry(tool), &trips);
                let measured = median(ours, &trips).zip(theirs).map(|(a, b)| a - b);
                (
                    format!("round trips more than {tool}, at most"),
                    bar,
                    measured,
                    true,
                )
            }
            Self::Wire(bar) => {
                let wire = |entry: &ToolResult| {
                    entry.spread(|sample| {
                        let of = |way: &str| sample.path[format!("{way}.offered.bytes")].as_f64();
                        let both = of("near_to_far").zip(of("far_to_near"));
                        both.map_or(f64::NAN, |(up, down)| (up + down) / 1e6)
                    })
                };
                (
                    "MB on the path, at most".to_owned(),
                    bar,
                    median(ours, &wire),
                    true,
                )
            }
            Self::Times(bar, tool) => {
                let theirs = scenario.entry(tool).and_then(better);
                let measured = ours.and_then(better).zip(theirs).map(|(a, b)| a / b);
                (format!("times as fast as {tool}"), bar, measured, false)
            }
            Self::AfterCipher(share, tool) => {
                let theirs = median(scenario.entry(tool), &rate).unwrap_or(f64::NAN);
                let ([seal, open], cores) = (aes_gcm(), cores());
                let left = 1e3 / (1e3 / theirs + (seal + open) / cores);
                let measured = median(ours, &rate).map(|rate| rate / left);
                (
                    format!(
                        "of {left:.0} MB/s, which {tool}'s {theirs:.0} are once {cores} processors have \
                         {seal:.3} s/GB to seal and {open:.3} to open"
                    ),
                    share,
                    measured.filter(|measured| measured.is_finite()),
                    false,
                )
            }
            Self::OfProcessors(share, tool) => {
                let both = |sample: &measure::ScenarioRun| {
                    let server = sample.server_cpu_seconds.unwrap_or(f64::NAN);
                    (sample.client_cpu_seconds + server) / (sample.bytes as f64 / 1e9)
                };
                let moving = median(scenario.entry(tool), &|entry| entry.spread(both));
                let ([seal, open], cores) = (aes_gcm(), cores());
                let moving = moving.unwrap_or(f64::NAN);
                let left = cores * 1e3 / (moving + seal + open);
                let measured = median(ours, &rate).map(|rate| rate / left);
                (
                    format!(
                        "of {left:.0} MB/s, which is {cores} processors that never wait by {moving:.3} s/GB \
                         of {tool}, {seal:.3} to seal and {open:.3} to open"
                    ),
                    share,
                    measured.filter(|measured| measured.is_finite()),
                    false,
                )
            }
            Self::ShareOfTime(bar, tool) => {
                let theirs = median(scenario.entry(tool), &seconds);
                let measured = median(ours, &seconds).zip(theirs).map(|(a, b)| a / b);
                (
                    format!("of the time of {tool}, at most"),
                    bar,
                    measured,
                    true,
                )
            }
            Self::Best | Self::OfBest(_) => {
                let others = scenario
                    .entries
                    .iter()
                    .filter(|entry| entry.tool != name && !entry.tool.starts_with("iperf3"));
                let best = others.filter_map(better).reduce(f64::max);
                let measured = ours.and_then(better).zip(best).map(|(a, b)| a / b);
                let (what, bar) = match self {
                    Self::OfBest(share) => ("of the best fixed setting", share),
                    _ => ("times as fast as the best other tool", 1.0),
                };
                (what.to_owned(), bar, measured, false)
            }
        };
        let met = measured.is_some_and(|value| if at_most { value <= bar } else { value >= bar });
        GoalResult {
            what,
            measured,
            bar,
            met,
        }
    }
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1, usize::from) as f64
}

/// Processor seconds to seal and to open 10^9 bytes of packets with aes128-gcm. The best of several
/// measurements counts, since the figure is the possible speed. Measured once for a race, so that
/// figures shown side by side use the same value.
fn aes_gcm() -> [f64; 2] {
    static MEASURED: OnceLock<[f64; 2]> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let all = transfer::bench::primitives::all();
        ["seal", "open"].map(|what| {
            let cipher = all.iter().find(|primitive| {
                primitive.name() == "aes128-gcm@openssh.com" && primitive.what() == what
            });
            let rates = (0..5).filter_map(|_| Some(cipher?.measure(1, AES_TIME)));
            rates.reduce(f64::max).map_or(f64::NAN, |rate| 1e9 / rate)
        })
    })
}

/// Duration of one measurement of the cipher.
const AES_TIME: Duration = Duration::from_millis(200);

/// Converts a figure so that larger is better.
fn goodness(measure: ScenarioMetric, figure: f64) -> f64 {
    if measure.less_is_better() {
        1.0 / figure
    } else {
        figure
    }
}
