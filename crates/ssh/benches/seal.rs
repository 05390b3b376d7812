//! Benchmark of sealing and opening with each cipher on one core: `cargo bench -p longhaul-ssh
//! --bench seal`.
//!
//! Packets carry 32 KiB, the most that OpenSSH accepts, and come from a working set of 16 MiB, so
//! that most of them are not in the nearest caches, as on the way from disk to socket.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock; the crate does not"
)]

use std::time::{Duration, Instant};

use ssh::cipher::{
    CIPHERS, CipherSpec, KeyMaterial, MACS, MacSpec, OpeningKey, PacketFraming, PacketPosition,
    SealingKey,
};

const PAYLOAD: usize = 9 + 32 * 1024;
const PACKETS: usize = 512;
const AT_LEAST: Duration = Duration::from_millis(300);

fn main() {
    println!("{:46} {:>9} {:>9}", "GB/s of payload", "seal", "open");
    for cipher in CIPHERS {
        if cipher.is_aead() {
            run(cipher, None);
        } else {
            MACS.iter().for_each(|mac| run(cipher, Some(mac)));
        }
    }
}

fn run(cipher: &CipherSpec, mac: Option<&MacSpec>) {
    let keys = KeyMaterial {
        iv: vec![1; cipher.iv_len],
        key: vec![2; cipher.key_len],
        mac_key: vec![3; mac.map_or(0, |m| m.key_len)],
    };
    let sealing = SealingKey::new(cipher, mac, &keys).expect("right lengths");
    let opening = OpeningKey::new(cipher, mac, &keys).expect("right lengths");
    let framing = sealing.framing();
    let mut packets: Vec<_> = (0..PACKETS).map(|_| lay_out(framing)).collect();

    let (mut seal, mut open) = (Duration::ZERO, Duration::ZERO);
    let mut bytes = 0;
    while seal + open < AT_LEAST {
        let begin = Instant::now();
        for_each(framing, &mut packets, |at, packet| {
            sealing.seal(at, packet).expect("a packet");
        });
        seal += begin.elapsed();
        let begin = Instant::now();
        for_each(framing, &mut packets, |at, packet| {
            opening.open(at, packet).expect("as sealed");
        });
        open += begin.elapsed();
        bytes += PACKETS * PAYLOAD;
        // chacha20-poly1305 leaves the length encrypted, which is not part of the payload.
        let head = framing.head(PAYLOAD).expect("short enough");
        packets
            .iter_mut()
            .for_each(|p| p[..5].copy_from_slice(&head));
    }
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let name = format!("{} {}", cipher.name, mac.map_or("", |m| m.name));
    println!("{name:46} {:9.2} {:9.2}", rate(seal), rate(open));
}

fn lay_out(framing: PacketFraming) -> Vec<u8> {
    let mut packet = vec![0x5a; framing.packet_len(PAYLOAD)];
    let head = framing.head(PAYLOAD).expect("short enough");
    packet[..5].copy_from_slice(&head);
    packet
}

fn for_each(
    framing: PacketFraming,
    packets: &mut [Vec<u8>],
    job: impl Fn(PacketPosition, &mut [u8]),
) {
    let mut at = PacketPosition::default();
    for packet in packets {
        job(at, packet);
        framing.advance(&mut at, packet.len());
    }
}
