//! Reads private and public key files.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ssh::key::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use super::format::{self, EncryptedPrivateKey, KeyFileContents};
use super::openssh::UnreadableKey;
use super::{AppendToFileName, IdentityError};

/// The maximum size of a key or certificate file (OpenSSH's MAX_KEY_FILE_SIZE is 1 MiB).
const MAX_FILE: u64 = 1 << 20;

/// A file with a private key, or with a public key whose private key only an agent has.
pub(super) struct KeyFile {
    path: PathBuf,
    public: Option<PublicKey>,
    secret: PrivateKeyState,
}

enum PrivateKeyState {
    Ready(PrivateKey),
    Locked(EncryptedPrivateKey),
    /// Only an agent can sign with the key, for this reason.
    AgentOnly(&'static str),
}

impl KeyFile {
    /// Reads the file at `path`, or if it is missing, the public key file beside it, for which an
    /// agent may hold the private key.
    pub(super) fn find(path: &Path) -> Result<Self, IdentityError> {
        let (bytes, private) = match read(path) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let beside = path.with_extension_appended(".pub");
                let Ok((public, _)) = read_public(&beside) else {
                    return Err(IdentityError::io(path, &e));
                };
                return Ok(Self {
                    path: path.to_owned(),
                    public: Some(public),
                    secret: PrivateKeyState::AgentOnly(
                        "the private key file is missing and no agent holds the key",
                    ),
                });
            }
            Err(e) => return Err(IdentityError::io(path, &e)),
        };
        if let Some((public, _)) = public_line(&bytes) {
            return Ok(Self {
                path: path.to_owned(),
                public: Some(public),
                secret: PrivateKeyState::AgentOnly(
                    "this is a public key, and no agent holds its private key: name the private key \
                     file, usually the same name without .pub",
                ),
            });
        }
        // As in authfile.c `sshkey_perm_ok`: a private key that others can read is refused.
        if let Some(mode) = private.too_open() {
            return Err(IdentityError::new(
                path,
                format_args!(
                    "skipping the key: other users can read it (mode {mode:04o}); run chmod 600 \
                     on it"
                ),
            ));
        }
        let contents = format::read(&bytes).map_err(|why| IdentityError::new(path, why))?;
        let beside = || {
            let public = read_public(&path.with_extension_appended(".pub"));
            public.ok().map(|(key, _)| key)
        };
        let (public, secret) = match contents {
            KeyFileContents::Key(key) => (Some(key.public().clone()), PrivateKeyState::Ready(key)),
            KeyFileContents::Locked(locked, public) => {
                (public.or_else(beside), PrivateKeyState::Locked(locked))
            }
            KeyFileContents::Hardware(public) => (
                Some(public),
                PrivateKeyState::AgentOnly(
                    "it is a hardware key: load it into an ssh-agent (ssh-add)",
                ),
            ),
        };
        Ok(Self {
            path: path.to_owned(),
            public,
            secret,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the public key if it is known without a passphrase.
    pub(super) fn public(&self) -> Option<&PublicKey> {
        self.public.as_ref()
    }

    pub(super) fn is_locked(&self) -> bool {
        matches!(self.secret, PrivateKeyState::Locked(_))
    }

    pub(super) fn why_unusable(&self) -> Option<&'static str> {
        match self.secret {
            PrivateKeyState::AgentOnly(why) => Some(why),
            _ => None,
        }
    }

    pub(super) fn unlock(&mut self, passphrase: &str) -> Result<(), IdentityError> {
        let PrivateKeyState::Locked(locked) = &self.secret else {
            return Ok(());
        };
        let key = match locked.unlock(passphrase) {
            Ok(key) => key,
            Err(UnreadableKey::Passphrase) => {
                return Err(IdentityError::wrong_passphrase(&self.path));
            }
            Err(why) => return Err(IdentityError::new(&self.path, why)),
        };
        // The .pub file may belong to another key; the signing key must be the one that was
        // offered.
        if self
            .public
            .as_ref()
            .is_some_and(|p| p.blob() != key.public_blob())
        {
            return Err(IdentityError::new(
                &self.path,
                "the key does not match its .pub file; recreate that with ssh-keygen -y",
            ));
        }
        self.public = Some(key.public().clone());
        self.secret = PrivateKeyState::Ready(key);
        Ok(())
    }

    /// Returns the private key if it needs no passphrase.
    pub(super) fn into_key(self) -> Result<PrivateKey, IdentityError> {
        match self.secret {
            PrivateKeyState::Ready(key) => Ok(key),
            PrivateKeyState::Locked(_) => Err(IdentityError::no_passphrase(&self.path)),
            PrivateKeyState::AgentOnly(why) => Err(IdentityError::new(&self.path, why)),
        }
    }

    pub(super) fn sign(&self, algorithm: &str, data: &[u8]) -> Result<Vec<u8>, IdentityError> {
        match &self.secret {
            PrivateKeyState::Ready(key) => key
                .sign(algorithm, data)
                .map_err(|e| IdentityError::new(&self.path, format_args!("cannot sign: {e}"))),
            PrivateKeyState::Locked(_) => Err(IdentityError::no_passphrase(&self.path)),
            PrivateKeyState::AgentOnly(why) => Err(IdentityError::new(&self.path, why)),
        }
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFile({:?} {:?})", self.path, self.public)
    }
}

/// Reads a public key or certificate from a file of one line, with its comment.
pub(super) fn read_public(path: &Path) -> Result<(PublicKey, Vec<u8>), IdentityError> {
    let (bytes, _) = read(path).map_err(|e| IdentityError::io(path, &e))?;
    public_line(&bytes).ok_or_else(|| IdentityError::new(path, "not a public key"))
}

/// Parses `type base64 comment`.
fn public_line(bytes: &[u8]) -> Option<(PublicKey, Vec<u8>)> {
    let lines = bytes.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let line = lines
        .into_iter()
        .find(|l| !l.is_empty() && !l.starts_with(b"#"))?;
    let mut words = line.splitn(3, |b| *b == b' ' || *b == b'\t');
    let (key_type, encoded) = (words.next()?, words.next()?);
    let key = PublicKey::from_blob(&STANDARD.decode(encoded).ok()?).ok()?;
    let comment = words.next().unwrap_or_default().to_vec();
    (key.key_type().as_bytes() == key_type).then_some((key, comment))
}

struct FilePermissions {
    own: bool,
    mode: u32,
}

impl FilePermissions {
    fn too_open(&self) -> Option<u32> {
        (self.own && self.mode & 0o077 != 0).then_some(self.mode & 0o7777)
    }
}

fn read(path: &Path) -> io::Result<(Zeroizing<Vec<u8>>, FilePermissions)> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let permissions = FilePermissions {
        own: meta.is_file() && meta.uid() == rustix::process::getuid().as_raw(),
        mode: meta.mode(),
    };
    // The buffer has its full size from the start, so that it never moves and leaves no copies.
    let room = usize::try_from(meta.len().min(MAX_FILE)).unwrap_or_default();
    let mut bytes = Zeroizing::new(Vec::with_capacity(room + 1024));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        let why = "the file is larger than 1 MiB, so it is not a key";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok((bytes, permissions))
}
