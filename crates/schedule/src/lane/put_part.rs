//! What an upload over several lanes does differently on each.

use super::core::LaneContext;
use super::put::{Part, Put, ReplacedAttributes, Target};
use super::task::attributes;
use crate::{Attributes, ByteRange, FileMeta, JobId, LaneEvent, PutOptions, RemotePath, Temp};

use sftp::Reply;
use wire::Block;

impl Put {
    /// Creates the temporary and writes the first bytes.
    pub(super) fn head(
        id: JobId,
        file: JobId,
        target: Vec<u8>,
        (attributes, len, alone): (Attributes, u64, bool),
        options: PutOptions,
    ) -> Self {
        let part = Part::Head {
            file,
            attributes,
            len,
            alone,
            announced: false,
        };
        Self::new(id, part, target, options)
    }

    /// Writes some bytes of it.
    pub(super) fn range(
        id: JobId,
        file: JobId,
        attributes: Attributes,
        temp: Vec<u8>,
        span: ByteRange,
    ) -> Self {
        let part = Part::Range {
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

    /// Gives it its attributes and its name.
    pub(super) fn finish(
        id: JobId,
        temp: Temp,
        attributes: Attributes,
        (cut, set): (Option<u64>, bool),
        options: PutOptions,
    ) -> Self {
        let part = Part::Finish {
            attributes,
            cut,
            set,
        };
        let mut put = Self::new(id, part, temp.target.0, options);
        put.target = match temp.replaces {
            true => Target::Existing(ReplacedAttributes {
                mode: temp.mode,
                owner: temp.owner,
            }),
            false => Target::New,
        };
        put.attempt.temp = Some(temp.temp.0);
        put
    }

    /// Whether the parts of a file are divided over jobs, and this is not the one that names it.
    pub(super) fn is_piece(&self) -> bool {
        matches!(self.part, Part::Head { .. } | Part::Range { .. })
    }

    /// Whether it sets the attributes of the file that it has open.
    pub(super) fn sets_attributes(&self) -> bool {
        match self.part {
            Part::Whole { .. } | Part::Finish { .. } => true,
            Part::Head { alone, .. } => alone,
            Part::Range { .. } | Part::Sync => false,
        }
    }

    /// Where this part ends, unless the source does before.
    pub(super) fn limit(&self) -> Option<u64> {
        match &self.part {
            Part::Head { len, .. } => Some(*len),
            Part::Range { span, .. } => span.end(),
            Part::Whole { .. } | Part::Finish { .. } | Part::Sync => None,
        }
    }

    /// The source is there to be read.
    pub(super) fn on_joined(&mut self, core: &mut LaneContext) {
        let (attributes, offset) = match &self.part {
            Part::Head { attributes, .. } => (*attributes, 0),
            Part::Range {
                attributes, span, ..
            } => (*attributes, span.offset),
            Part::Whole { .. } | Part::Finish { .. } | Part::Sync => return,
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

    /// Attributes that need a handle are set through one; else only the name is missing.
    pub(super) fn start_finish(&mut self, core: &mut LaneContext) {
        let Part::Finish {
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

    /// Makes durable what others have written.
    pub(super) fn sync(id: JobId, temp: Vec<u8>) -> Self {
        let options = PutOptions {
            fresh: true,
            fsync: true,
            ..PutOptions::default()
        };
        Self::new(id, Part::Sync, temp, options)
    }

    pub(super) fn start_sync(&mut self, core: &mut LaneContext) {
        self.attempt.end = Some(0);
        self.attempt.first = Some(Block::default());
        core.openers.push_back(self.id);
    }

    /// What the open temporary is, behind its fsync.
    pub(super) fn on_stat(&self, core: &mut LaneContext, reply: &Reply) {
        if let Reply::Attrs(attrs) = reply {
            core.event(LaneEvent::Attributes(self.id, attributes(attrs)));
        }
    }

    /// Tells of the temporary once it exists and nothing asks for another course.
    pub(super) fn announce(&mut self, core: &mut LaneContext) {
        let Part::Head { announced, .. } = &mut self.part else {
            return;
        };
        let (replaces, was) = match self.target {
            // A symlink that is to be replaced is moved aside as a file is.
            Target::New => (self.is_link, ReplacedAttributes::default()),
            Target::Existing(was) => (true, was),
            Target::Unknown | Target::Direct(_) => return,
        };
        if *announced || !self.attempt.opened {
            return;
        }
        // From here on it is not this job's to remove.
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

    /// The source has ended at `end`, as far as this part read it.
    pub(super) fn tell_end(&self, core: &mut LaneContext, end: u64) {
        if self.is_piece() && self.limit().is_none_or(|limit| end < limit) {
            core.event(LaneEvent::Ended(self.id, end));
        }
    }
}
