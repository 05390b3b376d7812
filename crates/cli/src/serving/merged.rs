//! Merges flags and configuration file.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::time::Duration;

use serve::sshd::{
    AccessPolicy, AccountRules, AllowedProgram, ConnectionLimits, ServedClientSettings,
    ServerSettings, SupportedAlgorithms,
};
use serve::{Access, ExportedTree};
use ssh::key::host_key_algorithms;
use ssh::transport::DisabledProtection;
use tracing::info;

use super::host_keys::HostKeys;
use super::options::Options;
use super::validate::{is_pattern, known_tokens, why_not_allowed};
use super::{config, host_keys};
use crate::command_error::CommandError;
use crate::flags::low::ServeArgs;
use crate::http::HttpEndpoint;

/// Seconds for a login: half of sshd's LoginGraceTime.
const LOGIN_TIME: u64 = 60;

/// Settings of `longhaul serve` from flags and configuration file, in which a flag wins.
pub(super) struct MergedServeSettings {
    options: Options,
    root: Option<PathBuf>,
    authorized_keys: Option<PathBuf>,
    host_keys: Vec<PathBuf>,
    old_clients: bool,
    access: Access,
    renounced: DisabledProtection,
    window_poll: bool,
    allowed: Vec<AllowedProgram>,
    /// The address to listen at.
    pub(super) listen: Option<String>,
    /// The address of the metrics.
    pub(super) metrics: Option<HttpEndpoint>,
}

impl MergedServeSettings {
    /// Reads the configuration file, if there is one, and merges it with the flags, which override
    /// it. Paths in the arguments must be absolute.
    pub(super) fn of(args: &ServeArgs) -> Result<Self, CommandError> {
        let options = match &args.config {
            Some(file) => config::read(file, args)?,
            None => Options::default(),
        };
        let of_file = options.host_keys.clone().unwrap_or_default();
        let metrics = options.metrics.as_deref().map(HttpEndpoint::of);
        let names = match args.allow.is_empty() {
            true => options.allow.as_deref().unwrap_or_default(),
            false => &args.allow,
        };
        let less = match (&args.root, args.access) {
            (Some(_), _) => Some("a root"),
            (None, Some(_)) => Some("limited access (read-only, write-only)"),
            (None, None) => options.narrower(),
        };
        if let (false, Some(what)) = (names.is_empty(), less) {
            return Err(why_not_allowed(what).into());
        }
        let path = env::var_os("PATH");
        let allowed = names
            .iter()
            .map(|name| AllowedProgram::find(name, path.as_deref()));
        let allowed = allowed.collect::<Result<_, _>>();
        let allowed = allowed?;
        Ok(Self {
            allowed,
            root: args.root.clone().or_else(|| options.root.clone()),
            authorized_keys: args
                .authorized_keys
                .clone()
                .or_else(|| options.authorized_keys.clone()),
            host_keys: match args.host_keys.is_empty() {
                true => of_file,
                false => args.host_keys.clone(),
            },
            old_clients: args.old_clients || options.old_clients.unwrap_or_default(),
            access: args.access.or(options.access).unwrap_or_default(),
            renounced: args.renounced,
            window_poll: !args.no_window_poll,
            listen: args.listen.clone().or_else(|| options.listen.clone()),
            metrics,
            options,
        })
    }

    /// Returns true if each account has its own root.
    pub(super) fn root_is_a_pattern(&self) -> bool {
        let root = self.root.as_ref();
        root.is_some_and(|root| is_pattern(root))
    }

    /// The options of the file that take effect only if the server runs as root.
    pub(super) fn for_root_alone(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("users", self.options.users.is_some()),
            ("nologin-shells", self.options.nologin_shells.is_some()),
        ];
        given
            .into_iter()
            .filter_map(|(name, is)| is.then_some(name))
    }

    /// Opens the served files.
    pub(super) fn export(&self) -> Result<ExportedTree, CommandError> {
        Ok(self.served().open()?)
    }

    pub(super) fn served(&self) -> ServedClientSettings {
        let usual = ServedClientSettings::default();
        ServedClientSettings {
            root: self.root.clone(),
            access: self.access,
            idle: self.options.idle_time.map(Duration::from_secs),
            slow: self
                .options
                .slow_time
                .map_or(usual.slow, Duration::from_secs),
            without_cipher: self.renounced != DisabledProtection::Nothing,
            without_mac: self.renounced == DisabledProtection::CipherAndMac,
            window_poll: self.window_poll,
            log_files: self.options.log_files.unwrap_or(usual.log_files),
            allowed: self.allowed.clone(),
            ..usual
        }
    }

    /// Builds the settings of the server.
    pub(super) fn settings(&self) -> Result<ServerSettings, CommandError> {
        let options = &self.options;
        for (name, pattern) in [
            ("root", &self.root),
            ("authorized-keys", &self.authorized_keys),
        ] {
            pattern
                .as_ref()
                .map_or(Ok(()), |pattern| known_tokens(name, pattern))?;
        }
        let served = self.served();
        let mut keys = BTreeMap::new();
        for key in options.key.iter().flatten() {
            let different = ServedClientSettings {
                root: key.root.clone().or_else(|| served.root.clone()),
                access: key.access.unwrap_or(served.access),
                ..served.clone()
            };
            keys.insert(key.fingerprint.clone().unwrap_or_default(), different);
        }
        let usual = ConnectionLimits::default();
        let rules = AccountRules {
            nologin_shells: options.nologin_shells.unwrap_or_default(),
            users: options.users.clone(),
        };
        let HostKeys { shown, left_out } = host_keys::load(&self.host_keys, self.old_clients)?;
        for key in &left_out {
            let public = key.public();
            let (kind, fingerprint) = (public.key_type(), public.fingerprint());
            info!(
                "host key {kind} {fingerprint} is not offered; to offer it use --old-clients or \
                 --host-key"
            );
        }
        let all_keys = shown.iter().chain(&left_out).map(|key| key.public());
        let to_old_clients = (!self.old_clients).then(|| SupportedAlgorithms {
            algorithms: options.algorithms(true),
            host_key: host_key_algorithms(all_keys),
        });
        let authorities = options.trusted_user_ca_keys.clone();
        let entrance = AccessPolicy::open(self.authorized_keys.clone(), authorities, rules);
        Ok(ServerSettings {
            entrance: entrance?,
            keys,
            algorithms: options.algorithms(self.old_clients),
            to_old_clients,
            limits: ConnectionLimits {
                connections: options.connections.unwrap_or(usual.connections),
                unauthenticated: options.unauthenticated.unwrap_or(usual.unauthenticated),
                unauthenticated_per_source: options
                    .unauthenticated_per_source
                    .unwrap_or(usual.unauthenticated_per_source),
                source_block: options
                    .source_block
                    .as_deref()
                    .map_or(Ok(usual.source_block), str::parse)
                    .map_err(|why| format!("source-block {why}"))?,
                per_user: options.connections_per_user,
                per_second: options.connections_per_second.unwrap_or(usual.per_second),
            },
            login_time: Duration::from_secs(options.login_time.unwrap_or(LOGIN_TIME)),
            host_keys: shown,
            served,
        })
    }
}
