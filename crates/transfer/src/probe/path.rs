//! The measured path: its connections, and loads on them within the budget.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use diagnose::TransferStall;
use sftp::{Reply, Request};

use super::budget::{PATIENCE, ProbeBudget, answer_deadline};
use super::connection::{ChannelIndex, ChannelUse, ProbeConnections};
use super::devices::LoadTestFiles;
use super::load::{LoadTestResult, ProbeLoad};
use super::measurement_error::{MeasurementError, MeasurementFailure};
use crate::connect::ConnectionFacts;
use crate::session::ConnectionOpener;

/// First channel of the first connection, which carries no load.
pub(super) const IDLE: ChannelIndex = (0, 0);
/// Share of the time below which a load is too short for an extension.
pub(super) const SHORT_SHARE: f64 = 0.08;
/// Round trips of a measurement, at most a share of the time.
const LEAST_TRIPS: f64 = 14.0;
const LONGEST: f64 = 0.16;

/// Connections to one server, with everything that a load on them needs.
pub(super) struct ProbedConnections<'a> {
    budget: ProbeBudget<'a>,
    connections: ProbeConnections,
    factory: Arc<dyn ConnectionOpener>,
    facts: ConnectionFacts,
    devices: LoadTestFiles,
    /// Idle round trip in seconds.
    rtt: f64,
    /// First connection that broke under a load.
    stall: Option<TransferStall>,
    /// Further logins that were answered, and how many of them were admitted.
    logins: Option<(u32, u32)>,
    /// Reason for which the last further connection was not made.
    not_connected: Option<String>,
}

impl<'a> ProbedConnections<'a> {
    /// Takes the first connection, the source of further ones and the facts about the first. The
    /// stand-in for missing devices is made in `directory`.
    pub(super) fn new(
        budget: ProbeBudget<'a>,
        connections: ProbeConnections,
        factory: Arc<dyn ConnectionOpener>,
        facts: ConnectionFacts,
        directory: Option<Vec<u8>>,
    ) -> Self {
        Self {
            budget,
            connections,
            factory,
            facts,
            devices: LoadTestFiles::new(directory),
            rtt: 0.0,
            stall: None,
            logins: None,
            not_connected: None,
        }
    }

    pub(super) fn budget(&self) -> &ProbeBudget<'a> {
        &self.budget
    }

    /// Adds time for a load that few paths need, and for its data to drain.
    pub(super) fn add_time_for(&mut self, share: f64) {
        let drain = Duration::from_secs_f64(5.0 * self.rtt);
        self.budget.add_extra(self.load_time(share) + drain);
    }

    pub(super) fn connections(&mut self) -> &mut ProbeConnections {
        &mut self.connections
    }

    /// Returns the facts about the first connection.
    pub(super) fn facts(&self) -> &ConnectionFacts {
        &self.facts
    }

    /// Returns the idle round trip in seconds.
    pub(super) fn rtt(&self) -> f64 {
        self.rtt
    }

    /// Sets the idle round trip in seconds, which may extend the time of all measurements.
    pub(super) fn set_rtt(&mut self, rtt: f64) {
        self.rtt = rtt;
        let carried = Duration::from_secs_f64(rtt.min(60.0));
        self.connections.set_carried_rtt(carried);
        self.budget.extend_for(rtt);
    }

    /// Returns the first connection that broke under a load.
    pub(super) fn stall(&self) -> Option<TransferStall> {
        self.stall
    }

    /// Returns the number of further logins that were answered, and how many were admitted.
    pub(super) fn logins(&self) -> Option<(u32, u32)> {
        self.logins
    }

    /// Returns true if further logins need no user.
    pub(super) fn may_log_in_again(&self) -> bool {
        !self.facts.asked_user()
    }

    /// Opens further connections at once until there are `count` for load; returns their number.
    pub(super) fn connect(&mut self, count: usize) -> usize {
        let now = self.connections.len() - 1;
        let wanted = count.saturating_sub(now);
        if wanted == 0 {
            return now;
        }
        self.not_connected = None;
        if !self.factory.is_open() {
            let why = "another login would need more than one key, or your input again";
            self.not_connected = Some(why.to_owned());
            return now;
        }
        let (done, results) = mpsc::channel();
        for _ in 0..wanted {
            let (factory, done) = (Arc::clone(&self.factory), done.clone());
            let thread = thread::Builder::new().name("connect".to_owned());
            let _ = thread.spawn(move || {
                // After the deadline there is no receiver any more.
                let _ = done.send(factory.another(false));
            });
        }
        drop(done);
        let until = Instant::now() + PATIENCE.min(self.budget.left() / 3);
        let (mut admitted, mut answered) = (0, 0);
        while answered < wanted && !self.budget.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(result) = results.recv_timeout(left.min(Duration::from_millis(100))) else {
                match left.is_zero() {
                    true => break,
                    false => continue,
                }
            };
            answered += 1;
            match result {
                Ok(link) => admitted += usize::from(self.connections.add(link).is_ok()),
                Err(why) => self.not_connected = Some(why.to_string()),
            }
        }
        if admitted < answered {
            let (asked, got) = self.logins.unwrap_or_default();
            self.logins = Some((asked + answered as u32, got + admitted as u32));
        }
        self.connections.len() - 1
    }

    /// Returns the error that no further connection was made, with the reason of the last one.
    pub(super) fn no_further_connection(&self) -> MeasurementError {
        let why = self.not_connected.as_deref();
        let why = why.and_then(|why| why.lines().next());
        let why = why.unwrap_or("it was not ready in time");
        let text = format!("no further connection was made: {why}");
        MeasurementError::new(MeasurementFailure::NoFurtherConnection, text)
    }

    /// Replaces the connections for load: uploads fill queues, and the server's TCP takes the
    /// longer round trip for congestion and leaves slow start before it has sent anything
    /// (HyStart). Returns false if the server admits no further connection.
    pub(super) fn renew(&mut self) -> bool {
        if !self.may_log_in_again() || !self.factory.is_open() {
            return true;
        }
        self.connections.cut_from(1);
        self.connect(2) > 0
    }

    /// Opens a device on the first channels of connections.
    fn prepare(&mut self, channels: &[ChannelIndex], up: bool) -> Result<(), MeasurementError> {
        for at in channels {
            while self.connections.channel(*at).is_none() {
                self.connections.open(at.0, answer_deadline())?;
            }
            let file = self.devices.open(&mut self.connections, *at, up)?;
            let purpose = match up {
                true => ChannelUse::Writing {
                    file,
                    advances: false,
                },
                false => ChannelUse::Reading { file },
            };
            self.connections.set_use(*at, purpose);
        }
        Ok(())
    }

    /// Returns the time of a load for a share of the time.
    pub(super) fn load_time(&self, share: f64) -> Duration {
        let time = self.budget.time().mul_f64(share);
        time.max(self.least_load_time())
    }

    /// Shortest load: slow start takes some ten round trips on a long path.
    fn least_load_time(&self) -> Duration {
        let most = self.budget.time().as_secs_f64() * LONGEST;
        Duration::from_secs_f64((LEAST_TRIPS * self.rtt).min(most).max(0.3))
    }

    /// Loads channels for a share of the time.
    ///
    /// # Errors
    /// The budget is used up, a device cannot be opened, or a connection was lost.
    pub(super) fn load(
        &mut self,
        channels: &[ChannelIndex],
        up: bool,
        share: f64,
    ) -> Result<LoadTestResult, MeasurementError> {
        self.prepare(channels, up)?;
        let time = self.load_time(share).min(self.budget.left());
        if time < self.least_load_time() / 2 {
            return Err(MeasurementError::time_used_up());
        }
        let data_left = self.budget.data_left();
        if data_left == 0 {
            return Err(MeasurementError::data_used_up());
        }
        let idle = (channels.iter().all(|at| at.0 != 0)).then_some(IDLE);
        // One connection alone may need longer for slow start.
        let extension = match (channels, share < SHORT_SHARE) {
            ([_], false) => time.min(self.budget.left().saturating_sub(time) / 4),
            _ => Duration::ZERO,
        };
        let load = ProbeLoad {
            up,
            channels,
            time,
            data: self.budget.share_of_data(share * 1.2).min(data_left),
            idle,
            pauses: false,
            extension,
        };
        let result = self.connections.load(&load, self.budget.cancel());
        self.budget.use_data(result.bytes);
        if let Some(why) = &result.lost {
            self.stall = self.stall.or(result.stall);
            return Err(why.clone());
        }
        Ok(result)
    }

    /// Removes a file of this measurement at the server. Returns a note if it may be left.
    pub(super) fn remove(&mut self, at: ChannelIndex, path: &[u8]) -> Option<String> {
        let request = Request::Remove { path };
        let asked = self.connections.ask(at, &request, answer_deadline());
        let removed = matches!(asked, Ok((Reply::Status(status), _)) if status.is_ok());
        (!removed).then(|| {
            let shown = crate::escape::name(path);
            format!("cleaning up: {shown} may be left on the server: remove it by hand")
        })
    }

    /// Removes the file that took the place of missing devices. Returns a note if it may be left.
    pub(super) fn remove_stand_in(&mut self) -> Option<String> {
        let path = self.devices.take_stand_in()?;
        self.remove(IDLE, &path)
    }

    /// Ends all connections.
    pub(super) fn finish(self) {
        self.connections.finish();
    }
}
