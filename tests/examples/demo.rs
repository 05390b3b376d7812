//! `make demo`: scp and longhaul side by side over a path that is long, on this machine alone.
//!
//! A throwaway sshd on loopback behind the testkit's delaying proxy; no root, no configuration.

use std::process::ExitCode;
use std::time::Duration;

use longhaul_tests::{Client, Program, Scene, longhaul, scratch};
use testkit::tree::{Compare, Tree, differences, write_file};
use testkit::{DelayProxy, PeerBuilder, Seed};

const RTT: Duration = Duration::from_millis(100);
const RATE: u64 = 125_000_000;
const FILE: usize = 64_000_000;
const SMALL: usize = 20;

fn main() -> ExitCode {
    // Refuses with a sentence if longhaul is not built.
    let programs = [
        ("scp", Program::Scp),
        ("longhaul", Program::Longhaul(longhaul())),
    ];
    let mut client = Client {
        program: Program::Scp,
        ..Client::new()
    };
    let Some(peer) = PeerBuilder::openssh().authorize(&client.dir).start() else {
        eprintln!("The demo needs OpenSSH's sshd, scp and ssh-keygen on this machine.");
        return ExitCode::FAILURE;
    };
    let proxy = DelayProxy::to(peer.addr()).rtt(RTT).rate(RATE).start();
    client.dir.add_host_at("peer", &peer, proxy.port());
    let mut scene = Scene {
        client,
        peer,
        scratch: scratch(),
    };
    write_file(&scene.path("file"), &Seed::new(1).bytes(FILE));
    Tree::small_files(2, SMALL).make(&scene.path("tree"));

    println!(
        "An emulated path on this machine: {} ms round trip, {} Mbit/s, sshd as it comes.\n",
        RTT.as_millis(),
        RATE * 8 / 1_000_000
    );
    let mut good = true;
    let mut kept = format!(
        "# {} ms round trip, {} Mbit/s, emulated; OpenSSH's scp and sshd of this machine (make demo)\n",
        RTT.as_millis(),
        RATE * 8 / 1_000_000
    );
    write_file(&scene.path("tiny"), &[b'x'; 1000]);
    let file = format!("{} MB in one file", FILE / 1_000_000);
    for (title, flags, name, up) in [
        ("1 kB in one file", &[][..], "tiny", true),
        (&file, &[], "file", true),
        (&file, &[], "file", false),
        (&format!("{SMALL} small files"), &["-r"], "tree", true),
    ] {
        let title = format!("{title}, {}", if up { "upload" } else { "download" });
        println!("{title}");
        let mut rows = Vec::new();
        for (label, program) in &programs {
            scene.client.program = program.clone();
            let copy = format!("{name}-{label}-{up}");
            let (from, to) = if up {
                (scene.path(name).into_os_string(), scene.remote(&copy))
            } else {
                (scene.remote(name), scene.path(&copy).into_os_string())
            };
            let run = scene.client.cp().arg("-q").args(flags);
            let outcome = run.arg(from).arg(to).run();
            let same =
                differences(&scene.path(name), &scene.path(&copy), Compare::CONTENT).is_empty();
            if !outcome.success() || !same {
                println!("  {label} failed: {outcome}");
                good = false;
                continue;
            }
            // connect() costs nothing through the proxy, and a round trip on a real path.
            rows.push((*label, proxy.with_connect(outcome.elapsed, 1).as_secs_f64()));
        }
        chart(&rows);
        for (label, seconds) in &rows {
            kept += &format!("{title}\t{label}\t{seconds:.2}\n");
        }
    }
    // The picture in the README is drawn from this: docs/gain.sh.
    if let Some(file) = std::env::var_os("DEMO_RESULTS")
        && let Err(error) = std::fs::write(&file, kept)
    {
        eprintln!("{}: {error}", file.to_string_lossy());
        good = false;
    }
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn chart(rows: &[(&str, f64)]) {
    const WIDTH: f64 = 48.0;
    let longest = rows.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    for (label, seconds) in rows {
        let bar = "█".repeat((seconds / longest * WIDTH).round().max(1.0) as usize);
        println!("  {label:<9} {bar:<48} {seconds:6.2} s");
    }
    if let [(_, theirs), (_, ours)] = rows {
        println!("  {:<9} {:.1} times as fast\n", "", theirs / ours);
    } else {
        println!();
    }
}
