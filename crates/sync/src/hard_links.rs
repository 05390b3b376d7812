//! Plans hard links: the names of one file at the source become names of one file at the target.

use std::collections::BTreeMap;

use crate::alike::AlikeNames;
use crate::compare::{ComparisonResult, ComparisonRules, DifferenceReasons, OwnerIds};
use crate::plan::{SyncAction, SyncPlan, SyncStep};
use crate::tree::{SortedTree, TreeEntryId, TreeEntryKind};

/// Identity of a file with several names at one end: device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileIdentity {
    /// Number of the file system.
    pub device: u64,
    /// Number of the file in it.
    pub inode: u64,
}

/// Entries of one end that are names of files with several names.
pub type LinkedEntries = BTreeMap<TreeEntryId, FileIdentity>;

impl SyncPlan {
    /// Plans hard links between the names of one file in `source`: one name gets its data as
    /// planned, if the target does not have them, and the others become links to it
    /// ([`SyncAction::HardLink`]). `target` are the linked entries of the target; `None` if its
    /// server does not tell them, and then names with equal data are linked again.
    ///
    /// Links at the target between different files of the source stay as long as nothing differs,
    /// as in rsync. A file whose attributes must change gets its own copy first.
    pub fn keep_hard_links(
        &mut self,
        source: &LinkedEntries,
        target: Option<&LinkedEntries>,
        rules: &ComparisonRules,
    ) {
        let steps = StepIndex::new(self);
        if let Some(target) = target {
            self.separate_shared(&steps, source, target, rules);
        }
        let mut linked = Vec::new();
        for names in several_names(source) {
            let names = self.linked_names(&steps, &names, target, rules);
            linked.extend(links_of(names));
        }
        self.apply(&steps, linked);
    }

    /// Plans a copy for each file that shares an inode of the target with another file of the
    /// source and gets other attributes than that one: attributes are set on the inode.
    fn separate_shared(
        &mut self,
        steps: &StepIndex,
        source: &LinkedEntries,
        target: &LinkedEntries,
        rules: &ComparisonRules,
    ) {
        let moved = self.moved_entries();
        let mut freed = Vec::new();
        // Both entries are those of the source.
        let rules = ComparisonRules {
            owner_ids: OwnerIds::default(),
            ..rules.clone()
        };
        for names in several_names(target) {
            let staying = self.staying_on(steps, &names, &moved);
            let unchanged = staying.iter().find(|(_, step)| step.is_none());
            let Some((first, _)) = unchanged.or_else(|| staying.first()) else {
                continue;
            };
            let identity = source.get(first);
            for (id, step) in &staying {
                let is_same_file =
                    id == first || (identity.is_some() && source.get(id) == identity);
                let tree = self.source().tree();
                let compared = rules.compare(tree.entry(*first), tree.entry(*id));
                let differs = matches!(compared, ComparisonResult::Differs(_));
                if let Some(at) = step.filter(|_| differs && !is_same_file) {
                    freed.extend(self.separate(at));
                }
            }
        }
        self.delete_freed(&freed);
    }

    /// Returns the entries of the source to which files of the target are moved, by the latter.
    fn moved_entries(&self) -> BTreeMap<TreeEntryId, TreeEntryId> {
        let steps = self.steps().iter();
        let moved = steps.filter_map(|step| match step.action {
            SyncAction::MoveFrom(from) => Some((from, step.source)),
            _ => None,
        });
        moved.collect()
    }

    /// Returns the entries of the source that are names of one file of the target, whose names there
    /// are `names`, after the sync. Those whose attributes are set come with their steps.
    fn staying_on(
        &self,
        steps: &StepIndex,
        names: &[TreeEntryId],
        moved: &BTreeMap<TreeEntryId, TreeEntryId>,
    ) -> Vec<(TreeEntryId, Option<usize>)> {
        let ours = names.iter().filter_map(|there| match moved.get(there) {
            Some(id) => Some(*id),
            None => self.source().find(&self.target().tree().path(*there)),
        });
        let files = ours.filter(|id| self.source().tree().entry(*id).kind == TreeEntryKind::File);
        let staying = files.filter_map(|id| {
            let Some(at) = steps.find(id) else {
                return Some((id, None));
            };
            let action = self.steps().get(at)?.action;
            let stays = matches!(
                action,
                SyncAction::SetAttributes(_) | SyncAction::MoveFrom(_)
            );
            stays.then_some((id, Some(at)))
        });
        staying.collect()
    }

    /// Plans a copy instead of the step at a position, which sets attributes or moves. Returns the
    /// entry of the target that is no longer moved.
    fn separate(&mut self, at: usize) -> Option<TreeEntryId> {
        let (action, freed) = match self.steps().get(at)?.action {
            SyncAction::SetAttributes(why) => (
                SyncAction::Replace(why.with(DifferenceReasons::NAMES)),
                None,
            ),
            SyncAction::MoveFrom(from) => (SyncAction::Create, Some(from)),
            _ => return None,
        };
        self.set_action(at, action);
        freed
    }

    /// Returns the names of one file that take part, in the order of the steps.
    fn linked_names(
        &self,
        steps: &StepIndex,
        names: &[TreeEntryId],
        target: Option<&LinkedEntries>,
        rules: &ComparisonRules,
    ) -> Vec<LinkedName> {
        let identity = |id: TreeEntryId| target.and_then(|target| target.get(&id)).copied();
        let mut linked = Vec::new();
        for id in names {
            let path = self.source().tree().path(*id);
            // One name listed twice is one entry.
            if self.source().find(&path) != Some(*id) {
                continue;
            }
            let step = steps.find(*id).and_then(|at| self.steps().get(at)).copied();
            let Some(step) = step.or_else(|| self.equal_step(*id, &path, rules)) else {
                continue;
            };
            let (rank, file) = match step.action {
                SyncAction::SetAttributes(why) => {
                    let rank = match why == DifferenceReasons::default() {
                        true => Rank::Equal,
                        false => Rank::OtherAttributes,
                    };
                    (rank, step.target.and_then(identity))
                }
                SyncAction::Link => (Rank::Linked, None),
                SyncAction::MoveFrom(from) => (Rank::Moved, identity(from)),
                SyncAction::Create | SyncAction::Replace(_) => (Rank::Copied, None),
                SyncAction::Unsure(_) | SyncAction::HardLink { .. } => continue,
            };
            let name = LinkedName {
                rank,
                file,
                step,
                order: order_of(self.source(), *id),
            };
            linked.push(name);
        }
        linked.sort_by(|a, b| a.order.cmp(&b.order));
        linked
    }

    /// Returns a step without differences for a file that is equal at the target, unless the file is
    /// skipped.
    fn equal_step(
        &self,
        id: TreeEntryId,
        path: &[u8],
        rules: &ComparisonRules,
    ) -> Option<SyncStep> {
        let there = self.target().find(path)?;
        let (ours, theirs) = (
            self.source().tree().entry(id),
            self.target().tree().entry(there),
        );
        let both_files = [ours, theirs]
            .iter()
            .all(|entry| entry.kind == TreeEntryKind::File);
        let is_newer = ComparisonRules::target_is_newer(ours, theirs);
        let is_skipped = rules.skipped.existing || (rules.skipped.newer && is_newer);
        (both_files && !is_skipped).then(|| SyncStep {
            action: SyncAction::SetAttributes(DifferenceReasons::default()),
            source: id,
            target: Some(there),
        })
    }

    /// Notes the links, and inserts the steps of entries that had none.
    fn apply(&mut self, steps: &StepIndex, linked: Vec<LinkedName>) {
        let mut inserted = Vec::new();
        let mut freed = Vec::new();
        for name in linked {
            match steps.find(name.step.source) {
                Some(at) => {
                    let before = self.set_action(at, name.step.action);
                    if let Some(SyncAction::MoveFrom(from)) = before {
                        freed.push(from);
                    }
                }
                None => inserted.push(name),
            }
        }
        self.delete_freed(&freed);
        if inserted.is_empty() {
            return;
        }
        inserted.sort_by(|a, b| a.order.cmp(&b.order));
        let order = |plan: &Self, step: &SyncStep| order_of(plan.source(), step.source);
        let mut merged = Vec::with_capacity(self.steps().len() + inserted.len());
        let mut inserted = inserted.into_iter().peekable();
        for step in self.steps() {
            let at = order(self, step);
            while let Some(name) = inserted.next_if(|name| name.order < at) {
                merged.push(name.step);
            }
            merged.push(*step);
        }
        merged.extend(inserted.map(|name| name.step));
        self.replace_steps(merged);
    }

    /// Deletes entries that would have been moved, unless the target may take one for an entry of
    /// the source.
    fn delete_freed(&mut self, freed: &[TreeEntryId]) {
        if freed.is_empty() {
            return;
        }
        let mut names = AlikeNames::of(self.source());
        let tree = self.target().tree();
        let paths = freed.iter().map(|id| (*id, tree.path(*id)));
        let deleted: Vec<TreeEntryId> = paths
            .filter(|(_, path)| names.find(path).is_none())
            .map(|(id, _)| id)
            .collect();
        self.add_deletions(&deleted);
    }
}

/// Returns the names of each file that has several among `entries`.
fn several_names(entries: &LinkedEntries) -> impl Iterator<Item = Vec<TreeEntryId>> {
    let mut files: BTreeMap<FileIdentity, Vec<TreeEntryId>> = BTreeMap::new();
    for (id, identity) in entries {
        files.entry(*identity).or_default().push(*id);
    }
    files.into_values().filter(|names| names.len() > 1)
}

/// Path of an entry in a form whose bytes sort in the order of the steps.
fn order_of(tree: &SortedTree, id: TreeEntryId) -> Vec<u8> {
    let mut path = tree.tree().path(id);
    for byte in path.iter_mut().filter(|byte| **byte == b'/') {
        *byte = 0;
    }
    path
}

/// Positions of the steps, by the number of their source entry.
struct StepIndex(Vec<u32>);

impl StepIndex {
    /// Position of an entry without a step.
    const NONE: u32 = u32::MAX;

    fn new(plan: &SyncPlan) -> Self {
        let mut index = vec![Self::NONE; plan.source().tree().len() + 1];
        for (at, step) in (0u32..).zip(plan.steps()) {
            if let Some(slot) = index.get_mut(step.source.index()) {
                *slot = at;
            }
        }
        Self(index)
    }

    fn find(&self, id: TreeEntryId) -> Option<usize> {
        let at = self.0.get(id.index()).copied();
        at.filter(|at| *at != Self::NONE).map(|at| at as usize)
    }
}

/// Choice of the name that the others are linked to: the lowest is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Nothing differs at the target.
    Equal,
    /// The data are equal at the target.
    OtherAttributes,
    /// The name becomes a link to a file of an earlier copy.
    Linked,
    /// The target has the file under another name.
    Moved,
    /// The data are copied.
    Copied,
}

/// A name of a file at the source that has several names there.
struct LinkedName {
    rank: Rank,
    /// File of the target that the name has or gets, if it has several names there.
    file: Option<FileIdentity>,
    step: SyncStep,
    order: Vec<u8>,
}

/// Chooses the name that gets the data, and returns the steps of those that are linked to it.
fn links_of(names: Vec<LinkedName>) -> Vec<LinkedName> {
    let Some(best) = names.iter().min_by_key(|name| name.rank) else {
        return Vec::new();
    };
    let (first, file) = (best.step.source, best.file);
    let has_file = |name: &LinkedName| file.is_some() && name.file == file;
    let others = names.into_iter().filter(|name| name.step.source != first);
    others
        .filter(|name| !has_file(name))
        .map(|mut name| {
            let exists = name.step.target.is_some();
            let why = match name.step.action {
                SyncAction::SetAttributes(why) | SyncAction::Replace(why) => why,
                _ => DifferenceReasons::default(),
            };
            name.step.action = SyncAction::HardLink {
                first,
                why: match exists {
                    true => why.with(DifferenceReasons::NAMES),
                    false => why,
                },
                has_data: name.rank <= Rank::OtherAttributes,
            };
            name
        })
        .collect()
}

#[cfg(test)]
#[path = "hard_links_tests.rs"]
mod tests;
