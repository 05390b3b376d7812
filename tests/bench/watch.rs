//! Measurements while a tool runs: the bytes on the path, and the server's processor time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use measure::ProgressPoint;
use testkit::background_process::descendants;
use testkit::process::{cpu_time, own_cpu_time};

/// Maximum number of points of a curve; longer ones are thinned out.
const MOST_POINTS: usize = 160;

/// Counts the bytes of this network namespace until it is stopped.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<ProgressPoint>>,
}

impl Watch {
    /// Starts to count. `up` counts bytes that leave, otherwise those that arrive.
    pub(crate) fn start(up: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (start, base) = (Instant::now(), bytes(up));
        let thread = std::thread::spawn(move || {
            let mut interval = Duration::from_millis(50);
            let mut points = vec![ProgressPoint(0.0, 0)];
            loop {
                let last = stopped.load(Ordering::Acquire);
                let seconds = (start.elapsed().as_secs_f64() * 1e3).round() / 1e3;
                points.push(ProgressPoint(seconds, bytes(up).saturating_sub(base)));
                if last {
                    return points;
                }
                if points.len() > MOST_POINTS {
                    let mut number = 0;
                    points.retain(|_| {
                        number += 1;
                        number % 2 == 1
                    });
                    interval *= 2;
                }
                std::thread::park_timeout(interval);
            }
        });
        Self { stop, thread }
    }

    /// Stops, and returns the curve.
    pub(crate) fn stop(self) -> Vec<ProgressPoint> {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

/// Returns the bytes of all interfaces in /proc/net/dev; loopback counts only if no other is in
/// use.
fn bytes(up: bool) -> u64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let column = if up { 8 } else { 0 };
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter_map(|(_, numbers)| numbers.split_whitespace().nth(column)?.parse::<u64>().ok())
        .sum()
}

/// Returns the rate in MB/s of payload between the moments at which 50 % and 99 % of the path's
/// bytes had passed, which excludes connecting and closing.
pub(crate) fn last_half_rate(curve: &[ProgressPoint], payload: u64) -> Option<f64> {
    rate_between(curve, payload, 0.5, 0.99)
}

/// Returns the rate in MB/s of payload between two shares of the path's bytes.
pub(crate) fn rate_between(
    curve: &[ProgressPoint],
    payload: u64,
    from: f64,
    to: f64,
) -> Option<f64> {
    let total = curve.last()?.1 as f64;
    let at = |part: f64| {
        let pair = curve
            .windows(2)
            .find(|pair| pair[1].1 as f64 >= total * part)?;
        let (from, to) = (pair[0], pair[1]);
        let inside = (total * part - from.1 as f64) / (to.1 - from.1).max(1) as f64;
        Some(from.0 + inside.clamp(0.0, 1.0) * (to.0 - from.0))
    };
    let seconds = at(to)? - at(from)?;
    (seconds > 0.2).then(|| payload as f64 * (to - from) / 1e6 / seconds)
}

/// Process of the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerProcess(pub(crate) u32);

impl ServerProcess {
    /// Finds the server that the lab around this process has started: a child of one of our
    /// ancestors, or of one of their other children.
    pub(crate) fn in_lab() -> Option<Self> {
        const NAMES: [&str; 4] = ["sshd", "hpnsshd", "iperf3", "longhaul"];
        let processes = processes();
        let parent = |pid: u32| processes.iter().find(|p| p.0 == pid).map(|p| p.1);
        let ancestors = |pid: u32| std::iter::successors(Some(pid), |pid| parent(*pid));
        let ours: Vec<u32> = ancestors(std::process::id())
            .filter(|pid| *pid > 0)
            .collect();
        let mut best: Option<(usize, u32)> = None;
        for (pid, _, name) in &processes {
            if !NAMES.contains(&name.as_str()) || ours.contains(pid) {
                continue;
            }
            // The nearest common ancestor is the lab; processes outside it do not count.
            let near = ancestors(*pid).find_map(|a| ours.iter().position(|own| *own == a));
            if let Some(near) = near
                && best.is_none_or(|best| (near, *pid) < best)
            {
                best = Some((near, *pid));
            }
        }
        best.map(|(_, pid)| Self(pid))
    }

    /// Returns the processor time of the process and of the children that it has waited for.
    pub(crate) fn cpu(self) -> Option<Duration> {
        cpu_time(self.0)
    }

    /// Waits until the processes of its connections are gone, whose time is then included.
    pub(crate) fn settle(self) {
        let children = format!("/proc/{0}/task/{0}/children", self.0);
        let none = || std::fs::read_to_string(&children).map_or(true, |all| all.trim().is_empty());
        testkit::wait::up_to(Duration::from_secs(5), none);
    }
}

/// Processor time of a server and of its connection processes, even if no parent waits for these
/// and adds up their time, as with longhaul's server: the last sample of each one counts.
pub(crate) struct Spent {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

/// Interval between samples; time after a process's last sample is missed.
const LOOK: Duration = Duration::from_millis(10);

impl Spent {
    /// Starts to measure.
    pub(crate) fn start(server: ServerProcess) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let look = move |times: &mut HashMap<u32, Duration>| {
            for pid in descendants(server.0).into_iter().chain([server.0]) {
                if let Some(time) = own_cpu_time(pid) {
                    times.insert(pid, time);
                }
            }
            times.values().sum::<Duration>()
        };
        let mut times = HashMap::new();
        let before = look(&mut times);
        let thread = std::thread::spawn(move || {
            loop {
                let last = stopped.load(Ordering::Acquire);
                let now = look(&mut times);
                if last {
                    return now.saturating_sub(before);
                }
                std::thread::park_timeout(LOOK);
            }
        });
        Self { stop, thread }
    }

    /// Stops, and returns the time so far.
    pub(crate) fn stop(self) -> Option<Duration> {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        self.thread.join().ok()
    }
}

/// Returns process id, parent and name of each process.
fn processes() -> Vec<(u32, u32, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (before, rest) = stat.rsplit_once(") ")?;
            let (_, name) = before.split_once('(')?;
            let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent, name.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_half_leaves_the_start_and_the_end_out() {
        // Slow for 5 s, then 100 bytes per second until 10 s, then nothing for a while.
        let mut curve: Vec<ProgressPoint> = (0..=5)
            .map(|t| ProgressPoint(f64::from(t), 10 * t as u64))
            .collect();
        curve.extend((1..=10).map(|t| ProgressPoint(5.0 + f64::from(t), 50 + 100 * t as u64)));
        curve.push(ProgressPoint(60.0, 1050));
        let rate = last_half_rate(&curve, 1_050_000_000).expect("a rate");
        assert!((rate - 100.0).abs() < 1.0, "{rate}");
        assert_eq!(last_half_rate(&[], 5), None);
        assert_eq!(
            last_half_rate(&[ProgressPoint(0.0, 0), ProgressPoint(0.1, 100)], 100),
            None
        );
    }

    #[test]
    fn what_a_child_used_that_nobody_waited_for_counts() {
        // The outer shell stays; the inner one works for a while, and its time is not added to the
        // parent's.
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let script = format!("trap '' CHLD; (exec sh -c '{work}') & sleep 60");
        let mut shell = std::process::Command::new("sh")
            .args(["-c", &script])
            .spawn()
            .expect("a shell");
        let spent = Spent::start(ServerProcess(shell.id()));
        let remain = || {
            let pids = descendants(shell.id()).into_iter();
            let name = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
            pids.filter_map(name).collect::<String>()
        };
        testkit::wait::up_to(Duration::from_secs(20), || remain() == "sleep\n");
        let spent = spent.stop().expect("a figure");
        for pid in descendants(shell.id()) {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = shell.kill();
        let _ = shell.wait();
        assert!(spent > Duration::from_millis(20), "{spent:?}");
    }

    #[test]
    fn a_watch_sees_loopback() {
        let watch = Watch::start(true);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = socket.local_addr().expect("an address");
        for _ in 0..10 {
            socket.send_to(&[0; 1000], to).expect("sent");
        }
        let curve = watch.stop();
        assert!(
            curve.last().is_some_and(|point| point.1 >= 10_000),
            "{curve:?}"
        );
    }
}
