//! Holds all copies until the names of all their sources are known, and refuses them together if
//! two sources would land on one name. Limits the number of copies that run at once.
//!
//! A host that does not name its sources in time is not waited for: the others are copied, and it
//! is admitted later if its names are still free.

use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use transfer::cancel::CancelToken;
use transfer::copy::{NamedSource, alike_name, alike_sources, equal_names};
use transfer::report::{EscapedName, ItemFailure};

/// How often a waiting copy checks for a cancel.
const CANCEL_SEEN: Duration = Duration::from_millis(50);

/// Time without an arrival after which the copies that have named their sources stop waiting for
/// the others.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Tells whether the target takes two names for one.
pub(super) type AreOne<'a> = &'a (dyn Fn(&[u8], &[u8]) -> bool + Sync);

/// Holds all copies until the names of all their sources are known.
pub(super) struct SourceNamesBarrier<'a> {
    state: Mutex<SourceNamesBarrierState>,
    changed: Condvar,
    are_one: AreOne<'a>,
}

/// Copies that the barrier still waits for, and the decision about those that have arrived.
struct SourceNamesBarrierState {
    /// Copies that have not named their sources yet.
    missing: usize,
    /// The copies that have arrived were judged, and no longer wait.
    open: bool,
    /// Time at which the last copy was counted.
    counted: Instant,
    /// Sources of the copies that have arrived.
    sources: Vec<NamedSource>,
    /// Two sources of one host have the same name; its copy reports them.
    differ: bool,
    refused: Option<ItemFailure>,
}

impl<'a> SourceNamesBarrier<'a> {
    /// Creates a gate for this number of copies to one target.
    pub(super) fn new(copies: usize, are_one: AreOne<'a>) -> Self {
        Self {
            are_one,
            state: Mutex::new(SourceNamesBarrierState {
                missing: copies,
                open: false,
                counted: Instant::now(),
                sources: Vec::new(),
                differ: true,
                refused: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds the sources of a copy; `differ` is false if two of them have the same name. Returns the
    /// sources for which this copy alone is refused: it comes after the others have begun, and they
    /// have taken these names.
    pub(super) fn arrive(&self, sources: &[NamedSource], differ: bool) -> Option<ItemFailure> {
        let mut state = self.lock();
        if state.open {
            return match differ && state.admits() {
                true => state.admit_late(sources, self.are_one),
                false => None,
            };
        }
        state.sources.extend_from_slice(sources);
        state.differ &= differ;
        state.count(self.are_one);
        self.changed.notify_all();
        None
    }

    /// Counts a copy that ends without sources.
    pub(super) fn leave(&self) {
        self.lock().count(self.are_one);
        self.changed.notify_all();
    }

    /// Waits for all copies, until none has arrived for `patience`. Returns false if nothing may be
    /// copied. Calls `impatient` with the number of missing copies if the others begin without
    /// them.
    pub(super) fn wait(
        &self,
        cancel: &CancelToken,
        patience: Duration,
        impatient: impl FnOnce(usize),
    ) -> bool {
        let mut state = self.lock();
        while !state.open {
            if cancel.is_cancelled() {
                return false;
            }
            if state.counted.elapsed() >= patience {
                state.open(self.are_one);
                self.changed.notify_all();
                impatient(state.missing);
                break;
            }
            let woken = self.changed.wait_timeout(state, CANCEL_SEEN);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.admits()
    }

    /// Reason why all copies were refused, if no single copy reports it.
    pub(super) fn refused(&self) -> Option<ItemFailure> {
        self.lock().refused.clone()
    }

    /// True if the copies were refused.
    pub(super) fn is_closed(&self) -> bool {
        !self.lock().admits()
    }

    fn lock(&self) -> MutexGuard<'_, SourceNamesBarrierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SourceNamesBarrierState {
    /// True unless all copies are refused.
    fn admits(&self) -> bool {
        self.differ && self.refused.is_none()
    }

    /// Adds the sources of a copy that comes after the others have begun, unless they have taken
    /// its names. Returns the sources for which it is refused.
    fn admit_late(&mut self, sources: &[NamedSource], are_one: AreOne<'_>) -> Option<ItemFailure> {
        let admitted = self.sources.len();
        self.sources.extend_from_slice(sources);
        let result = "this host answered after the copy had begun, and nothing of it was copied";
        let refused = clashes(&self.sources, result, are_one);
        if refused.is_some() {
            self.sources.truncate(admitted);
        }
        refused
    }

    fn count(&mut self, are_one: AreOne<'_>) {
        self.missing = self.missing.saturating_sub(1);
        self.counted = Instant::now();
        if self.missing == 0 && !self.open {
            self.open(are_one);
        }
    }

    /// Judges the copies that have arrived.
    fn open(&mut self, are_one: AreOne<'_>) {
        self.open = true;
        // A host whose own sources clash reports them.
        if self.differ {
            self.refused = clashes(&self.sources, "nothing was copied", are_one);
        }
    }
}

/// One failure for all sources that would get the name of an earlier one; `result` says what was
/// copied.
pub(super) fn clashes(
    sources: &[NamedSource],
    result: &str,
    are_one: AreOne<'_>,
) -> Option<ItemFailure> {
    let mut seen: HashMap<&[u8], &EscapedName> = HashMap::new();
    let mut refused = Vec::new();
    for source in sources {
        let Some(name) = &source.name else { continue };
        match seen.entry(name) {
            Entry::Vacant(place) => {
                place.insert(&source.source);
            }
            // The same operand twice is copied once.
            Entry::Occupied(first) if **first.get() == source.source => {}
            Entry::Occupied(first) => refused.push((*first.get(), source, name)),
        }
    }
    let (second, what) = match refused.first() {
        Some((first, second, name)) => (*second, equal_names(first, name, refused.len() - 1)),
        None => {
            let (first, second) = alike_sources(sources, are_one)?;
            (second, alike_name(first))
        }
    };
    let reason = format!("{what}: {result}; use --by-host to give each host its own directory");
    Some(ItemFailure::new(second.source.clone(), reason))
}

/// Number of further copies that may run now; a copy waits here for a [`CopyPermit`].
pub(super) struct CopySemaphore {
    free: Mutex<usize>,
    changed: Condvar,
}

/// Permission to run, until it is dropped.
pub(super) struct CopyPermit<'a>(&'a CopySemaphore);

impl CopySemaphore {
    pub(super) fn new(free: usize) -> Self {
        Self {
            free: Mutex::new(free),
            changed: Condvar::new(),
        }
    }

    /// Lets more copies run, since others do not come to an end.
    pub(super) fn add(&self, more: usize) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += more;
        self.changed.notify_all();
    }

    /// Waits for a turn; `None` after a cancel.
    pub(super) fn take(&self, cancel: &CancelToken) -> Option<CopyPermit<'_>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            if cancel.is_cancelled() {
                return None;
            }
            let woken = self.changed.wait_timeout(free, CANCEL_SEEN);
            free = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Some(CopyPermit(self))
    }
}

impl Drop for CopyPermit<'_> {
    fn drop(&mut self) {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free += 1;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(host: &str, name: &str) -> NamedSource {
        NamedSource {
            source: EscapedName(format!("{host}:/log/{name}").into_bytes()),
            name: Some(name.as_bytes().to_vec()),
        }
    }

    fn waits(gate: &SourceNamesBarrier<'_>, cancel: &CancelToken) -> bool {
        gate.wait(cancel, PATIENCE, |_| panic!("nobody is missing"))
    }

    /// Bug: a server that never answered the listing of its directory kept all other hosts waiting
    /// for ever.
    #[test]
    fn a_host_that_never_names_its_files_is_not_waited_for() {
        let gate = SourceNamesBarrier::new(3, &|_, _| false);
        let cancel = CancelToken::default();
        let mut told = 0;
        assert_eq!(gate.arrive(&[named("a", "x")], true), None);
        assert_eq!(gate.arrive(&[named("b", "y")], true), None);
        assert!(gate.wait(&cancel, Duration::ZERO, |missing| told = missing) && told == 1);
        assert!(waits(&gate, &cancel), "the second does not wait again");
        // Later, its names decide.
        let late = gate.arrive(&[named("c", "z"), named("c", "y")], true);
        assert!(
            late.unwrap()
                .reason
                .contains("this host answered after the copy had begun")
        );
        assert_eq!(gate.arrive(&[named("c", "z")], true), None);
        assert!(waits(&gate, &cancel) && !gate.is_closed());
        assert!(gate.arrive(&[named("d", "z")], true).is_some());
    }

    #[test]
    fn a_name_on_two_hosts_refuses_all_and_names_both() {
        let gate = SourceNamesBarrier::new(3, &|_, _| false);
        gate.arrive(&[named("a", "x"), named("a", "y")], true);
        gate.leave();
        gate.arrive(&[named("b", "z"), named("b", "y")], true);
        assert!(!waits(&gate, &CancelToken::default()));
        let refused = gate.refused().unwrap();
        assert_eq!(refused.path, EscapedName(b"b:/log/y".to_vec()));
        assert!(
            refused
                .reason
                .contains("has the same name (\"y\") as a:/log/y, so one would overwrite the other: nothing was copied; use --by-host to give each host its own directory")
        );
        assert!(refused.reason.contains("--by-host"));
    }

    /// Bug: on a file system that ignores case, the file of one host replaced that of another, in
    /// silence.
    #[test]
    fn names_that_are_one_at_the_target_refuse_all_and_a_late_host_alone() {
        let ignores_case = |one: &[u8], other: &[u8]| one.eq_ignore_ascii_case(other);
        let gate = SourceNamesBarrier::new(2, &ignores_case);
        gate.arrive(&[named("a", "x"), named("a", "y")], true);
        gate.arrive(&[named("b", "z"), named("b", "Y")], true);
        assert!(!waits(&gate, &CancelToken::default()));
        let refused = gate.refused().unwrap();
        assert_eq!(refused.path, EscapedName(b"b:/log/Y".to_vec()));
        assert!(
            refused
                .reason
                .contains("a:/log/y has the same name in the target")
        );

        let gate = SourceNamesBarrier::new(2, &ignores_case);
        gate.arrive(&[named("a", "x")], true);
        assert!(gate.wait(&CancelToken::default(), Duration::ZERO, |_| {}));
        let late = gate.arrive(&[named("b", "X")], true);
        assert!(
            late.unwrap()
                .reason
                .contains("this host answered after the copy had begun")
        );
        assert_eq!(gate.arrive(&[named("c", "z")], true), None);
    }

    /// Regression: twelve hosts with the same file gave eleven sentences with the same advice.
    #[test]
    fn many_equal_names_are_counted_in_one_sentence() {
        let named = |host: usize| named(&format!("h{host}"), "error");
        let all: Vec<NamedSource> = (1..=12).map(named).collect();
        let refused = clashes(&all, "nothing was copied", &|_, _| false).unwrap();
        assert_eq!(refused.path, EscapedName(b"h2:/log/error".to_vec()));
        assert!(refused.reason.starts_with(
            "has the same name (\"error\") as h1:/log/error, so one would overwrite the other (10 \
             other sources clash as well): nothing was copied; use --by-host"
        ));
        assert_eq!(
            clashes(&all[..1], "nothing was copied", &|_, _| false),
            None
        );
    }

    #[test]
    fn names_that_differ_are_admitted_without_hosts_that_are_down() {
        let gate = SourceNamesBarrier::new(2, &|_, _| false);
        gate.leave();
        gate.arrive(&[named("b", "y")], true);
        assert!(waits(&gate, &CancelToken::default()) && !gate.is_closed());
    }

    #[test]
    fn equal_names_on_one_host_refuse_the_others_too() {
        let gate = SourceNamesBarrier::new(2, &|_, _| false);
        gate.arrive(&[named("a", "x")], true);
        gate.arrive(&[named("b", "y"), named("b", "y")], false);
        assert!(!waits(&gate, &CancelToken::default()) && gate.is_closed());
        assert_eq!(gate.refused(), None);
    }

    #[test]
    fn a_cancel_ends_the_wait_for_a_host_that_does_not_answer() {
        let (gate, turns) = (
            SourceNamesBarrier::new(2, &|_, _| false),
            CopySemaphore::new(0),
        );
        let cancel = CancelToken::default();
        cancel.cancel();
        gate.arrive(&[named("a", "x")], true);
        assert!(!waits(&gate, &cancel) && turns.take(&cancel).is_none());
    }
}
