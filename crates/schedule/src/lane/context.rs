//! State that the jobs of a lane share.

use std::collections::VecDeque;
use std::time::Instant;

use sftp::{
    ExpectedEntry, Handle, ListedEntry, Reply, Request, ServerInfo, ServerLimits, SftpClient,
};
use wire::PayloadBlock;

use super::RefusedOperations;
use super::config::LaneConfig;
use super::packing::LaneCompressibility;
use super::pipeline::RequestPipeline;
use super::queues::{LaneQueueKind, LaneQueues};
use super::request_purpose::RequestPurpose;
use super::server::{ServerCapabilities, ServerProfile};
use crate::{DiskRequest, JobId, LaneEvent, RemotePath};

/// Requests in flight, queues towards disk and driver, order of the jobs, and what is known of the
/// server.
#[derive(Debug)]
pub(super) struct LaneContext {
    config: LaneConfig,
    server: ServerProfile,
    pipeline: RequestPipeline,
    turns: LaneQueues,
    packing: LaneCompressibility,
    disk: VecDeque<DiskRequest>,
    events: VecDeque<LaneEvent>,
    /// Bytes that the disk side is reading for upload.
    reading: u64,
    /// Received bytes that the disk has not confirmed.
    unwritten: u64,
    /// True if the last OPEN of a target returned a handle.
    opens_succeed: bool,
    /// Number of the next tree listing.
    next_tree: u32,
    /// Listings are paused: no further parts are requested.
    lists_held: bool,
    stalls_disk: u64,
    /// Number of files transferred in one request each.
    whole: u64,
    /// A directory, and the owner and group of files that are created in it.
    owner_in: Option<(Vec<u8>, (u32, u32))>,
    /// Operations that the server is known to refuse.
    refusals: RefusedOperations,
    /// True once the lane's owner was informed that files are written in place.
    told_in_place: bool,
}

impl LaneContext {
    pub(super) fn new(config: LaneConfig, now: Instant) -> Self {
        Self {
            server: ServerProfile::default(),
            pipeline: RequestPipeline::new(&config, now),
            turns: LaneQueues::default(),
            packing: LaneCompressibility::new(config.pack, config.slow),
            disk: VecDeque::new(),
            events: VecDeque::new(),
            reading: 0,
            unwritten: 0,
            opens_succeed: false,
            next_tree: 0,
            lists_held: false,
            stalls_disk: 0,
            whole: 0,
            owner_in: None,
            refusals: config.refusals,
            told_in_place: false,
            config,
        }
    }

    /// Sets the time.
    pub(super) fn at(&mut self, now: Instant) {
        self.pipeline.at(now);
    }

    pub(super) fn config(&self) -> &LaneConfig {
        &self.config
    }

    pub(super) fn server(&self) -> &ServerProfile {
        &self.server
    }

    /// Returns true if the server has this capability.
    pub(super) fn can(&self, capability: ServerCapabilities) -> bool {
        self.server.can(capability)
    }

    /// Returns the entry to name in a request, if the server checks it.
    pub(super) fn expects(&self, entry: ExpectedEntry) -> Option<ExpectedEntry> {
        let entry = match self.can(ServerCapabilities::EXPECT_LISTED) {
            true => entry,
            false => ExpectedEntry {
                listed: ListedEntry::ANY,
                ..entry
            },
        };
        let checks = self.can(ServerCapabilities::EXPECT) && !entry.is_any();
        checks.then_some(entry)
    }

    /// Returns true if the server executes requests in order.
    pub(super) fn in_order(&self) -> bool {
        self.can(ServerCapabilities::IN_ORDER)
    }

    /// Returns true if handles are predicted.
    pub(super) fn predicts(&self) -> bool {
        self.can(ServerCapabilities::PREDICT)
    }

    pub(super) fn pipeline(&self) -> &RequestPipeline {
        &self.pipeline
    }

    pub(super) fn pipeline_mut(&mut self) -> &mut RequestPipeline {
        &mut self.pipeline
    }

    pub(super) fn turns(&self) -> &LaneQueues {
        &self.turns
    }

    pub(super) fn turns_mut(&mut self) -> &mut LaneQueues {
        &mut self.turns
    }

    pub(super) fn packing(&self) -> &LaneCompressibility {
        &self.packing
    }

    pub(super) fn packing_mut(&mut self) -> &mut LaneCompressibility {
        &mut self.packing
    }

    /// Returns the source of random bytes.
    pub(super) fn random(&mut self) -> &mut dyn FnMut(&mut [u8]) {
        &mut *self.config.random
    }

    /// Returns the name of a temporary beside `path`, made from `tag` if there is one.
    pub(super) fn temp_name(&mut self, path: &[u8], tag: Option<u64>) -> Vec<u8> {
        match tag {
            Some(tag) => sftp::tagged_name(path, tag),
            None => sftp::temp_name(path, self.random()),
        }
    }

    /// Adopts the capabilities in VERSION and requests those that it leaves open.
    pub(super) fn set_up(&mut self, info: &ServerInfo) {
        self.server = ServerProfile::new(&self.config, info);
        if self.can(ServerCapabilities::LIMITS) && info.limits.is_none() {
            let request = Request::Limits {};
            self.pipeline
                .request(None, RequestPurpose::Limits, &request, 0);
        }
        let told = self.config.told;
        if self.can(ServerCapabilities::ATTRIBUTES) && !told.is_empty() {
            let request = Request::Attributes { told };
            self.pipeline
                .request(None, RequestPurpose::ExtraAttributes, &request, 0);
        }
        for RemotePath(path) in std::mem::take(&mut self.config.roots) {
            self.request_root(&path);
        }
    }

    /// Has the server follow no symlink below `root` from now on, if it can.
    pub(super) fn request_root(&mut self, root: &[u8]) {
        if self.can(ServerCapabilities::HOLD_ROOT) {
            let request = Request::HoldRoot { path: root };
            let tag = RequestPurpose::HoldRoot;
            self.pipeline.request(None, tag, &request, 0);
        }
    }

    /// Notes a root for [`LaneContext::set_up`].
    pub(super) fn add_root(&mut self, root: RemotePath) {
        self.config.roots.push(root);
    }

    /// Takes over the limits that the server has answered.
    pub(super) fn apply_limits(&mut self, limits: ServerLimits) {
        self.server.apply(&self.config, limits);
    }

    /// Sends a request for `job`.
    pub(super) fn send(&mut self, job: JobId, what: RequestPurpose, request: &Request<'_>) {
        self.pipeline.request(Some(job), what, request, 0);
    }

    /// Sends a READ whose answer is expected to bring `expected` bytes, and may be compressed or
    /// report a hole.
    pub(super) fn send_read(
        &mut self,
        job: JobId,
        handle: &Handle,
        (offset, len): (u64, u32),
        expected: u64,
        (pack, sparse): (bool, bool),
    ) {
        let handle = handle.as_bytes();
        let request = match (sparse, pack) {
            (true, pack) => Request::ReadSparse {
                handle,
                offset,
                len,
                pack,
            },
            (false, true) => Request::ReadZstd {
                handle,
                offset,
                len,
            },
            (false, false) => Request::Read {
                handle,
                offset,
                len,
            },
        };
        let what = match pack {
            true => RequestPurpose::ReadPacked { offset, len },
            false => RequestPurpose::Read { offset, len },
        };
        self.pipeline.request(Some(job), what, &request, expected);
    }

    /// Requests a whole file, expected to bring `expected` bytes, possibly compressed (`pack`).
    pub(super) fn send_get_file(
        &mut self,
        job: JobId,
        path: &[u8],
        len: u32,
        expected: u64,
        pack: bool,
    ) {
        let request = match pack {
            true => Request::GetFileZstd { path, len },
            false => Request::GetFile { path, len },
        };
        let what = RequestPurpose::GetFile { pack };
        self.pipeline.request(Some(job), what, &request, expected);
    }

    /// Sends a SYMLINK in the server's argument order.
    pub(super) fn send_symlink(&mut self, job: JobId, step: u8, link: &[u8], points_to: &[u8]) {
        let what = RequestPurpose::Step(step);
        self.pipeline.symlink(job, what, link, points_to);
    }

    /// Returns true if a small request may be sent.
    pub(super) fn has_room(&mut self) -> bool {
        self.pipeline.has_room(self.reading)
    }

    /// Returns true if more upload data may be read from the disk.
    pub(super) fn may_read_disk(&mut self) -> bool {
        let piece = self.server.write_length();
        self.pipeline.may_read_disk(self.reading, piece)
    }

    /// Returns true if another READ may be sent.
    pub(super) fn may_read_remote(&mut self) -> bool {
        if !self.pipeline.may_read_remote(self.reading) {
            return false;
        }
        let bytes = self.pipeline.bytes();
        let bound = bytes.target() + self.config.unwritten;
        let disk = self.unwritten + bytes.in_flight() < bound;
        self.stalls_disk += u64::from(!disk);
        disk
    }

    /// Returns true if an OPEN may be sent.
    pub(super) fn may_open(&self) -> bool {
        let most = self.server.open_files();
        self.turns.may_open((!self.predicts()).then_some(most))
    }

    /// Records that `job` opens a file and holds a handle until [`LaneContext::closes`]. Returns
    /// the predicted handle, if handles are predicted: the lowest entry of the server's empty
    /// handle table.
    pub(super) fn opens(&mut self, job: JobId) -> Option<Handle> {
        let predicts = self.predicts();
        self.turns.opens(job, predicts);
        predicts.then(|| Handle::openssh(0))
    }

    /// Records that the CLOSE of `job` was sent or its OPEN failed.
    pub(super) fn closes(&mut self, job: JobId) {
        self.turns.closes(job);
    }

    /// Returns true if the last OPEN of a target returned a handle.
    pub(super) fn opens_succeed(&self) -> bool {
        self.opens_succeed
    }

    /// Records if an OPEN of a target returned a handle.
    pub(super) fn note_open(&mut self, succeeded: bool) {
        self.opens_succeed = succeeded;
    }

    /// Queues `job` for opening its file.
    pub(super) fn queue_open(&mut self, job: JobId) {
        self.turns.push(LaneQueueKind::Openers, job);
    }

    /// Queues `job` for moving data.
    pub(super) fn stream(&mut self, job: JobId) {
        self.turns.stream(job);
    }

    /// Returns true if the next block of `len` bytes is to be compressed.
    pub(super) fn packs(&mut self, len: u64) -> bool {
        let (can, long) = (self.can(ServerCapabilities::ZSTD), self.pipeline.is_long());
        self.packing.packs(len, can, long)
    }

    /// Returns true if the first bytes of a file are to be compressed, should more follow. The
    /// length is not known yet. Incompressible data are not tried again here, since most files have
    /// no more bytes.
    pub(super) fn packs_first(&mut self) -> bool {
        !self.packing.is_in_vain() && self.packs(0)
    }

    /// Returns true if a small file is to be compressed.
    pub(super) fn packs_file(&mut self) -> bool {
        self.can(ServerCapabilities::ZSTD_FILES) && self.packs(0)
    }

    /// Returns the length of an uncompressed WRITE at `offset`, where `len` bytes were planned: up
    /// to `most`.
    pub(super) fn longer(&mut self, offset: u64, len: u64, most: u64) -> u64 {
        // One request may exceed the pace, so it must be short if a pace is set.
        let long = self
            .reading
            .saturating_add(self.server.fast_write_length().into());
        let fits = self.pipeline.has_pace_for(long);
        let rate = self.pipeline.bytes().rate().filter(|_| fits);
        let piece = self.server.fast_piece(offset, rate).min(most);
        self.packing.asked(piece.saturating_sub(len));
        piece
    }

    /// Returns an empty block with room for a WRITE header and `len` bytes of file data.
    pub(super) fn block(&self, handle: usize, len: usize) -> PayloadBlock {
        self.block_behind(SftpClient::write_reserve(handle), len)
    }

    /// Returns an empty block for `len` bytes behind the header of a plain or compressed WRITE.
    pub(super) fn block_to_pack(&self, handle: usize, len: usize) -> PayloadBlock {
        self.block_behind(SftpClient::write_zstd_reserve(handle), len)
    }

    /// Returns an empty block for `len` bytes behind `reserve` bytes.
    pub(super) fn block_behind(&self, reserve: usize, len: usize) -> PayloadBlock {
        PayloadBlock::new(&self.config.pool, self.config.slot, reserve, len)
    }

    /// Handles an answer, or a part of one, to a READ that might be compressed.
    pub(super) fn answered_packed(&mut self, reply: &Reply) {
        self.packing.answered(reply);
    }

    /// Returns the number of bytes that the disk side is reading.
    pub(super) fn reading(&self) -> u64 {
        self.reading
    }

    /// Counts `len` bytes that the disk side reads, or that are held back.
    pub(super) fn begin_reading(&mut self, len: u64) {
        self.reading += len;
    }

    /// Ends [`LaneContext::begin_reading`].
    pub(super) fn end_reading(&mut self, len: u64) {
        self.reading = self.reading.saturating_sub(len);
    }

    /// Returns the number of received bytes that the disk has not confirmed.
    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Counts `len` received bytes.
    pub(super) fn received(&mut self, len: u64) {
        self.unwritten += len;
    }

    /// Ends [`LaneContext::received`].
    pub(super) fn wrote(&mut self, len: u64) {
        self.unwritten = self.unwritten.saturating_sub(len);
    }

    /// Returns the number of a new tree listing.
    pub(super) fn tree_number(&mut self) -> u32 {
        let number = self.next_tree;
        self.next_tree = number.wrapping_add(1);
        number
    }

    /// Returns true if listings are paused.
    pub(super) fn lists_held(&self) -> bool {
        self.lists_held
    }

    /// Pauses or resumes listings; returns the state before.
    pub(super) fn hold_lists(&mut self, hold: bool) -> bool {
        std::mem::replace(&mut self.lists_held, hold)
    }

    /// Returns the number of times that the disk kept READs back.
    pub(super) fn stalls_disk(&self) -> u64 {
        self.stalls_disk
    }

    /// Returns the number of files transferred in one request each.
    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// Counts a file transferred in one request.
    pub(super) fn count_whole(&mut self) {
        self.whole += 1;
    }

    /// Returns owner and group of new files in `dir`, if known.
    pub(super) fn owner_in(&self, dir: &[u8]) -> Option<(u32, u32)> {
        let (known, owner) = self.owner_in.as_ref()?;
        (known == dir).then_some(*owner)
    }

    /// Records owner and group of new files in `dir`.
    pub(super) fn set_owner_in(&mut self, dir: Vec<u8>, owner: (u32, u32)) {
        self.owner_in = Some((dir, owner));
    }

    /// Returns the operations that the server is known to refuse.
    pub(super) fn refusals(&self) -> RefusedOperations {
        self.refusals
    }

    /// Adds refusals that another lane has found.
    pub(super) fn note_refusals(&mut self, refusals: RefusedOperations) {
        self.refusals = self.refusals.and(refusals);
    }

    /// Records and reports operations that the server refuses for every file, or for those of a
    /// directory, found by `job`, with the reason `why`.
    pub(super) fn learn(&mut self, job: JobId, found: RefusedOperations, why: &str) {
        let all = self.refusals.and(found);
        if all != self.refusals {
            let everywhere = RefusedOperations {
                temporaries: all.temporaries && !self.refusals.temporaries,
                renames: all.renames && !self.refusals.renames,
                ..found
            };
            self.refusals = all;
            self.told_in_place |= found.in_place_somewhere();
            self.event(LaneEvent::Refused(job, everywhere, why.to_owned()));
        }
    }

    /// Reports that `job` is written in place because of known refusals.
    pub(super) fn tell_in_place(&mut self, job: JobId) {
        if !std::mem::replace(&mut self.told_in_place, true) {
            let refusals = self.refusals;
            self.event(LaneEvent::Refused(job, refusals, String::new()));
        }
    }

    /// Queues a request for the disk side.
    pub(super) fn ask_disk(&mut self, request: DiskRequest) {
        self.disk.push_back(request);
    }

    /// Returns the next request for the disk side.
    pub(super) fn poll_disk(&mut self) -> Option<DiskRequest> {
        self.disk.pop_front()
    }

    /// Queues an event for the owner of the lane.
    pub(super) fn event(&mut self, event: LaneEvent) {
        if let LaneEvent::Progress(_, n) = event {
            self.packing.confirm(self.pipeline.now(), n);
        }
        self.events.push_back(event);
    }

    /// Returns the next event for the owner of the lane.
    pub(super) fn poll_event(&mut self) -> Option<LaneEvent> {
        self.events.pop_front()
    }

    /// Returns true if there is an event or a disk request.
    pub(super) fn has_news(&self) -> bool {
        !self.disk.is_empty() || !self.events.is_empty()
    }
}
