//! Monitoring thread that asks the workers once per second how many bytes have moved.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::history::RateHistory;
use super::{ByteCounters, LISTED, RelayStatus, StatusReport, TargetStatus};
use crate::server::figures::ConnectionOutcome;
use crate::server::{RunningRelay, RunningRelays, snapshot};
use crate::worker::inbox::{StatusRequest, WorkerInbox, WorkerMessage};

const SECOND: Duration = Duration::from_secs(1);
/// Time limit for the workers' answers; a worker that is too busy is left out.
const PATIENCE: Duration = Duration::from_millis(500);

/// Handle of the monitoring thread, which ends with the last handle.
#[derive(Clone, Debug)]
pub struct StatusMonitor(Arc<StatusMonitorState>);

/// State that the monitoring thread and the handles share; the thread holds a weak reference, and
/// ends after the last handle.
#[derive(Debug)]
struct StatusMonitorState {
    workers: Vec<Arc<WorkerInbox>>,
    running_relays: RunningRelays,
    since: Instant,
    seen: Mutex<RelayRateHistories>,
    /// Closing this channel ends the thread.
    _ends: Sender<()>,
}

/// Byte rates of the last minute: of relays by listening address, and of connections by serial
/// number.
#[derive(Debug, Default)]
struct RelayRateHistories {
    relays: RateHistory<String>,
    connections: RateHistory<u64>,
}

impl StatusMonitor {
    pub(crate) fn start(
        workers: Vec<Arc<WorkerInbox>>,
        running_relays: RunningRelays,
    ) -> io::Result<Self> {
        let (ends, ended) = mpsc::channel();
        let watching = Arc::new(StatusMonitorState {
            workers,
            running_relays,
            since: Instant::now(),
            seen: Mutex::default(),
            _ends: ends,
        });
        let watched = Arc::downgrade(&watching);
        let thread = thread::Builder::new().name("watch".to_owned());
        thread.spawn(move || {
            while ended.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
                match watched.upgrade() {
                    Some(watching) => watching.look(),
                    None => return,
                }
            }
        })?;
        Ok(Self(watching))
    }

    /// Returns the current status.
    pub fn status(&self) -> StatusReport {
        let watching = &self.0;
        let moved = watching.moved();
        let seen = watching.lock();
        let mut busiest: Vec<u64> = moved.iter().map(|moved| moved.connection).collect();
        busiest
            .sort_by_key(|connection| (u64::MAX - seen.connections.busy(connection), *connection));
        drop(seen);
        busiest.truncate(LISTED);
        let order = busiest.clone();
        let asked = Arc::new(busiest.into_iter().collect::<BTreeSet<u64>>());
        let mut listed = watching.ask(|to| StatusRequest::Connections(Arc::clone(&asked), to));
        let place = |connection| order.iter().position(|own| *own == connection);
        listed.sort_by_key(|status| place(status.connection));
        let seen = watching.lock();
        for status in &mut listed {
            status.rates = seen.connections.rates(&status.connection);
        }
        let relays = snapshot(&watching.running_relays);
        StatusReport {
            seconds: watching.since.elapsed().as_secs_f64(),
            relays: relays.iter().map(|r| relay_status(r, &seen)).collect(),
            connections: moved.len(),
            listed,
        }
    }
}

impl StatusMonitorState {
    fn lock(&self) -> MutexGuard<'_, RelayRateHistories> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) {
        let moved = self.moved();
        let relays = snapshot(&self.running_relays);
        let mut seen = self.lock();
        seen.relays
            .note(relays.iter().map(|r| (name(r), r.figures.bytes())));
        let connections = moved.into_iter().map(|m| (m.connection, m.bytes));
        seen.connections.note(connections);
    }

    fn moved(&self) -> Vec<ByteCounters> {
        self.ask(StatusRequest::ByteCounters)
    }

    /// Asks all workers, and collects their answers.
    fn ask<T>(&self, question: impl Fn(Sender<Vec<T>>) -> StatusRequest) -> Vec<T> {
        let (to, answers) = mpsc::channel();
        for inbox in &self.workers {
            inbox.put(WorkerMessage::StatusRequested(question(to.clone())));
        }
        drop(to);
        let until = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        for _ in &self.workers {
            let left = until.saturating_duration_since(Instant::now());
            match answers.recv_timeout(left) {
                Ok(some) => all.extend(some),
                Err(_) => break,
            }
        }
        all
    }
}

fn name(running: &RunningRelay) -> String {
    running.relay.entrance.place.to_string()
}

fn relay_status(running: &RunningRelay, seen: &RelayRateHistories) -> RelayStatus {
    let figures = &running.figures;
    let ends = figures.ends();
    let [accepted, turned_away] = figures.entries();
    let answer = running.health.answer(Instant::now());
    let targets = running.targets.iter().zip(answer);
    let name = name(running);
    RelayStatus {
        targets: targets
            .map(|(target, answers)| TargetStatus {
                target: target.to_string(),
                answers,
            })
            .collect(),
        accepted,
        turned_away,
        connections: accepted.saturating_sub(ends.iter().sum()),
        ends: ConnectionOutcome::ALL
            .iter()
            .zip(ends)
            .map(|((_, name), count)| ((*name).to_owned(), count))
            .collect(),
        bytes: figures.bytes(),
        retransmissions: figures.retransmissions(),
        rates: seen.relays.rates(&name),
        relay: name,
    }
}
