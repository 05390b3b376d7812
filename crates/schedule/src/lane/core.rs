use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use sftp::{Client, Handle, Request, RequestId};
use wire::Block;

use super::Refusals;
use super::config::{LaneConfig, Server};
use super::packing::Packing;
use crate::depth::RequestStamp;
use crate::{DiskRequest, InflightLimit, JobId, LaneEvent};

/// State that the jobs of a lane share: the SFTP client with its requests in flight, the queues
/// towards disk and driver, and the order in which jobs open and stream.
#[derive(Debug)]
pub(super) struct LaneContext {
    pub(super) config: LaneConfig,
    pub(super) client: Client,
    pub(super) server: Server,
    pub(super) now: Instant,
    sent: BTreeMap<RequestId, SentRequest>,
    /// Time of the last answer.
    answered_at: Instant,
    pub(super) bytes: InflightLimit,
    pub(super) requests: InflightLimit,
    /// Bytes that the disk side is reading for upload.
    pub(super) reading: u64,
    /// Received bytes that the disk has not confirmed.
    pub(super) unwritten: u64,
    /// Number of sources whose OPEN has not been sent and whose first bytes the disk side reads or
    /// holds.
    pub(super) prefetched: usize,
    pub(super) disk: VecDeque<DiskRequest>,
    pub(super) events: VecDeque<LaneEvent>,
    /// With predicted handles: the job between its OPEN and its CLOSE; no other job may open.
    turn: Option<JobId>,
    /// Number of handles that are open or opening.
    open: usize,
    /// True if the last OPEN of a target returned a handle.
    pub(super) opens_succeed: bool,
    /// Jobs that wait to open a file.
    pub(super) openers: VecDeque<JobId>,
    /// Jobs that are sent in one request without a handle.
    pub(super) wholes: VecDeque<JobId>,
    /// Jobs with data to read or write; the first is served until it has none.
    pub(super) streams: VecDeque<JobId>,
    /// Number of the next tree listing.
    pub(super) next_tree: u32,
    /// Listings are paused: no further parts are requested.
    pub(super) lists_held: bool,
    pub(super) stalls_depth: u64,
    pub(super) stalls_disk: u64,
    /// Bytes that may still be requested or sent, if the owner sets a pace.
    pub(super) pace: Option<u64>,
    /// Total bytes requested and sent.
    pub(super) paced: u64,
    /// Lowest response time of a READ or WRITE since it was last taken.
    pub(super) answer_time: Option<Duration>,
    pub(super) packing: Packing,
    /// Number of files transferred in one request each.
    pub(super) whole: u64,
    /// A directory, and the owner and group of files that are created in it.
    pub(super) owner_in: Option<(Vec<u8>, (u32, u32))>,
    /// Operations that the server is known to refuse.
    pub(super) refusals: Refusals,
    /// The owner of the lane has been told that files are written in place.
    pub(super) told_in_place: bool,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) job: Option<JobId>,
    pub(super) what: RequestTag,
    at: Instant,
    /// Number of requests in flight when this one was sent.
    ahead: u64,
    bytes: RequestStamp,
    request: RequestStamp,
}

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestTag {
    Limits,
    /// Request for additional attributes in later ATTRS.
    Told,
    /// LSTAT or STAT of the job's path.
    Look,
    /// STAT through a symlink.
    Follow,
    Resolve,
    Open,
    Fstat,
    /// Query of the size of a file that ended early.
    SizeAgain,
    Read {
        offset: u64,
        len: u32,
    },
    /// READ whose answer may be compressed.
    ReadPacked {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        len: u64,
    },
    /// Upload of a whole file (put-file@longhaul).
    PutFile {
        len: u64,
    },
    /// Download of a whole file (get-file@longhaul).
    GetFile {
        pack: bool,
    },
    Attributes,
    Owner,
    /// Query of a new temporary's owner.
    OwnerIs,
    /// Change of the temporary's owner and group to those of the replaced file (`KeepOwner`), or of
    /// its group only (`KeepGroup`).
    KeepOwner,
    KeepGroup,
    /// Setting all metadata by set-metadata@longhaul.
    Metadata,
    /// Setting the size, if it must be exact.
    Size,
    Mode,
    Sync,
    Close,
    /// Step of [`super::replace::Replace`].
    Replace,
    /// fsync-set@longhaul of the directory that contains the renamed file.
    SyncName,
    RemoveTemp,
    Readdir,
    /// Part of a tree listing.
    Tree,
    /// hash@longhaul of the basis file, or of the `rebuilt` one.
    Sums {
        offset: u64,
        len: u64,
        rebuilt: bool,
    },
    /// Copy between open files (copy-data).
    Copied {
        len: u64,
    },
    /// The only request of a job, or its n-th step.
    Step(u8),
}

impl RequestTag {
    /// Returns the request's name in the SFTP draft.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits@openssh.com",
            Self::Told => "attributes@longhaul",
            Self::Look | Self::Follow => "STAT",
            Self::Resolve => "REALPATH",
            Self::Open => "OPEN",
            Self::Fstat | Self::OwnerIs | Self::SizeAgain => "FSTAT",
            Self::Read { .. } | Self::ReadPacked { .. } => "READ",
            Self::Write { .. } => "WRITE",
            Self::PutFile { .. } => "put-file@longhaul",
            Self::GetFile { .. } => "get-file@longhaul",
            Self::Attributes
            | Self::Owner
            | Self::KeepOwner
            | Self::KeepGroup
            | Self::Size
            | Self::Mode => "SETSTAT",
            Self::Metadata => "set-metadata@longhaul",
            Self::Sync | Self::SyncName => "fsync@openssh.com",
            Self::Close => "CLOSE",
            Self::RemoveTemp => "REMOVE",
            Self::Replace => "RENAME",
            Self::Readdir => "READDIR",
            Self::Tree => "list-tree@longhaul",
            Self::Sums { .. } => "hash@longhaul",
            Self::Copied { .. } => "copy-data",
            Self::Step(_) => "request",
        }
    }

    /// Returns true if the request may take long, since its work grows with the file.
    pub(super) fn takes_time(self) -> bool {
        matches!(
            self,
            Self::Sync | Self::SyncName | Self::Sums { .. } | Self::Copied { .. } | Self::Replace
        )
    }
}

/// Weight of a request in bytes, in addition to its data.
const OVERHEAD: u64 = 64;
/// Number of bytes that may be in flight beyond the depth before another file is opened.
const AHEAD: u64 = 2 << 20;
/// Number of bytes of small files that may be in flight beyond the capacity of the path. Such
/// requests wait in sftp-server, which moves all of them in memory repeatedly: 17,900 files of 4
/// KiB per second with 256 requests (270 KiB) waiting, 11,100 with 1,024, 2,000 with 4,096
/// (docs/design/0003-small-files.md).
const SMALL_AHEAD: u64 = 640 << 10;
/// Latency from which saving slow-start time pays.
const LONG: Duration = Duration::from_millis(10);
/// Files count as small if the mean request moves fewer bytes.
const SMALL: u64 = 16 << 10;
/// Rate in bytes per second at which both ends rebuild a file by delta: hashed, copied and hashed
/// again (docs/design/0009-delta.md).
const REBUILT: f64 = 300e6;
/// Number of bytes after which a lane's rate counts as known.
const MEASURED: u64 = 64 << 20;
/// Number of bytes that the disk side may read beyond the bytes that may be in flight.
const READ_AHEAD: u64 = 1 << 20;

impl LaneContext {
    pub(super) fn new(config: LaneConfig, now: Instant) -> Self {
        let options = sftp::Options {
            symlink_order: config.symlink_order,
            max_message: 0,
        };
        Self {
            client: Client::new(options),
            server: Server::default(),
            now,
            sent: BTreeMap::new(),
            answered_at: now,
            bytes: InflightLimit::new(config.bytes),
            requests: InflightLimit::new(config.requests),
            reading: 0,
            unwritten: 0,
            prefetched: 0,
            disk: VecDeque::new(),
            events: VecDeque::new(),
            turn: None,
            open: 0,
            opens_succeed: false,
            openers: VecDeque::new(),
            wholes: VecDeque::new(),
            streams: VecDeque::new(),
            next_tree: 0,
            lists_held: false,
            stalls_depth: 0,
            stalls_disk: 0,
            pace: None,
            paced: 0,
            answer_time: None,
            packing: Packing::new(config.slow),
            whole: 0,
            owner_in: None,
            refusals: config.refusals,
            told_in_place: false,
            config,
        }
    }

    /// Sends a request for `job`.
    pub(super) fn send(&mut self, job: JobId, what: RequestTag, request: &Request<'_>) {
        let id = self.client.request(request);
        self.sent(id, Some(job), what, 0);
    }

    /// Asks the server for additional attributes in later ATTRS.
    pub(super) fn send_told(&mut self) {
        let told = self.config.told;
        if self.server.attributes && !told.is_empty() {
            let id = self.client.request(&Request::Attributes { told });
            self.sent(id, None, RequestTag::Told, 0);
        }
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
            true => RequestTag::ReadPacked { offset, len },
            false => RequestTag::Read { offset, len },
        };
        let id = self.client.request(&request);
        self.sent(id, Some(job), what, expected);
    }

    /// Sends a WRITE.
    pub(super) fn send_write(&mut self, job: JobId, handle: &Handle, offset: u64, block: Block) {
        let len = block.len() as u64;
        let id = self.client.write(handle, offset, block);
        self.sent(id, Some(job), RequestTag::Write { offset, len }, len);
    }

    /// Sends a whole file of `len` bytes with its data in `block`.
    pub(super) fn send_put_file(
        &mut self,
        job: JobId,
        request: &Request<'_>,
        len: u64,
        block: Block,
    ) {
        let data = block.len() as u64;
        let id = self.client.request_with(request, block);
        self.sent(id, Some(job), RequestTag::PutFile { len }, data);
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
        let id = self.client.request(&match pack {
            true => Request::GetFileZstd { path, len },
            false => Request::GetFile { path, len },
        });
        self.sent(id, Some(job), RequestTag::GetFile { pack }, expected);
    }

    /// Sends a SYMLINK in the server's argument order.
    pub(super) fn send_symlink(&mut self, job: JobId, step: u8, link: &[u8], points_to: &[u8]) {
        let id = self.client.symlink(link, points_to);
        self.sent(id, Some(job), RequestTag::Step(step), 0);
    }

    /// Asks for the server's limits.
    pub(super) fn send_limits(&mut self) {
        let id = self.client.request(&Request::Limits {});
        self.sent(id, None, RequestTag::Limits, 0);
    }

    pub(super) fn sent(&mut self, id: RequestId, job: Option<JobId>, what: RequestTag, data: u64) {
        self.paced += data + OVERHEAD;
        self.pace = self.pace.map(|left| left.saturating_sub(data + OVERHEAD));
        let sent = SentRequest {
            job,
            what,
            at: self.now,
            ahead: self.requests.in_flight(),
            bytes: self.bytes.on_sent(self.now, data + OVERHEAD),
            request: self.requests.on_sent(self.now, 1),
        };
        self.sent.insert(id, sent);
    }

    /// Returns job and purpose of the request that a reply answers; `last` completes the request.
    pub(super) fn answered(
        &mut self,
        id: RequestId,
        last: bool,
    ) -> Option<(Option<JobId>, RequestTag)> {
        self.answered_at = self.now;
        if !last {
            return self.sent.get(&id).map(|s| (s.job, s.what));
        }
        let sent = self.sent.remove(&id)?;
        let moves = |what| {
            use RequestTag as W;
            matches!(
                what,
                W::Read { .. } | W::ReadPacked { .. } | W::Write { .. }
            )
        };
        if moves(sent.what)
            || matches!(
                sent.what,
                RequestTag::PutFile { .. } | RequestTag::GetFile { .. }
            )
        {
            let took = self.now.saturating_duration_since(sent.at);
            self.answer_time = Some(self.answer_time.map_or(took, |least| least.min(took)));
        }
        self.bytes.on_answered(self.now, sent.bytes);
        self.requests.on_answered(self.now, sent.request);
        Some((sent.job, sent.what))
    }

    /// Returns the first unanswered request: its job, its purpose, the time of the last answer (or
    /// of its sending, if later), and the number of requests in flight before it.
    pub(super) fn first_unanswered(&self) -> Option<(Option<JobId>, RequestTag, Instant, u64)> {
        let (_, sent) = self.sent.first_key_value()?;
        Some((
            sent.job,
            sent.what,
            sent.at.max(self.answered_at),
            sent.ahead,
        ))
    }

    /// Withdraws unsent WRITEs of `job`; returns their number.
    pub(super) fn withdraw_writes(&mut self, job: JobId) -> usize {
        if self.client.queued() == 0 {
            return 0;
        }
        let of_job =
            |s: &SentRequest| s.job == Some(job) && matches!(s.what, RequestTag::Write { .. });
        let writes = self.sent.iter().filter(|(_, s)| of_job(s));
        let ids: Vec<RequestId> = writes.map(|(id, _)| *id).collect();
        let mut withdrawn = 0;
        for id in ids {
            if self.client.withdraw(id)
                && let Some(sent) = self.sent.remove(&id)
            {
                self.bytes.on_withdrawn(sent.bytes);
                self.requests.on_withdrawn(sent.request);
                withdrawn += 1;
            }
        }
        withdrawn
    }

    /// Returns true if the pace leaves room for more bytes.
    fn is_in_pace(&self) -> bool {
        self.pace.is_none_or(|left| left > self.reading)
    }

    /// Returns true if sending a file takes longer than finding unchanged parts by hashing: the
    /// path is long, or its measured rate is low.
    pub(super) fn sends_slower_than_hashing(&self) -> bool {
        let measured = self.paced >= MEASURED;
        let slow = measured && self.bytes.rate().is_some_and(|rate| rate < REBUILT);
        slow || self.is_long()
    }

    /// Returns true if the path is so long that the number of bytes matters from the start.
    pub(super) fn is_long(&self) -> bool {
        self.bytes.latency().is_some_and(|latency| latency >= LONG)
    }

    /// Returns true if a small request may be sent.
    pub(super) fn has_room(&mut self) -> bool {
        if !self.is_in_pace() {
            return false;
        }
        let requests = self.requests.in_flight() < self.requests.target();
        let flying = self.bytes.in_flight() + self.reading;
        let bytes = flying < self.bytes.target() + AHEAD;
        if !self.note(requests, bytes) {
            return false;
        }
        let small = flying < self.requests.in_flight() * SMALL;
        // Capacity of the path: its best so far, or the expected amount of the next round trip.
        let holds = match self.bytes.latency() {
            Some(latency) if latency >= LONG => self.bytes.target_of(1.0).max(self.bytes.soon()),
            // On a short path, one burst of answers spans many round trips.
            _ => self.bytes.target_of(2.0),
        };
        let may = !small || flying < holds + SMALL_AHEAD;
        self.stalls_depth += u64::from(!may);
        may
    }

    /// Returns true if more upload data may be read from the disk.
    pub(super) fn may_read_disk(&mut self) -> bool {
        if !self.is_in_pace() {
            return false;
        }
        // Each disk read becomes a WRITE, and a server may drop requests beyond its queue.
        let coming = self.reading.div_ceil(u64::from(self.server.write.max(1)));
        let requests = self.requests.in_flight() + coming < self.requests.target();
        let bytes = self.bytes.in_flight() < self.bytes.target()
            && self.bytes.in_flight() + self.reading < self.bytes.target() + READ_AHEAD;
        self.note(requests, bytes)
    }

    /// Returns true if another READ may be sent.
    pub(super) fn may_read_remote(&mut self) -> bool {
        if !self.is_in_pace() {
            return false;
        }
        let requests = self.requests.in_flight() < self.requests.target();
        let bytes = self.bytes.in_flight() < self.bytes.target();
        if !self.note(requests, bytes) {
            return false;
        }
        let bound = self.bytes.target() + self.config.unwritten;
        let disk = self.unwritten + self.bytes.in_flight() < bound;
        self.stalls_disk += u64::from(!disk);
        disk
    }

    fn note(&mut self, requests: bool, bytes: bool) -> bool {
        if !requests {
            self.requests.note_blocked();
        }
        if !bytes {
            self.bytes.note_blocked();
        }
        let may = requests && bytes;
        self.stalls_depth += u64::from(!may);
        may
    }

    /// Returns true if an OPEN may be sent.
    pub(super) fn may_open(&self) -> bool {
        if self.server.predict {
            self.turn.is_none()
        } else {
            self.open < self.server.open_files
        }
    }

    /// Records that `job` opens a file and holds a handle until [`LaneContext::closes`]. Returns
    /// the predicted handle, if handles are predicted: the lowest entry of the server's empty
    /// handle table.
    pub(super) fn opens(&mut self, job: JobId) -> Option<Handle> {
        self.open += 1;
        self.server.predict.then(|| {
            self.turn = Some(job);
            Handle::openssh(0)
        })
    }

    /// Records that the CLOSE of `job` was sent or its OPEN failed.
    pub(super) fn closes(&mut self, job: JobId) {
        self.open = self.open.saturating_sub(1);
        if self.turn == Some(job) {
            self.turn = None;
        }
    }

    /// Queues `job` for moving data.
    pub(super) fn stream(&mut self, job: JobId) {
        if !self.streams.contains(&job) {
            self.streams.push_back(job);
        }
    }

    /// Returns an empty block with room for a WRITE header and `len` bytes of file data.
    pub(super) fn block(&self, handle: usize, len: usize) -> Block {
        self.block_behind(Client::write_reserve(handle), len)
    }

    /// Returns an empty block for `len` bytes behind `reserve` bytes.
    pub(super) fn block_behind(&self, reserve: usize, len: usize) -> Block {
        Block::new(&self.config.pool, self.config.slot, reserve, len)
    }

    /// Records and reports operations that the server refuses for every file, found by `job`, with
    /// the reason `why`.
    pub(super) fn learn(&mut self, job: JobId, found: Refusals, why: &str) {
        let all = self.refusals.and(found);
        if all != self.refusals {
            self.refusals = all;
            self.told_in_place |= found.in_place();
            self.event(LaneEvent::Refused(job, found, why.to_owned()));
        }
    }

    /// Reports that `job` is written in place because of known refusals.
    pub(super) fn tell_in_place(&mut self, job: JobId) {
        if !std::mem::replace(&mut self.told_in_place, true) {
            let refusals = self.refusals;
            self.event(LaneEvent::Refused(job, refusals, String::new()));
        }
    }

    pub(super) fn event(&mut self, event: LaneEvent) {
        if let LaneEvent::Progress(_, n) = event {
            self.packing.pays.confirm(self.now, n);
        }
        self.events.push_back(event);
    }
}
