//! Reads OpenSSH's format of private keys (PROTOCOL.key).
//!
//! The crate `ssh-key` decrypts. The numbers are parsed here, since the crate accepts a P-521 or
//! P-256 secret only at full length, while an mpint has no leading zeros: every second P-521 secret
//! is shorter.

use ssh::key::{PrivateKey, PublicKey, RsaParts};
use ssh_key::{Cipher, Kdf};
use wire::FieldReader;
use zeroize::Zeroizing;

/// The maximum number of bcrypt rounds for a passphrase: about half a minute. ssh-keygen uses 16 to
/// 24 unless `-a` is given; a damaged file could request four billion.
const MAX_ROUNDS: u32 = 4096;

const MAGIC: &[u8] = b"openssh-key-v1\0";

/// A key file whose private part is still encoded, and encrypted unless it has no passphrase.
pub(super) struct EncodedKeyFile {
    cipher: Cipher,
    kdf: Kdf,
    public: PublicKey,
    private: Zeroizing<Vec<u8>>,
    tag: Option<[u8; 16]>,
}

/// The reason why no key could be read.
pub(super) enum UnreadableKey {
    /// The passphrase is wrong.
    Passphrase,
    /// Continues the sentence that starts with the file's name.
    Because(String),
}

impl UnreadableKey {
    pub(super) fn damaged(why: impl std::fmt::Display) -> Self {
        Self::Because(format!("the file is damaged: {why}"))
    }
}

impl std::fmt::Display for UnreadableKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passphrase => f.write_str("the file is damaged"),
            Self::Because(why) => f.write_str(why),
        }
    }
}

impl From<&str> for UnreadableKey {
    fn from(why: &str) -> Self {
        Self::Because(why.to_owned())
    }
}

impl From<ssh::key::KeyError> for UnreadableKey {
    fn from(error: ssh::key::KeyError) -> Self {
        Self::Because(format!("cannot use the key: {error}"))
    }
}

impl From<wire::WireError> for UnreadableKey {
    fn from(error: wire::WireError) -> Self {
        Self::damaged(error)
    }
}

impl EncodedKeyFile {
    /// The public key, which is never encrypted.
    pub(super) fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Reads the outer structure, whose public key is never encrypted.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, UnreadableKey> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or_else(|| UnreadableKey::damaged("it does not begin as a key of OpenSSH"))?;
        let mut r = FieldReader::new(rest);
        let cipher = read_cipher(r.string()?)?;
        let kdf = read_kdf(r.string()?, r.string()?)?;
        match r.u32()? {
            1 => {}
            n => return Err(UnreadableKey::damaged(format_args!("it holds {n} keys"))),
        }
        let public = PublicKey::from_blob(r.string()?)
            .map_err(|e| UnreadableKey::damaged(format_args!("its public key: {e}")))?;
        let private = Zeroizing::new(r.string()?.to_vec());
        let tag = match cipher.has_tag() {
            true => Some(r.array()?),
            false => None,
        };
        r.finish()?;
        if cipher.is_some() != kdf.is_some() || private.len() % cipher.block_size() != 0 {
            return Err(UnreadableKey::damaged("malformed encryption parameters"));
        }
        Ok(Self {
            cipher,
            kdf,
            public,
            private,
            tag,
        })
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// Returns the private key of an unencrypted file.
    pub(super) fn open(&self) -> Result<PrivateKey, UnreadableKey> {
        let key = read_private(&self.private, self.cipher.block_size());
        let key = key.map_err(|e| match e {
            // Without decryption, different check numbers mean damage and not a wrong passphrase.
            UnreadableKey::Passphrase => UnreadableKey::damaged("its check numbers differ"),
            e => e,
        })?;
        self.fits(key)
    }

    /// Returns the private key of an encrypted file.
    pub(super) fn unlock(&self, passphrase: &str) -> Result<PrivateKey, UnreadableKey> {
        let failed =
            |e: ssh_key::Error| UnreadableKey::Because(format!("cannot decrypt the key: {e}"));
        let (key, iv) = self
            .kdf
            .derive_key_and_iv(self.cipher, passphrase)
            .map_err(failed)?;
        let mut plain = self.private.clone();
        self.cipher
            .decrypt(&key, &iv, &mut plain, self.tag)
            .map_err(|_| UnreadableKey::Passphrase)?;
        self.fits(read_private(&plain, self.cipher.block_size())?)
    }

    fn fits(&self, key: PrivateKey) -> Result<PrivateKey, UnreadableKey> {
        match key.public_blob() == self.public.blob() {
            true => Ok(key),
            false => Err(UnreadableKey::damaged(
                "its public and private parts belong to different keys",
            )),
        }
    }
}

fn read_cipher(name: &[u8]) -> Result<Cipher, UnreadableKey> {
    let known = std::str::from_utf8(name).ok();
    known.and_then(|n| Cipher::new(n).ok()).ok_or_else(|| {
        let name = crate::escape::name(name);
        UnreadableKey::Because(format!(
            "encryption with {name} is not supported; rewrite the key with ssh-keygen -p -f KEY"
        ))
    })
}

fn read_kdf(name: &[u8], options: &[u8]) -> Result<Kdf, UnreadableKey> {
    match name {
        b"none" if options.is_empty() => Ok(Kdf::None),
        b"bcrypt" => {
            let mut r = FieldReader::new(options);
            let (salt, rounds) = (r.string()?.to_vec(), r.u32()?);
            r.finish()?;
            if rounds > MAX_ROUNDS {
                return Err(UnreadableKey::Because(format!(
                    "the key uses {rounds} rounds of bcrypt; the limit is {MAX_ROUNDS}: lower \
                     them with ssh-keygen -p -a 100 -f KEY"
                )));
            }
            Ok(Kdf::Bcrypt { salt, rounds })
        }
        _ => Err(UnreadableKey::damaged("unknown key derivation function")),
    }
}

/// Parses the check numbers, the key, its comment, and the padding 1, 2, 3... up to a whole block.
fn read_private(bytes: &[u8], block: usize) -> Result<PrivateKey, UnreadableKey> {
    let mut r = FieldReader::new(bytes);
    if r.u32()? != r.u32()? {
        return Err(UnreadableKey::Passphrase);
    }
    let key = match r.string()? {
        b"ssh-ed25519" => {
            let _public = r.string()?;
            // The seed, followed by the public key again.
            let mut pair = FieldReader::new(r.string()?);
            let seed = Zeroizing::new(pair.array()?);
            let _again: [u8; 32] = pair.array()?;
            pair.finish()?;
            PrivateKey::from_ed25519_seed(&seed)
        }
        b"ecdsa-sha2-nistp256" => read_ecdsa("nistp256", &mut r)?,
        b"ecdsa-sha2-nistp384" => read_ecdsa("nistp384", &mut r)?,
        b"ecdsa-sha2-nistp521" => read_ecdsa("nistp521", &mut r)?,
        b"ssh-rsa" => {
            let (n, e, d) = (r.string()?, r.string()?, r.string()?);
            let (iqmp, p, q) = (r.string()?, r.string()?, r.string()?);
            PrivateKey::from_rsa(RsaParts {
                n,
                e,
                d,
                iqmp,
                p,
                q,
            })
        }
        other => {
            let name = crate::escape::name(other);
            return Err(UnreadableKey::Because(format!(
                "keys of type {name} are not supported"
            )));
        }
    };
    let key = key?;
    let _comment = r.string()?;
    let padding = r.rest();
    let counts = padding.iter().zip(1..=u8::MAX).all(|(b, n)| *b == n);
    if padding.len() >= block.max(1) || !counts {
        return Err(UnreadableKey::damaged("its end (padding) is wrong"));
    }
    Ok(key)
}

fn read_ecdsa(
    curve: &'static str,
    r: &mut FieldReader<'_>,
) -> Result<Result<PrivateKey, ssh::key::KeyError>, UnreadableKey> {
    if r.string()? != curve.as_bytes() {
        return Err(UnreadableKey::damaged("its curve does not match its type"));
    }
    let (point, secret) = (r.string()?, r.string()?);
    Ok(PrivateKey::from_ecdsa(curve, secret, point))
}
