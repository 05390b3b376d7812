//! Case 4 again, with reference measurements. Each command prints a table.
//!
//!     cargo run --release -p longhaul-tests --example bench_checked -- openssl
//!     cargo run --release -p longhaul-tests --example bench_checked -- copies SECONDS NAME
//!     longhaul lab --rtt 0.2ms --rate 1Gbit --sshd -- bench_checked copies SECONDS NAME
//!
//! `openssl` compares `longhaul bench --local` with `openssl speed`, for packets of 32 KiB on one
//! core. If the two libraries use different instructions for a primitive, an additional row
//! compares longhaul with an openssl without those instructions. SSH's chacha20-poly1305 differs
//! from that of TLS, which openssl measures, and is left out. `copies` runs `longhaul bench` with
//! the lab's far end, or with an sshd on loopback outside of a lab, writes NAME.json, NAME.html and
//! NAME.txt, and compares its ciphers with scp: the size difference of two files divided by the
//! difference of their times, in memory, without the login.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use longhaul_tests::{Scene, longhaul};
use measure::bench::{
    BenchCompression, BenchData, BenchResult, StorageKind, interval::ConfidenceInterval,
    interval::USUAL, text,
};
use measure::{CopyDirection, bench};
use testkit::{PeerKind, Seed};

type Done<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 7;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["openssl"] => openssl(),
        ["copies", seconds, name] => copies(seconds, Path::new(name)),
        _ => Err("openssl, or: copies SECONDS NAME".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench_checked: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the standard output of a program that has to succeed.
fn output(command: &mut Command) -> Done<String> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{command:?}: {said}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn openssl() -> Done<()> {
    let gcm_128 = &[Asked::of(&["-evp", "aes-128-gcm", "-aead"])];
    let gcm_256 = &[Asked::of(&["-evp", "aes-256-gcm", "-aead"])];
    let ctr_128 = &[
        Asked::of(&["-evp", "aes-128-ctr"]),
        Asked::of(&["-hmac", "sha256"]),
    ];
    let ctr_256 = &[
        Asked::of(&["-evp", "aes-256-ctr"]),
        Asked::of(&["-hmac", "sha512"]),
    ];
    let ctr_256_without = &[
        Asked::of(&["-evp", "aes-256-ctr"]),
        Asked {
            words: &["-hmac", "sha512"],
            kept: Some(NO_AVX),
        },
    ];
    let sha_256 = &[Asked::of(&["-evp", "sha256"])];
    let rows = [
        Row::of("aes128-gcm@openssh.com", gcm_128),
        Row {
            kept: Some(NO_VAES),
            note: "ours without VAES, as openssl 3.0",
            ..Row::of("aes128-gcm@openssh.com", gcm_128)
        },
        Row::of("aes256-gcm@openssh.com", gcm_256),
        Row {
            kept: Some(NO_VAES),
            note: "ours without VAES, as openssl 3.0",
            ..Row::of("aes256-gcm@openssh.com", gcm_256)
        },
        Row::of("aes128-ctr hmac-sha2-256", ctr_128),
        Row::of("aes256-ctr hmac-sha2-512", ctr_256),
        Row {
            note: "openssl's SHA-512 without AVX, as ours",
            ..Row::of("aes256-ctr hmac-sha2-512", ctr_256_without)
        },
        Row::of("sha256", sha_256),
    ];
    let mut theirs: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    let mut ours: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for kept in [None, Some(NO_VAES)] {
            let result = local(kept)?;
            for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.kept == kept) {
                let mut seconds = 0.0;
                for asked in row.asked {
                    seconds += 1.0 / speed(asked)?;
                }
                theirs[at].push(1.0 / seconds);
                let is = |p: &&bench::PrimitiveResult| {
                    p.name == row.name && p.threads == 1 && p.what != "open"
                };
                let found = result.primitives.iter().find(is).and_then(|p| p.rate());
                ours[at].push(found.ok_or("a primitive is missing")?.median);
            }
        }
    }
    println!("MB/s on one core, medians of {ROUNDS} in turns\n");
    println!(
        "{:34} {:>8} {:>8} {:>7}",
        "", "longhaul", "openssl", "ratio"
    );
    for (at, row) in rows.iter().enumerate() {
        let median = |values: &[f64]| {
            ConfidenceInterval::of(values.iter().copied(), USUAL).map_or(0.0, |i| i.median / 1e6)
        };
        let (ours, theirs) = (median(&ours[at]), median(&theirs[at]));
        let (name, note, ratio) = (row.name, row.note, ours / theirs);
        println!("{name:34} {ours:8.0} {theirs:8.0} {ratio:7.3}  {note}");
    }
    Ok(())
}

/// Cipher of SSH, and the openssl speed measurements whose times add up to it. GCM without -aead
/// leaves the tag out.
struct Row<'a> {
    name: &'static str,
    asked: &'a [Asked],
    /// OPENSSL_ia32cap, which disables instructions in aws-lc, and a note about that.
    kept: Option<&'static str>,
    note: &'static str,
}

impl<'a> Row<'a> {
    const fn of(name: &'static str, asked: &'a [Asked]) -> Self {
        Self {
            name,
            asked,
            kept: None,
            note: "",
        }
    }
}

/// Runs `longhaul bench --local` without some instructions.
fn local(kept: Option<&str>) -> Done<BenchResult> {
    let mut command = Command::new(longhaul());
    command.args(["bench", "--local", "--json", "--time", "5s"]);
    if let Some(mask) = kept {
        command.env("OPENSSL_ia32cap", mask);
    }
    Ok(bench::read(&String::from_utf8(command.output()?.stdout)?)?)
}

/// Measurement of openssl speed.
struct Asked {
    words: &'static [&'static str],
    /// OPENSSL_ia32cap, which disables instructions in openssl.
    kept: Option<&'static str>,
}

impl Asked {
    const fn of(words: &'static [&'static str]) -> Self {
        Self { words, kept: None }
    }
}

/// AVX, AVX2 and XOP. For SHA-512, aws-lc uses the first on Intel's processors only, and never the
/// second.
const NO_AVX: &str = "~0x1000080000000000:~0x20";
/// VAES and VPCLMULQDQ, which aws-lc uses for GCM and openssl 3.0 does not.
const NO_VAES: &str = ":~0x60000000000";

/// Returns the speed in bytes per second, for blocks of 32 KiB.
fn speed(asked: &Asked) -> Done<f64> {
    let mut command = Command::new("openssl");
    command
        .args(["speed", "-seconds", "1", "-bytes", "32768"])
        .args(asked.words);
    if let Some(mask) = asked.kept {
        command.env("OPENSSL_ia32cap", mask);
    }
    let said = output(&mut command)?;
    let last = said.split_whitespace().last().unwrap_or_default();
    let thousands: f64 = last.trim_end_matches('k').parse()?;
    Ok(thousands * 1000.0)
}

fn copies(seconds: &str, name: &Path) -> Done<()> {
    let scene = match std::env::var_os("LONGHAUL_LAB_CONFIG") {
        Some(_) => None,
        None => Some(Scene::start(PeerKind::OpenSsh).ok_or("there is no sshd")?),
    };
    let (config, host): (PathBuf, &str) = match &scene {
        Some(scene) => (scene.client.dir.config(), "peer"),
        None => (
            std::env::var_os("LONGHAUL_LAB_CONFIG")
                .ok_or("no lab")?
                .into(),
            "far",
        ),
    };
    let said = output(
        Command::new(longhaul())
            .arg("bench")
            .arg("-F")
            .arg(&config)
            .args(["--json", "--time"])
            .arg(format!("{seconds}s"))
            .arg("--html")
            .arg(name.with_extension("html"))
            .arg(host),
    )?;
    fs::write(name.with_extension("json"), &said)?;
    let result = bench::read(&said)?;
    let mut report = text::text(&result);
    report.push_str(&beside_scp(&result, &config, host)?);
    fs::write(name.with_extension("txt"), &report)?;
    print!("{report}");
    Ok(())
}

fn beside_scp(result: &BenchResult, config: &Path, host: &str) -> Done<String> {
    const SMALL: usize = 16_000_000;
    const LARGE: usize = 272_000_000;
    let folder = tempfile::Builder::new().tempdir_in("/dev/shm")?;
    let bytes = Seed::new(1).bytes(LARGE);
    for (name, size) in [("small", SMALL), ("large", LARGE)] {
        fs::write(folder.path().join(name), &bytes[..size])?;
    }
    let copy = |cipher: &str, name: &str| -> Done<f64> {
        let start = Instant::now();
        let mut scp = Command::new("scp");
        scp.arg("-F").arg(config).args(["-q", "-c", cipher]);
        scp.arg(folder.path().join(name));
        scp.arg(format!("{host}:{}", folder.path().join("back").display()));
        output(&mut scp)?;
        Ok(start.elapsed().as_secs_f64())
    };
    let rows: Vec<&bench::BenchRow> = result
        .rows
        .iter()
        .filter(|row| {
            let s = &row.setting;
            s.compression == BenchCompression::None
                && s.data == BenchData::Random
                && s.way == CopyDirection::Up
                && s.place == StorageKind::Memory
                && s.lanes() == "1x1"
                && !s.both_ours
        })
        .collect();
    let mut ciphers: Vec<&str> = rows.iter().map(|row| row.setting.cipher.as_str()).collect();
    ciphers.dedup();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ciphers.len()];
    for _ in 0..3 {
        for (at, cipher) in ciphers.iter().enumerate() {
            let seconds = copy(cipher, "large")? - copy(cipher, "small")?;
            rates[at].push((LARGE - SMALL) as f64 / seconds / 1e6);
        }
    }
    let mut text = String::from("\nBeside scp, medians of 3, MB/s:\n");
    for (cipher, rates) in ciphers.iter().zip(rates) {
        let is = |row: &&&bench::BenchRow| row.setting.cipher == *cipher;
        let ours = rows.iter().find(is).and_then(|row| row.rate());
        let ours = ours.map_or(0.0, |rate| rate.median / 1e6);
        let scp = ConfidenceInterval::of(rates, USUAL).map_or(0.0, |i| i.median);
        text += &format!(
            "{cipher:34} bench {ours:6.0}  scp {scp:6.0}  {:.2}\n",
            ours / scp
        );
    }
    Ok(text)
}
