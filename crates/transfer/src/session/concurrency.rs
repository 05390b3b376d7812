//! Number of connections and channels: collects the measurements for
//! [`schedule::ConcurrencyController`] and carries out its decisions.

use std::time::{Duration, Instant};

use schedule::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionId, ConnectionSample,
    Job, JobHint, JobKind, LaneOpenFailure, LaneSample, LearnedConcurrency, LimiterLog,
    RunMeasurements, SchedulerStats, TcpSample, TransferDirection, USUAL_RATE, begins_with,
};
use tracing::{debug, info, trace};

use super::connection::SessionConnection;
use super::direct::DirectConnections;
use super::dispatcher::Dispatcher;
use super::lane::LaneOnChannel;
use super::machine::MachineFunctions;
use super::pacing::SessionRateLimits;
use super::{FurtherConnectionError, LinkSample, MOST_JOBS, SessionOptions, decisions};
use crate::report::{EscapedName, SessionReport};

/// Number of jobs in flight from which more jobs are assumed to follow.
const JOBS: usize = MOST_JOBS / 4 * 3;

/// Rate in bytes per second below which compression pays from the first byte on.
const SLOW: u64 = 150_000_000;

/// Bytes that a rate limit may hold back at once.
const PACED: u64 = 1 << 20;

/// Average size in bytes below which files count as small: channel windows and congestion control
/// hardly matter for them.
const SMALL: u64 = 256 << 10;

/// Inputs and state of the concurrency controller in the session loop.
#[derive(Debug)]
pub(super) struct ConcurrencyInputs {
    machine: MachineFunctions,
    growth: Option<ConcurrencyController>,
    /// Result of an earlier run with this host.
    learned: Option<LearnedConcurrency>,
    /// Limiter found at each sample.
    log: LimiterLog,
    /// Direction of the transfer, known from the first file job.
    direction: Option<TransferDirection>,
    /// Announced files and bytes.
    expected: (u64, u64),
    /// Estimated files and bytes of the whole copy.
    foreseen: (u64, u64),
    /// Idle ticks and total ticks of this machine's processors at the last sample.
    ticks: Option<(u64, u64)>,
    /// Set when packets are lost and the connections were switched to a congestion control that
    /// tolerates losses.
    bears_losses: bool,
    /// Cached answer of `was_slow`: the path was slower than `SLOW` in an earlier run.
    was_slow: Option<bool>,
    /// Time at which the login was seen to be complete.
    logged_in: Option<Instant>,
    /// Round trip at the last sample; zero before the first one.
    trip: Duration,
    /// Total time without any answer while answers were due, beyond one and a half round trips
    /// each.
    silent: Duration,
}

impl ConcurrencyInputs {
    pub(super) fn new(machine: MachineFunctions) -> Self {
        Self {
            machine,
            growth: None,
            learned: None,
            log: LimiterLog::default(),
            direction: None,
            expected: (0, 0),
            foreseen: (0, 0),
            ticks: None,
            bears_losses: false,
            was_slow: None,
            logged_in: None,
            trip: Duration::ZERO,
            silent: Duration::ZERO,
        }
    }

    /// Takes the direction of the transfer from a job that was pushed. A session with uploads has no
    /// downloads except small ones of its own, such as the receiver's boot ID.
    pub(super) fn note(&mut self, job: &Job) {
        match job.kind {
            JobKind::Put { .. } | JobKind::PutDelta { .. } => {
                self.direction = Some(TransferDirection::Up);
            }
            JobKind::Get { .. } | JobKind::GetDelta { .. } => {
                self.direction.get_or_insert(TransferDirection::Down);
            }
            _ => {}
        }
    }

    /// Adds a silence of `lasted` that ended while answers were due. Up to one and a half round
    /// trips are not counted: a sender that sends one window at a time pauses that long. A stall is
    /// no sign of a slow server, and counted by itself.
    pub(super) fn note_silence(&mut self, lasted: Duration, options: &SessionOptions) {
        let pause = match options.limit {
            _ if options.background => Duration::MAX,
            Some(limit) => Duration::from_secs(PACED / limit.max(1)),
            None => Duration::ZERO,
        };
        if self.log.note_silence(lasted, pause) {
            return;
        }
        let usual = self.trip * 3 / 2 + Duration::from_millis(10);
        if !self.trip.is_zero() {
            self.silent += lasted.saturating_sub(usual);
        }
    }

    /// True if packets are lost and a loss-tolerant congestion control is in use.
    pub(super) fn bears_losses(&self) -> bool {
        self.bears_losses
    }

    /// Result of an earlier run, with its age.
    pub(super) fn learned(&self) -> Option<(LearnedConcurrency, Duration)> {
        let learned = self.learned?;
        Some((learned, learned.age((self.machine.unix_seconds)())?))
    }

    /// Adds announced files and bytes whose jobs have not been submitted yet.
    pub(super) fn expect(&mut self, direction: TransferDirection, files: u64, bytes: u64) {
        self.direction.get_or_insert(direction);
        self.expected.0 += files;
        self.expected.1 = self.expected.1.saturating_add(bytes);
        if let Some(growth) = &mut self.growth {
            growth.expect(self.expected.0, self.expected.1);
        }
    }

    /// Raises the estimate of the copy's files and bytes.
    pub(super) fn foresee(&mut self, direction: TransferDirection, files: u64, bytes: u64) {
        self.direction.get_or_insert(direction);
        self.foreseen = self.foreseen.max((files, bytes));
        if let Some(growth) = &mut self.growth {
            growth.expect(self.foreseen.0, self.foreseen.1);
        }
    }

    /// True for many small files, for which several connections may be opened at once as soon as
    /// they are sampled or more files are announced.
    pub(super) fn may_begin_with_several(&self) -> bool {
        let (files, bytes) = self.expected.max(self.foreseen);
        let several = |growth: &ConcurrencyController| growth.may_begin_with_several();
        are_small(files, bytes) && self.growth.as_ref().is_none_or(several)
    }

    /// True if packet loss limits a download, whose sender is the far end.
    pub(super) fn loses_on_the_way_down(&self) -> bool {
        let loses = |growth: &ConcurrencyController| growth.limiter() == schedule::Limiter::Loss;
        self.direction == Some(TransferDirection::Down) && self.growth.as_ref().is_some_and(loses)
    }

    /// Rate in bytes per second that an earlier run reached on this path, if known.
    pub(super) fn known_rate(&self) -> Option<u64> {
        self.learned().map(|(learned, _)| learned.rate)
    }

    /// Estimated bytes of the whole copy.
    pub(super) fn foreseen(&self) -> u64 {
        self.foreseen.1
    }

    /// Lower bound of the bytes still to move, including jobs that have not been submitted. The
    /// announced or estimated size counts until it has moved. After that, if at least `JOBS` jobs
    /// are in flight (the submitter waits), as many bytes as have moved already are assumed to
    /// follow. Without the condition on jobs, the estimate doubled near the end of a copy and
    /// connections were tried that could not pay.
    fn to_come(&self, stats: &SchedulerStats) -> u64 {
        let known = self.expected.1.max(self.foreseen.1);
        match known.saturating_sub(stats.moved) {
            0 if stats.jobs >= JOBS => stats.moved,
            left => left,
        }
    }

    /// Resets the controller and the expected sizes, because all connections were replaced.
    pub(super) fn start_anew(&mut self) {
        self.growth = None;
        self.expected = (0, 0);
        self.foreseen = (0, 0);
    }

    /// Resets the controller for new connections but keeps the announced and estimated sizes.
    pub(super) fn begin_again(&mut self) {
        self.growth = None;
    }

    /// Idle share of this machine's processors since the last sample, 0 to 1.
    fn idle(&mut self, now: Option<(u64, u64)>) -> Option<f64> {
        let now = now?;
        let (idle, all) = self.ticks.replace(now)?;
        let all = now.1.checked_sub(all).filter(|all| *all > 0)?;
        Some(now.0.saturating_sub(idle) as f64 / all as f64)
    }
}

/// True if the connections can be measured: one is open, or a server has answered. A session whose
/// only lane is being replaced has neither, and takes no samples.
fn is_measurable(of: &Dispatcher, open: bool) -> bool {
    let greeted = || {
        of.lanes()
            .iter()
            .any(|on| on.lane().server_info().is_some())
    };
    (open || greeted()) && !of.connections().is_empty()
}

/// Configuration of the concurrency controller for a host. `learned` is the result of an earlier
/// run, `one_machine` is set if the host is this machine, and `most` caps the connections.
pub(crate) fn growth_config(
    options: &SessionOptions,
    direction: TransferDirection,
    learned: Option<LearnedConcurrency>,
    one_machine: bool,
    most: Option<u32>,
    machine: &MachineFunctions,
) -> ConcurrencyConfig {
    let usual = ConcurrencyConfig::new(direction);
    ConcurrencyConfig {
        connections: options.connections,
        channels: options.channels,
        processors: (machine.processors)(),
        buffer: (machine.tcp_buffer)(direction),
        limit: options.limit,
        background: options.background,
        most_connections: most.unwrap_or(usual.most_connections),
        most_lossy: most.unwrap_or(usual.most_lossy),
        learned: learned.map(|l| (l, (machine.unix_seconds)())),
        one_machine,
        ..usual
    }
}

/// True if the files are small on average (below `SMALL`) and there is more than one.
pub(crate) fn are_small(files: u64, bytes: u64) -> bool {
    files > 1 && bytes < files.saturating_mul(SMALL)
}

/// Parts of the session that the controller measures and changes.
pub(super) struct MeasuredSession<'a> {
    pub options: &'a SessionOptions,
    pub dispatcher: &'a mut Dispatcher,
    pub direct: &'a DirectConnections,
    pub pacing: &'a mut SessionRateLimits,
}

/// Changes of connections and channels that were decided, and a warning for the user.
#[derive(Debug, Default)]
pub(super) struct ConcurrencyDecision {
    pub changes: Vec<ConcurrencyChange>,
    /// Line for the user.
    pub warning: Option<&'static str>,
}

impl ConcurrencyInputs {
    /// Time of the next sample while jobs are unfinished.
    pub(super) fn poll_timeout(
        &self,
        options: &SessionOptions,
        of: &Dispatcher,
    ) -> Option<Instant> {
        let open = options
            .connection_source
            .as_ref()
            .is_some_and(|r| r.is_open());
        let growth = self.growth.as_ref().filter(|_| is_measurable(of, open))?;
        growth.next_sample()
    }

    /// Samples the transfer, and returns the connections and channels to open or to retire.
    pub(super) fn look(
        &mut self,
        now: Instant,
        mut of: MeasuredSession<'_>,
    ) -> ConcurrencyDecision {
        let mut look = ConcurrencyDecision::default();
        let open = of
            .options
            .connection_source
            .as_ref()
            .is_some_and(|r| r.is_open());
        if self.logged_in.is_none() && open {
            self.logged_in = Some(now);
        }
        let Some(direction) = self.direction.filter(|_| !of.direct.holds()) else {
            return look;
        };
        if !self.may_sample(&of, open) {
            return look;
        }
        if self.growth.is_none() {
            let config = self.growth_config(direction, of.options, of.dispatcher);
            self.learned = config.learned.map(|(learned, _)| learned);
            look.warning = one_connection_warning(&config);
            let mut growth = ConcurrencyController::new(config);
            for (files, bytes) in [self.expected, self.foreseen] {
                growth.expect(files, bytes);
            }
            self.growth = Some(growth);
        }
        let due = |growth: &ConcurrencyController| growth.next_sample().is_none_or(|at| at <= now);
        if !self.growth.as_ref().is_some_and(due) {
            return look;
        }
        let evidence = self.evidence(now, direction, &mut of);
        let Some(growth) = &mut self.growth else {
            return look;
        };
        growth.set_throttled(of.pacing.take_share(now) > 0.5);
        look.changes = growth.sample(&evidence);
        trace!(
            "{} channels, {:.0} bytes a second",
            evidence.lanes.len(),
            growth.limiter_evidence().rate
        );
        let limiter = growth.limiter();
        self.log.add(now, limiter, growth.limiter_evidence());
        if !look.changes.is_empty() {
            info!(
                "{}",
                decisions::in_words(growth, &look.changes, self.learned)
            );
        }
        let lossy = limiter == schedule::Limiter::Loss || self.bears_losses;
        if lossy && direction == TransferDirection::Up && of.options.bear_losses {
            self.bear_losses(of.dispatcher);
        }
        look
    }

    /// True if the state of the session allows a sample. `open` means that the login is complete.
    fn may_sample(&self, of: &MeasuredSession<'_>, open: bool) -> bool {
        let begins = self.growth.is_none() && self.expected.0 > 0;
        let scheduler = of.dispatcher.scheduler();
        if scheduler.is_idle() && !begins || !is_measurable(of.dispatcher, open) {
            return false;
        }
        // A single file that is rebuilt from a basis file sends little. Sampling starts when data
        // is sent.
        let one = self.expected.0 <= 1 && scheduler.only_rebuilds_one();
        self.growth.is_some() || !one
    }

    /// Switches all connections to BBR where the system allows it. CUBIC takes each lost packet for
    /// congestion: at 1 % loss and 100 ms, a connection moves 0.15 MB/s.
    fn bear_losses(&mut self, dispatcher: &mut Dispatcher) {
        for on in dispatcher.connections_mut().iter_mut() {
            if on.bear_losses() {
                self.bears_losses = true;
                debug!("connection {}: switched to BBR", on.id().0);
            }
        }
    }

    /// Tells the scheduler how many lanes a single file will soon have, so that it is cut for them.
    /// `begun` means that direct connections have begun.
    pub(super) fn expect_lanes(
        &self,
        now: Instant,
        (job, hint): (&Job, JobHint),
        options: &SessionOptions,
        dispatcher: &mut Dispatcher,
        begun: bool,
    ) {
        let size = match &job.kind {
            JobKind::Put { .. } | JobKind::PutDelta { .. } => hint.size,
            JobKind::Get { known, .. } | JobKind::GetDelta { known, .. } => {
                known.and_then(|known| known.size)
            }
            _ => return,
        };
        let (files, _) = self.expected.max(self.foreseen);
        let (Some(size), Some(direction)) = (size, self.direction) else {
            return;
        };
        // False if a further login is known to be impossible or to need the user.
        let again = options
            .connection_source
            .as_ref()
            .is_some_and(|connection_source| !connection_source.asks())
            && !begun;
        let lanes = match files <= 1 && dispatcher.connections().len() == 1 && again {
            true => self.lanes_at_start(now, (direction, size), options, dispatcher),
            false => 1,
        };
        if lanes > 1 {
            debug!("one file of {size} bytes: expecting {lanes} connections");
        }
        dispatcher.scheduler_mut().expect_lanes(lanes, size);
    }

    fn lanes_at_start(
        &self,
        now: Instant,
        (direction, size): (TransferDirection, u64),
        options: &SessionOptions,
        dispatcher: &Dispatcher,
    ) -> u32 {
        let mut connections = dispatcher.connections().iter();
        let Some(rtt) = connections.find_map(|on| Some(on.link().sample().tcp?.rtt)) else {
            return 1;
        };
        let config = ConcurrencyConfig {
            interactive: false,
            ..self.growth_config(direction, options, dispatcher)
        };
        begins_with(config, (1, size), rtt, now)
    }

    fn growth_config(
        &self,
        direction: TransferDirection,
        options: &SessionOptions,
        dispatcher: &Dispatcher,
    ) -> ConcurrencyConfig {
        let connection_source = options.connection_source.as_deref();
        let learned = connection_source.and_then(|r| r.learned(direction));
        let most = connection_source.and_then(|r| r.most());
        let mut connections = dispatcher.connections().iter();
        let one_machine = connections.any(|on| on.link().is_one_machine());
        ConcurrencyConfig {
            interactive: !connection_source.is_some_and(|r| r.is_open()),
            login_cost: connection_source
                .map(|r| r.login_cost())
                .unwrap_or_default(),
            preconnected: connection_source
                .map(|r| r.preconnected())
                .unwrap_or_default(),
            ..growth_config(
                options,
                direction,
                learned,
                one_machine,
                most,
                &self.machine,
            )
        }
    }

    /// True if an earlier run found the path slower than compression (`SLOW`).
    pub(super) fn was_slow(&mut self, options: &SessionOptions) -> bool {
        let (Some(direction), Some(connection_source)) =
            (self.direction, &options.connection_source)
        else {
            return false;
        };
        let machine = self.machine;
        *self.was_slow.get_or_insert_with(|| {
            let learned = connection_source.learned(direction);
            let young = |l: &LearnedConcurrency| l.age((machine.unix_seconds)()).is_some();
            learned.filter(young).is_some_and(|l| l.rate < SLOW)
        })
    }

    /// True if one round trip at login costs more than 0.4 % of the transfer, which holds for
    /// uploads (only small answers come back) and for downloads estimated to end within 256 round
    /// trips.
    pub(super) fn is_brief(&self, dispatcher: &Dispatcher) -> bool {
        let connections = dispatcher.connections().iter();
        let tcp = connections.filter_map(|on| on.link().sample().tcp);
        let rtt = tcp.map(|tcp| tcp.min_rtt).min();
        let within = rtt.unwrap_or_default().as_secs_f64() * 256.0;
        let lasts = self.left(dispatcher).max(self.foreseen()) as f64 / USUAL_RATE;
        self.direction == Some(TransferDirection::Up) || lasts < within
    }

    /// Lower bound of the bytes still to move.
    pub(super) fn left(&self, dispatcher: &Dispatcher) -> u64 {
        let scheduler = dispatcher.scheduler();
        let to_come = self.to_come(&scheduler.stats());
        to_come.max(scheduler.remaining())
    }

    fn evidence(
        &mut self,
        now: Instant,
        direction: TransferDirection,
        of: &mut MeasuredSession<'_>,
    ) -> RunMeasurements {
        let stats = of.dispatcher.scheduler().stats();
        let connections = connection_samples(direction, of);
        let rtts = connections.iter().filter_map(|on| Some(on.tcp?.rtt));
        self.trip = rtts.max().unwrap_or_default();
        let machine = (self.machine.sample)();
        let lanes = of.dispatcher.lanes().iter();
        let starting = lanes.filter(|on| on.answered().1.is_none()).count() as u32;
        RunMeasurements {
            now,
            remaining: Some(self.left(of.dispatcher)),
            moved: stats.moved,
            done: stats.done,
            cpu: machine.processor_time,
            idle: self.idle(machine.ticks),
            wanted_cpu: machine.wanted_cpu,
            silent: self.silent,
            start_up: self.start_up(now, of.dispatcher),
            starting,
            bears_losses: self.bears_losses,
            connections,
            lanes: lane_samples(now, of.dispatcher),
        }
    }

    /// Time beyond one round trip that the server took to start its SFTP server, measured on the
    /// first channel of each connection, whose requests do not queue behind data.
    fn start_up(&self, now: Instant, dispatcher: &Dispatcher) -> Duration {
        let Some(logged_in) = self.logged_in else {
            return Duration::ZERO;
        };
        let lanes = dispatcher.lanes();
        let first = || lanes.iter().filter(|on| on.id().channel == 0);
        let took = |on: &LaneOnChannel, until: Instant| {
            let began = on.answered().0.max(logged_in);
            until.saturating_duration_since(began)
        };
        let answered = first().filter_map(|on| Some(took(on, on.answered().1?)));
        // The minimum, because the others may have lost a packet.
        let least = answered.min();
        let waited = || first().map(|on| took(on, now)).max();
        let start_up = least.or_else(waited).unwrap_or_default();
        start_up.saturating_sub(self.trip)
    }

    /// Takes the result of a requested connection. Returns further connections and channels to open
    /// or to retire.
    pub(super) fn note_joined(
        &mut self,
        now: Instant,
        dispatcher: &mut Dispatcher,
        result: Result<ConnectionId, FurtherConnectionError>,
    ) -> Vec<ConcurrencyChange> {
        let Some(growth) = &mut self.growth else {
            return Vec::new();
        };
        match result {
            Ok(id) => {
                let changes = growth.connection_opened(now, id);
                // Switch before the slow start of the new connection meets its first loss.
                if self.bears_losses {
                    self.bear_losses(dispatcher);
                }
                changes
            }
            Err(why) => {
                debug!("cannot open another connection: {why}");
                let refusal = match why {
                    FurtherConnectionError::Connection(_) => LaneOpenFailure::Connection,
                    FurtherConnectionError::Login(_) => LaneOpenFailure::Login,
                };
                growth.refused(now, refusal);
                Vec::new()
            }
        }
    }

    /// Notes that the server refused another channel on this connection (MaxSessions).
    pub(super) fn note_channel_refused(&mut self, now: Instant, connection: ConnectionId) {
        debug!("cannot open another channel on connection {}", connection.0);
        if let Some(growth) = &mut self.growth {
            growth.refused(now, LaneOpenFailure::Channel(connection));
        }
    }

    /// Reports the limiter and its evidence at the end of the session.
    pub(super) fn account(&self, options: &SessionOptions) -> Option<SessionReport> {
        let (limiter, evidence) = self.log.verdict()?;
        let growth = self.growth.as_ref();
        Some(SessionReport {
            // The caller that connected fills in the host name.
            host: EscapedName::default(),
            direction: self.direction?,
            connections: evidence.connections,
            channels: evidence.lanes.div_ceil(evidence.connections.max(1)),
            fixed: options.connections.is_some() || options.channels.is_some(),
            limiter,
            measured: self.log.lasted(),
            stalled: self.log.stalled(),
            evidence,
            tried: growth.and_then(ConcurrencyController::tried),
        })
    }

    /// Stores in the host memory what further logins cost, if there were any.
    pub(super) fn learn_login_cost(&self, options: &SessionOptions) {
        if let (Some(growth), Some(connection_source)) = (&self.growth, &options.connection_source)
        {
            connection_source.note_login_cost(growth.login_cost());
        }
    }

    /// Stores the learned values in the host memory, unless the user fixed connections, channels or
    /// the rate.
    pub(super) fn learn(&self, options: &SessionOptions, dispatcher: &Dispatcher) {
        let set = options.connections.is_some() || options.channels.is_some();
        if set || options.limit.is_some() {
            return;
        }
        let seconds = (self.machine.unix_seconds)();
        let learned = self.growth.as_ref().and_then(|g| g.learned(seconds));
        if let (Some(mut learned), Some(connection_source)) = (learned, &options.connection_source)
        {
            let connections = dispatcher.connections().iter();
            let mut peers = connections.filter_map(|on| on.link().peer());
            if peers.any(|peer| peer.deflates) {
                // With SSH compression a processor may have been the limit, so a faster earlier
                // rate is kept as the path's.
                let before = connection_source.learned(learned.direction);
                learned.rate = before.map_or(0, |l| l.rate).max(learned.rate);
            }
            connection_source.learn(learned);
        }
    }
}

/// Warns the user that `--connections` is ignored if each further login would need a prompt.
fn one_connection_warning(config: &ConcurrencyConfig) -> Option<&'static str> {
    let several = config.connections.is_some_and(|n| n > 1);
    (several && config.interactive)
        .then_some("staying at one connection: each further login needs your input")
}

fn connection_samples(
    direction: TransferDirection,
    of: &MeasuredSession<'_>,
) -> Vec<ConnectionSample> {
    // A connection that carries the control channel of direct connections and no lanes counts as
    // none.
    let lanes = of.dispatcher.lanes();
    let only_controls =
        |on: &SessionConnection| of.direct.controls(on.id()) && !lanes.any_on(on.id());
    let connections = of.dispatcher.connections().iter();
    let counted = connections.filter(|on| !on.is_retiring() && !only_controls(on));
    let sampled = counted.map(|on| {
        let sample = on.link().sample();
        ConnectionSample {
            connection: on.id(),
            bytes: match direction {
                // `sent` includes data that may wait in the socket buffer for seconds.
                TransferDirection::Up => sample.tcp.map_or(sample.sent, |tcp| tcp.bytes_acked),
                TransferDirection::Down => sample.received,
            },
            tcp: tcp_sample(&sample),
        }
    });
    sampled.collect()
}

fn lane_samples(now: Instant, dispatcher: &mut Dispatcher) -> Vec<LaneSample> {
    let working = dispatcher.lanes().iter().filter(|on| on.is_working());
    let ids: Vec<_> = working.map(|on| (on.id(), on.channel())).collect();
    let mut samples = Vec::with_capacity(ids.len());
    for (id, channel) in ids {
        let link = dispatcher.connections_mut().get_mut(id.connection);
        let (window, deflates) = match link {
            Some(on) => {
                let deflates = on.link().peer().is_some_and(|peer| peer.deflates);
                (on.link_mut().send_window(channel), deflates)
            }
            None => (super::RemoteWindowState::default(), false),
        };
        let lane = dispatcher.lanes().get(id);
        samples.extend(lane.map(|on| on.sample(now, window, deflates)));
    }
    samples
}

fn tcp_sample(sample: &LinkSample) -> Option<TcpSample> {
    let tcp = sample.tcp.as_ref()?;
    let mss = u64::from(tcp.snd_mss);
    Some(TcpSample {
        rtt: tcp.rtt,
        min_rtt: tcp.min_rtt,
        cwnd: u64::from(tcp.snd_cwnd) * mss,
        slow_start: tcp.snd_cwnd < tcp.snd_ssthresh,
        delivery_rate: tcp.delivery_rate,
        segments: tcp.data_segs_out.into(),
        retransmitted: tcp.total_retrans.into(),
        busy: tcp.busy,
        rwnd_limited: tcp.rwnd_limited,
        sndbuf_limited: tcp.sndbuf_limited,
        unacked: u64::from(tcp.unacked) * mss,
        notsent: u64::from(tcp.notsent_bytes).saturating_add(sample.unwritten),
        rcv_rtt: tcp.rcv_rtt,
        out_of_order: tcp.rcv_ooopack.into(),
        rcv_space: tcp.rcv_space.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use schedule::{FileCopyOptions, JobId, RemotePath};

    use super::*;

    #[test]
    fn what_was_announced_is_left_until_it_has_moved_and_is_not_doubled() {
        let mut growing = ConcurrencyInputs::new(crate::session::tests::machine());
        growing.expect(TransferDirection::Up, 100, 1000);
        growing.foresee(TransferDirection::Up, 80, 900);
        let left = |growing: &ConcurrencyInputs, moved, jobs| {
            let stats = SchedulerStats {
                moved,
                jobs,
                ..SchedulerStats::default()
            };
            growing.to_come(&stats)
        };
        assert_eq!(left(&growing, 900, MOST_JOBS), 100);
        assert_eq!(left(&growing, 1000, MOST_JOBS), 1000, "there is more");
        assert_eq!(left(&growing, 1000, JOBS - 1), 0);
        growing.foresee(TransferDirection::Up, 400, 4000);
        assert_eq!(left(&growing, 1000, MOST_JOBS), 3000);
    }

    /// Bug: the receiver of a copy between two hosts was measured as a download, because its boot ID
    /// is downloaded first.
    #[test]
    fn a_small_download_before_uploads_does_not_make_a_session_a_download() {
        let mut growing = ConcurrencyInputs::new(crate::session::tests::machine());
        let (id, options) = (JobId(1), FileCopyOptions::default());
        let path = RemotePath(b"boot_id".to_vec());
        let kind = JobKind::Get {
            source: path.clone(),
            target: PathBuf::from("boot").into(),
            known: None,
            options: options.clone(),
        };
        growing.note(&Job { id, kind });
        assert_eq!(growing.direction, Some(TransferDirection::Down));
        let kind = JobKind::Put {
            source: PathBuf::from("file"),
            target: path,
            options,
        };
        growing.note(&Job { id, kind });
        assert_eq!(growing.direction, Some(TransferDirection::Up));
    }
}
