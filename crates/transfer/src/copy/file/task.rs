//! State of one file of the copy.

use std::sync::Arc;

use schedule::journal::SourceFileStamp;
use schedule::{
    Attributes, ExistingTargetPolicy, FileCopyOptions, FileCopyState, JobKind, LocalEnd,
    ReadOnlyFilePolicy, RemotePath, SharedTemp, StoredTarget, Xattrs,
};
use sftp::InodeId;

use super::{
    CopyFileId, FileTask, InPlaceState, OpenedSourceState, OverwrittenFile, SharedTemporaryFile,
    SourceVersion,
};
use crate::copy::DeltaUse;
use crate::copy::context::CopyContext;
use crate::copy::local_file_ops::{LocalFileOps, LocalStat};
use crate::copy::metadata::{MetadataPreservation, special_bits};
use crate::copy::relayed::RelayedFileJobs;
use crate::copy::resume::{ResumeTask, is_durable};
use crate::copy::sides::CopySide;
use crate::copy::tree::CopyDirectoryId;
use crate::report::{CopyEvent, EscapedName};
use crate::sums::FileChecksums;
use crate::walk::local_path;

impl FileTask {
    /// Name of the source for messages.
    pub(in crate::copy) fn source_name(&self) -> &EscapedName {
        &self.source_name
    }

    pub(in crate::copy) fn source(&self) -> &[u8] {
        &self.source
    }

    /// Name of the source in messages.
    pub(in crate::copy) fn shown_source(&self) -> EscapedName {
        self.source_name.clone()
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
    pub(in crate::copy) fn identity(&self) -> Option<SourceFileStamp> {
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
    pub(in crate::copy) fn shared(&self) -> Option<SharedTemporaryFile> {
        self.shared
    }

    pub(in crate::copy) fn resume(&self) -> &ResumeTask {
        &self.resume
    }

    pub(in crate::copy) fn resume_mut(&mut self) -> &mut ResumeTask {
        &mut self.resume
    }

    /// Notes that an earlier run has stored all `size` bytes, and if it has synced them.
    pub(in crate::copy) fn was_stored(&mut self, size: u64, synced: bool) {
        self.synced = synced;
        self.resume.takes(size);
        self.confirmed = size;
        self.state = Some(FileCopyState::Renamed);
    }

    /// Notes the state that the target has reached.
    pub(in crate::copy) fn reached(&mut self, state: FileCopyState) {
        self.state = Some(state);
        self.synced |= state == FileCopyState::Synced;
    }

    /// True if the file was made durable before the rename.
    pub(in crate::copy) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Notes that the file is opened under its final name.
    pub(in crate::copy) fn opens_in_place(&mut self) {
        if self.in_place != InPlaceState::Incomplete {
            self.in_place = InPlaceState::Opened;
        }
    }

    /// Notes that the file was written under its final name.
    pub(in crate::copy) fn goes_in_place(&mut self) {
        self.in_place = InPlaceState::Written;
    }

    /// Looks at the local file that may be written under its final name: with --inplace, or in a
    /// directory that allows no new files. Of this machine no event tells when it is opened.
    /// `is_fresh` tells if this run has made the directory, which has no older files.
    pub(super) fn may_overwrite(&mut self, context: &CopyContext<'_>, is_fresh: bool) {
        if is_fresh && !context.options().inplace || self.overwritten.is_some() {
            return;
        }
        let found = context
            .local()
            .look(&context.named().local_path(&self.target));
        // A device or a FIFO takes the data in order, and has no contents.
        if found.as_ref().is_none_or(LocalStat::is_file) {
            let before = found.map(|stat| stat.id);
            self.overwritten = Some(OverwrittenFile { before });
        }
    }

    /// True if the file under the final name may be incomplete after a copy that failed. `is_lost`
    /// tells if it ended before the last request was answered.
    pub(in crate::copy) fn may_be_incomplete(
        &self,
        context: &CopyContext<'_>,
        is_lost: bool,
    ) -> bool {
        if let Some(OverwrittenFile { before }) = self.overwritten {
            let found = context
                .local()
                .look(&context.named().local_path(&self.target));
            let is_whole = self
                .state
                .is_some_and(|state| state >= FileCopyState::Closed);
            let found = found.map(|stat| stat.id);
            let file = |stamp: SourceFileStamp| (stamp.device, stamp.inode);
            // A rename puts another file there, which is whole.
            let is_in_place = context.options().inplace
                || before.is_some() && before.map(file) == found.map(file);
            return is_in_place && !is_whole && found != before;
        }
        match self.in_place {
            InPlaceState::Untouched | InPlaceState::Written => false,
            InPlaceState::Opened => is_lost,
            InPlaceState::Incomplete => true,
        }
    }

    /// Notes bytes that were taken from the basis file.
    pub(in crate::copy) fn reuses(&mut self, bytes: u64) {
        self.reused += bytes;
    }

    /// Notes that the only complete copy is at `path`; empty once it has its final name.
    pub(in crate::copy) fn strands(&mut self, path: Vec<u8>) {
        self.stranded = Some(path).filter(|path| !path.is_empty());
    }

    /// Notes the attributes of a local source that was opened.
    pub(in crate::copy) fn opened_as(&mut self, attributes: Attributes) {
        self.source_version = SourceVersion::Opened(OpenedSourceState::new(&attributes));
    }

    /// Notes that the server has a remote source in another state than when it was opened.
    pub(in crate::copy) fn source_was_changed(&mut self) {
        self.source_version = SourceVersion::Changed;
    }

    /// True if the source differs from the state in which it was opened (size or modification
    /// time). The data read may then mix two states that never existed together. True once at most.
    pub(in crate::copy) fn has_changed(&mut self, local: &dyn LocalFileOps) -> bool {
        let opened = match std::mem::take(&mut self.source_version) {
            SourceVersion::Opened(opened) => opened,
            SourceVersion::Changed => return true,
            SourceVersion::Unknown => return false,
        };
        // A removed file was complete when it was read.
        let now = local.stat(&self.source);
        now.is_ok_and(|now| OpenedSourceState::new(&now.attributes) != opened)
    }

    pub(in crate::copy) fn set_sums(&mut self, sums: Option<Arc<FileChecksums>>) {
        self.sums = sums;
    }

    pub(in crate::copy) fn take_sums(&mut self) -> Option<Arc<FileChecksums>> {
        self.sums.take()
    }

    pub(in crate::copy) fn set_xattrs(&mut self, xattrs: Option<Box<Xattrs>>) {
        self.beyond.xattrs = xattrs;
    }

    /// True at the first call, after which extended attributes count as queried.
    pub(in crate::copy) fn begin_xattrs(&mut self) -> bool {
        !std::mem::replace(&mut self.xattrs_asked, true)
    }

    pub(in crate::copy) fn relay(&mut self) -> Option<&mut RelayedFileJobs> {
        self.relay.as_deref_mut()
    }

    pub(in crate::copy) fn set_relay(&mut self, relay: RelayedFileJobs) {
        self.relay = Some(Box::new(relay));
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
        !self.changed && self.in_place != InPlaceState::Written
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
        self.in_place = InPlaceState::Untouched;
        self.overwritten = None;
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

    /// Forgets the attributes of the source, which are asked for again.
    pub(in crate::copy) fn forget_attributes(&mut self) {
        self.attributes = None;
        self.identity = None;
    }

    /// Forgets the progress of a job that its session starts again; returns the number of confirmed
    /// bytes that become invalid.
    pub(in crate::copy) fn restart(&mut self) -> u64 {
        self.state = None;
        if self.in_place != InPlaceState::Untouched {
            self.in_place = InPlaceState::Incomplete;
        }
        self.synced = false;
        self.reused = 0;
        self.resume.takes(0);
        self.take_back()
    }

    /// Options of the job that writes the file. `is_fresh` tells if this run has made its directory.
    pub(super) fn put_options(
        &self,
        context: &CopyContext<'_>,
        sets_owners: bool,
        is_fresh: bool,
    ) -> FileCopyOptions {
        let options = context.options();
        let mut beyond = self.beyond.clone();
        beyond.owner = beyond.owner.filter(|_| sets_owners);
        beyond.special_bits = special_bits(context).keeps();
        FileCopyOptions {
            most: None,
            keep: self.resume.keep(),
            preserve: context.preserves(),
            inplace: options.inplace,
            temp_dir: options.temp_dir.clone(),
            fsync: options.fsync,
            existing: ExistingTargetPolicy {
                fresh: self.repeats == 0 && is_fresh,
                // Only the path that the user named is written through a symlink.
                replace_node: !context.named().is(&self.target)
                    || context.named().has_made_link(&self.target),
                read_only: match options.archive {
                    true => ReadOnlyFilePolicy::Replace,
                    false => self.resume.read_only(),
                },
            },
            sparse: options.sparse,
            beyond,
            local_end: LocalEnd::File,
        }
    }

    /// Creates the job of an upload: a delta against the file at the target if that may pay, otherwise
    /// the whole file.
    pub(super) fn put_job(&self, context: &CopyContext<'_>, options: FileCopyOptions) -> JobKind {
        let (source, target) = (local_path(&self.source), RemotePath(self.target.clone()));
        let delta = context.options().delta;
        let size = self.size.unwrap_or(0);
        let left = options
            .keep
            .as_ref()
            .is_some_and(|keep| keep.left.is_some());
        // A file rebuilt from a delta has no holes.
        let holes = || options.sparse && context.local().has_holes(&source);
        // The version that a changing source had last is no basis.
        let whole = self.changed
            || options.inplace
            || options.existing.fresh
            || left
            || size < schedule::delta::LEAST
            || holes();
        match delta {
            DeltaUse::Auto | DeltaUse::Always if !whole => JobKind::PutDelta {
                source,
                target,
                options,
                always: delta == DeltaUse::Always,
            },
            _ => JobKind::Put {
                source,
                target,
                options,
            },
        }
    }

    /// Creates the job of a download, using an older local file as a basis if there is one.
    pub(super) fn get_job(&self, context: &CopyContext<'_>, options: FileCopyOptions) -> JobKind {
        let source = RemotePath(self.source.clone());
        let target = context.named().local_path(&self.target);
        let known = self.attributes;
        let keep = options.keep.as_ref();
        let left = keep.is_some_and(|keep| keep.left.is_some());
        let size = known.and_then(|known| known.size).unwrap_or(0);
        let rebuilds = || {
            let older = context.local().look(&target).filter(|stat| stat.is_file());
            older.is_some_and(|stat| schedule::delta::may_be_forms(size, stat.id.size))
        };
        let whole =
            self.changed || options.inplace || left || size < schedule::delta::LEAST || !rebuilds();
        let delta = context.options().delta;
        match delta {
            DeltaUse::Auto | DeltaUse::Always if !whole => JobKind::GetDelta {
                source,
                target,
                known,
                options,
                always: delta == DeltaUse::Always,
            },
            _ => JobKind::Get {
                source,
                target,
                known,
                options,
            },
        }
    }

    /// Reports the results of a local copy.
    pub(super) fn tell_stored(
        &self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        stored: StoredTarget,
    ) {
        for (parts, why) in stored.not_kept {
            let target = || Some(context.shown(CopySide::Target, &self.target));
            metadata.note_lost(parts, &why, target);
        }
        if let Some(owner) = stored.belonged {
            self.tell_owner(context, owner);
        }
        self.note_other_names(context, metadata, stored.other_names);
        if let Some(why) = &stored.why_in_place {
            metadata.tell_in_place(context, &self.target, why);
        }
    }

    /// Warns that the replaced file had another owner, which could not be kept.
    pub(in crate::copy) fn tell_owner(
        &self,
        context: &mut CopyContext<'_>,
        (user, group): (u32, u32),
    ) {
        let name = context.shown(CopySide::Target, &self.target);
        context.warn(
            Some(name),
            format!("cannot keep the owner {user}:{group} of the replaced file"),
        );
    }

    /// Notes that the replaced file had other names, which keep the old contents. With --hard-links
    /// the other names follow.
    pub(in crate::copy) fn note_other_names(
        &self,
        context: &CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        names: u64,
    ) {
        if !context.options().hard_links {
            let name = || context.shown(CopySide::Target, &self.target);
            let withheld = metadata.withheld();
            withheld.note_other_names(&self.target, names, name);
        }
    }

    /// Counts and reports a file that is copied; `is_verified` tells if it is verified as well,
    /// should that be wanted. The event takes the name of the source, so that the task has none
    /// afterwards.
    pub(in crate::copy) fn tell_done(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        id: CopyFileId,
        is_verified: bool,
    ) {
        context.progress().file_done();
        let state = self.state.unwrap_or(FileCopyState::Written);
        let taken = self.resume.taken().min(self.confirmed);
        let synced = context.options().fsync && is_durable(context, self);
        let summary = context.summary_mut();
        // Hard links count as files, and were not copied.
        let is_first = summary.state.is_none();
        summary.synced = synced && (is_first || summary.synced);
        match self.shared.map(|shared| shared.work) {
            Some(SharedTemp::Range(..)) => summary.ranges += 1,
            Some(SharedTemp::Seal) | None => summary.files += 1,
        }
        summary.bytes += self.confirmed - taken;
        summary.taken_over += taken;
        summary.reused += self.reused;
        summary.state = Some(summary.state.map_or(state, |least| least.min(state)));
        if let Some(attributes) = &self.attributes {
            metadata.note_times(context, &self.source, attributes);
            let rules = special_bits(context);
            let shown = || self.source_name.clone();
            let mode = attributes.mode.unwrap_or(0);
            metadata.withheld().note_file_mode(rules, mode, shown);
        }
        context.tell(CopyEvent::FileDone {
            id: id.0,
            source: std::mem::take(&mut self.source_name),
            target: context.shown(CopySide::Target, &self.target),
            bytes: self.confirmed,
            state,
            in_place: self.in_place == InPlaceState::Written,
            synced,
            verified: context.options().verify && is_verified,
        });
    }

    /// Directory of the file in the target tree; `None` for a file that is itself a source.
    pub(in crate::copy) fn dir(&self) -> Option<CopyDirectoryId> {
        self.dir
    }

    /// Identity of a file of which other names will be hard links to this copy.
    pub(in crate::copy) fn link(&self) -> Option<InodeId> {
        self.link
    }
}
