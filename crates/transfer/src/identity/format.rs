//! The formats of private key files.

use pkcs8::EncryptedPrivateKeyInfoRef;
use ssh::key::{KeyError, PrivateKey, PublicKey, RsaParts};
use ssh_key::private::{EcdsaKeypair, KeypairData};
use wire::Reader;
use zeroize::Zeroizing;

use super::pem::Pem;

/// What is in a key file.
pub(super) enum Contents {
    /// A private key.
    Key(PrivateKey),
    /// An encrypted one, and its public half where the format shows it.
    Locked(Locked, Option<PublicKey>),
    /// The handle of a hardware key.
    Hardware(PublicKey),
}

/// A private key that needs a passphrase.
pub(super) enum Locked {
    OpenSsh(Box<ssh_key::PrivateKey>),
    Pkcs8(Zeroizing<Vec<u8>>),
}

/// Reads a key file; the error continues the sentence that starts with its name.
pub(super) fn read(bytes: &[u8]) -> Result<Contents, String> {
    if bytes.starts_with(b"PuTTY-User-Key-File-") {
        return Err(
            "is a PuTTY key; puttygen KEY -O private-openssh -o NEW makes one that can be \
                    read"
                .into(),
        );
    }
    let pem = Pem::read(bytes).ok_or("is not a private key in a format that is known")?;
    let plain = |key: Result<PrivateKey, KeyError>| {
        key.map(Contents::Key)
            .map_err(|e| format!("cannot be used: {e}"))
    };
    match pem.label.as_str() {
        "OPENSSH PRIVATE KEY" => openssh(&pem.der),
        // The traditional encryption derives its key with MD5, once: hardly any protection.
        _ if pem.encrypted => Err("is encrypted in the old PEM way, which is weak and not \
                                   supported; ssh-keygen -p -f KEY rewrites it in OpenSSH's own \
                                   format"
            .into()),
        "PRIVATE KEY" => plain(PrivateKey::from_pkcs8(&pem.der)),
        "ENCRYPTED PRIVATE KEY" => Ok(Contents::Locked(Locked::Pkcs8(pem.der), None)),
        "RSA PRIVATE KEY" => plain(PrivateKey::from_rsa_pkcs1(&pem.der)),
        "EC PRIVATE KEY" => plain(PrivateKey::from_ec_der(&pem.der)),
        "DSA PRIVATE KEY" => Err("is a DSA key, which is too weak to be used".into()),
        _ => Err("is not a private key in a format that is known".into()),
    }
}

fn openssh(bytes: &[u8]) -> Result<Contents, String> {
    let damaged = |why: &dyn std::fmt::Display| format!("is damaged: {why}");
    let public = public_part(bytes).ok_or_else(|| damaged(&"it has no public key"))?;
    let key = match ssh_key::PrivateKey::from_bytes(bytes) {
        Ok(key) => key,
        Err(_) if !public.is_usable() => {
            let key_type = crate::escape::name(public.key_type().as_bytes()).to_string();
            return Err(format!("is of type {key_type}, which is not supported"));
        }
        Err(e) => return Err(damaged(&e)),
    };
    if public.key_type().starts_with("sk-") {
        return Ok(Contents::Hardware(public));
    }
    if key.is_encrypted() {
        return Ok(Contents::Locked(
            Locked::OpenSsh(Box::new(key)),
            Some(public),
        ));
    }
    convert(&key).map(Contents::Key)
}

/// The public key of OpenSSH's format, which is never encrypted (PROTOCOL.key).
fn public_part(bytes: &[u8]) -> Option<PublicKey> {
    let rest = bytes.strip_prefix(b"openssh-key-v1\0")?;
    let mut r = Reader::new(rest);
    let _cipher = r.string().ok()?;
    let _kdf = r.string().ok()?;
    let _options = r.string().ok()?;
    let _count = r.u32().ok()?;
    PublicKey::from_blob(r.string().ok()?).ok()
}

impl Locked {
    /// The key, or `None` when the passphrase is wrong.
    pub(super) fn unlock(&self, passphrase: &str) -> Result<Option<PrivateKey>, String> {
        match self {
            Self::OpenSsh(key) => match key.decrypt(passphrase) {
                Ok(key) => convert(&key).map(Some),
                // What a wrong passphrase decrypts to fails its check numbers, or the tag.
                Err(ssh_key::Error::Crypto) => Ok(None),
                Err(e) => Err(format!("cannot be decrypted: {e}")),
            },
            Self::Pkcs8(der) => {
                let info = EncryptedPrivateKeyInfoRef::try_from(der.as_slice())
                    .map_err(|e| format!("is damaged: {e}"))?;
                match info.decrypt(passphrase) {
                    Ok(plain) => match PrivateKey::from_pkcs8(plain.as_bytes()) {
                        Ok(key) => Ok(Some(key)),
                        Err(e) => Err(format!("cannot be used: {e}")),
                    },
                    Err(pkcs8::Error::EncryptedPrivateKey(e)) if is_unsupported(&e) => Err(
                        "is encrypted in a way that is not supported; ssh-keygen -p -f KEY \
                         rewrites it in OpenSSH's own format"
                            .into(),
                    ),
                    // Wrong padding, or padding that was right by chance around no key.
                    Err(_) => Ok(None),
                }
            }
        }
    }
}

fn is_unsupported(error: &pkcs8::pkcs5::Error) -> bool {
    use pkcs8::pkcs5::Error;
    matches!(
        error,
        Error::UnsupportedAlgorithm { .. }
            | Error::NoPbes1CryptSupport
            | Error::AlgorithmParametersInvalid { .. }
    )
}

/// From the crate that reads keys to the library that signs with them.
fn convert(key: &ssh_key::PrivateKey) -> Result<PrivateKey, String> {
    let converted = match key.key_data() {
        KeypairData::Ed25519(pair) => {
            let seed = Zeroizing::new(pair.private.to_bytes());
            PrivateKey::from_ed25519_seed(&seed)
        }
        KeypairData::Ecdsa(pair) => {
            let curve = match pair {
                EcdsaKeypair::NistP256 { .. } => "nistp256",
                EcdsaKeypair::NistP384 { .. } => "nistp384",
                EcdsaKeypair::NistP521 { .. } => "nistp521",
            };
            PrivateKey::from_ecdsa(curve, pair.private_key_bytes(), pair.public_key_bytes())
        }
        KeypairData::Rsa(pair) => PrivateKey::from_rsa(RsaParts {
            n: pair.public.n.as_bytes(),
            e: pair.public.e.as_bytes(),
            d: pair.private.d.as_bytes(),
            iqmp: pair.private.iqmp.as_bytes(),
            p: pair.private.p.as_bytes(),
            q: pair.private.q.as_bytes(),
        }),
        KeypairData::Dsa(_) => return Err("is a DSA key, which is too weak to be used".into()),
        _ => return Err("is of a type that is not supported".into()),
    };
    converted.map_err(|e| format!("cannot be used: {e}"))
}
