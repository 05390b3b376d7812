//! Fuzzes the messages that a client sends to `longhaul serve --once`, and its answers.

use fuzz::{Corpus, assert_shown_safely, parse};
use ssh::direct_control::{
    DialReply, DialRequest, DirectClientMessage, DirectListeningReply, DirectMessageSplitter,
    DirectRefusedReply, DirectServerMessage, DirectStartRequest, KeysAccepted, MOST_ADDRESSES,
    MOST_BLOCKS, MOST_KEYS, MOST_NAMES, MoreLoginKeysRequest, RestrictSourcesRequest,
    ServerAddresses, TOKEN, VERSION, framed, marker, write_keys, write_list,
};
use ssh::key::PrivateKey;

fn corpus() -> Corpus {
    let key = PrivateKey::generate_ed25519().expect("a key");
    let blob = key.public_blob();
    let keys = write_keys([blob, blob]);
    Corpus(vec![
        (
            "BEGIN",
            framed(
                &DirectStartRequest {
                    version: VERSION,
                    first_port: 4000,
                    last_port: 4010,
                    bear_losses: true,
                    keys: &keys,
                }
                .to_bytes(),
            ),
        ),
        (
            "MORE",
            framed(
                &MoreLoginKeysRequest {
                    number: 1,
                    keys: &keys,
                }
                .to_bytes(),
            ),
        ),
        (
            "LISTENING",
            framed(
                &DirectListeningReply {
                    version: VERSION,
                    port: 4000,
                    user: b"user",
                    host_key: blob,
                    software: b"0.1.0",
                }
                .to_bytes(),
            ),
        ),
        (
            "REFUSED",
            framed(
                &DirectRefusedReply {
                    version: VERSION,
                    why: b"a sentence",
                }
                .to_bytes(),
            ),
        ),
        ("TAKEN", framed(&KeysAccepted { number: 1 }.to_bytes())),
        (
            "SOURCE",
            framed(
                &RestrictSourcesRequest {
                    version: VERSION,
                    root: b"dir",
                    names: &write_list([&b"a"[..], b"b/c"]),
                    follow: true,
                }
                .to_bytes(),
            ),
        ),
        (
            "DIAL",
            framed(
                &DialRequest {
                    number: 2,
                    addresses: &write_list([&b"192.0.2.1:22"[..], b"[2001:db8::1]:22"]),
                    token: &[7; TOKEN],
                }
                .to_bytes(),
            ),
        ),
        (
            "ADDRESSES",
            framed(
                &ServerAddresses {
                    addresses: &write_list([&b"192.0.2.1"[..], b"2001:db8::1"]),
                }
                .to_bytes(),
            ),
        ),
        (
            "DIALED",
            framed(
                &DialReply {
                    number: 2,
                    why: b"a sentence",
                }
                .to_bytes(),
            ),
        ),
    ])
}

/// Returns all messages in these bytes, fed in chunks of `cut` bytes.
fn messages(mut frames: DirectMessageSplitter, bytes: &[u8], cut: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for part in bytes.chunks(cut.max(1)) {
        if frames.push(part).is_err() {
            return found;
        }
        while let Ok(Some(message)) = frames.next_message() {
            assert!(message.len() <= 16 << 10);
            found.push(message);
        }
    }
    found
}

#[test]
fn what_a_client_says() {
    let corpus = corpus();
    parse(2048, |u| {
        let bytes = corpus.mutant(u)?;
        let cut = u.int_in_range(1..=64)?;
        let whole = messages(DirectMessageSplitter::of_client(), &bytes, bytes.len());
        assert_eq!(
            messages(DirectMessageSplitter::of_client(), &bytes, cut),
            whole
        );
        for message in whole {
            match DirectClientMessage::decode(&message) {
                Ok(DirectClientMessage::Start { ports, keys, .. }) => {
                    assert!(keys.len() <= MOST_KEYS);
                    assert!(ports.is_none_or(|(a, b)| 0 < a && a <= b));
                }
                Ok(DirectClientMessage::MoreKeys { keys, .. }) => assert!(keys.len() <= MOST_KEYS),
                Ok(DirectClientMessage::Growing(blocks)) => {
                    assert!(blocks.hashes.len() <= MOST_BLOCKS)
                }
                Ok(DirectClientMessage::Source { names, .. }) => assert!(names.len() <= MOST_NAMES),
                Ok(DirectClientMessage::Dial { addresses, .. }) => {
                    assert!(addresses.len() <= MOST_ADDRESSES);
                }
                Err(e) => assert_shown_safely(&e.to_string(), false),
            }
        }
        Ok(())
    });
}

#[test]
fn what_a_server_answers() {
    let corpus = corpus();
    parse(2048, |u| {
        let mut bytes = fuzz::some_bytes(u)?;
        bytes.extend_from_slice(marker());
        bytes.extend_from_slice(&corpus.mutant(u)?);
        let cut = u.int_in_range(1..=64)?;
        let whole = messages(DirectMessageSplitter::of_server(), &bytes, bytes.len());
        assert_eq!(
            messages(DirectMessageSplitter::of_server(), &bytes, cut),
            whole
        );
        for message in whole {
            match DirectServerMessage::decode(&message) {
                Ok(DirectServerMessage::Listening { port, software, .. }) => {
                    assert!(port > 0);
                    assert_shown_safely(&software, false);
                }
                Ok(DirectServerMessage::Addresses(list)) => assert!(list.len() <= MOST_ADDRESSES),
                // The reasons are escaped where they are shown.
                Ok(
                    DirectServerMessage::Refused(_)
                    | DirectServerMessage::KeysAccepted(_)
                    | DirectServerMessage::Dialed(..),
                ) => {}
                Err(e) => assert_shown_safely(&e.to_string(), false),
            }
        }
        Ok(())
    });
}
