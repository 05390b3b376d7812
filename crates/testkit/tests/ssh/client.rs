//! Client side of the test: the session loop and its link, without I/O.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use schedule::{
    FileCopyOptions, Job, JobId, JobKind, Lane, LaneConfig, LaneError, LaneEvent, RemotePath,
};
use sftp::{ClientOutput, ServerInfo};
use ssh::auth::{AuthConfig, AuthMethod, ClientAuthEvent, OfferedIdentity};
use ssh::channel::{ChannelEvent, ChannelId, ChannelsConfig, OutgoingRequest};
use ssh::key::PrivateKey;
use ssh::transport::{AlgorithmProposal, KexGuess, TransportConfig, TransportEvent};
use ssh::{Connection, ConnectionConfig, ConnectionEvent, EarlyMessages};
use testkit::sftp_model::SftpServerProfile;
use testkit::sim::Seeded;
use wire::PacketPool;
use zeroize::Zeroizing;

use crate::disk::{Disk, Source};

const QUEUE: usize = 2 << 20;

/// Credentials of the client, and its knowledge of the server from earlier connections.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) keys: Vec<Arc<PrivateKey>>,
    /// Keys sign at once, without a query first.
    pub(crate) direct: bool,
    pub(crate) password: Option<String>,
    pub(crate) answers: Option<Vec<String>>,
    pub(crate) proposal: AlgorithmProposal,
    pub(crate) guess: KexGuess,
    /// The first key was accepted on this host key before.
    pub(crate) proven: bool,
    /// A channel is opened together with authentication, before its result is known.
    pub(crate) opening: bool,
    /// The properties of the SFTP server are known.
    pub(crate) remembered: bool,
    pub(crate) rekey_bytes: Option<u64>,
    /// Bytes of IGNORE that are sent as early as possible, and again after each flight of the
    /// login, as a link does to open TCP's congestion window.
    pub(crate) filler: usize,
}

impl Setup {
    pub(crate) fn new(keys: Vec<Arc<PrivateKey>>, proposal: AlgorithmProposal) -> Self {
        Self {
            keys,
            direct: true,
            password: None,
            answers: None,
            proposal,
            guess: KexGuess::Never,
            proven: false,
            opening: false,
            remembered: false,
            rekey_bytes: None,
            filler: 0,
        }
    }
}

/// Reason for the end of a connection.
#[derive(Debug)]
#[allow(dead_code, reason = "what a failing test shows")]
pub(crate) enum End {
    Ssh(ssh::Error),
    Lane(LaneError),
    Denied(String),
    /// The connection is to be started again, step by step.
    Restart(&'static str),
    Closed,
}

/// Client under test: its connection, lane and disk, which the world moves on.
pub(crate) struct Client {
    setup: Setup,
    pub(crate) conn: Connection,
    pub(crate) lane: Option<Lane>,
    pub(crate) channel: Option<ChannelId>,
    received: BytesMut,
    pool: PacketPool,
    pub(crate) disk: Disk,
    pub(crate) jobs: Vec<Job>,
    pub(crate) events: Vec<(Instant, LaneEvent)>,
    /// All texts that a server could have put on the screen.
    pub(crate) shown: Vec<String>,
    pub(crate) key_exchanges: usize,
    pub(crate) step_by_step: bool,
    pub(crate) most_input: usize,
    seed: u64,
    next_job: u64,
}

fn engine(setup: &Setup, pool: &PacketPool, seed: u64) -> Connection {
    let config = ConnectionConfig {
        transport: TransportConfig {
            software: "longhaul_test".to_owned(),
            proposal: setup.proposal.clone(),
            guess: setup.guess,
            rekey_bytes: setup.rekey_bytes,
            rekey_time: None,
            host_keys: Vec::new(),
        },
        channels: ChannelsConfig::default(),
        alive_interval: None,
        alive_count: 0,
    };
    let mut rng = Seeded::new(seed);
    let random = Box::new(move |to: &mut [u8]| rng.fill(to));
    Connection::client(config, pool.clone(), random).expect("a sound setup")
}

impl Client {
    pub(crate) fn new(setup: Setup, seed: u64) -> Self {
        let pool = PacketPool::new(32 << 10, 64);
        Self {
            conn: engine(&setup, &pool, seed),
            setup,
            lane: None,
            channel: None,
            received: BytesMut::new(),
            pool,
            disk: Disk::default(),
            jobs: Vec::new(),
            events: Vec::new(),
            shown: Vec::new(),
            key_exchanges: 0,
            step_by_step: false,
            most_input: 0,
            seed,
            next_job: 0,
        }
    }

    fn job(&mut self, kind: JobKind) -> JobId {
        self.next_job += 1;
        let id = JobId(self.next_job);
        self.jobs.push(Job { id, kind });
        id
    }

    pub(crate) fn put(&mut self, data: Vec<u8>, target: &str) -> JobId {
        let source = PathBuf::from(format!("/src/{target}"));
        self.disk.sources.insert(source.clone(), Source::new(data));
        let target = RemotePath(target.as_bytes().to_vec());
        let options = FileCopyOptions::default();
        self.job(JobKind::Put {
            source,
            target,
            options,
        })
    }

    pub(crate) fn stat(&mut self, path: &str) -> JobId {
        self.job(JobKind::Stat {
            path: RemotePath(path.as_bytes().to_vec()),
            follow: true,
        })
    }

    pub(crate) fn get(&mut self, source: &str) -> JobId {
        self.job(JobKind::Get {
            source: RemotePath(source.as_bytes().to_vec()),
            target: PathBuf::from(format!("/dst/{source}")).into(),
            known: None,
            options: FileCopyOptions::default(),
        })
    }

    pub(crate) fn done_at(&self, job: JobId) -> Option<Instant> {
        let done = LaneEvent::Done(job);
        self.events.iter().find(|(_, e)| *e == done).map(|e| e.0)
    }

    /// Reports if every job has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.jobs.is_empty() && self.lane.as_ref().is_some_and(Lane::is_idle)
    }

    /// Starts a new connection without predictions, for the remaining work.
    pub(crate) fn restart(&mut self) {
        self.step_by_step = true;
        self.seed += 100;
        self.conn = engine(&self.setup, &self.pool, self.seed);
        self.received.clear();
        self.lose_lane();
    }

    fn lose_lane(&mut self) {
        self.channel = None;
        if let Some(lane) = self.lane.take() {
            let left = lane.into_unfinished();
            self.jobs.splice(0..0, left.jobs);
        }
    }

    pub(crate) fn handle_input(&mut self, now: Instant, bytes: &[u8]) -> Result<(), End> {
        self.received.extend_from_slice(bytes);
        self.most_input = self.most_input.max(self.received.len());
        let handled = self.conn.handle_input(now, &mut self.received);
        self.pump(now)?;
        handled.map_err(|e| self.broken(e))
    }

    /// Handles the close of the connection by the server.
    pub(crate) fn handle_eof(&self) -> End {
        match self.conn.is_early() {
            true => End::Restart("closed"),
            false => End::Closed,
        }
    }

    fn broken(&self, e: ssh::Error) -> End {
        self.shown_error(&e);
        match self.conn.is_early() {
            true => End::Restart("broken"),
            false => End::Ssh(e),
        }
    }

    fn shown_error(&self, e: &ssh::Error) {
        assert!(!e.to_string().contains('\x1b'), "{e:?}");
    }

    fn pump(&mut self, now: Instant) -> Result<(), End> {
        while let Some(event) = self.conn.poll_event() {
            match event {
                ConnectionEvent::Transport(TransportEvent::HostKey(_)) => self.trust(now)?,
                ConnectionEvent::Transport(TransportEvent::Debug(text)) => self.shown.push(text),
                ConnectionEvent::Transport(TransportEvent::Keys { .. }) => self.key_exchanges += 1,
                ConnectionEvent::Transport(_) => {}
                ConnectionEvent::Auth(event) => self.handle_auth(event)?,
                ConnectionEvent::Login(event) => panic!("nobody logs in to a client: {event:?}"),
                ConnectionEvent::Channel(event) => self.handle_channel(now, event)?,
                ConnectionEvent::Retracted => self.lose_lane(),
                // This client knows all keys that it wants to know.
                ConnectionEvent::HostKeysAnnounced(_) | ConnectionEvent::HostKeysProven(_) => {}
            }
        }
        Ok(())
    }

    fn trust(&mut self, now: Instant) -> Result<(), End> {
        self.conn
            .accept_host_key()
            .and_then(|()| self.conn.handle_input(now, &mut self.received))
            .map_err(End::Ssh)?;
        let Some((session_id, host_key, _)) = self.conn.binding() else {
            return Ok(());
        };
        let openssh = self.conn.peer().is_some_and(|p| p.openssh().is_some());
        let early = match openssh && !self.step_by_step {
            true if self.setup.proven => EarlyMessages::Everything,
            true if self.setup.opening => EarlyMessages::Opening(sftp::INIT.len() as u32),
            _ => EarlyMessages::Nothing,
        };
        let identities = self.setup.keys.iter().map(|key| OfferedIdentity {
            blob: key.public_blob().to_vec(),
            algorithms: vec!["ssh-ed25519".to_owned()],
            direct: self.setup.direct,
        });
        let config = AuthConfig {
            user: "user".to_owned(),
            methods: vec![
                AuthMethod::PublicKey,
                AuthMethod::KeyboardInteractive,
                AuthMethod::Password,
            ],
            identities: identities.collect(),
            session_id,
            host_key,
            hostbound: self.conn.extensions().hostbound,
            signature_algorithms: self.conn.extensions().sig_algs.clone(),
            max_prompts: 3,
        };
        self.conn.start_auth(config, early).map_err(End::Ssh)
    }

    fn handle_auth(&mut self, event: ClientAuthEvent) -> Result<(), End> {
        let early = self.conn.is_early();
        let Some(auth) = self.conn.auth() else {
            return Ok(());
        };
        match event {
            ClientAuthEvent::Sign { identity, data, .. } => {
                let key = self.setup.keys.get(identity);
                let signature = key.and_then(|key| key.sign("ssh-ed25519", &data).ok());
                auth.sign(signature.as_deref());
            }
            ClientAuthEvent::Password { .. } => {
                let password = self.setup.password.clone().map(Zeroizing::new);
                auth.password(password.as_ref());
            }
            ClientAuthEvent::Prompts {
                name,
                instruction,
                prompts,
            } => {
                self.shown.extend([name, instruction]);
                self.shown.extend(prompts.into_iter().map(|p| p.text));
                let answers = self.setup.answers.clone();
                let answers =
                    answers.map(|a| a.into_iter().map(Zeroizing::new).collect::<Vec<_>>());
                auth.answers(answers.as_deref());
            }
            ClientAuthEvent::Banner(text) => self.shown.push(text),
            ClientAuthEvent::Success => {}
            ClientAuthEvent::Failed { .. } if early => return Err(End::Restart("refused")),
            ClientAuthEvent::Failed { server, why } => {
                let text = format!("{} {}", server.join(","), why.unwrap_or_default());
                return Err(End::Denied(text));
            }
        }
        Ok(())
    }

    fn handle_channel(&mut self, now: Instant, event: ChannelEvent) -> Result<(), End> {
        match event {
            ChannelEvent::PredictionFailed(_) => return Err(End::Restart("prediction")),
            ChannelEvent::Data(id, bytes) => {
                self.conn.channels().consumed(now, id, bytes.len());
                if let Some(lane) = &mut self.lane {
                    lane.handle_input(now, bytes).map_err(End::Lane)?;
                }
            }
            ChannelEvent::ExtendedData(id, bytes) => {
                self.conn.channels().consumed(now, id, bytes.len());
            }
            ChannelEvent::OpenFailed { description, .. } => {
                self.shown.push(description.clone());
                return Err(End::Lane(LaneError::Closed(description)));
            }
            ChannelEvent::RequestFailed(_) | ChannelEvent::Closed(_) => {
                return Err(End::Lane(LaneError::Closed("closed".to_owned())));
            }
            ChannelEvent::ExitSignal(_, name) => self.shown.push(name),
            ChannelEvent::AgentOpened(id) => self.conn.channels().reject(id, "no agent"),
            _ => {}
        }
        Ok(())
    }

    fn open_lane(&mut self, now: Instant) {
        let Some(openssh) = self.conn.peer().map(|p| p.openssh().is_some()) else {
            return;
        };
        let predicted = openssh && !self.step_by_step;
        let channels = self.conn.channels();
        let id = match predicted {
            true => channels.open_session_predicted(),
            false => channels.open_session(),
        };
        channels.request(id, OutgoingRequest::Subsystem(b"sftp".to_vec()), true);
        let mut rng = Seeded::new(self.seed + 1);
        let random = Box::new(move |to: &mut [u8]| rng.fill(to));
        let mut config = LaneConfig::new(self.pool.clone(), random);
        config.openssh = openssh;
        config.predict = openssh;
        config.remembered = (self.setup.remembered && predicted).then(|| ServerInfo {
            version: 3,
            extensions: SftpServerProfile::openssh().extensions,
            limits: None,
        });
        self.lane = Some(Lane::new(config, now));
        self.channel = Some(id);
    }

    /// Processes everything that is ready, and returns the bytes to write.
    pub(crate) fn drain(&mut self, now: Instant) -> Result<Vec<u8>, End> {
        if self.lane.is_none() && !self.jobs.is_empty() {
            self.open_lane(now);
        }
        let mut written = Vec::new();
        let mut fills = self.setup.filler > 0 && !self.conn.is_authenticated();
        loop {
            while let Some(output) = self.conn.poll_output().map_err(End::Ssh)? {
                let sealed = output.seal().map_err(End::Ssh)?;
                written.extend(sealed.to_vec().expect("it is in memory"));
            }
            fills &= !written.is_empty();
            if !std::mem::take(&mut fills) {
                break;
            }
            self.conn.ignore(self.setup.filler).map_err(End::Ssh)?;
        }
        if let (Some(lane), Some(id)) = (&mut self.lane, self.channel) {
            while lane.wants_jobs() > 0 && !self.jobs.is_empty() {
                let job = self.jobs.remove(0);
                lane.push(now, job);
            }
            loop {
                let mut moved = false;
                while let Some(request) = lane.poll_disk() {
                    self.disk.handle(now, request);
                    moved = true;
                }
                while let Some(reply) = self.disk.reply(now) {
                    lane.handle_disk(now, reply);
                    moved = true;
                }
                lane.set_output_room(QUEUE.saturating_sub(self.conn.queued(id)));
                while let Some(output) = lane.poll_output() {
                    moved = true;
                    match output {
                        ClientOutput::Bytes(bytes) => self.conn.channels().write(id, &bytes),
                        ClientOutput::Block(block) => self.conn.channels().write_block(id, block),
                    }
                }
                while let Some(event) = lane.poll_event() {
                    self.events.push((now, event));
                }
                while let Some(output) = self.conn.poll_output().map_err(End::Ssh)? {
                    moved = true;
                    let sealed = output.seal().map_err(End::Ssh)?;
                    written.extend(sealed.to_vec().expect("it is in memory"));
                }
                if !moved {
                    break;
                }
            }
        }
        Ok(written)
    }
}
