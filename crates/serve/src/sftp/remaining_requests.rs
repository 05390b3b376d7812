//! Decides which received requests are still carried out after the client has disconnected.

use sftp::Request;

/// Received requests that are still carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemainingRequests {
    /// The client is connected.
    All,
    /// The client has disconnected: only requests that change something, as with sftp-server, which
    /// reads its pipe to the end. libssh2 sends a file's last byte, EOF and CLOSE at once.
    Changes,
    /// The client has disconnected during a long copy, or with one among its requests. It would take
    /// too long, and without it later requests could give an incomplete file its name.
    None,
}

impl RemainingRequests {
    /// Returns true if `request` is to be carried out now that its turn has come.
    pub(super) fn admit(&mut self, request: &Request<'_>) -> bool {
        match (*self, request) {
            (Self::All, _) => true,
            (Self::Changes, Request::CopyData { .. }) => {
                *self = Self::None;
                false
            }
            (Self::Changes, request) => !only_answers(request),
            (Self::None, _) => false,
        }
    }
}

/// True if nothing but the answer would differ without this request, including the numbers of later
/// handles. Every request is listed, so that a new one is not forgotten.
fn only_answers(request: &Request<'_>) -> bool {
    use Request as R;
    match request {
        R::Read { .. }
        | R::ReadZstd { .. }
        | R::ReadSparse { .. }
        | R::GetFile { .. }
        | R::GetFileZstd { .. }
        | R::GetXattrs { .. }
        | R::Hash { .. }
        | R::Fstat { .. }
        | R::Stat { .. }
        | R::Lstat { .. }
        | R::Statvfs { .. }
        | R::Fstatvfs { .. }
        | R::Readdir { .. }
        | R::ListTree { .. }
        | R::Readlink { .. }
        | R::Realpath { .. }
        | R::ExpandPath { .. }
        | R::HomeDirectory { .. }
        | R::UsersGroupsById { .. }
        | R::IdsByName { .. }
        | R::Limits {}
        | R::Attributes { .. }
        // Its paths already have their names; only the answer says that they are durable.
        | R::FsyncSet { .. }
        | R::OtherExtension { .. }
        | R::Other { .. } => true,
        R::Open { .. }
        | R::Opendir { .. }
        | R::Close { .. }
        | R::Write { .. }
        | R::WriteZstd { .. }
        | R::PutFile { .. }
        | R::PutFileZstd { .. }
        | R::CopyData { .. }
        | R::Fsync { .. }
        | R::Setstat { .. }
        | R::Lsetstat { .. }
        | R::Fsetstat { .. }
        | R::SetMetadata { .. }
        | R::Mkdir { .. }
        | R::Remove { .. }
        | R::Rmdir { .. }
        | R::Rename { .. }
        | R::PosixRename { .. }
        | R::Symlink { .. }
        | R::Hardlink { .. }
        | R::HoldRoot { .. } => false,
    }
}
