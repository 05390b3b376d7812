//! Reads the keys that may log in to an account, with the rights of that account.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use ssh::auth::{KeyProof, ProofContext};
use ssh::key::{PublicKey, SecurityKeyFlags};

use super::authorized::{self, AuthContext, KeyFileLines, MatchedAuthorizedKey, OfferedKey};
use super::message::KeyCheckRequest;
use super::refusal::{KeyFileProblem, KeyListError, KeyRefusal};

/// Largest list of keys in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Maximum characters of a certificate's key ID that are logged.
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
pub(super) struct LoginKey {
    /// Fingerprint of the key; for a certificate, of the key inside it.
    key: String,
    certificate: Option<CertificateInfo>,
}

/// Contents of a certificate, for the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CertificateInfo {
    /// Fingerprint of the key that signed the certificate.
    authority: String,
    id: String,
    serial: u64,
}

impl LoginKey {
    pub(super) fn of(key: &PublicKey) -> Self {
        Self {
            key: key.fingerprint(),
            certificate: key.certificate().map(|certificate| CertificateInfo {
                authority: certificate.authority().fingerprint(),
                id: certificate.key_id.chars().take(MAX_ID).collect(),
                serial: certificate.serial,
            }),
        }
    }

    /// Fingerprint of the key; for a certificate, of the key inside it.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Fingerprint of the authority, key ID and serial number of a certificate.
    pub(super) fn certificate(&self) -> Option<(&str, &str, u64)> {
        let certificate = self.certificate.as_ref()?;
        Some((&certificate.authority, &certificate.id, certificate.serial))
    }
}

/// A key offered for an account, to be checked against authorized_keys.
#[derive(Debug)]
pub(super) struct AuthorizedKeyLookup<'q> {
    user: &'q str,
    from: IpAddr,
    check: &'q KeyCheckRequest<'q>,
}

impl<'q> AuthorizedKeyLookup<'q> {
    /// Asks about the key in `check` for the account of `user`, for a client at `from`.
    pub(super) fn new(user: &'q str, from: IpAddr, check: &'q KeyCheckRequest<'q>) -> Self {
        Self { user, from, check }
    }

    pub(super) fn check(&self) -> &'q KeyCheckRequest<'q> {
        self.check
    }

    /// Checks the client's signature with `key`; returns the flags of a security key.
    pub(super) fn proof(&self, key: &PublicKey) -> Result<Option<SecurityKeyFlags>, KeyRefusal> {
        let check = self.check;
        let mut names = key.algorithms().into_iter();
        let algorithm = names.find(|name| name.as_bytes() == check.algorithm);
        let proof = KeyProof {
            algorithm: algorithm.ok_or(KeyRefusal::Algorithm)?.to_owned(),
            host_bound: check.host_bound,
            signature: check.signature.to_vec(),
        };
        let touch = proof.check(ProofContext {
            session_id: check.session_id,
            host_key: check.host_key,
            user: self.user.as_bytes(),
            key,
        });
        touch.map_err(KeyRefusal::Signature)
    }
}

impl AuthorizedKeysFile {
    pub(super) fn new(file: PathBuf, authorities: Option<PathBuf>) -> Self {
        Self { file, authorities }
    }

    /// Checks a key and, if the client has signed, its signature.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(super) fn answer(
        &self,
        question: &AuthorizedKeyLookup<'_>,
    ) -> Result<LoginKey, KeyRefusal> {
        let AuthorizedKeyLookup { user, from, check } = *question;
        let signed_len = check.signed_len as usize;
        let shown = OfferedKey::new(check.blob, check.authority, signed_len);
        let admitted = self.lets_in(shown, user, from)?;
        let key = admitted.key();
        if check.proved {
            admitted.check_touch(question.proof(key)?)?;
        }
        Ok(LoginKey::of(key))
    }

    fn lets_in(
        &self,
        shown: OfferedKey<'_>,
        user: &str,
        from: IpAddr,
    ) -> Result<MatchedAuthorizedKey, KeyRefusal> {
        let at = AuthContext::new(from, Timestamp::now());
        let lets_in = |file: &Path, of: fn(&str) -> KeyFileLines<'_>| {
            let text = read(file)?;
            authorized::lets_in(of(&text), shown, user, at)
        };
        let of_account = lets_in(&self.file, |text| KeyFileLines::of_account(text));
        let list = self.authorities.as_ref();
        match (of_account, list.filter(|_| shown.is_certificate())) {
            (Err(why), Some(list)) => lets_in(list, |text| KeyFileLines::of_authorities(text))
                .map_err(|of_all| KeyRefusal::Both(Box::new(why), Box::new(of_all))),
            (of_account, _) => of_account,
        }
    }
}

/// True if `text` has the form of a key's fingerprint as `ssh-keygen -l` prints it.
pub fn is_fingerprint(text: &str) -> bool {
    let hash = text.strip_prefix("SHA256:");
    let hash = hash.and_then(|hash| STANDARD_NO_PAD.decode(hash).ok());
    hash.is_some_and(|hash| hash.len() == 32)
}

/// Reads a file that no other user can write to.
fn read(path: &Path) -> Result<String, KeyListError> {
    let failed = |e: io::Error| KeyFileProblem::Io(e).of(path);
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(KeyFileProblem::NotAFile.of(path));
    }
    only_ours(&meta).map_err(|why| why.of(path))?;
    // Anybody who can rename one of the directories could substitute another file.
    let whole = std::fs::canonicalize(path).map_err(failed)?;
    for dir in whole.ancestors().skip(1) {
        let meta = dir.metadata().map_err(failed)?;
        only_ours(&meta).map_err(|why| why.of(dir))?;
    }
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(KeyFileProblem::TooLong.of(path));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks owner and mode like safe_path of sshd (misc.c, StrictModes). Unlike sshd it accepts a
/// world-writable directory with the sticky bit, in which users can rename only their own files.
fn only_ours(meta: &std::fs::Metadata) -> Result<(), KeyFileProblem> {
    const STICKY: u32 = 0o1000;
    let sticky = meta.is_dir() && meta.mode() & STICKY != 0;
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(KeyFileProblem::OtherOwner);
    }
    match meta.mode() & 0o022 != 0 && !sticky {
        true => Err(KeyFileProblem::Writable),
        false => Ok(()),
    }
}
