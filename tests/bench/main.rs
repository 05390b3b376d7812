//! `make bench`: scenarios and tools, on the lab's paths and on loopback.
//!
//! The files are in memory, and both sides see them. Each run is a process of its own inside a lab
//! of its own, so that nothing that the kernel remembers about a path affects the next run. Runs
//! alternate between the tools, so that disturbances affect all of them; the medians count. Each
//! copy is compared with its original. A tool that does not finish in time, fails or is not
//! installed appears in the report with that result, and gets no further runs in that scenario.
//!
//! A run writes to memory that is already backed by the host (`memory`). Under a hypervisor that
//! reclaims free memory, the first write to a page takes ten times as long as the copy (5.9 GB/s
//! warm, 0.5 cold), and would dominate the measurement.
//!
//! scripts/bench.sh documents the environment variables.

mod bars;
mod content;
mod inside;
mod job;
mod memory;
mod race;
mod report;
mod scenarios;
mod servers;
mod settings;
mod tools;
mod watch;

use std::path::Path;
use std::process::ExitCode;

use settings::Settings;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [hidden, job] = arguments.as_slice()
        && hidden == inside::ARGUMENT
    {
        return inside::main(Path::new(job));
    }
    let outcome = match arguments.as_slice() {
        [list] if list == "--list" => {
            // An error means that the reader has seen enough.
            let _ = scenarios::list();
            return ExitCode::SUCCESS;
        }
        [tables] if tables == "--tables" => report::write_benchmarks(),
        [compare, before, now] if compare == "--compare" => {
            report::compare_files(Path::new(before), Path::new(now))
        }
        _ => Settings::from(&arguments)
            .and_then(|settings| race::run(&settings).and_then(|r| report::keep(&settings, r))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}
