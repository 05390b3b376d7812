//! Waits for a connection that is made on another thread, until a cancel or a time limit.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use transfer::cancel::CancelToken;
use transfer::connect::{ConnectError, ConnectStep, ResponsibleParty};

/// Longest delay after which a waiting connection notices a cancel.
const CANCEL_SEEN: Duration = Duration::from_millis(50);

/// Runs `work` on a thread and waits for its result. After a cancel, or after `patience`, the
/// thread is left alone.
///
/// # Errors
/// Those of `work`, a cancel, or the time limit.
pub(super) fn wait_for<T: Send + 'static>(
    cancel: &CancelToken,
    patience: Option<Duration>,
    work: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let begun = Instant::now();
    let (done, result) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("connect".to_owned());
    let spawned = thread.spawn(move || {
        // After a cancel there is no receiver any more.
        let _ = done.send(work());
    });
    spawned.map_err(|error| {
        let why = format!("cannot start a thread to connect: {error}");
        ConnectError::this_machine(ConnectStep::Reach, why)
    })?;
    loop {
        match result.recv_timeout(CANCEL_SEEN) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => {
                let why = "internal error: the connecting thread ended unexpectedly";
                return Err(ConnectError::this_machine(ConnectStep::Reach, why));
            }
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                let why = "interrupted";
                return Err(ConnectError::new(
                    ResponsibleParty::User,
                    ConnectStep::Reach,
                    why,
                ));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(patience) = patience.filter(|patience| begun.elapsed() >= *patience) {
            let why = format!("no login within {} s", patience.as_secs());
            return Err(ConnectError::unreachable(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: in a fan-out, a host that accepted the connection and said nothing kept the hosts
    /// behind it from getting the file.
    #[test]
    fn a_host_that_says_nothing_is_given_up() {
        let (never, waits) = mpsc::channel::<()>();
        let work = move || {
            let _ = waits.recv();
            Ok(())
        };
        let cancel = CancelToken::default();
        let given_up = wait_for(&cancel, Some(Duration::ZERO), work).unwrap_err();
        assert_eq!(given_up.check(), ConnectStep::Reach);
        assert_eq!(given_up.to_string(), "no login within 0 s");
        drop(never);
        assert_eq!(wait_for(&cancel, None, || Ok(7)), Ok(7));
        cancel.cancel();
        let (never, waits) = mpsc::channel::<()>();
        let work = move || {
            let _ = waits.recv();
            Ok(())
        };
        assert!(wait_for(&cancel, None, work).is_err());
        drop(never);
    }
}
