use std::fmt;

use wire::WireError;

use crate::text::escape;

/// Why a key or signature is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The blob cannot be read.
    Wire(WireError),
    /// The blob can be read but says what no key of its type can.
    Malformed(&'static str),
    /// An RSA key whose modulus is too short to be safe or longer than the library takes.
    RsaSize {
        /// Bits of the modulus.
        bits: usize,
    },
    /// This type of key can be named and passed on, but not used here.
    Unsupported {
        /// The type.
        key_type: String,
    },
    /// The key does not sign with this algorithm, or the signature is of another one.
    WrongAlgorithm {
        /// What was asked for, or what the signature says.
        algorithm: String,
    },
    /// The signature is not this key's over these data.
    BadSignature,
    /// The private key is damaged, or does not fit its public half.
    BadPrivateKey,
    /// The cipher library failed to sign or generate.
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
                "an RSA key of {bits} bits is not used; 2048 to 8192 bits are"
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
                "algorithm {} does not go with the key",
                escape(algorithm.as_bytes())
            ),
            Self::BadSignature => f.write_str("the signature does not verify"),
            Self::BadPrivateKey => {
                f.write_str("the private key is damaged or does not fit its public key")
            }
            Self::Local => f.write_str("the cipher library failed to sign or make a key"),
        }
    }
}

impl std::error::Error for KeyError {}

/// Why a certificate is not accepted. A host may still be known by its plain key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateError {
    /// It is a user's, where a host's is wanted.
    NotAHost,
    /// It is a host's, where a user's is wanted.
    NotAUser,
    /// The CA's key is not among those that are trusted here: for a host, in no `@cert-authority`
    /// line that covers it.
    UntrustedAuthority {
        /// The CA key's fingerprint.
        fingerprint: String,
    },
    /// The CA's signature on it is wrong, or of a kind that is not accepted.
    BadSignature(KeyError),
    /// Its time has not come.
    NotYetValid {
        /// When it comes; seconds since 1970.
        valid_after: u64,
    },
    /// Its time is over.
    Expired {
        /// When it ended; seconds since 1970.
        valid_before: u64,
    },
    /// It names nobody. OpenSSH before 10.3 took that for all hosts, or users, which makes one
    /// careless signature a key to everything (CVE-2026-35414).
    NoPrincipals,
    /// Whom it should name is not among those it names.
    OtherPrincipals {
        /// The host, or the names of users of which one would do.
        name: String,
    },
    /// It demands something not known here, or not to be had; no option is defined for hosts.
    CriticalOption {
        /// Its name.
        name: String,
    },
    /// An option of it cannot be read.
    MalformedOption {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the certificate ")?;
        match self {
            Self::NotAHost => f.write_str("is a user's and not a host's"),
            Self::NotAUser => f.write_str("is a host's and not a user's"),
            Self::UntrustedAuthority { fingerprint } => {
                write!(
                    f,
                    "is signed by an authority that is not trusted, {fingerprint}"
                )
            }
            Self::BadSignature(error) => write!(f, "is not properly signed: {error}"),
            Self::NotYetValid { valid_after } => {
                write!(f, "is not valid before {valid_after} seconds since 1970")
            }
            Self::Expired { valid_before } => {
                write!(f, "expired at {valid_before} seconds since 1970")
            }
            Self::NoPrincipals => f.write_str("names no principal"),
            Self::OtherPrincipals { name } => {
                write!(f, "does not name {}", escape(name.as_bytes()))
            }
            Self::CriticalOption { name } => {
                write!(
                    f,
                    "has the critical option {}, which cannot be honoured here",
                    escape(name.as_bytes())
                )
            }
            Self::MalformedOption { name } => {
                write!(
                    f,
                    "has the option {}, which cannot be read",
                    escape(name.as_bytes())
                )
            }
        }
    }
}

impl std::error::Error for CertificateError {}
