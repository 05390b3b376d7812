//! The lab's view of system files: its mount namespace shows generated files in place of /etc/hosts
//! and the system's ssh_config. Other processes do not see them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use sys::NamespaceKind;

use super::side::{FAR, NEAR, SideAddresses};
use crate::error::LabError;

/// Enters a mount namespace, with a /proc of the lab's processes.
pub(super) fn own_mounts() -> Result<(), LabError> {
    sys::unshare(NamespaceKind::Mounts)
        .map_err(|error| LabError::system("cannot create a mount namespace", error))?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .map_err(|error| LabError::system("cannot make the lab's mounts private", error))?;
    mount(
        "proc",
        "/proc",
        "proc",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )
    .map_err(|error| {
        LabError::system(
            "cannot mount /proc in the lab (containers that hide parts of /proc forbid it: run \
             the lab outside of the container, or privileged)",
            error,
        )
    })
}

/// Adds `near` and `far` to /etc/hosts.
pub(super) fn hosts(scratch: &Path, ipv6: bool) -> Result<(), LabError> {
    let mut text = fs::read_to_string("/etc/hosts").unwrap_or_default();
    // The first line that names a host counts.
    text.insert_str(0, &lines(ipv6));
    show(scratch, "hosts", "/etc/hosts", &text)
}

fn lines(ipv6: bool) -> String {
    let mut text = String::new();
    for SideAddresses { name, v4, v6 } in [NEAR, FAR] {
        text.push_str(&format!("{v4} {name} {name}4\n"));
        if ipv6 {
            text.push_str(&format!("{v6} {name} {name}6\n"));
        }
    }
    text
}

/// Puts a block before the system's ssh_config, the only file that OpenSSH reads independent of
/// HOME.
pub(super) fn ssh_config(scratch: &Path, block: &str) -> Result<(), LabError> {
    const SYSTEM: &str = "/etc/ssh/ssh_config";
    let before = fs::read_to_string(SYSTEM).unwrap_or_default();
    // Apply the original content to all hosts again.
    show(
        scratch,
        "system_ssh_config",
        SYSTEM,
        &format!("{block}\nHost *\n{before}"),
    )
}

/// Hides the group of terminals, which an ordinary user's namespace does not map: sshd then leaves
/// a terminal to its user instead of failing.
pub(super) fn no_terminal_group(scratch: &Path) -> Result<(), LabError> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let kept: Vec<&str> = groups
        .lines()
        .filter(|line| !line.starts_with("tty:"))
        .collect();
    if kept.is_empty() {
        return Ok(());
    }
    show(scratch, "group", "/etc/group", &(kept.join("\n") + "\n"))
}

/// Gives the user's account /bin/sh for the server. sshd runs its subsystem through the account's
/// shell, whose ~/.bashrc would be measured as part of the path: a version manager takes 0.3 s, and
/// logins wait for each other's lock. A fresh host has no such file. A delay, if
/// there is one, stands for such files.
pub(super) fn shell(scratch: &Path, delay: Option<Duration>) -> Result<(), LabError> {
    let shell = match delay {
        Some(delay) => slow_shell(scratch, delay)?,
        None => "/bin/sh".to_owned(),
    };
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let uid = rustix::process::getuid().as_raw().to_string();
    let mut text = String::new();
    for line in accounts.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        match fields.as_slice() {
            [name, password, id, group, comment, home, _] if *id == uid => {
                let fields: [&str; 7] = [name, password, id, group, comment, home, &shell];
                text += &fields.join(":");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    if text == accounts {
        return Ok(());
    }
    show(scratch, "passwd", "/etc/passwd", &text)
}

/// Creates a shell that takes a time to start; returns its path.
fn slow_shell(scratch: &Path, delay: Duration) -> Result<String, LabError> {
    let file = scratch.join("slow-shell");
    let seconds = delay.as_secs_f64();
    let text = format!("#!/bin/sh\nsleep {seconds}\nexec /bin/sh \"$@\"\n");
    fs::write(&file, text)
        .and_then(|()| set_mode(&file, 0o755))
        .map_err(|error| LabError::system(file.display(), error))?;
    Ok(file.display().to_string())
}

/// Shows a file with this text at `place`, which must exist.
fn show(scratch: &Path, name: &str, place: &str, text: &str) -> Result<(), LabError> {
    let file = scratch.join(name);
    fs::write(&file, text)
        .and_then(|()| readable(&file))
        .map_err(|error| LabError::system(file.display(), error))?;
    mount_bind(&file, place).map_err(|error| {
        LabError::system(
            format!("cannot mount the lab's {place} for the command"),
            error,
        )
    })
}

/// Makes a file world-readable: commands of root may switch to other users, who resolve names too.
fn readable(file: &Path) -> io::Result<()> {
    set_mode(file, 0o644)
}

fn set_mode(file: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(mode))
}
