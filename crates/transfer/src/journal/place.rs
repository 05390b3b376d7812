//! Finds, checks and creates the journal's file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use rustix::fs::{FlockOperation, flock};
use schedule::journal::{JournalReadError, JournalReplay, JournalReplayer, JournalState};

use crate::private_dir::{LonghaulDirKind, PrivateDir};
use crate::report::EscapedName;

/// The largest journal that is read, in bytes; a journal of ten million files is smaller.
const LARGEST: u64 = 4 << 30;
/// About the bytes of memory that a journal's state may take: two million files.
const MOST_MEMORY: usize = 1 << 30;
/// The bytes that are read at once.
const PIECE: usize = 256 << 10;

/// The location of a copy's journal: in the user's state folder, where other users cannot write. Up
/// to version 2 it lay beside a local target, and a server could send one.
#[derive(Clone, Debug)]
pub(crate) struct JournalLocation {
    identity: Vec<u8>,
    /// The state folder; `None` if the user has none.
    folder: Option<PathBuf>,
    name: OsString,
    /// A lease of the shard decides who may write, so a locked journal is taken over.
    leased: bool,
    /// The path of a version 2 journal beside the target.
    beside: Option<PathBuf>,
}

/// The result of looking for a journal.
#[derive(Debug)]
pub(crate) enum JournalSearchResult {
    Nothing,
    /// Another process is writing the journal.
    Busy(PathBuf),
    /// The journal is not trusted and was renamed; contains a sentence for the user.
    SetAside(String),
    /// A journal from an earlier run, locked while the file is open.
    Found {
        file: File,
        path: PathBuf,
        state: Box<JournalState>,
        good: u64,
    },
}

impl JournalLocation {
    /// Returns the journal's location for the copy that `command` identifies; `local` is a local
    /// target. The machine is part of the identity, since home directories may be shared.
    pub(crate) fn new(command: &[u8], local: Option<&Path>) -> Self {
        Self::at(LonghaulDirKind::State.path(), command, local)
    }

    /// Returns the location in a folder that several machines share: one of them can resume what
    /// another one has left, so the machine is not part of the identity.
    pub(crate) fn shared(folder: &Path, command: &[u8]) -> Self {
        Self {
            identity: command.to_vec(),
            folder: Some(folder.to_path_buf()),
            name: format!("{}.journal", short_hash(command)).into(),
            leased: true,
            beside: None,
        }
    }

    fn at(folder: Option<PathBuf>, command: &[u8], local: Option<&Path>) -> Self {
        let identity = [&machine(), command].concat();
        let beside = local.and_then(|target| std::path::absolute(target).ok());
        let beside = beside.as_deref().and_then(Path::parent);
        Self {
            folder,
            name: format!("{}.journal", short_hash(&identity)).into(),
            leased: false,
            beside: beside.map(|f| f.join(format!(".longhaul-{}.journal", short_hash(command)))),
            identity,
        }
    }

    pub(crate) fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Returns a file beside the target that an older longhaul would use as its journal. The
    /// creator of the target's tree could have planted it.
    pub(crate) fn beside(&self) -> Option<&Path> {
        let is_file = |path: &&PathBuf| fs::symlink_metadata(path).is_ok_and(|m| m.is_file());
        self.beside.as_ref().filter(is_file).map(PathBuf::as_path)
    }

    /// Looks for a journal of an earlier run.
    pub(crate) fn find(&self) -> io::Result<JournalSearchResult> {
        // [`JournalLocation::create`] reports why there is no folder, if a journal is needed.
        let dir = self.folder.as_deref().map(PrivateDir::open);
        let Some(Ok(dir)) = dir else {
            return Ok(JournalSearchResult::Nothing);
        };
        let found = self.find_in(&dir);
        found.map_err(|error| match &self.folder {
            Some(folder) => unwritable(folder, error),
            None => error,
        })
    }

    fn find_in(&self, dir: &PrivateDir) -> io::Result<JournalSearchResult> {
        let file = match dir.file(&self.name, true) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(JournalSearchResult::Nothing);
            }
            Err(e) => return Err(e),
        };
        let path = dir.path().join(&self.name);
        // The process that holds the lock removes the file when its copy is complete.
        if self.leased && !lock(&file)? {
            let file = self.take_over(dir, &file)?;
            let path = dir.path().join(&self.name);
            return self.read(dir, file, path);
        }
        if !lock(&file)? || file.metadata()?.nlink() == 0 {
            return Ok(JournalSearchResult::Busy(path));
        }
        self.read(dir, file, path)
    }

    /// Replaces a journal that another process holds by a copy. That process has lost its lease: it
    /// is paused, or its machine is gone and the file server has not noticed yet. It goes on
    /// writing into the file without a name, until it sees the loss.
    fn take_over(&self, dir: &PrivateDir, mut held: &File) -> io::Result<File> {
        let mut copy = self.name.clone();
        copy.push(".copy");
        match dir.remove(&copy) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = dir.create_file(&copy)?;
        held.rewind()?;
        io::copy(&mut held, &mut file)?;
        file.sync_all()?;
        lock(&file)?;
        dir.rename(&copy, &self.name)?;
        Ok(file)
    }

    fn read(&self, dir: &PrivateDir, file: File, path: PathBuf) -> io::Result<JournalSearchResult> {
        let why = if file.metadata()?.len() > LARGEST {
            "the file is too large to be a journal".to_owned()
        } else {
            match read_journal(&file)? {
                Ok(left) if left.state.identity().is_empty() => {
                    // The earlier run ended before it wrote a record.
                    dir.remove(&self.name)?;
                    return Ok(JournalSearchResult::Nothing);
                }
                Ok(left) if left.state.identity() == self.identity => {
                    return Ok(JournalSearchResult::Found {
                        file,
                        path,
                        state: Box::new(left.state),
                        good: left.good as u64,
                    });
                }
                Ok(_) => "the journal belongs to another copy".to_owned(),
                Err(
                    why @ (JournalReadError::Foreign
                    | JournalReadError::Version(_)
                    | JournalReadError::Damaged { .. }),
                ) => why.to_string(),
            }
        };
        let mut aside = self.name.clone();
        aside.push(".unusable");
        dir.rename(&self.name, &aside)?;
        let aside = EscapedName::from(&*dir.path().join(aside));
        let path = EscapedName::from(&*path);
        Ok(JournalSearchResult::SetAside(format!(
            "{path}: {why}: starting the copy from the beginning; the old journal was moved to \
             {aside}"
        )))
    }

    /// Creates and locks the journal file.
    pub(crate) fn create(&self) -> io::Result<(File, PathBuf)> {
        let Some(folder) = &self.folder else {
            let why = "there is no directory for its journal: XDG_STATE_HOME and HOME are not set, \
                       and the password file has no home";
            return Err(io::Error::other(why));
        };
        let dir = PrivateDir::create(folder).map_err(|e| unwritable(folder, e))?;
        let taken = || io::Error::other("another longhaul has just started the same copy");
        let file = match dir.create_file(&self.name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(taken()),
            file => file?,
        };
        match lock(&file)? {
            true => Ok((file, dir.path().join(&self.name))),
            false => Err(taken()),
        }
    }
}

/// Adds the folder to an error of the system; other errors name it already.
fn unwritable(folder: &Path, error: io::Error) -> io::Error {
    if error.raw_os_error().is_none() {
        return error;
    }
    let what = format!(
        "cannot write its journal in {}: {}: set XDG_STATE_HOME to a directory that this account \
         can write",
        EscapedName::from(folder),
        sys::os_words(&error)
    );
    io::Error::new(error.kind(), what)
}

/// Reads a journal from its beginning, with bounded memory.
///
/// # Errors
/// The file cannot be read. An unusable journal is the inner error.
pub(crate) fn read_journal(mut file: &File) -> io::Result<Result<JournalReplay, JournalReadError>> {
    let mut replayer = JournalReplayer::new(MOST_MEMORY);
    let mut piece = vec![0; PIECE];
    file.rewind()?;
    loop {
        let read = match file.read(&mut piece) {
            Ok(0) => return Ok(replayer.end()),
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if let Err(why) = replayer.take(piece.get(..read).unwrap_or_default()) {
            return Ok(Err(why));
        }
    }
}

/// Returns the first 80 bits of the SHA-256 in hexadecimal.
fn short_hash(of: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, of);
    let bytes = hash.as_ref().iter().take(10);
    bytes.map(|b| format!("{b:02x}")).collect()
}

/// Identifies this machine among those that share home directories, by machine-id(5) and host name:
/// machines cloned from one image may have the same machine-id.
fn machine() -> Vec<u8> {
    let mut name = fs::read("/etc/machine-id").unwrap_or_default();
    name.truncate(name.trim_ascii_end().len().min(64));
    name.push(0);
    name.extend_from_slice(rustix::system::uname().nodename().to_bytes());
    name.push(0);
    name
}

/// Locks the file; false if another process holds the lock.
fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Returns the boot ID of this machine's kernel; empty if unknown.
pub(crate) fn boot_here() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim_ascii().to_vec())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &Path) -> JournalLocation {
        let target = folder.join("target");
        JournalLocation::at(Some(folder.join("state")), b"a copy", Some(&target))
    }

    #[test]
    fn a_journal_of_another_user_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        assert!(matches!(
            place.find().unwrap(),
            JournalSearchResult::Nothing
        ));
        let (file, path) = place.create().unwrap();
        assert!(matches!(
            place.find().unwrap(),
            JournalSearchResult::Busy(_)
        ));
        assert!(place.create().is_err());
        drop(file);
        // An empty journal is removed.
        assert!(matches!(
            place.find().unwrap(),
            JournalSearchResult::Nothing
        ));
        assert!(!path.exists());
        fs::write(&path, b"no journal").unwrap();
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            // Only root can change a file's owner.
            return;
        }
        assert!(place.find().is_err());
        assert_eq!(fs::read(&path).unwrap(), b"no journal");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        assert!(matches!(
            place.find().unwrap(),
            JournalSearchResult::SetAside(_)
        ));
    }

    /// Regression test: the worker that followed a paused one could not begin its shard.
    #[test]
    fn the_journal_of_a_shard_is_taken_from_a_worker_that_has_lost_its_lease() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan");
        let place = JournalLocation::shared(&path, b"a shard");
        let (mut paused, name) = place.create().unwrap();
        let mut bytes = Vec::new();
        schedule::journal::JournalEncoder::header(&mut bytes);
        let identity = place.identity().to_vec();
        let copy = schedule::journal::JournalRecord::Copy { identity };
        schedule::journal::JournalEncoder::default().write(&copy, &mut bytes);
        io::Write::write_all(&mut paused, &bytes).unwrap();
        let JournalSearchResult::Found { file, .. } = place.find().unwrap() else {
            panic!("not found");
        };
        // What the paused one writes later is lost with its file.
        io::Write::write_all(&mut paused, b"more").unwrap();
        assert_eq!(fs::read(&name).unwrap(), bytes);
        drop(file);
    }

    /// Regression test: a server sent such a file, and its contents affected unrelated local files.
    #[test]
    fn no_journal_is_read_beside_the_target() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let identity = place.identity().to_vec();
        let mut bytes = Vec::new();
        schedule::journal::JournalEncoder::header(&mut bytes);
        let copy = schedule::journal::JournalRecord::Copy { identity };
        schedule::journal::JournalEncoder::default().write(&copy, &mut bytes);
        assert_eq!(place.beside(), None);
        let beside = place.beside.clone().unwrap();
        for name in [beside.file_name().unwrap(), &place.name] {
            fs::write(folder.path().join(name), &bytes).unwrap();
            assert!(matches!(
                place.find().unwrap(),
                JournalSearchResult::Nothing
            ));
        }
        assert_eq!(place.beside(), Some(&*beside));
        assert_eq!(fs::read(beside).unwrap(), bytes);
    }

    #[test]
    fn a_folder_that_others_can_write_has_no_journal() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        drop(place.create().unwrap());
        let state = folder.path().join("state");
        fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            place.find().unwrap(),
            JournalSearchResult::Nothing
        ));
        let why = place.create().unwrap_err().to_string();
        assert!(why.contains("is writable by"), "{why}");
        let nowhere = JournalLocation {
            folder: None,
            ..place
        };
        assert!(matches!(
            nowhere.find().unwrap(),
            JournalSearchResult::Nothing
        ));
        assert!(nowhere.create().is_err());
    }
}
