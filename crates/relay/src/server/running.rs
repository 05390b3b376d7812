//! A relay that runs: what it was told, and what its connections share.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::health::Health;
use crate::address::Target;
use crate::pump::Bucket;
use crate::settings::Relay;
use crate::worker::connection::End;
use crate::worker::dial::Goal;

/// A relay that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) relay: Relay,
    targets: Vec<Arc<Target>>,
    pub(crate) health: Health,
    /// Of all connections together: to the server, and to the client.
    pub(crate) rates: [Option<Mutex<Bucket>>; 2],
    /// Where all relays of this process listen.
    listening: OnceLock<Vec<SocketAddr>>,
    /// Why the last connection did not end well.
    failure: Mutex<Option<String>>,
}

impl Running {
    pub(crate) fn new(mut relay: Relay) -> Self {
        // A relay that dies must not look like an end of file.
        relay.tuning.abrupt = true;
        let now = Instant::now();
        let bucket = || {
            relay
                .limits
                .rate_all
                .map(|rate| Mutex::new(Bucket::new(rate, now)))
        };
        Self {
            health: Health::new(relay.targets.len()),
            rates: [bucket(), bucket()],
            targets: relay.targets.iter().cloned().map(Arc::new).collect(),
            relay,
            listening: OnceLock::new(),
            failure: Mutex::default(),
        }
    }

    /// Once it is known.
    pub(crate) fn set_listening(&self, at: &[SocketAddr]) {
        let _ = self.listening.set(at.to_vec());
    }

    /// Where connections go, in the order in which it is tried.
    pub(crate) fn goals(&self, now: Instant) -> VecDeque<Goal> {
        let order = self.health.order(now).into_iter();
        let goals = order.filter_map(|nth| {
            Some(Goal {
                target: Arc::clone(self.targets.get(nth)?),
                nth: Some(nth),
            })
        });
        goals.collect()
    }

    /// Whether a connection to there would come back to this process.
    pub(crate) fn would_be_a_loop(&self, to: SocketAddr) -> bool {
        let ports = self.listening.get().map(Vec::as_slice).unwrap_or_default();
        let same_port = ports.iter().filter(|at| at.port() == to.port());
        let ip = to.ip().to_canonical();
        same_port
            .into_iter()
            .any(|at| match at.ip().is_unspecified() {
                false => at.ip() == ip || ip.is_unspecified() && at.ip().is_loopback(),
                // The kernel lets nobody bind an address that is not this machine's.
                true => ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok(),
            })
    }

    /// Notes how a connection ended.
    pub(crate) fn count(&self, end: &End) {
        if !matches!(end, End::Closed(_)) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(end.to_string());
        }
    }

    /// How the last connection ended that did not end well.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}
