//! Copies of small trees that a test describes, in any direction, with the faults that it chooses.
//!
//! The journal begins with the first file, so that small trees take every way through a resumed
//! copy.

mod outcome;
mod tree;

use std::cell::RefCell;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use sftp::StatusCode;
use testkit::sftp_model::{Fs, Kind, Rng, SftpServerProfile};

pub(super) use self::outcome::RunReport;
pub(super) use self::tree::{TreeEntry, TreeSpec, leftovers, remove_tree, tree_at};
use super::drive;
use super::faults::SimFault;
use super::session::Shape;
use super::world::{Shared, SimEdge, SimHost, World};
use crate::copy::limits::CopyLimits;
use crate::copy::operand_copy::OperandCopy;
use crate::copy::{CopyLocation, CopyOptions, CopyRequest, DeltaUse, HostId};
use crate::report::{CopyEvent, CopyOutcome, ProgressCounters};

/// Time of the sources, long before the copy.
const OLD: u32 = 1_600_000_000;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Upload,
    Download,
    /// From host 0 to host 1, through this machine.
    Relayed,
}

impl Direction {
    pub(super) const ALL: [Self; 3] = [Self::Upload, Self::Download, Self::Relayed];

    /// Host of the sources; `None` for this machine.
    fn source(self) -> Option<usize> {
        match self {
            Self::Upload => None,
            Self::Download | Self::Relayed => Some(0),
        }
    }

    /// Host of the target; `None` for this machine.
    fn target(self) -> Option<usize> {
        match self {
            Self::Upload => Some(0),
            Self::Download => None,
            Self::Relayed => Some(1),
        }
    }
}

/// A copy of entries that a test places.
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) direction: Direction,
    pub(super) options: CopyOptions,
    /// Sources, as the command names them.
    pub(super) sources: Vec<String>,
    /// Sources after these, on any machine.
    pub(super) other_sources: Vec<CopyLocation>,
    pub(super) target: String,
    /// Faults, each with the step and the host of its effect.
    pub(super) faults: Vec<(u64, usize, SimFault)>,
    pub(super) world: Shared,
    pub(super) rng: Rng,
}

impl Scenario {
    /// Recursive copy of `src` to `dst` with random servers and paths.
    pub(super) fn new(seed: u64, direction: Direction) -> Self {
        let mut rng = Rng::new(seed ^ 0x7363_656e_6172_696f);
        let profiles = [0, 1].map(|_| match rng.below(6) {
            0..=2 => SftpServerProfile::openssh(),
            3 | 4 => SftpServerProfile::ours(),
            _ => SftpServerProfile::other(),
        });
        Self::with_servers(seed, direction, profiles)
    }

    /// Recursive copy of `src` to `dst` with these servers.
    pub(super) fn with_servers(
        seed: u64,
        direction: Direction,
        profiles: [SftpServerProfile; 2],
    ) -> Self {
        let mut rng = Rng::new(seed ^ 0x7363_656e_6172_6970);
        let shapes = [0, 1].map(|_| Shape {
            connections: 1 + rng.below(2) as u32,
            lanes: 1 + rng.below(2) as u32,
            delay: Duration::from_millis([1, 10, 50][rng.below(3) as usize]),
            bandwidth: [300_000, 10_000_000, 1_000_000_000][rng.below(3) as usize],
            predict: rng.below(4) > 0,
            cut_from: 1 << 20,
            worth: 1,
            ..Shape::default()
        });
        let hosts = shapes.into_iter().zip(profiles);
        let hosts = hosts.map(|(shape, profile)| {
            let openssh = !profile.extensions.is_empty();
            // All servers of today take the arguments of SYMLINK in OpenSSH's order.
            let profile = SftpServerProfile {
                draft_symlink: false,
                ..profile
            };
            SimHost::new(Shape { openssh, ..shape }, profile)
        });
        let limits = CopyLimits {
            journal_bytes: 1,
            journal_files: 1,
            ..CopyLimits::default()
        };
        let options = CopyOptions {
            recursive: true,
            journal: true,
            delta: DeltaUse::Never,
            ..CopyOptions::default()
        };
        let world = World::new(hosts.collect(), limits, rng.next_u64());
        Self {
            seed,
            direction,
            options,
            sources: vec!["src".to_owned()],
            other_sources: Vec::new(),
            target: "dst".to_owned(),
            faults: Vec::new(),
            world: Rc::new(RefCell::new(world)),
            rng,
        }
    }

    /// Names the copy in messages of tests.
    pub(super) fn name(&self) -> String {
        format!("seed {}, {:?}", self.seed, self.direction)
    }

    /// Makes all hosts this machine, which is reached by other names.
    pub(super) fn put_on_one_machine(&self) {
        for host in &mut self.world.borrow_mut().hosts {
            host.host.is_this_machine = true;
        }
    }

    fn with_fs<T>(&self, host: Option<usize>, act: impl FnOnce(&mut Fs) -> T) -> T {
        let mut world = self.world.borrow_mut();
        let is_other = |host: &usize| !world.hosts[*host].host.is_this_machine;
        match host.filter(is_other) {
            Some(host) => act(&mut world.hosts[host].host.fs),
            None => {
                let local = Rc::clone(&world.local);
                drop(world);
                act(&mut local.borrow_mut())
            }
        }
    }

    /// Looks at the files of the host of this number, or of this machine, or changes them.
    pub(super) fn at<T>(&self, host: Option<usize>, act: impl FnOnce(&mut Fs) -> T) -> T {
        self.with_fs(host, act)
    }

    /// Places an old entry on the host of this number, or on this machine.
    pub(super) fn place_at(&self, host: Option<usize>, path: &str, kind: Kind, mode: u32) {
        self.with_fs(host, |fs| place(fs, path, kind, mode));
    }

    /// Looks at the files of the source's machine, or changes them.
    pub(super) fn at_source<T>(&self, act: impl FnOnce(&mut Fs) -> T) -> T {
        self.with_fs(self.direction.source(), act)
    }

    /// Looks at the files of the target's machine, or changes them.
    pub(super) fn at_target<T>(&self, act: impl FnOnce(&mut Fs) -> T) -> T {
        self.with_fs(self.direction.target(), act)
    }

    /// Places an old entry at the source.
    pub(super) fn place_source(&self, path: &str, kind: Kind, mode: u32) {
        self.at_source(|fs| place(fs, path, kind, mode));
    }

    /// Places an old entry at the target.
    pub(super) fn place_target(&self, path: &str, kind: Kind, mode: u32) {
        self.at_target(|fs| place(fs, path, kind, mode));
    }

    /// Places a random tree at `src` of the source.
    pub(super) fn place_tree(&mut self, spec: TreeSpec) {
        self.place_tree_at("src", spec);
    }

    /// Places a random tree at the source, or one file.
    pub(super) fn place_tree_at(&mut self, root: &str, spec: TreeSpec) {
        let mut rng = Rng::new(self.rng.next_u64());
        self.at_source(|fs| {
            let clock = std::mem::replace(&mut fs.clock, OLD);
            spec.place(fs, root, &mut rng);
            fs.clock = clock;
        });
    }

    /// Changes the behavior of the target's server. Returns false if the target is this machine.
    pub(super) fn change_server(&self, change: impl FnOnce(&mut SftpServerProfile)) -> bool {
        self.change_server_of(self.direction.target(), change)
    }

    /// Changes the behavior of the source's server. Returns false if the source is this machine.
    pub(super) fn change_source_server(&self, change: impl FnOnce(&mut SftpServerProfile)) -> bool {
        self.change_server_of(self.direction.source(), change)
    }

    fn change_server_of(
        &self,
        host: Option<usize>,
        change: impl FnOnce(&mut SftpServerProfile),
    ) -> bool {
        let Some(host) = host else { return false };
        change(&mut self.world.borrow_mut().hosts[host].host.personality);
        true
    }

    /// Has the target's server refuse all requests of this name.
    pub(super) fn refuse(&self, request: &'static str, code: StatusCode) -> bool {
        self.change_server(|profile| {
            profile.restrictions.refused.insert(request, code);
        })
    }

    /// True if the server of the target has this extension.
    pub(super) fn target_has(&self, extension: &str) -> bool {
        let mut has = false;
        self.change_server(|profile| {
            let mut all = profile.extensions.iter();
            has = all.any(|(name, _)| name == extension.as_bytes());
        });
        has
    }

    fn request(&self) -> CopyRequest {
        let source = |path: &String| location(self.direction.source(), path);
        let sources = self.sources.iter().map(source);
        CopyRequest {
            sources: sources.chain(self.other_sources.clone()).collect(),
            target: location(self.direction.target(), &self.target),
            options: self.options.clone(),
        }
    }

    /// Runs the copy with the faults that are due. Returns `None` if one has killed it.
    pub(super) fn run(&mut self) -> Option<RunReport> {
        self.run_with(|_, _, _| {})
    }

    /// Runs the copy. `change` is called before each step, with its number and what was told.
    pub(super) fn run_with(
        &mut self,
        mut change: impl FnMut(&Self, u64, &RunReport),
    ) -> Option<RunReport> {
        let world = Rc::clone(&self.world);
        world.borrow_mut().next_run(self.options.verify);
        let first = world.borrow().steps;
        let options = self.options.clone();
        let environment = SimEdge(Rc::clone(&world));
        let progress = ProgressCounters::default();
        let told = RefCell::new(RunReport::default());
        let mut events = |event: CopyEvent| told.borrow_mut().note(event);
        let request = self.request();
        let copy = OperandCopy::new(request, &options, &environment, &progress, &mut events);
        let copy = pin!(copy.into_summary());
        let mut faults = std::mem::take(&mut self.faults);
        let summary = drive(&world, copy, || {
            let step = world.borrow().steps - first;
            change(self, step, &told.borrow());
            while let Some((at, host, fault)) = faults.first().copied() {
                if at > step {
                    break;
                }
                faults.remove(0);
                if !world.borrow_mut().suffer(host, fault) {
                    return false;
                }
            }
            true
        });
        self.faults = faults;
        let mut report = told.take();
        report.steps = world.borrow().steps - first;
        report.end(summary?);
        Some(report)
    }

    /// Runs a copy that nothing kills.
    #[track_caller]
    pub(super) fn finish(&mut self) -> RunReport {
        let name = self.name();
        self.run()
            .unwrap_or_else(|| panic!("{name}: nothing kills it"))
    }

    /// Runs a copy that nothing disturbs, and checks that it is complete.
    #[track_caller]
    pub(super) fn complete(&mut self) -> RunReport {
        self.faults.clear();
        let report = self.finish();
        let name = self.name();
        assert_eq!(
            report.outcome(),
            CopyOutcome::Complete,
            "{name}: {report:#?}"
        );
        report
    }

    /// Runs the copy again, up to a limit, until it is complete.
    #[track_caller]
    pub(super) fn repeat_until_complete(&mut self) -> RunReport {
        const RUNS: usize = 5;
        let mut last = None;
        for _ in 0..RUNS {
            match self.run() {
                Some(report) if report.outcome() == CopyOutcome::Complete => return report,
                report => last = report,
            }
        }
        panic!("{}: it does not complete: {last:#?}", self.name());
    }

    /// Number of steps of this copy without faults, which a test makes anew.
    pub(super) fn steps(mut make: impl FnMut() -> Self) -> u64 {
        let mut scenario = make();
        scenario.faults.clear();
        scenario.finish().steps
    }
}

/// Location on the host of this number; `None` for this machine.
pub(super) fn location(host: Option<usize>, path: &str) -> CopyLocation {
    match host {
        Some(host) => CopyLocation::Remote {
            host: HostId(host),
            path: path.as_bytes().to_vec(),
        },
        None => CopyLocation::Local(PathBuf::from(path)),
    }
}

fn place(fs: &mut Fs, path: &str, kind: Kind, mode: u32) {
    let clock = std::mem::replace(&mut fs.clock, OLD);
    fs.place(path, kind, mode);
    fs.clock = clock;
}

/// Contents of a file.
pub(super) fn file(contents: impl AsRef<[u8]>) -> Kind {
    Kind::File(contents.as_ref().to_vec())
}

/// About `points` of the steps from `first` to `steps`, at equal distances.
pub(super) fn sampled(first: u64, steps: u64, points: u64) -> impl Iterator<Item = u64> {
    (first..steps).step_by((steps / points).max(1) as usize)
}

/// A symlink.
pub(super) fn symlink(points_to: &str) -> Kind {
    Kind::Symlink(points_to.as_bytes().to_vec())
}
