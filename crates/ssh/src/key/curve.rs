use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaSigningAlgorithm, EcdsaVerificationAlgorithm,
};

/// Elliptic curve for ECDSA (RFC 5656), with the hash that its size requires.
#[derive(Debug)]
pub(super) struct EcdsaCurve {
    /// Curve name in the second field of the key.
    pub(super) name: &'static str,
    pub(super) key_type: &'static str,
    /// Length in bytes of a coordinate, and of each half of a signature.
    pub(super) field_len: usize,
    pub(super) verifying: &'static EcdsaVerificationAlgorithm,
    pub(super) signing: &'static EcdsaSigningAlgorithm,
}

pub(super) static NISTP256: EcdsaCurve = EcdsaCurve {
    name: "nistp256",
    key_type: "ecdsa-sha2-nistp256",
    field_len: 32,
    verifying: &ECDSA_P256_SHA256_FIXED,
    signing: &ECDSA_P256_SHA256_FIXED_SIGNING,
};
static NISTP384: EcdsaCurve = EcdsaCurve {
    name: "nistp384",
    key_type: "ecdsa-sha2-nistp384",
    field_len: 48,
    verifying: &ECDSA_P384_SHA384_FIXED,
    signing: &ECDSA_P384_SHA384_FIXED_SIGNING,
};
static NISTP521: EcdsaCurve = EcdsaCurve {
    name: "nistp521",
    key_type: "ecdsa-sha2-nistp521",
    field_len: 66,
    verifying: &ECDSA_P521_SHA512_FIXED,
    signing: &ECDSA_P521_SHA512_FIXED_SIGNING,
};

pub(super) static CURVES: [&EcdsaCurve; 3] = [&NISTP256, &NISTP384, &NISTP521];

impl EcdsaCurve {
    pub(super) fn of_type(key_type: &str) -> Option<&'static Self> {
        CURVES.into_iter().find(|c| c.key_type == key_type)
    }

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        CURVES.into_iter().find(|c| c.name == name)
    }

    /// Returns true if `point` is uncompressed, the only encoding permitted (OpenSSH's choice among
    /// those of RFC 5656 section 3.1). The point is checked to be on the curve when it is used.
    pub(super) fn accepts(&self, point: &[u8]) -> bool {
        point.len() == 1 + 2 * self.field_len && point.first() == Some(&4)
    }
}
