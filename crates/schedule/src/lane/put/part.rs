use std::path::PathBuf;

use crate::{Attributes, ByteRange, JobId};

/// Part of the upload that a job does.
#[derive(Debug)]
pub(in crate::lane) enum UploadPart {
    /// The whole file.
    Whole { source: PathBuf },
    /// Creates the temporary and writes the first `len` bytes.
    Head {
        file: JobId,
        attributes: Attributes,
        len: u64,
        /// The job writes the whole file and sets its attributes: no other job opens it.
        alone: bool,
        /// Other jobs know the temporary.
        announced: bool,
    },
    /// A range of the file.
    Range {
        file: JobId,
        attributes: Attributes,
        span: ByteRange,
    },
    /// Only an fsync.
    Sync,
    /// Attributes and rename.
    Finish {
        attributes: Attributes,
        cut: Option<u64>,
        /// The attributes are set already.
        set: bool,
    },
}

impl UploadPart {
    /// Returns true for a part of a cut file that does not do the rename.
    pub(super) fn is_piece(&self) -> bool {
        matches!(self, Self::Head { .. } | Self::Range { .. })
    }

    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole { .. })
    }

    pub(super) fn is_range(&self) -> bool {
        matches!(self, Self::Range { .. })
    }

    pub(super) fn is_sync(&self) -> bool {
        matches!(self, Self::Sync)
    }

    pub(super) fn is_finish(&self) -> bool {
        matches!(self, Self::Finish { .. })
    }

    /// Returns true if the job renames the file.
    pub(super) fn renames(&self) -> bool {
        self.is_whole() || self.is_finish()
    }

    /// Returns true if the job creates the file that it writes.
    pub(super) fn creates_file(&self) -> bool {
        matches!(self, Self::Whole { .. } | Self::Head { .. })
    }

    /// Returns true if the job sets the attributes of its open file.
    pub(super) fn sets_attributes(&self) -> bool {
        match self {
            Self::Whole { .. } | Self::Finish { .. } => true,
            Self::Head { alone, .. } => *alone,
            Self::Range { .. } | Self::Sync => false,
        }
    }

    /// Returns the end of the part, unless the source ends earlier.
    pub(super) fn limit(&self) -> Option<u64> {
        match self {
            Self::Head { len, .. } => Some(*len),
            Self::Range { span, .. } => span.end(),
            Self::Whole { .. } | Self::Finish { .. } | Self::Sync => None,
        }
    }

    /// Returns the source's attributes and the first offset of a part of a cut file.
    pub(super) fn piece(&self) -> Option<(Attributes, u64)> {
        match self {
            Self::Head { attributes, .. } => Some((*attributes, 0)),
            Self::Range {
                attributes, span, ..
            } => Some((*attributes, span.offset)),
            Self::Whole { .. } | Self::Finish { .. } | Self::Sync => None,
        }
    }
}
