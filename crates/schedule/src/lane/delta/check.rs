//! Verifies that the rebuilt file equals the source: the basis file may have changed between its
//! sums and its copy, the source between its sums and the sent data, and a server may be wrong.

use sftp::blocks::SumKind;
use sftp::{Attrs, Reply, Request};

use super::{DeltaUpload, MODE, Stage, WHOSE};
use crate::delta::{ASKED, SEGMENT};
use crate::lane::core::{LaneContext, RequestTag};
use crate::lane::put::Put;
use crate::lane::task::TaskStep;
use crate::{DiskRequest, FileState, LaneEvent, RemotePath, Temp};

impl DeltaUpload {
    /// Records that a range was sent, or that its copy was requested.
    pub(super) fn note_sent(&mut self, mut at: u64, len: u64) {
        let end = at + len;
        while at < end {
            let segment = at / SEGMENT * SEGMENT;
            let size = SEGMENT.min(self.size() - segment);
            let to = end.min(segment + SEGMENT);
            let unsent = self.checked.unsent.entry(segment).or_insert(size);
            *unsent = unsent.saturating_sub(to - at);
            if *unsent == 0 {
                self.checked.ready.push_back(segment);
            }
            at = to;
        }
    }

    /// Requests the sums of a complete segment of the temporary; false if there is none.
    pub(super) fn ask_ready(&mut self, core: &mut LaneContext) -> bool {
        let Some(handle) = self.handles.new.clone() else {
            return false;
        };
        if self.checked.in_flight >= ASKED {
            return false;
        }
        let Some(offset) = self.checked.ready.pop_front() else {
            return false;
        };
        let len = SEGMENT.min(self.size() - offset);
        self.checked.asked += len;
        self.checked.in_flight += 1;
        self.ask_sums(core, SumKind::Strong, handle.as_bytes(), (offset, len));
        true
    }

    /// Requests the sums of the remaining segments.
    pub(super) fn ask_next(&mut self, core: &mut LaneContext) -> bool {
        let any = self.ask_ready(core);
        if self.checked.asked >= self.size() && core.server.in_order {
            self.end(core);
            return false;
        }
        any
    }

    pub(super) fn on_checked(
        &mut self,
        core: &mut LaneContext,
        offset: u64,
        len: u64,
        reply: &Reply,
    ) {
        self.checked.in_flight -= 1;
        let own = self.own.remove(&offset).unwrap_or_default();
        let same = match reply {
            Reply::Sums(sums) if self.is_whole(sums, SumKind::Strong, len) => {
                let (there, _) = sums.as_chunks::<16>();
                there == own
            }
            _ => false,
        };
        self.plain |= !same;
        let all = self.checked.asked >= self.size() && self.checked.in_flight == 0;
        if all && !self.given_up() && matches!(self.stage, Stage::Checking) {
            self.end(core);
        }
    }

    /// Sends CLOSE after the last request for sums.
    fn end(&mut self, core: &mut LaneContext) {
        self.stage = Stage::Closing;
        self.set_mode(core);
        self.close(core);
        if std::mem::take(&mut self.source_open) {
            self.ask_disk(core, DiskRequest::CloseSource { job: self.id });
        }
    }

    /// Sets the mode of the basis file, unless the source's is kept, and queries the owner of the
    /// new file; both go with the CLOSE, which saves a round trip.
    fn set_mode(&mut self, core: &mut LaneContext) {
        let mode = self.old.map(|old| old.mode);
        if let (Some(mode), Some(handle), false) =
            (mode, self.handles.new.clone(), self.options.preserve)
        {
            let (handle, attrs) = (handle.as_bytes(), Attrs::with_permissions(mode));
            let request = Request::Fsetstat { handle, attrs };
            self.send(core, RequestTag::Step(MODE), &request);
        }
        if let Some(handle) = self.handles.new.clone().filter(|_| core.server.in_order) {
            let handle = handle.as_bytes();
            self.send(core, RequestTag::Step(WHOSE), &Request::Fstat { handle });
        }
    }

    /// Sets attributes and final name, as in any other upload, once all data are closed.
    pub(super) fn finish(&mut self, core: &mut LaneContext) -> TaskStep {
        self.reach(core, FileState::Written);
        let Some(temp) = self.temp.take() else {
            core.event(LaneEvent::Abandoned(self.id));
            return TaskStep::Over;
        };
        let temp = Temp {
            temp: RemotePath(temp),
            target: RemotePath(self.path.clone()),
            replaces: true,
            mode: self.old.map(|old| old.mode),
            owner: self.old.and_then(|old| old.owner),
        };
        let mut options = self.options.clone();
        // The journal has no entry for this file.
        options.keep = None;
        let mut put = Put::finish(self.id, temp, self.meta.attributes, (None, false), options);
        put.attempt.mode_set = self.mode_set;
        put.attempt.owner = self.owner;
        put.start(core);
        self.stage = Stage::Finishing(Box::new(put));
        TaskStep::Goes
    }
}
