use aws_lc_rs::digest;
use wire::Field;
use zeroize::Zeroizing;

use super::{KexMethod, SharedSecret};
use crate::cipher::{CipherSpec, KeyMaterial, MacSpec};

/// Inputs of the exchange hash (RFC 5656 section 4), without the shared secret.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeHashInputs<'a> {
    /// V_C: the client's identification line without CR and LF.
    pub v_c: &'a [u8],
    /// V_S: the server's identification line without CR and LF.
    pub v_s: &'a [u8],
    /// I_C: the client's KEXINIT, message number included.
    pub i_c: &'a [u8],
    /// I_S: the server's KEXINIT, message number included.
    pub i_s: &'a [u8],
    /// K_S: the server's host key blob.
    pub k_s: &'a [u8],
    /// The client's public value in KEX_ECDH_INIT.
    pub init: &'a [u8],
    /// The server's public value in KEX_ECDH_REPLY.
    pub reply: &'a [u8],
}

/// Computes the exchange hash H, which the host key signs; the first one is the session identifier.
pub fn exchange_hash(
    method: &KexMethod,
    inputs: ExchangeHashInputs<'_>,
    secret: &SharedSecret,
) -> Vec<u8> {
    let mut public = Vec::new();
    let ExchangeHashInputs {
        v_c,
        v_s,
        i_c,
        i_s,
        k_s,
        init,
        reply,
    } = inputs;
    for string in [v_c, v_s, i_c, i_s, k_s, init, reply] {
        string.write(&mut public);
    }
    let mut hash = digest::Context::new(method.hash);
    hash.update(&public);
    hash.update(secret.encoded());
    hash.finish().as_ref().to_vec()
}

/// Derives `len` bytes of key for `letter`, `b'A'` to `b'F'` (RFC 4253 section 7.2).
pub fn derive(
    method: &KexMethod,
    secret: &SharedSecret,
    hash: &[u8],
    session_id: &[u8],
    letter: u8,
    len: usize,
) -> Zeroizing<Vec<u8>> {
    let step = method.hash.output_len();
    // Capacity for the last whole step, so that no reallocation leaves key bytes behind.
    let mut key = Zeroizing::new(Vec::with_capacity(len.next_multiple_of(step)));
    while key.len() < len {
        let mut context = digest::Context::new(method.hash);
        context.update(secret.encoded());
        context.update(hash);
        if key.is_empty() {
            context.update(&[letter]);
            context.update(session_id);
        } else {
            context.update(&key);
        }
        key.extend_from_slice(context.finish().as_ref());
    }
    key.truncate(len);
    key
}

/// Direction of packets, which selects the letters from which its keys are derived (RFC 4253
/// section 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDirection {
    /// Client to server: letters A, C and E.
    ToServer,
    /// Server to client: letters B, D and F.
    ToClient,
}

/// Derives IV, encryption key and integrity key for one direction.
pub fn derive_keys(
    method: &KexMethod,
    secret: &SharedSecret,
    hash: &[u8],
    session_id: &[u8],
    direction: KeyDirection,
    cipher: &CipherSpec,
    mac: Option<&MacSpec>,
) -> KeyMaterial {
    let [iv, key, mac_key] = match direction {
        KeyDirection::ToServer => *b"ACE",
        KeyDirection::ToClient => *b"BDF",
    };
    let take = |letter, len| {
        let mut bytes = derive(method, secret, hash, session_id, letter, len);
        std::mem::take(&mut *bytes)
    };
    KeyMaterial {
        iv: take(iv, cipher.iv_len),
        key: take(key, cipher.key_len),
        mac_key: take(mac_key, mac.map_or(0, |m| m.key_len)),
    }
}
