//! Loads revoked keys (RevokedHostKeys).

use std::fmt;
use std::path::{Path, PathBuf};

use ssh::key::PublicKey;

use super::krl::{self, Krl};
use super::line::revoked_key;
use super::{KnownHostsError, KnownHostsLinePosition, bare_blobs, read};
use crate::escape;

/// Keys that no host may have (RevokedHostKeys): plain keys, one per line, or a KRL.
#[derive(Clone, Debug, Default)]
pub struct RevokedKeys {
    keys: Vec<(KnownHostsLinePosition, Vec<u8>)>,
    lists: Vec<(PathBuf, Krl)>,
}

impl RevokedKeys {
    /// Loads `files`. An unreadable file is an error, since no host could be trusted without it.
    pub fn load<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Result<Self, KnownHostsError> {
        let mut revoked = Self::default();
        for file in files {
            let text = read(file).map_err(|e| refuse(file, &e))?;
            if text.starts_with(krl::MAGIC) {
                let list = Krl::parse(&text).map_err(|e| refuse(file, &e))?;
                revoked.lists.push((file.clone(), list));
                continue;
            }
            for (at, line) in text.split(|b| *b == b'\n').enumerate() {
                let line = line.trim_ascii();
                if matches!(line.first(), Some(b'#') | None) {
                    continue;
                }
                // OpenSSH reads up to a NUL byte, and so may miss a key after one.
                let Some(key) = revoked_key(line).filter(|_| !line.contains(&0)) else {
                    return Err(KnownHostsError::setting(format!(
                        "RevokedHostKeys {}:{}: not a public key, so no host key can be \
                         trusted: correct or remove that line",
                        escape::path(file),
                        at + 1
                    )));
                };
                let place = KnownHostsLinePosition {
                    file: file.clone(),
                    line: at + 1,
                };
                revoked.keys.push((place, key));
            }
        }
        Ok(revoked)
    }

    /// Returns the position of a revocation of the key, its certificate or the certificate's
    /// authority.
    pub fn find(&self, key: &PublicKey) -> Option<KnownHostsLinePosition> {
        let blobs = bare_blobs(key);
        let found = self
            .keys
            .iter()
            .find(|(_, b)| blobs.contains(&b.as_slice()));
        let listed = || {
            let found = self.lists.iter().find(|(_, list)| list.revokes(key));
            found.map(|(file, _)| KnownHostsLinePosition {
                file: file.clone(),
                line: 1,
            })
        };
        found.map(|(place, _)| place.clone()).or_else(listed)
    }
}

fn refuse(file: &Path, error: &dyn fmt::Display) -> KnownHostsError {
    KnownHostsError::setting(format!(
        "RevokedHostKeys {}: cannot read the file, so no host key can be trusted: {error}",
        escape::path(file)
    ))
}
