//! Benchmark of the emulator itself, in virtual time and on one core: super-packets in one
//! direction and their acknowledgements in the other, from the memory they are read into to the
//! memory they are written from.
//!
//! `cargo run --release -p longhaul-lab --example emulator_rate`

#[expect(
    dead_code,
    reason = "built for the tests; only part of it is needed here"
)]
#[path = "../tests/emulator/build.rs"]
mod build;

use std::hint::black_box;
use std::time::{Duration, Instant};

use build::Packet;
use lab::path::{NetworkPathSpec, PacketDirection};
use lab::{Emulator, NetworkPathError};

/// The measured paths: name and options.
const CASES: &[(&str, &[(&str, &str)])] = &[
    ("5 Gbit/s, 20 ms", &[("rate", "5Gbit"), ("rtt", "20ms")]),
    ("1 Gbit/s, 114 ms", &[("rate", "1Gbit"), ("rtt", "114ms")]),
    (
        "1 Gbit/s, 114 ms, 0.1 % loss, jitter",
        &[
            ("rate", "1Gbit"),
            ("rtt", "114ms"),
            ("loss", "0.1%"),
            ("jitter", "2ms"),
        ],
    ),
    (
        "1 Gbit/s, 1 % loss, resets",
        &[("rate", "1Gbit"), ("loss", "1%"), ("at", "999s reset")],
    ),
    (
        "120 Mbit/s, in pieces",
        &[("rate", "120Mbit"), ("rtt", "10ms")],
    ),
];

/// Virtual time for which packets are offered.
const VIRTUAL: Duration = Duration::from_secs(10);

fn main() -> Result<(), NetworkPathError> {
    let bundle = Packet::bundle(0, 44 * 1448).bytes();
    let acknowledgement = Packet::data(0, 0).bytes();
    for (name, options) in CASES {
        let path = NetworkPathSpec::build(None, options.iter().copied())?;
        measure(name, &path, &bundle, &acknowledgement);
    }
    Ok(())
}

fn measure(name: &str, path: &NetworkPathSpec, bundle: &[u8], acknowledgement: &[u8]) {
    let mut emulator = Emulator::new(path);
    let wire = 44.0 * 1500.0 * 8.0 / path.rate[0].bits() as f64;
    let step = Duration::from_secs_f64(wire);
    let (mut now, mut bundles) = (Duration::ZERO, 0u32);
    let started = Instant::now();
    while now < VIRTUAL {
        for (direction, bytes) in [
            (PacketDirection::NearToFar, bundle),
            (PacketDirection::FarToNear, acknowledgement),
        ] {
            let mut frame = emulator.memory();
            // Writing the whole frame would measure copying, which is the kernel's work at a
            // device; only the headers are written.
            let head = bytes.len().min(80);
            frame.room()[..head].copy_from_slice(&bytes[..head]);
            frame.set_len(bytes.len());
            emulator.offer(direction, now, frame);
        }
        while let Some((_, frame)) = emulator.poll(now) {
            emulator.recycle(black_box(frame));
        }
        bundles += 1;
        now += step;
    }
    let spent = started.elapsed();
    let bits = emulator
        .figures()
        .of(PacketDirection::NearToFar)
        .offered
        .bytes as f64
        * 8.0;
    println!(
        "{name:38} {:7.2} million super-packets a second, {:7.1} Gbit/s; {:.2} % of a core at the path's rate",
        f64::from(bundles) / spent.as_secs_f64() / 1e6,
        bits / spent.as_secs_f64() / 1e9,
        spent.as_secs_f64() / VIRTUAL.as_secs_f64() * 100.0
    );
}
