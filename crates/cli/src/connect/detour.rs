//! `--via`: relays the connections to a host through other hosts.

use std::fs;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::SystemTime;

use transfer::cancel::CancelToken;
use transfer::config::{HostConfig, ProxyMethod};
use transfer::connect::{self, ConnectError, SharedSettings};
use transfer::copy::HostId;
use transfer::detour::{self, DetourMeasurement, DetourTarget};
use transfer::memory::detours::{DetourMemory, StoredRouteResult};
use transfer::memory::paths::network_of;
use transfer::operand::Destination;
use transfer::report::{Decision, DecisionOrigin, DecisionSubject, DetourReason, EscapedName};

use super::{Hosts, name};
use crate::client_config::ClientConfig;
use crate::flags::low::ViaHosts;

/// Origin of a decision about relaying hosts.
const VIA: DecisionOrigin = DecisionOrigin::Flag("--via");
/// Bytes of an upload from which on a measurement may pay.
const WORTH_MEASURING: u64 = 16 << 20;

/// A candidate with its name in the configuration.
type DetourCandidate = (String, Vec<Destination>);

impl Hosts {
    /// Replaces the way to a host by the one through the relaying hosts.
    pub(super) fn take_detour(&self, destination: &Destination, config: &mut HostConfig) {
        let through = match &self.flags.via {
            None => return,
            Some(ViaHosts::Through(hosts)) => hosts.clone(),
            Some(ViaHosts::Auto) => {
                let detours = self.detours.lock().unwrap_or_else(PoisonError::into_inner);
                detours.get(destination).cloned().unwrap_or_default()
            }
        };
        if !through.is_empty() {
            config.proxy = ProxyMethod::Via(through);
            // An open connection of ssh goes another way.
            config.control_master = None;
        }
    }

    /// The relaying hosts of `--via`, as a decision.
    pub(super) fn given_detour(&self) -> Option<Decision> {
        let Some(ViaHosts::Through(hosts)) = &self.flags.via else {
            return None;
        };
        let through = Some(listed(hosts));
        let why = DetourReason::Given;
        Some(Decision::new(DecisionSubject::Detour { through, why }, VIA))
    }

    /// Chooses the way to a host with `--via auto`, once in a run.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub(super) fn choose_detour(
        &self,
        destination: &Destination,
        cancel: &CancelToken,
    ) -> Result<(), ConnectError> {
        let detours = || self.detours.lock().unwrap_or_else(PoisonError::into_inner);
        if self.flags.via != Some(ViaHosts::Auto) || detours().contains_key(destination) {
            return Ok(());
        }
        let mut candidates = ClientConfig::read()
            .map_err(ConnectError::configuration)?
            .via;
        candidates.retain(|(_, through)| through.iter().all(|on| on.host != destination.host));
        let (through, why, origin) = self.best_way(destination, &candidates, cancel)?;
        let hosts = through.and_then(|at| candidates.get(at));
        self.decide_detour(
            destination,
            hosts.map(|(name, _)| name.clone()),
            why,
            origin,
        );
        let hosts = hosts.map(|(_, hosts)| hosts.clone()).unwrap_or_default();
        detours().insert(destination.clone(), hosts);
        Ok(())
    }

    /// Goes back to the direct way after the chosen candidate has failed; false if the failed way
    /// was the direct one.
    pub(super) fn drop_detour(&self, destination: &Destination, error: &ConnectError) -> bool {
        let mut detours = self.detours.lock().unwrap_or_else(PoisonError::into_inner);
        match detours.get_mut(destination) {
            Some(through) if !through.is_empty() => through.clear(),
            _ => return false,
        }
        drop(detours);
        if let Ok((
            config,
            SharedSettings {
                memories: Some(memories),
                ..
            },
        )) = self.prepare(destination)
        {
            connect::forget_detour(&config, &memories);
        }
        self.output
            .warning(format!("--via auto: {error}; connecting directly"));
        let why = DetourReason::Failed(error.to_string());
        self.decide_detour(destination, None, why, DecisionOrigin::Measured);
        true
    }

    fn decide_detour(
        &self,
        destination: &Destination,
        through: Option<String>,
        why: DetourReason,
        origin: DecisionOrigin,
    ) {
        self.output.decided([Decision {
            host: Some(EscapedName(name(destination).into_bytes())),
            choice: DecisionSubject::Detour { through, why },
            origin,
        }]);
    }

    /// Returns the index of the best candidate, if one is better than the direct way.
    fn best_way(
        &self,
        destination: &Destination,
        candidates: &[DetourCandidate],
        cancel: &CancelToken,
    ) -> Result<(Option<usize>, DetourReason, DecisionOrigin), ConnectError> {
        let not = |why| {
            Ok((
                None,
                DetourReason::NotMeasured(why),
                DecisionOrigin::Default,
            ))
        };
        if candidates.is_empty() {
            let file = ClientConfig::path().unwrap_or_else(|| PathBuf::from("config.toml"));
            self.output.warning(format!(
                "--via auto: no relaying hosts are configured: list them in {} \
                 (via = [\"HOST\"])",
                transfer::escape::path(&file)
            ));
            return not("no relaying hosts are configured");
        }
        let (config, settings) = self.prepare(destination)?;
        let up = self.target == self.hosts.iter().position(|h| h == destination).map(HostId);
        let names: Vec<String> = candidates.iter().map(|(name, _)| name.clone()).collect();
        if let Some(memories) = &settings.memories
            && let Some((memory, age)) = connect::remembered_detour(&config, memories, up, &names)
        {
            return Ok((
                memory.chosen,
                remembered(&memory),
                DecisionOrigin::Memory(age),
            ));
        }
        if self.flags.background {
            return not("a background copy puts no load on other hosts");
        }
        if up && self.sends_little() {
            return not("there is little to send");
        }
        let memories = settings.memories.clone();
        let target = DetourTarget {
            config: config.clone(),
            settings,
            up,
            cancel: cancel.clone(),
        };
        let through: Vec<_> = candidates.iter().map(|(_, hosts)| hosts.clone()).collect();
        let measured =
            self.until_cancelled(cancel, move || Ok(detour::measure(&target, &through)))?;
        let chosen = detour::choose(&measured.direct, &measured.candidates);
        if let Some(memories) = &memories {
            let memory = noted(&measured, up, &names, chosen);
            connect::remember_detour(&config, memories, memory);
        }
        let ways = names.into_iter().zip(measured.candidates).collect();
        let why = DetourReason::Measured(measured.direct, ways);
        Ok((chosen, why, DecisionOrigin::Measured))
    }

    /// True if all that is sent are files of this machine, and few bytes.
    fn sends_little(&self) -> bool {
        let Some((_, sources)) = &self.sent else {
            return false;
        };
        let sizes = sources.iter().map(|source| match fs::metadata(source) {
            Ok(meta) if meta.is_file() => Some(meta.len()),
            _ => None,
        });
        let total: Option<u64> = sizes.sum();
        total.is_some_and(|total| total < WORTH_MEASURING)
    }
}

/// The relaying hosts as the user writes them.
pub(super) fn listed(hosts: &[Destination]) -> String {
    let names: Vec<String> = hosts.iter().map(Destination::to_string).collect();
    names.join(",")
}

fn noted(
    measured: &DetourMeasurement,
    up: bool,
    names: &[String],
    chosen: Option<usize>,
) -> DetourMemory {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let addresses = measured.facts.as_ref().and_then(|facts| facts.addresses);
    DetourMemory {
        at: now.map_or(0, |now| now.as_secs()),
        up,
        address: addresses.map(|(_, peer)| peer),
        network: addresses
            .map(|(local, _)| network_of(local))
            .unwrap_or_default(),
        candidates: names.to_vec(),
        chosen,
        direct: StoredRouteResult::new(&measured.direct),
        ways: measured
            .candidates
            .iter()
            .map(StoredRouteResult::new)
            .collect(),
    }
}

fn remembered(memory: &DetourMemory) -> DetourReason {
    let ways = memory.candidates.iter().zip(&memory.ways);
    let ways = ways.map(|(name, way)| (name.clone(), way.result()));
    DetourReason::Measured(memory.direct.result(), ways.collect())
}
