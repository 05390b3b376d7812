//! Attributes of many entries at one end, and the comparison of a shard with both ends.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::Stat;
use rustix::io::Errno;
use schedule::{Attributes, JobKind, LaneEvent, RemotePath, directory_of};
use shard::ShardFileRecord;

use super::attributes::{change, difference, of_file};
use super::records::{RecordPath, ShardRecordReader};
use super::{PlanError, ShardOutcome};
use crate::copy::{LISTED, LISTINGS, PlannedCopy, PlannedCopySide, basename, listing};
use crate::file_error::FileError;
use crate::walk::{join, local_path};

/// Entries that are looked up together.
pub(super) const BATCH: usize = 4096;

/// Attributes of an entry, or why there are none.
pub(super) type LookupResult = Result<Attributes, FileError>;

/// Returns the attributes of paths of an end, in their order. Symlinks are not followed. After a
/// cancel or the loss of the session the rest fail.
pub(super) async fn lookups(
    run: &mut PlannedCopy<'_>,
    end: PlannedCopySide,
    paths: &[Vec<u8>],
) -> Vec<LookupResult> {
    if run.is_local(end) {
        return paths.iter().map(|path| local(run, end, path)).collect();
    }
    let mut results: Vec<LookupResult> =
        vec![Err("internal error: the entry was not checked".into()); paths.len()];
    let jobs = paths.iter().map(|path| JobKind::Stat {
        path: RemotePath(path.clone()),
        follow: false,
    });
    let heard = |at, event| {
        let found = match event {
            LaneEvent::Attributes(_, attributes) => Ok(attributes),
            LaneEvent::Failed(_, fault) => Err(fault.into()),
            _ => return,
        };
        if let Some(result) = results.get_mut::<usize>(at) {
            *result = found;
        }
    };
    run.carry_out(end, jobs, BATCH, heard).await;
    results
}

/// Directory of which many entries are looked up: their names, with their places in the results.
struct WantedEntries<'a> {
    dir: Vec<u8>,
    names: BTreeMap<&'a [u8], usize>,
    is_listed: bool,
}

/// As [`lookups`] at the target, where directories with many of the entries are listed: the next worker
/// of a killed shard sent a STAT for each of its files. An entry that a listing lacks is missing, also
/// where the server would find it under another form of its name: it is copied again. Directories that
/// are too long, or cannot be listed, are added to `unlisted` and not listed again.
async fn lookups_by_listing(
    run: &mut PlannedCopy<'_>,
    paths: &[Vec<u8>],
    unlisted: &mut BTreeSet<Vec<u8>>,
) -> Vec<LookupResult> {
    let end = PlannedCopySide::Target;
    if run.is_local(end) {
        return lookups(run, end, paths).await;
    }
    let mut results: Vec<Option<LookupResult>> = vec![None; paths.len()];
    let mut directories = BTreeMap::<Vec<u8>, BTreeMap<&[u8], usize>>::new();
    for (at, path) in paths.iter().enumerate() {
        let names = directories.entry(directory_of(path)).or_default();
        names.insert(basename(path), at);
    }
    let mut wanted: Vec<_> = directories
        .into_iter()
        .filter(|(dir, names)| names.len() >= LISTED && !unlisted.contains(dir))
        .map(|(dir, names)| WantedEntries {
            dir,
            names,
            is_listed: false,
        })
        .collect();
    let listings: Vec<JobKind> = wanted
        .iter()
        .map(|wanted| listing(&wanted.dir, wanted.names.len()))
        .collect();
    let heard = |at: usize, event| {
        let Some(wanted) = wanted.get_mut(at) else {
            return;
        };
        match event {
            LaneEvent::Entries(_, entries) => {
                for (name, attributes) in entries {
                    if attributes.size.is_none() || attributes.times.is_none() {
                        // The server is asked for it.
                        wanted.names.remove(name.as_slice());
                        continue;
                    }
                    let place = wanted.names.get(name.as_slice());
                    if let Some(result) = place.and_then(|at| results.get_mut(*at)) {
                        *result = Some(Ok(attributes));
                    }
                }
            }
            LaneEvent::Done(_) => wanted.is_listed = true,
            _ => {}
        }
    };
    run.carry_out(end, listings.into_iter(), LISTINGS, heard)
        .await;
    let failed = wanted.iter().filter(|wanted| !wanted.is_listed);
    unlisted.extend(failed.map(|wanted| wanted.dir.clone()));
    for at in wanted
        .iter()
        .filter(|dir| dir.is_listed)
        .flat_map(|dir| dir.names.values())
    {
        if let Some(result) = results.get_mut(*at) {
            result.get_or_insert_with(|| Err(Errno::NOENT.into()));
        }
    }
    let asked: Vec<usize> = (0..paths.len())
        .filter(|at| results.get(*at).is_some_and(Option::is_none))
        .collect();
    let rest: Vec<Vec<u8>> = asked
        .iter()
        .filter_map(|at| paths.get(*at).cloned())
        .collect();
    let answers = lookups(run, end, &rest).await;
    for (at, answer) in asked.into_iter().zip(answers) {
        if let Some(result) = results.get_mut(at) {
            *result = Some(answer);
        }
    }
    results.into_iter().flatten().collect()
}

fn local(run: &PlannedCopy<'_>, end: PlannedCopySide, path: &[u8]) -> LookupResult {
    if end == PlannedCopySide::Source {
        let meta = std::fs::symlink_metadata(local_path(path))?;
        return Ok(crate::disk::attributes(&meta));
    }
    let located = run.directories().locate(&run.local_target(path));
    let found = located.and_then(|at| at.look());
    match found? {
        Some(stat) => Ok(of_stat(&stat)),
        None => Err(Errno::NOENT.into()),
    }
}

#[expect(
    clippy::unnecessary_cast,
    reason = "the types of stat(2) differ between systems"
)]
fn of_stat(stat: &Stat) -> Attributes {
    let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
    let part = |n: i64| u32::try_from(n).unwrap_or_default();
    Attributes {
        size: u64::try_from(stat.st_size).ok(),
        mode: Some(stat.st_mode as u32),
        owner: Some((stat.st_uid, stat.st_gid)),
        times: Some((seconds(stat.st_atime as i64), seconds(stat.st_mtime as i64))),
        nanoseconds: Some((
            part(stat.st_atime_nsec as i64),
            part(stat.st_mtime_nsec as i64),
        )),
        link: None,
    }
}

/// Decision about a file or symlink of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryVerdict {
    /// Copy it.
    Copy,
    /// The target has it.
    Unchanged,
    /// The source has changed, in this way.
    Changed(String),
    /// The source was not found, for this reason, which may be one of this machine or of this time.
    Missing(String),
    /// The entry failed, and the user was told why.
    Reported,
}

impl EntryVerdict {
    /// Decides by an entry of the source; `None` if it is that of the plan.
    pub(super) fn of_source(record: &ShardFileRecord, found: LookupResult) -> Option<Self> {
        match found {
            Ok(found) => change(record, &found).map(Self::Changed),
            Err(error) => Some(Self::Missing(error.to_string())),
        }
    }
}

/// Reads a whole shard, which checks it, and decides about its files and symlinks in their order. A
/// file whose size and time at the target are the planned ones is complete: it gets its name after
/// its time. Symlinks are made again. A source on this machine is compared later, when it is
/// copied.
pub(super) async fn verdicts(
    run: &mut PlannedCopy<'_>,
    mut records: ShardRecordReader,
    target_exists: bool,
) -> Result<Vec<EntryVerdict>, ShardOutcome> {
    let unusable = |error: PlanError| ShardOutcome::Unusable(error);
    let mut path = RecordPath::default();
    let mut unlisted = BTreeSet::new();
    let mut verdicts = Vec::new();
    loop {
        let mut batch = Vec::new();
        let mut ended = false;
        while batch.len() < BATCH && !ended {
            let record = records.next().map_err(unusable)?;
            ended = record == ShardFileRecord::End;
            let below = path.step(&record);
            let is_item = matches!(
                record,
                ShardFileRecord::File(..)
                    | ShardFileRecord::Range(..)
                    | ShardFileRecord::Symlink(..)
            );
            if let (true, Some(below)) = (is_item, below) {
                batch.push((record, below));
            }
        }
        let unlisted = target_exists.then_some(&mut unlisted);
        judge(run, &batch, unlisted, &mut verdicts).await;
        if run.stopped() {
            return Err(ShardOutcome::Stopped);
        }
        if ended {
            return Ok(verdicts);
        }
    }
}

/// Decides about a batch of entries. Compares them with the target if that exists, whose directories
/// in `unlisted` are not listed.
async fn judge(
    run: &mut PlannedCopy<'_>,
    batch: &[(ShardFileRecord, Vec<u8>)],
    unlisted: Option<&mut BTreeSet<Vec<u8>>>,
    verdicts: &mut Vec<EntryVerdict>,
) {
    let paths = |run: &PlannedCopy<'_>, end| -> Vec<Vec<u8>> {
        let root = run.root(end);
        batch.iter().map(|(_, below)| join(root, below)).collect()
    };
    let first = verdicts.len();
    verdicts.resize(first + batch.len(), EntryVerdict::Copy);
    let new = verdicts.get_mut(first..).unwrap_or_default();
    if let Some(unlisted) = unlisted {
        let paths = paths(run, PlannedCopySide::Target);
        let found = lookups_by_listing(run, &paths, unlisted).await;
        for (((record, _), found), verdict) in batch.iter().zip(found).zip(new.iter_mut()) {
            let file = of_file(record).is_some();
            if file && found.is_ok_and(|found| difference(record, &found).is_none()) {
                *verdict = EntryVerdict::Unchanged;
            }
        }
    }
    if run.is_local(PlannedCopySide::Source) {
        return;
    }
    let paths = paths(run, PlannedCopySide::Source);
    let found = lookups(run, PlannedCopySide::Source, &paths).await;
    for (((record, _), found), verdict) in batch.iter().zip(found).zip(new) {
        if let Some(differs) = EntryVerdict::of_source(record, found) {
            *verdict = differs;
        }
    }
}
