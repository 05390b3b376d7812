//! Jobs in flight, and the answers to questions that the copy waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use schedule::journal::ExistingFile;
use schedule::{Attributes, EntryKind, JobId, Parts};
use sftp::pattern::NamePattern;

use super::context::CopyContext;
use super::file::{ActiveFiles, CopyFileId, JobRole};
use super::sides::CopySide;
use super::source::WalkId;
use super::symlink::RefusedSymlink;
use super::tree::{CopyDirectoryId, IncompleteTargetDirs, ItemAwaitingDirectory};
use super::verify::ChecksumRequest;
use crate::file_error::FileError;
use crate::report::EscapedName;
use crate::session::MOST_JOBS;

/// Bytes that the paths of all jobs in flight may take; 16,384 jobs with usual paths take less. A
/// server that listed names of 4 KB made a copy take 1.3 GB.
const JOB_PATHS: usize = 64 << 20;
/// Bytes of names that the patterns of a run may match in all directories together, and the
/// overhead of each name.
pub(super) const MOST_MATCHED: usize = 256 << 20;
const NAME: usize = 100;

const SECOND: u64 = 1_000_000_000;

/// Purpose of a job, which decides how its result is handled.
///
/// There is one for each file that waits, so variants of other jobs are boxed.
#[derive(Debug)]
pub(super) enum JobPurpose {
    /// [`super::server_inquiry::ServerInquiry::ask`] waits for the answer.
    Ask,
    /// Attributes or canonical path of a root.
    Root(WalkId),
    /// Listing of a root that is not yet known to be a directory.
    Listing(WalkId),
    /// Request of a walk, with the walk's tag.
    Walk(WalkId, u64),
    MakeDir(CopyDirectoryId),
    /// Gives the owner of an existing directory the permissions to fill it.
    GrantAccess(CopyDirectoryId),
    FinishDir(CopyDirectoryId),
    /// Mode bits of a directory that is still being filled.
    DirMode(EscapedName),
    /// Makes directories durable; the name is one of them.
    Durable(EscapedName),
    File(CopyFileId, JobRole),
    /// Checks if a guessed target is a directory.
    Guess(CopyFileId),
    /// Attributes of a file that no listing described.
    Size(CopyFileId),
    ReadSymlink(Box<ItemAwaitingDirectory>),
    MakeSymlink(Box<ItemAwaitingDirectory>),
    /// Reads the symlink in place of which one could not be made.
    ReadRefusedSymlink(Box<RefusedSymlink>),
    MakeHardLink(Box<ItemAwaitingDirectory>),
    /// Extended attributes of a file or a directory.
    FileXattrs(CopyFileId),
    DirXattrs(CopyDirectoryId),
    /// Names of owners at the source, and the IDs of these names at the target.
    OwnerNames,
    OwnerIds,
    /// Reads a file back to compare it.
    Check(CopyFileId),
    /// Checksum of a range of a file that is verified.
    Sum(ChecksumRequest),
    /// Downloads the boot ID of the target's kernel into this file.
    Boot(PathBuf),
    /// Downloads the boot ID again after a reconnect.
    BootAgain(PathBuf),
    /// Checks if a file is still as an earlier run left it.
    Taken(CopyFileId),
    /// Reads the target's clock from a file's modification time, after this number of files without
    /// a time was finished.
    Clock(u64),
    /// Removes a temporary of an earlier run, or that of a file which has failed.
    Cleared(Box<TemporaryRemoval>),
    /// Sets the times of a symlink; the result is ignored, since many systems cannot do it.
    SymlinkTimes,
    /// Sets attributes of a complete file that the server refused while it was open. Those that it
    /// refuses again are reported as not kept.
    FileAttributes(EscapedName, Parts),
}

/// Removal of a temporary at a server.
#[derive(Debug, Default)]
pub(super) struct TemporaryRemoval {
    pub path: Vec<u8>,
    /// Number of its file in the journal, if that is forgotten then.
    pub entry: Option<u64>,
    /// Directory of the target that waits for the removal.
    pub dir: Option<CopyDirectoryId>,
    /// A temporary that stays is named.
    pub tells: bool,
}

impl TemporaryRemoval {
    /// Removal of the temporary at `path`, which is named if it stays and the removal `tells`.
    pub(super) fn new(path: Vec<u8>, tells: bool) -> Self {
        Self {
            path,
            tells,
            ..Self::default()
        }
    }
}

impl JobPurpose {
    /// Name at the target of the file or directory that the job stores, for messages.
    pub(super) fn shown(
        &self,
        context: &CopyContext<'_>,
        files: &ActiveFiles,
        tree: &IncompleteTargetDirs,
    ) -> Option<EscapedName> {
        match self {
            Self::File(file, _) => {
                let target = files.get(file)?.target();
                Some(context.shown(CopySide::Target, target))
            }
            Self::FinishDir(dir) => tree.shown(context, *dir),
            Self::DirMode(shown) | Self::FileAttributes(shown, _) => Some(shown.clone()),
            _ => None,
        }
    }
}

/// Jobs in flight and their purposes.
#[derive(Debug, Default)]
pub(super) struct JobsInFlight {
    begun: u64,
    /// Length of the longest path of a source and its target so far, in bytes.
    longest_path: usize,
    purposes: BTreeMap<JobId, (CopySide, JobPurpose)>,
    answers: BTreeMap<JobId, PathQueryAnswer>,
    /// Bytes of names that patterns have matched so far.
    matched_bytes: usize,
}

impl JobsInFlight {
    /// ID of the next job.
    pub(super) fn next_id(&self) -> JobId {
        JobId(self.begun + 1)
    }

    /// Begins the next job, which runs at `end`.
    pub(super) fn begin(&mut self, end: CopySide, purpose: JobPurpose) {
        self.begun += 1;
        self.purposes.insert(JobId(self.begun), (end, purpose));
    }

    pub(super) fn get(&self, id: &JobId) -> Option<&(CopySide, JobPurpose)> {
        self.purposes.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &JobId) -> Option<&mut (CopySide, JobPurpose)> {
        self.purposes.get_mut(id)
    }

    pub(super) fn remove(&mut self, id: &JobId) -> Option<(CopySide, JobPurpose)> {
        self.purposes.remove(id)
    }

    pub(super) fn len(&self) -> usize {
        self.purposes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.purposes.is_empty()
    }

    /// Jobs that run at `end`.
    pub(super) fn at(&self, end: CopySide) -> Vec<JobId> {
        let here = self.purposes.iter().filter(|(_, (at, _))| *at == end);
        here.map(|(id, _)| *id).collect()
    }

    /// Notes the length of the paths of a source and its target, in bytes.
    pub(super) fn note_paths(&mut self, len: usize) {
        self.longest_path = self.longest_path.max(len);
    }

    /// True if another job may begin besides `waiting` items that will need one. A job holds its
    /// paths about four times.
    pub(super) fn has_room(&self, waiting: usize) -> bool {
        let most = JOB_PATHS / (4 * self.longest_path).max(1);
        self.len() + waiting < most.min(MOST_JOBS)
    }

    /// Notes that the copy waits for the answer of a job.
    pub(super) fn asks(&mut self, id: JobId, answer: PathQueryAnswer) {
        self.answers.insert(id, answer);
    }

    /// Answer of a listing that keeps the names that `wanted` selects.
    pub(super) fn answer_of_names(&self, wanted: ListingFilter) -> PathQueryAnswer {
        PathQueryAnswer {
            wanted: Some(wanted),
            bytes: self.matched_bytes,
            ..PathQueryAnswer::default()
        }
    }

    /// Notes that patterns have matched `bytes` of names. Returns false if these are too many.
    pub(super) fn may_match(&mut self, bytes: usize) -> bool {
        self.matched_bytes = bytes;
        bytes <= MOST_MATCHED
    }

    pub(super) fn asks_no_more(&mut self, id: JobId) {
        self.answers.remove(&id);
    }

    /// Answer that a job collects, if the copy waits for it.
    pub(super) fn answer(&mut self, id: JobId) -> Option<&mut PathQueryAnswer> {
        self.answers.get_mut(&id)
    }

    /// Takes the answer of a job that is over.
    pub(super) fn take_answer(&mut self, id: JobId) -> Option<Result<PathQueryAnswer, FileError>> {
        let over = self.answers.get(&id)?.over.clone()?;
        let answer = self.answers.remove(&id)?;
        Some(over.map(|()| answer))
    }
}

/// Selects entries of a listing.
#[derive(Clone, Debug)]
pub(super) enum ListingFilter {
    /// The names that match a pattern.
    Pattern {
        pattern: NamePattern,
        /// No files.
        only_directories: bool,
    },
    /// These names.
    Names(Arc<BTreeSet<Vec<u8>>>),
}

impl ListingFilter {
    /// Selects the names that match `pattern`; of files, none if `only_directories`.
    pub(super) fn new(pattern: NamePattern, only_directories: bool) -> Self {
        Self::Pattern {
            pattern,
            only_directories,
        }
    }

    /// Number of names after which no other one is kept: a server may list names again and again.
    fn most(&self) -> usize {
        match self {
            Self::Pattern { .. } => usize::MAX,
            Self::Names(names) => names.len(),
        }
    }

    fn selects(&self, name: &[u8], attributes: &Attributes) -> bool {
        match self {
            Self::Pattern {
                pattern,
                only_directories,
            } => {
                let may = !only_directories || attributes.kind() != EntryKind::File;
                may && pattern.matches(name)
            }
            Self::Names(names) => names.contains(name),
        }
    }
}

/// Name of a regular file in a listing, with its size and time.
pub(super) type ListedFile = (Vec<u8>, ExistingFile);

/// Size and time of a regular file in a listing that has both.
fn listed_file(attributes: &Attributes) -> Option<ExistingFile> {
    let is_file = attributes.kind() == EntryKind::File;
    let (size, (_, mtime)) = attributes.size.zip(attributes.times)?;
    is_file.then_some(ExistingFile {
        size,
        mtime: u64::from(mtime) * SECOND,
    })
}

/// Answer to a query about a path, as far as it has arrived: attributes, canonical path, file
/// system or names of a listing.
#[derive(Debug, Default)]
pub(super) struct PathQueryAnswer {
    attributes: Option<Attributes>,
    path: Option<Vec<u8>>,
    /// Identity of a file system.
    file_system: Option<u64>,
    /// Matching names of a listing.
    names: Vec<Vec<u8>>,
    /// Regular files among names that were given, with size and time as the listing says.
    files: Vec<ListedFile>,
    /// Bytes that this listing and those before it have matched.
    bytes: usize,
    /// Selects the names of a listing to keep.
    wanted: Option<ListingFilter>,
    /// Names in the listing that no file can have.
    left_out: Vec<Vec<u8>>,
    over: Option<Result<(), FileError>>,
}

impl PathQueryAnswer {
    /// Takes the matching names from a part of a listing and drops all others.
    pub(super) fn list(&mut self, entries: Vec<(Vec<u8>, Attributes)>) {
        let Some(wanted) = &self.wanted else { return };
        for (name, attributes) in entries {
            let is_full = self.bytes > MOST_MATCHED || self.names.len() >= wanted.most();
            if is_full || !wanted.selects(&name, &attributes) {
                continue;
            }
            self.bytes += name.len() + NAME;
            if matches!(wanted, ListingFilter::Names(_))
                && let Some(file) = listed_file(&attributes)
            {
                self.files.push((name.clone(), file));
            }
            self.names.push(name);
        }
    }

    /// Notes a name that no file can have, unless the listing is searched for names that are known.
    pub(super) fn leave_out(&mut self, name: Vec<u8>) {
        if !matches!(self.wanted, Some(ListingFilter::Names(_))) {
            self.left_out.push(name);
        }
    }

    pub(super) fn set_attributes(&mut self, attributes: Attributes) {
        self.attributes = Some(attributes);
    }

    pub(super) fn set_path(&mut self, path: Vec<u8>) {
        self.path = Some(path);
    }

    pub(super) fn set_file_system(&mut self, identity: u64) {
        self.file_system = Some(identity);
    }

    pub(super) fn end(&mut self, result: Result<(), FileError>) {
        self.over = Some(result);
    }

    pub(super) fn attributes(&self) -> Option<Attributes> {
        self.attributes
    }

    pub(super) fn file_system(&self) -> Option<u64> {
        self.file_system
    }

    pub(super) fn into_path(self) -> Option<Vec<u8>> {
        self.path
    }

    /// Takes the names in the listing that no file can have.
    pub(super) fn take_left_out(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.left_out)
    }

    /// Bytes that this listing and those before it take, each name with `dir` in front.
    pub(super) fn bytes_below(&self, dir: &[u8]) -> usize {
        self.bytes + self.names.len() * dir.len()
    }

    pub(super) fn into_names(self) -> Vec<Vec<u8>> {
        self.names
    }

    /// The names, and the regular files among those that were given.
    pub(super) fn into_names_and_files(self) -> (Vec<Vec<u8>>, Vec<ListedFile>) {
        (self.names, self.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<(Vec<u8>, Attributes)> {
        names
            .iter()
            .map(|name| (name.as_bytes().to_vec(), Attributes::default()))
            .collect()
    }

    /// A server that lists the same names again and again does not fill the memory.
    #[test]
    fn an_endless_listing_keeps_no_more_names_than_were_looked_for() {
        let jobs = JobsInFlight::default();
        let wanted: BTreeSet<Vec<u8>> = [b"a".to_vec(), b"b".to_vec()].into();
        let mut answer = jobs.answer_of_names(ListingFilter::Names(Arc::new(wanted)));
        for _ in 0..1000 {
            answer.list(names(&["a", "x", "a", "b"]));
        }
        assert_eq!(answer.into_names().len(), 2);
    }

    /// Patterns may match so many bytes of names in all directories together.
    #[test]
    fn patterns_match_a_bounded_number_of_bytes() {
        let mut jobs = JobsInFlight::default();
        let pattern = |text: &[u8]| match sftp::pattern::parse(text) {
            Some(parts) => match parts.into_iter().next_back() {
                Some(sftp::pattern::PathComponent::Pattern(pattern)) => pattern,
                _ => panic!("a pattern"),
            },
            None => panic!("a pattern"),
        };
        let name = "n".repeat(200);
        let mut directories = 0;
        loop {
            let filter = ListingFilter::new(pattern(b"n*"), false);
            let mut answer = jobs.answer_of_names(filter);
            let part: Vec<&str> = vec![&name; 1000];
            for _ in 0..100 {
                answer.list(names(&part));
            }
            directories += 1;
            assert!(directories < 50, "it has no limit");
            if !jobs.may_match(answer.bytes_below(b"dir")) {
                break;
            }
        }
        let least = MOST_MATCHED / (100_000 * (200 + NAME + 3));
        assert!(directories > least, "{directories}");
    }

    /// `pattern/*` looks into directories; a file of that name is none, and an entry whose kind a
    /// server does not tell may be one.
    #[test]
    fn a_pattern_for_directories_matches_no_file() {
        let parts = sftp::pattern::parse(b"a*").expect("a pattern");
        let Some(sftp::pattern::PathComponent::Pattern(pattern)) = parts.into_iter().next_back()
        else {
            panic!("a pattern");
        };
        let of = |mode: Option<u32>| Attributes {
            mode,
            ..Attributes::default()
        };
        for (only_directories, expected) in [
            (true, vec!["ad", "al", "au"]),
            (false, vec!["ad", "af", "al", "au"]),
        ] {
            let jobs = JobsInFlight::default();
            let filter = ListingFilter::new(pattern.clone(), only_directories);
            let mut answer = jobs.answer_of_names(filter);
            answer.list(vec![
                (b"ad".to_vec(), of(Some(0o040_755))),
                (b"af".to_vec(), of(Some(0o100_644))),
                (b"al".to_vec(), of(Some(0o120_777))),
                (b"au".to_vec(), of(None)),
                (b"bd".to_vec(), of(Some(0o040_755))),
            ]);
            let found = answer.into_names();
            let expected: Vec<Vec<u8>> = expected
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect();
            assert_eq!(found, expected);
        }
    }

    /// Long paths take memory four times for each job: fewer jobs begin.
    #[test]
    fn long_paths_leave_room_for_fewer_jobs() {
        let mut jobs = JobsInFlight::default();
        assert!(jobs.has_room(MOST_JOBS - 1) && !jobs.has_room(MOST_JOBS));
        jobs.note_paths(100);
        assert!(jobs.has_room(MOST_JOBS - 1));
        jobs.note_paths(1 << 20);
        jobs.note_paths(5);
        assert!(
            jobs.has_room(15) && !jobs.has_room(16),
            "the longest path counts"
        );
    }

    /// An answer is taken once it is over, and once.
    #[test]
    fn an_answer_is_taken_when_it_is_complete() {
        let mut jobs = JobsInFlight::default();
        let id = jobs.next_id();
        jobs.begin(CopySide::Source, JobPurpose::Ask);
        jobs.asks(id, PathQueryAnswer::default());
        assert!(jobs.take_answer(id).is_none());
        let answer = jobs.answer(id).expect("it is waited for");
        answer.set_path(b"/real".to_vec());
        assert!(jobs.take_answer(id).is_none(), "it may have another part");
        jobs.answer(id).expect("it is waited for").end(Ok(()));
        let answer = jobs
            .take_answer(id)
            .expect("it is over")
            .expect("it has not failed");
        assert_eq!(answer.into_path(), Some(b"/real".to_vec()));
        assert!(jobs.take_answer(id).is_none());
        assert_eq!(jobs.at(CopySide::Source), [id]);
        assert!(jobs.at(CopySide::Target).is_empty());
    }

    /// Bug: a job kept room for the largest purpose of any job, 336 bytes, and a file 270 bytes for what
    /// hardly any file needs: a copy of 50,000 files took 12 MB more than it had before.
    #[test]
    fn a_waiting_file_takes_the_memory_of_what_it_needs() {
        assert!(size_of::<JobPurpose>() <= 48, "{}", size_of::<JobPurpose>());
        let file = size_of::<crate::copy::file::FileTask>();
        assert!(file <= 648, "{file}");
    }
}
