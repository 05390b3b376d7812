//! The socket between the monitor and a process it has started.

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

use super::message::{LONGEST, Task};

/// Whoever does not read what it is told is not waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The message that descriptors come with.
const HANDED: &[u8] = &[22];
/// Descriptors that come with one message.
const MOST_HANDED: usize = 2;

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
        // No more memory than it needs: whoever has it stays for hours.
        let len = self.receive_into(&mut [], RecvFlags::PEEK)?;
        if len > LONGEST {
            self.receive_into(&mut [], RecvFlags::empty())?;
            return Err(io::Error::other("a message between processes is too long"));
        }
        let mut message = Zeroizing::new(vec![0; len]);
        if len > 0 {
            self.receive_into(&mut message, RecvFlags::empty())?;
        }
        Ok(message)
    }

    /// How long it is; 0 once the other end is gone.
    fn receive_into(&self, message: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let received = retry_on_intr(|| recv(&self.0, &mut *message, flags | RecvFlags::TRUNC));
        match received {
            Ok((_, len)) => Ok(len),
            // It has died with something of ours unread.
            Err(Errno::CONNRESET) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Hands on descriptors, at most [`MOST_HANDED`]; the other end has its own then.
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

    /// What [`Link::hand`] of the other end has handed on; `None` once that is gone.
    ///
    /// # Errors
    /// It is something else, or not so many.
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
        // Whatever it is: what is not kept is closed.
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds: Vec<OwnedFd> = fds.flatten().collect();
        if len == 0 {
            return Ok(None);
        }
        let wrong = |_| io::Error::other("not the descriptors that were to be handed on");
        match text[..len] == *HANDED {
            true => fds.try_into().map(Some).map_err(wrong),
            false => Err(wrong(fds)),
        }
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

/// The other end of [`Link::pair`].
impl From<OwnedFd> for Link {
    fn from(end: OwnedFd) -> Self {
        Self(end)
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
    fn descriptors_come_as_they_were_handed_on_or_not_at_all() {
        let (here, there) = Link::pair().unwrap();
        let there = Link::from(there);
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
        let (here, there) = Link::pair().unwrap();
        let there = Link::from(there);
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
