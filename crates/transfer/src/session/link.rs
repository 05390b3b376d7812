use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::{Registry, Token};
use schedule::{Direction, Learned, Refusals};
use sftp::{Output, ServerInfo};
use wire::Pool;

use super::direct::{ControlMessage, Heard};
use crate::report::Origin;

/// A channel of a [`Link`]: one byte stream each way, with an SFTP server at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// What is known of the server before it has said anything on a channel.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its SSH banner says OpenSSH: handles can be predicted where its SFTP extensions agree.
    pub openssh: bool,
    /// What its SFTP server said the last time.
    pub remembered: Option<ServerInfo>,
    /// Whether there is a longhaul.
    pub far: Known,
    /// SSH makes what passes smaller, so that its rate is not the path's.
    pub deflates: bool,
}

/// What is known of a longhaul at the far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is not asked for, and why.
    Never(&'static str),
    /// The SSH server itself is one.
    Server,
    /// Nothing. What is copied may be too little to ask, unless the user insists.
    Unknown {
        /// The user does.
        insists: bool,
    },
    /// Nothing, but the user says that there is one: nothing else is begun with.
    Hoped,
    /// It answered the last time, and this is what it announced.
    Serves(ServerInfo),
}

impl Default for Known {
    fn default() -> Self {
        Self::Never("the server is a program of this machine's")
    }
}

/// What was found out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// One answered.
    Serves {
        /// Its version.
        software: String,
        /// What it announced.
        info: ServerInfo,
    },
    /// None did.
    Absent,
}

/// A way to a server that carries one or more channels.
///
/// The session's loop owns it. Each turn: [`Link::ready`] for what mio reported,
/// [`Link::handle_timeout`], [`Link::receive`] until nothing more is there,
/// [`Link::send`] within [`Link::room`], [`Link::flush`]. Readiness is edge-triggered: a link
/// remembers it until a read or write would block.
pub trait Link: Send {
    /// Registers its descriptors with tokens from `first` on, fewer than 64.
    fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()>;

    /// It goes beside the server's own logins ([`DirectConnect`]).
    fn is_straight(&self) -> bool {
        false
    }

    /// It has something that was chosen for it although nobody had asked for that, and that could be
    /// why it fails: zlib.
    fn has_own_choice(&self) -> bool {
        false
    }

    /// What is known of the server; `None` while its banner is still to come. Jobs wait for it.
    fn peer(&self) -> Option<Peer>;

    /// As far as is known, the first channel will lead to a server that lists whole trees.
    fn expects_trees(&self) -> bool {
        false
    }

    /// The SFTP server has said what it is; worth remembering for the next visit.
    fn server_seen(&mut self, _: &ServerInfo) {}

    /// Whether there is a longhaul was found out.
    fn far_seen(&mut self, _: &Seen) {}

    /// Memory for what is sent; its slot is the payload of one packet.
    fn pool(&self) -> Pool;

    /// Opens one more channel; what is sent on it before it is confirmed waits. `None` when the
    /// link carries no more.
    fn open_channel(&mut self) -> Option<ChannelId>;

    /// The same, with a longhaul that a command starts in place of the stock SFTP server. `None`
    /// also where there is no way to run a command.
    fn open_served(&mut self) -> Option<ChannelId> {
        None
    }

    /// Opens a channel on which the server runs `command`; what it writes comes as data of the
    /// channel, and its end as [`LinkEvent::Exited`]. `None` where no command can be run.
    fn open_exec(&mut self, _command: &[u8]) -> Option<ChannelId> {
        None
    }

    /// Nothing more is sent on `channel`.
    fn end_input(&mut self, _channel: ChannelId) {}

    /// Gives a channel up; nothing more is received from it.
    fn close_channel(&mut self, channel: ChannelId);

    /// mio reported `token`.
    fn ready(&mut self, token: Token, readable: bool, writable: bool);

    /// Receives a bounded amount; pushes what came. True when there may be more at once.
    fn receive(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError>;

    /// From now on [`Link::receive`] takes at most about `bytes`: the rate is held down.
    fn limit_receive(&mut self, bytes: usize);

    /// Bytes that [`Link::send`] may be given for `channel` now.
    fn room(&self, channel: ChannelId) -> usize;

    /// Packets are lost on the way: asks for a congestion control that bears it. False where it
    /// is not to be had.
    fn bear_losses(&mut self) -> bool {
        false
    }

    /// The far end is this machine, as far as can be told.
    fn is_one_machine(&self) -> bool {
        false
    }

    /// How the connection beneath does.
    fn sample(&self) -> LinkSample {
        LinkSample::default()
    }

    /// What the far end's window lets through on `channel`.
    fn send_window(&mut self, _channel: ChannelId) -> SendWindow {
        SendWindow::default()
    }

    /// The lane on `channel` may ask for `bytes` at once: no window of this end may be smaller.
    fn expect(&mut self, _channel: ChannelId, _bytes: u64) {}

    /// Queues bytes for `channel`.
    fn send(&mut self, channel: ChannelId, output: Output);

    /// Writes what the descriptors take; true when a queue became shorter and room may have
    /// grown.
    fn flush(&mut self, now: Instant) -> Result<bool, LinkError>;

    /// When [`Link::handle_timeout`] must be called next.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Time has passed.
    fn handle_timeout(&mut self, now: Instant) -> Result<(), LinkError>;

    /// Ends it in the way it should end (disconnect message, waiting for a child), briefly.
    fn finish(self: Box<Self>);

    /// Whether [`Link::cut`] is to be had. Else what was written arrives whatever is done here.
    fn cuts(&self) -> bool {
        false
    }

    /// Ends it at once: nothing more of what was written leaves.
    fn cut(self: Box<Self>) {
        self.finish();
    }
}

/// Makes more connections to the host of a session, from threads of their own.
pub trait ConnectionSource: Send + Sync {
    /// Whether another login is to be had now without asking the person.
    fn is_open(&self) -> bool;

    /// The most connections there should be, where each costs others something too: a login at
    /// each host on the way.
    fn most(&self) -> Option<u32> {
        None
    }

    /// One more connection, authenticated. Blocks as long as that takes. With `brief` what it is for is over so soon
    /// that a round trip is worth more than 0.4 % of the rate, or nothing comes that would be slower.
    fn another(&self, brief: bool) -> Result<Box<dyn Link>, NoMoreConnections>;

    /// Whether [`ConnectionSource::again`] asks the person, once.
    fn asks(&self) -> bool {
        false
    }

    /// One in place of those that were lost, or silent. Gives up within seconds, to be tried
    /// again.
    fn again(&self) -> Result<Box<dyn Link>, NoMoreConnections> {
        self.another(false)
    }

    /// A connection was lost that had something which nobody had asked for ([`Link::has_own_choice`]):
    /// further ones are made without. `at_fault`: so soon that it is probably the reason, which is
    /// remembered.
    fn choose_nothing(&self, _at_fault: bool) {}

    /// How connections are made that go beside the server's own logins; [`ConnectionSource::another`] makes
    /// them from the time on that their server listens.
    fn straight(&self) -> Option<Arc<dyn DirectConnect>> {
        None
    }

    /// It was found out what serves files there: a longhaul that a command starts, or the stock server.
    fn note_serving(&self, _ours: bool) {}

    /// What is known of a longhaul there comes from this, where it was not asked for.
    fn far_origin(&self) -> Origin {
        Origin::Default
    }

    /// What an earlier run learned of this host, for a transfer this way.
    fn learned(&self, _: Direction) -> Option<Learned> {
        None
    }

    /// Worth knowing the next time.
    fn learn(&self, _: Learned) {}

    /// Operations that the host's own SFTP server was found to refuse.
    fn refusals(&self) -> Refusals {
        Refusals::default()
    }

    /// More of them were found.
    fn note_refusals(&self, _: Refusals) {}

    /// Whether what was sent to this path the last time took its name, where the path says nothing
    /// of whether it is a directory's.
    fn was_file(&self, _path: &[u8]) -> bool {
        false
    }

    /// It was guessed wrong whether this path is a directory; the next time `file` is to be right.
    fn note_place(&self, _path: &[u8], _file: bool) {}
}

/// Connections that go beside the server's own logins, to a server that a command starts over one
/// of them. The session runs the command and carries what the two ends of it say.
pub trait DirectConnect: Send + Sync {
    /// What starts the server, and what it is told first; `None` where that is not to be tried.
    /// What it is told later goes out by `outlet`.
    fn begin(&self, outlet: ControlMessage) -> Option<(Vec<u8>, Vec<u8>)>;

    /// Data wait until it is known what comes of it.
    fn insists(&self) -> bool;

    /// The server has said something; `rtt` is the round trip to the host.
    fn heard(&self, bytes: &[u8], rtt: Duration) -> Heard;

    /// It has ended, or does not answer: why, one sentence.
    fn over(&self, why: &str);

    /// The connection that it was started over is gone: it may be begun again over another one.
    fn lost(&self);

    /// A message that means nothing.
    fn life_sign(&self) -> Vec<u8>;

    /// Why nothing more comes of it.
    fn failed(&self) -> Option<String>;

    /// The version of its server, once that has answered.
    fn software(&self) -> Option<String>;
}

/// Why there is no further connection, one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoMoreConnections {
    /// It was refused, or broke before the login: MaxStartups, a penalty, a firewall.
    Connection(String),
    /// The login was refused, or would take the person.
    Login(String),
}

impl fmt::Display for NoMoreConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(why) | Self::Login(why) => f.write_str(why),
        }
    }
}

/// How the connection under a [`Link`] does.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkSample {
    /// Bytes written to its socket.
    pub sent: u64,
    /// Bytes that are sealed and not written to it.
    pub unwritten: u64,
    /// Bytes read from it.
    pub received: u64,
    /// What the kernel says, where there is a kernel's TCP under it.
    pub tcp: Option<sys::TcpInfo>,
}

/// A channel's window towards the far end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendWindow {
    /// The most that was open at once, in bytes; 0 while nothing is known.
    pub largest: u64,
    /// Data wait for it and for nothing else.
    pub stalled: bool,
    /// Bytes that wait for it, or for the socket.
    pub queued: u64,
}

/// What a link received.
#[derive(Debug)]
pub enum LinkEvent {
    /// Bytes of a channel.
    Data(ChannelId, Bytes),
    /// A channel ended, or what it was to be for was refused; why, when that is known.
    Closed(ChannelId, Option<String>),
    /// The server has no further channel, and why.
    Refused(ChannelId, String),
    /// All channels are gone: the connection begins again without predictions. A `Closed` for each
    /// follows.
    Restarted,
    /// The other side has ended a channel that this one had closed before: what was at work on it
    /// there is over.
    Over(ChannelId),
    /// A command has ended, with its exit status where there is one, or was not run, and why.
    Exited(ChannelId, Result<Option<u32>, String>),
    /// A line for the user from the other side (stderr, a banner); not escaped yet.
    Says(String),
}

/// Why a link is over: one sentence, without the host, which whoever shows it puts in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// It was lost, or there never was one.
    Lost(String),
    /// It was ended from here, in the middle of a message: a file became shorter while it was sent from where
    /// the kernel has it. Nothing is wrong with the path or the host.
    Torn(String),
}

impl LinkError {
    /// The sentence.
    pub fn into_words(self) -> String {
        match self {
            Self::Lost(words) | Self::Torn(words) => words,
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(words) | Self::Torn(words) => f.write_str(words),
        }
    }
}
