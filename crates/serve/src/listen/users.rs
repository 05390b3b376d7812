use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::unistd::{Uid, User};
use ssh::key::PublicKey;

use super::authorized::{self, Circumstances};
use crate::error::ListenError;

/// No authorized_keys is larger.
const MAX_FILE: u64 = 4 << 20;

/// Who may log in: the user of this process, with the keys of an authorized_keys, which is read
/// anew for each login.
#[derive(Debug)]
pub struct Users {
    name: String,
    home: PathBuf,
    authorized_keys: PathBuf,
}

impl Users {
    /// The user of this process, with the keys in `authorized_keys`; without it those of
    /// `.ssh/authorized_keys` at home.
    ///
    /// # Errors
    /// The user of this process has no name.
    pub fn this(authorized_keys: Option<PathBuf>) -> Result<Self, ListenError> {
        let found = User::from_uid(Uid::effective()).ok().flatten();
        let user = found.ok_or(ListenError::Nameless)?;
        let usual = || user.dir.join(".ssh/authorized_keys");
        Ok(Self {
            authorized_keys: authorized_keys.unwrap_or_else(usual),
            name: user.name,
            home: user.dir,
        })
    }

    /// Where the user is at home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Whether `user` may log in with `key`.
    ///
    /// # Errors
    /// Why not, one sentence for the log.
    pub(super) fn may_enter(
        &self,
        user: &[u8],
        key: &PublicKey,
        from: IpAddr,
    ) -> Result<(), String> {
        if user != self.name.as_bytes() {
            return Err(format!("this server is {}'s alone", self.name));
        }
        if key.certificate().is_some() {
            return Err("certificates are not taken".to_owned());
        }
        let now = Timestamp::now();
        let text = self.read()?;
        authorized::lets_in(&text, key, Circumstances { from, now })
    }

    fn read(&self) -> Result<String, String> {
        let path = &self.authorized_keys;
        let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|e| wrong(&e))?;
        let meta = file.metadata().map_err(|e| wrong(&e))?;
        if !meta.is_file() {
            return Err(wrong(&"it is no file"));
        }
        only_ours(&meta).map_err(|why| wrong(&why))?;
        // Whoever may rename one of the directories may put another file there.
        let whole = std::fs::canonicalize(path).map_err(|e| wrong(&e))?;
        for dir in whole.ancestors().skip(1) {
            let meta = dir.metadata().map_err(|e| wrong(&e))?;
            only_ours(&meta).map_err(|why| format!("{}: {why}", dir.display()))?;
        }
        let mut bytes = Vec::new();
        let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
        read.map_err(|e| wrong(&e))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(wrong(&"it is longer than any authorized_keys"));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// As safe_path of sshd (misc.c, StrictModes), but that a directory which everybody may write to
/// is no danger with the sticky bit: nobody renames what is not theirs there.
fn only_ours(meta: &std::fs::Metadata) -> Result<(), &'static str> {
    const STICKY: u32 = 0o1000;
    let sticky = meta.is_dir() && meta.mode() & STICKY != 0;
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to somebody else, so that nobody is let in");
    }
    match meta.mode() & 0o022 != 0 && !sticky {
        true => Err("others may change it, so that nobody is let in (chmod go-w)"),
        false => Ok(()),
    }
}
