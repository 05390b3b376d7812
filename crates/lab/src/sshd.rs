//! A throwaway SSH server on the far side: OpenSSH's, or this program's if that is not installed.
//! Includes its keys, its configuration, and files for clients.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{getgid, getuid};

use crate::error::LabError;
use crate::world::side::FAR;

/// Port of the server.
pub(crate) const PORT: u16 = 22;

/// Path of the running program.
const OURSELVES: &str = "/proc/self/exe";
/// Hidden subcommand that creates a key; a file name follows.
pub const KEY: &str = "lab-key";

/// The keys of server and clients, and their folder.
#[derive(Clone, Debug)]
pub(crate) struct SshdKeys {
    folder: PathBuf,
    /// Login name: the user of the lab.
    user: String,
}

impl SshdKeys {
    /// Generates keys of a host and a user, in the lab's folder.
    pub(crate) fn generate(folder: &Path) -> Result<Self, LabError> {
        let keys = Self {
            folder: folder.to_owned(),
            user: user()?,
        };
        for name in ["host_key", "user_key"] {
            let done = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", "longhaul lab", "-f"])
                .arg(folder.join(name))
                .stdin(Stdio::null())
                .status();
            match done {
                Ok(status) if status.success() => {}
                Ok(status) => return Err(LabError(format!("ssh-keygen failed ({status})"))),
                // OpenSSH may not be installed.
                Err(_) => make_key(&folder.join(name))?,
            }
        }
        let host = keys.read("host_key.pub")?;
        let mut known_hosts = String::new();
        let names = [
            FAR.name.to_owned(),
            format!("{}4", FAR.name),
            format!("{}6", FAR.name),
            FAR.v4.to_string(),
            FAR.v6.to_string(),
        ];
        for name in names {
            let _ = writeln!(known_hosts, "{name} {}", host.trim());
        }
        keys.write("known_hosts", &known_hosts)?;
        keys.write("authorized_keys", &keys.read("user_key.pub")?)?;
        keys.write("ssh_config", &keys.client_config())?;
        Ok(keys)
    }

    /// The block of ssh_config(5) for the far side.
    pub(crate) fn client_config(&self) -> String {
        format!(
            "Host {far} {far}4 {far}6 {v4} {v6}\n\
             User {user}\n\
             Port {PORT}\n\
             IdentityFile {key}\n\
             IdentitiesOnly yes\n\
             UserKnownHostsFile {known_hosts}\n\
             StrictHostKeyChecking yes\n",
            far = FAR.name,
            v4 = FAR.v4,
            v6 = FAR.v6,
            user = self.user,
            key = self.path("user_key").display(),
            known_hosts = self.path("known_hosts").display(),
        )
    }

    /// Environment variables for programs that do not read ssh_config.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("LONGHAUL_LAB_KEY", self.path("user_key").into()),
            ("LONGHAUL_LAB_KNOWN_HOSTS", self.path("known_hosts").into()),
            ("LONGHAUL_LAB_CONFIG", self.path("ssh_config").into()),
            ("LONGHAUL_LAB_PORT", PORT.to_string().into()),
            ("LONGHAUL_LAB_USER", self.user.clone().into()),
        ]
    }

    /// The server's command, which stays in the foreground. `options` come first in sshd_config, so
    /// they override the lab's settings.
    pub(crate) fn server(&self, options: &[(String, String)]) -> Result<Command, LabError> {
        if getuid().is_root() {
            // sshd's privilege separation folder, which service managers usually create.
            fs::create_dir_all("/run/sshd").map_err(|error| {
                LabError::system("cannot create /run/sshd, which sshd needs", error)
            })?;
        }
        self.write("sshd_config", &self.server_config(options))?;
        let log = self.path("sshd.log");
        let log = File::create(&log).map_err(|error| LabError::system(log.display(), error))?;
        let mut command = match program() {
            Some(sshd) => {
                let mut command = Command::new(sshd);
                command
                    .args(["-D", "-e", "-f"])
                    .arg(self.path("sshd_config"));
                command
            }
            None if options.is_empty() => self.our_server(),
            None => {
                return Err(LabError(
                    "--sshd-option needs OpenSSH's server (Debian: openssh-server)".to_owned(),
                ));
            }
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(command)
    }

    /// The command of `longhaul serve`, which ignores options for sshd. Old algorithms are enabled,
    /// since the machine's ssh may be old and no attacker records the lab's traffic.
    fn our_server(&self) -> Command {
        let mut command = Command::new(OURSELVES);
        command.args(["serve", "--listen", &format!(":{PORT}"), "--host-key"]);
        command.arg(self.path("host_key")).arg("--authorized-keys");
        command.arg(self.path("authorized_keys"));
        command.arg("--old-clients");
        command
    }

    fn server_config(&self, options: &[(String, String)]) -> String {
        let mut text = String::new();
        for (name, value) in options {
            let _ = writeln!(text, "{name} {value}");
        }
        let subsystem = sftp_server().map_or_else(
            || "internal-sftp".to_owned(),
            |path| path.display().to_string(),
        );
        for (name, value) in [
            ("Port", PORT.to_string()),
            ("HostKey", self.path("host_key").display().to_string()),
            (
                "AuthorizedKeysFile",
                self.path("authorized_keys").display().to_string(),
            ),
            ("PidFile", "none".to_owned()),
            // The keys are below the temporary folder, which is world-writable.
            ("StrictModes", "no".to_owned()),
            ("PasswordAuthentication", "no".to_owned()),
            ("KbdInteractiveAuthentication", "no".to_owned()),
            // Settings of Debian's sshd_config.
            ("X11Forwarding", "yes".to_owned()),
            ("PrintMotd", "no".to_owned()),
            ("AcceptEnv", "LANG LC_*".to_owned()),
            ("Subsystem", format!("sftp {subsystem}")),
        ] {
            if !options
                .iter()
                .any(|(given, _)| given.eq_ignore_ascii_case(name))
            {
                let _ = writeln!(text, "{name} {value}");
            }
        }
        text
    }

    /// The end of the server's log, for a failed start.
    pub(crate) fn log(&self) -> String {
        let log = self.read("sshd.log").unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("; ")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn read(&self, name: &str) -> Result<String, LabError> {
        let path = self.path(name);
        fs::read_to_string(&path).map_err(|error| LabError::system(path.display(), error))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.path(name);
        fs::write(&path, text).map_err(|error| LabError::system(path.display(), error))
    }
}

/// Name of this process's user, as sshd looks it up.
fn user() -> Result<String, LabError> {
    let output = Command::new("id")
        .arg("-un")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|error| no_program("id", "coreutils", error))?;
    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || name.is_empty() {
        return Err(LabError(format!(
            "sshd needs a user name, and the user ID {} (group ID {}) has none on this machine: \
             add it to /etc/passwd",
            getuid().as_raw(),
            getgid().as_raw()
        )));
    }
    Ok(name)
}

/// Finds sshd, which must be called by its absolute path.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join("sshd"))
        .find(|file| file.is_absolute() && file.is_file())
}

/// Creates a key in OpenSSH's format, with its public half beside it, like ssh-keygen.
fn make_key(file: &Path) -> Result<(), LabError> {
    let made = Command::new(OURSELVES).arg(KEY).arg(file).status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(LabError(format!("ssh-keygen failed ({status})"))),
        Err(error) => Err(LabError::system("cannot create a key", error)),
    }
}

fn sftp_server() -> Option<&'static Path> {
    [
        "/usr/lib/openssh/sftp-server",
        "/usr/libexec/openssh/sftp-server",
        "/usr/lib/ssh/sftp-server",
        "/usr/libexec/sftp-server",
    ]
    .map(Path::new)
    .into_iter()
    .find(|path| path.is_file())
}

fn no_program(name: &str, package: &str, error: std::io::Error) -> LabError {
    LabError(format!("the lab needs {name} (Debian: {package}): {error}"))
}
