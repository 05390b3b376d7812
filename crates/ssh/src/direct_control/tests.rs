use super::*;
use crate::key::PrivateKey;

fn key() -> PublicKey {
    PrivateKey::generate_ed25519().unwrap().public().clone()
}

fn begin(version: u32, ports: (u32, u32), keys: &[u8]) -> Vec<u8> {
    DirectStartRequest {
        version,
        first_port: ports.0,
        last_port: ports.1,
        bear_losses: true,
        keys,
    }
    .to_bytes()
}

#[test]
fn what_is_asked_is_read_as_it_was_written() {
    let (one, two) = (key(), key());
    let keys = write_keys([one.blob(), two.blob()]);
    let asked = DirectClientMessage::decode(&begin(VERSION, (4000, 4010), &keys)).unwrap();
    let DirectClientMessage::Start {
        ports,
        bear_losses,
        keys,
    } = asked
    else {
        panic!("another message");
    };
    assert_eq!((ports, bear_losses), (Some((4000, 4010)), true));
    let blobs: Vec<_> = keys.iter().map(PublicKey::blob).collect();
    assert_eq!(blobs, [one.blob(), two.blob()]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let blob = key();
    let blob = blob.blob();
    let wrong = |message: &[u8]| DirectClientMessage::decode(message).unwrap_err();
    for ports in [(0, 1), (2, 1), (1, 65_536), (70_000, 70_001)] {
        let message = begin(VERSION, ports, b"");
        assert_eq!(wrong(&message), DirectControlError::Port(ports.0));
    }
    let many = write_keys(vec![blob; MOST_KEYS + 1]);
    assert_eq!(
        wrong(&begin(VERSION, (0, 0), &many)),
        DirectControlError::Keys
    );
    let long = write_keys([&[0; LONGEST_KEY + 1][..]]);
    assert_eq!(
        wrong(&begin(VERSION, (0, 0), &long)),
        DirectControlError::Keys
    );
    let mut trailing = begin(VERSION, (0, 0), b"");
    trailing.push(0);
    assert!(matches!(wrong(&trailing), DirectControlError::Message(_)));
    assert_eq!(wrong(b""), DirectControlError::Unexpected(0));
    assert_eq!(wrong(&[17]), DirectControlError::Unexpected(17));
}

#[test]
fn the_older_end_is_named() {
    let text = |version| {
        let message = DirectRefusedReply { version, why: b"" }.to_bytes();
        DirectServerMessage::decode(&message)
            .unwrap_err()
            .to_string()
    };
    assert!(text(0).contains("upgrade the far end"));
    assert!(text(2).contains("upgrade this end"));
    // A later version may have any fields behind its version number.
    let later = [&[1, 0, 0, 0, 9][..], b"something else"].concat();
    assert_eq!(
        DirectClientMessage::decode(&later).unwrap_err(),
        DirectControlError::Version(9)
    );
}

#[test]
fn messages_are_found_behind_what_a_login_says() {
    let message = KeysAccepted { number: 7 }.to_bytes();
    for noise in ["", "Welcome!\n", "no end of line", "\nlonghaul-serves-on"] {
        let mut stream = noise.as_bytes().to_vec();
        stream.extend_from_slice(marker());
        stream.extend_from_slice(&framed(&message));
        // However the stream is cut.
        for step in [1, 3, stream.len()] {
            let mut frames = DirectMessageSplitter::of_server();
            let mut found = Vec::new();
            for part in stream.chunks(step) {
                frames.push(part).unwrap();
                found.extend(frames.next_message().unwrap());
            }
            assert_eq!(found, std::slice::from_ref(&message), "{noise:?} by {step}");
            assert!(frames.is_empty());
        }
    }
}

#[test]
fn noise_and_lengths_have_their_bounds() {
    let mut frames = DirectMessageSplitter::of_server();
    let pushed = (0..=MOST_NOISE / 1024).try_for_each(|_| frames.push(&[b'x'; 1024]));
    assert_eq!(pushed, Err(DirectControlError::NoMarker));
    let mut frames = DirectMessageSplitter::of_client();
    frames.push(&[0xff; 4]).unwrap();
    assert!(matches!(
        frames.next_message(),
        Err(DirectControlError::TooLong(_))
    ));
}

#[test]
fn a_server_without_a_port_or_key_is_none() {
    let host_key = key();
    let told = |port, host_key: &[u8]| {
        let message = DirectListeningReply {
            version: VERSION,
            port,
            user: b"u",
            host_key,
            software: b"0.1.0",
        };
        DirectServerMessage::decode(&message.to_bytes())
    };
    assert!(told(22_022, host_key.blob()).is_ok());
    assert_eq!(
        told(0, host_key.blob()).unwrap_err(),
        DirectControlError::Port(0)
    );
    assert_eq!(
        told(65_536, host_key.blob()).unwrap_err(),
        DirectControlError::Port(65_536)
    );
    assert!(matches!(
        told(22_022, b"no key"),
        Err(DirectControlError::Key(_))
    ));
}

#[test]
fn a_source_and_a_dial_are_read_as_they_were_written() {
    let names = write_list([&b"x"[..], b"y*"]);
    let source = RestrictSourcesRequest {
        version: VERSION,
        root: b"/srv",
        names: &names,
        follow: true,
    };
    let DirectClientMessage::Source {
        root,
        names,
        follow,
    } = DirectClientMessage::decode(&source.to_bytes()).unwrap()
    else {
        panic!("another message");
    };
    assert_eq!((root, follow), (b"/srv".to_vec(), true));
    assert_eq!(names, [b"x".to_vec(), b"y*".to_vec()]);
    let dial = |addresses: &[&str], token: &[u8]| {
        let addresses = write_list(addresses.iter().map(|a| a.as_bytes()));
        let dial = DialRequest {
            number: 3,
            addresses: &addresses,
            token,
        };
        DirectClientMessage::decode(&dial.to_bytes())
    };
    let DirectClientMessage::Dial { addresses, .. } =
        dial(&["192.0.2.1:22", "[2001:db8::1]:9"], &[7; TOKEN]).unwrap()
    else {
        panic!("another message");
    };
    assert_eq!(addresses.len(), 2);
    assert_eq!(
        dial(&["a.example:22"], &[7; TOKEN]).unwrap_err(),
        DirectControlError::List
    );
    assert_eq!(
        dial(&["192.0.2.1:22"], &[7; 3]).unwrap_err(),
        DirectControlError::List
    );
    let many = vec!["192.0.2.1:22"; MOST_ADDRESSES + 1];
    assert_eq!(
        dial(&many, &[7; TOKEN]).unwrap_err(),
        DirectControlError::List
    );
}
