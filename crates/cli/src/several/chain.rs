//! Passes a file on from host to host while it is being received, so that each byte leaves this
//! machine once: docs/design/0024-fan-out.md.
//!
//! The first host gets the file by an ordinary copy. Each further host copies it from the one before
//! it, as between two hosts, while that one is still receiving. A host whose predecessor fails
//! continues with an earlier one, and without any it gets the file from here.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use schedule::PackingMode;
use ssh::direct_control::GrowingBlocks;
use transfer::cancel::CancelToken;
use transfer::connect::{ConnectCheck, ConnectError, RemoteRole};
use transfer::copy::{CopyOptions, CopyRequest, DeltaUse, HostId, Place};
use transfer::host_to_host::{
    self, BlockSums, Ending, HostCopy, HostNames, MissingOn, ReceiverJob, SourceFiles, files_of,
};
use transfer::report::{Event, HostWay, HostWayKind, Name, Outcome, Progress, Summary};

use super::Part;
use crate::cp::Run;
use crate::host_to_host::needs_this_machine;

/// Smallest file that is passed on: for a smaller one, the further logins take longer than they save.
const LEAST: u64 = 32 << 20;
/// Most hosts of a chain, which all receive at the same time.
const MOST_HOSTS: usize = 64;
/// Hosts from which one host tries to get the file before it gets the file from here.
const MOST_TRIED: usize = 3;
/// Requests in flight from one host to the one before it.
const REQUESTS: u64 = 32;
/// Hosts that the closing line names as served from here.
const NAMED: usize = 3;
/// How often a cancel is checked.
const CANCEL_SEEN: Duration = Duration::from_millis(50);

/// Hosts that pass a file on, in their order.
pub(super) struct Chain<'a> {
    run: &'a Run<'a>,
    source: PathBuf,
    options: CopyOptions,
    links: Vec<Link>,
    state: Mutex<ChainState>,
    changed: Condvar,
}

/// A host of the chain.
struct Link {
    host: HostId,
    name: String,
    /// The file there.
    path: Vec<u8>,
    files: SourceFiles,
}

struct ChainState {
    hosts: Vec<LinkState>,
    /// Checksums of the source; `None` until they are known.
    sums: Option<Result<(BlockSums, GrowingBlocks), String>>,
}

#[derive(Clone, Default)]
struct LinkState {
    failed: bool,
    /// The host cannot pass the file on.
    silent: bool,
    /// The host from which this one gets the file.
    from: Option<usize>,
    /// Ends the copy from that host.
    cancel: Option<CancelToken>,
}

/// Result of a copy from another host.
enum Passed {
    Over(Box<Summary>),
    /// The file did not arrive, for this reason.
    Not(String, MissingOn),
}

impl<'a> Chain<'a> {
    /// Prepares a chain.
    ///
    /// # Errors
    /// A clause that says why each host gets the file from here.
    pub(super) fn new(parts: &[Part], run: &'a Run<'a>) -> Result<Self, String> {
        let Some(first) = parts.first() else {
            return Err("there is no host".to_owned());
        };
        if parts.len() > MOST_HOSTS {
            return Err(format!("more than {MOST_HOSTS} hosts"));
        }
        let source = one_file(&first.request)?;
        if let Some(why) = needs_this_machine(run.hosts().flags()) {
            return Err(why.to_owned());
        }
        let options = options(&first.request.options)?;
        let name = source.file_name().unwrap_or_default().as_bytes();
        if name.iter().any(|b| b"*?[\\".contains(b)) {
            return Err("the name of the file has characters of a pattern".to_owned());
        }
        let link = |part: &Part| {
            let path = path_at(part, name)?;
            // Errors of the configuration are reported by the copy.
            if let Ok(Some(why)) = run.hosts().longhaul_is_absent(part.host) {
                return Err(format!("{}: {why}", part.name));
            }
            Ok(Link {
                host: part.host,
                name: part.name.clone(),
                files: files_of(&[&path]).map_err(str::to_owned)?,
                path,
            })
        };
        let links: Vec<Link> = parts.iter().map(link).collect::<Result<_, String>>()?;
        let hosts = vec![LinkState::default(); links.len()];
        Ok(Self {
            run,
            source,
            options,
            links,
            state: Mutex::new(ChainState { hosts, sums: None }),
            changed: Condvar::new(),
        })
    }

    /// Computes the checksums of the source, and passes a cancel of the run on until `over`.
    pub(super) fn watch(&self, over: &CancelToken) {
        let cancel = self.run.cancel();
        let sums = BlockSums::of(&self.source, || cancel.is_cancelled());
        self.lock().sums = Some(sums.map_err(|e| e.to_string()));
        self.changed.notify_all();
        while !over.is_cancelled() {
            if cancel.is_cancelled() {
                let state = self.lock();
                let all = state.hosts.iter().filter_map(|host| host.cancel.as_ref());
                all.for_each(CancelToken::cancel);
            }
            // A cancel disconnects the channel.
            let _ = over.receiver().recv_timeout(CANCEL_SEEN);
        }
    }

    /// Gets the file for a host from the hosts before it. Returns the reason if the host must get it
    /// from here.
    pub(super) fn receive(
        &self,
        number: usize,
        progress: &Progress,
        events: &mut dyn FnMut(Event),
    ) -> Result<Summary, String> {
        let start = Instant::now();
        let mut why = "it is the first host".to_owned();
        let mut tried = Vec::new();
        while let Some(from) = self.predecessor(number, &tried) {
            let passed = self.pass(from, number, progress, events);
            self.lock().hosts[number].cancel = None;
            match passed {
                Ok(Passed::Over(mut summary)) => {
                    summary.elapsed = start.elapsed();
                    summary.way = None;
                    return Ok(*summary);
                }
                Ok(Passed::Not(reason, missing)) => {
                    why = reason;
                    if missing.source {
                        self.lock().hosts[from].silent = true;
                        self.run.hosts().remember_absent(self.links[from].host);
                    }
                    if missing.receiver {
                        self.run.hosts().remember_absent(self.links[number].host);
                        self.lock().hosts[number].silent = true;
                        break;
                    }
                }
                Err(error) => why = error.into(),
            }
            if self.run.cancel().is_cancelled() {
                break;
            }
            tried.push(from);
            progress.reset();
        }
        self.lock().hosts[number].from = None;
        Err(why)
    }

    /// Notes the end of a host's copy. Hosts that get the file from a failed one are told.
    pub(super) fn end(&self, number: usize, outcome: &Outcome) {
        if *outcome == Outcome::Complete {
            return;
        }
        let mut state = self.lock();
        state.hosts[number].failed = true;
        let after = state.hosts.iter().filter(|host| host.from == Some(number));
        after
            .filter_map(|host| host.cancel.as_ref())
            .for_each(CancelToken::cancel);
    }

    /// Name of the host from which a host has got the file; `None` for this machine.
    pub(super) fn from(&self, number: usize) -> Option<String> {
        let from = self.lock().hosts.get(number)?.from?;
        Some(self.links.get(from)?.name.clone())
    }

    /// The nearest host before this one that may pass the file on.
    fn predecessor(&self, number: usize, tried: &[usize]) -> Option<usize> {
        let state = self.lock();
        let may = |host: &usize| {
            let there = state.hosts.get(*host);
            there.is_some_and(|host| !host.failed && !host.silent) && !tried.contains(host)
        };
        let left = tried.len() < MOST_TRIED;
        (0..number).rev().find(may).filter(|_| left)
    }

    fn pass(
        &self,
        from: usize,
        to: usize,
        progress: &Progress,
        events: &mut dyn FnMut(Event),
    ) -> Result<Passed, ConnectError> {
        let cancel = CancelToken::default();
        let not = |why: &str| Ok(Passed::Not(why.to_owned(), MissingOn::default()));
        let Some(sums) = self.sums() else {
            return not("interrupted");
        };
        let (blocks, growing) = match sums {
            Ok(sums) => sums,
            Err(why) => return not(&format!("the source: {why}")),
        };
        {
            let mut state = self.lock();
            if state.hosts[from].failed {
                return not("the host before it failed");
            }
            state.hosts[to].from = Some(from);
            state.hosts[to].cancel = Some(cancel.clone());
        }
        let copy = match self.copy_between(from, to, blocks, growing) {
            Ok(copy) => copy,
            // The host runs no commands.
            Err(e) if e.check() == ConnectCheck::Session => return not(&String::from(e)),
            Err(e) => return Err(e),
        };
        Ok(
            match host_to_host::conduct(copy, progress, events, &cancel) {
                Ending::Done(summary) if self.ends(&summary) => Passed::Over(summary),
                Ending::Done(summary) => {
                    let failure = summary.failures.first();
                    let why = failure.map_or_else(
                        || "the host before it failed".to_owned(),
                        |failure| format!("{}: {}", failure.path, failure.reason),
                    );
                    Passed::Not(why, MissingOn::default())
                }
                Ending::NotPossible(why, missing) => Passed::Not(why, missing),
                Ending::Lost(why) => Passed::Not(why, MissingOn::default()),
            },
        )
    }

    /// True if a copy needs no other way: it is complete, or the user has interrupted the run.
    fn ends(&self, summary: &Summary) -> bool {
        match summary.outcome {
            Outcome::Complete => true,
            Outcome::Interrupted => self.run.cancel().is_cancelled(),
            _ => false,
        }
    }

    fn copy_between(
        &self,
        from: usize,
        to: usize,
        blocks: BlockSums,
        growing: GrowingBlocks,
    ) -> Result<HostCopy, ConnectError> {
        let hosts = self.run.hosts();
        let (from, to) = (&self.links[from], &self.links[to]);
        let options = hosts.session_options();
        let job = ReceiverJob {
            version: ReceiverJob::VERSION,
            host: from.name.clone(),
            // The same for every host that passes the file on, so that any of them can continue.
            identity: format!("fan-out:{}", blocks.identity()),
            sources: from.files.names.iter().cloned().map(Name).collect(),
            target: Name(to.path.clone()),
            options: self.options.clone(),
            limit: options.limit,
            // The blocks arrive about in their order, in which one lane asks for them.
            connections: Some(1),
            channels: Some(1),
            // The host before waits with more than these on its pool of threads.
            requests: Some(options.requests.map_or(REQUESTS, |most| most.min(REQUESTS))),
            buffer: options.buffer,
            // Blocks that are not there yet are only waited for by READ.
            pack: PackingMode::Never,
            secured: hosts.algorithms(from.host)?,
            blocks: Some(blocks),
            source: Vec::new(),
            here: Vec::new(),
            token: Default::default(),
        };
        Ok(HostCopy {
            source: hosts.start_role(from.host, RemoteRole::Source)?,
            receiver: hosts.start_role(to.host, RemoteRole::Receiver)?,
            files: from.files.clone(),
            follow: false,
            growing: Some(growing),
            names: HostNames {
                source: from.name.clone(),
                root: from.files.root.clone(),
                target: to.name.clone(),
            },
            job,
        })
    }

    /// Waits for the checksums of the source; `None` after a cancel.
    fn sums(&self) -> Option<Result<(BlockSums, GrowingBlocks), String>> {
        let mut state = self.lock();
        loop {
            if self.run.cancel().is_cancelled() {
                return None;
            }
            if let Some(sums) = &state.sums {
                return Some(sums.clone());
            }
            let woken = self.changed.wait_timeout(state, CANCEL_SEEN);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The only source, a large file.
fn one_file(request: &CopyRequest) -> Result<PathBuf, String> {
    let [Place::Local(source)] = request.sources.as_slice() else {
        return Err("there are several sources".to_owned());
    };
    match source.metadata() {
        Ok(meta) if !meta.is_file() => Err("the source is no regular file".to_owned()),
        Ok(meta) if meta.len() < LEAST => {
            Err(format!("the file is smaller than {} MiB", LEAST >> 20))
        }
        Ok(_) => Ok(source.clone()),
        // The copy reports it.
        Err(_) => Err("the source cannot be read".to_owned()),
    }
}

/// Options of the copies between the hosts.
fn options(options: &CopyOptions) -> Result<CopyOptions, String> {
    let needs = [
        (options.archive, "--archive"),
        (options.inplace, "--inplace"),
        (options.temp_dir.is_some(), "--temp-dir"),
        (options.verify, "--verify"),
        (options.xattrs, "--xattrs"),
        (options.acls, "--acls"),
        (options.hard_links, "--hard-links"),
        (options.sparse, "--sparse"),
        (options.delta == DeltaUse::Always, "--delta"),
        (options.filter.is_some(), "a filter"),
    ];
    match needs.into_iter().find(|(set, _)| *set) {
        Some((_, flag)) => Err(format!("{flag} is for copies from this machine")),
        None => Ok(CopyOptions {
            delta: DeltaUse::Never,
            ..options.clone()
        }),
    }
}

/// Path that the file gets at a host, whose target must be a directory by its form.
fn path_at(part: &Part, name: &[u8]) -> Result<Vec<u8>, String> {
    match &part.request.target {
        Place::Remote { path, .. } if path == b"." => Ok(name.to_vec()),
        Place::Remote { path, .. } if path.ends_with(b"/") => Ok([path, name].concat()),
        _ => Err(format!(
            "{}: write a slash at the end of a target that is a directory",
            part.name
        )),
    }
}

/// The way of the data in a fan-out: `from` holds each host with the one before it.
pub(super) fn way(from: &[(String, Option<String>)], why_not: Option<String>) -> HostWay {
    let passed: Vec<_> = from
        .iter()
        .filter_map(|(host, from)| from.as_ref().map(|from| format!("{from} > {host}")))
        .collect();
    // The first host gets the data from here in any case.
    let from_here = from.iter().skip(1).filter(|(_, from)| from.is_none());
    let from_here: Vec<&str> = from_here.map(|(host, _)| host.as_str()).collect();
    let to = match from_here.len() {
        0..=NAMED => from_here.join(" and "),
        count => format!("{count} hosts"),
    };
    let passed_on = passed.join(", ");
    let (kind, reason) = match (passed.is_empty(), why_not) {
        (true, why) => (HostWayKind::Star, why.unwrap_or_default()),
        (false, Some(why)) if !from_here.is_empty() => {
            let why = why.strip_prefix(&format!("{to}: ")).unwrap_or(&why);
            (
                HostWayKind::Chain,
                format!("{passed_on}; from this machine to {to}: {why}"),
            )
        }
        (false, _) => (HostWayKind::Chain, passed_on),
    };
    HostWay {
        kind,
        connected: None,
        address: None,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_got_the_data_from_here_are_named() {
        let way = |froms: &[Option<&str>], why: Option<&str>| {
            let named = froms.iter().enumerate();
            let from = named.map(|(at, from)| (format!("h{}", at + 1), from.map(str::to_owned)));
            way(&from.collect::<Vec<_>>(), why.map(str::to_owned)).reason
        };
        let (one, two) = (Some("h1"), Some("h2"));
        assert_eq!(way(&[None, one, two], None), "h1 > h2, h2 > h3");
        assert_eq!(
            way(&[None, one, None], Some("h3: no longhaul there")),
            "h1 > h2; from this machine to h3: no longhaul there"
        );
        assert_eq!(
            way(&[None, one, None, None, None, None], Some("gone")),
            "h1 > h2; from this machine to 4 hosts: gone"
        );
        assert_eq!(way(&[None, one], Some("tried twice")), "h1 > h2");
        assert_eq!(way(&[None, None], Some("small")), "small");
    }
}
