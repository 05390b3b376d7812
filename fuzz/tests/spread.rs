//! Fuzzes a scheduler whose lanes come, go, stall and fail at random places, against one server's
//! file system and a disk; sources change, and jobs are cancelled.
//!
//! The world checks that no rename leaves while any lane has requests for that file in flight. In
//! addition, every job ends exactly once, a final name has the old file or the complete new one,
//! remaining temporaries were reported, and nothing stays open.

#[path = "../../crates/schedule/tests/lane/disk.rs"]
#[allow(dead_code, reason = "the lane's own tests use the rest")]
mod disk;
#[path = "../../crates/schedule/tests/spread/world.rs"]
#[allow(dead_code, reason = "the spreader's own tests use the rest")]
mod world;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use fuzz::operate;
use schedule::{
    ExistingTargetPolicy, FileCopyOptions, JobId, JobKind, LaneEvent, LaneId, SchedulerEvent,
    SchedulerOptions,
};
use sftp::StatusCode;
use testkit::sftp_model::{Act, InjectedFault, Kind, Rng, SftpServerProfile, VirtualLinkOptions};
use world::{World, bytes, remote};

const OLD: &[u8] = b"what was there before";

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    Put {
        len: u32,
        over: bool,
        fsync: bool,
        preserve: bool,
    },
    Get {
        len: u32,
    },
    MakeDirs {
        depth: u8,
    },
    List,
    Run {
        ms: u16,
    },
    AddLane {
        rtt: u8,
        rate: u8,
        predict: bool,
    },
    Lose {
        which: u8,
    },
    Stall {
        which: u8,
        sure: u8,
    },
    Retire {
        which: u8,
    },
    Refuse {
        which: u8,
        kind: u8,
        nth: u8,
        code: u8,
    },
    Spoil {
        which: u8,
        nth: u8,
        id: bool,
    },
    BreakDisk {
        nth: u8,
    },
    Cut {
        which: u8,
        to: u32,
    },
    Grow {
        which: u8,
    },
    Replace {
        which: u8,
        len: u32,
    },
    Cancel {
        sure: u8,
    },
}

const KINDS: [&str; 8] = [
    "OPEN",
    "WRITE",
    "READ",
    "CLOSE",
    "LSTAT",
    "FSTAT",
    "FSETSTAT",
    "posix-rename@openssh.com",
];

struct Put {
    name: String,
    over: bool,
    /// All states that the source had.
    sources: Vec<Vec<u8>>,
}

struct Get {
    name: String,
    sources: Vec<Vec<u8>>,
}

struct Run {
    w: World,
    puts: BTreeMap<JobId, Put>,
    gets: BTreeMap<JobId, Get>,
    all: Vec<JobId>,
    seed: u64,
    openssh: bool,
    lost: bool,
    stalled: bool,
}

impl Run {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let options = SchedulerOptions {
            split: u.ratio(9, 10)?,
            split_from: u.int_in_range(1..=200_000)?,
            least: u.int_in_range(1..=60_000)?,
            most: u.int_in_range(60_000..=300_000)?,
            unit: *u.choose(&[1, 1000, 32_768])?,
            one_handle: u.ratio(1, 8)?,
            overtake: u.ratio(9, 10)?,
            cuts: u.ratio(1, 2)?,
        };
        let seed = u.arbitrary()?;
        let mut w = World::new(options, seed % 1000);
        w.disk.latency = Duration::from_millis(u.int_in_range(0..=20)?);
        let jitter = Duration::from_millis(u.int_in_range(0..=60)?);
        w.disk.jitter = Some((Rng::new(seed), jitter));
        w.disk.seekable = u.ratio(7, 8)?;
        w.strict = false;
        w.zombies = u.arbitrary()?;
        let mut run = Self {
            w,
            puts: BTreeMap::new(),
            gets: BTreeMap::new(),
            all: Vec::new(),
            seed,
            openssh: u.ratio(3, 4)?,
            lost: false,
            stalled: false,
        };
        for _ in 0..u.int_in_range(1..=4)? {
            run.add_lane(u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
        }
        Ok(run)
    }

    fn add_lane(&mut self, rtt: u8, rate: u8, predict: bool) {
        let link = VirtualLinkOptions {
            delay: Duration::from_millis(u64::from(rtt) / 2),
            bandwidth: [0, 200_000, 2_000_000, 20_000_000][usize::from(rate) % 4],
            ..VirtualLinkOptions::default()
        };
        let server = match self.openssh {
            true => SftpServerProfile::openssh(),
            false => SftpServerProfile::other(),
        };
        self.w.lane_of(link, predict, server);
    }

    fn lane(&self, which: u8) -> Option<LaneId> {
        let lanes = self.w.lanes.len().max(1);
        self.w.lanes.keys().nth(usize::from(which) % lanes).copied()
    }

    fn put(&mut self, len: u32, over: bool, options: FileCopyOptions) {
        let name = format!("f{}", self.all.len());
        if over {
            self.w.place(&name, OLD, 0o644);
        }
        let seed = self.seed.wrapping_add(self.all.len() as u64);
        let data = bytes(len as usize % 900_000, seed);
        let job = self.w.put(data.clone(), &name, options);
        self.all.push(job);
        let sources = vec![data];
        let put = Put {
            name,
            over,
            sources,
        };
        self.puts.insert(job, put);
    }

    fn get(&mut self, len: u32) {
        let name = format!("d{}", self.all.len());
        let seed = self.seed ^ self.all.len() as u64;
        let data = bytes(len as usize % 900_000, seed);
        self.w.place(&name, &data, 0o644);
        let job = self.w.get(&name);
        self.all.push(job);
        let sources = vec![data];
        self.gets.insert(job, Get { name, sources });
    }

    /// Changes the source of a Put; the old content is a prefix of the new one, or the reverse.
    fn change(&mut self, which: u8, how: impl FnOnce(&mut Vec<u8>)) {
        let nth = usize::from(which) % self.puts.len().max(1);
        let Some(put) = self.puts.values_mut().nth(nth) else {
            return;
        };
        let path = PathBuf::from(format!("/src/{}", put.name));
        if let Some(source) = self.w.disk.sources.get_mut(&path) {
            how(&mut source.data);
            put.sources.push(source.data.clone());
        }
    }

    fn replace(&mut self, which: u8, len: u32) {
        let nth = usize::from(which) % self.gets.len().max(1);
        let Some(get) = self.gets.values_mut().nth(nth) else {
            return;
        };
        // Once only: a lane that copies a whole file opens it again if it is longer than announced.
        if get.sources.len() > 1 {
            return;
        }
        let seed = self.seed ^ 99 ^ get.sources.len() as u64;
        let data = bytes(len as usize % 900_000, seed);
        self.w.fs.place(&get.name, Kind::File(data.clone()), 0o644);
        if let Some(node) = self.w.fs.at_mut(&get.name) {
            node.times = (5, 5 + get.sources.len() as u32);
        }
        get.sources.push(data);
    }

    fn step(&mut self, op: Op) {
        let many = self.all.len() > 12;
        match op {
            Op::Put { .. } | Op::Get { .. } | Op::MakeDirs { .. } | Op::List if many => {}
            Op::Put {
                len,
                over,
                fsync,
                preserve,
            } => {
                let options = FileCopyOptions {
                    fsync,
                    preserve,
                    existing: ExistingTargetPolicy {
                        fresh: !over && len % 2 == 0,
                        ..ExistingTargetPolicy::default()
                    },
                    ..FileCopyOptions::default()
                };
                self.put(len, over, options);
            }
            Op::Get { len } => self.get(len),
            Op::MakeDirs { depth } => {
                let mut path = format!("dir{}", self.all.len());
                for _ in 0..1 + depth % 4 {
                    let kind = JobKind::MakeDir {
                        path: remote(&path),
                        mode: 0o755,
                        follow: true,
                    };
                    let job = self.w.job(kind, None);
                    self.all.push(job);
                    path.push_str("/d");
                }
            }
            Op::List => {
                let path = remote(".");
                let job = self.w.job(JobKind::List { path, most: None }, None);
                self.all.push(job);
            }
            Op::Run { ms } => self.w.run_for(Duration::from_millis(u64::from(ms % 700))),
            Op::AddLane { rtt, rate, predict } if self.w.lanes.len() < 6 => {
                self.add_lane(rtt, rate, predict);
            }
            Op::AddLane { .. } => {}
            Op::Lose { which } => {
                if let Some(lane) = self.lane(which) {
                    self.lost = true;
                    self.w.lose(lane);
                }
            }
            Op::Stall { which, sure } if sure < 100 => {
                let lane = self.lane(which);
                if let Some(at) = lane.and_then(|lane| self.w.lanes.get_mut(&lane)) {
                    self.stalled = true;
                    at.stalled = true;
                }
            }
            Op::Stall { .. } => {}
            Op::Retire { which } => {
                if let Some(lane) = self.lane(which) {
                    self.w.spread.retire(lane);
                }
            }
            Op::Refuse {
                which,
                kind,
                nth,
                code,
            } => {
                let codes = [
                    StatusCode::FAILURE,
                    StatusCode::PERMISSION_DENIED,
                    StatusCode::NO_SUCH_FILE,
                ];
                let act = Act::Status(codes[usize::from(code) % 3]);
                let kind = KINDS.get(usize::from(kind) % KINDS.len()).copied();
                let nth = usize::from(nth % 8);
                if let Some(lane) = self.lane(which) {
                    self.w.inject(lane, InjectedFault { kind, nth, act });
                }
            }
            Op::Spoil { which, nth, id } => {
                self.lost = true;
                let act = if id { Act::OtherId } else { Act::OtherHandle };
                let nth = usize::from(nth % 40);
                let kind = (!id).then_some("OPEN");
                if let Some(lane) = self.lane(which) {
                    self.w.inject(lane, InjectedFault { kind, nth, act });
                }
            }
            Op::BreakDisk { nth } => {
                self.w.disk.faults.insert(nth.into());
            }
            Op::Cut { which, to } => {
                self.change(which, |data| data.truncate(to as usize % 900_000))
            }
            Op::Grow { which } => self.change(which, |data| data.extend(bytes(70_000, 3))),
            Op::Replace { which, len } => self.replace(which, len),
            Op::Cancel { sure } if sure < 30 => {
                self.w.spread.cancel(self.w.now, "interrupted");
                for at in self.w.lanes.values_mut() {
                    at.lane.cancel(self.w.now, "interrupted");
                }
            }
            Op::Cancel { .. } => {}
        }
    }

    fn finish(&mut self) {
        // At least one lane has to work for what is left, listings too.
        for at in self.w.lanes.values_mut() {
            at.stalled &= self.openssh;
        }
        self.add_lane(20, 0, true);
        self.add_lane(20, 0, false);
        self.w.run();
    }

    fn judge(&self) -> usize {
        let w = &self.w;
        let mut ended: BTreeMap<JobId, usize> = BTreeMap::new();
        let mut told = String::new();
        for (_, event) in &w.events {
            let event = match event {
                SchedulerEvent::Lane(event) => event,
                SchedulerEvent::Restarted(id) => {
                    assert!(!ended.contains_key(id), "{id:?} restarted behind its end");
                    continue;
                }
            };
            assert!(
                !ended.contains_key(&event.job()),
                "{event:?} behind the end"
            );
            match event {
                LaneEvent::Warning(_, text) => told.push_str(text),
                LaneEvent::Failed(_, fault) => told.push_str(&fault.what),
                _ => {}
            }
            if event.is_last() {
                *ended.entry(event.job()).or_default() += 1;
            }
        }
        assert_eq!(ended.len(), self.all.len(), "jobs without an end");
        for (id, put) in &self.puts {
            self.judge_put(*id, put);
        }
        for (id, get) in &self.gets {
            let got = w.got(&get.name);
            match got {
                Some(got) => assert!(
                    get.sources.iter().any(|s| s == got),
                    "{} is a mixture of {} states",
                    get.name,
                    get.sources.len()
                ),
                None => assert!(!w.done(*id), "{} is missing", get.name),
            }
        }
        for temporary in w.temporaries() {
            // A server may carry out requests of a lost channel later.
            let late = self.lost || self.stalled;
            assert!(
                late || told.contains(&temporary),
                "{temporary} is left: {told}"
            );
        }
        assert_eq!((w.disk.open_sources(), w.disk.targets()), (0, 0));
        for at in w.lanes.values().filter(|at| !at.stalled) {
            assert!(at.lane.is_idle(), "{:?}", at.lane.stats());
        }
        self.all.iter().filter(|id| w.done(**id)).count()
    }

    fn judge_put(&self, id: JobId, put: &Put) {
        let w = &self.w;
        let stands = w.fs.data(&put.name);
        let plain = put.sources.len() == 1;
        if w.done(id) {
            let stands = stands.unwrap_or_else(|| panic!("{} is missing", put.name));
            // If the source changed, each part has the content of some moment.
            if plain {
                assert!(stands == put.sources[0], "{} is wrong", put.name);
                assert_eq!(w.progress(id), stands.len() as u64, "{}", put.name);
            } else {
                let longest = put.sources.iter().map(Vec::len).max().unwrap_or(0);
                assert!(stands.len() <= longest, "{} is too long", put.name);
            }
            return;
        }
        let old = stands == put.over.then_some(OLD);
        let whole = put.sources.iter().any(|s| stands == Some(s.as_slice()));
        // Without posix-rename, the old file is removed first.
        let gone = !self.openssh && stands.is_none();
        let in_place = w.failed(id).is_some_and(|why| why.contains("in place"));
        assert!(
            old || whole || gone || in_place || !plain,
            "{} is neither old nor new: {:?}",
            put.name,
            w.failed(id)
        );
    }
}

#[test]
fn lanes_that_come_and_go_leave_no_wrong_file() {
    let mut done = 0;
    operate(512, |u| {
        let mut run = Run::new(u)?;
        run.put(u.arbitrary()?, u.arbitrary()?, FileCopyOptions::default());
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
