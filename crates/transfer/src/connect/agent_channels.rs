//! Agent forwarding (`-A`): channels that the server opens to the user's agent.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use ssh::channel::{ChannelId, Channels};
use tracing::debug;

use crate::agent::{Agent, AgentSocket};

/// Agent channels at once; ssh-agent answers one request at a time anyway.
const MOST: usize = 8;
/// Bytes for the agent that may wait; its messages are at most 256 KiB.
const MOST_WAITING: usize = 512 << 10;

/// The agent that is forwarded, and its channels.
pub(super) struct AgentChannels {
    socket: AgentSocket,
    open: BTreeMap<u32, Forwarded>,
    registered: Option<(Registry, Token)>,
}

struct Forwarded {
    stream: UnixStream,
    token: Option<Token>,
    waiting: Vec<u8>,
}

impl AgentChannels {
    pub(super) fn new(socket: AgentSocket) -> Self {
        Self {
            socket,
            open: BTreeMap::new(),
            registered: None,
        }
    }

    /// Tokens behind `first` are for agents.
    pub(super) fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()> {
        self.registered = Some((registry.try_clone()?, first));
        Ok(())
    }

    /// The server wants the agent: connects, and binds the agent to the connection so that it
    /// can hold to its keys' destinations (session-bind@openssh.com).
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
                debug!("agent forwarding: {why}");
                channels.reject(id, "the agent cannot be reached");
            }
        }
    }

    fn connect(&self, binding: Option<(Bytes, Bytes, Bytes)>) -> Result<Forwarded, String> {
        if self.open.len() >= MOST {
            return Err("too many channels to it".to_owned());
        }
        let agent = Agent::connect(&self.socket).map_err(|e| e.to_string())?;
        let mut agent = agent.ok_or("there is none")?;
        if let Some((session_id, host_key, signature)) = binding {
            agent
                .bind(&host_key, &session_id, &signature, true)
                .map_err(|e| e.to_string())?;
        }
        let stream = agent.into_stream();
        let text = |e: io::Error| e.to_string();
        stream.set_nonblocking(true).map_err(text)?;
        let mut token = None;
        if let Some((registry, first)) = &self.registered {
            let used: Vec<_> = self.open.values().filter_map(|f| f.token).collect();
            let free = (1..=MOST)
                .map(|n| Token(first.0 + n))
                .find(|t| !used.contains(t));
            if let Some(free) = free {
                let interest = Interest::READABLE | Interest::WRITABLE;
                registry
                    .register(&mut SourceFd(&stream.as_raw_fd()), free, interest)
                    .map_err(text)?;
                token = Some(free);
            }
        }
        Ok(Forwarded {
            stream,
            token,
            waiting: Vec::new(),
        })
    }

    /// Data for the agent; false when the channel is none of an agent's.
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

    /// The server is done with it; false when the channel is none of an agent's.
    pub(super) fn closed(&mut self, id: ChannelId) -> bool {
        self.open.remove(&id.0).is_some()
    }

    fn end(&mut self, id: ChannelId, channels: &mut Channels) {
        self.open.remove(&id.0);
        channels.close(id);
    }

    /// Moves what can be moved.
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

impl Forwarded {
    /// False when the agent is gone.
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
