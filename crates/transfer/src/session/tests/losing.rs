//! Lanes and connections that are lost: their jobs move, and no file is wrong.

use std::time::Duration;

use schedule::LaneEvent;
use testkit::sftp_model::Rng;

use super::world::{World, content, lock};
use crate::session::{SessionEvent, SessionOptions};

const LONG: Duration = Duration::from_secs(600);

/// Options for this many connections.
fn connections(count: u32) -> SessionOptions {
    SessionOptions {
        connections: Some(count),
        ..SessionOptions::default()
    }
}

/// Uploads files of these sizes, and checks what the server has after `fault` was applied to the
/// world before the first turn.
fn upload(world: &mut World, sizes: &[usize]) -> Vec<String> {
    for (at, len) in sizes.iter().enumerate() {
        world.put(&format!("file{at}"), content(at as u64, *len));
    }
    world.run(LONG)
}

fn check(world: &World, sizes: &[usize], seed: u64) {
    for (at, len) in sizes.iter().enumerate() {
        let stored = world.at_server(&format!("file{at}"));
        assert!(
            stored == Some(content(at as u64, *len)),
            "seed {seed}: file{at} of {len} bytes is wrong: {:?}",
            world.lines()
        );
    }
}

#[test]
fn files_arrive_over_one_connection() {
    let mut world = World::new(1);
    let sizes = [0, 1, 5000, 300_000, 3_000_000];
    assert_eq!(upload(&mut world, &sizes), Vec::<String>::new());
    check(&world, &sizes, 1);
    assert!(
        world
            .events
            .iter()
            .any(|e| matches!(e, SessionEvent::ServerKnown))
    );
}

#[test]
fn jobs_of_a_lost_connection_move_to_the_others() {
    for seed in 0..15 {
        let mut world = World::with(seed, connections(3));
        let mut rng = Rng::new(seed);
        // One of the further connections is lost.
        let after = 100_000 + rng.below(4_000_000);
        lock(&world.shared).net.lose_after = vec![u64::MAX, after];
        let sizes: Vec<_> = (0..6).map(|_| rng.below(3_000_000) as usize).collect();
        assert_eq!(upload(&mut world, &sizes), Vec::<String>::new(), "{seed}");
        check(&world, &sizes, seed);
        assert!(!world.says("reconnecting"), "{seed}: others are left");
    }
}

/// Requests of a lost connection that are still on their way would overwrite a file after its
/// rename.
#[test]
fn a_file_has_its_name_only_when_no_lost_lane_can_write_it_any_more() {
    for seed in 0..8 {
        let mut world = World::with(seed, connections(2));
        let mut rng = Rng::new(seed ^ 0xfe);
        // Data stay on the path for seconds.
        lock(&world.shared).net.path.bandwidth = 2_000_000;
        lock(&world.shared).net.lose_after = vec![u64::MAX, 500_000 + rng.below(2_000_000)];
        let sizes = [6_000_000];
        assert_eq!(upload(&mut world, &sizes), Vec::<String>::new(), "{seed}");
        check(&world, &sizes, seed);
        // Whatever is left on lost paths arrives now.
        world.run_until(Duration::from_secs(60), |_| false);
        check(&world, &sizes, seed);
    }
}

#[test]
fn downloads_of_a_lost_connection_are_whole() {
    for seed in 0..8 {
        let mut world = World::with(seed, connections(3));
        let mut rng = Rng::new(seed ^ 0xd0);
        lock(&world.shared).net.lose_after = vec![u64::MAX, 2_000 + rng.below(20_000)];
        let sizes: Vec<_> = (0..5).map(|_| 1 + rng.below(4_000_000) as usize).collect();
        for (at, len) in sizes.iter().enumerate() {
            world.get(&format!("get{at}"), content(at as u64, *len));
        }
        assert_eq!(world.run(LONG), Vec::<String>::new(), "{seed}");
        for (at, len) in sizes.iter().enumerate() {
            let here = world.here(&format!("get{at}"));
            assert!(
                here == Some(content(at as u64, *len)),
                "seed {seed}: get{at}"
            );
        }
    }
}

#[test]
fn a_server_with_one_channel_carries_the_copy_on_it() {
    for seed in 0..5 {
        let mut world = World::new(seed);
        lock(&world.shared).net.channels = 1;
        let sizes = [400_000, 3, 2_000_000];
        assert_eq!(upload(&mut world, &sizes), Vec::<String>::new(), "{seed}");
        check(&world, &sizes, seed);
    }
}

#[test]
fn every_job_of_a_session_that_is_given_up_fails_once_with_the_reason() {
    let mut world = World::new(3);
    lock(&world.shared).open = false;
    lock(&world.shared).net.lose_after = vec![1_000_000];
    let sizes = [5_000_000, 4_000_000, 10];
    let failed = upload(&mut world, &sizes);
    assert!(world.core.is_over());
    let lost =
        |e: &SessionEvent| matches!(e, SessionEvent::Lost(why) if why.contains("path is gone"));
    assert!(
        world.events.last().is_some_and(lost),
        "it is the last event"
    );
    let ended = |e: &&SessionEvent| matches!(e, SessionEvent::Lane(e) if e.is_last());
    assert_eq!(world.events.iter().filter(ended).count(), sizes.len());
    assert!(
        failed.iter().all(|why| why.contains("path is gone")),
        "{failed:?}"
    );
}

#[test]
fn a_job_that_is_cancelled_leaves_nothing_under_its_name() {
    let mut world = World::new(4);
    world.put("big", content(9, 20_000_000));
    world.run_until(Duration::from_millis(300), |_| false);
    let now = world.now();
    let cancel = crate::session::command::SessionCommand::Cancel("interrupted".to_owned());
    world.core.handle_command(now, cancel);
    let failed = world.run(LONG);
    assert!(
        failed.iter().any(|why| why.contains("interrupted")),
        "{failed:?}"
    );
    assert_eq!(world.at_server("big"), None);
    let names = lock(&world.shared).net.fs.names();
    assert!(names.iter().all(|name| !name.contains("big")), "{names:?}");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = || {
        let mut world = World::with(11, connections(3));
        lock(&world.shared).net.lose_after = vec![u64::MAX, 700_000];
        upload(&mut world, &[2_000_000, 50_000, 3_000_000]);
        let kept = |e: &&SessionEvent| !matches!(e, SessionEvent::Lane(LaneEvent::Progress(..)));
        let events = world.events.iter().filter(kept);
        let events: Vec<_> = events.map(|e| format!("{e:?}")).collect();
        (world.elapsed().as_millis(), events)
    };
    let (first, second) = (run(), run());
    assert_eq!(first.0, second.0);
    assert_eq!(first.1.len(), second.1.len());
}
