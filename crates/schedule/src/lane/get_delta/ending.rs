//! Ends the rebuilding of a file: by its rename, or by removing everything.

use sftp::Request;

use super::super::core::{LaneContext, RequestTag};
use super::super::task::TaskStep;
use super::{GetDelta, Stage};
use crate::{DiskRequest, Fault, LaneEvent};

impl GetDelta {
    pub(super) fn finish(&mut self, core: &mut LaneContext) {
        self.stage = Stage::Finishing;
        self.close(core);
        let attributes = self.options.kept(self.attrs.unwrap_or_default());
        let request = DiskRequest::FinishTarget {
            job: self.id,
            size: self.blocks.size,
            attributes,
            preserve: self.options.preserve,
            fsync: self.options.fsync,
            beyond: self.options.beyond.clone(),
        };
        self.ask_disk(core, request);
    }

    pub(super) fn close(&mut self, core: &mut LaneContext) {
        let handle = self.remote.handle.clone();
        if let (Some(handle), false) = (handle, self.remote.closing) {
            self.remote.closing = true;
            let handle = handle.as_bytes();
            self.send(core, RequestTag::Close, &Request::Close { handle });
            core.closes(self.id);
        }
    }

    /// Gives the job up: closes the file, waits for all answers and removes the temporary.
    pub(super) fn give_up(&mut self, core: &mut LaneContext) -> TaskStep {
        core.unwritten = core.unwritten.saturating_sub(self.unwritten);
        self.unwritten = 0;
        self.arriving.clear();
        if !self.remote.opening || core.server.predict {
            self.close(core);
        }
        if self.pending > 0 || self.disk_pending > 0 {
            return TaskStep::Goes;
        }
        if self.holds_target() {
            self.discarding = true;
            self.ask_disk(core, DiskRequest::Discard { job: self.id });
            return TaskStep::Goes;
        }
        core.event(match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Abandoned(self.id),
        });
        TaskStep::Over
    }

    pub(super) fn given_up(&self) -> bool {
        self.fault.is_some() || self.plain
    }

    /// Fails the job, unless the rename is in progress.
    pub(in crate::lane) fn cancel(&mut self, core: &mut LaneContext, fault: Fault) -> TaskStep {
        if self.stage != Stage::Finishing {
            self.fail(fault);
        }
        self.settle(core)
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }
}
