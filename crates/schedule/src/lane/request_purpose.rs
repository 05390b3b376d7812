//! Purposes of a lane's requests.

/// Purpose of a request. The lane keeps it until the answer arrives, and the job decides by it how
/// to handle the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    Limits,
    /// Request for additional attributes in later ATTRS.
    ExtraAttributes,
    /// hold-root@longhaul of the target.
    HoldRoot,
    /// LSTAT or STAT of the job's path.
    Lstat,
    /// STAT through a symlink.
    Follow,
    Resolve,
    Open,
    Fstat,
    /// Query of the size of a file that ended early.
    SizeAgain,
    Read {
        offset: u64,
        len: u32,
    },
    /// READ whose answer may be compressed.
    ReadPacked {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        len: u64,
    },
    /// Upload of a whole file (put-file@longhaul).
    PutFile {
        len: u64,
    },
    /// Download of a whole file (get-file@longhaul).
    GetFile {
        pack: bool,
    },
    Attributes,
    Owner,
    /// Query of a new temporary's owner.
    TempOwner,
    /// Query of the permissions of a complete temporary.
    TempMode,
    /// Change of the temporary's owner and group to those of the replaced file (`KeepOwner`), or of
    /// its group only (`KeepGroup`).
    KeepOwner,
    KeepGroup,
    /// Setting all metadata by set-metadata@longhaul.
    Metadata,
    /// Setting the size, if it must be exact.
    Size,
    Mode,
    Sync,
    Close,
    /// Step of [`super::replace::FileReplacement`].
    Replace,
    /// fsync-set@longhaul of the directory that contains the renamed file.
    SyncName,
    RemoveTemp,
    Readdir,
    /// Part of a tree listing.
    Tree,
    /// hash@longhaul of the basis file, or of the `rebuilt` one.
    Sums {
        offset: u64,
        len: u64,
        rebuilt: bool,
    },
    /// Copy between open files (copy-data).
    Copied {
        len: u64,
    },
    /// The only request of a job, or its n-th step.
    Step(u8),
}

impl RequestPurpose {
    /// Returns the request's name in the SFTP draft.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits@openssh.com",
            Self::ExtraAttributes => "attributes@longhaul",
            Self::HoldRoot => "hold-root@longhaul",
            Self::Lstat | Self::Follow | Self::TempMode => "STAT",
            Self::Resolve => "REALPATH",
            Self::Open => "OPEN",
            Self::Fstat | Self::TempOwner | Self::SizeAgain => "FSTAT",
            Self::Read { .. } | Self::ReadPacked { .. } => "READ",
            Self::Write { .. } => "WRITE",
            Self::PutFile { .. } => "put-file@longhaul",
            Self::GetFile { .. } => "get-file@longhaul",
            Self::Attributes
            | Self::Owner
            | Self::KeepOwner
            | Self::KeepGroup
            | Self::Size
            | Self::Mode => "SETSTAT",
            Self::Metadata => "set-metadata@longhaul",
            Self::Sync | Self::SyncName => "fsync@openssh.com",
            Self::Close => "CLOSE",
            Self::RemoveTemp => "REMOVE",
            Self::Replace => "RENAME",
            Self::Readdir => "READDIR",
            Self::Tree => "list-tree@longhaul",
            Self::Sums { .. } => "hash@longhaul",
            Self::Copied { .. } => "copy-data",
            Self::Step(_) => "a request",
        }
    }

    /// Returns true if the request moves file data, so that its response time counts.
    pub(super) fn moves_data(self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::ReadPacked { .. }
                | Self::Write { .. }
                | Self::PutFile { .. }
                | Self::GetFile { .. }
        )
    }

    /// Returns true if the request may take long, since its work grows with the file.
    pub(super) fn takes_time(self) -> bool {
        matches!(
            self,
            Self::Sync | Self::SyncName | Self::Sums { .. } | Self::Copied { .. } | Self::Replace
        )
    }
}
