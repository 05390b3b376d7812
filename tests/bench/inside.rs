//! One run inside the lab: this program is started again with a job.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use measure::{RunOutcome, ScenarioRun};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use sys::children_usage;
use testkit::background_process::ends_with_this_thread;

use crate::content;
use crate::job::{Job, Server, ServerKind};
use crate::memory::Warm;
use crate::watch::{ServerProcess, Spent, Watch, last_half_rate};

/// Argument that selects the inner part of this program.
pub(crate) const ARGUMENT: &str = "--inside-the-lab";

/// Runs the job and writes its sample.
pub(crate) fn main(job: &Path) -> ExitCode {
    match read(job).and_then(|job| {
        let sample = run(&job)?;
        fs::write(&job.output, serde_json::to_string(&sample)?)
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the run could not be made: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read(job: &Path) -> io::Result<Job> {
    Ok(serde_json::from_str(&fs::read_to_string(job)?)?)
}

fn run(job: &Job) -> io::Result<ScenarioRun> {
    let server = match &job.server {
        Some(server) => server.clone(),
        None => in_lab()?,
    };
    let process = server.pid.map(ServerProcess).or_else(ServerProcess::in_lab);
    if job.primed {
        fresh(job)?;
        once(job, &server)?;
    }
    fresh(job)?;
    // After `fresh`: an old version at the target has taken its memory already.
    let warm = Warm::take(&job.scratch.join("warm"), job.payload)?;
    if let Some(process) = process {
        process.settle();
    }
    let server_before = process.and_then(ServerProcess::cpu);
    let ours = job.server_kind == ServerKind::Serve;
    let spent = process.filter(|_| ours).map(Spent::start);
    let client_before = children_usage();
    let watch = Watch::start(job.up);
    let giving = warm.give()?;
    let run = once(job, &server)?;
    drop(giving);
    let curve = watch.stop();
    let client = children_usage();
    // Files are counted before the server has time to finish what the tool has left.
    let ending = ending(job, &run);
    if let Some(process) = process {
        process.settle();
    }
    let server_after = process.and_then(ServerProcess::cpu);
    let server_cpu = match spent {
        Some(spent) => spent.stop(),
        None => server_after
            .zip(server_before)
            .map(|(after, before)| after.saturating_sub(before)),
    };
    let mut sample = ScenarioRun {
        seconds: run.elapsed.as_secs_f64(),
        bytes: job.payload.bytes,
        files: job.payload.files,
        client_cpu_seconds: client.cpu.saturating_sub(client_before.cpu).as_secs_f64(),
        server_cpu_seconds: server_cpu.map(|cpu| cpu.as_secs_f64()),
        peak_memory_bytes: client.peak_memory,
        last_half_rate: None,
        curve,
        ending,
        path: Value::Null,
    };
    if job.server_kind == ServerKind::Iperf && sample.done() {
        iperf(job, &mut sample);
    }
    // For a tree, the bytes on the path are not those of the files alone.
    if sample.done() && job.payload.files == 1 {
        sample.last_half_rate = last_half_rate(&sample.curve, sample.bytes);
    }
    let _ = fs::remove_dir_all(&job.target);
    Ok(sample)
}

/// Reads the lab's server from the environment.
fn in_lab() -> io::Result<Server> {
    let value = |name: &str| {
        let name = format!("LONGHAUL_LAB_{name}");
        std::env::var(&name).map_err(|_| io::Error::other(format!("the lab did not set {name}")))
    };
    Ok(Server {
        config: value("CONFIG")?.into(),
        key: value("KEY")?.into(),
        known_hosts: value("KNOWN_HOSTS")?.into(),
        host: "far".to_owned(),
        port: value("PORT")?.parse().map_err(io::Error::other)?,
        user: value("USER")?,
        pid: None,
    })
}

/// Recreates the target as it is before a run.
fn fresh(job: &Job) -> io::Result<()> {
    let _ = fs::remove_dir_all(&job.target);
    fs::create_dir_all(&job.target)?;
    if let Some(old) = &job.stands {
        fs::copy(old, job.target.join(&job.name))?;
    }
    Ok(())
}

struct Once {
    /// `None` if the tool was killed because of its time limit.
    status: Option<ExitStatus>,
    elapsed: Duration,
}

fn once(job: &Job, server: &Server) -> io::Result<Once> {
    let home = job.scratch.join("home");
    fs::create_dir_all(&home)?;
    let words = job.resolved(server);
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| io::Error::other("an empty command"))?;
    let mut path: Vec<PathBuf> = job.programs.clone();
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    path.extend(std::env::split_paths(&inherited));
    path.push("/usr/sbin".into());
    let path = std::env::join_paths(path).map_err(io::Error::other)?;
    let mut command = ends_with_this_thread();
    command
        .arg(program)
        .args(arguments)
        .env("PATH", path)
        .env("HOME", &home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("RCLONE_CONFIG", "/notfound")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("SSH_AUTH_SOCK")
        .env_remove("SSH_ASKPASS")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(File::create(job.scratch.join("stdout"))?)
        .stderr(File::create(job.scratch.join("stderr"))?);
    let start = Instant::now();
    let mut child = command.spawn()?;
    let group = Pid::from_child(&child);
    let (sender, ended) = channel();
    std::thread::spawn(move || {
        let status = child.wait();
        let _ = sender.send((status, Instant::now()));
    });
    let (status, at, in_time) = match ended.recv_timeout(Duration::from_secs_f64(job.limit)) {
        Ok((status, at)) => (status, at, true),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let now = Instant::now();
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            let (status, _) = ended.recv().map_err(io::Error::other)?;
            (status, now, false)
        }
    };
    // Kills processes that the tool has left behind in its group.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    Ok(Once {
        status: in_time.then_some(status?),
        elapsed: at.duration_since(start),
    })
}

fn ending(job: &Job, run: &Once) -> RunOutcome {
    let Some(status) = run.status else {
        let there = content::count(&job.target);
        return RunOutcome::TimedOut {
            files: there.files,
            bytes: there.bytes,
        };
    };
    if !status.success() {
        let said = fs::read(job.scratch.join("stderr")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, signal) => format!("ended by signal {}", signal.unwrap_or_default()),
        };
        return RunOutcome::Failed {
            why: without_places(
                job,
                &format!("{how}: {}", last.unwrap_or("(it said nothing)")),
            ),
        };
    }
    if job.server_kind == ServerKind::Iperf {
        return RunOutcome::Done;
    }
    let [source, copy] = [&job.source, &job.target].map(|folder| folder.join(&job.name));
    match content::difference(&source, &copy) {
        Some(why) => RunOutcome::Wrong {
            why: without_places(job, &why),
        },
        None => RunOutcome::Done,
    }
}

/// Replaces local folders in a text, which do not belong in a report.
fn without_places(job: &Job, text: &str) -> String {
    let mut text = text.to_owned();
    for (folder, name) in [
        (&job.source, "$SRC"),
        (&job.target, "$DST"),
        (&job.scratch, "$TMP"),
    ] {
        text = text.replace(&folder.display().to_string(), name);
    }
    text
}

/// Fills the sample of iperf3, which copies no file and reports itself how many bytes arrived in
/// which time.
fn iperf(job: &Job, sample: &mut ScenarioRun) {
    let text = fs::read(job.scratch.join("stdout")).unwrap_or_default();
    let said: Value = serde_json::from_slice(&text).unwrap_or_default();
    let received = &said["end"]["sum_received"];
    match (received["bytes"].as_u64(), received["seconds"].as_f64()) {
        (Some(bytes), Some(seconds)) if bytes > 0 => {
            sample.bytes = bytes;
            sample.seconds = seconds;
        }
        _ => {
            let why = said["error"].as_str().unwrap_or("it gave no figures");
            sample.ending = RunOutcome::Failed {
                why: why.to_owned(),
            };
        }
    }
}
