use std::time::{Duration, Instant};

use plan::{Job, JobId, JobKind, RemotePath};

use super::{ExecEvent, ExecId, Session, SessionEvent};

/// How long the far end may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// What it may say.
const MOST: usize = 64 * 1024;

impl Session {
    /// Runs a script of sh's at the far end, and waits for what it says. There must be no quote of
    /// the single kind, no backslash and no exclamation mark in it, so that every shell passes it
    /// on. `number` is another each time; the session has nothing else to do meanwhile.
    ///
    /// # Errors
    /// One sentence without the host.
    pub fn ask(&self, number: u64, script: &str) -> Result<String, String> {
        let path = RemotePath(b".".to_vec());
        let kind = JobKind::RealPath { path };
        // Commands run behind a lane.
        let id = JobId(number);
        self.submit(Job { id, kind }, None);
        let command = format!("exec sh -c '{script}'");
        let exec = ExecId(number);
        self.exec(exec, command.into_bytes());
        self.exec_end(exec);
        let until = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let event = self.events().recv_timeout(left);
            match event.map_err(|_| "the far end did not answer in time")? {
                SessionEvent::Exec(id, event) if id == exec => match event {
                    ExecEvent::Output(bytes) if said.len() < MOST => {
                        said.extend_from_slice(&bytes);
                    }
                    ExecEvent::Output(_) => {}
                    ExecEvent::Over(Err(why)) => return Err(why),
                    ExecEvent::Over(Ok(_)) => break,
                },
                SessionEvent::Lost(why) => return Err(why),
                _ => {}
            }
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Removes a file at the far end, as far as that can be done; false if the far end does not answer.
    pub fn remove(&self, number: u64, path: &[u8]) -> bool {
        let path = RemotePath(path.to_vec());
        let id = JobId(number);
        let kind = JobKind::Remove { path };
        self.submit(Job { id, kind }, None);
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.events().recv_timeout(left) {
                Ok(SessionEvent::Lane(event)) if event.job() == id && event.is_last() => {
                    return true;
                }
                Ok(SessionEvent::Lost(_)) | Err(_) => return false,
                Ok(_) => {}
            }
        }
    }
}
