use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetError, RulesetStatus,
    Scope,
};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

pub(super) type FilterProgram = BpfProgram;

/// System calls of a preauth process, which reads, writes and waits.
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

/// System calls that a preauth process may use for memory that is not executable; the third
/// argument holds the protection.
const MEMORY: &[c_long] = &[libc::SYS_mmap, libc::SYS_mprotect];

/// System calls that no file transfer needs and that help an attacker to break out of a process.
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

/// Denies files, ports and other processes to this thread and the threads that it starts
/// (Landlock).
pub(super) fn landlock() -> io::Result<bool> {
    // Features that an older kernel lacks are omitted.
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

pub(super) fn preauth() -> io::Result<FilterProgram> {
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
    // A debug build of the standard library calls fcntl(F_GETFD) before it closes a descriptor.
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

/// Flags by which clone(2) creates namespaces, as unshare(2) does.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

pub(super) fn account() -> io::Result<FilterProgram> {
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

/// Refuses clone3(2) with ENOSYS: its flags are in memory, where a filter cannot read them.
/// Libraries fall back to clone(2).
pub(super) fn no_clone3() -> io::Result<FilterProgram> {
    filter(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
    )
}

pub(super) fn programs() -> io::Result<FilterProgram> {
    refuse(&[libc::SYS_execve])
}

fn refuse(calls: &[c_long]) -> io::Result<FilterProgram> {
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
) -> io::Result<FilterProgram> {
    let arch = TargetArch::try_from(ARCH).map_err(io::Error::other)?;
    #[cfg(target_arch = "x86_64")]
    let refusal = match &otherwise {
        SeccompAction::Allow => listed.clone(),
        _ => otherwise.clone(),
    };
    let filter = SeccompFilter::new(rules, otherwise, listed, arch);
    let program = filter.and_then(BpfProgram::try_from);
    let mut program = program.map_err(io::Error::other)?;
    #[cfg(target_arch = "x86_64")]
    program.splice(..0, x32::refused(refusal));
    Ok(program)
}

/// Refuses x32 system calls: they have the numbers of x86_64 with one more bit, which no filter
/// list contains.
#[cfg(target_arch = "x86_64")]
mod x32 {
    use super::{SeccompAction, sock_filter};

    /// __X32_SYSCALL_BIT (asm/unistd.h).
    pub(super) const BIT: u32 = 0x4000_0000;

    /// Instructions that go before a filter, whose jumps are all relative. seccomp_data begins with
    /// the number of the call.
    pub(super) fn refused(refusal: SeccompAction) -> [sock_filter; 3] {
        let instruction = |code: u32, jf, k| sock_filter {
            code: code as u16,
            jt: 0,
            jf,
            k,
        };
        [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, BIT),
            instruction(libc::BPF_RET | libc::BPF_K, 0, u32::from(refusal)),
        ]
    }
}

/// Installs `filter` in this thread; false if the kernel has no seccomp filters.
pub(super) fn apply(filter: &FilterProgram) -> io::Result<bool> {
    match apply_filter(filter) {
        Ok(()) => Ok(true),
        // A kernel without filters (seccomp(2)).
        Err(seccompiler::Error::Seccomp(e) | seccompiler::Error::Prctl(e))
            if e.raw_os_error() == Some(libc::EINVAL) || e.raw_os_error() == Some(libc::ENOSYS) =>
        {
            Ok(false)
        }
        Err(e) => Err(io::Error::other(e)),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Interprets `program` as the kernel would for this call with all arguments 0.
    fn answer(program: &FilterProgram, number: u32) -> u32 {
        // AUDIT_ARCH_X86_64 (linux/audit.h).
        let arch = 0xc000_003e;
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let code = u32::from(code);
            let operand = code & 0xf0;
            match code & 0x07 {
                libc::BPF_LD => {
                    value = match k {
                        0 => number,
                        4 => arch,
                        _ => 0,
                    };
                }
                libc::BPF_ALU if operand == libc::BPF_AND => value &= k,
                libc::BPF_JMP if operand == libc::BPF_JA => at += k as usize,
                libc::BPF_JMP => {
                    let met = match operand {
                        libc::BPF_JEQ => value == k,
                        libc::BPF_JGT => value > k,
                        libc::BPF_JGE => value >= k,
                        _ => panic!("no jump that is known: {code:#x}"),
                    };
                    at += usize::from(if met { jt } else { jf });
                }
                libc::BPF_RET => return k,
                _ => panic!("no instruction that is known: {code:#x}"),
            }
        }
    }

    #[test]
    fn a_call_of_x32_passed_the_filters() {
        let eperm = u32::from(SeccompAction::Errno(libc::EPERM as u32));
        let allow = u32::from(SeccompAction::Allow);
        let kill = u32::from(SeccompAction::KillProcess);
        let account = account().unwrap();
        let programs = programs().unwrap();
        let preauth = preauth().unwrap();
        for (filter, call, plain, of_x32) in [
            (&account, libc::SYS_ptrace, eperm, eperm),
            (&account, libc::SYS_read, allow, eperm),
            (&programs, libc::SYS_execve, eperm, eperm),
            // 520 is execve of x32.
            (&programs, 520, allow, eperm),
            (&preauth, libc::SYS_read, allow, kill),
        ] {
            assert_eq!(answer(filter, call as u32), plain, "{call}");
            assert_eq!(answer(filter, call as u32 | x32::BIT), of_x32, "{call}");
        }
    }
}
