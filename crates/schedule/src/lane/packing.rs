//! Data that are made smaller for the way, where that pays.

use sftp::{Client, Handle, Reply};
use wire::Block;

use super::compression_probe::CompressionProbe;
use super::config::PackingMode;
use super::core::{LaneContext, RequestTag};
use crate::JobId;

/// Where data did not become smaller, every so many blocks one is tried again.
const AGAIN: u32 = 64;

/// Files from this on tell whether data become smaller.
const TELLING: u64 = 4 << 10;

/// What is known of the data on a lane.
#[derive(Debug)]
pub(super) struct Packing {
    /// The last block that was tried did not become smaller.
    in_vain: bool,
    /// Blocks since.
    since: u32,
    /// Where the path is not so long that it pays in any case.
    pub(super) pays: CompressionProbe,
    /// Bytes of blocks that were tried, and what became of them.
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
    /// Whether the next block, of `len` bytes, is to be made smaller.
    pub(super) fn packs(&mut self, len: u64) -> bool {
        let pays = self.packing.pays.ask(len);
        let may = self.server.zstd
            && match self.config.pack {
                PackingMode::Never => false,
                PackingMode::Always => true,
                PackingMode::Auto => pays || self.is_long(),
            };
        // Before the first is known all are tried: on a long path they are what is under way.
        if !may || !self.packing.in_vain {
            return may;
        }
        self.packing.since += 1;
        self.packing.since.is_multiple_of(AGAIN)
    }

    /// How much of a file goes as it is into the WRITE at `offset`, of which `len` bytes were asked about: up to
    /// `most`.
    pub(super) fn longer(&mut self, offset: u64, len: u64, most: u64) -> u64 {
        // One request may exceed a pace that was set, however fast it goes: a short one.
        let long = self.reading.saturating_add(self.server.fast_write.into());
        let fits = self.pace.is_none_or(|left| left >= long);
        let rate = self.bytes.rate().filter(|_| fits);
        let piece = self.server.fast_piece(offset, rate).min(most);
        self.packing.pays.asked(piece.saturating_sub(len));
        piece
    }

    /// Whether what a file begins with is to be made smaller, if more follows it: how long it is, or
    /// the file, is not known yet. Whether data become smaller again is not tried with it, since of
    /// most files nothing follows.
    pub(super) fn packs_first(&mut self) -> bool {
        !self.packing.in_vain && self.packs(0)
    }

    /// Whether a small file is to be made smaller.
    pub(super) fn packs_file(&mut self) -> bool {
        self.server.zstd_files && self.packs(0)
    }

    /// A small file of `len` bytes that was tried is `became` bytes long. Short ones that do not
    /// become smaller say nothing of the next.
    pub(super) fn packed_file(&mut self, len: u64, became: u64) {
        if became < len || len >= TELLING {
            self.packed(len, became);
        }
    }

    /// One of `len` bytes that was tried is `became` bytes long.
    pub(super) fn packed(&mut self, len: u64, became: u64) {
        // The end of a file says nothing of what comes next.
        if len == 0 {
            return;
        }
        let packing = &mut self.packing;
        packing.in_vain = became >= len;
        packing.since = 0;
        packing.tried += len;
        packing.became += became;
    }

    /// The answer to a READ that might come packed has come, or a part of it.
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

    /// An empty block for `len` bytes behind the header of a WRITE of either kind.
    pub(super) fn block_to_pack(&self, handle: usize, len: usize) -> Block {
        let reserve = Client::write_zstd_reserve(handle);
        Block::new(&self.config.pool, self.config.slot, reserve, len)
    }

    /// Sends a WRITE of `len` bytes that were packed into `block`.
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
