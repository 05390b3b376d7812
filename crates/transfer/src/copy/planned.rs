//! Copies entries that were chosen before, instead of walking the sources.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Instant;

use schedule::{
    Attributes, ExpectedEntry, Job, JobId, JobKind, LaneEvent, MetadataFlags, Parts, RemotePath,
    Xattrs,
};
use sftp::xattrs::Xattr;
use sftp::{InodeId, ServerInfo};

use super::engine::CopyEngine;
use super::environment::{CopyEnvironment, NextEventResult, RemoteCommandStep};
use super::file::SharedTemporaryFile;
use super::home;
use super::jobs::PathQueryAnswer;
use super::metadata::{compares_xattrs, special_bits};
use super::root_overlap::RootOverlap;
use super::self_copy::SameFileDetector;
use super::server_inquiry::ServerInquiry;
use super::sides::{CopySide, RemoteSide};
use super::source::TargetPath;
use super::threads::ThreadedEnvironment;
use super::wait_conditions::{WaitConditions, wait_for};
use super::xattrs::xattr_kinds;
use super::{CopyLocation, CopyOptions, CopyRequest, DeltaUse, SessionConnector};
use crate::cancel::CancelToken;
use crate::connect::ConnectError;
use crate::disk::OpenDirectoryCache;
use crate::file_error::{FileError, if_exists};
use crate::report::{CopyEvent, CopySummary, EscapedName, ProgressCounters};
use crate::session::{RemoteCommandId, SessionEvent};
use crate::walk::{WalkEntry, local_path};

/// Entries to copy, in the order of a walk: a directory before its contents, and its end after
/// them.
pub(crate) type PlannedEntries = Box<dyn Iterator<Item = WalkEntry>>;

/// Number of the first job that a caller of [`PlannedCopy::submit`] may choose.
pub(crate) const CALLERS_FIRST_JOB: JobId = JobId(1 << 40);
/// Number of the first job of [`PlannedCopy::carry_out`], above those of listings.
const FIRST_JOB: u64 = 1 << 41;

/// Query for the attributes of a root, whose answer [`PlannedCopy::root_answer`] takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RootAttributesQuery(JobId);

/// Query for a file system, whose answer [`PlannedCopy::file_system`] waits for.
#[derive(Debug)]
pub(crate) struct FileSystemQuery(JobId);

/// A copy whose entries are chosen by the caller, who may use the sessions before and after it.
pub(crate) struct PlannedCopy<'a> {
    engine: CopyEngine<'a>,
    source: Vec<u8>,
    target: Vec<u8>,
    directories: Arc<OpenDirectoryCache>,
    /// Directories of the target's end beside the target, below which no symlink is followed
    /// either.
    beside: Vec<Vec<u8>>,
    /// Number of the next job of [`PlannedCopy::carry_out`].
    next_job: u64,
}

/// One of the two ends of a planned copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlannedCopySide {
    Source,
    Target,
}

impl From<PlannedCopySide> for CopySide {
    fn from(end: PlannedCopySide) -> Self {
        match end {
            PlannedCopySide::Source => Self::Source,
            PlannedCopySide::Target => Self::Target,
        }
    }
}

/// Runs `work` with the environment of a real copy.
pub(crate) fn with_environment<T>(
    connect: &dyn SessionConnector,
    cancel: &CancelToken,
    work: impl AsyncFnOnce(PlannedCopyEnvironment<'_>) -> T,
) -> T {
    let environment = ThreadedEnvironment::new(connect, cancel);
    environment.drive(work(PlannedCopyEnvironment(&environment)))
}

/// The [`CopyEnvironment`] of a planned copy, as far as the copy may use it.
#[derive(Clone, Copy)]
pub(crate) struct PlannedCopyEnvironment<'a>(&'a dyn CopyEnvironment);

impl<'a> PlannedCopy<'a> {
    /// Loads the journal of an earlier run of this copy, and connects to the hosts of both ends.
    ///
    /// # Errors
    ///
    /// Returns the summary of the failed run.
    pub(crate) async fn begin(
        request: &CopyRequest,
        options: &'a CopyOptions,
        environment: PlannedCopyEnvironment<'a>,
        progress: &'a ProgressCounters,
        events: &'a mut dyn FnMut(CopyEvent),
    ) -> Result<Self, Box<CopySummary>> {
        let mut copy = Self {
            engine: CopyEngine::new(options, environment.0, progress, events),
            source: Vec::new(),
            target: Vec::new(),
            directories: Arc::default(),
            beside: Vec::new(),
            next_job: FIRST_JOB,
        };
        if !copy.connect(request).await || copy.resolve_roots(request).await.is_none() {
            return Err(Box::new(copy.engine.finish()));
        }
        copy.engine.request_boot();
        Ok(copy)
    }

    /// Returns the path of an end's root, as its server or this machine resolves it.
    pub(crate) fn root(&self, end: PlannedCopySide) -> &[u8] {
        match end {
            PlannedCopySide::Source => &self.source,
            PlannedCopySide::Target => &self.target,
        }
    }

    /// True if an earlier run of this copy has left temporaries, which [`Self::copy`] takes or
    /// removes.
    pub(crate) fn has_leftovers(&mut self) -> bool {
        self.engine.keeper_mut().has_leftovers()
    }

    /// True if an end is this machine.
    pub(crate) fn is_local(&self, end: PlannedCopySide) -> bool {
        self.engine.context().side(end.into()).is_none()
    }

    /// True if the account at the target may set owners: that of root.
    pub(crate) fn sets_owners(&self) -> bool {
        self.is_root(CopySide::Target)
    }

    fn is_root(&self, end: CopySide) -> bool {
        self.engine.context().is_root(end)
    }

    /// Returns the kinds of extended attributes that the user asked for. None if one end cannot
    /// tell them, or the target cannot set them.
    pub(crate) async fn compared_xattrs(&mut self) -> MetadataFlags {
        let kinds = xattr_kinds(self.engine.context().options());
        if kinds.is_empty() {
            return kinds;
        }
        for end in [PlannedCopySide::Source, PlannedCopySide::Target] {
            self.settle(end).await;
        }
        let (metadata, context) = self.engine.metadata_mut();
        metadata.learn_support(context);
        match compares_xattrs(context) {
            true => kinds,
            false => MetadataFlags::default(),
        }
    }

    /// Returns the test for names of extended attributes that are compared: those that a copy keeps
    /// and that both accounts can read.
    pub(crate) fn compared_xattr_names(&self) -> impl Fn(&[u8]) -> bool + use<> {
        let rules = special_bits(self.engine.context());
        let root = self.is_root(CopySide::Source) && self.is_root(CopySide::Target);
        move |name| sftp::xattrs::kind(name, root).is_some() && rules.keeps_xattr(name)
    }

    /// Selects the extended attributes of a source that the target gets.
    pub(crate) fn takeable_xattrs(
        &mut self,
        source: &[u8],
        list: Vec<Xattr>,
    ) -> Option<Box<Xattrs>> {
        let (metadata, context) = self.engine.metadata_mut();
        let shown = || Some(context.shown(CopySide::Source, source));
        metadata.takeable(context, shown, list)
    }

    /// Notes that the extended attributes of the entry `path` of an end could not be read.
    pub(crate) fn note_unread_xattrs(
        &mut self,
        end: PlannedCopySide,
        path: &[u8],
        why: &FileError,
    ) {
        let (metadata, context) = self.engine.metadata_mut();
        let shown = || Some(context.shown(end.into(), path));
        metadata.note_unread_xattrs(context.options(), why.what(), shown);
    }

    /// Reads the extended attributes of an entry of an end on this machine. Below the root of the
    /// target, no symlink is followed.
    pub(crate) fn xattrs_here(
        &self,
        end: PlannedCopySide,
        path: &[u8],
        kinds: MetadataFlags,
    ) -> Result<Vec<Xattr>, FileError> {
        if end == PlannedCopySide::Source || path == self.target {
            let path = if path.is_empty() { b"." } else { path };
            return self.engine.context().local().xattrs(path, kinds);
        }
        let at = self.directories.locate(&self.local_target(path))?;
        Ok(crate::disk::xattrs_at(&at, kinds)?)
    }

    /// True if the copy gives owners the IDs that their names have at the target.
    pub(crate) fn maps_owners(&self) -> bool {
        let context = self.engine.context();
        let options = context.options();
        options.settle && !options.numeric_ids && super::metadata::maps_owners(context)
    }

    /// Notes the IDs at the target of users and groups of the source.
    pub(crate) fn knows_owners(&mut self, users: &BTreeMap<u32, u32>, groups: &BTreeMap<u32, u32>) {
        self.engine.knows_owners(users, groups);
    }

    /// Notes that owners could not be set at the target.
    pub(crate) fn note_lost_owner(&mut self, why: &str, path: &[u8]) {
        self.note_lost(Parts::OWNER, why, path);
    }

    /// Notes metadata of the entry `path` that could not be set at the target.
    pub(crate) fn note_lost(&mut self, parts: Parts, why: &str, path: &[u8]) {
        self.engine.note_lost(parts, why, Some(path));
    }

    /// Names of a user and a group of this machine; empty for those without one.
    pub(crate) fn owner_names_here(&self, user: u32, group: u32) -> (Vec<u8>, Vec<u8>) {
        self.engine.context().local().owner_names(user, group)
    }

    /// IDs of users and groups of this machine by name; `u32::MAX` if unknown.
    pub(crate) fn owner_ids_here(
        &self,
        users: &[Vec<u8>],
        groups: &[Vec<u8>],
    ) -> (Vec<u32>, Vec<u32>) {
        self.engine.context().local().owner_ids(users, groups)
    }

    /// Version and extensions of the server of an end, once known.
    pub(crate) fn server(&self, end: PlannedCopySide) -> Option<&ServerInfo> {
        self.engine.context().side(end.into())?.session().far_info()
    }

    /// Waits until it is known which server handles an end.
    pub(crate) async fn settle(&mut self, end: PlannedCopySide) {
        self.engine.settle_end(end.into()).await;
    }

    /// True if the server of an end lists whole trees, or is expected to.
    pub(crate) fn lists_trees(&self, end: PlannedCopySide) -> bool {
        let side = self.engine.context().side(end.into());
        side.is_some_and(|side| side.session().lists_trees())
    }

    /// Submits a job to the session of an end. The caller chooses its number, above those of the
    /// copy.
    pub(crate) fn submit(&self, end: PlannedCopySide, job: Job) {
        if let Some(side) = self.engine.context().side(end.into()) {
            side.session().submit(job, None);
        }
    }

    /// Takes the next event of an end's session that answers the caller's own jobs and commands;
    /// `None` if there is none now. Other events go to the copy.
    ///
    /// # Errors
    ///
    /// The session is over, for this reason.
    pub(crate) fn next_event(
        &mut self,
        end: PlannedCopySide,
    ) -> Result<Option<SessionEvent>, ConnectError> {
        loop {
            let Some(side) = self.engine.context().side(end.into()) else {
                return Ok(None);
            };
            let event = match side.session().next_event() {
                NextEventResult::Event(SessionEvent::Lost(why)) => {
                    let why = format!("{}: {why}", side.name());
                    return Err(ConnectError::unreachable(why));
                }
                NextEventResult::Event(event) => event,
                NextEventResult::Pending => return Ok(None),
                NextEventResult::Ended => {
                    return Err(ConnectError::unreachable(format!(
                        "{}: internal error: the session ended unexpectedly",
                        side.name()
                    )));
                }
            };
            let is_callers = match &event {
                SessionEvent::Lane(event) => event.job() >= CALLERS_FIRST_JOB,
                SessionEvent::Restarted(id) => *id >= CALLERS_FIRST_JOB,
                SessionEvent::Exec(..) => true,
                _ => false,
            };
            if is_callers {
                return Ok(Some(event));
            }
            self.engine.handle_event(end.into(), event);
        }
    }

    /// Carries out jobs at a remote end, at most `most` at a time, and passes their events on, each
    /// with the position of its job. Ends early after a cancel or the loss of the session.
    pub(crate) async fn carry_out(
        &mut self,
        end: PlannedCopySide,
        mut kinds: impl Iterator<Item = JobKind>,
        most: usize,
        mut heard: impl FnMut(usize, LaneEvent),
    ) {
        let first = self.next_job;
        // Paths for messages.
        let mut asked: BTreeMap<JobId, Option<RemotePath>> = BTreeMap::new();
        while !self.stopped() {
            while asked.len() < most
                && let Some(kind) = kinds.next()
            {
                let id = JobId(self.next_job);
                self.next_job += 1;
                asked.insert(id, kind.remote_path().cloned());
                self.submit(end, Job { id, kind });
            }
            if asked.is_empty() {
                return;
            }
            match self.next_event(end) {
                Ok(Some(SessionEvent::Lane(event))) => {
                    let at = event.job().0.checked_sub(first);
                    match &event {
                        LaneEvent::Done(id) | LaneEvent::Failed(id, _) => {
                            asked.remove(id);
                        }
                        LaneEvent::NotKept(id, parts, why) => {
                            let path = asked.get(id).and_then(Option::as_ref);
                            let path = path.map(|path| path.0.as_slice());
                            self.engine.note_lost(*parts, why, path);
                        }
                        _ => {}
                    }
                    if let Some(at) = at.and_then(|at| usize::try_from(at).ok()) {
                        heard(at, event);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => self.wait().await,
                Err(why) => return self.lose(why),
            }
        }
    }

    /// Does something with a command at a remote end. The caller chooses its number, above those of
    /// the copy.
    pub(crate) fn command(
        &self,
        end: PlannedCopySide,
        id: RemoteCommandId,
        step: RemoteCommandStep,
    ) {
        if let Some(side) = self.engine.context().side(end.into()) {
            side.session().command(id, step);
        }
    }

    /// Time of the run.
    pub(crate) fn now(&self) -> Instant {
        self.engine.context().now()
    }

    /// Waits until a session has an event or the run is interrupted.
    pub(crate) async fn wait(&self) {
        self.wait_until(None).await;
    }

    /// Waits as [`PlannedCopy::wait`] does, or until `until`.
    pub(crate) async fn wait_until(&self, until: Option<Instant>) {
        let context = self.engine.context();
        let conditions = WaitConditions {
            sessions: context.sides().iter().map(RemoteSide::number).collect(),
            cancel: true,
            until,
            ..WaitConditions::default()
        };
        wait_for(context.environment(), conditions).await;
    }

    /// Formats a path of an end for messages.
    pub(crate) fn shown(&self, end: PlannedCopySide, path: &[u8]) -> EscapedName {
        self.engine.context().shown(end.into(), path)
    }

    /// Host and path of an operand, with all that distinguishes it from others.
    pub(crate) fn place_name(&self, place: &CopyLocation) -> EscapedName {
        self.engine.context().place_name(place)
    }

    /// Cache that resolves paths of a target on this machine.
    pub(crate) fn directories(&self) -> Arc<OpenDirectoryCache> {
        Arc::clone(&self.directories)
    }

    /// Lets paths below `dir`, which the user named, be used at the target's end. No symlink is
    /// followed below it, on this machine or at a longhaul.
    pub(crate) fn also_use(&mut self, dir: Vec<u8>) {
        if !self.beside.contains(&dir) {
            self.engine.context().hold_root(dir.clone());
            self.beside.push(dir);
        }
    }

    /// Notes that the target does not exist, so that this run makes it.
    pub(crate) fn note_target_missing(&mut self) {
        self.engine.context_mut().named_mut().set_missing(true);
    }

    /// Notes targets that do not exist, whatever an earlier run has recorded about them.
    pub(crate) fn note_missing(&mut self, targets: impl Iterator<Item = Vec<u8>>) {
        self.engine.keeper_mut().forget_complete(targets);
    }

    /// Local path below the target or a directory of [`PlannedCopy::also_use`], in which no symlink
    /// is followed.
    pub(crate) fn local_target(&self, path: &[u8]) -> schedule::LocalTargetPath {
        let at = self.engine.context().named().local_path(path);
        // A directory below the target is no exception.
        if at.below_part().is_some() {
            return at;
        }
        for dir in &self.beside {
            match path.strip_prefix(dir.as_slice()) {
                Some(b"") => return schedule::LocalTargetPath::named(local_path(dir)),
                Some([b'/', below @ ..]) => {
                    return schedule::LocalTargetPath::beneath(
                        local_path(dir),
                        local_path(below),
                        false,
                    );
                }
                _ => {}
            }
        }
        at
    }

    /// Reports an event.
    pub(crate) fn tell(&mut self, event: CopyEvent) {
        self.engine.context_mut().tell(event);
    }

    /// Reports something that could not be done.
    pub(crate) fn fail(&mut self, path: EscapedName, fault: impl Into<FileError>) {
        self.engine.context_mut().fail(None, path, fault);
    }

    /// True if the run was cancelled or a session was lost.
    pub(crate) fn stopped(&mut self) -> bool {
        self.engine.check_cancel();
        self.engine.stopped()
    }

    /// True if setuid and setgid bits of the source are kept.
    pub(crate) fn keeps_special_bits(&self) -> bool {
        special_bits(self.engine.context()).keeps()
    }

    /// Notes that this run has made a second name of the file at `target`, which keeps the old
    /// contents.
    pub(crate) fn note_second_name(&mut self, target: Vec<u8>) {
        let (metadata, _) = self.engine.metadata_mut();
        metadata.withheld().note_backup_name(target);
    }

    /// Makes `path` a name of the file `of`, in place of a file or symlink. Both are paths of a
    /// target on this machine.
    pub(crate) fn make_hard_link(&self, path: &[u8], of: &[u8]) -> Result<(), FileError> {
        let (path, of) = (self.local_target(path), self.local_target(of));
        self.engine.context().local().make_hard_link(&path, &of)
    }

    /// Notes that the target has the data of a file with several names at `target`, so that the
    /// names of the file that are copied become hard links to it.
    pub(crate) fn note_linked_file(&mut self, link: InodeId, target: Vec<u8>) {
        self.engine.note_linked_file(&link, target);
    }

    /// Notes that it is known which names of the source belong to one file, though its server does
    /// not tell it.
    pub(crate) fn note_source_links_known(&mut self) {
        self.engine.metadata_mut().0.note_source_links_known();
    }

    /// Notes that a name of a file stays a separate file, for this reason.
    pub(crate) fn note_lost_link(&mut self, why: &str, name: Option<&[u8]>) {
        self.engine.note_lost_link(why, name);
    }

    /// True if the target refused to set modification times.
    pub(crate) fn loses_times(&self) -> bool {
        self.engine.loses_times()
    }

    /// Returns the setting for the use of delta.
    pub(crate) fn delta(&self) -> DeltaUse {
        self.engine.context().options().delta
    }

    /// True if anything has failed so far.
    pub(crate) fn has_failed(&self) -> bool {
        self.engine.context().summary().failed > 0
    }

    /// Files that are complete so far, and the bytes of file data that were confirmed.
    pub(crate) fn copied(&self) -> (u64, u64) {
        let summary = &self.engine.context().summary();
        (summary.files, summary.bytes)
    }

    /// Sets the times of the target's root, whose path the user named.
    pub(crate) async fn set_root_times(&mut self, attributes: &Attributes) {
        let times_only = Attributes {
            times: attributes.times,
            nanoseconds: attributes.nanoseconds,
            ..Attributes::default()
        };
        if self.engine.context().target_is_remote() {
            let kind = JobKind::SetAttributes {
                path: RemotePath(self.target.clone()),
                attributes: times_only,
                follow: true,
                xattrs: None,
                expected: ExpectedEntry::DIRECTORY,
            };
            let _ = self.engine.ask(CopySide::Target, kind).await;
        } else if let Some(times) = crate::disk::timestamps(&times_only)
            && let Ok(dir) = self.directories.directory(&self.local_target(&self.target))
        {
            let _ = rustix::fs::futimens(&*dir, &times);
        }
    }

    /// Notes that a session was lost.
    pub(crate) fn lose(&mut self, why: ConnectError) {
        self.engine.context_mut().lose(why);
    }

    /// Copies the entries onto the target's root and waits until all are done.
    pub(crate) async fn copy(&mut self, entries: PlannedEntries) {
        if !self.engine.prepare().await {
            return;
        }
        let target = self.target.clone();
        self.engine
            .copy_planned(entries, &self.source, target)
            .await;
        self.engine.end_planned().await;
    }

    /// Notes that other processes write the temporary of a target as well, before the entries are
    /// copied.
    pub(crate) fn share(&mut self, target: Vec<u8>, file: SharedTemporaryFile) {
        self.engine.share(target, file);
    }

    /// Copies further files, after [`PlannedCopy::copy`] or instead of it, without a journal. The
    /// directories of the entries exist, and are not counted again.
    pub(crate) async fn copy_more(&mut self, entries: PlannedEntries) {
        let target = self.target.clone();
        let engine = &mut self.engine;
        let directories = engine.context().summary().directories;
        engine.copy_planned(entries, &self.source, target).await;
        engine.context_mut().summary_mut().directories = directories;
    }

    /// Ends the sessions and returns the summary.
    pub(crate) fn finish(mut self) -> CopySummary {
        self.engine.forget_boot_request();
        self.engine.finish()
    }
}

impl PlannedCopy<'_> {
    /// Loads the journal of an earlier run, and connects to the hosts. Returns false, after
    /// reporting it, if that is impossible.
    async fn connect(&mut self, request: &CopyRequest) -> bool {
        // A sync that is killed is run again, and must find what it has left.
        self.engine.keeper_mut().record_all();
        if !self.engine.find_earlier_run(request).await {
            return false;
        }
        for end in [CopySide::Target, CopySide::Source] {
            let place = match end {
                CopySide::Source => request.sources.first(),
                CopySide::Target => Some(&request.target),
            };
            let Some(CopyLocation::Remote { host, .. }) = place else {
                continue;
            };
            let context = self.engine.context_mut();
            if let Err(why) = context.connect_end(end, *host) {
                context.end_with(why);
                return false;
            }
        }
        true
    }

    async fn resolve_roots(&mut self, request: &CopyRequest) -> Option<()> {
        let source = self
            .root_path(CopySide::Source, request.sources.first()?)
            .await?;
        let target = self.root_path(CopySide::Target, &request.target).await?;
        let onto = TargetPath::Exactly(target.clone());
        self.engine.context_mut().name_target(&onto);
        // Confines the journal of an earlier run to this target.
        let _ = self.engine.keeper_mut().onto_before(&target);
        (self.source, self.target) = (source, target);
        Some(())
    }

    async fn root_path(&mut self, end: CopySide, place: &CopyLocation) -> Option<Vec<u8>> {
        match place {
            CopyLocation::Local(path) => Some(path.as_os_str().as_bytes().to_vec()),
            CopyLocation::Remote { path, .. } => {
                home::path_at_server(&mut self.engine, end, path).await
            }
        }
    }

    /// Returns the attributes of an end's root; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Refusals that leave it open if there is a root, or the reason that the run ends.
    pub(crate) async fn root_attributes(
        &mut self,
        end: PlannedCopySide,
    ) -> Result<Option<Attributes>, FileError> {
        let path = self.root(end).to_vec();
        if let Some(RootAttributesQuery(id)) = self.query_root(end) {
            let answer = self.engine.answer(id).await;
            let root = if_exists(answer)?.and_then(|answer| answer.attributes());
            if end == PlannedCopySide::Target && root.is_none() {
                self.engine.context_mut().named_mut().set_missing(true);
            }
            return Ok(root);
        }
        let path = match path.is_empty() {
            true => b".".to_vec(),
            false => path,
        };
        let stat = self.engine.context().local().stat(&path);
        Ok(if_exists(stat)?.map(|stat| stat.attributes))
    }

    /// Returns how the source and a directory of the target's end overlap, if both ends are one
    /// machine. Without `probe`, nothing is created to find that out, and only two names of one
    /// login count as one machine.
    pub(crate) async fn overlap_with(&mut self, target: &[u8], probe: bool) -> Option<RootOverlap> {
        let ends = [PlannedCopySide::Source, PlannedCopySide::Target];
        if !ends.into_iter().any(|end| self.is_local(end)) {
            let mut machines = SameFileDetector::new(&mut self.engine);
            return machines.overlap_between(&self.source, target, probe).await;
        }
        if !probe {
            return None;
        }
        let mut machines = SameFileDetector::new(&mut self.engine);
        let possible = machines.possible_overlap(&self.source, target)?;
        let before = fs::metadata(possible.here()).and_then(|meta| meta.modified());
        let is_overlap = machines.is_overlap(&possible).await;
        // The probe has changed the time of a directory that may take part in the copy.
        if let (Ok(before), Ok(dir)) = (before, fs::File::open(possible.here())) {
            let _ = dir.set_modified(before);
        }
        is_overlap.then(|| possible.into_overlap())
    }

    /// Canonical path of an entry of an end, which may not exist.
    pub(crate) async fn real_place(
        &mut self,
        end: PlannedCopySide,
        path: &[u8],
    ) -> Option<Vec<u8>> {
        let path = match path {
            b"" => b".",
            path => path,
        };
        SameFileDetector::new(&mut self.engine)
            .real_place(end.into(), path)
            .await
    }

    /// Queries a remote end for the attributes of its root. Returns `None` for this machine, or if
    /// the session is gone.
    pub(crate) fn query_root(&mut self, end: PlannedCopySide) -> Option<RootAttributesQuery> {
        let path = self.root(end).to_vec();
        self.query(end, path)
    }

    /// Queries a remote end for the attributes of a path, as [`PlannedCopy::query_root`] does.
    pub(crate) fn query(
        &mut self,
        end: PlannedCopySide,
        path: Vec<u8>,
    ) -> Option<RootAttributesQuery> {
        let kind = JobKind::Stat {
            path: RemotePath(path),
            follow: true,
        };
        let answer = PathQueryAnswer::default();
        self.engine
            .context_mut()
            .begin_asking(end.into(), kind, answer)
            .map(RootAttributesQuery)
    }

    /// Queries a remote end for the identity of its root's file system.
    pub(crate) fn query_file_system(&mut self, end: PlannedCopySide) -> Option<FileSystemQuery> {
        let path = RemotePath(self.root(end).to_vec());
        let kind = JobKind::FileSystem { path };
        let answer = PathQueryAnswer::default();
        let id = self
            .engine
            .context_mut()
            .begin_asking(end.into(), kind, answer);
        id.map(FileSystemQuery)
    }

    /// Asks a remote end if `path` exists, through symlinks.
    ///
    /// # Errors
    ///
    /// The server's words, or the reason that the run ends.
    pub(crate) async fn look(
        &mut self,
        end: PlannedCopySide,
        path: Vec<u8>,
    ) -> Result<(), FileError> {
        match self.query(end, path) {
            Some(query) => self.engine.answer(query.0).await.map(drop),
            None => Ok(()),
        }
    }

    /// Waits for the identity of a file system; `None` if the server does not tell it.
    pub(crate) async fn file_system(&mut self, query: FileSystemQuery) -> Option<u64> {
        let answer = self.engine.answer(query.0).await.ok()?;
        // Some file systems have no identity.
        answer.file_system().filter(|identity| *identity != 0)
    }

    /// Takes the attributes that answer a query; `None` until the answer arrives.
    pub(crate) fn root_answer(
        &mut self,
        query: RootAttributesQuery,
    ) -> Option<Result<Option<Attributes>, FileError>> {
        let answer = self.engine.take_answer(query.0)?;
        Some(if_exists(answer).map(|answer| answer.and_then(|answer| answer.attributes())))
    }
}
