//! The local user: name, user ID, home directory and host name.

use std::fs;
use std::path::PathBuf;

use crate::operand::valid_user;

/// The local user whose files and name are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalUser {
    /// The login name.
    pub name: String,
    /// The user ID.
    pub uid: u32,
    /// The home directory; `None` if there is none.
    pub home: Option<PathBuf>,
    /// This machine's host name.
    pub host: String,
}

impl LocalUser {
    /// Returns the user that runs this process.
    ///
    /// As in OpenSSH, `~` is the home directory of the password file, not $HOME, so that both use
    /// the same `~/.ssh`; $HOME is the fallback for users that are not listed.
    pub fn current() -> Self {
        let uid = rustix::process::getuid().as_raw();
        let listed = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let listed = listed.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let id: u32 = fields.nth(1)?.parse().ok()?;
            let home = fields.nth(2)?;
            (id == uid).then(|| (name.to_owned(), PathBuf::from(home)))
        });
        let (name, home) = match listed {
            Some((name, home)) => (Some(name), Some(home)),
            None => (None, std::env::home_dir()),
        };
        let variable = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
        Self {
            // The name may become part of a ProxyCommand (%u, %r).
            name: name
                .or_else(|| variable().ok().filter(|name| valid_user(name)))
                .unwrap_or_else(|| uid.to_string()),
            uid,
            home: home.filter(|h| h.is_absolute()),
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        }
    }
}
