//! Tests of a client and a server of this crate, back to back.

mod begun;
mod helped;
mod learning;
mod proofs;
mod renounced;

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use wire::PacketPool;

use super::*;
use crate::auth::{AuthMethod, OfferedIdentity};
use crate::channel::{ChannelEvent, ChannelId, OutgoingRequest};
use crate::key::PrivateKey;
use crate::transport::{AlgorithmProposal, KexGuess};

/// A client and a server, and the bytes on the way between them.
struct Pair {
    now: Instant,
    key: Arc<PrivateKey>,
    client: Connection,
    server: Connection,
    /// Bytes that the client has sent and the server has not read.
    up: BytesMut,
    down: BytesMut,
    /// True if the server's owner accepts the key.
    allowed: bool,
    /// Data that the server received on channels.
    received: Vec<u8>,
    /// Data that the client received on channels; `events` has the results of its requests.
    told: Vec<u8>,
    events: Vec<String>,
    /// Bytes of IGNORE that the client sends as soon as it may.
    nothing: usize,
    /// Total bytes that the client has sent.
    sent: usize,
}

fn config(host_keys: Vec<Arc<PrivateKey>>, compress: bool) -> ConnectionConfig {
    let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
    ConnectionConfig {
        transport: TransportConfig {
            software: "test".to_owned(),
            proposal: AlgorithmProposal {
                kex: names(&["curve25519-sha256"]),
                host_key: names(&["ssh-ed25519"]),
                ciphers: names(&["aes128-gcm@openssh.com"]),
                macs: names(&["hmac-sha2-256"]),
                compress,
            },
            guess: KexGuess::Never,
            rekey_bytes: None,
            rekey_time: None,
            host_keys: host_keys.into_iter().map(|key| key as _).collect(),
        },
        channels: ChannelsConfig::default(),
        alive_interval: None,
        alive_count: 0,
    }
}

fn random() -> RandomFill {
    let mut next = 0_u8;
    Box::new(move |to| {
        for byte in to {
            next = next.wrapping_add(17);
            *byte = next;
        }
    })
}

#[allow(
    clippy::disallowed_methods,
    reason = "a test needs some point in time to begin at"
)]
fn pair(compress: bool, change: impl Fn(&mut ConnectionConfig)) -> Pair {
    let host_key = Arc::new(PrivateKey::generate_ed25519().unwrap());
    let (ours, mut theirs) = (config(Vec::new(), compress), config(vec![host_key], false));
    change(&mut theirs);
    let pool = PacketPool::new(32 << 10, 4);
    Pair {
        now: Instant::now(),
        key: Arc::new(PrivateKey::generate_ed25519().unwrap()),
        client: Connection::client(ours, pool.clone(), random()).unwrap(),
        server: Connection::server(theirs, pool, random()).unwrap(),
        up: BytesMut::new(),
        down: BytesMut::new(),
        allowed: true,
        received: Vec::new(),
        told: Vec::new(),
        events: Vec::new(),
        nothing: 0,
        sent: 0,
    }
}

fn flush(conn: &mut Connection, to: &mut BytesMut) -> bool {
    let mut queue = SealedQueue::default();
    queue.fill(conn, usize::MAX).unwrap();
    let bytes: Vec<u8> = queue
        .parts()
        .flat_map(|part| part.to_vec().unwrap())
        .collect();
    queue.written(bytes.len());
    to.extend_from_slice(&bytes);
    !bytes.is_empty()
}

#[test]
fn the_front_of_a_queue_is_cut_in_memory_at_the_requested_length() {
    let mut pair = pair(false, |_| ());
    let mut queue = SealedQueue::default();
    queue.fill(&mut pair.client, usize::MAX).unwrap();
    let whole: Vec<u8> = queue
        .parts()
        .flat_map(|part| part.to_vec().unwrap())
        .collect();
    // The identification ends within the first segment, so a segment has parts of two packets.
    let mut cut = Vec::new();
    while !queue.is_empty() {
        let segment: Vec<u8> = queue
            .front(100)
            .flat_map(|part| part.to_vec().unwrap())
            .collect();
        let full = segment.len() == 100 || segment.len() == queue.bytes();
        assert!(full, "{} of {} bytes", segment.len(), queue.bytes());
        queue.written(segment.len());
        cut.extend(segment);
    }
    assert_eq!(cut, whole);
}

impl Pair {
    /// Runs until neither side has anything to send.
    fn run(&mut self) -> Result<(), Error> {
        loop {
            let mut moved = flush(&mut self.client, &mut self.up);
            if self.nothing > 0 && self.client.ignore(self.nothing)? {
                self.nothing = 0;
                moved |= flush(&mut self.client, &mut self.up);
            }
            self.sent += self.up.len();
            moved |= self.turn_server()?;
            moved |= flush(&mut self.server, &mut self.down);
            moved |= self.turn_client()?;
            if !moved {
                return Ok(());
            }
        }
    }

    fn turn_server(&mut self) -> Result<bool, Error> {
        let before = self.up.len();
        self.server.handle_input(self.now, &mut self.up)?;
        let mut again = false;
        while let Some(event) = self.server.poll_event() {
            match event {
                ConnectionEvent::Login(ServerAuthEvent::Key { user, .. }) => {
                    assert_eq!(user, b"bob");
                    self.server.decide(self.allowed)?;
                    again = true;
                }
                ConnectionEvent::Channel(ChannelEvent::SessionOpened(id)) => {
                    self.server.channels().accept(id);
                }
                ConnectionEvent::Channel(ChannelEvent::Request { id, name, .. }) => {
                    let channels = self.server.channels();
                    channels.answer(id, name == b"subsystem");
                    if name != b"subsystem" {
                        channels.write_stderr(id, b"no shell");
                    }
                }
                ConnectionEvent::Channel(ChannelEvent::Data(id, bytes)) => {
                    self.received.extend_from_slice(&bytes);
                    let channels = self.server.channels();
                    channels.consumed(self.now, id, bytes.len());
                    channels.write(id, &bytes);
                }
                _ => {}
            }
        }
        Ok(again || self.up.len() != before)
    }

    fn turn_client(&mut self) -> Result<bool, Error> {
        let before = self.down.len();
        self.client.handle_input(self.now, &mut self.down)?;
        let mut again = false;
        while let Some(event) = self.client.poll_event() {
            match event {
                ConnectionEvent::Transport(TransportEvent::HostKey(_)) => {
                    self.client.accept_host_key()?;
                    self.start_auth();
                    again = true;
                }
                ConnectionEvent::Auth(ClientAuthEvent::Sign {
                    algorithm, data, ..
                }) => {
                    let signature = self.key.sign(&algorithm, &data).unwrap();
                    if let Some(auth) = self.client.auth() {
                        auth.sign(Some(&signature));
                    }
                    again = true;
                }
                ConnectionEvent::Channel(ChannelEvent::Data(id, bytes)) => {
                    self.client.channels().consumed(self.now, id, bytes.len());
                    self.told.extend_from_slice(&bytes);
                }
                ConnectionEvent::Transport(TransportEvent::Keys { .. }) => {
                    self.events.push("keys".into())
                }
                ConnectionEvent::Channel(other) => self.events.push(format!("{other:?}")),
                _ => {}
            }
        }
        Ok(again || self.down.len() != before)
    }

    fn start_auth(&mut self) {
        let (session_id, host_key, _) = self.client.binding().unwrap();
        let config = AuthConfig {
            user: "bob".to_owned(),
            methods: vec![AuthMethod::PublicKey],
            identities: vec![OfferedIdentity {
                blob: self.key.public_blob().to_vec(),
                algorithms: vec!["ssh-ed25519".to_owned()],
                direct: true,
            }],
            session_id,
            host_key,
            hostbound: false,
            signature_algorithms: None,
            max_prompts: 0,
        };
        // Channels are opened together with the request: early.
        self.client
            .start_auth(config, EarlyMessages::Everything)
            .unwrap();
    }

    fn open(&mut self) -> ChannelId {
        let id = self.client.channels().open_session();
        let subsystem = OutgoingRequest::Subsystem(b"sftp".to_vec());
        self.client.channels().request(id, subsystem, true);
        id
    }
}

#[test]
fn a_client_logs_in_and_its_data_come_back_through_new_keys() {
    for compress in [false, true] {
        let mut pair = pair(compress, |theirs| {
            theirs.transport.rekey_bytes = Some(100_000)
        });
        let id = pair.open();
        pair.run().unwrap();
        assert!(pair.client.is_authenticated() && pair.server.is_authenticated());
        let mut sent = Vec::new();
        for n in 0..40_u8 {
            let part: Vec<u8> = (0..30_000_u32).map(|i| (i % 251) as u8 ^ n).collect();
            pair.client.channels().write(id, &part);
            sent.extend(part);
            pair.run().unwrap();
        }
        assert!(pair.received == sent && pair.told == sent);
        let keys = pair.events.iter().filter(|e| *e == "keys").count();
        // zlib compresses this data to a small size.
        assert!(keys > 5 || compress, "{keys} key exchanges");
    }
}

#[test]
fn bytes_that_mean_nothing_leave_under_keys_and_are_passed_over() {
    let mut pair = pair(false, |_| {});
    assert!(!pair.client.ignore(1).unwrap(), "without keys");
    pair.nothing = 30_000;
    let id = pair.open();
    pair.run().unwrap();
    assert!(pair.client.is_authenticated() && pair.server.is_authenticated());
    assert!(pair.nothing == 0 && pair.sent > 30_000, "{}", pair.sent);
    pair.client.channels().write(id, b"some");
    assert!(pair.client.ignore(1).unwrap());
    pair.client.channels().write(id, b"thing");
    pair.run().unwrap();
    assert_eq!(pair.received, b"something");
}

#[test]
fn whoever_is_not_allowed_opens_nothing() {
    let mut pair = pair(false, |_| {});
    pair.allowed = false;
    pair.open();
    // The channel that was opened together with the refused request is out of place.
    let error = pair.run().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("CHANNEL_OPEN before authentication"),
        "{error}"
    );
    assert!(!pair.server.is_authenticated() && !pair.client.is_authenticated());
}

#[test]
fn standard_error_reaches_the_client() {
    let mut pair = pair(false, |_| {});
    let id = pair.open();
    let exec = OutgoingRequest::Exec(b"ls".to_vec());
    pair.client.channels().request(id, exec, true);
    pair.run().unwrap();
    let told = |what: &str| pair.events.iter().any(|e| e.contains(what));
    assert!(
        told("RequestSucceeded") && told("RequestFailed"),
        "{:?}",
        pair.events
    );
    assert!(
        told("ExtendedData") && told("no shell"),
        "{:?}",
        pair.events
    );
}

/// sshd starts no key exchange before authentication is done, and a client could not know which
/// messages crossed it.
#[test]
fn a_server_begins_no_key_exchange_before_authentication() {
    let mut pair = pair(false, |theirs| theirs.transport.rekey_bytes = Some(1));
    pair.allowed = false;
    let _ = pair.run();
    assert_eq!(pair.events, ["keys"]);
}

#[test]
fn what_was_let_in_here_is_served_there() {
    for (cipher, compress) in [
        ("aes128-gcm@openssh.com", false),
        ("chacha20-poly1305@openssh.com", false),
        ("aes256-ctr", false),
        ("aes128-gcm@openssh.com", true),
    ] {
        let host_key = Arc::new(PrivateKey::generate_ed25519().unwrap());
        let with_cipher = |keys: Vec<Arc<PrivateKey>>| {
            let mut config = config(keys, compress);
            config.transport.proposal.ciphers = vec![cipher.to_owned()];
            config
        };
        let mut pair = pair(compress, |_| {});
        let pool = PacketPool::new(32 << 10, 4);
        let theirs = || with_cipher(vec![Arc::clone(&host_key)]);
        pair.client = Connection::client(with_cipher(vec![]), pool.clone(), random()).unwrap();
        pair.server = Connection::server(theirs(), pool.clone(), random()).unwrap();
        pair.server.keep_keys();
        assert!(pair.server.hand_over(pair.now).is_none());
        pair.run().unwrap();
        assert!(pair.server.is_authenticated(), "{cipher}");
        let state = pair
            .server
            .hand_over(pair.now)
            .expect("nothing is under way");
        let taken = Connection::taken_over(theirs(), pool.clone(), random(), pair.now, &state);
        pair.server = taken.unwrap();
        pair.client.rekey().unwrap();
        let id = pair.client.channels().open_session();
        pair.client.channels().write(id, b"hello");
        pair.run().unwrap();
        assert_eq!(pair.received, b"hello", "{cipher}");
        for cut in 0..state.len() {
            let cut = &state[..cut];
            let taken = Connection::taken_over(theirs(), pool.clone(), random(), pair.now, cut);
            assert!(taken.is_err());
        }
        // The process that hands over may itself be compromised: malformed states must not panic.
        for at in 0..state.len() {
            let mut other = state.to_vec();
            other[at] ^= 0xff;
            let _ = Connection::taken_over(theirs(), pool.clone(), random(), pair.now, &other);
        }
    }
}
