use std::collections::VecDeque;
use std::io::IoSlice;

use super::Connection;
use crate::error::Error;
use crate::transport::Sealed;

/// Slices given to one writev: sockets take far less at once.
const SLICES: usize = 64;

/// Sealed packets on their way to the socket, in their order.
#[derive(Debug, Default)]
pub struct SealedQueue {
    packets: VecDeque<Sealed>,
    len: usize,
}

impl SealedQueue {
    /// Seals what the connection has to send, here and now, until so many bytes wait.
    ///
    /// # Errors
    /// Those of [`Connection::poll_output`].
    pub fn fill(&mut self, conn: &mut Connection, bytes: usize) -> Result<(), Error> {
        while self.len < bytes {
            let Some(output) = conn.poll_output()? else {
                break;
            };
            let sealed = output.seal()?;
            self.len += sealed.remaining().len();
            self.packets.push_back(sealed);
        }
        Ok(())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// What is in front, for one writev.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let front = self.packets.iter().take(SLICES);
        front.map(|s| IoSlice::new(s.remaining())).collect()
    }

    /// Notes that `n` bytes were written.
    pub fn written(&mut self, mut n: usize) {
        self.len -= n.min(self.len);
        while let Some(front) = self.packets.front_mut() {
            n -= front.advance(n);
            if !front.remaining().is_empty() {
                return;
            }
            self.packets.pop_front();
        }
    }
}
