//! Order of the measurements, from cheap to costly, within a time and an amount of data.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use diagnose::{Evidence, LoginStep, Machine, Mark, Rung, Spread, Stall, TcpPath};
use sftp::{Reply, Request};

use super::connection::{ChannelIndex, Connections, NO_ANSWER, Use};
use super::load::{Load, LoadResult};
use super::remote::{self, QuotaCount};
use super::sampling::median;
use super::{OpenConnection, ProbeOptions, ProbeTarget};
use crate::bench::primitives::Primitive;
use crate::config::HostConfig;
use crate::connect::{self, ConnectError, ConnectionFacts, SharedSettings};
use crate::session::{ConnectionSource, Link};
use crate::timeline::{Timeline, TimelineStep};

/// Time for all measurements unless the user sets it, and its extension in round trips: ten pass
/// before a connection is at full speed, and the DSCP classes need a hundred.
const TIME: Duration = Duration::from_secs(30);
const TRIPS: f64 = 450.0;
const LONGEST_TIME: f64 = 75.0;
/// Gain from a second connection from which on four and eight are tried.
const WORTH: f64 = 1.1;
/// Longest wait for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(8);
/// Round trips measured on the idle path.
const PINGS: usize = 12;
/// Shares of the time for the first rung, each further one, and those of downloads.
const FIRST: f64 = 0.16;
const FURTHER: f64 = 0.08;
const DOWN: (f64, f64) = (0.12, 0.06);
/// Round trips of a login.
const LOGIN_TRIPS: f64 = 16.0;
/// Pause before a measurement is repeated.
const PAUSE: Duration = Duration::from_millis(1500);
/// Gain of the second measurement from which on the first one was disturbed.
const STAYS: f64 = 1.25;
/// Share of time from which on a second channel is worth a measurement.
const BLOCKED: f64 = 0.1;
/// Share of the time for one slice of a DSCP class.
const SLICE: f64 = 0.02;
/// Round trips of a measurement, at most a share of the time.
const LEAST_TRIPS: f64 = 14.0;
const LONGEST: f64 = 0.16;
/// Pairs with a class that seems slow.
const PAIRS: usize = 5;
/// DSCP values that OpenSSH uses or used.
const CLASSES: [(&str, u8); 3] = [("CS1", 8), ("AF21", 18), ("EF", 46)];
/// Time for measuring one cipher on this machine.
const CIPHER_TIME: Duration = Duration::from_millis(30);
/// Rate of a class, as a share of the unmarked one, from which on further pairs are measured.
const SUSPECT: f64 = 0.8;
/// Round trips that a slice needs so that slow start does not decide.
const SLICE_TRIPS: f64 = 6.0;

/// Reasons for leaving measurements out.
const TIME_UP: &str = "further measurements: the time was used up (--time)";
const DATA_USED: &str = "further measurements: the amount of data was used up (--data)";

/// A reason why nothing was measured.
#[derive(Debug)]
pub enum ProbeError {
    /// The login failed, and there is no evidence of the reason beyond the error.
    Connect(ConnectError),
    /// The directory whose disk is to be measured cannot be used: its path, and why.
    Directory(String),
}

/// Measures a path.
///
/// # Errors
/// The host cannot be reached or refuses the login, or the directory does not exist there.
pub fn probe(target: &ProbeTarget, options: &ProbeOptions) -> Result<Evidence, ProbeError> {
    let facts: Arc<Mutex<Option<ConnectionFacts>>> = Arc::default();
    let timeline = Timeline::new(Instant::now());
    let mut settings = target.settings.clone();
    settings.timeline = Some(Arc::clone(&timeline));
    let (heard, opened) = (Arc::clone(&facts), Arc::clone(&target.settings.opened));
    settings.opened = Arc::new(move |facts| {
        *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts.clone());
        opened(facts);
    });
    let mut config = target.config.clone();
    let time = options.time.unwrap_or(TIME);
    let patience = (time / 3).clamp(Duration::from_secs(3), Duration::from_secs(15));
    config.connect_timeout = Some(config.connect_timeout.unwrap_or(patience));
    let begun = Instant::now();
    (options.progress)("login", 0.0, time.as_secs_f64());
    let around = settings.clone();
    let connected = until_cancelled(target, move || connect::connect(config, &around));
    let connected = connected.map(|(link, factory)| Opened {
        link: Box::new(link),
        factory: Arc::new(factory),
        over: None,
    });
    let connected = match (connected, &target.master) {
        (Err(own), Some(master)) if own.check() == connect::ConnectCheck::Login => {
            over_master(master, &own)
        }
        (connected, _) => connected,
    };
    let Opened {
        link,
        factory,
        over,
    } = match connected {
        Ok(connected) => connected,
        Err(error) => match stuck(&timeline, begun.elapsed()) {
            Some(stall) => {
                return Ok(Evidence {
                    stall: Some(stall),
                    unseen: vec![format!("everything else: {error}")],
                    expected: options.expected,
                    ..Evidence::default()
                });
            }
            None => return Err(ProbeError::Connect(error)),
        },
    };
    let local = |e: std::io::Error| {
        let why = format!("cannot watch sockets: {e}");
        ProbeError::Connect(ConnectError::this_machine(
            connect::ConnectCheck::Session,
            why,
        ))
    };
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut all = Connections::new().map_err(local)?;
    all.add(link).map_err(local)?;
    let mut run = Run {
        target,
        options,
        time,
        settings,
        factory,
        facts: facts.unwrap_or_default(),
        all,
        e: Evidence::default(),
        there: None,
        quota: None,
        rtt: 0.0,
        bytes: 0,
        unusable: None,
    };
    run.e.expected = options.expected;
    match over {
        None => run.e.login = login_steps(&timeline),
        Some(why) => run.e.unseen.push(why),
    }
    let measured = run.measure();
    run.conclude(measured)
}

/// Runs `work` on a thread until it is done or cancelled.
fn until_cancelled<T: Send + 'static>(
    target: &ProbeTarget,
    work: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let (done, result) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("connect".to_owned());
    let spawned = thread.spawn(move || {
        // After a cancel there is no receiver any more.
        let _ = done.send(work());
    });
    let session = connect::ConnectCheck::Session;
    spawned
        .map_err(|e| ConnectError::this_machine(session, format!("cannot start a thread: {e}")))?;
    loop {
        match result.recv_timeout(Duration::from_millis(50)) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) if !target.cancel.is_cancelled() => {}
            Err(_) => {
                return Err(ConnectError::this_machine(
                    session,
                    "interrupted".to_owned(),
                ));
            }
        }
    }
}

/// First connection of a probe.
struct Opened {
    link: Box<dyn Link>,
    factory: Arc<dyn ConnectionSource>,
    /// What cannot be measured, because an open connection of ssh is used.
    over: Option<String>,
}

/// Opens a channel on an open connection of ssh, since a login of our own was refused.
fn over_master(master: &OpenConnection, own: &ConnectError) -> Result<Opened, ConnectError> {
    tracing::info!("{own}");
    let link = master.channels.another(false).map_err(|error| {
        let why = format!("{}: {error}", master.name);
        ConnectError::this_machine(connect::ConnectCheck::Session, why)
    })?;
    Ok(Opened {
        link,
        factory: Arc::clone(&master.channels),
        over: Some(format!(
            "the login, and several connections: the open connection of ssh at {} was measured, \
             since a login without questions is refused",
            master.name
        )),
    })
}

/// Evidence that large packets do not arrive: the identification did, the keys did not.
fn stuck(timeline: &Timeline, after: Duration) -> Option<Stall> {
    let marks = timeline.marks();
    let seen = |step| marks.iter().any(|mark| mark.step == step);
    let stuck = seen(TimelineStep::Identified) && !seen(TimelineStep::Keys);
    // A refused host key or a closed connection ends the login earlier.
    let waited = after > Duration::from_millis(2900);
    (stuck && waited).then_some(Stall {
        seconds: after.as_secs_f64(),
        bytes: 0,
        reset: false,
        in_handshake: true,
    })
}

/// Steps of the first connection's login.
fn login_steps(timeline: &Timeline) -> Vec<LoginStep> {
    const STEPS: [(TimelineStep, &str, f64); 4] = [
        (TimelineStep::Connected, "connecting", 1.0),
        (TimelineStep::Identified, "the server's identification", 1.0),
        (TimelineStep::Keys, "the key exchange", 2.0),
        (TimelineStep::Authenticated, "authentication", 3.0),
    ];
    let marks = timeline.marks();
    let first = |step: TimelineStep| {
        let mut own = marks.iter().filter(|mark| mark.connection == Some(1));
        own.find(|mark| mark.step == step).map(|mark| mark.at)
    };
    let mut before = first(TimelineStep::Connecting).unwrap_or_default();
    let mut steps = Vec::new();
    for (step, name, round_trips) in STEPS {
        if let Some(at) = first(step) {
            steps.push(LoginStep {
                name: name.to_owned(),
                seconds: at.saturating_sub(before).as_secs_f64(),
                round_trips,
            });
            before = at;
        }
    }
    steps
}

pub(super) struct Run<'a> {
    pub(super) target: &'a ProbeTarget,
    pub(super) options: &'a ProbeOptions,
    pub(super) time: Duration,
    settings: SharedSettings,
    factory: Arc<dyn ConnectionSource>,
    facts: ConnectionFacts,
    pub(super) all: Connections,
    pub(super) e: Evidence,
    /// Facts about the server before the loads; `None` if no command could be run there.
    there: Option<remote::Facts>,
    /// Processor quota of this process before the loads.
    quota: Option<QuotaCount>,
    /// Idle round trip in seconds.
    pub(super) rtt: f64,
    /// Bytes moved so far.
    pub(super) bytes: u64,
    /// The directory that the user named cannot be used: its path, and why.
    unusable: Option<String>,
}

/// First channel of the first connection, which carries no load.
const IDLE: ChannelIndex = (0, 0);

impl Run<'_> {
    pub(super) fn until(&self) -> Instant {
        Instant::now() + PATIENCE
    }

    pub(super) fn left(&self) -> Duration {
        self.time.saturating_sub(self.target.start.elapsed())
    }

    pub(super) fn step(&self, what: &str) -> Result<(), String> {
        if self.target.cancel.is_cancelled() {
            return Err("interrupted".to_owned());
        }
        let used = self.target.start.elapsed().as_secs_f64();
        (self.options.progress)(what, used, self.left().as_secs_f64());
        Ok(())
    }

    fn measure(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        self.all.open(0, self.until())?;
        self.e.login.push(LoginStep {
            name: "the SFTP server's start".to_owned(),
            seconds: begun.elapsed().as_secs_f64(),
            round_trips: 2.0,
        });
        self.check_directory()?;
        self.idle()?;
        self.ends()?;
        let loaded = self.connect(2);
        if loaded < 1 {
            self.e.unseen.push(
                "uploads and downloads: the server admitted no further connection".to_owned(),
            );
            return Ok(());
        }
        self.ladder(true)?;
        self.ends_under_load();
        if self.renew() {
            self.ladder(false)?;
        }
        self.disk()?;
        self.small_files()?;
        self.marks()
    }

    /// Ends the connections, and returns the evidence of measurements that ended with `measured`.
    fn conclude(mut self, measured: Result<(), String>) -> Result<Evidence, ProbeError> {
        if let Some(why) = self.unusable.take() {
            self.all.finish();
            return Err(ProbeError::Directory(why));
        }
        let cancelled = self.target.cancel.is_cancelled();
        let is_used_up = |why: &str| why == TIME_UP || why == DATA_USED;
        if let Err(why) = &measured
            && !is_used_up(why)
            && !cancelled
        {
            self.e.stall = self.e.stall.or_else(|| self.all.broken());
        }
        match measured {
            Ok(()) => {}
            Err(why) if is_used_up(&why) => self.e.unseen.push(why),
            // The break is the finding.
            Err(why) if self.e.stall.is_some() => {
                let why = format!("further measurements: {why}");
                self.e.unseen.push(why);
            }
            Err(why) => self.e.partial = Some(why),
        }
        if cancelled {
            self.e.partial = Some("interrupted".to_owned());
        }
        let disk = "the server's disk";
        let unexplained = !self.e.unseen.iter().any(|why| why.starts_with(disk));
        if self.options.remote_path.is_some() && self.e.there.disk.is_none() && unexplained {
            let why = format!("{disk}: the measurement ended early");
            self.e.unseen.push(why);
        }
        self.all.finish();
        Ok(self.e)
    }

    /// Round trips of the idle path, and the server's answer time.
    fn idle(&mut self) -> Result<(), String> {
        let (mut answers, mut rtts) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        while answers.len() < PINGS {
            self.step("idle round trip")?;
            let request = Request::Realpath { path: b"." };
            let (_, time) = self.all.ask(IDLE, &request, self.until())?;
            answers.push(time.as_secs_f64());
            let tcp = self.all.sample(0).tcp;
            rtts.extend(tcp.map(|tcp| tcp.rtt.as_secs_f64()));
            if answers.len() >= 4 && begun.elapsed() > self.time.mul_f64(0.08) {
                break;
            }
        }
        let answer = median(&mut answers);
        let tcp = self.all.sample(0).tcp;
        // Through a jump host or a proxy the answers tell the round trip.
        let direct = tcp.filter(|tcp| !tcp.min_rtt.is_zero());
        let (low, middle, high) = match direct {
            Some(tcp) => (
                tcp.min_rtt.as_secs_f64(),
                median(&mut rtts),
                rtts.iter().copied().fold(0.0, f64::max),
            ),
            None => {
                let low = answers.iter().copied().fold(f64::INFINITY, f64::min);
                (low, answer, answers.iter().copied().fold(0.0, f64::max))
            }
        };
        self.rtt = low;
        if self.options.time.is_none() {
            let needed = (TRIPS * low).min(LONGEST_TIME);
            self.time = TIME.max(Duration::from_secs_f64(needed));
        }
        self.e.idle = Some(Spread {
            low,
            median: middle.min(answer),
            high,
        });
        match tcp {
            Some(tcp) => {
                self.e.server_answer = direct.map(|_| (answer - low).max(0.0));
                self.e.tcp = Some(TcpPath {
                    timestamps: tcp.options & 1 != 0,
                    sack: tcp.options & 2 != 0,
                    window_scaling: tcp.options & 4 != 0,
                    mss: tcp.snd_mss,
                });
            }
            None => self.e.unseen.push(
                "TCP's counters: the connection runs through a jump host or a program".to_owned(),
            ),
        }
        Ok(())
    }

    /// Facts about both ends.
    fn ends(&mut self) -> Result<(), String> {
        self.step("both ends")?;
        self.e.cipher.clone_from(&self.facts.cipher);
        let offered = &self.facts.offers.ciphers;
        let aes = || offered.split(',').any(|name| name.starts_with("aes"));
        self.e.offers_aes = (!offered.is_empty()).then(aes);
        self.e.here = here(self.options.local_disk);
        self.e.here.cipher_rate = self.e.cipher.as_deref().and_then(cipher_rate);
        self.e.here.aes_rate = cipher_rate("aes128-gcm@openssh.com");
        self.quota = QuotaCount::of_this_machine();
        self.there = self.ask_server();
        let machine = self.there.as_ref().map(|facts| facts.machine.clone());
        self.e.there = machine.unwrap_or_default();
        Ok(())
    }

    /// Facts about the server of this moment, if it runs commands.
    fn ask_server(&mut self) -> Option<remote::Facts> {
        let banner = self.facts.banner.as_deref();
        if !banner.is_some_and(|banner| banner.contains("OpenSSH")) {
            return None;
        }
        let until = Instant::now() + Duration::from_secs(3).min(self.left() / 4);
        match self.all.run(0, remote::COMMAND.as_bytes(), until) {
            Ok(said) => remote::read(&said),
            Err(why) => {
                tracing::debug!("the server's facts: {why}");
                None
            }
        }
    }

    /// Records the load of both ends' processors during the uploads.
    fn ends_under_load(&mut self) {
        let now = QuotaCount::of_this_machine();
        let counts = self.quota.zip(now);
        self.e.here.throttled = counts.and_then(|(then, now)| now.share_since(then));
        self.e.here.pressure = remote::own_pressure();
        if let Some(before) = self.there.take()
            && let Some(later) = self.ask_server()
        {
            self.e.there = before.until(&later);
        }
    }

    /// Opens further connections at once until there are `count` for load; returns their number.
    fn connect(&mut self, count: usize) -> usize {
        let now = self.all.all.len() - 1;
        let wanted = count.saturating_sub(now);
        if wanted == 0 || !self.factory.is_open() {
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
        let until = Instant::now() + PATIENCE.min(self.left() / 3);
        let (mut admitted, mut answered) = (0, 0);
        while answered < wanted && !self.target.cancel.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(result) = results.recv_timeout(left.min(Duration::from_millis(100))) else {
                match left.is_zero() {
                    true => break,
                    false => continue,
                }
            };
            answered += 1;
            if let Ok(link) = result
                && self.all.add(link).is_ok()
            {
                admitted += 1;
            }
        }
        if admitted < answered {
            let (asked, got) = self.e.logins.unwrap_or_default();
            self.e.logins = Some((asked + answered as u32, got + admitted as u32));
        }
        self.all.all.len() - 1
    }

    /// Opens a device on the first channels of connections.
    fn prepare(&mut self, channels: &[ChannelIndex], up: bool) -> Result<(), String> {
        for at in channels {
            while self.all.channel(*at).is_none() {
                self.all.open(at.0, self.until())?;
            }
            let until = self.until();
            let file = self.all.device(*at, up, until)?;
            self.all.set_use(*at, purpose(up, file));
        }
        Ok(())
    }

    /// Loads channels for a share of the time.
    fn load(
        &mut self,
        channels: &[ChannelIndex],
        up: bool,
        share: f64,
    ) -> Result<LoadResult, String> {
        self.prepare(channels, up)?;
        // Slow start takes some ten round trips on a long path.
        let most = self.time.as_secs_f64() * LONGEST;
        let least = Duration::from_secs_f64((LEAST_TRIPS * self.rtt).min(most).max(0.3));
        let time = self.time.mul_f64(share).max(least).min(self.left());
        if time < least / 2 {
            return Err(TIME_UP.to_owned());
        }
        let left = self.options.data.saturating_sub(self.bytes);
        if left == 0 {
            return Err(DATA_USED.to_owned());
        }
        let data = ((self.options.data as f64 * share * 1.2) as u64).min(left);
        let idle = (channels.iter().all(|at| at.0 != 0)).then_some(IDLE);
        let load = Load {
            up,
            channels,
            time,
            data,
            idle,
            pauses: false,
        };
        let result = self.all.load(&load, &self.target.cancel);
        self.bytes += result.bytes;
        if let Some(why) = &result.lost {
            self.e.stall = self.e.stall.or(result.stall);
            return Err(why.clone());
        }
        Ok(result)
    }

    fn rung(&mut self, channels: &[ChannelIndex], up: bool, share: f64) -> Result<f64, String> {
        let what = format!(
            "{} over {} connection(s)",
            if up { "upload" } else { "download" },
            channels.len()
        );
        self.step(&what)?;
        let mut result = self.load(channels, up, share)?;
        let ladder = match up {
            true => &mut self.e.up,
            false => &mut self.e.down,
        };
        let beyond = self.e.server_answer.unwrap_or_default();
        if let Some(answer) = result.answer {
            let answer = (answer - beyond).max(0.0);
            ladder.loaded = Some(ladder.loaded.map_or(answer, |l| l.max(answer)));
            // The receiver of data sees no round trip of its own.
            if let Some(rung) = result.rung.as_mut().filter(|_| !up) {
                rung.rtt = rung.rtt.max(answer);
            }
        }
        let rate = result.rung.map_or(0.0, |rung| rung.rate);
        ladder.rungs.extend(result.rung);
        Ok(rate)
    }

    /// Replaces the connections for load: uploads fill queues, and the server's TCP takes the
    /// longer round trip for congestion and leaves slow start before it has sent anything
    /// (HyStart).
    fn renew(&mut self) -> bool {
        if self.facts.asked || !self.factory.is_open() {
            return true;
        }
        self.all.cut_from(1);
        let admitted = self.connect(2) > 0;
        if !admitted {
            let why = "downloads: the server admitted no further connection";
            self.e.unseen.push(why.to_owned());
        }
        admitted
    }

    /// True if a channel window held back the first upload, and the path's queue did not fill.
    fn is_blocked(&self) -> bool {
        let one = self.e.up.rung(1, 1);
        let filled = |one: &Rung| one.rtt > 1.25 * one.min_rtt + 0.005;
        one.is_some_and(|one| one.window_blocked > BLOCKED && !filled(one))
    }

    /// Loads one connection. A rate that fell is measured again after a pause: a shaper lets
    /// another burst pass and falls again, and a disturbance does not return.
    fn first_rung(&mut self, up: bool, first: f64) -> Result<f64, String> {
        let rate = self.rung(&[(1, 0)], up, first)?;
        let ladder = |run: &mut Self| match up {
            true => std::mem::take(&mut run.e.up.rungs),
            false => std::mem::take(&mut run.e.down.rungs),
        };
        let Some(mut rung) = ladder(self).first().copied() else {
            return Ok(rate);
        };
        if rung.before_burst.is_some() {
            let until = Instant::now() + PAUSE.min(self.left() / 8);
            while Instant::now() < until && !self.target.cancel.is_cancelled() {
                self.all.turn(until);
            }
            self.rung(&[(1, 0)], up, first)?;
            if let Some(again) = ladder(self).first() {
                rung.repeated = Some(again.rate);
                rung.fell_again = again.before_burst.is_some();
                if !rung.fell_again && again.rate > STAYS * rung.rate {
                    rung = *again;
                }
            }
        }
        match up {
            true => self.e.up.rungs.push(rung),
            false => self.e.down.rungs.push(rung),
        }
        Ok(rung.rate)
    }

    fn ladder(&mut self, up: bool) -> Result<(), String> {
        let (first, further) = match up {
            true => (FIRST, FURTHER),
            false => DOWN,
        };
        let one = match self.first_rung(up, first) {
            Ok(rate) => rate,
            Err(why) if why.starts_with("/dev/") => {
                self.e.unseen.push(why);
                return Ok(());
            }
            Err(why) => return Err(why),
        };
        if up {
            match self.all.open(1, self.until()) {
                // Channels tell nothing where no channel window is in the way.
                Ok(second) if self.is_blocked() => {
                    self.rung(&[(1, 0), second], up, further)?;
                }
                Ok(_) => {}
                Err(why) if why == NO_ANSWER => return Err(why),
                Err(why) => {
                    tracing::debug!("a second channel: {why}");
                    self.e.channels_refused = self.all.all.get(1).is_some_and(|c| c.lost.is_none());
                }
            }
        }
        let mut before = one;
        for count in [2, 4, 8] {
            // Two connections tell most causes apart, further ones the path's rate.
            let pays = count == 2 || self.has_time_for_rung(up, further);
            if !pays || self.connect(count) < count {
                break;
            }
            let channels: Vec<_> = (1..=count).map(|c| (c, 0)).collect();
            let rate = self.rung(&channels, up, further)?;
            if rate < WORTH * before {
                break;
            }
            before = rate;
        }
        Ok(())
    }

    /// True if another rung of a ladder leaves enough time for the DSCP classes, and after uploads
    /// for the first two rungs of downloads.
    fn has_time_for_rung(&self, up: bool, share: f64) -> bool {
        let mut later = self.time.mul_f64(share);
        if self.can_mark() {
            // Two further pairs confirm a class that seems slow.
            later += self.marks_time() + self.slice_time() * 4;
        }
        if up {
            let logins = Duration::from_secs_f64(LOGIN_TRIPS * self.rtt);
            later += self.time.mul_f64(DOWN.0 + DOWN.1) + logins;
        }
        self.left() > later
    }

    /// Share of the time for one slice of a DSCP class.
    fn slice_share(&self) -> f64 {
        SLICE.max(SLICE_TRIPS * self.rtt / self.time.as_secs_f64())
    }

    /// Time for one slice, and for its data to drain.
    fn slice_time(&self) -> Duration {
        let slice = self.time.mul_f64(self.slice_share()).as_secs_f64();
        Duration::from_secs_f64(slice.max(0.3) + 5.0 * self.rtt)
    }

    /// Time for the DSCP classes: three logins and five slices.
    fn marks_time(&self) -> Duration {
        self.slice_time() * 5 + Duration::from_secs_f64(40.0 * self.rtt + 1.0)
    }

    /// True if further logins and TCP's counters are available, and the user chose no class.
    fn can_mark(&self) -> bool {
        !self.facts.asked && self.settings.dscp == 0 && self.e.tcp.is_some()
    }

    /// Checks that the user's directory is there, before half a minute is spent on the path.
    fn check_directory(&mut self) -> Result<(), String> {
        let Some(path) = &self.options.remote_path else {
            return Ok(());
        };
        let answer = self.all.ask(IDLE, &Request::Stat { path }, self.until())?.0;
        let why = match answer {
            Reply::Attrs(attrs) if attrs.permissions.is_none() || attrs.is_dir() => return Ok(()),
            Reply::Attrs(_) => "not a directory".to_owned(),
            Reply::Status(status) => status.to_string(),
            _ => "the server sent an unexpected answer to STAT".to_owned(),
        };
        let why = format!("{}: {why}", crate::escape::name(path));
        self.unusable = Some(why.clone());
        Err(why)
    }

    /// Compares marked and unmarked packets in turns.
    fn marks(&mut self) -> Result<(), String> {
        let slice = self.slice_share();
        if !self.can_mark() {
            return Ok(());
        }
        if self.left() < self.marks_time() || self.e.up.rungs.is_empty() {
            self.e
                .unseen
                .push("DSCP classes: no time was left (--time)".to_owned());
            return Ok(());
        }
        let first = self.all.all.len();
        let mut classes = Vec::new();
        for (name, dscp) in CLASSES {
            self.step("DSCP classes")?;
            if let Some(link) = self.marked(dscp) {
                let number = self.all.add(link).map_err(|e| e.to_string())?;
                classes.push((name, number));
            }
        }
        let done = self.pairs(&classes, slice);
        self.all.cut_from(first);
        done
    }

    fn marked(&self, dscp: u8) -> Option<Box<dyn Link>> {
        let settings = SharedSettings {
            dscp,
            opened: Arc::new(|_| {}),
            ..self.settings.clone()
        };
        let mut config: HostConfig = self.target.config.clone();
        config.connect_timeout = Some(PATIENCE.min(self.left()));
        let link = until_cancelled(self.target, move || connect::connect(config, &settings));
        link.ok().map(|(link, _)| Box::new(link) as Box<dyn Link>)
    }

    fn slice(&mut self, connection: usize, share: f64) -> Result<f64, String> {
        self.step("DSCP classes")?;
        let result = self.load(&[(connection, 0)], true, share)?;
        Ok(result.rung.map_or(0.0, |rung| rung.rate))
    }

    fn pairs(&mut self, classes: &[(&str, usize)], share: f64) -> Result<(), String> {
        let first = self.slice(1, share)?;
        let mut results = Vec::new();
        for (name, connection) in classes {
            let rate = self.slice(*connection, share)?;
            results.push((*name, *connection, vec![(first, rate)]));
        }
        let second = self.slice(1, share)?;
        self.e.marks.noise = vec![second / first.max(1.0)];
        for (_, connection, pairs) in &mut results {
            let suspect = pairs
                .iter()
                .all(|(plain, marked)| *marked < SUSPECT * plain);
            while suspect && pairs.len() < PAIRS && self.left() > self.slice_time() * 2 {
                let plain = self.slice(1, share)?;
                let marked = self.slice(*connection, share)?;
                pairs.push((plain, marked));
            }
        }
        for (name, _, pairs) in results {
            let mean = |of: fn(&(f64, f64)) -> f64| {
                pairs.iter().map(of).sum::<f64>() / pairs.len().max(1) as f64
            };
            self.e.marks.marks.push(Mark {
                class: name.to_owned(),
                ratios: pairs.iter().map(|(p, m)| m / p.max(1.0)).collect(),
                rate: mean(|pair| pair.1),
                unmarked: mean(|pair| pair.0),
            });
        }
        Ok(())
    }
}

/// Rate of a cipher on one core of this machine; `None` for one with a separate MAC.
fn cipher_rate(name: &str) -> Option<f64> {
    let cipher = ssh::cipher::cipher(name).filter(|cipher| cipher.is_aead())?;
    let rate = Primitive::Seal(cipher, None).measure(1, CIPHER_TIME);
    Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0)
}

fn purpose(up: bool, file: sftp::Handle) -> Use {
    match up {
        true => Use::Writing {
            file,
            advances: false,
        },
        false => Use::Reading { file },
    }
}

/// Facts about this machine.
fn here(disk: Option<f64>) -> Machine {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    let last = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    };
    Machine {
        kernel: remote::version(&release).filter(|_| cfg!(target_os = "linux")),
        tcp_rmem: last("tcp_rmem"),
        tcp_wmem: last("tcp_wmem"),
        disk,
        ..Machine::default()
    }
}
