//! longhaul at the far end behind a stock sshd: used if it is there, and not needed otherwise.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use longhaul_tests::both_ends::{BothEnds, far_end};
use longhaul_tests::{Scene, longhaul, names_in};
use testkit::delay_proxy::Way;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{DelayProxy, Outcome, PeerKind, Run, Seed};

/// Makes a tree that is large enough for the check for longhaul to pay.
fn make_tree(ends: &BothEnds) {
    Tree::small_files(1, 60).make(&ends.scene.path("from"));
    write_file(
        &ends.scene.path("from/large"),
        &Seed::new(2).bytes(3_000_000),
    );
}

/// Copies up and down again, and checks that everything arrived each time.
#[track_caller]
fn copies(ends: &BothEnds, flags: &[&str]) -> [Outcome; 2] {
    for folder in ["to", "back"] {
        let folder = ends.scene.path(folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("our folder");
    }
    let up = ends.cp(flags).arg("-r").arg(ends.scene.path("from/."));
    let up = up.arg(ends.scene.remote("to"));
    let down = ends.cp(flags).arg("-r").arg(ends.scene.remote("to/."));
    let down = down.arg(ends.scene.path("back"));
    let run = |run: Run| run.timeout(Duration::from_secs(60)).run().expect_code(0);
    let outcomes = [run(up), run(down)];
    for folder in ["to", "back"] {
        let copy = ends.scene.path(folder);
        assert_same(&ends.scene.path("from"), &copy, Compare::CONTENT);
    }
    outcomes
}

#[track_caller]
fn assert_depth(outcome: &Outcome, depth: &str) {
    assert_eq!(far_end(outcome)["depth"], depth, "{outcome}");
}

/// Asserts that the stock server was used, and the reason.
#[track_caller]
fn assert_stock(outcome: &Outcome, reason: &str) {
    assert_depth(outcome, "stock");
    let said = far_end(outcome);
    let said = said["reason"].as_str().unwrap_or_default();
    assert!(said.contains(reason), "{said:?}, not {reason:?}\n{outcome}");
}

#[test]
fn it_is_found_on_the_path_and_used_at_once_the_next_time() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    ends.install();
    let [up, down] = copies(&ends, &["--connections=1"]);
    assert_depth(&up, "exec");
    assert_eq!(far_end(&up)["software"], env!("CARGO_PKG_VERSION"), "{up}");
    assert_depth(&down, "exec");
    // The first run started on the stock server; the second did not need it.
    let (_, stock) = ends.started();
    let [again, _] = copies(&ends, &["--connections=1"]);
    assert_depth(&again, "exec");
    assert_eq!(ends.started().1, stock, "{}", ends.scene.peer.log());
    assert_eq!(again.err(), "", "{again}");
    // The closing line says so.
    let run = ends.scene.client.cp().arg(ends.scene.path("from/large"));
    let said = run.arg(ends.scene.remote("to")).run().expect_code(0);
    assert!(said.err().contains("at the far end"), "{said}");
}

#[test]
fn where_there_is_none_nothing_is_said_and_nobody_asks_again() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    let [up, _] = copies(&ends, &[]);
    assert_stock(&up, "longhaul is not installed there");
    assert_eq!(up.err(), "", "{up}");
    let (asked, _) = ends.started();
    assert_eq!(asked, 1, "{}", ends.scene.peer.log());
    let run = ends.scene.client.cp().arg(ends.scene.path("from/large"));
    let said = run.arg(ends.scene.remote("to")).run().expect_code(0);
    assert!(!said.err().contains("longhaul"), "{said}");
    // With --far-end=exec, longhaul is looked for again, and a message says that there is none.
    let run = ends.scene.client.cp().arg("--far-end=exec");
    let run = run.arg(ends.scene.path("from/large"));
    let said = run.arg(ends.scene.remote("to")).run().expect_code(0);
    assert!(
        said.err().contains("longhaul is not installed there"),
        "{said}"
    );
    assert_eq!(ends.started().0, asked + 1);
    // A longhaul that was installed meanwhile is found.
    ends.install();
    let [up, down] = copies(&ends, &["--far-end=exec"]);
    assert_depth(&up, "exec");
    assert_depth(&down, "exec");
}

#[test]
fn one_that_the_user_says_is_there_is_begun_with() {
    // A second channel would be refused.
    let one = |b: testkit::PeerBuilder| b.option("MaxSessions", "1");
    let Some(ends) = BothEnds::with(one) else {
        return;
    };
    make_tree(&ends);
    ends.install();
    let [up, down] = copies(&ends, &["--connections=1", "--far-end=exec"]);
    assert_depth(&up, "exec");
    assert_depth(&down, "exec");
    assert_eq!(ends.started().1, 0, "{}", ends.scene.peer.log());
}

#[test]
fn one_that_the_user_says_is_there_and_is_not_is_done_without() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    // A second lane that is opened before the answer would ask as well.
    let flags = ["--far-end=exec", "--connections=1", "--channels=1"];
    let [up, down] = copies(&ends, &flags);
    assert_stock(&up, "longhaul is not installed there");
    assert_stock(&down, "longhaul is not installed there");
    assert_eq!(ends.started().0, 2, "{}", ends.scene.peer.log());
}

#[test]
fn one_that_has_vanished_is_done_without() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    ends.install();
    copies(&ends, &[]);
    ends.uninstall();
    let [up, down] = copies(&ends, &[]);
    assert_stock(&up, "longhaul is not installed there");
    assert_stock(&down, "longhaul was not there when last checked");
    // The host memory records that the longhaul is gone: the third run did not look for it.
    let (asked, _) = ends.started();
    copies(&ends, &[]);
    assert_eq!(ends.started().0, asked);
}

/// Bug: it was remembered that the host has no longhaul, and copies between hosts passed it by.
#[test]
fn another_version_was_remembered_as_no_longhaul() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    ends.install_script("printf '\\nlonghaul-serves 2 9.9\\n'; exec sleep 60");
    let [up, down] = copies(&ends, &[]);
    assert_stock(&up, "another protocol version");
    assert_stock(&down, "could not be used there when it was tried");
}

#[test]
fn no_longhaul_was_remembered_as_one_that_fails() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    let flags = ["--far-end=exec", "--connections=1", "--channels=1"];
    copies(&ends, &flags);
    let [up, _] = copies(&ends, &[]);
    assert_stock(&up, "longhaul was not there when last checked");
}

#[test]
fn what_startup_files_print_is_passed_over() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    let real = longhaul();
    ends.install_script(&format!(
        "echo 'Welcome to this machine!'; printf 'no end of line'; echo error >&2; \
         head -c 30000 /dev/urandom; exec {} \"$@\"",
        real.display()
    ));
    for _ in 0..2 {
        let outcomes = copies(&ends, &["--far-end=exec"]);
        for outcome in outcomes {
            assert_depth(&outcome, "exec");
            assert_eq!(outcome.err(), "", "{outcome}");
        }
    }
}

/// Programs in longhaul's place, and the reason that is reported for each.
const IMPOSTORS: [(&str, &str); 7] = [
    ("exit 3", "status 3"),
    ("exec yes", "printed other output"),
    ("exec tr '\\\\000' x </dev/zero", "printed other output"),
    ("printf '\\nlonghaul-serves 1 9.9\\n'; exec yes", "SFTP"),
    ("printf '\\nlonghaul-serves 1 9.9\\n'; exit 0", "ended"),
    (
        "printf '\\nlonghaul-serves 2 9.9\\n'; sleep 60",
        "upgrade longhaul on this machine",
    ),
    (
        "printf '\\nlonghaul-serves 0 0.0\\n'; sleep 60",
        "upgrade longhaul on the remote host",
    ),
];

#[test]
fn an_impostor_disturbs_nothing() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    for (script, reason) in IMPOSTORS {
        ends.install_script(script);
        // Requested, beside a working stock server.
        let [up, _] = copies(&ends, &["--far-end=exec"]);
        assert_depth(&up, "stock");
        let said = far_end(&up)["reason"].to_string();
        assert!(said.contains(reason), "{script}: {said}");
        assert_eq!(up.err(), "", "{script}: {up}");
        // In the place of a longhaul that worked the last time.
        ends.install();
        let [_, down] = copies(&ends, &["--far-end=exec"]);
        assert_depth(&down, "exec");
        ends.install_script(script);
        let [up, _] = copies(&ends, &["--far-end=exec"]);
        assert_depth(&up, "stock");
        let said = far_end(&up)["reason"].to_string();
        assert!(said.contains(reason), "{script}: {said}");
    }
}

/// Bug: with MaxSessions 1, sshd refuses the stock server's channel until the impostor has ended.
/// The copy was given up after four refusals within a few milliseconds.
#[test]
fn an_impostor_that_ends_late_makes_room_for_the_only_channel() {
    let one = |b: testkit::PeerBuilder| b.option("MaxSessions", "1");
    let Some(ends) = BothEnds::with(one) else {
        return;
    };
    make_tree(&ends);
    ends.install_script("yes | head -c 1000000; exec sleep 1");
    let [up, down] = copies(&ends, &["--connections=1", "--far-end=exec"]);
    assert_stock(&up, "printed other output");
    assert_stock(&down, "printed other output");
}

#[test]
fn one_that_never_answers_keeps_nothing_waiting() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    make_tree(&ends);
    ends.install_script("exec sleep 60");
    // Both copies wait for some seconds, since neither gets an answer that could be remembered.
    let start = Instant::now();
    let [up, _] = copies(&ends, &["--far-end=exec"]);
    assert_depth(&up, "stock");
    assert!(start.elapsed() < Duration::from_secs(25), "{up}");
    ends.install();
    copies(&ends, &["--far-end=exec"]);
    ends.install_script("exec sleep 60");
    let start = Instant::now();
    let [up, _] = copies(&ends, &[]);
    assert_stock(&up, "took too long to answer");
    assert!(start.elapsed() < Duration::from_secs(15), "{up}");
}

#[test]
fn an_account_that_is_given_nothing_but_sftp_keeps_it() {
    let server = testkit::missing::sftp_server();
    let server = server.map(|path| path.display().to_string());
    // With the first forced command sshd refuses every other command; with the second it runs the
    // SFTP server whatever is requested.
    let forced = [
        (Some("internal-sftp".to_owned()), "ended with status 1"),
        (server, "its own SFTP server for every command"),
    ];
    for (command, reason) in forced {
        let Some(command) = command else { continue };
        let forced = |b: testkit::PeerBuilder| b.option("ForceCommand", &command);
        let Some(ends) = BothEnds::with(forced) else {
            return;
        };
        make_tree(&ends);
        ends.install();
        let [up, _] = copies(&ends, &[]);
        assert_stock(&up, reason);
        assert_eq!(up.err(), "", "{up}");
    }
}

#[test]
fn a_server_that_allows_one_channel_gives_it_to_the_stock_server() {
    let one = |b: testkit::PeerBuilder| b.option("MaxSessions", "1");
    let Some(ends) = BothEnds::with(one) else {
        return;
    };
    make_tree(&ends);
    ends.install();
    let [up, down] = copies(&ends, &["--connections=1"]);
    for outcome in [&up, &down] {
        assert_stock(outcome, "allows no further session on this connection");
        assert_eq!(outcome.err(), "", "{outcome}");
    }
}

/// `sftp-server -d` sets another start folder, so that a relative path would name another file at
/// longhaul.
#[test]
fn paths_that_begin_elsewhere_keep_the_stock_server() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let bin = longhaul_tests::scratch();
    std::os::unix::fs::symlink(longhaul(), bin.path().join("longhaul")).expect("our link");
    let path = format!("PATH={}:/usr/bin:/bin", bin.path().display());
    let builder = testkit::PeerBuilder::openssh().option("SetEnv", path);
    let Some(scene) = Scene::with(builder) else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    let run = scene.client.cp().args(["--json", "--far-end=exec"]);
    let outcome = run.arg(scene.path("file")).arg("peer:name").run();
    let outcome = outcome.expect_code(0);
    assert!(scene.peer.home().join("name").exists(), "{outcome}");
    assert_depth(&outcome, "stock");
}

#[test]
fn nobody_asks_for_one_small_file_or_where_it_is_told_not_to() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    write_file(&ends.scene.path("small"), b"content");
    let copy = |flags: &[&str]| {
        let run = ends.cp(flags).arg(ends.scene.path("small"));
        run.arg(ends.scene.remote("copy")).run().expect_code(0)
    };
    let outcome = copy(&[]);
    assert_stock(&outcome, "too small");
    make_tree(&ends);
    let [up, _] = copies(&ends, &["--far-end=stock"]);
    assert_stock(&up, "--far-end=stock");
    assert_eq!(ends.started().0, 0, "{}", ends.scene.peer.log());
    // The remembered longhaul is used nevertheless.
    copies(&ends, &[]);
    assert_depth(&copy(&[]), "exec");
    let refused = ends.cp(&["--far-end=exec", "-D", "true", "a", "h:b"]).run();
    refused.expect_code(2).expect_err(&["--far-end"]);
}

/// Returns the processes that serve at the far end.
fn serving(ends: &BothEnds) -> Vec<u32> {
    let is = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        words.contains("--marker") && !words.contains("sh -c")
    };
    let all = ends.scene.peer.processes();
    all.into_iter().filter(is).collect()
}

#[test]
fn one_that_dies_in_the_middle_is_replaced_by_the_stock_server() {
    for up in [true, false] {
        let Some(mut ends) = BothEnds::start() else {
            return;
        };
        ends.install();
        make_tree(&ends);
        copies(&ends, &["--far-end=exec"]);
        let size = 40_000_000;
        write_file(&ends.scene.path("file"), &Seed::new(3).bytes(size));
        let proxy = DelayProxy::to(ends.scene.peer.addr())
            .rate(10_000_000)
            .start();
        ends.behind(&proxy);
        let run = ends.cp(&["--far-end=exec", "--connections=1"]);
        let run = match up {
            true => run
                .arg(ends.scene.path("file"))
                .arg(ends.scene.remote("copy")),
            false => run
                .arg(ends.scene.remote("file"))
                .arg(ends.scene.path("copy")),
        };
        let running = run.timeout(Duration::from_secs(60)).spawn();
        let way = if up { Way::Up } else { Way::Down };
        let there = running.until(|| proxy.carried(way) > 5_000_000 && !serving(&ends).is_empty());
        let killed = serving(&ends);
        for pid in &killed {
            let pid = rustix::process::Pid::from_raw(*pid as i32).expect("a process");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let outcome = running.wait().expect_code(0);
        assert!(there && !killed.is_empty(), "{outcome}");
        assert_same(
            &ends.scene.path("file"),
            &ends.scene.path("copy"),
            Compare::CONTENT,
        );
        assert_stock(&outcome, "longhaul at the remote host ended");
        let left: Vec<_> = names_in(ends.scene.scratch.path());
        assert_eq!(left.len(), 5, "back copy file from to: {left:?}");
    }
}

/// Sets another home for commands of the account, so that uploads of the program go nowhere else.
fn with_home() -> Option<(BothEnds, tempfile::TempDir)> {
    let home = longhaul_tests::scratch();
    let cache = format!("XDG_CACHE_HOME={}", home.path().display());
    let ends = BothEnds::with_environment(&cache)?;
    Some((ends, home))
}

#[test]
fn it_is_sent_ahead_used_there_and_removed() {
    let Some((ends, home)) = with_home() else {
        return;
    };
    make_tree(&ends);
    let bin = home.path().join("longhaul/bin");
    // Slow enough for the answer to arrive first: a checksum of the whole program is made before
    // it.
    let slow = ["--bootstrap", "--limit=2MB"];
    let bootstrap = |flags: &[&str]| {
        let dir = &ends.scene.client.dir;
        let run = dir.run(longhaul()).arg("bootstrap").args(flags);
        run.arg("-F")
            .arg(dir.config())
            .arg("peer")
            .run()
            .expect_code(0)
    };
    let sent = bootstrap(&[]);
    assert!(sent.err().contains("longhaul installed"), "{sent}");
    let [up, down] = copies(&ends, &slow);
    assert_depth(&up, "exec");
    assert_depth(&down, "exec");
    let names = names_in(&bin);
    assert_eq!(names.len(), 1, "{names:?}");
    let sent = bin.join(&names[0]);
    assert_same(&longhaul(), &sent, Compare::CONTENT);
    let mode = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(&bin), 0o700);
    assert_eq!(mode(&home.path().join("longhaul")), 0o700);
    // The program is remembered and used without the flag.
    let [up, _] = copies(&ends, &[]);
    assert_depth(&up, "exec");
    // A program that differs from the one sent is not started.
    let mut bytes = fs::read(&sent).expect("it can be read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::remove_file(&sent).expect("our file");
    write_file(&sent, &bytes);
    fs::set_permissions(&sent, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("our file");
    let [up, _] = copies(&ends, &[]);
    assert_stock(&up, "was altered");
    // A program that was removed is not reported as "never there".
    let again = bootstrap(&[]);
    assert!(again.err().contains("longhaul installed"), "{again}");
    fs::remove_file(&sent).expect("our file");
    let [up, _] = copies(&ends, &["--far-end=exec", "--limit=2MB"]);
    assert_stock(&up, "is missing");
    let sent = bootstrap(&[]);
    assert!(sent.err().contains("longhaul installed"), "{sent}");
    let [up, _] = copies(&ends, &slow);
    assert_depth(&up, "exec");
    // A direct connection does not require one on the PATH.
    let [up, _] = copies(&ends, &["--far-end=direct", "--limit=2MB"]);
    assert_depth(&up, "direct");
    // `--remove` deletes it.
    let removed = bootstrap(&["--remove"]);
    assert!(removed.err().contains("removed"), "{removed}");
    assert!(!bin.exists());
    let [up, _] = copies(&ends, &["--far-end=exec", "--limit=2MB"]);
    assert_stock(&up, "longhaul is not installed there");
}

/// Bug: a bootstrap that was interrupted while the program was being sent ended with 255 between two
/// hosts, and `longhaul bootstrap` left a partial program at the host.
#[test]
fn an_interrupt_while_the_program_was_sent_left_a_part_of_it() {
    let Some((mut ends, home)) = with_home() else {
        return;
    };
    write_file(&ends.scene.path("a"), b"content");
    ends.scene.client.dir.add_host("other", &ends.scene.peer);
    let bin = home.path().join("longhaul/bin");
    let to = ends.scene.remote("b");
    let mut other = OsString::from("other:");
    other.push(ends.scene.path("a"));
    let run = ends.scene.client.cp().args(["--bootstrap", "--limit=100k"]);
    let running = run.arg(other).arg(to).spawn();
    let is_partial = |name: &OsString| name.as_bytes().starts_with(b".longhaul-");
    let is_begun = || bin.exists() && names_in(&bin).iter().any(is_partial);
    assert!(running.until(is_begun), "nothing is sent");
    running.interrupt();
    running.wait().expect_code(130);
    assert!(names_in(&bin).is_empty(), "{:?}", names_in(&bin));
    assert!(!ends.scene.path("b").exists());
    // This command has no --limit.
    let slow = DelayProxy::to(ends.scene.peer.addr()).rate(6_000_000);
    let slow = slow.start();
    ends.behind(&slow);
    let dir = &ends.scene.client.dir;
    let run = dir.run(longhaul()).arg("bootstrap").arg("-F");
    let running = run.arg(dir.config()).arg("peer").spawn();
    assert!(running.until(is_begun), "nothing is sent");
    running.interrupt();
    running
        .wait()
        .expect_code(130)
        .expect_err(&["peer: interrupted"]);
    assert!(names_in(&bin).is_empty(), "{:?}", names_in(&bin));
}

#[test]
fn where_it_cannot_be_sent_a_sentence_says_so_and_the_copy_goes_on() {
    let Some((ends, home)) = with_home() else {
        return;
    };
    make_tree(&ends);
    fs::create_dir(home.path().join("longhaul")).expect("our folder");
    let elsewhere = longhaul_tests::scratch();
    let link = home.path().join("longhaul/bin");
    std::os::unix::fs::symlink(elsewhere.path(), &link).expect("our link");
    let [up, _] = copies(&ends, &["--bootstrap"]);
    assert_depth(&up, "stock");
    assert!(up.out().contains("contains a symbolic link"), "{up}");
    assert!(names_in(elsewhere.path()).is_empty());
    fs::remove_file(&link).expect("our link");
    write_file(&link, b"in the way");
    let [up, _] = copies(&ends, &["--bootstrap"]);
    assert!(
        up.out().contains("cannot create ~/.cache/longhaul/bin"),
        "{up}"
    );
    assert_depth(&up, "stock");
}
