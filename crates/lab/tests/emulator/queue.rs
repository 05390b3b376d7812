//! Tests of queues and policers.

use std::time::Duration;

use crate::build::Packet;
use crate::{Lab, MS, NearToFar, SECOND};

/// A queue for 100 packets of 1,500 bytes.
const QUEUE: &[(&str, &str)] = &[("rate", "12Mbit"), ("queue", "150kB")];

#[test]
fn what_there_is_room_for_stays_and_the_rest_is_dropped() {
    let mut lab = Lab::new(QUEUE);
    for packet in 0..150 {
        lab.offer(
            NearToFar,
            Duration::ZERO,
            &Packet::data(packet * 1448, 1448),
        );
    }
    let figures = lab.emulator.figures().of(NearToFar);
    assert_eq!(figures.drops.queue.packets, 50);
    assert_eq!(figures.queue_peak, 150_000);
    assert_eq!(figures.queue_peak_time, 100 * MS);
    // Each millisecond a packet leaves, and makes room for one.
    for packet in 0..50 {
        lab.offer(NearToFar, (packet + 1) * MS, &Packet::data(0, 1448));
    }
    assert_eq!(lab.emulator.figures().of(NearToFar).drops.queue.packets, 50);
    lab.offer(NearToFar, 50 * MS, &Packet::data(0, 1));
    assert_eq!(lab.emulator.figures().of(NearToFar).drops.queue.packets, 51);
    lab.finish();
}

#[test]
fn a_super_packet_is_dropped_only_from_where_the_queue_is_full() {
    let mut lab = Lab::new(QUEUE);
    for bundle in 0..3 {
        let seq = bundle * 40 * 1448;
        lab.offer(NearToFar, Duration::ZERO, &Packet::bundle(seq, 40 * 1448));
    }
    lab.finish();
    let expected: Vec<u32> = (0..100).map(|segment| segment * 1448).collect();
    assert_eq!(lab.segments(), expected);
    assert_eq!(lab.emulator.figures().of(NearToFar).drops.queue.packets, 20);
}

#[test]
fn the_queue_is_one_bandwidth_delay_product_unless_asked() {
    let bytes = |options: &[_]| crate::path(options).queue_bytes(NearToFar);
    assert_eq!(bytes(&[("rtt", "114ms"), ("rate", "1Gbit")]), 14_250_000);
    assert_eq!(bytes(&[("rate", "1Gbit"), ("queue", "2ms")]), 250_000);
    assert_eq!(bytes(&[("queue", "64KiB")]), 65_536);
    assert_eq!(bytes(&[("rate", "10Mbit")]), 160 * 1024);
    assert_eq!(bytes(&[]), 2_500_000, "2 ms of 10 Gbit/s");
}

#[test]
fn a_policed_class_gets_its_rate_and_the_others_theirs() {
    let mut lab = Lab::new(&[
        ("rate", "120Mbit"),
        ("rtt", "10ms"),
        ("police", "CS1=10Mbit"),
    ]);
    let mut now = Duration::ZERO;
    while now < 10 * SECOND {
        // Each class sends 30 Mbit/s; EF has no policer.
        for dscp in [8u8, 46, 0] {
            let packet = Packet {
                traffic_class: dscp << 2 | 1,
                ..Packet::bundle(0, 10 * 1448)
            };
            lab.offer(NearToFar, now, &packet);
        }
        lab.arrived
            .retain(|(_, _, packet)| packet.traffic_class == 8 << 2 | 1);
        now += 4 * MS;
    }
    lab.finish();
    let figures = lab.emulator.figures().of(NearToFar);
    let policed = figures.drops.police[8];
    assert_eq!(figures.drops.total(), policed);
    // 10 s at the rate, and a full bucket, which is 100 ms.
    let passed = (figures.dscp[8].bytes - policed.bytes) as f64;
    assert!(
        (passed / (10e6 / 8.0 * 10.1) - 1.0).abs() < 2e-3,
        "{passed}"
    );
    assert_eq!(figures.dscp[46].packets, 25_000);
    let names: Vec<_> = figures
        .by_dscp()
        .map(|(dscp, _)| dscp.to_string())
        .collect();
    assert_eq!(names, ["CS0", "CS1", "EF"]);
    let text = lab.emulator.figures().to_string();
    assert!(text.contains("dropped police CS1"), "{text}");
}

#[test]
fn bleach_clears_the_class_and_keeps_ecn() {
    for v6 in [false, true] {
        let mut lab = Lab::new(&[("bleach", "")]);
        let packet = Packet {
            v6,
            traffic_class: 46 << 2 | 2,
            ..Packet::bundle(0, 3000)
        };
        lab.offer(NearToFar, Duration::ZERO, &packet);
        lab.finish();
        assert_eq!(lab.arrived[0].2.traffic_class, 2);
        assert_eq!(lab.emulator.figures().of(NearToFar).dscp[46].packets, 3);
    }
}
