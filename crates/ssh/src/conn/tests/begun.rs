//! Tests of data packets that are processed as they arrive.

use super::*;
use crate::transport::DisabledProtection::{self, Cipher, CipherAndMac, Nothing};

/// Returns a pair with a channel, whose client and server have disabled this protection.
fn opened(renounced: DisabledProtection) -> (Pair, ChannelId) {
    let mut pair = pair(false, |_| {});
    pair.client.renounce(renounced);
    pair.server.renounce(renounced);
    let id = pair.open();
    pair.run().unwrap();
    (pair, id)
}

/// Returns the bytes that the client has sent and that are on their way.
fn sent(pair: &mut Pair, id: ChannelId, data: &[u8]) -> BytesMut {
    pair.client.channels().write(id, data);
    flush(&mut pair.client, &mut pair.up);
    pair.up.split()
}

/// Returns the data that the server's owner gets.
fn told(pair: &mut Pair) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(event) = pair.server.poll_event() {
        if let ConnectionEvent::Channel(ChannelEvent::Data(id, bytes)) = event {
            pair.server.channels().consumed(pair.now, id, bytes.len());
            all.extend_from_slice(&bytes);
        }
    }
    all
}

#[test]
fn only_what_is_neither_enciphered_nor_authenticated_is_begun() {
    for renounced in [Nothing, Cipher, CipherAndMac] {
        let (mut pair, id) = opened(renounced);
        let clear = renounced == CipherAndMac;
        assert_eq!(pair.server.hears_clear(), clear);
        let mut input = sent(&mut pair, id, &[7; 1000]);
        let whole = input.len();
        let front = pair.server.begin_data(pair.now, &mut input).unwrap();
        assert_eq!(
            front == DataPacketStart::DataStarted,
            clear,
            "{renounced:?}"
        );
        assert_eq!(whole - input.len(), if clear { DATA_HEAD } else { 0 });
        pair.server.handle_input(pair.now, &mut input).unwrap();
        assert_eq!(told(&mut pair), [7; 1000]);
        assert!(input.is_empty() && pair.server.coming().is_none());
    }
}

#[test]
fn some_of_a_packet_goes_elsewhere_and_the_rest_is_told_as_it_comes() {
    let (mut pair, id) = opened(CipherAndMac);
    let data: Vec<u8> = (0..=255).cycle().take(20_000).collect();
    // Data in memory, skipped data and the started packet add up: nothing may be lost in between.
    for (first, passed) in [(0, 20_000), (0, 1), (5, 19_995), (5, 100), (20_000, 0)] {
        let all = sent(&mut pair, id, &data);
        let mut input = BytesMut::new();
        let mut left = all.clone();
        for n in 0..DATA_HEAD {
            let front = pair.server.begin_data(pair.now, &mut input).unwrap();
            assert_eq!((front, input.len()), (DataPacketStart::Short, n));
            input.extend_from_slice(&left.split_to(1));
        }
        let front = pair.server.begin_data(pair.now, &mut input).unwrap();
        assert_eq!((front, input.len()), (DataPacketStart::DataStarted, 0));
        assert_eq!(pair.server.coming(), Some((id, 20_000)));
        input.extend_from_slice(&left.split_to(first));
        pair.server.handle_input(pair.now, &mut input).unwrap();
        assert_eq!(told(&mut pair), data[..first]);
        let _ = left.split_to(passed);
        pair.server.passed(passed);
        pair.server.channels().consumed(pair.now, id, passed);
        let behind = left.len();
        assert_eq!(pair.server.behind(), behind);
        // One byte at a time, padding included.
        let mut rest = Vec::new();
        while !left.is_empty() {
            input.extend_from_slice(&left.split_to(1));
            pair.server.handle_input(pair.now, &mut input).unwrap();
            rest.extend(told(&mut pair));
        }
        assert_eq!(rest, data[first + passed..]);
        assert!(pair.server.coming().is_none(), "{first} {passed}");
        // Windows are as if the data had been read.
        flush(&mut pair.server, &mut pair.down);
        pair.turn_client().unwrap();
    }
    pair.client.channels().write(id, b"and on it goes");
    pair.received.clear();
    pair.run().unwrap();
    assert_eq!(pair.received, b"and on it goes");
}

#[test]
fn what_is_no_data_of_a_channel_is_left_alone() {
    let (mut pair, id) = opened(CipherAndMac);
    assert!(pair.client.ignore(100).unwrap());
    let mut input = BytesMut::new();
    flush(&mut pair.client, &mut input);
    let whole = input.len();
    let front = pair.server.begin_data(pair.now, &mut input).unwrap();
    assert_eq!((front, input.len()), (DataPacketStart::Other, whole));
    // An unknown channel number, more data than the packet has, and no padding.
    pair.client.channels().write(id, &[7; 50]);
    let mut data = BytesMut::new();
    flush(&mut pair.client, &mut data);
    assert_eq!(data[5], 94);
    for (at, wrong) in [(9, 77), (13, 99), (4, 0)] {
        let mut data = data.clone();
        data[at] = wrong;
        let len = data.len();
        let front = pair.server.begin_data(pair.now, &mut data).unwrap();
        assert_eq!((front, data.len()), (DataPacketStart::Other, len), "{at}");
    }
}

#[test]
fn more_than_was_granted_ends_the_connection_at_once() {
    let (mut pair, id) = opened(CipherAndMac);
    let mut input = sent(&mut pair, id, &[7; 1000]);
    // A length of 4 GiB, in the packet's length field too, is refused.
    let mut long = input.clone();
    long[..4].copy_from_slice(&[0xff; 4]);
    let front = pair.server.begin_data(pair.now, &mut long).unwrap();
    assert_eq!(front, DataPacketStart::Other);
    assert!(pair.server.handle_input(pair.now, &mut long).is_err());
    // As often as the window permits, and once more.
    let head = input.split_to(DATA_HEAD);
    let mut refused = None;
    for _ in 0..5000 {
        let mut head = head.clone();
        if let Err(e) = pair.server.begin_data(pair.now, &mut head) {
            refused = Some(e);
            break;
        }
        pair.server.passed(1000);
        let mut padding = BytesMut::from(&input[1000..]);
        pair.server.handle_input(pair.now, &mut padding).unwrap();
    }
    assert!(refused.is_some(), "nobody has granted anything");
}
