//! The transport layer (RFC 4253), for either role: identification, key exchange and rekey,
//! sealed packets. Authentication and channels sit on top of it, in [`crate::Connection`].
//!
//! ```text
//!            handle_input          next_payload
//!   socket ───────────────▶ ┌───────────┐ ───────────▶ auth, channels
//!                           │ Transport │
//!   socket ◀─────────────── └───────────┘ ◀─────────── auth, channels
//!            poll_output           send
//! ```

mod exchange;
mod handover;
mod incoming;
mod keys;
mod open;
mod partial_packet;
mod proposal;
mod seal;
#[cfg(test)]
mod tests;
mod version;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use wire::{BorrowPolicy, PacketBuf};

pub use handover::Handover;
pub use open::{OpenJob, Opened};
pub(crate) use partial_packet::{Front, HEAD};
pub use proposal::{Direction, DisabledProtection, Negotiated, Proposal};
pub use seal::{Output, SealJob, Sealed};
pub use version::Ident;

use crate::Role;
use crate::crypto_offload::Helper;
use crate::error::Error;
use crate::key::HostKey;
use crate::msg::{Disconnect, Ignore, Ping};
use exchange::{Exchange, Prepared};
use handover::Kept;
use open::Inbound;
use seal::Outbound;

/// Packets per key at most, as OpenSSH's MAX_PACKETS (packet.c): 2^31.
const MAX_PACKETS: u64 = 1 << 31;

/// Fills a slice with unpredictable bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Settings of a [`Transport`].
#[derive(Clone)]
pub struct TransportConfig {
    /// softwareversion of our identification.
    pub software: String,
    /// What we offer.
    pub proposal: Proposal,
    /// A client's.
    pub guess: Guess,
    /// Rekey after this many bytes in either direction (RekeyLimit); never later than the
    /// cipher's own limit.
    pub rekey_bytes: Option<u64>,
    /// Rekey after this long.
    pub rekey_time: Option<Duration>,
    /// A server's host keys.
    pub host_keys: Vec<Arc<dyn HostKey>>,
}

/// Whether a key exchange packet follows the first KEXINIT before the peer's has come (RFC 4253
/// section 7). It counts where both sides name the same key exchange and host key first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guess {
    /// None does.
    #[default]
    Never,
    /// Both leave at once: the peer preferred our first choices when it was last seen.
    Remembered,
    /// KEXINIT waits for the peer's identification, and where that is OpenSSH's, the key exchange
    /// that its version prefers goes with it. Neither waits longer for that: sshd's KEXINIT
    /// is held by Nagle's algorithm until its identification is acknowledged, so that it comes a
    /// round trip after it, and what a wrong guess costs is a packet.
    ByVersion,
}

/// What the transport tells its owner.
#[derive(Clone, Debug)]
pub enum TransportEvent {
    /// The peer's identification came.
    Identified(Ident),
    /// The peer's KEXINIT came and both sides have algorithms in common.
    Negotiated {
        /// The choice.
        chosen: Negotiated,
        /// The first key exchange and host key name of the peer's list: what a guess must meet.
        favourites: (String, String),
        /// What else the peer offers.
        offers: Offers,
    },
    /// Client: the server proved to own this key; nothing more is sent until
    /// [`Transport::accept_host_key`].
    HostKey(Bytes),
    /// New keys are in use in both directions.
    Keys {
        /// The first time.
        first: bool,
    },
    /// The peer's EXT_INFO came.
    Extensions,
    /// DEBUG that wants to be shown, escaped.
    Debug(String),
    /// The answer to a PING.
    Pong,
}

/// What the peer's KEXINIT offers for what the client sends, each list as it came: joined by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Ciphers.
    pub ciphers: String,
    /// MACs.
    pub macs: String,
    /// Compression.
    pub compression: String,
}

/// What EXT_INFO said (RFC 8308).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// server-sig-algs.
    pub sig_algs: Option<Vec<String>>,
    /// publickey-hostbound@openssh.com version 0.
    pub hostbound: bool,
    /// ping@openssh.com version 0.
    pub ping: bool,
}

/// The transport layer's state machine. No I/O and no clock: [`Transport::next_payload`] takes
/// bytes in, [`Transport::poll_output`] gives packets out, [`Transport::poll_event`] tells.
pub struct Transport {
    role: Role,
    config: TransportConfig,
    random: Random,
    ours: Ident,
    theirs: Option<Ident>,
    preamble: version::Preamble,
    outbound: Outbound,
    inbound: Inbound,
    exchange: Exchange,
    /// Of the first KEXINIT.
    cookie: [u8; 16],
    /// The part of a guess that takes long, made while the peer is waited for.
    prepared: Option<Prepared>,
    /// The exchange hash of the first key exchange.
    session_id: Option<Bytes>,
    /// Signature over the first exchange hash, for the agent's session-bind.
    host_signature: Option<Bytes>,
    host_key: Option<Bytes>,
    strict: bool,
    peer_takes_ext_info: bool,
    extensions: Extensions,
    authenticated: bool,
    renounced: DisabledProtection,
    /// A server's, where it offers less than it could.
    could_offer: Option<Proposal>,
    /// Messages that came too early for the peer, and of which it will say so.
    forgiven: u32,
    hears_early: bool,
    keys_since: Option<Instant>,
    rekey_limit: u64,
    negotiated: Option<Negotiated>,
    /// What the keys in use were made of, where they are to be handed over.
    kept: Option<Kept>,
    ready: VecDeque<Output>,
    events: VecDeque<TransportEvent>,
}

impl Transport {
    /// A transport that has its identification and, but for [`Guess::ByVersion`], KEXINIT ready
    /// to be sent.
    ///
    /// `random` fills a slice with unpredictable bytes: KEXINIT's cookie and padding.
    pub fn new(role: Role, config: TransportConfig, random: Random) -> Result<Self, Error> {
        config.proposal.check()?;
        let ours = Ident::ours(&config.software);
        let mut transport = Self {
            role,
            config,
            random,
            ours,
            theirs: None,
            preamble: version::Preamble::default(),
            outbound: Outbound::new(),
            inbound: Inbound::new(),
            exchange: Exchange::Idle,
            cookie: [0; 16],
            prepared: None,
            session_id: None,
            host_signature: None,
            host_key: None,
            strict: false,
            peer_takes_ext_info: false,
            extensions: Extensions::default(),
            authenticated: false,
            renounced: DisabledProtection::Nothing,
            could_offer: None,
            forgiven: 0,
            hears_early: false,
            keys_since: None,
            rekey_limit: u64::MAX,
            negotiated: None,
            kept: None,
            ready: VecDeque::new(),
            events: VecDeque::new(),
        };
        // The first random bytes may take long (the system's entropy is gathered), and there is
        // time for it now.
        (transport.random)(&mut transport.cookie);
        let line = format!("{}\r\n", transport.ours.as_str());
        transport.ready.push_back(Output::Raw(line.into_bytes()));
        if transport.guess() != Guess::ByVersion {
            transport.start_exchange()?;
        }
        Ok(transport)
    }

    /// Takes packets from the front of `buf` and handles those of the transport layer; returns
    /// the first payload that belongs to a layer above. `None`: more bytes are needed, or the
    /// host key waits for [`Transport::accept_host_key`].
    pub fn next_payload(
        &mut self,
        now: Instant,
        buf: &mut BytesMut,
    ) -> Result<Option<Bytes>, Error> {
        if self.theirs.is_none() {
            let client = self.role == Role::Client;
            match version::take_ident(buf, &mut self.preamble, client)? {
                Some(ident) => {
                    self.events
                        .push_back(TransportEvent::Identified(ident.clone()));
                    self.prefer_kex(ident.usual_kex());
                    self.theirs = Some(ident);
                    if self.guess() == Guess::ByVersion {
                        self.start_exchange()?;
                    }
                }
                None => return Ok(None),
            }
        }
        while !self.exchange.waits_for_approval() {
            // What is opened ahead has the present keys. A peer that has not begun a key exchange
            // cannot end one before it hears from us, so its NEWKEYS is not among that.
            if self.authenticated && !self.exchange.peer_bound() {
                self.inbound.look_ahead(buf);
            }
            let Some(opened) = self.inbound.next_opened(buf)? else {
                return Ok(None);
            };
            if let Some(payload) = self.handle_packet(now, opened)? {
                return Ok(Some(payload));
            }
        }
        Ok(None)
    }

    /// Does what takes long and will probably be needed, while the peer's identification is on its
    /// way: the ephemeral key of sntrup761, which takes 12 ms and is what OpenSSH 9 prefers.
    pub fn prepare(&mut self) -> Result<(), Error> {
        let waits = self.theirs.is_none() && self.guess() == Guess::ByVersion;
        if waits && self.prepared.is_none() {
            self.prepared = self.prepare_kex()?;
        }
        Ok(())
    }

    fn guess(&self) -> Guess {
        match self.role {
            Role::Client => self.config.guess,
            Role::Server => Guess::Never,
        }
    }

    /// All that is offered is good enough, so what the server prefers may as well stand first.
    fn prefer_kex(&mut self, name: Option<&'static str>) {
        let kex = &mut self.config.proposal.kex;
        if self.config.guess == Guess::ByVersion
            && let Some(at) = name.and_then(|name| kex.iter().position(|n| n == name))
        {
            kex[..=at].rotate_right(1);
        }
    }

    /// Bytes that the packet arriving needs in all, so that the caller can make room for it in
    /// one piece.
    pub fn wanted(&self) -> usize {
        self.inbound.wanted().unwrap_or(0)
    }

    /// Whether messages of the layers above may be sent now: keys are in use and no key exchange
    /// is under way. OpenSSH 10.4 disconnects on anything between our KEXINIT and our NEWKEYS.
    pub fn may_send(&self) -> bool {
        self.session_id.is_some() && self.exchange.app_may_send()
    }

    /// Whether a message may be sent that is no step of the login.
    ///
    /// zlib@openssh.com starts behind USERAUTH_SUCCESS in both directions (OpenSSH, packet.c,
    /// ssh_packet_enable_delayed_compress). While a client waits for that message, it cannot know
    /// if the server will read its next packet before or behind the start, so it sends none:
    /// IGNOREs that were sent then, uncompressed, ended every upload with zlib from 20 ms on.
    pub(super) fn may_send_unasked(&self) -> bool {
        let waits_for_start = self.role == Role::Client
            && !self.authenticated
            && self.negotiated.as_ref().is_some_and(|n| n.c2s.compress);
        self.may_send() && !waits_for_start
    }

    /// Sends a message of a layer above; only while [`Transport::may_send`].
    pub fn send(&mut self, packet: PacketBuf) -> Result<(), Error> {
        let job = self.outbound.job(packet, &mut *self.random)?;
        self.ready.push_back(Output::Packet(job));
        Ok(())
    }

    /// Sends a message that holds a secret, padded so that its length tells little of it.
    pub fn send_hidden(&mut self, payload: &[u8]) -> Result<(), Error> {
        let job = self.outbound.hidden_job(payload, &mut *self.random)?;
        self.ready.push_back(Output::Packet(job));
        Ok(())
    }

    fn send_message(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.send(PacketBuf::from_payload(payload))
    }

    /// Has others help with opening.
    pub fn set_helper(&mut self, helper: Helper) {
        self.inbound.set_helper(helper);
    }

    /// How long what is sent may stay where it lies.
    pub(crate) fn outlying(&self) -> BorrowPolicy {
        self.outbound.outlying()
    }

    /// Whether what is sent needs no sealing: there is neither cipher nor MAC.
    pub(crate) fn sends_clear(&self) -> bool {
        self.outbound.is_free()
    }

    /// What to write next; seal it, then write in this order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.ready.pop_front()
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<TransportEvent> {
        self.events.pop_front()
    }

    /// Starts a new key exchange if the keys have done enough work.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        let (out, inn) = (self.outbound.since_keys(), self.inbound.since_keys());
        let old = match (self.config.rekey_time, self.keys_since) {
            (Some(limit), Some(since)) => now.saturating_duration_since(since) >= limit,
            _ => false,
        };
        let worn = out.0.max(inn.0) >= self.rekey_limit || out.1.max(inn.1) >= MAX_PACKETS;
        if (old || worn) && self.session_id.is_some() && self.exchange.is_idle() {
            self.start_exchange()?;
        }
        Ok(())
    }

    /// When [`Transport::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let since = self.keys_since.filter(|_| self.exchange.is_idle())?;
        self.config
            .rekey_time
            .and_then(|limit| since.checked_add(limit))
    }

    /// Starts a key exchange now; false where there is one already.
    pub fn rekey(&mut self) -> Result<bool, Error> {
        let may = self.session_id.is_some() && self.exchange.is_idle();
        if may {
            self.start_exchange()?;
        }
        Ok(may)
    }

    /// Tells the peer why we leave (RFC 4253 section 11.1).
    pub fn disconnect(&mut self, reason: u32, description: &str) -> Result<(), Error> {
        let m = Disconnect {
            reason,
            description: description.as_bytes(),
            language: b"",
        };
        self.send_message(&m.to_bytes())
    }

    /// Sends a PING (ping@openssh.com) if the peer takes it and one may be sent.
    pub fn ping(&mut self, data: &[u8]) -> Result<bool, Error> {
        let may = self.extensions.ping && self.may_send_unasked();
        if may {
            self.send_message(&Ping { data }.to_bytes())?;
        }
        Ok(may)
    }

    /// Sends `len` bytes that mean nothing (IGNORE), if they may be sent: under keys only, since
    /// strict key exchange allows none before.
    pub fn ignore(&mut self, len: usize) -> Result<bool, Error> {
        let may = self.may_send_unasked();
        if may {
            let data = vec![0; len];
            self.send_message(&Ignore { data: &data }.to_bytes())?;
        }
        Ok(may)
    }

    /// Authentication is done: messages of the connection layer become legal, and
    /// zlib@openssh.com starts.
    pub fn set_authenticated(&mut self) {
        self.authenticated = true;
        self.apply_compression();
    }

    /// Does without these from the next key exchange on that begins after authentication, if the
    /// peer was told the same.
    pub fn renounce(&mut self, renounced: DisabledProtection) {
        self.renounced = renounced;
    }

    /// All that this server could offer and does not: whoever has nothing in common with what it
    /// offers is told whether that would do.
    pub fn set_could_offer(&mut self, all: Proposal) {
        self.could_offer = Some(all);
    }

    /// What is renounced in a key exchange that begins now.
    fn renounces(&self) -> DisabledProtection {
        match self.authenticated {
            true => self.renounced,
            false => DisabledProtection::Nothing,
        }
    }

    /// Hands out what a client says of channels before it has authenticated, to be refused as
    /// OpenSSH does (auth2.c, dispatch_protocol_error). Only for whoever carries none of it out:
    /// CVE-2018-10933 and CVE-2025-32433 were servers that did.
    pub fn hear_early(&mut self) {
        self.hears_early = self.role == Role::Server;
    }

    /// So many of the messages that were sent will be answered with UNIMPLEMENTED, and that is
    /// no harm.
    pub fn forgive_unimplemented(&mut self, messages: u32) {
        self.forgiven += messages;
    }

    fn apply_compression(&mut self) {
        let Some(n) = &self.negotiated else { return };
        let (out, inn) = self.directions(n);
        match self.authenticated && out.compress {
            true => self.outbound.start_compression(),
            false => self.outbound.stop_compression(),
        }
        match self.authenticated && inn.compress {
            true => self.inbound.start_compression(),
            false => self.inbound.stop_compression(),
        }
    }

    /// Outgoing and incoming direction for our role.
    fn directions(&self, n: &Negotiated) -> (Direction, Direction) {
        match self.role {
            Role::Client => (n.c2s, n.s2c),
            Role::Server => (n.s2c, n.c2s),
        }
    }

    /// The first exchange hash, once there is one.
    pub fn session_id(&self) -> Option<&Bytes> {
        self.session_id.as_ref()
    }

    /// Of a server: all that it has.
    pub(crate) fn host_keys(&self) -> &[Arc<dyn HostKey>] {
        &self.config.host_keys
    }

    /// The server's host key blob.
    pub fn host_key(&self) -> Option<&Bytes> {
        self.host_key.as_ref()
    }

    /// The server's signature over the first exchange hash.
    pub fn host_signature(&self) -> Option<&Bytes> {
        self.host_signature.as_ref()
    }

    /// What a server has said before its identification, or instead of it: not escaped, and no more
    /// than the first KiB.
    pub fn preamble(&self) -> &[u8] {
        self.preamble.said()
    }

    /// The peer's identification.
    pub fn peer(&self) -> Option<&Ident> {
        self.theirs.as_ref()
    }

    /// What EXT_INFO said so far.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// What was negotiated last.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }
}
