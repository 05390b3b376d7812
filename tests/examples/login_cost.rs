//! Cost of a login to `longhaul serve --listen`: the time of a whole sftp that does nothing, the
//! memory of idle connections, of connections before their login and of one that copies a large
//! file, and what many logins leave behind. As root, each login has a process of the account;
//! otherwise a thread.
//!
//!     cargo run --release -p longhaul-tests --example login_cost -- [--runs 40] [--idle 24]
//!         [--busy 500] [--logins 0] [--sshd]
//!
//! The memory is the private memory of all processes of the server (Private_* of smaps_rollup),
//! with and without the connections, divided by their number; while a file of `--busy` MB is
//! copied, the maximum of samples every 10 ms. `--sshd` measures the machine's sshd in the same
//! way.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use longhaul_tests::longhaul;
use longhaul_tests::processes::{self, Clients};
use testkit::{ClientDir, PeerBuilder, PeerKind, PeerServer, wait};

const HOST: &str = "peer";

struct Asked {
    runs: usize,
    idle: usize,
    busy: usize,
    logins: usize,
    sshd: bool,
}

fn main() -> ExitCode {
    let asked = match read(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("login_cost: {why}");
            return ExitCode::from(2);
        }
    };
    measure(
        "longhaul",
        PeerBuilder::longhaul(longhaul(), ["--old-clients"]),
        &asked,
    );
    if asked.sshd {
        measure("sshd", PeerBuilder::new(PeerKind::OpenSsh), &asked);
    }
    ExitCode::SUCCESS
}

fn read(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked {
        runs: 40,
        idle: 24,
        busy: 500,
        logins: 0,
        sshd: false,
    };
    while let Some(flag) = args.next() {
        let mut number = || {
            let text = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            text.parse().map_err(|e| format!("{text}: {e}"))
        };
        match flag.as_str() {
            "--runs" => asked.runs = number()?,
            "--idle" => asked.idle = number()?,
            "--busy" => asked.busy = number()?,
            "--logins" => asked.logins = number()?,
            "--sshd" => asked.sshd = true,
            _ => return Err(format!("{flag} is unknown")),
        }
    }
    Ok(asked)
}

fn measure(name: &str, builder: PeerBuilder, asked: &Asked) {
    let mut client = ClientDir::new();
    let peer = builder.authorize(&client).start().expect("the server");
    client.add_host(HOST, &peer);
    let mut times: Vec<_> = (0..=asked.runs).map(|_| log_in(&client)).skip(1).collect();
    if !times.is_empty() {
        times.sort_unstable();
        let at = |part: usize| times[(times.len() - 1) * part / 10].as_secs_f64() * 1e3;
        println!(
            "{name}: login and end {:.1} ms ({:.1} to {:.1}, nine of ten)",
            at(5),
            at(0),
            at(9)
        );
    }
    if asked.idle > 0 {
        idle(name, &client, &peer, asked.idle);
    }
    if asked.busy > 0 {
        busy(name, &client, &peer, asked.busy);
    }
    if asked.logins > 0 {
        settle(&peer);
        let before = held(&peer);
        for _ in 0..asked.logins {
            log_in(&client);
        }
        settle(&peer);
        println!("{name}: before {} logins {before}", asked.logins);
        println!("{name}: behind them {}", held(&peer));
    }
}

fn log_in(client: &ClientDir) -> Duration {
    let begun = Instant::now();
    let run = client.run("sftp").arg("-F").arg(client.config());
    // With the preferred key exchange, OpenSSH's client takes most of the time: 80 ms.
    let run = run.args(["-o", "KexAlgorithms=curve25519-sha256"]);
    run.args(["-b", "-", HOST]).stdin("").run().expect_code(0);
    begun.elapsed()
}

/// Returns the number of logins in the log, in the words of the servers that are measured.
fn logins(peer: &PeerServer) -> usize {
    let log = peer.log();
    let words = ["logged in", "Accepted ", "auth succeeded"];
    words.map(|words| log.matches(words).count()).iter().sum()
}

fn idle(name: &str, client: &ClientDir, peer: &PeerServer, count: usize) {
    let connect = |count: usize, arguments: &[&str]| {
        let start = |_| {
            let before = logins(peer);
            let mut command = Command::new("ssh");
            command.arg("-F").arg(client.config()).args(arguments);
            let piped = command.stdin(Stdio::piped()).stdout(Stdio::null());
            let started = piped.stderr(Stdio::null()).spawn().expect("ssh starts");
            // Unauthenticated connections of one address are limited, so that each logs in before
            // the next one starts.
            let limit = Duration::from_secs(10);
            assert!(wait::up_to(limit, || logins(peer) > before), "no login");
            started
        };
        let clients = Clients((0..count).map(start).collect());
        settle(peer);
        clients
    };
    for arguments in [&["-N", HOST][..], &["-s", HOST, "sftp"]] {
        // The first connection allocates what all of them share.
        let _first = connect(2, arguments);
        let before = memory(peer);
        let _clients = connect(count, arguments);
        tell(name, &arguments.join(" "), &before, &memory(peer), count);
    }
    let strangers = |count: usize| {
        let start = |_| {
            let mut stream = TcpStream::connect(peer.addr()).expect("it listens");
            stream.read_exact(&mut [0; 8]).expect("its identification");
            stream
        };
        let all: Vec<TcpStream> = (0..count).map(start).collect();
        settle(peer);
        all
    };
    let _first = strangers(1);
    let before = memory(peer);
    let _strangers = strangers(8);
    tell(name, "before its login", &before, &memory(peer), 8);
}

/// Measures one connection that uploads a file of this many megabytes, and downloads it.
fn busy(name: &str, client: &ClientDir, peer: &PeerServer, megabytes: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let [file, there, back] = ["file", "there", "back"].map(|name| folder.path().join(name));
    fs::write(&file, vec![b'x'; megabytes * 1_000_000]).expect("room for it");
    let remote = format!("{HOST}:{}", there.display());
    let ours = longhaul();
    let one = ["cp", "--connections", "1"];
    for (program, first) in [("scp".as_ref(), &[][..]), (ours.as_os_str(), &one)] {
        for (way, from, to) in [
            ("puts", file.as_os_str(), remote.as_ref()),
            ("gets", remote.as_ref(), back.as_os_str()),
        ] {
            settle(peer);
            let before: u64 = memory(peer).values().sum();
            let mut most: u64 = 0;
            let sample = || most = most.max(memory(peer).values().sum());
            wait::sampled(Duration::from_millis(10), sample, || {
                let run = client
                    .run(program)
                    .args(first)
                    .arg("-F")
                    .arg(client.config());
                run.arg(from).arg(to).run().expect_code(0);
            });
            let whose = Path::new(program).file_name().unwrap_or(program).display();
            let most = most.saturating_sub(before);
            println!("{name}: a connection on which {whose} {way} {megabytes} MB: {most} kB");
        }
    }
}

/// Waits until the server's memory has stopped changing: the messages after the login have been
/// exchanged.
fn settle(peer: &PeerServer) {
    let (quiet, patience) = (Duration::from_millis(500), Duration::from_secs(10));
    let _ = wait::steady(quiet, patience, || memory(peer));
}

/// Returns the memory of the server and of each of its processes, in kB.
fn memory(peer: &PeerServer) -> BTreeMap<u32, u64> {
    let of = |pid: u32| (pid, processes::memory(pid, "Private_") / 1024);
    let all = peer.processes().into_iter().chain([peer.pid()]);
    all.map(of).collect()
}

fn tell(
    name: &str,
    what: &str,
    before: &BTreeMap<u32, u64>,
    after: &BTreeMap<u32, u64>,
    count: usize,
) {
    let sum = |all: &BTreeMap<u32, u64>| all.values().sum::<u64>();
    let each = sum(after).saturating_sub(sum(before)) / count as u64;
    let new = after.iter().filter(|(pid, _)| !before.contains_key(pid));
    let new: u64 = new.map(|(_, kb)| kb).sum();
    println!(
        "{name}: a connection, {what}: {each} kB, {} of it in processes of its own",
        new / count as u64
    );
}

/// Returns the numbers of descriptors and processes.
fn held(peer: &PeerServer) -> String {
    let descriptors = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let all = peer.processes();
    let zombies = all.iter().filter(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("State:\tZ")
    });
    let each: Vec<_> = all.iter().map(|pid| descriptors(*pid)).collect();
    format!(
        "{} descriptors, {each:?} of {} processes, of which {} are zombies, {} kB",
        descriptors(peer.pid()),
        all.len(),
        zombies.count(),
        memory(peer).values().sum::<u64>()
    )
}
