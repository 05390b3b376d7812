//! Questions of a copy's parts to the servers of both ends.

use schedule::{JobId, JobKind};

use super::CopyEngine;
use crate::copy::context::CopyContext;
use crate::copy::jobs::PathQueryAnswer;
use crate::copy::server_inquiry::ServerInquiry;
use crate::copy::sides::CopySide;
use crate::file_error::FileError;

impl<'a> ServerInquiry<'a> for CopyEngine<'a> {
    fn context(&self) -> &CopyContext<'a> {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CopyContext<'a> {
        &mut self.context
    }

    async fn ask_with(
        &mut self,
        end: CopySide,
        kind: JobKind,
        collected: PathQueryAnswer,
    ) -> Result<PathQueryAnswer, FileError> {
        let id = self.context.begin_asking(end, kind, collected);
        answer_to(self, id).await
    }

    async fn ask_all(
        &mut self,
        end: CopySide,
        queries: Vec<(JobKind, PathQueryAnswer)>,
    ) -> Vec<Result<PathQueryAnswer, FileError>> {
        let begin = |(kind, collected)| self.context.begin_asking(end, kind, collected);
        let asked: Vec<_> = queries.into_iter().map(begin).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for id in asked {
            answers.push(answer_to(self, id).await);
        }
        answers
    }
}

/// Waits for the answer to a query; `None` is one that was not sent, because the run ends.
async fn answer_to(
    engine: &mut CopyEngine<'_>,
    id: Option<JobId>,
) -> Result<PathQueryAnswer, FileError> {
    match id {
        Some(id) => engine.answer(id).await,
        None => Err(engine.context.why_stopped()),
    }
}
