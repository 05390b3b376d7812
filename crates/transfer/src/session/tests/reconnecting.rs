//! The last connection is lost, or all are silent: the session connects again and goes on.

use std::time::Duration;

use testkit::sftp_model::Rng;

use super::world::{World, content, lock};
use crate::session::{
    FurtherConnectionError, RemoteCommandError, RemoteCommandEvent, SessionEvent, SessionOptions,
};

const LONG: Duration = Duration::from_secs(900);

fn one_connection() -> SessionOptions {
    SessionOptions {
        connections: Some(1),
        channels: Some(1),
        ..SessionOptions::default()
    }
}

fn denied(why: &str) -> (Duration, Option<FurtherConnectionError>) {
    let why = FurtherConnectionError::Login(why.to_owned());
    (Duration::from_millis(300), Some(why))
}

fn unreachable() -> (Duration, Option<FurtherConnectionError>) {
    let why = FurtherConnectionError::Connection("no route to host".to_owned());
    (Duration::from_millis(50), Some(why))
}

/// A world whose only connection is lost after `after` bytes of an upload of 20 MB.
fn losing(seed: u64, after: u64) -> World {
    let mut world = World::with(seed, one_connection());
    lock(&world.shared).net.lose_after = vec![after];
    world.put("big", content(5, 12_000_000));
    world
}

#[test]
fn a_copy_goes_on_after_its_only_connection_was_lost() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let mut world = losing(seed, 5_000_000 + rng.below(6_000_000));
        assert_eq!(
            world.run(LONG),
            Vec::<String>::new(),
            "{seed}: {:?}",
            world.lines()
        );
        assert!(world.says("reconnecting") && world.says("reconnected"));
        assert!(
            world.at_server("big") == Some(content(5, 12_000_000)),
            "{seed}"
        );
        let rejoined = |e: &&SessionEvent| matches!(e, SessionEvent::Reconnected);
        assert_eq!(world.events.iter().filter(rejoined).count(), 1, "{seed}");
    }
}

/// Bug: `cp --verify` waited 22 s for the checksum program on a connection that was lost.
#[test]
fn a_command_on_the_last_connection_was_not_reported_as_ended() {
    let mut world = losing(3, 5_000_000);
    lock(&world.shared).net.commands_hang = true;
    world.exec("the request to run a checksum program");
    assert_eq!(world.run(LONG), Vec::<String>::new());
    assert!(world.says("reconnected"), "{:?}", world.lines());
    let is_end = |event: &&SessionEvent| {
        let lost = |event: &RemoteCommandEvent| {
            matches!(
                event,
                RemoteCommandEvent::Ended(Err(RemoteCommandError::ConnectionLost(_)))
            )
        };
        matches!(event, SessionEvent::Exec(_, event) if lost(event))
    };
    assert_eq!(world.events.iter().filter(is_end).count(), 1);
}

/// Bug: `cp --verify` failed if the connection was lost when all data had arrived and only checksums
/// were awaited.
#[test]
fn a_session_that_only_ran_a_checksum_program_was_given_up() {
    let mut world = World::with(3, one_connection());
    lock(&world.shared).net.commands_hang = true;
    world.put("small", content(1, 10));
    assert_eq!(world.run(LONG), Vec::<String>::new());
    world.exec("the request to run a checksum program");
    world.run_until(Duration::from_secs(2), |_| false);
    lock(&world.shared).net.lose(0);
    world.run_until(Duration::from_secs(20), |world| world.says("reconnected"));
    assert!(world.says("reconnected"), "{:?}", world.lines());
}

/// Bug: the time limit of a checksum program ran while it waited for a connection: nothing told that
/// it had not started.
#[test]
fn a_command_without_a_connection_was_taken_for_a_running_one() {
    let mut world = World::with(3, one_connection());
    lock(&world.shared).net.commands_hang = true;
    world.put("small", content(1, 10));
    assert_eq!(world.run(LONG), Vec::<String>::new());
    let is_start =
        |event: &SessionEvent| matches!(event, SessionEvent::Exec(_, RemoteCommandEvent::Started));
    world.exec("the request to run a checksum program");
    world.run_until(Duration::from_secs(2), |_| false);
    assert!(world.events.iter().any(is_start));
    lock(&world.shared).net.lose(0);
    world.run_until(Duration::from_secs(20), |world| world.says("reconnecting"));
    world.events.clear();
    world.exec("the request to run a checksum program");
    world.run_until(Duration::from_secs(20), |world| world.says("reconnected"));
    world.run_until(Duration::from_secs(2), |_| false);
    let is_connected = |event: &SessionEvent| matches!(event, SessionEvent::Reconnected);
    let connected = world.events.iter().position(is_connected);
    let started = world.events.iter().position(is_start);
    assert!(connected.is_some() && started > connected, "{started:?}");
}

#[test]
fn a_copy_goes_on_after_several_losses() {
    for seed in 0..5 {
        let mut world = losing(seed, 5_000_000);
        lock(&world.shared).net.lose_after = vec![5_000_000, 3_000_000, 2_000_000];
        assert_eq!(
            world.run(LONG),
            Vec::<String>::new(),
            "{seed}: {:?}",
            world.lines()
        );
        assert!(
            world.at_server("big") == Some(content(5, 12_000_000)),
            "{seed}"
        );
    }
}

/// Bug: a copy that lost its connection before 4 MiB had moved ended, while one that lost it later
/// went on.
#[test]
fn a_copy_whose_connection_is_lost_at_its_beginning_goes_on() {
    for after in [20_000, 1_000_000] {
        let mut world = losing(1, after);
        assert_eq!(world.run(LONG), Vec::<String>::new(), "{:?}", world.lines());
        assert!(world.says("reconnected"), "{:?}", world.lines());
        assert!(world.at_server("big") == Some(content(5, 12_000_000)));
    }
}

/// A server that cuts every connection is given up after a few.
#[test]
fn a_copy_whose_connections_are_all_lost_at_their_beginning_ends() {
    let mut world = losing(1, 100_000);
    lock(&world.shared).net.lose_after = vec![100_000; 20];
    let failed = world.run(LONG);
    assert_eq!(failed.len(), 1, "{:?}", world.lines());
    let began = lock(&world.shared).began.len();
    assert!((1..6).contains(&began), "{began}");
}

#[test]
fn attempts_are_repeated_until_the_host_is_back() {
    let mut world = losing(2, 8_000_000);
    lock(&world.shared).logins = vec![unreachable(); 9].into();
    assert_eq!(world.run(LONG), Vec::<String>::new());
    let began = lock(&world.shared).began.clone();
    assert_eq!(began.len(), 10);
    let waits: Vec<_> = began
        .windows(2)
        .map(|two| (two[1] - two[0]).as_millis())
        .collect();
    // Up to half of each wait is left out at random; a failed attempt takes 50 ms.
    let longest = [400, 800, 1600, 3200, 5000, 5000, 5000, 5000, 5000];
    for (wait, most) in waits.iter().zip(longest) {
        assert!((most / 2..=most + 50).contains(wait), "{waits:?}");
    }
}

#[test]
fn a_host_that_stays_away_ends_the_copy_after_two_minutes() {
    let mut world = losing(3, 8_000_000);
    lock(&world.shared).logins = vec![unreachable(); 500].into();
    let failed = world.run(LONG);
    assert_eq!(failed.len(), 1);
    assert!(
        world.says("reconnecting failed: no route to host"),
        "{:?}",
        world.lines()
    );
    let took = world.elapsed().as_secs();
    assert!((120..140).contains(&took), "{took}");
}

/// Bug: the receiver of a copy between two hosts lost its connection before it heard that the
/// source had ended, and tried to reach the closed port for two minutes.
#[test]
fn a_source_of_connections_that_ends_after_the_loss_ends_the_copy_at_once() {
    let mut world = losing(3, 8_000_000);
    lock(&world.shared).logins = vec![unreachable(); 500].into();
    world.run_until(LONG, |world| world.says("reconnecting"));
    let lost = world.elapsed();
    lock(&world.shared).open = false;
    let failed = world.run(LONG);
    assert_eq!(failed.len(), 1);
    let took = world.elapsed() - lost;
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_login_that_is_refused_after_the_loss_ends_the_copy() {
    let mut world = losing(4, 8_000_000);
    lock(&world.shared).logins = vec![denied("permission denied"); 9].into();
    let failed = world.run(LONG);
    assert_eq!(failed.len(), 1);
    assert!(world.says("reconnecting failed: permission denied"));
    assert_eq!(lock(&world.shared).began.len(), 3);
}

#[test]
fn one_refused_login_may_be_a_cut_connection() {
    let mut world = losing(5, 8_000_000);
    lock(&world.shared).logins = vec![denied("the connection broke"); 2].into();
    assert_eq!(world.run(LONG), Vec::<String>::new());
}

#[test]
fn another_host_key_after_the_loss_is_the_reason_that_is_told() {
    let mut world = losing(6, 8_000_000);
    let key = "the host key differs from the first connection's";
    lock(&world.shared).logins = vec![denied(key); 9].into();
    let failed = world.run(LONG);
    assert!(failed.iter().all(|why| why.contains(key)), "{failed:?}");
    let stored = world.at_server("big");
    assert!(stored.is_none(), "no file has its name that is not whole");
}

/// Bug: the session went on over the connection whose login was in progress, but took itself for
/// one without a connection, and gave up when further attempts failed for two minutes.
#[test]
fn the_last_connection_is_lost_while_others_log_in() {
    for seed in 0..4 {
        let options = SessionOptions {
            connections: Some(3),
            ..SessionOptions::default()
        };
        let mut world = World::with(seed, options);
        // The further logins take long, and succeed after the loss. Attempts to connect again fail.
        let slow = (Duration::from_secs(4), None);
        let mut logins = vec![slow.clone(), slow];
        logins.extend(vec![unreachable(); 200]);
        lock(&world.shared).logins = logins.into();
        lock(&world.shared).net.lose_after = vec![5_000_000];
        lock(&world.shared).net.path.bandwidth = 3_000_000;
        world.put("big", content(5, 16_000_000));
        assert_eq!(
            world.run(LONG),
            Vec::<String>::new(),
            "{seed}: {:?}",
            world.lines()
        );
        assert!(
            world.at_server("big") == Some(content(5, 16_000_000)),
            "{seed}"
        );
        assert!(world.says("reconnected"), "{:?}", world.lines());
    }
}

#[test]
fn a_dark_path_is_left_for_a_new_connection() {
    for seed in 0..4 {
        let mut world = World::with(seed, one_connection());
        world.put("big", content(6, 16_000_000));
        world.run_until(Duration::from_millis(500), |_| false);
        lock(&world.shared).net.dark = true;
        world.run_until(Duration::from_secs(20), |_| false);
        assert!(world.says("no data from the server for 12 s; reconnecting"));
        lock(&world.shared).net.dark = false;
        assert_eq!(
            world.run(LONG),
            Vec::<String>::new(),
            "{seed}: {:?}",
            world.lines()
        );
        assert!(
            world.at_server("big") == Some(content(6, 16_000_000)),
            "{seed}"
        );
    }
}

#[test]
fn a_path_that_comes_back_at_once_is_used_without_another_connection() {
    let mut world = World::with(7, one_connection());
    world.get("big", content(6, 12_000_000));
    world.run_until(Duration::from_millis(400), |_| false);
    lock(&world.shared).net.dark = true;
    world.run_until(Duration::from_secs(5), |_| false);
    lock(&world.shared).net.dark = false;
    assert_eq!(world.run(LONG), Vec::<String>::new(), "{:?}", world.lines());
    assert_eq!(lock(&world.shared).net.connections(), 1);
}

#[test]
fn a_run_that_ends_does_not_wait_for_a_connection() {
    let mut world = losing(8, 8_000_000);
    lock(&world.shared).logins = vec![unreachable(); 500].into();
    world.run_until(Duration::from_secs(10), |_| false);
    assert!(!world.core.is_over());
    let leave = crate::session::command::SessionCommand::Leave("interrupted".to_owned());
    let now = world.now();
    world.core.handle_command(now, leave);
    assert!(world.core.is_over());
}
