//! `longhaul cp`: prepares the run, copies, and reports the result. `longhaul sync` uses the same
//! preparation.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::FormatTime;
use transfer::cancel::CancelToken;
use transfer::copy::{self, CopyRequest, SessionConnector};
use transfer::operand::CopyOperand;
use transfer::report::{
    CopyEvent, CopySummary, Decision, DecisionOrigin, DecisionSubject, EscapedName, HostCopyRoute,
    ProgressCounters,
};
use transfer::sync::{SyncRequest, SyncResult};

use crate::connect::Hosts;
use crate::exit::Exit;
use crate::flags::high::ResolvedCopyArgs;
use crate::host_to_host::{self, CopyRoute, DirectCopyOutcome};
use crate::output::RunReporter;
use crate::output::console::Console;
use crate::output::json::JsonEventWriter;
use crate::output::snapshot::RunCounters;
use crate::output::ticker::{self, ProgressMode};
use crate::several;
use crate::signals;

/// Runs a copy to its end.
pub(crate) fn run(mut args: ResolvedCopyArgs) -> Exit {
    let several = args.several.take();
    let typed = std::mem::take(&mut args.typed);
    carry_out(args, false, |request, run| {
        let summary = match &several {
            Some(several) => several::copy(several, &typed, &request, run),
            None => run.copy(request),
        };
        let exit = Exit::from(&summary.outcome);
        run.output.summary(exit, &summary);
        run.hosts.learn_processor(&summary);
        exit
    })
}

/// A copy command whose output, signal handling and hosts are prepared.
pub(crate) struct PreparedCopy<'a> {
    output: &'a Arc<RunReporter>,
    hosts: &'a Hosts,
    cancel: &'a CancelToken,
    show: ProgressMode,
}

impl PreparedCopy<'_> {
    /// Copies, and shows the progress.
    fn copy(&self, request: CopyRequest) -> CopySummary {
        let start = Instant::now();
        let mut events = |event| self.output.copy_event(&event);
        let through_here = match host_to_host::choose(&request, self.hosts) {
            CopyRoute::Local => None,
            CopyRoute::ThroughHere(why) => Some(why),
            CopyRoute::Direct(direct) => {
                let tried = self.showing(&ProgressCounters::default(), |progress| {
                    direct.run(&request, self.hosts, progress, &mut events, self.cancel)
                });
                match tried {
                    DirectCopyOutcome::Finished(summary) => return with_way(*summary, None),
                    DirectCopyOutcome::NotPossible(why) => Some(why),
                }
            }
        };
        let tried = start.elapsed();
        let mut summary = self.showing(&ProgressCounters::default(), |progress| {
            copy::run(request, self.hosts, progress, &mut events, self.cancel)
        });
        summary.elapsed += tried;
        with_way(summary, through_here.map(HostCopyRoute::through_here))
    }

    /// Does other work with the hosts, and shows the progress.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(
            &dyn SessionConnector,
            &ProgressCounters,
            &mut dyn FnMut(CopyEvent),
            &CancelToken,
        ) -> T,
    ) -> T {
        let mut events = |event| self.output.copy_event(&event);
        self.showing(&ProgressCounters::default(), |progress| {
            work(self.hosts, progress, &mut events, self.cancel)
        })
    }

    /// Output of the run.
    pub(crate) fn output(&self) -> Arc<RunReporter> {
        Arc::clone(self.output)
    }

    /// Hosts of the run.
    pub(crate) fn hosts(&self) -> &Hosts {
        self.hosts
    }

    /// Ends the run when it is cancelled.
    pub(crate) fn cancel(&self) -> &CancelToken {
        self.cancel
    }

    /// Reports the end of a copy.
    pub(crate) fn summary(&self, exit: Exit, summary: &CopySummary) {
        self.output.summary(exit, summary);
        self.hosts.learn_processor(summary);
    }

    /// Writes the `summary` event of work that is no copy.
    pub(crate) fn summary_event(&self, exit: Exit, summary: &CopySummary) {
        self.output.summary_event(exit, summary);
    }

    /// Names what has failed.
    pub(crate) fn failures(&self, summary: &CopySummary) {
        self.output.failures(summary);
    }

    /// Shows a line of information on standard error.
    pub(crate) fn line(&self, text: &str) {
        self.output.line(text);
    }

    /// Shows a warning.
    pub(crate) fn warn(&self, message: String) {
        self.output.warning(message);
    }

    /// Shows an error.
    pub(crate) fn error(&self, text: &str) {
        self.output.console().error(text);
    }

    /// Shows why the run ends here.
    pub(crate) fn refuse(&self, why: &str, exit: Exit) -> Exit {
        self.error(why);
        exit
    }

    /// Writes a result on standard output, unless events go there.
    pub(crate) fn print(&self, text: &str) -> Exit {
        match self.output.prints_text() {
            true => crate::show(text.as_bytes()),
            false => Exit::Done,
        }
    }

    /// Syncs, and shows the progress.
    pub(crate) fn sync(&self, request: &SyncRequest) -> SyncResult {
        let mut events = |event| self.output.copy_event(&event);
        self.showing(&ProgressCounters::default(), |progress| {
            transfer::sync::run(request, self.hosts, progress, &mut events, self.cancel)
        })
    }

    /// Reports the end of a sync; `dry` if nothing was changed.
    pub(crate) fn synced(&self, exit: Exit, result: &SyncResult, dry: bool) {
        self.output.sync_summary(exit, result, dry);
        self.hosts.learn_processor(&result.summary);
    }

    /// Shows the progress while `work` is done.
    pub(crate) fn showing<P: RunCounters + Sync, T>(
        &self,
        progress: &P,
        work: impl FnOnce(&P) -> T,
    ) -> T {
        let (running, stopped) = mpsc::channel();
        thread::scope(|scope| {
            let (output, show) = (self.output, self.show);
            scope.spawn(move || ticker::run(output, progress, show, &stopped));
            let done = work(progress);
            drop(running);
            done
        })
    }
}

/// Adds the way of the data between two hosts, as a result and as a decision.
fn with_way(mut summary: CopySummary, way: Option<HostCopyRoute>) -> CopySummary {
    summary.way = way.or(summary.way);
    if let Some(way) = summary.way.clone() {
        let origin = match way.reason.text() == host_to_host::THROUGH_HERE_GIVEN {
            true => DecisionOrigin::Flag(host_to_host::THROUGH_HERE),
            false => DecisionOrigin::Measured,
        };
        let choice = DecisionSubject::HostWay(way);
        summary.decisions.push(Decision::new(choice, origin));
    }
    summary
}

/// Prepares output, signals and hosts, and runs `work` with them. With `itemize`, each change of a
/// sync is shown.
pub(crate) fn carry_out(
    args: ResolvedCopyArgs,
    itemize: bool,
    work: impl FnOnce(CopyRequest, &PreparedCopy<'_>) -> Exit,
) -> Exit {
    let start = Instant::now();
    #[cfg(target_os = "linux")]
    if args.flags.background {
        // Lower the priority before threads exist, since they inherit it.
        sys::after_others();
    }
    let console = Arc::new(Console::new(args.colors));
    log_to(&console, args.level);
    let cancel = watch_signals(&console);
    let json = args
        .flags
        .json
        .then(|| JsonEventWriter::new(Box::new(io::stdout()), start));
    let output = RunReporter::new(console, json, args.flags.quiet, cancel.clone())
        // The lines of a sync's plan name them already.
        .naming_files(args.flags.verbose > 0 && !itemize)
        .naming_failures(args.flags.verbose > 0)
        .itemizing(itemize);
    let output = match args.flags.explain {
        true => output.explaining(),
        false => output,
    };
    let output = Arc::new(match args.flags.timeline {
        true => output.recording(start),
        false => output,
    });
    // The summary is the last event of --json.
    let local = match args.flags.json {
        true => Vec::new(),
        false => local_names(args.sources.iter().chain([&args.target])),
    };
    warn_of_limit(&args, &output);
    output.start(args.sources, args.target);

    let mut hosts = Hosts::new(args.hosts, args.flags, Arc::clone(&output));
    hosts.expect(&args.request);
    hosts.decide();
    hosts.bootstrap(&cancel);
    let run = PreparedCopy {
        output: &output,
        hosts: &hosts,
        cancel: &cancel,
        show: args.show,
    };
    let exit = match cancel.is_cancelled() {
        true => {
            run.summary(Exit::Interrupted, &CopySummary::interrupted());
            Exit::Interrupted
        }
        false => work(args.request, &run),
    };
    if exit == Exit::NoConnection && !cancel.is_cancelled() {
        for name in local {
            output.warning(format!(
                "{name} is also a file on this machine: write ./{name} to copy that"
            ));
        }
    }
    match exit {
        Exit::Interrupted if output.is_unwritten() => Exit::SomeFailed,
        exit => exit,
    }
}

/// Returns a token that the first SIGINT, SIGTERM or SIGHUP cancels.
pub(crate) fn watch_signals(console: &Arc<Console>) -> CancelToken {
    let cancel = CancelToken::default();
    let at_once = Arc::clone(console);
    let first = cancel.clone();
    let watched = signals::watch(move || first.cancel(), move || at_once.restore());
    if let Err(error) = watched.and_then(|()| signals::too_long_is_an_error()) {
        console.warning(&format!(
            "cannot handle signals, so Ctrl-C will leave temporary files: {error}"
        ));
    }
    cancel
}

/// Warns that a limit has no effect on a copy within this machine.
fn warn_of_limit(args: &ResolvedCopyArgs, output: &RunReporter) {
    let limits = [
        (args.flags.limit.is_some(), "--limit"),
        (args.flags.limit_kbit.is_some(), "-l"),
    ];
    for (_, flag) in limits
        .iter()
        .filter(|(given, _)| *given && args.hosts.is_empty())
    {
        output.warning(format!(
            "{flag} has no effect: it limits connections, and the copy is within this machine"
        ));
    }
}

/// Operands that name a host, and are names of local files as well.
fn local_names<'a>(operands: impl Iterator<Item = &'a EscapedName>) -> Vec<EscapedName> {
    let both = operands.filter(|name| {
        let path = Path::new(OsStr::from_bytes(&name.0));
        matches!(
            CopyOperand::parse(path.as_os_str()),
            Ok(CopyOperand::Remote(_))
        ) && path.exists()
    });
    both.cloned().collect()
}

/// Sends the log of `-v` to the console. Lines carry the time since the start, which makes waits
/// visible.
pub(crate) fn log_to(console: &Arc<Console>, level: tracing::level_filters::LevelFilter) {
    let to = Arc::clone(console);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_timer(ElapsedTimePrefix(Instant::now()))
        .with_target(false)
        .with_writer(move || ConsoleWriter(Arc::clone(&to)))
        .init();
}

/// Prefixes log lines with the seconds since the start of the run.
struct ElapsedTimePrefix(Instant);

impl FormatTime for ElapsedTimePrefix {
    fn format_time(&self, to: &mut format::Writer<'_>) -> fmt::Result {
        write!(to, "{:8.3} s", self.0.elapsed().as_secs_f64())
    }
}

/// Writes log lines to the console, above the progress display.
struct ConsoleWriter(Arc<Console>);

impl io::Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
