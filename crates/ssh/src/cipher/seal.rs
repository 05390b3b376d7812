use std::fmt;

use aws_lc_rs::aead::chacha20_poly1305_openssh as chacha;
use aws_lc_rs::error::Unspecified;

use super::framing::LENGTH_FIELD;
use super::suite::{CipherSuite, Ctr, Mac};
use super::table::PLAIN;
use super::{CipherSpec, KeyMaterial, MacSpec, PacketFraming, PacketPosition, PacketSealError};

/// Key that seals the packets of one direction between two NEWKEYS.
///
/// The key is immutable, so an `Arc` of it can be used on every thread; sealing a packet allocates
/// nothing. The caller must use each [`PacketPosition`] only once: using it twice reveals the
/// plaintext of both packets.
pub struct SealingKey {
    framing: PacketFraming,
    suite: CipherSuite<chacha::SealingKey>,
}

impl SealingKey {
    /// Returns the key in use before the first NEWKEYS: no encryption and no MAC.
    pub fn plain() -> Self {
        Self {
            framing: PacketFraming::new(&PLAIN, None),
            suite: CipherSuite::Plain,
        }
    }

    /// Creates a key for `cipher`, with `mac` if and only if the cipher has no tag of its own.
    ///
    /// # Errors
    /// The key material has wrong lengths.
    pub fn new(
        cipher: &CipherSpec,
        mac: Option<&MacSpec>,
        keys: &KeyMaterial,
    ) -> Result<Self, PacketSealError> {
        let (framing, suite) = CipherSuite::new(cipher, mac, keys, chacha::SealingKey::new)?;
        Ok(Self { framing, suite })
    }

    /// Returns true if sealing costs nothing, because there is neither cipher nor MAC.
    pub fn is_free(&self) -> bool {
        self.suite.is_free()
    }

    /// Returns true if [`SealingKey::seal_from`] is available: AES-GCM reads its input once and can
    /// write its output elsewhere.
    pub fn seals_from_elsewhere(&self) -> bool {
        matches!(self.suite, CipherSuite::Gcm(_))
    }

    /// Returns the packet layout for [`SealingKey::seal`].
    pub fn framing(&self) -> PacketFraming {
        self.framing
    }

    /// Encrypts `packet` in place and fills in its tag.
    ///
    /// `packet` is one whole packet: [`PacketFraming::head`], payload, padding, and room for the
    /// tag.
    pub fn seal(&self, at: PacketPosition, packet: &mut [u8]) -> Result<(), PacketSealError> {
        let tag_at = self.framing.check_layout(packet)?;
        let bad = PacketSealError::BadLayout { len: packet.len() };
        let (body, tag) = packet.split_at_mut_checked(tag_at).ok_or(bad)?;
        match &self.suite {
            CipherSuite::Plain => Ok(()),
            CipherSuite::Clear(mac) => {
                tag.copy_from_slice(mac.tag(at, body).as_ref());
                Ok(())
            }
            CipherSuite::Gcm(gcm) => {
                let (length, body) = body.split_at_mut(LENGTH_FIELD);
                let sealed = gcm.seal(at, length, body);
                sealed.map(|made| tag.copy_from_slice(made.as_ref()))
            }
            CipherSuite::ChaCha(key) => {
                let tag = tag.first_chunk_mut().ok_or(bad)?;
                key.seal_in_place(at.sequence, body, tag);
                Ok(())
            }
            CipherSuite::Ctr(suite) => {
                let (ctr, mac) = &**suite;
                seal_with_mac(ctr, mac, at, body, tag)
            }
        }
        .map_err(|_| PacketSealError::Failed)
    }

    /// Seals a packet whose end is elsewhere: `head` is the packet up to some point in the payload,
    /// `from` the rest of the payload and the padding, each byte of which is read once, and `to`
    /// receives the ciphertext of `from` and the tag.
    ///
    /// # Errors
    /// The cipher does not support it, or the lengths do not match.
    pub fn seal_from(
        &self,
        at: PacketPosition,
        head: &mut [u8],
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), PacketSealError> {
        let len = head.len() + to.len();
        let bad = PacketSealError::BadLayout { len };
        let tag_at = self.framing.tag_at(head, len)?;
        let (CipherSuite::Gcm(gcm), Some((length, body)), true) = (
            &self.suite,
            head.split_at_mut_checked(LENGTH_FIELD),
            tag_at.checked_sub(from.len()) == Some(len - to.len()),
        ) else {
            return Err(bad);
        };
        let sealed = gcm.seal_from(at, (length, body), from, to);
        sealed.map_err(|_| PacketSealError::Failed)
    }
}

fn seal_with_mac(
    ctr: &Ctr,
    mac: &Mac,
    at: PacketPosition,
    body: &mut [u8],
    tag: &mut [u8],
) -> Result<(), Unspecified> {
    if mac.etm {
        ctr.apply(at, &mut body[LENGTH_FIELD..])?;
        tag.copy_from_slice(mac.tag(at, body).as_ref());
    } else {
        tag.copy_from_slice(mac.tag(at, body).as_ref());
        ctr.apply(at, body)?;
    }
    Ok(())
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey").finish_non_exhaustive()
    }
}
