//! Determines which keys are offered to a server, and in which order.

use std::path::PathBuf;

use ssh::key::PublicKey;

use super::file::KeyFile;
use super::{OfferableKey, SigningKeySource};
use crate::agent::AgentKey;
use crate::escape;

/// Key files, certificates and agent keys from which the keys to offer are taken.
pub(super) struct KeySources<'a> {
    pub files: &'a [KeyFile],
    /// Certificates of CertificateFile, then those beside key files.
    pub certificates: &'a [(PublicKey, PathBuf)],
    pub agent: &'a [AgentKey],
    pub identities_only: bool,
}

impl KeySources<'_> {
    /// Returns the offers in the order of sshconnect2.c `pubkey_prepare`: certificates, key files
    /// that the agent holds too, the agent's other keys (not with IdentitiesOnly), the other key
    /// files.
    pub(super) fn offers(&self, warnings: &mut Vec<String>) -> Vec<OfferableKey> {
        let mut offers: Vec<OfferableKey> = Vec::new();
        for (certificate, path) in self.certificates {
            let label = escape::path(path).to_string();
            match self.signer(certificate) {
                Some(signer) => offers.push(OfferableKey {
                    public: Some(certificate.clone()),
                    label,
                    signer,
                }),
                None => warnings.push(format!(
                    "skipping the certificate {label}: no matching private key found"
                )),
            }
        }
        for file in self.files {
            if let Some((key, held)) = file.public().and_then(|k| Some((k, self.in_agent(k)?))) {
                offers.push(OfferableKey {
                    public: Some(key.clone()),
                    label: format!("{} (agent)", escape::path(file.path())),
                    signer: SigningKeySource::Agent(held.blob.clone()),
                });
            }
        }
        if !self.identities_only {
            for held in self.agent {
                // The agent could sign with an unparsable key, but the signature algorithm would be
                // unknown.
                let Ok(public) = PublicKey::from_blob(&held.blob) else {
                    continue;
                };
                offers.push(OfferableKey {
                    public: Some(public),
                    label: format!("{} (agent)", escape::name(&held.comment)),
                    signer: SigningKeySource::Agent(held.blob.clone()),
                });
            }
        }
        for (index, file) in self.files.iter().enumerate() {
            let held = file.public().is_some_and(|k| self.in_agent(k).is_some());
            if held {
                continue;
            }
            match file.why_unusable() {
                None => offers.push(OfferableKey {
                    public: file.public().cloned(),
                    label: escape::path(file.path()).to_string(),
                    signer: SigningKeySource::File(index),
                }),
                Some(why) => {
                    warnings.push(format!("skipping {}: {why}", escape::path(file.path())));
                }
            }
        }
        let mut seen: Vec<Vec<u8>> = Vec::new();
        offers.retain(|offer| match &offer.public {
            Some(key) if seen.iter().any(|b| b == key.blob()) => false,
            Some(key) => {
                seen.push(key.blob().to_vec());
                true
            }
            None => true,
        });
        offers
    }

    /// Returns the signer for a certificate: the agent if it holds the certificate or its key, or a
    /// key file.
    fn signer(&self, certificate: &PublicKey) -> Option<SigningKeySource> {
        let held = self.in_agent(certificate);
        if let Some(held) = held.or_else(|| self.in_agent(certificate.plain())) {
            return Some(SigningKeySource::Agent(held.blob.clone()));
        }
        let plain = certificate.plain().blob();
        let file = self.files.iter().position(|file| {
            file.why_unusable().is_none() && file.public().is_some_and(|k| k.blob() == plain)
        });
        file.map(SigningKeySource::File)
    }

    fn in_agent(&self, key: &PublicKey) -> Option<&AgentKey> {
        self.agent.iter().find(|held| held.blob == key.blob())
    }
}
