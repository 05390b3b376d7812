//! Number of connections and channels: collects the measurements for
//! [`schedule::ConcurrencyController`] and carries out its decisions.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use schedule::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionId, ConnectionSample,
    Direction, Evidence, Hint, Job, JobKind, LaneSample, Learned, LimiterLog, Refusal,
    SchedulerStats, TcpSample, USUAL_RATE, begins_with,
};
use tracing::{debug, info, trace};

use super::connections::Connection;
use super::direct::DirectState;
use super::driver::SessionLoop;
use super::lanes::LaneOnChannel;
use super::{LinkSample, MOST_JOBS, NoMoreConnections, SessionEvent, SessionOptions, decisions};
use crate::report::{Name, SessionReport};

/// Number of jobs in flight from which more jobs are assumed to follow.
const JOBS: usize = MOST_JOBS / 4 * 3;

/// Rate in bytes per second below which compression pays from the first byte on.
const SLOW: u64 = 150_000_000;

/// Average size in bytes below which files count as small: channel windows and congestion control
/// hardly matter for them.
const SMALL: u64 = 256 << 10;

/// Inputs and state of the concurrency controller in the session loop.
#[derive(Debug, Default)]
pub(super) struct ConcurrencyInputs {
    growth: Option<ConcurrencyController>,
    /// Result of an earlier run with this host.
    learned: Option<Learned>,
    /// Limiter found at each sample.
    log: LimiterLog,
    /// Direction of the transfer, known from the first file job.
    direction: Option<Direction>,
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
    /// Takes the direction of the transfer from a job that was pushed.
    pub(super) fn note(&mut self, job: &Job) {
        let direction = match job.kind {
            JobKind::Put { .. } | JobKind::PutDelta { .. } => Direction::Up,
            JobKind::Get { .. } | JobKind::GetDelta { .. } => Direction::Down,
            _ => return,
        };
        self.direction.get_or_insert(direction);
    }

    /// Adds a silence of `lasted` that ended while answers were due. Up to one and a half round
    /// trips are not counted: a sender that sends one window at a time pauses that long.
    pub(super) fn note_silence(&mut self, lasted: Duration) {
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
    pub(super) fn learned(&self) -> Option<(Learned, Duration)> {
        let learned = self.learned?;
        Some((learned, learned.age(seconds())?))
    }

    /// Adds announced files and bytes whose jobs have not been submitted yet.
    pub(super) fn expect(&mut self, direction: Direction, files: u64, bytes: u64) {
        self.direction.get_or_insert(direction);
        self.expected.0 += files;
        self.expected.1 = self.expected.1.saturating_add(bytes);
        if let Some(growth) = &mut self.growth {
            growth.expect(self.expected.0, self.expected.1);
        }
    }

    /// Raises the estimate of the copy's files and bytes.
    pub(super) fn foresee(&mut self, direction: Direction, files: u64, bytes: u64) {
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
        self.direction == Some(Direction::Down) && self.growth.as_ref().is_some_and(loses)
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
    fn idle(&mut self) -> Option<f64> {
        let now = ticks()?;
        let (idle, all) = self.ticks.replace(now)?;
        let all = now.1.checked_sub(all).filter(|all| *all > 0)?;
        Some(now.0.saturating_sub(idle) as f64 / all as f64)
    }
}

/// Idle ticks and total ticks of the processors that this process may use (/proc/stat, proc(5)).
fn ticks() -> Option<(u64, u64)> {
    static ALLOWED: OnceLock<Option<Vec<u32>>> = OnceLock::new();
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let allowed = ALLOWED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        listed_processors(
            status
                .lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?,
        )
    });
    ticks_of(&stat, allowed.as_deref())
}

/// Parses a processor list such as "0-2,5". Returns `None` for any other text.
fn listed_processors(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<u32>().ok()?, to.parse::<u32>().ok()?);
        all.extend(from..=to.min(from.saturating_add(4096)));
    }
    Some(all)
}

/// Sums idle and total ticks of the allowed processors, or of all if `allowed` is `None`.
fn ticks_of(stat: &str, allowed: Option<&[u32]>) -> Option<(u64, u64)> {
    let (mut idle, mut all, mut any) = (0, 0, false);
    for line in stat.lines().take_while(|line| line.starts_with("cpu")) {
        let (name, fields) = line.split_once(' ')?;
        let number = name.strip_prefix("cpu")?.parse::<u32>().ok();
        let counts = match (allowed, number) {
            (None, number) => number.is_none(),
            (Some(allowed), Some(number)) => allowed.contains(&number),
            (Some(_), None) => false,
        };
        if counts {
            let ticks: Vec<u64> = fields
                .split_whitespace()
                .filter_map(|f| f.parse().ok())
                .collect();
            // idle and iowait
            idle += ticks.get(3)? + ticks.get(4)?;
            all += ticks.iter().take(8).sum::<u64>();
            any = true;
        }
    }
    any.then_some((idle, all))
}

/// Time that this thread has run or was ready to run so far, including waits for a processor or for
/// the quota of its cgroup (sched-stats, proc(5)).
fn wanted_cpu() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let (ran, waited) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Duration::from_nanos(ran.saturating_add(waited)))
}

/// Largest size in bytes to which the kernel may grow a TCP buffer of this end.
fn buffer(direction: Direction) -> Option<u64> {
    let name = match direction {
        Direction::Up => "/proc/sys/net/ipv4/tcp_wmem",
        Direction::Down => "/proc/sys/net/ipv4/tcp_rmem",
    };
    let text = fs::read_to_string(name).ok()?;
    text.split_whitespace().nth(2)?.parse().ok()
}

/// Configuration of the concurrency controller for a host. `learned` is the result of an earlier
/// run, `one_machine` is set if the host is this machine, and `most` caps the connections.
pub(crate) fn growth_config(
    options: &SessionOptions,
    direction: Direction,
    learned: Option<Learned>,
    one_machine: bool,
    most: Option<u32>,
) -> ConcurrencyConfig {
    let usual = ConcurrencyConfig::new(direction);
    ConcurrencyConfig {
        connections: options.connections,
        channels: options.channels,
        processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        buffer: buffer(direction),
        limit: options.limit,
        background: options.background,
        most_connections: most.unwrap_or(usual.most_connections),
        most_lossy: most.unwrap_or(usual.most_lossy),
        learned: learned.map(|l| (l, seconds())),
        one_machine,
        ..usual
    }
}

/// True if the files are small on average (below `SMALL`) and there is more than one.
pub(crate) fn are_small(files: u64, bytes: u64) -> bool {
    files > 1 && bytes < files.saturating_mul(SMALL)
}

fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

impl SessionLoop {
    /// Time of the next sample.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let growth = self.growing.growth.as_ref()?;
        growth.next_sample().filter(|_| !self.spread.is_idle())
    }

    /// Samples the transfer, and opens or retires connections and channels as the controller
    /// decides.
    pub(super) fn look(&mut self, now: Instant) {
        if self.growing.logged_in.is_none()
            && self.options.reach.as_ref().is_some_and(|r| r.is_open())
        {
            self.growing.logged_in = Some(now);
        }
        let Some(direction) = self.growing.direction.filter(|_| !self.straight.holds()) else {
            return;
        };
        let greeted = self.lanes.iter().any(|on| on.lane.server_info().is_some());
        let authenticated = greeted || self.options.reach.as_ref().is_some_and(|r| r.is_open());
        let begins = self.growing.growth.is_none() && self.growing.expected.0 > 0;
        if (self.spread.is_idle() && !begins) || !authenticated || self.connections.is_empty() {
            return;
        }
        // A single file that is rebuilt from a basis file sends little. Sampling starts when data
        // is sent.
        let one = self.growing.expected.0 <= 1 && self.spread.only_rebuilds_one();
        if self.growing.growth.is_none() && one {
            return;
        }
        if self.growing.growth.is_none() {
            let config = self.growth_config(direction);
            self.growing.learned = config.learned.map(|(learned, _)| learned);
            self.warn_of_one_connection(&config);
            let mut growth = ConcurrencyController::new(config);
            for (files, bytes) in [self.growing.expected, self.growing.foreseen] {
                growth.expect(files, bytes);
            }
            self.growing.growth = Some(growth);
        }
        let due = |growth: &ConcurrencyController| growth.next_sample().is_none_or(|at| at <= now);
        if !self.growing.growth.as_ref().is_some_and(due) {
            return;
        }
        let evidence = self.evidence(now, direction);
        let Some(growth) = &mut self.growing.growth else {
            return;
        };
        trace!("{:?}", evidence.lanes);
        let yielding = self.yielding.as_mut().map(|y| &mut y.throttle);
        let throttles = self.throttle.as_mut().into_iter().chain(yielding);
        let shares = throttles.map(|t| t.take_share(now));
        growth.set_throttled(shares.fold(0.0, f64::max) > 0.5);
        let learned = self.growing.learned;
        let changes = growth.sample(&evidence);
        trace!(
            "{:?} left, {:.0} bytes a second",
            evidence.remaining,
            growth.limiter_evidence().rate
        );
        let limiter = growth.limiter();
        self.growing
            .log
            .add(now, limiter, growth.limiter_evidence());
        if !changes.is_empty() {
            info!("{}", decisions::in_words(growth, &changes, learned));
            trace!("{:?}", growth.limiter_evidence());
        }
        for change in changes {
            self.change(now, change);
        }
        let lossy = limiter == schedule::Limiter::Loss || self.growing.bears_losses;
        if lossy && direction == Direction::Up && self.options.bear_losses {
            self.bear_losses();
        }
    }

    /// Tells the user that `--connections` is ignored if each further login would need a prompt.
    fn warn_of_one_connection(&mut self, config: &ConcurrencyConfig) {
        let several = config.connections.is_some_and(|n| n > 1);
        if several && config.interactive {
            let line = "each further login would need you again: it stays at one connection";
            self.telling.tell(SessionEvent::Says(line.to_owned()));
        }
    }

    /// Switches all connections to BBR where the system allows it. CUBIC takes each lost packet for
    /// congestion: at 1 % loss and 100 ms, a connection moves 0.15 MB/s.
    fn bear_losses(&mut self) {
        for on in self.connections.iter_mut().filter(|on| !on.bears_losses) {
            on.bears_losses = true;
            if on.link.bear_losses() {
                self.growing.bears_losses = true;
                debug!("connection {}: BBR from now on", on.id.0);
            }
        }
    }

    /// Tells the scheduler how many lanes a single file will soon have, so that it is cut for them.
    pub(super) fn expect_lanes(&mut self, now: Instant, job: &Job, hint: Hint) {
        let size = match &job.kind {
            JobKind::Put { .. } | JobKind::PutDelta { .. } => hint.size,
            JobKind::Get { known, .. } | JobKind::GetDelta { known, .. } => {
                known.and_then(|known| known.size)
            }
            _ => return,
        };
        let (files, _) = self.growing.expected.max(self.growing.foreseen);
        let (Some(size), Some(direction)) = (size, self.growing.direction) else {
            return;
        };
        let lanes = match files <= 1 && self.connections.len() == 1 && self.may_log_in_again() {
            true => self.lanes_at_start(now, direction, size),
            false => 1,
        };
        debug!("{size} bytes of {files} files: pieces for {lanes} connections");
        self.spread.expect_lanes(lanes, size);
    }

    /// True unless a further login is known to be impossible or to need the user.
    fn may_log_in_again(&self) -> bool {
        let reach = self.options.reach.as_ref();
        let straight = !matches!(self.straight, DirectState::New | DirectState::Off);
        reach.is_some_and(|reach| !reach.asks()) && !straight
    }

    fn lanes_at_start(&self, now: Instant, direction: Direction, size: u64) -> u32 {
        let Some(rtt) = self
            .connections
            .iter()
            .find_map(|on| Some(on.link.sample().tcp?.rtt))
        else {
            return 1;
        };
        let config = ConcurrencyConfig {
            interactive: false,
            ..self.growth_config(direction)
        };
        begins_with(config, (1, size), rtt, now)
    }

    fn growth_config(&self, direction: Direction) -> ConcurrencyConfig {
        let reach = self.options.reach.as_deref();
        let learned = reach.and_then(|r| r.learned(direction));
        let most = reach.and_then(|r| r.most());
        let one_machine = self.connections.iter().any(|on| on.link.is_one_machine());
        ConcurrencyConfig {
            interactive: !reach.is_some_and(|r| r.is_open()),
            login_cost: reach.map(|r| r.login_cost()).unwrap_or_default(),
            ..growth_config(&self.options, direction, learned, one_machine, most)
        }
    }

    /// True if an earlier run found the path slower than compression (`SLOW`).
    pub(super) fn was_slow(&mut self) -> bool {
        let (Some(direction), Some(reach)) = (self.growing.direction, &self.options.reach) else {
            return false;
        };
        *self.growing.was_slow.get_or_insert_with(|| {
            let learned = reach.learned(direction);
            let young = |l: &Learned| l.age(seconds()).is_some();
            learned.filter(young).is_some_and(|l| l.rate < SLOW)
        })
    }

    /// True if one round trip at login costs more than 0.4 % of the transfer, which holds for
    /// uploads (only small answers come back) and for downloads estimated to end within 256 round
    /// trips.
    pub(super) fn is_brief(&self) -> bool {
        let samples = self.connections.iter().map(|on| on.link.sample());
        let rtt = samples.filter_map(|s| s.tcp).map(|tcp| tcp.min_rtt).min();
        let within = rtt.unwrap_or_default().as_secs_f64() * 256.0;
        let lasts = self.left().max(self.growing.foreseen()) as f64 / USUAL_RATE;
        self.growing.direction == Some(Direction::Up) || lasts < within
    }

    /// Lower bound of the bytes still to move.
    pub(super) fn left(&self) -> u64 {
        let stats = self.spread.stats();
        self.growing.to_come(&stats).max(self.spread.remaining())
    }

    fn evidence(&mut self, now: Instant, direction: Direction) -> Evidence {
        let stats = self.spread.stats();
        let mut connections = Vec::new();
        let counts = |on: &&Connection| !on.retiring && !self.only_controls(on);
        for on in self.connections.iter().filter(counts) {
            let sample = on.link.sample();
            connections.push(ConnectionSample {
                connection: on.id,
                bytes: match direction {
                    // `sent` includes data that may wait in the socket buffer for seconds.
                    Direction::Up => sample.tcp.map_or(sample.sent, |tcp| tcp.bytes_acked),
                    Direction::Down => sample.received,
                },
                tcp: tcp_sample(&sample),
            });
        }
        let rtts = connections.iter().filter_map(|on| Some(on.tcp?.rtt));
        self.growing.trip = rtts.max().unwrap_or_default();
        let mut lanes = Vec::new();
        for on in self.lanes.iter().filter(|on| !on.listing && !on.retiring) {
            let connection = on.id.connection;
            let link = self.connections.iter_mut().find(|c| c.id == connection);
            let (window, queued, deflates) = match link {
                Some(on_it) => {
                    let window = on_it.link.send_window(on.channel);
                    let deflates = on_it.link.peer().is_some_and(|peer| peer.deflates);
                    (window.largest, window.queued, deflates)
                }
                None => (0, 0, false),
            };
            let since = on.blocked_since.map(|at| now.saturating_duration_since(at));
            let stats = on.lane.stats();
            lanes.push(LaneSample {
                lane: on.id,
                bytes: on.bytes,
                window,
                window_blocked: on.blocked + since.unwrap_or_default(),
                in_flight: stats.bytes_in_flight,
                // Sizes before compression cannot be compared with the bytes that TCP holds.
                unsent: match deflates || stats.packed.0 > 0 {
                    true => stats.bytes_in_flight,
                    false => queued,
                },
                depth: stats.bytes_depth,
                latency: stats.latency.unwrap_or_default(),
                stalls_disk: stats.stalls_disk,
                stalls_depth: stats.stalls_depth,
            });
        }
        Evidence {
            now,
            remaining: Some(self.growing.to_come(&stats).max(self.spread.remaining())),
            moved: stats.moved,
            done: stats.done,
            cpu: processor_time(),
            idle: self.growing.idle(),
            wanted_cpu: wanted_cpu(),
            silent: self.growing.silent,
            start_up: self.start_up(now),
            starting: self.lanes.iter().filter(|on| on.greeted.is_none()).count() as u32,
            bears_losses: self.growing.bears_losses,
            connections,
            lanes,
        }
    }

    /// Time beyond one round trip that the server took to start its SFTP server, measured on the
    /// first channel of each connection, whose requests do not queue behind data.
    fn start_up(&self, now: Instant) -> Duration {
        let Some(logged_in) = self.growing.logged_in else {
            return Duration::ZERO;
        };
        let first = || self.lanes.iter().filter(|on| on.id.channel == 0);
        let took = |on: &LaneOnChannel, until: Instant| {
            let began = on.opened.max(logged_in);
            until.saturating_duration_since(began)
        };
        let answered = first().filter_map(|on| Some(took(on, on.greeted?)));
        // The minimum, because the others may have lost a packet.
        let least = answered.min();
        let waited = || first().map(|on| took(on, now)).max();
        let start_up = least.or_else(waited).unwrap_or_default();
        start_up.saturating_sub(self.growing.trip)
    }

    fn change(&mut self, now: Instant, change: ConcurrencyChange) {
        match change {
            ConcurrencyChange::AddConnection => self.want_connection(now),
            ConcurrencyChange::AddChannel(connection) => {
                if self
                    .open_lane(now, connection, self.predict, false)
                    .is_none()
                {
                    self.note_channel_refused(now, connection);
                }
            }
            ConcurrencyChange::RetireConnection(id) => {
                if let Some(on) = self.connection(id) {
                    on.retiring = true;
                }
                for on in self.lanes.iter_mut().filter(|on| on.id.connection == id) {
                    on.retiring = true;
                    self.spread.retire(on.id);
                }
            }
            ConcurrencyChange::RetireLane(id) => {
                if let Some(at) = self.lane_at(id) {
                    self.lanes[at].retiring = true;
                    self.spread.retire(id);
                }
            }
        }
    }

    /// Handles the result of a requested connection.
    pub(super) fn note_joined(
        &mut self,
        now: Instant,
        result: Result<ConnectionId, NoMoreConnections>,
    ) {
        let Some(growth) = &mut self.growing.growth else {
            return;
        };
        match result {
            Ok(id) => {
                let changes = growth.connection_opened(now, id);
                // Switch before the slow start of the new connection meets its first loss.
                if self.growing.bears_losses {
                    self.bear_losses();
                }
                for change in changes {
                    self.change(now, change);
                }
            }
            Err(why) => {
                debug!("no further connection: {why}");
                growth.refused(
                    now,
                    match why {
                        NoMoreConnections::Connection(_) => Refusal::Connection,
                        NoMoreConnections::Login(_) => Refusal::Login,
                    },
                );
            }
        }
    }

    /// Notes that the server refused another channel on this connection (MaxSessions).
    pub(super) fn note_channel_refused(&mut self, now: Instant, connection: ConnectionId) {
        debug!("no further channel on connection {}", connection.0);
        if let Some(growth) = &mut self.growing.growth {
            growth.refused(now, Refusal::Channel(connection));
        }
    }

    /// Reports the limiter and its evidence at the end of the session.
    pub(super) fn account(&self) -> Option<SessionReport> {
        let (limiter, evidence) = self.growing.log.verdict()?;
        Some(SessionReport {
            // The caller that connected fills in the host name.
            host: Name::default(),
            direction: self.growing.direction?,
            connections: evidence.connections,
            channels: evidence.lanes.div_ceil(evidence.connections.max(1)),
            fixed: self.options.connections.is_some() || self.options.channels.is_some(),
            limiter,
            measured: self.growing.log.lasted(),
            evidence,
            tried: self
                .growing
                .growth
                .as_ref()
                .and_then(ConcurrencyController::tried),
        })
    }

    /// Stores in the host memory what further logins cost, if there were any.
    pub(super) fn learn_login_cost(&self) {
        if let (Some(growth), Some(reach)) = (&self.growing.growth, &self.options.reach) {
            reach.note_login_cost(growth.login_cost());
        }
    }

    /// Stores the learned values in the host memory, unless the user fixed connections, channels or
    /// the rate.
    pub(super) fn learn(&self) {
        let options = &self.options;
        let set = options.connections.is_some() || options.channels.is_some();
        if set || options.limit.is_some() {
            return;
        }
        let learned = self
            .growing
            .growth
            .as_ref()
            .and_then(|g| g.learned(seconds()));
        if let (Some(mut learned), Some(reach)) = (learned, &self.options.reach) {
            let mut peers = self.connections.iter().filter_map(|on| on.link.peer());
            if peers.any(|peer| peer.deflates) {
                // With SSH compression a processor may have been the limit, so a faster earlier
                // rate is kept as the path's.
                let before = reach.learned(learned.direction);
                learned.rate = before.map_or(0, |l| l.rate).max(learned.rate);
            }
            reach.learn(learned);
        }
    }
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
    use super::*;

    /// Bug: with both ends pinned to one of several processors, the idle ones made the machine look
    /// idle.
    #[test]
    fn only_processors_that_may_be_used_count_as_idle() {
        let stat = "cpu  10 0 0 200 4 0 0 0 0 0\ncpu0 8 0 0 2 0 0 0 0 0 0\n\
                    cpu1 2 0 0 198 4 0 0 0 0 0\nintr 5\n";
        assert_eq!(ticks_of(stat, None), Some((204, 214)));
        let allowed = listed_processors(" 0\n");
        assert_eq!(allowed, Some(vec![0]));
        assert_eq!(ticks_of(stat, allowed.as_deref()), Some((2, 10)));
        assert_eq!(ticks_of(stat, Some(&[7])), None);
        assert_eq!(listed_processors("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(listed_processors("many"), None);
    }

    #[test]
    fn what_was_announced_is_left_until_it_has_moved_and_is_not_doubled() {
        let mut growing = ConcurrencyInputs::default();
        growing.expect(Direction::Up, 100, 1000);
        growing.foresee(Direction::Up, 80, 900);
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
        growing.foresee(Direction::Up, 400, 4000);
        assert_eq!(left(&growing, 1000, MOST_JOBS), 3000);
    }
}
