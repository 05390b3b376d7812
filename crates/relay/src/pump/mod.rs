//! One direction of a connection.
//!
//! Bytes go from leg to leg until nothing moves any more. What was read and could not be written
//! is held, and nothing more is read until it is gone: so much is the most that a slow reader makes
//! the relay hold. Small messages are copied through memory that the worker's connections share;
//! what comes in bulk is spliced through a pipe, which is never filled before it is empty, so that
//! EAGAIN of splice(2), which means either an empty socket or a pipe without a free slot, is never
//! in doubt.

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
pub(crate) use leg::{Leg, Received};
pub(crate) use pages::Pages;
pub(crate) use pipes::Pipes;

use pipes::Pipe;

/// What is read at once where bytes are copied.
pub(crate) const SCRATCH: usize = 64 << 10;
/// So many bytes move in one turn, then it is another connection's.
const TURN: usize = 2 << 20;
/// And so many times: a buffer may be as small as a byte.
const ROUNDS: usize = 4096;
/// Below this, parts of segments wait for more to follow.
const SMALL: usize = 1 << 10;
/// A splice that moves less costs more than a copy.
const WORTH_A_PIPE: usize = 16 << 10;

/// What the connections of a worker share.
#[derive(Debug)]
pub(crate) struct WorkerResources {
    pub(crate) scratch: Pages,
    pub(crate) pipes: Pipes,
    pub(crate) now: Instant,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    held: Held,
    at: At,
    /// Bytes that have left.
    pub(crate) bytes: u64,
    /// When its source ended.
    pub(crate) ended: Option<Instant>,
    /// Bytes of the relay's own among those that have left.
    foreign: u64,
    /// What comes is more than a message.
    bulk: bool,
    /// The rate of this direction alone.
    bucket: Option<Box<TokenBucket>>,
    /// Until then the rate says to wait.
    pub(crate) paused: Option<Instant>,
}

/// What was read and is not written yet.
#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    Bytes {
        bytes: Box<[u8]>,
        gone: usize,
    },
    Pipe(Pipe, usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Open,
    /// The source has ended; what is held is still to go.
    Ending,
    /// The end was passed on.
    Finished,
}

/// What the relay says about all of its flows.
pub(crate) struct Rules<'a> {
    /// The most that is held, in bytes.
    pub(crate) buffer: usize,
    /// Of this direction of all connections.
    pub(crate) all: Option<&'a Mutex<TokenBucket>>,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnResult {
    /// Nothing moves until something is told.
    Still,
    /// The turn is over and there may be more.
    More,
}

/// Which leg broke, seen from the flow.
#[derive(Debug)]
pub(crate) enum BrokenLeg {
    Source(io::Error),
    Sink(io::Error),
}

impl Flow {
    pub(crate) fn new(rate: Option<u64>, now: Instant) -> Self {
        Self {
            bucket: rate.map(|rate| Box::new(TokenBucket::new(rate, now))),
            ..Self::default()
        }
    }

    /// Bytes of the source's that have left.
    pub(crate) fn moved(&self) -> u64 {
        self.bytes.saturating_sub(self.foreign)
    }

    /// Whether its end was passed on.
    pub(crate) fn is_finished(&self) -> bool {
        self.at == At::Finished
    }

    fn end(&mut self, now: Instant) {
        self.at = At::Ending;
        self.ended = Some(now);
    }

    /// Moves what can be moved now.
    pub(crate) fn turn(
        &mut self,
        source: &mut Leg,
        sink: &mut Leg,
        rules: &Rules<'_>,
        means: &mut WorkerResources,
    ) -> Result<TurnResult, BrokenLeg> {
        let before = self.bytes;
        for _ in 0..ROUNDS {
            if !self.drain(sink, means).map_err(BrokenLeg::Sink)? {
                return Ok(TurnResult::Still);
            }
            match self.at {
                At::Finished => return Ok(TurnResult::Still),
                At::Ending => {
                    if sink.finish().map_err(BrokenLeg::Sink)? {
                        self.at = At::Finished;
                    }
                    return Ok(TurnResult::Still);
                }
                At::Open => {}
            }
            // What was read now could not be written: the kernel keeps it as well as we do.
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
                return Ok(TurnResult::More);
            }
        }
        sink.push().map_err(BrokenLeg::Sink)?;
        let more = self.paused.is_none() && source.is_readable() && sink.is_writable();
        Ok(if more && self.at == At::Open {
            TurnResult::More
        } else {
            TurnResult::Still
        })
    }

    /// Puts this in front of what comes; the first `foreign` bytes of it are the relay's own.
    pub(crate) fn prepend(&mut self, bytes: &[u8], foreign: usize) {
        self.foreign = foreign.min(bytes.len()) as u64;
        if !bytes.is_empty() {
            self.held = Held::Bytes {
                bytes: bytes.into(),
                gone: 0,
            };
        }
    }

    /// Writes what is held; whether nothing is left.
    fn drain(&mut self, sink: &mut Leg, means: &mut WorkerResources) -> io::Result<bool> {
        match std::mem::take(&mut self.held) {
            Held::Nothing => {}
            Held::Bytes { bytes, gone } => {
                let rest = bytes.get(gone..).unwrap_or_default();
                let sent = sink.send(rest, false)?;
                self.bytes += sent as u64;
                if sent < rest.len() {
                    let gone = gone + sent;
                    self.held = Held::Bytes { bytes, gone };
                    return Ok(false);
                }
            }
            Held::Pipe(pipe, held) => {
                let sent = sink.splice_out(&pipe, held)?;
                if !sink.splices() {
                    // What cannot be spliced is copied, from here on and what is in the pipe.
                    self.bytes += sent as u64;
                    let bytes = pipe.emptied(held - sent)?;
                    self.held = Held::Bytes { bytes, gone: 0 };
                    return self.drain(sink, means);
                }
                self.bytes += sent as u64;
                if sent < held {
                    self.held = Held::Pipe(pipe, held - sent);
                    return Ok(false);
                }
                means.pipes.give_back(pipe);
            }
        }
        Ok(true)
    }

    /// Reads once, and writes what was copied at once. How much was read; `None` if there was
    /// nothing to read.
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
            if let Received::Bytes(n @ 1..) = moved {
                self.bulk = n >= WORTH_A_PIPE;
                self.held = Held::Pipe(pipe, n);
                return Ok(Some(n));
            }
            means.pipes.give_back(pipe);
            if moved == Received::End {
                self.end(means.now);
            }
            return Ok((moved != Received::Nothing).then_some(0));
        }
        let most = most.min(means.scratch.len());
        let Some(into) = means.scratch.get_mut(..most) else {
            return Ok(None);
        };
        match source.receive(into).map_err(BrokenLeg::Source)? {
            Received::Nothing => Ok(None),
            Received::End => {
                self.end(means.now);
                Ok(Some(0))
            }
            Received::Bytes(n) => {
                self.bulk = n >= WORTH_A_PIPE;
                let bytes = into.get(..n).unwrap_or_default();
                let sent = sink.send(bytes, n == most && most < SMALL);
                let sent = sent.map_err(BrokenLeg::Sink)?;
                self.bytes += sent as u64;
                let rest = bytes.get(sent..).unwrap_or_default();
                if !rest.is_empty() {
                    self.held = Held::Bytes {
                        bytes: rest.into(),
                        gone: 0,
                    };
                }
                Ok(Some(n))
            }
        }
    }

    /// How much may be read now, taken out of the rates; `None` if nothing, and then until when.
    fn reserve(&mut self, rules: &Rules<'_>, buffer: usize, now: Instant) -> Option<usize> {
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

    /// Gives back what was taken for nothing.
    fn refund(&mut self, rules: &Rules<'_>, bytes: usize) {
        if let Some(bucket) = &mut self.bucket {
            bucket.refund(bytes as u64);
        }
        if let Some(all) = rules.all {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.refund(bytes as u64);
        }
    }
}
