//! Number of stripes of a pair, and the uplinks that they use.

use std::fmt::Write as _;
use std::io;
use std::time::Instant;

use pair::{FrameDecoder, StripeController, StripeId, StripeSample};

use super::{
    EVEN, GRACE, LONGEST_RETRY, MOST_LEGS, Stripe, StripeContext, StripeOpener, StripeSet, explain,
};
use crate::pump::leg::Leg;

impl StripeSet {
    /// Opens and retires stripes to match the wanted number, and ends the pair if none is left.
    pub(super) fn keep_legs(&mut self, around: &StripeContext<'_>) -> io::Result<()> {
        if let Some(alone) = self.alone
            && self.now >= alone + GRACE
            && !self.session.is_over()
        {
            // The last acknowledgement of the relay that opened the stripes may be lost together
            // with them. If all was sent and both ends were passed on, the session counts as
            // complete: a reset would not help a server that has ended, and would discard data in
            // the kernel's buffer that the client was told had arrived. The opening relay has to
            // report an error, as an orderly end there means success to the client.
            if self.asks.is_none() && self.session.presume_over() {
                tracing::info!(
                    "the connection to the peer relay was lost; it may not have received the end \
                     of the data"
                );
                return Ok(());
            }
            let why = "all TCP connections (stripes) to the peer relay were lost: check the \
                       network, and that the peer relay runs";
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, why));
        }
        if !self.heard || self.session.is_over() {
            return Ok(());
        }
        let rtt = self.rtt();
        let Some(asks) = &mut self.asks else {
            return Ok(());
        };
        if asks.growth.looks() && self.now >= asks.looked + StripeController::interval(rtt) {
            let full = self.session.full().is_some_and(|full| full >= asks.looked);
            let look = StripeSample {
                bytes: self.session.progress(),
                full,
                legs: self.session.carrying(),
            };
            asks.growth.look(look, self.now);
            asks.looked = self.now;
        }
        let (wanted, not_before) = (asks.growth.wanted().min(MOST_LEGS), asks.not_before);
        if self.now >= asks.even
            && let Some(nth) = self.uneven()
        {
            self.try_again(nth, around);
        }
        let carrying = self.session.carrying();
        if carrying > wanted {
            for _ in wanted..carrying {
                if let Some(id) = self.most_dispensable() {
                    self.session.retire(id);
                }
            }
            return Ok(());
        }
        if self.now < not_before {
            return Ok(());
        }
        let opening = self.members.iter().flatten().filter(|m| !m.open).count();
        for _ in carrying + opening..wanted {
            if let Err(e) = self.open(around) {
                tracing::debug!(
                    "cannot open another TCP connection (stripe) to the peer relay: {e}"
                );
                if let Some(asks) = &mut self.asks {
                    asks.not_before = self.now + asks.retry;
                    asks.retry = (asks.retry * 2).min(LONGEST_RETRY);
                }
                break;
            }
        }
        Ok(())
    }

    /// Opens one more stripe, by the usable uplink that has the fewest.
    fn open(&mut self, around: &StripeContext<'_>) -> io::Result<()> {
        let Some(asks) = &self.asks else {
            return Ok(());
        };
        let legs = |nth| self.legs_by(nth);
        let order = asks
            .uplinks
            .order(asks.to.ip(), asks.uplinks.turn(), &legs, self.now);
        let mut done = Ok(());
        for uplink in order {
            done = self.open_by(uplink, around);
            match (&done, &self.asks) {
                (Err(e), Some(asks)) => asks.failed(uplink, e, self.now),
                _ => break,
            }
        }
        done
    }

    fn open_by(&mut self, uplink: Option<usize>, around: &StripeContext<'_>) -> io::Result<()> {
        let Some(asks) = &self.asks else {
            return Ok(());
        };
        let mut leg = Leg::socket((around.connect)(asks.to, uplink)?, true);
        leg.ask_tls(asks.facing.opener(), "pair")?;
        self.add_asked(leg, uplink, (around.registry, around.token))
    }

    /// Adds a stripe on this uplink whose handshake is still to be made.
    pub(crate) fn add_asked(
        &mut self,
        leg: Leg,
        uplink: Option<usize>,
        at: (&mio::Registry, usize),
    ) -> io::Result<()> {
        self.add(leg, false, FrameDecoder::default(), None, at)?;
        let last = StripeId(self.count.wrapping_sub(1));
        let mut members = self.members.iter_mut().flatten();
        if let Some(member) = members.find(|member| member.id == last) {
            member.uplink = uplink;
        }
        Ok(())
    }

    /// Returns an uplink that has fewer stripes than others, because it lost them or could not open
    /// any; the uplink may work again.
    pub(super) fn uneven(&self) -> Option<usize> {
        let asks = self.asks.as_ref()?;
        let leading = asks.uplinks.leading(asks.to.ip());
        if leading < 2 {
            return None;
        }
        let order = asks.uplinks.order(asks.to.ip(), 0, &|_| 0, self.now);
        let least = asks.growth.wanted().min(MOST_LEGS) / leading;
        let mut order = order.into_iter().flatten();
        order.find(|nth| self.legs_by(*nth) < least)
    }

    /// Opens as many stripes on this uplink as the others have; surplus stripes are retired once
    /// these are open.
    fn try_again(&mut self, nth: usize, around: &StripeContext<'_>) {
        let now = self.now;
        let Some(asks) = &mut self.asks else {
            return;
        };
        asks.even = now + EVEN;
        let leading = asks.uplinks.leading(asks.to.ip()).max(1);
        let missing = asks.growth.wanted().min(MOST_LEGS) / leading;
        let free = self.members.iter().filter(|place| place.is_none()).count();
        for _ in self.legs_by(nth)..missing.min(self.legs_by(nth) + free) {
            let done = self.open_by(Some(nth), around);
            if let (Err(e), Some(asks)) = (done, &self.asks) {
                asks.failed(Some(nth), &e, now);
                return;
            }
        }
    }

    /// Counts the stripes on this uplink that carry data or are being opened.
    fn legs_by(&self, nth: usize) -> usize {
        let by = self.members.iter().flatten();
        let by = by.filter(|member| member.uplink == Some(nth));
        by.filter(|member| !member.open || self.session.carries(member.id))
            .count()
    }

    /// Returns the newest stripe of the uplink that has the most.
    fn most_dispensable(&self) -> Option<StripeId> {
        let open = self.members.iter().flatten().filter(|member| member.open);
        let carry = open.filter(|member| self.session.carries(member.id));
        let crowded = |member: &Stripe| member.uplink.map_or(0, |nth| self.legs_by(nth));
        let last = carry.max_by_key(|member| (crowded(member), member.id));
        last.map(|member| member.id)
    }

    /// Returns the bytes that each uplink has carried, for the log; empty if there is only one.
    pub(super) fn shares(&self) -> String {
        let mut shown = String::new();
        let Some(asks) = &self.asks else {
            return shown;
        };
        if asks.uplinks.all().len() < 2 {
            return shown;
        }
        for (nth, own) in asks.uplinks.all().iter().enumerate() {
            let by = self.members.iter().flatten();
            let by = by.filter(|member| member.uplink == Some(nth));
            let gone = asks.carried.get(nth).copied().unwrap_or_default();
            let bytes = gone + by.clone().map(|member| member.moved).sum::<u64>();
            let legs = by.filter(|member| member.open).count();
            // Writing to a String cannot fail.
            let _ = write!(shown, "; from {own}: {legs} stripes, {bytes} bytes");
        }
        shown
    }
}

impl StripeOpener {
    /// Handles a stripe that was opened.
    pub(super) fn opened(&self, member: &Stripe) {
        self.uplinks.answered(member.uplink);
        if let Some(own) = self.several(member) {
            explain(&self.facing, &self.target, &format!("{own} connected"));
        }
    }

    /// Handles a stripe that failed.
    pub(super) fn lost(&mut self, member: &Stripe, why: &io::Error, now: Instant) {
        self.uplinks.failed(member.uplink, now);
        self.even = now + EVEN;
        if let Some(own) = self.several(member) {
            explain(&self.facing, &self.target, &format!("{own} lost: {why}"));
        }
    }

    fn failed(&self, uplink: Option<usize>, why: &io::Error, now: Instant) {
        self.uplinks.failed(uplink, now);
        let what = self.uplinks.named(uplink, &"cannot open another stripe");
        explain(&self.facing, &self.target, &format!("{what}: {why}"));
    }

    /// Names the stripe and its uplink for the log, if there are several uplinks.
    fn several(&self, member: &Stripe) -> Option<String> {
        let of = |all: usize| (all > 1).then(|| format!("stripe {}", u64::from(member.id.0) + 1));
        let leg = of(self.uplinks.all().len())?;
        Some(self.uplinks.named(member.uplink, &leg))
    }
}
