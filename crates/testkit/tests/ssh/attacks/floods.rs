//! Floods: endless messages from the peer must not take memory without limit (CVE-2025-26466).

use std::time::Instant;

use bytes::BytesMut;
use ssh::msg::{Debug, Ignore, Ping, UserauthBanner};
use ssh::{Error, PeerMisbehaved};
use testkit::sshd_model::Step;

use crate::client::Client;
use crate::world::{World, bytes, setup, sshd};

/// Returns a client and a server after a first completed copy.
fn connected() -> World {
    let mut world = World::new(setup(), sshd());
    world.client.put(bytes(10, 1), "file");
    world.run().expect("it ends well");
    world
}

fn written(world: &mut World) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(write) = world.server.poll_write() {
        bytes.extend(write);
    }
    bytes
}

/// Returns the number of bytes that the engine holds for sending.
fn held(client: &mut Client) -> usize {
    let mut held = 0;
    while let Ok(Some(output)) = client.conn.poll_output() {
        held += output.seal().expect("sealed").remaining();
    }
    held
}

/// Sends `payload` `times` times while none of the answers are taken; returns the bytes held for
/// sending, and the result.
fn flood(world: &mut World, payload: &[u8], times: usize) -> (usize, Result<(), Error>) {
    let mut result = Ok(());
    let mut buf = BytesMut::new();
    let now = Instant::now();
    for _ in 0..times {
        world.server.send(payload);
        buf.extend_from_slice(&written(world));
        result = world.client.conn.handle_input(now, &mut buf);
        if result.is_err() {
            break;
        }
    }
    (held(&mut world.client), result)
}

#[test]
fn cve_2025_26466_pings_are_answered_from_bounded_memory() {
    for size in [0, 16, 1000, 200_000] {
        let mut world = connected();
        let data = vec![1; size];
        let ping = Ping { data: &data }.to_bytes();
        let (held, result) = flood(&mut world, &ping, 5000);
        assert!(
            matches!(
                result,
                Err(Error::PeerMisbehaved(PeerMisbehaved::TooMany(_)))
            ),
            "{size}: {result:?}"
        );
        assert!(held < 4 << 20, "{size}: {held} bytes");
    }
}

#[test]
fn cve_2025_26466_pings_during_a_rekey_hold_no_memory() {
    let mut world = connected();
    world.client.conn.rekey().unwrap();
    let kexinit = held(&mut world.client);
    assert!(kexinit > 0);
    let data = vec![1; 10_000];
    let (held, result) = flood(&mut world, &Ping { data: &data }.to_bytes(), 20_000);
    result.unwrap();
    assert!(held < 4 << 20, "{held} bytes");
}

#[test]
fn pings_behind_the_peers_kexinit_are_refused() {
    let mut world = connected();
    world.server.rekey();
    let (_, result) = flood(&mut world, &Ping { data: b"" }.to_bytes(), 1);
    assert!(
        matches!(
            result,
            Err(Error::PeerMisbehaved(PeerMisbehaved::OutOfPhase { .. }))
        ),
        "{result:?}"
    );
}

#[test]
fn global_requests_opens_and_unknown_messages_are_answered_from_bounded_memory() {
    let global = [&[80, 0, 0, 0, 1, b'x', 1][..], &[0; 1000]].concat();
    let open = [
        &[90, 0, 0, 0, 3, b'x', b'1', b'1'][..],
        &[0, 0, 128, 0].repeat(3),
    ]
    .concat();
    let request = [&[98, 0, 0, 0, 0, 0, 0, 0, 1, b'x', 1][..]].concat();
    let unknown = [200; 1000].to_vec();
    for payload in [global, open, request, unknown] {
        let mut world = connected();
        let (held, result) = flood(&mut world, &payload, 20_000);
        assert!(
            matches!(
                result,
                Err(Error::PeerMisbehaved(PeerMisbehaved::TooMany(_)))
            ),
            "{}: {result:?}",
            payload[0]
        );
        assert!(held < 4 << 20, "{}: {held} bytes", payload[0]);
    }
}

#[test]
fn ignores_and_debugs_without_end_hold_nothing() {
    let ignore = Ignore {
        data: &[7; 200_000],
    };
    let debug = Debug {
        always_display: true,
        text: &[b'x'; 200_000],
        language: b"",
    };
    for payload in [ignore.to_bytes(), debug.to_bytes()] {
        let mut world = connected();
        for _ in 0..500 {
            let (held, result) = flood(&mut world, &payload, 1);
            result.unwrap();
            assert_eq!(held, 0);
            let mut told = 0;
            while let Some(event) = world.client.conn.poll_event() {
                told += format!("{event:?}").len();
            }
            assert!(told < 8192, "{told} bytes to show");
        }
    }
}

#[test]
fn banners_without_end_show_a_few() {
    let banner = UserauthBanner {
        text: &[b'x'; 20_000],
        language: b"",
    };
    let banners = vec![banner.to_bytes(); 200];
    let mut world = World::new(setup(), sshd().slip(Step::Answer, banners));
    world.client.put(bytes(10, 1), "file");
    world.run().expect("it ends well");
    let shown: usize = world.client.shown.iter().map(String::len).sum();
    assert!((1..1 << 20).contains(&shown), "{shown}");
    assert!(world.client.shown.len() <= 16);
}
