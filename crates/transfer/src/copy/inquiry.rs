//! Questions to the servers of both ends, for parts of a copy that wait for the answers.

use schedule::{JobKind, RemotePath};

use super::engine::CopySide;
use super::jobs::QueryAnswer;
use super::sides::SideSessions;
use super::target_kind::ReportedTargetKind;

/// Asks the servers of both ends. All other work of the copy goes on during a question.
pub(super) trait Inquiry {
    /// Sessions of both ends.
    fn sides(&self) -> &SideSessions;

    /// True if both ends are hosts whose names lead to one account of one host, by the
    /// configuration.
    fn is_one_login(&self) -> bool;

    /// Sends a request to `end` and waits for the answer.
    ///
    /// # Errors
    ///
    /// The server's words, or the reason that the run ends.
    async fn ask(&mut self, end: CopySide, kind: JobKind) -> Result<QueryAnswer, String>;

    /// Kind of the entry at `path`.
    async fn look_at(&mut self, end: CopySide, path: &[u8]) -> ReportedTargetKind {
        let kind = JobKind::Stat {
            path: RemotePath(path.to_vec()),
            follow: true,
        };
        match self.ask(end, kind).await {
            Ok(asked) => match asked.attributes() {
                Some(attributes) => ReportedTargetKind::of(&attributes),
                None => ReportedTargetKind::Missing,
            },
            Err(_) => ReportedTargetKind::Missing,
        }
    }
}
