//! Addresses that lead to this machine, or to all machines of a link.
//!
//! A relay whose clients name their targets must not let them reach services on this machine, which
//! trust local connections: a socket bound to all addresses answers at each of them, not only at
//! 127.0.0.1. The check asks the kernel about the address just before the connect, so that names
//! that resolve to an own address, addresses added later and `local` routes count as well.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::net::netlink::SocketAddrNetlink;
#[cfg(target_os = "linux")]
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// Reports addresses that a relay connects to only if a rule names them.
///
/// These are addresses that the kernel delivers to this machine, loopback, unspecified and
/// link-local ones, broadcast and multicast, and IPv6 addresses that embed one of them for a
/// translator (NAT64, 6to4, IPv4-compatible).
pub fn is_own(ip: IpAddr) -> bool {
    is_special(ip)
        || within(ip).is_some_and(|v4| is_special(v4.into()) || is_delivered_here(v4.into()))
        || is_delivered_here(ip.to_canonical())
}

/// Reports addresses that never identify one other machine, independent of the local interfaces:
/// loopback, unspecified, link-local, multicast and the like.
pub fn is_special(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            ip.is_loopback()
                || ip.octets()[0] == 0
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast()
        }
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_unicast_link_local()
                || ip.is_multicast()
                || within(ip.into()).is_some_and(|v4| is_special(v4.into()))
        }
    }
}

/// Returns the IPv4 address that is embedded in an IPv6 address for a translator or a tunnel.
fn within(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip.to_canonical() else {
        return None;
    };
    let bits = ip.to_bits();
    let last = Ipv4Addr::from_bits(bits as u32);
    match ip.segments() {
        // NAT64: the well-known prefix (RFC 6052), and networks of one's own (RFC 8215).
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0x64, 0xff9b, 1, ..] => Some(last),
        // 6to4 (RFC 3056).
        [0x2002, ..] => Some(Ipv4Addr::from_bits((bits >> 80) as u32)),
        // IPv4-compatible (RFC 4291 section 2.5.5.1), except `::` and `::1`.
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => Some(last),
        _ => None,
    }
}

/// Reports addresses for which the kernel has no unicast route to another machine: local,
/// broadcast, anycast and multicast ones.
pub fn is_delivered_here(ip: IpAddr) -> bool {
    match route_type(ip) {
        Ok(kind) => kind != UNICAST,
        // There is no route to the address; connect(2) will report that.
        Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => false,
        // Netlink is unavailable. bind(2) succeeds only for addresses of this machine.
        Err(_) => UdpSocket::bind((ip, 0)).is_ok(),
    }
}

#[cfg(not(target_os = "linux"))]
fn route_type(_: IpAddr) -> rustix::io::Result<u8> {
    Err(Errno::OPNOTSUPP)
}

/// Route type `RTN_UNICAST` of rtnetlink(7); the other types are local, broadcast, anycast,
/// multicast and rejecting routes.
const UNICAST: u8 = 1;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
/// Sizes of `nlmsghdr` and `rtmsg`, in bytes.
const HEADER: usize = 16;
const ROUTE: usize = 12;

/// Returns the type of the kernel's route to an address, like `ip route get`.
fn route_type(ip: IpAddr) -> rustix::io::Result<u8> {
    let (family, bits): (u8, &[u8]) = match &ip {
        IpAddr::V4(ip) => (2, &ip.octets()),
        IpAddr::V6(ip) => (10, &ip.octets()),
    };
    let len = HEADER + ROUTE + 4 + bits.len();
    let mut request = Vec::with_capacity(len);
    request.extend((len as u32).to_ne_bytes());
    request.extend(RTM_GETROUTE.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence and port number stay 0: the socket carries one request and one answer.
    request.extend([0; 8]);
    request.extend([family, (bits.len() * 8) as u8]);
    request.extend([0; ROUTE - 2]);
    request.extend((4 + bits.len() as u16).to_ne_bytes());
    request.extend(RTA_DST.to_ne_bytes());
    request.extend(bits);
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // NETLINK_ROUTE.
        None,
    )?;
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &request, SendFlags::empty(), &kernel)?;
    let mut answer = [0; 4096];
    // Netlink answers within sendto(2), so that the receive never waits.
    let (_, len) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    kind_in(answer.get(..len).unwrap_or_default())
}

/// Parses the route type from the kernel's answer, or the errno in it.
fn kind_in(answer: &[u8]) -> rustix::io::Result<u8> {
    let kind = answer
        .get(4..6)
        .map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    match kind {
        // rtm_type.
        Some(RTM_NEWROUTE) => answer.get(HEADER + 7).copied().ok_or(Errno::PROTO),
        Some(NLMSG_ERROR) => {
            let code = answer.get(HEADER..HEADER + 4).ok_or(Errno::PROTO)?;
            let code = code.try_into().map(i32::from_ne_bytes);
            let code = code.map_err(|_| Errno::PROTO)?;
            Err(Errno::from_raw_os_error(code.checked_neg().unwrap_or(0)))
        }
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_back_whatever_interfaces_there_are() {
        for text in [
            "127.0.0.1",
            "127.8.9.1",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:0.0.0.0",
            "fe80::1",
            "ff02::1",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::127.0.0.1",
            "2002:7f00:1::",
            "::127.0.0.1",
        ] {
            assert!(is_special(text.parse().unwrap()), "{text}");
            assert!(is_own(text.parse().unwrap()), "{text}");
        }
        for text in [
            "192.0.2.1",
            "10.1.2.3",
            "2001:db8::1",
            "fd00::1",
            "64:ff9b::192.0.2.1",
        ] {
            assert!(!is_special(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn the_kernel_tells_what_it_delivers_here() {
        assert_eq!(
            route_type(Ipv4Addr::LOCALHOST.into()).map(|k| k != UNICAST),
            Ok(true)
        );
        // 127.0.0.0/8 is local: a socket bound to all addresses answers here as well.
        assert!(is_delivered_here("127.200.1.2".parse().unwrap()));
        assert!(is_own(std::net::Ipv6Addr::LOCALHOST.into()));
        assert!(!is_delivered_here("203.0.113.77".parse().unwrap()));
    }

    #[test]
    fn answers_that_are_none() {
        for answer in [&[][..], &[0; 5], &[0; 40]] {
            assert_eq!(kind_in(answer), Err(Errno::PROTO));
        }
        let mut refused = vec![0; HEADER + 4];
        refused[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        refused[HEADER..].copy_from_slice(&(-101_i32).to_ne_bytes());
        assert_eq!(kind_in(&refused), Err(Errno::NETUNREACH));
    }
}
