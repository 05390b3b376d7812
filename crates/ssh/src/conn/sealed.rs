use std::collections::VecDeque;
use std::sync::Arc;

use wire::{BorrowPolicy, MissingPayloadError, OutputPart};

use super::Connection;
use crate::crypto_offload::{CryptoHelpers, CryptoJobBatch, HelperJobOrder};
use crate::error::{Error, Local};
use crate::transport::{SealedPacket, TransportOutput};

/// Maximum number of packets per writev; sockets accept far less at once.
const PACKETS: usize = 64;

/// Bytes in one batch for helpers: waking a thread costs as much as sealing two packets.
const SHARE: usize = 128 << 10;
/// Least number of bytes for which a helper is woken.
const WORTH_HELP: usize = 64 << 10;
/// Bytes that helpers seal ahead of what is written.
const AHEAD: usize = 512 << 10;

/// Sealed packets on their way to the socket, in order.
#[derive(Default)]
pub struct SealedQueue {
    packets: VecDeque<SealedPacket>,
    len: usize,
    helper: Option<CryptoHelpers>,
    /// Batches being sealed by helpers, with the index of the next packet in each.
    ahead: VecDeque<(Arc<CryptoJobBatch<TransportOutput>>, usize)>,
    /// Bytes in those batches when they were handed out.
    ahead_len: usize,
    /// Reason why sealing stopped: payload that is no longer available.
    missed: Option<MissingPayloadError>,
}

impl SealedQueue {
    /// Lets helper threads seal packets.
    pub fn set_helper(&mut self, helper: CryptoHelpers) {
        self.helper = Some(helper);
    }

    /// Seals packets of the connection, here or by helpers, until `bytes` wait in the queue.
    ///
    /// # Errors
    /// Errors of [`Connection::poll_output`]; payload that is no longer available, after the peer
    /// was told.
    pub fn fill(&mut self, conn: &mut Connection, bytes: usize) -> Result<(), Error> {
        if let Some(missed) = self.missed.as_ref() {
            return match self.packets.is_empty() {
                true => Err(Local::ExternalPayload(missed.clone()).into()),
                false => Ok(()),
            };
        }
        let may = !conn.sends_clear();
        if may && self.helper.as_ref().is_some_and(CryptoHelpers::is_idle) {
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

    /// Seals or copies packets with borrowed payload while the socket accepts nothing, since the
    /// files may change by the time it does.
    ///
    /// # Errors
    /// Errors of [`SealedQueue::fill`].
    pub fn settle(&mut self, conn: &mut Connection) -> Result<(), Error> {
        if conn.borrow_policy() != BorrowPolicy::UntilSealed {
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

    fn push(&mut self, sealed: SealedPacket) {
        if let Some(missed) = sealed.missed() {
            // No packet follows it.
            self.missed = Some(missed.clone());
            self.ahead.clear();
            self.ahead_len = 0;
        }
        self.len += sealed.remaining();
        self.packets.push_back(sealed);
    }

    /// Returns the next packet of the batches that were handed out.
    fn take_ahead(&mut self) -> Result<Option<SealedPacket>, Error> {
        // While a helper seals the next packet, this thread seals the last ones.
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

    /// Hands batches out to helpers, beyond the next `bytes`.
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
            let batch = Arc::new(CryptoJobBatch::new(jobs));
            if let Some(helper) = self.helper.as_ref().filter(|_| len >= WORTH_HELP) {
                helper.help(&batch, HelperJobOrder::Fifo);
            }
            self.ahead.push_back((batch, 0));
            self.ahead_len += len;
            if len < SHARE {
                break;
            }
        }
        Ok(())
    }

    /// Returns the bytes in the queue.
    pub fn bytes(&self) -> usize {
        self.len + self.ahead_len
    }

    /// Returns true if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.ahead.is_empty()
    }

    /// Returns the parts at the front for one writev.
    pub fn parts(&self) -> impl Iterator<Item = OutputPart<'_>> {
        self.packets
            .iter()
            .take(PACKETS)
            .flat_map(SealedPacket::parts)
    }

    /// Returns parts at the front that have at most `most` bytes in memory together, for one
    /// writev. Parts that are file contents are not cut.
    pub fn front(&self, most: usize) -> impl Iterator<Item = OutputPart<'_>> {
        self.parts().scan(most, |left, part| match part {
            OutputPart::Inline(bytes) => {
                let len = bytes.len().min(*left);
                *left -= len;
                bytes
                    .get(..len)
                    .filter(|b| !b.is_empty())
                    .map(OutputPart::Inline)
            }
            external => (std::mem::take(left) > 0).then_some(external),
        })
    }

    /// Reports that `n` bytes were written.
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
