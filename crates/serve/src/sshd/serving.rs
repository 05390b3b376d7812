//! Dispatches a channel to the SFTP server or to scp's old protocol.

use std::convert::Infallible;
use std::os::fd::BorrowedFd;

use bytes::Bytes;
use ssh::channel::{ChannelId, Channels};

use crate::scp::ScpServer;
use crate::{AnswerChunk, ServeError, SftpServer, TransferCounters};

/// File server that the client has chosen for a channel: the SFTP subsystem, or an `scp` command.
pub(super) enum ChannelFileServer<'s> {
    Sftp(Box<SftpServer<'s>>),
    Scp(Box<ScpServer<'s>>),
}

impl ChannelFileServer<'_> {
    pub(super) fn handle(&mut self, received: &mut Bytes) -> Result<(), ServeError> {
        match self {
            Self::Sftp(server) => server.handle(received),
            Self::Scp(scp) => {
                scp.handle(received);
                Ok(())
            }
        }
    }

    /// True if there is work that needs no new input.
    pub(super) fn has_more(&self) -> bool {
        match self {
            Self::Sftp(server) => server.goes_on(),
            Self::Scp(scp) => scp.has_more(),
        }
    }

    /// True if all further work waits for the blocking pool.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(self, Self::Sftp(server) if server.is_stuck())
    }

    /// True if the blocking pool has work of this channel.
    pub(super) fn awaits(&self) -> bool {
        matches!(self, Self::Sftp(server) if server.awaits())
    }

    /// Descriptor that becomes readable when the blocking pool has finished something.
    pub(super) fn waker(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Sftp(server) => server.waker(),
            Self::Scp(_) => None,
        }
    }

    pub(super) fn end_set(&mut self) {
        if let Self::Sftp(server) = self {
            server.end_set();
        }
    }

    /// Sends the waiting answers to the client.
    pub(super) fn answer(&mut self, id: ChannelId, channels: &mut Channels) {
        let say = |answer: AnswerChunk<'_>| {
            match answer {
                AnswerChunk::Bytes(bytes) => channels.write(id, bytes),
                AnswerChunk::Block(block) => channels.write_block(id, block),
            }
            Ok::<_, Infallible>(())
        };
        let Ok(()) = self.take_answers(say);
    }

    pub(super) fn take_answers<E>(
        &mut self,
        to: impl FnMut(AnswerChunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Sftp(server) => server.take_answers(to),
            Self::Scp(scp) => scp.take_answers(to),
        }
    }

    /// Handles input received before the client left. Answers are discarded, and an scp download is
    /// skipped.
    pub(super) fn finish(&mut self, received: &mut Bytes) -> Result<(), ServeError> {
        if matches!(self, Self::Scp(scp) if !scp.takes()) {
            received.clear();
            return Ok(());
        }
        let handled = self.handle(received);
        let Ok(()) = self.take_answers(|_| Ok::<_, Infallible>(()));
        handled
    }

    /// Exit status, if the server ended by itself.
    pub(super) fn status(&self) -> Option<u32> {
        match self {
            Self::Sftp(_) => None,
            Self::Scp(scp) => scp.status(),
        }
    }

    /// Exit status, now that the client has sent everything.
    pub(super) fn end(&mut self) -> u32 {
        match self {
            Self::Sftp(_) => 0,
            Self::Scp(scp) => scp.end(),
        }
    }

    pub(super) fn moved(&self) -> TransferCounters {
        match self {
            Self::Sftp(server) => server.moved(),
            Self::Scp(scp) => scp.moved(),
        }
    }

    pub(super) fn has_open(&self) -> bool {
        match self {
            Self::Sftp(server) => server.has_open(),
            Self::Scp(scp) => scp.has_open(),
        }
    }
}
