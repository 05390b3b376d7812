//! Ends of streams and broken connections: a broken connection is never passed on as an orderly
//! end.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_tests::Silent;
use rustix::process::Signal;
use testkit::{Seed, wait};

use crate::world::{Relay, SOON, both_ways, expect_all, expect_reset, fill, server};

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
}

#[test]
fn half_an_end_is_passed_on_and_the_other_way_goes_on() {
    let listener = server();
    let relay = Relay::to(&[], &listener);
    for swapped in [false, true] {
        let (client, server) = relay.pair(&listener);
        let (mut one, mut other) = if swapped {
            (server, client)
        } else {
            (client, server)
        };
        one.write_all(b"question").unwrap();
        one.shutdown(Shutdown::Write).unwrap();
        expect_all(&mut other, b"question");
        // The relay serves others before the answer comes.
        for _ in 0..20 {
            let (mut client, mut server) = relay.pair(&listener);
            both_ways(&mut client, &mut server, 1000);
        }
        let answer = Seed::new(3).bytes(5_000_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                other.write_all(&answer).unwrap();
                other.shutdown(Shutdown::Write).unwrap();
            });
            expect_all(&mut one, &answer);
        });
        let first = if swapped {
            "the server first"
        } else {
            "the client first"
        };
        relay.says(&format!("closed, {first}"));
    }
}

#[test]
fn an_end_comes_behind_the_last_byte_of_a_slow_reader() {
    let listener = server();
    let relay = Relay::to(&[], &listener);
    let (mut client, mut server) = relay.pair(&listener);
    let bytes = Seed::new(4).bytes(3_000_000);
    client.write_all(&bytes).unwrap();
    drop(client);
    server.shutdown(Shutdown::Write).unwrap();
    // The relay has filled the reader's socket and waits for it.
    let unread = || rustix::io::ioctl_fionread(&server).unwrap();
    let quiet = Duration::from_millis(100);
    let filled = wait::steady(quiet, SOON, unread).expect("it stops");
    assert!((1..3_000_000).contains(&filled), "{filled} bytes");
    expect_all(&mut server, &bytes);
}

#[test]
fn a_reset_is_a_reset_on_the_other_side() {
    let listener = server();
    let relay = Relay::to(&[], &listener);
    for swapped in [false, true] {
        let (client, server) = relay.pair(&listener);
        let (mut one, mut other) = if swapped {
            (server, client)
        } else {
            (client, server)
        };
        one.write_all(b"half of it").unwrap();
        let mut got = [0; 10];
        other.read_exact(&mut got).unwrap();
        reset(one);
        expect_reset(&mut other);
        let side = if swapped { "server" } else { "client" };
        relay.says(&format!("reset: the {side} broke the connection"));
    }
}

#[test]
fn a_reset_behind_half_an_end_is_one_too() {
    let listener = server();
    let relay = Relay::to(&[], &listener);
    let (client, mut server) = relay.pair(&listener);
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut server, b"");
    reset(client);
    // Nothing reads from the client any more; the kernel reports the reset nevertheless.
    wait::until(
        Duration::from_secs(5),
        || server.write(&[0; 1000]).is_err(),
        || "it still takes bytes".to_owned(),
    );
}

#[test]
fn a_reset_that_was_told_to_a_look_for_first_bytes_is_no_end() {
    let listener = server();
    let relay = Relay::to(&["--fastopen"], &listener);
    // The relay meets a client that has already left; the kernel reports that only once.
    relay.signal(Signal::STOP);
    reset(relay.connect());
    relay.signal(Signal::CONT);
    let log = relay.says("connection=");
    assert!(log.contains("reset: the client broke"), "{log}");
}

#[test]
fn a_reset_comes_through_a_reader_who_does_not_read() {
    let listener = server();
    let relay = Relay::to(&[], &listener);
    let (client, mut server) = relay.pair(&listener);
    fill(&client, Duration::from_millis(300));
    reset(client);
    relay.says("the client broke the connection");
    expect_reset(&mut server);
}

#[test]
fn what_a_server_said_before_it_broke_still_arrives() {
    let listener = server();
    let relay = Relay::to(&[], &listener);
    let (mut client, mut server) = relay.pair(&listener);
    // The relay must know that it is connected. A reset before that is a target that does not
    // answer, and the next target is tried.
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"too many failures").unwrap();
    reset(server);
    let mut got = [0; 17];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"too many failures");
    expect_reset(&mut client);
}

#[test]
fn a_relay_that_is_killed_is_a_reset_for_both() {
    for state in ["idle", "busy", "half"] {
        let listener = server();
        let relay = Relay::to(&[], &listener);
        let (mut client, mut server) = relay.pair(&listener);
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        match state {
            "busy" => {
                server.set_nonblocking(true).unwrap();
                while (&server).write(&[0; 65_536]).is_ok() {}
                server.set_nonblocking(false).unwrap();
            }
            "half" => {
                client.shutdown(Shutdown::Write).unwrap();
                expect_all(&mut server, b"");
            }
            _ => {}
        }
        relay.signal(Signal::KILL);
        expect_reset(&mut client);
        if state == "half" {
            // The relay has already read the end; further writes are refused.
            wait::until(
                Duration::from_secs(5),
                || server.write(b"x").is_err(),
                || "it still takes bytes".to_owned(),
            );
        } else {
            expect_reset(&mut server);
        }
    }
}

#[test]
fn nobody_there_is_a_reset_and_the_next_target_is_tried() {
    let gone = {
        let listener = server();
        listener.local_addr().unwrap().to_string()
    };
    let relay = Relay::start(&["127.0.0.1:0", &gone]);
    expect_reset(&mut relay.connect());
    let log = relay.says("cannot connect to the target");
    // Bug: "refused" with a client that nobody has refused.
    assert!(!log.contains("refused: "), "{log}");
    assert!(
        log.contains(&format!("the target {gone}: connection refused")),
        "{log}"
    );

    let listener = server();
    let second = listener.local_addr().unwrap().to_string();
    let relay = Relay::start(&["127.0.0.1:0", &gone, &second]);
    for _ in 0..3 {
        let (mut client, server) = relay.pair(&listener);
        drop(server);
        expect_all(&mut client, b"");
    }
}

#[test]
fn whoever_does_not_answer_is_given_up_in_time() {
    let silent = Silent::start();
    let listener = server();
    let first = format!("127.0.0.1:{}", silent.port());
    let second = listener.local_addr().unwrap().to_string();
    let limit = Duration::from_secs(2);
    let relay = Relay::start(&["--connect-timeout", "2s", "127.0.0.1:0", &first, &second]);
    let begun = Instant::now();
    let (mut client, server) = relay.pair(&listener);
    assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
    drop(server);
    expect_all(&mut client, b"");
    // A failed target is not tried again at once, which would take as long.
    let begun = Instant::now();
    let _pair = relay.pair(&listener);
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
}

#[test]
fn a_client_who_gives_up_is_not_connected_for() {
    let silent = Silent::start();
    let to = format!("127.0.0.1:{}", silent.port());
    let relay = Relay::start(&["--connect-timeout", "20s", "127.0.0.1:0", &to]);
    let client = relay.connect();
    // The kernel lists the relay's connection to the server as one without an answer (SYN_SENT).
    let awaits_answer = format!(":{:04X} 02", silent.port());
    let connects = || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        sockets.contains(&awaits_answer)
    };
    wait::until(SOON, connects, || "it does not connect".to_owned());
    reset(client);
    relay.says("the client broke the connection");
}

/// Sends bytes with a pause of a tenth of a second before each, for `time` at least. Nothing may
/// happen to the connection in a pause. Returns the time of the last byte.
fn trickle(from: &mut TcpStream, to: &mut TcpStream, time: Duration) -> Instant {
    let begun = Instant::now();
    loop {
        let pause = Duration::from_millis(100);
        assert!(!wait::readable(&*to, pause), "the connection has ended");
        let sent = Instant::now();
        from.write_all(b"x").unwrap();
        to.read_exact(&mut [0]).unwrap();
        if begun.elapsed() > time {
            return sent;
        }
    }
}

#[test]
fn idleness_ends_what_does_not_move_and_nothing_else() {
    let limit = Duration::from_secs(1);
    let listener = server();
    let relay = Relay::to(&["--idle-timeout", "1s"], &listener);
    let (mut client, mut server) = relay.pair(&listener);
    let moved = trickle(&mut server, &mut client, limit);
    expect_reset(&mut client);
    expect_reset(&mut server);
    let took = moved.elapsed();
    assert!((limit..10 * limit).contains(&took), "{took:?}");
    relay.says("nothing moved for 1 s");
}

#[test]
fn half_a_connection_ends_when_it_does_not_move() {
    let listener = server();
    let relay = Relay::to(&["--half-timeout", "1s"], &listener);
    let (_open, _ends) = relay.pair(&listener);
    let (mut client, mut server) = relay.pair(&listener);
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut server, b"");
    trickle(&mut server, &mut client, Duration::from_secs(1));
    expect_reset(&mut client);
    let log = relay.says("nothing moved");
    assert_eq!(log.matches("nothing moved").count(), 1, "{log}");
}

#[test]
fn sigterm_lets_those_who_are_there_end() {
    let listener = server();
    let mut relay = Relay::to(&[], &listener);
    let (mut client, mut server) = relay.pair(&listener);
    let at = relay.address();
    relay.signal(Signal::TERM);
    relay.says("shutting down: no new connections");
    assert!(TcpStream::connect(at).is_err());
    client.write_all(b"still there").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut server, b"still there");
    assert!(relay.is_there());
    drop(server);
    expect_all(&mut client, b"");
    assert_eq!(relay.ends(), Some(0));
}
