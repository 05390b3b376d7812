//! Compressed file data: write-zstd@longhaul and read-zstd@longhaul, and for whole files
//! put-file-zstd@longhaul and get-file-zstd@longhaul.

use sftp::packed::{BlockCompressor, BlockDecompressor, LONGEST_UNPACKED};
use wire::RemainingBytes;

use super::open_files::OpenFiles;
use super::reply::ReplyBuilder;
use super::request_error::{Exhausted, Invalid, RequestError};
use super::session::{LONGEST_DATA, RequestResult};
use super::transfer_log::TransferLog;

/// Compressor, decompressor and buffers of one client, created at first use.
#[derive(Debug, Default)]
pub(super) struct SessionCompression {
    packer: Option<BlockCompressor>,
    unpacker: Option<BlockDecompressor>,
    unpacked: Vec<u8>,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

/// Shortest run of zeros that is written as a hole; shorter ones save nothing.
const LEAST_HOLE: usize = 64 << 10;

fn is_hole(bytes: &[u8]) -> bool {
    bytes.len() >= LEAST_HOLE && bytes.iter().all(|byte| *byte == 0)
}

impl SessionCompression {
    /// Decompresses a block of `len` bytes and calls `use_it` with the result.
    pub(super) fn with_unpacked(
        &mut self,
        data: &[u8],
        len: u32,
        use_it: impl FnOnce(&[u8]) -> RequestResult,
    ) -> RequestResult {
        if len > LONGEST_UNPACKED {
            return Err(Invalid::UnpackedLength.into());
        }
        if self.unpacker.is_none() {
            self.unpacker = BlockDecompressor::new();
        }
        let unpacker = self.unpacker.as_mut().ok_or(Exhausted::Memory)?;
        if !unpacker.unpack_to(data, len, &mut self.unpacked) {
            return Err(Invalid::PackedBlock.into());
        }
        use_it(&self.unpacked)
    }

    /// Compresses `raw`; `None` if the result is not smaller.
    pub(super) fn pack(&mut self, raw: &[u8]) -> Result<Option<&[u8]>, RequestError> {
        if self.packer.is_none() {
            self.packer = BlockCompressor::new();
        }
        let packer = self.packer.as_mut().ok_or(Exhausted::Memory)?;
        let smaller = packer.pack(raw, &mut self.packed);
        Ok(smaller.then_some(self.packed.as_slice()))
    }

    /// Compresses the data that `read` appends to a buffer, if it returns true.
    pub(super) fn pack_read(
        &mut self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<bool, RequestError>,
    ) -> Result<ReadReplyData<'_>, RequestError> {
        let mut raw = std::mem::take(&mut self.raw);
        raw.clear();
        let packs = read(&mut raw)?;
        let smaller = packs && self.pack(&raw)?.is_some();
        self.raw = raw;
        Ok(match smaller {
            true => ReadReplyData::Packed(self.raw.len() as u32, &self.packed),
            false => ReadReplyData::Plain(&self.raw),
        })
    }
}

/// File data for a reply to READ, plain or compressed.
pub(super) enum ReadReplyData<'a> {
    /// Compressed data, and the length of what they decompress to.
    Packed(u32, &'a [u8]),
    Plain(&'a [u8]),
}

/// Carries out write-zstd@longhaul.
pub(super) fn write_zstd(
    files: &mut OpenFiles,
    zstd: &mut SessionCompression,
    (handle, offset): (&[u8], u64),
    (data, len): (&[u8], u32),
    log: &mut TransferLog,
) -> RequestResult {
    // Report an unusable handle before decompressing.
    files.handles().file(handle)?;
    zstd.with_unpacked(data, len, |bytes| {
        match bytes.split_last() {
            // The last byte is written to set the length; truncation could cut off concurrent
            // writes by others.
            Some((0, zeros))
                if is_hole(zeros) && files.punch_hole(handle, offset, bytes.len())? =>
            {
                let last = offset.saturating_add(zeros.len() as u64);
                files.write(handle, last, [[0].as_slice()], log)
            }
            _ => files.write(handle, offset, [bytes], log),
        }
    })
}

/// Answers read-zstd@longhaul.
pub(super) fn read_zstd(
    files: &mut OpenFiles,
    zstd: &mut SessionCompression,
    handle: &[u8],
    (offset, len): (u64, u32),
    log: &mut TransferLog,
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    let file = files.handles().open_file(handle)?;
    let len = len.min(LONGEST_DATA).min(LONGEST_UNPACKED) as usize;
    let mut read = 0;
    let data = zstd.pack_read(|raw| {
        read = sys::append_at(&**file, raw, len, offset)?;
        match read == 0 && len > 0 {
            true => Err(RequestError::EndOfFile),
            false => Ok(true),
        }
    })?;
    files.count_sent(handle, read, log);
    match data {
        ReadReplyData::Packed(len, packed) => reply.extended(&(len, RemainingBytes(packed))),
        ReadReplyData::Plain(raw) => reply.data(|out| {
            out.extend_from_slice(raw);
            Ok::<_, RequestError>(())
        })?,
    }
    Ok(())
}
