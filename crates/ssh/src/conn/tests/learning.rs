//! Tests of a client that is told host keys, by honest and by hostile servers.

use wire::{Field as _, RemainingBytes};

use super::*;
use crate::key::{PublicKey, host_key_proof};
use crate::msg::{RequestFailure, RequestSuccess};

const ANNOUNCE: &[u8] = b"hostkeys-00@openssh.com";

/// A client that has logged in, and a server with two keys.
struct Told {
    pair: Pair,
    keys: Vec<Arc<PrivateKey>>,
}

impl Told {
    fn new() -> Self {
        let keys = [(); 2].map(|()| Arc::new(PrivateKey::generate_ed25519().unwrap()));
        let mut pair = pair(false, |theirs| {
            theirs.transport.host_keys = keys.iter().map(|key| Arc::clone(key) as _).collect();
        });
        pair.run().unwrap();
        let keys = keys.into();
        Self { pair, keys }
    }

    fn blobs(&self) -> Vec<Vec<u8>> {
        self.keys.iter().map(|k| k.public_blob().to_vec()).collect()
    }

    /// Delivers an announcement and returns the event.
    fn announce(&mut self, blobs: &[Vec<u8>]) -> Option<Vec<Bytes>> {
        let mut data = Vec::new();
        for blob in blobs {
            blob.as_slice().write(&mut data);
        }
        self.receive(
            &GlobalRequest {
                name: ANNOUNCE,
                want_reply: false,
                data: RemainingBytes(&data),
            }
            .to_bytes(),
        );
        match self.pair.client.poll_event() {
            Some(ConnectionEvent::HostKeysAnnounced(blobs)) => Some(blobs),
            None => None,
            Some(event) => panic!("{event:?}"),
        }
    }

    fn receive(&mut self, payload: &[u8]) {
        let payload = Bytes::copy_from_slice(payload);
        let client = &mut self.pair.client;
        client.handle_payload(self.pair.now, payload).unwrap();
    }

    fn ask(&mut self, blobs: &[Vec<u8>]) {
        let key = |blob: &Vec<u8>| PublicKey::from_blob(blob).unwrap();
        self.pair
            .client
            .ask_for_proofs(blobs.iter().map(key).collect());
    }

    fn proof(&self, signs: usize, of: usize, session_id: &[u8]) -> Vec<u8> {
        let signed = host_key_proof(session_id, self.keys[of].public_blob());
        self.keys[signs].sign("ssh-ed25519", &signed).unwrap()
    }

    fn prove(&mut self, proofs: &[Vec<u8>]) -> Result<Vec<PublicKey>, KeyError> {
        let mut data = Vec::new();
        for proof in proofs {
            proof.as_slice().write(&mut data);
        }
        self.receive(
            &RequestSuccess {
                data: RemainingBytes(&data),
            }
            .to_bytes(),
        );
        self.answered().expect("an answer")
    }

    fn answered(&mut self) -> Option<Result<Vec<PublicKey>, KeyError>> {
        match self.pair.client.poll_event()? {
            ConnectionEvent::HostKeysProven(proven) => Some(proven),
            event => panic!("{event:?}"),
        }
    }

    fn session_id(&self) -> Vec<u8> {
        self.pair.client.session_id().unwrap().to_vec()
    }
}

#[test]
fn a_client_learns_what_an_honest_server_proves() {
    let mut told = Told::new();
    told.pair.server.announce_host_keys();
    let mut asked = false;
    for _ in 0..10 {
        let pair = &mut told.pair;
        flush(&mut pair.client, &mut pair.up);
        pair.server.handle_input(pair.now, &mut pair.up).unwrap();
        flush(&mut pair.server, &mut pair.down);
        pair.client.handle_input(pair.now, &mut pair.down).unwrap();
        match told.pair.client.poll_event() {
            Some(ConnectionEvent::HostKeysAnnounced(blobs)) => {
                assert_eq!(blobs, told.blobs());
                let second = told.blobs()[1..].to_vec();
                told.ask(&second);
                asked = true;
            }
            Some(ConnectionEvent::HostKeysProven(proven)) => {
                assert!(asked);
                assert_eq!(proven.unwrap(), [told.keys[1].public().clone()]);
                return;
            }
            _ => {}
        }
    }
    panic!("no proof");
}

type Proofs = fn(&Told, &[u8]) -> Vec<Vec<u8>>;

#[test]
fn a_key_is_not_learned_from_a_wrong_proof() {
    let good = Told::session_id;
    let hostile: [(&str, Proofs); 6] = [
        ("another key", |t, id| vec![t.proof(0, 1, id)]),
        ("another session", |t, _| vec![t.proof(1, 1, &[7; 32])]),
        ("of another key", |t, id| vec![t.proof(1, 0, id)]),
        ("none", |_, _| Vec::new()),
        ("too many", |t, id| vec![t.proof(1, 1, id); 2]),
        ("no signature", |_, _| vec![Vec::new()]),
    ];
    for (what, proofs) in hostile {
        let mut told = Told::new();
        let blobs = told.blobs();
        told.announce(&blobs).expect("it is told");
        told.ask(&blobs[1..]);
        let proofs = proofs(&told, &good(&told));
        assert!(told.prove(&proofs).is_err(), "{what}");
    }
    let mut told = Told::new();
    let blobs = told.blobs();
    told.announce(&blobs).expect("it is told");
    told.ask(&blobs[1..]);
    told.receive(&RequestFailure {}.to_bytes());
    assert!(matches!(told.answered(), Some(Err(KeyError::Unproven))));
}

#[test]
fn announcements_are_bounded_and_count_once() {
    let blob = |n: usize| n.to_string().into_bytes();
    let many: Vec<_> = (0..33).map(blob).collect();
    assert_eq!(Told::new().announce(&many), None, "33");
    assert!(Told::new().announce(&many[..32]).is_some());
    assert_eq!(Told::new().announce(&[blob(1), blob(1)]), None, "twice");
    assert_eq!(Told::new().announce(&[]), None, "none");
    let mut told = Told::new();
    assert!(told.announce(&many[..1]).is_some());
    assert_eq!(told.announce(&many[..2]), None, "again");
}

#[test]
fn proofs_and_keepalives_are_answered_in_order() {
    let mut told = Told::new();
    let blobs = told.blobs();
    told.announce(&blobs).expect("it is told");
    told.pair.client.channels.send_keepalive();
    told.ask(&blobs[1..]);
    told.ask(&blobs[..1]);
    told.receive(
        &RequestSuccess {
            data: RemainingBytes(b"x"),
        }
        .to_bytes(),
    );
    assert!(matches!(
        told.pair.client.poll_event(),
        Some(ConnectionEvent::Channel(ChannelEvent::Alive))
    ));
    let proof = told.proof(1, 1, &told.session_id());
    assert_eq!(told.prove(&[proof]).unwrap().len(), 1);
    // The second request was not sent, so that no further answer is due.
    let more = Bytes::from(RequestFailure {}.to_bytes());
    let client = &mut told.pair.client;
    assert!(client.handle_payload(told.pair.now, more).is_err());
}
