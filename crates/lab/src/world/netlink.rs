//! Sets up interfaces, addresses and routes of the calling thread's network namespace
//! (rtnetlink(7)).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Skips duplicate address detection, which would take a second; no other host exists.
const IFA_F_NODAD: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTAX_CC_ALGO: u16 = 16;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const IFF_UP: u32 = 1;
const IFF_MULTICAST: u32 = 0x1000;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// A socket of the kernel's routing protocol.
#[derive(Debug)]
pub(super) struct RtnetlinkSocket {
    socket: OwnedFd,
}

impl RtnetlinkSocket {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            // NETLINK_ROUTE is protocol 0.
            None,
        )?;
        Ok(Self { socket })
    }

    /// The index of an interface.
    pub(super) fn index(&self, name: &str) -> io::Result<u32> {
        rustix::net::netdevice::name_to_index(&self.socket, name).map_err(io::Error::from)
    }

    /// Brings an interface up.
    pub(super) fn up(&self, index: u32) -> io::Result<()> {
        self.ask(RTM_NEWLINK, 0, &link(index, IFF_UP, IFF_UP))
    }

    /// Sets the MTU and the device's queue, and turns multicast off: the kernel's own packets (MLD
    /// reports of IPv6) must not cross the path.
    pub(super) fn shape(&self, index: u32, mtu: u32, queue_packets: u32) -> io::Result<()> {
        let mut message = link(index, 0, IFF_MULTICAST);
        attribute(&mut message, IFLA_MTU, &mtu.to_ne_bytes());
        attribute(&mut message, IFLA_TXQLEN, &queue_packets.to_ne_bytes());
        self.ask(RTM_NEWLINK, 0, &message)
    }

    /// Adds an address to an interface.
    pub(super) fn address(&self, index: u32, address: IpAddr) -> io::Result<()> {
        let (family, bytes) = parts(address);
        let mut message = vec![family, (bytes.len() * 8) as u8, IFA_F_NODAD, 0];
        message.extend(index.to_ne_bytes());
        attribute(&mut message, IFA_LOCAL, &bytes);
        attribute(&mut message, IFA_ADDRESS, &bytes);
        self.ask(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &message)
    }

    /// Adds a route to `to` over an interface, with a congestion control if one is named. Unlike
    /// the namespace's default, a route may name one that the machine restricts.
    pub(super) fn route(
        &self,
        index: u32,
        to: IpAddr,
        congestion_control: Option<&str>,
    ) -> io::Result<()> {
        let (family, bytes) = parts(to);
        let mut message = vec![
            family,
            (bytes.len() * 8) as u8,
            0,
            0,
            RT_TABLE_MAIN,
            RTPROT_STATIC,
            RT_SCOPE_LINK,
            RTN_UNICAST,
        ];
        message.extend(0_u32.to_ne_bytes());
        attribute(&mut message, RTA_DST, &bytes);
        attribute(&mut message, RTA_OIF, &index.to_ne_bytes());
        if let Some(name) = congestion_control {
            let mut metrics = Vec::new();
            let name: Vec<u8> = name.bytes().chain([0]).collect();
            attribute(&mut metrics, RTAX_CC_ALGO, &name);
            attribute(&mut message, RTA_METRICS, &metrics);
        }
        self.ask(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &message)
    }

    fn ask(&self, kind: u16, flags: u16, message: &[u8]) -> io::Result<()> {
        let mut request = Vec::with_capacity(16 + message.len());
        request.extend((16 + message.len() as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        request.extend([0; 8]);
        request.extend(message);
        send(&self.socket, &request, SendFlags::empty())?;
        let mut answer = [0; 1024];
        let (got, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
        // The answer is an nlmsghdr and an nlmsgerr, which begins with the negated error number.
        match (answer.get(4..6), answer.get(16..20)) {
            (Some(kind), Some(error)) if got >= 20 && kind == NLMSG_ERROR.to_ne_bytes() => {
                match error.try_into().map_or(0, i32::from_ne_bytes) {
                    0 => Ok(()),
                    negated => Err(io::Error::from_raw_os_error(-negated)),
                }
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Encodes an ifinfomsg.
fn link(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(index.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(change.to_ne_bytes());
    message
}

fn parts(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    }
}

/// Appends an rtattr, padded to four bytes.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}
