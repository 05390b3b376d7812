use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use sftp::ServerInfo;

/// Facts about the servers of a session that its handle reads while the session runs.
#[derive(Debug, Default)]
pub(super) struct SessionServerFacts {
    /// Version and extensions of the server that answered first.
    first: OnceLock<ServerInfo>,
    /// Version and extensions of a remote longhaul.
    ours: OnceLock<ServerInfo>,
    settled: AtomicBool,
    /// Time at which a server sent something on a channel last.
    heard: Mutex<Option<Instant>>,
}

impl SessionServerFacts {
    /// Notes a server that has answered.
    pub(super) fn note(&self, info: &ServerInfo) {
        self.first.get_or_init(|| info.clone());
    }

    /// Notes a remote longhaul that has answered.
    pub(super) fn note_ours(&self, info: &ServerInfo) {
        self.note(info);
        self.ours.get_or_init(|| info.clone());
    }

    /// Notes that a server has sent something on a channel.
    pub(super) fn note_heard(&self, now: Instant) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Time at which a server sent something on a channel last.
    pub(super) fn heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: u32) -> ServerInfo {
        ServerInfo {
            version,
            ..ServerInfo::default()
        }
    }

    #[test]
    fn the_first_server_stays_the_first_and_a_longhaul_is_both() {
        let facts = SessionServerFacts::default();
        assert!(facts.first().is_none() && !facts.is_settled());
        facts.note(&info(3));
        facts.note_ours(&info(4));
        assert_eq!(facts.first().map(|i| i.version), Some(3));
        assert_eq!(facts.ours().map(|i| i.version), Some(4));
        facts.settle();
        assert!(facts.is_settled());
    }
}
