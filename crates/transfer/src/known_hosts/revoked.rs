use std::io;
use std::path::{Path, PathBuf};

use super::line::revoked_key;
use super::{Place, read};
use crate::escape;

/// Keys that no host may have (RevokedHostKeys): bare keys, one for each line.
#[derive(Clone, Debug, Default)]
pub struct RevokedKeys {
    keys: Vec<(Place, Vec<u8>)>,
}

impl RevokedKeys {
    /// Reads `files`. Where one cannot be read, no host may be trusted, so that is an error: one
    /// sentence.
    pub fn load<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Result<Self, String> {
        let mut revoked = Self::default();
        for file in files {
            let text = read(file).map_err(|e| refuse(file, &e))?;
            if text.starts_with(b"SSHKRL\n\0") {
                return Err(format!(
                    "RevokedHostKeys {} is a KRL, which is not supported: list the public keys \
                     as text instead, or use OpenSSH's ssh (-S ssh)",
                    escape::path(file)
                ));
            }
            for (at, line) in text.split(|b| *b == b'\n').enumerate() {
                let line = line.trim_ascii();
                if matches!(line.first(), Some(b'#') | None) {
                    continue;
                }
                // OpenSSH reads up to a NUL byte, and so may miss a key behind one.
                let Some(key) = revoked_key(line).filter(|_| !line.contains(&0)) else {
                    return Err(format!(
                        "RevokedHostKeys {}:{}: not a public key, so that no host key can be \
                         trusted: correct or remove that line",
                        escape::path(file),
                        at + 1
                    ));
                };
                let place = Place {
                    file: file.clone(),
                    line: at + 1,
                };
                revoked.keys.push((place, key));
            }
        }
        Ok(revoked)
    }

    /// The line that has this bare key.
    pub(super) fn find(&self, blob: &[u8]) -> Option<Place> {
        let found = self.keys.iter().find(|(_, b)| b == blob);
        found.map(|(place, _)| place.clone())
    }
}

fn refuse(file: &Path, error: &io::Error) -> String {
    format!(
        "RevokedHostKeys {}: cannot be read, so that no host key can be trusted: {error}",
        escape::path(file)
    )
}
