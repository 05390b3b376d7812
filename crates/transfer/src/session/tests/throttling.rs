//! Rate limits and background copies, over whole sessions.

use std::time::Duration;

use super::world::{World, content, lock};
use crate::session::SessionOptions;

const LONG: Duration = Duration::from_secs(900);

/// Seconds that an upload or download of 4 MB takes.
fn takes(seed: u64, options: SessionOptions, up: bool) -> f64 {
    let mut world = World::with(seed, options);
    let bytes = content(1, 4_000_000);
    match up {
        true => world.put("file", bytes.clone()),
        false => world.get("file", bytes.clone()),
    };
    assert_eq!(world.run(LONG), Vec::<String>::new(), "{:?}", world.lines());
    let stored = if up {
        world.at_server("file")
    } else {
        world.here("file")
    };
    assert!(stored == Some(bytes));
    world.elapsed().as_secs_f64()
}

fn limit(rate: u64, connections: u32) -> SessionOptions {
    SessionOptions {
        limit: Some(rate),
        connections: Some(connections),
        ..SessionOptions::default()
    }
}

#[test]
fn an_upload_keeps_to_the_limit() {
    for connections in [1, 3] {
        let took = takes(1, limit(1_000_000, connections), true);
        assert!((3.7..4.6).contains(&took), "{connections}: {took}");
    }
}

#[test]
fn a_download_keeps_to_the_limit() {
    for connections in [1, 3] {
        let took = takes(2, limit(1_000_000, connections), false);
        assert!((3.6..4.6).contains(&took), "{connections}: {took}");
    }
}

#[test]
fn without_a_limit_the_path_is_the_limit() {
    let took = takes(3, SessionOptions::default(), true);
    assert!((0.2..0.8).contains(&took), "{took}");
}

#[test]
fn a_background_copy_arrives_whole() {
    let options = SessionOptions {
        background: true,
        connections: Some(1),
        ..SessionOptions::default()
    };
    for up in [true, false] {
        let took = takes(4, options.clone(), up);
        assert!(took < 60.0, "{took}");
    }
}

#[test]
fn a_slow_limit_is_not_taken_for_an_outage() {
    let mut world = World::with(5, limit(20_000, 1));
    world.put("file", content(1, 600_000));
    assert_eq!(world.run(LONG), Vec::<String>::new());
    assert_eq!(lock(&world.shared).net.connections(), 1);
    assert!(
        !world.says("no data from the server"),
        "{:?}",
        world.lines()
    );
}
