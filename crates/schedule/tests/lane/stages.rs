//! Every stage of every job meets each kind of trouble: the connection is lost, a request is
//! refused, the disk at either end is full, a file changes. The step at which it happens goes
//! through the whole job, so no stage is left out.

use std::path::PathBuf;
use std::time::Duration;

use schedule::{Attributes, FileCopyOptions, JobId, JobKind, LaneEvent, RemotePath};
use sftp::StatusCode;
use testkit::sftp_model::{Act, Fs, InjectedFault, Kind, Rng, SftpServerProfile};

use crate::disk::Source;
use crate::world::{Mode, World, bytes, config, link, remote};

const OLD: &[u8] = b"what was there before";
const DELTA: usize = (1 << 20) + 70_000;

/// A job with its server.
#[derive(Clone, Copy, Debug)]
enum Server {
    Predicted,
    Plain,
    Other,
    Ours,
}

/// Checks of a job's result.
enum Expect {
    /// Content of the remote file before and after.
    Up(&'static str, Option<Vec<u8>>, Vec<u8>),
    /// Content of the local file before and after.
    Down(&'static str, Option<Vec<u8>>, Vec<u8>),
    /// The job leaves nothing to check.
    Other,
}

/// A kind of job, with the servers on which it runs and the function that starts it.
struct Scenario {
    name: &'static str,
    servers: &'static [Server],
    begin: fn(&mut World) -> (JobId, Expect),
}

const ANY: &[Server] = &[
    Server::Predicted,
    Server::Plain,
    Server::Other,
    Server::Ours,
];

fn up(w: &mut World, name: &'static str, len: usize, options: FileCopyOptions) -> (JobId, Expect) {
    let data = bytes(len, 3);
    let before = w.model.fs.data(name).map(<[u8]>::to_vec);
    let job = w.put(data.clone(), name, options);
    (job, Expect::Up(name, before, data))
}

fn down(w: &mut World, len: usize, options: FileCopyOptions) -> (JobId, Expect) {
    let data = bytes(len, 4);
    w.place("down", &data, 0o644);
    let job = w.get_with("down", None, options);
    (job, Expect::Down("down", None, data))
}

fn kept() -> FileCopyOptions {
    FileCopyOptions {
        preserve: true,
        fsync: true,
        ..FileCopyOptions::default()
    }
}

/// Returns `old` with a change and an insertion.
fn changed(old: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    new[300_000..303_000].copy_from_slice(&bytes(3000, 8));
    new.splice(700_000..700_000, bytes(5000, 9));
    new
}

fn delta_up(w: &mut World) -> (JobId, Expect) {
    let old = bytes(DELTA, 5);
    let new = changed(&old);
    w.place("old", &old, 0o640);
    let source = PathBuf::from("/src/delta");
    let held = Source::new(new.clone());
    w.disk.sources.insert(source.clone(), held);
    let job = w.job(JobKind::PutDelta {
        source,
        target: remote("old"),
        options: FileCopyOptions::default(),
        always: true,
    });
    (job, Expect::Up("old", Some(old), new))
}

fn delta_down(w: &mut World) -> (JobId, Expect) {
    let old = bytes(DELTA, 5);
    let new = changed(&old);
    w.place("down", &new, 0o640);
    let target = PathBuf::from("/dst/down");
    let file = (old.clone(), Attributes::default());
    w.disk.files.insert(target.clone(), file);
    let job = w.job(JobKind::GetDelta {
        source: remote("down"),
        target: target.into(),
        known: None,
        options: FileCopyOptions::default(),
        always: true,
    });
    (job, Expect::Down("down", Some(old), new))
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a new file, made durable",
        servers: ANY,
        begin: |w| up(w, "new", 5000, kept()),
    },
    Scenario {
        name: "a file in several requests that replaces one",
        servers: ANY,
        begin: |w| {
            w.place("old", OLD, 0o600);
            up(w, "old", 400_000, FileCopyOptions::default())
        },
    },
    Scenario {
        name: "a read-only file, which is probed",
        servers: ANY,
        begin: |w| {
            w.place("old", OLD, 0o464);
            w.model.fs.ignores_modes = true;
            up(w, "old", 50_000, FileCopyOptions::default())
        },
    },
    Scenario {
        name: "a symlink, which is followed",
        servers: ANY,
        begin: |w| {
            w.place("real", OLD, 0o644);
            let link = Kind::Symlink(b"real".to_vec());
            w.model.fs.place("link", link, 0o777);
            up(w, "link", 40_000, FileCopyOptions::default())
        },
    },
    Scenario {
        name: "a file in place",
        servers: ANY,
        begin: |w| {
            let inplace = FileCopyOptions {
                inplace: true,
                ..kept()
            };
            let (job, _) = up(w, "new", 100_000, inplace);
            (job, Expect::Other)
        },
    },
    Scenario {
        name: "a small download",
        servers: ANY,
        begin: |w| down(w, 3000, kept()),
    },
    Scenario {
        name: "a download in several requests",
        servers: ANY,
        begin: |w| down(w, 700_000, kept()),
    },
    Scenario {
        name: "a download with holes",
        servers: &[Server::Ours],
        begin: |w| {
            let sparse = FileCopyOptions {
                sparse: true,
                ..FileCopyOptions::default()
            };
            let mut data = bytes(600_000, 4);
            data[100_000..400_000].fill(0);
            w.place("down", &data, 0o644);
            let job = w.get_with("down", None, sparse);
            (job, Expect::Down("down", None, data))
        },
    },
    Scenario {
        name: "an upload by delta",
        servers: &[Server::Ours],
        begin: delta_up,
    },
    Scenario {
        name: "a download by delta",
        servers: &[Server::Ours],
        begin: delta_down,
    },
    Scenario {
        name: "a directory that is there",
        servers: ANY,
        begin: |w| {
            w.model.fs.place("dir", Kind::Dir, 0o755);
            let job = w.job(JobKind::MakeDir {
                path: remote("dir"),
                mode: 0o755,
                follow: true,
            });
            (job, Expect::Other)
        },
    },
    Scenario {
        name: "a symlink over a file",
        servers: ANY,
        begin: |w| {
            w.place("old", OLD, 0o644);
            let job = w.job(JobKind::MakeSymlink {
                path: remote("old"),
                points_to: b"elsewhere".to_vec(),
                tag: None,
            });
            (job, Expect::Other)
        },
    },
    Scenario {
        name: "a hard link over a file",
        servers: &[Server::Predicted, Server::Ours],
        begin: |w| {
            w.place("old", OLD, 0o644);
            w.place("of", OLD, 0o644);
            let job = w.job(JobKind::MakeHardLink {
                path: remote("old"),
                of: remote("of"),
                tag: None,
            });
            (job, Expect::Other)
        },
    },
    Scenario {
        name: "attributes",
        servers: ANY,
        begin: |w| {
            w.place("old", OLD, 0o644);
            let attributes = Attributes {
                mode: Some(0o600),
                owner: Some((1, 1)),
                times: Some((5, 6)),
                ..Attributes::default()
            };
            let job = w.job(JobKind::SetAttributes {
                path: remote("old"),
                attributes,
                follow: true,
                xattrs: None,
                expected: Default::default(),
            });
            (job, Expect::Other)
        },
    },
    Scenario {
        name: "the removal of a file",
        servers: ANY,
        begin: |w| {
            w.place("old", OLD, 0o644);
            let job = w.job(JobKind::Remove {
                path: RemotePath(b"old".to_vec()),
            });
            (job, Expect::Other)
        },
    },
];

fn world(server: Server) -> World {
    let (mode, personality) = match server {
        Server::Predicted => (Mode::Remembered, SftpServerProfile::openssh()),
        Server::Plain => (Mode::Plain, SftpServerProfile::openssh()),
        Server::Other => (Mode::Plain, SftpServerProfile::other()),
        Server::Ours => (Mode::Ours, SftpServerProfile::ours()),
    };
    let mut config = config(mode, 1);
    config.openssh = !matches!(server, Server::Other);
    let mut w = World::with(config, personality, link(), 1);
    w.disk.latency = Duration::from_millis(2);
    w
}

/// Calls `test` with each scenario on each of its servers.
fn each(mut test: impl FnMut(&Scenario, Server)) {
    for scenario in SCENARIOS {
        for server in scenario.servers {
            test(scenario, *server);
        }
    }
}

/// Runs a scenario without trouble; returns the number of steps and of requests.
fn sound(scenario: &Scenario, server: Server) -> (usize, usize) {
    let mut w = world(server);
    let (job, expect) = (scenario.begin)(&mut w);
    let mut steps = 0;
    while !w.run_steps(1) {
        steps += 1;
    }
    let which = format!("{}, {server:?}", scenario.name);
    assert!(w.done(job), "{which}: {:?}", w.failed(job));
    match expect {
        Expect::Up(name, _, data) => assert!(w.model.fs.data(name) == Some(&data), "{which}"),
        Expect::Down(name, _, data) => assert!(w.got(name) == Some(&data), "{which}"),
        Expect::Other => {}
    }
    (steps, w.model.log().len())
}

/// Checks that nothing is left open and no temporary stays without being named.
fn assert_nothing_is_left(w: &World, which: &str) {
    assert_eq!(w.error, None, "{which}");
    for name in w.temporaries() {
        let warned = w.warnings().iter().any(|text| text.contains(&name));
        let told = w.events.iter().any(|(_, event)| match event {
            LaneEvent::Failed(_, fault) => fault.what.contains(&name),
            // The owner of a lost lane knows where the old file is.
            LaneEvent::Path(_, path) => path.ends_with(name.as_bytes()),
            _ => false,
        });
        assert!(warned || told, "{which}: {name} is left in secret");
    }
    assert_eq!(w.model.open_handles().0, 0, "{which}: a handle is open");
    let held = (w.disk.open_sources(), w.disk.targets());
    assert_eq!(held, (0, 0), "{which}: the disk holds a file");
    let stats = w.lane.stats();
    let busy = (stats.reading, stats.unwritten, stats.jobs);
    assert_eq!(busy, (0, 0, 0), "{which}");
}

/// Checks that the final name holds the old file or the whole new one; the new one if the job is
/// done.
fn assert_old_or_new(w: &World, job: JobId, expect: &Expect, which: &str) {
    let (stands, before, data) = match expect {
        Expect::Up(name, before, data) => (w.model.fs.data(name), before, data),
        Expect::Down(name, before, data) => (w.got(name), before, data),
        Expect::Other => return,
    };
    let whole = stands == Some(data);
    let old = stands == before.as_deref();
    let aside = w.temporaries();
    let aside = aside
        .iter()
        .any(|name| w.model.fs.data(name) == before.as_deref());
    match w.done(job) {
        true => assert!(whole, "{which}: done, and not whole"),
        false => assert!(old || whole || aside, "{which}: {:?}", w.failed(job)),
    }
}

fn fail_each_request(act: &Act, seed: u64) {
    let mut rng = Rng::new(seed);
    each(|scenario, server| {
        let (_, requests) = sound(scenario, server);
        for nth in 0..requests {
            let mut w = world(server);
            w.disk.latency = Duration::from_micros(rng.below(3000));
            let (job, expect) = (scenario.begin)(&mut w);
            let act = act.clone();
            w.model.inject(InjectedFault {
                kind: None,
                nth,
                act,
            });
            w.run();
            let log = w.model.log();
            let which = format!("{}, {server:?}, {nth} {:?}", scenario.name, log.get(nth));
            assert_nothing_is_left(&w, &which);
            assert_old_or_new(&w, job, &expect, &which);
        }
    });
}

#[test]
fn a_request_is_refused() {
    for code in [
        StatusCode::FAILURE,
        StatusCode::PERMISSION_DENIED,
        StatusCode::OP_UNSUPPORTED,
    ] {
        fail_each_request(&Act::Status(code), 1);
    }
}

#[test]
fn the_far_disk_is_full() {
    fail_each_request(&Act::Full, 2);
}

#[test]
fn the_local_disk_fails_or_is_full() {
    each(|scenario, server| {
        for nth in 0..12 {
            for full in [false, true] {
                let mut w = world(server);
                let (job, expect) = (scenario.begin)(&mut w);
                match full {
                    true => w.disk.full_at = Some(nth * 60_000),
                    false => drop(w.disk.faults.insert(nth as usize)),
                }
                w.run();
                let which = format!("{}, {server:?}, {nth} {full}", scenario.name);
                assert_nothing_is_left(&w, &which);
                assert_old_or_new(&w, job, &expect, &which);
            }
        }
    });
}

#[test]
fn the_connection_is_lost() {
    each(|scenario, server| {
        let (steps, _) = sound(scenario, server);
        for step in 0..steps {
            let mut w = world(server);
            let (job, expect) = (scenario.begin)(&mut w);
            w.run_steps(step);
            w.lane.handle_closed("end of file");
            w.reconnect(config(Mode::Plain, 7));
            w.run();
            let which = format!("{}, {server:?}, step {step}", scenario.name);
            let ended = w.done(job) || w.failed(job).is_some();
            let abandoned = LaneEvent::Abandoned(job);
            assert!(ended || w.at(&abandoned).is_some(), "{which}: it hangs");
            assert_nothing_is_left(&w, &which);
            assert_old_or_new(&w, job, &expect, &which);
        }
    });
}

#[test]
fn the_copy_is_cancelled_or_left() {
    each(|scenario, server| {
        let (steps, _) = sound(scenario, server);
        for step in 0..steps {
            for leave in [false, true] {
                let mut w = world(server);
                let (job, expect) = (scenario.begin)(&mut w);
                w.run_steps(step);
                match leave {
                    true => w.lane.cancel_resumable(w.now, "interrupted"),
                    false => w.lane.cancel(w.now, "interrupted"),
                }
                w.run();
                let which = format!("{}, {server:?}, step {step}", scenario.name);
                assert_nothing_is_left(&w, &which);
                assert_old_or_new(&w, job, &expect, &which);
            }
        }
    });
}

/// Changes that another program makes at the far end, to every file of the scenario.
const CHANGES: [fn(&mut Fs); 4] = [
    |fs| change(fs, |data| data.truncate(data.len() / 2)),
    |fs| change(fs, |data| data.extend(bytes(30_000, 6))),
    |fs| change(fs, |data| data.iter_mut().for_each(|b| *b ^= 1)),
    |fs| {
        for name in ["old", "link", "down", "new"] {
            if fs.at(name).is_some() {
                fs.place(name, Kind::Dir, 0o755);
            }
        }
    },
];

fn change(fs: &mut Fs, with: fn(&mut Vec<u8>)) {
    for name in ["old", "real", "down"] {
        if let Some(node) = fs.at_mut(name)
            && let Kind::File(data) = &mut node.kind
        {
            with(data);
        }
    }
}

#[test]
fn a_remote_file_changes() {
    each(|scenario, server| {
        let (_, requests) = sound(scenario, server);
        for nth in 0..requests {
            for (number, with) in CHANGES.iter().enumerate() {
                let mut w = world(server);
                let (job, _) = (scenario.begin)(&mut w);
                w.model.change_before(nth, *with);
                w.run();
                let which = format!("{}, {server:?}, {nth} {number}", scenario.name);
                let abandoned = LaneEvent::Abandoned(job);
                let ended = w.done(job) || w.failed(job).is_some();
                assert!(ended || w.at(&abandoned).is_some(), "{which}: it hangs");
                assert_nothing_is_left(&w, &which);
            }
        }
    });
}

#[test]
fn a_local_file_changes() {
    each(|scenario, server| {
        let (steps, _) = sound(scenario, server);
        for step in 0..steps {
            for longer in [false, true] {
                let mut w = world(server);
                let (job, expect) = (scenario.begin)(&mut w);
                w.run_steps(step);
                for source in w.disk.sources.values_mut() {
                    match longer {
                        true => source.data.extend(bytes(70_000, 6)),
                        false => source.data.truncate(source.data.len() / 3),
                    }
                }
                w.run();
                let which = format!("{}, {server:?}, step {step} {longer}", scenario.name);
                assert_nothing_is_left(&w, &which);
                // A file that shrank or grew while it was read has a length of some moment.
                if let (true, Expect::Up(name, _, data)) = (w.done(job), &expect) {
                    let stands = w.model.fs.data(name).map_or(0, <[u8]>::len);
                    let lengths = data.len() / 3..=data.len() + 70_000;
                    assert!(lengths.contains(&stands), "{which}: {stands}");
                }
            }
        }
    });
}
