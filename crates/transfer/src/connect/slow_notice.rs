//! Shows a message if a connection attempt is slow.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::host_auth_handler::SharedPrompt;

/// The delay after which a slow connection is reported: the kernel takes two minutes to give up on
/// an unreachable host.
const SLOW: Duration = Duration::from_secs(1);

/// Shows a text after one second unless it is dropped before.
pub(super) struct SlowNotice {
    _ends: Sender<()>,
}

impl SlowNotice {
    pub(super) fn start(prompt: SharedPrompt, text: String) -> Self {
        Self::start_after(SLOW, move || {
            if let Ok(mut prompt) = prompt.lock() {
                prompt.show(&text);
            }
        })
    }

    fn start_after(delay: Duration, show: impl FnOnce() + Send + 'static) -> Self {
        let (ends, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
                show();
            }
        });
        Self { _ends: ends }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_shown_of_what_is_over_in_time() {
        let (shown, showed) = mpsc::channel();
        let send = |text: &'static str| {
            let shown = shown.clone();
            move || shown.send(text).expect("it is read")
        };
        let quick = SlowNotice::start_after(Duration::from_secs(600), send("quick"));
        drop(quick);
        let slow = SlowNotice::start_after(Duration::from_millis(1), send("slow"));
        assert_eq!(showed.recv(), Ok("slow"));
        drop((slow, shown));
        // Both threads have ended: the channel has no sender left.
        assert!(showed.recv().is_err());
    }
}
