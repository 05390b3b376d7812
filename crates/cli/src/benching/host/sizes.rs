//! How large a file is copied, so that a run takes as long as it should.

use std::collections::BTreeMap;

use measure::Way;
use measure::bench::{Compression, Data, Place, Ratio, Setting};
use transfer::bench::data;

/// A run is not longer than this, in seconds: more runs tell more than longer ones.
const LONGEST: f64 = 1.2;
/// A run is not shorter where there is time: progress is told twenty times a second.
const SHORTEST: f64 = 0.4;
/// Round trips that a run takes at least: slow start takes up to ten, and a rate of slow start alone
/// is far below that of the path.
const ROUND_TRIPS: f64 = 30.0;
/// But no longer than this, in seconds.
const LONGEST_WAIT: f64 = 6.0;
const MIB: u64 = 1 << 20;
/// The largest file.
const MOST: u64 = 512 * MIB;
/// The largest where nobody tells how much room there is.
const UNKNOWN: u64 = 48 * MIB;
/// What a path is taken for before anything is known, in bytes a second.
const GUESS: f64 = 30e6;

/// What rates are alike in.
type Like = (Compression, Data, Way, Place, bool);

/// See the module.
pub(super) struct Sizes {
    limit: f64,
    /// Seconds of a run.
    aim: f64,
    /// Settings that run whatever the time.
    pub(super) must: usize,
    /// Bytes that are free at the other end.
    room: Option<u64>,
    rates: BTreeMap<Like, f64>,
    /// What one core compresses in a second.
    packs: BTreeMap<(Compression, Data), f64>,
    /// How small the data become.
    ratios: BTreeMap<(Compression, Data), f64>,
    /// The shortest round trip that was seen, in seconds.
    round_trip: f64,
    /// The version of the longhaul at the other end.
    pub(super) longhaul: Option<String>,
}

impl Sizes {
    /// For `limit` seconds.
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

    /// Looks at data of a kind: how small they become.
    pub(super) fn look(&mut self, kind: Data, piece: &[u8]) -> Vec<Ratio> {
        let looked = [
            (Compression::Zlib, data::by_zlib(piece)),
            (Compression::Zstd, data::by_zstd(piece)),
        ];
        looked
            .map(|(compression, looked)| {
                self.packs.insert((compression, kind), looked.rate);
                self.ratios.insert((compression, kind), looked.ratio);
                Ratio {
                    data: kind,
                    compression,
                    ratio: looked.ratio,
                }
            })
            .to_vec()
    }

    /// So many settings are to run, seven times each; so many have to.
    pub(super) fn expect(&mut self, settings: usize, must: usize) {
        self.must = must;
        let each = self.limit / (settings.max(1) as f64 * 7.0);
        // With hardly any time at all, a run of each is as short as can be.
        let least = SHORTEST.min(self.limit / (settings.max(1) as f64 * 2.0));
        self.aim = each.clamp(least, LONGEST);
    }

    /// A run had this rate. A slower one does not make the next ones shorter, which would make them
    /// slower again.
    pub(super) fn ran(&mut self, setting: &Setting, rate: f64) {
        let known = self.rates.entry(like(setting)).or_insert(rate);
        *known = known.max(rate);
    }

    /// A round trip of the path, in seconds.
    pub(super) fn note_round_trip(&mut self, seconds: f64) {
        let first = self.round_trip == 0.0;
        if seconds > 0.0 && (first || seconds < self.round_trip) {
            self.round_trip = seconds;
        }
    }

    /// Seconds that the next run is to take.
    fn aim(&self) -> f64 {
        let path = (self.round_trip * ROUND_TRIPS).min(LONGEST_WAIT);
        self.aim.max(path.min(self.limit / 10.0))
    }

    /// Bytes of the next run of a setting, with so much free at this end.
    pub(super) fn of(&self, setting: &Setting, near: u64) -> u64 {
        let plain = |way| {
            let like = (Compression::None, setting.data, way, setting.place, false);
            let random = (Compression::None, Data::Random, way, Place::Memory, false);
            self.rates.get(&like).or_else(|| self.rates.get(&random))
        };
        let rate = self.rates.get(&like(setting)).copied().unwrap_or_else(|| {
            let path = plain(setting.way).or_else(|| plain(Way::Up));
            let path = path.copied().unwrap_or(GUESS);
            // Compression is at most as fast as a core.
            let of = (setting.compression, setting.data);
            // Smaller data pass faster.
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

fn like(setting: &Setting) -> Like {
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

    fn plain() -> Setting {
        Setting {
            cipher: "c".to_owned(),
            mac: None,
            compression: Compression::None,
            data: Data::Random,
            way: Way::Up,
            place: Place::Memory,
            connections: 1,
            channels: 1,
            both_ours: false,
            carried: false,
        }
    }

    /// Runs of 0.4 s at 100 ms were slow start alone: 3.5 MB/s were measured on a path of 12.5 MB/s.
    #[test]
    fn a_run_takes_many_round_trips() {
        let mut sizes = Sizes::new(180.0, None);
        sizes.expect(60, 4);
        sizes.ran(&plain(), 12.5e6);
        let near = 1 << 40;
        let short = sizes.of(&plain(), near);
        sizes.note_round_trip(0.1);
        let long = sizes.of(&plain(), near);
        assert!(short < 12_000_000 && long > 37_500_000, "{short} {long}");
        // A run that others slowed down does not shorten the next.
        sizes.ran(&plain(), 1e6);
        assert_eq!(sizes.of(&plain(), near), long);
        // Nor is a run longer than a tenth of the time.
        let mut hurried = Sizes::new(10.0, None);
        hurried.expect(60, 4);
        hurried.ran(&plain(), 12.5e6);
        hurried.note_round_trip(0.5);
        assert!(hurried.of(&plain(), near) < 20_000_000);
    }
}
