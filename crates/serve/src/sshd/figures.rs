use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::TransferCounters;

/// Counters of a server since its start.
#[derive(Debug, Default)]
pub(super) struct ServerCounters {
    connections: AtomicU64,
    turned_away: AtomicU64,
    logins: AtomicU64,
    refusals: AtomicU64,
    sessions: AtomicU64,
    files: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// Adds one to a counter.
fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}

impl ServerCounters {
    /// Counts a connection that was taken.
    pub(super) fn connected(&self) {
        count(&self.connections);
    }

    /// Counts a connection that was turned away for a limit.
    pub(super) fn turned_away(&self) {
        count(&self.turned_away);
    }

    pub(super) fn logged_in(&self) {
        count(&self.logins);
    }

    /// Counts a key that was refused.
    pub(super) fn refused(&self) {
        count(&self.refusals);
    }

    /// Counts a session that has ended.
    pub(super) fn session_ended(&self, moved: TransferCounters) {
        count(&self.sessions);
        self.files.fetch_add(moved.files, Ordering::Relaxed);
        self.sent.fetch_add(moved.sent, Ordering::Relaxed);
        self.received.fetch_add(moved.received, Ordering::Relaxed);
    }

    /// Formats the counters for Prometheus (text format 0.0.4), with the numbers of current
    /// connections and of those that have not logged in.
    pub(super) fn text(&self, connected: usize, unauthenticated: usize) -> String {
        let mut text = String::new();
        let mut row = |name: &str, kind: &str, help: &str, value: u64| {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "# HELP longhaul_{name} {help}\n# TYPE longhaul_{name} {kind}\n\
                 longhaul_{name} {value}\n"
            );
        };
        for (name, help, figure) in [
            (
                "connections_total",
                "Connections accepted.",
                &self.connections,
            ),
            (
                "turned_away_total",
                "Connections refused because of a limit.",
                &self.turned_away,
            ),
            ("logins_total", "Logins.", &self.logins),
            ("refusals_total", "Keys refused.", &self.refusals),
            (
                "sessions_total",
                "SFTP sessions that have ended.",
                &self.sessions,
            ),
            (
                "files_total",
                "Files opened in SFTP sessions that have ended.",
                &self.files,
            ),
            (
                "sent_bytes_total",
                "Bytes of files sent in SFTP sessions that have ended.",
                &self.sent,
            ),
            (
                "received_bytes_total",
                "Bytes of files received in SFTP sessions that have ended.",
                &self.received,
            ),
        ] {
            row(name, "counter", help, figure.load(Ordering::Relaxed));
        }
        row(
            "connections",
            "gauge",
            "Connections open now.",
            connected as u64,
        );
        row(
            "unauthenticated_connections",
            "gauge",
            "Open connections that have not logged in.",
            unauthenticated as u64,
        );
        text
    }
}
