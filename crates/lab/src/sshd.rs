//! A throwaway SSH server on the far side, OpenSSH's or, where that is not installed, this program's:
//! keys, its configuration, and what clients need.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{getgid, getuid};

use crate::error::LabError;
use crate::world::side::FAR;

/// Where clients look for it.
pub(crate) const PORT: u16 = 22;

/// The program that runs.
const OURSELVES: &str = "/proc/self/exe";
/// Behind it, and in front of a file: makes a key.
pub const KEY: &str = "lab-key";

/// What the server and its clients share.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    folder: PathBuf,
    /// Who logs in: the user of the lab.
    user: String,
}

impl Keys {
    /// New keys for a host and a user, in the lab's folder.
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
                // Nothing of OpenSSH need be there.
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

    /// The block of ssh_config(5) for far.
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

    /// For programs that do not read ssh_config.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("LONGHAUL_LAB_KEY", self.path("user_key").into()),
            ("LONGHAUL_LAB_KNOWN_HOSTS", self.path("known_hosts").into()),
            ("LONGHAUL_LAB_CONFIG", self.path("ssh_config").into()),
            ("LONGHAUL_LAB_PORT", PORT.to_string().into()),
            ("LONGHAUL_LAB_USER", self.user.clone().into()),
        ]
    }

    /// The command that serves, in the foreground. `options` come first in sshd_config, so they
    /// win over what the lab sets.
    pub(crate) fn server(&self, options: &[(String, String)]) -> Result<Command, LabError> {
        if getuid().is_root() {
            // sshd's own privilege separation folder, which service managers make.
            fs::create_dir_all("/run/sshd")
                .map_err(|error| LabError::system("/run/sshd, which sshd needs", error))?;
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

    /// `longhaul serve`, which has no options of sshd's. The machine's ssh may be old, and nobody
    /// records what goes over the lab's path.
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
            // The keys are below the temporary folder, which anybody may write to.
            ("StrictModes", "no".to_owned()),
            ("PasswordAuthentication", "no".to_owned()),
            ("KbdInteractiveAuthentication", "no".to_owned()),
            // As Debian's sshd_config has them.
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

    /// The end of what the server said, for when it did not come up.
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

/// The name of the user of this process, as sshd will look it up.
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
            "sshd needs a user with a name, and {}:{} has none on this machine",
            getuid().as_raw(),
            getgid().as_raw()
        )));
    }
    Ok(name)
}

/// sshd wants to be called by its absolute path.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join("sshd"))
        .find(|file| file.is_absolute() && file.is_file())
}

/// A new key in OpenSSH's format, and its public half beside it, as ssh-keygen makes them.
fn make_key(file: &Path) -> Result<(), LabError> {
    let made = Command::new(OURSELVES).arg(KEY).arg(file).status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(LabError(format!("no key can be made ({status})"))),
        Err(error) => Err(LabError::system("a key", error)),
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
