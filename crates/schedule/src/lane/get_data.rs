//! Moves the data of a download from the open file to the disk.

use sftp::{Handle, Reply, Request, StatusCode};

use super::core::{LaneContext, RequestTag};
use super::get::Get;
use super::messages::{refused, remote};
use crate::{DiskRequest, LaneEvent};

impl Get {
    /// Sends the next READ, or CLOSE after the last; false if nothing can be sent now.
    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        let Some(handle) = self.handle.clone() else {
            return false;
        };
        if self.closing || self.given_up() {
            return false;
        }
        if let Some((offset, len)) = self.missing.pop_front() {
            self.read(core, &handle, offset, len);
            return true;
        }
        // READs reach beyond the stated size, so the one at the end of the file comes back short;
        // until then nothing is known to follow.
        let limit = self.limit().unwrap_or(u64::MAX);
        let covered = self.next > self.size();
        let all = self.next >= limit;
        if all || self.end.is_some() || (covered && self.reads > 0) {
            if core.server.predict {
                // The next file may open now; a file that has grown is opened again.
                self.close(core);
            }
            return false;
        }
        let offset = self.next;
        let len = u64::from(core.server.read).min(limit - offset) as u32;
        self.next = self.next.saturating_add(len.into());
        self.read(core, &handle, offset, len);
        true
    }

    fn read(&mut self, core: &mut LaneContext, handle: &Handle, offset: u64, len: u32) {
        self.reads += 1;
        self.pending += 1;
        let expected = u64::from(len).min(self.size().saturating_sub(offset));
        let how = (core.packs(expected), self.sparse && core.server.sparse);
        core.send_read(self.id, handle, (offset, len), expected, how);
    }

    pub(super) fn close(&mut self, core: &mut LaneContext) {
        let handle = self.handle.clone();
        if let (Some(handle), false) = (handle, self.closing) {
            self.closing = true;
            let handle = handle.as_bytes();
            self.send(core, RequestTag::Close, &Request::Close { handle });
            core.closes(self.id);
        }
    }

    pub(super) fn on_read(&mut self, core: &mut LaneContext, offset: u64, len: u32, reply: Reply) {
        match reply {
            Reply::Data { at, bytes, last } => {
                let got = at + bytes.len() as u32;
                if !self.given_up() && !bytes.is_empty() {
                    let n = bytes.len() as u64;
                    self.unwritten += n;
                    core.unwritten += n;
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
                    let n = u64::from(unpacked);
                    self.unwritten += n;
                    core.unwritten += n;
                    let request = DiskRequest::WritePacked {
                        job: self.id,
                        offset,
                        len: unpacked,
                        packed: bytes,
                    };
                    self.ask_disk(core, request);
                }
                self.arrived(core, offset, len, unpacked);
            }
            Reply::Hole { len: hole } => {
                self.reads -= 1;
                self.on_hole(core, offset, len, hole);
            }
            Reply::Status(status) => {
                self.reads -= 1;
                if status.code == StatusCode::EOF {
                    self.ends(offset);
                } else {
                    self.fail(refused("cannot read", &status));
                }
            }
            _ => {}
        }
        if self.end.is_none() || !self.missing.is_empty() {
            core.stream(self.id);
        }
    }

    /// Handles the answer to a READ of `len` at `offset` that brought `got` bytes.
    fn arrived(&mut self, core: &mut LaneContext, offset: u64, len: u32, got: u32) {
        if self.given_up() {
            return;
        }
        if let Some(pieces) = self.arriving.remove(&offset) {
            self.ask_disk(
                core,
                DiskRequest::Write {
                    job: self.id,
                    offset,
                    pieces,
                },
            );
        }
        let end = offset.saturating_add(got.into());
        if got == 0 {
            self.ends(offset);
        } else if end >= self.most(core) && self.limit().is_none() {
            self.ends_beyond(core, end);
        } else if got < len {
            // A file without a stated size, as in /proc, ends where the server reports its end.
            if self.size() > 0 && end >= self.size() {
                self.ends(end);
            } else {
                self.missing.push_back((end, len - got));
            }
        }
    }

    /// Returns the number of bytes at which the copy ends although the server sends more than the
    /// stated size. A server that answers READs forever would fill the disk.
    fn most(&self, core: &LaneContext) -> u64 {
        match self.size() {
            0 => core.config.unstated,
            size => size.saturating_add(core.config.growth.max(size / 8)),
        }
    }

    /// Ends the file when more than [`Get::most`] has come.
    fn ends_beyond(&mut self, core: &mut LaneContext, end: u64) {
        if self.end.is_some() {
            return;
        }
        match self.size() {
            0 => {
                let what = "the server reports no size for the file and sends more than";
                self.fail(remote(format!("{what} {} bytes", core.config.unstated)));
            }
            size => {
                let text = format!(
                    "the file grew from {size} bytes faster than it was read: the copy has its \
                     first {end} bytes"
                );
                core.event(LaneEvent::Warning(self.id, text));
                self.ends(end);
            }
        }
    }

    /// Handles the answer to a READ of `len` at `offset`: a hole of `hole` bytes.
    fn on_hole(&mut self, core: &mut LaneContext, offset: u64, len: u32, hole: u64) {
        if self.given_up() {
            return;
        }
        if hole == 0 {
            return self.fail(remote("the server reports a hole without a length"));
        }
        let end = offset.saturating_add(len.into());
        let behind = offset.saturating_add(hole);
        self.skip(core, offset, hole.min(len.into()));
        if behind >= self.most(core) && self.size() <= offset && self.limit().is_none() {
            return self.ends_beyond(core, behind.min(end));
        }
        if behind < end && self.size() > 0 && behind >= self.size() {
            self.ends(behind);
        } else if behind < end {
            self.missing.push_back((behind, (end - behind) as u32));
        }
        // Skips the hole beyond the requested range, up to the end of this part or of the file as
        // far as known.
        let known = self.limit().unwrap_or(u64::MAX).min(self.size());
        let to = behind.min(known);
        if to > self.next && self.end.is_none() {
            let from = std::mem::replace(&mut self.next, to);
            self.skip(core, from, to - from);
        }
    }

    fn skip(&mut self, core: &mut LaneContext, offset: u64, len: u64) {
        let job = self.id;
        self.ask_disk(core, DiskRequest::Skip { job, offset, len });
    }

    fn ends(&mut self, at: u64) {
        let end = self.end.map_or(at, |e| e.min(at));
        self.end = Some(end);
        self.missing.retain(|(offset, _)| *offset < end);
    }
}
