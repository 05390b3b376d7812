//! IP networks in CIDR notation: `192.0.2.0/24`, `2001:db8::/32`, or a single address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Network in CIDR notation; a single address is a network with the full prefix length. Used for
/// `--allow`, target rules and connMap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    /// Length of the network prefix, in bits.
    prefix: u8,
}

/// Shortest prefixes of a network that belongs to one site, or is one of the special blocks.
const BLOCK_V4: u8 = 8;
const BLOCK_V6: u8 = 7;

impl IpNetwork {
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Reports if the network contains addresses of more than one assigned block, as 0.0.0.0/1 does:
    /// nobody names one machine by it. The blocks are those of 127.0.0.0/8, fc00::/7 and ::1, which no
    /// shorter prefix of their own kind contains.
    pub(crate) fn is_broad(&self) -> bool {
        match (self.address, self.address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(_)) => self.prefix < 96 + BLOCK_V4,
            (IpAddr::V4(_), _) => self.prefix < BLOCK_V4,
            (IpAddr::V6(ip), _) => {
                self.prefix < BLOCK_V6 || ip.segments()[0] == 0 && self.prefix < 96
            }
        }
    }

    /// Reports if the network contains an address. IPv4-mapped IPv6 addresses (RFC 4291 section
    /// 2.5.5.2), as IPv6 sockets report IPv4 peers, count as IPv4.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (ip, own) = (ip.to_canonical(), self.address.to_canonical());
        let prefix = match (self.address, own) {
            (IpAddr::V6(_), IpAddr::V4(_)) => self.prefix.saturating_sub(96),
            _ => self.prefix,
        };
        match (own, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                same(own.to_bits().into(), ip.to_bits().into(), 32, prefix)
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => same(own.to_bits(), ip.to_bits(), 128, prefix),
            _ => false,
        }
    }
}

/// Compares the first `prefix` bits of two addresses of `width` bits.
fn same(a: u128, b: u128, width: u32, prefix: u8) -> bool {
    let rest = width.saturating_sub(prefix.into());
    (a ^ b).checked_shr(rest).unwrap_or(0) == 0
}

/// Reports if one of the networks contains the address.
pub fn is_allowed(networks: &[IpNetwork], ip: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(ip))
}

/// A text that is no network. The message completes a sentence that begins with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetworkError;

impl fmt::Display for IpNetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not a network such as 192.0.2.0/24 or 2001:db8::/32")
    }
}

impl std::error::Error for IpNetworkError {}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<Self, IpNetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address = address.trim_matches(['[', ']']);
        let address: IpAddr = address.parse().map_err(|_| IpNetworkError)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|p| *p <= width),
            None => Some(width),
        };
        Ok(Self {
            address,
            prefix: prefix.ok_or(IpNetworkError)?,
        })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_and_out() {
        for (network, address, inside) in [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "203.0.113.1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false),
        ] {
            let network: IpNetwork = network.parse().unwrap();
            let address = address.parse().unwrap();
            assert_eq!(network.contains(address), inside, "{network} {address}");
        }
    }

    #[test]
    fn what_is_no_network() {
        for text in [
            "",
            "/8",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "a",
            "1.2.3.4/-1",
            "1.2.3.4/",
        ] {
            assert!(text.parse::<IpNetwork>().is_err(), "{text}");
        }
    }
}
