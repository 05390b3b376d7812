//! Standard output and error of a program, read by two threads while the program runs.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes that a program has written so far to its standard output and to its standard error.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    shared: Arc<Shared>,
    readers: [JoinHandle<()>; 2],
}

/// Both pipes, and the condition that announces each read.
#[derive(Debug, Default)]
struct Shared {
    pipes: Mutex<[Captured; 2]>,
    changed: Condvar,
}

/// Bytes read from one pipe so far.
#[derive(Debug, Default)]
struct Captured {
    bytes: Vec<u8>,
    closed: bool,
}

impl ProgramOutput {
    pub(super) fn of(
        stdout: impl Read + Send + 'static,
        stderr: impl Read + Send + 'static,
    ) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let readers = [
            reader(stdout, 0, Arc::clone(&shared)),
            reader(stderr, 1, Arc::clone(&shared)),
        ];
        Self { shared, readers }
    }

    /// Waits until `text` appears in either pipe; false if `deadline` passes, or if both are closed
    /// before.
    pub(super) fn show(&self, text: &str, deadline: Instant) -> bool {
        let mut pipes = self.shared.lock();
        loop {
            if pipes.iter().any(|pipe| pipe.contains(text)) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || pipes.iter().all(|pipe| pipe.closed) {
                return false;
            }
            let waited = self.shared.changed.wait_timeout(pipes, left);
            pipes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn are_closed(&self) -> bool {
        self.shared.lock().iter().all(|pipe| pipe.closed)
    }

    /// Reads both pipes to their ends, and returns their bytes.
    pub(super) fn finish(self) -> [Vec<u8>; 2] {
        for reader in self.readers {
            let _ = reader.join();
        }
        let mut pipes = self.shared.lock();
        pipes.each_mut().map(|pipe| std::mem::take(&mut pipe.bytes))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, [Captured; 2]> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Captured {
    fn contains(&self, text: &str) -> bool {
        self.bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    }
}

fn reader(mut pipe: impl Read + Send + 'static, nth: usize, shared: Arc<Shared>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut chunk = [0; 16384];
        loop {
            let read = pipe.read(&mut chunk).unwrap_or(0);
            let mut pipes = shared.lock();
            let captured = &mut pipes[nth];
            captured.bytes.extend_from_slice(&chunk[..read]);
            captured.closed = read == 0;
            shared.changed.notify_all();
            if read == 0 {
                return;
            }
        }
    })
}
