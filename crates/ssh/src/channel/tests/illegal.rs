//! Tests of messages that a peer must not send, in each state of a channel.

use super::*;

fn error(result: Result<(), Error>) -> PeerMisbehaved {
    match result {
        Err(Error::PeerMisbehaved(e)) => e,
        other => panic!("{other:?} where the peer is at fault"),
    }
}

/// Returns one of each message that names a channel, for `id`.
fn all(id: ChannelId) -> Vec<(&'static str, Vec<u8>)> {
    let recipient = id.0;
    let extended = ChannelExtendedData {
        recipient,
        code: 1,
        data: b"x",
    };
    let failure = ChannelOpenFailure {
        recipient,
        reason: 1,
        description: b"",
        language: b"",
    };
    let confirmation = ChannelOpenConfirmation {
        recipient,
        sender: 0,
        window: 0,
        max_packet: 1,
        data: RemainingBytes(&[]),
    };
    vec![
        ("confirmation", confirmation.to_bytes()),
        ("failure", failure.to_bytes()),
        (
            "adjust",
            ChannelWindowAdjust {
                recipient,
                bytes: 1,
            }
            .to_bytes(),
        ),
        ("data", data(id, b"x")),
        ("extended", extended.to_bytes()),
        ("eof", ChannelEof { recipient }.to_bytes()),
        ("close", ChannelClose { recipient }.to_bytes()),
        ("request", request_from_peer(id, b"x", false, b"")),
        ("success", ChannelSuccess { recipient }.to_bytes()),
        ("refusal", ChannelFailure { recipient }.to_bytes()),
    ]
}

#[test]
fn each_state_of_a_channel_refuses_what_it_does_not_expect() {
    type Make = fn() -> (Channels, ChannelId);
    let states: [(&str, Make, &[&str]); 7] = [
        ("unknown", || (client(), ChannelId(0)), &[]),
        (
            "opening",
            || {
                let mut channels = client();
                let id = channels.open_session();
                (channels, id)
            },
            &["confirmation", "failure"],
        ),
        (
            "predicted",
            || {
                let mut channels = client();
                let id = channels.open_session_predicted();
                (channels, id)
            },
            &["confirmation", "failure"],
        ),
        (
            "open",
            || opened(100, 100),
            &["adjust", "data", "extended", "eof", "close", "request"],
        ),
        (
            "ended by the peer",
            || {
                let (mut channels, id) = opened(100, 100);
                feed(&mut channels, ChannelEof { recipient: id.0 }.to_bytes()).unwrap();
                (channels, id)
            },
            &["adjust", "eof", "close", "request"],
        ),
        (
            "closed by the peer",
            || {
                let (mut channels, id) = opened(100, 100);
                feed(&mut channels, ChannelClose { recipient: id.0 }.to_bytes()).unwrap();
                (channels, id)
            },
            &["adjust", "data", "extended", "eof"],
        ),
        (
            "closed by both",
            closed,
            &["adjust", "data", "extended", "eof"],
        ),
    ];
    for (state, make, legal) in states {
        let names = all(make().1).into_iter().map(|(name, _)| name);
        for (at, name) in names.enumerate() {
            let (mut channels, id) = make();
            let result = feed(&mut channels, all(id).swap_remove(at).1);
            assert_eq!(
                result.is_ok(),
                legal.contains(&name),
                "{name} while {state}: {result:?}"
            );
        }
    }
}

/// Returns a channel that is closed.
fn closed() -> (Channels, ChannelId) {
    let (mut channels, id) = opened(100, 100);
    channels.close(id);
    assert!(!sent(&mut channels).is_empty());
    feed(&mut channels, ChannelClose { recipient: id.0 }.to_bytes()).unwrap();
    while channels.poll_event().is_some() {}
    (channels, id)
}

/// Paramiko's threads may send such messages, which is no reason to end a connection.
#[test]
fn what_comes_behind_the_close_of_a_channel_is_passed_over_some_times() {
    let (mut channels, id) = closed();
    for _ in 0..LATE {
        feed(&mut channels, data(id, b"x")).unwrap();
    }
    assert_eq!(channels.poll_event(), None);
    assert_eq!(sent(&mut channels), Vec::<Vec<u8>>::new());
    for _ in 0..2 {
        assert_eq!(
            error(feed(&mut channels, data(id, b"x"))),
            PeerMisbehaved::UnknownChannel(id.0)
        );
    }
    // A channel with another number never existed.
    let (mut channels, id) = closed();
    let other = ChannelId(id.0 + 1);
    assert_eq!(
        error(feed(&mut channels, data(other, b"x"))),
        PeerMisbehaved::UnknownChannel(other.0)
    );
}

/// Returns a server's channels with a session that waits for its answer.
fn offered() -> (Channels, ChannelId) {
    let mut server = channels(EndpointRole::Server);
    let open = ChannelOpen {
        kind: b"session",
        sender: 5,
        window: 100,
        max_packet: 100,
        data: RemainingBytes(&[]),
    };
    feed(&mut server, open.to_bytes()).unwrap();
    let Some(ChannelEvent::SessionOpened(id)) = server.poll_event() else {
        panic!("a session is offered");
    };
    (server, id)
}

#[test]
fn a_session_waiting_for_our_answer_takes_what_a_client_may_send_to_it() {
    let legal = ["adjust", "data", "extended", "eof", "close", "request"];
    for (name, message) in all(offered().1) {
        let (mut server, _) = offered();
        let fed = feed(&mut server, message);
        assert_eq!(fed.is_ok(), legal.contains(&name), "{name}: {fed:?}");
    }
}

#[test]
fn what_came_before_our_answer_is_told_in_order_and_answered_behind_it() {
    let (mut server, id) = offered();
    for message in [
        request_from_peer(id, b"subsystem", true, b"x"),
        data(id, b"INIT"),
        ChannelClose { recipient: id.0 }.to_bytes(),
    ] {
        feed(&mut server, message).unwrap();
    }
    server.accept(id);
    let events: Vec<ChannelEvent> = std::iter::from_fn(|| server.poll_event()).collect();
    assert!(matches!(
        events[..],
        [
            ChannelEvent::Request { .. },
            ChannelEvent::Data(..),
            ChannelEvent::Closed(_)
        ]
    ));
    server.answer(id, true);
    let numbers: Vec<u8> = sent(&mut server).iter().map(|m| m[0]).collect();
    assert_eq!(
        numbers,
        [
            ChannelOpenConfirmation::NUMBER,
            ChannelSuccess::NUMBER,
            ChannelClose::NUMBER
        ]
    );
}

#[test]
fn a_session_that_was_refused_takes_nothing() {
    let (mut server, id) = offered();
    server.reject(id, "no");
    let message = data(id, b"x");
    assert_eq!(
        error(feed(&mut server, message)),
        PeerMisbehaved::UnknownChannel(id.0)
    );
}

#[test]
fn data_beyond_the_window_or_the_packet_are_refused() {
    let (mut channels, id) = opened(0, 32768);
    assert_eq!(
        error(feed(&mut channels, data(id, &[0; 32769]))),
        PeerMisbehaved::DataTooLong(32769)
    );
    let (mut channels, id) = opened(0, 32768);
    for _ in 0..64 {
        feed(&mut channels, data(id, &[0; 32768])).unwrap();
    }
    assert_eq!(
        error(feed(&mut channels, data(id, &[0]))),
        PeerMisbehaved::WindowExceeded
    );
    // Standard error counts against the window too.
    let (mut channels, id) = opened(0, 32768);
    let stderr = ChannelExtendedData {
        recipient: id.0,
        code: 1,
        data: &[0; 32768],
    };
    let end = (0..65).find_map(|_| feed(&mut channels, stderr.to_bytes()).err());
    assert_eq!(end, Some(PeerMisbehaved::WindowExceeded.into()));
}

#[test]
fn a_window_past_4_gib_is_refused() {
    let (mut channels, id) = opened(100, 32768);
    adjust(&mut channels, id, u32::MAX - 100).unwrap();
    assert_eq!(
        error(adjust(&mut channels, id, 1)),
        PeerMisbehaved::WindowOverflow
    );
}

#[test]
fn a_channel_that_takes_no_data_is_refused() {
    let mut channels = client();
    let id = channels.open_session();
    assert_eq!(
        error(confirm(&mut channels, id, 0, 100, 0)),
        PeerMisbehaved::ZeroPacket
    );
}

#[test]
fn channels_nobody_asked_for_are_refused_one_by_one() {
    for kind in [
        "x11",
        "forwarded-tcpip",
        "session",
        "auth-agent@openssh.com",
        "?",
    ] {
        let mut channels = client();
        let open = ChannelOpen {
            kind: kind.as_bytes(),
            sender: 1,
            window: 100,
            max_packet: 100,
            data: RemainingBytes(b"whatever"),
        };
        feed(&mut channels, open.to_bytes()).unwrap();
        assert_eq!(channels.poll_event(), None, "{kind}");
        let answer = sent(&mut channels);
        let refusal = ChannelOpenFailure::decode(&answer[0]).unwrap();
        assert_eq!(
            (refusal.recipient, refusal.reason),
            (1, PROHIBITED),
            "{kind}"
        );
    }
}

#[test]
fn a_peer_that_asks_without_reading_is_left() {
    let mut channels = client();
    let ask = GlobalRequest {
        name: b"keepalive@openssh.com",
        want_reply: true,
        data: RemainingBytes(&[]),
    };
    let end = (0..100_000).find_map(|_| feed(&mut channels, ask.to_bytes()).err());
    assert!(matches!(
        end,
        Some(Error::PeerMisbehaved(PeerMisbehaved::TooMany(_)))
    ));
}

#[test]
fn a_server_bounds_the_channels_of_a_client() {
    let mut server = channels(EndpointRole::Server);
    for sender in 0..2 * MAX_CHANNELS as u32 {
        let open = ChannelOpen {
            kind: b"session",
            sender,
            window: 100,
            max_packet: 100,
            data: RemainingBytes(&[]),
        };
        feed(&mut server, open.to_bytes()).unwrap();
        sent(&mut server);
    }
    let offered = std::iter::from_fn(|| server.poll_event()).count();
    assert_eq!(offered, MAX_CHANNELS);
}

#[test]
fn replies_to_nothing_and_unknown_numbers_are_refused() {
    for message in [
        RequestSuccess {
            data: RemainingBytes(&[]),
        }
        .to_bytes(),
        RequestFailure {}.to_bytes(),
    ] {
        assert_eq!(
            error(feed(&mut client(), message)),
            PeerMisbehaved::Unsolicited
        );
    }
    assert_eq!(
        error(feed(&mut client(), vec![101])),
        PeerMisbehaved::Unexpected(101)
    );
    assert_eq!(
        error(feed(&mut client(), vec![])),
        PeerMisbehaved::Unexpected(0)
    );
}

#[test]
fn every_message_cut_short_or_lengthened_is_refused() {
    for (name, message) in all(ChannelId(0)) {
        for len in 0..message.len() {
            let (mut channels, _) = opened(100, 100);
            let cut = message[..len].to_vec();
            assert!(feed(&mut channels, cut).is_err(), "{name} cut to {len}");
        }
        // Trailing bytes belong to the last field of these messages.
        if !["request", "confirmation"].contains(&name) {
            let (mut channels, _) = opened(100, 100);
            let longer = [message, vec![0]].concat();
            assert!(feed(&mut channels, longer).is_err(), "{name} lengthened");
        }
    }
}
