//! Proves that the target has the whole tree of a plan.

use shard::{PlanTotals, ShardFileRecord};

use super::attributes::{difference, is_planned_time, of_file};
use super::check::{BATCH, lookups};
use super::folder::PlanFolder;
use super::records::{RecordPath, ShardRecordReader};
use super::{PlanError, shown};
use crate::cancel::CancelToken;
use crate::copy::{
    CopyOptions, CopyRequest, PlannedCopy, PlannedCopySide, SessionConnector, with_environment,
};
use crate::report::{CopyEvent, CopySummary, ProgressCounters};
use crate::sync::contents::{ContentComparer, ContentVerdict, FilePair};
use crate::walk::join;

/// Options of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Compare the contents with the source by checksum.
    pub checksum: bool,
}

/// Result of comparing a target with the plan of its shards.
#[derive(Debug)]
pub struct PlanVerifyResult {
    /// Each difference is a failure.
    pub summary: CopySummary,
    /// Totals of the entries that are as planned.
    pub sound: PlanTotals,
    /// The plan itself cannot be used.
    pub unusable: bool,
}

impl From<CopySummary> for PlanVerifyResult {
    fn from(summary: CopySummary) -> Self {
        Self {
            summary,
            sound: PlanTotals::default(),
            unusable: false,
        }
    }
}

/// Compares every entry of the plan with the target, on this thread.
pub fn verify(
    plan: &PlanFolder,
    options: VerifyOptions,
    request: &CopyRequest,
    connect: &dyn SessionConnector,
    progress: &ProgressCounters,
    events: &mut dyn FnMut(CopyEvent),
    cancel: &CancelToken,
) -> PlanVerifyResult {
    let copy = CopyOptions {
        journal: false,
        ..request.options.clone()
    };
    with_environment(connect, cancel, async |environment| {
        let begun = PlannedCopy::begin(request, &copy, environment, progress, events).await;
        let mut run = match begun {
            Ok(run) => run,
            Err(summary) => return PlanVerifyResult::from(*summary),
        };
        let mut work = PlanVerification {
            plan,
            options,
            contents: ContentComparer::default(),
            sound: PlanTotals::default(),
        };
        let mut unusable = false;
        if let Err(error) = work.carry_out(&mut run).await {
            unusable = matches!(error, PlanError::Unusable(_));
            run.fail(shown(&plan.folder()), error.to_string());
        }
        PlanVerifyResult {
            summary: run.finish(),
            sound: work.sound,
            unusable,
        }
    })
}

struct PlanVerification<'a> {
    plan: &'a PlanFolder,
    options: VerifyOptions,
    contents: ContentComparer,
    sound: PlanTotals,
}

impl PlanVerification<'_> {
    async fn carry_out(&mut self, run: &mut PlannedCopy<'_>) -> Result<(), PlanError> {
        // The cause comes before the thousands of entries that may be missing for it.
        if !self.plan.is_sealed() && !run.stopped() {
            let folder = shown(&self.plan.folder());
            let what = format!(
                "this plan is not finished: some shards are not copied, or directory times are not \
                 set. Run longhaul plan status {folder} and copy the shards it names; if it names \
                 none, copy any shard again"
            );
            run.fail(folder, what);
        }
        for shard in 0..self.plan.shards() {
            self.check(run, self.plan.records(shard)?, is_whole).await?;
        }
        self.check(run, self.plan.tree()?, is_of_tree).await
    }

    /// Checks the entries of a file of records for which `is` holds.
    async fn check(
        &mut self,
        run: &mut PlannedCopy<'_>,
        mut records: ShardRecordReader,
        is: fn(&ShardFileRecord) -> bool,
    ) -> Result<(), PlanError> {
        let mut path = RecordPath::default();
        loop {
            let mut batch = Vec::new();
            let mut ended = false;
            while batch.len() < BATCH && !ended {
                let record = records.next()?;
                ended = record == ShardFileRecord::End;
                if let Some(below) = path.step(&record)
                    && is(&record)
                    && !below.is_empty()
                {
                    batch.push((record, below));
                }
            }
            self.compare(run, batch).await;
            if ended || run.stopped() {
                return Ok(());
            }
        }
    }

    async fn compare(&mut self, run: &mut PlannedCopy<'_>, batch: Vec<(ShardFileRecord, Vec<u8>)>) {
        let root = run.root(PlannedCopySide::Target).to_vec();
        let paths: Vec<Vec<u8>> = batch.iter().map(|(_, below)| join(&root, below)).collect();
        let found = lookups(run, PlannedCopySide::Target, &paths).await;
        if run.stopped() {
            return;
        }
        let mut sound = Vec::new();
        for (((record, below), path), found) in batch.into_iter().zip(paths).zip(found) {
            let wrong = match &found {
                Err(error) if error.is_missing() => Some(
                    "not at the destination: copy its shard, or make a new plan if its source has \
                     changed"
                        .to_owned(),
                ),
                Err(error) => Some(error.to_string()),
                Ok(found) => difference(&record, found).or_else(|| match &record {
                    ShardFileRecord::Enter(_, planned)
                        if self.plan.is_sealed() && !is_planned_time(planned, found) =>
                    {
                        Some("its modification time differs from the plan's".to_owned())
                    }
                    _ => None,
                }),
            };
            match wrong {
                Some(what) => {
                    let name = run.shown(PlannedCopySide::Target, &path);
                    run.fail(name, what);
                }
                None => sound.push((record, below)),
            }
        }
        if self.options.checksum {
            sound = self.with_equal_sums(run, sound).await;
        }
        for (record, _) in sound {
            match record {
                ShardFileRecord::Symlink(..) => self.sound.symlinks += 1,
                record => {
                    if let Some((size, _)) = of_file(&record) {
                        self.sound.files += 1;
                        self.sound.bytes = self.sound.bytes.saturating_add(size);
                    }
                }
            }
        }
    }

    /// Returns the entries whose contents are equal at both ends.
    async fn with_equal_sums(
        &mut self,
        run: &mut PlannedCopy<'_>,
        batch: Vec<(ShardFileRecord, Vec<u8>)>,
    ) -> Vec<(ShardFileRecord, Vec<u8>)> {
        let roots =
            [PlannedCopySide::Source, PlannedCopySide::Target].map(|end| run.root(end).to_vec());
        let files: Vec<FilePair> = batch
            .iter()
            .filter_map(|(record, below)| {
                of_file(record).map(|(size, _)| {
                    FilePair::new(join(&roots[0], below), join(&roots[1], below), size)
                })
            })
            .collect();
        let compared = self.contents.compare(run, &files);
        let mut verdicts = compared.await.into_iter();
        if run.stopped() {
            return Vec::new();
        }
        let mut equal = Vec::new();
        for (record, below) in batch {
            let verdict = of_file(&record).and_then(|_| verdicts.next());
            let wrong = match verdict {
                None | Some(ContentVerdict::Equal) => None,
                Some(ContentVerdict::Differs) => Some((
                    PlannedCopySide::Target,
                    "differs from its source".to_owned(),
                )),
                Some(ContentVerdict::Unknown(end, why)) => {
                    Some((end, format!("cannot compare by checksum: {why}")))
                }
            };
            match wrong {
                Some((end, what)) => {
                    let path = join(run.root(end), &below);
                    let name = run.shown(end, &path);
                    run.fail(name, what);
                }
                None => equal.push((record, below)),
            }
        }
        equal
    }
}

/// True for entries that one shard has as a whole.
fn is_whole(record: &ShardFileRecord) -> bool {
    matches!(
        record,
        ShardFileRecord::File(..) | ShardFileRecord::Symlink(..)
    )
}

/// True for directories, and once for each file that is split into ranges.
fn is_of_tree(record: &ShardFileRecord) -> bool {
    match record {
        ShardFileRecord::Enter(..) => true,
        ShardFileRecord::Range(_, range, _) => range.offset == 0,
        _ => false,
    }
}
