//! `--explain`: the printed choices are the ones made, with their origin.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_tests::Scene;
use longhaul_tests::both_ends::{BothEnds, events};
use serde_json::{Value, json};
use testkit::delay_proxy::{Fate, Way};
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{DelayProxy, Outcome, PeerKind, Seed};

/// Returns the decision about `what`.
fn decision(outcome: &Outcome, what: &str) -> Value {
    let events = events(outcome);
    let mut found = events
        .iter()
        .filter(|event| event["event"] == "decision" && event["what"] == what);
    let one = found.next().unwrap_or_else(|| panic!("{what}: {outcome}"));
    assert!(found.next().is_none(), "{what} is told twice: {outcome}");
    one.clone()
}

fn text(decision: &Value, field: &str) -> String {
    decision[field].as_str().unwrap_or_default().to_owned()
}

fn log_lines(len: usize) -> Vec<u8> {
    let lines = (0_u64..).flat_map(|n| {
        let noise = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{n} a line of a log, with a number that nobody reads: {noise:x}\n").into_bytes()
    });
    lines.take(len).collect()
}

/// Returns the file of the only host memory.
fn memory(scene: &Scene) -> PathBuf {
    let folder = scene.client.dir.path().join("cache/longhaul/hosts");
    let mut files = fs::read_dir(folder).expect("memories");
    let file = files.next().expect("a memory").expect("our file").path();
    assert!(files.next().is_none(), "there are several");
    file
}

/// Changes the host memory.
fn remember(scene: &Scene, change: impl FnOnce(&mut Value)) {
    let file = memory(scene);
    let bytes = fs::read(&file).expect("our file");
    let mut stored: Value = serde_json::from_slice(&bytes).expect("JSON");
    change(&mut stored["memory"]);
    fs::write(&file, stored.to_string()).expect("our file");
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a clock").as_secs()
}

/// Stores in the host memory that an upload an hour ago found this rate of the path, in bytes per
/// second.
fn remember_path(scene: &Scene, rate: u64) {
    remember(scene, |memory| {
        memory["learned"] = json!([{
            "direction": "up", "connections": 1, "channels": 1, "rate": rate,
            "rtt_us": 500, "at": now() - 3600,
        }]);
    });
}

fn remember_slow_path(scene: &Scene) {
    remember_path(scene, 2_000_000);
}

#[test]
fn each_decision_is_a_line_with_its_origin() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), &Seed::new(1).bytes(3_000_000));
    let run = |flags: &[&str]| {
        let run = scene.client.cp().args(flags).arg(scene.path("file"));
        run.arg(scene.remote("copy")).run().expect_code(0)
    };
    let outcome = run(&["--explain", "--far-end=stock", "-c", "aes256-ctr"]);
    let said = outcome.err();
    for line in [
        "cipher: aes256-ctr (from -c): ",
        "zlib: off (automatic): the rate of the path is not known yet",
        "far end: the server's own SFTP server (from --far-end): ",
        "connections: 1 connection",
        "DSCP: none (automatic): ",
        "congestion control: the system's default (automatic): ",
        "delta: nothing taken from existing files (automatic): ",
    ] {
        let found = said.lines().any(|said| said.starts_with(line));
        assert!(found, "{line}\n{outcome}");
    }
    let again = run(&[
        "--explain",
        "--dscp",
        "CS1",
        "-o",
        "Ciphers=aes128-ctr",
        "--verify",
    ]);
    for line in [
        "cipher: aes128-ctr (from -o Ciphers): ",
        "DSCP: 8 (from --dscp): ",
        "verify: by ",
    ] {
        let found = again.err().lines().any(|said| said.starts_with(line));
        assert!(found, "{line}\n{again}");
    }
    let guess =
        "(learned less than a second ago): tried first, because this server chose it last time";
    let guessed = again.err().lines().any(|said| {
        said.starts_with("key exchange: ")
            && said.contains("tried first, because this server chose")
    });
    assert!(guessed, "{guess}\n{again}");
    // Without --explain nothing of it is printed.
    assert_eq!(run(&[]).err().lines().count(), 1);
    let silent = scene.client.cp().arg("--json").arg(scene.path("file"));
    let silent = silent.arg(scene.remote("copy")).run().expect_code(0);
    let told = events(&silent).iter().any(|e| e["event"] == "decision");
    assert!(!told, "{silent}");
}

/// On the first visit to a host the target may be taken for a directory, and the file is begun
/// again. It counted as two files.
#[test]
fn a_file_that_was_begun_twice_counts_once() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), &Seed::new(1).bytes(20_000_000));
    write_file(&scene.path("copy"), b"old");
    let run = scene.client.cp().arg("--explain").arg(scene.path("file"));
    let outcome = run.arg(scene.remote("copy")).run().expect_code(0);
    let said = outcome.err();
    let line = said.lines().find(|line| line.starts_with("files: "));
    let counted = line.is_some_and(|line| line.starts_with("files: 1 file split into ranges"));
    assert!(counted, "{outcome}");
    assert_same(&scene.path("file"), &scene.path("copy"), Compare::CONTENT);
}

#[test]
fn the_timeline_has_the_login_the_data_and_the_rename() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), &Seed::new(1).bytes(3_000_000));
    let run = |flags: &[&str]| {
        let run = scene.client.cp().args(flags).arg(scene.path("file"));
        run.arg(scene.remote("copy")).run().expect_code(0)
    };
    let outcome = run(&["--explain=timeline"]);
    let said = outcome.err();
    let login = said
        .lines()
        .find(|line| line.starts_with("timeline: connection 1: SYN "));
    let login = login.unwrap_or_else(|| panic!("no login\n{outcome}"));
    let steps = ["TCP ", "identification ", "keys ", "login ", "SFTP "];
    let places: Vec<_> = steps.iter().filter_map(|step| login.find(step)).collect();
    assert!(places.len() == steps.len() && places.is_sorted(), "{login}");
    let renamed = |line: &str| line.starts_with("timeline: job ") && line.contains(": renamed at");
    assert!(said.lines().any(renamed), "{outcome}");
    // The choices are explained as well.
    assert!(said.lines().any(|line| line.starts_with("cipher: ")));
    assert!(!run(&["--explain"]).err().contains("timeline"));

    let outcome = run(&["--explain=timeline", "--json"]);
    let events = events(&outcome);
    let steps: Vec<_> = events.iter().filter(|e| e["event"] == "timeline").collect();
    let has = |step: &str| steps.iter().any(|e| e["step"] == step);
    for step in [
        "connecting",
        "keys",
        "authenticated",
        "sftp",
        "state",
        "file",
    ] {
        assert!(has(step), "{step}\n{outcome}");
    }
    let times = steps.iter().filter_map(|e| e["at"].as_f64());
    assert!(times.is_sorted(), "{outcome}");
}

#[test]
fn ciphers_of_ssh_config_are_named_with_their_file() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), b"some");
    scene.client.dir.set("peer", "Ciphers", "aes192-ctr");
    let run = scene.client.cp().args(["--explain", "--json"]);
    let run = run.arg(scene.path("file")).arg(scene.remote("copy"));
    let cipher = decision(&run.run().expect_code(0), "cipher");
    assert_eq!(text(&cipher, "choice"), "aes192-ctr");
    assert_eq!(text(&cipher, "from"), "config");
    let file = scene.client.dir.config();
    assert_eq!(text(&cipher, "source"), file.to_string_lossy());
}

#[test]
fn what_was_measured_between_the_ends_orders_the_ciphers_and_the_user_s_choice_goes_before() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), b"some");
    let cipher = |flags: &[&str]| {
        let run = scene.client.cp().args(["--explain", "--json"]).args(flags);
        let run = run.arg(scene.path("file")).arg(scene.remote("copy"));
        decision(&run.run().expect_code(0), "cipher")
    };
    cipher(&[]);
    let model = transfer::memory::processor::model();
    remember(&scene, |memory| {
        memory["findings"] = json!({
            "at": now() - 86_400, "by": "a test", "processor": model,
            "ciphers": [
                {"cipher": "aes128-gcm@openssh.com", "rate": 100_000_000},
                {"cipher": "chacha20-poly1305@openssh.com", "rate": 200_000_000},
            ],
        });
    });
    let found = cipher(&[]);
    assert_eq!(text(&found, "choice"), "chacha20-poly1305@openssh.com");
    assert_eq!(text(&found, "from"), "memory");
    assert!(found["age"].as_u64().is_some_and(|age| age >= 86_400));
    // The choice survives logins, and a second run finds the same.
    assert_eq!(cipher(&[])["choice"], found["choice"]);
    let given = cipher(&["-c", "aes128-gcm@openssh.com"]);
    assert_eq!(text(&given, "choice"), "aes128-gcm@openssh.com");
    assert_eq!(text(&given, "source"), "-c");
}

/// A rate limited by zlib must not be stored as the rate of the path. It once was: the path then
/// looked as slow as zlib, and the next copy over loopback chose zlib by itself and took three
/// times as long.
#[test]
fn a_rate_that_zlib_held_back_is_not_the_paths() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("log"), &log_lines(40_000_000));
    let copy = |flags: &[&str]| {
        let flags = ["--far-end=stock", "--explain", "--json"]
            .iter()
            .chain(flags);
        let run = scene.client.cp().args(flags).arg(scene.path("log"));
        let outcome = run.arg(scene.remote("copy")).run().expect_code(0);
        decision(&outcome, "zlib")
    };
    copy(&[]);
    remember_path(&scene, 1_000_000_000);
    assert_eq!(text(&copy(&["-C"]), "choice"), "on");
    remember(&scene, |memory| {
        let learned = &memory["learned"][0];
        assert!(learned["at"].as_u64().unwrap() > now() - 1800, "{memory}");
        assert_eq!(learned["rate"], 1_000_000_000, "{memory}");
    });
    assert_eq!(text(&copy(&[]), "choice"), "off");
}

#[test]
fn zlib_is_asked_for_where_path_and_data_speak_for_it() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let proxy = DelayProxy::to(scene.peer.addr()).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("log"), &log_lines(6_000_000));
    write_file(&scene.path("noise"), &Seed::new(1).bytes(6_000_000));
    // Returns the bytes sent, and the explanation.
    let copy = |scene: &Scene, name: &str, flags: &[&str]| {
        let before = proxy.carried(Way::Up);
        let flags = ["--explain", "--json", "--far-end=stock"]
            .iter()
            .chain(flags);
        let run = scene.client.cp().args(flags).arg(scene.path(name));
        let outcome = run.arg(scene.remote("copy")).run().expect_code(0);
        assert_same(&scene.path(name), &scene.path("copy"), Compare::CONTENT);
        let zlib = decision(&outcome, "zlib");
        (proxy.carried(Way::Up) - before, zlib)
    };
    let (went, zlib) = copy(&scene, "log", &[]);
    assert!(went > 6_000_000 && zlib["choice"] == "off", "{went} {zlib}");
    remember_slow_path(&scene);
    let (went, zlib) = copy(&scene, "log", &[]);
    assert!(went < 4_000_000 && zlib["choice"] == "on", "{went} {zlib}");
    assert_eq!(text(&zlib, "from"), "measured");
    remember_slow_path(&scene);
    let (went, zlib) = copy(&scene, "noise", &[]);
    assert!(went > 6_000_000 && zlib["choice"] == "off", "{went} {zlib}");
    fs::create_dir(scene.path("to")).expect("our folder");
    // Compressed lengths of one stream could reveal the content of another file.
    let run = |flags: &[&str]| {
        remember_slow_path(&scene);
        let flags = ["--explain", "--json", "--far-end=stock"]
            .iter()
            .chain(flags);
        let run = scene.client.cp().args(flags).arg(scene.path("log"));
        let run = run.arg(scene.path("noise")).arg(scene.remote("to"));
        decision(&run.run().expect_code(0), "zlib")
    };
    let zlib = run(&[]);
    assert!(text(&zlib, "evidence").contains("several files"), "{zlib}");
    assert_eq!(run(&["--compress=auto"])["choice"], "on");
    remember_slow_path(&scene);
    let (went, zlib) = copy(&scene, "log", &["--compress=never"]);
    assert!(
        went > 6_000_000 && zlib["source"] == "--compress",
        "{went} {zlib}"
    );
    remember_slow_path(&scene);
    let (went, zlib) = copy(&scene, "log", &["-o", "Compression=no"]);
    assert!(went > 6_000_000, "{went} {zlib}");
    assert_eq!(text(&zlib, "source"), "-o Compression");
    // In ssh's merged configuration, an explicit setting looks like the default.
    scene.client.dir.set("peer", "Compression", "no");
    remember_slow_path(&scene);
    let (went, zlib) = copy(&scene, "log", &[]);
    assert!(
        went > 6_000_000 && zlib["from"] == "config",
        "{went} {zlib}"
    );
    remember_slow_path(&scene);
    let (went, zlib) = copy(&scene, "log", &["--compress=auto"]);
    assert!(went < 4_000_000 && zlib["choice"] == "on", "{went} {zlib}");
}

/// If a connection with zlib fails, zlib is disabled and not chosen again. Before this, each copy
/// of text to a host on a slow path failed with the zlib chosen for it.
#[test]
fn zlib_with_which_a_connection_fails_is_given_up_and_not_chosen_again() {
    // After the login, and after the first data.
    for after in [8_000, 300_000] {
        let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
            return;
        };
        if scene.client.is_scp() {
            return;
        }
        let proxy = DelayProxy::to(scene.peer.addr())
            .fate(2, Fate::Reset(Way::Up, after))
            .start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        write_file(&scene.path("log"), &log_lines(6_000_000));
        let copy = |to: &str| {
            let run = scene.client.cp().args(["--explain", "--json"]);
            let run = run.args(["--far-end=stock", "--connections", "1"]);
            let run = run.arg(scene.path("log")).arg(scene.remote(to));
            let outcome = run.run().expect_code(0);
            assert_same(&scene.path("log"), &scene.path(to), Compare::CONTENT);
            outcome
        };
        copy("first");
        remember_slow_path(&scene);
        let before = proxy.connections();
        assert_eq!(before, 1, "the next one is to fail");
        let second = copy("second");
        assert_eq!(proxy.connections(), 3, "{after}: {second}");
        remember_slow_path(&scene);
        let zlib = decision(&copy("third"), "zlib");
        assert_eq!(zlib["choice"], "off", "{after}: {zlib}");
        assert!(text(&zlib, "evidence").contains("failed before"), "{zlib}");
        assert_eq!(proxy.connections(), 4, "{after}");
    }
}

#[test]
fn a_longhaul_at_the_far_end_and_what_it_brings_are_told() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let scene = &ends.scene;
    fs::create_dir(scene.path("small")).expect("our folder");
    for n in 0..20_u64 {
        write_file(
            &scene.path(&format!("small/{n}")),
            &Seed::new(n).bytes(2000),
        );
    }
    let log = log_lines(20_000_000);
    write_file(&scene.path("log"), &log);
    let run = ends.cp(&["--explain", "--far-end=exec", "-C", "-r"]);
    let run = run.arg(scene.path("log")).arg(scene.path("small"));
    fs::create_dir(scene.path("to")).expect("our folder");
    let outcome = run.arg(scene.remote("to")).run().expect_code(0);
    let far = decision(&outcome, "far end");
    assert!(text(&far, "choice").starts_with("longhaul "), "{far}");
    assert_eq!(text(&far, "from"), "measured");
    // Files that were started on the stock server's lanes are finished there.
    let again = ends.cp(&["--explain", "--far-end=exec", "-C", "-r", "--no-delta"]);
    let again = again.arg(scene.path("log")).arg(scene.path("small"));
    let outcome = again.arg(scene.remote("to")).run().expect_code(0);
    let zstd = decision(&outcome, "zstd");
    assert_eq!(text(&zstd, "source"), "--compress");
    assert!(text(&zstd, "choice").contains(" compressed to "), "{zstd}");
    let zlib = decision(&outcome, "zlib");
    assert_eq!(text(&zlib, "choice"), "off", "once is enough: {zlib}");
    let files = decision(&outcome, "files");
    // The far machine's boot id, which the journal reads, is not counted as a copied file.
    let files = text(&files, "choice");
    assert_eq!(files, "1 split into ranges, 20 in one request each");
    assert_eq!(text(&decision(&outcome, "far end"), "from"), "memory");
}
