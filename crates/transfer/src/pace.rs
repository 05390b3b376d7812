//! Measures the cipher rates of this processor in a few milliseconds after a copy of at least a
//! second, and stores them for later connections.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ssh::cipher::{CIPHERS, CipherSpec, KeyMaterial, PacketPosition, SealingKey};
use tracing::debug;

use crate::memory::HostMemoryStore;
use crate::memory::processor::{ProcessorMeasurements, model};

/// The payload of a channel packet in bytes.
const PAYLOAD: usize = 32 << 10;
/// The number of measurements per cipher, of [`TURN`] each. The best one counts, since other
/// processes may use the processor.
const TURNS: u32 = 3;
const TURN: Duration = Duration::from_micros(600);
/// The shortest copy after which the measurement is made.
const WORTH: Duration = Duration::from_secs(1);

/// Measures this processor after a copy that took `elapsed`, unless a recent measurement exists.
pub fn learn(memories: &HostMemoryStore, elapsed: Duration) {
    let (processors, model, now) = (memories.processors(), model(), SystemTime::now());
    if elapsed < WORTH || processors.load(&model, now).is_some() {
        return;
    }
    let known = ProcessorMeasurements {
        at: now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        by: concat!("longhaul cp ", env!("CARGO_PKG_VERSION")).to_owned(),
        ciphers: measure(),
    };
    if let Err(e) = processors.store(&model, &known) {
        debug!("cannot save the processor's measurements: {e}");
    }
}

/// Returns the bytes per second that one core seals, for each AEAD cipher.
pub fn measure() -> Vec<(String, u64)> {
    let aead = CIPHERS.iter().filter(|cipher| cipher.is_aead());
    let mut benches: Vec<CipherBench> = aead.filter_map(CipherBench::new).collect();
    for _ in 0..TURNS {
        for bench in &mut benches {
            bench.turn();
        }
    }
    let rates = benches.into_iter().filter(|bench| bench.best > 0.0);
    rates
        .map(|bench| (bench.name.to_owned(), bench.best as u64))
        .collect()
}

struct CipherBench {
    name: &'static str,
    key: SealingKey,
    packet: Vec<u8>,
    at: PacketPosition,
    best: f64,
}

impl CipherBench {
    fn new(cipher: &CipherSpec) -> Option<Self> {
        let mut keys = KeyMaterial {
            iv: vec![0; cipher.iv_len],
            key: vec![0; cipher.key_len],
            mac_key: Vec::new(),
        };
        aws_lc_rs::rand::fill(&mut keys.key).ok()?;
        let key = SealingKey::new(cipher, None, &keys).ok()?;
        let framing = key.framing();
        Some(Self {
            name: cipher.name,
            packet: vec![0; framing.packet_len(PAYLOAD)],
            key,
            at: PacketPosition::default(),
            best: 0.0,
        })
    }

    fn turn(&mut self) {
        let framing = self.key.framing();
        let Ok(head) = framing.head(PAYLOAD) else {
            return;
        };
        let (start, mut sealed) = (Instant::now(), 0);
        let took = loop {
            // The output of the last round is as good as any other payload.
            self.packet[..head.len()].copy_from_slice(&head);
            if self.key.seal(self.at, &mut self.packet).is_err() {
                return;
            }
            framing.advance(&mut self.at, self.packet.len());
            sealed += PAYLOAD;
            let took = start.elapsed();
            if took >= TURN {
                break took;
            }
        };
        self.best = self.best.max(sealed as f64 / took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_measured_once_and_not_for_a_short_copy() {
        let dir = tempfile::tempdir().unwrap();
        let memories = HostMemoryStore::at(dir.path().join("hosts"));
        let known = || memories.processors().load(&model(), SystemTime::now());
        learn(&memories, Duration::from_millis(900));
        assert!(known().is_none());
        learn(&memories, Duration::from_secs(2));
        let (first, _) = known().unwrap();
        assert_eq!(first.ciphers.len(), 3);
        assert!(first.ciphers.iter().all(|(_, rate)| *rate > 1_000_000));
        learn(&memories, Duration::from_secs(2));
        assert_eq!(known().unwrap().0, first);
    }
}
