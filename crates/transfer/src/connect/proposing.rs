//! Builds the KEXINIT proposal for a host, with the reasons that are reported once the host has
//! chosen.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schedule::TransferDirection;
use serde::{Deserialize, Serialize};
use sftp::ServerInfo;
use ssh::cipher::MACS;
use ssh::kex::KEX_METHODS;
use ssh::key::HOST_KEY_ALGORITHMS;
use ssh::transport::{AlgorithmProposal, KexGuess};

use super::choices::{self, ComputedCipherOrder, ZlibInputs};
use super::error::ConnectError;
use super::host::{DataSampler, SharedConnectSettings};
use super::host_auth_handler::{HostAuthHandler, remembered as memory_of};
use super::remote_use::RemoteLonghaulPolicy;
use super::ssh_link::ConnectionFacts;
use crate::config::{ConfigError, HostConfig};
use crate::known_hosts::KnownHosts;
use crate::memory::processor::model;
use crate::memory::{HostMemory, HostMemoryStore};
use crate::report::{
    CipherOrderReason, Decision, DecisionOrigin, DecisionSubject, KexGuessKind, ZlibReason,
};

/// Reasons for the order and choice of algorithms in a KEXINIT proposal.
pub(super) struct AlgorithmProposalReasons {
    guess: KexGuess,
    /// The age of the host memory behind the guess.
    remembered: Option<Duration>,
    order: CipherOrderReason,
    origin: DecisionOrigin,
    first_cipher: Option<String>,
    zlib: (bool, ZlibReason, DecisionOrigin),
}

impl AlgorithmProposalReasons {
    /// Returns how the server's choice of algorithms is guessed, if it is.
    pub(super) fn guess(&self) -> KexGuess {
        self.guess
    }

    /// True if zlib is requested although the user has not set it.
    pub(super) fn chose_zlib(&self) -> bool {
        self.zlib.0 && self.zlib.1 != ZlibReason::Set
    }

    /// Returns a callback that adds the decisions to the facts of an open connection and passes
    /// them to `opened`.
    pub(super) fn told_to(
        self,
        opened: &Arc<dyn Fn(ConnectionFacts) + Send + Sync>,
    ) -> Arc<dyn Fn(ConnectionFacts) + Send + Sync> {
        let opened = Arc::clone(opened);
        Arc::new(move |mut facts| {
            facts.decisions = self.decided(&facts);
            opened(facts);
        })
    }

    fn decided(&self, facts: &ConnectionFacts) -> Vec<Decision> {
        let mut decided = Vec::new();
        if let Some(name) = facts.kex.clone() {
            let (guess, origin) = match (self.guess, self.remembered) {
                _ if !facts.guessed => (KexGuessKind::No, DecisionOrigin::Default),
                (KexGuess::Remembered, Some(age)) => {
                    (KexGuessKind::Remembered, DecisionOrigin::Memory(age))
                }
                _ => (KexGuessKind::ByVersion, DecisionOrigin::Default),
            };
            decided.push(Decision::new(
                DecisionSubject::KeyExchange { name, guess },
                origin,
            ));
        }
        if let Some(name) = facts.cipher.clone() {
            let first = self.first_cipher.as_ref() == Some(&name);
            let order = self.order.clone();
            let origin = match first {
                true => self.origin.clone(),
                false => DecisionOrigin::Peer,
            };
            decided.push(Decision::new(
                DecisionSubject::Cipher { name, order },
                origin,
            ));
        }
        let (on, why, origin) = match self.zlib.clone() {
            (true, ..) if !facts.compressed => (false, ZlibReason::Refused, DecisionOrigin::Peer),
            chosen => chosen,
        };
        decided.push(Decision::new(DecisionSubject::Zlib { on, why }, origin));
        decided
    }
}

/// Returns the proposal, including whether to guess the server's choice, and its reasons.
pub(super) fn propose(
    config: &HostConfig,
    known: &KnownHosts,
    memory: Option<(&HostMemory, Duration)>,
    around: &SharedConnectSettings,
    look: Option<&Arc<DataSampler>>,
) -> Result<(AlgorithmProposal, AlgorithmProposalReasons), ConnectError> {
    let text = |e: ConfigError| ConnectError::from(e).about(&config.host);
    let (host, age) = (memory.map(|(m, _)| m), memory.map(|(_, age)| age));
    let order = cipher_order(config, around, host);
    let AlgorithmPreferences {
        mut kex,
        ciphers,
        macs,
    } = secured(config, &order)?;
    let host_keys: Vec<&str> = HOST_KEY_ALGORITHMS
        .iter()
        .map(|a| a.name)
        .filter(|name| !name.starts_with("sk-"))
        .collect();
    let offered = config
        .host_key_algorithms
        .within(&host_keys)
        .map_err(text)?;
    let mut host_key = known.prefer(&HostAuthHandler::name(config), &offered);
    // RFC 4253 section 7: a guess is right if the first names of both sides agree. Every offered
    // algorithm is acceptable, so the server's favourite can come first; for host keys, any whose
    // type is already known.
    let equal = known.equally_preferred(&HostAuthHandler::name(config), &offered);
    let guess = match host {
        Some(m) => {
            let key = to_front(&mut host_key, &m.host_key_algorithm, |n| equal.contains(n));
            match to_front(&mut kex, &m.kex, |_| true) && key {
                true => KexGuess::Remembered,
                false => KexGuess::Never,
            }
        }
        None => KexGuess::ByVersion,
    };
    let zlib = ask_for_zlib(config, host, around, look);
    let (order, origin) = order.into_reason();
    let reasons = AlgorithmProposalReasons {
        guess,
        remembered: age,
        order,
        origin,
        first_cipher: ciphers.first().cloned(),
        zlib,
    };
    let proposal = AlgorithmProposal {
        kex,
        host_key,
        ciphers,
        macs,
        compress: reasons.zlib.0,
    };
    Ok((proposal, reasons))
}

/// Returns the cipher order (see [`choices::ciphers`]). Ciphers that the user set keep the user's
/// order.
pub(super) fn cipher_order(
    config: &HostConfig,
    around: &SharedConnectSettings,
    memory: Option<&HostMemory>,
) -> ComputedCipherOrder {
    let now = SystemTime::now();
    let model = model();
    let findings = memory.and_then(|m| m.findings.as_ref());
    let findings = findings.filter(|found| found.processor == model);
    let findings = findings.and_then(|found| Some((found, found.age(now)?)));
    let processors = around.memories.as_ref().map(HostMemoryStore::processors);
    let processor = processors.and_then(|p| p.load(&model, now));
    let processor = processor.as_ref().map(|(known, age)| (known, *age));
    let mut order = choices::ciphers(has_aes(), findings, processor);
    if config.ciphers_from != DecisionOrigin::Default {
        order.set_by_user(config.ciphers_from.clone());
    }
    order
}

/// Decides about zlib; see [`choices::zlib`].
fn ask_for_zlib(
    config: &HostConfig,
    memory: Option<&HostMemory>,
    around: &SharedConnectSettings,
    look: Option<&Arc<DataSampler>>,
) -> (bool, ZlibReason, DecisionOrigin) {
    let now = SystemTime::now();
    let served = memory.and_then(|m| m.far.as_ref()).is_some_and(|far| {
        // If the user wants the server's own SFTP server, the longhaul is not used.
        far.software.is_some() && around.far != RemoteLonghaulPolicy::Stock
    });
    let info = memory.and_then(remembered);
    let is_ours = info.is_some_and(|(_, info)| info.is_ours());
    let learned = memory.and_then(|m| m.learned(TransferDirection::Up));
    let findings = memory.and_then(|m| m.findings.as_ref());
    let path = learned.as_ref();
    let case = ZlibInputs::new(config.compression, is_ours || served).measured(
        path.and_then(|l| Some((l, l.age(seconds(now))?))),
        findings.and_then(|found| Some((found, found.age(now)?))),
        memory.and_then(|m| m.zlib_failed(now)),
    );
    choices::zlib(&case, config.compression_from.clone(), || match look {
        Some(look) => look(),
        None => Err(ZlibReason::NotAsked),
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The algorithms that may protect a connection, in order of preference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AlgorithmPreferences {
    kex: Vec<String>,
    ciphers: Vec<String>,
    macs: Vec<String>,
}

impl AlgorithmPreferences {
    /// Proposes these algorithms, without compression, to a server with one of these host key
    /// algorithms.
    pub(super) fn propose(&self, host_key: Vec<String>) -> AlgorithmProposal {
        AlgorithmProposal {
            kex: self.kex.clone(),
            host_key,
            ciphers: self.ciphers.clone(),
            macs: self.macs.clone(),
            compress: false,
        }
    }
}

/// Returns the algorithms that a user allows for connections with this host.
///
/// # Errors
/// The configuration names none that longhaul has.
pub fn algorithms(
    config: &HostConfig,
    around: &SharedConnectSettings,
) -> Result<AlgorithmPreferences, ConnectError> {
    let memory = memory_of(config, around.memories.as_ref());
    secured(config, &cipher_order(config, around, memory.as_ref()))
}

/// Returns the algorithms by the user's KexAlgorithms, Ciphers and MACs; ciphers in the given order
/// if the user set none.
pub(super) fn secured(
    config: &HostConfig,
    order: &ComputedCipherOrder,
) -> Result<AlgorithmPreferences, ConnectError> {
    let text = |e: ConfigError| ConnectError::from(e).about(&config.host);
    let kex: Vec<&str> = KEX_METHODS.iter().map(|k| k.name).collect();
    let macs: Vec<&str> = MACS.iter().map(|m| m.name).collect();
    Ok(AlgorithmPreferences {
        kex: config.kex.within(&kex).map_err(text)?,
        ciphers: config.ciphers.within(order.names()).map_err(text)?,
        macs: config.macs.within(&macs).map_err(text)?,
    })
}

/// Moves `name` to the front if it is listed and `may` allows it; true if it is first afterwards.
fn to_front(names: &mut Vec<String>, name: &str, may: impl Fn(&String) -> bool) -> bool {
    match names.iter().position(|n| n == name) {
        Some(0) => true,
        Some(at) if may(&names[at]) => {
            let name = names.remove(at);
            names.insert(0, name);
            true
        }
        _ => false,
    }
}

/// True if the processor has AES instructions; without them chacha20 is faster.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

pub(super) fn remembered(memory: &HostMemory) -> Option<(String, ServerInfo)> {
    let bytes = |(name, data): &(String, String)| (name.clone().into(), data.clone().into());
    (!memory.sftp_extensions.is_empty()).then(|| {
        let info = ServerInfo {
            version: 3,
            extensions: memory.sftp_extensions.iter().map(bytes).collect(),
            limits: None,
        };
        (memory.banner.clone(), info)
    })
}
