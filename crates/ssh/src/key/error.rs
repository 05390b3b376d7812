use std::fmt;

use wire::WireError;

use super::date::UtcDate;
use crate::text::escape;

/// Reason why a key cannot be read or used, or why a signature is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Decoding of the blob failed.
    Wire(WireError),
    /// The blob has a value that is invalid for its key type.
    Malformed(&'static str),
    /// The RSA modulus is too short to be safe, or longer than the library supports.
    RsaSize {
        /// Length of the modulus in bits.
        bits: usize,
    },
    /// The key type can be named and passed on, but not used here.
    Unsupported {
        /// The key type.
        key_type: String,
    },
    /// The key does not support this algorithm, or the signature has another one.
    WrongAlgorithm {
        /// Algorithm that was requested, or that the signature names.
        algorithm: String,
    },
    /// The signature does not verify.
    BadSignature,
    /// A server did not prove that it owns a host key that it announced.
    Unproven,
    /// The private key is damaged, or does not match its public key.
    BadPrivateKey,
    /// The cipher library failed to sign or to generate a key.
    Local,
}

impl From<WireError> for KeyError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => write!(f, "the key cannot be read: {error}"),
            Self::Malformed(what) => write!(f, "the key is malformed: {what}"),
            Self::RsaSize { bits } => write!(
                f,
                "an RSA key of {bits} bits is not supported; 2048 to 8192 bits are"
            ),
            Self::Unsupported { key_type } => {
                write!(
                    f,
                    "keys of type {} are not supported",
                    escape(key_type.as_bytes())
                )
            }
            Self::WrongAlgorithm { algorithm } => write!(
                f,
                "signature algorithm {} does not match the key type",
                escape(algorithm.as_bytes())
            ),
            Self::BadSignature => f.write_str("the signature is wrong"),
            Self::Unproven => f.write_str("the server did not prove that it owns the key"),
            Self::BadPrivateKey => {
                f.write_str("the private key is damaged or does not match its public key")
            }
            Self::Local => f.write_str("the cipher library failed to sign or to create a key"),
        }
    }
}

impl std::error::Error for KeyError {}

/// Reason why a certificate is not accepted. The host may still be known by its plain key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateError {
    /// A user certificate in place of a host certificate.
    NotAHost,
    /// A host certificate in place of a user certificate.
    NotAUser,
    /// The CA's key is not trusted: for a host, no `@cert-authority` line covers it.
    UntrustedAuthority {
        /// Fingerprint of the CA's key.
        fingerprint: String,
    },
    /// The CA's signature is wrong, or its algorithm is not accepted.
    BadSignature(KeyError),
    /// The validity has not started.
    NotYetValid {
        /// Start of validity, in seconds since 1970.
        valid_after: u64,
    },
    /// The validity has ended.
    Expired {
        /// End of validity, in seconds since 1970.
        valid_before: u64,
    },
    /// The certificate has no principals. OpenSSH before 10.3 accepted it for all hosts or users,
    /// so that one careless signature gave access to everything (CVE-2026-35414).
    NoPrincipals,
    /// The wanted name is not among the principals.
    OtherPrincipals {
        /// Host name, or the accepted user names.
        name: String,
    },
    /// A critical option is unknown or cannot be honored; none is defined for hosts.
    CriticalOption {
        /// Name of the option.
        name: String,
    },
    /// An option is malformed.
    MalformedOption {
        /// Name of the option.
        name: String,
    },
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the certificate ")?;
        match self {
            Self::NotAHost => f.write_str("is a user certificate, not a host certificate"),
            Self::NotAUser => f.write_str("is a host certificate, not a user certificate"),
            Self::UntrustedAuthority { fingerprint } => {
                write!(f, "is signed by an untrusted authority, {fingerprint}")
            }
            Self::BadSignature(error) => write!(f, "has an invalid signature: {error}"),
            Self::NotYetValid { valid_after } => {
                write!(
                    f,
                    "is not valid before {}: check the clock of this machine",
                    UtcDate(*valid_after)
                )
            }
            Self::Expired { valid_before } => {
                write!(
                    f,
                    "expired at {}: renew it, or check the clock of this machine",
                    UtcDate(*valid_before)
                )
            }
            Self::NoPrincipals => f.write_str("names no principal"),
            Self::OtherPrincipals { name } => {
                write!(
                    f,
                    "does not list {} as a principal",
                    escape(name.as_bytes())
                )
            }
            Self::CriticalOption { name } => {
                write!(
                    f,
                    "has the unsupported critical option {}",
                    escape(name.as_bytes())
                )
            }
            Self::MalformedOption { name } => {
                write!(f, "has the malformed option {}", escape(name.as_bytes()))
            }
        }
    }
}

impl std::error::Error for CertificateError {}
