use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use schedule::{Fault, Job, JobId, JobKind, LaneEvent, RemotePath};

use super::durable::Unsynced;
use super::edge::{Connected, Edge, Heard, Remote};
use super::file::{FileId, JobRole};
use super::files::Files;
use super::hard_links::HardLinks;
use super::jobs::{EntryFilter, Jobs, QueryAnswer};
use super::links::TopLevelLinks;
use super::local_ops::LocalOps;
use super::metadata::{MetadataLoss, MetadataSupport};
use super::owner::OwnerMap;
use super::resume::ResumeJournal;
use super::source::{ActiveWalks, SourceRoot, WalkId};
use super::transfer_estimate::Counting;
use super::tree::{DirKey, HeldItem, TargetTree};
use super::verify::Verification;
use super::wish::{Wish, wait_for};
use super::withheld::Withheld;
use super::{CopyOptions, CopyRequest, DeltaUse, HostId};
use crate::connect::ConnectError;
use crate::report::{
    Choice, Decision, Event, FAILURES_KEPT, Failure, FarEnd, Name, Origin, Outcome, Progress,
    Summary,
};
use crate::session::{SessionEvent, SessionSummary};
use crate::walk::DirId;

/// Jobs in flight from which events may be batched.
const MANY: usize = 256;
/// Longest delay of events that are batched while `MANY` jobs are in flight.
const GATHERS: Duration = Duration::from_micros(500);
/// Events taken from one session before the other gets its turn.
const BATCH: usize = 1024;
/// Time that jobs may take to clean up after a cancel before the run ends without them.
const LONGEST_CLEANUP: Duration = Duration::from_secs(5);

/// One of the two ends of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyEnd {
    Source,
    Target,
}

/// Session with a remote end.
pub(super) struct Side {
    pub(super) session: Box<dyn Remote>,
    /// Number of the session in a [`Wish`].
    pub(super) number: usize,
    /// Files of this machine, as the session's jobs resolve them.
    local: Rc<dyn LocalOps>,
    pub(super) host: HostId,
    pub(super) name: String,
    /// Name of the account that logged in, if known.
    pub(super) login: Option<String>,
    lost: bool,
}

impl Side {
    pub(super) fn new(connected: Connected, host: HostId, name: String) -> Self {
        let Connected {
            remote,
            number,
            local,
            login,
        } = connected;
        Self {
            session: remote,
            number,
            host,
            local,
            name,
            login,
            lost: false,
        }
    }
}

/// Purpose of a job, which decides how its result is handled.
#[derive(Debug)]
pub(super) enum JobPurpose {
    /// [`Engine::ask`] waits for the answer.
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
    DirMode(Name),
    /// Makes directories durable; the name is one of them.
    Durable(Name),
    File(FileId, JobRole),
    /// Checks if a guessed target is a directory.
    Guess(FileId),
    /// Attributes of a file that no listing described.
    Size(FileId),
    ReadSymlink(HeldItem),
    MakeSymlink(HeldItem),
    MakeHardLink(HeldItem),
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
pub(super) struct Engine<'a> {
    pub(super) options: &'a CopyOptions,
    pub(super) edge: &'a dyn Edge,
    pub(super) progress: &'a Progress,
    events: &'a mut dyn FnMut(Event),
    pub(super) source: Option<Side>,
    pub(super) target: Option<Side>,
    /// Events taken from the sessions and not handled yet. They are handled one by one from this
    /// queue, so that [`Engine::ask`], called while an event is handled, continues with the next
    /// one.
    inbox: VecDeque<(CopyEnd, Option<SessionEvent>)>,
    pub(super) jobs: Jobs,
    pub(super) files: Files,
    pub(super) tree: TargetTree,
    pub(super) links: TopLevelLinks,
    /// Target path as the user named it.
    pub(super) named: Vec<u8>,
    /// Nothing existed at the path of the remote target, and one source goes there.
    pub(super) target_missing: bool,
    /// Files of this machine, if no session resolves the target's paths.
    own_files: Rc<dyn LocalOps>,
    /// Bytes of names that patterns have matched so far.
    pub(super) matched_bytes: usize,
    pub(super) withheld: Withheld,
    pub(super) walks: ActiveWalks,
    /// Count of the files to send that is not complete.
    pub(super) counting: Option<Counting>,
    pub(super) roots: VecDeque<SourceRoot>,
    /// Bytes that relays may hold for the files in flight.
    pub(super) relayed: u64,
    pub(super) keeper: ResumeJournal,
    pub(super) owners: OwnerMap,
    pub(super) hard_links: HardLinks,
    /// Abilities of the far ends beyond those of stock servers.
    pub(super) can: MetadataSupport,
    pub(super) not_kept: MetadataLoss,
    /// The user was told that the server refuses to create or rename temporaries.
    pub(super) told_in_place: bool,
    pub(super) unsynced: Unsynced,
    pub(super) summary: Summary,
    pub(super) verify: Verification,
    /// Target for which the guess about its kind was wrong, and true if it is a file.
    pub(super) learned_place: Option<(Vec<u8>, bool)>,
    /// Reason that the run ends early.
    pub(super) lost: Option<ConnectError>,
    cancelled: bool,
    /// Events had arrived at the last check.
    heard: bool,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        options: &'a CopyOptions,
        edge: &'a dyn Edge,
        progress: &'a Progress,
        events: &'a mut dyn FnMut(Event),
    ) -> Self {
        Self {
            options,
            edge,
            progress,
            events,
            source: None,
            target: None,
            inbox: VecDeque::new(),
            jobs: Jobs::default(),
            files: Files::default(),
            tree: TargetTree::default(),
            links: TopLevelLinks::default(),
            named: Vec::new(),
            target_missing: false,
            own_files: edge.local(),
            matched_bytes: 0,
            withheld: Withheld::default(),
            walks: ActiveWalks::new(options.filter.as_ref()),
            counting: None,
            roots: VecDeque::new(),
            relayed: 0,
            keeper: ResumeJournal::default(),
            owners: OwnerMap::default(),
            hard_links: HardLinks::default(),
            can: MetadataSupport::default(),
            not_kept: MetadataLoss::default(),
            told_in_place: false,
            unsynced: Unsynced::default(),
            summary: Summary::default(),
            verify: Verification::new(options, edge.ledger()),
            learned_place: None,
            lost: None,
            cancelled: false,
            heard: false,
        }
    }

    /// Copies the waiting roots. Returns when all is done or nothing more is possible.
    pub(super) async fn copy(&mut self) {
        loop {
            self.check_cancel();
            while !self.stopped() && self.has_room() && self.feed() {}
            self.ask_for_walks();
            self.start_written();
            self.go_on_verifying();
            let over = self.is_quiet() && (self.stopped() || !self.has_more());
            if over && !self.sync_names() {
                return;
            }
            if !self.wait().await {
                return;
            }
        }
    }

    /// True if the run ends without doing the rest.
    pub(super) fn stopped(&self) -> bool {
        self.lost.is_some() || self.cancelled
    }

    /// Runs the copy to its end and returns the summary.
    pub(super) async fn into_summary(mut self, request: CopyRequest) -> Summary {
        let start = self.edge.now();
        self.run(request).await;
        self.finish(start)
    }

    /// Ends the sessions and returns the summary of a run that began at `start`.
    pub(super) fn finish(mut self, start: Instant) -> Summary {
        self.end(CopyEnd::Source);
        self.end(CopyEnd::Target);
        self.end_manifest();
        self.tell_not_kept();
        self.tell_withheld();
        let whole = self.summary.failed == 0 && !self.stopped();
        self.close_journal(whole);
        self.summary.elapsed = self.edge.now().saturating_duration_since(start);
        self.summary.unfinished += self.files.moved();
        self.summary.synced = self.options.fsync && self.summary.files > 0;
        self.explain();
        self.summary.outcome = match self.lost {
            _ if self.edge.is_cancelled() => Outcome::Interrupted,
            Some(why) if why.is_misconfiguration() => Outcome::Misconfigured(why.into()),
            Some(why) => Outcome::NoConnection(why.into()),
            None if self.summary.failed > 0 => Outcome::Partial,
            None => Outcome::Complete,
        };
        self.summary
    }

    /// Adds the copy's own decisions to the summary.
    fn explain(&mut self) {
        let mode = self.options.delta;
        let delta = Choice::Delta {
            mode,
            reused: self.summary.reused,
        };
        let origin = match mode {
            DeltaUse::Auto => Origin::Default,
            DeltaUse::Always => Origin::Flag("--delta"),
            DeltaUse::Never => Origin::Flag("--no-delta"),
        };
        let mut decided = vec![Decision::new(delta, origin)];
        if self.options.verify {
            let verify = Choice::Verify(self.summary.verified.clone());
            decided.push(Decision::new(verify, Origin::Flag("--verify")));
        }
        self.summary.decisions.extend(decided);
    }

    /// Ends the session at `end`, if there is one.
    pub(super) fn end(&mut self, end: CopyEnd) {
        let side = match end {
            CopyEnd::Source => {
                self.walks.foreseen = 0;
                self.source.take()
            }
            CopyEnd::Target => self.target.take(),
        };
        let Some(Side { session, name, .. }) = side else {
            return;
        };
        self.inbox.retain(|(of, _)| *of != end);
        self.verify.end();
        let host = Name(name.into_bytes());
        if end == CopyEnd::Target
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
            if let Choice::Files { cut, whole, .. } = &mut decision.choice {
                *cut = (*cut).min(files);
                *whole = (*whole).min(files.saturating_sub(*cut));
            }
            decision.host = Some(host.clone());
            decision
        };
        let decisions = decisions.into_iter().map(of_host);
        self.summary.decisions.extend(decisions);
        if let Some(mut report) = report {
            report.host = host.clone();
            self.summary.sessions.push(report);
        }
        self.summary.far_ends.push(FarEnd { host, ..far });
    }

    fn has_room(&self) -> bool {
        let waiting = self.keeper.waiting() + self.hard_links.waiting();
        self.jobs.has_room(self.tree.held() + waiting)
            && self.relay_has_room()
            && self.verify.has_room()
    }

    /// Sends a request to `end` and waits for the answer, while all other work continues.
    pub(super) async fn ask(&mut self, end: CopyEnd, kind: JobKind) -> Result<QueryAnswer, String> {
        self.ask_with(end, kind, QueryAnswer::default()).await
    }

    /// Lists the directory at `path` at `end` and returns the names that match `wanted`.
    pub(super) async fn ask_names(
        &mut self,
        end: CopyEnd,
        path: Vec<u8>,
        wanted: EntryFilter,
    ) -> Result<QueryAnswer, String> {
        let path = RemotePath(path);
        let asked = QueryAnswer::of_names(wanted, self.matched_bytes);
        self.ask_with(end, JobKind::List { path }, asked).await
    }

    async fn ask_with(
        &mut self,
        end: CopyEnd,
        kind: JobKind,
        asked: QueryAnswer,
    ) -> Result<QueryAnswer, String> {
        match self.begin_asking(end, kind, asked) {
            Some(id) => self.answer(id).await,
            None => Err(self.why_stopped()),
        }
    }

    /// Submits a query, whose answer [`Engine::answer`] waits for. Returns `None` if the session is
    /// gone.
    pub(super) fn begin_asking(
        &mut self,
        end: CopyEnd,
        kind: JobKind,
        asked: QueryAnswer,
    ) -> Option<JobId> {
        let id = self.submit(end, kind, JobPurpose::Ask)?;
        self.jobs.asks(id, asked);
        Some(id)
    }

    /// Takes the answer to a query; `None` if it has not arrived.
    pub(super) fn take_answer(&mut self, id: JobId) -> Option<Result<QueryAnswer, String>> {
        self.jobs.take_answer(id)
    }

    /// Waits for the answer to a query.
    pub(super) async fn answer(&mut self, id: JobId) -> Result<QueryAnswer, String> {
        loop {
            self.check_cancel();
            if let Some(answer) = self.take_answer(id) {
                return answer;
            }
            if !self.wait().await {
                self.jobs.asks_no_more(id);
                return Err(self.why_stopped());
            }
        }
    }

    pub(super) fn why_stopped(&self) -> String {
        match &self.lost {
            Some(why) => why.to_string(),
            None => "interrupted".to_owned(),
        }
    }

    /// Submits a job to the session at `end`. Returns `None` if the session is gone.
    pub(super) fn submit(
        &mut self,
        end: CopyEnd,
        kind: JobKind,
        purpose: JobPurpose,
    ) -> Option<JobId> {
        self.submit_sized(end, kind, purpose, None)
    }

    /// Submits a job for a file of `size` bytes. Returns `None` if the session is gone.
    pub(super) fn submit_sized(
        &mut self,
        end: CopyEnd,
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
        end: CopyEnd,
        purpose: JobPurpose,
        submit: impl FnOnce(&dyn Remote, JobId),
    ) -> Option<JobId> {
        if self.stopped() {
            return None;
        }
        let id = self.jobs.next_id();
        let side = self.side(end)?;
        if side.lost {
            return None;
        }
        submit(&*side.session, id);
        self.jobs.begin(end, purpose);
        Some(id)
    }

    pub(super) fn side(&self, end: CopyEnd) -> Option<&Side> {
        match end {
            CopyEnd::Source => self.source.as_ref(),
            CopyEnd::Target => self.target.as_ref(),
        }
    }

    /// Files of this machine, as jobs of the copy resolve them.
    pub(super) fn local(&self) -> Rc<dyn LocalOps> {
        match &self.source {
            Some(side) => Rc::clone(&side.local),
            None => Rc::clone(&self.own_files),
        }
    }

    /// Formats a path as `host:path`, or as the path alone if it is local.
    pub(super) fn shown(&self, end: CopyEnd, path: &[u8]) -> Name {
        match self.side(end) {
            Some(side) => Name([side.name.as_bytes(), b":", path].concat()),
            None => Name(path.to_vec()),
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        (self.events)(event);
    }

    /// Reports something that was not copied.
    pub(super) fn fail(&mut self, id: Option<u64>, path: Name, reason: String) {
        if self.cancelled {
            return;
        }
        self.summary.failed += 1;
        if self.summary.failures.len() < FAILURES_KEPT {
            self.summary.failures.push(Failure {
                path: path.clone(),
                reason: reason.clone(),
            });
        }
        self.tell(Event::Failed { id, path, reason });
    }

    pub(super) fn warn(&mut self, path: Option<Name>, message: String) {
        self.tell(Event::Warning { path, message });
    }

    pub(super) fn check_cancel(&mut self) {
        if !self.edge.is_cancelled() || self.cancelled {
            return;
        }
        self.cancelled = true;
        self.drop_what_waits();
        for side in [&self.source, &self.target].into_iter().flatten() {
            match self.keeper.goes_on() {
                true => side.session.leave("interrupted"),
                false => side.session.cancel("interrupted"),
            }
        }
    }

    pub(super) fn drop_what_waits(&mut self) {
        self.roots.clear();
        self.walks.clear();
        self.tree.drop_held();
        self.files.drop_waiting();
        self.owners.drop_waiting();
        self.hard_links.forget();
        self.keeper.drop_waiting();
        self.stop_verifying();
    }

    /// True if no work is in progress.
    fn is_quiet(&self) -> bool {
        self.jobs.is_empty() && self.keeper.waiting() == 0 && self.verify.is_quiet()
    }

    /// Waits for events and handles them. Returns false if there is nothing to wait for.
    async fn wait(&mut self) -> bool {
        self.announce_count();
        let none = !self.take_events();
        self.write_out();
        if std::mem::replace(&mut self.heard, !none) && none && self.jobs.len() >= MANY {
            // With many small files, some complete at any time, and waking for each costs more than
            // the files themselves.
            wait_for(self.edge, Wish::pause(self.edge, GATHERS, false)).await;
            return true;
        }
        if none {
            if self.is_quiet() || !self.wait_ready().await {
                return false;
            }
            self.start_written();
            self.take_events();
        }
        self.handle_events();
        true
    }

    /// Handles an event that a caller has taken from a session.
    pub(super) fn handle_event(&mut self, end: CopyEnd, event: SessionEvent) {
        self.inbox.push_back((end, Some(event)));
        self.handle_events();
    }

    /// Handles all events that were taken.
    pub(super) fn handle_events(&mut self) {
        while let Some((end, event)) = self.inbox.pop_front() {
            match event {
                Some(SessionEvent::Lane(event)) => self.on_lane(event),
                Some(SessionEvent::Restarted(id)) => self.on_restarted(id),
                Some(SessionEvent::Exec(id, event)) => self.on_exec(id, event),
                Some(SessionEvent::Rejoined) => self.on_rejoined(end),
                // The code that waits for it checks the session itself.
                Some(SessionEvent::Settled) => {}
                Some(SessionEvent::Says(line)) => {
                    let line = Name(line.into_bytes()).to_string();
                    self.warn(None, line);
                }
                Some(SessionEvent::Stalled(line)) => {
                    let host = self.side(end).map(|side| side.name.clone());
                    let host = host.unwrap_or_default();
                    self.warn(None, format!("{host}: {line}"));
                }
                Some(SessionEvent::Losing(why)) => self.on_losing(end, &why),
                Some(SessionEvent::Lost(why)) => self.on_lost(end, why),
                None => self.on_lost(
                    end,
                    "internal error: the session ended unexpectedly".to_owned(),
                ),
            }
        }
    }

    /// Appends new events of the sessions to the queue. Returns true if any are queued.
    pub(super) fn take_events(&mut self) -> bool {
        for end in [CopyEnd::Source, CopyEnd::Target] {
            let side = match end {
                CopyEnd::Source => &self.source,
                CopyEnd::Target => &self.target,
            };
            let Some(side) = side.as_ref().filter(|side| !side.lost) else {
                continue;
            };
            for _ in 0..BATCH {
                match side.session.next_event() {
                    Heard::Event(event) => self.inbox.push_back((end, Some(event))),
                    Heard::Nothing => break,
                    Heard::Over => {
                        self.inbox.push_back((end, None));
                        break;
                    }
                }
            }
        }
        !self.inbox.is_empty()
    }

    /// Waits until a session has an event or the run is cancelled. Returns false if cleaning up
    /// after a cancel takes too long.
    async fn wait_ready(&mut self) -> bool {
        let sides = [&self.source, &self.target].into_iter().flatten();
        let open = sides.filter(|side| !side.lost);
        let mut wish = Wish {
            sessions: open.map(|side| side.number).collect(),
            journal: self.keeper.goes_on() && self.keeper.waiting() > 0,
            ..Wish::default()
        };
        if wish.sessions.is_empty() {
            return false;
        }
        if !self.cancelled {
            wish.cancel = true;
            wish.until = self.verify.deadline();
            wait_for(self.edge, wish).await;
            return true;
        }
        let until = self.edge.now() + LONGEST_CLEANUP;
        wish.until = Some(until);
        wait_for(self.edge, wish).await;
        self.take_events() || self.edge.now() < until
    }

    /// Notes the reason that later failures have in common, and drops all waiting work.
    fn on_losing(&mut self, end: CopyEnd, why: &str) {
        if let Some(side) = self.side(end) {
            let why = format!("{}: {why}", side.name);
            self.lost
                .get_or_insert_with(|| ConnectError::unreachable(why));
            self.drop_what_waits();
        }
    }

    fn on_lost(&mut self, end: CopyEnd, why: String) {
        let side = match end {
            CopyEnd::Source => &mut self.source,
            CopyEnd::Target => &mut self.target,
        };
        let Some(side) = side else { return };
        side.lost = true;
        let why = format!("{}: {why}", side.name);
        self.lost
            .get_or_insert_with(|| ConnectError::unreachable(why.clone()));
        self.drop_what_waits();
        for id in self.jobs.at(end) {
            let what = why.clone();
            self.on_lane(LaneEvent::Failed(id, Fault { what, remote: true }));
        }
        for side in [&self.source, &self.target].into_iter().flatten() {
            if !side.lost {
                side.session.cancel(&why);
            }
        }
    }

    /// Key of a walk's directory in the tree.
    pub(super) fn key(walk: WalkId, dir: DirId) -> DirKey {
        DirKey { walk, dir }
    }
}
