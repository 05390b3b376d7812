//! The account process: authorizes keys for one account and serves the client that logs in.

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
use super::engine::OfferedAlgorithms;
use super::keys::{AuthorizedKeyLookup, AuthorizedKeysFile};
use super::losses::LossDetector;
use super::message::{
    BeginSession, EndedWithoutLogin, KeyCheckReply, KeyCheckRequest, LogMessage, SessionEnded,
};
use super::monitor_message_socket::{MessageBuffer, MonitorMessageSocket, nonsense};
use super::{ServedClientSettings, StopSignal, confine, engine};
use crate::TransferCounters;

/// Longest reason that goes to the log, in bytes.
const MAX_WHY: usize = 4096;

/// Settings of an account process, sent by the monitor before the login.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AccountProcessConfig {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// All groups of the account, looked up by the monitor through the system's user database.
    pub(super) groups: Vec<u32>,
    pub(super) home: PathBuf,
    pub(super) authorized_keys: PathBuf,
    /// File of certificate authorities accepted in addition to authorized_keys.
    pub(super) authorities: Option<PathBuf>,
    pub(super) from: IpAddr,
    /// Blobs of the host keys, the preferred one first.
    pub(super) host_keys: Vec<Vec<u8>>,
    pub(super) algorithms: OfferedAlgorithms,
    /// The process may run programs after the login.
    pub(super) runs_programs: bool,
    /// The process stands in for an account that does not exist and refuses every key.
    pub(super) nobody: bool,
}

/// Sends the log lines of an account process to the monitor, which writes them.
#[derive(Clone, Debug, Default)]
pub struct AccountLogSender(Arc<OnceLock<Arc<MonitorMessageSocket>>>);

impl AccountLogSender {
    /// Logs a line; level 0 is a warning, 1 is always logged, 2 and 3 need more `-v`.
    pub fn tell(&self, level: u8, text: &[u8]) {
        let text = text.get(..4096).unwrap_or(text);
        // Before the link is set, lines are dropped.
        if let Some(link) = self.0.get() {
            let _ = link.send(&LogMessage { level, text }.to_bytes());
        }
    }
}

/// An account process that has not read anything yet.
#[derive(Debug)]
pub struct AccountProcess {
    link: Arc<MonitorMessageSocket>,
    client: OwnedFd,
    stopping: StopSignal,
    /// Process ID of the fork server that forked this process.
    template: Pid,
}

impl AccountProcess {
    /// Creates the process that the fork server `template` has forked for a client.
    pub(super) fn new(
        link: MonitorMessageSocket,
        client: OwnedFd,
        stopping: StopSignal,
        template: Pid,
    ) -> Self {
        Self {
            link: Arc::new(link),
            client,
            stopping,
            template,
        }
    }

    /// Becomes the account, answers questions about its keys, and serves the client that logs in.
    /// Log lines go to `log`, which drops everything until this call sets its link.
    pub fn run(self, log: &AccountLogSender) -> ExitCode {
        // The link is set only once.
        let _ = log.0.set(Arc::clone(&self.link));
        let link = Arc::clone(&self.link);
        let done = run(self);
        if let Err(why) = &done {
            warn!("the session ended with an error: {why}");
        }
        // The monitor may be gone as well.
        let _ = link.send(&EndedWithoutLogin { why: b"" }.to_bytes());
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }
    }
}

fn run(process: AccountProcess) -> io::Result<()> {
    let task: AccountProcessConfig = process.link.receive_task()?;
    become_account(&task, process.template)?;
    let Some(begin) = wait_for_login(&process.link, &task)? else {
        return Ok(());
    };
    serve(process, &task, begin)
}

/// Answers key questions for the account until a client logs in; `None` once the monitor closes the
/// link.
fn wait_for_login(
    link: &MonitorMessageSocket,
    task: &AccountProcessConfig,
) -> io::Result<Option<MessageBuffer>> {
    let keys = AuthorizedKeysFile::new(task.authorized_keys.clone(), task.authorities.clone());
    loop {
        let message = link.receive()?;
        match message.first() {
            None => return Ok(None),
            Some(&KeyCheckRequest::NUMBER) => {
                let check = KeyCheckRequest::decode(&message).map_err(nonsense)?;
                answer(link, &keys, task, &check)?;
            }
            Some(&BeginSession::NUMBER) => {
                return Ok(Some(message));
            }
            Some(_) => {
                return Err(io::Error::other(
                    "internal error: the monitor process sent an unexpected message",
                ));
            }
        }
    }
}

/// Drops to the account's rights. Nothing after this call has more rights than the account.
fn become_account(task: &AccountProcessConfig, template: Pid) -> io::Result<()> {
    // The name is inherited from the fork server. Until it changes, the process is root's.
    confine::set_name(confine::SERVES)?;
    confine::become_user(task.uid, task.gid, &task.groups)?;
    // A change of user resets these settings, so they are set again. The seccomp filter is
    // inherited from the fork server.
    confine::seal_off()?;
    if !task.runs_programs {
        confine::run_nothing()?;
    }
    // If the fork server ended before the death signal was set, nothing would end this process.
    if getppid() != Some(template) {
        return Err(io::Error::other(
            "internal error: the fork server has ended",
        ));
    }
    // As sshd does: use `/` if the home directory cannot be entered.
    env::set_current_dir(&task.home).or_else(|_| env::set_current_dir("/"))
}

fn answer(
    link: &MonitorMessageSocket,
    keys: &AuthorizedKeysFile,
    task: &AccountProcessConfig,
    check: &KeyCheckRequest<'_>,
) -> io::Result<()> {
    let asked = keys.answer(&AuthorizedKeyLookup::new(&task.name, task.from, check));
    let (entrant, why) = match asked {
        Ok(entrant) if !task.nobody => (Some(entrant), String::new()),
        Ok(_) => (None, String::new()),
        Err(why) => (None, why.to_string()),
    };
    let json = entrant.as_ref().map(serde_json::to_vec).transpose();
    let allowed = entrant.is_some();
    let answer = KeyCheckReply {
        allowed,
        // The reason may contain a name as long as a line or a certificate.
        why: why.as_bytes().get(..MAX_WHY).unwrap_or(why.as_bytes()),
        entrant: &json.map_err(io::Error::other)?.unwrap_or_default(),
    };
    link.send(&answer.to_bytes())
}

fn serve(
    process: AccountProcess,
    task: &AccountProcessConfig,
    message: MessageBuffer,
) -> io::Result<()> {
    let begin = BeginSession::decode(&message).map_err(nonsense)?;
    let (link, stream) = (&process.link, TcpStream::from(process.client));
    let served: ServedClientSettings =
        serde_json::from_slice(begin.served).map_err(io::Error::other)?;
    let host_keys = engine::monitors_keys(&task.host_keys, link).map_err(io::Error::other)?;
    let over = |moved: TransferCounters| {
        let over = SessionEnded {
            files: moved.files,
            sent: moved.sent,
            received: moved.received,
        };
        // The monitor counts sessions; without a monitor there is no count.
        let _ = link.send(&over.to_bytes());
    };
    let unread = (begin.state, begin.unread);
    let handed = LoggedInConnection::new(host_keys, &task.algorithms, unread);
    drop(message);
    // This process serves only this connection.
    let losses = LossDetector::default();
    let done = connection::serve((&served, &losses), stream, handed, &over, &process.stopping);
    done.map_err(io::Error::other)
}
