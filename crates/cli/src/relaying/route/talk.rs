//! The control channel over which the relay of a pair was started, for both ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use relay::control::{
    Bytes, ControlMessageError, MOST_CARRIED, RelayControlDecoder, RelayControlMessage, marker,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum number of stripes carried at once; each has a thread.
const MOST_LEGS: usize = 1024;
/// Bytes that are kept of output before the first message, roughly.
const MOST_NOISE: usize = 64 << 10;

/// Reads messages of the relay at the other end. Output in front of the first message, such as that
/// of shell startup files, is kept up to 64 KiB for error messages.
pub(super) struct ControlChannelReader {
    input: File,
    listener: RelayControlDecoder,
    /// The bytes received before the first message, until that arrives.
    noise: Option<Vec<u8>>,
}

/// The reason why no message was read.
#[derive(Debug)]
pub(super) enum ControlReadError {
    /// The channel has ended.
    Closed,
    /// Nothing came in time.
    TimedOut,
    /// Invalid data.
    Invalid(ControlMessageError),
}

impl ControlChannelReader {
    pub(super) fn new(input: File, listener: RelayControlDecoder) -> Self {
        Self {
            input,
            listener,
            noise: Some(Vec::new()),
        }
    }

    /// Returns true if the output before the first message contains `text`.
    pub(super) fn had(&self, text: &[u8]) -> bool {
        let noise = self.noise.as_deref().unwrap_or_default();
        noise.windows(text.len()).any(|window| window == text)
    }

    /// Reads the next message, for which it waits at most `within` without new bytes.
    pub(super) fn hear(
        &mut self,
        within: Duration,
    ) -> Result<RelayControlMessage, ControlReadError> {
        let mut bytes = [0; 64 << 10];
        loop {
            if let Some(control) = self.listener.poll().map_err(ControlReadError::Invalid)? {
                self.noise = None;
                return Ok(control);
            }
            let timeout = Timespec::try_from(within).ok();
            let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Err(ControlReadError::TimedOut),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(ControlReadError::Closed),
            }
            match self.input.read(&mut bytes) {
                Ok(0) => return Err(ControlReadError::Closed),
                Ok(n) => {
                    let bytes = bytes.get(..n).unwrap_or_default();
                    if let Some(noise) = self.noise.as_mut().filter(|n| n.len() < MOST_NOISE) {
                        noise.extend_from_slice(bytes);
                    }
                    self.listener.push(bytes);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ControlReadError::Closed),
            }
        }
    }
}

/// Writes messages to the other end, and carries stripes to it.
pub(super) struct ControlChannelMux {
    output: Mutex<File>,
    legs: Mutex<BTreeMap<u32, Arc<TcpStream>>>,
}

impl ControlChannelMux {
    pub(super) fn new(output: File) -> Arc<Self> {
        Arc::new(Self {
            output: Mutex::new(output),
            legs: Mutex::default(),
        })
    }

    /// Sends a message; blocks while the channel is full.
    pub(super) fn say(&self, control: &RelayControlMessage) -> io::Result<()> {
        self.write(&control.encode())
    }

    /// Writes the marker that the messages begin behind.
    pub(super) fn mark(&self) -> io::Result<()> {
        self.write(&marker())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(bytes)
    }

    fn legs(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<TcpStream>>> {
        self.legs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts carrying the bytes that arrive on a leg.
    pub(super) fn carry(self: &Arc<Self>, leg: u32, stream: TcpStream) -> io::Result<()> {
        let stream = Arc::new(stream);
        {
            let mut legs = self.legs();
            if legs.len() >= MOST_LEGS || legs.contains_key(&leg) {
                return Err(io::Error::other(
                    "too many TCP connections (stripes) over the ssh connection: lower --stripes",
                ));
            }
            legs.insert(leg, Arc::clone(&stream));
        }
        // Send small messages without delay.
        let _ = stream.set_nodelay(true);
        let voice = Arc::clone(self);
        let thread = thread::Builder::new().name("leg".to_owned());
        let started = thread.spawn(move || {
            let mut bytes = [0; MOST_CARRIED];
            loop {
                let said = match (&*stream).read(&mut bytes) {
                    Ok(0) => break,
                    Ok(n) => {
                        let bytes = bytes.get(..n).unwrap_or_default();
                        voice.say(&RelayControlMessage::StripeData(
                            leg,
                            Bytes::copy_from_slice(bytes),
                        ))
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
                    Err(_) => break,
                };
                if said.is_err() {
                    break;
                }
            }
            // The other end knows of a leg that it has closed itself.
            if voice.drop_leg(leg) {
                let _ = voice.say(&RelayControlMessage::StripeClosed(leg));
            }
        });
        started.map(|_| ()).inspect_err(|_| {
            self.drop_leg(leg);
        })
    }

    /// Writes bytes to a leg. This may block; the reader at the other side of the leg keeps
    /// draining it.
    pub(super) fn pass_on(&self, leg: u32, bytes: &[u8]) {
        let stream = self.legs().get(&leg).cloned();
        if let Some(stream) = stream
            && (&*stream).write_all(bytes).is_err()
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes a leg. Returns true if it existed.
    pub(super) fn drop_leg(&self, leg: u32) -> bool {
        let stream = self.legs().remove(&leg);
        if let Some(stream) = &stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        stream.is_some()
    }

    /// Closes all stripes.
    pub(super) fn drop_legs(&self) {
        for (_, stream) in std::mem::take(&mut *self.legs()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The two ends of a channel.
pub(super) fn ends(
    input: impl std::os::fd::AsFd,
    output: impl std::os::fd::AsFd,
    listener: RelayControlDecoder,
) -> io::Result<(ControlChannelReader, Arc<ControlChannelMux>)> {
    let input = input.as_fd().try_clone_to_owned()?;
    let output = output.as_fd().try_clone_to_owned()?;
    Ok((
        ControlChannelReader::new(input.into(), listener),
        ControlChannelMux::new(output.into()),
    ))
}
