use sftp::{Attrs, Reply, Request};

use super::files::{CLOSE, DeltaUploadFiles, MODE, WHOSE};
use super::verify::RebuildVerifier;
use super::{DeltaAbort, DeltaFileVersions, DeltaUploadContext, LaneContext, RequestPurpose};
use crate::lane::messages;
use crate::lane::put::{OwnerPreservation, UploadJob, UploadPart, WrittenFileInfo};
use crate::{DiskRequest, FileCopyState, LaneEvent, RemotePath, UploadTemp};

/// Stage in which everything up to CLOSE was sent, and the answers are awaited.
#[derive(Debug)]
pub(super) struct DeltaCloseStage {
    plan: DeltaFileVersions,
    files: DeltaUploadFiles,
    verify: RebuildVerifier,
    /// The temporary has the mode of the basis file.
    mode_set: bool,
    /// Owner of the temporary.
    owner: OwnerPreservation,
}

impl DeltaCloseStage {
    /// Sets the mode of the basis file, unless the source's is kept, and queries the owner of the
    /// new file; both go with the CLOSE, which saves a round trip.
    pub(super) fn begin(
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        plan: DeltaFileVersions,
        mut files: DeltaUploadFiles,
        verify: RebuildVerifier,
    ) -> Self {
        if let Some(handle) = files.new_handle() {
            let handle = handle.as_bytes();
            if !job.options.preserve {
                let attrs = Attrs::with_permissions(plan.old.mode);
                let request = Request::Fsetstat { handle, attrs };
                job.requests
                    .send(core, RequestPurpose::Step(MODE), &request);
            }
            if core.in_order() {
                let request = Request::Fstat { handle };
                job.requests
                    .send(core, RequestPurpose::Step(WHOSE), &request);
            }
        }
        files.close(job, core);
        let source = DiskRequest::CloseSource {
            job: job.requests.job(),
        };
        job.requests.ask_disk(core, source);
        Self {
            plan,
            files,
            verify,
            mode_set: false,
            owner: OwnerPreservation::default(),
        }
    }

    /// Handles the answer to a request.
    pub(super) fn on_reply(&mut self, what: RequestPurpose, reply: &Reply) -> Option<DeltaAbort> {
        match what {
            RequestPurpose::Sums {
                offset,
                len,
                rebuilt: true,
            } => {
                return self
                    .verify
                    .on_sums(&self.plan.rebuild, (offset, len), reply);
            }
            // A mode that could not be set is tried again by name, and then reported.
            RequestPurpose::Step(MODE) => self.mode_set = messages::status(reply).is_ok(),
            RequestPurpose::Step(WHOSE) => self.owner.learn(reply),
            RequestPurpose::Step(CLOSE) => {
                let status = messages::status(reply).err()?;
                let fault = messages::refused(messages::CLOSING, status);
                return Some(DeltaAbort::Failed(fault));
            }
            _ => {}
        }
        None
    }

    /// Sets attributes and final name, as in any other upload, once all data are closed.
    pub(super) fn finish(
        mut self,
        job: &DeltaUploadContext,
        core: &mut LaneContext,
    ) -> Option<UploadJob> {
        let id = job.requests.job();
        core.event(LaneEvent::State(id, FileCopyState::Written));
        let temp = UploadTemp {
            temp: RemotePath(self.files.take_temp()?),
            target: RemotePath(job.path.clone()),
            replaces: true,
            mode: Some(self.plan.old.mode),
            owner: self.plan.old.owner,
        };
        let mut options = job.options.clone();
        // The journal has no entry for this file.
        options.keep = None;
        let attributes = self.plan.meta.attributes;
        let part = UploadPart::Finish {
            attributes,
            cut: None,
            set: false,
        };
        let new = WrittenFileInfo::complete(attributes.mode, self.mode_set, self.owner);
        let mut put = UploadJob::finish(id, temp, part, options, new);
        put.start(core);
        Some(put)
    }

    pub(super) fn files(&self) -> &DeltaUploadFiles {
        &self.files
    }

    pub(super) fn into_files(self) -> DeltaUploadFiles {
        self.files
    }
}
