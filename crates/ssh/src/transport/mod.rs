//! Transport layer (RFC 4253) for either role: identification, key exchange and rekey, sealed
//! packets. Authentication and channels are on top of it, in [`crate::Connection`].
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

pub use handover::TransportHandover;
pub use open::{DecryptedPacket, PacketDecryptionJob};
pub(crate) use partial_packet::{FrontPacketKind, HEAD};
pub use proposal::{
    AlgorithmProposal, DirectionAlgorithms, DisabledProtection, NegotiatedAlgorithms,
};
pub use seal::{SealJob, SealedPacket, TransportOutput};
pub use version::Identification;

use crate::EndpointRole;
use crate::crypto_offload::CryptoHelpers;
use crate::error::Error;
use crate::key::HostKeySigner;
use crate::msg::{Disconnect, Ignore, Ping};
use exchange::{KeyExchangeState, PregeneratedKexKey};
use handover::CurrentKeys;
use open::InboundState;
use seal::OutboundState;

/// Maximum number of packets per key: OpenSSH's MAX_PACKETS (packet.c), 2^31.
const MAX_PACKETS: u64 = 1 << 31;

/// Function that fills a slice with unpredictable bytes.
pub type RandomFill = Box<dyn FnMut(&mut [u8]) + Send>;

/// Settings of a [`Transport`]: identification, offered algorithms, rekeying and, for a server,
/// host keys.
#[derive(Clone)]
pub struct TransportConfig {
    /// The softwareversion of our identification.
    pub software: String,
    /// Algorithms that we offer.
    pub proposal: AlgorithmProposal,
    /// Policy of a client for a guessed key exchange packet.
    pub guess: KexGuess,
    /// Rekey after this many bytes in either direction (RekeyLimit); never later than the
    /// cipher's own limit.
    pub rekey_bytes: Option<u64>,
    /// Rekey after this time (RekeyLimit).
    pub rekey_time: Option<Duration>,
    /// A server's host keys.
    pub host_keys: Vec<Arc<dyn HostKeySigner>>,
}

/// Policy for a key exchange packet that follows the first KEXINIT before the peer's has arrived
/// (RFC 4253 section 7). The guess is right if both sides list the same key exchange and host key
/// algorithm first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KexGuess {
    /// No guessed packet.
    #[default]
    Never,
    /// KEXINIT and the guessed packet are sent at once: the peer preferred our first choices in an
    /// earlier connection.
    Remembered,
    /// KEXINIT waits for the peer's identification; for an OpenSSH version the key exchange that
    /// this version prefers is sent with it. Waiting costs nothing: Nagle's algorithm holds sshd's
    /// KEXINIT back until its identification is acknowledged, so it arrives a round trip later
    /// anyway. A wrong guess costs one packet.
    ByVersion,
}

/// Event of the transport for its owner.
#[derive(Clone, Debug)]
pub enum TransportEvent {
    /// The peer's identification arrived.
    Identified(Identification),
    /// The peer's KEXINIT arrived, and there is a common algorithm of each kind.
    Negotiated {
        /// Chosen algorithms.
        chosen: NegotiatedAlgorithms,
        /// First key exchange and first host key algorithm in the peer's lists, which a guess must
        /// match.
        favourites: (String, String),
        /// Further algorithms that the peer offers.
        offers: PeerOffers,
    },
    /// Client only: the server has proven that it owns this key. Nothing more is sent until
    /// [`Transport::accept_host_key`].
    HostKey(Bytes),
    /// New keys are in use in both directions.
    Keys {
        /// True after the first key exchange.
        first: bool,
    },
    /// The peer's EXT_INFO arrived.
    Extensions,
    /// DEBUG with always_display, its text escaped.
    Debug(String),
    /// The reply to a PING arrived.
    Pong,
}

/// Name-lists of the peer's KEXINIT for the direction from client to server, as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerOffers {
    /// List of ciphers.
    pub ciphers: String,
    /// List of MACs.
    pub macs: String,
    /// List of compression methods.
    pub compression: String,
}

/// Content of the peer's EXT_INFO (RFC 8308).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerExtensions {
    /// Signature algorithms from server-sig-algs.
    pub sig_algs: Option<Vec<String>>,
    /// True if publickey-hostbound@openssh.com version 0 is supported.
    pub hostbound: bool,
    /// True if ping@openssh.com version 0 is supported.
    pub ping: bool,
}

/// State machine of the transport layer, without I/O and clock: [`Transport::next_payload`] takes
/// received bytes, [`Transport::poll_output`] returns packets to send, [`Transport::poll_event`]
/// returns events.
pub struct Transport {
    role: EndpointRole,
    config: TransportConfig,
    random: RandomFill,
    ours: Identification,
    theirs: Option<Identification>,
    preamble: version::Preamble,
    outbound: OutboundState,
    inbound: InboundState,
    exchange: KeyExchangeState,
    /// Cookie of the first KEXINIT.
    cookie: [u8; 16],
    /// Ephemeral key for the guess, generated while waiting for the peer.
    prepared: Option<PregeneratedKexKey>,
    /// Session identifier: the exchange hash of the first key exchange.
    session_id: Option<Bytes>,
    /// Server's signature over the first exchange hash, for the agent's session-bind.
    host_signature: Option<Bytes>,
    host_key: Option<Bytes>,
    strict: bool,
    peer_takes_ext_info: bool,
    extensions: PeerExtensions,
    authenticated: bool,
    renounced: DisabledProtection,
    /// Everything that a server could offer, if it offers less.
    could_offer: Option<AlgorithmProposal>,
    /// Number of expected UNIMPLEMENTED replies, for messages that were sent too early.
    forgiven: u32,
    hears_early: bool,
    keys_since: Option<Instant>,
    rekey_limit: u64,
    negotiated: Option<NegotiatedAlgorithms>,
    /// Key material of the keys in use, if the transport is to be handed over.
    kept: Option<CurrentKeys>,
    ready: VecDeque<TransportOutput>,
    events: VecDeque<TransportEvent>,
}

impl Transport {
    /// Creates a transport with its identification and, except for [`KexGuess::ByVersion`], KEXINIT
    /// queued.
    ///
    /// `random` fills a slice with unpredictable bytes, for KEXINIT's cookie and padding.
    ///
    /// # Errors
    /// The proposal is empty or has an unknown algorithm.
    pub fn new(
        role: EndpointRole,
        config: TransportConfig,
        random: RandomFill,
    ) -> Result<Self, Error> {
        config.proposal.check()?;
        let ours = Identification::ours(&config.software);
        let mut transport = Self {
            role,
            config,
            random,
            ours,
            theirs: None,
            preamble: version::Preamble::default(),
            outbound: OutboundState::new(),
            inbound: InboundState::new(),
            exchange: KeyExchangeState::Idle,
            cookie: [0; 16],
            prepared: None,
            session_id: None,
            host_signature: None,
            host_key: None,
            strict: false,
            peer_takes_ext_info: false,
            extensions: PeerExtensions::default(),
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
        // The first random bytes may take long while the system gathers entropy, and there is time
        // for it now.
        (transport.random)(&mut transport.cookie);
        let line = format!("{}\r\n", transport.ours.as_str());
        transport
            .ready
            .push_back(TransportOutput::Raw(line.into_bytes()));
        if transport.guess() != KexGuess::ByVersion {
            transport.start_exchange()?;
        }
        Ok(transport)
    }

    /// Takes packets from the front of `buf` and processes those of the transport layer; returns
    /// the first payload for a layer above. Returns `None` if more bytes are needed, or if the host
    /// key waits for [`Transport::accept_host_key`].
    pub fn next_payload(
        &mut self,
        now: Instant,
        buf: &mut BytesMut,
    ) -> Result<Option<Bytes>, Error> {
        if self.theirs.is_none() {
            let client = self.role == EndpointRole::Client;
            match version::take_ident(buf, &mut self.preamble, client)? {
                Some(ident) => {
                    self.events
                        .push_back(TransportEvent::Identified(ident.clone()));
                    self.prefer_kex(ident.usual_kex());
                    self.theirs = Some(ident);
                    if self.guess() == KexGuess::ByVersion {
                        self.start_exchange()?;
                    }
                }
                None => return Ok(None),
            }
        }
        while !self.exchange.waits_for_approval() {
            // Packets opened ahead use the present keys. A peer that has not started a key exchange
            // cannot finish one before it receives our KEXINIT, so its NEWKEYS is not among them.
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

    /// Does a slow computation that will probably be needed, while the peer's identification is on
    /// its way: the ephemeral key of sntrup761, which takes 12 ms and is preferred by OpenSSH 9.
    pub fn prepare(&mut self) -> Result<(), Error> {
        let waits = self.theirs.is_none() && self.guess() == KexGuess::ByVersion;
        if waits && self.prepared.is_none() {
            self.prepared = self.prepare_kex()?;
        }
        Ok(())
    }

    fn guess(&self) -> KexGuess {
        match self.role {
            EndpointRole::Client => self.config.guess,
            EndpointRole::Server => KexGuess::Never,
        }
    }

    /// Moves the server's preferred key exchange to the front of our list, if it is on it: all
    /// methods that are offered are acceptable.
    fn prefer_kex(&mut self, name: Option<&'static str>) {
        let kex = &mut self.config.proposal.kex;
        if self.config.guess == KexGuess::ByVersion
            && let Some(at) = name.and_then(|name| kex.iter().position(|n| n == name))
        {
            kex[..=at].rotate_right(1);
        }
    }

    /// Returns the total length in bytes of the arriving packet, so that the caller can provide
    /// contiguous room; 0 if unknown.
    pub fn wanted(&self) -> usize {
        self.inbound.wanted().unwrap_or(0)
    }

    /// Returns true if messages of the layers above may be sent: keys are in use and no key
    /// exchange is in progress. OpenSSH 10.4 disconnects on any other message between our KEXINIT
    /// and our NEWKEYS.
    pub fn may_send(&self) -> bool {
        self.session_id.is_some() && self.exchange.app_may_send()
    }

    /// Returns true if a message that is not part of authentication may be sent.
    ///
    /// zlib@openssh.com starts after USERAUTH_SUCCESS in both directions (OpenSSH, packet.c,
    /// ssh_packet_enable_delayed_compress). A client that waits for that message cannot know if the
    /// server will read its next packet before or after the start, so it must not send one:
    /// uncompressed IGNOREs at that time ended every upload with zlib from a round trip of 20 ms
    /// on.
    pub(super) fn may_send_unasked(&self) -> bool {
        let waits_for_start = self.role == EndpointRole::Client
            && !self.authenticated
            && self.negotiated.as_ref().is_some_and(|n| n.c2s.compress);
        self.may_send() && !waits_for_start
    }

    /// Queues a message of a layer above; only while [`Transport::may_send`] is true.
    pub fn send(&mut self, packet: PacketBuf) -> Result<(), Error> {
        let job = self.outbound.job(packet, &mut *self.random)?;
        self.ready.push_back(TransportOutput::Packet(job));
        Ok(())
    }

    /// Queues a message with a secret, padded so that its length reveals little about the secret's.
    pub fn send_hidden(&mut self, payload: &[u8]) -> Result<(), Error> {
        let job = self.outbound.hidden_job(payload, &mut *self.random)?;
        self.ready.push_back(TransportOutput::Packet(job));
        Ok(())
    }

    fn send_message(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.send(PacketBuf::from_payload(payload))
    }

    /// Lets helper threads open received packets.
    pub fn set_helper(&mut self, helper: CryptoHelpers) {
        self.inbound.set_helper(helper);
    }

    /// Returns how long sent packets may borrow their payload.
    pub(crate) fn borrow_policy(&self) -> BorrowPolicy {
        self.outbound.borrow_policy()
    }

    /// Returns true if sent packets need no sealing, because there is neither cipher nor MAC.
    pub(crate) fn sends_clear(&self) -> bool {
        self.outbound.is_free()
    }

    /// Returns the next output; the caller seals it and writes the results in this order.
    pub fn poll_output(&mut self) -> Option<TransportOutput> {
        self.ready.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<TransportEvent> {
        self.events.pop_front()
    }

    /// Starts a key exchange if the limits of the current keys are reached.
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

    /// Returns the time at which to call [`Transport::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let since = self.keys_since.filter(|_| self.exchange.is_idle())?;
        self.config
            .rekey_time
            .and_then(|limit| since.checked_add(limit))
    }

    /// Starts a key exchange now; returns false if one is in progress or the first is not done.
    pub fn rekey(&mut self) -> Result<bool, Error> {
        let may = self.session_id.is_some() && self.exchange.is_idle();
        if may {
            self.start_exchange()?;
        }
        Ok(may)
    }

    /// Queues DISCONNECT with a reason (RFC 4253 section 11.1).
    pub fn disconnect(&mut self, reason: u32, description: &str) -> Result<(), Error> {
        let m = Disconnect {
            reason,
            description: description.as_bytes(),
            language: b"",
        };
        self.send_message(&m.to_bytes())
    }

    /// Queues a PING (ping@openssh.com) if the peer supports it and it is permitted now; returns
    /// true if it was queued.
    pub fn ping(&mut self, data: &[u8]) -> Result<bool, Error> {
        let may = self.extensions.ping && self.may_send_unasked();
        if may {
            self.send_message(&Ping { data }.to_bytes())?;
        }
        Ok(may)
    }

    /// Queues an IGNORE with `len` bytes if it is permitted now, which requires keys: strict key
    /// exchange forbids it before. Returns true if it was queued.
    pub fn ignore(&mut self, len: usize) -> Result<bool, Error> {
        let may = self.may_send_unasked();
        if may {
            let data = vec![0; len];
            self.send_message(&Ignore { data: &data }.to_bytes())?;
        }
        Ok(may)
    }

    /// Marks authentication as done: messages of the connection protocol become legal, and
    /// zlib@openssh.com starts.
    pub fn set_authenticated(&mut self) {
        self.authenticated = true;
        self.apply_compression();
    }

    /// Disables encryption, or encryption and MAC, from the first key exchange after authentication
    /// on, if the peer was told to do so too.
    pub fn renounce(&mut self, renounced: DisabledProtection) {
        self.renounced = renounced;
    }

    /// Sets everything that this server could offer while it offers less, so that a failed
    /// negotiation can tell if that would have sufficed.
    pub fn set_could_offer(&mut self, all: AlgorithmProposal) {
        self.could_offer = Some(all);
    }

    /// Returns the protection to disable in a key exchange that starts now.
    fn renounces(&self) -> DisabledProtection {
        match self.authenticated {
            true => self.renounced,
            false => DisabledProtection::Nothing,
        }
    }

    /// Returns connection protocol messages of a client that has not authenticated yet, to be
    /// refused as OpenSSH does (auth2.c, dispatch_protocol_error). The caller must execute none of
    /// them: CVE-2018-10933 and CVE-2025-32433 are servers that did.
    pub fn hear_early(&mut self) {
        self.hears_early = self.role == EndpointRole::Server;
    }

    /// Tolerates UNIMPLEMENTED for this number of sent messages.
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

    /// Returns the outgoing and the incoming direction for our role.
    fn directions(&self, n: &NegotiatedAlgorithms) -> (DirectionAlgorithms, DirectionAlgorithms) {
        match self.role {
            EndpointRole::Client => (n.c2s, n.s2c),
            EndpointRole::Server => (n.s2c, n.c2s),
        }
    }

    /// Returns the session identifier: the exchange hash of the first key exchange.
    pub fn session_id(&self) -> Option<&Bytes> {
        self.session_id.as_ref()
    }

    /// Returns all host keys of this server.
    pub(crate) fn host_keys(&self) -> &[Arc<dyn HostKeySigner>] {
        &self.config.host_keys
    }

    /// Returns the blob of the server's host key.
    pub fn host_key(&self) -> Option<&Bytes> {
        self.host_key.as_ref()
    }

    /// Returns the server's signature over the first exchange hash.
    pub fn host_signature(&self) -> Option<&Bytes> {
        self.host_signature.as_ref()
    }

    /// Returns what the server sent before or instead of its identification: at most the first KiB,
    /// not escaped.
    pub fn preamble(&self) -> &[u8] {
        self.preamble.said()
    }

    /// Returns the peer's identification.
    pub fn peer(&self) -> Option<&Identification> {
        self.theirs.as_ref()
    }

    /// Returns the content of the peer's EXT_INFO messages so far.
    pub fn extensions(&self) -> &PeerExtensions {
        &self.extensions
    }

    /// Returns the algorithms of the most recent negotiation.
    pub fn negotiated(&self) -> Option<&NegotiatedAlgorithms> {
        self.negotiated.as_ref()
    }
}
