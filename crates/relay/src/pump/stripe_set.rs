//! The legs of a pair: several connections to the other half, which together are one leg of ours.
//!
//! What is sent when, and put together how, is `pair::StripedConnection`'s; here are its sockets.

mod keeping;
mod member;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Registry;
use mio::event::Event;
use pair::{Config, Frame, LegId, Parser, StripeController, StripedConnection, TOKEN, Why};
use socket2::SockRef;
use sys::Tuning;

use member::Stripe;

use super::leg::{Leg, Received};
use super::{TurnResult, WorkerResources};
use crate::peer::PeerConfig;
use crate::server::connection_limiter::ConnectionPermit;
use crate::strategy::{self, Learned};
use crate::uplinks::Uplinks;

/// So many legs a pair has at most.
pub(crate) const MOST_LEGS: usize = 16;
/// So much is read in one turn, then it is another connection's.
const TURN: usize = 2 << 20;
/// Without any leg a pair lives so long.
const GRACE: Duration = Duration::from_secs(5);
/// A leg that could not be made is tried again after this, and after twice as long each time.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// A way that no leg leaves by is tried again after this.
const EVEN: Duration = Duration::from_secs(10);
/// Nothing is looked at again sooner without an event.
const PAUSE: Duration = Duration::from_millis(10);
/// A leg on which the kernel waits for an answer so long is none: the other half reads always.
const DEAD: Duration = Duration::from_secs(15);

/// The legs of a pair.
#[derive(Debug)]
pub(crate) struct StripeSet {
    session: StripedConnection,
    token: [u8; TOKEN],
    members: [Option<Box<Stripe>>; MOST_LEGS],
    /// Legs there have been.
    count: u32,
    now: Instant,
    asks: Option<Asks>,
    /// Since when there is no leg.
    alone: Option<Instant>,
    /// Something has come from the other half.
    heard: bool,
    /// How long a handshake may take.
    timeout: Duration,
}

/// The half that opens legs.
#[derive(Debug)]
struct Asks {
    to: SocketAddr,
    /// The target, by which the path is known.
    target: String,
    /// The round trip in which the first leg was made, when nothing stood in queues.
    rtt: Duration,
    facing: PeerConfig,
    growth: StripeController,
    uplinks: Arc<Uplinks>,
    /// Bytes on legs that are gone, by each way.
    carried: Vec<u64>,
    /// A way without a leg is tried again then.
    even: Instant,
    looked: Instant,
    retry: Duration,
    /// No leg is opened before.
    not_before: Instant,
}

/// What a bundle needs of its connection.
pub(crate) struct StripeContext<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) means: &'a mut WorkerResources,
    /// Of the first leg.
    pub(crate) token: usize,
    /// Begins to connect, by one of several ways.
    pub(crate) connect: &'a dyn Fn(SocketAddr, Option<usize>) -> io::Result<OwnedFd>,
    pub(crate) timeout: Duration,
    pub(crate) tuning: &'a Tuning,
}

impl StripeSet {
    /// Of the half that answers.
    pub(crate) fn answering(facing: &PeerConfig, token: [u8; TOKEN], now: Instant) -> Self {
        Self::new(facing, token, None, now)
    }

    /// Of the half that asks.
    pub(crate) fn asking(
        facing: &PeerConfig,
        (target, to): (String, SocketAddr),
        (rtt, uplinks): (Duration, Arc<Uplinks>),
        now: Instant,
    ) -> io::Result<Self> {
        let mut token = [0; TOKEN];
        let random = aws_lc_rs::rand::fill(&mut token);
        random.map_err(|_| io::Error::other("no random numbers can be had"))?;
        let (growth, why) = strategy::begin(facing, &target, rtt, uplinks.leading(to.ip()));
        explain(facing, &target, &format!("begins with {why}"));
        let asks = Asks {
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

    fn new(facing: &PeerConfig, token: [u8; TOKEN], asks: Option<Asks>, now: Instant) -> Self {
        Self {
            session: StripedConnection::new(Config {
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

    /// Takes a leg in, whose handshake is over (`open`) or still to be made; `begun` has come on
    /// it. One that there is no room for is reset.
    pub(crate) fn add(
        &mut self,
        mut leg: Leg,
        open: bool,
        begun: Parser,
        guest: Option<ConnectionPermit>,
        (registry, token): (&Registry, usize),
    ) -> io::Result<()> {
        let Some(nth) = self.members.iter().position(Option::is_none) else {
            return Ok(());
        };
        leg.register(registry, token + nth)?;
        if let Some(tcp) = leg.tcp() {
            // A leg that stands still is given up; without it, only later.
            #[cfg(target_os = "linux")]
            let _ = SockRef::from(&tcp).set_tcp_user_timeout(Some(DEAD));
            #[cfg(not(target_os = "linux"))]
            let _ = (SockRef::from(&tcp), DEAD);
        }
        let id = LegId(self.count);
        self.count += 1;
        if open {
            self.session.add(id);
            self.alone = None;
        }
        if let Some(place) = self.members.get_mut(nth) {
            *place = Some(Box::new(Stripe {
                id,
                leg,
                parser: begun,
                open,
                heard: false,
                since: self.now,
                uplink: None,
                moved: 0,
                _guest: guest,
            }));
        }
        Ok(())
    }

    /// What the kernel has told about one leg.
    pub(crate) fn told(&mut self, nth: usize, event: &Event) {
        if let Some(Some(member)) = self.members.get_mut(nth) {
            member.leg.told(event);
        }
    }

    /// Takes in what has come, opens and closes legs, and sends what there is.
    pub(crate) fn turn(&mut self, around: &mut StripeContext<'_>) -> io::Result<TurnResult> {
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
                true => TurnResult::More,
                false => TurnResult::Still,
            },
        )
    }

    /// A leg is gone; whether that is the end of the pair.
    fn lost(&mut self, nth: usize, why: io::Error) -> io::Result<()> {
        let was_open = matches!(self.members.get(nth), Some(Some(member)) if member.open);
        let gone = self.gone(nth);
        // Whoever is told why need not guess.
        if self.session.is_over() || self.session.aborted().is_some() {
            return Ok(());
        }
        // The protocol was broken, which another leg does not mend.
        if was_open && why.kind() == io::ErrorKind::InvalidData && self.heard {
            return Err(why);
        }
        if !self.heard && self.asks.is_some() {
            return Err(not_let_in(&why, self.asks.as_ref()));
        }
        tracing::debug!("a leg of a pair is gone: {why}");
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
                return Err(io::Error::new(why.kind(), "the other half is gone"));
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

    /// Gives what is to be sent to the legs that take it, a frame to each in turn. What is little, an
    /// acknowledgement above all, goes on the leg that something has come on last: one that has fallen
    /// silent takes a while to be found out.
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
                        // Reading tells when it is its turn.
                        member.leg.fail(e);
                    }
                }
            }
        }
        // Whoever writes to us stops when no leg takes anything, so that nothing need be left here.
        let open = self.members.iter().flatten().filter(|member| member.open);
        let takes = open.map(|member| member.leg.is_writable());
        let all_full = takes.reduce(|one, other| one || other) == Some(false);
        if self.session.wants_leg() || all_full {
            self.session.note_full(self.now);
        }
    }

    /// Whether there is something to read.
    pub(crate) fn is_readable(&self) -> bool {
        self.session.is_readable()
    }

    /// Whether something may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.session.room() > 0
            && self
                .members
                .iter()
                .flatten()
                .any(|member| member.open && member.leg.is_writable())
    }

    /// Reads what is there, in order.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Received {
        match self.session.read(into, self.now) {
            0 if self.session.is_ended() => Received::End,
            0 => Received::Nothing,
            n => Received::Bytes(n),
        }
    }

    /// Takes what the legs take now.
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

    /// Nothing more is sent; whether all has come, and its end was passed on there.
    pub(crate) fn finish(&mut self) -> bool {
        self.session.finish();
        self.flush();
        self.session.is_sent()
    }

    /// The end that was read was passed on.
    pub(crate) fn pass_on_end(&mut self) {
        self.session.pass_on_end();
    }

    /// All is over: says so on each leg, and closes them.
    pub(crate) fn close(&mut self) {
        let farewell = self.session.farewell(self.now);
        self.part(&farewell);
    }

    /// It is cut off, and the other half is told so.
    pub(crate) fn abort(&mut self, why: Why) {
        if !self.session.is_over() && self.session.aborted().is_none() {
            self.part(&Frame::Abort(why).encode());
        }
    }

    fn part(&mut self, last: &[u8]) {
        for member in self.members.iter_mut().flatten().filter(|m| m.open) {
            // Legs that take it no more are not waited for: there are others, and a time limit.
            let _ = member.leg.send(last, false);
            let _ = member.leg.finish();
            member.leg.close_orderly();
        }
    }

    /// The first leg's socket.
    pub(crate) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        let mut open = self.members.iter().flatten().filter(|member| member.open);
        open.next().and_then(|member| member.leg.tcp())
    }

    /// When it is to be looked at though nothing has happened.
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
        // What is due and cannot be done, since no leg takes anything, is not asked for at once.
        let first = times.into_iter().flatten().min();
        first.map(|at| at.max(self.now + PAUSE))
    }

    /// Keeps what it has found of the path.
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
            let learned = Learned {
                legs: found.legs,
                rate: found.rate as u64,
                rtt: asks.rtt,
            };
            paths.keep(&asks.target, learned);
        }
    }

    /// For the log.
    pub(crate) fn shown(&self) -> String {
        let legs = self.members.iter().flatten().filter(|m| m.open).count();
        let (wire, bytes) = self.session.carried();
        let by = self.shares();
        format!(
            "pair, {legs} legs of {}, {bytes} bytes as {wire}{by}",
            self.count
        )
    }
}

/// What was decided for a connection, where somebody wants to know.
fn explain(facing: &PeerConfig, target: &str, what: &str) {
    match facing.explain {
        true => tracing::info!("pair with {target}: {what}"),
        false => tracing::debug!("pair with {target}: {what}"),
    }
}

fn cut_off(why: Why) -> io::Error {
    let what = match why {
        Why::Broken => "the connection behind the other half broke",
        Why::Unknown => "the other half has begun anew",
        Why::Unreachable => "the other half reaches nobody",
        Why::Protocol => "the other half does not understand us",
    };
    io::Error::new(io::ErrorKind::ConnectionReset, what)
}

fn not_let_in(why: &io::Error, asks: Option<&Asks>) -> io::Error {
    let ours = asks.map_or("", |asks| asks.facing.fingerprint.as_str());
    let what =
        format!("the other half does not answer ({why}); does its --pair-allow have {ours}?");
    io::Error::new(why.kind(), what)
}
