//! Matches `from=` of authorized_keys: addresses, networks and wildcards, as sshd does without DNS
//! (UseDNS no), its default.

use std::net::IpAddr;

/// True if the address matches one of the patterns and none of those that begin with `!`.
pub(super) fn takes(list: &str, address: IpAddr) -> bool {
    let address = address.to_canonical();
    let mut taken = false;
    for pattern in list.split(',').map(str::trim) {
        match pattern.strip_prefix('!') {
            Some(pattern) if fits(pattern, address) => return false,
            Some(_) => {}
            None => taken |= fits(pattern, address),
        }
    }
    taken
}

/// True if the address is in a list that contains only addresses and networks; `None` if the list
/// contains anything else (addr_match_cidr_list of OpenSSH's addrmatch.c).
pub(super) fn in_networks(list: &str, address: IpAddr) -> Option<bool> {
    let address = address.to_canonical();
    let mut found = false;
    for network in list.split(',') {
        found |= match network.split_once('/') {
            Some((network, bits)) => in_network(network, bits, address)?,
            None => network.parse::<IpAddr>().ok()?.to_canonical() == address,
        };
    }
    Some(found)
}

fn fits(pattern: &str, address: IpAddr) -> bool {
    match pattern.split_once('/') {
        Some((network, bits)) => in_network(network, bits, address).unwrap_or(false),
        None => match pattern.parse::<IpAddr>() {
            Ok(one) => one.to_canonical() == address,
            Err(_) => matches(pattern.as_bytes(), address.to_string().as_bytes()),
        },
    }
}

fn in_network(network: &str, bits: &str, address: IpAddr) -> Option<bool> {
    let bits: u32 = bits.parse().ok()?;
    let network: IpAddr = network.parse().ok()?;
    let (a, b, all): (u128, u128, _) = match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        (network, _) => {
            let all = if network.is_ipv4() { 32 } else { 128 };
            return (bits <= all).then_some(false);
        }
    };
    let differ = a ^ b;
    // A shift by the full width is an overflow, hence checked_shr.
    let host = all - u32::min(bits, all);
    (bits <= all).then(|| differ.checked_shr(host).unwrap_or(0) == 0)
}

/// Matches `*` and `?` (match.c, match_pattern). It backtracks only to the last star, so the time
/// is bounded.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_nothing_but_networks() {
        let v4 = IpAddr::from([192, 0, 2, 77]);
        let mapped: IpAddr = "::ffff:192.0.2.77".parse().unwrap();
        for (list, address, wanted) in [
            ("192.0.2.77", v4, Some(true)),
            ("192.0.2.77", mapped, Some(true)),
            ("10.0.0.0/8,192.0.2.0/24", v4, Some(true)),
            ("10.0.0.0/8,2001:db8::/32", v4, Some(false)),
            ("192.0.2.0/24,", v4, None),
            ("192.0.2.*", v4, None),
            ("!192.0.2.0/24", v4, None),
            ("2001:db8::/129", v4, None),
            ("192.0.2.0/33", v4, None),
            ("192.0.2.0/24, 10.0.0.0/8", v4, None),
            ("", v4, None),
        ] {
            assert_eq!(in_networks(list, address), wanted, "{list}");
        }
    }

    #[test]
    fn a_list_takes_what_sshd_takes() {
        let v4 = IpAddr::from([192, 0, 2, 77]);
        let mapped: IpAddr = "::ffff:192.0.2.77".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        for (list, address, wanted) in [
            ("192.0.2.77", v4, true),
            ("192.0.2.77", mapped, true),
            ("192.0.2.7", v4, false),
            ("192.0.2.0/24", v4, true),
            ("192.0.2.0/26", v4, false),
            ("0.0.0.0/0", v4, true),
            ("0.0.0.0/0", v6, false),
            ("192.0.2.0/33", v4, false),
            ("2001:db8::/32", v6, true),
            ("2001:db9::/32", v6, false),
            ("192.0.2.*", v4, true),
            ("192.0.2.7?", v4, true),
            ("192.0.2.?", v4, false),
            ("*,!192.0.2.0/24", v4, false),
            ("!192.0.2.0/24,*", v6, true),
            ("!192.0.2.0/24", v6, false),
            ("host.example", v4, false),
            ("", v4, false),
        ] {
            assert_eq!(takes(list, address), wanted, "{list} {address}");
        }
    }
}
