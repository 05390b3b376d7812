//! Compresses file data for transfer if that pays.

use std::time::Instant;

use sftp::Reply;

use super::compression_probe::CompressionProbe;
use super::config::CompressionMode;

/// Number of blocks after which one is tried again when data did not become smaller.
const AGAIN: u32 = 64;

/// File size in bytes from which a result says something about the compressibility of later data.
const TELLING: u64 = 4 << 10;

/// Compressibility of the data on a lane.
#[derive(Debug)]
pub(super) struct LaneCompressibility {
    mode: CompressionMode,
    /// The last block that was tried did not become smaller.
    in_vain: bool,
    /// Number of blocks since that trial.
    since: u32,
    /// Measures if compression pays, on paths that are not so long that it always does.
    pays: CompressionProbe,
    /// Bytes of blocks that were tried, and their size after compression.
    tried: u64,
    became: u64,
}

impl LaneCompressibility {
    pub(super) fn new(mode: CompressionMode, believed: bool) -> Self {
        Self {
            mode,
            in_vain: false,
            since: 0,
            pays: CompressionProbe::new(believed),
            tried: 0,
            became: 0,
        }
    }

    /// Returns true if the next block of `len` bytes is to be compressed, on a path that is `long`
    /// or not, to a server that `can` decompress it.
    pub(super) fn packs(&mut self, len: u64, can: bool, long: bool) -> bool {
        let pays = self.pays.ask(len);
        let may = can
            && match self.mode {
                CompressionMode::Never => false,
                CompressionMode::Always => true,
                CompressionMode::Auto => pays || long,
            };
        // Until the first result is known, all blocks are tried: on a long path they are all in
        // flight.
        if !may || !self.in_vain {
            return may;
        }
        self.since += 1;
        self.since.is_multiple_of(AGAIN)
    }

    /// Returns true if the last block that was tried did not become smaller.
    pub(super) fn is_in_vain(&self) -> bool {
        self.in_vain
    }

    /// Counts `len` bytes that were requested and will not be compressed.
    pub(super) fn asked(&mut self, len: u64) {
        self.pays.asked(len);
    }

    /// Counts bytes of files that the receiving end has confirmed.
    pub(super) fn confirm(&mut self, now: Instant, len: u64) {
        self.pays.confirm(now, len);
    }

    /// Records that a small file of `len` bytes became `became` bytes. Short files that do not
    /// become smaller say nothing about the next.
    pub(super) fn packed_file(&mut self, len: u64, became: u64) {
        if became < len || len >= TELLING {
            self.packed(len, became);
        }
    }

    /// Records that a block of `len` bytes became `became` bytes.
    pub(super) fn packed(&mut self, len: u64, became: u64) {
        // An empty block, at the end of a file, says nothing about the next.
        if len == 0 {
            return;
        }
        self.in_vain = became >= len;
        self.since = 0;
        self.tried += len;
        self.became += became;
    }

    /// Handles an answer, or a part of one, to a READ that might be compressed.
    pub(super) fn answered(&mut self, reply: &Reply) {
        match reply {
            Reply::Packed { len, bytes } => self.packed((*len).into(), bytes.len() as u64),
            Reply::Data {
                last: true,
                at,
                bytes,
            } => {
                let len = u64::from(*at) + bytes.len() as u64;
                self.packed(len, len);
            }
            _ => {}
        }
    }

    /// Returns the bytes of blocks that were tried, and their size after compression.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.tried, self.became)
    }
}
