//! Log lines from unprivileged processes, which are checked, escaped and shortened before they are
//! logged.

use std::fmt::Display;
use std::io;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ssh::{cipher, kex};
use tracing::{debug, info, trace, warn};
use wire::escape::name;

use super::keys::LoginKey;
use super::message::{ConnectionHandover, LogMessage};
use super::monitor_message_socket::nonsense;

/// Longest text of one line in bytes.
const LINE: usize = 4096;

/// Escapes and shortens text from another process for one log line.
pub(super) fn escaped(text: &[u8]) -> String {
    name(text.get(..LINE).unwrap_or(text)).to_string()
}

pub(super) fn tell(message: &[u8]) -> io::Result<()> {
    let LogMessage { level, text } = LogMessage::decode(message).map_err(nonsense)?;
    let text = escaped(text.trim_ascii_end());
    match level {
        0 => warn!("{text}"),
        1 => info!("{text}"),
        2 => debug!("{text}"),
        _ => trace!("{text}"),
    }
    Ok(())
}

/// Fingerprint as `ssh-keygen -l` prints it. The blob is hashed without being parsed.
pub(super) fn fingerprint(blob: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, blob);
    format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))
}

/// Algorithms that protect a connection, as names from this program's own tables.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionAlgorithms<'k> {
    kex: &'static str,
    host_key: Option<&'k str>,
    cipher: &'static str,
    mac: Option<&'static str>,
}

impl<'k> ConnectionAlgorithms<'k> {
    /// Algorithms of a [`ConnectionHandover`] message, checked against the tables, with the type of
    /// the host key.
    pub(super) fn of(message: &[u8], host_key: Option<&'k str>) -> io::Result<Self> {
        let said = ConnectionHandover::decode(message).map_err(nonsense)?;
        let known = || {
            let name = |bytes| std::str::from_utf8(bytes).ok();
            Some(Self {
                kex: kex::method(name(said.kex)?)?.name,
                host_key,
                cipher: cipher::cipher(name(said.cipher)?)?.name,
                mac: match said.mac {
                    b"" => None,
                    mac => Some(cipher::mac(name(mac)?)?.name),
                },
            })
        };
        known().ok_or_else(|| {
            io::Error::other(
                "internal error: the process before the login reported unknown algorithms",
            )
        })
    }

    /// Logs a login.
    pub(super) fn tell_login(&self, user: &dyn Display, entrant: &LoginKey) {
        let Self {
            kex,
            host_key,
            cipher,
            mac,
        } = self;
        let key = entrant.key();
        match entrant.certificate() {
            None => info!(%user, key, kex, host_key, cipher, mac, "logged in"),
            Some((authority, id, serial)) => {
                // The key ID is quoted: it may contain blanks that look like further fields.
                info!(
                    %user, key, ca = authority, serial, ?id, kex, host_key, cipher, mac,
                    "logged in with a certificate"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_and_not_long() {
        assert_eq!(escaped(b"a\nb\x1b"), "a\\nb\\x1b");
        assert_eq!(escaped(&[b'x'; 60_000]).len(), LINE);
        assert!(escaped(&[0; 60_000]).len() <= 8 * LINE);
    }

    #[test]
    fn what_protects_is_named_if_it_is_known() {
        let of = |kex: &str, cipher: &str, mac: &str| {
            let message = ConnectionHandover {
                kex: kex.as_bytes(),
                cipher: cipher.as_bytes(),
                mac: mac.as_bytes(),
                state: b"",
                unread: b"",
            };
            ConnectionAlgorithms::of(&message.to_bytes(), None).ok()
        };
        let (kex, mac) = ("mlkem768x25519-sha256", "hmac-sha2-256");
        let known = of(kex, "aes128-ctr", mac).expect("it is");
        assert_eq!((known.cipher, known.mac), ("aes128-ctr", Some(mac)));
        assert_eq!(
            of(kex, "aes128-gcm@openssh.com", "").expect("it is").mac,
            None
        );
        for (kex, cipher, mac) in [
            (kex, "", mac),
            ("x user=root", "aes128-ctr", mac),
            (kex, "aes128-ctr", "md5\n"),
        ] {
            assert_eq!(of(kex, cipher, mac), None);
        }
    }
}
