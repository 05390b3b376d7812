//! Limits on the number of connections, in total and for each source.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::settings::RelayLimits;

/// Counts open connections in total and by source, and grants a [`ConnectionPermit`] below the
/// limits. All listeners of a relay share one; another one for each worker only counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionLimiter(Arc<Mutex<ConnectionCount>>);

/// Open connections in total, and by source network; sources without connections are removed.
#[derive(Debug, Default)]
struct ConnectionCount {
    all: usize,
    sources: HashMap<IpAddr, usize>,
}

/// Permit of one connection, which is returned when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    source: Option<IpAddr>,
    /// Permit of a second limiter that counts this connection too.
    too: Option<Box<Self>>,
}

impl ConnectionPermit {
    /// Adds the permit of another limiter, to be returned together with this one.
    pub(crate) fn with(mut self, too: Self) -> Self {
        self.too = Some(Box::new(too));
        self
    }
}

impl ConnectionLimiter {
    /// Grants a permit, or returns the reason for a refusal. A client without an IP address, on
    /// this machine, counts toward the total only.
    pub(crate) fn enter(
        &self,
        from: Option<IpAddr>,
        limits: &RelayLimits,
    ) -> Result<ConnectionPermit, &'static str> {
        let source = from.map(|ip| limits.source_block.of(ip));
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if count.all >= limits.connections {
            return Err(
                "the limit of --max-connections is reached: raise it, or wait until connections \
                 end",
            );
        }
        if let Some(source) = source {
            let here = count.sources.entry(source).or_default();
            if *here >= limits.per_source {
                return Err(
                    "the limit of --max-per-source is reached for the client's address: raise it, \
                     or wait until its connections end",
                );
            }
            *here += 1;
        }
        count.all += 1;
        drop(count);
        Ok(ConnectionPermit {
            limiter: self.clone(),
            source,
            too: None,
        })
    }

    /// Returns the number of current connections.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut count = self
            .limiter
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        count.all -= 1;
        if let Some(source) = self.source
            && let Some(here) = count.sources.get_mut(&source)
        {
            *here -= 1;
            if *here == 0 {
                count.sources.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_until_somebody_goes() {
        let limiter = ConnectionLimiter::default();
        let limits = RelayLimits {
            connections: 3,
            per_source: 2,
            ..RelayLimits::default()
        };
        let enter = |ip: &str| limiter.enter(Some(ip.parse().unwrap()), &limits);
        let first = enter("2001:db8::1").unwrap();
        let _second = enter("2001:db8::2").unwrap();
        assert!(enter("2001:db8::3").unwrap_err().contains("per-source"));
        let _other = enter("2001:db8:0:100::3").unwrap();
        assert!(enter("192.0.2.1").unwrap_err().contains("max-connections"));
        drop(first);
        assert_eq!(limiter.len(), 2);
        let _again = enter("2001:db8::4").unwrap();
    }
}
