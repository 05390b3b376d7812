use aws_lc_rs::{aead, cipher as aes, hmac};

/// A row of [`CIPHERS`].
#[derive(Debug)]
pub struct CipherSpec {
    /// SSH's name.
    pub name: &'static str,
    /// Bytes of key to derive.
    pub key_len: usize,
    /// Bytes of IV to derive.
    pub iv_len: usize,
    /// What a packet is padded to a multiple of, in bytes.
    pub block_len: usize,
    /// Bytes of authentication tag; 0 where a MAC from [`MACS`] gives it.
    pub tag_len: usize,
    /// Bytes after which OpenSSH wants new keys: 2^32 blocks of 16 bytes (RFC 4344 section 3.2),
    /// and 1 GiB for smaller blocks (packet.c `ssh_set_newkeys`).
    pub rekey_after: u64,
    pub(super) mode: Mode,
}

#[derive(Debug)]
pub(super) enum Mode {
    Plain,
    Gcm(&'static aead::Algorithm),
    ChaCha,
    Ctr(&'static aes::Algorithm),
}

impl CipherSpec {
    /// Whether it enciphers nothing.
    pub fn is_none(&self) -> bool {
        matches!(self.mode, Mode::Plain)
    }

    /// Whether the cipher authenticates by itself, so that no MAC is negotiated.
    pub fn is_aead(&self) -> bool {
        self.tag_len > 0
    }
}

/// A row of [`MACS`].
#[derive(Debug)]
pub struct MacSpec {
    /// SSH's name.
    pub name: &'static str,
    /// Bytes of key to derive.
    pub key_len: usize,
    /// Bytes of authentication tag.
    pub tag_len: usize,
    /// Encrypt-then-MAC: over the enciphered packet, its length in the clear (OpenSSH PROTOCOL
    /// section 1.5).
    pub etm: bool,
    pub(super) algorithm: hmac::Algorithm,
}

const GIB: u64 = 1 << 30;

/// Before the first NEWKEYS (RFC 4253 section 6): blocks of 8, no tag.
pub(super) static PLAIN: CipherSpec = CipherSpec {
    name: "none",
    key_len: 0,
    iv_len: 0,
    block_len: 8,
    tag_len: 0,
    rekey_after: u64::MAX,
    mode: Mode::Plain,
};

/// None, after authentication, where both ends were told to do without (HPN-SSH's NONE). Not in
/// [`CIPHERS`]: nobody can name it. Its limit is HPN-SSH's: 2^32 blocks of 8 bytes.
pub(crate) static NONE: CipherSpec = CipherSpec {
    name: "none",
    key_len: 0,
    iv_len: 0,
    block_len: 8,
    tag_len: 0,
    rekey_after: 32 * GIB,
    mode: Mode::Plain,
};

/// Every cipher there is, fastest first on a processor with AES instructions.
pub static CIPHERS: &[CipherSpec] = &[
    CipherSpec {
        name: "aes128-gcm@openssh.com",
        key_len: 16,
        iv_len: 12,
        block_len: 16,
        tag_len: 16,
        rekey_after: 64 * GIB,
        mode: Mode::Gcm(&aead::AES_128_GCM),
    },
    CipherSpec {
        name: "aes256-gcm@openssh.com",
        key_len: 32,
        iv_len: 12,
        block_len: 16,
        tag_len: 16,
        rekey_after: 64 * GIB,
        mode: Mode::Gcm(&aead::AES_256_GCM),
    },
    CipherSpec {
        name: "chacha20-poly1305@openssh.com",
        key_len: 64,
        iv_len: 0,
        block_len: 8,
        tag_len: 16,
        rekey_after: GIB,
        mode: Mode::ChaCha,
    },
    CipherSpec {
        name: "aes128-ctr",
        key_len: 16,
        iv_len: 16,
        block_len: 16,
        tag_len: 0,
        rekey_after: 64 * GIB,
        mode: Mode::Ctr(&aes::AES_128),
    },
    CipherSpec {
        name: "aes192-ctr",
        key_len: 24,
        iv_len: 16,
        block_len: 16,
        tag_len: 0,
        rekey_after: 64 * GIB,
        mode: Mode::Ctr(&aes::AES_192),
    },
    CipherSpec {
        name: "aes256-ctr",
        key_len: 32,
        iv_len: 16,
        block_len: 16,
        tag_len: 0,
        rekey_after: 64 * GIB,
        mode: Mode::Ctr(&aes::AES_256),
    },
];

/// Every MAC there is, in our order of preference.
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

/// The cipher of that name.
pub fn cipher(name: &str) -> Option<&'static CipherSpec> {
    CIPHERS.iter().find(|c| c.name == name)
}

/// The MAC of that name.
pub fn mac(name: &str) -> Option<&'static MacSpec> {
    MACS.iter().find(|m| m.name == name)
}

/// Names of [`CIPHERS`] in the order to offer them: AES-GCM first on a processor with AES
/// instructions (`has_aes`), chacha20-poly1305 first on one without.
pub fn preferred_order(has_aes: bool) -> Vec<&'static str> {
    let chacha = |c: &&CipherSpec| matches!(c.mode, Mode::ChaCha);
    let (first, rest): (Vec<_>, Vec<_>) = if has_aes {
        (CIPHERS.iter().collect(), Vec::new())
    } else {
        CIPHERS.iter().partition(chacha)
    };
    first.into_iter().chain(rest).map(|c| c.name).collect()
}
