//! Parses key revocation lists of `ssh-keygen -k` (OpenSSH's PROTOCOL.krl).

use std::fmt;

use aws_lc_rs::digest;
use ssh::key::{Certificate, PublicKey};
use wire::{FieldReader, WireError};

/// The first bytes of every list.
pub(super) const MAGIC: &[u8] = b"SSHKRL\n\0";
const VERSION: u32 = 1;

const CERTIFICATES: u8 = 1;
const KEYS: u8 = 2;
const SHA1: u8 = 3;
const SIGNATURE: u8 = 4;
const SHA256: u8 = 5;
const EXTENSION: u8 = 255;

const SERIALS: u8 = 0x20;
const SERIAL_RANGE: u8 = 0x21;
const SERIAL_BITMAP: u8 = 0x22;
const KEY_IDS: u8 = 0x23;
const CERTIFICATE_EXTENSION: u8 = 0x39;

/// Keys and certificates that an OpenSSH key revocation list (KRL) revokes.
#[derive(Clone, Debug, Default)]
pub(super) struct Krl {
    keys: Vec<Vec<u8>>,
    sha1: Vec<Vec<u8>>,
    sha256: Vec<Vec<u8>>,
    certificates: Vec<RevokedCertificates>,
}

/// The revoked certificates of one authority.
#[derive(Clone, Debug, Default)]
struct RevokedCertificates {
    /// The authority's key; empty for any authority.
    authority: Vec<u8>,
    /// Ranges of serial numbers, both ends included.
    serials: Vec<(u64, u64)>,
    key_ids: Vec<String>,
}

/// The reason why a list cannot be used. No key is then known to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KrlError {
    Malformed(WireError),
    Version(u32),
    Section(u8),
    Extension,
}

impl Krl {
    pub(super) fn parse(text: &[u8]) -> Result<Self, KrlError> {
        let mut r = FieldReader::new(text);
        r.take(MAGIC.len())?;
        match r.u32()? {
            VERSION => {}
            other => return Err(KrlError::Version(other)),
        }
        let (_version, _date, _flags) = (r.u64()?, r.u64()?, r.u64()?);
        let (_reserved, _comment) = (r.string()?, r.string()?);
        let mut krl = Self::default();
        while r.left() > 0 {
            let (section, data) = (r.u8()?, r.string()?);
            match section {
                CERTIFICATES => krl.certificates.push(RevokedCertificates::parse(data)?),
                KEYS => krl.keys.extend(strings(data)?.into_iter().map(bare)),
                SHA1 => krl.sha1.extend(strings(data)?),
                SHA256 => krl.sha256.extend(strings(data)?),
                // Verifying the signature needs a trusted key, which no setting names.
                SIGNATURE => {}
                EXTENSION => extension(data)?,
                other => return Err(KrlError::Section(other)),
            }
        }
        Ok(krl)
    }

    /// True if the key, its certificate or the certificate's authority is revoked.
    pub(super) fn revokes(&self, key: &PublicKey) -> bool {
        let certificate = key.certificate();
        let authority = certificate.map(|c| c.authority().blob());
        let blobs = [Some(key.plain().blob()), authority];
        blobs.into_iter().flatten().any(|blob| self.has(blob))
            || certificate.is_some_and(|c| self.certificates.iter().any(|list| list.has(c)))
    }

    fn has(&self, blob: &[u8]) -> bool {
        let listed = |algorithm, hashes: &[Vec<u8>]| {
            let hash = digest::digest(algorithm, blob);
            hashes.iter().any(|listed| listed == hash.as_ref())
        };
        self.keys.iter().any(|key| key == blob)
            || listed(&digest::SHA1_FOR_LEGACY_USE_ONLY, &self.sha1)
            || listed(&digest::SHA256, &self.sha256)
    }
}

impl RevokedCertificates {
    fn parse(data: &[u8]) -> Result<Self, KrlError> {
        let mut r = FieldReader::new(data);
        let mut list = Self {
            authority: r.string()?.to_vec(),
            ..Self::default()
        };
        let _reserved = r.string()?;
        while r.left() > 0 {
            let (section, data) = (r.u8()?, r.string()?);
            let mut r = FieldReader::new(data);
            match section {
                SERIALS => {
                    while r.left() > 0 {
                        let serial = r.u64()?;
                        list.serials.push((serial, serial));
                    }
                }
                SERIAL_RANGE => list.serials.push((r.u64()?, r.u64()?)),
                SERIAL_BITMAP => {
                    let offset = r.u64()?;
                    list.serials.extend(bits(r.string()?, offset));
                }
                KEY_IDS => {
                    while r.left() > 0 {
                        let id = String::from_utf8_lossy(r.string()?).into_owned();
                        list.key_ids.push(id);
                    }
                }
                CERTIFICATE_EXTENSION => {
                    extension(r.rest())?;
                }
                other => return Err(KrlError::Section(other)),
            }
            r.finish()?;
        }
        Ok(list)
    }

    fn has(&self, certificate: &Certificate) -> bool {
        let ours = self.authority.is_empty() || self.authority == certificate.authority().blob();
        // Serial number 0 is shared by all certificates without a number.
        let serial = certificate.serial;
        let listed = |(low, high): &(u64, u64)| (*low..=*high).contains(&serial);
        let by_serial = serial != 0 && self.serials.iter().any(listed);
        ours && (by_serial || self.key_ids.contains(&certificate.key_id))
    }
}

fn strings(data: &[u8]) -> Result<Vec<Vec<u8>>, WireError> {
    let mut r = FieldReader::new(data);
    let mut strings = Vec::new();
    while r.left() > 0 {
        strings.push(r.string()?.to_vec());
    }
    Ok(strings)
}

/// Returns the plain key of a certificate blob; other blobs unchanged.
fn bare(blob: Vec<u8>) -> Vec<u8> {
    match PublicKey::from_blob(&blob) {
        Ok(key) => key.plain().blob().to_vec(),
        Err(_) => blob,
    }
}

/// Returns the positions of set bits in a big-endian number, plus `offset`, as ranges of one.
fn bits(bitmap: &[u8], offset: u64) -> impl Iterator<Item = (u64, u64)> {
    let bytes = bitmap.iter().rev().zip(0_u64..);
    bytes.flat_map(move |(byte, at)| {
        (0..8_u64)
            .filter(move |bit| byte >> bit & 1 == 1)
            .filter_map(move |bit| offset.checked_add(at * 8 + bit))
            .map(|serial| (serial, serial))
    })
}

/// Accepts an unknown extension unless it is critical, since a critical one may revoke any key.
fn extension(data: &[u8]) -> Result<(), KrlError> {
    let mut r = FieldReader::new(data);
    let (_name, critical) = (r.string()?, r.u8()?);
    let _contents = r.string()?;
    match critical {
        0 => Ok(r.finish()?),
        _ => Err(KrlError::Extension),
    }
}

impl From<WireError> for KrlError {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

impl fmt::Display for KrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(e) => write!(f, "malformed: {e}"),
            Self::Version(n) => write!(f, "unknown format version {n}"),
            Self::Section(n) => write!(f, "unknown section {n}"),
            Self::Extension => f.write_str("it has a critical extension that this version does not know: update longhaul, or write \
                 the list without it",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn keygen(args: &[&str]) -> Option<bool> {
        let output = Command::new("ssh-keygen").args(args).output();
        match output {
            Ok(output) => Some(output.status.success()),
            Err(_) => {
                eprintln!("skipped: ssh-keygen is not installed");
                None
            }
        }
    }

    /// For each list, the set of revoked keys and certificates equals ssh-keygen's.
    #[test]
    fn a_list_revokes_what_ssh_keygen_says_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        for (name, kind) in [
            ("ca", "ed25519"),
            ("a", "ed25519"),
            ("b", "ecdsa"),
            ("c", "ecdsa"),
        ] {
            if keygen(&["-q", "-t", kind, "-N", "", "-f", &at(name)]).is_none() {
                return;
            }
        }
        let sign = |key: &str, serial: &str, id: &str| {
            let args = [
                "-q",
                "-h",
                "-s",
                &at("ca"),
                "-I",
                id,
                "-n",
                "h",
                "-z",
                serial,
                &at(key),
            ];
            assert_eq!(keygen(&args), Some(true));
        };
        sign("a.pub", "7", "one");
        sign("b.pub", "300", "two");
        sign("c.pub", "0", "three");
        let public = fs::read_to_string(at("a.pub")).unwrap();
        let shown = Command::new("ssh-keygen")
            .args(["-l", "-f", &at("b.pub")])
            .output()
            .unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        let hash = shown.split(' ').nth(1).unwrap();
        for (number, spec) in [
            public.clone(),
            format!("key: {public}"),
            format!("sha1: {public}"),
            format!("sha256: {public}"),
            format!("hash: {hash}\n"),
            "serial: 7\n".to_owned(),
            "serial: 5-400\n".to_owned(),
            "serial: 1-6\nserial: 8-299\n".to_owned(),
            (1..200).map(|n| format!("serial: {}\n", n * 3)).collect(),
            "id: two\nid: three\n".to_owned(),
            fs::read_to_string(at("ca.pub")).unwrap(),
            "# nothing\n".to_owned(),
        ]
        .into_iter()
        .enumerate()
        {
            let (list, from) = (at(&format!("krl{number}")), at("spec"));
            fs::write(&from, &spec).unwrap();
            let made = keygen(&["-q", "-k", "-s", &at("ca.pub"), "-f", &list, &from]);
            assert_eq!(made, Some(true), "{spec}");
            let krl = Krl::parse(&fs::read(&list).unwrap()).unwrap();
            for key in [
                "a.pub",
                "b.pub",
                "c.pub",
                "a-cert.pub",
                "b-cert.pub",
                "c-cert.pub",
            ] {
                let line = fs::read_to_string(at(key)).unwrap();
                let blob = STANDARD.decode(line.split(' ').nth(1).unwrap()).unwrap();
                let revoked = krl.revokes(&PublicKey::from_blob(&blob).unwrap());
                let is_free = keygen(&["-Q", "-f", &list, &at(key)]).unwrap();
                assert_eq!(revoked, !is_free, "{key}: {spec}");
            }
        }
    }

    #[test]
    fn a_list_that_is_cut_or_has_more_than_is_known_is_an_error() {
        let mut list = MAGIC.to_vec();
        list.extend(1_u32.to_be_bytes());
        list.extend([0; 24]);
        list.extend([0; 8]);
        assert!(Krl::parse(&list).is_ok());
        for end in 0..list.len() {
            assert!(Krl::parse(&list[..end]).is_err(), "{end}");
        }
        let section = |kind: u8, data: &[u8]| {
            let length = u32::try_from(data.len()).unwrap().to_be_bytes();
            [&list[..], &[kind], &length, data].concat()
        };
        for unknown in [0, 6, 254] {
            assert_eq!(
                Krl::parse(&section(unknown, b"")).unwrap_err(),
                KrlError::Section(unknown)
            );
        }
        let extension = |critical| [&[0, 0, 0, 1, b'x', critical][..], &[0; 4]].concat();
        assert!(Krl::parse(&section(EXTENSION, &extension(0))).is_ok());
        let refused = Krl::parse(&section(EXTENSION, &extension(1))).unwrap_err();
        assert_eq!(refused, KrlError::Extension);
        assert!(Krl::parse(&section(KEYS, &[0, 0, 0, 9, 1])).is_err());
        list[11] = 2;
        assert_eq!(Krl::parse(&list).unwrap_err(), KrlError::Version(2));
    }
}
