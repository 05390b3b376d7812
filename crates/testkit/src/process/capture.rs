//! Output of a program, read by a thread while the program runs.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that a program has written so far.
#[derive(Debug)]
pub(super) struct Capture {
    state: Arc<(Mutex<Captured>, Condvar)>,
    reader: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Captured {
    bytes: Vec<u8>,
    closed: bool,
}

impl Capture {
    pub(super) fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let state: Arc<(Mutex<Captured>, Condvar)> = Arc::default();
        let shared = Arc::clone(&state);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 16384];
            loop {
                let read = pipe.read(&mut chunk).unwrap_or(0);
                let mut captured = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                captured.bytes.extend_from_slice(&chunk[..read]);
                captured.closed = read == 0;
                shared.1.notify_all();
                if read == 0 {
                    return;
                }
            }
        });
        Self { state, reader }
    }

    pub(super) fn contains(&self, text: &str) -> bool {
        let captured = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        captured
            .bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    }

    pub(super) fn closed(&self) -> bool {
        self.state
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .closed
    }

    pub(super) fn wait(&self, limit: Duration) {
        let captured = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = if captured.closed {
            drop(captured);
            std::thread::sleep(limit);
            return;
        } else {
            self.state.1.wait_timeout(captured, limit)
        };
        drop(waited);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let _ = self.reader.join();
        std::mem::take(
            &mut self
                .state
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .bytes,
        )
    }
}
