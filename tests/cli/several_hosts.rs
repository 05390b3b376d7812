//! Copies from several hosts to here, and from here to several hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{Client, longhaul, names_in, scratch};
use serde_json::Value;
use testkit::peer::{Peer, PeerBuilder};
use testkit::tree::write_file;
use testkit::{Outcome, Run, Seed};

/// Hosts h1, h2, ... with a folder for each.
pub(crate) struct Hosts {
    pub(crate) client: Client,
    pub(crate) peers: Vec<Peer>,
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

    pub(crate) fn install(&self, number: usize) {
        let bin = self.bins[number - 1].path();
        for folder in ["cache", "state"] {
            fs::create_dir_all(bin.join(folder)).expect("our folder");
        }
        let state = format!(
            "XDG_CACHE_HOME={0}/cache XDG_STATE_HOME={0}/state",
            bin.display()
        );
        let text = format!(
            "#!/bin/sh\nexport {state}\nexec {} \"$@\"\n",
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

    fn logins(&self, number: usize) -> usize {
        self.peers[number - 1]
            .log()
            .matches("Accepted publickey")
            .count()
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
    let Some(hosts) = Hosts::start(2) else { return };
    let content = Seed::new(5).bytes(3_000_000);
    hosts.write("h1/one", &content);
    hosts.write("h2/two", &content);
    let to = hosts.path("to");
    fs::create_dir(&to).expect("our folder");
    let words = [
        hosts.remote(1, "one"),
        hosts.remote(2, "two"),
        to.display().to_string(),
        "--json".to_owned(),
    ];
    let outcome = hosts.cp(&words).run().expect_code(0);
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

#[test]
fn a_missing_target_of_several_hosts_is_an_error_as_in_scp() {
    let Some(hosts) = Hosts::start(2) else { return };
    hosts.write("h1/one", b"1");
    hosts.write("h2/two", b"2");
    let to = hosts.path("none");
    let words = [
        hosts.remote(1, "one"),
        hosts.remote(2, "two"),
        to.display().to_string(),
    ];
    let outcome = hosts.cp(&words).run().expect_code(1);
    outcome.expect_err(&[&to.display().to_string()]);
    assert!(!to.exists());
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
    outcome.expect_err(&["h2:", "h3: ", "1 of 3 hosts complete"]);
    hosts.down(3, false);
    fs::create_dir(hosts.path("h2/none")).expect("our folder");
    let outcome = hosts.cp(&words).run().expect_code(0);
    holds(&hosts.path("h2/none/big"), &content);
    holds(&hosts.path("h3/big"), &content);
    outcome.expect_err(&["3 of 3 hosts complete"]);
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

#[test]
fn a_host_that_is_killed_is_routed_around_and_completed_later() {
    let Some((mut hosts, content)) = Hosts::with_longhaul(4) else {
        return;
    };
    let running = hosts.fan_out(&["--limit", "10MB/s"]).spawn();
    assert!(running.shows("\"bytes_done\":1"), "{}", running.wait());
    testkit::wait::until(
        Duration::from_secs(30),
        || {
            names_in(&hosts.path("h4"))
                .iter()
                .any(|name| name.to_string_lossy().starts_with('.'))
        },
        || "the last host has nothing".to_owned(),
    );
    hosts.down(2, true);
    for pid in hosts.peers[1].sessions() {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process number");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    let outcome = running.wait().expect_code(1);
    let all = summary(&outcome);
    for number in [1, 3, 4] {
        hosts.has_big(number, &content);
    }
    assert_eq!(origins(&all)[2], "h1", "{all}");
    assert_eq!(all["hosts"][1]["outcome"], "no_connection", "{all}");
    hosts.down(2, false);
    let outcome = hosts.fan_out(&[]).run().expect_code(0);
    assert_eq!(
        origins(&summary(&outcome)),
        ["", "h1", "h2", "h3"],
        "{outcome}"
    );
    hosts.has_big(2, &content);
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
    outcome.expect_err(&["from this machine to each host: the file is smaller than 32 MiB"]);
}
