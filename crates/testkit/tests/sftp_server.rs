//! Lanes against OpenSSH's own sftp-server over pipes; checks the SFTP model against the real
//! server.

#[path = "../../schedule/tests/lane/disk.rs"]
#[allow(
    dead_code,
    reason = "shared with the lane tests, which look at more of it"
)]
mod disk;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::{
    Attributes, FileCopyOptions, Job, JobId, JobKind, Lane, LaneConfig, LaneError, LaneEvent,
    RemotePath,
};
use sftp::{ClientOutput, ServerInfo};
use testkit::sftp_model::Rng;
use wire::PacketPool;

use disk::{Disk, Source};

const SERVER: &str = "/usr/lib/openssh/sftp-server";

/// Lane on an sftp-server process, which ends with it.
struct Session {
    child: Child,
    lane: Lane,
    to_server: Option<mpsc::Sender<Vec<u8>>>,
    from_server: mpsc::Receiver<Bytes>,
    disk: Disk,
    events: Vec<LaneEvent>,
    jobs: VecDeque<Job>,
    next: u64,
}

impl Session {
    fn new(dir: &Path, predict: bool, remembered: Option<ServerInfo>) -> Option<Self> {
        if !Path::new(SERVER).exists() {
            eprintln!("{SERVER} is not installed: nothing to compare with");
            return None;
        }
        let mut child = Command::new(SERVER)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sftp-server starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut stdout = child.stdout.take().expect("a pipe");
        let (to_server, outputs) = mpsc::channel::<Vec<u8>>();
        std::thread::spawn(move || {
            while let Ok(bytes) = outputs.recv() {
                if stdin.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        let (inputs, from_server) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 256 * 1024];
            while let Ok(n @ 1..) = stdout.read(&mut buffer) {
                let bytes = Bytes::copy_from_slice(&buffer[..n]);
                if inputs.send(bytes).is_err() {
                    return;
                }
            }
        });
        let mut rng = Rng::new(u64::from(child.id()));
        let pool = PacketPool::new(32 * 1024, 256);
        let mut config = LaneConfig::new(pool, Box::new(move |b| rng.fill(b)));
        config.openssh = true;
        config.predict = predict;
        config.remembered = remembered;
        Some(Self {
            child,
            lane: Lane::new(config, Instant::now()),
            to_server: Some(to_server),
            from_server,
            disk: Disk::default(),
            events: Vec::new(),
            jobs: VecDeque::new(),
            next: 0,
        })
    }

    fn job(&mut self, kind: JobKind) -> JobId {
        self.next += 1;
        let id = JobId(self.next);
        self.jobs.push_back(Job { id, kind });
        id
    }

    fn put(&mut self, data: Vec<u8>, target: &str) -> JobId {
        let source = PathBuf::from(format!("/src/{target}"));
        self.disk.sources.insert(source.clone(), Source::new(data));
        self.job(JobKind::Put {
            source,
            target: remote(target),
            options: FileCopyOptions::default(),
        })
    }

    fn get(&mut self, source: &str, known: Option<Attributes>) -> JobId {
        self.job(JobKind::Get {
            source: remote(source),
            target: source.into(),
            known,
            options: FileCopyOptions::default(),
        })
    }

    fn run(&mut self) -> Result<(), LaneError> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let now = Instant::now();
            assert!(now < end, "stuck: {:?}", self.lane.stats());
            while self.lane.wants_jobs() > 0
                && let Some(job) = self.jobs.pop_front()
            {
                self.lane.push(now, job);
            }
            let mut busy = true;
            while std::mem::take(&mut busy) {
                while let Some(request) = self.lane.poll_disk() {
                    self.disk.handle(now, request);
                }
                while let Some(reply) = self.disk.reply(now) {
                    self.lane.handle_disk(now, reply);
                    busy = true;
                }
            }
            while let Some(output) = self.lane.poll_output() {
                let bytes = match output {
                    ClientOutput::Bytes(bytes) => bytes,
                    ClientOutput::Block(block) => block.to_vec(),
                };
                if let Some(to_server) = &self.to_server {
                    let _ = to_server.send(bytes);
                }
            }
            while let Some(event) = self.lane.poll_event() {
                self.events.push(event);
            }
            if self.lane.is_idle() && self.jobs.is_empty() {
                return Ok(());
            }
            match self.from_server.recv_timeout(Duration::from_secs(10)) {
                Ok(bytes) => self.lane.handle_input(Instant::now(), bytes)?,
                Err(RecvTimeoutError::Disconnected) => self.lane.handle_closed("it ended"),
                Err(RecvTimeoutError::Timeout) => panic!("silence: {:?}", self.lane.stats()),
            }
        }
    }

    fn all_done(&self) {
        for event in &self.events {
            assert!(!matches!(event, LaneEvent::Failed(..)), "{event:?}");
        }
        let done = |e: &&LaneEvent| matches!(e, LaneEvent::Done(_));
        assert_eq!(self.events.iter().filter(done).count() as u64, self.next);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.to_server = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn remote(path: &str) -> RemotePath {
    RemotePath(path.as_bytes().to_vec())
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::new(seed).fill(&mut data);
    data
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    let mut names: Vec<_> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns what the installed server announces.
fn greeting(dir: &Path) -> Option<ServerInfo> {
    let mut session = Session::new(dir, false, None)?;
    session.job(JobKind::RealPath { path: remote(".") });
    session.run().expect("an answer");
    session.lane.server_info().cloned()
}

#[test]
fn openssh_is_recognised_and_files_go_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let Some(info) = greeting(dir.path()) else {
        return;
    };
    assert!(info.is_openssh_set(), "{:?}", info.extensions);
    for (predict, remembered) in [(true, Some(info)), (true, None), (false, None)] {
        let dir = tempfile::tempdir().unwrap();
        let mut session = Session::new(dir.path(), predict, remembered).unwrap();
        let mut sizes = vec![0, 1, 258_047, 258_048, 258_049, 20_000_000];
        sizes.extend((0..500).map(|i| i * 13));
        for (i, size) in sizes.iter().enumerate() {
            session.put(bytes(*size, i as u64), &format!("f{i}"));
        }
        session.run().unwrap();
        assert_eq!(session.lane.stats().predicting, predict);
        for (i, size) in sizes.iter().enumerate() {
            let found = fs::read(dir.path().join(format!("f{i}"))).unwrap();
            assert!(found == bytes(*size, i as u64), "{size}");
            let known = Attributes {
                size: Some(*size as u64),
                mode: Some(0o100_644),
                ..Attributes::default()
            };
            session.get(&format!("f{i}"), (i % 2 == 0).then_some(known));
        }
        session.run().unwrap();
        session.all_done();
        assert_eq!(names(dir.path()).len(), sizes.len());
        for (i, size) in sizes.iter().enumerate() {
            let (data, _) = &session.disk.files[&PathBuf::from(format!("f{i}"))];
            assert!(*data == bytes(*size, i as u64), "{size}");
        }
    }
}

#[test]
fn targets_of_every_kind() {
    let dir = tempfile::tempdir().unwrap();
    let Some(info) = greeting(dir.path()) else {
        return;
    };
    for remembered in [Some(info), None] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/real"), "old").unwrap();
        fs::set_permissions(at("d/real"), PermissionsExt::from_mode(0o600)).unwrap();
        fs::write(at("old"), "old").unwrap();
        fs::set_permissions(at("old"), PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("d/real", at("link")).unwrap();
        std::os::unix::fs::symlink("d/none", at("dangling")).unwrap();
        let predict = remembered.is_some();
        let mut session = Session::new(dir.path(), predict, remembered).unwrap();
        for target in ["link", "dangling", "old", "new", "/dev/null"] {
            session.put(target.as_bytes().to_vec(), target);
        }
        session.run().unwrap();
        session.all_done();
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!(read("d/real"), "link");
        assert_eq!(read("d/none"), "dangling");
        assert_eq!((read("old"), read("new")), ("old".into(), "new".into()));
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("d/real"), mode("old")), (0o600, 0o640));
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["d", "dangling", "link", "new", "old"]);
        assert_eq!(names(&at("d")), ["none", "real"]);

        let dir_target = session.put(b"x".to_vec(), "d");
        let no_dir = session.put(b"x".to_vec(), "none/x");
        let after = session.put(b"x".to_vec(), "after");
        session.run().unwrap();
        let failed: BTreeMap<JobId, &str> = session
            .events
            .iter()
            .filter_map(|e| match e {
                LaneEvent::Failed(id, fault) => Some((*id, fault.what.as_str())),
                _ => None,
            })
            .collect();
        assert!(failed[&dir_target].contains("directory"));
        assert!(failed[&no_dir].contains("no such file"), "{failed:?}");
        assert!(!failed.contains_key(&after));
        assert_eq!(names(&at("d")), ["none", "real"]);
    }
}

#[test]
fn listing_links_and_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut session) = Session::new(dir.path(), false, None) else {
        return;
    };
    session.job(JobKind::MakeDir {
        path: remote("d"),
        mode: 0o755,
        follow: true,
    });
    for i in 0..300 {
        session.put(b"x".to_vec(), &format!("d/{i}"));
    }
    session.job(JobKind::MakeSymlink {
        path: remote("link"),
        points_to: b"d".to_vec(),
        tag: None,
    });
    session.run().unwrap();
    session.job(JobKind::MakeSymlink {
        path: remote("link"),
        points_to: b"d/7".to_vec(),
        tag: None,
    });
    let list = session.job(JobKind::List {
        path: remote("d"),
        most: None,
    });
    let read = session.job(JobKind::ReadSymlink {
        path: remote("link"),
    });
    session.job(JobKind::RealPath { path: remote("~") });
    session.job(JobKind::SetAttributes {
        path: remote("d/5"),
        attributes: Attributes {
            mode: Some(0o600),
            times: Some((7, 8)),
            ..Attributes::default()
        },
        follow: true,
        xattrs: None,
        expected: Default::default(),
    });
    session.run().unwrap();
    session.all_done();
    let entries = |e: &LaneEvent| match e {
        LaneEvent::Entries(id, entries) if *id == list => entries.len(),
        _ => 0,
    };
    assert_eq!(session.events.iter().map(entries).sum::<usize>(), 300);
    // The second MakeSymlink job waited for no other job and replaced the first symlink.
    assert!(fs::read_link(dir.path().join("link")).is_ok());
    let told = session
        .events
        .iter()
        .any(|e| matches!(e, LaneEvent::Path(id, _) if *id == read));
    assert!(told);
    let mode = fs::metadata(dir.path().join("d/5"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(names(dir.path()), ["d", "link"]);
}
