use aws_lc_rs::{agreement, digest};

/// A row of [`KEX_METHODS`].
#[derive(Debug)]
pub struct KexMethod {
    /// SSH's name.
    pub name: &'static str,
    /// Of the exchange hash and key derivation.
    pub(super) hash: &'static digest::Algorithm,
    pub(super) agreement: Agreement,
}

#[derive(Debug)]
pub(super) enum Agreement {
    Ecdh(&'static Curve),
    Hybrid(Kem),
}

/// A curve and the encoding of its public keys, in which only one length is right.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) algorithm: &'static agreement::Algorithm,
    pub(super) public_len: usize,
    /// First byte of a public key: SEC 1's mark of an uncompressed point.
    pub(super) mark: Option<u8>,
}

/// The post-quantum half of a hybrid method. The other half is X25519.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kem {
    MlKem768,
    Sntrup761,
}

impl KexMethod {
    /// Bytes of the exchange hash.
    pub fn hash_len(&self) -> usize {
        self.hash.output_len()
    }

    /// Whether the method holds against a recorded session and a later quantum computer.
    pub fn is_post_quantum(&self) -> bool {
        matches!(self.agreement, Agreement::Hybrid(_))
    }
}

pub(super) static X25519: Curve = Curve {
    algorithm: &agreement::X25519,
    public_len: 32,
    mark: None,
};
static NISTP256: Curve = Curve {
    algorithm: &agreement::ECDH_P256,
    public_len: 65,
    mark: Some(4),
};
static NISTP384: Curve = Curve {
    algorithm: &agreement::ECDH_P384,
    public_len: 97,
    mark: Some(4),
};
static NISTP521: Curve = Curve {
    algorithm: &agreement::ECDH_P521,
    public_len: 133,
    mark: Some(4),
};

/// Every method there is, in our order of preference: OpenSSH 10's.
pub static KEX_METHODS: &[KexMethod] = &[
    KexMethod {
        name: "mlkem768x25519-sha256",
        hash: &digest::SHA256,
        agreement: Agreement::Hybrid(Kem::MlKem768),
    },
    KexMethod {
        name: "sntrup761x25519-sha512",
        hash: &digest::SHA512,
        agreement: Agreement::Hybrid(Kem::Sntrup761),
    },
    KexMethod {
        name: "sntrup761x25519-sha512@openssh.com",
        hash: &digest::SHA512,
        agreement: Agreement::Hybrid(Kem::Sntrup761),
    },
    KexMethod {
        name: "curve25519-sha256",
        hash: &digest::SHA256,
        agreement: Agreement::Ecdh(&X25519),
    },
    KexMethod {
        name: "curve25519-sha256@libssh.org",
        hash: &digest::SHA256,
        agreement: Agreement::Ecdh(&X25519),
    },
    KexMethod {
        name: "ecdh-sha2-nistp256",
        hash: &digest::SHA256,
        agreement: Agreement::Ecdh(&NISTP256),
    },
    KexMethod {
        name: "ecdh-sha2-nistp384",
        hash: &digest::SHA384,
        agreement: Agreement::Ecdh(&NISTP384),
    },
    KexMethod {
        name: "ecdh-sha2-nistp521",
        hash: &digest::SHA512,
        agreement: Agreement::Ecdh(&NISTP521),
    },
];

/// The method of that name.
pub fn method(name: &str) -> Option<&'static KexMethod> {
    KEX_METHODS.iter().find(|m| m.name == name)
}
