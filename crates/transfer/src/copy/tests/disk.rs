//! Disk side of the lanes: the requests of jobs, carried out on a file system in memory.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schedule::journal::ExistingFile;
use schedule::{
    Attributes, DiskReply, DiskRequest, ExtraMetadata, JobFailure, JobId, LocalTargetPath, Parts,
    ResumeData, SourceFileMeta, StoredTarget,
};
use sftp::{Attrs, InodeId};
use testkit::sftp_model::{Errno, Fs, Kind, Rng};

use super::relay_queue::RelayQueue;
use crate::disk::{HostToHostBuffer, ReadBackCheck};
use crate::sums::{ChecksumLedger, FileChecksums};

const SECOND: u64 = 1_000_000_000;
/// Longest time of one operation.
const LATENCY_US: u64 = 500;

/// Open files of jobs, and replies on their way.
#[derive(Default)]
pub(super) struct SimDisk {
    files: BTreeMap<JobId, JobFile>,
    joined: BTreeMap<JobId, JobId>,
    replies: VecDeque<(Instant, DiskReply)>,
    /// Latest reply of each job, which keeps its replies in order.
    latest: BTreeMap<JobId, Instant>,
    relays: RelayQueue,
    /// The next request fails that may fail.
    pub(super) fails_next: bool,
    /// Bytes written to targets.
    pub(super) written: u64,
}

enum JobFile {
    Source {
        inode: u64,
        sums: Option<Arc<FileChecksums>>,
    },
    Target(Target),
    Check(Arc<ReadBackCheck>),
    Relay(Arc<HostToHostBuffer>),
    /// The buffer of another job, for a part of its file.
    RelayPart(Arc<HostToHostBuffer>),
}

struct Target {
    inode: u64,
    path: Vec<u8>,
    temporary: Option<Vec<u8>>,
    /// A write has failed.
    incomplete: bool,
    /// The temporary survives this process.
    stays: bool,
    sums: Option<Arc<FileChecksums>>,
}

impl Target {
    /// Target at `path` that was just opened, by the name of its temporary if it has one.
    fn new(inode: u64, path: Vec<u8>, temporary: Option<Vec<u8>>) -> Self {
        Self {
            inode,
            path,
            temporary,
            incomplete: false,
            stays: false,
            sums: None,
        }
    }
}

/// The simulated objects that a request changes.
pub(super) struct Around<'a> {
    pub(super) fs: &'a mut Fs,
    pub(super) ledger: Option<&'a ChecksumLedger>,
    pub(super) rng: &'a mut Rng,
}

pub(super) fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

pub(super) fn words(errno: Errno) -> &'static str {
    match errno {
        Errno::NoEnt => "no such file or directory",
        Errno::Access => "permission denied",
        Errno::Exist => "file exists",
        Errno::IsDir => "is a directory",
        Errno::NotDir => "not a directory",
        Errno::NoSpace => "no space left on device",
        Errno::NotEmpty => "directory not empty",
        Errno::Inval => "invalid argument",
        Errno::Loop => "too many levels of symbolic links",
        Errno::NameTooLong => "file name too long",
    }
}

/// Attributes of an inode as this machine tells them.
pub(super) fn attributes(fs: &Fs, inode: u64) -> Result<Attributes, Errno> {
    let attrs = fs.stat(inode)?;
    let names = fs.names_of(inode);
    let link = InodeId {
        device: 1,
        inode,
        names,
    };
    Ok(Attributes {
        size: attrs.size,
        mode: attrs.permissions,
        owner: attrs.owner,
        times: attrs.times,
        nanoseconds: Some((0, 0)),
        link: (names > 1).then_some(link),
    })
}

impl SimDisk {
    pub(super) fn next_reply(&self) -> Option<Instant> {
        self.replies.front().map(|(at, _)| *at)
    }

    pub(super) fn reply(&mut self, now: Instant) -> Option<DiskReply> {
        match self.next_reply()? <= now {
            true => self.replies.pop_front().map(|(_, reply)| reply),
            false => None,
        }
    }

    pub(super) fn bind_check(&mut self, job: JobId, check: Arc<ReadBackCheck>) {
        self.files.insert(job, JobFile::Check(check));
    }

    pub(super) fn bind_relay(&mut self, job: JobId, relay: Arc<HostToHostBuffer>) {
        self.files.insert(job, JobFile::Relay(relay));
    }

    /// True if the requests of `job` go to a buffer between two hosts.
    pub(super) fn is_relayed(&self, job: JobId) -> bool {
        let file = self.files.get(&job);
        let is_bound = matches!(file, Some(JobFile::Relay(_) | JobFile::RelayPart(_)));
        is_bound || self.relays.has(job)
    }

    pub(super) fn release(&mut self, job: JobId) {
        self.files.remove(&job);
    }

    /// Ends the session: temporaries that no journal lists are removed.
    pub(super) fn end(&mut self, fs: &mut Fs) {
        for file in std::mem::take(&mut self.files).into_values() {
            if let JobFile::Target(target) = file
                && let Some(temporary) = target.temporary.filter(|_| !target.stays)
            {
                let _ = fs.remove(&temporary, false);
            }
        }
        self.joined.clear();
    }

    /// Time at which a reply is due, or a request reaches a buffer between two hosts.
    pub(super) fn next(&self) -> Option<Instant> {
        let times = [self.next_reply(), self.relays.next()];
        times.into_iter().flatten().min()
    }

    /// Passes on the requests that have reached their buffers, and takes the buffers' replies.
    pub(super) fn turn_relays(&mut self, now: Instant, around: &mut Around<'_>) {
        while let Some(request) = self.relays.take(now) {
            if let Some(reply) = self.pass(request, around) {
                self.add_reply(now, reply);
            }
        }
        self.take_relayed(now);
    }

    /// Takes the replies of buffers between two hosts.
    pub(super) fn take_relayed(&mut self, now: Instant) {
        for reply in self.relays.replies() {
            self.add_reply(now, reply);
        }
    }

    fn add_reply(&mut self, at: Instant, reply: DiskReply) {
        let behind = self.replies.partition_point(|(other, _)| *other <= at);
        self.replies.insert(behind, (at, reply));
    }

    /// Passes a request on to its buffer, as `disk::DiskThreadPool` does.
    fn pass(&mut self, request: DiskRequest, around: &mut Around<'_>) -> Option<DiskReply> {
        let job = request.job();
        match (self.files.get(&job), &request) {
            (Some(JobFile::Relay(relay)), _) => relay.handle(request, &self.relays.receiver()),
            (
                Some(JobFile::RelayPart(_)),
                DiskRequest::CloseSource { .. }
                | DiskRequest::Discard { .. }
                | DiskRequest::Leave { .. },
            ) => {
                self.files.remove(&job);
                return Some(DiskReply::Released { job });
            }
            (Some(JobFile::RelayPart(relay)), _) => relay.handle(request, &self.relays.receiver()),
            (None, DiskRequest::Join { file, .. }) => {
                let Some(JobFile::Relay(relay)) = self.files.get(file) else {
                    return Some(self.reply_to(request, around));
                };
                let part = JobFile::RelayPart(Arc::clone(relay));
                self.files.insert(job, part);
                return Some(DiskReply::Joined { job });
            }
            _ => return Some(self.reply_to(request, around)),
        }
        None
    }

    fn reply_to(&mut self, request: DiskRequest, around: &mut Around<'_>) -> DiskReply {
        let job = request.job();
        self.serve(request, around).unwrap_or_else(|what| {
            let fault = JobFailure::new(what, false);
            DiskReply::Failed { job, fault }
        })
    }

    pub(super) fn handle(&mut self, now: Instant, request: DiskRequest, around: &mut Around<'_>) {
        let job = request.job();
        let late = Duration::from_micros(around.rng.below(LATENCY_US));
        let joins = match &request {
            DiskRequest::Join { file, .. } => self.is_relayed(*file),
            _ => false,
        };
        if joins || self.is_relayed(job) {
            return self.relays.push(now, late, request);
        }
        let latest = self.latest.entry(job).or_insert(now);
        let at = (now + late).max(*latest);
        *latest = at;
        let may_fail = !matches!(
            request,
            DiskRequest::CloseSource { .. }
                | DiskRequest::Discard { .. }
                | DiskRequest::Leave { .. }
                | DiskRequest::Join { .. }
        );
        let result = match may_fail && std::mem::take(&mut self.fails_next) {
            true => {
                self.spoil(job);
                Err("input/output error".to_owned())
            }
            false => self.serve(request, around),
        };
        let reply = result.unwrap_or_else(|what| {
            let fault = JobFailure::new(what, false);
            DiskReply::Failed { job, fault }
        });
        self.add_reply(at, reply);
    }

    fn spoil(&mut self, job: JobId) {
        if let Ok(target) = self.target(job) {
            target.incomplete = true;
        }
    }

    fn key(&self, job: JobId) -> JobId {
        self.joined.get(&job).copied().unwrap_or(job)
    }

    fn target(&mut self, job: JobId) -> Result<&mut Target, String> {
        match self.files.get_mut(&self.key(job)) {
            Some(JobFile::Target(target)) => Ok(target),
            _ => Err("it was not open for writing".to_owned()),
        }
    }

    fn serve(
        &mut self,
        request: DiskRequest,
        around: &mut Around<'_>,
    ) -> Result<DiskReply, String> {
        let job = request.job();
        if let Some(JobFile::Check(check)) = self.files.get(&job) {
            return Ok(check.handle(request));
        }
        match request {
            DiskRequest::OpenSource {
                path, mut first, ..
            } => {
                let path = bytes_of(&path);
                let inode = around.fs.lookup(&path, true).map_err(words)?;
                let attributes = attributes(around.fs, inode).map_err(words)?;
                let data = data_of(around.fs, inode)?;
                let room = first.room();
                let taken = first.append(data.get(..room).unwrap_or(data));
                let eof = taken < room;
                let sums = around.ledger.map(|ledger| ledger.open(job));
                if let Some(sums) = &sums {
                    sums.add(0, std::iter::once(data.get(..taken).unwrap_or_default()));
                }
                first.truncate(taken);
                let stream = data.is_empty();
                if !eof {
                    self.files.insert(job, JobFile::Source { inode, sums });
                }
                Ok(DiskReply::Opened {
                    job,
                    meta: SourceFileMeta { attributes, stream },
                    first,
                    packed: None,
                    eof,
                })
            }
            DiskRequest::Join { file, .. } => match self.files.contains_key(&file) {
                true => {
                    self.joined.insert(job, file);
                    Ok(DiskReply::Joined { job })
                }
                false => Err("the file is not open any more".to_owned()),
            },
            DiskRequest::Read {
                offset,
                len,
                mut block,
                ..
            } => {
                let Some(JobFile::Source { inode, sums }) = self.files.get(&self.key(job)) else {
                    return Err("it was not open for reading".to_owned());
                };
                let data = data_of(around.fs, *inode)?;
                let data = data.get(offset as usize..).unwrap_or_default();
                let data = data.get(..len).unwrap_or(data);
                if let Some(sums) = sums {
                    sums.add(offset, std::iter::once(data));
                }
                let taken = block.append(data);
                block.truncate(taken);
                Ok(DiskReply::Read { job, offset, block })
            }
            DiskRequest::AwaitSource { .. } => Ok(DiskReply::SourceReady { job }),
            DiskRequest::CloseSource { .. } => {
                if self.joined.remove(&job).is_none() {
                    self.files.remove(&job);
                }
                Ok(DiskReply::Released { job })
            }
            DiskRequest::OpenBasis { .. } => Ok(DiskReply::BasisOpened { job, size: None }),
            request => self.serve_target(request, around),
        }
    }

    fn serve_target(
        &mut self,
        request: DiskRequest,
        around: &mut Around<'_>,
    ) -> Result<DiskReply, String> {
        let job = request.job();
        match request {
            DiskRequest::CreateTarget {
                target,
                inplace,
                keep,
                stays,
                ..
            } => {
                if let Some(mut adopted) = adopt(around.fs, &target, keep.as_deref()) {
                    adopted.sums = around.ledger.map(|ledger| ledger.open(job));
                    self.files.insert(job, JobFile::Target(adopted));
                    return Ok(DiskReply::Adopted { job });
                }
                let mut created = create(around, &target, inplace, keep.as_deref())?;
                created.stays = stays;
                created.sums = around.ledger.map(|ledger| ledger.open(job));
                self.files.insert(job, JobFile::Target(created));
                let seekable = true;
                Ok(DiskReply::Created { job, seekable })
            }
            DiskRequest::Write { offset, pieces, .. } => {
                let len = self.write(job, offset, &pieces.concat(), around.fs)?;
                Ok(DiskReply::Written { job, offset, len })
            }
            DiskRequest::SyncTarget { .. } => {
                let inode = self.target(job)?.inode;
                around.fs.sync(inode);
                let times = around.fs.node(inode).map_err(words)?.times;
                let mtime = u64::from(times.1) * SECOND;
                Ok(DiskReply::Synced { job, mtime })
            }
            DiskRequest::FinishTarget {
                size,
                attributes,
                preserve,
                fsync,
                beyond,
                ..
            } => {
                self.target(job)?;
                let Some(JobFile::Target(target)) = self.files.remove(&job) else {
                    return Err("the file is still being written".to_owned());
                };
                let kept = (&attributes, &beyond);
                let stored = finish(around.fs, target, size, kept, (preserve, fsync))?;
                Ok(DiskReply::Finished { job, stored })
            }
            request @ DiskRequest::StoreTarget { .. } => self.store(request, around),
            DiskRequest::Leave { .. } => {
                if self.joined.remove(&job).is_none() {
                    self.files.remove(&job);
                }
                Ok(DiskReply::Released { job })
            }
            DiskRequest::Discard { .. } => {
                if self.joined.remove(&job).is_none()
                    && let Some(JobFile::Target(target)) = self.files.remove(&job)
                {
                    discard(around.fs, target);
                }
                Ok(DiskReply::Released { job })
            }
            _ => Err("the simulation has no deltas, holes and compressed data".to_owned()),
        }
    }

    /// Writes to the open target of `job`; returns the number of bytes.
    fn write(&mut self, job: JobId, offset: u64, bytes: &[u8], fs: &mut Fs) -> Result<u64, String> {
        let target = self.target(job)?;
        if let Err(e) = fs.write(target.inode, offset, bytes) {
            target.incomplete = true;
            return Err(words(e).to_owned());
        }
        if let Some(sums) = &target.sums {
            sums.add(offset, std::iter::once(bytes));
        }
        let len = bytes.len() as u64;
        self.written += len;
        Ok(len)
    }

    /// Creates, writes and completes a small file.
    fn store(
        &mut self,
        request: DiskRequest,
        around: &mut Around<'_>,
    ) -> Result<DiskReply, String> {
        let DiskRequest::StoreTarget {
            job,
            target,
            inplace,
            keep,
            pieces,
            attributes,
            preserve,
            fsync,
            beyond,
            ..
        } = request
        else {
            return Err("not a whole file".to_owned());
        };
        let mut target = create(around, &target, inplace, keep.as_deref())?;
        target.sums = around.ledger.map(|ledger| ledger.open(job));
        let bytes = pieces.concat();
        if let Some(sums) = &target.sums {
            sums.add(0, std::iter::once(bytes.as_slice()));
        }
        if let Err(e) = around.fs.write(target.inode, 0, &bytes) {
            discard(around.fs, target);
            return Err(words(e).to_owned());
        }
        let size = bytes.len() as u64;
        self.written += size;
        let kept = (&attributes, &beyond);
        let stored = finish(around.fs, target, size, kept, (preserve, fsync))?;
        Ok(DiskReply::Finished { job, stored })
    }
}

fn data_of(fs: &mut Fs, inode: u64) -> Result<&[u8], String> {
    match &fs.node(inode).map_err(words)?.kind {
        Kind::File(data) => Ok(data),
        _ => Err("not a regular file".to_owned()),
    }
}

fn beside(path: &[u8], name: &[u8]) -> Vec<u8> {
    let at = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    [path.get(..at).unwrap_or_default(), name].concat()
}

fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or_default()
}

/// Path of a target: only a symlink that the command names is followed.
fn real_target(fs: &Fs, path: &LocalTargetPath) -> Vec<u8> {
    let whole = bytes_of(&path.whole());
    match path.is_named() {
        true => fs.resolve(&whole, true).unwrap_or(whole),
        false => whole,
    }
}

/// Opens the temporary of an earlier run, as `disk::adopt_target` does.
fn adopt(fs: &mut Fs, path: &LocalTargetPath, keep: Option<&ResumeData>) -> Option<Target> {
    let keep = keep?;
    let left = keep.left.as_ref()?;
    let path = real_target(fs, path);
    let temporary = beside(&path, &keep.temporary(name_of(&path), 0));
    let inode = fs.lookup(&temporary, false).ok()?;
    let attributes = attributes(fs, inode).ok()?;
    let seen = ExistingFile {
        size: attributes.size.unwrap_or(0),
        mtime: attributes.times.map_or(0, |(_, at)| u64::from(at) * SECOND),
    };
    if !left.may_go_on(seen) {
        let _ = fs.remove(&temporary, false);
        return None;
    }
    Some(Target {
        inode,
        path,
        temporary: Some(temporary),
        incomplete: false,
        stays: true,
        sums: None,
    })
}

fn create(
    around: &mut Around<'_>,
    path: &LocalTargetPath,
    inplace: bool,
    keep: Option<&ResumeData>,
) -> Result<Target, String> {
    let path = real_target(around.fs, path);
    let is_dir = |node: &&mut testkit::sftp_model::Node| node.kind == Kind::Dir;
    if let Ok(inode) = around.fs.lookup(&path, false)
        && around.fs.node(inode).as_ref().is_ok_and(is_dir)
    {
        return Err("is a directory".to_owned());
    }
    if inplace {
        let opened = around.fs.open(&path, true, (true, true, false), 0o600);
        return Ok(Target::new(opened.map_err(words)?, path, None));
    }
    for tries in 0..16 {
        let name = match keep {
            Some(keep) if tries < 3 => keep.temporary(name_of(&path), tries),
            _ => schedule::tagged_name(name_of(&path), around.rng.next_u64()),
        };
        let temporary = beside(&path, &name);
        match around.fs.open(&temporary, true, (true, false, true), 0o600) {
            Ok(inode) => return Ok(Target::new(inode, path, Some(temporary))),
            Err(Errno::Exist) => {}
            // A writable file in a directory that is not writable is overwritten.
            Err(Errno::Access) if around.fs.lookup(&path, false).is_ok() => {
                let opened = around.fs.open(&path, true, (false, false, false), 0);
                return Ok(Target::new(opened.map_err(words)?, path, None));
            }
            Err(e) => return Err(words(e).to_owned()),
        }
    }
    Err("file exists".to_owned())
}

fn discard(fs: &mut Fs, target: Target) {
    if let Some(temporary) = target.temporary {
        let _ = fs.remove(&temporary, false);
    }
}

/// Completes a file as `disk::target` does: a replaced file keeps its mode, unless the source's is
/// preserved.
fn finish(
    fs: &mut Fs,
    target: Target,
    size: u64,
    (attributes, beyond): (&Attributes, &ExtraMetadata),
    (preserve, fsync): (bool, bool),
) -> Result<StoredTarget, String> {
    if target.incomplete {
        discard(fs, target);
        return Err("a write failed".to_owned());
    }
    let mut stored = StoredTarget::default();
    if let Some(owner) = beyond.owner {
        let attrs = Attrs {
            owner: Some(owner),
            ..Attrs::default()
        };
        if let Err(e) = fs.set(target.inode, &attrs) {
            stored.not_kept.push((Parts::OWNER, words(e).to_owned()));
        }
    }
    let replaced = fs.lookup(&target.path, false).and_then(|at| fs.stat(at));
    let replaced = replaced.ok().and_then(|found| found.permissions);
    let umask = fs.umask;
    let node = fs.node(target.inode).map_err(words)?;
    if let Kind::File(data) = &mut node.kind {
        data.resize(size as usize, 0);
    }
    node.mode = match (attributes.mode, replaced) {
        (Some(mode), _) if preserve => mode & 0o7777,
        (_, Some(replaced)) => replaced & 0o1777,
        (mode, None) => mode.unwrap_or(0o666) & 0o777 & !umask,
    };
    if preserve && let Some(times) = attributes.times {
        node.times = times;
    }
    if fsync {
        fs.sync(target.inode);
    }
    if let Some(temporary) = &target.temporary {
        fs.rename(temporary, &target.path, true)
            .map_err(|e| words(e).to_owned())?;
    }
    Ok(stored)
}
