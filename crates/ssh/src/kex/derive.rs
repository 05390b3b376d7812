use aws_lc_rs::digest;
use wire::Field;
use zeroize::Zeroizing;

use super::{KexMethod, SharedSecret};
use crate::cipher::{CipherSpec, KeyMaterial, MacSpec};

/// What the exchange hash is over (RFC 5656 section 4), apart from the secret.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeInputs<'a> {
    /// The client's identification line without CR and LF.
    pub v_c: &'a [u8],
    /// The server's.
    pub v_s: &'a [u8],
    /// The client's KEXINIT, message number included.
    pub i_c: &'a [u8],
    /// The server's.
    pub i_s: &'a [u8],
    /// The server's host key blob.
    pub k_s: &'a [u8],
    /// The client's string in KEX_ECDH_INIT.
    pub init: &'a [u8],
    /// The server's in KEX_ECDH_REPLY.
    pub reply: &'a [u8],
}

/// H: what the host key signs, and of the first exchange the session id.
pub fn exchange_hash(
    method: &KexMethod,
    inputs: ExchangeInputs<'_>,
    secret: &SharedSecret,
) -> Vec<u8> {
    let mut public = Vec::new();
    let ExchangeInputs {
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

/// `len` bytes of key under `letter`, `b'A'` to `b'F'` (RFC 4253 section 7.2).
pub fn derive(
    method: &KexMethod,
    secret: &SharedSecret,
    hash: &[u8],
    session_id: &[u8],
    letter: u8,
    len: usize,
) -> Zeroizing<Vec<u8>> {
    let step = method.hash.output_len();
    // Room for the last whole step, so that no reallocation leaves key bytes behind.
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

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From client to server: letters A, C and E.
    ToServer,
    /// From server to client: B, D and F.
    ToClient,
}

/// All that `cipher` and `mac` need for one direction.
pub fn derive_keys(
    method: &KexMethod,
    secret: &SharedSecret,
    hash: &[u8],
    session_id: &[u8],
    direction: Direction,
    cipher: &CipherSpec,
    mac: Option<&MacSpec>,
) -> KeyMaterial {
    let [iv, key, mac_key] = match direction {
        Direction::ToServer => *b"ACE",
        Direction::ToClient => *b"BDF",
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
