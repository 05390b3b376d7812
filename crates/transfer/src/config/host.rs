use std::path::PathBuf;
use std::time::Duration;

use ssh::key::PublicKey;
use wire::{Field, Mpint, Reader};

use super::{Algorithms, Tokens};
use crate::agent::AgentSocket;
use crate::operand::Destination;
use crate::report::Origin;

/// The settings for one host. Each field is the option of ssh_config(5) of that name.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The host as the operand names it.
    pub host: String,
    /// HostName: where to connect to.
    pub host_name: String,
    /// Port.
    pub port: u16,
    /// User.
    pub user: String,
    /// ProxyJump and ProxyCommand.
    pub proxy: Proxy,
    /// ProxyUseFdpass: ProxyCommand hands over a connected socket and ends.
    pub proxy_passes_socket: bool,
    /// AddressFamily.
    pub family: AddressFamily,
    /// BindAddress.
    pub bind_address: Option<String>,
    /// ConnectTimeout.
    pub connect_timeout: Option<Duration>,
    /// ConnectionAttempts.
    pub connection_attempts: u32,
    /// TCPKeepAlive.
    pub tcp_keep_alive: bool,
    /// ServerAliveInterval; `None` sends none.
    pub alive_interval: Option<Duration>,
    /// ServerAliveCountMax.
    pub alive_count_max: u32,

    /// Ciphers.
    pub ciphers: Algorithms,
    /// MACs.
    pub macs: Algorithms,
    /// KexAlgorithms.
    pub kex: Algorithms,
    /// HostKeyAlgorithms.
    pub host_key_algorithms: Algorithms,
    /// PubkeyAcceptedAlgorithms.
    pub pubkey_algorithms: Algorithms,
    /// CASignatureAlgorithms.
    pub ca_algorithms: Algorithms,
    /// RequiredRSASize, in bits.
    pub required_rsa_size: u32,
    /// RekeyLimit.
    pub rekey: RekeyLimit,
    /// Compression; `None` where nobody asked for it. What says `no` in a file looks the same in
    /// what ssh makes of it: see [`super::Query::refuses_compression`].
    pub compression: Option<bool>,
    /// Who has chosen [`HostConfig::ciphers`].
    pub ciphers_from: Origin,
    /// Who has chosen [`HostConfig::compression`].
    pub compression_from: Origin,

    /// UserKnownHostsFile; new hosts are added to the first.
    pub user_known_hosts: Vec<PathBuf>,
    /// This user has no home directory for the usual files, and has named no other: new hosts are
    /// not recorded.
    pub is_homeless: bool,
    /// GlobalKnownHostsFile.
    pub global_known_hosts: Vec<PathBuf>,
    /// StrictHostKeyChecking.
    pub strict: StrictHostKeyChecking,
    /// HashKnownHosts.
    pub hash_known_hosts: bool,
    /// ExitOnForwardFailure: a host whose key is not the known one is refused even under
    /// StrictHostKeyChecking=no, since nothing could be forwarded to it.
    pub exit_on_forward_failure: bool,
    /// CheckHostIP.
    pub check_host_ip: bool,
    /// HostKeyAlias.
    pub host_key_alias: Option<String>,
    /// RevokedHostKeys.
    pub revoked_host_keys: Vec<PathBuf>,

    /// IdentityFile, in order.
    pub identity_files: Vec<IdentityFile>,
    /// CertificateFile, in order.
    pub certificate_files: Vec<PathBuf>,
    /// IdentitiesOnly.
    pub identities_only: bool,
    /// IdentityAgent.
    pub agent: AgentSocket,
    /// ForwardAgent.
    pub forward_agent: ForwardAgent,
    /// PreferredAuthentications, in order; `None` for our own order.
    pub preferred_authentications: Option<Vec<String>>,
    /// PubkeyAuthentication.
    pub pubkey_authentication: bool,
    /// PasswordAuthentication.
    pub password_authentication: bool,
    /// KbdInteractiveAuthentication.
    pub kbd_interactive_authentication: bool,
    /// NumberOfPasswordPrompts.
    pub password_prompts: u32,
    /// BatchMode: nobody is asked.
    pub batch_mode: bool,

    /// SendEnv: patterns of names.
    pub send_env: Vec<String>,
    /// SetEnv.
    pub set_env: Vec<(String, String)>,
    /// LogLevel, in upper case.
    pub log_level: String,

    /// What is configured, not supported, and would weaken or change the connection; each one
    /// sentence, escaped.
    pub warnings: Vec<String>,
    /// What is configured and of no use here; for `-v`.
    pub notes: Vec<String>,
    /// For expanding `%h` and its kin.
    pub tokens: Tokens,
}

/// How the host is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// Straight.
    #[default]
    Direct,
    /// Through these hosts, in this order.
    Jump(Vec<Destination>),
    /// Over standard input and output of a shell command, its tokens already expanded.
    Command(String),
}

/// A file that may hold a private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFile {
    /// Its path, expanded.
    pub path: PathBuf,
    /// It was asked for (`-i`, IdentityFile) and is not one of the usual names.
    pub explicit: bool,
}

/// Which addresses may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// Both.
    #[default]
    Any,
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

/// StrictHostKeyChecking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrictHostKeyChecking {
    /// A new host is asked about, a changed key refused.
    #[default]
    Ask,
    /// A new host is taken and remembered, a changed key refused.
    AcceptNew,
    /// A new host is refused too.
    Yes,
    /// Everything is taken; with a changed key, nothing secret is sent.
    No,
}

/// ForwardAgent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForwardAgent {
    /// Off.
    #[default]
    No,
    /// The agent that authenticates.
    Yes,
    /// Another one.
    Socket(AgentSocket),
}

/// RekeyLimit; the cipher's own limit holds as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RekeyLimit {
    /// After so many bytes.
    pub bytes: Option<u64>,
    /// After so long.
    pub time: Option<Duration>,
}

impl HostConfig {
    /// The name under which the host's key is looked up and shown: HostKeyAlias, else HostName.
    pub fn host_key_name(&self) -> &str {
        self.host_key_alias.as_deref().unwrap_or(&self.host_name)
    }

    /// Whether LogLevel lets through what is worth knowing (`-q` does not).
    pub fn tells(&self) -> bool {
        self.tells_errors() && self.log_level != "ERROR"
    }

    /// Whether LogLevel lets through what went wrong. `ssh -G` calls QUIET SILENT.
    pub fn tells_errors(&self) -> bool {
        !matches!(self.log_level.as_str(), "QUIET" | "SILENT" | "FATAL")
    }

    /// Whether a variable of this name is sent (SendEnv): OpenSSH's wildcards `*` and `?`.
    pub fn sends(&self, name: &str) -> bool {
        self.send_env
            .iter()
            .any(|pattern| crate::known_hosts::matches_pattern(name, pattern))
    }

    /// Whether a key, the host's or the user's, is long enough (RequiredRSASize); if not, why,
    /// as the end of a sentence.
    pub fn check_size(&self, key: &PublicKey) -> Result<(), String> {
        let key = key.plain();
        let Some(bits) = (key.key_type() == "ssh-rsa").then(|| rsa_bits(key.blob())) else {
            return Ok(());
        };
        match bits {
            Some(bits) if bits >= self.required_rsa_size as usize => Ok(()),
            _ => Err(format!(
                "is an RSA key of {} bits; RequiredRSASize demands {}",
                bits.unwrap_or_default(),
                self.required_rsa_size
            )),
        }
    }
}

/// Bits of the modulus of an `ssh-rsa` blob (RFC 4253 section 6.6).
fn rsa_bits(blob: &[u8]) -> Option<usize> {
    let mut r = Reader::new(blob);
    let _type = r.string().ok()?;
    let _exponent = Mpint::read(&mut r).ok()?;
    let modulus = Mpint::read(&mut r).ok()?;
    let (first, rest) = modulus.magnitude().split_first()?;
    Some(rest.len() * 8 + 8 - first.leading_zeros() as usize)
}
