//! Checks values of the command line before another program gets them.
//!
//! `ssh -G` prints one line per setting, so a newline in a value would read as another setting (a
//! ProxyCommand, for instance), and tokens such as `%r` put names into commands that a shell runs.
//! OpenSSH refuses both in names (ssh.c `main`; CVE-2023-51385, CVE-2025-61984).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::{ConfigError, HostConfig, HostConfigQuery, given};
use crate::escape;
use crate::operand::{valid_host, valid_user};

/// Refuses control characters in every value, and names with shell metacharacters.
///
/// # Errors
/// One sentence with the flag and the value, escaped.
pub(super) fn query(query: &HostConfigQuery) -> Result<(), ConfigError> {
    let os = |name, value| control(name, value);
    if let Some(file) = &query.file {
        os("-F", file.as_os_str())?;
    }
    for identity in &query.identities {
        os("-i", identity.as_os_str())?;
    }
    for option in &query.options {
        os("-o", option.as_ref())?;
    }
    for (name, value) in [("-J", &query.jump), ("-c", &query.cipher)] {
        if let Some(value) = value {
            os(name, value.as_ref())?;
        }
    }
    host("host", &query.host)?;
    if let Some(name) = &query.user {
        user("user", name)?;
    }
    // ssh 10.1 and later refuses such a HostName itself, but only after evaluating the files.
    for (keyword, value) in query.options.iter().filter_map(|o| given::split(o)) {
        match keyword.as_str() {
            "user" => user("-o User", value)?,
            // Tokens stand for names that are checked themselves.
            "hostname" => match value.replace("%%", "").replace("%h", "").replace("%n", "") {
                rest if rest.is_empty() => {}
                rest => host("-o HostName", &rest)?,
            },
            "hostkeyalias" => host("-o HostKeyAlias", value)?,
            _ => {}
        }
    }
    Ok(())
}

/// Refuses names with shell metacharacters in the evaluated configuration.
pub(super) fn names(config: &HostConfig) -> Result<(), ConfigError> {
    host("HostName", &config.host_name)?;
    // ssh_config may name any literal user, but no command may contain a newline.
    control("User", config.user.as_ref())?;
    control("HostKeyAlias", config.host_key_name().as_ref())
}

fn control(name: &str, value: &OsStr) -> Result<(), ConfigError> {
    match value.as_bytes().iter().any(u8::is_ascii_control) {
        false => Ok(()),
        true => Err(ConfigError::new(format!(
            "{name} {}: the value contains a control character",
            escape::os(value)
        ))),
    }
}

fn host(name: &str, value: &str) -> Result<(), ConfigError> {
    match valid_host(value) {
        true => Ok(()),
        false => Err(ConfigError::new(format!(
            "{name} {}: not a valid host name",
            escape::name(value.as_bytes())
        ))),
    }
}

fn user(name: &str, value: &str) -> Result<(), ConfigError> {
    match valid_user(value) {
        true => Ok(()),
        false => Err(ConfigError::new(format!(
            "{name} {}: the user name contains characters that are not allowed on the command \
             line",
            escape::name(value.as_bytes())
        ))),
    }
}
