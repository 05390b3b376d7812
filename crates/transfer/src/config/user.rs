use std::fs;
use std::path::PathBuf;

use crate::operand::valid_user;

/// The person whose files and names are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalUser {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Home directory; `None` when there is none.
    pub home: Option<PathBuf>,
    /// This machine's name.
    pub host: String,
}

impl LocalUser {
    /// The user that runs this.
    ///
    /// As OpenSSH does, `~` is what the password file says and not $HOME, so that both look
    /// into the same `~/.ssh`; $HOME stands in for users that it does not list.
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
            // The name may go into a ProxyCommand (%u, %r).
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
