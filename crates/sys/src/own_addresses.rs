//! The IP addresses of this machine's interfaces.

use std::net::IpAddr;
#[cfg(target_os = "linux")]
use std::net::{Ipv4Addr, Ipv6Addr};

/// Returns the addresses of this machine that other machines may reach, at most `most`: no loopback
/// and no link-local ones. Empty where the system does not list them under /proc.
pub fn own_addresses(most: usize) -> Vec<IpAddr> {
    let mut all = Vec::new();
    #[cfg(target_os = "linux")]
    {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        all.extend(v4(&read("/proc/net/fib_trie")).into_iter().map(IpAddr::V4));
        all.extend(v6(&read("/proc/net/if_inet6")).into_iter().map(IpAddr::V6));
    }
    all.retain(is_reachable);
    all.truncate(most);
    all
}

#[cfg(target_os = "linux")]
fn is_reachable(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

#[cfg(not(target_os = "linux"))]
fn is_reachable(_: &IpAddr) -> bool {
    true
}

/// Reads the local addresses of the routing table: each stands in the line above `host LOCAL`.
#[cfg(target_os = "linux")]
fn v4(trie: &str) -> Vec<Ipv4Addr> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in trie.lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line.ends_with("host LOCAL")
            && let Some(address) = last
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

#[cfg(target_os = "linux")]
fn v6(interfaces: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| u128::from_str_radix(line.split(' ').next()?, 16).ok();
    let all = interfaces.lines().filter_map(address);
    all.map(Ipv6Addr::from_bits).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_told_from_networks_and_broadcasts() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     \
                    |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        \
                    /32 link BROADCAST\nLocal:\n     |-- 10.0.0.7\n        /32 host LOCAL\n";
        assert_eq!(v4(trie), [Ipv4Addr::new(10, 0, 0, 7)]);
        let v6s = v6("20010db8000000000000000000000001 02 40 00 80 eth0\nnot an address\n");
        assert_eq!(v6s, ["2001:db8::1".parse::<Ipv6Addr>().unwrap()]);
    }
}
