//! Lines of the log about disks that take no more, or cannot be read: whoever runs the server is to
//! know, and not the client alone.

use rustix::io::Errno;
use sftp::Request;
use tracing::warn;

use crate::answer::Session;
use crate::error::Refused;
use crate::handles::Open;
use crate::whole_file::words;
use wire::escape::field;

/// Files of a session that have a line of their own; those behind them are counted: of a tree that
/// finds no room there are a hundred thousand.
const NAMED: u64 = 16;

/// What a session has met, in files.
#[derive(Debug, Default)]
pub(crate) struct IoErrorLog {
    files: u64,
    /// The last one. A client that has failed one way tries the next.
    last: Vec<u8>,
}

/// What a request is about.
enum Subject<'r> {
    Path(&'r [u8]),
    Handle(&'r [u8]),
}

/// And whether it reads.
fn subject<'r>(request: &Request<'r>) -> Option<(Subject<'r>, bool)> {
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
        // OpenSSH's order: where it is comes second.
        | R::Symlink { second: path, .. } => Subject::Path(path),
        R::Read { handle, .. }
        | R::ReadZstd { handle, .. }
        | R::ReadSparse { handle, .. }
        | R::Hash { handle, .. }
        | R::Write { handle, .. }
        | R::WriteZstd { handle, .. }
        | R::Fsetstat { handle, .. }
        | R::Fsync { handle }
        | R::CopyData { to: handle, .. } => Subject::Handle(handle),
        _ => return None,
    };
    Some((subject, reads))
}

impl IoErrorLog {
    fn add(&mut self, path: &[u8], errno: Errno, reads: bool) {
        if self.last == path {
            return;
        }
        self.last = path.to_vec();
        self.files += 1;
        if self.files > NAMED {
            return;
        }
        let (path, why) = (field(path), words(errno));
        match reads {
            true => warn!(%path, "cannot be read: {why}"),
            false => warn!(%path, "cannot be written: {why}"),
        }
    }
}

impl Drop for IoErrorLog {
    fn drop(&mut self) {
        if let Some(files) = self.files.checked_sub(NAMED).filter(|n| *n > 0) {
            warn!(files, "more could not be written or read");
        }
    }
}

impl Session<'_> {
    /// Says in the log that `request` has failed, where that is a disk's doing.
    pub(crate) fn tell_of_disk(&mut self, request: &Request<'_>, refused: &Refused) {
        let Some((errno, (subject, reads))) = refused.disk.zip(subject(request)) else {
            return;
        };
        match subject {
            Subject::Path(path) => self.troubles.add(path, errno, reads),
            Subject::Handle(handle) => self.tell_of_handle(handle, errno, reads),
        }
    }

    /// The same of what was asked of an open file and carried out aside.
    pub(crate) fn tell_of_open(&mut self, handle: &[u8], errno: Errno, reads: bool) {
        if let Some(errno) = Refused::from(errno).disk {
            self.tell_of_handle(handle, errno, reads);
        }
    }

    /// Once for each, whatever else its client asks of it.
    fn tell_of_handle(&mut self, handle: &[u8], errno: Errno, reads: bool) {
        if let Ok(Open::File { path, told, .. }) = self.handles.get_mut(handle)
            && !std::mem::replace(told, true)
        {
            self.troubles.add(path, errno, reads);
        }
    }

    /// The same of a file that was to be written to `path`.
    pub(crate) fn tell_of_path(&mut self, path: &[u8], refused: &Refused) {
        if let Some(errno) = refused.disk {
            self.troubles.add(path, errno, false);
        }
    }
}
