//! Expands the tokens of ssh_config(5), such as `%h`, and `~` and `${VARIABLE}` in paths.

use std::path::{Path, PathBuf};

use aws_lc_rs::digest;

use super::{ConfigError, LocalUser};

/// The values of `%h` and the other tokens (TOKENS of ssh_config(5)).
#[derive(Clone, Debug, Default)]
pub struct TokenValues {
    /// `%n`: the host as the user wrote it.
    pub asked: String,
    /// Value of `%h`, the host name.
    pub host: String,
    /// Value of `%p`, the port.
    pub port: u16,
    /// Value of `%r`, the remote user name.
    pub user: String,
    /// `%k`: HostKeyAlias, or the host as the user wrote it.
    pub alias: String,
    /// `%j`: ProxyJump as written.
    pub jump: String,
    /// `%d %i %l %L %u` and `~`.
    pub local: LocalUser,
}

impl TokenValues {
    /// Replaces `%` tokens. The error for an unknown token names `option`.
    pub fn percent(&self, option: &str, text: &str) -> Result<String, ConfigError> {
        self.expand(option, text, &[], false)
    }

    /// Replaces `%` tokens, those in `own` too, and `${VARIABLE}`. Values are not expanded again.
    pub fn percent_and_variables(
        &self,
        option: &str,
        text: &str,
        own: &[(char, String)],
    ) -> Result<String, ConfigError> {
        self.expand(option, text, own, true)
    }

    fn expand(
        &self,
        option: &str,
        text: &str,
        own: &[(char, String)],
        variables: bool,
    ) -> Result<String, ConfigError> {
        let mut out = String::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if variables && c == '$' && chars.as_str().starts_with('{') {
                let (value, rest) = variable(option, chars.as_str())?;
                out.push_str(&value);
                chars = rest.chars();
                continue;
            }
            if c != '%' {
                out.push(c);
                continue;
            }
            let token = chars.next();
            let found = own.iter().find(|(name, _)| Some(*name) == token);
            if let Some((_, value)) = found {
                out.push_str(value);
                continue;
            }
            match token {
                Some('%') => out.push('%'),
                Some('C') => out.push_str(&self.connection_hash()),
                Some('d') => out.push_str(&self.home(option)?.to_string_lossy()),
                Some('h') => out.push_str(&self.host),
                Some('i') => out.push_str(&self.local.uid.to_string()),
                Some('j') => out.push_str(&self.jump),
                Some('k') => out.push_str(&self.alias),
                Some('L') => out.push_str(self.local.host.split('.').next().unwrap_or_default()),
                Some('l') => out.push_str(&self.local.host),
                Some('n') => out.push_str(&self.asked),
                Some('p') => out.push_str(&self.port.to_string()),
                Some('r') => out.push_str(&self.user),
                Some('u') => out.push_str(&self.local.name),
                Some(other) => {
                    return Err(ConfigError::new(format!(
                        "{option} has the unknown token %{}: correct it, or write %% for a percent \
                         sign",
                        other.escape_default()
                    )));
                }
                None => {
                    return Err(ConfigError::new(format!(
                        "{option} ends with a single %: write %% for a percent sign"
                    )));
                }
            }
        }
        Ok(out)
    }

    /// Expands a path: `~`, `%` tokens and `${VARIABLE}`, as OpenSSH does for IdentityFile.
    pub fn path(&self, option: &str, text: &Path) -> Result<PathBuf, ConfigError> {
        let Some(text) = text.to_str() else {
            // ssh_config cannot express tokens in a path that is not UTF-8.
            return Ok(text.to_owned());
        };
        let text = self.percent_and_variables(option, text, &[])?;
        match text.strip_prefix('~') {
            Some("") => Ok(self.home(option)?.to_owned()),
            Some(rest) if rest.starts_with('/') => {
                Ok(self.home(option)?.join(rest.trim_start_matches('/')))
            }
            Some(_) => Err(ConfigError::new(format!(
                "{option}: the home of another user (~NAME) is not supported; write the full \
                 path"
            ))),
            None => Ok(PathBuf::from(text)),
        }
    }

    fn home(&self, option: &str) -> Result<&Path, ConfigError> {
        self.local.home.as_deref().ok_or_else(|| {
            ConfigError::new(format!(
                "{option}: cannot find this user's home directory: write the full path"
            ))
        })
    }

    /// Computes `%C` (misc.c `ssh_connection_hash`).
    fn connection_hash(&self) -> String {
        let text = format!(
            "{}{}{}{}{}",
            self.local.host, self.host, self.port, self.user, self.jump
        );
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        hash.as_ref().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// Returns the value of the environment variable whose name in braces is at the front of `text`,
/// and the rest of `text`.
fn variable<'a>(option: &str, text: &'a str) -> Result<(String, &'a str), ConfigError> {
    let inner = text.strip_prefix('{').unwrap_or(text);
    let Some((name, rest)) = inner.split_once('}') else {
        return Err(ConfigError::new(format!(
            "{option}: '${{' has no closing '}}'"
        )));
    };
    match std::env::var(name) {
        Ok(value) => Ok((value, rest)),
        Err(_) => Err(ConfigError::new(format!(
            "{option}: the environment variable {} is not set",
            name.escape_default()
        ))),
    }
}
