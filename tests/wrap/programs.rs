//! Real programs behave as without `longhaul wrap`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::Scene;
use longhaul_tests::wrapped::Wrapping;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{Outcome, PeerKind, Run, Seed, missing};

fn have(program: &str) -> bool {
    let there = missing::find_program(program).is_some();
    if !there {
        missing::not_here(&format!("{program} is not installed"));
    }
    there
}

/// Prepares `longhaul wrap --always --report=FILE`, which applies everything that is possible.
fn wrapped(wrapping: &Wrapping) -> Run {
    let (report, _) = wrapping.report();
    wrapping.run(&["--always", &report])
}

#[test]
fn ssh_scp_sftp_and_rsync() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let wrapping = Wrapping::new();
    let config = scene.client.dir.config();
    let openssh = |program: &str| wrapped(&wrapping).arg(program).arg("-F").arg(&config);
    let content = Seed::new(8).bytes(6_000_000);
    write_file(&scene.path("file"), &content);
    let file = scene.path("file");
    let copied = |name: &str, outcome: Outcome| {
        let outcome = outcome.expect_code(0);
        let copy = fs::read(scene.path(name)).expect("it is there");
        assert!(copy == content, "{outcome}");
    };
    let outcome = openssh("ssh").args(["peer", "echo through"]).run();
    assert_eq!(outcome.expect_code(0).out(), "through\n");
    let run = openssh("scp").arg("-q").arg(&file);
    copied("up", run.arg(scene.remote("up")).run());
    let run = openssh("scp").arg("-q").arg(scene.remote("up"));
    copied("down", run.arg(scene.path("down")).run());
    let batch = format!("get {} {}\n", file.display(), scene.path("got").display());
    copied("got", openssh("sftp").arg("peer").stdin(batch).run());
    // ssh marks its packets after the login; that is prevented.
    for line in wrapping.reported() {
        assert_eq!(line["program"], "ssh");
        assert!(line["kept_off"].as_u64() >= Some(1), "{line}");
    }
    if !have("rsync") {
        return;
    }
    Tree::full(6).make(&scene.path("tree"));
    let ssh = format!("ssh -F {}", config.display());
    let run = wrapped(&wrapping).args(["rsync", "-a", "-e", &ssh]);
    let from = format!("{}/", scene.path("tree").display());
    let run = run.arg(from).arg(scene.remote("tree-up"));
    run.run().expect_code(0);
    let (tree, copy) = (scene.path("tree"), scene.path("tree-up"));
    assert_same(&tree, &copy, Compare::CONTENT);
}

#[test]
fn git() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if !have("git") {
        return;
    }
    let wrapping = Wrapping::new();
    let git = |words: &[&str]| {
        let ssh = format!("ssh -F {}", scene.client.dir.config().display());
        let run = wrapped(&wrapping).arg("git").args(words);
        let run = run.env("HOME", scene.scratch.path());
        run.env("GIT_SSH_COMMAND", ssh).run().expect_code(0)
    };
    let repo = scene.path("repo").display().to_string();
    let clone = scene.path("clone").display().to_string();
    git(&["init", "-q", &repo]);
    write_file(&Path::new(&repo).join("file"), b"content");
    git(&["-C", &repo, "add", "file"]);
    let author = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"];
    git(&[&author[..], &["-C", &repo, "commit", "-q", "-m", "one"]].concat());
    git(&["clone", "-q", &format!("peer:{repo}"), &clone]);
    let file = fs::read(Path::new(&clone).join("file"));
    assert_eq!(file.expect("it"), b"content");
}

#[test]
fn iperf3() {
    if !have("iperf3") {
        return;
    }
    let wrapping = Wrapping::new();
    let port = testkit::port::free().to_string();
    let server = wrapping.run(&[
        "--always",
        "iperf3",
        "-s",
        "-1",
        "--forceflush",
        "-p",
        &port,
    ]);
    let server = server.timeout(Duration::from_secs(60)).spawn();
    assert!(server.shows("listening"), "{}", server.wait());
    let client = wrapped(&wrapping).args(["iperf3", "-c", "127.0.0.1", "-p", &port]);
    let told = client
        .args(["-n", "64M", "-S", "0x20", "-P", "2", "--json"])
        .run()
        .expect_code(0);
    server.wait().expect_code(0);
    // iperf3 closes its sockets with unread bytes: only received bytes count.
    let told: serde_json::Value = serde_json::from_str(&told.out()).expect("its JSON");
    let received = told["end"]["sum_received"]["bytes"].as_u64();
    let received = received.expect("bytes that were received");
    assert!(received >= 1 << 20, "{received} bytes");
    let sent = |line: &serde_json::Value| line["tcp"]["sent"].as_u64().unwrap_or(0);
    let sent: u64 = wrapping.reported().iter().map(sent).sum();
    assert!(sent >= received, "{sent} of {received} bytes in the report");
}

#[test]
fn redis() {
    if !have("redis-server") || !have("redis-benchmark") {
        return;
    }
    let wrapping = Wrapping::new();
    let port = testkit::port::free().to_string();
    let server = wrapped(&wrapping).args(["redis-server", "--port", &port, "--save", ""]);
    let server = server
        .args(["--bind", "127.0.0.1"])
        .in_folder(wrapping.folder.path());
    let server = server.timeout(Duration::from_secs(120)).spawn();
    assert!(server.shows("Ready to accept"), "{}", server.wait());
    let client = |flags: &[&str], words: &[&str]| {
        let run = wrapping.run(flags).args(words).args(["-p", &port]);
        run.timeout(Duration::from_secs(60))
            .run()
            .expect_code(0)
            .out()
    };
    for flags in [&["--always"][..], &["--filter", "*"]] {
        let words = [
            "redis-benchmark",
            "-n",
            "2000",
            "-c",
            "20",
            "-t",
            "set,get",
            "--csv",
        ];
        let told = client(flags, &words);
        for test in ["\"SET\"", "\"GET\""] {
            assert!(told.contains(test), "{flags:?}: {told}");
        }
    }
    let run = wrapped(&wrapping).args(["redis-cli", "-p", &port, "shutdown", "nosave"]);
    run.run().expect_code(0);
    server.wait().expect_code(0);
}

#[test]
fn node() {
    if !have("node") {
        return;
    }
    let text = "const net = require('net'), http = require('http');\n\
        const server = http.createServer((q, a) => q.pipe(a)).listen(0, '127.0.0.1', () => {\n  \
          const q = http.request({port: server.address().port, host: '127.0.0.1', method: 'POST'},\n    \
            a => { let n = 0; a.on('data', d => n += d.length); a.on('end', () => {\n      \
              console.log(n); server.close(); other(); }); });\n  \
          q.end(Buffer.alloc(3000000)); });\n\
        function other() {\n  \
          const s = net.createServer(c => c.end('bye')).listen(0, '127.0.0.1', () => {\n    \
            net.connect(s.address().port, '127.0.0.1').on('data', d => console.log(String(d)))\n      \
              .on('close', () => s.close()); }); }";
    let wrapping = Wrapping::new();
    let run = wrapped(&wrapping).args(["node", "-e", text]);
    let outcome = run.timeout(Duration::from_secs(60)).run().expect_code(0);
    assert_eq!(outcome.out(), "3000000\nbye\n");
}

/// Runs Python's own socket tests that end soon; tests that also fail without the library are
/// ignored.
#[test]
fn pythons_tests_of_sockets() {
    if !have("python3") {
        return;
    }
    let tests = [
        "test_socketserver",
        "test_select",
        "test_poll",
        "test_epoll",
        "test_selectors",
        "test_asyncio.test_sock_lowlevel",
        "test_asyncio.test_streams",
    ];
    let wrapping = Wrapping::new();
    let folder = wrapping.folder.path().to_owned();
    let test = |run: Run, name: &str| {
        let run = run.args(["-m", "unittest", "-q", &format!("test.{name}")]);
        run.in_folder(&folder)
            .timeout(Duration::from_secs(240))
            .run()
    };
    for name in tests {
        let outcome = test(wrapped(&wrapping).arg("python3"), name);
        if outcome.code == Some(0) {
            continue;
        }
        let plain = test(Run::new("python3"), name);
        assert_ne!(plain.code, Some(0), "{name} fails wrapped alone: {outcome}");
        missing::not_here(&format!("{name} of Python fails by itself"));
    }
}
