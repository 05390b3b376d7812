use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::Dir;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::beneath::ServedPart;
use crate::growing::GrowingFile;

use super::request_error::{Exhausted, Invalid, RequestError, Unsuitable};

/// The open file or directory of a handle.
#[derive(Debug)]
enum OpenHandle {
    File(OpenFile),
    Dir(OpenDir),
}

/// Regular file or device behind a handle, with the bytes read and written through it for the
/// transfer log.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: Arc<File>,
    append: bool,
    sent: u64,
    received: u64,
    /// Path that the client used.
    path: Vec<u8>,
    error_logged: bool,
    growing: Option<Arc<GrowingFile>>,
}

impl OpenFile {
    pub(super) fn new(file: File, path: &[u8], append: bool) -> Self {
        Self {
            file: Arc::new(file),
            append,
            sent: 0,
            received: 0,
            path: path.to_vec(),
            error_logged: false,
            growing: None,
        }
    }

    /// A file that is still being written. Its directory stands for it until data are read.
    pub(super) fn growing(directory: File, path: &[u8], growing: Arc<GrowingFile>) -> Self {
        Self {
            growing: Some(growing),
            ..Self::new(directory, path, false)
        }
    }

    /// The file, if it is still being written.
    pub(super) fn as_growing(&self) -> Option<&Arc<GrowingFile>> {
        self.growing.as_ref()
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Offset at which data that the client sends for `offset` are written; `None` for the end of a
    /// file that was opened for appending.
    pub(super) fn write_offset(&self, offset: u64) -> Option<u64> {
        (!self.append).then_some(offset)
    }

    /// Counts bytes received from the client.
    pub(super) fn count_received(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// Replaces the file, which another program has begun again.
    pub(super) fn set_file(&mut self, file: Arc<File>) {
        self.file = file;
    }

    /// Path that the client used, and the bytes sent and received.
    pub(super) fn transfer(&self) -> (&[u8], u64, u64) {
        (&self.path, self.sent, self.received)
    }

    /// Path for a log line about an error of this file; `None` after the first.
    pub(super) fn log_once(&mut self) -> Option<&[u8]> {
        (!std::mem::replace(&mut self.error_logged, true)).then_some(&*self.path)
    }

    /// Takes the file apart to close it: the file, its path, and the bytes sent and received.
    pub(super) fn into_closing(self) -> (Arc<File>, Vec<u8>, u64, u64) {
        (self.file, self.path, self.sent, self.received)
    }
}

/// Directory behind a handle, with the position of the listing for READDIR.
#[derive(Debug)]
pub(super) struct OpenDir {
    dir: Dir,
    fd: OwnedFd,
    served: ServedPart,
}

impl OpenDir {
    /// Opens a directory of which a part is served.
    pub(super) fn new(fd: OwnedFd, served: ServedPart) -> Result<Self, Errno> {
        let dir = Dir::read_from(&fd)?;
        Ok(Self { dir, fd, served })
    }

    /// True if an entry may be named.
    pub(super) fn serves(&self, name: &[u8]) -> bool {
        matches!(name, b"." | b"..") || self.served.has(name)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The name of the next entry; `None` at the end.
    pub(super) fn next_name(&mut self) -> Option<Result<Vec<u8>, Errno>> {
        let entry = self.dir.read()?;
        Some(entry.map(|entry| entry.file_name().to_bytes().to_vec()))
    }
}

/// Handles of a client, numbered as in sftp-server.c: four bytes, the lowest free number. Clients
/// that know this predict a handle before they receive it.
#[derive(Debug)]
pub(crate) struct HandleTable {
    open: Vec<Option<(OpenHandle, DescriptorPermit)>>,
    most: usize,
    share: Option<DescriptorBudget>,
}

/// A descriptor taken from a budget, returned when dropped; `None` inside if there is no budget.
#[derive(Debug)]
pub(crate) struct DescriptorPermit(Option<DescriptorBudget>);

/// Limit on simultaneously open files and directories of a session.
#[derive(Clone, Debug)]
pub struct OpenFileLimit {
    session: usize,
    share: Option<DescriptorBudget>,
}

/// Limit on descriptors that the connections of a process share.
#[derive(Clone, Debug)]
struct DescriptorBudget {
    /// Number of handles of all sessions of this connection.
    mine: Arc<AtomicUsize>,
    /// Number of handles that this connection may always have.
    reserved: usize,
    /// Limit on the handles of all connections.
    all: usize,
}

/// Handles of all connections of this process.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Handles that a connection may always have. A tenth of a soft limit that was raised to tens of
/// thousands suffices for this on a thousand connections.
const RESERVED: usize = 4;

impl From<usize> for OpenFileLimit {
    fn from(session: usize) -> Self {
        let share = None;
        Self { session, share }
    }
}

impl OpenFileLimit {
    /// Creates the allowance of a connection, which each of its sessions gets a copy of. All
    /// connections together may use half of the descriptors, so that some remain for new clients;
    /// one session may use a 64th.
    pub(crate) fn of_connection() -> Self {
        const SHARES: u64 = 64;
        const LEAST: usize = 64;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let to = |share| usize::try_from(share).unwrap_or(usize::MAX);
        Self {
            session: to(limit / SHARES).max(LEAST),
            share: Some(DescriptorBudget {
                mine: Arc::default(),
                reserved: RESERVED,
                all: to(limit / 2),
            }),
        }
    }

    /// Descriptors that the sessions of the connection hold.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        let share = self.share.as_ref();
        share.map_or(0, |share| share.mine.load(Ordering::Relaxed))
    }
}

impl DescriptorBudget {
    /// Takes a descriptor if the budget has one.
    fn take(&self) -> Option<DescriptorPermit> {
        let mine = self.mine.fetch_add(1, Ordering::Relaxed);
        let all = ALL.fetch_add(1, Ordering::Relaxed);
        let taken = DescriptorPermit(Some(self.clone()));
        (mine < self.reserved || all < self.all).then_some(taken)
    }
}

impl Drop for DescriptorPermit {
    fn drop(&mut self) {
        if let Some(share) = &self.0 {
            share.mine.fetch_sub(1, Ordering::Relaxed);
            ALL.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A free handle, reserved before the file is opened.
#[derive(Debug)]
pub(crate) struct ReservedHandle {
    at: usize,
    taken: DescriptorPermit,
}

/// Descriptors that the process needs itself: its streams, a root, and those that a request opens
/// temporarily.
const OWN: u64 = 16;
/// Maximum number of handles of a client.
const MOST: u64 = 4096;

impl HandleTable {
    /// Creates an empty table, limited by the process's descriptors and by the allowance.
    pub(crate) fn new(allowance: OpenFileLimit) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = limit.saturating_sub(OWN).clamp(1, MOST) as usize;
        Self {
            open: Vec::new(),
            most: limit.min(allowance.session),
            share: allowance.share,
        }
    }

    /// Maximum number of handles that the table can have.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Number of further handles that the table can have.
    pub(crate) fn free(&self) -> usize {
        let open = self.open.iter().flatten().count();
        self.most.saturating_sub(open)
    }

    /// True if any handle is open.
    pub(crate) fn has_open(&self) -> bool {
        self.open.iter().any(Option::is_some)
    }

    /// Closes all handles.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// The open files.
    pub(super) fn files(&self) -> impl Iterator<Item = &OpenFile> {
        let open = self.open.iter().flatten();
        open.filter_map(|(open, _)| match open {
            OpenHandle::File(file) => Some(file),
            OpenHandle::Dir(_) => None,
        })
    }

    /// Takes a descriptor for a file without a handle, if the budget has one.
    pub(crate) fn take(&self) -> Option<DescriptorPermit> {
        match &self.share {
            Some(share) => share.take(),
            None => Some(DescriptorPermit(None)),
        }
    }

    /// Reserves a handle; must be called before opening, because OPEN may create or truncate a
    /// file.
    ///
    /// # Errors
    /// All handles or descriptors are in use.
    pub(crate) fn reserve(&self) -> Result<ReservedHandle, RequestError> {
        let free = self.open.iter().position(Option::is_none);
        let at = free.unwrap_or(self.open.len());
        let taken = (at < self.most).then(|| self.take()).flatten();
        let taken = taken.ok_or(Exhausted::OpenFiles)?;
        Ok(ReservedHandle { at, taken })
    }

    /// Fills a reserved handle. No other handle may have been inserted since the reservation.
    pub(super) fn insert(&mut self, room: ReservedHandle, file: OpenFile) -> [u8; 4] {
        self.fill(room, OpenHandle::File(file))
    }

    /// Fills a reserved handle with a directory.
    pub(super) fn insert_dir(&mut self, room: ReservedHandle, dir: OpenDir) -> [u8; 4] {
        self.fill(room, OpenHandle::Dir(dir))
    }

    fn fill(&mut self, room: ReservedHandle, open: OpenHandle) -> [u8; 4] {
        let ReservedHandle { at, taken } = room;
        let open = (open, taken);
        match self.open.get_mut(at) {
            Some(place) => *place = Some(open),
            None => self.open.push(Some(open)),
        }
        (at as u32).to_be_bytes()
    }

    fn get(&self, handle: &[u8]) -> Result<&OpenHandle, RequestError> {
        let open = self.open.get(index(handle)?).and_then(Option::as_ref);
        open.map(|(open, _)| open).ok_or_else(unknown)
    }

    fn get_mut(&mut self, handle: &[u8]) -> Result<&mut OpenHandle, RequestError> {
        let open = self.open.get_mut(index(handle)?).and_then(Option::as_mut);
        open.map(|(open, _)| open).ok_or_else(unknown)
    }

    /// Descriptor of an open file or directory.
    pub(super) fn fd(&self, handle: &[u8]) -> Result<BorrowedFd<'_>, RequestError> {
        Ok(match self.get(handle)? {
            OpenHandle::File(open) => open.file.as_fd(),
            OpenHandle::Dir(dir) => dir.fd(),
        })
    }

    /// The file of a handle; a directory is an error of the request.
    pub(super) fn file(&self, handle: &[u8]) -> Result<&Arc<File>, RequestError> {
        match self.get(handle)? {
            OpenHandle::File(open) => Ok(&open.file),
            OpenHandle::Dir(_) => Err(Unsuitable::Directory.into()),
        }
    }

    /// The open file of a handle, to read or write; a directory is an error (EISDIR).
    pub(super) fn open(&self, handle: &[u8]) -> Result<&OpenFile, RequestError> {
        match self.get(handle)? {
            OpenHandle::File(open) => Ok(open),
            OpenHandle::Dir(_) => Err(Errno::ISDIR.into()),
        }
    }

    /// The file of a handle, to read or write; a directory is an error (EISDIR).
    pub(super) fn open_file(&self, handle: &[u8]) -> Result<&Arc<File>, RequestError> {
        Ok(&self.open(handle)?.file)
    }

    /// The file of a handle, to change what is known about it; a directory is an error (EISDIR).
    pub(super) fn open_file_mut(&mut self, handle: &[u8]) -> Result<&mut OpenFile, RequestError> {
        match self.get_mut(handle)? {
            OpenHandle::File(open) => Ok(open),
            OpenHandle::Dir(_) => Err(Errno::ISDIR.into()),
        }
    }

    /// The directory of a handle; a file is an error (ENOTDIR).
    pub(super) fn open_dir_mut(&mut self, handle: &[u8]) -> Result<&mut OpenDir, RequestError> {
        match self.get_mut(handle)? {
            OpenHandle::Dir(dir) => Ok(dir),
            OpenHandle::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    /// Counts bytes of a file that were sent, if its handle is still open.
    pub(super) fn count_sent(&mut self, handle: &[u8], bytes: u64) {
        if let Ok(open) = self.open_file_mut(handle) {
            open.sent += bytes;
        }
    }

    /// True if data were written to the file.
    pub(super) fn has_received(&self, handle: &[u8]) -> bool {
        matches!(self.get(handle), Ok(OpenHandle::File(open)) if open.received > 0)
    }

    /// Frees a handle; returns the file, or `None` for a directory, which is closed.
    pub(super) fn remove(&mut self, handle: &[u8]) -> Result<Option<OpenFile>, RequestError> {
        let open = self.open.get_mut(index(handle)?).and_then(Option::take);
        match open.ok_or_else(unknown)? {
            (OpenHandle::File(open), _) => Ok(Some(open)),
            (OpenHandle::Dir(_), _) => Ok(None),
        }
    }
}

fn index(handle: &[u8]) -> Result<usize, RequestError> {
    let number: [u8; 4] = handle.try_into().map_err(|_| unknown())?;
    Ok(u32::from_be_bytes(number) as usize)
}

fn unknown() -> RequestError {
    Invalid::Handle.into()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};
    use rustix::io::Errno;
    use sftp::{Attrs, OpenFlags, Request, Response, StatusCode};

    use super::*;
    use crate::testing::{input, served};
    use crate::{Access, ExportedTree, SftpServer};

    /// Bug: OPEN created or truncated a file and then failed.
    #[test]
    fn what_there_is_no_room_for_is_not_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let export = ExportedTree::beneath(folder.path(), Access::Full).expect("Linux 5.6");
        let pool = wire::PacketPool::new(1 << 18, 1);
        let mut server = SftpServer::answering_in(pool, 1 << 18, &export, 1);
        let open = |path| Request::Open {
            path,
            flags: OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC,
            attrs: Attrs::default(),
        };
        std::fs::write(folder.path().join("b"), "kept").expect("our folder");
        let asked = [open(b"a"), open(b"b"), open(b"c")];
        let (answers, _) = served(&mut server, input(&asked, true));
        let refused = |answer: &bytes::Bytes| {
            let status = Response::decode(answer).expect("an answer").1;
            matches!(status, Response::Status { code, .. } if code == StatusCode::FAILURE)
        };
        let refused: Vec<bool> = answers[1..].iter().map(refused).collect();
        assert_eq!(refused, [false, true, true]);
        let kept = std::fs::read(folder.path().join("b")).expect("it is there");
        assert_eq!(kept, b"kept");
        assert!(!folder.path().join("c").exists());
    }

    /// Bug: a client with many sessions took all descriptors of an ordinary user's server, and
    /// nobody else could connect.
    #[test]
    fn who_has_much_open_leaves_some_for_others() {
        let before = ALL.load(Ordering::Relaxed);
        let allowance = |mine: &Arc<AtomicUsize>| OpenFileLimit {
            session: 10,
            share: Some(DescriptorBudget {
                mine: Arc::clone(mine),
                reserved: 2,
                all: before + 15,
            }),
        };
        let file = || -> Result<OpenFile, Errno> {
            let fd = rustix::fs::open("/", OFlags::PATH, Mode::empty())?;
            Ok(OpenFile::new(fd.into(), b"", false))
        };
        let fill = |handles: &mut HandleTable| {
            let mut insert = || {
                let room = handles.reserve().ok()?;
                Some(handles.insert(room, file().expect("it")))
            };
            (0..100).map_while(|_| insert()).count()
        };
        let (one, other) = (Arc::default(), Arc::default());
        let mut sessions = [&one, &one, &other].map(|mine| HandleTable::new(allowance(mine)));
        let [first, second, third] = &mut sessions;
        assert_eq!((fill(first), fill(second), fill(third)), (10, 5, 2));
        first.remove(&[0, 0, 0, 3]).expect("it is open");
        assert_eq!(fill(second), 0);
        first.clear();
        assert_eq!(fill(second), 5);
        drop(sessions);
        assert_eq!(ALL.load(Ordering::Relaxed), before);
        assert_eq!(one.load(Ordering::Relaxed), 0);
    }
}
