//! Logs disks that are full or fail, so that the administrator learns of it and not only the
//! client.

use rustix::io::Errno;
use sftp::Request;
use tracing::warn;
use wire::escape::field;

use super::request_error::reason;

/// Number of files of a session that get their own log line; further ones are only counted. A tree
/// that finds no space can have a hundred thousand.
const NAMED: u64 = 16;

/// Logs disk errors of a session, and counts the files that had one.
#[derive(Debug, Default)]
pub(super) struct DiskErrorLog {
    files: u64,
    /// The last logged file; a client that fails in one way tries another.
    last: Vec<u8>,
}

/// The file that a request is about.
pub(super) enum RequestFile<'r> {
    Path(&'r [u8]),
    Handle(&'r [u8]),
}

/// Subject of a request that can meet a disk error, and true if it reads.
pub(super) fn subject<'r>(request: &Request<'r>) -> Option<(RequestFile<'r>, bool)> {
    use Request as R;
    let reads = matches!(
        request,
        R::Read { .. }
            | R::ReadZstd { .. }
            | R::ReadSparse { .. }
            | R::Hash { .. }
            | R::GetFile { .. }
            | R::GetFileZstd { .. }
            | R::GetXattrs { .. }
            | R::Opendir { .. }
            | R::Readlink { .. }
            | R::ListTree { .. }
    );
    let subject = match *request {
        R::Open { path, .. }
        | R::PutFile { path, .. }
        | R::PutFileZstd { path, .. }
        | R::GetFile { path, .. }
        | R::GetFileZstd { path, .. }
        | R::GetXattrs { path, .. }
        | R::Setstat { path, .. }
        | R::Lsetstat { path, .. }
        | R::Mkdir { path, .. }
        | R::Remove { path }
        | R::Rmdir { path }
        | R::Opendir { path }
        | R::Readlink { path }
        | R::ListTree { path, .. }
        | R::Rename { to: path, .. }
        | R::PosixRename { to: path, .. }
        | R::Hardlink { to: path, .. }
        // OpenSSH's order: the name of the link is the second path.
        | R::Symlink { second: path, .. } => RequestFile::Path(path),
        R::Read { handle, .. }
        | R::ReadZstd { handle, .. }
        | R::ReadSparse { handle, .. }
        | R::Hash { handle, .. }
        | R::Write { handle, .. }
        | R::WriteZstd { handle, .. }
        | R::Fsetstat { handle, .. }
        | R::Fsync { handle }
        | R::CopyData { to: handle, .. } => RequestFile::Handle(handle),
        _ => return None,
    };
    Some((subject, reads))
}

impl DiskErrorLog {
    pub(super) fn add(&mut self, path: &[u8], errno: Errno, reads: bool) {
        if self.last == path {
            return;
        }
        self.last = path.to_vec();
        self.files += 1;
        if self.files > NAMED {
            return;
        }
        let (path, why) = (field(path), reason(errno));
        match reads {
            true => warn!(%path, "cannot be read: {why}"),
            false => warn!(%path, "cannot be written: {why}"),
        }
    }
}

impl Drop for DiskErrorLog {
    fn drop(&mut self) {
        if let Some(files) = self.files.checked_sub(NAMED).filter(|n| *n > 0) {
            warn!(
                files,
                "more files could not be read or written; only the first {NAMED} are named"
            );
        }
    }
}
