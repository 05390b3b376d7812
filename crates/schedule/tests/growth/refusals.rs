use schedule::{ConcurrencyConfig, TransferDirection};

use crate::path::{Path, Run, transatlantic};

fn config() -> ConcurrencyConfig {
    let mut config = ConcurrencyConfig::new(TransferDirection::Up);
    config.buffer = Some(4 << 20);
    config
}

#[test]
fn one_login_at_a_time_where_no_more_are_allowed() {
    let path = Path {
        max_startups: 1,
        ..transatlantic(TransferDirection::Up)
    };
    let out = Run::new(path, config(), 3e9, 5).run();
    println!(
        "MaxStartups 1: {:.1} MB/s, {} connections",
        out.steady / 1e6,
        out.connections
    );
    // The first batch is refused except for one; later connections come one by one.
    assert!(out.connections >= 2);
    assert!(out.steady > 40e6);
}

#[test]
fn one_session_on_each_connection() {
    let path = Path {
        max_sessions: 1,
        ..transatlantic(TransferDirection::Up)
    };
    let out = Run::new(path, config(), 3e9, 5).run();
    println!(
        "MaxSessions 1: {:.1} MB/s, {} connections",
        out.steady / 1e6,
        out.connections
    );
    assert_eq!(out.channels, 1);
    assert!(out.steady > 0.95 * 117e6 && out.connections >= 6);
}

#[test]
fn logins_that_cost_the_user_something_stay_at_one() {
    let path = Path {
        sndbuf: 64e6,
        rcvbuf: 64e6,
        ..transatlantic(TransferDirection::Up)
    };
    let mut config = config();
    config.interactive = true;
    config.buffer = Some(80 << 20);
    let out = Run::new(path, config, 3e9, 5).run();
    println!(
        "interactive: {:.1} MB/s, {} channels",
        out.steady / 1e6,
        out.channels
    );
    assert_eq!(out.connections, 1);
    assert!(out.channels >= 7 && out.steady > 0.95 * 117e6);
}

#[test]
fn what_the_user_fixed_stays() {
    let mut config = config();
    config.connections = Some(3);
    config.channels = Some(2);
    let out = Run::new(transatlantic(TransferDirection::Up), config, 2e9, 5).run();
    assert_eq!((out.connections, out.channels), (3, 2));
}
