//! Stripes of a pair: several TCP connections to the peer relay that together form one leg.
//!
//! `pair::StripedConnection` implements the protocol; this module has the sockets.

mod keeping;
mod member;
mod refusal;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Registry;
use mio::event::Event;
use pair::{
    AbortReason, FrameDecoder, StripeController, StripeFrame, StripeId, StripedConnection,
    StripedConnectionConfig, TOKEN,
};
use socket2::SockRef;
use sys::SocketTuning;

pub(crate) use self::refusal::UnusablePeerRelay;
use super::leg::{Leg, LegReadResult};
use super::{FlowTurnResult, WorkerResources};
use crate::peer::PairRelaySettings;
use crate::server::connection_limiter::ConnectionPermit;
use crate::strategy::{self, LearnedStripeCount};
use crate::uplinks::Uplinks;

/// Maximum number of stripes.
pub(crate) const MOST_LEGS: usize = 16;
/// Maximum bytes read in one turn before other connections are served.
const TURN: usize = 2 << 20;
/// Time after which a pair without stripes ends.
const GRACE: Duration = Duration::from_secs(5);
/// Delay before a failed stripe is opened again; it doubles with each failure.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Interval at which an uplink with too few stripes is tried again.
const EVEN: Duration = Duration::from_secs(10);
/// Minimum time between two turns without an event.
const PAUSE: Duration = Duration::from_millis(10);
/// TCP_USER_TIMEOUT of a stripe. The peer relay always reads, so that unacknowledged data means a
/// dead path.
const DEAD: Duration = Duration::from_secs(15);

/// Sockets of one connection's stripes to the peer relay, with the [`StripedConnection`] that
/// orders their frames. Only the relay that opens stripes has a [`StripeOpener`].
#[derive(Debug)]
pub(crate) struct StripeSet {
    session: StripedConnection,
    token: [u8; TOKEN],
    members: [Option<Box<Stripe>>; MOST_LEGS],
    /// Number of stripes opened so far.
    count: u32,
    now: Instant,
    asks: Option<StripeOpener>,
    /// Time since which there is no stripe.
    alone: Option<Instant>,
    /// A frame has come from the peer relay.
    heard: bool,
    /// Time limit of a TLS handshake.
    timeout: Duration,
}

/// State of the relay that opens the stripes.
#[derive(Debug)]
struct StripeOpener {
    to: SocketAddr,
    /// Operand of the target, the key under which the path is remembered.
    target: String,
    /// Round-trip time of the first stripe's handshake, before any queue had filled.
    rtt: Duration,
    facing: PairRelaySettings,
    growth: StripeController,
    uplinks: Arc<Uplinks>,
    /// Bytes that closed stripes have carried, for each uplink.
    carried: Vec<u64>,
    /// Time at which an uplink with too few stripes is tried again.
    even: Instant,
    looked: Instant,
    retry: Duration,
    /// Earliest time to open another stripe.
    not_before: Instant,
}

/// One stripe of a pair.
#[derive(Debug)]
struct Stripe {
    id: StripeId,
    leg: Leg,
    parser: FrameDecoder,
    /// The TLS handshake is complete.
    open: bool,
    /// Bytes have been received on this stripe.
    heard: bool,
    since: Instant,
    /// Uplink by which the stripe leaves, if there are several.
    uplink: Option<usize>,
    /// Bytes of frames, both directions.
    moved: u64,
    _permit: Option<ConnectionPermit>,
}

/// Resources of the connection that a stripe set uses.
pub(crate) struct StripeContext<'a> {
    registry: &'a Registry,
    means: &'a mut WorkerResources,
    /// Event token of the first stripe.
    token: usize,
    /// Starts to connect to an address, optionally by one of several uplinks.
    connect: &'a dyn Fn(SocketAddr, Option<usize>) -> io::Result<OwnedFd>,
    timeout: Duration,
    tuning: &'a SocketTuning,
}

impl<'a> StripeContext<'a> {
    /// Collects the event loop with the token of the first stripe, the way to connect to an
    /// address, and the time for a handshake with the options of the sockets.
    pub(crate) fn new(
        (registry, token): (&'a Registry, usize),
        means: &'a mut WorkerResources,
        connect: &'a dyn Fn(SocketAddr, Option<usize>) -> io::Result<OwnedFd>,
        (timeout, tuning): (Duration, &'a SocketTuning),
    ) -> Self {
        Self {
            registry,
            means,
            token,
            connect,
            timeout,
            tuning,
        }
    }
}

impl StripeSet {
    /// Creates the stripe set of the relay that accepts the stripes.
    pub(crate) fn answering(facing: &PairRelaySettings, token: [u8; TOKEN], now: Instant) -> Self {
        Self::new(facing, token, None, now)
    }

    /// Creates the stripe set of the relay that opens the stripes.
    pub(crate) fn asking(
        facing: &PairRelaySettings,
        (target, to): (String, SocketAddr),
        (rtt, uplinks): (Duration, Arc<Uplinks>),
        now: Instant,
    ) -> io::Result<Self> {
        let mut token = [0; TOKEN];
        let random = aws_lc_rs::rand::fill(&mut token);
        random.map_err(|_| io::Error::other("cannot read random numbers from the system"))?;
        let (growth, why) = strategy::begin(facing, &target, rtt, uplinks.leading(to.ip()));
        explain(facing, &target, &format!("starts with {why}"));
        let asks = StripeOpener {
            to,
            target,
            rtt,
            facing: facing.clone(),
            growth,
            carried: vec![0; uplinks.all().len()],
            uplinks,
            even: now + EVEN,
            looked: now,
            retry: RETRY,
            not_before: now,
        };
        Ok(Self::new(facing, token, Some(asks), now))
    }

    fn new(
        facing: &PairRelaySettings,
        token: [u8; TOKEN],
        asks: Option<StripeOpener>,
        now: Instant,
    ) -> Self {
        Self {
            session: StripedConnection::new(StripedConnectionConfig {
                most: facing.most as u64,
                zstd: facing.zstd,
                answers: asks.is_none(),
            }),
            token,
            members: Default::default(),
            count: 0,
            now,
            asks,
            alone: None,
            heard: false,
            timeout: DEAD,
        }
    }

    /// Adds a stripe whose handshake is complete (`open`) or still to be made; `begun` holds what
    /// was already received on it. If all places are taken, the stripe is reset.
    pub(crate) fn add(
        &mut self,
        mut leg: Leg,
        open: bool,
        begun: FrameDecoder,
        permit: Option<ConnectionPermit>,
        (registry, token): (&Registry, usize),
    ) -> io::Result<()> {
        let Some(nth) = self.members.iter().position(Option::is_none) else {
            return Ok(());
        };
        leg.register(registry, token + nth)?;
        if let Some(tcp) = leg.tcp() {
            // A stalled stripe is closed after this timeout; the default of the kernel is minutes.
            #[cfg(target_os = "linux")]
            let _ = SockRef::from(&tcp).set_tcp_user_timeout(Some(DEAD));
            #[cfg(not(target_os = "linux"))]
            let _ = (SockRef::from(&tcp), DEAD);
        }
        let id = StripeId(self.count);
        self.count += 1;
        if open {
            self.session.add(id);
            self.alone = None;
        }
        if let Some(place) = self.members.get_mut(nth) {
            let since = self.now;
            *place = Some(Box::new(Stripe::new((id, leg), begun, open, since, permit)));
        }
        Ok(())
    }

    /// Passes an event to a stripe.
    pub(crate) fn told(&mut self, nth: usize, event: &Event) {
        if let Some(Some(member)) = self.members.get_mut(nth) {
            member.leg.told(event);
        }
    }

    /// Reads frames, opens and closes stripes, and sends pending frames.
    pub(crate) fn turn(&mut self, around: &mut StripeContext<'_>) -> io::Result<FlowTurnResult> {
        self.now = around.means.now;
        self.timeout = around.timeout;
        let mut left = TURN;
        for nth in 0..MOST_LEGS {
            let Some(member) = self.members.get_mut(nth).and_then(Option::as_mut) else {
                continue;
            };
            let was_open = member.open;
            let asks = self.asks.is_some().then_some((self.token, self.heard));
            let means = &mut *around.means;
            let done = member.turn(&mut self.session, asks, means, &mut left, self.timeout);
            self.heard |= member.heard;
            if member.open && !was_open {
                self.alone = None;
                if let Some(tcp) = member.leg.tcp() {
                    around.tuning.connected(tcp);
                }
                if let Some(asks) = &mut self.asks {
                    asks.retry = RETRY;
                    asks.opened(member);
                }
            }
            match done {
                Ok(_) if self.session.has_parted(member.id) && self.asks.is_some() => {
                    let _ = member.leg.finish();
                    member.leg.close_orderly();
                    self.gone(nth);
                }
                Ok(_) => {}
                Err(e) => self.lost(nth, e)?,
            }
        }
        if let Some(why) = self.session.aborted() {
            return Err(cut_off(why));
        }
        self.keep_legs(around)?;
        self.flush();
        let mut members = self.members.iter().flatten();
        Ok(
            match members.any(|member| member.open && member.leg.is_readable()) {
                true => FlowTurnResult::More,
                false => FlowTurnResult::Blocked,
            },
        )
    }

    /// Handles the loss of a stripe. Returns an error if the pair cannot continue.
    fn lost(&mut self, nth: usize, why: io::Error) -> io::Result<()> {
        let was_open = matches!(self.members.get(nth), Some(Some(member)) if member.open);
        let gone = self.gone(nth);
        // The session is over or aborted; the loss is expected.
        if self.session.is_over() || self.session.aborted().is_some() {
            return Ok(());
        }
        // The peer relay violated the protocol; another stripe would not help.
        if was_open && why.kind() == io::ErrorKind::InvalidData && self.heard {
            return Err(why);
        }
        if !self.heard && self.asks.is_some() {
            return Err(UnusablePeerRelay::error(&why, self.asks.as_ref()));
        }
        tracing::debug!("one TCP connection (stripe) to the peer relay was lost: {why}");
        if let (Some(asks), Some(member)) = (&mut self.asks, gone) {
            asks.lost(&member, &why, self.now);
        }
        let alone = self.members.iter().flatten().all(|member| !member.open);
        let newly = alone && self.alone.is_none();
        if alone {
            self.alone.get_or_insert(self.now);
        }
        if let Some(asks) = &mut self.asks {
            if alone && why.kind() == io::ErrorKind::ConnectionRefused {
                return Err(io::Error::new(
                    why.kind(),
                    "the peer relay closed the connection",
                ));
            }
            if newly {
                (asks.not_before, asks.retry) = (self.now, RETRY);
            } else {
                asks.not_before = self.now + asks.retry;
                asks.retry = (asks.retry * 2).min(LONGEST_RETRY);
            }
        }
        Ok(())
    }

    fn gone(&mut self, nth: usize) -> Option<Box<Stripe>> {
        let member = self.members.get_mut(nth).and_then(Option::take)?;
        self.session.remove(member.id);
        let carried = self.asks.as_mut().map(|asks| &mut asks.carried);
        if let Some(bytes) = carried.and_then(|carried| carried.get_mut(member.uplink?)) {
            *bytes += member.moved;
        }
        Some(member)
    }

    fn rtt(&self) -> Duration {
        let rtt = self.tcp().and_then(sys::tcp_info).map(|tcp| tcp.rtt);
        rtt.unwrap_or_default()
    }

    /// Sends pending frames on the stripes that can be written to, one frame to each in turn. The
    /// first, which often is an acknowledgement alone, goes to the stripe that has received
    /// something last: a stripe that has fallen silent may be dead, which takes a while to notice.
    pub(crate) fn flush(&mut self) {
        let last = self.session.heard_last(None);
        let is_last = |member: &Stripe| Some(member.id) == last;
        let mut members = self.members.iter();
        let first = members.position(|member| member.as_deref().is_some_and(is_last));
        let first = first.unwrap_or_default();
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for step in 0..MOST_LEGS {
                let nth = (first + step) % MOST_LEGS;
                let Some(Some(member)) = self.members.get_mut(nth) else {
                    continue;
                };
                if !member.open || !member.takes() {
                    continue;
                }
                if let Some(bytes) = self.session.poll(member.id, &mut Instant::now) {
                    moved = true;
                    member.moved += bytes.len() as u64;
                    if let Err(e) = member.leg.send(&bytes, false) {
                        // The error is handled at the stripe's next read.
                        member.leg.fail(e);
                    }
                }
            }
        }
        // While all stripes are full, `is_writable` is false and the other leg is not read. That
        // counts as full even if nothing is pending here.
        let open = self.members.iter().flatten().filter(|member| member.open);
        let takes = open.map(|member| member.leg.is_writable());
        let all_full = takes.reduce(|one, other| one || other) == Some(false);
        if self.session.wants_leg() || all_full {
            self.session.note_full(self.now);
        }
    }

    /// Reports if there is something to read.
    pub(crate) fn is_readable(&self) -> bool {
        self.session.is_readable()
    }

    /// Reports if bytes may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.session.room() > 0
            && self
                .members
                .iter()
                .flatten()
                .any(|member| member.open && member.leg.is_writable())
    }

    /// Reads received bytes in order.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> LegReadResult {
        match self.session.read(into, self.now) {
            0 if self.session.is_ended() => LegReadResult::End,
            0 => LegReadResult::Nothing,
            n => LegReadResult::Bytes(n),
        }
    }

    /// Takes bytes as long as stripes accept them, and returns how many.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while self.is_writable() && sent < bytes.len() {
            sent += self.session.write(bytes.get(sent..).unwrap_or_default());
            if self.session.room() == 0 {
                self.flush();
            }
        }
        sent
    }

    /// Ends the outgoing stream; true once the peer relay has all bytes and has passed on the end.
    pub(crate) fn finish(&mut self) -> bool {
        self.session.finish();
        self.flush();
        self.session.is_sent()
    }

    /// Records that the end of the incoming stream was passed on.
    pub(crate) fn pass_on_end(&mut self) {
        self.session.pass_on_end();
    }

    /// Ends the session in order: sends the last acknowledgement on each stripe, and closes them.
    pub(crate) fn close(&mut self) {
        let farewell = self.session.farewell(self.now);
        self.part(&farewell);
    }

    /// Aborts the session, and tells the peer relay why.
    pub(crate) fn abort(&mut self, why: AbortReason) {
        if !self.session.is_over() && self.session.aborted().is_none() {
            self.part(&StripeFrame::Abort(why).encode());
        }
    }

    fn part(&mut self, last: &[u8]) {
        for member in self.members.iter_mut().flatten().filter(|m| m.open) {
            // Stripes that cannot take the frame now are not waited for: there are others, and a
            // time limit.
            let _ = member.leg.send(last, false);
            let _ = member.leg.finish();
            member.leg.close_orderly();
        }
    }

    /// Returns the socket of the first open stripe.
    pub(crate) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        let mut open = self.members.iter().flatten().filter(|member| member.open);
        open.next().and_then(|member| member.leg.tcp())
    }

    /// Returns the time of the next turn if no event comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let mut times = vec![
            self.session.deadline(),
            self.alone.map(|alone| alone + GRACE),
        ];
        for member in self.members.iter().flatten() {
            let shaking = (!member.open).then_some(member.since + self.timeout);
            times.push(shaking);
            times.push(member.leg.failure().map(|_| self.now));
        }
        let asks = self.asks.as_ref().filter(|_| self.heard);
        if let Some(asks) = asks.filter(|_| !self.session.is_over()) {
            let recent = |full: Instant| self.now < full + Duration::from_secs(2);
            if asks.growth.looks() && self.session.full().is_some_and(recent) {
                times.push(Some(asks.looked + StripeController::interval(self.rtt())));
            }
            let missing = asks.growth.wanted() > self.members.iter().flatten().count();
            times.push(missing.then_some(asks.not_before.max(self.now)));
            times.push(self.uneven().map(|_| asks.even));
        }
        // Work that is due but blocked, because no stripe can be written to, does not cause a busy
        // loop.
        let first = times.into_iter().flatten().min();
        first.map(|at| at.max(self.now + PAUSE))
    }

    /// Stores what was learned about the path.
    pub(crate) fn learn(&self) {
        let Some((asks, found)) = self
            .asks
            .as_ref()
            .and_then(|a| Some((a, a.growth.found()?)))
        else {
            return;
        };
        explain(&asks.facing, &asks.target, &strategy::shown(&found));
        if let Some(paths) = &asks.facing.paths {
            let learned = LearnedStripeCount {
                legs: found.legs,
                rate: found.rate as u64,
                rtt: asks.rtt,
            };
            paths.keep(&asks.target, learned);
        }
    }

    /// Returns a summary for the log.
    pub(crate) fn shown(&self) -> String {
        let legs = self.members.iter().flatten().filter(|m| m.open).count();
        let (wire, bytes) = self.session.carried();
        let by = self.shares();
        format!(
            "pair, {legs} stripes of {}, {bytes} bytes sent as {wire}{by}",
            self.count
        )
    }
}

/// Logs a decision about a connection, at info level if the settings ask for it.
fn explain(facing: &PairRelaySettings, target: &str, what: &str) {
    match facing.explain {
        true => tracing::info!("pair with {target}: {what}"),
        false => tracing::debug!("pair with {target}: {what}"),
    }
}

fn cut_off(why: AbortReason) -> io::Error {
    let what = match why {
        AbortReason::Broken => {
            "the peer relay lost its connection to the client or the target; its log has the reason"
        }
        AbortReason::Unknown => {
            "the peer relay no longer knows this connection: it was probably restarted"
        }
        AbortReason::Unreachable => {
            "the peer relay could not reach its target; its log has the reason"
        }
        AbortReason::Protocol => {
            "the peer relay reported a protocol error: run the same version of longhaul at both ends"
        }
    };
    io::Error::new(io::ErrorKind::ConnectionReset, what)
}
