//! Order of the measurements, from cheap to costly, within a time and an amount of data.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use diagnose::{
    Evidence, MachineFacts, MinMedianMax, NegotiatedTcpOptions, TimedLoginStep, TransferStall,
};
use sftp::{Reply, Request};

use super::budget::{PATIENCE, ProbeBudget, answer_deadline};
use super::classes::{DscpComparison, time_for_classes};
use super::connection::ProbeConnections;
use super::files::DirectoryProbe;
use super::ladder::StepwiseLoadTest;
use super::measurement_error::{MeasurementError, MeasurementFailure};
use super::path::{IDLE, ProbedConnections};
use super::remote::{self, CgroupQuotaPeriods};
use super::sampling::median;
use super::{ControlMasterConnection, ProbeOptions, ProbeSettings};
use crate::bench::primitives::Primitive;
use crate::config::HostConfig;
use crate::connect::{self, ConnectError, ConnectionFacts, SharedConnectSettings};
use crate::session::{ConnectionOpener, Link};
use crate::timeline::{Timeline, TimelineStep};

/// Round trips measured on the idle path.
const PINGS: usize = 12;
/// Answers of sshd itself that are measured.
const ECHOES: usize = 4;
/// Subject of the reasons for which TCP's counters are missing.
const COUNTERS: &str = "TCP's counters";
/// Time for measuring one cipher on this machine.
const CIPHER_TIME: Duration = Duration::from_millis(30);

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
pub fn probe(target: &ProbeSettings, options: &ProbeOptions) -> Result<Evidence, ProbeError> {
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
    let budget = ProbeBudget::new(target, options);
    let time = budget.time();
    let patience = (time / 3).clamp(Duration::from_secs(3), Duration::from_secs(15));
    config.set_default_connect_timeout(patience);
    (options.progress)("login", 0.0, time.as_secs_f64());
    let begun = Instant::now();
    let FirstProbeConnection {
        link,
        factory,
        over,
    } = match connect_first(target, config, &settings) {
        Ok(connected) => connected,
        Err(error) => {
            let stall = stuck(&timeline, begun.elapsed());
            return without_login(target, options, error, stall);
        }
    };
    let local = |e: std::io::Error| {
        let why = format!("this machine cannot poll its sockets: {e}");
        ProbeError::Connect(ConnectError::this_machine(
            connect::ConnectStep::Session,
            why,
        ))
    };
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut all = ProbeConnections::new().map_err(local)?;
    all.add(link).map_err(local)?;
    let directory = options.remote_path.clone();
    let facts = facts.unwrap_or_default();
    let mut run = ProbeRun {
        target,
        options,
        settings,
        path: ProbedConnections::new(budget, all, factory, facts, directory),
        e: Evidence::default(),
        there: None,
        quota: None,
        disk_explained: false,
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
    target: &ProbeSettings,
    work: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let (done, result) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().name("connect".to_owned());
    let spawned = thread.spawn(move || {
        // After a cancel there is no receiver any more.
        let _ = done.send(work());
    });
    let session = connect::ConnectStep::Session;
    spawned.map_err(|e| {
        ConnectError::this_machine(
            session,
            format!(
                "this machine cannot start a thread for the measurement: {e}; check its limits \
                 (ulimit -u)"
            ),
        )
    })?;
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
struct FirstProbeConnection {
    link: Box<dyn Link>,
    factory: Arc<dyn ConnectionOpener>,
    /// Measurements that an open connection of ssh does not allow, with the reason.
    over: Option<String>,
}

/// Opens the first connection: one of our own, or a channel of ssh's where our login is refused.
fn connect_first(
    target: &ProbeSettings,
    config: HostConfig,
    settings: &SharedConnectSettings,
) -> Result<FirstProbeConnection, ConnectError> {
    let settings = settings.clone();
    let connected = until_cancelled(target, move || connect::connect(config, &settings));
    match (connected, &target.master) {
        (Ok((link, factory)), _) => Ok(FirstProbeConnection {
            link: Box::new(link),
            factory: Arc::new(factory),
            over: None,
        }),
        (Err(own), Some(master)) if own.allows_shared_connection() => over_master(master, &own),
        (Err(own), _) => Err(own),
    }
}

/// Opens a channel on an open connection of ssh, since a login of our own was refused.
fn over_master(
    master: &ControlMasterConnection,
    own: &ConnectError,
) -> Result<FirstProbeConnection, ConnectError> {
    tracing::info!("{own}");
    let link = master.channels.another(false).map_err(|error| {
        let why = format!("{}: {error}", master.name);
        ConnectError::this_machine(connect::ConnectStep::Session, why)
    })?;
    Ok(FirstProbeConnection {
        link,
        factory: Arc::clone(&master.channels),
        over: Some(format!(
            "the login, and several connections: ssh's open connection (ControlPath) at {} was \
             measured, because a login without prompts was refused",
            master.name
        )),
    })
}

/// Returns the evidence of a login that ended early, or its error if there is none.
fn without_login(
    target: &ProbeSettings,
    options: &ProbeOptions,
    error: ConnectError,
    stall: Option<TransferStall>,
) -> Result<Evidence, ProbeError> {
    match stall {
        // A login that the user interrupted says nothing about the path.
        Some(stall) if !target.cancel.is_cancelled() => Ok(Evidence {
            stall: Some(stall),
            unseen: vec![format!("everything else: {error}")],
            expected: options.expected,
            ..Evidence::default()
        }),
        _ => Err(ProbeError::Connect(error)),
    }
}

/// Evidence that large packets do not arrive: the identification did, the keys did not.
fn stuck(timeline: &Timeline, after: Duration) -> Option<TransferStall> {
    let marks = timeline.marks();
    let seen = |step| marks.iter().any(|mark| mark.step == step);
    let stuck = seen(TimelineStep::Identified) && !seen(TimelineStep::Keys);
    // A refused host key or a closed connection ends the login earlier.
    let waited = after > Duration::from_millis(2900);
    (stuck && waited).then_some(TransferStall {
        seconds: after.as_secs_f64(),
        bytes: 0,
        reset: false,
        in_handshake: true,
    })
}

/// Steps of the first connection's login.
fn login_steps(timeline: &Timeline) -> Vec<TimedLoginStep> {
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
            steps.push(TimedLoginStep {
                name: name.to_owned(),
                seconds: at.saturating_sub(before).as_secs_f64(),
                round_trips,
            });
            before = at;
        }
    }
    steps
}

/// A probe in progress.
struct ProbeRun<'a> {
    target: &'a ProbeSettings,
    options: &'a ProbeOptions,
    settings: SharedConnectSettings,
    path: ProbedConnections<'a>,
    e: Evidence,
    /// Facts about the server before the loads; `None` if no command could be run there.
    there: Option<remote::RemoteFacts>,
    /// Processor quota of this process before the loads.
    quota: Option<CgroupQuotaPeriods>,
    /// The evidence says why the server's disk was left out.
    disk_explained: bool,
}

impl ProbeRun<'_> {
    fn measure(&mut self) -> Result<(), MeasurementError> {
        let begun = Instant::now();
        self.path.connections().open(0, answer_deadline())?;
        self.e.login.push(TimedLoginStep {
            name: "the SFTP server's start".to_owned(),
            seconds: begun.elapsed().as_secs_f64(),
            round_trips: match self.path.facts().channel_with_login {
                true => 0.0,
                false => 2.0,
            },
        });
        self.check_directory()?;
        self.idle()?;
        self.ends()?;
        if self.path.connect(2) < 1 {
            return Err(self.path.no_further_connection());
        }
        self.ladder(true)?;
        self.ends_under_load();
        match self.path.renew() {
            true => self.ladder(false)?,
            false => {
                let why = format!("downloads: {}", self.path.no_further_connection());
                self.e.unseen.push(why);
            }
        }
        if let Some(directory) = &self.options.remote_path {
            let mut files = DirectoryProbe::new(&mut self.path, &mut self.e, directory);
            self.disk_explained = !files.disk()?;
            files.small_files()?;
        }
        let (path, config) = (&mut self.path, &self.target.config);
        DscpComparison::new(path, &mut self.e, config, &self.settings).run()
    }

    fn ladder(&mut self, up: bool) -> Result<(), MeasurementError> {
        let reserve = time_for_classes(&self.path, &self.e, &self.settings);
        StepwiseLoadTest::new(&mut self.path, &mut self.e, up, reserve).climb()
    }

    /// Ends the connections, and returns the evidence of measurements that ended with `measured`.
    fn conclude(mut self, measured: Result<(), MeasurementError>) -> Result<Evidence, ProbeError> {
        self.e.stall = self.path.stall();
        self.e.logins = self.path.logins();
        let cancelled = self.path.budget().is_cancelled();
        if let Err(why) = &measured
            && why.may_be_broken_path()
            && !cancelled
        {
            self.e.stall = self.e.stall.or_else(|| self.path.connections().broken());
        }
        if let Err(why) = measured {
            match why.cause() {
                MeasurementFailure::UnusableDirectory => {
                    self.path.finish();
                    return Err(ProbeError::Directory(why.into()));
                }
                MeasurementFailure::BudgetUsedUp => self.e.unseen.push(why.into()),
                // The break is the finding.
                _ if self.e.stall.is_some() => {
                    self.e.unseen.push(format!("further measurements: {why}"));
                }
                _ => self.e.partial = Some(why.into()),
            }
        }
        if cancelled {
            self.e.partial = Some(MeasurementError::interrupted().into());
        }
        let disk_measured = self.e.there.disk.is_some() || self.disk_explained;
        if self.options.remote_path.is_some() && !disk_measured {
            let why = "the server's disk: the measurement ended early";
            self.e.unseen.push(why.to_owned());
        }
        let left = self.path.remove_stand_in();
        self.e.unseen.extend(left);
        self.path.finish();
        Ok(self.e)
    }

    /// Round trips of the idle path, and the server's answer time.
    fn idle(&mut self) -> Result<(), MeasurementError> {
        let (mut answers, mut rtts) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        while answers.len() < PINGS {
            self.path.budget().step("idle round trip")?;
            let request = Request::Realpath { path: b"." };
            let connections = self.path.connections();
            let (_, time) = connections.ask(IDLE, &request, answer_deadline())?;
            answers.push(time.as_secs_f64());
            let tcp = connections.sample(0).tcp;
            rtts.extend(tcp.map(|tcp| tcp.rtt.as_secs_f64()));
            if answers.len() >= 4 && begun.elapsed() > self.path.budget().time().mul_f64(0.08) {
                break;
            }
        }
        let answer = median(&mut answers);
        let echo = self.echo(answer)?;
        let ends_early = self.find_tcp_end(echo);
        let tcp = self.path.connections().sample(0).tcp;
        // Through a jump host or a proxy the answers tell the round trip.
        let direct = tcp.filter(|tcp| !tcp.min_rtt.is_zero());
        let (low, middle, high) = match (direct, echo) {
            (Some(tcp), _) => (
                tcp.min_rtt.as_secs_f64(),
                median(&mut rtts),
                rtts.iter().copied().fold(0.0, f64::max),
            ),
            (None, Some(echo)) => (echo.low, echo.median, echo.high),
            (None, None) => {
                let low = answers.iter().copied().fold(f64::INFINITY, f64::min);
                (low, answer, answers.iter().copied().fold(0.0, f64::max))
            }
        };
        self.path.set_rtt(low);
        self.e.idle = Some(MinMedianMax {
            low,
            median: middle.min(answer),
            high,
        });
        // sshd's own answers tell what its SFTP server adds, also where TCP tells nothing.
        let trip = echo.map(|echo| echo.median.max(low));
        let trip = trip.or_else(|| direct.map(|_| low));
        self.e.server_answer = trip.map(|trip| (answer - trip).max(0.0));
        self.e.tcp = tcp.map(|tcp| NegotiatedTcpOptions {
            timestamps: tcp.options & 1 != 0,
            sack: tcp.options & 2 != 0,
            window_scaling: tcp.options & 4 != 0,
            mss: tcp.snd_mss,
        });
        if tcp.is_none() && !ends_early {
            self.e.unseen.push(format!(
                "{COUNTERS}: the connection runs through a jump host or a program"
            ));
        }
        Ok(())
    }

    /// Shortest round trip of the first connection in seconds, as TCP has measured it.
    fn tcp_round_trip(&mut self) -> Option<f64> {
        let tcp = self.path.connections().sample(0).tcp?;
        Some(tcp.min_rtt.as_secs_f64())
    }

    /// Round trips of requests that sshd answers by itself, if the SFTP server's answers take
    /// clearly longer than TCP's round trip or nothing else tells it.
    fn echo(&mut self, answer: f64) -> Result<Option<MinMedianMax>, MeasurementError> {
        let tcp = self.tcp_round_trip();
        if tcp.is_some_and(|tcp| answer < later_than(tcp)) {
            return Ok(None);
        }
        let mut trips = Vec::new();
        let most = Duration::from_secs_f64((3.0 * answer + 0.5).min(PATIENCE.as_secs_f64()));
        while trips.len() < ECHOES {
            self.path.budget().step("idle round trip")?;
            // Some servers leave requests that they do not know without an answer.
            match self.path.connections().echo(0, Instant::now() + most) {
                Some(trip) => trips.push(trip.as_secs_f64()),
                None => break,
            }
        }
        Ok((!trips.is_empty()).then(|| MinMedianMax {
            median: median(&mut trips),
            low: trips.iter().copied().fold(f64::INFINITY, f64::min),
            high: trips.iter().copied().fold(0.0, f64::max),
        }))
    }

    /// Leaves TCP's counters out if sshd itself is never as near as TCP's other end: a proxy ends
    /// TCP on the way. Returns true, and notes the reason, if so.
    fn find_tcp_end(&mut self, echo: Option<MinMedianMax>) -> bool {
        let tcp = self.tcp_round_trip();
        let Some((tcp, echo)) = tcp.zip(echo) else {
            return false;
        };
        if echo.low < later_than(tcp) {
            return false;
        }
        self.path.connections().leave_tcp_out();
        self.e.unseen.push(format!(
            "{COUNTERS}: TCP's other end is {:.1} ms away and sshd {:.1} ms, so that a proxy on the \
             way seems to end TCP",
            tcp * 1e3,
            echo.low * 1e3
        ));
        true
    }

    /// Facts about both ends.
    fn ends(&mut self) -> Result<(), MeasurementError> {
        self.path.budget().step("both ends")?;
        let facts = self.path.facts();
        self.e.cipher.clone_from(&facts.cipher);
        let offered = &facts.offers.ciphers;
        let aes = || offered.split(',').any(|name| name.starts_with("aes"));
        self.e.offers_aes = (!offered.is_empty()).then(aes);
        self.e.here = here(self.options.local_disk);
        self.e.here.cipher_rate = self.e.cipher.as_deref().and_then(cipher_rate);
        self.e.here.aes_rate = cipher_rate("aes128-gcm@openssh.com");
        self.quota = CgroupQuotaPeriods::of_this_machine();
        self.there = match self.ask_server() {
            Ok(facts) => Some(facts),
            Err(why) if why.is_lost() => return Err(why),
            Err(why) => {
                let what = "the server's kernel, buffers and load";
                self.e.unseen.push(format!("{what}: {why}"));
                None
            }
        };
        let machine = self.there.as_ref().map(|facts| facts.machine().clone());
        self.e.there = machine.unwrap_or_default();
        Ok(())
    }

    /// Facts about the server of this moment, or the reason why it tells none.
    fn ask_server(&mut self) -> Result<remote::RemoteFacts, MeasurementError> {
        let banner = self.path.facts().banner.as_deref();
        if !banner.is_some_and(|banner| banner.contains("OpenSSH")) {
            let why = "commands are only run on OpenSSH's server";
            return Err(MeasurementError::refused(why));
        }
        let until = Instant::now() + Duration::from_secs(3).min(self.path.budget().left() / 4);
        let said = self
            .path
            .connections()
            .run(0, remote::COMMAND.as_bytes(), until);
        let said = said.map_err(|why| {
            let text = format!("no command could be run there ({why})");
            MeasurementError::new(why.cause(), text)
        })?;
        let other = "no command could be run there (no figures came)";
        remote::read(&said).ok_or_else(|| MeasurementError::refused(other))
    }

    /// Records the load of both ends' processors during the uploads.
    fn ends_under_load(&mut self) {
        let now = CgroupQuotaPeriods::of_this_machine();
        let counts = self.quota.zip(now);
        self.e.here.throttled = counts.and_then(|(then, now)| now.share_since(then));
        self.e.here.pressure = remote::own_pressure();
        if let Some(before) = self.there.take()
            && let Ok(later) = self.ask_server()
        {
            self.e.there = before.until(&later);
        }
    }

    /// Checks that the user's directory is there, before half a minute is spent on the path.
    fn check_directory(&mut self) -> Result<(), MeasurementError> {
        let Some(path) = &self.options.remote_path else {
            return Ok(());
        };
        let request = Request::Stat { path };
        let connections = self.path.connections();
        let answer = connections.ask(IDLE, &request, answer_deadline())?.0;
        let why = match answer {
            Reply::Attrs(attrs) if attrs.permissions.is_none() || attrs.is_dir() => return Ok(()),
            Reply::Attrs(_) => "not a directory".to_owned(),
            Reply::Status(status) => status.to_string(),
            _ => "the server sent an unexpected answer to STAT (SFTP protocol error)".to_owned(),
        };
        let why = format!("{}: {why}", crate::escape::name(path));
        Err(MeasurementError::new(
            MeasurementFailure::UnusableDirectory,
            why,
        ))
    }
}

/// Time in seconds from which on an answer comes from farther away than `rtt`: an idle server needs
/// less than 10 ms for one, and a round trip varies.
fn later_than(rtt: f64) -> f64 {
    1.5 * rtt + 0.01
}

/// Rate of a cipher on one core of this machine; `None` for one with a separate MAC.
fn cipher_rate(name: &str) -> Option<f64> {
    let cipher = ssh::cipher::cipher(name).filter(|cipher| cipher.is_aead())?;
    let rate = Primitive::Seal(cipher, None).measure(1, CIPHER_TIME);
    Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0)
}

/// Facts about this machine.
fn here(disk: Option<f64>) -> MachineFacts {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    let last = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    };
    MachineFacts {
        kernel: remote::version(&release).filter(|_| cfg!(target_os = "linux")),
        tcp_rmem: last("tcp_rmem"),
        tcp_wmem: last("tcp_wmem"),
        disk,
        ..MachineFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::test_support::{ModelConnection, options, path, settings};

    fn with_run<T>(act: impl FnOnce(ProbeRun<'_>, &ModelConnection) -> T) -> T {
        let (target, mut options) = (settings(), options());
        options.remote_path = Some(b"/home".to_vec());
        let (path, [idle, _]) = path(&target, &options);
        let run = ProbeRun {
            target: &target,
            options: &options,
            settings: target.settings.clone(),
            path,
            e: Evidence::default(),
            there: None,
            quota: None,
            disk_explained: false,
        };
        act(run, &idle)
    }

    fn concluded(measured: MeasurementError) -> Result<Evidence, ProbeError> {
        with_run(|mut run, _| {
            run.path.connections().set_silent(0);
            run.conclude(Err(measured))
        })
    }

    /// Bug: the measurement went on without its first connection, and nobody looked for the break.
    #[test]
    fn a_lost_connection_was_taken_for_a_server_without_commands() {
        with_run(|mut run, idle| {
            idle.lose_with_request();
            let error = run.ends().unwrap_err();
            assert!(error.is_lost(), "{error}");
            assert!(run.e.unseen.is_empty(), "{:?}", run.e.unseen);
        });
    }

    /// Bug: nobody moves the first connection while further ones are opened. Where that took 4 s and
    /// failed, the first one was told to be broken.
    #[test]
    fn refused_further_logins_were_taken_for_a_broken_path() {
        let why = "no further connection was made: it was not ready in time";
        let error = MeasurementError::new(MeasurementFailure::NoFurtherConnection, why);
        let evidence = concluded(error).expect("evidence");
        assert_eq!(evidence.stall, None);
        assert_eq!(evidence.partial.as_deref(), Some(why));
        let evidence = concluded(MeasurementError::no_answer()).expect("evidence");
        assert!(evidence.stall.is_some());
        assert_eq!(evidence.partial, None);
    }

    /// Bug: Ctrl-C 3 s after the start, between identification and keys, was reported as large
    /// packets that do not arrive.
    #[test]
    fn an_interrupted_login_was_taken_for_a_broken_path() {
        let (target, options) = (settings(), options());
        let stall = TransferStall {
            seconds: 3.0,
            bytes: 0,
            reset: false,
            in_handshake: true,
        };
        let login = || {
            let error = ConnectError::this_machine(connect::ConnectStep::Session, "interrupted");
            without_login(&target, &options, error, Some(stall))
        };
        assert!(login().is_ok_and(|evidence| evidence.stall.is_some()));
        target.cancel.cancel();
        assert!(matches!(login(), Err(ProbeError::Connect(_))));
    }

    #[test]
    fn a_used_up_budget_is_a_note_and_no_failure() {
        let evidence = concluded(MeasurementError::time_used_up()).expect("evidence");
        assert_eq!((evidence.stall, evidence.partial), (None, None));
        let notes = [
            "further measurements: the time was used up (--time)",
            "the server's disk: the measurement ended early",
        ];
        assert_eq!(evidence.unseen, notes);
    }
}
