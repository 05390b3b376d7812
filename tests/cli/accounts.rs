//! `longhaul serve --listen` as root: every account of the machine can log in, each in a process of
//! its own.
//!
//! The accounts exist for the server alone: it runs in a mount namespace in which /etc/passwd,
//! /etc/group and /etc/shadow are files of the test, so that the machine's files stay unchanged.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use longhaul_tests::longhaul;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::background_process::BackgroundProcess;
use testkit::tree::write_file;
use testkit::{KeyKind, KeyPair, Outcome, Run, Seed, missing, wait};

/// Name, id of user and group, shell, and password field in shadow.
const ACCOUNTS: [(&str, u32, &str, &str); 5] = [
    ("alice", 54_001, "/bin/sh", "*"),
    ("bob", 54_002, "/bin/sh", "*"),
    ("locked", 54_003, "/bin/sh", "!"),
    ("gone", 54_004, "/usr/sbin/nologin", "*"),
    ("shellless", 54_005, "/no/such/shell", "*"),
];
/// Group that alice is in besides her own.
const STAFF: u32 = 54_100;

pub(crate) struct Machine {
    pub(crate) daemon: BackgroundProcess,
    pub(crate) port: u16,
    pub(crate) key: KeyPair,
    other: KeyPair,
    /// Dropped last.
    folder: TempDir,
}

impl Machine {
    /// Starts the server; `None`, after reporting the skip, if accounts cannot be emulated.
    pub(crate) fn start(flags: &[&str]) -> Option<Self> {
        Self::start_as(None, flags)
    }

    /// Starts the server as an ordinary user.
    pub(crate) fn start_as(user: Option<&str>, flags: &[&str]) -> Option<Self> {
        Self::start_in(user, &[], flags)
    }

    /// Starts the server with environment variables.
    pub(crate) fn start_in(
        user: Option<&str>,
        environment: &[(&str, &Path)],
        flags: &[&str],
    ) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            missing::not_here("only root lets other accounts in");
            return None;
        }
        let namespace = Command::new("unshare").args(["--mount", "true"]).status();
        if !namespace.is_ok_and(|status| status.success()) {
            missing::not_here("accounts are made up in a mount namespace, which is not to be had");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), all).expect("our folder");
        let key = KeyPair::generate(folder.path(), "key", KeyKind::Ed25519);
        let other = KeyPair::generate(folder.path(), "other", KeyKind::Ed25519);
        let host = KeyPair::generate(folder.path(), "host", KeyKind::Ed25519);
        let second = KeyPair::generate(folder.path(), "second", KeyKind::Ecdsa256);
        make_accounts(folder.path(), &key);
        let script = "for file in passwd group shadow; do \
                          mount --bind \"$0/$file\" \"/etc/$file\" || exit 1; \
                      done; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
        command.arg(folder.path()).envs(environment.iter().copied());
        // Paths may be relative to this folder.
        command.current_dir(folder.path());
        if let Some(user) = user {
            command.args([
                "setpriv",
                "--reuid",
                user,
                "--regid",
                user,
                "--clear-groups",
            ]);
            for key in [&host, &second] {
                chown(&key.private, Some(54_001), Some(54_001)).expect("root may");
            }
        }
        command.arg(longhaul());
        command.args(["serve", "--listen", "127.0.0.1:0", "-v", "--host-key"]);
        command.arg(&host.private).arg("--host-key");
        command.arg(&second.private).args(flags);
        let log = folder.path().join("log");
        let mut daemon =
            BackgroundProcess::start("longhaul", command, &log).expect("unshare is there");
        let deadline = Instant::now() + Duration::from_secs(20);
        let port = daemon.line_after("listening on ", deadline);
        let port = port.and_then(|at| at.rsplit(':').next()?.parse().ok());
        let port = port.unwrap_or_else(|| panic!("it did not come up:\n{}", daemon.log()));
        Some(Self {
            daemon,
            port,
            key,
            other,
            folder,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn home(&self, user: &str) -> PathBuf {
        self.path("home").join(user)
    }

    pub(crate) fn sftp_with(&self, key: &KeyPair, user: &str, options: &[&str]) -> Run {
        let run = Run::new("sftp").args([
            "-o",
            "LogLevel=ERROR",
            "-F",
            "none",
            "-P",
            &self.port.to_string(),
        ]);
        let known = format!("UserKnownHostsFile={}", self.path("known").display());
        let run = run.arg("-i").arg(&key.private).args(["-o", &known]);
        run.args(["-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"])
            .args(["-o", "IdentitiesOnly=yes"])
            .args(options)
            .env_remove("SSH_AUTH_SOCK")
            .arg(format!("{user}@127.0.0.1"))
    }

    /// Runs a command as ssh requests it.
    pub(crate) fn ssh(&self, user: &str, command: &str) -> Outcome {
        let known = format!("UserKnownHostsFile={}", self.path("known").display());
        let run = Run::new("ssh").args(["-T", "-F", "none", "-p", &self.port.to_string()]);
        let run = run.arg("-i").arg(&self.key.private).args(["-o", &known]);
        let run = run.args(["-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"]);
        let run = run.args(["-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR"]);
        let run = run.env_remove("SSH_AUTH_SOCK");
        let run = run.arg(format!("{user}@127.0.0.1")).arg(command);
        run.stdin("").run()
    }

    /// Runs sftp commands that may fail.
    fn sftp(&self, user: &str, commands: &[&str]) -> Outcome {
        let lines: Vec<String> = commands.iter().map(|line| format!("-{line}\n")).collect();
        let run = self.sftp_with(&self.key, user, &["-b", "-"]);
        run.stdin(lines.concat()).run()
    }

    /// Returns the one process that serves a connection, after others have started or ended.
    pub(crate) fn only_one(&self) -> u32 {
        wait::found(
            Duration::from_secs(20),
            || match self.daemon.serving()[..] {
                [one] => Some(one),
                _ => None,
            },
            || format!("{:?}:\n{}", self.daemon.serving(), self.daemon.log()),
        )
    }

    /// Waits until the preforked processes have given up what they can and wait for clients.
    /// Returns the fork server of the accounts' processes, which is root's, and the process that
    /// reads what the next client sends before its login.
    fn preforked(&self) -> [u32; 2] {
        let is_ready = |pid: u32| fact(pid, "Name").is_some_and(|name| name == ["longhaul:ready"]);
        let is_root = |pid: u32| fact(pid, "Uid").map(|ids| ids[0] == "0");
        wait::found(
            Duration::from_secs(20),
            || {
                let mut all = self.daemon.descendants();
                all.retain(|pid| is_ready(*pid));
                let [one, other] = all[..] else { return None };
                match (is_root(one)?, is_root(other)?) {
                    (true, false) => Some([one, other]),
                    (false, true) => Some([other, one]),
                    _ => None,
                }
            },
            || format!("{:?}:\n{}", self.daemon.descendants(), self.daemon.log()),
        )
    }

    /// Waits for a process of the server that runs as this user, and returns it.
    pub(crate) fn process_of(&self, uid: u32) -> u32 {
        let of = |pid: &u32| fact(*pid, "Uid").is_some_and(|f| f[0] == uid.to_string());
        wait::found(
            Duration::from_secs(20),
            || self.daemon.serving().into_iter().find(of),
            || format!("no process of {uid}:\n{}", self.daemon.log()),
        )
    }
}

/// Returns the files, pipes and sockets to which a process's descriptors lead, without those that
/// it closes meanwhile.
fn descriptors(pid: u32) -> BTreeSet<String> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("root may");
    let leads = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    leads.map(|leads| leads.display().to_string()).collect()
}

/// Returns the inodes of a process's sockets.
fn sockets(pid: u32) -> BTreeSet<String> {
    let mut all = descriptors(pid);
    all.retain(|leads| leads.starts_with("socket:"));
    all
}

/// Returns a field of /proc/PID/status.
pub(crate) fn fact(pid: u32, name: &str) -> Option<Vec<String>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

fn make_accounts(folder: &Path, key: &KeyPair) {
    let machines = |name: &str| fs::read_to_string(Path::new("/etc").join(name)).expect("it");
    let (mut passwd, mut group) = (machines("passwd"), machines("group"));
    let mut shadow = machines("shadow");
    for (name, id, shell, password) in ACCOUNTS {
        let home = folder.join("home").join(name);
        passwd += &format!("{name}:x:{id}:{id}::{}:{shell}\n", home.display());
        group += &format!("{name}:x:{id}:\n");
        shadow += &format!("{name}:{password}:19000:0:99999:7:::\n");
        let keys = home.join(".ssh/authorized_keys");
        fs::create_dir_all(home.join(".ssh")).expect("our folder");
        write_file(&keys, key.public_line().as_bytes());
        for (path, mode) in [(&home, 0o700), (&home.join(".ssh"), 0o700), (&keys, 0o600)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
            chown(path, Some(id), Some(id)).expect("root may");
        }
    }
    group += &format!("staff-of-test:x:{STAFF}:alice\n");
    for (name, text, mode) in [
        ("passwd", passwd, 0o644),
        ("group", group, 0o644),
        ("shadow", shadow, 0o600),
    ] {
        write_file(&folder.join(name), text.as_bytes());
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.join(name), mode).expect("ours");
    }
}

#[test]
fn each_login_is_a_process_with_the_accounts_rights_and_no_more() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let session = machine
        .sftp_with(&machine.key, "alice", &[])
        .in_terminal()
        .spawn();
    assert!(session.shows("sftp>"), "{}", machine.daemon.log());
    let pid = machine.process_of(54_001);
    let is = |name: &str, words: &[&str]| {
        let found = fact(pid, name).unwrap_or_default();
        assert_eq!(found, words, "{name}");
    };
    is("Uid", &["54001"; 4]);
    is("Gid", &["54001"; 4]);
    is("Groups", &["54001", "54100"]);
    is("NoNewPrivs", &["1"]);
    is("Seccomp", &["2"]);
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        is(set, &["0000000000000000"]);
    }
    // The unprivileged process from before the login is gone, and nobody else can inspect the
    // account's.
    assert_eq!(machine.only_one(), pid);
    let mem = fs::metadata(format!("/proc/{pid}/mem")).expect("it runs");
    assert_eq!(mem.uid(), 0, "it is dumpable");
    // It also lacks the sockets by which other clients arrive, which the fork server has.
    let mine = sockets(pid);
    assert_eq!(mine.len(), 2, "its client and its monitor: {mine:?}");
    let template = machine.preforked()[0];
    wait::until(
        Duration::from_secs(60),
        || sockets(template).len() == 1,
        || format!("its monitor: {:?}", sockets(template)),
    );
    let templates = sockets(template);
    assert!(mine.is_disjoint(&templates), "{mine:?}, {templates:?}");
    drop(session);
}

/// The fork server has read nothing and knows no client. The process for the next client is
/// confined except for the filter, which it gets later: the filter lists descriptors that are not
/// received yet.
#[test]
fn what_stands_ready_has_given_up_what_it_can() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    // One login, so that there is something to leave behind.
    machine.sftp("alice", &["pwd"]).expect_code(0);
    let [template, spare] = machine.preforked();
    let words = |pid: u32, name: &str| fact(pid, name).unwrap_or_default();
    assert_eq!(words(template, "Seccomp"), ["2"]);
    assert_eq!(words(template, "NoNewPrivs"), ["1"]);
    assert_eq!(words(template, "Threads"), ["1"]);
    let environ = fs::read(format!("/proc/{template}/environ")).expect("root may");
    assert!(!String::from_utf8_lossy(&environ).contains("PATH="));
    // The fork server may still be closing its descriptors of the login.
    wait::until(
        Duration::from_secs(60),
        || {
            let known = ["/dev/null", "pipe:", "socket:"];
            let is_known = |to: &String| known.iter().any(|known| to.starts_with(known));
            descriptors(template).iter().all(is_known)
        },
        || format!("the fork server has {:?}", descriptors(template)),
    );
    assert_eq!(words(spare, "NoNewPrivs"), ["1"]);
    assert_eq!(words(spare, "CapPrm"), ["0000000000000000"]);
    assert!(words(spare, "Groups").is_empty());
    let root = fs::read_link(format!("/proc/{spare}/root")).expect("root may");
    assert_eq!(root, Path::new("/run/longhaul"));
    assert_eq!(sockets(spare).len(), 1, "its monitor");
}

#[test]
fn logins_leave_nothing_behind() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let held = || {
        wait::until(
            Duration::from_secs(20),
            || machine.daemon.serving().is_empty(),
            || {
                let all = machine.daemon.descendants();
                format!("{all:?}:\n{}", machine.daemon.log())
            },
        );
        let descriptors = |pid: u32| {
            let all = fs::read_dir(format!("/proc/{pid}/fd"));
            all.expect("root may").count()
        };
        let [template, _] = machine.preforked();
        let server = machine.daemon.pid();
        (descriptors(server), descriptors(template), template)
    };
    machine.sftp("alice", &["pwd"]).expect_code(0);
    // A thread outlives its process by a moment there.
    let quiet = Duration::from_millis(300);
    let before = wait::steady(quiet, Duration::from_secs(20), held).expect("it settles");
    for n in 0..20 {
        let user = ["alice", "bob", "locked", "nobody-at-all"][n % 4];
        machine.sftp(user, &["pwd"]);
        // A client that sends nothing and leaves.
        drop(TcpStream::connect(("127.0.0.1", machine.port)));
    }
    // A client that was turned away may read for two seconds why.
    wait::until(
        Duration::from_secs(20),
        || held() == before,
        || format!("{:?}, {before:?} before", held()),
    );
}

#[test]
fn what_stands_ready_is_replaced_when_it_ends() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let before = machine.preforked();
    let session = machine
        .sftp_with(&machine.key, "bob", &[])
        .in_terminal()
        .spawn();
    assert!(session.shows("sftp>"), "{}", machine.daemon.log());
    let account = machine.process_of(54_002);
    let killed = machine.preforked();
    for pid in &killed {
        let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
        kill_process(pid, Signal::KILL).expect("root may");
    }
    // A client that the server hands to a process that was just killed is reset.
    wait::until(
        Duration::from_secs(20),
        || killed.iter().all(|pid| fact(*pid, "Uid").is_none()),
        || format!("{killed:?} are still there"),
    );
    machine.sftp("alice", &["pwd"]).expect_code(0);
    // An account's process does not outlive the fork server, which would otherwise end it together
    // with the server.
    wait::until(
        Duration::from_secs(20),
        || fact(account, "Uid").is_none(),
        || "it is still there".to_owned(),
    );
    let was_killed = "the process that serves the account ended unexpectedly";
    wait::until(
        Duration::from_secs(20),
        || machine.daemon.log().contains(was_killed),
        || machine.daemon.log(),
    );
    let now = machine.preforked();
    let old = [before, killed].concat();
    assert!(now.iter().all(|pid| !old.contains(pid)), "{now:?}, {old:?}");
    drop(session);
}

#[test]
fn what_comes_before_a_login_is_read_by_a_process_that_may_nothing() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let mut stranger = TcpStream::connect(("127.0.0.1", machine.port)).expect("it listens");
    let mut line = [0; 8];
    stranger.read_exact(&mut line).expect("its identification");
    assert_eq!(&line, b"SSH-2.0-");
    let pid = machine.only_one();
    let is = |name: &str| fact(pid, name).unwrap_or_default();
    assert_ne!(is("Uid"), ["0"; 4]);
    assert_eq!(
        is("Uid")[1..],
        is("Uid")[..3],
        "one user, real, effective and saved"
    );
    assert_ne!(is("Gid")[0], "0");
    assert!(is("Groups").is_empty());
    assert_eq!(is("NoNewPrivs"), ["1"]);
    assert_eq!(is("Seccomp"), ["2"]);
    assert_eq!(is("CapPrm"), ["0000000000000000"]);
    let root = fs::read_link(format!("/proc/{pid}/root")).expect("root may");
    assert_eq!(root, Path::new("/run/longhaul"));
    assert_eq!(fs::read_dir("/run/longhaul").expect("it").count(), 0);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    for limit in ["Max file size", "Max processes", "Max core file size"] {
        let line = limits.lines().find_map(|l| l.strip_prefix(limit));
        let words: Vec<_> = line.expect("it is listed").split_whitespace().collect();
        assert_eq!(words[..2], ["0", "0"], "{limit}");
    }
    // Only its client, its monitor and /dev/null.
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).expect("root may") {
        let leads = fs::read_link(entry.expect("it").path()).expect("root may");
        let leads = leads.display().to_string();
        assert!(
            leads.starts_with("socket:") || leads == "/dev/null",
            "{leads}"
        );
    }
    // The host key is neither in its memory nor in an open file.
    let key = fs::read_to_string(machine.path("host")).expect("our key");
    let inner: String = key.lines().skip(3).take(1).collect();
    let environ = fs::read(format!("/proc/{pid}/environ")).expect("root may");
    assert!(!String::from_utf8_lossy(&environ).contains(&inner));
    drop(stranger);
}

#[test]
fn nobody_reaches_what_is_others() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let secret = machine.home("bob").join("secret");
    write_file(&secret, b"bob's");
    let shared = machine.path("shared");
    write_file(&shared, b"of the staff");
    let of_staff = fs::Permissions::from_mode(0o640);
    fs::set_permissions(&shared, of_staff).expect("ours");
    chown(&shared, Some(0), Some(STAFF)).expect("root may");
    symlink(&secret, machine.home("alice").join("link")).expect("a link");
    let pid = machine.daemon.pid();
    let (got, mine) = (machine.path("got"), machine.path("mine"));
    write_file(&mine, b"hers");
    let get = |what: &str| format!("get {what} {}", got.display());
    for what in [
        secret.display().to_string(),
        "../bob/secret".to_owned(),
        "link".to_owned(),
        "/proc/self/root/etc/shadow".to_owned(),
        "/etc/shadow".to_owned(),
        format!("/proc/{pid}/environ"),
        format!("/proc/{pid}/root/etc/shadow"),
        "/proc/self/mem".to_owned(),
        machine.path("host").display().to_string(),
    ] {
        let outcome = machine.sftp("alice", &[&get(&what)]);
        assert!(!got.exists(), "{what}: {outcome}");
    }
    let put = |to: &str| format!("put {} {to}", mine.display());
    machine.sftp(
        "alice",
        &[&put("../bob/planted"), &put("/etc/planted"), &put("hers")],
    );
    assert!(!machine.home("bob").join("planted").exists());
    assert!(!Path::new("/etc/planted").exists());
    let hers = fs::metadata(machine.home("alice").join("hers")).expect("it is there");
    assert_eq!((hers.uid(), hers.gid()), (54_001, 54_001));
    // A supplementary group of alice counts for her, and not for bob.
    let shared = shared.display().to_string();
    machine.sftp("bob", &[&get(&shared)]);
    assert!(!got.exists());
    machine.sftp("alice", &[&get(&shared)]).expect_code(0);
    assert_eq!(fs::read(&got).expect("it"), b"of the staff");
}

#[test]
fn a_root_is_opened_for_each_account_and_nothing_leads_out() {
    let base = tempfile::tempdir().expect("a folder");
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let root = base.path().join("root");
    fs::create_dir(&root).expect("ours");
    chown(&root, Some(54_001), Some(54_001)).expect("root may");
    let outside = base.path().join("outside");
    write_file(&outside, b"outside");
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o644)).expect("ours");
    let Some(machine) = Machine::start(&["--root", &root.display().to_string()]) else {
        return;
    };
    symlink(&outside, root.join("absolute")).expect("a link");
    symlink("../outside", root.join("relative")).expect("a link");
    symlink("/proc/self/root", root.join("magic")).expect("a link");
    let got = machine.path("got");
    for what in [
        "absolute",
        "relative",
        "../outside",
        "/../outside",
        "magic/etc/passwd",
        "/proc/self/root/etc/passwd",
    ] {
        machine.sftp("alice", &[&format!("get {what} {}", got.display())]);
        assert!(!got.exists(), "{what}");
    }
    let outcome = machine.sftp("alice", &["pwd", "ls -l"]).expect_code(0);
    assert!(outcome.out().contains("Remote working directory: /\n"));
    // If the root is removed while it is served, the next client gets the reason, and existing ones
    // stay.
    fs::remove_dir_all(&root).expect("ours");
    let outcome = machine.sftp("alice", &["pwd"]);
    assert!(!outcome.success(), "{outcome}");
    let told = || machine.daemon.log().contains("cannot serve");
    wait::until(Duration::from_secs(20), told, || machine.daemon.log());
}

#[test]
fn whoever_may_not_log_in_learns_nothing_else() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let refused = |user: &str, key: &KeyPair| {
        let begun = Instant::now();
        let run = machine.sftp_with(key, user, &["-b", "-"]);
        let outcome = run.stdin("").run().expect_code(255);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let said = outcome.err();
        said.replace(user, "USER")
    };
    let known = refused("alice", &machine.other);
    assert!(known.contains("Permission denied (publickey)"), "{known}");
    for (user, why) in [
        ("nobody-at-all", "no such account"),
        ("locked", "it is locked"),
        ("gone", "its shell is /usr/sbin/nologin"),
        ("shellless", "is not executable"),
    ] {
        assert_eq!(refused(user, &machine.key), known, "{user}");
        let log = machine.daemon.log();
        assert!(log.contains(why), "{user}:\n{log}");
    }
    // An authorized_keys that others may write admits nobody.
    let keys = machine.home("bob").join(".ssh/authorized_keys");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o666)).expect("ours");
    assert_eq!(refused("bob", &machine.key), known);
    // The file is read with the account's permissions: a link of bob's to root's file gives no
    // access.
    let roots = machine.path("roots-keys");
    write_file(&roots, machine.key.public_line().as_bytes());
    fs::set_permissions(&roots, fs::Permissions::from_mode(0o600)).expect("ours");
    fs::remove_file(&keys).expect("ours");
    symlink(&roots, &keys).expect("a link");
    assert_eq!(refused("bob", &machine.key), known);
    machine.sftp("alice", &["pwd"]).expect_code(0);
}

#[test]
fn new_keys_in_a_session_are_signed_for_by_the_monitor() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    let content = Seed::new(7).bytes(700_000);
    write_file(&machine.path("file"), &content);
    let back = machine.path("back");
    let commands = format!(
        "put {} file\nget file {}\n",
        machine.path("file").display(),
        back.display()
    );
    for options in [
        &["-b", "-", "-o", "RekeyLimit=200K"][..],
        &["-b", "-", "-o", "RekeyLimit=200K", "-C"],
        &[
            "-b",
            "-",
            "-o",
            "RekeyLimit=200K",
            "-c",
            "chacha20-poly1305@openssh.com",
        ],
    ] {
        let run = machine.sftp_with(&machine.key, "alice", options);
        run.stdin(commands.clone()).run().expect_code(0);
        assert!(fs::read(&back).expect("it") == content, "{options:?}");
        fs::remove_file(&back).expect("ours");
    }
}

#[test]
fn sessions_of_accounts_are_served_to_the_end() {
    let Some(mut machine) = Machine::start(&[]) else {
        return;
    };
    let content = Seed::new(8).bytes(3_000_000);
    let file = machine.home("alice").join("file");
    write_file(&file, &content);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
    let back = machine.path("back");
    // At 8 Mbit/s the transfer takes three seconds.
    let slow = machine.sftp_with(&machine.key, "alice", &["-l", "8000", "-b", "-"]);
    let running = slow.stdin(format!("get file {}\n", back.display())).spawn();
    let begun = || fs::metadata(&back).is_ok_and(|m| m.len() > 0);
    assert!(running.until(begun), "{}", machine.daemon.log());
    machine.daemon.terminate();
    running.wait().expect_code(0);
    assert!(fs::read(&back).expect("it") == content);
    assert_eq!(machine.daemon.ends_within(Duration::from_secs(20)), Some(0));
}

/// An ordinary user's server is confined before the login like root's, except for user and root
/// folder. After the login there is no further process.
#[test]
fn an_ordinary_users_server_is_confined_before_a_login_too() {
    let Some(machine) = Machine::start_as(Some("alice"), &[]) else {
        return;
    };
    let mut stranger = TcpStream::connect(("127.0.0.1", machine.port)).expect("it listens");
    let mut line = [0; 8];
    stranger.read_exact(&mut line).expect("its identification");
    let pid = machine.only_one();
    assert_eq!(fact(pid, "Seccomp"), Some(vec!["2".to_owned()]));
    assert_eq!(fact(pid, "NoNewPrivs"), Some(vec!["1".to_owned()]));
    drop(stranger);
    let session = machine
        .sftp_with(&machine.key, "alice", &[])
        .in_terminal()
        .spawn();
    assert!(session.shows("sftp>"), "{}", machine.daemon.log());
    wait::until(
        Duration::from_secs(20),
        || machine.daemon.serving().is_empty(),
        || format!("{:?}", machine.daemon.serving()),
    );
    drop(session);
    let run = machine.sftp_with(&machine.key, "bob", &["-b", "-"]);
    let outcome = run.stdin("").run().expect_code(255);
    outcome.expect_err(&["Permission denied (publickey)"]);
    assert!(
        machine
            .daemon
            .log()
            .contains("this server admits only alice")
    );
}

/// An account cannot take all connections. Before this, others got a bare reset.
#[test]
fn one_account_leaves_room_for_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("serve.toml");
    write_file(&file, b"connections = 8\n");
    let file = file.display().to_string();
    let Some(machine) = Machine::start(&["--config", &file]) else {
        return;
    };
    let login = |user: &str| machine.sftp_with(&machine.key, user, &[]);
    // Two of eight places are kept for clients that log in. One account may have four times as many
    // of the other six as it leaves free.
    let mut held = Vec::new();
    for _ in 0..4 {
        let session = login("alice").in_terminal().spawn();
        assert!(session.shows("sftp>"), "{}", machine.daemon.log());
        held.push(session);
    }
    let outcome = login("alice").stdin("").run();
    let told = outcome.expect_code(255).err();
    assert!(
        told.contains("too many connections of this account"),
        "{told}"
    );
    login("bob").stdin("").run().expect_code(0);
    // Silent connections take no place that is kept for clients that log in.
    let at = ("127.0.0.1", machine.port);
    let silent = (0..8).filter_map(|_| TcpStream::connect(at).ok());
    let silent: Vec<TcpStream> = silent.collect();
    let outcome = login("bob").stdin("").run();
    let words = outcome.err();
    assert!(
        outcome.success()
            || words.contains(
                "too many connections that have not logged in: the limit is the option unauthenticated"
            ),
        "{words}"
    );
    drop((silent, held));
}
