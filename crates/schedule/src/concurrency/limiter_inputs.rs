//! Finds the resource that limits the transfer.

use diagnose::{FurtherConnectionEffect, LossFacts, ServerFacts, TransferFacts};

use super::history::IntervalHistory;
use super::plan::LONG;
use super::{ConcurrencyConfig, Limiter, TransferDirection};

/// Share of a processor below which other programs keep the machine busy.
const OWN: f64 = 0.5;
/// Idle processor time that another connection needs on a short path, as a share of the time that a
/// connection takes. With both ends on two processors that were one sixth idle, a second connection
/// cost 13 to 35 % of the rate for 0.4 s before it was closed.
const BEARS: f64 = 0.5;
/// [`BEARS`] if both ends are known to be one machine: the far end works as much as this one.
const BEARS_BOTH: f64 = 2.0;
/// Idle share below which processors count as busy.
const BUSY: f64 = 0.08;
/// Share of busy processors above which the copy itself keeps them busy.
const GOOD_PART: f64 = 0.25;

/// Settings and measurements from which the resource that limits the transfer is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimiterInputs<'a> {
    config: &'a ConcurrencyConfig,
    history: &'a IntervalHistory,
    /// The user's rate limit held data back for most of the last interval.
    throttled: bool,
    /// The last trial showed that more brings nothing.
    sated: bool,
    /// No further connection can be had.
    alone: bool,
}

impl<'a> LimiterInputs<'a> {
    /// Describes a controller whose last trial brought nothing (`sated`), that can have no further
    /// connection (`alone`), or that the user's limit held back (`throttled`).
    pub(super) fn new(
        config: &'a ConcurrencyConfig,
        history: &'a IntervalHistory,
        (sated, alone, throttled): (bool, bool, bool),
    ) -> Self {
        Self {
            config,
            history,
            throttled,
            sated,
            alone,
        }
    }

    /// Returns true if the user's limit determines the rate.
    pub(super) fn is_limited(&self) -> bool {
        let set = self.config.limit;
        self.throttled || set.is_some_and(|l| self.history.figures().shown().rate >= 0.9 * l as f64)
    }

    /// Returns true if this machine has processor time for more connections. On a long path the
    /// load of other programs does not matter, since filling the path costs little: a satellite
    /// path needed a tenth of a core, and used to stay half empty beside a compiler. On a short
    /// path the far end may be this machine, and the idle time has to suffice for another
    /// connection at both ends.
    pub(super) fn has_cpu(&self) -> bool {
        let shown = self.history.figures().shown();
        let processors = f64::from(self.config.processors);
        if shown.cpu >= 0.9 * processors {
            return false;
        }
        let Some(idle) = shown.idle else { return true };
        let busy = idle <= BUSY;
        if self.history.trip() >= LONG {
            return !busy || shown.cpu < OWN;
        }
        let each = shown.cpu / f64::from(shown.connections.max(1));
        let bears = match self.config.one_machine {
            true => BEARS_BOTH,
            false => BEARS,
        };
        !busy && idle * processors >= bears * each
    }

    /// Returns true if the processors available to this process are busy, and this process uses a
    /// large share of them.
    fn fills_processors(&self) -> bool {
        let shown = self.history.figures().shown();
        let share = shown.cpu / f64::from(self.config.processors.max(1));
        shown.idle.is_some_and(|idle| idle <= BUSY) && share > GOOD_PART
    }

    /// Returns the resource that limits the transfer now.
    pub(super) fn limiter(&self) -> Limiter {
        match self.history.intervals() < 2 {
            true => Limiter::Unknown,
            false => diagnose::limiter(&self.facts()),
        }
    }

    /// Collects the facts from which the limiter is decided.
    fn facts(&self) -> TransferFacts {
        let f = self.history.figures();
        let figures = *f.shown();
        TransferFacts {
            up: self.config.direction == TransferDirection::Up,
            figures,
            held_to: self.is_limited().then(|| {
                let set = self.config.limit;
                let set = set.is_some_and(|l| figures.rate >= 0.9 * l as f64);
                match self.config.background && !set {
                    true => Limiter::OtherTraffic,
                    false => Limiter::UserLimit,
                }
            }),
            processors_full: !self.has_cpu() || self.fills_processors(),
            server: ServerFacts {
                lags: f.server_lags(self.config.direction),
                holds_window: false,
                share: f.server_share(),
            },
            queued_lately: self.history.has_queued_lately(),
            losses: LossFacts {
                lately: self.history.has_lost_lately(),
                borne: f.is_borne(),
            },
            growth: match self.alone || self.config.connections.is_some() {
                _ if self.sated => FurtherConnectionEffect::Sated,
                true => FurtherConnectionEffect::Fixed,
                false => FurtherConnectionEffect::Open,
            },
            slow_start: f.is_in_slow_start(),
            round_trip: self.history.trip(),
            receive_buffer: self.config.buffer,
        }
    }

    /// Returns true if packets seem to be lost at random, so that each connection brings its share.
    ///
    /// Connections that tolerate losses gain from more connections too. BBR holds its window for a
    /// round trip at each loss, so that its slow start doubles only every second one, and a lost
    /// packet stops all channels of its connection: at 1 GiB, 1 % and 100 ms, five connections took
    /// two seconds to reach half of the rate.
    pub(super) fn loses_at_random(&self) -> bool {
        let borne = self.history.figures().bears_losses() && !self.history.figures().queueing();
        self.limiter() == Limiter::Loss || (borne && !self.history.has_queued_lately())
    }
}
