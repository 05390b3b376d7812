//! What channels tell their owner, and the kinds there are.

use bytes::Bytes;

/// Our number of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A request on a channel that we make (RFC 4254 section 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `subsystem`.
    Subsystem(Vec<u8>),
    /// `exec`.
    Exec(Vec<u8>),
    /// `env`; never wants a reply.
    Env(Vec<u8>, Vec<u8>),
    /// `auth-agent-req@openssh.com`: the peer may open agent channels from now on.
    AgentForwarding,
    /// `exit-status`, from a server.
    ExitStatus(u32),
}

impl Request {
    pub(super) fn name(&self) -> &'static [u8] {
        match self {
            Self::Subsystem(_) => b"subsystem",
            Self::Exec(_) => b"exec",
            Self::Env(..) => b"env",
            Self::AgentForwarding => b"auth-agent-req@openssh.com",
            Self::ExitStatus(_) => b"exit-status",
        }
    }

    pub(super) fn data(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Subsystem(s) | Self::Exec(s) => wire::Field::write(&s.as_slice(), &mut out),
            Self::Env(name, value) => {
                wire::Field::write(&name.as_slice(), &mut out);
                wire::Field::write(&value.as_slice(), &mut out);
            }
            Self::AgentForwarding => {}
            Self::ExitStatus(status) => wire::Field::write(status, &mut out),
        }
        out
    }
}

/// What happened on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The peer confirmed it.
    Opened(ChannelId),
    /// The peer refused it.
    OpenFailed {
        /// Which.
        id: ChannelId,
        /// The code of RFC 4254 section 5.1.
        reason: u32,
        /// Its words, escaped.
        description: String,
    },
    /// The peer gave a predicted channel another number: what was sent went astray, and the
    /// connection must be left.
    PredictionFailed(ChannelId),
    /// A request that wanted a reply was granted.
    RequestSucceeded(ChannelId),
    /// It was refused.
    RequestFailed(ChannelId),
    /// Data, a slice of the segment it came in. Give [`super::Channels::consumed`] its length
    /// when it has left memory.
    Data(ChannelId, Bytes),
    /// Standard error of the far program.
    ExtendedData(ChannelId, Bytes),
    /// No more data will come.
    Eof(ChannelId),
    /// The far program ended.
    ExitStatus(ChannelId, u32),
    /// The far program was ended by this signal (escaped).
    ExitSignal(ChannelId, String),
    /// The channel is gone.
    Closed(ChannelId),
    /// The answer to a keepalive.
    Alive,
    /// The peer opened an agent channel, which it was allowed to. Answer with
    /// [`super::Channels::accept`] or [`super::Channels::reject`].
    AgentOpened(ChannelId),
    /// A server only: a client opened a session. Answer as above.
    SessionOpened(ChannelId),
    /// A server only: a request that must be answered with [`super::Channels::answer`] if it
    /// wants a reply.
    Request {
        /// Which channel.
        id: ChannelId,
        /// Its name.
        name: Vec<u8>,
        /// Its data.
        data: Bytes,
        /// Whether an answer is wanted.
        want_reply: bool,
    },
}
