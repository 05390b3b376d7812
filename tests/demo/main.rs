//! `make demo`: scp and longhaul over a long path, on this machine alone.
//!
//! The path is emulated by `longhaul lab`, and the race runs inside it: this program is started
//! again with a hidden argument. If the kernel permits no lab, the testkit's delaying proxy
//! replaces it.
//!
//! `DEMO_RESULTS` names a file for the times, from which docs/gain.sh draws the README's picture.
//! `DEMO_LIMIT` is the time limit of a copy in seconds. `DEMO_QUICK` makes everything small, for
//! the test.

mod chart;
mod race;

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use longhaul_tests::{longhaul, scratch};
use race::{Ground, Sizes};
use testkit::{ClientDir, DelayProxy, PeerBuilder, missing};

/// Argument that selects the inner part of this program.
const ARGUMENT: &str = "--inside-the-lab";
/// Path of the proxy, for machines without a lab.
const PROXY_RTT: Duration = Duration::from_millis(114);
const PROXY_RATE: u64 = 125_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.as_slice() {
        [hidden, folder] if hidden == ARGUMENT => inside(Path::new(folder)),
        [] => outside(),
        _ => Err("the demo has no flags".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("demo: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Result of a part; true if everything was copied.
type Done = Result<bool, Box<dyn std::error::Error>>;

fn quick() -> bool {
    std::env::var_os("DEMO_QUICK").is_some_and(|quick| !quick.is_empty())
}

/// Returns the path's options, and its name in the headings.
fn path() -> (&'static [&'static str], &'static str) {
    if quick() {
        let options = &["--rtt", "5ms", "--rate", "1Gbit"];
        return (options, "a short path: 5 ms, 1 Gbit/s");
    }
    // Defaults of an untouched machine, so that the demo does not depend on this machine's
    // settings.
    let options = &["--path", "transatlantic", "--tcp", "stock", "--cc", "cubic"];
    (
        options,
        "the transatlantic path: 114 ms, 1 Gbit/s, untouched TCP, cubic",
    )
}

fn outside() -> Done {
    let lab = || {
        let mut lab = Command::new(longhaul());
        lab.arg("lab").args(path().0).args(["-q", "--sshd", "--"]);
        lab
    };
    let tried = lab().arg("true").output()?;
    if tried.status.code() != Some(0) {
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        return behind_proxy(said.trim().trim_start_matches("longhaul lab: "));
    }
    let scratch = scratch();
    let status = lab()
        .arg(std::env::current_exe()?)
        .arg(ARGUMENT)
        .arg(scratch.path())
        .status()?;
    Ok(status.success())
}

fn inside(folder: &Path) -> Done {
    let config = std::env::var_os("LONGHAUL_LAB_CONFIG")
        .ok_or_else(|| io::Error::other("this is a part of the demo, which starts it"))?;
    race::run(
        &Ground {
            about: path().1.to_owned(),
            config: config.into(),
            host: "far",
            connecting: Duration::ZERO,
            folder: folder.to_owned(),
        },
        &Sizes::new(quick()),
    )
}

/// Runs the race behind a proxy with delay and rate only.
fn behind_proxy(why: &str) -> Done {
    println!("No emulated network here ({why}); a delaying proxy stands in for it.");
    let mut client = ClientDir::new();
    let builder = match missing::find_program("sshd") {
        Some(_) => PeerBuilder::openssh(),
        // The machine's scp may be old.
        None => PeerBuilder::longhaul(longhaul(), ["--old-clients"]),
    };
    let Some(peer) = builder.authorize(&client).start() else {
        return Err("the far end does not come up".into());
    };
    let rtt = if quick() {
        Duration::from_millis(5)
    } else {
        PROXY_RTT
    };
    let proxy = DelayProxy::to(peer.addr())
        .rtt(rtt)
        .rate(PROXY_RATE)
        .start();
    client.add_host_at("far", &peer, proxy.port());
    let scratch = scratch();
    race::run(
        &Ground {
            about: format!(
                "behind a delaying proxy: {} ms, {} Gbit/s",
                rtt.as_millis(),
                PROXY_RATE * 8 / 1_000_000_000
            ),
            config: client.config(),
            host: "far",
            connecting: proxy.with_connect(Duration::ZERO, 1),
            folder: scratch.path().to_owned(),
        },
        &Sizes::new(quick()),
    )
}
