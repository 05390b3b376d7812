//! SIGINT, SIGTERM and SIGHUP: the first asks the run to stop, the second ends it at once. SIGXFSZ
//! ends nothing.

use std::io;
use std::process;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::exit::Exit;

/// Calls `first` at the first signal: a copy removes its temporaries then, and a server lets what it
/// transfers end. At the second calls `at_once`, which must bring the terminal in order, and ends the
/// process.
///
/// Signals that the process was started with ignored stay ignored: SIGHUP under nohup, SIGINT in
/// the background of a script.
///
/// # Errors
/// The handlers or the thread can't be set up.
pub(crate) fn watch(
    first: impl FnOnce() + Send + 'static,
    at_once: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    handle(first, at_once, None)
}

/// The same, but that SIGHUP calls `reload`, each time.
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

/// A file that would be longer than the process's limit fails its write with a reason, as on a full
/// disk, instead of ending the process. Programs that this process starts have it as it was.
///
/// # Errors
/// The handler can't be set up.
pub(crate) fn too_long_is_an_error() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Nothing happens at any of them. Programs that this process starts are ended by them again.
///
/// # Errors
/// The handlers can't be set up.
pub(crate) fn leave_to_others() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

type Reload = Box<dyn FnMut() + Send>;

fn handle(
    first: impl FnOnce() + Send + 'static,
    at_once: impl FnOnce() + Send + 'static,
    mut reload: Option<Reload>,
) -> io::Result<()> {
    let ignored = sys::ignored_signals();
    // What is asked for by a signal is no end that nohup keeps away.
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
