//! Copies between two hosts through this machine, in virtual time: the sessions with both hosts,
//! and the real buffers between them.
//!
//! A failing seed prints the line that repeats it. `LONGHAUL_RELAYED=FIRST..END` chooses the seeds.

mod trees;

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use sftp::StatusCode;
use testkit::sftp_model::{Rng, SftpServerProfile};

use self::trees::RelayedTrees;
use super::faults::SimFault;
use super::session::Shape;
use super::world::{Shared, SimEdge, SimHost, World};
use super::{End, all_pass, drive, passes, range};
use crate::copy::limits::CopyLimits;
use crate::copy::operand_copy::OperandCopy;
use crate::copy::{CopyLocation, CopyOptions, CopyRequest, DeltaUse, HostId};
use crate::report::{CopyEvent, CopyOutcome, CopySummary, ProgressCounters};

/// Runs after the last fault in which a copy must complete.
const RUNS: usize = 6;

/// Requests that a server may refuse once.
const REQUESTS: [&str; 12] = [
    "OPEN",
    "WRITE",
    "CLOSE",
    "READ",
    "FSETSTAT",
    "posix-rename@openssh.com",
    "RENAME",
    "REMOVE",
    "STAT",
    "LSTAT",
    "put-file@longhaul",
    "get-file@longhaul",
];

/// Kind of SFTP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    OpenSsh,
    Ours,
    /// OpenSSH's SFTP server behind an SSH server of another name, as with Dropbear.
    Dropbear,
    /// A server without extensions.
    Plain,
    /// A server that refuses all renames, so that every file is written under its final name.
    NoRename,
}

impl Server {
    fn any(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0..=2 => Self::OpenSsh,
            3 => Self::Ours,
            4 => Self::Dropbear,
            5 | 6 => Self::Plain,
            _ => Self::NoRename,
        }
    }

    fn host(self, rng: &mut Rng) -> SimHost {
        let mut profile = match self {
            Self::OpenSsh | Self::Dropbear | Self::NoRename => SftpServerProfile::openssh(),
            Self::Ours => SftpServerProfile::ours(),
            Self::Plain => SftpServerProfile::other(),
        };
        if self == Self::NoRename {
            let refused = &mut profile.restrictions.refused;
            for request in ["RENAME", "posix-rename@openssh.com"] {
                refused.insert(request, StatusCode::PERMISSION_DENIED);
            }
        }
        let shape = Shape {
            connections: 1 + rng.below(3) as u32,
            lanes: 1 + rng.below(2) as u32,
            delay: Duration::from_millis([1, 10, 50][rng.below(3) as usize]),
            bandwidth: [3_000_000, 30_000_000, 1_000_000_000][rng.below(3) as usize],
            predict: rng.below(4) > 0,
            openssh: matches!(self, Self::OpenSsh | Self::NoRename),
            cut_from: 1 << 20,
            worth: 1 << 18,
            depth: 512 << 10,
        };
        SimHost::new(shape, profile)
    }
}

/// Fault of a copy between two hosts.
#[derive(Clone, Copy, Debug)]
struct RelayedFault {
    step: u64,
    host: usize,
    fault: SimFault,
}

impl RelayedFault {
    fn any(rng: &mut Rng, step: u64) -> Self {
        let request = REQUESTS[rng.below(REQUESTS.len() as u64) as usize];
        let code = match rng.below(2) {
            0 => StatusCode::FAILURE,
            _ => StatusCode::PERMISSION_DENIED,
        };
        let fault = match rng.below(22) {
            0..=4 => SimFault::ConnectionLost,
            5 | 6 => SimFault::HostLost,
            7..=10 => SimFault::Refused(request, code),
            11 => SimFault::HostFull,
            12 => SimFault::Interrupted,
            13 => SimFault::HostRestarted,
            14..=16 => SimFault::Killed,
            17 => SimFault::LocalRestarted,
            18 => SimFault::HostClock([-5, 7200][rng.below(2) as usize]),
            _ => SimFault::SourceChanged(rng.next_u64()),
        };
        let host = rng.below(2) as usize;
        Self { step, host, fault }
    }
}

/// A copy between two hosts that one seed describes.
struct RelayedCase {
    servers: [Server; 2],
    options: CopyOptions,
    faults: Vec<RelayedFault>,
    /// The target's machine has lost its power, and with it data that were not synced.
    power_lost: bool,
    /// The power was lost during the run that goes on.
    power_lost_now: bool,
    /// The target's server has refused a request, so that a file may be written in place.
    refused: bool,
    world: Shared,
    trees: RelayedTrees,
    told: Rc<RefCell<Vec<String>>>,
    /// Names of the files that have failed in the run.
    failed: Rc<RefCell<Vec<String>>>,
}

impl RelayedCase {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7265_6c61_7965_6400);
        let servers = [Server::any(&mut rng), Server::any(&mut rng)];
        let options = CopyOptions {
            recursive: true,
            preserve: rng.below(3) == 0,
            fsync: rng.below(5) == 0,
            verify: rng.below(5) == 0,
            inplace: rng.below(15) == 0,
            journal: rng.below(6) > 0,
            delta: DeltaUse::Never,
            ..CopyOptions::default()
        };
        let limits = CopyLimits {
            relay_held: [512 << 10, 1 << 20, 8 << 20][rng.below(3) as usize],
            relay_slack: 320 << 10,
            relay_budget: [2 << 20, 8 << 20, 64 << 20][rng.below(3) as usize],
            journal_bytes: 1 << 20,
            journal_files: 30,
        };
        let mut step = 0;
        let faults = (0..rng.below(5)).map(|_| {
            let most = [30, 200, 1500][rng.below(3) as usize];
            step += 1 + rng.below(most);
            RelayedFault::any(&mut rng, step)
        });
        let faults = faults.collect();
        let hosts = servers.map(|server| server.host(&mut rng));
        let mut world = World::new(hosts.into(), limits, rng.next_u64());
        let trees = RelayedTrees::make(&mut world, &mut rng);
        world.settle();
        Self {
            servers,
            options,
            faults,
            power_lost: false,
            power_lost_now: false,
            refused: false,
            world: Rc::new(RefCell::new(world)),
            trees,
            told: Rc::default(),
            failed: Rc::default(),
        }
    }

    /// Runs the copy until it ends or is killed, with the faults that are due.
    fn run(&mut self) -> End {
        self.world.borrow_mut().next_run(self.options.verify);
        self.trees.next_run();
        self.power_lost_now = false;
        let options = self.options.clone();
        let environment = SimEdge(Rc::clone(&self.world));
        let progress = ProgressCounters::default();
        let (told, failed) = (Rc::clone(&self.told), Rc::clone(&self.failed));
        failed.borrow_mut().clear();
        let mut events = move |event: CopyEvent| match event {
            CopyEvent::Failed { path, reason, .. } => {
                failed.borrow_mut().push(path.to_string());
                told.borrow_mut().push(format!("failed: {path}: {reason}"));
            }
            CopyEvent::Warning { path, message } => {
                let path = path.map(|path| path.to_string()).unwrap_or_default();
                told.borrow_mut()
                    .push(format!("warning: {path}: {message}"));
            }
            _ => {}
        };
        let at = |host, path: &str| CopyLocation::Remote {
            host: HostId(host),
            path: path.as_bytes().to_vec(),
        };
        let request = CopyRequest {
            sources: vec![at(0, "src/.")],
            target: at(1, "dst"),
            options: options.clone(),
        };
        let copy = OperandCopy::new(request, &options, &environment, &progress, &mut events);
        let copy = pin!(copy.into_summary());
        let world = Rc::clone(&self.world);
        let summary = drive(&world, copy, || {
            world.borrow().check_buffers();
            self.suffer()
        });
        match summary {
            Some(summary) => End::Over(Box::new(summary)),
            None => End::Killed,
        }
    }

    /// Runs the copy without faults.
    fn run_undisturbed(&mut self) -> Box<CopySummary> {
        self.faults.clear();
        match self.run() {
            End::Over(summary) => summary,
            End::Killed => panic!("nothing kills it"),
        }
    }

    /// Lets the faults happen that are due. Returns false if one has killed the copy.
    fn suffer(&mut self) -> bool {
        let steps = self.world.borrow().steps;
        let due = self.faults.first().filter(|next| next.step <= steps);
        let Some(RelayedFault { host, fault, .. }) = due.copied() else {
            return true;
        };
        self.faults.remove(0);
        let mut world = self.world.borrow_mut();
        let power_lost = matches!(fault, SimFault::HostRestarted) && host == 1;
        self.power_lost |= power_lost;
        self.power_lost_now |= power_lost;
        self.refused |= matches!(fault, SimFault::Refused(..)) && host == 1;
        if let SimFault::SourceChanged(nth) = fault {
            self.trees.change(&mut world, nth);
        }
        let line = format!("-- step {steps}, host {host}: {fault:?}");
        self.told.borrow_mut().push(line);
        world.suffer(host, fault)
    }

    /// True if the target refuses each file that has failed: it is read-only there, or the server
    /// renames no file.
    fn may_have_failed(&self) -> bool {
        let failed = self.failed.borrow();
        let mut all = failed.iter();
        self.servers[1] == Server::NoRename || all.all(|path| self.trees.is_read_only(path))
    }

    /// Runs the copy as often as it takes, and checks what it leaves.
    fn check(&mut self) {
        let mut calm = 0;
        loop {
            let end = self.run();
            let in_place =
                self.options.inplace || self.refused || self.servers[1] == Server::NoRename;
            if !self.power_lost {
                let world = self.world.borrow();
                self.trees.check_final_names(&world, in_place);
            }
            let complete = match &end {
                End::Over(summary) => {
                    let line = format!("-- {:?}, {} files", summary.outcome, summary.files);
                    self.told.borrow_mut().push(line);
                    match summary.outcome {
                        CopyOutcome::Complete => true,
                        CopyOutcome::Partial => self.may_have_failed(),
                        _ => false,
                    }
                }
                End::Killed => false,
            };
            // Without a journal the copy does not ask if the host has restarted.
            let unknown = self.power_lost_now && !self.options.journal;
            if complete && !unknown {
                let failed = self.failed.borrow().clone();
                let world = self.world.borrow();
                self.trees.check_complete(&world, &failed);
                if !in_place {
                    self.trees.check_second_names(&world);
                }
                if self.trees.is_steady() {
                    break;
                }
            }
            calm += usize::from(self.faults.is_empty());
            assert!(calm <= RUNS, "it does not complete in {RUNS} runs");
        }
    }
}

/// Runs one seed. Returns false if it fails, and prints the line that repeats it.
fn run_seed(seed: u64) -> bool {
    let mut case = RelayedCase::new(seed);
    let told = Rc::clone(&case.told);
    let about = format!(
        "seed {seed}, {:?}, {:?}\nfaults: {:?}\nto repeat: LONGHAUL_RELAYED={seed}..{} cargo test \
         -p longhaul-transfer --lib copies_between_hosts",
        case.servers,
        case.options,
        case.faults,
        seed + 1
    );
    passes(&told, &about, || case.check())
}

/// Number of tests that share the seeds, so that they run side by side.
const PARTS: u64 = 2;

#[test]
fn copies_between_hosts_end_and_are_right_part_0() {
    run_part(0);
}

#[test]
fn copies_between_hosts_end_and_are_right_part_1() {
    run_part(1);
}

fn run_part(part: u64) {
    let seeds = range("LONGHAUL_RELAYED", 0..1000);
    all_pass(seeds.filter(|seed| seed % PARTS == part), run_seed);
}

/// Bug: a resumed copy with --verify failed each file that the earlier run had completed: its
/// checksum is that of the bytes that pass, and none did. It failed them in every further run.
#[test]
fn a_resumed_copy_could_not_verify_the_files_of_the_earlier_run() {
    let mut resumed = 0;
    for seed in 0..40 {
        let mut case = RelayedCase::new(seed);
        case.options.verify = true;
        case.options.journal = true;
        case.faults = vec![RelayedFault {
            step: 600,
            host: 0,
            fault: SimFault::Killed,
        }];
        if matches!(case.run(), End::Killed) {
            case.check();
            resumed += 1;
        }
    }
    assert!(resumed > 5, "{resumed} copies were resumed");
}

/// Bug: `cp -a` between two hosts failed for each read-only file of its own earlier copy, which
/// `cp -a` from this machine replaced.
#[test]
fn an_archive_copy_between_hosts_did_not_replace_read_only_files() {
    let mut replaced = 0;
    for seed in 0..60 {
        let mut case = RelayedCase::new(seed);
        if case.options.inplace || case.servers[1] == Server::NoRename {
            continue;
        }
        case.options.preserve = true;
        case.options.archive = true;
        case.world.borrow_mut().hosts[1].host.fs.ignores_modes = false;
        let summary = case.run_undisturbed();
        let told = case.told.borrow();
        assert_eq!(summary.failed, 0, "seed {seed}: {told:?}");
        case.trees.check_complete(&case.world.borrow(), &[]);
        replaced += case.trees.read_only_files();
    }
    assert!(replaced > 20, "{replaced} files were read-only");
}

/// Bug: every large file was tried eight times and failed, since the upload that began again under the
/// final name counted as one whose connection was lost.
#[test]
fn files_are_written_in_place_at_a_target_that_renames_nothing() {
    let mut copied = 0;
    for seed in 0..200 {
        let mut case = RelayedCase::new(seed);
        if case.servers[1] != Server::NoRename {
            continue;
        }
        let summary = case.run_undisturbed();
        let told = case.told.borrow();
        let failed = case.failed.borrow();
        let mut failed = failed.iter();
        assert!(
            failed.all(|path| case.trees.needs_rename(path)),
            "seed {seed}: {told:#?}"
        );
        copied += summary.files;
    }
    assert!(copied > 20, "{copied} files were copied");
}

/// Bug: an upload whose temporary was refused for any reason, such as a full disk, began again under
/// the final name, and cut the old file.
#[test]
fn a_refused_temporary_of_a_relayed_file_leaves_the_old_file_whole() {
    for server in [Server::OpenSsh, Server::Plain] {
        let mut linked = 0;
        for seed in 0..120 {
            let mut case = RelayedCase::new(seed);
            if case.servers[1] != server || case.options.inplace {
                continue;
            }
            let of_target = |case: &RelayedCase, code| {
                let restrictions = &mut case.world.borrow_mut().hosts[1]
                    .host
                    .personality
                    .restrictions;
                restrictions.exclusive = code;
            };
            of_target(&case, Some(StatusCode::FAILURE));
            let summary = case.run_undisturbed();
            case.trees.check_final_names(&case.world.borrow(), false);
            linked += case.trees.check_other_names(&case.world.borrow());
            let told = case.told.borrow();
            if server == Server::OpenSsh {
                assert_eq!(summary.files, 0, "seed {seed}: {told:#?}");
            } else {
                // The flag EXCL is left out from then on.
                assert_eq!(summary.failed, case.failed.borrow().len() as u64);
                let mut failed = case.failed.borrow().clone();
                failed.retain(|path| !case.trees.needs_rename(path));
                assert!(failed.is_empty(), "seed {seed}: {told:#?}");
            }
        }
        assert!(linked > 5, "{linked} files have a second name");
    }
}
