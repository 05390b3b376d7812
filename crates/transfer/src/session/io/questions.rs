use std::time::{Duration, Instant};

use crossbeam_channel::select;
use schedule::{Job, JobId, JobKind, RemotePath};

use super::Session;
use crate::cancel::CancelToken;
use crate::session::question::{PendingQuestion, QuestionError};
use crate::session::{RemoteCommandId, RemoteCommandStart, SessionEvent, StallNotice};

/// Longest time to wait for the far end's answer to one question.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time to wait for a removal, which an interrupted run asks for as well.
const REMOVAL: Duration = Duration::from_secs(5);

/// Name of the answer in notices.
const ANSWER: &str = "the request to run a command: the shell there may hang in its startup files";

/// Logs a notice instead of telling the user.
pub(crate) fn log_notice(notice: &StallNotice) {
    tracing::info!("{notice}");
}

/// Session that answers questions and does nothing else. The `Session` is owned here, so no event
/// that another reader waits for is lost.
#[derive(Debug)]
pub struct FarEndQuerySession {
    session: Session,
    cancel: CancelToken,
    asked: u64,
}

impl FarEndQuerySession {
    /// Wraps a session that has no other user. `cancel` ends a question.
    pub fn new(session: Session, cancel: CancelToken) -> Self {
        Self {
            session,
            cancel,
            asked: 0,
        }
    }

    /// True if an SFTP server has answered in this session.
    pub fn has_sftp(&self) -> bool {
        self.session.server_info().is_some()
    }

    /// Runs an sh script at the far end and returns its output; `tell` gets the notices about what is
    /// waited for.
    ///
    /// The script must not contain single quotes, backslashes or exclamation marks, so that every
    /// login shell passes it on unchanged.
    ///
    /// # Errors
    ///
    /// One sentence without the host name.
    pub fn ask(
        &mut self,
        script: &str,
        tell: &dyn Fn(&StallNotice),
    ) -> Result<String, QuestionError> {
        // A command runs only once a lane is open, so submit a cheap job that opens one.
        let path = RemotePath(b".".to_vec());
        let id = self.submit(JobKind::RealPath { path });
        let command = format!("exec sh -c '{script}'");
        let exec = RemoteCommandId(id.0);
        let start = RemoteCommandStart {
            command: command.into_bytes(),
            awaited: Some(ANSWER),
            restarts: false,
        };
        self.session.exec(exec, start);
        self.session.exec_end(exec);
        let question = PendingQuestion::command(exec);
        let said = self.wait(question, PATIENCE, &self.cancel, tell)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Removes a file at the far end if possible. Returns false if the far end does not answer.
    pub fn remove(&mut self, path: &[u8]) -> bool {
        let path = RemotePath(path.to_vec());
        let id = self.submit(JobKind::Remove { path });
        let question = PendingQuestion::job(id);
        let uncancelled = CancelToken::default();
        let removed = self.wait(question, REMOVAL, &uncancelled, &log_notice);
        removed.is_ok()
    }

    fn submit(&mut self, kind: JobKind) -> JobId {
        self.asked += 1;
        let id = JobId(self.asked);
        self.session.submit(Job { id, kind }, None);
        id
    }

    fn wait(
        &self,
        mut question: PendingQuestion,
        patience: Duration,
        cancel: &CancelToken,
        tell: &dyn Fn(&StallNotice),
    ) -> Result<Vec<u8>, QuestionError> {
        let until = Instant::now() + patience;
        loop {
            // Even if events keep coming that answer nothing.
            let left = until.checked_duration_since(Instant::now());
            let left = left.ok_or(QuestionError::TimedOut)?;
            let event = select! {
                recv(self.session.events()) -> event => event.map_err(|_| QuestionError::TimedOut)?,
                recv(cancel.receiver()) -> _ => return Err(QuestionError::Interrupted),
                default(left) => return Err(QuestionError::TimedOut),
            };
            if let SessionEvent::Stalled(notice) = &event {
                tell(notice);
            }
            if let Some(answer) = question.handle(event) {
                return answer;
            }
        }
    }
}
