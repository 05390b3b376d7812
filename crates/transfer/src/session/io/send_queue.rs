use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use sftp::ClientOutput;
use wire::PacketBuf;

/// Slices given to one writev; 1,024 is IOV_MAX, and pipes and sockets take far less at once.
const SLICES: usize = 256;

/// Bytes that wait for a descriptor, gathered into one writev without copying them together.
#[derive(Debug, Default)]
pub struct SendQueue {
    pieces: VecDeque<QueuedBytes>,
    len: usize,
}

#[derive(Debug)]
enum QueuedBytes {
    Bytes(Vec<u8>, usize),
    Packet(PacketBuf),
}

impl QueuedBytes {
    fn rest(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes, done) => bytes.get(*done..).unwrap_or_default(),
            Self::Packet(packet) => packet.payload(),
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Self::Bytes(_, done) => *done += n,
            Self::Packet(packet) => packet.advance(n),
        }
    }
}

impl SendQueue {
    /// Number of bytes that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no bytes wait.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Queues the output of a lane.
    pub fn push(&mut self, output: ClientOutput) {
        match output {
            ClientOutput::Bytes(bytes) => self.push_piece(QueuedBytes::Bytes(bytes, 0)),
            ClientOutput::Block(mut block) => {
                while let Some(packet) = block.pop_front() {
                    self.push_piece(QueuedBytes::Packet(packet));
                }
            }
        }
    }

    fn push_piece(&mut self, piece: QueuedBytes) {
        if !piece.rest().is_empty() {
            self.len += piece.rest().len();
            self.pieces.push_back(piece);
        }
    }

    /// Writes until `fd` would block or the queue is empty. Returns the bytes written, and true if
    /// `fd` would block.
    pub fn write_to(&mut self, fd: impl AsFd) -> io::Result<(usize, bool)> {
        let mut written = 0;
        while !self.pieces.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .pieces
                .iter()
                .take(SLICES)
                .map(|p| IoSlice::new(p.rest()))
                .collect();
            match rustix::io::writev(&fd, &slices) {
                Ok(n) => {
                    written += n;
                    self.advance(n);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok((written, true)),
                Err(e) => return Err(e.into()),
            }
        }
        Ok((written, false))
    }

    fn advance(&mut self, mut n: usize) {
        self.len -= n;
        while let Some(front) = self.pieces.front_mut() {
            let have = front.rest().len();
            if n < have {
                front.advance(n);
                return;
            }
            n -= have;
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use wire::{PacketPool, PayloadBlock};

    #[test]
    fn what_is_written_in_parts_arrives_whole() -> io::Result<()> {
        let (mut receiver, sender) = io::pipe()?;
        rustix::io::ioctl_fionbio(&sender, true)?;
        let pool = PacketPool::new(5000, 4);
        let mut queue = SendQueue::default();
        let mut expected = Vec::new();
        for i in 0..40_u8 {
            let mut block = PayloadBlock::new(&pool, 5000, 10, 12_345);
            block.append(&[i; 12_345]);
            block.prepend(b"0123456789");
            expected.extend(block.to_vec());
            queue.push(ClientOutput::Block(block));
            queue.push(ClientOutput::Bytes(vec![i; 7]));
            expected.extend([i; 7]);
        }
        let mut received = Vec::new();
        let mut part = vec![0; 9999];
        while !queue.is_empty() {
            queue.write_to(&sender)?;
            let n = receiver.read(&mut part)?;
            received.extend_from_slice(&part[..n]);
        }
        drop(sender);
        receiver.read_to_end(&mut received)?;
        assert_eq!(received, expected);
        Ok(())
    }
}
