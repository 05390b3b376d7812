//! Time that an interrupted copy may take to end.

use std::time::Duration;

/// Time that jobs may take to remove unfinished files at a server before the run ends without them.
pub(super) const CLEANUP: Duration = Duration::from_secs(5);
/// Time until a copy ends that has nothing to remove there, whatever is on its way: the next run sends
/// again what was not confirmed by then. Longer than a round trip around the world.
const LEAVING: Duration = Duration::from_millis(700);

/// Returns the longest time. The next run continues the unfinished files if there is a journal, and
/// those on this machine are removed without the server.
pub(super) fn longest(has_journal: bool, target_is_remote: bool) -> Duration {
    match target_is_remote && !has_journal {
        true => CLEANUP,
        false => LEAVING,
    }
}
