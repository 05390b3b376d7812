//! A server against a client that sends well-formed messages at any time, and malformed ones. The
//! server may disconnect at any time, but never panics, admits nobody who has not signed with the
//! right key for this very connection, reports no channel before that, and disables encryption only
//! after that and if both sides were configured so. Sometimes other threads help it to decrypt and
//! to encrypt.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::BytesMut;
use fuzz::peers::{config, drain, host_key, proposal, transport};
use fuzz::{assert_shown_safely, operate, some_bytes};
use ssh::auth::ServerAuthEvent;
use ssh::channel::{ChannelEvent, ChannelsConfig, OutgoingRequest};
use ssh::key::PrivateKey;
use ssh::msg::*;
use ssh::transport::{DisabledProtection, Transport, TransportEvent};
use ssh::{
    Connection, ConnectionConfig, ConnectionEvent, CryptoHelpers, DataPacketStart, EndpointRole,
    HelperWork, SealedQueue,
};
use wire::{Field, PacketBuf, PacketPool, RemainingBytes};

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    Service,
    Ask {
        hostbound: bool,
    },
    Enter {
        key: bool,
        session: bool,
        hostbound: bool,
    },
    Method,
    Open {
        window: u32,
        max_packet: u32,
    },
    Subsystem {
        channel: u8,
    },
    Shell {
        channel: u8,
    },
    Data {
        channel: u8,
        len: u16,
    },
    Adjust {
        channel: u8,
        bytes: u32,
    },
    Eof {
        channel: u8,
    },
    Close {
        channel: u8,
    },
    Prove {
        ours: bool,
        more: bool,
        often: bool,
    },
    Raw {
        number: u8,
    },
    Burst {
        channel: u8,
        len: u16,
        spoilt: bool,
    },
    Rekey {
        client: bool,
    },
    Wait {
        ms: u16,
    },
}

struct World {
    server: Connection,
    sealed: SealedQueue,
    /// Protections that server and client were told to do without.
    told: [DisabledProtection; 2],
    client: Transport,
    to_server: BytesMut,
    to_client: BytesMut,
    now: Instant,
    right: PrivateKey,
    wrong: PrivateKey,
    /// A request was sent that may admit the client.
    deserved: bool,
    /// Payload of incomplete data packets is taken elsewhere.
    begins: bool,
    /// The server announces its host keys.
    announces: bool,
    /// Number of answers to host key proof requests, which cost a signature each.
    proven: u32,
    over: bool,
}

impl World {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let offer = proposal(u)?;
        let connection = ConnectionConfig {
            transport: config(EndpointRole::Server, offer.clone()),
            channels: ChannelsConfig::default(),
            alive_interval: Some(Duration::from_secs(15)),
            alive_count: 3,
        };
        let pool = PacketPool::new(32 * 1024, 8);
        let server = Connection::server(connection, pool, Box::new(|to| to.fill(9)));
        let mut server = server.expect("sound settings");
        let mut client = transport(EndpointRole::Client, config(EndpointRole::Client, offer));
        let mut renounced = || {
            let all = [
                DisabledProtection::Nothing,
                DisabledProtection::Cipher,
                DisabledProtection::CipherAndMac,
            ];
            u.choose(&all).copied()
        };
        let told = [renounced()?, renounced()?];
        server.renounce(told[0]);
        client.renounce(told[1]);
        let mut sealed = SealedQueue::default();
        if u.arbitrary()? {
            server.set_helper(helper());
            sealed.set_helper(helper());
        }
        let key = |seed| PrivateKey::from_ed25519_seed(&[seed; 32]).expect("a key");
        Ok(Self {
            server,
            sealed,
            told,
            client,
            to_server: BytesMut::new(),
            to_client: BytesMut::new(),
            now: Instant::now(),
            right: key(3),
            wrong: key(4),
            deserved: false,
            begins: u.arbitrary()?,
            announces: u.arbitrary()?,
            proven: 0,
            over: false,
        })
    }

    /// Sends any message, allowed or not.
    fn say(&mut self, payload: &[u8]) {
        if self.client.send(PacketBuf::from_payload(payload)).is_err() {
            self.over = true;
        }
        self.exchange();
    }

    /// Moves bytes both ways until nothing moves.
    fn exchange(&mut self) {
        for _ in 0..1000 {
            if self.over {
                return;
            }
            let up = drain(&mut self.client);
            self.to_server.extend_from_slice(&up);
            let mut decided = true;
            while std::mem::take(&mut decided) && !self.over {
                if self.begins {
                    self.begin();
                }
                let handled = self.server.handle_input(self.now, &mut self.to_server);
                while let Some(event) = self.server.poll_event() {
                    decided |= self.event(event);
                }
                if let Err(error) = handled {
                    assert_shown_safely(&error.to_string(), false);
                    self.over = true;
                }
            }
            let entered = self.server.is_authenticated();
            assert!(!entered || self.deserved, "let in for nothing");
            self.check_cipher();
            let down = self.output();
            self.to_client.extend_from_slice(&down);
            loop {
                match self.client.next_payload(self.now, &mut self.to_client) {
                    Ok(Some(payload)) => {
                        if payload.first() == Some(&UserauthSuccess::NUMBER) {
                            assert!(self.deserved, "told that it is in for nothing");
                            self.client.set_authenticated();
                        }
                        if payload.first() == Some(&RequestSuccess::NUMBER) {
                            self.proven += 1;
                            assert!(self.announces && self.deserved, "proven for nothing");
                            assert!(self.proven <= 2, "{} proofs", self.proven);
                        }
                    }
                    Ok(None) => break,
                    // The client has lost track of its own keys because of earlier invalid
                    // messages.
                    Err(_) => {
                        self.over = true;
                        return;
                    }
                }
            }
            while let Some(event) = self.client.poll_event() {
                if matches!(event, TransportEvent::HostKey(_)) {
                    self.over |= self.client.accept_host_key().is_err();
                }
            }
            if up.is_empty() && down.is_empty() {
                return;
            }
        }
        panic!("the ends never stop talking");
    }

    fn output(&mut self) -> Vec<u8> {
        let mut down = Vec::new();
        loop {
            if self.sealed.fill(&mut self.server, 64 << 10).is_err() {
                self.over = true;
                return down;
            }
            let before = down.len();
            for part in self.sealed.parts() {
                down.extend(part.to_vec().expect("it is in memory"));
            }
            self.sealed.written(down.len() - before);
            if self.sealed.is_empty() {
                return down;
            }
        }
    }

    /// Begins a data packet of which half is taken elsewhere; only if no layer has to see all of it
    /// first.
    fn begin(&mut self) {
        match self.server.begin_data(self.now, &mut self.to_server) {
            Ok(DataPacketStart::DataStarted) => {
                assert!(self.deserved && self.server.is_authenticated());
                assert_eq!(self.told, [DisabledProtection::CipherAndMac; 2]);
                let (id, left) = self.server.coming().expect("it was begun");
                let n = (left / 2).min(self.to_server.len());
                let _ = self.to_server.split_to(n);
                self.server.passed(n);
                self.server.channels().consumed(self.now, id, n);
            }
            Ok(DataPacketStart::Short | DataPacketStart::Other) => {}
            Err(error) => {
                assert_shown_safely(&error.to_string(), false);
                self.over = true;
            }
        }
    }

    /// Checks that data is unencrypted or unauthenticated only after a login, and if both sides
    /// were told so.
    fn check_cipher(&self) {
        let Some(chosen) = self.server.negotiated() else {
            return;
        };
        for direction in [chosen.c2s, chosen.s2c] {
            let clear = direction.cipher.is_none();
            let unproven = clear && direction.mac.is_none();
            if clear {
                assert!(self.deserved && self.server.is_authenticated());
                assert!(
                    !self.told.contains(&DisabledProtection::Nothing),
                    "{:?}",
                    self.told
                );
            }
            if unproven {
                assert_eq!(self.told, [DisabledProtection::CipherAndMac; 2]);
            }
        }
    }

    /// Sends much data at once, of which one byte may be corrupted on the way.
    fn burst(&mut self, channel: u8, len: u16, spoilt: bool) {
        let payload = ChannelData {
            recipient: (channel % 6).into(),
            data: &vec![b'b'; usize::from(len).min(32_768)],
        }
        .to_bytes();
        for _ in 0..12 {
            self.over |= self.client.send(PacketBuf::from_payload(&payload)).is_err();
        }
        if spoilt && !self.over {
            let up = drain(&mut self.client);
            self.to_server.extend_from_slice(&up);
            let at = self.to_server.len() * 2 / 3;
            if let Some(byte) = self.to_server.get_mut(at) {
                *byte ^= 0x40;
            }
        }
        self.exchange();
    }

    /// Handles an event; true if it was a decision about a key.
    fn event(&mut self, event: ConnectionEvent) -> bool {
        match event {
            ConnectionEvent::Login(ServerAuthEvent::Key { key, .. }) => {
                let allowed = key.blob() == self.right.public_blob();
                self.over |= self.server.decide(allowed).is_err();
                return true;
            }
            ConnectionEvent::Login(ServerAuthEvent::Success { key, .. }) => {
                assert_eq!(key.blob(), self.right.public_blob());
                if self.announces {
                    self.server.announce_host_keys();
                }
            }
            ConnectionEvent::Login(ServerAuthEvent::Refused { user, method }) => {
                assert_shown_safely(&user, false);
                assert_shown_safely(&method, false);
            }
            ConnectionEvent::Channel(event) => {
                assert!(self.server.is_authenticated(), "{event:?} before the login");
                self.channel(event);
            }
            ConnectionEvent::Retracted => panic!("a server retracts nothing"),
            ConnectionEvent::Auth(event) => {
                panic!("a server proves nothing to a client: {event:?}")
            }
            ConnectionEvent::HostKeysAnnounced(_) | ConnectionEvent::HostKeysProven(_) => {
                panic!("a client has no host keys: {event:?}")
            }
            ConnectionEvent::Transport(_) => {}
        }
        false
    }

    fn channel(&mut self, event: ChannelEvent) {
        let channels = self.server.channels();
        match event {
            ChannelEvent::SessionOpened(id) if id.0 % 5 == 4 => channels.reject(id, "no"),
            ChannelEvent::SessionOpened(id) => channels.accept(id),
            ChannelEvent::Request { id, name, .. } if name == b"subsystem" => {
                channels.answer(id, true);
            }
            ChannelEvent::Request { id, .. } => {
                channels.answer(id, false);
                channels.write_stderr(id, b"no shell");
                channels.request(id, OutgoingRequest::ExitStatus(1), false);
                channels.send_eof(id);
                channels.close(id);
            }
            ChannelEvent::Data(id, data) => {
                channels.consumed(self.now, id, data.len());
                channels.write(id, &data);
            }
            ChannelEvent::ExtendedData(id, data) => channels.consumed(self.now, id, data.len()),
            ChannelEvent::Eof(id) => channels.close(id),
            ChannelEvent::AgentOpened(_) => panic!("a server has no agent"),
            _ => {}
        }
    }

    /// Sends an authentication request with a key: with a signature for this connection, for
    /// another one, or without one.
    fn enter(&mut self, right_key: bool, hostbound: bool, session: Option<bool>) {
        let mut data = Vec::new();
        session.is_some().write(&mut data);
        b"ssh-ed25519".as_slice().write(&mut data);
        let key = match right_key {
            true => &self.right,
            false => &self.wrong,
        };
        key.public_blob().write(&mut data);
        if hostbound {
            host_key().public_blob().write(&mut data);
        }
        let method: &[u8] = match hostbound {
            true => b"publickey-hostbound-v00@openssh.com",
            false => b"publickey",
        };
        if let Some(right_session) = session {
            let id = match (right_session, self.client.session_id()) {
                (true, Some(id)) => id.to_vec(),
                _ => b"another".to_vec(),
            };
            let mut covered = Vec::new();
            id.as_slice().write(&mut covered);
            entry(method, &data).encode(&mut covered);
            let signature = key.sign("ssh-ed25519", &covered).expect("signs");
            signature.as_slice().write(&mut data);
            self.deserved |= right_key && right_session;
        }
        let payload = entry(method, &data).to_bytes();
        self.say(&payload);
    }

    fn step(&mut self, op: Op, u: &mut Unstructured<'_>) -> Result<()> {
        let request = |channel: u8, name, data: &[u8]| {
            let data = RemainingBytes(data);
            ChannelRequest {
                recipient: channel.into(),
                name,
                want_reply: true,
                data,
            }
            .to_bytes()
        };
        let payload = match op {
            Op::Ask { hostbound } => {
                self.enter(true, hostbound, None);
                return Ok(());
            }
            Op::Enter {
                key,
                session,
                hostbound,
            } => {
                self.enter(key, hostbound, Some(session));
                return Ok(());
            }
            Op::Rekey { client } => {
                self.over |= match client {
                    true => self.client.rekey().is_err(),
                    false => self.server.rekey().is_err(),
                };
                self.exchange();
                return Ok(());
            }
            Op::Burst {
                channel,
                len,
                spoilt,
            } => {
                self.burst(channel, len, spoilt);
                return Ok(());
            }
            Op::Wait { ms } => {
                self.now += Duration::from_millis(ms.into());
                self.over |= self.server.handle_timeout(self.now).is_err();
                self.exchange();
                return Ok(());
            }
            Op::Service => ServiceRequest {
                name: b"ssh-userauth",
            }
            .to_bytes(),
            Op::Method => {
                let method = some_bytes(u)?;
                entry(&method, &method).to_bytes()
            }
            Op::Open { window, max_packet } => ChannelOpen {
                kind: b"session",
                sender: u.int_in_range(0..=3)?,
                window,
                max_packet,
                data: RemainingBytes(&[]),
            }
            .to_bytes(),
            Op::Subsystem { channel } => request(channel % 6, b"subsystem", b"\0\0\0\x04sftp"),
            Op::Shell { channel } => request(channel % 6, b"shell", &some_bytes(u)?),
            Op::Data { channel, len } => ChannelData {
                recipient: (channel % 6).into(),
                data: &vec![b'd'; len.into()],
            }
            .to_bytes(),
            Op::Adjust { channel, bytes } => ChannelWindowAdjust {
                recipient: (channel % 6).into(),
                bytes,
            }
            .to_bytes(),
            Op::Eof { channel } => ChannelEof {
                recipient: (channel % 6).into(),
            }
            .to_bytes(),
            Op::Close { channel } => ChannelClose {
                recipient: (channel % 6).into(),
            }
            .to_bytes(),
            Op::Prove { ours, more, often } => {
                let mut asked = Vec::new();
                if ours {
                    host_key().public_blob().write(&mut asked);
                }
                if more {
                    asked.extend(some_bytes(u)?);
                }
                let prove = GlobalRequest {
                    name: b"hostkeys-prove-00@openssh.com",
                    want_reply: true,
                    data: RemainingBytes(&asked),
                }
                .to_bytes();
                if often {
                    (0..4).for_each(|_| self.say(&prove));
                }
                prove
            }
            Op::Raw { number } => {
                let mut payload = vec![number];
                payload.extend(some_bytes(u)?);
                payload
            }
        };
        self.say(&payload);
        Ok(())
    }
}

/// Returns a helper that helps at once, on another thread, too late, or not at all.
fn helper() -> CryptoHelpers {
    let turn = AtomicU32::new(0);
    CryptoHelpers::new(
        || true,
        move |work: HelperWork| match turn.fetch_add(1, Relaxed) % 4 {
            0 => work(),
            1 | 2 => drop(std::thread::spawn(work)),
            _ => {}
        },
    )
}

/// Builds an authentication request.
fn entry<'a>(method: &'a [u8], data: &'a [u8]) -> UserauthRequest<'a> {
    UserauthRequest {
        user: b"marvin",
        service: b"ssh-connection",
        method,
        data: RemainingBytes(data),
    }
}

#[test]
fn a_server_bears_any_client() {
    let mut entered = 0_u64;
    operate(4096, |u| {
        let mut world = World::new(u)?;
        world.exchange();
        // Half of the runs begin correctly, as otherwise few would get far.
        if u.arbitrary()? {
            world.step(Op::Service, u)?;
            if u.arbitrary()? {
                world.enter(true, false, Some(true));
            }
        }
        while !u.is_empty() && !world.over {
            let op = u.arbitrary()?;
            world.step(op, u)?;
        }
        entered += u64::from(world.server.is_authenticated());
        Ok(())
    });
    assert!(entered > 0, "none of them came as far as channels");
}
