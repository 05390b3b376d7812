//! Downloads a file in one request: get-file@longhaul.

use sftp::packed::LEAST_FILE;
use sftp::{GetFileReply, Reply, Status, StatusCode};

use super::core::LaneContext;
use super::get::Get;
use super::messages::{refused, remote};
use super::put_whole::{LONGEST_PATH, WHOLE};
use super::task::attributes;
use crate::{DiskRequest, EntryKind, LaneEvent, LocalPath};

impl Get {
    /// Returns true if the file may come in one request, if it is as small as it seems. For an
    /// unknown file the answer says what it is.
    pub(super) fn may_go_whole(&self, core: &LaneContext) -> bool {
        let small = self
            .attrs
            .is_none_or(|a| a.size.is_some_and(|s| s <= WHOLE as u64));
        core.server.get_file
            && !self.plain
            && self.part.is_none()
            && small
            && self.source.len() <= LONGEST_PATH
    }

    /// Sends the request when the job's turn has come.
    pub(super) fn go_whole(&mut self, core: &mut LaneContext) {
        if self.given_up() {
            return;
        }
        self.pending += 1;
        let len = (WHOLE as u32).min(core.server.read);
        let known = self.attrs.and_then(|a| a.size);
        let pack = known.is_none_or(|size| size >= LEAST_FILE) && core.packs_file();
        core.packing.pays.asked(self.size());
        core.send_get_file(self.id, &self.source, len, self.size(), pack);
    }

    pub(super) fn on_get_file(&mut self, core: &mut LaneContext, pack: bool, reply: Reply) {
        match reply {
            Reply::File(file) => {
                if let (true, Some(data)) = (pack, &file.data) {
                    let came = data.len() as u64;
                    core.packed_file(file.packed.map_or(came, u64::from), came);
                }
                self.on_file(core, file);
            }
            Reply::Status(status) => self.on_refused(core, &status),
            _ => {}
        }
    }

    fn on_file(&mut self, core: &mut LaneContext, file: GetFileReply) {
        let attrs = attributes(&file.attrs);
        let Some(data) = file.data else {
            self.plain = true;
            return self.open_if_regular(core, attrs);
        };
        if self.given_up() {
            return;
        }
        if attrs.mode.is_some_and(|m| m & 0o170_000 != 0) && attrs.kind() != EntryKind::File {
            return self.open_if_regular(core, attrs);
        }
        let len = file.packed.map_or(data.len() as u64, u64::from);
        if attrs.size.is_some_and(|size| len < size) {
            // The file shrank meanwhile, or the answer is wrong: READs and a second size decide.
            self.plain = true;
            return self.open_if_regular(core, attrs);
        }
        self.attrs = Some(attrs);
        self.unwritten = len;
        core.unwritten += len;
        self.end = Some(len);
        self.closed = true;
        self.finishing = true;
        // A lookup without a target is not counted as a copied file.
        core.whole += u64::from(self.target != LocalPath::default());
        let request = DiskRequest::StoreTarget {
            job: self.id,
            target: self.target.clone(),
            inplace: self.options.inplace,
            fresh: self.options.fresh,
            keep: self.options.keep.clone(),
            pieces: vec![data],
            packed: file.packed,
            attributes: self.options.kept(attrs),
            preserve: self.options.preserve,
            fsync: self.options.fsync,
            beyond: self.options.beyond.clone(),
            sparse: self.options.sparse,
        };
        self.ask_disk(core, request);
    }

    fn on_refused(&mut self, core: &mut LaneContext, status: &Status) {
        match (status.code, self.attrs) {
            (StatusCode::OP_UNSUPPORTED, _) => {
                self.plain = true;
                self.start(core);
            }
            (_, Some(_)) => self.fail(refused("cannot open the file", status)),
            (_, None) => self.fail(remote(status.to_string())),
        }
    }

    /// Counts the bytes of a whole file that the disk has stored.
    pub(super) fn stored(&mut self, core: &mut LaneContext) {
        let len = std::mem::take(&mut self.unwritten);
        if len > 0 {
            core.unwritten = core.unwritten.saturating_sub(len);
            core.event(LaneEvent::Progress(self.id, len));
        }
    }
}
