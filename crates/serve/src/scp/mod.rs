//! scp's old protocol, which is rcp's: `scp -t` takes files, `scp -f` gives them. scp of OpenSSH spoke
//! nothing else before 9.0, and libssh, libssh2 and devices still do; what is not written down
//! anywhere is as OpenSSH's scp.c has it.
//!
//! There is no shell and no scp behind it: what is asked for is done with SFTP's requests, of which
//! [`crate::Access`], roots and drop boxes know what each may do.

mod expand;
mod files;
mod incoming;
mod pattern;
mod sink;
mod source;

use std::time::{Duration, Instant};

use bytes::Bytes;
use wire::Pool;

use crate::Export;
use crate::answer::TransferCounters;
use crate::answers::Answer;
use crate::handles::Allowance;
use crate::words::{self, Word};
use expand::Expansion;
use files::Files;
use sink::Sink;
use source::Source;

/// Nothing more is made while so much waits to be sent.
const GATHERED: usize = 512 << 10;
/// Nor for longer than this: other channels have their turn, and what there is leaves.
const TURN: Duration = Duration::from_millis(5);
/// A line is a path and some numbers.
const LONGEST_LINE: usize = 8 << 10;

/// What is asked for: `scp` with the flags of a far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Files are taken, to the one path; given otherwise.
    takes: bool,
    how: ScpFlags,
    paths: Vec<Word>,
}

/// Flags of either side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ScpFlags {
    /// -r
    trees: bool,
    /// -p
    times: bool,
    /// -d
    into_directory: bool,
}

impl Command {
    /// `None` where another program is called.
    ///
    /// # Errors
    /// It is no far end's, or a shell is needed: a sentence.
    pub fn parse(command: &[u8]) -> Option<Result<Self, String>> {
        let name = command
            .split(|byte| b" \t".contains(byte))
            .find(|w| !w.is_empty());
        // Programs name it with where it is at home.
        let name = name.and_then(|name| name.rsplit(|byte| *byte == b'/').next());
        (name == Some(b"scp")).then(|| Self::of(command))
    }

    fn of(command: &[u8]) -> Result<Self, String> {
        let words = words::words(command)
            .map_err(|why| format!("this server has no shell, and runs no scp that {why}"))?;
        let mut words = words.into_iter().skip(1).peekable();
        let (mut how, mut takes) = (ScpFlags::default(), None);
        while let Some(flags) = words.next_if(|w| w.text.len() > 1 && w.text[0] == b'-') {
            if flags.text == b"--" {
                break;
            }
            for flag in &flags.text[1..] {
                match flag {
                    b't' => takes = Some(true),
                    b'f' => takes = Some(false),
                    b'r' => how.trees = true,
                    b'p' => how.times = true,
                    b'd' => how.into_directory = true,
                    // They are about words on a terminal.
                    b'v' | b'q' => {}
                    flag => {
                        let flag = wire::escape::name(std::slice::from_ref(flag));
                        return Err(format!("this server's scp does not know -{flag}"));
                    }
                }
            }
        }
        let takes = takes.ok_or(
            "this server runs no scp but the far end of one (scp -t, scp -f): it starts no copies \
             of its own",
        )?;
        let paths: Vec<Word> = words.collect();
        match (takes, paths.len()) {
            (true, 1) | (false, 1..) => Ok(Self { takes, how, paths }),
            _ => Err("this server's scp was not told where the files are".to_owned()),
        }
    }
}

/// One that serves a client.
pub struct Scp<'e> {
    files: Files<'e>,
    takes: bool,
    how: ScpFlags,
    side: Side,
}

enum Side {
    /// The paths are looked for.
    Starting(Box<Expansion>),
    /// They were not found, or the client sends no more.
    Over,
    Sink(Sink),
    Source(Source),
}

/// How far the client has come.
enum ClientProgress {
    /// All is well.
    Well,
    /// Something failed there, which it has told its user.
    Trouble,
    /// It ends.
    Over,
}

impl<'e> Scp<'e> {
    /// One whose files are read into packets of `pool` with up to `slot` bytes each, and with at most
    /// so many files and directories open at once.
    pub fn new(
        pool: Pool,
        slot: usize,
        export: &'e Export,
        handles: impl Into<Allowance>,
        command: Command,
    ) -> Self {
        let Command { takes, how, paths } = command;
        Self {
            files: Files::new(pool, slot, export, handles.into()),
            takes,
            how,
            side: Side::Starting(Box::new(Expansion::new(paths))),
        }
    }

    /// Takes what was received, until much waits to be sent: the rest stays in `received`.
    pub fn handle(&mut self, received: &mut Bytes) {
        let until = Instant::now() + TURN;
        while self.files.out.len() < GATHERED && !self.is_over() && Instant::now() < until {
            let before = received.len();
            let more = match &mut self.side {
                Side::Starting(_) => self.start(),
                Side::Sink(sink) => sink.turn(received, &mut self.files),
                Side::Source(source) => source.turn(received, &mut self.files),
                Side::Over => false,
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

    /// Nothing is open, and nothing half there, once it is over: the client may keep the channel.
    fn let_go(&mut self) {
        if let Side::Sink(sink) = &mut self.side {
            sink.abandon(&mut self.files);
        }
        self.files.session.handles.clear();
    }

    /// Goes on looking for the paths.
    fn start(&mut self) -> bool {
        let Side::Starting(expansion) = &mut self.side else {
            return false;
        };
        match expansion.step(&mut self.files) {
            Ok(None) => {}
            Ok(Some(paths)) => {
                self.side = match self.takes {
                    true => Side::Sink(Sink::new(self.how, paths, &mut self.files)),
                    false => Side::Source(Source::new(self.how, paths)),
                }
            }
            Err((path, refused)) => {
                self.files.complain(&path, &refused.words);
                self.side = Side::Over;
            }
        }
        true
    }

    /// Whether it goes on, or has something to say, without anything new of the client.
    pub fn has_more(&self) -> bool {
        let goes_on = match &self.side {
            Side::Starting(_) => true,
            Side::Source(source) => source.has_more(),
            Side::Sink(_) | Side::Over => false,
        };
        goes_on || self.files.out.len() > 0 || self.is_over()
    }

    /// Takes out what is to be sent.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn take_answers<E>(
        &mut self,
        to: impl FnMut(Answer<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.files.out.take(to)
    }

    /// Whether it takes files.
    pub fn takes(&self) -> bool {
        self.takes
    }

    fn is_over(&self) -> bool {
        match &self.side {
            Side::Starting(_) => false,
            Side::Over => true,
            Side::Sink(sink) => sink.is_over(),
            Side::Source(source) => source.is_over(),
        }
    }

    /// How it has ended, if it has.
    pub fn status(&self) -> Option<u32> {
        self.is_over().then_some(u32::from(self.files.failed))
    }

    /// The client sends no more; how it has ended. A file whose last byte has come is whole: libssh2
    /// says nothing behind it.
    pub fn end(&mut self) -> u32 {
        let between = match &mut self.side {
            Side::Sink(sink) => sink.end(&mut self.files),
            Side::Source(source) => source.is_over(),
            Side::Starting(_) => false,
            Side::Over => true,
        };
        self.files.failed |= !between;
        self.let_go();
        self.side = Side::Over;
        u32::from(self.files.failed)
    }

    /// What was moved so far.
    pub fn moved(&self) -> TransferCounters {
        self.files.session.moved
    }

    /// Whether a file or a directory is open.
    pub fn has_open(&self) -> bool {
        self.files.session.handles.has_open()
    }
}

impl Drop for Scp<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Takes bytes up to a newline, which is not kept, out of `received` to `line`; whether it was
/// there.
///
/// # Errors
/// It is longer than a line can be.
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

/// `path` and a name in it.
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
