//! Files that several shards write: their temporary, and its final name.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use schedule::{ResumeData, SharedTemp};
use shard::{PlannedRange, ShardFigures, ShardRecord, ShardState};

use super::attributes::{change, difference, of_record};
use super::check::{EntryLookups, EntryVerdict};
use super::entries::{FILLABLE, RecordSource, ShardWalk};
use super::folder::PlanFolder;
use super::holding::ShardLease;
use super::records::{RecordPath, RecordReader};
use super::{PlanError, shown};
use crate::copy::{PlannedCopy, PlannedCopySide, SharedFile};
use crate::disk::os_words;
use crate::sync::ends::{FileOperation, OperationCounter};
use crate::walk::join;

/// Returns the number from which the name of a split file's temporary is made. Only users of the
/// plan know it.
fn tag(plan: &PlanFolder, below: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(plan.id().as_bytes());
    hasher.update(below);
    let hash = hasher.finalize();
    let first = hash.as_bytes().first_chunk().copied();
    u64::from_be_bytes(first.unwrap_or_default())
}

fn shared(plan: &PlanFolder, below: &[u8], size: u64, work: SharedTemp) -> SharedFile {
    let tag = tag(plan, below);
    SharedFile { tag, size, work }
}

/// Path of the temporary of a split file.
fn temporary(run: &PlannedCopy<'_>, plan: &PlanFolder, below: &[u8]) -> Vec<u8> {
    let names = ResumeData {
        tag: tag(plan, below),
        ..ResumeData::default()
    };
    let target = join(run.root(PlannedCopySide::Target), below);
    names.temporary(&target, 0)
}

/// Creates the temporaries of a shard's ranges, with the directories above them, before the shard
/// is copied. A range whose source has changed is not copied, and its temporary is removed.
pub(super) async fn prepare(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    mut records: RecordReader,
    verdicts: &mut [EntryVerdict],
) -> Result<(), PlanError> {
    let mut path = RecordPath::default();
    let mut above = Vec::new();
    let mut ranges = Vec::new();
    let mut directories = BTreeMap::new();
    let mut verdicts = verdicts.iter_mut();
    loop {
        let record = records.next()?;
        let below = path.step(&record);
        match (&record, below) {
            (ShardRecord::Enter(..), Some(below)) => above.push((below, record)),
            (ShardRecord::Leave, _) => drop(above.pop()),
            (ShardRecord::Range(_, range, _), Some(below)) => {
                let range = *range;
                if let Some(verdict) = verdicts.next()
                    && *verdict != EntryVerdict::Unchanged
                {
                    directories.extend(above.iter().cloned());
                    ranges.push((record, range, below, verdict));
                }
            }
            (ShardRecord::End, _) => break,
            _ => drop(verdicts.next()),
        }
    }
    if ranges.is_empty() {
        return Ok(());
    }
    if run.is_local(PlannedCopySide::Source) {
        let root = run.root(PlannedCopySide::Source);
        let paths: Vec<Vec<u8>> = ranges.iter().map(|(.., at, _)| join(root, at)).collect();
        let found = EntryLookups::default();
        let found = lookup(run, found, PlannedCopySide::Source, &paths).await;
        for ((record, .., verdict), found) in ranges.iter_mut().zip(found) {
            if let Some(what) = found.map_or_else(Some, |found| change(record, &found)) {
                **verdict = EntryVerdict::Changed(what);
            }
        }
    }
    let mut operations = OperationCounter::default();
    make_directories(run, &mut operations, directories).await;
    let mut ops = Vec::new();
    for (_, range, below, verdict) in &ranges {
        let path = temporary(run, plan, below);
        let size = range.size;
        ops.push(match verdict {
            EntryVerdict::Changed(_) => FileOperation::Remove(path),
            _ => FileOperation::CreateShared { path, size },
        });
    }
    let made = operations
        .carry_out(run, PlannedCopySide::Target, ops)
        .await;
    for ((_, range, below, verdict), made) in ranges.into_iter().zip(made) {
        if matches!(verdict, EntryVerdict::Changed(_)) || run.stopped() {
            continue;
        }
        let target = join(run.root(PlannedCopySide::Target), &below);
        if let Err(why) = made {
            let name = run.shown(PlannedCopySide::Target, &target);
            run.fail(name, format!("cannot create its temporary: {why}"));
            *verdict = EntryVerdict::Unchanged;
            continue;
        }
        let work = SharedTemp::Range(range.offset, range.end());
        run.share(target, shared(plan, &below, range.size, work));
    }
    Ok(())
}

async fn lookup(
    run: &mut PlannedCopy<'_>,
    mut lookups: EntryLookups,
    end: PlannedCopySide,
    paths: &[Vec<u8>],
) -> Vec<super::check::LookupResult> {
    lookups.attributes(run, end, paths).await
}

/// Makes directories so that they can be filled, a directory before those in it. Failures show when
/// the temporaries are created.
async fn make_directories(
    run: &mut PlannedCopy<'_>,
    operations: &mut OperationCounter,
    directories: BTreeMap<Vec<u8>, ShardRecord>,
) {
    let root = run.root(PlannedCopySide::Target).to_vec();
    for (below, record) in directories {
        let path = join(&root, &below);
        let make = match below.is_empty() {
            true => FileOperation::MakeNamedDir(root.clone()),
            false => FileOperation::MakeDir(path.clone()),
        };
        let mut ops = vec![make];
        if let Some((_, mut attributes)) = of_record(&record)
            && let Some(mode) = attributes.mode.filter(|mode| mode & FILLABLE != FILLABLE)
            && !below.is_empty()
        {
            attributes = schedule::Attributes {
                mode: Some(mode | FILLABLE),
                ..schedule::Attributes::default()
            };
            ops.push(FileOperation::Set(path, attributes));
        }
        for op in ops {
            operations
                .carry_out(run, PlannedCopySide::Target, vec![op])
                .await;
        }
    }
}

/// Split file of which all ranges are written.
struct WrittenFile {
    /// First range of the file.
    record: ShardRecord,
    size: u64,
    below: Vec<u8>,
    /// Directories above it, the root first.
    above: Vec<ShardRecord>,
}

/// Result of [`seal_files`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SealedFiles {
    /// Another worker gives the files their names.
    pub(super) busy: bool,
    /// Files whose source has changed since the plan was made.
    pub(super) changed: u64,
}

/// Names the split files of which all ranges are written and that have no name yet, under a lease
/// that `claim` takes. Files whose source has changed get no name, and their temporary is removed.
pub(super) async fn seal_files(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    claim: &mut dyn FnMut() -> Result<Option<ShardLease>, String>,
) -> Result<SealedFiles, PlanError> {
    let mut sealed = SealedFiles::default();
    let mut tried = BTreeSet::new();
    // Workers that complete a shard during the work find the lease taken and leave their files to
    // this one, which therefore looks again after it has given the lease back.
    loop {
        let written = unsealed(run, written(plan, &tried)?).await;
        if written.is_empty() || run.stopped() {
            return Ok(sealed);
        }
        let lease = match claim() {
            Ok(Some(lease)) => lease,
            Ok(None) => {
                sealed.busy = true;
                return Ok(sealed);
            }
            Err(why) => {
                run.fail(shown(&plan.folder()), why);
                return Ok(sealed);
            }
        };
        // A worker before this one may have named them meanwhile.
        let written = unsealed(run, written).await;
        tried.extend(written.iter().map(|file| file.below.clone()));
        let (sound, changed) = sound(run, plan, written).await;
        sealed.changed += changed;
        let ended = name(run, plan, sound, lease).await;
        if let Err(why) = ended {
            run.fail(shown(&plan.folder()), why);
        }
        if run.has_failed() || run.stopped() {
            return Ok(sealed);
        }
    }
}

/// Returns the split files whose shards are all complete, except those that were tried.
fn written(plan: &PlanFolder, tried: &BTreeSet<Vec<u8>>) -> Result<Vec<WrittenFile>, PlanError> {
    let mut records = plan.tree()?;
    let mut path = RecordPath::default();
    let mut above = Vec::new();
    let mut files: Vec<WrittenFile> = Vec::new();
    let mut complete: BTreeMap<u32, bool> = BTreeMap::new();
    let mut all = true;
    loop {
        let record = records.next()?;
        let below = path.step(&record);
        match (&record, below) {
            (ShardRecord::Enter(..), _) => above.push(record),
            (ShardRecord::Leave, _) => drop(above.pop()),
            (ShardRecord::Range(_, range, _), Some(below)) => {
                let range: PlannedRange = *range;
                all &= match complete.get(&range.shard) {
                    Some(done) => *done,
                    None => {
                        let done = super::seal::is_done(plan, range.shard).map_err(|error| {
                            let folder = shown(&plan.folder());
                            PlanError::Io(format!("{folder}: {}", os_words(&error)))
                        })?;
                        complete.insert(range.shard, done);
                        done
                    }
                };
                if range.end() < range.size {
                    continue;
                }
                // The last range of the file.
                if std::mem::replace(&mut all, true) && !tried.contains(&below) {
                    files.push(WrittenFile {
                        record,
                        size: range.size,
                        below,
                        above: above.clone(),
                    });
                }
            }
            (ShardRecord::End, _) => return Ok(files),
            _ => {}
        }
    }
}

/// Returns the files that the target does not have under their names.
async fn unsealed(run: &mut PlannedCopy<'_>, files: Vec<WrittenFile>) -> Vec<WrittenFile> {
    let root = run.root(PlannedCopySide::Target);
    let paths: Vec<Vec<u8>> = files.iter().map(|file| join(root, &file.below)).collect();
    let found = lookup(
        run,
        EntryLookups::default(),
        PlannedCopySide::Target,
        &paths,
    )
    .await;
    let lacks = |(file, found): (WrittenFile, super::check::LookupResult)| {
        let named = found.is_ok_and(|found| difference(&file.record, &found).is_none());
        (!named).then_some(file)
    };
    files.into_iter().zip(found).filter_map(lacks).collect()
}

/// Returns the files whose source is that of the plan, and the number of the others, which are
/// reported.
async fn sound(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    files: Vec<WrittenFile>,
) -> (Vec<WrittenFile>, u64) {
    let root = run.root(PlannedCopySide::Source).to_vec();
    let paths: Vec<Vec<u8>> = files.iter().map(|file| join(&root, &file.below)).collect();
    let found = lookup(
        run,
        EntryLookups::default(),
        PlannedCopySide::Source,
        &paths,
    )
    .await;
    let (mut sound, mut removed) = (Vec::new(), Vec::new());
    for ((file, path), found) in files.into_iter().zip(paths).zip(found) {
        if run.stopped() {
            break;
        }
        let Some(what) = found.map_or_else(Some, |found| change(&file.record, &found)) else {
            sound.push(file);
            continue;
        };
        let name = run.shown(PlannedCopySide::Source, &path);
        run.fail(name, super::entries::changed_text(&what));
        removed.push(FileOperation::Remove(temporary(run, plan, &file.below)));
    }
    let changed = removed.len() as u64;
    OperationCounter::default()
        .carry_out(run, PlannedCopySide::Target, removed)
        .await;
    (sound, changed)
}

/// Gives complete temporaries their attributes and names, and ends the lease.
async fn name(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    files: Vec<WrittenFile>,
    lease: ShardLease,
) -> Result<(), String> {
    let lease = Rc::new(lease);
    let count = files.len() as u64;
    let mut records = Vec::new();
    let mut open: Vec<ShardRecord> = Vec::new();
    for file in files {
        let both = open.iter().zip(&file.above);
        let common = both.take_while(|(a, b)| a == b).count();
        records.extend(open.drain(common..).map(|_| ShardRecord::Leave));
        open.extend(file.above.iter().skip(common).cloned());
        records.extend(file.above.into_iter().skip(common));
        let target = join(run.root(PlannedCopySide::Target), &file.below);
        run.share(
            target,
            shared(plan, &file.below, file.size, SharedTemp::Seal),
        );
        records.push(file.record);
    }
    records.extend(open.drain(..).map(|_| ShardRecord::Leave));
    let verdicts = vec![EntryVerdict::Copy; usize::try_from(count).unwrap_or_default()];
    let source = (
        run.root(PlannedCopySide::Source).to_vec(),
        run.is_local(PlannedCopySide::Source),
    );
    let changed = Rc::new(Cell::new(0));
    let records = RecordSource::Chosen(records.into_iter());
    let walk = ShardWalk::new(records, verdicts, Rc::clone(&lease), source, changed);
    run.copy_more(Box::new(walk)).await;
    let Some(lease) = Rc::into_inner(lease) else {
        return Err("internal error: the list of the split files did not end".to_owned());
    };
    let figures = ShardFigures {
        files: count,
        ..ShardFigures::default()
    };
    // A later worker may find further files.
    lease.end(ShardState::Stopped, figures, None)
}
