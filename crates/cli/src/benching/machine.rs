//! Describes this machine from what the kernel reports.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use measure::MachineProperties;
use measure::bench::machine::{MachineCounters, before};
use rustix::time::{ClockId, clock_gettime};
use transfer::memory::processor;

/// Time for which load is observed before measuring begins.
const LOOK: Duration = Duration::from_millis(300);

/// Collects the properties of this machine that figures depend on.
pub(super) fn describe() -> MachineProperties {
    let system = rustix::system::uname();
    let text = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
    let memory = read("/proc/meminfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .map_or(0, |kib: u64| kib * 1024);
    MachineProperties {
        cpu: Some(processor::model()),
        cores: cores(),
        kernel: format!("{} {}", text(system.sysname()), text(system.release())),
        memory_bytes: memory,
        commit: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Number of processors that this process may use.
pub(super) fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Reads the load counters.
pub(super) fn look() -> MachineCounters {
    MachineCounters::parse(
        &read("/proc/stat"),
        &read("/proc/loadavg"),
        &read("/proc/cpuinfo"),
        &read("/sys/fs/cgroup/cpu.stat"),
    )
}

/// Returns warnings about load on this machine; observes it for [`LOOK`].
pub(super) fn quiet() -> Vec<String> {
    let (first, start) = (look(), Instant::now());
    thread::sleep(LOOK);
    before(&first, &look(), start.elapsed().as_secs_f64(), cores())
}

/// Processor seconds that this process has used so far.
pub(super) fn own_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}
