//! Evidence that does and does not justify more connections.

use schedule::{ConcurrencyChange, ConcurrencyConfig, Limiter, TransferDirection};

use crate::path::{Path, Run, transatlantic};

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1 << 20) as f64;

fn config(direction: TransferDirection) -> ConcurrencyConfig {
    let mut config = ConcurrencyConfig::new(direction);
    config.buffer = Some(4 << 20);
    config
}

fn lossy(direction: TransferDirection) -> Path {
    Path {
        rtt: 0.1,
        loss: 0.01,
        ..transatlantic(direction)
    }
}

#[test]
fn others_that_keep_the_machine_busy_do_not_keep_a_path_empty() {
    let path = Path {
        rtt: 0.6,
        rate: 37.5e6,
        idle: 0.0,
        ..transatlantic(TransferDirection::Down)
    };
    // Nothing is planned, so that all is found by trials.
    let mut config = config(TransferDirection::Down);
    config.buffer = None;
    let out = Run::new(path, config, 2.0 * GIB, 5).run();
    println!(
        "busy: {:.1} MB/s, {} connections",
        out.steady / 1e6,
        out.connections
    );
    assert!(out.connections > 4 && out.steady > 0.8 * 37.5e6);
    assert_ne!(out.limiter, Limiter::LocalCpu);
    // If the far end may be this machine, both ends share its processors.
    let near = Path {
        rtt: 0.000_05,
        rate: 5e9,
        idle: 0.0,
        cpu: 800e6,
        cpu_each: 800e6,
        ..transatlantic(TransferDirection::Down)
    };
    let out = Run::new(near, config, 4.0 * GIB, 5).run();
    assert_eq!((out.connections, out.limiter), (1, Limiter::LocalCpu));
}

#[test]
fn on_a_satellite_logins_and_slow_starts_overlap() {
    let path = Path {
        rtt: 0.6,
        rate: 37.5e6,
        queue: 6e6,
        ..transatlantic(TransferDirection::Up)
    };
    let mut opened = Vec::new();
    let out = Run::new(path, config(TransferDirection::Up), GIB, 5).observed(&mut opened);
    let logins = opened
        .iter()
        .filter(|(_, c)| *c == ConcurrencyChange::AddConnection);
    let first: Vec<f64> = logins.map(|(at, _)| *at).collect();
    // Six logins at once, and the next as soon as those are done, instead of one trial after the
    // other.
    assert!(first.len() >= 12, "{first:?}");
    assert!(first[5] < 4.5 && first[11] < 9.0, "{first:?}");
    assert!(out.mean > 25e6, "{}", out.mean);
    assert_eq!(out.refused, 0);
}

#[test]
fn losses_are_met_within_seconds_and_no_server_is_pressed() {
    for direction in [TransferDirection::Up, TransferDirection::Down] {
        let mut changes = Vec::new();
        let run = Run::new(lossy(direction), config(direction), 32.0 * MIB, 7);
        let out = run.observed(&mut changes);
        let logins = changes
            .iter()
            .filter(|(_, c)| *c == ConcurrencyChange::AddConnection);
        let last = logins.map(|(at, _)| *at).fold(0.0, f64::max);
        println!(
            "{direction:?}: {} connections after {last:.1} s",
            out.connections
        );
        assert!(out.connections > 16 && last < 5.0, "{last}");
        // A copy that begins with one connection has more in the end, and takes longer.
        let mut alone = config(direction);
        alone.login_cost.refused_login = true;
        let alone = Run::new(lossy(direction), alone, 32.0 * MIB, 7).run();
        assert!(out.took < 1.05 * alone.took, "{} {}", out.took, alone.took);
        assert_eq!((out.refused, out.limiter), (0, Limiter::Loss));
        let back = changes
            .iter()
            .any(|(_, c)| matches!(c, ConcurrencyChange::RetireConnection(_)));
        assert!(!back, "{changes:?}");
    }
}

/// Bug: at the first lost packet eight connections were added to the three of a copy of 16 MiB that would
/// have ended half a second later: its last parts were sent again in their slow starts.
#[test]
fn a_copy_in_slow_start_got_more_connections_for_its_first_lost_packet() {
    let grown = (0..20).filter(|seed| {
        let path = Path {
            loss: 0.001,
            bears_losses: true,
            ..transatlantic(TransferDirection::Up)
        };
        let out = Run::new(path, config(TransferDirection::Up), 16.0 * MIB, *seed).run();
        println!("{seed}: {} connections, {:.2} s", out.connections, out.took);
        out.connections > 4
    });
    let grown = grown.count();
    assert!(grown <= 2, "{grown} of 20");
}

#[test]
fn what_a_policer_drops_is_no_random_loss() {
    let path = Path {
        policed: Some(12e6),
        ..lossy(TransferDirection::Up)
    };
    let path = Path { loss: 0.0, ..path };
    let mut config = config(TransferDirection::Up);
    config.buffer = None;
    let out = Run::new(path, config, GIB, 5).run();
    println!(
        "policed: {:.1} MB/s, {} connections",
        out.steady / 1e6,
        out.connections
    );
    assert!(out.connections <= 16, "{}", out.connections);
    assert!(out.steady > 9e6);
}

#[test]
fn what_bears_losses_needs_no_crowd() {
    let path = Path {
        bears_losses: true,
        ..lossy(TransferDirection::Up)
    };
    let out = Run::new(path, config(TransferDirection::Up), 2.0 * GIB, 5).run();
    println!(
        "BBR: {:.1} MB/s, {} connections",
        out.steady / 1e6,
        out.connections
    );
    assert_ne!(out.limiter, Limiter::Loss);
    assert!(out.connections <= 12 && out.steady > 0.9 * 117e6);
}

#[test]
fn a_forwarded_port_does_not_hide_how_long_the_path_is() {
    let path = Path {
        hop: Some(0.000_1),
        ..transatlantic(TransferDirection::Up)
    };
    let out = Run::new(path, config(TransferDirection::Up), GIB, 5).run();
    println!(
        "hop: {:.1} MB/s mean, {} connections",
        out.mean / 1e6,
        out.connections
    );
    assert!(out.connections >= 5 && out.mean > 85e6);
}

#[test]
fn a_batch_that_is_refused_is_one_refusal() {
    let path = Path {
        max_startups: 1,
        ..transatlantic(TransferDirection::Up)
    };
    let out = Run::new(path, config(TransferDirection::Up), 4.0 * GIB, 5).run();
    println!(
        "MaxStartups 1: {:.1} MB/s, {} connections",
        out.steady / 1e6,
        out.connections
    );
    assert!(out.connections >= 4, "{}", out.connections);
}
