//! Data that are made smaller for the way, where that pays.

use sftp::{Client, Handle};
use wire::Block;

use super::config::Pack;
use super::core::{Core, What};
use crate::JobId;

/// Where data did not become smaller, every so many blocks one is tried again.
const AGAIN: u32 = 64;

/// What is known of the data on a lane.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// The last block that was tried did not become smaller.
    in_vain: bool,
    /// Blocks since.
    since: u32,
}

impl Core {
    /// Whether the next block is to be made smaller.
    pub(super) fn packs(&mut self) -> bool {
        let may = self.server.zstd
            && match self.config.pack {
                Pack::Never => false,
                Pack::Always => true,
                Pack::Auto => self.sends_slower_than_hashing(),
            };
        // Before the first is known all are tried: on a long path they are what is under way.
        if !may || !self.packing.in_vain {
            return may;
        }
        self.packing.since += 1;
        self.packing.since.is_multiple_of(AGAIN)
    }

    /// What became of one that was tried.
    pub(super) fn packed(&mut self, smaller: bool) {
        self.packing = Packing {
            in_vain: !smaller,
            since: 0,
        };
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
        self.sent(id, Some(job), What::Write { offset, len }, data);
    }
}
