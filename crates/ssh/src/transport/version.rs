//! Identification strings (RFC 4253 section 4.2).

use bytes::{Buf, BytesMut};

use crate::error::{Error, PeerIncompatible, PeerMisbehaved};

/// Maximum length of the identification line in bytes, CR LF included (RFC 4253 section 4.2).
const MAX_LINE: usize = 255;
/// Maximum bytes of other lines that a server may send first; OpenSSH permits 1,024 lines of 8 KiB,
/// while real greetings have a few lines.
const MAX_PREAMBLE: usize = 64 * 1024;
/// Maximum bytes kept of the lines before the identification.
const MOST_KEPT: usize = 1024;

/// Lines that a server has sent before its identification.
#[derive(Debug, Default)]
pub(crate) struct Preamble {
    len: usize,
    kept: Vec<u8>,
}

impl Preamble {
    /// Returns the kept beginning of the lines.
    pub(crate) fn said(&self) -> &[u8] {
        &self.kept
    }

    fn add(&mut self, line: &[u8]) {
        self.len += line.len();
        let room = MOST_KEPT.saturating_sub(self.kept.len());
        let kept = line.get(..line.len().min(room)).unwrap_or_default();
        self.kept.extend_from_slice(kept);
    }
}

/// Identification string `SSH-2.0-softwareversion comments` (RFC 4253 section 4.2), without the
/// line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identification(String);

impl Identification {
    /// Returns our identification: `SSH-2.0-` and `software`.
    pub fn ours(software: &str) -> Self {
        Self(format!("SSH-2.0-{software}"))
    }

    /// Returns the string as it was sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns softwareversion and comments, which follow `SSH-2.0-`.
    pub fn software(&self) -> &str {
        self.0.splitn(3, '-').nth(2).unwrap_or_default()
    }

    /// Returns true if the peer is longhaul.
    pub fn is_longhaul(&self) -> bool {
        self.software().starts_with("longhaul_")
    }

    /// Returns true if the peer's channels accept windows of any size. OpenSSH since 8.4 moves its
    /// whole buffer for each packet once a window exceeds 16 MiB; HPN-SSH has fixed that.
    pub fn takes_large_windows(&self) -> bool {
        self.is_longhaul() || self.software().contains("hpn")
    }

    /// Returns true if the server can serve one SFTP channel on a connection only, although it
    /// opens more: ProFTPD's mod_sftp 1.1.1 corrupts its memory.
    pub fn takes_one_channel(&self) -> bool {
        self.software().starts_with("mod_sftp")
    }

    /// Returns true if host keys should be announced to the peer (hostkeys-00@openssh.com).
    /// Excluded are clients that fail on it, which OpenSSH's compat.c marks with SSH_BUG_HOSTKEYS.
    pub fn is_told_host_keys(&self) -> bool {
        const FRAIL: [&str; 12] = [
            "Cisco-1.",
            "TeraTerm SSH",
            "TTSSH/1.5.",
            "TTSSH/2.1",
            "TTSSH/2.2",
            "TTSSH/2.3",
            "TTSSH/2.4",
            "TTSSH/2.5",
            "TTSSH/2.6",
            "TTSSH/2.70",
            "TTSSH/2.71",
            "TTSSH/2.72",
        ];
        !FRAIL.iter().any(|front| self.software().starts_with(front))
    }

    /// Returns OpenSSH's major and minor version; `None` for other software.
    pub fn openssh(&self) -> Option<(u32, u32)> {
        let version = self.software().strip_prefix("OpenSSH_")?;
        let version = version.strip_prefix("for_Windows_").unwrap_or(version);
        let end = version
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(version.len());
        let mut parts = version.get(..end)?.split('.');
        Some((
            parts.next()?.parse().ok()?,
            parts.next().and_then(|m| m.parse().ok()).unwrap_or(0),
        ))
    }

    /// Returns the key exchange method that an OpenSSH server of this version lists first by
    /// default (myproposal.h, KEX_SERVER); `None` for other software.
    pub fn usual_kex(&self) -> Option<&'static str> {
        Some(match self.openssh()? {
            (10.., _) => "mlkem768x25519-sha256",
            (9, 9..) => "sntrup761x25519-sha512",
            // Debian 12 lists it first since 1:9.2p1-2+deb12u4.
            (9, _) if self.debian_12_update().is_some_and(|n| n >= 4) => "sntrup761x25519-sha512",
            (9, _) => "sntrup761x25519-sha512@openssh.com",
            (7.., _) => "curve25519-sha256",
            _ => "curve25519-sha256@libssh.org",
        })
    }

    fn debian_12_update(&self) -> Option<u32> {
        self.0.split_once("+deb12u")?.1.parse().ok()
    }
}

/// Takes the peer's identification from the front of `buf` once it is complete. Lines before it go
/// to `said`, which only a server may send: `preamble` is false when a server reads.
///
/// # Errors
/// The peer does not identify itself as SSH 2.
pub(crate) fn take_ident(
    buf: &mut BytesMut,
    said: &mut Preamble,
    preamble: bool,
) -> Result<Option<Identification>, Error> {
    loop {
        let Some(end) = buf.iter().take(MAX_PREAMBLE).position(|b| *b == b'\n') else {
            let limit = if buf.starts_with(b"SSH-") {
                MAX_LINE
            } else {
                MAX_PREAMBLE
            };
            return match buf.len() > limit {
                true => Err(PeerMisbehaved::NoIdentification.into()),
                false => Ok(None),
            };
        };
        let line = buf.split_to(end + 1);
        if line.starts_with(b"SSH-") {
            return parse(&line).map(Some);
        }
        said.add(&line);
        if !preamble || said.len > MAX_PREAMBLE {
            buf.advance(buf.len());
            return Err(PeerMisbehaved::NoIdentification.into());
        }
    }
}

fn parse(line: &[u8]) -> Result<Identification, Error> {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    // Some comments contain Latin-1, and only NUL is forbidden by the RFC. Accept printable ASCII
    // alone, which can be hashed as it was received.
    let printable = text.iter().all(|b| (0x20..0x7f).contains(b));
    let text = match std::str::from_utf8(text) {
        Ok(text) if printable && line.len() <= MAX_LINE => text,
        _ => return Err(PeerMisbehaved::NoIdentification.into()),
    };
    if text.starts_with("SSH-2.0-") || text.starts_with("SSH-1.99-") {
        Ok(Identification(text.to_owned()))
    } else {
        Err(PeerIncompatible::ProtocolVersion(text.to_owned()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(input: &[u8], preamble: bool) -> Result<Option<Identification>, Error> {
        take_ident(
            &mut BytesMut::from(input),
            &mut Preamble::default(),
            preamble,
        )
    }

    #[test]
    fn greetings_before_the_identification_are_skipped() {
        let ident = take(
            b"welcome\r\nto us\r\nSSH-2.0-OpenSSH_9.2p1 Debian-2\r\nrest",
            true,
        );
        let ident = ident.unwrap().unwrap();
        assert_eq!(ident.as_str(), "SSH-2.0-OpenSSH_9.2p1 Debian-2");
        assert_eq!(ident.openssh(), Some((9, 2)));
        assert!(take(b"welcome\r\nSSH-2.0-x\r\n", false).is_err());
    }

    #[test]
    fn what_a_server_says_before_it_ends_is_kept_and_bounded() {
        let mut said = Preamble::default();
        let mut input = BytesMut::from(&b"Exceeded MaxStartups\r\n"[..]);
        assert_eq!(take_ident(&mut input, &mut said, true), Ok(None));
        assert_eq!(said.said(), b"Exceeded MaxStartups\r\n");
        let mut input = BytesMut::from(&[b'\n'; 5000][..]);
        assert_eq!(take_ident(&mut input, &mut said, true), Ok(None));
        assert_eq!(said.said().len(), MOST_KEPT);
    }

    #[test]
    fn half_a_line_waits_and_an_endless_one_is_refused() {
        assert_eq!(take(b"SSH-2.0-Open", true), Ok(None));
        assert!(take(&[b'x'; MAX_PREAMBLE + 1], true).is_err());
        let mut long = b"SSH-2.0-".to_vec();
        long.extend([b'x'; 300]);
        assert!(take(&long, true).is_err());
    }

    #[test]
    fn version_1_is_named() {
        assert!(matches!(
            take(b"SSH-1.5-old\n", true),
            Err(Error::PeerIncompatible(PeerIncompatible::ProtocolVersion(
                _
            )))
        ));
    }

    #[test]
    fn versions_of_openssh_and_others() {
        for (line, version) in [
            ("OpenSSH_10.0", Some((10, 0))),
            ("OpenSSH_8.4p1", Some((8, 4))),
            ("OpenSSH_for_Windows_8.1", Some((8, 1))),
            ("dropbear_2022.83", None),
            ("Go", None),
        ] {
            assert_eq!(Identification::ours(line).openssh(), version, "{line}");
        }
    }
}
