//! Connecting to a target: targets are tried in turn, the addresses of each start 250 ms apart, and
//! the first connection wins (RFC 8305).

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use sys::SocketTuning;

use crate::address::{HostSpec, RelayEndpoint, TargetSpec};
use crate::entry::permit::names_address;
use crate::server::RunningRelay;
use crate::server::running::OutgoingConnectionEntry;
use sys::{is_own, os_words};

/// Head start of an address before the next one is tried too (RFC 8305 section 5).
const STAGGER: Duration = Duration::from_millis(250);
/// Maximum number of simultaneous attempts.
pub(crate) const ATTEMPTS: usize = 4;

/// Reason for refusing a connection to an address of this machine.
const OWN: &str =
    "it is an address of this machine or a link-local one, which --to must name explicitly";

/// State machine that connects to the first of a connection's targets that answers. At most
/// [`ATTEMPTS`] connects of one target run at once.
#[derive(Debug)]
pub(crate) struct TargetDialer {
    /// Targets not yet tried.
    goals: VecDeque<DialTarget>,
    /// True if addresses of this machine are refused unless a rule names them.
    elsewhere: bool,
    /// Target to which connections are being attempted.
    goal: Option<DialTarget>,
    addresses: VecDeque<AttemptedAddress>,
    attempts: [Option<ConnectAttempt>; ATTEMPTS],
    /// Time of the next attempt, beside those in progress.
    next: Instant,
    /// Time at which attempts for the current target end.
    deadline: Instant,
    resolving: bool,
    /// Failed targets, each with the reason.
    failures: Vec<String>,
    /// Failed attempts for the current target: the address, and the reason.
    failed_attempts: Vec<(String, String)>,
    /// True if an address of this machine was refused.
    forbidden: bool,
}

/// Target to try, with its place in the relay's list so that failures count against its health.
#[derive(Clone, Debug)]
pub(crate) struct DialTarget {
    pub(crate) target: Arc<TargetSpec>,
    /// Index among the relay's targets; `None` if the client has named the target.
    pub(crate) nth: Option<usize>,
}

/// Address, and the uplink by which it is tried, if there are several.
type AttemptedAddress = (SocketAddr, Option<usize>);

/// Non-blocking connect in progress to one address.
#[derive(Debug)]
struct ConnectAttempt {
    socket: Socket,
    to: AttemptedAddress,
    on_its_way: Option<OutgoingConnectionEntry>,
}

/// Result of [`TargetDialer::turn`]: the next step for the connection's worker.
#[derive(Debug)]
pub(crate) enum DialTurnResult {
    /// Nothing to do until an event or this time.
    Waiting(Instant),
    /// The addresses of this name have to be resolved.
    ResolveName(String),
    Connected {
        socket: OwnedFd,
        goal: DialTarget,
        to: Option<SocketAddr>,
        /// Uplink of the connection, if there are several.
        uplink: Option<usize>,
        on_its_way: Option<OutgoingConnectionEntry>,
    },
    Failed(String),
    /// Failed, and addresses of this machine were refused.
    Forbidden(String),
}

/// Parts of a relayed connection that [`TargetDialer`] uses.
pub(crate) struct TargetDialContext<'a> {
    running: &'a RunningRelay,
    registry: &'a Registry,
    /// Event token of the first attempt.
    token: usize,
    /// Address of the client.
    source: Option<IpAddr>,
    /// The client has already sent data.
    has_data: bool,
    now: Instant,
}

impl<'a> TargetDialContext<'a> {
    /// Collects what dialling uses: the relay, the event loop with the token of the first attempt,
    /// and the client's address, if it is kept, and whether it has sent data already.
    pub(crate) fn new(
        running: &'a RunningRelay,
        (registry, token): (&'a Registry, usize),
        (source, has_data): (Option<IpAddr>, bool),
        now: Instant,
    ) -> Self {
        Self {
            running,
            registry,
            token,
            source,
            has_data,
            now,
        }
    }
}

impl TargetDialer {
    /// Starts to connect to the first of these targets that answers.
    pub(crate) fn new(goals: VecDeque<DialTarget>, elsewhere: bool, now: Instant) -> Self {
        Self {
            goals,
            elsewhere,
            goal: None,
            addresses: VecDeque::new(),
            attempts: Default::default(),
            next: now,
            deadline: now,
            resolving: false,
            failures: Vec::new(),
            failed_attempts: Vec::new(),
            forbidden: false,
        }
    }

    /// Takes the addresses of a name.
    pub(crate) fn resolved(&mut self, way: &TargetDialContext<'_>, ips: &[IpAddr]) {
        self.resolving = false;
        let place = self.goal.as_ref().map(|goal| &goal.target.place);
        let port = match place {
            Some(RelayEndpoint::Tcp { port, .. }) => *port,
            _ => 0,
        };
        let all: Vec<_> = ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        self.addresses = ways(&all, way);
        self.next = way.now;
    }

    /// Handles a name that could not be resolved.
    pub(crate) fn unresolved(&mut self, way: &TargetDialContext<'_>, why: &str) {
        self.resolving = false;
        self.fail(way, why);
    }

    /// Proceeds as far as possible.
    pub(crate) fn turn(&mut self, way: &TargetDialContext<'_>) -> DialTurnResult {
        loop {
            if let Some(connected) = self.look(way) {
                return connected;
            }
            if way.now >= self.deadline && (self.resolving || self.is_busy()) {
                let after = way.running.relay.connect_timeout.as_secs_f32();
                self.fail(
                    way,
                    &format!(
                        "no answer within {after} s (--connect-timeout); a firewall may drop the \
                         packets"
                    ),
                );
            }
            if self.resolving {
                return DialTurnResult::Waiting(self.deadline);
            }
            if self.is_busy() {
                let free = self.attempts.iter().position(Option::is_none);
                let more = free.filter(|_| !self.addresses.is_empty());
                match more {
                    Some(_) if way.now < self.next => {
                        return DialTurnResult::Waiting(self.next.min(self.deadline));
                    }
                    Some(slot) => self.start(way, slot),
                    None => return DialTurnResult::Waiting(self.deadline),
                }
                continue;
            }
            let Some(goal) = self.goals.pop_front() else {
                let why = no_connection(&std::mem::take(&mut self.failures));
                return match self.forbidden {
                    true => DialTurnResult::Forbidden(why),
                    false => DialTurnResult::Failed(why),
                };
            };
            self.goal = Some(goal.clone());
            self.deadline = way.now + way.running.relay.connect_timeout;
            self.next = way.now;
            match &goal.target.place {
                RelayEndpoint::Tcp {
                    host: HostSpec::Name(name),
                    ..
                } => {
                    self.resolving = true;
                    return DialTurnResult::ResolveName(name.clone());
                }
                RelayEndpoint::Unix(path) => match connect_unix(path) {
                    Ok(socket) => {
                        return DialTurnResult::Connected {
                            socket: socket.into(),
                            goal,
                            to: None,
                            uplink: None,
                            on_its_way: None,
                        };
                    }
                    Err(e) => self.fail(way, &os_words(&e)),
                },
                place => {
                    self.addresses = ways(&place.addresses().unwrap_or_default(), way);
                }
            }
        }
    }

    /// Reports if attempts are running or addresses are left to try.
    fn is_busy(&self) -> bool {
        !self.addresses.is_empty() || self.attempts.iter().any(Option::is_some)
    }

    /// Checks the running attempts: returns the connected one, and records failed ones.
    fn look(&mut self, way: &TargetDialContext<'_>) -> Option<DialTurnResult> {
        for slot in 0..ATTEMPTS {
            let Some(attempt) = self.attempts.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            let error = attempt.socket.take_error().unwrap_or_else(Some);
            match (error, attempt.socket.peer_addr()) {
                (Some(e), _) => self.failed(way, attempt.to, &e),
                // The address has become one of this machine since it was checked.
                (None, Ok(_))
                    if self.elsewhere
                        && is_this_machine(&attempt.socket)
                        && !names_address(&way.running.relay.permits, attempt.to.0) =>
                {
                    self.forbidden = true;
                    let e = io::Error::other(OWN);
                    self.failed(way, attempt.to, &e);
                }
                (None, Ok(_)) if is_itself(&attempt.socket) => {
                    let e = io::Error::other(
                        "the target is a port of this relay, which would be a loop: name another \
                         target",
                    );
                    self.failed(way, attempt.to, &e);
                }
                (None, Ok(_)) => {
                    let (to, uplink) = attempt.to;
                    way.running.uplinks.answered(uplink);
                    return Some(DialTurnResult::Connected {
                        socket: attempt.socket.into(),
                        goal: self.goal.take()?,
                        to: Some(to),
                        uplink,
                        on_its_way: attempt.on_its_way,
                    });
                }
                (None, Err(_)) => {
                    if let Some(place) = self.attempts.get_mut(slot) {
                        *place = Some(attempt);
                    }
                }
            }
        }
        None
    }

    fn failed(
        &mut self,
        way: &TargetDialContext<'_>,
        (to, uplink): AttemptedAddress,
        e: &io::Error,
    ) {
        // The next attempt starts without the head start.
        self.next = way.now;
        way.running.uplinks.failed(uplink, way.now);
        let to = way.running.uplinks.named(uplink, &to);
        let why = match e.kind() {
            io::ErrorKind::AddrNotAvailable => {
                "this machine has no such address to connect from, or no free port: check --bind"
                    .to_owned()
            }
            _ => os_words(e),
        };
        self.failed_attempts.push((to, why));
        if !self.is_busy() {
            self.give_up(way, None);
        }
    }

    /// Gives up the current target for a reason that is not that of one address.
    fn fail(&mut self, way: &TargetDialContext<'_>, why: &str) {
        self.give_up(way, Some(why));
    }

    /// Gives up the current target, after its failed attempts and perhaps for a further reason.
    fn give_up(&mut self, way: &TargetDialContext<'_>, why: Option<&str>) {
        let attempts = std::mem::take(&mut self.failed_attempts);
        if let Some(goal) = self.goal.take() {
            let target = goal.target.to_string();
            self.failures.push(target_failure(&target, &attempts, why));
            way.running.health.failed(goal.nth, way.now);
        }
        self.resolving = false;
        self.addresses.clear();
        self.attempts = Default::default();
    }

    /// Starts an attempt to the next address.
    fn start(&mut self, way: &TargetDialContext<'_>, slot: usize) {
        let Some(attempted) = self.addresses.pop_front() else {
            return;
        };
        let (to, _) = attempted;
        self.next = way.now + STAGGER;
        let started = match way.running.would_be_a_loop(to) {
            _ if self.is_forbidden(way, to) => {
                self.forbidden = true;
                Err(io::Error::other(OWN))
            }
            true => Err(io::Error::other(
                "the target is this relay itself, which would be a loop: name another target",
            )),
            false => self.connect(way, slot, attempted),
        };
        match started {
            Ok((socket, on_its_way)) => {
                if let Some(place) = self.attempts.get_mut(slot) {
                    *place = Some(ConnectAttempt {
                        socket,
                        to: attempted,
                        on_its_way,
                    });
                }
            }
            Err(e) => self.failed(way, attempted, &e),
        }
    }

    /// Reports if an address belongs to this machine and no rule names it.
    fn is_forbidden(&self, way: &TargetDialContext<'_>, to: SocketAddr) -> bool {
        self.elsewhere && is_own(to.ip()) && !names_address(&way.running.relay.permits, to)
    }

    fn connect(
        &self,
        way: &TargetDialContext<'_>,
        slot: usize,
        to: AttemptedAddress,
    ) -> io::Result<(Socket, Option<OutgoingConnectionEntry>)> {
        let goal = self.goal.as_ref();
        let (socket, on_its_way) = begin(way, goal.map_or("", |goal| goal.target.host_name()), to)?;
        let fd = socket.as_raw_fd();
        let token = Token(way.token + slot);
        way.registry
            .register(&mut SourceFd(&fd), token, Interest::WRITABLE)?;
        Ok((socket, on_its_way))
    }
}

/// Combines each address with each uplink that can reach it, ordered so that neither a dead address
/// nor a dead uplink is tried twice in a row.
fn ways(all: &[SocketAddr], way: &TargetDialContext<'_>) -> VecDeque<AttemptedAddress> {
    let uplinks = &way.running.uplinks;
    let turn = uplinks.turn();
    let orders: Vec<_> = all
        .iter()
        .map(|to| uplinks.order(to.ip(), turn, &|_| 0, way.now))
        .collect();
    let rounds = orders.iter().map(Vec::len).max().unwrap_or(0);
    let mut ways = VecDeque::new();
    for round in 0..rounds {
        for (nth, (to, order)) in all.iter().zip(&orders).enumerate() {
            if round < order.len() {
                let uplink = order.get((nth + round) % order.len());
                ways.push_back((*to, uplink.copied().flatten()));
            }
        }
    }
    ways
}

/// Starts to connect to an address of this host, by one of the uplinks.
pub(crate) fn begin(
    way: &TargetDialContext<'_>,
    host: &str,
    (to, uplink): (SocketAddr, Option<usize>),
) -> io::Result<(Socket, Option<OutgoingConnectionEntry>)> {
    let relay = &way.running.relay;
    let sockopts = &relay.sockopts;
    let buffers = match sockopts.no_sizes() {
        true => relay.tuning.buffers,
        false => {
            sockopts
                .for_connection(host, Some(to.ip()), way.source)
                .server
        }
    };
    let uplink = way.running.uplinks.get(uplink);
    let bind = match relay.keep_address {
        true => way.source.filter(|ip| ip.is_ipv4() == to.is_ipv4()),
        false => uplink.and_then(|uplink| uplink.bind),
    };
    if relay.keep_address && bind.is_none() {
        return Err(io::Error::other(
            "the client's and the target's addresses are not both IPv4 or both IPv6, as \
             --keep-address needs: use a target of the client's family",
        ));
    }
    let tuning = SocketTuning {
        buffers,
        bind,
        interface: uplink.and_then(|uplink| uplink.interface.clone()),
        transparent: relay.keep_address,
        ..relay.tuning.clone()
    };
    let socket = tuning.socket(&to)?;
    socket.set_nonblocking(true)?;
    // Multipath TCP has neither urgent data nor this option.
    let _ = socket.set_out_of_band_inline(true);
    if relay.fastopen && way.has_data {
        sys::connect_with_data(&socket);
    }
    let (done, on_its_way) = match relay.speaks.diverted {
        None => (socket.connect(&to.into()), None),
        Some(_) => {
            let (done, on_its_way) = way.running.outgoing.connect(&socket, to);
            (done, Some(on_its_way))
        }
    };
    match done {
        Ok(()) => {}
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INPROGRESS) => {}
        Err(e) => return Err(e),
    }
    Ok((socket, on_its_way))
}

/// Reports a TCP self-connect: a socket that connects to a local port in the ephemeral range can
/// get that port as its own.
fn is_itself(socket: &Socket) -> bool {
    let ends = (socket.local_addr(), socket.peer_addr());
    matches!(ends, (Ok(here), Ok(there)) if here.as_socket() == there.as_socket())
}

/// Reports if both ends of a connection have the same IP address, which means this machine unless a
/// firewall rule rewrites addresses.
fn is_this_machine(socket: &Socket) -> bool {
    let ends = (socket.local_addr(), socket.peer_addr());
    let (Ok(here), Ok(there)) = ends else {
        return false;
    };
    let ip = |at: SockAddr| at.as_socket().map(|at| at.ip().to_canonical());
    ip(here).is_some_and(|here| ip(there) == Some(here))
}

/// Describes the failure of one target. An address that is the target itself is not repeated.
fn target_failure(target: &str, attempts: &[(String, String)], why: Option<&str>) -> String {
    let attempts = attempts
        .iter()
        .map(|(to, reason)| match to.strip_prefix(target) {
            Some("") => reason.clone(),
            // The uplink follows the address.
            Some(rest) if rest.starts_with(' ') => format!("{}: {reason}", rest.trim_start()),
            _ => format!("{to}: {reason}"),
        });
    let reasons: Vec<_> = attempts.chain(why.map(str::to_owned)).collect();
    format!("{target}: {}", reasons.join(", "))
}

/// Describes the failures of all targets in one sentence.
fn no_connection(failures: &[String]) -> String {
    let which = match failures {
        [_] => "the target",
        _ => "any target:",
    };
    format!("cannot connect to {which} {}", failures.join("; "))
}

fn connect_unix(path: &std::path::Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(to: &str, why: &str) -> (String, String) {
        (to.to_owned(), why.to_owned())
    }

    /// Regression: "127.0.0.1:42999: 127.0.0.1:42999: Connection refused".
    #[test]
    fn an_address_that_is_the_target_is_named_once() {
        let refused = [attempt("127.0.0.1:42999", "connection refused")];
        let one = target_failure("127.0.0.1:42999", &refused, None);
        assert_eq!(
            no_connection(std::slice::from_ref(&one)),
            "cannot connect to the target 127.0.0.1:42999: connection refused"
        );
        let other = target_failure("h:22", &[], Some("no answer"));
        assert_eq!(
            no_connection(&[one, other]),
            "cannot connect to any target: 127.0.0.1:42999: connection refused; h:22: no answer"
        );
    }

    #[test]
    fn addresses_and_uplinks_of_a_target_are_named() {
        let attempts = [
            attempt("192.0.2.1:22 from eth0", "refused"),
            attempt("192.0.2.1:22 from eth1", "refused"),
        ];
        assert_eq!(
            target_failure("192.0.2.1:22", &attempts, None),
            "192.0.2.1:22: from eth0: refused, from eth1: refused"
        );
        assert_eq!(
            target_failure(
                "h:22",
                &[attempt("192.0.2.1:22", "refused")],
                Some("no answer")
            ),
            "h:22: 192.0.2.1:22: refused, no answer"
        );
    }
}
