//! scp's old protocol, which is rcp's: `scp -t` receives files, `scp -f` sends them. OpenSSH's scp
//! spoke only this before 9.0, and libssh, libssh2 and devices still do. Details that no document
//! specifies follow OpenSSH's scp.c.
//!
//! No shell and no scp program runs: SFTP requests do the work, so that [`crate::Access`], roots
//! and drop boxes apply as for SFTP.

mod expand;
mod files;
mod incoming;
mod pattern;
mod sink;
mod source;

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wire::PacketPool;

use crate::ExportedTree;
use crate::TransferCounters;
use crate::sftp::AnswerChunk;
use crate::sftp::OpenFileLimit;
use crate::words::{self, CommandSplitError, CommandWord};
use expand::WordExpansion;
use files::ScpFileOps;
use sink::ScpSink;
use source::ScpSource;

/// Number of bytes of unsent output at which producing output pauses.
const GATHERED: usize = 512 << 10;
/// Longest time for which output is produced, so that other channels get their turn and output
/// leaves.
const TURN: Duration = Duration::from_millis(5);
/// Longest line in bytes; it contains a path and some numbers.
const LONGEST_LINE: usize = 8 << 10;

/// A parsed command: `scp` with the flags of a far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScpCommand {
    /// The server receives files, to the only path; otherwise it sends them.
    takes: bool,
    how: ScpFlags,
    paths: Vec<CommandWord>,
}

/// Flags of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ScpFlags {
    /// -r
    trees: bool,
    /// -p
    times: bool,
    /// -d
    into_directory: bool,
}

impl ScpCommand {
    /// Parses a command; `None` if it calls another program.
    ///
    /// # Errors
    /// The command is not that of a far end, or needs a shell.
    pub fn parse(command: &[u8]) -> Option<Result<Self, ScpCommandError>> {
        let name = command
            .split(|byte| b" \t".contains(byte))
            .find(|w| !w.is_empty());
        // Some clients call the program with its directory.
        let name = name.and_then(|name| name.rsplit(|byte| *byte == b'/').next());
        (name == Some(b"scp")).then(|| Self::of(command))
    }

    fn of(command: &[u8]) -> Result<Self, ScpCommandError> {
        let words = words::words(command).map_err(ScpCommandError::Shell)?;
        let mut words = words.into_iter().skip(1).peekable();
        let (mut how, mut takes) = (ScpFlags::default(), None);
        while let Some(flags) = words.next_if(|w| is_flags(w.text())) {
            if flags.text() == b"--" {
                break;
            }
            for flag in &flags.text()[1..] {
                match flag {
                    b't' => takes = Some(true),
                    b'f' => takes = Some(false),
                    b'r' => how.trees = true,
                    b'p' => how.times = true,
                    b'd' => how.into_directory = true,
                    // The flags concern only output on a terminal.
                    b'v' | b'q' => {}
                    flag => return Err(ScpCommandError::Flag(*flag)),
                }
            }
        }
        let takes = takes.ok_or(ScpCommandError::NotFarEnd)?;
        let paths: Vec<CommandWord> = words.collect();
        match (takes, paths.len()) {
            (true, 1) | (false, 1..) => Ok(Self { takes, how, paths }),
            _ => Err(ScpCommandError::NoPath),
        }
    }
}

/// True for a word that is flags: a dash with more behind it.
fn is_flags(word: &[u8]) -> bool {
    word.len() > 1 && word.starts_with(b"-")
}

/// Reason why a command that calls scp is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScpCommandError {
    /// The command needs a shell.
    Shell(CommandSplitError),
    /// The server's scp has no such flag.
    Flag(u8),
    /// The command does not start the far end of a copy.
    NotFarEnd,
    /// The command names no path, or several targets.
    NoPath,
}

impl fmt::Display for ScpCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(why) => {
                write!(
                    f,
                    "this server has no shell, so it refuses an scp command that {why}"
                )
            }
            Self::Flag(flag) => {
                let flag = wire::escape::name(std::slice::from_ref(flag));
                write!(f, "unsupported scp flag -{flag}")
            }
            Self::NotFarEnd => {
                f.write_str("this server runs only the far end of an scp (scp -t, scp -f)")
            }
            Self::NoPath => f.write_str("scp: no path given"),
        }
    }
}

impl std::error::Error for ScpCommandError {}

/// State of one `scp -t` or `scp -f` command on a channel, without I/O of its own towards the
/// client: received bytes go to [`ScpServer::handle`], output is taken from it.
pub struct ScpServer<'e> {
    files: ScpFileOps<'e>,
    takes: bool,
    how: ScpFlags,
    side: ScpCommandStage,
}

/// Stage of the command: its paths are expanded, then `Sink` receives or `Source` sends files.
enum ScpCommandStage {
    /// The paths are being expanded.
    Starting(Box<WordExpansion>),
    /// The expansion failed, or the client has sent everything.
    Finished,
    Sink(ScpSink),
    Source(ScpSource),
}

/// Answer of the client.
enum ScpClientReply {
    /// The client is ready to continue.
    Ready,
    /// The client had an error, which it has reported to its user.
    Failed,
    /// The client has ended.
    Closed,
}

impl<'e> ScpServer<'e> {
    /// Creates a server that reads files into packets of `pool` with up to `slot` bytes each, and
    /// has at most `handles` files and directories open at once.
    pub fn new(
        pool: PacketPool,
        slot: usize,
        export: &'e ExportedTree,
        handles: impl Into<OpenFileLimit>,
        command: ScpCommand,
    ) -> Self {
        let ScpCommand { takes, how, paths } = command;
        Self {
            files: ScpFileOps::new(pool, slot, export, handles.into()),
            takes,
            how,
            side: ScpCommandStage::Starting(Box::new(WordExpansion::new(paths))),
        }
    }

    /// Handles received bytes until much output waits; the rest stays in `received`.
    pub fn handle(&mut self, received: &mut Bytes) {
        let until = Instant::now() + TURN;
        while self.files.waiting() < GATHERED && !self.is_over() && Instant::now() < until {
            let before = received.len();
            let more = match &mut self.side {
                ScpCommandStage::Starting(_) => self.start(),
                ScpCommandStage::Sink(sink) => sink.turn(received, &mut self.files),
                ScpCommandStage::Source(source) => source.turn(received, &mut self.files),
                ScpCommandStage::Finished => false,
            };
            if !more && received.len() == before {
                break;
            }
        }
        if self.is_over() {
            received.clear();
            self.let_go();
        }
    }

    /// Closes all handles and removes the temporary at the end, because the client may keep the
    /// channel open.
    fn let_go(&mut self) {
        if let ScpCommandStage::Sink(sink) = &mut self.side {
            sink.abandon(&mut self.files);
        }
        self.files.close_all();
    }

    /// Continues the expansion of the paths.
    fn start(&mut self) -> bool {
        let ScpCommandStage::Starting(expansion) = &mut self.side else {
            return false;
        };
        match expansion.step(&mut self.files) {
            Ok(None) => {}
            Ok(Some(paths)) => {
                self.side = match self.takes {
                    true => ScpCommandStage::Sink(ScpSink::new(self.how, paths, &mut self.files)),
                    false => ScpCommandStage::Source(ScpSource::new(self.how, paths)),
                }
            }
            Err((path, refused)) => {
                self.files.complain(&path, refused);
                self.side = ScpCommandStage::Finished;
            }
        }
        true
    }

    /// True if there is work or output that needs no new input.
    pub fn has_more(&self) -> bool {
        let goes_on = match &self.side {
            ScpCommandStage::Starting(_) => true,
            ScpCommandStage::Source(source) => source.has_more(),
            ScpCommandStage::Sink(_) | ScpCommandStage::Finished => false,
        };
        goes_on || self.files.waiting() > 0 || self.is_over()
    }

    /// Passes the waiting output to `to`.
    ///
    /// # Errors
    /// The errors of `to`.
    pub fn take_answers<E>(
        &mut self,
        to: impl FnMut(AnswerChunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.files.out().take(to)
    }

    /// True if files are received.
    pub fn takes(&self) -> bool {
        self.takes
    }

    fn is_over(&self) -> bool {
        match &self.side {
            ScpCommandStage::Starting(_) => false,
            ScpCommandStage::Finished => true,
            ScpCommandStage::Sink(sink) => sink.is_over(),
            ScpCommandStage::Source(source) => source.is_over(),
        }
    }

    /// The exit status, once the server has ended.
    pub fn status(&self) -> Option<u32> {
        self.is_over().then_some(self.files.status())
    }

    /// Ends the session after the client's EOF and returns the exit status. A file whose last byte
    /// has arrived counts as complete: libssh2 sends nothing after it.
    pub fn end(&mut self) -> u32 {
        let between = match &mut self.side {
            ScpCommandStage::Sink(sink) => sink.end(&mut self.files),
            ScpCommandStage::Source(source) => source.is_over(),
            ScpCommandStage::Starting(_) => false,
            ScpCommandStage::Finished => true,
        };
        if !between {
            self.files.fail();
        }
        self.let_go();
        self.side = ScpCommandStage::Finished;
        self.files.status()
    }

    /// Transfer counters so far.
    pub fn moved(&self) -> TransferCounters {
        self.files.moved()
    }

    /// True if a file or directory is open.
    pub fn has_open(&self) -> bool {
        self.files.has_open()
    }
}

impl Drop for ScpServer<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Moves bytes up to a newline from `received` to `line` and drops the newline; returns true if the
/// newline was found.
///
/// # Errors
/// The line is longer than [`LONGEST_LINE`].
fn take_line(received: &mut Bytes, line: &mut Vec<u8>) -> Result<bool, ()> {
    let end = received.iter().position(|byte| *byte == b'\n');
    let taken = received.split_to(end.unwrap_or(received.len()));
    if line.len() + taken.len() > LONGEST_LINE {
        return Err(());
    }
    line.extend_from_slice(&taken);
    if end.is_some() {
        let _ = received.split_to(1);
    }
    Ok(end.is_some())
}

/// Appends a name to a path.
fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        b"" => name.to_vec(),
        path if path.ends_with(b"/") => [path, name].concat(),
        path => [path, b"/", name].concat(),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
