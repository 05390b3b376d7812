//! Files between two hosts: a Get and a Put joined by a relay.

use std::path::PathBuf;
use std::sync::Arc;

use schedule::{
    EntryKind, FileCopyOptions, Job, JobFailure, JobFailureKind, JobKind, LocalEnd,
    LocalTargetPath, PartialFile, RemotePath, SourceFileMeta, UPLOAD_BEGINS,
};

use super::context::CopyContext;
use super::file::{ActiveFiles, CopyFileId, FileTask, JobRole};
use super::jobs::{JobPurpose, TemporaryRemoval};
use super::resume::clear_remote;
use super::sides::CopySide;
use crate::disk::HostToHostBuffer;
use crate::sums::FileChecksums;

const RELAY_FILES: usize = 512;
/// Number of attempts after which a file whose connections were lost has failed.
const MOST_ATTEMPTS: u32 = 8;
/// Bytes from which an attempt counts as progress.
const PROGRESS: u64 = 1 << 20;
/// Fault of the job at one host when the other host's connection was lost.
const CONNECTION_LOST: &str = "the connection to a host was lost while the file was copied: run \
    the same command again";

/// Failures of the two jobs of a relayed file.
#[derive(Default)]
struct RelayedFileFaults {
    /// The failure that is reported, and the host at which it happened.
    reported: Option<(CopySide, JobFailure)>,
    /// A connection was lost, so that the rest of the file has to be read again.
    lost: bool,
    /// The temporary cannot be continued.
    starts_over: bool,
    /// The upload needs the data again.
    reads_again: bool,
    /// The upload has to write the file under its final name.
    in_place: bool,
}

/// State of the two jobs of a relayed file.
pub(super) struct RelayedFileJobs {
    relay: Arc<HostToHostBuffer>,
    share: u64,
    jobs: u8,
    faults: RelayedFileFaults,
    put_done: bool,
    /// The upload writes under the final name.
    in_place: bool,
    /// The journal has the file, so that its temporary stays if a connection is lost.
    is_kept: bool,
    /// The upload has failed and left its temporary.
    leaves: bool,
    /// The download, which begins once the receiver has found what it has of the file.
    waiting_get: Option<Box<JobKind>>,
    /// The upload of a file of which the receiver has nothing, which begins once data have arrived.
    waiting_put: Option<Box<JobKind>>,
    /// Size of the file for the upload, if the journal has it.
    kept_size: Option<u64>,
    /// Bytes that the download has passed on.
    received: u64,
    /// Most bytes that the target has had in any attempt.
    reached: u64,
    /// Number of attempts so far without much progress.
    attempts: u32,
}

impl std::fmt::Debug for RelayedFileJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayedFileJobs")
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

/// Consequence of the end of one of the two jobs.
#[derive(Debug)]
pub(super) enum RelayedFileOutcome {
    /// The other job is not over.
    Waits,
    Done,
    /// The file is copied again.
    Again,
    /// At this host.
    Failed(CopySide, JobFailure),
    /// Neither job has said why the file was not copied.
    NotCopied,
}

impl RelayedFileJobs {
    /// Returns for the next attempt if the file is written under its final name, the number of
    /// attempts so far, and the bytes that they reached.
    fn for_next_attempt(&self) -> (bool, u32, u64) {
        let in_place = self.in_place || self.faults.in_place;
        (in_place, self.attempts, self.reached)
    }
}

impl RelayedFileFaults {
    /// Notes the failure of one of the jobs. The first one is reported, unless it only says that
    /// the other job has failed.
    fn note(&mut self, side: CopySide, fault: JobFailure) {
        self.lost |= fault.kind == JobFailureKind::ConnectionLost;
        self.starts_over |= fault.kind == JobFailureKind::StartOver;
        self.reads_again |= fault.kind == JobFailureKind::ReadAgain;
        self.in_place |= fault.kind == JobFailureKind::ReadAgainInPlace;
        let temporary = fault.temporary;
        let of_other = |(_, fault): &(_, JobFailure)| fault.kind == JobFailureKind::OtherHost;
        if self.reported.as_ref().is_none_or(of_other) {
            self.reported = Some((side, fault));
        }
        if let Some((_, reported)) = &mut self.reported {
            reported.note_temporary(temporary);
        }
    }

    /// True if another attempt may succeed.
    fn may_pass(&self) -> bool {
        self.lost || self.starts_over || self.reads_again
    }
}

impl ActiveFiles {
    /// True if another file between two hosts may begin.
    pub(super) fn relay_has_room(&self, context: &CopyContext<'_>) -> bool {
        self.relayed() < context.environment().limits().relay_budget
            && (!context.source_is_remote()
                || !context.target_is_remote()
                || self.len() < RELAY_FILES)
    }

    /// Starts both jobs of a file, whose data is summed in `sums`. If the target has a part of the
    /// file, the upload is alone until it has found that part.
    pub(super) fn start_relayed(
        &mut self,
        context: &mut CopyContext<'_>,
        sums: Option<Arc<FileChecksums>>,
        id: CopyFileId,
        mut options: FileCopyOptions,
    ) {
        let Some(task) = self.get_mut(&id) else {
            return;
        };
        let before = task.relay().map(|relay| relay.for_next_attempt());
        let (in_place, attempts, reached) = before.unwrap_or_default();
        options.inplace |= in_place;
        if options.inplace {
            // There is no temporary to continue.
            options.keep = None;
        }
        let attributes = task.attributes().unwrap_or_default();
        let limits = context.environment().limits();
        let held = task.size().unwrap_or(u64::MAX).min(limits.relay_held);
        let share = held + limits.relay_slack;
        task.set_sums(sums.clone());
        let meta = SourceFileMeta {
            attributes,
            stream: attributes.size.is_none(),
        };
        let is_file = attributes.mode.is_some() && attributes.kind() == EntryKind::File;
        let kept = task.resume().is_recorded() && is_file && !options.inplace;
        let size = attributes.size.filter(|_| kept);
        let left = options.keep.as_ref().and_then(|keep| keep.left.clone());
        let from = left.as_ref().map_or(0, PartialFile::prefix);
        let relay = HostToHostBuffer::bounded(meta, share, sums);
        let (source, target) = (
            RemotePath(task.source().to_vec()),
            RemotePath(task.target().to_vec()),
        );
        let get = JobKind::Get {
            source,
            target: LocalTargetPath::default(),
            known: Some(attributes),
            options: FileCopyOptions {
                fsync: false,
                // The relay takes all bytes, and the upload leaves the zeros out.
                sparse: false,
                keep: options.keep.clone().filter(|_| left.is_some()),
                local_end: LocalEnd::OtherHost,
                ..options.clone()
            },
        };
        let put = JobKind::Put {
            source: PathBuf::new(),
            target,
            options: FileCopyOptions {
                local_end: LocalEnd::OtherHost,
                ..options
            },
        };
        task.set_relay(RelayedFileJobs {
            relay: Arc::clone(&relay),
            share,
            jobs: 0,
            faults: RelayedFileFaults::default(),
            put_done: false,
            in_place,
            is_kept: size.is_some(),
            leaves: false,
            waiting_get: Some(Box::new(get)),
            waiting_put: Some(Box::new(put)),
            kept_size: size,
            received: 0,
            reached: reached.max(from),
            attempts: attempts + 1,
        });
        self.hold_for_relay(share);
        match left {
            None => self.begin_waiting_get(context, id),
            Some(_) => self.begin_waiting(context, id, JobRole::RelayPut),
        }
    }

    /// Counts bytes that a download has passed on, and begins the upload once it has enough.
    pub(super) fn note_received(&mut self, context: &mut CopyContext<'_>, id: CopyFileId, n: u64) {
        let Some(relay) = self.get_mut(&id).and_then(FileTask::relay) else {
            return;
        };
        relay.received += n;
        if relay.received >= UPLOAD_BEGINS {
            self.begin_waiting(context, id, JobRole::RelayPut);
        }
    }

    /// Begins the download of a file whose upload has found what the receiver has.
    pub(super) fn begin_waiting_get(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        self.begin_waiting(context, id, JobRole::RelayGet);
    }

    /// Begins the job of a file that waits for the other one, if it has not begun.
    fn begin_waiting(&mut self, context: &mut CopyContext<'_>, id: CopyFileId, role: JobRole) {
        let Some(relay) = self.get_mut(&id).and_then(FileTask::relay) else {
            return;
        };
        let (waiting, side, size) = match role {
            JobRole::RelayGet => (&mut relay.waiting_get, CopySide::Source, None),
            _ => (&mut relay.waiting_put, CopySide::Target, relay.kept_size),
        };
        let Some(kind) = waiting.take() else {
            return;
        };
        if context.stopped() {
            let fault = JobFailure::new(context.why_stopped().what(), false);
            // The other job waits for room, or for data, otherwise.
            relay.relay.break_off(fault.clone());
            relay.relay.abandon();
            return relay.faults.note(side, fault);
        }
        relay.jobs += 1;
        let bound = Arc::clone(&relay.relay);
        context.submit_with(side, JobPurpose::File(id, role), |session, id| {
            session.submit_relayed(Job { id, kind: *kind }, bound, size);
        });
    }

    /// Handles a job of a relayed file that starts over in its session. Returns false if the file is
    /// not relayed. If a connection was lost, the data that the other job has passed on or taken are
    /// gone, so both end, and the rest of the file is copied by two others.
    pub(super) fn on_relay_restarted(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
    ) -> bool {
        let Some(task) = self.get_mut(&id) else {
            return false;
        };
        let Some(relay) = task.relay() else {
            return false;
        };
        if let Some(JobKind::Get { options, .. }) = relay.waiting_get.as_deref_mut() {
            // The receiver does not have what the journal lists.
            options.keep = None;
            task.resume_mut().was_left_aside();
            // The job has reported what it continued, and sends it again.
            context.progress().take_back(task.take_back());
            self.begin_waiting_get(context, id);
            return true;
        }
        relay.faults.lost = true;
        let fault = JobFailure::new(CONNECTION_LOST, true).of_kind(JobFailureKind::ConnectionLost);
        relay.relay.break_off(fault);
        relay.relay.abandon();
        true
    }

    /// Prepares another attempt at a relayed file: it continues the temporary if a connection was
    /// lost, and starts over otherwise.
    pub(super) fn prepare_relayed_again(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        let Some(task) = self.get_mut(&id) else {
            return;
        };
        let taken = task.resume().taken();
        context.progress().take_back(task.restart());
        let arrived = task.resume().arrived();
        let Some(relay) = task.relay() else {
            return;
        };
        let starts_over = relay.faults.starts_over || relay.faults.reads_again;
        if !relay.is_kept || !relay.faults.may_pass() {
            return;
        }
        // Bytes that are sent once more are no progress.
        if arrived >= relay.reached.saturating_add(PROGRESS) {
            relay.attempts = 0;
        }
        relay.reached = relay.reached.max(arrived);
        let place = context.named().temporary_place(task.target());
        let sums = context.options().verify || context.options().manifest.is_some();
        if !starts_over && !sums && task.resume_mut().continue_temporary(&place) {
            task.resume_mut().adopts(taken, arrived);
            return;
        }
        self.clear_relayed(context, id);
        if let Some(task) = self.get_mut(&id) {
            task.resume_mut().forget();
            // The source may be a different file by now.
            task.forget_attributes();
        }
    }

    /// Removes the temporary that the upload of a relayed file has left for another attempt, which
    /// there will not be. In a run that ends early it stays for the next one.
    pub(super) fn clear_relayed(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        let Some(task) = self.get_mut(&id) else {
            return;
        };
        let leaves = task.relay().is_some_and(|relay| relay.leaves);
        let entry = task.resume().entry();
        if let Some(path) = task.resume_mut().take_temporary().filter(|_| leaves) {
            let removal = TemporaryRemoval {
                path,
                entry,
                ..TemporaryRemoval::default()
            };
            clear_remote(context, removal);
        }
    }

    /// Handles the end of one of the two jobs.
    pub(super) fn on_relayed(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        role: JobRole,
        result: Result<(), JobFailure>,
    ) -> RelayedFileOutcome {
        if role == JobRole::RelayGet && result.is_ok() {
            self.begin_waiting(context, id, JobRole::RelayPut);
        }
        let Some(relay) = self.get_mut(&id).and_then(FileTask::relay) else {
            return RelayedFileOutcome::Waits;
        };
        relay.jobs -= 1;
        match (role, result) {
            (JobRole::RelayGet, Err(fault)) => {
                relay.relay.break_off(fault.clone());
                relay.faults.note(CopySide::Source, fault);
            }
            (_, Err(fault)) => {
                relay.relay.abandon();
                relay.leaves = relay.is_kept && fault.leaves_temporary();
                relay.faults.note(CopySide::Target, fault);
            }
            (JobRole::RelayPut, Ok(())) => relay.put_done = true,
            (_, Ok(())) => {}
        }
        if relay.jobs > 0 {
            return RelayedFileOutcome::Waits;
        }
        let (done, fault) = (relay.put_done, relay.faults.reported.take());
        // The target is a symlink, a device or in a directory that allows no temporaries or renames, so
        // that the upload goes under the final name.
        let again = match relay.faults.may_pass() {
            true => relay.attempts < MOST_ATTEMPTS,
            false => relay.faults.in_place && !relay.in_place,
        };
        let share = relay.share;
        self.release_from_relay(share);
        match fault {
            _ if done => RelayedFileOutcome::Done,
            Some(_) if again => RelayedFileOutcome::Again,
            Some((side, fault)) => RelayedFileOutcome::Failed(side, fault),
            None => RelayedFileOutcome::NotCopied,
        }
    }
}
