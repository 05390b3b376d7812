//! Copies from several hosts to here, and from here to several hosts.

mod completing;
mod failed_hosts;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{Client, longhaul, names_in, scratch};
use serde_json::Value;
use testkit::peer::{PeerBuilder, PeerServer};
use testkit::tree::write_file;
use testkit::{Outcome, Run, Seed};

/// Hosts h1, h2, ... with a folder for each.
pub(crate) struct Hosts {
    pub(crate) client: Client,
    pub(crate) peers: Vec<PeerServer>,
    /// A folder on the PATH of each host's users.
    bins: Vec<tempfile::TempDir>,
    scratch: tempfile::TempDir,
}

impl Hosts {
    pub(crate) fn start(count: usize) -> Option<Self> {
        let mut client = Client::new();
        if client.is_scp() {
            return None;
        }
        let scratch = scratch();
        let (mut peers, mut bins) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let bin = tempfile::tempdir().expect("a folder");
            fs::set_permissions(bin.path(), fs::Permissions::from_mode(0o755)).expect("ours");
            let path = format!("PATH={}:/usr/bin:/bin", bin.path().display());
            let builder = PeerBuilder::openssh().option("SetEnv", path);
            let peer = builder.authorize(&client.dir).start()?;
            bins.push(bin);
            client.dir.add_host(&format!("h{number}"), &peer);
            fs::create_dir(scratch.path().join(format!("h{number}"))).expect("our folder");
            peers.push(peer);
        }
        Some(Self {
            client,
            peers,
            bins,
            scratch,
        })
    }

    /// Hosts with longhaul, and a file that is large enough to be passed on.
    fn with_longhaul(count: usize) -> Option<(Self, Vec<u8>)> {
        let hosts = Self::start(count)?;
        (1..=count).for_each(|number| hosts.install(number));
        let content = Seed::new(11).bytes(40_000_000);
        hosts.write("big", &content);
        Some((hosts, content))
    }

    /// Two hosts with a file of this content on each, and a folder to copy both to.
    fn with_a_file_on_each() -> Option<(Self, Vec<u8>, PathBuf)> {
        let hosts = Self::start(2)?;
        let content = Seed::new(5).bytes(3_000_000);
        hosts.write("h1/one", &content);
        hosts.write("h2/two", &content);
        let to = hosts.path("to");
        fs::create_dir(&to).expect("our folder");
        Some((hosts, content, to))
    }

    pub(crate) fn install(&self, number: usize) {
        self.install_with(number, "");
    }

    /// Installs longhaul, which is started after this line of the shell.
    fn install_with(&self, number: usize, before: &str) {
        let bin = self.bins[number - 1].path();
        for folder in ["cache", "state"] {
            fs::create_dir_all(bin.join(folder)).expect("our folder");
        }
        let state = format!(
            "XDG_CACHE_HOME={0}/cache XDG_STATE_HOME={0}/state",
            bin.display()
        );
        let text = format!(
            "#!/bin/sh\nexport {state}\n{before}\nexec {} \"$@\"\n",
            longhaul().display()
        );
        let program = bin.join("longhaul");
        write_file(&program, text.as_bytes());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our file");
    }

    fn remove(&self, number: usize) {
        fs::remove_file(self.bins[number - 1].path().join("longhaul")).expect("our file");
    }

    /// Copies the large file to the folder of each host.
    fn fan_out(&self, flags: &[&str]) -> Run {
        let mut words: Vec<String> = flags.iter().map(ToString::to_string).collect();
        words.push("--json".to_owned());
        words.push(self.path("big").display().to_string());
        words.extend((1..=self.peers.len()).map(|number| self.remote(number, "")));
        self.cp(&words)
    }

    /// Copies `one` of the first host and `two` of the second one to a folder here.
    fn gather(&self, flags: &[&str], to: &Path) -> Run {
        let mut words: Vec<String> = flags.iter().map(ToString::to_string).collect();
        words.extend([self.remote(1, "one"), self.remote(2, "two")]);
        words.push(to.display().to_string());
        self.cp(&words)
    }

    /// Asserts that a host has the file and nothing else.
    #[track_caller]
    fn has_big(&self, number: usize, content: &[u8]) {
        let folder = self.path(&format!("h{number}"));
        holds(&folder.join("big"), content);
        assert_eq!(names_in(&folder), ["big"]);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// `hN:` and the path of a name in the folder of that host.
    fn remote(&self, number: usize, name: &str) -> String {
        let folder = self.path(&format!("h{number}"));
        format!("h{number}:{}", folder.join(name).display())
    }

    pub(crate) fn cp<S: AsRef<str>>(&self, words: &[S]) -> Run {
        let run = self.client.cp().args(words.iter().map(AsRef::as_ref));
        run.timeout(Duration::from_secs(90))
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("our folder");
        write_file(&path, bytes);
    }

    /// Lets a host refuse connections, or not.
    fn down(&mut self, number: usize, down: bool) {
        let peer = &self.peers[number - 1];
        let port = match down {
            true => testkit::port::free(),
            false => peer.port(),
        };
        let name = format!("h{number}");
        self.client.dir.add_host_at(&name, peer, port);
    }

    /// Ends all sessions of a host.
    fn disconnect(&self, number: usize) {
        end(&self.peers[number - 1].sessions());
    }

    /// Waits until a folder has a temporary with data.
    fn receives(&self, folder: &Path, name: &str) {
        let begun = || {
            let entries = fs::read_dir(folder).expect("our folder").flatten();
            let mut own = entries.filter(|entry| {
                let entry = entry.file_name();
                let entry = entry.to_string_lossy();
                entry.starts_with(&format!(".{name}.")) && entry.ends_with(".longhaul")
            });
            own.any(|entry| entry.metadata().is_ok_and(|meta| meta.blocks() > 0))
        };
        let late = || format!("{} has no part of {name}", folder.display());
        testkit::wait::until(Duration::from_secs(30), begun, late);
    }

    fn logins(&self, number: usize) -> usize {
        self.peers[number - 1]
            .log()
            .matches("Accepted publickey")
            .count()
    }
}

/// Ends processes of a host.
fn end(sessions: &[u32]) {
    for pid in sessions {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process number");
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn summary(outcome: &Outcome) -> Value {
    let out = outcome.out();
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error} in\n{out}"))
}

/// Hosts from which each one got the file; empty for this machine.
fn origins(summary: &Value) -> Vec<String> {
    let hosts = summary["hosts"].as_array().expect("hosts");
    let from = |host: &Value| host["from"].as_str().unwrap_or_default().to_owned();
    hosts.iter().map(from).collect()
}

#[track_caller]
fn holds(path: &Path, content: &[u8]) {
    let there = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(there == content, "{} differs", path.display());
}

#[test]
fn files_of_equal_name_are_kept_apart_by_host() {
    let Some(hosts) = Hosts::start(3) else { return };
    hosts.write("log/a", b"a");
    hosts.write("log/b", b"b");
    let to = hosts.path("to");
    let from = format!("h{{1..3}}:{}/*", hosts.path("log").display());
    let run = hosts.cp(&["--by-host", &from, &to.display().to_string()]);
    let outcome = run.run().expect_code(0);
    for host in ["h1", "h2", "h3"] {
        holds(&to.join(host).join("a"), b"a");
        holds(&to.join(host).join("b"), b"b");
    }
    outcome.expect_err(&["copied 6 files", "3 of 3 hosts complete"]);
    assert_eq!([1, 2, 3].map(|host| hosts.logins(host)), [1, 1, 1]);
}

#[test]
fn a_name_on_two_hosts_is_refused_before_anything_is_copied() {
    let Some(hosts) = Hosts::start(3) else { return };
    for name in ["h1/x", "h2/y", "h2/z", "h3/x"] {
        hosts.write(name, name.as_bytes());
    }
    let to = hosts.path("to");
    fs::create_dir(&to).expect("our folder");
    let words = [
        hosts.remote(1, "*"),
        hosts.remote(2, "*"),
        hosts.remote(3, "*"),
        to.display().to_string(),
    ];
    let outcome = hosts.cp(&words).run().expect_code(1);
    let both = [hosts.remote(1, "x"), hosts.remote(3, "x")];
    outcome.expect_err(&[&both[0], &both[1], "--by-host", "nothing was copied"]);
    assert!(names_in(&to).is_empty());
    // With names that are known at once, no host is asked.
    let before = hosts.logins(1);
    let words = [
        hosts.remote(1, "x"),
        hosts.remote(3, "x"),
        to.display().to_string(),
    ];
    let outcome = hosts.cp(&words).run().expect_code(1);
    outcome.expect_err(&[&both[0], &both[1], "--by-host"]);
    assert_eq!(hosts.logins(1), before);
    fs::remove_file(hosts.path("h3/x")).expect("our file");
    let words = [
        hosts.remote(1, "*"),
        hosts.remote(2, "*"),
        to.display().to_string(),
    ];
    hosts.cp(&words).run().expect_code(0);
    for (name, from) in [("x", "h1/x"), ("y", "h2/y"), ("z", "h2/z")] {
        holds(&to.join(name), from.as_bytes());
    }
    assert_eq!(hosts.logins(2), 2);
}

/// Regression: files that a filter leaves out were refused for their equal names.
#[test]
fn names_that_a_filter_leaves_out_may_be_equal() {
    let Some(hosts) = Hosts::start(3) else { return };
    for number in 1..=3 {
        for name in ["error", &format!("log{number}")] {
            hosts.write(&format!("h{number}/{name}"), name.as_bytes());
        }
    }
    let to = hosts.path("to").display().to_string();
    let folder = hosts.path("").display().to_string();
    for (number, matched) in ["*", "[el]*"].iter().enumerate() {
        let mut words = vec!["--exclude=error".to_owned()];
        words.extend((1..=3).map(|host| format!("h{host}:{folder}h{host}/{matched}")));
        words.push(format!("{to}{number}/"));
        fs::create_dir(format!("{to}{number}")).expect("our folder");
        let outcome = hosts.cp(&words).run().expect_code(0);
        outcome.expect_err(&["copied 3 files", "3 excluded"]);
        let names = names_in(Path::new(&format!("{to}{number}")));
        assert_eq!(names, ["log1", "log2", "log3"]);
    }
    // So for names that are known before any host is asked.
    let words = [
        "--exclude=error",
        &hosts.remote(1, "error"),
        &hosts.remote(2, "error"),
        &to,
    ];
    let outcome = hosts.cp(&words).run().expect_code(0);
    outcome.expect_err(&["copied 0 files", "2 excluded"]);
}

#[test]
fn a_host_that_is_down_is_named_and_completed_by_the_same_command() {
    let Some(mut hosts) = Hosts::start(3) else {
        return;
    };
    hosts.write("log/a", b"a");
    hosts.down(2, true);
    let to = hosts.path("to");
    let from = format!("h{{1..3}}:{}/*", hosts.path("log").display());
    let words = ["--json", "--by-host", &from, &to.display().to_string()];
    let outcome = hosts.cp(&words).run().expect_code(1);
    holds(&to.join("h1/a"), b"a");
    holds(&to.join("h3/a"), b"a");
    let outcome = outcome.expect_err(&["h2: ", "refused"]);
    let all = summary(&outcome);
    assert_eq!(
        (&all["outcome"], &all["files"]),
        (&"partial".into(), &2.into())
    );
    let each = all["hosts"].as_array().expect("hosts");
    let outcomes: Vec<&str> = each.iter().filter_map(|h| h["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["complete", "no_connection", "complete"], "{all}");
    hosts.down(2, false);
    hosts.cp(&words).run().expect_code(0);
    holds(&to.join("h2/a"), b"a");
}

#[test]
fn hosts_that_are_typed_out_are_copied_at_the_same_time() {
    let Some((hosts, content, to)) = Hosts::with_a_file_on_each() else {
        return;
    };
    let outcome = hosts.gather(&["--json"], &to).run().expect_code(0);
    holds(&to.join("one"), &content);
    holds(&to.join("two"), &content);
    // Both connect before either file is complete, and file numbers are unique.
    let out = outcome.out();
    let events = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let events: Vec<Value> = events.collect();
    let of = |name: &str| {
        events
            .iter()
            .filter(|e| e["event"] == name)
            .collect::<Vec<_>>()
    };
    let started = of("file_started");
    assert_ne!(started[0]["id"], started[1]["id"], "{out}");
    assert_eq!(of("host").len(), 2, "{out}");
}

/// As with several sources of one host.
#[test]
fn a_missing_target_of_several_hosts_is_made_and_its_parent_is_not() {
    let Some(hosts) = Hosts::start(2) else { return };
    hosts.write("h1/one", b"1");
    hosts.write("h2/two", b"2");
    let to = hosts.path("none");
    let below = to.join("new");
    let outcome = hosts.gather(&[], &below).run().expect_code(1);
    outcome.expect_err(&[&below.display().to_string()]);
    assert!(!to.exists());
    hosts.gather(&[], &to).run().expect_code(0);
    holds(&to.join("one"), b"1");
    holds(&to.join("two"), b"2");
}

#[test]
fn a_file_goes_to_every_host_and_one_without_space_does_not_stop_the_others() {
    let Some(mut hosts) = Hosts::start(3) else {
        return;
    };
    let content = Seed::new(7).bytes(2_000_000);
    hosts.write("big", &content);
    hosts.down(3, true);
    // The second host's directory does not exist, as on a disk that is not mounted.
    let words = [
        hosts.path("big").display().to_string(),
        hosts.remote(1, ""),
        hosts.remote(2, "none/"),
        hosts.remote(3, ""),
    ];
    let outcome = hosts.cp(&words).run().expect_code(1);
    holds(&hosts.path("h1/big"), &content);
    // Bug: the host was named twice, and a failed host was called a failed file.
    outcome.expect_err(&[
        "h2:",
        "error: h3: cannot connect to 127.0.0.1 port ",
        "copied 1 file to 1 host, ",
        "1 failed: h2:",
        "; 1 of 3 hosts complete, 1 failed: h3",
    ]);
    hosts.down(3, false);
    fs::create_dir(hosts.path("h2/none")).expect("our folder");
    let outcome = hosts.cp(&words).run().expect_code(0);
    holds(&hosts.path("h2/none/big"), &content);
    holds(&hosts.path("h3/big"), &content);
    outcome.expect_err(&["copied 1 file to 3 hosts, ", "3 of 3 hosts complete"]);
}

#[test]
fn a_tree_goes_to_every_host_of_a_file() {
    let Some(hosts) = Hosts::start(2) else { return };
    hosts.write("tree/sub/file", b"x");
    let own = hosts.remote(2, "");
    let list = format!("# racks\nh1\n\n{own} # its own path\n");
    hosts.write("hosts", list.as_bytes());
    let words = [
        "-r".to_owned(),
        "--hosts".to_owned(),
        hosts.path("hosts").display().to_string(),
        hosts.path("tree").display().to_string(),
        hosts.path("h1").display().to_string(),
    ];
    hosts.cp(&words).run().expect_code(0);
    holds(&hosts.path("h1/tree/sub/file"), b"x");
    holds(&hosts.path("h2/tree/sub/file"), b"x");
}

#[test]
fn a_target_that_is_named_twice_is_refused_before_any_login() {
    let Some(hosts) = Hosts::start(2) else { return };
    hosts.write("big", b"x");
    let words = [
        hosts.path("big").display().to_string(),
        hosts.remote(1, ""),
        hosts.remote(2, ""),
        hosts.remote(1, "other/"),
    ];
    let outcome = hosts.cp(&words).run().expect_code(2);
    outcome.expect_err(&["h1", "named twice"]);
    assert_eq!(hosts.logins(1) + hosts.logins(2), 0);
}

#[test]
fn without_any_host_the_exit_code_is_that_of_no_connection() {
    let Some(mut hosts) = Hosts::start(2) else {
        return;
    };
    hosts.write("big", b"x");
    hosts.down(1, true);
    hosts.down(2, true);
    let words = [
        hosts.path("big").display().to_string(),
        "h1:".to_owned(),
        "h2:".to_owned(),
    ];
    let outcome = hosts.cp(&words).run().expect_code(255);
    outcome.expect_err(&["h1: ", "h2: ", "none of 2 hosts was reached"]);
}

/// Regression: a rate limit is one for the command, not one for each host.
#[test]
fn a_rate_limit_is_shared_by_all_hosts() {
    let Some(hosts) = Hosts::start(2) else { return };
    hosts.write("big", &Seed::new(3).bytes(2_000_000));
    let words = [
        "--limit".to_owned(),
        "2MB/s".to_owned(),
        hosts.path("big").display().to_string(),
        hosts.remote(1, ""),
        hosts.remote(2, ""),
    ];
    let start = std::time::Instant::now();
    hosts.cp(&words).run().expect_code(0);
    assert!(
        start.elapsed() > Duration::from_millis(1700),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn each_host_gets_the_file_from_the_one_before_it() {
    let Some((hosts, content)) = Hosts::with_longhaul(4) else {
        return;
    };
    let outcome = hosts.fan_out(&["-p"]).run().expect_code(0);
    let all = summary(&outcome);
    assert_eq!(origins(&all), ["", "h1", "h2", "h3"], "{all}");
    assert_eq!(all["way"]["kind"], "chain", "{all}");
    let time = |path: &Path| {
        fs::metadata(path)
            .and_then(|meta| meta.modified())
            .expect("ours")
    };
    for number in 1..=4 {
        hosts.has_big(number, &content);
        let there = hosts.path(&format!("h{number}/big"));
        let apart = time(&hosts.path("big")).duration_since(time(&there));
        assert!(
            apart.is_ok_and(|apart| apart < Duration::from_secs(1)),
            "{number}"
        );
    }
}

/// Each host waits for the checksums, for the host before it, and for its data.
#[test]
fn an_interrupt_ends_the_waits_of_all_hosts() {
    let Some((hosts, _)) = Hosts::with_longhaul(3) else {
        return;
    };
    // Uninterrupted, the copy would take 40 s.
    let running = hosts.fan_out(&["--limit", "1MB/s"]).spawn();
    hosts.receives(&hosts.path("h1"), "big");
    running.interrupt();
    let outcome = running.wait().expect_code(130);
    assert_eq!(summary(&outcome)["outcome"], "interrupted", "{outcome}");
    for number in 1..=3 {
        let folder = hosts.path(&format!("h{number}"));
        assert!(!folder.join("big").exists(), "{outcome}");
    }
}

#[test]
fn a_host_without_longhaul_gets_the_file_from_here_and_passes_nothing_on() {
    let Some((hosts, content)) = Hosts::with_longhaul(3) else {
        return;
    };
    hosts.remove(2);
    let outcome = hosts.fan_out(&[]).run().expect_code(0);
    let all = summary(&outcome);
    for number in 1..=3 {
        hosts.has_big(number, &content);
    }
    assert_eq!(origins(&all), ["", "", "h1"], "{all}");
    let reason = all["way"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("longhaul was not found on h2"), "{all}");
    // It is remembered, and the others still form a chain.
    let outcome = hosts.fan_out(&[]).run().expect_code(0);
    let all = summary(&outcome);
    assert_eq!(origins(&all), ["", "", "h1"], "{all}");
    let reason = all["way"]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("h1 > h3") && reason.contains("h2: "),
        "{all}"
    );
}

#[test]
fn a_small_file_goes_from_here_to_each_host_and_the_line_says_so() {
    let Some((hosts, _)) = Hosts::with_longhaul(2) else {
        return;
    };
    hosts.write("big", b"small");
    let outcome = hosts.fan_out(&[]).run().expect_code(0);
    let all = summary(&outcome);
    assert_eq!(all["way"]["kind"], "star", "{all}");
    hosts.has_big(1, b"small");
    hosts.has_big(2, b"small");
    let words = [
        hosts.path("big").display().to_string(),
        hosts.remote(1, ""),
        hosts.remote(2, ""),
    ];
    let outcome = hosts.cp(&words).run().expect_code(0);
    outcome.expect_err(&[
        "sent from this machine to each host, because hosts pass on only files of 32 MiB or more to \
         each other",
    ]);
}

/// A host of several that had sent less than 4 MiB, its share of the limit, was not connected again,
/// and its part was removed.
#[test]
fn a_host_that_loses_its_connection_early_is_connected_again() {
    let Some((hosts, content, to)) = Hosts::with_a_file_on_each() else {
        return;
    };
    let running = hosts.gather(&["--limit", "1MB/s"], &to).spawn();
    hosts.receives(&to, "two");
    hosts.disconnect(2);
    let outcome = running.wait().expect_code(0);
    holds(&to.join("one"), &content);
    holds(&to.join("two"), &content);
    assert_eq!(names_in(&to), ["one", "two"]);
    outcome.expect_err(&["h2: the connection was lost", "h2: reconnected"]);
}

/// The second host kept a temporary for ever, and a later run said that it resumed a complete file.
#[test]
fn a_first_host_that_returns_leaves_nothing_on_the_second() {
    let Some((hosts, content)) = Hosts::with_longhaul(3) else {
        return;
    };
    let running = hosts.fan_out(&["--limit", "10MB/s"]).spawn();
    hosts.receives(&hosts.path("h3"), "big");
    hosts.disconnect(1);
    running.wait().expect_code(0);
    for number in 1..=3 {
        hosts.has_big(number, &content);
    }
    let words = [
        hosts.path("big").display().to_string(),
        hosts.remote(1, ""),
        hosts.remote(2, ""),
        hosts.remote(3, ""),
    ];
    let outcome = hosts.cp(&words).run().expect_code(0);
    assert!(!outcome.err().contains("resuming"), "{outcome}");
}

/// The second host kept its part when the file came from here. The command waited for the first one
/// for two minutes after the others were complete.
#[test]
fn a_first_host_that_dies_leaves_nothing_on_the_others_and_is_soon_given_up() {
    let Some((mut hosts, content)) = Hosts::with_longhaul(3) else {
        return;
    };
    let running = hosts.fan_out(&["--limit", "10MB/s"]).spawn();
    hosts.receives(&hosts.path("h3"), "big");
    hosts.down(1, true);
    let sessions = hosts.peers[0].sessions();
    drop(hosts.peers.remove(0));
    end(&sessions);
    let start = std::time::Instant::now();
    let outcome = running.wait().expect_code(1);
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}\n{outcome}",
        start.elapsed()
    );
    for number in [2, 3] {
        hosts.has_big(number, &content);
    }
    assert_eq!(summary(&outcome)["hosts"][0]["outcome"], "no_connection");
}

/// The command named all hosts, those that were complete too.
#[test]
fn the_command_for_the_other_hosts_names_them_and_works() {
    let Some(mut hosts) = Hosts::start(3) else {
        return;
    };
    hosts.write("big", b"x");
    hosts.down(2, true);
    let list = hosts.path("hosts");
    hosts.write("hosts", b"h1\nh2\nh3\n");
    let words = [
        "-p".to_owned(),
        "--hosts".to_owned(),
        list.display().to_string(),
        hosts.path("big").display().to_string(),
        hosts.path("h1").display().to_string(),
    ];
    let outcome = hosts.cp(&words).run().expect_code(1);
    let err = outcome.err();
    let lines = err.lines();
    let mut named = lines.filter_map(|line| line.split_once("to complete the copy to h2: "));
    let (_, command) = named.next().expect("a command");
    let target = format!("h2:{}", hosts.path("h1").display());
    assert!(command.ends_with(&format!("big {target}")), "{command}");
    assert!(!command.contains("--hosts"), "{command}");
    fs::remove_file(hosts.path("h1/big")).expect("the copy");
    hosts.down(2, false);
    let (_, words) = command.split_once(" cp ").expect("a copy");
    let words: Vec<&str> = words.split(' ').collect();
    hosts.cp(&words).run().expect_code(0);
    holds(&hosts.path("h1/big"), b"x");
}

/// Reports of a hostile host end its part of the chain: it gets the file from here, the host behind it
/// gets it from a host, and no report of it is shown.
#[test]
fn a_host_with_hostile_reports_stops_no_other_host() {
    let Some((hosts, content)) = Hosts::with_longhaul(3) else {
        return;
    };
    let connected = br#"{"dialed":false,"address":"192.0.2.1:22"}"#;
    let name = "n".repeat(40_000);
    let long = format!(r#"{{"event":"failed","id":null,"path":"{name}","reason":""}}"#);
    let warning = br#"{"event":"warning","path":null,"message":"x\nforged"}"#;
    let mut said = b"\nlonghaul-receives\n".to_vec();
    for (kind, body) in [(50, &connected[..]), (53, warning), (53, long.as_bytes())] {
        let len = u32::try_from(body.len() + 1).expect("short");
        said.extend_from_slice(&len.to_be_bytes());
        said.push(kind);
        said.extend_from_slice(body);
    }
    hosts.write("said", &said);
    let says = format!(
        "[ \"$1\" = receive ] && {{ cat {}; exec cat >/dev/null; }}",
        hosts.path("said").display()
    );
    hosts.install_with(2, &says);
    let outcome = hosts.fan_out(&[]).run().expect_code(0);
    for number in 1..=3 {
        hosts.has_big(number, &content);
    }
    let all = summary(&outcome);
    let from = origins(&all);
    assert_eq!(from[..2], ["", ""], "{all}");
    assert!(!from[2].is_empty(), "{all}");
    assert!(!outcome.err().contains("\nforged"), "{outcome}");
    assert!(!outcome.out().contains(&name), "{outcome}");
}

/// The message came from the host before it, and again from here after the whole file had gone there.
#[test]
fn a_host_without_room_is_told_of_once() {
    let Some((hosts, content)) = Hosts::with_longhaul(2) else {
        return;
    };
    hosts.install_with(2, "ulimit -f 20000");
    let words = [
        hosts.path("big").display().to_string(),
        hosts.remote(1, ""),
        hosts.remote(2, ""),
    ];
    let outcome = hosts.cp(&words).run().expect_code(1);
    hosts.has_big(1, &content);
    let err = outcome.err();
    assert_eq!(err.matches("file too large").count(), 1, "{outcome}");
}

/// Regression: hosts passed nothing on if there were several large files, or a tree.
#[test]
fn every_large_file_of_operands_and_trees_is_passed_on() {
    let Some((hosts, content)) = Hosts::with_longhaul(3) else {
        return;
    };
    let other = Seed::new(12).bytes(34_000_000);
    hosts.write("tree/sub/large", &other);
    hosts.write("tree/sub/small", b"small");
    hosts.write("tree/file", b"file");
    let mut words = vec!["-r".to_owned(), "--fan-out".to_owned(), "--json".to_owned()];
    words.extend(["big", "tree"].map(|name| hosts.path(name).display().to_string()));
    words.extend((1..=3).map(|number| hosts.remote(number, "")));
    let outcome = hosts.cp(&words).run().expect_code(0);
    let all = summary(&outcome);
    assert_eq!(origins(&all), ["", "h1", "h2"], "{all}");
    assert_eq!(
        (&all["files"], &all["directories"], &all["excluded"]),
        (&12.into(), &6.into(), &0.into()),
        "{all}"
    );
    for number in 1..=3 {
        let folder = hosts.path(&format!("h{number}"));
        holds(&folder.join("big"), &content);
        holds(&folder.join("tree/sub/large"), &other);
        holds(&folder.join("tree/sub/small"), b"small");
        holds(&folder.join("tree/file"), b"file");
        assert_eq!(names_in(&folder), ["big", "tree"]);
        assert_eq!(names_in(&folder.join("tree/sub")), ["large", "small"]);
    }
    // Nothing but the two large files came from another host.
    let sent = |number: usize| all["hosts"][number]["bytes"].as_u64();
    assert_eq!(sent(1), sent(0), "{all}");
}

/// scp makes a directory of the name of a target that does not exist, and copies into one that does:
/// both parts of a tree must take the same way.
#[test]
fn a_tree_whose_target_does_not_exist_stays_one_tree() {
    let Some((hosts, _)) = Hosts::with_longhaul(2) else {
        return;
    };
    let large = Seed::new(12).bytes(34_000_000);
    hosts.write("tree/sub/large", &large);
    hosts.write("tree/small", b"small");
    fs::create_dir(hosts.path("h2/new")).expect("our folder");
    let words = [
        "-r".to_owned(),
        "--fan-out".to_owned(),
        hosts.path("tree").display().to_string(),
        hosts.remote(1, "new/"),
        hosts.remote(2, "new/"),
    ];
    hosts.cp(&words).run().expect_code(0);
    for folder in [hosts.path("h1/new"), hosts.path("h2/new/tree")] {
        assert_eq!(names_in(&folder), ["small", "sub"]);
        holds(&folder.join("sub/large"), &large);
    }
}
