//! One direction of a connection.
//!
//! A flow moves bytes from its source leg to its sink leg until one of them blocks. Bytes that were
//! read and could not be written are held, and nothing more is read until they are gone; this
//! bounds the memory that a slow reader takes. Small messages are copied through memory that the
//! worker's connections share. Bulk data is spliced through a pipe, which is filled only when it is
//! empty: EAGAIN of splice(2) means either an empty socket or a full pipe, and with an empty pipe
//! it can only be the socket.

mod bucket;
mod leg;
mod pages;
mod pipes;
pub(crate) mod stripe_set;
mod tls;

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub(crate) use bucket::TokenBucket;
pub(crate) use leg::{Leg, LegReadResult};
pub(crate) use pages::PageBuffer;
pub(crate) use pipes::PipePool;

use pipes::Pipe;

/// Size of one read where bytes are copied.
pub(crate) const SCRATCH: usize = 64 << 10;
/// Bytes that a connection moves before it yields to the next one.
const TURN: usize = 2 << 20;
/// Reads that a connection makes before it yields; the buffer may be as small as one byte.
const ROUNDS: usize = 4096;
/// A read limit below this size cuts the stream into short pieces; a piece that fills it may wait
/// in a partial segment for the next one.
const SMALL: usize = 1 << 10;
/// A read below this size costs more with splice(2) than with a copy.
const WORTH_A_PIPE: usize = 16 << 10;

/// Resources that the connections of a worker share.
#[derive(Debug)]
pub(crate) struct WorkerResources {
    pub(crate) scratch: PageBuffer,
    pub(crate) pipes: PipePool,
    pub(crate) now: Instant,
}

/// One direction of a connection: the bytes held between source leg and sink leg, the rate limit,
/// and the count of bytes written.
#[derive(Debug, Default)]
pub(crate) struct RelayFlow {
    held: HeldBytes,
    at: StreamEndState,
    /// Bytes that were written to the sink.
    bytes: u64,
    ended: Option<Instant>,
    /// Number of the relay's own bytes, such as a PROXY header, among the bytes written.
    foreign: u64,
    /// The flow carries bulk data rather than single messages, and may be spliced.
    bulk: bool,
    /// Rate limit of this direction of this connection.
    bucket: Option<Box<TokenBucket>>,
    paused: Option<Instant>,
}

/// Bytes that were read and are not written yet.
#[derive(Debug, Default)]
enum HeldBytes {
    #[default]
    Nothing,
    Bytes {
        bytes: Box<[u8]>,
        gone: usize,
    },
    Pipe(Pipe, usize),
}

/// Passing of the end of the stream from source to sink; bytes move in `Open` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamEndState {
    #[default]
    Open,
    /// The source has ended; held bytes are still to be written.
    Ending,
    /// The end of the stream was passed on to the sink.
    Finished,
}

/// Limits that hold for all flows of a listener.
pub(crate) struct FlowLimits<'a> {
    /// Maximum number of held bytes.
    pub(crate) buffer: usize,
    /// Rate limit that all connections share for this direction.
    pub(crate) all: Option<&'a Mutex<TokenBucket>>,
}

/// Result of [`RelayFlow::turn`], by which the worker queues the connection again or waits for an
/// event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowTurnResult {
    /// The flow is blocked until the next event.
    Blocked,
    /// The turn has used its share, and more data may be available.
    More,
}

/// Leg that failed, seen from the flow.
#[derive(Debug)]
pub(crate) enum BrokenLeg {
    Source(io::Error),
    Sink(io::Error),
}

impl RelayFlow {
    pub(crate) fn new(rate: Option<u64>, now: Instant) -> Self {
        Self {
            bucket: rate.map(|rate| Box::new(TokenBucket::new(rate, now))),
            ..Self::default()
        }
    }

    /// Returns the bytes of the source that were written, without the relay's own.
    pub(crate) fn moved(&self) -> u64 {
        self.bytes.saturating_sub(self.foreign)
    }

    /// Returns all bytes that were written, the relay's own among them.
    pub(crate) fn written(&self) -> u64 {
        self.bytes
    }

    /// Returns the time at which the source ended.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        self.ended
    }

    /// Returns the time until which the rate limit pauses the flow.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused
    }

    /// Reports if the end of the stream was passed on.
    pub(crate) fn is_finished(&self) -> bool {
        self.at == StreamEndState::Finished
    }

    fn end(&mut self, now: Instant) {
        self.at = StreamEndState::Ending;
        self.ended = Some(now);
    }

    /// Moves bytes until a leg blocks or the turn has used its share.
    pub(crate) fn turn(
        &mut self,
        source: &mut Leg,
        sink: &mut Leg,
        rules: &FlowLimits<'_>,
        means: &mut WorkerResources,
    ) -> Result<FlowTurnResult, BrokenLeg> {
        let before = self.bytes;
        for _ in 0..ROUNDS {
            if !self.drain(sink, means).map_err(BrokenLeg::Sink)? {
                return Ok(FlowTurnResult::Blocked);
            }
            match self.at {
                StreamEndState::Finished => return Ok(FlowTurnResult::Blocked),
                StreamEndState::Ending => {
                    if sink.finish().map_err(BrokenLeg::Sink)? {
                        self.at = StreamEndState::Finished;
                    }
                    return Ok(FlowTurnResult::Blocked);
                }
                StreamEndState::Open => {}
            }
            // If the bytes just read cannot be written, the rest is left in the kernel's receive
            // buffer.
            if !source.is_readable() || !sink.is_writable() {
                break;
            }
            let buffer = rules.buffer.max(source.holds_at_least());
            let Some(most) = self.reserve(rules, buffer, means.now) else {
                break;
            };
            let moved = self.fill(source, sink, most, means)?;
            self.refund(rules, most - moved.unwrap_or(0).min(most));
            if moved.is_none() {
                break;
            }
            if self.bytes - before >= TURN as u64 {
                sink.push().map_err(BrokenLeg::Sink)?;
                return Ok(FlowTurnResult::More);
            }
        }
        sink.push().map_err(BrokenLeg::Sink)?;
        let more = self.paused.is_none() && source.is_readable() && sink.is_writable();
        Ok(if more && self.at == StreamEndState::Open {
            FlowTurnResult::More
        } else {
            FlowTurnResult::Blocked
        })
    }

    /// Puts bytes in front of the flow; the first `foreign` of them are the relay's own.
    pub(crate) fn prepend(&mut self, bytes: &[u8], foreign: usize) {
        self.foreign = foreign.min(bytes.len()) as u64;
        if !bytes.is_empty() {
            self.held = HeldBytes::Bytes {
                bytes: bytes.into(),
                gone: 0,
            };
        }
    }

    /// Writes the held bytes; true if none are left.
    fn drain(&mut self, sink: &mut Leg, means: &mut WorkerResources) -> io::Result<bool> {
        match std::mem::take(&mut self.held) {
            HeldBytes::Nothing => {}
            HeldBytes::Bytes { bytes, gone } => {
                let rest = bytes.get(gone..).unwrap_or_default();
                let sent = sink.send(rest, false)?;
                self.bytes += sent as u64;
                if sent < rest.len() {
                    let gone = gone + sent;
                    self.held = HeldBytes::Bytes { bytes, gone };
                    return Ok(false);
                }
            }
            HeldBytes::Pipe(pipe, held) => {
                let sent = sink.splice_out(&pipe, held)?;
                if !sink.splices() {
                    // The sink does not support splice(2): the rest of the pipe is copied, as is
                    // all that follows.
                    self.bytes += sent as u64;
                    let bytes = pipe.emptied(held - sent)?;
                    self.held = HeldBytes::Bytes { bytes, gone: 0 };
                    return self.drain(sink, means);
                }
                self.bytes += sent as u64;
                if sent < held {
                    self.held = HeldBytes::Pipe(pipe, held - sent);
                    return Ok(false);
                }
                means.pipes.give_back(pipe);
            }
        }
        Ok(true)
    }

    /// Reads once, and writes copied bytes immediately. Returns the bytes read, or `None` if no
    /// data was available.
    fn fill(
        &mut self,
        source: &mut Leg,
        sink: &mut Leg,
        most: usize,
        means: &mut WorkerResources,
    ) -> Result<Option<usize>, BrokenLeg> {
        if self.bulk
            && source.splices()
            && sink.splices()
            && most >= WORTH_A_PIPE
            && let Some(pipe) = means.pipes.take()
        {
            let moved = source.splice_in(&pipe, most).map_err(BrokenLeg::Source)?;
            if let LegReadResult::Bytes(n @ 1..) = moved {
                self.bulk = n >= WORTH_A_PIPE;
                self.held = HeldBytes::Pipe(pipe, n);
                return Ok(Some(n));
            }
            means.pipes.give_back(pipe);
            if moved == LegReadResult::End {
                self.end(means.now);
            }
            return Ok((moved != LegReadResult::Nothing).then_some(0));
        }
        let most = most.min(means.scratch.len());
        let Some(into) = means.scratch.get_mut(..most) else {
            return Ok(None);
        };
        match source.receive(into).map_err(BrokenLeg::Source)? {
            LegReadResult::Nothing => Ok(None),
            LegReadResult::End => {
                self.end(means.now);
                Ok(Some(0))
            }
            LegReadResult::Bytes(n) => {
                self.bulk = n >= WORTH_A_PIPE;
                let bytes = into.get(..n).unwrap_or_default();
                let sent = sink.send(bytes, n == most && most < SMALL);
                let sent = sent.map_err(BrokenLeg::Sink)?;
                self.bytes += sent as u64;
                let rest = bytes.get(sent..).unwrap_or_default();
                if !rest.is_empty() {
                    self.held = HeldBytes::Bytes {
                        bytes: rest.into(),
                        gone: 0,
                    };
                }
                Ok(Some(n))
            }
        }
    }

    /// Takes the bytes that may be read now from the rate limits. Returns `None` if the limits
    /// allow none, and then sets the time to pause until.
    fn reserve(&mut self, rules: &FlowLimits<'_>, buffer: usize, now: Instant) -> Option<usize> {
        self.paused = None;
        let mut most = buffer as u64;
        if let Some(bucket) = &mut self.bucket {
            most = most.min(bucket.level(now));
            if most == 0 {
                self.paused = Some(bucket.again());
                return None;
            }
        }
        if let Some(all) = rules.all {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            most = most.min(all.level(now));
            if most == 0 {
                self.paused = Some(all.again());
                return None;
            }
            all.take(most);
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.take(most);
        }
        Some(most as usize)
    }

    /// Returns bytes to the rate limits that were reserved and not read.
    fn refund(&mut self, rules: &FlowLimits<'_>, bytes: usize) {
        if let Some(bucket) = &mut self.bucket {
            bucket.refund(bytes as u64);
        }
        if let Some(all) = rules.all {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.refund(bytes as u64);
        }
    }
}
