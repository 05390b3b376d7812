//! Sends this binary to a machine of the same platform that has no longhaul.
//!
//! The binary is stored in a folder of the account with mode 0700, under a name that contains its
//! checksum; the command that starts it verifies the checksum each time.
//! docs/design/0008-both-ends.md.

use std::env;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};

use crate::cancel::CancelToken;
use crate::connect::ConnectError;
use crate::copy::{self, CopyLocation, CopyOptions, CopyRequest, HostId, SessionConnector};
use crate::report::{CopyEvent, CopyOutcome, ProgressCounters};
use crate::session::{FarEndQuerySession, QuestionError, StallNotice};

/// The prefix of the result line, which distinguishes it from output of startup files.
const LINE: &str = "longhaul-place ";

/// Longhaul binary at the far end, found there or sent by this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLonghaulBinary {
    /// The SHA-256 of the binary in hexadecimal.
    pub sum: String,
    /// True if this run sent the binary.
    pub sent: bool,
}

/// The far end's report about the place for the binary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RemoteBinaryReport {
    state: String,
    has: String,
    platform: String,
    folder: Vec<u8>,
}

/// Reason why the program was not sent or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootstrapError {
    /// The host cannot be reached or copied to; the sentence begins with its name.
    Connection(ConnectError),
    /// The connection was lost while longhaul asked or sent something, without the host.
    Lost(String),
    /// The host runs no commands for this account.
    NoCommands,
    /// The user has interrupted the run.
    Interrupted,
    /// Another failure, without the host.
    Other(String),
}

impl BootstrapError {
    /// Returns the sentence with the host's name at its start.
    pub fn at(self, host: &str) -> String {
        match self {
            Self::Connection(error) => error.into(),
            Self::Lost(why) | Self::Other(why) => format!("{host}: {why}"),
            Self::Interrupted => format!("{host}: interrupted"),
            Self::NoCommands => format!(
                "{host}: longhaul was not installed: this account may not run commands there (SFTP \
                 only)"
            ),
        }
    }

    /// Returns the warning of a copy that goes on without longhaul at this host.
    pub fn warning(self, host: &str) -> String {
        match self {
            Self::NoCommands => format!(
                "{}. The copy goes on over plain SFTP; leave out --bootstrap for this host",
                self.at(host)
            ),
            error => {
                let why = error.at(host);
                let why = why.strip_prefix(&format!("{host}: ")).unwrap_or(&why);
                format!(
                    "{host}: longhaul could not be installed there, and the copy goes on over \
                     plain SFTP: {why}"
                )
            }
        }
    }
}

impl From<ConnectError> for BootstrapError {
    fn from(error: ConnectError) -> Self {
        Self::Connection(error)
    }
}

impl From<QuestionError> for BootstrapError {
    fn from(error: QuestionError) -> Self {
        match error {
            QuestionError::Lost(why) => Self::Lost(why),
            QuestionError::Interrupted => Self::Interrupted,
            error => Self::Other(error.into()),
        }
    }
}

impl From<String> for BootstrapError {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl From<&str> for BootstrapError {
    fn from(why: &str) -> Self {
        Self::Other(why.to_owned())
    }
}

/// Returns the SHA-256 of the running program in hexadecimal.
pub fn own_sum() -> io::Result<String> {
    sum_of(&env::current_exe()?)
}

fn sum_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => context.update(&buffer[..n]),
        }
    }
    let sum = context.finish();
    Ok(sum.as_ref().iter().map(|b| format!("{b:02x}")).collect())
}

/// Sends this program to `host`, unless it is already there.
///
/// # Errors
/// No usable binary is left on the host.
pub fn place(
    host: HostId,
    connect: &dyn SessionConnector,
    cancel: &CancelToken,
) -> Result<RemoteLonghaulBinary, BootstrapError> {
    send_if_missing(host, connect, cancel).map_err(|error| unless_interrupted(cancel, error))
}

/// Returns the error of work that ended, which a cancel explains whatever failed because of it.
fn unless_interrupted(cancel: &CancelToken, error: BootstrapError) -> BootstrapError {
    match cancel.is_cancelled() {
        true => BootstrapError::Interrupted,
        false => error,
    }
}

fn send_if_missing(
    host: HostId,
    connect: &dyn SessionConnector,
    cancel: &CancelToken,
) -> Result<RemoteLonghaulBinary, BootstrapError> {
    let own = env::current_exe().and_then(|path| Ok((sum_of(&path)?, path)));
    let (sum, path) =
        own.map_err(|e| format!("cannot read the executable file of this longhaul: {e}"))?;
    let found = look(host, connect, cancel, &sum)?;
    if found.has == "yes" {
        return Ok(RemoteLonghaulBinary { sum, sent: false });
    }
    send(host, connect, cancel, (path, &sum), found.folder)?;
    match look(host, connect, cancel, &sum)?.has.as_str() {
        // Without sha256sum, the program verifies itself when it is started.
        "yes" | "unknown" => Ok(RemoteLonghaulBinary { sum, sent: true }),
        _ => Err(
            "the program on the host has a wrong checksum after it was sent: run the command again"
                .into(),
        ),
    }
}

/// Removes the binaries that [`place`] left on `host`. Returns false if there are none.
///
/// # Errors
/// It is not known if they were removed.
pub fn remove(
    host: HostId,
    connect: &dyn SessionConnector,
    cancel: &CancelToken,
) -> Result<bool, BootstrapError> {
    let script = "c=${XDG_CACHE_HOME:-$HOME/.cache}/longhaul; echo; \
                  if [ -e \"$c/bin\" ] || [ -L \"$c/bin\" ]; \
                  then rm -rf \"$c/bin\" && echo longhaul-removed; else echo longhaul-absent; fi";
    let said = ask(host, connect, cancel, script);
    let said = said.map_err(|error| unless_interrupted(cancel, error))?;
    let says = |word: &str| said.lines().any(|line| line == word);
    match (says("longhaul-removed"), says("longhaul-absent")) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(
            "cannot tell if longhaul was removed from this host: the account may permit only SFTP, \
             or the removal failed. Log in and delete ~/.cache/longhaul/bin"
                .into(),
        ),
    }
}

/// Runs a script on the host and returns its output.
fn ask(
    host: HostId,
    connect: &dyn SessionConnector,
    cancel: &CancelToken,
    script: &str,
) -> Result<String, BootstrapError> {
    let session = connect.connect(host, None, cancel)?;
    let tell = |notice: &StallNotice| connect.warn(host, notice.to_string());
    Ok(FarEndQuerySession::new(session, cancel.clone()).ask(script, &tell)?)
}

fn look(
    host: HostId,
    connect: &dyn SessionConnector,
    cancel: &CancelToken,
    sum: &str,
) -> Result<RemoteBinaryReport, BootstrapError> {
    let said = ask(host, connect, cancel, &script(sum))?;
    let found = read(&said).ok_or(BootstrapError::NoCommands)?;
    match found.state.as_str() {
        "ok" => {}
        "mkdir" => {
            return Err(
                "cannot create ~/.cache/longhaul/bin on the host: is the home full or read-only?"
                    .into(),
            );
        }
        "symlink" => return Err(
            "~/.cache/longhaul/bin on the host is or contains a symbolic link, which is not \
             followed: replace it with a directory"
                .into(),
        ),
        "owner" => {
            return Err(
                "~/.cache/longhaul/bin on the host belongs to another user: remove it".into(),
            );
        }
        "noexec" => return Err(
            "the host does not start programs from the home (mounted noexec?): install longhaul on \
             its PATH instead"
                .into(),
        ),
        _ => {
            return Err(
                "cannot write to ~/.cache/longhaul/bin on the host: is the home full or read-only?"
                    .into(),
            );
        }
    }
    let ours = platform();
    match found.platform == ours {
        true => Ok(found),
        false => Err(format!(
            "this program is for {ours}, the host is {}: install longhaul there by other means",
            found.platform
        )
        .into()),
    }
}

/// Returns the output of `uname -sm` for this machine.
fn platform() -> String {
    let here = rustix::system::uname();
    let text = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
    format!("{} {}", text(here.sysname()), text(here.machine()))
}

/// Returns the script that creates the folder and reports its state. It removes temporaries that a
/// killed run has left: nothing was written to them for ten minutes, so that one which another run
/// is sending now stays. The script contains no single quote, backslash or exclamation mark: see
/// `connect/remote_use.rs`.
fn script(sum: &str) -> String {
    format!(
        "umask 077; c=${{XDG_CACHE_HOME:-$HOME/.cache}}; d=$c/longhaul/bin; s=ok; h=no; \
         f=$d/longhaul-{sum}; mkdir -p \"$d\" 2>/dev/null || s=mkdir; \
         if [ $s = ok ]; then \
         for p in \"$c\" \"$c/longhaul\" \"$d\"; do \
         if [ -L \"$p\" ]; then s=symlink; elif [ -O \"$p\" ]; then :; else s=owner; fi; done; fi; \
         if [ $s = ok ]; then chmod 700 \"$c/longhaul\" \"$d\"; \
         find \"$d\" -type f -name \".longhaul-*.longhaul\" -mmin +10 -exec rm -f {{}} + 2>/dev/null; \
         t=$d/try.$$; \
         if (echo exit 0 >\"$t\") 2>/dev/null; then chmod 700 \"$t\"; \
         \"$t\" 2>/dev/null || s=noexec; else s=write; fi; rm -f \"$t\"; fi; \
         if [ -x \"$f\" ]; then case `sha256sum <\"$f\" 2>/dev/null` in \
         {sum}*) h=yes;; \"\") h=unknown;; esac; fi; \
         echo; echo longhaul-place $s $h `uname -sm`; echo \"$d\""
    )
}

fn read(said: &str) -> Option<RemoteBinaryReport> {
    let mut lines = said.lines();
    let line = lines.find_map(|line| line.strip_prefix(LINE))?;
    let mut words = line.splitn(3, ' ');
    let found = RemoteBinaryReport {
        state: words.next()?.to_owned(),
        has: words.next()?.to_owned(),
        platform: words.next()?.trim().to_owned(),
        folder: lines.next()?.as_bytes().to_vec(),
    };
    let plain = |text: &str| text.bytes().all(|b| matches!(b, b' '..=b'~'));
    let sane = plain(&found.platform) && found.folder.starts_with(b"/");
    sane.then_some(found)
}

fn send(
    host: HostId,
    connect: &dyn SessionConnector,
    cancel: &CancelToken,
    (path, sum): (PathBuf, &str),
    folder: Vec<u8>,
) -> Result<(), BootstrapError> {
    let target = [&folder[..], b"/longhaul-", sum.as_bytes()].concat();
    let request = CopyRequest {
        sources: vec![CopyLocation::Local(path)],
        target: CopyLocation::Remote { host, path: target },
        // The copy goes to an exclusively created temporary with a random name and is durable
        // before its rename.
        options: CopyOptions {
            fsync: true,
            ..CopyOptions::default()
        },
    };
    let summary = copy::run(
        request,
        connect,
        &ProgressCounters::default(),
        &mut |event| {
            if let CopyEvent::Warning { message, .. } = event {
                connect.warn(host, message.clone());
            }
        },
        cancel,
    );
    let first = summary.failures.into_iter().next();
    match (summary.outcome, first) {
        (CopyOutcome::Complete, _) => Ok(()),
        (CopyOutcome::NoConnection(why), _) => Err(ConnectError::unreachable(why).into()),
        (CopyOutcome::Misconfigured(why), _) => Err(ConnectError::configuration(why).into()),
        (_, Some(failure)) => {
            Err(format!("cannot send the program to the host: {}", failure.reason).into())
        }
        (_, None) => Err(BootstrapError::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: "d: longhaul could not be installed there, and the copy goes on over plain SFTP: the host runs
    /// no commands for this account (...): longhaul cannot run there, and copies need no --bootstrap".
    #[test]
    fn an_account_of_sftp_only_was_told_twice_that_nothing_was_installed() {
        assert_eq!(
            BootstrapError::NoCommands.warning("d"),
            "d: longhaul was not installed: this account may not run commands there (SFTP only). The \
             copy goes on over plain SFTP; leave out --bootstrap for this host"
        );
        let full = BootstrapError::from("the home is full").warning("d");
        assert!(full.ends_with("goes on over plain SFTP: the home is full"));
    }

    /// Regression: "c: c: cannot connect to port 22".
    #[test]
    fn the_host_is_named_once() {
        let unreachable = ConnectError::unreachable("c: cannot connect");
        assert_eq!(
            BootstrapError::from(unreachable).at("u@c"),
            "c: cannot connect"
        );
        let noexec = BootstrapError::from("the host does not start programs");
        assert_eq!(noexec.at("u@c"), "u@c: the host does not start programs");
    }

    #[test]
    fn the_line_that_counts_is_found_behind_a_greeting() {
        let said = "Welcome!\nlonghaul-place\n\nlonghaul-place ok no Linux x86_64\n/home/u/b\n";
        let found = read(said).unwrap();
        assert_eq!((found.state.as_str(), found.has.as_str()), ("ok", "no"));
        assert_eq!(found.platform, "Linux x86_64");
        assert_eq!(found.folder, b"/home/u/b");
        for bad in [
            "",
            "longhaul-place ok no Linux x86_64\n",
            "longhaul-place ok no Linux x86_64\nrelative\n",
            "longhaul-place ok no L\x1b[2J\n/home\n",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_script_is_the_same_for_every_shell() {
        let script = script(&"a1".repeat(32));
        assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
    }

    /// Runs the script in this home.
    fn run_script(home: &Path) -> RemoteBinaryReport {
        let output = std::process::Command::new("sh")
            .args(["-c", &script(&"0".repeat(64))])
            .env("HOME", home)
            .env_remove("XDG_CACHE_HOME")
            .output()
            .unwrap();
        read(&String::from_utf8_lossy(&output.stdout)).unwrap()
    }

    /// Bug: the part of a program that a killed bootstrap had sent stayed in the folder for ever.
    #[test]
    fn a_partial_program_of_a_killed_run_was_never_removed() {
        let home = tempfile::tempdir().unwrap();
        run_script(home.path());
        let folder = home.path().join(".cache/longhaul/bin");
        let place = |name: &str, minutes: u64| {
            let file = File::create(folder.join(name)).unwrap();
            let age = std::time::Duration::from_secs(60 * minutes);
            file.set_modified(std::time::SystemTime::now() - age)
                .unwrap();
        };
        place(".longhaul-00ff.0123456789.longhaul", 12);
        place(".longhaul-00ff.9876543210.longhaul", 1);
        place("longhaul-00ff", 12);
        run_script(home.path());
        let entries = std::fs::read_dir(&folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<_> = names.collect();
        left.sort();
        assert_eq!(
            left,
            [".longhaul-00ff.9876543210.longhaul", "longhaul-00ff"],
            "one that is being sent and an installed program stay"
        );
    }

    #[test]
    fn a_folder_that_is_not_the_accounts_own_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let run = || run_script(home.path());
        let found = run();
        assert_eq!((found.state.as_str(), found.has.as_str()), ("ok", "no"));
        assert_eq!(found.platform, platform());
        let folder = home.path().join(".cache/longhaul/bin");
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/tmp", &folder).unwrap();
        assert_eq!(run().state, "symlink");
        std::fs::remove_dir_all(home.path().join(".cache")).unwrap();
        std::fs::write(home.path().join(".cache"), "").unwrap();
        assert_eq!(run().state, "mkdir");
    }
}
