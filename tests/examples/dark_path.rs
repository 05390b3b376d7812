//! Measures the recovery from a path that is interrupted for a minute in the middle of a copy, in
//! both directions: the time until bytes move again. Needs `cargo build --release -p longhaul` and
//! what `longhaul lab` needs.
//!
//!     cargo run --release -p longhaul-tests --example dark_path -- [SECONDS [TIMES]]
//!
//! Each time the path returns half a second later than the time before, so that it does not meet
//! the same moment between two attempts to connect.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use longhaul_tests::longhaul;
use testkit::Run;

const DARK_AT: Duration = Duration::from_secs(5);
const RTT: Duration = Duration::from_millis(114);
/// Longest wait between two attempts to connect, from `session/reconnect.rs`.
const BACKOFF: Duration = Duration::from_secs(5);
/// Size for which the path's 200 Mbit/s need a third of a minute.
const SIZE: u64 = 400_000_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [near, way, folder, dark] = args.as_slice()
        && near == "--near"
    {
        return self::near(way, Path::new(folder), dark.parse().unwrap_or(60.0));
    }
    let number = |nth: usize| args.get(nth).and_then(|n| n.parse::<f64>().ok());
    let (dark, times) = (number(0).unwrap_or(60.0), number(1).unwrap_or(2.0) as u32);
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let this = std::env::current_exe().expect("an example has a path");
    let file = std::fs::File::create(scratch.path().join("from")).expect("a file");
    file.set_len(SIZE).expect("its size");
    let mut kept = true;
    for n in 0..times {
        for way in ["up", "down"] {
            let dark = dark + f64::from(n) / 2.0;
            let outcome = Run::new(longhaul())
                .args(["lab", "-q", "--path", "transatlantic", "--rate", "200Mbit"])
                .args(["--sshd", "--at", &format!("5s blackout={dark}s"), "--"])
                .arg(&this)
                .args(["--near", way])
                .arg(scratch.path())
                .arg(dark.to_string())
                .env("LONGHAUL_BIN", longhaul())
                .timeout(Duration::from_secs_f64(dark + 120.0))
                .run();
            print!("{}", outcome.out());
            if !outcome.success() {
                eprint!("{}", outcome.err());
                kept = false;
            }
        }
    }
    match kept {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Returns the bytes at the target, under any name.
fn there(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512));
    sizes.sum()
}

/// Runs on the near host.
fn near(way: &str, folder: &Path, dark: f64) -> ExitCode {
    let begun = Instant::now();
    let (from, to) = (folder.join("from"), folder.join("to"));
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to).expect("our folder");
    let far = |path: &Path| format!("far:{}", path.display());
    let (source, target) = match way {
        "up" => (from.display().to_string(), far(&to)),
        _ => (far(&from), to.display().to_string()),
    };
    let cp = Run::new(longhaul()).args(["cp", &source, &target]);
    let running = cp.timeout(Duration::from_secs_f64(dark + 100.0)).spawn();
    let returns = begun + DARK_AT + Duration::from_secs_f64(dark);
    running.until(|| Instant::now() >= returns);
    let before = there(&to);
    running.until(|| there(&to) > before);
    let late = returns.elapsed();
    let outcome = running.wait();
    let right = std::fs::read(to.join("from")).is_ok_and(|copy| {
        copy.len() as u64 == SIZE && std::fs::read(&from).is_ok_and(|file| file == copy)
    });
    let bar = 3 * RTT + BACKOFF;
    let kept = late <= bar && right && outcome.success() && before > 0 && before < SIZE;
    println!(
        "{way:<5} dark for {dark} s after {:.0} MB: bytes moved {:.2} s after it was back (at \
         most {:.2}){}",
        before as f64 / 1e6,
        late.as_secs_f64(),
        bar.as_secs_f64(),
        if kept { "" } else { " MISSED" },
    );
    for line in outcome.err().lines() {
        println!("      said: {line}");
    }
    match kept {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
