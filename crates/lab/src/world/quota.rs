//! A processor quota for the servers, without cgroups, which containers and ordinary users cannot
//! create: the processes stop for a part of every 100 ms, as under a quota of cpu.max.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::LabError;

/// Period of a cgroup's quota in Linux.
const PERIOD: Duration = Duration::from_millis(100);

/// Lets `root` and its descendants run for `share` of the time, until this process ends.
///
/// # Errors
/// No thread can be started.
pub(super) fn limit(root: Pid, share: f64) -> Result<(), LabError> {
    let runs = PERIOD.mul_f64(share.clamp(0.01, 1.0));
    let thread = thread::Builder::new().name("quota".to_owned());
    let limited = thread.spawn(move || {
        let phases = [
            (Signal::CONT, runs),
            (Signal::STOP, PERIOD.saturating_sub(runs)),
        ];
        let mut stopped = Vec::new();
        let limits = !runs.is_zero() && runs < PERIOD;
        for (signal, lasts) in phases.into_iter().cycle().take_while(|_| limits) {
            if signal == Signal::STOP {
                stopped = descendants(root.as_raw_nonzero().get());
            }
            for pid in stopped.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                // A process may have ended.
                let _ = kill_process(pid, signal);
            }
            // The quota's clock.
            thread::sleep(lasts);
        }
    });
    limited
        .map(drop)
        .map_err(|error| LabError::system("cannot start the thread of --far-cpu", error))
}

/// The process and its descendants.
fn descendants(root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        children.entry(parent(&stat)).or_default().push(pid);
    }
    let mut all = vec![root];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    all
}

/// The parent in /proc/PID/stat, the second field after the name; 0 if there is none.
fn parent(stat: &str) -> i32 {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = rest.split_whitespace().nth(1);
    field.and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent("12 (a) b) S 7 12 12 0"), 7);
        assert_eq!(parent(""), 0);
    }
}
