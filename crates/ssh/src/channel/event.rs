//! Events and requests of channels.

use bytes::Bytes;

/// Channel number that this end assigned, by which the peer addresses the channel (RFC 4254 section
/// 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// Channel request that we send (RFC 4254 section 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutgoingRequest {
    /// `subsystem`.
    Subsystem(Vec<u8>),
    /// `exec`, with the command.
    Exec(Vec<u8>),
    /// `env`, with name and value; it never wants a reply.
    Env(Vec<u8>, Vec<u8>),
    /// `auth-agent-req@openssh.com`: permits the peer to open agent channels.
    AgentForwarding,
    /// `exit-status`, sent by a server.
    ExitStatus(u32),
}

impl OutgoingRequest {
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

/// Event of a channel or answer to a global request, for the owner of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The peer confirmed the channel.
    Opened(ChannelId),
    /// The peer refused the channel.
    OpenFailed {
        /// The channel.
        id: ChannelId,
        /// Reason code of RFC 4254 section 5.1.
        reason: u32,
        /// The peer's description, escaped.
        description: String,
    },
    /// The prediction for this channel was wrong, so data may have gone to another channel; the
    /// connection must be closed.
    PredictionFailed(ChannelId),
    /// A request that wanted a reply succeeded.
    RequestSucceeded(ChannelId),
    /// A request that wanted a reply failed.
    RequestFailed(ChannelId),
    /// Data as a slice of the receive segment. The owner passes its length to
    /// [`super::Channels::consumed`] once it has processed the data.
    Data(ChannelId, Bytes),
    /// Data of the remote program's standard error.
    ExtendedData(ChannelId, Bytes),
    /// The peer sends no more data.
    Eof(ChannelId),
    /// The remote program exited with this status.
    ExitStatus(ChannelId, u32),
    /// The remote program was ended by this signal; the name is escaped.
    ExitSignal(ChannelId, String),
    /// The channel is closed.
    Closed(ChannelId),
    /// The answer to a keepalive arrived.
    Alive,
    /// The answer to a request for proofs of host keys; `None` for a failure.
    ProofsAnswered(Option<Bytes>),
    /// The peer opened an agent channel, which was permitted. Answer with
    /// [`super::Channels::accept`] or [`super::Channels::reject`].
    AgentOpened(ChannelId),
    /// Server only: a client opened a session. Answer with [`super::Channels::accept`] or
    /// [`super::Channels::reject`].
    SessionOpened(ChannelId),
    /// Server only: a channel request, to be answered with [`super::Channels::answer`] if it wants
    /// a reply.
    Request {
        /// The channel.
        id: ChannelId,
        /// Request type.
        name: Vec<u8>,
        /// Data specific to the request.
        data: Bytes,
        /// True if the client wants a reply.
        want_reply: bool,
    },
}
