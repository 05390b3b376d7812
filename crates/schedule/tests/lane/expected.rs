//! Requests name the entry that they may change (expect@longhaul): another user of the server may
//! have put a hard link of another file in its place.

use schedule::{
    Attributes, ExistingTargetPolicy, ExpectedEntry, FileCopyOptions, JobId, JobKind, LaneEvent,
    LinkLimit, ListedEntry, PartialFile, ReadOnlyFilePolicy, UploadTemp,
};
use sftp::StatusCode;
use testkit::sftp_model::{Act, InjectedFault, Kind, SftpServerProfile};

use crate::world::{Mode, World, config, link, remote};

/// A world in which `swapped` is a hard link of `victim`, in place of what stood there before.
fn swapped(mode: Mode) -> World {
    let mut w = World::new(mode);
    w.place("victim", b"precious", 0o600);
    w.place("own", b"precious", 0o600);
    w.model.fs.place("dir", Kind::Dir, 0o700);
    w.model.fs.hard_link(b"victim", b"swapped").expect("free");
    w
}

fn set(path: &str, mode: u32, expected: ExpectedEntry) -> JobKind {
    JobKind::SetAttributes {
        path: remote(path),
        attributes: Attributes {
            mode: Some(mode),
            owner: Some((7, 7)),
            ..Attributes::default()
        },
        follow: false,
        xattrs: None,
        expected,
    }
}

/// Attributes of a listed file.
fn listed() -> Attributes {
    Attributes {
        mode: Some(0o100_644),
        ..Attributes::default()
    }
}

fn check_victim(w: &World) {
    let victim = w.model.fs.at("victim").expect("there");
    assert_eq!(victim.kind, Kind::File(b"precious".to_vec()));
    assert_eq!(victim.mode, 0o600);
    assert_ne!(victim.owner, (7, 7));
}

#[test]
fn a_hard_link_in_place_of_an_entry_gets_no_attributes() {
    let one = listed().expected(LinkLimit::AtMost(1), ListedEntry::ANY);
    let two = listed().expected(LinkLimit::AtMost(2), ListedEntry::ANY);
    let any = listed().expected(LinkLimit::AnyNumber, ListedEntry::ANY);
    let directory = ExpectedEntry::DIRECTORY;
    for (path, expected, is_set) in [
        ("own", one, true),
        ("swapped", one, false),
        ("swapped", directory, false),
        ("swapped", ExpectedEntry::SYMLINK, false),
        ("swapped", two, true),
        ("swapped", any, true),
        ("dir", directory, true),
        ("dir", one, false),
    ] {
        let mut w = swapped(Mode::Ours);
        let job = w.job(set(path, 0o100_644, expected));
        w.run();
        assert_eq!(w.done(job), is_set, "{path} {expected:?}");
        let mode = w.model.fs.at(path).expect("there").mode;
        assert_eq!(mode & 0o777 == 0o644, is_set, "{path} {expected:?}");
        if !is_set {
            let why = w.failed(job).expect("refused");
            assert!(why.starts_with("not the expected entry: "), "{why}");
            check_victim(&w);
        }
    }
}

#[test]
fn a_hard_link_in_place_of_a_temporary_is_not_resumed() {
    for (temp, resumes) in [("own", true), ("swapped", false)] {
        let mut w = swapped(Mode::Ours);
        let job = w.job(JobKind::AdoptTemp {
            target: remote("target"),
            temp: remote(temp),
            left: PartialFile {
                ranges: vec![(0, 3)],
                ..PartialFile::default()
            },
            size: Some(100),
            existing: ExistingTargetPolicy::default(),
        });
        w.run();
        assert!(w.done(job));
        let events = w.events.iter();
        let found = events.filter(|(_, event)| matches!(event, LaneEvent::Temp(..)));
        assert_eq!(found.count() == 1, resumes, "{temp}");
    }
}

/// Bug: a run that was killed after it had set the permissions of a read-only file left a temporary
/// that the next run could not open: the file failed. A part has no such permissions: another account
/// may have linked a read-only file there, which was made writable and overwritten.
#[test]
fn only_a_complete_temporary_of_a_read_only_file_is_made_writable() {
    for mode in [Mode::Plain, Mode::Ours] {
        for (size, may_set, resumes) in [(3, true, true), (3, false, false), (100, true, false)] {
            let mut w = World::new(mode);
            w.place("temp", b"abc", 0o444);
            if !may_set {
                w.model.inject(InjectedFault {
                    kind: Some("lsetstat@openssh.com"),
                    nth: 0,
                    act: Act::Status(StatusCode::PERMISSION_DENIED),
                });
            }
            let job = w.job(JobKind::AdoptTemp {
                target: remote("target"),
                temp: remote("temp"),
                left: PartialFile {
                    ranges: vec![(0, 3)],
                    ..PartialFile::default()
                },
                size: Some(size),
                existing: ExistingTargetPolicy::default(),
            });
            w.run();
            assert!(w.done(job));
            let events = w.events.iter();
            let found = events.filter(|(_, event)| matches!(event, LaneEvent::Temp(..)));
            assert_eq!(found.count() == 1, resumes, "{mode:?}, {size}");
            let found = w.model.fs.at("temp").expect("it is there").mode;
            assert_eq!(found & 0o200 != 0, resumes, "{mode:?}, {size}");
        }
    }
}

/// Bug: an interrupted `cp -a` onto a read-only file always began again.
#[test]
fn the_part_of_a_file_that_replaces_a_read_only_one_was_not_resumed() {
    use ReadOnlyFilePolicy::{AskServer, Replace, ReplaceOfSize};
    for (mode, read_only, resumes) in [
        (0o644, AskServer, true),
        (0o444, AskServer, false),
        (0o444, ReplaceOfSize(4), false),
        (0o444, ReplaceOfSize(3), true),
        (0o444, Replace, true),
    ] {
        let mut w = World::new(Mode::Plain);
        w.place("temp", b"ab", 0o644);
        w.place("target", b"old", mode);
        let job = w.job(JobKind::AdoptTemp {
            target: remote("target"),
            temp: remote("temp"),
            left: PartialFile {
                ranges: vec![(0, 2)],
                ..PartialFile::default()
            },
            size: Some(100),
            existing: ExistingTargetPolicy {
                read_only,
                ..ExistingTargetPolicy::default()
            },
        });
        w.run();
        assert!(w.done(job));
        let kept = w.events.iter().find_map(|(_, event)| match event {
            LaneEvent::Temp(_, temp) => Some((temp.replaces, temp.mode)),
            _ => None,
        });
        assert_eq!(kept, resumes.then_some((true, Some(mode))), "{mode:o}");
    }
}

#[test]
fn a_hard_link_in_place_of_a_temporary_is_neither_cut_nor_renamed() {
    for temp in ["own", "swapped"] {
        let mut w = swapped(Mode::Ours);
        let job = w.job(JobKind::FinishTemp {
            temp: UploadTemp {
                temp: remote(temp),
                target: remote("target"),
                replaces: false,
                mode: None,
                owner: None,
            },
            attributes: listed(),
            cut: Some(4),
            set: false,
            options: FileCopyOptions::default(),
        });
        w.run();
        assert_eq!(w.done(job), temp == "own", "{:?}", w.failed(job));
        assert_eq!(w.model.fs.at("target").is_some(), temp == "own");
        if temp == "swapped" {
            check_victim(&w);
        }
    }
}

#[test]
fn other_servers_get_no_expectations() {
    for mode in [Mode::Plain, Mode::Remembered] {
        let mut w = swapped(mode);
        let expected = listed().expected(LinkLimit::AtMost(1), ListedEntry::ANY);
        let set = w.job(set("own", 0o100_644, expected));
        let sync = w.job(JobKind::SyncTemp {
            temp: remote("own"),
        });
        w.run();
        assert!(w.done(set) && w.done(sync));
        assert!(w.model.expected.is_empty());
    }
    let mut w = swapped(Mode::Ours);
    let sync = w.job(JobKind::SyncTemp {
        temp: remote("own"),
    });
    w.run();
    assert!(w.done(sync));
    assert_eq!(w.model.expected, [ExpectedEntry::TEMPORARY]);
}

/// Bug: a local user of the server moved a file of another user into the target, or put another
/// directory in place of a listed one, and it got mode and owner. Between a request that sets the owner
/// and another one for the mode there would be time for it again.
#[test]
fn the_listed_entry_is_named_to_servers_that_compare_it() {
    let entry = ListedEntry {
        owner: Some((1, 2)),
        modified: Some(3),
        inode: Some((4, 5)),
    };
    let expected = listed().expected(LinkLimit::AtMost(1), entry);
    let named = |is_older: bool| {
        let mut server = SftpServerProfile::ours();
        if is_older {
            let extensions = &mut server.extensions;
            extensions.retain(|(name, _)| name != b"expect-listed@longhaul");
        }
        let mut w = World::with(config(Mode::Ours, 1), server, link(), 1);
        w.place("own", b"precious", 0o600);
        w.model.fs.at_mut("own").expect("it is there").owner = (1, 2);
        let job = w.job(set("own", 0o100_644, expected));
        w.run();
        assert!(w.done(job));
        let named = w.model.expected.iter();
        named.map(|entry| entry.listed).collect::<Vec<_>>()
    };
    assert_eq!(named(false), [entry]);
    assert_eq!(named(true), [ListedEntry::ANY; 2]);
}

/// Sets owner and mode of `own`, listed as that of (1, 2), after the server has refused the first
/// request with `code` and the owner has become `now`.
fn refused_once(code: StatusCode, now: (u32, u32)) -> (World, JobId) {
    let mut w = World::with(config(Mode::Ours, 1), SftpServerProfile::ours(), link(), 1);
    w.place("own", b"precious", 0o600);
    w.model.fs.at_mut("own").expect("it is there").owner = now;
    w.model.inject(InjectedFault {
        kind: Some("lsetstat@openssh.com"),
        nth: 0,
        act: Act::Status(code),
    });
    let entry = ListedEntry {
        owner: Some((1, 2)),
        ..ListedEntry::ANY
    };
    let expected = listed().expected(LinkLimit::AtMost(1), entry);
    let job = w.job(set("own", 0o100_644, expected));
    w.run();
    (w, job)
}

fn mode_of(w: &World) -> Option<u32> {
    w.model.fs.at("own").map(|node| node.mode & 0o777)
}

/// A server that may not change the owner sets the other attributes of the listed entry.
#[test]
fn a_refused_owner_leaves_the_other_attributes_to_the_listed_entry() {
    let (w, job) = refused_once(StatusCode::PERMISSION_DENIED, (1, 2));
    assert!(w.done(job), "{:?}", w.failed(job));
    assert_eq!(mode_of(&w), Some(0o644));
}

/// Bug: where the owner was set and the mode refused, the entry counted as another one. A server that
/// refuses for another reason may have found an entry that somebody has swapped since.
#[test]
fn an_owner_that_was_set_before_the_mode_was_refused_swaps_no_entry() {
    for (code, is_swapped) in [
        (StatusCode::PERMISSION_DENIED, false),
        (StatusCode::NO_SUCH_FILE, true),
    ] {
        let (w, job) = refused_once(code, (7, 7));
        assert_eq!(w.failed(job).is_some(), is_swapped, "{code:?}");
        assert_eq!(mode_of(&w), Some(0o600), "{code:?}");
        let lost = |(_, event): &(_, LaneEvent)| matches!(event, LaneEvent::NotKept(..));
        assert!(w.events.iter().any(lost), "{code:?}");
    }
}

/// Bug: the request that sets the mode was on its way behind the one that sets the owner, and named no
/// owner. The server refused the first one, and the other file got the mode.
#[test]
fn another_entry_than_the_listed_one_gets_no_mode_behind_a_refused_owner() {
    let mut w = swapped(Mode::Ours);
    let entry = ListedEntry {
        owner: Some((1, 2)),
        ..ListedEntry::ANY
    };
    let expected = listed().expected(LinkLimit::AtMost(1), entry);
    let job = w.job(set("swapped", 0o100_644, expected));
    w.run();
    assert!(w.failed(job).is_some());
    assert_eq!(w.model.expected.len(), 1, "{:?}", w.model.expected);
    check_victim(&w);
}
