use aws_lc_rs::{aead, cipher as aes, hmac};

/// Parameters of a cipher, an entry of [`CIPHERS`].
#[derive(Debug)]
pub struct CipherSpec {
    /// Algorithm name in SSH.
    pub name: &'static str,
    /// Length of the encryption key in bytes.
    pub key_len: usize,
    /// Length of the initial IV in bytes.
    pub iv_len: usize,
    /// Block length in bytes to which packets are padded.
    pub block_len: usize,
    /// Length of the authentication tag in bytes; 0 if a MAC from [`MACS`] is used.
    pub tag_len: usize,
    /// Bytes after which OpenSSH rekeys: 2^32 blocks of 16 bytes (RFC 4344 section 3.2), and 1 GiB
    /// for smaller blocks (packet.c `ssh_set_newkeys`).
    pub rekey_after: u64,
    pub(super) mode: CipherMode,
}

/// Construction of a cipher. GCM and ChaCha20-Poly1305 authenticate packets themselves, the others
/// leave that to a MAC.
#[derive(Debug)]
pub(super) enum CipherMode {
    Plain,
    Gcm(&'static aead::Algorithm),
    ChaCha,
    Ctr(&'static aes::Algorithm),
}

impl CipherSpec {
    /// Returns true if the cipher does not encrypt.
    pub fn is_none(&self) -> bool {
        matches!(self.mode, CipherMode::Plain)
    }

    /// Returns true if the cipher authenticates by itself (AEAD), so that no MAC is negotiated.
    pub fn is_aead(&self) -> bool {
        self.tag_len > 0
    }
}

/// Parameters of a MAC, an entry of [`MACS`].
#[derive(Debug)]
pub struct MacSpec {
    /// Algorithm name in SSH.
    pub name: &'static str,
    /// Length of the integrity key in bytes.
    pub key_len: usize,
    /// Length of the MAC in bytes.
    pub tag_len: usize,
    /// True for encrypt-then-MAC: computed over the encrypted packet with an unencrypted length
    /// (OpenSSH PROTOCOL section 1.5).
    pub etm: bool,
    pub(super) algorithm: hmac::Algorithm,
}

const GIB: u64 = 1 << 30;

/// Cipher before the first NEWKEYS (RFC 4253 section 6): blocks of 8 bytes, no tag.
pub(super) static PLAIN: CipherSpec = CipherSpec {
    name: "none",
    key_len: 0,
    iv_len: 0,
    block_len: 8,
    tag_len: 0,
    rekey_after: u64::MAX,
    mode: CipherMode::Plain,
};

/// Cipher `none` after authentication, if both ends were told to disable encryption (as HPN-SSH's
/// NONE). It is not in [`CIPHERS`], so it cannot be selected by name. Its rekey limit is HPN-SSH's:
/// 2^32 blocks of 8 bytes.
pub(crate) static NONE: CipherSpec = CipherSpec {
    name: "none",
    key_len: 0,
    iv_len: 0,
    block_len: 8,
    tag_len: 0,
    rekey_after: 32 * GIB,
    mode: CipherMode::Plain,
};

/// All supported ciphers, fastest first on a processor with AES instructions.
pub static CIPHERS: &[CipherSpec] = &[
    CipherSpec {
        name: "aes128-gcm@openssh.com",
        key_len: 16,
        iv_len: 12,
        block_len: 16,
        tag_len: 16,
        rekey_after: 64 * GIB,
        mode: CipherMode::Gcm(&aead::AES_128_GCM),
    },
    CipherSpec {
        name: "aes256-gcm@openssh.com",
        key_len: 32,
        iv_len: 12,
        block_len: 16,
        tag_len: 16,
        rekey_after: 64 * GIB,
        mode: CipherMode::Gcm(&aead::AES_256_GCM),
    },
    CipherSpec {
        name: "chacha20-poly1305@openssh.com",
        key_len: 64,
        iv_len: 0,
        block_len: 8,
        tag_len: 16,
        rekey_after: GIB,
        mode: CipherMode::ChaCha,
    },
    CipherSpec {
        name: "aes128-ctr",
        key_len: 16,
        iv_len: 16,
        block_len: 16,
        tag_len: 0,
        rekey_after: 64 * GIB,
        mode: CipherMode::Ctr(&aes::AES_128),
    },
    CipherSpec {
        name: "aes192-ctr",
        key_len: 24,
        iv_len: 16,
        block_len: 16,
        tag_len: 0,
        rekey_after: 64 * GIB,
        mode: CipherMode::Ctr(&aes::AES_192),
    },
    CipherSpec {
        name: "aes256-ctr",
        key_len: 32,
        iv_len: 16,
        block_len: 16,
        tag_len: 0,
        rekey_after: 64 * GIB,
        mode: CipherMode::Ctr(&aes::AES_256),
    },
];

/// All supported MACs, in our order of preference.
pub static MACS: &[MacSpec] = &[
    MacSpec {
        name: "hmac-sha2-256-etm@openssh.com",
        key_len: 32,
        tag_len: 32,
        etm: true,
        algorithm: hmac::HMAC_SHA256,
    },
    MacSpec {
        name: "hmac-sha2-512-etm@openssh.com",
        key_len: 64,
        tag_len: 64,
        etm: true,
        algorithm: hmac::HMAC_SHA512,
    },
    MacSpec {
        name: "hmac-sha2-256",
        key_len: 32,
        tag_len: 32,
        etm: false,
        algorithm: hmac::HMAC_SHA256,
    },
    MacSpec {
        name: "hmac-sha2-512",
        key_len: 64,
        tag_len: 64,
        etm: false,
        algorithm: hmac::HMAC_SHA512,
    },
];

/// Returns the cipher with this name.
pub fn cipher(name: &str) -> Option<&'static CipherSpec> {
    CIPHERS.iter().find(|c| c.name == name)
}

/// Returns the MAC with this name.
pub fn mac(name: &str) -> Option<&'static MacSpec> {
    MACS.iter().find(|m| m.name == name)
}

/// Returns the names of [`CIPHERS`] in the order to offer them: AES-GCM first on a processor with
/// AES instructions (`has_aes`), else chacha20-poly1305 first.
pub fn preferred_order(has_aes: bool) -> Vec<&'static str> {
    let chacha = |c: &&CipherSpec| matches!(c.mode, CipherMode::ChaCha);
    let (first, rest): (Vec<_>, Vec<_>) = if has_aes {
        (CIPHERS.iter().collect(), Vec::new())
    } else {
        CIPHERS.iter().partition(chacha)
    };
    first.into_iter().chain(rest).map(|c| c.name).collect()
}
