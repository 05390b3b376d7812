//! Flags for connections, channels and the rate: their effect, their messages, and the host memory.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_tests::Scene;
use serde_json::{Value, json};
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{Outcome, PeerKind, Seed};

const FILE: usize = 16_000_000;

/// Starts a server with a file of 16 MB here and the same file there.
fn scene() -> Option<Scene> {
    let scene = Scene::start(PeerKind::OpenSsh).filter(|scene| !scene.client.is_scp())?;
    write_file(&scene.path("file"), &Seed::new(1).bytes(FILE));
    Some(scene)
}

fn events(outcome: &Outcome) -> Vec<Value> {
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON lines")
}

fn session(outcome: &Outcome) -> Value {
    let events = events(outcome);
    events.last().expect("a summary")["sessions"][0].clone()
}

#[test]
fn the_rate_is_that_of_all_connections_together() {
    let Some(scene) = scene() else { return };
    let ways: [(OsString, OsString); 2] = [
        (scene.path("file").into(), scene.remote("copy")),
        (scene.remote("file"), scene.path("back").into()),
    ];
    for (from, to) in ways {
        // The limiter does not make up for a pause of a busy machine, which would flood the path
        // afterwards: one undisturbed run of several shows the rate.
        let mut rates = Vec::new();
        while rates.len() < 5 && !rates.iter().any(|rate| *rate >= 3.0e6) {
            let run = scene.client.cp().args(["--json", "--limit", "4MB"]);
            let run = run.args(["--connections", "3", "--channels", "2"]);
            let outcome = run.arg(&from).arg(&to).run().expect_code(0);
            let events = events(&outcome);
            let when = |name: &str| {
                let event = events.iter().find(|e| e["event"] == name);
                event.and_then(|e| e["t"].as_f64()).expect("a time")
            };
            let rate = FILE as f64 / (when("file_done") - when("host"));
            // The burst after a pause is a tenth of a second's worth.
            assert!(rate < 4.13e6, "{rate} of 4 MB/s");
            rates.push(rate);
            let session = session(&outcome);
            assert_eq!(session["connections"], 3, "{session}");
            assert_eq!(session["channels"], 2, "{session}");
            assert_eq!(session["limiter"], "user_limit", "{session}");
        }
        eprintln!("{rates:?} of 4 MB/s");
        assert!(rates.iter().any(|r| *r >= 3.0e6), "{rates:?} of 4 MB/s");
    }
    for copy in ["copy", "back"] {
        assert_same(&scene.path("file"), &scene.path(copy), Compare::CONTENT);
    }
}

#[test]
fn the_limiter_is_named_below_the_closing_line() {
    let Some(mut scene) = scene() else { return };
    // An ignored setting is reported once, not for each connection.
    let dir = &mut scene.client.dir;
    dir.set_for_all("GSSAPIAuthentication", "yes");
    let copy = |flags: &[&str]| {
        let run = scene.client.cp().args(["--limit=6MB", "--connections=2"]);
        let run = run.args(flags).arg(scene.path("file"));
        run.arg(scene.remote("copy")).run().expect_code(0)
    };
    let outcome = copy(&[]);
    let err = outcome.err();
    let said: Vec<&str> = err.lines().collect();
    assert_eq!(said.len(), 2, "{outcome}");
    assert!(said[0].starts_with("copied 1 file"), "{outcome}");
    let named = "limited by the rate of --limit (2 connections";
    assert!(said[1].starts_with(named), "{outcome}");
    assert_eq!(copy(&["-q"]).err(), "");
    let err = copy(&["-vv"]).err();
    assert_eq!(err.matches("GSSAPIAuthentication").count(), 1, "{err}");
    assert!(err.contains("adding 1 connection"), "{err}");
    assert!(!err.contains("AddConnection"), "in words: {err}");
}

/// Returns the only file below the cache's `longhaul/hosts`.
fn memory(scene: &Scene) -> PathBuf {
    let folder = scene.client.dir.path().join("cache/longhaul/hosts");
    let mut files = std::fs::read_dir(folder).expect("memories").flatten();
    let file = files.next().expect("a memory").path();
    assert!(files.next().is_none(), "there is one host");
    file
}

#[test]
fn a_copy_begins_with_what_paid_the_last_time() {
    let Some(scene) = scene() else { return };
    let copy = |flags: &[&str]| {
        let run = scene.client.cp().args(flags).arg(scene.path("file"));
        run.arg(scene.remote("copy")).run().expect_code(0)
    };
    copy(&[]);
    let file = memory(&scene);
    let read = || -> Value {
        let text = std::fs::read_to_string(&file).expect("the memory");
        serde_json::from_str(&text).expect("JSON")
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock").as_secs();
    let remember = |at: u64, connections: u32| {
        let mut kept = read();
        // The server was updated meanwhile: everything else is stored anew.
        kept["memory"]["banner"] = json!("SSH-2.0-Before");
        kept["memory"]["learned"] = json!([{
            "direction": "up", "connections": connections, "channels": 2,
            "rate": 1000, "rtt_us": 100, "at": at,
        }]);
        std::fs::write(&file, kept.to_string()).expect("the memory");
    };
    let began = "adding 1 channel: the number that paid last time";

    remember(now - 60, 1);
    let err = copy(&["-vv", "--limit=8MB"]).err();
    assert!(err.contains(began), "{err}");
    let kept = read();
    assert_ne!(kept["memory"]["banner"], "SSH-2.0-Before");
    // A run with a rate limit teaches nothing, and keeps what was known.
    assert_eq!(kept["memory"]["learned"][0]["at"], now - 60, "{kept}");

    let month = 31 * 24 * 3600;
    remember(now - month, 1);
    let err = copy(&["-vv", "--limit=8MB"]).err();
    assert!(!err.contains(began), "too old: {err}");

    // Within one machine one connection is used, whatever has paid before; tests/lab/lanes.rs has a
    // path between two machines.
    remember(now - 60, 2);
    let err = copy(&["-vv", "--limit=8MB"]).err();
    assert!(!err.contains("adding 1 connection"), "{err}");
}

#[test]
fn a_congestion_control_that_is_not_to_be_had_is_said_before_anything_is_done() {
    let Some(scene) = scene() else { return };
    let copy = |name: &str| {
        let run = scene.client.cp().args(["--congestion", name]);
        run.arg(scene.path("file")).arg(scene.remote("copy")).run()
    };
    let outcome = copy("no-such").expect_code(2);
    let said = outcome.err();
    assert!(
        said.starts_with("error: --congestion: cannot use 'no-such'"),
        "{said}"
    );
    assert!(
        said.contains("the kernel permits") && said.contains("reno"),
        "{said}"
    );
    assert!(!scene.path("copy").exists());
    copy("reno").expect_code(0);
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
}
