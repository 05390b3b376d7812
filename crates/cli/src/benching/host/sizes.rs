//! Chooses file sizes so that a run takes the intended time.

use std::collections::BTreeMap;

use measure::CopyDirection;
use measure::bench::{BenchCompression, BenchData, BenchSetting, CompressionRatio, StorageKind};
use transfer::bench::data;

/// Longest run in seconds: more runs say more than longer ones.
const LONGEST: f64 = 1.2;
/// Shortest run in seconds if time permits: progress is reported twenty times a second.
const SHORTEST: f64 = 0.4;
/// Fewest round trips in a run. Slow start takes up to ten, and its rate is far below the path's.
const ROUND_TRIPS: f64 = 30.0;
/// Upper bound in seconds on the run time that [`ROUND_TRIPS`] asks for.
const LONGEST_WAIT: f64 = 6.0;
const MIB: u64 = 1 << 20;
/// The largest file, in bytes.
const MOST: u64 = 512 * MIB;
/// The largest file, in bytes, if free space at the other end is unknown.
const UNKNOWN: u64 = 48 * MIB;
/// Assumed rate of a path before anything was measured, in bytes a second.
const GUESS: f64 = 30e6;

/// Settings with equal keys are expected to reach similar rates; the last field is a longhaul at
/// both ends.
type RateKey = (
    BenchCompression,
    BenchData,
    CopyDirection,
    StorageKind,
    bool,
);

/// Remembers rates and ratios, and computes file sizes from them.
pub(super) struct BenchSizeChooser {
    limit: f64,
    /// Intended seconds of a run.
    aim: f64,
    /// Number of settings that run even if time is short.
    pub(super) must: usize,
    /// Free bytes at the other end, if known.
    room: Option<u64>,
    rates: BTreeMap<RateKey, f64>,
    /// Bytes that one core compresses in a second.
    packs: BTreeMap<(BenchCompression, BenchData), f64>,
    /// Compressed size as a share of the original.
    ratios: BTreeMap<(BenchCompression, BenchData), f64>,
    /// The shortest round trip so far, in seconds; 0 if unknown.
    round_trip: f64,
    /// Version of the longhaul at the other end.
    pub(super) longhaul: Option<String>,
}

impl BenchSizeChooser {
    /// Plans for a measurement of `limit` seconds.
    pub(super) fn new(limit: f64, room: Option<u64>) -> Self {
        Self {
            limit,
            aim: SHORTEST,
            must: 0,
            room,
            rates: BTreeMap::new(),
            packs: BTreeMap::new(),
            ratios: BTreeMap::new(),
            round_trip: 0.0,
            longhaul: None,
        }
    }

    /// Compresses a sample of this kind of data, and notes rates and ratios.
    pub(super) fn look(&mut self, kind: BenchData, piece: &[u8]) -> Vec<CompressionRatio> {
        let looked = [
            (BenchCompression::Zlib, data::by_zlib(piece)),
            (BenchCompression::Zstd, data::by_zstd(piece)),
        ];
        looked
            .map(|(compression, looked)| {
                self.packs.insert((compression, kind), looked.rate);
                self.ratios.insert((compression, kind), looked.ratio);
                CompressionRatio {
                    data: kind,
                    compression,
                    ratio: looked.ratio,
                }
            })
            .to_vec()
    }

    /// Sets the run time for `settings` settings of about seven runs each, of which `must` have to
    /// run.
    pub(super) fn expect(&mut self, settings: usize, must: usize) {
        self.must = must;
        let each = self.limit / (settings.max(1) as f64 * 7.0);
        // With very little time, every setting still gets about two runs, however short.
        let least = SHORTEST.min(self.limit / (settings.max(1) as f64 * 2.0));
        self.aim = each.clamp(least, LONGEST);
    }

    /// Notes the rate of a run. Only the highest counts: a slow run must not shorten the next ones,
    /// which would make them slower still.
    pub(super) fn ran(&mut self, setting: &BenchSetting, rate: f64) {
        let known = self.rates.entry(like(setting)).or_insert(rate);
        *known = known.max(rate);
    }

    /// Notes a round trip of the path, in seconds.
    pub(super) fn note_round_trip(&mut self, seconds: f64) {
        let first = self.round_trip == 0.0;
        if seconds > 0.0 && (first || seconds < self.round_trip) {
            self.round_trip = seconds;
        }
    }

    /// Intended seconds of the next run.
    fn aim(&self) -> f64 {
        let path = (self.round_trip * ROUND_TRIPS).min(LONGEST_WAIT);
        self.aim.max(path.min(self.limit / 10.0))
    }

    /// Bytes to copy in a setting's next run; `near` bytes are free at this end.
    pub(super) fn of(&self, setting: &BenchSetting, near: u64) -> u64 {
        let plain = |way| {
            let like = (
                BenchCompression::None,
                setting.data,
                way,
                setting.place,
                false,
            );
            let random = (
                BenchCompression::None,
                BenchData::Random,
                way,
                StorageKind::Memory,
                false,
            );
            self.rates.get(&like).or_else(|| self.rates.get(&random))
        };
        let rate = self.rates.get(&like(setting)).copied().unwrap_or_else(|| {
            let path = plain(setting.way).or_else(|| plain(CopyDirection::Up));
            let path = path.copied().unwrap_or(GUESS);
            // Compression is at most as fast as a core.
            let of = (setting.compression, setting.data);
            // Data that compress well pass faster.
            let ratio = self
                .ratios
                .get(&of)
                .copied()
                .unwrap_or(1.0)
                .clamp(0.01, 1.0);
            let packs = self.packs.get(&of);
            packs.map_or(path, |packs| packs.min(path / ratio))
        });
        let far = self.room.map_or(UNKNOWN, |room| room / 3);
        let most = MOST.min(near / 3).min(far).max(MIB);
        let size = (rate * self.aim() * 1.25) as u64;
        (size / MIB * MIB).clamp(MIB, most)
    }
}

fn like(setting: &BenchSetting) -> RateKey {
    (
        setting.compression,
        setting.data,
        setting.way,
        setting.place,
        setting.both_ours,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> BenchSetting {
        BenchSetting {
            cipher: "c".to_owned(),
            mac: None,
            compression: BenchCompression::None,
            data: BenchData::Random,
            way: CopyDirection::Up,
            place: StorageKind::Memory,
            connections: 1,
            channels: 1,
            both_ours: false,
            carried: false,
        }
    }

    /// Regression: runs of 0.4 s at 100 ms were slow start alone; 3.5 MB/s were measured on a path
    /// of 12.5 MB/s.
    #[test]
    fn a_run_takes_many_round_trips() {
        let mut sizes = BenchSizeChooser::new(180.0, None);
        sizes.expect(60, 4);
        sizes.ran(&plain(), 12.5e6);
        let near = 1 << 40;
        let short = sizes.of(&plain(), near);
        sizes.note_round_trip(0.1);
        let long = sizes.of(&plain(), near);
        assert!(short < 12_000_000 && long > 37_500_000, "{short} {long}");
        // A run that other traffic slowed down does not shorten the next.
        sizes.ran(&plain(), 1e6);
        assert_eq!(sizes.of(&plain(), near), long);
        // A run is at most a tenth of the time limit.
        let mut hurried = BenchSizeChooser::new(10.0, None);
        hurried.expect(60, 4);
        hurried.ran(&plain(), 12.5e6);
        hurried.note_round_trip(0.5);
        assert!(hurried.of(&plain(), near) < 20_000_000);
    }
}
