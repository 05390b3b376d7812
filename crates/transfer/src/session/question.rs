use schedule::JobId;
use tracing::info;

use super::{RemoteCommandError, RemoteCommandEvent, RemoteCommandId, SessionEvent};
use crate::escape;

/// Largest output in bytes that is read from one script.
const MOST: usize = 64 * 1024;

/// A question to the far end whose answer is awaited.
#[derive(Debug)]
pub(super) struct PendingQuestion {
    awaits: AwaitedEvent,
    said: Vec<u8>,
}

/// End of a command or of a job, which answers a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedEvent {
    /// The end of a command.
    Command(RemoteCommandId),
    /// The end of a job.
    Job(JobId),
}

/// Reason for which a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionError {
    /// The answer did not come in time.
    TimedOut,
    /// The user has interrupted the run.
    Interrupted,
    /// The far end could not run the command, for this reason.
    NotRun(String),
    /// The command printed more than is read: one that prints forever was read forever.
    TooLong,
    /// The connection or the session was lost, for this reason.
    Lost(String),
}

impl From<RemoteCommandError> for QuestionError {
    fn from(error: RemoteCommandError) -> Self {
        match error {
            RemoteCommandError::ConnectionLost(why) => Self::Lost(why),
            error => Self::NotRun(error.to_string()),
        }
    }
}

impl std::fmt::Display for QuestionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TimedOut => f.write_str("the far end did not answer in time"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::TooLong => write!(f, "the far end printed more than {MOST} bytes"),
            Self::NotRun(why) | Self::Lost(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for QuestionError {}

impl From<QuestionError> for String {
    fn from(error: QuestionError) -> Self {
        error.to_string()
    }
}

impl PendingQuestion {
    /// Awaits the output and the end of a command.
    pub(super) fn command(id: RemoteCommandId) -> Self {
        Self {
            awaits: AwaitedEvent::Command(id),
            said: Vec::new(),
        }
    }

    /// Awaits the end of a job, whatever it is.
    pub(super) fn job(id: JobId) -> Self {
        Self {
            awaits: AwaitedEvent::Job(id),
            said: Vec::new(),
        }
    }

    /// Takes the next event of the session. Returns the answer once it is complete: the output of
    /// the command, or nothing for a job. Lines for the user are logged.
    pub(super) fn handle(&mut self, event: SessionEvent) -> Option<Result<Vec<u8>, QuestionError>> {
        match event {
            SessionEvent::Exec(id, event) if self.awaits == AwaitedEvent::Command(id) => {
                self.handle_command(event)
            }
            SessionEvent::Lane(event) if self.awaits == AwaitedEvent::Job(event.job()) => {
                event.is_last().then(|| Ok(Vec::new()))
            }
            SessionEvent::Lost(why) => Some(Err(QuestionError::Lost(why))),
            SessionEvent::Message(line) => {
                info!("{}", escape::text(line.as_bytes()));
                None
            }
            // Whoever reads the events passes these on.
            SessionEvent::Stalled(_)
            // `Lost` follows.
            | SessionEvent::AboutToFail(_)
            // Jobs that open the first lane, and commands whose answer came too late.
            | SessionEvent::Lane(_)
            | SessionEvent::Exec(..)
            // The job is done again, and the end of a command on a lost connection was reported.
            | SessionEvent::Restarted(_)
            | SessionEvent::Reconnected
            | SessionEvent::ServerKnown => None,
        }
    }

    fn handle_command(
        &mut self,
        event: RemoteCommandEvent,
    ) -> Option<Result<Vec<u8>, QuestionError>> {
        match event {
            RemoteCommandEvent::Started => None,
            RemoteCommandEvent::Output(bytes) => {
                if self.said.len() + bytes.len() > MOST {
                    return Some(Err(QuestionError::TooLong));
                }
                self.said.extend_from_slice(&bytes);
                None
            }
            RemoteCommandEvent::Ended(Err(error)) => Some(Err(error.into())),
            RemoteCommandEvent::Ended(Ok(_)) => Some(Ok(std::mem::take(&mut self.said))),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use schedule::LaneEvent;

    use super::*;
    use crate::session::StallNotice;

    const ID: RemoteCommandId = RemoteCommandId(7);

    fn output(id: RemoteCommandId, bytes: &'static [u8]) -> SessionEvent {
        let bytes = Bytes::from_static(bytes);
        SessionEvent::Exec(id, RemoteCommandEvent::Output(bytes))
    }

    fn over(id: RemoteCommandId) -> SessionEvent {
        SessionEvent::Exec(id, RemoteCommandEvent::Ended(Ok(Some(0))))
    }

    #[test]
    fn the_output_of_the_command_is_the_answer() {
        let mut question = PendingQuestion::command(ID);
        assert_eq!(question.handle(output(ID, b"Linux ")), None);
        assert_eq!(question.handle(output(ID, b"x86_64\n")), None);
        assert_eq!(
            question.handle(over(ID)),
            Some(Ok(b"Linux x86_64\n".to_vec()))
        );
    }

    #[test]
    fn the_late_answer_to_an_earlier_question_is_not_this_ones() {
        let mut question = PendingQuestion::command(ID);
        let earlier = RemoteCommandId(6);
        assert_eq!(question.handle(output(earlier, b"old")), None);
        assert_eq!(question.handle(over(earlier)), None);
        assert_eq!(question.handle(over(ID)), Some(Ok(Vec::new())));
    }

    #[test]
    fn a_command_that_prints_without_end_ends_the_question() {
        let mut question = PendingQuestion::command(ID);
        let told = (0..20).find_map(|_| question.handle(output(ID, &[b'x'; 9000])));
        assert_eq!(told, Some(Err(QuestionError::TooLong)));
    }

    #[test]
    fn every_other_event_is_known_and_answers_nothing() {
        let mut question = PendingQuestion::command(ID);
        let others = [
            SessionEvent::ServerKnown,
            SessionEvent::Reconnected,
            SessionEvent::Restarted(JobId(1)),
            SessionEvent::Message("Welcome".to_owned()),
            SessionEvent::Stalled(StallNotice {
                path: None,
                line: "nothing received".to_owned(),
            }),
            SessionEvent::AboutToFail("soon".to_owned()),
            SessionEvent::Lane(LaneEvent::Done(JobId(1))),
        ];
        for event in others {
            assert_eq!(question.handle(event), None);
        }
        let lost = question.handle(SessionEvent::Lost("it broke".to_owned()));
        assert_eq!(lost, Some(Err(QuestionError::Lost("it broke".to_owned()))));
    }

    #[test]
    fn a_command_that_cannot_run_says_why() {
        let mut question = PendingQuestion::command(ID);
        let why = "the server does not run commands".to_owned();
        let error = RemoteCommandError::Failed(why.clone());
        let event = RemoteCommandEvent::Ended(Err(error));
        let answer = question.handle(SessionEvent::Exec(ID, event));
        assert_eq!(answer, Some(Err(QuestionError::NotRun(why))));
    }

    /// Bug: the answer said that the far end could not run the command.
    #[test]
    fn a_command_whose_connection_is_lost_was_not_refused() {
        let mut question = PendingQuestion::command(ID);
        let why = "the connection broke".to_owned();
        let error = RemoteCommandError::ConnectionLost(why.clone());
        let event = RemoteCommandEvent::Ended(Err(error));
        let answer = question.handle(SessionEvent::Exec(ID, event));
        assert_eq!(answer, Some(Err(QuestionError::Lost(why))));
    }

    #[test]
    fn a_job_is_answered_by_its_own_last_event() {
        let mut question = PendingQuestion::job(JobId(3));
        let done = |id| SessionEvent::Lane(LaneEvent::Done(JobId(id)));
        assert_eq!(question.handle(done(2)), None);
        assert_eq!(question.handle(SessionEvent::Restarted(JobId(3))), None);
        assert_eq!(question.handle(done(3)), Some(Ok(Vec::new())));
    }
}
