//! `longhaul bench HOST`: copies between this machine and a host, in turns.

mod finish;
mod matrix;
mod remote_bench_files;
mod sizes;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use measure::bench::planner::BenchPlanner;
use measure::bench::{
    BenchCompression, BenchResult, BenchRow, BenchRun, BenchSetting, StorageKind, text,
};
use measure::{CopyDirection, bench};
use schedule::CompressionMode;
use transfer::cancel::CancelToken;
use transfer::connect::{ConnectionFacts, RemoteLonghaulPolicy};
use transfer::copy::{CopyOptions, CopyRequest, HostId, SessionConnector as _};
use transfer::operand::SshDestination;
use transfer::report::ServerMode;
use transfer::session::StallNotice;

use self::remote_bench_files::RemoteBenchFiles;
use self::sizes::BenchSizeChooser;
use super::files::{LocalBenchFiles, disk};
use super::machine;
use super::once::{BenchCopyResult, MeasuredCopySettings};
use super::watch::BenchProgress;
use crate::command_error::CommandError;
use crate::connect::{Hosts, MeasurementSessionSettings};
use crate::cp::log_to;
use crate::exit::Exit;
use crate::flags::high::{Environment, ResolvedCopyArgs};
use crate::flags::low::BenchArgs;
use crate::output::RunReporter;
use crate::output::console::Console;
use crate::output::units;
use crate::{signals, usage};

const TIME: Duration = Duration::from_secs(180);

/// Measures a host to the end. An error has been reported already.
pub(super) fn run(args: &BenchArgs, world: &Environment) -> Result<(BenchResult, Exit), Exit> {
    let high =
        ResolvedCopyArgs::resolve(args.login.clone(), world).map_err(|error| usage(&error))?;
    let console = Arc::new(Console::new(high.colors));
    log_to(&console, high.level);
    let cancel = CancelToken::default();
    let (first, at_once) = (cancel.clone(), Arc::clone(&console));
    let watched = signals::watch(move || first.cancel(), move || at_once.restore());
    if let Err(error) = watched.and_then(|()| signals::too_long_is_an_error()) {
        console.warning(&format!(
            "cannot handle signals, so Ctrl-C will end the measurement without a report and may leave \
             test files on the host: {error}"
        ));
    }
    let told = |error: CommandError| {
        console.error(&error.to_string());
        error.exit()
    };
    let mut driver = HostBench::connect(args, high, &console, &cancel).map_err(told)?;
    if let Err(stop) = driver.prepare() {
        driver.clean().iter().for_each(|left| console.warning(left));
        return Err(told(stop));
    }
    if !args.login.quiet {
        console.line(&driver.outlook());
    }
    let watch = BenchProgress::new(&console, world, args.login.quiet);
    let exit = driver.measure(&watch);
    drop(watch);
    let (bench, kept) = driver.finish();
    if let Err(why) = kept {
        console.warning(&format!("cannot save the result for later copies: {why}"));
    }
    if let Some(why) = &bench.partial {
        console.error(why);
    }
    Ok((bench, exit))
}

/// A benchmark of one host in progress: the files of both ends, the settings of the copies, and the
/// figures so far.
struct HostBench<'a> {
    args: &'a BenchArgs,
    copies: MeasuredCopySettings,
    hosts: Hosts,
    far: RemoteBenchFiles,
    facts: ConnectionFacts,
    files: LocalBenchFiles,
    sizes: BenchSizeChooser,
    bench: BenchResult,
    start: Instant,
}

impl<'a> HostBench<'a> {
    /// Logs in and inspects both ends.
    fn connect(
        args: &'a BenchArgs,
        high: ResolvedCopyArgs,
        console: &Arc<Console>,
        cancel: &CancelToken,
    ) -> Result<Self, CommandError> {
        let host: SshDestination = high.hosts.first().cloned().ok_or_else(|| {
            let what = "HOST is a local path: give [user@]host";
            CommandError::from(what).with_exit(Exit::Usage)
        })?;
        let start = Instant::now();
        let limit = args.time.unwrap_or(TIME);
        let mut bench = super::begun(limit.as_secs_f64());
        bench.warnings = machine::quiet();
        let files = LocalBenchFiles::new(&disk(args))?;
        let output = |quiet| {
            let console = Arc::clone(console);
            Arc::new(RunReporter::new(console, None, quiet, cancel.clone()))
        };
        let heard: Arc<Mutex<Option<ConnectionFacts>>> = Arc::default();
        let told = Arc::clone(&heard);
        let mut flags = high.flags;
        flags.far = RemoteLonghaulPolicy::Stock;
        (flags.connections, flags.channels) = (Some(1), Some(1));
        let hosts = Hosts::new(vec![host.clone()], flags, output(args.login.quiet));
        let hosts = hosts.measured(MeasurementSessionSettings {
            pack: CompressionMode::Never,
            // Keeps a host memory, so that the findings can be stored beside it.
            remembers: true,
            opened: Arc::new(move |facts: &ConnectionFacts| {
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                *told = Some(facts.clone());
            }),
        });
        let ended = |error: CommandError| match cancel.is_cancelled() {
            true => CommandError::from("interrupted").with_exit(Exit::Interrupted),
            false => error,
        };
        let lost = |why: String| ended(CommandError::from(why).with_exit(Exit::NoConnection));
        let session = hosts.connect(HostId(0), None, cancel);
        let session = session.map_err(|e| ended(e.into()))?;
        let tell = |notice: &StallNotice| hosts.warn(HostId(0), notice.to_string());
        let (far, room) = RemoteBenchFiles::look(session, cancel.clone(), &tell);
        if cancel.is_cancelled() {
            return Err(lost("interrupted".to_owned()));
        }
        let facts = heard.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(facts) = facts else {
            let why = far.why().unwrap_or("the login failed").to_owned();
            return Err(lost(why));
        };
        if facts.asked_user() {
            return Err(lost(format!(
                "{}: the login needs a password or a code, and each run logs in again: use a \
                 key or an agent",
                hosts.name(HostId(0))
            )));
        }
        let sizes = BenchSizeChooser::new(limit.as_secs_f64(), room);
        Ok(Self {
            args,
            copies: MeasuredCopySettings {
                host,
                login: args.login.clone(),
                output: output(true),
                cancel: cancel.clone(),
            },
            hosts,
            far,
            facts,
            files,
            sizes,
            bench,
            start,
        })
    }

    /// Announces the largest number of settings, and the time that measuring them takes.
    fn outlook(&self) -> String {
        let name = self.hosts.name(HostId(0));
        let time = units::duration(Duration::from_secs_f64(self.bench.limit_seconds));
        let settings = self.bench.rows.len();
        format!(
            "{name}: measuring up to {settings} settings for about {time}, or until each cipher has \
             run once (--time changes this; Ctrl-C ends early with partial results)"
        )
    }

    /// Determines the settings to measure.
    fn prepare(&mut self) -> Result<(), CommandError> {
        let data = matrix::data(self.args);
        for kind in &data {
            let piece = self.files.piece(*kind, self.args.file.as_deref());
            self.bench.ratios.extend(self.sizes.look(*kind, piece?));
        }
        let found = matrix::find(self.args, &self.facts);
        let mut offer = found.offer;
        self.bench.named = found.named;
        let wanted = matrix::wanted(self.args, data);
        let (settings, _) = bench::matrix::settings(&offer, &wanted);
        let Some(plain) = settings.into_iter().next() else {
            let name = self.hosts.name(HostId(0));
            let why = format!(
                "{name}: the host supports none of the ciphers to measure: name others with \
                 --ciphers"
            );
            return Err(why.into());
        };
        self.far
            .name_files(self.files.name(), self.args.far_folder.as_deref());
        self.probe(&plain)?;
        offer.zstd = self.ours(&plain);
        let (mut settings, mut must) = bench::matrix::settings(&offer, &wanted);
        if self.args.insecure_too {
            let known = matrix::known_to_ssh()?;
            let known = (known.0.as_slice(), known.1.as_slice());
            let carried = bench::matrix::carried(&mut self.bench.named, &plain, known, &offer);
            let first = must;
            must += carried.len();
            settings.splice(first..first, carried);
        }
        let settings = matrix::placed(settings, self.args.places);
        self.bench.rows = settings
            .into_iter()
            .map(|setting| BenchRow {
                setting,
                runs: Vec::new(),
                trouble: None,
            })
            .collect();
        self.sizes.expect(self.bench.rows.len().min(60), must);
        Ok(())
    }

    /// Makes two tiny copies. They show that copying works at all, and what a login costs the other
    /// end in processor time.
    fn probe(&mut self, plain: &BenchSetting) -> Result<(), CommandError> {
        const TINY: u64 = 64 << 10;
        for _ in 0..2 {
            let copied = self.up(plain, TINY)?;
            if let Some(why) = copied.trouble() {
                // Without write access to the memory folder, files go to disk.
                if !copied.is_lost() && self.far.give_memory_up() {
                    return self.probe(plain);
                }
                return Err(CommandError::from(why).with_exit(self.exit(&copied)));
            }
            self.far.logged_in();
        }
        Ok(())
    }

    /// Returns true if a longhaul serves at the host on request.
    fn ours(&mut self, plain: &BenchSetting) -> bool {
        let setting = BenchSetting {
            both_ours: true,
            ..plain.clone()
        };
        // The first copy finds the longhaul there, and the second one uses it.
        const ENOUGH: u64 = 4 << 20;
        let Ok(found) = self.up(&setting, ENOUGH) else {
            return false;
        };
        self.far.settle();
        let copied = match depth(&found) {
            ServerMode::Stock => self.up(&setting, ENOUGH).unwrap_or(found),
            _ => found,
        };
        let far = copied.summary.far_ends.first();
        let ours = copied.trouble().is_none() && depth(&copied) != ServerMode::Stock;
        if let Some(far) = far.filter(|_| ours) {
            self.sizes.longhaul = Some(far.software.clone().unwrap_or_default());
        }
        self.far.settle();
        ours
    }

    /// Runs the settings that the planner picks, until it is done or has to stop.
    fn measure(&mut self, watch: &BenchProgress) -> Exit {
        let limit = self.bench.limit_seconds;
        let settings: Vec<&BenchSetting> = self.bench.rows.iter().map(|row| &row.setting).collect();
        let decides = |setting: &&BenchSetting| {
            let plain = settings.first();
            plain.is_some_and(|plain| bench::advice::decides(setting, plain))
        };
        let decisive: Vec<bool> = settings.iter().map(decides).collect();
        let planner = BenchPlanner::new(settings.len(), self.sizes.must, limit);
        let mut planner = planner.deciding_by(decisive);
        let (before, begun) = (machine::look(), Instant::now());
        let mut last_trouble: Option<String> = None;
        let mut exit = Exit::Done;
        while let Some(at) = planner.next(self.used()) {
            let Some(setting) = self.bench.rows.get(at).map(|row| row.setting.clone()) else {
                break;
            };
            let used = self.used();
            watch.now(&text::name(&setting), used, planner.remaining(used));
            let stop = match self.once(&setting) {
                Ok(run) => {
                    last_trouble = None;
                    planner.ran(at, run.rate, self.used() - used);
                    self.sizes.ran(&setting, run.rate);
                    if let Some(row) = self.bench.rows.get_mut(at) {
                        row.runs.push(run);
                    }
                    continue;
                }
                Err(stop) => (stop.to_string(), stop.exit()),
            };
            if self.copies.cancel.is_cancelled() {
                self.bench.partial = Some("interrupted".to_owned());
                exit = Exit::Interrupted;
                break;
            }
            // The same trouble with two settings is the fault of neither: measuring ends.
            if last_trouble.as_ref() == Some(&stop.0)
                || stop.1 == Exit::NoConnection && last_trouble.is_some()
            {
                exit = stop.1;
                self.bench.partial = Some(stop.0);
                break;
            }
            let disk = setting.place == StorageKind::Disk && stop.1 != Exit::NoConnection;
            for (other, row) in self.bench.rows.iter_mut().enumerate() {
                if other == at || disk && row.setting.place == StorageKind::Disk {
                    row.trouble = Some(stop.0.clone());
                    planner.failed(other);
                }
            }
            last_trouble = (!disk).then_some(stop.0);
        }
        let nothing = self.bench.rows.iter().all(|row| row.runs.is_empty());
        if let Some(why) = last_trouble.filter(|_| exit == Exit::Done && nothing) {
            self.bench.partial = Some(why);
            exit = Exit::SomeFailed;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let warnings = bench::machine::after(&before, &machine::look(), seconds);
        self.bench.warnings.extend(warnings);
        exit
    }

    /// Runs a setting once.
    fn once(&mut self, setting: &BenchSetting) -> Result<BenchRun, CommandError> {
        let at = self.used();
        let size = self.sizes.of(setting, self.files.free_bytes(setting.place));
        let copied = match setting.way {
            CopyDirection::Up => self.up(setting, size),
            CopyDirection::Down => self.down(setting, size),
        };
        let (copied, size) = match copied {
            Ok(copied) => {
                if let Some(session) = copied.summary.sessions.first() {
                    self.sizes
                        .note_round_trip(session.evidence.min_rtt.as_secs_f64());
                }
                let size = copied.summary.bytes;
                (copied, size)
            }
            Err(error) => return Err(error),
        };
        if let Some(why) = copied.trouble() {
            return Err(CommandError::from(why).with_exit(self.exit(&copied)));
        }
        let cipher = copied.facts.as_ref().and_then(|facts| facts.cipher.clone());
        if cipher
            .as_ref()
            .is_some_and(|cipher| *cipher != setting.cipher)
        {
            let why = format!(
                "the server chose the cipher {} instead of {}: name others with --ciphers",
                cipher.unwrap_or_default(),
                setting.cipher
            );
            return Err(why.into());
        }
        let zlib = setting.compression == BenchCompression::Zlib;
        if zlib && copied.facts.as_ref().is_some_and(|facts| !facts.compressed) {
            let why = "the server did not negotiate zlib: check Compression in its sshd_config"
                .to_owned();
            return Err(why.into());
        }
        if setting.both_ours && depth(&copied) == ServerMode::Stock {
            let why =
                "the host's SFTP server was used in this run instead of longhaul: check that \
                 longhaul --version works there"
                    .to_owned();
            return Err(why.into());
        }
        Ok(BenchRun {
            at,
            bytes: size,
            seconds: copied.seconds,
            rate: copied.rate,
            near_cpu: copied.cpu,
            far_cpu_seconds: self.far.used_since(setting.connections),
        })
    }

    fn up(&mut self, setting: &BenchSetting, size: u64) -> Result<BenchCopyResult, CommandError> {
        let source = self.files.source(setting.data, setting.place, size)?;
        let request = CopyRequest {
            sources: vec![transfer::copy::CopyLocation::Local(source)],
            target: self.far.path(setting),
            options: CopyOptions::default(),
        };
        let copied = self.copies.run(setting, request, size);
        let done = copied.trouble().is_none();
        self.far.has(setting, done.then_some(size));
        Ok(copied)
    }

    fn down(&mut self, setting: &BenchSetting, size: u64) -> Result<BenchCopyResult, CommandError> {
        let there = self.far.size(setting);
        let there = match there.filter(|there| (size / 2..=size * 4).contains(there)) {
            Some(there) => there,
            None => {
                let plain = self.bench.rows.first().map(|row| row.setting.clone());
                let carrier = BenchSetting {
                    way: CopyDirection::Up,
                    data: setting.data,
                    place: setting.place,
                    ..plain.unwrap_or_else(|| setting.clone())
                };
                let copied = self.up(&carrier, size)?;
                if copied.trouble().is_some() {
                    return Ok(copied);
                }
                self.far.settle();
                size
            }
        };
        let request = CopyRequest {
            sources: vec![self.far.path(setting)],
            target: transfer::copy::CopyLocation::Local(self.files.target(setting.place)),
            options: CopyOptions::default(),
        };
        Ok(self.copies.run(setting, request, there))
    }

    fn exit(&self, copied: &BenchCopyResult) -> Exit {
        match copied.is_lost() {
            _ if self.copies.cancel.is_cancelled() => Exit::Interrupted,
            true => Exit::NoConnection,
            false => Exit::SomeFailed,
        }
    }

    fn used(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

/// The server at the other end: the stock one, or a longhaul by exec or direct.
fn depth(copied: &BenchCopyResult) -> ServerMode {
    let far = copied.summary.far_ends.first();
    far.map(|far| far.depth).unwrap_or_default()
}
