use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::{Registry, Token};
use schedule::{
    Attributes, DiskReply, DiskRequest, FileCopyOptions, Job, JobId, JobKind, LaneEvent, RemotePath,
};
use sftp::ClientOutput;
use testkit::sftp_model::{
    Act, Fs, InjectedFault, Kind, Link as Path, Rng, SftpModel, SftpServerProfile,
    VirtualLinkOptions,
};
use wire::PacketPool;

use super::disk::{Disk as DiskModel, Source};
use crate::session::command::SessionCommand;
use crate::session::core::{ConnectCommand, SessionCore};
use crate::session::disk::{DiskExecutor, LocalStandIn};
use crate::session::machine::MachineFunctions;
use crate::session::next_turn::NextTurnTime;
use crate::session::remote_commands::RemoteCommandInstruction;
use crate::session::server_facts::SessionServerFacts;
use crate::session::{
    ConnectionOpener, FurtherConnectionError, InitialServerFacts, Link, LinkChannelId, LinkError,
    LinkEvent, RemoteCommandId, RemoteCommandStart, SessionEvent, SessionOptions,
};

/// Turns at one point in time after which the session is taken to spin.
const SPINS: usize = 10_000;

/// A channel with its server, and the bytes in flight.
struct Channel {
    model: SftpModel,
    up: Path,
    down: Path,
    /// Bytes sent that the server has not received yet.
    outstanding: usize,
    /// The client has closed the channel, or its connection was cut.
    closed: bool,
    over: bool,
    /// Time when a closed channel makes room for another one.
    leaves: Option<Instant>,
    /// The server refuses the channel, and has not said so yet.
    refused: bool,
}

/// The server, all connections to it, and the paths.
pub(super) struct Net {
    pub fs: Fs,
    pub server: SftpServerProfile,
    pub path: VirtualLinkOptions,
    /// The path carries nothing, and bytes written meanwhile are lost.
    pub dark: bool,
    /// The server answers nothing on any channel.
    pub mute: bool,
    /// The server takes commands and answers nothing about them.
    pub commands_hang: bool,
    /// Bytes after which each connection is lost, in the order in which they are made; later ones
    /// are kept.
    pub lose_after: Vec<u64>,
    /// READs from this number on are not answered on the first channels, this many of them.
    pub silent: (usize, usize),
    /// Channels that a connection carries.
    pub channels: usize,
    /// The server permits one channel, and a closed one takes its place for this long.
    pub lingers: Option<Duration>,
    /// Seed of the next random bytes for temporaries' names.
    rng: Rng,
    connections: Vec<Vec<Channel>>,
    lost: BTreeMap<usize, String>,
    moved: Vec<u64>,
}

impl Net {
    /// Loses a connection, as if its socket had reported an error.
    pub(super) fn lose(&mut self, connection: usize) {
        self.lost.insert(connection, "the path is gone".to_owned());
    }

    /// Number of connections made so far.
    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Number of channels opened so far, on all connections.
    pub(super) fn opened(&self) -> usize {
        self.connections.iter().map(Vec::len).sum()
    }

    /// Delivers what has arrived at the server, on all connections, lost ones included: data that
    /// left before the loss arrive.
    fn serve(&mut self, now: Instant) {
        let fs = &mut self.fs;
        for (at, channels) in self.connections.iter_mut().enumerate() {
            for on in channels.iter_mut().filter(|on| !on.over) {
                while let Some(bytes) = on.up.receive(now) {
                    on.outstanding = on.outstanding.saturating_sub(bytes.len());
                    if let Some(moved) = self.moved.get_mut(at) {
                        *moved += bytes.len() as u64;
                    }
                    std::mem::swap(fs, &mut on.model.fs);
                    on.model.handle_input(&bytes);
                    std::mem::swap(fs, &mut on.model.fs);
                    on.down.send(now, &on.model.take_output());
                }
            }
        }
    }

    /// Time at which data reach the server next. Data in flight on lost connections do too, and
    /// those on refused channels do not.
    fn next_arrival(&self) -> Option<Instant> {
        let all = self.connections.iter().flatten().filter(|on| !on.over);
        all.filter_map(|on| on.up.next_arrival()).min()
    }
}

/// State that links, disk and source share with the test.
pub(super) struct Shared {
    pub now: Instant,
    pub net: Net,
    pub disk: DiskModel,
    /// Results of the next logins, and the time that each takes. Later ones succeed in 100 ms.
    pub logins: VecDeque<(Duration, Option<FurtherConnectionError>)>,
    /// Further logins are possible.
    pub open: bool,
    /// Time when the last login began.
    pub began: Vec<Instant>,
}

pub(super) type Handle = Arc<Mutex<Shared>>;

pub(super) fn lock(shared: &Handle) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SimLink {
    shared: Handle,
    number: usize,
}

impl SimLink {
    fn add(shared: &Handle) -> Box<dyn Link> {
        let mut on = lock(shared);
        let number = on.net.connections.len();
        on.net.connections.push(Vec::new());
        on.net.moved.push(0);
        drop(on);
        Box::new(Self {
            shared: Arc::clone(shared),
            number,
        })
    }

    fn close_all(&self) {
        let mut on = lock(&self.shared);
        for channel in &mut on.net.connections[self.number] {
            channel.closed = true;
        }
    }
}

impl Link for SimLink {
    fn register(&mut self, _: &Registry, _: Token) -> io::Result<()> {
        Ok(())
    }

    fn peer(&self) -> Option<InitialServerFacts> {
        let openssh = !lock(&self.shared).net.server.extensions.is_empty();
        Some(InitialServerFacts {
            openssh,
            ..InitialServerFacts::default()
        })
    }

    fn pool(&self) -> PacketPool {
        PacketPool::new(32 * 1024, 64)
    }

    fn open_channel(&mut self) -> Option<LinkChannelId> {
        let on = &mut *lock(&self.shared);
        let net = &mut on.net;
        let seeds = (net.rng.next_u64(), net.rng.next_u64());
        let mut model = SftpModel::new(Fs::default(), net.server.clone());
        if net.opened() < net.silent.0 {
            for nth in net.silent.1..net.silent.1 + 2000 {
                model.inject(InjectedFault {
                    kind: Some("READ"),
                    nth,
                    act: Act::Silence,
                });
            }
        }
        let (path, most) = (net.path, net.channels);
        let channels = &mut net.connections[self.number];
        if channels.iter().filter(|c| !c.closed).count() >= most {
            return None;
        }
        let now = on.now;
        let takes_place = |c: &Channel| match c.closed {
            true => c.leaves.is_some_and(|at| now < at),
            false => true,
        };
        let refused = net.lingers.is_some() && channels.iter().any(takes_place);
        channels.push(Channel {
            model,
            up: Path::new(path, seeds.0),
            down: Path::new(path, seeds.1),
            outstanding: 0,
            closed: false,
            over: false,
            leaves: None,
            refused,
        });
        Some(LinkChannelId(channels.len() as u32 - 1))
    }

    fn open_exec(&mut self, _: &[u8]) -> Option<LinkChannelId> {
        let hangs = lock(&self.shared).net.commands_hang;
        hangs.then_some(LinkChannelId(u32::MAX))
    }

    fn close_channel(&mut self, channel: LinkChannelId) {
        let on = &mut *lock(&self.shared);
        let lingers = on.net.lingers;
        let channel = &mut on.net.connections[self.number][channel.0 as usize];
        if !channel.closed {
            channel.closed = true;
            channel.leaves = lingers.map(|lingers| on.now + lingers);
        }
    }

    fn ready(&mut self, _: Token, _: bool, _: bool) {}

    fn receive(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        let mut on = lock(&self.shared);
        let net = &mut on.net;
        net.serve(now);
        let most = net.lose_after.get(self.number).copied();
        if most.is_some_and(|most| net.moved[self.number] > most) {
            net.lose(self.number);
        }
        if let Some(why) = net.lost.remove(&self.number) {
            return Err(LinkError::Lost(why));
        }
        if net.dark {
            return Ok(false);
        }
        for (id, on) in net.connections[self.number].iter_mut().enumerate() {
            let id = LinkChannelId(id as u32);
            if std::mem::take(&mut on.refused) {
                (on.closed, on.over) = (true, true);
                events.push(LinkEvent::Refused(id, "open failed".to_owned()));
                continue;
            }
            if on.closed {
                if !on.over && on.up.next_arrival().is_none() {
                    on.over = true;
                    events.push(LinkEvent::Ended(id));
                }
                continue;
            }
            while let Some(bytes) = on.down.receive(now) {
                events.push(LinkEvent::Data(id, Bytes::from(bytes)));
            }
        }
        Ok(false)
    }

    fn limit_receive(&mut self, _: usize) {}

    fn room(&self, channel: LinkChannelId) -> usize {
        let on = lock(&self.shared);
        let on = &on.net.connections[self.number][channel.0 as usize];
        (1_usize << 20).saturating_sub(on.outstanding)
    }

    fn send(&mut self, channel: LinkChannelId, output: ClientOutput) {
        let bytes = match output {
            ClientOutput::Bytes(bytes) => bytes,
            ClientOutput::Block(block) => block.to_vec(),
        };
        let mut on = lock(&self.shared);
        let (now, dark) = (on.now, on.net.dark || on.net.mute);
        let on = &mut on.net.connections[self.number][channel.0 as usize];
        on.outstanding += bytes.len();
        if !dark {
            on.up.send(now, &bytes);
        }
    }

    fn flush(&mut self, _: Instant) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let on = lock(&self.shared);
        // Data that have arrived are received in every turn, as far as the session wants them.
        let later = |at: &Instant| *at > on.now;
        let next = |channel: &Channel| match (channel.over, channel.closed) {
            _ if channel.refused => Some(on.now),
            (true, _) => None,
            (_, true) => {
                let soon = on.now + Duration::from_millis(1);
                Some(channel.up.next_arrival().filter(later).unwrap_or(soon))
            }
            _ => [channel.up.next_arrival(), channel.down.next_arrival()]
                .into_iter()
                .flatten()
                .filter(later)
                .min(),
        };
        let channels = on.net.connections[self.number].iter();
        let next = channels.filter_map(next).min().filter(|_| !on.net.dark);
        let lost = on.net.lost.contains_key(&self.number).then_some(on.now);
        next.into_iter().chain(lost).min()
    }

    fn handle_timeout(&mut self, _: Instant) -> Result<(), LinkError> {
        Ok(())
    }

    fn finish(self: Box<Self>) {
        self.close_all();
    }

    fn cuts(&self) -> bool {
        true
    }

    fn cut(self: Box<Self>) {
        self.close_all();
    }
}

struct SimDisk(Handle);

impl DiskExecutor for SimDisk {
    fn submit(&mut self, request: DiskRequest) {
        let on = &mut *lock(&self.0);
        on.disk.handle(on.now, request);
    }

    fn submit_inline(&mut self, request: DiskRequest) -> Option<DiskReply> {
        self.submit(request);
        None
    }

    fn poll_reply(&mut self) -> Option<DiskReply> {
        let on = &mut *lock(&self.0);
        on.disk.reply(on.now)
    }

    fn holds(&self) -> bool {
        false
    }

    fn flush(&mut self) {}

    fn bind(&mut self, _: JobId, _: LocalStandIn) {}

    fn release(&mut self, _: JobId) {}
}

struct SimSource(Handle);

impl ConnectionOpener for SimSource {
    fn is_open(&self) -> bool {
        lock(&self.0).open
    }

    fn another(&self, _: bool) -> Result<Box<dyn Link>, FurtherConnectionError> {
        Err(FurtherConnectionError::Connection(
            "the world connects".to_owned(),
        ))
    }
}

/// A session in virtual time.
pub(super) struct World {
    pub core: SessionCore,
    pub shared: Handle,
    pub events: Vec<SessionEvent>,
    logins: Vec<(Instant, ConnectCommand, Option<FurtherConnectionError>)>,
    began: Instant,
    next_job: u64,
}

impl World {
    /// Begins with one connection to an empty server like OpenSSH, 20 ms away.
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, SessionOptions::default())
    }

    pub(super) fn with(seed: u64, options: SessionOptions) -> Self {
        let now = Instant::now();
        let shared = Arc::new(Mutex::new(Shared {
            now,
            net: Net {
                fs: Fs::default(),
                server: SftpServerProfile::openssh(),
                path: VirtualLinkOptions {
                    delay: Duration::from_millis(10),
                    bandwidth: 20_000_000,
                    fragment: 32 << 10,
                },
                dark: false,
                mute: false,
                commands_hang: false,
                lose_after: Vec::new(),
                silent: (0, 0),
                channels: 10,
                lingers: None,
                rng: Rng::new(seed),
                connections: Vec::new(),
                lost: BTreeMap::new(),
                moved: Vec::new(),
            },
            disk: DiskModel::default(),
            logins: VecDeque::new(),
            open: true,
            began: Vec::new(),
        }));
        let options = SessionOptions {
            connection_source: Some(Arc::new(SimSource(Arc::clone(&shared)))),
            ..options
        };
        // Names of temporaries must differ.
        let machine = MachineFunctions {
            random: |bytes| {
                use std::cell::Cell;
                thread_local!(static NEXT: Cell<u64> = const { Cell::new(1) });
                let next = NEXT
                    .get()
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(1);
                NEXT.set(next);
                let drawn = next.to_be_bytes();
                for (byte, from) in bytes.iter_mut().zip(drawn.iter().cycle()) {
                    *byte = *from;
                }
            },
            ..super::machine()
        };
        let disk = Box::new(SimDisk(Arc::clone(&shared)));
        let outlet: crate::session::direct::ControlSenderFactory = Arc::new(|| Box::new(|_| {}));
        let facts = Arc::new(SessionServerFacts::default());
        let mut core = SessionCore::new(now, options, machine, (disk, outlet), facts);
        core.begin(now, SimLink::add(&shared));
        Self {
            core,
            shared,
            events: Vec::new(),
            logins: Vec::new(),
            began: now,
            next_job: 1,
        }
    }

    pub(super) fn now(&self) -> Instant {
        lock(&self.shared).now
    }

    /// Virtual time since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.now() - self.began
    }

    /// Submits a job.
    pub(super) fn submit(&mut self, kind: JobKind, size: Option<u64>) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        let hint = schedule::JobHint {
            size,
            relayed: false,
        };
        let now = self.now();
        self.core
            .handle_command(now, SessionCommand::Push(Job { id, kind }, hint));
        id
    }

    /// Runs a command that is started again after a loss, and expects its output under the name
    /// `awaited`.
    pub(super) fn exec(&mut self, awaited: &'static str) {
        let now = lock(&self.shared).now;
        let start = RemoteCommandStart {
            command: b"sh".to_vec(),
            awaited: Some(awaited),
            restarts: true,
        };
        let run = RemoteCommandInstruction::Run(RemoteCommandId(1), start);
        self.core.handle_command(now, SessionCommand::Exec(run));
    }

    /// Submits the upload of a new file with these bytes.
    pub(super) fn put(&mut self, name: &str, data: Vec<u8>) -> JobId {
        let size = Some(data.len() as u64);
        let path = PathBuf::from(name);
        let source = Source::new(data);
        let old = lock(&self.shared).disk.sources.insert(path.clone(), source);
        assert!(old.is_none(), "{name} is uploaded twice");
        let kind = JobKind::Put {
            source: path,
            target: RemotePath(name.as_bytes().to_vec()),
            options: FileCopyOptions::default(),
        };
        self.submit(kind, size)
    }

    /// Submits the download of a file that the server has.
    pub(super) fn get(&mut self, name: &str, data: Vec<u8>) -> JobId {
        let size = data.len() as u64;
        lock(&self.shared)
            .net
            .fs
            .place(name, Kind::File(data), 0o644);
        let known = Attributes {
            size: Some(size),
            mode: Some(0o100_644),
            ..Attributes::default()
        };
        let kind = JobKind::Get {
            source: RemotePath(name.as_bytes().to_vec()),
            target: PathBuf::from(name).into(),
            known: Some(known),
            options: FileCopyOptions::default(),
        };
        self.submit(kind, Some(size))
    }

    /// Bytes of a file at the server.
    pub(super) fn at_server(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.shared).net.fs.data(name).map(<[u8]>::to_vec)
    }

    /// Bytes of a local file.
    pub(super) fn here(&self, name: &str) -> Option<Vec<u8>> {
        let on = lock(&self.shared);
        let file = on.disk.files.get(&PathBuf::from(name));
        file.map(|(data, _)| data.clone())
    }

    /// Runs turns until `until` is true, the session is over, or `most` has passed. Returns false
    /// in the last case.
    pub(super) fn run_until(&mut self, most: Duration, until: impl Fn(&Self) -> bool) -> bool {
        let (end, mut spins) = (self.now() + most, 0);
        while !until(self) && !self.core.is_over() {
            let now = self.now();
            lock(&self.shared).net.serve(now);
            let arrived = self.finish_logins(now);
            self.core.turn(now, 0);
            while let Some(order) = self.core.poll_order() {
                self.begin_login(now, order);
            }
            self.take_events();
            let due = match self.core.due(now) {
                NextTurnTime::Now => Some(now),
                NextTurnTime::At(at) => Some(at),
                NextTurnTime::Input => None,
            };
            let (outside, server) = (self.next_outside(), lock(&self.shared).net.next_arrival());
            let Some(next) = due.into_iter().chain(outside).chain(server).min() else {
                return until(self);
            };
            spins = if next > now || arrived { 0 } else { spins + 1 };
            assert!(spins < SPINS, "the session spins at {:?}", self.elapsed());
            if next > end {
                lock(&self.shared).now = end;
                return false;
            }
            let outside = self.next_outside().is_some_and(|at| at <= next);
            let next = next.max(now);
            lock(&self.shared).now = next;
            self.core.woken(next, outside);
        }
        self.take_events();
        true
    }

    /// Runs until all jobs have ended, for at most `most`; returns the reasons of failures.
    pub(super) fn run(&mut self, most: Duration) -> Vec<String> {
        let jobs = self.next_job - 1;
        let done = self.run_until(most, |world| world.ended() as u64 >= jobs);
        assert!(
            done || self.core.is_over(),
            "{} of {jobs} jobs ended within {most:?}: {:?}",
            self.ended(),
            self.lines()
        );
        let failed = self.events.iter().filter_map(|event| match event {
            SessionEvent::Lane(LaneEvent::Failed(_, fault)) => Some(fault.what.clone()),
            _ => None,
        });
        failed.collect()
    }

    fn ended(&self) -> usize {
        let last = |event: &&SessionEvent| match event {
            SessionEvent::Lane(event) => event.is_last(),
            _ => false,
        };
        self.events.iter().filter(last).count()
    }

    /// Lines for the user so far.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = self.events.iter().filter_map(|event| match event {
            SessionEvent::Message(line) | SessionEvent::Lost(line) => Some(line.clone()),
            SessionEvent::Stalled(notice) => Some(notice.to_string()),
            _ => None,
        });
        lines.collect()
    }

    /// True if a line for the user contains this text.
    pub(super) fn says(&self, text: &str) -> bool {
        self.lines().iter().any(|line| line.contains(text))
    }

    fn take_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            self.events.push(event);
        }
    }

    fn begin_login(&mut self, now: Instant, order: ConnectCommand) {
        let on = &mut *lock(&self.shared);
        on.began.push(now);
        let dark = FurtherConnectionError::Connection("connection timed out".to_owned());
        let usual = match on.net.dark {
            true => (Duration::from_secs(5), Some(dark)),
            false => (Duration::from_millis(100), None),
        };
        let (takes, result) = on.logins.pop_front().unwrap_or(usual);
        self.logins.push((now + takes, order, result));
    }

    fn finish_logins(&mut self, now: Instant) -> bool {
        let due =
            |login: &mut (Instant, ConnectCommand, Option<FurtherConnectionError>)| login.0 <= now;
        let ready: Vec<_> = self.logins.extract_if(.., due).collect();
        let any = !ready.is_empty();
        for (_, order, failed) in ready {
            let link = match failed {
                Some(why) => Err(why),
                None => Ok(SimLink::add(&self.shared)),
            };
            match order {
                ConnectCommand::OpenFurther { .. } => self.core.joined(now, link),
                ConnectCommand::Reconnect => self.core.rejoined(now, link),
            }
        }
        any
    }

    /// Time of the next input that no deadline of the session announces.
    fn next_outside(&self) -> Option<Instant> {
        let logins = self.logins.iter().map(|(at, ..)| *at);
        let on = lock(&self.shared);
        let disk = on.disk.next_reply();
        logins.chain(disk).min()
    }
}

/// Bytes that differ from file to file and from block to block.
pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}
