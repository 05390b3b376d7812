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
    let ignored = ignored_signals();
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

/// The mask of ignored signals, bit 0 for signal 1; none where the system has no /proc.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    mask(&status)
}

fn mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask() {
        assert_eq!(
            mask("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t00\n"),
            0x1001
        );
        assert_eq!(mask(""), 0);
    }
}
