//! The preauth process, which reads client input until the login and may do nothing else.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use ssh::auth::ServerAuthEvent;
use ssh::{ConnectionEvent, PeerIncompatible, SealedQueue};
use wire::escape::field;

use super::engine::{OfferedAlgorithms, SupportedAlgorithms};
use super::message::{
    ConnectionHandover, EndedWithoutLogin, KeyQuery, KeyVerdict, LogMessage, SignatureCheckRequest,
};
use super::monitor_message_socket::{MonitorMessageSocket, nonsense};
use super::{confine, engine};
use crate::error::ConnectionEndCause;

/// Largest read from the client in bytes. Input that follows the login goes to the monitor in one
/// message.
const SEGMENT: usize = 32 << 10;

/// Settings of a preauth process, sent by the monitor.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PreauthProcessConfig {
    /// Blobs of the host keys, the preferred one first.
    pub(super) host_keys: Vec<Vec<u8>>,
    pub(super) algorithms: OfferedAlgorithms,
    pub(super) to_old_clients: Option<SupportedAlgorithms>,
    /// User and group ID to switch to, if the server runs as root.
    pub(super) becomes: Option<(u32, u32)>,
    /// Empty directory for chroot(2) before the process switches to `becomes`; `None` if there is
    /// none.
    pub(super) chroot_dir: Option<PathBuf>,
    pub(super) login_milliseconds: u64,
}

/// Runs a preauth process: it waits for its client and reads input until the client is logged in or
/// gone. The monitor's link is its standard output.
pub fn main() -> ExitCode {
    let Ok(link) = MonitorMessageSocket::inherited().map(Arc::new) else {
        return ExitCode::FAILURE;
    };
    let why = match run(&link) {
        Ok(()) => String::new(),
        Err(e) if e.is_leave() => String::new(),
        Err(e) => e.to_string(),
    };
    let ended = EndedWithoutLogin {
        why: why.as_bytes(),
    };
    // The monitor may be gone too.
    let _ = link.send(&ended.to_bytes());
    ExitCode::SUCCESS
}

fn run(link: &Arc<MonitorMessageSocket>) -> Result<(), ConnectionEndCause> {
    let task: PreauthProcessConfig = link.receive_task()?;
    // Draw random bytes before the filter is installed: the first use may need more system calls.
    let mut random = engine::random();
    random(&mut [0; 16]);
    if let Some((uid, gid)) = task.becomes {
        if let Some(chroot_dir) = &task.chroot_dir {
            confine::leave_files(chroot_dir)?;
        }
        confine::become_user(uid, gid, &[])?;
    }
    confine::seal_off()?;
    let left = confine::prepare_preauth()?;
    confine::set_name(confine::STANDS_READY)?;
    // The process may wait long for its client.
    let Some([stream]) = link.take()? else {
        return Ok(());
    };
    rustix::io::ioctl_fionbio(&stream, true).map_err(io::Error::from)?;
    confine::set_name(confine::SERVES)?;
    let lacking = confine::confine_preauth(left)?;
    if !lacking.is_empty() {
        let text = format!(
            "the kernel does not support {}, so connections are confined less before the login: \
             use a newer kernel",
            lacking.join(" and ")
        );
        tell(link, 2, &text)?;
    }
    let keys = engine::monitors_keys(&task.host_keys, link).map_err(io::Error::other)?;
    let mut conn = ssh::Connection::server(
        engine::config(keys, &task.algorithms),
        engine::pool(),
        random,
    )?;
    conn.keep_keys();
    if let Some(all) = &task.to_old_clients {
        conn.set_could_offer(all.proposal());
    }
    PreauthConnection {
        link,
        stream,
        conn,
        received: BytesMut::new(),
        sending: SealedQueue::default(),
        until: Instant::now() + Duration::from_millis(task.login_milliseconds),
        logged_in: false,
    }
    .run()
}

fn tell(link: &MonitorMessageSocket, level: u8, text: &str) -> io::Result<()> {
    let text = text.as_bytes();
    link.send(&LogMessage { level, text }.to_bytes())
}

/// Acknowledges received data at once, if no answer has done so. OpenSSH's client uses Nagle's
/// algorithm until the login: its first request waits for the acknowledgement of its NEWKEYS, which
/// has no answer, and which the system would delay by 40 ms.
fn acknowledge(stream: &OwnedFd) {
    // Without TCP_QUICKACK the login only takes longer.
    let _ = rustix::net::sockopt::set_tcp_quickack(stream, true);
}

/// Connection of one client before the login: its socket and SSH state, and the link to the monitor
/// that decides for it.
struct PreauthConnection<'l> {
    link: &'l MonitorMessageSocket,
    stream: OwnedFd,
    conn: ssh::Connection,
    received: BytesMut,
    sending: SealedQueue,
    until: Instant,
    logged_in: bool,
}

impl PreauthConnection<'_> {
    fn run(mut self) -> Result<(), ConnectionEndCause> {
        let done = self.serve().map_err(|e| self.named(e));
        let Err(why) = &done else {
            return self.hand_over();
        };
        if let Some((reason, words)) = why.farewell()
            && self.conn.disconnect(reason, &words).is_ok()
        {
            // The client may already be gone.
            let _ = self.write();
        }
        done
    }

    /// Adds to a failed negotiation the client's identification and whether `--old-clients` would
    /// help.
    fn named(&self, e: ConnectionEndCause) -> ConnectionEndCause {
        match e {
            ConnectionEndCause::Engine(ssh::Error::PeerIncompatible(
                PeerIncompatible::NoCommon {
                    what,
                    theirs,
                    could_be,
                },
            )) => ConnectionEndCause::NothingInCommon {
                client: self.conn.peer().map(|ident| ident.as_str().to_owned()),
                what,
                theirs,
                old_clients: could_be,
            },
            e => e,
        }
    }

    /// Runs until the client is logged in and the success message was sent.
    fn serve(&mut self) -> Result<(), ConnectionEndCause> {
        loop {
            let done = self.write()?;
            if done && self.logged_in {
                return Ok(());
            }
            if done {
                acknowledge(&self.stream);
            }
            if Instant::now() >= self.until {
                return Err(ConnectionEndCause::LoginTime);
            }
            if self.wait(!done)? && !self.logged_in {
                self.read()?;
            }
        }
    }

    /// Sends the connection's state to the monitor; all other memory vanishes with this process.
    fn hand_over(&self) -> Result<(), ConnectionEndCause> {
        let state = self.conn.hand_over(Instant::now());
        let state = state.ok_or_else(|| {
            io::Error::other(
                "the client sent SSH_MSG_KEXINIT during the login, which this server does not \
                 support",
            )
        })?;
        let chosen = self.conn.negotiated();
        let direction = chosen.map(|n| n.c2s);
        let message = ConnectionHandover {
            kex: chosen.map_or(b"", |n| n.kex.name.as_bytes()),
            cipher: direction.map_or(b"", |d| d.cipher.name.as_bytes()),
            mac: direction
                .and_then(|d| d.mac)
                .map_or(b"", |m| m.name.as_bytes()),
            state: &state,
            unread: &self.received,
        };
        Ok(self.link.send(&message.to_bytes())?)
    }

    /// Waits for the client; true if there is something to read.
    fn wait(&self, writing: bool) -> io::Result<bool> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, !self.logged_in);
        wanted.set(PollFlags::OUT, writing);
        let left = self.until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left + Duration::from_millis(1)).ok();
        let mut fds = [PollFd::new(&self.stream, wanted)];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(!fds[0].revents().is_empty())
    }

    fn read(&mut self) -> Result<(), ConnectionEndCause> {
        let mut segment = [0; SEGMENT];
        match rustix::io::read(&self.stream, &mut segment) {
            Ok(0) => return Err(ConnectionEndCause::Gone),
            Ok(n) => self.received.extend_from_slice(&segment[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(e) => return Err(io::Error::from(e).into()),
        }
        self.handle()
    }

    fn handle(&mut self) -> Result<(), ConnectionEndCause> {
        while !self.logged_in {
            let handled = self.conn.handle_input(Instant::now(), &mut self.received);
            let mut decided = false;
            while let Some(event) = self.conn.poll_event() {
                decided |= self.handle_event(event)?;
            }
            handled?;
            if !decided {
                break;
            }
        }
        Ok(())
    }

    /// Handles an event; true if a key was decided about.
    fn handle_event(&mut self, event: ConnectionEvent) -> Result<bool, ConnectionEndCause> {
        match event {
            ConnectionEvent::Transport(ssh::transport::TransportEvent::Identified(ident)) => {
                tell(self.link, 2, &format!("connection from {}", ident.as_str()))?;
            }
            ConnectionEvent::Login(ServerAuthEvent::Key { user, key, proof }) => {
                let (user, blob) = (user.as_slice(), key.blob());
                let certificate = key.certificate();
                let authority = certificate.map_or(&[][..], |c| c.authority().blob());
                // The length fits: a blob is shorter than a packet.
                let signed_len = certificate.map_or(0, |c| c.signed_len() as u32);
                let question = match &proof {
                    None => KeyQuery {
                        user,
                        blob,
                        authority,
                        signed_len,
                    }
                    .to_bytes(),
                    Some(proof) => SignatureCheckRequest {
                        user,
                        blob,
                        authority,
                        signed_len,
                        algorithm: proof.algorithm.as_bytes(),
                        host_bound: proof.host_bound,
                        signature: &proof.signature,
                    }
                    .to_bytes(),
                };
                self.link.send(&question)?;
                let answer = self.link.receive()?;
                let verdict = KeyVerdict::decode(&answer).map_err(nonsense)?;
                if verdict.full {
                    return Err(ConnectionEndCause::Full);
                }
                self.conn.decide(verdict.allowed)?;
                return Ok(true);
            }
            ConnectionEvent::Login(ServerAuthEvent::Success { .. }) => self.logged_in = true,
            ConnectionEvent::Login(ServerAuthEvent::Refused { user, method }) => {
                let (user, method) = (field(user.as_bytes()), field(method.as_bytes()));
                tell(
                    self.link,
                    2,
                    &format!("refused user={user} method={method}"),
                )?;
            }
            // There are no channels before the login; all other events are a client's.
            _ => {}
        }
        Ok(false)
    }

    /// Writes until the socket is full; true if nothing is left.
    fn write(&mut self) -> Result<bool, ConnectionEndCause> {
        loop {
            self.sending.fill(&mut self.conn, SEGMENT)?;
            if self.sending.is_empty() {
                return Ok(true);
            }
            match sys::write_parts(&self.stream, self.sending.parts()) {
                Ok(n) => self.sending.written(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
    }
}
