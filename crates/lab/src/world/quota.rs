//! A processor quota and a disk's rate for the servers, without cgroups, which containers and
//! ordinary users cannot create: the processes stop for a part of every 100 ms, as under cpu.max,
//! or after each write until a disk of that rate would have written it, as under io.max.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::LabError;

/// Period of a cgroup's quota in Linux.
const PERIOD: Duration = Duration::from_millis(100);
/// Longest time for which a process waits for the disk at once.
const LONGEST_WRITE: Duration = Duration::from_secs(2);
/// Time between two looks at what was written.
const LOOK: Duration = Duration::from_millis(5);

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
                stopped.retain(|pid| !is_sandboxed(*pid));
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

/// Lets each descendant of `root` read and write files on disks at `rate` bytes per second, until
/// this process ends. Files in memory (tmpfs) and cached reads are not counted, as with io.max.
///
/// # Errors
/// No thread can be started.
pub(super) fn limit_disk(root: Pid, rate: u64) -> Result<(), LabError> {
    let thread = thread::Builder::new().name("disk".to_owned());
    let limited = thread.spawn(move || {
        let mut disk = DiskWriteThrottle::default();
        let mut began = Instant::now();
        loop {
            // The disk's clock.
            thread::sleep(LOOK);
            let all = descendants(root.as_raw_nonzero().get());
            let counted = all.iter().map(|pid| {
                let file = fs::read_to_string(format!("/proc/{pid}/io"));
                (*pid, disk_bytes(&file.unwrap_or_default()))
            });
            let counted: Vec<_> = counted.collect();
            let passed = began.elapsed();
            began = Instant::now();
            let (waiting, pause_for) = disk.owing(&counted, passed, rate);
            pause(&waiting, pause_for.min(LONGEST_WRITE));
        }
    });
    limited
        .map(drop)
        .map_err(|error| LabError::system("cannot start the thread of --far-disk", error))
}

/// Stops processes for a time.
fn pause(pids: &[i32], time: Duration) {
    if pids.is_empty() || time.is_zero() {
        return;
    }
    for (signal, pause) in [(Signal::STOP, time), (Signal::CONT, Duration::ZERO)] {
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // A process may have ended.
            let _ = kill_process(pid, signal);
        }
        // The disk's clock.
        thread::sleep(pause);
    }
}

/// Emulates a disk of limited rate: the bytes that it still has to write, and the processes that
/// wait for it.
#[derive(Debug, Default)]
struct DiskWriteThrottle {
    known: BTreeMap<i32, u64>,
    waiting: Vec<i32>,
    owed: f64,
}

impl DiskWriteThrottle {
    /// Returns the processes that used the disk since the last call, and the time that it needs for
    /// their bytes, `passed` after that call.
    fn owing(&mut self, now: &[(i32, u64)], passed: Duration, rate: u64) -> (Vec<i32>, Duration) {
        let mut users = Vec::new();
        let mut bytes = 0;
        for (pid, count) in now {
            let before = self.known.insert(*pid, *count).unwrap_or(*count);
            if *count > before {
                bytes += count - before;
                users.push(*pid);
            }
        }
        let rate = rate.max(1) as f64;
        self.owed = (self.owed - passed.as_secs_f64() * rate).max(0.0) + bytes as f64;
        if !users.is_empty() || self.owed == 0.0 {
            self.waiting = users;
        }
        let time = Duration::from_secs_f64((self.owed / rate).min(60.0));
        (self.waiting.clone(), time)
    }
}

/// Bytes of files that a process read from disks and wrote to them, of /proc/PID/io.
fn disk_bytes(io: &str) -> u64 {
    let of = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    of("read_bytes:").unwrap_or(0) + of("write_bytes:").unwrap_or(0)
}

/// True for sshd's process that talks to a client before the login: the kernel lets an interrupted
/// nanosleep(2) go on as restart_syscall(2), for which the sandbox kills the process.
fn is_sandboxed(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    has_filter(&status.unwrap_or_default())
}

/// True if /proc/PID/status shows a seccomp filter.
fn has_filter(status: &str) -> bool {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
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

    #[test]
    fn a_process_in_sshds_sandbox_is_recognized() {
        assert!(has_filter(
            "Name:\tsshd\nSeccomp:\t2\nSeccomp_filters:\t1\n"
        ));
        assert!(!has_filter(
            "Name:\tsshd\nSeccomp:\t0\nSeccomp_filters:\t0\n"
        ));
        assert!(!has_filter(""));
    }

    #[test]
    fn a_writer_waits_for_the_disk_and_others_do_not() {
        let io = "rchar: 5\nwchar: 6\nread_bytes: 100\nwrite_bytes: 900\n";
        assert_eq!(disk_bytes(io), 1000);
        let mut disk = DiskWriteThrottle::default();
        let second = Duration::from_secs(1);
        assert_eq!(
            disk.owing(&[(7, 0), (8, 0)], second, 1000).0,
            Vec::<i32>::new()
        );
        let (users, time) = disk.owing(&[(7, 500), (8, 0)], second, 1000);
        assert_eq!((users, time), (vec![7], second / 2));
        // Half a second later the disk has written all of it.
        let (users, time) = disk.owing(&[(7, 500), (8, 0)], second / 2, 1000);
        assert_eq!((users, time), (Vec::new(), Duration::ZERO));
    }
}
