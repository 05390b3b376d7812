//! Remembers the paths to peer relays, in the same store as host memories.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use relay::strategy::{self, StripeCountStore};
use schedule::{LearnedConcurrency, TransferDirection};
use transfer::memory::HostMemoryStore;

/// Pseudo login name that no account can have: it separates memories of pairs from those of logins.
const USER: &str = "pair:";

/// Learned stripe counts, of this process and earlier ones.
#[derive(Debug)]
pub(super) struct LearnedStripeCounts {
    memories: Option<HostMemoryStore>,
    /// Values loaded or learned since the start.
    known: Mutex<BTreeMap<String, Option<LearnedConcurrency>>>,
}

impl LearnedStripeCounts {
    pub(super) fn new() -> Self {
        Self {
            memories: HostMemoryStore::of_user(),
            known: Mutex::default(),
        }
    }

    fn load(&self, target: &str, rtt: Duration) -> Option<LearnedConcurrency> {
        let (host, port) = split(target)?;
        let memory = self.memories.as_ref()?;
        let mut memory = memory.load(host, port, USER, SystemTime::now())?;
        memory.on_path(None, Some(rtt));
        memory.learned(TransferDirection::Up)
    }
}

impl StripeCountStore for LearnedStripeCounts {
    fn recall(
        &self,
        target: &str,
        rtt: Duration,
    ) -> Option<(strategy::LearnedStripeCount, Duration)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry(target.to_owned());
        let known = known.or_insert_with(|| self.load(target, rtt));
        let now = now();
        if known.is_some_and(|learned| !learned.holds(now, rtt)) {
            // The path to the target has changed.
            *known = self.load(target, rtt);
        }
        let learned = (*known)?;
        let holds = learned.holds(now, rtt).then_some(learned)?;
        let found = strategy::LearnedStripeCount {
            legs: usize::try_from(holds.connections).ok()?,
            rate: holds.rate,
            rtt: Duration::from_micros(holds.rtt_us),
        };
        Some((found, learned.age(now)?))
    }

    fn keep(&self, target: &str, found: strategy::LearnedStripeCount) {
        let learned = LearnedConcurrency {
            direction: TransferDirection::Up,
            connections: u32::try_from(found.legs).unwrap_or(1),
            channels: 1,
            rate: found.rate,
            rtt_us: u64::try_from(found.rtt.as_micros()).unwrap_or(u64::MAX),
            at: now(),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(target.to_owned(), Some(learned));
        let (Some(memories), Some((host, port))) = (self.memories.clone(), split(target)) else {
            return;
        };
        let host = host.to_owned();
        // Written on a thread so that no connection waits for the disk. A failure only means
        // learning again.
        let writes = move || {
            let memory = memories.load(&host, port, USER, SystemTime::now());
            let (mut memory, rtt) = (memory.unwrap_or_default(), found.rtt);
            memory.on_path(None, Some(rtt));
            memory.note_rtt(rtt);
            memory.learn(learned);
            let _ = memories.store(&host, port, USER, &memory, SystemTime::now());
        };
        let _ = thread::Builder::new()
            .name("memory".to_owned())
            .spawn(writes);
    }
}

fn split(target: &str) -> Option<(&str, u16)> {
    let (host, port) = target.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_holds_for_the_same_path_and_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let remembered = || LearnedStripeCounts {
            memories: Some(HostMemoryStore::at(folder.path().to_owned())),
            known: Mutex::default(),
        };
        let rtt = Duration::from_millis(114);
        let found = strategy::LearnedStripeCount {
            legs: 4,
            rate: 84_000_000,
            rtt,
        };
        let first = remembered();
        assert_eq!(first.recall("far:7000", rtt), None);
        first.keep("far:7000", found);
        let recalled =
            |of: &LearnedStripeCounts, rtt| of.recall("far:7000", rtt).map(|(found, _)| found);
        assert_eq!(recalled(&first, rtt), Some(found));
        assert_eq!(recalled(&first, rtt * 3), None);
        assert_eq!(first.recall("far:7001", rtt), None);
        // A thread writes it.
        testkit::wait::until(
            Duration::from_secs(30),
            || recalled(&remembered(), rtt).is_some(),
            || "it was not kept".to_owned(),
        );
        assert_eq!(recalled(&remembered(), rtt), Some(found));
    }
}
