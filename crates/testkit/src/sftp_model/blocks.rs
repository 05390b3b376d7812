//! Extensions of longhaul's server that work on blocks of files.

use sftp::blocks::{BasisBlockChecksums, BlockSumKind, strong};
use sftp::packed::{BlockCompressor, BlockDecompressor};
use sftp::{HOLE, Request, RequestId, Response, StatusCode};
use wire::{Field as _, RemainingBytes};

use super::server::SftpModel;
use super::{Errno, Kind};

/// Shorter holes are not reported.
const PAGE: usize = 4096;

impl SftpModel {
    /// Serves hash@longhaul with rolling sums, and copy-data.
    pub(super) fn serve_blocks(
        &mut self,
        id: RequestId,
        request: Request<'_>,
    ) -> Result<(), StatusCode> {
        match request {
            Request::Hash {
                handle,
                offset,
                len,
                block,
                kind,
                key,
            } => {
                let key = key.try_into().map_err(|_| StatusCode::BAD_MESSAGE)?;
                let data = self.bytes_of(handle, offset, len.into())?;
                if data.is_empty() {
                    return Err(StatusCode::EOF);
                }
                let mut body = Vec::new();
                for bytes in data.chunks(block as usize) {
                    match BlockSumKind::named(kind) {
                        Some(BlockSumKind::Rolling) => {
                            BasisBlockChecksums::of(key, bytes).write(&mut body)
                        }
                        Some(BlockSumKind::Strong) => body.extend(strong(key, bytes)),
                        _ => return Err(StatusCode::OP_UNSUPPORTED),
                    }
                }
                if self.lies_about_sums {
                    body.rotate_left(BasisBlockChecksums::LEN);
                }
                self.say(
                    id,
                    &Response::ExtendedReply {
                        body: RemainingBytes(&body),
                    },
                );
                Ok(())
            }
            Request::CopyData {
                from,
                from_offset,
                len,
                to,
                to_offset,
            } => {
                let data = self.bytes_of(from, from_offset, len)?;
                let inode = self.inode(to, true)?;
                let written = self.fs.write(inode, to_offset, &data);
                written.map_err(Errno::status)?;
                self.copied += data.len() as u64;
                match data.len() as u64 == len {
                    true => Err(StatusCode::OK),
                    false => Err(StatusCode::EOF),
                }
            }
            Request::WriteZstd {
                handle,
                offset,
                len,
                data,
            } => {
                self.packed += u64::from(len);
                let bytes = BlockDecompressor::new().and_then(|mut u| u.unpack(data, len));
                let bytes = bytes.ok_or(StatusCode::BAD_MESSAGE)?;
                let inode = self.inode(handle, true)?;
                let written = self.fs.write(inode, offset, &bytes);
                written.map_err(Errno::status)?;
                Err(StatusCode::OK)
            }
            Request::ReadZstd {
                handle,
                offset,
                len,
            } => {
                let len = len.min(self.personality.read);
                let data = self.bytes_of(handle, offset, len.into())?;
                if data.is_empty() {
                    return Err(StatusCode::EOF);
                }
                let mut packed = Vec::new();
                if !BlockCompressor::new().is_some_and(|mut p| p.pack(&data, &mut packed)) {
                    self.say(id, &Response::Data { data: &data });
                    return Ok(());
                }
                self.packed += data.len() as u64;
                let mut body = Vec::new();
                let len = data.len() as u32 + u32::from(self.lies_about_lengths);
                (len, RemainingBytes(&packed)).write(&mut body);
                self.say(
                    id,
                    &Response::ExtendedReply {
                        body: RemainingBytes(&body),
                    },
                );
                Ok(())
            }
            Request::ReadSparse {
                handle,
                offset,
                len,
                pack,
            } => {
                let rest = self.bytes_of(handle, offset, u64::MAX)?;
                if let Some(hole) = self.endless_holes {
                    let mut body = Vec::new();
                    (HOLE, hole).write(&mut body);
                    self.say(
                        id,
                        &Response::ExtendedReply {
                            body: RemainingBytes(&body),
                        },
                    );
                    return Ok(());
                }
                let zeros = rest.iter().take_while(|byte| **byte == 0).count();
                if zeros >= PAGE || zeros > 0 && zeros == rest.len() {
                    let mut body = Vec::new();
                    (HOLE, zeros as u64).write(&mut body);
                    self.say(
                        id,
                        &Response::ExtendedReply {
                            body: RemainingBytes(&body),
                        },
                    );
                    return Ok(());
                }
                if pack {
                    let read = Request::ReadZstd {
                        handle,
                        offset,
                        len,
                    };
                    return self.serve_blocks(id, read);
                }
                let most = len.min(self.personality.read) as usize;
                match rest.get(..most).unwrap_or(&rest) {
                    [] => Err(StatusCode::EOF),
                    data => {
                        self.say(id, &Response::Data { data });
                        Ok(())
                    }
                }
            }
            _ => Err(StatusCode::OP_UNSUPPORTED),
        }
    }

    fn bytes_of(&mut self, handle: &[u8], offset: u64, len: u64) -> Result<Vec<u8>, StatusCode> {
        let inode = self.inode(handle, false)?;
        let data = match &self.fs.node(inode).map_err(Errno::status)?.kind {
            Kind::File(data) => data.get(offset as usize..).unwrap_or_default(),
            _ => &[],
        };
        Ok(data.get(..len as usize).unwrap_or(data).to_vec())
    }
}
