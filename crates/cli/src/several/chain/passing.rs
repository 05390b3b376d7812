//! Copies a file from one host of a chain to the next.

use std::time::Duration;

use schedule::CompressionMode;
use ssh::direct_control::GrowingFileBlocks;
use transfer::cancel::CancelToken;
use transfer::connect::{ConnectError, ConnectStep, RemoteCommand, RemoteLonghaulRole};
use transfer::host_to_host::{
    self, FileBlockHashes, HostCopyOutcome, HostToHostCopy, MissingLonghaul, ReceiverJob,
    ReportedPathTranslator,
};
use transfer::report::{
    CopyEvent, CopyOutcome, CopySummary, EscapedName, FailureCause, ProgressCounters,
};

use super::{ChainFile, ChainObstacle, FileNumber, HostChain, Sums};

/// Requests in flight from one host to the one before it.
const REQUESTS: u64 = 32;

/// Time in which a host must log in to pass a file on, or to get it from another host.
const LOGIN: Duration = Duration::from_secs(120);

/// Failures of one file that are kept: those of a copy that is not repeated are shown.
const MOST_FAILURES: usize = 16;

/// Result of a copy from another host.
pub(super) enum ChainCopyOutcome {
    Finished(Box<CopySummary>),
    /// The file did not arrive, for this reason.
    Failed(ChainObstacle, MissingLonghaul),
    /// A connection was lost, for this reason. The same host may go on.
    Lost(ChainObstacle),
    /// The host before it cannot be reached, for this reason.
    Gone(ChainObstacle),
    /// The receiving host refuses the login, for this reason.
    NoLogin(ChainObstacle),
    /// No connection to the receiving host can be made, for this reason.
    Unreachable(ChainObstacle),
}

/// The file did not arrive, for this reason, which is not a missing longhaul.
fn not(why: impl Into<ChainObstacle>) -> ChainCopyOutcome {
    ChainCopyOutcome::Failed(why.into(), MissingLonghaul::default())
}

impl HostChain<'_> {
    /// Removes the part of a file that another host has sent, and its journal.
    pub(super) fn discard(&self, number: usize, file: FileNumber) {
        let Some(Ok((blocks, _))) = self.sums(file) else {
            return;
        };
        let hosts = self.run.hosts();
        let discarded = || -> Result<(), ChainObstacle> {
            let job = self.job((number, number), file, blocks)?;
            let (host, cancel) = (self.links[number].host, self.run.cancel());
            let receiver =
                hosts.start_role(host, RemoteLonghaulRole::Receiver, cancel, Some(LOGIN))?;
            Ok(host_to_host::discard(receiver, job)?)
        };
        if let Err(why) = discarded() {
            let name = &self.links[number].name;
            tracing::debug!(
                "{name}: cannot remove the incomplete file that another host sent: {why}; remove \
                 it by hand"
            );
        }
    }

    /// Copies a file from a host to another one.
    pub(super) fn pass(
        &self,
        (from, to): (usize, usize),
        file: FileNumber,
        progress: &ProgressCounters,
        events: &mut dyn FnMut(CopyEvent),
    ) -> ChainCopyOutcome {
        let cancel = CancelToken::default();
        let Some(sums) = self.sums(file) else {
            return not("interrupted");
        };
        let (blocks, growing) = match sums {
            Ok(sums) => sums,
            Err(why) => return not(ChainObstacle::named(format!("the source: {why}"))),
        };
        {
            let mut state = self.lock();
            loop {
                let host = &state.hosts[from];
                if self.run.cancel().is_cancelled() {
                    return not("interrupted");
                }
                if host.failed {
                    return not(self.has_failed(from));
                }
                if host.silent {
                    let name = &self.links[from].name;
                    return not(format!("{name} cannot pass files on"));
                }
                if host.ready || host.over {
                    break;
                }
                state = self.wait(state);
            }
            state.hosts[to].from = Some(from);
            state.hosts[to].cancel = Some(cancel.clone());
        }
        let (receiver, source) = match self.start((from, to), &cancel) {
            Ok(roles) => roles,
            Err(passed) => return passed,
        };
        let copy = match self.copy_between((from, to), file, (receiver, source), (blocks, growing))
        {
            Ok(copy) => copy,
            Err(why) => return not(why),
        };
        // The copy from another host, or from here, reports its own failures.
        let mut failures = Vec::new();
        let mut shown = |event| match event {
            CopyEvent::Failed { .. } if failures.len() < MOST_FAILURES => failures.push(event),
            CopyEvent::Failed { .. } => {}
            event => events(event),
        };
        let ending = host_to_host::conduct(copy, progress, &mut shown, &cancel);
        if progress.bytes_done() > 0 || !matches!(ending, HostCopyOutcome::NotPossible(..)) {
            self.lock().hosts[to].begun.push(file);
        }
        match ending {
            HostCopyOutcome::Done(summary) if self.ends(&summary) => {
                failures.into_iter().for_each(events);
                ChainCopyOutcome::Finished(summary)
            }
            _ if cancel.is_cancelled() && self.lock().hosts[from].failed => {
                not(self.has_failed(from))
            }
            HostCopyOutcome::Done(summary) => not(self.why_not_copied(from, &summary)),
            HostCopyOutcome::NotPossible(why, missing) => {
                ChainCopyOutcome::Failed(ChainObstacle::named(why), missing)
            }
            HostCopyOutcome::Lost(why) => ChainCopyOutcome::Lost(ChainObstacle::named(why)),
        }
    }

    /// The reason why a copy from the host `from` has not ended well.
    fn why_not_copied(&self, from: usize, summary: &CopySummary) -> ChainObstacle {
        match (&summary.outcome, summary.failures.first()) {
            (CopyOutcome::NoConnection(why) | CopyOutcome::Misconfigured(why), _) => {
                ChainObstacle::named(why.clone())
            }
            (_, Some(failure)) => {
                ChainObstacle::named(format!("{}: {}", failure.path, failure.reason))
            }
            (_, None) => self.has_failed(from).into(),
        }
    }

    /// Starts longhaul on the receiving host, and on the one before it.
    fn start(
        &self,
        (from, to): (usize, usize),
        cancel: &CancelToken,
    ) -> Result<(RemoteCommand, RemoteCommand), ChainCopyOutcome> {
        let start = |host: usize, role| {
            let host = self.links[host].host;
            let hosts = self.run.hosts();
            hosts.start_role(host, role, cancel, Some(LOGIN))
        };
        let classify = |error: ConnectError, lost: fn(ChainObstacle) -> ChainCopyOutcome| {
            match error.check() {
                // The host runs no commands.
                ConnectStep::Session => not(error),
                // The end of that host's copy has cancelled this one.
                _ if self.lock().hosts[from].failed => not(self.has_failed(from)),
                _ => lost(error.into()),
            }
        };
        let receiver = start(to, RemoteLonghaulRole::Receiver).map_err(|error| {
            let is_unreachable = error.check() == ConnectStep::Reach && !cancel.is_cancelled();
            classify(
                error,
                match is_unreachable {
                    true => ChainCopyOutcome::Unreachable,
                    false => ChainCopyOutcome::NoLogin,
                },
            )
        })?;
        let source = start(from, RemoteLonghaulRole::Source);
        let source = source.map_err(|error| classify(error, ChainCopyOutcome::Gone))?;
        Ok((receiver, source))
    }

    /// The reason why a host gets no file from the host `from`, whose copy has failed.
    fn has_failed(&self, from: usize) -> String {
        format!("the copy to {} failed", self.links[from].name)
    }

    /// True if a copy needs no other way: it is complete, the user has interrupted the run, or the
    /// host's disk is full, whoever sends.
    fn ends(&self, summary: &CopySummary) -> bool {
        match summary.outcome {
            CopyOutcome::Complete => true,
            CopyOutcome::Interrupted => self.run.cancel().is_cancelled(),
            _ => {
                let mut failures = summary.failures.iter();
                failures.any(|failure| failure.cause == FailureCause::NoSpace)
            }
        }
    }

    fn at(&self, host: usize, file: FileNumber) -> Result<&ChainFile, ChainObstacle> {
        let files = self.links[host].files.as_ref().map_err(Clone::clone)?;
        files
            .get(file)
            .ok_or_else(|| "internal error: unknown file".into())
    }

    fn job(
        &self,
        (from, to): (usize, usize),
        file: FileNumber,
        blocks: FileBlockHashes,
    ) -> Result<ReceiverJob, ChainObstacle> {
        let hosts = self.run.hosts();
        let (there, here) = (self.at(from, file)?, self.at(to, file)?);
        let from = &self.links[from];
        let options = hosts.session_options();
        Ok(ReceiverJob {
            version: ReceiverJob::VERSION,
            host: from.name.clone(),
            // The same for every host that passes the file on, so that any of them can continue.
            identity: format!("fan-out:{}", blocks.identity()),
            sources: there.files.names.iter().cloned().map(EscapedName).collect(),
            target: EscapedName(here.path.clone()),
            options: self.options.clone(),
            limit: options.limit,
            // The blocks arrive about in their order, in which one lane asks for them.
            connections: Some(1),
            channels: Some(1),
            // The host before waits with more than these on its pool of threads.
            requests: Some(options.requests.map_or(REQUESTS, |most| most.min(REQUESTS))),
            buffer: options.buffer,
            // Blocks that are not there yet are only waited for by READ.
            pack: CompressionMode::Never,
            secured: hosts.algorithms(from.host)?,
            blocks: Some(blocks),
            source: Vec::new(),
            here: Vec::new(),
            token: Default::default(),
        })
    }

    fn copy_between(
        &self,
        (from, to): (usize, usize),
        file: FileNumber,
        (receiver, source): (RemoteCommand, RemoteCommand),
        (blocks, growing): (FileBlockHashes, GrowingFileBlocks),
    ) -> Result<HostToHostCopy, ChainObstacle> {
        let job = self.job((from, to), file, blocks)?;
        let files = self.at(from, file)?.files.clone();
        Ok(HostToHostCopy {
            source,
            receiver,
            names: ReportedPathTranslator {
                source: self.links[from].name.clone(),
                root: files.root.clone(),
                target: self.links[to].name.clone(),
            },
            files,
            follow: false,
            growing: Some(growing),
            job,
            awaited: self.run.hosts().awaited(),
        })
    }

    /// Waits for the checksums of a file; `None` after a cancel.
    fn sums(&self, file: FileNumber) -> Option<Sums> {
        let mut state = self.lock();
        loop {
            if self.run.cancel().is_cancelled() {
                return None;
            }
            if let Some(sums) = &state.sums[file] {
                return Some(sums.clone());
            }
            state = self.wait(state);
        }
    }
}
