//! Fuzzes a lane against a model of the server and a disk, with faults at random places: refused
//! requests, corrupted answers, disk errors, cancelled jobs, lost channels.
//!
//! The witness checks that no rename leaves early. In addition, every job ends exactly once, a
//! final name has the old file or the complete new one, remaining temporaries were reported, and
//! nothing stays open.

#[path = "../../crates/schedule/tests/lane/disk.rs"]
#[allow(dead_code, reason = "the lane's own tests use the rest")]
mod disk;
#[path = "../../crates/schedule/tests/lane/world.rs"]
#[allow(dead_code, reason = "the lane's own tests use the rest")]
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use fuzz::operate;
use schedule::{
    Attributes, ExistingTargetPolicy, FileCopyOptions, JobId, JobKind, LaneConfig, LaneEvent,
};
use sftp::StatusCode;
use testkit::sftp_model::{Act, InjectedFault, Kind, Rng, SftpServerProfile, VirtualLinkOptions};
use world::{Mode, World, bytes, config, remote};

const OLD: &[u8] = b"what was there before";

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    Put {
        len: u32,
        onto: Onto,
        options: Options,
    },
    Get {
        len: u32,
        known: bool,
    },
    MakeDir,
    MakeSymlink {
        onto: Onto,
    },
    SetAttributes,
    Stat,
    RealPath,
    List,
    ListTree,
    Run {
        ms: u16,
    },
    Refuse {
        kind: u8,
        nth: u8,
        code: u8,
    },
    Spoil {
        kind: u8,
        nth: u8,
        how: Spoil,
    },
    BreakDisk {
        nth: u8,
    },
    Cancel {
        sure: u8,
    },
    LoseChannel {
        sure: u8,
    },
    Room {
        bytes: u16,
    },
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Spoil {
    OtherHandle,
    OtherId,
    Truncated,
    Length(u32),
}

#[derive(Arbitrary, Debug, Clone, Copy, PartialEq, Eq)]
enum Onto {
    Nothing,
    File,
    Symlink,
    Directory,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
struct Options {
    preserve: bool,
    fsync: bool,
    inplace: u8,
    fresh: bool,
}

const KINDS: [&str; 17] = [
    "OPEN",
    "WRITE",
    "READ",
    "CLOSE",
    "FSETSTAT",
    "LSTAT",
    "FSTAT",
    "REMOVE",
    "fsync@openssh.com",
    "posix-rename@openssh.com",
    "RENAME",
    "STAT",
    "put-file@longhaul",
    "get-file@longhaul",
    "put-file-zstd@longhaul",
    "get-file-zstd@longhaul",
    "list-tree@longhaul",
];

struct Put {
    name: String,
    data: Vec<u8>,
    inplace: bool,
    onto: Onto,
}

struct Run {
    w: World,
    openssh: bool,
    puts: BTreeMap<JobId, Put>,
    gets: BTreeMap<JobId, (String, Vec<u8>)>,
    all: Vec<JobId>,
    /// Counter for names that are used once.
    made: usize,
    lost: bool,
    seed: u64,
}

impl Run {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let mode = *u.choose(&[Mode::Remembered, Mode::Predicting, Mode::Plain])?;
        let openssh = u.arbitrary()?;
        let server = match openssh {
            true if u.ratio(1, 2)? => SftpServerProfile::ours(),
            true => SftpServerProfile::openssh(),
            false => SftpServerProfile {
                shuffles: u.ratio(3, 4)?,
                no_setstat: u.ratio(1, 8)?,
                ..SftpServerProfile::other()
            },
        };
        let link = VirtualLinkOptions {
            delay: Duration::from_millis(u.int_in_range(0..=150)?),
            bandwidth: if u.ratio(1, 3)? { 3_000_000 } else { 0 },
            // Only requests that arrive together can be answered out of order.
            fragment: match server.shuffles {
                true => 1 << 20,
                false => *u.choose(&[100, 5000, 1 << 20])?,
            },
        };
        let seed = u.arbitrary()?;
        let mut config = Self::settings(openssh, mode, seed);
        if mode == Mode::Remembered && openssh {
            config.remembered = Some(world::info_of(&server));
        }
        if u.ratio(1, 4)? {
            config.open_files = 2;
            config.unwritten = 100_000;
        }
        let mut w = World::with(config, server, link, seed);
        w.disk.latency = Duration::from_millis(u.int_in_range(0..=20)?);
        let jitter = Duration::from_millis(u.int_in_range(0..=80)?);
        w.disk.jitter = Some((Rng::new(seed), jitter));
        Ok(Self {
            w,
            openssh,
            puts: BTreeMap::new(),
            gets: BTreeMap::new(),
            all: Vec::new(),
            made: 0,
            lost: false,
            seed,
        })
    }

    fn settings(openssh: bool, mode: Mode, seed: u64) -> LaneConfig {
        let mut config = config(mode, seed);
        config.openssh = openssh;
        config
    }

    fn put(&mut self, len: u32, onto: Onto, options: Options) {
        let nth = self.number();
        let name = format!("f{nth}");
        match onto {
            Onto::Nothing => {}
            Onto::File => self.w.place(&name, OLD, 0o644),
            Onto::Symlink => {
                self.w.place(&format!("real{nth}"), OLD, 0o600);
                let says = Kind::Symlink(format!("real{nth}").into_bytes());
                self.w.model.fs.place(&name, says, 0o777);
            }
            Onto::Directory => self.w.model.fs.place(&name, Kind::Dir, 0o755),
        }
        let data = bytes(len as usize % 400_000, self.seed.wrapping_add(nth as u64));
        let inplace = options.inplace < 32;
        let put = FileCopyOptions {
            preserve: options.preserve,
            inplace,
            fsync: options.fsync,
            existing: ExistingTargetPolicy {
                fresh: options.fresh && onto == Onto::Nothing,
                ..ExistingTargetPolicy::default()
            },
            ..FileCopyOptions::default()
        };
        let job = self.w.put(data.clone(), &name, put);
        self.all.push(job);
        let put = Put {
            name,
            data,
            inplace,
            onto,
        };
        self.puts.insert(job, put);
    }

    fn number(&mut self) -> usize {
        self.made += 1;
        self.made - 1
    }

    fn get(&mut self, len: u32, known: bool) {
        let name = format!("d{}", self.number());
        let data = bytes(len as usize % 400_000, self.seed ^ u64::from(len));
        self.w.place(&name, &data, 0o644);
        let known = known.then_some(Attributes {
            size: Some(data.len() as u64),
            mode: Some(0o100_644),
            times: Some((1, 2)),
            ..Attributes::default()
        });
        let job = self.w.get(&name, known);
        self.all.push(job);
        self.gets.insert(job, (name, data));
    }

    fn other(&mut self, kind: JobKind) {
        let job = self.w.job(kind);
        self.all.push(job);
    }

    fn reconnect(&mut self) {
        self.lost = true;
        let config = Self::settings(self.openssh, Mode::Plain, self.seed.wrapping_add(9));
        self.w.reconnect(config);
    }

    fn inject(&mut self, kind: u8, nth: u8, act: Act) {
        let kind = KINDS.get(usize::from(kind) % (KINDS.len() + 4)).copied();
        // A client cannot tell a false "no such file" for an existing file from the truth.
        let act = match (act, kind) {
            (Act::Status(StatusCode::NO_SUCH_FILE), None | Some("REMOVE")) => {
                Act::Status(StatusCode::FAILURE)
            }
            (act, _) => act,
        };
        let nth = usize::from(nth) % if kind.is_some() { 8 } else { 100 };
        self.w.model.inject(InjectedFault { kind, nth, act });
    }

    fn step(&mut self, op: Op) {
        // Not for a file that is being copied: the witness counts requests for those.
        let path = || remote("dir");
        match op {
            _ if self.all.len() > 12 && !matches!(op, Op::Run { .. }) => {}
            Op::Put { len, onto, options } => self.put(len, onto, options),
            Op::Get { len, known } => self.get(len, known),
            Op::MakeDir => self.other(JobKind::MakeDir {
                path: remote("dir"),
                mode: 0o755,
                follow: true,
            }),
            Op::MakeSymlink { onto } => {
                let name = format!("s{}", self.number());
                if onto == Onto::File {
                    self.w.place(&name, OLD, 0o644);
                }
                self.other(JobKind::MakeSymlink {
                    path: remote(&name),
                    points_to: b"elsewhere".to_vec(),
                    tag: None,
                });
            }
            Op::SetAttributes => self.other(JobKind::SetAttributes {
                path: remote("dir"),
                attributes: Attributes {
                    times: Some((5, 6)),
                    ..Attributes::default()
                },
                follow: true,
                xattrs: None,
                expected: Default::default(),
            }),
            Op::Stat => self.other(JobKind::Stat {
                path: path(),
                follow: false,
            }),
            Op::RealPath => self.other(JobKind::RealPath { path: path() }),
            Op::List => self.other(JobKind::List {
                path: remote("."),
                most: None,
            }),
            Op::ListTree => {
                // Only longhaul's server supports this.
                if self.w.model.is_ours() {
                    self.other(JobKind::ListTree {
                        path: remote("."),
                        count: true,
                        same_device: false,
                    });
                }
            }
            Op::Run { ms } => {
                // Without anything in flight there is nothing to wait for.
                if !self.w.jobs.is_empty() || !self.w.lane.is_idle() {
                    self.w.run_for(Duration::from_millis(u64::from(ms % 1000)));
                }
            }
            Op::Refuse { kind, nth, code } => {
                // Not EOF: a server that reports it has truncated the file, as far as any client
                // can tell.
                let code = [
                    StatusCode::FAILURE,
                    StatusCode::PERMISSION_DENIED,
                    StatusCode::NO_SUCH_FILE,
                    StatusCode::OP_UNSUPPORTED,
                ][usize::from(code) % 4];
                self.inject(kind, nth, Act::Status(code));
            }
            Op::Spoil { kind, nth, how } => {
                let act = match how {
                    Spoil::OtherHandle => Act::OtherHandle,
                    Spoil::OtherId => Act::OtherId,
                    Spoil::Truncated => Act::Truncated,
                    // A length that is slightly too large looks like a server that has stopped
                    // answering.
                    Spoil::Length(n) if n % 2 == 0 => Act::Length(n % 8),
                    Spoil::Length(n) => Act::Length(n | 0x100_0000),
                };
                self.inject(kind, nth, act);
            }
            Op::BreakDisk { nth } => {
                self.w.disk.faults.insert(nth.into());
            }
            Op::Cancel { sure } if sure < 64 => {
                // Temporaries of a lost channel are still to be removed.
                let (ours, cleaning) = std::mem::take(&mut self.w.jobs)
                    .into_iter()
                    .partition::<Vec<_>, _>(|job| self.all.contains(&job.id));
                self.w.jobs = cleaning.into();
                self.all.retain(|id| ours.iter().all(|job| job.id != *id));
                self.w.lane.cancel(self.w.now, "interrupted");
            }
            Op::LoseChannel { sure } if sure < 128 => {
                self.w.lane.handle_closed("lost");
                self.reconnect();
            }
            Op::Cancel { .. } | Op::LoseChannel { .. } => {}
            Op::Room { bytes } => self.w.room = usize::from(bytes).max(1),
        }
        if self.w.error.is_some() {
            self.reconnect();
        }
    }

    fn finish(&mut self) {
        for _ in 0..60 {
            self.w.run();
            if self.w.error.is_none() {
                return;
            }
            self.reconnect();
        }
        panic!(
            "each fault strikes once, and yet there is no end: {:?}",
            self.w.error
        );
    }

    fn judge(&self) -> usize {
        let w = &self.w;
        let mut ended: BTreeMap<JobId, usize> = BTreeMap::new();
        let mut told = String::new();
        for (_, event) in &w.events {
            let (id, end) = (event.job(), event.is_last());
            match event {
                LaneEvent::Warning(_, text) => told.push_str(text),
                LaneEvent::Failed(_, fault) => told.push_str(&fault.what),
                // The old file, whose name the new one gets without posix-rename.
                LaneEvent::Path(_, aside) => told.push_str(&String::from_utf8_lossy(aside)),
                _ => {}
            }
            assert!(!ended.contains_key(&id), "{event:?} behind the end");
            if end {
                ended.insert(id, 1);
            }
        }
        for id in &self.all {
            assert!(ended.contains_key(id), "{id:?} has no end");
        }
        for (id, put) in &self.puts {
            self.judge_put(*id, put);
        }
        for (id, (name, data)) in &self.gets {
            match w.got(name) {
                Some(got) => assert!(got == data, "{name} is wrong"),
                None => assert!(!w.done(*id), "{name} is missing"),
            }
        }
        for temporary in w.temporaries() {
            let removing = w
                .events
                .iter()
                .any(|(_, e)| matches!(e, LaneEvent::Failed(id, _) if !self.all.contains(id)));
            assert!(
                told.contains(&temporary) || removing,
                "{temporary} is left and nobody said so: {told} {:?}",
                w.model.log()
            );
        }
        assert_eq!((w.disk.open_sources(), w.disk.targets()), (0, 0));
        let stats = w.lane.stats();
        assert_eq!((stats.reading, stats.unwritten, stats.jobs), (0, 0, 0));
        self.all.iter().filter(|id| w.done(**id)).count()
    }

    fn judge_put(&self, id: JobId, put: &Put) {
        let w = &self.w;
        let stands = w.model.fs.data(&put.name);
        if w.done(id) {
            assert!(stands == Some(put.data.as_slice()), "{} is wrong", put.name);
            return;
        }
        let in_place = put.inplace
            || w.failed(id)
                .is_some_and(|why| why.contains("the file at the target"))
            || w.events.iter().any(|(_, e)| {
                matches!(e, LaneEvent::Warning(of, text)
                    if *of == id && text.contains("directly to the final name"))
            });
        let old = match put.onto {
            Onto::Nothing | Onto::Directory => stands.is_none(),
            Onto::File | Onto::Symlink => stands == Some(OLD),
        };
        // Without posix-rename, the old file is removed before the new one gets its name.
        let gone = !self.openssh && stands.is_none();
        // A symlink whose target the server does not reveal is written through, and a channel lost
        // in the middle leaves it incomplete until the job runs again.
        let through = self.lost && (put.onto == Onto::Symlink || !self.openssh);
        let whole = stands == Some(put.data.as_slice());
        assert!(
            old || gone || whole || in_place || through,
            "{} over {:?} is neither old nor new: {:?} {:?}",
            put.name,
            put.onto,
            w.failed(id),
            w.model.log()
        );
    }
}

#[test]
fn faults_anywhere_leave_no_wrong_file() {
    let mut done = 0;
    operate(512, |u| {
        let mut run = Run::new(u)?;
        let first = Options {
            preserve: u.arbitrary()?,
            fsync: u.arbitrary()?,
            inplace: 255,
            fresh: false,
        };
        run.put(u.arbitrary()?, u.arbitrary()?, first);
        while !u.is_empty() {
            let op = u.arbitrary()?;
            run.step(op);
        }
        run.finish();
        done += run.judge();
        Ok(())
    });
    assert!(done > 0, "no job was ever done");
}
