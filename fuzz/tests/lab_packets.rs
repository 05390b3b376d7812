//! Fuzzes packets from a TUN device, and the options of an emulated path.

#[expect(
    dead_code,
    reason = "built for the emulator's tests; only part of it is needed here"
)]
#[path = "../../crates/lab/tests/emulator/build.rs"]
mod build;

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use build::{ACK, CWR, FIN, Packet, SYN};
use fuzz::{Corpus, assert_shown_safely, operate, parse, some_bytes};
use lab::path::{NAMED, NetworkPathSpec, OPTIONS, PacketDirection};
use lab::{Emulator, MAX_FRAME};

const IMPAIRMENTS: &[(&str, &str)] = &[
    ("rtt", "10ms"),
    ("jitter", "3ms"),
    ("rate", "10Mbit/1Gbit"),
    ("queue", "30kB"),
    ("loss", "10%"),
    ("loss", "10%/3"),
    ("duplicate", "10%"),
    ("reorder", "10%/2ms"),
    ("police", "CS1=1Mbit"),
    ("police", "CS0=1Mbit"),
    ("bleach", ""),
    ("block", "22"),
    ("at", "20ms blackout=5ms"),
    ("at", "10ms reset"),
    ("at", "30ms reset"),
];

fn packets() -> Corpus {
    let v6 = |packet| Packet { v6: true, ..packet };
    let flags = |flags, packet| Packet { flags, ..packet };
    let marked = Packet {
        traffic_class: 8 << 2,
        gso_ecn: true,
        ..flags(ACK | CWR | FIN, Packet::bundle(u32::MAX - 1000, 5000))
    };
    // A hop-by-hop header and a fragment header before TCP.
    let mut extended = v6(Packet::data(9, 30)).bytes();
    extended[16] = 0;
    extended.splice(50..50, [44, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 7]);
    Corpus(vec![
        ("SYN", flags(SYN, Packet::data(1, 0)).bytes()),
        ("SYN over IPv6", v6(flags(SYN, Packet::data(1, 0))).bytes()),
        ("data", Packet::data(2, 1448).bytes()),
        ("bundle", Packet::bundle(2, 5000).bytes()),
        ("bundle over IPv6", v6(Packet::bundle(2, 5000)).bytes()),
        ("marked bundle", marked.bytes()),
        ("extension headers", extended),
    ])
}

/// Any frames at any time over any path: no panic, all frames are accounted for, and none is under
/// way in the end.
#[test]
fn frames_over_paths() {
    let corpus = packets();
    operate(8192, |u| {
        let mut options = Vec::new();
        for option in IMPAIRMENTS {
            if u.ratio(1, 3)? {
                options.push(*option);
            }
        }
        let Ok(path) = NetworkPathSpec::build(None, options) else {
            return Ok(());
        };
        let mut emulator = Emulator::new(&path);
        let mut now = Duration::ZERO;
        for _ in 0..u.int_in_range(1..=40)? {
            now += Duration::from_micros(u.int_in_range(0..=3000)?);
            let bytes = frame(u, &corpus)?;
            let direction = *u.choose(&PacketDirection::BOTH)?;
            let mut frame = emulator.memory();
            let len = bytes.len().min(frame.room().len());
            frame.room()[..len].copy_from_slice(&bytes[..len]);
            frame.set_len(len);
            emulator.offer(direction, now, frame);
            drain(&mut emulator, now);
        }
        while let Some(at) = emulator.next_deadline() {
            drain(&mut emulator, at.max(now));
        }
        for direction in PacketDirection::BOTH {
            let figures = emulator.figures().of(direction);
            assert_eq!(
                figures.offered.packets + figures.duplicated.packets,
                figures.delivered.packets + figures.drops.total().packets,
            );
            assert_eq!(
                figures.offered.bytes + figures.duplicated.bytes,
                figures.delivered.bytes + figures.drops.total().bytes,
            );
        }
        assert_shown_safely(&emulator.figures().to_string(), true);
        Ok(())
    });
}

fn frame(u: &mut Unstructured<'_>, corpus: &Corpus) -> Result<Vec<u8>> {
    match u.int_in_range(0..=7)? {
        0 => some_bytes(u),
        _ => corpus.mutant(u),
    }
}

fn drain(emulator: &mut Emulator, now: Duration) {
    while let Some((_, frame)) = emulator.poll(now) {
        assert!((11..=MAX_FRAME).contains(&frame.bytes().len()));
        emulator.recycle(frame);
    }
    assert!(emulator.next_deadline().is_none_or(|at| at > now));
}

/// Valid super-packets with everything that splits them: the parts that arrive are valid as well.
#[test]
fn super_packets_in_parts() {
    operate(4096, |u| {
        let loss = format!("{}%", u.int_in_range(0..=60)?);
        let seed = u.int_in_range(0..=u64::MAX)?.to_string();
        let rate = format!("{}Mbit", u.int_in_range(1..=1000)?);
        let options = [
            ("loss", loss.as_str()),
            ("seed", &seed),
            ("rate", &rate),
            ("duplicate", "5%"),
            ("reorder", "5%"),
            ("bleach", ""),
        ];
        let path = NetworkPathSpec::build(None, options).expect("a path");
        let mut emulator = Emulator::new(&path);
        for _ in 0..u.int_in_range(1..=8)? {
            let sent = Packet {
                v6: u.arbitrary()?,
                traffic_class: u.arbitrary()?,
                id: u.arbitrary()?,
                flags: u.arbitrary::<u8>()? | ACK,
                gso_size: u.int_in_range(1..=9000)?,
                ..Packet::data(u.arbitrary()?, 0)
            };
            let most = (usize::from(sent.gso_size) * 60).min(65_000);
            let sent = Packet {
                payload: u.int_in_range(usize::from(sent.gso_size) + 1..=most)?,
                ..sent
            };
            let bytes = sent.bytes();
            let mut frame = emulator.memory();
            frame.room()[..bytes.len()].copy_from_slice(&bytes);
            frame.set_len(bytes.len());
            emulator.offer(PacketDirection::NearToFar, Duration::ZERO, frame);
        }
        while let Some(at) = emulator.next_deadline() {
            while let Some((_, frame)) = emulator.poll(at) {
                Packet::checked(frame.bytes());
                emulator.recycle(frame);
            }
        }
        Ok(())
    });
}

/// Any text for any option gives a path or one sentence, and every path can be emulated.
#[test]
fn options() {
    let values = Corpus(
        [
            "1.5ms",
            "1Gbit/100Mbit",
            "0.1%/4",
            "CS1=10Mbit",
            "80,8000-8010",
            "5s blackout=3s",
            "64KiB",
        ]
        .into_iter()
        .chain(
            NAMED
                .iter()
                .flat_map(|path| path.options)
                .map(|(_, value)| *value),
        )
        .map(|text| (text, text.as_bytes().to_vec()))
        .collect(),
    );
    parse(256, |u| {
        let mut options = Vec::new();
        for _ in 0..u.int_in_range(1..=4)? {
            let value = String::from_utf8_lossy(&values.mutant(u)?).into_owned();
            options.push((u.choose(OPTIONS)?.name, value));
        }
        let pairs = options.iter().map(|(name, value)| (*name, value.as_str()));
        match NetworkPathSpec::build(None, pairs) {
            Ok(path) => {
                let mut emulator = Emulator::new(&path);
                let mut frame = emulator.memory();
                frame.set_len(1500);
                emulator.offer(PacketDirection::NearToFar, Duration::ZERO, frame);
            }
            Err(error) => assert_shown_safely(&error.to_string(), false),
        }
        Ok(())
    });
}
