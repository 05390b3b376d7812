//! Judges from Linux's counters in /proc if a machine was quiet enough for measuring.

use serde::{Deserialize, Serialize};

/// Processors' worth of load by other programs above which a warning is given.
const QUIET: f64 = 0.15;
/// Share of time taken by the hypervisor above which a warning is given.
const STEAL: f64 = 0.01;
/// Fall of the clock rate, as a share, above which a warning is given.
const CLOCK: f64 = 0.05;

/// Counters at one moment; times are in seconds since boot, summed over all processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineCounters {
    /// Time spent working.
    pub busy: f64,
    /// Time spent idle.
    pub idle: f64,
    /// Time taken by the hypervisor.
    pub steal: f64,
    /// Load average: runnable threads over a minute.
    pub load: f64,
    /// Average clock rate of the processors in MHz; `None` if unknown.
    pub mhz: Option<f64>,
    /// Seconds in which a quota kept the container from running.
    pub throttled: f64,
}

impl MachineCounters {
    /// Parses /proc/stat, /proc/loadavg, /proc/cpuinfo and the cgroup's cpu.stat, each empty if
    /// missing.
    pub fn parse(stat: &str, loadavg: &str, cpuinfo: &str, cgroup: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        // USER_HZ is 100 on every Linux.
        let ticks: Vec<f64> = line
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|word| word.parse::<f64>().ok())
            .map(|ticks| ticks / 100.0)
            .collect();
        // The columns are: user nice system idle iowait irq softirq steal.
        let of = |at: usize| ticks.get(at).copied().unwrap_or_default();
        let clocks: Vec<f64> = cpuinfo
            .lines()
            .filter(|line| line.starts_with("cpu MHz"))
            .filter_map(|line| line.split(':').nth(1)?.trim().parse().ok())
            .collect();
        let sum: f64 = clocks.iter().sum();
        let throttled = cgroup
            .lines()
            .find_map(|line| line.strip_prefix("throttled_usec "))
            .and_then(|micros| micros.trim().parse::<f64>().ok());
        Self {
            busy: of(0) + of(1) + of(2) + of(5) + of(6),
            idle: of(3) + of(4),
            steal: of(7),
            load: loadavg
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or_default(),
            mhz: (!clocks.is_empty()).then(|| sum / clocks.len() as f64),
            throttled: throttled.unwrap_or_default() / 1e6,
        }
    }

    /// Average number of busy processors since `before`.
    pub fn cores_busy(&self, before: &Self, seconds: f64) -> f64 {
        ((self.busy - before.busy + self.steal - before.steal) / seconds).max(0.0)
    }
}

/// Warnings about a period before the first run, in which nothing of ours was running.
pub fn before(
    first: &MachineCounters,
    then: &MachineCounters,
    seconds: f64,
    cores: usize,
) -> Vec<String> {
    let busy = then.cores_busy(first, seconds);
    let mut warnings = Vec::new();
    if busy > QUIET {
        warnings.push(format!(
            "this machine is busy: before the first run other programs used {busy:.1} of its \
             {cores} processors (load {:.1}); end them and measure again",
            then.load
        ));
    }
    warnings
}

/// Warnings about the period of the runs, which took `seconds`.
pub fn after(first: &MachineCounters, then: &MachineCounters, seconds: f64) -> Vec<String> {
    let mut warnings = Vec::new();
    let all = then.busy - first.busy + then.idle - first.idle + then.steal - first.steal;
    let stolen = (then.steal - first.steal) / all;
    if stolen > STEAL {
        warnings.push(format!(
            "the hypervisor took {:.0} % of this virtual machine's processor time for other \
             machines: measure again later",
            stolen * 100.0
        ));
    }
    if let (Some(before), Some(now)) = (first.mhz, then.mhz)
        && now < before * (1.0 - CLOCK)
    {
        warnings.push(format!(
            "this machine's processors slowed down from {before:.0} to {now:.0} MHz, because of \
             heat or power saving: set the performance governor or improve cooling, and measure \
             again"
        ));
    }
    let held = then.throttled - first.throttled;
    if held > seconds * STEAL {
        warnings.push(format!(
            "this container's processor quota blocked this program for {held:.1} s: raise the quota"
        ));
    }
    warnings
}

/// A warning about other programs during the runs; `ours` is our own processor time in that period.
pub fn beside(
    first: &MachineCounters,
    then: &MachineCounters,
    seconds: f64,
    ours: f64,
) -> Option<String> {
    let others = then.cores_busy(first, seconds) - ours / seconds;
    (others > QUIET).then(|| {
        format!(
            "this machine is busy: other programs used {others:.1} processors during the runs; \
             end them and measure again"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  1000 0 500 8000 100 0 50 20 0 0\ncpu0 1 2 3\n";

    #[test]
    fn the_counters_are_read() {
        let look = MachineCounters::parse(
            STAT,
            "0.52 0.4 0.3 1/200 77\n",
            "processor : 0\ncpu MHz\t\t: 2000.5\ncpu MHz : 3000.5\n",
            "usage_usec 5\nthrottled_usec 2500000\n",
        );
        assert_eq!(look.busy, 15.5);
        assert_eq!((look.idle, look.steal, look.load), (81.0, 0.2, 0.52));
        assert_eq!((look.mhz, look.throttled), (Some(2500.5), 2.5));
        let nothing = MachineCounters::parse("", "", "", "");
        assert_eq!(nothing, MachineCounters::default());
        assert_eq!(
            MachineCounters::parse("cpu x\n", "y", "cpu MHz\n", "z"),
            nothing
        );
    }

    #[test]
    fn a_busy_machine_is_noticed_and_a_quiet_one_is_not() {
        let first = MachineCounters::default();
        let busy = MachineCounters {
            busy: 0.5,
            idle: 0.5,
            ..first
        };
        assert!(before(&first, &busy, 0.5, 2)[0].contains("other programs used 1.0 of its 2"));
        let quiet = MachineCounters {
            busy: 0.05,
            idle: 0.95,
            ..first
        };
        assert!(before(&first, &quiet, 0.5, 2).is_empty());
        let ours = MachineCounters {
            busy: 10.0,
            idle: 10.0,
            ..first
        };
        assert_eq!(beside(&first, &ours, 10.0, 9.5), None);
        assert!(beside(&first, &ours, 10.0, 4.0).is_some());
    }

    #[test]
    fn what_slows_all_runs_is_said() {
        let first = MachineCounters {
            mhz: Some(3000.0),
            ..MachineCounters::default()
        };
        let then = MachineCounters {
            busy: 50.0,
            idle: 40.0,
            steal: 10.0,
            mhz: Some(2000.0),
            throttled: 3.0,
            ..first
        };
        let said = after(&first, &then, 50.0).join("\n");
        for word in ["hypervisor took 10 %", "3000 to 2000 MHz", "3.0 s"] {
            assert!(said.contains(word), "{said}");
        }
        assert!(after(&first, &first, 50.0).is_empty());
    }
}
