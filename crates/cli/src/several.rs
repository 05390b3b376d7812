//! Copies from or to several hosts at once: one copy for each host, with one display and one result.

mod chain;
mod combined;
mod completing;
mod gate;
mod hosts_file;
mod meaning;
mod operands;
mod progress;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use transfer::cancel::CancelToken;
use transfer::connect::ConnectError;
use transfer::copy::{
    self, Connect, CopyRequest, HostId, NamedSource, SourceName, TransferEstimate,
};
use transfer::report::{Event, Failure, HostResult, Name, Outcome, Progress, Summary};
use transfer::session::Session;
use transfer::sums::SumLedger;

use self::chain::{Chain, Sizes, contents};
use self::combined::{HostEnd, combined, joined};
use self::gate::{Gate, PATIENCE, Turn, Turns, clashes};
use self::operands::parts;
pub(crate) use self::operands::{Several, resolve};
pub(crate) use self::progress::HostProgress;
#[cfg(test)]
pub(crate) use self::progress::HostState;
use self::progress::{HostCopyProgress, SeveralProgress};
use crate::connect::Hosts;
use crate::cp::Run;
use crate::flags::high::TypedOperands;
use crate::output::closing;
use crate::output::snapshot::Counters as _;

/// Copies that run at once. Each has a few connections of its own.
const AT_ONCE: usize = 16;
/// Time in which no copy has moved data after which the run waits only for lost connections.
const STANDSTILL: Duration = Duration::from_secs(5);
/// How often that is checked.
const LOOK: Duration = Duration::from_millis(500);

/// One copy of several.
#[derive(Clone)]
struct Part {
    host: HostId,
    name: String,
    request: CopyRequest,
}

/// Copies to or from all hosts, and combines their results.
pub(crate) fn copy(
    several: &Several,
    typed: &TypedOperands,
    request: &CopyRequest,
    run: &Run<'_>,
) -> Summary {
    let start = Instant::now();
    let hosts = run.hosts();
    let mut summary = match parts(several, request, hosts.destinations()) {
        Ok(parts) => {
            let named = parts.into_iter().map(|(host, request)| Part {
                name: Connect::name(hosts, host),
                host,
                request,
            });
            copy_parts(several, named.collect(), run)
        }
        Err(why) => Summary {
            outcome: Outcome::Misconfigured(why),
            ..Summary::default()
        },
    };
    summary.elapsed = start.elapsed();
    let failed: Vec<bool> = summary.hosts.iter().map(is_unfinished).collect();
    if failed.contains(&true) && failed.contains(&false) {
        let whole: Vec<_> = std::env::args_os().collect();
        let hosts = hosts.destinations();
        let words = completing::words(&whole, typed, (several, request), hosts, &failed);
        let command = closing::command(words.unwrap_or(whole).into_iter());
        run.output().set_completing(command);
    }
    summary
}

/// True if another run for this host can copy what this one did not.
fn is_unfinished(host: &HostResult) -> bool {
    match host.outcome {
        Outcome::Complete => false,
        Outcome::Partial => host.unfinished > 0,
        _ => true,
    }
}

fn copy_parts(several: &Several, parts: Vec<Part>, run: &Run<'_>) -> Summary {
    let one_target = matches!(several, Several::Gather { by_host: false, .. });
    let refused = match one_target {
        true => clashes(&known_names(&parts), "nothing was copied"),
        false => None,
    };
    if let Some(refused) = refused {
        return Summary {
            outcome: Outcome::Partial,
            failed: 1,
            failures: vec![refused],
            ..Summary::default()
        };
    }
    let asks = |part: &Part| {
        let matched = |source| SourceName::of(source) == SourceName::Matched;
        part.request.sources.iter().any(matched)
    };
    let gate = (one_target && parts.iter().any(asks)).then(|| Gate::new(parts.len()));
    raise_descriptors(parts.len());
    let (chain, why_not) = match several {
        Several::FanOut(_) => match Chain::new(&parts, run) {
            Ok(chain) => (Some(chain), None),
            Err(why) => (None, Some(why)),
        },
        Several::Gather { .. } => (None, None),
    };
    let at_once = parts.len().min(AT_ONCE);
    let all = AllCopies {
        run,
        gate,
        chain,
        why_not: Mutex::new(why_not),
        fans_out: matches!(several, Several::FanOut(_)),
        turns: Turns::new(at_once),
        at_once,
        copies: AtomicU64::new(0),
    };
    let progress = SeveralProgress::new(parts.iter().map(|part| part.name.clone()));
    let results = run.showing(&progress, |progress| all.copy(parts, progress));
    let way = match several {
        Several::FanOut(_) => {
            let from = results.iter().filter(|end| end.summary.files > 0);
            let from: Vec<_> = from
                .map(|end| (end.host.clone(), end.from.clone()))
                .collect();
            let why_not = all.why_not.into_inner();
            Some(chain::way(
                &from,
                why_not.unwrap_or_else(PoisonError::into_inner),
            ))
        }
        Several::Gather { .. } => None,
    };
    let mut summary = combined(results);
    summary.way = way;
    if let Some(gate) = all.gate.filter(Gate::is_closed)
        && summary.outcome != Outcome::Interrupted
    {
        summary.outcome = Outcome::Partial;
        let refused = gate.refused();
        summary.failed += u64::from(refused.is_some());
        summary.failures.extend(refused);
        for host in &mut summary.hosts {
            if host.outcome == Outcome::Complete {
                host.outcome = Outcome::Partial;
            }
        }
    }
    summary
}

/// Operands whose names in the target are known, with these names. Those that a filter leaves out
/// clash with nothing.
fn known_names(parts: &[Part]) -> Vec<NamedSource> {
    let is_left_out = |part: &Part, name: &[u8]| {
        let filter = part.request.options.filter.as_ref();
        filter.is_some_and(|filter| filter.leaves_out(name))
    };
    let named = |part: &Part, source: &copy::Place| match (source, SourceName::of(source)) {
        (copy::Place::Remote { path, .. }, SourceName::Known(name))
            if !is_left_out(part, &name) =>
        {
            Some(NamedSource {
                source: Name([part.name.as_bytes(), b":", path].concat()),
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
struct AllCopies<'a> {
    run: &'a Run<'a>,
    gate: Option<Gate>,
    chain: Option<Chain<'a>>,
    /// The reason why a host got the data from here that might have got it from another one.
    why_not: Mutex<Option<String>>,
    /// The copies go to hosts.
    fans_out: bool,
    turns: Turns,
    at_once: usize,
    /// Copies that were begun.
    copies: AtomicU64,
}

/// Tells the chain of the end of a host's copy when dropped, whatever has ended it: other hosts wait
/// for it.
struct CopyEnding<'a> {
    chain: Option<&'a Chain<'a>>,
    number: usize,
    outcome: Outcome,
}

impl Drop for CopyEnding<'_> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain {
            chain.end(self.number, &self.outcome);
        }
    }
}

impl AllCopies<'_> {
    fn copy(&self, parts: Vec<Part>, progress: &SeveralProgress) -> Vec<HostEnd> {
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
                        outcome: Outcome::Partial,
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
                            failed(&format!("cannot start a thread: {error}"))
                        }
                    };
                    HostEnd {
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
    fn watch(&self, progress: &SeveralProgress, over: &CancelToken) {
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
        part: Part,
        progress: &HostCopyProgress,
    ) -> Summary {
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
        chain: &Chain<'_>,
        number: usize,
        part: Part,
        progress: &HostCopyProgress,
    ) -> Summary {
        if let Some(why) = chain.is_left_out(number) {
            let summary = self.copy_from_here(number, part, &progress.begin(0), &mut |_| {});
            self.note_why(why, number, &summary);
            return summary;
        }
        progress.expect(chain.bytes());
        let of = |sizes: Sizes| Part {
            request: sizes.of(part.request.clone()),
            ..part.clone()
        };
        let mut all: Option<Summary> = None;
        let (mut listed, mut into) = (true, true);
        if chain.has_rest() {
            let root = chain.tree_at(&part);
            // The directory with the shortest path is that of the source.
            let mut made: Option<Vec<u8>> = None;
            let mut seen = |event: &Event| {
                if let Event::DirectoryDone { target } = event
                    && made.as_ref().is_none_or(|made| target.0.len() < made.len())
                {
                    made = Some(target.0.clone());
                }
            };
            let counters = progress.begin(0);
            let mut rest = self.copy_from_here(number, of(Sizes::Small), &counters, &mut seen);
            // Another number means that files have changed meanwhile.
            listed = rest.excluded == chain.count();
            into = root.is_none() || made == root;
            rest.excluded = 0;
            let failed = !matches!(rest.outcome, Outcome::Complete | Outcome::Partial);
            if failed || root.is_some() && made.is_none() {
                return rest;
            }
            all = Some(rest);
        }
        match into {
            true => chain.ready(number),
            false => chain.leave_out(number),
        }
        if !listed || !into || chain.is_first(number) {
            let mut large = match chain.has_rest() {
                true => of(Sizes::Large),
                false => part,
            };
            if !into {
                large.request = contents(large.request);
            }
            let counters = progress.begin(chain.bytes());
            let mut large = self.copy_from_here(number, large, &counters, &mut |_| {});
            let why = match into {
                true => "files have changed meanwhile",
                false => "the target directory did not exist",
            };
            self.note_why(why, number, &large);
            if all.is_some() {
                // The copy of the small files has counted them.
                (large.directories, large.symlinks, large.excluded) = (0, 0, 0);
            }
            return all_of(all, large);
        }
        let mut done = Vec::new();
        while let Some(file) = chain.next(&done) {
            done.push(file);
            let one = self.pass_on(chain, (number, file), &part, progress);
            let lost = !matches!(one.outcome, Outcome::Complete | Outcome::Partial);
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
        chain: &Chain<'_>,
        (number, file): (usize, usize),
        part: &Part,
        progress: &HostCopyProgress,
    ) -> Summary {
        let output = self.run.output();
        let copy = self.next_copy();
        let mut events = |event| output.host_event(&part.name, &Self::numbered(event, copy));
        let counters = progress.begin(chain.size(file));
        let why = match chain.receive(number, file, &counters, &mut events) {
            Ok(summary) => return summary,
            Err(why) => why,
        };
        let alone = Part {
            request: chain.alone(number, file, &part.request),
            ..part.clone()
        };
        let summary = self.copy_from_here(number, alone, &counters, &mut |_| {});
        if summary.outcome == Outcome::Complete {
            chain.settle(number, file);
        }
        self.note_why(&why, number, &summary);
        summary
    }

    /// Keeps the reason why a host got data from here. A host that has failed says why by itself.
    fn note_why(&self, why: &str, number: usize, summary: &Summary) {
        let is_first = self
            .chain
            .as_ref()
            .is_some_and(|chain| chain.is_first(number));
        if !is_first && summary.files > 0 {
            let mut why_not = self.why_not.lock().unwrap_or_else(PoisonError::into_inner);
            why_not.get_or_insert(first_line(why));
        }
    }

    /// Copies from this machine; `seen` gets all events.
    fn copy_from_here(
        &self,
        number: usize,
        part: Part,
        counters: &Progress,
        seen: &mut dyn FnMut(&Event),
    ) -> Summary {
        let cancel = self.run.cancel();
        let mut connect = HostConnect {
            hosts: self.run.hosts().alone(part.host, self.sharing()),
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
            false => Summary {
                outcome: Outcome::Interrupted,
                ..Summary::default()
            },
        };
        let late = connect.late.take();
        if late.is_some() && summary.outcome == Outcome::Complete {
            summary.outcome = Outcome::Partial;
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
    fn numbered(mut event: Event, copy: u64) -> Event {
        // Readers of JSON may keep 53 bits.
        let unique = |id: &mut u64| *id = (copy << 32).saturating_add(*id);
        match &mut event {
            Event::FileStarted { id, .. }
            | Event::FileDone { id, .. }
            | Event::Mismatch { id, .. }
            | Event::Failed { id: Some(id), .. } => unique(id),
            _ => {}
        }
        event
    }
}

fn all_of(all: Option<Summary>, one: Summary) -> Summary {
    match all {
        Some(all) => joined(all, one),
        None => one,
    }
}

/// The first line of a message. A refused login has more of them, with the keys that were offered.
fn first_line(why: &str) -> String {
    why.lines().next().unwrap_or_default().to_owned()
}

fn failed(why: &str) -> Summary {
    Summary {
        outcome: Outcome::NoConnection(why.to_owned()),
        ..Summary::default()
    }
}

/// The host of one copy, which waits for the other copies once its sources are known.
struct HostConnect<'a> {
    hosts: Hosts,
    all: &'a AllCopies<'a>,
    turn: RefCell<Option<Turn<'a>>>,
    /// The copy was counted at the gate.
    arrived: Cell<bool>,
    /// Sources for which this copy alone was refused at the gate.
    late: RefCell<Option<Failure>>,
}

impl HostConnect<'_> {
    fn has_turn(&self) -> bool {
        self.turn.borrow().is_some()
    }
}

impl Connect for HostConnect<'_> {
    fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
        cancel: &CancelToken,
    ) -> Result<Session, ConnectError> {
        self.hosts.connect(host, coming, cancel)
    }

    fn ledger(&self) -> Option<Arc<SumLedger>> {
        Connect::ledger(&self.hosts)
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
                "not all hosts have named their files within {} s: the others are copied without \
                 waiting for them",
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
        Connect::login(&self.hosts, host)
    }

    fn name(&self, host: HostId) -> String {
        Connect::name(&self.hosts, host)
    }

    fn identity(&self, host: HostId) -> String {
        Connect::identity(&self.hosts, host)
    }

    fn are_one(&self, one: HostId, other: HostId) -> bool {
        Connect::are_one(&self.hosts, one, other)
    }
}

impl Drop for HostConnect<'_> {
    /// Lets the other copies continue, whatever ended this one.
    fn drop(&mut self) {
        if let Some(gate) = self.all.gate.as_ref().filter(|_| !self.arrived.get()) {
            gate.leave();
        }
    }
}
