//! Copies from or to several hosts at once: one copy for each host, with one display and one result.

mod chain;
mod combined;
mod gate;
mod hosts_file;
mod meaning;
mod operands;
mod progress;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::process::{Resource, getrlimit, setrlimit};
use transfer::cancel::CancelToken;
use transfer::connect::ConnectError;
use transfer::copy::{
    self, Connect, CopyRequest, HostId, NamedSource, SourceName, TransferEstimate,
};
use transfer::report::{Event, Name, Outcome, Summary};
use transfer::session::Session;
use transfer::sums::SumLedger;

use self::chain::Chain;
use self::combined::{HostEnd, combined};
use self::gate::{Gate, Turn, Turns, clashes};
use self::operands::parts;
pub(crate) use self::operands::{Several, resolve};
pub(crate) use self::progress::HostProgress;
#[cfg(test)]
pub(crate) use self::progress::HostState;
use self::progress::{HostCopyProgress, SeveralProgress};
use crate::connect::Hosts;
use crate::cp::Run;

/// Copies that run at once. Each has a few connections of its own.
const AT_ONCE: usize = 16;

/// One copy of several.
struct Part {
    host: HostId,
    name: String,
    request: CopyRequest,
}

/// Copies to or from all hosts, and combines their results.
pub(crate) fn copy(several: &Several, request: &CopyRequest, run: &Run<'_>) -> Summary {
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
    summary
}

fn copy_parts(several: &Several, parts: Vec<Part>, run: &Run<'_>) -> Summary {
    let one_target = matches!(several, Several::Gather { by_host: false, .. });
    let refused = match one_target {
        true => clashes(&known_names(&parts)),
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
        turns: Turns::new(at_once),
        at_once,
        count: parts.len(),
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
    turns: Turns,
    at_once: usize,
    count: usize,
}

impl AllCopies<'_> {
    fn copy(&self, parts: Vec<Part>, progress: &SeveralProgress) -> Vec<HostEnd> {
        let over = CancelToken::default();
        thread::scope(|scope| {
            if let Some(chain) = &self.chain {
                let over = over.clone();
                scope.spawn(move || chain.watch(&over));
            }
            let parts = parts.into_iter().zip(progress.each()).enumerate();
            let started: Vec<_> = parts
                .map(|(number, (part, progress))| {
                    let name = part.name.clone();
                    let thread = thread::Builder::new().name("copy".to_owned());
                    let copy = move || self.copy_one(number, part, progress);
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

    fn copy_one(&self, number: usize, part: Part, progress: &HostCopyProgress) -> Summary {
        let passed = self.chain.as_ref().and_then(|chain| {
            let output = self.run.output();
            let mut events = |event| output.copy_event(&self.numbered(event, number));
            match chain.receive(number, progress.counters(), &mut events) {
                Ok(summary) => Some(summary),
                Err(_) if number == 0 => None,
                Err(why) => {
                    let mut why_not = self.why_not.lock().unwrap_or_else(PoisonError::into_inner);
                    why_not.get_or_insert(why);
                    None
                }
            }
        });
        let summary = passed.unwrap_or_else(|| self.copy_from_here(number, part, progress));
        if let Some(chain) = &self.chain {
            chain.end(number, &summary.outcome);
        }
        progress.end(&summary.outcome);
        summary
    }

    fn copy_from_here(&self, number: usize, part: Part, progress: &HostCopyProgress) -> Summary {
        let cancel = self.run.cancel();
        let mut connect = HostConnect {
            hosts: self.run.hosts().alone(part.host, self.sharing()),
            all: self,
            turn: RefCell::new(self.turns.take(cancel)),
            arrived: Cell::new(self.gate.is_none()),
        };
        match connect.has_turn() {
            true => {
                connect.hosts.expect(&part.request);
                let output = self.run.output();
                let mut events = |event| output.copy_event(&self.numbered(event, number));
                let counters = progress.counters();
                copy::run(part.request, &connect, counters, &mut events, cancel)
            }
            false => Summary {
                outcome: Outcome::Interrupted,
                ..Summary::default()
            },
        }
    }

    /// Copies from here that share the rate limit: one if the others get the data from hosts.
    fn sharing(&self) -> usize {
        match self.chain {
            Some(_) => 1,
            None => self.at_once,
        }
    }

    /// Makes the file's number unique among all copies.
    fn numbered(&self, mut event: Event, number: usize) -> Event {
        let number = number as u64;
        let unique = |id: &mut u64| *id = id.saturating_mul(self.count as u64) + number;
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
        gate.arrive(sources, differ);
        // The session stays open, and another copy may connect.
        drop(self.turn.take());
        if !gate.wait(cancel) {
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
