//! Helper threads that take over work while processors are idle.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use crate::threads::ThreadPool;

/// Time between two readings of the system load.
const LOOK: Duration = Duration::from_millis(20);
/// Weight of one reading in the moving average.
const WEIGHT: f64 = 0.25;

/// Busy threads to expect for a connection within one machine: one at each end.
const BOTH_ENDS: f64 = 2.0;

/// Returns true if both ends of the connection are on this machine. A forwarded port looks like
/// that too.
pub fn is_one_machine(connection: &TcpStream) -> bool {
    match (connection.local_addr(), connection.peer_addr()) {
        (Ok(ours), Ok(theirs)) => {
            // A listener for both address families shows IPv4 addresses as IPv4-mapped ones.
            let (ours, theirs) = (ours.ip().to_canonical(), theirs.ip().to_canonical());
            ours == theirs || theirs.is_loopback()
        }
        _ => false,
    }
}

/// Helper threads of this process: at most one less than there are processors, none while there is
/// nothing to do.
#[derive(Debug)]
pub struct HelperThreads {
    threads: ThreadPool,
    load: Mutex<LoadAverage>,
    processors: usize,
}

impl HelperThreads {
    /// Returns the helpers that all connections of this process share.
    pub fn shared() -> &'static Self {
        static WORKERS: OnceLock<HelperThreads> = OnceLock::new();
        WORKERS.get_or_init(|| {
            let processors = thread::available_parallelism().map_or(1, Into::into);
            Self::with(processors, LoadAverage::of_this_machine())
        })
    }

    fn with(processors: usize, load: LoadAverage) -> Self {
        Self {
            threads: ThreadPool::new("helper", processors.saturating_sub(1)),
            load: Mutex::new(load),
            processors,
        }
    }

    fn most(&self) -> usize {
        self.processors.saturating_sub(1)
    }

    /// Returns true if a processor is idle and a helper is free to use it. The call is cheap enough
    /// for every packet: it reads the load at most every 20 ms.
    pub fn are_idle(&self) -> bool {
        if self.most() == 0 {
            return false;
        }
        let (helping, waiting) = self.threads.busy();
        if waiting >= self.most() {
            return false;
        }
        // Another thread is reading the load.
        let load = match self.load.try_lock() {
            Ok(mut load) => load.look(Instant::now(), helping),
            Err(TryLockError::Poisoned(load)) => load.into_inner().others,
            Err(TryLockError::WouldBlock) => return false,
        };
        load + 0.5 < self.processors as f64
    }

    /// Announces traffic on `connection`. If the peer is on this machine, its thread runs beside
    /// ours, which the load average shows only after four readings: during that time helpers on two
    /// processors slowed both ends to half of their rate.
    pub fn expect(&self, connection: &TcpStream) {
        if is_one_machine(connection) {
            let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
            load.others = load.others.max(BOTH_ENDS);
        }
    }

    /// Queues `work` for a helper; drops it if all helpers have enough to do.
    pub fn help(&self, work: impl FnOnce() + Send + 'static) {
        // The owner does work itself that no helper has taken.
        let _ = self.threads.give(Box::new(work), 2 * self.most());
    }
}

/// Moving average of the runnable threads of this machine, helpers not counted.
#[derive(Debug)]
struct LoadAverage {
    file: Option<File>,
    looked: Option<Instant>,
    others: f64,
}

impl LoadAverage {
    fn of_this_machine() -> Self {
        Self {
            file: File::open("/proc/loadavg").ok(),
            looked: None,
            others: 1.0,
        }
    }

    fn look(&mut self, now: Instant, helping: usize) -> f64 {
        let due = self.looked.is_none_or(|at| now >= at + LOOK);
        if due && let Some(Ok(running)) = self.file.as_ref().map(running) {
            self.looked = Some(now);
            let others = running.saturating_sub(helping) as f64;
            self.others += WEIGHT * (others - self.others);
        }
        self.others
    }
}

/// Reads the number of runnable threads, the fourth figure of /proc/loadavg before its slash
/// (proc_loadavg(5)).
fn running(file: &File) -> io::Result<usize> {
    let mut text = [0; 128];
    let n = file.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(text.get(..n).unwrap_or_default());
    let figure = text.split(' ').nth(3).and_then(|f| f.split('/').next());
    let figure = figure.and_then(|f| f.parse().ok());
    figure.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::IDLE;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    fn workers(processors: usize, others: f64) -> HelperThreads {
        let load = LoadAverage {
            file: None,
            looked: None,
            others,
        };
        HelperThreads::with(processors, load)
    }

    #[test]
    fn they_help_where_there_is_a_processor_for_them() {
        assert!(workers(4, 1.0).are_idle());
        assert!(!workers(4, 3.8).are_idle());
        assert!(!workers(1, 0.0).are_idle());
    }

    #[test]
    fn a_far_end_on_this_machine_is_expected_to_run() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [client, server] {
            let (two, four) = (workers(2, 1.0), workers(4, 1.0));
            assert!(two.are_idle());
            two.expect(&end);
            four.expect(&end);
            assert!(!two.are_idle());
            assert!(four.are_idle(), "there are processors for all");
        }
    }

    #[test]
    fn what_is_given_to_them_is_done_and_what_fails_harms_nobody() {
        let workers = workers(3, 1.0);
        let (sender, done) = channel();
        for n in 0..20 {
            let sender = sender.clone();
            workers.help(move || {
                assert_ne!(n, 0, "this one fails");
                let _ = sender.send(n);
            });
            // The queue holds at most four.
            let _ = done.recv_timeout(Duration::from_millis(if n == 0 { 50 } else { 5000 }));
        }
        let threads = &workers.threads;
        assert!((1..=2).contains(&threads.count()), "{threads:?}");
    }

    #[test]
    fn what_waits_is_bounded_and_nobody_stays_without_work() {
        let workers = workers(2, 1.0);
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (held, count) = (Arc::clone(&held), Arc::clone(&count));
            workers.help(move || {
                let _ = held.lock().map(|held| held.recv());
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(hold);
        let none = || workers.threads.count() == 0;
        testkit::wait::until(5 * IDLE, none, || format!("{:?}", workers.threads));
        assert!((1..=3).contains(&count.load(Ordering::Relaxed)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_tells_how_many_run() {
        let load = LoadAverage::of_this_machine();
        let file = load.file.expect("Linux has it");
        assert!(running(&file).expect("a figure") >= 1);
    }
}
