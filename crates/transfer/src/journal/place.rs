use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use plan::journal::{State, Unusable, replay};
use rustix::fs::{FlockOperation, flock};

use crate::disk::is_ours;

/// A larger file is not read: a journal of ten million files is smaller.
const LARGEST: u64 = 4 << 30;

/// Where the journal of a copy may be.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    identity: Vec<u8>,
    /// The best first.
    files: Vec<PathBuf>,
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
    /// For the copy that `identity` names, to `local` or to another machine.
    pub(crate) fn new(identity: Vec<u8>, local: Option<&Path>) -> Self {
        let hash = digest::digest(&digest::SHA256, &identity);
        let name: String = hash
            .as_ref()
            .iter()
            .take(10)
            .map(|b| format!("{b:02x}"))
            .collect();
        let mut files = Vec::new();
        let beside = local.and_then(|target| std::path::absolute(target).ok());
        if let Some(folder) = beside.as_deref().and_then(Path::parent) {
            files.push(folder.join(format!(".longhaul-{name}.journal")));
        }
        if let Some(folder) = state_folder() {
            files.push(folder.join(format!("{name}.journal")));
        }
        Self { identity, files }
    }

    pub(crate) fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Looks for what an earlier run has left.
    pub(crate) fn find(&self) -> io::Result<Found> {
        for path in &self.files {
            let file = match open(path, false) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) if e.kind() == io::ErrorKind::NotADirectory => continue,
                // Somebody else's.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(e) => return Err(e),
            };
            // In a folder that others may write, one may stand that says what they want believed.
            if !is_ours(&file.metadata()?) {
                continue;
            }
            if !lock(&file)? {
                return Ok(Found::Busy(path.clone()));
            }
            return self.read(file, path.clone());
        }
        Ok(Found::Nothing)
    }

    fn read(&self, file: File, path: PathBuf) -> io::Result<Found> {
        let why = if file.metadata()?.len() > LARGEST {
            "it is too long for one".to_owned()
        } else {
            let mut bytes = Vec::new();
            (&file).read_to_end(&mut bytes)?;
            match replay(&bytes) {
                Ok(left) if left.state.identity().is_empty() => {
                    // It ended before it said anything.
                    fs::remove_file(&path)?;
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
                    why @ (Unusable::Foreign | Unusable::Version(_) | Unusable::Damaged { .. }),
                ) => why.to_string(),
            }
        };
        let mut aside = path.clone().into_os_string().into_vec();
        aside.extend_from_slice(b".unusable");
        let aside = PathBuf::from(OsString::from_vec(aside));
        fs::rename(&path, &aside)?;
        let (path, aside) = (
            crate::report::Name::from(&*path),
            crate::report::Name::from(&*aside),
        );
        Ok(Found::Aside(format!(
            "{path}: {why}, so the copy starts afresh; what it said stays in {aside}"
        )))
    }

    /// Makes the file.
    pub(crate) fn create(&self) -> io::Result<(File, PathBuf)> {
        let mut failed = io::Error::other("there is no place for it: HOME is not set");
        for path in &self.files {
            if let Some(folder) = path.parent() {
                // A destination's own folder is the user's to make.
                let hidden = path
                    .file_name()
                    .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
                if !hidden {
                    let _ = fs::DirBuilder::new()
                        .recursive(true)
                        .mode(0o700)
                        .create(folder);
                }
            }
            match open(path, true) {
                Ok(file) if lock(&file)? => return Ok((file, path.clone())),
                Ok(_) => failed = io::Error::other("another longhaul has just begun the same copy"),
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(create)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

/// False if another process has it.
fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Where what outlives a run is kept: `$XDG_STATE_HOME/longhaul`, or under `~/.local/state`.
pub fn state_folder() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local").join("state")))?;
    Some(state.join("longhaul"))
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

    #[test]
    fn what_another_user_left_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(b"a copy".to_vec(), Some(&folder.path().join("target")));
        let (file, path) = place.create().unwrap();
        drop(file);
        let ours = place.files[..1].to_vec();
        let place = Place {
            files: ours,
            ..place
        };
        // Empty, it is taken away.
        assert!(matches!(place.find().unwrap(), Found::Nothing));
        assert!(!path.exists());
        fs::write(&path, b"no journal").unwrap();
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            // Only root gives files away.
            return;
        }
        assert!(matches!(place.find().unwrap(), Found::Nothing));
        assert_eq!(fs::read(&path).unwrap(), b"no journal");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        assert!(matches!(place.find().unwrap(), Found::Aside(_)));
    }
}
