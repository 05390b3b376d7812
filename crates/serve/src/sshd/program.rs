//! Runs an allowed program (`--allow`) on a channel that otherwise serves files.

use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};
use ssh::channel::{ChannelId, Channels};
use tracing::info;

use crate::TransferCounters;
use crate::words::{self, CommandSplitError};

/// Default search path, for this server and for the programs that it runs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Maximum bytes of output that wait for the client's window.
const QUEUE: usize = 1 << 20;
/// Maximum bytes read in a turn, so that other channels are served as well.
const TURN: usize = 1 << 20;
/// Bytes per read.
const PIECE: usize = 64 << 10;
/// Bytes of standard error per message, which waits until the window has room for all of them.
const ERROR_PIECE: usize = 2 << 10;
/// Interval at which a program that closed its output is checked for its exit.
const LOOK: Duration = Duration::from_millis(5);
/// Time between SIGTERM and SIGKILL.
const MERCY: Duration = Duration::from_millis(500);

/// Program of `--allow`, found at the start, which a client may run by this name as the first word
/// of its command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedProgram {
    /// Name that clients use.
    name: String,
    path: PathBuf,
}

impl AllowedProgram {
    /// Finds a program by name: an absolute path, or a name to look up in `path`, a list of
    /// directories as in PATH.
    ///
    /// # Errors
    /// No such program can be run.
    pub fn find(name: &str, path: Option<&OsStr>) -> Result<Self, ProgramError> {
        let runs = |path: &Path| {
            let meta = fs::metadata(path);
            meta.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        let found = match name.contains('/') {
            true => Some(PathBuf::from(name)).filter(|path| path.is_absolute()),
            false => env::split_paths(path.unwrap_or_else(|| PATH.as_ref()))
                .filter(|dir| dir.is_absolute())
                .map(|dir| dir.join(name))
                .find(|path| runs(path)),
        };
        let found = found.filter(|path| !name.is_empty() && runs(path));
        let path = found.ok_or_else(|| ProgramError::NotFound(name.to_owned()))?;
        let name = name.to_owned();
        Ok(Self { name, path })
    }

    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name
    }
}

/// Reason why a program is not allowed or not run.
#[derive(Debug)]
pub enum ProgramError {
    /// There is no program with this name or path.
    NotFound(String),
    /// The client's command needs a shell.
    Shell(CommandSplitError),
    /// The client's command has no words.
    Empty,
    /// The client's program is not one of these.
    NotAllowed(Vec<String>),
    /// The arguments of rsync are not those of a server.
    Rsync,
    /// The program cannot be started.
    Start(String, io::Error),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(name) => {
                let name = wire::escape::name(name.as_bytes());
                write!(
                    f,
                    "cannot allow {name}: it is neither a program on the PATH nor an absolute \
                     path of one"
                )
            }
            Self::Shell(why) => {
                write!(
                    f,
                    "this server has no shell, so it refuses a command that {why}"
                )
            }
            Self::Empty => f.write_str("the client sent an empty command"),
            Self::NotAllowed(names) => {
                write!(f, "this server runs only {}", names.join(", "))
            }
            Self::Rsync => f.write_str(
                "rsync is allowed only as the server of another rsync, without --secluded-args \
                 (-s, RSYNC_PROTECT_ARGS)",
            ),
            Self::Start(name, e) => write!(f, "cannot run {name}: {e}"),
        }
    }
}

impl std::error::Error for ProgramError {}

/// Accepts rsync's arguments only if it runs as the server of another rsync. As a client rsync runs
/// the command of -e; as a daemon it follows a configuration, which can be any file; and with
/// --secluded-args it reads its options later. Options may stand anywhere, and `--` may be an
/// option's value, so words behind it are checked too. Another rsync never sends a path that begins
/// with a dash.
fn is_rsyncs_server(words: &[Vec<u8>]) -> Result<(), ProgramError> {
    let serves = words.first().is_some_and(|word| word == b"--server");
    let bad = words.iter().map(Vec::as_slice).any(|word| match word {
        [b'-', b'-', long @ ..] => is_refused(long),
        [b'-', letters @ ..] => are_refused(letters),
        _ => false,
    });
    match serves && !bad {
        true => Ok(()),
        false => Err(ProgramError::Rsync),
    }
}

/// True for a long option of rsync that is refused, given without its dashes.
fn is_refused(option: &[u8]) -> bool {
    let never = [
        &b"config"[..],
        b"daemon",
        b"dparam",
        b"protect-args",
        b"rsh",
        b"rsync-path",
        b"secluded-args",
    ];
    let name = option.split(|byte| *byte == b'=').next();
    name.is_some_and(|name| never.contains(&name))
}

/// True for a group of one-letter options that is refused.
fn are_refused(letters: &[u8]) -> bool {
    // The letters after these are the value of the option.
    let sets = |letter: &u8| b"efBMT@".contains(letter);
    let end = letters.iter().position(sets).unwrap_or(letters.len());
    // A server gives its capabilities with -e, always in one word with other letters.
    letters[..end].contains(&b's') || letters[end..] == *b"e"
}

/// Account whose name and home directory programs get in their environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramAccount {
    name: String,
    home: PathBuf,
}

impl ProgramAccount {
    pub(super) fn new(name: &str, home: &Path) -> Self {
        Self {
            name: name.to_owned(),
            home: home.to_owned(),
        }
    }
}

/// A running program. It is ended when dropped.
pub(super) struct RunningProgram {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// Read buffer, on the heap because the stack of every connection would need this space
    /// otherwise.
    piece: Box<[u8]>,
    over: bool,
    /// Time at which it was asked to end.
    asked: Option<Instant>,
    sent: u64,
    received: u64,
}

impl RunningProgram {
    /// Runs the client's command, if its program is allowed.
    ///
    /// # Errors
    /// The program is not allowed or cannot be run.
    pub(super) fn start(
        allowed: &[AllowedProgram],
        owner: Option<&ProgramAccount>,
        command: &[u8],
    ) -> Result<Self, ProgramError> {
        let words = words::split_command(command).map_err(ProgramError::Shell)?;
        let (first, rest) = words.split_first().ok_or(ProgramError::Empty)?;
        let mut named = allowed.iter();
        let named = named.find(|program| program.name.as_bytes() == first);
        let AllowedProgram { name, path } = named.ok_or_else(|| {
            let names = allowed.iter().map(|program| program.name.clone());
            ProgramError::NotAllowed(names.collect())
        })?;
        let is_rsync = path.file_name().is_some_and(|name| name == "rsync");
        if is_rsync {
            is_rsyncs_server(rest)?;
        }
        let mut run = Command::new(path);
        run.arg0(name)
            .args(rest.iter().map(|word| OsString::from_vec(word.clone())))
            .env_clear()
            .env("PATH", PATH)
            .envs(env::var_os("TZ").map(|zone| ("TZ", zone)));
        if let Some(ProgramAccount { name, home }) = owner {
            run.envs([("USER", name), ("LOGNAME", name)]);
            // rsync reads aliases for its options from the home directory (popt(3), .popt).
            if !is_rsync {
                run.env("HOME", home);
            }
        }
        run.stdin(Stdio::piped());
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        // Its own process group, so that its children end with it.
        run.process_group(0);
        let wrong = |e: io::Error| ProgramError::Start(name.clone(), e);
        let mut child = run.spawn().map_err(wrong)?;
        let program = Self {
            name: name.clone(),
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            piece: vec![0; PIECE].into(),
            over: false,
            asked: None,
            sent: 0,
            received: 0,
        };
        program.do_not_block().map_err(wrong)?;
        info!(program = name, "runs");
        Ok(program)
    }

    fn do_not_block(&self) -> io::Result<()> {
        for fd in [
            self.stdin.as_ref().map(AsFd::as_fd),
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
        ] {
            fd.map(|fd| rustix::io::ioctl_fionbio(fd, true))
                .transpose()?;
        }
        Ok(())
    }

    /// Descriptors to poll: standard input while there are bytes for it, and its outputs while
    /// there is room for them.
    pub(super) fn watch(
        &self,
        id: ChannelId,
        channels: &Channels,
        received: &VecDeque<Bytes>,
    ) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let stdin = self.stdin.as_ref().filter(|_| !received.is_empty());
        let room = channels.queued(id) < QUEUE;
        let stdout = self.stdout.as_ref().filter(|_| room);
        let stderr = self.stderr.as_ref().filter(|_| room);
        [
            stdin.map(|fd| (fd.as_fd(), PollFlags::OUT)),
            stdout.map(|fd| (fd.as_fd(), PollFlags::IN)),
            stderr.map(|fd| (fd.as_fd(), PollFlags::IN)),
        ]
        .into_iter()
        .flatten()
    }

    /// Time at which the program needs a turn without any event of [`RunningProgram::watch`].
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let silent = self.stdout.is_none() && self.stderr.is_none();
        (silent && !self.over).then(|| now + LOOK)
    }

    /// Counters of the bytes that passed through.
    pub(super) fn moved(&self) -> TransferCounters {
        TransferCounters {
            files: 0,
            sent: self.sent,
            received: self.received,
        }
    }

    /// Writes received bytes to the program's standard input; returns how many it took. `ended`
    /// means that no further bytes will follow.
    pub(super) fn feed(&mut self, received: &mut VecDeque<Bytes>, ended: bool) -> usize {
        let mut taken = 0;
        while let Some(bytes) = received.front_mut() {
            let n = match self.stdin.as_mut().map(|stdin| stdin.write(bytes)) {
                Some(Ok(n)) => n,
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => break,
                Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted => continue,
                // The program closed its input: discard, as into a closed pipe.
                Some(Err(_)) => {
                    self.stdin = None;
                    continue;
                }
                None => bytes.len(),
            };
            taken += n;
            self.received += n as u64;
            bytes.advance(n);
            if bytes.is_empty() {
                received.pop_front();
            }
        }
        if ended && received.is_empty() {
            self.stdin = None;
        }
        taken
    }

    /// Sends the program's output to the client while there is room; returns the exit status once
    /// it has ended.
    pub(super) fn listen(&mut self, id: ChannelId, channels: &mut Channels) -> Option<u32> {
        let piece = &mut self.piece;
        let mut done = 0;
        while done < TURN && channels.queued(id) < QUEUE {
            let said = read(&mut self.stdout, piece);
            channels.write(id, &piece[..said]);
            let complained = read(&mut self.stderr, &mut piece[..ERROR_PIECE]);
            if complained > 0 {
                channels.write_stderr(id, &piece[..complained]);
            }
            if said + complained == 0 {
                break;
            }
            done += said + complained;
        }
        self.sent += done as u64;
        if self.stdout.is_some() || self.stderr.is_some() || self.over {
            return None;
        }
        let status = self.child.try_wait().ok()??;
        self.over = true;
        // As in shells, a signal counts as 128 plus its number.
        let signal = || status.signal().map_or(255, |signal| 128 + signal);
        let code = status.code().unwrap_or_else(signal);
        let Self {
            name,
            sent,
            received,
            ..
        } = &*self;
        info!(
            program = name,
            status = code,
            sent,
            received,
            "program ended"
        );
        Some(code.cast_unsigned())
    }

    /// Asks the program to end, with its children (SIGTERM). It is killed [`MERCY`] after the first
    /// call, so that programs that were asked together are killed together.
    pub(super) fn terminate(&mut self) {
        if !self.over && self.asked.is_none() {
            self.asked = Some(Instant::now());
            // The process may have ended; its ID stays reserved until it is waited for.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::TERM);
        }
    }
}

/// Reads what is available now; drops the pipe once it has ended.
fn read(from: &mut Option<impl Read>, piece: &mut [u8]) -> usize {
    loop {
        let Some(open) = from else { return 0 };
        match open.read(piece) {
            Ok(0) => *from = None,
            Ok(n) => return n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return 0,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => *from = None,
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        (self.stdin, self.stdout, self.stderr) = (None, None, None);
        self.terminate();
        let pid = Pid::from_child(&self.child);
        let until = self.asked.unwrap_or_else(Instant::now) + MERCY;
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while Instant::now() < until && matches!(waitid(WaitId::Pid(pid), ended), Ok(None)) {
            thread::sleep(LOOK);
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
        let (program, sent, received) = (&self.name, self.sent, self.received);
        info!(
            program,
            sent, received, "ended because its channel was closed"
        );
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, poll};

    use super::*;

    /// Bug: ten programs that ignore SIGTERM were killed one after the other, each half a second after
    /// the one before, 5 s after their client had left.
    #[test]
    fn programs_that_ignore_the_request_to_end_are_killed_together() {
        let allowed = [AllowedProgram::find("sh", None).expect("sh")];
        let command = b"sh -c 'trap : TERM; echo; while :; do sleep 60; done'";
        let start = |_| RunningProgram::start(&allowed, None, command).expect("it runs");
        let mut programs: Vec<_> = (0..10).map(start).collect();
        for program in &mut programs {
            let stdout = program.stdout.as_mut().expect("open");
            poll(&mut [PollFd::new(&*stdout, PollFlags::IN)], None).expect("a line");
            assert_eq!(stdout.read(&mut [0; 8]).expect("a line"), 1);
        }
        let begin = Instant::now();
        programs.iter_mut().for_each(RunningProgram::terminate);
        drop(programs);
        let took = begin.elapsed();
        assert!((MERCY..MERCY * 4).contains(&took), "{took:?}");
    }

    #[test]
    fn rsync_is_a_server_whatever_else_is_said_behind_its_paths() {
        let is = |command: &str| {
            let words: Vec<Vec<u8>> = command.split(' ').map(|word| word.into()).collect();
            is_rsyncs_server(&words).is_ok()
        };
        for fine in [
            "--server -vlogDtprze.iLsfxCIvu --log-format=%i . /a/b",
            "--server --sender -logDtpre.iLsfxCIvu . rsh --out-format=x config",
            "--server -e.s . a",
        ] {
            assert!(is(fine), "{fine}");
        }
        for bad in [
            "--sender . a",
            "-av a b",
            "--server . a --rsh=sh",
            "--server . a -e sh",
            "--server . a -ve sh",
            "--server --daemon .",
            "--server . a --daemon",
            "--server . --config=/tmp/x",
            "--server . --dparam x",
            "--server -s . a",
            "--server -vsloge.iL . a",
            "--server . a --secluded-args",
            "--server --protect-args . a",
            "--server --log-file -- --rsh=x . a",
            "--server . a --rsync-path=x",
        ] {
            assert!(!is(bad), "{bad}");
        }
    }
}
