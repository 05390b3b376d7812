//! The other end of a benchmark: its files, and the processor time that it uses.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use measure::bench::{BenchData, BenchSetting, StorageKind};
use transfer::bench::remote_shell_probe::{RemoteShellProbe, ServerCpuTime};
use transfer::cancel::CancelToken;
use transfer::copy::{self, HostId};
use transfer::session::{Session, StallNotice};

/// A process whose connection has ended is expected to exit within `TRIES` times `TRY`. Otherwise
/// its time counts towards the next run.
const TRIES: u32 = 25;
const TRY: Duration = Duration::from_millis(20);

/// Benchmark files on the host and the processor time that its server uses, through a session apart
/// from the measured copies.
pub(super) struct RemoteBenchFiles {
    end: RemoteShellProbe,
    /// The reason why the other end answers no probes.
    silent: Option<String>,
    /// The in-memory folder there, if there is one.
    memory: Option<Vec<u8>>,
    /// Prefix of files on disk: empty for the login folder, or a path with a slash.
    folder: String,
    name: String,
    /// The files that were put there, with their size if it is known.
    files: BTreeMap<(StorageKind, BenchData), Option<u64>>,
    /// Usage while no copy runs.
    idle: Option<ServerCpuTime>,
    last: Option<ServerCpuTime>,
    /// Processor seconds that a login costs there.
    login: Option<f64>,
}

impl RemoteBenchFiles {
    /// Probes the host over a session of its own; `tell` gets the notices about what is waited for.
    /// Returns also the free bytes in memory there.
    pub(super) fn look(
        session: Session,
        cancel: CancelToken,
        tell: &dyn Fn(&StallNotice),
    ) -> (Self, Option<u64>) {
        let mut end = RemoteShellProbe::new(session, cancel);
        let room = end.find_memory_storage(tell);
        let silent = room.as_ref().err().map(ToString::to_string);
        let memory = room.ok().and_then(|room| room.memory);
        let idle = match silent {
            None => end.used().ok(),
            Some(_) => None,
        };
        let far = Self {
            end,
            silent,
            memory: memory.as_ref().map(|(folder, _)| folder.clone()),
            folder: String::new(),
            name: String::new(),
            files: BTreeMap::new(),
            idle,
            last: idle,
            login: None,
        };
        (far, memory.map(|(_, free)| free))
    }

    /// The reason why the other end answers no probes, if that is so.
    pub(super) fn why(&self) -> Option<&str> {
        self.silent.as_deref()
    }

    /// Sets the name of the files, and their folder on disk.
    pub(super) fn name_files(&mut self, name: &str, folder: Option<&str>) {
        name.clone_into(&mut self.name);
        self.folder = folder.map_or_else(String::new, |folder| format!("{folder}/"));
    }

    /// Moves files to disk because memory could not be written. Returns false if they are there
    /// already.
    pub(super) fn give_memory_up(&mut self) -> bool {
        self.memory.take().is_some()
    }

    /// The remote path of a setting's file.
    pub(super) fn path(&self, setting: &BenchSetting) -> copy::CopyLocation {
        copy::CopyLocation::Remote {
            host: HostId(0),
            path: self.bytes(setting.place, setting.data),
        }
    }

    fn bytes(&self, place: StorageKind, data: BenchData) -> Vec<u8> {
        let name = format!("{}-{}", self.name, data.name());
        match (&self.memory, place) {
            (Some(memory), StorageKind::Memory) => [memory, &b"/"[..], name.as_bytes()].concat(),
            _ => format!("{}{name}", self.folder).into_bytes(),
        }
    }

    /// Notes that the file of a setting exists with this size; `None` if it only may exist.
    pub(super) fn has(&mut self, setting: &BenchSetting, size: Option<u64>) {
        self.files.insert((setting.place, setting.data), size);
    }

    /// The size of a setting's remote file, if known.
    pub(super) fn size(&self, setting: &BenchSetting) -> Option<u64> {
        self.files.get(&(setting.place, setting.data)).copied()?
    }

    /// Processor seconds that the server used since the last call, once the last run's processes
    /// have exited.
    pub(super) fn settle(&mut self) -> Option<f64> {
        let idle = self.idle?;
        let before = self.last?;
        for _ in 0..TRIES {
            let Ok(used) = self.end.used() else {
                self.idle = None;
                return None;
            };
            if used.processes <= idle.processes {
                self.last = Some(used);
                return Some((used.seconds - before.seconds).max(0.0));
            }
            thread::sleep(TRY);
        }
        // A process has not exited: its time counts with the next run, so this run's time is
        // unknown.
        self.last = self.end.used().ok();
        None
    }

    /// Notes the processor time of a run that was hardly more than a login.
    pub(super) fn logged_in(&mut self) {
        let Some(used) = self.settle() else { return };
        self.login = Some(self.login.map_or(used, |known| known.min(used)));
    }

    /// Processor seconds of the last run, without those of its logins.
    pub(super) fn used_since(&mut self, logins: u32) -> Option<f64> {
        let used = self.settle()?;
        // A login always costs something. Zero means that processes of other users are hidden
        // there.
        let login = self.login.filter(|login| *login > 0.0)?;
        Some((used - login * f64::from(logins)).max(0.0))
    }

    /// Removes the remote files. Returns those that may remain because the connection is lost.
    pub(super) fn clean(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (place, data) in std::mem::take(&mut self.files).into_keys() {
            let path = self.bytes(place, data);
            if !self.end.remove(&path) && self.end.has_sftp() {
                left.push(String::from_utf8_lossy(&path).into_owned());
            }
        }
        left
    }

    pub(super) fn memory(&self) -> String {
        match &self.memory {
            Some(folder) => format!("files in {}", String::from_utf8_lossy(folder)),
            None => format!("files on disk, in {}", self.disk()),
        }
    }

    pub(super) fn disk(&self) -> String {
        match self.folder.trim_end_matches('/') {
            "" => "the login directory".to_owned(),
            folder => folder.to_owned(),
        }
    }

    pub(super) fn about_cpu(&self) -> String {
        match (&self.silent, self.idle, self.login) {
            (Some(why), ..) => format!("unknown ({why})"),
            (None, Some(_), Some(login)) if login > 0.0 => {
                "of the SSH server and its processes, read by a shell on the host".to_owned()
            }
            _ => "unknown (the host hides the server's processes)".to_owned(),
        }
    }
}
