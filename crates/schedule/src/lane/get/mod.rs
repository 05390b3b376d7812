//! Downloads one file, or a range of one: one type for each stage.
//!
//! ```text
//! Looking -> Queued <-> Reading -> Finishing -> Reported -> over
//!       `--> Whole --------------------------------> over
//! ```

mod data;
mod finishing;
mod giving_up;
mod whole;

use sftp::{Attrs, OpenFlags, Reply, Request};

use self::data::{DownloadProgress, DownloadReadStage};
use self::finishing::DownloadFinishStage;
use self::giving_up::DownloadCleanup;
use self::whole::WholeFileStage;
use super::context::LaneContext;
use super::job_requests::JobRequests;
use super::messages::{OPENING, answered, of_source, refused, remote};
use super::put::{LONGEST_PATH, WHOLE};
use super::queues::LaneQueueKind;
use super::remote_file::{OpenResult, RemoteFile};
use super::request_purpose::RequestPurpose;
use super::server::ServerCapabilities;
use super::task::{JobProgress, Misprediction, attributes};
use crate::{
    Attributes, ByteRange, DiskReply, DiskRequest, EntryKind, FileCopyOptions, FileCopyState,
    JobFailure, JobId, LaneEvent, LocalEnd, LocalTargetPath,
};

/// Bytes of a relayed download that the buffer for the other host has not taken, at most. It takes
/// them at once while it has room; hundreds of files may wait for room at the same time.
const MOST_UNTAKEN: u64 = 256 << 10;
/// Largest possible file size in bytes: offsets are signed (off_t).
const LARGEST: u64 = i64::MAX as u64;

/// Downloads one file, or a range of it into a target that other lanes fill as well.
#[derive(Debug)]
pub(super) struct DownloadJob {
    download: DownloadState,
    stage: DownloadStage,
}

/// State of a download job that is common to all its stages.
#[derive(Debug)]
struct DownloadState {
    requests: JobRequests,
    /// Job that created the target, and the range to read.
    part: Option<(JobId, ByteRange)>,
    source: Vec<u8>,
    target: LocalTargetPath,
    options: FileCopyOptions,
    /// Latest attributes, from the listing, STAT or FSTAT.
    attrs: Option<Attributes>,
    /// The disk side was asked to create or to join the target.
    created: bool,
    /// Received bytes that the disk has not confirmed.
    unwritten: u64,
    /// Ask the server for holes.
    sparse: bool,
}

/// Stage of a download, with the data that only this stage has.
#[derive(Debug)]
enum DownloadStage {
    /// STAT shows what the file is.
    Looking,
    /// The file is sent in one message, and stored in one operation.
    Whole(WholeFileStage),
    /// The job waits for its turn to open the file.
    Queued(Box<DownloadProgress>),
    /// The file is open, or OPEN was sent.
    Reading(Box<DownloadReadStage>),
    /// All data have come: the target is finished, and CLOSE is answered.
    Finishing(DownloadFinishStage),
    /// The file is closed, and the target is discarded. Answers may come after the end was
    /// reported.
    GivingUp(DownloadCleanup),
    /// The end was reported; remaining answers are ignored.
    Reported,
}

impl DownloadJob {
    pub(super) fn new(
        id: JobId,
        source: Vec<u8>,
        target: LocalTargetPath,
        known: Option<Attributes>,
        options: FileCopyOptions,
    ) -> Self {
        // A listing describes a symlink itself, but only its target counts.
        let attrs = known.filter(|k| k.size.is_some() && k.kind() == EntryKind::File);
        Self {
            download: DownloadState {
                requests: JobRequests::new(id),
                part: None,
                source,
                target,
                sparse: options.sparse,
                options,
                attrs,
                created: false,
                unwritten: 0,
            },
            stage: DownloadStage::Looking,
        }
    }

    /// Creates the download of a range of a file.
    pub(super) fn range(
        id: JobId,
        part: (JobId, ByteRange),
        source: Vec<u8>,
        known: Attributes,
        options: FileCopyOptions,
    ) -> Self {
        let mut get = Self::new(id, source, LocalTargetPath::default(), None, options);
        get.download.part = Some(part);
        get.download.attrs = Some(known);
        get
    }

    /// Starts the download. A file of unknown type is checked by STAT first, since OPEN of a FIFO
    /// would block the server forever.
    pub(super) fn start(&mut self, core: &mut LaneContext) {
        match self.download.may_go_whole(core) {
            true => {
                core.turns_mut()
                    .push(LaneQueueKind::Wholes, self.download.job());
                self.stage = DownloadStage::Whole(WholeFileStage::Queued);
            }
            false => self.start_plainly(core),
        }
    }

    /// Starts the download in several requests.
    fn start_plainly(&mut self, core: &mut LaneContext) {
        if self.download.attrs.is_some() {
            return self.queue(core);
        }
        let path = &self.download.source;
        let request = Request::Stat { path };
        self.download
            .requests
            .send(core, RequestPurpose::Lstat, &request);
        self.stage = DownloadStage::Looking;
    }

    fn queue(&mut self, core: &mut LaneContext) {
        let first = self.download.part.map_or(0, |(_, span)| span.offset);
        self.stage = DownloadStage::Queued(Box::new(DownloadProgress::from(first)));
        core.queue_open(self.download.job());
    }

    /// Sends OPEN when the job's turn has come.
    pub(super) fn open(&mut self, core: &mut LaneContext) {
        match std::mem::replace(&mut self.stage, DownloadStage::Reported) {
            DownloadStage::Queued(data) => {
                let load = &mut self.download;
                let (path, attrs) = (load.source.as_slice(), Attrs::default());
                let requests = &mut load.requests;
                let remote = RemoteFile::open(requests, core, path, OpenFlags::READ, attrs);
                let mut reading = DownloadReadStage::new(remote, *data);
                reading.begin(load, core);
                self.stage = DownloadStage::Reading(Box::new(reading));
            }
            stage => self.stage = stage,
        }
    }

    /// Sends the request for the whole file when the job's turn has come.
    pub(super) fn go_whole(&mut self, core: &mut LaneContext) {
        if let DownloadStage::Whole(WholeFileStage::Queued) = self.stage {
            self.download.ask_whole(core);
            self.stage = DownloadStage::Whole(WholeFileStage::RequestSent);
        }
    }

    /// Sends the next READ, or CLOSE after the last; false if nothing can be sent now.
    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.stage {
            DownloadStage::Reading(reading) => reading.stream(&mut self.download, core),
            _ => false,
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: Reply,
    ) -> Result<JobProgress, Misprediction> {
        let load = &mut self.download;
        if !matches!(reply, Reply::Data { last: false, .. }) {
            load.requests.answered();
        }
        match what {
            RequestPurpose::Lstat => self.on_look(core, &reply),
            RequestPurpose::Open => self.on_open(core, &reply)?,
            RequestPurpose::Fstat => {
                let fault = match &mut self.stage {
                    DownloadStage::Reading(reading) => reading.on_stat(load, core, &reply),
                    _ => load.on_stat(core, &reply),
                };
                self.fail_if(fault);
            }
            RequestPurpose::SizeAgain => {
                if let DownloadStage::Reading(reading) = &mut self.stage {
                    let fault = reading.on_size_again(load, &reply);
                    self.fail_if(fault);
                }
            }
            RequestPurpose::Read { offset, len } => self.on_read(core, (offset, len), reply),
            RequestPurpose::ReadPacked { offset, len } => {
                core.answered_packed(&reply);
                self.on_read(core, (offset, len), reply);
            }
            RequestPurpose::GetFile { pack } => self.on_get_file(core, pack, reply),
            // All data have arrived; the result of closing a read handle does not matter.
            RequestPurpose::Close => match &mut self.stage {
                DownloadStage::Reading(reading) => reading.remote_mut().closed(),
                DownloadStage::Finishing(finishing) => finishing.closed(),
                _ => {}
            },
            _ => {}
        }
        Ok(self.settle(core))
    }

    fn on_look(&mut self, core: &mut LaneContext, reply: &Reply) {
        match (&self.stage, reply) {
            (DownloadStage::Looking, Reply::Attrs(attrs)) => {
                self.open_if_regular(core, attributes(attrs));
            }
            (_, Reply::Status(status)) => self.fail(of_source(answered(status))),
            _ => {}
        }
    }

    /// Opens the file if it is a regular one, and fails the job otherwise.
    fn open_if_regular(&mut self, core: &mut LaneContext, attrs: Attributes) {
        if !is_regular(&attrs) {
            let what = match attrs.kind() {
                EntryKind::Directory => "it is a directory: use -r to copy it",
                _ => "not a regular file",
            };
            self.fail(remote(what));
        } else {
            self.download.attrs = Some(attrs);
            self.queue(core);
        }
    }

    fn on_open(&mut self, core: &mut LaneContext, reply: &Reply) -> Result<(), Misprediction> {
        let load = &mut self.download;
        let remote = match &mut self.stage {
            DownloadStage::Reading(reading) => reading.remote_mut(),
            DownloadStage::GivingUp(giving_up) => match giving_up.remote_mut() {
                Some(remote) => remote,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let answer = remote.on_open(&load.requests, core, reply)?;
        let DownloadStage::Reading(reading) = &mut self.stage else {
            return Ok(());
        };
        match answer {
            OpenResult::AsPredicted => {}
            OpenResult::Known => reading.begin(load, core),
            OpenResult::Refused(status) => {
                self.fail(refused(OPENING, &status));
                return Ok(());
            }
        }
        load.create_target(core);
        Ok(())
    }

    fn on_read(&mut self, core: &mut LaneContext, range: (u64, u32), reply: Reply) {
        let fault = match &mut self.stage {
            DownloadStage::Reading(reading) => {
                reading.on_read(&mut self.download, core, range, reply)
            }
            _ => giving_up::refusal(&reply),
        };
        self.fail_if(fault);
    }

    fn on_get_file(&mut self, core: &mut LaneContext, pack: bool, reply: Reply) {
        match reply {
            Reply::File(file) => {
                DownloadState::note_packed(core, pack, &file);
                if !matches!(self.stage, DownloadStage::Whole(_)) {
                    return;
                }
                let attrs = attributes(&file.attrs);
                let Some(data) = file.data else {
                    return self.open_if_regular(core, attrs);
                };
                let len = file.packed.map_or(data.len() as u64, u64::from);
                // If it is short, the file shrank meanwhile, or the answer is wrong: READs and a
                // second size decide.
                if !is_regular(&attrs) || attrs.size.is_some_and(|size| len < size) {
                    return self.open_if_regular(core, attrs);
                }
                self.download.store(core, attrs, data, file.packed);
                self.stage = DownloadStage::Whole(WholeFileStage::Storing);
            }
            Reply::Status(status) => match self.download.whole_refused(&status) {
                Some(fault) => self.fail(fault),
                None if matches!(self.stage, DownloadStage::Whole(_)) => self.start_plainly(core),
                None => {}
            },
            _ => {}
        }
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> JobProgress {
        let load = &mut self.download;
        load.requests.disk_answered();
        let job = load.job();
        match reply {
            DiskReply::Created { .. } | DiskReply::Adopted { .. } => {
                core.event(LaneEvent::State(job, FileCopyState::Created));
            }
            DiskReply::Written { len, offset, .. } => {
                load.tell_written(core, offset, len);
                let len = load.wrote(core, len);
                core.event(LaneEvent::Progress(job, len));
                if load.options.local_end == LocalEnd::OtherHost {
                    core.stream(job);
                }
            }
            DiskReply::Skipped { offset, len, .. } => {
                load.tell_written(core, offset, len);
                core.event(LaneEvent::Progress(job, len));
            }
            DiskReply::Finished { stored, .. } => {
                let renamed = !stored.in_place;
                stored.events(job).for_each(|event| core.event(event));
                load.finished(core, renamed);
                match &mut self.stage {
                    DownloadStage::Whole(whole) => *whole = WholeFileStage::Stored,
                    DownloadStage::Finishing(finishing) => finishing.finished(),
                    _ => {}
                }
            }
            DiskReply::Failed { fault, .. } => self.fail(fault),
            _ => {}
        }
        self.settle(core)
    }

    /// Moves to the next stage, if nothing is pending.
    pub(super) fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        let load = &mut self.download;
        match std::mem::replace(&mut self.stage, DownloadStage::Reported) {
            DownloadStage::Reading(mut reading) if reading.is_complete(load) => {
                self.stage = match reading.end_is_sure(load, core) {
                    true => {
                        reading.remote_mut().close(&mut load.requests, core);
                        DownloadStage::Finishing(reading.finish(load, core))
                    }
                    false => DownloadStage::Reading(reading),
                };
            }
            // CLOSE was sent after the READs for the stated size, but the file turned out longer.
            DownloadStage::Reading(reading)
                if reading.is_closed() && load.requests.at_server() == 0 =>
            {
                self.stage = DownloadStage::Queued(Box::new(reading.into_data()));
                core.queue_open(load.job());
            }
            stage => self.stage = stage,
        }
        let load = &mut self.download;
        let end = match &mut self.stage {
            DownloadStage::Finishing(finishing) => finishing
                .is_over(load)
                .then_some(LaneEvent::Done(load.job())),
            DownloadStage::Whole(WholeFileStage::Stored) => load
                .requests
                .are_answered()
                .then_some(LaneEvent::Done(load.job())),
            DownloadStage::GivingUp(giving_up) => giving_up.go_on(load, core),
            _ => None,
        };
        let mut told = match &self.stage {
            DownloadStage::GivingUp(giving_up) => giving_up.is_told(),
            stage => matches!(stage, DownloadStage::Reported),
        };
        if let Some(event) = end {
            core.event(event);
            if !told {
                self.stage = DownloadStage::Reported;
                told = true;
            }
        }
        match told && self.download.requests.are_answered() {
            true => JobProgress::Finished,
            false => JobProgress::Continues,
        }
    }

    /// Fails the job after cleaning up.
    pub(super) fn cancel(&mut self, core: &mut LaneContext, fault: JobFailure) -> JobProgress {
        self.fail(fault);
        self.settle(core)
    }

    /// Ends a part early, since another lane has completed it.
    pub(super) fn abandon(&mut self, core: &mut LaneContext) -> JobProgress {
        self.give_up(None);
        self.settle(core)
    }

    fn fail(&mut self, fault: JobFailure) {
        self.give_up(Some(fault));
    }

    fn fail_if(&mut self, fault: Option<JobFailure>) {
        if fault.is_some() {
            self.give_up(fault);
        }
    }

    /// Gives the job up: it fails, or was abandoned if there is no fault.
    fn give_up(&mut self, fault: Option<JobFailure>) {
        match std::mem::replace(&mut self.stage, DownloadStage::Reported) {
            DownloadStage::Reported => {}
            DownloadStage::GivingUp(mut giving_up) => {
                giving_up.merge(fault);
                self.stage = DownloadStage::GivingUp(giving_up);
            }
            stage => {
                self.stage = DownloadStage::GivingUp(match stage {
                    DownloadStage::Reading(reading) => {
                        DownloadCleanup::new(Some(reading.into_remote()), fault)
                    }
                    DownloadStage::Finishing(finishing) => {
                        let released = self.download.part.is_some() && self.download.created;
                        let target = (finishing.is_finished(), released);
                        DownloadCleanup::of_finished(finishing.into_remote(), fault, target)
                    }
                    _ => DownloadCleanup::new(None, fault),
                });
            }
        }
    }

    /// Returns true if the job downloads a range for another job.
    pub(super) fn is_part(&self) -> bool {
        self.download.part.is_some()
    }

    /// Returns true if the disk side holds a target for the job.
    pub(super) fn holds_target(&self) -> bool {
        let held = match &self.stage {
            DownloadStage::Finishing(finishing) => !finishing.is_finished(),
            DownloadStage::GivingUp(giving_up) => giving_up.holds_target(),
            DownloadStage::Reported => false,
            _ => true,
        };
        held && self.download.created
    }
}

/// Returns true for a regular file, or if the server omits the type.
fn is_regular(attrs: &Attributes) -> bool {
    attrs.mode.is_none_or(|m| m & 0o170_000 == 0) || attrs.kind() == EntryKind::File
}

impl DownloadState {
    fn job(&self) -> JobId {
        self.requests.job()
    }

    fn size(&self) -> u64 {
        self.attrs.and_then(|a| a.size).unwrap_or(0)
    }

    /// Returns the end of the range, unless the file ends earlier.
    fn limit(&self) -> Option<u64> {
        self.part.and_then(|(_, span)| span.end())
    }

    /// Handles the attributes of the open file.
    fn on_stat(&mut self, core: &mut LaneContext, reply: &Reply) -> Option<JobFailure> {
        let seen = match reply {
            Reply::Attrs(attrs) => attributes(attrs),
            _ => Attributes::default(),
        };
        let mut fault = None;
        if let Some(size) = seen.size {
            self.attrs = Some(seen);
            fault = (size > self.options.most.unwrap_or(LARGEST)).then(|| {
                remote(format!(
                    "the server reports an impossible size of {size} bytes (SFTP protocol error)"
                ))
            });
        }
        if self.part.is_some() {
            core.event(LaneEvent::Attributes(self.job(), seen));
        }
        fault
    }

    /// Reports the source's attributes if it is no longer as it was when it was opened. One that grew
    /// is most likely a log: another copy would find it changed again.
    fn compare_version(&self, core: &mut LaneContext, reply: &Reply) {
        let (Reply::Attrs(attrs), Some(opened)) = (reply, self.attrs) else {
            return;
        };
        let version = |of: Attributes| {
            let nanoseconds = of.nanoseconds.map(|(_, modified)| modified);
            (of.size, of.times.map(|(_, modified)| modified), nanoseconds)
        };
        let seen = attributes(attrs);
        if seen.size > opened.size {
            core.event(LaneEvent::SourceGrew(self.job()));
        } else if version(seen) != version(opened) {
            core.event(LaneEvent::Attributes(self.job(), seen));
        }
    }

    /// Makes the disk side create the target or join it, once.
    fn create_target(&mut self, core: &mut LaneContext) {
        if std::mem::replace(&mut self.created, true) {
            return;
        }
        let job = self.job();
        let request = match self.part {
            Some((file, _)) => DiskRequest::Join { job, file },
            None => DiskRequest::CreateTarget {
                job,
                target: self.target.clone(),
                inplace: self.options.inplace,
                size: self.attrs.and_then(|a| a.size),
                keep: self.options.keep.clone(),
                stays: false,
                sparse: self.options.sparse,
            },
        };
        self.requests.ask_disk(core, request);
    }

    /// Makes the disk side write data that take `len` bytes in the file.
    fn write(&mut self, core: &mut LaneContext, request: DiskRequest) {
        self.requests.ask_disk(core, request);
    }

    /// Counts `len` received bytes.
    fn received(&mut self, core: &mut LaneContext, len: u64) {
        self.unwritten += len;
        if self.options.local_end == LocalEnd::File {
            core.received(len);
        }
    }

    /// Returns true if the next READ waits for the upload of the file to another host.
    fn waits_for_upload(&self, core: &LaneContext) -> bool {
        let most = core.config().unwritten.min(MOST_UNTAKEN);
        self.options.local_end == LocalEnd::OtherHost && self.unwritten >= most
    }

    /// Counts bytes that the disk has written; returns those that were counted as received.
    fn wrote(&mut self, core: &mut LaneContext, len: u64) -> u64 {
        let len = len.min(self.unwritten);
        self.unwritten -= len;
        if self.options.local_end == LocalEnd::File {
            core.wrote(len);
        }
        len
    }

    fn tell_written(&self, core: &mut LaneContext, offset: u64, len: u64) {
        if self.part.is_some() {
            core.event(LaneEvent::Written(self.job(), offset, len));
        }
    }

    /// Reports that the target has its final name, or is complete.
    fn finished(&mut self, core: &mut LaneContext, renamed: bool) {
        let job = self.job();
        let len = self.wrote(core, self.unwritten);
        if len > 0 {
            core.event(LaneEvent::Progress(job, len));
        }
        core.event(LaneEvent::State(job, FileCopyState::Written));
        core.event(LaneEvent::State(job, FileCopyState::Closed));
        if self.options.fsync {
            core.event(LaneEvent::State(job, FileCopyState::Synced));
        }
        if renamed {
            core.event(LaneEvent::State(job, FileCopyState::Renamed));
        }
    }

    fn warn_if_shrunk(&self, core: &mut LaneContext, end: u64) {
        if end < self.size() {
            core.event(LaneEvent::SourceShrank(self.job()));
        }
    }

    /// Makes the disk side finish the target, of `size` bytes.
    fn finish_target(&mut self, core: &mut LaneContext, size: u64) {
        self.warn_if_shrunk(core, size);
        let request = DiskRequest::FinishTarget {
            job: self.job(),
            size,
            attributes: self.options.kept(self.attrs.unwrap_or_default()),
            preserve: self.options.preserve,
            fsync: self.options.fsync,
            beyond: self.options.beyond.clone(),
        };
        self.requests.ask_disk(core, request);
    }
}
