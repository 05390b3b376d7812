//! Special files, and files that change, copied by several lanes.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use longhaul_tests::{Scene, names_in};
use testkit::tree::write_file;
use testkit::{DelayProxy, PeerBuilder, PeerKind, Run, Seed, missing};

use crate::far::{BOTH, Far, RATE, RTT, SIZE, To};

fn far() -> Option<Far> {
    Some(Far::openssh(|path| path)?.with_file())
}

#[test]
fn interrupted_no_lane_leaves_half_a_file_under_its_name() {
    for to in BOTH {
        for gently in [true, false] {
            let Some(far) = far() else { return };
            let far = far.with_many();
            let running = far.until(to, 12_000_000);
            match gently {
                true => running.terminate(),
                false => running.interrupt(),
            }
            let outcome = running.wait();
            assert!(!outcome.timed_out && outcome.code == Some(130), "{outcome}");
            far.assert_several(&outcome);
            assert!(outcome.err().lines().count() < 5, "{outcome}");
            for (name, data) in far.files("to") {
                // Files from which the copy can resume.
                if name.ends_with(".longhaul") || name.ends_with(".journal") {
                    continue;
                }
                let from = fs::read(far.scene.path("from").join(&name));
                assert!(
                    from.is_ok_and(|from| from == data),
                    "{name} stays\n{outcome}"
                );
            }
        }
    }
}

#[test]
fn a_source_that_shrinks() {
    for to in BOTH {
        let Some(far) = far() else { return };
        let running = far.until(to, 8_000_000);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).open(far.scene.path("from/file"));
        let file = file.expect("our file");
        file.set_len(20_000_000).expect("our file");
        let outcome = running.wait();
        assert!(!outcome.timed_out, "{outcome}");
        assert!(matches!(outcome.code, Some(0 | 1)), "{outcome}");
        if outcome.code == Some(0) {
            // Data that was read before the file shrank may also be there, with a warning.
            let copy = &far.files("to")[0].1;
            let old = Seed::new(1).bytes(SIZE);
            assert!(
                copy.len() >= 20_000_000 && old.starts_with(copy),
                "{outcome}"
            );
            let told = outcome.err().contains("shrank while it was being read");
            assert!(told || copy.len() == 20_000_000, "{outcome}");
        } else {
            far.assert_no_temporaries(&outcome);
        }
    }
}

#[test]
fn a_source_that_grows() {
    for to in BOTH {
        let Some(far) = far() else { return };
        let running = far.until(to, 8_000_000);
        let more = Seed::new(9).bytes(2_000_000);
        let mut options = fs::OpenOptions::new();
        let file = options.append(true).open(far.scene.path("from/file"));
        let mut file = file.expect("our file");
        std::io::Write::write_all(&mut file, &more).expect("our file");
        let outcome = running.wait();
        assert!(!outcome.timed_out && outcome.code == Some(0), "{outcome}");
        let (from, to) = (&far.files("from")[0].1, &far.files("to")[0].1);
        // The content at the beginning, or the current one.
        assert!(to.len() >= SIZE, "{}: {outcome}", to.len());
        assert!(from.starts_with(to), "not a state of the file\n{outcome}");
    }
}

/// A process that has the file open reads on; opening it again finds another file or none.
#[test]
fn a_source_that_vanishes_or_is_replaced() {
    for to in BOTH {
        for replaced in [false, true] {
            let Some(far) = far() else { return };
            let old = Seed::new(1).bytes(SIZE);
            let new = Seed::new(77).bytes(SIZE);
            write_file(&far.scene.path("new"), &new);
            // SFTP has a resolution of one second.
            let earlier = SystemTime::now() - Duration::from_secs(500);
            let file = fs::File::options().write(true).open(far.scene.path("new"));
            let set = file.and_then(|file| file.set_modified(earlier));
            set.expect("our file");
            let running = far.until(to, 8_000_000);
            let from = far.scene.path("from/file");
            match replaced {
                true => fs::rename(far.scene.path("new"), &from).expect("our files"),
                false => fs::remove_file(&from).expect("our file"),
            }
            let outcome = running.wait();
            assert!(!outcome.timed_out, "{outcome}");
            match outcome.code {
                Some(0) => {
                    let copy = &far.files("to")[0].1;
                    let whole = copy == &old || (replaced && copy == &new);
                    assert!(whole, "a mixture of two files\n{outcome}");
                }
                Some(1) => {
                    assert!(names_in(&far.scene.path("to")).is_empty(), "{outcome}");
                    far.assert_one_error(&outcome);
                }
                _ => panic!("{outcome}"),
            }
        }
    }
}

/// The other end has room for only half: a quota, or a full disk.
#[test]
fn no_space_for_all_of_it() {
    for to in BOTH {
        let Some(server) = missing::sftp_server() else {
            return;
        };
        let half = SIZE / 2 / 512;
        let limited = format!("trap \"\" XFSZ; ulimit -f {half}; exec");
        let builder = PeerBuilder::new(PeerKind::OpenSsh);
        let builder = match to {
            To::There => builder.option(
                "Subsystem",
                format!("sftp /bin/sh -c '{limited} {}'", server.display()),
            ),
            To::Here => builder,
        };
        let Some(far) = Far::start(builder, |path| path) else {
            return;
        };
        let far = far.with_file();
        write_file(&far.scene.path("to/file"), b"the old one");
        write_file(&far.scene.path("from/small"), b"small");
        let run = match to {
            To::There => far.run(to, &[]),
            To::Here => {
                let longhaul = longhaul_tests::longhaul();
                let script = format!("{limited} \"$0\" \"$@\"");
                let run = far.scene.client.dir.run("/bin/sh").args(["-c", &script]);
                let run = run
                    .arg(longhaul)
                    .args(["cp", "--connections=4", "-r", "-F"]);
                run.arg(far.scene.client.dir.config())
                    .arg(far.scene.remote("from/."))
                    .arg(far.scene.path("to"))
            }
        };
        let outcome = run.run();
        assert!(!outcome.timed_out && outcome.code == Some(1), "{outcome}");
        let left = far.files("to");
        let names: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["file", "small"], "{outcome}");
        assert!(left[0].1 == b"the old one", "{outcome}");
        far.assert_one_error(&outcome);
    }
}

#[test]
fn a_target_that_may_not_be_written() {
    let Some(far) = far() else { return };
    write_file(&far.scene.path("to/file"), b"the old one");
    let read_only = fs::Permissions::from_mode(0o444);
    fs::set_permissions(far.scene.path("to/file"), read_only).expect("our file");
    let outcome = far.run(To::There, &[]).run();
    far.assert_no_temporaries(&outcome);
    if rustix::process::geteuid().is_root() {
        // The server decides, and lets root replace it, as with scp.
        assert!(outcome.code == Some(0), "{outcome}");
        return;
    }
    assert!(outcome.code == Some(1), "{outcome}");
    assert!(far.files("to")[0].1 == b"the old one", "{outcome}");
    far.assert_one_error(&outcome);
}

#[test]
fn in_place_it_is_the_same_file_afterwards() {
    for to in BOTH {
        let Some(far) = far() else { return };
        write_file(&far.scene.path("to/file"), &Seed::new(5).bytes(SIZE + 5000));
        fs::hard_link(far.scene.path("to/file"), far.scene.path("link")).expect("our files");
        let outcome = far.run(to, &["--inplace"]).run();
        far.assert_copied(&outcome);
        let link = fs::read(far.scene.path("link")).expect("it is there");
        assert!(link == Seed::new(1).bytes(SIZE), "another file\n{outcome}");
    }
}

#[test]
fn a_device_takes_a_large_file() {
    for to in BOTH {
        let Some(far) = far() else { return };
        let (from, target) = match to {
            To::There => (
                far.scene.path("from/file").into_os_string(),
                "peer:/dev/null".into(),
            ),
            To::Here => (
                far.scene.remote("from/file"),
                std::ffi::OsString::from("/dev/null"),
            ),
        };
        let outcome = far.cp(4).arg(from).arg(target).run();
        assert!(outcome.code == Some(0), "{outcome}");
        let null = fs::metadata("/dev/null").expect("it is there");
        assert!(null.file_type().is_char_device(), "{outcome}");
    }
}

/// A FIFO at the far end is no target for any SFTP client, as sftp-server seeks before it writes.
#[test]
fn a_fifo_takes_a_large_file_in_its_order() {
    let Some(far) = far() else { return };
    let fifo = far.scene.path("fifo");
    testkit::process::must("mkfifo", &[fifo.as_os_str()]);
    let reading = {
        let fifo = fifo.clone();
        std::thread::spawn(move || fs::read(fifo))
    };
    let outcome = far.cp(4).arg(far.scene.remote("from/file")).arg(fifo).run();
    assert!(!outcome.timed_out && outcome.code == Some(0), "{outcome}");
    let read = reading.join().expect("the reader ends").expect("it reads");
    assert!(
        read == Seed::new(1).bytes(SIZE),
        "{} bytes\n{outcome}",
        read.len()
    );
}

#[test]
fn from_one_far_host_to_another() {
    let Some(mut far) = far() else { return };
    far = far.with_many();
    let Some(peer) = PeerBuilder::openssh()
        .authorize(&far.scene.client.dir)
        .start()
    else {
        return;
    };
    let proxy = DelayProxy::to(peer.addr()).rtt(RTT).rate(RATE).start();
    far.scene
        .client
        .dir
        .add_host_at("other", &peer, proxy.port());
    let to = longhaul_tests::remote("other", &far.scene.path("to"));
    let run = far.cp(4).args(["-3", "-r"]);
    let outcome = run.arg(far.scene.remote("from/.")).arg(to).run();
    far.assert_copied(&outcome);
}

/// Each further connection passes through the jump host too, and costs a login there.
#[test]
fn through_a_jump_host() {
    for to in BOTH {
        let Some(mut far) = far() else { return };
        let Some(jump) = PeerBuilder::openssh()
            .authorize(&far.scene.client.dir)
            .start()
        else {
            return;
        };
        far.scene.client.dir.add_host("jump", &jump);
        far.scene.client.dir.set("peer", "ProxyJump", "jump");
        let outcome = far.run(to, &[]).run();
        far.assert_copied(&outcome);
        let logins = jump.log().matches("Accepted publickey").count();
        assert!(logins <= 4, "{logins} logins at the jump host\n{outcome}");
    }
}

#[test]
fn through_a_command() {
    for to in BOTH {
        let Some(mut far) = far() else { return };
        let Some(nc) = missing::find_program("nc") else {
            missing::skip("nc", "install the package netcat-openbsd");
            return;
        };
        let command = format!("{} %h %p", nc.display());
        far.scene.client.dir.set("peer", "ProxyCommand", command);
        let outcome = far.run(to, &[]).run();
        far.assert_copied(&outcome);
        far.assert_several(&outcome);
    }
}

/// A program in place of longhaul's own SSH has one connection with one channel.
#[test]
fn through_a_program_there_is_one() {
    let Some(server) = missing::sftp_server() else {
        return;
    };
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), &Seed::new(3).bytes(SIZE));
    let copies = |run: Run, from: &Path, to: &Path| {
        let mut target = std::ffi::OsString::from("h:");
        target.push(to);
        let outcome = run.arg("-D").arg(&server).arg(from).arg(target).run();
        assert!(outcome.code == Some(0), "{outcome}");
        assert!(outcome.elapsed < Duration::from_secs(20), "{outcome}");
        assert!(fs::read(from).ok() == fs::read(to).ok(), "{outcome}");
    };
    copies(scene.client.cp(), &scene.path("file"), &scene.path("copy"));
}
