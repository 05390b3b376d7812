//! Background copies beside other flows, and alone, in virtual time.

mod path;

use std::time::Duration;

use path::{Path, World};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Rate in bytes per second, round trip and queue in milliseconds: a home's uplink, an office, an
/// ocean, a data centre, a modem.
const PATHS: [(f64, u64, u64); 5] = [
    (1.25e6, 20, 200),
    (12.5e6, 10, 100),
    (125e6, 114, 114),
    (125e6, 1, 50),
    (0.25e6, 60, 300),
];

fn worlds() -> impl Iterator<Item = World> {
    PATHS.into_iter().map(|(rate, rtt, queue)| {
        World::new(Path {
            rate,
            rtt: ms(rtt),
            queue: ms(queue),
            loss: 0.0,
        })
    })
}

/// Returns the share of the path that the other flow gets without a background copy, over `time`
/// from `after` its start.
fn alone(path: Path, after: Duration, time: Duration) -> f64 {
    let mut world = World::new(path);
    world.source = 0.0;
    world.set_foreground(true);
    world.pass(after);
    let (_, share) = world.pass(time);
    assert!(share > 0.5, "{share:.3} alone on {path:?}");
    share
}

#[test]
fn an_idle_path_is_filled_and_its_queue_kept_short() {
    for mut world in worlds() {
        world.pass(seconds(8));
        let (share, _) = world.pass(seconds(16));
        assert!(share > 0.9, "{share:.3} of {:?}", world.path);
        let peak = world.peak();
        // The mean is held to the target, and the oscillation around it is smaller than the target.
        assert!(peak < ms(50), "{peak:?} on {:?}", world.path);
    }
}

#[test]
fn another_flow_gets_the_path_within_seconds_and_gives_it_back() {
    for mut world in worlds() {
        world.pass(seconds(5));
        world.set_foreground(true);
        world.pass(seconds(3));
        let (share, other) = world.pass(seconds(12));
        let alone = alone(world.path, seconds(3), seconds(12));
        assert!(
            other > 0.85 * alone,
            "{other:.3} for the other, {alone:.3} alone, on {:?}",
            world.path
        );
        assert!(share > 0.0, "it stands still on {:?}", world.path);
        world.set_foreground(false);
        world.pass(seconds(6));
        let (share, _) = world.pass(seconds(5));
        assert!(share > 0.9, "{share:.3} taken back on {:?}", world.path);
    }
}

#[test]
fn who_comes_last_yields_too() {
    for mut world in worlds() {
        // Of the empty path, only the measurement from connecting is known.
        world.set_foreground(true);
        world.pass(seconds(5));
        let (_, other) = world.pass(seconds(10));
        let alone = alone(world.path, seconds(5), seconds(10));
        assert!(
            other > 0.85 * alone,
            "{other:.3} for the other, {alone:.3} alone, on {:?}",
            world.path
        );
    }
}

#[test]
fn it_never_stands_still_however_much_is_lost() {
    let mut world = World::new(Path {
        rate: 12.5e6,
        rtt: ms(100),
        queue: ms(100),
        loss: 0.3,
    });
    world.pass(seconds(20));
    let (share, _) = world.pass(seconds(20));
    let rate = share * world.path.rate;
    assert!((12e3..200e3).contains(&rate), "{rate}");
}

#[test]
fn a_longer_route_is_believed_after_ten_minutes_and_a_shorter_one_at_once() {
    let path = Path {
        rate: 12.5e6,
        rtt: ms(20),
        queue: ms(100),
        loss: 0.0,
    };
    let mut world = World::new(path);
    world.pass(seconds(10));
    world.path.rtt = ms(90);
    let (share, _) = world.pass(seconds(30));
    assert!(share < 0.1, "{share:.3}: it took the route for a queue");
    world.pass(seconds(600));
    let (share, _) = world.pass(seconds(20));
    assert!(share > 0.9, "{share:.3} on the longer route");
    world.path.rtt = ms(20);
    world.pass(seconds(5));
    let (share, _) = world.pass(seconds(10));
    assert!(share > 0.85, "{share:.3} on the shorter route");
}

#[test]
fn its_own_queue_is_not_taken_for_the_path_in_an_hour() {
    let mut world = World::new(Path {
        rate: 12.5e6,
        rtt: ms(20),
        queue: ms(300),
        loss: 0.0,
    });
    while world.age() < seconds(3600) {
        let (share, _) = world.pass(seconds(300));
        assert!(share > 0.9, "{share:.3} after {:?}", world.age());
        let peak = world.peak();
        assert!(peak < ms(60), "{peak:?} after {:?}", world.age());
    }
}

#[test]
fn what_the_disk_held_back_does_not_come_as_one_burst() {
    let mut world = World::new(Path {
        rate: 125e6,
        rtt: ms(40),
        queue: ms(100),
        loss: 0.0,
    });
    world.source = 2e6;
    world.pass(seconds(30));
    world.source = f64::INFINITY;
    world.pass(ms(80));
    assert!(world.peak() < ms(5), "{:?}", world.peak());
}
