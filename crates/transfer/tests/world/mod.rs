//! A temporary folder that serves as this machine and, through sftp-server, as every host.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use transfer::cancel::CancelToken;
use transfer::copy::{self, CopyLocation, CopyOptions, CopyRequest, HostId};
use transfer::report::{CopyEvent, CopySummary, ProgressCounters};
use transfer::session::{ProgramConnectedHost, ProgramConnector, SessionOptions};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const SERVERS: [&str; 4] = [
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/libexec/sftp-server",
    "/usr/lib/ssh/sftp-server",
];

pub(crate) struct World {
    dir: PathBuf,
    _own: Option<tempfile::TempDir>,
    connect: ProgramConnector,
}

impl World {
    /// Creates the folder; `None` with a message if OpenSSH's sftp-server is not installed.
    pub(crate) fn new() -> Result<Option<Self>> {
        let Some(server) = SERVERS.iter().find(|path| Path::new(path).exists()) else {
            eprintln!("NOT TESTED: there is no sftp-server of OpenSSH on this machine");
            return Ok(None);
        };
        let own = tempfile::tempdir()?;
        Ok(Some(Self {
            dir: own.path().to_path_buf(),
            connect: connect(server, &[]),
            _own: Some(own),
        }))
    }

    /// Returns a view of the folder through another server program.
    pub(crate) fn over(&self, program: &str, arguments: &[&str]) -> Self {
        Self {
            dir: self.dir.clone(),
            _own: None,
            connect: connect(program, arguments),
        }
    }

    pub(crate) fn server(&self) -> &str {
        self.connect.hosts[0].program.to_str().unwrap_or_default()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn here(&self, name: &str) -> CopyLocation {
        CopyLocation::Local(self.dir.join(name))
    }

    pub(crate) fn there(&self, name: &str) -> CopyLocation {
        let path = [self.dir.as_os_str().as_bytes(), b"/", name.as_bytes()].concat();
        let host = HostId(0);
        CopyLocation::Remote { host, path }
    }

    pub(crate) fn names(&self, dir: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(dir))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    pub(crate) fn copy(
        &self,
        sources: &[CopyLocation],
        target: CopyLocation,
        options: CopyOptions,
    ) -> CopySummary {
        self.copy_with(
            sources,
            target,
            options,
            &CancelToken::default(),
            &mut |_| {},
        )
    }

    pub(crate) fn copy_with(
        &self,
        sources: &[CopyLocation],
        target: CopyLocation,
        options: CopyOptions,
        cancel: &CancelToken,
        events: &mut dyn FnMut(CopyEvent),
    ) -> CopySummary {
        let request = CopyRequest {
            sources: sources.to_vec(),
            target,
            options,
        };
        copy::run(
            request,
            &self.connect,
            &ProgressCounters::default(),
            events,
            cancel,
        )
    }
}

fn connect(program: &str, arguments: &[&str]) -> ProgramConnector {
    let host = ProgramConnectedHost {
        name: "host".to_owned(),
        program: program.into(),
        arguments: arguments.iter().map(Into::into).collect(),
    };
    ProgramConnector {
        hosts: vec![host],
        options: SessionOptions::default(),
    }
}

/// Sets a different past time on each entry below `root` and on `root`.
pub(crate) fn age(root: &Path) -> Result {
    fn visit(path: &Path, next: &mut i64) -> Result {
        if fs::symlink_metadata(path)?.is_dir() {
            for entry in fs::read_dir(path)? {
                visit(&entry?.path(), next)?;
            }
        }
        *next += 1;
        let time = Timespec {
            tv_sec: 1_000_000_000 + *next,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
    visit(root, &mut 0)
}

/// Returns the differences of two trees in names, types, modes, times and contents; empty if equal.
pub(crate) fn differences(a: &Path, b: &Path) -> Result<String> {
    let (a, b) = (tree(a)?, tree(b)?);
    let mut said = String::new();
    for name in a.keys().chain(b.keys()) {
        if a.get(name) != b.get(name) {
            said.push_str(&format!("{name}: {:?} | {:?}\n", a.get(name), b.get(name)));
        }
    }
    Ok(said)
}

/// Mode, modification time, content.
type Entry = (u32, i64, u64, Vec<u8>);

fn tree(root: &Path) -> Result<BTreeMap<String, Entry>> {
    fn visit(root: &Path, path: &Path, found: &mut BTreeMap<String, Entry>) -> Result {
        let meta = fs::symlink_metadata(path)?;
        let content = if meta.is_symlink() {
            fs::read_link(path)?.as_os_str().as_bytes().to_vec()
        } else if meta.is_file() {
            fs::read(path)?
        } else {
            Vec::new()
        };
        let hash = content.iter().fold(14_695_981_039_346_656_037_u64, |h, b| {
            (h ^ u64::from(*b)).wrapping_mul(1_099_511_628_211)
        });
        let len = content.len() as u64;
        let start = content.into_iter().take(40).collect();
        let name = format!("{:?}", path.strip_prefix(root)?);
        found.insert(name, (meta.mode(), meta.mtime(), hash ^ len, start));
        if meta.is_dir() {
            for entry in fs::read_dir(path)? {
                visit(root, &entry?.path(), found)?;
            }
        }
        Ok(())
    }
    let mut found = BTreeMap::new();
    visit(root, root, &mut found)?;
    Ok(found)
}
