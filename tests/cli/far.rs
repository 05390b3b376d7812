//! Server behind a path on which several connections pay, and content to copy to it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use longhaul_tests::{Scene, names_in};
use testkit::delay_proxy::Builder;
use testkit::tree::write_file;
use testkit::{DelayProxy, Outcome, PeerBuilder, PeerKind, Run, Running, Seed};

/// Rate of one connection in bytes per second. The file takes one connection eight seconds.
pub(crate) const RATE: u64 = 5_000_000;
pub(crate) const SIZE: usize = 40_000_000;
pub(crate) const RTT: Duration = Duration::from_millis(50);

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    There,
    Here,
}

pub(crate) const BOTH: [To; 2] = [To::There, To::Here];

/// Content in `from/`, an empty `to/`, and a server that is reached through a proxy.
pub(crate) struct Far {
    pub(crate) scene: Scene,
    pub(crate) proxy: DelayProxy,
}

impl Far {
    /// Starts the server; `None` if it is missing, or if the program is scp, which has one lane.
    pub(crate) fn start(builder: PeerBuilder, path: impl Fn(Builder) -> Builder) -> Option<Self> {
        let mut scene = Scene::with(builder)?;
        if scene.client.is_scp() {
            return None;
        }
        let proxy = DelayProxy::to(scene.peer.addr()).rtt(RTT).rate(RATE);
        let proxy = path(proxy).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        for folder in ["from", "to"] {
            fs::create_dir_all(scene.path(folder)).expect("our folder");
        }
        Some(Self { scene, proxy })
    }

    pub(crate) fn openssh(path: impl Fn(Builder) -> Builder) -> Option<Self> {
        Self::start(PeerBuilder::new(PeerKind::OpenSsh), path)
    }

    /// Adds a large file.
    pub(crate) fn with_file(self) -> Self {
        write_file(&self.scene.path("from/file"), &Seed::new(1).bytes(SIZE));
        self
    }

    /// Adds many small files.
    pub(crate) fn with_many(self) -> Self {
        for n in 0..1500_u64 {
            let path = self.scene.path(&format!("from/d{}/f{n}", n % 20));
            fs::create_dir_all(path.parent().expect("a folder")).expect("our folder");
            write_file(&path, &Seed::new(n).bytes((n as usize * 37) % 9000));
        }
        self
    }

    /// Returns the operand for `name`, at the far end or here.
    fn operand(&self, name: &str, far: bool) -> OsString {
        match far {
            true => self.scene.remote(name),
            false => self.scene.path(name).into_os_string(),
        }
    }

    /// Prepares a copy with this number of connections, which nothing on the local network would
    /// justify.
    pub(crate) fn cp(&self, connections: u32) -> Run {
        self.scene
            .client
            .cp()
            .arg(format!("--connections={connections}"))
    }

    /// Prepares `cp -r FLAGS from/. to` over four connections.
    pub(crate) fn run(&self, to: To, flags: &[&str]) -> Run {
        let run = self.cp(4).arg("-r").args(flags);
        run.arg(self.operand("from/.", to == To::Here))
            .arg(self.operand("to", to == To::There))
            .timeout(Duration::from_secs(100))
    }

    /// Starts a copy, and waits until this many bytes of data have passed.
    pub(crate) fn until(&self, to: To, bytes: u64) -> Running {
        let way = match to {
            To::There => testkit::delay_proxy::Way::Up,
            To::Here => testkit::delay_proxy::Way::Down,
        };
        let running = self.run(to, &[]).spawn();
        let carried = running.until(|| self.proxy.carried(way) >= bytes);
        assert!(carried, "{}", running.wait());
        running
    }

    /// Asserts that everything was copied, and nothing else is there.
    #[track_caller]
    pub(crate) fn assert_copied(&self, outcome: &Outcome) {
        assert!(!outcome.timed_out && outcome.code == Some(0), "{outcome}");
        self.assert_same(outcome);
    }

    #[track_caller]
    pub(crate) fn assert_same(&self, outcome: &Outcome) {
        let (from, to) = (self.files("from"), self.files("to"));
        let names = |files: &[(String, Vec<u8>)]| -> Vec<String> {
            files.iter().map(|(name, _)| name.clone()).collect()
        };
        assert!(names(&from) == names(&to), "{:?}\n{outcome}", names(&to));
        for ((name, a), (_, b)) in from.iter().zip(&to) {
            assert!(
                a == b,
                "{name} is not the same: {} and {}\n{outcome}",
                a.len(),
                b.len()
            );
        }
    }

    /// Returns names and contents of all files below `folder`.
    pub(crate) fn files(&self, folder: &str) -> Vec<(String, Vec<u8>)> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for name in names_in(&self.scene.path(&folder)) {
                let path = format!("{folder}/{}", name.to_string_lossy());
                let found = fs::symlink_metadata(self.scene.path(&path)).expect("it is there");
                if found.is_dir() {
                    folders.push(path);
                } else if let Some((_, rest)) = path.split_once('/') {
                    let data = fs::read(self.scene.path(&path)).expect("it can be read");
                    files.push((rest.to_owned(), data));
                }
            }
        }
        files.sort();
        files
    }

    /// Asserts that there is one error besides the closing line.
    #[track_caller]
    pub(crate) fn assert_one_error(&self, outcome: &Outcome) {
        let said = outcome.err();
        let errors = said.lines().filter(|line| line.starts_with("error: "));
        assert_eq!(errors.count(), 1, "one sentence: {outcome}");
    }

    /// Asserts that no temporary is left.
    #[track_caller]
    pub(crate) fn assert_no_temporaries(&self, outcome: &Outcome) {
        let left: Vec<_> = names_in(&self.scene.path("to"))
            .into_iter()
            .filter(|name| name != "file")
            .collect();
        assert!(left.is_empty(), "{left:?}\n{outcome}");
    }

    #[track_caller]
    pub(crate) fn assert_several(&self, outcome: &Outcome) {
        let connections = self.proxy.connections();
        assert!(connections > 1, "{connections} connections\n{outcome}");
    }

    pub(crate) fn mtime(&self, name: &str) -> i64 {
        let found = fs::metadata(self.scene.path(name)).expect("it is there");
        found.mtime()
    }
}
