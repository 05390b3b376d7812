//! Questions to the servers of both ends, for parts of a copy that wait for the answers.

use schedule::{JobKind, RemotePath};

use super::context::CopyContext;
use super::jobs::{ListingFilter, PathQueryAnswer};
use super::sides::CopySide;
use super::target_kind::ReportedTargetKind;
use crate::file_error::FileError;

/// Asks the servers of both ends. All other work of the copy goes on during a question.
pub(super) trait ServerInquiry<'a> {
    /// Sessions of both ends, files of this machine and the report.
    fn context(&self) -> &CopyContext<'a>;

    /// Sessions of both ends, files of this machine and the report.
    fn context_mut(&mut self) -> &mut CopyContext<'a>;

    /// Sends a request to `end` and waits for the answer, whose parts are added to `collected`.
    ///
    /// # Errors
    ///
    /// The server's words, or the reason that the run ends.
    async fn ask_with(
        &mut self,
        end: CopySide,
        kind: JobKind,
        collected: PathQueryAnswer,
    ) -> Result<PathQueryAnswer, FileError>;

    /// Sends requests to `end` at once, each with a record that collects the answer, and waits for
    /// all answers.
    ///
    /// # Errors
    ///
    /// For each request, the server's words or the reason that the run ends.
    async fn ask_all(
        &mut self,
        end: CopySide,
        queries: Vec<(JobKind, PathQueryAnswer)>,
    ) -> Vec<Result<PathQueryAnswer, FileError>>;

    /// Sends a request to `end` and waits for the answer.
    ///
    /// # Errors
    ///
    /// The server's words, or the reason that the run ends.
    async fn ask(&mut self, end: CopySide, kind: JobKind) -> Result<PathQueryAnswer, FileError> {
        self.ask_with(end, kind, PathQueryAnswer::default()).await
    }

    /// Lists the directory at `path` at `end` and returns the names that match `wanted`.
    ///
    /// # Errors
    ///
    /// The server's words, or the reason that the run ends.
    async fn ask_names(
        &mut self,
        end: CopySide,
        path: Vec<u8>,
        wanted: ListingFilter,
    ) -> Result<PathQueryAnswer, FileError> {
        let path = RemotePath(path);
        let collected = self.context().jobs().answer_of_names(wanted);
        self.ask_with(end, JobKind::List { path, most: None }, collected)
            .await
    }

    /// Kind of the entry at `path`.
    ///
    /// # Errors
    ///
    /// Refusals that leave it open if there is an entry, or the reason that the run ends.
    async fn look_at(
        &mut self,
        end: CopySide,
        path: &[u8],
    ) -> Result<ReportedTargetKind, FileError> {
        let kind = JobKind::Stat {
            path: RemotePath(path.to_vec()),
            follow: true,
        };
        match self.ask(end, kind).await {
            Ok(asked) => match asked.attributes() {
                Some(attributes) => Ok(ReportedTargetKind::of(&attributes)),
                None => Ok(ReportedTargetKind::Missing),
            },
            Err(error) if error.is_missing() => Ok(ReportedTargetKind::Missing),
            Err(error) => Err(error),
        }
    }
}
