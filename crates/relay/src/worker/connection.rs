//! State of one connection from accept to close.

mod pairs;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Registry;
use mio::event::Event;
use pair::FrameDecoder;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use sys::{TcpInfo, os_words};

use super::dial::{DialTarget, DialTurnResult, TargetDialContext, TargetDialer};
use super::enter::{self, ClientHandshake, HandshakeProgress};
use super::inbox::{AcceptedConnection, ConnectionHandle, WorkerInbox};
use super::resolve::{ResolveResult, Resolver};
use crate::address::TargetSpec;
use crate::entry::proxy::{self, ProxyAddresses};
use crate::pump::stripe_set::{MOST_LEGS, UnusablePeerRelay};
use crate::pump::{BrokenLeg, FlowLimits, FlowTurnResult, Leg, RelayFlow, WorkerResources};
use crate::server::RunningRelay;
use crate::server::connection_limiter::ConnectionPermit;
use crate::server::figures::ConnectionOutcome;
use crate::server::pairs::{PairRegistration, PairSlot};
use crate::server::running::OutgoingConnectionEntry;
use crate::status::{ByteCounters, ConnectionStatus, LegStatus};
use crate::tls_error::{connection_sentence, tls_error};

/// Number of event tokens of a connection: the client's leg, its output, the server's leg,
/// connection attempts, and the stripes of pairs on either side.
pub(crate) const TOKENS: usize = FAR_LEGS + MOST_LEGS;
const NEAR: usize = 0;
const FAR: usize = 2;
const ATTEMPT: usize = 4;
const NEAR_LEGS: usize = 8;
const FAR_LEGS: usize = NEAR_LEGS + MOST_LEGS;

/// Client of a connection as the log and the status page show it; only TCP clients have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientAddress {
    Tcp(SocketAddr),
    Unix,
    Streams,
}

/// One client's connection from accept to close, owned by one worker: its stage, the leg to the
/// client and the flow of each direction.
#[derive(Debug)]
pub(crate) struct RelayedConnection {
    running: Arc<RunningRelay>,
    client: ClientAddress,
    serial: u64,
    near: Leg,
    stage: ConnectionStage,
    /// Flow from the client to the server.
    up: RelayFlow,
    /// Flow from the server to the client.
    down: RelayFlow,
    /// Addresses of the client and its destination, from its PROXY header.
    ends: Option<ProxyAddresses>,
    /// Payload that was received together with the client's request.
    rest: Vec<u8>,
    begun: Instant,
    /// Time of the last progress, here or in the kernel's counters.
    progress: Instant,
    /// Kernel counter at the time of the last progress.
    moved: u64,
    /// Time of the next timer.
    pub(crate) wake: Option<Instant>,
    /// The connection is in the run queue.
    pub(crate) queued: bool,
    /// Registration under which further stripes of the client's pair find the connection.
    registered: Option<PairRegistration>,
    /// Entry of the server connection among the relay's own.
    on_its_way: Option<OutgoingConnectionEntry>,
    /// Permit of the connection limiter, until the connection has ended.
    permit: Option<ConnectionPermit>,
}

/// Stage of a connection: the client's handshake, connecting to a target, then relaying. The leg to
/// the server exists in the last one only.
#[derive(Debug)]
enum ConnectionStage {
    Enter(Box<ClientHandshake>),
    Dial(Box<TargetDialer>),
    Relay {
        far: Leg,
        target: Arc<TargetSpec>,
        to: Option<SocketAddr>,
    },
}

/// Resources of the worker that a connection uses.
pub(crate) struct ConnectionContext<'a> {
    registry: &'a Registry,
    inbox: &'a Arc<WorkerInbox>,
    resolver: &'a Resolver,
    means: &'a mut WorkerResources,
    slot: usize,
}

impl<'a> ConnectionContext<'a> {
    /// Creates the context of the connection in `slot`: the parts of the worker that it uses.
    pub(crate) fn new(
        registry: &'a Registry,
        inbox: &'a Arc<WorkerInbox>,
        resolver: &'a Resolver,
        means: &'a mut WorkerResources,
        slot: usize,
    ) -> Self {
        Self {
            registry,
            inbox,
            resolver,
            means,
            slot,
        }
    }
}

/// Reason for the end of a connection.
#[derive(Debug)]
pub(crate) enum ConnectionEndReason {
    /// Both directions have ended; the side that ended first.
    Closed(LegSide),
    /// One side reset the connection or failed.
    Reset(LegSide, io::Error),
    /// No target can be reached.
    NoTarget(String),
    /// The connection was refused.
    Refused(String),
    /// The connection is a stripe of an existing pair; what was received on it so far.
    Joins(Box<(PairSlot, FrameDecoder)>),
    /// The client took too long before its payload.
    Slow,
    /// Nothing has moved for this time.
    Idle(Duration),
    /// Error of the relay itself.
    Failed(io::Error),
    /// The relay shuts down and no longer waits.
    CutOff,
}

impl ConnectionEndReason {
    /// Returns the kind by which the end is counted.
    pub(crate) fn kind(&self) -> ConnectionOutcome {
        match self {
            Self::Closed(_) => ConnectionOutcome::Closed,
            Self::Reset(LegSide::Client, _) => ConnectionOutcome::ClientReset,
            Self::Reset(LegSide::Server, _) => ConnectionOutcome::ServerReset,
            Self::NoTarget(_) => ConnectionOutcome::NoTarget,
            Self::Refused(_) => ConnectionOutcome::Refused,
            Self::Slow => ConnectionOutcome::Slow,
            Self::Idle(_) => ConnectionOutcome::Idle,
            Self::Failed(_) | Self::CutOff => ConnectionOutcome::Failed,
            Self::Joins(_) => ConnectionOutcome::Joined,
        }
    }
}

/// Leg at which a connection has ended or failed, which decides the outcome that is counted and
/// logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegSide {
    Client,
    Server,
}

impl RelayedConnection {
    /// Takes over an accepted connection.
    pub(crate) fn new(
        arrival: AcceptedConnection,
        serial: u64,
        around: &ConnectionContext<'_>,
    ) -> io::Result<Self> {
        let now = around.means.now;
        let mut near = match arrival.output {
            None => {
                let tcp = matches!(arrival.client, ClientAddress::Tcp(_));
                Leg::socket(arrival.input, tcp)
            }
            Some(output) => Leg::streams(arrival.input, output),
        };
        near.register(around.registry, around.slot * TOKENS + NEAR)?;
        let rate = arrival.relay.relay.limits.rate;
        Ok(Self {
            client: arrival.client,
            serial,
            near,
            stage: ConnectionStage::Enter(Box::new(ClientHandshake::new(&arrival.relay, now))),
            ends: None,
            rest: Vec::new(),
            up: RelayFlow::new(rate, now),
            down: RelayFlow::new(rate, now),
            begun: now,
            progress: now,
            moved: 0,
            wake: None,
            queued: false,
            running: arrival.relay,
            registered: None,
            on_its_way: None,
            permit: Some(arrival.permit),
        })
    }

    /// Returns the serial number, which tells it from a later connection in the same slot.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Passes an event to the leg that it concerns.
    pub(crate) fn told(&mut self, which: usize, event: &Event) {
        match (&mut self.stage, which) {
            (_, NEAR..FAR) => self.near.told(event),
            (ConnectionStage::Relay { far, .. }, FAR) => far.told(event),
            (_, NEAR_LEGS..FAR_LEGS) => {
                if let Some(bundle) = self.near.bundle() {
                    bundle.told(which - NEAR_LEGS, event);
                }
            }
            (ConnectionStage::Relay { far, .. }, FAR_LEGS..TOKENS) => {
                if let Some(bundle) = far.bundle() {
                    bundle.told(which - FAR_LEGS, event);
                }
            }
            // Connection attempts are queried directly.
            _ => {}
        }
    }

    /// Handles the answer of the resolver.
    pub(crate) fn resolved(&mut self, answer: &ResolveResult, around: &ConnectionContext<'_>) {
        let source = self.client.ip();
        if let ConnectionStage::Dial(dial) = &mut self.stage {
            let way = way(&self.running, source, false, around);
            match answer {
                Ok(ips) => dial.resolved(&way, ips),
                Err(why) => dial.unresolved(&way, why),
            }
        }
    }

    /// Proceeds as far as possible. Reports if there is more to do at once, or returns the end.
    pub(crate) fn turn(
        &mut self,
        around: &mut ConnectionContext<'_>,
    ) -> Result<FlowTurnResult, ConnectionEndReason> {
        let more = self.turn_pairs(around);
        let turn = self.go_on(around)?;
        self.flush_pairs();
        Ok(if more == FlowTurnResult::More {
            more
        } else {
            turn
        })
    }

    fn go_on(
        &mut self,
        around: &mut ConnectionContext<'_>,
    ) -> Result<FlowTurnResult, ConnectionEndReason> {
        if let ConnectionStage::Enter(_) = &self.stage
            && !self.enter(around)?
        {
            return Ok(FlowTurnResult::Blocked);
        }
        while let ConnectionStage::Dial(dial) = &mut self.stage {
            if let Some(why) = self.near.failure() {
                return Err(ConnectionEndReason::Reset(LegSide::Client, copied(why)));
            }
            let has_data = self.running.relay.fastopen
                && has_data(&self.near)
                    .map_err(|e| ConnectionEndReason::Reset(LegSide::Client, e))?;
            let way = way(&self.running, self.client.ip(), has_data, around);
            match dial.turn(&way) {
                DialTurnResult::Waiting(until) => {
                    self.wake_by(until);
                    return Ok(FlowTurnResult::Blocked);
                }
                DialTurnResult::ResolveName(name) => {
                    let place = ConnectionHandle::new(around.inbox, around.slot, self.serial);
                    around.resolver.ask(&name, place);
                }
                DialTurnResult::Forbidden(why) => {
                    let reply = enter::not_allowed(self.running.relay.speaks.asks);
                    self.refuse(&reply);
                    return Err(ConnectionEndReason::Refused(format!("refused: {why}")));
                }
                DialTurnResult::Failed(why) => {
                    let reply = enter::unreachable(self.running.relay.speaks.asks);
                    self.refuse(&reply);
                    return Err(ConnectionEndReason::NoTarget(why));
                }
                DialTurnResult::Connected {
                    socket,
                    goal,
                    to,
                    uplink,
                    on_its_way,
                } => {
                    self.on_its_way = on_its_way;
                    self.connected(socket, &goal, (to, uplink), around)
                        .map_err(ConnectionEndReason::Failed)?;
                }
            }
        }
        self.relay(around)
    }

    /// Processes the client's header or request before the payload; true once it is complete.
    fn enter(&mut self, around: &mut ConnectionContext<'_>) -> Result<bool, ConnectionEndReason> {
        let ConnectionStage::Enter(entering) = &mut self.stage else {
            return Ok(true);
        };
        let now = around.means.now;
        let scratch = &mut around.means.scratch;
        let entered = entering.turn(&mut self.near, &self.running, scratch);
        self.ends = entering.ends;
        let deadline = entering.deadline;
        match entered {
            Ok(HandshakeProgress::Waiting) if now >= deadline => Err(ConnectionEndReason::Slow),
            Ok(HandshakeProgress::Waiting) => match self.near.failure() {
                Some(why) => Err(ConnectionEndReason::Reset(LegSide::Client, copied(why))),
                None => {
                    self.wake_by(deadline);
                    Ok(false)
                }
            },
            Ok(HandshakeProgress::Payload {
                goals,
                elsewhere,
                rest,
            }) => {
                let goals = goals.unwrap_or_else(|| self.running.goals(now));
                self.rest = rest;
                self.stage =
                    ConnectionStage::Dial(Box::new(TargetDialer::new(goals, elsewhere, now)));
                Ok(true)
            }
            Ok(HandshakeProgress::Stripe {
                token,
                joins,
                begun,
            }) => {
                self.enter_pair(token, joins, begun, around)?;
                let goals = self.running.goals(now);
                self.stage = ConnectionStage::Dial(Box::new(TargetDialer::new(goals, false, now)));
                Ok(true)
            }
            Ok(HandshakeProgress::Refused(why)) => {
                self.refuse(&[]);
                Err(ConnectionEndReason::Refused(why))
            }
            Err(e) => {
                if self.near.alerts() {
                    self.refuse(&[]);
                }
                Err(ConnectionEndReason::Reset(LegSide::Client, e))
            }
        }
    }

    /// Sends a refusal to a client that has made a request or gets a TLS alert, and closes its leg
    /// in order, so that the reply is not lost in a reset.
    fn refuse(&mut self, reply: &[u8]) {
        if self.running.relay.speaks.asks.is_none() && !self.near.alerts() {
            return;
        }
        if !self.near.alerts() {
            // An error means that the client is gone.
            let _ = enter::answer(&mut self.near, reply);
            let _ = self.near.finish();
        }
        self.near.close_orderly();
    }

    /// Queues what precedes the payload: replies to the client, and PROXY and TLS data to the
    /// server.
    fn introduce(&mut self, far: &mut Leg, target: &TargetSpec) -> io::Result<()> {
        let relay = &self.running.relay;
        self.down
            .prepend(&enter::connected(relay.speaks.asks), usize::MAX);
        let rest = std::mem::take(&mut self.rest);
        let header = target.proxy().map(|version| {
            let ends = self.ends.or_else(|| match self.client {
                ClientAddress::Tcp(source) => Some(ProxyAddresses {
                    source,
                    destination: self.near.local()?,
                }),
                _ => None,
            });
            proxy::header(version, ends)
        });
        let header = header.unwrap_or_default();
        if far.bundle().is_some() {
            // The PROXY header is meant for the target behind the peer relay, and goes with the
            // payload.
            self.up
                .prepend(&[&header, &rest[..]].concat(), header.len());
            return Ok(());
        }
        enter::answer(far, &header)?;
        if target.has_tls() {
            let client = relay.tls_client.as_ref();
            let client =
                client.ok_or_else(|| io::Error::other("internal error: TLS is not configured"))?;
            let host = target.tls_name();
            far.ask_tls(client, &host)?;
        }
        self.up.prepend(&rest, 0);
        Ok(())
    }

    fn connected(
        &mut self,
        socket: OwnedFd,
        goal: &DialTarget,
        (to, uplink): (Option<SocketAddr>, Option<usize>),
        around: &ConnectionContext<'_>,
    ) -> io::Result<()> {
        self.running.health.answered(goal.nth);
        let target = Arc::clone(&goal.target);
        let token = around.slot * TOKENS + FAR;
        if to.is_some() {
            self.running.relay.tuning.connected(&socket);
            // The socket was registered as a connection attempt.
            let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
            let _ = around.registry.deregister(&mut mio::unix::SourceFd(&fd));
        }
        let mut far = Leg::socket(socket, to.is_some());
        match (target.is_pair(), to) {
            (true, Some(to)) => far = self.first_leg(far, (&target, to, uplink), around)?,
            _ => far.register(around.registry, token)?,
        }
        self.set_client_buffers(&target, to);
        self.introduce(&mut far, &target)?;
        self.stage = ConnectionStage::Relay { far, target, to };
        self.progress = around.means.now;
        Ok(())
    }

    /// Sets socket buffer sizes that depend on the target, once the target is known.
    fn set_client_buffers(&self, target: &TargetSpec, to: Option<SocketAddr>) {
        let sockopts = &self.running.relay.sockopts;
        let (false, Some(tcp)) = (sockopts.no_sizes(), self.near.tcp()) else {
            return;
        };
        let host = target.host_name();
        let to = to.map(|to| to.ip());
        let buffers = sockopts.for_connection(host, to, self.client.ip()).client;
        if buffers != sockopts.for_all().client {
            // The next read reports an error of the socket.
            let _ = buffers.set(tcp);
        }
    }

    fn relay(
        &mut self,
        around: &mut ConnectionContext<'_>,
    ) -> Result<FlowTurnResult, ConnectionEndReason> {
        let ConnectionStage::Relay { far, .. } = &mut self.stage else {
            return Ok(FlowTurnResult::Blocked);
        };
        let before = self.up.written() + self.down.written();
        let said = [self.up.moved(), self.down.moved()];
        let relay = &self.running.relay;
        let buffer = relay.buffer;
        let [up_all, down_all] = &*self.running.rates;
        let rules = |all| FlowLimits { buffer, all };
        let mut more = FlowTurnResult::Blocked;
        let (mut up_broken, mut down_broken) = (false, false);
        // If one direction fails, the other one is still read: a server may have sent the reason
        // before it closed.
        match self
            .up
            .turn(&mut self.near, far, &rules(up_all.as_ref()), around.means)
        {
            Ok(turn) => more = turn,
            Err(why) => up_broken = broke(why, &mut self.near, far),
        }
        match self
            .down
            .turn(far, &mut self.near, &rules(down_all.as_ref()), around.means)
        {
            Ok(turn) if turn == FlowTurnResult::More => more = turn,
            Ok(_) => {}
            Err(why) => down_broken = broke(why, far, &mut self.near),
        }
        for (flow, source) in [(&self.up, &mut self.near), (&self.down, far)] {
            if flow.is_finished()
                && let Some(bundle) = source.bundle()
            {
                bundle.pass_on_end();
            }
        }
        if self.up.written() + self.down.written() != before {
            self.progress = around.means.now;
            let after = [self.up.moved(), self.down.moved()];
            let more = [after[0] - said[0], after[1] - said[1]];
            self.running.figures.moved(more);
        }
        if more == FlowTurnResult::More && !up_broken && !down_broken {
            return Ok(FlowTurnResult::More);
        }
        if let Some(end) = self.ended() {
            return Err(end);
        }
        let paused = [self.up.paused_until(), self.down.paused_until()];
        for until in paused.into_iter().flatten() {
            self.wake_by(until);
        }
        self.check_progress(around.means.now)?;
        Ok(FlowTurnResult::Blocked)
    }

    fn ended(&mut self) -> Option<ConnectionEndReason> {
        let first = self.first_to_end();
        let ConnectionStage::Relay { far, .. } = &mut self.stage else {
            return None;
        };
        if self.up.is_finished() && self.down.is_finished() {
            self.near.close_orderly();
            far.close_orderly();
            return Some(ConnectionEndReason::Closed(first));
        }
        let sides = [(LegSide::Client, &mut self.near), (LegSide::Server, far)];
        sides.into_iter().find_map(|(side, leg)| {
            let why = leg.failure()?;
            let why = copied(why);
            if leg.alerts() {
                leg.close_orderly();
            }
            Some(ConnectionEndReason::Reset(side, why))
        })
    }

    fn first_to_end(&self) -> LegSide {
        match self.up.ended_at() <= self.down.ended_at() {
            true => LegSide::Client,
            false => LegSide::Server,
        }
    }

    /// Ends the connection if nothing has moved for too long, neither here nor in the kernel.
    fn check_progress(&mut self, now: Instant) -> Result<(), ConnectionEndReason> {
        let relay = &self.running.relay;
        let half = self.up.ended_at().is_some() || self.down.ended_at().is_some();
        let limit = match (relay.idle_timeout, half) {
            (Some(idle), true) => idle.min(relay.half_timeout),
            (None, true) => relay.half_timeout,
            (Some(idle), false) => idle,
            (None, false) => return Ok(()),
        };
        if now < self.progress + limit {
            self.wake_by(self.progress + limit);
            return Ok(());
        }
        let moved: u64 = self
            .figures()
            .into_iter()
            .flatten()
            .map(|tcp| tcp.bytes_acked + tcp.bytes_received)
            .sum();
        if moved == self.moved {
            return Err(ConnectionEndReason::Idle(limit));
        }
        self.moved = moved;
        self.progress = now;
        self.wake_by(now + limit);
        Ok(())
    }

    /// Sets the timer to this time, unless it is due before.
    fn wake_by(&mut self, until: Instant) {
        self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
    }

    fn far(&self) -> Option<&Leg> {
        match &self.stage {
            ConnectionStage::Relay { far, .. } => Some(far),
            ConnectionStage::Enter(_) | ConnectionStage::Dial(_) => None,
        }
    }

    /// Returns the kernel's TCP statistics of both legs.
    fn figures(&self) -> [Option<TcpInfo>; 2] {
        let far = match &self.stage {
            ConnectionStage::Relay { far, .. } => far.tcp(),
            ConnectionStage::Enter(_) | ConnectionStage::Dial(_) => None,
        };
        [self.near.tcp(), far].map(|tcp| tcp.and_then(sys::tcp_info))
    }

    /// Returns the name of the target, with its address.
    fn server(&self) -> Option<String> {
        match &self.stage {
            ConnectionStage::Relay { target, to, .. } => {
                let name = target.to_string();
                // A target given as an address already contains it.
                let unsaid = to.filter(|to| !name.starts_with(&to.to_string()));
                Some(match unsaid {
                    Some(to) => format!("{name} ({to})"),
                    None => name,
                })
            }
            ConnectionStage::Enter(_) | ConnectionStage::Dial(_) => None,
        }
    }

    /// Returns the byte counters.
    pub(crate) fn moved(&self) -> ByteCounters {
        ByteCounters {
            connection: self.serial,
            bytes: [self.up.moved(), self.down.moved()],
        }
    }

    /// Returns the full status.
    pub(crate) fn status(&self, now: Instant) -> ConnectionStatus {
        let [near, far] = self.figures();
        let stage = match &self.stage {
            ConnectionStage::Enter(_) => "entering",
            ConnectionStage::Dial(_) => "connecting",
            ConnectionStage::Relay { .. } => "relaying",
        };
        ConnectionStatus {
            connection: self.serial,
            relay: self.running.relay.entrance.place.to_string(),
            stage: stage.to_owned(),
            client: LegStatus::new(self.client.to_string(), self.near.tls(), near),
            source: self.ends.map(|ends| ends.source.to_string()),
            server: self
                .server()
                .map(|server| LegStatus::new(server, self.far().and_then(Leg::tls), far)),
            seconds: now.saturating_duration_since(self.begun).as_secs_f64(),
            idle_seconds: now.saturating_duration_since(self.progress).as_secs_f64(),
            bytes: self.moved().bytes,
            rates: [Vec::new(), Vec::new()],
        }
    }

    /// Logs the end of the connection in one line.
    pub(crate) fn tell(&self, end: &ConnectionEndReason, now: Instant) {
        let [near, far] = self.figures();
        let target = self.server().unwrap_or_else(|| "none".to_owned());
        // Statistics that the kernel no longer has are omitted: the stripes of a pair are closed by
        // now.
        let rtt = |tcp: Option<TcpInfo>| {
            let rtt = tcp.map(|tcp| format!("{:.3}", tcp.rtt.as_secs_f64() * 1e3));
            rtt.map(tracing::field::display)
        };
        let again = |tcp: Option<TcpInfo>| tcp.map(|tcp| tcp.total_retrans);
        let sent_again = [near, far].map(|tcp| again(tcp).unwrap_or(0).into());
        self.running.figures.sent_again(sent_again);
        tracing::info!(
            connection = self.serial,
            client = %self.client,
            source = self.ends.map(|ends| ends.source.to_string()),
            server = %target,
            client_tls = self.near.tls(),
            server_tls = self.far().and_then(Leg::tls),
            up = self.up.moved(),
            down = self.down.moved(),
            seconds = format_args!("{:.3}", now.saturating_duration_since(self.begun).as_secs_f64()),
            client_rtt_ms = rtt(near),
            server_rtt_ms = rtt(far),
            client_retransmissions = again(near),
            server_retransmissions = again(far),
            "{end}"
        );
    }

    /// Returns the permit before the peers learn of the end, so that a client can reconnect at
    /// once.
    pub(crate) fn leave(&mut self) {
        self.permit = None;
    }

    /// Returns the relay that accepted the connection.
    pub(crate) fn guest_of(&self) -> &Arc<RunningRelay> {
        &self.running
    }
}

/// Copies the error of a leg, which keeps its own.
fn copied(why: &io::Error) -> io::Error {
    match (tls_error(why), UnusablePeerRelay::of(why)) {
        (Some(of_tls), _) => io::Error::new(why.kind(), of_tls.clone()),
        (_, Some(of_pair)) => io::Error::new(why.kind(), of_pair.clone()),
        (None, None) => io::Error::new(why.kind(), why.to_string()),
    }
}

fn broke(why: BrokenLeg, source: &mut Leg, sink: &mut Leg) -> bool {
    match why {
        BrokenLeg::Source(e) => source.fail(e),
        BrokenLeg::Sink(e) => sink.fail(e),
    }
    true
}

fn way<'a>(
    running: &'a RunningRelay,
    source: Option<IpAddr>,
    has_data: bool,
    around: &'a ConnectionContext<'_>,
) -> TargetDialContext<'a> {
    let at = (around.registry, around.slot * TOKENS + ATTEMPT);
    TargetDialContext::new(running, at, (source, has_data), around.means.now)
}

/// Reports if the client has sent data already. The kernel reports a reset only once: the caller
/// must keep an error from here, as the next read would return an end of file.
fn has_data(near: &Leg) -> io::Result<bool> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = near.tcp().map(|tcp| recv(tcp, &mut [0_u8; 1][..], flags));
    match peeked {
        Some(Err(e)) if e != Errno::AGAIN && e != Errno::INTR => Err(e.into()),
        peeked => Ok(matches!(peeked, Some(Ok((_, 1))))),
    }
}

impl ClientAddress {
    fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix | Self::Streams => None,
        }
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
            Self::Streams => f.write_str("stdin"),
        }
    }
}

impl fmt::Display for LegSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the client",
            Self::Server => "the server",
        })
    }
}

impl fmt::Display for ConnectionEndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(side) => write!(f, "closed, {side} first"),
            Self::Reset(_, e) if UnusablePeerRelay::of(e).is_some() => {
                write!(f, "connection closed: {e}")
            }
            Self::Reset(side, e) => f.write_str(&connection_sentence(&side.to_string(), e)),
            Self::Refused(why) => f.write_str(why),
            Self::Joins(_) => {
                f.write_str("joined another connection of the same peer relay as a stripe")
            }
            Self::Slow => {
                f.write_str("reset: the client did not finish its header in time (--entry-timeout)")
            }
            Self::NoTarget(why) => f.write_str(why),
            Self::Idle(after) => write!(f, "reset: nothing moved for {} s", after.as_secs_f32()),
            Self::Failed(e) => write!(f, "reset: an error in the relay: {}", os_words(e)),
            Self::CutOff => {
                f.write_str("reset: the relay is shutting down and --drain-timeout has passed")
            }
        }
    }
}
