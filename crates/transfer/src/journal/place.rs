use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use rustix::fs::{FlockOperation, flock};
use schedule::journal::{State, UnusableJournal, replay};

use crate::private_dir::{PrivateDir, UserDir};
use crate::report::Name;

/// A larger file is not read: a journal of ten million files is smaller.
const LARGEST: u64 = 4 << 30;

/// The journal file of a copy: in the user's state folder, where nobody else can write. Up to
/// version 2 it lay beside a local target, and a server could send one.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    identity: Vec<u8>,
    /// `None` where the user has no state folder.
    folder: Option<PathBuf>,
    name: OsString,
    /// Where a journal of version 2 would lie beside the target.
    beside: Option<PathBuf>,
}

/// What is there.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    /// Another process writes it.
    Busy(PathBuf),
    /// It may not be believed, and was put aside: a sentence.
    Aside(String),
    /// An earlier run left it; nobody else writes it while the file is open.
    Left {
        file: File,
        path: PathBuf,
        state: Box<State>,
        good: u64,
    },
}

impl Place {
    /// For the copy that `command` names, to `local` or to another machine. The same command on
    /// another machine is another copy: homes are shared between machines.
    pub(crate) fn new(command: &[u8], local: Option<&Path>) -> Self {
        Self::at(UserDir::State.path(), command, local)
    }

    fn at(folder: Option<PathBuf>, command: &[u8], local: Option<&Path>) -> Self {
        let identity = [&machine(), command].concat();
        let beside = local.and_then(|target| std::path::absolute(target).ok());
        let beside = beside.as_deref().and_then(Path::parent);
        Self {
            folder,
            name: format!("{}.journal", short_hash(&identity)).into(),
            beside: beside.map(|f| f.join(format!(".longhaul-{}.journal", short_hash(command)))),
            identity,
        }
    }

    pub(crate) fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// A file beside the target that an older longhaul would take for its journal. Whoever made
    /// the target's tree could have put it there.
    pub(crate) fn beside(&self) -> Option<&Path> {
        let is_file = |path: &&PathBuf| fs::symlink_metadata(path).is_ok_and(|m| m.is_file());
        self.beside.as_ref().filter(is_file).map(PathBuf::as_path)
    }

    /// Looks for what an earlier run has left.
    pub(crate) fn find(&self) -> io::Result<Found> {
        // [`Place::create`] says why there is no folder, where a journal is needed.
        let dir = self.folder.as_deref().map(PrivateDir::open);
        let Some(Ok(dir)) = dir else {
            return Ok(Found::Nothing);
        };
        let file = match dir.file(&self.name, true) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(e) => return Err(e),
        };
        let path = dir.path().join(&self.name);
        // The process that had it removes it when its copy is whole.
        if !lock(&file)? || file.metadata()?.nlink() == 0 {
            return Ok(Found::Busy(path));
        }
        self.read(&dir, file, path)
    }

    fn read(&self, dir: &PrivateDir, file: File, path: PathBuf) -> io::Result<Found> {
        let why = if file.metadata()?.len() > LARGEST {
            "it is too long for one".to_owned()
        } else {
            let mut bytes = Vec::new();
            (&file).read_to_end(&mut bytes)?;
            match replay(&bytes) {
                Ok(left) if left.state.identity().is_empty() => {
                    // It ended before it said anything.
                    dir.remove(&self.name)?;
                    return Ok(Found::Nothing);
                }
                Ok(left) if left.state.identity() == self.identity => {
                    return Ok(Found::Left {
                        file,
                        path,
                        state: Box::new(left.state),
                        good: left.good as u64,
                    });
                }
                Ok(_) => "it is of another copy".to_owned(),
                Err(
                    why @ (UnusableJournal::Foreign
                    | UnusableJournal::Version(_)
                    | UnusableJournal::Damaged { .. }),
                ) => why.to_string(),
            }
        };
        let mut aside = self.name.clone();
        aside.push(".unusable");
        dir.rename(&self.name, &aside)?;
        let aside = Name::from(&*dir.path().join(aside));
        let path = Name::from(&*path);
        Ok(Found::Aside(format!(
            "{path}: {why}, so the copy starts afresh; what it said stays in {aside}"
        )))
    }

    /// Makes the file.
    pub(crate) fn create(&self) -> io::Result<(File, PathBuf)> {
        let Some(folder) = &self.folder else {
            let why =
                "neither XDG_STATE_HOME, nor HOME, nor the password file names a folder for it";
            return Err(io::Error::other(why));
        };
        let dir = PrivateDir::create(folder)?;
        let taken = || io::Error::other("another longhaul has just begun the same copy");
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

/// The first 80 bits of the SHA-256, in hexadecimal.
fn short_hash(of: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, of);
    let bytes = hash.as_ref().iter().take(10);
    bytes.map(|b| format!("{b:02x}")).collect()
}

/// Tells this machine from others that share its users' homes: machine-id(5) and the host name,
/// since machines that were made of one image may have the first in common.
fn machine() -> Vec<u8> {
    let mut name = fs::read("/etc/machine-id").unwrap_or_default();
    name.truncate(name.trim_ascii_end().len().min(64));
    name.push(0);
    name.extend_from_slice(rustix::system::uname().nodename().to_bytes());
    name.push(0);
    name
}

/// False if another process has it.
fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Names the start of this machine's kernel; empty where it has no name.
pub(crate) fn boot_here() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim_ascii().to_vec())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &Path) -> Place {
        let target = folder.join("target");
        Place::at(Some(folder.join("state")), b"a copy", Some(&target))
    }

    #[test]
    fn a_journal_of_another_user_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        assert!(matches!(place.find().unwrap(), Found::Nothing));
        let (file, path) = place.create().unwrap();
        assert!(matches!(place.find().unwrap(), Found::Busy(_)));
        assert!(place.create().is_err());
        drop(file);
        // Empty, it is taken away.
        assert!(matches!(place.find().unwrap(), Found::Nothing));
        assert!(!path.exists());
        fs::write(&path, b"no journal").unwrap();
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            // Only root gives files away.
            return;
        }
        assert!(place.find().is_err());
        assert_eq!(fs::read(&path).unwrap(), b"no journal");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        assert!(matches!(place.find().unwrap(), Found::Aside(_)));
    }

    /// A server sent such a file, and what it said was done to files anywhere.
    #[test]
    fn no_journal_is_read_beside_the_target() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let identity = place.identity().to_vec();
        let mut bytes = Vec::new();
        schedule::journal::Writer::header(&mut bytes);
        let copy = schedule::journal::Record::Copy { identity };
        schedule::journal::Writer::default().write(&copy, &mut bytes);
        assert_eq!(place.beside(), None);
        let beside = place.beside.clone().unwrap();
        for name in [beside.file_name().unwrap(), &place.name] {
            fs::write(folder.path().join(name), &bytes).unwrap();
            assert!(matches!(place.find().unwrap(), Found::Nothing));
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
        assert!(matches!(place.find().unwrap(), Found::Nothing));
        let why = place.create().unwrap_err().to_string();
        assert!(why.contains("can be written by"), "{why}");
        let nowhere = Place {
            folder: None,
            ..place
        };
        assert!(matches!(nowhere.find().unwrap(), Found::Nothing));
        assert!(nowhere.create().is_err());
    }
}
