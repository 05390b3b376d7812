use std::time::Duration;

use testkit::sftp_model::Rng;

use super::*;

fn on(connection: u32, channel: u32) -> (ConnectionId, LinkChannelId) {
    (ConnectionId(connection), LinkChannelId(channel))
}

fn start(restarts: bool) -> RemoteCommandStart {
    RemoteCommandStart {
        command: b"xxhsum".to_vec(),
        awaited: Some("the checksums"),
        restarts,
    }
}

/// Takes the commands for which this is true out of the model.
fn taken(
    model: &mut Vec<(u64, u32, u32)>,
    is: impl FnMut(&mut (u64, u32, u32)) -> bool,
) -> Vec<RemoteCommandId> {
    let ended = model.extract_if(.., is);
    ended.map(|(id, ..)| RemoteCommandId(id)).collect()
}

/// Random commands on random connections, compared with a list of them: each ends once, with its own
/// channel or connection.
#[test]
fn the_end_of_a_channel_or_connection_ends_its_commands_and_no_others() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut commands = RemoteCommands::default();
        let mut model: Vec<(u64, u32, u32)> = Vec::new();
        for nth in 0..40 {
            let connection = rng.below(3) as u32;
            match rng.below(5) {
                0 | 1 => {
                    commands.begin(RemoteCommandId(nth), on(connection, nth as u32), None);
                    model.push((nth, connection, nth as u32));
                }
                2 => {
                    let channel = rng.below(nth + 1) as u32;
                    let (at, which) = on(connection, channel);
                    let ended = commands.end(at, Some(which));
                    let is = |(_, c, ch): &mut (u64, u32, u32)| *c == connection && *ch == channel;
                    assert_eq!(ended, taken(&mut model, is));
                }
                3 => {
                    let ended = commands.end(ConnectionId(connection), None);
                    let is = |(_, c, _): &mut (u64, u32, u32)| *c == connection;
                    assert_eq!(ended, taken(&mut model, is));
                }
                _ => {
                    let id = rng.below(nth + 1);
                    commands.forget(RemoteCommandId(id));
                    model.retain(|(of, ..)| *of != id);
                }
            }
            for connection in 0..3 {
                let any = model.iter().any(|(_, on, _)| *on == connection);
                assert_eq!(
                    commands.any_on(ConnectionId(connection)),
                    any,
                    "seed {seed}"
                );
            }
        }
    }
}

/// Output belongs to the command of its channel: channels of two connections have equal numbers.
#[test]
fn output_is_that_of_the_command_on_this_channel_of_this_connection() {
    let now = Instant::now();
    let mut commands = RemoteCommands::default();
    for (id, connection) in [(1, 1), (2, 2)] {
        let silence = Some((now, "the checksums"));
        commands.begin(RemoteCommandId(id), on(connection, 7), silence);
    }
    assert_eq!(commands.printed(ConnectionId(3), LinkChannelId(7)), None);
    assert_eq!(commands.printed(ConnectionId(2), LinkChannelId(8)), None);
    assert_eq!(commands.waits(now).count(), 2);
    let printed = commands.printed(ConnectionId(2), LinkChannelId(7));
    assert_eq!(printed, Some(RemoteCommandId(2)));
    // The other one has still printed nothing.
    let waits: Vec<_> = commands.waits(now).map(|wait| wait.waiter).collect();
    assert_eq!(
        waits,
        [Waiter::Command(ConnectionId(1), RemoteCommandId(1))]
    );
}

/// A silence counts from the start of the command, or from the last answer to anything else.
#[test]
fn a_command_is_not_called_silent_while_the_server_answers_something() {
    let now = Instant::now();
    let later = now + Duration::from_secs(9);
    let mut commands = RemoteCommands::default();
    commands.begin(RemoteCommandId(1), on(1, 1), Some((now, "the checksums")));
    commands.begin(RemoteCommandId(2), on(1, 2), None);
    let since = |heard| -> Vec<Instant> {
        let waits = commands.waits(heard);
        waits.map(|wait| wait.oldest.since).collect()
    };
    assert_eq!(since(now), [now]);
    assert_eq!(since(later), [later]);
    assert_eq!(since(now - Duration::from_secs(5)), [now]);
}

/// A session whose last connection is lost connects again for commands that are started again, also
/// for those that have not started yet, and for no others.
#[test]
fn only_commands_that_are_started_again_keep_a_session_connecting() {
    let mut commands = RemoteCommands::default();
    commands.order(RemoteCommandInstruction::Run(
        RemoteCommandId(1),
        start(false),
    ));
    commands.order(RemoteCommandInstruction::Input(
        RemoteCommandId(2),
        b"line".to_vec(),
    ));
    assert!(commands.any_waits());
    assert!(!commands.any_restarts());
    commands.begin(RemoteCommandId(3), on(1, 1), None);
    assert!(!commands.any_restarts());
    commands.order(RemoteCommandInstruction::Run(
        RemoteCommandId(4),
        start(true),
    ));
    assert!(commands.any_restarts());
}

/// Input and stops of a command that does not run are no commands that wait.
#[test]
fn orders_for_a_command_that_has_ended_wait_for_no_connection() {
    let mut commands = RemoteCommands::default();
    for order in [
        RemoteCommandInstruction::Input(RemoteCommandId(1), b"line".to_vec()),
        RemoteCommandInstruction::End(RemoteCommandId(1)),
        RemoteCommandInstruction::Stop(RemoteCommandId(1)),
    ] {
        commands.order(order);
        assert!(!commands.any_waits());
    }
}
