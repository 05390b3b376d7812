//! Copies directly from one host to another, controlled from here, and what happens if that is
//! impossible.

mod resumed;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{Client, longhaul, names_in, remote, scratch};
use serde_json::Value;
use ssh::direct_control::{
    self, DirectListeningReply, RestrictSourcesRequest, ServerAddresses, VERSION, write_list,
};
use ssh::key::PrivateKey;
use testkit::peer::{PeerBuilder, PeerServer};
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{DelayProxy, Outcome, Run, Seed};

/// The closing line's words for the direct way.
const DIRECT: &str = "directly between the hosts";
/// The closing line's words for the other way.
const THROUGH_HERE: &str = "through this machine";

/// One of the two hosts, whose users find `longhaul` on a PATH of their own.
struct Host {
    peer: PeerServer,
    bin: tempfile::TempDir,
}

impl Host {
    fn start(name: &str, client: &mut Client) -> Option<Self> {
        let bin = tempfile::tempdir().expect("a folder");
        let path = format!("PATH={}:/usr/bin:/bin", bin.path().display());
        let builder = PeerBuilder::openssh().option("SetEnv", path);
        let peer = builder.authorize(&client.dir).start()?;
        client.dir.add_host(name, &peer);
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bin.path(), all).expect("our folder");
        let host = Self { peer, bin };
        host.install();
        Some(host)
    }

    fn install(&self) {
        self.script(&format!("exec {} \"$@\"", longhaul().display()));
    }

    fn script(&self, text: &str) {
        let file = self.program();
        let own = self.bin.path().display();
        let state = format!("export XDG_CACHE_HOME={own}/cache XDG_STATE_HOME={own}/state");
        write_file(&file, format!("#!/bin/sh\n{state}\n{text}\n").as_bytes());
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&file, all).expect("our file");
    }

    fn program(&self) -> PathBuf {
        self.bin.path().join("longhaul")
    }

    fn remove(&self) {
        fs::remove_file(self.program()).expect("our file");
    }

    /// Installs a script that prints this instead of longhaul's answer.
    fn says(&self, what: &[u8]) {
        let file = self.bin.path().join("said");
        write_file(&file, what);
        self.script(&format!("cat {}; exec cat >/dev/null", file.display()));
    }

    /// Installs a script that prints this instead of the answer of `serve --once`, and serves SFTP.
    fn says_once(&self, what: &[u8]) {
        let file = self.bin.path().join("said");
        write_file(&file, what);
        let (file, real) = (file.display(), longhaul());
        let real = real.display();
        self.script(&format!(
            "[ \"$2\" = --once ] || exec {real} \"$@\"\ncat {file}; exec cat >/dev/null"
        ));
    }

    /// Kills the processes that serve connections.
    fn loses_its_sessions(&self) {
        for pid in self.peer.sessions() {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process number");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    fn logins(&self) -> usize {
        self.peer.log().matches("Accepted publickey").count()
    }
}

struct Pair {
    client: Client,
    a: Host,
    b: Host,
    scratch: tempfile::TempDir,
}

impl Pair {
    fn start() -> Option<Self> {
        let mut client = Client::new();
        if client.is_scp() {
            return None;
        }
        let a = Host::start("a", &mut client)?;
        let b = Host::start("b", &mut client)?;
        let scratch = scratch();
        for folder in ["from", "to"] {
            fs::create_dir(scratch.path().join(folder)).expect("our folder");
        }
        Some(Self {
            client,
            a,
            b,
            scratch,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn cp(&self, flags: &[&str], from: &str, to: &str) -> Run {
        let run = self.client.cp().args(flags);
        let run = run.arg(remote("a", &self.path(from)));
        run.arg(remote("b", &self.path(to)))
            .timeout(Duration::from_secs(90))
    }

    /// Copies a file, asserts that it is whole, and returns what was said.
    #[track_caller]
    fn copies_a_file(&self, flags: &[&str]) -> String {
        let content = Seed::new(9).bytes(3_000_001);
        write_file(&self.path("from/file"), &content);
        let copied = self.path("to/file");
        let _ = fs::remove_file(&copied);
        let outcome = self.cp(flags, "from/file", "to/file").run().expect_code(0);
        assert!(fs::read(copied).expect("a copy") == content, "{outcome}");
        outcome.err()
    }

    /// Asserts that the file goes through this machine, for this reason, with hosts that are not
    /// known yet.
    #[track_caller]
    fn goes_through_here(&self, why: &str) {
        let cache = self.client.dir.path().join("cache");
        fs::remove_dir_all(&cache).expect("our folder");
        fs::create_dir(&cache).expect("our folder");
        self.goes_through_here_again(why);
    }

    #[track_caller]
    fn goes_through_here_again(&self, why: &str) {
        let said = self.copies_a_file(&[]);
        assert!(!said.contains(DIRECT), "{said}");
        let line = said.lines().find(|line| line.contains(THROUGH_HERE));
        let line = line.unwrap_or_else(|| panic!("no way in\n{said}"));
        assert!(line.contains(why), "{why:?} is not in\n{line}");
    }

    /// Waits until no process that the hosts have started is left.
    #[track_caller]
    fn leaves_nothing(&self) {
        for host in [&self.a, &self.b] {
            testkit::wait::until(
                Duration::from_secs(20),
                || host.peer.sessions().is_empty(),
                || format!("{:?} still run", host.peer.processes()),
            );
        }
    }
}

fn event(outcome: &Outcome, name: &str) -> Value {
    let out = outcome.out();
    let all = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let mut found = all.filter(|event: &Value| event["event"] == name);
    found
        .next_back()
        .unwrap_or_else(|| panic!("no {name} in\n{out}"))
}

#[test]
fn a_tree_moves_directly_and_nothing_stays() {
    let Some(pair) = Pair::start() else { return };
    Tree::plain(5).make(&pair.path("from/tree"));
    let flags = ["-r", "-p", "--json", "--explain"];
    let outcome = pair.cp(&flags, "from/tree", "to").run().expect_code(0);
    assert_same(
        &pair.path("from/tree"),
        &pair.path("to/tree"),
        Compare::CONTENT,
    );
    let summary = event(&outcome, "summary");
    assert_eq!(summary["way"]["kind"], "direct", "{summary}");
    assert_eq!(summary["way"]["connected"], "b", "{summary}");
    let done = event(&outcome, "file_done");
    let from = format!("a:{}", pair.path("from/tree").display());
    let to = format!("b:{}", pair.path("to/tree").display());
    assert!(
        done["source"]
            .as_str()
            .is_some_and(|s| s.starts_with(&from)),
        "{done}"
    );
    assert!(
        done["target"].as_str().is_some_and(|s| s.starts_with(&to)),
        "{done}"
    );
    let decisions = outcome.out();
    assert!(decisions.contains(r#""what":"way""#), "{decisions}");
    // One login each: the data used none.
    assert_eq!((pair.a.logins(), pair.b.logins()), (1, 1));
    pair.leaves_nothing();
}

/// Bug: the warnings at the end of a direct copy had the path of their first entry in the text, as
/// the receiver knows it, so that it looked like a path of this machine.
#[test]
fn closing_warnings_named_entries_as_the_receiver_knows_them() {
    let Some(pair) = Pair::start() else { return };
    for folder in ["from/tree", "to/tree"] {
        fs::create_dir(pair.path(folder)).expect("our folder");
    }
    write_file(&pair.path("from/tree/file"), b"new");
    symlink("/etc/hosts", pair.path("from/tree/out")).expect("a link");
    write_file(&pair.path("to/tree/file"), b"old");
    fs::hard_link(pair.path("to/tree/file"), pair.path("to/other")).expect("a link");
    let flags = ["-a", "--safe-links", "--json"];
    let outcome = pair.cp(&flags, "from/tree", "to").run().expect_code(0);
    assert_eq!(event(&outcome, "summary")["way"]["kind"], "direct");
    let out = outcome.out();
    let warnings: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|event: &Value| event["event"] == "warning")
        .collect();
    for (name, about) in [
        ("file", "hard links: other names of this file keep"),
        ("out", "--safe-links: skipped this symlink"),
    ] {
        let path = format!("b:{}", pair.path("to/tree").join(name).display());
        let is_named = |event: &&Value| event["path"] == path.as_str();
        let found = warnings.iter().find(is_named);
        let message = found.and_then(|event| event["message"].as_str());
        assert!(
            message.is_some_and(|text| text.contains(about) && !text.contains("/to/")),
            "{name}: {outcome}"
        );
    }
}

#[test]
fn the_closing_line_says_which_way_and_why() {
    let Some(pair) = Pair::start() else { return };
    let direct = pair.copies_a_file(&[]);
    assert!(
        direct.contains(DIRECT) && direct.contains("b can connect to a"),
        "{direct}"
    );
    for flag in ["-3", "--through-here"] {
        let said = pair.copies_a_file(&[flag]);
        let line = format!("{THROUGH_HERE}, because -3 (--through-here) was given");
        assert!(said.contains(&line), "{said}");
    }
}

#[test]
fn flags_have_the_same_effect_on_both_ways() {
    let Some(pair) = Pair::start() else { return };
    let limit = ["--limit", "2MB/s"];
    let start = std::time::Instant::now();
    let said = pair.copies_a_file(&limit);
    assert!(said.contains(DIRECT), "{said}");
    assert!(start.elapsed() > Duration::from_millis(900), "{said}");
    let said = pair.copies_a_file(&["--verify", "--fsync"]);
    assert!(
        said.contains("verified") && said.contains("flushed to disk and renamed"),
        "{said}"
    );
}

#[test]
fn failures_name_the_right_host_and_give_the_same_exit_code() {
    let Some(pair) = Pair::start() else { return };
    for flags in [&[][..], &["--through-here"]] {
        let missing = pair.cp(flags, "from/none", "to/file").run().expect_code(1);
        let name = format!("a:{}", pair.path("from/none").display());
        missing.expect_err(&[&name, "No such file"]);
        write_file(&pair.path("from/file"), b"x");
        let nowhere = pair
            .cp(flags, "from/file", "none/file")
            .run()
            .expect_code(1);
        nowhere.expect_err(&[&format!("b:{}", pair.path("none").display())]);
    }
}

#[test]
fn without_longhaul_on_both_hosts_the_data_goes_through_here() {
    let Some(pair) = Pair::start() else { return };
    pair.b.remove();
    pair.goes_through_here("longhaul was not found on b");
    // Neither host is searched again within a day.
    let before = pair.a.logins();
    pair.goes_through_here_again("longhaul was not there when last checked");
    assert_eq!(pair.a.logins(), before + 1);
}

/// The SFTP server and `longhaul serve --stdio` of an account may begin at different directories.
/// Such a longhaul was remembered as missing, and the direct way not tried for a day.
#[test]
fn a_longhaul_that_could_not_serve_files_is_not_remembered_as_missing() {
    let Some(pair) = Pair::start() else { return };
    for host in [&pair.a, &pair.b] {
        let real = longhaul();
        let real = real.display();
        host.script(&format!(
            "[ \"$2\" = --once ] || [ \"$1\" = receive ] || cd /; exec {real} \"$@\""
        ));
    }
    let flags = ["--through-here", "--explain", "--limit=2MB"];
    let said = pair.copies_a_file(&flags);
    assert!(said.contains("relative paths start at"), "{said}");
    let said = pair.copies_a_file(&[]);
    assert!(said.contains(DIRECT), "{said}");
}

#[test]
fn without_longhaul_at_the_source_the_data_goes_through_here() {
    let Some(pair) = Pair::start() else { return };
    pair.a.remove();
    pair.goes_through_here("longhaul was not found on a");
}

#[test]
fn a_longhaul_without_this_command_is_to_be_upgraded() {
    let Some(pair) = Pair::start() else { return };
    pair.b
        .script("echo \"error: unrecognized subcommand 'receive'\" >&2; exit 2");
    pair.goes_through_here("longhaul on b ended before it answered");
}

#[test]
fn a_symlink_that_leads_out_of_the_sources_is_copied_through_here() {
    let Some(pair) = Pair::start() else { return };
    fs::create_dir(pair.path("from/tree")).expect("our folder");
    write_file(&pair.path("outside"), b"outside");
    symlink(pair.path("outside"), pair.path("from/tree/link")).expect("our folder");
    let outcome = pair.cp(&["-r"], "from/tree", "to").run().expect_code(0);
    outcome.expect_err(&[THROUGH_HERE, "leads out of the copied files"]);
    assert_eq!(
        fs::read(pair.path("to/tree/link")).expect("a copy"),
        b"outside"
    );
}

/// Bug: the receiver, to which the sources have other paths, copied the directory into itself.
#[test]
fn a_directory_is_not_copied_into_itself_between_two_names_of_a_machine() {
    let Some(pair) = Pair::start() else { return };
    fs::create_dir(pair.path("from/tree")).expect("our folder");
    write_file(&pair.path("from/tree/file"), b"file");
    let outcome = pair.cp(&["-r"], "from/tree", "from/tree/sub").run();
    let outcome = outcome.expect_code(1);
    outcome.expect_err(&["cannot be copied into itself"]);
    assert!(!pair.path("from/tree/sub").exists());
    // A target with a similar name is written directly.
    let outcome = pair
        .cp(&["-r"], "from/tree", "from/tree2")
        .run()
        .expect_code(0);
    assert!(outcome.err().contains(DIRECT), "{outcome}");
}

/// Answers of a hostile source. The receiver connects to nothing else, and what it wrote is right.
#[test]
fn a_hostile_source_gains_nothing_but_the_other_way() {
    let Some(pair) = Pair::start() else { return };
    let key = PrivateKey::generate_ed25519().expect("a key");
    let answer = |port: u16, addresses: &[&str]| {
        let listening = DirectListeningReply {
            version: VERSION,
            port: port.into(),
            user: pair.a.peer.user().as_bytes(),
            host_key: key.public_blob(),
            software: env!("CARGO_PKG_VERSION").as_bytes(),
        };
        let addresses = write_list(addresses.iter().map(|a| a.as_bytes()));
        let own = ServerAddresses {
            addresses: &addresses,
        };
        [
            direct_control::marker(),
            &direct_control::framed(&own.to_bytes()),
            &direct_control::framed(&listening.to_bytes()),
        ]
        .concat()
    };
    let too_long = [direct_control::marker(), &[0xff; 64]].concat();
    let many = vec!["192.0.2.1"; 100];
    let closed = testkit::port::free();
    for (what, why) in [
        // Another server at the port, such as b's own sshd: its key is not the announced one.
        (answer(pair.b.peer.port(), &[]), "host key"),
        (answer(closed, &["not an address"]), "invalid list"),
        (answer(closed, &many), "invalid list"),
        (answer(closed, &[]), "cannot connect to 127.0.0.1"),
        (too_long, "exceeds the limit"),
        (vec![b'x'; 1 << 17], THROUGH_HERE),
    ] {
        pair.a.says_once(&what);
        pair.goes_through_here(why);
    }
    pair.leaves_nothing();
}

/// The receiver has the one-time keys, and must not get more files of the source with them.
#[test]
fn a_hostile_receiver_cannot_ask_the_source_for_other_files() {
    let Some(pair) = Pair::start() else { return };
    let names = write_list([&b"/."[..]]);
    let request = RestrictSourcesRequest {
        version: VERSION,
        root: b"/",
        names: &names,
        follow: false,
    };
    let body = direct_control::framed(&request.to_bytes());
    let len = u32::try_from(body.len() + 1).expect("short").to_be_bytes();
    pair.b
        .says(&[b"\nlonghaul-receives\n", &len[..], &[49], &body].concat());
    pair.goes_through_here("the receiving host requested files that are not part of this copy");
    pair.b
        .says(&[b"\nlonghaul-receives\n", &[0xff; 64][..]].concat());
    pair.goes_through_here("b: longhaul cannot be started: a message with the invalid length of ");
    pair.leaves_nothing();
}

/// Messages of a receiver: each kind with its JSON or bytes.
fn reports(messages: &[(u8, &[u8])]) -> Vec<u8> {
    let mut said = b"\nlonghaul-receives\n".to_vec();
    for (kind, body) in messages {
        let len = u32::try_from(body.len() + 1).expect("short");
        said.extend_from_slice(&len.to_be_bytes());
        said.push(*kind);
        said.extend_from_slice(body);
    }
    said
}

/// Report of the first connection.
const CONNECTED: (u8, &[u8]) = (50, br#"{"dialed":false,"address":"192.0.2.1:22"}"#);
/// Report of a complete copy.
const COMPLETE: &[u8] = br#"{"outcome":"complete","files":1,"directories":0,"symlinks":0,
    "bytes":3000001,"unfinished":0,"taken_over":0,"reused":0,"journal":null,"failed":0,
    "failures":[],"state":null,"synced":false,"verified":null,"way":null}"#;

/// Reports of a hostile receiver: the copy ends at once, with one sentence.
#[test]
fn a_hostile_receiver_ends_the_copy_with_one_clear_error() {
    let Some(pair) = Pair::start() else { return };
    write_file(&pair.path("from/file"), b"x");
    let long = "x".repeat(1 << 20);
    let name =
        |name: &str| format!(r#"{{"event":"failed","id":null,"path":"{name}","reason":""}}"#);
    let numbers = u64::MAX;
    let absurd = format!(
        r#"{{"bytes_done":{numbers},"bytes_moved":{numbers},"bytes_total":{numbers},
        "files_done":{numbers},"files_total":{numbers},"totals_final":true,"current":"{}"}}"#,
        "y".repeat(40_000)
    );
    let sync = br#"{"event":"sync_planned","source":"a","target":"b","files":1,"bytes":1,
        "deletions":1,"equal":1,"entries":2,"excluded":0}"#;
    for (kind, body, why) in [
        (
            53,
            name(&long).into_bytes(),
            "sent an invalid message: a message with the invalid length of 1048",
        ),
        (
            53,
            name(&long[..40_000]).into_bytes(),
            "reported a name of 40000 bytes",
        ),
        (52, absurd.into_bytes(), "reported a name of 40000 bytes"),
        (53, sync.to_vec(), "reported the plan of a sync"),
        (
            99,
            Vec::new(),
            "sent an invalid message: unknown message 99",
        ),
        (54, b"{}".to_vec(), "sent an invalid message: missing field"),
    ] {
        pair.b.says(&reports(&[CONNECTED, (kind, &body)]));
        let outcome = pair.cp(&[], "from/file", "to/file").run();
        let outcome = outcome.expect_code(255);
        let outcome = outcome.expect_err(&[&format!("error: b: longhaul there {why}")]);
        let errors = outcome.err().matches("error: ").count();
        assert!(errors == 1 && outcome.err().len() < 2000, "{outcome}");
    }
    // Before it is connected, its reports are not believed, and the data goes another way.
    pair.b.says(&reports(&[(54, COMPLETE)]));
    pair.goes_through_here("b: longhaul there reported a copy before it was connected");
    pair.leaves_nothing();
}

/// A receiver that reports failures and then success is not believed; names drive no terminal.
#[test]
fn a_receiver_that_reports_failures_has_not_completed_the_copy() {
    let Some(pair) = Pair::start() else { return };
    write_file(&pair.path("from/file"), b"x");
    let failed =
        br#"{"event":"failed","id":null,"path":"x\u001b[2J\nerror: y","reason":"\u001b]0;z\n"}"#;
    pair.b.says(&reports(&[CONNECTED, (54, COMPLETE)]));
    pair.cp(&[], "from/file", "to/file").run().expect_code(0);
    pair.b
        .says(&reports(&[CONNECTED, (53, failed), (54, COMPLETE)]));
    for flags in [&[][..], &["--json"]] {
        let outcome = pair.cp(flags, "from/file", "to/file").run().expect_code(1);
        let all = [outcome.out(), outcome.err()].concat();
        assert!(!all.contains('\u{1b}'), "{outcome}");
        assert!(!all.contains("\nerror: y"), "{outcome}");
    }
    pair.leaves_nothing();
}

/// A symlink at the target that somebody else has planted is not followed below the named folder.
#[test]
fn nothing_is_written_outside_of_the_target() {
    let Some(pair) = Pair::start() else { return };
    fs::create_dir_all(pair.path("from/tree/sub")).expect("our folder");
    write_file(&pair.path("from/tree/sub/file"), b"new");
    fs::create_dir_all(pair.path("to/tree")).expect("our folder");
    fs::create_dir(pair.path("elsewhere")).expect("our folder");
    symlink(pair.path("elsewhere"), pair.path("to/tree/sub")).expect("our folder");
    let outcome = pair.cp(&["-r"], "from/tree", "to").run();
    assert!(outcome.err().contains(DIRECT), "{outcome}");
    assert!(is_empty(&pair.path("elsewhere")), "{outcome}");
    assert_eq!(outcome.code, Some(1), "{outcome}");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("our folder").next().is_none()
}

#[test]
fn a_copy_whose_receiver_is_lost_is_resumed() {
    let Some(pair) = Pair::start() else { return };
    let content = Seed::new(3).bytes(24_000_000);
    write_file(&pair.path("from/file"), &content);
    let run = pair.cp(&["--limit", "6MB/s", "--json"], "from/file", "to/file");
    let running = run.spawn();
    assert!(running.shows("\"bytes_done\":1"), "{}", running.wait());
    pair.b.loses_its_sessions();
    let outcome = running.wait().expect_code(0);
    assert!(
        fs::read(pair.path("to/file")).expect("a copy") == content,
        "{outcome}"
    );
    let warning = event(&outcome, "warning");
    let message = warning["message"].as_str().unwrap_or_default();
    assert!(message.contains("connecting again"), "{warning}");
    let summary = event(&outcome, "summary");
    assert_eq!(summary["way"]["kind"], "direct", "{summary}");
}

/// Bug: the receiver lost its connection before it heard that the source had ended, and tried to
/// reach the closed port for two minutes. Then the files in work were reported as failed, which the
/// next attempt copied.
#[test]
fn a_copy_whose_source_is_lost_is_made_again_at_once_without_failures() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    // What this machine knows reaches the receiver late.
    let proxy = DelayProxy::to(pair.b.peer.addr()).rtt(Duration::from_millis(500));
    let proxy = proxy.start();
    let (dir, b) = (&mut pair.client.dir, &pair.b.peer);
    dir.add_host_at("b", b, proxy.port());
    let (from, to) = (pair.path("from/tree"), pair.path("to/tree"));
    fs::create_dir(&from).expect("our folder");
    for n in 0..300 {
        write_file(&from.join(format!("f{n}")), &Seed::new(n).bytes(40_000));
    }
    let flags = ["-r", "--limit", "4MB/s", "--json"];
    let running = pair.cp(&flags, "from/tree", "to").spawn();
    let has_much = || to.is_dir() && names_in(&to).len() > 160;
    assert!(running.until(has_much));
    pair.a.loses_its_sessions();
    let outcome = running.wait().expect_code(0);
    assert_same(&from, &to, Compare::CONTENT);
    let warning = event(&outcome, "warning");
    let message = warning["message"].as_str().unwrap_or_default();
    assert!(message.contains("connecting again"), "{warning}");
    assert!(!outcome.out().contains(r#""event":"failed""#), "{outcome}");
}

/// Bug: a lost connection to either host failed the file at once, left its temporary at the target,
/// and nothing was connected again.
#[test]
fn a_copy_through_here_goes_on_after_either_host_was_lost() {
    let Some(pair) = Pair::start() else { return };
    let content = Seed::new(3).bytes(24_000_000);
    write_file(&pair.path("from/file"), &content);
    for host in [&pair.a, &pair.b] {
        let flags = ["--through-here", "--limit", "8MB/s", "--json"];
        let _ = fs::remove_file(pair.path("to/file"));
        let running = pair.cp(&flags, "from/file", "to/file").spawn();
        // A connection that has moved less than 4 MiB is not made again.
        let has_much = || {
            let files = fs::read_dir(pair.path("to")).expect("our folder").flatten();
            let sizes = files.filter_map(|file| file.metadata().ok().map(|meta| meta.len()));
            (6_000_000..20_000_000).contains(&sizes.sum::<u64>())
        };
        assert!(running.until(has_much));
        host.loses_its_sessions();
        let outcome = running.wait().expect_code(0);
        assert!(
            fs::read(pair.path("to/file")).expect("a copy") == content,
            "{outcome}"
        );
        assert_eq!(names_in(&pair.path("to")), ["file"], "{outcome}");
        assert!(outcome.err().contains("reconnecting"), "{outcome}");
    }
}

/// Regression test: after a killed copy through this machine, the same command copied into the
/// directory that the first run had made, and its temporary stayed for ever.
#[test]
fn a_killed_copy_through_here_is_resumed_in_the_same_place() {
    let Some(pair) = Pair::start() else { return };
    let from = pair.path("from");
    for n in 0..20 {
        write_file(&from.join(format!("f{n}")), &Seed::new(n).bytes(1000));
    }
    write_file(&from.join("large"), &Seed::new(99).bytes(12_000_000));
    let flags = ["-r", "--through-here"];
    let run = pair.cp(&flags, "from", "to/new");
    let running = run.args(["--limit", "4MB/s"]).spawn();
    let new = pair.path("to/new");
    let begun = |start: &str| {
        let starts = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(start);
        new.is_dir() && names_in(&new).iter().any(starts)
    };
    assert!(running.until(|| begun(".large.") && begun("f")));
    let pid = rustix::process::Pid::from_raw(running.pid().cast_signed());
    let pid = pid.expect("a process number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("our process");
    running.wait();
    let outcome = pair.cp(&flags, "from", "to/new").run().expect_code(0);
    assert_same(&from, &pair.path("to/new"), Compare::CONTENT);
    outcome.expect_err(&["resuming the earlier copy"]);
}

/// Bug: the copy stood still for ever. The large file filled the buffer between the hosts, its upload
/// was queued behind those of small files, and their data were queued behind the large file's.
#[test]
fn small_files_behind_a_large_one_do_not_stop_a_copy_through_here() {
    let Some(pair) = Pair::start() else { return };
    pair.a.remove();
    pair.b.remove();
    let content = Seed::new(11).bytes(90_000_000);
    fs::create_dir_all(pair.path("from/tree/small")).expect("our folder");
    write_file(&pair.path("from/tree/a-large"), &content);
    for n in 0..300 {
        let name = format!("from/tree/small/{n}");
        write_file(&pair.path(&name), n.to_string().as_bytes());
    }
    for (command, to) in [(&["cp", "-a"][..], "to/cp"), (&["sync"], "to/sync")] {
        let run = pair.client.dir.run(longhaul()).args(command);
        let run = run.arg("-F").arg(pair.client.dir.config());
        let run = run.arg(remote("a", &pair.path("from/tree")));
        let run = run.arg(remote("b", &pair.path(to)));
        run.timeout(Duration::from_secs(60)).run().expect_code(0);
        let (from, to) = (pair.path("from/tree"), pair.path(to));
        assert_same(&from, &to, Compare::CONTENT);
    }
}

/// Bug: the copy stood still for ever. The upload over an existing file that nobody may write
/// restarted, after it had taken its first data from the buffer between the hosts.
#[test]
fn large_files_replace_read_only_ones_through_here() {
    let Some(pair) = Pair::start() else { return };
    fs::create_dir_all(pair.path("from/tree")).expect("our folder");
    for (name, size) in [("large", 60_000_000), ("small", 1000)] {
        let path = pair.path("from/tree").join(name);
        write_file(&path, &Seed::new(size).bytes(size as usize));
        let mode = fs::Permissions::from_mode(0o440);
        fs::set_permissions(&path, mode).expect("ours");
    }
    for _ in 0..2 {
        let run = pair.cp(&["-a", "--through-here"], "from/tree", "to");
        run.timeout(Duration::from_secs(60)).run().expect_code(0);
        let (from, to) = (pair.path("from/tree"), pair.path("to/tree"));
        assert_same(&from, &to, Compare::MODES);
    }
}
