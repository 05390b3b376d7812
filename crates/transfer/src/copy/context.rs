//! Everything through which the parts of a copy act: the sessions of both ends with the jobs in
//! flight on them, this machine's files, the target that the command names, and the report.

use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use schedule::{Job, JobFailureKind, JobId, JobKind, RemotePath};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::command_line_target::CommandLineTarget;
use super::copy_report::CopyReport;
use super::environment::{CopyEnvironment, RemoteSession};
use super::jobs::{JobPurpose, JobsInFlight, PathQueryAnswer};
use super::local_file_ops::LocalFileOps;
use super::sides::{CopySide, EndpointSessions, RemoteSide};
use super::source::TargetPath;
use super::transfer_estimate::TransferEstimate;
use super::wait_conditions::{WaitConditions, wait_for};
use super::{CopyLocation, CopyOptions, HostId};
use crate::connect::ConnectError;
use crate::file_error::FileError;
use crate::report::{CopyEvent, CopySummary, EscapedName, ProgressCounters};
use crate::session::{SessionSummary, StallNotice};
use crate::walk::local_path;

/// Everything through which the parts of a copy act: sessions, jobs, environment and report. A part
/// submits jobs and reports through it, and sees nothing of the other parts.
pub(super) struct CopyContext<'a> {
    options: &'a CopyOptions,
    environment: &'a dyn CopyEnvironment,
    report: CopyReport<'a>,
    sides: EndpointSessions,
    jobs: JobsInFlight,
    named: CommandLineTarget<'a>,
    /// Reason that the run ends early.
    lost: Option<ConnectError>,
    is_cancelled: bool,
    /// Number from which the temporaries of links get their names, if the journal has it.
    link_names: Option<u64>,
}

impl<'a> CopyContext<'a> {
    pub(super) fn new(
        options: &'a CopyOptions,
        environment: &'a dyn CopyEnvironment,
        report: CopyReport<'a>,
    ) -> Self {
        Self {
            options,
            environment,
            report,
            sides: EndpointSessions::new(environment.local()),
            jobs: JobsInFlight::default(),
            named: CommandLineTarget::new(options),
            lost: None,
            is_cancelled: false,
            link_names: None,
        }
    }

    pub(super) fn options(&self) -> &'a CopyOptions {
        self.options
    }

    pub(super) fn environment(&self) -> &'a dyn CopyEnvironment {
        self.environment
    }

    pub(super) fn now(&self) -> Instant {
        self.environment.now()
    }

    /// Has the temporaries of links named by this number of the journal.
    pub(super) fn name_links_by(&mut self, seed: u64) {
        self.link_names = Some(seed);
    }

    /// Number from which the temporary's name of a link with this target is made, the same in each run
    /// of the copy: links are not in the journal, and the next run finds what a killed one has left.
    pub(super) fn link_tag(&self, target: &[u8]) -> Option<u64> {
        Some(xxh3_64_with_seed(target, self.link_names?))
    }

    /// True if directories are copied.
    pub(super) fn is_recursive(&self) -> bool {
        self.options.recursive || self.options.archive
    }

    /// True if times and permissions are kept.
    pub(super) fn preserves(&self) -> bool {
        self.options.preserve || self.options.archive
    }

    /// Target that the command names.
    pub(super) fn named(&self) -> &CommandLineTarget<'a> {
        &self.named
    }

    pub(super) fn named_mut(&mut self) -> &mut CommandLineTarget<'a> {
        &mut self.named
    }

    /// Sets the command's target. Without --keep-dirlinks no symlink below it is followed.
    pub(super) fn name_target(&mut self, onto: &TargetPath) {
        self.named.set(onto);
        if !self.options.keep_dirlinks {
            self.hold_root(self.named.path().to_vec());
            if let Some(dir) = &self.options.temp_dir {
                self.hold_root(dir.path().to_vec());
            }
        }
        if let (false, Some(dir)) = (self.target_is_remote(), &self.options.temp_dir) {
            let path = local_path(dir.path());
            self.local().keep_temporaries_in(path);
        }
    }

    /// Has a longhaul at the remote target follow no symlink below `root`, which the user named.
    pub(super) fn hold_root(&self, root: Vec<u8>) {
        if let Some(side) = self.side(CopySide::Target) {
            side.session().hold_root(RemotePath(root));
        }
    }

    /// Opens a session with `host`. `coming` estimates the data to send there, if any.
    pub(super) fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
    ) -> Result<RemoteSide, ConnectError> {
        let connected = self.environment.connect(host, coming)?;
        let name = self.environment.name(host);
        Ok(RemoteSide::new(connected, host, name))
    }

    /// Opens a session with `host` as the one at `end`.
    pub(super) fn connect_end(&mut self, end: CopySide, host: HostId) -> Result<(), ConnectError> {
        let side = self.connect(host, None)?;
        self.sides.set(end, Some(side));
        Ok(())
    }

    /// True if both ends are hosts whose names lead to one account of one host, by the
    /// configuration.
    pub(super) fn is_one_login(&self) -> bool {
        let hosts = self.side(CopySide::Source).zip(self.side(CopySide::Target));
        hosts.is_some_and(|(source, target)| self.environment.are_one(source.host(), target.host()))
    }

    pub(super) fn sides(&self) -> &EndpointSessions {
        &self.sides
    }

    pub(super) fn sides_mut(&mut self) -> &mut EndpointSessions {
        &mut self.sides
    }

    pub(super) fn side(&self, end: CopySide) -> Option<&RemoteSide> {
        self.sides.get(end)
    }

    /// True if the source is at a remote host.
    pub(super) fn source_is_remote(&self) -> bool {
        self.sides.is_remote(CopySide::Source)
    }

    /// True if the target is at a remote host.
    pub(super) fn target_is_remote(&self) -> bool {
        self.sides.is_remote(CopySide::Target)
    }

    /// End at which files are read again: the target, or the source if the target is local.
    pub(super) fn far_end(&self) -> Option<CopySide> {
        let mut ends = [CopySide::Target, CopySide::Source].into_iter();
        ends.find(|end| self.sides.is_remote(*end))
    }

    /// Session with the end at which files are read again.
    pub(super) fn far_session(&self) -> Option<&dyn RemoteSession> {
        let end = self.far_end()?;
        self.side(end).map(RemoteSide::session)
    }

    /// True if the account at an end is that of root.
    pub(super) fn is_root(&self, end: CopySide) -> bool {
        match self.side(end) {
            Some(side) => side.login() == Some("root"),
            None => self.runs_as_root(),
        }
    }

    /// True if this process may give its files away.
    pub(super) fn runs_as_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    /// True if the target's server answers requests in order, as OpenSSH and longhaul do. A directory
    /// may then be made in a parent whose own MKDIR is not answered yet.
    pub(super) fn target_answers_in_order(&self) -> bool {
        self.side(CopySide::Target)
            .and_then(|side| side.session().server_info())
            .is_some_and(sftp::ServerInfo::answers_in_order)
    }

    /// True if symlinks are kept and a remote source chooses them.
    pub(super) fn keeps_foreign_links(&self) -> bool {
        self.options.archive && self.source_is_remote()
    }

    /// Files of this machine, as jobs of the copy resolve them.
    pub(super) fn local(&self) -> Rc<dyn LocalFileOps> {
        self.sides.local()
    }

    /// Formats a path as `host:path`, or as the path alone if it is local.
    pub(super) fn shown(&self, end: CopySide, path: &[u8]) -> EscapedName {
        self.sides.shown(end, path)
    }

    pub(super) fn jobs(&self) -> &JobsInFlight {
        &self.jobs
    }

    pub(super) fn jobs_mut(&mut self) -> &mut JobsInFlight {
        &mut self.jobs
    }

    /// Host and path of an operand, with all that distinguishes it from others.
    pub(super) fn place_name(&self, place: &CopyLocation) -> EscapedName {
        match place {
            CopyLocation::Local(path) => {
                let absolute = std::path::absolute(path);
                let path = absolute.as_ref().unwrap_or(path);
                EscapedName(path.as_os_str().as_bytes().to_vec())
            }
            CopyLocation::Remote { host, path } => {
                let host = self.environment.identity(*host);
                EscapedName([host.as_bytes(), b":", path.as_slice()].concat())
            }
        }
    }

    /// Waits for `time`, or until the run is interrupted.
    pub(super) async fn pause(&self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until && !self.environment.is_cancelled() {
            let conditions = WaitConditions {
                cancel: true,
                until: Some(until),
                ..WaitConditions::default()
            };
            wait_for(self.environment, conditions).await;
        }
    }

    /// Submits a job to the session at `end`. Returns `None` if the session is gone.
    pub(super) fn submit(
        &mut self,
        end: CopySide,
        kind: JobKind,
        purpose: JobPurpose,
    ) -> Option<JobId> {
        self.submit_sized(end, kind, purpose, None)
    }

    /// Submits a job for a file of `size` bytes. Returns `None` if the session is gone.
    pub(super) fn submit_sized(
        &mut self,
        end: CopySide,
        kind: JobKind,
        purpose: JobPurpose,
        size: Option<u64>,
    ) -> Option<JobId> {
        self.submit_with(end, purpose, |session, id| {
            session.submit(Job { id, kind }, size)
        })
    }

    pub(super) fn submit_with(
        &mut self,
        end: CopySide,
        purpose: JobPurpose,
        submit: impl FnOnce(&dyn RemoteSession, JobId),
    ) -> Option<JobId> {
        if self.stopped() {
            return None;
        }
        let id = self.jobs.next_id();
        let side = self.side(end).filter(|side| side.is_open())?;
        submit(side.session(), id);
        self.jobs.begin(end, purpose);
        Some(id)
    }

    /// Submits a query, whose answer [`JobsInFlight::take_answer`] gives. Returns `None` if the
    /// session is gone.
    pub(super) fn begin_asking(
        &mut self,
        end: CopySide,
        kind: JobKind,
        asked: PathQueryAnswer,
    ) -> Option<JobId> {
        let id = self.submit(end, kind, JobPurpose::Ask)?;
        self.jobs.asks(id, asked);
        Some(id)
    }

    /// True if the run ends without doing the rest.
    pub(super) fn stopped(&self) -> bool {
        self.lost.is_some() || self.is_cancelled
    }

    /// True if the run was interrupted.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Notes that the run was interrupted. Returns true at the first call.
    pub(super) fn cancel(&mut self) -> bool {
        self.report.interrupt();
        !std::mem::replace(&mut self.is_cancelled, true)
    }

    /// Ends the run early for this reason, unless it ends for another one.
    pub(super) fn lose(&mut self, why: ConnectError) {
        self.lost.get_or_insert(why);
    }

    /// Ends the run early for this reason, in place of an earlier one.
    pub(super) fn end_with(&mut self, why: ConnectError) {
        self.lost = Some(why);
    }

    /// True if the run ends early because of a session.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    pub(super) fn why_stopped(&self) -> FileError {
        match &self.lost {
            Some(why) => FileError::new(why.to_string(), JobFailureKind::ConnectionLost),
            None => "interrupted".into(),
        }
    }

    pub(super) fn progress(&self) -> &'a ProgressCounters {
        self.report.progress()
    }

    pub(super) fn summary(&self) -> &CopySummary {
        self.report.summary()
    }

    pub(super) fn summary_mut(&mut self) -> &mut CopySummary {
        self.report.summary_mut()
    }

    /// Adds the summary of a session with `host` to that of the copy, which has begun `files`.
    pub(super) fn note_session(&mut self, host: EscapedName, files: u64, ended: SessionSummary) {
        self.report.note_session(host, files, ended);
    }

    /// The summary, and the reason that the run ended early.
    pub(super) fn into_summary(self) -> (CopySummary, Option<ConnectError>) {
        (self.report.into_summary(), self.lost)
    }

    pub(super) fn tell(&mut self, event: CopyEvent) {
        self.report.tell(event);
    }

    /// Reports a path of an end that was not copied.
    pub(super) fn fail_at(&mut self, end: CopySide, path: &[u8], error: impl Into<FileError>) {
        let name = self.shown(end, path);
        self.fail(None, name, error);
    }

    /// Reports something that was not copied.
    pub(super) fn fail(&mut self, id: Option<u64>, path: EscapedName, error: impl Into<FileError>) {
        self.report.fail(id, path, &error.into());
    }

    /// Reports a stall of the session with this end.
    pub(super) fn warn_of_stall(&mut self, end: CopySide, notice: StallNotice) {
        let StallNotice { path, line } = notice;
        match path {
            Some(path) => self.warn(Some(self.shown(end, &path.0)), line),
            None => {
                let host = self.side(end).map_or("", RemoteSide::name);
                self.warn(None, format!("{host}: {line}"));
            }
        }
    }

    pub(super) fn warn(&mut self, path: Option<EscapedName>, message: String) {
        self.report.tell(CopyEvent::Warning { path, message });
    }
}
