//! Threads that help others with what they have to do, where processors have nothing else to do.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Something to do.
type Work = Box<dyn FnOnce() + Send>;

/// A thread that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(2);
/// How often it is looked at what else runs on this machine.
const LOOK: Duration = Duration::from_millis(20);
/// What one look counts for.
const WEIGHT: f64 = 0.25;

/// Helpers of this process: one thread less than there are processors at most, none while there is
/// nothing to do.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    load: Mutex<Load>,
    processors: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    threads: usize,
    sleeping: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A helper's life.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                // What fails is the owner's to notice; its thread goes on helping others.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                state = self.lock();
                continue;
            }
            state.sleeping += 1;
            let waited = self.wake.wait_timeout(state, IDLE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.sleeping -= 1;
            if timeout.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl Workers {
    /// Those that all connections of this process share.
    pub fn shared() -> &'static Self {
        static WORKERS: OnceLock<Workers> = OnceLock::new();
        WORKERS.get_or_init(|| {
            let processors = thread::available_parallelism().map_or(1, Into::into);
            Self::with(processors, Load::of_this_machine())
        })
    }

    fn with(processors: usize, load: Load) -> Self {
        Self {
            shared: Arc::default(),
            load: Mutex::new(load),
            processors,
        }
    }

    fn most(&self) -> usize {
        self.processors.saturating_sub(1)
    }

    /// Whether there is a processor without anything else to do and a helper for it. It may be
    /// asked for each packet: it looks a few times a second.
    pub fn are_idle(&self) -> bool {
        if self.most() == 0 {
            return false;
        }
        let state = self.shared.lock();
        let helping = state.threads - state.sleeping;
        let full = state.waiting.len() >= self.most();
        drop(state);
        if full {
            return false;
        }
        // Somebody else is looking.
        let load = match self.load.try_lock() {
            Ok(mut load) => load.look(Instant::now(), helping),
            Err(TryLockError::Poisoned(load)) => load.into_inner().others,
            Err(TryLockError::WouldBlock) => return false,
        };
        load + 0.5 < self.processors as f64
    }

    /// Has `work` done by somebody, soon; never where all have enough to do.
    pub fn help(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.waiting.len() >= 2 * self.most() {
            return;
        }
        state.waiting.push_back(Box::new(work));
        if state.sleeping >= state.waiting.len() {
            self.shared.wake.notify_one();
        } else if state.threads < self.most() {
            let shared = Arc::clone(&self.shared);
            let named = thread::Builder::new().name("helper".to_owned());
            if named.spawn(move || shared.serve()).is_ok() {
                state.threads += 1;
            } else if state.threads == 0 {
                // Nobody will come.
                state.waiting.clear();
            }
        }
    }
}

/// How many threads of this machine run or want to, but for helpers.
#[derive(Debug)]
struct Load {
    file: Option<File>,
    looked: Option<Instant>,
    others: f64,
}

impl Load {
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

/// The fourth figure of /proc/loadavg, before its slash: runnable threads (proc_loadavg(5)).
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    fn workers(processors: usize, others: f64) -> Workers {
        let load = Load {
            file: None,
            looked: None,
            others,
        };
        Workers::with(processors, load)
    }

    #[test]
    fn they_help_where_there_is_a_processor_for_them() {
        assert!(workers(4, 1.0).are_idle());
        assert!(!workers(4, 3.8).are_idle());
        assert!(!workers(1, 0.0).are_idle());
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
            // No more than four wait.
            let _ = done.recv_timeout(Duration::from_millis(if n == 0 { 50 } else { 5000 }));
        }
        let state = workers.shared.lock();
        assert!((1..=2).contains(&state.threads), "{state:?}");
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
        let deadline = Instant::now() + 5 * IDLE;
        while workers.shared.lock().threads > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(workers.shared.lock().threads, 0);
        assert!((1..=3).contains(&count.load(Ordering::Relaxed)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_tells_how_many_run() {
        let load = Load::of_this_machine();
        let file = load.file.expect("Linux has it");
        assert!(running(&file).expect("a figure") >= 1);
    }
}
