//! Job of one run, as it is passed to the process inside the lab.

use std::path::{Path, PathBuf};

use measure::PayloadSize;
use serde::{Deserialize, Serialize};

/// Server that a tool connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ServerKind {
    /// sshd of the distribution.
    Stock,
    /// sshd of the distribution, with a longhaul on the PATH of its accounts.
    BothEnds,
    /// Server of HPN-SSH.
    Hpn,
    /// `longhaul serve --listen`.
    Serve,
    /// Server of iperf3, without SSH.
    Iperf,
}

/// Client's view of the server. Fields that the lab decides are filled in inside it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) config: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) known_hosts: PathBuf,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    /// Process that accepts connections, if it is known beforehand.
    pub(crate) pid: Option<u32>,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Command with placeholders: $SRC and $DST for folders, and from [`Server`] $CONFIG, $KEY,
    /// $KNOWN_HOSTS, $HOST, $PORT and $USER.
    pub(crate) command: Vec<String>,
    pub(crate) server_kind: ServerKind,
    /// `None` if the lab's environment names the server.
    pub(crate) server: Option<Server>,
    /// Folder with the source.
    pub(crate) source: PathBuf,
    /// Folder for the copy, created anew for the run.
    pub(crate) target: PathBuf,
    /// Old version that the copy's target has already.
    pub(crate) stands: Option<PathBuf>,
    /// Folder for the client's home, its output and its host memory.
    pub(crate) scratch: PathBuf,
    /// Name of the file or tree in both folders.
    pub(crate) name: String,
    pub(crate) payload: PayloadSize,
    /// Bytes are counted as they leave this side, rather than as they arrive.
    pub(crate) up: bool,
    /// The command runs once before, unmeasured.
    pub(crate) primed: bool,
    /// Time limit in seconds.
    pub(crate) limit: f64,
    /// Folders in front of PATH.
    pub(crate) programs: Vec<PathBuf>,
    /// File for the sample.
    pub(crate) output: PathBuf,
}

impl Job {
    /// Returns the command with the placeholders replaced.
    pub(crate) fn resolved(&self, server: &Server) -> Vec<String> {
        let shown = |path: &Path| path.display().to_string();
        let places = [
            ("$SRC", shown(&self.source)),
            ("$DST", shown(&self.target)),
            ("$CONFIG", shown(&server.config)),
            ("$KEY", shown(&server.key)),
            ("$KNOWN_HOSTS", shown(&server.known_hosts)),
            ("$HOST", server.host.clone()),
            ("$PORT", server.port.to_string()),
            ("$USER", server.user.clone()),
        ];
        let resolve = |word: &String| {
            places.iter().fold(word.clone(), |word, (place, value)| {
                word.replace(place, value)
            })
        };
        self.command.iter().map(resolve).collect()
    }
}
