//! Medians beside the bars, as a table and as a file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_tests::Program;
use serde_json::{Value, json};
use testkit::{Run, missing};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    Up,
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

/// One copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    /// Processor time of the client, its ssh included.
    pub(crate) client: Duration,
    /// Processor time of the server's processes.
    pub(crate) server: Duration,
}

impl Sample {
    pub(crate) fn shown(&self, size: u64) -> String {
        let [rate, client, server] = self.figures(size);
        format!("{rate:7.1} MB/s, CPU s/GB: client {client:.2}, server {server:.2}")
    }

    /// MB/s, and processor seconds per GB of client and server; 1 MB is 10^6 bytes.
    fn figures(&self, size: u64) -> [f64; 3] {
        let bytes = size as f64;
        let per_gb = |time: Duration| time.as_secs_f64() / (bytes / 1e9);
        [
            bytes / 1e6 / self.elapsed.as_secs_f64(),
            per_gb(self.client),
            per_gb(self.server),
        ]
    }
}

/// All that was measured.
pub(crate) struct Report {
    size: u64,
    runs: u64,
    cipher: String,
    samples: BTreeMap<(Way, &'static str), Vec<Sample>>,
    round_trips: Vec<(String, &'static str, f64)>,
}

impl Report {
    pub(crate) fn new(size: u64, runs: u64, cipher: &str) -> Self {
        Self {
            size,
            runs,
            cipher: cipher.to_owned(),
            samples: BTreeMap::new(),
            round_trips: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, label: &'static str, way: Way, sample: Sample) {
        self.samples.entry((way, label)).or_default().push(sample);
    }

    pub(crate) fn round_trips(&mut self, program: &Program, when: &'static str, number: f64) {
        let label = if *program == Program::Scp {
            "scp"
        } else {
            "longhaul"
        };
        self.round_trips.push((label.to_owned(), when, number));
    }

    /// The median of each figure by itself.
    fn medians(&self, way: Way, label: &'static str) -> [f64; 3] {
        let samples = self
            .samples
            .get(&(way, label))
            .map_or(&[][..], Vec::as_slice);
        let figures: Vec<_> = samples
            .iter()
            .map(|sample| sample.figures(self.size))
            .collect();
        [0, 1, 2].map(|column| {
            let mut column: Vec<f64> = figures.iter().map(|row| row[column]).collect();
            column.sort_by(f64::total_cmp);
            column.get(column.len() / 2).copied().unwrap_or(f64::NAN)
        })
    }

    fn ratio(&self, way: Way) -> f64 {
        self.medians(way, "longhaul")[0] / self.medians(way, "scp")[0]
    }

    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "\n{} bytes between files in memory over loopback, {}, median of {}\n\n\
             | way | program | MB/s | client CPU s/GB | server CPU s/GB |\n|---|---|---|---|---|\n",
            self.size, self.cipher, self.runs
        );
        for (way, label) in self.samples.keys() {
            let [rate, client, server] = self.medians(*way, label);
            let _ = writeln!(
                text,
                "| {way} | {label} | {rate:.0} | {client:.2} | {server:.2} |"
            );
        }
        let _ = writeln!(text, "\n| what | measured | bar | |\n|---|---|---|---|");
        for (what, measured, bar, met) in self.bars() {
            let met = if met { "met" } else { "missed" };
            let _ = writeln!(text, "| {what} | {measured:.2} | {bar} | {met} |");
        }
        let _ = writeln!(
            text,
            "\n| round trips for 1 KiB | scp | longhaul |\n|---|---|---|"
        );
        for when in ["first contact", "known host"] {
            let of = |label| self.trips(label, when).unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "| {when} | {:.1} | {:.1} |",
                of("scp"),
                of("longhaul")
            );
        }
        text
    }

    fn trips(&self, label: &str, when: &str) -> Option<f64> {
        let found = self
            .round_trips
            .iter()
            .find(|row| row.0 == label && row.1 == when);
        found.map(|row| row.2)
    }

    fn bars(&self) -> Vec<(String, f64, String, bool)> {
        let mut bars = Vec::new();
        for (way, bar) in [(Way::Up, 1.35), (Way::Down, 1.2)] {
            let ratio = self.ratio(way);
            bars.push((
                format!("times scp's rate, {way}"),
                ratio,
                format!("{bar}"),
                ratio >= bar,
            ));
        }
        for way in [Way::Up, Way::Down] {
            let cpu = self.medians(way, "longhaul")[1];
            bars.push((
                format!("client CPU s/GB, {way}"),
                cpu,
                "0.55".to_owned(),
                cpu <= 0.55,
            ));
        }
        for (when, bar) in [("first contact", 11.5), ("known host", 5.8)] {
            if let Some(number) = self.trips("longhaul", when) {
                bars.push((
                    format!("round trips, {when}"),
                    number,
                    format!("{bar}"),
                    number <= bar,
                ));
            }
        }
        bars
    }

    /// Writes results/DATE-loopback.json.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self) -> std::io::Result<PathBuf> {
        let folder = missing::checkout().join("results");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join(format!(
            "{}-loopback.json",
            said(&["date", "-u", "+%Y-%m-%d"])
        ));
        let samples: Vec<Value> = self
            .samples
            .iter()
            .flat_map(|((way, label), samples)| samples.iter().map(move |s| (way, label, s)))
            .map(|(way, label, sample)| {
                json!({
                    "way": way.to_string(),
                    "program": label,
                    "seconds": sample.elapsed.as_secs_f64(),
                    "client_cpu_seconds": sample.client.as_secs_f64(),
                    "server_cpu_seconds": sample.server.as_secs_f64(),
                })
            })
            .collect();
        let bars: Vec<Value> = self
            .bars()
            .into_iter()
            .map(|(what, measured, bar, met)| {
                json!({ "what": what, "measured": measured, "bar": bar, "met": met })
            })
            .collect();
        let round_trips: Vec<Value> = self
            .round_trips
            .iter()
            .map(
                |(label, when, number)| json!({ "program": label, "when": when, "number": number }),
            )
            .collect();
        let report = json!({
            "size": self.size,
            "cipher": self.cipher,
            "machine": machine(),
            "samples": samples,
            "bars": bars,
            "round_trips": round_trips,
        });
        std::fs::write(&file, format!("{report:#}\n"))?;
        Ok(file)
    }
}

/// What the figures depend on, without the machine's name.
fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    json!({
        "cpu": model.map(|(_, name)| name),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": said(&["uname", "-sr"]),
        "commit": said(&["git", "rev-parse", "--short", "HEAD"]),
        "openssh": said(&["sh", "-c", "ssh -V 2>&1"]),
    })
}

fn said(words: &[&str]) -> String {
    Run::new(words[0])
        .args(&words[1..])
        .run()
        .out()
        .trim()
        .to_owned()
}
