//! Tests of shapers, policers, the black hole, the traffic of others and the middlebox.

use std::time::Duration;

use crate::build::{ACK, Packet, RST, SYN};
use crate::{FarToNear, Lab, MS, NearToFar, SECOND};

/// Offers `rate` packets of 1,500 IP bytes a second from each of these ports, for a time.
fn load(lab: &mut Lab, ports: &[u16], rate: u32, time: Duration) {
    let step = SECOND / rate;
    let mut now = Duration::ZERO;
    while now < time {
        for port in ports {
            let packet = Packet {
                from: (1, *port),
                ..Packet::data(0, 1448)
            };
            lab.offer(NearToFar, now, &packet);
        }
        now += step;
    }
}

/// IP bytes that arrived from a port between two times.
fn arrived(lab: &Lab, port: u16, from: Duration, to: Duration) -> f64 {
    let inside = |at: Duration| at >= from && at < to;
    let own = lab
        .arrived
        .iter()
        .filter(|(at, _, p)| p.from.1 == port && inside(*at));
    own.map(|(_, _, p)| (p.payload + 52) as f64).sum()
}

fn near(seen: f64, expected: f64) {
    assert!((seen / expected - 1.0).abs() < 0.02, "{seen} {expected}");
}

#[test]
fn a_shaper_passes_its_burst_and_then_its_rate() {
    // 24 Mbit/s come, 12 Mbit/s pass after 1.5 MB of tokens, which last for a second.
    let mut lab = Lab::new(&[("rate", "100Mbit"), ("shape", "all=12Mbit/1500kB")]);
    load(&mut lab, &[1], 2000, 4 * SECOND);
    lab.finish();
    near(arrived(&lab, 1, Duration::ZERO, SECOND), 3e6);
    near(arrived(&lab, 1, 2 * SECOND, 4 * SECOND), 3e6);
    let figures = lab.emulator.figures().of(NearToFar);
    assert!(!figures.drops.shape.is_empty(), "its queue is bounded");
    assert_eq!(figures.drops.total(), figures.drops.shape);
}

#[test]
fn a_limit_for_each_flow_leaves_the_flows_alone() {
    for option in ["police", "shape"] {
        let mut lab = Lab::new(&[("rate", "100Mbit"), (option, "flow=6Mbit/10kB")]);
        load(&mut lab, &[1, 2, 3], 1000, 4 * SECOND);
        lab.finish();
        for port in [1, 2, 3] {
            near(arrived(&lab, port, SECOND, 3 * SECOND), 1.5e6);
        }
    }
}

#[test]
fn a_policer_of_all_packets_shares_its_rate() {
    let mut lab = Lab::new(&[("rate", "100Mbit"), ("police", "all=6Mbit/10kB")]);
    load(&mut lab, &[1, 2], 1000, 4 * SECOND);
    lab.finish();
    let both = [1, 2].map(|port| arrived(&lab, port, SECOND, 3 * SECOND));
    near(both[0] + both[1], 1.5e6);
}

#[test]
fn traffic_of_others_leaves_the_rest_of_the_link() {
    let mut lab = Lab::new(&[("rate", "12Mbit"), ("cross", "9Mbit/0")]);
    load(&mut lab, &[1], 1000, 4 * SECOND);
    lab.finish();
    near(arrived(&lab, 1, SECOND, 3 * SECOND), 2.0 * 3e6 / 8.0);
}

#[test]
fn a_black_hole_swallows_long_packets_only() {
    let mut lab = Lab::new(&[("black-hole", "1400")]);
    lab.offer(NearToFar, MS, &Packet::data(0, 1348));
    lab.offer(NearToFar, MS, &Packet::data(5000, 1349));
    // The last segment of a super-packet is short.
    lab.offer(NearToFar, MS, &Packet::bundle(10_000, 3000));
    lab.finish();
    assert_eq!(lab.segments(), [0, 12_896]);
    assert_eq!(
        lab.emulator
            .figures()
            .of(NearToFar)
            .drops
            .black_hole
            .packets,
        3
    );
}

fn handshake(lab: &mut Lab) {
    let back = |seq, ack, flags, payload| Packet {
        from: (2, 22),
        to: (1, 40_000),
        ack,
        flags,
        ..Packet::data(seq, payload)
    };
    let there = |seq, ack, flags, payload| Packet {
        ack,
        flags,
        ..Packet::data(seq, payload)
    };
    lab.offer(NearToFar, Duration::ZERO, &there(1000, 0, SYN, 0));
    lab.offer(FarToNear, 10 * MS, &back(5000, 1001, SYN | ACK, 0));
    for packet in 0..10 {
        let at = (20 + packet) * MS;
        lab.offer(NearToFar, at, &there(1001 + packet * 1000, 5001, ACK, 1000));
    }
    lab.finish();
}

#[test]
fn a_middlebox_resets_both_ends_after_an_amount_of_data() {
    let mut lab = Lab::new(&[("middlebox", "reset=5kB")]);
    handshake(&mut lab);
    let resets = lab.arrived.iter().filter(|(_, _, p)| p.flags & RST != 0);
    let first: Vec<_> = resets.map(|(_, way, p)| (*way, p.seq)).take(2).collect();
    // 104 bytes of the handshake and four packets of 1,052 pass.
    assert_eq!(first, [(NearToFar, 5001), (FarToNear, 5001)]);
    let data = lab.arrived.iter().filter(|(_, _, p)| p.payload > 0);
    assert_eq!(data.count(), 4);
}

#[test]
fn a_middlebox_stalls_a_connection_at_its_age_in_silence() {
    let mut lab = Lab::new(&[("middlebox", "stall=25ms")]);
    handshake(&mut lab);
    assert!(lab.arrived.iter().all(|(_, _, p)| p.flags & RST == 0));
    let data = lab.arrived.iter().filter(|(_, _, p)| p.payload > 0);
    assert_eq!(data.count(), 5);
    assert_eq!(lab.emulator.figures().of(NearToFar).drops.stall.packets, 5);
}
