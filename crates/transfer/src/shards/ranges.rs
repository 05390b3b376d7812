//! Files that several shards write: their temporary, and its final name.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use schedule::{JobFailureKind, ResumeData, SharedTemp};
use shard::{PlannedRange, ShardFileRecord, ShardState, ShardWorkerCounts};

use super::attributes::{difference, of_record};
use super::check::{EntryVerdict, LookupResult, lookups};
use super::entries::{FILLABLE, ShardRecordSource, ShardWalk, changed_text, missing_text};
use super::folder::PlanFolder;
use super::holding::{ShardLease, ShardLeaseError};
use super::records::{RecordPath, ShardRecordReader};
use super::seal::{ShardSealResult, is_done};
use super::{PlanError, shown};
use crate::FileError;
use crate::copy::{PlannedCopy, PlannedCopySide, SharedTemporaryFile};
use crate::disk::os_words;
use crate::sync::ends::{SyncFileOperation, carry_out};
use crate::walk::join;

fn shared(plan: &PlanFolder, below: &[u8], size: u64, work: SharedTemp) -> SharedTemporaryFile {
    let tag = plan.temporary_tag(below);
    SharedTemporaryFile::new(tag, size, work)
}

/// Path of the temporary of a split file.
fn temporary(run: &PlannedCopy<'_>, plan: &PlanFolder, below: &[u8]) -> Vec<u8> {
    let names = ResumeData {
        tag: plan.temporary_tag(below),
        ..ResumeData::default()
    };
    let target = join(run.root(PlannedCopySide::Target), below);
    names.temporary(&target, 0)
}

/// Range of a shard that the target lacks.
struct LackingRange<'a> {
    record: ShardFileRecord,
    range: PlannedRange,
    below: Vec<u8>,
    verdict: &'a mut EntryVerdict,
}

/// Creates the temporaries of a shard's ranges, with the directories above them, before the shard
/// is copied. A temporary that was created before is not created again. A range whose source has
/// changed is not copied, and its temporary is removed.
pub(super) async fn prepare(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    records: ShardRecordReader,
    verdicts: &mut [EntryVerdict],
) -> Result<(), PlanError> {
    let (mut ranges, directories) = lacking(records, verdicts)?;
    if run.is_local(PlannedCopySide::Source) {
        let below = ranges.iter().map(|range| &range.below);
        let paths = paths(run, PlannedCopySide::Source, below);
        let found = lookup(run, PlannedCopySide::Source, &paths).await;
        for (range, found) in ranges.iter_mut().zip(found) {
            if let Some(differs) = EntryVerdict::of_source(&range.record, found) {
                *range.verdict = differs;
            }
        }
    }
    let changed = |range: &&LackingRange<'_>| matches!(range.verdict, EntryVerdict::Changed(_));
    let changed = ranges.iter().filter(changed);
    let removals =
        changed.map(|range| SyncFileOperation::Remove(temporary(run, plan, &range.below)));
    let removals = removals.collect();
    carry_out(run, PlannedCopySide::Target, removals).await;
    // Other workers may have a source that is missing here.
    ranges.retain(|range| *range.verdict == EntryVerdict::Copy);
    create(run, plan, &mut ranges, directories).await?;
    for range in ranges {
        if *range.verdict == EntryVerdict::Copy {
            let target = join(run.root(PlannedCopySide::Target), &range.below);
            let PlannedRange { offset, size, .. } = range.range;
            let work = SharedTemp::Range(offset, range.range.end());
            run.share(target, shared(plan, &range.below, size, work));
        }
    }
    Ok(())
}

/// Creates the temporaries that no worker has created before, and notes them in the plan.
async fn create(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    ranges: &mut [LackingRange<'_>],
    directories: Directories,
) -> Result<(), PlanError> {
    let mut new = Vec::new();
    for range in ranges {
        let tag = plan.temporary_tag(&range.below);
        if !plan.is_temporary_made(tag).map_err(|e| io(plan, &e))? {
            new.push((tag, range));
        }
    }
    if new.is_empty() {
        return Ok(());
    }
    make_directories(run, directories).await;
    let create = |(_, range): &(u64, &mut LackingRange<'_>)| SyncFileOperation::CreateShared {
        path: temporary(run, plan, &range.below),
        size: range.range.size,
    };
    let ops = new.iter().map(create).collect();
    let created = carry_out(run, PlannedCopySide::Target, ops).await;
    for ((tag, range), created) in new.into_iter().zip(created) {
        // A worker that is killed before the note has written nothing.
        let created = created.map_err(|error| match error.kind() {
            JobFailureKind::SharedTemp => error,
            _ => error.with_prefix("cannot create its temporary file"),
        });
        let noted = created.and_then(|_| {
            let noted = plan.note_temporary(tag);
            noted.map_err(|error| {
                let error = FileError::from(io(plan, &error).to_string());
                error.with_prefix("cannot note its temporary file in the plan")
            })
        });
        if let Err(error) = noted
            && !run.stopped()
        {
            let target = join(run.root(PlannedCopySide::Target), &range.below);
            let name = run.shown(PlannedCopySide::Target, &target);
            run.fail(name, error);
            *range.verdict = EntryVerdict::Reported;
        }
    }
    Ok(())
}

/// Directories by their paths below the root.
type Directories = BTreeMap<Vec<u8>, ShardFileRecord>;

/// Returns the ranges of a shard that the target lacks, and the directories above them.
fn lacking(
    mut records: ShardRecordReader,
    verdicts: &mut [EntryVerdict],
) -> Result<(Vec<LackingRange<'_>>, Directories), PlanError> {
    let mut path = RecordPath::default();
    let mut above = Vec::new();
    let mut ranges = Vec::new();
    let mut directories = BTreeMap::new();
    let mut verdicts = verdicts.iter_mut();
    loop {
        let record = records.next()?;
        let below = path.step(&record);
        match (&record, below) {
            (ShardFileRecord::Enter(..), Some(below)) => above.push((below, record)),
            (ShardFileRecord::Leave, _) => drop(above.pop()),
            (ShardFileRecord::Range(_, range, _), Some(below)) => {
                let range = *range;
                if let Some(verdict) = verdicts.next()
                    && *verdict != EntryVerdict::Unchanged
                {
                    directories.extend(above.iter().cloned());
                    ranges.push(LackingRange {
                        record,
                        range,
                        below,
                        verdict,
                    });
                }
            }
            (ShardFileRecord::End, _) => return Ok((ranges, directories)),
            _ => drop(verdicts.next()),
        }
    }
}

fn io(plan: &PlanFolder, error: &std::io::Error) -> PlanError {
    PlanError::Io(format!("{}: {}", shown(&plan.folder()), os_words(error)))
}

fn paths<'a>(
    run: &PlannedCopy<'_>,
    end: PlannedCopySide,
    below: impl Iterator<Item = &'a Vec<u8>>,
) -> Vec<Vec<u8>> {
    let root = run.root(end);
    below.map(|below| join(root, below)).collect()
}

async fn lookup(
    run: &mut PlannedCopy<'_>,
    end: PlannedCopySide,
    paths: &[Vec<u8>],
) -> Vec<LookupResult> {
    lookups(run, end, paths).await
}

/// Makes directories so that they can be filled, a directory before those in it. Failures show when
/// the temporaries are created.
async fn make_directories(
    run: &mut PlannedCopy<'_>,
    directories: BTreeMap<Vec<u8>, ShardFileRecord>,
) {
    let root = run.root(PlannedCopySide::Target).to_vec();
    for (below, record) in directories {
        let path = join(&root, &below);
        let make = match below.is_empty() {
            true => SyncFileOperation::MakeNamedDir {
                path: root.clone(),
                mode: 0o777,
                is_new: false,
            },
            false => SyncFileOperation::make_dir(path.clone()),
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
            ops.push(SyncFileOperation::set(path, attributes));
        }
        for op in ops {
            carry_out(run, PlannedCopySide::Target, vec![op]).await;
        }
    }
}

/// Split file of which all ranges are written.
struct WrittenFile {
    /// First range of the file.
    record: ShardFileRecord,
    size: u64,
    below: Vec<u8>,
    /// Directories above it, the root first.
    above: Vec<ShardFileRecord>,
}

/// Names the split files of which all ranges are written and that have no name yet, under a lease
/// that `claim` takes. Files whose source has changed get no name, and their temporary is removed.
/// The result is not sealed if another worker has the lease.
pub(super) async fn seal_files(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    claim: &mut dyn FnMut() -> Result<Option<ShardLease>, ShardLeaseError>,
) -> Result<ShardSealResult, PlanError> {
    let mut result = ShardSealResult::default();
    let mut tried = BTreeSet::new();
    // Workers that complete a shard during the work find the lease taken and leave their files to
    // this one, which therefore looks again after it has given the lease back.
    loop {
        let complete = written(plan, &tried)?;
        remove_copied(run, plan, &identified(&complete)).await;
        let written = unsealed(run, complete).await;
        if written.is_empty() || run.stopped() {
            return Ok(result.end(!run.stopped()));
        }
        let lease = match claim() {
            Ok(Some(lease)) => lease,
            Ok(None) => return Ok(result),
            Err(error) => {
                run.fail(shown(&plan.folder()), error.to_string());
                return Ok(result);
            }
        };
        // A worker before this one may have named them meanwhile.
        let written = unsealed(run, written).await;
        tried.extend(written.iter().map(|file| file.below.clone()));
        let (sound, changed) = sound(run, plan, written).await;
        result.add_changed(changed);
        match name(run, plan, sound, lease).await {
            Ok(()) => {}
            // The worker that took over goes on.
            Err(ShardLeaseError::Lost(why)) => {
                tracing::info!("{why}");
                return Ok(result);
            }
            Err(error) => run.fail(shown(&plan.folder()), error.to_string()),
        }
        if run.has_failed() || run.stopped() {
            return Ok(result);
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
            (ShardFileRecord::Enter(..), _) => above.push(record),
            (ShardFileRecord::Leave, _) => drop(above.pop()),
            (ShardFileRecord::Range(_, range, _), Some(below)) => {
                let range: PlannedRange = *range;
                all &= match complete.get(&range.shard) {
                    Some(done) => *done,
                    None => {
                        let done = is_done(plan, range.shard).map_err(|e| io(plan, &e))?;
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
            (ShardFileRecord::End, _) => return Ok(files),
            _ => {}
        }
    }
}

/// Returns the files that the target does not have under their names.
async fn unsealed(run: &mut PlannedCopy<'_>, files: Vec<WrittenFile>) -> Vec<WrittenFile> {
    let paths = paths(run, PlannedCopySide::Target, files.iter().map(|f| &f.below));
    let found = lookup(run, PlannedCopySide::Target, &paths).await;
    let lacks = |(file, found): (WrittenFile, LookupResult)| {
        let named = found.is_ok_and(|found| difference(&file.record, &found).is_none());
        (!named).then_some(file)
    };
    files.into_iter().zip(found).filter_map(lacks).collect()
}

/// Returns the files whose source is that of the plan, and the number of those that have changed.
/// These and missing ones are reported.
async fn sound(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    files: Vec<WrittenFile>,
) -> (Vec<WrittenFile>, u64) {
    let paths = paths(run, PlannedCopySide::Source, files.iter().map(|f| &f.below));
    let found = lookup(run, PlannedCopySide::Source, &paths).await;
    let (mut sound, mut removed, mut changed) = (Vec::new(), Vec::new(), 0);
    for ((file, path), found) in files.into_iter().zip(paths).zip(found) {
        if run.stopped() {
            break;
        }
        let why = match EntryVerdict::of_source(&file.record, found) {
            Some(EntryVerdict::Changed(what)) => {
                removed.push(SyncFileOperation::Remove(temporary(run, plan, &file.below)));
                changed += 1;
                changed_text(&what)
            }
            Some(EntryVerdict::Missing(why)) => missing_text(&why),
            _ => {
                sound.push(file);
                continue;
            }
        };
        let name = run.shown(PlannedCopySide::Source, &path);
        run.fail(name, why);
    }
    carry_out(run, PlannedCopySide::Target, removed).await;
    (sound, changed)
}

/// Gives complete temporaries their attributes and names, and ends the lease.
async fn name(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    files: Vec<WrittenFile>,
    lease: ShardLease,
) -> Result<(), ShardLeaseError> {
    let lease = Rc::new(lease);
    let count = files.len() as u64;
    let named = identified(&files);
    let mut records = Vec::new();
    let mut open: Vec<ShardFileRecord> = Vec::new();
    for file in files {
        let both = open.iter().zip(&file.above);
        let common = both.take_while(|(a, b)| a == b).count();
        records.extend(open.drain(common..).map(|_| ShardFileRecord::Leave));
        open.extend(file.above.iter().skip(common).cloned());
        records.extend(file.above.into_iter().skip(common));
        let target = join(run.root(PlannedCopySide::Target), &file.below);
        run.share(
            target,
            shared(plan, &file.below, file.size, SharedTemp::Seal),
        );
        records.push(file.record);
    }
    records.extend(open.drain(..).map(|_| ShardFileRecord::Leave));
    let verdicts = vec![EntryVerdict::Copy; usize::try_from(count).unwrap_or_default()];
    let source = (
        run.root(PlannedCopySide::Source).to_vec(),
        run.is_local(PlannedCopySide::Source),
    );
    let changed = Rc::new(Cell::new(0));
    let records = ShardRecordSource::Chosen(records.into_iter());
    let walk = ShardWalk::new(records, verdicts, Rc::clone(&lease), source, changed);
    run.copy_more(Box::new(walk)).await;
    remove_copied(run, plan, &named).await;
    let Some(lease) = Rc::into_inner(lease) else {
        let why = "internal error: the list of the split files did not end";
        return Err(ShardLeaseError::Io(why.to_owned()));
    };
    let figures = ShardWorkerCounts {
        files: count,
        ..ShardWorkerCounts::default()
    };
    // A later worker may find further files.
    lease.end(ShardState::Stopped, figures, None)
}

/// Returns the records of files with their paths below the root.
fn identified(files: &[WrittenFile]) -> Vec<(ShardFileRecord, Vec<u8>)> {
    let of = |file: &WrittenFile| (file.record.clone(), file.below.clone());
    files.iter().map(of).collect()
}

/// Removes the temporaries of complete files that have their names. A server that renames nothing
/// has a file written again under its name, by the shard that names it, and keeps the temporary.
async fn remove_copied(
    run: &mut PlannedCopy<'_>,
    plan: &PlanFolder,
    files: &[(ShardFileRecord, Vec<u8>)],
) {
    if files.is_empty() || run.stopped() {
        return;
    }
    let targets = paths(run, PlannedCopySide::Target, files.iter().map(|f| &f.1));
    let found = lookup(run, PlannedCopySide::Target, &targets).await;
    let is_named = |((record, _), found): &(&(ShardFileRecord, Vec<u8>), LookupResult)| {
        let found = found.as_ref();
        found.is_ok_and(|found| difference(record, found).is_none())
    };
    let named = files.iter().zip(found).filter(is_named);
    let removals =
        named.map(|((_, below), _)| SyncFileOperation::Remove(temporary(run, plan, below)));
    let removals = removals.collect();
    carry_out(run, PlannedCopySide::Target, removals).await;
}
