//! Tests of a server's host keys: announced to its client, and proven on request.

use wire::{Field as _, FieldReader, RemainingBytes};

use super::*;
use crate::key::{PublicKey, host_key_algorithms, host_key_proof};
use crate::msg::{RequestFailure, RequestSuccess};
use crate::transport::Identification;

/// A client, and a server with these host keys.
struct Keys {
    pair: Pair,
    keys: Vec<Arc<PrivateKey>>,
}

impl Keys {
    /// Returns a client, and a server with two keys.
    fn two() -> Self {
        let keys = [(); 2].map(|()| Arc::new(PrivateKey::generate_ed25519().unwrap()));
        let pair = pair(false, |theirs| {
            theirs.transport.host_keys = keys.iter().map(|key| Arc::clone(key) as _).collect();
        });
        let keys = keys.into();
        Self { pair, keys }
    }

    /// Returns a pair whose client is authenticated.
    fn new(announces: bool) -> Self {
        let mut two = Self::two();
        two.pair.run().unwrap();
        assert!(two.pair.client.is_authenticated());
        if announces {
            two.pair.server.announce_host_keys();
        }
        two
    }

    /// Returns the server's reply to a client that asks for proofs of the keys with these blobs.
    fn answer(&mut self, blobs: &[&[u8]]) -> Vec<u8> {
        let mut asked = Vec::new();
        for blob in blobs {
            blob.write(&mut asked);
        }
        self.answer_to(b"hostkeys-prove-00@openssh.com", &asked)
    }

    fn answer_to(&mut self, name: &[u8], data: &[u8]) -> Vec<u8> {
        let request = GlobalRequest {
            name,
            want_reply: true,
            data: RemainingBytes(data),
        };
        let server = &mut self.pair.server;
        server
            .handle_payload(self.pair.now, request.to_bytes().into())
            .unwrap();
        let mut last = Vec::new();
        while let Some(packet) = server.channels.poll_packet() {
            last = packet.payload().to_vec();
        }
        last
    }
}

fn is_failure(answer: &[u8]) -> bool {
    answer.first() == Some(&RequestFailure::NUMBER)
}

#[test]
fn a_client_is_told_all_of_them_once_and_behind_its_login() {
    let Keys { mut pair, keys } = Keys::two();
    pair.server.announce_host_keys();
    assert!(pair.server.channels.poll_packet().is_none(), "before");
    pair.run().unwrap();
    pair.server.announce_host_keys();
    pair.server.announce_host_keys();
    let told = pair.server.channels.poll_packet().expect("it tells");
    let told = told.payload().to_vec();
    let told = GlobalRequest::decode(&told).unwrap();
    assert_eq!(told.name, b"hostkeys-00@openssh.com");
    assert!(!told.want_reply);
    let mut r = FieldReader::new(told.data.0);
    for key in &keys {
        assert_eq!(r.string().unwrap(), key.public_blob());
    }
    r.finish().unwrap();
    assert!(pair.server.channels.poll_packet().is_none(), "once");
    // A client has no host keys.
    pair.client.announce_host_keys();
    assert!(pair.client.channels.poll_packet().is_none());
}

#[test]
fn each_key_that_is_asked_for_signs_for_this_session() {
    let mut keys = Keys::new(true);
    let blobs: Vec<Vec<u8>> = keys.keys.iter().map(|k| k.public_blob().to_vec()).collect();
    // The proofs are in the order of the request.
    let answer = keys.answer(&[&blobs[1], &blobs[0]]);
    let proofs = RequestSuccess::decode(&answer).unwrap().data.0;
    let mut r = FieldReader::new(proofs);
    let session_id = keys.pair.client.session_id().unwrap().clone();
    for blob in [&blobs[1], &blobs[0]] {
        let (key, signature) = (PublicKey::from_blob(blob).unwrap(), r.string().unwrap());
        let signed = host_key_proof(&session_id, blob);
        assert!(key.verify("ssh-ed25519", &signed, signature).is_ok());
        let another = host_key_proof(&[0; 32], blob);
        assert!(key.verify("ssh-ed25519", &another, signature).is_err());
    }
    r.finish().unwrap();
}

#[test]
fn nothing_else_is_signed_for() {
    let strange = PrivateKey::generate_ed25519().unwrap();
    let first = |keys: &Keys| keys.keys[0].public_blob().to_vec();
    let mut keys = Keys::new(true);
    let ours = first(&keys);
    assert!(is_failure(&keys.answer(&[&ours, strange.public_blob()])));
    let mut keys = Keys::new(true);
    let ours = first(&keys);
    assert!(is_failure(&keys.answer(&[&ours, &ours])), "twice");
    let mut keys = Keys::new(true);
    let name = b"hostkeys-prove-00@openssh.com";
    assert!(is_failure(&keys.answer_to(name, &[0, 0, 1, 0, 7])), "cut");
    assert!(is_failure(&keys.answer_to(b"hostkeys-00@openssh.com", b"")));
    let mut keys = Keys::new(false);
    let ours = first(&keys);
    assert!(is_failure(&keys.answer(&[&ours])), "not announced");
}

#[test]
fn who_asks_again_and_again_has_no_more_signatures() {
    let mut keys = Keys::new(true);
    let blob = keys.keys[0].public_blob().to_vec();
    let answers: Vec<bool> = (0..5).map(|_| is_failure(&keys.answer(&[&blob]))).collect();
    assert_eq!(answers, [false, false, true, true, true]);
}

#[test]
fn clients_that_would_end_or_pass_over_it_are_not_told() {
    for (software, told) in [
        ("OpenSSH_9.2p1 Debian-2", true),
        ("TTSSH/2.72 Win32", false),
        ("TTSSH/2.73 Win32", true),
        ("Cisco-1.25", false),
        ("paramiko_3.4.0", true),
        ("longhaul_0.1.0", true),
    ] {
        assert_eq!(
            Identification::ours(software).is_told_host_keys(),
            told,
            "{software}"
        );
    }
}

#[test]
fn what_two_keys_of_a_type_sign_with_is_named_once() {
    let [first, second] = [(); 2].map(|()| PrivateKey::generate_ed25519().unwrap());
    let rsa = PrivateKey::generate_rsa().unwrap();
    let names = host_key_algorithms([&first, &rsa, &second].map(PrivateKey::public));
    assert_eq!(names, ["ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"]);
}
