use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use schedule::{JobFailure, JobId, JobKind, LaneEvent, RemotePath};

use super::copy_report::CopyReport;
use super::environment::CopyEnvironment;
use super::file::{FileId, JobRole, SharedFile};
use super::files::ActiveFiles;
use super::hard_links::HardLinks;
use super::inquiry::Inquiry;
use super::jobs::{PatternListingFilter, QueryAnswer};
use super::local_ops::LocalOps;
use super::metadata::KeptMetadata;
use super::owner::OwnerMap;
use super::ports::CopyPorts;
use super::resume::ResumeJournal;
use super::server_names::ServerNames;
use super::sides::{RemoteSide, SideSessions};
use super::source::{ActiveWalks, TargetPath, WalkId};
use super::transfer_estimate::EstimateAnnouncer;
use super::tree::{DirKey, PendingItem, TargetTree};
use super::verify::Verification;
use super::wait_conditions::{WaitConditions, wait_for};
use super::{CopyLocation, CopyOptions, CopyRequest, DeltaUse};
use crate::connect::ConnectError;
use crate::report::{
    CopyEvent, CopyOutcome, CopySummary, Decision, DecisionOrigin, DecisionSubject, EscapedName,
    FarEndServer, ProgressCounters,
};
use crate::session::{SessionEvent, SessionSummary};
use crate::walk::WalkDirectoryId;

/// Jobs in flight from which events may be batched.
const MANY: usize = 256;
/// Longest delay of events that are batched while `MANY` jobs are in flight.
const GATHERS: Duration = Duration::from_micros(500);
/// Time that jobs may take to clean up after a cancel before the run ends without them.
const LONGEST_CLEANUP: Duration = Duration::from_secs(5);
/// Longest wait until the server at the far end is known; longer than the session's own limits.
const LONGEST_SETTLING: Duration = Duration::from_secs(30);

/// One of the two ends of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopySide {
    Source,
    Target,
}

/// Purpose of a job, which decides how its result is handled.
#[derive(Debug)]
pub(super) enum JobPurpose {
    /// [`CopyEngine::ask`] waits for the answer.
    Ask,
    /// Attributes or canonical path of a root.
    Root(WalkId),
    /// Listing of a root that is not yet known to be a directory.
    Listing(WalkId),
    /// Request of a walk, with the walk's tag.
    Walk(WalkId, u64),
    MakeDir(DirKey),
    FinishDir(DirKey),
    /// Mode bits of a directory that is still being filled.
    DirMode(EscapedName),
    /// Makes directories durable; the name is one of them.
    Durable(EscapedName),
    File(FileId, JobRole),
    /// Checks if a guessed target is a directory.
    Guess(FileId),
    /// Attributes of a file that no listing described.
    Size(FileId),
    ReadSymlink(PendingItem),
    MakeSymlink(PendingItem),
    MakeHardLink(PendingItem),
    /// Extended attributes of a file or a directory.
    FileXattrs(FileId),
    DirXattrs(DirKey),
    /// Names of owners at the source, and the IDs of these names at the target.
    OwnerNames,
    OwnerIds,
    /// Reads a file back to compare it.
    Check(FileId),
    /// Checksum of a range of a file that is verified.
    Sum(super::verify::SumRequest),
    /// Downloads the boot ID of the target's kernel into this file.
    Boot(std::path::PathBuf),
    /// Downloads the boot ID again after a reconnect.
    BootAgain(std::path::PathBuf),
    /// Checks if a file is still as an earlier run left it.
    Taken(FileId),
    /// Reads the target's clock from a file's modification time.
    Clock,
    /// Reads the server's clock at the end of a run with failed files.
    Seal,
    /// Removes a leftover of an earlier run.
    Cleared,
    /// Sets the times of a symlink; the result is ignored, since many systems cannot do it.
    SymlinkTimes,
}

/// Runs a copy from one source end to the target end: keeps jobs in flight until nothing is left.
pub(super) struct CopyEngine<'a> {
    pub(super) options: &'a CopyOptions,
    pub(super) environment: &'a dyn CopyEnvironment,
    pub(super) progress: &'a ProgressCounters,
    pub(super) ports: CopyPorts<'a>,
    pub(super) files: ActiveFiles,
    pub(super) tree: TargetTree,
    pub(super) walks: ActiveWalks,
    pub(super) server_names: ServerNames,
    pub(super) estimates: EstimateAnnouncer,
    pub(super) keeper: ResumeJournal,
    pub(super) owners: OwnerMap,
    pub(super) hard_links: HardLinks,
    pub(super) metadata: KeptMetadata,
    pub(super) verify: Verification,
    /// Files whose temporaries other processes write as well, by target path.
    pub(super) shared: BTreeMap<Vec<u8>, SharedFile>,
    /// Target for which the guess about its kind was wrong, and true if it is a file.
    learned_place: Option<(Vec<u8>, bool)>,
    /// Events had arrived at the last check.
    heard: bool,
}

impl<'a> CopyEngine<'a> {
    pub(super) fn new(
        options: &'a CopyOptions,
        environment: &'a dyn CopyEnvironment,
        progress: &'a ProgressCounters,
        events: &'a mut dyn FnMut(CopyEvent),
    ) -> Self {
        Self {
            options,
            environment,
            progress,
            ports: CopyPorts::new(options, environment, CopyReport::new(progress, events)),
            files: ActiveFiles::default(),
            tree: TargetTree::default(),
            walks: ActiveWalks::new(options.filter.as_ref()),
            server_names: ServerNames::default(),
            estimates: EstimateAnnouncer::new(options),
            keeper: ResumeJournal::default(),
            owners: OwnerMap::new(options),
            hard_links: HardLinks::new(options),
            metadata: KeptMetadata::default(),
            verify: Verification::new(options, environment.ledger()),
            shared: BTreeMap::new(),
            learned_place: None,
            heard: false,
        }
    }

    /// Copies the waiting roots. Returns when all is done or nothing more is possible.
    pub(super) async fn copy(&mut self) {
        loop {
            self.check_cancel();
            while !self.stopped() && self.has_room() && self.feed() {}
            if self.server_names.is_holding() {
                self.decide_alike().await;
                continue;
            }
            self.ask_for_walks();
            self.start_written();
            self.verify.go_on(&mut self.ports, &self.files);
            self.after_verify();
            let over = self.is_quiet() && (self.stopped() || !self.has_more());
            if over && !self.tree.sync_names(&mut self.ports) {
                return;
            }
            if !self.wait().await {
                return;
            }
        }
    }

    /// True if the run ends without doing the rest.
    pub(super) fn stopped(&self) -> bool {
        self.ports.stopped()
    }

    /// Runs the copy to its end and returns the summary.
    pub(super) async fn into_summary(mut self, request: CopyRequest) -> CopySummary {
        let start = self.environment.now();
        self.run(request).await;
        self.finish(start)
    }

    /// Ends the sessions and returns the summary of a run that began at `start`.
    pub(super) fn finish(mut self, start: Instant) -> CopySummary {
        self.end(CopySide::Source);
        self.end(CopySide::Target);
        self.verify.end_manifest(&mut self.ports);
        self.metadata.tell_losses(&mut self.ports);
        let whole = self.ports.summary().failed == 0 && !self.stopped();
        self.keeper.close(&mut self.ports, whole);
        let (moved, excluded) = (self.files.moved(), self.walks.excluded());
        let elapsed = self.environment.now().saturating_duration_since(start);
        let summary = self.ports.summary_mut();
        summary.elapsed = elapsed;
        summary.unfinished += moved;
        summary.excluded += excluded;
        summary.synced = self.options.fsync && summary.files > 0;
        self.explain();
        let (mut summary, lost) = self.ports.into_summary();
        summary.outcome = match lost {
            _ if self.environment.is_cancelled() => CopyOutcome::Interrupted,
            Some(why) if why.is_misconfiguration() => CopyOutcome::Misconfigured(why.into()),
            Some(why) => CopyOutcome::NoConnection(why.into()),
            None if summary.failed > 0 => CopyOutcome::Partial,
            None => CopyOutcome::Complete,
        };
        summary
    }

    /// Adds the copy's own decisions to the summary.
    fn explain(&mut self) {
        let mode = self.options.delta;
        let delta = DecisionSubject::Delta {
            mode,
            reused: self.ports.summary().reused,
        };
        let origin = match mode {
            DeltaUse::Auto => DecisionOrigin::Default,
            DeltaUse::Always => DecisionOrigin::Flag("--delta"),
            DeltaUse::Never => DecisionOrigin::Flag("--no-delta"),
        };
        let mut decided = vec![Decision::new(delta, origin)];
        if self.options.verify {
            let verify = DecisionSubject::Verify(self.ports.summary().verified.clone());
            decided.push(Decision::new(verify, DecisionOrigin::Flag("--verify")));
        }
        self.ports.summary_mut().decisions.extend(decided);
    }

    /// Ends the session at `end`, if there is one.
    pub(super) fn end(&mut self, end: CopySide) {
        if end == CopySide::Source {
            self.walks.forget_estimate();
        }
        let Some(side) = self.ports.sides_mut().end(end) else {
            return;
        };
        let (session, name) = side.into_session();
        self.verify.end();
        let host = EscapedName(name.into_bytes());
        if end == CopySide::Target
            && let Some((place, file)) = self.learned_place.take()
        {
            session.note_place(&place, file);
        }
        let SessionSummary {
            report,
            far,
            decisions,
        } = session.finish();
        let files = self.files.begun();
        let of_host = |mut decision: Decision| {
            // A file may be begun twice, as below a target that turns out to be a file. Lanes also
            // download the far end's boot ID, which does not count as a copied file.
            if let DecisionSubject::Files { cut, whole, .. } = &mut decision.choice {
                *cut = (*cut).min(files);
                *whole = (*whole).min(files.saturating_sub(*cut));
            }
            decision.host = Some(host.clone());
            decision
        };
        let decisions = decisions.into_iter().map(of_host);
        self.ports.summary_mut().decisions.extend(decisions);
        if let Some(mut report) = report {
            report.host = host.clone();
            self.ports.summary_mut().sessions.push(report);
        }
        self.ports
            .summary_mut()
            .far_ends
            .push(FarEndServer { host, ..far });
    }

    /// Waits until the servers at the far ends are known if the copy keeps more than stock servers
    /// can, so that all its files are treated alike.
    pub(super) async fn settle_far(&mut self) {
        if !self.options.settle {
            return;
        }
        for end in [CopySide::Source, CopySide::Target] {
            self.settle_end(end).await;
        }
        self.metadata.learn(&mut self.ports);
    }

    /// Reads the receiver's boot ID once the target's session is open, to learn if data that was
    /// only in its memory may be lost.
    pub(super) async fn ask_for_boot(&mut self) {
        let Some(request) = self.keeper.take_boot_request(&mut self.ports) else {
            return;
        };
        let file = match request {
            Some((id, file)) => {
                // If the file cannot be read, the boot ID stays unknown.
                let _ = self.answer(id).await;
                Some(file)
            }
            None => None,
        };
        self.keeper.boot_answered(&self.ports, file.as_deref());
    }

    /// Removes what an interrupted run has left and this one has not taken.
    pub(super) async fn clear_leftovers(&mut self) {
        if self.keeper.clear_leftovers(&mut self.ports) {
            self.copy().await;
        }
        if !self.stopped() {
            self.keeper.leftovers_cleared();
        }
    }

    /// Removes the local temporaries and the journal of an interrupted run of this copy.
    pub(super) async fn discard(mut self, request: CopyRequest) {
        let CopyLocation::Local(target) = &request.target else {
            return;
        };
        // Only paths below the named target are opened.
        let target = target.as_os_str().as_bytes().to_vec();
        self.name_target(&TargetPath::Exactly(target));
        if self.keeper.find(&mut self.ports, &request).await {
            self.keeper.discard(&self.ports);
        }
    }

    /// Waits until it is known which server handles the lanes of an end.
    pub(super) async fn settle_end(&mut self, end: CopySide) {
        let settled = |engine: &Self| {
            let side = engine.side(end);
            side.is_none_or(|side| side.session().is_settled())
        };
        if settled(self) {
            return;
        }
        // The session opens a channel only if it has a job.
        let path = RemotePath(b".".to_vec());
        let _ = self.ask(end, JobKind::RealPath { path }).await;
        let until = self.environment.now() + LONGEST_SETTLING;
        while !settled(self) && !self.stopped() {
            let Some(side) = self.side(end) else { return };
            let conditions = WaitConditions {
                sessions: vec![side.number()],
                cancel: true,
                until: Some(until),
                ..WaitConditions::default()
            };
            wait_for(self.environment, conditions).await;
            self.check_cancel();
            if !self.ports.sides_mut().take_events() && self.environment.now() >= until {
                return;
            }
            self.handle_events();
        }
    }

    fn has_room(&self) -> bool {
        let waiting = self.keeper.waiting() + self.hard_links.waiting();
        self.ports.jobs().has_room(self.tree.held() + waiting)
            && self.files.relay_has_room(&self.ports)
            && self.verify.has_room()
    }

    /// Lists the directory at `path` at `end` and returns the names that match `wanted`.
    pub(super) async fn ask_names(
        &mut self,
        end: CopySide,
        path: Vec<u8>,
        wanted: PatternListingFilter,
    ) -> Result<QueryAnswer, String> {
        let path = RemotePath(path);
        let asked = self.ports.jobs().answer_of_names(wanted);
        self.ask_with(end, JobKind::List { path }, asked).await
    }

    async fn ask_with(
        &mut self,
        end: CopySide,
        kind: JobKind,
        asked: QueryAnswer,
    ) -> Result<QueryAnswer, String> {
        match self.ports.begin_asking(end, kind, asked) {
            Some(id) => self.answer(id).await,
            None => Err(self.why_stopped()),
        }
    }

    /// Takes the answer to a query; `None` if it has not arrived.
    pub(super) fn take_answer(&mut self, id: JobId) -> Option<Result<QueryAnswer, String>> {
        self.ports.jobs_mut().take_answer(id)
    }

    /// Waits for the answer to a query.
    pub(super) async fn answer(&mut self, id: JobId) -> Result<QueryAnswer, String> {
        loop {
            self.check_cancel();
            if let Some(answer) = self.take_answer(id) {
                return answer;
            }
            if !self.wait().await {
                self.ports.jobs_mut().asks_no_more(id);
                return Err(self.why_stopped());
            }
        }
    }

    pub(super) fn why_stopped(&self) -> String {
        self.ports.why_stopped()
    }

    pub(super) fn side(&self, end: CopySide) -> Option<&RemoteSide> {
        self.ports.side(end)
    }

    /// True if the source is at a remote host.
    pub(super) fn source_is_remote(&self) -> bool {
        self.ports.source_is_remote()
    }

    /// True if the target is at a remote host.
    pub(super) fn target_is_remote(&self) -> bool {
        self.ports.target_is_remote()
    }

    /// Notes for later copies that the target at `path` is a file, or is none.
    pub(super) fn learn_place(&mut self, path: Vec<u8>, is_file: bool) {
        self.learned_place = Some((path, is_file));
    }

    /// Files of this machine, as jobs of the copy resolve them.
    pub(super) fn local(&self) -> Rc<dyn LocalOps> {
        self.ports.local()
    }

    /// Formats a path as `host:path`, or as the path alone if it is local.
    pub(super) fn shown(&self, end: CopySide, path: &[u8]) -> EscapedName {
        self.ports.shown(end, path)
    }

    pub(super) fn tell(&mut self, event: CopyEvent) {
        self.ports.tell(event);
    }

    /// Reports something that was not copied.
    pub(super) fn fail(&mut self, id: Option<u64>, path: EscapedName, reason: String) {
        self.ports.fail(id, path, reason);
    }

    pub(super) fn warn(&mut self, path: Option<EscapedName>, message: String) {
        self.ports.warn(path, message);
    }

    pub(super) fn check_cancel(&mut self) {
        if !self.environment.is_cancelled() || !self.ports.cancel() {
            return;
        }
        self.drop_what_waits();
        for side in self.ports.sides().iter() {
            match self.keeper.goes_on() {
                true => side.session().leave("interrupted"),
                false => side.session().cancel("interrupted"),
            }
        }
    }

    pub(super) fn drop_what_waits(&mut self) {
        self.walks.clear();
        self.tree.drop_held();
        self.files.drop_waiting();
        self.owners.drop_waiting();
        self.hard_links.forget();
        self.keeper.drop_waiting();
        self.verify.stop(&self.ports);
        self.after_verify();
    }

    /// True if no work is in progress.
    fn is_quiet(&self) -> bool {
        self.ports.jobs().is_empty() && self.keeper.waiting() == 0 && self.verify.is_quiet()
    }

    /// Waits for events and handles them. Returns false if there is nothing to wait for.
    async fn wait(&mut self) -> bool {
        self.estimates.announce_count(self.ports.sides());
        let none = !self.ports.sides_mut().take_events();
        self.keeper.write_out(&mut self.ports);
        if std::mem::replace(&mut self.heard, !none) && none && self.ports.jobs().len() >= MANY {
            // With many small files, some complete at any time, and waking for each costs more than
            // the files themselves.
            wait_for(
                self.environment,
                WaitConditions::pause(self.environment, GATHERS, false),
            )
            .await;
            return true;
        }
        if none {
            if self.is_quiet() || !self.wait_ready().await {
                return false;
            }
            self.start_written();
            self.ports.sides_mut().take_events();
        }
        self.handle_events();
        true
    }

    /// Handles an event that a caller has taken from a session.
    pub(super) fn handle_event(&mut self, end: CopySide, event: SessionEvent) {
        self.ports.sides_mut().push_event(end, event);
        self.handle_events();
    }

    /// Handles all events that were taken.
    pub(super) fn handle_events(&mut self) {
        while let Some((end, event)) = self.ports.sides_mut().next_event() {
            match event {
                Some(SessionEvent::Lane(event)) => self.on_lane(event),
                Some(SessionEvent::Restarted(id)) => self.on_restarted(id),
                Some(SessionEvent::Exec(id, event)) => self.on_exec(id, event),
                Some(SessionEvent::Reconnected) => self.keeper.on_rejoined(&mut self.ports, end),
                // The code that waits for it checks the session itself.
                Some(SessionEvent::ServerKnown) => {}
                Some(SessionEvent::Message(line)) => {
                    let line = EscapedName(line.into_bytes()).to_string();
                    // Between two hosts either one may have said it.
                    let both = self.source_is_remote() && self.target_is_remote();
                    let line = match self.side(end).filter(|_| both) {
                        Some(side) => format!("{}: {line}", side.name()),
                        None => line,
                    };
                    self.warn(None, line);
                }
                Some(SessionEvent::Stalled(line)) => {
                    let host = self.side(end).map(|side| side.name().to_owned());
                    let host = host.unwrap_or_default();
                    self.warn(None, format!("{host}: {line}"));
                }
                Some(SessionEvent::AboutToFail(why)) => self.on_losing(end, &why),
                Some(SessionEvent::Lost(why)) => self.on_lost(end, why),
                None => self.on_lost(
                    end,
                    "internal error: the session ended unexpectedly".to_owned(),
                ),
            }
        }
    }

    /// Waits until a session has an event or the run is cancelled. Returns false if cleaning up
    /// after a cancel takes too long.
    async fn wait_ready(&mut self) -> bool {
        let mut conditions = WaitConditions {
            sessions: self.ports.sides().open().map(RemoteSide::number).collect(),
            journal: self.keeper.goes_on() && self.keeper.waiting() > 0,
            ..WaitConditions::default()
        };
        if conditions.sessions.is_empty() {
            return false;
        }
        if !self.ports.is_cancelled() {
            conditions.cancel = true;
            conditions.until = self.verify.deadline();
            wait_for(self.environment, conditions).await;
            return true;
        }
        let until = self.environment.now() + LONGEST_CLEANUP;
        conditions.until = Some(until);
        wait_for(self.environment, conditions).await;
        self.ports.sides_mut().take_events() || self.environment.now() < until
    }

    /// Notes the reason that later failures have in common, and drops all waiting work.
    fn on_losing(&mut self, end: CopySide, why: &str) {
        if let Some(side) = self.side(end) {
            let why = format!("{}: {why}", side.name());
            self.ports.lose(ConnectError::unreachable(why));
            self.drop_what_waits();
        }
    }

    fn on_lost(&mut self, end: CopySide, why: String) {
        let Some(name) = self.ports.sides_mut().lose(end) else {
            return;
        };
        let why = format!("{name}: {why}");
        self.ports.lose(ConnectError::unreachable(why.clone()));
        self.drop_what_waits();
        for id in self.ports.jobs().at(end) {
            let what = why.clone();
            self.on_lane(LaneEvent::Failed(id, JobFailure { what, remote: true }));
        }
        for side in self.ports.sides().open() {
            side.session().cancel(&why);
        }
    }

    /// Key of a walk's directory in the tree.
    pub(super) fn key(walk: WalkId, dir: WalkDirectoryId) -> DirKey {
        DirKey { walk, dir }
    }
}

impl Inquiry for CopyEngine<'_> {
    fn sides(&self) -> &SideSessions {
        self.ports.sides()
    }

    fn is_one_login(&self) -> bool {
        let source = self.side(CopySide::Source);
        let hosts = source.zip(self.side(CopySide::Target));
        hosts.is_some_and(|(source, target)| self.environment.are_one(source.host(), target.host()))
    }

    async fn ask(&mut self, end: CopySide, kind: JobKind) -> Result<QueryAnswer, String> {
        self.ask_with(end, kind, QueryAnswer::default()).await
    }
}
