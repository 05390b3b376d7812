//! Joins the parts of a copy, and waits for the events that they need.

mod answers;
mod directories;
mod inquiry;
mod late_attributes;
mod leftovers;
mod symlinks;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use schedule::{
    Attributes, JobFailure, JobFailureKind, JobId, JobKind, LaneEvent, Parts, RemotePath,
};
use sftp::ListedEntry;

use super::context::CopyContext;
use super::copy_report::CopyReport;
use super::environment::CopyEnvironment;
use super::equal_names::ClaimedTargets;
use super::file::{ActiveFiles, SharedTemporaryFile};
use super::hard_links::HardLinks;
use super::jobs::PathQueryAnswer;
use super::leaving::{self, EndOfCopy};
use super::metadata::MetadataPreservation;
use super::owner::{EntryAwaitingOwner, NextOwnerResult, OwnerMap};
use super::planned::PlannedEntries;
use super::resume::ResumeJournal;
use super::self_copy::{SameFileDetector, SelfCopyRules};
use super::server_inquiry::ServerInquiry;
use super::sides::{CopySide, RemoteSide};
use super::source::{ActiveWalks, SourceRoot, TargetPath, WalkId};
use super::target_name_index::{NameCheckedEntry, NameCollisionVerdict, TargetNameIndex};
use super::transfer_estimate::{FileCountThread, TransferSizeAnnouncer};
use super::tree::{CopyDirectoryId, IncompleteTargetDirs, ItemAwaitingDirectory, TargetDir};
use super::verify::Verification;
use super::wait_conditions::{WaitConditions, wait_for};
use super::{CopyOptions, CopyRequest, DeltaUse};
use crate::file_error::FileError;
use crate::report::{
    CopyEvent, CopyOutcome, CopySummary, Decision, DecisionOrigin, DecisionSubject, EscapedName,
    ProgressCounters,
};
use crate::session::SessionEvent;
use crate::walk::{EntryInfo, LEFT_OUT, WalkEntry};

/// Jobs in flight from which events may be batched.
const MANY: usize = 256;
/// Longest delay of events that are batched while `MANY` jobs are in flight.
const GATHERS: Duration = Duration::from_micros(500);
/// Longest wait until the server at the far end is known; longer than the session's own limits.
const LONGEST_SETTLING: Duration = Duration::from_secs(30);

/// Runs a copy from one source end to the target end: keeps jobs in flight until nothing is left,
/// passes answers to the parts of the copy, and carries out their results.
pub(super) struct CopyEngine<'a> {
    context: CopyContext<'a>,
    files: ActiveFiles,
    tree: IncompleteTargetDirs,
    walks: ActiveWalks,
    server_names: TargetNameIndex,
    estimates: TransferSizeAnnouncer,
    keeper: ResumeJournal,
    owners: OwnerMap,
    hard_links: HardLinks,
    metadata: MetadataPreservation,
    verify: Verification,
    start: Instant,
    /// Events had arrived at the last check.
    heard: bool,
    leaving: EndOfCopy,
}

impl<'a> CopyEngine<'a> {
    pub(super) fn new(
        options: &'a CopyOptions,
        environment: &'a dyn CopyEnvironment,
        progress: &'a ProgressCounters,
        events: &'a mut dyn FnMut(CopyEvent),
    ) -> Self {
        Self {
            context: CopyContext::new(options, environment, CopyReport::new(progress, events)),
            files: ActiveFiles::default(),
            tree: IncompleteTargetDirs::default(),
            walks: ActiveWalks::new(options.filter.as_ref()),
            server_names: TargetNameIndex::default(),
            estimates: TransferSizeAnnouncer::new(options),
            keeper: ResumeJournal::default(),
            owners: OwnerMap::new(options),
            hard_links: HardLinks::new(options),
            metadata: MetadataPreservation::default(),
            verify: Verification::new(options, environment.ledger()),
            start: environment.now(),
            heard: false,
            leaving: EndOfCopy::default(),
        }
    }

    /// Looks for the journal of an earlier run of this copy. Returns false if another process is
    /// running the same copy.
    pub(super) async fn find_earlier_run(&mut self, request: &CopyRequest) -> bool {
        self.keeper.find(&mut self.context, request).await
    }

    pub(super) fn keeper_mut(&mut self) -> &mut ResumeJournal {
        &mut self.keeper
    }

    /// Records how the command's target was resolved.
    pub(super) fn note_resolved(&mut self, onto: &TargetPath) {
        self.keeper.note_onto(&mut self.context, onto);
    }

    /// Requests the receiver's boot ID, so that the answer arrives in one round trip with those of
    /// other requests. [`Self::prepare`] takes it.
    pub(super) fn request_boot(&mut self) {
        self.keeper.request_boot(&mut self.context);
    }

    /// Removes the answer to a request of the receiver's boot ID that nothing has taken.
    pub(super) fn forget_boot_request(&mut self) {
        self.keeper.forget_boot_request(&self.context);
    }

    /// Takes the count of the files to send, and announces it to the target's session.
    pub(super) fn announce(&mut self, counting: FileCountThread) {
        self.estimates.begin(self.context.sides(), counting);
    }

    /// Prepares the copy once the target's session is open: judges what the earlier run has stored,
    /// and opens the manifest. Returns false, after reporting it, if nothing can be copied.
    pub(super) async fn prepare(&mut self) -> bool {
        self.ask_for_boot().await;
        self.keeper.tell_resumed(&mut self.context);
        self.verify.begin_manifest(&mut self.context)
    }

    /// Has each file claim its target; with `None`, no two can have the same.
    pub(super) fn claim_targets(&mut self, claims: Option<ClaimedTargets>) {
        self.walks.claim_targets(claims);
    }

    /// Notes a target on the source's host, so that a tree is not copied into itself; `None` if
    /// that target is elsewhere.
    pub(super) async fn avoid_target(&mut self, onto: Option<&TargetPath>) {
        self.walks.forget_overlaps();
        let Some(onto) = onto else { return };
        let (path, into) = match onto {
            TargetPath::Into(path) => (path, true),
            TargetPath::Exactly(path) | TargetPath::Guess(path) => (path, false),
        };
        let kind = JobKind::RealPath {
            path: RemotePath(path.clone()),
        };
        if let Ok(asked) = self.ask(CopySide::Target, kind).await
            && let Some(path) = asked.into_path()
        {
            self.walks.avoid(path, into);
        }
    }

    /// Notes which of the `sources` are the target itself or contain it.
    pub(super) async fn avoid_itself(&mut self, sources: &[Vec<u8>], onto: &TargetPath) {
        let rules = SelfCopyRules::new(self.context.options(), self.walks.avoids());
        let probe = SameFileDetector::new(self);
        let overlaps = probe.avoid_itself(rules, sources, onto).await;
        self.walks.note_overlaps(overlaps);
    }

    /// Notes the IDs at the target of users and groups of the source.
    pub(super) fn knows_owners(&mut self, users: &BTreeMap<u32, u32>, groups: &BTreeMap<u32, u32>) {
        self.owners.knows(users, groups);
    }

    /// Notes parts of the file or directory `path` that the target did not set.
    pub(super) fn note_lost(&mut self, parts: Parts, why: &str, path: Option<&[u8]>) {
        let context = &self.context;
        let shown = || path.map(|path| context.shown(CopySide::Target, path));
        self.metadata.note_lost(parts, why, shown);
    }

    /// Metadata that is kept or lost, with the context that its rules need.
    pub(super) fn metadata_mut(&mut self) -> (&mut MetadataPreservation, &CopyContext<'a>) {
        (&mut self.metadata, &self.context)
    }

    /// True if the target refused to set modification times.
    pub(super) fn loses_times(&self) -> bool {
        self.metadata.loses_times()
    }

    /// Notes that other processes write the temporary of a target as well, before it is copied.
    pub(super) fn share(&mut self, target: Vec<u8>, file: SharedTemporaryFile) {
        self.files.share(target, file);
    }

    /// Copies sources. Returns when all is done or nothing more is possible.
    pub(super) async fn copy_roots(&mut self, roots: VecDeque<SourceRoot>) {
        self.walks.begin_with(roots);
        self.copy().await;
    }

    /// Ends the session with the source, after its last root was copied.
    pub(super) fn end_source(&mut self) {
        self.hard_links.forget();
        self.end(CopySide::Source);
    }

    /// Copies entries of `source` that were chosen before onto `target`.
    pub(super) async fn copy_planned(
        &mut self,
        entries: PlannedEntries,
        source: &[u8],
        target: Vec<u8>,
    ) {
        self.settle_far().await;
        self.search_target().await;
        self.metadata.withheld().set_planned();
        let id = self.walks.begin_planned(entries, target);
        self.walks.name_root(&self.context, id, source);
        self.copy_roots(VecDeque::new()).await;
    }

    /// Ends a planned copy, which was prepared, after its last entry: removes what an interrupted
    /// run has left and this one has not taken.
    pub(super) async fn end_planned(&mut self) {
        self.hard_links.forget();
        if !self.stopped() {
            leftovers::clear(self).await;
        }
    }

    /// Does what remains after all sources are copied: reports names that no source has, removes
    /// the leftovers of an earlier run and seals the journal of a run with failed files.
    pub(super) async fn complete(&mut self) {
        if self.stopped() {
            return;
        }
        self.walks.report_missing(&mut self.context);
        leftovers::clear(self).await;
        if self.keeper.request_seal(&mut self.context) {
            self.copy().await;
        }
    }

    /// Copies the waiting roots. Returns when all is done or nothing more is possible.
    async fn copy(&mut self) {
        loop {
            self.check_cancel();
            while !self.stopped() && self.has_room() && self.feed() {}
            if self.server_names.is_holding() {
                self.decide_alike().await;
                continue;
            }
            self.walks.ask(&mut self.context);
            self.start_written();
            self.verify.go_on(&mut self.context, &self.files);
            self.after_verify();
            let over = self.is_quiet() && (self.stopped() || !self.has_more());
            if over && !self.tree.sync_names(&mut self.context) {
                return;
            }
            if !self.wait().await {
                return;
            }
        }
    }

    /// True if sources may still yield entries.
    fn has_more(&self) -> bool {
        self.walks.has_more() || self.owners.holds()
    }

    /// Takes the next entry from the sources and starts it. Returns false if there is none now.
    fn feed(&mut self) -> bool {
        if self.server_names.is_holding() {
            return false;
        }
        self.check_cancel();
        match self.feed_waiting() {
            Some(false) => {}
            None => return false,
            Some(true) => return true,
        }
        let Some(mut entry) = self.walks.next_entry(&self.context) else {
            return false;
        };
        if self.context.target_is_remote() {
            let merges = self.walks.claims_targets();
            match self.server_names.hold_if_alike(&self.tree, merges, entry) {
                Some(free) => entry = free,
                None => return true,
            }
        }
        self.begin_found(entry);
        true
    }

    /// Starts a found entry once its owner is mapped to an ID of the target.
    fn begin_owned(&mut self, next: EntryAwaitingOwner) {
        let maps = self.metadata.support().map_owners;
        if let Some(next) = self.owners.map(&mut self.context, maps, next) {
            self.begin_mapped(next);
        }
    }

    /// Starts the next entry that waited for its owner. Returns false if none waits, and `None`
    /// while a query is in progress.
    fn feed_waiting(&mut self) -> Option<bool> {
        let maps = self.metadata.support().map_owners;
        match self.owners.next(&mut self.context, maps) {
            NextOwnerResult::Nothing => Some(false),
            NextOwnerResult::Asking => None,
            NextOwnerResult::Entry(next) => {
                if let Some(next) = *next {
                    self.begin_mapped(next);
                }
                Some(true)
            }
        }
    }

    fn begin_mapped(&mut self, next: EntryAwaitingOwner) {
        match next {
            EntryAwaitingOwner::Found(walk, found, root) => self.on_found(walk, found, &root),
            EntryAwaitingOwner::Root(root, attributes) => self.begin_root_item(root, attributes),
        }
    }

    /// Begins an entry that was found.
    fn begin_found(&mut self, entry: NameCheckedEntry) {
        let file = match entry {
            NameCheckedEntry::Walk(id, found, target) => {
                Some(EntryAwaitingOwner::Found(id, found, target))
            }
            NameCheckedEntry::Root(root) => self.walks.begin_root(&mut self.context, root),
        };
        if let Some(file) = file {
            self.begin_owned(file);
        }
    }

    /// Handles an entry of a walk whose root is copied to `root`.
    fn on_found(&mut self, id: WalkId, found: WalkEntry, root: &[u8]) {
        if let WalkEntry::Directory { at, .. } | WalkEntry::File(at) | WalkEntry::Symlink(at) =
            &found
        {
            let paths = at.path.len() + root.len();
            self.context.jobs_mut().note_paths(paths);
        }
        match found {
            WalkEntry::Directory {
                id: dir,
                at,
                existing,
            } => {
                let key = CopyDirectoryId::new(id, dir);
                self.on_directory(key, at, existing.map(|listed| *listed), root);
            }
            WalkEntry::File(entry) => self.place_item(id, entry, root, false),
            WalkEntry::Symlink(entry) => self.place_item(id, entry, root, true),
            WalkEntry::Listed(dir) => directories::listed(self, CopyDirectoryId::new(id, dir)),
            WalkEntry::Special(path) => {
                let path = self.context.shown(CopySide::Source, &path);
                self.context.warn(Some(path), LEFT_OUT.to_owned());
            }
            WalkEntry::Problem { path, what } => {
                let path = self.context.shown(CopySide::Source, &path);
                self.context.fail(None, path, what);
            }
        }
    }

    fn on_directory(
        &mut self,
        key: CopyDirectoryId,
        at: EntryInfo,
        existing: Option<ListedEntry>,
        root: &[u8],
    ) {
        let parent = at
            .parent
            .map(|parent| CopyDirectoryId::new(key.walk(), parent));
        let target = self.tree.target_of(key.walk(), &at, root);
        self.metadata
            .note_times(&self.context, &at.path, &at.attributes);
        let begun = match target {
            Some(target) => {
                let (context, path) = (&mut self.context, &at.path);
                self.walks
                    .may_claim(context, key.walk(), path, &target, true)
                    && directories::begin_dir(
                        self,
                        key,
                        TargetDir::new(parent, target, at.attributes, existing),
                    )
            }
            None => false,
        };
        match begun {
            true => self.ask_dir_xattrs(key, &at.path),
            false => self.leave_out_dir(key),
        }
    }

    /// Leaves a directory and all its contents out.
    fn leave_out_dir(&mut self, key: CopyDirectoryId) {
        self.walks.skip(key);
        directories::listed(self, key);
    }

    fn place_item(&mut self, id: WalkId, entry: EntryInfo, root: &[u8], symlink: bool) {
        let Some(target) = self.tree.target_of(id, &entry, root) else {
            return;
        };
        let (context, path) = (&mut self.context, &entry.path);
        if self.walks.may_claim(context, id, path, &target, false) {
            let dir = entry.parent.map(|parent| CopyDirectoryId::new(id, parent));
            directories::begin_item(
                self,
                ItemAwaitingDirectory::new(entry, target, dir, symlink),
            );
        }
    }

    fn begin_root_item(&mut self, root: SourceRoot, attributes: Attributes) {
        let target = root.onto.target(&root.path);
        let id = self.walks.next_id();
        self.walks.name_root(&self.context, id, &root.path);
        let (context, path) = (&mut self.context, &root.path);
        if !self.walks.may_claim(context, id, path, &target, false) {
            return;
        }
        let entry = EntryInfo {
            parent: None,
            name: Vec::new(),
            path: root.path,
            attributes,
            identity: None,
        };
        let item = ItemAwaitingDirectory::new(entry, target, None, false);
        match root.onto {
            TargetPath::Guess(target) => {
                let link = self.hard_links.link_of(&item);
                let id = self
                    .files
                    .begin_guessed(&mut self.context, item, target, link);
                self.start_file(id);
            }
            _ => directories::begin_item(self, item),
        }
    }

    /// Begins the entry that waits, or leaves it out if the server takes its name for an earlier
    /// one.
    async fn decide_alike(&mut self) {
        let Some(mut names) = self.server_names.take_question() else {
            return;
        };
        names.ask(self).await;
        match self.server_names.judge(&mut self.context, names) {
            NameCollisionVerdict::Begins(entry) => self.begin_found(*entry),
            NameCollisionVerdict::DirectoryRefused(key) => self.leave_out_dir(key),
            NameCollisionVerdict::Dropped => {}
        }
    }

    /// True if the run ends without doing the rest.
    pub(super) fn stopped(&self) -> bool {
        self.context.stopped()
    }

    /// Ends the sessions and returns the summary.
    pub(super) fn finish(mut self) -> CopySummary {
        self.files.warn_of_incomplete(&mut self.context);
        self.end(CopySide::Source);
        self.end(CopySide::Target);
        self.verify.end_manifest(&mut self.context);
        self.metadata.tell_losses(&mut self.context);
        let whole = self.context.summary().failed == 0 && !self.stopped();
        self.keeper.close(&mut self.context, whole);
        let (moved, excluded) = (self.files.moved(), self.walks.excluded());
        let environment = self.context.environment();
        let elapsed = environment.now().saturating_duration_since(self.start);
        let fsync = self.context.options().fsync;
        let summary = self.context.summary_mut();
        summary.elapsed = elapsed;
        summary.unfinished += moved;
        summary.excluded += excluded;
        summary.synced &= fsync && summary.files > 0;
        self.explain();
        let (mut summary, lost) = self.context.into_summary();
        summary.outcome = match lost {
            _ if environment.is_cancelled() => CopyOutcome::Interrupted,
            Some(why) if why.is_misconfiguration() => CopyOutcome::Misconfigured(why.into()),
            Some(why) => CopyOutcome::NoConnection(why.into()),
            None if summary.failed > 0 => CopyOutcome::Partial,
            None => CopyOutcome::Complete,
        };
        summary
    }

    /// Adds the copy's own decisions to the summary.
    fn explain(&mut self) {
        let options = self.context.options();
        let mode = options.delta;
        let delta = DecisionSubject::Delta {
            mode,
            reused: self.context.summary().reused,
        };
        let origin = match mode {
            DeltaUse::Auto => DecisionOrigin::Default,
            DeltaUse::Always => DecisionOrigin::Flag("--delta"),
            DeltaUse::Never => DecisionOrigin::Flag("--no-delta"),
        };
        let mut decided = vec![Decision::new(delta, origin)];
        if options.verify {
            let verify = DecisionSubject::Verify(self.context.summary().verified.clone());
            decided.push(Decision::new(verify, DecisionOrigin::Flag("--verify")));
        }
        self.context.summary_mut().decisions.extend(decided);
    }

    /// Ends the session at `end`, if there is one.
    fn end(&mut self, end: CopySide) {
        if end == CopySide::Source {
            self.walks.forget_estimate();
        }
        let Some(side) = self.context.sides_mut().end(end) else {
            return;
        };
        let (session, name) = side.into_session();
        self.verify.end();
        let host = EscapedName(name.into_bytes());
        if end == CopySide::Target
            && let Some((place, file)) = self.files.take_learned_place()
        {
            session.note_place(&place, file);
        }
        let files = self.files.begun();
        self.context.note_session(host, files, session.finish());
    }

    /// Waits until the servers at the far ends are known if the copy keeps more than stock servers
    /// can, so that all its files are treated alike.
    pub(super) async fn settle_far(&mut self) {
        if !self.context.options().settle {
            return;
        }
        for end in [CopySide::Source, CopySide::Target] {
            self.settle_end(end).await;
        }
        self.metadata.learn(&mut self.context);
    }

    /// Reads the receiver's boot ID once the target's session is open, to learn if data that was
    /// only in its memory may be lost.
    async fn ask_for_boot(&mut self) {
        let Some(request) = self.keeper.take_boot_request(&mut self.context) else {
            return;
        };
        if let Some((id, _)) = &request {
            // If the file cannot be read, the boot ID stays unknown.
            let _ = self.answer(*id).await;
        }
        let file = request.as_ref().map(|(_, file)| file.as_path());
        self.keeper.boot_answered(&self.context, file);
    }

    /// Removes what an interrupted run has left of small files, once, before anything is copied.
    pub(super) async fn search_target(&mut self) {
        self.tree
            .set_clears(self.keeper.has_leftovers() && !self.walks.claims_targets());
        let removal = self.keeper.search_target(&mut self.context);
        leftovers::remove(self, removal).await;
    }

    /// Removes the local temporaries and the journal of an interrupted run of this copy. Call
    /// [`CopyContext::name_target`] first: only paths below the named target are opened.
    pub(super) async fn discard(&mut self, request: &CopyRequest) {
        if self.find_earlier_run(request).await {
            self.keeper.discard(&self.context);
        }
    }

    /// Waits until it is known which server handles the lanes of an end.
    pub(super) async fn settle_end(&mut self, end: CopySide) {
        let settled = |engine: &Self| {
            let side = engine.context.side(end);
            side.is_none_or(|side| side.session().is_settled())
        };
        if settled(self) {
            return;
        }
        // The session opens a channel only if it has a job.
        let path = RemotePath(b".".to_vec());
        let _ = self.ask(end, JobKind::RealPath { path }).await;
        let until = self.context.now() + LONGEST_SETTLING;
        while !settled(self) && !self.stopped() {
            let Some(side) = self.context.side(end) else {
                return;
            };
            let conditions = WaitConditions {
                sessions: vec![side.number()],
                cancel: true,
                until: Some(until),
                ..WaitConditions::default()
            };
            wait_for(self.context.environment(), conditions).await;
            self.check_cancel();
            if !self.context.sides_mut().take_events() && self.context.now() >= until {
                return;
            }
            self.handle_events();
        }
    }

    fn has_room(&self) -> bool {
        let waiting = self.keeper.waiting() + self.hard_links.waiting();
        self.context.jobs().has_room(self.tree.held() + waiting)
            && self.files.relay_has_room(&self.context)
            && self.verify.has_room()
    }

    /// Takes the answer to a query; `None` if it has not arrived.
    pub(super) fn take_answer(&mut self, id: JobId) -> Option<Result<PathQueryAnswer, FileError>> {
        self.context.jobs_mut().take_answer(id)
    }

    /// Waits for the answer to a query.
    pub(super) async fn answer(&mut self, id: JobId) -> Result<PathQueryAnswer, FileError> {
        loop {
            self.check_cancel();
            if let Some(answer) = self.take_answer(id) {
                return answer;
            }
            if !self.wait().await {
                self.context.jobs_mut().asks_no_more(id);
                return Err(self.context.why_stopped());
            }
        }
    }

    /// Begins to end the copy if it was interrupted: jobs are ended at both ends.
    pub(super) fn check_cancel(&mut self) {
        if !self.context.environment().is_cancelled() || !self.context.cancel() {
            return;
        }
        self.drop_what_waits();
        let leaves = self.keeper.goes_on();
        for side in self.context.sides().iter() {
            self.cancel_at(side, "interrupted");
        }
        self.leaving.interrupted(&self.context, leaves);
        // The source of a copy between two hosts has nothing to clean up, and the data on its way
        // are of no use.
        if self.context.source_is_remote() && self.context.target_is_remote() {
            for id in self.context.jobs().at(CopySide::Source) {
                let fault = JobFailure::new("interrupted", false);
                let fault = fault.of_kind(JobFailureKind::OtherHost);
                self.on_lane(LaneEvent::Failed(id, fault));
            }
        }
    }

    /// Ends the jobs of a session. If the same command can continue the copy, partial files stay.
    pub(super) fn cancel_at(&self, side: &RemoteSide, why: &str) {
        match self.keeper.goes_on() {
            true => side.session().cancel_resumable(why),
            false => side.session().cancel(why),
        }
    }

    /// Drops all work that has not begun.
    pub(super) fn drop_what_waits(&mut self) {
        self.walks.clear();
        self.tree.drop_held();
        self.files.drop_waiting();
        self.owners.drop_waiting();
        self.hard_links.forget();
        self.keeper.drop_waiting();
        self.verify.stop(&mut self.context);
        self.after_verify();
    }

    /// Waits until a session has an event or the run is cancelled. Returns false if cleaning up
    /// after a cancel takes too long.
    async fn wait_ready(&mut self) -> bool {
        let mut conditions = WaitConditions {
            sessions: self
                .context
                .sides()
                .open()
                .map(RemoteSide::number)
                .collect(),
            journal: self.keeper.goes_on() && self.keeper.waiting() > 0,
            ..WaitConditions::default()
        };
        if conditions.sessions.is_empty() {
            return false;
        }
        if !self.context.is_cancelled() {
            conditions.cancel = true;
            conditions.until = self.verify.deadline();
            wait_for(self.context.environment(), conditions).await;
            return true;
        }
        let cleaned = self.context.now() + leaving::CLEANUP;
        let until = self.leaving.time(&self.context).unwrap_or(cleaned);
        conditions.until = Some(until);
        wait_for(self.context.environment(), conditions).await;
        let until = self.leaving.time(&self.context).unwrap_or(until);
        self.context.sides_mut().take_events() || self.context.now() < until
    }

    /// True if no work is in progress.
    fn is_quiet(&self) -> bool {
        self.context.jobs().is_empty() && self.keeper.waiting() == 0 && self.verify.is_quiet()
    }

    /// Waits for events and handles them. Returns false if there is nothing to wait for.
    async fn wait(&mut self) -> bool {
        self.estimates.announce_count(self.context.sides());
        if self.leaving.is_due(&self.context) {
            return false;
        }
        let none = !self.context.sides_mut().take_events();
        self.keeper.write_out(&mut self.context);
        if std::mem::replace(&mut self.heard, !none) && none && self.context.jobs().len() >= MANY {
            // With many small files, some complete at any time, and waking for each costs more than
            // the files themselves.
            let environment = self.context.environment();
            let pause = WaitConditions::pause(environment, GATHERS, false);
            wait_for(environment, pause).await;
            return true;
        }
        if none {
            if self.is_quiet() || !self.wait_ready().await {
                return false;
            }
            self.start_written();
            self.context.sides_mut().take_events();
        }
        self.handle_events();
        true
    }

    /// Handles an event that a caller has taken from a session.
    pub(super) fn handle_event(&mut self, end: CopySide, event: SessionEvent) {
        self.context.sides_mut().push_event(end, event);
        self.handle_events();
    }

    /// Handles all events that were taken.
    fn handle_events(&mut self) {
        while let Some((end, event)) = self.context.sides_mut().next_event() {
            match event {
                Some(SessionEvent::Lane(event)) => self.on_lane(event),
                Some(SessionEvent::Restarted(id)) => self.on_restarted(id),
                Some(SessionEvent::Exec(id, event)) => self.on_exec(id, event),
                Some(SessionEvent::Reconnected) => self.keeper.on_rejoined(&mut self.context, end),
                // The code that waits for it checks the session itself.
                Some(SessionEvent::ServerKnown) => {}
                Some(SessionEvent::Message(line)) => {
                    let line = EscapedName(line.into_bytes()).to_string();
                    // Between two hosts either one may have said it.
                    let both = self.context.source_is_remote() && self.context.target_is_remote();
                    let line = match self.context.side(end).filter(|_| both) {
                        Some(side) => format!("{}: {line}", side.name()),
                        None => line,
                    };
                    self.context.warn(None, line);
                }
                Some(SessionEvent::Stalled(notice)) => self.context.warn_of_stall(end, notice),
                Some(SessionEvent::AboutToFail(why)) => self.on_losing(end, &why),
                Some(SessionEvent::Lost(why)) => self.on_lost(end, why),
                None => self.on_lost(
                    end,
                    "internal error: the session ended unexpectedly".to_owned(),
                ),
            }
        }
    }
}
