//! Processes that stand ready, so that whoever comes does not wait until they have started.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::link::Link;
use super::preauth::PreauthTask;
use super::process::{Process, Role};
use super::{Settings, StopSignal};

/// One that ends sooner is not started again before somebody comes.
const SOON: Duration = Duration::from_secs(1);

/// One preauth process, for the next client, and as root the template of the accounts'. They belong to
/// the thread that accepts connections: a process ends with the thread that started it.
#[derive(Debug)]
pub(super) struct SpareProcesses {
    stopping: StopSignal,
    accounts: bool,
    template: Option<Started>,
    spare: Option<(PreauthTask, Started)>,
}

#[derive(Debug)]
struct Started {
    process: Process,
    at: Instant,
}

/// What one connection gets.
pub(super) struct Taken {
    /// It has its task.
    pub(super) preauth: Process,
    pub(super) template: Option<Arc<Link>>,
}

impl SpareProcesses {
    pub(super) fn new(stopping: &StopSignal, settings: &Settings) -> Self {
        let mut new = Self {
            stopping: stopping.clone(),
            accounts: settings.entrance.has_accounts(),
            template: None,
            spare: None,
        };
        new.refill(settings);
        new
    }

    /// Processes for a client that has come to these settings.
    pub(super) fn take(&mut self, settings: &Settings) -> io::Result<Taken> {
        self.drop_ended();
        if self.accounts && self.template.is_none() {
            self.template = Some(self.start_template()?);
        }
        let task = settings.preauth_task();
        // What was given to it may have been replaced meanwhile.
        let spare = self.spare.take().filter(|(given, _)| *given == task);
        let preauth = match spare {
            Some((_, started)) => started.process,
            None => start_preauth(&task)?.process,
        };
        let template = self.template.as_ref();
        Ok(Taken {
            preauth,
            template: template.map(|started| Arc::clone(started.process.link())),
        })
    }

    /// Starts what is missing.
    pub(super) fn refill(&mut self, settings: &Settings) {
        let failed = |e: io::Error| {
            warn!("no process can be started for whoever comes next: {e}");
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

    /// Readable where one has ended: they say nothing before they have something to do.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let spare = self.spare.as_ref().map(|(_, started)| started);
        let all = self.template.iter().chain(spare);
        all.map(|started| started.process.link().as_fd())
    }

    /// One of them has ended.
    pub(super) fn replace_ended(&mut self, settings: &Settings) {
        let lived = self.drop_ended();
        warn!("a process that stood ready has ended");
        if lived.is_none_or(|lived| lived >= SOON) {
            self.refill(settings);
        }
    }

    /// How long the one lived that lived shortest.
    fn drop_ended(&mut self) -> Option<Duration> {
        let ended = |started: &Started| {
            let gone =
                super::link::readable([started.process.link().as_fd()], Some(Instant::now()));
            gone.map_or(true, |[gone]| gone)
        };
        let template = self.template.take_if(|started| ended(started));
        let spare = self.spare.take_if(|(_, started)| ended(started));
        let all = template
            .into_iter()
            .chain(spare.map(|(_, started)| started));
        all.map(|started| started.at.elapsed()).min()
    }

    fn start_template(&self) -> io::Result<Started> {
        let stopping = self.stopping.0.as_fd().try_clone_to_owned()?;
        let process = Process::start(Role::Template, Some(stopping))?;
        Ok(Started::now(process))
    }

    /// Nobody comes any more; accounts are served to the end, and their template with them.
    pub(super) fn end(&mut self) {
        self.spare = None;
    }
}

impl Started {
    fn now(process: Process) -> Self {
        let at = Instant::now();
        Self { process, at }
    }
}

fn start_preauth(task: &PreauthTask) -> io::Result<Started> {
    let process = Process::start(Role::Preauth, None)?;
    process.link().send_task(task)?;
    Ok(Started::now(process))
}
