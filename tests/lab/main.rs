//! `longhaul lab`: its path is as configured, and it leaves nothing behind.
//!
//! The limits on times are wide, since tests share the machine; examples/lab_truth.rs has the exact
//! ones.

mod background;
mod demo;
mod doctor;
mod doctor_faults;
mod doctor_fix;
mod ends;
mod lanes;
mod servers;
mod truth;
mod user;
mod windows;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use longhaul_tests::longhaul;
use testkit::{Run, missing};

/// Prepares `longhaul lab` with its scratch folders below `temporary`; `None`, after reporting the
/// skip, if the kernel does not permit it.
fn lab(temporary: &Path) -> Option<Run> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| {
        let outcome = Run::new(longhaul()).args(["lab", "-q", "true"]).run();
        (outcome.code == Some(125)).then(|| outcome.err())
    });
    if let Some(why) = refused {
        missing::skip("a lab's namespaces and TUN devices", why.trim());
        return None;
    }
    Some(
        Run::new(longhaul())
            .arg("lab")
            .env("TMPDIR", temporary)
            .timeout(Duration::from_secs(60)),
    )
}

/// Reports if the programs that a test runs in the lab are installed.
fn have(programs: &[(&str, &str)]) -> bool {
    programs.iter().all(|(program, package)| {
        let found = missing::find_program(program).is_some();
        if !found {
            missing::skip(program, &format!("Debian: {package}"));
        }
        found
    })
}

/// Returns the processes with this text in their command line.
fn processes(text: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("/proc");
    all.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|words| String::from_utf8_lossy(&words).contains(text))
        })
        .collect()
}

/// Returns a figure from the lab's JSON, or 0 if it is missing.
fn figure(file: &Path, name: &str) -> f64 {
    let text = fs::read_to_string(file).expect("the figures");
    let figures: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    figures[name].as_f64().unwrap_or(0.0)
}
