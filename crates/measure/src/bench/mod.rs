//! Data of `longhaul bench`: ciphers, compression and lanes between two hosts, and the primitives
//! of one machine. Runs go in; intervals, advice, tables and pages come out.

pub mod advice;
pub mod compare;
pub mod csv;
pub mod interval;
pub mod machine;
pub mod matrix;
pub mod page;
pub mod planner;
pub mod text;

use std::fmt;

use serde::{Deserialize, Serialize};

use self::interval::{ConfidenceInterval, USUAL};
use crate::result::{CopyDirection, MachineProperties};
use crate::stats::RunStatistics;

/// Version of the stored form, raised when a member changes its meaning or is removed.
pub const SCHEMA: u32 = 1;
/// Identifies results of this program.
pub const KIND: &str = "longhaul bench";
/// A figure is precise enough if the half width of its interval is at most this share.
pub const NARROW: f64 = 0.02;
/// Half width of an interval, as a share, above which a warning is given.
const NOISY: f64 = 0.10;

/// Result of one `longhaul bench`, which is stored as JSON and shown as text or page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    /// Always [`KIND`].
    pub kind: String,
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// Time of the measurement, as 2026-11-21T10:00:00Z.
    pub date: String,
    /// Version of longhaul.
    pub software: String,
    /// The machine at this end.
    pub machine: MachineProperties,
    /// The machine at the other end; `None` with `--local`.
    pub host: Option<BenchHost>,
    /// Duration.
    pub seconds: f64,
    /// Time limit.
    pub limit_seconds: f64,
    /// Measurements of this machine alone.
    #[serde(default)]
    pub primitives: Vec<PrimitiveResult>,
    /// Measurements between the two ends.
    #[serde(default)]
    pub rows: Vec<BenchRow>,
    /// Number of settings that were not measured for lack of time.
    #[serde(default)]
    pub not_reached: usize,
    /// Algorithms that the other end offers and that were not measured.
    #[serde(default)]
    pub named: Vec<UnmeasuredAlgorithm>,
    /// Compression ratios of each kind of data.
    #[serde(default)]
    pub ratios: Vec<CompressionRatio>,
    /// Recommendations.
    #[serde(default)]
    pub advice: Vec<advice::BenchAdvice>,
    /// Doubts about the figures, and files that may remain at the other end.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The reason for an early end; `None` for a complete measurement.
    pub partial: Option<String>,
}

/// Facts about the host at the other end of a benchmark, and about the files used there and here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchHost {
    /// The host as the user named it.
    pub name: String,
    /// SSH identification string of the server.
    pub banner: String,
    /// Version of the longhaul that served there, if one did.
    pub longhaul: Option<String>,
    /// Description of the files in memory at this end.
    pub near_memory: String,
    /// Description of the files in memory at the other end.
    pub far_memory: String,
    /// The folders of files on disk, at this end and at the other.
    pub disk: Option<(String, String)>,
    /// Source of the other end's processor times, or the reason why they are unknown.
    pub far_cpu: String,
}

/// Compression on the way that a setting uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BenchCompression {
    /// No compression.
    None,
    /// SSH's own, zlib@openssh.com.
    Zlib,
    /// longhaul's own, with a longhaul at both ends.
    Zstd,
}

/// The kind of data that is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BenchData {
    /// Incompressible random bytes.
    Random,
    /// English words.
    Text,
    /// English words, compressed by gzip.
    Gzipped,
    /// The user's own file.
    File,
}

/// Storage of the files that a setting copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageKind {
    /// In memory at both ends, if possible.
    Memory,
    /// On disk at both ends.
    Disk,
}

macro_rules! names {
    ($type:ty { $($variant:ident = $name:literal),* $(,)? }) => {
        impl $type {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name for people.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

names!(BenchCompression { None = "none", Zlib = "zlib", Zstd = "zstd" });
names!(BenchData { Random = "random", Text = "text", Gzipped = "gzipped", File = "file" });
names!(StorageKind { Memory = "memory", Disk = "disk" });

/// One combination of algorithms, data, direction and lanes that `longhaul bench` measures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchSetting {
    /// Name in SSH.
    pub cipher: String,
    /// Name in SSH; `None` if the cipher needs no MAC.
    pub mac: Option<String>,
    /// The compression.
    pub compression: BenchCompression,
    /// The kind of data.
    pub data: BenchData,
    /// The direction.
    pub way: CopyDirection,
    /// The place of the files.
    pub place: StorageKind,
    /// Number of connections.
    pub connections: u32,
    /// Channels on each connection.
    pub channels: u32,
    /// The other end is served by a longhaul that its SSH server starts.
    pub both_ours: bool,
    /// OpenSSH's ssh is the transport, since longhaul lacks the algorithm.
    #[serde(default)]
    pub carried: bool,
}

impl BenchSetting {
    /// Names of cipher and MAC.
    pub fn protection(&self) -> String {
        match &self.mac {
            Some(mac) => format!("{} {mac}", self.cipher),
            None => self.cipher.clone(),
        }
    }

    /// Connections and channels on each, as `2x1`.
    pub fn lanes(&self) -> String {
        format!("{}x{}", self.connections, self.channels)
    }
}

/// A setting with the measurements of all its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// The setting.
    pub setting: BenchSetting,
    /// The runs in order; the first is the warm-up.
    pub runs: Vec<BenchRun>,
    /// The reason why it could not be measured.
    pub trouble: Option<String>,
}

/// Measurements of one copy with the setting of its row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BenchRun {
    /// Start of the run, in seconds since the first.
    pub at: f64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Seconds from connecting to the end.
    pub seconds: f64,
    /// Bytes a second in the steady part: after the first fifth, without the login.
    pub rate: f64,
    /// Processor seconds of this process for 10^9 bytes, in the steady part.
    pub near_cpu: f64,
    /// Processor seconds of the other end for this run, without those of a login; `None` if
    /// unknown.
    pub far_cpu_seconds: Option<f64>,
}

impl BenchRow {
    /// The runs that count: all but the warm-up, unless that is the only one.
    pub fn counted(&self) -> &[BenchRun] {
        match self.runs.as_slice() {
            [_, rest @ ..] if !rest.is_empty() => rest,
            all => all,
        }
    }

    /// Returns true if there is no run but the warm-up.
    pub fn is_cold(&self) -> bool {
        self.runs.len() == 1
    }

    /// Interval of the rate, in bytes a second.
    pub fn rate(&self) -> Option<ConfidenceInterval> {
        ConfidenceInterval::of(self.counted().iter().map(|run| run.rate), USUAL)
    }

    /// Processor seconds for 10^9 bytes at this end, as a median.
    pub fn near_cpu(&self) -> Option<f64> {
        RunStatistics::of(self.counted().iter().map(|run| run.near_cpu)).map(|spread| spread.median)
    }

    /// Processor seconds for 10^9 bytes at the other end, over all runs together, since the kernel
    /// there counts in hundredths of a second.
    pub fn far_cpu(&self) -> Option<f64> {
        let known = |run: &BenchRun| run.far_cpu_seconds.map(|cpu| (cpu, run.bytes as f64));
        let runs: Vec<(f64, f64)> = self.counted().iter().filter_map(known).collect();
        let bytes: f64 = runs.iter().map(|(_, bytes)| bytes).sum();
        let seconds: f64 = runs.iter().map(|(cpu, _)| cpu).sum();
        (bytes > 0.0).then(|| (seconds / (bytes / 1e9)).max(0.0))
    }
}

/// Rates of one cipher, compression or hash in this process alone, without a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrimitiveResult {
    /// `cipher`, `compression` or `hash`.
    pub kind: String,
    /// Name in SSH, with that of the MAC.
    pub name: String,
    /// `seal`, `open`, `text`, `gzipped`, `random`.
    pub what: String,
    /// Number of threads that ran at once.
    pub threads: usize,
    /// Bytes a second of all threads together, for each run.
    pub rates: Vec<f64>,
}

impl PrimitiveResult {
    /// Interval of the rate, in bytes a second.
    pub fn rate(&self) -> Option<ConfidenceInterval> {
        ConfidenceInterval::of(self.rates.iter().copied(), USUAL)
    }
}

/// Algorithm that the other end offers and that no setting used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmeasuredAlgorithm {
    /// `cipher` or `MAC`.
    pub what: String,
    /// Name in SSH.
    pub name: String,
    /// The algorithm is broken or outdated.
    pub weak: bool,
}

/// The effect of a compression on a kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CompressionRatio {
    /// The kind of data.
    pub data: BenchData,
    /// The compression.
    pub compression: BenchCompression,
    /// Compressed size by original size.
    pub ratio: f64,
}

impl BenchResult {
    /// Adds warnings about the precision of the figures.
    pub fn judge(&mut self) {
        let mut noisy: Vec<(f64, String)> = self
            .rows
            .iter()
            .filter_map(|row| {
                let rate = row.rate().filter(|rate| rate.count >= 3)?;
                let wide = rate.half_width();
                (wide > NOISY).then(|| (wide, text::name(&row.setting)))
            })
            .collect();
        noisy.sort_by(|a, b| b.0.total_cmp(&a.0));
        if let Some((wide, name)) = noisy.first() {
            self.warnings.push(format!(
                "{} of {} figures are uncertain by more than {:.0} % (width of their 95 % \
                 confidence interval), most of all {name} with {:.0} %: use a longer --time",
                noisy.len(),
                self.rows.len(),
                NOISY * 100.0,
                wide * 100.0
            ));
        }
        if let Some(fell) = self.significant_drop().filter(|fell| *fell > 0.05) {
            self.warnings.push(format!(
                "the last runs were {:.0} % slower than the first: a machine at one end was \
                 throttled or ran other programs, or the path became busier; repeat the \
                 measurement when both are idle",
                fell * 100.0
            ));
        }
        let cold = self.rows.iter().filter(|row| row.is_cold()).count();
        if cold > 0 {
            self.warnings.push(format!(
                "{cold} of the settings ran only once, so their figures are uncertain: use a \
                 longer --time"
            ));
        }
    }

    /// The slowdown during the whole measurement, from each run's rate relative to the median of
    /// its row.
    fn significant_drop(&self) -> Option<f64> {
        let mut all: Vec<(f64, f64)> = Vec::new();
        for row in &self.rows {
            let Some(rate) = row.rate().filter(|rate| rate.count >= 3) else {
                continue;
            };
            all.extend(
                row.counted()
                    .iter()
                    .map(|run| (run.at, run.rate / rate.median)),
            );
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let values: Vec<f64> = all.into_iter().map(|(_, value)| value).collect();
        interval::significant_drop(&values)
    }

    /// The row of a setting.
    pub fn row(&self, setting: &BenchSetting) -> Option<&BenchRow> {
        self.rows.iter().find(|row| row.setting == *setting)
    }

    /// Compressed size by original size, if known.
    pub fn ratio(&self, data: BenchData, compression: BenchCompression) -> Option<f64> {
        let is = |r: &&CompressionRatio| r.data == data && r.compression == compression;
        self.ratios.iter().find(is).map(|r| r.ratio)
    }
}

/// Reason why a text is no stored result that this version can read, without the file's name.
#[derive(Debug)]
pub enum BenchReadError {
    /// The text is not JSON.
    NotJson(serde_json::Error),
    /// The JSON is of another command or another program.
    NotBench,
    /// The schema is newer than this version.
    Newer,
    /// A value is missing or has the wrong type.
    Damaged(serde_json::Error),
}

impl fmt::Display for BenchReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(error) => write!(f, "is not JSON: {error}"),
            Self::NotBench => f.write_str("is not a result of longhaul bench --json"),
            Self::Newer => f.write_str("was written by a newer longhaul: upgrade this one"),
            Self::Damaged(error) => write!(f, "is damaged: {error}"),
        }
    }
}

impl std::error::Error for BenchReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotJson(error) | Self::Damaged(error) => Some(error),
            Self::NotBench | Self::Newer => None,
        }
    }
}

/// Reads a stored result.
///
/// # Errors
/// The reason why this is no such result, without the file's name.
pub fn read(text: &str) -> Result<BenchResult, BenchReadError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(BenchReadError::NotJson)?;
    if value.get("kind").and_then(serde_json::Value::as_str) != Some(KIND) {
        return Err(BenchReadError::NotBench);
    }
    let schema = value.get("schema").and_then(serde_json::Value::as_u64);
    if schema.is_none_or(|schema| schema > u64::from(SCHEMA)) {
        return Err(BenchReadError::Newer);
    }
    serde_json::from_value(value).map_err(BenchReadError::Damaged)
}

#[cfg(test)]
mod tests;
