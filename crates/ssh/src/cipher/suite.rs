use aws_lc_rs::aead::chacha20_poly1305_openssh as chacha;
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::{error::Unspecified, hmac};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::table::CipherMode;
use super::{CipherSpec, MacSpec, PacketFraming, PacketPosition, PacketSealError};

/// Keys of one direction (RFC 4253 section 7.2).
#[derive(Clone, Default, Zeroize, ZeroizeOnDrop)]
pub struct KeyMaterial {
    /// Initial IV, `CipherSpec::iv_len` bytes.
    pub iv: Vec<u8>,
    /// Encryption key, `CipherSpec::key_len` bytes.
    pub key: Vec<u8>,
    /// Integrity key, `MacSpec::key_len` bytes; empty without a MAC.
    pub mac_key: Vec<u8>,
}

/// AES-GCM state for sealing and opening: the key works both ways.
pub(super) struct Gcm {
    key: LessSafeKey,
    fixed: [u8; 4],
    counter: u64,
}

impl Gcm {
    pub(super) fn new(
        algorithm: &'static aead::Algorithm,
        keys: &KeyMaterial,
    ) -> Result<Self, Unspecified> {
        let (fixed, counter) = keys.iv.split_first_chunk::<4>().ok_or(Unspecified)?;
        let counter = <[u8; 8]>::try_from(counter).map_err(|_| Unspecified)?;
        Ok(Self {
            key: LessSafeKey::new(UnboundKey::new(algorithm, &keys.key)?),
            fixed: *fixed,
            counter: u64::from_be_bytes(counter),
        })
    }

    /// Returns the nonce of a packet (RFC 5647 section 7.1): four fixed bytes, then an invocation
    /// counter that starts at the value in the IV.
    fn nonce(&self, at: PacketPosition) -> Nonce {
        let mut nonce = [0; aead::NONCE_LEN];
        let (fixed, counter) = nonce.split_at_mut(self.fixed.len());
        fixed.copy_from_slice(&self.fixed);
        counter.copy_from_slice(&self.counter.wrapping_add(at.packets).to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    pub(super) fn seal(
        &self,
        at: PacketPosition,
        length: &[u8],
        body: &mut [u8],
    ) -> Result<aead::Tag, Unspecified> {
        let nonce = self.nonce(at);
        self.key
            .seal_in_place_separate_tag(nonce, Aad::from(length), body)
    }

    /// Seals a body whose end is elsewhere: the ciphertext of `from` and then the tag go to `to`.
    pub(super) fn seal_from(
        &self,
        at: PacketPosition,
        (length, body): (&[u8], &mut [u8]),
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Unspecified> {
        let nonce = self.nonce(at);
        self.key
            .seal_in_place_scatter(nonce, Aad::from(length), body, from, to)
    }

    pub(super) fn open(
        &self,
        at: PacketPosition,
        length: &[u8],
        body_and_tag: &mut [u8],
    ) -> Result<(), Unspecified> {
        let nonce = self.nonce(at);
        self.key
            .open_in_place(nonce, Aad::from(length), body_and_tag)
            .map(|_| ())
    }
}

/// AES-CTR cipher of one direction, whose counter continues over all packets (RFC 4344 section 4).
pub(super) struct Ctr {
    key: EncryptingKey,
    counter: u128,
}

impl Ctr {
    const BLOCK: u64 = 16;

    pub(super) fn new(
        algorithm: &'static aws_lc_rs::cipher::Algorithm,
        keys: &KeyMaterial,
    ) -> Result<Self, Unspecified> {
        let iv = <[u8; 16]>::try_from(&keys.iv[..]).map_err(|_| Unspecified)?;
        let key = UnboundCipherKey::new(algorithm, &keys.key)?;
        Ok(Self {
            key: EncryptingKey::ctr(key)?,
            counter: u128::from_be_bytes(iv),
        })
    }

    /// Encrypts or decrypts bytes at position `at.bytes` of the stream, which is a whole number of
    /// blocks (RFC 4344 section 4).
    pub(super) fn apply(&self, at: PacketPosition, bytes: &mut [u8]) -> Result<(), Unspecified> {
        let block = self
            .counter
            .wrapping_add(u128::from(at.bytes / Self::BLOCK));
        let context = EncryptionContext::Iv128(block.to_be_bytes().into());
        self.key.less_safe_encrypt(bytes, context).map(|_| ())
    }
}

/// HMAC of one direction; with `etm` it covers the ciphertext instead of the plaintext.
pub(super) struct Mac {
    key: hmac::Key,
    pub(super) etm: bool,
}

impl Mac {
    pub(super) fn new(spec: &MacSpec, keys: &KeyMaterial) -> Result<Self, Unspecified> {
        if keys.mac_key.len() != spec.key_len {
            return Err(Unspecified);
        }
        Ok(Self {
            key: hmac::Key::new(spec.algorithm, &keys.mac_key),
            etm: spec.etm,
        })
    }

    /// Computes the MAC of sequence number and packet (RFC 4253 section 6.4). The HMAC context is
    /// copied, so the key's two hash blocks are not hashed again for each packet.
    pub(super) fn tag(&self, at: PacketPosition, packet: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&at.sequence.to_be_bytes());
        context.update(packet);
        context.sign()
    }
}

/// Algorithms and keys of one direction; `C` is the chacha20-poly1305 key for that direction.
pub(super) enum CipherSuite<C> {
    Plain,
    Clear(Box<Mac>),
    Gcm(Gcm),
    ChaCha(Box<C>),
    Ctr(Box<(Ctr, Mac)>),
}

impl<C> CipherSuite<C> {
    /// Returns true if there is neither cipher nor MAC, so that a packet costs nothing.
    pub(super) fn is_free(&self) -> bool {
        matches!(self, Self::Plain)
    }

    pub(super) fn new(
        cipher: &CipherSpec,
        mac: Option<&MacSpec>,
        keys: &KeyMaterial,
        chacha: impl FnOnce(&[u8; chacha::KEY_LEN]) -> C,
    ) -> Result<(PacketFraming, Self), PacketSealError> {
        let framing = check(cipher, mac, keys)?;
        let suite = match cipher.mode {
            CipherMode::Plain => match mac {
                None => Ok(Self::Plain),
                Some(mac) => Mac::new(mac, keys).map(|mac| Self::Clear(Box::new(mac))),
            },
            CipherMode::Gcm(algorithm) => Gcm::new(algorithm, keys).map(Self::Gcm),
            CipherMode::ChaCha => {
                let key = keys.key.first_chunk().ok_or(Unspecified);
                key.map(|key| Self::ChaCha(Box::new(chacha(key))))
            }
            CipherMode::Ctr(algorithm) => {
                let mac = mac.ok_or(Unspecified).and_then(|mac| Mac::new(mac, keys));
                mac.and_then(|mac| Ok(Self::Ctr(Box::new((Ctr::new(algorithm, keys)?, mac)))))
            }
        };
        Ok((framing, suite.map_err(|_| PacketSealError::BadKeyMaterial)?))
    }
}

fn check(
    cipher: &CipherSpec,
    mac: Option<&MacSpec>,
    keys: &KeyMaterial,
) -> Result<PacketFraming, PacketSealError> {
    // A cipher without a tag of its own needs a MAC, and an AEAD cipher must not have one. If
    // encryption was disabled, the MAC is optional.
    let right_mac = cipher.is_none() || cipher.is_aead() != mac.is_some();
    if keys.key.len() == cipher.key_len && keys.iv.len() == cipher.iv_len && right_mac {
        Ok(PacketFraming::new(cipher, mac))
    } else {
        Err(PacketSealError::BadKeyMaterial)
    }
}
