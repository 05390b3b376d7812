//! Uplinks: local addresses and interfaces by which connections leave this machine, if there are
//! several.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::server::TargetHealth;

/// Path by which connections leave this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uplink {
    /// Local source address.
    pub bind: Option<IpAddr>,
    /// Interface of the outgoing packets (SO_BINDTODEVICE).
    pub interface: Option<String>,
}

/// Several addresses and several interfaces in different numbers, so that they make no pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkCountError {
    binds: usize,
    names: usize,
}

impl fmt::Display for UplinkCountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { binds, names } = self;
        write!(
            f,
            "{binds} addresses (--bind) and {names} interfaces (--interface) do not match: give \
             one of either, or the same number of both"
        )
    }
}

impl std::error::Error for UplinkCountError {}

impl Uplink {
    /// Combines addresses and interfaces to uplinks: the first address with the first interface and
    /// so on, or each with the only one of the other kind.
    ///
    /// # Errors
    /// Returns an error if there are several of both, in different numbers.
    pub fn all(addresses: &[IpAddr], interfaces: &[String]) -> Result<Vec<Self>, UplinkCountError> {
        let (binds, names) = (addresses.len(), interfaces.len());
        if binds > 1 && names > 1 && binds != names {
            return Err(UplinkCountError { binds, names });
        }
        let nth = |nth: usize, count: usize| if count == 1 { 0 } else { nth };
        let all = (0..binds.max(names)).map(|at| Self {
            bind: addresses.get(nth(at, binds)).copied(),
            interface: interfaces.get(nth(at, names)).cloned(),
        });
        Ok(all.collect())
    }

    /// Returns the interface if this machine does not have it (Linux only).
    pub fn missing_interface(&self) -> Option<&str> {
        let name = self.interface.as_deref()?;
        #[cfg(target_os = "linux")]
        {
            use rustix::net::{AddressFamily, SocketType, netdevice, socket};
            // /sys lists no alternative names, by which SO_BINDTODEVICE finds an interface too.
            let asked = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
            let index = netdevice::name_to_index(&asked, name);
            (index == Err(rustix::io::Errno::NODEV)).then_some(name)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = name;
            None
        }
    }

    /// Returns true if the uplink can reach an address: one of its own address family, and a
    /// loopback address only through the loopback interface.
    fn leads_to(&self, to: IpAddr) -> bool {
        self.bind.is_none_or(|ip| ip.is_ipv4() == to.is_ipv4())
            && !(to.is_loopback() && self.interface.as_ref().is_some_and(|name| name != "lo"))
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bind, &self.interface) {
            (Some(ip), Some(name)) => write!(f, "{ip} ({name})"),
            (Some(ip), None) => ip.fmt(f),
            (None, Some(name)) => f.write_str(name),
            (None, None) => f.write_str("the system's default route"),
        }
    }
}

/// Uplinks of a relay, and their health.
#[derive(Debug)]
pub(crate) struct Uplinks {
    all: Vec<Uplink>,
    health: TargetHealth,
    /// Counter for the rotation.
    turn: AtomicUsize,
}

impl Uplinks {
    pub(crate) fn new(all: Vec<Uplink>) -> Self {
        Self {
            health: TargetHealth::new(all.len(), None),
            all,
            turn: AtomicUsize::new(0),
        }
    }

    pub(crate) fn get(&self, nth: Option<usize>) -> Option<&Uplink> {
        self.all.get(nth?)
    }

    pub(crate) fn all(&self) -> &[Uplink] {
        &self.all
    }

    /// Returns the number of uplinks that can reach an address.
    pub(crate) fn leading(&self, to: IpAddr) -> usize {
        self.all.iter().filter(|own| own.leads_to(to)).count()
    }

    /// Returns the next number of the rotation.
    pub(crate) fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the uplinks that can reach an address in the order in which to try them: those with
    /// the fewest stripes first, in rotation, and recently failed ones last. If none can, the only
    /// entry is `None` and the kernel's routing decides.
    pub(crate) fn order(
        &self,
        to: IpAddr,
        turn: usize,
        legs: &dyn Fn(usize) -> usize,
        now: Instant,
    ) -> Vec<Option<usize>> {
        let count = self.all.len();
        let first = turn % count.max(1);
        let well = self.health.answer(now);
        let leads = |nth: &usize| self.all.get(*nth).is_some_and(|own| own.leads_to(to));
        let turns = (0..count).map(|step| (first + step) % count);
        let mut order: Vec<usize> = turns.filter(leads).collect();
        order.sort_by_key(|nth| (well.get(*nth) != Some(&true), legs(*nth)));
        match order.is_empty() {
            true => vec![None],
            false => order.into_iter().map(Some).collect(),
        }
    }

    pub(crate) fn failed(&self, nth: Option<usize>, now: Instant) {
        self.health.failed(nth, now);
    }

    pub(crate) fn answered(&self, nth: Option<usize>) {
        self.health.answered(nth);
    }

    /// Appends the uplink to the name of an attempt, if there are several uplinks.
    pub(crate) fn named(&self, nth: Option<usize>, what: &dyn fmt::Display) -> String {
        match self.get(nth).filter(|_| self.all.len() > 1) {
            Some(own) => format!("{what} from {own}"),
            None => what.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split(' ').map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_and_interfaces_go_together() {
        let shown = |addresses: &[IpAddr], names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let all = Uplink::all(addresses, &names)?;
            let shown: Vec<String> = all.iter().map(Uplink::to_string).collect();
            Ok::<_, UplinkCountError>(shown.join(", "))
        };
        let two = ips("192.0.2.1 2001:db8::1");
        assert_eq!(shown(&[], &[]).unwrap(), "");
        assert_eq!(shown(&two, &[]).unwrap(), "192.0.2.1, 2001:db8::1");
        assert_eq!(shown(&[], &["a", "b"]).unwrap(), "a, b");
        assert_eq!(
            shown(&two, &["a"]).unwrap(),
            "192.0.2.1 (a), 2001:db8::1 (a)"
        );
        assert_eq!(
            shown(&two, &["a", "b"]).unwrap(),
            "192.0.2.1 (a), 2001:db8::1 (b)"
        );
        assert!(shown(&two, &["a", "b", "c"]).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_interface_that_is_there_is_not_missing() {
        let uplink = |name: &str| Uplink::all(&[], &[name.to_owned()]).unwrap().remove(0);
        assert_eq!(uplink("lo").missing_interface(), None);
        let missing = uplink("nonesuch0");
        assert_eq!(missing.missing_interface(), Some("nonesuch0"));
    }

    #[test]
    fn they_are_taken_in_turn_and_those_that_fail_last() {
        let now = Instant::now();
        let addresses = ips("192.0.2.1 192.0.2.2 2001:db8::1");
        let uplinks = Uplinks::new(Uplink::all(&addresses, &[]).unwrap());
        let to = |text: &str| text.parse().unwrap();
        let v4 = to("198.51.100.1");
        let none = |_| 0;
        let first =
            |legs: &dyn Fn(usize) -> usize, now| uplinks.order(v4, uplinks.turn(), legs, now)[0];
        let all: Vec<_> = (0..6).map(|_| first(&none, now)).collect();
        for nth in [0, 1] {
            assert!(all.contains(&Some(nth)), "{all:?}");
        }
        assert_eq!(uplinks.order(to("2001:db8::2"), 0, &none, now), [Some(2)]);
        assert_eq!(uplinks.leading(v4), 2);
        assert_eq!(uplinks.leading(to("2001:db8::2")), 1);
        // The uplink with fewer stripes comes first, a recently failed one last.
        let uneven = |nth| if nth == 0 { 2 } else { 1 };
        assert_eq!(first(&uneven, now), Some(1));
        uplinks.failed(Some(1), now);
        assert_eq!(first(&uneven, now), Some(0));
        assert_eq!(first(&uneven, now + Duration::from_secs(11)), Some(1));
        let none_there = Uplinks::new(Vec::new());
        assert_eq!(none_there.order(v4, 7, &none, now), [None]);
    }
}
