//! An SFTP server over two streams, as sftp-server behind sshd.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use super::answers::AnswerChunk;
use super::incoming::IncomingStream;
use super::server::SftpServer;
use crate::ExportedTree;
use crate::error::ServeError;

/// Bytes of answers below which they wait for further ones.
const FEW: usize = 16 * 1024;
/// Longest time for which answers wait for further ones. sshd encrypts and sends whatever it finds:
/// for it and the client, ten answers about small files at once cost hardly more than one.
const WAITS: Duration = Duration::from_millis(2);

/// Serves one client until its stream ends.
///
/// # Errors
/// The client does not speak SFTP, or one of the streams failed. Answers to earlier requests were
/// sent if possible.
pub fn stdio(
    input: impl AsFd,
    output: impl Write + AsFd,
    export: &ExportedTree,
) -> Result<(), ServeError> {
    // The server borrows the descriptor while `output` is written to.
    let watched = output
        .as_fd()
        .try_clone_to_owned()
        .map_err(ServeError::Io)?;
    let incoming = IncomingStream::new(input.as_fd()).watching(watched.as_fd());
    run(SftpServer::new(export), &incoming, output)
}

fn run<'e>(
    mut server: SftpServer<'e>,
    incoming: &'e IncomingStream<'e>,
    mut output: impl Write,
) -> Result<(), ServeError> {
    server.read_ahead(incoming);
    server.several_at_once(false);
    // Time since which answers wait or are being made. An answer that took long, as the first part
    // of a counted tree, leaves at once; otherwise it would share a packet of sshd's with later
    // ones.
    let mut since = None;
    loop {
        let mut received = incoming.next().map_err(ServeError::Io)?;
        if received.is_empty() {
            // Remaining answers belong to complete requests.
            server.handle(&mut received)?;
            server.end_set();
            return send(&mut server, &mut output).map(|_| ());
        }
        loop {
            let waiting = *since.get_or_insert_with(|| server.now());
            if let Err(error) = server.handle(&mut received) {
                // Earlier requests stay carried out, even if their answers cannot be sent.
                server.end_set();
                let _ = send(&mut server, &mut output);
                return Err(error);
            }
            // While one file is made durable, more arrive, so groups grow by themselves.
            if received.is_empty() && server.holds() && !comes(&server, incoming, WAITS) {
                send(&mut server, &mut output)?;
                server.end_set();
            }
            let few = received.is_empty() && server.waiting() < FEW;
            if few && comes_soon(&server, incoming, waiting) {
                break;
            }
            since = None;
            if !send(&mut server, &mut output)? {
                break;
            }
        }
    }
}

/// True if more requests arrive before answers that wait since `since` have waited for [`WAITS`].
fn comes_soon(server: &SftpServer<'_>, incoming: &IncomingStream<'_>, since: Instant) -> bool {
    if server.waiting() == 0 {
        return false;
    }
    let Some(left) = WAITS.checked_sub(server.now().saturating_duration_since(since)) else {
        return false;
    };
    comes(server, incoming, left)
}

/// True if more requests are available; waits up to `patience` for the rest of one that has begun
/// to arrive.
fn comes(server: &SftpServer<'_>, incoming: &IncomingStream<'_>, patience: Duration) -> bool {
    let left = match server.expects_more() {
        true => patience,
        false => Duration::ZERO,
    };
    let left = Timespec::try_from(left).unwrap_or_default();
    incoming.has_kept() || incoming.comes_within(&left)
}

/// Sends the available answers; false if there are none.
fn send(server: &mut SftpServer<'_>, output: &mut impl Write) -> Result<bool, ServeError> {
    server.hear();
    let mut any = false;
    let written = server.take_answers(|answer| {
        any = true;
        match answer {
            AnswerChunk::Bytes(bytes) => output.write_all(bytes),
            AnswerChunk::Block(block) => {
                let mut packets = block.packets();
                packets.try_for_each(|packet| output.write_all(packet.payload()))
            }
        }
    });
    written
        .and_then(|()| output.flush())
        .map_err(ServeError::Io)?;
    Ok(any)
}

#[cfg(test)]
#[path = "stdio_tests.rs"]
mod tests;
