//! Rules about which accounts of this machine may log in to a server run by root.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::unistd::User;
use zeroize::Zeroizing;

use super::refusal::AccountRefusal;

/// An account that may log in with its keys.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: PathBuf,
}

/// Settings of the administrator about which accounts may log in. Locked and expired accounts of
/// shadow(5) never may.
#[derive(Clone, Debug, Default)]
pub struct AccountRules {
    /// Accounts whose shell is named `nologin` or `false` may log in.
    pub nologin_shells: bool,
    /// The only accounts that may log in; all if `None`.
    pub users: Option<Vec<String>>,
}

/// Longest name of an account in bytes; Linux allows no more than 256 (useradd).
const LONGEST: usize = 256;
/// Files whose presence means that only root may log in (nologin(5), pam_nologin(8)).
const NOLOGIN: [&str; 2] = ["/etc/nologin", "/run/nologin"];
/// Names of shells that only end the session.
const ENDING: [&str; 2] = ["nologin", "false"];
const SECONDS_OF_A_DAY: i64 = 86_400;

impl AccountRules {
    /// Looks up an account by name and checks the rules.
    ///
    /// # Errors
    /// The account may not log in or does not exist.
    pub(super) fn account(&self, name: &[u8]) -> Result<Account, AccountRefusal> {
        let name = plain(name).ok_or(AccountRefusal::Name)?;
        let found = User::from_name(name).map_err(AccountRefusal::Unreadable)?;
        let user = found.filter(|user| user.name == name);
        let user = user.ok_or(AccountRefusal::Missing)?;
        if self
            .users
            .as_ref()
            .is_some_and(|users| !users.contains(&user.name))
        {
            return Err(AccountRefusal::NotAmongUsers);
        }
        self.check_shell(&user.shell)?;
        let shadow = match fs::read("/etc/shadow") {
            Ok(shadow) => Zeroizing::new(shadow),
            Err(e) if e.kind() == ErrorKind::NotFound => Zeroizing::default(),
            Err(e) => return Err(AccountRefusal::Shadow(e)),
        };
        let today = Timestamp::now().as_second() / SECONDS_OF_A_DAY;
        check_shadow(&shadow, name, today)?;
        if !user.uid.is_root() && NOLOGIN.iter().any(|file| Path::new(file).exists()) {
            return Err(AccountRefusal::Nologin);
        }
        Ok(Account {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            home: user.dir,
        })
    }

    fn check_shell(&self, shell: &Path) -> Result<(), AccountRefusal> {
        // An empty field means /bin/sh (passwd(5)).
        let shell = match shell.as_os_str().is_empty() {
            true => Path::new("/bin/sh"),
            false => shell,
        };
        let ends = shell
            .file_name()
            .is_some_and(|n| ENDING.iter().any(|e| n == *e));
        if ends && !self.nologin_shells {
            return Err(AccountRefusal::NologinShell(shell.to_owned()));
        }
        let runs = fs::metadata(shell)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        match runs {
            true => Ok(()),
            false => Err(AccountRefusal::NoShell(shell.to_owned())),
        }
    }
}

/// Accepts names that can be an account's and have no special meaning elsewhere.
fn plain(name: &[u8]) -> Option<&str> {
    let fits = (1..=LONGEST).contains(&name.len())
        && name
            .iter()
            .all(|b| b.is_ascii_graphic() && !b"/:".contains(b))
        && !name.starts_with(b"-")
        && ![&b"."[..], b".."].contains(&name);
    std::str::from_utf8(name).ok().filter(|_| fits)
}

/// Checks the account in shadow(5), with sshd's definition of a locked account
/// (LOCKED_PASSWD_PREFIX). An account of a directory service has no line and counts as neither
/// locked nor expired.
fn check_shadow(shadow: &[u8], name: &str, today: i64) -> Result<(), AccountRefusal> {
    // Other lines may contain arbitrary bytes.
    let mut lines = shadow
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':'));
    let of_it = |field: &[u8]| field == name.as_bytes();
    let Some(mut fields) = lines.find_map(|mut fields| of_it(fields.next()?).then_some(fields))
    else {
        return Ok(());
    };
    if fields
        .next()
        .is_some_and(|password| password.starts_with(b"!"))
    {
        return Err(AccountRefusal::Locked);
    }
    // Fields after the password: last change, minimum, maximum, warning, inactivity, expiry.
    let expires = fields
        .nth(5)
        .and_then(|day| std::str::from_utf8(day).ok()?.parse::<i64>().ok());
    match expires.is_some_and(|day| day >= 0 && day <= today) {
        true => Err(AccountRefusal::Expired),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_nothing_elsewhere() {
        for name in ["alice", "a.b-c_d", "machine$", "domain\\user", "a@b"] {
            assert_eq!(plain(name.as_bytes()), Some(name));
        }
        let long = [b'a'; LONGEST + 1];
        for name in [
            &b""[..],
            b"-x",
            b"..",
            b"a/b",
            b"a:b",
            b"a b",
            b"a\n",
            b"\xff",
            &long,
        ] {
            assert_eq!(plain(name), None);
        }
    }

    #[test]
    fn locked_and_expired_accounts_are_not_entered() {
        let shadow = b"m\xfcller:*:1:0:99999:7:::\n\
                      root:*:1:0:99999:7:::\n\
                      locked:!:1:0:99999:7:::\n\
                      also:!$y$hash:1:0:99999:7:::\n\
                      expired:*:1:0:99999:7::100:\n\
                      valid:*:1:0:99999:7::101:\n\
                      cut:x\n";
        for (name, allowed) in [
            ("root", true),
            ("locked", false),
            ("also", false),
            ("expired", false),
            ("valid", true),
            ("cut", true),
            ("elsewhere", true),
        ] {
            assert_eq!(check_shadow(shadow, name, 100).is_ok(), allowed, "{name}");
        }
    }

    #[test]
    fn shells_that_end_sessions_end_these_too() {
        let usual = AccountRules::default();
        assert!(usual.check_shell(Path::new("/bin/sh")).is_ok());
        assert!(usual.check_shell(Path::new("")).is_ok());
        for shell in [
            "/bin/false",
            "/usr/sbin/nologin",
            "/no/such/shell",
            "/etc/passwd",
            "/",
        ] {
            assert!(usual.check_shell(Path::new(shell)).is_err(), "{shell}");
        }
        let lenient = AccountRules {
            nologin_shells: true,
            users: None,
        };
        assert!(lenient.check_shell(Path::new("/bin/false")).is_ok());
    }
}
