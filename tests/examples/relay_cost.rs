//! What a relay costs beside others that are installed: rate and processor time of one connection,
//! the delay that it adds to a small message, and memory of connections that are idle. On loopback;
//! a machine that does something else makes the figures worthless.
//!
//!     cargo build --release -p longhaul -p longhaul-tests --examples
//!     target/release/examples/relay_cost [bytes in MiB]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_tests::{longhaul, processes};
use testkit::missing::find_program;
use testkit::process::cpu_time;

const ROUNDS: usize = 10_000;
const IDLE: usize = 2000;

fn main() {
    let mib: usize = std::env::args()
        .nth(1)
        .map_or(1024, |mib| mib.parse().expect("a number"));
    println!(
        "relay            MB/s   CPU s/GB   ping-pong median us   p99 us   bytes for an idle one"
    );
    for name in ["none", "longhaul", "longhaul-copy", "haproxy", "socat"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("it listens").port();
        let Some((mut child, port)) = start(name, to) else {
            continue;
        };
        let pid = child.as_ref().map(Child::id);
        let (rate, cpu) = bulk(&listener, port, pid, mib);
        let (median, p99) = ping_pong(&listener, port);
        let idle = match name {
            // A process for each.
            "none" | "socat" => 0,
            _ => idle(&listener, port, pid.expect("a process")),
        };
        println!("{name:<14} {rate:>6.0} {cpu:>10.3} {median:>21.1} {p99:>8.1} {idle:>15}");
        if let Some(child) = &mut child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// None where it is not installed.
fn start(name: &str, to: u16) -> Option<(Option<Child>, u16)> {
    if name == "none" {
        return Some((None, to));
    }
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("it listens").port();
    drop(free);
    let target = format!("127.0.0.1:{to}");
    let entrance = format!("127.0.0.1:{port}");
    let mut command = match name {
        "longhaul" | "longhaul-copy" => {
            let mut command = Command::new(longhaul());
            command.args(["relay", "-q", &entrance, &target]);
            if name == "longhaul-copy" {
                command.args(["--buffer", "16383"]);
            }
            command
        }
        "haproxy" => {
            find_program("haproxy")?;
            let config = std::env::temp_dir().join(format!("relay-cost-{port}.cfg"));
            let text = format!(
                "global\n maxconn 5000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n \
                 timeout server 60s\n option splice-auto\nlisten l\n bind {entrance}\n server s {target}\n"
            );
            std::fs::write(&config, text).expect("a file");
            let mut command = Command::new("haproxy");
            command.arg("-f").arg(config).arg("-db");
            command
        }
        _ => {
            find_program("socat")?;
            let mut command = Command::new("socat");
            command.arg("-b262144");
            command.arg(format!(
                "TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay"
            ));
            command.arg(format!("TCP:{target},nodelay"));
            command
        }
    };
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    thread::sleep(Duration::from_millis(1500));
    Some((Some(child.expect("it starts")), port))
}

fn pair(listener: &TcpListener, port: u16) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let (server, _) = listener.accept().expect("somebody comes");
    client.set_nodelay(true).expect("TCP");
    server.set_nodelay(true).expect("TCP");
    (client, server)
}

/// Processor time of it and of all that it has started.
fn cpu(pid: Option<u32>) -> f64 {
    let Some(pid) = pid else {
        return 0.0;
    };
    let children =
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    let all = children.chain([pid]).filter_map(cpu_time);
    all.map(|time| time.as_secs_f64()).sum()
}

/// (MB a second, seconds of processor time for a GB).
fn bulk(listener: &TcpListener, port: u16, pid: Option<u32>, mib: usize) -> (f64, f64) {
    let (mut client, mut server) = pair(listener, port);
    let reader = thread::spawn(move || {
        let mut part = vec![0; 1 << 20];
        let mut all = 0;
        while let Ok(n @ 1..) = server.read(&mut part) {
            all += n;
            if all == mib << 20 {
                break;
            }
        }
        assert_eq!(all, mib << 20);
        server
    });
    let before = cpu(pid);
    let begun = Instant::now();
    let part = vec![7; 1 << 20];
    for _ in 0..mib {
        client.write_all(&part).expect("it takes bytes");
    }
    let _server = reader.join().expect("it read");
    let took = begun.elapsed().as_secs_f64();
    let gb = (mib << 20) as f64 / 1e9;
    (gb * 1000.0 / took, (cpu(pid) - before) / gb)
}

/// 64 bytes there and back, in microseconds: (median, 99 of 100).
fn ping_pong(listener: &TcpListener, port: u16) -> (f64, f64) {
    let (mut client, mut server) = pair(listener, port);
    let echo = thread::spawn(move || {
        let mut part = [0; 64];
        while server.read_exact(&mut part).is_ok() {
            server.write_all(&part).expect("it takes bytes");
        }
    });
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            let mut part = [1; 64];
            client.write_all(&part).expect("it takes bytes");
            client.read_exact(&mut part).expect("it comes back");
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    drop(client);
    echo.join().expect("it ends");
    times.sort_by(f64::total_cmp);
    (times[ROUNDS / 2], times[ROUNDS * 99 / 100])
}

/// Bytes of memory for each connection on which nothing happens, after something has.
fn idle(listener: &TcpListener, port: u16, pid: u32) -> u64 {
    let talk = || {
        let (mut client, mut server) = pair(listener, port);
        client.write_all(&[1; 50_000]).expect("it takes bytes");
        server.read_exact(&mut [0; 50_000]).expect("they come");
        (client, server)
    };
    let memory = || processes::memory(pid, "Private_Dirty:");
    let mut all = vec![talk()];
    let before = memory();
    all.extend((0..IDLE).map(|_| talk()));
    memory().saturating_sub(before) / IDLE as u64
}
