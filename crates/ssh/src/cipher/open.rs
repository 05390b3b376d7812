use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::chacha20_poly1305_openssh as chacha;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::error::Unspecified;

use super::framing::LENGTH_FIELD;
use super::suite::{CipherSuite, Ctr, Mac};
use super::table::PLAIN;
use super::{
    CipherSpec, KeyMaterial, MacSpec, PacketFraming, PacketOpenError, PacketPosition,
    PacketSealError,
};

/// Key that opens the packets of one direction between two NEWKEYS.
///
/// The key is immutable, so an `Arc` of it can be used on every thread; opening a packet allocates
/// nothing.
pub struct OpeningKey {
    framing: PacketFraming,
    suite: CipherSuite<chacha::OpeningKey>,
}

impl OpeningKey {
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
        let (framing, suite) = CipherSuite::new(cipher, mac, keys, chacha::OpeningKey::new)?;
        Ok(Self { framing, suite })
    }

    /// Returns true if opening costs nothing, because there is neither cipher nor MAC.
    pub fn is_free(&self) -> bool {
        self.suite.is_free()
    }

    /// Returns the packet layout, which also advances the [`PacketPosition`].
    pub fn framing(&self) -> PacketFraming {
        self.framing
    }

    /// Returns the bytes that [`OpeningKey::peek_length`] needs, the same for every cipher.
    pub fn head_len(&self) -> usize {
        LENGTH_FIELD
    }

    /// Returns the bytes on the wire, tag included, of the packet that starts with `head`.
    ///
    /// `head` is unchanged: an encrypted length is decrypted in a copy. The result is not
    /// authenticated but bounded: at most [`super::MAX_PACKET_LENGTH`] plus length field and tag.
    pub fn peek_length(&self, at: PacketPosition, head: &[u8]) -> Result<usize, PacketOpenError> {
        let length = self.length(at, head)?;
        self.framing.check_length(u32::from_be_bytes(length))
    }

    fn length(
        &self,
        at: PacketPosition,
        head: &[u8],
    ) -> Result<[u8; LENGTH_FIELD], PacketOpenError> {
        let mut length = *head.first_chunk().ok_or(PacketOpenError::Short {
            needed: LENGTH_FIELD,
            got: head.len(),
        })?;
        match &self.suite {
            CipherSuite::ChaCha(key) => length = key.decrypt_packet_length(at.sequence, length),
            CipherSuite::Ctr(suite) if !suite.1.etm => {
                let (ctr, _) = &**suite;
                ctr.apply(at, &mut length)
                    .map_err(|_| PacketOpenError::Failed)?;
            }
            CipherSuite::Plain
            | CipherSuite::Clear(_)
            | CipherSuite::Gcm(_)
            | CipherSuite::Ctr(_) => {}
        }
        Ok(length)
    }

    /// Verifies and decrypts `packet` in place; returns the range of the payload in it.
    ///
    /// `packet` has exactly the length that [`OpeningKey::peek_length`] returned. After an error
    /// its content is undefined, and the connection must be closed.
    pub fn open(
        &self,
        at: PacketPosition,
        packet: &mut [u8],
    ) -> Result<Range<usize>, PacketOpenError> {
        let expected = self.peek_length(at, packet)?;
        let short = PacketOpenError::Short {
            needed: expected,
            got: packet.len(),
        };
        if packet.len() != expected {
            return Err(short);
        }
        let body_len = expected - self.framing.tag_len();
        let (body, tag) = packet.split_at_mut_checked(body_len).ok_or(short)?;
        match &self.suite {
            CipherSuite::Plain => Ok(()),
            CipherSuite::Clear(mac) => verify_slices_are_equal(mac.tag(at, body).as_ref(), tag),
            CipherSuite::Gcm(gcm) => {
                let (length, body_and_tag) = packet.split_at_mut(LENGTH_FIELD);
                gcm.open(at, length, body_and_tag)
            }
            CipherSuite::ChaCha(key) => {
                let tag = tag.first_chunk().ok_or(short)?;
                key.open_in_place(at.sequence, body, tag).map(|_| ())
            }
            CipherSuite::Ctr(suite) => {
                let (ctr, mac) = &**suite;
                open_with_mac(ctr, mac, at, body, tag)
            }
        }
        .map_err(|_| PacketOpenError::BadTag)?;
        payload(packet.get(..body_len).ok_or(short)?)
    }
}

fn open_with_mac(
    ctr: &Ctr,
    mac: &Mac,
    at: PacketPosition,
    body: &mut [u8],
    tag: &[u8],
) -> Result<(), Unspecified> {
    if mac.etm {
        verify_slices_are_equal(mac.tag(at, body).as_ref(), tag)?;
        ctr.apply(at, &mut body[LENGTH_FIELD..])
    } else {
        ctr.apply(at, body)?;
        verify_slices_are_equal(mac.tag(at, body).as_ref(), tag)
    }
}

/// Returns the range of the payload in an opened packet without its tag.
fn payload(body: &[u8]) -> Result<Range<usize>, PacketOpenError> {
    let start = LENGTH_FIELD + 1;
    let padding_length = body.get(LENGTH_FIELD).copied().unwrap_or_default();
    match body.len().checked_sub(usize::from(padding_length)) {
        Some(end) if padding_length >= 4 && end >= start => Ok(start..end),
        _ => Err(PacketOpenError::BadPadding { padding_length }),
    }
}

impl fmt::Debug for OpeningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpeningKey").finish_non_exhaustive()
    }
}
