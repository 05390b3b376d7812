//! Copies of a mixed tree that are interrupted at seeded random moments, and repeated until
//! complete.

mod witness;

use std::process::Command;
use std::time::{Duration, Instant};

use testkit::delay_proxy::Way;
use testkit::tree::write_file;
use testkit::{DelayProxy, PeerKind, Running, Seed};

use crate::Scene;
use witness::{Witness, files_below};

/// Interruption of a run.
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
    /// Nothing gets through for this time.
    Blackout(Duration),
}

impl Interruption {
    /// Reports if the interruption ends the run.
    fn is_end(self) -> bool {
        matches!(self, Self::Kill | Self::Interrupt)
    }
}

/// Tree, and the path over which it is copied.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of large files.
    pub large: u32,
    /// Size of the largest file in bytes; each large one has at least half of it.
    pub size: u64,
    /// Number of files of up to 20 kB.
    pub small: u32,
    /// Rate of a connection in bytes per second; `None` is unlimited.
    pub rate: Option<u64>,
    /// Round-trip time.
    pub rtt: Duration,
}

/// Tree, and its copies over a slow path.
#[derive(Debug)]
pub struct Interrupted {
    /// Server, client and files.
    pub scene: Scene,
    proxy: DelayProxy,
    up: bool,
    total: u64,
}

/// Result of one copy.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of runs.
    pub runs: u32,
    /// Interruptions that took place; fewer than planned if the copy was complete before.
    pub applied: Vec<Interruption>,
    /// Bytes that crossed the path beyond the size of the tree.
    pub again: u64,
}

/// Moment of an interruption.
enum Moment {
    /// This many bytes have crossed the path.
    Carried(u64),
    At(Instant),
}

impl Interrupted {
    /// Creates a tree from `seed`, and a server behind a path.
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

    /// Copies until complete, and interrupts each run at a random moment.
    ///
    /// # Panics
    /// Panics if a final name has other content than its source, or if the copy does not finish.
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
                // Background jobs of a shell ignore SIGINT, and so do their children.
                Some(0) if last == Some(&Interruption::Interrupt) && moved < self.total / 2 => {
                    panic!("SIGINT is ignored here: {outcome}");
                }
                Some(0) => break,
                // A copy that had not started has nothing to resume.
                Some(130) if moved > 1 << 20 => {
                    assert!(outcome.err().contains("to resume"), "{outcome}");
                }
                Some(130 | 255) | None => {}
                // Requests that failed when the server was killed may count as failures of single
                // files.
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

    /// Returns a moment anywhere in the data, or, one time in six, soon after the start: the login
    /// and the first small files take few bytes.
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

    /// Checks that a complete copy leaves no journal.
    ///
    /// # Panics
    /// Panics if there is a journal.
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
    // The process may have ended meanwhile.
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
}
