//! Removes what an interrupted copy between two hosts has left on the receiving one.

use std::io::{self, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::frames::{self, ReceiverCommand, ReceiverJob, ReceiverMessage};
use super::host_copy_error::HostCopyError;
use crate::connect::RemoteCommand;
use crate::escape;

/// Time in which the host must answer.
const ANSWERS: Duration = Duration::from_secs(15);

/// Reads until a time, however few bytes come at once.
struct DeadlineReader<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Removes the temporaries and the journal that an interrupted run of a job has left on the host of
/// `receiver`.
///
/// # Errors
/// One clause: longhaul there is too old for it, or has ended.
pub fn discard(receiver: RemoteCommand, job: ReceiverJob) -> Result<(), HostCopyError> {
    let mut stream = &receiver.stream;
    stream.set_write_timeout(Some(ANSWERS))?;
    let request = ReceiverCommand::Discard(Box::new(job));
    stream.write_all(&request.to_bytes())?;
    let mut answers = DeadlineReader {
        stream: &receiver.stream,
        until: Instant::now() + ANSWERS,
    };
    let login = frames::skip_login(&mut answers);
    login.map_err(|_| HostCopyError::new("the longhaul there did not answer"))?;
    let answer = frames::next_of_receiver(&mut answers)?;
    match answer.map(ReceiverMessage::decode) {
        Some(Ok(ReceiverMessage::Done(_))) => Ok(()),
        Some(Ok(ReceiverMessage::NoRoute(why))) => {
            let why = escape::name(why.as_bytes()).to_string();
            Err(HostCopyError::new(why))
        }
        Some(Ok(_) | Err(_)) | None => Err(HostCopyError::new(
            "the longhaul there sent an answer that this one does not know: use the same version \
             on both",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that sent a byte now and then was listened to for days.
    #[test]
    fn a_host_that_sends_few_bytes_at_once_is_listened_to_for_the_whole_time_only() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"xx").unwrap();
        let mut reader = DeadlineReader {
            stream: &ours,
            until: Instant::now() + ANSWERS,
        };
        let mut byte = [0];
        assert_eq!(reader.read(&mut byte).unwrap(), 1);
        reader.until = Instant::now();
        let late = reader.read(&mut byte).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
