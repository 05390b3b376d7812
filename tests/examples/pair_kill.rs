//! Kills one relay of a pair and then the other, again and again, while bytes go in both
//! directions: what each client receives has to be correct as far as it goes, followed by a reset.
//! tests/relay/pair.rs has a short form.
//!
//!     cargo run --release -p longhaul-tests --example pair_kill -- [TIMES]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use longhaul_tests::facing::{Half, Keys};
use testkit::Seed;

const STRIPES: [&str; 3] = ["--stripes", "3", "-q"];

/// End of a connection as the client sees it, and the time since the last byte.
#[derive(Debug)]
enum Seen {
    Reset(Duration),
    End(Duration),
    WrongBytes,
    Other(ErrorKind),
}

fn main() -> ExitCode {
    let times = std::env::args()
        .nth(1)
        .map_or(100, |n| n.parse().expect("a number"));
    let keys = Keys::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("it listens").to_string();
    let mut far = Half::start(&keys.far("127.0.0.1:0/pair", &to, &STRIPES));
    let at = far.address.to_string();
    let mut near = Half::start(&keys.near(&at, &STRIPES));
    let source = Seed::new(7).bytes(40_000_000);
    let mut seed = Seed::new(1);
    let (mut wrong, mut longest) = (0, Duration::ZERO);
    for time in 0..times {
        let kills_far = time % 2 == 0;
        let client = TcpStream::connect(near.address).expect("it listens");
        let (server, _) = listener.accept().expect("somebody comes");
        let after = Duration::from_millis(20 + seed.below(300));
        let seen = thread::scope(|scope| {
            let ends = [&client, &server].map(|stream| {
                stream
                    .set_read_timeout(Some(Duration::from_secs(30)))
                    .expect("TCP");
                stream
                    .set_write_timeout(Some(Duration::from_secs(30)))
                    .expect("TCP");
                let source = &source;
                let writer = scope.spawn(move || {
                    let mut stream = stream;
                    let mut parts = source.chunks(100_000).cycle();
                    let broken = parts.find_map(|part| stream.write_all(part).err());
                    broken.map(|e| e.kind())
                });
                (scope.spawn(move || read(stream, source)), writer)
            });
            // At a random moment of the transfer.
            thread::sleep(after);
            let victim = if kills_far { &mut far } else { &mut near };
            let _ = victim.child.kill();
            let _ = victim.child.wait();
            ends.map(|(reader, writer)| {
                let (seen, wrote) = (reader.join(), writer.join());
                // The kernel reports a reset once: the writer may have got it.
                let told = wrote.expect("no panic") == Some(ErrorKind::ConnectionReset);
                match seen.expect("no panic") {
                    Seen::End(took) if told => Seen::Reset(took),
                    seen => seen,
                }
            })
        });
        for seen in seen {
            match seen {
                Seen::Reset(took) => longest = longest.max(took),
                Seen::Other(kind) => {
                    println!("time {time}: {kind}");
                    wrong += 1;
                }
                seen => {
                    println!("time {time}: {seen:?}");
                    wrong += 1;
                }
            }
        }
        match kills_far {
            true => far = Half::start(&keys.far(&format!("{at}/pair"), &to, &STRIPES)),
            false => near = Half::start(&keys.near(&at, &STRIPES)),
        }
    }
    println!(
        "{times} halves killed: {wrong} clients saw anything else than right bytes and a reset; a \
         reset came {:.2} s after the last byte at most",
        longest.as_secs_f64()
    );
    match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Reads until the connection breaks.
fn read(mut stream: &TcpStream, source: &[u8]) -> Seen {
    let (mut at, mut part, mut last) = (0, vec![0; 64 << 10], Instant::now());
    loop {
        match stream.read(&mut part) {
            Ok(0) => return Seen::End(last.elapsed()),
            Ok(n) => {
                let right = part[..n]
                    .iter()
                    .enumerate()
                    .all(|(nth, byte)| *byte == source[(at + nth) % source.len()]);
                if !right {
                    return Seen::WrongBytes;
                }
                at += n;
                last = Instant::now();
            }
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {
                return Seen::Reset(last.elapsed());
            }
            Err(e) => return Seen::Other(e.kind()),
        }
    }
}
