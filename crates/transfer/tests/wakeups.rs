//! Runs a session's real loop over a seeded link in memory. Only the link's own deadlines wake the
//! loop, so that work that waits for a turn which nothing requests is detected: debug builds of the
//! session fail when the heartbeat finds work, and the test fails when a job does not end.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::{Registry, Token};
use schedule::{
    Attributes, EntryKind, FileCopyOptions, Job, JobId, JobKind, LaneEvent, RemotePath,
};
use sftp::ClientOutput;
use testkit::sftp_model::{
    Act, Fs, InjectedFault, Kind, Link as Path, Rng, SftpModel, SftpServerProfile,
    VirtualLinkOptions,
};
use transfer::cancel::CancelToken;
use transfer::session::{
    FarEndQuerySession, InitialServerFacts, Link, LinkChannelId, LinkError, LinkEvent, Session,
    SessionEvent, SessionOptions,
};
use wire::PacketPool;

/// A channel with its server, and the bytes in flight.
struct Channel {
    model: SftpModel,
    up: Path,
    down: Path,
    /// Bytes sent that the server has not received yet.
    outstanding: usize,
    closed: bool,
    /// True once the server has closed its side too.
    over: bool,
}

/// A connection to a far end in memory.
struct MemoryLink {
    fs: Fs,
    server: SftpServerProfile,
    openssh: bool,
    channels: Vec<Channel>,
    most: usize,
    window: usize,
    /// READs that are not answered: on the first `.0` channels, all from number `.1` on.
    forgets: (usize, usize),
    /// Each command prints without end.
    commands: bool,
    /// Commands that run: their output is due.
    printing: Vec<LinkChannelId>,
    rng: Rng,
    now: Instant,
}

/// Channel of the first command, beyond those of lanes.
const COMMANDS: u32 = 1000;

impl MemoryLink {
    fn new(fs: Fs, server: SftpServerProfile, openssh: bool, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            fs,
            server,
            openssh,
            channels: Vec::new(),
            most: 1 + rng.below(4) as usize,
            window: [1 << 20, 40_000, 700][rng.below(3) as usize],
            forgets: (0, 0),
            commands: false,
            printing: Vec::new(),
            rng,
            now: Instant::now(),
        }
    }
}

impl Link for MemoryLink {
    fn register(&mut self, _: &Registry, _: Token) -> io::Result<()> {
        Ok(())
    }

    fn peer(&self) -> Option<InitialServerFacts> {
        Some(InitialServerFacts {
            openssh: self.openssh,
            ..InitialServerFacts::default()
        })
    }

    fn pool(&self) -> PacketPool {
        PacketPool::new(32 * 1024, 64)
    }

    fn open_channel(&mut self) -> Option<LinkChannelId> {
        if self.channels.iter().filter(|c| !c.closed).count() >= self.most {
            return None;
        }
        let path = VirtualLinkOptions {
            delay: Duration::from_micros(self.rng.below(400)),
            bandwidth: 0,
            fragment: [1 << 20, 4096, 90][self.rng.below(3) as usize],
        };
        let mut model = SftpModel::new(Fs::default(), self.server.clone());
        if self.channels.len() < self.forgets.0 {
            for nth in self.forgets.1..self.forgets.1 + 1000 {
                model.inject(InjectedFault {
                    kind: Some("READ"),
                    nth,
                    act: Act::Silence,
                });
            }
        }
        self.channels.push(Channel {
            model,
            up: Path::new(path, self.rng.next_u64()),
            down: Path::new(path, self.rng.next_u64()),
            outstanding: 0,
            closed: false,
            over: false,
        });
        Some(LinkChannelId(self.channels.len() as u32 - 1))
    }

    fn open_exec(&mut self, _: &[u8]) -> Option<LinkChannelId> {
        let channel = LinkChannelId(COMMANDS + self.printing.len() as u32);
        self.commands.then(|| self.printing.push(channel))?;
        Some(channel)
    }

    fn close_channel(&mut self, channel: LinkChannelId) {
        if channel.0 >= COMMANDS {
            return self.printing.retain(|printing| *printing != channel);
        }
        self.channels[channel.0 as usize].closed = true;
    }

    fn ready(&mut self, _: Token, _: bool, _: bool) {}

    fn receive(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        self.now = now;
        let mut more = !self.printing.is_empty();
        for channel in &self.printing {
            let text = Bytes::from(vec![b'y'; 1000]);
            events.push(LinkEvent::Data(*channel, text));
        }
        for (id, on) in self.channels.iter_mut().enumerate().filter(|c| !c.1.over) {
            while let Some(bytes) = on.up.receive(now) {
                on.outstanding -= bytes.len();
                std::mem::swap(&mut self.fs, &mut on.model.fs);
                on.model.handle_input(&bytes);
                std::mem::swap(&mut self.fs, &mut on.model.fs);
                on.down.send(now, &on.model.take_output());
            }
            if on.closed {
                on.over = on.up.next_arrival().is_none();
                if on.over {
                    events.push(LinkEvent::Ended(LinkChannelId(id as u32)));
                }
                continue;
            }
            // Delivers some of the data that have arrived, or all at once.
            let most = 1 + self.rng.below(40);
            let mut all = Vec::new();
            for _ in 0..most {
                all.extend(on.down.receive(now).unwrap_or_default());
            }
            more |= on.down.next_arrival().is_some_and(|at| at <= now);
            if !all.is_empty() {
                events.push(LinkEvent::Data(LinkChannelId(id as u32), Bytes::from(all)));
            }
        }
        Ok(more)
    }

    fn limit_receive(&mut self, _: usize) {}

    fn room(&self, channel: LinkChannelId) -> usize {
        let on = &self.channels[channel.0 as usize];
        self.window.saturating_sub(on.outstanding)
    }

    fn send(&mut self, channel: LinkChannelId, output: ClientOutput) {
        let bytes = match output {
            ClientOutput::Bytes(bytes) => bytes,
            ClientOutput::Block(block) => block.to_vec(),
        };
        let on = &mut self.channels[channel.0 as usize];
        on.outstanding += bytes.len();
        on.up.send(self.now, &bytes);
    }

    fn flush(&mut self, _: Instant) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let next = |on: &Channel| match (on.over, on.closed) {
            (true, _) => None,
            (_, true) => Some(on.up.next_arrival().unwrap_or(self.now)),
            _ => [on.up.next_arrival(), on.down.next_arrival()]
                .into_iter()
                .flatten()
                .min(),
        };
        self.channels.iter().filter_map(next).min()
    }

    fn handle_timeout(&mut self, _: Instant) -> Result<(), LinkError> {
        Ok(())
    }

    fn finish(self: Box<Self>) {}
}

fn directory(name: &str, entries: u64) -> Vec<(String, Kind)> {
    let files = (0..entries).map(|i| (format!("{name}/f{i:05}"), Kind::File(vec![b'x'])));
    std::iter::once((name.to_owned(), Kind::Dir))
        .chain(files)
        .collect()
}

fn place(fs: &mut Fs, entries: Vec<(String, Kind)>) {
    for (path, kind) in entries {
        let mode = if kind == Kind::Dir { 0o755 } else { 0o644 };
        fs.place(&path, kind, mode);
    }
}

/// Runs `jobs`; returns for each whether it succeeded and how many entries it listed since its last
/// restart.
fn run(session: &Session, jobs: Vec<(JobKind, Option<u64>)>) -> BTreeMap<u64, (bool, usize)> {
    let mut ended = BTreeMap::new();
    let mut listed: BTreeMap<u64, usize> = BTreeMap::new();
    let count = jobs.len();
    for (id, (kind, size)) in jobs.into_iter().enumerate() {
        let id = JobId(id as u64 + 1);
        session.submit(Job { id, kind }, size);
    }
    let until = Instant::now() + Duration::from_secs(20);
    while ended.len() < count {
        let left = until.saturating_duration_since(Instant::now());
        let event = session.events().recv_timeout(left);
        let event = event.unwrap_or_else(|e| panic!("{} of {count} jobs ended: {e}", ended.len()));
        match event {
            SessionEvent::Lane(LaneEvent::Entries(id, entries)) => {
                *listed.entry(id.0).or_default() += entries.len();
            }
            SessionEvent::Lane(event) if event.is_last() => {
                let done = matches!(event, LaneEvent::Done(_));
                let id = event.job().0;
                ended.insert(id, (done, listed.get(&id).copied().unwrap_or(0)));
            }
            SessionEvent::Lost(why) => panic!("lost: {why}"),
            _ => {}
        }
    }
    ended
}

fn list(path: &str) -> (JobKind, Option<u64>) {
    let path = RemotePath(path.as_bytes().to_vec());
    (JobKind::List { path, most: None }, None)
}

#[test]
fn a_listing_too_long_for_one_flight_goes_on_by_itself() -> io::Result<()> {
    for seed in 0..20 {
        let mut fs = Fs::default();
        place(&mut fs, directory("logs", 699));
        let link = MemoryLink::new(fs, SftpServerProfile::openssh(), true, seed);
        let session = Session::start(Box::new(link), SessionOptions::default())?;
        let began = Instant::now();
        let ended = run(&session, vec![list("logs")]);
        // Entries that were listed before a lane without predictions took over are reported again.
        assert!(ended[&1].0 && ended[&1].1 >= 699, "{seed}: {ended:?}");
        assert!(began.elapsed() < Duration::from_secs(1), "{seed}");
    }
    Ok(())
}

#[test]
fn a_session_with_work_is_always_woken() -> io::Result<()> {
    let here = tempfile::tempdir()?;
    let seeds = std::env::var("SEEDS").map_or(0..40, |n| 0..n.parse().unwrap_or(40));
    for seed in seeds {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let mut fs = Fs::default();
        let mut jobs = Vec::new();
        for n in 0..1 + rng.below(12) {
            let entries = [0, 3, 99, 600, 697, 698, 699, 1400][rng.below(8) as usize];
            let name = format!("d{n}");
            place(&mut fs, directory(&name, entries));
            jobs.push(list(&name));
        }
        for n in 0..rng.below(30) {
            let size = [0, 1, 5000, 300_000][rng.below(4) as usize];
            let name = format!("file{n}");
            place(&mut fs, vec![(name.clone(), Kind::File(vec![7; size]))]);
            let source = here.path().join(format!("{seed}-{n}"));
            let path = RemotePath(name.into_bytes());
            let options = FileCopyOptions::default();
            jobs.push(match rng.below(4) {
                0 => (JobKind::Stat { path, follow: true }, None),
                1 => {
                    std::fs::write(&source, vec![9; size])?;
                    let target = path;
                    let kind = JobKind::Put {
                        source,
                        target,
                        options,
                    };
                    (kind, Some(size as u64))
                }
                _ => {
                    let known = Attributes {
                        size: Some(size as u64),
                        mode: Some(0o100_644),
                        ..Attributes::default()
                    };
                    assert_eq!(known.kind(), EntryKind::File);
                    let kind = JobKind::Get {
                        source: path,
                        target: source.into(),
                        known: Some(known).filter(|_| rng.below(2) == 0),
                        options,
                    };
                    (kind, Some(size as u64))
                }
            });
        }
        for at in (1..jobs.len()).rev() {
            jobs.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let (server, openssh) = match rng.below(3) {
            0 => (SftpServerProfile::other(), false),
            _ => (SftpServerProfile::openssh(), true),
        };
        let link = MemoryLink::new(fs, server, openssh, seed);
        let session = Session::start(Box::new(link), SessionOptions::default())?;
        let ended = run(&session, jobs);
        let failed: Vec<_> = ended.iter().filter(|(_, (done, _))| !done).collect();
        assert!(failed.is_empty(), "{seed}: {failed:?}");
    }
    Ok(())
}

/// Downloads a file of 3 MB from a server that ignores READs on its first `channels` channels;
/// returns the job's last event and the messages to the user.
fn download(
    channels: usize,
    server: SftpServerProfile,
    openssh: bool,
) -> io::Result<(Option<LaneEvent>, Vec<String>)> {
    let here = tempfile::tempdir()?;
    let mut fs = Fs::default();
    place(
        &mut fs,
        vec![("big".to_owned(), Kind::File(vec![5; 3_000_000]))],
    );
    let mut link = MemoryLink::new(fs, server, openssh, 3);
    (link.most, link.window, link.forgets) = (4, 1 << 20, (channels, 4));
    let options = SessionOptions {
        patience: Duration::from_millis(100),
        ..SessionOptions::default()
    };
    let session = Session::start(Box::new(link), options)?;
    let kind = JobKind::Get {
        source: RemotePath(b"big".to_vec()),
        target: here.path().join("big").into(),
        known: None,
        options: FileCopyOptions::default(),
    };
    session.submit(Job { id: JobId(1), kind }, Some(3_000_000));
    let (mut told, until) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match session.events().recv_timeout(left) {
            Ok(SessionEvent::Stalled(notice)) => told.push(notice.to_string()),
            Ok(SessionEvent::Lane(event)) if event.is_last() => return Ok((Some(event), told)),
            Ok(SessionEvent::Lost(_)) | Err(_) => return Ok((None, told)),
            Ok(_) => {}
        }
        // READs are not repeated with OpenSSH, so the messages are sufficient.
        if openssh && told.len() == 3 {
            return Ok((None, told));
        }
    }
}

#[test]
fn requests_that_a_server_drops_are_repeated_with_fewer_at_once() -> io::Result<()> {
    let (ended, told) = download(1, SftpServerProfile::other(), false)?;
    assert_eq!(ended, Some(LaneEvent::Done(JobId(1))), "{told:?}");
    let repeated = |t: &&String| t.starts_with("big: no answer to READ for ");
    let repeated = told.iter().find(repeated).expect("a request was repeated");
    assert!(repeated.contains("requests in flight"), "{repeated}");
    Ok(())
}

#[test]
fn a_server_that_never_answers_is_one_error_after_a_few_tries() -> io::Result<()> {
    let (ended, told) = download(100, SftpServerProfile::other(), false)?;
    let Some(LaneEvent::Failed(_, fault)) = ended else {
        panic!("{ended:?} {told:?}");
    };
    assert!(
        fault.what.contains("stopped answering requests"),
        "{fault:?}"
    );
    let repeated = told.iter().filter(|t| t.contains("repeating it")).count();
    assert!((2..=5).contains(&repeated), "{told:?}");
    Ok(())
}

#[test]
fn what_a_server_that_answers_in_order_owes_is_told_and_not_repeated() -> io::Result<()> {
    let (ended, told) = download(1, SftpServerProfile::openssh(), true)?;
    assert_eq!(ended, None);
    assert!(
        told.iter()
            .all(|t| t.starts_with("big: ") && t.ends_with("waiting for the answer to READ")),
        "{told:?}"
    );
    Ok(())
}

/// `longhaul bootstrap` waited for ever for the end of such output.
#[test]
fn a_command_that_prints_for_ever_is_an_error() -> io::Result<()> {
    let mut link = MemoryLink::new(Fs::default(), SftpServerProfile::openssh(), true, 3);
    link.commands = true;
    let session = Session::start(Box::new(link), SessionOptions::default())?;
    let said = FarEndQuerySession::new(session, CancelToken::default()).ask("uname", &|_| {});
    let why = said.expect_err("no end of output");
    assert!(
        why.to_string().contains("printed more than 65536 bytes"),
        "{why}"
    );
    Ok(())
}
