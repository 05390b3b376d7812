//! Data of files that is made smaller for the way: write-zstd@longhaul and read-zstd@longhaul.

use sftp::StatusCode;
use sftp::packed::{LONGEST_UNPACKED, Packer, Unpacker};
use wire::Rest;

use crate::answer::{Answer, LONGEST_DATA, Session};
use crate::error::Refused;
use crate::handles::Open;
use crate::reply::Reply;

/// What one client's blocks are packed and unpacked with, once there are any.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    packer: Option<Packer>,
    unpacker: Option<Unpacker>,
    unpacked: Vec<u8>,
    raw: Vec<u8>,
    packed: Vec<u8>,
}

/// Shorter runs of zeros are no hole, or one that saves nothing.
const LEAST_HOLE: usize = 64 << 10;

fn is_hole(bytes: &[u8]) -> bool {
    bytes.len() >= LEAST_HOLE && bytes.iter().all(|byte| *byte == 0)
}

fn no_memory() -> Refused {
    Refused::new(StatusCode::FAILURE, "this server has no memory for zstd")
}

impl Session<'_> {
    pub(crate) fn write_zstd(
        &mut self,
        handle: &[u8],
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> Answer {
        if len > LONGEST_UNPACKED {
            return Err(Refused::new(
                StatusCode::BAD_MESSAGE,
                "the block claims to be longer than a block may be",
            ));
        }
        // Whatever the handle is not good for is said before anything is unpacked.
        self.handles.file(handle)?;
        let Packing {
            unpacker, unpacked, ..
        } = &mut self.packing;
        if unpacker.is_none() {
            *unpacker = Unpacker::new();
        }
        let unpacker = unpacker.as_mut().ok_or_else(no_memory)?;
        if !unpacker.unpack_to(data, len, unpacked) {
            return Err(Refused::new(
                StatusCode::BAD_MESSAGE,
                "the block is not what it claims",
            ));
        }
        let bytes = std::mem::take(unpacked);
        let written = self.write_unpacked(handle, offset, &bytes);
        self.packing.unpacked = bytes;
        written
    }

    fn write_unpacked(&mut self, handle: &[u8], offset: u64, bytes: &[u8]) -> Answer {
        let file = self.handles.file(handle)?;
        match bytes.split_last() {
            // The last byte gives the file its length; what others write to it at the same time
            // must not be cut off.
            Some((0, zeros))
                if is_hole(zeros) && sys::punch_hole(file, offset, bytes.len() as u64) =>
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
        let Open::File { file, sent, .. } = self.handles.get_mut(handle)? else {
            return Err(rustix::io::Errno::ISDIR.into());
        };
        let Packing {
            packer,
            raw,
            packed,
            ..
        } = &mut self.packing;
        if packer.is_none() {
            *packer = Packer::new();
        }
        let packer = packer.as_mut().ok_or_else(no_memory)?;
        let len = len.min(LONGEST_DATA).min(LONGEST_UNPACKED) as usize;
        raw.clear();
        let read = sys::append_at(&*file, raw, len, offset)?;
        if read == 0 && len > 0 {
            return Err(Refused::end_of_file());
        }
        *sent += read as u64;
        self.moved.sent += read as u64;
        if !packer.pack(raw, packed) {
            return reply.data(|out| {
                out.extend_from_slice(raw);
                Ok::<_, Refused>(())
            });
        }
        reply.extended(&(read as u32, Rest(packed)));
        Ok(())
    }
}
