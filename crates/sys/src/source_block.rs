//! Networks that count as one source of connections.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Prefix lengths by which connections are counted, as `PerSourceNetBlockSize` of sshd_config(5).
///
/// A client with one IPv6 address has a whole network of them: providers assign a /56 or a /48, so
/// a limit for each address or /64 has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePrefixLengths {
    v4: u8,
    v6: u8,
}

/// A text that is no pair of prefix lengths. Its message completes a sentence after the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePrefixLengthsError;

impl fmt::Display for SourcePrefixLengthsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not BITS:BITS for IPv4 and IPv6, such as 32:56")
    }
}

impl std::error::Error for SourcePrefixLengthsError {}

impl Default for SourcePrefixLengths {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl SourcePrefixLengths {
    /// Default: each IPv4 address and each IPv6 /56.
    pub const DEFAULT: Self = Self { v4: 32, v6: 56 };

    /// Returns the first address of the block of `ip`. IPv4-mapped IPv6 addresses count as IPv4.
    pub fn of(self, ip: IpAddr) -> IpAddr {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let shift = 32_u32.saturating_sub(self.v4.into());
                let mask = u32::MAX.checked_shl(shift).unwrap_or(0);
                Ipv4Addr::from_bits(ip.to_bits() & mask).into()
            }
            IpAddr::V6(ip) => {
                let shift = 128_u32.saturating_sub(self.v6.into());
                let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
                Ipv6Addr::from_bits(ip.to_bits() & mask).into()
            }
        }
    }
}

impl FromStr for SourcePrefixLengths {
    type Err = SourcePrefixLengthsError;

    /// Parses `32:56`, the IPv4 and IPv6 prefix lengths; `32` alone keeps the default for IPv6.
    fn from_str(text: &str) -> Result<Self, SourcePrefixLengthsError> {
        let (v4, v6) = match text.split_once(':') {
            Some((v4, v6)) => (v4, Some(v6)),
            None => (text, None),
        };
        let bits = |text: &str, most: u8| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let bits = text.parse().ok().filter(|bits| digits && *bits <= most);
            bits.ok_or(SourcePrefixLengthsError)
        };
        Ok(Self {
            v4: bits(v4, 32)?,
            v6: v6.map_or(Ok(Self::DEFAULT.v6), |v6| bits(v6, 128))?,
        })
    }
}

impl fmt::Display for SourcePrefixLengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.v4, self.v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_block_are_one_source() {
        let of = |block: &str, ip: &str| {
            block
                .parse::<SourcePrefixLengths>()
                .unwrap()
                .of(ip.parse().unwrap())
                .to_string()
        };
        for (block, ip, source) in [
            ("32:56", "192.0.2.7", "192.0.2.7"),
            ("32:56", "::ffff:192.0.2.7", "192.0.2.7"),
            ("32:56", "2001:db8:1:2ff::9", "2001:db8:1:200::"),
            ("24:64", "192.0.2.7", "192.0.2.0"),
            ("32:128", "2001:db8::9", "2001:db8::9"),
            ("24", "2001:db8:0:ff::9", "2001:db8::"),
            ("0:0", "192.0.2.7", "0.0.0.0"),
            ("0:0", "2001:db8::9", "::"),
        ] {
            assert_eq!(of(block, ip), source, "{block} {ip}");
        }
        for wrong in ["", ":", "33", "32:129", "32:", "+1:2", "a"] {
            assert!(wrong.parse::<SourcePrefixLengths>().is_err(), "{wrong}");
        }
        assert_eq!(SourcePrefixLengths::default().to_string(), "32:56");
    }
}
