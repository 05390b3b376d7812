use std::time::{Duration, Instant};

use schedule::{Job, JobId, JobKind, RemotePath};

use super::{RemoteCommandEvent, RemoteCommandId, Session, SessionEvent};

/// Longest time to wait for the far end's answer to one question.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest output in bytes that is kept from one script.
const MOST: usize = 64 * 1024;

/// Session that answers questions and does nothing else. The `Session` is owned here, so no event
/// that another reader waits for is dropped.
#[derive(Debug)]
pub struct Questions {
    session: Session,
    asked: u64,
}

impl Questions {
    /// Wraps a session that has no other user.
    pub fn new(session: Session) -> Self {
        Self { session, asked: 0 }
    }

    /// Runs an sh script at the far end and returns its output.
    ///
    /// The script must not contain single quotes, backslashes or exclamation marks, so that every
    /// login shell passes it on unchanged.
    ///
    /// # Errors
    ///
    /// One sentence without the host name.
    pub fn ask(&mut self, script: &str) -> Result<String, String> {
        self.asked += 1;
        let number = self.asked;
        let path = RemotePath(b".".to_vec());
        let kind = JobKind::RealPath { path };
        // A command runs only once a lane is open, so submit a cheap job that opens one.
        let id = JobId(number);
        self.session.submit(Job { id, kind }, None);
        let command = format!("exec sh -c '{script}'");
        let exec = RemoteCommandId(number);
        self.session.exec(exec, command.into_bytes());
        self.session.exec_end(exec);
        let until = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        loop {
            let event = self
                .event(until)
                .ok_or("the far end did not answer in time")?;
            match event {
                SessionEvent::Exec(id, event) if id == exec => match event {
                    // A command that prints forever was read forever.
                    RemoteCommandEvent::Output(bytes) if said.len() + bytes.len() > MOST => {
                        return Err(format!("the far end printed more than {MOST} bytes"));
                    }
                    RemoteCommandEvent::Output(bytes) => said.extend_from_slice(&bytes),
                    RemoteCommandEvent::Over(Err(why)) => return Err(why),
                    RemoteCommandEvent::Over(Ok(_)) => break,
                },
                SessionEvent::Lost(why) => return Err(why),
                _ => {}
            }
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Removes a file at the far end if possible. Returns false if the far end does not answer.
    pub fn remove(&mut self, path: &[u8]) -> bool {
        self.asked += 1;
        let number = self.asked;
        let path = RemotePath(path.to_vec());
        let id = JobId(number);
        let kind = JobKind::Remove { path };
        self.session.submit(Job { id, kind }, None);
        let until = Instant::now() + PATIENCE;
        loop {
            match self.event(until) {
                Some(SessionEvent::Lane(event)) if event.job() == id && event.is_last() => {
                    return true;
                }
                Some(SessionEvent::Lost(_)) | None => return false,
                Some(_) => {}
            }
        }
    }

    /// Returns the session's next event; `None` from `until` on, even if events keep coming.
    fn event(&self, until: Instant) -> Option<SessionEvent> {
        let left = until.checked_duration_since(Instant::now())?;
        self.session.events().recv_timeout(left).ok()
    }
}
