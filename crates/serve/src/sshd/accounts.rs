//! The access policy: admits the user of this process or, for a server run by root, every account
//! of the machine.

use std::ffi::{CString, OsString};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::fs::{Mode, chmod};

use super::ServerSettings;
use super::account::AccountProcessConfig;
use super::confine::EMPTY;
use super::keys::{AuthorizedKeyLookup, AuthorizedKeysFile, LoginKey};
use super::limits::LoginAccountKind;
use super::message::{KeyCheckReply, KeyCheckRequest};
use super::monitor_message_socket::{MonitorMessageSocket, nonsense, readable};
use super::once_keys::OneLoginKeys;
use super::process::ForkedAccountProcess;
use super::refusal::{AccountRefusal, KeyRefusal};
use super::rules::{Account, AccountRules};
use crate::error::AccessPolicyError;

/// Decides which accounts and keys a server admits.
#[derive(Debug)]
pub struct AccessPolicy {
    /// Path pattern as in sshd's AuthorizedKeysFile: %h, %u and %% are expanded, and a relative
    /// path starts at the account's home.
    authorized_keys: PathBuf,
    /// File of certificate authorities whose certificates may log in to every account that they
    /// name.
    authorities: Option<PathBuf>,
    whom: AdmittedAccounts,
}

/// Accounts that a server admits, which follows from its user and from the way it was started.
#[derive(Debug)]
enum AdmittedAccounts {
    /// Admits the user of this process.
    SingleAccount(Account),
    /// Admits the user of this process with keys that are valid for one login each. Input before
    /// the login is read by the `preauth` user if there is one.
    OneLogin {
        account: Account,
        keys: Arc<OneLoginKeys>,
        preauth: Option<(u32, u32)>,
    },
    /// Admits all accounts. Input before the login is read by the `preauth` user.
    All {
        rules: AccountRules,
        preauth: (u32, u32),
    },
}

/// Time limit for reading authorized_keys; a home directory on the network may not respond.
const PATIENCE: Duration = Duration::from_secs(30);
/// Default location of authorized_keys.
const USUAL: &str = ".ssh/authorized_keys";
/// Accounts that may run preauth processes, the preferred one first.
const PREAUTH: [&str; 3] = ["longhaul-preauth", "sshd", "nobody"];

impl AccessPolicy {
    /// Admits all accounts if this process is root's, otherwise the user of this process.
    ///
    /// # Errors
    /// The user of this process has no name, or root finds no account for preauth processes.
    pub fn open(
        authorized_keys: Option<PathBuf>,
        authorities: Option<PathBuf>,
        rules: AccountRules,
    ) -> Result<Self, AccessPolicyError> {
        let authorized_keys = authorized_keys.unwrap_or_else(|| USUAL.into());
        let whom = match is_root_of_all() {
            true => AdmittedAccounts::All {
                rules,
                preauth: preauth_user().ok_or(AccessPolicyError::NoPreauthUser)?,
            },
            false => AdmittedAccounts::SingleAccount(this_user()?),
        };
        if let AdmittedAccounts::All { .. } = whom {
            make_empty().map_err(AccessPolicyError::Empty)?;
        }
        Ok(Self {
            authorized_keys,
            authorities,
            whom,
        })
    }

    /// Admits only the user of this process.
    #[cfg(test)]
    pub(super) fn this(authorized_keys: PathBuf) -> Self {
        Self {
            authorized_keys,
            authorities: None,
            whom: AdmittedAccounts::SingleAccount(
                this_user().expect("whoever runs the tests has a name"),
            ),
        }
    }

    /// Admits only the user of this process, with any of `keys`.
    ///
    /// # Errors
    /// The user has no name, or root finds no account for preauth processes.
    pub(super) fn once(keys: Arc<OneLoginKeys>) -> Result<Self, AccessPolicyError> {
        let preauth = match is_root_of_all() {
            true => Some(preauth_user().ok_or(AccessPolicyError::NoPreauthUser)?),
            false => None,
        };
        Ok(Self {
            authorized_keys: PathBuf::new(),
            authorities: None,
            whom: AdmittedAccounts::OneLogin {
                account: this_user()?,
                keys,
                preauth,
            },
        })
    }

    /// True if some key could be accepted now.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        match &self.whom {
            AdmittedAccounts::OneLogin { keys, .. } => keys.any(now),
            AdmittedAccounts::SingleAccount(_) | AdmittedAccounts::All { .. } => true,
        }
    }

    /// Home directory of the only admitted user; `None` if all accounts are admitted.
    pub fn home(&self) -> Option<&Path> {
        match &self.whom {
            AdmittedAccounts::SingleAccount(account)
            | AdmittedAccounts::OneLogin { account, .. } => Some(&account.home),
            AdmittedAccounts::All { .. } => None,
        }
    }

    /// The file of authorized keys, if all logins use a single file.
    pub fn listed(&self) -> Option<PathBuf> {
        match &self.whom {
            AdmittedAccounts::SingleAccount(account) => Some(self.keys_of(account)),
            AdmittedAccounts::All { .. } => {
                let file = &self.authorized_keys;
                let one = file.is_absolute() && !file.as_os_str().as_bytes().contains(&b'%');
                one.then(|| file.clone())
            }
            AdmittedAccounts::OneLogin { .. } => None,
        }
    }

    /// Name of the only admitted user; `None` if all accounts are admitted.
    pub fn name(&self) -> Option<&str> {
        match &self.whom {
            AdmittedAccounts::SingleAccount(account)
            | AdmittedAccounts::OneLogin { account, .. } => Some(&account.name),
            AdmittedAccounts::All { .. } => None,
        }
    }

    /// User and group ID that a preauth process switches to.
    pub(super) fn preauth_user(&self) -> Option<(u32, u32)> {
        match &self.whom {
            AdmittedAccounts::SingleAccount(_) => None,
            AdmittedAccounts::OneLogin { preauth, .. } => *preauth,
            AdmittedAccounts::All { preauth, .. } => Some(*preauth),
        }
    }

    /// Directory that a preauth process uses as its root (chroot), if it switches users.
    pub(super) fn preauth_folder(&self) -> Option<PathBuf> {
        match &self.whom {
            AdmittedAccounts::SingleAccount(_) => None,
            AdmittedAccounts::All { .. } => Some(EMPTY.into()),
            // No folder is created for a single copy, because it would be left behind.
            AdmittedAccounts::OneLogin { preauth, .. } => preauth.and_then(|_| found_empty()),
        }
    }

    /// True if each login gets a process of its account.
    pub(super) fn has_accounts(&self) -> bool {
        matches!(self.whom, AdmittedAccounts::All { .. })
    }

    /// Returns the authorizer that decides about the keys offered for an account.
    pub(super) fn judge(
        &self,
        user: &[u8],
        client: &TcpStream,
        peer: SocketAddr,
        settings: &ServerSettings,
        template: Option<&MonitorMessageSocket>,
    ) -> io::Result<KeyAuthorizer> {
        let (rules, preauth) = match &self.whom {
            AdmittedAccounts::SingleAccount(account) => {
                let keys = AuthorizedKeysFile::new(self.keys_of(account), self.authorities.clone());
                return Ok(KeyAuthorizer::here(
                    account,
                    AuthorizedKeys::Listed(keys),
                    user,
                    peer,
                ));
            }
            AdmittedAccounts::OneLogin { account, keys, .. } => {
                let keys = AuthorizedKeys::Once(Arc::clone(keys));
                return Ok(KeyAuthorizer::here(account, keys, user, peer));
            }
            AdmittedAccounts::All { rules, preauth } => (rules, preauth),
        };
        let (account, wrong) = match rules.account(user) {
            Ok(account) => (account, None),
            // A missing account costs as much work as an existing one, so that timing does not tell
            // them apart.
            Err(why) => {
                let nobody = Account {
                    name: "nobody".to_owned(),
                    uid: preauth.0,
                    gid: preauth.1,
                    home: "/".into(),
                };
                (nobody, Some(Arc::new(why)))
            }
        };
        let authorized_keys = match &wrong {
            None => self.keys_of(&account),
            Some(_) => Path::new(EMPTY).join("authorized_keys"),
        };
        let groups = match &wrong {
            None => groups(&account)?,
            Some(_) => Vec::new(),
        };
        let lacking = || io::Error::other("internal error: the fork server is not running");
        let process = ForkedAccountProcess::of(template.ok_or_else(lacking)?, client)?;
        process.link().send_task(&AccountProcessConfig {
            name: account.name.clone(),
            uid: account.uid,
            gid: account.gid,
            groups,
            home: account.home.clone(),
            authorized_keys,
            authorities: self.authorities.clone(),
            from: peer.ip(),
            host_keys: settings.host_key_blobs(),
            algorithms: settings.algorithms.clone(),
            runs_programs: settings.served.runs_programs() && wrong.is_none(),
            nobody: wrong.is_some(),
        })?;
        Ok(KeyAuthorizer::Process(ProcessKeyAuthorizer {
            process,
            account,
            wrong,
        }))
    }

    fn keys_of(&self, account: &Account) -> PathBuf {
        let expanded = expand(&self.authorized_keys, account);
        account.home.join(expanded)
    }
}

/// True if this process is root and can become other users. Root in a user namespace that maps only
/// root cannot.
fn is_root_of_all() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let groups = std::fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    let one = map.split_whitespace().nth(2) == Some("1") && map.lines().count() == 1;
    Uid::effective().is_root() && !one && groups.trim() != "deny"
}

/// Replaces %h, %u and %% in `pattern` (sshd_config(5), TOKENS).
pub(super) fn expand(pattern: &Path, account: &Account) -> PathBuf {
    let mut out = Vec::new();
    let mut bytes = pattern.as_os_str().as_bytes().iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match bytes.next() {
                Some(b'h') => out.extend_from_slice(account.home.as_os_str().as_bytes()),
                Some(b'u') => out.extend_from_slice(account.name.as_bytes()),
                Some(other) => out.push(*other),
                None => out.push(b'%'),
            },
            byte => out.push(*byte),
        }
    }
    OsString::from_vec(out).into()
}

/// Returns the first token of a pattern that [`expand`] does not know: `%` with the character
/// behind it.
pub fn unknown_token(pattern: &Path) -> Option<String> {
    let pattern = pattern.to_string_lossy();
    let mut chars = pattern.chars();
    while chars.any(|c| c == '%') {
        match chars.next() {
            Some('h' | 'u' | '%') => {}
            other => return Some(other.map_or_else(|| "%".to_owned(), |c| format!("%{c}"))),
        }
    }
    None
}

fn this_user() -> Result<Account, AccessPolicyError> {
    let found = User::from_uid(Uid::effective()).ok().flatten();
    let user = found.ok_or(AccessPolicyError::Nameless)?;
    Ok(Account {
        name: user.name,
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        home: user.dir,
    })
}

/// All group IDs that the account belongs to.
fn groups(account: &Account) -> io::Result<Vec<u32>> {
    let name = CString::new(account.name.as_str())?;
    let groups = getgrouplist(&name, Gid::from_raw(account.gid))?;
    Ok(groups.into_iter().map(Gid::as_raw).collect())
}

fn preauth_user() -> Option<(u32, u32)> {
    let mut found = PREAUTH
        .iter()
        .filter_map(|name| User::from_name(name).ok()?);
    let user = found.find(|user| !user.uid.is_root())?;
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

/// Creates [`EMPTY`], a directory that only root can write to.
fn make_empty() -> io::Result<()> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(EMPTY);
    made?;
    chmod(EMPTY, Mode::from_raw_mode(0o755))?;
    let meta = std::fs::symlink_metadata(EMPTY)?;
    let roots = std::os::unix::fs::MetadataExt::uid(&meta) == 0;
    match meta.is_dir() && roots && std::fs::read_dir(EMPTY)?.next().is_none() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{EMPTY}: must belong to root and be empty, since connections are confined in it \
             before the login"
        ))),
    }
}

/// Empty directories that distributions provide for sshd's preauth processes.
const OF_SSHD: [&str; 4] = [
    EMPTY,
    "/run/sshd",
    "/usr/share/empty.sshd",
    "/var/empty/sshd",
];

/// Finds an empty directory that only root can write to.
fn found_empty() -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let empty = |path: &&Path| {
        let roots = std::fs::symlink_metadata(path)
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o022 == 0);
        roots && std::fs::read_dir(path).is_ok_and(|mut list| list.next().is_none())
    };
    let mut folders = OF_SSHD.iter().map(Path::new);
    folders.find(empty).map(PathBuf::from)
}

/// Decides about the keys of one account for one connection.
#[derive(Debug)]
pub(super) enum KeyAuthorizer {
    /// Keys are checked in this process, which has only the rights of the account.
    Local(Box<LocalKeyAuthorizer>),
    /// Keys are checked by the account's process.
    Process(ProcessKeyAuthorizer),
}

/// Checks keys in the server's own process, for a server that has only the rights of one account.
#[derive(Debug)]
pub(super) struct LocalKeyAuthorizer {
    keys: AuthorizedKeys,
    account: Account,
    from: IpAddr,
    /// The client names another account, so that every key is refused.
    is_other: bool,
}

/// Keys that are accepted for a login.
#[derive(Debug)]
enum AuthorizedKeys {
    Listed(AuthorizedKeysFile),
    Once(Arc<OneLoginKeys>),
}

/// Has keys checked by a process with the rights of the account, which reads its authorized_keys.
/// For an account that may not log in, an unprivileged process does the same work, so that the time
/// of the answer does not reveal it.
#[derive(Debug)]
pub(super) struct ProcessKeyAuthorizer {
    process: ForkedAccountProcess,
    account: Account,
    /// Reason for refusing every key.
    wrong: Option<Arc<AccountRefusal>>,
}

impl KeyAuthorizer {
    fn here(account: &Account, keys: AuthorizedKeys, user: &[u8], peer: SocketAddr) -> Self {
        Self::Local(Box::new(LocalKeyAuthorizer {
            keys,
            from: peer.ip(),
            account: account.clone(),
            is_other: user != account.name.as_bytes(),
        }))
    }

    /// Returns the kind of account that logs in, which decides how many connections it may have.
    pub(super) fn claim(&self) -> LoginAccountKind {
        match self {
            Self::Process(judge) if judge.account.uid == 0 => LoginAccountKind::Root,
            Self::Process(_) => LoginAccountKind::Account,
            Self::Local(_) => LoginAccountKind::OnlyAccount,
        }
    }

    pub(super) fn account(&self) -> &Account {
        match self {
            Self::Local(here) => &here.account,
            Self::Process(judge) => &judge.account,
        }
    }

    /// Returns the account process, if each login has one.
    pub(super) fn into_process(self) -> Option<ForkedAccountProcess> {
        match self {
            Self::Local(_) => None,
            Self::Process(judge) => Some(judge.process),
        }
    }

    /// Decides about a key; the inner error is the reason for the refusal.
    ///
    /// # Errors
    /// The account process does not answer.
    pub(super) fn decide(
        &self,
        check: &KeyCheckRequest<'_>,
    ) -> io::Result<Result<LoginKey, KeyRefusal>> {
        match self {
            Self::Local(here) => {
                let wrong = || KeyRefusal::OtherAccount(here.account.name.clone());
                let question = AuthorizedKeyLookup::new(&here.account.name, here.from, check);
                let answer = match &here.keys {
                    AuthorizedKeys::Listed(keys) => keys.answer(&question),
                    // A one-login key is not used up by a client that names another user.
                    AuthorizedKeys::Once(_) if here.is_other => Err(wrong()),
                    AuthorizedKeys::Once(keys) => keys.answer(Instant::now(), &question),
                };
                Ok(if here.is_other { Err(wrong()) } else { answer })
            }
            Self::Process(account) => {
                let link = account.process.link();
                link.send(&check.to_bytes())?;
                let [said] = readable([link.as_fd()], Some(Instant::now() + PATIENCE))?;
                if !said {
                    // A later answer would be taken as the answer to the next question.
                    let late = "reading the account's authorized_keys took too long";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, late));
                }
                let message = link.receive()?;
                let answer = KeyCheckReply::decode(&message).map_err(nonsense)?;
                if let Some(wrong) = &account.wrong {
                    return Ok(Err(KeyRefusal::Account(Arc::clone(wrong))));
                }
                match answer.allowed {
                    true => {
                        let entrant = serde_json::from_slice(answer.entrant);
                        Ok(Ok(entrant.map_err(io::Error::other)?))
                    }
                    false => {
                        let why = String::from_utf8_lossy(answer.why).into_owned();
                        Ok(Err(KeyRefusal::ByProcess(why)))
                    }
                }
            }
        }
    }
}
