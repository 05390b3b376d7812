//! Operation of a relay: configuration, signals, successors, systemd.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_tests::longhaul;
use rustix::process::Signal;
use testkit::background_process::BackgroundProcess;
use testkit::tree::write_file;
use testkit::{Run, missing, port, wait};

use crate::tls::certificates;
use crate::world::{Relay, SOON, accept, bounded, expect_all, expect_reset, server};

/// Configuration file of relays, in a folder of its own.
struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = Self { folder };
        file.says(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("relay.toml")
    }

    fn says(&self, text: &str) {
        write_file(&self.path(), text.as_bytes());
    }
}

/// Returns the configuration of a relay from this port to this listener.
fn row(port: u16, listener: &TcpListener, more: &str) -> String {
    let to = listener.local_addr().unwrap();
    format!("[[relay]]\nlisten = \"127.0.0.1:{port}\"\ntargets = \"{to}\"\n{more}\n")
}

fn connect(port: u16) -> TcpStream {
    bounded(TcpStream::connect(("127.0.0.1", port)).expect("it listens"))
}

fn pair(port: u16, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = connect(port);
    (client, accept(listener))
}

#[track_caller]
fn passes(client: &mut TcpStream, server: &mut TcpStream) {
    let mut byte = [0];
    client.write_all(b"x").unwrap();
    server.read_exact(&mut byte).unwrap();
    server.write_all(b"y").unwrap();
    client.read_exact(&mut byte).unwrap();
}

fn closes(mut client: TcpStream, mut server: TcpStream) {
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut server, b"");
    drop(server);
    expect_all(&mut client, b"");
}

#[test]
fn check_tells_each_mistake_with_its_line() {
    let file = File::new("[[relay]]\nlisten = \"9022\"\ntargets = [\"a:22\", \"b:22\"]\n");
    let check = || {
        let run = Run::new(longhaul()).args(["relay", "check"]);
        run.arg(file.path()).run()
    };
    check().expect_code(0);
    let name = file.path().display().to_string();
    file.says(
        "bufer = 1\n[[relay]]\nlisten = \"9022\"\n[[relay]]\nlisten = \"*:1\"\ntargets = \"h:2\"\n",
    );
    let outcome = check().expect_code(1);
    outcome.expect_err(&[
        &format!("{name}:1: unknown option `bufer`"),
        &format!("{name}:2: where connections go is needed"),
        &format!("{name}:4: *:1: would relay for anybody"),
    ]);
    let run = Run::new(longhaul()).args(["relay", "--config", &name]);
    let outcome = run.run().expect_code(1);
    outcome.expect_err(&[&format!("{name}:1: unknown option `bufer`")]);
    fs::remove_file(file.path()).unwrap();
    check().expect_code(1).expect_err(&["No such file"]);
    let packaged = missing::checkout().join("packaging/relay.toml");
    let run = Run::new(longhaul()).args(["relay", "check"]).arg(packaged);
    run.run().expect_code(0);
    for (words, word) in [
        (
            &["relay", "--config", "x", "9022", "h:1"][..],
            "cannot be combined with --config",
        ),
        (
            &["relay", "--config", "x", "--buffer", "1k"],
            "--buffer cannot be combined with --config",
        ),
        (
            &["relay", "9022", "h:1", "--status", "0.0.0.0:1"],
            "needs a loopback address",
        ),
        (
            &["relay", "9022", "h:1", "--metrics", "192.0.2.1:1"],
            "needs a loopback address",
        ),
    ] {
        let outcome = Run::new(longhaul()).args(words.iter().copied()).run();
        outcome.expect_code(2).expect_err(&[word]);
    }
}

#[test]
fn hangup_changes_relays_and_disturbs_nobody() {
    let [kept, changed, removed, new] = [(); 4].map(|()| port::free());
    let (one, other) = (server(), server());
    let file = File::new(
        &[
            row(kept, &one, ""),
            row(changed, &one, ""),
            row(removed, &one, ""),
        ]
        .concat(),
    );
    let relay = Relay::start(&["--config", &file.path().display().to_string()]);
    let mut pairs: Vec<_> = [kept, changed, removed].map(|port| pair(port, &one)).into();
    // Changes the target, and the options of the listener.
    file.says(
        &[
            row(kept, &one, ""),
            row(changed, &other, "mptcp = true\nsockopt = \"buffsize:64k\""),
            row(new, &other, ""),
        ]
        .concat(),
    );
    relay.signal(Signal::HUP);
    relay.says("reloaded");
    for (client, server) in &mut pairs {
        passes(client, server);
    }
    assert!(TcpStream::connect(("127.0.0.1", removed)).is_err());
    pairs.push(pair(kept, &one));
    pairs.push(pair(changed, &other));
    pairs.push(pair(new, &other));
    // Neither an invalid configuration nor one that cannot be applied changes anything.
    let taken = server();
    let taken_port = taken.local_addr().unwrap().port();
    for (text, why) in [
        (row(kept, &one, "buffer = 0"), "buffer: '0'"),
        (
            row(new, &one, "") + &row(taken_port, &one, ""),
            "cannot listen on",
        ),
    ] {
        file.says(&text);
        relay.signal(Signal::HUP);
        let log = relay.says(why);
        assert!(
            log.contains("the previous configuration stays in use"),
            "{log}"
        );
    }
    pairs.push(pair(kept, &one));
    pairs.push(pair(new, &other));
    for (mut client, mut server) in pairs {
        passes(&mut client, &mut server);
        closes(client, server);
    }
}

/// Clients that wait at a socket being replaced are served.
#[test]
fn nobody_is_turned_away_while_relays_change() {
    let (at, listener) = (port::free(), server());
    let [buffer, other] = ["64k", "32k"].map(|size| format!("sockopt = \"buffsize:{size}\""));
    let rows = ["", &buffer, "mptcp = true", &other].map(|more| row(at, &listener, more));
    let file = File::new(&rows[0]);
    let relay = Relay::start(&["--config", &file.path().display().to_string()]);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut served = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let (mut client, mut server) = pair(at, &listener);
                passes(&mut client, &mut server);
                closes(client, server);
                served += 1;
            }
            served
        });
        for nth in 1..=20 {
            file.says(&rows[nth % rows.len()]);
            relay.signal(Signal::HUP);
            wait::until(
                SOON,
                || relay.log().matches("reloaded").count() >= nth,
                || relay.log(),
            );
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(clients.join().unwrap() > 0);
    });
}

#[test]
fn keys_and_certificates_that_change_are_read_again() {
    let Some(made) = certificates() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str| {
        for kind in ["key", "pem"] {
            let to = folder.path().join(format!("own.{kind}"));
            fs::copy(made.path(&format!("{name}.{kind}")), to).unwrap();
        }
    };
    put("alice");
    let own = |kind: &str| {
        folder
            .path()
            .join(format!("own.{kind}"))
            .display()
            .to_string()
    };
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let (key, cert) = (own("key"), own("pem"));
    let words = ["127.0.0.1:0/tls", &to, "--key", &key, "--cert", &cert];
    let decrypts = Relay::start(&words);
    let there = format!("localhost:{}/tls", decrypts.address().port());
    let encrypts = Relay::start(&["127.0.0.1:0", &there, "--ca", &made.path("ca.pem")]);
    // The certificate is for alice and not for localhost.
    expect_reset(&mut encrypts.connect());
    put("server");
    decrypts.says("reloaded");
    let (mut client, mut server) = encrypts.pair(&listener);
    passes(&mut client, &mut server);
    // A key that does not match the certificate is rejected.
    fs::copy(made.path("bob.key"), own("key")).unwrap();
    decrypts.says("the previous configuration stays in use");
    let (mut again, mut there) = encrypts.pair(&listener);
    passes(&mut again, &mut there);
    passes(&mut client, &mut server);
}

#[test]
fn a_successor_takes_the_sockets_over_and_nobody_is_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let (at, listener) = (port::free(), server());
    let socket = folder.path().join("unix").display().to_string();
    let path = folder.path().join("handover").display().to_string();
    let target = listener.local_addr().unwrap();
    let file = File::new(&format!(
        "handover = \"{path}\"\nstatus = \"127.0.0.1:{}\"\n{}[[relay]]\nlisten = \"unix:{socket}\"\n\
         targets = \"{target}\"\n",
        port::free(),
        row(at, &listener, "")
    ));
    let config = file.path().display().to_string();
    let words = ["--config", &config];
    let mut relays = vec![Relay::start(&words)];
    let (mut early, mut early_server) = pair(at, &listener);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut served = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let (mut client, mut server) = pair(at, &listener);
                passes(&mut client, &mut server);
                closes(client, server);
                served += 1;
            }
            served
        });
        for _ in 0..3 {
            let next = Relay::start(&words);
            relays
                .last()
                .unwrap()
                .says("handed the listening sockets over");
            relays.push(next);
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(clients.join().unwrap() > 0);
    });
    // The first relay continues for its connected client; the others have no clients, and end.
    passes(&mut early, &mut early_server);
    assert!(relays[0].is_there());
    for relay in &mut relays[1..3] {
        assert_eq!(relay.ends(), Some(0));
    }
    closes(early, early_server);
    assert_eq!(relays[0].ends(), Some(0));
    let log = relays[3].log();
    assert!(!log.contains("WARN"), "{log}");
    // The last relay owns the UNIX sockets.
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let mut server = accept(&listener);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    relays[3].signal(Signal::TERM);
    relays[3].says("shutting down: no new connections");
    drop((client, server));
    assert_eq!(relays[3].ends(), Some(0));
    for path in [&socket, &path] {
        assert!(!Path::new(path).exists(), "{path}");
    }
}

/// A predecessor that ends during the handover does not stop its successor.
#[test]
fn a_successor_goes_on_when_its_predecessor_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover");
    let waits = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let predecessor = std::thread::spawn({
        let path = path.clone();
        move || {
            let (mut successor, _) = waits.accept().unwrap();
            // The predecessor hands over no sockets.
            successor.write_all(&[0; 4]).unwrap();
            successor.read_exact(&mut [0]).unwrap();
            fs::remove_file(path).unwrap();
            drop((successor, waits));
        }
    });
    let listener = server();
    let relay = Relay::to(&["--handover", &path.display().to_string()], &listener);
    predecessor.join().unwrap();
    let (mut client, mut server) = relay.pair(&listener);
    passes(&mut client, &mut server);
}

/// Bug: "--handover PATH: no such file or directory", for a file that the relay creates.
#[test]
fn a_missing_directory_of_the_handover_socket_was_not_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/handover").display().to_string();
    let run = Run::new(longhaul()).arg("relay");
    let run = run.args(["--handover", &path, "127.0.0.1:0", "127.0.0.1:9"]);
    let said = format!(
        "cannot create the handover socket {path} (--handover): its directory does not exist: \
         create it"
    );
    run.run().expect_code(1).expect_err(&[&said]);
}

#[test]
fn who_does_not_end_is_cut_off_in_time() {
    let listener = server();
    let mut relay = Relay::to(&["--drain-timeout", "300ms"], &listener);
    let (mut client, mut server) = relay.pair(&listener);
    passes(&mut client, &mut server);
    relay.signal(Signal::TERM);
    expect_reset(&mut client);
    expect_reset(&mut server);
    assert_eq!(relay.ends(), Some(0));
    relay.says("--drain-timeout has passed");
}

#[test]
fn a_target_that_is_looked_after_is_known_to_be_dead() {
    let at = port::free();
    let dead = format!("127.0.0.1:{at}");
    let listener = server();
    let second = listener.local_addr().unwrap().to_string();
    let relay = Relay::start(&["--health", "100ms", "127.0.0.1:0", &dead, &second]);
    relay.says("does not answer");
    // No client had to wait before the failure was noticed; once the first target answers, it is
    // preferred again.
    let first = TcpListener::bind(&dead).unwrap();
    relay.says("answers again");
    let until = Instant::now() + SOON;
    let _client = relay.connect();
    first.set_nonblocking(true).unwrap();
    // Besides the connections of health checks.
    let mut met = Vec::new();
    let stays = |stream: &mut TcpStream| {
        let peeked = stream.peek(&mut [0]);
        peeked.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    };
    while !met.iter_mut().any(stays) {
        assert!(Instant::now() < until, "nobody stays");
        if let Ok((stream, _)) = first.accept() {
            stream
                .set_read_timeout(Some(Duration::from_millis(100)))
                .unwrap();
            met.push(stream);
        }
    }
}

#[test]
fn sockets_of_systemds_are_served_and_systemd_is_told() {
    let Some(activate) = missing::find_program("systemd-socket-activate") else {
        missing::not_here("systemd-socket-activate is not installed");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("notify");
    let systemd = UnixDatagram::bind(&told).unwrap();
    systemd.set_read_timeout(Some(SOON)).unwrap();
    let (listener, own) = (server(), port::free());
    let [one, other] = [(); 2].map(|()| port::free());
    let rows = [one, other, own].map(|port| row(port, &listener, ""));
    let file = File::new(&rows.concat());
    let start = |file: &File, log: &str| {
        let mut command = std::process::Command::new(&activate);
        for port in [one, other] {
            command.args(["-l", &format!("127.0.0.1:{port}")]);
        }
        command.args(["-E", &format!("NOTIFY_SOCKET={}", told.display())]);
        command
            .arg(longhaul())
            .args(["relay", "--config"])
            .arg(file.path());
        BackgroundProcess::start("longhaul", command, &folder.path().join(log)).unwrap()
    };
    let hears = |what: &str| {
        let mut said = [0; 512];
        let n = systemd.recv(&mut said).expect("systemd is told");
        let said = String::from_utf8_lossy(&said[..n]).into_owned();
        assert!(said.starts_with(what), "{said}");
    };
    let mut relay = start(&file, "log");
    let client = wait_and_connect(one);
    let first = (client, accept(&listener));
    hears("READY=1");
    let mut pairs = vec![first, pair(other, &listener), pair(own, &listener)];
    let pid = rustix::process::Pid::from_raw(relay.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    hears("RELOADING=1\nMONOTONIC_USEC=");
    hears("READY=1");
    for (client, server) in &mut pairs {
        passes(client, server);
    }
    relay.terminate();
    hears("STOPPING=1");
    pairs
        .into_iter()
        .for_each(|(client, server)| closes(client, server));
    assert_eq!(relay.ends_within(Duration::from_secs(20)), Some(0));
    // A socket for which no relay is configured is an error.
    file.says(&row(one, &listener, ""));
    let mut relay = start(&file, "log2");
    let _client = wait_and_connect(one);
    assert_eq!(relay.ends_within(Duration::from_secs(20)), Some(1));
    assert!(
        relay
            .log()
            .contains("no relay is configured for the inherited socket"),
        "{}",
        relay.log()
    );
}

/// systemd's program listens a moment after it was started.
fn wait_and_connect(port: u16) -> TcpStream {
    let stream = wait::found(
        SOON,
        || TcpStream::connect(("127.0.0.1", port)).ok(),
        || format!("nothing listens at {port}"),
    );
    bounded(stream)
}
