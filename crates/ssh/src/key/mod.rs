//! (temporary)
use aws_lc_rs::signature::{self, Ed25519KeyPair, KeyPair};
use wire::{Field, Reader};

/// t
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError;
/// t
pub const USER_SIGNATURE_ALGORITHMS: &[&str] = &["ssh-ed25519"];
/// t
pub struct PublicKey(Vec<u8>);
impl PublicKey {
    /// t
    pub fn from_blob(b: &[u8]) -> Result<Self, KeyError> {
        let mut r = Reader::new(b);
        r.string().map_err(|_| KeyError)?;
        Ok(Self(r.string().map_err(|_| KeyError)?.to_vec()))
    }
    /// t
    pub fn verify(&self, _: &str, data: &[u8], sig: &[u8]) -> Result<(), KeyError> {
        let mut r = Reader::new(sig);
        r.string().map_err(|_| KeyError)?;
        let s = r.string().map_err(|_| KeyError)?;
        signature::UnparsedPublicKey::new(&signature::ED25519, &self.0)
            .verify(data, s)
            .map_err(|_| KeyError)
    }
}
/// t
pub struct PrivateKey(Ed25519KeyPair);
impl PrivateKey {
    /// t
    pub fn generate_ed25519() -> Result<Self, KeyError> {
        Ed25519KeyPair::generate().map(Self).map_err(|_| KeyError)
    }
    /// t
    pub fn algorithms(&self) -> &[&'static str] {
        &["ssh-ed25519"]
    }
    /// t
    pub fn public_blob(&self) -> Vec<u8> {
        let mut v = Vec::new();
        b"ssh-ed25519".as_slice().write(&mut v);
        self.0.public_key().as_ref().write(&mut v);
        v
    }
    /// t
    pub fn sign(&self, alg: &str, data: &[u8]) -> Result<Vec<u8>, KeyError> {
        let mut v = Vec::new();
        alg.as_bytes().write(&mut v);
        self.0.sign(data).as_ref().write(&mut v);
        Ok(v)
    }
}
