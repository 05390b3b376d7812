//! Disk side of a lane, in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::delta::compare;
use schedule::{
    Attributes, DiskReply, DiskRequest, JobFailure, JobId, SourceFileMeta, StoredTarget,
};
use sftp::packed::{BlockCompressor, BlockDecompressor};
use testkit::sftp_model::Rng;

/// Disk side with files in memory, which delays its replies and fails as the test demands.
pub(crate) struct Disk {
    pub(crate) sources: BTreeMap<PathBuf, Source>,
    pub(crate) files: BTreeMap<PathBuf, (Vec<u8>, Attributes)>,
    pub(crate) latency: Duration,
    /// Number of written bytes from which writes fail.
    pub(crate) full_at: Option<u64>,
    /// Offset from which reads fail.
    pub(crate) bad_from: Option<u64>,
    /// Numbers of the requests that fail, counted from 0; releases never fail.
    pub(crate) faults: BTreeSet<usize>,
    /// Maximum delay of replies, which then come in any permitted order.
    pub(crate) jitter: Option<(Rng, Duration)>,
    /// Job whose writes take a minute.
    pub(crate) slow: Option<JobId>,
    pub(crate) held: u64,
    pub(crate) most_held: u64,
    pub(crate) seekable: bool,
    /// Number of writes to a target that was not open.
    pub(crate) unopened: usize,
    /// No file can be created beside a target.
    pub(crate) unwritable: bool,
    joined: BTreeMap<JobId, JobId>,
    open: BTreeMap<JobId, PathBuf>,
    targets: BTreeMap<JobId, Target>,
    written: u64,
    /// Number of bytes copied from basis files.
    pub(crate) copied: u64,
    /// Number of bytes reported as holes.
    pub(crate) skipped: u64,
    /// Sources whose holes are reported.
    sparse: BTreeSet<PathBuf>,
    asked: usize,
    /// Number of times that a source was opened.
    pub(crate) opened: usize,
    order: BTreeMap<JobId, Order>,
    replies: VecDeque<(Instant, DiskReply)>,
}

/// Earliest time of a job's next reply.
#[derive(Clone, Copy)]
struct Order {
    /// Kind of the last operation: reads, or writes, may overtake each other.
    kind: Option<bool>,
    after: Instant,
    latest: Instant,
}

/// Local file to upload.
#[derive(Clone, Default)]
pub(crate) struct Source {
    pub(crate) data: Vec<u8>,
    pub(crate) meta: SourceFileMeta,
}

/// Local file that a download writes, until it has its final name.
struct Target {
    path: PathBuf,
    data: Vec<u8>,
    incomplete: bool,
    /// The target is rebuilt beside its basis file.
    rebuilt: bool,
}

impl Target {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.data.resize(self.data.len().max(end), 0);
        self.data[at..end].copy_from_slice(bytes);
    }
}

impl Source {
    pub(crate) fn new(data: Vec<u8>) -> Self {
        let attributes = Attributes {
            size: Some(data.len() as u64),
            mode: Some(0o100_664),
            owner: None,
            times: Some((1111, 2222)),
            ..Attributes::default()
        };
        let stream = false;
        Self {
            data,
            meta: SourceFileMeta { attributes, stream },
        }
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            sources: BTreeMap::new(),
            files: BTreeMap::new(),
            latency: Duration::ZERO,
            full_at: None,
            bad_from: None,
            faults: BTreeSet::new(),
            jitter: None,
            slow: None,
            held: 0,
            most_held: 0,
            seekable: true,
            unopened: 0,
            unwritable: false,
            joined: BTreeMap::new(),
            open: BTreeMap::new(),
            targets: BTreeMap::new(),
            written: 0,
            copied: 0,
            skipped: 0,
            sparse: BTreeSet::new(),
            asked: 0,
            opened: 0,
            order: BTreeMap::new(),
            replies: VecDeque::new(),
        }
    }
}

impl Disk {
    pub(crate) fn next_reply(&self) -> Option<Instant> {
        self.replies.front().map(|(at, _)| *at)
    }

    pub(crate) fn reply(&mut self, now: Instant) -> Option<DiskReply> {
        if self.next_reply()? > now {
            return None;
        }
        let (_, reply) = self.replies.pop_front()?;
        if let DiskReply::Written { len, .. } = reply {
            self.held -= len;
        }
        Some(reply)
    }

    pub(crate) fn open_sources(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn targets(&self) -> usize {
        self.targets.len()
    }

    pub(crate) fn handle(&mut self, now: Instant, request: DiskRequest) {
        let at = self.when(now, &request);
        let reply = match self.refuses(&request) {
            Some(job) => {
                let file = self.joined.get(&job).copied().unwrap_or(job);
                if let Some(target) = self.targets.get_mut(&file) {
                    target.incomplete = true;
                }
                failed(job, "the disk is broken")
            }
            None => self.serve(request),
        };
        let behind = self.replies.partition_point(|(other, _)| *other <= at);
        self.replies.insert(behind, (at, reply));
    }

    fn refuses(&mut self, request: &DiskRequest) -> Option<JobId> {
        let nth = self.asked;
        self.asked += 1;
        match request {
            DiskRequest::CloseSource { .. } | DiskRequest::Discard { .. } => None,
            request => self.faults.contains(&nth).then(|| request.job()),
        }
    }

    fn when(&mut self, now: Instant, request: &DiskRequest) -> Instant {
        let late = self
            .jitter
            .as_mut()
            .map(|(rng, most)| Duration::from_nanos(rng.below(most.as_nanos() as u64 + 1)));
        let at = now + self.latency + late.unwrap_or_default();
        let is_slow = matches!(request, DiskRequest::Write { job, .. } if self.slow == Some(*job));
        let at = at + Duration::from_secs(if is_slow { 60 } else { 0 });
        let kind = match request {
            DiskRequest::Read { .. }
            | DiskRequest::ReadPacked { .. }
            | DiskRequest::Compare { .. }
            | DiskRequest::CopyBasis { .. }
            | DiskRequest::CheckRebuilt { .. }
            | DiskRequest::Search { .. } => Some(false),
            DiskRequest::Write { .. } | DiskRequest::WritePacked { .. } => Some(true),
            _ => None,
        };
        let order = self.order.entry(request.job()).or_insert(Order {
            kind,
            after: now,
            latest: now,
        });
        if kind.is_none() || kind != order.kind {
            order.after = order.latest;
        }
        order.kind = kind;
        let at = at.max(order.after);
        order.latest = order.latest.max(at);
        at
    }

    /// Returns the source that a job reads.
    fn source(&self, job: JobId) -> Option<(&PathBuf, &Source)> {
        let path = self.open.get(&job)?;
        Some((path, self.sources.get(path)?))
    }

    /// Returns the bytes that a job compares: its source, or its target's basis file.
    fn compared(&self, job: JobId) -> Option<&[u8]> {
        if let Some((_, source)) = self.source(job) {
            return Some(&source.data);
        }
        let target = self.targets.get(&job).filter(|target| target.rebuilt)?;
        self.files
            .get(&target.path)
            .map(|(data, _)| data.as_slice())
    }

    fn serve(&mut self, request: DiskRequest) -> DiskReply {
        match request {
            DiskRequest::OpenSource {
                job,
                path,
                mut first,
                sparse,
                pack,
            } => {
                self.opened += 1;
                if sparse {
                    self.sparse.insert(path.clone());
                }
                let Some(source) = self.sources.get(&path) else {
                    return failed(job, "no such file");
                };
                let room: usize = first.room();
                let taken = first.append(&source.data);
                first.truncate(taken);
                let eof = taken < room;
                let mut packed = None;
                if !eof {
                    self.open.insert(job, path.clone());
                }
                if pack.is_some_and(|least| !eof || taken as u64 >= least) {
                    let (data, mut smaller) = (first.to_vec(), Vec::new());
                    let mut packer = BlockCompressor::new().expect("memory");
                    if packer.pack(&data, &mut smaller) {
                        packed = Some(data.len() as u64);
                        first.clear();
                        let taken = first.append(&smaller);
                        first.truncate(taken);
                    }
                }
                DiskReply::Opened {
                    job,
                    meta: source.meta,
                    first,
                    packed,
                    eof,
                }
            }
            DiskRequest::Read {
                job,
                offset,
                len,
                mut block,
            } => {
                if self.bad_from.is_some_and(|bad| offset >= bad) {
                    return failed(job, "input/output error");
                }
                let Some((path, source)) = self.source(job) else {
                    return failed(job, "read of a source that is not open");
                };
                let mut len = len;
                if self.sparse.contains(path) {
                    let hole = zeros(&source.data, offset as usize);
                    if hole > 0 {
                        let len = hole as u64;
                        return DiskReply::Hole { job, offset, len };
                    }
                    len = before_zeros(&source.data, offset as usize, len);
                }
                let data = source.data.get(offset as usize..).unwrap_or_default();
                let data = data.get(..len).unwrap_or(data);
                let taken = block.append(data);
                assert_eq!(
                    taken,
                    data.len(),
                    "the block has the room that was asked for"
                );
                block.truncate(taken);
                DiskReply::Read { job, offset, block }
            }
            DiskRequest::ReadPacked {
                job,
                offset,
                len,
                mut block,
            } => {
                if self.bad_from.is_some_and(|bad| offset >= bad) {
                    return failed(job, "input/output error");
                }
                let Some((path, source)) = self.source(job) else {
                    return failed(job, "read of a source that is not open");
                };
                let mut len = len;
                if self.sparse.contains(path) {
                    let hole = zeros(&source.data, offset as usize);
                    if hole > 0 {
                        let len = hole as u64;
                        return DiskReply::Hole { job, offset, len };
                    }
                    len = before_zeros(&source.data, offset as usize, len);
                }
                let data = source.data.get(offset as usize..).unwrap_or_default();
                let data = data.get(..len).unwrap_or(data);
                let mut packed = Vec::new();
                let smaller = BlockCompressor::new()
                    .expect("memory")
                    .pack(data, &mut packed);
                let taken = block.append(if smaller { &packed } else { data });
                block.truncate(taken);
                DiskReply::Packed {
                    job,
                    offset,
                    len: data.len() as u64,
                    smaller,
                    block,
                }
            }
            DiskRequest::WritePacked {
                job,
                offset,
                len,
                packed,
            } => match BlockDecompressor::new()
                .expect("memory")
                .unpack(&packed, len)
            {
                Some(bytes) => self.write(job, offset, &[bytes.into()]),
                None => {
                    let file = self.joined.get(&job).copied().unwrap_or(job);
                    if let Some(target) = self.targets.get_mut(&file) {
                        target.incomplete = true;
                    }
                    failed(job, "it does not unpack")
                }
            },
            DiskRequest::Compare {
                job,
                key,
                block,
                offset,
                len,
                basis,
            } => {
                let Some(data) = self.compared(job) else {
                    return failed(job, "comparison of a source that is not open");
                };
                let data = data.get(offset as usize..).unwrap_or_default();
                let data = data.get(..len).unwrap_or(data);
                DiskReply::Compared {
                    job,
                    offset,
                    len: data.len() as u64,
                    compared: compare(&key, block, offset, data, &basis),
                }
            }
            DiskRequest::Search {
                job,
                basis,
                from,
                to,
                size,
            } => {
                let Some(data) = self.compared(job) else {
                    return failed(job, "search for a source that is not open");
                };
                let seen = size.min(to + basis.ahead() as u64);
                let data = data.get(from as usize..seen as usize);
                let data = data.unwrap_or_default();
                let found = basis.search(from, data, (to - from) as usize, seen == size);
                DiskReply::Searched {
                    job,
                    from,
                    to,
                    found,
                }
            }
            DiskRequest::Join { job, file } => {
                if let Some(path) = self.open.get(&file).cloned() {
                    self.open.insert(job, path);
                } else if self.targets.contains_key(&file) {
                    self.joined.insert(job, file);
                } else {
                    return failed(job, "the file is no longer open");
                }
                DiskReply::Joined { job }
            }
            DiskRequest::AwaitSource { job } => DiskReply::SourceReady { job },
            DiskRequest::CloseSource { job } => {
                self.open.remove(&job);
                DiskReply::Released { job }
            }
            DiskRequest::OpenBasis { job, target, .. } => {
                let size = self
                    .files
                    .get(&target.whole())
                    .map(|(data, _)| data.len() as u64);
                let size = size.filter(|size| *size >= schedule::delta::LEAST);
                if size.is_some() {
                    let rebuilt = Target {
                        path: target.whole(),
                        data: Vec::new(),
                        incomplete: false,
                        rebuilt: true,
                    };
                    self.targets.insert(job, rebuilt);
                }
                DiskReply::BasisOpened { job, size }
            }
            DiskRequest::CopyBasis { job, from, at, len } => {
                let data = self.compared(job).unwrap_or_default();
                let data = data.get(from as usize..).unwrap_or_default();
                let data = data[..data.len().min(len as usize)].to_vec();
                if let Some(target) = self.targets.get_mut(&job) {
                    target.put(at as usize, &data);
                }
                let copied = data.len() as u64;
                self.copied += copied;
                let whole = copied == len;
                let len = copied;
                DiskReply::Copied {
                    job,
                    at,
                    len,
                    whole,
                }
            }
            DiskRequest::CheckRebuilt {
                job,
                key,
                block,
                offset,
                len,
                sums,
            } => {
                let data = self.targets.get(&job).map(|target| target.data.as_slice());
                let data = data.unwrap_or_default();
                let data = data.get(offset as usize..offset as usize + len);
                let compared = data.map(|data| compare(&key, block, offset, data, &sums));
                DiskReply::Checked {
                    job,
                    offset,
                    len: len as u64,
                    same: compared.is_some_and(|compared| compared.differs.is_empty()),
                }
            }
            DiskRequest::CreateTarget { job, target, .. } => {
                let data = Vec::new();
                let target = Target {
                    path: target.whole(),
                    data,
                    incomplete: false,
                    rebuilt: false,
                };
                self.targets.insert(job, target);
                let seekable = self.seekable;
                DiskReply::Created { job, seekable }
            }
            DiskRequest::Write {
                job,
                offset,
                pieces,
            } => self.write(job, offset, &pieces),
            DiskRequest::Skip { job, offset, len } => {
                self.skipped += len;
                let file = self.joined.get(&job).copied().unwrap_or(job);
                let Some(target) = self.targets.get_mut(&file) else {
                    return failed(job, "hole without create");
                };
                let end = (offset + len) as usize;
                target.data.resize(target.data.len().max(end), 0);
                DiskReply::Skipped { job, offset, len }
            }
            DiskRequest::FinishTarget {
                job,
                size,
                attributes,
                ..
            } => {
                if self.joined.values().any(|file| *file == job) {
                    return failed(job, "the file is still being written");
                }
                let Some(mut target) = self.targets.remove(&job) else {
                    return failed(job, "finish without create");
                };
                if target.incomplete {
                    return failed(job, "only part of the data could be written");
                }
                target.data.resize(size as usize, 0);
                self.files.insert(target.path, (target.data, attributes));
                self.finished(job)
            }
            DiskRequest::StoreTarget {
                job,
                target,
                pieces,
                packed,
                attributes,
                ..
            } => {
                let mut data: Vec<u8> = pieces.concat();
                if let Some(len) = packed {
                    let mut unpacker = BlockDecompressor::new().expect("memory");
                    match unpacker.unpack(&data, len) {
                        Some(bytes) => data = bytes,
                        None => return failed(job, "it does not unpack"),
                    }
                }
                if self
                    .full_at
                    .is_some_and(|n| self.written + data.len() as u64 > n)
                {
                    return failed(job, "no space left on device");
                }
                self.written += data.len() as u64;
                self.files.insert(target.whole(), (data, attributes));
                self.finished(job)
            }
            DiskRequest::SyncTarget { job } => DiskReply::Synced { job, mtime: 0 },
            DiskRequest::Discard { job } | DiskRequest::Leave { job, .. } => {
                self.joined.remove(&job);
                self.targets.remove(&job);
                DiskReply::Released { job }
            }
        }
    }

    fn finished(&self, job: JobId) -> DiskReply {
        let stored = StoredTarget {
            in_place: self.unwritable,
            why_in_place: self.unwritable.then(|| schedule::UNWRITABLE.to_owned()),
            ..StoredTarget::default()
        };
        DiskReply::Finished { job, stored }
    }

    fn write(&mut self, job: JobId, offset: u64, pieces: &[Bytes]) -> DiskReply {
        let file = self.joined.get(&job).copied().unwrap_or(job);
        let Some(target) = self.targets.get_mut(&file) else {
            self.unopened += 1;
            return failed(job, "write without create");
        };
        let bytes = pieces.concat();
        self.written += bytes.len() as u64;
        if self.full_at.is_some_and(|full| self.written > full) {
            target.incomplete = true;
            return failed(job, "no space left on device");
        }
        self.held += bytes.len() as u64;
        self.most_held = self.most_held.max(self.held);
        target.put(offset as usize, &bytes);
        let len = bytes.len() as u64;
        DiskReply::Written { job, offset, len }
    }
}

/// Returns the number of zeros at `offset`, in whole blocks.
fn zeros(data: &[u8], offset: usize) -> usize {
    let blocks = data.get(offset..).unwrap_or_default().chunks(BLOCK);
    let zeros = blocks.take_while(|block| block.iter().all(|byte| *byte == 0));
    zeros.map(<[u8]>::len).sum()
}

/// Returns the number of bytes, out of `len` at `offset`, before the next block of zeros.
fn before_zeros(data: &[u8], offset: usize, len: usize) -> usize {
    let next = (offset / BLOCK + 1) * BLOCK;
    let mut blocks = (next..offset + len).step_by(BLOCK);
    let hole = blocks.find(|at| zeros(data, *at) > 0);
    hole.map_or(len, |at| at - offset)
}

/// Block size in bytes: a page.
const BLOCK: usize = 4096;

fn failed(job: JobId, what: &str) -> DiskReply {
    let fault = JobFailure::new(what, false);
    DiskReply::Failed { job, fault }
}
