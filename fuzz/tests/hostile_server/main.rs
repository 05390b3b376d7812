//! A client against a server that sends well-formed messages at any time: before, during and after
//! key exchange, authentication, and on channels. The client may disconnect at any time, but never
//! panics, sends no user data before the host key is approved, uses no channels before it is
//! authenticated, and accepts no success that answers none of its requests.

mod message;

use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::BytesMut;
use fuzz::peers::{config, drain, host_key, proposal, transport};
use fuzz::{assert_shown_safely, mutate, operate};
use ssh::auth::{AuthConfig, AuthMethod, ClientAuthEvent, OfferedIdentity};
use ssh::channel::{ChannelEvent, ChannelId, ChannelsConfig, OutgoingRequest};
use ssh::key::{PrivateKey, PublicKey};
use ssh::msg::*;
use ssh::transport::{Transport, TransportEvent};
use ssh::{
    Connection, ConnectionConfig, ConnectionEvent, EarlyMessages, EndpointRole, Error,
    PeerMisbehaved,
};
use wire::{FieldReader, PacketBuf, PacketPool};
use zeroize::Zeroizing;

use message::{Message, Text};

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    Client(Owner),
    Rekey {
        client: bool,
    },
    Say(Message),
    /// A message that fits the phase, and the one after it, to get the client further than by
    /// chance.
    Fitting {
        variant: u8,
    },
    Spoiled(Message),
    Wait {
        ms: u16,
    },
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Owner {
    Approve,
    Open,
    OpenPredicted,
    Write { channel: u8, len: u16 },
    Ask { channel: u8 },
    Eof { channel: u8 },
    Close { channel: u8 },
    Forward { channel: u8 },
}

/// Authentication request of the client that SUCCESS may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// A query if a key would be accepted; SUCCESS is no valid answer to it.
    Query,
    Entry,
}

/// Reports if the server has rejected a message of the connection layer.
fn is_of_channels(error: &Error) -> bool {
    matches!(
        error,
        Error::PeerMisbehaved(PeerMisbehaved::Unexpected(80..=127))
    )
}

struct World {
    client: Connection,
    server: Transport,
    to_client: BytesMut,
    to_server: BytesMut,
    now: Instant,
    key: PrivateKey,
    auth: AuthConfig,
    early: EarlyMessages,
    approved: bool,
    key_shown: bool,
    service_accepted: bool,
    asked: Asked,
    let_in: bool,
    open: Vec<ChannelId>,
    over: bool,
}

impl World {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let offer = proposal(u)?;
        let key = PrivateKey::from_ed25519_seed(&[3; 32]).expect("a key");
        let all = [
            AuthMethod::PublicKey,
            AuthMethod::KeyboardInteractive,
            AuthMethod::Password,
        ];
        let first = u.choose_index(all.len())?;
        let auth = AuthConfig {
            user: "marvin".into(),
            methods: all.iter().copied().cycle().skip(first).take(3).collect(),
            identities: vec![OfferedIdentity {
                blob: key.public_blob().to_vec(),
                algorithms: vec!["ssh-ed25519".into()],
                direct: u.arbitrary()?,
            }],
            session_id: bytes::Bytes::new(),
            host_key: bytes::Bytes::new(),
            hostbound: u.arbitrary()?,
            signature_algorithms: None,
            max_prompts: 3,
        };
        let connection = ConnectionConfig {
            transport: config(EndpointRole::Client, offer.clone()),
            channels: ChannelsConfig::default(),
            alive_interval: Some(Duration::from_secs(15)),
            alive_count: 3,
        };
        let pool = PacketPool::new(32 * 1024, 8);
        let client = Connection::client(connection, pool, Box::new(|to| to.fill(9)));
        Ok(Self {
            client: client.expect("sound settings"),
            server: transport(EndpointRole::Server, config(EndpointRole::Server, offer)),
            to_client: BytesMut::new(),
            to_server: BytesMut::new(),
            now: Instant::now(),
            key,
            auth,
            early: *u.choose(&[
                EarlyMessages::Nothing,
                EarlyMessages::Nothing,
                EarlyMessages::Opening(9),
                EarlyMessages::Everything,
            ])?,
            approved: false,
            key_shown: false,
            service_accepted: false,
            asked: Asked::Nothing,
            let_in: false,
            open: Vec::new(),
            over: false,
        })
    }

    /// Sends any message, allowed or not.
    fn say(&mut self, payload: &[u8]) {
        // A packet cannot carry more.
        let payload = payload.get(..250_000).unwrap_or(payload);
        // Track the state that the client reaches with this message, unless it has already
        // disconnected.
        let packet = PacketBuf::from_payload(payload);
        if self.server.send(packet).is_err() {
            self.over = true;
        }
        let success = payload == UserauthSuccess {}.to_bytes();
        let legitimate = self.service_accepted && self.asked == Asked::Entry;
        if success && legitimate && !self.let_in {
            self.let_in = true;
        }
        match payload.first() {
            Some(&ServiceAccept::NUMBER) => self.service_accepted = true,
            Some(&(UserauthFailure::NUMBER | 60)) => self.asked = Asked::Nothing,
            _ => {}
        }
        self.exchange();
        if success && self.let_in {
            self.server.set_authenticated();
        }
    }

    /// Moves bytes both ways until nothing moves.
    fn exchange(&mut self) {
        for _ in 0..1000 {
            if self.over {
                return;
            }
            let down = drain(&mut self.server);
            self.to_client.extend_from_slice(&down);
            if let Err(error) = self.client.handle_input(self.now, &mut self.to_client) {
                assert_shown_safely(&error.to_string(), false);
                self.over = true;
            }
            while let Some(event) = self.client.poll_event() {
                self.event(event);
            }
            let up = self.output();
            assert!(
                !self.client.is_authenticated() || self.let_in,
                "let itself in"
            );
            if self.over {
                return;
            }
            self.to_server.extend_from_slice(&up);
            loop {
                match self.server.next_payload(self.now, &mut self.to_server) {
                    Ok(Some(payload)) => self.hear(&payload),
                    Ok(None) => break,
                    // The server has lost track of its own keys because of earlier invalid
                    // messages.
                    Err(error) => {
                        let early = self.early != EarlyMessages::Nothing;
                        assert!(
                            early || self.let_in || !is_of_channels(&error),
                            "{error} before it was let in"
                        );
                        self.over = true;
                        return;
                    }
                }
            }
            while self.server.poll_event().is_some() {}
            if up.is_empty() && down.is_empty() {
                return;
            }
        }
        panic!("the ends never stop talking");
    }

    fn output(&mut self) -> Vec<u8> {
        let mut up = Vec::new();
        loop {
            match self.client.poll_output() {
                Ok(Some(output)) => {
                    let sealed = output.seal().expect("seals");
                    let bytes = sealed.to_vec().expect("it is in memory");
                    if !self.approved && !bytes.starts_with(b"SSH-2.0-") {
                        // Still unencrypted: length, padding, message number.
                        let number = bytes.get(5).copied();
                        assert!(
                            matches!(number, Some(KexInit::NUMBER | KexEcdhInit::NUMBER)),
                            "message {number:?} before the host key was approved"
                        );
                    }
                    up.extend(bytes);
                }
                Ok(None) => return up,
                Err(_) => {
                    self.over = true;
                    return up;
                }
            }
        }
    }

    /// Processes a message of the client at the server.
    fn hear(&mut self, payload: &[u8]) {
        assert!(self.approved);
        let number = payload.first().copied().unwrap_or_default();
        match number {
            UserauthRequest::NUMBER => {
                let m = UserauthRequest::decode(payload).expect("a sound request");
                let signed = match m.method {
                    b"none" | b"password" | b"keyboard-interactive" => true,
                    _ => FieldReader::new(m.data.0).u8() == Ok(1),
                };
                self.asked = if signed { Asked::Entry } else { Asked::Query };
            }
            UserauthInfoResponse::NUMBER => self.asked = Asked::Entry,
            80.. if number < 192 => {
                assert!(
                    self.let_in || self.early != EarlyMessages::Nothing,
                    "message {number} before it was let in"
                );
            }
            _ => {}
        }
    }

    fn event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Transport(TransportEvent::HostKey(blob)) => {
                assert_eq!(blob, host_key().public_blob());
                self.key_shown = true;
            }
            ConnectionEvent::Transport(TransportEvent::Keys { first: true }) => {
                let (session_id, key, _) = self.client.binding().expect("keys are there");
                self.auth.session_id = session_id;
                self.auth.host_key = key;
                self.client
                    .start_auth(self.auth.clone(), self.early)
                    .expect("starts");
            }
            ConnectionEvent::Transport(TransportEvent::Debug(text)) => {
                assert_shown_safely(&text, false)
            }
            ConnectionEvent::Transport(_) => {}
            ConnectionEvent::Auth(event) => self.auth_event(event),
            ConnectionEvent::Login(event) => panic!("nobody logs in to a client: {event:?}"),
            ConnectionEvent::Channel(
                ChannelEvent::Data(id, data) | ChannelEvent::ExtendedData(id, data),
            ) => {
                assert!(self.let_in);
                self.client.channels().consumed(self.now, id, data.len());
            }
            ConnectionEvent::Channel(ChannelEvent::AgentOpened(id)) => {
                self.client.channels().accept(id);
                self.open.push(id);
            }
            ConnectionEvent::Channel(
                ChannelEvent::OpenFailed {
                    description: text, ..
                }
                | ChannelEvent::ExitSignal(_, text),
            ) => assert_shown_safely(&text, false),
            ConnectionEvent::Channel(
                ChannelEvent::SessionOpened(_) | ChannelEvent::Request { .. },
            ) => {
                panic!("a client serves no sessions")
            }
            ConnectionEvent::HostKeysAnnounced(blobs) => {
                let keys = blobs.iter().filter_map(|b| PublicKey::from_blob(b).ok());
                let keys = keys.filter(PublicKey::is_usable).collect();
                self.client.ask_for_proofs(keys);
            }
            ConnectionEvent::Channel(_)
            | ConnectionEvent::Retracted
            | ConnectionEvent::HostKeysProven(_) => {}
        }
    }

    fn auth_event(&mut self, event: ClientAuthEvent) {
        let Some(auth) = self.client.auth() else {
            return;
        };
        match event {
            ClientAuthEvent::Sign { data, .. } => {
                let signature = self.key.sign("ssh-ed25519", &data).expect("signs");
                auth.sign(Some(&signature));
            }
            ClientAuthEvent::Password { .. } => {
                auth.password(Some(&Zeroizing::new("secret".into())))
            }
            ClientAuthEvent::Prompts {
                name,
                instruction,
                prompts,
            } => {
                assert_shown_safely(&name, false);
                assert_shown_safely(&instruction, true);
                prompts
                    .iter()
                    .for_each(|p| assert_shown_safely(&p.text, false));
                auth.answers(Some(&vec![Zeroizing::new("answer".into()); prompts.len()]));
            }
            ClientAuthEvent::Banner(text) => assert_shown_safely(&text, true),
            ClientAuthEvent::Success => assert!(self.let_in, "told of a success that was not"),
            ClientAuthEvent::Failed { .. } => {}
        }
    }

    fn approve(&mut self) {
        if self.key_shown && !self.approved {
            self.approved = true;
            if self.client.accept_host_key().is_err() {
                self.over = true;
            }
        }
    }

    fn owner(&mut self, act: Owner) {
        let open = self.open.clone();
        let pick = |n: u8| open.get(usize::from(n) % open.len().max(1)).copied();
        let channels = self.client.channels();
        match act {
            Owner::Approve => self.approve(),
            Owner::Open if self.open.len() < 4 => self.open.push(channels.open_session()),
            Owner::OpenPredicted if self.open.len() < 4 => {
                self.open.push(channels.open_session_predicted());
            }
            Owner::Open | Owner::OpenPredicted => {}
            Owner::Write { channel, len } => {
                if let Some(id) = pick(channel) {
                    channels.write(id, &vec![b'u'; len.into()]);
                }
            }
            Owner::Ask { channel } => {
                if let Some(id) = pick(channel) {
                    channels.request(id, OutgoingRequest::Subsystem(b"sftp".to_vec()), true);
                }
            }
            Owner::Forward { channel } => {
                if let Some(id) = pick(channel) {
                    channels.request(id, OutgoingRequest::AgentForwarding, true);
                }
            }
            Owner::Eof { channel } => {
                if let Some(id) = pick(channel) {
                    channels.send_eof(id);
                }
            }
            Owner::Close { channel } => {
                if let Some(id) = pick(channel) {
                    channels.close(id);
                }
            }
        }
    }

    /// Returns a message that an honest server might send next.
    fn fitting(&mut self, variant: u8) -> Vec<u8> {
        let key = self.key.public_blob().to_vec();
        let channel = variant / 16;
        let message = if !self.approved {
            self.approve();
            return Vec::new();
        } else if !self.service_accepted {
            Message::ServiceAccept {
                text: Text::Userauth,
            }
        } else if !self.let_in {
            match (self.asked, variant % 8) {
                (Asked::Query, _) => Message::PkOk { right: true },
                (Asked::Entry, 0..=3) => Message::Success,
                (Asked::Entry, 4) => Message::InfoRequest {
                    count: 255,
                    prompts: 1,
                    text: Text::Session,
                },
                _ => Message::Failure {
                    methods: Text::Methods,
                    partial: variant > 200,
                },
            }
        } else {
            match variant % 8 {
                0..=3 => Message::Confirm {
                    channel,
                    sender: channel,
                    window: 2 << 20,
                    max_packet: 1 << 15,
                },
                4 => Message::Data { channel, len: 5000 },
                5 => Message::Answer {
                    channel,
                    success: true,
                },
                6 => Message::Adjust {
                    channel,
                    bytes: 100_000,
                },
                _ => Message::Open {
                    kind: Text::Agent,
                    sender: channel,
                    window: 1 << 20,
                    max_packet: 1 << 15,
                },
            }
        };
        message.encode(&key)
    }

    fn step(&mut self, u: &mut Unstructured<'_>, op: Op) -> Result<()> {
        match op {
            Op::Client(act) => self.owner(act),
            Op::Rekey { client: true } => self.over |= self.client.rekey().is_err(),
            Op::Rekey { client: false } => self.over |= self.server.rekey().is_err(),
            Op::Say(message) => {
                let payload = message.encode(self.key.public_blob());
                self.say(&payload);
            }
            Op::Fitting { variant } => {
                let payload = self.fitting(variant);
                if !payload.is_empty() {
                    self.say(&payload);
                }
            }
            Op::Spoiled(message) => {
                let sound = message.encode(self.key.public_blob());
                let payload = mutate(u, &sound)?;
                if !payload.is_empty() {
                    self.say(&payload);
                }
            }
            Op::Wait { ms } => {
                self.now += Duration::from_millis(ms.into());
                self.over |= self.client.handle_timeout(self.now).is_err();
            }
        }
        self.exchange();
        Ok(())
    }
}

#[test]
fn a_client_is_not_led_astray() {
    let (mut let_in, mut opened) = (0, 0);
    operate(600, |u| {
        let mut world = World::new(u)?;
        // Invalid messages in the first key exchange end most runs at once, so that most runs skip
        // them.
        if u.ratio(7, 8)? {
            world.exchange();
        }
        if u.ratio(3, 4)? {
            world.approve();
            world.exchange();
            let steps = u.int_in_range(0..=6)?;
            for _ in 0..steps {
                let fitting = Op::Fitting {
                    variant: u.arbitrary()?,
                };
                world.step(u, fitting)?;
            }
        }
        while !u.is_empty() && !world.over {
            let op = u.arbitrary()?;
            world.step(u, op)?;
        }
        let_in += usize::from(world.client.is_authenticated());
        opened += world.open.len();
        Ok(())
    });
    assert!(
        let_in > 0 && opened > 0,
        "let in {let_in} times, {opened} channels"
    );
}
