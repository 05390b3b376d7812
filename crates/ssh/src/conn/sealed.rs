use std::collections::VecDeque;
use std::sync::Arc;

use wire::{BorrowPolicy, Part};

use super::Connection;
use crate::crypto_offload::{Batch, Helper, Order};
use crate::error::{Error, Local};
use crate::transport::{Output, Sealed};

/// Packets given to one writev: sockets take far less at once.
const PACKETS: usize = 64;

/// What is given to others to be sealed at once, in bytes: to wake somebody costs as much as to seal
/// two packets.
const SHARE: usize = 128 << 10;
/// Less than this is not worth it.
const WORTH_HELP: usize = 64 << 10;
/// What is sealed by others lies so far ahead of what is written, in bytes.
const AHEAD: usize = 512 << 10;

/// Sealed packets on their way to the socket, in their order.
#[derive(Default)]
pub struct SealedQueue {
    packets: VecDeque<Sealed>,
    len: usize,
    helper: Option<Helper>,
    /// Packets behind those that are being sealed, and which of each is next.
    ahead: VecDeque<(Arc<Batch<Output>>, usize)>,
    /// Bytes of them when they were given out.
    ahead_len: usize,
    /// Why nothing is sealed any more.
    missed: Option<String>,
}

impl SealedQueue {
    /// Has others help with sealing.
    pub fn set_helper(&mut self, helper: Helper) {
        self.helper = Some(helper);
    }

    /// Seals what the connection has to send until so many bytes wait, or has it sealed.
    ///
    /// # Errors
    /// Those of [`Connection::poll_output`]; what was to be sent is not to be had any more, of which the peer was
    /// told.
    pub fn fill(&mut self, conn: &mut Connection, bytes: usize) -> Result<(), Error> {
        if let Some(words) = self.missed.as_ref() {
            return match self.packets.is_empty() {
                true => Err(Local::Outside(words.clone()).into()),
                false => Ok(()),
            };
        }
        let may = !conn.sends_clear();
        if may && self.helper.as_ref().is_some_and(Helper::is_idle) {
            self.give_out(conn, bytes)?;
        }
        while self.len < bytes && self.missed.is_none() {
            let sealed = match self.take_ahead()? {
                Some(sealed) => sealed,
                None => match conn.poll_output()? {
                    Some(output) => output.seal()?,
                    None => break,
                },
            };
            self.push(sealed);
        }
        Ok(())
    }

    /// Nothing can be written for now: what waits for that is sealed, or read, if it lies in files that may
    /// be others by then.
    ///
    /// # Errors
    /// Those of [`SealedQueue::fill`].
    pub fn settle(&mut self, conn: &mut Connection) -> Result<(), Error> {
        if conn.outlying() != BorrowPolicy::UntilSealed {
            return Ok(());
        }
        while self.missed.is_none()
            && let Some(sealed) = self.take_ahead()?
        {
            self.push(sealed);
        }
        conn.channels().gather();
        Ok(())
    }

    fn push(&mut self, sealed: Sealed) {
        if let Some(words) = sealed.missed() {
            // Nothing follows it.
            self.missed = Some(words.to_owned());
            self.ahead.clear();
            self.ahead_len = 0;
        }
        self.len += sealed.remaining();
        self.packets.push_back(sealed);
    }

    /// The next packet that was given out.
    fn take_ahead(&mut self) -> Result<Option<Sealed>, Error> {
        // Whoever helps is at the next one: meanwhile the last ones are sealed here.
        while let Some((batch, at)) = self.ahead.front()
            && batch.is_busy(*at)
            && self.ahead.iter().rev().any(|(batch, _)| batch.do_last())
        {}
        let Some((batch, at)) = self.ahead.front_mut() else {
            return Ok(None);
        };
        let sealed = batch.take(*at);
        *at += 1;
        if *at >= batch.len() {
            self.ahead.pop_front();
        }
        let sealed = sealed.unwrap_or_else(|| Err(Local::Helper.into()))?;
        self.ahead_len = match self.ahead.is_empty() {
            true => 0,
            false => self.ahead_len.saturating_sub(sealed.remaining()),
        };
        Ok(Some(sealed))
    }

    /// Gives out what lies behind the next `bytes`.
    fn give_out(&mut self, conn: &mut Connection, bytes: usize) -> Result<(), Error> {
        while self.len + self.ahead_len < bytes.saturating_add(AHEAD) {
            let (mut jobs, mut len) = (Vec::new(), 0);
            while len < SHARE
                && let Some(output) = conn.poll_output()?
            {
                len += output.len();
                jobs.push(output);
            }
            if jobs.is_empty() {
                break;
            }
            let batch = Arc::new(Batch::new(jobs));
            if let Some(helper) = self.helper.as_ref().filter(|_| len >= WORTH_HELP) {
                helper.help(&batch, Order::FirstFirst);
            }
            self.ahead.push_back((batch, 0));
            self.ahead_len += len;
            if len < SHARE {
                break;
            }
        }
        Ok(())
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.len + self.ahead_len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.ahead.is_empty()
    }

    /// What is in front, for one writev.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.packets.iter().take(PACKETS).flat_map(Sealed::parts)
    }

    /// Notes that `n` bytes were written.
    pub fn written(&mut self, mut n: usize) {
        self.len -= n.min(self.len);
        while let Some(front) = self.packets.front_mut() {
            n -= front.advance(n);
            if front.remaining() > 0 {
                return;
            }
            self.packets.pop_front();
        }
    }
}
