//! Configures the SSH engine for the process that logs a client in and for the one that serves it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ssh::ConnectionConfig;
use ssh::channel::ChannelsConfig;
use ssh::cipher::{MACS, MacSpec, preferred_order};
use ssh::kex::{KEX_METHODS, KexMethod};
use ssh::key::{HostKeySigner, KeyError, PublicKey, host_key_algorithms};
use ssh::transport::{AlgorithmProposal, KexGuess, RandomFill, TransportConfig};
use wire::PacketPool;

use super::message::{HostKeyProofRequest, HostKeySignRequest, SignatureReply};
use super::monitor_message_socket::MonitorMessageSocket;

/// Silence after which the server sends the client a keepalive request.
const ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// Unanswered keepalive requests after which the server gives the client up.
const ALIVE_COUNT: u32 = 3;
/// Longest time between key exchanges, as OpenSSH recommends for RekeyLimit; ciphers have byte
/// limits of their own.
const REKEY_TIME: Duration = Duration::from_secs(3600);

/// Offered algorithms, in the server's order; the client's order decides which one is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedAlgorithms {
    /// Key exchange methods.
    pub key_exchange: Vec<String>,
    /// Ciphers.
    pub ciphers: Vec<String>,
    /// MACs.
    pub macs: Vec<String>,
}

impl Default for OfferedAlgorithms {
    /// Algorithms that pass ssh-audit without warnings: post-quantum key exchanges, all ciphers,
    /// and encrypt-then-MAC MACs.
    fn default() -> Self {
        Self::those(KexMethod::is_post_quantum, |mac| mac.etm)
    }
}

impl OfferedAlgorithms {
    /// All supported algorithms.
    pub fn all() -> Self {
        Self::those(|_| true, |_| true)
    }

    fn those(kex: impl Fn(&KexMethod) -> bool, mac: impl Fn(&MacSpec) -> bool) -> Self {
        let owned = |name: &str| name.to_owned();
        let kex = KEX_METHODS.iter().filter(|k| kex(k));
        let macs = MACS.iter().filter(|m| mac(m));
        Self {
            key_exchange: kex.map(|k| owned(k.name)).collect(),
            ciphers: preferred_order(true).into_iter().map(owned).collect(),
            macs: macs.map(|m| owned(m.name)).collect(),
        }
    }

    /// Checks that each list has an entry and that all names are known.
    ///
    /// # Errors
    /// The list or name that is wrong.
    pub fn check(&self) -> Result<(), ssh::Error> {
        let proposal = self.proposal(vec!["ssh-ed25519".to_owned()]);
        proposal.check()
    }

    fn proposal(&self, host_key: Vec<String>) -> AlgorithmProposal {
        AlgorithmProposal {
            kex: self.key_exchange.clone(),
            host_key,
            ciphers: self.ciphers.clone(),
            macs: self.macs.clone(),
            compress: false,
        }
    }
}

/// Everything that the server could offer with other settings, to tell a refused client's
/// administrator which setting would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportedAlgorithms {
    /// Key exchange methods, ciphers and MACs.
    pub algorithms: OfferedAlgorithms,
    /// Algorithms that the host keys sign with.
    pub host_key: Vec<String>,
}

impl SupportedAlgorithms {
    pub(super) fn proposal(&self) -> AlgorithmProposal {
        self.algorithms.proposal(self.host_key.clone())
    }
}

pub(super) fn config(
    host_keys: Vec<Arc<dyn HostKeySigner>>,
    algorithms: &OfferedAlgorithms,
) -> ConnectionConfig {
    let host_key = host_key_algorithms(host_keys.iter().map(|key| key.public()));
    ConnectionConfig {
        transport: TransportConfig {
            software: concat!("longhaul_", env!("CARGO_PKG_VERSION")).to_owned(),
            proposal: algorithms.proposal(host_key),
            guess: KexGuess::Never,
            rekey_bytes: None,
            rekey_time: Some(REKEY_TIME),
            host_keys,
        },
        channels: ChannelsConfig::default(),
        alive_interval: Some(ALIVE_INTERVAL),
        alive_count: ALIVE_COUNT,
    }
}

pub(super) fn pool() -> PacketPool {
    PacketPool::new(32 << 10, 64)
}

pub(super) fn random() -> RandomFill {
    Box::new(|to: &mut [u8]| {
        // Without random numbers there is no security, and the library has no other end.
        aws_lc_rs::rand::fill(to).expect("the system gives random numbers");
    })
}

/// A host key whose private half is in the monitor.
pub(super) struct MonitorHostKey {
    public: PublicKey,
    /// The link to the monitor; the lock allows one question at a time.
    link: Arc<Mutex<Arc<MonitorMessageSocket>>>,
}

/// Host keys with these blobs, which the monitor signs with.
pub(super) fn monitors_keys(
    blobs: &[Vec<u8>],
    link: &Arc<MonitorMessageSocket>,
) -> Result<Vec<Arc<dyn HostKeySigner>>, KeyError> {
    let link = Arc::new(Mutex::new(Arc::clone(link)));
    let keys = blobs.iter().map(|blob| {
        let key: Arc<dyn HostKeySigner> = Arc::new(MonitorHostKey {
            public: PublicKey::from_blob(blob)?,
            link: Arc::clone(&link),
        });
        Ok(key)
    });
    keys.collect()
}

impl HostKeySigner for MonitorHostKey {
    fn public(&self) -> &PublicKey {
        &self.public
    }

    fn sign(&self, algorithm: &str, hash: &[u8]) -> Result<Vec<u8>, KeyError> {
        let sign = HostKeySignRequest {
            host_key: self.public.blob(),
            algorithm: algorithm.as_bytes(),
            hash,
        };
        self.ask(&sign.to_bytes())
    }

    /// The monitor knows the session identifier itself.
    fn prove(&self, algorithm: &str, _: &[u8]) -> Result<Vec<u8>, KeyError> {
        let prove = HostKeyProofRequest {
            host_key: self.public.blob(),
            algorithm: algorithm.as_bytes(),
        };
        self.ask(&prove.to_bytes())
    }
}

impl MonitorHostKey {
    /// Sends a question to the monitor and returns the signature from its answer.
    fn ask(&self, question: &[u8]) -> Result<Vec<u8>, KeyError> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = link.send(question).and_then(|()| link.receive());
        let answer = answered.map_err(|_| KeyError::Local)?;
        match SignatureReply::decode(&answer) {
            Ok(SignatureReply { blob: b"" }) | Err(_) => Err(KeyError::Local),
            Ok(SignatureReply { blob }) => Ok(blob.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_without_a_word_is_what_ssh_audit_is_silent_about() {
        let offered = OfferedAlgorithms::default();
        assert_eq!(
            offered.key_exchange,
            [
                "mlkem768x25519-sha256",
                "sntrup761x25519-sha512",
                "sntrup761x25519-sha512@openssh.com",
            ]
        );
        let etm = [
            "hmac-sha2-256-etm@openssh.com",
            "hmac-sha2-512-etm@openssh.com",
        ];
        assert_eq!(offered.macs, etm);
        assert_eq!(offered.ciphers, OfferedAlgorithms::all().ciphers);
    }

    #[test]
    fn all_begins_with_that_and_has_the_rest_behind_it() {
        let (few, all) = (OfferedAlgorithms::default(), OfferedAlgorithms::all());
        assert!(all.key_exchange.starts_with(&few.key_exchange));
        assert!(all.macs.starts_with(&few.macs));
        for name in ["curve25519-sha256", "ecdh-sha2-nistp256"] {
            assert!(all.key_exchange.iter().any(|k| k == name), "{name}");
        }
        assert!(all.macs.iter().any(|m| m == "hmac-sha2-256"));
        for algorithms in [few, all] {
            assert_eq!(algorithms.check(), Ok(()));
        }
    }
}
