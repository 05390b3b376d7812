//! Hostile values in the key exchange.

use std::time::Instant;

use ssh::msg::KexEcdhReply;
use ssh::transport::AlgorithmProposal;
use ssh::{Error, PeerIncompatible, PeerMisbehaved};
use testkit::sshd_model::{Edit, plain_packet};
use wire::Field;

use crate::client::Setup;
use crate::world::{World, bytes, keys, setup, sshd};

fn world(setup: Setup, at: usize, payload: &[u8]) -> World {
    let config = sshd().edit(at, Edit::Replace(plain_packet(payload)));
    let mut world = World::new(setup, config);
    world.client.put(bytes(10, 1), "file");
    world
}

#[test]
fn x25519_of_a_wrong_length_or_order_is_refused() {
    let mut low_order = [0; 32];
    low_order[0] = 1;
    let points: [&[u8]; 6] = [
        &[],
        &[9; 31],
        &[9; 33],
        &[9; 32 * 1024],
        &[0; 32],
        &low_order,
    ];
    for public in points {
        for kex in ["curve25519-sha256", "sntrup761x25519-sha512@openssh.com"] {
            let proposal = AlgorithmProposal {
                kex: vec![kex.to_owned()],
                ..setup().proposal
            };
            let reply = KexEcdhReply {
                host_key: keys()[0].public_blob(),
                public,
                signature: b"",
            };
            let setup = Setup {
                proposal,
                ..setup()
            };
            let error = world(setup, 2, &reply.to_bytes()).refused();
            assert!(
                matches!(error, Error::PeerMisbehaved(PeerMisbehaved::KeyExchange(_))),
                "{kex}, {} bytes: {error:?}",
                public.len()
            );
        }
    }
}

#[test]
fn points_off_the_curve_are_refused() {
    let mut off = [7; 65];
    off[0] = 4;
    let points: [&[u8]; 4] = [&[0], &[2; 33], &off, &[4; 64]];
    for public in points {
        let proposal = AlgorithmProposal {
            kex: vec!["ecdh-sha2-nistp256".to_owned()],
            ..setup().proposal
        };
        let reply = KexEcdhReply {
            host_key: keys()[0].public_blob(),
            public,
            signature: b"",
        };
        let setup = Setup {
            proposal,
            ..setup()
        };
        let error = world(setup, 2, &reply.to_bytes()).refused();
        assert!(
            matches!(error, Error::PeerMisbehaved(PeerMisbehaved::KeyExchange(_))),
            "{error:?}"
        );
    }
}

/// Builds a KEXINIT with these ten lists.
fn kexinit(lists: &[&[u8]; 10]) -> Vec<u8> {
    let mut payload = vec![20];
    payload.extend([0; 16]);
    for list in lists {
        list.write(&mut payload);
    }
    payload.extend([0; 5]);
    payload
}

#[test]
fn hostile_kexinits_are_refused_in_time() {
    let many = "aa,".repeat(80_000) + "b";
    let commas = b",".repeat(200_000);
    let one = b"x".repeat(200_000);
    let kex: &[u8] = b"curve25519-sha256";
    let (key, cipher): (&[u8], &[u8]) = (b"ssh-ed25519", b"aes128-gcm@openssh.com");
    let good = [
        kex, key, cipher, cipher, b"", b"", b"none", b"none", b"", b"",
    ];
    let first = |list| {
        let mut lists = good;
        lists[0] = list;
        lists
    };
    let rows = [
        first(many.as_bytes()),
        first(&commas),
        first(&one),
        first(b""),
        first(b"a\x1b[2J"),
        first(b"\xff"),
        // Indicators such as ext-info-c are not key exchange methods.
        first(b"kex-strict-c-v00@openssh.com,ext-info-c"),
        [
            kex, b"", cipher, cipher, b"", b"", b"none", b"none", b"", b"",
        ],
        [
            kex, key, b"none", b"none", b"none", b"none", b"none", b"none", b"", b"",
        ],
        [
            kex,
            key,
            b"aes128-ctr",
            cipher,
            b"none",
            b"",
            b"none",
            b"none",
            b"",
            b"",
        ],
        [
            kex, key, cipher, cipher, b"", b"", b"zlib", b"zlib", b"", b"",
        ],
    ];
    for (number, lists) in rows.iter().enumerate() {
        let start = Instant::now();
        let error = world(setup(), 1, &kexinit(lists)).refused();
        assert!(
            matches!(
                error,
                Error::PeerIncompatible(PeerIncompatible::NoCommon { .. })
                    | Error::PeerMisbehaved(PeerMisbehaved::Malformed(_))
            ),
            "row {number}: {error:?}"
        );
        assert!(start.elapsed().as_secs() < 2, "row {number}");
        // The error text fits on a screen.
        assert!(error.to_string().len() < 2000, "row {number}");
    }
    let truncated = kexinit(&good);
    for len in 1..truncated.len() {
        let error = world(setup(), 1, &truncated[..len]).refused();
        assert!(
            matches!(error, Error::PeerMisbehaved(_)),
            "{len}: {error:?}"
        );
    }
}

#[test]
fn a_host_key_that_signs_something_else_is_refused() {
    let reply = KexEcdhReply {
        host_key: keys()[0].public_blob(),
        public: &[9; 32],
        signature: &keys()[0].sign("ssh-ed25519", b"something else").unwrap(),
    };
    let proposal = AlgorithmProposal {
        kex: vec!["curve25519-sha256".to_owned()],
        ..setup().proposal
    };
    let setup = Setup {
        proposal,
        ..setup()
    };
    let error = world(setup, 2, &reply.to_bytes()).refused();
    assert!(
        matches!(error, Error::PeerMisbehaved(PeerMisbehaved::HostKey(_))),
        "{error:?}"
    );
}
