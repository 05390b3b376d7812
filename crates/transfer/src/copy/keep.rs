//! What of a copy is written down, and what an earlier run of it has left.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plan::journal::{Entry, Record, Seen, SourceId, State};
use plan::{Attributes, JobId, JobKind, Keep, Kept, RemotePath};

use super::engine::{End, Engine, Purpose};
use super::file::FileId;
use super::source::Onto;
use super::{CopyRequest, Place as Operand};
use crate::disk::os_words;
use crate::journal::{Found, Log, Place, boot_here};
use crate::report::{Event, Name};
use crate::walk::local_path;

/// A copy of less is sent again rather than written down.
const LEAST_BYTES: u64 = 16 << 20;
/// The same for files.
const LEAST_FILES: u64 = 256;
/// How often a server's clock is looked at, by the time of a file that it has just got.
const CLOCK: Duration = Duration::from_secs(1);
/// Such files are looked at each.
const LARGE: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
/// Where Linux names the start of its kernel.
const BOOT: &[u8] = b"/proc/sys/kernel/random/boot_id";
/// A UUID and a line feed.
const BOOT_LEN: u64 = 37;

/// The journal of a run.
#[derive(Default)]
pub(super) struct Keeper {
    place: Option<Place>,
    /// What an earlier run has left and nobody has asked for yet.
    state: State,
    /// Nothing of it is gone on with.
    afresh: bool,
    log: Option<Log>,
    /// There is enough to be worth it: files wait until they are written down.
    waits: bool,
    /// The receiving machine was asked for the start of its kernel.
    boot_asked: bool,
    /// The lane that asked was lost, and another one asks.
    pub(super) boot_lost: bool,
    /// What is written once there is.
    early: Vec<Record>,
    bytes: u64,
    files: u64,
    next: u64,
    /// Files whose `Begun` is not durable yet.
    waiting: VecDeque<(u64, FileId)>,
    clock_at: Option<Instant>,
    target: Option<PathBuf>,
    /// Files and bytes of the earlier run.
    pub(super) taken: (u64, u64),
}

/// What to do with a file.
pub(super) enum Start {
    /// Copy it.
    Now,
    /// It is begun, or over, later.
    Later,
}

impl Keeper {
    pub(super) fn is_on(&self) -> bool {
        self.place.is_some()
    }

    /// What is written, if there is something.
    pub(super) fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    /// Files wait for it, and what is left of them is gone on with.
    pub(super) fn goes_on(&self) -> bool {
        self.waits && self.log.is_some()
    }

    /// Files that wait for it.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn drop_waiting(&mut self) {
        self.waiting.clear();
    }

    fn write(&mut self, record: Record) -> u64 {
        let number = self.log.as_mut().map_or(0, |log| log.write(&record));
        if !self.waits {
            self.early.push(record);
        }
        number
    }
}

impl Engine<'_> {
    /// Looks for what an earlier run of this copy has left; false if another one is under way.
    pub(super) fn find_journal(&mut self, request: &CopyRequest) -> bool {
        let remote = |place: &Operand| matches!(place, Operand::Remote { .. });
        let to = remote(&request.target);
        let one_way = request.sources.iter().all(|source| remote(source) != to);
        if !self.options.journal || self.options.inplace || !one_way {
            return true;
        }
        let local = match &request.target {
            Operand::Local(path) => Some(path.clone()),
            Operand::Remote { .. } => None,
        };
        let place = Place::new(self.identity(request), local.as_deref());
        let found = place.find();
        self.keeper.target = local;
        self.keeper.afresh = self.options.afresh;
        match found {
            Ok(Found::Nothing) => {}
            Ok(Found::Aside(why)) => self.warn(None, why),
            Ok(Found::Busy(path)) => {
                let what = format!(
                    "the same copy is already under way: another longhaul writes {}",
                    Name::from(&*path)
                );
                let target = self.place_name(&request.target);
                self.fail(None, target, what);
                return false;
            }
            Ok(Found::Left {
                file,
                path,
                mut state,
                good,
            }) => {
                if self.keeper.target.is_some() {
                    state.started(boot_here());
                }
                let (target, soft) = (self.keeper.target.clone(), state.soft() as u64);
                match Log::start(file, path, good, target, soft) {
                    Ok(log) => {
                        self.keeper.log = Some(log);
                        self.keeper.waits = true;
                        self.keeper.next = state.next_id();
                        self.keeper.state = *state;
                        if self.keeper.target.is_some() {
                            self.keeper.write(Record::Run { boot: boot_here() });
                        }
                    }
                    Err(e) => self.warn_of_journal(&os_words(&e)),
                }
            }
            Err(e) => self.warn_of_journal(&os_words(&e)),
        }
        self.keeper.place = Some(place);
        true
    }

    fn warn_of_journal(&mut self, why: &str) {
        let text = format!("this copy cannot be gone on with if it is interrupted: {why}");
        self.warn(None, text);
    }

    /// Sources, destination and the flags that change the result.
    fn identity(&self, request: &CopyRequest) -> Vec<u8> {
        let mut identity = Vec::new();
        for flag in [
            self.options.recursive,
            self.options.preserve,
            self.options.archive,
        ] {
            identity.push(b'0' + u8::from(flag));
        }
        for place in request.sources.iter().chain([&request.target]) {
            identity.push(0);
            identity.extend_from_slice(&self.place_name(place).0);
        }
        identity
    }

    fn place_name(&self, place: &Operand) -> Name {
        match place {
            Operand::Local(path) => {
                let absolute = std::path::absolute(path);
                let path = absolute.as_ref().unwrap_or(path);
                Name(path.as_os_str().as_bytes().to_vec())
            }
            Operand::Remote { host, path } => {
                let host = self.connect.identity(*host);
                Name([host.as_bytes(), b":", path.as_slice()].concat())
            }
        }
    }

    /// The target's session stands: what its machine had in memory only may be lost.
    pub(super) fn ask_for_boot(&mut self) {
        if self.keeper.log.is_none() || self.target.is_none() {
            return;
        }
        let boot = self.boot_there();
        self.keeper.state.started(boot.clone());
        self.keeper.write(Record::Run { boot });
    }

    fn boot_there(&mut self) -> Vec<u8> {
        let Some((kind, file)) = self.boot_job() else {
            return Vec::new();
        };
        // Where it cannot be read nobody knows.
        let _ = self.ask(End::Target, kind);
        read_boot(&file)
    }

    /// Asks for the start of the target's kernel, into a file beside the journal.
    fn boot_job(&self) -> Option<(JobKind, PathBuf)> {
        let mut file = self.keeper.log()?.path().as_os_str().to_owned();
        file.push(".boot");
        let kind = JobKind::Get {
            source: RemotePath(BOOT.to_vec()),
            target: file.clone().into(),
            // No look before it is opened: each round trip may come behind data.
            known: Some(Attributes {
                size: Some(BOOT_LEN),
                mode: Some(0o100_444),
                ..Attributes::default()
            }),
            options: plan::PutOptions::default(),
        };
        Some((kind, file.into()))
    }

    /// Where sources go as the first run found it: a directory that it has made is none that
    /// stood there.
    pub(super) fn onto_before(&self) -> Option<Onto> {
        let (into, path) = self.keeper.state.onto()?;
        Some(match into {
            true => Onto::Into(path.to_vec()),
            false => Onto::Exactly(path.to_vec()),
        })
    }

    pub(super) fn note_onto(&mut self, onto: &Onto) {
        if !self.keeper.is_on() || self.keeper.state.onto().is_some() {
            return;
        }
        let (into, path) = match onto {
            Onto::Into(path) => (true, path),
            Onto::Exactly(path) => (false, path),
            // Tried again in the same way.
            Onto::Guess(_) => return,
        };
        let path = path.clone();
        self.keeper.write(Record::Onto { into, path });
        // The first thing that such a copy makes is a directory of that name. Were it not known
        // whose that is, the same command would go into it the next time.
        let makes = !into && (self.options.recursive || self.options.archive);
        if makes && self.keeper.log.is_none() {
            self.create_journal();
            // Behind hundreds of files the answer would come after much that it is needed for.
            self.learn_boot();
        }
    }

    /// Decides how a file is begun.
    pub(super) fn keep(&mut self, id: FileId) -> Start {
        if !self.keeper.is_on() {
            return Start::Now;
        }
        let Some(task) = self.files.get(&id) else {
            return Start::Later;
        };
        if task.keep.is_some() {
            return Start::Now;
        }
        let Some(source) = self.source_id(&task.source, task.attributes) else {
            return Start::Now;
        };
        let target = task.target.clone();
        let known = self
            .keeper
            .state
            .file(&target)
            .map(|(id, entry)| (id, entry.clone()));
        let same = |entry: &Entry| entry.source == source && !self.keeper.afresh;
        match known {
            Some((_, entry)) if entry.done.is_some() && same(&entry) => {
                return self.look_if_done(id, &entry);
            }
            Some((of, entry)) if entry.done.is_none() => {
                self.keeper.state.take(of);
                let left = entry.left();
                let beside = entry.temp.as_ref().is_none_or(|temp| {
                    *temp
                        == Keep {
                            tag: entry.tag,
                            ..Keep::default()
                        }
                        .temporary(&target, 0)
                });
                if same(&entry) && beside && !left.ranges.is_empty() {
                    let bytes = left.ranges.iter().map(|(from, to)| to - from).sum();
                    let keep = Box::new(Keep {
                        tag: entry.tag,
                        again: 0,
                        left: Some(left),
                    });
                    if let Some(task) = self.files.get_mut(&id) {
                        task.entry = Some(of);
                        task.keep = Some(keep);
                        task.taken = bytes;
                    }
                    return Start::Now;
                }
                self.clear(&entry);
                self.keeper.write(Record::Forgotten { id: of });
            }
            Some((of, _)) => {
                self.keeper.state.take(of);
            }
            None => {}
        }
        self.begin_kept(id, target, source)
    }

    fn begin_kept(&mut self, id: FileId, target: Vec<u8>, source: SourceId) -> Start {
        let mut letters = [0; 8];
        // Names only have to differ from each other; O_EXCL decides.
        let _ = aws_lc_rs::rand::fill(&mut letters);
        let tag = u64::from_be_bytes(letters);
        let of = self.keeper.next;
        self.keeper.next += 1;
        if let Some(task) = self.files.get_mut(&id) {
            let keep = Keep {
                tag,
                ..Keep::default()
            };
            task.entry = Some(of);
            task.keep = Some(Box::new(keep));
        }
        self.keeper.files += 1;
        self.keeper.bytes += source.size;
        let begun = Record::Begun {
            id: of,
            target,
            source,
            tag,
        };
        let number = self.keeper.write(begun);
        if self.keeper.waits {
            self.keeper.waiting.push_back((number, id));
            return Start::Later;
        }
        if self.keeper.bytes >= LEAST_BYTES || self.keeper.files >= LEAST_FILES {
            let number = self.open_journal();
            if number > 0 {
                self.keeper.waiting.push_back((number, id));
                return Start::Later;
            }
        }
        self.start_kept(id);
        Start::Later
    }

    /// There is enough to be worth it: what is begun waits until it is written down. Returns the
    /// number of the last record; 0 if it cannot be.
    fn open_journal(&mut self) -> u64 {
        if self.keeper.log.is_none() {
            self.create_journal();
        }
        let Some(log) = &mut self.keeper.log else {
            return 0;
        };
        let number = log.sync_from_now_on();
        self.keeper.waits = true;
        self.keeper.early.clear();
        self.learn_boot();
        number
    }

    /// Writes down what has come since the last time, before anything is waited for.
    pub(super) fn write_out(&mut self) {
        if let Some(Err(e)) = self.keeper.log.as_mut().map(Log::write_out) {
            self.warn_of_journal(&os_words(&e));
        }
    }

    fn no_journal(&mut self, e: &std::io::Error) {
        self.keeper.place = None;
        self.keeper.early.clear();
        self.warn_of_journal(&os_words(e));
    }

    /// Makes the journal and writes down what was kept in mind.
    fn create_journal(&mut self) {
        let Some(place) = &self.keeper.place else {
            return;
        };
        let target = self.keeper.target.clone();
        let identity = place.identity().to_vec();
        let made = place.create();
        let log = made.and_then(|(file, path)| Log::start(file, path, 0, target, 0));
        match log {
            Ok(mut log) => {
                log.write(&Record::Copy { identity });
                // A server is not waited for: what is done before it answers is taken for lost
                // should it start anew.
                let boot = match self.keeper.target.is_some() {
                    true => boot_here(),
                    false => Vec::new(),
                };
                log.write(&Record::Run { boot });
                for record in &self.keeper.early {
                    log.write(record);
                }
                self.keeper.log = Some(log);
            }
            Err(e) => self.no_journal(&e),
        }
    }

    fn learn_boot(&mut self) {
        if self.target.is_none() || self.keeper.boot_asked {
            return;
        }
        self.keeper.boot_asked = true;
        if let Some((kind, file)) = self.boot_job() {
            self.submit(End::Target, kind, Purpose::Boot(file));
        }
    }

    pub(super) fn on_boot(&mut self, file: &Path) {
        let boot = read_boot(file);
        if !boot.is_empty() {
            // Of a lane that was lost nobody knows whether its machine stood meanwhile.
            self.keeper.write(match self.keeper.boot_lost {
                true => Record::Run { boot },
                false => Record::Boot { boot },
            });
        }
    }

    /// Begins files whose names are written down.
    pub(super) fn start_written(&mut self) {
        let Some(log) = &self.keeper.log else { return };
        let _ = log.bell().try_recv();
        let durable = log.durable();
        while self
            .keeper
            .waiting
            .front()
            .is_some_and(|(n, _)| *n <= durable)
        {
            if let Some((_, id)) = self.keeper.waiting.pop_front() {
                self.start_kept(id);
            }
        }
    }

    /// What of a source must be the same.
    fn source_id(&self, path: &[u8], attributes: Option<Attributes>) -> Option<SourceId> {
        if self.source.is_some() {
            let attributes = attributes?;
            return Some(SourceId {
                size: attributes.size?,
                mtime: u64::from(attributes.times?.1) * SECOND,
                ..SourceId::default()
            });
        }
        let meta = fs::metadata(local_path(path)).ok()?;
        Some(SourceId {
            size: meta.len(),
            mtime: crate::disk::mtime(&meta),
            inode: meta.ino(),
            device: meta.dev(),
        })
    }

    /// The earlier run gave it its name: whether it still has it.
    fn look_if_done(&mut self, id: FileId, entry: &Entry) -> Start {
        if self.target.is_some() {
            let path = RemotePath(entry.target.clone());
            let follow = true;
            let kind = JobKind::Stat { path, follow };
            self.submit(End::Target, kind, Purpose::Taken(id));
            return Start::Later;
        }
        let meta = fs::metadata(local_path(&entry.target)).ok();
        let seen = meta.filter(fs::Metadata::is_file).map(|meta| Seen {
            size: meta.len(),
            mtime: crate::disk::mtime(&meta),
        });
        self.on_taken(id, seen);
        Start::Later
    }

    pub(super) fn on_taken_seen(&mut self, id: FileId, attributes: Option<Attributes>) {
        if let Some(task) = self.files.get_mut(&id) {
            task.seen = attributes.map(|a| Seen {
                size: a.size.unwrap_or(0),
                mtime: a.times.map_or(0, |(_, m)| u64::from(m) * SECOND),
            });
        }
    }

    pub(super) fn on_taken_over(&mut self, id: FileId) {
        let seen = self.files.get_mut(&id).and_then(|task| task.seen.take());
        self.on_taken(id, seen);
    }

    pub(super) fn on_taken(&mut self, id: FileId, seen: Option<Seen>) {
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        let Some((of, entry)) = self.keeper.state.file(&task.target) else {
            return self.start_file(id);
        };
        let clock = self.keeper.state.clock();
        let stands = |done: plan::journal::Done| seen.is_some_and(|s| done.stands(s, clock));
        if entry.done.is_some_and(stands) {
            let size = entry.source.size;
            task.taken = size;
            task.confirmed = size;
            task.state = Some(plan::FileState::Renamed);
            self.progress.add_bytes(size);
            self.keeper.taken.0 += 1;
            self.file_done(id);
            return;
        }
        self.keeper.state.take(of);
        self.start_file(id);
    }

    /// Removes what an earlier run may have left of a file.
    fn clear(&mut self, entry: &Entry) {
        let mut names: Vec<Vec<u8>> = Keep::names(&entry.target, entry.tag).collect();
        names.extend(entry.temp.clone());
        for name in names {
            if self.target.is_some() {
                let path = RemotePath(name);
                self.submit(End::Target, JobKind::Remove { path }, Purpose::Cleared);
            } else {
                // Most of them never were.
                let _ = fs::remove_file(local_path(&name));
            }
        }
    }

    /// What is left of files that are no sources any more.
    pub(super) fn clear_leftovers(&mut self) {
        let left: Vec<Entry> = self
            .keeper
            .state
            .unfinished()
            .map(|(_, e)| e.clone())
            .collect();
        for entry in &left {
            self.clear(entry);
        }
        if !left.is_empty() {
            self.copy();
        }
    }

    pub(super) fn on_temporary(&mut self, job: JobId, path: Vec<u8>) {
        if let Some(task) = self.file_of(job)
            && let (Some(id), Some(keep)) = (task.entry, &task.keep)
            && keep.temporary(&task.target, 0) != path
        {
            self.keeper.write(Record::Temp { id, path });
        }
    }

    pub(super) fn on_kept(&mut self, job: JobId, kept: Kept) {
        if let Some(id) = self.file_of(job).and_then(|task| task.entry) {
            self.keeper.write(Record::Ranges {
                id,
                durable: kept.durable,
                mtime: kept.mtime,
                ranges: kept.ranges,
            });
        }
    }

    fn file_of(&self, job: JobId) -> Option<&super::file::FileTask> {
        match self.jobs.get(&job) {
            Some((_, Purpose::File(id, _))) => self.files.get(id),
            _ => None,
        }
    }

    /// A file that was copied in this run has its name.
    pub(super) fn note_done(&mut self, task: &super::file::FileTask) {
        let Some(id) = task.entry else { return };
        let size = task.confirmed;
        let mut mtime = 0;
        if self.target.is_none() {
            let Ok(meta) = fs::metadata(local_path(&task.target)) else {
                return;
            };
            mtime = crate::disk::mtime(&meta);
        } else if self.options.preserve || self.options.archive {
            let times = match self.source.is_some() {
                true => task.attributes.and_then(|a| a.times),
                false => fs::metadata(local_path(&task.source))
                    .ok()
                    .and_then(|meta| crate::disk::attributes(&meta).times),
            };
            mtime = times.map_or(0, |(_, m)| u64::from(m) * SECOND);
        }
        self.keeper.write(Record::Done {
            id,
            durable: self.options.fsync || task.synced,
            size,
            mtime,
        });
        let due = self.keeper.clock_at.is_none_or(|at| at.elapsed() >= CLOCK);
        if self.target.is_some() && self.keeper.goes_on() && (due || size >= LARGE) {
            self.keeper.clock_at = Some(Instant::now());
            let path = RemotePath(task.target.clone());
            let follow = true;
            let kind = JobKind::Stat { path, follow };
            self.submit(End::Target, kind, Purpose::Clock);
        }
    }

    pub(super) fn on_clock(&mut self, attributes: Attributes) {
        if let Some((_, modified)) = attributes.times
            && !(self.options.preserve || self.options.archive)
        {
            let mtime = u64::from(modified) * SECOND;
            self.keeper.write(Record::Clock { mtime });
        }
    }

    /// The run is over: a copy that is whole needs no journal. One that is small and came to its
    /// end without some files is begun anew.
    pub(super) fn close_journal(&mut self, whole: bool) {
        let Some(log) = self.keeper.log.take() else {
            if !whole && self.keeper.target.is_some() {
                self.clear_unwritten();
            }
            return;
        };
        let small = !self.keeper.waits;
        if small && !whole && self.keeper.target.is_some() {
            self.clear_unwritten();
        }
        if whole || (small && !self.stopped()) {
            log.remove();
        } else if !small {
            self.summary.journal = Some(Name::from(log.path()));
        }
    }

    /// Nothing was written down yet, so nobody would find the temporaries here again.
    fn clear_unwritten(&mut self) {
        for record in std::mem::take(&mut self.keeper.early) {
            let Record::Begun { target, tag, .. } = record else {
                continue;
            };
            for name in Keep::names(&target, tag) {
                // Most of them never were.
                let _ = fs::remove_file(local_path(&name));
            }
        }
    }

    /// Says what is taken over.
    pub(super) fn tell_resumed(&mut self) {
        let done = self.keeper.state.done() as u64;
        let parts = self
            .keeper
            .state
            .unfinished()
            .filter(|(_, e)| !e.proven().is_empty());
        let (files, bytes) = parts.fold((0, 0), |(files, bytes), (_, entry)| {
            let proven: u64 = entry.proven().iter().map(|(from, to)| to - from).sum();
            (files + 1, bytes + proven)
        });
        if self.keeper.log.is_some() && !self.keeper.afresh {
            self.tell(Event::Resumed {
                done,
                partial: files,
                partial_bytes: bytes,
            });
        }
    }
}

fn read_boot(file: &Path) -> Vec<u8> {
    let boot = fs::read(file).map(|text| text.trim_ascii().to_vec());
    let _ = fs::remove_file(file);
    boot.unwrap_or_default()
}
