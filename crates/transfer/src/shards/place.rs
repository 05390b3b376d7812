//! Identity of this process, by which other workers check if it is alive.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use shard::HolderProcess;

use crate::journal::boot_here;

/// Returns the place of this process.
pub(super) fn here() -> HolderProcess {
    let process = u64::from(std::process::id());
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    let namespace = fs::read_link("/proc/self/ns/pid").map(|link| link.into_os_string());
    let namespace = namespace.unwrap_or_default();
    HolderProcess {
        host: shortened(&host),
        boot: shortened(&boot_here()),
        namespace: shortened(namespace.as_bytes()),
        process,
        start: start_of(process).unwrap_or_default(),
    }
}

/// True if the process is known to be gone: its IDs mean the same here, and no process has its ID
/// and start time.
pub(super) fn is_gone(place: &HolderProcess, here: &HolderProcess) -> bool {
    place.start > 0
        && place.shares_processes_with(here)
        && start_of(place.process) != Some(place.start)
}

/// Start time of a process in clock ticks since boot (proc(5), field 22); `None` if there is no
/// such process or it is a zombie.
fn start_of(process: u64) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn shortened(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_lives_and_another_start_time_does_not() {
        let here = here();
        assert!(here.start > 0 && !is_gone(&here, &here), "{here:?}");
        let before = HolderProcess {
            start: here.start + 1,
            ..here.clone()
        };
        assert!(is_gone(&before, &here));
        let elsewhere = HolderProcess {
            boot: "other".to_owned(),
            ..before
        };
        assert!(!is_gone(&elsewhere, &here));
    }
}
