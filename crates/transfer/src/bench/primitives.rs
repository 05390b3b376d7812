//! Measures the primitives of a connection on this processor: sealing and opening packets,
//! compression and checksums, each on one or several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use sftp::packed::BlockCompressor;
use ssh::cipher::{
    CIPHERS, CipherSpec, KeyMaterial, MACS, MacSpec, OpeningKey, PacketFraming, PacketPosition,
    SealingKey,
};
use ssh::compress::Deflate;

use super::data::{self, PACKET};

/// The number of packets that are sealed in turn. Together they fit the cache of a core, as data do
/// that were just read or received.
const PACKETS: usize = 8;
/// Bytes of the CHANNEL_DATA and WRITE headers before file data.
const HEADERS: usize = 9;

/// Bytes that a primitive has processed, and the time that this took.
#[derive(Clone, Copy, Debug, Default)]
struct WorkDone {
    bytes: u64,
    time: Duration,
}

/// One step of a measurement, without its preparation.
type MeasureStep = Box<dyn FnMut() -> WorkDone>;

/// Operation of a connection whose speed is measured: encryption, compression or hashing.
#[derive(Clone, Copy, Debug)]
pub enum Primitive {
    /// Sealing packets of 32 KiB.
    Seal(&'static CipherSpec, Option<&'static MacSpec>),
    /// Opening packets of 32 KiB.
    Open(&'static CipherSpec, Option<&'static MacSpec>),
    /// zlib, as in SSH compression.
    Zlib(CompressionInput),
    /// zstd, as between two longhauls.
    Zstd(CompressionInput),
    /// BLAKE3.
    Blake3,
    /// SHA-256.
    Sha256,
}

/// The kind of data to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionInput {
    /// English text.
    Text,
    /// Already compressed data.
    Gzipped,
}

impl CompressionInput {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Gzipped => "gzipped",
        }
    }
}

/// Returns all primitives; ciphers without AEAD appear once per MAC.
pub fn all() -> Vec<Primitive> {
    let mut all = Vec::new();
    for cipher in CIPHERS {
        let macs: Vec<Option<&MacSpec>> = match cipher.is_aead() {
            true => vec![None],
            false => MACS.iter().map(Some).collect(),
        };
        for mac in macs {
            all.push(Primitive::Seal(cipher, mac));
            all.push(Primitive::Open(cipher, mac));
        }
    }
    for kind in [CompressionInput::Text, CompressionInput::Gzipped] {
        all.push(Primitive::Zlib(kind));
        all.push(Primitive::Zstd(kind));
    }
    all.extend([Primitive::Blake3, Primitive::Sha256]);
    all
}

impl Primitive {
    /// Returns the group: `cipher`, `compression` or `hash`.
    pub fn group(&self) -> &'static str {
        match self {
            Self::Seal(..) | Self::Open(..) => "cipher",
            Self::Zlib(_) | Self::Zstd(_) => "compression",
            Self::Blake3 | Self::Sha256 => "hash",
        }
    }

    /// Returns the SSH name of the algorithm, followed by that of the MAC.
    pub fn name(&self) -> String {
        match self {
            Self::Seal(cipher, mac) | Self::Open(cipher, mac) => match mac {
                Some(mac) => format!("{} {}", cipher.name, mac.name),
                None => cipher.name.to_owned(),
            },
            Self::Zlib(_) => "zlib".to_owned(),
            Self::Zstd(_) => "zstd".to_owned(),
            Self::Blake3 => "blake3".to_owned(),
            Self::Sha256 => "sha256".to_owned(),
        }
    }

    /// Returns the operation, or the kind of data.
    pub fn what(&self) -> &'static str {
        match self {
            Self::Seal(..) => "seal",
            Self::Open(..) => "open",
            Self::Zlib(kind) | Self::Zstd(kind) => kind.name(),
            Self::Blake3 | Self::Sha256 => "",
        }
    }

    /// Runs for about `time` and returns the bytes per second of all `threads` threads together.
    pub fn measure(&self, threads: usize, time: Duration) -> f64 {
        let stop = AtomicBool::new(false);
        let ready = Barrier::new(threads + 1);
        thread::scope(|scope| {
            let work = || {
                let mut step = self.step();
                // A first step warms up pages and caches before the measurement.
                step();
                ready.wait();
                let mut done = WorkDone::default();
                // Each thread does at least one step, even if it was scheduled too late.
                loop {
                    let step = step();
                    done.bytes += step.bytes;
                    done.time += step.time;
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                done.bytes as f64 / done.time.as_secs_f64()
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            ready.wait();
            thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_default())
                .sum()
        })
    }

    /// Builds the step function.
    fn step(&self) -> MeasureStep {
        match *self {
            Self::Seal(cipher, mac) => seal(cipher, mac),
            Self::Open(cipher, mac) => open(cipher, mac),
            Self::Zlib(kind) => {
                let (mut deflate, mut out) = (Deflate::new(), Vec::new());
                each(kind, PACKET, move |packet| {
                    out.clear();
                    // Deflate fails only without memory, which shows as a rate of zero.
                    deflate.deflate(packet, &mut out).is_ok()
                })
            }
            Self::Zstd(kind) => {
                let (mut packer, mut out) = (BlockCompressor::new(), Vec::new());
                each(kind, 4 * PACKET, move |block| match &mut packer {
                    Some(packer) => {
                        packer.pack(block, &mut out);
                        true
                    }
                    None => false,
                })
            }
            Self::Blake3 => summed(|block| {
                std::hint::black_box(blake3::hash(block));
            }),
            Self::Sha256 => summed(|block| {
                let mut context = Context::new(&SHA256);
                context.update(block);
                std::hint::black_box(context.finish());
            }),
        }
    }
}

fn timed(work: impl FnOnce() -> u64) -> WorkDone {
    let start = Instant::now();
    let bytes = work();
    WorkDone {
        bytes,
        time: start.elapsed(),
    }
}

/// Returns the sample data, generated once.
fn sample(kind: CompressionInput) -> &'static [u8] {
    const LEN: usize = 1 << 20;
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    static GZIPPED: OnceLock<Vec<u8>> = OnceLock::new();
    let data = match kind {
        CompressionInput::Text => TEXT.get_or_init(data::text),
        CompressionInput::Gzipped => GZIPPED.get_or_init(data::gzipped),
    };
    data.get(..LEN).unwrap_or(data)
}

fn each(
    kind: CompressionInput,
    block: usize,
    mut work: impl FnMut(&[u8]) -> bool + 'static,
) -> MeasureStep {
    let data = sample(kind);
    let mut at = 0;
    Box::new(move || {
        let block = data.get(at..at + block).unwrap_or_default();
        at = (at + block.len()) % data.len();
        timed(|| match work(block) {
            true => block.len() as u64,
            false => 0,
        })
    })
}

fn summed(work: impl Fn(&[u8]) + 'static) -> MeasureStep {
    let block = vec![0x5a; 4 * PACKET];
    Box::new(move || {
        timed(|| {
            work(&block);
            block.len() as u64
        })
    })
}

fn keys(cipher: &CipherSpec, mac: Option<&MacSpec>) -> KeyMaterial {
    KeyMaterial {
        iv: vec![1; cipher.iv_len],
        key: vec![2; cipher.key_len],
        mac_key: vec![3; mac.map_or(0, |mac| mac.key_len)],
    }
}

/// The packets of one direction, which are sealed and opened in turn.
struct PacketBatch {
    framing: PacketFraming,
    sealing: SealingKey,
    opening: OpeningKey,
    packets: Vec<Vec<u8>>,
    at: PacketPosition,
}

impl PacketBatch {
    fn new(cipher: &CipherSpec, mac: Option<&MacSpec>) -> Option<Self> {
        let keys = keys(cipher, mac);
        let sealing = SealingKey::new(cipher, mac, &keys).ok()?;
        let framing = sealing.framing();
        let packet = vec![0x5a; framing.packet_len(HEADERS + PACKET)];
        Some(Self {
            framing,
            opening: OpeningKey::new(cipher, mac, &keys).ok()?,
            sealing,
            packets: vec![packet; PACKETS],
            at: PacketPosition::default(),
        })
    }

    /// Seals all packets; returns the file data bytes of those that succeeded.
    fn seal(&mut self) -> u64 {
        let mut at = self.at;
        let head = self.framing.head(HEADERS + PACKET).ok();
        let mut bytes = 0;
        for packet in &mut self.packets {
            // The length field may still be encrypted from the last round.
            if let (Some(place), Some(head)) = (packet.get_mut(..5), head) {
                place.copy_from_slice(&head);
            }
            if self.sealing.seal(at, packet).is_ok() {
                bytes += PACKET as u64;
            }
            self.framing.advance(&mut at, packet.len());
        }
        bytes
    }

    /// Opens the packets sealed last and advances the position behind them.
    fn open(&mut self) -> u64 {
        let mut bytes = 0;
        for packet in &mut self.packets {
            if self.opening.open(self.at, packet).is_ok() {
                bytes += PACKET as u64;
            }
            self.framing.advance(&mut self.at, packet.len());
        }
        bytes
    }
}

fn seal(cipher: &'static CipherSpec, mac: Option<&'static MacSpec>) -> MeasureStep {
    match PacketBatch::new(cipher, mac) {
        Some(mut packets) => Box::new(move || timed(|| packets.seal())),
        None => Box::new(WorkDone::default),
    }
}

fn open(cipher: &'static CipherSpec, mac: Option<&'static MacSpec>) -> MeasureStep {
    match PacketBatch::new(cipher, mac) {
        Some(mut packets) => Box::new(move || {
            packets.seal();
            timed(|| packets.open())
        }),
        None => Box::new(WorkDone::default),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primitive_works_on_one_thread_and_on_two() {
        let all = all();
        for cipher in CIPHERS {
            let names = all.iter().filter(|p| p.name().starts_with(cipher.name));
            assert_eq!(
                names.count(),
                if cipher.is_aead() { 2 } else { 2 * MACS.len() }
            );
        }
        for primitive in all {
            let done = (primitive.step())();
            assert!(done.bytes > 0, "{primitive:?}");
        }
        let rate = Primitive::Sha256.measure(2, Duration::from_millis(20));
        assert!(rate > 0.0);
    }
}
