//! Waits for a connection that is made on another thread, until a cancel or a time limit.

use std::thread;
use std::time::Duration;

use crossbeam_channel::{after, bounded, never, select_biased};
use transfer::cancel::CancelToken;
use transfer::connect::{ConnectError, ConnectStep, ResponsibleParty};

use crate::output::console::Console;

/// Runs `work` on a thread and waits for its result. After a cancel, or after `patience`, the thread
/// is left alone.
///
/// # Errors
/// Those of `work`, a cancel, or the time limit.
pub(super) fn wait_for<T: Send + 'static>(
    cancel: &CancelToken,
    patience: Option<Duration>,
    work: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let (done, result) = bounded(1);
    let thread = thread::Builder::new().name("connect".to_owned());
    let spawned = thread.spawn(move || {
        // After a cancel there is no receiver any more.
        let _ = done.send(work());
    });
    spawned.map_err(|error| {
        let why = format!(
            "this machine cannot start a thread to connect: {error}; check its limits (ulimit -u)"
        );
        ConnectError::this_machine(ConnectStep::Reach, why)
    })?;
    let too_late = patience.map_or_else(never, after);
    select_biased! {
        recv(result) -> result => result.unwrap_or_else(|_| {
            let why = "internal error: the connecting thread ended unexpectedly";
            Err(ConnectError::this_machine(ConnectStep::Reach, why))
        }),
        recv(cancel.receiver()) -> _ => {
            let why = "interrupted";
            Err(ConnectError::new(ResponsibleParty::User, ConnectStep::Reach, why))
        }
        recv(too_late) -> _ => {
            let seconds = patience.unwrap_or_default().as_secs();
            Err(ConnectError::unreachable(format!("no login within {seconds} s: check that ssh to \
                this host works")))
        }
    }
}

/// Runs `work` on a thread until it is done or cancelled. Connecting waits for hosts, name servers
/// and people, and none of these waits can be interrupted. After a cancel the thread is left alone
/// and ends with the process.
///
/// # Errors
/// Those of `work`, or a cancel.
pub(super) fn until_cancelled<T: Send + 'static>(
    console: &Console,
    cancel: &CancelToken,
    work: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let result = wait_for(cancel, None, work);
    if cancel.is_cancelled() {
        // A password prompt may have switched echo off.
        console.restore();
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

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
        let said = given_up.to_string();
        assert!(said.starts_with("no login within 0 s: "), "{said}");
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
