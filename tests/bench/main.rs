//! `make bench`: scenarios x tools, on the lab's paths and on loopback.
//!
//! The files lie in memory and both sides see them. Each run is a process of its own inside a lab
//! of its own, so that nothing the kernel remembers of a path helps the next run. Runs alternate
//! between the tools, so that what disturbs the machine disturbs all of them; the medians count.
//! Each copy is compared with its original. A tool that does not finish in time, fails or is not
//! installed is in the report with what it did, and gets no further runs in that scenario.
//!
//! What a run writes to is memory that is at hand (`memory`). Under a hypervisor that takes free memory
//! away, a first touch costs ten times the copy (5.9 GB/s warm, 0.5 cold were measured), and would be
//! all that is measured.
//!
//! scripts/bench.sh says what the environment changes.

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
            // Whoever reads has what was wanted.
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
