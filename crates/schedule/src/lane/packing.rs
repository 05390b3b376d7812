//! Compresses file data for transfer if that pays.

use sftp::{Client, Handle, Reply};
use wire::Block;

use super::compression_probe::CompressionProbe;
use super::config::PackingMode;
use super::core::{LaneContext, RequestTag};
use crate::JobId;

/// Number of blocks after which one is tried again when data did not become smaller.
const AGAIN: u32 = 64;

/// File size in bytes from which a result says something about the compressibility of later data.
const TELLING: u64 = 4 << 10;

/// Compressibility of the data on a lane.
#[derive(Debug)]
pub(super) struct Packing {
    /// The last block that was tried did not become smaller.
    in_vain: bool,
    /// Number of blocks since that trial.
    since: u32,
    /// Measures if compression pays, on paths that are not so long that it always does.
    pub(super) pays: CompressionProbe,
    /// Bytes of blocks that were tried, and their size after compression.
    pub(super) tried: u64,
    pub(super) became: u64,
}

impl Packing {
    pub(super) fn new(believed: bool) -> Self {
        Self {
            in_vain: false,
            since: 0,
            pays: CompressionProbe::new(believed),
            tried: 0,
            became: 0,
        }
    }
}

impl LaneContext {
    /// Returns true if the next block of `len` bytes is to be compressed.
    pub(super) fn packs(&mut self, len: u64) -> bool {
        let pays = self.packing.pays.ask(len);
        let may = self.server.zstd
            && match self.config.pack {
                PackingMode::Never => false,
                PackingMode::Always => true,
                PackingMode::Auto => pays || self.is_long(),
            };
        // Until the first result is known, all blocks are tried: on a long path they are all in
        // flight.
        if !may || !self.packing.in_vain {
            return may;
        }
        self.packing.since += 1;
        self.packing.since.is_multiple_of(AGAIN)
    }

    /// Returns the length of an uncompressed WRITE at `offset`, where `len` bytes were planned: up
    /// to `most`.
    pub(super) fn longer(&mut self, offset: u64, len: u64, most: u64) -> u64 {
        // One request may exceed the pace, so it must be short if a pace is set.
        let long = self.reading.saturating_add(self.server.fast_write.into());
        let fits = self.pace.is_none_or(|left| left >= long);
        let rate = self.bytes.rate().filter(|_| fits);
        let piece = self.server.fast_piece(offset, rate).min(most);
        self.packing.pays.asked(piece.saturating_sub(len));
        piece
    }

    /// Returns true if the first bytes of a file are to be compressed, should more follow. The
    /// length is not known yet. Incompressible data are not tried again here, since most files have
    /// no more bytes.
    pub(super) fn packs_first(&mut self) -> bool {
        !self.packing.in_vain && self.packs(0)
    }

    /// Returns true if a small file is to be compressed.
    pub(super) fn packs_file(&mut self) -> bool {
        self.server.zstd_files && self.packs(0)
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
        let packing = &mut self.packing;
        packing.in_vain = became >= len;
        packing.since = 0;
        packing.tried += len;
        packing.became += became;
    }

    /// Handles an answer, or a part of one, to a READ that might be compressed.
    pub(super) fn answered_packed(&mut self, reply: &Reply) {
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

    /// Returns an empty block for `len` bytes behind the header of a plain or compressed WRITE.
    pub(super) fn block_to_pack(&self, handle: usize, len: usize) -> Block {
        let reserve = Client::write_zstd_reserve(handle);
        Block::new(&self.config.pool, self.config.slot, reserve, len)
    }

    /// Sends a WRITE of `len` bytes that were compressed into `block`.
    pub(super) fn send_write_packed(
        &mut self,
        job: JobId,
        handle: &Handle,
        offset: u64,
        len: u64,
        block: Block,
    ) {
        let data = block.len() as u64;
        let id = self.client.write_zstd(handle, offset, len as u32, block);
        self.sent(id, Some(job), RequestTag::Write { offset, len }, data);
    }
}
