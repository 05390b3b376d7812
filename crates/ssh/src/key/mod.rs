//! Public keys, certificates and private keys: their blobs, and making and verifying signatures.
//! Storage of keys (files, agent, known_hosts) is not part of this module.

mod certificate;
mod curve;
mod date;
mod der;
mod error;
mod host;
mod private;
mod public;
mod rsa;
mod signature;
mod table;
#[cfg(test)]
mod tests;
mod user;

pub use certificate::{Certificate, CertificateKind};
pub use error::{CertificateError, KeyError};
pub use host::{HostKeySigner, host_key_algorithms, host_key_proof};
pub use private::PrivateKey;
pub use public::PublicKey;
pub use rsa::RsaParts;
pub use signature::SecurityKeyFlags;
pub use table::{HOST_KEY_ALGORITHMS, KeyAlgorithm, algorithm};
pub use user::UserCertificateTerms;
