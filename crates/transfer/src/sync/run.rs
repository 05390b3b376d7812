//! Runs the steps of a sync in order.

mod planned_events;
mod removals;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use schedule::Attributes;
use sync::{
    ComparisonRules, DeletionCount, DeletionRefusal, EntryTree, Filter, MetadataRules, OwnerIds,
    SortedTree, SyncAction, SyncPlan, TimeGranularity, TreeEntryId, TreeEntryKind, parent_path,
};

use self::planned_events::{directory_name, planned_event};
use super::alike::{NameEqualityProbes, are_one_in_nfc, remove_name_probes, spare_alike};
use super::attributes::attributes;
use super::backup::BackupRoot;
use super::ends::{SyncEnds, SyncFileOperation};
use super::entries::{SyncPlanWalk, created_below};
use super::expected_file::ExpectedFile;
use super::hard_links::{InodeIds, SourceHardLinks, linked_outside};
use super::link_dest::LinkDest;
use super::listing::{self, DirectoryInodes, ListedTree};
use super::owners::ids_at_target;
use super::read_only_dirs::ReadOnlyDirectories;
use super::remembered::SourceFileSystemCheck;
use super::roots::{
    SyncRoots, check_parent, check_roots, is_home, leave_root, leaves_out, without_slash,
};
use super::savings::bytes_sent_whole;
use super::source_inside::NestedSourceProbes;
use super::xattrs::{AttributeChange, XattrComparer, set_attributes};
use super::{SyncOptions, SyncRequest, SyncResult};
use crate::cancel::CancelToken;
use crate::copy::{
    CopyOptions, CopyRequest, PlannedCopy, PlannedCopySide, RootOverlap, SessionConnector,
    with_environment,
};
use crate::report::{CopyEvent, CopySummary, EscapedName, ProgressCounters, SyncChange};
use crate::walk::join;

/// Runs a sync to its end on this thread. `events` is called on this thread; `progress` may be read
/// from any.
pub fn run(
    request: &SyncRequest,
    connect: &dyn SessionConnector,
    progress: &ProgressCounters,
    events: &mut dyn FnMut(CopyEvent),
    cancel: &CancelToken,
) -> SyncResult {
    let copy = CopyRequest {
        sources: vec![without_slash(&request.source)],
        target: without_slash(&request.target),
        options: CopyOptions {
            // A dry run takes nothing from an earlier run's journal, and leaves it.
            journal: request.copy.journal && !request.options.dry_run,
            ..request.copy.clone()
        },
    };
    with_environment(connect, cancel, async |environment| {
        let begun = PlannedCopy::begin(&copy, &copy.options, environment, progress, events).await;
        let run = match begun {
            Ok(run) => run,
            Err(summary) => return SyncResult::failed(*summary),
        };
        let mut sync = SyncRun::new(run, request);
        sync.carry_out().await;
        sync.finish()
    })
}

impl SyncResult {
    fn failed(summary: CopySummary) -> Self {
        Self {
            summary,
            equal: 0,
            deleted: 0,
            replaced: 0,
            moved: 0,
            linked: 0,
            sent_whole: None,
            refused: None,
        }
    }
}

/// Error about a file whose attributes were not set.
const ATTRIBUTES_NOT_SET: &str = "cannot set its permissions, times and owner";
/// Warning about a target that does not keep the times by which files are compared.
const TIMES_LOST: &str = "the target does not accept modification times: the next sync copies these \
     files again, unless it has --checksum or --size-only";

/// A sync in progress.
struct SyncRun<'a> {
    ends: SyncEnds<'a>,
    request: &'a SyncRequest,
    options: &'a SyncOptions,
    roots: SyncRoots<'a>,
    /// Place of the backup directory, once found.
    backup: Option<BackupRoot>,
    link_dest: Option<LinkDest>,
    /// Comparison of extended attributes and access control lists, if it is asked for and possible.
    xattrs: Option<XattrComparer>,
    /// Hard links of the source, if the target keeps them.
    hard_links: Option<SourceHardLinks>,
    /// Identities of the target's files with several hard links.
    target_links: InodeIds,
    /// Device and inode of the target's directories, as far as they are told.
    target_directories: DirectoryInodes,
    /// Paths of what may be directories in which an interrupted run asked about names.
    probes: Vec<Vec<u8>>,
    /// IDs at the target of the source's users and groups.
    owner_ids: OwnerIds,
    /// The target directory exists.
    target_exists: bool,
    deleted: u64,
    replaced: u64,
    moved: u64,
    equal: u64,
    /// Entries of the source that filters left out.
    excluded: u64,
    /// Directories of the source that could not be listed, and entries with invalid names.
    unlisted: u64,
    sent_whole: Option<u64>,
    refused: Option<String>,
}

impl<'a> SyncRun<'a> {
    /// A sync over a copy that has begun. Directories of the target's machine that lie outside the
    /// target may be used.
    fn new(mut run: PlannedCopy<'a>, request: &'a SyncRequest) -> Self {
        let options = &request.options;
        let target = run.root(PlannedCopySide::Target);
        let given = options.link_dest.as_deref();
        let link_dest = given.map(|given| LinkDest::new(given, target));
        if let Some(link_dest) = &link_dest {
            run.also_use(link_dest.path().to_vec());
        }
        Self {
            ends: SyncEnds::new(run),
            request,
            options,
            roots: SyncRoots::new(options, request.copy.hard_links),
            backup: None,
            link_dest,
            xattrs: None,
            hard_links: None,
            target_links: InodeIds::default(),
            target_directories: DirectoryInodes::default(),
            probes: Vec::new(),
            owner_ids: OwnerIds::default(),
            target_exists: false,
            deleted: 0,
            replaced: 0,
            moved: 0,
            equal: 0,
            excluded: 0,
            unlisted: 0,
            sent_whole: None,
            refused: None,
        }
    }

    fn finish(mut self) -> SyncResult {
        self.tell_lost_times();
        let summary = CopySummary {
            excluded: self.excluded,
            ..self.ends.finish()
        };
        SyncResult {
            summary,
            equal: self.equal,
            deleted: self.deleted,
            replaced: self.replaced,
            moved: self.moved,
            linked: self.link_dest.as_ref().map_or(0, LinkDest::linked)
                + self.hard_links.as_ref().map_or(0, SourceHardLinks::linked),
            sent_whole: self.sent_whole,
            refused: self.refused,
        }
    }

    /// Warns if the files of this run will differ from their sources in the next one as well.
    fn tell_lost_times(&mut self) {
        let rules = &self.options.comparison;
        let by_times = !rules.checksum && !rules.size_only;
        if by_times && self.ends.copied().0 > 0 && self.ends.loses_times() {
            self.ends.warn(None, TIMES_LOST.to_owned());
        }
    }

    /// Reports a target that is the source, or lies in it, and returns true; so for a source whose
    /// own deletion `--delete` asks for. Excluded directories take no part.
    async fn roots_overlap(&mut self) -> bool {
        let target = self.ends.root(PlannedCopySide::Target).to_vec();
        let probe = !self.options.dry_run;
        let Some(overlap) = self.ends.overlap_with(&target, probe).await else {
            return false;
        };
        let (below, what) = match overlap {
            RootOverlap::Same => (Vec::new(), "SRC and DST are the same directory"),
            RootOverlap::TargetInside(below) => (
                below,
                "lies in SRC, and would be copied into itself: exclude it, or choose another DST",
            ),
            RootOverlap::SourceInside(_) if self.options.deletions.is_none() => return false,
            RootOverlap::SourceInside(below) => (
                below,
                "contains SRC, which --delete would delete: exclude it, or leave out --delete",
            ),
        };
        if leaves_out(self.filter(), &below) {
            return false;
        }
        let name = self.ends.shown(PlannedCopySide::Target, &target);
        self.ends.fail(name, what.to_owned());
        true
    }

    /// Finds the place of the backup directory, if there is one. Returns false, after reporting it,
    /// for a directory in which replaced files could not be kept or would change other files.
    async fn place_backup(&mut self) -> bool {
        let Some(dir) = &self.options.backup else {
            return true;
        };
        let filter = self.filter();
        let leaves_out = |below: &[u8]| leaves_out(filter.clone(), below);
        let probe = !self.options.dry_run;
        match BackupRoot::find(&mut self.ends, dir, probe, leaves_out).await {
            Ok(place) => {
                if let Some(beside) = place.beside() {
                    self.ends.also_use(beside.to_vec());
                }
                self.backup = Some(place);
                true
            }
            Err(what) => {
                let name = [b"--backup-dir ", dir.as_os_str().as_bytes()].concat();
                let advice = "name a directory in DST or beside it, such as .old or ../old";
                self.ends
                    .fail(EscapedName(name), format!("{what}: {advice}"));
                false
            }
        }
    }

    /// Reports listed names that the source does not have.
    fn report_missing(&mut self, filter: &Filter) {
        for name in filter.missing() {
            let path = join(self.ends.root(PlannedCopySide::Source), name);
            let path = self.ends.shown(PlannedCopySide::Source, &path);
            let what = "listed in --files-from, but not found in the source: correct the list";
            self.ends.fail(path, what.to_owned());
        }
    }

    async fn carry_out(&mut self) {
        if self.roots_overlap().await || !self.place_backup().await {
            return;
        }
        let Some((mut source, mut target)) = self.list().await else {
            return;
        };
        self.excluded = source.excluded();
        if self.options.deletions.is_none() {
            target.keep_problems_of(source.tree());
        }
        self.unlisted = source.report_problems(&mut self.ends, PlannedCopySide::Source);
        let unlisted =
            self.unlisted + target.report_problems(&mut self.ends, PlannedCopySide::Target);
        let source_links = source.take_links();
        self.target_links = target.take_links();
        self.target_directories = target.take_directories();
        self.probes = target.take_probes();
        self.report_missing(source.filter());
        let names = NameEqualityProbes::new(self.target_exists, self.options.dry_run);
        let (ours, theirs) = (source.tree(), target.tree());
        if are_one_in_nfc(&mut self.ends, ours)
            || (names.are_one_at_target(&mut self.ends, ours, theirs)).await
        {
            return;
        }
        if self.ends.sets_owners() {
            self.owner_ids = ids_at_target(&mut self.ends, source.tree().tree()).await;
        }
        let rules = self.rules(target.tree());
        let Some(mut plan) = self.plan(source, target, &rules).await else {
            return;
        };
        plan.copy_linked(&linked_outside(&self.target_links));
        spare_alike(&mut self.ends, &mut plan).await;
        if let Some(link_dest) = &self.link_dest {
            let (ends, xattrs) = (&mut self.ends, self.xattrs);
            link_dest.plan(ends, &mut plan, &rules, xattrs).await;
        }
        if self.request.copy.hard_links {
            let links = [source_links, self.target_links.clone()];
            let planned = SourceHardLinks::plan(&mut self.ends, &mut plan, links, &rules);
            self.hard_links = planned.await;
        }
        let remote = self.roots.source_file_system(&mut self.ends).await;
        let memory = SourceFileSystemCheck::find(&self.ends, self.request, remote);
        let count = DeletionCount {
            deletions: (plan.deletions().len() + plan.in_the_way().len()) as u64,
            target_entries: plan.target().tree().len() as u64,
            source_entries: plan.source().tree().len() as u64,
            unlisted,
            moved_source: memory.has_changed(),
            is_home: is_home(&self.request.target),
        };
        if let Some(limits) = &self.options.deletions
            && let Err(refused) = limits.check(&count)
        {
            self.refuse(&mut plan, refused);
        }
        self.report_blocked(&plan);
        self.equal = plan.equal();
        self.announce(&plan);
        if self.options.dry_run || self.ends.stopped() {
            return;
        }
        if self.deletes_source(&plan).await {
            return;
        }
        // A refused run must not make the next one take the other file system for the usual one.
        if !memory.has_changed() || (self.options.deletions.is_some() && self.refused.is_none()) {
            memory.keep();
        }
        self.change(plan).await;
    }

    /// Reports a source that lies in the target and would be deleted, and returns true.
    async fn deletes_source(&mut self, plan: &SyncPlan) -> bool {
        if self.options.deletions.is_none() {
            return false;
        }
        let probes = NestedSourceProbes::new(&self.ends, plan);
        let (path, error) = match probes.find_source(&mut self.ends).await {
            Ok(None) => return false,
            Ok(Some(source)) => {
                let what = "is SRC, which --delete would delete: exclude it, or leave out --delete";
                (source, what.into())
            }
            Err((path, error)) => {
                let what =
                    "it may be SRC, which --delete would delete, and that cannot be found out";
                (path, error.with_prefix(what))
            }
        };
        let name = self.ends.shown(PlannedCopySide::Target, &path);
        self.ends.fail(name, error);
        true
    }

    /// Lists both ends at the same time.
    async fn list(&mut self) -> Option<(ListedTree, ListedTree)> {
        let (ends, roots) = (&mut self.ends, &mut self.roots);
        let source = roots.prepare(ends, PlannedCopySide::Source).await?;
        let target = roots.prepare(ends, PlannedCopySide::Target).await?;
        let filter = self.filter();
        let (source, target) = if self.options.entries.gitignore {
            // Nested rules of the source decide at the target too, so it is listed after them.
            let source = listing::list(&mut self.ends, vec![source], &filter);
            let source = source.await?.pop()?;
            check_roots(&mut self.ends, Some(&source), None)?;
            let target = listing::list(&mut self.ends, vec![target], source.filter());
            let target = target.await?.pop()?;
            (source, target)
        } else {
            let target = match self.options.deletions {
                Some(_) => target,
                None => target.with_counterparts_only(),
            };
            let mut listings = listing::list(&mut self.ends, vec![source, target], &filter).await?;
            let target = listings.pop()?;
            (listings.pop()?, target)
        };
        check_roots(&mut self.ends, Some(&source), Some(&target))?;
        self.target_exists = target.root().is_some();
        if !self.target_exists {
            check_parent(&mut self.ends).await?;
            self.ends.note_target_missing();
        }
        Some((source, target))
    }

    /// Returns the filter, which leaves out the folder of `--backup-dir` as well.
    fn filter(&self) -> Filter {
        let mut filter = self.options.entries.filter.clone();
        if let Some(inside) = self.backup.as_ref().and_then(BackupRoot::inside) {
            filter.leave_out(inside);
        }
        filter
    }

    /// Returns the rules by which entries are compared with those of `target`.
    fn rules(&self, target: &SortedTree) -> ComparisonRules {
        let mut rules = self.options.comparison.clone();
        rules.grain = TimeGranularity::of(target);
        rules.metadata.ignore_special_bits = !self.ends.keeps_special_bits();
        rules.metadata.owners |= self.ends.sets_owners();
        rules.owner_ids = self.owner_ids.clone();
        rules
    }

    /// Compares the two listings.
    async fn plan(
        &mut self,
        source: ListedTree,
        target: ListedTree,
        rules: &ComparisonRules,
    ) -> Option<SyncPlan> {
        let (mut ours, kept) = source.into_tree();
        let (mut theirs, _) = target.into_tree();
        if self.target_exists && self.options.entries.filter.leaves_root() {
            leave_root(&mut ours, &theirs);
        }
        let mut settling = self.ends.settling();
        settling.read_symlinks(&mut ours, &mut theirs).await;
        let mut plan = SyncPlan::keeping(ours, theirs, rules, kept);
        settling.compare_unsure(&mut plan).await;
        self.xattrs = XattrComparer::find(&mut self.ends).await;
        if let Some(xattrs) = self.xattrs {
            let (ends, exists) = (&mut self.ends, self.target_exists);
            xattrs.compare_plan(ends, &mut plan, rules, exists).await;
        }
        let mut settling = self.ends.settling();
        match self.options.deletions.is_some() {
            true => settling.find_moves(&mut plan, rules).await,
            false => plan.keep_others(),
        }
        if let Some(xattrs) = self.xattrs {
            xattrs.copy_granting(&mut self.ends, &mut plan).await;
        }
        (!self.ends.stopped()).then_some(plan)
    }

    fn report_blocked(&mut self, plan: &SyncPlan) {
        for id in plan.blocked() {
            let path = join(
                self.ends.root(PlannedCopySide::Target),
                &plan.target().tree().path(*id),
            );
            let name = self.ends.shown(PlannedCopySide::Target, &path);
            let advice = match (self.options.deletions.is_some(), &self.refused) {
                (false, _) => "--delete replaces it, unless it has excluded entries",
                (true, None) => "it has excluded entries, which are never deleted",
                (true, Some(_)) => "deletions were refused",
            };
            let what = format!(
                "a directory that is not empty is in the way and was not replaced: {advice}"
            );
            self.ends.fail(name, what);
        }
    }

    fn refuse(&mut self, plan: &mut SyncPlan, refused: DeletionRefusal) {
        // `--dry-run` shows what would be deleted after a confirmation, if that is known.
        if !self.options.dry_run || matches!(refused, DeletionRefusal::IncompleteListing(_)) {
            plan.keep_others();
        }
        let why = refused.to_string();
        self.ends.warn(None, why.clone());
        self.refused = Some(why);
    }

    /// Reports the totals, and each planned change.
    fn announce(&mut self, plan: &SyncPlan) {
        // What is replaced by an entry of another type is that entry's line; all below it is
        // deleted.
        let in_the_way: BTreeSet<TreeEntryId> = plan.in_the_way().iter().copied().collect();
        let tree = plan.target().tree();
        let below = in_the_way.iter().copied();
        let below = below.filter(|id| in_the_way.contains(&tree.parent(*id)));
        let deleted: Vec<TreeEntryId> = below.chain(plan.deletions().iter().copied()).collect();
        let mut files = 0;
        let mut bytes = 0;
        for step in plan.steps() {
            let entry = plan.source().tree().entry(step.source);
            let data = matches!(step.action, SyncAction::Create | SyncAction::Replace(_));
            if data && entry.kind == TreeEntryKind::File {
                files += 1;
                bytes = u64::saturating_add(bytes, entry.size);
            }
        }
        let shown = |end| {
            let mut root = self.ends.root(end).to_vec();
            if !root.ends_with(b"/") {
                root.push(b'/');
            }
            self.ends.shown(end, &root)
        };
        let event = CopyEvent::SyncPlanned {
            source: shown(PlannedCopySide::Source),
            target: shown(PlannedCopySide::Target),
            files,
            bytes,
            deletions: deleted.len() as u64,
            equal: plan.equal(),
            entries: plan.source().tree().len() as u64,
            excluded: self.excluded,
            unlisted: self.unlisted,
        };
        self.ends.tell(event);
        for step in plan.steps() {
            let event = planned_event(plan, step);
            self.ends.tell(event);
        }
        if self.options.list_unchanged {
            for id in plan.unchanged() {
                let is_dir = plan.source().tree().entry(id).kind == TreeEntryKind::Directory;
                self.ends.tell(CopyEvent::Planned {
                    change: SyncChange::Equal,
                    path: directory_name(plan.source().tree().path(id), is_dir),
                    from: None,
                    reasons: Vec::new(),
                });
            }
        }
        for id in deleted {
            let path = plan.target().tree().path(id);
            let is_dir = plan.target().tree().entry(id).kind == TreeEntryKind::Directory;
            self.ends.tell(CopyEvent::Planned {
                change: SyncChange::Delete,
                path: directory_name(path, is_dir),
                from: None,
                reasons: Vec::new(),
            });
        }
    }

    /// Carries out the plan: removes entries that are in the way, renames moved files, copies data,
    /// sets attributes, and deletes last.
    async fn change(&mut self, mut plan: SyncPlan) {
        remove_name_probes(&mut self.ends, &self.probes).await;
        let mut read_only = ReadOnlyDirectories::default();
        read_only.open_for_steps(&mut self.ends, &plan).await;
        let kept = self.clear_the_way(&plan).await;
        plan.withhold(&kept);
        let mut plan = self.carry_out_moves(plan).await;
        if let Some(link_dest) = &mut self.link_dest {
            let exists = self.target_exists;
            plan = link_dest.carry_out(&mut self.ends, plan, exists).await;
        }
        if let Some(names) = &mut self.hard_links {
            names.carry_out(&mut self.ends, &mut plan).await;
        }
        if self.ends.stopped() {
            return;
        }
        if let Some(backup) = &mut self.backup {
            let in_place = self.request.copy.inplace;
            backup
                .keep_replaced(&mut self.ends, &mut plan, in_place)
                .await;
        }
        let plan = Arc::new(plan);
        let local = self.ends.is_local(PlannedCopySide::Source);
        let root = self.ends.root(PlannedCopySide::Source).to_vec();
        let links = self.hard_links.as_ref().map(|names| names.source().clone());
        let inodes = std::mem::take(&mut self.target_directories);
        let walk = SyncPlanWalk::new(Arc::clone(&plan), root, local, links, inodes);
        let target = self.ends.root(PlannedCopySide::Target).to_vec();
        self.ends.note_missing(created_below(&target, &plan));
        if walk.has_any() || self.ends.has_leftovers() {
            self.ends.copy(Box::new(walk)).await;
        }
        if self.ends.stopped() {
            return;
        }
        self.sent_whole = bytes_sent_whole(&mut self.ends, &plan).await;
        self.set_attributes(&plan).await;
        let deletions = match self.ends.has_failed() {
            false => plan.deletions(),
            true => &[],
        };
        if deletions.len() < plan.deletions().len() {
            let refused = "nothing is deleted: not everything was copied; run the sync again";
            self.ends.warn(None, refused.to_owned());
        }
        // The copy has set the modes of directories again.
        read_only
            .open_for_removals(&mut self.ends, &plan, deletions)
            .await;
        self.remove_entries(&plan, deletions).await;
        read_only.close_extra(&mut self.ends, &plan).await;
        self.report_temporaries(&plan).await;
        let changed = read_only.paths(&plan);
        self.restore_directories(&plan, deletions, changed).await;
    }

    /// Removes what stands in the way of an entry of another type. Such an entry counts as
    /// replaced, the contents of a directory as deleted.
    async fn clear_the_way(&mut self, plan: &SyncPlan) -> BTreeSet<TreeEntryId> {
        let doomed = plan.in_the_way().to_vec();
        let tree = plan.target().tree();
        let all: BTreeSet<TreeEntryId> = doomed.iter().copied().collect();
        let outermost = doomed.iter().filter(|id| !all.contains(&tree.parent(**id)));
        let outermost = outermost.count() as u64;
        let before = self.deleted;
        let kept = self.remove_entries(plan, &doomed).await;
        let removed = self.deleted - before;
        self.replaced = removed.min(outermost);
        self.deleted -= self.replaced;
        kept
    }

    /// Renames the target's copies of files that were moved at the source. A file that cannot be
    /// renamed is copied.
    async fn carry_out_moves(&mut self, mut plan: SyncPlan) -> SyncPlan {
        let moves: Vec<(TreeEntryId, TreeEntryId)> = plan
            .steps()
            .iter()
            .filter_map(|step| match step.action {
                SyncAction::MoveFrom(from) => Some((step.source, from)),
                _ => None,
            })
            .collect();
        if moves.is_empty() {
            return plan;
        }
        let root = self.ends.root(PlannedCopySide::Target).to_vec();
        let above: Vec<Vec<u8>> = moves
            .iter()
            .map(|(to, _)| plan.source().tree().path(plan.source().tree().parent(*to)))
            .collect();
        self.ends.make_directories(&root, above).await;
        let ops = moves.iter().map(|(to, from)| SyncFileOperation::Rename {
            from: join(&root, &plan.target().tree().path(*from)),
            to: join(&root, &plan.source().tree().path(*to)),
        });
        let ops: Vec<SyncFileOperation> = ops.collect();
        let results = self.ends.at_target(ops).await;
        let mut failed = BTreeSet::new();
        let mut set = Vec::new();
        for ((to, from), result) in moves.iter().zip(results) {
            match result {
                Ok(_) => {
                    set.push(self.attribute_change(&plan, *to, Some(*from)));
                    self.moved += 1;
                }
                Err(_) => drop(failed.insert(*to)),
            }
        }
        plan.unsettle_moves(&failed);
        let paths: Vec<Vec<u8>> = set.iter().map(|file| file.target.clone()).collect();
        let results = set_attributes(&mut self.ends, self.xattrs, set).await;
        self.ends
            .report_failures(&paths, &results, ATTRIBUTES_NOT_SET);
        plan
    }

    /// Sets attributes of files whose data are equal. Directories get theirs from the copy.
    async fn set_attributes(&mut self, plan: &SyncPlan) {
        let root = self.ends.root(PlannedCopySide::Target).to_vec();
        let tree = plan.source().tree();
        let mut files = Vec::new();
        let (mut links, mut owners) = (Vec::new(), Vec::new());
        for step in plan.steps() {
            let entry = tree.entry(step.source);
            if !matches!(step.action, SyncAction::SetAttributes(_)) {
                continue;
            }
            match (entry.kind, self.kept(entry).owner) {
                (TreeEntryKind::File, _) => {
                    files.push(self.attribute_change(plan, step.source, step.target));
                }
                (TreeEntryKind::Symlink, Some(owner)) => {
                    let path = join(&root, &tree.path(step.source));
                    owners.push(SyncFileOperation::SetSymlinkOwner(path.clone(), owner));
                    links.push(path);
                }
                _ => {}
            }
        }
        let paths: Vec<Vec<u8>> = files.iter().map(|file| file.target.clone()).collect();
        let results = set_attributes(&mut self.ends, self.xattrs, files).await;
        self.ends
            .report_failures(&paths, &results, ATTRIBUTES_NOT_SET);
        let results = self.ends.at_target(owners).await;
        self.ends
            .report_failures(&links, &results, ATTRIBUTES_NOT_SET);
    }

    /// Returns the change that gives a file of the target, listed as `there`, the attributes of its
    /// source.
    fn attribute_change(
        &self,
        plan: &SyncPlan,
        id: TreeEntryId,
        there: Option<TreeEntryId>,
    ) -> AttributeChange {
        let tree = plan.source().tree();
        let root = |end| self.ends.root(end);
        let listed = there.map(|id| plan.target().tree().entry(id));
        let mode = listed.and_then(|entry| entry.mode);
        let link = there.and_then(|id| self.target_links.get(&id)).copied();
        let links = self.hard_links.as_ref();
        let expected = match links.is_some_and(|links| links.source().contains_key(&id)) {
            true => ExpectedFile::of(listed, link).with_more_links(),
            false => ExpectedFile::of(listed, link),
        };
        AttributeChange {
            source: join(root(PlannedCopySide::Source), &tree.own_path(id)),
            target: join(root(PlannedCopySide::Target), &tree.path(id)),
            attributes: self.kept(tree.entry(id)),
            is_read_only: mode.is_some_and(|mode| mode & 0o200 == 0),
            expected,
        }
    }

    /// Returns the attributes that an entry gets from its source.
    fn kept(&self, entry: &sync::TreeEntry) -> Attributes {
        let rules = ComparisonRules {
            metadata: MetadataRules {
                ignore_special_bits: !self.ends.keeps_special_bits(),
                ..MetadataRules::default()
            },
            ..ComparisonRules::default()
        };
        let mut kept = entry.clone();
        kept.mode = kept.mode.map(|mode| mode & rules.kept_bits(entry.kind));
        let owner = kept.owner.filter(|_| self.ends.sets_owners());
        kept.owner = owner.map(|owner| self.owner_ids.at_target(owner));
        attributes(&kept)
    }

    /// Sets the modes and times of directories again from which `deletions` or directories of an
    /// earlier run were removed, in which a backup directory was made, or which are in `changed`.
    async fn restore_directories(
        &mut self,
        plan: &SyncPlan,
        deletions: &[TreeEntryId],
        changed: Vec<Vec<u8>>,
    ) {
        let (ours, theirs) = (plan.source(), plan.target());
        let root = self.ends.root(PlannedCopySide::Target).to_vec();
        if changed.iter().any(Vec::is_empty) {
            let entry = ours.tree().entry(EntryTree::ROOT);
            let set = SyncFileOperation::set(root.clone(), self.kept(entry));
            self.ends.at_target(vec![set]).await;
        }
        let mut paths: BTreeSet<Vec<u8>> = changed.iter().cloned().collect();
        let above = deletions.iter().map(|id| theirs.tree().parent(*id));
        paths.extend(above.map(|id| theirs.tree().path(id)));
        paths.extend(self.backup.iter().flat_map(BackupRoot::changed_dirs));
        paths.extend(self.probes.iter().map(|probe| parent_path(probe).to_vec()));
        // The root's own path is the one that the user named, symlinks included.
        let at_root = paths.remove(&[][..]);
        let dirs: Vec<TreeEntryId> = paths
            .iter()
            .filter_map(|path| ours.find(path))
            .filter(|id| ours.tree().entry(*id).kind == TreeEntryKind::Directory)
            .collect();
        let set = |id: &TreeEntryId| {
            let path = join(&root, &ours.tree().path(*id));
            SyncFileOperation::set(path, self.kept(ours.tree().entry(*id)))
        };
        let results = self.ends.at_target(dirs.iter().map(set).collect()).await;
        // Others than those that this run has made writable may be somebody else's.
        let results = dirs.iter().map(|id| ours.tree().path(*id)).zip(results);
        let (paths, results): (Vec<_>, Vec<_>) =
            results.filter(|(path, _)| changed.contains(path)).unzip();
        let paths: Vec<Vec<u8>> = paths.iter().map(|path| join(&root, path)).collect();
        let what = "cannot take write permission from its owner again";
        self.ends.report_failures(&paths, &results, what);
        if at_root {
            self.ends
                .set_root_times(&attributes(ours.tree().entry(EntryTree::ROOT)))
                .await;
        }
    }
}
