//! Keeps processes ready, so that a new client does not wait for their start.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::monitor_message_socket::MonitorMessageSocket;
use super::preauth::PreauthProcessConfig;
use super::process::{HelperProcess, ProcessRole};
use super::{ServerSettings, StopSignal};

/// A process that ends sooner than this is restarted only for the next client.
const SOON: Duration = Duration::from_secs(1);

/// One preauth process for the next client and, for root, the fork server. They belong to the
/// thread that accepts connections, because a process dies with the thread that started it.
#[derive(Debug)]
pub(super) struct SpareProcesses {
    stopping: StopSignal,
    accounts: bool,
    template: Option<SpareProcess>,
    spare: Option<(PreauthProcessConfig, SpareProcess)>,
}

/// Process that was started in advance, and the time of its start.
#[derive(Debug)]
struct SpareProcess {
    process: HelperProcess,
    at: Instant,
}

/// Processes that serve one new connection: its own preauth process, and the fork server of all
/// connections if the server runs as root.
pub(super) struct ConnectionProcesses {
    /// The preauth process, which has its task.
    preauth: HelperProcess,
    template: Option<Arc<MonitorMessageSocket>>,
}

impl ConnectionProcesses {
    /// The preauth process, and the link to the fork server if there is one.
    pub(super) fn into_parts(self) -> (HelperProcess, Option<Arc<MonitorMessageSocket>>) {
        (self.preauth, self.template)
    }
}

impl SpareProcesses {
    pub(super) fn new(stopping: &StopSignal, settings: &ServerSettings) -> Self {
        let mut new = Self {
            stopping: stopping.clone(),
            accounts: settings.entrance.has_accounts(),
            template: None,
            spare: None,
        };
        new.refill(settings);
        new
    }

    /// Returns processes for a client that connects under these settings.
    pub(super) fn take(&mut self, settings: &ServerSettings) -> io::Result<ConnectionProcesses> {
        self.drop_ended();
        if self.accounts && self.template.is_none() {
            self.template = Some(self.start_template()?);
        }
        let task = settings.preauth_task();
        // Settings may have been replaced since the process was started.
        let spare = self.spare.take().filter(|(given, _)| *given == task);
        let preauth = match spare {
            Some((_, started)) => started.process,
            None => start_preauth(&task)?.process,
        };
        let template = self.template.as_ref();
        Ok(ConnectionProcesses {
            preauth,
            template: template.map(|started| Arc::clone(started.process.link())),
        })
    }

    /// Starts missing processes.
    pub(super) fn refill(&mut self, settings: &ServerSettings) {
        let failed = |e: io::Error| {
            warn!(
                "cannot start a process for the next client: {e}; check the limits of this \
                 machine (ulimit -u, memory)"
            );
        };
        if self.accounts && self.template.is_none() {
            self.template = self.start_template().map_err(failed).ok();
        }
        if self.spare.is_none() {
            let task = settings.preauth_task();
            let started = start_preauth(&task).map_err(failed).ok();
            self.spare = started.map(|started| (task, started));
        }
    }

    /// Descriptors that become readable when a process ends: waiting processes send nothing.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let spare = self.spare.as_ref().map(|(_, started)| started);
        let all = self.template.iter().chain(spare);
        all.map(|started| started.process.link().as_fd())
    }

    /// Replaces a process that has ended.
    pub(super) fn replace_ended(&mut self, settings: &ServerSettings) {
        let lived = self.drop_ended();
        warn!("a process that was started for the next client has ended");
        if lived.is_none_or(|lived| lived >= SOON) {
            self.refill(settings);
        }
    }

    /// Drops ended processes; returns the shortest of their lifetimes.
    fn drop_ended(&mut self) -> Option<Duration> {
        let ended = |started: &SpareProcess| {
            let gone = super::monitor_message_socket::readable(
                [started.process.link().as_fd()],
                Some(Instant::now()),
            );
            gone.map_or(true, |[gone]| gone)
        };
        let template = self.template.take_if(|started| ended(started));
        let spare = self.spare.take_if(|(_, started)| ended(started));
        let all = template
            .into_iter()
            .chain(spare.map(|(_, started)| started));
        all.map(|started| started.at.elapsed()).min()
    }

    fn start_template(&self) -> io::Result<SpareProcess> {
        let stopping = self.stopping.0.as_fd().try_clone_to_owned()?;
        let process = HelperProcess::start(ProcessRole::ForkServer, Some(stopping))?;
        Ok(SpareProcess::now(process))
    }

    /// Stops accepting; the fork server stays until its account processes have finished.
    pub(super) fn end(&mut self) {
        self.spare = None;
    }
}

impl SpareProcess {
    fn now(process: HelperProcess) -> Self {
        let at = Instant::now();
        Self { process, at }
    }
}

fn start_preauth(task: &PreauthProcessConfig) -> io::Result<SpareProcess> {
    let process = HelperProcess::start(ProcessRole::Preauth, None)?;
    process.link().send_task(task)?;
    Ok(SpareProcess::now(process))
}
