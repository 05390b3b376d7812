//! Files that grow, shrink or change while they are copied.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, SystemTime};

use longhaul_tests::{Scene, remote};
use testkit::delay_proxy::Way;
use testkit::tree::write_file;
use testkit::{DelayProxy, PeerKind, Seed};

use crate::files::ways;

#[test]
fn a_file_that_grows_while_it_is_read() {
    let Some((scene, proxy)) = behind_a_slow_path(Scene::start(PeerKind::OpenSsh)) else {
        return;
    };
    let content = Seed::new(1).bytes(9_000_000);
    for up in [true, false] {
        write_file(&scene.path("file"), &content[..6_000_000]);
        let way = if up { Way::Up } else { Way::Down };
        let before = proxy.carried(way);
        let (from, to) = ways(&scene, up);
        let running = scene.client.cp().arg(from).arg(to).spawn();
        assert!(running.until(|| proxy.carried(way) > before + 2_000_000));
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(scene.path("file"))
            .expect("ours");
        file.write_all(&content[6_000_000..]).expect("our file");
        let outcome = running.wait();
        if scene.client.is_scp() {
            continue;
        }
        if outcome.success() {
            let copy = fs::read(scene.path("copy")).expect("it is there");
            assert!(
                copy.len() >= 6_000_000 && content.starts_with(&copy),
                "{}",
                copy.len()
            );
        } else {
            outcome.expect_code(1).expect_err(&["file"]);
            assert!(!scene.path("copy").exists());
        }
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read() {
    let Some((scene, proxy)) = behind_a_slow_path(Scene::start(PeerKind::OpenSsh)) else {
        return;
    };
    let content = Seed::new(1).bytes(9_000_000);
    for up in [true, false] {
        let _ = fs::remove_file(scene.path("copy"));
        write_file(&scene.path("file"), &content);
        let way = if up { Way::Up } else { Way::Down };
        let before = proxy.carried(way);
        let (from, to) = ways(&scene, up);
        let running = scene.client.cp().arg(from).arg(to).spawn();
        assert!(running.until(|| proxy.carried(way) > before + 1_000_000));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(scene.path("file"))
            .expect("ours");
        file.set_len(500_000).expect("our file");
        file.seek(SeekFrom::End(0)).expect("our file");
        let outcome = running.wait();
        assert!(!outcome.timed_out, "{outcome}");
        if scene.client.is_scp() {
            continue;
        }
        if outcome.success() {
            // Either all of it was read before it shrank, or the copy is as short as the file.
            let copy = fs::read(scene.path("copy")).expect("it is there");
            assert!(
                content.starts_with(&copy),
                "bytes that never were in the file"
            );
        } else {
            outcome.expect_code(1).expect_err(&["file"]);
            assert!(!scene.path("copy").exists());
        }
    }
}

/// Puts the server of a scene behind a path of 6 MB/s.
fn behind_a_slow_path(scene: Option<Scene>) -> Option<(Scene, DelayProxy)> {
    let mut scene = scene?;
    let proxy = DelayProxy::to(scene.peer.addr()).rate(6_000_000).start();
    let client = &mut scene.client;
    client.dir.add_host_at("peer", &scene.peer, proxy.port());
    Some((scene, proxy))
}

/// A file that changes during the copy is sent again. Before this, the copy had half of either
/// state without a warning.
#[test]
fn a_file_that_changes_while_it_is_sent_is_sent_again() {
    let Some((scene, proxy)) = behind_a_slow_path(Scene::beyond_scp(PeerKind::OpenSsh)) else {
        return;
    };
    let (old, new) = (Seed::new(1).bytes(9_000_000), Seed::new(2).bytes(9_000_000));
    write_file(&scene.path("file"), &old);
    let cp = || {
        let cp = scene.client.cp().arg("--json").arg(scene.path("file"));
        cp.arg(scene.remote("copy")).spawn()
    };
    let change = |data: &[u8]| {
        let file = fs::OpenOptions::new().write(true).open(scene.path("file"));
        file.expect("ours").write_all_at(data, 0).expect("ours");
    };
    let running = cp();
    assert!(running.until(|| proxy.carried(Way::Up) > 2_000_000));
    change(&new);
    let outcome = running.wait().expect_code(0);
    let copy = fs::read(scene.path("copy")).expect("it is there");
    assert!(copy == new, "not a state of the file\n{outcome}");
    // Bug: the file was sent twice without a word.
    let again = "changed while it was being read: copying it again";
    assert_eq!(outcome.out().matches(again).count(), 1, "{outcome}");
    // The file changes all the time.
    let before = proxy.carried(Way::Up);
    let running = cp();
    let more = |n: u64| proxy.carried(Way::Up) > before + n * 1_000_000;
    for (n, data) in (1..).zip([&old, &new].into_iter().cycle()) {
        if !running.until(|| more(n)) {
            break;
        }
        change(data);
    }
    let outcome = running.wait().expect_code(0);
    let told = "the source changed while it was copied";
    assert!(outcome.out().contains(told), "{outcome}");
}

/// A remote file that changes while it is read is copied again. Before this, a copy between two hosts
/// mixed both states without a warning.
#[test]
fn a_remote_file_that_changes_while_it_is_read_is_copied_again() {
    let Some((mut scene, proxy)) = behind_a_slow_path(Scene::beyond_scp(PeerKind::OpenSsh)) else {
        return;
    };
    let (old, new) = (Seed::new(1).bytes(9_000_000), Seed::new(2).bytes(9_000_000));
    let client = &mut scene.client;
    client
        .dir
        .add_host_at("other", &scene.peer, scene.peer.port());
    let here = scene.path("copy").into_os_string();
    let there = remote("other", &scene.path("copy"));
    for (flags, target) in [(&[][..], here), (&["-3"], there)] {
        write_file(&scene.path("file"), &old);
        let file = fs::OpenOptions::new().write(true).open(scene.path("file"));
        let file = file.expect("ours");
        // SFTP tells seconds alone.
        let before = SystemTime::now() - Duration::from_secs(60);
        file.set_modified(before).expect("ours");
        let carried = proxy.carried(Way::Down);
        let cp = scene.client.cp().arg("--json").args(flags);
        let running = cp.arg(scene.remote("file")).arg(&target).spawn();
        assert!(running.until(|| proxy.carried(Way::Down) > carried + 4_000_000));
        file.write_all_at(&new, 0).expect("ours");
        let outcome = running.wait().expect_code(0);
        let copy = fs::read(scene.path("copy")).expect("it is there");
        assert!(copy == new, "not a state of the file\n{outcome}");
        fs::remove_file(scene.path("copy")).expect("ours");
    }
}
