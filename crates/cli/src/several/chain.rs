//! Passes large files on from host to host while they are being received, so that each of their
//! bytes leaves this machine once: docs/design/0024-fan-out.md.
//!
//! The first host gets a file by an ordinary copy. Each further host copies it from the one before
//! it, as between two hosts, while that one is still receiving. A host whose predecessor fails
//! continues with an earlier one, and without any it gets the file from here.

mod large;
mod obstacle;
mod order;
mod passing;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::select;
use ssh::direct_control::GrowingFileBlocks;
use transfer::cancel::CancelToken;
use transfer::copy::{CopyOptions, CopyRequest, HostId};
use transfer::host_to_host::{FileBlockHashes, SourcesInDirectory, files_of};
use transfer::report::{
    CopyEvent, CopyOutcome, CopySummary, HostCopyReason, HostCopyRoute, HostCopyRouteKind,
    ProgressCounters,
};

use self::large::{LEAST, LargeFile, options, path_at};
pub(super) use self::large::{SizeSelection, contents};
pub(super) use self::obstacle::ChainObstacle;
use self::order::order;
use self::passing::ChainCopyOutcome;
use super::HostCopyRequest;
use crate::cp::PreparedCopy;
use crate::host_to_host::needs_this_machine;

/// Most hosts of a chain, which all receive at the same time.
const MOST_HOSTS: usize = 64;
/// Hosts from which one host tries to get the file before it gets the file from here.
const MOST_TRIED: usize = 3;
/// Waits before a lost connection to the host before is made again, in seconds. A host that is down
/// for longer is left out.
const RETURNS: [u64; 3] = [1, 2, 4];
/// Failed attempts to reach the host before, after which it is left out.
const GONE: u32 = 2;
/// Hosts that the closing line names as served from here.
const NAMED: usize = 3;

/// Number of a file that is passed on.
pub(super) type FileNumber = usize;

/// Hosts that pass files on, in their order.
pub(super) struct HostChain<'a> {
    run: &'a PreparedCopy<'a>,
    files: Vec<LargeFile>,
    /// There is more to copy than these files.
    rest: bool,
    options: CopyOptions,
    links: Vec<ChainHost>,
    /// Numbers of the hosts in the order in which they get the file.
    order: Vec<usize>,
    state: Mutex<ChainState>,
    changed: Condvar,
}

/// A host of the chain.
struct ChainHost {
    host: HostId,
    name: String,
    /// The files there, or why the host gets them from here and passes nothing on.
    files: Result<Vec<ChainFile>, ChainObstacle>,
}

/// A large file at one host: the path that it gets there, and its form in a request of another host
/// that copies it.
struct ChainFile {
    path: Vec<u8>,
    files: SourcesInDirectory,
}

/// State that the threads of all hosts share under a mutex; a change wakes those that wait for a
/// host to pass on.
struct ChainState {
    hosts: Vec<ChainHostState>,
    /// Checksums of each file; `None` until they are known.
    sums: Vec<Option<Sums>>,
    /// Files in the order in which the first host has begun to receive them.
    started: Vec<FileNumber>,
}

type Sums = Result<(FileBlockHashes, GrowingFileBlocks), ChainObstacle>;

/// Progress of one host in the chain, by which its successors decide from which host to copy.
#[derive(Clone, Default)]
struct ChainHostState {
    failed: bool,
    /// The copy there has ended.
    over: bool,
    /// The host cannot pass files on.
    silent: bool,
    /// The directories of the files are there.
    ready: bool,
    /// The host from which this one gets a file now.
    from: Option<usize>,
    /// The host from which a file has come.
    origin: Option<usize>,
    /// Ends the copy from that host.
    cancel: Option<CancelToken>,
    /// Files of which a copy from another host has begun, and which may have left a part.
    begun: Vec<FileNumber>,
}

impl<'a> HostChain<'a> {
    /// Prepares a chain.
    ///
    /// # Errors
    /// A clause that says why each host gets the file from here.
    pub(super) fn new(
        parts: &[HostCopyRequest],
        run: &'a PreparedCopy<'a>,
    ) -> Result<Self, ChainObstacle> {
        let Some(first) = parts.first() else {
            return Err("there is no host".into());
        };
        if parts.len() > MOST_HOSTS {
            return Err(format!("there are more than {MOST_HOSTS} hosts").into());
        }
        if let Some(why) = needs_this_machine(run.hosts().flags()) {
            return Err(why.into());
        }
        let options = options(&first.request.options)?;
        let found = large::find(&first.request)?;
        let files = |part: &HostCopyRequest| {
            // Errors of the configuration are reported by the copy.
            if let Ok(Some(why)) = run.hosts().longhaul_is_absent(part.host) {
                return Err(ChainObstacle::named(format!("{}: {why}", part.name)));
            }
            let link_file = |file: &LargeFile| {
                let path = path_at(part, &file.below)?;
                let files = files_of(&[&path])?;
                Ok(ChainFile { path, files })
            };
            found.files.iter().map(link_file).collect()
        };
        let links: Vec<ChainHost> = parts
            .iter()
            .map(|part| ChainHost {
                host: part.host,
                name: part.name.clone(),
                files: files(part),
            })
            .collect();
        let left_out = links.iter().filter_map(|link| link.files.as_ref().err());
        if let Some(why) = left_out.clone().next()
            && links.len() - left_out.count() < 2
        {
            return Err(why.clone());
        }
        let rates = links.iter().map(|link| match &link.files {
            Ok(_) => run.hosts().remembered_rate(link.host),
            Err(_) => None,
        });
        let order = order(&rates.collect::<Vec<_>>());
        let hosts = vec![ChainHostState::default(); links.len()];
        let sums = vec![None; found.files.len()];
        Ok(Self {
            run,
            files: found.files,
            rest: found.rest,
            options,
            links,
            order,
            state: Mutex::new(ChainState {
                hosts,
                sums,
                started: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Hosts that get the files from here whatever happens, with the first one of the chain.
    pub(super) fn copies_from_here(&self) -> usize {
        let left_out = self.links.iter().filter(|link| link.files.is_err());
        1 + left_out.count()
    }

    /// True if there is more to copy than the files that are passed on.
    pub(super) fn has_rest(&self) -> bool {
        self.rest
    }

    /// Number of files that are passed on.
    pub(super) fn count(&self) -> u64 {
        self.files.len() as u64
    }

    /// Bytes of the files that are passed on.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Bytes of a file.
    pub(super) fn size(&self, file: FileNumber) -> u64 {
        self.files.get(file).map_or(0, |file| file.size)
    }

    /// Computes the checksums of the sources, until `over`.
    pub(super) fn sum_up(&self, over: &CancelToken) {
        let cancel = self.run.cancel();
        let stopped = || cancel.is_cancelled() || over.is_cancelled();
        for number in 0..self.files.len() {
            let sums = FileBlockHashes::of(&self.files[number].source, stopped);
            self.lock().sums[number] = Some(sums.map_err(|e| e.to_string().into()));
            self.changed.notify_all();
        }
    }

    /// Waits for a cancel of the run, and passes it on to the copies and waits of all hosts. Ends
    /// with `over`.
    pub(super) fn watch(&self, over: &CancelToken) {
        let cancel = self.run.cancel();
        select! {
            recv(cancel.receiver()) -> _ => {
                // A copy that begins now checks the run's cancel under the same lock.
                let state = self.lock();
                let all = state.hosts.iter().filter_map(|host| host.cancel.as_ref());
                all.for_each(CancelToken::cancel);
                self.changed.notify_all();
            }
            recv(over.receiver()) -> _ => {}
        }
    }

    /// Name in messages of the directory at a host that the only source becomes, if the target is a
    /// directory there; `None` if the target surely is one.
    pub(super) fn tree_at(&self, part: &HostCopyRequest) -> Option<Vec<u8>> {
        let name = large::only_tree(&part.request)?;
        let path = path_at(part, &name).ok().filter(|path| *path != name)?;
        Some([part.name.as_bytes(), b":", &path].concat())
    }

    /// Leaves a host out, where the files have other paths.
    pub(super) fn leave_out(&self, number: usize) {
        self.lock().hosts[number].silent = true;
        self.changed.notify_all();
    }

    /// Notes that the directories of the files are at a host.
    pub(super) fn ready(&self, number: usize) {
        self.lock().hosts[number].ready = true;
        self.changed.notify_all();
    }

    /// Notes an event of the first host's copy.
    pub(super) fn note(&self, event: &CopyEvent) {
        let CopyEvent::FileStarted { source, size, .. } = event else {
            return;
        };
        if size.is_some_and(|size| size < LEAST) {
            return;
        }
        // Event and operand may differ in a `./`.
        let parts = |path: &'_ Path| -> Vec<OsString> {
            let named = path.components().filter(|part| *part != Component::CurDir);
            named.map(|part| part.as_os_str().to_owned()).collect()
        };
        let begun = parts(Path::new(OsStr::from_bytes(&source.0)));
        let of_event = |file: &LargeFile| parts(&file.source) == begun;
        if let Some(number) = self.files.iter().position(of_event) {
            self.lock().started.push(number);
            self.changed.notify_all();
        }
    }

    /// Returns the next file for a host that has dealt with those in `done`: in the order in which
    /// the first host gets them. Waits until that one has begun.
    pub(super) fn next(&self, done: &[FileNumber]) -> Option<FileNumber> {
        let left = |number: &FileNumber| !done.contains(number);
        let mut state = self.lock();
        loop {
            let first = (0..self.files.len()).find(left)?;
            let ends = self.first().is_none_or(|first| state.hosts[first].over);
            let begun = state.started.iter().copied().find(left);
            if begun.is_some() || ends || self.run.cancel().is_cancelled() {
                return begun.or(Some(first));
            }
            state = self.wait(state);
        }
    }

    /// The reason why a host gets all files from here, if it does.
    pub(super) fn is_left_out(&self, number: usize) -> Option<&ChainObstacle> {
        self.links[number].files.as_ref().err()
    }

    /// Gets a file for a host from the hosts before it. Returns the reason if the host must get it
    /// from here.
    pub(super) fn receive(
        &self,
        number: usize,
        file: FileNumber,
        progress: &ProgressCounters,
        events: &mut dyn FnMut(CopyEvent),
    ) -> Result<CopySummary, ChainObstacle> {
        let start = Instant::now();
        let mut why = ChainObstacle::from("no host before it has the file");
        let mut tried = Vec::new();
        let mut lost = None;
        let mut waits = RETURNS.into_iter();
        let (mut resumes, mut gone) = (false, 0);
        loop {
            let from = match self.predecessor(number, &tried) {
                Some(from) => from,
                None => match self.returned(lost.take(), &mut waits) {
                    Some(from) => from,
                    None => break,
                },
            };
            let mut shown = |event| match event {
                // The part is of this run.
                CopyEvent::Resumed { .. } if resumes => {}
                event => events(event),
            };
            let passed = self.pass((from, number), file, progress, &mut shown);
            resumes |= self.lock().hosts[number].begun.contains(&file);
            self.lock().hosts[number].cancel = None;
            match passed {
                ChainCopyOutcome::Finished(mut summary) => {
                    summary.elapsed = start.elapsed();
                    summary.way = None;
                    self.lock().hosts[number].origin = Some(from);
                    return Ok(*summary);
                }
                ChainCopyOutcome::Lost(reason) => {
                    why = reason;
                    lost = Some(from);
                }
                ChainCopyOutcome::Gone(reason) => {
                    why = reason;
                    gone += 1;
                    // One that was never reached is not waited for.
                    lost = Some(from).filter(|_| resumes && gone < GONE);
                    self.lock().hosts[from].silent |= lost.is_none();
                }
                // A further attempt, to copy from here, would end in the same way.
                ChainCopyOutcome::Unreachable(reason) => {
                    self.lock().hosts[number].from = None;
                    return Ok(unreachable(reason.to_string(), start.elapsed()));
                }
                ChainCopyOutcome::NoLogin(reason) => {
                    why = reason;
                    self.lock().hosts[number].silent = true;
                    break;
                }
                ChainCopyOutcome::Failed(reason, missing) => {
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

    /// Waits for a host whose connection was lost; `None` if it has failed or the waits are over.
    fn returned(
        &self,
        lost: Option<usize>,
        waits: &mut impl Iterator<Item = u64>,
    ) -> Option<usize> {
        let (lost, seconds) = (lost?, waits.next()?);
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut state = self.lock();
        while !state.hosts[lost].failed && !self.run.cancel().is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(lost);
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// Notes the end of a host's copy. Hosts that get a file from a failed one are told.
    pub(super) fn end(&self, number: usize, outcome: &CopyOutcome) {
        let mut state = self.lock();
        state.hosts[number].over = true;
        if *outcome != CopyOutcome::Complete {
            state.hosts[number].failed = true;
            let after = state.hosts.iter().filter(|host| host.from == Some(number));
            after
                .filter_map(|host| host.cancel.as_ref())
                .for_each(CancelToken::cancel);
        }
        self.changed.notify_all();
    }

    /// The copy of a file from here to a host.
    pub(super) fn alone(
        &self,
        number: usize,
        file: FileNumber,
        request: &CopyRequest,
    ) -> CopyRequest {
        match (&self.links[number].files, self.rest || self.files.len() > 1) {
            (Ok(there), true) => large::alone(request, &self.files[file], &there[file].path),
            _ => request.clone(),
        }
    }

    /// Removes what another host has sent of a file that has come from here.
    pub(super) fn settle(&self, number: usize, file: FileNumber) {
        if self.lock().hosts[number].begun.contains(&file) {
            self.discard(number, file);
        }
    }

    /// Name of the host from which a host has got a file; `None` for this machine.
    pub(super) fn from(&self, number: usize) -> Option<String> {
        let from = self.lock().hosts.get(number)?.origin?;
        Some(self.links.get(from)?.name.clone())
    }

    /// True for the host that gets the files from here and passes them on.
    pub(super) fn is_first(&self, number: usize) -> bool {
        self.first() == Some(number)
    }

    fn first(&self) -> Option<usize> {
        let able = |host: &&usize| {
            self.links
                .get(**host)
                .is_some_and(|link| link.files.is_ok())
        };
        self.order.iter().find(able).copied()
    }

    /// The nearest host before this one that may pass the file on.
    fn predecessor(&self, number: usize, tried: &[usize]) -> Option<usize> {
        if tried.len() >= MOST_TRIED {
            return None;
        }
        let state = self.lock();
        let may = |host: &usize| {
            let there = state.hosts.get(*host);
            there.is_some_and(|host| !host.failed && !host.silent)
                && self.links.get(*host).is_some_and(|link| link.files.is_ok())
                && !tried.contains(host)
        };
        let own = self.order.iter().position(|host| *host == number)?;
        let before = self.order.iter().take(own).rev().copied();
        before.into_iter().find(may)
    }

    fn lock(&self) -> MutexGuard<'_, ChainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the state, or a cancel of the run.
    fn wait<'s>(&self, state: MutexGuard<'s, ChainState>) -> MutexGuard<'s, ChainState> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The copy to a host to which no connection can be made.
fn unreachable(reason: String, elapsed: Duration) -> CopySummary {
    CopySummary {
        outcome: CopyOutcome::NoConnection(reason),
        elapsed,
        ..CopySummary::default()
    }
}

/// The way of the data in a fan-out: `from` holds each host that got data, with the one before it.
/// `None` if no host got any, or if one alone did, and no reason is known.
pub(super) fn way(
    from: &[(String, Option<String>)],
    why_not: Option<HostCopyReason>,
) -> Option<HostCopyRoute> {
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
        (true, why) => (HostCopyRouteKind::Star, why?),
        (false, Some(why)) if !from_here.is_empty() => {
            let why = why.text();
            let why = why.strip_prefix(&format!("{to}: ")).unwrap_or(why);
            let reason = format!("{passed_on}; from this machine to {to}: {why}");
            (HostCopyRouteKind::Chain, reason.into())
        }
        (false, _) => (HostCopyRouteKind::Chain, passed_on.into()),
    };
    Some(HostCopyRoute {
        kind,
        connected: None,
        address: None,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_got_the_data_from_here_are_named() {
        let way = |sources: &[Option<&str>], why: Option<&str>| {
            let named = sources.iter().enumerate();
            let from = named.map(|(at, from)| (format!("h{}", at + 1), from.map(str::to_owned)));
            way(&from.collect::<Vec<_>>(), why.map(HostCopyReason::from))
                .map(|way| way.reason.to_string())
                .unwrap_or_default()
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

    /// Bug: the closing line of an interrupted copy ended with "from this machine to each host: ".
    #[test]
    fn a_way_without_a_reason_is_not_shown() {
        assert_eq!(way(&[("h1".to_owned(), None)], None), None);
        assert_eq!(way(&[], None), None);
    }
}
