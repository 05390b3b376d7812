//! One side of the path: a network namespace with a TUN device and TCP settings.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;

use sys::NamespaceKind;

use super::netlink::RtnetlinkSocket;
use crate::error::LabError;
use crate::path::NetworkPathSpec;

/// Name of the TUN device in both namespaces.
const DEVICE: &str = "path";

/// Packets that the device queues for the emulator; each takes a pointer in a ring. Practically
/// unlimited, since dropping packets is the emulator's task.
const DEVICE_QUEUE: u32 = 32_768;

/// Lowest MTU that IPv6 allows (RFC 8200, section 5).
const LEAST_MTU_OF_IPV6: u16 = 1280;

/// Name and addresses of a side, from the ranges for documentation (RFC 5737, RFC 3849).
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideAddresses {
    pub(crate) name: &'static str,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// The side of the command.
pub(crate) const NEAR: SideAddresses = SideAddresses {
    name: "near",
    v4: Ipv4Addr::new(192, 0, 2, 1),
    v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
};

/// The side of the servers.
pub(crate) const FAR: SideAddresses = SideAddresses {
    name: "far",
    v4: Ipv4Addr::new(192, 0, 2, 2),
    v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
};

/// Network namespace of one side, with its device, addresses and TCP settings.
#[derive(Debug)]
pub(super) struct LabNamespace {
    namespace: File,
    /// The emulator's end of the device, until the emulator takes it.
    pub(super) tun: Option<OwnedFd>,
}

/// Returns true if the path carries IPv6: the machine supports it, and the MTU is large enough.
pub(super) fn has_ipv6(path: &NetworkPathSpec) -> bool {
    path.mtu >= LEAST_MTU_OF_IPV6 && Path::new("/proc/sys/net/ipv6").is_dir()
}

impl LabNamespace {
    /// Creates the namespace and moves this thread into it.
    pub(super) fn new(
        me: SideAddresses,
        peer: SideAddresses,
        path: &NetworkPathSpec,
    ) -> Result<Self, LabError> {
        sys::unshare(NamespaceKind::Network)
            .map_err(|error| LabError::system("cannot create a network namespace", error))?;
        let namespace = File::open("/proc/thread-self/ns/net")
            .map_err(|error| LabError::system("/proc/thread-self/ns/net", error))?;
        let tun = sys::open_tun(DEVICE).map_err(no_tun)?;
        settings(path)?;
        let side = Self {
            namespace,
            tun: Some(tun),
        };
        configure(me, peer, path)?;
        Ok(side)
    }

    /// Moves this thread to this side; child processes start there from now on.
    pub(super) fn enter(&self) -> Result<(), LabError> {
        sys::enter_network(&self.namespace)
            .map_err(|error| LabError::system("cannot enter the lab's namespace", error))
    }

    /// Number of packets that the device of this thread's side dropped, which the emulator cannot
    /// see.
    pub(super) fn dropped_by_device() -> u64 {
        fs::read_to_string("/proc/thread-self/net/dev").map_or(0, |table| dropped(&table))
    }
}

/// The drops on receive and transmit in /proc/net/dev: columns 4 and 12 after the name.
fn dropped(table: &str) -> u64 {
    let line = table
        .lines()
        .filter_map(|line| line.trim().split_once(':'))
        .find(|(name, _)| *name == DEVICE);
    let columns: Vec<&str> = line.map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    [3, 11]
        .iter()
        .filter_map(|column| columns.get(*column)?.parse::<u64>().ok())
        .sum()
}

fn configure(
    me: SideAddresses,
    peer: SideAddresses,
    path: &NetworkPathSpec,
) -> Result<(), LabError> {
    let failed = |what: &'static str| {
        move |error: io::Error| {
            LabError::system(
                format!("cannot set {what} in the lab's {} namespace", me.name),
                error,
            )
        }
    };
    let routing = RtnetlinkSocket::open().map_err(failed("up a routing socket"))?;
    let index = |name: &str| routing.index(name).map_err(failed("up an interface"));
    let device = index(DEVICE)?;
    routing
        .up(index("lo")?)
        .map_err(failed("up the loopback interface"))?;
    routing
        .shape(device, path.mtu.into(), DEVICE_QUEUE)
        .map_err(failed("the size of packets"))?;
    routing
        .address(device, me.v4.into())
        .map_err(failed("an address"))?;
    let ipv6 = has_ipv6(path);
    if ipv6 {
        routing
            .address(device, me.v6.into())
            .map_err(failed("an IPv6 address"))?;
    }
    routing.up(device).map_err(failed("up the interface"))?;
    let cc = path.congestion_control.as_deref();
    let peers: [Option<IpAddr>; 2] = [Some(peer.v4.into()), ipv6.then_some(peer.v6.into())];
    for address in peers.into_iter().flatten() {
        routing
            .route(device, address, cc)
            .map_err(|error| match cc {
                Some(cc) => no_congestion_control(cc),
                None => failed("a route")(error),
            })?;
    }
    Ok(())
}

/// Writes the namespace's settings.
fn settings(path: &NetworkPathSpec) -> Result<(), LabError> {
    for (name, value) in path.sysctls() {
        let file = Path::new("/proc/sys").join(name);
        let written = fs::write(&file, value);
        // The machine may restrict a congestion control to root, and a namespace's default cannot
        // be one of these. Routes can, and name it too.
        if !name.ends_with("tcp_congestion_control") {
            written.map_err(|error| LabError::system(file.display(), error))?;
        }
    }
    // Keep the kernel's own packets off the path: router solicitations and link-local addresses of
    // IPv6 would take part in its losses. Old kernels lack some of the settings.
    for name in ["addr_gen_mode", "router_solicitations", "accept_ra"] {
        let value = if name == "addr_gen_mode" { "1" } else { "0" };
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{DEVICE}/{name}"), value);
    }
    // Allow servers of ordinary users to listen on port 22, and ping without privileges.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    let group = rustix::process::getgid().as_raw();
    let _ = fs::write(
        "/proc/sys/net/ipv4/ping_group_range",
        format!("{group} {group}"),
    );
    Ok(())
}

pub(super) fn no_congestion_control(name: &str) -> LabError {
    LabError(format!(
        "--cc: the kernel has no congestion control {name:?} for the lab; it has {} (root can \
         load more: modprobe tcp_{name})",
        available()
    ))
}

/// The available congestion controls, for a message.
pub(super) fn available() -> String {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    list.split_whitespace().collect::<Vec<_>>().join(", ")
}

fn no_tun(error: io::Error) -> LabError {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "load the module as root: modprobe tun (in a container: --device /dev/net/tun)"
        }
        io::ErrorKind::PermissionDenied => {
            "run the lab as root, or permit it with: sudo chmod 0666 /dev/net/tun (the default \
             of most distributions)"
        }
        _ => "the kernel must support TUN devices: run the lab as root",
    };
    LabError(format!("cannot open /dev/net/tun: {error}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_both_ways_are_counted() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:       0       0    0    9    0     0          0         0        0       0    0    9    0
  path: 1234567       5    0    2    0     0          0         0     1234       6    0   40    0
";
        assert_eq!(dropped(table), 42);
        assert_eq!(dropped(""), 0);
    }
}
