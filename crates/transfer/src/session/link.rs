use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::{Registry, Token};
use schedule::{LearnedConcurrency, LoginCost, RefusedOperations, TransferDirection};
use sftp::{ClientOutput, ServerInfo};
use wire::PacketPool;

use super::direct::{ControlSender, DirectServerStatus};
use super::remote_commands::RemoteCommandError;
use crate::report::DecisionOrigin;
use crate::timeline::ConnectionTimeline;

/// Channel of a [`Link`]: one byte stream in each direction, with an SFTP server at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkChannelId(pub u32);

/// Facts about the server that are known before any data came on a channel.
#[derive(Clone, Debug, Default)]
pub struct InitialServerFacts {
    /// The SSH banner says OpenSSH, so handles can be predicted if the SFTP extensions agree.
    pub openssh: bool,
    /// Version and extensions of its SFTP server in an earlier session.
    pub remembered: Option<ServerInfo>,
    /// Knowledge about a longhaul at the far end.
    pub far: RemoteLonghaulKnowledge,
    /// SSH compression is on, so the link's rate is not the path's.
    pub deflates: bool,
}

/// Knowledge about a longhaul at the far end before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteLonghaulKnowledge {
    /// Do not probe for one, for this reason.
    Never(&'static str),
    /// The SSH server itself is longhaul.
    Server,
    /// Nothing is known. Small copies do not probe unless the user insists.
    Unknown {
        /// The user insists on a probe.
        insists: bool,
    },
    /// Nothing is known, but the user says that there is one, so lanes start on it.
    UserAsserted,
    /// A longhaul answered in an earlier session with this version and these extensions.
    SeenBefore(ServerInfo),
}

impl Default for RemoteLonghaulKnowledge {
    fn default() -> Self {
        Self::Never("the server is a local program")
    }
}

/// Result of probing for a longhaul at the far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LonghaulProbeResult {
    /// A longhaul answered.
    Serves {
        /// Software version of that longhaul.
        software: String,
        /// SFTP version and extensions that it announced.
        info: ServerInfo,
    },
    /// There is no longhaul.
    Absent,
    /// There may be a longhaul, but it cannot serve this account's files in time, or at the same
    /// paths.
    Unusable,
}

/// Connection to a server that carries one or more channels.
///
/// The session's loop owns it. Each turn calls [`Link::ready`] for every mio event,
/// [`Link::handle_timeout`], [`Link::receive`] until no more data is there, [`Link::send`] within
/// [`Link::room`], then [`Link::flush`]. Readiness is edge-triggered: a link remembers it until a
/// read or write would block.
pub trait Link: Send {
    /// Registers the link's descriptors with fewer than 64 tokens, starting at `first`.
    fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()>;

    /// True for a direct connection ([`DirectServerLauncher`]).
    fn is_straight(&self) -> bool {
        false
    }

    /// True if the link uses an optional feature that the user did not request and that could be
    /// the reason for its failure: zlib.
    fn has_own_choice(&self) -> bool {
        false
    }

    /// True if the server refused the last login, also while the connection starts over: it has
    /// carried out no request that left with that login.
    fn was_denied(&self) -> bool {
        false
    }

    /// True if the server has carried out no request of this link, since none of its logins has
    /// succeeded.
    fn was_never_served(&self) -> bool {
        self.was_denied()
    }

    /// Facts about the server; `None` until its banner has arrived. Jobs wait for it.
    fn peer(&self) -> Option<InitialServerFacts>;

    /// True if the first channel is expected to lead to a server that lists whole trees.
    fn expects_trees(&self) -> bool {
        false
    }

    /// Record of the connection's steps, if one is kept.
    fn track(&self) -> Option<ConnectionTimeline> {
        None
    }

    /// Notes the SFTP server's version and extensions for the next session.
    fn server_seen(&mut self, _: &ServerInfo) {}

    /// Notes the result of the probe for a longhaul.
    fn far_seen(&mut self, _: &LonghaulProbeResult) {}

    /// Memory pool for outgoing data; each slot is the payload of one packet.
    fn pool(&self) -> PacketPool;

    /// Opens another channel. Data sent before its confirmation waits. `None` if the link carries
    /// no more channels.
    fn open_channel(&mut self) -> Option<LinkChannelId>;

    /// Opens another channel to a longhaul that a command starts, in place of the stock SFTP
    /// server. `None` also if the link cannot run commands.
    fn open_served(&mut self) -> Option<LinkChannelId> {
        None
    }

    /// Opens a channel on which the server runs `command`. Output arrives as data of the channel,
    /// and the end as [`LinkEvent::Exited`]. `None` if the link cannot run commands.
    fn open_exec(&mut self, _command: &[u8]) -> Option<LinkChannelId> {
        None
    }

    /// Ends the input of `channel` (EOF).
    fn end_input(&mut self, _channel: LinkChannelId) {}

    /// Closes a channel; nothing more is received on it.
    fn close_channel(&mut self, channel: LinkChannelId);

    /// Handles a readiness event of mio for `token`.
    fn ready(&mut self, token: Token, readable: bool, writable: bool);

    /// Receives a bounded amount and pushes the resulting events. Returns true if more may be
    /// available at once.
    fn receive(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError>;

    /// Returns no window for the output of a command while `paused`, so that it stops once the window
    /// is used up. Links without commands do nothing.
    fn pause_output(&mut self, _now: Instant, _channel: LinkChannelId, _paused: bool) {}

    /// Limits [`Link::receive`] to about `bytes` at a time, for a rate limit.
    fn limit_receive(&mut self, bytes: usize);

    /// Bytes that [`Link::send`] accepts for `channel` now.
    fn room(&self, channel: LinkChannelId) -> usize;

    /// Requests a congestion control that tolerates packet loss. Returns false if none is
    /// available.
    fn bear_losses(&mut self) -> bool {
        false
    }

    /// True if the far end is this machine, as far as can be told.
    fn is_one_machine(&self) -> bool {
        false
    }

    /// Counters and TCP state of the underlying connection.
    fn sample(&self) -> LinkSample {
        LinkSample::default()
    }

    /// Sends a request that the server's SSH answers at once, without any program there. Returns
    /// false if the link knows none.
    fn ask_alive(&mut self) -> bool {
        false
    }

    /// Number of answers to [`Link::ask_alive`], and to keepalives.
    fn alive_answers(&self) -> u64 {
        0
    }

    /// State of the far end's window on `channel`.
    fn send_window(&mut self, _channel: LinkChannelId) -> RemoteWindowState {
        RemoteWindowState::default()
    }

    /// Announces that the lane on `channel` may request `bytes` at once, so that no receive window
    /// is smaller.
    fn expect(&mut self, _channel: LinkChannelId, _bytes: u64) {}

    /// Queues bytes for `channel`.
    fn send(&mut self, channel: LinkChannelId, output: ClientOutput);

    /// Writes queued data as far as the descriptors accept it. Returns true if a queue became
    /// shorter and room may have grown.
    fn flush(&mut self, now: Instant) -> Result<bool, LinkError>;

    /// Time at which [`Link::handle_timeout`] must be called next.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Handles the passage of time.
    fn handle_timeout(&mut self, now: Instant) -> Result<(), LinkError>;

    /// Closes the link properly (disconnect message, waiting for a child) within a short time.
    fn finish(self: Box<Self>);

    /// True if [`Link::cut`] can discard unsent data. Otherwise data that was written arrives in
    /// any case.
    fn cuts(&self) -> bool {
        false
    }

    /// Closes the link at once and discards unsent data.
    fn cut(self: Box<Self>) {
        self.finish();
    }
}

/// Opens more connections to the host of a session, on threads of their own.
pub trait ConnectionOpener: Send + Sync {
    /// True if another login is possible now without a prompt.
    fn is_open(&self) -> bool;

    /// Largest number of connections, if each one has a further cost such as a login at every jump
    /// host.
    fn most(&self) -> Option<u32> {
        None
    }

    /// Opens and authenticates one more connection, blocking meanwhile. `brief` says that a round
    /// trip costs more than 0.4 % of the transfer, or that the data received is too little to be
    /// slowed down.
    fn another(&self, brief: bool) -> Result<Box<dyn Link>, FurtherConnectionError>;

    /// Number of connections that were opened in advance and wait for their login.
    fn preconnected(&self) -> u32 {
        0
    }

    /// True if [`ConnectionOpener::reconnect`] may prompt the user once.
    fn asks(&self) -> bool {
        false
    }

    /// Cost of further logins on this host in earlier runs.
    fn login_cost(&self) -> LoginCost {
        LoginCost::default()
    }

    /// Remembers what further logins cost in this run.
    fn note_login_cost(&self, _: LoginCost) {}

    /// Opens a replacement for lost or silent connections. Gives up within seconds, and the caller
    /// tries again.
    fn reconnect(&self) -> Result<Box<dyn Link>, FurtherConnectionError> {
        self.another(false)
    }

    /// Turns off optional features ([`Link::has_own_choice`]) for further connections after one
    /// that used them was lost. `at_fault` means that it was lost so early that the feature is
    /// probably the reason, which is remembered.
    fn choose_nothing(&self, _at_fault: bool) {}

    /// Source of direct connections. [`ConnectionOpener::another`] makes them once their server
    /// listens.
    fn straight(&self) -> Option<Arc<dyn DirectServerLauncher>> {
        None
    }

    /// Notes which server handles the lanes: a longhaul that a command starts, or the stock server.
    fn note_serving(&self, _ours: bool) {}

    /// Origin of the knowledge about a remote longhaul if it was not probed.
    fn far_origin(&self) -> DecisionOrigin {
        DecisionOrigin::Default
    }

    /// Values learned from this host by an earlier run, for a transfer in this direction.
    fn learned(&self, _: TransferDirection) -> Option<LearnedConcurrency> {
        None
    }

    /// Stores learned values for the next run.
    fn learn(&self, _: LearnedConcurrency) {}

    /// Requests that the host's own SFTP server was found to refuse.
    fn refusals(&self) -> RefusedOperations {
        RefusedOperations::default()
    }

    /// Adds further refused requests.
    fn note_refusals(&self, _: RefusedOperations) {}

    /// True if an earlier copy to this path created a file of that name, for paths that do not say
    /// if they are a directory.
    fn was_file(&self, _path: &[u8]) -> bool {
        false
    }

    /// Notes that the guess about this path was wrong. `file` is the right answer for the next run.
    fn note_place(&self, _path: &[u8], _file: bool) {}
}

/// Starts a longhaul server at the host over one connection, to which further connections are made
/// directly. The session runs the command and carries the messages of both ends.
pub trait DirectServerLauncher: Send + Sync {
    /// Returns the command that starts the server and its first input, or `None` if direct
    /// connections should not be tried. Later input goes through `outlet`.
    fn begin(&self, outlet: ControlSender) -> Option<(Vec<u8>, Vec<u8>)>;

    /// True if data should wait until the outcome is known.
    fn insists(&self) -> bool;

    /// Handles output of the server; `rtt` is the round trip to the host.
    fn heard(&self, bytes: &[u8], rtt: Duration) -> DirectServerStatus;

    /// Handles the end or silence of the server; `why` is one sentence.
    fn control_closed(&self, why: &str);

    /// Handles the loss of the control connection. The server may be started again over another
    /// one.
    fn lost(&self);

    /// Keepalive message without further meaning.
    fn life_sign(&self) -> Vec<u8>;

    /// Reason for the failure, if direct connections have failed.
    fn failed(&self) -> Option<String>;

    /// Version of the server, once it has answered.
    fn software(&self) -> Option<String>;
}

/// Reason that no further connection could be made, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FurtherConnectionError {
    /// The connection was refused or broke before the login, for example by MaxStartups, a penalty
    /// or a firewall.
    Connection(String),
    /// The login was refused or would need a prompt.
    Login(String),
}

impl fmt::Display for FurtherConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(why) | Self::Login(why) => f.write_str(why),
        }
    }
}

/// Counters and TCP state of the connection under a [`Link`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkSample {
    /// Bytes written to the socket.
    pub sent: u64,
    /// Encrypted bytes not yet written to the socket.
    pub unwritten: u64,
    /// Bytes read from the socket.
    pub received: u64,
    /// The kernel's TCP_INFO, if the link runs over a TCP socket of this machine.
    pub tcp: Option<sys::TcpInfo>,
}

/// State of a channel's window at the far end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteWindowState {
    /// Largest window seen, in bytes; 0 while unknown.
    pub largest: u64,
    /// Data waits for the window and for nothing else.
    pub stalled: bool,
    /// Bytes that wait for the window or for the socket.
    pub queued: u64,
}

/// Event received from a link.
#[derive(Debug)]
pub enum LinkEvent {
    /// Data of a channel.
    Data(LinkChannelId, Bytes),
    /// A channel ended or its request was refused, with the reason if known.
    Closed(LinkChannelId, Option<String>),
    /// The server refused another channel, with the reason.
    Refused(LinkChannelId, String),
    /// All channels are gone and the connection starts over without predictions. A `Closed` event
    /// follows for each channel.
    Restarted,
    /// The other side closed a channel that this side had closed before, so no request on it can
    /// still run there.
    Ended(LinkChannelId),
    /// A command ended with this exit status, if there is one, or could not run for this reason.
    Exited(LinkChannelId, Result<Option<u32>, RemoteCommandError>),
    /// Line for the user from the other side (stderr or a banner), not escaped yet.
    Message(String),
}

/// Reason that a link ended: one sentence without the host name, which the caller prepends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The connection was lost or never established.
    Lost(String),
    /// This end closed the connection in the middle of a message because a source file became
    /// shorter while it was sent from a mapping. Path and host are fine.
    SourceTruncated(String),
}

impl LinkError {
    /// Returns the sentence.
    pub fn into_words(self) -> String {
        match self {
            Self::Lost(words) | Self::SourceTruncated(words) => words,
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(words) | Self::SourceTruncated(words) => f.write_str(words),
        }
    }
}
