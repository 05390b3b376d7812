//! Converts lines of keyword and value to a [`HostConfig`] by a table of options.

use std::path::{Path, PathBuf};

use super::value::{InvalidValue, ParsedValue, boolean, number, paths, size, time, words};
use super::{
    AddressFamily, AlgorithmList, ConfigError, ConnectTimeout, EvaluatedConfig, ForwardAgent,
    HostConfig, HostConfigQuery, IdentityFile, LocalUser, ProxyMethod, RekeyLimit, SshOptionFlags,
    StrictHostKeyChecking, TokenValues, UpdateHostKeys, given,
};
use crate::agent::AgentChoice;
use crate::escape;
use crate::known_hosts::KnownHostsCommand;
use crate::operand::SshDestination;
use crate::report::DecisionOrigin;

/// The minimum RSA key size, which RequiredRSASize cannot lower (its default was 1024 until 9.x).
const MIN_RSA_BITS: u32 = 2048;

/// An option and the function that stores its values (one per line of `ssh -G`) in a field.
struct HostOption {
    keyword: &'static str,
    set: fn(&mut HostConfig, &[&str]) -> ParsedValue<()>,
}

macro_rules! settings {
    ($($keyword:literal => |$config:ident, $values:ident| $body:expr;)*) => {
        &[$(HostOption {
            keyword: $keyword,
            set: |$config, $values| { $body; Ok(()) },
        }),*]
    };
}

const SETTINGS: &[HostOption] = settings! {
    "hostname" => |c, v| c.host_name = one(v)?.into();
    "port" => |c, v| c.port = port(one(v)?)?;
    "user" => |c, v| c.user = one(v)?.into();
    "proxyjump" => |c, v| if let Some(hops) = jump(one(v)?)? { c.proxy = ProxyMethod::Jump(hops) };
    "proxycommand" => |c, v| if one(v)? != "none" { c.proxy = ProxyMethod::Command(one(v)?.into()) };
    "proxyusefdpass" => |c, v| c.switches.set(SshOptionFlags::PROXY_USE_FDPASS, boolean(one(v)?)?);
    "addressfamily" => |c, v| c.family = family(one(v)?)?;
    "bindaddress" => |c, v| c.bind_address = Some(one(v)?.into());
    "connecttimeout" => |c, v| c.connect_timeout = time(one(v)?)?.map(ConnectTimeout::Set);
    "connectionattempts" => |c, v| c.connection_attempts = number(one(v)?)?;
    "tcpkeepalive" => |c, v| c.switches.set(SshOptionFlags::TCP_KEEP_ALIVE, boolean(one(v)?)?);
    "serveraliveinterval" => |c, v| c.alive_interval = time(one(v)?)?;
    "serveralivecountmax" => |c, v| c.alive_count_max = number(one(v)?)?;
    "requiredrsasize" => |c, v| c.required_rsa_size = number(one(v)?)?.max(MIN_RSA_BITS);
    "rekeylimit" => |c, v| c.rekey = rekey(one(v)?)?;
    "compression" => |c, v| if boolean(one(v)?)? { c.compression = Some(true) };
    "userknownhostsfile" => |c, v| c.user_known_hosts = all_paths(v);
    "globalknownhostsfile" => |c, v| c.global_known_hosts = all_paths(v);
    "stricthostkeychecking" => |c, v| c.strict = strict(one(v)?)?;
    "hashknownhosts" => |c, v| c.switches.set(SshOptionFlags::HASH_KNOWN_HOSTS, boolean(one(v)?)?);
    "updatehostkeys" => |c, v| c.update_host_keys = update_host_keys(one(v)?)?;
    "exitonforwardfailure" => |c, v| c.switches.set(SshOptionFlags::EXIT_ON_FORWARD_FAILURE, boolean(one(v)?)?);
    "checkhostip" => |c, v| c.switches.set(SshOptionFlags::CHECK_HOST_IP, boolean(one(v)?)?);
    "hostkeyalias" => |c, v| c.host_key_alias = Some(one(v)?.into());
    "knownhostscommand" => |c, v| c.known_hosts_command = KnownHostsCommand::parse(one(v)?)?;
    "revokedhostkeys" => |c, v| c.revoked_host_keys = all_paths(v);
    "identityfile" => |c, v| c.identity_files = each_path(v).into_iter().map(explicit).collect();
    "certificatefile" => |c, v| c.certificate_files = each_path(v);
    "identitiesonly" => |c, v| c.switches.set(SshOptionFlags::IDENTITIES_ONLY, boolean(one(v)?)?);
    "identityagent" => |c, v| c.agent = agent(one(v)?);
    "forwardagent" => |c, v| c.forward_agent = forward(one(v)?);
    "preferredauthentications" => |c, v| c.preferred_authentications = Some(comma(one(v)?));
    "pubkeyauthentication" => |c, v| c.switches.set(SshOptionFlags::PUBKEY_AUTHENTICATION, pubkey(one(v)?)?);
    "passwordauthentication" => |c, v| c.switches.set(SshOptionFlags::PASSWORD_AUTHENTICATION, boolean(one(v)?)?);
    "kbdinteractiveauthentication" => |c, v| {
        c.switches.set(SshOptionFlags::KBD_INTERACTIVE_AUTHENTICATION, boolean(one(v)?)?)
    };
    "numberofpasswordprompts" => |c, v| c.password_prompts = number(one(v)?)?;
    "batchmode" => |c, v| c.switches.set(SshOptionFlags::BATCH_MODE, boolean(one(v)?)?);
    "sendenv" => |c, v| c.send_env = send_env(v);
    // The option's name until OpenSSH 8.7.
    "challengeresponseauthentication" => |c, v| {
        c.switches.set(SshOptionFlags::KBD_INTERACTIVE_AUTHENTICATION, boolean(one(v)?)?)
    };
    "setenv" => |c, v| c.set_env = v.iter().flat_map(|v| set_env(v)).collect();
    "loglevel" => |c, v| c.log_level = one(v)?.to_ascii_uppercase();
};

type AlgorithmOption = (
    &'static str,
    &'static str,
    fn(&mut HostConfig) -> &mut AlgorithmList,
);

const LISTS: &[AlgorithmOption] = &[
    ("ciphers", "Ciphers", |c| &mut c.ciphers),
    ("macs", "MACs", |c| &mut c.macs),
    ("kexalgorithms", "KexAlgorithms", |c| &mut c.kex),
    ("hostkeyalgorithms", "HostKeyAlgorithms", |c| {
        &mut c.host_key_algorithms
    }),
    (
        "pubkeyacceptedalgorithms",
        "PubkeyAcceptedAlgorithms",
        |c| &mut c.pubkey_algorithms,
    ),
    ("casignaturealgorithms", "CASignatureAlgorithms", |c| {
        &mut c.ca_algorithms
    }),
];

/// True for keywords that have an effect.
pub(super) fn is_known(keyword: &str) -> bool {
    SETTINGS.iter().any(|s| s.keyword == keyword) || LISTS.iter().any(|l| l.0 == keyword)
}

/// Applies every line, then expands tokens, which need the final host, port and user.
pub(super) fn apply(
    query: &HostConfigQuery,
    user: &LocalUser,
    evaluated: &EvaluatedConfig,
) -> Result<HostConfig, ConfigError> {
    let mut config = defaults(query, user);
    for setting in SETTINGS {
        let values: Vec<&str> = evaluated.values(setting.keyword).collect();
        if values.is_empty() {
            continue;
        }
        (setting.set)(&mut config, &values).map_err(|why| {
            let values = values.join(" ");
            let values = escape::name(values.as_bytes());
            ConfigError::new(format!("{} {values} {why}", setting.keyword))
        })?;
    }
    for (keyword, option, field) in LISTS {
        if let Some(list) = given::value_of(query, keyword) {
            *field(&mut config) = given::read(keyword, option, &list)?;
            continue;
        }
        // OpenSSH 8.4 and older have PubkeyAcceptedKeyTypes.
        let old = (*keyword == "pubkeyacceptedalgorithms").then_some("pubkeyacceptedkeytypes");
        for keyword in [*keyword].into_iter().chain(old) {
            let value = evaluated.values(keyword).next();
            if let (Some(list), true) = (value, evaluated.is_chosen(keyword)) {
                *field(&mut config) =
                    AlgorithmList::chosen(option, list, evaluated.default_of(keyword));
            }
        }
    }
    note_origins(query, &mut config)?;
    let usual = !evaluated.is_chosen("identityfile");
    config
        .identity_files
        .iter_mut()
        .for_each(|f| f.explicit = !usual);
    expand(query, user, evaluated, &mut config)?;
    check_fingerprint_hash(evaluated, &config)?;
    Ok(config)
}

/// Refuses a KnownHostsCommand that is to search by another fingerprint than SHA256: it would miss
/// a revoked key.
fn check_fingerprint_hash(
    evaluated: &EvaluatedConfig,
    config: &HostConfig,
) -> Result<(), ConfigError> {
    let hash = evaluated.values("fingerprinthash").next();
    let other = hash.is_some_and(|hash| !hash.eq_ignore_ascii_case("sha256"));
    let command = config.known_hosts_command.as_ref();
    match other && command.is_some_and(KnownHostsCommand::takes_fingerprint) {
        true => Err(ConfigError::new(
            "KnownHostsCommand has %f, and FingerprintHash is not SHA256, the only one supported: \
             use %K in the command",
        )),
        false => Ok(()),
    }
}

/// Records the origin of settings that a copy may otherwise choose itself.
fn note_origins(query: &HostConfigQuery, config: &mut HostConfig) -> Result<(), ConfigError> {
    let file = || DecisionOrigin::Config(query.file.clone());
    config.ciphers_from = match config.ciphers {
        _ if query.cipher.is_some() => DecisionOrigin::Flag("-c"),
        _ if given::value_of(query, "ciphers").is_some() => DecisionOrigin::Flag("-o Ciphers"),
        AlgorithmList::Chosen(_) => file(),
        AlgorithmList::Default => DecisionOrigin::Default,
    };
    let given = given::value_of(query, "compression");
    if !query.compression
        && let Some(value) = &given
    {
        let value = boolean(value).map_err(|why| {
            let value = escape::name(value.as_bytes());
            ConfigError::new(format!("compression {value} {why}"))
        })?;
        config.compression = Some(value);
    }
    config.compression_from = match config.compression {
        _ if query.compression => DecisionOrigin::Flag("-C"),
        _ if given.is_some() => DecisionOrigin::Flag("-o Compression"),
        Some(_) => file(),
        None => DecisionOrigin::Default,
    };
    Ok(())
}

fn defaults(query: &HostConfigQuery, user: &LocalUser) -> HostConfig {
    let ssh = |names: &[&str]| {
        names
            .iter()
            .map(|n| PathBuf::from(format!("~/.ssh/{n}")))
            .collect()
    };
    let usual: Vec<PathBuf> = ssh(&["id_ed25519", "id_ecdsa", "id_rsa"]);
    HostConfig {
        host: query.host.clone(),
        host_name: query.host.clone(),
        port: query.port.unwrap_or(22),
        user: query.user.clone().unwrap_or_else(|| user.name.clone()),
        switches: usual_switches(query),
        proxy: ProxyMethod::Direct,
        family: query.family,
        bind_address: None,
        connect_timeout: None,
        connection_attempts: 1,
        alive_interval: None,
        alive_count_max: 3,
        ciphers: AlgorithmList::Default,
        macs: AlgorithmList::Default,
        kex: AlgorithmList::Default,
        host_key_algorithms: AlgorithmList::Default,
        pubkey_algorithms: AlgorithmList::Default,
        ca_algorithms: AlgorithmList::Default,
        required_rsa_size: MIN_RSA_BITS,
        rekey: RekeyLimit::default(),
        compression: query.compression.then_some(true),
        ciphers_from: DecisionOrigin::Default,
        compression_from: DecisionOrigin::Default,
        user_known_hosts: ssh(&["known_hosts", "known_hosts2"]),
        global_known_hosts: ["", "2"]
            .map(|n| PathBuf::from(format!("/etc/ssh/ssh_known_hosts{n}")))
            .into(),
        strict: StrictHostKeyChecking::Ask,
        update_host_keys: UpdateHostKeys::No,
        control_master: None,
        host_key_alias: None,
        known_hosts_command: None,
        revoked_host_keys: Vec::new(),
        identity_files: usual.into_iter().map(explicit).collect(),
        certificate_files: Vec::new(),
        agent: AgentChoice::Environment,
        forward_agent: ForwardAgent::No,
        preferred_authentications: None,
        password_prompts: 3,
        send_env: Vec::new(),
        set_env: Vec::new(),
        log_level: "INFO".into(),
        warnings: Vec::new(),
        notes: Vec::new(),
        tokens: TokenValues::default(),
    }
}

/// Returns the options that are on without any setting.
fn usual_switches(query: &HostConfigQuery) -> SshOptionFlags {
    let mut usual = SshOptionFlags::TCP_KEEP_ALIVE
        | SshOptionFlags::PUBKEY_AUTHENTICATION
        | SshOptionFlags::PASSWORD_AUTHENTICATION
        | SshOptionFlags::KBD_INTERACTIVE_AUTHENTICATION;
    usual.set(SshOptionFlags::BATCH_MODE, query.batch);
    usual
}

/// Expands tokens in paths and commands. `ssh -G` expands some options and leaves others as written
/// (9.2 expands HostName and UserKnownHostsFile, but not IdentityFile, CertificateFile and
/// ProxyCommand). A second expansion changes nothing unless a path contains `%`.
fn expand(
    query: &HostConfigQuery,
    user: &LocalUser,
    evaluated: &EvaluatedConfig,
    config: &mut HostConfig,
) -> Result<(), ConfigError> {
    let mut tokens = TokenValues {
        asked: query.host.clone(),
        host: query.host.clone(),
        port: config.port,
        user: config.user.clone(),
        alias: query.host.clone(),
        jump: evaluated
            .values("proxyjump")
            .next()
            .unwrap_or_default()
            .into(),
        local: user.clone(),
    };
    if config.host_name != query.host {
        config.host_name = tokens.percent("HostName", &config.host_name)?;
    }
    tokens.host.clone_from(&config.host_name);
    if let Some(alias) = &mut config.host_key_alias {
        tokens.alias.clone_from(alias);
    }
    if let ProxyMethod::Command(command) = &mut config.proxy {
        *command = tokens.percent("ProxyCommand", command)?;
    }
    // A user without a home directory does not have the default files, which is not an error.
    if user.home.is_none() {
        let below_home = |path: &Path| path.starts_with("~");
        if !evaluated.is_chosen("userknownhostsfile") {
            config.user_known_hosts.retain(|path| !below_home(path));
            let none = config.user_known_hosts.is_empty();
            config.switches.set(SshOptionFlags::HOMELESS, none);
        }
        if !evaluated.is_chosen("identityfile") {
            config.identity_files.retain(|file| !below_home(&file.path));
        }
    }
    let lists = [
        ("UserKnownHostsFile", &mut config.user_known_hosts),
        ("GlobalKnownHostsFile", &mut config.global_known_hosts),
        ("CertificateFile", &mut config.certificate_files),
        ("RevokedHostKeys", &mut config.revoked_host_keys),
    ];
    for (option, list) in lists {
        for path in list {
            *path = tokens.path(option, path)?;
        }
    }
    for file in &mut config.identity_files {
        file.path = tokens.path("IdentityFile", &file.path)?;
    }
    if let AgentChoice::Path(path) = &mut config.agent {
        *path = tokens.path("IdentityAgent", path)?;
    }
    if let ForwardAgent::Socket(AgentChoice::Path(path)) = &mut config.forward_agent {
        *path = tokens.path("ForwardAgent", path)?;
    }
    config.tokens = tokens;
    Ok(())
}

fn one<'a>(values: &[&'a str]) -> ParsedValue<&'a str> {
    values
        .first()
        .copied()
        .ok_or_else(|| "needs a value".into())
}

fn explicit(path: PathBuf) -> IdentityFile {
    IdentityFile {
        path,
        explicit: true,
    }
}

fn all_paths(values: &[&str]) -> Vec<PathBuf> {
    values.iter().flat_map(|v| paths(v)).collect()
}

/// Converts each line to one path, spaces included.
fn each_path(values: &[&str]) -> Vec<PathBuf> {
    let wanted = values.iter().filter(|v| !v.eq_ignore_ascii_case("none"));
    wanted.map(|v| PathBuf::from(v.trim_matches('"'))).collect()
}

fn port(text: &str) -> ParsedValue<u16> {
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err("is not a port".into()),
    }
}

fn jump(text: &str) -> ParsedValue<Option<Vec<SshDestination>>> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    SshDestination::parse_list(text)
        .map(Some)
        .map_err(|e| InvalidValue::of_hosts(&e))
}

fn family(text: &str) -> ParsedValue<AddressFamily> {
    match text.to_ascii_lowercase().as_str() {
        "any" => Ok(AddressFamily::Any),
        "inet" => Ok(AddressFamily::Inet),
        "inet6" => Ok(AddressFamily::Inet6),
        _ => Err("is not any, inet or inet6".into()),
    }
}

fn strict(text: &str) -> ParsedValue<StrictHostKeyChecking> {
    match text.to_ascii_lowercase().as_str() {
        "ask" => Ok(StrictHostKeyChecking::Ask),
        "accept-new" => Ok(StrictHostKeyChecking::AcceptNew),
        "yes" | "true" => Ok(StrictHostKeyChecking::Yes),
        "no" | "off" | "false" => Ok(StrictHostKeyChecking::No),
        _ => Err("is not ask, accept-new, yes or no".into()),
    }
}

fn update_host_keys(text: &str) -> ParsedValue<UpdateHostKeys> {
    match text.to_ascii_lowercase().as_str() {
        "ask" => Ok(UpdateHostKeys::Ask),
        "yes" | "true" => Ok(UpdateHostKeys::Yes),
        "no" | "false" => Ok(UpdateHostKeys::No),
        _ => Err("is not ask, yes or no".into()),
    }
}

fn rekey(text: &str) -> ParsedValue<RekeyLimit> {
    let mut parts = text.split_whitespace();
    Ok(RekeyLimit {
        bytes: size(parts.next().unwrap_or("default"))?,
        time: time(parts.next().unwrap_or("none"))?,
    })
}

/// Parses PubkeyAuthentication; `unbound` and `host-bound` only select one of the two signatures.
fn pubkey(text: &str) -> ParsedValue<bool> {
    match text.to_ascii_lowercase().as_str() {
        "unbound" | "host-bound" => Ok(true),
        other => boolean(other),
    }
}

fn agent(text: &str) -> AgentChoice {
    let path = || AgentChoice::Path(PathBuf::from(text));
    match text.strip_prefix('$') {
        _ if text.eq_ignore_ascii_case("none") => AgentChoice::None,
        _ if text == "SSH_AUTH_SOCK" => AgentChoice::Environment,
        Some(name) if !name.starts_with('{') => match std::env::var_os(name) {
            Some(value) if !value.is_empty() => AgentChoice::Path(value.into()),
            _ => AgentChoice::None,
        },
        _ => path(),
    }
}

fn forward(text: &str) -> ForwardAgent {
    match boolean(text) {
        Ok(true) => ForwardAgent::Yes,
        Ok(false) => ForwardAgent::No,
        Err(_) => ForwardAgent::Socket(agent(text)),
    }
}

fn comma(text: &str) -> Vec<String> {
    let names = text.split(',').map(str::trim).filter(|n| !n.is_empty());
    names.map(Into::into).collect()
}

/// Collects SendEnv names; `-pattern` removes earlier names that match it.
fn send_env(values: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for word in values.iter().flat_map(|v| words(v)) {
        match word.strip_prefix('-') {
            Some(back) => names.retain(|n| !crate::known_hosts::matches_pattern(n, back)),
            None => names.push(word),
        }
    }
    names
}

fn set_env(text: &str) -> Option<(String, String)> {
    let (name, value) = text.trim_matches('"').split_once('=')?;
    Some((name.into(), value.trim_matches('"').into()))
}
