//! Blocks of files that are made smaller for the way, or came so.

use std::cell::RefCell;
use std::io;

use bytes::Bytes;
use plan::{DiskReply, DiskRequest, JobId};
use sftp::packed::{Packer, Unpacker};
use wire::Block;

use super::Source;
use super::execute::keep_zeros;
use crate::sums::Ticket;

/// What a thread of the pool packs with.
#[derive(Default)]
struct Bench {
    packer: Option<Packer>,
    unpacker: Option<Unpacker>,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

/// Carries out a `ReadPacked`.
pub(super) fn read(
    source: &Source,
    job: JobId,
    (offset, len): (u64, usize),
    mut block: Block,
    ticket: Option<Ticket>,
) -> io::Result<DiskReply> {
    if let Some(len) = source.hole(offset, len)? {
        keep_zeros(ticket, len);
        return Ok(DiskReply::Hole { job, offset, len });
    }
    let len = source.before_hole(offset, len)?;
    BENCH.with_borrow_mut(|bench| {
        let Bench {
            packer,
            raw,
            packed,
            ..
        } = bench;
        raw.clear();
        source.append(offset, len, raw)?;
        if let Some(ticket) = ticket {
            ticket.keep(std::iter::once(&raw[..]));
        }
        if packer.is_none() {
            *packer = Packer::new();
        }
        let smaller = packer.as_mut().is_some_and(|p| p.pack(raw, packed));
        let taken = block.append(if smaller { packed } else { raw });
        block.truncate(taken);
        Ok(DiskReply::Packed {
            job,
            offset,
            len: raw.len() as u64,
            smaller,
            block,
        })
    })
}

/// Makes what is in a block smaller; returns how many bytes it was, and `None` where nothing has
/// changed since that does not pay.
pub(super) fn pack(block: &mut Block) -> Option<u64> {
    BENCH.with_borrow_mut(|bench| {
        let Bench {
            packer,
            raw,
            packed,
            ..
        } = bench;
        raw.clear();
        for packet in block.packets() {
            raw.extend_from_slice(packet.payload());
        }
        if packer.is_none() {
            *packer = Packer::new();
        }
        if !packer.as_mut()?.pack(raw, packed) {
            return None;
        }
        block.clear();
        let taken = block.append(packed);
        block.truncate(taken);
        Some(raw.len() as u64)
    })
}

/// A `Write` in place of a `WritePacked`; other requests as they are.
pub(super) fn unpacked(request: DiskRequest) -> io::Result<DiskRequest> {
    let DiskRequest::WritePacked {
        job,
        offset,
        len,
        packed,
    } = request
    else {
        return Ok(request);
    };
    let bytes = BENCH.with_borrow_mut(|bench| {
        if bench.unpacker.is_none() {
            bench.unpacker = Unpacker::new();
        }
        bench.unpacker.as_mut()?.unpack(&packed, len)
    });
    let bytes = bytes.ok_or_else(|| {
        io::Error::other("the server has sent a block that does not unpack to what it claims")
    })?;
    Ok(DiskRequest::Write {
        job,
        offset,
        pieces: vec![Bytes::from(bytes)],
    })
}
