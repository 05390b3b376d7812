//! Carries a local socket over one channel of an authenticated connection: ProxyJump and remote
//! commands.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::{Buf, Bytes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sftp::ClientOutput;
use sys::ReceiveBuffers;
use tracing::debug;

use super::ssh_link::SshLink;
use super::stream::{ConnectedStream, JumpStreamThread};
use crate::escape;
use crate::session::{Link, LinkChannelId, LinkEvent};

/// Bytes queued for the inner connection; reading from the outer one pauses above that.
const HELD: usize = 4 << 20;

/// Opens a channel over `outer` (host `name`) to `host` and `port`, and carries its bytes on a
/// thread. If the far end refuses, the inner connection's read reports it.
pub(super) fn through(
    mut outer: SshLink,
    name: &str,
    host: &str,
    port: u16,
) -> io::Result<ConnectedStream> {
    let (inner, local) = UnixStream::pair()?;
    local.set_nonblocking(true)?;
    let channel = outer.open_direct_tcpip(host, port);
    let refused = Arc::new(OnceLock::new());
    let subject = format!(
        "cannot connect to {} port {port} through {}",
        escape::name(host.as_bytes()),
        escape::name(name.as_bytes())
    );
    let told = Arc::clone(&refused);
    let thread = std::thread::Builder::new().name("jump".to_owned());
    let thread = thread.spawn(move || {
        carry(outer, channel, &local, &mut |text| {
            debug!("jump: {}", escape::text(text.as_bytes()));
            // The first message is the reason.
            let _ = told.set(format!("{subject}: {}", escape::text(text.as_bytes())));
        });
    })?;
    Ok(ConnectedStream::Jump(
        inner,
        Some(JumpStreamThread::new(thread, refused)),
    ))
}

/// Moves bytes until either side ends. `hears` receives the messages of the far end and the reason
/// for its end.
pub(super) fn carry(
    mut outer: SshLink,
    channel: LinkChannelId,
    local: &UnixStream,
    hears: &mut dyn FnMut(&str),
) {
    let mut segments = ReceiveBuffers::default();
    let mut held: VecDeque<Bytes> = VecDeque::new();
    let mut events = Vec::new();
    loop {
        let now = Instant::now();
        let waiting: usize = held.iter().map(Bytes::len).sum();
        let room = outer.room(channel);
        let mut inner = PollFlags::empty();
        inner.set(PollFlags::IN, room > 0);
        inner.set(PollFlags::OUT, waiting > 0);
        let mut beyond = PollFlags::empty();
        beyond.set(PollFlags::IN, waiting < HELD);
        beyond.set(PollFlags::OUT, outer.has_output());
        let (inner_ready, outer_ready) = match wait_for_either(local, inner, &outer, beyond, now) {
            Ok(ready) => ready,
            Err(e) => return hears(&e.to_string()),
        };
        if inner_ready.intersects(PollFlags::IN | PollFlags::HUP) && room > 0 {
            match segments.read(local, 0) {
                Ok(0) => break,
                Ok(_) => {
                    let bytes = segments.received().split().to_vec();
                    outer.send(channel, ClientOutput::Bytes(bytes));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        outer.ready(
            mio::Token(0),
            outer_ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            outer_ready.contains(PollFlags::OUT),
        );
        let moved = match waiting < HELD {
            true => outer.receive(now, &mut events),
            false => Ok(false),
        };
        let done = moved
            .and_then(|_| outer.handle_timeout(now))
            .and_then(|()| outer.flush(now).map(|_| ()));
        let mut over = done.inspect_err(|e| hears(&e.to_string())).is_err();
        for event in events.drain(..) {
            match event {
                LinkEvent::Data(_, bytes) => held.push_back(bytes),
                LinkEvent::Closed(_, why) => {
                    why.iter().for_each(|why| hears(why));
                    over = true;
                }
                LinkEvent::Refused(_, why) => {
                    let refused = outer.take_refused_channel();
                    hears(&refused.map_or(why, |(code, text)| refusal(code, &text)));
                    over = true;
                }
                LinkEvent::Exited(_, Err(error)) => {
                    hears(&error.to_string());
                    over = true;
                }
                LinkEvent::Exited(_, Ok(_)) => over = true,
                LinkEvent::Message(text) => hears(&text),
                LinkEvent::Ended(_) | LinkEvent::Restarted => {}
            }
        }
        if !write_held(local, &mut held) || over {
            break;
        }
    }
    Box::new(outer).finish();
}

/// Waits for these events of the local stream and of the outer connection, or until the latter
/// needs a turn; returns the events that came.
fn wait_for_either(
    local: &UnixStream,
    inner: PollFlags,
    outer: &SshLink,
    beyond: PollFlags,
    now: Instant,
) -> Result<(PollFlags, PollFlags), rustix::io::Errno> {
    let timeout = outer
        .poll_timeout()
        .map(|at| at.saturating_duration_since(now))
        .and_then(|wait| Timespec::try_from(wait).ok());
    let mut fds = [
        PollFd::new(local, inner),
        PollFd::new(outer.stream(), beyond),
    ];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok((fds[0].revents(), fds[1].revents())),
        Err(e) => Err(e),
    }
}

/// Words for a refused channel: the server's, and what to do.
fn refusal(code: u32, text: &str) -> String {
    /// SSH_OPEN_ADMINISTRATIVELY_PROHIBITED (RFC 4254 section 5.1).
    const PROHIBITED: u32 = 1;
    /// SSH_OPEN_UNKNOWN_CHANNEL_TYPE.
    const UNKNOWN_TYPE: u32 = 3;
    let lower = text.to_ascii_lowercase();
    let says = |word: &str| lower.contains(word);
    let remedy = if code == PROHIBITED || says("prohibited") {
        (
            "its SSH server forbids forwarding",
            "permit it there (AllowTcpForwarding and PermitOpen in sshd_config), or go through \
             another host",
        )
    } else if code == UNKNOWN_TYPE {
        (
            "its SSH server cannot forward connections",
            "go through another host",
        )
    } else if says("name or service") || says("name resolution") || says("not known") {
        (
            "it cannot resolve the name",
            "set HostName in ssh_config to an address that it can reach",
        )
    } else if says("refused") {
        (
            "no SSH server listens on that port",
            "check the port, and that sshd runs there",
        )
    } else {
        (
            "it cannot connect",
            "check the address, and the firewalls between the two hosts",
        )
    };
    let (what, advice) = remedy;
    format!("{what} ({text}): {advice}")
}

/// Writes queued bytes to the inner connection; false if that connection is closed.
fn write_held(mut local: &UnixStream, held: &mut VecDeque<Bytes>) -> bool {
    while let Some(bytes) = held.front_mut() {
        match local.write(bytes) {
            Ok(n) => bytes.advance(n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
        if bytes.is_empty() {
            held.pop_front();
        }
    }
    true
}
