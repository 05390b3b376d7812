//! Remembers which hosts are near and far while the process lives. A known host need not be
//! measured again, and to a known far one even the first packet has no DSCP.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rules::plain;

/// Distance of a host by its measured round trip; connections to far ones are tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostDistance {
    Near,
    Far,
}

/// Number of hosts that are remembered; one with the same slot replaces another.
const PLACES: usize = 256;

/// Table of hosts by a hash of their address, without locks. A host whose entry was overwritten is
/// measured again.
pub(crate) struct HostDistanceTable([AtomicU64; PLACES]);

impl HostDistanceTable {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; PLACES])
    }

    pub(crate) fn set(&self, ip: IpAddr, known: HostDistance) {
        let (place, name) = self.place(ip);
        let verdict = match known {
            HostDistance::Near => 1,
            HostDistance::Far => 2,
        };
        place.store(name | verdict, Relaxed);
    }

    pub(crate) fn get(&self, ip: IpAddr) -> Option<HostDistance> {
        let (place, name) = self.place(ip);
        match place.load(Relaxed) ^ name {
            1 => Some(HostDistance::Near),
            2 => Some(HostDistance::Far),
            _ => None,
        }
    }

    /// The slot of a host, and 62 bits that distinguish it from others with that slot.
    fn place(&self, ip: IpAddr) -> (&AtomicU64, u64) {
        let bits = match plain(ip) {
            IpAddr::V4(v4) => u128::from(u32::from(v4)) | 1 << 127,
            IpAddr::V6(v6) => u128::from(v6),
        };
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        let mixed = mix(mix(low) ^ high.rotate_left(17));
        (&self.0[mixed as usize % PLACES], mixed & !3)
    }
}

/// The finalizer of SplitMix64: each bit of the result depends on all.
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_what_was_last_known_of_it_or_nothing() {
        let memory = HostDistanceTable::new();
        let host = |n: u32| IpAddr::from([10, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
        for n in 0..10_000 {
            let known = if n % 3 == 0 {
                HostDistance::Far
            } else {
                HostDistance::Near
            };
            memory.set(host(n), known);
            assert_eq!(memory.get(host(n)), Some(known));
        }
        let mut there = 0;
        for n in 0..10_000 {
            let expected = if n % 3 == 0 {
                HostDistance::Far
            } else {
                HostDistance::Near
            };
            if let Some(known) = memory.get(host(n)) {
                assert_eq!(known, expected, "{n}");
                there += 1;
            }
        }
        assert!((200..=PLACES).contains(&there), "{there}");
        let v6 = "2001:db8::1".parse().unwrap();
        assert_eq!(memory.get(v6), None);
        memory.set("::ffff:192.0.2.1".parse().unwrap(), HostDistance::Far);
        assert_eq!(
            memory.get("192.0.2.1".parse().unwrap()),
            Some(HostDistance::Far)
        );
    }
}
