//! Uploads one file, or a part of one: one type for each stage.
//!
//! ```text
//! Reading -> Queued -> Sending -> Closing -> Naming -> Finished
//!               `----> Whole ------------------------> Finished
//! ```
//!
//! `Looking` comes first if the data come from another host. Every stage may become `GivingUp`, which ends the job or starts it over, through
//! `WriteProbeStage` or `FollowSymlinkStage` if the target needs them.

mod closing;
mod ending;
mod following;
mod giving_up;
mod naming;
mod new_file;
mod owner;
mod owner_write;
mod part;
mod probing;
mod progress;
mod queued;
mod reading;
mod sending;
mod source;
mod target;
mod temp_names;
mod upload;
mod whole;

use sftp::packed::LEAST_FILE;
use sftp::{Handle, OpenFlags, Reply, Status, tagged_name};

use self::closing::UploadCloseStage;
use self::ending::{UploadAttemptAbort, UploadRetryReason};
use self::following::FollowSymlinkStage;
use self::giving_up::{CleanupProgress, UploadCleanup};
use self::naming::{RenameStage, RenameStepResult};
pub(super) use self::new_file::WrittenFileInfo;
pub(super) use self::owner::OwnerPreservation;
pub(super) use self::part::UploadPart;
use self::probing::WriteProbeStage;
use self::progress::UploadProgress;
use self::queued::UploadQueuedStage;
use self::reading::SourceReadStage;
use self::sending::UploadSendStage;
use self::target::UploadTargetInfo;
use self::temp_names::TempOpenAttempts;
pub(super) use self::whole::{LONGEST_PATH, WHOLE};
use super::context::LaneContext;
use super::job_requests::JobRequests;
use super::messages::{self, not_overwritten, not_reopened};
use super::remote_file::OpenResult;
use super::request_purpose::RequestPurpose;
use super::server::ServerCapabilities;
use super::task::{JobProgress, Misprediction};
use crate::{
    DiskReply, DiskRequest, FileCopyOptions, FileCopyState, JobFailure, JobFailureKind, JobId,
    LaneEvent, LocalEnd, RemotePath, UploadTemp,
};

/// Uploads one file, or a part of one.
///
/// The temporary is opened beside the target as soon as the source's first bytes are read, while
/// the LSTAT of the target is still in flight. Its result is applied before the rename; if it
/// requires another way (a symlink, a device), the temporary is removed and the job starts over.
#[derive(Debug)]
pub(super) struct UploadJob {
    upload: UploadState,
    stage: UploadStage,
}

/// State of a job that all its attempts share.
#[derive(Debug)]
struct UploadState {
    requests: JobRequests,
    part: UploadPart,
    options: FileCopyOptions,
    /// Final path of the file: the target, or the target of a symlink.
    path: Vec<u8>,
    target: UploadTargetInfo,
    names: TempOpenAttempts,
    progress: UploadProgress,
    /// The file needs several requests: the server said so, or the file is not small.
    plain: bool,
}

/// Stage of the present attempt.
#[derive(Debug)]
enum UploadStage {
    /// The target is looked at before the source is opened, which can be read once only.
    Looking,
    /// The disk side opens the source.
    Reading(SourceReadStage),
    /// The first bytes are read, and the job waits for its turn to open the file or to send it
    /// whole.
    Queued(Box<UploadQueuedStage>),
    /// The file was sent in one request, with its rename. The server makes the name of its temporary
    /// from `tag`.
    Whole {
        tag: u64,
    },
    /// OPEN was sent, and data move.
    Sending(Box<UploadSendStage>),
    /// All data, the attributes and CLOSE were sent.
    Closing(Box<UploadCloseStage>),
    /// The file gets its owner and its final name.
    Naming(Box<RenameStage>),
    /// An OPEN shows if the server lets an existing read-only file be written.
    Probing(WriteProbeStage),
    /// STAT and REALPATH find the file that a symlink points to.
    Following(FollowSymlinkStage),
    /// The attempt ends: handles are closed and the temporary is removed.
    GivingUp(Box<UploadCleanup>),
    Finished,
}

/// Size in bytes up to which a file is read with one disk request and sent in one flight.
const FIRST: usize = 32 * 1024;

impl UploadJob {
    pub(super) fn new(
        id: JobId,
        part: UploadPart,
        path: Vec<u8>,
        options: FileCopyOptions,
    ) -> Self {
        let target = UploadTargetInfo::new(&options);
        Self {
            upload: UploadState {
                requests: JobRequests::new(id),
                part,
                options,
                path,
                target,
                names: TempOpenAttempts::default(),
                progress: UploadProgress::default(),
                plain: false,
            },
            stage: UploadStage::Finished,
        }
    }

    /// Creates the job that sets the attributes of `temp`, of which `new` is known, and renames
    /// it.
    pub(super) fn finish(
        id: JobId,
        temp: UploadTemp,
        part: UploadPart,
        options: FileCopyOptions,
        new: WrittenFileInfo,
    ) -> Self {
        let target = UploadTargetInfo::of(&temp);
        let mut put = Self::new(id, part, temp.target.0, options);
        put.upload.target = target;
        put.stage = UploadStage::Queued(Box::new(UploadQueuedStage::to_finish(
            new.named(temp.temp.0),
        )));
        put
    }

    /// Starts an attempt.
    pub(super) fn start(&mut self, core: &mut LaneContext) {
        let up = &mut self.upload;
        let job = up.requests.job();
        match up.part {
            UploadPart::Finish { .. } => return self.start_finish(core),
            UploadPart::Sync => {
                self.stage = UploadStage::Queued(Box::new(UploadQueuedStage::to_sync()));
                return core.queue_open(job);
            }
            _ => {}
        }
        up.go_in_place(core);
        core.turns_mut().prefetch();
        if up.options.local_end == LocalEnd::OtherHost && up.target.is_unknown() {
            up.look(core);
            self.stage = UploadStage::Looking;
            return;
        }
        self.read_source(core);
    }

    /// Asks the disk side for the source and its first bytes, and the server for the target, if that
    /// is needed and unknown.
    fn read_source(&mut self, core: &mut LaneContext) {
        let up = &mut self.upload;
        let job = up.requests.job();
        let whole = up.may_go_whole(core);
        if !whole {
            up.look(core);
        }
        let handle = if core.predicts() { 4 } else { Handle::MAX };
        let pack = match up.part {
            UploadPart::Whole { .. } if whole && core.can(ServerCapabilities::ZSTD_FILES) => {
                core.packs_file().then_some(LEAST_FILE)
            }
            UploadPart::Whole { .. } => core.packs_first().then_some(u64::MAX),
            _ => None,
        };
        self.stage = UploadStage::Reading(SourceReadStage::new(pack));
        let request = match &up.part {
            UploadPart::Whole { source } => DiskRequest::OpenSource {
                job,
                path: source.clone(),
                first: match (whole, pack.is_some()) {
                    (true, _) => up.whole_block(core, handle),
                    (false, true) => core.block_to_pack(handle, FIRST),
                    (false, false) => core.block(handle, FIRST),
                },
                sparse: up.may_skip(core),
                pack,
            },
            UploadPart::Head { file, .. } | UploadPart::Range { file, .. } => {
                DiskRequest::Join { job, file: *file }
            }
            UploadPart::Finish { .. } | UploadPart::Sync => return,
        };
        up.requests.ask_disk(core, request);
    }

    /// Starts the last part: opens the temporary if attributes need a handle, otherwise only the
    /// rename is left.
    fn start_finish(&mut self, core: &mut LaneContext) {
        let UploadStage::Queued(queued) = std::mem::replace(&mut self.stage, UploadStage::Finished)
        else {
            return;
        };
        let up = &self.upload;
        let (queued, opens) = queued.for_attributes(up, core);
        if opens {
            core.queue_open(up.requests.job());
            self.stage = UploadStage::Queued(Box::new(queued));
            return;
        }
        self.stage = UploadStage::Naming(Box::new(RenameStage::new(queued.into_new())));
        let _ = self.name(core);
    }

    /// Sends OPEN when the job's turn has come.
    pub(super) fn open(&mut self, core: &mut LaneContext) {
        match std::mem::replace(&mut self.stage, UploadStage::Finished) {
            UploadStage::Queued(queued) => {
                let sending = queued.open(&mut self.upload, core);
                self.stage = UploadStage::Sending(Box::new(sending));
                self.begin(core);
            }
            UploadStage::Probing(mut probing) => {
                probing.open(&mut self.upload, core);
                self.stage = UploadStage::Probing(probing);
            }
            stage => self.stage = stage,
        }
    }

    /// Writes the first block once the handle is known or predicted.
    fn begin(&mut self, core: &mut LaneContext) {
        if let UploadStage::Sending(sending) = &mut self.stage
            && sending.begin(&mut self.upload, core)
        {
            self.finish_data(core);
        }
    }

    /// Sends attributes, fsync and CLOSE once all data have left.
    fn finish_data(&mut self, core: &mut LaneContext) {
        let UploadStage::Sending(sending) = &mut self.stage else {
            return;
        };
        if sending.is_sent(&self.upload, core)
            && let UploadStage::Sending(sending) =
                std::mem::replace(&mut self.stage, UploadStage::Finished)
        {
            let closing = sending.close(&mut self.upload, core);
            self.stage = UploadStage::Closing(Box::new(closing));
        }
    }

    /// Sends the file in one request when its turn has come.
    pub(super) fn go_whole(&mut self, core: &mut LaneContext) {
        match std::mem::replace(&mut self.stage, UploadStage::Finished) {
            UploadStage::Queued(queued) => {
                let tag = queued.send_whole(&mut self.upload, core);
                self.stage = UploadStage::Whole { tag };
            }
            stage => self.stage = stage,
        }
    }

    /// Requests the next piece of the source; false if nothing can be requested now.
    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.stage {
            UploadStage::Sending(sending) => sending.stream(&mut self.upload, core),
            _ => false,
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Result<JobProgress, Misprediction> {
        self.upload.requests.answered();
        match what {
            RequestPurpose::PutFile { len } => return Ok(self.on_put_file(core, len, reply)),
            RequestPurpose::Lstat => self.on_look(core, reply),
            RequestPurpose::Open => self.on_open(core, reply)?,
            _ => {
                let up = &mut self.upload;
                let (ending, sent) = match &mut self.stage {
                    UploadStage::Sending(sending) => sending.on_reply(up, core, what, reply),
                    UploadStage::Closing(closing) => {
                        (closing.on_reply(up, core, what, reply), false)
                    }
                    UploadStage::Naming(naming) => (naming.on_reply(up, core, what, reply), false),
                    UploadStage::Probing(probing) => {
                        probing.on_reply(what);
                        (None, false)
                    }
                    UploadStage::Following(following) => {
                        (following.on_reply(up, core, what, reply), false)
                    }
                    UploadStage::GivingUp(giving_up) => {
                        (giving_up.on_reply(up, core, what, reply), false)
                    }
                    UploadStage::Looking
                    | UploadStage::Reading(_)
                    | UploadStage::Queued(_)
                    | UploadStage::Whole { .. }
                    | UploadStage::Finished => (None, false),
                };
                self.end_if(core, ending);
                if sent {
                    self.finish_data(core);
                }
            }
        }
        Ok(self.settle(core))
    }

    /// True if this attempt is being ended, and another one follows.
    fn starts_over(&self) -> bool {
        matches!(&self.stage, UploadStage::GivingUp(giving_up) if giving_up.starts_over())
    }

    /// Handles the LSTAT of the target.
    fn on_look(&mut self, core: &mut LaneContext, reply: &Reply) {
        let up = &mut self.upload;
        let fifos = core.can(ServerCapabilities::FIFOS);
        match up.target.looked(reply, &up.options, fifos) {
            // What stands at the target counts more than another reason to start over.
            Some(UploadAttemptAbort::Retry(reason)) => self.retry_instead(core, reason),
            ending => self.end_if(core, ending),
        }
        if matches!(self.stage, UploadStage::Looking) {
            return self.read_source(core);
        }
        let up = &self.upload;
        if let UploadStage::Queued(queued) = &mut self.stage
            && queued.target_is_known()
        {
            let job = up.requests.job();
            let decided = up.target.is_direct();
            if core.refusals().in_place_at(&up.path) && up.options.temp_dir.is_none() && !decided {
                self.end(core, UploadAttemptAbort::Retry(UploadRetryReason::InPlace));
                core.tell_in_place(job);
            } else {
                core.queue_open(job);
            }
        }
    }

    fn on_open(&mut self, core: &mut LaneContext, reply: &Reply) -> Result<(), Misprediction> {
        core.note_open(matches!(reply, Reply::Handle(_)));
        let up = &mut self.upload;
        let requests = &up.requests;
        let probed = match &mut self.stage {
            UploadStage::Probing(probing) => {
                let ending = probing.on_open(up, core, reply)?;
                self.end_if(core, ending);
                return Ok(());
            }
            UploadStage::GivingUp(giving_up) => giving_up.is_probe(),
            _ => false,
        };
        let remote = match &mut self.stage {
            UploadStage::Sending(sending) => sending.remote_mut(),
            UploadStage::Closing(closing) => closing.remote_mut(),
            UploadStage::GivingUp(giving_up) => match giving_up.remote_mut() {
                Some(remote) => remote,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        match remote.on_open(requests, core, reply)? {
            OpenResult::Refused(status) => {
                if !probed {
                    self.open_refused(core, &status);
                }
                return Ok(());
            }
            OpenResult::AsPredicted => {
                if let UploadStage::Sending(sending) = &self.stage
                    && !sending.has_end()
                {
                    core.stream(requests.job());
                }
            }
            OpenResult::Known => self.begin(core),
        }
        if !probed {
            let exists = self
                .stage
                .new_file()
                .is_some_and(WrittenFileInfo::is_temporary);
            self.upload.open_allowed(core, exists);
            self.upload.reach(core, FileCopyState::Created);
        }
        Ok(())
    }

    /// Handles a refused OPEN.
    fn open_refused(&mut self, core: &mut LaneContext, status: &Status) {
        let up = &mut self.upload;
        // The temporary belongs to other jobs; the job that renames it also removes it.
        if !up.part.creates_file() {
            let fault = not_reopened(status);
            return self.end(core, UploadAttemptAbort::Failed(fault));
        }
        if let Some(new) = self.stage.new_file_mut() {
            new.is_gone();
        }
        let ending = match up.target.is_direct() {
            true => UploadAttemptAbort::Failed(not_overwritten(status)),
            false => {
                let (job, temp_dir) = (up.requests.job(), up.options.temp_dir.as_ref());
                match up.options.local_end {
                    LocalEnd::File => up.names.refused(core, status, temp_dir),
                    LocalEnd::OtherHost => up.names.refused_once(core, job, status, temp_dir),
                }
            }
        };
        self.end(core, ending);
    }

    fn on_put_file(&mut self, core: &mut LaneContext, len: u64, reply: &Reply) -> JobProgress {
        let Reply::Status(status) = reply else {
            return JobProgress::Continues;
        };
        match self.upload.whole_answered(core, len, status) {
            None => {
                self.stage = UploadStage::Finished;
                JobProgress::Finished
            }
            Some(ending) => {
                self.end(core, ending);
                self.settle(core)
            }
        }
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> JobProgress {
        let again = self.starts_over();
        let up = &mut self.upload;
        up.requests.disk_answered();
        match reply {
            // The next attempt reads the source again, and fails by itself.
            DiskReply::Failed { .. } if again => {}
            DiskReply::Failed { mut fault, .. } => {
                if fault.kind == JobFailureKind::ReadAgain && up.target.is_direct() {
                    up.tell_refused_temporary(core);
                    fault.kind = JobFailureKind::ReadAgainInPlace;
                }
                self.end(core, UploadAttemptAbort::Failed(fault));
            }
            reply => match std::mem::replace(&mut self.stage, UploadStage::Finished) {
                UploadStage::Reading(reading) => {
                    self.stage = match reading.on_disk(up, core, reply) {
                        Ok(queued) => UploadStage::Queued(Box::new(queued)),
                        Err(reading) => UploadStage::Reading(reading),
                    };
                }
                UploadStage::Sending(mut sending) => {
                    let sent = sending.on_disk(up, core, reply);
                    self.stage = UploadStage::Sending(sending);
                    if sent {
                        self.finish_data(core);
                    }
                }
                UploadStage::GivingUp(mut giving_up) => {
                    giving_up.on_disk(up, core, reply);
                    self.stage = UploadStage::GivingUp(giving_up);
                }
                stage => self.stage = stage,
            },
        }
        self.settle(core)
    }

    /// Moves to the next step if nothing is pending: rename, cleanup, or end.
    pub(super) fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        let up = &mut self.upload;
        match &mut self.stage {
            UploadStage::GivingUp(_) => return self.give_up(core),
            UploadStage::Sending(sending) => sending.announce(up, core),
            UploadStage::Closing(closing) => closing.announce(up, core),
            _ => {}
        }
        if !up.requests.are_answered() {
            return JobProgress::Continues;
        }
        match std::mem::replace(&mut self.stage, UploadStage::Finished) {
            UploadStage::Closing(closing) if closing.is_closed() => {
                let naming = closing.into_naming();
                naming.reach_closed(up, core);
                if !up.part.renames() {
                    core.event(LaneEvent::Done(up.job()));
                    return JobProgress::Finished;
                }
                self.stage = UploadStage::Naming(Box::new(naming));
                self.name(core)
            }
            UploadStage::Naming(naming) => {
                naming.reach_closed(up, core);
                self.stage = UploadStage::Naming(naming);
                self.name(core)
            }
            UploadStage::Probing(probing) if probing.is_closed() => {
                up.target.may_be_written();
                up.progress.restart();
                self.start(core);
                JobProgress::Continues
            }
            UploadStage::Following(_) => {
                up.progress.restart();
                self.start(core);
                JobProgress::Continues
            }
            stage => {
                self.stage = stage;
                JobProgress::Continues
            }
        }
    }

    /// Continues with the rename, once all data are confirmed and the file is closed.
    fn name(&mut self, core: &mut LaneContext) -> JobProgress {
        let UploadStage::Naming(naming) = &mut self.stage else {
            return JobProgress::Continues;
        };
        match naming.go_on(&mut self.upload, core) {
            RenameStepResult::Pending => JobProgress::Continues,
            RenameStepResult::Done => {
                self.stage = UploadStage::Finished;
                JobProgress::Finished
            }
        }
    }

    /// Ends the present attempt.
    fn end(&mut self, core: &mut LaneContext, ending: UploadAttemptAbort) {
        match std::mem::replace(&mut self.stage, UploadStage::Finished) {
            UploadStage::GivingUp(mut giving_up) => {
                giving_up.merge(ending);
                self.stage = UploadStage::GivingUp(giving_up);
            }
            stage => {
                let giving_up = UploadCleanup::new(&mut self.upload, core, stage, ending);
                self.stage = UploadStage::GivingUp(Box::new(giving_up));
            }
        }
    }

    fn end_if(&mut self, core: &mut LaneContext, ending: Option<UploadAttemptAbort>) {
        if let Some(ending) = ending {
            self.end(core, ending);
        }
    }

    fn retry_instead(&mut self, core: &mut LaneContext, reason: UploadRetryReason) {
        match &mut self.stage {
            UploadStage::GivingUp(giving_up) => giving_up.retry_instead(reason),
            _ => self.end(core, UploadAttemptAbort::Retry(reason)),
        }
    }

    /// Closes the file, waits for all answers and removes the temporary; then fails or starts over.
    fn give_up(&mut self, core: &mut LaneContext) -> JobProgress {
        let up = &mut self.upload;
        let UploadStage::GivingUp(giving_up) = &mut self.stage else {
            return JobProgress::Continues;
        };
        match giving_up.go_on(up, core) {
            CleanupProgress::Pending => JobProgress::Continues,
            CleanupProgress::Finished(event) => {
                core.event(event);
                self.stage = UploadStage::Finished;
                JobProgress::Finished
            }
            CleanupProgress::Retry(reason) => self.begin_again(core, reason),
        }
    }

    fn begin_again(&mut self, core: &mut LaneContext, reason: UploadRetryReason) -> JobProgress {
        let up = &mut self.upload;
        let job = up.requests.job();
        let in_place = matches!(
            reason,
            UploadRetryReason::Direct(_) | UploadRetryReason::InPlace
        );
        self.stage = UploadStage::Finished;
        if in_place && up.target.replaces_node() {
            let text = "cannot replace the symlink, FIFO or device there: the server refuses a \
                 temporary file in that directory; remove the symlink, FIFO or device, then copy again";
            core.event(LaneEvent::Failed(job, messages::remote(text)));
            return JobProgress::Finished;
        }
        if in_place && matches!(up.part, UploadPart::Head { .. }) {
            if up.options.local_end == LocalEnd::OtherHost {
                up.tell_refused_temporary(core);
            }
            core.event(LaneEvent::Done(job));
            return JobProgress::Finished;
        }
        up.progress.restart();
        match reason {
            UploadRetryReason::Follow => {
                self.stage = UploadStage::Following(FollowSymlinkStage::begin(up, core))
            }
            UploadRetryReason::Probe => {
                self.stage = UploadStage::Probing(WriteProbeStage::default());
                core.queue_open(job);
            }
            UploadRetryReason::Direct(flags) => {
                up.target.write_in_place(flags);
                self.start(core);
            }
            UploadRetryReason::InPlace => {
                let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
                up.target.write_in_place(match up.target.replaced() {
                    Some(_) => flags,
                    None => flags | OpenFlags::CREAT,
                });
                self.start(core);
            }
            UploadRetryReason::NewName | UploadRetryReason::StockRequests => self.start(core),
        }
        JobProgress::Continues
    }

    /// Ends a part of a cut file early, since another lane has completed it.
    pub(super) fn abandon(&mut self, core: &mut LaneContext) -> JobProgress {
        self.end(core, UploadAttemptAbort::Abandoned);
        self.settle(core)
    }

    /// Fails the job, unless the rename was sent: the file may exist then, and only the answer
    /// tells. A complete temporary in the journal stays if `leaving`.
    pub(super) fn cancel(
        &mut self,
        core: &mut LaneContext,
        fault: JobFailure,
        leaving: bool,
    ) -> JobProgress {
        let sent = match &self.stage {
            UploadStage::Whole { .. } => true,
            UploadStage::Naming(naming) => naming.is_sent(),
            _ => false,
        };
        if sent {
            return self.settle(core);
        }
        self.end(core, UploadAttemptAbort::Failed(fault));
        let up = &self.upload;
        let kept = up.part.is_finish() && up.options.keep.is_some();
        if leaving
            && kept
            && let Some(new) = self.stage.new_file_mut()
        {
            new.is_gone();
        }
        self.settle(core)
    }

    /// Returns true if the job is part of a cut file and does not do the rename.
    pub(super) fn is_piece(&self) -> bool {
        self.upload.part.is_piece()
    }

    /// Returns true if the disk side may hold the source open.
    pub(super) fn holds_source(&self) -> bool {
        let open = match &self.stage {
            UploadStage::Queued(queued) => queued.holds_source(),
            UploadStage::Sending(sending) => sending.holds_source(),
            UploadStage::GivingUp(giving_up) => giving_up.holds_source(),
            _ => false,
        };
        open || self.upload.requests.at_disk() > 0
    }

    /// Returns the temporary that may exist now, unless other jobs remove it.
    pub(super) fn temporary(&self) -> Option<(JobId, RemotePath)> {
        let job = self.upload.requests.job();
        if let UploadStage::Whole { tag } = self.stage {
            // A server that was killed meanwhile has left it.
            return Some((job, RemotePath(tagged_name(&self.upload.path, tag))));
        }
        let temp = self.temp().filter(|_| !self.upload.part.is_finish())?;
        Some((job, RemotePath(temp.to_vec())))
    }

    /// Returns the temporary that may exist now.
    pub(super) fn temp(&self) -> Option<&[u8]> {
        self.stage.new_file().and_then(WrittenFileInfo::temp)
    }
}

impl UploadStage {
    fn new_file(&self) -> Option<&WrittenFileInfo> {
        match self {
            Self::Queued(queued) => Some(queued.new_file()),
            Self::Sending(sending) => Some(sending.new_file()),
            Self::Closing(closing) => Some(closing.new_file()),
            Self::Naming(naming) => Some(naming.new_file()),
            Self::GivingUp(giving_up) => Some(giving_up.new_file()),
            _ => None,
        }
    }

    fn new_file_mut(&mut self) -> Option<&mut WrittenFileInfo> {
        match self {
            Self::Queued(queued) => Some(queued.new_file_mut()),
            Self::Sending(sending) => Some(sending.new_file_mut()),
            Self::Closing(closing) => Some(closing.new_file_mut()),
            Self::Naming(naming) => Some(naming.new_file_mut()),
            Self::GivingUp(giving_up) => Some(giving_up.new_file_mut()),
            _ => None,
        }
    }
}
