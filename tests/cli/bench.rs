//! `longhaul bench` against real servers: short runs of small files.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use longhaul_tests::both_ends::BothEnds;
use longhaul_tests::{Scene, Silent, longhaul};
use serde_json::Value;
use testkit::{ClientDir, Outcome, PeerBuilder, PeerKind, Run};

/// Prepares `longhaul bench FLAGS` with the client's files.
fn bench(scene: &Scene, flags: &[&str]) -> Run {
    let dir = &scene.client.dir;
    dir.run(longhaul())
        .arg("bench")
        .arg("-F")
        .arg(dir.config())
        .arg("--dir")
        .arg(scene.path("disk"))
        .args(flags)
        .timeout(Duration::from_secs(240))
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.out()).unwrap_or_else(|error| panic!("{error}: {outcome}"))
}

fn strings<'a>(rows: &'a Value, member: &str) -> Vec<&'a str> {
    let rows = rows.as_array().expect("an array");
    rows.iter().filter_map(|row| row[member].as_str()).collect()
}

/// Returns the ciphers of rows that have a run.
fn measured(result: &Value) -> Vec<&str> {
    let rows = result["rows"].as_array().expect("rows");
    let ran = rows
        .iter()
        .filter(|row| row["runs"][0]["rate"].as_f64() > Some(0.0));
    ran.filter_map(|row| row["setting"]["cipher"].as_str())
        .collect()
}

/// Asserts that nothing is left in memory or in a folder that was not there before. Files of
/// concurrent tests are waited for.
#[track_caller]
fn nothing_left(folder: &Path, before: &[String]) {
    assert_eq!(ours_in(folder), [""; 0], "{}", folder.display());
    let memory = Path::new("/dev/shm");
    let mut new = ours_in(memory);
    new.retain(|name| !before.contains(name));
    testkit::wait::up_to(Duration::from_secs(240), || {
        let now = ours_in(memory);
        new.retain(|name| now.contains(name));
        new.is_empty()
    });
    assert!(new.is_empty(), "{new:?} is left");
}

fn ours_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("longhaul-bench"))
        .collect()
}

/// Checks that each cipher that client and server share is measured, and each other one of the
/// server is named.
fn every_cipher(kind: PeerKind, common: &[&str]) {
    let Some(scene) = Scene::start(kind) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let flags = [
        "--json", "--time", "1s", "--place", "memory", "--lanes", "1x1", "peer",
    ];
    let outcome = bench(&scene, &flags).run().expect_code(0);
    let result = json(&outcome);
    let measured = measured(&result);
    for cipher in common {
        assert!(
            measured.contains(cipher),
            "{cipher} was not measured: {outcome}"
        );
    }
    for named in strings(&result["named"], "name") {
        assert!(!measured.contains(&named), "{named} is measured and named");
        assert!(ssh::cipher::cipher(named).is_none(), "{named} is ours");
        assert!(ssh::cipher::mac(named).is_none(), "{named} is ours");
    }
    assert!(result["partial"].is_null(), "{outcome}");
    assert_eq!(result["host"]["name"], "peer");
}

#[test]
fn every_cipher_of_openssh() {
    every_cipher(
        PeerKind::OpenSsh,
        &[
            "aes128-gcm@openssh.com",
            "aes256-gcm@openssh.com",
            "chacha20-poly1305@openssh.com",
            "aes128-ctr",
            "aes192-ctr",
            "aes256-ctr",
        ],
    );
}

#[test]
fn every_cipher_of_dropbear() {
    let common = ["chacha20-poly1305@openssh.com", "aes128-ctr", "aes256-ctr"];
    every_cipher(PeerKind::Dropbear, &common);
}

#[test]
fn every_cipher_of_paramiko() {
    let common = [
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    ];
    every_cipher(PeerKind::Paramiko, &common);
}

#[test]
fn every_cipher_of_go() {
    let common = [
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "chacha20-poly1305@openssh.com",
        "aes128-ctr",
    ];
    every_cipher(PeerKind::Go, &common);
}

#[test]
fn old_ciphers_are_named_and_marked_and_never_advised() {
    let builder = PeerBuilder::openssh()
        .option("Ciphers", "aes128-cbc,3des-cbc,aes128-ctr")
        .option("MACs", "hmac-sha1,umac-128-etm@openssh.com,hmac-sha2-256");
    let Some(scene) = Scene::with(builder) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let flags = [
        "--time", "1s", "--place", "memory", "--data", "random", "--lanes", "1x1", "peer",
    ];
    let outcome = bench(&scene, &flags).run().expect_code(0);
    let text = outcome.out();
    for part in [
        "aes128-cbc (WEAK), 3des-cbc (WEAK)",
        "hmac-sha1 (WEAK), umac-128-etm@openssh.com.",
        "longhaul cp -c aes128-ctr -o MACs=hmac-sha2-256",
        "Ciphers aes128-ctr\n",
        "Compression no\n",
    ] {
        assert!(text.contains(part), "{part} is missing: {outcome}");
    }
}

#[test]
fn old_ciphers_are_measured_where_that_is_asked_for_and_are_not_advised() {
    let builder = PeerBuilder::openssh()
        .option("Ciphers", "aes128-cbc,aes128-ctr")
        .option("MACs", "hmac-sha1,hmac-sha2-256");
    let Some(scene) = Scene::with(builder) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let flags = [
        "--insecure-too",
        "--json",
        "--time",
        "1s",
        "--place",
        "memory",
        "--data",
        "random",
        "--lanes",
        "1x1",
        "peer",
    ];
    let outcome = bench(&scene, &flags).run().expect_code(0);
    let result = json(&outcome);
    assert_eq!(result["named"], serde_json::json!([]), "{outcome}");
    let rows = result["rows"].as_array().expect("rows");
    let carried = |row: &&Value| row["setting"]["carried"] == true;
    let pairs: Vec<(&str, &str)> = rows
        .iter()
        .filter(carried)
        .filter(|row| row["runs"].as_array().is_some_and(|runs| !runs.is_empty()))
        .filter_map(|row| {
            let setting = &row["setting"];
            Some((setting["cipher"].as_str()?, setting["mac"].as_str()?))
        })
        .collect();
    let asked = [("aes128-cbc", "hmac-sha2-256"), ("aes128-ctr", "hmac-sha1")];
    assert_eq!(pairs, asked, "{outcome}");
    let advice = result["advice"].to_string();
    assert!(
        !advice.contains("cbc") && !advice.contains("sha1"),
        "{advice}"
    );
}

#[test]
fn what_it_leaves_is_what_it_found_and_a_page() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let before = ours_in(Path::new("/dev/shm"));
    let page = scene.path("page.html");
    fs::create_dir_all(scene.path("there")).expect("our folder");
    fs::write(scene.path("own"), "some words of mine\n".repeat(5000)).expect("our file");
    let flags = [
        "--json",
        "--time",
        "20s",
        "--data",
        "text",
        "--lanes",
        "1x1",
        "-c",
        "aes128-gcm@openssh.com",
        "--far-dir",
    ];
    let outcome = bench(&scene, &flags)
        .arg(scene.path("there"))
        .arg("--file")
        .arg(scene.path("own"))
        .arg("--html")
        .arg(&page)
        .arg("peer")
        .run()
        .expect_code(0);
    let result = json(&outcome);
    let has = |member: &str, value: &str| {
        let rows = result["rows"].as_array().expect("rows");
        rows.iter().any(|row| row["setting"][member] == value)
    };
    assert!(
        has("data", "file") && has("compression", "zlib"),
        "{outcome}"
    );
    assert!(!result["ratios"].as_array().expect("ratios").is_empty());
    assert!(
        !result["advice"].as_array().expect("advice").is_empty(),
        "{outcome}"
    );
    // The shell of this server reports its processor time.
    assert!(
        result["host"]["far_cpu"]
            .as_str()
            .expect("a text")
            .starts_with("of the SSH server"),
        "{outcome}"
    );
    let html = fs::read_to_string(&page).expect("a page");
    assert!(html.contains("<svg") && html.contains("aes128-gcm"));
    nothing_left(&scene.path("disk"), &before);
    assert_eq!(ours_in(&scene.path("there")), [""; 0]);
    // The result is stored in the host memory.
    let hosts = scene.client.dir.path().join("cache/longhaul/hosts");
    let files = fs::read_dir(&hosts).expect("a memory").flatten();
    let kept: String = files
        .map(|file| fs::read_to_string(file.path()).expect("a file"))
        .collect();
    assert!(
        kept.contains("findings") && kept.contains("longhaul bench"),
        "{kept}"
    );
}

#[test]
fn with_longhaul_at_both_ends_there_is_zstd() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let flags = [
        "--json",
        "--time",
        "16s",
        "--place",
        "memory",
        "--data",
        "text",
        "--lanes",
        "1x1",
        "-c",
        "aes128-gcm@openssh.com",
        "peer",
    ];
    let outcome = bench(&ends.scene, &flags).run().expect_code(0);
    let result = json(&outcome);
    let rows = result["rows"].as_array().expect("rows");
    let zstd = rows
        .iter()
        .find(|row| row["setting"]["compression"] == "zstd");
    let zstd = zstd.unwrap_or_else(|| panic!("no zstd: {outcome}"));
    assert_eq!(zstd["setting"]["both_ours"], true);
    assert!(zstd["trouble"].is_null(), "{outcome}");
}

/// Reports if more was done than what precedes the first run.
fn has_measured(scene: &Scene) -> bool {
    let log = scene.peer.log();
    // The probe of the far end, two tiny copies, and a check for a longhaul there.
    log.matches("Accepted publickey").count() >= 12
}

#[test]
fn interrupted_it_keeps_what_it_has_and_says_so() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let before = ours_in(Path::new("/dev/shm"));
    let running = bench(
        &scene,
        &["--json", "--time", "10m", "--place", "memory", "peer"],
    )
    .spawn();
    assert!(running.until(|| has_measured(&scene)));
    running.interrupt();
    let outcome = running.wait().expect_code(130);
    let result = json(&outcome);
    assert_eq!(result["partial"], "interrupted");
    assert!(!measured(&result).is_empty(), "{outcome}");
    nothing_left(&scene.path("disk"), &before);
}

#[test]
fn a_server_that_goes_away_leaves_what_was_measured() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let flags = ["--json", "--time", "10m", "--place", "memory", "peer"];
    let running = bench(&scene, &flags).spawn();
    assert!(running.until(|| has_measured(&scene)));
    let Scene { peer, .. } = scene;
    drop(peer);
    let outcome = running.wait().expect_code(255);
    let errors = outcome.err();
    // The expected duration is printed first, and the reason for the end last.
    let outlook = errors.lines().next().unwrap_or_default();
    assert!(outlook.contains("for about 10 min"), "{outcome}");
    assert_eq!(errors.lines().count(), 2, "{outcome}");
    let result = json(&outcome);
    assert!(result["partial"].is_string(), "{outcome}");
    // Files that may be left at the far end are named, so that the user can remove them.
    let warnings = result["warnings"].as_array().expect("an array").iter();
    let told = warnings.filter_map(|w| w.as_str()?.split_once(": "));
    let named = told.filter_map(|(_, w)| w.split_once(" may be left there"));
    let removed = named.filter(|(path, _)| {
        assert!(path.starts_with("/dev/shm/longhaul-bench-"), "{path}");
        fs::remove_file(path).is_ok()
    });
    assert!(removed.count() >= 1, "{outcome}");
}

#[test]
fn what_keeps_it_from_beginning_is_one_sentence() {
    let dir = ClientDir::new();
    let silent = Silent::start();
    let port = silent.port().to_string();
    for (flags, says, code) in [
        (&["no-such-host.invalid"][..], "no-such-host.invalid", 255),
        (&["-P", "1", "127.0.0.1"], "refused", 255),
        (
            &["-o", "ConnectTimeout=1", "-P", &port, "127.0.0.1"],
            "127.0.0.1",
            255,
        ),
        (
            &["compare", "/nonexistent", "/nonexistent"],
            "/nonexistent: ",
            1,
        ),
        (&["/etc/passwd"], "is a local path", 2),
    ] {
        let run = dir.run(longhaul()).arg("bench").arg("-F").arg(dir.config());
        let outcome = run.args(flags).timeout(Duration::from_secs(60)).run();
        let text = outcome.err();
        assert_eq!(text.lines().count(), 1, "{outcome}");
        assert!(
            text.starts_with("error: ") && text.contains(says),
            "{outcome}"
        );
        assert_eq!(outcome.out(), "", "{outcome}");
        outcome.expect_code(code);
    }
}

#[test]
fn a_wrong_key_is_one_error() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    scene.client.dir = ClientDir::new();
    scene.client.dir.add_host("peer", &scene.peer);
    let outcome = bench(&scene, &["--time", "1s", "peer"])
        .run()
        .expect_code(255);
    assert_eq!(outcome.err().matches("error: ").count(), 1, "{outcome}");
    outcome.expect_err(&["permission denied", "key offered: "]);
}

/// Tells threads to stop when dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_busy_machine_is_noticed_and_two_results_are_compared() {
    let dir = ClientDir::new();
    let run = |name: &str| {
        let outcome = dir
            .run(longhaul())
            .args(["bench", "--local", "--time", "1s", "--json"])
            .timeout(Duration::from_secs(120))
            .run()
            .expect_code(0);
        let file = dir.path().join(name);
        fs::write(&file, outcome.out()).expect("our file");
        (file, json(&outcome))
    };
    let stop = AtomicBool::new(false);
    let (first, result) = thread::scope(|scope| {
        // The scope waits for the threads even if the run fails.
        let _stops = Stops(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        run("a.json")
    });
    let warnings = result["warnings"].to_string();
    assert!(warnings.contains("busy"), "{warnings}");
    let names = strings(&result["primitives"], "name");
    for name in [
        "aes256-gcm@openssh.com",
        "aes128-ctr hmac-sha2-256",
        "zstd",
        "zlib",
        "sha256",
    ] {
        assert!(names.contains(&name), "{name} is missing: {names:?}");
    }
    let (second, _) = run("b.json");
    let outcome = dir
        .run(longhaul())
        .args(["bench", "compare"])
        .args([&first, &second])
        .run()
        .expect_code(0);
    assert!(outcome.out().contains("times as fast"), "{outcome}");
}

/// Bug: a file was said to be left at a host on which nothing can be written.
#[test]
fn a_host_without_sftp_has_no_files_left() {
    let builder = PeerBuilder::openssh().option("Subsystem", "none /bin/false");
    let Some(scene) = Scene::with(builder).filter(|scene| !scene.client.is_scp()) else {
        return;
    };
    let outcome = bench(&scene, &["--time", "5s", "peer"]).run();
    let outcome = outcome.expect_code(255).expect_err(&["SFTP"]);
    assert!(!outcome.err().contains("left"), "{outcome}");
}
