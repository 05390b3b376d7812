//! Copies that are interrupted and resumed.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use longhaul_tests::interrupted::{Interrupted, Interruption, Shape};
use longhaul_tests::{Program, Scene, names_in};
use schedule::journal::{JournalEncoder, JournalRecord};
use testkit::delay_proxy::Way;
use testkit::missing;
use testkit::tree::write_file;
use testkit::{DelayProxy, Outcome, PeerKind, Run, Running, Seed};

const MOST_AGAIN: u64 = 64 << 20;

pub(crate) fn is_scp() -> bool {
    Program::under_test() == Program::Scp
}

fn goes_on(seed: u64, up: bool, interruptions: &[Interruption]) {
    if is_scp() {
        return;
    }
    let shape = Shape {
        large: 2,
        size: 60 << 20,
        small: 300,
        rate: Some(40_000_000),
        rtt: Duration::from_millis(4),
    };
    let Some(copy) = Interrupted::new(seed, up, shape) else {
        return;
    };
    let tally = copy.copies(&mut Seed::new(seed), interruptions);
    assert!(
        tally.again <= tally.applied.len() as u64 * MOST_AGAIN,
        "{tally:?}"
    );
    println!("up {up}: {tally:?}");
}

#[test]
fn an_upload_that_is_killed_goes_on() {
    goes_on(
        1,
        true,
        &[
            Interruption::Kill,
            Interruption::Interrupt,
            Interruption::Kill,
        ],
    );
}

#[test]
fn a_download_that_is_killed_goes_on() {
    goes_on(
        2,
        false,
        &[
            Interruption::Kill,
            Interruption::Interrupt,
            Interruption::Kill,
        ],
    );
}

#[test]
fn an_upload_whose_server_is_lost_goes_on() {
    goes_on(3, true, &[Interruption::KillServer, Interruption::Reset]);
}

#[test]
fn a_download_whose_server_is_lost_goes_on() {
    let blackout = Interruption::Blackout(Duration::from_secs(2));
    goes_on(
        4,
        false,
        &[Interruption::KillServer, Interruption::Reset, blackout],
    );
}

const SIZE: usize = 60_000_000;

/// Large file of which about half was copied before the interruption.
struct Half {
    scene: Scene,
    proxy: DelayProxy,
    up: bool,
    content: Vec<u8>,
    said: String,
}

impl Half {
    fn new(up: bool) -> Option<Self> {
        Self::stopped(up, Running::interrupt)
    }

    fn stopped(up: bool, stop: impl Fn(&Running)) -> Option<Self> {
        if is_scp() {
            return None;
        }
        let mut scene = Scene::start(PeerKind::OpenSsh)?;
        let proxy = DelayProxy::to(scene.peer.addr()).rate(20_000_000).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        for folder in ["from", "to"] {
            std::fs::create_dir_all(scene.path(folder)).expect("our folder");
        }
        let content = Seed::new(7).bytes(SIZE);
        write_file(&scene.path("from/file"), &content);
        let mut half = Self {
            scene,
            proxy,
            up,
            content,
            said: String::new(),
        };
        let running = half.cp().spawn();
        let way = if up { Way::Up } else { Way::Down };
        assert!(
            running.until(|| half.proxy.carried(way) > 45_000_000),
            "too slow"
        );
        stop(&running);
        half.said = running.wait().expect_code(130).err();
        assert!(half.said.contains("to resume: "), "{}", half.said);
        Some(half)
    }

    fn cp(&self) -> Run {
        let cp = self.scene.client.cp();
        match self.up {
            true => cp
                .arg(self.scene.path("from/file"))
                .arg(self.scene.remote("to/file")),
            false => cp
                .arg(self.scene.remote("from/file"))
                .arg(self.scene.path("to/file")),
        }
    }

    /// Copies the file to its end, and returns the output.
    #[track_caller]
    fn ends(&self, flags: &[&str]) -> Outcome {
        let outcome = self.cp().args(flags).run().expect_code(0);
        self.check();
        outcome
    }

    #[track_caller]
    fn check(&self) {
        let copied = std::fs::read(self.scene.path("to/file")).expect("copied");
        assert!(copied == self.content, "another content");
        assert_eq!(names_in(&self.scene.path("to")), ["file"]);
    }

    fn temporary(&self) -> PathBuf {
        let names = names_in(&self.scene.path("to"));
        let is = |n: &&std::ffi::OsString| n.as_encoded_bytes().ends_with(b".longhaul");
        let name = names.iter().find(is).expect("it stays");
        self.scene.path("to").join(name)
    }

    fn state(&self) -> PathBuf {
        self.scene.client.dir.path().join("state/longhaul")
    }

    fn journal(&self) -> PathBuf {
        let folder = self.state();
        let names = names_in(&folder);
        let is = |n: &&std::ffi::OsString| is_journal(n);
        folder.join(names.iter().find(is).expect("a journal"))
    }
}

fn is_journal(name: &std::ffi::OsString) -> bool {
    name.as_encoded_bytes().ends_with(b".journal")
}

/// Returns the journal of another copy.
fn of_another_copy() -> Vec<u8> {
    let mut bytes = Vec::new();
    JournalEncoder::header(&mut bytes);
    let mut writer = JournalEncoder::default();
    let identity = b"000\0/elsewhere\0/to/file".to_vec();
    writer.write(&JournalRecord::Copy { identity }, &mut bytes);
    let boot = b"a kernel".to_vec();
    writer.write(&JournalRecord::Run { boot }, &mut bytes);
    bytes
}

#[test]
fn the_command_that_was_printed_goes_on() {
    for up in [true, false] {
        let Some(half) = Half::new(up) else { return };
        let command = half.said.split("to resume: ").nth(1).expect("told");
        let command = command.lines().next().expect("a line");
        let run = half.scene.client.dir.run("sh").args(["-c", command]);
        let outcome = run.run().expect_code(0);
        let said = outcome.err();
        assert!(said.contains("resuming the earlier copy"), "{outcome}");
        half.check();
    }
}

#[test]
fn without_resuming_it_starts_afresh_and_clears_what_was_left() {
    for up in [true, false] {
        let Some(half) = Half::new(up) else { return };
        let outcome = half.ends(&["--no-resume"]);
        assert!(!outcome.err().contains("resuming"), "{outcome}");
        assert!(
            outcome.err().contains("60 MB"),
            "all of it was sent: {outcome}"
        );
    }
}

#[test]
fn a_source_that_has_changed_is_sent_anew() {
    for up in [true, false] {
        let Some(mut half) = Half::new(up) else {
            return;
        };
        half.content = Seed::new(8).bytes(SIZE - 1);
        write_file(&half.scene.path("from/file"), &half.content);
        half.ends(&[]);
    }
}

#[test]
fn a_temporary_that_is_not_what_it_was_is_not_gone_on_with() {
    for up in [true, false] {
        let hours: [fn(&PathBuf); 2] = [
            |temp| set_modified(temp, SystemTime::now() + HOUR),
            |temp| set_modified(temp, SystemTime::now() - HOUR),
        ];
        let changes: [fn(&PathBuf); 3] = [
            |temp| {
                let file = std::fs::File::options()
                    .write(true)
                    .open(temp)
                    .expect("ours");
                file.set_len(1000).expect("cut");
            },
            |temp| std::fs::remove_file(temp).expect("removed"),
            |temp| {
                std::fs::remove_file(temp).expect("removed");
                let beside = temp.parent().and_then(|to| to.parent()).expect("above");
                symlink(beside.join("victim"), temp).expect("a link");
            },
        ];
        for change in changes.into_iter().chain([hours[usize::from(up)]]) {
            let Some(half) = Half::new(up) else { return };
            let victim = half.scene.path("victim");
            write_file(&victim, &Seed::new(1).bytes(SIZE));
            change(&half.temporary());
            half.ends(&[]);
            let unharmed = std::fs::read(victim).expect("read");
            assert!(
                unharmed == Seed::new(1).bytes(SIZE),
                "written through a link"
            );
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Changes a file's modification time, like a program that changes it, or a jump of the clock.
fn set_modified(path: &PathBuf, time: SystemTime) {
    let file = std::fs::File::options().write(true).open(path);
    file.and_then(|file| file.set_modified(time)).expect("set");
}

#[test]
fn a_target_that_became_read_only_loses_nothing() {
    if !missing::can_unshare_mounts() {
        missing::not_here("only root can make a folder that root may not write");
        return;
    }
    let Some(half) = Half::new(false) else {
        return;
    };
    let Program::Longhaul(program) = &half.scene.client.program else {
        return;
    };
    let before = names_in(&half.scene.path("to"));
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" || exit 99; \"$@\"";
    let run = half.scene.client.dir.run("unshare");
    let run = run.args(["--mount", "sh", "-c", script]);
    let run = run.arg(half.scene.path("to")).arg(program).arg("cp");
    let run = run.arg("-F").arg(half.scene.client.dir.config());
    let run = run.arg(half.scene.remote("from/file"));
    let outcome = run.arg(half.scene.path("to/file")).run().expect_code(1);
    let said = outcome.err().to_lowercase();
    assert!(said.contains("read-only file system"), "{outcome}");
    assert_eq!(names_in(&half.scene.path("to")), before, "{outcome}");
    let outcome = half.ends(&[]);
    assert!(
        outcome.err().contains("resuming the earlier copy"),
        "{outcome}"
    );
    assert!(!names_in(&half.state()).iter().any(is_journal), "{outcome}");
}

#[test]
fn a_target_that_became_something_else_is_not_touched() {
    for up in [true, false] {
        let Some(half) = Half::new(up) else { return };
        let target = half.scene.path("to/file");
        std::fs::create_dir(&target).expect("a folder");
        write_file(&target.join("inside"), b"precious");
        half.cp().run();
        let inside = std::fs::read(target.join("inside")).expect("still there");
        assert_eq!(inside, b"precious");

        let Some(half) = Half::new(up) else { return };
        let elsewhere = half.scene.path("elsewhere");
        write_file(&elsewhere, b"old");
        symlink(&elsewhere, half.scene.path("to/file")).expect("a link");
        half.cp().run().expect_code(0);
        let copied = std::fs::read(&elsewhere).expect("followed, as scp does");
        assert!(copied == half.content);
    }
}

#[test]
fn a_journal_that_cannot_be_believed_is_put_aside() {
    for up in [true, false] {
        type Damage = (fn(&mut Vec<u8>), &'static str);
        let damages: [Damage; 5] = [
            (|bytes| bytes[15] = 9, "version 9"),
            (|bytes| bytes[60] ^= 1, "damaged at byte"),
            (
                |bytes| *bytes = b"not a journal at all".to_vec(),
                "not a journal",
            ),
            (
                |bytes| *bytes = of_another_copy(),
                "belongs to another copy",
            ),
            (|bytes| bytes.truncate(bytes.len() - 3), ""),
        ];
        for (damage, said) in damages {
            let Some(half) = Half::new(up) else { return };
            let journal = half.journal();
            let mut bytes = std::fs::read(&journal).expect("read");
            damage(&mut bytes);
            std::fs::write(&journal, bytes).expect("written");
            let outcome = half.cp().run().expect_code(0);
            assert!(outcome.err().contains(said), "{outcome}");
            let copied = std::fs::read(half.scene.path("to/file")).expect("copied");
            assert!(copied == half.content);
        }
    }
}

/// Reports if a program holds a lock on the file with this inode number.
fn is_locked(inode: u64) -> bool {
    let locks = std::fs::read_to_string("/proc/locks").expect("the kernel's locks");
    let of = |line: &str| {
        line.split(' ')
            .any(|word| word.ends_with(&format!(":{inode}")))
    };
    locks.lines().any(of)
}

#[test]
fn a_copy_that_is_terminated_goes_on_as_well() {
    if is_scp() {
        return;
    }
    let Some(half) = Half::stopped(true, Running::terminate) else {
        return;
    };
    half.ends(&[]);
}

fn signal(running: &Running, signal: &str) {
    let pid = running.pid().to_string();
    testkit::process::must("kill", &[signal.as_ref(), pid.as_ref()]);
}

#[test]
fn the_second_of_two_copies_is_told() {
    for up in [true, false] {
        let Some(half) = Half::new(up) else { return };
        let journal = std::fs::metadata(half.journal()).expect("there").ino();
        let first = half.cp().spawn();
        assert!(first.until(|| is_locked(journal)), "over too soon");
        // Stopped, as it would otherwise be over before the second run has waited.
        signal(&first, "-STOP");
        let second = half.cp().run().expect_code(1);
        assert!(
            second.err().contains("already running this copy"),
            "{second}"
        );
        signal(&first, "-CONT");
        first.wait().expect_code(0);
        half.check();
    }
}

/// The lock of a dying process is waited for. A killed process kept the journal locked until its
/// memory was freed, and the next run failed because the copy was "already under way".
#[test]
fn the_lock_of_a_process_that_dies_is_waited_for() {
    for up in [true, false] {
        let Some(half) = Half::new(up) else { return };
        let journal = std::fs::metadata(half.journal()).expect("there").ino();
        let first = half.cp().spawn();
        assert!(first.until(|| is_locked(journal)), "over too soon");
        signal(&first, "-STOP");
        let second = half.cp().spawn();
        signal(&first, "-KILL");
        let outcome = second.wait().expect_code(0);
        let said = outcome.err();
        assert!(said.contains("resuming the earlier copy"), "{outcome}");
        first.wait();
        half.check();
    }
}

#[test]
fn a_tree_that_was_hardly_begun_goes_to_the_same_place() {
    // The first run has created the directory, and the second would copy into it, as scp does.
    if is_scp() {
        return;
    }
    for up in [true, false] {
        let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
            return;
        };
        let way = if up { Way::Up } else { Way::Down };
        let proxy = DelayProxy::to(scene.peer.addr()).rate(200_000).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        for n in 0..40 {
            let path = scene.path(&format!("from/{n}"));
            std::fs::create_dir_all(path.parent().expect("above")).expect("our folder");
            write_file(&path, &Seed::new(n).bytes(20_000));
        }
        std::fs::create_dir(scene.path("at")).expect("our folder");
        let (from, to) = match up {
            true => (scene.path("from").into_os_string(), scene.remote("at/to")),
            false => (scene.remote("from"), scene.path("at/to").into_os_string()),
        };
        let cp = || scene.client.cp().arg("-r").arg(&from).arg(&to);
        let running = cp().spawn();
        assert!(running.until(|| proxy.carried(way) > 150_000 && scene.path("at/to").is_dir()));
        let pid = running.pid().to_string();
        testkit::process::must("kill", &["-9".as_ref(), pid.as_ref()]);
        running.wait();
        // The bytes that the killed run had sent arrive first.
        proxy.cut_now();
        cp().run().expect_code(0);
        testkit::tree::assert_same(
            &scene.path("from"),
            &scene.path("at/to"),
            testkit::tree::Compare::CONTENT,
        );
        assert_eq!(
            names_in(&scene.path("at/to")),
            names_in(&scene.path("from"))
        );
    }
}

/// Returns the id of the file in a journal with one file.
fn id_in(journal: &[u8]) -> u64 {
    let replayed = schedule::journal::replay(journal).expect("a journal");
    let mut files = replayed.state.unfinished();
    files.next().expect("a file").0
}

/// A file that was renamed before the journal recorded it is not sent again. A process was killed
/// between the two steps, and the whole file was sent again.
#[test]
fn a_file_that_got_its_name_before_that_was_written_down_is_not_sent_again() {
    for up in [true, false] {
        for ours in [true, false] {
            let Some(half) = Half::new(up) else { return };
            let (temporary, target) = (half.temporary(), half.scene.path("to/file"));
            let mut journal = std::fs::read(half.journal()).expect("read");
            let now = SystemTime::now();
            let since = now.duration_since(SystemTime::UNIX_EPOCH);
            let since = since.expect("after 1970");
            // A server tells whole seconds.
            let mtime = match up {
                true => since.as_secs() * 1_000_000_000,
                false => since.as_nanos() as u64,
            };
            let whole = JournalRecord::Ranges {
                id: id_in(&journal),
                durable: true,
                mtime,
                ranges: vec![(0, SIZE as u64)],
            };
            JournalEncoder::default().write(&whole, &mut journal);
            std::fs::write(half.journal(), journal).expect("written");
            match ours {
                true => {
                    write_file(&temporary, &half.content);
                    set_modified(&temporary, now);
                    std::fs::rename(&temporary, &target).expect("renamed");
                }
                // Another file of that size is there, and the temporary is gone.
                false => {
                    std::fs::remove_file(&temporary).expect("removed");
                    write_file(&target, &Seed::new(9).bytes(SIZE));
                    set_modified(&target, SystemTime::now() - HOUR);
                }
            }
            let way = if up { Way::Up } else { Way::Down };
            let before = half.proxy.carried(way);
            let outcome = half.ends(&[]);
            let sent = half.proxy.carried(way) - before;
            assert_eq!(sent < 1_000_000, ours, "{sent} bytes\n{outcome}");
        }
    }
}

#[test]
fn what_a_server_has_got_is_gone_on_with_before_it_is_durable() {
    if is_scp() {
        return;
    }
    let Some(half) = Half::new(true) else { return };
    let outcome = half.ends(&[]);
    let said = outcome.err();
    let taken = said.split("0 files recorded as complete, and ").nth(1);
    let taken = taken.and_then(|t| t.split(" MB").next()?.parse::<u64>().ok());
    assert!(taken.is_some_and(|mb| mb >= 36), "{outcome}");
}

/// The parts of an earlier run were announced, and the whole file was copied without a word.
#[test]
fn a_source_that_grew_since_is_copied_from_the_start_and_named() {
    if is_scp() {
        return;
    }
    for up in [true, false] {
        let Some(half) = Half::new(up) else { return };
        let source = half.scene.path("from/file");
        let mut longer = half.content.clone();
        longer.extend_from_slice(b"more");
        write_file(&source, &longer);
        let outcome = half.cp().run().expect_code(0);
        let said = "from/file: changed since the interrupted copy: it is copied from the start";
        assert!(outcome.err().contains(said), "{outcome}");
        let copied = std::fs::read(half.scene.path("to/file")).expect("copied");
        assert!(copied == longer, "{outcome}");
    }
}

/// A journal beside the target is ignored. It used to be beside a local target, where the author of
/// the copied tree could have put it.
#[test]
fn a_journal_beside_the_target_is_not_believed() {
    let Some(half) = Half::new(false) else { return };
    let journal = half.journal();
    let name = journal.file_name().expect("a name").to_str().expect("ours");
    for beside in [name.to_owned(), format!(".longhaul-{name}")] {
        std::fs::copy(&journal, half.scene.path("to").join(beside)).expect("copied");
    }
    std::fs::remove_file(&journal).expect("removed");
    let outcome = half.cp().run().expect_code(0);
    assert!(!outcome.err().contains("resuming"), "{outcome}");
    let copied = std::fs::read(half.scene.path("to/file")).expect("copied");
    assert!(copied == half.content, "another content");
    // Temporaries of an unknown owner are kept.
    assert_eq!(names_in(&half.scene.path("to")).len(), 4);
}

/// A journal never decides about files outside the target. A server planted one that named such
/// files, and they were removed.
#[test]
fn a_journal_decides_nothing_about_files_outside_the_target() {
    for up in [true, false] {
        let Some(half) = Half::new(up) else { return };
        let victims = ["precious", "other/.file.0000000000.longhaul", "other/file"];
        let victims = victims.map(|name| half.scene.path(name));
        std::fs::create_dir(half.scene.path("other")).expect("our folder");
        victims
            .iter()
            .for_each(|path| write_file(path, b"precious"));
        symlink(half.scene.path("other"), half.scene.path("to/link")).expect("a link");
        let whole = std::fs::read(half.journal()).expect("read");
        let identity = schedule::journal::replay(&whole).expect("a journal").state;
        let identity = identity.identity().to_vec();
        let (mut bytes, mut writer) = (Vec::new(), JournalEncoder::default());
        JournalEncoder::header(&mut bytes);
        let mut write = |record: &JournalRecord| writer.write(record, &mut bytes);
        write(&JournalRecord::Copy { identity });
        write(&JournalRecord::Onto { into: true });
        let targets = [
            half.scene.path("other/file"),
            half.scene.path("to/../other/file"),
            half.scene.path("to/link/file"),
            half.scene.path("to/file"),
        ];
        for (id, target) in (0..).zip(targets) {
            let target = target.into_os_string().into_encoded_bytes();
            // The name that `victims` has.
            let tag = 0;
            let source = schedule::journal::SourceFileStamp::default();
            write(&JournalRecord::Begun {
                id,
                target,
                source,
                tag,
            });
            let path = victims[0].clone().into_os_string().into_encoded_bytes();
            write(&JournalRecord::Temp { id, path });
        }
        std::fs::write(half.journal(), bytes).expect("written");
        let outcome = half.cp().run();
        for path in &victims {
            let content = std::fs::read(path).expect("still there");
            assert_eq!(content, b"precious", "{}\n{outcome}", path.display());
        }
    }
}

/// Regression: after a copy with one failed file, the same command took a target that was changed
/// within ten seconds, to other bytes of equal length, for its own.
#[test]
fn a_target_that_changed_soon_after_a_failed_copy_is_copied_again() {
    if is_scp() {
        return;
    }
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let tree = scene.path("tree");
    std::fs::create_dir(&tree).expect("our folder");
    for number in 0..400 {
        write_file(&tree.join(format!("{number}")), b"source");
    }
    symlink("nowhere", tree.join("dangling")).expect("our folder");
    let copy = || {
        let run = scene.client.cp().arg("-r").arg(&tree);
        run.arg(scene.remote("to")).run()
    };
    copy().expect_code(1);
    let changed = scene.path("to/7");
    let written = std::fs::metadata(scene.path("to/399")).and_then(|m| m.modified());
    std::fs::write(&changed, b"target").expect("our file");
    set_modified(&changed, written.expect("a time") + Duration::from_secs(3));
    let outcome = copy().expect_code(1);
    let said = outcome.err();
    // Those of the last second are counted apart.
    assert!(said.contains("resuming the earlier copy: "), "{outcome}");
    assert!(said.contains("finished just before it ended"), "{outcome}");
    assert_eq!(std::fs::read(&changed).expect("our file"), b"source");
}

/// A finished file that somebody changed soon after the interruption, to other bytes of equal size,
/// counted as complete: at a server for ten seconds, on this machine within the second of its time.
#[test]
fn a_finished_file_that_changed_soon_after_an_interruption_is_copied_again() {
    if is_scp() {
        return;
    }
    for (up, stop) in [(true, "-KILL"), (true, "-INT"), (false, "-KILL")] {
        let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
            return;
        };
        let proxy = DelayProxy::to(scene.peer.addr()).rate(20_000_000).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        let tree = scene.path("from/tree");
        std::fs::create_dir_all(&tree).expect("our folder");
        std::fs::create_dir(scene.path("to")).expect("our folder");
        for number in 0..400 {
            write_file(&tree.join(format!("{number}")), b"source");
        }
        write_file(&tree.join("large"), &Seed::new(7).bytes(SIZE));
        let copy = || match up {
            true => {
                let cp = scene.client.cp().arg("-r").arg(&tree);
                cp.arg(scene.remote("to"))
            }
            false => {
                let cp = scene.client.cp().arg("-r");
                cp.arg(scene.remote("from/tree")).arg(scene.path("to"))
            }
        };
        let way = if up { Way::Up } else { Way::Down };
        let running = copy().spawn();
        let finished = || {
            let names = std::fs::read_dir(scene.path("to/tree"));
            let is_final = |name: &std::ffi::OsString| !name.as_encoded_bytes().starts_with(b".");
            let names = names.into_iter().flatten().flatten();
            names
                .map(|entry| entry.file_name())
                .filter(is_final)
                .count()
        };
        let half = || finished() == 400 && proxy.carried(way) > 20_000_000;
        assert!(running.until(half), "over too soon");
        signal(&running, stop);
        running.wait();
        let changed = scene.path("to/tree/7");
        let written = std::fs::metadata(&changed).and_then(|m| m.modified());
        std::fs::write(&changed, b"target").expect("our file");
        if !up {
            let since = written
                .expect("a time")
                .duration_since(SystemTime::UNIX_EPOCH);
            let second = Duration::from_secs(since.expect("after 1970").as_secs());
            set_modified(&changed, SystemTime::UNIX_EPOCH + second);
        }
        let outcome = copy().run().expect_code(0);
        assert!(
            outcome.err().contains("resuming the earlier copy"),
            "{outcome}"
        );
        let now = std::fs::read(&changed).expect("our file");
        assert_eq!(now, b"source", "up {up} {stop}: {outcome}");
    }
}

/// Bug: a copy whose connection was lost before 4 MiB had moved ended, and the user had to repeat
/// the command, while one that lost its connection later went on.
#[test]
fn a_copy_whose_connection_is_lost_soon_after_the_login_goes_on() {
    if is_scp() {
        return;
    }
    for (up, way, bytes) in [
        (true, Way::Up, 30_000),
        (true, Way::Up, 700_000),
        (false, Way::Down, 30_000),
        (false, Way::Down, 700_000),
    ] {
        let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
            return;
        };
        let proxy = DelayProxy::to(scene.peer.addr()).cut_after(way, bytes);
        let proxy = proxy.start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        let content = Seed::new(4).bytes(2_000_000);
        write_file(&scene.path("file"), &content);
        let cp = scene.client.cp();
        let run = match up {
            true => cp.arg(scene.path("file")).arg(scene.remote("copy")),
            false => cp.arg(scene.remote("file")).arg(scene.path("copy")),
        };
        let outcome = run.run().expect_code(0).expect_err(&["reconnecting"]);
        let copied = std::fs::read(scene.path("copy")).expect("copied");
        assert!(copied == content, "up {up}, {bytes}: {outcome}");
        let left = |name: &std::ffi::OsString| name.as_encoded_bytes().ends_with(b".longhaul");
        let names = names_in(scene.path("copy").parent().expect("above"));
        assert!(!names.iter().any(left), "{names:?}");
    }
}
