//! Memory of the connections of `longhaul serve --listen`.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use longhaul_tests::processes::{self, Clients};
use longhaul_tests::{Scene, longhaul};
use testkit::missing::find_program;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{Seed, missing, wait};

const KIB: u64 = 1024;
/// Maximum for an idle connection, in bytes.
const IDLE: u64 = 200 * KIB;
/// Maximum for a busy connection beside its window, in bytes.
const BUSY: u64 = 4 << 20;
/// Largest window of clients other than longhaul and HPN-SSH, in bytes.
const WINDOW: u64 = 15 << 20;

/// Returns the private memory of the server and its processes in bytes. Unmodified pages of files
/// do not count, as sharing them depends on concurrent tests.
fn memory(scene: &Scene) -> u64 {
    let all = scene.peer.processes().into_iter().chain([scene.peer.pid()]);
    all.map(|pid| processes::memory(pid, "Private_Dirty:"))
        .sum()
}

fn logins(scene: &Scene) -> usize {
    scene.peer.log().matches("logged in").count()
}

fn wait_for_logins(scene: &Scene, count: usize) {
    wait::until(
        Duration::from_secs(30),
        || logins(scene) >= count,
        || scene.peer.log(),
    );
    settled(scene);
}

/// Returns the server's memory once it has stopped changing: the messages after the login have been
/// exchanged.
fn settled(scene: &Scene) -> u64 {
    let (quiet, patience) = (Duration::from_millis(300), Duration::from_secs(30));
    wait::steady(quiet, patience, || memory(scene)).expect("memory of idle clients is steady")
}

#[test]
fn an_idle_connection_costs_little() {
    if find_program("ssh").is_none() {
        missing::skip("ssh", "Debian: openssh-client");
        return;
    }
    for arguments in [&["-N", "peer"][..], &["-s", "peer", "sftp"]] {
        idle(arguments);
    }
}

/// Measures idle connections of `ssh` with these arguments.
fn idle(arguments: &[&str]) {
    let builder = PeerBuilder::longhaul(longhaul(), [""; 0]);
    let scene = Scene::with(builder).expect("longhaul is there");
    let connect = |count: usize| {
        let before = logins(&scene);
        let mut clients = Clients(Vec::new());
        for n in 1..=count {
            let client = Command::new("ssh")
                .arg("-F")
                .arg(scene.client.dir.config())
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            clients.0.push(client.expect("ssh starts"));
            // Unauthenticated connections of one address are limited.
            if n % 8 == 0 || n == count {
                wait_for_logins(&scene, before + n);
            }
        }
        clients
    };
    // The first connection allocates what all of them share.
    let _first = connect(2);
    let before = memory(&scene);
    let count = 24;
    let _clients = connect(count);
    let measure = || memory(&scene).saturating_sub(before) / count as u64;
    // On a busy machine, the processes that admitted the last clients may still be about to end.
    wait::until(
        Duration::from_secs(10),
        || measure() <= IDLE,
        || format!("{arguments:?}: {} KiB each", measure() / KIB),
    );
    assert!(before > 500 * KIB, "nothing was measured: {before} bytes");
}

#[test]
fn a_busy_connection_costs_its_window_and_little_more() {
    if find_program("scp").is_none() {
        missing::skip("scp", "Debian: openssh-client");
        return;
    }
    let builder = PeerBuilder::longhaul(longhaul(), [""; 0]);
    let scene = Scene::with(builder).expect("longhaul is there");
    let content = Seed::new(5).bytes(200_000_000);
    write_file(&scene.path("file"), &content);
    let held = || memory(&scene);
    let before = held();
    let shown = |name: &str| scene.path(name).display().to_string();
    let there = format!("peer:{}", shown("there"));
    let mut most = 0;
    let sample = || most = most.max(held());
    let outcomes = wait::sampled(Duration::from_millis(20), sample, || {
        [(shown("file"), there.clone()), (there, shown("back"))].map(|(from, to)| {
            let run = testkit::Run::new("scp").arg("-F");
            run.arg(scene.client.dir.config()).args([from, to]).run()
        })
    });
    for outcome in outcomes {
        outcome.expect_code(0);
    }
    assert!(fs::read(scene.path("back")).expect("it is there") == content);
    let most = most.saturating_sub(before);
    assert!(most <= WINDOW + BUSY, "{} KiB", most / KIB);
    assert!(most > 100 * KIB, "nothing was measured: {most} bytes");
}

#[test]
fn a_connection_that_was_busy_gives_back_what_it_needed() {
    if find_program("sftp").is_none() {
        missing::skip("sftp", "Debian: openssh-client");
        return;
    }
    let builder = PeerBuilder::longhaul(longhaul(), [""; 0]);
    let scene = Scene::with(builder).expect("longhaul is there");
    write_file(&scene.path("file"), &Seed::new(6).bytes(100_000_000));
    // The first connection allocates what all of them share.
    let run = || {
        let run = testkit::Run::new("sftp").arg("-F");
        run.arg(scene.client.dir.config()).arg("peer")
    };
    run().stdin("pwd\n").run().expect_code(0);
    let before = settled(&scene);
    let mut session = run().in_terminal().spawn();
    let shown = |name: &str| scene.path(name).display().to_string();
    let (file, there, back) = (shown("file"), shown("there"), shown("back"));
    session.type_in(&format!(
        "put {file} {there}\nget {there} {back}\n!echo do''ne\n"
    ));
    assert!(session.shows("done"), "{}", scene.peer.log());
    let busy = memory(&scene).saturating_sub(before);
    let idle = || memory(&scene).saturating_sub(before);
    wait::until(
        Duration::from_secs(20),
        || idle() <= IDLE,
        || format!("{} KiB, {}", idle() / KIB, busy / KIB),
    );
    assert!(busy > 2 * IDLE, "it had nothing to give back: {busy} bytes");
    drop(session);
}
