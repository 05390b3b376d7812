use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use wire::PacketBuf;

use super::*;
use crate::cipher::{CIPHERS, MACS};
use crate::error::{PeerIncompatible, PeerMisbehaved};
use crate::kex::KEX_METHODS;
use crate::key::PrivateKey;
use crate::msg::{Ignore, NewKeys};

mod as_server;

/// Two transports and the bytes between them.
struct Pair {
    client: Transport,
    server: Transport,
    to_client: BytesMut,
    to_server: BytesMut,
    now: Instant,
    /// Maximum bytes delivered at once.
    step: usize,
    approve: bool,
    client_events: Vec<TransportEvent>,
    client_got: Vec<Bytes>,
    server_got: Vec<Bytes>,
}

fn proposal() -> AlgorithmProposal {
    let names = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
    AlgorithmProposal {
        kex: names(KEX_METHODS.iter().map(|k| k.name).collect()),
        host_key: names(vec!["ssh-ed25519"]),
        ciphers: names(CIPHERS.iter().map(|c| c.name).collect()),
        macs: names(MACS.iter().map(|m| m.name).collect()),
        compress: false,
    }
}

fn config(proposal: AlgorithmProposal) -> TransportConfig {
    TransportConfig {
        software: "longhaul_test".into(),
        proposal,
        guess: KexGuess::Never,
        rekey_bytes: None,
        rekey_time: None,
        host_keys: vec![],
    }
}

fn host_key() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::generate_ed25519().unwrap())
}

fn transport(role: EndpointRole, mut config: TransportConfig) -> Transport {
    if role == EndpointRole::Server {
        config.host_keys = vec![host_key()];
    }
    Transport::new(role, config, Box::new(|to| to.fill(7))).unwrap()
}

#[allow(clippy::disallowed_methods, reason = "a start for virtual time")]
fn start() -> Instant {
    Instant::now()
}

impl Pair {
    fn new(client: TransportConfig, server: TransportConfig) -> Self {
        Self {
            client: transport(EndpointRole::Client, client),
            server: transport(EndpointRole::Server, server),
            to_client: BytesMut::new(),
            to_server: BytesMut::new(),
            now: start(),
            step: usize::MAX,
            approve: true,
            client_events: Vec::new(),
            client_got: Vec::new(),
            server_got: Vec::new(),
        }
    }

    fn same(proposal: AlgorithmProposal) -> Self {
        Self::new(config(proposal.clone()), config(proposal))
    }

    /// Runs until nothing changes.
    fn run(&mut self) -> Result<(), Error> {
        loop {
            let up = drain(&mut self.client)?;
            let down = drain(&mut self.server)?;
            let idle = up.is_empty() && down.is_empty();
            deliver(
                &mut self.server,
                self.now,
                &mut self.to_server,
                &up,
                self.step,
                &mut self.server_got,
            )?;
            while self.server.poll_event().is_some() {}
            deliver(
                &mut self.client,
                self.now,
                &mut self.to_client,
                &down,
                self.step,
                &mut self.client_got,
            )?;
            let mut moved = false;
            while let Some(event) = self.client.poll_event() {
                if matches!(event, TransportEvent::HostKey(_)) && self.approve {
                    self.client.accept_host_key()?;
                    moved = true;
                }
                self.client_events.push(event);
            }
            if moved {
                let mut got = Vec::new();
                deliver(
                    &mut self.client,
                    self.now,
                    &mut self.to_client,
                    &[],
                    1,
                    &mut got,
                )?;
                self.client_got.extend(got);
                while let Some(event) = self.client.poll_event() {
                    self.client_events.push(event);
                }
            } else if idle {
                return Ok(());
            }
        }
    }

    fn authenticated(proposal: AlgorithmProposal) -> Self {
        let mut pair = Self::same(proposal);
        pair.run().unwrap();
        pair.client.set_authenticated();
        pair.server.set_authenticated();
        pair
    }
}

fn drain(transport: &mut Transport) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while let Some(output) = transport.poll_output() {
        bytes.extend(output.seal()?.to_vec().unwrap());
    }
    Ok(bytes)
}

fn deliver(
    to: &mut Transport,
    now: Instant,
    buf: &mut BytesMut,
    bytes: &[u8],
    step: usize,
    got: &mut Vec<Bytes>,
) -> Result<(), Error> {
    let mut chunks: Vec<&[u8]> = bytes.chunks(step.min(bytes.len().max(1))).collect();
    chunks.push(&[]);
    for chunk in chunks {
        buf.extend_from_slice(chunk);
        while let Some(payload) = to.next_payload(now, buf)? {
            got.push(payload);
        }
    }
    Ok(())
}

/// Returns a message of the connection protocol with `len` bytes.
fn data(len: usize) -> Vec<u8> {
    let mut payload = vec![94];
    payload.extend((1..len).map(|i| i as u8));
    payload
}

#[test]
fn every_cipher_mac_and_key_exchange_carries_data_both_ways() {
    let all = proposal();
    let mut rows = Vec::new();
    for cipher in &all.ciphers {
        for mac in &all.macs {
            rows.push(AlgorithmProposal {
                ciphers: vec![cipher.clone()],
                macs: vec![mac.clone()],
                ..all.clone()
            });
        }
    }
    for kex in &all.kex {
        rows.push(AlgorithmProposal {
            kex: vec![kex.clone()],
            ..all.clone()
        });
    }
    for row in rows {
        let mut pair = Pair::authenticated(row.clone());
        for len in [1, 2, 15, 16, 17, 255, 1000, 32 * 1024 + 9] {
            pair.client
                .send(PacketBuf::from_payload(&data(len)))
                .unwrap();
            pair.server
                .send(PacketBuf::from_payload(&data(len)))
                .unwrap();
        }
        pair.run().unwrap_or_else(|e| panic!("{row:?}: {e}"));
        assert_eq!(
            (pair.client_got.len(), pair.server_got.len()),
            (8, 8),
            "{row:?}"
        );
        assert_eq!(pair.server_got[7], data(32 * 1024 + 9));
        assert_eq!(pair.client_got[4], data(17));
    }
}

#[test]
fn one_byte_at_a_time_is_enough() {
    let mut pair = Pair::same(proposal());
    pair.step = 1;
    pair.run().unwrap();
    pair.client.set_authenticated();
    pair.server.set_authenticated();
    pair.client
        .send(PacketBuf::from_payload(&data(500)))
        .unwrap();
    pair.run().unwrap();
    assert_eq!(pair.server_got, [data(500)]);
}

#[test]
fn a_right_guess_needs_no_second_public_value_and_a_wrong_one_goes_on() {
    let other = AlgorithmProposal {
        kex: vec!["ecdh-sha2-nistp256".into(), "curve25519-sha256".into()],
        ..proposal()
    };
    for (server, right) in [(proposal(), true), (other, false)] {
        let client = TransportConfig {
            guess: KexGuess::Remembered,
            ..config(proposal())
        };
        let mut pair = Pair::new(client, config(server));
        pair.run().unwrap();
        assert!(pair.client.may_send() && pair.server.may_send());
        let chosen = pair.client.negotiated().unwrap();
        assert_eq!(chosen.guess_right, right);
        let told = pair.client_events.iter().any(|e| {
            matches!(e, TransportEvent::Negotiated { favourites, .. }
                if (favourites.0 == "mlkem768x25519-sha256") == right)
        });
        assert!(told);
    }
}

#[test]
fn nothing_is_sent_or_read_before_the_host_key_is_approved() {
    let mut pair = Pair::same(proposal());
    pair.approve = false;
    pair.run().unwrap();
    assert!(!pair.client.may_send());
    assert!(pair.client.poll_output().is_none());
    assert!(!pair.to_client.is_empty(), "NEWKEYS waits unread");
    pair.client.accept_host_key().unwrap();
    pair.run().unwrap();
    assert!(pair.client.may_send());
}

#[test]
fn either_side_rekeys_under_load_and_holds_data_back() {
    for (client_starts, server_starts) in [(true, false), (false, true), (true, true)] {
        let mut pair = Pair::authenticated(proposal());
        let before = pair.client.session_id().cloned();
        if client_starts {
            pair.client.rekey().unwrap();
            assert!(!pair.client.may_send(), "KEXINIT is out");
        }
        if server_starts {
            pair.server.rekey().unwrap();
        }
        // Messages that the peer sent before it saw our KEXINIT still arrive.
        if !server_starts {
            pair.server
                .send(PacketBuf::from_payload(&data(100)))
                .unwrap();
        }
        pair.run().unwrap();
        assert!(pair.client.may_send() && pair.server.may_send());
        assert_eq!(
            pair.client.session_id().cloned(),
            before,
            "the session id stays"
        );
        pair.client.send(PacketBuf::from_payload(&data(9))).unwrap();
        pair.run().unwrap();
        assert_eq!(pair.server_got.last().unwrap(), &data(9));
    }
}

#[test]
fn keys_are_replaced_after_the_configured_bytes() {
    let client = TransportConfig {
        rekey_bytes: Some(10_000),
        ..config(proposal())
    };
    let mut pair = Pair::new(client, config(proposal()));
    pair.run().unwrap();
    pair.client.set_authenticated();
    pair.server.set_authenticated();
    for _ in 0..10 {
        pair.client
            .send(PacketBuf::from_payload(&data(4000)))
            .unwrap();
        pair.client.handle_timeout(pair.now).unwrap();
        pair.run().unwrap();
    }
    let exchanges = pair
        .client_events
        .iter()
        .filter(|e| matches!(e, TransportEvent::Keys { .. }))
        .count();
    assert!((3..=5).contains(&exchanges), "{exchanges}");
    assert_eq!(pair.server_got.len(), 10);
}

#[test]
fn compression_starts_with_authentication_and_again_after_a_rekey() {
    let mut pair = Pair::authenticated(AlgorithmProposal {
        compress: true,
        ..proposal()
    });
    for _ in 0..2 {
        pair.client
            .send(PacketBuf::from_payload(&data(20_000)))
            .unwrap();
        let sealed = drain(&mut pair.client).unwrap();
        assert!(sealed.len() < 2_000, "{} bytes", sealed.len());
        deliver(
            &mut pair.server,
            pair.now,
            &mut pair.to_server,
            &sealed,
            usize::MAX,
            &mut pair.server_got,
        )
        .unwrap();
        pair.server.rekey().unwrap();
        pair.run().unwrap();
    }
    assert_eq!(pair.server_got, [data(20_000), data(20_000)]);
}

#[test]
fn no_common_cipher_names_both_lists() {
    let server = AlgorithmProposal {
        ciphers: vec!["aes256-ctr".into()],
        ..proposal()
    };
    let client = AlgorithmProposal {
        ciphers: vec!["aes128-ctr".into()],
        ..proposal()
    };
    let error = Pair::new(config(client), config(server)).run().unwrap_err();
    assert!(
        matches!(
            error,
            Error::PeerIncompatible(PeerIncompatible::NoCommon { .. })
        ),
        "{error:?}"
    );
}

/// CVE-2023-48795 (Terrapin): a packet inserted before the keys lets one after them be removed.
#[test]
fn an_ignore_slipped_into_the_first_exchange_is_refused() {
    let plain = |payload: &[u8]| {
        let mut out = OutboundState::new();
        let job = out
            .job(PacketBuf::from_payload(payload), &mut |to| to.fill(0))
            .unwrap();
        job.seal().unwrap().to_vec().unwrap()
    };
    let ignore = plain(&Ignore { data: b"" }.to_bytes());
    // Inserted before KEXINIT.
    let mut pair = Pair::same(proposal());
    let mut down = drain(&mut pair.server).unwrap();
    let line = down.iter().position(|b| *b == b'\n').unwrap() + 1;
    down.splice(line..line, ignore.iter().copied());
    let result = deliver(
        &mut pair.client,
        pair.now,
        &mut pair.to_client,
        &down,
        9999,
        &mut vec![],
    );
    assert_eq!(result, Err(PeerMisbehaved::StrictKex(20).into()));
    // Inserted after KEXINIT.
    let mut pair = Pair::same(proposal());
    let mut down = drain(&mut pair.server).unwrap();
    down.extend_from_slice(&ignore);
    let result = deliver(
        &mut pair.client,
        pair.now,
        &mut pair.to_client,
        &down,
        9999,
        &mut vec![],
    );
    assert!(result.is_err());
}

#[test]
fn key_exchange_messages_out_of_turn_are_refused() {
    for payload in [
        NewKeys {}.to_bytes(),
        vec![31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        vec![30],
    ] {
        let mut pair = Pair::authenticated(proposal());
        pair.server.send(PacketBuf::from_payload(&payload)).unwrap();
        assert!(pair.run().is_err(), "message {}", payload[0]);
    }
}

#[test]
fn a_message_nobody_knows_is_answered_with_its_sequence_number() {
    let mut pair = Pair::authenticated(proposal());
    pair.server.send(PacketBuf::from_payload(&[200])).unwrap();
    // The server reads the reply correctly: its packet was not understood.
    assert!(matches!(
        pair.run(),
        Err(Error::PeerMisbehaved(PeerMisbehaved::Unimplemented(_)))
    ));
}

/// Like OpenSSH, which answers neither before authentication nor during a key exchange.
#[test]
fn pings_are_answered_once_authenticated_and_outside_of_key_exchanges() {
    let pongs = |pair: &mut Pair| {
        let ping = Ping { data: b"x" }.to_bytes();
        pair.server.send(PacketBuf::from_payload(&ping)).unwrap();
        let down = drain(&mut pair.server).unwrap();
        let (to, buf) = (&mut pair.client, &mut pair.to_client);
        deliver(to, pair.now, buf, &down, 1 << 20, &mut vec![]).unwrap();
        std::iter::from_fn(|| pair.client.poll_output()).count()
    };
    let mut pair = Pair::same(proposal());
    pair.run().unwrap();
    assert_eq!(pongs(&mut pair), 0, "nobody is logged in");
    pair.client.set_authenticated();
    pair.server.set_authenticated();
    assert_eq!(pongs(&mut pair), 1);
    pair.client.rekey().unwrap();
    assert_eq!(pongs(&mut pair), 1, "our KEXINIT and nothing behind it");
}

/// OpenSSH pads secrets in this way too: sshpkt_add_padding(64).
#[test]
fn the_length_of_a_secret_is_hidden() {
    for cipher in CIPHERS {
        for mac in MACS {
            let mut proposal = proposal();
            proposal.ciphers = vec![cipher.name.to_owned()];
            proposal.macs = vec![mac.name.to_owned()];
            let mut pair = Pair::same(proposal);
            pair.run().unwrap();
            let mut seen = std::collections::BTreeSet::new();
            for len in 0..40 {
                pair.client.send_hidden(&data(20 + len)).unwrap();
                let up = drain(&mut pair.client).unwrap();
                seen.insert(up.len());
                let (to, buf) = (&mut pair.server, &mut pair.to_server);
                to.set_authenticated();
                let mut got = Vec::new();
                deliver(to, pair.now, buf, &up, 1 << 20, &mut got).unwrap();
                assert_eq!(got, [data(20 + len)]);
            }
            assert!(seen.len() <= 2, "{} {}: {seen:?}", cipher.name, mac.name);
        }
    }
}

#[test]
fn pings_whose_answers_are_not_read_end_the_connection() {
    let mut pair = Pair::authenticated(proposal());
    let ping = Ping { data: b"x" }.to_bytes();
    let mut down = Vec::new();
    for _ in 0..2000 {
        pair.server.send(PacketBuf::from_payload(&ping)).unwrap();
        down.extend(drain(&mut pair.server).unwrap());
    }
    let result = deliver(
        &mut pair.client,
        pair.now,
        &mut pair.to_client,
        &down,
        1 << 20,
        &mut vec![],
    );
    assert!(matches!(
        result,
        Err(Error::PeerMisbehaved(PeerMisbehaved::TooMany(_)))
    ));
}

#[test]
fn data_between_kexinit_and_newkeys_is_refused() {
    let mut pair = Pair::authenticated(proposal());
    pair.server.rekey().unwrap();
    pair.server
        .send(PacketBuf::from_payload(&data(20)))
        .unwrap();
    assert!(pair.run().is_err());
}

#[test]
fn a_changed_bit_ends_the_connection() {
    for at in [0, 4, 5, 20, 60] {
        let mut pair = Pair::authenticated(proposal());
        pair.server
            .send(PacketBuf::from_payload(&data(40)))
            .unwrap();
        let mut down = drain(&mut pair.server).unwrap();
        if let Some(byte) = down.get_mut(at) {
            *byte ^= 1;
        }
        down.extend([0; 1 << 19]);
        let result = deliver(
            &mut pair.client,
            pair.now,
            &mut pair.to_client,
            &down,
            1 << 20,
            &mut vec![],
        );
        assert!(
            matches!(
                result,
                Err(Error::PeerMisbehaved(PeerMisbehaved::BadPacket(_)))
            ),
            "{at}: {result:?}"
        );
    }
}

/// CVE-2023-48795, OpenSSH PROTOCOL 1.10: with 2^32 packets before the keys the sequence numbers
/// would hide an inserted packet.
#[test]
fn sequence_numbers_may_not_wrap_before_the_first_keys() {
    for strict in [true, false] {
        let mut pair = Pair::same(proposal());
        let mut down = drain(&mut pair.server).unwrap();
        if !strict {
            let at = down
                .windows(13)
                .position(|w| w == b"kex-strict-s-")
                .unwrap();
            down[at] = b'x';
        }
        pair.client.inbound.skip_to(u32::MAX);
        let result = deliver(
            &mut pair.client,
            pair.now,
            &mut pair.to_client,
            &down,
            9999,
            &mut vec![],
        );
        assert_eq!(result, Err(PeerMisbehaved::SequenceWrapped.into()));
    }
}

#[test]
fn another_host_key_at_a_rekey_is_refused() {
    for by_client in [true, false] {
        let mut pair = Pair::authenticated(proposal());
        pair.server.config.host_keys = vec![host_key()];
        let begun = match by_client {
            true => pair.client.rekey().unwrap(),
            false => pair.server.rekey().unwrap(),
        };
        assert!(begun);
        assert_eq!(pair.run(), Err(PeerMisbehaved::HostKeyChanged.into()));
    }
}

/// No message has number 0 (RFC 4250 section 4.1.2). Regression: it reached the layers above before
/// there were keys, from a peer without strict KEX.
#[test]
fn message_number_0_is_refused_in_every_phase() {
    use crate::msg::{ConnectionPhase, legal};
    for phase in [
        ConnectionPhase::KeyExchange,
        ConnectionPhase::StrictKeyExchange,
        ConnectionPhase::Rekey,
        ConnectionPhase::Auth,
        ConnectionPhase::Connection,
    ] {
        assert!(legal(0, phase, EndpointRole::Server).is_err(), "{phase:?}");
    }
}
