//! Hands listening sockets from one process to its successor (SCM_RIGHTS, unix(7)).
//!
//! The predecessor waits at a UNIX socket. A successor that connects receives the number of
//! sockets, the time in milliseconds for which those of retiring relays are still needed (0 if none
//! retires), and the sockets. It confirms once it listens. The predecessor then accepts no more
//! connections, removes its UNIX socket, and confirms. A successor that dies earlier has changed
//! nothing.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::command_error::CommandError;
use relay::{HandedOverListener, RelayControl};
use rustix::net::sockopt::socket_peercred;
use tracing::{info, warn};
use transfer::connect::{pass_socket, passed_socket};

/// Time limit for a successor, which may have to resolve names first.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of sockets that are handed over.
const MOST: usize = 1024;
const DONE: u8 = b'k';

/// A successor has taken over, and owns the path.
static HANDED_OVER: AtomicBool = AtomicBool::new(false);

/// Connection to the relay process that this one replaces, which has sent its sockets and still
/// accepts connections.
pub(super) struct PredecessorRelay(UnixStream);

/// Receives the sockets of the process that waits at this path, if there is one.
///
/// # Errors
/// The process belongs to another user, or does not hand its sockets over.
pub(super) fn meet(
    path: &Path,
) -> Result<Option<(PredecessorRelay, Vec<HandedOverListener>)>, CommandError> {
    let named = |e: io::Error| {
        format!(
            "{}: cannot take over the sockets of the running relay: {e}",
            path.display()
        )
    };
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(e) if is_nobody(&e) => return Ok(None),
        Err(e) => return Err(named(e).into()),
    };
    let mut take = || -> io::Result<Vec<HandedOverListener>> {
        is_own(&stream)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut count = [0; 4];
        stream.read_exact(&mut count)?;
        let count = u32::from_be_bytes(count) as usize;
        if count > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut times = vec![[0; 4]; count];
        stream.read_exact(times.as_flattened_mut())?;
        let handed = times.into_iter().map(|time| {
            Ok(HandedOverListener {
                socket: passed_socket(&stream, Some(PATIENCE))?,
                retires_in: match u32::from_be_bytes(time) {
                    0 => None,
                    left => Some(Duration::from_millis(left.into())),
                },
            })
        });
        handed.collect()
    };
    let sockets = take().map_err(named)?;
    Ok(Some((PredecessorRelay(stream), sockets)))
}

fn is_nobody(e: &io::Error) -> bool {
    let kind = e.kind();
    matches!(
        kind,
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Checks that the other end belongs to this user or root: holding these sockets is as good as
/// being the user.
fn is_own(stream: &UnixStream) -> io::Result<()> {
    let other = socket_peercred(stream)?.uid;
    match other == rustix::process::geteuid() || other.is_root() {
        true => Ok(()),
        false => Err(io::Error::other(
            "the running relay belongs to another user: start this one as the same user",
        )),
    }
}

impl PredecessorRelay {
    /// Tells the predecessor to stop accepting, and waits until it has.
    ///
    /// # Errors
    /// The predecessor has not confirmed.
    pub(super) fn release(mut self, path: &Path) -> Result<(), CommandError> {
        let released = self.0.write_all(&[DONE]);
        let released = released.and_then(|()| self.0.read_exact(&mut [0]));
        released.or_else(|e| match has_ended(path) {
            // A signal ended it meanwhile: it keeps its connections, and new ones are ours.
            true => Ok(()),
            false => Err(format!(
                "the running relay did not confirm the handover (--handover): {e}; see its log, \
                 then start this relay again"
            )
            .into()),
        })
    }
}

/// Returns true if no process listens at this path. Retries for a second, since an exiting process
/// closes its sockets one by one.
fn has_ended(path: &Path) -> bool {
    (0..20).any(|nth| {
        if nth > 0 {
            thread::sleep(Duration::from_millis(50));
        }
        UnixStream::connect(path).is_err_and(|e| is_nobody(&e))
    })
}

/// Thread that waits for a successor process, which takes over the listening sockets.
pub(super) struct HandoverListener(thread::JoinHandle<()>);

impl HandoverListener {
    /// Returns true if a successor has taken over and owns the path. It has its confirmation when
    /// this returns, before which this process must not end.
    pub(super) fn was_taken(self) -> bool {
        let taken = HANDED_OVER.load(Ordering::Acquire);
        if taken {
            // A panic of the thread was reported already.
            let _ = self.0.join();
        }
        taken
    }
}

/// Starts waiting for a successor. `end` is called once one listens.
///
/// # Errors
/// Another process waits at this path, or it cannot be created.
pub(super) fn offer(
    path: &Path,
    handle: RelayControl,
    end: impl FnOnce() + Send + 'static,
) -> io::Result<HandoverListener> {
    let listener = sys::listen_unix(path, 4)?;
    let path = path.to_owned();
    let thread = thread::Builder::new().name("handover".to_owned());
    let thread = thread.spawn(move || {
        let mut stream = loop {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let mut stream = UnixStream::from(OwnedFd::from(stream));
            match hand_over(&mut stream, &handle) {
                Ok(()) => break stream,
                Err(e) => warn!("handover failed, this relay keeps its sockets: {e}"),
            }
        };
        info!("handed the listening sockets over to a new relay");
        HANDED_OVER.store(true, Ordering::Release);
        // The successor creates its own socket there next.
        let _ = fs::remove_file(&path);
        drop(listener);
        end();
        // The successor may have died meanwhile.
        let _ = stream.write_all(&[DONE]);
    })?;
    Ok(HandoverListener(thread))
}

fn hand_over(stream: &mut UnixStream, handle: &RelayControl) -> io::Result<()> {
    is_own(stream)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let sockets = handle.sockets().map_err(io::Error::other)?;
    stream.write_all(&(sockets.len() as u32).to_be_bytes())?;
    let left = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1);
    let times = sockets
        .iter()
        .map(|handed| handed.retires_in.map_or(0, left));
    let times: Vec<[u8; 4]> = times.map(u32::to_be_bytes).collect();
    stream.write_all(times.as_flattened())?;
    for handed in &sockets {
        pass_socket(&*stream, handed.socket.as_fd())?;
    }
    let mut said = [0];
    stream.read_exact(&mut said)?;
    match said == [DONE] {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
