//! hash@longhaul: checksums of the blocks of an open file.

use std::fs::File;
use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::{self, available_parallelism};

use rustix::io::{Errno, retry_on_intr};
use sftp::blocks::{
    BasisBlockChecksums, BlockSumKey, BlockSumKind, LEAST_BLOCK, MOST_HASHED, MOST_SUMS, strong,
};
use wire::RemainingBytes;

use super::reply::ReplyBuilder;
use super::request_error::{Invalid, RequestError, Unsupported};
use super::session::RequestResult;

/// Bytes read at a time, unless a block is longer.
const PIECE: usize = 1 << 20;

/// Arguments of a hash request, as received.
#[derive(Clone, Copy)]
pub(super) struct HashRequest<'a> {
    offset: u64,
    len: u32,
    block: u32,
    kind: &'a [u8],
    key: &'a [u8],
}

impl<'a> HashRequest<'a> {
    /// Collects the arguments: offset, length and block length in bytes, name of the sum and key.
    pub(super) fn new(
        (offset, len, block): (u64, u32, u32),
        kind: &'a [u8],
        key: &'a [u8],
    ) -> Self {
        Self {
            offset,
            len,
            block,
            kind,
            key,
        }
    }

    /// Checks the arguments, before anything is read.
    fn check(&self) -> Result<(BlockSumKind, Option<&'a BlockSumKey>), RequestError> {
        let kind = BlockSumKind::named(self.kind).ok_or(Unsupported::Sums)?;
        let key: Option<&BlockSumKey> = match self.key {
            [] if kind == BlockSumKind::Blake3 => None,
            key => Some(key.try_into().map_err(|_| Invalid::KeyLength)?),
        };
        if !(LEAST_BLOCK..=kind.most()).contains(&self.block) {
            return Err(Invalid::BlockLength.into());
        }
        let sums = self.len.div_ceil(self.block) as usize * kind.bytes();
        if self.len > MOST_HASHED || sums > MOST_SUMS {
            return Err(Invalid::RangeLength.into());
        }
        Ok((kind, key))
    }
}

/// Answers a hash request about `file`; `between` is called between the parts of a long one.
pub(super) fn hash(
    file: &File,
    asked: &HashRequest<'_>,
    between: &impl Fn(),
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    let made = match asked.check()? {
        (BlockSumKind::Rolling, Some(key)) => side_by_side(file, asked, between, |block, made| {
            BasisBlockChecksums::of(key, block).write(made)
        })?,
        (BlockSumKind::Strong, Some(key)) => side_by_side(file, asked, between, |block, made| {
            made.extend_from_slice(&strong(key, block));
        })?,
        (_, key) => blake3(file, asked, key, between)?,
    };
    if made.is_empty() && asked.len > 0 {
        return Err(RequestError::EndOfFile);
    }
    reply.extended(&RemainingBytes(&made));
    Ok(())
}

/// Computes the checksum of each block with `sum`, on two threads if the range is long and there is
/// another processor. `between` is called between pieces on this thread.
fn side_by_side(
    file: &File,
    asked: &HashRequest<'_>,
    between: &impl Fn(),
    sum: impl Fn(&[u8], &mut Vec<u8>) + Sync,
) -> Result<Vec<u8>, Errno> {
    let half = asked.len / 2 / asked.block * asked.block;
    if (half as usize) < 2 * PIECE || processors() < 2 {
        return by_block(file, asked, (0, asked.len), between, &sum);
    }
    thread::scope(|scope| {
        let second = || by_block(file, asked, (half, asked.len), &|| {}, &sum);
        let started = thread::Builder::new().spawn_scoped(scope, second);
        let mut made = by_block(file, asked, (0, half), between, &sum)?;
        let behind = match started {
            Ok(thread) => thread.join().unwrap_or(Err(Errno::IO))?,
            Err(_) => by_block(file, asked, (half, asked.len), between, &sum)?,
        };
        made.extend(behind);
        Ok(made)
    })
}

/// Number of processors that this process may use, cached because the lookup reads several cgroup
/// files.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| available_parallelism().map_or(1, NonZero::get))
}

/// Checksums of the blocks between two offsets of the range, up to the end of the file.
fn by_block(
    file: &File,
    asked: &HashRequest<'_>,
    (from, to): (u32, u32),
    between: &impl Fn(),
    sum: &(impl Fn(&[u8], &mut Vec<u8>) + Sync),
) -> Result<Vec<u8>, Errno> {
    let (block, len) = (asked.block as usize, (to - from) as usize);
    let piece = PIECE / block * block;
    let mut buffer = vec![0; piece.min(len)];
    let mut made = Vec::new();
    let mut done = 0;
    while done < len {
        let most = buffer.len().min(len - done);
        let read = fill(
            file,
            &mut buffer[..most],
            asked.offset,
            from as usize + done,
        )?;
        for block in buffer[..read].chunks(block) {
            sum(block, &mut made);
        }
        done += read;
        if read < most {
            break;
        }
        between();
    }
    Ok(made)
}

/// Checksums of blocks of any length, which BLAKE3 can compute piece by piece.
fn blake3(
    file: &File,
    asked: &HashRequest<'_>,
    key: Option<&BlockSumKey>,
    between: &impl Fn(),
) -> Result<Vec<u8>, Errno> {
    let mut made = Vec::new();
    let hasher = || key.map_or_else(blake3::Hasher::new, blake3::Hasher::new_keyed);
    let (block, len) = (asked.block as usize, asked.len as usize);
    let mut buffer = vec![0; PIECE.min(block)];
    for from in (0..len).step_by(block) {
        let to = len.min(from + block);
        let (mut sum, mut at) = (hasher(), from);
        while at < to {
            let most = buffer.len().min(to - at);
            let read = fill(file, &mut buffer[..most], asked.offset, at)?;
            sum.update(&buffer[..read]);
            at += read;
            if read < most {
                break;
            }
            between();
        }
        if at > from {
            made.extend_from_slice(sum.finalize().as_bytes());
        }
        if at < to {
            break;
        }
    }
    Ok(made)
}

/// Fills `buffer` from the file at `offset + done`, up to the end of the file.
fn fill(file: &File, buffer: &mut [u8], offset: u64, done: usize) -> Result<usize, Errno> {
    let mut have = 0;
    while have < buffer.len() {
        let at = offset.saturating_add((done + have) as u64);
        match retry_on_intr(|| rustix::io::pread(file, &mut buffer[have..], at))? {
            0 => break,
            n => have += n,
        }
    }
    Ok(have)
}
