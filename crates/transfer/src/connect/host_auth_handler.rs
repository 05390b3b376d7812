//! The authentication handler of a real host: known_hosts, keys, prompts and host memory.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sftp::ServerInfo;
use ssh::auth::{AuthMethod, InteractivePrompt as Question, OfferedIdentity};
use ssh::key::{CertificateError, HOST_KEY_ALGORITHMS, KeyError, PublicKey};
use tracing::debug;
use zeroize::Zeroizing;

use super::auth_handler::{AgentBinding, AuthHandler, Credentials, ServerFacts};
use super::denied::DeniedLogin;
use super::error::{ConnectError, ConnectStep, ResponsibleParty};
use super::host::{FirstHostKey, with_command_output};
use super::host_key_learner::HostKeyLearner;
use super::remote_use;
use crate::config::{HostConfig, SshOptionFlags, StrictHostKeyChecking};
use crate::escape;
use crate::identity::{Identities, OfferableKey};
use crate::known_hosts::{
    self, HostKeyLookupPurpose, HostKeyVerdict, HostName, KnownHosts, KnownHostsError,
};
use crate::memory::{AcceptedLoginKey, HostMemory, HostMemoryStore};
use crate::prompt::{EchoMode, Prompt};
use crate::session::LonghaulProbeResult;

/// A prompt that all hosts of a run share, so that one question is shown at a time.
pub type SharedPrompt = Arc<Mutex<dyn Prompt + Send>>;

/// Implements [`AuthHandler`] for a configured host.
pub(super) struct HostAuthHandler {
    config: HostConfig,
    known: KnownHosts,
    prompt: SharedPrompt,
    memories: Option<HostMemoryStore>,
    memory: Option<HostMemory>,
    identities: Option<Identities>,
    /// The index in `identities` of each identity that was given to the engine.
    offered: Vec<usize>,
    distrusted: bool,
    fingerprint: String,
    /// The host key of the first connection, if this is a further one.
    beside: Option<FirstHostKey>,
    /// True if the login required the user.
    person: bool,
    /// Keys that failed to sign, as error texts and as indexes in `identities`.
    unsigned: Vec<String>,
    silent: Vec<usize>,
    /// Records further host keys of this host, if it may have any recorded.
    learner: Option<HostKeyLearner>,
    /// The time of the last connection failure with automatically selected zlib.
    zlib_failed: Option<SystemTime>,
}

/// A signature that takes longer was probably confirmed by the user (ssh-add -c, a token's button).
const CONFIRMED: Duration = Duration::from_millis(700);

/// Forwards questions and notes that a question was asked.
struct AskDetectingPrompt<'a> {
    prompt: &'a SharedPrompt,
    asked: &'a mut bool,
}

impl Prompt for AskDetectingPrompt<'_> {
    fn ask(
        &mut self,
        question: &str,
        kind: EchoMode,
    ) -> Result<Zeroizing<String>, crate::prompt::PromptError> {
        *self.asked = true;
        lock(self.prompt).ask(question, kind)
    }

    fn show(&mut self, text: &str) {
        lock(self.prompt).show(text);
    }

    fn note_wait(&mut self, awaited: &str) {
        lock(self.prompt).note_wait(awaited);
    }
}

impl HostAuthHandler {
    pub(super) fn new(
        config: HostConfig,
        known: KnownHosts,
        prompt: SharedPrompt,
        memories: Option<HostMemoryStore>,
        memory: Option<HostMemory>,
        beside: Option<FirstHostKey>,
    ) -> Self {
        Self {
            config,
            known,
            prompt,
            memories,
            memory,
            identities: None,
            offered: Vec::new(),
            distrusted: false,
            fingerprint: String::new(),
            beside,
            person: false,
            unsigned: Vec::new(),
            silent: Vec::new(),
            learner: None,
            zlib_failed: None,
        }
    }

    pub(super) fn name(config: &HostConfig) -> HostName {
        HostName::new(
            &config.host_name,
            config.port,
            config.host_key_alias.as_deref(),
        )
    }

    fn show(&self, text: &str) {
        lock(&self.prompt).show(text);
    }

    fn show_error(&self, text: &str) {
        if self.config.tells_errors() {
            self.show(text);
        }
    }

    /// Returns the methods to try, in this order.
    fn methods(&self) -> Vec<AuthMethod> {
        let asks = !self.config.has(SshOptionFlags::BATCH_MODE) && !self.distrusted;
        let mut methods = self.enabled_methods();
        methods.retain(|method| asks || *method == AuthMethod::PublicKey);
        methods
    }

    /// Returns the methods that the settings enable, with those that need a question.
    fn enabled_methods(&self) -> Vec<AuthMethod> {
        let on = |method: &AuthMethod| {
            self.config.has(match method {
                AuthMethod::PublicKey => SshOptionFlags::PUBKEY_AUTHENTICATION,
                AuthMethod::KeyboardInteractive => SshOptionFlags::KBD_INTERACTIVE_AUTHENTICATION,
                AuthMethod::Password => SshOptionFlags::PASSWORD_AUTHENTICATION,
            })
        };
        let all = [
            AuthMethod::PublicKey,
            AuthMethod::KeyboardInteractive,
            AuthMethod::Password,
        ];
        let order: Vec<AuthMethod> = match &self.config.preferred_authentications {
            None => all.to_vec(),
            Some(names) => names
                .iter()
                .filter_map(|name| all.iter().find(|m| m.name() == name).copied())
                .collect(),
        };
        order.into_iter().filter(on).collect()
    }

    /// Checks if the plain key of a refused certificate may be used: HostKeyAlgorithms must list
    /// its type.
    fn takes_bare(&self, key: &PublicKey, why: &CertificateError) -> Result<(), ConnectError> {
        let names: Vec<&str> = HOST_KEY_ALGORITHMS.iter().map(|a| a.name).collect();
        let list = self.config.host_key_algorithms.within(&names)?;
        let plain = key.plain().key_type();
        let mut rows = HOST_KEY_ALGORITHMS
            .iter()
            .filter(|row| row.plain_type == plain && !row.is_certificate());
        match rows.any(|row| list.iter().any(|name| name == row.name)) {
            true => Ok(()),
            false => Err(refused_key(format!(
                "{why}; HostKeyAlgorithms does not permit the key without its certificate ({plain})"
            ))),
        }
    }

    /// True if CheckHostIP applies (sshconnect.c `check_host_key`).
    fn checks_address(&self, key: &PublicKey, address: Option<IpAddr>) -> bool {
        let config = &self.config;
        address.is_some_and(|address| {
            config.has(SshOptionFlags::CHECK_HOST_IP)
                && key.certificate().is_none()
                && !address.is_loopback()
                && config.host_name != address.to_string()
        })
    }

    /// Returns the known hosts with what KnownHostsCommand prints for this name and key.
    fn consult(
        &self,
        lookup: HostKeyLookupPurpose,
        name: &HostName,
        key: &PublicKey,
    ) -> Result<Cow<'_, KnownHosts>, KnownHostsError> {
        with_command_output(&self.config, &self.known, lookup, name, Some(key))
    }

    /// Adds a new host to the first known_hosts file and reports it.
    fn record(&self, name: &HostName, key: &PublicKey) {
        let Some(file) = self.config.user_known_hosts.first() else {
            self.show_error(
                "Warning: cannot record the host key: this user has no home directory; set \
                 UserKnownHostsFile",
            );
            return;
        };
        let result = known_hosts::record(
            file,
            name,
            key,
            self.config.has(SshOptionFlags::HASH_KNOWN_HOSTS),
        );
        let text = known_hosts::recorded(name, key, file, &result);
        match result {
            Ok(()) if self.config.tells() => self.show(&text),
            Ok(()) => {}
            Err(_) => self.show_error(&format!("Warning: {text}")),
        }
    }

    /// Returns the host memory, unless the host key under this name has changed.
    fn same_host(&self) -> Option<&HostMemory> {
        let memory = self.memory.as_ref();
        memory.filter(|m| m.host_key == self.fingerprint)
    }

    fn save(&self, memory: &HostMemory) {
        let Some(memories) = &self.memories else {
            return;
        };
        let (host, port, user) = memory_name(&self.config);
        if let Err(e) = memories.store(host, port, user, memory, SystemTime::now()) {
            debug!("{}: cannot save the host memory: {e}", self.config.host);
        }
    }

    /// Changes the stored memory and the copy of it here. What the session has stored since the
    /// login stays.
    fn change(&mut self, change: impl Fn(&mut HostMemory)) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        let before = memory.clone();
        change(memory);
        let Some(memories) = self.memories.as_ref().filter(|_| *memory != before) else {
            return;
        };
        let name = memory_name(&self.config);
        if let Err(e) = memories.change(name, SystemTime::now(), change) {
            debug!("{}: cannot save the host memory: {e}", self.config.host);
        }
    }

    /// `user@host`, escaped.
    fn account(&self) -> String {
        let (user, host) = (self.config.user.as_bytes(), self.config.host.as_bytes());
        format!("{}@{}", escape::name(user), escape::name(host))
    }

    /// Shows a question of the server, already escaped, and returns the user's answer.
    fn ask(&mut self, question: &str, kind: EchoMode) -> Option<Zeroizing<String>> {
        self.person = true;
        lock(&self.prompt).ask(question, kind).ok()
    }
}

impl AuthHandler for HostAuthHandler {
    fn host_key(&mut self, blob: &[u8], address: Option<IpAddr>) -> Result<(), ConnectError> {
        if let Some(FirstHostKey::Known(first)) = &self.beside {
            same_host(first, blob)?;
        }
        let key = PublicKey::from_blob(blob).map_err(|e| {
            refused_key(format!(
                "cannot parse the server's host key: {e} (SSH protocol error)"
            ))
        })?;
        let size = self.config.check_size(&key);
        size.map_err(|why| refused_key(format!("host key {} {why}", key.fingerprint())))?;
        let name = Self::name(&self.config);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let known = self.consult(HostKeyLookupPurpose::HostName, &name, &key)?;
        let checked = known.check(&name, &key, now, &self.config.ca_algorithms);
        if let Some(why) = &checked.certificate {
            self.takes_bare(&key, why)?;
        }
        let shown_address = address.map(|a| HostName::new(&a.to_string(), self.config.port, None));
        let accepted = known_hosts::decide(
            self.config.strict,
            &checked,
            (&name, shown_address.as_ref().map(HostName::host)),
            &key,
            &self.known,
            &mut *lock(&self.prompt),
        )?;
        if accepted.distrusted && self.config.has(SshOptionFlags::EXIT_ON_FORWARD_FAILURE) {
            let why = accepted.warnings.join("\n");
            return Err(refused_key(format!(
                "{why}\nclosing the connection (ExitOnForwardFailure)"
            )));
        }
        let confirmed = accepted.record && self.config.strict == StrictHostKeyChecking::Ask;
        let learner = HostKeyLearner::new(&self.config, &checked.verdict, confirmed, &key);
        let mut names = Vec::new();
        names.extend(accepted.record.then(|| name.clone()));
        let checked_address = shown_address.clone();
        if let (Some(address), true) = (checked_address, self.checks_address(&key, address))
            && !accepted.distrusted
        {
            let ca = &self.config.ca_algorithms;
            let known_by_command = matches!(
                &checked.verdict,
                HostKeyVerdict::Trusted(place) if place.is_command_output()
            );
            let known = self.consult(HostKeyLookupPurpose::Address, &address, &key)?;
            let checked = known.check(&address, &key, now, ca);
            let strict = self.config.strict;
            let both = (&name, &address);
            let prompt = &mut *lock(&self.prompt);
            let is_new = known_hosts::decide_address(strict, &checked, both, prompt)?;
            // As in ssh, no file changes for a host that KnownHostsCommand knows.
            names.extend((is_new && !known_by_command).then_some(address));
        }
        // A changed host key that was accepted is an error; all other warnings are informational.
        let shown = match accepted.distrusted {
            true => self.config.tells_errors(),
            false => self.config.tells(),
        };
        for warning in accepted.warnings.iter().filter(|_| shown) {
            self.show(warning);
        }
        self.distrusted = accepted.distrusted;
        self.fingerprint = key.fingerprint();
        names.iter().for_each(|name| self.record(name, &key));
        self.learner = learner.filter(|_| self.beside.is_none() && !self.distrusted);
        Ok(())
    }

    fn holds(&self) -> bool {
        matches!(self.beside, Some(FirstHostKey::Awaited(_)))
    }

    fn credentials(&mut self, binding: AgentBinding<'_>) -> Result<Credentials, ConnectError> {
        if let Some(FirstHostKey::Awaited(held)) = &self.beside {
            same_host(&held.wait()?, binding.host_key)?;
        }
        let mut identities = Identities::gather(&self.config);
        if let Some(agent) = identities.agent() {
            let AgentBinding {
                host_key,
                session_id,
                signature,
            } = binding;
            if let Err(e) = agent.bind(host_key, session_id, signature, false) {
                debug!("{}: {e}", self.config.host);
            }
        }
        let names: Vec<&str> = HOST_KEY_ALGORITHMS.iter().map(|a| a.name).collect();
        let allowed = self.config.pubkey_algorithms.within(&names)?;
        // A key that authenticated before is offered first: each other key would cost a round trip.
        let worked = self
            .memory
            .as_ref()
            .filter(|m| m.host_key == self.fingerprint && !self.distrusted)
            .and_then(|m| m.accepted_key.as_ref());
        let mut keys: Vec<(usize, OfferedIdentity, bool)> = Vec::new();
        for index in 0..identities.offers().len() {
            if identities.offers()[index].public.is_none()
                && let Err(e) = identities.unlock(
                    index,
                    &mut AskDetectingPrompt {
                        prompt: &self.prompt,
                        asked: &mut self.person,
                    },
                )
            {
                identities.warnings.push(e.to_string());
            }
            if let Some((identity, proven)) =
                offered(&identities, index, &allowed, worked, keys.is_empty())
            {
                keys.push((index, identity, proven));
            }
        }
        keys.sort_by_key(|(_, _, proven)| !proven);
        let proven = keys
            .first()
            .is_some_and(|(_, identity, proven)| *proven && identity.direct);
        self.offered = keys.iter().map(|(index, _, _)| *index).collect();
        self.identities = Some(identities);
        Ok(Credentials {
            user: self.config.user.clone(),
            methods: self.methods(),
            identities: keys.into_iter().map(|(_, identity, _)| identity).collect(),
            proven,
            verified: !self.distrusted,
            max_prompts: self.config.password_prompts.max(1),
        })
    }

    fn sign(&mut self, identity: usize, algorithm: &str, data: &[u8]) -> Option<Vec<u8>> {
        let offer = *self.offered.get(identity)?;
        let identities = self.identities.as_mut()?;
        let mut noting = AskDetectingPrompt {
            prompt: &self.prompt,
            asked: &mut self.person,
        };
        let start = Instant::now();
        let signed = identities.sign(offer, algorithm, data, &mut noting);
        self.person |= algorithm.starts_with("sk-") || start.elapsed() > CONFIRMED;
        match signed {
            Ok(signature) => Some(signature),
            Err(e) => {
                // In batch mode the text is part of the error for the refused login.
                if !self.config.has(SshOptionFlags::BATCH_MODE) {
                    self.show_error(&e.to_string());
                }
                self.unsigned.push(e.to_string());
                self.silent.push(offer);
                None
            }
        }
    }

    fn password(&mut self, attempt: u32) -> Option<Zeroizing<String>> {
        if attempt > 1 {
            self.show_error("Permission denied, please try again.");
        }
        let question = format!("{}'s password: ", self.account());
        self.ask(&question, EchoMode::Secret)
    }

    fn answers(
        &mut self,
        name: &str,
        instruction: &str,
        prompts: &[Question],
    ) -> Option<Vec<Zeroizing<String>>> {
        for text in [name, instruction] {
            if !text.is_empty() {
                self.show(text);
            }
        }
        let who = format!("({}) ", self.account());
        let ask = |prompt: &Question| {
            let kind = if prompt.echo {
                EchoMode::Visible
            } else {
                EchoMode::Secret
            };
            self.ask(&format!("{who}{}", prompt.text), kind)
        };
        prompts.iter().map(ask).collect()
    }

    fn needs_person(&self) -> bool {
        self.person
    }

    fn may_forward(&self) -> bool {
        !self.distrusted
    }

    fn banner(&mut self, text: &str) {
        // The first connection has shown the banner.
        if self.config.tells() && self.beside.is_none() {
            self.show(text);
        }
    }

    fn waits_for(&mut self, awaited: &str) {
        // Another host may be asking the user a question.
        if self.beside.is_none()
            && let Ok(mut prompt) = self.prompt.try_lock()
        {
            prompt.note_wait(awaited);
        }
    }

    fn danger(&mut self, text: &str) {
        self.show(text);
    }

    fn denied(&self, server: &[String]) -> String {
        let mut failed = self.unsigned.clone();
        let identities = self.identities.as_ref();
        failed.extend(identities.iter().flat_map(|i| i.warnings.iter().cloned()));
        let methods = self.enabled_methods();
        let offers = methods.contains(&AuthMethod::PublicKey);
        let offered = match identities.filter(|_| offers) {
            Some(identities) => self
                .offered
                .iter()
                .filter(|index| !self.silent.contains(index))
                .filter_map(|index| Some(described(identities.offers().get(*index)?)))
                .collect(),
            None => Vec::new(),
        };
        let denied = DeniedLogin::new(&self.config, server, &methods);
        let denied = denied.with_keys(offered, failed);
        denied.distrusted(self.distrusted).text()
    }

    fn login(&self) -> String {
        let keys = self.offered.len();
        let many = if keys == 1 { "key" } else { "keys" };
        format!(
            "as {} with {keys} {many} to offer (to offer one: -o IdentitiesOnly=yes -i FILE)",
            escape::name(self.config.user.as_bytes())
        )
    }

    fn authenticated(&mut self, key: Option<(usize, &str)>, server_facts: &ServerFacts) {
        if self.distrusted {
            return;
        }
        let fingerprint = |identity: usize| {
            let offer = self
                .identities
                .as_ref()?
                .offers()
                .get(*self.offered.get(identity)?)?;
            Some(offer.public.as_ref()?.fingerprint())
        };
        let accepted_key = key.and_then(|(identity, algorithm)| {
            Some(AcceptedLoginKey {
                fingerprint: fingerprint(identity)?,
                algorithm: algorithm.to_owned(),
                sufficient: true,
            })
        });
        let same = self
            .memory
            .as_ref()
            .filter(|m| m.banner == server_facts.banner);
        let known = self.same_host();
        let mut memory = HostMemory {
            banner: server_facts.banner.clone(),
            kex: server_facts.kex.clone(),
            host_key_algorithm: server_facts.host_key_algorithm.clone(),
            host_key: self.fingerprint.clone(),
            accepted_key,
            sftp_extensions: same.map(|m| m.sftp_extensions.clone()).unwrap_or_default(),
            refused: same.and_then(|m| m.refused),
            // The other fields describe the path and the machine, which stay valid after a server
            // update.
            ..known.cloned().unwrap_or_default()
        };
        memory.on_connection(server_facts.addresses, server_facts.rtt);
        if let Some(rtt) = server_facts.rtt {
            memory.note_rtt(rtt);
        }
        if let Some(at) = self.zlib_failed {
            memory.note_zlib_failed(at);
        }
        if self.memory.as_ref() != Some(&memory) {
            self.save(&memory);
            self.memory = Some(memory);
        }
    }

    fn server(&mut self, info: &ServerInfo) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let extensions: Option<Vec<_>> = info
            .extensions
            .iter()
            .map(|(n, d)| Some((text(n)?, text(d)?)))
            .collect();
        let Some(extensions) = extensions else { return };
        self.change(|memory| memory.sftp_extensions.clone_from(&extensions));
    }

    fn host_keys_announced(&mut self, blobs: &[Bytes]) -> Vec<PublicKey> {
        let name = Self::name(&self.config);
        match &mut self.learner {
            Some(learner) => learner.announced(&self.config, &name, blobs, &self.prompt),
            None => Vec::new(),
        }
    }

    fn awaits_proofs(&self) -> bool {
        let learner = self.learner.as_ref();
        learner.is_some_and(HostKeyLearner::awaits_proofs)
    }

    fn host_keys_proven(&mut self, proven: Result<Vec<PublicKey>, KeyError>) {
        if let Some(learner) = &mut self.learner {
            learner.proven(&self.config, proven, &self.prompt);
        }
    }

    fn far(&mut self, seen: &LonghaulProbeResult) {
        let now = SystemTime::now();
        self.change(|memory| memory.far = remote_use::memory(seen, memory.far.as_ref(), now));
    }

    fn zlib_failed(&mut self) {
        self.zlib_failed = Some(SystemTime::now());
    }

    fn forget(&mut self) {
        self.memory = None;
        if let Some(memories) = &self.memories {
            let (host, port, user) = memory_name(&self.config);
            memories.forget(host, port, user);
        }
    }
}

/// Returns the key of this number as it is offered to the server, and true if `worked`, the key of
/// an earlier login, is this one and sufficed. `None` if it has no public key or no algorithm that
/// is allowed.
fn offered(
    identities: &Identities,
    index: usize,
    allowed: &[String],
    worked: Option<&AcceptedLoginKey>,
    is_first: bool,
) -> Option<(OfferedIdentity, bool)> {
    let offer = identities.offers().get(index)?;
    let public = offer.public.as_ref()?;
    let algorithms = offer.algorithms(allowed, None);
    let algorithms: Vec<String> = algorithms.into_iter().map(str::to_owned).collect();
    if algorithms.is_empty() {
        return None;
    }
    let proven = worked.is_some_and(|w| {
        w.sufficient && w.fingerprint == public.fingerprint() && algorithms.contains(&w.algorithm)
    });
    // A hardware key needs a touch, which must not be requested for a key that the server refuses.
    let alone = identities.signs_alone(index);
    let direct = alone && (!offer.is_in_agent() || is_first);
    let identity = OfferedIdentity {
        blob: public.blob().to_vec(),
        algorithms,
        direct: direct || proven && identities.is_ready(index),
    };
    Some((identity, proven))
}

/// Describes a key: source, type and fingerprint.
fn described(offer: &OfferableKey) -> String {
    match &offer.public {
        Some(key) => format!("{} ({} {})", offer.label, key.key_type(), key.fingerprint()),
        None => offer.label.clone(),
    }
}

fn same_host(first: &[u8], blob: &[u8]) -> Result<(), ConnectError> {
    match first == blob {
        true => Ok(()),
        false => Err(refused_key(
            "the host key differs from that of the first connection: another host answers under \
             this name; use a name that leads to one host only",
        )),
    }
}

/// Returns the error for a host whose key is refused, whatever the user would say.
fn refused_key(text: impl Into<String>) -> ConnectError {
    ConnectError::new(ResponsibleParty::Host, ConnectStep::HostKey, text)
}

/// Loads what earlier copies remembered of a host.
pub(super) fn remembered(
    config: &HostConfig,
    memories: Option<&HostMemoryStore>,
) -> Option<HostMemory> {
    let (host, port, user) = memory_name(config);
    memories?.load(host, port, user, SystemTime::now())
}

/// Returns the name, port and user of the host memory entry. The name is that of the host key, so
/// that a host behind several addresses or forwarded ports (HostKeyAlias) has one entry.
pub(super) fn memory_name(config: &HostConfig) -> (&str, u16, &str) {
    let port = if config.host_key_alias.is_some() {
        0
    } else {
        config.port
    };
    (config.host_key_name(), port, &config.user)
}

pub(super) fn lock(
    prompt: &SharedPrompt,
) -> std::sync::MutexGuard<'_, dyn Prompt + Send + 'static> {
    prompt.lock().unwrap_or_else(PoisonError::into_inner)
}
