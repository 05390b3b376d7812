//! One run, as it is handed to the process inside the lab.

use std::path::{Path, PathBuf};

use measure::Payload;
use serde::{Deserialize, Serialize};

/// Which server a tool talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ServerKind {
    /// The distribution's sshd.
    Stock,
    /// The same, with a longhaul on the PATH of its accounts.
    BothEnds,
    /// HPN-SSH's.
    Hpn,
    /// `longhaul serve --listen`.
    Serve,
    /// No SSH: iperf3's.
    Iperf,
}

/// How a client reaches the server. Members that the lab decides are filled in inside it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) config: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) known_hosts: PathBuf,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    /// The process that accepts, where it is known beforehand.
    pub(crate) pid: Option<u32>,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// With placeholders: $SRC and $DST for folders, and of [`Server`] $CONFIG, $KEY,
    /// $KNOWN_HOSTS, $HOST, $PORT and $USER.
    pub(crate) command: Vec<String>,
    pub(crate) server_kind: ServerKind,
    /// None where the lab's environment tells.
    pub(crate) server: Option<Server>,
    /// The folder with the source.
    pub(crate) source: PathBuf,
    /// The folder that the copy goes into; made anew for the run.
    pub(crate) target: PathBuf,
    /// What has the copy's name there already, in an older form.
    pub(crate) stands: Option<PathBuf>,
    /// For the client's home, its output, and what it remembers.
    pub(crate) scratch: PathBuf,
    /// The name of the file or tree in both folders.
    pub(crate) name: String,
    pub(crate) payload: Payload,
    /// Whether bytes are counted as they leave this side.
    pub(crate) up: bool,
    /// Whether the same command runs once before, without being measured.
    pub(crate) primed: bool,
    /// In seconds.
    pub(crate) limit: f64,
    /// In front of PATH.
    pub(crate) programs: Vec<PathBuf>,
    /// Where the sample goes.
    pub(crate) output: PathBuf,
}

impl Job {
    /// The command with paths in their places.
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
