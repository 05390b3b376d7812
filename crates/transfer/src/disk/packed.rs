//! Compresses and decompresses blocks of files (zstd) for transport.

use std::cell::RefCell;
use std::io;

use bytes::Bytes;
use schedule::{DiskReply, DiskRequest, JobId};
use sftp::packed::{BlockCompressor, BlockDecompressor};
use wire::PayloadBlock;

use super::LocalSource;
use super::execute::keep_zeros;
use crate::sums::ChecksumPieceTicket;

/// The compressor, decompressor and buffers of a disk thread.
#[derive(Default)]
struct ZstdBuffers {
    packer: Option<BlockCompressor>,
    unpacker: Option<BlockDecompressor>,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

impl ZstdBuffers {
    /// Compresses `raw` into `packed`; false if that does not pay.
    fn pack(&mut self) -> bool {
        if self.packer.is_none() {
            self.packer = BlockCompressor::new();
        }
        let packer = self.packer.as_mut();
        packer.is_some_and(|packer| packer.pack(&self.raw, &mut self.packed))
    }
}

thread_local! {
    static BENCH: RefCell<ZstdBuffers> = RefCell::default();
}

/// Executes a `ReadPacked` request.
pub(super) fn read(
    source: &LocalSource,
    job: JobId,
    (offset, len): (u64, usize),
    mut block: PayloadBlock,
    ticket: Option<ChecksumPieceTicket>,
) -> io::Result<DiskReply> {
    if let Some(len) = source.hole(offset, len)? {
        keep_zeros(ticket, len);
        return Ok(DiskReply::Hole { job, offset, len });
    }
    let len = source.before_hole(offset, len)?;
    BENCH.with_borrow_mut(|bench| {
        bench.raw.clear();
        source.append(offset, len, &mut bench.raw)?;
        if let Some(ticket) = ticket {
            ticket.keep(std::iter::once(&bench.raw[..]));
        }
        let smaller = bench.pack();
        let taken = block.append(if smaller { &bench.packed } else { &bench.raw });
        block.truncate(taken);
        Ok(DiskReply::Packed {
            job,
            offset,
            len: bench.raw.len() as u64,
            smaller,
            block,
        })
    })
}

/// Compresses the contents of a block; returns their original length, or `None` with the block
/// unchanged if that does not pay.
pub(super) fn pack(block: &mut PayloadBlock) -> Option<u64> {
    BENCH.with_borrow_mut(|bench| {
        bench.raw.clear();
        for packet in block.packets() {
            bench.raw.extend_from_slice(packet.payload());
        }
        if !bench.pack() {
            return None;
        }
        block.clear();
        let taken = block.append(&bench.packed);
        block.truncate(taken);
        Some(bench.raw.len() as u64)
    })
}

/// Decompresses a `WritePacked` request into a `Write`; other requests pass unchanged.
pub(super) fn unpacked(mut request: DiskRequest) -> io::Result<DiskRequest> {
    match &mut request {
        DiskRequest::WritePacked {
            job,
            offset,
            len,
            packed,
        } => Ok(DiskRequest::Write {
            job: *job,
            offset: *offset,
            pieces: vec![unpack(packed, *len)?],
        }),
        DiskRequest::StoreTarget { pieces, packed, .. } => {
            if let (Some(len), [piece]) = (packed.take(), pieces.as_mut_slice()) {
                *piece = unpack(piece, len)?;
            }
            Ok(request)
        }
        _ => Ok(request),
    }
}

fn unpack(packed: &[u8], len: u32) -> io::Result<Bytes> {
    let bytes = BENCH.with_borrow_mut(|bench| {
        if bench.unpacker.is_none() {
            bench.unpacker = BlockDecompressor::new();
        }
        bench.unpacker.as_mut()?.unpack(packed, len)
    });
    bytes.map(Bytes::from).ok_or_else(|| {
        io::Error::other("the server sent a malformed compressed block (SFTP protocol error)")
    })
}
