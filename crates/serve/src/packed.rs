//! Compressed file data: write-zstd@longhaul and read-zstd@longhaul, and for whole files
//! put-file-zstd@longhaul and get-file-zstd@longhaul.

use sftp::StatusCode;
use sftp::packed::{BlockCompressor, BlockDecompressor, LONGEST_UNPACKED};
use wire::Rest;

use crate::answer::{Answer, LONGEST_DATA, Session};
use crate::error::RequestError;
use crate::handles::OpenHandle;
use crate::reply::Reply;
use crate::whole_file::PutFileRequest;

/// Compressor, decompressor and buffers of one client, created at first use.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    packer: Option<BlockCompressor>,
    unpacker: Option<BlockDecompressor>,
    unpacked: Vec<u8>,
    pub(crate) raw: Vec<u8>,
    packed: Vec<u8>,
}

/// Shortest run of zeros that is written as a hole; shorter ones save nothing.
const LEAST_HOLE: usize = 64 << 10;

fn is_hole(bytes: &[u8]) -> bool {
    bytes.len() >= LEAST_HOLE && bytes.iter().all(|byte| *byte == 0)
}

fn no_memory() -> RequestError {
    RequestError::new(StatusCode::FAILURE, "this server has no memory for zstd")
}

impl Packing {
    /// Decompresses a block of `len` bytes, into memory that the caller returns.
    fn unpack(&mut self, data: &[u8], len: u32) -> Result<Vec<u8>, RequestError> {
        if len > LONGEST_UNPACKED {
            return Err(RequestError::bad_message(
                "the block claims to be longer than a block may be",
            ));
        }
        if self.unpacker.is_none() {
            self.unpacker = BlockDecompressor::new();
        }
        let unpacker = self.unpacker.as_mut().ok_or_else(no_memory)?;
        if !unpacker.unpack_to(data, len, &mut self.unpacked) {
            return Err(RequestError::bad_message("the block is not what it claims"));
        }
        Ok(std::mem::take(&mut self.unpacked))
    }

    /// Compresses `raw`; `None` if the result is not smaller.
    pub(crate) fn pack(&mut self, raw: &[u8]) -> Result<Option<&[u8]>, RequestError> {
        if self.packer.is_none() {
            self.packer = BlockCompressor::new();
        }
        let packer = self.packer.as_mut().ok_or_else(no_memory)?;
        let smaller = packer.pack(raw, &mut self.packed);
        Ok(smaller.then_some(self.packed.as_slice()))
    }
}

impl Session<'_> {
    pub(crate) fn write_zstd(
        &mut self,
        handle: &[u8],
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> Answer {
        // Report an unusable handle before decompressing.
        self.handles.file(handle)?;
        let bytes = self.packing.unpack(data, len)?;
        let written = self.write_unpacked(handle, offset, &bytes);
        self.packing.unpacked = bytes;
        written
    }

    pub(crate) fn put_file_zstd(
        &mut self,
        put: &PutFileRequest<'_>,
        len: u32,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let bytes = self.packing.unpack(put.data, len)?;
        let done = self.put_file(
            &PutFileRequest {
                data: &bytes,
                ..*put
            },
            reply,
        );
        self.packing.unpacked = bytes;
        done
    }

    fn write_unpacked(&mut self, handle: &[u8], offset: u64, bytes: &[u8]) -> Answer {
        let (file, append) = match self.handles.get(handle)? {
            OpenHandle::File { file, append, .. } => (file, *append),
            OpenHandle::Dir { .. } => {
                return Err(RequestError::new(StatusCode::FAILURE, "it is a directory"));
            }
        };
        match bytes.split_last() {
            // The last byte is written to set the length; truncation could cut off concurrent
            // writes by others.
            Some((0, zeros))
                if !append
                    && is_hole(zeros)
                    && sys::punch_hole(file, offset, bytes.len() as u64) =>
            {
                let last = offset.saturating_add(zeros.len() as u64);
                self.write(handle, last, [[0].as_slice()])
            }
            _ => self.write(handle, offset, [bytes]),
        }
    }

    pub(crate) fn read_zstd(
        &mut self,
        handle: &[u8],
        offset: u64,
        len: u32,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let OpenHandle::File { file, sent, .. } = self.handles.get_mut(handle)? else {
            return Err(rustix::io::Errno::ISDIR.into());
        };
        let len = len.min(LONGEST_DATA).min(LONGEST_UNPACKED) as usize;
        let mut raw = std::mem::take(&mut self.packing.raw);
        raw.clear();
        let read = sys::append_at(&*file, &mut raw, len, offset)?;
        if read == 0 && len > 0 {
            return Err(RequestError::end_of_file());
        }
        *sent += read as u64;
        self.moved.sent += read as u64;
        match self.packing.pack(&raw)? {
            Some(packed) => reply.extended(&(read as u32, Rest(packed))),
            None => reply.data(|out| {
                out.extend_from_slice(&raw);
                Ok::<_, RequestError>(())
            })?,
        }
        self.packing.raw = raw;
        Ok(())
    }
}
