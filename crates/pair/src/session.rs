//! One connection over several legs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::{Frame, LegId, PairError, Why};

/// The other half is told that often that all legs are full.
const TELL_FULL: Duration = Duration::from_millis(100);

/// What a session is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most that is held of each direction, in bytes: of what came and is not read, and of
    /// what went and is not acknowledged.
    pub most: u64,
    /// Frames may be deflated.
    pub zstd: bool,
    /// The other half opens legs, and is told when they are full.
    pub answers: bool,
}

/// One connection over several legs.
///
/// What comes on a leg is given to [`StripedConnection::handle`]; whenever a leg can be written to,
/// [`StripedConnection::poll`] has what to write. Times are those of [`StripedConnection::deadline`].
#[derive(Debug)]
pub struct StripedConnection {
    config: Config,
    incoming: Incoming,
    outgoing: Outgoing,
    legs: BTreeMap<LegId, Leg>,
    /// When all legs were full last, here or there.
    full: Option<Instant>,
    full_told: Option<Instant>,
    /// That is to be told.
    tell_full: bool,
    aborted: Option<Why>,
}

#[derive(Debug, Default)]
struct Leg {
    /// It is to carry no more.
    retiring: bool,
    /// The other half was told so.
    bye_sent: bool,
    bye_came: bool,
    /// When something has come on it last.
    heard: Option<Instant>,
}

impl StripedConnection {
    /// With no legs.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            incoming: Incoming::new(config.most),
            outgoing: Outgoing::new(config.most, config.zstd),
            legs: BTreeMap::new(),
            full: None,
            full_told: None,
            tell_full: false,
            aborted: None,
        }
    }

    /// There is one more leg.
    pub fn add(&mut self, leg: LegId) {
        self.legs.insert(leg, Leg::default());
    }

    /// A leg is gone. What it may not have brought goes on others.
    pub fn remove(&mut self, leg: LegId) {
        let Some(was) = self.legs.remove(&leg) else {
            return;
        };
        // Whoever answers a farewell has all that came before it.
        if !(was.bye_sent && was.bye_came) {
            self.outgoing.lose(leg);
            self.incoming.tell_again();
        }
    }

    /// A leg is to carry no more, and to be closed when both ends have said so.
    pub fn retire(&mut self, leg: LegId) {
        if let Some(leg) = self.legs.get_mut(&leg) {
            leg.retiring = true;
        }
    }

    /// Whether nothing more comes or goes on this leg.
    pub fn has_parted(&self, leg: LegId) -> bool {
        let leg = self.legs.get(&leg);
        leg.is_some_and(|leg| leg.bye_sent && leg.bye_came)
    }

    /// Whether this leg carries, and is not to be closed.
    pub fn carries(&self, leg: LegId) -> bool {
        self.legs.get(&leg).is_some_and(|leg| !leg.retiring)
    }

    /// The leg that a frame has come on last, of those that carry and are not `but`.
    pub fn heard_last(&self, but: Option<LegId>) -> Option<LegId> {
        let legs = self.legs.iter();
        let others = legs.filter(|(id, leg)| Some(**id) != but && !leg.retiring);
        let last = others.max_by_key(|(_, leg)| leg.heard);
        last.map(|(id, _)| *id)
    }

    /// Legs that carry.
    pub fn carrying(&self) -> usize {
        self.legs.values().filter(|leg| !leg.retiring).count()
    }

    /// A frame has come.
    ///
    /// # Errors
    /// It must not; the session is to be cut off.
    pub fn handle(&mut self, leg: LegId, frame: &Frame, now: Instant) -> Result<(), PairError> {
        let own = self.legs.get_mut(&leg).filter(|leg| !leg.bye_came);
        own.ok_or(PairError::Misplaced)?.heard = Some(now);
        match frame {
            Frame::Hello { .. } => return Err(PairError::Misplaced),
            Frame::Data(piece) => self.incoming.piece(piece, now)?,
            Frame::End(at) => self.incoming.end(*at)?,
            Frame::Ack { received, limit } => self.outgoing.ack(*received, *limit, now)?,
            Frame::Blocked(limit) => self.incoming.blocked(*limit),
            Frame::Full => self.full = Some(now),
            Frame::Bye => {
                if let Some(leg) = self.legs.get_mut(&leg) {
                    (leg.bye_came, leg.retiring) = (true, true);
                }
            }
            Frame::Abort(why) => self.aborted = Some(*why),
        }
        Ok(())
    }

    /// The next bytes for a leg that can be written to. The clock is asked again around what
    /// takes time.
    pub fn poll(&mut self, leg: LegId, clock: &mut dyn FnMut() -> Instant) -> Option<Bytes> {
        let own = self.legs.get_mut(&leg)?;
        if own.bye_sent {
            return None;
        }
        if own.retiring {
            own.bye_sent = true;
            return Some(Frame::Bye.encode());
        }
        let now = clock();
        let beside = self.outgoing.wants_leg();
        if let Some((received, limit)) = self.incoming.ack(beside, now) {
            return Some(Frame::Ack { received, limit }.encode());
        }
        if let Some(limit) = self.outgoing.blocked() {
            return Some(Frame::Blocked(limit).encode());
        }
        if std::mem::take(&mut self.tell_full) {
            return Some(Frame::Full.encode());
        }
        let again = self.brings_again(leg, now);
        self.outgoing.poll(leg, again, clock)
    }

    /// Whether this leg is to bring what another one has kept for too long: the one on which
    /// something has come last, since others may have fallen silent too; if that one takes
    /// nothing either, whichever does.
    fn brings_again(&self, leg: LegId, now: Instant) -> bool {
        let Some((slow, very)) = self.outgoing.overdue(now).filter(|(slow, _)| *slow != leg) else {
            return false;
        };
        very || self.heard_last(Some(slow)) == Some(leg)
    }

    /// There is more to send than all legs take.
    pub fn note_full(&mut self, now: Instant) {
        self.full = Some(now);
        self.outgoing.full(now);
        let told = self.full_told.is_some_and(|told| now < told + TELL_FULL);
        if self.config.answers && !told {
            self.full_told = Some(now);
            self.tell_full = true;
        }
    }

    /// When all legs were full last, of this half or of the other.
    pub fn full(&self) -> Option<Instant> {
        self.full
    }

    /// Whether there is something to send as soon as a leg can be written to.
    pub fn wants_leg(&self) -> bool {
        self.outgoing.wants_leg()
    }

    /// How much [`StripedConnection::write`] takes now.
    pub fn room(&self) -> usize {
        self.outgoing.room()
    }

    /// Takes what there is room for, and says how much that is.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.outgoing.write(bytes)
    }

    /// Nothing more is written.
    pub fn finish(&mut self) {
        self.outgoing.finish();
    }

    /// Whether the other half has all that was written, and has passed on its end.
    pub fn is_sent(&self) -> bool {
        self.outgoing.is_over()
    }

    /// Reads what has come, in order; 0 if that is nothing.
    pub fn read(&mut self, into: &mut [u8], now: Instant) -> usize {
        self.incoming.read(into, now)
    }

    /// Whether there are bytes or an end to be read.
    pub fn is_readable(&self) -> bool {
        self.incoming.is_readable()
    }

    /// Whether all was read that ever comes.
    pub fn is_ended(&self) -> bool {
        self.incoming.is_ended()
    }

    /// The end that was read was passed on: only now the other half hears that it came.
    pub fn pass_on_end(&mut self) {
        self.incoming.pass_on_end();
    }

    /// Whether nothing is left to be done but to say so.
    pub fn is_over(&self) -> bool {
        self.outgoing.is_over() && self.incoming.is_over()
    }

    /// Nobody is left to answer. Whether all was sent and passed on to the ends, and then it is over:
    /// the other half's last word has no answer, and whoever says it is gone afterwards.
    pub fn presume_over(&mut self) -> bool {
        self.incoming.is_over() && self.outgoing.presume_over()
    }

    /// What tells the other half that all has come; on each leg, since there is no answer.
    pub fn farewell(&mut self, now: Instant) -> Bytes {
        self.incoming.tell_again();
        match self.incoming.ack(true, now) {
            Some((received, limit)) => Frame::Ack { received, limit }.encode(),
            None => Bytes::new(),
        }
    }

    /// Why the other half has cut it off, if it has.
    pub fn aborted(&self) -> Option<Why> {
        self.aborted
    }

    /// Bytes that have come to their other end, both ways.
    pub fn progress(&self) -> u64 {
        self.outgoing.acked() + self.incoming.received()
    }

    /// Bytes of frames that were sent, and of the connection in them; again not counted.
    pub fn carried(&self) -> (u64, u64) {
        self.outgoing.carried
    }

    /// When a leg is to be polled though nothing has happened.
    pub fn deadline(&self) -> Option<Instant> {
        let again = (self.carrying() > 1).then(|| self.outgoing.deadline());
        let times = [self.incoming.deadline(), again.flatten()];
        times.into_iter().flatten().min()
    }
}
