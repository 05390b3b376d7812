//! Remembers figures per network path to a host: another network or another round trip is another
//! path.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use schedule::LearnedConcurrency;
use serde::{Deserialize, Serialize};

use super::HostMemory;
use super::findings::BenchFindings;

/// The number of paths kept for a host besides the current one.
const OTHERS: usize = 5;
/// Round trips that differ by less than this belong to one path.
const NEAR: Duration = Duration::from_millis(2);
/// The network name for a host that is reached through other hosts or a command.
const PROXY: &str = "proxy";
/// The port for connect(2) of a UDP socket, which sends nothing (discard, RFC 863).
const DISCARD: u16 = 9;

/// Stored measurements of a network path to a host, kept while another path is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPathRecord {
    /// The network of this machine at that time ([`network_of`]); empty if unknown.
    #[serde(default)]
    network: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rtt_us: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    learned: Vec<LearnedConcurrency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    direct_failed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    findings: Option<BenchFindings>,
}

impl NetworkPathRecord {
    fn is_empty(&self) -> bool {
        self.learned.is_empty() && self.direct_failed.is_none() && self.findings.is_none()
    }

    fn is(&self, network: Option<&str>, rtt: Option<Duration>) -> bool {
        let known = self.rtt_us.map(|us| Duration::from_micros(us.into()));
        let alike = |(a, b)| is_one_rtt(a, b);
        network.is_none_or(|network| network == self.network) && known.zip(rtt).is_none_or(alike)
    }
}

/// True if two round trips belong to one path, by the rule of [`LearnedConcurrency::holds`].
fn is_one_rtt(a: Duration, b: Duration) -> bool {
    let ratio = b.as_micros().max(1) as f64 / a.as_micros().max(1) as f64;
    a.abs_diff(b) < NEAR || (0.6..=1.7).contains(&ratio)
}

impl HostMemory {
    /// Selects the path of a connection with these addresses (local, server); `None` if it is not a
    /// TCP connection.
    pub fn on_connection(&mut self, addresses: Option<(IpAddr, IpAddr)>, rtt: Option<Duration>) {
        let network = addresses.map(|(local, _)| network_of(local));
        self.address = addresses.map(|(_, peer)| peer);
        self.on_path(Some(network.as_deref().unwrap_or(PROXY)), rtt);
    }

    /// Selects this path to the host and stores the figures of the previous one. `network` is named
    /// by [`network_of`]; arguments that are `None` are unknown and not compared.
    pub fn on_path(&mut self, network: Option<&str>, rtt: Option<Duration>) {
        let now = self.path();
        let unnamed = now.network.is_empty() && now.is_empty();
        if now.is(network, rtt) || unnamed && now.is(None, rtt) {
            if let Some(network) = network {
                network.clone_into(&mut self.network);
            }
            return;
        }
        let found = self.others.iter().position(|other| other.is(network, rtt));
        let fresh = || NetworkPathRecord {
            network: network.unwrap_or(&now.network).to_owned(),
            ..NetworkPathRecord::default()
        };
        let next = found.map_or_else(fresh, |at| self.others.remove(at));
        if !now.is_empty() {
            self.others.insert(0, now);
            self.others.truncate(OTHERS);
        }
        self.network = next.network;
        self.rtt_us = next.rtt_us;
        self.learned = next.learned;
        self.direct_failed = next.direct_failed;
        self.findings = next.findings;
    }

    /// Selects the path that the kernel would use to the host's last address. Even if the host has
    /// moved, the local network distinguishes the paths.
    pub(super) fn on_present_path(&mut self) {
        if let Some(network) = self.address.and_then(network_to) {
            self.on_path(Some(&network), None);
        }
    }

    fn path(&self) -> NetworkPathRecord {
        NetworkPathRecord {
            network: self.network.clone(),
            rtt_us: self.rtt_us,
            learned: self.learned.clone(),
            direct_failed: self.direct_failed,
            findings: self.findings.clone(),
        }
    }
}

/// Returns the network of a local address, within which DHCP may assign others: 24 bits of IPv4, 64
/// of IPv6.
pub fn network_of(local: IpAddr) -> String {
    match local.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

/// Returns the local network from which the kernel would reach `address`, without sending a packet;
/// `None` without a route.
pub(super) fn network_to(address: IpAddr) -> Option<String> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((address, DISCARD)).ok()?;
    Some(network_of(socket.local_addr().ok()?.ip()))
}

#[cfg(test)]
mod tests {
    use schedule::TransferDirection;

    use super::*;

    const HOME: &str = "192.168.1.0/24";
    const OFFICE: &str = "10.7.3.0/24";

    fn learned(rate: u64, rtt: Duration) -> LearnedConcurrency {
        LearnedConcurrency {
            direction: TransferDirection::Up,
            connections: 4,
            channels: 2,
            rate,
            rtt_us: rtt.as_micros() as u64,
            at: 5,
        }
    }

    fn learns(memory: &mut HostMemory, network: &str, ms: u64, rate: u64) {
        let rtt = Duration::from_millis(ms);
        memory.on_path(Some(network), Some(rtt));
        memory.note_rtt(rtt);
        memory.learn(learned(rate, rtt));
    }

    fn rate(memory: &HostMemory, network: Option<&str>, ms: Option<u64>) -> Option<u64> {
        let mut memory = memory.clone();
        memory.on_path(network, ms.map(Duration::from_millis));
        memory.learned(TransferDirection::Up).map(|l| l.rate)
    }

    /// Regression test: figures of a path with 500 Mbit/s and 87 ms were used on another path to
    /// the same host.
    #[test]
    fn what_was_learned_on_one_path_is_not_believed_on_another() {
        let mut memory = HostMemory::default();
        learns(&mut memory, HOME, 87, 62_500_000);
        learns(&mut memory, OFFICE, 1, 110_000_000);
        learns(&mut memory, HOME, 20, 2_000_000);
        assert_eq!(rate(&memory, Some(HOME), Some(80)), Some(62_500_000));
        assert_eq!(rate(&memory, Some(OFFICE), Some(2)), Some(110_000_000));
        assert_eq!(rate(&memory, Some(HOME), Some(22)), Some(2_000_000));
        // Until the round trip is known, the latest path of the network counts.
        assert_eq!(rate(&memory, Some(OFFICE), None), Some(110_000_000));
        assert_eq!(rate(&memory, Some(HOME), None), Some(2_000_000));
        for (network, ms) in [(HOME, 300), (OFFICE, 87), ("172.16.0.0/24", 87)] {
            assert_eq!(
                rate(&memory, Some(network), Some(ms)),
                None,
                "{network} {ms}"
            );
        }
        // Without distinguishing facts, the path that was used last counts.
        assert_eq!(rate(&memory, None, None), Some(2_000_000));
    }

    #[test]
    fn a_host_has_a_bounded_number_of_paths_and_its_own_facts_stay() {
        let mut memory = HostMemory {
            kex_list: "a,b".to_owned(),
            ..HostMemory::default()
        };
        for n in 0..50 {
            learns(&mut memory, &format!("10.0.{n}.0/24"), 10, n);
            memory.findings = Some(BenchFindings::default());
        }
        assert_eq!(memory.others.len(), OTHERS);
        assert_eq!(rate(&memory, Some("10.0.48.0/24"), None), Some(48));
        assert_eq!(rate(&memory, Some("10.0.10.0/24"), None), None);
        assert_eq!(memory.kex_list, "a,b");
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<HostMemory>(&text).unwrap(), memory);
    }

    #[test]
    fn paths_of_which_nothing_is_known_are_not_kept() {
        let mut memory = HostMemory::default();
        for n in 0..4 {
            memory.on_path(
                Some(&format!("10.0.{n}.0/24")),
                Some(Duration::from_millis(n)),
            );
        }
        assert!(memory.others.is_empty());
        assert_eq!(memory.network, "10.0.3.0/24");
    }

    #[test]
    fn networks_are_those_of_addresses() {
        for (local, network) in [
            ("192.168.1.77", HOME),
            ("::ffff:192.168.1.5", HOME),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(network_of(local.parse().unwrap()), network);
        }
        let here = network_to(Ipv4Addr::LOCALHOST.into());
        assert_eq!(here.as_deref(), Some("127.0.0.0/24"));
    }
}
