//! Hook of connect(2): connects to the program's destination, or to a relay that a rule names.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::carrier::{CarrierConnection, header};
use crate::ipc::{IpcMessageHeader, IpcRequestKind};
use crate::rules::{WrapRules, mapped};
use crate::socket::Fd;
use crate::socks::{self, SocksRequest};
use crate::table::{CarriedState, ConnectionEntryValues, ConnectionTuningState, NO_MARK};
use crate::watch::{ConnectDecision, TunableSocket as _, is_same, outset, prepare_bulk, unmark};
use crate::{c, filter, init, real, table};

/// Length of `struct sockaddr_in`.
const V4: usize = 16;
/// Length of `struct sockaddr_in6`, whose last four bytes may be missing (RFC 2133).
pub(crate) const LONGEST: usize = 28;

/// Bytes of a `struct sockaddr` and their length, as connect(2) expects them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSockaddr {
    pub(crate) bytes: [u8; LONGEST],
    pub(crate) len: usize,
}

impl RawSockaddr {
    /// An AF_UNSPEC address, which disconnects a socket (connect(2)).
    const NOWHERE: Self = Self {
        bytes: [0; LONGEST],
        len: V4,
    };
}

/// Reads the IP address in a `struct sockaddr`, if it has one.
pub(crate) fn address(raw: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*raw.first_chunk()?);
    let port = u16::from_be_bytes(*raw.get(2..)?.first_chunk()?);
    let ip: IpAddr = match family {
        c::AF_INET if raw.len() >= V4 => {
            let octets: [u8; 4] = *raw.get(4..)?.first_chunk()?;
            Ipv4Addr::from(octets).into()
        }
        c::AF_INET6 if raw.len() >= LONGEST - 4 => {
            let octets: [u8; 16] = *raw.get(8..)?.first_chunk()?;
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Converts an address for a socket that was to connect to `instead_of`; `None` if that socket's
/// family cannot reach it.
fn raw(to: SocketAddr, instead_of: SocketAddr) -> Option<RawSockaddr> {
    let mut bytes = [0; LONGEST];
    let mut put = |at: usize, what: &[u8]| {
        for (to, from) in bytes.iter_mut().skip(at).zip(what) {
            *to = *from;
        }
    };
    put(2, &to.port().to_be_bytes());
    let len = match (instead_of, to.ip()) {
        (SocketAddr::V4(_), IpAddr::V4(ip)) => {
            put(0, &c::AF_INET.to_ne_bytes());
            put(4, &ip.octets());
            V4
        }
        (SocketAddr::V4(_), IpAddr::V6(_)) => return None,
        (SocketAddr::V6(_), _) => {
            put(0, &c::AF_INET6.to_ne_bytes());
            put(8, &mapped(to).octets());
            LONGEST
        }
    };
    Some(RawSockaddr { bytes, len })
}

/// Connects by the rules. Returns what the program's own call would: 0, or -1 with errno. `direct`
/// is that call; `to_relay` calls the same function with another address.
pub(crate) fn connect(
    fd: c_int,
    peer: SocketAddr,
    direct: impl Fn() -> c_int,
    to_relay: impl Fn(&RawSockaddr) -> c_int,
) -> c_int {
    let Some(rules) = init::rules() else {
        return direct();
    };
    if filter::is_filtered(fd) {
        c::set_errno(c::EISCONN);
        return -1;
    }
    let errno = c::SavedErrno::keep();
    let route = rules.route(peer).filter(|_| Fd(fd).is_stream());
    let relay = route.and_then(|route| Some((route, raw(route.via, peer)?)));
    let carried = match rules.filters(peer) && Fd(fd).is_stream() {
        true => CarriedState::Pending,
        false => CarriedState::NotCarried,
    };
    drop(errno);
    let watched = |via, call: &dyn Fn() -> c_int| watched(rules, fd, peer, via, carried, call);
    let Some((route, relay)) = relay else {
        return watched(None, &direct);
    };
    // The SOCKS handshake comes before the program's data. With a non-blocking socket the carrier
    // performs it.
    if route.socks && !c::waits(fd) {
        return connect_via(rules, fd, peer, route.via, &to_relay)
            .unwrap_or_else(|| watched(None, &direct));
    }
    let via = Some(route.via);
    let done = match route.socks {
        false => watched(via, &|| to_relay(&relay)),
        // A filter starts only after the proxy's answer.
        true => self::watched(rules, fd, peer, via, CarriedState::NotCarried, || {
            to_relay(&relay)
        }),
    };
    if done == 0 && route.socks {
        if is_led_on(fd, peer) {
            if let Some(entry) = table::entry(fd).filter(|_| carried == CarriedState::Pending) {
                entry.set_carried(carried);
                filter::settle(fd);
            }
            return done;
        }
        to_relay(&RawSockaddr::NOWHERE);
    } else if done == 0 || !is_refused(fd) {
        return done;
    }
    // The relay does not answer: connect as without a rule.
    let done = watched(None, &direct);
    match done != 0 && c::errno() == c::ECONNABORTED {
        // A non-blocking socket reports the failure of the former attempt first.
        true => watched(None, &direct),
        false => done,
    }
}

/// Connects to the carrier and tells it the proxy and the destination. `None` if no carrier
/// answers; the socket is unchanged then.
fn connect_via(
    rules: &WrapRules<'_>,
    fd: c_int,
    peer: SocketAddr,
    via: SocketAddr,
    to_relay: &impl Fn(&RawSockaddr) -> c_int,
) -> Option<c_int> {
    let errno = c::SavedErrno::keep();
    let entry = table::entry(fd)?;
    let port = rules.carrier?.port;
    let at = raw(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port), peer)?;
    // A repeated call asks for the state of the connection.
    let again = entry.carried() == CarriedState::Proxied && is_same(entry, &Fd(fd));
    let carrier = (!again).then(CarrierConnection::reach).flatten();
    drop(errno);
    if again {
        return Some(to_relay(&at));
    }
    let carrier = carrier?;
    let done = watched(rules, fd, peer, Some(via), CarriedState::Proxied, || {
        to_relay(&at)
    });
    if done != 0 && c::errno() != c::EINPROGRESS {
        return None;
    }
    let errno = c::SavedErrno::keep();
    let mut own = [0; LONGEST];
    let own = real::own_address(fd, &mut own).and_then(|len| address(own.get(..len)?));
    let name = init::program().as_bytes();
    let header = IpcMessageHeader {
        port: own.map_or(0, |own| own.port()),
        peer,
        via,
        ..header(IpcRequestKind::ConnectVia, Fd(fd).cookie(), name)
    };
    if own.is_some() && carrier.tell(&header, name, &[]) {
        drop((carrier, errno));
        return Some(done);
    }
    entry.free();
    to_relay(&RawSockaddr::NOWHERE);
    None
}

/// Performs the SOCKS 5 handshake. Returns true if the proxy has connected to `peer`.
fn is_led_on(fd: c_int, peer: SocketAddr) -> bool {
    let errno = c::SavedErrno::keep();
    let mut welcome = [0; socks::WELCOME.len()];
    let mut head = [0; 5];
    let mut rest = [0; socks::REST];
    let led = real::send(fd, &socks::GREETING)
        && real::receive(fd, &mut welcome)
        && welcome == socks::WELCOME
        && real::send(fd, SocksRequest::new(peer).bytes())
        && real::receive(fd, &mut head)
        && socks::rest(head)
            .and_then(|len| rest.get_mut(..len))
            .is_some_and(|rest| real::receive(fd, rest));
    drop(errno);
    led
}

/// Returns true if connect(2) failed, or will, because nothing listens at the address or it is
/// unreachable.
fn is_refused(fd: c_int) -> bool {
    let errno = c::SavedErrno::keep();
    let error = match errno.get() {
        // On this machine a refusal is known at once.
        c::EINPROGRESS => Fd(fd).error().unwrap_or(0),
        error => error,
    };
    let refused = matches!(error, c::ECONNREFUSED | c::ENETUNREACH | c::EHOSTUNREACH);
    drop(errno);
    refused
}

/// Connects, and applies the rules to the connection.
fn watched(
    rules: &WrapRules<'_>,
    fd: c_int,
    peer: SocketAddr,
    via: Option<SocketAddr>,
    carried: CarriedState,
    call: impl Fn() -> c_int,
) -> c_int {
    let to = via.unwrap_or(peer);
    let outset = match (carried, outset(rules, &init::MEMORY, to.ip())) {
        // The network connection is the carrier's.
        (CarriedState::Proxied, _) => ConnectDecision::ReportOnly,
        (CarriedState::Pending | CarriedState::Filtered, ConnectDecision::Ignore) => {
            ConnectDecision::ReportOnly
        }
        (_, outset) => outset,
    };
    let Some(entry) = table::entry(fd) else {
        return call();
    };
    if outset == ConnectDecision::Ignore {
        entry.free();
        return call();
    }
    let errno = c::SavedErrno::keep();
    let socket = Fd(fd);
    let cookie = socket.cookie();
    if cookie == 0 || !socket.is_stream() {
        drop(errno);
        return call();
    }
    let (mark, mut changed) = match outset {
        ConnectDecision::Far | ConnectDecision::All => unmark(rules, &socket),
        ConnectDecision::Ignore | ConnectDecision::ReportOnly | ConnectDecision::DecideAtWrite => {
            (NO_MARK, 0)
        }
    };
    if outset == ConnectDecision::All {
        changed |= prepare_bulk(rules, &socket, true);
    }
    let state = match outset {
        ConnectDecision::Ignore | ConnectDecision::ReportOnly => ConnectionTuningState::Untuned,
        ConnectDecision::DecideAtWrite => ConnectionTuningState::New,
        ConnectDecision::Far => ConnectionTuningState::DscpRemoved,
        ConnectDecision::All => ConnectionTuningState::Done,
    };
    let beginning = ConnectionEntryValues {
        owner: c::process(),
        cookie,
        now_us: c::now_us(),
        mark,
        changed,
        peer,
        via,
    };
    drop(errno);
    let done = call();
    if done == 0 || matches!(c::errno(), c::EINPROGRESS | c::EINTR) {
        entry.begin(&beginning, state);
        entry.set_carried(carried);
    }
    if done == 0 {
        filter::settle(fd);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for (to, instead_of, read) in [
            ("127.0.0.1:9", "192.0.2.1:22", Some("127.0.0.1:9")),
            (
                "127.0.0.1:9",
                "[2001:db8::1]:22",
                Some("[::ffff:127.0.0.1]:9"),
            ),
            ("[::1]:65535", "[2001:db8::1]:22", Some("[::1]:65535")),
            ("[::1]:9", "192.0.2.1:22", None),
        ] {
            let raw = raw(to.parse().unwrap(), instead_of.parse().unwrap());
            let found = raw.and_then(|raw| address(&raw.bytes[..raw.len]));
            assert_eq!(found, read.map(|read| read.parse().unwrap()), "{to}");
        }
    }

    #[test]
    fn what_is_no_ip_address_is_none() {
        assert_eq!(address(&[]), None);
        assert_eq!(address(&[2, 0, 0]), None);
        assert_eq!(address(&[1, 0, b'/', b'x']), None);
        // AF_UNSPEC disconnects.
        assert_eq!(address(&[0; 16]), None);
        let mut short = [0; 15];
        short[0] = 2;
        assert_eq!(address(&short), None);
    }
}
