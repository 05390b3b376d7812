//! Direct data connections to a longhaul at the far end (`--far-end=direct`), and what happens if
//! they are impossible.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use longhaul_tests::{Scene, Silent, longhaul, names_in};
use ssh::direct_control::{self, DirectListeningReply, VERSION};
use ssh::key::PrivateKey;
use testkit::peer::PeerBuilder;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{Outcome, Run, Seed};

/// Message of `-v` if direct connections are used.
const USED: &str = "using a direct connection for data";

/// sshd whose users find `longhaul` on a PATH of their own.
struct Far {
    scene: Scene,
    bin: tempfile::TempDir,
}

impl Far {
    fn with(builder: PeerBuilder) -> Option<Self> {
        let bin = tempfile::tempdir().expect("a folder");
        let path = format!("PATH={}:/usr/bin:/bin", bin.path().display());
        let scene = Scene::with(builder.option("SetEnv", path))?;
        if scene.client.is_scp() {
            return None;
        }
        for folder in ["from", "to"] {
            fs::create_dir_all(scene.path(folder)).expect("our folder");
        }
        Some(Self { scene, bin })
    }

    /// Starts it with longhaul installed.
    fn start() -> Option<Self> {
        let far = Self::with(PeerBuilder::openssh())?;
        far.install("exec", "");
        Some(far)
    }

    /// Installs a script that runs `before` and then longhaul.
    fn install(&self, before: &str, flags: &str) {
        let real = longhaul();
        self.script(&format!("{before} {} \"$@\" {flags}", real.display()));
    }

    fn script(&self, text: &str) {
        let file = self.bin.path().join("longhaul");
        // Start folder of the test's SFTP server.
        let home = self.scene.peer.home().display();
        write_file(&file, format!("#!/bin/sh\ncd {home}\n{text}\n").as_bytes());
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&file, all).expect("our file");
        let folder = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.bin.path(), folder).expect("our folder");
    }

    /// Installs a script that prints this instead of longhaul's answer, and does not listen.
    fn says(&self, what: &[u8]) {
        let file = self.bin.path().join("said");
        write_file(&file, what);
        self.script(&format!("cat {}; exec cat >/dev/null", file.display()));
    }

    /// Installs a script that claims to listen at `port` with the host key `key`.
    fn claims(&self, port: u16, key: &PrivateKey) {
        self.claims_blob(port, key.public_blob());
    }

    /// Installs a script that claims to listen at `port` with this public host key.
    fn claims_blob(&self, port: u16, host_key: &[u8]) {
        let user = self.scene.peer.user().as_bytes();
        let message = DirectListeningReply {
            version: VERSION,
            port: port.into(),
            user,
            host_key,
            software: env!("CARGO_PKG_VERSION").as_bytes(),
        };
        let framed = direct_control::framed(&message.to_bytes());
        self.says(&[direct_control::marker(), &framed].concat());
    }

    fn cp(&self) -> Run {
        let run = self.scene.client.cp();
        run.args(["-vv", "--far-end=direct"])
            .timeout(Duration::from_secs(60))
    }

    /// Copies a file up and down.
    fn there_and_back(&self, flags: &[&str]) -> [Outcome; 2] {
        let content = Seed::new(7).bytes(9_000_001);
        write_file(&self.scene.path("file"), &content);
        let up = self.cp().args(flags).arg(self.scene.path("file"));
        let up = up.arg(self.scene.remote("up")).run().expect_code(0);
        let down = self.cp().args(flags).arg(self.scene.remote("up"));
        let down = down.arg(self.scene.path("down")).run().expect_code(0);
        for name in ["up", "down"] {
            assert!(
                fs::read(self.scene.path(name)).expect("a copy") == content,
                "{name}"
            );
        }
        [up, down]
    }

    /// Asserts that files are copied without direct connections, for this reason.
    #[track_caller]
    fn goes_on_without(&self, why: &str) {
        for outcome in self.there_and_back(&[]) {
            let said = outcome.err();
            assert!(!said.contains(USED), "{said}");
            assert!(said.contains(why), "{why:?} is not in\n{said}");
        }
    }

    fn logins(&self) -> usize {
        self.scene.peer.log().matches("Accepted publickey").count()
    }
}

#[track_caller]
fn used(outcomes: [Outcome; 2]) {
    for outcome in outcomes {
        assert!(outcome.err().contains(USED), "{outcome}");
    }
}

/// Returns processes with `word` among their arguments.
fn with_word(word: &str) -> Vec<u32> {
    let all = names_in(Path::new("/proc")).into_iter();
    let pids = all.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|b| *b == 0).any(|w| w == word.as_bytes())
    })
    .collect()
}

pub(crate) fn until(what: impl Fn() -> bool) -> bool {
    testkit::wait::up_to(Duration::from_secs(10), what)
}

#[test]
fn data_go_straight_both_ways_and_take_one_login() {
    let Some(far) = Far::start() else { return };
    used(far.there_and_back(&["--connections=4"]));
    assert_eq!(far.logins(), 2, "{}", far.scene.peer.log());
}

/// Ciphers, MACs and KexAlgorithms of ssh_config apply to every connection, including direct ones.
#[test]
fn what_protects_them_is_what_the_user_allows() {
    let Some(far) = Far::start() else { return };
    let flags = ["-vv", "-c", "aes256-gcm@openssh.com", "--connections=3"];
    for outcome in far.there_and_back(&flags) {
        let err = outcome.err();
        let ciphers: Vec<&str> = err.lines().filter(|l| l.contains(", ciphers ")).collect();
        assert!(ciphers.len() > 1 && err.contains(USED), "{outcome}");
        for line in ciphers {
            let said =
                "ciphers aes256-gcm@openssh.com (sent) and aes256-gcm@openssh.com (received)";
            assert!(line.contains(said), "{outcome}");
        }
    }
}

#[test]
fn a_server_that_allows_one_session_and_one_login_is_enough() {
    let Some(far) = Far::with(PeerBuilder::openssh().option("MaxSessions", "1")) else {
        return;
    };
    far.install("exec", "");
    used(far.there_and_back(&["--connections=3", "--channels=2"]));
    assert_eq!(far.logins(), 2, "{}", far.scene.peer.log());
    // Without longhaul, the one session is used for the SFTP server.
    far.script("exit 3");
    far.goes_on_without("no direct connection");
}

#[test]
fn trees_go_there_and_come_back_as_they_are() {
    const ALL: Compare = Compare {
        modes: true,
        times: true,
        follow: false,
    };
    let Some(far) = Far::start() else { return };
    Tree::full(1).make(&far.scene.path("tree"));
    let run = |from: std::ffi::OsString, to: std::ffi::OsString| {
        let outcome = far.cp().arg("-a").arg(from).arg(to).run().expect_code(0);
        assert!(outcome.err().contains(USED), "{outcome}");
    };
    run(far.scene.path("tree").into(), far.scene.remote("there"));
    run(far.scene.remote("there"), far.scene.path("here").into());
    for name in ["there", "here"] {
        assert_same(&far.scene.path("tree"), &far.scene.path(name), ALL);
    }
}

#[test]
fn what_a_login_prints_is_passed_over() {
    let Some(far) = Far::start() else { return };
    let noise = "echo Welcome; seq 1 3000; printf 'no end of line';";
    far.install(&format!("{noise} exec"), "");
    used(far.there_and_back(&[]));
}

#[test]
fn two_clients_at_once_have_their_own_servers() {
    let Some(far) = Far::start() else { return };
    let run = |n: u64| {
        let from = far.scene.path(&format!("file{n}"));
        write_file(&from, &Seed::new(n).bytes(20_000_000));
        let to = far.scene.remote(&format!("copy{n}"));
        far.cp().arg(from).arg(to).spawn()
    };
    let both = [run(1), run(2)];
    for (n, running) in both.into_iter().enumerate() {
        let outcome = running.wait().expect_code(0);
        assert!(outcome.err().contains(USED), "{outcome}");
        let read = |name: String| fs::read(far.scene.path(&name)).unwrap();
        assert!(read(format!("file{}", n + 1)) == read(format!("copy{}", n + 1)));
    }
}

#[test]
fn without_a_longhaul_there_the_sftp_server_is_used() {
    let Some(far) = Far::with(PeerBuilder::openssh()) else {
        return;
    };
    far.goes_on_without("longhaul was not found at the far end");
    far.says(b"something else altogether\n");
    far.script("printf 'something else'; exit 0");
    far.goes_on_without("no direct connection");
    // Endless output is not longhaul either.
    far.script("yes");
    far.goes_on_without("did not start at the far end");
}

#[test]
fn another_machine_at_the_port_is_refused() {
    let Some(far) = Far::start() else { return };
    // The announced key is not that of the server at the port.
    let told = PrivateKey::generate_ed25519().unwrap();
    far.claims(far.scene.peer.port(), &told);
    far.goes_on_without("another machine may be intercepting the connection");
}

/// Requests sent together with a login are lost if it is refused, and are repeated.
#[test]
fn a_server_that_refuses_the_key_after_all_is_left() {
    let Some(far) = Far::start() else { return };
    let other = PeerBuilder::longhaul(longhaul(), [""; 0]);
    let Some(other) = Scene::with(other) else {
        return;
    };
    // The announced longhaul, with other keys.
    let line = other.peer.host_keys()[0].public_line();
    let blob = line.split_whitespace().nth(1).expect("type and key");
    let blob = BASE64_STANDARD.decode(blob).expect("a public key");
    far.claims_blob(other.peer.port(), &blob);
    for outcome in far.there_and_back(&[]) {
        let said = outcome.err();
        assert!(!said.contains("directly to longhaul"), "{said}");
    }
}

#[test]
fn a_closed_port_costs_next_to_nothing() {
    let Some(far) = Far::start() else { return };
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    far.claims(port, &PrivateKey::generate_ed25519().unwrap());
    far.goes_on_without("refused the connection");
}

#[test]
fn a_firewall_that_drops_is_given_up_soon() {
    let Some(far) = Far::start() else { return };
    // A listener with a full queue accepts no SYN and reports nothing.
    let silent = Silent::start();
    far.claims(silent.port(), &PrivateKey::generate_ed25519().unwrap());
    let began = Instant::now();
    far.goes_on_without("did not answer within");
    assert!(began.elapsed() < Duration::from_secs(15));
}

#[test]
fn another_version_is_named() {
    let Some(far) = Far::start() else { return };
    let later = [&[17][..], &9_u32.to_be_bytes(), b"whatever"].concat();
    far.says(&[direct_control::marker(), &direct_control::framed(&later)].concat());
    far.goes_on_without("upgrade this end");
}

#[test]
fn rights_of_the_far_end_hold() {
    let Some(far) = Far::start() else { return };
    far.install("exec", "--read-only");
    write_file(&far.scene.path("file"), b"content");
    let get = far.cp().arg(far.scene.remote("file"));
    let outcome = get.arg(far.scene.path("got")).run().expect_code(0);
    assert!(outcome.err().contains(USED), "{outcome}");
    let put = far.cp().arg(far.scene.path("file"));
    let outcome = put.arg(far.scene.remote("put")).run();
    assert!(outcome.code != Some(0), "{outcome}");
    assert!(!far.scene.path("put").exists());
}

#[test]
fn a_port_range_is_kept_to() {
    let Some(far) = Far::start() else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    far.install("exec", &format!("--port-range {port}-{port}"));
    far.goes_on_without("cannot listen on");
    drop(taken);
    used(far.there_and_back(&[]));
}

#[test]
fn nothing_is_left_when_the_login_is_ended_in_between() {
    let Some(far) = Far::start() else { return };
    // Distinguishes these processes from those of other tests.
    let mine = far.bin.path().join("mine");
    fs::create_dir(&mine).expect("our folder");
    let root = format!("--root={}", "/");
    let word = format!("--port-range={}", 20_000 + std::process::id() % 20_000);
    let word = format!("{word}-{}", 60_000);
    far.install("exec", &format!("{root} {word}"));
    write_file(&far.scene.path("file"), &Seed::new(3).bytes(4_000_000));
    let running = far
        .cp()
        .args(["--limit", "500k"])
        .arg(far.scene.path("file"))
        .arg(far.scene.remote("copy"))
        .spawn();
    assert!(running.until(|| !with_word(&word).is_empty()), "no server");
    assert!(running.until(|| running.shows(USED)), "not used");
    for pid in far.scene.peer.sessions() {
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    assert!(until(|| with_word(&word).is_empty()), "a server is left");
    drop(running);
}

/// Size of a file that is copied directly by default.
const LARGE: usize = 60_000_000;

#[test]
fn by_itself_a_large_copy_moves_over_without_a_pause() {
    let Some(far) = Far::start() else { return };
    let run = |from: std::ffi::OsString, to: std::ffi::OsString| {
        // Slow enough for a direct connection to be opened in time.
        let run = far.scene.client.cp().args(["-vv", "--limit", "30M"]);
        run.arg(from).arg(to).run().expect_code(0)
    };
    write_file(&far.scene.path("file"), &Seed::new(5).bytes(LARGE));
    let up = run(far.scene.path("file").into(), far.scene.remote("up"));
    let down = run(far.scene.remote("up"), far.scene.path("down").into());
    for outcome in [up, down] {
        assert!(outcome.err().contains(USED), "{outcome}");
        assert!(outcome.err().contains("directly to longhaul"), "{outcome}");
    }
    let read = |name: &str| fs::read(far.scene.path(name)).unwrap();
    assert!(read("file") == read("up") && read("file") == read("down"));
    assert_eq!(far.logins(), 2, "{}", far.scene.peer.log());
}

#[test]
fn a_port_that_was_closed_is_not_tried_by_itself_within_a_day() {
    let Some(far) = Far::start() else { return };
    // Announced by the longhaul there, and blocked on the way.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    far.claims(port, &PrivateKey::generate_ed25519().unwrap());
    let lies = far.bin.path().join("lies");
    fs::rename(far.bin.path().join("longhaul"), &lies).unwrap();
    far.script(&format!(
        "case $2 in --once) exec {} ;; esac\nexec {} \"$@\"",
        lies.display(),
        longhaul().display()
    ));
    write_file(&far.scene.path("file"), &Seed::new(5).bytes(LARGE));
    let run = |to: &str| {
        let run = far.scene.client.cp().args(["-vv", "--limit", "30M"]);
        let run = run.arg(far.scene.path("file")).arg(far.scene.remote(to));
        run.run().expect_code(0).err()
    };
    let first = run("one");
    assert!(first.contains("refused the connection"), "{first}");
    assert!(first.contains("without a direct connection:"), "{first}");
    let second = run("two");
    assert!(second.contains("within the last day"), "{second}");
    assert!(!second.contains("refused the connection"), "{second}");
}
