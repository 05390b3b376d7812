//! The settings for one host and their types.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bitflags::bitflags;
use ssh::key::PublicKey;
use wire::{Field, FieldReader, Mpint};

use super::{AlgorithmList, TokenValues};
use crate::agent::AgentChoice;
use crate::known_hosts::KnownHostsCommand;
use crate::operand::SshDestination;
use crate::report::DecisionOrigin;

/// The settings for one host. Each field has the meaning of the ssh_config(5) option named.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The host as in the operand.
    pub host: String,
    /// HostName: the name or address to connect to.
    pub host_name: String,
    /// Port.
    pub port: u16,
    /// User.
    pub user: String,
    /// Options that are on or off.
    pub switches: SshOptionFlags,
    /// ProxyJump and ProxyCommand.
    pub proxy: ProxyMethod,
    /// AddressFamily.
    pub family: AddressFamily,
    /// BindAddress.
    pub bind_address: Option<String>,
    /// ConnectTimeout, or a limit of longhaul's own.
    pub connect_timeout: Option<ConnectTimeout>,
    /// ConnectionAttempts.
    pub connection_attempts: u32,
    /// ServerAliveInterval; `None` disables keepalives.
    pub alive_interval: Option<Duration>,
    /// ServerAliveCountMax.
    pub alive_count_max: u32,

    /// Ciphers.
    pub ciphers: AlgorithmList,
    /// MACs.
    pub macs: AlgorithmList,
    /// KexAlgorithms.
    pub kex: AlgorithmList,
    /// HostKeyAlgorithms.
    pub host_key_algorithms: AlgorithmList,
    /// PubkeyAcceptedAlgorithms.
    pub pubkey_algorithms: AlgorithmList,
    /// CASignatureAlgorithms.
    pub ca_algorithms: AlgorithmList,
    /// RequiredRSASize, in bits.
    pub required_rsa_size: u32,
    /// RekeyLimit.
    pub rekey: RekeyLimit,
    /// Compression; `None` if not set. A `no` in a file looks like the default in the output of
    /// `ssh -G`: see [`super::HostConfigQuery::refuses_compression`].
    pub compression: Option<bool>,
    /// The origin of [`HostConfig::ciphers`].
    pub ciphers_from: DecisionOrigin,
    /// The origin of [`HostConfig::compression`].
    pub compression_from: DecisionOrigin,

    /// UserKnownHostsFile; new hosts are added to the first.
    pub user_known_hosts: Vec<PathBuf>,
    /// GlobalKnownHostsFile.
    pub global_known_hosts: Vec<PathBuf>,
    /// StrictHostKeyChecking.
    pub strict: StrictHostKeyChecking,
    /// UpdateHostKeys. `ssh -G` prints the default, which depends on other settings; without ssh it
    /// is off unless it is set.
    pub update_host_keys: UpdateHostKeys,
    /// ControlPath, if an ssh process with an open connection to the host listens there
    /// (ControlMaster).
    pub control_master: Option<PathBuf>,
    /// HostKeyAlias.
    pub host_key_alias: Option<String>,
    /// KnownHostsCommand.
    pub known_hosts_command: Option<KnownHostsCommand>,
    /// RevokedHostKeys.
    pub revoked_host_keys: Vec<PathBuf>,

    /// IdentityFile, in order.
    pub identity_files: Vec<IdentityFile>,
    /// CertificateFile, in order.
    pub certificate_files: Vec<PathBuf>,
    /// IdentityAgent.
    pub agent: AgentChoice,
    /// ForwardAgent.
    pub forward_agent: ForwardAgent,
    /// PreferredAuthentications, in order; `None` for longhaul's own order.
    pub preferred_authentications: Option<Vec<String>>,
    /// NumberOfPasswordPrompts.
    pub password_prompts: u32,

    /// SendEnv: patterns of variable names.
    pub send_env: Vec<String>,
    /// SetEnv.
    pub set_env: Vec<(String, String)>,
    /// LogLevel, in upper case.
    pub log_level: String,

    /// Warnings about unsupported settings whose absence weakens or changes the connection; one
    /// escaped sentence each.
    pub warnings: Vec<String>,
    /// Notes about settings that have no use here; for `-v`.
    pub notes: Vec<String>,
    /// The values of `%h` and the other tokens.
    pub tokens: TokenValues,
}

/// Limit of the time until a host answers, with its origin for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectTimeout {
    /// The ConnectTimeout setting.
    Set(Duration),
    /// longhaul's limit where ConnectTimeout is not set.
    Default(Duration),
    /// longhaul's limit, which ConnectTimeout cannot raise.
    Fixed(Duration),
}

impl ConnectTimeout {
    /// Returns the limit.
    pub fn time(self) -> Duration {
        let (Self::Set(time) | Self::Default(time) | Self::Fixed(time)) = self;
        time
    }

    /// Returns the words that follow the time in a message: ConnectTimeout, where the user has set
    /// or can set it.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Set(_) => " (ConnectTimeout)",
            Self::Default(_) => " (ConnectTimeout sets another limit)",
            Self::Fixed(_) => "",
        }
    }
}

bitflags! {
    /// Options of ssh_config(5) that are on or off.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SshOptionFlags: u16 {
        /// ProxyUseFdpass: the ProxyCommand passes a connected socket and exits.
        const PROXY_USE_FDPASS = 1;
        /// TCPKeepAlive.
        const TCP_KEEP_ALIVE = 1 << 1;
        /// The user has no home directory for the default UserKnownHostsFile and has named no
        /// other: new hosts are not recorded.
        const HOMELESS = 1 << 2;
        /// HashKnownHosts.
        const HASH_KNOWN_HOSTS = 1 << 3;
        /// ExitOnForwardFailure: a host with a changed key is refused even with
        /// StrictHostKeyChecking=no, since forwarding would be disabled.
        const EXIT_ON_FORWARD_FAILURE = 1 << 4;
        /// CheckHostIP.
        const CHECK_HOST_IP = 1 << 5;
        /// IdentitiesOnly.
        const IDENTITIES_ONLY = 1 << 6;
        /// PubkeyAuthentication.
        const PUBKEY_AUTHENTICATION = 1 << 7;
        /// PasswordAuthentication.
        const PASSWORD_AUTHENTICATION = 1 << 8;
        /// KbdInteractiveAuthentication.
        const KBD_INTERACTIVE_AUTHENTICATION = 1 << 9;
        /// BatchMode: no prompts.
        const BATCH_MODE = 1 << 10;
    }
}

/// The way to reach the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyMethod {
    /// A direct TCP connection.
    #[default]
    Direct,
    /// Through these jump hosts, in this order.
    Jump(Vec<SshDestination>),
    /// Through these relaying hosts, in this order (`--via`): as through jump hosts, with as many
    /// connections as pay.
    Via(Vec<SshDestination>),
    /// Over standard input and output of a shell command whose tokens are expanded.
    Command(String),
}

/// A file that may contain a private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFile {
    /// The expanded path.
    pub path: PathBuf,
    /// True if the user named the file (`-i`, IdentityFile), false for a default name.
    pub explicit: bool,
}

/// The address families that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4 and IPv6.
    #[default]
    Any,
    /// IPv4 only.
    Inet,
    /// IPv6 only.
    Inet6,
}

/// Value of StrictHostKeyChecking: treatment of a host whose key is new or has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrictHostKeyChecking {
    /// Asks about a new host and refuses a changed key.
    #[default]
    Ask,
    /// Accepts and records a new host, refuses a changed key.
    AcceptNew,
    /// Refuses a new host too.
    Yes,
    /// Accepts any key; with a changed key, no secrets are sent.
    No,
}

/// UpdateHostKeys: whether further keys of a known host are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateHostKeys {
    /// Leaves known_hosts as it is.
    #[default]
    No,
    /// Records keys that the server has proven, and removes those that it does not announce.
    Yes,
    /// As [`UpdateHostKeys::Yes`], after asking the user.
    Ask,
}

/// The ForwardAgent setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForwardAgent {
    /// No forwarding.
    #[default]
    No,
    /// Forwards the agent that authenticates.
    Yes,
    /// Forwards another agent.
    Socket(AgentChoice),
}

/// The RekeyLimit setting; the cipher's own limit applies too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RekeyLimit {
    /// The limit in bytes.
    pub bytes: Option<u64>,
    /// The limit in time.
    pub time: Option<Duration>,
}

impl HostConfig {
    /// Limits the time until the host answers, unless ConnectTimeout is set.
    pub fn set_default_connect_timeout(&mut self, time: Duration) {
        let default = ConnectTimeout::Default(time);
        self.connect_timeout.get_or_insert(default);
    }

    /// Limits the time until the host answers to `most`, unless ConnectTimeout is shorter.
    pub fn cap_connect_timeout(&mut self, most: Duration) {
        let shorter = self.connect_timeout.filter(|set| set.time() <= most);
        self.connect_timeout = Some(shorter.unwrap_or(ConnectTimeout::Fixed(most)));
    }

    /// True if the option is on.
    pub fn has(&self, switch: SshOptionFlags) -> bool {
        self.switches.contains(switch)
    }

    /// Returns the name under which the host key is looked up and shown: HostKeyAlias, else
    /// HostName.
    pub fn host_key_name(&self) -> &str {
        self.host_key_alias.as_deref().unwrap_or(&self.host_name)
    }

    /// True if LogLevel allows informational messages (with `-q` it does not).
    pub fn tells(&self) -> bool {
        self.tells_errors() && self.log_level != "ERROR"
    }

    /// True if LogLevel allows error messages. `ssh -G` prints QUIET as SILENT.
    pub fn tells_errors(&self) -> bool {
        !matches!(self.log_level.as_str(), "QUIET" | "SILENT" | "FATAL")
    }

    /// True if SendEnv selects this variable name; OpenSSH's wildcards are `*` and `?`.
    pub fn sends(&self, name: &str) -> bool {
        self.send_env
            .iter()
            .any(|pattern| crate::known_hosts::matches_pattern(name, pattern))
    }

    /// Checks a host or user key against RequiredRSASize.
    ///
    /// # Errors
    /// The key is too small.
    pub fn check_size(&self, key: &PublicKey) -> Result<(), SmallKeyError> {
        let key = key.plain();
        let Some(bits) = (key.key_type() == "ssh-rsa").then(|| rsa_bits(key.blob())) else {
            return Ok(());
        };
        match bits {
            Some(bits) if bits >= self.required_rsa_size as usize => Ok(()),
            _ => Err(SmallKeyError {
                bits: bits.unwrap_or_default(),
                required: self.required_rsa_size,
            }),
        }
    }
}

/// An RSA key that is smaller than RequiredRSASize. The message ends a sentence that begins with
/// the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallKeyError {
    bits: usize,
    required: u32,
}

impl fmt::Display for SmallKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bits, required } = self;
        write!(
            f,
            "is an RSA key of {bits} bits; RequiredRSASize requires at least {required}"
        )
    }
}

impl std::error::Error for SmallKeyError {}

/// Returns the modulus size in bits of an `ssh-rsa` blob (RFC 4253 section 6.6).
fn rsa_bits(blob: &[u8]) -> Option<usize> {
    let mut r = FieldReader::new(blob);
    let _type = r.string().ok()?;
    let _exponent = Mpint::read(&mut r).ok()?;
    let modulus = Mpint::read(&mut r).ok()?;
    let (first, rest) = modulus.magnitude().split_first()?;
    Some(rest.len() * 8 + 8 - first.leading_zeros() as usize)
}
