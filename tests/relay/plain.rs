//! Relaying of bytes in both directions.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use longhaul_tests::processes;
use testkit::Seed;

use crate::world::{Relay, both_ways, expect_all, fill, server};

/// Sends `bytes` each way at once, and then ends both streams.
fn there_and_back(flags: &[&str], bytes: usize) {
    let listener = server();
    let relay = Relay::to(flags, &listener);
    let (mut client, mut server) = relay.pair(&listener);
    both_ways(&mut client, &mut server, bytes);
    let log = relay.says("closed, ");
    assert!(log.contains(&format!("up={bytes} down={bytes}")), "{log}");
}

#[test]
fn bytes_come_out_as_they_went_in_both_ways_at_once() {
    there_and_back(&[], 60_000_000);
    there_and_back(&["--threads", "1"], 20_000_000);
}

#[test]
fn bytes_come_out_as_they_went_in_whatever_the_buffer() {
    for (buffer, bytes) in [
        ("1", 100_000),
        ("7", 500_000),
        ("512", 1_200_000),
        ("5000", 3_000_000),
        ("20k", 9_000_000),
    ] {
        there_and_back(&["--buffer", buffer], bytes);
    }
}

#[test]
fn small_kernel_buffers_make_it_wait_and_lose_nothing() {
    there_and_back(&["--sockopt", "buffsize:4k", "--buffer", "1000"], 2_000_000);
    there_and_back(&["--sockopt", "buffsize:4k"], 2_000_000);
}

#[test]
fn a_message_is_passed_on_at_once() {
    let listener = server();
    for flags in [&[][..], &["--buffer", "1"]] {
        let relay = Relay::to(flags, &listener);
        let (mut client, mut server) = relay.pair(&listener);
        let begun = Instant::now();
        for n in 0..200_u32 {
            let message = [n.to_be_bytes(); 16].concat();
            client.write_all(&message).unwrap();
            let mut got = [0; 64];
            server.read_exact(&mut got).unwrap();
            assert_eq!(got.as_slice(), message);
            server.write_all(&got[..7]).unwrap();
            client.read_exact(&mut got[..7]).unwrap();
        }
        // Each one would wait 40 ms for an acknowledgement, or 200 ms for more of its segment.
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn a_thousand_connections_at_once_do_not_mix() {
    // The backlog has room for all of them: the kernel would drop the rest and retry after a
    // second.
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(1000).unwrap();
    let listener = std::net::TcpListener::from(listener);
    let relay = Relay::to(&[], &listener);
    let echo = thread::spawn(move || {
        let mut echoes = Vec::new();
        for _ in 0..1000 {
            let (mut stream, _) = listener.accept().unwrap();
            // A thread's stack takes only the pages that it touches.
            echoes.push(thread::spawn(move || {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                stream.write_all(&all).unwrap();
            }));
        }
        for echo in echoes {
            echo.join().unwrap();
        }
    });
    let mut clients: Vec<_> = (0..1000).map(|_| relay.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let bytes = Seed::new(n as u64).bytes(1000 + n * 10);
        client.write_all(&bytes).unwrap();
    }
    for (n, client) in clients.iter_mut().enumerate() {
        client.shutdown(Shutdown::Write).unwrap();
        let bytes = Seed::new(n as u64).bytes(1000 + n * 10);
        expect_all(client, &bytes);
    }
    echo.join().unwrap();
}

#[test]
fn urgent_bytes_stay_where_they_are() {
    let listener = server();
    let relay = Relay::to(&[], &listener);
    let (client, mut server) = relay.pair(&listener);
    let mut expected = Vec::new();
    for n in 0..20_u8 {
        let bulk = Seed::new(n.into()).bytes(usize::from(n) * 20_000);
        (&client).write_all(&bulk).unwrap();
        expected.extend_from_slice(&bulk);
        let flags = rustix::net::SendFlags::OOB;
        rustix::net::send(&client, &[n], flags).unwrap();
        expected.push(n);
        // Urgent data arrives in the middle of other data, and alone.
        if n % 3 == 0 {
            let mut got = vec![0; expected.len()];
            server.read_exact(&mut got).unwrap();
            assert!(got == expected, "{n}");
            expected.clear();
        }
    }
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut server, &expected);
}

/// Returns the number of bytes that a client can send to a reader that does not read.
fn taken(relay: &Relay, listener: &std::net::TcpListener) -> usize {
    let (client, server) = relay.pair(listener);
    socket2::SockRef::from(&client)
        .set_send_buffer_size(16_384)
        .unwrap();
    socket2::SockRef::from(&server)
        .set_recv_buffer_size(16_384)
        .unwrap();
    fill(&client, Duration::from_millis(500))
}

#[test]
fn a_reader_who_does_not_read_makes_it_hold_no_more_than_it_was_told() {
    let listener = server();
    let kernel = ["--sockopt", "buffsize:16k"];
    let with = |buffer| {
        let relay = Relay::to(&[&kernel[..], &["--buffer", buffer]].concat(), &listener);
        let before = processes::memory(relay.pid(), "Private_Dirty:");
        let taken = taken(&relay, &listener);
        let grown = processes::memory(relay.pid(), "Private_Dirty:").saturating_sub(before);
        assert!(grown < 1 << 20, "{grown}");
        taken
    };
    // The kernel's own buffers vary from run to run by less than that.
    let (little, much) = (with("1"), with("1MiB"));
    assert!(little < 600_000, "{little}");
    assert!(
        much > little && much < little + (1 << 20) + 300_000,
        "{little} {much}"
    );
}

#[test]
fn an_idle_connection_costs_little() {
    const MANY: usize = 2000;
    let listener = server();
    let relay = Relay::to(&["--threads", "1", "-q"], &listener);
    // The first connection allocates what all of them share.
    let mut streams = vec![relay.pair(&listener)];
    let talk = |(client, server): &mut (std::net::TcpStream, std::net::TcpStream)| {
        client.write_all(&[1; 50_000]).unwrap();
        server.read_exact(&mut [0; 50_000]).unwrap();
    };
    talk(&mut streams[0]);
    let before = processes::memory(relay.pid(), "Private_Dirty:");
    for _ in 0..MANY {
        let mut pair = relay.pair(&listener);
        talk(&mut pair);
        streams.push(pair);
    }
    let after = processes::memory(relay.pid(), "Private_Dirty:");
    let each = after.saturating_sub(before) / MANY as u64;
    println!("{each} bytes for each idle connection");
    assert!((1..8 << 10).contains(&each), "{before} {after}");
}

/// Relays work with --mptcp. Multipath TCP sockets refuse SO_OOBINLINE, which made every such relay
/// fail.
#[test]
fn multipath_tcp_is_relayed() {
    let listener = server();
    let relay = Relay::to(&["--mptcp"], &listener);
    let (mut client, mut server) = relay.pair(&listener);
    let bytes = Seed::new(9).bytes(300_000);
    client.write_all(&bytes[..1000]).unwrap();
    server.read_exact(&mut [0; 1000]).unwrap();
    server.write_all(&bytes).unwrap();
    drop(server);
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut client, &bytes);
}
