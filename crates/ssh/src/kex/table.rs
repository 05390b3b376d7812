use aws_lc_rs::{agreement, digest};

/// Parameters of a key exchange method, an entry of [`KEX_METHODS`].
#[derive(Debug)]
pub struct KexMethod {
    /// Method name in SSH.
    pub name: &'static str,
    /// Hash of the exchange hash and of key derivation.
    pub(super) hash: &'static digest::Algorithm,
    pub(super) agreement: KeyAgreement,
}

/// Kind of a key exchange method: ECDH on one curve, or X25519 together with a post-quantum key
/// encapsulation mechanism.
#[derive(Debug)]
pub(super) enum KeyAgreement {
    Ecdh(&'static KexCurve),
    Hybrid(Kem),
}

/// Elliptic curve and the encoding of its public keys, which has a fixed length.
#[derive(Debug)]
pub(super) struct KexCurve {
    pub(super) algorithm: &'static agreement::Algorithm,
    pub(super) public_len: usize,
    /// First byte of every public key: SEC 1's mark of an uncompressed point.
    pub(super) mark: Option<u8>,
}

/// Key encapsulation method of a hybrid key exchange; the classical half is X25519.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kem {
    MlKem768,
    Sntrup761,
}

impl KexMethod {
    /// Returns the length of the exchange hash in bytes.
    pub fn hash_len(&self) -> usize {
        self.hash.output_len()
    }

    /// Returns true if the method protects recorded sessions from a later quantum computer.
    pub fn is_post_quantum(&self) -> bool {
        matches!(self.agreement, KeyAgreement::Hybrid(_))
    }
}

pub(super) static X25519: KexCurve = KexCurve {
    algorithm: &agreement::X25519,
    public_len: 32,
    mark: None,
};
static NISTP256: KexCurve = KexCurve {
    algorithm: &agreement::ECDH_P256,
    public_len: 65,
    mark: Some(4),
};
static NISTP384: KexCurve = KexCurve {
    algorithm: &agreement::ECDH_P384,
    public_len: 97,
    mark: Some(4),
};
static NISTP521: KexCurve = KexCurve {
    algorithm: &agreement::ECDH_P521,
    public_len: 133,
    mark: Some(4),
};

/// All supported methods, in our order of preference, which is that of OpenSSH 10.
pub static KEX_METHODS: &[KexMethod] = &[
    KexMethod {
        name: "mlkem768x25519-sha256",
        hash: &digest::SHA256,
        agreement: KeyAgreement::Hybrid(Kem::MlKem768),
    },
    KexMethod {
        name: "sntrup761x25519-sha512",
        hash: &digest::SHA512,
        agreement: KeyAgreement::Hybrid(Kem::Sntrup761),
    },
    KexMethod {
        name: "sntrup761x25519-sha512@openssh.com",
        hash: &digest::SHA512,
        agreement: KeyAgreement::Hybrid(Kem::Sntrup761),
    },
    KexMethod {
        name: "curve25519-sha256",
        hash: &digest::SHA256,
        agreement: KeyAgreement::Ecdh(&X25519),
    },
    KexMethod {
        name: "curve25519-sha256@libssh.org",
        hash: &digest::SHA256,
        agreement: KeyAgreement::Ecdh(&X25519),
    },
    KexMethod {
        name: "ecdh-sha2-nistp256",
        hash: &digest::SHA256,
        agreement: KeyAgreement::Ecdh(&NISTP256),
    },
    KexMethod {
        name: "ecdh-sha2-nistp384",
        hash: &digest::SHA384,
        agreement: KeyAgreement::Ecdh(&NISTP384),
    },
    KexMethod {
        name: "ecdh-sha2-nistp521",
        hash: &digest::SHA512,
        agreement: KeyAgreement::Ecdh(&NISTP521),
    },
];

/// Returns the method with this name.
pub fn method(name: &str) -> Option<&'static KexMethod> {
    KEX_METHODS.iter().find(|m| m.name == name)
}
