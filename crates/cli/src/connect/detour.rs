//! `--via`: relays the connections to a host through other hosts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use transfer::cancel::CancelToken;
use transfer::config::{HostConfig, ProxyMethod};
use transfer::connect::{self, ConnectError, SharedConnectSettings};
use transfer::detour::{self, DetourMeasurement, DetourTarget};
use transfer::memory::detours::{DetourRecord, StoredRouteResult};
use transfer::memory::paths::network_of;
use transfer::operand::SshDestination;
use transfer::report::{Decision, DecisionOrigin, DecisionSubject, DetourReason, EscapedName};

use super::name;
use super::waiting::until_cancelled;
use crate::client_config::ClientConfig;
use crate::flags::low::ViaHosts;
use crate::output::RunReporter;

/// Origin of a decision about relaying hosts.
const VIA: DecisionOrigin = DecisionOrigin::Flag("--via");
/// Bytes of an upload from which on a measurement may pay.
const WORTH_MEASURING: u64 = 16 << 20;

/// A candidate with its name in the configuration.
type DetourCandidate = (String, Vec<SshDestination>);

/// The relaying hosts of `--via`, and those that `--via auto` has chosen in this run.
pub(super) struct Detours {
    via: Option<ViaHosts>,
    output: Arc<RunReporter>,
    /// Choice of `--via auto` for each host; no relaying hosts for the direct way.
    chosen: Mutex<BTreeMap<SshDestination, Vec<SshDestination>>>,
}

/// A host for which `--via auto` chooses, and the copy that is made.
pub(super) struct DetourRequest {
    pub config: HostConfig,
    pub settings: SharedConnectSettings,
    /// The host is copied to.
    pub up: bool,
    /// The copy yields to other traffic.
    pub background: bool,
    /// Files of this machine that are sent, if all sources are such files.
    pub sources: Option<Vec<PathBuf>>,
}

impl Detours {
    pub(super) fn new(via: Option<ViaHosts>, output: Arc<RunReporter>) -> Self {
        Self {
            via,
            output,
            chosen: Mutex::default(),
        }
    }

    fn chosen(&self) -> MutexGuard<'_, BTreeMap<SshDestination, Vec<SshDestination>>> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the way to a host by the one through the relaying hosts.
    pub(super) fn apply(&self, destination: &SshDestination, config: &mut HostConfig) {
        let through = match &self.via {
            None => return,
            Some(ViaHosts::Through(hosts)) => hosts.clone(),
            Some(ViaHosts::Auto) => self.chosen().get(destination).cloned().unwrap_or_default(),
        };
        if !through.is_empty() {
            config.proxy = ProxyMethod::Via(through);
            // An open connection of ssh goes another way.
            config.control_master = None;
        }
    }

    /// The relaying hosts of `--via`, as a decision.
    pub(super) fn given(&self) -> Option<Decision> {
        let Some(ViaHosts::Through(hosts)) = &self.via else {
            return None;
        };
        let through = Some(listed(hosts));
        let why = DetourReason::Given;
        Some(Decision::new(DecisionSubject::Detour { through, why }, VIA))
    }

    /// Chooses the way to a host with `--via auto`, once in a run. `ask` prepares the connection if
    /// a choice is to be made.
    ///
    /// # Errors
    /// The configuration is invalid, or the measurement was cancelled.
    pub(super) fn choose(
        &self,
        destination: &SshDestination,
        cancel: &CancelToken,
        ask: impl FnOnce() -> Result<DetourRequest, ConnectError>,
    ) -> Result<(), ConnectError> {
        if self.via != Some(ViaHosts::Auto) || self.chosen().contains_key(destination) {
            return Ok(());
        }
        let mut candidates = ClientConfig::read()
            .map_err(|e| ConnectError::configuration(e.to_string()))?
            .via;
        candidates.retain(|(_, through)| through.iter().all(|on| on.host != destination.host));
        let (through, why, origin) = self.best_way(&candidates, cancel, ask)?;
        let hosts = through.and_then(|at| candidates.get(at));
        self.report(
            destination,
            hosts.map(|(name, _)| name.clone()),
            why,
            origin,
        );
        let hosts = hosts.map(|(_, hosts)| hosts.clone()).unwrap_or_default();
        self.chosen().insert(destination.clone(), hosts);
        Ok(())
    }

    /// Goes back to the direct way after the chosen candidate has failed; false if the failed way
    /// was the direct one.
    pub(super) fn drop_chosen(&self, destination: &SshDestination) -> bool {
        match self.chosen().get_mut(destination) {
            Some(through) if !through.is_empty() => {
                through.clear();
                true
            }
            _ => false,
        }
    }

    /// Reports that the chosen candidate has failed.
    pub(super) fn report_failed(&self, destination: &SshDestination, error: &ConnectError) {
        self.output
            .warning(format!("--via auto: {error}; connecting directly"));
        let why = DetourReason::Failed(error.to_string());
        self.report(destination, None, why, DecisionOrigin::Measured);
    }

    fn report(
        &self,
        destination: &SshDestination,
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
        candidates: &[DetourCandidate],
        cancel: &CancelToken,
        ask: impl FnOnce() -> Result<DetourRequest, ConnectError>,
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
        let DetourRequest {
            config,
            settings,
            up,
            background,
            sources,
        } = ask()?;
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
        if background {
            return not("a background copy puts no load on other hosts");
        }
        if up && sources.is_some_and(|sources| is_little(&sources)) {
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
        let measure = move || Ok(detour::measure(&target, &through));
        let measured = until_cancelled(self.output.console(), cancel, measure)?;
        let chosen = detour::choose(&measured.direct, &measured.candidates);
        if let Some(memories) = &memories
            && measured.is_lasting()
        {
            let memory = noted(&measured, up, &names, chosen);
            connect::remember_detour(&config, memories, memory);
        }
        let ways = names.into_iter().zip(measured.candidates).collect();
        let why = DetourReason::Measured(measured.direct, ways);
        Ok((chosen, why, DecisionOrigin::Measured))
    }
}

/// True if all sources are files, and of few bytes together.
fn is_little(sources: &[PathBuf]) -> bool {
    let sizes = sources.iter().map(|source| match fs::metadata(source) {
        Ok(meta) if meta.is_file() => Some(meta.len()),
        _ => None,
    });
    let total: Option<u64> = sizes.sum();
    total.is_some_and(|total| total < WORTH_MEASURING)
}

/// The relaying hosts as the user writes them.
pub(super) fn listed(hosts: &[SshDestination]) -> String {
    let names: Vec<String> = hosts.iter().map(SshDestination::to_string).collect();
    names.join(",")
}

fn noted(
    measured: &DetourMeasurement,
    up: bool,
    names: &[String],
    chosen: Option<usize>,
) -> DetourRecord {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let addresses = measured.facts.as_ref().and_then(|facts| facts.addresses);
    DetourRecord {
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

fn remembered(memory: &DetourRecord) -> DetourReason {
    let ways = memory.candidates.iter().zip(&memory.ways);
    let ways = ways.map(|(name, way)| (name.clone(), way.result()));
    DetourReason::Measured(memory.direct.result(), ways.collect())
}
