//! The privileges for creating namespaces: root, or a user namespace in which an ordinary user
//! keeps the name and has root's capabilities.

use std::fs;
use std::io;

use rustix::process::{getgid, getuid};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    set_capabilities,
};
use sys::NamespaceKind;

use crate::error::LabError;

/// Enables this process to set a lab up, and makes its next child the first process of a PID
/// namespace, which ends with it.
///
/// This process must have a single thread, and can't start any afterwards.
pub(crate) fn isolate() -> Result<(), LabError> {
    if !getuid().is_root() {
        own_users().map_err(no_user_namespace)?;
    }
    sys::unshare(NamespaceKind::Processes).map_err(|error| {
        let who = if getuid().is_root() {
            " (root has no CAP_SYS_ADMIN, as in a container: run the container privileged)"
        } else {
            ""
        };
        LabError::system(format!("cannot create a process namespace{who}"), error)
    })?;
    if !getuid().is_root() {
        pass_on(CapabilitySet::all()).map_err(no_user_namespace)?;
    }
    Ok(())
}

/// Enters a user namespace that maps only this process's user and group, to their own numbers:
/// files, ssh and sshd see an ordinary user, as outside.
fn own_users() -> io::Result<()> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    sys::unshare(NamespaceKind::User)?;
    // The kernel requires this before gid_map is written: otherwise a user could drop groups that
    // deny access.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Limits the capabilities of the lab's command and servers for users other than root: capturing
/// packets and low ports, and with `administer` changing the lab's network, which setting a
/// restricted congestion control needs.
pub(crate) fn limit_children(administer: bool) -> io::Result<()> {
    if getuid().is_root() {
        return Ok(());
    }
    let mut kept = CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
    kept.set(CapabilitySet::NET_ADMIN, administer);
    clear_ambient_capability_set()?;
    pass_on(kept)
}

/// Passes these capabilities on to child processes, as far as this process has them; by default,
/// programs of an ordinary user get none.
fn pass_on(wanted: CapabilitySet) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable = sets.permitted & wanted;
    set_capabilities(None, sets)?;
    for one in sets.inheritable.iter() {
        configure_capability_in_ambient_set(one, true)?;
    }
    Ok(())
}

fn no_user_namespace(error: io::Error) -> LabError {
    let setting = |name: &str| fs::read_to_string(name).unwrap_or_default();
    let remedy = [
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("user/max_user_namespaces", "0", "10000"),
    ]
    .into_iter()
    .find(|(name, bad, _)| setting(&format!("/proc/sys/{name}")).trim() == *bad)
    .map_or_else(
        || "run the lab as root, or outside of this container".to_owned(),
        |(name, _, good)| {
            format!(
                "run the lab as root, or permit it with: sudo sysctl {}={good}",
                name.replace('/', ".")
            )
        },
    );
    LabError(format!("cannot create a user namespace: {error}; {remedy}"))
}
