//! The settings of ssh_config(5) and the command line for one host.
//!
//! OpenSSH itself evaluates its configuration (`ssh -G`), since only it knows Match, Include,
//! canonicalization and the defaults of its version. If OpenSSH is not installed, a parser crate
//! does part of that. Both produce lines of keyword and value, which one table converts to a
//! [`HostConfig`].

mod algorithms;
mod checked;
mod control_master;
mod evaluate;
mod fallback;
mod given;
mod host;
mod settings;
mod tokens;
mod unsupported;
mod user;
mod value;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

pub use algorithms::AlgorithmList;
pub use host::{
    AddressFamily, ConnectTimeout, ForwardAgent, HostConfig, IdentityFile, ProxyMethod, RekeyLimit,
    SmallKeyError, SshOptionFlags, StrictHostKeyChecking, UpdateHostKeys,
};
pub use tokens::TokenValues;
pub use user::LocalUser;

/// A query for a host's configuration, with the flags that affect it.
#[derive(Clone, Debug, Default)]
pub struct HostConfigQuery {
    /// Host name in the operand.
    pub host: String,
    /// User name in the operand.
    pub user: Option<String>,
    /// Port from the URI or from `-P`.
    pub port: Option<u16>,
    /// Configuration file given with `-F`.
    pub file: Option<PathBuf>,
    /// Options given with `-o`, unparsed, in order.
    pub options: Vec<String>,
    /// Private key files given with `-i`, in order.
    pub identities: Vec<PathBuf>,
    /// Jump hosts given with `-J`.
    pub jump: Option<String>,
    /// Cipher list given with `-c`.
    pub cipher: Option<String>,
    /// True if `-C` was given.
    pub compression: bool,
    /// Address family given with `-4` or `-6`.
    pub family: AddressFamily,
    /// True if `-A` was given.
    pub forward_agent: bool,
    /// True if `-B` was given.
    pub batch: bool,
    /// True if `-q` was given.
    pub quiet: bool,
    /// The program that evaluates the configuration; `ssh` from PATH if `None`.
    pub ssh: Option<OsString>,
}

impl HostConfigQuery {
    /// Refuses control characters in every value, and names with shell metacharacters.
    ///
    /// # Errors
    /// One sentence with the flag and the value, escaped.
    pub fn check(&self) -> Result<(), ConfigError> {
        checked::query(self)
    }

    /// Returns the `-o` options, including those for flags that scp turns into options. Lists of
    /// algorithms are excluded, since longhaul parses them itself.
    fn all_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.batch {
            options.push("BatchMode=yes".into());
        }
        if self.forward_agent {
            options.push("ForwardAgent=yes".into());
        }
        let plain = self.options.iter().filter(|o| !given::is_list(o));
        options.extend(plain.cloned());
        options
    }

    /// Returns the configuration for this host, including warnings for the user.
    pub fn resolve(&self, user: &LocalUser) -> Result<HostConfig, ConfigError> {
        self.check()?;
        let mut evaluated = match evaluate::with_ssh(self)? {
            Some(evaluated) => evaluated,
            None => fallback::evaluate(self, user)?,
        };
        let mut config = settings::apply(self, user, &evaluated)?;
        config.warnings.append(&mut evaluated.warnings);
        checked::names(&config)?;
        unsupported::judge(&evaluated, &mut config)?;
        config.control_master = control_master::open(&evaluated, &config);
        Ok(config)
    }

    /// True if a file may set `Compression no` for this host; `ssh -G` also prints `no` for hosts
    /// without a setting. In doubt the result is true: only OpenSSH evaluates Match, and it does
    /// not tell.
    pub fn refuses_compression(&self, user: &LocalUser) -> bool {
        let Ok(evaluated) = fallback::evaluate(self, user) else {
            return true;
        };
        let skipped = !evaluated.warnings.is_empty();
        let says_no = |value: &str| value.eq_ignore_ascii_case("no");
        let said = evaluated.values("compression").next().is_some_and(says_no);
        skipped || said
    }
}

/// Lines of keyword and value, as `ssh -G` prints them.
#[derive(Clone, Debug, Default)]
struct EvaluatedConfig {
    lines: Vec<(String, String)>,
    /// The lines without any configuration: OpenSSH's defaults.
    defaults: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl EvaluatedConfig {
    fn values<'a>(&'a self, keyword: &'a str) -> impl Iterator<Item = &'a str> {
        values(&self.lines, keyword)
    }

    /// True if the value differs from OpenSSH's default.
    fn is_chosen(&self, keyword: &str) -> bool {
        self.values(keyword).ne(values(&self.defaults, keyword))
    }

    fn default_of<'a>(&'a self, keyword: &'a str) -> Option<&'a str> {
        values(&self.defaults, keyword).next()
    }
}

fn values<'a>(lines: &'a [(String, String)], keyword: &'a str) -> impl Iterator<Item = &'a str> {
    lines
        .iter()
        .filter(move |(k, _)| k == keyword)
        .map(|(_, v)| v.as_str())
}

/// The reason why a host has no configuration; one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;
