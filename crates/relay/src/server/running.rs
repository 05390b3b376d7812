//! Running relay: its settings, and the state that its connections share.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use super::figures::RelayCounters;
use super::health::TargetHealth;
use socket2::Socket;

use crate::address::TargetSpec;
use crate::pump::TokenBucket;
use crate::settings::RelaySettings;
use crate::uplinks::Uplinks;
use crate::worker::connection::ConnectionEndReason;
use crate::worker::dial::DialTarget;
use sys::is_delivered_here;

/// Settings of a relay with the state that its connections share: target health, rate limits and
/// counters. When a reload replaces it, connections keep the one that they were accepted with.
#[derive(Debug)]
pub(crate) struct RunningRelay {
    pub(crate) relay: RelaySettings,
    pub(crate) targets: Vec<Arc<TargetSpec>>,
    pub(crate) health: Arc<TargetHealth>,
    /// Uplinks by which connections leave.
    pub(crate) uplinks: Arc<Uplinks>,
    /// Rate limits shared by all connections: to the server, and to the client.
    pub(crate) rates: Arc<[Option<Mutex<TokenBucket>>; 2]>,
    listening: ListenAddresses,
    /// Connections of the relay itself, which a firewall rule may divert back to it.
    pub(crate) outgoing: OpenedConnectionAddresses,
    /// Counters since the start.
    pub(crate) figures: Arc<RelayCounters>,
    /// Reason why the last failed connection failed.
    failure: Mutex<Option<String>>,
}

/// Addresses at which the relays of this process listen.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenAddresses(Arc<RwLock<Vec<SocketAddr>>>);

impl ListenAddresses {
    pub(crate) fn set(&self, at: Vec<SocketAddr>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn has(&self, mut is: impl FnMut(SocketAddr) -> bool) -> bool {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|at| is(*at))
    }
}

/// Connections that a relay has opened, by source and destination address.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenedConnectionAddresses(Arc<Mutex<BTreeSet<(SocketAddr, SocketAddr)>>>);

/// Entry of one outgoing connection, removed on drop.
#[derive(Debug)]
pub(crate) struct OutgoingConnectionEntry(OpenedConnectionAddresses, (SocketAddr, SocketAddr));

impl OpenedConnectionAddresses {
    /// Connects and records the connection under one lock, so that a query for it waits until it is
    /// recorded.
    pub(crate) fn connect(
        &self,
        socket: &Socket,
        to: SocketAddr,
    ) -> (io::Result<()>, OutgoingConnectionEntry) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = socket.connect(&to.into());
        let from = socket.local_addr().ok().and_then(|from| from.as_socket());
        // A socket without a local address was not connected.
        let both = (without_scope(from.unwrap_or(to)), to);
        all.insert(both);
        (done, OutgoingConnectionEntry(self.clone(), both))
    }

    /// Reports if the relay has opened this connection itself.
    pub(crate) fn has(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.contains(&(without_scope(from), to))
    }
}

/// Removes the IPv6 scope and IPv4 mapping, so that both ends of a connection have equal addresses.
fn without_scope(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

impl Drop for OutgoingConnectionEntry {
    fn drop(&mut self) {
        let mut all = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.1);
    }
}

impl RunningRelay {
    pub(crate) fn new(mut relay: RelaySettings, listening: ListenAddresses) -> Self {
        // If the process dies, its sockets are reset: that must not look like an end of file.
        relay.tuning.abrupt = true;
        relay.tuning.mark = relay.speaks.diverted.map(|_| crate::rules::OWN_MARK);
        let now = Instant::now();
        let bucket = || {
            let rate = relay.limits.rate_all;
            rate.map(|rate| Mutex::new(TokenBucket::new(rate, now)))
        };
        Self {
            health: Arc::new(TargetHealth::new(relay.targets.len(), relay.health)),
            rates: Arc::new([bucket(), bucket()]),
            uplinks: Arc::new(Uplinks::new(relay.uplinks.clone())),
            targets: relay.targets.iter().cloned().map(Arc::new).collect(),
            relay,
            listening,
            outgoing: OpenedConnectionAddresses::default(),
            figures: Arc::default(),
            failure: Mutex::default(),
        }
    }

    /// Creates the successor of a running relay. Counters and outgoing connections are shared with
    /// it, as are other parts whose settings are unchanged.
    pub(crate) fn after(relay: RelaySettings, before: &Self) -> Self {
        let mut running = Self::new(relay, before.listening.clone());
        running.figures = Arc::clone(&before.figures);
        running.outgoing = before.outgoing.clone();
        let (new, old) = (&running.relay, &before.relay);
        if new.targets == old.targets && new.health == old.health {
            running.health = Arc::clone(&before.health);
        }
        if new.uplinks == old.uplinks {
            running.uplinks = Arc::clone(&before.uplinks);
        }
        if new.limits.rate_all == old.limits.rate_all {
            running.rates = Arc::clone(&before.rates);
        }
        running
    }

    /// Returns the targets in the order in which to try them.
    pub(crate) fn goals(&self, now: Instant) -> VecDeque<DialTarget> {
        let order = self.health.order(now).into_iter();
        let goals = order.filter_map(|nth| {
            Some(DialTarget {
                target: Arc::clone(self.targets.get(nth)?),
                nth: Some(nth),
            })
        });
        goals.collect()
    }

    /// Reports if a connection to this address would come back to this process.
    pub(crate) fn would_be_a_loop(&self, to: SocketAddr) -> bool {
        let ip = to.ip().to_canonical();
        let leads_back = |at: SocketAddr| match at.ip().is_unspecified() {
            false => at.ip() == ip || ip.is_unspecified() && at.ip().is_loopback(),
            true => ip.is_unspecified() || is_delivered_here(ip),
        };
        self.listening
            .has(|at| at.port() == to.port() && leads_back(at))
    }

    /// Counts the end of a connection, and keeps the reason of a failure.
    pub(crate) fn count(&self, end: &ConnectionEndReason) {
        self.figures.ended(end.kind());
        if !matches!(end, ConnectionEndReason::Closed(_)) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(end.to_string());
        }
    }

    /// Takes the reason why the last failed connection failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}
