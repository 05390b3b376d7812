//! Trees listed in one stream by a longhaul server.

use schedule::{JobId, JobKind, LaneEvent, TreeWalkStep};
use sftp::StatusCode;
use testkit::sftp_model::{Act, InjectedFault, Kind};

use crate::world::{Mode, RTT, World, bytes, remote};

/// Returns the reported paths, with a slash after directories, and the directories that cannot be
/// listed.
fn told(w: &World, job: JobId) -> Vec<String> {
    let (mut path, mut all, mut over) = (Vec::<String>::new(), Vec::new(), false);
    for (_, event) in &w.events {
        let LaneEvent::Tree(id, steps) = event else {
            continue;
        };
        assert_eq!(*id, job);
        for step in steps {
            assert!(!over);
            let here = path.concat();
            let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
            match step {
                TreeWalkStep::Entry(of, _) => all.push(format!("{here}{}", name(of))),
                TreeWalkStep::Enter(of, _) => {
                    path.push(format!("{}/", name(of)));
                    all.push(path.concat());
                }
                TreeWalkStep::Leave => over = path.pop().is_none(),
                TreeWalkStep::Failed(what) => all.push(format!("{here} {what}")),
                TreeWalkStep::Count { .. } => {}
            }
        }
    }
    all.sort();
    all
}

/// Returns the server's estimates.
fn counted(w: &World) -> Vec<(u64, u64)> {
    let steps = w.events.iter().filter_map(|(_, event)| match event {
        LaneEvent::Tree(_, steps) => Some(steps),
        _ => None,
    });
    let counts = steps.flatten().filter_map(|step| match step {
        TreeWalkStep::Count { files, bytes } => Some((*files, *bytes)),
        _ => None,
    });
    counts.collect()
}

fn list(w: &mut World, path: &str) -> JobId {
    let path = remote(path);
    w.job(JobKind::ListTree {
        path,
        count: true,
        same_device: false,
    })
}

fn plant(w: &mut World) -> Vec<String> {
    let mut all = Vec::new();
    for d in 0..10 {
        for deeper in [String::new(), format!("/deep{d}")] {
            let dir = format!("d{d}{deeper}");
            w.model.fs.place(&format!("t/{dir}"), Kind::Dir, 0o755);
            all.push(format!("{dir}/"));
            for f in 0..40 {
                w.place(&format!("t/{dir}/f{f}"), b"x", 0o644);
                all.push(format!("{dir}/f{f}"));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn a_tree_takes_the_round_trips_of_one_directory() {
    let mut w = World::new(Mode::Ours);
    w.model.fs.place("t", Kind::Dir, 0o755);
    let all = plant(&mut w);
    let job = list(&mut w, "t");
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    assert_eq!(told(&w, job), all);
    assert_eq!(counted(&w), [(800, 800)]);
    // VERSION, and about 850 steps, of which 100 come in the first round trip and 400 in each later
    // one; requests sent after the last step are answered too.
    assert!(w.now - w.start <= 5 * RTT, "{:?}", w.now - w.start);
    assert_eq!((w.model.open_trees(), w.model.open_handles().0), (0, 0));
}

/// CVE-2019-6111, and the contents of a directory with an impossible name.
#[test]
fn hostile_names_are_told_and_nothing_below_them_is_passed_on() {
    let mut w = World::new(Mode::Ours);
    w.model.fs.place("t", Kind::Dir, 0o755);
    w.place("t/good", b"x", 0o644);
    let hostile: [&[u8]; 6] = [b"../x", b"/etc", b"", b"a\0b", b"..", b"a/\x1b[2J"];
    w.model.add_hostile_names(&hostile);
    let job = list(&mut w, "t");
    w.run();
    assert!(w.done(job), "{:?}", w.failed(job));
    let told = told(&w, job);
    let (left_out, others): (Vec<_>, Vec<_>) = told
        .into_iter()
        .partition(|t| t.contains("skipping an invalid file name"));
    assert_eq!(others, ["good"]);
    assert_eq!(left_out.len(), 12, "as an entry, and as a directory");
    assert!(left_out.iter().all(|t| !t.contains('\x1b')));
}

#[test]
fn what_cannot_be_listed_is_said_and_the_rest_goes_on() {
    let mut w = World::new(Mode::Ours);
    w.model.fs.place("t", Kind::Dir, 0o755);
    w.model.fs.place("t/locked", Kind::Dir, 0o300);
    w.place("t/z", b"x", 0o644);
    let job = list(&mut w, "t");
    w.run();
    assert!(w.done(job));
    let told = told(&w, job);
    assert_eq!((told[0].as_str(), told[2].as_str()), ("locked/", "z"));
    assert!(told[1].contains("permission denied"), "{told:?}");

    let mut w = World::new(Mode::Ours);
    let none = list(&mut w, "none");
    w.run();
    assert!(w.failed(none).is_some_and(|t| t.contains("no such file")));
}

#[test]
fn a_listing_that_breaks_off_fails_and_is_forgotten_at_the_server() {
    for code in [StatusCode::EOF, StatusCode::FAILURE] {
        let mut w = World::new(Mode::Ours);
        w.model.fs.place("t", Kind::Dir, 0o755);
        plant(&mut w);
        w.model.inject(InjectedFault {
            kind: Some("list-tree@longhaul"),
            nth: 3,
            act: Act::Status(code),
        });
        let job = list(&mut w, "t");
        w.run();
        assert!(w.failed(job).is_some(), "{code:?}");
        assert_eq!(w.model.open_trees(), 0);
    }
}

#[test]
fn a_cancelled_listing_ends() {
    let mut w = World::new(Mode::Ours);
    w.model.fs.place("t", Kind::Dir, 0o755);
    plant(&mut w);
    let job = list(&mut w, "t");
    w.run_for(RTT + RTT / 4);
    w.lane.cancel(w.now, "interrupted");
    w.run();
    assert_eq!(w.failed(job), Some("interrupted"));
    assert_eq!(w.model.open_trees(), 0);
}

/// The caller need not store more than it has requested.
#[test]
fn a_listing_that_is_held_waits() {
    let mut w = World::new(Mode::Ours);
    w.model.fs.place("t", Kind::Dir, 0o755);
    let all = plant(&mut w);
    w.lane.hold_lists(w.now, true);
    let job = list(&mut w, "t");
    // Another job keeps the lane busy meanwhile.
    let large = bytes(60 << 20, 7);
    w.put(large, "large", schedule::FileCopyOptions::default());
    w.run_for(6 * RTT);
    let held = told(&w, job).len();
    assert!((1..100).contains(&held), "{held} of one answer");
    w.lane.hold_lists(w.now, false);
    w.run();
    assert!(w.done(job));
    assert_eq!(told(&w, job), all);
}

#[test]
fn a_server_that_lists_no_trees_is_not_asked_to() {
    let mut w = World::new(Mode::Plain);
    let job = list(&mut w, "t");
    w.run();
    assert_eq!(w.failed(job), Some(schedule::NO_TREES));
}
