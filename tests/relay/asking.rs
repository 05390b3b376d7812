//! Clients that send something before their payload: PROXY headers, SOCKS and HTTP requests.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use testkit::wait;

use crate::pair;
use crate::space::Space;
use crate::world::{Relay, SOON, accept, expect_all, expect_reset, expect_reset_at, server};

fn with(word: &str, to: &TcpListener, flags: &[&str]) -> Relay {
    let permit = to.local_addr().unwrap().to_string();
    let entrance = format!("127.0.0.1:0/{word}");
    Relay::start(&[&[&*entrance, "--to", &permit], flags].concat())
}

/// Sends bytes in two pieces, cut at `at`.
fn cut(client: &mut TcpStream, bytes: &[u8], at: usize) {
    client.set_nodelay(true).unwrap();
    client.write_all(&bytes[..at]).unwrap();
    // The relay reads the first piece by itself.
    assert!(
        wait::taken(client, SOON),
        "the first {at} bytes stay unread"
    );
    client.write_all(&bytes[at..]).unwrap();
}

#[test]
fn socks_requests_cut_at_each_byte() {
    let listener = server();
    let relay = with("socks5", &listener, &[]);
    let port = listener.local_addr().unwrap().port().to_be_bytes();
    let request = [
        &[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..],
        &port,
        b"SSH-2.0-early",
    ]
    .concat();
    for at in 0..request.len() {
        let mut client = relay.connect();
        cut(&mut client, &request, at);
        let mut server = accept(&listener);
        let mut got = [0; 13];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"SSH-2.0-early");
        server.write_all(b"welcome").unwrap();
        drop(server);
        client.shutdown(Shutdown::Write).unwrap();
        expect_all(
            &mut client,
            &[&[5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"welcome"].concat(),
        );
    }
    let log = relay.says("up=13 down=7");
    assert!(!log.contains("reset"), "{log}");
}

#[test]
fn socks_requests_that_may_not_be() {
    let listener = server();
    let relay = with("socks5", &listener, &[]);
    for (request, reply) in [
        (
            &[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 2, 0, 22][..],
            &[5, 0, 5, 2][..],
        ),
        (&[5, 1, 0, 5, 2, 0, 1, 127, 0, 0, 1, 0, 22], &[5, 0, 5, 7]),
        (&[5, 1, 2], &[5, 0xff]),
    ] {
        let mut client = relay.connect();
        client.write_all(request).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got.starts_with(reply), "{got:?}");
    }
    relay.says("127.0.0.2:22 is not permitted by --to");
    let gone = server();
    let permit = gone.local_addr().unwrap().to_string();
    let port = gone.local_addr().unwrap().port().to_be_bytes();
    drop(gone);
    let relay = Relay::start(&["127.0.0.1:0/socks5", "--to", &permit]);
    let mut client = relay.connect();
    client
        .write_all(&[&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &port].concat())
        .unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got[..4], [5, 0, 5, 4]);
}

#[test]
fn http_connects_cut_at_each_byte() {
    let listener = server();
    let relay = with("http", &listener, &[]);
    let at = listener.local_addr().unwrap();
    let request = format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\nearly").into_bytes();
    for at in 0..request.len() {
        let mut client = relay.connect();
        cut(&mut client, &request, at);
        let mut server = accept(&listener);
        let mut got = [0; 5];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"early");
        drop(server);
        client.shutdown(Shutdown::Write).unwrap();
        expect_all(&mut client, b"HTTP/1.1 200 Connection established\r\n\r\n");
    }
    for (line, status) in [
        ("GET / HTTP/1.1", "405"),
        ("CONNECT h:1 HTTP/1.1", "403"),
        ("CONNECT h HTTP/1.1", "400"),
    ] {
        let mut client = relay.connect();
        client
            .write_all(format!("{line}\r\n\r\n").as_bytes())
            .unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{got}");
    }
}

#[test]
fn a_star_leads_to_no_address_of_this_machine() {
    let listener = server();
    let port = listener.local_addr().unwrap().port();
    let permit = format!("*:{port}");
    let relay = Relay::start(&["127.0.0.1:0/http", "--to", &permit]);
    for (host, status) in [
        ("127.0.0.1", "403"),
        ("localhost", "403"),
        ("[::ffff:127.0.0.1]", "403"),
    ] {
        let mut client = relay.connect();
        client
            .write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n").as_bytes())
            .unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        assert!(
            got.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {got}"
        );
    }
    relay.says("--to must name explicitly");
}

/// `*` does not include addresses of this machine's interfaces. A service that listens at all
/// addresses was reachable at one of them.
#[test]
fn a_star_leads_to_no_address_of_an_interface_either() {
    let Some(space) = Space::first() else {
        return;
    };
    space.shell(
        "ip link set lo up; ip link add near type veth peer name far; ip link set far up; \
         ip addr add 192.0.2.2/24 dev near; ip -6 addr add 2001:db8::2/64 dev near nodad; \
         ip link set near up; ip route add local 198.51.100.0/24 dev lo",
    );
    let own = [
        "192.0.2.2",
        "[2001:db8::2]",
        "[::ffff:192.0.2.2]",
        "198.51.100.7",
        "0.0.0.0",
        "[::]",
        "[64:ff9b::c000:202]",
        "192.0.2.255",
        "224.0.0.1",
    ];
    let ask = |port: u16, host: &str| {
        let script = format!(
            "printf 'CONNECT {host}:9 HTTP/1.1\\r\\n\\r\\n' | timeout 9 \
             bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; cat >&3; head -n 1 <&3'"
        );
        space.shell(&script)
    };
    let start = |permits: &[&str]| {
        let flags = permits.iter().flat_map(|permit| ["--to", permit]);
        let words: Vec<&str> = ["127.0.0.1:0/http"].into_iter().chain(flags).collect();
        Relay::start_in(space.enter(), &words)
    };
    for permits in [&["*:*"][..], &["0.0.0.0/0:*", "[::]/0:*"]] {
        let relay = start(permits);
        for host in own {
            let answer = ask(relay.address().port(), host);
            assert!(
                answer.starts_with("HTTP/1.1 403 "),
                "{permits:?} {host}: {answer}"
            );
        }
    }
    // Nothing listens at port 9, so that a permitted target is one that does not answer.
    let relay = start(&["192.0.2.0/24:*", "*:*"]);
    for (host, status) in [("192.0.2.2", "502"), ("[2001:db8::2]", "403")] {
        let answer = ask(relay.address().port(), host);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {answer}"
        );
    }
}

#[test]
fn proxy_headers_go_in_and_out() {
    let listener = server();
    let to = listener.local_addr().unwrap();
    for (word, begin) in [
        ("proxy1", &b"PROXY TCP4 127.0.0.1 127.0.0.1 "[..]),
        ("proxy", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"),
    ] {
        // The first relay adds the client's address, the second passes it on.
        let second = Relay::start(&["127.0.0.1:0/proxy", &format!("{to}/{word}")]);
        let first = Relay::start(&["127.0.0.1:0", &format!("{}/{word}", second.address())]);
        let mut client = first.connect();
        let source = client.local_addr().unwrap();
        client.write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut server = accept(&listener);
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got.starts_with(begin) && got.ends_with(b"hello"), "{got:?}");
        drop(server);
        let log = second.says("closed");
        assert!(log.contains(&format!("source=\"{source}\"")), "{log}");
    }
}

#[test]
fn headers_that_are_slow_or_make_no_sense_end_with_one_line() {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let relay = Relay::start(&["127.0.0.1:0/proxy", &to, "--entry-timeout", "400ms"]);
    let mut slow: Vec<_> = (0..100).map(|_| relay.connect()).collect();
    for client in &mut slow {
        client.write_all(b"PROXY TCP4 1").unwrap();
    }
    let oversized = [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec(),
        vec![0; 3000],
    ]
    .concat();
    for bytes in [&b"SSH-2.0-x\r\n"[..], &oversized, &[b'P'; 500], &[0; 20]] {
        let mut client = relay.connect();
        expect_reset_at(&mut client, bytes);
    }
    for client in &mut slow {
        expect_reset(client);
    }
    relay.says("did not finish its header in time");
    let (mut client, mut server) = {
        let mut client = relay.connect();
        client.write_all(b"PROXY UNKNOWN\r\nx").unwrap();
        (client, accept(&listener))
    };
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"y").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert_eq!(relay.log().lines().count(), 104, "{}", relay.log());
}

/// A client that disconnects after any byte causes one log line, and affects no other client.
#[test]
fn requests_that_break_off_at_each_byte_end_with_one_line() {
    let listener = server();
    let at = listener.local_addr().unwrap();
    let socks = [
        &[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..],
        &at.port().to_be_bytes(),
    ]
    .concat();
    let http = format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n");
    let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 1 {}\r\n", at.port());
    for (word, request) in [
        ("socks5", socks.as_slice()),
        ("http", http.as_bytes()),
        ("proxy", header.as_bytes()),
    ] {
        let to = at.to_string();
        let entrance = format!("127.0.0.1:0/{word}");
        let relay = match word {
            "proxy" => Relay::start(&[&entrance, &to]),
            _ => with(word, &listener, &[]),
        };
        let mut count = 0;
        for (end, resets) in (0..request.len()).flat_map(|end| [(end, false), (end, true)]) {
            let mut client = relay.connect();
            client.write_all(&request[..end]).unwrap();
            match resets {
                true => {
                    let socket = socket2::SockRef::from(&client);
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                }
                false => {
                    client.shutdown(Shutdown::Write).unwrap();
                    let _ = client.read_to_end(&mut Vec::new());
                }
            }
            drop(client);
            count += 1;
        }
        let mut client = relay.connect();
        client.write_all(request).unwrap();
        let mut server = accept(&listener);
        client.shutdown(Shutdown::Write).unwrap();
        expect_all(&mut server, b"");
        drop(server);
        client.read_to_end(&mut Vec::new()).unwrap();
        wait::up_to(SOON, || relay.log().lines().count() > count);
        let log = relay.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("connection="))
            .count();
        assert_eq!(lines, log.lines().count(), "{log}");
        assert_eq!(
            (log.lines().count(), log.matches("closed, ").count()),
            (count + 1, 1),
            "{word}: {log}"
        );
    }
}

/// Silent clients do not keep others from being served.
#[test]
fn a_flood_of_those_who_say_nothing_is_let_go_and_holds_nobody_up() {
    const MANY: usize = 500;
    let listener = server();
    let at = listener.local_addr().unwrap();
    let flags = ["--entry-timeout", "3s"];
    let port = at.port().to_be_bytes();
    let socks = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &port].concat();
    let header = b"PROXY UNKNOWN\r\n".to_vec();
    let to = at.to_string();
    let proxy = [&["127.0.0.1:0/proxy", &to], &flags[..]].concat();
    let far = pair::keys().far("127.0.0.1:0/pair", &at.to_string(), &flags);
    for (relay, says) in [
        (with("socks5", &listener, &flags), Some(socks)),
        (Relay::start(&proxy), Some(header)),
        (pair::start(&far), None),
    ] {
        let mut silent: Vec<_> = (0..MANY).map(|_| relay.connect()).collect();
        let begun = Instant::now();
        // Only a peer relay can talk to a pair's listener.
        let there = relay.address().to_string();
        let near = says.is_none();
        let near = near.then(|| pair::start(&pair::keys().near(&there, &[])));
        let mut client = near.as_ref().unwrap_or(&relay).connect();
        client.write_all(&says.unwrap_or_default()).unwrap();
        client.write_all(b"x").unwrap();
        accept(&listener).read_exact(&mut [0]).unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        for client in &mut silent {
            expect_reset(client);
        }
        let slow = || {
            relay
                .log()
                .matches("did not finish its header in time")
                .count()
        };
        wait::up_to(SOON, || slow() >= MANY);
        assert_eq!(slow(), MANY, "{}", relay.log());
    }
}
