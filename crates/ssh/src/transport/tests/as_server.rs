//! Tests of attacks on a server, by a client or by an attacker on the path.

use super::*;
use crate::msg::{Debug, ExtInfo, Ping, ServiceRequest};
use wire::RemainingBytes;

/// Returns a packet as sent before there are keys.
fn plain(payload: &[u8]) -> Vec<u8> {
    let job = OutboundState::new().job(PacketBuf::from_payload(payload), &mut |to| to.fill(0));
    job.unwrap().seal().unwrap().to_vec().unwrap()
}

/// Manipulation of the client's packets on their way. The first is its identification, followed by
/// KEXINIT, its public value, NEWKEYS, and the packet with the index [`FIRST`].
#[derive(Default)]
struct Path {
    /// Packet inserted in front of the one with this index.
    slipped: Option<(usize, Vec<u8>)>,
    cut: Option<usize>,
    /// Bytes to replace, and their replacement.
    swapped: Option<(&'static [u8], &'static [u8])>,
}

/// Index of the first encrypted packet, which a client under attack would not miss.
const FIRST: usize = 4;

/// Returns the messages that reach the server after the key exchange with a client that then sends
/// its EXT_INFO and requests a service.
fn attacked(cipher: &str, path: &Path) -> Result<Vec<Bytes>, Error> {
    let mut pair = Pair::same(AlgorithmProposal {
        ciphers: vec![cipher.to_owned()],
        ..proposal()
    });
    let (mut sent, mut asked) = (0, false);
    loop {
        let mut up = Vec::new();
        while let Some(output) = pair.client.poll_output() {
            if let Some((_, packet)) = path.slipped.as_ref().filter(|(at, _)| *at == sent) {
                up.extend_from_slice(packet);
            }
            if path.cut != Some(sent) {
                up.extend(output.seal()?.to_vec().unwrap());
            }
            sent += 1;
        }
        if let Some((from, to)) = path.swapped
            && let Some(at) = up.windows(from.len()).position(|part| part == from)
        {
            up.splice(at..at + from.len(), to.iter().copied());
        }
        let (buf, got) = (&mut pair.to_server, &mut pair.server_got);
        deliver(&mut pair.server, pair.now, buf, &up, 1 << 20, got)?;
        while pair.server.poll_event().is_some() {}
        let down = drain(&mut pair.server)?;
        let (buf, got) = (&mut pair.to_client, &mut pair.client_got);
        deliver(&mut pair.client, pair.now, buf, &down, 1 << 20, got)?;
        while let Some(event) = pair.client.poll_event() {
            if matches!(event, TransportEvent::HostKey(_)) {
                pair.client.accept_host_key()?;
            }
        }
        if pair.client.may_send() && !asked {
            let ext_info = ExtInfo {
                count: 0,
                pairs: RemainingBytes(b""),
            };
            let ask = ServiceRequest {
                name: b"ssh-userauth",
            };
            for payload in [ext_info.to_bytes(), ask.to_bytes()] {
                pair.client.send(PacketBuf::from_payload(&payload))?;
            }
            asked = true;
        } else if up.is_empty() && down.is_empty() {
            return Ok(pair.server_got);
        }
    }
}

const BOUND_BY_SEQUENCE: [&str; 3] = [
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes128-gcm@openssh.com",
];

#[test]
fn cve_2023_48795_nothing_is_slipped_into_a_clients_first_exchange() {
    let debug = Debug {
        always_display: false,
        text: b"",
        language: b"",
    };
    let ext_info = ExtInfo {
        count: 0,
        pairs: RemainingBytes(b""),
    };
    let attacker = [
        Ignore { data: b"x" }.to_bytes(),
        debug.to_bytes(),
        ext_info.to_bytes(),
        Ping { data: b"" }.to_bytes(),
        vec![3, 0, 0, 0, 0],
        vec![200],
        // Messages of authentication and channels, unencrypted.
        vec![5, 0, 0, 0, 0],
        vec![50, 0, 0, 0, 0],
        vec![90, 0, 0, 0, 0],
    ];
    for payload in attacker {
        for at in 1..FIRST {
            let path = Path {
                slipped: Some((at, plain(&payload))),
                ..Path::default()
            };
            let end = attacked("aes128-ctr", &path).unwrap_err();
            assert!(
                matches!(
                    end,
                    Error::PeerMisbehaved(
                        PeerMisbehaved::StrictKex(_)
                            | PeerMisbehaved::OutOfPhase { .. }
                            | PeerMisbehaved::Unimplemented(_)
                    )
                ),
                "message {} in front of packet {at}: {end:?}",
                payload[0]
            );
        }
    }
}

#[test]
fn cve_2023_48795_the_whole_attack_on_a_server() {
    for cipher in BOUND_BY_SEQUENCE {
        let got = attacked(cipher, &Path::default()).unwrap();
        assert_eq!(got.len(), 1, "{cipher}: the service is asked for");
        let cut = Path {
            cut: Some(FIRST),
            ..Path::default()
        };
        let end = attacked(cipher, &cut).unwrap_err();
        let noticed = matches!(end, Error::PeerMisbehaved(PeerMisbehaved::BadPacket(_)));
        assert!(noticed, "{cipher}: {end:?}");
        for at in 1..FIRST {
            let path = Path {
                slipped: Some((at, plain(&Ignore { data: b"" }.to_bytes()))),
                ..cut
            };
            let end = attacked(cipher, &path).unwrap_err();
            let late = matches!(end, Error::PeerMisbehaved(PeerMisbehaved::BadPacket(_)));
            assert!(!late, "{cipher}, {at}: only the tag noticed: {end:?}");
        }
    }
}

/// The server believes that its client lacks strict KEX, and the exchange hash that it signs
/// differs from the client's.
#[test]
fn cve_2023_48795_a_clients_strict_kex_cannot_be_taken_away() {
    let path = Path {
        swapped: Some((
            b"kex-strict-c-v00@openssh.com",
            b"kex-strict-x-v00@openssh.com",
        )),
        ..Path::default()
    };
    let end = attacked("aes128-ctr", &path).unwrap_err();
    let noticed = matches!(end, Error::PeerMisbehaved(PeerMisbehaved::HostKey(_)));
    assert!(noticed, "{end:?}");
}

/// Returns the bytes that the server holds to be sent, and its result, after this many pings of
/// this length whose replies are not read.
fn pinged(pair: &mut Pair, len: usize, times: usize) -> (usize, Result<(), Error>) {
    let data = vec![1; len];
    let ping = Ping { data: &data }.to_bytes();
    let mut result = Ok(());
    for _ in 0..times {
        pair.client.send(PacketBuf::from_payload(&ping)).unwrap();
        let up = drain(&mut pair.client).unwrap();
        let (buf, got) = (&mut pair.to_server, &mut pair.server_got);
        result = deliver(&mut pair.server, pair.now, buf, &up, 1 << 20, got);
        if result.is_err() {
            break;
        }
    }
    (drain(&mut pair.server).unwrap().len(), result)
}

#[test]
fn cve_2025_26466_a_clients_pings_before_its_login_are_not_answered() {
    for len in [0, 10_000] {
        let mut pair = Pair::same(proposal());
        pair.run().unwrap();
        let (held, result) = pinged(&mut pair, len, 5000);
        result.unwrap();
        assert_eq!(held, 0);
    }
}

#[test]
fn cve_2025_26466_a_clients_pings_are_answered_from_bounded_memory() {
    for len in [0, 16, 1000, 200_000] {
        let mut pair = Pair::authenticated(proposal());
        let (held, result) = pinged(&mut pair, len, 5000);
        let bounded = matches!(
            result,
            Err(Error::PeerMisbehaved(PeerMisbehaved::TooMany(_)))
        );
        assert!(bounded, "{len}: {result:?}");
        assert!(held < 4 << 20, "{len}: {held} bytes");
    }
}

#[test]
fn cve_2025_26466_a_clients_pings_during_a_rekey_hold_no_memory() {
    let mut pair = Pair::authenticated(proposal());
    pair.server.rekey().unwrap();
    let kexinit = drain(&mut pair.server).unwrap();
    assert!(!kexinit.is_empty());
    let (held, result) = pinged(&mut pair, 10_000, 5000);
    result.unwrap();
    assert_eq!(held, 0);
}

#[test]
fn a_server_that_could_offer_more_says_whether_that_would_do() {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let server = AlgorithmProposal {
        kex: names(&["mlkem768x25519-sha256"]),
        ciphers: names(&["aes256-ctr"]),
        ..proposal()
    };
    for (kex, host_key, all, could) in [
        ("curve25519-sha256", "ssh-ed25519", true, true),
        ("curve25519-sha256", "ssh-ed25519", false, false),
        // The server has no host key of that kind either.
        ("curve25519-sha256", "rsa-sha2-256", true, false),
        ("mlkem768x25519-sha256", "rsa-sha2-256", true, false),
    ] {
        let client = AlgorithmProposal {
            kex: names(&[kex]),
            host_key: names(&[host_key]),
            ..proposal()
        };
        let theirs = client.encode(
            EndpointRole::Client,
            [0; 16],
            true,
            false,
            DisabledProtection::Nothing,
        );
        let mut transport = transport(EndpointRole::Server, config(server.clone()));
        if all {
            transport.set_could_offer(proposal());
        }
        let mut sent = BytesMut::from(&b"SSH-2.0-old\r\n"[..]);
        sent.extend_from_slice(&plain(&theirs));
        let error = transport.next_payload(start(), &mut sent).unwrap_err();
        let Error::PeerIncompatible(PeerIncompatible::NoCommon { could_be, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(could_be, could, "{kex}, {host_key}");
    }
}
