use sftp::{Attrs, ExpectedEntry, OpenFlags, temp_name};
use wire::PayloadBlock;

use super::new_file::WrittenFileInfo;
use super::owner_write::OwnerWriteGrant;
use super::part::UploadPart;
use super::sending::UploadSendStage;
use super::source::UploadSource;
use super::target::UploadTargetState;
use super::{LaneContext, UploadState};
use crate::LaneEvent;
use crate::lane::queues::LaneQueueKind;
use crate::lane::remote_file::RemoteFile;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;

/// Size in bytes from which an interrupted run's temporary of a file sent as a whole is continued.
const LARGE: u64 = 1 << 20;

/// Stage in which the job waits for its turn to open the file or to send it whole.
#[derive(Debug)]
pub(super) struct UploadQueuedStage {
    source: UploadSource,
    /// First bytes of the source, and their size before compression if they are compressed.
    first: PayloadBlock,
    packed: Option<u64>,
    new: WrittenFileInfo,
    /// The source counts as prefetched.
    prefetched: bool,
    /// OPEN waits for the LSTAT of the target.
    waits: bool,
}

impl UploadQueuedStage {
    /// Creates the stage behind [`super::reading::SourceReadStage`].
    pub(super) fn prefetched(
        source: UploadSource,
        first: PayloadBlock,
        packed: Option<u64>,
    ) -> Self {
        Self {
            source,
            first,
            packed,
            new: WrittenFileInfo::default(),
            prefetched: true,
            waits: false,
        }
    }

    /// Creates the stage of a job that sets attributes and renames `new`.
    pub(super) fn to_finish(new: WrittenFileInfo) -> Self {
        Self {
            source: UploadSource::default(),
            first: PayloadBlock::default(),
            packed: None,
            new,
            prefetched: false,
            waits: false,
        }
    }

    /// Creates the stage of a job that only syncs a file.
    pub(super) fn to_sync() -> Self {
        Self {
            source: UploadSource::complete(crate::Attributes::default(), 0),
            ..Self::to_finish(WrittenFileInfo::default())
        }
    }

    /// Prepares the last part of a cut file; true if it needs a handle to set attributes.
    pub(super) fn for_attributes(mut self, up: &UploadState, core: &LaneContext) -> (Self, bool) {
        let UploadPart::Finish {
            attributes,
            cut,
            set,
        } = &up.part
        else {
            return (self, false);
        };
        let end = cut.or(attributes.size).unwrap_or(0);
        self.source = UploadSource::complete(*attributes, end);
        let syncs = up.options.fsync && core.can(ServerCapabilities::FSYNC);
        if *set {
            self.new.is_set(up.options.preserve, syncs);
        }
        if !up.options.preserve && OwnerWriteGrant::is_needed(attributes.mode) {
            self.new.owner_may_write();
        }
        let opens = cut.is_some()
            || syncs
            || !up.options.beyond.is_empty()
            || (up.options.preserve && (attributes.mode, attributes.times) != (None, None));
        (self, opens && !set)
    }

    /// Queues the file once its first bytes are read; `end` means that these are all.
    pub(super) fn wait_to_open(&mut self, up: &mut UploadState, core: &mut LaneContext, end: bool) {
        if !up.may_go_whole(core) {
            self.queue_open(up, core);
        } else if end {
            core.turns_mut().push(LaneQueueKind::Wholes, up.job());
        } else {
            up.plain = true;
            up.look(core);
            self.queue_open(up, core);
        }
    }

    /// Queues the job for OPEN, unless the answer about the target is needed first.
    pub(super) fn queue_open(&mut self, up: &UploadState, core: &mut LaneContext) {
        let refusals = core.refusals();
        let needs = refusals.attributes || refusals.in_place_at(&up.path) || up.options.inplace;
        match needs && up.target.is_unknown() {
            true => self.waits = true,
            false => core.queue_open(up.job()),
        }
    }

    /// Returns true once if OPEN has waited for the answer about the target, which has come.
    pub(super) fn target_is_known(&mut self) -> bool {
        std::mem::take(&mut self.waits)
    }

    /// Sends OPEN.
    pub(super) fn open(self, up: &mut UploadState, core: &mut LaneContext) -> UploadSendStage {
        let (path, flags, new) = self.file_to_open(up, core);
        let source = self.source.meta().attributes.mode;
        // As scp sends it (sftp-client.c, sftp_upload): the server's umask applies.
        let mut mode = up.mode_to_open_with(core, source);
        let is_temporary = matches!(new, Some(Some(_)));
        let grants =
            is_temporary && self.needs_owner_write(up, core) && OwnerWriteGrant::is_needed(source);
        if grants {
            mode = OwnerWriteGrant::added_to(mode);
        }
        let mut new = match new {
            Some(temp) => WrittenFileInfo::created(temp, mode),
            None => self.new,
        };
        if grants {
            new.owner_may_write();
        }
        if self.prefetched {
            core.turns_mut().end_prefetch();
        }
        let existing = (!up.part.creates_file()).then_some(ExpectedEntry::TEMPORARY);
        let attrs = Attrs {
            expected: existing.and_then(|temp| core.expects(temp)),
            ..Attrs::with_permissions(mode)
        };
        let remote = RemoteFile::open(&mut up.requests, core, &path, flags, attrs);
        UploadSendStage::new(remote, new, self.source, (self.first, self.packed))
    }

    /// Returns true if other jobs, or the run that resumes the copy, may open the temporary, or if its
    /// extended attributes are set, which its permissions must allow.
    fn needs_owner_write(&self, up: &UploadState, core: &LaneContext) -> bool {
        let size = self.source.meta().attributes.size;
        let is_kept = up.options.keep.is_some() && size.is_none_or(|size| size >= LARGE);
        let sets = up.options.beyond.xattrs.is_some();
        // Where it cannot be taken again, only a file that several lanes write gets it.
        !up.part.is_whole() || (is_kept || sets) && !core.refusals().attributes
    }

    /// Returns path and flags for OPEN. If the job creates the file, returns the name of its
    /// temporary as well, `None` if it is written in place.
    fn file_to_open(
        &self,
        up: &mut UploadState,
        core: &mut LaneContext,
    ) -> (Vec<u8>, OpenFlags, Option<Option<Vec<u8>>>) {
        if !up.part.creates_file() {
            let path = self.new.temp().unwrap_or(&up.path).to_vec();
            return (path, OpenFlags::WRITE, None);
        }
        if let UploadTargetState::Direct(flags) = up.target.state() {
            core.event(LaneEvent::OpensInPlace(up.job()));
            return (up.path.clone(), flags, Some(None));
        }
        let place = up.options.temporary_place(&up.path);
        let temp = match &up.options.keep {
            Some(keep) => keep.temporary(&place, up.names.tries()),
            None => temp_name(&place, core.random()),
        };
        let last = match up.names.choose_exclusive(core) {
            true => OpenFlags::EXCL,
            false => OpenFlags::TRUNC,
        };
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | last;
        (temp.clone(), flags, Some(Some(temp)))
    }

    /// Sends the file in one request; returns the number from which the server makes the name of
    /// its temporary.
    pub(super) fn send_whole(self, up: &mut UploadState, core: &mut LaneContext) -> u64 {
        if self.prefetched {
            core.turns_mut().end_prefetch();
        }
        let len = self.packed.unwrap_or(self.first.len() as u64);
        up.warn_if_shrunk(core, &self.source, len);
        let tag = match &up.options.keep {
            Some(keep) => keep.letters(),
            None => {
                let mut bytes = [0; 8];
                core.random()(&mut bytes);
                u64::from_be_bytes(bytes)
            }
        };
        let source = self.source.meta().attributes;
        let mut attrs = match up.options.preserve {
            true => Attrs {
                permissions: source.mode.map(|m| up.options.kept_mode(m)),
                times: source.times,
                nanoseconds: source
                    .nanoseconds
                    .filter(|_| core.can(ServerCapabilities::ATTRIBUTES)),
                ..Attrs::default()
            },
            false => Attrs::default(),
        };
        let owner = up.options.beyond.owner;
        attrs.owner = owner.filter(|_| core.can(ServerCapabilities::METADATA));
        up.requests.count();
        let request = up.put_file(tag, source.mode, attrs, self.packed);
        core.packing_mut().asked(len);
        let what = RequestPurpose::PutFile { len };
        let job = up.job();
        core.pipeline_mut()
            .request_with(job, what, &request, self.first);
        tag
    }

    pub(super) fn holds_source(&self) -> bool {
        self.source.is_open()
    }

    pub(super) fn new_file(&self) -> &WrittenFileInfo {
        &self.new
    }

    pub(super) fn new_file_mut(&mut self) -> &mut WrittenFileInfo {
        &mut self.new
    }

    /// Returns the file, with nothing left to do but its rename.
    pub(super) fn into_new(self) -> WrittenFileInfo {
        self.new
    }

    /// Gives the attempt up: returns what must be cleaned up.
    pub(super) fn give_up(self, core: &mut LaneContext) -> (WrittenFileInfo, UploadSource) {
        if self.prefetched {
            core.turns_mut().end_prefetch();
        }
        (self.new, self.source)
    }
}
