//! Reads the ranges without a local match from the far end and writes them to the temporary.

use sftp::Reply;

use super::{GetDelta, Stage};
use crate::delta::ASKED;
use crate::lane::core::{LaneContext, RequestTag};
use crate::lane::messages::refused;
use crate::{DiskRequest, LaneEvent};
use sftp::Request;
use sftp::blocks::SumKind;

impl GetDelta {
    /// Sends the next request: sum requests first, since their answers take longest; false if
    /// nothing can be sent now.
    pub(in crate::lane) fn stream(&mut self, core: &mut LaneContext) -> bool {
        let Some(handle) = self.remote.handle.clone() else {
            return false;
        };
        if self.stage != Stage::Rebuilding || self.remote.closing || self.given_up() {
            return false;
        }
        if self.asked < self.blocks.size && self.asking < ASKED {
            let offset = self.asked;
            let len = self.blocks.segment_end(offset) - offset;
            self.asked += len;
            self.asking += 1;
            let request = Request::Hash {
                handle: handle.as_bytes(),
                offset,
                len: len as u32,
                block: self.blocks.block,
                kind: SumKind::Rolling.name().as_bytes(),
                key: &self.key.clone(),
            };
            let what = RequestTag::Sums {
                offset,
                len,
                rebuilt: false,
            };
            self.send(core, what, &request);
            return true;
        }
        let Some((at, end)) = self.literals.pop_front() else {
            return false;
        };
        let len = (end - at).min(u64::from(core.server.read));
        if at + len < end {
            self.literals.push_front((at + len, end));
        }
        self.reads += 1;
        self.pending += 1;
        let how = (core.packs(len), false);
        core.send_read(self.id, &handle, (at, len as u32), len, how);
        true
    }

    pub(super) fn on_read(&mut self, core: &mut LaneContext, offset: u64, len: u32, reply: Reply) {
        match reply {
            Reply::Data { at, bytes, last } => {
                let got = u64::from(at) + bytes.len() as u64;
                if !self.given_up() && !bytes.is_empty() {
                    self.unwritten += bytes.len() as u64;
                    core.unwritten += bytes.len() as u64;
                    self.arriving.entry(offset).or_default().push(bytes);
                }
                if last {
                    self.reads -= 1;
                    self.arrived(core, offset, len, got);
                }
            }
            Reply::Packed {
                len: unpacked,
                bytes,
            } => {
                self.reads -= 1;
                if !self.given_up() && unpacked > 0 {
                    self.unwritten += u64::from(unpacked);
                    core.unwritten += u64::from(unpacked);
                    let request = DiskRequest::WritePacked {
                        job: self.id,
                        offset,
                        len: unpacked,
                        packed: bytes,
                    };
                    self.ask_disk(core, request);
                }
                self.arrived(core, offset, len, unpacked.into());
            }
            Reply::Status(status) => {
                self.reads -= 1;
                match status.code {
                    // The file has become shorter.
                    sftp::StatusCode::EOF => self.plain = true,
                    _ => self.fail(refused("cannot read", &status)),
                }
            }
            _ => {
                self.reads -= 1;
                self.plain = true;
            }
        }
        core.stream(self.id);
    }

    /// Handles the answer to a READ of `len` at `offset` that brought `got` bytes.
    fn arrived(&mut self, core: &mut LaneContext, offset: u64, len: u32, got: u64) {
        if self.given_up() {
            return;
        }
        if let Some(pieces) = self.arriving.remove(&offset) {
            let job = self.id;
            let request = DiskRequest::Write {
                job,
                offset,
                pieces,
            };
            self.ask_disk(core, request);
        }
        if got == 0 {
            self.plain = true;
        } else if got < u64::from(len) {
            self.literals
                .push_front((offset + got, offset + u64::from(len)));
        }
    }

    /// Handles the copy of `len` bytes of the basis file to `at`.
    pub(super) fn on_copied(&mut self, core: &mut LaneContext, at: u64, len: u64) {
        self.copying -= 1;
        core.event(LaneEvent::Progress(self.id, len));
        core.event(LaneEvent::Reused(self.id, len));
        self.is_there(core, at, len);
    }
}
