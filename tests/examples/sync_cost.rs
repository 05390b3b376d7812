//! Cost of the journal and its syncs: copies with and without them, alternating, in both
//! directions, of one large file and of many small ones. Limits: 3 % of the rate, and for many
//! files 2 % of the time and 200 MiB for a million. Needs an OpenSSH server here, or `longhaul lab`
//! around it.
//!
//!     cargo run --release -p longhaul-tests --example sync_cost -- [--runs 5] [--size MiB]
//!         [--files N] [--folder DIR] [--way up|down] [--host NAME --config FILE]
//!
//! DIR should be on a disk; on tmpfs a sync costs nothing. `--host` uses that server, which sees
//! the same files, as under `longhaul lab --path transatlantic --sshd -- ... --host far --config
//! "$LONGHAUL_LAB_CONFIG"`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::{ClientDir, PeerBuilder, PeerKind};
use transfer::cancel::CancelToken;
use transfer::config::{HostConfigQuery, LocalUser};
use transfer::connect::{self, ConnectError, ConnectStep, SharedConnectSettings};
use transfer::copy::{
    self, CopyLocation, CopyOptions, CopyRequest, HostId, SessionConnector, TransferEstimate,
};
use transfer::prompt::NoPrompt;
use transfer::report::{CopyOutcome, ProgressCounters};
use transfer::session::{Session, SessionOptions};

const HOST: &str = "far";

struct Asked {
    runs: usize,
    size: u64,
    files: u64,
    folder: PathBuf,
    way: Option<String>,
    config: Option<PathBuf>,
    host: String,
    /// One copy in a process of its own: with or without a journal, source and target.
    copy: Option<(bool, PathBuf, PathBuf)>,
}

fn main() -> ExitCode {
    let asked = match read(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("sync_cost: {why}");
            return ExitCode::from(2);
        }
    };
    if let (Some((journal, from, to)), Some(config)) = (&asked.copy, &asked.config) {
        return copy_once(&asked, *journal, from, to, config);
    }
    let peer = asked.config.is_none().then(|| {
        let mut client = ClientDir::new();
        let peer = PeerBuilder::new(PeerKind::OpenSsh)
            .authorize(&client)
            .start()
            .expect("sshd");
        client.add_host(HOST, &peer);
        (client, peer)
    });
    let config = match &peer {
        Some((client, _)) => client.config(),
        None => asked.config.clone().expect("given"),
    };
    let scratch = tempfile::tempdir_in(&asked.folder).expect("the folder");
    if asked.size > 0 {
        let large = scratch.path().join("large");
        std::fs::create_dir(&large).expect("ours");
        fill(&large.join("file"), asked.size << 20);
        let name = format!("one file of {} MiB", asked.size);
        compare(&asked, &config, scratch.path(), &large, &name);
    }
    if asked.files > 0 {
        let small = scratch.path().join("small");
        for n in 0..asked.files {
            let folder = small.join(format!("{:04}", n / 1000));
            if n % 1000 == 0 {
                std::fs::create_dir_all(&folder).expect("ours");
            }
            std::fs::write(folder.join(format!("{n:07}")), n.to_be_bytes()).expect("ours");
        }
        let name = format!("{} files", asked.files);
        compare(&asked, &config, scratch.path(), &small, &name);
    }
    ExitCode::SUCCESS
}

fn read(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked {
        runs: 5,
        size: 2048,
        files: 100_000,
        folder: std::env::temp_dir(),
        way: None,
        config: None,
        host: HOST.to_owned(),
        copy: None,
    };
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match flag.as_str() {
            "--runs" => asked.runs = number(value()?)? as usize,
            "--size" => asked.size = number(value()?)?,
            "--files" => asked.files = number(value()?)?,
            "--folder" => asked.folder = value()?.into(),
            "--way" => asked.way = Some(value()?),
            "--config" => asked.config = Some(value()?.into()),
            "--host" => asked.host = value()?,
            "--copy" => asked.copy = Some((value()? == "true", value()?.into(), value()?.into())),
            _ => return Err(format!("{flag} is unknown")),
        }
    }
    Ok(asked)
}

/// Writes bytes that no file system compresses or leaves out.
fn fill(path: &Path, len: u64) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).expect("ours");
    let part: Vec<u8> = testkit::Seed::new(5).bytes(8 << 20);
    let mut left = len;
    while left > 0 {
        let n = left.min(part.len() as u64);
        file.write_all(&part[..n as usize]).expect("room for it");
        left -= n;
    }
    file.sync_all().expect("synced");
}

fn compare(asked: &Asked, config: &Path, scratch: &Path, from: &Path, what: &str) {
    for way in ["up", "down"] {
        if asked.way.as_ref().is_some_and(|only| only != way) {
            continue;
        }
        let mut times: [Vec<Duration>; 2] = Default::default();
        let mut largest = 0;
        for run in 0..=asked.runs {
            // The first one meets the disk in the state that the other has left.
            let order = [run % 2 == 0, run % 2 != 0];
            for journal in order {
                let (took, bytes) = one(asked, config, scratch, from, way, journal);
                largest = largest.max(bytes);
                if run > 0 {
                    times[usize::from(journal)].push(took);
                }
            }
        }
        let [without, with] = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        });
        println!(
            "{what:<22} {way:<5} {without:7.2} s without, {with:7.2} s with: {:+.1} %; \
             the journal had {:.1} MB",
            (with / without - 1.0) * 100.0,
            largest as f64 / 1e6
        );
    }
}

/// Runs a copy in a process of its own; returns its duration and the size of its journal.
fn one(
    asked: &Asked,
    config: &Path,
    scratch: &Path,
    from: &Path,
    way: &str,
    journal: bool,
) -> (Duration, u64) {
    let to = scratch.join("to");
    let _ = std::fs::remove_dir_all(&to);
    // Pending writes of the previous copy are not part of this one's cost.
    Command::new("sync").status().expect("sync");
    let state = scratch.join("state");
    let mut child = Command::new(std::env::current_exe().expect("an example has a path"))
        .args(["--copy", &journal.to_string()])
        .args([from, &to])
        .args(["--way", way, "--host", &asked.host, "--config"])
        .arg(config)
        .env("XDG_STATE_HOME", &state)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("this program");
    let mut largest = 0;
    while testkit::wait::exit(&mut child, Duration::from_millis(20)).is_none() {
        largest = largest.max(journal_size(&state.join("longhaul")).max(journal_size(scratch)));
    }
    let output = child.wait_with_output().expect("ours");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let seconds: f64 = said.trim().parse().expect("seconds");
    (Duration::from_secs_f64(seconds), largest)
}

fn journal_size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let journals = entries.filter(|e| e.file_name().as_encoded_bytes().ends_with(b".journal"));
    let sizes = journals.filter_map(|e| Some(e.metadata().ok()?.len()));
    sizes.max().unwrap_or(0)
}

struct Host {
    name: String,
    config: PathBuf,
}

impl SessionConnector for Host {
    fn connect(
        &self,
        _: HostId,
        _: Option<TransferEstimate>,
        _: &CancelToken,
    ) -> Result<Session, ConnectError> {
        let user = LocalUser::current();
        let query = HostConfigQuery {
            host: self.name.clone(),
            file: Some(self.config.clone()),
            batch: true,
            ..HostConfigQuery::default()
        };
        let config = query.resolve(&user)?;
        let around = SharedConnectSettings {
            renounced: ssh::transport::DisabledProtection::Nothing,
            window_poll: true,
            prompt: Arc::new(Mutex::new(NoPrompt)),
            opened: Arc::new(|_| {}),
            memories: None,
            forward_agent: false,
            dscp: 0,
            congestion: None,
            direct: false,
            far: connect::RemoteLonghaulPolicy::Stock,
            absolute: true,
            sends: None,
            beside: None,
            attempt: connect::AttemptSettings::default(),
            look: None,
            bulk: connect::BulkDirection::Neither,
            masters: Arc::default(),
            timeline: None,
            hop: Arc::new(|_| Err(ConnectError::configuration("no host is passed through"))),
        };
        let (link, again) = connect::connect(config, &around)?;
        let options = SessionOptions {
            connection_source: Some(Arc::new(again)),
            ..SessionOptions::default()
        };
        Session::start(Box::new(link), options)
            .map_err(|e| ConnectError::this_machine(ConnectStep::Session, e.to_string()))
    }

    fn name(&self, _: HostId) -> String {
        self.name.clone()
    }
}

fn copy_once(asked: &Asked, journal: bool, from: &Path, to: &Path, config: &Path) -> ExitCode {
    use std::os::unix::ffi::OsStrExt as _;
    let up = asked.way.as_deref() == Some("up");
    let remote = |path: &Path| CopyLocation::Remote {
        host: HostId(0),
        path: path.as_os_str().as_bytes().to_vec(),
    };
    let local = |path: &Path| CopyLocation::Local(path.to_owned());
    let (source, target) = match up {
        true => (local(from), remote(to)),
        false => (remote(from), local(to)),
    };
    let request = CopyRequest {
        sources: vec![source],
        target,
        options: CopyOptions {
            recursive: true,
            journal,
            ..CopyOptions::default()
        },
    };
    let host = Host {
        name: asked.host.clone(),
        config: config.to_owned(),
    };
    let begun = Instant::now();
    let progress = ProgressCounters::default();
    let cancel = CancelToken::default();
    let summary = copy::run(request, &host, &progress, &mut |_| {}, &cancel);
    let took = begun.elapsed();
    match summary.outcome {
        CopyOutcome::Complete => {
            println!("{}", took.as_secs_f64());
            ExitCode::SUCCESS
        }
        other => {
            println!("{other:?}, {:?}", summary.failures);
            ExitCode::FAILURE
        }
    }
}
