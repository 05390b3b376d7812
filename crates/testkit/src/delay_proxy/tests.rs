use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;

use super::*;

/// Starts an echo server for one connection.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind(port::loopback(0)).expect("a port");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        let mut chunk = [0; 65536];
        while let Ok(len @ 1..) = socket.read(&mut chunk) {
            if socket.write_all(&chunk[..len]).is_err() {
                return;
            }
        }
    });
    addr
}

/// A round trip never takes less than the delay. A busy machine may add to it, but not every time.
#[test]
fn every_round_trip_takes_its_time() {
    let rtt = Duration::from_millis(40);
    let proxy = DelayProxy::to(echo()).rtt(rtt).start();
    let mut socket = TcpStream::connect(proxy.addr()).expect("connects at once");
    let mut shortest = Duration::MAX;
    for turn in 0..20 {
        let begun = Instant::now();
        socket.write_all(&[turn]).expect("writes");
        let mut byte = [0];
        socket.read_exact(&mut byte).expect("reads");
        assert_eq!(byte, [turn]);
        let took = begun.elapsed();
        assert!(took >= rtt, "a round trip of {rtt:?} took {took:?}");
        shortest = shortest.min(took);
    }
    assert!(
        shortest < rtt + rtt / 5,
        "of 20 round trips of {rtt:?} the shortest took {shortest:?}"
    );
    assert_eq!(proxy.with_connect(shortest, 1), shortest + rtt);
}

#[test]
fn the_rate_is_kept_both_ways_at_once() {
    let took: Vec<f64> = (0..5).map(|_| there_and_back()).collect();
    assert!(
        took.iter().all(|took| *took >= 0.19) && took.iter().any(|took| *took < 0.4),
        "0.4 MB at 2 MB/s took {took:?} s"
    );
}

/// Measures the seconds that 0.4 MB take at 2 MB/s each way.
fn there_and_back() -> f64 {
    let proxy = DelayProxy::to(echo()).rate(2_000_000).start();
    let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
    let begun = Instant::now();
    let mut writing = socket.try_clone().expect("a second handle");
    let writer = std::thread::spawn(move || {
        writing.write_all(&vec![7; 400_000]).expect("writes");
        writing.shutdown(Shutdown::Write).expect("ends");
    });
    let mut back = Vec::new();
    socket.read_to_end(&mut back).expect("reads");
    writer.join().expect("the writer ends");
    assert_eq!(back.len(), 400_000);
    begun.elapsed().as_secs_f64()
}

#[test]
fn a_cut_is_a_reset_for_both_ends() {
    let proxy = DelayProxy::to(echo()).cut_after(Way::Up, 1000).start();
    let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
    socket.write_all(&[1; 2000]).expect("writes");
    let mut back = Vec::new();
    let error = socket
        .read_to_end(&mut back)
        .expect_err("not an end of file");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Bytes behind a cut do not arrive. A server that learned of the reset late answered them, and the
/// login that was to fail succeeded.
#[test]
fn what_is_behind_a_cut_does_not_arrive() {
    let listener = TcpListener::bind(port::loopback(0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    let proxy = DelayProxy::to(server).cut_after(Way::Up, 1500).start();
    let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
    let (mut served, _) = listener.accept().expect("a connection");
    socket.write_all(&[1; 1000]).expect("writes");
    served.read_exact(&mut [0; 1000]).expect("it has come");
    socket.write_all(&[2; 1000]).expect("writes");
    let mut rest = Vec::new();
    let end = served.read_to_end(&mut rest).expect_err("no end of file");
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    assert_eq!(rest, [2; 500]);
    assert_eq!(proxy.carried(Way::Up), 1500);
}

#[test]
fn nothing_passes_in_a_blackout() {
    let proxy = DelayProxy::to(echo()).start();
    let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
    let begun = Instant::now();
    proxy.blackout(Duration::from_millis(150));
    socket.write_all(&[1]).expect("writes");
    socket.read_exact(&mut [0]).expect("reads");
    assert!(begun.elapsed() >= Duration::from_millis(150));
}

/// Connections arrive in order. A server that admits one at a time had rejected a login, because a
/// later connection had reached it first.
#[test]
fn connections_arrive_in_the_order_in_which_they_were_made() {
    const COUNT: u8 = 64;
    let listener = TcpListener::bind(port::loopback(0)).expect("a port");
    let addr = listener.local_addr().expect("an address");
    let proxy = DelayProxy::to(addr).rtt(Duration::from_millis(20)).start();
    let clients: Vec<TcpStream> = (0..COUNT)
        .map(|nth| {
            let mut socket = TcpStream::connect(proxy.addr()).expect("connects");
            socket.write_all(&[nth]).expect("writes");
            socket
        })
        .collect();
    let arrived: Vec<u8> = (0..COUNT)
        .map(|_| {
            let (mut socket, _) = listener.accept().expect("a connection");
            let mut nth = [0];
            socket.read_exact(&mut nth).expect("reads");
            nth[0]
        })
        .collect();
    assert_eq!(arrived, (0..COUNT).collect::<Vec<_>>());
    drop(clients);
}
