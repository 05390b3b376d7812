//! Rights that a process gives up for good: docs/design/0007-accounts.md.

use std::ffi::CStr;
use std::io;
use std::path::Path;

use nix::unistd::{Gid, Uid, getresgid, getresuid, setgroups, setresgid, setresuid};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, chdir, chroot, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, setsid,
};

/// Directory that is empty and root's; preauth processes use it as their root.
pub(super) const EMPTY: &str = "/run/longhaul";

/// Switches to this user and these groups permanently.
///
/// # Errors
/// The process is not root's, or could become root again; the caller must not continue.
pub(super) fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups)?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    let (users, its_groups) = (getresuid()?, getresgid()?);
    let all = [users.real, users.effective, users.saved].map(|u| u == user);
    let all_groups = [its_groups.real, its_groups.effective, its_groups.saved].map(|g| g == group);
    let root = Uid::from_raw(0);
    let back = || setresuid(root, root, root).is_ok() || setgroups(&[Gid::from_raw(0)]).is_ok();
    if all.contains(&false) || all_groups.contains(&false) || (!user.is_root() && back()) {
        return Err(io::Error::other("cannot give up root privileges"));
    }
    Ok(())
}

/// Process name while it waits for a client, set once it has given up what it can until then.
pub(super) const STANDS_READY: &CStr = c"longhaul:ready";
/// Process name once it serves a client; without it, ps(1) would show "exe".
pub(super) const SERVES: &CStr = c"longhaul";

/// Sets the name of this process, shown by ps(1).
pub(super) fn set_name(name: &CStr) -> io::Result<()> {
    Ok(rustix::thread::set_name(name)?)
}

/// Applies the restrictions of every process that reads client input: no tracing by other processes
/// of its user, death with its parent, no core file with keys in it, and no new privileges through
/// exec.
pub(super) fn seal_off() -> io::Result<()> {
    // A new session keeps clients from writing to the terminal in which the server was started.
    // setsid fails only for a process group leader, which already has no terminal.
    let _ = setsid();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    no_more(Resource::Core)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Makes `empty` the root directory of this process (chroot).
pub(super) fn leave_files(empty: &Path) -> io::Result<()> {
    chroot(empty)?;
    chdir("/")?;
    Ok(())
}

/// Hides the memory of this process from clients that have its rights and could otherwise write to
/// /proc/self/mem through the file system (as sftp-server.c, platform_disable_tracing).
///
/// # Errors
/// The kernel refuses.
pub fn hide_memory() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Disables core files of this process.
///
/// # Errors
/// The kernel refuses.
pub(super) fn leave_no_core() -> io::Result<()> {
    no_more(Resource::Core)
}

fn no_more(what: Resource) -> io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    Ok(setrlimit(what, none)?)
}

/// Restrictions that a preauth process applies once it has a client.
pub(super) struct PendingSandbox {
    filter: filters::FilterProgram,
    lacking: Vec<&'static str>,
}

/// Denies a preauth process all files and ports (Landlock) and compiles the filter for later.
///
/// # Errors
/// The kernel refuses a feature that it has.
pub(super) fn prepare_preauth() -> io::Result<PendingSandbox> {
    let mut lacking = Vec::new();
    if !filters::landlock()? {
        lacking.push("Landlock");
    }
    let filter = filters::preauth()?;
    Ok(PendingSandbox { filter, lacking })
}

/// Leaves a preauth process nothing but its open descriptors. Returns the names of the features
/// that this kernel lacks.
///
/// # Errors
/// The kernel refuses a feature that it has.
pub(super) fn confine_preauth(left: PendingSandbox) -> io::Result<Vec<&'static str>> {
    let PendingSandbox {
        filter,
        mut lacking,
    } = left;
    no_more(Resource::Fsize)?;
    no_more(Resource::Nproc)?;
    // The limit is 1 because poll(2) fails with a limit of 0.
    let one = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    setrlimit(Resource::Nofile, one)?;
    if !filters::apply(&filter)? {
        lacking.push("seccomp");
    }
    Ok(lacking)
}

/// Denies an account process and its programs the system calls that no file transfer needs. Running
/// programs stays possible; [`run_nothing`] forbids it for servers that allow none.
///
/// # Errors
/// The kernel refuses a feature that it has.
pub(super) fn confine_account() -> io::Result<()> {
    filters::apply(&filters::no_clone3()?)?;
    filters::apply(&filters::account()?).map(drop)
}

/// Forbids an account process to run programs.
///
/// # Errors
/// The kernel refuses a feature that it has.
pub(super) fn run_nothing() -> io::Result<()> {
    filters::apply(&filters::programs()?).map(drop)
}

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod filters {
    use std::io;

    /// Stand-in for a seccomp filter on systems for which this crate has none.
    pub(super) struct FilterProgram;

    pub(super) fn landlock() -> io::Result<bool> {
        Ok(false)
    }
    pub(super) fn preauth() -> io::Result<FilterProgram> {
        Ok(FilterProgram)
    }
    pub(super) fn account() -> io::Result<FilterProgram> {
        Ok(FilterProgram)
    }
    pub(super) fn no_clone3() -> io::Result<FilterProgram> {
        Ok(FilterProgram)
    }
    pub(super) fn programs() -> io::Result<FilterProgram> {
        Ok(FilterProgram)
    }
    pub(super) fn apply(_: &FilterProgram) -> io::Result<bool> {
        Ok(false)
    }
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod filters;
