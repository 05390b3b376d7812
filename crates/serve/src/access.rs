use serde::{Deserialize, Serialize};
use sftp::{OpenFlags, Request};

/// Access that clients have to the served files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Everything that the account may do.
    #[default]
    Full,
    /// Reading only.
    ReadOnly,
    /// A drop box: clients may add files and directories, and cannot list, read, change or replace
    /// those that were there before.
    WriteOnly,
}

impl Access {
    /// True if a request is allowed at all. In a drop box it also depends on who put the file there
    /// (`sftp::drop_box`).
    pub(crate) fn allows(self, request: &Request<'_>) -> bool {
        match self {
            Self::Full => true,
            Self::ReadOnly => !effect(request).changes,
            Self::WriteOnly => !effect(request).tells,
        }
    }
}

/// Effect of a request on the served files.
#[derive(Clone, Copy)]
struct RequestEffect {
    /// The request changes something.
    changes: bool,
    /// The request reveals contents or names, or could: a hard link to a file would make it the
    /// client's own.
    tells: bool,
}

/// Classifies every request by name, so that a new one is not allowed by omission.
fn effect(request: &Request<'_>) -> RequestEffect {
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
        // FSYNC-SET reveals no more than STAT does.
        | Request::FsyncSet { .. }
        | Request::Limits {}
        | Request::ExpandPath { .. }
        | Request::HomeDirectory { .. }
        | Request::UsersGroupsById { .. }
        | Request::IdsByName { .. }
        | Request::Attributes { .. }
        // The answer does not depend on what is at the path.
        | Request::HoldRoot { .. }
        // These requests are not supported.
        | Request::OtherExtension { .. }
        | Request::Other { .. } => (false, false),
    };
    RequestEffect { changes, tells }
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
