//! Detects and reads the formats of private key files.

use pkcs8::EncryptedPrivateKeyInfoRef;
use ssh::key::{KeyError, PrivateKey, PublicKey};
use zeroize::Zeroizing;

use super::openssh::{EncodedKeyFile, UnreadableKey};
use super::pem::Pem;
use super::traditional;

/// Private key in a key file: usable, locked by a passphrase, or held by hardware, of which only
/// the public key is here.
pub(super) enum KeyFileContents {
    /// A private key.
    Key(PrivateKey),
    /// An encrypted private key, and its public key if the format shows it.
    Locked(EncryptedPrivateKey, Option<PublicKey>),
    /// The handle of a hardware key.
    Hardware(PublicKey),
}

/// A private key that needs a passphrase.
pub(super) enum EncryptedPrivateKey {
    OpenSsh(Box<EncodedKeyFile>),
    Pkcs8(Zeroizing<Vec<u8>>),
    Traditional(traditional::EncryptedPemKey),
}

const UNKNOWN: &str = "contains no private key in OpenSSH, PEM or PKCS#8 format: name another file, \
                       or convert this one with ssh-keygen";

/// Parses the contents of a private key file.
///
/// # Errors
/// The format is unknown or damaged; the text continues a sentence that starts with the file's name.
pub(super) fn read(bytes: &[u8]) -> Result<KeyFileContents, UnreadableKey> {
    if bytes.starts_with(b"PuTTY-User-Key-File-") {
        return Err(
            "PuTTY key files are not supported: convert this one with puttygen KEY -O \
             private-openssh -o NEW"
                .into(),
        );
    }
    let pem = Pem::read(bytes).ok_or(UNKNOWN)?;
    match pem.label.as_str() {
        "OPENSSH PRIVATE KEY" => openssh(&pem.der),
        "PRIVATE KEY" => plain(PrivateKey::from_pkcs8(&pem.der)),
        "ENCRYPTED PRIVATE KEY" => Ok(KeyFileContents::Locked(
            EncryptedPrivateKey::Pkcs8(pem.der),
            None,
        )),
        "RSA PRIVATE KEY" => traditional(pem, PrivateKey::from_rsa_pkcs1),
        "EC PRIVATE KEY" => traditional(pem, PrivateKey::from_ec_der),
        "DSA PRIVATE KEY" => {
            Err("DSA keys are too weak and are not supported: use another key".into())
        }
        _ => Err(UNKNOWN.into()),
    }
}

fn plain(key: Result<PrivateKey, KeyError>) -> Result<KeyFileContents, UnreadableKey> {
    Ok(KeyFileContents::Key(key?))
}

/// Reads a format for one kind of key, as OpenSSL wrote before PKCS#8.
fn traditional(
    pem: Pem,
    read: fn(&[u8]) -> Result<PrivateKey, KeyError>,
) -> Result<KeyFileContents, UnreadableKey> {
    match &pem.encryption {
        None => plain(read(&pem.der)),
        Some(dek_info) => {
            let sealed = traditional::EncryptedPemKey::new(dek_info, pem.der, read)?;
            Ok(KeyFileContents::Locked(
                EncryptedPrivateKey::Traditional(sealed),
                None,
            ))
        }
    }
}

fn openssh(bytes: &[u8]) -> Result<KeyFileContents, UnreadableKey> {
    let sealed = EncodedKeyFile::read(bytes)?;
    let public = sealed.public().clone();
    if public.key_type().starts_with("sk-") {
        return Ok(KeyFileContents::Hardware(public));
    }
    if !public.is_usable() {
        let key_type = crate::escape::name(public.key_type().as_bytes()).to_string();
        return Err(UnreadableKey::Because(format!(
            "keys of type {key_type} are not supported"
        )));
    }
    if sealed.is_encrypted() {
        let locked = EncryptedPrivateKey::OpenSsh(Box::new(sealed));
        return Ok(KeyFileContents::Locked(locked, Some(public)));
    }
    Ok(KeyFileContents::Key(sealed.open()?))
}

impl EncryptedPrivateKey {
    /// Decrypts the key.
    pub(super) fn unlock(&self, passphrase: &str) -> Result<PrivateKey, UnreadableKey> {
        match self {
            Self::OpenSsh(sealed) => sealed.unlock(passphrase),
            Self::Traditional(sealed) => {
                let key = sealed.unlock(passphrase);
                key.ok_or(UnreadableKey::Passphrase)
            }
            Self::Pkcs8(der) => {
                let info = EncryptedPrivateKeyInfoRef::try_from(der.as_slice())
                    .map_err(UnreadableKey::damaged)?;
                match info.decrypt(passphrase) {
                    Ok(plain) => Ok(PrivateKey::from_pkcs8(plain.as_bytes())?),
                    Err(pkcs8::Error::EncryptedPrivateKey(e)) if is_unsupported(&e) => Err(
                        "the encryption of the key is not supported; convert it to OpenSSH's \
                         format with ssh-keygen -p -f KEY"
                            .into(),
                    ),
                    // Wrong padding, or padding that is correct by chance around invalid data.
                    Err(_) => Err(UnreadableKey::Passphrase),
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
