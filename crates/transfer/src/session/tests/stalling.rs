//! Servers that drop requests or do not answer.

use std::time::Duration;

use testkit::sftp_model::SftpServerProfile;

use super::world::{World, content, lock};
use crate::session::{SessionEvent, SessionOptions};

const LONG: Duration = Duration::from_secs(900);

/// Downloads 5 MB from a server that drops READs on its first `silent` channels.
fn download(seed: u64, silent: usize, server: SftpServerProfile) -> (World, Vec<String>) {
    let options = SessionOptions {
        connections: Some(1),
        ..SessionOptions::default()
    };
    let mut world = World::with(seed, options);
    lock(&world.shared).net.server = server;
    lock(&world.shared).net.silent = (silent, 4);
    world.get("big", content(2, 5_000_000));
    let failed = world.run(LONG);
    (world, failed)
}

fn repeated(world: &World) -> usize {
    let again = |line: &&String| line.contains("repeating it on a new channel");
    world.lines().iter().filter(again).count()
}

#[test]
fn requests_that_a_server_drops_are_repeated_on_another_channel() {
    for seed in 0..5 {
        let (world, failed) = download(seed, 1, SftpServerProfile::other());
        assert_eq!(failed, Vec::<String>::new(), "{seed}: {:?}", world.lines());
        assert_eq!(repeated(&world), 1, "{:?}", world.lines());
        assert!(world.here("big") == Some(content(2, 5_000_000)), "{seed}");
    }
}

/// Bug: sshd with MaxSessions 1 refuses a channel until the program of the closed one has ended.
/// Four refusals came within a few milliseconds, and the session was given up.
#[test]
fn a_channel_that_is_refused_while_the_closed_one_lingers_is_opened_again() {
    for (seed, lingers) in [0, 1, 30, 700, 3000].into_iter().enumerate() {
        let mut world = World::with(
            seed as u64,
            SessionOptions {
                connections: Some(1),
                channels: Some(1),
                ..SessionOptions::default()
            },
        );
        lock(&world.shared).net.server = SftpServerProfile::other();
        lock(&world.shared).net.silent = (1, 4);
        lock(&world.shared).net.lingers = Some(Duration::from_millis(lingers));
        world.get("big", content(2, 5_000_000));
        let failed = world.run(LONG);
        assert_eq!(
            failed,
            Vec::<String>::new(),
            "{lingers} ms: {:?}",
            world.lines()
        );
        assert_eq!(repeated(&world), 1, "{:?}", world.lines());
        assert!(
            world.here("big") == Some(content(2, 5_000_000)),
            "{lingers}"
        );
    }
}

/// A server that never makes room again.
#[test]
fn a_channel_that_is_refused_for_good_ends_the_copy() {
    let mut world = World::with(
        1,
        SessionOptions {
            connections: Some(1),
            channels: Some(1),
            ..SessionOptions::default()
        },
    );
    lock(&world.shared).net.server = SftpServerProfile::other();
    lock(&world.shared).net.silent = (1, 4);
    lock(&world.shared).net.lingers = Some(LONG);
    world.get("big", content(2, 5_000_000));
    let failed = world.run(LONG);
    assert!(
        failed.len() == 1 && failed[0].contains("open failed"),
        "{failed:?}"
    );
}

#[test]
fn the_second_repetition_has_fewer_requests_in_flight() {
    let (world, failed) = download(1, 2, SftpServerProfile::other());
    assert_eq!(failed, Vec::<String>::new(), "{:?}", world.lines());
    let most = |line: &String| {
        let at = line.split("at most ").nth(1)?;
        at.split(' ').next()?.parse::<u64>().ok()
    };
    let most: Vec<u64> = world.lines().iter().filter_map(most).collect();
    assert!(most.len() == 2 && most[1] < most[0], "{most:?}");
}

#[test]
fn a_server_that_never_answers_ends_the_copy_with_that_reason() {
    let (world, failed) = download(2, 1000, SftpServerProfile::other());
    assert!(
        failed
            .iter()
            // Bug: "the server closed the SFTP channel" was said of channels that longhaul closed.
            .all(|why| why
                .contains("longhaul closed the SFTP channel: the server stopped answering"))
            && failed.len() == 1,
        "{failed:?}"
    );
    assert!((2..=5).contains(&repeated(&world)), "{:?}", world.lines());
}

#[test]
fn requests_to_a_server_that_answers_in_order_are_not_repeated() {
    let mut world = World::new(3);
    lock(&world.shared).net.silent = (1000, 4);
    world.get("big", content(2, 3_000_000));
    world.run_until(Duration::from_secs(11), |_| false);
    assert_eq!(repeated(&world), 0);
    let told = "big: nothing received for ";
    assert!(world.says(told), "{:?}", world.lines());
}

#[test]
fn a_session_without_work_never_stalls() {
    let mut world = World::new(4);
    world.put("small", content(1, 10));
    world.run(LONG);
    world.run_until(Duration::from_secs(300), |_| false);
    assert!(
        !world
            .events
            .iter()
            .any(|e| matches!(e, SessionEvent::Stalled(_)))
    );
}

/// Bug: a server that answered neither the request for a channel nor that for SFTP was waited for
/// without a word and without end.
#[test]
fn a_channel_that_never_opens_is_told_of_and_ends_the_copy() {
    let mut world = World::new(5);
    lock(&world.shared).net.mute = true;
    world.get("big", content(2, 3_000_000));
    let failed = world.run(LONG);
    let told =
        "nothing received for 10 s: waiting for the answer to the request to start the SFTP server";
    assert!(world.says(told), "{:?}", world.lines());
    let why = "the server has not answered the request to start the SFTP server for 10 min";
    assert!(
        failed.iter().all(|f| f.contains(why)) && failed.len() == 1,
        "{failed:?}"
    );
}

/// Bug: OPEN that is never answered by a server that answers in order.
#[test]
fn a_request_that_is_never_answered_ends_the_copy() {
    let mut world = World::new(6);
    lock(&world.shared).net.silent = (1000, 0);
    world.get("big", content(2, 3_000_000));
    let failed = world.run(LONG);
    let why = "the server has not answered READ of big for 10 min";
    assert!(
        failed.iter().all(|f| f.contains(why)) && failed.len() == 1,
        "{failed:?}"
    );
}

/// Bug: `cp --verify` waited without a word for the answer to its request to run a checksum program.
#[test]
fn a_command_that_is_never_answered_is_told_of_once_nothing_else_is_done() {
    let mut world = World::new(7);
    lock(&world.shared).net.commands_hang = true;
    lock(&world.shared).net.path.bandwidth = 100_000;
    world.get("big", content(2, 2_000_000));
    world.exec("the request to run a checksum program");
    assert_eq!(world.run(LONG), Vec::<String>::new());
    let told = "nothing received for 10 s: waiting for the answer to the request to run a checksum \
                program";
    assert!(!world.says("nothing received"), "the copy took 20 s");
    world.run_until(Duration::from_secs(25), |_| false);
    assert!(world.says(told), "{:?}", world.lines());
    let lines = world.lines().len();
    assert_eq!(lines, 2, "after 10 and 20 s: {:?}", world.lines());
}
