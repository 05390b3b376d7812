use std::io::{ErrorKind, Read, Write};

use bytes::{Bytes, BytesMut};
use sftp::{Init, OPENSSH_EXTENSIONS, Piece, Request, Splitter, Version, frame};
use wire::{Field, Rest};

use crate::Export;
use crate::answer::{LONGEST, LONGEST_DATA, Session};
use crate::error::StreamError;

/// Read from the client at once.
const SEGMENT: usize = 256 * 1024;
/// Answers are written when there are so many bytes of them, and when nothing else is to be done.
const GATHERED: usize = 512 * 1024;

/// Serves one client until its stream ends, one request after the other in the order they come,
/// which clients that know sftp-server rely on.
///
/// # Errors
/// The client does not speak SFTP, or one of the streams broke. What was answered stands.
pub fn stdio(
    mut input: impl Read,
    mut output: impl Write,
    export: &Export,
) -> Result<(), StreamError> {
    let mut session = Session::new(export);
    let mut splitter = Splitter::new(LONGEST);
    let mut segment = BytesMut::new();
    let mut out = Vec::with_capacity(GATHERED + 2 * LONGEST_DATA as usize);
    let mut greeted = false;
    loop {
        segment.resize(SEGMENT, 0);
        let read = match input.read(&mut segment) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(StreamError::Io(e)),
        };
        let mut received = segment.split_to(read).freeze();
        while let Some(piece) = splitter
            .next(&mut received)
            .map_err(StreamError::Protocol)?
        {
            let Piece::Message(message) = piece else {
                continue;
            };
            match greeted {
                true => answer(&mut session, &message, &mut out)?,
                false => greet(&message, &mut out)?,
            }
            greeted = true;
            if out.len() >= GATHERED {
                flush(&mut output, &mut out)?;
            }
        }
        flush(&mut output, &mut out)?;
    }
}

fn flush(output: &mut impl Write, out: &mut Vec<u8>) -> Result<(), StreamError> {
    output.write_all(out).map_err(StreamError::Io)?;
    output.flush().map_err(StreamError::Io)?;
    out.clear();
    Ok(())
}

fn greet(message: &Bytes, out: &mut Vec<u8>) -> Result<(), StreamError> {
    Init::decode(message).map_err(|_| StreamError::NoInit)?;
    let mut pairs = Vec::new();
    for (name, data) in OPENSSH_EXTENSIONS {
        name.as_bytes().write(&mut pairs);
        data.as_bytes().write(&mut pairs);
    }
    let version = Version {
        version: 3,
        extensions: Rest(&pairs),
    };
    frame(out, |out| version.encode(out));
    Ok(())
}

fn answer(
    session: &mut Session<'_>,
    message: &Bytes,
    out: &mut Vec<u8>,
) -> Result<(), StreamError> {
    let (id, request) = Request::decode(message).map_err(StreamError::Message)?;
    session.answer(id, request, out);
    Ok(())
}
