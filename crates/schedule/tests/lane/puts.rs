use std::path::PathBuf;
use std::time::Duration;

use schedule::{CompressionMode, FileCopyOptions, FileCopyState, JobKind, LaneEvent};
use testkit::sftp_model::{Kind, SftpServerProfile, VirtualLinkOptions};

use crate::disk::Source;
use crate::world::{MODES, Mode, RTT, World, bytes, config, link, remote};

fn plain_put(w: &mut World, data: &[u8], target: &str) -> schedule::JobId {
    w.put(data.to_vec(), target, FileCopyOptions::default())
}

#[test]
fn sizes_around_every_boundary_arrive_whole() {
    const KIB: usize = 1024;
    for mode in MODES {
        let sizes = [
            0,
            1,
            32 * KIB - 1,
            32 * KIB,
            32 * KIB + 1,
            284 * KIB,
            284 * KIB + 1,
            1 << 20,
        ];
        let mut w = World::new(mode);
        for (i, size) in sizes.into_iter().enumerate() {
            plain_put(&mut w, &bytes(size, i as u64), &format!("f{i}"));
        }
        w.run();
        for (i, size) in sizes.into_iter().enumerate() {
            let data = w.model.fs.data(&format!("f{i}"));
            assert!(
                data == Some(bytes(size, i as u64).as_slice()),
                "{mode:?} {size}"
            );
        }
        assert_eq!(w.temporaries(), Vec::<String>::new());
        assert_eq!(w.disk.open_sources(), 0);
        assert_eq!(w.model.open_handles().0, 0);
    }
}

#[test]
fn fragments_of_one_byte_and_a_server_that_is_not_openssh() {
    let slow = VirtualLinkOptions {
        fragment: 1,
        ..link()
    };
    for server in [SftpServerProfile::openssh(), SftpServerProfile::other()] {
        for seed in 0..3 {
            let mut config = config(Mode::Plain, seed);
            config.openssh = false;
            let mut w = World::with(config, server.clone(), slow, seed);
            w.place("old", b"old", 0o600);
            plain_put(&mut w, &bytes(70_000, seed), "new");
            plain_put(&mut w, &bytes(3000, seed), "old");
            w.run();
            assert!(w.model.fs.data("new") == Some(bytes(70_000, seed).as_slice()));
            assert!(w.model.fs.data("old") == Some(bytes(3000, seed).as_slice()));
            assert_eq!(w.model.fs.at("old").map(|n| n.mode), Some(0o600));
            assert_eq!(w.temporaries(), Vec::<String>::new());
        }
    }
}

#[test]
fn a_new_file_has_the_mode_scp_gives_and_preserve_keeps_mode_and_times() {
    for mode in MODES {
        let mut w = World::new(mode);
        plain_put(&mut w, b"x", "a");
        let preserve = FileCopyOptions {
            preserve: true,
            ..FileCopyOptions::default()
        };
        w.put(b"x".to_vec(), "b", preserve);
        w.run();
        assert_eq!(w.model.fs.at("a").map(|n| n.mode), Some(0o644));
        let node = w.model.fs.at("b").unwrap();
        assert_eq!((node.mode, node.times), (0o664, (1111, 2222)));
    }
}

#[test]
fn a_symlink_is_followed_and_stays() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.model.fs.place("d", Kind::Dir, 0o755);
        w.place("d/real", b"old", 0o600);
        w.model
            .fs
            .place("link", Kind::Symlink(b"d/real".to_vec()), 0o777);
        w.model
            .fs
            .place("dangling", Kind::Symlink(b"d/none".to_vec()), 0o777);
        let jobs = [
            plain_put(&mut w, b"new", "link"),
            plain_put(&mut w, b"made", "dangling"),
        ];
        w.run();
        for job in jobs {
            assert!(w.done(job), "{mode:?} {:?}", w.failed(job));
        }
        assert_eq!(w.model.fs.data("d/real"), Some(b"new".as_slice()));
        assert_eq!(w.model.fs.at("d/real").map(|n| n.mode), Some(0o600));
        assert_eq!(w.model.fs.data("d/none"), Some(b"made".as_slice()));
        assert_eq!(w.temporaries(), Vec::<String>::new());
    }
}

/// A file shared with a group used to become the copier's own.
#[test]
fn a_file_that_is_replaced_stays_its_owners_where_that_is_permitted() {
    for mode in MODES.into_iter().filter(|mode| *mode != Mode::Ours) {
        for preserve in [false, true] {
            for (only, has, kept) in [
                (None, (7, 8), true),
                (Some(8), (1000, 8), false),
                (Some(9), (1000, 1000), false),
            ] {
                let mut w = World::new(mode);
                for name in ["a", "mine"] {
                    w.place(name, b"old", 0o664);
                }
                w.model.fs.at_mut("a").unwrap().owner = (7, 8);
                w.model.fs.only_group = only;
                let options = FileCopyOptions {
                    preserve,
                    ..FileCopyOptions::default()
                };
                let put = |w: &mut World, name| w.put(b"new".to_vec(), name, options.clone());
                let (job, mine) = (put(&mut w, "a"), put(&mut w, "mine"));
                w.run();
                assert!(w.done(job) && w.done(mine), "{mode:?}");
                let node = w.model.fs.at("a").unwrap();
                assert_eq!((node.owner, node.mode), (has, 0o664), "{mode:?} {only:?}");
                let told = w.at(&LaneEvent::Belonged(job, (7, 8)));
                assert_eq!(told.is_none(), kept, "{mode:?} {only:?}");
                let mine = |e: &LaneEvent| matches!(e, LaneEvent::Belonged(id, _) if *id == mine);
                assert!(!w.events.iter().any(|(_, e)| mine(e)), "{mode:?}");
            }
        }
    }
}

/// Replacing one's own file takes no round trip for its owner.
#[test]
fn who_replaces_his_own_files_waits_for_no_owner() {
    let replaced_at = |owner: (u32, u32)| {
        let mut w = World::new(Mode::Remembered);
        w.place("a", b"old", 0o644);
        w.model.fs.at_mut("a").unwrap().owner = owner;
        let preserve = FileCopyOptions {
            preserve: true,
            ..FileCopyOptions::default()
        };
        let job = w.put(b"new".to_vec(), "a", preserve);
        w.run();
        w.reached(job, FileCopyState::Renamed).unwrap()
    };
    let own = replaced_at((1000, 1000));
    assert_eq!(replaced_at((7, 8)), own + RTT);
    assert!(own <= 3 * RTT, "{own:?}");
}

/// The progress bar exceeded 100 %: bytes sent before the target turned out to be a symlink were
/// counted twice.
#[test]
fn a_file_that_is_begun_again_is_counted_once() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.place("real", b"old", 0o600);
        let link = Kind::Symlink(b"real".to_vec());
        w.model.fs.place("link", link, 0o777);
        let job = plain_put(&mut w, &bytes(100_000, 1), "link");
        w.run();
        assert!(w.done(job), "{mode:?} {:?}", w.failed(job));
        let told = w.events.iter().filter_map(|(_, event)| match event {
            LaneEvent::Progress(id, n) if *id == job => Some(n),
            _ => None,
        });
        assert_eq!(told.sum::<u64>(), 100_000, "{mode:?}");
    }
}

#[test]
fn directories_devices_and_read_only_files() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.model.fs.place("d", Kind::Dir, 0o755);
        w.place("ro", b"old", 0o444);
        let dir = plain_put(&mut w, &bytes(100_000, 1), "d");
        let null = plain_put(&mut w, b"gone", "/dev/null");
        let ro = plain_put(&mut w, b"new", "ro");
        let fine = plain_put(&mut w, b"fine", "fine");
        w.run();
        assert_eq!(
            w.failed(dir),
            Some("it is a directory at the far end: choose another name")
        );
        assert!(w.done(null));
        assert_eq!(w.model.fs.data("/dev/null"), Some(b"gone".as_slice()));
        assert!(
            w.failed(ro)
                .is_some_and(|t| t.contains("permission denied"))
        );
        assert_eq!(w.model.fs.data("ro"), Some(b"old".as_slice()));
        assert!(w.done(fine));
        assert_eq!(w.temporaries(), Vec::<String>::new());
    }
}

#[test]
fn a_device_keeps_its_mode_and_times() {
    for mode in MODES {
        let mut w = World::new(mode);
        let preserve = FileCopyOptions {
            preserve: true,
            ..FileCopyOptions::default()
        };
        let job = w.put(b"gone".to_vec(), "/dev/null", preserve);
        let before = w.model.fs.at("/dev/null").expect("a device").mode;
        w.run();
        assert!(w.done(job), "{:?}", w.failed(job));
        let device = w.model.fs.at("/dev/null").expect("a device");
        assert_eq!(device.mode, before, "{mode:?}");
    }
}

#[test]
fn a_file_in_a_directory_that_is_not_writable_is_written_in_place() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.model.fs.place("d", Kind::Dir, 0o755);
        w.place("d/a", b"old and longer", 0o644);
        w.model.fs.at_mut("d").unwrap().mode = 0o555;
        let a = plain_put(&mut w, b"new", "d/a");
        let b = plain_put(&mut w, b"new", "d/b");
        w.run();
        assert!(w.done(a), "{:?}", w.failed(a));
        assert_eq!(w.model.fs.data("d/a"), Some(b"new".as_slice()));
        assert_eq!(w.whys_in_place().len(), 1, "{:?}", w.events);
        assert!(w.failed(b).is_some_and(|t| t.contains("permission denied")));
    }
}

#[test]
fn a_full_disk_leaves_the_old_file_and_no_temporary() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.place("a", b"old", 0o644);
        w.model.fs.capacity = 1_000_000;
        let job = plain_put(&mut w, &bytes(3_000_000, 1), "a");
        let small = plain_put(&mut w, b"small", "b");
        w.run();
        assert!(
            w.failed(job)
                .is_some_and(|t| t.contains("disk may be full"))
        );
        assert_eq!(w.model.fs.data("a"), Some(b"old".as_slice()));
        assert_eq!(w.temporaries(), Vec::<String>::new());
        assert!(w.done(small));
        assert_eq!(w.disk.open_sources(), 0);
        assert_eq!(w.lane.stats().reading, 0);
    }
}

#[test]
fn in_place_keeps_the_inode_and_cuts_it() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.place("a", b"old and longer than the new", 0o600);
        let inplace = FileCopyOptions {
            inplace: true,
            ..FileCopyOptions::default()
        };
        let job = w.put(b"new".to_vec(), "a", inplace);
        w.run();
        assert!(w.done(job));
        assert_eq!(w.model.fs.data("a"), Some(b"new".as_slice()));
        assert_eq!(w.model.fs.at("a").map(|n| n.mode), Some(0o600));
        assert_eq!(w.witness.renames(), 0);
    }
}

#[test]
fn sources_that_shrink_or_grow_are_sent_to_their_end() {
    for mode in MODES {
        for told in [100_000, 900_000] {
            let mut w = World::new(mode);
            let data = bytes(500_000, 3);
            let mut source = Source::new(data.clone());
            source.meta.attributes.size = Some(told);
            let path = PathBuf::from("/src/changing");
            w.disk.sources.insert(path.clone(), source);
            let job = w.job(JobKind::Put {
                source: path,
                target: remote("a"),
                options: FileCopyOptions::default(),
            });
            w.run();
            assert!(w.done(job));
            assert!(w.model.fs.data("a") == Some(data.as_slice()));
            let shrank = w.warnings().iter().any(|t| t.contains("shrank"));
            assert_eq!(shrank, told == 900_000);
        }
    }
}

#[test]
fn a_source_that_cannot_be_read_fails_alone() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.disk.bad_from = Some(1_000_000);
        let missing = w.job(JobKind::Put {
            source: PathBuf::from("/src/none"),
            target: remote("m"),
            options: FileCopyOptions::default(),
        });
        let bad = plain_put(&mut w, &bytes(5_000_000, 1), "bad");
        let good = plain_put(&mut w, &bytes(500_000, 1), "good");
        w.run();
        assert_eq!(w.failed(missing), Some("no such file"));
        assert_eq!(w.failed(bad), Some("input/output error"));
        assert!(w.done(good));
        assert_eq!(w.model.fs.names(), ["good"]);
        assert_eq!((w.lane.stats().reading, w.disk.open_sources()), (0, 0));
    }
}

#[test]
fn a_server_that_cannot_set_modes_gets_a_warning() {
    let server = SftpServerProfile {
        no_setstat: true,
        ..SftpServerProfile::openssh()
    };
    let mut w = World::with(config(Mode::Plain, 1), server, link(), 1);
    let preserve = FileCopyOptions {
        preserve: true,
        ..FileCopyOptions::default()
    };
    let job = w.put(b"x".to_vec(), "a", preserve);
    w.run();
    assert!(w.done(job));
    let told =
        |(_, event): &(_, LaneEvent)| matches!(event, LaneEvent::NotKept(id, ..) if *id == job);
    assert!(w.events.iter().any(told), "{:?}", w.events);
}

#[test]
fn a_cancelled_lane_cleans_up() {
    for mode in MODES {
        let slow = VirtualLinkOptions {
            bandwidth: 1_000_000,
            ..link()
        };
        let mut w = World::with(config(mode, 1), SftpServerProfile::openssh(), slow, 1);
        let jobs = [
            plain_put(&mut w, &bytes(3_000_000, 1), "a"),
            plain_put(&mut w, &bytes(10, 1), "b"),
        ];
        w.run_for(Duration::from_millis(400));
        w.lane.cancel(w.now, "interrupted");
        w.jobs.clear();
        w.run();
        assert_eq!(w.failed(jobs[0]), Some("interrupted"));
        assert!(w.done(jobs[1]) || w.failed(jobs[1]) == Some("interrupted"));
        assert_eq!(w.temporaries(), Vec::<String>::new());
        assert_eq!(w.disk.open_sources(), 0);
    }
}

/// Data queued behind a refused OPEN used to be sent anyway: a limited or slow path carried the
/// file twice if the first guess at its target was wrong.
#[test]
fn what_waits_behind_a_refused_open_is_not_sent() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.room = 64 << 10;
        let id = plain_put(&mut w, &bytes(3 << 20, 1), "missing-directory/f");
        w.run();
        assert!(w.failed(id).is_some(), "{mode:?}");
        let requests = w.model.log().len();
        assert!(requests < 9, "{mode:?}: {requests} requests");
    }
}

/// One write(2) of a mebibyte costs the server less than four smaller ones, if the WRITE takes at
/// most a millisecond.
#[test]
fn writes_are_longer_where_the_path_is_fast_and_the_server_takes_them() {
    let data = bytes(40_000_001, 5);
    let longest = |server: SftpServerProfile, rate: u64| {
        let link = VirtualLinkOptions {
            delay: Duration::from_micros(50),
            bandwidth: rate,
            ..link()
        };
        let mut config = config(Mode::Predicting, 1);
        config.remembered = None;
        let mut w = World::with(config, server, link, 1);
        let put = w.put(data.clone(), "up", FileCopyOptions::default());
        w.run();
        assert!(w.done(put), "{:?}", w.events);
        assert!(w.model.fs.data("up") == Some(data.as_slice()));
        w.model.writes.iter().copied().max()
    };
    assert_eq!(
        longest(SftpServerProfile::ours(), 2_000_000_000),
        Some(1 << 20)
    );
    assert_eq!(
        longest(SftpServerProfile::ours(), 500_000_000),
        Some(252 << 10)
    );
    assert_eq!(
        longest(SftpServerProfile::openssh(), 2_000_000_000),
        Some(252 << 10)
    );
    // asyncssh offers 4 MiB.
    let mut other = SftpServerProfile::openssh();
    other.write = 4 << 20;
    assert_eq!(longest(other, 2_000_000_000), Some(252 << 10));
}

/// A rate limit allows a few bytes at once, which travel fast: a WRITE of a mebibyte exceeded it.
#[test]
fn a_pace_is_not_exceeded_by_a_long_write() {
    let data = bytes(40_000_001, 5);
    let longest = |pace: u64| {
        let link = VirtualLinkOptions {
            delay: Duration::from_micros(50),
            bandwidth: 4_000_000_000,
            ..link()
        };
        let mut config = config(Mode::Predicting, 1);
        config.remembered = None;
        let mut w = World::with(config, SftpServerProfile::ours(), link, 1);
        let put = w.put(data.clone(), "up", FileCopyOptions::default());
        w.lane.set_pace(w.now, pace);
        w.pace = Some(pace);
        w.run();
        assert!(w.done(put), "{:?}", w.events);
        assert!(w.model.fs.data("up") == Some(data.as_slice()));
        w.model.writes.iter().copied().max()
    };
    assert_eq!(longest(700_000), Some(252 << 10));
    assert_eq!(longest(u64::MAX), Some(1 << 20));
}

/// A hole that starts and ends within long WRITEs, and compressible data behind incompressible
/// data.
#[test]
fn long_writes_leave_nothing_out() {
    let line = b"a line of a log that says the same again and again: 200 OK\n";
    let mut data = bytes(30_000_000, 6);
    data.extend(line.iter().copied().cycle().take(9_000_001));
    data.extend(bytes(5_000_000, 7));
    data[20_300_000..25_777_777].fill(0);
    for pack in [
        CompressionMode::Never,
        CompressionMode::Auto,
        CompressionMode::Always,
    ] {
        let link = VirtualLinkOptions {
            delay: Duration::from_micros(50),
            ..link()
        };
        let mut config = config(Mode::Predicting, 1);
        config.remembered = None;
        config.pack = pack;
        let mut w = World::with(config, SftpServerProfile::ours(), link, 1);
        let sparse = FileCopyOptions {
            sparse: true,
            ..FileCopyOptions::default()
        };
        let put = w.put(data.clone(), "up", sparse);
        w.run();
        assert!(w.done(put), "{:?}", w.events);
        assert!(w.model.fs.data("up") == Some(data.as_slice()), "{pack:?}");
        assert!(w.model.writes.contains(&(1 << 20)) || pack == CompressionMode::Always);
        assert_eq!(w.disk.open_sources() + w.disk.targets(), 0);
    }
}
