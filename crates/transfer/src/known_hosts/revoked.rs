use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Place, read};
use crate::escape;

/// Keys that no host may have (RevokedHostKeys), as lines of public keys.
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
                     as text instead",
                    escape::path(file)
                ));
            }
            for (at, line) in text.split(|b| *b == b'\n').enumerate() {
                let line = String::from_utf8_lossy(line);
                let mut words = line.split_whitespace();
                let Some(_type) = words.next().filter(|w| !w.starts_with('#')) else {
                    continue;
                };
                let Some(blob) = words.next().and_then(|w| STANDARD.decode(w).ok()) else {
                    return Err(format!(
                        "RevokedHostKeys {}:{} is not a public key",
                        escape::path(file),
                        at + 1
                    ));
                };
                let place = Place {
                    file: file.clone(),
                    line: at + 1,
                };
                revoked.keys.push((place, blob));
            }
        }
        Ok(revoked)
    }

    pub(super) fn find(&self, blob: &[u8]) -> Option<Place> {
        let found = self.keys.iter().find(|(_, b)| b == blob);
        found.map(|(place, _)| place.clone())
    }
}

fn refuse(file: &Path, error: &io::Error) -> String {
    format!(
        "RevokedHostKeys {} cannot be read, so that no host key can be trusted: {error}",
        escape::path(file)
    )
}
