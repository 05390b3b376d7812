//! Removes what an interrupted copy between two hosts has left on the receiving one.

use std::io::Write as _;
use std::time::Duration;

use super::frames::{self, ReceiverCommand, ReceiverJob, ReceiverMessage};
use crate::connect::RemoteCommand;
use crate::escape;

/// Time in which the host must answer.
const ANSWERS: Duration = Duration::from_secs(15);

/// Removes the temporaries and the journal that an interrupted run of a job has left on the host of
/// `receiver`.
///
/// # Errors
/// One clause: longhaul there is too old for it, or has ended.
pub fn discard(receiver: RemoteCommand, job: ReceiverJob) -> Result<(), String> {
    let mut stream = &receiver.stream;
    let wrong = |e: std::io::Error| e.to_string();
    stream.set_write_timeout(Some(ANSWERS)).map_err(wrong)?;
    stream.set_read_timeout(Some(ANSWERS)).map_err(wrong)?;
    let request = ReceiverCommand::Discard(Box::new(job));
    stream.write_all(&request.to_bytes()).map_err(wrong)?;
    frames::skip_login(&mut stream).map_err(|_| "the longhaul there did not answer".to_owned())?;
    let answer = frames::next(&mut stream).map_err(|e| e.0)?;
    match answer.map(ReceiverMessage::decode) {
        Some(Ok(ReceiverMessage::Done(_))) => Ok(()),
        Some(Ok(ReceiverMessage::NoRoute(why))) => Err(escape::name(why.as_bytes()).to_string()),
        Some(Ok(_) | Err(_)) | None => Err(
            "the longhaul there sent an answer that this one does not know: use the same version \
             on both"
                .to_owned(),
        ),
    }
}
