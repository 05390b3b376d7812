//! Decrypts PEM files in OpenSSL's format from before PKCS#8 (PEM_write(3), "PEM ENCRYPTION
//! FORMAT"), which `ssh-keygen -m PEM` still writes.

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, PaddedBlockDecryptingKey,
    UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use md5::{Digest as _, Md5};
use ssh::key::PrivateKey;
use zeroize::Zeroizing;

use super::openssh::UnreadableKey;

const CIPHERS: &[(&str, usize, &Algorithm)] = &[
    ("AES-128-CBC", 16, &AES_128),
    ("AES-192-CBC", 24, &AES_192),
    ("AES-256-CBC", 32, &AES_256),
];
const BLOCK: usize = 16;

/// Encrypted private key in the traditional PEM format, as read from its file.
pub(super) struct EncryptedPemKey {
    cipher: &'static Algorithm,
    key_len: usize,
    iv: [u8; BLOCK],
    der: Zeroizing<Vec<u8>>,
    read: fn(&[u8]) -> Result<PrivateKey, ssh::key::KeyError>,
}

impl EncryptedPemKey {
    /// Prepares decryption from the value of DEK-Info, the contents, and a parser for the decrypted
    /// key.
    pub(super) fn new(
        dek_info: &str,
        der: Zeroizing<Vec<u8>>,
        read: fn(&[u8]) -> Result<PrivateKey, ssh::key::KeyError>,
    ) -> Result<Self, UnreadableKey> {
        let (name, iv) = dek_info.trim().split_once(',').unwrap_or((dek_info, ""));
        let known = CIPHERS.iter().find(|c| c.0.eq_ignore_ascii_case(name));
        let Some((_, key_len, cipher)) = known else {
            let name = crate::escape::name(name.as_bytes());
            return Err(UnreadableKey::Because(format!(
                "PEM encryption with {name} is not supported; convert the key to OpenSSH's \
                 format with ssh-keygen -p -f KEY"
            )));
        };
        let damaged = || UnreadableKey::damaged("wrong DEK-Info or length");
        let iv = unhex(iv.trim()).ok_or_else(damaged)?;
        if der.is_empty() || !der.len().is_multiple_of(BLOCK) {
            return Err(damaged());
        }
        Ok(Self {
            cipher,
            key_len: *key_len,
            iv,
            der,
            read,
        })
    }

    /// Decrypts the key; `None` if the passphrase is wrong.
    pub(super) fn unlock(&self, passphrase: &str) -> Option<PrivateKey> {
        let key = derive(passphrase.as_bytes(), &self.iv, self.key_len);
        let key = UnboundCipherKey::new(self.cipher, &key).ok()?;
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
        let mut plain = self.der.clone();
        let iv = DecryptionContext::Iv128(FixedLength::from(&self.iv));
        let plain = key.decrypt(&mut plain, iv).ok()?;
        // Padding that is correct by chance does not follow a valid key.
        (self.read)(plain).ok()
    }
}

/// Derives the key with EVP_BytesToKey(3): MD5, one iteration, and the start of the IV as salt.
fn derive(passphrase: &[u8], iv: &[u8; BLOCK], len: usize) -> Zeroizing<Vec<u8>> {
    // The buffer has its full size from the start: a growing vector leaves copies behind.
    let mut key = Zeroizing::new(Vec::with_capacity(len + BLOCK));
    let mut last = Zeroizing::new(Vec::with_capacity(BLOCK));
    while key.len() < len {
        let digest = Md5::new()
            .chain_update(&*last)
            .chain_update(passphrase)
            .chain_update(&iv[..8])
            .finalize();
        last.clear();
        last.extend_from_slice(&digest);
        key.extend_from_slice(&digest);
    }
    key.truncate(len);
    key
}

fn unhex(text: &str) -> Option<[u8; BLOCK]> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let bytes: Vec<u8> = digits?
        .chunks_exact(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect();
    let whole = text.len() == 2 * BLOCK;
    bytes.try_into().ok().filter(|_| whole)
}
