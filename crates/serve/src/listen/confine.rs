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
pub(super) struct Unconfined {
    filter: filters::Filter,
    lacking: Vec<&'static str>,
}

/// Leaves a preauth process no file and no port. What is left to be given up is made ready.
///
/// # Errors
/// The kernel refuses what it has.
pub(super) fn prepare_preauth() -> io::Result<Unconfined> {
    let mut lacking = Vec::new();
    if !filters::landlock()? {
        lacking.push("Landlock");
    }
    let filter = filters::preauth()?;
    Ok(Unconfined { filter, lacking })
}

/// Leaves a preauth process nothing but the descriptors it has. Tells what of it this kernel lacks.
///
/// # Errors
/// The kernel refuses what it has.
pub(super) fn confine_preauth(left: Unconfined) -> io::Result<Vec<&'static str>> {
    let Unconfined {
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
mod filters {
    use std::collections::BTreeMap;
    use std::env::consts::ARCH;
    use std::io;

    use landlock::{
        ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetError,
        RulesetStatus, Scope,
    };
    use libc::c_long;
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch, apply_filter,
    };

    pub(super) type Filter = BpfProgram;

    /// What a preauth process does: it reads, writes and waits.
    const PREAUTH: &[c_long] = &[
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_close,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_ppoll,
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_sendto,
        libc::SYS_sigaltstack,
        libc::SYS_write,
        libc::SYS_writev,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
    ];

    /// The same for memory that is not run: the third argument says what it is for.
    const MEMORY: &[c_long] = &[libc::SYS_mmap, libc::SYS_mprotect];

    /// What no file transfer does, and what breaks out of a process.
    const NOT_OF_FILES: &[c_long] = &[
        libc::SYS_acct,
        libc::SYS_add_key,
        libc::SYS_adjtimex,
        libc::SYS_bpf,
        libc::SYS_chroot,
        libc::SYS_clock_adjtime,
        libc::SYS_clock_settime,
        libc::SYS_delete_module,
        libc::SYS_execveat,
        libc::SYS_finit_module,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fsopen,
        libc::SYS_init_module,
        libc::SYS_io_uring_setup,
        libc::SYS_kcmp,
        libc::SYS_kexec_load,
        libc::SYS_keyctl,
        libc::SYS_mount,
        libc::SYS_mount_setattr,
        libc::SYS_move_mount,
        libc::SYS_open_by_handle_at,
        libc::SYS_open_tree,
        libc::SYS_perf_event_open,
        libc::SYS_personality,
        libc::SYS_pidfd_getfd,
        libc::SYS_pivot_root,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_ptrace,
        libc::SYS_quotactl,
        libc::SYS_reboot,
        libc::SYS_request_key,
        libc::SYS_setdomainname,
        libc::SYS_sethostname,
        libc::SYS_setns,
        libc::SYS_settimeofday,
        libc::SYS_swapoff,
        libc::SYS_swapon,
        libc::SYS_umount2,
        libc::SYS_unshare,
        libc::SYS_userfaultfd,
    ];

    /// Neither files nor ports nor others' processes, for this thread and those it starts.
    pub(super) fn landlock() -> io::Result<bool> {
        // What an older kernel lacks of it is left out.
        let abi = ABI::V6;
        let restrict = || -> Result<_, RulesetError> {
            Ruleset::default()
                .handle_access(AccessFs::from_all(abi))?
                .handle_access(AccessNet::from_all(abi))?
                .scope(Scope::from_all(abi))?
                .create()?
                .restrict_self()
        };
        let status = restrict().map_err(io::Error::other)?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    }

    pub(super) fn preauth() -> io::Result<Filter> {
        let rule = |conditions: &[(u8, SeccompCmpOp, u64)]| {
            let conditions = conditions.iter().map(|(argument, compared, with)| {
                let len = SeccompCmpArgLen::Dword;
                SeccompCondition::new(*argument, len, compared.clone(), *with)
            });
            let all = conditions.collect::<Result<_, _>>();
            all.and_then(SeccompRule::new).map_err(io::Error::other)
        };
        let not_run = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
        let not_run = rule(&[(2, not_run, 0)])?;
        // What a debug build of the standard library asks before it closes a descriptor.
        let asked = rule(&[(1, SeccompCmpOp::Eq, libc::F_GETFD as u64)])?;
        let acknowledge = rule(&[
            (1, SeccompCmpOp::Eq, libc::IPPROTO_TCP as u64),
            (2, SeccompCmpOp::Eq, libc::TCP_QUICKACK as u64),
        ])?;
        let some = [
            (libc::SYS_fcntl, vec![asked]),
            (libc::SYS_setsockopt, vec![acknowledge]),
        ];
        let always = PREAUTH.iter().map(|call| (*call, Vec::new()));
        let memory = MEMORY.iter().map(|call| (*call, vec![not_run.clone()]));
        filter(
            always.chain(memory).chain(some).collect(),
            SeccompAction::KillProcess,
            SeccompAction::Allow,
        )
    }

    /// Flags by which clone(2) makes what unshare(2) would.
    const NAMESPACES: &[i32] = &[
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ];

    pub(super) fn account() -> io::Result<Filter> {
        let mut rules: BTreeMap<_, _> = NOT_OF_FILES.iter().map(|c| (*c, Vec::new())).collect();
        let of_clone = NAMESPACES.iter().map(|flag| {
            let flag = *flag as u64;
            let asked = SeccompCmpOp::MaskedEq(flag);
            let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, asked, flag);
            let condition = condition.map(|condition| vec![condition]);
            condition.and_then(SeccompRule::new)
        });
        let of_clone: Result<_, _> = of_clone.collect();
        rules.insert(libc::SYS_clone, of_clone.map_err(io::Error::other)?);
        filter(
            rules,
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EPERM as u32),
        )
    }

    /// Its flags lie in memory, where no filter looks. Libraries take clone(2) where there is none.
    pub(super) fn no_clone3() -> io::Result<Filter> {
        filter(
            BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::ENOSYS as u32),
        )
    }

    pub(super) fn programs() -> io::Result<Filter> {
        refuse(&[libc::SYS_execve])
    }

    fn refuse(calls: &[c_long]) -> io::Result<Filter> {
        let never = calls.iter().map(|call| (*call, Vec::new()));
        filter(
            never.collect(),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EPERM as u32),
        )
    }

    fn filter(
        rules: BTreeMap<c_long, Vec<SeccompRule>>,
        otherwise: SeccompAction,
        listed: SeccompAction,
    ) -> io::Result<Filter> {
        let arch = TargetArch::try_from(ARCH).map_err(io::Error::other)?;
        let filter = SeccompFilter::new(rules, otherwise, listed, arch);
        let program = filter.and_then(BpfProgram::try_from);
        program.map_err(io::Error::other)
    }

    /// False where there are none.
    pub(super) fn apply(filter: &Filter) -> io::Result<bool> {
        match apply_filter(filter) {
            Ok(()) => Ok(true),
            // A kernel without filters (seccomp(2)).
            Err(seccompiler::Error::Seccomp(e) | seccompiler::Error::Prctl(e))
                if e.raw_os_error() == Some(libc::EINVAL)
                    || e.raw_os_error() == Some(libc::ENOSYS) =>
            {
                Ok(false)
            }
            Err(e) => Err(io::Error::other(e)),
        }
    }
}
