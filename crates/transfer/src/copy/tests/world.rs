//! Two machines, a path between them and a clock, as the environment of a copy.

use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use schedule::{Job, RemotePath, TransferDirection};
use sftp::ServerInfo;
use testkit::sftp_model::{Act, Fs, InjectedFault, Kind, Rng, SftpServerProfile, epoch};

use super::faults::SimFault;
use super::files::SimFiles;
use super::journal::{self, SimStore};
use super::session::{Host, Outside, Shape, SimSession};
use crate::connect::ConnectError;
use crate::copy::environment::{
    ConnectedSession, CopyEnvironment, NextEventResult, RemoteCommandStep, RemoteSession,
};
use crate::copy::local_file_ops::LocalFileOps;
use crate::copy::transfer_estimate::{FileCountThread, TransferEstimate};
use crate::copy::wait_conditions::WaitConditions;
use crate::copy::{HostId, NamedSource};
use crate::disk::{HostToHostBuffer, ReadBackCheck};
use crate::journal::JournalStore;
use crate::session::{
    RemoteCommandError, RemoteCommandEvent, RemoteCommandId, SessionEvent, SessionSummary,
};
use crate::sums::{ChecksumLedger, WantedDigest};

/// File with the host's boot ID.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Clock at the start, in seconds since 1970.
const CLOCK: i64 = 1_700_000_000;

/// State of the simulation. It outlives the runs of the copy.
pub(super) struct World {
    start: Instant,
    pub(super) now: Instant,
    pub(super) local: Rc<RefCell<Fs>>,
    pub(super) host: Host,
    pub(super) journal: journal::Shared,
    session: Option<SimSession>,
    ledger: Option<Arc<ChecksumLedger>>,
    pub(super) rng: Rng,
    shape: Shape,
    conditions: WaitConditions,
    /// Records that were durable when the copy stated its conditions.
    durable: u64,
    pub(super) cancelled: bool,
    /// Time of the last interrupt.
    pub(super) cancelled_at: Option<Instant>,
    /// Shifts of the two clocks in seconds.
    shifts: (i64, i64),
    boots: (u32, u32),
    sessions: u64,
    /// Bytes that local targets received.
    received: u64,
    pub(super) steps: u64,
}

pub(super) type Shared = Rc<RefCell<World>>;

impl World {
    pub(super) fn new(shape: Shape, personality: SftpServerProfile, seed: u64) -> Self {
        let now = epoch();
        let (mut local, mut fs) = (Fs::default(), Fs::default());
        local.place("/home/u/state", Kind::Dir, 0o755);
        for dir in [
            "/proc",
            "/proc/sys",
            "/proc/sys/kernel",
            "/proc/sys/kernel/random",
        ] {
            fs.place(dir, Kind::Dir, 0o755);
        }
        fs.place(BOOT, Kind::File(Vec::new()), 0o444);
        let mut world = Self {
            start: now,
            now,
            local: Rc::new(RefCell::new(local)),
            host: Host {
                fs,
                personality,
                written: 0,
            },
            journal: journal::Shared::default(),
            session: None,
            ledger: None,
            rng: Rng::new(seed),
            shape,
            conditions: WaitConditions::default(),
            durable: 0,
            cancelled: false,
            cancelled_at: None,
            shifts: (0, 0),
            boots: (1, 1),
            sessions: 0,
            received: 0,
            steps: 0,
        };
        world.boot_host();
        world.set_clocks();
        world
    }

    fn boot_host(&mut self) {
        let id = format!("00000000-0000-0000-0000-{:012x}\n", self.boots.1);
        if let Some(node) = self.host.fs.at_mut(BOOT) {
            node.kind = Kind::File(id.into_bytes());
        }
    }

    /// Starts to record what a power loss would undo; what is there by now is durable.
    pub(super) fn settle(&mut self) {
        self.local.borrow_mut().record_unsynced();
        self.host.fs.record_unsynced();
    }

    /// Prepares the next run, some time after the last one.
    pub(super) fn next_run(&mut self, verify: bool) {
        self.now += std::time::Duration::from_secs(1 + self.rng.below(30));
        self.cancelled = false;
        self.conditions = WaitConditions::default();
        self.ledger = verify.then(|| Arc::new(ChecksumLedger::new(WantedDigest::Verify)));
        self.host.fs.capacity = u64::MAX;
        self.local.borrow_mut().capacity = u64::MAX;
        self.set_clocks();
    }

    fn set_clocks(&mut self) {
        let passed = self.now.saturating_duration_since(self.start).as_secs() as i64;
        let at = |shift: i64| u32::try_from(CLOCK + passed + shift).unwrap_or(0);
        self.local.borrow_mut().clock = at(self.shifts.0);
        self.host.fs.clock = at(self.shifts.1);
        self.journal.borrow_mut().at(self.now);
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut SimSession, &mut Outside<'_>) -> T) -> Option<T> {
        let session = self.session.as_mut()?;
        let mut outside = Outside {
            now: self.now,
            host: &mut self.host,
            local: &mut self.local.borrow_mut(),
            ledger: self.ledger.as_deref(),
            rng: &mut self.rng,
        };
        Some(act(session, &mut outside))
    }

    /// True if the copy's conditions is fulfilled.
    pub(super) fn is_ready(&self) -> bool {
        let conditions = &self.conditions;
        let session = self.session.as_ref();
        let heard = session.is_none_or(|s| s.has_event() || s.over);
        let durable = self.journal.borrow().durable() > self.durable;
        (!conditions.sessions.is_empty() && heard)
            || (conditions.journal && durable)
            || (conditions.cancel && self.cancelled)
            || conditions.until.is_some_and(|until| until <= self.now)
    }

    /// Goes on to the next time at which something happens. Returns false if nothing will.
    pub(super) fn step(&mut self) -> bool {
        let session = self.session.as_ref().and_then(SimSession::next);
        let journal = self.journal.borrow().next();
        let next = [session, journal, self.conditions.until]
            .into_iter()
            .flatten();
        let Some(next) = next.min() else { return false };
        self.steps += 1;
        self.now = self.now.max(next);
        self.set_clocks();
        self.with(|session, outside| session.turn(outside));
        true
    }

    /// Bytes that the receiving disk got.
    pub(super) fn moved(&self, upload: bool) -> u64 {
        let under_way = self.session.as_ref().map_or(0, |s| s.disk.written);
        match upload {
            true => self.host.written,
            false => self.received + under_way,
        }
    }

    /// Lets a fault happen. Returns false if it has killed the copy.
    pub(super) fn suffer(&mut self, fault: SimFault) -> bool {
        match fault {
            SimFault::ConnectionLost => {
                self.with(|session, outside| session.lose_connection(false, outside));
            }
            SimFault::HostLost => {
                self.with(|session, outside| session.lose_connection(true, outside));
            }
            SimFault::Refused(request, code) => {
                let nth = self.rng.next_u64();
                let inject = InjectedFault {
                    kind: Some(request),
                    nth: 0,
                    act: Act::Status(code),
                };
                self.with(|session, _| session.inject(nth, inject));
            }
            SimFault::HostFull => self.host.fs.capacity = 1,
            SimFault::LocalFull => self.local.borrow_mut().capacity = 1,
            SimFault::LocalError => {
                self.with(|session, _| session.disk.fails_next = true);
            }
            SimFault::Interrupted => {
                self.cancelled = true;
                self.cancelled_at = Some(self.now);
            }
            SimFault::HostClock(shift) => self.shifts.1 += shift,
            SimFault::LocalClock(shift) => self.shifts.0 += shift,
            SimFault::HostRestarted => {
                self.with(|session, outside| session.lose_host(outside));
                self.host.fs.lose_power(&mut self.rng);
                self.boots.1 += 1;
                self.boot_host();
            }
            SimFault::Killed => {
                self.end(false);
                return false;
            }
            SimFault::LocalRestarted => {
                self.end(false);
                self.local.borrow_mut().lose_power(&mut self.rng);
                self.journal.borrow_mut().lose_power();
                self.boots.0 += 1;
                return false;
            }
            // The test does this, which knows what is expected then.
            SimFault::SourceChanged(_)
            | SimFault::TargetChanged(_)
            | SimFault::TargetDamaged(_) => {}
        }
        self.with(|session, outside| session.turn(outside));
        true
    }

    /// Ends the session, in order or because the process was killed.
    fn end(&mut self, in_order: bool) {
        self.with(|session, outside| {
            if in_order {
                session.disk.end(outside.local);
            }
            session.bury(!in_order, outside);
        });
        if let Some(session) = self.session.take() {
            self.received += session.disk.written;
        }
    }
}

/// Environment of the copy on the simulated machine.
pub(super) struct SimEdge(pub(super) Shared);

impl CopyEnvironment for SimEdge {
    fn now(&self) -> Instant {
        self.0.borrow().now
    }

    fn random(&self) -> u64 {
        self.0.borrow_mut().rng.next_u64()
    }

    fn is_cancelled(&self) -> bool {
        self.0.borrow().cancelled
    }

    fn connect(
        &self,
        _: HostId,
        _: Option<TransferEstimate>,
    ) -> Result<ConnectedSession, ConnectError> {
        let files = self.local();
        let mut world = self.0.borrow_mut();
        world.sessions += 1;
        let (shape, seed) = (world.shape, world.rng.next_u64());
        let (now, local) = (world.now, Rc::clone(&world.local));
        let world = &mut *world;
        let outside = Outside {
            now,
            host: &mut world.host,
            local: &mut local.borrow_mut(),
            ledger: None,
            rng: &mut world.rng,
        };
        world.session = Some(SimSession::new(shape, seed, &outside));
        Ok(ConnectedSession {
            remote: Box::new(SimRemote {
                world: Rc::clone(&self.0),
                info: OnceCell::new(),
            }),
            number: 0,
            local: files,
            login: None,
        })
    }

    fn admit(&self, _: &[NamedSource], differ: bool) -> bool {
        differ
    }

    fn name(&self, _: HostId) -> String {
        "host".to_owned()
    }

    fn identity(&self, _: HostId) -> String {
        "host".to_owned()
    }

    fn are_one(&self, one: HostId, other: HostId) -> bool {
        one == other
    }

    fn ledger(&self) -> Option<Arc<ChecksumLedger>> {
        self.0.borrow().ledger.clone()
    }

    fn local(&self) -> Rc<dyn LocalFileOps> {
        Rc::new(SimFiles(Rc::clone(&self.0.borrow().local)))
    }

    fn count(&self, _: &[Vec<u8>], _: bool) -> FileCountThread {
        FileCountThread::default()
    }

    fn journal(&self, command: &[u8], _: Option<&Path>, _: Option<&Path>) -> Box<dyn JournalStore> {
        let stored = Rc::clone(&self.0.borrow().journal);
        Box::new(SimStore::new(stored, command))
    }

    fn boot(&self) -> Vec<u8> {
        format!("boot {}", self.0.borrow().boots.0).into_bytes()
    }

    fn conditions(&self, conditions: WaitConditions) {
        let mut world = self.0.borrow_mut();
        let durable = world.journal.borrow().durable();
        world.durable = durable;
        world.conditions = conditions;
    }
}

struct SimRemote {
    world: Shared,
    info: OnceCell<ServerInfo>,
}

impl SimRemote {
    fn session(&self, act: impl FnOnce(&mut SimSession, Instant)) {
        let mut world = self.world.borrow_mut();
        let now = world.now;
        if let Some(session) = world.session.as_mut().filter(|s| !s.over) {
            act(session, now);
        }
        world.with(|session, outside| session.turn(outside));
    }
}

impl RemoteSession for SimRemote {
    fn submit(&self, job: Job, size: Option<u64>) {
        self.session(|session, now| session.submit(now, job, size));
    }

    fn submit_relayed(&self, _: Job, _: Arc<HostToHostBuffer>, _: Option<u64>) {
        unreachable!("the simulation has one host");
    }

    fn submit_check(&self, job: Job, check: Arc<ReadBackCheck>) {
        self.session(|session, now| session.submit_check(now, job, check));
    }

    fn command(&self, id: RemoteCommandId, step: RemoteCommandStep) {
        if let RemoteCommandStep::Run(_) = step {
            let why = "the host does not run commands for this account".to_owned();
            let over = RemoteCommandEvent::Ended(Err(RemoteCommandError::Failed(why)));
            self.session(|session, _| session.tell(SessionEvent::Exec(id, over)));
        }
    }

    fn expect(&self, _: TransferDirection, _: u64, _: u64) {}

    fn foresee(&self, _: TransferDirection, _: u64, _: u64) {}

    fn hold_lists(&self, _: bool) {}

    fn hold_root(&self, _: RemotePath) {}

    fn cancel(&self, reason: &str) {
        self.session(|session, now| session.stop(now, reason, false));
    }

    fn cancel_resumable(&self, reason: &str) {
        self.session(|session, now| session.stop(now, reason, true));
    }

    fn server_info(&self) -> Option<&ServerInfo> {
        if self.info.get().is_none()
            && let Some(session) = &self.world.borrow().session
            && let Some(info) = &session.info
        {
            let _ = self.info.set(info.clone());
        }
        self.info.get()
    }

    fn far_info(&self) -> Option<&ServerInfo> {
        self.server_info()
    }

    fn lists_trees(&self) -> bool {
        self.server_info()
            .is_some_and(|info| info.has("list-tree@longhaul"))
    }

    fn is_settled(&self) -> bool {
        self.server_info().is_some()
    }

    fn was_file(&self, _: &[u8]) -> bool {
        false
    }

    fn note_place(&self, _: &[u8], _: bool) {}

    fn next_event(&self) -> NextEventResult {
        let mut world = self.world.borrow_mut();
        let Some(session) = &mut world.session else {
            return NextEventResult::Ended;
        };
        match session.take_event() {
            Some(event) => NextEventResult::Event(event),
            None if session.over => NextEventResult::Ended,
            None => NextEventResult::Pending,
        }
    }

    fn finish(self: Box<Self>) -> SessionSummary {
        self.world.borrow_mut().end(true);
        SessionSummary::default()
    }
}
