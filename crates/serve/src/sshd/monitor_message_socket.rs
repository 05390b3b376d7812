//! The socket between the monitor and a process that it has started.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::WireError;
use zeroize::Zeroizing;

use super::message::{LONGEST, ProcessConfig};

/// Send timeout towards a process that does not read its messages.
const PATIENCE: Duration = Duration::from_secs(30);

/// Contents of the message that carries descriptors.
const HANDED: &[u8] = &[22];
/// Maximum number of descriptors in one message.
const MOST_HANDED: usize = 2;

/// One end of the socket between the monitor and a process that it has started. Messages are sent
/// and received whole, and their length is bounded.
#[derive(Debug)]
pub(super) struct MonitorMessageSocket(OwnedFd);

/// A message, beginning with its number. It may contain keys and is wiped when dropped.
pub(super) type MessageBuffer = Zeroizing<Vec<u8>>;

impl MonitorMessageSocket {
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for end in [&ours, &theirs] {
            set_socket_timeout(end, Timeout::Send, Some(PATIENCE))?;
        }
        Ok((Self(ours), theirs))
    }

    /// The end that this process has as its standard output.
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

    /// Receives the next message; empty once the other end is closed.
    ///
    /// # Errors
    /// The message is longer than [`LONGEST`], or the socket fails.
    pub(super) fn receive(&self) -> io::Result<MessageBuffer> {
        // Allocate only what the message needs: the caller may keep it for hours.
        let len = self.receive_into(&mut [], RecvFlags::PEEK)?;
        if len > LONGEST {
            self.receive_into(&mut [], RecvFlags::empty())?;
            return Err(io::Error::other(
                "internal error: a message to another longhaul process is too long",
            ));
        }
        let mut message = Zeroizing::new(vec![0; len]);
        if len > 0 {
            self.receive_into(&mut message, RecvFlags::empty())?;
        }
        Ok(message)
    }

    /// Receives or peeks; returns the length of the message, or 0 once the other end is closed.
    fn receive_into(&self, message: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let received = retry_on_intr(|| recv(&self.0, &mut *message, flags | RecvFlags::TRUNC));
        match received {
            Ok((_, len)) => Ok(len),
            // The other process died with unread input.
            Err(Errno::CONNRESET) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Passes at most [`MOST_HANDED`] descriptors; the other end receives duplicates.
    pub(super) fn hand(&self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_HANDED))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if fds.len() > MOST_HANDED || !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let message = [IoSlice::new(HANDED)];
        retry_on_intr(|| sendmsg(&self.0, &message, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Receives descriptors that the other end passed with [`MonitorMessageSocket::hand`]; `None` once
    /// that end is closed.
    ///
    /// # Errors
    /// The message is another one, or has another number of descriptors.
    pub(super) fn take<const N: usize>(&self) -> io::Result<Option<[OwnedFd; N]>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_HANDED))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 2];
        let received = retry_on_intr(|| {
            let mut message = [IoSliceMut::new(&mut text)];
            recvmsg(&self.0, &mut message, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let len = match received {
            Ok(received) => received.bytes,
            Err(Errno::CONNRESET) => 0,
            Err(e) => return Err(e.into()),
        };
        // Collect every descriptor, so that those not returned are closed.
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds: Vec<OwnedFd> = fds.flatten().collect();
        if len == 0 {
            return Ok(None);
        }
        let wrong = |_| {
            io::Error::other(
                "internal error: another longhaul process passed unexpected descriptors",
            )
        };
        match text[..len] == *HANDED {
            true => fds.try_into().map(Some).map_err(wrong),
            false => Err(wrong(fds)),
        }
    }

    pub(super) fn send_task(&self, task: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(task).map_err(io::Error::other)?;
        self.send(&ProcessConfig { json: &json }.to_bytes())
    }

    pub(super) fn receive_task<T: DeserializeOwned>(&self) -> io::Result<T> {
        let message = self.receive()?;
        let task = ProcessConfig::decode(&message).map_err(nonsense)?;
        serde_json::from_slice(task.json).map_err(io::Error::other)
    }
}

/// Makes a link from the other end of [`MonitorMessageSocket::pair`].
impl From<OwnedFd> for MonitorMessageSocket {
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl AsFd for MonitorMessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Error for an invalid message; its sender is treated as compromised.
pub(super) fn nonsense(e: WireError) -> io::Error {
    io::Error::other(format!(
        "internal error: invalid message from another longhaul process: {e}"
    ))
}

/// Waits until one of the descriptors is readable or closed, at most until `deadline`; returns
/// which of them are.
pub(super) fn readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    deadline: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let wait = deadline.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        // Round up, so that poll does not return before the deadline.
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
    fn descriptors_come_as_they_were_handed_on_or_not_at_all() {
        let (here, there) = MonitorMessageSocket::pair().unwrap();
        let there = MonitorMessageSocket::from(there);
        let (file, other) = (std::fs::File::open("/").unwrap(), io::stderr());
        here.hand(&[file.as_fd(), other.as_fd()]).unwrap();
        let [file, _] = there.take::<2>().unwrap().unwrap();
        assert!(rustix::fs::fstat(&file).unwrap().st_mode & 0o40000 != 0);
        let flags = rustix::io::fcntl_getfd(&file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        here.hand(&[file.as_fd()]).unwrap();
        assert!(there.take::<2>().is_err());
        here.send(HANDED).unwrap();
        assert!(there.take::<1>().is_err());
        here.send(b"words").unwrap();
        assert!(there.take::<1>().is_err());
        assert!(here.hand(&[file.as_fd(); 3]).is_err());
        drop(here);
        assert!(there.take::<1>().unwrap().is_none());
    }

    #[test]
    fn messages_keep_their_bounds() {
        let (here, there) = MonitorMessageSocket::pair().unwrap();
        let there = MonitorMessageSocket::from(there);
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
