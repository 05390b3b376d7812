//! The process of an account: it says whose keys may enter it, and serves whoever did.

use std::env;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use rustix::process::{Pid, getppid};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::connection::{self, LoggedInConnection};
use super::engine::Algorithms;
use super::keys::{Keys, Question};
use super::link::{Link, Message, nonsense};
use super::losses::LossDetector;
use super::message::{Answer, Begin, Check, Ended, Over, Tell};
use super::{ServedFiles, StopSignal, confine, engine};
use crate::TransferCounters;

/// Bytes of a reason for the log.
const MAX_WHY: usize = 4096;

/// What it has to know before anybody has logged in.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AccountTask {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// All of them. Whatever names users on this machine has told the monitor.
    pub(super) groups: Vec<u32>,
    pub(super) home: PathBuf,
    pub(super) authorized_keys: PathBuf,
    /// Keys whose certificates are let in beside those of authorized_keys.
    pub(super) authorities: Option<PathBuf>,
    pub(super) from: IpAddr,
    /// Blobs of the host keys, the preferred first.
    pub(super) host_keys: Vec<Vec<u8>>,
    pub(super) algorithms: Algorithms,
    /// It may run programs once somebody has logged in.
    pub(super) runs_programs: bool,
    /// It stands for an account that does not exist.
    pub(super) nobody: bool,
}

/// Where the lines of an account's process go: to the monitor, which writes them down.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<OnceLock<Arc<Link>>>);

impl Log {
    /// A line; level 0 is a warning, 1 is always told, 2 and 3 are more.
    pub fn tell(&self, level: u8, text: &[u8]) {
        let text = text.get(..4096).unwrap_or(text);
        // Whoever has nobody to tell goes on.
        if let Some(link) = self.0.get() {
            let _ = link.send(&Tell { level, text }.to_bytes());
        }
    }
}

/// An account's process, before it has read anything.
#[derive(Debug)]
pub struct AccountProcess {
    pub(super) link: Arc<Link>,
    pub(super) client: OwnedFd,
    pub(super) stopping: StopSignal,
    /// Whose copy it is.
    pub(super) template: Pid,
}

impl AccountProcess {
    /// Becomes the account, answers for it, and serves whoever has logged in. Its lines go to `log`,
    /// which leads nowhere before.
    pub fn run(self, log: &Log) -> ExitCode {
        // It is said once.
        let _ = log.0.set(Arc::clone(&self.link));
        let link = Arc::clone(&self.link);
        let done = run(self);
        if let Err(why) = &done {
            warn!("ended: {why}");
        }
        // The monitor may be gone as well.
        let _ = link.send(&Ended { why: b"" }.to_bytes());
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }
    }
}

fn run(process: AccountProcess) -> io::Result<()> {
    let task: AccountTask = process.link.receive_task()?;
    become_account(&task, process.template)?;
    let Some(begin) = wait_for_login(&process.link, &task)? else {
        return Ok(());
    };
    serve(process, &task, begin)
}

/// Answers for the account until somebody has logged in; `None` once the monitor needs it no more.
fn wait_for_login(link: &Link, task: &AccountTask) -> io::Result<Option<Message>> {
    let keys = Keys::new(task.authorized_keys.clone(), task.authorities.clone());
    loop {
        let message = link.receive()?;
        match message.first() {
            None => return Ok(None),
            Some(&Check::NUMBER) => {
                let check = Check::decode(&message).map_err(nonsense)?;
                answer(link, &keys, task, &check)?;
            }
            Some(&Begin::NUMBER) => {
                return Ok(Some(message));
            }
            Some(_) => return Err(io::Error::other("the monitor says what it does not say")),
        }
    }
}

/// From here on nothing has more rights than the account.
fn become_account(task: &AccountTask, template: Pid) -> io::Result<()> {
    confine::become_user(task.uid, task.gid, &task.groups)?;
    // Whoever becomes somebody else has to say it again. The filter is the template's.
    confine::seal_off(confine::SERVES)?;
    if !task.runs_programs {
        confine::run_nothing()?;
    }
    // Had it ended before that, nothing would end this one.
    if getppid() != Some(template) {
        return Err(io::Error::other("what it was made of is gone"));
    }
    // As sshd: whoever is not at home is at the root.
    env::set_current_dir(&task.home).or_else(|_| env::set_current_dir("/"))
}

fn answer(link: &Link, keys: &Keys, task: &AccountTask, check: &Check<'_>) -> io::Result<()> {
    let asked = keys.answer(&Question {
        user: &task.name,
        from: task.from,
        check,
    });
    let (entrant, why) = match asked {
        Ok(entrant) if !task.nobody => (Some(entrant), String::new()),
        Ok(_) => (None, String::new()),
        Err(why) => (None, why),
    };
    let json = entrant.as_ref().map(serde_json::to_vec).transpose();
    let allowed = entrant.is_some();
    let answer = Answer {
        allowed,
        // It may have names in it that are as long as a line or a certificate.
        why: why.as_bytes().get(..MAX_WHY).unwrap_or(why.as_bytes()),
        entrant: &json.map_err(io::Error::other)?.unwrap_or_default(),
    };
    link.send(&answer.to_bytes())
}

fn serve(process: AccountProcess, task: &AccountTask, message: Message) -> io::Result<()> {
    let begin = Begin::decode(&message).map_err(nonsense)?;
    let (link, stream) = (&process.link, TcpStream::from(process.client));
    let served: ServedFiles = serde_json::from_slice(begin.served).map_err(io::Error::other)?;
    let host_keys = engine::monitors_keys(&task.host_keys, link).map_err(io::Error::other)?;
    let over = |moved: TransferCounters| {
        let over = Over {
            files: moved.files,
            sent: moved.sent,
            received: moved.received,
        };
        // The monitor counts it; without one there is nothing to be counted.
        let _ = link.send(&over.to_bytes());
    };
    let handed = LoggedInConnection {
        host_keys,
        algorithms: &task.algorithms,
        state: begin.state.to_vec().into(),
        unread: begin.unread.to_vec(),
    };
    drop(message);
    // It has this connection alone.
    let losses = LossDetector::default();
    let done = connection::serve((&served, &losses), stream, handed, &over, &process.stopping);
    done.map_err(io::Error::other)
}
