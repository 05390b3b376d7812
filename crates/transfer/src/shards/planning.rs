//! Makes a plan: walks the source and writes the files of the shards.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use schedule::EntryKind;
use shard::{
    EntryShards, PlanHeader, PlanTotals, PlannedRange, ShardAssignment, ShardFileRange,
    ShardFileRecord, ShardTotals, cost,
};
use sync::{EntryTree, Filter, SortedTree, TreeEntryId, TreeEntryKind};

use super::attributes::planned;
use super::folder::{
    self, earlier_header, read_header, remove_others, shard_name, sum, tree_name, write_header,
};
use super::{PlanError, absolute, shown};
use crate::PrivateDir;
use crate::cancel::CancelToken;
use crate::copy::{
    CopyLocation, CopyOptions, CopyRequest, PlannedCopy, PlannedCopySide, RootOverlap,
    SessionConnector, with_environment,
};
use crate::disk::os_words;
use crate::report::{CopyEvent, CopySummary, ProgressCounters};
use crate::sync::listing::{self, RootAttributes, RootToList};

/// Beginning of the names of files that are being written.
pub(super) const NEW: &str = ".new.";
/// Name of the file that is locked during planning.
const LOCK: &str = ".planning";

/// Refusal of a plan whose operands name one directory.
pub const SAME_DIRECTORY: &str = "SRC and DST are the same directory: choose another DST";
/// Refusal of a plan whose target lies in its source.
pub const TARGET_INSIDE: &str =
    "DST is inside SRC, and a directory cannot be copied into itself: choose another DST";

/// Settings of a new plan.
#[derive(Clone, Debug)]
pub struct PlanCreationSettings {
    /// Directory to walk.
    pub source: CopyLocation,
    /// Source operand as written to the plan, with an absolute path if it is local.
    pub source_operand: Vec<u8>,
    /// Target operand as written to the plan, with an absolute path if it is local.
    pub target_operand: Vec<u8>,
    /// Path of a target on this machine.
    pub local_target: Option<PathBuf>,
    /// Number of shards.
    pub shards: u32,
    /// Least size in bytes of a range of a split file; `None` splits no file.
    pub least_range: Option<u64>,
    /// Folder for the plan.
    pub folder: PathBuf,
}

/// Result of making a plan: it was written, is unchanged, or is missing for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanOutcome {
    /// The plan was written.
    Written {
        /// Totals of all shards.
        totals: PlanTotals,
        /// Directories below the root.
        directories: u64,
        /// Files that are split into ranges.
        split: u64,
        /// Bytes of the smallest and of the largest shard.
        sizes: (u64, u64),
        /// An older plan, of which no shard was begun, was replaced.
        replaced: bool,
    },
    /// The folder has this plan already.
    Unchanged(PlanTotals),
    /// Nothing was written, because the listing failed in part or the run ended early; the summary
    /// has the reason.
    Incomplete,
    /// Nothing was written, for this reason, which repeating the command does not change.
    Refused(String),
    /// The folder cannot be used.
    Failed(PlanError),
}

/// Makes a plan on this thread. The summary has what could not be listed.
pub fn make(
    request: &PlanCreationSettings,
    connect: &dyn SessionConnector,
    progress: &ProgressCounters,
    events: &mut dyn FnMut(CopyEvent),
    cancel: &CancelToken,
) -> (PlanOutcome, CopySummary) {
    let none = CopySummary::default();
    let missing = missing_folders(&request.folder);
    let (dir, lock) = match prepare(request) {
        Ok(prepared) => prepared,
        Err(outcome) => return (outcome, none),
    };
    let made = listed_and_written(request, &dir, connect, progress, events, cancel);
    if !matches!(
        made.0,
        PlanOutcome::Written { .. } | PlanOutcome::Unchanged(_)
    ) {
        remove_made(&dir, &missing);
    }
    drop(lock);
    made
}

/// Returns the folder of a plan and the folders above it that do not exist, the innermost first.
fn missing_folders(folder: &Path) -> Vec<PathBuf> {
    let folder = absolute(folder);
    let missing = |path: &&Path| std::fs::symlink_metadata(path).is_err();
    let missing = folder.ancestors().take_while(missing);
    missing.map(Path::to_path_buf).collect()
}

/// Removes the folders that a run without a plan has made, unless something else is in them.
fn remove_made(dir: &PrivateDir, made: &[PathBuf]) {
    if made.is_empty() || !matches!(read_header(dir), Ok(None)) {
        return;
    }
    remove_others(dir, "");
    // A failure leaves an empty folder.
    let _ = dir.remove(LOCK.as_ref());
    for folder in made {
        if std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// Lists the source and writes the plan.
fn listed_and_written(
    request: &PlanCreationSettings,
    dir: &PrivateDir,
    connect: &dyn SessionConnector,
    progress: &ProgressCounters,
    events: &mut dyn FnMut(CopyEvent),
    cancel: &CancelToken,
) -> (PlanOutcome, CopySummary) {
    let copy = CopyRequest {
        sources: vec![request.source.clone()],
        // The target is not needed before a shard is copied.
        target: CopyLocation::Local(request.folder.clone()),
        options: CopyOptions::default(),
    };
    let (tree, summary) = with_environment(connect, cancel, async |environment| {
        let begun = PlannedCopy::begin(&copy, &copy.options, environment, progress, events).await;
        match begun {
            Ok(mut run) => {
                let tree = list(&mut run, request).await;
                (tree, run.finish())
            }
            Err(summary) => (None, *summary),
        }
    });
    let Some(tree) = tree else {
        return (PlanOutcome::Incomplete, summary);
    };
    let outcome = write(dir, request, &tree, cancel);
    (outcome, summary)
}

/// Opens the folder, and refuses what cannot become a plan before the walk.
fn prepare(request: &PlanCreationSettings) -> Result<(PrivateDir, std::fs::File), PlanOutcome> {
    let path = absolute(&request.folder);
    let failed = |error: io::Error| {
        let text = os_words(&error);
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        // A folder that others may write is named by the error.
        let text = match denied && error.raw_os_error().is_none() {
            true => text,
            false => format!(
                "{}: cannot use this folder for the plan: {text}",
                shown(&path)
            ),
        };
        PlanOutcome::Failed(match denied {
            true => PlanError::Unusable(text),
            false => PlanError::Io(text),
        })
    };
    if let CopyLocation::Local(source) = &request.source {
        refuse_inside(&path, source)?;
    }
    let dir = PrivateDir::create(&path).map_err(failed)?;
    let lock = match dir.file(LOCK.as_ref(), true) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => dir.create_file(LOCK.as_ref()),
        file => file,
    };
    let lock = lock.map_err(failed)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
    {
        let what = format!(
            "{}: another longhaul is writing a plan into this folder: wait until it ends",
            shown(&path)
        );
        return Err(PlanOutcome::Failed(PlanError::Io(what)));
    }
    if let Some((header, _)) = earlier_header(&dir).map_err(PlanOutcome::Failed)? {
        let same = header.source == request.source_operand
            && header.target == request.target_operand
            && header.shards.len() == request.shards as usize;
        let shards = u32::try_from(header.shards.len()).unwrap_or(u32::MAX);
        if !same && folder::is_begun(&dir, shards).map_err(failed)? {
            return Err(PlanOutcome::Refused(format!(
                "{}: this folder has another plan (other SRC, DST or number of shards), and copying \
                 with it has begun: write the new plan to another folder (-o)",
                shown(&path)
            )));
        }
    }
    Ok((dir, lock))
}

/// Refuses a folder within the source, which the plan would contain.
fn refuse_inside(folder: &Path, source: &Path) -> Result<(), PlanOutcome> {
    let Ok(source_path) = std::fs::canonicalize(source) else {
        return Ok(());
    };
    let existing = folder
        .ancestors()
        .find_map(|path| std::fs::canonicalize(path).ok());
    match existing.is_some_and(|path| path.starts_with(&source_path)) {
        true => Err(PlanOutcome::Refused(format!(
            "{}: the folder for the plan is inside the source {}: choose a folder outside of it",
            shown(folder),
            shown(source)
        ))),
        false => Ok(()),
    }
}

/// Returns why `target` cannot be the target of a plan of this run's source: both are one
/// directory, or the target lies in the source.
pub(super) async fn overlap(run: &mut PlannedCopy<'_>, target: &[u8]) -> Option<&'static str> {
    match run.overlap_with(target, true).await? {
        RootOverlap::Same => Some(SAME_DIRECTORY),
        RootOverlap::TargetInside(_) => Some(TARGET_INSIDE),
        RootOverlap::SourceInside(_) => None,
    }
}

/// Lists the source; `None` if that is not possible, for a reason that was reported.
async fn list(run: &mut PlannedCopy<'_>, request: &PlanCreationSettings) -> Option<SortedTree> {
    let attributes = run.root_attributes(PlannedCopySide::Source).await;
    if run.stopped() {
        return None;
    }
    let usable = match attributes {
        Ok(Some(found)) if found.kind() == EntryKind::Directory => Ok(found),
        Ok(Some(_)) => {
            Err("not a directory: a plan needs a directory; use longhaul cp for a file".into())
        }
        Ok(None) => Err("no such directory".into()),
        Err(error) => Err(error),
    };
    let attributes = match usable {
        Ok(attributes) => attributes,
        Err(error) => {
            let name = run.shown(PlannedCopySide::Source, run.root(PlannedCopySide::Source));
            run.fail(name, error);
            return None;
        }
    };
    // The source's host may be this machine.
    if let Some(target) = &request.local_target
        && let Some(why) = overlap(run, target.as_os_str().as_bytes()).await
    {
        run.fail(shown(target), why.to_owned());
        return None;
    }
    let root = RootToList::new(
        PlannedCopySide::Source,
        run.root(PlannedCopySide::Source).to_vec(),
        RootAttributes::Known(Some(attributes)),
    );
    let listing = listing::list(run, vec![root], &Filter::default()).await?;
    let listing = listing.into_iter().next()?;
    let hidden = listing.report_problems(run, PlannedCopySide::Source);
    (hidden == 0).then(|| listing.into_tree().0)
}

/// Writes the plan, unless the folder has it or must keep another one.
fn write(
    dir: &PrivateDir,
    request: &PlanCreationSettings,
    tree: &SortedTree,
    cancel: &CancelToken,
) -> PlanOutcome {
    match try_write(dir, request, tree, cancel) {
        Ok(outcome) => outcome,
        Err(error) => {
            let folder = shown(dir.path());
            let what = format!("{folder}: cannot write the plan: {}", os_words(&error));
            PlanOutcome::Failed(PlanError::Io(what))
        }
    }
}

fn try_write(
    dir: &PrivateDir,
    request: &PlanCreationSettings,
    tree: &SortedTree,
    cancel: &CancelToken,
) -> io::Result<PlanOutcome> {
    let before = read_header(dir).ok().flatten();
    remove_others(dir, before.as_ref().map_or("", |(_, id)| id));
    let planner = ShardPlanner::new(tree, request.shards, request.least_range);
    let mut header = PlanHeader {
        source: request.source_operand.clone(),
        target: request.target_operand.clone(),
        directories: planner.directories,
        tree: planner.write_tree(&mut new_file(dir, "tree")?)?,
        shards: Vec::new(),
    };
    for shard in 0..request.shards {
        if cancel.is_cancelled() {
            return Ok(PlanOutcome::Incomplete);
        }
        let mut file = new_file(dir, &format!("{shard:05}"))?;
        header.shards.push(planner.write_shard(shard, &mut file)?);
    }
    let text = header.write(sum);
    let (_, id) = PlanHeader::parse(text.as_bytes(), sum).map_err(|error| {
        // The operands or the totals cannot be kept.
        io::Error::other(error.to_string())
    })?;
    let totals = header.totals().unwrap_or_default();
    if let Some((_, old)) = &before {
        if *old == id {
            remove_others(dir, &id);
            return Ok(PlanOutcome::Unchanged(totals));
        }
        let shards = before.as_ref().map_or(0, |(header, _)| header.shards.len());
        if folder::is_begun(dir, u32::try_from(shards).unwrap_or(u32::MAX))? {
            remove_others(dir, old);
            return Ok(PlanOutcome::Refused(format!(
                "{}: the source has changed since this plan was made, and copying with it has begun: \
                 write the new plan to another folder (-o); files already at the target are not \
                 sent again",
                shown(dir.path())
            )));
        }
    }
    let new = |name: &str| OsString::from(format!("{NEW}{name}"));
    dir.rename(&new("tree"), tree_name(&id).as_ref())?;
    for shard in 0..request.shards {
        let name = shard_name(&id, shard);
        dir.rename(&new(&format!("{shard:05}")), name.as_ref())?;
    }
    if header.tree.totals.files > 0 {
        folder::write_nonce(dir)?;
    }
    write_header(dir, &text)?;
    remove_others(dir, &id);
    let sizes = header.shards.iter().map(|shard| shard.totals.bytes);
    let sizes = (
        sizes.clone().min().unwrap_or_default(),
        sizes.max().unwrap_or_default(),
    );
    Ok(PlanOutcome::Written {
        totals,
        directories: header.directories,
        split: header.tree.totals.files,
        sizes,
        replaced: before.is_some(),
    })
}

/// Creates a file of the new plan.
fn new_file(dir: &PrivateDir, name: &str) -> io::Result<ShardFileHasher> {
    let file = dir.create_file(format!("{NEW}{name}").as_ref())?;
    Ok(ShardFileHasher {
        file: BufWriter::new(file),
        hasher: blake3::Hasher::new(),
        len: 0,
        record: Vec::new(),
    })
}

/// File of records whose checksum is computed while it is written.
struct ShardFileHasher {
    file: BufWriter<std::fs::File>,
    hasher: blake3::Hasher,
    len: u64,
    record: Vec<u8>,
}

impl ShardFileHasher {
    fn write(&mut self, record: &ShardFileRecord) -> io::Result<()> {
        self.record.clear();
        record.write(&mut self.record);
        self.hasher.update(&self.record);
        self.len += self.record.len() as u64;
        self.file.write_all(&self.record)
    }

    /// Makes the file durable: a plan must survive a crash once its header is there.
    fn finish(&mut self, totals: PlanTotals) -> io::Result<ShardTotals> {
        self.file.flush()?;
        self.file.get_ref().sync_data()?;
        Ok(ShardTotals {
            len: self.len,
            sum: self.hasher.finalize().to_hex().to_string(),
            totals,
        })
    }
}

/// Distributes the entries of a tree over shards.
struct ShardPlanner<'a> {
    tree: &'a SortedTree,
    /// Entries in the order of the tree, grouped by shard.
    order: Vec<TreeEntryId>,
    /// Beginning of each shard in `order`.
    starts: Vec<usize>,
    directories: u64,
    /// Ranges of split files, in the order of the files.
    ranges: BTreeMap<TreeEntryId, Vec<PlannedRange>>,
}

impl<'a> ShardPlanner<'a> {
    fn new(tree: &'a SortedTree, shards: u32, least_range: Option<u64>) -> Self {
        let order = depth_first(tree);
        let entry = |id: &TreeEntryId| tree.tree().entry(*id);
        let costs = order.iter().map(|id| cost(entry(id).size));
        let mut assignment = ShardAssignment::new(costs, shards, least_range);
        let mut assigned: Vec<(TreeEntryId, u32)> = Vec::with_capacity(order.len());
        let mut ranges = BTreeMap::new();
        for id in &order {
            let size = entry(id).size;
            match assignment.shards_of_next(cost(size)) {
                EntryShards::One(shard) => assigned.push((*id, shard)),
                EntryShards::Ranges(found) => {
                    assigned.extend(found.iter().map(|range| (*id, range.shard)));
                    let planned = |range: &ShardFileRange| PlannedRange {
                        size,
                        offset: range.offset,
                        len: range.len,
                        shard: range.shard,
                    };
                    ranges.insert(*id, found.iter().map(planned).collect());
                }
            }
        }
        let mut starts = vec![0; shards as usize + 1];
        for (_, shard) in &assigned {
            if let Some(count) = starts.get_mut(*shard as usize + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut next = starts.clone();
        let mut grouped = vec![EntryTree::ROOT; assigned.len()];
        for (id, shard) in &assigned {
            if let Some(at) = next.get_mut(*shard as usize) {
                if let Some(place) = grouped.get_mut(*at) {
                    *place = *id;
                }
                *at += 1;
            }
        }
        let directories = order
            .iter()
            .filter(|id| entry(id).kind == TreeEntryKind::Directory)
            .count() as u64;
        Self {
            tree,
            order: grouped,
            starts,
            directories,
            ranges,
        }
    }

    fn write_shard(&self, shard: u32, file: &mut ShardFileHasher) -> io::Result<ShardTotals> {
        let at = |shard: usize| self.starts.get(shard).copied().unwrap_or_default();
        let range = at(shard as usize)..at(shard as usize + 1);
        let entries = self.order.get(range).unwrap_or_default();
        let mut steps = ShardRecordWriter::begin(self.tree, file)?;
        for id in entries {
            let ranges = self.ranges.get(id).map(Vec::as_slice);
            match ranges.and_then(|ranges| ranges.iter().find(|range| range.shard == shard)) {
                Some(range) => steps.add_range(*id, *range)?,
                None => steps.add(*id)?,
            }
        }
        steps.finish()
    }

    fn write_tree(&self, file: &mut ShardFileHasher) -> io::Result<ShardTotals> {
        let mut steps = ShardRecordWriter::begin(self.tree, file)?;
        for id in depth_first(self.tree) {
            if self.tree.tree().entry(id).kind == TreeEntryKind::Directory {
                steps.add(id)?;
            }
            for range in self.ranges.get(&id).into_iter().flatten() {
                steps.add_range(id, *range)?;
            }
        }
        steps.finish()
    }
}

/// Entries of the tree without the root, a directory before its contents.
fn depth_first(tree: &SortedTree) -> Vec<TreeEntryId> {
    let mut order = Vec::with_capacity(tree.tree().len());
    let mut open = vec![tree.children(EntryTree::ROOT)];
    while let Some(children) = open.last_mut() {
        match children.next() {
            Some(id) => {
                order.push(id);
                if tree.tree().entry(id).kind == TreeEntryKind::Directory {
                    open.push(tree.children(id));
                }
            }
            None => drop(open.pop()),
        }
    }
    order
}

/// Writes a plan's records as steps through the tree, with the directories above them.
struct ShardRecordWriter<'a> {
    tree: &'a EntryTree,
    file: &'a mut ShardFileHasher,
    /// Open directories below the root.
    open: Vec<TreeEntryId>,
    totals: PlanTotals,
}

impl<'a> ShardRecordWriter<'a> {
    fn begin(tree: &'a SortedTree, file: &'a mut ShardFileHasher) -> io::Result<Self> {
        let tree = tree.tree();
        file.write(&ShardFileRecord::Enter(
            Vec::new(),
            planned(tree.entry(EntryTree::ROOT)),
        ))?;
        Ok(Self {
            tree,
            file,
            open: Vec::new(),
            totals: PlanTotals::default(),
        })
    }

    fn add(&mut self, id: TreeEntryId) -> io::Result<()> {
        let entry = self.tree.entry(id);
        let (name, attributes) = (self.tree.name(id).to_vec(), planned(entry));
        match entry.kind {
            TreeEntryKind::Directory => self.go_to(id),
            TreeEntryKind::File => {
                self.go_to(self.tree.parent(id))?;
                self.totals.files += 1;
                self.totals.bytes = self.totals.bytes.saturating_add(entry.size);
                self.file
                    .write(&ShardFileRecord::File(name, entry.size, attributes))
            }
            TreeEntryKind::Symlink => {
                self.go_to(self.tree.parent(id))?;
                self.totals.symlinks += 1;
                self.file.write(&ShardFileRecord::Symlink(name, attributes))
            }
            TreeEntryKind::Other | TreeEntryKind::Temporary => Ok(()),
        }
    }

    fn add_range(&mut self, id: TreeEntryId, range: PlannedRange) -> io::Result<()> {
        self.go_to(self.tree.parent(id))?;
        self.totals.files += u64::from(range.offset == 0);
        self.totals.bytes = self.totals.bytes.saturating_add(range.len);
        let (name, attributes) = (self.tree.name(id).to_vec(), planned(self.tree.entry(id)));
        self.file
            .write(&ShardFileRecord::Range(name, range, attributes))
    }

    /// Leaves and enters directories until `dir` is the current one.
    fn go_to(&mut self, dir: TreeEntryId) -> io::Result<()> {
        let mut above = Vec::new();
        let mut at = dir;
        while at != EntryTree::ROOT {
            above.push(at);
            at = self.tree.parent(at);
        }
        above.reverse();
        let common = self
            .open
            .iter()
            .zip(&above)
            .take_while(|(a, b)| a == b)
            .count();
        for _ in common..self.open.len() {
            self.file.write(&ShardFileRecord::Leave)?;
        }
        self.open.truncate(common);
        for id in above.into_iter().skip(common) {
            let attributes = planned(self.tree.entry(id));
            self.file.write(&ShardFileRecord::Enter(
                self.tree.name(id).to_vec(),
                attributes,
            ))?;
            self.open.push(id);
        }
        Ok(())
    }

    fn finish(self) -> io::Result<ShardTotals> {
        for _ in 0..=self.open.len() {
            self.file.write(&ShardFileRecord::Leave)?;
        }
        self.file.write(&ShardFileRecord::End)?;
        self.file.finish(self.totals)
    }
}
