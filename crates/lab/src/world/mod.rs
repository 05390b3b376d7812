//! The lab's first process, from which all others descend: it creates both sides, starts the
//! emulator and the servers, and runs the command. When it ends, all others end with it.

mod children;
mod etc;
mod listening;
mod netlink;
mod quota;
pub(crate) mod side;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, getuid, set_parent_process_death_signal};

use crate::error::LabError;
use crate::outside::this_program;
use crate::scratch::ScratchFolder;
use crate::sshd::{self, SshdKeys};
use crate::{CANNOT_RUN, LabSpec, NOT_FOUND, files, privilege};
use children::{ChildProcesses, ChildRole};
use listening::AwaitedPort;
use side::{FAR, LabNamespace, NEAR};

/// The hidden subcommand that calls [`crate::emulate`].
pub const EMULATOR: &str = "lab-emulator";

/// Time limit for a server to listen.
const SERVER_STARTS: Duration = Duration::from_secs(10);
/// Time that the command of `--far` gets if it is unknown whether it listens.
const PERHAPS_LISTENS: Duration = Duration::from_secs(1);
/// Time limit for the emulator to write its figures.
const EMULATOR_ENDS: Duration = Duration::from_secs(2);

/// Runs the lab's command between its two sides. [`crate::run`] starts this process.
///
/// # Errors
/// The kernel refuses something that the lab needs, or a part of the lab does not start or ends
/// early.
pub fn inside(lab: &LabSpec, scratch: &Path, again: &[OsString]) -> Result<u8, LabError> {
    die_with_parent(scratch)?;
    etc::own_mounts()?;
    etc::hosts(scratch, side::has_ipv6(&lab.path))?;
    etc::shell(scratch, lab.far_start)?;
    let mut near = LabNamespace::new(NEAR, FAR, &lab.path)?;
    let mut far = LabNamespace::new(FAR, NEAR, &lab.path)?;
    let mut children = ChildProcesses::new()?;
    privilege::limit_children(!lab.allow_cc.is_empty())
        .map_err(|error| LabError::system("cannot drop the lab's capabilities", error))?;
    check_congestion_controls(lab)?;
    let keys = servers(lab, scratch, &mut children)?;
    // Started last, so that its clock starts with the command.
    let mut emulator = emulator(scratch, again, &mut near, &mut far);
    children.start(ChildRole::Emulator, &mut emulator)?;
    let ready = scratch.join(files::EMULATOR_READY);
    if !children.wait_for(ChildRole::Emulator, || ready.exists(), SERVER_STARTS)? {
        return Err(LabError(
            "the lab's network emulator did not start in time: check the load of this machine"
                .to_owned(),
        ));
    }

    near.enter()?;
    if let Some((share, (pid, _))) = lab.far_cpu.zip(children.find(ChildRole::Sshd)) {
        quota::limit(pid, share)?;
    }
    if let Some((rate, (pid, _))) = lab.far_disk.zip(children.find(ChildRole::Sshd)) {
        quota::limit_disk(pid, rate)?;
    }
    let mut command = command(lab, keys.as_ref());
    let (status, has_run) = match command.spawn() {
        Ok(child) => (children.run(child)?, true),
        Err(error) => (not_run(lab, &error), false),
    };
    let dropped = LabNamespace::dropped_by_device() + {
        far.enter()?;
        LabNamespace::dropped_by_device()
    };
    // If this fails, the figures lack the number.
    let _ = fs::write(scratch.join(files::DEVICE_DROPS), dropped.to_string());
    children.end_emulator(EMULATOR_ENDS);
    if !has_run {
        // Figures of a path that carried nothing would hide the error.
        let _ = fs::remove_file(scratch.join(files::FIGURES_TEXT));
    }
    Ok(status)
}

/// Makes the whole lab end with the parent process, however that ends.
fn die_with_parent(scratch: &Path) -> Result<(), LabError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
        LabError::system(
            "cannot make the lab end together with the process that started it",
            error,
        )
    })?;
    // The parent may have died before. Its process ID is not visible in this namespace, but it
    // holds a lock.
    if getpid().as_raw_nonzero().get() == 1 && ScratchFolder::owner_is_alive(scratch) {
        return Ok(());
    }
    Err(LabError(
        "lab-run: only longhaul lab can start this command: run longhaul lab".to_owned(),
    ))
}

fn emulator(
    scratch: &Path,
    again: &[OsString],
    near: &mut LabNamespace,
    far: &mut LabNamespace,
) -> Command {
    let mut command = this_program(EMULATOR, scratch, again);
    let device = |side: &mut LabNamespace| side.tun.take().map_or_else(Stdio::null, Stdio::from);
    command
        .stdin(device(near))
        .stdout(device(far))
        // Ctrl-C is for the command only.
        .process_group(0);
    command
}

/// Starts the servers of the far side, in whose namespace this thread is, and waits until they
/// listen.
fn servers(
    lab: &LabSpec,
    scratch: &Path,
    children: &mut ChildProcesses,
) -> Result<Option<SshdKeys>, LabError> {
    let mut keys = None;
    if let Some(options) = &lab.sshd {
        let new = SshdKeys::generate(scratch)?;
        if Path::new("/etc/ssh/ssh_config").is_file() {
            etc::ssh_config(scratch, &new.client_config())?;
        }
        if !getuid().is_root() {
            etc::no_terminal_group(scratch)?;
        }
        let mut server = new.server(options)?;
        children.start(ChildRole::Sshd, server.process_group(0))?;
        if !children.wait_for(
            ChildRole::Sshd,
            || AwaitedPort::Number(sshd::PORT).listens(),
            SERVER_STARTS,
        )? {
            return Err(LabError(format!("sshd did not start: {}", new.log())));
        }
        keys = Some(new);
    }
    if let Some(far) = &lab.far {
        let mut server = Command::new("/bin/sh");
        server
            .arg("-c")
            .arg(far)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .process_group(0);
        let before = listening::ports();
        children.start(ChildRole::Far, &mut server)?;
        let (port, patience) = match lab.far_port {
            Some(port) => (AwaitedPort::Number(port), SERVER_STARTS),
            None => (AwaitedPort::Other(before), PERHAPS_LISTENS),
        };
        let listens = children.wait_for(ChildRole::Far, || port.listens(), patience)?;
        if let (false, Some(port)) = (listens, lab.far_port) {
            return Err(LabError(format!(
                "the command of --far does not listen on port {port} {SERVER_STARTS:?} after \
                 its start"
            )));
        }
    }
    Ok(keys)
}

fn command(lab: &LabSpec, keys: Option<&SshdKeys>) -> Command {
    let mut words = lab.command.iter();
    let mut command = Command::new(
        words
            .next()
            .map_or_else(Default::default, |word| word.as_os_str()),
    );
    command.args(words).env("LONGHAUL_LAB", NEAR.name);
    if let Some(keys) = keys {
        command.envs(keys.environment());
    }
    command
}

/// Reports that the command did not start. Returns the exit code of env(1) and timeout(1).
fn not_run(lab: &LabSpec, error: &io::Error) -> u8 {
    let name = lab.command.first().map(|word| word.to_string_lossy());
    let name = name.unwrap_or_default();
    let why = match error.kind() {
        io::ErrorKind::NotFound if !name.contains('/') => "no such program on the PATH".to_owned(),
        _ => sys::os_words(error),
    };
    let name = name.escape_debug();
    children::tell(&format!("cannot start the command {name}: {why}"));
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    }
}

fn check_congestion_controls(lab: &LabSpec) -> Result<(), LabError> {
    let missing = lab
        .allow_cc
        .iter()
        .find(|name| !side::available().split(", ").any(|known| known == *name));
    missing.map_or(Ok(()), |name| Err(side::no_congestion_control(name)))
}
