use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mio::unix::pipe::{Receiver, Sender};
use mio::{Interest, Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sftp::ClientOutput;
use sys::ReceiveBuffers;
use wire::PacketPool;

use super::SendQueue;
use crate::session::{InitialServerFacts, Link, LinkChannelId, LinkError, LinkEvent};

/// Bytes queued for the child, so that one writev fills its pipe.
const QUEUE: usize = 1 << 20;
/// Size in bytes to which pipes are enlarged where the system allows it (pipe-max-size of Linux).
const PIPE: usize = 1 << 20;
/// Size in bytes of a memory slot: one WRITE of 255 KiB in one piece, because a pipe has no
/// packets.
const SLOT: usize = 257 << 10;
/// Time that a child may take to exit once its input is closed.
const LONGEST_GOODBYE: Duration = Duration::from_secs(3);
/// Longest line of stderr in bytes; longer ones are shown in parts.
const LONGEST_LINE: usize = 4096;
const CHANNEL: LinkChannelId = LinkChannelId(0);

/// Stage of a program's one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramChannelStage {
    /// The program runs, and its channel is not open.
    Started,
    Open,
    /// The program has closed its standard output.
    Ended,
}

/// Program whose standard input and output carry an SFTP session: `sftp-server`, or an ssh with `-s
/// host sftp`. Carries one channel.
pub struct SftpProgramLink {
    child: Child,
    name: String,
    to_child: Option<Sender>,
    from_child: Receiver,
    says: Option<Receiver>,
    line: Vec<u8>,
    first: usize,
    readable: bool,
    writable: bool,
    says_readable: bool,
    stage: ProgramChannelStage,
    queue: SendQueue,
    segments: ReceiveBuffers,
    pool: PacketPool,
}

impl SftpProgramLink {
    /// Starts `program`. The child ignores SIGINT, so that an interrupted run can still remove its
    /// temporaries at the other side.
    pub fn spawn(program: OsString, arguments: Vec<OsString>) -> Result<Self, LinkError> {
        let name = program.to_string_lossy().into_owned();
        let failed = |e: io::Error| {
            LinkError::Lost(format!("cannot run {name}: {}", crate::disk::os_words(&e)))
        };
        // An ignored signal stays ignored across exec. Doing it in sh avoids unsafe code here.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "trap '' INT; exec \"$@\"", "sh"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output), Some(says)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(LinkError::Lost(format!(
                "internal error: {name} has no standard streams"
            )));
        };
        let (to_child, from_child) = (Sender::from(input), Receiver::from(output));
        let says = Receiver::from(says);
        to_child.set_nonblocking(true).map_err(failed)?;
        from_child.set_nonblocking(true).map_err(failed)?;
        says.set_nonblocking(true).map_err(failed)?;
        #[cfg(target_os = "linux")]
        for pipe in [to_child.as_fd(), from_child.as_fd()] {
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE);
        }
        Ok(Self {
            child,
            name,
            to_child: Some(to_child),
            from_child,
            says: Some(says),
            line: Vec::new(),
            first: 0,
            readable: true,
            writable: true,
            says_readable: true,
            stage: ProgramChannelStage::Started,
            queue: SendQueue::default(),
            segments: ReceiveBuffers::default(),
            pool: PacketPool::new(SLOT, 64),
        })
    }

    fn read_says(&mut self, events: &mut Vec<LinkEvent>) {
        let mut part = [0; LONGEST_LINE];
        while self.says_readable {
            let Some(says) = &mut self.says else { return };
            match says.read(&mut part) {
                Ok(0) => {
                    self.says = None;
                    self.say(events);
                    return;
                }
                Ok(n) => {
                    for byte in &part[..n] {
                        if *byte == b'\n' || self.line.len() == LONGEST_LINE {
                            self.say(events);
                        }
                        if *byte != b'\n' {
                            self.line.push(*byte);
                        }
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.says_readable = false,
            }
        }
    }

    fn say(&mut self, events: &mut Vec<LinkEvent>) {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if !line.is_empty() {
            let line = String::from_utf8_lossy(line).into_owned();
            events.push(LinkEvent::Message(line));
        }
    }

    fn how_it_ended(&mut self) -> String {
        let name = &self.name;
        wait_for_exit(&self.child);
        match self.child.try_wait() {
            Ok(Some(status)) => match status.code() {
                Some(code) => format!("{name} ended with status {code}"),
                None => format!(
                    "{name} was ended by signal {}",
                    status.signal().unwrap_or(0)
                ),
            },
            _ => format!("{name} closed the connection"),
        }
    }
}

impl Link for SftpProgramLink {
    fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()> {
        self.first = first.0;
        if let Some(to_child) = &mut self.to_child {
            registry.register(to_child, Token(first.0), Interest::WRITABLE)?;
        }
        registry.register(&mut self.from_child, Token(first.0 + 1), Interest::READABLE)?;
        if let Some(says) = &mut self.says {
            registry.register(says, Token(first.0 + 2), Interest::READABLE)?;
        }
        Ok(())
    }

    fn peer(&self) -> Option<InitialServerFacts> {
        Some(InitialServerFacts::default())
    }

    fn pool(&self) -> PacketPool {
        self.pool.clone()
    }

    fn open_channel(&mut self) -> Option<LinkChannelId> {
        if self.stage != ProgramChannelStage::Started {
            return None;
        }
        self.stage = ProgramChannelStage::Open;
        Some(CHANNEL)
    }

    fn close_channel(&mut self, _: LinkChannelId) {
        self.to_child = None;
    }

    fn ready(&mut self, token: Token, readable: bool, writable: bool) {
        match token.0 - self.first {
            0 => self.writable |= writable,
            1 => self.readable |= readable,
            _ => self.says_readable |= readable,
        }
    }

    fn receive(&mut self, _: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        self.read_says(events);
        // Without a lane there is no receiver for the reason of the end.
        if self.stage != ProgramChannelStage::Open || !self.readable {
            return Ok(false);
        }
        match self.segments.read(&self.from_child, 0) {
            Ok(0) => {
                self.stage = ProgramChannelStage::Ended;
                // Output on stderr and the end of stdout arrive in no fixed order.
                wait_for_exit(&self.child);
                self.says_readable = true;
                self.read_says(events);
                let why = self.how_it_ended();
                events.push(LinkEvent::Closed(CHANNEL, Some(why)));
                Ok(false)
            }
            Ok(_) => {
                let data = self.segments.received().split().freeze();
                events.push(LinkEvent::Data(CHANNEL, data));
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(false)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(e) => Err(LinkError::Lost(format!(
                "cannot read from {}: {}",
                self.name,
                crate::disk::os_words(&e)
            ))),
        }
    }

    fn limit_receive(&mut self, bytes: usize) {
        self.segments.set_limit(Some(bytes));
    }

    fn room(&self, _: LinkChannelId) -> usize {
        QUEUE.saturating_sub(self.queue.len())
    }

    fn send(&mut self, _: LinkChannelId, output: ClientOutput) {
        self.queue.push(output);
    }

    fn flush(&mut self, _: Instant) -> Result<bool, LinkError> {
        let Some(to_child) = &self.to_child else {
            return Ok(false);
        };
        if !self.writable || self.queue.is_empty() {
            return Ok(false);
        }
        match self.queue.write_to(to_child) {
            Ok((written, blocks)) => {
                self.writable = !blocks;
                Ok(written > 0)
            }
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                // The end of the child's output gives the reason.
                self.to_child = None;
                Ok(true)
            }
            Err(e) => Err(LinkError::Lost(format!(
                "cannot write to {}: {}",
                self.name,
                crate::disk::os_words(&e)
            ))),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) -> Result<(), LinkError> {
        Ok(())
    }

    fn finish(self: Box<Self>) {}
}

impl Drop for SftpProgramLink {
    fn drop(&mut self) {
        // Closing its input ends an SFTP server; a child that does not exit is killed.
        self.to_child = None;
        wait_for_exit(&self.child);
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits until the child has exited, at most `LONGEST_GOODBYE`.
fn wait_for_exit(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(Ok(pidfd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return;
    };
    let limit = Timespec {
        tv_sec: LONGEST_GOODBYE.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&limit));
}
