//! Copies from or to several hosts at once: one copy for each host, with one display and one
//! result.

mod barrier;
mod chain;
mod combined;
mod completing;
mod hosts_file;
mod operands;
mod progress;
mod remote_operand_roles;

use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use transfer::cancel::CancelToken;
use transfer::connect::ConnectError;
use transfer::copy::{
    self, CopyLocation, CopyRequest, HostId, NamedSource, SessionConnector, SourceName,
    TransferEstimate, alike_sources,
};
use transfer::report::{
    CopyEvent, CopyOutcome, CopySummary, EscapedName, HostCopyReason, ItemFailure, ProgressCounters,
};
use transfer::session::{Session, SharedRateLimit};
use transfer::sums::ChecksumLedger;

use self::barrier::{AreOne, CopyPermit, CopySemaphore, PATIENCE, SourceNamesBarrier, clashes};
use self::chain::{ChainObstacle, HostChain, SizeSelection, contents};
use self::combined::{HostCopyResult, combined, joined};
use self::operands::parts;
pub(crate) use self::operands::{MultiHostCopy, resolve};
#[cfg(test)]
pub(crate) use self::progress::HostCopyState;
pub(crate) use self::progress::HostProgress;
use self::progress::{HostCopyProgress, MultiHostProgress};
use crate::connect::Hosts;
use crate::cp::PreparedCopy;
use crate::flags::high::CommandLineOperands;
use crate::output::closing;
use crate::output::snapshot::RunCounters as _;

/// Copies that run at once. Each has a few connections of its own.
const AT_ONCE: usize = 16;
/// Time in which no copy has moved data after which the run waits only for lost connections.
const STANDSTILL: Duration = Duration::from_secs(5);
/// How often that is checked.
const LOOK: Duration = Duration::from_millis(500);

/// One copy of several.
#[derive(Clone)]
struct HostCopyRequest {
    host: HostId,
    name: String,
    request: CopyRequest,
}

impl HostCopyRequest {
    /// Returns the request for the files of these sizes.
    fn with(&self, sizes: SizeSelection) -> Self {
        Self {
            host: self.host,
            name: self.name.clone(),
            request: sizes.of(self.request.clone()),
        }
    }
}

/// Result of the copy of a host's small files.
enum SmallFiles {
    Copied(CopiedSmallFiles),
    /// The copy ended early, so the large files are not copied.
    Failed(CopySummary),
}

/// Result of a host's copy of small files, after which its large files follow from another host or
/// from here.
struct CopiedSmallFiles {
    summary: CopySummary,
    /// The reason why the large files must come from here.
    not_received: Option<NotReceived>,
}

/// Reason why a host cannot get the large files from another host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotReceived {
    /// The target did not exist and became the copy itself, so files there have other paths.
    OtherPaths,
    /// The number of large files has changed since the search.
    Changed,
}

impl NotReceived {
    fn clause(self) -> &'static str {
        match self {
            Self::OtherPaths => "the target directory did not exist",
            Self::Changed => "large files at the source have changed since they were listed",
        }
    }
}

/// Copies to or from all hosts, and combines their results.
pub(crate) fn copy(
    several: &MultiHostCopy,
    typed: &CommandLineOperands,
    request: &CopyRequest,
    run: &PreparedCopy<'_>,
) -> CopySummary {
    let start = Instant::now();
    let hosts = run.hosts();
    let mut summary = match parts(several, request, hosts.destinations()) {
        Ok(parts) => {
            let named = parts.into_iter().map(|(host, request)| HostCopyRequest {
                name: SessionConnector::name(hosts, host),
                host,
                request,
            });
            let target = match &request.target {
                CopyLocation::Local(path) => path,
                CopyLocation::Remote { .. } => Path::new(""),
            };
            copy_parts(several, target, named.collect(), run)
        }
        Err(why) => CopySummary {
            outcome: CopyOutcome::Misconfigured(why.to_string()),
            ..CopySummary::default()
        },
    };
    summary.elapsed = start.elapsed();
    let lacks: Vec<bool> = summary
        .hosts
        .iter()
        .map(|host| completing::lacks_files(several, host))
        .collect();
    if lacks.contains(&true) && lacks.contains(&false) {
        let whole: Vec<_> = std::env::args_os().collect();
        let hosts = hosts.destinations();
        let words = completing::words(&whole, typed, (several, request), hosts, &lacks);
        let command = closing::command(words.unwrap_or(whole).into_iter());
        let step = completing::step(several, &summary.hosts, &lacks, &command);
        run.output().set_completing(step);
    }
    summary
}

fn copy_parts(
    several: &MultiHostCopy,
    target: &Path,
    parts: Vec<HostCopyRequest>,
    run: &PreparedCopy<'_>,
) -> CopySummary {
    let one_target = matches!(several, MultiHostCopy::Gather { by_host: false, .. });
    let are_one = |one: &[u8], other: &[u8]| match several {
        MultiHostCopy::Gather { .. } => copy::are_one_at(target, one, other),
        MultiHostCopy::FanOut(_) => false,
    };
    let refused = match one_target {
        true => clashes(&known_names(&parts), "nothing was copied", &are_one),
        false => directories_are_one(&parts, &are_one),
    };
    if let Some(refused) = refused {
        return CopySummary {
            outcome: CopyOutcome::Partial,
            failed: 1,
            failures: vec![refused],
            ..CopySummary::default()
        };
    }
    let asks = |part: &HostCopyRequest| {
        let matched = |source| SourceName::of(source) == SourceName::Matched;
        part.request.sources.iter().any(matched)
    };
    let asks = one_target && parts.iter().any(asks);
    let gate = asks.then(|| SourceNamesBarrier::new(parts.len(), &are_one));
    raise_descriptors(parts.len());
    let (chain, why_not) = match several {
        MultiHostCopy::FanOut(_) => match HostChain::new(&parts, run) {
            Ok(chain) => (Some(chain), None),
            Err(why) => (None, Some(why.reason())),
        },
        MultiHostCopy::Gather { .. } => (None, None),
    };
    let at_once = parts.len().min(AT_ONCE);
    let all = SharedCopyState {
        run,
        gate,
        chain,
        why_not: Mutex::new(why_not),
        fans_out: matches!(several, MultiHostCopy::FanOut(_)),
        turns: CopySemaphore::new(at_once),
        at_once,
        limit: run.hosts().shared_limit(),
        copies: AtomicU64::new(0),
    };
    let progress = MultiHostProgress::new(parts.iter().map(|part| part.name.clone()));
    let results = run.showing(&progress, |progress| all.copy(parts, progress));
    let way = match several {
        MultiHostCopy::FanOut(_) => {
            let from = results.iter().filter(|end| end.summary.files > 0);
            let from: Vec<_> = from
                .map(|end| (end.host.clone(), end.from.clone()))
                .collect();
            let why_not = all.why_not.into_inner();
            chain::way(&from, why_not.unwrap_or_else(PoisonError::into_inner))
        }
        MultiHostCopy::Gather { .. } => None,
    };
    let mut summary = combined(results);
    summary.fans_out = matches!(several, MultiHostCopy::FanOut(_));
    summary.way = way;
    if let Some(gate) = all.gate {
        name_refused_sources(&mut summary, gate);
    }
    summary
}

/// Adds what the barrier refused, so that no host's copy counts as complete.
fn name_refused_sources(summary: &mut CopySummary, barrier: SourceNamesBarrier<'_>) {
    if !barrier.is_closed() || summary.outcome == CopyOutcome::Interrupted {
        return;
    }
    summary.outcome = CopyOutcome::Partial;
    let refused = barrier.refused();
    summary.failed += u64::from(refused.is_some());
    summary.failures.extend(refused);
    for host in &mut summary.hosts {
        if host.outcome == CopyOutcome::Complete {
            host.outcome = CopyOutcome::Partial;
        }
    }
}

/// Refuses hosts whose directories of `--by-host` differ in name and are one at the target.
fn directories_are_one(parts: &[HostCopyRequest], are_one: AreOne<'_>) -> Option<ItemFailure> {
    let named = |part: &HostCopyRequest| match &part.request.target {
        CopyLocation::Local(path) => Some(NamedSource {
            source: EscapedName(part.name.clone().into_bytes()),
            name: Some(path.file_name()?.as_bytes().to_vec()),
        }),
        CopyLocation::Remote { .. } => None,
    };
    let named: Vec<NamedSource> = parts.iter().filter_map(named).collect();
    let (first, second) = alike_sources(&named, are_one)?;
    let what = format!(
        "it would get the same directory as {}, because the file system of the target ignores case \
         or normalizes names; nothing was copied: copy them to different directories",
        first.source
    );
    Some(ItemFailure::new(second.source.clone(), what))
}

/// Operands whose names in the target are known, with these names. Those that a filter leaves out
/// clash with nothing.
fn known_names(parts: &[HostCopyRequest]) -> Vec<NamedSource> {
    let is_left_out = |part: &HostCopyRequest, name: &[u8]| {
        let filter = part.request.options.filter.as_ref();
        filter.is_some_and(|filter| filter.leaves_out(name))
    };
    let named =
        |part: &HostCopyRequest, source: &CopyLocation| match (source, SourceName::of(source)) {
            (CopyLocation::Remote { path, .. }, SourceName::Known(name))
                if !is_left_out(part, &name) =>
            {
                Some(NamedSource {
                    source: EscapedName([part.name.as_bytes(), b":", path].concat()),
                    name: Some(name),
                })
            }
            _ => None,
        };
    let each = parts.iter().flat_map(|part| {
        let sources = part.request.sources.iter();
        sources.map(move |source| (part, source))
    });
    each.filter_map(|(part, source)| named(part, source))
        .collect()
}

/// Raises the limit of open files: copies that wait for each other keep their connections.
fn raise_descriptors(copies: usize) {
    if copies > AT_ONCE {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // A lower limit makes connections fail, which names their hosts.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// State that the copies of all hosts share.
struct SharedCopyState<'a> {
    run: &'a PreparedCopy<'a>,
    gate: Option<SourceNamesBarrier<'a>>,
    chain: Option<HostChain<'a>>,
    /// The reason why a host got the data from here that might have got it from another one.
    why_not: Mutex<Option<HostCopyReason>>,
    /// The copies go to hosts.
    fans_out: bool,
    turns: CopySemaphore,
    at_once: usize,
    /// `--limit`, which the running copies share.
    limit: Option<SharedRateLimit>,
    /// Copies that were begun.
    copies: AtomicU64,
}

/// Tells the chain of the end of a host's copy when dropped, whatever has ended it: other hosts
/// wait for it.
struct CopyEnding<'a> {
    chain: Option<&'a HostChain<'a>>,
    number: usize,
    outcome: CopyOutcome,
}

impl Drop for CopyEnding<'_> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain {
            chain.end(self.number, &self.outcome);
        }
    }
}

impl SharedCopyState<'_> {
    fn copy(
        &self,
        parts: Vec<HostCopyRequest>,
        progress: &MultiHostProgress,
    ) -> Vec<HostCopyResult> {
        let over = CancelToken::default();
        thread::scope(|scope| {
            if let Some(chain) = &self.chain {
                let (watched, summed) = (over.clone(), over.clone());
                scope.spawn(move || chain.watch(&watched));
                scope.spawn(move || chain.sum_up(&summed));
            }
            if self.fans_out {
                let over = over.clone();
                scope.spawn(move || self.watch(progress, &over));
            }
            let parts = parts.into_iter().zip(progress.each()).enumerate();
            let started: Vec<_> = parts
                .map(|(number, (part, progress))| {
                    let name = part.name.clone();
                    let thread = thread::Builder::new().name("copy".to_owned());
                    let ending = CopyEnding {
                        chain: self.chain.as_ref(),
                        number,
                        outcome: CopyOutcome::Partial,
                    };
                    let copy = move || self.copy_one(ending, part, progress);
                    (name, thread.spawn_scoped(scope, copy))
                })
                .collect();
            let ended = started
                .into_iter()
                .enumerate()
                .map(|(number, (host, thread))| {
                    let summary = match thread {
                        Ok(thread) => thread.join().unwrap_or_else(|_| {
                            failed("internal error: the copy of this host ended early")
                        }),
                        Err(error) => {
                            if let Some(gate) = &self.gate {
                                gate.leave();
                            }
                            failed(&format!(
                                "this machine cannot start a thread for this host: {error}; check \
                                 its limits (ulimit -u)"
                            ))
                        }
                    };
                    HostCopyResult {
                        host,
                        from: self.chain.as_ref().and_then(|chain| chain.from(number)),
                        summary,
                    }
                });
            let ended = ended.collect();
            over.cancel();
            ended
        })
    }

    /// Notes until `over` when no copy moves data, so that nothing but lost connections is waited
    /// for.
    fn watch(&self, progress: &MultiHostProgress, over: &CancelToken) {
        let moved = || progress.bytes_moved().saturating_add(progress.bytes_done());
        let (mut last, mut since) = (moved(), Instant::now());
        while !over.is_cancelled() {
            let now = moved();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let stands = since.elapsed() > STANDSTILL;
            self.run.hosts().set_awaited(stands);
            // A cancel disconnects the channel.
            let _ = over.receiver().recv_timeout(LOOK);
        }
    }

    fn copy_one(
        &self,
        mut ending: CopyEnding<'_>,
        part: HostCopyRequest,
        progress: &HostCopyProgress,
    ) -> CopySummary {
        let number = ending.number;
        let summary = match &self.chain {
            Some(chain) => self.through_chain(chain, number, part, progress),
            None => self.copy_from_here(number, part, &progress.begin(0), &mut |_| {}),
        };
        ending.outcome = summary.outcome.clone();
        progress.end(&summary.outcome);
        summary
    }

    /// Copies the small files from here, and the large ones from the host before it.
    fn through_chain(
        &self,
        chain: &HostChain<'_>,
        number: usize,
        part: HostCopyRequest,
        progress: &HostCopyProgress,
    ) -> CopySummary {
        if let Some(why) = chain.is_left_out(number) {
            let summary = self.copy_from_here(number, part, &progress.begin(0), &mut |_| {});
            self.note_why(why, number, &summary);
            return summary;
        }
        progress.expect(chain.bytes());
        let small = match chain.has_rest() {
            true => match self.copy_small(chain, number, &part, progress) {
                SmallFiles::Copied(copied) => Some(copied),
                SmallFiles::Failed(summary) => return summary,
            },
            false => None,
        };
        let not_received = small.as_ref().and_then(|small| small.not_received);
        match not_received {
            Some(NotReceived::OtherPaths) => chain.leave_out(number),
            Some(NotReceived::Changed) | None => chain.ready(number),
        }
        let small = small.map(|small| small.summary);
        match not_received {
            None if !chain.is_first(number) => {
                self.receive_large(chain, number, small, &part, progress)
            }
            why => self.copy_large(chain, number, (small, why), part, progress),
        }
    }

    /// Copies the small files from here, and finds out if the large ones can come from another
    /// host.
    fn copy_small(
        &self,
        chain: &HostChain<'_>,
        number: usize,
        part: &HostCopyRequest,
        progress: &HostCopyProgress,
    ) -> SmallFiles {
        let root = chain.tree_at(part);
        // The directory with the shortest path is that of the source.
        let mut made: Option<Vec<u8>> = None;
        let mut seen = |event: &CopyEvent| {
            if let CopyEvent::DirectoryDone { target } = event
                && made.as_ref().is_none_or(|made| target.0.len() < made.len())
            {
                made = Some(target.0.clone());
            }
        };
        let small = part.with(SizeSelection::Small);
        let mut summary = self.copy_from_here(number, small, &progress.begin(0), &mut seen);
        let found = std::mem::take(&mut summary.excluded);
        let failed = !is_over(&summary.outcome);
        if failed || root.is_some() && made.is_none() {
            return SmallFiles::Failed(summary);
        }
        let not_received = if root.is_some() && made != root {
            Some(NotReceived::OtherPaths)
        } else if found != chain.count() {
            Some(NotReceived::Changed)
        } else {
            None
        };
        SmallFiles::Copied(CopiedSmallFiles {
            summary,
            not_received,
        })
    }

    /// Copies the large files from here, after the `small` ones, if there are any.
    fn copy_large(
        &self,
        chain: &HostChain<'_>,
        number: usize,
        (small, why): (Option<CopySummary>, Option<NotReceived>),
        part: HostCopyRequest,
        progress: &HostCopyProgress,
    ) -> CopySummary {
        let mut part = match small {
            Some(_) => part.with(SizeSelection::Large),
            None => part,
        };
        if why == Some(NotReceived::OtherPaths) {
            part.request = contents(part.request);
        }
        let counters = progress.begin(chain.bytes());
        let mut large = self.copy_from_here(number, part, &counters, &mut |_| {});
        if let Some(why) = why {
            self.note_why(&why.clause().into(), number, &large);
        }
        if small.is_some() {
            // The copy of the small files has counted them.
            (large.directories, large.symlinks, large.excluded) = (0, 0, 0);
        }
        all_of(small, large)
    }

    /// Gets the large files from the host before this one, after the `small` ones, if there are
    /// any.
    fn receive_large(
        &self,
        chain: &HostChain<'_>,
        number: usize,
        small: Option<CopySummary>,
        part: &HostCopyRequest,
        progress: &HostCopyProgress,
    ) -> CopySummary {
        let mut all = small;
        let mut done = Vec::new();
        while let Some(file) = chain.next(&done) {
            done.push(file);
            let one = self.pass_on(chain, (number, file), part, progress);
            let lost = !is_over(&one.outcome);
            all = Some(all_of(all, one));
            if lost {
                break;
            }
        }
        all.unwrap_or_default()
    }

    /// Copies a large file from the host before it, or from here.
    fn pass_on(
        &self,
        chain: &HostChain<'_>,
        (number, file): (usize, usize),
        part: &HostCopyRequest,
        progress: &HostCopyProgress,
    ) -> CopySummary {
        let output = self.run.output();
        let copy = self.next_copy();
        let mut events = |event| output.host_event(&part.name, &Self::numbered(event, copy));
        let counters = progress.begin(chain.size(file));
        let why = match chain.receive(number, file, &counters, &mut events) {
            Ok(summary) => return summary,
            Err(why) => why,
        };
        let alone = HostCopyRequest {
            request: chain.alone(number, file, &part.request),
            ..part.clone()
        };
        let summary = self.copy_from_here(number, alone, &counters, &mut |_| {});
        if summary.outcome == CopyOutcome::Complete {
            chain.settle(number, file);
        }
        self.note_why(&why, number, &summary);
        summary
    }

    /// Keeps the reason why a host got data from here. A host that has failed says why by itself.
    fn note_why(&self, why: &ChainObstacle, number: usize, summary: &CopySummary) {
        let is_first = self
            .chain
            .as_ref()
            .is_some_and(|chain| chain.is_first(number));
        if !is_first && summary.files > 0 {
            let mut why_not = self.why_not.lock().unwrap_or_else(PoisonError::into_inner);
            why_not.get_or_insert(why.reason());
        }
    }

    /// Copies from this machine; `seen` gets all events.
    fn copy_from_here(
        &self,
        number: usize,
        part: HostCopyRequest,
        counters: &ProgressCounters,
        seen: &mut dyn FnMut(&CopyEvent),
    ) -> CopySummary {
        let cancel = self.run.cancel();
        let mut connect = HostConnector {
            hosts: {
                let hosts = self.run.hosts();
                hosts.alone(part.host, self.sharing(), self.limit.clone())
            },
            all: self,
            turn: RefCell::new(self.turns.take(cancel)),
            arrived: Cell::new(self.gate.is_none()),
            late: RefCell::default(),
        };
        let mut summary = match connect.has_turn() {
            true => {
                connect.hosts.expect(&part.request);
                let output = self.run.output();
                let name = part.name;
                let first = self.chain.as_ref().filter(|chain| chain.is_first(number));
                let copy = self.next_copy();
                let mut events = |event| {
                    seen(&event);
                    if let Some(chain) = first {
                        chain.note(&event);
                    }
                    output.host_event(&name, &Self::numbered(event, copy));
                };
                copy::run(part.request, &connect, counters, &mut events, cancel)
            }
            false => CopySummary {
                outcome: CopyOutcome::Interrupted,
                ..CopySummary::default()
            },
        };
        let late = connect.late.take();
        if late.is_some() && summary.outcome == CopyOutcome::Complete {
            summary.outcome = CopyOutcome::Partial;
            summary.failed += 1;
            summary.failures.extend(late);
        }
        summary
    }

    /// Copies from here that share the rate limit: few if the others get the data from hosts.
    fn sharing(&self) -> usize {
        match &self.chain {
            Some(chain) => chain.copies_from_here().min(self.at_once),
            None => self.at_once,
        }
    }

    /// Number of a further copy.
    fn next_copy(&self) -> u64 {
        self.copies.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the file's number unique among all copies.
    fn numbered(mut event: CopyEvent, copy: u64) -> CopyEvent {
        // Readers of JSON may keep 53 bits.
        let unique = |id: &mut u64| *id = (copy << 32).saturating_add(*id);
        match &mut event {
            CopyEvent::FileStarted { id, .. }
            | CopyEvent::FileDone { id, .. }
            | CopyEvent::Mismatch { id, .. }
            | CopyEvent::Failed { id: Some(id), .. } => unique(id),
            _ => {}
        }
        event
    }
}

/// True if a copy has run to its end.
fn is_over(outcome: &CopyOutcome) -> bool {
    matches!(outcome, CopyOutcome::Complete | CopyOutcome::Partial)
}

fn all_of(all: Option<CopySummary>, one: CopySummary) -> CopySummary {
    match all {
        Some(all) => joined(all, one),
        None => one,
    }
}

fn failed(why: &str) -> CopySummary {
    CopySummary {
        outcome: CopyOutcome::NoConnection(why.to_owned()),
        ..CopySummary::default()
    }
}

/// The host of one copy, which waits for the other copies once its sources are known.
struct HostConnector<'a> {
    hosts: Hosts,
    all: &'a SharedCopyState<'a>,
    turn: RefCell<Option<CopyPermit<'a>>>,
    /// The copy was counted at the gate.
    arrived: Cell<bool>,
    /// Sources for which this copy alone was refused at the gate.
    late: RefCell<Option<ItemFailure>>,
}

impl HostConnector<'_> {
    fn has_turn(&self) -> bool {
        self.turn.borrow().is_some()
    }
}

impl SessionConnector for HostConnector<'_> {
    fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
        cancel: &CancelToken,
    ) -> Result<Session, ConnectError> {
        self.hosts.connect(host, coming, cancel)
    }

    fn ledger(&self) -> Option<Arc<ChecksumLedger>> {
        SessionConnector::ledger(&self.hosts)
    }

    fn admit(&self, sources: &[NamedSource], differ: bool, cancel: &CancelToken) -> bool {
        let Some(gate) = &self.all.gate else {
            return differ;
        };
        self.arrived.set(true);
        let late = gate.arrive(sources, differ);
        if late.is_some() {
            self.late.replace(late);
            return false;
        }
        // The session stays open, and another copy may connect.
        drop(self.turn.take());
        let impatient = |missing: usize| {
            // Each missing copy may hold a turn.
            self.all.turns.add(missing.min(AT_ONCE));
            self.all.run.output().warning(format!(
                "some hosts have not listed their files within {} s; the files of the other hosts \
                 are copied without waiting for them",
                PATIENCE.as_secs()
            ));
        };
        if !gate.wait(cancel, PATIENCE, impatient) || !differ {
            return false;
        }
        *self.turn.borrow_mut() = self.all.turns.take(cancel);
        self.has_turn()
    }

    fn login(&self, host: HostId) -> Option<String> {
        SessionConnector::login(&self.hosts, host)
    }

    fn name(&self, host: HostId) -> String {
        SessionConnector::name(&self.hosts, host)
    }

    fn identity(&self, host: HostId) -> String {
        SessionConnector::identity(&self.hosts, host)
    }

    fn are_one(&self, one: HostId, other: HostId) -> bool {
        SessionConnector::are_one(&self.hosts, one, other)
    }
}

impl Drop for HostConnector<'_> {
    /// Lets the other copies continue, whatever ended this one.
    fn drop(&mut self) {
        if let Some(gate) = self.all.gate.as_ref().filter(|_| !self.arrived.get()) {
            gate.leave();
        }
    }
}
