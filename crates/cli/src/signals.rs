//! SIGINT, SIGTERM and SIGHUP: the first asks the run to stop, the second ends it at once.

use std::io;
use std::process;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use transfer::cancel::Cancel;

use crate::exit::Exit;

/// Cancels the run at the first signal, so that temporaries are removed before the end. At the second
/// calls `at_once`, which must bring the terminal in order, and ends the process.
///
/// Signals that the process was started with ignored stay ignored: SIGHUP under nohup, SIGINT in
/// the background of a script.
///
/// # Errors
/// The handlers or the thread can't be set up.
pub(crate) fn watch(cancel: Cancel, at_once: impl Fn() + Send + 'static) -> io::Result<()> {
    let ignored = sys::ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP];
    let mut signals = Signals::new(wanted.iter().filter(|s| ignored & (1 << (**s - 1)) == 0))?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for (before, _) in signals.forever().enumerate() {
                if before > 0 {
                    at_once();
                    process::exit(Exit::Interrupted.code().into());
                }
                cancel.cancel();
            }
        })?;
    Ok(())
}
