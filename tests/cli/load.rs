//! `longhaul serve --listen` under overload: memory and descriptors stay within bounds, and honest
//! clients are not affected.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use longhaul_tests::{Scene, longhaul, processes};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, getrlimit, setrlimit};
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{Run, Seed, missing, wait};

use crate::serving::openssh;

fn listening(flags: &[&str]) -> Scene {
    let builder = PeerBuilder::longhaul(longhaul(), flags.iter().copied());
    Scene::with(builder).expect("longhaul is there")
}

/// Connects from the `source`th address of loopback.
fn connected(port: u16, source: u8) -> Option<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    let from = Ipv4Addr::new(127, 0, 1, source);
    bind(&socket, &SocketAddrV4::new(from, 0)).ok()?;
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).ok()?;
    Some(socket.into())
}

/// Returns the private memory of all processes of the server in bytes, and the descriptors of the
/// listening one.
fn held(scene: &Scene) -> (u64, usize) {
    let mut all = scene.peer.processes();
    all.push(scene.peer.pid());
    let private = |pid: &u32| processes::memory(*pid, "Private_");
    let descriptors = fs::read_dir(format!("/proc/{}/fd", scene.peer.pid()));
    let descriptors = descriptors.map_or(0, Iterator::count);
    (all.iter().map(private).sum(), descriptors)
}

/// Asserts that an honest client is served as quickly as if it were alone.
#[track_caller]
fn is_served(scene: &Scene) {
    let begun = Instant::now();
    let outcome = openssh(scene, "sftp").arg("peer").stdin("pwd\n").run();
    outcome.expect_code(0);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// Returns the number of clients that never log in: 10,000, or LONGHAUL_STRANGERS, or as many as
/// the descriptor limit allows beside concurrent tests.
fn strangers() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the limit stays, which is read below.
    let _ = setrlimit(Resource::Nofile, limit);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(most).unwrap_or(usize::MAX) * 3 / 4;
    let told = std::env::var("LONGHAUL_STRANGERS").ok();
    let wanted = told.and_then(|number| number.parse().ok());
    let wanted = wanted.unwrap_or(10_000);
    if wanted > most {
        missing::not_here(&format!(
            "{most} strangers for {wanted}: no more descriptors"
        ));
    }
    wanted.min(most)
}

#[test]
fn thousands_who_never_log_in_keep_nobody_out() {
    let scene = listening(&[]);
    let begun = Instant::now();
    let mut held_open = Vec::new();
    let mut most = (0, 0);
    let all = strangers();
    for n in 0..all {
        // More sources than there are places for one client of each: they do not keep anybody out
        // either.
        if let Some(stream) = connected(scene.peer.port(), 1 + (n % 40) as u8) {
            held_open.push(stream);
        }
        if n % 1000 == 999 || n + 1 == all {
            let (memory, descriptors) = held(&scene);
            most = (most.0.max(memory), most.1.max(descriptors));
            is_served(&scene);
        }
    }
    assert_eq!(held_open.len(), all);
    // A hundred are admitted, and each has a process.
    let strangers = scene.peer.sessions().len();
    assert!(strangers <= 100, "{strangers} processes");
    let (memory, descriptors) = most;
    eprintln!(
        "{} strangers: {} MiB and {descriptors} descriptors at most, {:.1} s",
        held_open.len(),
        memory >> 20,
        begun.elapsed().as_secs_f64()
    );
    assert!(memory < 150 << 20, "{} MiB", memory >> 20);
    assert!(descriptors < 400, "{descriptors} descriptors");
    drop(held_open);
    is_served(&scene);
}

#[test]
fn whoever_says_a_byte_at_a_time_has_no_more_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("serve.toml");
    write_file(&config, b"login-time = 3\n");
    let scene = listening(&["--config", &config.display().to_string()]);
    let mut slow: Vec<TcpStream> = (0..20)
        .filter_map(|n| connected(scene.peer.port(), 1 + n))
        .collect();
    let begun = Instant::now();
    let mut open = slow.len();
    assert_eq!(open, 20);
    let line = b"SSH-2.0-slow-loris-with-a-name-that-takes-its-time\r\n";
    for byte in line.iter().cycle() {
        for stream in &mut slow {
            // The test is about servers that disconnect.
            let _ = stream.write_all(&[*byte]);
        }
        // Paces the bytes.
        std::thread::sleep(Duration::from_millis(100));
        open = scene.peer.sessions().len();
        if open == 0 || begun.elapsed() > Duration::from_secs(20) {
            break;
        }
    }
    assert_eq!(open, 0, "they are still there after {:?}", begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_secs(2));
    let mut said = Vec::new();
    let _ = slow[0].read_to_end(&mut said);
    assert!(said.starts_with(b"SSH-2.0-longhaul"));
    is_served(&scene);
}

/// Floods come one after another, so that each meets the server in its initial state, while another
/// client copies.
#[test]
fn floods_of_somebody_who_has_logged_in_cost_no_more_than_they_may() {
    let python = missing::built_peers().join("venv/bin/python");
    if !python.is_file() {
        missing::skip("paramiko", "run scripts/setup-tests.sh");
        return;
    }
    let scene = listening(&[]);
    let content = Seed::new(9).bytes(4_000_000);
    write_file(&scene.path("big"), &content);
    let script = missing::checkout().join("tests/peers/flood.py");
    for kind in [
        "opens",
        "requests",
        "global_requests",
        "pings",
        "adjusts",
        "extended",
        "names",
        "reads",
    ] {
        let run = Run::new(&python).arg(&script).arg(kind);
        let run = run
            .arg(scene.peer.port().to_string())
            .arg(scene.peer.user());
        let run = run.arg(&scene.client.dir.key().private);
        let flood = run.arg(scene.scratch.path()).spawn();
        assert!(flood.shows("begins"), "{kind}");
        let mut most = (0, 0);
        let mut look = || {
            let (memory, descriptors) = held(&scene);
            most = (most.0.max(memory), most.1.max(descriptors));
        };
        let flooded = wait::sampled(Duration::from_millis(20), &mut look, || {
            copies(&scene, &content);
            flood.shows("flooded")
        });
        assert!(flooded, "{kind}");
        look();
        is_served(&scene);
        let (memory, descriptors) = most;
        assert!(memory < 64 << 20, "{kind}: {} MiB", memory >> 20);
        assert!(descriptors < 64, "{kind}: {descriptors} descriptors");
        drop(flood);
    }
}

/// Asserts that an honest client copies up and down within the expected time.
#[track_caller]
fn copies(scene: &Scene, content: &[u8]) {
    let begun = Instant::now();
    let (there, back) = (scene.path("there"), scene.path("back"));
    let commands = format!(
        "put {0} {1}\nget {1} {2}\n",
        scene.path("big").display(),
        there.display(),
        back.display()
    );
    let run = openssh(scene, "sftp").args(["-b", "-", "peer"]);
    run.stdin(commands).run().expect_code(0);
    assert!(fs::read(&back).expect("it came back") == content);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    for file in [there, back] {
        fs::remove_file(file).expect("ours");
    }
}
