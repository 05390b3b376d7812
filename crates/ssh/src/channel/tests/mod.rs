//! Tests of channels against a scripted peer, and against each other.

mod crossing;
mod illegal;
mod pair;
mod prediction;

use std::time::Instant;

use bytes::Bytes;
use wire::{PacketPool, RemainingBytes};

use super::*;
use crate::error::PeerMisbehaved;
use crate::msg::{
    ChannelClose, ChannelData, ChannelEof, ChannelExtendedData, ChannelRequest,
    ChannelWindowAdjust, RequestFailure, RequestSuccess,
};

const MIB: u32 = 1 << 20;

/// An arbitrary starting instant.
#[expect(
    clippy::disallowed_methods,
    reason = "there is no other way to get an Instant"
)]
pub(super) fn start() -> Instant {
    Instant::now()
}

fn channels(role: EndpointRole) -> Channels {
    Channels::new(
        role,
        ChannelsConfig::default(),
        PacketPool::new(32 * 1024, 8),
    )
}

fn client() -> Channels {
    channels(EndpointRole::Client)
}

/// Returns one session, confirmed as the peer's channel 7 with `window` and `max_packet`.
fn opened(window: u32, max_packet: u32) -> (Channels, ChannelId) {
    let mut channels = client();
    let id = channels.open_session();
    channels.poll_packet().expect("CHANNEL_OPEN is sent");
    confirm(&mut channels, id, 7, window, max_packet).unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Opened(id)));
    (channels, id)
}

fn feed(channels: &mut Channels, message: Vec<u8>) -> Result<(), Error> {
    channels.handle(start(), Bytes::from(message))
}

fn confirm(
    channels: &mut Channels,
    id: ChannelId,
    sender: u32,
    window: u32,
    max_packet: u32,
) -> Result<(), Error> {
    let message = ChannelOpenConfirmation {
        recipient: id.0,
        sender,
        window,
        max_packet,
        data: RemainingBytes(&[]),
    };
    feed(channels, message.to_bytes())
}

fn adjust(channels: &mut Channels, id: ChannelId, bytes: u32) -> Result<(), Error> {
    let message = ChannelWindowAdjust {
        recipient: id.0,
        bytes,
    };
    feed(channels, message.to_bytes())
}

fn data(id: ChannelId, data: &[u8]) -> Vec<u8> {
    ChannelData {
        recipient: id.0,
        data,
    }
    .to_bytes()
}

fn request_from_peer(id: ChannelId, name: &[u8], want_reply: bool, data: &[u8]) -> Vec<u8> {
    ChannelRequest {
        recipient: id.0,
        name,
        want_reply,
        data: RemainingBytes(data),
    }
    .to_bytes()
}

/// Returns all messages that may be sent now.
fn sent(channels: &mut Channels) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| channels.poll_packet())
        .map(|packet| packet.payload().to_vec())
        .collect()
}

/// Returns the CHANNEL_DATA payloads among `messages`, by the peer's channel number.
fn payloads(messages: &[Vec<u8>]) -> Vec<(u32, Vec<u8>)> {
    messages
        .iter()
        .filter_map(|m| ChannelData::decode(m).ok())
        .map(|m| (m.recipient, m.data.to_vec()))
        .collect()
}

fn block(pool: &PacketPool, slot: usize, bytes: &[u8]) -> PayloadBlock {
    let mut block = PayloadBlock::new(pool, slot, 0, bytes.len());
    assert_eq!(block.append(bytes), bytes.len());
    block
}

#[test]
fn nothing_leaves_before_the_confirmation() {
    let mut channels = client();
    let id = channels.open_session();
    channels.request(id, OutgoingRequest::Subsystem(b"sftp".to_vec()), true);
    channels.write(id, b"early");
    let messages = sent(&mut channels);
    assert_eq!(messages.len(), 1);
    let open = ChannelOpen::decode(&messages[0]).unwrap();
    assert_eq!((open.kind, open.sender), (&b"session"[..], id.0));
    assert_eq!((open.window, open.max_packet), (2 * MIB, 32768));
    confirm(&mut channels, id, 3, 100, 32768).unwrap();
    let messages = sent(&mut channels);
    let request = ChannelRequest::decode(&messages[0]).unwrap();
    assert_eq!((request.recipient, request.name), (3, &b"subsystem"[..]));
    assert_eq!(payloads(&messages), [(3, b"early".to_vec())]);
}

#[test]
fn small_writes_share_packets_and_keep_their_order() {
    let (mut channels, id) = opened(2 * MIB, 32768);
    let pool = PacketPool::new(32 * 1024, 8);
    let mut expected = Vec::new();
    for i in 0..20_u8 {
        let piece = vec![i; 1000];
        expected.extend_from_slice(&piece);
        match i % 2 {
            0 => channels.write(id, &piece),
            _ => channels.write_block(id, block(&pool, 32 * 1024, &piece)),
        }
    }
    assert_eq!(channels.queued(id), 20_000);
    assert_eq!(payloads(&sent(&mut channels)), [(7, expected)]);
    assert_eq!(channels.queued(id), 0);
    assert_eq!(channels.window(id), u64::from(2 * MIB) - 20_000);
}

#[test]
fn a_large_block_leaves_in_the_memory_it_came_in() {
    let (mut channels, id) = opened(2 * MIB, 32768);
    let pool = PacketPool::new(32 * 1024, 8);
    channels.write(id, b"before");
    let block = block(&pool, 32 * 1024, &[9; 40_000]);
    let at: Vec<_> = block.packets().map(|p| p.payload().as_ptr()).collect();
    channels.write_block(id, block);
    let packets: Vec<_> = std::iter::from_fn(|| channels.poll_packet()).collect();
    let now: Vec<_> = packets.iter().map(|p| p.payload()[9..].as_ptr()).collect();
    assert_eq!(now[1..], at);
    assert_eq!(packets[1].len(), 9 + 32 * 1024);
}

#[test]
fn no_packet_exceeds_what_the_peer_takes() {
    for max_packet in [1, 7, 1000, 32768] {
        let (mut channels, id) = opened(2 * MIB, max_packet);
        let bytes: Vec<u8> = (0..5000_u32).map(|i| i as u8).collect();
        channels.write(id, &bytes);
        let got = payloads(&sent(&mut channels));
        assert!(got.iter().all(|(_, p)| p.len() <= max_packet as usize));
        let whole: Vec<u8> = got.into_iter().flat_map(|(_, p)| p).collect();
        assert_eq!(whole, bytes);
    }
}

#[test]
fn the_window_is_filled_to_the_byte_and_then_holds() {
    let (mut channels, id) = opened(1000, 32768);
    channels.write(id, &[1; 2500]);
    assert_eq!(payloads(&sent(&mut channels)), [(7, vec![1; 1000])]);
    assert_eq!((channels.queued(id), channels.window(id)), (1500, 0));
    assert!(channels.is_stalled(id));
    adjust(&mut channels, id, 1).unwrap();
    assert_eq!(payloads(&sent(&mut channels)), [(7, vec![1; 1])]);
    adjust(&mut channels, id, 10_000).unwrap();
    assert_eq!(payloads(&sent(&mut channels)), [(7, vec![1; 1499])]);
    assert!(!channels.is_stalled(id));
}

#[test]
fn channels_take_turns() {
    let mut channels = client();
    let ids = [channels.open_session(), channels.open_session()];
    sent(&mut channels);
    for (remote, id) in ids.into_iter().enumerate() {
        confirm(&mut channels, id, remote as u32, 2 * MIB, 32768).unwrap();
        channels.write(id, &[remote as u8; 3 * 32768]);
    }
    let order: Vec<u32> = payloads(&sent(&mut channels)).iter().map(|p| p.0).collect();
    assert_eq!(order, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn eof_and_close_leave_behind_the_data() {
    let (mut channels, id) = opened(4, 32768);
    channels.write(id, b"123456");
    channels.send_eof(id);
    channels.write(id, b"too late");
    channels.close(id);
    channels.close(id);
    assert_eq!(payloads(&sent(&mut channels)).len(), 1);
    adjust(&mut channels, id, 100).unwrap();
    let messages = sent(&mut channels);
    let numbers: Vec<u8> = messages.iter().map(|m| m[0]).collect();
    assert_eq!(numbers, [94, 96, 97]);
    assert_eq!(payloads(&messages), [(7, b"56".to_vec())]);
    feed(&mut channels, ChannelClose { recipient: id.0 }.to_bytes()).unwrap();
    assert!(!channels.exists(id));
}

#[test]
fn the_peers_close_voids_what_is_queued_and_is_answered_once() {
    let (mut channels, id) = opened(4, 32768);
    channels.write(id, b"123456");
    sent(&mut channels);
    feed(&mut channels, ChannelClose { recipient: id.0 }.to_bytes()).unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Closed(id)));
    channels.write(id, b"more");
    channels.close(id);
    assert_eq!(channels.queued(id), 0);
    assert_eq!(
        sent(&mut channels),
        [ChannelClose { recipient: 7 }.to_bytes()]
    );
    assert!(!channels.exists(id));
    assert!(feed(&mut channels, ChannelClose { recipient: id.0 }.to_bytes()).is_err());
}

/// Without new grants both sides would wait for a window: the peer cannot read our CLOSE while it
/// is writing to a channel that nobody reads.
#[test]
fn data_for_a_channel_that_was_left_are_dropped_and_granted_again() {
    let (mut channels, id) = opened(0, 32768);
    channels.write(id, b"stuck behind a window of 0");
    channels.close(id);
    for _ in 0..40 {
        feed(&mut channels, data(id, &[0; 32768])).unwrap();
    }
    assert_eq!(channels.poll_event(), None);
    let granted: u32 = sent(&mut channels)
        .iter()
        .filter_map(|m| ChannelWindowAdjust::decode(m).ok())
        .map(|m| m.bytes)
        .sum();
    assert_eq!(granted, 40 * 32768);
}

#[test]
fn extended_data_that_are_not_stderr_do_not_eat_the_window() {
    let (mut channels, id) = opened(0, 32768);
    for _ in 0..200 {
        let other = ChannelExtendedData {
            recipient: id.0,
            code: 9,
            data: &[0; 32768],
        };
        feed(&mut channels, other.to_bytes()).unwrap();
        sent(&mut channels);
    }
    assert_eq!(channels.poll_event(), None);
}

#[test]
fn received_data_are_slices_of_their_segment() {
    let (mut channels, id) = opened(0, 32768);
    let segment = Bytes::from(data(id, b"hello"));
    channels.handle(start(), segment.clone()).unwrap();
    let Some(ChannelEvent::Data(_, slice)) = channels.poll_event() else {
        panic!("data arrive");
    };
    assert_eq!(slice.as_ptr(), segment[9..].as_ptr());
    feed(&mut channels, data(id, b"")).unwrap();
    assert_eq!(channels.poll_event(), None);
}

#[test]
fn replies_are_counted() {
    let (mut channels, id) = opened(0, 32768);
    channels.request(
        id,
        OutgoingRequest::Env(b"A".to_vec(), b"B".to_vec()),
        false,
    );
    channels.request(id, OutgoingRequest::Exec(b"ls".to_vec()), true);
    let names: Vec<_> = sent(&mut channels)
        .iter()
        .map(|m| {
            let m = ChannelRequest::decode(m).unwrap();
            (m.name.to_vec(), m.want_reply, m.data.0.to_vec())
        })
        .collect();
    assert_eq!(
        names,
        [
            (b"env".to_vec(), false, b"\0\0\0\x01A\0\0\0\x01B".to_vec()),
            (b"exec".to_vec(), true, b"\0\0\0\x02ls".to_vec()),
        ]
    );
    let success = ChannelSuccess { recipient: id.0 }.to_bytes();
    feed(&mut channels, success.clone()).unwrap();
    assert_eq!(
        channels.poll_event(),
        Some(ChannelEvent::RequestSucceeded(id))
    );
    assert_eq!(
        feed(&mut channels, success),
        Err(PeerMisbehaved::Unsolicited.into())
    );
}

#[test]
fn how_the_far_program_ended_is_told() {
    let (mut channels, id) = opened(0, 32768);
    feed(
        &mut channels,
        request_from_peer(id, b"exit-status", false, &3_u32.to_be_bytes()),
    )
    .unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::ExitStatus(id, 3)));
    let signal = b"\0\0\0\x04KI\x1bL\0\0\0\0\0\0\0\0\0";
    feed(
        &mut channels,
        request_from_peer(id, b"exit-signal", false, signal),
    )
    .unwrap();
    assert_eq!(
        channels.poll_event(),
        Some(ChannelEvent::ExitSignal(id, "KI\\x1bL".to_owned()))
    );
}

#[test]
fn a_refusal_is_escaped() {
    let mut channels = client();
    let id = channels.open_direct_tcpip("db", 5432);
    let messages = sent(&mut channels);
    let open = ChannelOpen::decode(&messages[0]).unwrap();
    assert_eq!(open.kind, b"direct-tcpip");
    assert!(open.data.0.starts_with(b"\0\0\0\x02db\0\0\x15\x38"));
    let failure = ChannelOpenFailure {
        recipient: id.0,
        reason: 2,
        description: b"no \x1b[31mroute",
        language: b"",
    };
    feed(&mut channels, failure.to_bytes()).unwrap();
    assert_eq!(
        channels.poll_event(),
        Some(ChannelEvent::OpenFailed {
            id,
            reason: 2,
            description: "no \\x1b[31mroute".to_owned(),
        })
    );
    assert!(!channels.exists(id));
}

#[test]
fn keepalives_are_asked_and_answered() {
    let mut channels = client();
    channels.send_keepalive();
    channels.send_keepalive();
    assert_eq!(sent(&mut channels).len(), 2);
    // OpenSSH refuses the request, others grant it; either reply shows that the peer is alive.
    feed(&mut channels, RequestFailure {}.to_bytes()).unwrap();
    feed(
        &mut channels,
        RequestSuccess {
            data: RemainingBytes(&[]),
        }
        .to_bytes(),
    )
    .unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Alive));
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Alive));
    let ask = |name, want_reply| {
        GlobalRequest {
            name,
            want_reply,
            data: RemainingBytes(&[]),
        }
        .to_bytes()
    };
    feed(&mut channels, ask(b"keepalive@openssh.com", true)).unwrap();
    feed(&mut channels, ask(b"hostkeys-00@openssh.com", false)).unwrap();
    assert_eq!(sent(&mut channels), [RequestFailure {}.to_bytes()]);
    // sshd also sends keepalives on a channel (serverloop.c, client_alive_check).
    let (mut channels, id) = opened(0, 32768);
    let ask = request_from_peer(id, b"keepalive@openssh.com", true, b"");
    feed(&mut channels, ask).unwrap();
    assert_eq!(
        sent(&mut channels),
        [ChannelFailure { recipient: 7 }.to_bytes()]
    );
}

#[test]
fn an_agent_channel_comes_only_where_one_was_asked_for() {
    let open = ChannelOpen {
        kind: b"auth-agent@openssh.com",
        sender: 9,
        window: 1000,
        max_packet: 1000,
        data: RemainingBytes(&[]),
    };
    let (mut channels, id) = opened(0, 32768);
    feed(&mut channels, open.to_bytes()).unwrap();
    assert_eq!(channels.poll_event(), None);
    let refusal = sent(&mut channels);
    let refusal = ChannelOpenFailure::decode(&refusal[0]).unwrap();
    assert_eq!((refusal.recipient, refusal.reason), (9, PROHIBITED));

    channels.request(id, OutgoingRequest::AgentForwarding, false);
    feed(&mut channels, open.to_bytes()).unwrap();
    let Some(ChannelEvent::AgentOpened(agent)) = channels.poll_event() else {
        panic!("the agent's channel is offered");
    };
    sent(&mut channels);
    channels.accept(agent);
    channels.write(agent, b"keys");
    let messages = sent(&mut channels);
    assert_eq!(messages[0][0], ChannelOpenConfirmation::NUMBER);
    assert_eq!(payloads(&messages), [(9, b"keys".to_vec())]);
}
