use std::time::{Duration, Instant};

use schedule::{Job, JobId, JobKind, RemotePath};

use super::Session;
use crate::session::{RemoteCommandEvent, RemoteCommandId, SessionEvent};

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
            let left = until.saturating_duration_since(Instant::now());
            let event = self.session.events().recv_timeout(left);
            match event.map_err(|_| "the far end did not answer in time")? {
                SessionEvent::Exec(id, event) if id == exec => match event {
                    RemoteCommandEvent::Output(bytes) if said.len() < MOST => {
                        said.extend_from_slice(&bytes);
                    }
                    RemoteCommandEvent::Output(_) => {}
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
            let left = until.saturating_duration_since(Instant::now());
            match self.session.events().recv_timeout(left) {
                Ok(SessionEvent::Lane(event)) if event.job() == id && event.is_last() => {
                    return true;
                }
                Ok(SessionEvent::Lost(_)) | Err(_) => return false,
                Ok(_) => {}
            }
        }
    }
}
