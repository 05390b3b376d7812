//! Two machines, a path between them and a clock, as the environment of a copy.

use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use schedule::{Job, JobKind, RemotePath, TransferDirection};
use sftp::ServerInfo;
use testkit::sftp_model::{Act, Fs, InjectedFault, Kind, Rng, SftpServerProfile, epoch};

use super::commands::SimCommands;
use super::faults::SimFault;
use super::files::SimFiles;
use super::journal::{self, SimStore};
use super::session::{Host, Outside, Shape, SimSession};
use crate::connect::ConnectError;
use crate::copy::environment::{
    ConnectedSession, CopyEnvironment, NextEventResult, RemoteCommandStep, RemoteSession,
};
use crate::copy::limits::CopyLimits;
use crate::copy::local_file_ops::LocalFileOps;
use crate::copy::transfer_estimate::{FileCountThread, TransferEstimate};
use crate::copy::wait_conditions::WaitConditions;
use crate::copy::{HostId, NamedSource};
use crate::disk::{HostToHostBuffer, ReadBackCheck};
use crate::journal::JournalStore;
use crate::session::{RemoteCommandId, SessionEvent, SessionSummary};
use crate::sums::{ChecksumLedger, WantedDigest};

/// File with the host's boot ID.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Home directory of the account that logs in.
const HOME: &str = "/home/u";
/// Time without a request to any host after which the copy stands still.
const LONGEST_QUIET: Duration = Duration::from_secs(600);
/// Bytes that a buffer may hold beyond its limit and the bytes in flight: those of the download's
/// writes that it has not answered, and the READs that exceed this limit and that of the depth.
const UNANSWERED: u64 = (256 << 10) + 2 * (255 << 10);
/// Clock at the start, in seconds since 1970.
const CLOCK: i64 = 1_700_000_000;

/// State of the simulation. It outlives the runs of the copy.
pub(super) struct World {
    start: Instant,
    pub(super) now: Instant,
    pub(super) local: Rc<RefCell<Fs>>,
    pub(super) hosts: Vec<SimHost>,
    pub(super) journal: journal::Shared,
    ledger: Option<Arc<ChecksumLedger>>,
    pub(super) rng: Rng,
    limits: CopyLimits,
    /// Buffers between the hosts that may exist.
    pub(super) relays: Vec<Weak<HostToHostBuffer>>,
    conditions: WaitConditions,
    /// Records that were durable when the copy stated its conditions.
    durable: u64,
    pub(super) cancelled: bool,
    pub(super) commands: SimCommands,
    /// Time of the last interrupt.
    pub(super) cancelled_at: Option<Instant>,
    /// Shift of this machine's clock in seconds.
    shift: i64,
    boots: u32,
    /// Bytes that local targets received.
    received: u64,
    pub(super) steps: u64,
    /// Number of STATs that the copy has asked for.
    pub(super) stats: u64,
    /// Time since which no request has reached a host, of which so many had before.
    quiet: (Instant, u64),
}

pub(super) type Shared = Rc<RefCell<World>>;

/// A host, and the session with it.
pub(super) struct SimHost {
    pub(super) host: Host,
    session: Option<SimSession>,
    shape: Shape,
    /// Shift of its clock in seconds.
    shift: i64,
    boots: u32,
    /// No connection to it can be made.
    pub(super) is_unreachable: bool,
}

impl SimHost {
    pub(super) fn new(shape: Shape, personality: SftpServerProfile) -> Self {
        let mut fs = Fs::default();
        for dir in [
            "/proc",
            "/proc/sys",
            "/proc/sys/kernel",
            "/proc/sys/kernel/random",
        ] {
            fs.place(dir, Kind::Dir, 0o755);
        }
        fs.place(BOOT, Kind::File(Vec::new()), 0o444);
        let mut host = Self {
            host: Host {
                fs,
                personality,
                written: 0,
                reached: 0,
                lies_about_sums: false,
                hostile_names: Vec::new(),
                is_this_machine: false,
            },
            session: None,
            shape,
            shift: 0,
            boots: 1,
            is_unreachable: false,
        };
        host.boot();
        host
    }

    fn boot(&mut self) {
        let id = format!("00000000-0000-0000-0000-{:012x}\n", self.boots);
        if let Some(node) = self.host.fs.at_mut(BOOT) {
            node.kind = Kind::File(id.into_bytes());
        }
    }
}

impl World {
    pub(super) fn new(hosts: Vec<SimHost>, limits: CopyLimits, seed: u64) -> Self {
        let now = epoch();
        let mut local = Fs::default();
        local.place("/home/u/state", Kind::Dir, 0o755);
        let mut world = Self {
            start: now,
            now,
            local: Rc::new(RefCell::new(local)),
            hosts,
            journal: journal::Shared::default(),
            ledger: None,
            rng: Rng::new(seed),
            limits,
            relays: Vec::new(),
            conditions: WaitConditions::default(),
            durable: 0,
            cancelled: false,
            commands: SimCommands::default(),
            cancelled_at: None,
            shift: 0,
            boots: 1,
            received: 0,
            steps: 0,
            stats: 0,
            quiet: (now, 0),
        };
        world.set_clocks();
        world
    }

    /// Starts to record what a power loss would undo; what is there by now is durable.
    pub(super) fn settle(&mut self) {
        self.local.borrow_mut().record_unsynced();
        for host in &mut self.hosts {
            host.host.fs.record_unsynced();
        }
    }

    /// Has no session make a new connection once it has lost all.
    pub(super) fn lose_hosts_for_good(&mut self) {
        for host in &mut self.hosts {
            host.shape.worth = u64::MAX;
        }
    }

    /// Has each session make a new connection once it has lost all, though nothing has moved yet.
    pub(super) fn reconnect_always(&mut self) {
        for host in &mut self.hosts {
            host.shape.worth = 0;
        }
    }

    /// Prepares the next run, some time after the last one.
    pub(super) fn next_run(&mut self, verify: bool) {
        self.now += Duration::from_secs(1 + self.rng.below(30));
        self.cancelled = false;
        self.commands.end();
        self.relays.clear();
        self.quiet.0 = self.now;
        self.conditions = WaitConditions::default();
        self.ledger = verify.then(|| Arc::new(ChecksumLedger::new(WantedDigest::Verify)));
        for host in &mut self.hosts {
            host.host.fs.capacity = u64::MAX;
        }
        self.local.borrow_mut().capacity = u64::MAX;
        self.set_clocks();
    }

    fn set_clocks(&mut self) {
        let passed = self.now.saturating_duration_since(self.start).as_secs() as i64;
        let at = |shift: i64| u32::try_from(CLOCK + passed + shift).unwrap_or(0);
        self.local.borrow_mut().clock = at(self.shift);
        for host in &mut self.hosts {
            host.host.fs.clock = at(host.shift);
        }
        self.journal.borrow_mut().at(self.now);
    }

    fn with<T>(
        &mut self,
        host: usize,
        act: impl FnOnce(&mut SimSession, &mut Outside<'_>) -> T,
    ) -> Option<T> {
        let SimHost { host, session, .. } = self.hosts.get_mut(host)?;
        let session = session.as_mut()?;
        let mut outside = Outside {
            now: self.now,
            host,
            local: &mut self.local.borrow_mut(),
            ledger: self.ledger.as_deref(),
            rng: &mut self.rng,
        };
        Some(act(session, &mut outside))
    }

    /// True if the copy's conditions is fulfilled.
    pub(super) fn is_ready(&self) -> bool {
        let conditions = &self.conditions;
        let heard = |number: &usize| {
            let session = self
                .hosts
                .get(*number)
                .and_then(|host| host.session.as_ref());
            session.is_none_or(|s| s.has_event() || s.over)
        };
        let durable = self.journal.borrow().durable() > self.durable;
        conditions.sessions.iter().any(heard)
            || (conditions.journal && durable)
            || (conditions.cancel && self.cancelled)
            || conditions.until.is_some_and(|until| until <= self.now)
    }

    /// Goes on to the next time at which something happens. Returns false if nothing will.
    pub(super) fn step(&mut self) -> bool {
        let now = self.now;
        let sessions = self.hosts.iter_mut().map(|host| {
            let session = host.session.as_mut()?;
            session.take_relayed(now);
            session.check_wakes();
            session.next()
        });
        let sessions = sessions.min_by_key(|at| (at.is_none(), *at)).flatten();
        let journal = self.journal.borrow().next();
        let commands = self.commands.next();
        let next = [sessions, journal, commands, self.conditions.until]
            .into_iter()
            .flatten();
        let Some(next) = next.min() else { return false };
        self.steps += 1;
        self.now = self.now.max(next);
        self.set_clocks();
        while let Some((host, id, event)) = self.commands.take_due(self.now) {
            self.with(host, |session, _| {
                session.tell(SessionEvent::Exec(id, event))
            });
        }
        self.turn();
        self.check_moves();
        true
    }

    /// Checks that requests reach the hosts.
    fn check_moves(&mut self) {
        let reached = self.hosts.iter().map(|host| host.host.reached).sum();
        if reached != self.quiet.1 {
            self.quiet = (self.now, reached);
        }
        let quiet = self.now.saturating_duration_since(self.quiet.0);
        assert!(
            quiet < LONGEST_QUIET,
            "nothing happens any more\n{}",
            self.unfinished()
        );
    }

    /// Unfinished work of the sessions, for the message of a copy that stands still.
    pub(super) fn unfinished(&self) -> String {
        let sessions = self.hosts.iter().filter_map(|host| host.session.as_ref());
        let sessions: Vec<_> = sessions.map(SimSession::unfinished).collect();
        format!("{}\n{:?}", sessions.join("\n"), self.conditions)
    }

    /// Checks the memory that the buffers between the hosts take.
    pub(super) fn check_buffers(&self) {
        let depth = self.hosts[0].shape.depth;
        let relays = self.relays.iter().filter_map(Weak::upgrade);
        for relay in relays {
            let (held, limit) = relay.held();
            assert!(
                held <= limit + depth + UNANSWERED,
                "a buffer of {limit} bytes holds {held}"
            );
        }
    }

    fn turn(&mut self) {
        for host in 0..self.hosts.len() {
            self.with(host, |session, outside| session.turn(outside));
        }
    }

    /// Bytes that the receiving disk got.
    pub(super) fn moved(&self, upload: bool) -> u64 {
        let host = &self.hosts[0];
        let under_way = host.session.as_ref().map_or(0, |s| s.disk.written);
        match upload {
            true => host.host.written,
            false => self.received + under_way,
        }
    }

    /// Lets a fault happen, at this host if at any. Returns false if it has killed the copy.
    pub(super) fn suffer(&mut self, host: usize, fault: SimFault) -> bool {
        match fault {
            SimFault::ConnectionLost => {
                self.commands.lose(self.now, host);
                self.with(host, |session, outside| {
                    session.lose_connection(false, outside)
                });
            }
            SimFault::HostLost => {
                self.commands.lose(self.now, host);
                self.with(host, |session, outside| {
                    session.lose_connection(true, outside)
                });
            }
            SimFault::Refused(request, code) => {
                let nth = self.rng.next_u64();
                let inject = InjectedFault {
                    kind: Some(request),
                    nth: 0,
                    act: Act::Status(code),
                };
                self.with(host, |session, _| session.inject(nth, inject));
            }
            SimFault::HostFull => self.hosts[host].host.fs.capacity = 1,
            SimFault::LocalFull => self.local.borrow_mut().capacity = 1,
            SimFault::LocalError => {
                self.with(host, |session, _| session.disk.fails_next = true);
            }
            SimFault::Interrupted => {
                self.cancelled = true;
                self.cancelled_at = Some(self.now);
            }
            SimFault::HostClock(shift) => self.hosts[host].shift += shift,
            SimFault::LocalClock(shift) => self.shift += shift,
            SimFault::HostRestarted => {
                self.commands.lose(self.now, host);
                self.with(host, |session, outside| session.lose_host(outside));
                let host = &mut self.hosts[host];
                host.host.fs.lose_power(&mut self.rng);
                host.boots += 1;
                host.boot();
            }
            SimFault::Killed => {
                self.kill();
                return false;
            }
            SimFault::LocalRestarted => {
                self.kill();
                self.local.borrow_mut().lose_power(&mut self.rng);
                self.journal.borrow_mut().lose_power();
                self.boots += 1;
                return false;
            }
            // The test does this, which knows what is expected then.
            SimFault::SourceChanged(_)
            | SimFault::TargetChanged(_)
            | SimFault::TargetDamaged(_) => {}
        }
        self.turn();
        true
    }

    /// Ends all sessions because the process was killed.
    fn kill(&mut self) {
        for host in 0..self.hosts.len() {
            self.end(host, false);
        }
    }

    /// Ends the session with a host, in order or because the process was killed.
    fn end(&mut self, host: usize, in_order: bool) {
        self.with(host, |session, outside| {
            if in_order {
                session.disk.end(outside.local);
            }
            session.bury(!in_order, outside);
        });
        if let Some(session) = self.hosts[host].session.take() {
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

    fn limits(&self) -> CopyLimits {
        self.0.borrow().limits
    }

    fn random(&self) -> u64 {
        self.0.borrow_mut().rng.next_u64()
    }

    fn is_cancelled(&self) -> bool {
        self.0.borrow().cancelled
    }

    fn connect(
        &self,
        HostId(number): HostId,
        _: Option<TransferEstimate>,
    ) -> Result<ConnectedSession, ConnectError> {
        let files = self.local();
        let mut world = self.0.borrow_mut();
        let seed = world.rng.next_u64();
        let (now, local) = (world.now, Rc::clone(&world.local));
        let world = &mut *world;
        let on = &mut world.hosts[number];
        if on.is_unreachable {
            let why = format!("host{number}: no route to host");
            return Err(ConnectError::unreachable(why));
        }
        let outside = Outside {
            now,
            host: &mut on.host,
            local: &mut local.borrow_mut(),
            ledger: None,
            rng: &mut world.rng,
        };
        on.session = Some(SimSession::new(on.shape, seed, &outside));
        Ok(ConnectedSession {
            remote: Box::new(SimRemote {
                world: Rc::clone(&self.0),
                host: number,
                info: OnceCell::new(),
            }),
            number,
            local: files,
            login: None,
        })
    }

    fn admit(&self, _: &[NamedSource], differ: bool) -> bool {
        differ
    }

    fn name(&self, HostId(number): HostId) -> String {
        format!("host{number}")
    }

    fn identity(&self, host: HostId) -> String {
        self.name(host)
    }

    fn are_one(&self, one: HostId, other: HostId) -> bool {
        one == other
    }

    fn ledger(&self) -> Option<Arc<ChecksumLedger>> {
        self.0.borrow().ledger.clone()
    }

    fn local(&self) -> Rc<dyn LocalFileOps> {
        let world = self.0.borrow();
        let is_host = world.hosts.iter().any(|host| host.host.is_this_machine);
        let home = is_host.then(|| PathBuf::from(HOME));
        Rc::new(SimFiles(Rc::clone(&world.local), home))
    }

    fn count(&self, _: &[Vec<u8>], _: bool) -> FileCountThread {
        FileCountThread::default()
    }

    fn journal(&self, command: &[u8], _: Option<&Path>, _: Option<&Path>) -> Box<dyn JournalStore> {
        let stored = Rc::clone(&self.0.borrow().journal);
        Box::new(SimStore::new(stored, command))
    }

    fn boot(&self) -> Vec<u8> {
        format!("boot {}", self.0.borrow().boots).into_bytes()
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
    /// Number of the host.
    host: usize,
    info: OnceCell<ServerInfo>,
}

impl SimRemote {
    fn session(&self, act: impl FnOnce(&mut SimSession, Instant)) {
        let mut world = self.world.borrow_mut();
        let now = world.now;
        let session = world.hosts[self.host].session.as_mut();
        if let Some(session) = session.filter(|s| !s.over) {
            act(session, now);
        }
        world.with(self.host, |session, outside| session.turn(outside));
    }
}

impl RemoteSession for SimRemote {
    fn submit(&self, job: Job, size: Option<u64>) {
        let is_stat = matches!(job.kind, JobKind::Stat { .. });
        self.world.borrow_mut().stats += u64::from(is_stat);
        self.session(|session, now| session.submit(now, job, size));
    }

    fn submit_relayed(&self, job: Job, relay: Arc<HostToHostBuffer>, size: Option<u64>) {
        let weak = Arc::downgrade(&relay);
        self.world.borrow_mut().relays.push(weak);
        self.session(|session, now| session.submit_relayed(now, job, relay, size));
    }

    fn submit_check(&self, job: Job, check: Arc<ReadBackCheck>) {
        self.session(|session, now| session.submit_check(now, job, check));
    }

    fn command(&self, id: RemoteCommandId, step: RemoteCommandStep) {
        let mut world = self.world.borrow_mut();
        let now = world.now;
        let world_now = &mut *world;
        let fs = &world_now.hosts[self.host].host.fs;
        let events = world_now.commands.handle(now, self.host, id, &step, fs);
        drop(world);
        for event in events {
            self.session(|session, _| session.tell(SessionEvent::Exec(id, event)));
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

    fn heard(&self) -> Option<Instant> {
        // Its answers take no longer than the path.
        Some(self.world.borrow().now)
    }

    fn server_info(&self) -> Option<&ServerInfo> {
        if self.info.get().is_none()
            && let Some(session) = &self.world.borrow().hosts[self.host].session
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
        let Some(session) = &mut world.hosts[self.host].session else {
            return NextEventResult::Ended;
        };
        match session.take_event() {
            Some(event) => NextEventResult::Event(event),
            None if session.over => NextEventResult::Ended,
            None => NextEventResult::Pending,
        }
    }

    fn finish(self: Box<Self>) -> SessionSummary {
        self.world.borrow_mut().end(self.host, true);
        SessionSummary::default()
    }
}
