//! Whole copies in virtual time: the real copy, scheduler, lanes and journal format between two
//! simulated machines, with faults. Equal seeds give equal runs.
//!
//! A failing seed prints the line that repeats it. `LONGHAUL_SEEDS=FIRST..END` chooses the seeds.

mod changes;
mod commands;
mod disk;
mod durable;
mod faults;
mod files;
mod filtered;
mod folding;
mod in_place;
mod journal;
mod journals;
mod linked_names;
mod links;
mod metadata;
mod one_machine;
mod patterns;
mod refusals;
mod refused_requests;
mod relay_queue;
mod relayed;
mod removed_trees;
mod resumed;
mod scenario;
mod session;
mod several_hosts;
mod sources;
mod stops;
mod sum_program;
mod targets;
mod temp_dir;
mod trees;
mod verified;
mod world;

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sftp::StatusCode;
use testkit::sftp_model::{Rng, SftpServerProfile};

use self::faults::SimFault;
use self::session::Shape;
use self::trees::{Form, Trees};
use self::world::{Shared, SimEdge, SimHost, World};
use super::limits::CopyLimits;
use super::operand_copy::OperandCopy;
use super::{CopyLocation, CopyOptions, CopyRequest, DeltaUse};
use crate::report::{CopyEvent, CopyOutcome, CopySummary, ProgressCounters};

/// Faults of one seed.
const FAULTS: usize = 4;
/// Runs after the last fault in which a copy must complete.
const RUNS: usize = 6;
/// Bytes that may be sent again for each fault.
const AGAIN: u64 = 64 << 20;

/// A copy that one seed describes.
struct Case {
    seed: u64,
    upload: bool,
    form: Form,
    target: CopyLocation,
    options: CopyOptions,
    /// Faults, each with the step at which it happens.
    faults: Vec<(u64, SimFault)>,
    /// Changes of the target that happen before the next run.
    between: Vec<SimFault>,
    /// Number of faults that have happened.
    happened: u64,
    /// Every file is durable before it gets its final name.
    durable: bool,
    world: Shared,
    trees: Trees,
    told: Rc<RefCell<Vec<String>>>,
}

/// End of one run.
enum End {
    Over(Box<CopySummary>),
    Killed,
}

impl Case {
    fn new(seed: u64) -> Self {
        Self::on_path(seed, |shape| shape)
    }

    /// Case of this seed on a path whose shape is changed.
    fn on_path(seed: u64, change: impl FnOnce(Shape) -> Shape) -> Self {
        let mut rng = Rng::new(seed);
        let upload = rng.below(2) == 0;
        let personality = match rng.below(6) {
            0..=2 => SftpServerProfile::openssh(),
            3 | 4 => SftpServerProfile::ours(),
            _ => SftpServerProfile::other(),
        };
        let shape = Shape {
            connections: 1 + rng.below(3) as u32,
            lanes: 1 + rng.below(2) as u32,
            delay: Duration::from_millis([1, 10, 50][rng.below(3) as usize]),
            bandwidth: [10_000_000, 100_000_000, 1_000_000_000][rng.below(3) as usize],
            predict: rng.below(4) > 0,
            ..Shape::default()
        };
        let shape = change(shape);
        let options = CopyOptions {
            recursive: true,
            preserve: rng.below(3) == 0,
            fsync: rng.below(4) == 0,
            verify: rng.below(4) == 0,
            journal: true,
            delta: DeltaUse::Never,
            ..CopyOptions::default()
        };
        let large = match rng.below(25) {
            0 => 160 << 20,
            1..=3 => 1 << 20,
            _ => (9 << 20) + rng.below(12 << 20),
        };
        let form = Form::any(&mut rng);
        let mut extensions = personality.extensions.iter();
        let syncs = extensions.any(|(name, _)| name == b"fsync@openssh.com");
        let durable = options.fsync && (syncs || !upload);
        let mut step = 0;
        let faults = (0..FAULTS).map(|_| {
            let most = [50, 500, 4000][rng.below(3) as usize];
            step += 1 + rng.below(most);
            (step, SimFault::any(&mut rng))
        });
        let faults = faults.collect();
        let mut world = World::new(
            vec![SimHost::new(shape, personality)],
            CopyLimits::default(),
            rng.next_u64(),
        );
        let trees = Trees::make(&mut world, &mut rng, upload, form, large);
        world.settle();
        Self {
            seed,
            upload,
            form,
            target: form.target(upload),
            options,
            faults,
            between: Vec::new(),
            happened: 0,
            durable,
            world: Rc::new(RefCell::new(world)),
            trees,
            told: Rc::default(),
        }
    }

    /// Case of this seed in which the process is killed at step `at` and nothing else happens.
    fn stopped(seed: u64, at: Option<u64>) -> Self {
        let mut case = Self::new(seed);
        let end = match seed % 3 {
            0 => SimFault::LocalRestarted,
            _ => SimFault::Killed,
        };
        case.faults = at.map(|at| (at, end)).into_iter().collect();
        case
    }

    /// Has the server refuse all requests of this name.
    fn refuse(&self, request: &'static str, code: StatusCode) {
        let restrictions = &mut self.world.borrow_mut().hosts[0]
            .host
            .personality
            .restrictions;
        restrictions.refused.insert(request, code);
    }

    fn request(&self) -> CopyRequest {
        CopyRequest {
            sources: vec![self.form.source(self.upload)],
            target: self.target.clone(),
            options: self.options.clone(),
        }
    }

    /// Runs the copy until it ends or is killed, with the faults that are due.
    fn run(&mut self) -> End {
        self.world.borrow_mut().next_run(self.options.verify);
        self.trees.next_run();
        for change in std::mem::take(&mut self.between) {
            let mut world = self.world.borrow_mut();
            self.trees.change_target(&mut world, change);
        }
        let options = self.options.clone();
        let environment = SimEdge(Rc::clone(&self.world));
        let progress = ProgressCounters::default();
        let told = Rc::clone(&self.told);
        let mut events = move |event: CopyEvent| match event {
            CopyEvent::Failed { path, reason, .. } => {
                told.borrow_mut().push(format!("failed: {path}: {reason}"));
            }
            CopyEvent::Warning { path, message } => {
                let path = path.map(|path| path.to_string()).unwrap_or_default();
                told.borrow_mut()
                    .push(format!("warning: {path}: {message}"));
            }
            CopyEvent::Resumed { done, unproven, .. } => {
                told.borrow_mut()
                    .push(format!("resumed: {done} {unproven}"));
            }
            _ => {}
        };
        let request = self.request();
        let copy = OperandCopy::new(request, &options, &environment, &progress, &mut events);
        let copy = pin!(copy.into_summary());
        match self.drive(copy) {
            Some(summary) => End::Over(Box::new(summary)),
            None => End::Killed,
        }
    }

    /// Removes what an interrupted run has left at a local target.
    fn discard(&mut self) {
        self.world.borrow_mut().next_run(false);
        let options = self.options.clone();
        let environment = SimEdge(Rc::clone(&self.world));
        let progress = ProgressCounters::default();
        let mut events = |_: CopyEvent| {};
        let request = self.request();
        let copy = OperandCopy::new(request, &options, &environment, &progress, &mut events);
        let discard = pin!(copy.discard());
        assert!(self.drive(discard).is_some(), "nothing kills it");
    }

    /// Drives a run to its end, with the faults that are due. Returns `None` if it is killed.
    fn drive<T>(&mut self, run: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let world = Rc::clone(&self.world);
        drive(&world, run, || {
            let Some(fault) = self.due_fault() else {
                return true;
            };
            let mut world = world.borrow_mut();
            if let SimFault::SourceChanged(nth) = fault {
                self.trees.change(&mut world, nth);
            }
            world.suffer(0, fault)
        })
    }

    /// Temporaries of this machine.
    fn temporaries(&self) -> Vec<String> {
        let names = self.world.borrow().local.borrow().names();
        let is_temporary = |path: &String| {
            let name = path.rsplit('/').next().unwrap_or_default();
            sftp::final_name_in(name.as_bytes()).is_some()
        };
        names.into_iter().filter(is_temporary).collect()
    }

    fn due_fault(&mut self) -> Option<SimFault> {
        let steps = self.world.borrow().steps;
        let (at, fault) = self.faults.first().copied()?;
        (at <= steps).then(|| {
            self.faults.remove(0);
            self.happened += 1;
            self.trees.suffered(fault, self.durable);
            let is_damage = matches!(fault, SimFault::TargetDamaged(_));
            if matches!(fault, SimFault::TargetChanged(_)) || is_damage && self.options.verify {
                self.between.push(fault);
            }
            self.told
                .borrow_mut()
                .push(format!("-- step {steps}: {fault:?}"));
            fault
        })
    }

    /// Runs the copy as often as it takes, and checks what it leaves.
    fn check(&mut self) {
        let mut calm = 0;
        loop {
            let end = self.run();
            self.trees.check_final_names(&self.world.borrow());
            let complete = match &end {
                End::Over(summary) => {
                    let line = format!("-- {:?}, {} files", summary.outcome, summary.files);
                    self.told.borrow_mut().push(line);
                    summary.outcome == CopyOutcome::Complete
                }
                End::Killed => false,
            };
            if complete {
                self.trees.check_complete(&self.world.borrow());
                break;
            }
            calm += usize::from(self.faults.is_empty());
            assert!(calm <= RUNS, "it does not complete in {RUNS} runs");
        }
        let moved = self.world.borrow().moved(self.upload);
        let again = moved.saturating_sub(self.trees.size());
        let faults = self.happened;
        // Work of a slow lane is repeated on another one without any fault.
        let allowed = (faults + 1) * AGAIN + self.trees.changed_bytes();
        assert!(
            again <= allowed,
            "{again} bytes were sent again for {faults} faults"
        );
    }
}

/// Drives a run to its end. `suffer` lets the faults happen that are due before each step, and
/// returns false once one has killed the run, which gives `None`.
fn drive<T>(
    world: &Shared,
    mut run: Pin<&mut impl Future<Output = T>>,
    mut suffer: impl FnMut() -> bool,
) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(result) = run.as_mut().poll(&mut context) {
            return Some(result);
        }
        loop {
            if !suffer() {
                return None;
            }
            if world.borrow().is_ready() {
                break;
            }
            let goes_on = world.borrow_mut().step();
            assert!(
                goes_on,
                "the copy waits for nothing\n{}",
                world.borrow().unfinished()
            );
            assert!(world.borrow().steps < 3_000_000, "the copy does not end");
        }
    }
}

/// Runs one seed. Returns false if it fails.
fn run_seed(seed: u64) -> bool {
    run_case(
        &mut Case::new(seed),
        &format!(
            "LONGHAUL_SEEDS={seed}..{} cargo test -p longhaul-transfer --lib copies_survive",
            seed + 1
        ),
    )
}

/// Runs a case. A failure prints the line that repeats it.
fn run_case(case: &mut Case, repeat: &str) -> bool {
    let told = Rc::clone(&case.told);
    let about = format!(
        "seed {}, upload {}, {:?}, {:?}\nfaults: {:?}\nto repeat: {repeat}",
        case.seed, case.upload, case.form, case.options, case.faults
    );
    passes(&told, &about, || case.check())
}

/// Runs `check`. If it fails, prints what was told last and `about`, and returns false.
fn passes(told: &RefCell<Vec<String>>, about: &str, check: impl FnOnce()) -> bool {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    if result.is_err() {
        let lines = told.borrow();
        let last = lines.len().saturating_sub(25);
        eprintln!("----\n{}\n{about}", lines[last..].join("\n"));
    }
    result.is_ok()
}

/// Range of numbers in an environment variable, or `otherwise`.
fn range(name: &str, otherwise: Range<u64>) -> Range<u64> {
    let given = std::env::var(name).ok();
    let given = given.as_deref().and_then(|range| range.split_once(".."));
    match given {
        Some((first, end)) => first.parse().unwrap()..end.parse().unwrap(),
        None => otherwise,
    }
}

/// Number of tests that share the seeds, so that they run side by side.
const PARTS: u64 = 4;

#[test]
fn copies_survive_faults_at_every_event_part_0() {
    survive(0);
}

#[test]
fn copies_survive_faults_at_every_event_part_1() {
    survive(1);
}

#[test]
fn copies_survive_faults_at_every_event_part_2() {
    survive(2);
}

#[test]
fn copies_survive_faults_at_every_event_part_3() {
    survive(3);
}

fn survive(part: u64) {
    let seeds = range("LONGHAUL_SEEDS", 0..200);
    all_pass(seeds.filter(|seed| seed % PARTS == part), run_seed);
}

/// Runs all seeds, and fails if one does.
#[track_caller]
fn all_pass(seeds: impl Iterator<Item = u64>, run_seed: fn(u64) -> bool) {
    let failed: Vec<u64> = seeds.filter(|seed| !run_seed(*seed)).collect();
    assert!(
        failed.is_empty(),
        "{} seeds failed: {failed:?}",
        failed.len()
    );
}

/// Seeds that have found errors, each with the error.
#[test]
fn seeds_that_found_errors_pass() {
    // The journal called files durable that a server without fsync@openssh.com had not synced.
    let not_synced = 274;
    // The copy waited for ever for a file that ended after the host was seen to have restarted.
    let never_compared = 479;
    for seed in [not_synced, never_compared] {
        assert!(run_seed(seed), "seed {seed} fails");
    }
}

/// Kills a copy at every event, or at every nth one, and resumes it.
#[test]
fn copies_stopped_at_an_event_resume() {
    let seeds = range("LONGHAUL_STOPPED", 0..6);
    let whole = std::env::var("LONGHAUL_STOPPED").is_ok();
    let mut failed = Vec::new();
    for seed in seeds {
        let mut clean = Case::stopped(seed, None);
        assert!(run_case(&mut clean, "without faults"));
        let steps = clean.world.borrow().steps;
        let each = if whole { 1 } else { 1 + steps / 24 };
        for at in (1 + seed % each..steps).step_by(each as usize) {
            let repeat = format!(
                "LONGHAUL_STOPPED={seed}..{} cargo test -p longhaul-transfer --lib copies_stopped",
                seed + 1
            );
            if !run_case(&mut Case::stopped(seed, Some(at)), &repeat) {
                failed.push((seed, at));
            }
        }
    }
    assert!(failed.is_empty(), "stopped at these events: {failed:?}");
}

/// Temporaries of a target that was named by an absolute path stayed: they were looked for below
/// the current directory.
#[test]
fn a_discarded_copy_leaves_no_temporary() {
    let mut discarded = 0;
    for seed in 0..60 {
        for target in ["dst", "/home/u/dst"] {
            let mut case = Case::new(seed);
            case.faults = vec![(1000, SimFault::Killed)];
            if case.upload {
                continue;
            }
            case.target = CopyLocation::Local(PathBuf::from(target));
            let is_killed = matches!(case.run(), End::Killed);
            // A journal is begun once a copy is large enough.
            let has_journal = case.world.borrow().journal.borrow().exists();
            if !is_killed || !has_journal || case.temporaries().is_empty() {
                continue;
            }
            case.discard();
            assert_eq!(case.temporaries(), [""; 0], "seed {seed}, {target}");
            discarded += 1;
        }
    }
    assert!(discarded > 2, "{discarded} cases had temporaries");
}

/// Bug: after an interrupt the copy waited for the answers to all data in flight, which took
/// seconds on a slow path.
#[test]
fn an_interrupted_copy_waited_for_all_data_in_flight() {
    let mut interrupted = 0;
    for seed in 0..40 {
        let mut case = Case::on_path(seed, |shape| Shape {
            delay: Duration::from_millis(75),
            bandwidth: 300_000,
            ..shape
        });
        case.faults = vec![(1000, SimFault::Interrupted)];
        case.options.verify = false;
        // A copy that is too small for a journal removes its temporaries first.
        let has_journal = match case.run() {
            End::Over(summary) => summary.journal.is_some(),
            End::Killed => false,
        };
        let world = case.world.borrow();
        let Some(at) = world.cancelled_at.filter(|_| has_journal) else {
            continue;
        };
        let took = world.now.saturating_duration_since(at);
        assert!(took <= Duration::from_secs(1), "seed {seed}: {took:?}");
        interrupted += 1;
    }
    assert!(interrupted > 3, "{interrupted} copies had a journal");
}

/// Bug: with --fsync the summary called files synced that a server without fsync@openssh.com had
/// not synced.
#[test]
fn files_that_the_server_could_not_sync_were_called_synced() {
    let mut seen = [0, 0];
    for seed in 0..60 {
        let mut case = Case::new(seed);
        case.faults = Vec::new();
        case.options.fsync = true;
        let world = case.world.borrow();
        let mut extensions = world.hosts[0].host.personality.extensions.iter();
        let syncs = !case.upload || extensions.any(|(name, _)| name == b"fsync@openssh.com");
        drop(world);
        let End::Over(summary) = case.run() else {
            panic!("seed {seed}: the copy was killed");
        };
        if summary.failed == 0 && summary.files > 0 {
            assert_eq!(summary.synced, syncs, "seed {seed}");
            seen[usize::from(syncs)] += 1;
        }
    }
    assert!(seen[0] > 2 && seen[1] > 2, "{seen:?}");
}
