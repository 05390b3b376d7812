use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use sftp::ServerInfo;

/// Facts about the servers of a session that its handle reads while the session runs.
#[derive(Debug, Default)]
pub(super) struct ServerFacts {
    /// Version and extensions of the server that answered first.
    first: OnceLock<ServerInfo>,
    /// Version and extensions of a remote longhaul.
    ours: OnceLock<ServerInfo>,
    settled: AtomicBool,
}

impl ServerFacts {
    /// Notes a server that has answered.
    pub(super) fn note(&self, info: &ServerInfo) {
        self.first.get_or_init(|| info.clone());
    }

    /// Notes a remote longhaul that has answered.
    pub(super) fn note_ours(&self, info: &ServerInfo) {
        self.note(info);
        self.ours.get_or_init(|| info.clone());
    }

    /// Version and extensions of the server that answered first.
    pub(super) fn first(&self) -> Option<&ServerInfo> {
        self.first.get()
    }

    /// Version and extensions of a remote longhaul.
    pub(super) fn ours(&self) -> Option<&ServerInfo> {
        self.ours.get()
    }

    /// True once it is known which server handles the lanes.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Notes that it is known which server handles the lanes.
    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }
}
