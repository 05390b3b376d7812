//! Throughput of a pair of relays over the lab's transatlantic path with the buffers of an
//! untouched Linux, beside iperf3 without the pair; and over 100 Mbit/s, the gain and cost of
//! compression. Needs iperf3 and what `longhaul lab` needs.
//!
//!     cargo build --release -p longhaul -p longhaul-tests --examples
//!     target/release/examples/pair_cost [stripes|wrap|zstd]
//!
//! `wrap` directs iperf3 to the pair by a rule of `longhaul wrap`, three times alternating with
//! eight streams without it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_tests::facing::{Half, Keys};
use longhaul_tests::longhaul;
use testkit::missing::find_program;
use testkit::{Run, Seed};

const IPERF: &str = "5201";
/// Seconds of each iperf3 run, and the first ones that do not count.
const SECONDS: &str = "14";
const OMITTED: &str = "4";
const BYTES: usize = 60_000_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--near", "stripes", near @ ..] => near_stripes(near),
        ["--near", "wrap", near @ ..] => near_wrap(near),
        ["--near", "zstd", near @ ..] => near_zstd(near),
        ["--far", what, far @ ..] => self::far(what, far),
        ["stripes"] => lab("stripes", &["--path", "transatlantic", "--tcp", "stock"]),
        ["wrap"] => lab("wrap", &["--path", "transatlantic", "--tcp", "stock"]),
        ["zstd"] => lab("zstd", &["--rtt", "20ms", "--rate", "100Mbit"]),
        _ => {
            lab("stripes", &["--path", "transatlantic", "--tcp", "stock"]);
            lab("zstd", &["--rtt", "20ms", "--rate", "100Mbit"]);
        }
    }
    ExitCode::SUCCESS
}

/// Runs this program at both ends of a path.
fn lab(what: &str, path: &[&str]) {
    if what != "zstd" && find_program("iperf3").is_none() {
        println!("iperf3 is not installed");
        return;
    }
    let keys = Keys::new();
    let this = std::env::current_exe().expect("an example has a path");
    let this = this.display().to_string();
    let far = keys.words(1, 0, &["*:7000/pair"]).join("' '");
    let near = keys.words(0, 1, &[]);
    let outcome = Run::new(longhaul())
        .args(["lab", "-q"])
        .args(path)
        .args([
            "--far",
            &format!("'{this}' --far {what} '{far}'"),
            "--far-port",
            "7000",
        ])
        .args(["--", &this, "--near", what])
        .args(&near)
        .env("LONGHAUL_BIN", longhaul())
        .timeout(Duration::from_secs(230))
        .run();
    print!("{}", outcome.out());
    if !outcome.success() {
        print!("{}", outcome.err());
    }
}

/// Runs the target and the relay until the lab ends.
fn far(what: &str, words: &[&str]) {
    let mut server = None;
    let target = match what {
        "stripes" | "wrap" => {
            let iperf = Command::new("iperf3")
                .args(["-s", "-p", IPERF])
                .stdout(Stdio::null())
                .spawn();
            server = Some(iperf.expect("iperf3 starts"));
            format!("127.0.0.1:{IPERF}")
        }
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let at = listener.local_addr().expect("it listens");
            thread::spawn(move || {
                for mut client in listener.incoming().flatten() {
                    let mut part = vec![0; 1 << 20];
                    while let Ok(1..) = client.read(&mut part) {}
                    let _ = client.write_all(b"!");
                }
            });
            at.to_string()
        }
    };
    let (entrance, flags) = words.split_first().expect("words");
    let words = [&[*entrance, target.as_str(), "-q"], flags].concat();
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut half = Half::start(&words);
    let _ = half.child.wait();
    if let Some(mut server) = server {
        let _ = server.kill();
        let _ = server.wait();
    }
}

fn near_half(words: &[&str], flags: &[&str]) -> Half {
    let words = [&["127.0.0.1:0", "far4:7000/pair", "-q"], words, flags].concat();
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    Half::start(&words)
}

/// Returns the received rate in Mbit/s.
fn iperf(host: &str, port: &str, streams: &str) -> f64 {
    iperf_by(Command::new("iperf3"), host, port, streams)
}

fn iperf_by(mut command: Command, host: &str, port: &str, streams: &str) -> f64 {
    let words = [
        "-J", "-c", host, "-p", port, "-t", SECONDS, "-O", OMITTED, "-P", streams,
    ];
    let output = command.args(words).output().expect("iperf3 starts");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .unwrap_or(0.0)
        / 1e6
}

fn near_stripes(words: &[&str]) {
    let one = iperf("far4", IPERF, "1");
    println!("iperf3, one stream          {one:>7.0} Mbit/s");
    let eight = iperf("far4", IPERF, "8");
    println!("iperf3 -P 8                 {eight:>7.0} Mbit/s");
    for (name, flags) in [
        ("through a pair, --stripes 8", &["--stripes", "8"][..]),
        ("through a pair, by itself", &[]),
    ] {
        let half = near_half(words, flags);
        let port = half.address.port().to_string();
        let rate = iperf("127.0.0.1", &port, "1");
        println!(
            "{name:<27} {rate:>7.0} Mbit/s, {:.0} % of eight streams",
            100.0 * rate / eight
        );
    }
}

fn near_wrap(words: &[&str]) {
    let half = near_half(words, &["--stripes", "8"]);
    let route = format!("far4:{IPERF}={}", half.address);
    for round in 1..=3 {
        let eight = iperf("far4", IPERF, "8");
        let mut command = Command::new(longhaul());
        command.args(["wrap", "--route", &route, "iperf3"]);
        let wrapped = iperf_by(command, "far4", IPERF, "1");
        println!(
            "{round}: iperf3 -P 8 {eight:.0} Mbit/s, one stream wrapped and led to a pair of 8 \
             stripes {wrapped:.0} Mbit/s: {:.0} %",
            100.0 * wrapped / eight
        );
    }
}

fn near_zstd(words: &[&str]) {
    let text = text();
    let noise = Seed::new(1).bytes(BYTES);
    for (name, bytes) in [("text", &text), ("noise", &noise)] {
        let took = ["never", "auto"].map(|zstd| {
            let half = near_half(words, &["--stripes", "1", "--pair-zstd", zstd]);
            let mut client = TcpStream::connect(half.address).expect("it listens");
            let begun = Instant::now();
            client.write_all(bytes).expect("it takes bytes");
            client.shutdown(Shutdown::Write).expect("TCP");
            client.read_exact(&mut [0]).expect("they have come");
            begun.elapsed().as_secs_f64()
        });
        let [never, auto] = took;
        println!(
            "{name:<6} {BYTES} bytes: {never:.2} s plain, {auto:.2} s with zstd: {:.2} times",
            never / auto
        );
    }
}

/// Returns text from this repository's sources and documents, repeated: frames are compressed
/// separately, so that only nearby repetition counts.
fn text() -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = Vec::new();
    let mut folders = vec![root.join("docs"), root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let ends = path
                .extension()
                .is_some_and(|end| end == "rs" || end == "md");
            match path.is_dir() {
                true => folders.push(path),
                false if ends => text.extend(std::fs::read(path).unwrap_or_default()),
                false => {}
            }
        }
    }
    text.iter().copied().cycle().take(BYTES).collect()
}
