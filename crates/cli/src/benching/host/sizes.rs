//! How large a file is copied, so that a run takes as long as it should.

use std::collections::BTreeMap;

use measure::Way;
use measure::bench::{Compression, Data, Place, Ratio, Setting};
use transfer::bench::data;

/// A run is not longer than this, in seconds: more runs tell more than longer ones.
const LONGEST: f64 = 1.2;
/// A run is not shorter where there is time: progress is told twenty times a second.
const SHORTEST: f64 = 0.4;
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

    /// A run had this rate.
    pub(super) fn ran(&mut self, setting: &Setting, rate: f64) {
        self.rates.insert(like(setting), rate);
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
            // Compression may be faster than the path and is at most as fast as a core.
            let packs = self.packs.get(&(setting.compression, setting.data));
            packs.map_or(path, |packs| packs.min(path))
        });
        let far = self.room.map_or(UNKNOWN, |room| room / 3);
        let most = MOST.min(near / 3).min(far).max(MIB);
        let size = (rate * self.aim * 1.25) as u64;
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
