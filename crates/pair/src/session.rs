//! State of one connection that is carried over several stripes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::incoming::StripedReceiver;
use crate::outgoing::StripedSender;
use crate::{AbortReason, PairError, StripeFrame, StripeId};

/// Minimum interval between two reports that all stripes are full.
const TELL_FULL: Duration = Duration::from_millis(100);

/// Settings of a [`StripedConnection`], fixed for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripedConnectionConfig {
    /// Maximum buffer for each direction in bytes: received and not read, or sent and not
    /// acknowledged.
    pub most: u64,
    /// Permits compressed frames.
    pub zstd: bool,
    /// This relay accepts the stripes; the peer relay opens them and is told when all are full.
    pub answers: bool,
}

/// One connection over several stripes.
///
/// Received frames go to [`StripedConnection::handle`]. When a stripe can be written to,
/// [`StripedConnection::poll`] returns the bytes to write. [`StripedConnection::deadline`] is the
/// time of the next poll without an event.
#[derive(Debug)]
pub struct StripedConnection {
    config: StripedConnectionConfig,
    incoming: StripedReceiver,
    outgoing: StripedSender,
    legs: BTreeMap<StripeId, StripeState>,
    /// Time at which all stripes were last full, here or at the peer relay.
    full: Option<Instant>,
    full_told: Option<Instant>,
    /// A `Full` frame is to be sent.
    tell_full: bool,
    aborted: Option<AbortReason>,
}

/// Protocol state of one stripe: its orderly end by `Bye` in both directions, and its last sign of
/// life.
#[derive(Debug, Default)]
struct StripeState {
    /// The stripe gets no more data.
    retiring: bool,
    /// `Bye` was sent on this stripe.
    bye_sent: bool,
    bye_came: bool,
    /// Time of the last frame on this stripe.
    heard: Option<Instant>,
}

impl StripedConnection {
    /// Creates a session without stripes.
    pub fn new(config: StripedConnectionConfig) -> Self {
        Self {
            config,
            incoming: StripedReceiver::new(config.most),
            outgoing: StripedSender::new(config.most, config.zstd),
            legs: BTreeMap::new(),
            full: None,
            full_told: None,
            tell_full: false,
            aborted: None,
        }
    }

    /// Adds a stripe.
    pub fn add(&mut self, leg: StripeId) {
        self.legs.insert(leg, StripeState::default());
    }

    /// Removes a stripe that was closed. Data that it may not have delivered is sent on others.
    pub fn remove(&mut self, leg: StripeId) {
        let Some(was) = self.legs.remove(&leg) else {
            return;
        };
        // A peer relay that answered `Bye` has received everything that was sent before it.
        if !(was.bye_sent && was.bye_came) {
            self.outgoing.lose(leg);
            self.incoming.tell_again();
        }
    }

    /// Retires a stripe: it gets no more data, and is closed when both relays have sent `Bye`.
    pub fn retire(&mut self, leg: StripeId) {
        if let Some(leg) = self.legs.get_mut(&leg) {
            leg.retiring = true;
        }
    }

    /// Reports if `Bye` has passed in both directions, so that the stripe can be closed.
    pub fn has_parted(&self, leg: StripeId) -> bool {
        let leg = self.legs.get(&leg);
        leg.is_some_and(|leg| leg.bye_sent && leg.bye_came)
    }

    /// Reports if the stripe carries data and is not retiring.
    pub fn carries(&self, leg: StripeId) -> bool {
        self.legs.get(&leg).is_some_and(|leg| !leg.retiring)
    }

    /// Returns the stripe with the most recently received frame, without retiring ones and `but`.
    pub fn heard_last(&self, but: Option<StripeId>) -> Option<StripeId> {
        let legs = self.legs.iter();
        let others = legs.filter(|(id, leg)| Some(**id) != but && !leg.retiring);
        let last = others.max_by_key(|(_, leg)| leg.heard);
        last.map(|(id, _)| *id)
    }

    /// Counts the stripes that are not retiring.
    pub fn carrying(&self) -> usize {
        self.legs.values().filter(|leg| !leg.retiring).count()
    }

    /// Handles a received frame.
    ///
    /// # Errors
    /// Returns the protocol violation; the session is to be aborted.
    pub fn handle(
        &mut self,
        leg: StripeId,
        frame: &StripeFrame,
        now: Instant,
    ) -> Result<(), PairError> {
        let own = self.legs.get_mut(&leg).filter(|leg| !leg.bye_came);
        own.ok_or(PairError::Misplaced)?.heard = Some(now);
        match frame {
            StripeFrame::Hello { .. } => return Err(PairError::Misplaced),
            StripeFrame::Data(piece) => self.incoming.piece(piece, now)?,
            StripeFrame::End(at) => self.incoming.end(*at)?,
            StripeFrame::Ack { received, limit } => self.outgoing.ack(*received, *limit, now)?,
            StripeFrame::Blocked(limit) => self.incoming.blocked(*limit),
            StripeFrame::Full => self.full = Some(now),
            StripeFrame::Bye => {
                if let Some(leg) = self.legs.get_mut(&leg) {
                    (leg.bye_came, leg.retiring) = (true, true);
                }
            }
            StripeFrame::Abort(why) => self.aborted = Some(*why),
        }
        Ok(())
    }

    /// Returns the next bytes for a stripe that can be written to. The clock is read again around
    /// compression, which takes time.
    pub fn poll(&mut self, leg: StripeId, clock: &mut dyn FnMut() -> Instant) -> Option<Bytes> {
        let own = self.legs.get_mut(&leg)?;
        if own.bye_sent {
            return None;
        }
        if own.retiring {
            own.bye_sent = true;
            return Some(StripeFrame::Bye.encode());
        }
        let now = clock();
        let beside = self.outgoing.wants_leg();
        if let Some((received, limit)) = self.incoming.ack(beside, now) {
            return Some(StripeFrame::Ack { received, limit }.encode());
        }
        if let Some(limit) = self.outgoing.blocked() {
            return Some(StripeFrame::Blocked(limit).encode());
        }
        if std::mem::take(&mut self.tell_full) {
            return Some(StripeFrame::Full.encode());
        }
        let again = self.brings_again(leg, now);
        self.outgoing.poll(leg, again, clock)
    }

    /// Reports if this stripe is to repeat the frame that another one has kept for too long. The
    /// stripe with the most recent frame is preferred, since others may be silent too; after twice
    /// the timeout any stripe will do.
    fn brings_again(&self, leg: StripeId, now: Instant) -> bool {
        let Some((slow, very)) = self.outgoing.overdue(now).filter(|(slow, _)| *slow != leg) else {
            return false;
        };
        very || self.heard_last(Some(slow)) == Some(leg)
    }

    /// Records that more data is waiting than all stripes accept.
    pub fn note_full(&mut self, now: Instant) {
        self.full = Some(now);
        self.outgoing.full(now);
        let told = self.full_told.is_some_and(|told| now < told + TELL_FULL);
        if self.config.answers && !told {
            self.full_told = Some(now);
            self.tell_full = true;
        }
    }

    /// Returns the time at which all stripes were last full, at either relay.
    pub fn full(&self) -> Option<Instant> {
        self.full
    }

    /// Reports if there is something to send once a stripe can be written to.
    pub fn wants_leg(&self) -> bool {
        self.outgoing.wants_leg()
    }

    /// Returns the number of bytes that [`StripedConnection::write`] accepts now.
    pub fn room(&self) -> usize {
        self.outgoing.room()
    }

    /// Takes as many bytes as there is room for, and returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.outgoing.write(bytes)
    }

    /// Ends the outgoing stream.
    pub fn finish(&mut self) {
        self.outgoing.finish();
    }

    /// Reports if the peer relay has all written bytes and has passed on the end.
    pub fn is_sent(&self) -> bool {
        self.outgoing.is_over()
    }

    /// Reads received bytes in order; returns 0 if there are none.
    pub fn read(&mut self, into: &mut [u8], now: Instant) -> usize {
        self.incoming.read(into, now)
    }

    /// Reports if there are bytes or an end to read.
    pub fn is_readable(&self) -> bool {
        self.incoming.is_readable()
    }

    /// Reports if everything was read and the stream has ended.
    pub fn is_ended(&self) -> bool {
        self.incoming.is_ended()
    }

    /// Records that the end of the stream was passed on; it is acknowledged to the peer relay only
    /// now.
    pub fn pass_on_end(&mut self) {
        self.incoming.pass_on_end();
    }

    /// Reports if both directions are complete; only the farewell is left to send.
    pub fn is_over(&self) -> bool {
        self.outgoing.is_over() && self.incoming.is_over()
    }

    /// Handles the loss of all stripes. Returns true, and ends the session, if everything was sent
    /// and passed on: the last message of the peer relay has no answer, and the peer relay closes
    /// after it.
    pub fn presume_over(&mut self) -> bool {
        self.incoming.is_over() && self.outgoing.presume_over()
    }

    /// Returns the final acknowledgement, to be sent on each stripe, since it has no answer.
    pub fn farewell(&mut self, now: Instant) -> Bytes {
        self.incoming.tell_again();
        match self.incoming.ack(true, now) {
            Some((received, limit)) => StripeFrame::Ack { received, limit }.encode(),
            None => Bytes::new(),
        }
    }

    /// Returns the reason if the peer relay has aborted the session.
    pub fn aborted(&self) -> Option<AbortReason> {
        self.aborted
    }

    /// Returns the bytes that have reached their other end, both directions.
    pub fn progress(&self) -> u64 {
        self.outgoing.acked() + self.incoming.received()
    }

    /// Returns the bytes of frames sent, and of the payload in them; retransmissions are not
    /// counted.
    pub fn carried(&self) -> (u64, u64) {
        self.outgoing.carried
    }

    /// Returns the time at which stripes are to be polled without an event.
    pub fn deadline(&self) -> Option<Instant> {
        let again = (self.carrying() > 1).then(|| self.outgoing.deadline());
        let times = [self.incoming.deadline(), again.flatten()];
        times.into_iter().flatten().min()
    }
}
