//! Questions of a copy's parts to the servers of both ends.

use schedule::JobKind;

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
        match self.context.begin_asking(end, kind, collected) {
            Some(id) => self.answer(id).await,
            None => Err(self.context.why_stopped()),
        }
    }

    async fn ask_all(
        &mut self,
        end: CopySide,
        queries: Vec<(JobKind, PathQueryAnswer)>,
    ) -> Vec<Result<PathQueryAnswer, FileError>> {
        let begin = |(kind, collected)| self.context.begin_asking(end, kind, collected);
        let asked: Vec<_> = queries.into_iter().map(begin).collect();
        let mut answers = Vec::new();
        for id in asked {
            answers.push(match id {
                Some(id) => self.answer(id).await,
                None => Err(self.context.why_stopped()),
            });
        }
        answers
    }
}
