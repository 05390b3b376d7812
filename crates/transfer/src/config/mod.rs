//! What ssh_config(5) and the command line say about one host.
//!
//! OpenSSH itself evaluates its configuration (`ssh -G`), since it alone knows Match, Include,
//! canonicalization and its own version's defaults; where it is not installed, a parser crate
//! does what it can. Either gives lines of keyword and value, which one table turns into a
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

pub use algorithms::Algorithms;
pub use host::{
    AddressFamily, ForwardAgent, HostConfig, IdentityFile, Proxy, RekeyLimit, StrictHostKeyChecking,
};
pub use tokens::Tokens;
pub use user::LocalUser;

/// What is asked of the configuration: a host, and the flags that concern it.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// The host as the operand names it.
    pub host: String,
    /// The user that the operand names.
    pub user: Option<String>,
    /// The port of the URI, or of `-P`.
    pub port: Option<u16>,
    /// `-F`.
    pub file: Option<PathBuf>,
    /// `-o`, in order; each as written.
    pub options: Vec<String>,
    /// `-i`, in order.
    pub identities: Vec<PathBuf>,
    /// `-J`.
    pub jump: Option<String>,
    /// `-c`.
    pub cipher: Option<String>,
    /// `-C`.
    pub compression: bool,
    /// `-4` or `-6`.
    pub family: AddressFamily,
    /// `-A`.
    pub forward_agent: bool,
    /// `-B`.
    pub batch: bool,
    /// `-q`.
    pub quiet: bool,
    /// The program to evaluate with; `ssh` from PATH when absent.
    pub ssh: Option<OsString>,
}

impl Query {
    /// The configuration for this host, and what must be said about it.
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
        config
            .warnings
            .extend(control_master::unused(&evaluated, &config));
        Ok(config)
    }

    /// Whether a file may say `Compression no` for this host, which `ssh -G` prints of hosts that
    /// no file says it of as well. In doubt it may: only OpenSSH evaluates Match, and does not tell.
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

/// Keyword and value lines, as `ssh -G` prints them.
#[derive(Clone, Debug, Default)]
struct Evaluated {
    lines: Vec<(String, String)>,
    /// The same without any configuration: what nobody chose.
    defaults: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl Evaluated {
    fn values<'a>(&'a self, keyword: &'a str) -> impl Iterator<Item = &'a str> {
        values(&self.lines, keyword)
    }

    /// Someone chose this value: it is not what OpenSSH does by itself.
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

/// Why there is no configuration for a host; one sentence.
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
mod tests;
