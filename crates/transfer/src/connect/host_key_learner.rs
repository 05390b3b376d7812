//! Records the host keys that a known server announces and proves (UpdateHostKeys).

use bytes::Bytes;
use ssh::key::{HOST_KEY_ALGORITHMS, KeyError, PublicKey};
use tracing::{debug, info};

use super::host_auth_handler::{SharedPrompt, lock};
use crate::config::{HostConfig, SshOptionFlags, UpdateHostKeys};
use crate::disk::os_words;
use crate::escape;
use crate::known_hosts::{
    AnnouncedHostKeys, HostKeyChanges, HostKeyVerdict, HostName, RevokedKeys,
};
use crate::prompt::EchoMode;

/// The state of a connection whose host may have further keys recorded.
pub(super) struct HostKeyLearner {
    /// The key of the connection.
    own: PublicKey,
    pending: Option<(AnnouncedHostKeys, HostKeyChanges)>,
}

impl HostKeyLearner {
    /// Creates the state for a host that showed the key `own`, if its key is plain and known from
    /// the user's files alone, or `confirmed` by the user just now (sshconnect.c
    /// `check_host_key`). CheckHostIP excludes it, since lines of the address would be needed too.
    pub(super) fn new(
        config: &HostConfig,
        verdict: &HostKeyVerdict,
        confirmed: bool,
        own: &PublicKey,
    ) -> Option<Self> {
        let (user, global) = (&config.user_known_hosts, &config.global_known_hosts);
        let known = match verdict {
            HostKeyVerdict::Trusted(place) => {
                user.contains(&place.file) && !global.contains(&place.file)
            }
            _ => confirmed,
        };
        let on = match config.update_host_keys {
            UpdateHostKeys::No => false,
            UpdateHostKeys::Yes => true,
            UpdateHostKeys::Ask => !config.has(SshOptionFlags::BATCH_MODE),
        };
        let ready = known && on && own.certificate().is_none();
        (ready && !config.has(SshOptionFlags::CHECK_HOST_IP)).then(|| Self {
            own: own.clone(),
            pending: None,
        })
    }

    /// Compares announced keys with the user's files, and returns those that must be proven. If
    /// keys are only to be removed, no proof is needed, as with ssh.
    pub(super) fn announced(
        &mut self,
        config: &HostConfig,
        name: &HostName,
        blobs: &[Bytes],
        prompt: &SharedPrompt,
    ) -> Vec<PublicKey> {
        let announced =
            AnnouncedHostKeys::new(name.clone(), &self.own, blobs.iter().map(|b| &b[..]));
        let changes = match announced.compare(&config.user_known_hosts) {
            Ok(changes) => changes,
            Err(why) => {
                debug!("{}: UpdateHostKeys: {}", config.host, why.why());
                return Vec::new();
            }
        };
        let keys = learnable(config, &changes.new);
        let removes = !changes.obsolete.is_empty();
        if removes || !keys.is_empty() {
            self.pending = Some((announced, changes));
        }
        if keys.is_empty() {
            self.proven(config, Ok(Vec::new()), prompt);
        }
        keys
    }

    /// True while an answer of the server is due.
    pub(super) fn awaits_proofs(&self) -> bool {
        self.pending.is_some()
    }

    /// Records the proven keys and removes those that were not announced.
    pub(super) fn proven(
        &mut self,
        config: &HostConfig,
        proven: Result<Vec<PublicKey>, KeyError>,
        prompt: &SharedPrompt,
    ) {
        let Some((announced, changes)) = self.pending.take() else {
            return;
        };
        let host = escape::name(config.host.as_bytes());
        let show_error = |text: &str| {
            if config.tells_errors() {
                lock(prompt).show(text);
            }
        };
        let proven = match proven {
            Ok(proven) => proven,
            Err(e) => {
                return show_error(&format!(
                    "Warning: {host}: known_hosts is not updated (UpdateHostKeys): the server \
                     announced host keys that it did not prove: {e}"
                ));
            }
        };
        let described = described(&proven, &changes);
        info!("{}: UpdateHostKeys: {}", config.host, described.join("; "));
        if config.update_host_keys == UpdateHostKeys::Ask && !agreed(&host, &described, prompt) {
            return;
        }
        let hashed = config.has(SshOptionFlags::HASH_KNOWN_HOSTS);
        if let Err((file, e)) = announced.apply(&config.user_known_hosts, &proven, hashed) {
            show_error(&format!(
                "Warning: {}: cannot update the host keys of {host} (UpdateHostKeys): {}",
                escape::path(&file),
                os_words(&e)
            ));
        }
    }
}

/// Returns the keys of these blobs that a connection to this host could accept: plain, of a type
/// that HostKeyAlgorithms permits, large enough and not revoked.
fn learnable(config: &HostConfig, blobs: &[Vec<u8>]) -> Vec<PublicKey> {
    let names: Vec<&str> = HOST_KEY_ALGORITHMS.iter().map(|a| a.name).collect();
    let permitted = config.host_key_algorithms.within(&names);
    let revoked = RevokedKeys::load(&config.revoked_host_keys);
    let (Ok(permitted), Ok(revoked)) = (permitted, revoked) else {
        return Vec::new();
    };
    let keys = blobs
        .iter()
        .filter_map(|blob| PublicKey::from_blob(blob).ok());
    keys.filter(|key| {
        key.is_usable()
            && key.certificate().is_none()
            && key
                .algorithms()
                .iter()
                .any(|name| permitted.iter().any(|p| p == name))
            && config.check_size(key).is_ok()
            && revoked.find(key).is_none()
    })
    .collect()
}

fn described(proven: &[PublicKey], changes: &HostKeyChanges) -> Vec<String> {
    let learned = proven.iter().map(|key| {
        let (key_type, fingerprint) = (key.key_type(), key.fingerprint());
        format!("Learned new hostkey: {key_type} {fingerprint}")
    });
    let obsolete = changes.obsolete.iter().map(|key| {
        format!(
            "Deprecating obsolete hostkey: {} {}",
            key.key_type, key.fingerprint
        )
    });
    learned.chain(obsolete).collect()
}

/// Asks the user for `yes` or `no`, three times at most as ssh does.
fn agreed(host: &escape::Escaped<'_>, described: &[String], prompt: &SharedPrompt) -> bool {
    let mut prompt = lock(prompt);
    prompt.show(&format!(
        "{host}: The server has updated its host keys.\nThese changes were verified by the \
         server's existing trusted key.\n{}",
        described.join("\n")
    ));
    for _ in 0..3 {
        let Ok(answer) = prompt.ask("Accept updated hostkeys? (yes/no): ", EchoMode::Visible)
        else {
            return false;
        };
        match answer.trim().to_ascii_lowercase().as_str() {
            "yes" => return true,
            "no" => return false,
            _ => prompt.show("Please enter \"yes\" or \"no\""),
        }
    }
    false
}
