use serde::{Deserialize, Serialize};
use sftp::{OpenFlags, Request};

/// What clients may do with the files they are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// What the account may.
    #[default]
    Full,
    /// Nothing is changed.
    ReadOnly,
    /// A drop box: new files and directories may be put there; what was there before is neither
    /// listed, read, changed nor replaced.
    WriteOnly,
}

impl Access {
    /// Whether a request may be looked at at all. What a drop box allows depends on whose the
    /// file is as well ([`crate::drop_box`]).
    pub(crate) fn allows(self, request: &Request<'_>) -> bool {
        match self {
            Self::Full => true,
            Self::ReadOnly => !effect(request).changes,
            Self::WriteOnly => !effect(request).tells,
        }
    }
}

/// What a request does to what is served.
#[derive(Clone, Copy)]
struct Effect {
    /// It changes something.
    changes: bool,
    /// It tells what files hold or what there is, or could: a link to a file would make it one's
    /// own.
    tells: bool,
}

/// Each request by name: one that is new shall not be allowed by being forgotten.
fn effect(request: &Request<'_>) -> Effect {
    let (changes, tells) = match request {
        Request::Open { flags, .. } => {
            let changing = [
                OpenFlags::WRITE,
                OpenFlags::APPEND,
                OpenFlags::CREAT,
                OpenFlags::TRUNC,
            ];
            let changes = changing.iter().any(|flag| flags.contains(*flag));
            (changes, flags.contains(OpenFlags::READ))
        }
        Request::Symlink { .. } | Request::Hardlink { .. } | Request::CopyData { .. } => {
            (true, true)
        }
        Request::Write { .. }
        | Request::WriteZstd { .. }
        | Request::Setstat { .. }
        | Request::Fsetstat { .. }
        | Request::Lsetstat { .. }
        | Request::SetMetadata { .. }
        | Request::Remove { .. }
        | Request::Mkdir { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::PosixRename { .. }
        | Request::PutFile { .. }
        | Request::PutFileZstd { .. } => (true, false),
        Request::Read { .. }
        | Request::GetFile { .. }
        | Request::GetFileZstd { .. }
        | Request::ListTree { .. }
        | Request::ReadZstd { .. }
        | Request::ReadSparse { .. }
        | Request::GetXattrs { .. }
        | Request::Hash { .. }
        | Request::Opendir { .. }
        | Request::Readdir { .. }
        | Request::Readlink { .. } => (false, true),
        Request::Close { .. }
        | Request::Lstat { .. }
        | Request::Fstat { .. }
        | Request::Stat { .. }
        | Request::Realpath { .. }
        | Request::Statvfs { .. }
        | Request::Fstatvfs { .. }
        | Request::Fsync { .. }
        // It says no more than STAT does.
        | Request::FsyncSet { .. }
        | Request::Limits {}
        | Request::ExpandPath { .. }
        | Request::HomeDirectory { .. }
        | Request::UsersGroupsById { .. }
        | Request::IdsByName { .. }
        | Request::Attributes { .. }
        // Nobody carries them out.
        | Request::OtherExtension { .. }
        | Request::Other { .. } => (false, false),
    };
    Effect { changes, tells }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_and_writing_exclude_each_other_as_told() {
        let open = |flags| Request::Open {
            path: b"x",
            flags,
            attrs: sftp::Attrs::default(),
        };
        let read = open(OpenFlags::READ);
        let write = open(OpenFlags::WRITE | OpenFlags::CREAT);
        let both = open(OpenFlags::READ | OpenFlags::WRITE);
        assert!(Access::ReadOnly.allows(&read) && !Access::ReadOnly.allows(&write));
        assert!(Access::WriteOnly.allows(&write) && !Access::WriteOnly.allows(&read));
        assert!(!Access::ReadOnly.allows(&both) && !Access::WriteOnly.allows(&both));
        let list = Request::Opendir { path: b"/" };
        assert!(Access::ReadOnly.allows(&list) && !Access::WriteOnly.allows(&list));
    }
}
