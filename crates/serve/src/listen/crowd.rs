use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Connections at once.
const MOST: usize = 1024;
/// Of those, how many may not have logged in yet (as MaxStartups of sshd, without its dice).
const MOST_STRANGERS: usize = 100;
/// And how many of those from one address, or one IPv6 network of 64 bits: whoever holds them open
/// keeps nobody else out. A copy of ours logs in with eight at a time at most.
const MOST_FROM_ONE: usize = 20;

/// Those who are connected.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    count: Mutex<Count>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Count {
    all: usize,
    strangers: usize,
    by_source: BTreeMap<IpAddr, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Crowd,
    /// Until it is known who it is.
    stranger: Option<IpAddr>,
}

impl Crowd {
    /// A place for somebody, or why there is none.
    pub(super) fn enter(&self, address: IpAddr) -> Result<Place, &'static str> {
        let source = source(address);
        let mut count = self.lock();
        let from_one = count.by_source.get(&source).copied().unwrap_or(0);
        if count.all >= MOST {
            return Err("too many are connected");
        }
        if count.strangers >= MOST_STRANGERS || from_one >= MOST_FROM_ONE {
            return Err("too many are logging in at once");
        }
        count.all += 1;
        count.strangers += 1;
        count.by_source.insert(source, from_one + 1);
        Ok(Place {
            crowd: self.clone(),
            stranger: Some(source),
        })
    }

    /// Waits until the last one has gone.
    pub(super) fn wait_until_empty(&self) {
        let count = self.lock();
        let waited = self.0.changed.wait_while(count, |count| count.all > 0);
        drop(waited);
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.0.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Who it is is known.
    pub(super) fn known(&mut self) {
        let Some(source) = self.stranger.take() else {
            return;
        };
        let mut count = self.crowd.lock();
        count.strangers -= 1;
        if let Some(from_one) = count.by_source.get_mut(&source) {
            *from_one -= 1;
            if *from_one == 0 {
                count.by_source.remove(&source);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.known();
        self.crowd.lock().all -= 1;
        self.crowd.0.changed.notify_all();
    }
}

fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_from_one_place_keep_nobody_else_out() {
        let crowd = Crowd::default();
        let bad = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]);
        let mut held: Vec<Place> = (0..20).map(|n| crowd.enter(bad(n)).unwrap()).collect();
        assert!(crowd.enter(bad(99)).is_err());
        let good = IpAddr::from([192, 0, 2, 1]);
        assert!(crowd.enter(good).is_ok());
        // Whoever has logged in is no stranger.
        held[0].known();
        assert!(crowd.enter(bad(99)).is_ok());
        held.clear();
        crowd.wait_until_empty();
        assert!(crowd.lock().by_source.is_empty());
    }

    #[test]
    fn strangers_are_bounded_and_so_is_everybody() {
        let crowd = Crowd::default();
        let from = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        let mut held: Vec<Place> = (0..100).map(|n| crowd.enter(from(n)).unwrap()).collect();
        assert!(crowd.enter(from(100)).is_err());
        for n in 100..MOST {
            held[n - 1].known();
            held[n - 100].known();
            held.push(crowd.enter(from(n)).unwrap());
        }
        held.iter_mut().for_each(Place::known);
        assert!(crowd.enter(from(MOST)).is_err());
    }
}
