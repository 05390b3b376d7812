//! Parts of an upload that is cut over several lanes.

use super::core::LaneContext;
use super::put::{Put, ReplacedAttributes, UploadPart, UploadTarget};
use super::task::attributes;
use crate::{Attributes, ByteRange, FileMeta, JobId, LaneEvent, PutOptions, RemotePath, Temp};

use sftp::Reply;
use wire::Block;

impl Put {
    /// Creates the job that creates the temporary and writes the first bytes.
    pub(super) fn head(
        id: JobId,
        file: JobId,
        target: Vec<u8>,
        (attributes, len, alone): (Attributes, u64, bool),
        options: PutOptions,
    ) -> Self {
        let part = UploadPart::Head {
            file,
            attributes,
            len,
            alone,
            announced: false,
        };
        Self::new(id, part, target, options)
    }

    /// Creates the job that writes a range.
    pub(super) fn range(
        id: JobId,
        file: JobId,
        attributes: Attributes,
        temp: Vec<u8>,
        span: ByteRange,
    ) -> Self {
        let part = UploadPart::Range {
            file,
            attributes,
            span,
        };
        let options = PutOptions {
            fresh: true,
            ..PutOptions::default()
        };
        Self::new(id, part, temp, options)
    }

    /// Creates the job that sets the attributes and renames.
    pub(super) fn finish(
        id: JobId,
        temp: Temp,
        attributes: Attributes,
        (cut, set): (Option<u64>, bool),
        options: PutOptions,
    ) -> Self {
        let part = UploadPart::Finish {
            attributes,
            cut,
            set,
        };
        let mut put = Self::new(id, part, temp.target.0, options);
        put.target = match temp.replaces {
            true => UploadTarget::Existing(ReplacedAttributes {
                mode: temp.mode,
                owner: temp.owner,
            }),
            false => UploadTarget::New,
        };
        put.attempt.temp = Some(temp.temp.0);
        put
    }

    /// Returns true for a part of a cut file that does not do the rename.
    pub(super) fn is_piece(&self) -> bool {
        matches!(
            self.part,
            UploadPart::Head { .. } | UploadPart::Range { .. }
        )
    }

    /// Returns true if the job sets the attributes of its open file.
    pub(super) fn sets_attributes(&self) -> bool {
        match self.part {
            UploadPart::Whole { .. } | UploadPart::Finish { .. } => true,
            UploadPart::Head { alone, .. } => alone,
            UploadPart::Range { .. } | UploadPart::Sync => false,
        }
    }

    /// Returns the end of the part, unless the source ends earlier.
    pub(super) fn limit(&self) -> Option<u64> {
        match &self.part {
            UploadPart::Head { len, .. } => Some(*len),
            UploadPart::Range { span, .. } => span.end(),
            UploadPart::Whole { .. } | UploadPart::Finish { .. } | UploadPart::Sync => None,
        }
    }

    /// Starts reading once the source is available.
    pub(super) fn on_joined(&mut self, core: &mut LaneContext) {
        let (attributes, offset) = match &self.part {
            UploadPart::Head { attributes, .. } => (*attributes, 0),
            UploadPart::Range {
                attributes, span, ..
            } => (*attributes, span.offset),
            UploadPart::Whole { .. } | UploadPart::Finish { .. } | UploadPart::Sync => return,
        };
        let a = &mut self.attempt;
        a.meta = FileMeta {
            attributes,
            stream: false,
        };
        a.next_read = offset;
        a.next_write = offset;
        a.first = Some(Block::default());
        a.source_open = true;
        if !self.given_up() {
            self.queue_open(core);
        }
    }

    /// Starts the last part: opens the temporary if attributes need a handle, otherwise only the
    /// rename is left.
    pub(super) fn start_finish(&mut self, core: &mut LaneContext) {
        let UploadPart::Finish {
            attributes,
            cut,
            set,
        } = &self.part
        else {
            return;
        };
        let end = cut.or(attributes.size).unwrap_or(0);
        self.attempt.meta.attributes = *attributes;
        self.attempt.end = Some(end);
        let opens = cut.is_some()
            || (self.options.fsync && core.server.fsync)
            || !self.options.beyond.is_empty()
            || (self.options.preserve && (attributes.mode, attributes.times) != (None, None));
        if *set {
            self.attempt.mode_set = self.options.preserve;
            self.attempt.synced = self.options.fsync && core.server.fsync;
        }
        if opens && !set {
            self.attempt.first = Some(Block::default());
            core.openers.push_back(self.id);
        } else {
            self.attempt.closing = true;
            self.attempt.closed = true;
            let _ = self.name(core);
        }
    }

    /// Creates the job that makes data of other lanes durable.
    pub(super) fn sync(id: JobId, temp: Vec<u8>) -> Self {
        let options = PutOptions {
            fresh: true,
            fsync: true,
            ..PutOptions::default()
        };
        Self::new(id, UploadPart::Sync, temp, options)
    }

    pub(super) fn start_sync(&mut self, core: &mut LaneContext) {
        self.attempt.end = Some(0);
        self.attempt.first = Some(Block::default());
        core.openers.push_back(self.id);
    }

    /// Reports the attributes of the open temporary after its fsync.
    pub(super) fn on_stat(&self, core: &mut LaneContext, reply: &Reply) {
        if let Reply::Attrs(attrs) = reply {
            core.event(LaneEvent::Attributes(self.id, attributes(attrs)));
        }
    }

    /// Reports the temporary once it exists and the target allows it.
    pub(super) fn announce(&mut self, core: &mut LaneContext) {
        let UploadPart::Head { announced, .. } = &mut self.part else {
            return;
        };
        let (replaces, was) = match self.target {
            // A symlink to be replaced is moved aside like a file.
            UploadTarget::New => (self.is_link, ReplacedAttributes::default()),
            UploadTarget::Existing(was) => (true, was),
            UploadTarget::Unknown | UploadTarget::Direct(_) => return,
        };
        if *announced || !self.attempt.opened {
            return;
        }
        // From here on other jobs must remove the temporary.
        if let Some(temp) = self.attempt.temp.take() {
            *announced = true;
            let temp = Temp {
                temp: RemotePath(temp),
                target: RemotePath(self.path.clone()),
                replaces,
                mode: was.mode,
                owner: was.owner,
            };
            core.event(LaneEvent::Temp(self.id, temp));
        }
    }

    /// Reports that the source ended at `end`, as far as this part read it.
    pub(super) fn tell_end(&self, core: &mut LaneContext, end: u64) {
        if self.is_piece() && self.limit().is_none_or(|limit| end < limit) {
            core.event(LaneEvent::Ended(self.id, end));
        }
    }
}
