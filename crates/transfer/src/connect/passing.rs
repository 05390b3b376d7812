//! Passes a connected socket between processes (SCM_RIGHTS, unix(7)) in the format of OpenSSH's
//! ProxyUseFdpass: one arbitrary byte with the descriptor attached (monitor_fdpass.c).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends the descriptor `socket` over the UNIX socket `to`.
///
/// # Errors
/// `to` is not a UNIX socket, or its peer is closed.
pub fn pass_socket(to: impl AsFd, socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket];
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        match sendmsg(
            &to,
            &[IoSlice::new(&[0])],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                wait(&to, PollFlags::OUT, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives a descriptor from `from`, within `patience` if that is set.
///
/// # Errors
/// The peer closed the socket, sent something else, or sent nothing in time.
pub fn passed_socket(from: impl AsFd, patience: Option<Duration>) -> io::Result<OwnedFd> {
    let until = patience.map(|patience| Instant::now() + patience);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        if !wait(&from, PollFlags::IN, until)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut into = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(&from, &mut into, &mut control, flags) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            received => received?,
        };
        let sockets = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        });
        return match sockets.flatten().next() {
            Some(socket) => Ok(socket),
            None if received.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            None => Err(io::ErrorKind::InvalidData.into()),
        };
    }
}

/// Waits for events on `fd`; false at the timeout.
fn wait(fd: &impl AsFd, flags: PollFlags, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(fd, flags)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_arrives_and_is_the_same() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        pass_socket(&a, far.as_fd()).unwrap();
        drop(far);
        let far = passed_socket(&b, Some(Duration::from_secs(5))).unwrap();
        near.write_all(b"through").unwrap();
        drop(near);
        let mut text = String::new();
        UnixStream::from(far).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn who_goes_talks_or_is_silent_has_passed_nothing() {
        let brief = Some(Duration::from_millis(20));
        let kind = |from: &UnixStream| passed_socket(from, brief).unwrap_err().kind();
        let (mut a, b) = UnixStream::pair().unwrap();
        assert_eq!(kind(&b), io::ErrorKind::TimedOut);
        a.write_all(b"SSH-2.0-x\r\n").unwrap();
        assert_eq!(kind(&b), io::ErrorKind::InvalidData);
        let (a, b) = UnixStream::pair().unwrap();
        drop(a);
        assert_eq!(kind(&b), io::ErrorKind::UnexpectedEof);
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        assert!(pass_socket(&a, a.as_fd()).is_err());
    }
}
