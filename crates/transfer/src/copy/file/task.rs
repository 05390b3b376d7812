//! State of one file of the copy.

use std::sync::Arc;

use schedule::journal::SourceId;
use schedule::{Attributes, FileState, Xattrs};

use super::{FileTask, SharedFile};
use crate::copy::local_ops::LocalOps;
use crate::copy::relayed::RelayedFileJobs;
use crate::copy::resume::ResumeTask;
use crate::report::EscapedName;
use crate::sums::FileSums;

impl FileTask {
    /// Name of the source for messages.
    pub(in crate::copy) fn source_name(&self) -> &EscapedName {
        &self.source_name
    }

    pub(in crate::copy) fn source(&self) -> &[u8] {
        &self.source
    }

    pub(in crate::copy) fn target(&self) -> &[u8] {
        &self.target
    }

    /// Name of the source for messages.
    pub(in crate::copy) fn name(&self) -> &EscapedName {
        &self.source_name
    }

    pub(in crate::copy) fn attributes(&self) -> Option<Attributes> {
        self.attributes
    }

    /// Identity and size of a local source as the walk saw it.
    pub(in crate::copy) fn identity(&self) -> Option<SourceId> {
        self.identity
    }

    pub(in crate::copy) fn size(&self) -> Option<u64> {
        self.size
    }

    /// Bytes that the receiver has confirmed.
    pub(in crate::copy) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Bytes that this run has moved and the receiver has confirmed.
    pub(in crate::copy) fn moved(&self) -> u64 {
        self.confirmed.saturating_sub(self.resume.taken())
    }

    /// Takes back the confirmed bytes of a copy that starts again; returns their number.
    pub(in crate::copy) fn take_back(&mut self) -> u64 {
        std::mem::take(&mut self.confirmed)
    }

    /// Work on a temporary that other processes write as well.
    pub(in crate::copy) fn shared(&self) -> Option<SharedFile> {
        self.shared
    }

    pub(in crate::copy) fn resume(&self) -> &ResumeTask {
        &self.resume
    }

    pub(in crate::copy) fn resume_mut(&mut self) -> &mut ResumeTask {
        &mut self.resume
    }

    /// Notes that an earlier run has stored all `size` bytes.
    pub(in crate::copy) fn was_stored(&mut self, size: u64) {
        self.resume.takes(size);
        self.confirmed = size;
        self.state = Some(FileState::Renamed);
    }

    /// Notes the state that the target has reached.
    pub(in crate::copy) fn reached(&mut self, state: FileState) {
        self.state = Some(state);
        self.synced |= state == FileState::Synced;
    }

    /// True if the file was made durable before the rename.
    pub(in crate::copy) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Notes that the file is written under its final name.
    pub(in crate::copy) fn goes_in_place(&mut self) {
        self.in_place = true;
    }

    /// Notes bytes that were taken from the basis file.
    pub(in crate::copy) fn reuses(&mut self, bytes: u64) {
        self.reused += bytes;
    }

    /// Notes that the only complete copy is at `path`; empty once it has its final name.
    pub(in crate::copy) fn strands(&mut self, path: Vec<u8>) {
        self.stranded = Some(path).filter(|path| !path.is_empty());
    }

    /// Name of the only complete copy, if it is not the final one.
    pub(in crate::copy) fn stranded(&self) -> Option<&[u8]> {
        self.stranded.as_deref()
    }

    /// Notes the attributes of a local source that was opened.
    pub(in crate::copy) fn opened_as(&mut self, attributes: Attributes) {
        self.opened = Some(attributes);
    }

    /// True if a local source differs from the state in which it was opened (size or modification
    /// time). The data read may then mix two states that never existed together. True once at most.
    pub(in crate::copy) fn has_changed(&mut self, local: &dyn LocalOps) -> bool {
        let Some(opened) = self.opened.take() else {
            return false;
        };
        let state = |of: Attributes| {
            let nanoseconds = of.nanoseconds.map(|(_, modified)| modified);
            (of.size, of.times.map(|(_, modified)| modified), nanoseconds)
        };
        // A removed file was complete when it was read.
        let now = local.stat(&self.source);
        now.is_ok_and(|now| state(now.attributes) != state(opened))
    }

    pub(in crate::copy) fn set_sums(&mut self, sums: Option<Arc<FileSums>>) {
        self.sums = sums;
    }

    pub(in crate::copy) fn take_sums(&mut self) -> Option<Arc<FileSums>> {
        self.sums.take()
    }

    pub(in crate::copy) fn set_xattrs(&mut self, xattrs: Option<Box<Xattrs>>) {
        self.beyond.xattrs = xattrs;
    }

    /// True at the first call, after which extended attributes count as queried.
    pub(in crate::copy) fn begins_xattrs(&mut self) -> bool {
        !std::mem::replace(&mut self.xattrs_asked, true)
    }

    pub(in crate::copy) fn relay(&mut self) -> Option<&mut RelayedFileJobs> {
        self.relay.as_mut()
    }

    pub(in crate::copy) fn set_relay(&mut self, relay: RelayedFileJobs) {
        self.relay = Some(relay);
    }

    /// Number of repeated copies.
    pub(in crate::copy) fn repeats(&self) -> u8 {
        self.repeats
    }

    /// True if the file was copied again because its verification failed.
    pub(in crate::copy) fn was_repaired(&self) -> bool {
        self.repeats > u8::from(self.changed)
    }

    /// True if the file may be copied again because its source has changed. Data written to a
    /// device or a FIFO cannot be sent again.
    pub(in crate::copy) fn may_follow_change(&self) -> bool {
        !self.changed && !self.in_place
    }

    /// Prepares the file to be copied again because its source has changed; returns the number of
    /// confirmed bytes that become invalid.
    pub(in crate::copy) fn follow_change(&mut self) -> u64 {
        self.changed = true;
        self.repeat()
    }

    /// Prepares the file to be copied again, over the first copy; returns the number of confirmed
    /// bytes that become invalid.
    pub(in crate::copy) fn repeat(&mut self) -> u64 {
        self.repeats += 1;
        self.relay = None;
        self.guess = None;
        self.state = None;
        self.in_place = false;
        self.synced = false;
        self.stranded = None;
        self.sums = None;
        self.reused = 0;
        self.resume.start_over();
        // The source may be a different file by now.
        self.attributes = None;
        self.identity = None;
        self.take_back()
    }

    /// Forgets the progress of a job that its session starts again; returns the number of confirmed
    /// bytes that become invalid.
    pub(in crate::copy) fn restart(&mut self) -> u64 {
        self.state = None;
        self.in_place = false;
        self.synced = false;
        self.reused = 0;
        self.resume.takes(0);
        self.take_back()
    }
}
