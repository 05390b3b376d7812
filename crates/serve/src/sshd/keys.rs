//! Reads the keys that may log in to an account, with the rights of that account.

use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use ssh::auth::{Proof, ProofContext};

use super::authorized::{self, AuthContext, Authorized, KeyFileLines, OfferedKey};
use super::message::Check;

/// Largest list of keys in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Most characters of a certificate's key ID that are logged.
const MAX_ID: usize = 256;

/// An account's authorized_keys file, which is read again for each question.
#[derive(Debug)]
pub(super) struct AuthorizedKeysFile {
    file: PathBuf,
    /// File of authorities whose certificates may log in to any account that they name.
    authorities: Option<PathBuf>,
}

/// Key or certificate that may log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoginRequest {
    /// Fingerprint of the key; for a certificate, of the key inside it.
    pub(super) key: String,
    pub(super) certificate: Option<Certified>,
}

/// Contents of a certificate, for the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Certified {
    /// Fingerprint of the key that signed the certificate.
    pub(super) authority: String,
    pub(super) id: String,
    pub(super) serial: u64,
}

/// A key offered for an account, to be checked against authorized_keys.
#[derive(Debug)]
pub(super) struct Question<'q> {
    pub(super) user: &'q str,
    pub(super) from: IpAddr,
    pub(super) check: &'q Check<'q>,
}

impl AuthorizedKeysFile {
    pub(super) fn new(file: PathBuf, authorities: Option<PathBuf>) -> Self {
        Self { file, authorities }
    }

    /// Checks a key and, if the client has signed, its signature.
    ///
    /// # Errors
    /// The reason for the refusal, one sentence for the log.
    pub(super) fn answer(&self, question: &Question<'_>) -> Result<LoginRequest, String> {
        let Question { user, from, check } = *question;
        let shown = OfferedKey {
            blob: check.blob,
            authority: check.authority,
            signed_len: check.signed_len as usize,
        };
        let admitted = self.lets_in(shown, user, from)?;
        let key = &admitted.key;
        if check.proved {
            let algorithm = key.algorithms().into_iter();
            let mut algorithm = algorithm.filter(|name| name.as_bytes() == check.algorithm);
            let algorithm = algorithm.next().ok_or("another key signs so")?;
            let proof = Proof {
                algorithm: algorithm.to_owned(),
                host_bound: check.host_bound,
                signature: check.signature.to_vec(),
            };
            let touch = proof.check(ProofContext {
                session_id: check.session_id,
                host_key: check.host_key,
                user: user.as_bytes(),
                key,
            });
            admitted.check_touch(touch.map_err(|e| e.to_string())?)?;
        }
        Ok(LoginRequest {
            key: key.fingerprint(),
            certificate: key.certificate().map(|certificate| Certified {
                authority: certificate.authority().fingerprint(),
                id: certificate.key_id.chars().take(MAX_ID).collect(),
                serial: certificate.serial,
            }),
        })
    }

    fn lets_in(
        &self,
        shown: OfferedKey<'_>,
        user: &str,
        from: IpAddr,
    ) -> Result<Authorized, String> {
        let at = AuthContext {
            from,
            now: Timestamp::now(),
        };
        let of_account = read(&self.file).and_then(|text| {
            let lines = KeyFileLines {
                text: &text,
                name: "authorized_keys",
                authorities: false,
            };
            authorized::lets_in(lines, shown, user, at)
        });
        let (Err(why), Some(list)) = (&of_account, &self.authorities) else {
            return of_account;
        };
        if !shown.is_certificate() {
            return of_account;
        }
        let of_all = read(list).and_then(|text| {
            let lines = KeyFileLines {
                text: &text,
                name: "trusted-user-ca-keys",
                authorities: true,
            };
            authorized::lets_in(lines, shown, user, at)
        });
        of_all.map_err(|of_all| format!("{why}; {of_all}"))
    }
}

/// True if `text` has the form of a key's fingerprint as `ssh-keygen -l` prints it.
pub fn is_fingerprint(text: &str) -> bool {
    let hash = text.strip_prefix("SHA256:");
    let hash = hash.and_then(|hash| STANDARD_NO_PAD.decode(hash).ok());
    hash.is_some_and(|hash| hash.len() == 32)
}

/// Reads a file that no other user can write to.
fn read(path: &Path) -> Result<String, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let file = File::open(path).map_err(|e| wrong(&e))?;
    let meta = file.metadata().map_err(|e| wrong(&e))?;
    if !meta.is_file() {
        return Err(wrong(&"it is no file"));
    }
    only_ours(&meta).map_err(|why| wrong(&why))?;
    // Anybody who can rename one of the directories could substitute another file.
    let whole = std::fs::canonicalize(path).map_err(|e| wrong(&e))?;
    for dir in whole.ancestors().skip(1) {
        let meta = dir.metadata().map_err(|e| wrong(&e))?;
        only_ours(&meta).map_err(|why| format!("{}: {why}", dir.display()))?;
    }
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|e| wrong(&e))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(wrong(&"it is longer than any list of keys"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks owner and mode like safe_path of sshd (misc.c, StrictModes). Unlike sshd it accepts a
/// world-writable directory with the sticky bit, in which users can rename only their own files.
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
