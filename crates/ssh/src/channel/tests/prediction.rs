//! Tests of messages sent before the peer has confirmed a channel, and of wrong predictions.

use super::*;

/// Returns a predicted session with its subsystem request and 1000 bytes sent.
fn early() -> (Channels, ChannelId) {
    let mut channels = client();
    let id = channels.open_session_predicted();
    channels.request(id, OutgoingRequest::Subsystem(b"sftp".to_vec()), true);
    channels.write(id, &[1; 1000]);
    let messages = sent(&mut channels);
    let numbers: Vec<u8> = messages.iter().map(|m| m[0]).collect();
    assert_eq!(numbers, [90, 98, 94]);
    assert_eq!(payloads(&messages), [(0, vec![1; 1000])]);
    (channels, id)
}

/// OpenSSH confirms with window 0, and grants 2 MiB with the program.
#[test]
fn openssh_is_predicted_right_and_its_window_never_exceeded() {
    let (mut channels, id) = early();
    channels.write(id, &vec![2; 3 << 20]);
    let early: usize = payloads(&sent(&mut channels))
        .iter()
        .map(|p| p.1.len())
        .sum();
    assert!(
        1000 + early <= 2 << 20,
        "no more than is sure to be granted"
    );
    assert!(1000 + early > (2 << 20) - 32768);
    confirm(&mut channels, id, 0, 0, 32768).unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Opened(id)));
    adjust(&mut channels, id, 2 * MIB).unwrap();
    // The grant replaces the assumed window and is not added to it.
    assert_eq!(
        channels.window(id),
        u64::from(2 * MIB) - 1000 - early as u64
    );
    let after = payloads(&sent(&mut channels));
    let total = 1000 + early + after.iter().map(|p| p.1.len()).sum::<usize>();
    assert!(total <= 2 << 20);
    assert_eq!(channels.poll_event(), None);
    adjust(&mut channels, id, 2 * MIB).unwrap();
    let rest: usize = payloads(&sent(&mut channels))
        .iter()
        .map(|p| p.1.len())
        .sum();
    assert_eq!(total + rest, 1000 + (3 << 20));
}

/// Returns a session beside others, opened with a predicted window but not a predicted number.
fn counting() -> (Channels, ChannelId) {
    let mut channels = client();
    let id = channels.open_session_counting();
    channels.request(id, OutgoingRequest::Exec(b"true".to_vec()), true);
    channels.write(id, &[1; 1000]);
    let numbers: Vec<u8> = sent(&mut channels).iter().map(|m| m[0]).collect();
    assert_eq!(
        numbers,
        [90],
        "sshd disconnects whoever asks a channel that it has refused"
    );
    (channels, id)
}

#[test]
fn a_window_that_comes_with_the_program_is_not_waited_for() {
    let (mut channels, id) = counting();
    confirm(&mut channels, id, 7, 0, 32768).unwrap();
    let messages = sent(&mut channels);
    let numbers: Vec<u8> = messages.iter().map(|m| m[0]).collect();
    assert_eq!(numbers, [98, 94]);
    assert_eq!(payloads(&messages), [(7, vec![1; 1000])]);
    assert_eq!(channels.window(id), u64::from(2 * MIB) - 1000);
    adjust(&mut channels, id, 2 * MIB).unwrap();
    assert_eq!(
        channels.window(id),
        u64::from(2 * MIB) - 1000,
        "not added to it"
    );
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Opened(id)));
    assert_eq!(channels.poll_event(), None);
}

#[test]
fn a_window_in_the_confirmation_is_what_it_says() {
    let (mut channels, id) = counting();
    confirm(&mut channels, id, 7, 500, 32768).unwrap();
    let bytes: usize = payloads(&sent(&mut channels))
        .iter()
        .map(|p| p.1.len())
        .sum();
    assert_eq!(bytes, 500);
}

#[test]
fn a_smaller_window_than_was_counted_on_is_a_failed_prediction() {
    let (mut channels, id) = counting();
    confirm(&mut channels, id, 7, 0, 32768).unwrap();
    sent(&mut channels);
    adjust(&mut channels, id, 999).unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Opened(id)));
    assert_eq!(
        channels.poll_event(),
        Some(ChannelEvent::PredictionFailed(id))
    );
}

#[test]
fn another_number_is_a_failed_prediction() {
    let (mut channels, id) = early();
    confirm(&mut channels, id, 1, 0, 32768).unwrap();
    assert_eq!(
        channels.poll_event(),
        Some(ChannelEvent::PredictionFailed(id))
    );
}

#[test]
fn a_refusal_is_a_failed_prediction() {
    let (mut channels, id) = early();
    let failure = ChannelOpenFailure {
        recipient: id.0,
        reason: 4,
        description: b"",
        language: b"",
    };
    feed(&mut channels, failure.to_bytes()).unwrap();
    assert_eq!(
        channels.poll_event(),
        Some(ChannelEvent::PredictionFailed(id))
    );
}

#[test]
fn smaller_packets_or_windows_than_were_used_are_a_failed_prediction() {
    let failed = |id| Some(ChannelEvent::PredictionFailed(id));
    let (mut channels, id) = early();
    confirm(&mut channels, id, 0, 0, 999).unwrap();
    assert_eq!(channels.poll_event(), failed(id));

    let (mut channels, id) = early();
    confirm(&mut channels, id, 0, 999, 32768).unwrap();
    assert_eq!(channels.poll_event(), failed(id));

    let (mut channels, id) = early();
    confirm(&mut channels, id, 0, 0, 32768).unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Opened(id)));
    adjust(&mut channels, id, 999).unwrap();
    assert_eq!(channels.poll_event(), failed(id));
}

#[test]
fn a_window_in_the_confirmation_is_as_good() {
    let (mut channels, id) = early();
    confirm(&mut channels, id, 0, 1500, 32768).unwrap();
    assert_eq!(channels.poll_event(), Some(ChannelEvent::Opened(id)));
    assert_eq!(channels.window(id), 500);
}

/// Returns the next predicted channel number on the wire; `None` if there is no prediction.
fn next(channels: &mut Channels) -> Option<u32> {
    sent(channels);
    let id = channels.open_session_predicted();
    channels.write(id, b"x");
    payloads(&sent(channels)).first().map(|p| p.0)
}

#[test]
fn every_channel_counts_whatever_its_kind() {
    let mut channels = client();
    assert_eq!(next(&mut channels), Some(0));
    channels.open_session();
    channels.open_direct_tcpip("h", 1);
    assert_eq!(next(&mut channels), Some(3));
}

#[test]
fn where_the_number_cannot_be_known_it_is_not_guessed() {
    let (mut closed, id) = opened(100, 100);
    closed.close(id);
    sent(&mut closed);
    feed(&mut closed, ChannelClose { recipient: id.0 }.to_bytes()).unwrap();
    assert_eq!(next(&mut closed), None);

    let mut refused = client();
    let id = refused.open_session();
    let failure = ChannelOpenFailure {
        recipient: id.0,
        reason: 1,
        description: b"",
        language: b"",
    };
    feed(&mut refused, failure.to_bytes()).unwrap();
    assert_eq!(next(&mut refused), None);

    let (mut agent, id) = opened(100, 100);
    agent.request(id, OutgoingRequest::AgentForwarding, false);
    assert_eq!(next(&mut agent), None);
}
