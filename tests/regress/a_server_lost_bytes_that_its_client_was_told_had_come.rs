//! Lost bytes at the end of a pair. The relay that opens the stripes closes after its last
//! acknowledgement, which has no answer. If that was lost together with the stripes, the peer relay
//! reset its server five seconds later, and data in the kernel's buffer for a slow server was lost,
//! after the client had seen an orderly end.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use longhaul_tests::facing::{Half, Keys};
use testkit::Seed;

/// More than the window of a server that does not read, and less than the kernel buffers in front
/// of it.
const BYTES: usize = 150_000;
const SOON: Duration = Duration::from_secs(20);

/// Forwards bytes to `to`; once `loses` is set, discards them without notice.
fn losing(to: SocketAddr, loses: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("it is bound");
    let loses = Arc::clone(loses);
    thread::spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            let far = TcpStream::connect(to).expect("the far half listens");
            let ways = [(near.try_clone(), far.try_clone(), true)];
            let ways = ways.into_iter().chain([(Ok(far), Ok(near), false)]);
            for (from, into, there) in ways {
                let (mut from, mut into) = (from.expect("a handle"), into.expect("a handle"));
                let loses = Arc::clone(&loses);
                thread::spawn(move || {
                    let mut part = vec![0; 64 << 10];
                    while let Ok(n @ 1..) = from.read(&mut part) {
                        let lost = there && loses.load(Ordering::SeqCst);
                        if !lost && into.write_all(&part[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = into.shutdown(Shutdown::Both);
                });
            }
        }
    });
    at
}

/// Returns state and inode of the socket at `port` that is connected to `to`, from /proc/net/tcp.
fn socket(port: u16, to: u16) -> Option<(String, String)> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let ends = [port, to].map(|port| format!("0100007F:{port:04X}"));
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let own = words.get(1) == Some(&&*ends[0]) && words.get(2) == Some(&&*ends[1]);
        own.then(|| (words[3].to_owned(), words[9].to_owned()))
    })
}

#[track_caller]
fn until(what: &str, done: impl FnMut() -> bool) {
    testkit::wait::until(SOON, done, || format!("not {what}"));
}

#[test]
fn what_was_passed_on_stays_when_the_last_word_is_lost() {
    let keys = Keys::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let small = socket2::SockRef::from(&listener).set_recv_buffer_size(16 << 10);
    small.expect("its connections have it too");
    let port = listener.local_addr().expect("it is bound").port();
    let to = format!("127.0.0.1:{port}");
    let far = Half::start(&keys.far("127.0.0.1:0/pair", &to, &[]));
    let loses = Arc::new(AtomicBool::new(false));
    let between = losing(far.address, &loses);
    let near = Half::start(&keys.near(&between.to_string(), &["--stripes", "1"]));

    let mut client = TcpStream::connect(near.address).expect("the near half listens");
    client.set_read_timeout(Some(SOON)).expect("a timeout");
    let content = Seed::new(1).bytes(BYTES);
    client.write_all(&content).expect("it is taken");
    client.shutdown(Shutdown::Write).expect("it is open");
    let (mut server, from) = listener.accept().expect("the far half connects");
    let sends = || socket(from.port(), port);
    // FIN_WAIT1: the relay has sent its end, for which the server has no room.
    until("passed on to the end", || {
        sends().is_some_and(|(state, _)| state == "04")
    });

    loses.store(true, Ordering::SeqCst);
    server.write_all(b"answer").expect("it is taken");
    server.shutdown(Shutdown::Write).expect("it is open");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("an orderly end");
    assert_eq!(answer, b"answer");

    // The socket belongs to no process, or was reset.
    until("given up", || sends().is_none_or(|(_, inode)| inode == "0"));
    let mut came = Vec::new();
    server.set_read_timeout(Some(SOON)).expect("a timeout");
    let read = server.read_to_end(&mut came);
    assert!(
        read.is_ok() && came == content,
        "{} bytes came, then {read:?}",
        came.len()
    );
}
