//! Selects the preferred cipher and decides about zlib, each with its reason. Pure: all knowledge
//! comes as arguments.
//!
//! The user's set of allowed algorithms stays unchanged: only the order of ciphers changes, and
//! zlib is requested or not. docs/design/0017-choices.md.

use std::time::Duration;

use schedule::{LearnedConcurrency, TransferDirection};
use ssh::cipher::{cipher, preferred_order};

use crate::memory::findings::{BenchFindings, CompressionMethod};
use crate::memory::processor::ProcessorMeasurements;
use crate::report::{CipherOrderReason, CompressibilitySample, DecisionOrigin, ZlibReason};

/// A cipher moves before another only if it is at least this much faster, in hundredths; smaller
/// differences are measurement noise.
const FASTER: u64 = 105;
/// zlib must raise the rate by at least this factor, in hundredths, since it costs processor time
/// at both ends.
const WORTH: u64 = 120;
/// The most bytes per second that one core deflates with zlib level 6 on compressible data. On a
/// faster path the data need not be sampled.
const ZLIB_AT_MOST: u64 = 100_000_000;
/// The smallest transfer, in bytes, for which zlib can pay: with zlib nothing is sent early, which
/// costs a round trip.
const LEAST: u64 = 1 << 20;

/// A known value together with its age.
pub(super) type AgedValue<'a, T> = Option<(&'a T, Duration)>;

/// An order of ciphers and its reason.
#[derive(Clone, Debug)]
pub(super) struct ComputedCipherOrder {
    /// All supported ciphers.
    names: Vec<&'static str>,
    order: CipherOrderReason,
    origin: DecisionOrigin,
}

impl ComputedCipherOrder {
    /// All supported ciphers, in this order.
    pub(super) fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Notes that the user set the ciphers, whose order counts.
    pub(super) fn set_by_user(&mut self, origin: DecisionOrigin) {
        self.order = CipherOrderReason::Chosen;
        self.origin = origin;
    }

    /// The reason for the order, and who decided.
    pub(super) fn into_reason(self) -> (CipherOrderReason, DecisionOrigin) {
        (self.order, self.origin)
    }
}

/// Returns the order in which ciphers are offered if the user has not set one: by the rates
/// measured between the two ends, else by the rates of this processor, else by the processor's
/// instruction set.
pub(super) fn ciphers(
    has_aes: bool,
    findings: AgedValue<'_, BenchFindings>,
    processor: AgedValue<'_, ProcessorMeasurements>,
) -> ComputedCipherOrder {
    let usual = preferred_order(has_aes);
    let between = findings.map(|(found, age)| {
        let rates = rates(&usual, |name| found.rate_of(name));
        (rates, found.by.clone(), true, age)
    });
    let here = processor.map(|(known, age)| {
        let rates = rates(&usual, |name| known.rate_of(name));
        (rates, known.by.clone(), false, age)
    });
    // A single rate cannot be compared with anything.
    let best = between
        .into_iter()
        .chain(here)
        .find(|(rates, ..)| rates.len() > 1);
    match best {
        Some((rates, by, both_ends, age)) => ComputedCipherOrder {
            names: fastest_first(usual, &rates),
            order: CipherOrderReason::Measured {
                by,
                both_ends,
                rates,
            },
            origin: DecisionOrigin::Memory(age),
        },
        None => ComputedCipherOrder {
            names: usual,
            order: CipherOrderReason::Instructions(has_aes),
            origin: DecisionOrigin::Default,
        },
    }
}

/// Returns the rates of AEAD ciphers only: speed must not move a cipher with a separate MAC before
/// an AEAD cipher.
fn rates(names: &[&'static str], rate: impl Fn(&str) -> Option<u64>) -> Vec<(String, u64)> {
    let aead = |name: &&&str| cipher(name).is_some_and(|c| c.is_aead());
    let measured = names.iter().filter(aead);
    measured
        .filter_map(|name| Some(((*name).to_owned(), rate(name)?)))
        .collect()
}

/// Moves a cipher before another one if it is faster by more than [`FASTER`]; ciphers without a rate
/// keep their place.
fn fastest_first(mut left: Vec<&'static str>, rates: &[(String, u64)]) -> Vec<&'static str> {
    let rate = |name: &str| rates.iter().find(|(n, _)| n == name).map(|(_, rate)| *rate);
    let mut ordered = Vec::with_capacity(left.len());
    while let Some(first) = left.first().copied() {
        let fastest = left.iter().filter_map(|n| Some((rate(n)?, *n)));
        let fastest = fastest.max_by_key(|(rate, _)| *rate);
        let next = match (rate(first), fastest) {
            (Some(usual), Some((rate, name)))
                if rate.saturating_mul(100) > usual.saturating_mul(FASTER) =>
            {
                name
            }
            _ => first,
        };
        left.retain(|name| *name != next);
        ordered.push(next);
    }
    ordered
}

/// The facts on which the zlib decision is based.
pub(super) struct ZlibInputs<'a> {
    /// The user's Compression setting.
    set: Option<bool>,
    /// True if a longhaul is known at the far end, which compresses data in blocks instead.
    blocks: bool,
    /// The path's rate as learned from earlier uploads to this host.
    path: AgedValue<'a, LearnedConcurrency>,
    /// The measured results for this host, such as compression rates.
    findings: AgedValue<'a, BenchFindings>,
    /// The age of the last connection failure while zlib was in use without a request by the user.
    failed: Option<Duration>,
}

impl<'a> ZlibInputs<'a> {
    /// Inputs about a host without measured results: the user's setting, and whether a longhaul is
    /// known at the far end.
    pub(super) fn new(set: Option<bool>, blocks: bool) -> Self {
        Self {
            set,
            blocks,
            path: None,
            findings: None,
            failed: None,
        }
    }

    /// Adds what was measured: the rate learned from earlier uploads, the results for this host,
    /// and the age of the last connection failure with automatically selected zlib.
    pub(super) fn measured(
        self,
        path: AgedValue<'a, LearnedConcurrency>,
        findings: AgedValue<'a, BenchFindings>,
        failed: Option<Duration>,
    ) -> Self {
        Self {
            path,
            findings,
            failed,
            ..self
        }
    }
}

/// Decides whether to request zlib, and why. `look` samples the data and is called only if the
/// sample can change the decision; it fails if there is no local data or the data may not be read.
pub(super) fn zlib(
    case: &ZlibInputs<'_>,
    set_by: DecisionOrigin,
    look: impl FnOnce() -> Result<CompressibilitySample, ZlibReason>,
) -> (bool, ZlibReason, DecisionOrigin) {
    match case.set {
        // The longhaul at the far end already compresses the data in blocks.
        Some(true) if case.blocks => {
            return (false, ZlibReason::BlocksInstead, DecisionOrigin::Peer);
        }
        Some(on) => return (on, ZlibReason::Set, set_by),
        None if case.blocks => return (false, ZlibReason::BlocksInstead, DecisionOrigin::Peer),
        None => {}
    }
    if let Some(age) = case.failed {
        return (false, ZlibReason::Failed, DecisionOrigin::Memory(age));
    }
    let learned = case.path.map(|(path, age)| (path.rate, age));
    let measured = || {
        let (found, age) = case.findings?;
        Some((found.plain(TransferDirection::Up)?, age))
    };
    let known = learned.filter(|(rate, _)| *rate > 0).or_else(measured);
    let Some((path, age)) = known else {
        return (false, ZlibReason::PathUnknown, DecisionOrigin::Default);
    };
    if path.saturating_mul(WORTH) / 100 > ZLIB_AT_MOST {
        return (
            false,
            ZlibReason::PathFast(path),
            DecisionOrigin::Memory(age),
        );
    }
    let sample = match look() {
        Ok(sample) if sample.total < LEAST => {
            return (
                false,
                ZlibReason::Little(sample.total),
                DecisionOrigin::Measured,
            );
        }
        Ok(sample) => sample,
        Err(ZlibReason::Set) => return (false, ZlibReason::Set, DecisionOrigin::Config(None)),
        Err(why) => return (false, why, DecisionOrigin::Default),
    };
    let measured = case.findings.and_then(|(found, age)| {
        let row = found.compressed(CompressionMethod::Zlib, TransferDirection::Up, sample.left)?;
        Some((row.clone(), age))
    });
    if let Some((row, age)) = measured {
        return (
            row.paid(),
            ZlibReason::Found(row),
            DecisionOrigin::Memory(age),
        );
    }
    let expected = expected(path, sample);
    let pays = expected.saturating_mul(100) > path.saturating_mul(WORTH);
    let why = ZlibReason::Looked {
        path,
        sample,
        expected,
    };
    (pays, why, DecisionOrigin::Measured)
}

/// Returns the expected file bytes per second with zlib: the lower of the path's rate for
/// compressed data and one core's deflate rate, since a connection is one stream and one thread
/// deflates it.
fn expected(path: u64, sample: CompressibilitySample) -> u64 {
    let carried = path.saturating_mul(1000) / u64::from(sample.left.max(1));
    carried.min(sample.rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::findings::{BenchDataKind, CipherRate, CompressionResult};

    const GCM128: &str = "aes128-gcm@openssh.com";
    const GCM256: &str = "aes256-gcm@openssh.com";
    const CHACHA: &str = "chacha20-poly1305@openssh.com";
    const AGE: Duration = Duration::from_secs(3600);

    fn processor(rates: &[(&str, u64)]) -> ProcessorMeasurements {
        ProcessorMeasurements {
            ciphers: rates.iter().map(|(n, r)| ((*n).into(), *r)).collect(),
            ..ProcessorMeasurements::default()
        }
    }

    fn findings(rates: &[(&str, u64)]) -> BenchFindings {
        let row = |(name, rate): &(&str, u64)| CipherRate {
            cipher: (*name).into(),
            rate: *rate,
            ..CipherRate::default()
        };
        BenchFindings {
            ciphers: rates.iter().map(row).collect(),
            ..BenchFindings::default()
        }
    }

    #[test]
    fn instructions_decide_where_nothing_was_measured() {
        let with = ciphers(true, None, None);
        assert_eq!(with.names[..3], [GCM128, GCM256, CHACHA]);
        let without = ciphers(false, None, None);
        assert_eq!(without.names[0], CHACHA);
        assert_eq!(without.order, CipherOrderReason::Instructions(false));
        assert_eq!(without.origin, DecisionOrigin::Default);
    }

    #[test]
    fn what_was_measured_between_both_ends_goes_before_what_was_here() {
        let here = processor(&[(GCM128, 4000), (GCM256, 3000), (CHACHA, 1500)]);
        let chosen = ciphers(true, None, Some((&here, AGE)));
        assert_eq!(chosen.names[..3], [GCM128, GCM256, CHACHA]);
        assert_eq!(chosen.origin, DecisionOrigin::Memory(AGE));
        // The peer's processor has no AES instructions.
        let both = findings(&[(GCM128, 90), (GCM256, 70), (CHACHA, 250)]);
        let chosen = ciphers(true, Some((&both, AGE)), Some((&here, AGE)));
        assert_eq!(chosen.names[..3], [CHACHA, GCM128, GCM256]);
        let between = matches!(
            chosen.order,
            CipherOrderReason::Measured {
                both_ends: true,
                ..
            }
        );
        assert!(between);
    }

    #[test]
    fn noise_changes_no_order_and_one_figure_says_nothing() {
        let near = processor(&[(GCM128, 100), (GCM256, 104), (CHACHA, 50)]);
        let chosen = ciphers(true, None, Some((&near, AGE)));
        assert_eq!(chosen.names, preferred_order(true));
        let one = processor(&[(CHACHA, 9000)]);
        let chosen = ciphers(true, None, Some((&one, AGE)));
        assert_eq!(chosen.names, preferred_order(true));
        assert_eq!(chosen.order, CipherOrderReason::Instructions(true));
    }

    #[test]
    fn speed_puts_no_cipher_with_a_mac_before_one_without_and_loses_none() {
        let all = [(GCM128, 100), (CHACHA, 300), ("aes128-ctr", 900)];
        let chosen = ciphers(true, Some((&findings(&all), AGE)), None);
        assert_eq!(chosen.names[..3], [CHACHA, GCM128, GCM256]);
        let mut names = chosen.names.clone();
        let mut usual = preferred_order(true);
        names.sort_unstable();
        usual.sort_unstable();
        assert_eq!(names, usual);
    }

    fn path(rate: u64) -> LearnedConcurrency {
        LearnedConcurrency {
            direction: TransferDirection::Up,
            connections: 1,
            channels: 1,
            rate,
            rtt_us: 1000,
            at: 0,
        }
    }

    fn text() -> CompressibilitySample {
        CompressibilitySample {
            files: 1,
            bytes: 100_000,
            left: 330,
            rate: 50_000_000,
            total: 100 << 20,
        }
    }

    fn decide(
        set: Option<bool>,
        blocks: bool,
        rate: Option<u64>,
        sample: Result<CompressibilitySample, ZlibReason>,
    ) -> (bool, ZlibReason) {
        let learned = rate.map(path);
        let case = ZlibInputs {
            set,
            blocks,
            path: learned.as_ref().map(|l| (l, AGE)),
            findings: None,
            failed: None,
        };
        let (on, why, _) = zlib(&case, DecisionOrigin::Default, || sample);
        (on, why)
    }

    #[test]
    fn what_the_user_set_is_done_and_nothing_looked_at() {
        for on in [true, false] {
            let case = ZlibInputs {
                set: Some(on),
                blocks: false,
                path: None,
                findings: None,
                failed: Some(AGE),
            };
            let decided = zlib(&case, DecisionOrigin::Flag("-C"), || panic!("looked"));
            assert_eq!(decided, (on, ZlibReason::Set, DecisionOrigin::Flag("-C")));
        }
        let (on, why) = decide(Some(true), true, None, Err(ZlibReason::Unseen));
        assert!(!on && why == ZlibReason::BlocksInstead);
    }

    /// Regression test: a copy of text to a host on a slow path failed every time with the zlib
    /// that it had selected itself.
    #[test]
    fn zlib_that_failed_is_not_chosen_again() {
        let path = path(12_500_000);
        let case = |failed| ZlibInputs {
            set: None,
            blocks: false,
            path: Some((&path, AGE)),
            findings: None,
            failed,
        };
        assert!(zlib(&case(None), DecisionOrigin::Default, || Ok(text())).0);
        let decided = zlib(&case(Some(AGE)), DecisionOrigin::Default, || {
            panic!("looked")
        });
        assert_eq!(
            decided,
            (false, ZlibReason::Failed, DecisionOrigin::Memory(AGE))
        );
        // A user who requests zlib still gets it.
        let asked = ZlibInputs {
            set: Some(true),
            ..case(Some(AGE))
        };
        assert!(zlib(&asked, DecisionOrigin::Flag("-C"), || panic!("looked")).0);
    }

    #[test]
    fn zlib_is_for_slow_paths_and_data_that_become_smaller() {
        let on = |rate, sample| decide(None, false, rate, sample);
        assert!(on(Some(12_500_000), Ok(text())).0);
        let random = CompressibilitySample {
            left: 1001,
            rate: 25_000_000,
            ..text()
        };
        assert!(!on(Some(12_500_000), Ok(random)).0);
        // The path is as fast as one core deflates.
        assert!(!on(Some(45_000_000), Ok(text())).0);
        let fast = on(Some(118_000_000), Ok(text()));
        assert_eq!(fast, (false, ZlibReason::PathFast(118_000_000)));
        assert_eq!(on(None, Ok(text())), (false, ZlibReason::PathUnknown));
        let unseen = on(Some(12_500_000), Err(ZlibReason::Unseen));
        assert_eq!(unseen, (false, ZlibReason::Unseen));
        let little = CompressibilitySample {
            total: 1000,
            ..text()
        };
        let little = on(Some(12_500_000), Ok(little));
        assert_eq!(little, (false, ZlibReason::Little(1000)));
        let ours = decide(None, true, Some(12_500_000), Ok(text()));
        assert_eq!(ours, (false, ZlibReason::BlocksInstead));
    }

    #[test]
    fn what_was_measured_for_such_data_decides() {
        let row = |rate| CompressionResult {
            data: BenchDataKind::Text,
            method: CompressionMethod::Zlib,
            direction: TransferDirection::Up,
            left: 300,
            rate,
            plain: 12_000_000,
        };
        let learned = path(12_000_000);
        // If no copy has learned the path's rate, the measured rate is used instead.
        for (rate, pays, learned) in [
            (30_000_000, true, Some(&learned)),
            (11_000_000, false, Some(&learned)),
            (30_000_000, true, None),
        ] {
            let found = BenchFindings {
                compression: vec![row(rate)],
                ..BenchFindings::default()
            };
            let case = ZlibInputs {
                set: None,
                blocks: false,
                path: learned.map(|l| (l, AGE)),
                findings: Some((&found, AGE)),
                failed: None,
            };
            let (on, why, origin) = zlib(&case, DecisionOrigin::Default, || Ok(text()));
            assert_eq!((on, why), (pays, ZlibReason::Found(row(rate))));
            assert_eq!(origin, DecisionOrigin::Memory(AGE));
        }
    }
}
