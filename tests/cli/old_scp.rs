//! scp's old protocol with `longhaul serve --listen`, as spoken by OpenSSH's scp before 9.0 and by
//! some libraries.

use std::fs;
use std::time::Duration;

use longhaul_tests::{Scene, longhaul, names_in};
use testkit::peer::PeerBuilder;
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{Run, Seed, missing};

use crate::serving::openssh;

fn listening(flags: &[&str]) -> Scene {
    Scene::with(PeerBuilder::longhaul(longhaul(), flags.iter().copied()))
        .expect("longhaul is there")
}

/// Prepares OpenSSH's scp with the old protocol; `None` if scp is missing or does not support it.
fn old_scp(scene: &Scene) -> Option<Run> {
    if missing::find_program("scp").is_none() {
        missing::skip("scp", "Debian: openssh-client");
        return None;
    }
    let usage = Run::new("scp").arg("-O").run();
    if usage.err().contains("unknown option") {
        missing::not_here("this scp has no -O");
        return None;
    }
    Some(openssh(scene, "scp").arg("-O"))
}

#[test]
fn trees_and_files_go_there_and_back() {
    let scene = listening(&[]);
    if old_scp(&scene).is_none() {
        return;
    }
    Tree::plain(8).make(&scene.path("tree"));
    fs::create_dir(scene.path("tree/odd")).expect("ours");
    for name in ["a b", "-x", "ä", "*?[x]", "'", "\"$HOME\"", "\\"] {
        write_file(&scene.path("tree/odd").join(name), name.as_bytes());
    }
    let copy = |from: &std::ffi::OsStr, to: &std::ffi::OsStr| {
        let scp = old_scp(&scene).expect("it was there");
        scp.arg("-rp").arg(from).arg(to).run().expect_code(0);
    };
    copy(scene.path("tree").as_os_str(), &scene.remote("up"));
    copy(&scene.remote("up"), scene.path("back").as_os_str());
    // scp follows symlinks, as it does with sshd.
    for name in ["up", "back"] {
        assert_same(
            &scene.path("tree"),
            &scene.path(name),
            Compare::PRESERVED.following(),
        );
    }
    let outcome = old_scp(&scene)
        .expect("it was there")
        .arg(scene.remote("none"));
    let outcome = outcome.arg(scene.path("x")).run().expect_code(1);
    outcome.expect_err(&["none: No such file or directory"]);
}

#[test]
fn patterns_homes_and_several_files_are_what_a_shell_makes_of_them() {
    let scene = listening(&[]);
    if old_scp(&scene).is_none() {
        return;
    }
    fs::create_dir(scene.path("some")).expect("ours");
    for name in ["a b.txt", "c.txt", "d.bin"] {
        write_file(&scene.path("some").join(name), name.as_bytes());
    }
    fs::create_dir(scene.path("there")).expect("ours");
    let some = scene.path("some").display().to_string();
    let there = scene.path("there").display().to_string();
    for (from, wanted) in [
        (format!("{some}/*.txt"), &["a b.txt", "c.txt"][..]),
        (
            format!("'{some}/a b.txt' {some}/[c-d].*"),
            &["a b.txt", "c.txt", "d.bin"],
        ),
        (format!("\"{some}/a b.txt\""), &["a b.txt"]),
    ] {
        // scp's own check of names supports patterns but not words.
        let scp = old_scp(&scene).expect("it was there").arg("-T");
        scp.arg(format!("peer:{from}"))
            .arg(&there)
            .run()
            .expect_code(0);
        assert_eq!(names_in(&scene.path("there")), wanted, "{from}");
        for name in wanted {
            fs::remove_file(scene.path("there").join(name)).expect("it came");
        }
    }
    let scp = old_scp(&scene).expect("it was there");
    let files = ["a b.txt", "c.txt"].map(|name| scene.path("some").join(name));
    scp.args(files)
        .arg(format!("peer:'{there}'"))
        .run()
        .expect_code(0);
    assert_eq!(names_in(&scene.path("there")), ["a b.txt", "c.txt"]);
    let scp = old_scp(&scene)
        .expect("it was there")
        .arg("peer:$(touch x)")
        .arg(&there);
    scp.run().expect_err(&["no shell"]);
}

#[test]
fn a_copy_that_breaks_off_leaves_what_was_there() {
    let scene = listening(&[]);
    let Some(scp) = old_scp(&scene) else {
        return;
    };
    write_file(&scene.path("file"), &Seed::new(4).bytes(3_000_000));
    fs::create_dir(scene.path("there")).expect("ours");
    write_file(&scene.path("there/it"), b"old");
    // At 8 Mbit/s the transfer takes three seconds.
    let scp = scp
        .args(["-l", "8000"])
        .arg(scene.path("file"))
        .arg(scene.remote("there/it"));
    let running = scp.spawn();
    assert!(running.until(|| names_in(&scene.path("there")).len() == 2));
    running.terminate();
    running.wait();
    testkit::wait::until(
        Duration::from_secs(20),
        || names_in(&scene.path("there")) == ["it"],
        || format!("{:?}", names_in(&scene.path("there"))),
    );
    assert_eq!(fs::read(scene.path("there/it")).expect("it"), b"old");
}

#[test]
fn a_root_and_its_rights_hold() {
    let root = tempfile::tempdir().expect("a folder");
    let flag = root.path().display().to_string();
    write_file(&root.path().join("there"), b"old");
    let scene = listening(&["--root", &flag, "--read-only"]);
    let Some(scp) = old_scp(&scene) else {
        return;
    };
    scp.arg("peer:/there")
        .arg(scene.path("back"))
        .run()
        .expect_code(0);
    assert_eq!(fs::read(scene.path("back")).expect("it"), b"old");
    write_file(&scene.path("file"), b"new");
    let scp = old_scp(&scene)
        .expect("it was there")
        .arg(scene.path("file"));
    let outcome = scp.arg("peer:/there").run().expect_code(1);
    outcome.expect_err(&["scp: /there: "]);
    assert_eq!(fs::read(root.path().join("there")).expect("it"), b"old");
    let scp = old_scp(&scene)
        .expect("it was there")
        .arg("peer:/../../etc/passwd");
    scp.arg(scene.path("x")).run().expect_code(1);
}

#[test]
fn curl_puts_and_gets_with_its_library() {
    // libssh2 has no post-quantum key exchange.
    let scene = listening(&["--old-clients"]);
    let Some(curl) = missing::find_program("curl") else {
        missing::skip("curl", "Debian: curl");
        return;
    };
    let content = Seed::new(5).bytes(3_000_000);
    write_file(&scene.path("file"), &content);
    let key = scene.client.dir.key();
    let there = scene
        .path("there it is")
        .display()
        .to_string()
        .replace(' ', "%20");
    let url = format!(
        "scp://{}@127.0.0.1:{}{there}",
        scene.peer.user(),
        scene.peer.port()
    );
    let run = || {
        let run = Run::new(&curl).args(["-s", "-S", "--insecure", "--key"]);
        run.arg(&key.private).arg("--pubkey").arg(key.public())
    };
    let up = run().arg("-T").arg(scene.path("file")).arg(&url).run();
    // Not every build of curl supports scp.
    if up.code == Some(1) {
        missing::not_here("this curl does not speak scp");
        return;
    }
    up.expect_code(0);
    let names = names_in(scene.scratch.path());
    assert!(
        names.contains(&"there it is".into()),
        "{names:?} {}",
        scene.peer.log()
    );
    assert!(fs::read(scene.path("there it is")).expect("it") == content);
    let back = scene.path("back");
    run().arg("-o").arg(&back).arg(&url).run().expect_code(0);
    assert!(fs::read(&back).expect("it") == content);
}

#[test]
fn what_comes_with_the_end_of_its_channel_is_kept() {
    let scene = listening(&[]);
    let python = missing::built_peers().join("venv/bin/python");
    if !python.is_file() {
        missing::skip("paramiko", "run scripts/setup-tests.sh");
        return;
    }
    let script = missing::checkout().join("tests/peers/hasty_client.py");
    let content = "all of it".repeat(1000);
    for how in ["scp", "sftp"] {
        for leave in ["stay", "leave"] {
            let there = scene.path(&format!("{how}-{leave}"));
            let run = Run::new(&python).arg(&script);
            let run = run
                .arg(scene.peer.port().to_string())
                .arg(scene.peer.user());
            let run = run.arg(&scene.client.dir.key().private).arg(how);
            run.arg(&there).arg(leave).run().expect_code(0);
            testkit::wait::until(
                Duration::from_secs(10),
                || fs::read(&there).ok().as_deref() == Some(content.as_bytes()),
                || format!("{how}, {leave}: {}", scene.peer.log()),
            );
        }
    }
}
