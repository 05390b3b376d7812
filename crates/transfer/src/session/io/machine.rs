//! Measurements of the machine that the session runs on.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use schedule::TransferDirection;

use crate::session::machine::{MachineFunctions, ProcessorUseSample};

/// Returns access to the machine that this process runs on.
pub(crate) fn this_machine() -> MachineFunctions {
    MachineFunctions {
        random,
        unix_seconds: seconds,
        sample,
        processors,
        tcp_buffer: buffer,
    }
}

fn random(bytes: &mut [u8]) {
    // Failure is harmless: O_EXCL guarantees unique temporaries, and without randomness only the
    // spreading of clients that connect again is lost.
    let _ = aws_lc_rs::rand::fill(bytes);
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

fn sample() -> ProcessorUseSample {
    ProcessorUseSample {
        processor_time: processor_time(),
        ticks: ticks(),
        wanted_cpu: wanted_cpu(),
    }
}

/// Idle ticks and total ticks of the processors that this process may use (/proc/stat, proc(5)).
fn ticks() -> Option<(u64, u64)> {
    static ALLOWED: OnceLock<Option<Vec<u32>>> = OnceLock::new();
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let allowed = ALLOWED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        listed_processors(
            status
                .lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?,
        )
    });
    ticks_of(&stat, allowed.as_deref())
}

/// Parses a processor list such as "0-2,5". Returns `None` for any other text.
fn listed_processors(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<u32>().ok()?, to.parse::<u32>().ok()?);
        all.extend(from..=to.min(from.saturating_add(4096)));
    }
    Some(all)
}

/// Sums idle and total ticks of the allowed processors, or of all if `allowed` is `None`.
fn ticks_of(stat: &str, allowed: Option<&[u32]>) -> Option<(u64, u64)> {
    let (mut idle, mut all, mut any) = (0, 0, false);
    for line in stat.lines().take_while(|line| line.starts_with("cpu")) {
        let (name, fields) = line.split_once(' ')?;
        let number = name.strip_prefix("cpu")?.parse::<u32>().ok();
        let counts = match (allowed, number) {
            (None, number) => number.is_none(),
            (Some(allowed), Some(number)) => allowed.contains(&number),
            (Some(_), None) => false,
        };
        if counts {
            let ticks: Vec<u64> = fields
                .split_whitespace()
                .filter_map(|f| f.parse().ok())
                .collect();
            // idle and iowait
            idle += ticks.get(3)? + ticks.get(4)?;
            all += ticks.iter().take(8).sum::<u64>();
            any = true;
        }
    }
    any.then_some((idle, all))
}

/// Time that this thread has run or was ready to run so far, including waits for a processor or for
/// the quota of its cgroup (sched-stats, proc(5)).
fn wanted_cpu() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let (ran, waited) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Duration::from_nanos(ran.saturating_add(waited)))
}

/// Largest size in bytes to which the kernel may grow a TCP buffer of this end.
fn buffer(direction: TransferDirection) -> Option<u64> {
    let name = match direction {
        TransferDirection::Up => "/proc/sys/net/ipv4/tcp_wmem",
        TransferDirection::Down => "/proc/sys/net/ipv4/tcp_rmem",
    };
    let text = fs::read_to_string(name).ok()?;
    text.split_whitespace().nth(2)?.parse().ok()
}

fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: with both ends pinned to one of several processors, the idle ones made the machine look
    /// idle.
    #[test]
    fn only_processors_that_may_be_used_count_as_idle() {
        let stat = "cpu  10 0 0 200 4 0 0 0 0 0\ncpu0 8 0 0 2 0 0 0 0 0 0\n\
                    cpu1 2 0 0 198 4 0 0 0 0 0\nintr 5\n";
        assert_eq!(ticks_of(stat, None), Some((204, 214)));
        let allowed = listed_processors(" 0\n");
        assert_eq!(allowed, Some(vec![0]));
        assert_eq!(ticks_of(stat, allowed.as_deref()), Some((2, 10)));
        assert_eq!(ticks_of(stat, Some(&[7])), None);
        assert_eq!(listed_processors("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(listed_processors("many"), None);
    }
}
