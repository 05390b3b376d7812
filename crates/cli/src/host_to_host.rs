//! Copies between two hosts: chooses the way of the data, and runs the direct one.

mod held_failures;
mod self_copy;

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use ssh::transport::DisabledProtection;
use transfer::cancel::CancelToken;
use transfer::connect::{ConnectError, ConnectStep, RemoteLonghaulRole};
use transfer::copy::{CopyLocation, CopyRequest, HostId, SessionConnector as _};
use transfer::host_to_host::{
    self, HostCopyOutcome, HostToHostCopy, MissingLonghaul, ReceiverJob, ReportedPathTranslator,
    SourcesInDirectory, files_of,
};
use transfer::report::{
    CopyEvent, CopyOutcome, CopySummary, EscapedName, HostCopyReason, ProgressCounters,
};

use self::held_failures::HeldFailures;
use crate::connect::Hosts;
use crate::exit::Exit;
use crate::failed;
use crate::flags::low::CopyArgs;

/// Waits before the attempts to resume a copy whose control connection was lost, in seconds.
const AGAIN: [u64; 6] = [1, 2, 4, 8, 15, 30];

/// How often progress makes the waits begin again. A host may report any progress.
const MOST_RENEWALS: u32 = 100;

/// The flag that excludes the direct way.
pub(crate) const THROUGH_HERE: &str = "--through-here";

/// The reason of a copy that goes through this machine because of [`THROUGH_HERE`].
pub(crate) const THROUGH_HERE_GIVEN: &str = "-3 (--through-here) was given";

/// Path that the data of a copy takes, chosen from the operands and flags before any connection is
/// made.
pub(crate) enum CopyRoute {
    /// One end is this machine.
    Local,
    /// Through this machine, with the reason.
    ThroughHere(HostCopyReason),
    /// Perhaps directly.
    Direct(Box<DirectHostCopy>),
}

/// A copy between two hosts for which the direct way is tried.
pub(crate) struct DirectHostCopy {
    source: HostId,
    target: HostId,
    files: SourcesInDirectory,
    path: Vec<u8>,
}

/// Chooses the way for a copy, as far as that is possible without a connection.
pub(crate) fn choose(request: &CopyRequest, hosts: &Hosts) -> CopyRoute {
    let CopyLocation::Remote { host: target, path } = &request.target else {
        return CopyRoute::Local;
    };
    let mut from = Vec::new();
    let mut paths: Vec<&[u8]> = Vec::new();
    for source in &request.sources {
        let CopyLocation::Remote { host, path } = source else {
            return CopyRoute::Local;
        };
        if !from.contains(host) {
            from.push(*host);
        }
        paths.push(path);
    }
    let source = match from.as_slice() {
        [source] if source != target => *source,
        [_] => return CopyRoute::ThroughHere("both ends are on the same host".into()),
        _ => return CopyRoute::ThroughHere("the sources are on several hosts".into()),
    };
    // Filters and a plan's journal exist on this machine only.
    if request.options.filter.is_some() || request.options.journal_folder.is_some() {
        return CopyRoute::ThroughHere("this machine selects what is copied".into());
    }
    if let Some(why) = needs_this_machine(hosts.flags()) {
        return CopyRoute::ThroughHere(why.into());
    }
    for host in [source, *target] {
        // Errors of the configuration are reported by the copy.
        if let Ok(Some(why)) = hosts.longhaul_is_absent(host) {
            let why = format!("{}: {why}", hosts.name(host));
            return CopyRoute::ThroughHere(HostCopyReason::Named(why));
        }
    }
    match files_of(&paths) {
        Ok(files) => CopyRoute::Direct(Box::new(DirectHostCopy {
            source,
            target: *target,
            files,
            path: path.clone(),
        })),
        Err(why) => CopyRoute::ThroughHere(why.into()),
    }
}

/// Returns the flag that has a meaning only for connections of this machine.
pub(crate) fn needs_this_machine(flags: &CopyArgs) -> Option<&'static str> {
    let set = [
        (flags.through_here, THROUGH_HERE_GIVEN),
        (flags.program.is_some(), "-S runs a program on this machine"),
        (
            flags.sftp_server.is_some(),
            "-D runs a program on this machine",
        ),
        (
            flags.manifest.is_some(),
            "--manifest is written on this machine",
        ),
        (
            flags.background,
            "--background watches connections of this machine",
        ),
        (
            flags.dscp.value() != 0,
            "--dscp marks packets of this machine",
        ),
        (
            flags.via.is_some(),
            "--via relays connections of this machine",
        ),
        (
            flags.congestion.is_some(),
            "--congestion is for connections of this machine",
        ),
        (
            flags.renounced != DisabledProtection::Nothing,
            "--insecure-none-cipher is for connections of this machine; the one between the hosts \
             is always encrypted",
        ),
    ];
    set.into_iter().find(|(set, _)| *set).map(|(_, why)| why)
}

/// Result of trying to copy from host to host directly. Only a copy that has not begun can still be
/// made through this machine.
pub(crate) enum DirectCopyOutcome {
    /// The copy is over.
    Finished(Box<CopySummary>),
    /// Nothing was copied, for this reason: the data goes through this machine.
    NotPossible(HostCopyReason),
}

impl DirectHostCopy {
    /// Copies on the direct way, and resumes when a control connection is lost.
    pub(crate) fn run(
        &self,
        request: &CopyRequest,
        hosts: &Hosts,
        progress: &ProgressCounters,
        events: &mut dyn FnMut(CopyEvent),
        cancel: &CancelToken,
    ) -> DirectCopyOutcome {
        let start = Instant::now();
        let over = |mut summary: Box<CopySummary>| {
            summary.elapsed = start.elapsed();
            DirectCopyOutcome::Finished(summary)
        };
        let lost = |why: String| {
            Box::new(CopySummary {
                outcome: CopyOutcome::NoConnection(why),
                bytes: 0,
                unfinished: progress.bytes_done(),
                ..CopySummary::default()
            })
        };
        let mut begun = false;
        let mut waits = AGAIN.iter();
        let (mut moved, mut renewals) = (0, 0);
        let mut failures = HeldFailures::default();
        loop {
            let mut shown = |event| failures.pass(Instant::now(), event, events);
            let why = match self.attempt(request, hosts, progress, &mut shown, cancel) {
                Ok(HostCopyOutcome::Done(summary)) => {
                    failures.release(events);
                    return over(summary);
                }
                _ if cancel.is_cancelled() => {
                    failures.release(events);
                    return over(interrupted(progress));
                }
                Ok(HostCopyOutcome::NotPossible(why, missing)) if !begun => {
                    self.remember(hosts, missing);
                    return DirectCopyOutcome::NotPossible(HostCopyReason::Named(why));
                }
                Ok(HostCopyOutcome::NotPossible(why, _) | HostCopyOutcome::Lost(why)) => why,
                Err(e) if !begun => {
                    return match e.check() {
                        // The host runs no commands.
                        ConnectStep::Session => {
                            DirectCopyOutcome::NotPossible(HostCopyReason::Named(e.into()))
                        }
                        _ => over(lost(e.into())),
                    };
                }
                Err(e) => e.into(),
            };
            begun = true;
            if progress.bytes_done() > moved && renewals < MOST_RENEWALS {
                moved = progress.bytes_done();
                renewals += 1;
                waits = AGAIN.iter();
            }
            let Some(seconds) = waits.next() else {
                failures.release(events);
                return over(lost(why));
            };
            events(CopyEvent::Warning {
                path: None,
                message: format!("{why}; connecting again in {seconds} s"),
            });
            // A cancel disconnects the channel.
            let wait = Duration::from_secs(*seconds);
            let _ = cancel.receiver().recv_timeout(wait);
            if cancel.is_cancelled() {
                failures.release(events);
                return over(interrupted(progress));
            }
            failures.repeat();
        }
    }

    fn remember(&self, hosts: &Hosts, missing: MissingLonghaul) {
        let each = [
            (missing.source, self.source),
            (missing.receiver, self.target),
        ];
        for (_, host) in each.into_iter().filter(|(missing, _)| *missing) {
            hosts.remember_absent(host);
        }
    }

    fn attempt(
        &self,
        request: &CopyRequest,
        hosts: &Hosts,
        progress: &ProgressCounters,
        events: &mut dyn FnMut(CopyEvent),
        cancel: &CancelToken,
    ) -> Result<HostCopyOutcome, ConnectError> {
        let job = self.job(request, hosts)?;
        let source = hosts.start_role(self.source, RemoteLonghaulRole::Source, cancel, None)?;
        let receiver = hosts.start_role(self.target, RemoteLonghaulRole::Receiver, cancel, None)?;
        let [from, to] = [&source, &receiver].map(|role| role.address.map(|at| at.ip()));
        // An address is unknown behind a jump host.
        let may_be_one = from.zip(to).is_none_or(|(from, to)| from == to);
        if may_be_one && self.may_copy_into_itself(request) {
            let why = format!(
                "both hosts may be the same machine, and the target {} may be inside a source",
                EscapedName(self.path.clone())
            );
            return Ok(HostCopyOutcome::NotPossible(
                why,
                MissingLonghaul::default(),
            ));
        }
        let copy = HostToHostCopy {
            source,
            receiver,
            files: self.files.clone(),
            follow: request.options.recursive && !request.options.archive,
            growing: None,
            names: ReportedPathTranslator {
                source: job.host.clone(),
                root: self.files.root.clone(),
                target: hosts.name(self.target),
            },
            job,
            awaited: hosts.awaited(),
        };
        Ok(host_to_host::conduct(copy, progress, events, cancel))
    }

    /// True if the target may lie in a directory that is copied, if the hosts are one machine. The
    /// receiver sees the sources below a root of its own and cannot compare the paths. A machine
    /// with two addresses and a symlink in a path are not recognized.
    fn may_copy_into_itself(&self, request: &CopyRequest) -> bool {
        let recursive = request.options.recursive || request.options.archive;
        let holds = |source: &CopyLocation| match source {
            CopyLocation::Remote { path, .. } => self_copy::may_hold(path, &self.path),
            CopyLocation::Local(_) => false,
        };
        recursive && request.sources.iter().any(holds)
    }

    fn job(&self, request: &CopyRequest, hosts: &Hosts) -> Result<ReceiverJob, ConnectError> {
        let options = hosts.session_options();
        let name = |path: &Vec<u8>| EscapedName(path.clone());
        let root = transfer::escape::name(&self.files.root).to_string();
        Ok(ReceiverJob {
            version: ReceiverJob::VERSION,
            host: hosts.name(self.source),
            identity: format!("{}:{root}", hosts.identity(self.source)),
            sources: self.files.names.iter().map(name).collect(),
            target: EscapedName(self.path.clone()),
            options: request.options.clone(),
            limit: options.limit,
            connections: options.connections,
            channels: options.channels,
            requests: options.requests,
            buffer: options.buffer,
            pack: options.pack,
            secured: hosts.algorithms(self.source)?,
            blocks: None,
            source: Vec::new(),
            here: Vec::new(),
            token: Default::default(),
        })
    }
}

/// Result of a copy that the user has interrupted.
fn interrupted(progress: &ProgressCounters) -> Box<CopySummary> {
    Box::new(CopySummary {
        unfinished: progress.bytes_done(),
        ..CopySummary::interrupted()
    })
}

/// Runs `longhaul receive`, which `longhaul cp` starts on a receiving host over ssh.
pub(crate) fn receive() -> Exit {
    let streams = || -> io::Result<(File, File)> {
        serve::sshd::hide_memory()?;
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        Ok((input.into(), output.into()))
    };
    let started = streams().and_then(|streams| {
        crate::signals::too_long_is_an_error()?;
        Ok(streams)
    });
    let (input, output) = match started {
        Ok(streams) => streams,
        Err(e) => return failed(format!("receive: {e}")),
    };
    match host_to_host::receive(input, output, serve::sshd::own_addresses()) {
        Ok(()) => Exit::Done,
        Err(error) => failed(error),
    }
}
