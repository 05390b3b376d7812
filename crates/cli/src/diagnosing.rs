//! `longhaul doctor`: measures a path, and says what limits it.

mod fix;
mod from_file;
mod local;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diagnose::Evidence;
use measure::doctor::{self, DoctorReport};
use transfer::cancel::CancelToken;
use transfer::config::ProxyMethod;
use transfer::connect::RemoteLonghaulPolicy;
use transfer::copy::{CopyLocation, HostId};
use transfer::probe::{ProbeError, ProbeOptions, ProbeSettings, probe};
use transfer::report::EscapedName;

use crate::command_error::CommandError;
use crate::connect::Hosts;
use crate::cp::log_to;
use crate::exit::Exit;
use crate::flags::high::{Environment, ResolvedCopyArgs};
use crate::flags::low::DoctorArgs;
use crate::output::console::Console;
use crate::output::{RunReporter, bar};
use crate::{failed, print, signals, usage};

const DATA: u64 = 4_000_000_000;
/// Time for the way to a jump host.
const HOP_TIME: Duration = Duration::from_secs(15);

/// Runs `longhaul doctor` to its end.
pub(crate) fn run(args: DoctorArgs, world: &Environment) -> Exit {
    // Nobody waits half a minute to read that the page cannot be written.
    if let Some(file) = &args.html
        && let Err(why) = check_page(file)
    {
        return failed(&why);
    }
    let explained = match (&args.from, args.watch) {
        (Some(file), _) => Some(from_file::explain(file)),
        (None, Some(pid)) => Some(from_file::explain_running(pid)),
        (None, None) => None,
    };
    let result = match explained {
        Some(explained) => explained
            .map(|report| (report, Exit::Done))
            .map_err(|why| failed(&why)),
        None => measure(&args, world),
    };
    match result {
        Ok((report, exit)) => match (show(&args, &report, exit), args.fix) {
            (Exit::Done, true) => fix::offer(&report, args.yes),
            (shown, _) => shown,
        },
        Err(exit) => exit,
    }
}

/// Warning about signals that cannot be handled.
const NO_SIGNALS: &str =
    "cannot handle signals, so Ctrl-C will end the measurement without a report";

/// Measures a host. An error has been reported already.
fn measure(args: &DoctorArgs, world: &Environment) -> Result<(DoctorReport, Exit), Exit> {
    let start = Instant::now();
    let high =
        ResolvedCopyArgs::resolve(args.login.clone(), world).map_err(|error| usage(&error))?;
    let console = Arc::new(Console::new(high.colors));
    log_to(&console, high.level);
    let cancel = CancelToken::default();
    watch_signals(&console, &cancel);
    let told = |why: String, exit| {
        console.error(&why);
        exit
    };
    let Some(CopyLocation::Remote { path, .. }) = high.request.sources.first() else {
        let why = "HOST is a local path: give [user@]host".to_owned();
        return Err(told(why, Exit::Usage));
    };
    let local_disk = match &args.local {
        Some(file) => {
            let rate = local::read_rate(file);
            Some(rate.map_err(|why| told(why.to_string(), why.exit()))?)
        }
        None => None,
    };
    let mut flags = high.flags;
    flags.far = RemoteLonghaulPolicy::Stock;
    let output = RunReporter::new(Arc::clone(&console), None, args.login.quiet, cancel.clone());
    let hosts = Hosts::new(high.hosts.clone(), flags, Arc::new(output));
    let (config, settings, master) = hosts
        .for_probe(HostId(0))
        .map_err(|e| told(e.to_string(), Exit::from(&e)))?;
    let shows = world.stderr_is_terminal && !world.dumb && !args.login.quiet;
    let mut options = probe_options(args, path);
    options.local_disk = local_disk;
    if shows {
        let drawn = Arc::clone(&console);
        options.progress = Arc::new(move |what, used, left| {
            drawn.draw(|columns| bar::of_time(what, used, left, columns));
        });
    }
    let target = ProbeSettings {
        config,
        settings,
        cancel: cancel.clone(),
        start,
        master,
    };
    let jump = first_hop(&target, &options);
    let target = ProbeSettings {
        start: Instant::now(),
        ..target
    };
    let measured = probe(&target, &options);
    if shows {
        console.clear();
    }
    let host = high.hosts.first().map(ToString::to_string);
    let host = host.unwrap_or_default();
    let evidence = measured.map_err(|error| match cancel.is_cancelled() {
        true => told("interrupted".to_owned(), Exit::Interrupted),
        false => {
            let (why, exit) = probe_failure(&error, &host);
            told(why, exit)
        }
    })?;
    let exit = match &evidence.partial {
        _ if cancel.is_cancelled() => Exit::Interrupted,
        Some(_) => Exit::SomeFailed,
        None => Exit::Done,
    };
    let seconds = start.elapsed().as_secs_f64();
    let report = DoctorReport::new(host, seconds, evidence);
    Ok((
        match jump {
            Some((host, first)) => report.through(host, &first),
            None => report,
        },
        exit,
    ))
}

/// Lets the first signal end the measurement with a report, and the second one end the program.
fn watch_signals(console: &Arc<Console>, cancel: &CancelToken) {
    let (first, at_once) = (cancel.clone(), Arc::clone(console));
    let watched = signals::watch(move || first.cancel(), move || at_once.restore());
    if let Err(error) = watched {
        console.warning(&format!("{NO_SIGNALS}: {error}"));
    }
}

/// Returns the message and the exit status of a measurement that gave no evidence.
fn probe_failure(error: &ProbeError, host: &str) -> (String, Exit) {
    match error {
        ProbeError::Connect(error) => (error.to_string(), Exit::from(error)),
        ProbeError::Directory(why) => (format!("{host}:{why}"), Exit::SomeFailed),
    }
}

/// Settings of the flags, without progress.
fn probe_options(args: &DoctorArgs, remote_path: &[u8]) -> ProbeOptions {
    ProbeOptions {
        time: args.time,
        data: args.data.unwrap_or(DATA),
        remote_path: (!remote_path.is_empty() && remote_path != b".")
            .then(|| remote_path.to_owned()),
        local_disk: None,
        expected: args.expected.map(|rate| rate.bytes() as f64),
        progress: Arc::new(|_, _, _| {}),
    }
}

/// Checks that the page of `--html` has a directory to be in.
///
/// # Errors
/// One sentence with the file's name.
fn check_page(file: &Path) -> Result<(), CommandError> {
    let named = |why: &str| format!("--html: {}: {why}", EscapedName::from(file)).into();
    if file.is_dir() {
        return Err(named("is a directory"));
    }
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    match fs::metadata(parent) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(named("its parent is not a directory")),
        Err(error) => Err(named(&format!(
            "cannot use its directory: {}",
            transfer::disk::os_words(&error)
        ))),
    }
}

/// Measures the way to the first jump host, if there is one. If that fails, the login to the host
/// behind it tells why.
fn first_hop(target: &ProbeSettings, options: &ProbeOptions) -> Option<(String, Evidence)> {
    let ProxyMethod::Jump(through) = &target.config.proxy else {
        return None;
    };
    let jump = through.first()?;
    let mut config = (target.settings.hop)(jump).ok()?;
    // Its own jump hosts are not on this way.
    config.proxy = ProxyMethod::Direct;
    let near = ProbeSettings {
        config,
        master: None,
        ..target.clone()
    };
    let options = ProbeOptions {
        time: Some(options.time.map_or(HOP_TIME, |time| time / 2)),
        remote_path: None,
        local_disk: None,
        expected: None,
        ..options.clone()
    };
    let evidence = probe(&near, &options).ok()?;
    Some((jump.to_string(), evidence))
}

fn show(args: &DoctorArgs, report: &DoctorReport, exit: Exit) -> Exit {
    let page = match &args.html {
        Some(file) => fs::write(file, doctor::page(report))
            .map_err(|error| format!("{}: {error}", file.display()).into()),
        None => Ok(()),
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(report).map(|text| wire::escape::json(text) + "\n"),
        false => Ok(doctor::text(report)),
    };
    let shown = text
        .map_err(CommandError::from)
        .and_then(|text| print(text.as_bytes()));
    match page.and(shown) {
        Ok(()) => exit,
        Err(why) => match (failed(&why), exit) {
            (failed, Exit::Done) => failed,
            (_, exit) => exit,
        },
    }
}
