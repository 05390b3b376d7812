//! `make bench`: rates and processor time on loopback, and round trips, beside scp of the same
//! cipher in the same run.
//!
//! `BENCH_SIZE` (bytes, or with K, M, G for powers of 1024; 4G), `BENCH_RUNS` (3) and
//! `BENCH_CIPHER` (aes128-gcm@openssh.com) change it. The files lie in memory. Runs of scp and
//! longhaul alternate, so that what disturbs the machine disturbs both; the medians count.
//!
//! Before each run as much memory as it writes is taken and given back. Under a hypervisor that
//! takes free memory away, a first touch costs ten times the copy (5.9 GB/s warm, 0.5 cold were
//! measured), and would be all that is measured. `BENCH_DIR` is another place than /dev/shm, such
//! as a tmpfs of huge pages.

mod content;
mod report;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use longhaul_tests::round_trips::{Before, measure};
use longhaul_tests::{Client, Program, Scene, longhaul, remote, scratch};
use testkit::process::cpu_time;
use testkit::tree::write_file;
use testkit::{Peer, PeerBuilder};

use report::{Report, Sample, Way};

fn main() -> ExitCode {
    let size = setting("BENCH_SIZE", "4G");
    let runs = setting("BENCH_RUNS", "3");
    let cipher =
        std::env::var("BENCH_CIPHER").unwrap_or_else(|_| "aes128-gcm@openssh.com".to_owned());
    let (Some(size), Some(runs)) = (size, runs) else {
        eprintln!("BENCH_SIZE and BENCH_RUNS are numbers, with K, M or G after them");
        return ExitCode::from(2);
    };
    let memory = std::env::var_os("BENCH_DIR").unwrap_or_else(|| "/dev/shm".into());
    let memory = Path::new(&memory);
    let place = tempfile::Builder::new()
        .prefix("longhaul-bench-")
        .tempdir_in(memory);
    let Ok(place) = place else {
        eprintln!("{} is needed: the files lie in memory", memory.display());
        return ExitCode::FAILURE;
    };
    let room = rustix::fs::statvfs(place.path()).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    if room < size * 2 + (1 << 30) {
        let memory = memory.display();
        eprintln!("{memory} has {room} bytes of room, too little for two files of {size}");
        return ExitCode::FAILURE;
    }
    let mut client = Client {
        program: Program::Longhaul(longhaul()),
        ..Client::new()
    };
    let Some(peer) = PeerBuilder::openssh().authorize(&client.dir).start() else {
        return ExitCode::FAILURE;
    };
    client.dir.add_host("peer", &peer);
    let mut report = Report::new(size, runs, &cipher);
    eprintln!("making a file of {size} bytes");
    content::make(&place.path().join("file"), size);
    for run in 0..runs {
        for way in [Way::Up, Way::Down] {
            for (label, program) in [
                ("scp", Program::Scp),
                ("longhaul", Program::Longhaul(longhaul())),
            ] {
                client.program = program;
                content::warm(&place.path().join("warm"), size);
                let sample = once(&client, &peer, place.path(), way, &cipher, run == 0);
                eprintln!("{label:<9} {way:<4} {}", sample.shown(size));
                report.add(label, way, sample);
            }
        }
    }
    let mut scene = Scene {
        client,
        peer,
        scratch: scratch(),
    };
    write_file(&scene.path("file"), &[b'x'; 1024]);
    eprintln!("round trips");
    for program in [Program::Scp, Program::Longhaul(longhaul())] {
        scene.client.program = program.clone();
        let first = measure(&mut scene, Before::Nothing);
        report.round_trips(&program, "first contact", first);
        let known = measure(&mut scene, Before::EarlierRuns);
        report.round_trips(&program, "known host", known);
    }
    println!("{}", report.table());
    match report.write() {
        Ok(file) => println!("written to {}", file.display()),
        Err(error) => eprintln!("the report could not be written: {error}"),
    }
    ExitCode::SUCCESS
}

/// One copy of the file.
fn once(client: &Client, peer: &Peer, place: &Path, way: Way, cipher: &str, check: bool) -> Sample {
    let (file, copy) = (place.join("file"), place.join("copy"));
    let _ = std::fs::remove_file(&copy);
    settle(peer);
    let server_before = cpu_time(peer.pid()).unwrap_or_default();
    let run = client
        .cp()
        .args(["-q", "-c", cipher])
        .timeout(Duration::from_secs(900));
    let outcome = match way {
        Way::Up => run.arg(&file).arg(remote("peer", &copy)),
        Way::Down => run.arg(remote("peer", &file)).arg(&copy),
    }
    .run()
    .expect_code(0);
    settle(peer);
    // Processes the listener has waited for count towards it.
    let server = cpu_time(peer.pid())
        .unwrap_or_default()
        .saturating_sub(server_before);
    if check {
        assert!(content::same(&file, &copy), "the copy is not the file");
    }
    let _ = std::fs::remove_file(&copy);
    Sample {
        elapsed: outcome.elapsed,
        client: outcome.cpu,
        server,
    }
}

/// Waits until the server's processes for the last connection are gone.
fn settle(peer: &Peer) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !peer.sessions().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn setting(name: &str, default: &str) -> Option<u64> {
    let text = std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let (number, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) => (number, text.as_bytes()[text.len() - 1]),
        None => (text.as_str(), b' '),
    };
    let shift = match unit {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    Some(number.parse::<u64>().ok()? << shift)
}
