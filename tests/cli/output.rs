//! Output of the program, and where it goes.

use std::os::unix::ffi::OsStrExt as _;

use longhaul_tests::Scene;
use testkit::tree::write_file;
use testkit::{PeerKind, Seed};

#[test]
fn piped_it_says_one_closing_line_on_standard_error_and_quiet_none() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), &Seed::new(1).bytes(3_000_000));
    let run = |flags: &[&str]| {
        let run = scene.client.cp().args(flags).arg(scene.path("file"));
        run.arg(scene.remote("copy")).run().expect_code(0)
    };
    let outcome = run(&["-q"]);
    assert!(
        outcome.stdout.is_empty() && outcome.stderr.is_empty(),
        "{outcome}"
    );
    let outcome = run(&[]);
    assert!(
        outcome.stdout.is_empty(),
        "standard output is for --json: {outcome}"
    );
    assert!(
        !outcome.stderr.contains(&b'\r') && !outcome.stderr.contains(&0x1b),
        "{outcome}"
    );
    if !scene.client.is_scp() {
        assert_eq!(outcome.err().lines().count(), 1, "{outcome}");
        assert!(
            outcome.err().contains("written and renamed"),
            "no more is claimed: {outcome}"
        );
        // Errors are shown even with -q.
        let run = scene.client.cp().arg("-q").arg(scene.path("missing"));
        let outcome = run.arg(scene.remote("copy")).run().expect_code(1);
        assert!(outcome.err().contains("missing"), "{outcome}");
    }
}

#[test]
fn colours_only_on_a_terminal_that_wants_them() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let fails = || {
        scene
            .client
            .cp()
            .arg(scene.path("missing"))
            .arg(scene.remote("copy"))
    };
    // Only sequences that end in `m` set colors; others move the cursor.
    let coloured = |text: &str| {
        text.split('\x1b').skip(1).any(|rest| {
            let end = rest.find(|c: char| c.is_ascii_alphabetic());
            end.is_some_and(|end| rest[end..].starts_with('m') && rest.starts_with('['))
        })
    };
    let outcome = fails().run().expect_code(1);
    assert!(!coloured(&outcome.err()), "{outcome}");
    let outcome = fails().env("TERM", "xterm").in_terminal().run();
    assert!(coloured(&outcome.out()), "{outcome}");
    let outcome = fails()
        .env("TERM", "xterm")
        .env("NO_COLOR", "1")
        .in_terminal()
        .run();
    assert!(!coloured(&outcome.out()), "{outcome}");
    let outcome = fails().env("TERM", "dumb").in_terminal().run();
    assert!(!coloured(&outcome.out()), "{outcome}");
}

/// Names from files and from servers are escaped before they reach the terminal.
#[test]
fn names_are_escaped_when_shown() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let name = std::ffi::OsStr::from_bytes(b"evil\x1b]0;owned\x07\x1b[31m\r\n\xff");
    std::fs::create_dir(scene.path("tree")).expect("our folder");
    let _socket =
        std::os::unix::net::UnixListener::bind(scene.path("tree").join(name)).expect("a socket");
    for flags in [&["-r"][..], &["-r", "-v"], &["-r", "--progress"]] {
        for terminal in [false, true] {
            let run = scene.client.cp().args(flags).args(["--color", "never"]);
            let run = run.arg(scene.remote("tree")).arg(scene.path("copy"));
            let outcome = if terminal {
                run.in_terminal().run()
            } else {
                run.run()
            };
            for bytes in [&outcome.stdout, &outcome.stderr] {
                let text = String::from_utf8_lossy(bytes);
                assert!(!text.contains("\x1b]0;"), "a title is set: {outcome}");
                assert!(
                    !text.contains("\x1b[31m") && !text.contains('\x07'),
                    "{outcome}"
                );
            }
            let shown = outcome.out() + &outcome.err();
            assert!(shown.contains("evil"), "the failure is named: {outcome}");
        }
    }
}

#[test]
fn progress_is_written_to_a_log_when_asked() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let proxy = testkit::DelayProxy::to(scene.peer.addr())
        .rate(4_000_000)
        .start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("file"), &Seed::new(1).bytes(14_000_000));
    // The proxy's rate applies to each connection: with more of them the copy was over in a second
    // and a half.
    let run = scene.client.cp().args(["--progress", "--connections", "1"]);
    let run = run.arg(scene.path("file"));
    let outcome = run.arg(scene.remote("copy")).run().expect_code(0);
    assert!(
        outcome.err().lines().count() >= 3,
        "a line a second: {outcome}"
    );
    assert!(!outcome.stderr.contains(&b'\r'), "{outcome}");
}

/// As with scp, which passes `-q` on to ssh.
#[test]
fn quiet_keeps_the_word_about_a_new_host_to_itself() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    write_file(&scene.path("file"), b"content");
    for (flags, said) in [(&["-q"][..], false), (&[], true)] {
        let known = scene.path(&format!("known-{said}"));
        let run = scene.client.cp().args(flags);
        let run = run.args(["-o", "StrictHostKeyChecking=accept-new", "-o"]);
        let run = run.arg(format!("UserKnownHostsFile={}", known.display()));
        let run = run.arg(scene.path("file")).arg(scene.remote("copy"));
        let outcome = run.run().expect_code(0);
        assert_eq!(
            outcome.err().contains("Permanently added"),
            said,
            "{outcome}"
        );
        assert!(known.is_file(), "{outcome}");
    }
}

/// The progress line fits 80 columns. With a count of files it was wider, and each redraw left a
/// line behind.
#[test]
fn progress_fits_the_terminal() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let proxy = testkit::DelayProxy::to(scene.peer.addr())
        .rate(4_000_000)
        .start();
    let dir = &mut scene.client.dir;
    dir.add_host_at("peer", &scene.peer, proxy.port());
    let tree = scene.path("a-directory-with-a-rather-long-name");
    std::fs::create_dir(&tree).expect("our folder");
    for n in 0..8 {
        write_file(
            &tree.join(format!("file-{n}")),
            &Seed::new(n).bytes(1_000_000),
        );
    }
    for columns in [24, 40, 80] {
        let run = scene.client.cp().args(["-r", "--connections", "1"]);
        let run = run.arg(&tree).arg(scene.remote(&format!("copy-{columns}")));
        let run = run.env("COLUMNS", columns.to_string()).env("TERM", "xterm");
        let outcome = run.in_terminal().run().expect_code(0);
        let shown = outcome.out();
        let drawn = shown
            .rsplit_once('\x1b')
            .expect("it was erased at the end")
            .0;
        assert!(drawn.contains("/s"), "a rate was shown: {outcome}");
        for line in drawn.split(['\r', '\n']) {
            let text = line.rsplit("\x1b[J").next().unwrap_or_default();
            assert!(text.len() < columns, "{columns}: {text:?} in {outcome}");
        }
    }
}

#[test]
fn verbose_names_each_file() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    std::fs::create_dir(scene.path("tree")).expect("our folder");
    for name in ["one", "two"] {
        write_file(&scene.path("tree").join(name), b"content");
    }
    let run = |flags: &[&str]| {
        let run = scene.client.cp().args(flags).arg(scene.path("tree"));
        run.arg(scene.remote("copy")).run().expect_code(0).err()
    };
    let said = run(&["-v", "-r"]);
    for name in ["one", "two"] {
        let from = scene.path("tree").join(name);
        let lines = said.lines().filter(|line| {
            line.starts_with(&from.display().to_string()) && line.contains(" -> peer:")
        });
        assert_eq!(lines.count(), 1, "{said}");
    }
    // A log line begins with the time since the start.
    assert!(!said.lines().any(|line| line.contains(" INFO ")), "{said}");
    // Details of the engine appear with -vv, as sentences: Rust's Debug format has braces.
    assert!(!said.contains("key exchange "), "{said}");
    let more = run(&["-vv", "-r"]);
    assert!(more.contains("key exchange "), "{more}");
    assert!(!more.contains("Some(") && !more.contains(" { "), "{more}");
    assert!(!run(&["-q", "-v", "-r"]).contains(" -> "));
}

/// A host that does not answer is named after a while. Before this, there were two minutes of
/// silence.
#[test]
fn a_host_that_does_not_answer_is_named_while_it_is_waited_for() {
    let client = longhaul_tests::Client::new();
    if client.is_scp() {
        return;
    }
    let silent = longhaul_tests::Silent::start();
    let target = format!("scp://someone@127.0.0.1:{}/x", silent.port());
    let run = client.cp().args(["-o", "ConnectTimeout=3", "/dev/null"]);
    let run = run.arg(target).env("TERM", "xterm").in_terminal();
    let outcome = run.run().expect_code(255);
    let shown = outcome.out();
    assert!(
        shown.contains("connecting to someone@127.0.0.1 ... 1 s"),
        "{outcome}"
    );
}

/// Bug: a copy whose host did not accept the connection said nothing for two minutes where no
/// progress is shown. Takes the 10 s until the notice.
#[test]
fn a_connection_that_is_not_accepted_was_waited_for_without_a_word() {
    let client = longhaul_tests::Client::new();
    if client.is_scp() {
        return;
    }
    let silent = longhaul_tests::Silent::start();
    let port = silent.port();
    let run = client.cp().arg("/dev/null");
    let running = run.arg(format!("scp://someone@127.0.0.1:{port}/x")).spawn();
    let told = format!(
        "127.0.0.1: nothing received for 10 s: waiting for 127.0.0.1 port {port} to accept the \
         connection"
    );
    assert!(running.shows(&told));
    let interrupted = std::time::Instant::now();
    running.interrupt();
    running.wait().expect_code(130);
    let took = interrupted.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}

/// The kernel accepts the connection, and nobody speaks on it. The limit without ConnectTimeout is
/// tested in virtual time where it is measured.
#[test]
fn a_host_that_accepts_a_connection_and_says_nothing_is_given_up() {
    let client = longhaul_tests::Client::new();
    if client.is_scp() {
        return;
    }
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("its address").port();
    let run = client.cp().args(["-o", "ConnectTimeout=1", "/dev/null"]);
    let run = run.arg(format!("scp://someone@127.0.0.1:{port}/x"));
    let outcome = run.run().expect_code(255);
    let said = format!(
        "127.0.0.1: the connection to port {port} was opened, but the server did not complete the \
         key exchange within 1 s"
    );
    assert!(outcome.err().contains(&said), "{outcome}");
}

/// An interrupted copy reports the bytes sent. Before this, it reported 0 files after 99 MB.
#[test]
fn an_interrupted_copy_says_what_had_gone() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let proxy = testkit::DelayProxy::to(scene.peer.addr())
        .rate(6_000_000)
        .start();
    let dir = &mut scene.client.dir;
    dir.add_host_at("peer", &scene.peer, proxy.port());
    write_file(&scene.path("file"), &Seed::new(1).bytes(60_000_000));
    let run = scene.client.cp().args(["--progress", "--connections", "1"]);
    let run = run.arg(scene.path("file")).arg(scene.remote("copy"));
    let running = run.spawn();
    assert!(running.shows("MB of 60 MB"), "it moves");
    running.interrupt();
    let outcome = running.wait().expect_code(130);
    let said = outcome.err();
    assert!(said.contains(" of unfinished files, in "), "{outcome}");
    assert!(said.contains("to resume: "), "{outcome}");
}
