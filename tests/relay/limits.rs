//! Limits of a relay: clients, connections, and rates.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use longhaul_tests::longhaul;
use testkit::Run;

use crate::world::{Relay, accept, expect_all, expect_reset, server};

fn refused(words: &[&str]) -> String {
    let outcome = Run::new(longhaul()).arg("relay").args(words).run();
    outcome.expect_code(2).err()
}

#[test]
fn an_entrance_for_other_machines_needs_to_say_for_whom() {
    for at in [":0", "*:0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let error = refused(&[at, "localhost:22"]);
        assert!(error.contains("--allow"), "{at}: {error}");
    }
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let relay = Relay::start(&["0.0.0.0:0", &to, "--allow", "127.0.0.0/8", "--allow", "::1"]);
    let port = relay.address().port();
    let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    drop((client, accept(&listener)));
    relay.says("closed");
}

#[test]
fn whoever_is_not_allowed_is_reset() {
    let listener = server();
    let relay = Relay::to(&["--allow", "192.0.2.0/24"], &listener);
    expect_reset(&mut relay.connect());
    let log = relay.says("refused: ");
    assert!(log.contains("the address is not in --allow"), "{log}");
}

#[test]
fn a_relay_does_not_connect_to_itself() {
    let taken = server();
    let port = taken.local_addr().unwrap().port().to_string();
    drop(taken);
    for to in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        port.clone(),
    ] {
        let relay = Relay::start(&[&port, &to]);
        expect_reset(&mut relay.connect());
        let log = relay.says("would be a loop");
        assert_eq!(log.lines().count(), 1, "{log}");
    }
    let everywhere = format!("127.0.0.1:{port}");
    let allow = ["--allow", "127.0.0.0/8"];
    let relay = Relay::start(
        &[
            &[&*format!("0.0.0.0:{port}"), "127.1.2.3:1", &everywhere],
            &allow[..],
        ]
        .concat(),
    );
    let mut client = std::net::TcpStream::connect(&everywhere).unwrap();
    expect_reset(&mut client);
    relay.says("would be a loop");
}

#[test]
fn no_more_come_in_than_may() {
    for (flags, word) in [
        (["--max-connections", "3"], "--max-connections"),
        (["--max-per-source", "3"], "--max-per-source"),
    ] {
        let listener = server();
        let relay = Relay::to(&flags, &listener);
        let mut pairs: Vec<_> = (0..3).map(|_| relay.pair(&listener)).collect();
        expect_reset(&mut relay.connect());
        relay.says(word);
        let (mut client, server) = pairs.pop().unwrap();
        drop(server);
        client.shutdown(Shutdown::Write).unwrap();
        expect_all(&mut client, b"");
        relay.says("closed");
        let (mut client, mut server) = relay.pair(&listener);
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn rates_are_kept() {
    let listener = server();
    for (flags, connections) in [
        (["--rate", "4MB"], 1_usize),
        (["--rate-all", "4MB"], 1),
        (["--rate-all", "4MB"], 4),
    ] {
        let relay = Relay::to(&flags, &listener);
        let bytes = 4_000_000 / connections;
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..connections {
                let (mut client, mut server) = relay.pair(&listener);
                scope.spawn(move || {
                    client.write_all(&vec![7; bytes]).unwrap();
                    client.shutdown(Shutdown::Write).unwrap();
                });
                scope.spawn(move || expect_all(&mut server, &vec![7; bytes]));
            }
        });
        let took = begun.elapsed();
        let second = Duration::from_millis(900)..Duration::from_millis(1800);
        assert!(second.contains(&took), "{flags:?} {connections}: {took:?}");
    }
}

#[test]
fn what_makes_no_sense_is_said() {
    for (words, word) in [
        (&[][..], "no LISTEN and TARGET"),
        (&["9022"], "TARGET"),
        (
            &["nonsense", "h:22"],
            "'nonsense' is neither a port (0 to 65535) nor HOST:PORT",
        ),
        (
            &["9022", "h"],
            "'h' is neither a port (1 to 65535) nor HOST:PORT",
        ),
        (
            &["9022", "h:22", "--sockopt", "buffsize:1q"],
            "--sockopt: 'buffsize:1q'",
        ),
        (
            &["99999", "h:22"],
            "'99999' is neither a port (0 to 65535) nor HOST:PORT",
        ),
        (&["9022", "h:65536"], "65536 is not a port (1 to 65535)"),
        (&["9022", "h:22", "--sockopt", "noshut"], "noshut"),
        (&["9022", "h:22", "--allow", "here"], "--allow"),
        (
            &["9022", "h:22", "--congestion", "none-such"],
            "--congestion",
        ),
        (&["9022", "h:22", "--keepalive", "1/2"], "--keepalive"),
        (&["9022", "h:22", "--rate", "fast"], "--rate"),
        (&["9022", "h:22/nonsense"], "nonsense"),
    ] {
        let error = refused(words);
        assert!(error.contains(word), "{words:?}: {error}");
    }
}

#[test]
fn buffers_that_do_harm_are_warned_of() {
    let listener = server();
    let relay = Relay::to(&["--sockopt", "buffsize:1000000kic"], &listener);
    let log = relay.says("net.core.rmem_max");
    assert!(log.contains("WARN"), "{log}");
}
