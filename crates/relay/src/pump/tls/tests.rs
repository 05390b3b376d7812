use super::*;
use crate::peer::{KnownPeers, PairRelaySettings, new_key};

/// Two connected TLS ends that trust each other, after the handshake.
fn ends() -> [TlsState; 2] {
    let key = new_key().expect("random numbers");
    let print = PairRelaySettings::new(key.as_bytes(), KnownPeers::default()).expect("a key");
    let mut known = KnownPeers::default();
    known.add(print.fingerprint()).expect("a fingerprint");
    let facing = PairRelaySettings::new(key.as_bytes(), known).expect("a key");
    let mut ends = [
        TlsState::client(facing.opener(), "pair").expect("a client"),
        TlsState::server(&facing.entrance()).expect("a server"),
    ];
    while ends.iter().any(TlsState::is_handshaking) {
        for from in [0, 1] {
            let sealed = sealed(&mut ends[from]);
            assert_eq!(receive(&mut ends[1 - from], &sealed, &mut []), 0);
        }
    }
    ends
}

/// Takes the pending records of an end.
fn sealed(tls: &mut TlsState) -> Vec<u8> {
    let mut all = Vec::new();
    let gone = tls.flush(|records| {
        all.extend_from_slice(records);
        Ok(records.len())
    });
    assert!(gone.expect("it is taken"));
    all
}

/// Passes all records to an end, and returns the number of plaintext bytes in `into`.
fn receive(tls: &mut TlsState, mut sealed: &[u8], into: &mut [u8]) -> usize {
    let mut there = 0;
    while !sealed.is_empty() {
        let room = into.get_mut(there..).expect("room");
        let (n, plain) = tls
            .receive(room, |free| {
                let n = free.len().min(sealed.len());
                free[..n].copy_from_slice(&sealed[..n]);
                Ok((n, n))
            })
            .expect("records");
        sealed = &sealed[n..];
        there += plain;
    }
    there
}

fn read_all(tls: &mut TlsState, at_once: usize) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), vec![0; at_once]);
    while let TlsReadResult::Bytes(n) = tls.read(&mut part).expect("it reads") {
        all.extend_from_slice(&part[..n]);
    }
    all
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * at / 7) as u8).collect()
}

#[test]
fn what_is_decrypted_is_there_whatever_the_reader_takes_at_once() {
    for at_once in [1, 2, 511, 40_000] {
        let [mut client, mut server] = ends();
        for len in [1, RECORD, RECORD + 1, 300_000] {
            let bytes = noise(len);
            client.write(&bytes, false, |_| Ok(0)).expect("it seals");
            assert!(!client.takes(), "records wait");
            let sealed = sealed(&mut client);
            assert!(client.takes());
            // The last byte is held back, so that the last record stays incomplete at first.
            let (most, last) = sealed.split_at(sealed.len() - 1);
            let mut all = Vec::new();
            for part in most.chunks(2000).chain([last]) {
                let mut into = vec![0; at_once];
                let n = receive(&mut server, part, &mut into);
                all.extend_from_slice(&into[..n]);
                all.extend(read_all(&mut server, at_once));
                assert!(!server.holds());
            }
            assert!(all == bytes, "{at_once} {len}");
        }
        // No buffer remains that an idle connection would keep.
        let held = [&server.part, &server.plain, &client.sealed, &client.open];
        assert!(held.iter().all(|held| held.capacity() == 0));
    }
}

#[test]
fn parts_of_a_record_are_gathered_until_no_more_follow() {
    let [mut client, mut server] = ends();
    let bytes = noise(3 * RECORD + 5);
    for byte in &bytes {
        client.write(&[*byte], true, |_| Ok(0)).expect("it seals");
    }
    client.seal_open(|_| Ok(0)).expect("it seals");
    let sealed = sealed(&mut client);
    assert!(sealed.len() < bytes.len() + 4 * 64, "{}", sealed.len());
    let mut into = vec![0; bytes.len()];
    let n = receive(&mut server, &sealed, &mut into);
    assert!(into[..n] == bytes[..n]);
    assert!(read_all(&mut server, 100) == bytes[n..]);
}

#[test]
fn what_the_socket_does_not_take_waits_in_front_of_what_follows() {
    let [mut client, mut server] = ends();
    let bytes = noise(200_000);
    let mut wire = Vec::new();
    client
        .write(&bytes, false, |records| {
            wire.extend_from_slice(&records[..1000]);
            Ok(1000)
        })
        .expect("it seals");
    client.close().expect("it seals");
    wire.extend(sealed(&mut client));
    let mut into = vec![0; 400_000];
    let n = receive(&mut server, &wire, &mut into);
    assert!(into[..n] == bytes);
    assert!(matches!(server.read(&mut into), Ok(TlsReadResult::End)));
    // The other direction stays open.
    server.write(b"answer", false, |_| Ok(0)).expect("it seals");
    let answer = sealed(&mut server);
    let n = receive(&mut client, &answer, &mut into);
    assert_eq!(&into[..n], b"answer");
    client.hung_up();
    assert!(
        client.read(&mut into).is_err(),
        "an end without close_notify"
    );
}

#[test]
fn a_record_that_is_not_the_other_ends_is_answered_by_an_alert() {
    let [mut client, mut server] = ends();
    client.write(b"abc", false, |_| Ok(0)).expect("it seals");
    let mut wire = sealed(&mut client);
    *wire.last_mut().expect("a TLS record") ^= 1;
    let received = server.receive(&mut [0; 10], |free| {
        free[..wire.len()].copy_from_slice(&wire);
        Ok(((), wire.len()))
    });
    assert!(received.is_err());
    assert!(!sealed(&mut server).is_empty());
}
