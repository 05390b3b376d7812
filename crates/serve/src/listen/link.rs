//! The socket between the monitor and a process it has started.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::WireError;
use zeroize::Zeroizing;

use super::message::{LONGEST, Task};

/// Whoever does not read what it is told is not waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// One end. A message is written and read whole, and its length is bounded.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

/// A message, with its number in front. It may hold keys.
pub(super) type Message = Zeroizing<Vec<u8>>;

impl Link {
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for end in [&ours, &theirs] {
            set_socket_timeout(end, Timeout::Send, Some(PATIENCE))?;
        }
        Ok((Self(ours), theirs))
    }

    /// The other end of [`Link::pair`].
    #[cfg(test)]
    pub(super) fn from_end(end: OwnedFd) -> Self {
        Self(end)
    }

    /// The end that a process was started with as its standard output.
    pub(super) fn inherited() -> io::Result<Self> {
        io::stdout().as_fd().try_clone_to_owned().map(Self)
    }

    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        let sent = retry_on_intr(|| send(&self.0, message, SendFlags::NOSIGNAL))?;
        match sent == message.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// The next message; empty once the other end is gone.
    ///
    /// # Errors
    /// It is longer than any message.
    pub(super) fn receive(&self) -> io::Result<Message> {
        let mut message = Zeroizing::new(vec![0; LONGEST]);
        let received = retry_on_intr(|| recv(&self.0, &mut message[..], RecvFlags::TRUNC));
        let len = match received {
            Ok((_, len)) => len,
            // It has died with something of ours unread.
            Err(Errno::CONNRESET) => 0,
            Err(e) => return Err(e.into()),
        };
        if len > LONGEST {
            return Err(io::Error::other("a message between processes is too long"));
        }
        message.truncate(len);
        Ok(message)
    }

    pub(super) fn send_task(&self, task: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(task).map_err(io::Error::other)?;
        self.send(&Task { json: &json }.to_bytes())
    }

    pub(super) fn receive_task<T: DeserializeOwned>(&self) -> io::Result<T> {
        let message = self.receive()?;
        let task = Task::decode(&message).map_err(nonsense)?;
        serde_json::from_slice(task.json).map_err(io::Error::other)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A process that says what it may not say is treated as one that was taken over.
pub(super) fn nonsense(e: WireError) -> io::Error {
    io::Error::other(format!("a message between processes makes no sense: {e}"))
}

/// Waits for any of these to be readable, or gone, until `deadline`; which of them are.
pub(super) fn readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    deadline: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let wait = deadline.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        // Not a little too early.
        left + Duration::from_millis(1)
    });
    let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
    match poll(&mut fds, wait.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(fds.map(|fd| !fd.revents().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_bounds() {
        let (here, there) = Link::pair().unwrap();
        let there = Link(there);
        here.send(b"one").unwrap();
        here.send(b"two").unwrap();
        assert_eq!(**there.receive().unwrap(), *b"one");
        assert_eq!(**there.receive().unwrap(), *b"two");
        here.send(&vec![1; LONGEST + 1]).unwrap();
        assert!(there.receive().is_err());
        drop(here);
        assert!(there.receive().unwrap().is_empty());
    }
}
