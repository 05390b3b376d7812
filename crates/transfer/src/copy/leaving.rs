//! Time that an interrupted copy may take to end.

use std::time::{Duration, Instant};

use super::context::CopyContext;
use super::sides::CopySide;

/// Time that jobs may take to remove unfinished files at a server before the run ends without them.
pub(super) const CLEANUP: Duration = Duration::from_secs(5);
/// Time until a copy ends that has nothing to remove there, whatever is on its way: the next run sends
/// again what was not confirmed by then. Longer than a round trip around the world.
const LEAVING: Duration = Duration::from_millis(700);
/// Silence of a server after which it is not waited for to remove files: a WRITE of 32 KiB is answered
/// in this time over 16 KB/s.
const SILENT: Duration = Duration::from_secs(2);

/// Time at which an interrupted copy ends, whatever is on its way.
#[derive(Clone, Copy, Debug)]
struct LeaveTime {
    interrupted: Instant,
    /// Unfinished files are removed at a server.
    cleans_up: bool,
}

impl LeaveTime {
    /// The copy was interrupted at `now`. The next run continues the unfinished files if there is a
    /// journal, and those on this machine are removed without the server.
    fn new(now: Instant, has_journal: bool, target_is_remote: bool) -> Self {
        Self {
            interrupted: now,
            cleans_up: target_is_remote && !has_journal,
        }
    }

    /// Returns the time; `heard` is when the target's server sent something last.
    fn at(self, heard: Option<Instant>) -> Instant {
        let least = self.interrupted + LEAVING;
        match heard.filter(|_| self.cleans_up) {
            Some(heard) => (heard + SILENT).clamp(least, self.interrupted + CLEANUP),
            None => least,
        }
    }
}

/// End of a copy that was interrupted.
#[derive(Debug, Default)]
pub(super) struct EndOfCopy {
    /// `None` while the copy runs, and for a shard.
    time: Option<LeaveTime>,
}

impl EndOfCopy {
    /// Notes that the copy was interrupted. `has_journal` means that the next run continues it.
    pub(super) fn interrupted(&mut self, context: &CopyContext<'_>, has_journal: bool) {
        // A scheduler that ends a shard gives it time, in which files in flight are completed.
        let is_shard = has_journal && context.options().journal_folder.is_some();
        let (now, to_server) = (context.now(), context.target_is_remote());
        self.time = (!is_shard).then(|| LeaveTime::new(now, has_journal, to_server));
    }

    /// Time at which the copy ends without what is still on its way.
    pub(super) fn time(&self, context: &CopyContext<'_>) -> Option<Instant> {
        let target = context.side(CopySide::Target);
        let heard = target.and_then(|side| side.session().heard());
        Some(self.time?.at(heard))
    }

    pub(super) fn is_due(&self, context: &CopyContext<'_>) -> bool {
        self.time(context).is_some_and(|by| context.now() >= by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Bug: after Ctrl-C, an upload without a journal waited 5 s for a server that never answered its
    /// OPEN; a download ended after 0.7 s.
    #[test]
    fn a_server_that_is_silent_is_not_waited_for_after_an_interrupt() {
        let heard = Instant::now();
        let now = heard + 3 * SECOND;
        let upload = LeaveTime::new(now, false, true);
        assert_eq!(upload.at(None), now + LEAVING, "it has never answered");
        assert_eq!(upload.at(Some(heard)), now + LEAVING);
        for (heard, expected) in [
            (now, now + SILENT),
            (now + SECOND, now + SECOND + SILENT),
            (now + 4 * SECOND, now + CLEANUP),
        ] {
            assert_eq!(upload.at(Some(heard)), expected, "it answers");
        }
        for other in [
            LeaveTime::new(now, true, true),
            LeaveTime::new(now, false, false),
        ] {
            assert_eq!(other.at(Some(now)), now + LEAVING, "{other:?}");
        }
    }

    /// Whenever the server was heard last, an interrupted copy waits neither for nothing nor longer
    /// than five seconds, and a server that answers later is not waited for less long.
    #[test]
    fn an_interrupted_copy_waits_for_a_bounded_time() {
        let start = Instant::now();
        let now = start + 100 * SECOND;
        for (has_journal, to_server) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let leave = LeaveTime::new(now, has_journal, to_server);
            let mut last = leave.at(None);
            for tenth in 0..1200 {
                let at = leave.at(Some(start + SECOND / 10 * tenth));
                assert!(at >= last, "it waits less for a server that answers later");
                assert!(at >= now + LEAVING && at <= now + CLEANUP, "{at:?}");
                let cleans_up = to_server && !has_journal;
                assert!(cleans_up || at == now + LEAVING, "nothing is removed there");
                last = at;
            }
        }
    }
}
