//! Certificates as an authority may write them (OpenSSH PROTOCOL.certkeys), those that ssh-keygen
//! would not write among them.

use ssh::key::{PrivateKey, PublicKey};
use wire::Field as _;

/// What a certificate says beside the key it is for.
#[derive(Clone, Debug)]
pub struct Terms {
    /// 1 for a user's, 2 for a host's.
    pub kind: u32,
    /// Who is named.
    pub principals: Vec<String>,
    /// Seconds since 1970.
    pub valid_after: u64,
    /// Seconds since 1970, itself excluded.
    pub valid_before: u64,
    /// Name and data, in the order they are written.
    pub critical_options: Vec<(String, Vec<u8>)>,
    /// Name and data, in the order they are written.
    pub extensions: Vec<(String, Vec<u8>)>,
}

impl Terms {
    /// For ever, without options.
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

    /// The same for a host.
    pub fn host(principals: &[&str]) -> Self {
        Self {
            kind: 2,
            ..Self::user(principals)
        }
    }

    /// The same with a critical option whose data are one string.
    pub fn critical(mut self, name: &str, value: &str) -> Self {
        let mut data = Vec::new();
        value.as_bytes().write(&mut data);
        self.critical_options.push((name.to_owned(), data));
        self
    }

    /// The blob of a certificate of `key`, which `authority` signs with its best algorithm.
    ///
    /// # Panics
    /// If `key` is a certificate, or `authority` cannot sign.
    pub fn sign(&self, key: &PublicKey, authority: &PrivateKey) -> Vec<u8> {
        let signed = self.to_be_signed(key, authority.public_blob());
        let algorithm = authority.public().algorithms()[0].to_owned();
        let signature = authority.sign(&algorithm, &signed).expect("it signs");
        with_signature(signed, &signature)
    }

    /// What an authority with this blob signs of it.
    ///
    /// # Panics
    /// If `key` is a certificate.
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

/// The certificate, from what was signed of it and the signature.
pub fn with_signature(mut signed: Vec<u8>, signature: &[u8]) -> Vec<u8> {
    signature.write(&mut signed);
    signed
}
