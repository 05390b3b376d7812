use crate::figures::DirectionStatistics;
use crate::path::{Fraction, LossModel, NetworkPathSpec, PacketDirection};

/// The uses of randomness. Each has its own stream in each direction, so that another impairment
/// leaves the choices of the others unchanged.
#[derive(Clone, Copy)]
pub(super) enum RandomStreamKind {
    Loss,
    Duplicate,
    Reorder,
    Jitter,
}

/// SplitMix64 (Steele, Lea, Flood 2014): a few instructions, and any number is a good seed.
#[derive(Debug)]
pub(super) struct SplitMix64(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix64 {
    pub(super) fn new(seed: u64, direction: PacketDirection, purpose: RandomStreamKind) -> Self {
        let stream = direction as u64 * 16 + purpose as u64 + 1;
        Self(mix(seed ^ mix(stream.wrapping_mul(GOLDEN))))
    }

    /// The number at `index` of the stream, independent of earlier draws.
    pub(super) fn at(&self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random event of fixed probability.
#[derive(Debug)]
struct RandomEvent {
    random: SplitMix64,
    below: u64,
}

impl RandomEvent {
    fn new(random: SplitMix64, probability: f64) -> Self {
        Self {
            random,
            below: threshold(probability),
        }
    }

    fn toss(&mut self) -> bool {
        self.below > 0 && self.random.next() < self.below
    }
}

/// Scales a probability to 64 bits. The cast saturates, so 1 is short by 2^-64 only.
fn threshold(probability: f64) -> u64 {
    (probability * 2f64.powi(64)) as u64
}

/// Random effects on one segment behind the queue: loss, duplication, delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentFate {
    pub(super) lost: bool,
    pub(super) duplicated: bool,
    pub(super) held: bool,
}

impl SegmentFate {
    /// Counts `segments` with this fate.
    pub(super) fn count(self, figures: &mut DirectionStatistics, segments: u64, bytes: u64) {
        if self.lost {
            figures.drops.loss.add(segments, bytes);
            return;
        }
        if self.held {
            figures.reordered.add(segments, bytes);
        }
        if self.duplicated {
            figures.duplicated.add(segments, bytes);
        }
    }
}

/// Draws the fate of each segment that arrives at a link, in order, independent of free room in its
/// queue: the nth segment has the same fate in every run with a seed.
#[derive(Debug)]
pub(super) struct SegmentFateGenerator {
    loss: RandomEvent,
    /// Thresholds of entering and leaving the bad state, for loss in bursts.
    bursts: Option<[u64; 2]>,
    bad: bool,
    duplicate: RandomEvent,
    reorder: RandomEvent,
}

impl SegmentFateGenerator {
    pub(super) fn new(path: &NetworkPathSpec, direction: PacketDirection) -> Self {
        let random = |purpose| SplitMix64::new(path.seed, direction, purpose);
        let coin = |purpose, share: Fraction| RandomEvent::new(random(purpose), share.get());
        Self {
            loss: coin(RandomStreamKind::Loss, path.loss.share),
            bursts: bursts(path.loss),
            bad: false,
            duplicate: coin(RandomStreamKind::Duplicate, path.duplicate),
            reorder: coin(RandomStreamKind::Reorder, path.reorder.share),
        }
    }

    /// Returns true if no random effect is configured.
    pub(super) fn quiet(&self) -> bool {
        self.loss.below == 0 && self.duplicate.below == 0 && self.reorder.below == 0
    }

    /// Returns the fate of the next segment.
    pub(super) fn draw(&mut self) -> SegmentFate {
        if self.quiet() {
            return SegmentFate::default();
        }
        SegmentFate {
            lost: self.lost(),
            duplicated: self.duplicate.toss(),
            held: self.reorder.toss(),
        }
    }

    fn lost(&mut self) -> bool {
        if let Some([fall, recover]) = self.bursts {
            let draw = self.loss.random.next();
            self.bad = match self.bad {
                true => draw >= recover,
                false => draw < fall,
            };
            return self.bad;
        }
        self.loss.toss()
    }
}

/// Thresholds of a chain that spends the part `share` of all packets in its bad state, and remains
/// there for `burst` packets on average.
fn bursts(loss: LossModel) -> Option<[u64; 2]> {
    let share = loss.share.get();
    let burst = loss.burst.filter(|_| share > 0.0)?.max(1.0);
    let fall = share / (1.0 - share) / burst;
    Some([threshold(fall), threshold(1.0 / burst)])
}
