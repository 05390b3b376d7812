//! Copies of a mixed tree that are interrupted at seeded random moments and begun again until
//! they are whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testkit::delay_proxy::Way;
use testkit::tree::{Compare, assert_same, write_file};
use testkit::{DelayProxy, PeerKind, Seed};

use crate::Scene;

/// What ends a run.
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

/// A tree, and its copies over a slow path.
#[derive(Debug)]
pub struct Interrupted {
    /// Server, client and files.
    pub scene: Scene,
    proxy: DelayProxy,
    up: bool,
    sizes: BTreeMap<PathBuf, u64>,
    total: u64,
}

/// What came of one copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Runs that it took.
    pub runs: u32,
    /// Interruptions.
    pub interruptions: u32,
    /// Bytes that crossed the path beyond those of the tree.
    pub again: u64,
}

impl Interrupted {
    /// A tree of `large` files of up to `size` bytes, and `small` ones.
    pub fn new(
        seed: u64,
        up: bool,
        (large, size): (u32, u64),
        small: u32,
        rate: u64,
    ) -> Option<Self> {
        let mut scene = Scene::start(PeerKind::OpenSsh)?;
        let mut random = Seed::new(seed);
        let small_folders = (0..7).map(|n| format!("from/small/{n}"));
        for folder in small_folders.chain(["from/large".to_owned(), "at".to_owned()]) {
            std::fs::create_dir_all(scene.path(&folder)).expect("our folder");
        }
        for n in 0..large {
            let len = size / 2 + random.below(size / 2);
            let content = random.bytes(len as usize);
            write_file(&scene.path(&format!("from/large/{n}.bin")), &content);
        }
        for n in 0..small {
            let len = random.below(20_000) as usize;
            let path = scene.path(&format!("from/small/{}/{n}", n % 7));
            write_file(&path, &random.bytes(len));
        }
        let sizes = files_below(&scene.path("from"));
        let total = sizes.values().sum();
        let proxy = DelayProxy::to(scene.peer.addr())
            .rtt(Duration::from_millis(4))
            .rate(rate)
            .start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        Some(Self {
            scene,
            proxy,
            up,
            sizes,
            total,
        })
    }

    /// Copies until it is whole, interrupting it each time at a random moment.
    ///
    /// # Panics
    /// If a final name has what is not its source's, or the copy does not come to an end.
    #[track_caller]
    pub fn copies(&self, random: &mut Seed, interruptions: &[Interruption]) -> Tally {
        let target = self.scene.path("at/to");
        let _ = std::fs::remove_dir_all(&target);
        let way = if self.up { Way::Up } else { Way::Down };
        let began = self.proxy.carried(way);
        let mut tally = Tally::default();
        let mut left = interruptions.iter();
        loop {
            tally.runs += 1;
            assert!(tally.runs < 4 * interruptions.len() as u32 + 4, "{tally:?}");
            let cp = self
                .scene
                .client
                .cp()
                .arg("-r")
                .timeout(Duration::from_secs(180));
            let run = match self.up {
                true => cp
                    .arg(self.scene.path("from"))
                    .arg(self.scene.remote("at/to")),
                false => cp.arg(self.scene.remote("from")).arg(&target),
            };
            let running = run.spawn();
            if let Some(how) = left.next() {
                let carried = self.proxy.carried(way);
                let share = self.total / (interruptions.len() as u64 + 1);
                let until = carried + random.below(2 * share);
                let mut looked = Instant::now();
                let moment = running.until(|| {
                    if looked.elapsed() > Duration::from_millis(20) {
                        self.check_names(&target);
                        looked = Instant::now();
                    }
                    self.proxy.carried(way) >= until
                });
                if moment {
                    tally.interruptions += 1;
                    self.interrupt(*how, &running);
                }
            }
            let outcome = running.wait();
            self.check_names(&target);
            assert!(!outcome.timed_out, "{outcome}");
            match outcome.code {
                Some(0) => break,
                Some(130) => assert!(outcome.err().contains("to go on"), "{outcome}"),
                Some(255) | None => {}
                // What was refused when the server was killed may be a file's own failure.
                _ => assert!(tally.interruptions > 0, "{outcome}"),
            }
        }
        let compare = Compare::CONTENT;
        assert_same(&self.scene.path("from"), &target, compare);
        let names: Vec<PathBuf> = files_below(&target).into_keys().collect();
        assert_eq!(
            names,
            self.sizes.keys().cloned().collect::<Vec<_>>(),
            "left over"
        );
        self.check_no_journal();
        let carried = self.proxy.carried(way) - began;
        tally.again = carried.saturating_sub(self.total);
        tally
    }

    fn interrupt(&self, how: Interruption, running: &testkit::Running) {
        match how {
            Interruption::Kill => kill(running.pid()),
            Interruption::Interrupt => running.interrupt(),
            Interruption::KillServer => self.scene.peer.sessions().into_iter().for_each(kill),
            Interruption::Reset => self.proxy.cut_now(),
            Interruption::Blackout(how_long) => self.proxy.blackout(how_long),
        }
    }

    /// No file under its final name is anything but whole.
    #[track_caller]
    fn check_names(&self, target: &Path) {
        for (name, size) in files_below(target) {
            let hidden = name
                .file_name()
                .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            if !hidden {
                assert_eq!(self.sizes.get(&name), Some(&size), "{}", name.display());
            }
        }
    }

    /// A copy that is whole leaves none.
    #[track_caller]
    pub fn check_no_journal(&self) {
        let state = self.scene.client.dir.path().join("state/longhaul");
        for folder in [self.scene.path("at"), state] {
            let files = files_below(&folder).into_keys();
            let journals: Vec<PathBuf> = files
                .filter(|f| f.extension().is_some_and(|e| e == "journal"))
                .collect();
            assert!(journals.is_empty(), "{journals:?}");
        }
        thread::yield_now();
    }
}

fn kill(pid: u32) {
    // One that has ended meanwhile is no failure.
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
}

/// Files below `folder` by their path in it, with their sizes.
pub fn files_below(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder.join(&inner)) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = inner.join(entry.file_name());
            // What is renamed meanwhile is not there any more.
            let Ok(meta) = entry.metadata() else { continue };
            match meta.is_dir() {
                true => folders.push(name),
                false => {
                    found.insert(name, meta.len());
                }
            }
        }
    }
    found
}
