//! Opens a session with each host that the operands name.

mod program;
mod query;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use plan::{Pack, Told};
use transfer::bootstrap;
use transfer::cancel::Cancel;
use transfer::config::{LocalUser, Query};
use transfer::connect::{self, FarUse, SharedPrompt, Surroundings};
use transfer::copy::{Connect, HostId};
use transfer::memory::Memories;
use transfer::operand::Destination;
use transfer::prompt::{Batch, Person};
use transfer::session::{RawLink, Session, SessionOptions, ssh_arguments};
use transfer::sums::Ledger;

use crate::flags::low::CopyArgs;
use crate::output::Output;
use crate::output::json::HostInfo;

/// A cancel is noticed within this time while a connection is made.
const CANCEL_SEEN: Duration = Duration::from_millis(50);

/// The hosts of a run, and how they are reached.
pub(crate) struct Hosts {
    hosts: Vec<Destination>,
    flags: CopyArgs,
    output: Arc<Output>,
    /// Where sums are wanted.
    ledger: Option<Arc<Ledger>>,
}

impl Hosts {
    pub(crate) fn new(hosts: Vec<Destination>, flags: CopyArgs, output: Arc<Output>) -> Self {
        let ledger = flags.sums().map(|wants| Arc::new(Ledger::new(wants)));
        Self {
            hosts,
            flags,
            output,
            ledger,
        }
    }

    /// Sends this program to the hosts that have none, where that was asked for. Where it cannot be,
    /// that is said, and the copy does without.
    pub(crate) fn bootstrap(&mut self, cancel: &Cancel) {
        if !self.flags.bootstrap {
            return;
        }
        for at in 0..self.hosts.len() {
            if let Err(why) = self.send_longhaul(HostId(at), cancel)
                && !cancel.is_cancelled()
            {
                let host = Connect::name(self, HostId(at));
                self.output
                    .warning(format!("{host}: longhaul was not sent there: {why}"));
            }
        }
        // What was done for it is worth a question.
        self.flags.far = FarUse::Exec;
    }

    /// Sends this program to a host; false where it was there already.
    pub(crate) fn send_longhaul(&self, host: HostId, cancel: &Cancel) -> Result<bool, String> {
        let placed = bootstrap::place(host, self, cancel)?;
        self.remember_longhaul(host, Some(placed.sum));
        Ok(placed.sent)
    }

    /// Which one was sent to a host, if one was.
    pub(crate) fn remember_longhaul(&self, host: HostId, sum: Option<String>) {
        let user = LocalUser::current();
        let memories = Memories::of_user(user.home.as_deref());
        let destination = self.hosts.get(host.0);
        let config = destination.map(|d| query::query(&self.flags, d).resolve(&user));
        if let (Some(memories), Some(Ok(config))) = (memories, config)
            && let Err(error) = connect::remember_placed(&config, &memories, sum)
        {
            tracing::debug!("it cannot be remembered: {error}");
        }
    }

    fn options(&self) -> SessionOptions {
        SessionOptions {
            limit: self.flags.limit(),
            connections: match self.flags.background {
                true => Some(1),
                false => self.flags.connections,
            },
            channels: self.flags.channels,
            // BBR would keep its share against what a background copy is to yield to.
            bear_losses: self.flags.congestion.is_none() && !self.flags.background,
            background: self.flags.background,
            pack: match self.flags.compress {
                true => Pack::Always,
                false => Pack::Auto,
            },
            ledger: self.ledger.clone(),
            told: Told::default()
                .with(Told::NANOSECONDS, self.keeps_times())
                .with(Told::LINKS, self.flags.hard_links),
            ..SessionOptions::default()
        }
    }

    fn keeps_times(&self) -> bool {
        self.flags.preserve || self.flags.archive || self.flags.acls
    }

    /// Where more is wanted than SFTP carries, a longhaul is asked for whatever is copied.
    fn far_use(&self) -> FarUse {
        match self.flags.far {
            FarUse::Auto if self.flags.wants_longhaul() => FarUse::Wanted,
            far => far,
        }
    }

    /// A session over the standard streams of a program: an SFTP server (`-D`), or an ssh (`-S`).
    fn over_program(&self, host: &Destination) -> Option<Result<Session, String>> {
        let link = if let Some(server) = &self.flags.sftp_server {
            RawLink::spawn(server.clone(), Vec::new())
        } else if let Some(ssh) = &self.flags.program {
            let options = program::options(&self.flags);
            let user = host.user.as_deref().map(AsRef::as_ref);
            let arguments = ssh_arguments(&options, user, host.port, host.host.as_ref());
            RawLink::spawn(ssh.clone(), arguments)
        } else {
            return None;
        };
        Some(link.map_err(|error| error.to_string()).and_then(|link| {
            self.output.host(HostInfo {
                host: name(host),
                ..HostInfo::default()
            });
            Session::start(Box::new(link), self.options())
                .map_err(|error| format!("{}: a session can't be set up: {error}", name(host)))
        }))
    }

    /// A session over our own SSH.
    fn over_ssh(&self, destination: &Destination, cancel: &Cancel) -> Result<Session, String> {
        let user = LocalUser::current();
        let resolve = |query: Query| query.resolve(&user).map_err(|error| error.to_string());
        let mut config = resolve(query::query(&self.flags, destination))?;
        for warning in config.warnings.drain(..) {
            self.output.warning(warning);
        }
        let prompt: SharedPrompt = match config.batch_mode {
            true => Arc::new(Mutex::new(Batch)),
            false => Arc::new(Mutex::new(Person::from_env())),
        };
        let (hop_flags, hop_user) = (self.flags.clone(), user.clone());
        let (output, host) = (Arc::clone(&self.output), name(destination));
        let login = config.user.clone();
        let around = Surroundings {
            prompt,
            opened: Arc::new(move |facts| {
                output.host(HostInfo {
                    host: host.clone(),
                    user: Some(login.clone()),
                    address: facts.address,
                    banner: facts.banner,
                    kex: facts.kex,
                    host_key: facts.host_key,
                    cipher: facts.cipher,
                    auth: facts.method,
                    guessed: facts.guessed,
                });
            }),
            memories: Memories::of_user(user.home.as_deref()),
            forward_agent: self.flags.forward_agent,
            dscp: self.flags.dscp.value(),
            congestion: self.flags.congestion.clone(),
            renounced: self.flags.renounced,
            window_poll: !self.flags.no_window_poll,
            far: self.far_use(),
            beside: None,
            // What yields is one connection, whose queue is seen at this end.
            direct: !self.flags.background,
            hop: Arc::new(move |hop| {
                let query = query::hop(&hop_flags, hop);
                query.resolve(&hop_user).map_err(|error| error.to_string())
            }),
        };
        let (link, again) =
            self.until_cancelled(cancel, move || connect::connect(config, &around))?;
        let options = SessionOptions {
            reach: Some(Arc::new(again)),
            ..self.options()
        };
        Session::start(Box::new(link), options)
            .map_err(|error| format!("{}: a session can't be set up: {error}", name(destination)))
    }
}

impl Hosts {
    /// Connecting waits for hosts, name servers and people, and none of them can be told to give
    /// up: at a cancel it is left alone, and ends with the process.
    fn until_cancelled<T: Send + 'static>(
        &self,
        cancel: &Cancel,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (done, result) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name("connect".to_owned());
        let spawned = thread.spawn(move || {
            // Nobody waits for it any more after a cancel.
            let _ = done.send(work());
        });
        spawned.map_err(|error| format!("no thread to connect with: {error}"))?;
        loop {
            match result.recv_timeout(CANCEL_SEEN) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("connecting ended unexpectedly".to_owned());
                }
                Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                    // A question may have echo switched off.
                    self.output.console().restore();
                    return Err("interrupted".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Connect for Hosts {
    fn connect(&self, host: HostId, cancel: &Cancel) -> Result<Session, String> {
        // Questions and the bar share the terminal.
        let _hold = self.output.console().hold();
        let destination = self.hosts.get(host.0).ok_or("there is no such host")?;
        self.over_program(destination)
            .unwrap_or_else(|| self.over_ssh(destination, cancel))
    }

    fn ledger(&self) -> Option<Arc<Ledger>> {
        self.ledger.clone()
    }

    fn name(&self, host: HostId) -> String {
        self.hosts.get(host.0).map_or_else(String::new, name)
    }

    fn identity(&self, host: HostId) -> String {
        let whole = |host: &Destination| host.to_string();
        self.hosts.get(host.0).map_or_else(String::new, whole)
    }
}

/// The host as an operand has it: a path follows it after a colon, so the port stays out.
fn name(host: &Destination) -> String {
    let without_port = Destination {
        port: None,
        ..host.clone()
    };
    without_port.to_string()
}
