use std::collections::BTreeMap;

use sftp::{Reply, Request};

use super::files::DeltaUploadFiles;
use super::{DeltaAbort, DeltaUploadContext, DeltaUploadStage, LaneContext, RequestPurpose};
use crate::lane::messages::left_temporary;
use crate::lane::task::Misprediction;
use crate::{DiskRequest, LaneEvent};

/// Stage in which the handles are closed, all answers are awaited, and the temporary is removed.
#[derive(Debug)]
pub(super) struct DeltaUploadCleanup {
    end: DeltaAbort,
    files: Option<DeltaUploadFiles>,
    /// Reads of the source without an answer.
    reads: BTreeMap<u64, u64>,
    /// The disk side holds the source open.
    source: bool,
    removing: bool,
}

impl DeltaUploadCleanup {
    /// Gives the job up in `stage`.
    pub(super) fn new(
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        stage: DeltaUploadStage,
        end: DeltaAbort,
    ) -> Self {
        job.requests.withdraw_writes(core);
        let (files, reads, source) = match stage {
            DeltaUploadStage::Looking(looking) => (None, BTreeMap::new(), looking.source.is_some()),
            DeltaUploadStage::Queued(_) => (None, BTreeMap::new(), true),
            DeltaUploadStage::Opening(opening) => (Some(opening.1), BTreeMap::new(), true),
            DeltaUploadStage::Moving(moving) => {
                let (files, reads) = moving.give_up();
                (Some(files), reads, true)
            }
            DeltaUploadStage::Verifying(verifying) => {
                (Some(verifying.into_files()), BTreeMap::new(), true)
            }
            DeltaUploadStage::Closing(closing) => {
                (Some(closing.into_files()), BTreeMap::new(), false)
            }
            DeltaUploadStage::Finishing(_)
            | DeltaUploadStage::GivingUp(_)
            | DeltaUploadStage::Finished => (None, BTreeMap::new(), false),
        };
        Self {
            end,
            files,
            reads,
            source,
            removing: false,
        }
    }

    /// Adds a later reason.
    pub(super) fn merge(&mut self, end: DeltaAbort) {
        self.end.merge(end);
    }

    /// Returns true if the file is to be uploaded plainly.
    pub(super) fn is_plain(&self) -> bool {
        self.end == DeltaAbort::FullCopy
    }

    /// Records that the disk side has opened the source, and if it holds it open.
    pub(super) fn source_opened(&mut self, open: bool) {
        self.source = open;
    }

    /// Handles the answer to a request.
    pub(super) fn on_reply(
        &mut self,
        job: &DeltaUploadContext,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Result<Option<DeltaAbort>, Misprediction> {
        match (&mut self.files, what) {
            (Some(files), RequestPurpose::RemoveTemp) => {
                if let Some(temp) = files.take_temp() {
                    self.on_removed(job, core, &temp, reply);
                }
                Ok(None)
            }
            (Some(files), what) => files.on_reply(core, what, reply),
            (None, _) => Ok(None),
        }
    }

    fn on_removed(
        &mut self,
        job: &DeltaUploadContext,
        core: &mut LaneContext,
        temp: &[u8],
        reply: &Reply,
    ) {
        let Some(text) = left_temporary(temp, reply) else {
            return;
        };
        match &mut self.end {
            DeltaAbort::Failed(fault) => fault.what.push_str(&format!("; {text}")),
            DeltaAbort::FullCopy => core.event(LaneEvent::Warning(job.requests.job(), text)),
        }
    }

    /// Handles data of the source, which are not needed any more.
    pub(super) fn on_read(&mut self, core: &mut LaneContext, offset: u64) {
        if let Some(asked) = self.reads.remove(&offset) {
            core.end_reading(asked);
        }
    }

    /// Cleans up; returns the last event once that is done.
    pub(super) fn go_on(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
    ) -> Option<LaneEvent> {
        let id = job.requests.job();
        if let Some(files) = &mut self.files {
            files.close(job, core);
        }
        if std::mem::take(&mut self.source) {
            let request = DiskRequest::CloseSource { job: id };
            job.requests.ask_disk(core, request);
        }
        if !job.requests.are_answered() {
            return None;
        }
        core.end_reading(self.reads.values().sum());
        self.reads.clear();
        if let Some(files) = &self.files
            && let (true, false, Some(path)) = (files.is_created(), self.removing, files.temp())
        {
            self.removing = true;
            let request = Request::Remove { path };
            job.requests
                .send(core, RequestPurpose::RemoveTemp, &request);
            return None;
        }
        Some(
            match std::mem::replace(&mut self.end, DeltaAbort::FullCopy) {
                DeltaAbort::Failed(fault) => LaneEvent::Failed(id, fault),
                DeltaAbort::FullCopy => LaneEvent::Abandoned(id),
            },
        )
    }

    pub(super) fn holds_source(&self) -> bool {
        self.source
    }

    pub(super) fn temp(&self) -> Option<&[u8]> {
        self.files.as_ref().and_then(DeltaUploadFiles::temp)
    }
}
