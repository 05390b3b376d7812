//! Host memory on a long path: what one run learns, and the next one uses.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use longhaul_tests::longhaul;
use testkit::{Run, Seed};

use crate::{have, lab};

#[test]
fn a_second_copy_begins_with_the_connections_that_the_first_one_found() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let here = temporary.path().display();
    fs::write(
        temporary.path().join("file"),
        Seed::new(3).bytes(80_000_000),
    )
    .unwrap();
    let copy = format!(
        "{} cp -vv {here}/file far:{here}/copy",
        longhaul().display()
    );
    let outcome = lab
        .env("XDG_CACHE_HOME", temporary.path().join("cache"))
        .args(["--path", "transatlantic", "--sshd", "-q", "--"])
        .args(["sh", "-c", &format!("{copy} && echo again >&2 && {copy}")])
        .run()
        .expect_code(0);
    let said = outcome.err();
    let (first, second) = said.split_once("again\n").expect("two copies");
    let known = "paid last time";
    assert!(!first.contains(known), "{outcome}");
    assert!(first.contains("adding"), "{outcome}");
    assert!(second.contains(known), "{outcome}");
}

/// Files of 128 KiB in a folder, and a longhaul on the far end's PATH.
struct BothEnds {
    temporary: tempfile::TempDir,
    bin: tempfile::TempDir,
    content: Vec<u8>,
    files: usize,
}

impl BothEnds {
    /// Creates `files` files in `tree`, and prepares a lab whose server has the PATH; `None`, after
    /// reporting the skip, if there is no lab.
    fn start(files: usize) -> Option<(Self, Run)> {
        let new = || tempfile::tempdir().expect("a folder");
        let (temporary, bin) = (new(), new());
        let lab = have(&[("sshd", "openssh-server")]).then(|| lab(temporary.path()))??;
        symlink(longhaul(), bin.path().join("longhaul")).expect("our folder");
        let content = Seed::new(3).bytes(128 << 10);
        fs::create_dir(temporary.path().join("tree")).expect("our folder");
        for n in 0..files {
            fs::write(temporary.path().join(format!("tree/{n}")), &content).expect("our file");
        }
        let path = format!("SetEnv=PATH={}:/usr/bin:/bin", bin.path().display());
        let lab = lab
            .env("XDG_CACHE_HOME", temporary.path().join("cache"))
            .args(["--sshd", "--sshd-option", &path, "-q"]);
        let ends = Self {
            temporary,
            bin,
            content,
            files,
        };
        Some((ends, lab))
    }

    /// Returns a path on this side, or behind `far:`.
    fn at(&self, end: &str, name: &str) -> String {
        format!("{end}{}/{name}", self.temporary.path().display())
    }

    fn cp(&self, from: &str, to: &str) -> String {
        self.cp_with("-vv", from, to)
    }

    fn cp_with(&self, flags: &str, from: &str, to: &str) -> String {
        let program = self.bin.path().join("longhaul");
        format!("{} cp {flags} -r {from} {to}", program.display())
    }
}

/// Number of further connections that a run planned before it had measured anything. Their number
/// follows from the round trip, which a busy machine lengthens, and from the part of the tree that
/// is known, so that they may be requested in several steps.
fn planned(run: &str) -> usize {
    let counts = run.lines().filter_map(|line| {
        let (_, rest) = line.split_once("adding ")?;
        let (count, what) = rest.split_once(' ')?;
        let count: usize = count.parse().ok()?;
        // A trial says which limiter it is for.
        let planned = what.starts_with("connection") && !what.contains(" because ");
        planned.then_some(count)
    });
    counts.sum()
}

/// Message if direct connections are used.
const STRAIGHT: &str = "using a direct connection for data";

/// Further logins start before the direct server could answer, and giving them up would cost more
/// than a direct connection gains. A single file has no use for further logins, and uses a direct
/// connection.
#[test]
fn small_files_that_are_worth_several_logins_do_not_wait_for_what_goes_straight() {
    let Some((ends, lab)) = BothEnds::start(320) else {
        return;
    };
    let file = ends.temporary.path().join("file");
    // More than 20 round trips' worth at 1 Gbit/s.
    fs::write(file, ends.content.repeat(4 * ends.files)).unwrap();
    let (near, far) = (|name| ends.at("", name), |name| ends.at("far:", name));
    let all = [
        ends.cp(&near("tree"), &far("up")),
        ends.cp(&far("up"), &near("down")),
        // The client now knows that longhaul is at the far end.
        ends.cp(&near("tree"), &far("again")),
        ends.cp(&near("file"), &far("copy")),
    ];
    let outcome = lab
        .args(["--rtt", "60ms", "--rate", "1Gbit", "--"])
        .args(["sh", "-c", &all.join(" && echo DONE >&2 && ")])
        .run()
        .expect_code(0);
    let said = outcome.err();
    let runs: Vec<&str> = said.split("DONE\n").collect();
    assert_eq!(runs.len(), all.len(), "{outcome}");
    for (n, run) in runs.iter().enumerate() {
        let tree = n < 3;
        assert_eq!(run.contains(STRAIGHT), !tree, "{n}: {outcome}");
        assert!(run.contains("at the far end"), "{n}: {outcome}");
        assert!(planned(run) >= 3 || !tree, "{n}: {outcome}");
    }
}

/// The far end sends a download, and no sshd chooses a congestion control that tolerates loss.
#[test]
fn small_files_go_straight_after_all_where_packets_are_lost() {
    let Some((ends, lab)) = BothEnds::start(300) else {
        return;
    };
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let bbr = available.is_ok_and(|all| all.contains("bbr"));
    let allow: &[&str] = if bbr { &["--allow-cc", "bbr"] } else { &[] };
    let outcome = lab
        .args(["--rtt", "30ms", "--rate", "1Gbit", "--loss", "1%"])
        .args(["--cc", "cubic"])
        .args(allow)
        .args(["--", "sh", "-c"])
        .arg(ends.cp(&ends.at("far:", "tree"), &ends.at("", "down")))
        // The connections that the loss slows down take 15 s on an idle machine.
        .timeout(Duration::from_secs(150))
        .run()
        .expect_code(0);
    outcome.expect_err(&[STRAIGHT]);
    for n in 0..ends.files {
        let copy = fs::read(ends.at("", &format!("down/{n}"))).unwrap();
        assert!(copy == ends.content, "{n}");
    }
}

/// Message for a connection that was opened in advance and closed without a login.
const UNUSED: &str = "closing a connection that was opened in advance and not used";

/// Message for a connection that was opened before the first one had logged in.
const AHEAD: &str = "opening another connection before its login is needed";

/// The files to send are counted during the first login, so that the key exchanges of further
/// connections start at the same time.
#[test]
fn further_connections_of_an_upload_are_begun_beside_the_first() {
    let Some((ends, lab)) = BothEnds::start(320) else {
        return;
    };
    let copy = ends.cp_with("-vvv", &ends.at("", "tree"), &ends.at("far:", "up"));
    let outcome = lab
        .args(["--rtt", "60ms", "--rate", "1Gbit", "--"])
        .args(["sh", "-c", &copy])
        .run()
        .expect_code(0);
    let said = outcome.err();
    let (before, after) = said.split_once("far: authenticated").expect("a login");
    let ahead = before.matches(AHEAD).count();
    assert!(ahead >= 3, "{outcome}");
    assert_eq!(after.matches(AHEAD).count(), 0, "{outcome}");
    // All that were opened in advance are used.
    assert!(planned(after) >= ahead, "{outcome}");
    assert!(!after.contains(UNUSED), "{outcome}");
    let logins = after.matches("far: authenticated").count();
    assert!(logins >= ahead, "{outcome}");
    for n in 0..ends.files {
        let copied = fs::read(ends.at("", &format!("up/{n}"))).unwrap();
        assert!(copied == ends.content, "{n}");
    }
}

/// If data waits for direct connections, no further login is needed: none is started that would
/// have to be closed unused.
#[test]
fn nothing_is_begun_beside_a_login_for_what_goes_straight_in_any_case() {
    let Some((ends, lab)) = BothEnds::start(320) else {
        return;
    };
    let copy = ends.cp_with(
        "-vv --far-end=direct",
        &ends.at("", "tree"),
        &ends.at("far:", "up"),
    );
    let outcome = lab
        .args(["--rtt", "60ms", "--rate", "1Gbit", "--"])
        .args(["sh", "-c"])
        .arg(copy)
        .run()
        .expect_code(0);
    let said = outcome.err();
    assert!(
        said.contains(STRAIGHT) && !said.contains(AHEAD),
        "{outcome}"
    );
}

/// One refused login stays one: connections opened beside it do not try to log in.
#[test]
fn what_was_begun_beside_a_login_that_is_refused_does_not_log_in() {
    let Some((ends, lab)) = BothEnds::start(320) else {
        return;
    };
    let copy = ends.cp_with("-vvv", &ends.at("", "tree"), &ends.at("far:", "up"));
    let outcome = lab
        .args(["--sshd-option", "AuthorizedKeysFile=none"])
        .args(["--rtt", "60ms", "--rate", "1Gbit", "--"])
        .args(["sh", "-c", &copy])
        .run();
    let said = outcome.err();
    assert!(said.matches(AHEAD).count() >= 3, "{outcome}");
    assert_eq!(said.matches("permission denied").count(), 1, "{outcome}");
    assert!(!said.contains("authenticated"), "{outcome}");
    assert!(outcome.code.is_some_and(|code| code != 0), "{outcome}");
}

/// sshd's answer to a guessed key exchange was held back by Nagle's algorithm until its
/// identification was acknowledged: a small file to a known host took 5.8 round trips.
#[test]
fn a_known_hosts_key_exchange_does_not_wait_for_nagles_algorithm() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(&[("sshd", "openssh-server")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let here = temporary.path().display();
    fs::write(temporary.path().join("file"), [b'x'; 1024]).unwrap();
    let copy = format!("{} cp {here}/file far:{here}/copy", longhaul().display());
    let now = "date +%s%N";
    let timed = format!("a=$({now}) && {copy} && b=$({now}) && echo $((b - a))");
    let outcome = lab
        .env("XDG_CACHE_HOME", temporary.path().join("cache"))
        // Long compared to the delays of a busy machine.
        .args(["--rtt", "1s", "--rate", "1Gbit", "--sshd", "-q", "--"])
        .args(["sh", "-c", &format!("{copy} && {timed} && {timed}")])
        .run()
        .expect_code(0);
    let out = outcome.out();
    let times = out.lines().filter_map(|line| line.parse::<u64>().ok());
    let least = Duration::from_nanos(times.min().expect("two runs"));
    eprintln!("{:.2} round trips", least.as_secs_f64());
    assert!(least < Duration::from_millis(5500), "{outcome}");
}
