//! Rights that a process gives up for good: docs/design/0007-accounts.md.

use std::ffi::CStr;
use std::io;
use std::path::Path;

use nix::unistd::{Gid, Uid, getresgid, getresuid, setgroups, setresgid, setresuid};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, chdir, chroot, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, setsid,
};

/// Root's, empty, and where no preauth process finds anything.
pub(super) const EMPTY: &str = "/run/longhaul";

/// Becomes this user, for good.
///
/// # Errors
/// The process is not root's, or could be root again: it must not go on.
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
        return Err(io::Error::other("rights cannot be given up"));
    }
    Ok(())
}

/// What a process is called that waits for its client, ...
pub(super) const STANDS_READY: &CStr = c"longhaul:ready";
/// ... and what it is called from then on. Or it would be "exe".
pub(super) const SERVES: &CStr = c"longhaul";

/// Gives this process one of these names.
pub(super) fn set_name(name: &CStr) -> io::Result<()> {
    Ok(rustix::thread::set_name(name)?)
}

/// What no process that reads what clients send may: be looked into by others of its user, survive
/// the monitor, leave a core with keys in it, or gain rights by what it starts.
pub(super) fn seal_off(name: &CStr) -> io::Result<()> {
    // Whoever started the server in a terminal is not written to there by those who log in. It fails for a
    // process that leads a group, which is one that has none.
    let _ = setsid();
    set_name(name)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    no_more(Resource::Core)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Makes `empty` the root of this process.
pub(super) fn leave_files(empty: &Path) -> io::Result<()> {
    chroot(empty)?;
    chdir("/")?;
    Ok(())
}

/// Clients whose rights are those of this process shall not write to its memory, which the file
/// system shows them as /proc/self/mem (as sftp-server.c, platform_disable_tracing).
///
/// # Errors
/// The kernel refuses.
pub fn hide_memory() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Leaves no memory of this process behind when it dies.
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

/// What a preauth process still has to give up.
pub(super) struct PendingConfinement {
    filter: filters::Filter,
    lacking: Vec<&'static str>,
}

/// Leaves a preauth process no file and no port. What is left to be given up is made ready.
///
/// # Errors
/// The kernel refuses what it has.
pub(super) fn prepare_preauth() -> io::Result<PendingConfinement> {
    let mut lacking = Vec::new();
    if !filters::landlock()? {
        lacking.push("Landlock");
    }
    let filter = filters::preauth()?;
    Ok(PendingConfinement { filter, lacking })
}

/// Leaves a preauth process nothing but the descriptors it has. Tells what of it this kernel lacks.
///
/// # Errors
/// The kernel refuses what it has.
pub(super) fn confine_preauth(left: PendingConfinement) -> io::Result<Vec<&'static str>> {
    let PendingConfinement {
        filter,
        mut lacking,
    } = left;
    no_more(Resource::Fsize)?;
    no_more(Resource::Nproc)?;
    // One, or poll(2) takes none.
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

/// Keeps an account's process, and what it runs, from what no file transfer needs. Programs are not
/// among that: where none are allowed, [`run_nothing`] keeps it from those too.
///
/// # Errors
/// The kernel refuses what it has.
pub(super) fn confine_account() -> io::Result<()> {
    filters::apply(&filters::no_clone3()?)?;
    filters::apply(&filters::account()?).map(drop)
}

/// Keeps an account's process from running a program.
///
/// # Errors
/// The kernel refuses what it has.
pub(super) fn run_nothing() -> io::Result<()> {
    filters::apply(&filters::programs()?).map(drop)
}

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod filters {
    use std::io;

    pub(super) struct Filter;

    pub(super) fn landlock() -> io::Result<bool> {
        Ok(false)
    }
    pub(super) fn preauth() -> io::Result<Filter> {
        Ok(Filter)
    }
    pub(super) fn account() -> io::Result<Filter> {
        Ok(Filter)
    }
    pub(super) fn no_clone3() -> io::Result<Filter> {
        Ok(Filter)
    }
    pub(super) fn programs() -> io::Result<Filter> {
        Ok(Filter)
    }
    pub(super) fn apply(_: &Filter) -> io::Result<bool> {
        Ok(false)
    }
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod filters;
