//! Health of targets: which ones answer.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use sys::SocketTuning;

use super::running::RunningRelay;
use crate::address::{HostSpec, RelayEndpoint, TargetSpec};

/// Time for which a target that failed is tried last.
const SHUNNED: Duration = Duration::from_secs(10);

/// Time of the last failure of each target; cleared when the target answers.
#[derive(Debug)]
pub(crate) struct TargetHealth {
    state: Mutex<TargetHealthState>,
    /// Interval of active health checks, which run even without clients.
    every: Option<Duration>,
}

/// Time of the last failure of each target, in the order of the relay's targets; `None` if it
/// answered since.
#[derive(Debug)]
struct TargetHealthState {
    failed: Vec<Option<Instant>>,
    /// Time of the last health check.
    checked: Option<Instant>,
}

impl TargetHealth {
    pub(crate) fn new(targets: usize, every: Option<Duration>) -> Self {
        let failed = vec![None; targets];
        let checked = None;
        Self {
            state: Mutex::new(TargetHealthState { failed, checked }),
            every,
        }
    }

    /// Returns the order in which to try the targets: as given, but recently failed ones last.
    pub(crate) fn order(&self, now: Instant) -> VecDeque<usize> {
        let answers = self.answer(now);
        let (first, later): (Vec<_>, Vec<_>) = answers
            .iter()
            .enumerate()
            .partition(|(_, answers)| **answers);
        let all = first.into_iter().chain(later);
        all.map(|(target, _)| target).collect()
    }

    /// Reports for each target if it answers, as far as is known.
    pub(crate) fn answer(&self, now: Instant) -> Vec<bool> {
        // A target with active checks keeps its state until it has been checked again.
        let shunned = SHUNNED.max(self.every.unwrap_or_default() * 2);
        let state = self.lock();
        let answers = |at: &Option<Instant>| at.is_none_or(|at| now >= at + shunned);
        state.failed.iter().map(answers).collect()
    }

    pub(crate) fn failed(&self, target: Option<usize>, now: Instant) {
        self.set(target, Some(now));
    }

    pub(crate) fn answered(&self, target: Option<usize>) {
        self.set(target, None);
    }

    /// Returns the time of the next health check, if there are checks.
    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        let every = self.every?;
        Some(self.lock().checked.map_or(now, |at| at + every))
    }

    /// Reports if a health check is due, and records it as done.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let due = self.next_check(now).is_some_and(|at| at <= now);
        if due {
            self.lock().checked = Some(now);
        }
        due
    }

    fn set(&self, target: Option<usize>, at: Option<Instant>) {
        if let Some(nth) = target
            && let Some(place) = self.lock().failed.get_mut(nth)
        {
            *place = at;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TargetHealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the targets of a relay one after another, and logs each change.
pub(super) fn check(running: &Arc<RunningRelay>) {
    let before = running.health.answer(Instant::now());
    for (nth, target) in running.targets.iter().enumerate() {
        let did = before.get(nth).copied().unwrap_or(true);
        match knock(running, target) {
            Ok(()) => {
                running.health.answered(Some(nth));
                if !did {
                    tracing::info!(server = %target, "answers again");
                }
            }
            Err(e) => {
                running.health.failed(Some(nth), Instant::now());
                if did {
                    tracing::warn!(server = %target, "does not answer: {e}");
                }
            }
        }
    }
}

/// Connects to the target and closes the connection again.
fn knock(running: &RunningRelay, target: &TargetSpec) -> io::Result<()> {
    let relay = &running.relay;
    let addresses: Vec<SocketAddr> = match &target.place {
        RelayEndpoint::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            return socket.connect(&SockAddr::unix(path)?);
        }
        RelayEndpoint::Tcp {
            host: HostSpec::Name(name),
            port,
        } => (name.as_str(), *port).to_socket_addrs()?.collect(),
        place => place.addresses().unwrap_or_default(),
    };
    let mut last = io::Error::other("the name has no address: check it in DNS or /etc/hosts");
    for to in addresses {
        for nth in running.uplinks.order(to.ip(), 0, &|_| 0, Instant::now()) {
            let uplink = running.uplinks.get(nth).cloned().unwrap_or_default();
            let tuning = SocketTuning {
                bind: uplink.bind,
                interface: uplink.interface,
                abrupt: false,
                ..relay.tuning.clone()
            };
            let connected = tuning
                .socket(&to)
                .and_then(|socket| socket.connect_timeout(&to.into(), relay.connect_timeout));
            match connected {
                Ok(()) => return Ok(()),
                Err(e) => last = e,
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_tried_last_for_a_while() {
        let (health, now) = (TargetHealth::new(3, None), Instant::now());
        assert_eq!(health.order(now), [0, 1, 2]);
        health.failed(Some(0), now);
        assert_eq!(health.order(now), [1, 2, 0]);
        health.failed(Some(1), now);
        health.answered(Some(0));
        assert_eq!(health.order(now), [0, 2, 1]);
        assert_eq!(health.order(now + SHUNNED), [0, 1, 2]);
    }

    #[test]
    fn what_is_looked_after_stays_as_it_was_found() {
        let (every, now) = (Duration::from_secs(60), Instant::now());
        let health = TargetHealth::new(2, Some(every));
        assert!(health.is_due(now));
        assert!(!health.is_due(now + Duration::from_secs(59)));
        health.failed(Some(0), now);
        assert_eq!(health.order(now + every), [1, 0]);
        assert!(health.is_due(now + 2 * every));
        health.answered(Some(0));
        assert_eq!(health.answer(now + every), [true, true]);
    }
}
