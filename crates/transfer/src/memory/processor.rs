//! Remembers the speed of this machine's processor by its model, since a home directory may be
//! shared between machines.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{file_name, read, replace, seconds};

/// The format version; increased when the meaning of a field changes.
const FORMAT: u32 = 1;
/// The lifetime of a measurement; a newer program or system may be faster.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// The number of bytes of /proc/cpuinfo that are read.
const FIRST: u64 = 4096;

/// The measurements of a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessorMeasurements {
    /// The time of measurement, in seconds since 1970.
    pub at: u64,
    /// The program that measured, for display: `longhaul bench --local 0.1.0`, or a copy.
    pub by: String,
    /// SSH cipher names, and the bytes that one core seals per second.
    pub ciphers: Vec<(String, u64)>,
}

#[derive(Serialize, Deserialize)]
struct StoredProcessor {
    format: u32,
    model: String,
    processor: ProcessorMeasurements,
}

/// The folder of processor measurements: `$XDG_CACHE_HOME/longhaul/processors`, beside host memory
/// ([`super::HostMemoryStore::processors`]).
#[derive(Clone, Debug)]
pub struct ProcessorStore {
    folder: PathBuf,
}

impl ProcessorMeasurements {
    /// Returns the bytes of `cipher` that one core seals per second.
    pub fn rate_of(&self, cipher: &str) -> Option<u64> {
        let row = self.ciphers.iter().find(|(name, _)| name == cipher);
        row.map(|(_, rate)| *rate)
    }
}

impl ProcessorStore {
    /// Uses `folder`, which is created when first needed.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the stored measurements of this processor model with their age.
    pub fn load(&self, model: &str, now: SystemTime) -> Option<(ProcessorMeasurements, Duration)> {
        let stored: StoredProcessor = read(&self.folder, &file_name(model))?;
        let age = seconds(now).checked_sub(stored.processor.at)?;
        let age = Duration::from_secs(age);
        let ours = stored.format == FORMAT && stored.model == model;
        (ours && age <= LIFETIME).then_some((stored.processor, age))
    }

    /// Stores the measurements.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, model: &str, processor: &ProcessorMeasurements) -> io::Result<()> {
        let stored = StoredProcessor {
            format: FORMAT,
            model: model.to_owned(),
            processor: processor.clone(),
        };
        replace(&self.folder, &file_name(model), &stored)
    }
}

/// Returns the processor model from /proc/cpuinfo, or the architecture if it has none (proc(5)).
pub fn model() -> String {
    let mut text = Vec::new();
    if let Ok(file) = File::open("/proc/cpuinfo") {
        // The kernel describes each processor; the first description is enough.
        let _ = file.take(FIRST).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    model_in(&text).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Returns the model name on x86, and the numeric identification on other architectures.
fn model_in(cpuinfo: &str) -> Option<String> {
    let value = |wanted: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| key.trim() == wanted);
        found
            .map(|(_, value)| value.trim())
            .filter(|v| !v.is_empty())
    };
    if let Some(name) = value("model name") {
        return Some(name.to_owned());
    }
    let numbers = ["CPU implementer", "CPU variant", "CPU part"];
    let numbers: Option<Vec<&str>> = numbers.into_iter().map(value).collect();
    numbers.map(|numbers| numbers.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_of_one_model_and_young() {
        let dir = tempfile::tempdir().unwrap();
        let processors = ProcessorStore::at(dir.path().join("p"));
        let now = SystemTime::now();
        assert_eq!(processors.load("a", now), None);
        let known = ProcessorMeasurements {
            at: seconds(now),
            by: "a test".into(),
            ciphers: vec![("aes128-ctr".into(), 5)],
        };
        processors.store("a", &known).unwrap();
        let later = now + Duration::from_secs(3600);
        let found = processors.load("a", later).unwrap();
        assert_eq!(found, (known, Duration::from_secs(3600)));
        assert_eq!(found.0.rate_of("aes128-ctr"), Some(5));
        assert_eq!(found.0.rate_of("aes256-ctr"), None);
        assert_eq!(processors.load("b", now), None);
        assert_eq!(processors.load("a", now + 2 * LIFETIME), None);
        assert_eq!(processors.load("a", now - LIFETIME), None);
    }

    #[test]
    fn models_are_found() {
        let x86 = "processor\t: 0\nvendor_id\t: X\nmodel\t\t: 85\nmodel name\t: A CPU @ 2 GHz\n";
        assert_eq!(model_in(x86).as_deref(), Some("A CPU @ 2 GHz"));
        let arm =
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n";
        assert_eq!(model_in(arm).as_deref(), Some("0x41 0x3 0xd0c"));
        assert_eq!(model_in("processor\t: 0\n"), None);
    }
}
