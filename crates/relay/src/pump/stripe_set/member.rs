//! One stripe of a pair: its handshake and its frames.

use std::io;
use std::time::{Duration, Instant};

use pair::{FrameDecoder, StripeFrame, StripeId, StripedConnection, TOKEN};

use super::Stripe;
use crate::pump::WorkerResources;
use crate::pump::leg::{Leg, LegReadResult};
use crate::server::connection_limiter::ConnectionPermit;

impl Stripe {
    /// Creates a stripe whose handshake is complete (`open`) or still to be made.
    pub(super) fn new(
        (id, leg): (StripeId, Leg),
        parser: FrameDecoder,
        open: bool,
        now: Instant,
        permit: Option<ConnectionPermit>,
    ) -> Self {
        Self {
            id,
            leg,
            parser,
            open,
            heard: false,
            since: now,
            uplink: None,
            moved: 0,
            _permit: permit,
        }
    }

    /// Continues the handshake and reads frames, at most `left` bytes.
    pub(super) fn turn(
        &mut self,
        session: &mut StripedConnection,
        asks: Option<([u8; TOKEN], bool)>,
        means: &mut WorkerResources,
        left: &mut usize,
        timeout: Duration,
    ) -> io::Result<()> {
        if !self.open {
            if !self.leg.shake()? {
                return match means.now >= self.since + timeout {
                    true => Err(io::ErrorKind::TimedOut.into()),
                    false => Ok(()),
                };
            }
            if let Some((token, joins)) = asks {
                self.leg
                    .send(&StripeFrame::Hello { token, joins }.encode(), false)?;
            }
            self.open = true;
            session.add(self.id);
        }
        self.understand(session, means.now)?;
        while *left > 0 {
            match self.leg.receive(&mut means.scratch)? {
                LegReadResult::Bytes(n) => {
                    *left = left.saturating_sub(n);
                    self.moved += n as u64;
                    self.parser.push(means.scratch.get(..n).unwrap_or_default());
                    self.understand(session, means.now)?;
                }
                LegReadResult::Nothing => break,
                LegReadResult::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        match self.leg.failure() {
            Some(why) if !self.leg.is_readable() => Err(why.kind().into()),
            _ => Ok(()),
        }
    }

    fn understand(&mut self, session: &mut StripedConnection, now: Instant) -> io::Result<()> {
        loop {
            let frame = match self.parser.poll() {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => session.handle(self.id, &frame, now),
                Err(e) => Err(e),
            };
            frame.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            self.heard = true;
        }
    }

    /// Sends the rest of the last frame, and reports if the stripe accepts another.
    pub(super) fn takes(&mut self) -> bool {
        if !self.leg.is_writable()
            && let Err(e) = self.leg.push()
        {
            self.leg.fail(e);
        }
        self.leg.failure().is_none() && self.leg.is_writable()
    }
}
