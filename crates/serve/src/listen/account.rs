//! The process of an account: it says whose keys may enter it, and serves whoever did.

use std::env;
use std::ffi::CString;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use nix::unistd::{Gid, getgrouplist};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::connection::{self, Handed};
use super::engine::Algorithms;
use super::keys::{Keys, Question};
use super::link::{Link, nonsense};
use super::message::{Answer, Begin, Check, Over, Tell};
use super::{Served, Stopping, confine, engine};
use crate::Moved;

/// Bytes of a reason for the log.
const MAX_WHY: usize = 4096;

/// What it has to know before anybody has logged in.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AccountTask {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
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
#[derive(Clone, Debug)]
pub struct Log(Arc<Link>);

impl Log {
    /// A line; level 0 is a warning, 1 is always told, 2 and 3 are more.
    pub fn tell(&self, level: u8, text: &[u8]) {
        let text = text.get(..4096).unwrap_or(text);
        // Whoever has nobody to tell goes on.
        let _ = self.0.send(&Tell { level, text }.to_bytes());
    }
}

/// An account's process, before it has read anything.
#[derive(Debug)]
pub struct AccountProcess(Arc<Link>);

impl AccountProcess {
    /// With the monitor at standard output and the client at standard input.
    ///
    /// # Errors
    /// They are not there.
    pub fn inherited() -> io::Result<Self> {
        Link::inherited().map(Arc::new).map(Self)
    }

    /// Where its lines go.
    pub fn log(&self) -> Log {
        Log(Arc::clone(&self.0))
    }

    /// Becomes the account, answers for it, and serves whoever has logged in.
    pub fn run(self, stopping: &Stopping) -> ExitCode {
        match run(&self.0, stopping) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                warn!("ended: {why}");
                ExitCode::FAILURE
            }
        }
    }
}

fn run(link: &Arc<Link>, stopping: &Stopping) -> io::Result<()> {
    let task: AccountTask = link.receive_task()?;
    become_account(&task)?;
    let keys = Keys::new(task.authorized_keys.clone(), task.authorities.clone());
    let mut expects = false;
    loop {
        let message = link.receive()?;
        match message.first() {
            // The monitor needs it no more.
            None => return Ok(()),
            Some(&Check::NUMBER) => {
                let check = Check::decode(&message).map_err(nonsense)?;
                let allowed = answer(link, &keys, &task, &check)?;
                // While the client signs, the generator can gather what it wants for its first
                // number: 30 ms.
                if allowed && !std::mem::replace(&mut expects, true) {
                    let first = || engine::random()(&mut [0; 16]);
                    // Without a thread it does so later.
                    let _ = thread::Builder::new().spawn(first);
                }
            }
            Some(&Begin::NUMBER) => {
                let begin = Begin::decode(&message).map_err(nonsense)?;
                return serve(link, &task, &begin, stopping);
            }
            Some(_) => return Err(io::Error::other("the monitor says what it does not say")),
        }
    }
}

/// From here on nothing has more rights than the account.
fn become_account(task: &AccountTask) -> io::Result<()> {
    let groups: Vec<u32> = match task.nobody {
        true => Vec::new(),
        false => {
            let name = CString::new(task.name.as_str())?;
            let groups = getgrouplist(&name, Gid::from_raw(task.gid))?;
            groups.into_iter().map(Gid::as_raw).collect()
        }
    };
    confine::become_user(task.uid, task.gid, &groups)?;
    confine::seal_off()?;
    confine::confine_account(task.runs_programs)?;
    // As sshd: whoever is not at home is at the root.
    env::set_current_dir(&task.home).or_else(|_| env::set_current_dir("/"))
}

fn answer(link: &Link, keys: &Keys, task: &AccountTask, check: &Check<'_>) -> io::Result<bool> {
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
    link.send(&answer.to_bytes())?;
    Ok(allowed)
}

fn serve(
    link: &Arc<Link>,
    task: &AccountTask,
    begin: &Begin<'_>,
    stopping: &Stopping,
) -> io::Result<()> {
    let stream = TcpStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let served: Served = serde_json::from_slice(begin.served).map_err(io::Error::other)?;
    let host_keys = engine::monitors_keys(&task.host_keys, link).map_err(io::Error::other)?;
    let over = |moved: Moved| {
        let over = Over {
            files: moved.files,
            sent: moved.sent,
            received: moved.received,
        };
        // The monitor counts it; without one there is nothing to be counted.
        let _ = link.send(&over.to_bytes());
    };
    let handed = Handed {
        host_keys,
        algorithms: &task.algorithms,
        state: begin.state,
        unread: begin.unread,
    };
    let done = connection::serve(&served, stream, handed, &over, stopping);
    done.map_err(io::Error::other)
}
