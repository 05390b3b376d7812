//! Listeners other than ports: UNIX sockets, and standard streams.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use longhaul_tests::longhaul;
use rustix::process::Signal;
use testkit::{Run, Seed};

use crate::world::{Relay, SOON, accept, expect_all, server};

#[test]
fn unix_sockets_at_either_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.sock").display().to_string();
    let there = folder.path().join("out.sock");
    let listener = UnixListener::bind(&there).unwrap();
    // A socket file without a listener is replaced.
    drop(UnixListener::bind(&path).unwrap());
    let mut relay = Relay::start(&[
        &format!("unix:{path}"),
        &format!("unix:{}", there.display()),
    ]);
    let mut client = UnixStream::connect(&path).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(SOON)).unwrap();
    }
    let bytes = Seed::new(9).bytes(3_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let mut found = Vec::new();
        server.read_to_end(&mut found).unwrap();
        assert!(found == bytes);
    });
    server.write_all(b"and back").unwrap();
    drop(server);
    let mut back = String::new();
    client.read_to_string(&mut back).unwrap();
    assert_eq!(back, "and back");
    relay.signal(Signal::TERM);
    assert_eq!(relay.ends(), Some(0));
    assert!(!std::path::Path::new(&path).exists());
}

#[test]
fn a_socket_that_somebody_listens_at_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let at = format!("unix:{}", path.display());
    let outcome = Run::new(longhaul())
        .args(["relay", &at, "localhost:22"])
        .run();
    outcome.expect_code(1).expect_err(&["in use"]);
}

#[test]
fn standard_streams_are_an_entrance() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let bytes = Seed::new(10).bytes(2_000_000);
    let server = std::thread::spawn(move || {
        let mut stream = accept(&listener);
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    let run = Run::new(longhaul())
        .args(["relay", "-", &to])
        .stdin(bytes.clone());
    let outcome = run.run().expect_code(0);
    server.join().unwrap();
    assert!(
        outcome.stdout == bytes && outcome.stderr.is_empty(),
        "{}",
        outcome.err()
    );
}

#[test]
fn files_are_standard_streams_too() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let bytes = Seed::new(11).bytes(1_000_000);
    let (from, into) = (folder.path().join("from"), folder.path().join("into"));
    std::fs::write(&from, &bytes).unwrap();
    let mut child = Command::new(longhaul())
        .args(["relay", "-", &to])
        .stdin(std::fs::File::open(&from).unwrap())
        .stdout(std::fs::File::create(&into).unwrap())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut stream = accept(&listener);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert!(all == bytes);
    stream.write_all(&all).unwrap();
    drop(stream);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(std::fs::read(&into).unwrap() == bytes);
}

#[test]
fn a_connection_of_standard_streams_that_breaks_is_an_error() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let mut command = Command::new(longhaul());
    command
        .args(["relay", "-", &to])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stream = accept(&listener);
    // If the stream breaks before the relay has handled it, the relay takes it for refused.
    stream.write_all(b"x").unwrap();
    let said = child.stdout.as_mut().unwrap();
    said.read_exact(&mut [0]).unwrap();
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("the server broke the connection"), "{error}");
}

#[test]
fn both_families_of_this_machine_are_entrances() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let relay = Relay::start(&["0", &to]);
    for at in &relay.listening {
        let mut client = std::net::TcpStream::connect(at).unwrap();
        drop(accept(&listener));
        expect_all(&mut client, b"");
    }
    let ports: Vec<_> = relay
        .listening
        .iter()
        .filter_map(|at| at.rsplit_once(':'))
        .collect();
    assert_eq!(ports[0].1, ports[1].1);
}
