//! Connects to a host: resolves the name and races its addresses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;
use sys::SocketTuning;

use crate::config::ConnectTimeout;
use crate::disk::os_words;
use crate::escape;
use crate::session::{PATIENCE, SilenceNotices, StallNotice};

/// The delay before the next address is tried too (RFC 8305 section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// The address families that may be used (AddressFamily).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowedAddressFamilies {
    /// IPv4 and IPv6.
    #[default]
    Any,
    /// IPv4 only (`-4`).
    V4,
    /// IPv6 only (`-6`).
    V6,
}

impl AllowedAddressFamilies {
    /// The message about a host without a usable address.
    fn no_address(self) -> String {
        let (family, flag) = match self {
            Self::Any => return "the host has no address".to_owned(),
            Self::V4 => ("IPv4", "-4"),
            Self::V6 => ("IPv6", "-6"),
        };
        format!(
            "the host has no {family} address, and only {family} is allowed: leave out {flag}, or \
             change AddressFamily in ssh_config"
        )
    }
}

/// The settings of a TCP connection.
#[derive(Clone, Debug, Default)]
pub struct TcpConnectSettings {
    /// The AddressFamily setting.
    pub family: AllowedAddressFamilies,
    /// The BindAddress setting.
    pub bind: Option<IpAddr>,
    /// Limit of the time until the host answers; `None` uses the kernel's timeout.
    pub timeout: Option<ConnectTimeout>,
    /// The ConnectionAttempts setting.
    pub attempts: u32,
    /// Socket options, including DSCP.
    pub tuning: SocketTuning,
}

/// The reason why no connection was made.
#[derive(Debug)]
pub enum DialError {
    /// The resolver does not know the name.
    Unresolved(io::Error),
    /// The name has no address of the requested family.
    NoAddress(AllowedAddressFamilies),
    /// No address answered; contains the last error.
    Unreachable(io::Error),
    /// The connect timeout expired.
    TimedOut(ConnectTimeout),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresolved(error) => f.write_str(&unresolved("the host name", error)),
            Self::NoAddress(families) => f.write_str(&families.no_address()),
            Self::Unreachable(e) => match e.kind() {
                io::ErrorKind::ConnectionRefused => {
                    f.write_str("connection refused: no SSH server listens there")
                }
                io::ErrorKind::TimedOut => f.write_str(
                    "connection timed out: check the address, and if a firewall blocks the port \
                     (-o ConnectTimeout=SECONDS gives up sooner)",
                ),
                io::ErrorKind::AddrNotAvailable => f.write_str(
                    "this machine has no address of that kind to connect from, or no free port: check \
                     BindAddress (--bind), and if IPv6 is off, use -4",
                ),
                _ => f.write_str(&os_words(e)),
            },
            Self::TimedOut(after) => {
                write!(
                    f,
                    "no answer within {} s{}: check the address, and if a firewall blocks the port",
                    after.time().as_secs_f32(),
                    after.hint()
                )
            }
        }
    }
}

impl DialError {
    /// Returns the sentence about a connection to `host` that was not made, which begins with `cannot`
    /// if an address was tried.
    pub fn sentence(&self, host: &str, cannot: &str) -> String {
        match self {
            Self::Unresolved(error) => unresolved(host, error),
            Self::NoAddress(_) => self.to_string(),
            Self::Unreachable(_) | Self::TimedOut(_) => format!("{cannot}: {self}"),
        }
    }
}

/// Notices about addresses that do not answer.
struct ConnectNotices<'a> {
    silence: SilenceNotices,
    awaited: String,
    tell: &'a mut dyn FnMut(StallNotice),
}

impl ConnectNotices<'_> {
    /// Time of the next notice.
    fn next_at(&self) -> Instant {
        self.silence.next_at(PATIENCE)
    }

    fn tell_if_due(&mut self, now: Instant) {
        if let Some(notice) = self.silence.take(now, PATIENCE, &self.awaited) {
            (self.tell)(notice);
        }
    }
}

/// The message about a name that the resolver does not know.
fn unresolved(name: &str, error: &io::Error) -> String {
    let why = sys::lookup_words(error);
    format!("cannot resolve {name}: {why}; check its spelling")
}

impl TcpConnectSettings {
    /// Connects to the first address of `host` that answers.
    ///
    /// Addresses of both families are tried in turn, a quarter of a second apart, and the first
    /// connection wins (RFC 8305), so that a dead IPv6 route costs 250 ms and not two minutes.
    pub fn connect(&self, host: &str, port: u16) -> Result<TcpStream, DialError> {
        self.connect_with_notices(host, port, &mut |_| {})
    }

    /// Connects like [`Self::connect`], and passes notices on while no address answers: the kernel
    /// repeats the request for two minutes.
    pub(super) fn connect_with_notices(
        &self,
        host: &str,
        port: u16,
        tell: &mut dyn FnMut(StallNotice),
    ) -> Result<TcpStream, DialError> {
        let addresses = self.resolve(host, port)?;
        let host = escape::name(host.as_bytes());
        let awaited = format!("{host} port {port} to accept the connection");
        let mut notices = ConnectNotices {
            silence: SilenceNotices::new(Instant::now()),
            awaited,
            tell,
        };
        self.connect_to_each(&addresses, &mut notices)
    }

    /// Connects to the first of these addresses that answers.
    pub fn connect_to(&self, addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
        let mut notices = ConnectNotices {
            silence: SilenceNotices::new(Instant::now()),
            awaited: String::new(),
            tell: &mut |_| {},
        };
        self.connect_to_each(addresses, &mut notices)
    }

    fn connect_to_each(
        &self,
        addresses: &[SocketAddr],
        notices: &mut ConnectNotices<'_>,
    ) -> Result<TcpStream, DialError> {
        let deadline = self.timeout.map(|t| Instant::now() + t.time());
        let mut last = DialError::NoAddress(self.family);
        for attempt in 0..self.attempts.max(1) {
            if attempt > 0 {
                // OpenSSH waits a second between attempts (sshconnect.c).
                std::thread::sleep(Duration::from_secs(1));
            }
            match self.race(addresses, deadline, notices) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        let all = (host, port)
            .to_socket_addrs()
            .map_err(DialError::Unresolved)?;
        let fits = |a: &SocketAddr| match self.family {
            AllowedAddressFamilies::Any => true,
            AllowedAddressFamilies::V4 => a.is_ipv4(),
            AllowedAddressFamilies::V6 => a.is_ipv6(),
        };
        let (mut first, mut second): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        for address in all.filter(fits) {
            // The resolver's order (RFC 6724) decides which family leads; then they alternate.
            let lead = first
                .first()
                .is_none_or(|f: &SocketAddr| f.is_ipv4() == address.is_ipv4());
            if lead {
                first.push(address)
            } else {
                second.push(address)
            }
        }
        let mut order = Vec::with_capacity(first.len() + second.len());
        let (mut a, mut b) = (first.into_iter(), second.into_iter());
        loop {
            match (a.next(), b.next()) {
                (None, None) => break,
                (x, y) => order.extend(x.into_iter().chain(y)),
            }
        }
        if order.is_empty() {
            return Err(DialError::NoAddress(self.family));
        }
        Ok(order)
    }

    fn race(
        &self,
        addresses: &[SocketAddr],
        deadline: Option<Instant>,
        notices: &mut ConnectNotices<'_>,
    ) -> Result<TcpStream, DialError> {
        let mut waiting = addresses.iter();
        let mut trying: Vec<Socket> = Vec::new();
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        loop {
            let started = match waiting.next() {
                Some(address) => match self.start(address) {
                    Ok(socket) => {
                        trying.push(socket);
                        true
                    }
                    Err(e) => {
                        last = e;
                        continue;
                    }
                },
                None => false,
            };
            if trying.is_empty() {
                return Err(DialError::Unreachable(last));
            }
            let next = started && waiting.len() > 0;
            let stagger = next.then(|| Instant::now() + STAGGER);
            let times = [deadline, stagger, Some(notices.next_at())];
            let until = times.into_iter().flatten().min();
            if let Some(stream) = wait(&mut trying, until, &mut last)? {
                self.tuning.connected(&stream);
                return Ok(stream);
            }
            if let (Some(deadline), Some(timeout)) = (deadline, self.timeout)
                && Instant::now() >= deadline
            {
                return Err(DialError::TimedOut(timeout));
            }
            notices.tell_if_due(Instant::now());
        }
    }

    fn start(&self, address: &SocketAddr) -> io::Result<Socket> {
        let socket = self.tuning.socket(address)?;
        if let Some(bind) = self.bind {
            socket.bind(&SocketAddr::new(bind, 0).into())?;
        }
        socket.set_nonblocking(true)?;
        match socket.connect(&(*address).into()) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(e) => return Err(e),
        }
        self.tuning.connecting(&socket);
        Ok(socket)
    }
}

/// Waits until one socket is connected and drops failed ones. `None` if the time is over or all
/// have failed.
fn wait(
    trying: &mut Vec<Socket>,
    until: Option<Instant>,
    last: &mut io::Error,
) -> Result<Option<TcpStream>, DialError> {
    while !trying.is_empty() {
        let timeout = match until {
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                Timespec::try_from(left).ok()
            }
            None => None,
        };
        let mut fds: Vec<_> = trying
            .iter()
            .map(|s| PollFd::new(s, PollFlags::OUT))
            .collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(DialError::Unreachable(e.into())),
        }
        let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        let mut index = ready.len();
        while index > 0 {
            index -= 1;
            if !ready.get(index).copied().unwrap_or(false) {
                continue;
            }
            let socket = trying.remove(index);
            match socket.take_error() {
                Ok(None) => return Ok(Some(socket.into())),
                Ok(Some(e)) | Err(e) => *last = e,
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn dial() -> TcpConnectSettings {
        TcpConnectSettings {
            timeout: Some(ConnectTimeout::Fixed(Duration::from_secs(5))),
            ..TcpConnectSettings::default()
        }
    }

    #[test]
    fn a_closed_port_says_so_and_an_open_one_connects() {
        // One that the kernel chooses may be another test's as soon as it is closed.
        let port = testkit::port::free();
        let error = dial().connect("127.0.0.1", port).unwrap_err().to_string();
        assert!(error.contains("connection refused"), "{error}");
        let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(dial().connect("127.0.0.1", port).is_ok());
        let unreachable = DialError::Unreachable(rustix::io::Errno::HOSTUNREACH.into());
        assert_eq!(unreachable.to_string(), "no route to host");
    }

    /// Bug: "no answer within 20 s (ConnectTimeout)" named a setting that the user did not have.
    #[test]
    fn a_limit_that_the_user_did_not_set_is_not_called_connect_timeout() {
        let late = |limit: fn(Duration) -> ConnectTimeout| {
            DialError::TimedOut(limit(Duration::from_secs(20))).to_string()
        };
        for (limit, begins) in [
            (
                late(ConnectTimeout::Set),
                "no answer within 20 s (ConnectTimeout): ",
            ),
            (
                late(ConnectTimeout::Default),
                "no answer within 20 s (ConnectTimeout sets another limit): ",
            ),
            (late(ConnectTimeout::Fixed), "no answer within 20 s: "),
        ] {
            assert!(limit.starts_with(begins), "{limit}");
        }
    }

    /// Bug: "cannot connect to port 22: cannot resolve the host name".
    #[test]
    fn a_name_that_is_not_resolved_was_said_to_be_connected_to() {
        let unknown = io::Error::from(io::ErrorKind::NotFound);
        let said = DialError::Unresolved(unknown).sentence("nowhere", "cannot connect to port 22");
        assert!(said.starts_with("cannot resolve nowhere: "), "{said}");
        let none = DialError::NoAddress(AllowedAddressFamilies::V6);
        let said = none.sentence("h", "cannot connect to port 22");
        assert!(said.starts_with("the host has no IPv6 address, "), "{said}");
        let refused = DialError::Unreachable(io::ErrorKind::ConnectionRefused.into());
        let said = refused.sentence("h", "cannot connect to port 22");
        let expected = "cannot connect to port 22: connection refused: no SSH server listens there";
        assert_eq!(said, expected);
    }

    #[test]
    fn a_family_that_the_host_lacks_is_named() {
        let dial = TcpConnectSettings {
            family: AllowedAddressFamilies::V6,
            ..dial()
        };
        assert!(matches!(
            dial.connect("127.0.0.1", 22),
            Err(DialError::NoAddress(_))
        ));
    }

    #[test]
    fn the_mark_is_on_the_socket_before_it_connects() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let dial = TcpConnectSettings {
            tuning: SocketTuning {
                dscp: 8,
                keepalive: sys::Keepalive::KernelTimes,
                congestion: Some("reno".to_owned()),
                ..SocketTuning::default()
            },
            ..dial()
        };
        let stream = dial.connect("127.0.0.1", port).unwrap();
        assert_eq!(socket2::SockRef::from(&stream).tos_v4().unwrap(), 32);
        assert!(stream.nodelay().unwrap());
        let control = socket2::SockRef::from(&stream).tcp_congestion().unwrap();
        assert!(control.starts_with(b"reno"), "{control:?}");
    }

    #[test]
    fn the_peer_sends_no_larger_segments_than_it_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let largest = |mss| {
            let mut dial = dial();
            dial.tuning.mss = mss;
            let _stream = dial.connect("127.0.0.1", port).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            sys::tcp_info(&accepted).unwrap().snd_mss
        };
        assert!(largest(None) > 1340);
        assert!(largest(Some(1340)) <= 1340);
    }
}
