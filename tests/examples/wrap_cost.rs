//! Cost of `longhaul wrap` for programs for which it does nothing: one that opens many connections
//! on this machine, and iperf3 over loopback. Plain and wrapped runs alternate, since the speed of
//! a machine varies.
//!
//!     cargo build --release -p longhaul -p longhaul-tests --examples
//!     target/release/examples/wrap_cost [connections] [GiB] [rounds]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use longhaul_tests::wrapped::{Wrapping, probe};
use testkit::{Run, Running, missing};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let mut number = |otherwise| numbers.next().unwrap_or(Ok(otherwise));
    let (Ok(connections), Ok(gib), Ok(rounds)) = (number(100_000), number(4), number(3)) else {
        eprintln!("wrap_cost: connections, GiB and rounds are numbers");
        return ExitCode::from(2);
    };
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &["-O2"]) else {
        return ExitCode::FAILURE;
    };
    let (port, count) = (answering().to_string(), connections.to_string());
    let words = ["cost", &port, &count];
    let name = format!("{connections} connections on loopback");
    compare(&name, rounds, &wrapping, &probe, &words, || None);
    if missing::find_program("iperf3").is_none() {
        missing::skip("iperf3", "run scripts/setup-tests.sh");
        return ExitCode::SUCCESS;
    }
    let port = testkit::port::free().to_string();
    let size = format!("{gib}G");
    let words = ["-c", "127.0.0.1", "-p", &port, "-n", &size];
    let name = format!("iperf3, {gib} GiB on loopback");
    let server = || {
        let server = Run::new("iperf3").args(["-s", "-1", "--forceflush", "-p", &port]);
        let server = server.timeout(Duration::from_secs(600)).spawn();
        assert!(server.shows("listening"), "{}", server.wait());
        Some(server)
    };
    compare(
        &name,
        rounds,
        &wrapping,
        Path::new("iperf3"),
        &words,
        server,
    );
    ExitCode::SUCCESS
}

/// Returns the port of a server that echoes one byte, one connection after another.
fn answering() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_ok() {
                let _ = stream.write_all(&byte);
            }
        }
    });
    port
}

/// Compares the minima, which have the least disturbance.
fn compare(
    name: &str,
    rounds: usize,
    wrapping: &Wrapping,
    program: &Path,
    words: &[&str],
    server: impl Fn() -> Option<Running>,
) {
    let (mut plain, mut wrapped) = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        for (least, run) in [
            (&mut plain, Run::new(program)),
            (&mut wrapped, wrapping.run(&[]).arg(program)),
        ] {
            let server = server();
            let begun = Instant::now();
            run.args(words)
                .timeout(Duration::from_secs(600))
                .run()
                .expect_code(0);
            *least = (*least).min(begun.elapsed());
            if let Some(server) = server {
                server.wait().expect_code(0);
            }
        }
    }
    let ratio = wrapped.as_secs_f64() / plain.as_secs_f64();
    println!(
        "{name}: {:.3} s plain, {:.3} s wrapped, {:+.2} %",
        plain.as_secs_f64(),
        wrapped.as_secs_f64(),
        (ratio - 1.0) * 100.0
    );
}
