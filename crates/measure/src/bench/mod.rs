//! What `longhaul bench` measures: ciphers, compression and lanes between two hosts, and the
//! primitives of one machine. All of it is data: runs go in, and intervals, advice, tables and pages
//! come out.

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

use self::interval::{Interval, USUAL};
use crate::result::{Machine, Way};
use crate::stats::Spread;

/// The version of the kept form; raised when a member changes its meaning or goes.
pub const SCHEMA: u32 = 1;
/// What tells a result from those of other programs.
pub const KIND: &str = "longhaul bench";
/// A figure is narrow enough when its interval lies within this share on both sides.
pub const NARROW: f64 = 0.02;
/// An interval wider than this on one side is worth a warning.
const NOISY: f64 = 0.10;

/// All of one run of `longhaul bench`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// [`KIND`].
    pub kind: String,
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// When, as 2026-11-21T10:00:00Z.
    pub date: String,
    /// The version of longhaul.
    pub software: String,
    /// This end.
    pub machine: Machine,
    /// The other end; None with `--local`.
    pub host: Option<Host>,
    /// How long it took.
    pub seconds: f64,
    /// How long it was to take.
    pub limit_seconds: f64,
    /// Of this machine alone.
    #[serde(default)]
    pub primitives: Vec<Primitive>,
    /// Between the two ends.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// Settings that there was no time for.
    #[serde(default)]
    pub not_reached: usize,
    /// Algorithms that the other end offers and that were not measured.
    #[serde(default)]
    pub named: Vec<Named>,
    /// How much smaller compression makes each kind of data.
    #[serde(default)]
    pub ratios: Vec<Ratio>,
    /// What to use.
    #[serde(default)]
    pub advice: Vec<advice::Advice>,
    /// What makes the figures worth less, and what may be left at the other end.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why it ended before its time; None if it did not.
    pub partial: Option<String>,
}

/// The other end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// As the user named it.
    pub name: String,
    /// Its identification.
    pub banner: String,
    /// The version of the longhaul there, where one served.
    pub longhaul: Option<String>,
    /// What "memory" was at this end.
    pub near_memory: String,
    /// What "memory" was at the other.
    pub far_memory: String,
    /// Where files lay for "disk", at this end and at the other.
    pub disk: Option<(String, String)>,
    /// Where processor time of the other end comes from, or why it is not known.
    pub far_cpu: String,
}

/// What compresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Nothing.
    None,
    /// SSH's own, zlib@openssh.com.
    Zlib,
    /// longhaul's, where it is at both ends.
    Zstd,
}

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// What nothing makes smaller.
    Random,
    /// English words.
    Text,
    /// The same words, behind gzip.
    Gzipped,
    /// The user's own file.
    File,
}

/// Where files lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In memory at both ends, as far as that can be had.
    Memory,
    /// On disk at both ends.
    Disk,
}

macro_rules! names {
    ($type:ty { $($variant:ident = $name:literal),* $(,)? }) => {
        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// As people write it.
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

names!(Compression { None = "none", Zlib = "zlib", Zstd = "zstd" });
names!(Data { Random = "random", Text = "text", Gzipped = "gzipped", File = "file" });
names!(Place { Memory = "memory", Disk = "disk" });

/// One way to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// SSH's name.
    pub cipher: String,
    /// SSH's name; None where the cipher has its own.
    pub mac: Option<String>,
    /// What compresses.
    pub compression: Compression,
    /// What is sent.
    pub data: Data,
    /// Which way.
    pub way: Way,
    /// Where files lie.
    pub place: Place,
    /// Connections.
    pub connections: u32,
    /// Channels on each.
    pub channels: u32,
    /// A longhaul serves at the other end, started by its SSH server.
    pub both_ours: bool,
    /// OpenSSH's ssh carried it, since longhaul does not have the algorithm.
    #[serde(default)]
    pub carried: bool,
}

impl Setting {
    /// Cipher and MAC.
    pub fn protection(&self) -> String {
        match &self.mac {
            Some(mac) => format!("{} {mac}", self.cipher),
            None => self.cipher.clone(),
        }
    }

    /// `2x1`: connections and the channels on each.
    pub fn lanes(&self) -> String {
        format!("{}x{}", self.connections, self.channels)
    }
}

/// A setting and how it did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub setting: Setting,
    /// Its runs, in order; the first is the warm-up.
    pub runs: Vec<Run>,
    /// Why it could not be measured.
    pub trouble: Option<String>,
}

/// One copy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// When it began, in seconds since the first.
    pub at: f64,
    /// Bytes of the file.
    pub bytes: u64,
    /// From connecting to the end.
    pub seconds: f64,
    /// Bytes a second while they flowed: after the first fifth, without the login.
    pub rate: f64,
    /// Processor seconds of this process for 10^9 bytes, while they flowed.
    pub near_cpu: f64,
    /// Processor seconds of the other end for this run, without what a login takes; None where they
    /// are not known.
    pub far_cpu_seconds: Option<f64>,
}

impl Row {
    /// The runs that count: all but the warm-up, which stands alone where there was time for no
    /// other.
    pub fn counted(&self) -> &[Run] {
        match self.runs.as_slice() {
            [_, rest @ ..] if !rest.is_empty() => rest,
            all => all,
        }
    }

    /// Whether there was time for the warm-up alone.
    pub fn is_cold(&self) -> bool {
        self.runs.len() == 1
    }

    /// Bytes a second.
    pub fn rate(&self) -> Option<Interval> {
        Interval::of(self.counted().iter().map(|run| run.rate), USUAL)
    }

    /// Processor seconds for 10^9 bytes, at this end.
    pub fn near_cpu(&self) -> Option<f64> {
        Spread::of(self.counted().iter().map(|run| run.near_cpu)).map(|spread| spread.median)
    }

    /// The same at the other end, of all runs together: the kernel counts there in hundredths of a
    /// second.
    pub fn far_cpu(&self) -> Option<f64> {
        let known = |run: &Run| run.far_cpu_seconds.map(|cpu| (cpu, run.bytes as f64));
        let runs: Vec<(f64, f64)> = self.counted().iter().filter_map(known).collect();
        let bytes: f64 = runs.iter().map(|(_, bytes)| bytes).sum();
        let seconds: f64 = runs.iter().map(|(cpu, _)| cpu).sum();
        (bytes > 0.0).then(|| (seconds / (bytes / 1e9)).max(0.0))
    }
}

/// What was measured of a primitive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Primitive {
    /// `cipher`, `compression` or `hash`.
    pub kind: String,
    /// SSH's name, with that of the MAC.
    pub name: String,
    /// `seal`, `open`, `text`, `gzipped`, `random`.
    pub what: String,
    /// Threads that did it at once.
    pub threads: usize,
    /// Bytes a second of all of them, for each run.
    pub rates: Vec<f64>,
}

impl Primitive {
    /// Bytes a second.
    pub fn rate(&self) -> Option<Interval> {
        Interval::of(self.rates.iter().copied(), USUAL)
    }
}

/// An algorithm that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// `cipher` or `MAC`.
    pub what: String,
    /// SSH's name.
    pub name: String,
    /// It is broken or old.
    pub weak: bool,
}

/// How much smaller data become.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Which data.
    pub data: Data,
    /// By what.
    pub compression: Compression,
    /// Bytes after by bytes before.
    pub ratio: f64,
}

impl Bench {
    /// Adds what the figures themselves say about their worth.
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
                "noise: {} of {} figures are not known within {:.0} %; {name} is the worst with \
                 {:.0} %",
                noisy.len(),
                self.rows.len(),
                NOISY * 100.0,
                wide * 100.0
            ));
        }
        if let Some(fell) = self.fall().filter(|fell| *fell > 0.05) {
            self.warnings.push(format!(
                "all runs became slower by {:.0} % on the way: the machine was throttled, or \
                 others began to work",
                fell * 100.0
            ));
        }
        let cold = self.rows.iter().filter(|row| row.is_cold()).count();
        if cold > 0 {
            self.warnings.push(format!(
                "there was time for one run only of {cold} settings: a longer --time tells more"
            ));
        }
    }

    /// How much slower everything became, each run beside the median of its row.
    fn fall(&self) -> Option<f64> {
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
        interval::fall(&values)
    }

    /// The row of a setting.
    pub fn row(&self, setting: &Setting) -> Option<&Row> {
        self.rows.iter().find(|row| row.setting == *setting)
    }

    /// How much smaller data become.
    pub fn ratio(&self, data: Data, compression: Compression) -> Option<f64> {
        let is = |r: &&Ratio| r.data == data && r.compression == compression;
        self.ratios.iter().find(is).map(|r| r.ratio)
    }
}

/// Reads a kept result.
///
/// # Errors
/// What it is instead, without the file's name.
pub fn read(text: &str) -> Result<Bench, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    if value.get("kind").and_then(serde_json::Value::as_str) != Some(KIND) {
        return Err("is no result of longhaul bench --json".to_owned());
    }
    let schema = value.get("schema").and_then(serde_json::Value::as_u64);
    if schema.is_none_or(|schema| schema > u64::from(SCHEMA)) {
        return Err("is of a later longhaul".to_owned());
    }
    serde_json::from_value(value).map_err(|error| format!("is damaged: {error}"))
}

#[cfg(test)]
mod tests;
