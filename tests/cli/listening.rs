//! `longhaul serve --listen` with longhaul's own client and with OpenSSH's.

use std::fs;
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use longhaul_tests::{Scene, longhaul, names_in};
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{KeyKind, KeyPair, Run, Seed, missing};

use crate::serving::{a_tree_there_and_back, openssh, sftp};

fn builder(flags: &[&str]) -> PeerBuilder {
    PeerBuilder::longhaul(longhaul(), flags.iter().copied())
}

fn listening() -> Scene {
    Scene::with(builder(&[])).expect("longhaul is there")
}

/// Starts a server whose authorized_keys has these options in front of the client's key.
fn with_options(options: &str) -> Scene {
    let scene = listening();
    let line = format!("{options} {}\n", scene.client.dir.key().public_line());
    let file = scene.peer.folder().join("authorized_keys");
    write_file(&file, line.as_bytes());
    scene
}

#[test]
fn our_own_client_copies_trees_and_files_with_several_connections() {
    let scene = listening();
    if scene.client.is_scp() {
        return;
    }
    a_tree_there_and_back(&scene);
    let content = Seed::new(1).bytes(60_000_000);
    write_file(&scene.path("file"), &content);
    let logins = || scene.peer.log().matches("logged in").count();
    for (from, to, name) in [
        (
            scene.path("file").into_os_string(),
            scene.remote("there"),
            "there",
        ),
        (
            scene.remote("there"),
            scene.path("back").into_os_string(),
            "back",
        ),
    ] {
        let before = logins();
        // A login takes a tenth of a second, in which everything would be transferred without a
        // limit.
        let flags = [
            "--connections",
            "3",
            "--channels",
            "2",
            "--verify",
            "--limit",
            "40MB",
        ];
        scene.copies(&flags, from, to);
        assert!(fs::read(scene.path(name)).expect("it is there") == content);
        assert_eq!(logins() - before, 3);
    }
}

#[test]
fn openssh_clients_do_with_it_what_they_do_with_sshd() {
    let root = tempfile::tempdir().expect("a folder");
    let root_flag = root.path().display().to_string();
    let scene = Scene::with(builder(&["--root", &root_flag])).expect("longhaul is there");
    let content = Seed::new(2).bytes(5_000_000);
    write_file(&scene.path("file"), &content);
    let file = scene.path("file").display().to_string();
    let back = scene.path("back").display().to_string();
    let outcome = sftp(
        &scene,
        &[
            &format!("put {file} name"),
            "mkdir dir",
            "rename name dir/name",
            "ls -la dir",
            &format!("get dir/name {back}"),
            "df",
            "pwd",
        ],
    );
    let outcome = outcome.expect_code(0);
    assert!(
        fs::read(&back).expect("it came back") == content,
        "{outcome}"
    );
    assert!(outcome.out().contains("Remote working directory: /\n"));
    let scp = || openssh(&scene, "scp").arg("-r");
    scp().arg(&file).arg("peer:/by-scp").run().expect_code(0);
    scp()
        .arg("peer:/")
        .arg(scene.path("all"))
        .run()
        .expect_code(0);
    assert!(fs::read(scene.path("all/by-scp")).expect("it") == content);
    assert_eq!(names_in(&scene.path("all")), names_in(root.path()));
}

/// Starts a server, and returns a check that uploads and downloads a file of three megabytes.
fn with_a_file(flags: &[&str]) -> (Scene, impl Fn(&Scene, &str, testkit::Outcome)) {
    let scene = Scene::with(builder(flags)).expect("longhaul is there");
    let content = Seed::new(5).bytes(3_000_000);
    write_file(&scene.path("file"), &content);
    let check = move |scene: &Scene, client: &str, outcome: testkit::Outcome| {
        outcome.expect_code(0);
        for name in ["there", "back"] {
            let path = scene.path(name);
            assert!(fs::read(&path).expect("it") == content, "{client}: {name}");
            fs::remove_file(path).expect("ours");
        }
    };
    (scene, check)
}

#[test]
fn clients_of_other_makes_put_and_get() {
    let (scene, check) = with_a_file(&[]);
    let key = &scene.client.dir.key().private;
    let python = missing::built_peers().join("venv/bin/python");
    for library in ["paramiko", "asyncssh"] {
        if !python.is_file() {
            missing::skip(library, "run scripts/setup-tests.sh");
            continue;
        }
        let script = missing::checkout().join("tests/peers/sftp_client.py");
        let run = Run::new(&python).arg(script).arg(library);
        let run = run
            .arg(scene.peer.port().to_string())
            .arg(scene.peer.user());
        let files = ["file", "there", "back"].map(|name| scene.path(name));
        check(&scene, library, run.arg(key).args(files).run());
    }
    // libssh2 has no post-quantum key exchange.
    let (scene, check) = with_a_file(&["--old-clients"]);
    let (port, key) = (scene.peer.port(), &scene.client.dir.key().private);
    if let Some(curl) = missing::find_program("curl") {
        let user = scene.peer.user();
        let there = scene.path("there").display().to_string();
        let url = format!("sftp://{user}@127.0.0.1:{port}{there}");
        let run = || {
            let run = Run::new(&curl).args(["-s", "-S", "--insecure", "--key"]);
            run.arg(key)
                .arg("--pubkey")
                .arg(scene.client.dir.key().public())
        };
        let up = run().arg("-T").arg(scene.path("file")).arg(&url).run();
        // Not every build of curl supports SFTP.
        if up.code == Some(1) {
            missing::not_here("this curl does not speak SFTP");
            return;
        }
        up.expect_code(0);
        check(
            &scene,
            "curl",
            run().arg("-o").arg(scene.path("back")).arg(&url).run(),
        );
    }
}

#[test]
fn every_algorithm_and_new_keys_on_the_way() {
    let scene = Scene::with(builder(&["--old-clients"]).host_keys(&[
        KeyKind::Ed25519,
        KeyKind::Ecdsa256,
        KeyKind::Rsa2048,
    ]));
    let scene = scene.expect("longhaul is there");
    let content = Seed::new(3).bytes(700_000);
    write_file(&scene.path("file"), &content);
    let both_ways = |options: &[&str]| {
        let scp = || {
            let options = options.iter().flat_map(|option| ["-o", option]);
            openssh(&scene, "scp").args(options)
        };
        let there = scene.remote("there");
        scp()
            .arg(scene.path("file"))
            .arg(&there)
            .run()
            .expect_code(0);
        scp()
            .arg(&there)
            .arg(scene.path("back"))
            .run()
            .expect_code(0);
        let same = fs::read(scene.path("back")).expect("it") == content;
        assert!(same, "{options:?}");
    };
    for option in [
        "KexAlgorithms=sntrup761x25519-sha512@openssh.com",
        "KexAlgorithms=curve25519-sha256",
        "KexAlgorithms=ecdh-sha2-nistp384",
        "HostKeyAlgorithms=ecdsa-sha2-nistp256",
        "HostKeyAlgorithms=rsa-sha2-256",
        "Ciphers=aes128-gcm@openssh.com",
        "Ciphers=chacha20-poly1305@openssh.com",
        "Compression=yes",
        "RekeyLimit=100K",
    ] {
        both_ways(&[option]);
    }
    for mac in ["hmac-sha2-256-etm@openssh.com", "hmac-sha2-512"] {
        both_ways(&["Ciphers=aes256-ctr", &format!("MACs={mac}")]);
    }
}

#[test]
fn nobody_else_is_let_in() {
    let mut scene = listening();
    write_file(&scene.path("file"), b"content");
    let other = KeyPair::generate(scene.scratch.path(), "other", KeyKind::Ed25519);
    let refused = |scene: &Scene, option: &str| {
        let run = openssh(scene, "sftp").args(["-o", option]);
        let outcome = run.arg("peer").stdin("").run().expect_code(255);
        outcome.expect_err(&["Permission denied (publickey)"]);
    };
    refused(&scene, "User=nobody");
    refused(&scene, "PubkeyAuthentication=no");
    let identity = other.private.display().to_string();
    scene.client.dir.set_for_all("IdentityFile", identity);
    refused(&scene, "BatchMode=yes");
    let log = scene.peer.log();
    // As root the server admits every account, and the log names the user nobody; otherwise it
    // admits its own user alone.
    let not_nobody = match rustix::process::geteuid().is_root() {
        true => "user=nobody",
        false => "alone",
    };
    for why in ["the key is not in authorized_keys", not_nobody] {
        assert!(log.contains(why), "{log}");
    }
    // longhaul's client reports it as well.
    let run = scene.client.cp().arg(scene.path("file"));
    let outcome = run.arg(scene.remote("there")).run();
    assert!(!outcome.success(), "{outcome}");
    assert!(!scene.path("there").exists());
}

#[test]
fn options_of_a_key_are_honoured_or_the_key_is_not() {
    for (options, allowed) in [
        ("restrict", true),
        ("from=\"127.0.0.0/8,!127.0.0.9\"", true),
        ("from=\"192.0.2.*\"", false),
        ("expiry-time=\"20200101\"", false),
        ("command=\"internal-sftp -R\"", false),
    ] {
        let scene = with_options(options);
        let outcome = openssh(&scene, "sftp").arg("peer").stdin("").run();
        assert_eq!(outcome.success(), allowed, "{options}: {outcome}");
    }
    let scene = listening();
    let file = scene.peer.folder().join("authorized_keys");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("our file");
    let outcome = openssh(&scene, "sftp").arg("peer").stdin("").run();
    outcome.expect_code(255);
    assert!(scene.peer.log().contains("other users can write it"));
}

#[test]
fn there_is_no_shell_and_no_command() {
    let scene = listening();
    for command in [&[][..], &["touch", "there"]] {
        let run = openssh(&scene, "ssh").arg("-T").arg("peer").args(command);
        let outcome = run.stdin("").run().expect_code(1);
        outcome.expect_err(&["This server transfers files only"]);
    }
    let outcome = openssh(&scene, "ssh").args(["-s", "peer", "shell"]);
    outcome.stdin("").run().expect_code(255);
    assert!(!scene.path("there").exists());
}

#[test]
fn what_is_being_transferred_is_served_to_the_end() {
    let mut scene = listening();
    let content = Seed::new(4).bytes(3_000_000);
    write_file(&scene.path("file"), &content);
    // At 8 Mbit/s the transfer takes three seconds.
    let slow = openssh(&scene, "scp").args(["-l", "8000"]);
    let slow = slow.arg(scene.remote("file")).arg(scene.path("back"));
    let running = slow.spawn();
    let idle = openssh(&scene, "sftp").arg("peer").in_terminal().spawn();
    assert!(idle.shows("sftp>"));
    let begun = || fs::metadata(scene.path("back")).is_ok_and(|m| m.len() > 0);
    assert!(running.until(begun));
    scene.peer.terminate();
    assert!(running.until(|| {
        scene
            .peer
            .log()
            .contains("shutting down: no new connections")
    }));
    assert!(TcpStream::connect(scene.peer.addr()).is_err());
    running.wait().expect_code(0);
    assert!(fs::read(scene.path("back")).expect("it") == content);
    // An idle client is not waited for.
    assert_eq!(scene.peer.ends_within(Duration::from_secs(20)), Some(0));
    let outcome = idle.wait();
    assert!(
        outcome.out().contains("the server is shutting down"),
        "{outcome}"
    );
}

#[test]
fn unauthenticated_connections_are_bounded_and_keep_nobody_out_once_they_are_gone() {
    let scene = listening();
    let mut held = Vec::new();
    let turned_away = loop {
        assert!(held.len() < 100, "there is no bound");
        let mut stream = TcpStream::connect(scene.peer.addr()).expect("it listens");
        let time = Some(Duration::from_secs(20));
        stream.set_read_timeout(time).expect("a timeout");
        let mut line = [0; 256];
        let n = stream.read(&mut line).expect("it says something");
        let said = String::from_utf8_lossy(&line[..n]).into_owned();
        assert!(said.starts_with("SSH-2.0-longhaul_"), "{said}");
        // An admitted client receives KEXINIT, with names of algorithms.
        match said.contains("too many") {
            true => break said,
            false => held.push(stream),
        }
    };
    assert!(
        turned_away.contains(
            "too many connections that have not logged in: the limit is the option unauthenticated"
        ),
        "{turned_away}"
    );
    assert!(held.len() >= 10);
    let login = || openssh(&scene, "sftp").arg("peer").stdin("").run();
    // OpenSSH's client shows the reason; before this it saw a bare reset.
    let outcome = login();
    assert!(!outcome.success());
    let told = outcome.err();
    assert!(
        told.contains(
            "too many connections that have not logged in: the limit is the option unauthenticated"
        ),
        "{told}"
    );
    held.clear();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !login().success() {
        assert!(Instant::now() < deadline, "their places are not given back");
    }
}

/// Invalid data ends one connection and no other. The reason is in the log and in a DISCONNECT
/// message, which is lost if more data is unread.
#[test]
fn nonsense_ends_one_connection_and_no_other() {
    let scene = listening();
    let mut good = TcpStream::connect(scene.peer.addr()).expect("it listens");
    for (nonsense, why, is_told) in [
        (
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            "the peer did not send an SSH version string",
            true,
        ),
        (b"SSH-1.5-old\r\n", "SSH-1.5", true),
        (
            b"SSH-2.0-x\r\n\xff\xff\xff\xff\xff\xff\xff\xff",
            "4294967295",
            true,
        ),
        (
            b"SSH-2.0-x\r\n\0\0\0\x0c\x0a\x15\0\0\0\0\0\0\0\0\0\0",
            "the peer sent NEWKEYS",
            true,
        ),
        (
            &[b'a'; 100_000],
            "the peer did not send an SSH version string",
            false,
        ),
    ] {
        let mut stream = TcpStream::connect(scene.peer.addr()).expect("it listens");
        let time = Some(Duration::from_secs(20));
        stream.set_read_timeout(time).expect("a timeout");
        // The server may already have disconnected.
        let _ = stream.write_all(nonsense);
        let mut said = Vec::new();
        let ended = stream.read_to_end(&mut said);
        let reset = |e: &Error| e.kind() == ErrorKind::ConnectionReset;
        assert!(ended.as_ref().err().is_none_or(reset), "{why}: {ended:?}");
        assert!(said.starts_with(b"SSH-2.0-longhaul"), "{why}");
        let said = String::from_utf8_lossy(&said);
        assert!(!is_told || said.contains(why), "{said:?}");
        let from = stream.local_addr().expect("its address");
        let logged = || {
            let log = scene.peer.log();
            let line = |line: &&str| line.contains(&format!("peer={from}")) && line.contains(why);
            log.lines().any(|l| line(&l) && l.contains("WARN"))
        };
        testkit::wait::until(Duration::from_secs(20), logged, || {
            format!("no {why:?} in\n{}", scene.peer.log())
        });
    }
    good.write_all(b"SSH-2.0-good\r\n")
        .expect("it is still there");
    let outcome = openssh(&scene, "sftp").arg("peer").stdin("").run();
    outcome.expect_code(0);
}

/// Without readable sshd host keys and without a home for one of its own, the server does not
/// start. Root can read sshd's keys, so that they are hidden.
#[test]
fn without_a_host_key_and_a_home_it_does_not_start_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let serve = |home: Option<&Path>| {
        let words = ["serve", "--listen", "127.0.0.1:0"];
        let run = match missing::can_unshare_mounts() {
            true => {
                // The password file also names a home.
                let script = format!(
                    "mkdir -p /etc/ssh && mount -t tmpfs none /etc/ssh || exit 99; {}",
                    missing::NO_PASSWORD_FILE
                );
                let run = Run::new("unshare").args(["--mount", "--propagation", "private"]);
                run.args(["sh", "-c", &script, "sh"]).arg(longhaul())
            }
            false => Run::new(longhaul()),
        };
        let run = run.args(words).env_remove("XDG_STATE_HOME");
        match home {
            None => run.env_remove("HOME"),
            Some(home) => run.env("HOME", home),
        }
    };
    if !missing::can_unshare_mounts() && fs::read_dir("/etc/ssh").is_ok_and(|d| d.count() > 0) {
        missing::not_here("sshd's keys may be there, and only root can hide them");
        return;
    }
    if missing::can_unshare_mounts() {
        let outcome = serve(None).run().expect_code(1);
        let said = outcome.err();
        let sentence = "cannot find the home directory for a host key: use --host-key FILE";
        assert!(said.contains(sentence), "{outcome}");
        assert_eq!(said.lines().count(), 1, "{outcome}");
    }
    // A home in which no folder can be created is named in the error.
    let no_home = folder.path().join("file");
    write_file(&no_home, b"no folder");
    let outcome = serve(Some(&no_home)).run().expect_code(1);
    let said = outcome.err();
    assert!(said.contains("cannot create a host key"), "{outcome}");
    assert!(said.contains(&no_home.display().to_string()), "{outcome}");
}

#[test]
fn what_cannot_be_is_one_sentence() {
    let scene = listening();
    let taken = scene.peer.addr().to_string();
    let key = scene.peer.host_keys()[0].private.display().to_string();
    let unusable = scene.path("no-key");
    write_file(&unusable, b"no key");
    let unusable = unusable.display().to_string();
    for (flags, code, sentence) in [
        (
            &["--listen", &taken, "--host-key", &key][..],
            1,
            "cannot listen on",
        ),
        (
            &["--listen", "127.0.0.1:0", "--host-key", &unusable],
            1,
            "no-key",
        ),
        (
            &["--listen", "127.0.0.1:x", "--host-key", &key],
            2,
            "not PORT, HOST:PORT or :PORT",
        ),
        (
            &["--listen", ":0", "--root", "/nowhere/at/all"],
            1,
            "/nowhere/at/all",
        ),
        (&["--listen", ":0", "--stdio"], 2, "cannot be combined"),
        (&["--stdio", "--host-key", &key], 2, "need --listen"),
        (&["--stdio", "--old-clients"], 2, "needs --listen"),
        (&["--once", "--old-clients"], 2, "needs --listen"),
        // Bug: the last one counted, and the other one was dropped without a word.
        (
            &["--stdio", "--read-only", "--write-only"],
            2,
            "--read-only and --write-only exclude each other",
        ),
    ] {
        let run = Run::new(longhaul()).arg("serve").args(flags);
        run.run().expect_code(code).expect_err(&[sentence]);
    }
}
