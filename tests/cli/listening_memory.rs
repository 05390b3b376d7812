//! What the connections of `longhaul serve --listen` cost.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_tests::{Scene, longhaul};
use testkit::missing::find_program;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{Seed, missing};

const KIB: u64 = 1024;
/// For a connection on which nothing happens.
const IDLE: u64 = 200 * KIB;
/// Beside the window of one that is busy.
const BUSY: u64 = 4 << 20;
/// The largest window of a client that is neither longhaul nor HPN-SSH.
const WINDOW: u64 = 15 << 20;

struct Clients(Vec<Child>);

impl Drop for Clients {
    fn drop(&mut self) {
        for client in &mut self.0 {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

/// A figure of /proc/PID/status in bytes, of the server and of what it has started.
fn memory(pid: u32, figure: &str) -> u64 {
    let of = |pid: &str| {
        let status = fs::read_to_string(Path::new("/proc").join(pid).join("status"));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(figure));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * KIB
    };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let all = children.split_whitespace().map(of).sum::<u64>();
    all + of(&pid.to_string())
}

fn logins(scene: &Scene) -> usize {
    scene.peer.log().matches("logged in").count()
}

fn wait_for_logins(scene: &Scene, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while logins(scene) < count {
        assert!(Instant::now() < deadline, "{}", scene.peer.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    // What follows the login is said and heard.
    std::thread::sleep(Duration::from_millis(300));
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

/// Connections of `ssh` with these arguments.
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
            // Strangers of one address are bounded.
            if n % 8 == 0 || n == count {
                wait_for_logins(&scene, before + n);
            }
        }
        clients
    };
    // What all of them share is made for the first.
    let _first = connect(2);
    let before = memory(scene.peer.pid(), "RssAnon:");
    let count = 24;
    let _clients = connect(count);
    let each = memory(scene.peer.pid(), "RssAnon:").saturating_sub(before) / count as u64;
    assert!(each <= IDLE, "{arguments:?}: {} KiB each", each / KIB);
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
    let before = memory(scene.peer.pid(), "VmHWM:");
    let shown = |name: &str| scene.path(name).display().to_string();
    let there = format!("peer:{}", shown("there"));
    for (from, to) in [(shown("file"), there.clone()), (there, shown("back"))] {
        let outcome = testkit::Run::new("scp")
            .arg("-F")
            .arg(scene.client.dir.config())
            .args([from, to])
            .run();
        outcome.expect_code(0);
    }
    assert!(fs::read(scene.path("back")).expect("it is there") == content);
    let most = memory(scene.peer.pid(), "VmHWM:").saturating_sub(before);
    assert!(most <= WINDOW + BUSY, "{} KiB", most / KIB);
}
