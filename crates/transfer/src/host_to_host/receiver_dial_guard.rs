//! Confines the connections for which a receiver asks the source's host.

use std::net::{IpAddr, SocketAddr};

use ssh::direct_control::TOKEN;

use super::host_copy_error::HostCopyError;

/// Maximum number of requests. A copy makes one for each connection, lost ones included.
const MOST: u32 = 1000;

/// Checks the connect requests of one receiver, which could otherwise have the source's host
/// connect to a service of a third machine and send it bytes.
#[derive(Debug, Default)]
pub(super) struct ReceiverDialGuard {
    /// The addresses of the first request, to which later ones are confined.
    first: Option<Vec<SocketAddr>>,
    /// The bytes with which connections begin, chosen by this end.
    token: [u8; TOKEN],
    /// Addresses at which this end reached the receiving host.
    known: Vec<IpAddr>,
    /// Requests so far.
    requests: u32,
}

impl ReceiverDialGuard {
    pub(super) fn new(token: [u8; TOKEN], known: Vec<IpAddr>) -> Self {
        Self {
            first: None,
            token,
            known,
            requests: 0,
        }
    }

    /// Checks a request: its addresses have one port, are among those of the first request, and
    /// lead to other machines, unless this end reached the receiving host at them.
    ///
    /// # Errors
    /// One sentence without the host.
    pub(super) fn check(
        &mut self,
        addresses: &[SocketAddr],
        token: &[u8; TOKEN],
    ) -> Result<(), HostCopyError> {
        self.requests = self.requests.saturating_add(1);
        if self.requests > MOST {
            // A path that loses connections leads to as many, and another attempt counts anew.
            return Err(HostCopyError::new(
                "the receiving host asked the source's host too often to connect to it",
            ));
        }
        let first = self.first.get_or_insert_with(|| addresses.to_vec());
        let port = first.first().map(SocketAddr::port);
        let allowed = |address: &SocketAddr| {
            let ip = address.ip();
            let usable = self.known.contains(&ip) || !sys::is_special(ip);
            first.contains(address) && Some(address.port()) == port && usable
        };
        match *token == self.token && addresses.iter().all(allowed) {
            true => Ok(()),
            false => Err(HostCopyError::violation(
                "the receiving host asked the source's host to connect to an address that is not \
                 the receiver's",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<SocketAddr> {
        let words = text.split_whitespace();
        words.map(|address| address.parse().unwrap()).collect()
    }

    /// Regression test: a hostile receiver sent bytes of its choice to services that the source's
    /// host can reach, and learned which ports are open.
    #[test]
    fn a_receiver_cannot_have_the_source_connect_elsewhere() {
        let token = [7; TOKEN];
        let guard = || ReceiverDialGuard::new(token, vec!["10.0.0.2".parse().unwrap()]);
        let ok =
            |guard: &mut ReceiverDialGuard, text| guard.check(&addresses(text), &token).is_ok();
        let mut one = guard();
        assert!(ok(&mut one, "10.0.0.2:4000 [2001:db8::2]:4000"));
        assert!(ok(&mut one, "10.0.0.2:4000"));
        for other in [
            "10.0.0.2:22",
            "10.0.0.3:4000",
            "10.0.0.2:4000 10.0.0.3:4000",
        ] {
            assert!(!ok(&mut one, other), "{other}");
        }
        for special in [
            "127.0.0.1:4000",
            "[::ffff:127.0.0.1]:4000",
            "169.254.169.254:4000",
            "[fe80::1]:4000",
            "0.0.0.0:4000",
            "10.0.0.2:4000 10.0.0.2:4001",
        ] {
            assert!(!ok(&mut guard(), special), "{special}");
        }
        let chosen = *b"FLUSHALL\r\nSET pwned 1\r\n12345678\n";
        let to = addresses("10.0.0.2:4000");
        assert!(
            guard()
                .check(&to, chosen[..TOKEN].try_into().unwrap())
                .is_err()
        );
        // Each request costs up to 16 connections to addresses that the receiver has named.
        let mut often = guard();
        let all = (0..=MOST).filter(|_| ok(&mut often, "10.0.0.2:4000"));
        assert_eq!(all.count(), MOST as usize);
        // Both hosts are this machine.
        let mut local = ReceiverDialGuard::new(token, vec!["127.0.0.1".parse().unwrap()]);
        assert!(ok(&mut local, "127.0.0.1:4000"));
    }
}
