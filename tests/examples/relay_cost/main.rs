//! Cost of a relay beside other installed relays (haproxy with splice, socat, realm, stunnel),
//! alternating, on loopback. On a busy machine the figures are worthless.
//!
//!     scripts/setup-bench.sh
//!     cargo build --release -p longhaul && cargo build --release -p longhaul-tests --examples
//!     target/release/examples/relay_cost one|many|tls|case5|small|idle|new [rounds]
//!
//! `one` and `many`: 4 GiB on one connection, or on 64 at once. `tls`: 1 GiB to and from a TLS
//! listener. `case5`: 1.2 MB over two relays with TLS between them and small buffers. `small`: 64
//! bytes there and back. `idle`: memory of 10,000 connections, or as many as the descriptor limit
//! permits. `new`: 1000 connections per second, with the relay on one core. Of several rounds the
//! median is reported, and of two the greater one.

mod measures;
mod relays;

use std::collections::BTreeMap;

use measures::{Bulk, Way};
use relays::{Kind, Relay, facing, plain, tls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const GIB: usize = 1 << 30;
const PLAIN: [Kind; 5] = [
    Kind::None,
    Kind::Longhaul,
    Kind::Haproxy,
    Kind::Socat,
    Kind::Realm,
];

fn main() {
    let mut words = std::env::args().skip(1);
    let part = words.next().unwrap_or_default();
    let rounds = words
        .next()
        .map_or(3, |rounds| rounds.parse().expect("a number"));
    match part.as_str() {
        "one" => bulk(&part, 1, 4 * GIB, rounds),
        "many" => bulk(&part, 64, 4 * GIB, rounds),
        "tls" => over_tls(rounds),
        "case5" => case_5(rounds),
        "small" => small(),
        "idle" => idle(),
        "new" => new(),
        _ => panic!("one, many, tls, case5, small, idle or new"),
    }
}

/// Returns the maximum number of connections: this process has both ends of each, and the relay two
/// legs.
fn most_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let raised = Rlimit {
        current: Some(most),
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("as many as we may");
    // Other uses need a few more descriptors.
    (most.saturating_sub(1200) / 2).min(10_000) as usize
}

/// Figures of several rounds by name, in the order of their first occurrence.
#[derive(Default)]
struct Table(Vec<String>, BTreeMap<String, Vec<Vec<f64>>>);

impl Table {
    fn add(&mut self, name: &str, figures: &[f64]) {
        if !self.0.iter().any(|other| other == name) {
            self.0.push(name.to_owned());
        }
        let all = self.1.entry(name.to_owned()).or_default();
        all.push(figures.to_vec());
    }

    fn print(&self, heads: &[&str], digits: &[usize]) {
        print!("{:<28}", heads[0]);
        heads[1..].iter().for_each(|head| print!(" {head:>18}"));
        println!();
        for name in &self.0 {
            print!("{name:<28}");
            let rounds = &self.1[name];
            for (nth, digits) in digits.iter().enumerate() {
                let mut column: Vec<f64> = rounds.iter().map(|round| round[nth]).collect();
                column.sort_by(f64::total_cmp);
                let middle = column[column.len() / 2];
                print!(" {middle:>18.digits$}");
            }
            println!();
        }
        println!();
    }
}

fn bulk(part: &str, connections: usize, bytes: usize, rounds: usize) {
    println!("{part}: {bytes} bytes on {connections} connection(s), median of {rounds} rounds");
    let mut table = Table::default();
    let relays: Vec<Relay> = PLAIN.into_iter().filter_map(plain).collect();
    for _ in 0..rounds {
        for relay in &relays {
            let bulk = Bulk {
                connections,
                bytes,
                way: Way::There,
            };
            let (rate, cpu) = bulk.measure(relay);
            table.add(relay.name, &[rate, cpu]);
        }
    }
    table.print(&["relay", "MB/s", "CPU s/GB"], &[0, 3]);
}

fn over_tls(rounds: usize) {
    println!("tls: {GIB} bytes on one connection, a longhaul in front, median of {rounds} rounds");
    let mut table = Table::default();
    let Some(relays) = tls() else {
        return println!("openssl is not installed");
    };
    for _ in 0..rounds {
        for (way, what) in [(Way::There, "decrypts"), (Way::Back, "encrypts")] {
            for relay in &relays {
                let bulk = Bulk {
                    connections: 1,
                    bytes: GIB,
                    way,
                };
                let (rate, cpu) = bulk.measure(relay);
                table.add(&format!("{} {what}", relay.name), &[rate, cpu]);
            }
        }
    }
    table.print(&["relay", "MB/s", "CPU s/GB"], &[0, 3]);
}

fn case_5(rounds: usize) {
    const BYTES: usize = 1_200_000;
    println!("case5: {BYTES} bytes over two longhauls and TLS, median of {rounds} rounds");
    let mut table = Table::default();
    for buffer in ["1", "2", "7", "64", "512"] {
        let Some(relay) = facing(&["--buffer", buffer]) else {
            return println!("openssl is not installed");
        };
        for _ in 0..rounds {
            let seconds = [Way::There, Way::Back].map(|way| {
                let bulk = Bulk {
                    connections: 1,
                    bytes: BYTES,
                    way,
                };
                let (rate, _) = bulk.measure(&relay);
                BYTES as f64 / 1e6 / rate
            });
            table.add(buffer, &seconds);
        }
    }
    table.print(&["--buffer", "there s", "back s"], &[3, 3]);
}

fn small() {
    println!("small: 64 bytes there and back, 40 times 1000 of each in turn");
    let mut table = Table::default();
    let relays: Vec<Relay> = PLAIN.into_iter().filter_map(plain).collect();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); relays.len()];
    for _ in 0..40 {
        for (relay, times) in relays.iter().zip(&mut times) {
            measures::ping_pong(relay, 1000, times);
        }
    }
    for (relay, times) in relays.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[(times.len() as f64 * part) as usize];
        table.add(relay.name, &[at(0.5), at(0.99), at(0.999)]);
    }
    table.print(&["relay", "median us", "p99 us", "p99.9 us"], &[1, 1, 1]);
}

fn idle() {
    let most = most_connections();
    println!(
        "idle: memory of the process for each of {most} connections that have moved 50,000 bytes"
    );
    let mut table = Table::default();
    for kind in [Kind::Longhaul, Kind::Haproxy] {
        if let Some(relay) = plain(kind) {
            let bytes = measures::idle(&relay, most);
            table.add(relay.name, &[bytes]);
        }
    }
    if let Some(relays) = tls() {
        for relay in &relays {
            // Stunnel has a thread for each connection.
            let connections = if relay.name == "stunnel" { 400 } else { 4000 };
            let bytes = measures::idle(relay, connections);
            table.add(&format!("{} tls, {connections}", relay.name), &[bytes]);
        }
    }
    table.print(&["relay", "bytes for each"], &[0]);
}

fn new() {
    const SECONDS: usize = 8;
    println!(
        "new: 1000 connections a second for {SECONDS} s, 64 bytes there and back on each, on one core"
    );
    let mut table = Table::default();
    for kind in [
        Kind::None,
        Kind::LonghaulOneCore,
        Kind::HaproxyOneCore,
        Kind::RealmOneCore,
    ] {
        if let Some(relay) = plain(kind) {
            let figures = measures::new_connections(&relay, 1000, SECONDS);
            table.add(relay.name, &figures);
        }
    }
    table.print(
        &["relay", "connections", "errors", "p99 ms", "CPU s"],
        &[0, 0, 2, 2],
    );
}
