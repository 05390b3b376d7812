//! How many are there, and from where.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::settings::Limits;

/// Those who are there.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionLimiter(Arc<Mutex<Count>>);

#[derive(Debug, Default)]
struct Count {
    all: usize,
    sources: HashMap<IpAddr, usize>,
}

/// One of them; dropped when it goes.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    crowd: ConnectionLimiter,
    source: Option<IpAddr>,
    /// Where else it counts.
    too: Option<Box<Self>>,
}

impl ConnectionPermit {
    /// The same, which counts elsewhere too.
    pub(crate) fn with(mut self, too: Self) -> Self {
        self.too = Some(Box::new(too));
        self
    }
}

impl ConnectionLimiter {
    /// Lets somebody in; else the reason why not. Whoever comes from this machine without an
    /// address is counted with all, and not by source.
    pub(crate) fn enter(
        &self,
        from: Option<IpAddr>,
        limits: &Limits,
    ) -> Result<ConnectionPermit, &'static str> {
        let source = from.map(|ip| limits.source_block.of(ip));
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if count.all >= limits.connections {
            return Err("there are as many connections as --max-connections lets in");
        }
        if let Some(source) = source {
            let here = count.sources.entry(source).or_default();
            if *here >= limits.per_source {
                return Err("there are as many connections from there as --max-per-source lets in");
            }
            *here += 1;
        }
        count.all += 1;
        drop(count);
        Ok(ConnectionPermit {
            crowd: self.clone(),
            source,
            too: None,
        })
    }

    /// How many are there.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut count = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let crowd = ConnectionLimiter::default();
        let limits = Limits {
            connections: 3,
            per_source: 2,
            ..Limits::default()
        };
        let enter = |ip: &str| crowd.enter(Some(ip.parse().unwrap()), &limits);
        let first = enter("2001:db8::1").unwrap();
        let _second = enter("2001:db8::2").unwrap();
        assert!(enter("2001:db8::3").unwrap_err().contains("per-source"));
        let _other = enter("2001:db8:0:100::3").unwrap();
        assert!(enter("192.0.2.1").unwrap_err().contains("max-connections"));
        drop(first);
        assert_eq!(crowd.len(), 2);
        let _again = enter("2001:db8::4").unwrap();
    }
}
