//! OpenSSH certificates (PROTOCOL.certkeys) with any content, including content that ssh-keygen
//! refuses to write.

use ssh::key::{PrivateKey, PublicKey};
use wire::Field as _;

/// Contents of a certificate apart from the key.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Certificate type: 1 for users, 2 for hosts.
    pub kind: u32,
    /// Names of the users or hosts for which the certificate is valid.
    pub principals: Vec<String>,
    /// Start of the validity, in seconds since 1970.
    pub valid_after: u64,
    /// End of the validity, in seconds since 1970, exclusive.
    pub valid_before: u64,
    /// Critical options as name and data, in the order in which they are written.
    pub critical_options: Vec<(String, Vec<u8>)>,
    /// Extensions as name and data, in the order in which they are written.
    pub extensions: Vec<(String, Vec<u8>)>,
}

impl Terms {
    /// Creates a user certificate without expiry and without options.
    pub fn user(principals: &[&str]) -> Self {
        Self {
            kind: 1,
            principals: principals.iter().map(|p| (*p).to_owned()).collect(),
            valid_after: 0,
            valid_before: u64::MAX,
            critical_options: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// Creates a host certificate without expiry and without options.
    pub fn host(principals: &[&str]) -> Self {
        Self {
            kind: 2,
            ..Self::user(principals)
        }
    }

    /// Adds a critical option whose data is one string.
    pub fn critical(mut self, name: &str, value: &str) -> Self {
        let mut data = Vec::new();
        value.as_bytes().write(&mut data);
        self.critical_options.push((name.to_owned(), data));
        self
    }

    /// Returns the blob of a certificate for `key`, signed by `authority` with its best algorithm.
    ///
    /// # Panics
    /// Panics if `key` is a certificate, or if `authority` cannot sign.
    pub fn sign(&self, key: &PublicKey, authority: &PrivateKey) -> Vec<u8> {
        let signed = self.to_be_signed(key, authority.public_blob());
        let algorithm = authority.public().algorithms()[0].to_owned();
        let signature = authority.sign(&algorithm, &signed).expect("it signs");
        with_signature(signed, &signature)
    }

    /// Returns the bytes that an authority with this public key blob signs.
    ///
    /// # Panics
    /// Panics if `key` is a certificate.
    pub fn to_be_signed(&self, key: &PublicKey, authority: &[u8]) -> Vec<u8> {
        assert!(key.certificate().is_none(), "only a bare key is certified");
        let mut out = Vec::new();
        let plain = key.key_type();
        let name = match plain.strip_suffix("@openssh.com") {
            Some(bare) => format!("{bare}-cert-v01@openssh.com"),
            None => format!("{plain}-cert-v01@openssh.com"),
        };
        name.as_bytes().write(&mut out);
        [9; 32].as_slice().write(&mut out);
        out.extend_from_slice(&key.blob()[4 + plain.len()..]);
        7u64.write(&mut out);
        self.kind.write(&mut out);
        b"id".as_slice().write(&mut out);
        let mut names = Vec::new();
        for principal in &self.principals {
            principal.as_bytes().write(&mut names);
        }
        names.as_slice().write(&mut out);
        self.valid_after.write(&mut out);
        self.valid_before.write(&mut out);
        for options in [&self.critical_options, &self.extensions] {
            let mut list = Vec::new();
            for (name, data) in options {
                name.as_bytes().write(&mut list);
                data.as_slice().write(&mut list);
            }
            list.as_slice().write(&mut out);
        }
        b"".as_slice().write(&mut out);
        authority.write(&mut out);
        out
    }
}

/// Appends a signature to the signed bytes, which completes the certificate.
pub fn with_signature(mut signed: Vec<u8>, signature: &[u8]) -> Vec<u8> {
    signature.write(&mut signed);
    signed
}
