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
pub(super) fn read(bytes: &[u8]) -> Result<KeyFileContents, String> {
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

fn plain(key: Result<PrivateKey, KeyError>) -> Result<KeyFileContents, String> {
    key.map(KeyFileContents::Key)
        .map_err(|e| format!("cannot use the key: {e}"))
}

/// Reads a format for one kind of key, as OpenSSL wrote before PKCS#8.
fn traditional(
    pem: Pem,
    read: fn(&[u8]) -> Result<PrivateKey, KeyError>,
) -> Result<KeyFileContents, String> {
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

fn openssh(bytes: &[u8]) -> Result<KeyFileContents, String> {
    let because = |e| match e {
        UnreadableKey::Because(why) => why,
        UnreadableKey::Passphrase => "the file is damaged".to_owned(),
    };
    let sealed = EncodedKeyFile::read(bytes).map_err(because)?;
    let public = sealed.public().clone();
    if public.key_type().starts_with("sk-") {
        return Ok(KeyFileContents::Hardware(public));
    }
    if !public.is_usable() {
        let key_type = crate::escape::name(public.key_type().as_bytes()).to_string();
        return Err(format!("keys of type {key_type} are not supported"));
    }
    if sealed.is_encrypted() {
        let locked = EncryptedPrivateKey::OpenSsh(Box::new(sealed));
        return Ok(KeyFileContents::Locked(locked, Some(public)));
    }
    sealed.open().map(KeyFileContents::Key).map_err(because)
}

impl EncryptedPrivateKey {
    /// Decrypts the key; `None` if the passphrase is wrong.
    pub(super) fn unlock(&self, passphrase: &str) -> Result<Option<PrivateKey>, String> {
        match self {
            Self::OpenSsh(sealed) => match sealed.unlock(passphrase) {
                Ok(key) => Ok(Some(key)),
                Err(UnreadableKey::Passphrase) => Ok(None),
                Err(UnreadableKey::Because(why)) => Err(why),
            },
            Self::Traditional(sealed) => Ok(sealed.unlock(passphrase)),
            Self::Pkcs8(der) => {
                let info = EncryptedPrivateKeyInfoRef::try_from(der.as_slice())
                    .map_err(|e| format!("the file is damaged: {e}"))?;
                match info.decrypt(passphrase) {
                    Ok(plain) => match PrivateKey::from_pkcs8(plain.as_bytes()) {
                        Ok(key) => Ok(Some(key)),
                        Err(e) => Err(format!("cannot use the key: {e}")),
                    },
                    Err(pkcs8::Error::EncryptedPrivateKey(e)) if is_unsupported(&e) => Err(
                        "the encryption of the key is not supported; convert it to OpenSSH's \
                         format with ssh-keygen -p -f KEY"
                            .into(),
                    ),
                    // Wrong padding, or padding that is correct by chance around invalid data.
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
