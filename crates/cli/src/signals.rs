//! SIGINT, SIGTERM and SIGHUP: the first asks the run to stop, the second ends it at once. SIGXFSZ
//! is made a write error.

use std::io;
use std::process;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::exit::Exit;

/// Calls `first` at the first signal, at which a copy removes its temporaries and a server finishes
/// its transfers. At the second signal it calls `at_once`, which must restore the terminal, and
/// ends the process.
///
/// Signals that the process inherited as ignored stay ignored: SIGHUP under nohup, SIGINT in the
/// background of a script.
///
/// # Errors
/// The handlers or the thread can't be set up.
pub(crate) fn watch(
    first: impl FnOnce() + Send + 'static,
    at_once: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    handle(first, at_once, None)
}

/// Handles signals like [`watch`], but each SIGHUP calls `reload`.
///
/// # Errors
/// The handlers or the thread can't be set up.
pub(crate) fn watch_and_reload(
    first: impl FnOnce() + Send + 'static,
    at_once: impl FnOnce() + Send + 'static,
    reload: impl FnMut() + Send + 'static,
) -> io::Result<()> {
    handle(first, at_once, Some(Box::new(reload)))
}

/// Makes a write beyond the process's file size limit fail with an error, as on a full disk,
/// instead of ending the process. Child processes keep the default.
///
/// # Errors
/// The handler can't be set up.
pub(crate) fn too_long_is_an_error() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Ignores the three signals in this process. Child processes are still ended by them.
///
/// # Errors
/// The handlers can't be set up.
pub(crate) fn leave_to_others() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

type ReloadCallback = Box<dyn FnMut() + Send>;

fn handle(
    first: impl FnOnce() + Send + 'static,
    at_once: impl FnOnce() + Send + 'static,
    mut reload: Option<ReloadCallback>,
) -> io::Result<()> {
    let ignored = sys::ignored_signals();
    // SIGHUP for a reload ends nothing, so it works under nohup too.
    let reloads = |signal| reload.is_some() && signal == SIGHUP;
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let wanted = wanted.filter(|s| ignored & (1 << (*s - 1)) == 0 || reloads(*s));
    let mut signals = Signals::new(wanted)?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut ending = signals.forever().filter(|signal| match &mut reload {
                Some(reload) if *signal == SIGHUP => {
                    reload();
                    false
                }
                _ => true,
            });
            if ending.next().is_some() {
                first();
            }
            if ending.next().is_some() {
                at_once();
                process::exit(Exit::Interrupted.code().into());
            }
        })?;
    Ok(())
}
