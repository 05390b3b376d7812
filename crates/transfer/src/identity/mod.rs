//! The user's keys: which exist, in which order they are offered, and how they sign.

mod error;
mod file;
mod format;
mod offers;
mod openssh;
mod pem;
mod traditional;

use std::path::{Path, PathBuf};

use ssh::key::{PrivateKey, PublicKey};

pub use error::IdentityError;

use crate::agent::Agent;
use crate::config::{HostConfig, SshOptionFlags};
use crate::escape;
use crate::prompt::{EchoMode, Prompt, PromptError};
use file::KeyFile;

/// The user's keys for one host, in the order in which they are offered.
///
/// For each offer, send a query with [`OfferableKey::public`] (after [`Identities::unlock`] if that
/// is `None`), and call [`Identities::sign`] when the server accepts the key. This way a passphrase
/// is requested only when it is useful.
#[derive(Debug)]
pub struct Identities {
    offers: Vec<OfferableKey>,
    files: Vec<KeyFile>,
    agent: Option<Agent>,
    passphrase_tries: u32,
    /// Reasons why keys were not offered, one sentence each; shown if authentication fails.
    pub warnings: Vec<String>,
}

/// A key that can be offered to the server.
#[derive(Clone, Debug)]
pub struct OfferableKey {
    /// The public key or certificate to offer. `None` for an encrypted key file without a known
    /// public key: its passphrase is needed first.
    pub public: Option<PublicKey>,
    /// The key's source for `-v` and messages; escaped.
    pub label: String,
    signer: SigningKeySource,
}

#[derive(Clone, Debug)]
enum SigningKeySource {
    /// The agent, with this key blob.
    Agent(Vec<u8>),
    /// The key file with this index.
    File(usize),
}

impl OfferableKey {
    /// True if the agent signs: no passphrase is needed here, but the agent may require a touch or
    /// confirmation.
    pub fn is_in_agent(&self) -> bool {
        matches!(self.signer, SigningKeySource::Agent(_))
    }

    /// Returns the signature algorithms for the key, best first, that `allowed` contains
    /// (PubkeyAcceptedAlgorithms) and the server accepts (server-sig-algs, if sent).
    pub fn algorithms<'a>(&'a self, allowed: &[String], server: Option<&[&str]>) -> Vec<&'a str> {
        let Some(public) = &self.public else {
            return Vec::new();
        };
        let mut names = public.algorithms();
        names.retain(|name| {
            // OpenSSH lists plain names in server-sig-algs and accepts certificates for them too.
            let plain = crate::agent::signature_algorithm(name);
            let known = server.is_none_or(|s| s.contains(name) || s.contains(&plain));
            allowed.iter().any(|a| a == name) && known
        });
        names
    }
}

/// Reads an unencrypted private key that only its owner can read, such as a host key.
///
/// # Errors
/// The file has no such key; one sentence with its name.
pub fn read_private(path: &Path) -> Result<PrivateKey, IdentityError> {
    KeyFile::find(path)?.into_key()
}

impl Identities {
    /// Finds the keys for a host: reads key files and queries the agent, decrypts nothing.
    pub fn gather(config: &HostConfig) -> Self {
        let mut warnings = Vec::new();
        let mut agent = match Agent::connect(&config.agent) {
            Ok(agent) => agent,
            Err(e) => {
                warnings.push(e.to_string());
                None
            }
        };
        let held = match agent.as_mut().map(Agent::keys) {
            Some(Ok(keys)) => keys,
            Some(Err(e)) => {
                warnings.push(e.to_string());
                agent = None;
                Vec::new()
            }
            None => Vec::new(),
        };
        let mut files = Vec::new();
        for identity in &config.identity_files {
            match KeyFile::find(&identity.path) {
                Ok(file) => files.push(file),
                Err(e) if e.is_missing() && !identity.explicit => {}
                Err(e) => warnings.push(e.to_string()),
            }
        }
        let mut certificates = Vec::new();
        for path in &config.certificate_files {
            match file::read_public(path) {
                Ok((key, _)) if key.certificate().is_some() => {
                    certificates.push((key, path.clone()))
                }
                Ok(_) => warnings.push(format!(
                    "{}: not a certificate (CertificateFile)",
                    escape::path(path)
                )),
                Err(e) => warnings.push(e.to_string()),
            }
        }
        for file in &files {
            let beside = file.path().with_extension_appended("-cert.pub");
            if let Ok((key, _)) = file::read_public(&beside) {
                certificates.push((key, beside));
            }
        }
        let order = offers::KeySources {
            files: &files,
            certificates: &certificates,
            agent: &held,
            identities_only: config.has(SshOptionFlags::IDENTITIES_ONLY),
        };
        let mut offers = order.offers(&mut warnings);
        offers.retain(
            |offer| match offer.public.as_ref().map(|k| config.check_size(k)) {
                Some(Err(why)) => {
                    warnings.push(format!("{}: {why}", offer.label));
                    false
                }
                _ => true,
            },
        );
        Self {
            offers,
            files,
            agent,
            passphrase_tries: config.password_prompts.max(1),
            warnings,
        }
    }

    /// Returns the keys in the order in which to offer them.
    pub fn offers(&self) -> &[OfferableKey] {
        &self.offers
    }

    /// True if the key of offer `index` can sign without a passphrase prompt here.
    pub fn is_ready(&self, index: usize) -> bool {
        match self.offers.get(index).map(|o| &o.signer) {
            Some(SigningKeySource::Agent(_)) => true,
            Some(SigningKeySource::File(at)) => self.files.get(*at).is_some_and(|f| !f.is_locked()),
            None => false,
        }
    }

    /// True if the key of offer `index` signs without a passphrase or a touch, as far as known.
    pub fn signs_alone(&self, index: usize) -> bool {
        let public = self.offers.get(index).and_then(|o| o.public.as_ref());
        let touch = public.is_none_or(|key| key.key_type().starts_with("sk-"));
        !touch && self.is_ready(index)
    }

    /// Returns the agent, for session-bind and forwarding.
    pub fn agent(&mut self) -> Option<&mut Agent> {
        self.agent.as_mut()
    }

    /// Prepares the key of offer `index` for signing, with a passphrase prompt if necessary. Its
    /// [`OfferableKey::public`] is set afterwards.
    pub fn unlock(&mut self, index: usize, prompt: &mut dyn Prompt) -> Result<(), IdentityError> {
        let Some(offer) = self.offers.get_mut(index) else {
            return Err(IdentityError::no_such_offer());
        };
        let SigningKeySource::File(at) = offer.signer else {
            return Ok(());
        };
        let Some(file) = self.files.get_mut(at) else {
            return Err(IdentityError::no_such_offer());
        };
        unlock(file, self.passphrase_tries, prompt)?;
        if offer.public.is_none() {
            offer.public = file.public().cloned();
        }
        Ok(())
    }

    /// Signs `data` with the key of offer `index` under `algorithm`, one of
    /// [`OfferableKey::algorithms`]; returns a signature blob.
    pub fn sign(
        &mut self,
        index: usize,
        algorithm: &str,
        data: &[u8],
        prompt: &mut dyn Prompt,
    ) -> Result<Vec<u8>, IdentityError> {
        self.unlock(index, prompt)?;
        match self.offers.get(index).map(|o| &o.signer) {
            Some(SigningKeySource::Agent(blob)) => match &mut self.agent {
                Some(agent) => agent
                    .sign(blob, data, algorithm)
                    .map_err(IdentityError::agent),
                None => Err(IdentityError::no_such_offer()),
            },
            Some(SigningKeySource::File(at)) => match self.files.get(*at) {
                Some(file) => file.sign(algorithm, data),
                None => Err(IdentityError::no_such_offer()),
            },
            None => Err(IdentityError::no_such_offer()),
        }
    }
}

fn unlock(file: &mut KeyFile, tries: u32, prompt: &mut dyn Prompt) -> Result<(), IdentityError> {
    if !file.is_locked() {
        return Ok(());
    }
    let question = format!("Enter passphrase for key '{}': ", escape::path(file.path()));
    for _ in 0..tries {
        let passphrase = match prompt.ask(&question, EchoMode::Secret) {
            Ok(passphrase) => passphrase,
            Err(PromptError::Cancelled) => return Err(IdentityError::no_passphrase(file.path())),
            Err(e) => return Err(IdentityError::not_asked(file.path(), &e)),
        };
        // As in ssh, an empty answer skips to the next key.
        if passphrase.is_empty() {
            return Err(IdentityError::no_passphrase(file.path()));
        }
        match file.unlock(&passphrase) {
            Ok(()) => return Ok(()),
            Err(e) if e.is_wrong_passphrase() => {}
            Err(e) => return Err(e),
        }
    }
    Err(IdentityError::wrong_passphrase(file.path()))
}

/// Appends to a file name, where `Path::with_extension` would replace.
trait AppendToFileName {
    fn with_extension_appended(&self, ending: &str) -> PathBuf;
}

impl AppendToFileName for Path {
    fn with_extension_appended(&self, ending: &str) -> PathBuf {
        let mut name = self.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    }
}

#[cfg(test)]
mod tests;
