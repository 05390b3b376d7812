//! Tests of random impairments, and of their repeatability.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::build::Packet;
use crate::{Lab, MS, NearToFar};

const SEGMENTS: u32 = 200_000;

/// Sends [`SEGMENTS`] segments in super-packets of `bundle` segments.
fn send(options: &[(&str, &str)], bundle: u32) -> Lab {
    let mut lab = Lab::new(&[&[("queue", "1GB")], options].concat());
    for first in (0..SEGMENTS).step_by(bundle as usize) {
        let count = bundle.min(SEGMENTS - first);
        let now = first * Duration::from_micros(2);
        let packet = match count {
            1 => Packet::data(first * 16, 16),
            _ => Packet {
                gso_size: 16,
                ..Packet::bundle(first * 16, count as usize * 16)
            },
        };
        lab.offer(NearToFar, now, &packet);
    }
    lab.finish();
    lab
}

/// Numbers of the segments that did not arrive.
fn lost(lab: &Lab) -> Vec<u32> {
    let arrived: BTreeSet<u32> = lab.segments().into_iter().map(|seq| seq / 16).collect();
    (0..SEGMENTS)
        .filter(|segment| !arrived.contains(segment))
        .collect()
}

#[test]
fn a_seed_loses_the_same_packets_bundled_or_not() {
    let loss = [("loss", "1%"), ("seed", "9")];
    let single = lost(&send(&loss, 1));
    assert_eq!(lost(&send(&loss, 44)), single);
    assert_eq!(lost(&send(&loss, 3)), single);
    let with_more = [
        ("loss", "1%"),
        ("seed", "9"),
        ("duplicate", "1%"),
        ("reorder", "1%"),
    ];
    assert_eq!(lost(&send(&with_more, 44)), single);
    assert_ne!(lost(&send(&[("loss", "1%"), ("seed", "10")], 1)), single);
    // 2,000 are expected, with a standard deviation of 44.5.
    assert!(single.len().abs_diff(2000) < 4 * 45, "{}", single.len());
}

#[test]
fn bursts_have_their_mean_length_and_the_loss_its_share() {
    let lost = lost(&send(&[("loss", "2%/5")], 44));
    let bursts = lost
        .windows(2)
        .filter(|pair| pair[0] + 1 != pair[1])
        .count()
        + 1;
    let mean = lost.len() as f64 / bursts as f64;
    // Some 800 bursts; the length of each has a deviation of sqrt(20).
    assert!((mean - 5.0).abs() < 4.0 * 0.16, "{mean}");
    assert!((bursts as f64 - 800.0).abs() < 4.0 * 28.3, "{bursts}");
}

#[test]
fn uniform_loss_has_no_memory() {
    let lost = lost(&send(&[("loss", "10%")], 44));
    let pairs = lost
        .windows(2)
        .filter(|pair| pair[0] + 1 == pair[1])
        .count();
    assert!(pairs.abs_diff(lost.len() / 10) < 4 * 43, "{pairs}");
}

#[test]
fn duplicates_come_right_behind() {
    let lab = send(&[("duplicate", "1%")], 44);
    let segments = lab.segments();
    let copies = segments.len() - SEGMENTS as usize;
    assert!(copies.abs_diff(2000) < 4 * 45, "{copies}");
    assert!(segments.is_sorted());
    let figures = lab.emulator.figures().of(NearToFar);
    assert_eq!(figures.duplicated.packets, copies as u64);
}

#[test]
fn reordered_packets_are_overtaken_and_arrive() {
    let lab = send(&[("reorder", "1%/3ms"), ("rtt", "20ms")], 44);
    let held = lab.emulator.figures().of(NearToFar).reordered.packets as usize;
    assert!(held.abs_diff(2000) < 4 * 45, "{held}");
    assert_eq!(lost(&lab), []);
    let mut highest = 0;
    let mut late = |seq: &u32| {
        let late = *seq < highest;
        highest = highest.max(*seq);
        late
    };
    let overtaken = lab.segments().iter().filter(|seq| late(seq)).count();
    // No packets follow the very last ones.
    assert!(held - overtaken < 50, "{overtaken} of {held}");
    let (at, _, first) = &lab.arrived[0];
    assert!(*at < 11 * MS, "{first:?} at {at:?}");
}
