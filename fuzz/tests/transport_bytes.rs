//! Fuzzes the bytes that a hostile peer or path sends to the transport: random bytes, mutated
//! transcripts, and changes to a live connection.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use fuzz::peers::{config, drain, first_flights, proposal, transport};
use fuzz::{Corpus, assert_shown_safely, mutate, parse, some_bytes};
use ssh::EndpointRole;
use ssh::transport::{AlgorithmProposal, Transport};
use wire::PacketBuf;

fn plain(kex: &str) -> AlgorithmProposal {
    AlgorithmProposal {
        kex: vec![kex.into()],
        host_key: vec!["ssh-ed25519".into()],
        ciphers: vec!["aes128-ctr".into(), "aes256-gcm@openssh.com".into()],
        macs: vec!["hmac-sha2-256".into()],
        compress: false,
    }
}

/// Feeds `bytes` in chunks of `step`; returns the payloads for the layers above.
fn feed(to: &mut Transport, bytes: &[u8], step: usize) -> Vec<Bytes> {
    let mut buf = BytesMut::new();
    let mut got = Vec::new();
    for chunk in bytes.chunks(step.max(1)) {
        buf.extend_from_slice(chunk);
        loop {
            match to.next_payload(Instant::now(), &mut buf) {
                Ok(Some(payload)) => got.push(payload),
                Ok(None) => break,
                Err(error) => {
                    assert_shown_safely(&error.to_string(), false);
                    return got;
                }
            }
        }
        assert!(to.wanted() <= 256 * 1024 + 256, "{}", to.wanted());
        while to.poll_event().is_some() {}
    }
    got
}

fn either(u: &mut arbitrary::Unstructured<'_>) -> arbitrary::Result<EndpointRole> {
    Ok(*u.choose(&[EndpointRole::Client, EndpointRole::Server])?)
}

#[test]
fn random_bytes() {
    parse(16 * 1024, |u| {
        let role = either(u)?;
        let mut to = transport(role, config(role, plain("curve25519-sha256")));
        let step = u.int_in_range(1..=2000)?;
        let line = u.choose(&["", "SSH-2.0-", "SSH-2.0-x\r\n", "hello\r\nSSH-1.99-y z\n"])?;
        let bytes = [line.as_bytes(), &some_bytes(u)?].concat();
        let got = feed(&mut to, &bytes, step);
        assert!(got.is_empty(), "a payload without a key exchange");
        Ok(())
    });
}

#[test]
fn mutated_transcripts() {
    let mut ups = Vec::new();
    let mut downs = Vec::new();
    for kex in [
        "curve25519-sha256",
        "ecdh-sha2-nistp384",
        "sntrup761x25519-sha512@openssh.com",
        "mlkem768x25519-sha256",
    ] {
        let (up, down) = first_flights(plain(kex));
        assert!(up.len() > 250 && down.len() > 400);
        ups.push((kex, up));
        downs.push((kex, down));
    }
    let kexes = ups.iter().map(|(k, _)| (*k).to_owned()).collect();
    let offer = AlgorithmProposal {
        kex: kexes,
        ..plain("")
    };
    let (ups, downs) = (Corpus(ups), Corpus(downs));
    parse(512, |u| {
        let role = either(u)?;
        let mut to = transport(role, config(role, offer.clone()));
        let bytes = match role {
            EndpointRole::Client => downs.mutant(u)?,
            EndpointRole::Server => ups.mutant(u)?,
        };
        let step = u.int_in_range(1..=4000)?;
        let got = feed(&mut to, &bytes, step);
        assert!(got.is_empty(), "a payload of another connection's keys");
        // A server accepts any public value; a client requires a signature.
        assert!(
            role == EndpointRole::Server || !to.may_send(),
            "keys agreed with a recording"
        );
        Ok(())
    });
}

/// No payload comes out that was not sent, whatever the path does to the bytes.
#[test]
fn a_live_connection_whose_bytes_are_changed() {
    parse(4096, |u| {
        let offer = proposal(u)?;
        let mut client = transport(
            EndpointRole::Client,
            config(EndpointRole::Client, offer.clone()),
        );
        let mut server = transport(EndpointRole::Server, config(EndpointRole::Server, offer));
        let (mut to_server, mut to_client) = (BytesMut::new(), BytesMut::new());
        let (now, spoiled) = (Instant::now(), u.int_in_range(0..=8)?);
        for round in 0..9 {
            if round == 5 && client.may_send() && server.may_send() {
                client.set_authenticated();
                server.set_authenticated();
            }
            if round > 5 && server.may_send() && client.may_send() {
                let payload = [94, round, round];
                for end in [&mut client, &mut server] {
                    end.send(PacketBuf::from_payload(&payload)).expect("room");
                }
            }
            let (mut up, mut down) = (drain(&mut client), drain(&mut server));
            if round == spoiled {
                up = mutate(u, &up)?;
                down = mutate(u, &down)?;
            }
            to_server.extend_from_slice(&up);
            to_client.extend_from_slice(&down);
            for (end, buf) in [(&mut client, &mut to_client), (&mut server, &mut to_server)] {
                loop {
                    match end.next_payload(now, buf) {
                        Ok(Some(p)) => {
                            assert!(
                                round > 5 && p.len() == 3 && p[0] == 94 && p[1] == p[2],
                                "{p:?} was never sent"
                            );
                        }
                        Ok(None) => break,
                        Err(_) => return Ok(()),
                    }
                }
            }
            let _ = client.accept_host_key();
        }
        Ok(())
    });
}
