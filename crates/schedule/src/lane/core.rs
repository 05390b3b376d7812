use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use sftp::{Client, Handle, Request, RequestId};
use wire::Block;

use super::Refusals;
use super::config::{LaneConfig, Server};
use super::packing::Packing;
use crate::depth::RequestStamp;
use crate::{Depth, DiskRequest, JobId, LaneEvent};

/// What the jobs of a lane share: the SFTP client with what is in flight on it, the queues
/// towards disk and driver, and whose turn it is to open and to stream.
#[derive(Debug)]
pub(super) struct LaneContext {
    pub(super) config: LaneConfig,
    pub(super) client: Client,
    pub(super) server: Server,
    pub(super) now: Instant,
    sent: BTreeMap<RequestId, Sent>,
    /// When a request was last answered.
    answered_at: Instant,
    pub(super) bytes: Depth,
    pub(super) requests: Depth,
    /// Bytes asked of the disk to be sent.
    pub(super) reading: u64,
    /// Bytes received and not confirmed by the disk.
    pub(super) unwritten: u64,
    /// Sources that the disk holds open or reads the beginning of, whose OPEN has not left.
    pub(super) prefetched: usize,
    pub(super) disk: VecDeque<DiskRequest>,
    pub(super) events: VecDeque<LaneEvent>,
    /// Whose OPEN has left and whose CLOSE has not, where handles are predicted: nobody else
    /// may open.
    turn: Option<JobId>,
    /// Handles open or opening.
    open: usize,
    /// The last OPEN of a target was answered with a handle.
    pub(super) opens_succeed: bool,
    /// Jobs that want to open.
    pub(super) openers: VecDeque<JobId>,
    /// Jobs that are one request, for which no handle is opened.
    pub(super) wholes: VecDeque<JobId>,
    /// Jobs with data to read or write; the first is served until it has none.
    pub(super) streams: VecDeque<JobId>,
    /// What the next tree is called.
    pub(super) next_tree: u32,
    /// Nothing more is asked for of trees.
    pub(super) lists_held: bool,
    pub(super) stalls_depth: u64,
    pub(super) stalls_disk: u64,
    /// Bytes that may still be asked for or sent, where somebody else says how fast.
    pub(super) pace: Option<u64>,
    /// Bytes that were, in all.
    pub(super) paced: u64,
    /// The lowest time to the answer of a READ or WRITE since it was last taken.
    pub(super) answer_time: Option<Duration>,
    pub(super) packing: Packing,
    /// Files that were one request.
    pub(super) whole: u64,
    /// A directory, and who owns what is made in it.
    pub(super) owner_in: Option<(Vec<u8>, (u32, u32))>,
    /// Operations that the server was found to refuse.
    pub(super) refusals: Refusals,
    /// The owner of the lane knows that files are written in place.
    pub(super) told_in_place: bool,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) job: Option<JobId>,
    pub(super) what: RequestTag,
    at: Instant,
    /// Requests that were in flight before it.
    ahead: u64,
    bytes: RequestStamp,
    request: RequestStamp,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestTag {
    Limits,
    /// What ATTRS have.
    Told,
    /// LSTAT or STAT of the path the job is about.
    Look,
    /// STAT through a symlink.
    Follow,
    Resolve,
    Open,
    Fstat,
    Read {
        offset: u64,
        len: u32,
    },
    /// A READ that may be answered packed.
    ReadPacked {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        len: u64,
    },
    /// All of a file there.
    PutFile {
        len: u64,
    },
    /// All of a file from there.
    GetFile {
        pack: bool,
    },
    Attributes,
    Owner,
    /// What a temporary has by itself.
    OwnerIs,
    /// It gets that of the file that it replaces, or its group alone.
    KeepOwner,
    KeepGroup,
    /// set-metadata@longhaul.
    Metadata,
    /// The length, of what must have it.
    Size,
    Mode,
    Sync,
    Close,
    /// A step of [`super::replace::Replace`].
    Replace,
    /// fsync-set@longhaul of the directory that it was renamed in.
    SyncName,
    RemoveTemp,
    Readdir,
    /// A part of a tree.
    Tree,
    /// hash@longhaul, of the older form or of what was `rebuilt`.
    Sums {
        offset: u64,
        len: u64,
        rebuilt: bool,
    },
    /// copy-data.
    Copied {
        len: u64,
    },
    /// The request that is the job, or its n-th step.
    Step(u8),
}

impl RequestTag {
    /// The request's name, as the SFTP draft has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits@openssh.com",
            Self::Told => "attributes@longhaul",
            Self::Look | Self::Follow => "STAT",
            Self::Resolve => "REALPATH",
            Self::Open => "OPEN",
            Self::Fstat | Self::OwnerIs => "FSTAT",
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

    /// Whether a server may take its time for it, since the work grows with the file.
    pub(super) fn takes_time(self) -> bool {
        matches!(
            self,
            Self::Sync | Self::SyncName | Self::Sums { .. } | Self::Copied { .. } | Self::Replace
        )
    }
}

/// What a request weighs on top of its data.
const OVERHEAD: u64 = 64;
/// What may be in flight beyond the depth before another file is opened.
const AHEAD: u64 = 2 << 20;
/// The same for small files beyond what the path itself holds. It waits in sftp-server, which
/// moves all of it in memory again and again: 17,900 files of 4 KiB a second with 256 requests
/// (270 KiB) there, 11,100 with 1,024, 2,000 with 4,096 (docs/design/0003-small-files.md).
const SMALL_AHEAD: u64 = 640 << 10;
/// From here on slow start takes time worth saving.
const LONG: Duration = Duration::from_millis(10);
/// Files are small when a request moves less than this.
const SMALL: u64 = 16 << 10;
/// What a file that is there in an older form costs at both ends: hashed, copied and hashed again,
/// about 300 MB of it a second (docs/design/0009-delta.md).
const REBUILT: f64 = 300e6;
/// The rate of a lane is known when it has moved so much.
const MEASURED: u64 = 64 << 20;
/// The disk may read this far ahead of what may be in flight.
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
            bytes: Depth::new(config.bytes),
            requests: Depth::new(config.requests),
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

    /// Asks for more of files than every server tells.
    pub(super) fn send_told(&mut self) {
        let told = self.config.told;
        if self.server.attributes && !told.is_empty() {
            let id = self.client.request(&Request::Attributes { told });
            self.sent(id, None, RequestTag::Told, 0);
        }
    }

    /// Sends a READ whose answer is expected to have `expected` bytes, and may come `packed`, or be
    /// that there is a hole.
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

    /// Sends a whole file of `len` bytes, whose data are in `block`.
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

    /// Asks for a whole file, which is expected to have `expected` bytes, and may come `pack`ed.
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

    /// Sends a SYMLINK in the server's order.
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
        let sent = Sent {
            job,
            what,
            at: self.now,
            ahead: self.requests.in_flight(),
            bytes: self.bytes.on_sent(self.now, data + OVERHEAD),
            request: self.requests.on_sent(self.now, 1),
        };
        self.sent.insert(id, sent);
    }

    /// Which request a reply belongs to; `last` ends it.
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

    /// The first request without an answer: whose it is, what it is for, since when neither it nor any other was
    /// answered, and how many were in flight before it.
    pub(super) fn first_unanswered(&self) -> Option<(Option<JobId>, RequestTag, Instant, u64)> {
        let (_, sent) = self.sent.first_key_value()?;
        Some((
            sent.job,
            sent.what,
            sent.at.max(self.answered_at),
            sent.ahead,
        ))
    }

    /// Takes back what `job` would still write; returns how many requests.
    pub(super) fn withdraw_writes(&mut self, job: JobId) -> usize {
        if self.client.queued() == 0 {
            return 0;
        }
        let of_job = |s: &Sent| s.job == Some(job) && matches!(s.what, RequestTag::Write { .. });
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

    /// Whether the pace that was set leaves room for more.
    fn is_in_pace(&self) -> bool {
        self.pace.is_none_or(|left| left > self.reading)
    }

    /// Whether sending a file takes longer than finding out what of it is there: over a long path,
    /// or one that was seen to be slow.
    pub(super) fn sends_slower_than_hashing(&self) -> bool {
        let measured = self.paced >= MEASURED;
        let slow = measured && self.bytes.rate().is_some_and(|rate| rate < REBUILT);
        slow || self.is_long()
    }

    /// Whether the path is so long that what has to be carried counts from the first byte on.
    pub(super) fn is_long(&self) -> bool {
        self.bytes.latency().is_some_and(|latency| latency >= LONG)
    }

    /// Whether a small request may leave.
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
        // What the path held at its best, or will in the next round trip.
        let holds = match self.bytes.latency() {
            Some(latency) if latency >= LONG => self.bytes.target_of(1.0).max(self.bytes.soon()),
            // What comes in one burst is many round trips of it.
            _ => self.bytes.target_of(2.0),
        };
        let may = !small || flying < holds + SMALL_AHEAD;
        self.stalls_depth += u64::from(!may);
        may
    }

    /// Whether more may be read from the disk to be sent.
    pub(super) fn may_read_disk(&mut self) -> bool {
        if !self.is_in_pace() {
            return false;
        }
        let requests = self.requests.in_flight() < self.requests.target();
        let bytes = self.bytes.in_flight() < self.bytes.target()
            && self.bytes.in_flight() + self.reading < self.bytes.target() + READ_AHEAD;
        self.note(requests, bytes)
    }

    /// Whether another READ may leave.
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

    /// Whether an OPEN may leave.
    pub(super) fn may_open(&self) -> bool {
        if self.server.predict {
            self.turn.is_none()
        } else {
            self.open < self.server.open_files
        }
    }

    /// `job` opens: until [`LaneContext::closes`] it holds a handle. Returns the handle where it is
    /// predicted: the lowest entry of a table that is empty now.
    pub(super) fn opens(&mut self, job: JobId) -> Option<Handle> {
        self.open += 1;
        self.server.predict.then(|| {
            self.turn = Some(job);
            Handle::openssh(0)
        })
    }

    /// The CLOSE of `job` has left, or its OPEN failed.
    pub(super) fn closes(&mut self, job: JobId) {
        self.open = self.open.saturating_sub(1);
        if self.turn == Some(job) {
            self.turn = None;
        }
    }

    /// `job` has data to move.
    pub(super) fn stream(&mut self, job: JobId) {
        if !self.streams.contains(&job) {
            self.streams.push_back(job);
        }
    }

    /// An empty block for `len` bytes of file data behind a WRITE header.
    pub(super) fn block(&self, handle: usize, len: usize) -> Block {
        self.block_behind(Client::write_reserve(handle), len)
    }

    /// The same behind `reserve` bytes.
    pub(super) fn block_behind(&self, reserve: usize, len: usize) -> Block {
        Block::new(&self.config.pool, self.config.slot, reserve, len)
    }

    /// The server refuses these whatever the file, as `job` has found, and `why`.
    pub(super) fn learn(&mut self, job: JobId, found: Refusals, why: &str) {
        let all = self.refusals.and(found);
        if all != self.refusals {
            self.refusals = all;
            self.told_in_place |= found.in_place();
            self.event(LaneEvent::Refused(job, found, why.to_owned()));
        }
    }

    /// `job` is written in place for what was found before it.
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
