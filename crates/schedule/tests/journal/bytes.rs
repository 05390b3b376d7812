//! Reading journals that are whole, torn, damaged or foreign.

use schedule::journal::{
    ExistingFile, HEADER, JournalEncoder, JournalReadError, JournalRecord, JournalReplayer,
    JournalState, SourceFileStamp, replay,
};
use schedule::{PartialFile, tagged_name};

fn written(records: &[JournalRecord]) -> Vec<u8> {
    let mut out = Vec::new();
    JournalEncoder::header(&mut out);
    let mut writer = JournalEncoder::default();
    for record in records {
        assert!(writer.write(record, &mut out));
    }
    out
}

fn begun(id: u64, target: &str) -> JournalRecord {
    JournalRecord::Begun {
        id,
        target: target.into(),
        source: SourceFileStamp {
            size: 100,
            mtime: 7,
            inode: 1,
            device: 2,
        },
        tag: id + 1000,
    }
}

fn some() -> Vec<JournalRecord> {
    vec![
        JournalRecord::Copy {
            identity: b"this copy".to_vec(),
        },
        JournalRecord::Run {
            boot: b"boot".to_vec(),
        },
        JournalRecord::Onto { into: true },
        begun(0, "to/a/one"),
        begun(1, "to/a/two"),
        begun(2, "to/b"),
        JournalRecord::Ranges {
            id: 1,
            durable: true,
            mtime: 5_000_000_000,
            ranges: vec![(0, 10), (20, 30)],
        },
        JournalRecord::Ranges {
            id: 1,
            durable: false,
            mtime: 6_000_000_000,
            ranges: vec![(10, 15)],
        },
        JournalRecord::Done {
            id: 0,
            durable: false,
            size: 100,
            mtime: 0,
        },
        JournalRecord::Temp {
            id: 2,
            path: b"elsewhere/.b".to_vec(),
        },
    ]
}

fn read(bytes: &[u8]) -> JournalState {
    replay(bytes).expect("readable").state
}

#[test]
fn what_was_written_is_read() {
    let bytes = written(&some());
    let replayed = replay(&bytes).expect("readable");
    assert_eq!(replayed.good, bytes.len());
    let state = replayed.state;
    assert_eq!(state.identity(), b"this copy");
    assert_eq!(state.into_directory(), Some(true));
    assert_eq!((state.next_id(), state.clock()), (3, 6_000_000_000));
    let (id, one) = state.file(b"to/a/one").expect("known");
    assert_eq!((id, one.done.is_some(), one.tag), (0, true, 1000));
    let (_, two) = state.file(b"to/a/two").expect("known");
    assert_eq!(two.proven(), [(0, 15), (20, 30)]);
    let unfinished: Vec<u64> = state.unfinished().map(|(id, _)| id).collect();
    assert_eq!(unfinished, [1, 2]);
    let (_, b) = state.file(b"to/b").expect("known");
    assert_eq!(b.temp.as_deref(), Some(b"elsewhere/.b".as_slice()));
}

#[test]
fn what_only_the_memory_had_is_void_after_another_start() {
    for (boot, survives) in [("boot", true), ("another", false), ("", false)] {
        let mut state = read(&written(&some()));
        state.started(boot.into());
        assert_eq!(state.file(b"to/a/one").is_some(), survives, "{boot}");
        let (_, two) = state.file(b"to/a/two").expect("known");
        let expected: &[(u64, u64)] = match survives {
            true => &[(0, 15), (20, 30)],
            false => &[(0, 10), (20, 30)],
        };
        assert_eq!(two.proven(), expected);
    }
    let mut records = some();
    records.push(JournalRecord::Durable { files: 1 });
    let mut state = read(&written(&records));
    state.started(Vec::new());
    assert!(state.file(b"to/a/one").is_some(), "it was synced");
}

/// On a busy path the answer with the boot id came after 42 MB of data, all of which became void.
#[test]
fn what_was_told_before_the_start_was_known_counts() {
    let known = |boot: &str| JournalRecord::Boot { boot: boot.into() };
    let run = |boot: &str| JournalRecord::Run { boot: boot.into() };
    let all: &[(u64, u64)] = &[(0, 15), (20, 30)];
    let durable: &[(u64, u64)] = &[(0, 10), (20, 30)];
    for (then, boot, proven) in [
        (vec![known("boot")], "boot", all),
        (vec![known("boot")], "another", durable),
        (vec![known("boot"), known("another")], "another", durable),
        // The record belongs to another run.
        (vec![run("boot")], "boot", durable),
        (vec![run(""), known("boot")], "boot", durable),
        (vec![known("boot"), run("boot")], "boot", all),
    ] {
        let mut records = some();
        records[1] = run("");
        records.extend(then.clone());
        let mut state = read(&written(&records));
        state.started(boot.into());
        let (_, two) = state.file(b"to/a/two").expect("known");
        assert_eq!(two.proven(), proven, "{then:?}, {boot}");
        assert_eq!(state.file(b"to/a/one").is_some(), proven == all);
    }
}

/// Tests every cut of the last write: earlier records count, and no damage is reported.
#[test]
fn a_torn_tail_is_cut() {
    let (whole, records) = (written(&some()), some());
    let ends: Vec<usize> = (0..=records.len())
        .map(|n| written(&records[..n]).len())
        .collect();
    for cut in 0..whole.len() {
        let good = replay(&whole[..cut]).expect("readable").good;
        let expected = ends.iter().rev().find(|end| **end <= cut);
        assert_eq!(good, expected.copied().unwrap_or(0), "cut at {cut}");
    }
    // Pages of the last write may reach the disk out of order.
    let mut bytes = whole.clone();
    bytes[ends[4] + 9] ^= 1;
    assert_eq!(replay(&bytes).expect("readable").good, ends[4]);
}

#[test]
fn damage_to_what_was_synced_is_told() {
    let mut records = some();
    let synced = written(&records).len();
    records.push(JournalRecord::Synced {
        offset: synced as u64,
    });
    let bytes = written(&records);
    for at in HEADER..synced {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        match replay(&damaged) {
            Err(JournalReadError::Damaged { at: found }) => assert!(found <= at),
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn another_version_and_other_files_are_told_apart() {
    let mut bytes = written(&some());
    bytes[HEADER - 1] = 9;
    assert_eq!(replay(&bytes).err(), Some(JournalReadError::Version(9)));
    assert_eq!(
        replay(b"something else entirely").err(),
        Some(JournalReadError::Foreign)
    );
    assert_eq!(replay(b"some").err(), Some(JournalReadError::Foreign));
    assert_eq!(replay(b"").expect("nothing yet").good, 0);
    // Records in an order that no writer produces.
    let mut records = some();
    records.remove(0);
    assert!(matches!(
        replay(&written(&records)),
        Err(JournalReadError::Damaged { .. })
    ));
}

#[test]
fn a_target_that_was_changed_does_not_stand() {
    let mut records = some();
    records.push(clock(1, 7));
    records.push(clock(1, 9));
    let mut state = read(&written(&records));
    let done = |state: &JournalState| {
        let (_, entry) = state.file(b"to/a/one").expect("known");
        entry.done.expect("done")
    };
    let seen = |size, seconds: u64| ExistingFile {
        size,
        mtime: seconds * 1_000_000_000,
    };
    state.seal();
    assert!(done(&state).stands(seen(100, 6)));
    assert!(!done(&state).stands(seen(101, 6)), "another size");
    assert!(!done(&state).stands(seen(100, 8)), "changed during the run");
    assert!(!done(&state).stands(seen(100, 60)), "changed after the run");
    assert!(!done(&state).stands(seen(100, 0)), "without a time");
    let (_, two) = state.file(b"to/a/two").expect("known");
    assert!(two.may_go_on(seen(30, 6)) && two.may_go_on(seen(50, 20)));
    assert!(!two.may_go_on(seen(29, 6)), "shorter than what is proven");
    assert!(!two.may_go_on(seen(30, 5)), "older than what was seen");
    assert!(!two.may_go_on(seen(30, 600)), "changed long after");
}

/// Bug: a copy that was interrupted between setting the times of a complete temporary and its rename
/// sent 60 MB again, since the temporary looked older than its data.
#[test]
fn a_complete_temporary_with_the_time_of_its_source_was_sent_again() {
    let second = 1_000_000_000;
    let left = |end| PartialFile {
        ranges: vec![(0, end)],
        mtime: 5000 * second,
        source: (100, 6 * second + 5),
    };
    let seen = |size, seconds: u64| ExistingFile {
        size,
        mtime: seconds * second,
    };
    assert!(left(100).may_go_on(seen(100, 6)));
    assert!(!left(99).may_go_on(seen(100, 6)), "not complete");
    assert!(!left(100).may_go_on(seen(101, 6)), "another size");
    assert!(!left(100).may_go_on(seen(100, 7)), "another time");
}

/// The limit is 200 MiB for a million files.
#[test]
fn a_million_files_take_little() {
    let (mut writer, mut out) = (JournalEncoder::default(), Vec::new());
    let files = 10_000;
    for id in 0..files {
        let target = format!(
            "/srv/archive/2024/project-{}/results/sample_{id:08}.dat",
            id / 500
        );
        writer.write(&begun(id, &target), &mut out);
        let done = JournalRecord::Done {
            id,
            durable: false,
            size: 100,
            mtime: 0,
        };
        writer.write(&done, &mut out);
    }
    let each = out.len() as u64 / files;
    assert!(each * 1_000_000 < 120 << 20, "{each} bytes a file");
}

/// A server planted a journal; it named files outside the target, which were removed.
#[test]
fn a_journal_is_about_nothing_but_the_target_of_the_command() {
    let outside = [
        "/etc/passwd",
        "to2/x",
        "t",
        "to/../x",
        "to//x",
        "to/./x",
        "to/",
        "to/a/../../x",
        "to/a\0b",
        "",
    ];
    let inside = ["to", "to/a", "to/a/b", "to/..a"];
    let mut state = JournalState::default();
    for (id, target) in outside.iter().chain(&inside).enumerate() {
        assert!(state.apply(begun(id as u64, target)));
    }
    state.confine(b"to");
    let left: Vec<_> = state.unfinished().map(|(_, e)| e.target.clone()).collect();
    assert_eq!(left, inside.map(|name| name.as_bytes().to_vec()));
    assert!(
        outside
            .iter()
            .all(|name| state.file(name.as_bytes()).is_none())
    );
    for (target, path, within) in [
        ("", "a/b", true),
        ("", "/a", false),
        (".", "./a", true),
        (".", "..", false),
        (".", ".a", false),
        ("/", "/a", true),
        ("/", "//a", false),
        ("to/", "to/a", true),
        ("to/", "to/", true),
        ("to/", "to", false),
    ] {
        let mut state = JournalState::default();
        assert!(state.apply(begun(0, path)));
        state.confine(target.as_bytes());
        assert_eq!(state.unfinished().count() == 1, within, "{target} {path}");
    }
}

#[test]
fn a_journal_names_no_temporary_that_no_copy_would_make() {
    let tag = 1000;
    let elsewhere = tagged_name(b"/elsewhere/file", tag);
    for (path, kept) in [
        (elsewhere, true),
        (tagged_name(b"/elsewhere/file", tag + 1), true),
        (tagged_name(b"/elsewhere/file", tag + 77), false),
        (b"/home/user/precious.txt".to_vec(), false),
        (b"to".to_vec(), false),
        (Vec::new(), false),
    ] {
        let mut state = JournalState::default();
        assert!(state.apply(begun(0, "to")));
        let temp = JournalRecord::Temp {
            id: 0,
            path: path.clone(),
        };
        assert!(state.apply(temp));
        state.confine(b"to");
        let (_, entry) = state.file(b"to").expect("within");
        assert_eq!((entry.tag, &entry.temp), (tag, &kept.then_some(path)));
    }
}

/// Pieces of any size give the same result, also behind a damaged record.
#[test]
fn a_journal_is_read_in_pieces() {
    let mut synced = written(&some());
    let offset = synced.len() as u64;
    JournalEncoder::default().write(&JournalRecord::Synced { offset }, &mut synced);
    for flipped in [None, Some(HEADER + 20), Some(synced.len() - 30)] {
        for cut in [0, 5, 40] {
            let mut bytes = synced.clone();
            if let Some(at) = flipped {
                bytes[at] ^= 1;
            }
            bytes.truncate(bytes.len() - cut);
            let whole = replay(&bytes).map(|r| (r.good, r.state.next_id()));
            for piece in [1, 2, 7, 100] {
                let mut replayer = JournalReplayer::new(usize::MAX);
                let taken = bytes.chunks(piece).try_for_each(|p| replayer.take(p));
                let read = taken.and_then(|()| replayer.end());
                let read = read.map(|r| (r.good, r.state.next_id()));
                assert_eq!(read, whole, "{flipped:?} {cut} {piece}");
            }
        }
    }
}

/// Paths are compressed in the file: 60 MB of journal were 8 GB of memory.
#[test]
fn a_journal_takes_bounded_memory() {
    let most = 1 << 20;
    let name = |n: u64| format!("to/{}{n:08}", "deep/".repeat(800));
    let mut records = some();
    records.truncate(3);
    records.extend((0..10_000).map(|n| begun(n, &name(n))));
    records.push(JournalRecord::Ranges {
        id: 5,
        durable: true,
        mtime: 5_000_000_000,
        ranges: vec![(0, 10)],
    });
    records.push(JournalRecord::Done {
        id: 9_999,
        durable: false,
        size: 100,
        mtime: 0,
    });
    let bytes = written(&records);
    assert!(bytes.len() < most, "{}", bytes.len());
    let mut replayer = JournalReplayer::new(most);
    replayer.take(&bytes).expect("sound");
    let state = replayer.end().expect("sound").state;
    let kept: usize = state.unfinished().map(|(_, e)| 2 * e.target.len()).sum();
    assert!((most / 2..=most).contains(&kept), "{kept}");
    // New ids do not collide, and unknown files are copied again.
    assert_eq!(state.next_id(), 10_000);
    assert!(state.file(name(9_999).as_bytes()).is_none());
    assert!(state.left_out() > 9_000);
    assert_eq!((state.soft(), state.done()), (0, 0));

    // Files that end or are forgotten make room.
    let mut records = some();
    records.truncate(3);
    for n in 0..10_000 {
        records.push(begun(n, &name(n)));
        records.push(JournalRecord::Forgotten { id: n });
    }
    records.push(begun(10_000, &name(1)));
    let mut replayer = JournalReplayer::new(most);
    replayer.take(&written(&records)).expect("sound");
    let state = replayer.end().expect("sound").state;
    assert_eq!((state.left_out(), state.unfinished().count()), (0, 1));
}

/// Regression: readings of the clock by a later run hid changes made between the two runs, and for
/// ten seconds after a run with failed files changes were not seen at all.
#[test]
fn a_change_between_two_runs_is_seen_by_every_later_one() {
    let mut records = some();
    records.push(clock(1, 6));
    records.push(clock(1, 7));
    let mut state = read(&written(&records));
    records.push(state.seal());
    records.push(clock(0, 1000));
    for _ in 0..2 {
        let mut state = read(&written(&records));
        let (_, entry) = state.file(b"to/a/one").expect("known");
        let done = entry.done.expect("done");
        assert!(done.stands(one_at(6)) && !done.stands(one_at(7)) && !done.stands(one_at(500)));
        records.push(state.seal());
    }
}

/// A file that was finished after the last reading of the clock, or in its second, is not believed:
/// nothing tells its time from that of a change. Such files counted as complete if they were
/// changed within ten seconds.
#[test]
fn a_file_that_was_changed_soon_after_an_interrupted_run_is_not_believed() {
    // No reading followed the file.
    let mut state = read(&written(&some()));
    state.seal();
    let (_, entry) = state.file(b"to/a/one").expect("known");
    let done = entry.done.expect("done");
    assert!((0..20).all(|at| !done.stands(one_at(at))), "{done:?}");

    // The reading was requested before the file was finished.
    let mut records = some();
    records.push(clock(0, 6));
    let mut state = read(&written(&records));
    state.seal();
    let (_, entry) = state.file(b"to/a/one").expect("known");
    assert!(!entry.done.expect("done").stands(one_at(6)));

    // The last reading is in the second of the file.
    let mut records = some();
    records.push(clock(1, 6));
    let mut state = read(&written(&records));
    state.seal();
    let (_, entry) = state.file(b"to/a/one").expect("known");
    let done = entry.done.expect("done");
    assert!(done.stands(one_at(5)) && !done.stands(one_at(6)));
}

/// Bug: files of the last second, which are sent again, were counted as complete.
#[test]
fn files_of_the_last_second_counted_as_complete() {
    let proven = |readings: &[(u64, u64)]| {
        let mut records = some();
        records.extend(readings.iter().map(|(files, at)| clock(*files, *at)));
        let mut state = read(&written(&records));
        state.seal();
        (state.done(), state.proven())
    };
    assert_eq!(proven(&[]), (1, 0), "no reading followed it");
    assert_eq!(proven(&[(0, 6)]), (1, 0));
    assert_eq!(proven(&[(1, 6)]), (1, 0), "in the second of the last one");
    assert_eq!(proven(&[(1, 6), (1, 7)]), (1, 1));
}

/// A large file is not sent again because no later reading of the clock followed it.
#[test]
fn a_large_file_is_believed_in_the_second_of_the_last_reading() {
    let large = 64 << 20;
    let done = |clocked: bool| {
        let mut records = some();
        records.push(JournalRecord::Done {
            id: 1,
            durable: true,
            size: large,
            mtime: 0,
        });
        records.extend(clocked.then(|| clock(2, 8)));
        let mut state = read(&written(&records));
        state.seal();
        let (_, entry) = state.file(b"to/a/two").expect("known");
        entry.done.expect("done")
    };
    let seen = |seconds| ExistingFile {
        size: large,
        ..one_at(seconds)
    };
    assert!(done(true).stands(seen(8)) && !done(true).stands(seen(9)));
    // The time at its last sync is known.
    assert!(done(false).stands(seen(6)) && !done(false).stands(seen(7)));
}

/// Reading of the clock after the first `files` files, in seconds.
fn clock(files: u64, seconds: u64) -> JournalRecord {
    JournalRecord::Clock {
        files,
        mtime: seconds * 1_000_000_000,
    }
}

/// The file `to/a/one` of [`some`] with this time in seconds.
fn one_at(seconds: u64) -> ExistingFile {
    ExistingFile {
        size: 100,
        mtime: seconds * 1_000_000_000,
    }
}
