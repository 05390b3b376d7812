use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often what was done here is made durable, at most.
const EACH: Duration = Duration::from_secs(5);

/// Makes files durable that were copied to this machine and not synced one by one: they are when
/// their file system has written what it had, which may take long. Nothing waits for it.
pub(super) struct Flush {
    /// The folder that files are copied into, where it is here.
    target: Option<PathBuf>,
    /// Files done that are not durable, and of them those that are being made so.
    soft: u64,
    under_way: u64,
    thread: Option<JoinHandle<bool>>,
    begun: Instant,
}

impl Flush {
    /// `soft` files were done by an earlier run.
    pub(super) fn new(target: Option<PathBuf>, soft: u64) -> Self {
        Self {
            target,
            soft,
            under_way: 0,
            thread: None,
            begun: Instant::now(),
        }
    }

    /// One more is done.
    pub(super) fn add(&mut self) {
        self.soft += 1;
    }

    /// How many files have become durable, the first ones; begins with more if it is time.
    pub(super) fn poll(&mut self) -> Option<u64> {
        if self.soft == 0 || self.target.is_none() {
            return None;
        }
        let over = self.thread.take_if(|thread| thread.is_finished());
        let done = over.is_some_and(|thread| thread.join().unwrap_or(false));
        let files = done.then(|| std::mem::take(&mut self.under_way));
        self.soft -= files.unwrap_or(0);
        if self.soft > 0 && self.thread.is_none() && self.begun.elapsed() >= EACH {
            self.begin();
        }
        files
    }

    fn begin(&mut self) {
        let Some(target) = &self.target else { return };
        self.begun = Instant::now();
        // Of a file, or of what is not there yet, the folder.
        let above = target.parent().filter(|p| !p.as_os_str().is_empty());
        let above = above.unwrap_or_else(|| Path::new("."));
        // To open a FIFO would wait for whoever writes it.
        let folder = if target.is_dir() { target } else { above };
        let Ok(folder) = File::open(folder) else {
            return;
        };
        self.under_way = self.soft;
        let thread = std::thread::Builder::new().name("journal syncfs".to_owned());
        let flush = move || rustix::fs::syncfs(&folder).is_ok();
        self.thread = thread.spawn(flush).ok();
    }
}
