//! Agent forwarding (`-A`): channels that the server opens to the user's agent.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use ssh::channel::{ChannelId, Channels};
use tracing::debug;

use crate::agent::{Agent, AgentChoice, AgentError};

/// The largest number of agent channels at a time. ssh-agent answers one request at a time anyway.
const MOST: usize = 8;
/// Bytes that may wait for the agent on one channel; an agent message is at most 256 KiB.
const MOST_WAITING: usize = 512 << 10;

/// The forwarded agent and its open channels.
pub(super) struct AgentChannels {
    socket: AgentChoice,
    open: BTreeMap<u32, ForwardedChannel>,
    registered: Option<(Registry, Token)>,
}

struct ForwardedChannel {
    stream: UnixStream,
    token: Option<Token>,
    waiting: Vec<u8>,
}

/// Reason why a channel to the agent cannot be opened.
#[derive(Debug)]
enum ForwardingError {
    /// The server has opened as many channels as it may.
    TooMany,
    /// No agent is running.
    NoAgent,
    /// The agent refused the binding, or its socket failed.
    Agent(AgentError),
    /// The agent's socket cannot be waited for.
    Io(io::Error),
}

impl fmt::Display for ForwardingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => f.write_str("too many channels to ssh-agent"),
            Self::NoAgent => f.write_str("no ssh-agent is running (SSH_AUTH_SOCK is not set)"),
            Self::Agent(e) => e.fmt(f),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl From<AgentError> for ForwardingError {
    fn from(error: AgentError) -> Self {
        Self::Agent(error)
    }
}

impl From<io::Error> for ForwardingError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl AgentChannels {
    pub(super) fn new(socket: AgentChoice) -> Self {
        Self {
            socket,
            open: BTreeMap::new(),
            registered: None,
        }
    }

    /// Registers the agent sockets with tokens above `first`.
    pub(super) fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()> {
        self.registered = Some((registry.try_clone()?, first));
        Ok(())
    }

    /// Handles the server's request for an agent channel: connects to the agent, and binds the
    /// agent to the SSH connection so that it can enforce the destination constraints of its keys
    /// (session-bind@openssh.com).
    pub(super) fn opened(
        &mut self,
        id: ChannelId,
        channels: &mut Channels,
        binding: Option<(Bytes, Bytes, Bytes)>,
    ) {
        match self.connect(binding) {
            Ok(forwarded) => {
                self.open.insert(id.0, forwarded);
                channels.accept(id);
            }
            Err(why) => {
                debug!("agent forwarding (-A): {why}");
                channels.reject(id, "cannot connect to ssh-agent");
            }
        }
    }

    fn connect(
        &self,
        binding: Option<(Bytes, Bytes, Bytes)>,
    ) -> Result<ForwardedChannel, ForwardingError> {
        if self.open.len() >= MOST {
            return Err(ForwardingError::TooMany);
        }
        let agent = Agent::connect(&self.socket)?;
        let mut agent = agent.ok_or(ForwardingError::NoAgent)?;
        if let Some((session_id, host_key, signature)) = binding {
            agent.bind(&host_key, &session_id, &signature, true)?;
        }
        let stream = agent.into_stream();
        stream.set_nonblocking(true)?;
        let mut token = None;
        if let Some((registry, first)) = &self.registered {
            let used: Vec<_> = self.open.values().filter_map(|f| f.token).collect();
            let free = (1..=MOST)
                .map(|n| Token(first.0 + n))
                .find(|t| !used.contains(t));
            if let Some(free) = free {
                let interest = Interest::READABLE | Interest::WRITABLE;
                registry.register(&mut SourceFd(&stream.as_raw_fd()), free, interest)?;
                token = Some(free);
            }
        }
        Ok(ForwardedChannel {
            stream,
            token,
            waiting: Vec::new(),
        })
    }

    /// Passes data to the agent; false if the channel is not an agent channel.
    pub(super) fn data(&mut self, id: ChannelId, bytes: &[u8], channels: &mut Channels) -> bool {
        let Some(forwarded) = self.open.get_mut(&id.0) else {
            return false;
        };
        forwarded.waiting.extend_from_slice(bytes);
        if forwarded.waiting.len() > MOST_WAITING {
            self.end(id, channels);
        }
        true
    }

    /// Handles the server's close of a channel; false if the channel is not an agent channel.
    pub(super) fn closed(&mut self, id: ChannelId) -> bool {
        self.open.remove(&id.0).is_some()
    }

    fn end(&mut self, id: ChannelId, channels: &mut Channels) {
        self.open.remove(&id.0);
        channels.close(id);
    }

    /// Moves waiting data between all agent sockets and their channels.
    pub(super) fn turn(&mut self, channels: &mut Channels) {
        let mut over = Vec::new();
        for (id, forwarded) in &mut self.open {
            if !forwarded.turn(ChannelId(*id), channels) {
                over.push(ChannelId(*id));
            }
        }
        for id in over {
            self.end(id, channels);
        }
    }
}

impl ForwardedChannel {
    /// Moves data in both directions; false if the agent closed its socket or failed.
    fn turn(&mut self, id: ChannelId, channels: &mut Channels) -> bool {
        while !self.waiting.is_empty() {
            match self.stream.write(&self.waiting) {
                Ok(n) => drop(self.waiting.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let mut part = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return false,
                Ok(n) => channels.write(id, part.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}
