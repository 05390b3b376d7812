//! Both ends, the path between them, and virtual time.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ssh::key::PrivateKey;
use testkit::sftp_model::{Fs, Kind, SftpModel, SftpServerProfile};
use testkit::sim::{Path, Seeded, Wire};
use testkit::sshd_model::{SshdModel, SshdModelSettings, Way};

use crate::client::{Client, End, Setup};

pub(crate) const RTT: Duration = Duration::from_millis(100);

/// Keys of this run: the host's, and those of two users.
pub(crate) fn keys() -> &'static [Arc<PrivateKey>; 3] {
    static KEYS: OnceLock<[Arc<PrivateKey>; 3]> = OnceLock::new();
    KEYS.get_or_init(|| {
        [1, 2, 3].map(|n| Arc::new(PrivateKey::from_ed25519_seed(&[n; 32]).expect("a key")))
    })
}

/// Returns the settings of an sshd that accepts the first user's key.
pub(crate) fn sshd() -> SshdModelSettings {
    let [host, user, _] = keys();
    let way = Way::Key(user.public_blob().to_vec());
    SshdModelSettings::openssh(Arc::clone(host), vec![way])
}

/// Returns a client with the first user's key on its first visit, with the server's preferred
/// algorithms.
pub(crate) fn setup() -> Setup {
    Setup::new(vec![Arc::clone(&keys()[1])], sshd().proposal)
}

/// Returns a client that already knows the host, the accepted key and the SFTP server.
pub(crate) fn known() -> Setup {
    Setup {
        proven: true,
        remembered: true,
        ..setup()
    }
}

pub(crate) fn path() -> Path {
    Path::rtt(RTT)
}

pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    Seeded::new(seed).fill(&mut data);
    data
}

/// A client, a model of a server and the path between them, in virtual time.
pub(crate) struct World {
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) client: Client,
    pub(crate) server: SshdModel,
    config: SshdModelSettings,
    path: Path,
    up: Wire,
    down: Wire,
    accepts: Instant,
    started: bool,
    /// Number of bytes to the server and to the client after which the path breaks.
    pub(crate) cut: (Option<u64>, Option<u64>),
    pub(crate) delivered: (u64, u64),
    pub(crate) restarts: usize,
    /// Message that the server sends after this many messages have been received.
    pub(crate) on_log: Option<(usize, Vec<u8>)>,
    seed: u64,
}

impl World {
    pub(crate) fn new(setup: Setup, config: SshdModelSettings) -> Self {
        Self::on(setup, config, path(), 1)
    }

    pub(crate) fn on(setup: Setup, config: SshdModelSettings, path: Path, seed: u64) -> Self {
        let start = Instant::now();
        let sftp = SftpModel::new(Fs::default(), SftpServerProfile::openssh());
        let mut world = Self {
            start,
            now: start,
            client: Client::new(setup, seed),
            server: SshdModel::new(config.clone(), sftp, seed + 7),
            config,
            path,
            up: Wire::new(path, seed),
            down: Wire::new(path, seed),
            accepts: start,
            started: false,
            cut: (None, None),
            delivered: (0, 0),
            restarts: 0,
            on_log: None,
            seed,
        };
        world.connect();
        world
    }

    /// connect() takes a round trip; sshd accepts half a round trip later.
    fn connect(&mut self) {
        self.now += 2 * self.path.delay;
        self.accepts = self.now + self.path.delay;
        self.started = false;
        self.up = Wire::new(self.path, self.seed);
        let down = Path {
            nagle: true,
            ..self.path
        };
        self.down = Wire::new(down, self.seed + 1);
    }

    fn restart(&mut self) {
        self.restarts += 1;
        self.client.restart();
        let sftp = SftpModel::new(Fs::default(), SftpServerProfile::openssh());
        let new = SshdModel::new(self.config.clone(), sftp, self.seed + 50);
        let old = std::mem::replace(&mut self.server, new);
        self.server.sftp = old.sftp;
        self.server.sftp.reconnect();
        self.connect();
    }

    pub(crate) fn place(&mut self, path: &str, data: &[u8]) {
        let kind = Kind::File(data.to_vec());
        self.server.sftp.fs.place(path, kind, 0o644);
    }

    /// Runs until every job has ended, or the connection has.
    pub(crate) fn run(&mut self) -> Result<(), End> {
        for _ in 0..3_000_000 {
            match self.turn() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(End::Restart(why)) => {
                    assert!(self.restarts < 2, "begun anew again and again: {why}");
                    self.restart();
                    continue;
                }
                Err(end) => return Err(end),
            }
            let starts = (!self.started).then_some(self.accepts);
            let next = [
                self.up.next(),
                self.down.next(),
                starts,
                self.client.disk.next_reply(),
            ];
            let Some(next) = next.into_iter().flatten().min() else {
                panic!(
                    "nothing is on its way; authenticated {}, server {:?} {:?}, lane {:?}",
                    self.client.conn.is_authenticated(),
                    self.server.error(),
                    self.server.log(),
                    self.client.lane.as_ref().map(schedule::Lane::stats),
                );
            };
            self.now = self.now.max(next);
            if let Err(end) = self.deliver() {
                match end {
                    End::Restart(_) if self.restarts < 2 => self.restart(),
                    end => return Err(end),
                }
            }
        }
        panic!("no end");
    }

    /// Advances to the next event; true when everything is done.
    fn turn(&mut self) -> Result<bool, End> {
        let now = self.now;
        self.started |= now >= self.accepts;
        let written = self.client.drain(now)?;
        self.up.write(now, &written);
        self.pass_on();
        if self.client.is_done() {
            return Ok(true);
        }
        let closed = self.server.error().is_some() && self.down.next().is_none();
        let cut = self.up.is_cut() || self.down.is_cut();
        match closed || cut {
            true => Err(self.client.handle_eof()),
            false => Ok(false),
        }
    }

    /// Passes the output of the server to the path.
    fn pass_on(&mut self) {
        while self.started
            && let Some(bytes) = self.server.poll_write()
        {
            self.down.write(self.now, &bytes);
        }
        if self.server.nodelay() {
            self.down.set_nodelay(self.now);
        }
    }

    fn deliver(&mut self) -> Result<(), End> {
        let now = self.now;
        if now >= self.accepts {
            let bytes = self.up.read(now);
            self.delivered.0 += bytes.len() as u64;
            if !bytes.is_empty() {
                // The kernel sends what an acknowledgement releases before sshd reads anything.
                self.down.write(now, &[]);
                self.server.handle_input(now, &bytes);
                if let Some((_, payload)) = self
                    .on_log
                    .take_if(|(count, _)| *count <= self.server.log().len())
                {
                    self.server.send(&payload);
                }
                self.pass_on();
            }
        }
        let mut bytes = self.down.read(now);
        let before = self.delivered.1;
        self.delivered.1 += bytes.len() as u64;
        if self.cut.1.is_some_and(|at| self.delivered.1 >= at) {
            bytes.truncate((self.cut.1.unwrap_or(0) - before) as usize);
            self.cut.1 = None;
            self.down.cut();
        }
        if self.cut.0.is_some_and(|at| self.delivered.0 >= at) {
            self.cut.0 = None;
            self.up.cut();
        }
        match bytes.is_empty() {
            true => Ok(()),
            false => self.client.handle_input(now, &bytes),
        }
    }

    /// Runs, and expects a protocol error.
    pub(crate) fn refused(&mut self) -> ssh::Error {
        match self.run() {
            Err(End::Ssh(e)) => e,
            other => panic!("{other:?}"),
        }
    }
}
