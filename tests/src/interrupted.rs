//! Copies of a mixed tree that are interrupted at seeded random moments and begun again until
//! they are whole.

mod witness;

use std::process::Command;
use std::time::{Duration, Instant};

use testkit::delay_proxy::Way;
use testkit::tree::write_file;
use testkit::{DelayProxy, PeerKind, Running, Seed};

use crate::Scene;
use witness::{Witness, files_below};

/// What ends a run, or hinders it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// SIGKILL of the client.
    Kill,
    /// SIGINT to the client.
    Interrupt,
    /// SIGKILL of the server's sessions.
    KillServer,
    /// The connections are reset.
    Reset,
    /// Nothing gets through for a while.
    Blackout(Duration),
}

impl Interruption {
    /// What a run does not survive.
    fn is_end(self) -> bool {
        matches!(self, Self::Kill | Self::Interrupt)
    }
}

/// A tree, and the path it is copied over.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Large files.
    pub large: u32,
    /// Bytes of the largest; each has at least half of it.
    pub size: u64,
    /// Files of up to 20 kB.
    pub small: u32,
    /// Bytes a second of a connection; None: as fast as this machine does it.
    pub rate: Option<u64>,
    /// The round trip.
    pub rtt: Duration,
}

/// A tree, and its copies over a slow path.
#[derive(Debug)]
pub struct Interrupted {
    /// Server, client and files.
    pub scene: Scene,
    proxy: DelayProxy,
    up: bool,
    total: u64,
}

/// What came of one copy.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Runs that it took.
    pub runs: u32,
    /// What it was interrupted by. Less than was asked for if it was whole before.
    pub applied: Vec<Interruption>,
    /// Bytes that crossed the path beyond those of the tree.
    pub again: u64,
}

/// When to interrupt.
enum Moment {
    /// So much has crossed the path.
    Carried(u64),
    At(Instant),
}

impl Interrupted {
    /// A tree made from `seed`, and a server behind a path.
    pub fn new(seed: u64, up: bool, shape: Shape) -> Option<Self> {
        let mut scene = Scene::start(PeerKind::OpenSsh)?;
        let mut random = Seed::new(seed);
        let small_folders = (0..7).map(|n| format!("from/small/{n}"));
        for folder in small_folders.chain(["from/large".to_owned(), "at".to_owned()]) {
            std::fs::create_dir_all(scene.path(&folder)).expect("our folder");
        }
        let mut total = 0;
        let mut put = |name: String, content: &[u8]| {
            total += content.len() as u64;
            write_file(&scene.path(&name), content);
        };
        for n in 0..shape.large {
            let len = shape.size / 2 + random.below(shape.size / 2);
            put(format!("from/large/{n}.bin"), &random.bytes(len as usize));
        }
        for n in 0..shape.small {
            let len = random.below(20_000) as usize;
            put(format!("from/small/{}/{n}", n % 7), &random.bytes(len));
        }
        let mut proxy = DelayProxy::to(scene.peer.addr()).rtt(shape.rtt);
        if let Some(rate) = shape.rate {
            proxy = proxy.rate(rate);
        }
        let proxy = proxy.start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        Some(Self {
            scene,
            proxy,
            up,
            total,
        })
    }

    fn way(&self) -> Way {
        if self.up { Way::Up } else { Way::Down }
    }

    /// Copies until it is whole, interrupting it each time at a random moment.
    ///
    /// # Panics
    /// If a final name has what is not its source's, or the copy does not come to an end.
    #[track_caller]
    pub fn copies(&self, random: &mut Seed, interruptions: &[Interruption]) -> Tally {
        let (source, target) = (self.scene.path("from"), self.scene.path("at/to"));
        let _ = std::fs::remove_dir_all(&target);
        let mut witness = Witness::new(source, target);
        let began = self.proxy.carried(self.way());
        let mut tally = Tally::default();
        let mut left = interruptions.iter().copied().peekable();
        loop {
            tally.runs += 1;
            assert!(tally.runs < 4 * interruptions.len() as u32 + 4, "{tally:?}");
            let before_this = tally.applied.len();
            let (running, before) = (self.spawn(), self.proxy.carried(self.way()));
            while let Some(how) = left.peek().copied() {
                let moment = self.moment(random, interruptions.len() as u64);
                if !running.until(|| {
                    witness.glance();
                    self.has_come(&moment)
                }) {
                    break;
                }
                left.next();
                tally.applied.push(how);
                self.interrupt(how, &running);
                if how.is_end() {
                    break;
                }
            }
            running.until(|| {
                witness.glance();
                false
            });
            let outcome = running.wait();
            witness.look();
            assert!(!outcome.timed_out, "{tally:?}: {outcome}");
            let moved = self.proxy.carried(self.way()) - before;
            let last = tally.applied[before_this..].last();
            match outcome.code {
                // A shell's background jobs ignore it, and what they start.
                Some(0) if last == Some(&Interruption::Interrupt) && moved < self.total / 2 => {
                    panic!("SIGINT is ignored here: {outcome}");
                }
                Some(0) => break,
                // One that had not begun has nothing to go on with.
                Some(130) if moved > 1 << 20 => {
                    assert!(outcome.err().contains("to go on"), "{outcome}");
                }
                Some(130 | 255) | None => {}
                // What was refused when the server was killed may be a file's own failure.
                _ => assert!(
                    tally.applied.contains(&Interruption::KillServer),
                    "{tally:?}: {outcome}"
                ),
            }
        }
        witness.whole();
        self.check_no_journal();
        let carried = self.proxy.carried(self.way()) - began;
        tally.again = carried.saturating_sub(self.total);
        tally
    }

    fn spawn(&self) -> Running {
        let cp = self.scene.client.cp().arg("-r");
        let cp = cp.timeout(Duration::from_secs(180));
        match self.up {
            true => cp
                .arg(self.scene.path("from"))
                .arg(self.scene.remote("at/to")),
            false => cp
                .arg(self.scene.remote("from"))
                .arg(self.scene.path("at/to")),
        }
        .spawn()
    }

    /// Anywhere in what is to be carried, or, one in six, soon: the login and the first small
    /// files are few bytes.
    fn moment(&self, random: &mut Seed, of: u64) -> Moment {
        if random.below(6) == 0 {
            return Moment::At(Instant::now() + Duration::from_millis(random.below(1200)));
        }
        let share = self.total / of.max(1);
        Moment::Carried(self.proxy.carried(self.way()) + random.below(share))
    }

    fn has_come(&self, moment: &Moment) -> bool {
        match moment {
            Moment::Carried(bytes) => self.proxy.carried(self.way()) >= *bytes,
            Moment::At(at) => Instant::now() >= *at,
        }
    }

    fn interrupt(&self, how: Interruption, running: &Running) {
        match how {
            Interruption::Kill => kill(running.pid()),
            Interruption::Interrupt => running.interrupt(),
            Interruption::KillServer => self.scene.peer.sessions().into_iter().for_each(kill),
            Interruption::Reset => self.proxy.cut_now(),
            Interruption::Blackout(how_long) => self.proxy.blackout(how_long),
        }
    }

    /// A copy that is whole leaves none.
    ///
    /// # Panics
    /// If it has.
    #[track_caller]
    pub fn check_no_journal(&self) {
        let state = self.scene.client.dir.path().join("state/longhaul");
        for folder in [self.scene.path("at"), state] {
            let files = files_below(&folder).into_keys();
            let journals: Vec<_> = files
                .filter(|f| f.extension().is_some_and(|e| e == "journal"))
                .collect();
            assert!(journals.is_empty(), "{journals:?}");
        }
    }
}

fn kill(pid: u32) {
    // One that has ended meanwhile is no failure.
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
}
