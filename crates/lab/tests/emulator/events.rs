//! Tests of blackouts, resets and blocked ports.

use std::time::Duration;

use crate::build::{ACK, FAR, FIN, NEAR, Packet, RST, SYN};
use crate::{FarToNear, Lab, MS, NearToFar};

#[test]
fn a_blackout_drops_what_is_offered_and_what_waits() {
    let mut lab = Lab::new(&[
        ("rate", "12Mbit"),
        ("rtt", "40ms"),
        ("at", "100ms blackout=50ms"),
    ]);
    // A packet takes a millisecond: 90 leave before the cut, and the next ones would leave within
    // it.
    for packet in 0..100 {
        lab.offer(NearToFar, 10 * MS, &Packet::data(packet * 1448, 1448));
    }
    for at in [100, 149, 150] {
        lab.offer(NearToFar, at * MS, &Packet::data(at << 20, 100));
    }
    lab.finish();
    let figures = lab.emulator.figures().of(NearToFar);
    assert_eq!(figures.drops.blackout.packets, 11 + 2);
    assert_eq!(figures.drops.total(), figures.drops.blackout);
    let arrived = lab.segments();
    assert_eq!(arrived.len(), 90);
    assert_eq!(arrived[89], 150 << 20);
    let (at, _, _) = lab.arrived[88];
    assert_eq!(at, 99 * MS + 20 * MS, "what has left the queue arrives");
}

#[test]
fn blocked_ports_are_dropped_both_ways() {
    let mut lab = Lab::new(&[("block", "80,8000-8010"), ("block", "443")]);
    for (port, passes) in [
        (80, false),
        (81, true),
        (7999, true),
        (8000, false),
        (8010, false),
        (8011, true),
        (443, false),
    ] {
        for direction in [NearToFar, FarToNear] {
            lab.arrived.clear();
            let to = |to| Packet {
                to,
                ..Packet::data(0, 10)
            };
            let now = lab.emulator.figures().covered;
            lab.offer(direction, now, &to((2, port)));
            lab.run_until(now + MS);
            assert_eq!(lab.arrived.len(), usize::from(passes), "{port}");
        }
    }
    let figures = lab.emulator.figures().of(FarToNear);
    assert_eq!(figures.drops.blocked.packets, 4);
}

fn there(seq: u32, ack: u32, flags: u8, payload: usize) -> Packet {
    Packet {
        ack,
        flags,
        ..Packet::data(seq, payload)
    }
}

fn back(seq: u32, ack: u32, flags: u8, payload: usize) -> Packet {
    Packet {
        from: FAR,
        to: NEAR,
        ..there(seq, ack, flags, payload)
    }
}

/// The resets that arrived: time in milliseconds, near to far, sequence number and acknowledgment.
fn resets(lab: &Lab) -> Vec<(u32, bool, u32, u32)> {
    let resets = lab.arrived.iter().filter(|(_, _, p)| p.flags & RST != 0);
    resets
        .map(|(at, way, p)| (at.as_millis() as u32, *way == NearToFar, p.seq, p.ack))
        .collect()
}

fn connect(lab: &mut Lab) {
    lab.offer(NearToFar, Duration::ZERO, &there(1000, 0, SYN, 0));
    lab.offer(FarToNear, 10 * MS, &back(5000, 1001, SYN | ACK, 0));
    lab.offer(NearToFar, 20 * MS, &there(1001, 5001, ACK, 100));
}

#[test]
fn a_reset_ends_both_sides_with_the_numbers_they_expect() {
    let mut lab = Lab::new(&[("rtt", "20ms"), ("at", "50ms reset")]);
    connect(&mut lab);
    // In flight at the reset, so it never arrives: the far end does not expect the sequence number
    // after it.
    lab.offer(NearToFar, 45 * MS, &there(1101, 5001, ACK, 100));
    lab.run_until(60 * MS);
    assert_eq!(
        resets(&lab),
        [(50, true, 1101, 5001), (50, false, 5001, 1201)]
    );
    assert!(
        lab.arrived
            .iter()
            .all(|(_, _, p)| p.seq != 1101 || p.flags & RST != 0)
    );

    // A further packet is answered with another reset, at the sequence number that its sender
    // expects.
    lab.arrived.clear();
    lab.offer(FarToNear, 70 * MS, &back(5001, 1101, ACK, 30));
    lab.offer(FarToNear, 70 * MS, &back(5031, 1101, ACK | RST, 0));
    lab.finish();
    assert_eq!(resets(&lab), [(70, true, 1101, 5031)]);
    assert_eq!(lab.arrived.len(), 1);
    assert_eq!(lab.emulator.figures().of(NearToFar).resets, 2);
    assert_eq!(lab.emulator.figures().of(FarToNear).drops.reset.packets, 2);

    // A new connection with these ports is possible.
    lab.arrived.clear();
    lab.offer(NearToFar, 100 * MS, &there(9000, 0, SYN, 0));
    lab.finish();
    assert_eq!(lab.arrived[0].2.seq, 9000);
}

#[test]
fn who_is_still_connecting_is_refused() {
    let mut lab = Lab::new(&[("rtt", "20ms"), ("at", "5ms reset")]);
    lab.offer(NearToFar, Duration::ZERO, &there(1000, 0, SYN, 0));
    lab.finish();
    assert_eq!(resets(&lab), [(5, false, 0, 1001)]);
    assert_eq!(lab.arrived.len(), 1, "the far end never hears of it");
}

#[test]
fn what_has_ended_or_begins_later_is_left_alone() {
    let mut lab = Lab::new(&[("rtt", "2ms"), ("at", "50ms reset")]);
    connect(&mut lab);
    lab.offer(NearToFar, 30 * MS, &there(1101, 5001, FIN | ACK, 0));
    lab.offer(FarToNear, 32 * MS, &back(5001, 1102, FIN | ACK, 0));
    lab.run_until(60 * MS);
    let other = |packet| Packet {
        from: (1, 41_000),
        ..packet
    };
    lab.offer(NearToFar, 60 * MS, &other(there(1, 0, SYN, 0)));
    lab.offer(NearToFar, 61 * MS, &other(there(2, 1, ACK, 10)));
    lab.finish();
    assert_eq!(resets(&lab), []);
    assert_eq!(lab.segments().len(), 3 + 2 + 2);
}

#[test]
fn resets_reach_every_connection_over_ipv6_too() {
    let mut lab = Lab::new(&[("rtt", "2ms"), ("at", "50ms reset")]);
    for port in 1..=100 {
        let packet = Packet {
            v6: true,
            from: (1, port),
            flags: SYN,
            ..Packet::data(u32::from(port), 0)
        };
        lab.offer(NearToFar, 10 * MS, &packet);
    }
    lab.finish();
    assert_eq!(resets(&lab).len(), 200);
}
