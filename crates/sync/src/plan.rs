use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::alike::AlikeNames;
use crate::compare::{ComparisonResult, ComparisonRules, DifferenceReasons};
use crate::moves;
use crate::tree::{EntryTree, SortedTree, TreeEntryId, TreeEntryKind};

/// Change that an entry of the source asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// The target has no entry of this name.
    Create,
    /// The target's entry is replaced for these reasons.
    Replace(DifferenceReasons),
    /// The data are equal, and these attributes are set.
    SetAttributes(DifferenceReasons),
    /// Size and second are equal. A checksum decides ([`SyncPlan::settle`]); the reasons are those
    /// that differ in any case.
    Unsure(DifferenceReasons),
    /// The target has the file under another name, from which it is renamed.
    MoveFrom(TreeEntryId),
    /// Another directory of the target has an equal file, of which the entry becomes a hard link.
    Link,
    /// The entry becomes a hard link to that of another name of its file.
    HardLink {
        /// Entry of the source whose target is linked to.
        first: TreeEntryId,
        /// Differences of an existing entry of the target.
        why: DifferenceReasons,
        /// The target's entry is a file with equal data, which stays if it cannot be linked.
        has_data: bool,
    },
}

/// Comparison of two entries with equal data, of what the listings do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDifference {
    /// Entry of the source.
    pub source: TreeEntryId,
    /// Entry of the target.
    pub target: TreeEntryId,
    /// Differences, if there are any.
    pub why: DifferenceReasons,
    /// The source's attributes grant privileges to whoever runs the file. Only a file whose data
    /// are copied gets them.
    pub grants: bool,
}

impl SyncAction {
    /// True if the target's entry is of another type than the source's.
    fn replaces_type(self) -> bool {
        match self {
            Self::Replace(why) | Self::HardLink { why, .. } => why.has(DifferenceReasons::KIND),
            _ => false,
        }
    }
}

/// An entry of the source with its action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStep {
    /// Change at the target.
    pub action: SyncAction,
    /// Entry of the source.
    pub source: TreeEntryId,
    /// Entry of that name at the target, if there is one.
    pub target: Option<TreeEntryId>,
}

/// All that makes the target equal to the source. Steps are in the order of the source's names, a
/// directory before its contents.
#[derive(Clone, Debug)]
pub struct SyncPlan {
    source: SortedTree,
    target: SortedTree,
    steps: Vec<SyncStep>,
    deletions: Vec<TreeEntryId>,
    /// Target entries of another type than the source's, with what is below them.
    in_the_way: Vec<TreeEntryId>,
    blocked: Vec<TreeEntryId>,
    equal: u64,
    kept: BTreeSet<Vec<u8>>,
}

impl SyncPlan {
    /// Pairs the entries of both trees.
    pub fn new(source: SortedTree, target: SortedTree, rules: &ComparisonRules) -> Self {
        Self::keeping(source, target, rules, BTreeSet::new())
    }

    /// Pairs the entries of both trees. Target entries at the paths `kept`, and all below them,
    /// stay as they are.
    pub fn keeping(
        source: SortedTree,
        mut target: SortedTree,
        rules: &ComparisonRules,
        kept: BTreeSet<Vec<u8>>,
    ) -> Self {
        for path in &kept {
            target.protect_above(path);
        }
        let mut plan = Self {
            source,
            target,
            steps: Vec::new(),
            deletions: Vec::new(),
            in_the_way: Vec::new(),
            blocked: Vec::new(),
            equal: 0,
            kept,
        };
        plan.pair(rules);
        plan
    }

    fn pair(&mut self, rules: &ComparisonRules) {
        let roots = (
            self.source.tree().entry(EntryTree::ROOT),
            self.target.tree().entry(EntryTree::ROOT),
        );
        if let ComparisonResult::Differs(why) = rules.compare(roots.0, roots.1) {
            self.steps.push(SyncStep {
                action: SyncAction::SetAttributes(why),
                source: EntryTree::ROOT,
                target: Some(EntryTree::ROOT),
            });
        }
        // Deepest last: a directory's entries follow it at once.
        let mut open = vec![(EntryTree::ROOT, Some(EntryTree::ROOT))];
        while let Some((source, target)) = open.pop() {
            let below = self.pair_entry(source, target, rules);
            open.extend(below.into_iter().rev());
        }
    }

    /// Decides about one entry, and returns the pairs below it.
    fn pair_entry(
        &mut self,
        source: TreeEntryId,
        target: Option<TreeEntryId>,
        rules: &ComparisonRules,
    ) -> Vec<(TreeEntryId, Option<TreeEntryId>)> {
        let mut beside = target;
        if source != EntryTree::ROOT {
            match self.decide(source, target, rules) {
                Some(step) => {
                    if matches!(step.action, SyncAction::Replace(why) if why.has(DifferenceReasons::KIND))
                    {
                        beside = None;
                    }
                    self.steps.push(step);
                }
                None if self.source.tree().entry(source).kind != TreeEntryKind::Directory => {
                    return Vec::new();
                }
                None if target.is_none() => return Vec::new(),
                None => {}
            }
        }
        if self.source.tree().entry(source).kind != TreeEntryKind::Directory {
            return Vec::new();
        }
        self.pair_children(source, beside)
    }

    fn decide(
        &mut self,
        source: TreeEntryId,
        target: Option<TreeEntryId>,
        rules: &ComparisonRules,
    ) -> Option<SyncStep> {
        let entry = self.source.tree().entry(source);
        let step = |action| {
            Some(SyncStep {
                action,
                source,
                target,
            })
        };
        if matches!(entry.kind, TreeEntryKind::Other | TreeEntryKind::Temporary) {
            return None;
        }
        let Some(at_target) = target else {
            return if rules.skipped.missing {
                None
            } else {
                step(SyncAction::Create)
            };
        };
        let other = self.target.tree().entry(at_target);
        let both_dirs =
            entry.kind == TreeEntryKind::Directory && other.kind == TreeEntryKind::Directory;
        if rules.is_skipped(entry, other) {
            self.equal += 1;
            return None;
        }
        match rules.compare(entry, other) {
            ComparisonResult::Equal => {
                self.equal += 1;
                None
            }
            ComparisonResult::Unsure(why) => step(SyncAction::Unsure(why)),
            ComparisonResult::Differs(why) if why.has(DifferenceReasons::KIND) => {
                if other.kind == TreeEntryKind::Directory
                    && self.target.tree().is_protected(at_target)
                {
                    self.blocked.push(at_target);
                    return None;
                }
                if other.kind == TreeEntryKind::Directory {
                    let mut below = Vec::new();
                    self.subtree(at_target, &mut below);
                    self.in_the_way.extend(below);
                } else if entry.kind == TreeEntryKind::Directory {
                    self.in_the_way.push(at_target);
                }
                step(SyncAction::Replace(why))
            }
            ComparisonResult::Differs(why) if rules.needs_data(why) && !both_dirs => {
                step(SyncAction::Replace(why))
            }
            ComparisonResult::Differs(why) => step(SyncAction::SetAttributes(why)),
        }
    }

    fn pair_children(
        &mut self,
        source: TreeEntryId,
        target: Option<TreeEntryId>,
    ) -> Vec<(TreeEntryId, Option<TreeEntryId>)> {
        let ours: Vec<TreeEntryId> = self.source.children(source).collect();
        let theirs: Vec<TreeEntryId> = match target {
            Some(dir) => self.target.children(dir).collect(),
            None => Vec::new(),
        };
        let mut pairs = Vec::with_capacity(ours.len());
        let mut alone = Vec::new();
        let (mut left, mut right) = (ours.iter().peekable(), theirs.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(ours), Some(theirs)) => {
                    let ours = self.source.tree().name(**ours);
                    ours.cmp(self.target.tree().name(**theirs))
                }
            };
            match order {
                Ordering::Less => pairs.extend(left.next().map(|id| (*id, None))),
                Ordering::Greater => alone.extend(right.next()),
                Ordering::Equal => {
                    let both = left.next().zip(right.next());
                    pairs.extend(both.map(|(ours, theirs)| (*ours, Some(*theirs))));
                }
            }
        }
        for id in alone {
            let stays = self.target.tree().entry(id).kind == TreeEntryKind::Temporary;
            if stays || self.is_kept(id) {
                continue;
            }
            let mut below = Vec::new();
            self.subtree(id, &mut below);
            self.deletions.extend(below);
        }
        pairs
    }

    /// Lists what can be removed at and below a target entry, deepest first.
    fn subtree(&self, top: TreeEntryId, out: &mut Vec<TreeEntryId>) {
        let mut open = vec![top];
        let start = out.len();
        while let Some(id) = open.pop() {
            if self.is_kept(id) {
                continue;
            }
            if !self.target.tree().is_protected(id) {
                out.push(id);
            }
            if self.target.tree().entry(id).kind == TreeEntryKind::Directory {
                open.extend(self.target.children(id));
            }
        }
        if let Some(listed) = out.get_mut(start..) {
            listed.reverse();
        }
    }

    fn is_kept(&self, target: TreeEntryId) -> bool {
        !self.kept.is_empty() && self.kept.contains(&self.target.tree().path(target))
    }

    /// Pairs new files with files that would be deleted and have the same size and time. Returns
    /// the pairs (source, target), which become moves by [`SyncPlan::settle_moves`].
    pub fn find_moves(&self, rules: &ComparisonRules) -> Vec<(TreeEntryId, TreeEntryId)> {
        let created = self
            .steps
            .iter()
            .filter(|step| step.action == SyncAction::Create);
        let created = created.map(|step| step.source);
        let deleted = self.deletions.iter().copied();
        moves::pairs(
            self.source.tree(),
            created,
            self.target.tree(),
            deleted,
            rules,
        )
    }

    /// Notes that these new files are moved at the target instead of copied.
    pub fn settle_moves(&mut self, moves: &[(TreeEntryId, TreeEntryId)]) {
        let by_source: BTreeMap<_, _> = moves.iter().copied().collect();
        let mut taken = BTreeSet::new();
        for step in &mut self.steps {
            if let (SyncAction::Create, Some(from)) = (step.action, by_source.get(&step.source)) {
                step.action = SyncAction::MoveFrom(*from);
                taken.insert(*from);
            }
        }
        self.deletions.retain(|id| !taken.contains(id));
    }

    /// Notes that these files could not be moved, and are copied. What they would have been moved
    /// from is deleted, unless the target may take it for an entry of the source.
    pub fn unsettle_moves(&mut self, sources: &BTreeSet<TreeEntryId>) {
        let mut names = AlikeNames::of(&self.source);
        for step in &mut self.steps {
            if let SyncAction::MoveFrom(from) = step.action
                && sources.contains(&step.source)
            {
                step.action = SyncAction::Create;
                if names.find(&self.target.tree().path(from)).is_none() {
                    self.deletions.push(from);
                }
            }
        }
    }

    /// Copies these files of the target instead of changing or moving them: they have hard links
    /// outside the target, where nothing may change.
    pub fn copy_linked(&mut self, files: &BTreeSet<TreeEntryId>) {
        let mut moved = BTreeSet::new();
        for step in &mut self.steps {
            let is_linked = step.target.is_some_and(|id| files.contains(&id));
            match step.action {
                SyncAction::SetAttributes(why) if is_linked => {
                    step.action = SyncAction::Replace(why);
                }
                SyncAction::MoveFrom(from) if files.contains(&from) => {
                    moved.insert(step.source);
                }
                _ => {}
            }
        }
        self.unsettle_moves(&moved);
    }

    /// Returns the deletions whose paths some file system may take for those of source entries, as
    /// pairs (source, target).
    pub fn alike_deletions(&self) -> Vec<(TreeEntryId, TreeEntryId)> {
        let mut names = AlikeNames::of(&self.source);
        let tree = self.target.tree();
        let deletions = self.deletions.iter();
        let pairs = deletions.filter_map(|id| Some((names.find(&tree.path(*id))?, *id)));
        pairs.collect()
    }

    /// Leaves these target entries as they are: drops the steps of the source entries of their
    /// paths and below.
    pub fn withhold(&mut self, entries: &BTreeSet<TreeEntryId>) {
        if entries.is_empty() {
            return;
        }
        let paths: BTreeSet<Vec<u8>> = entries
            .iter()
            .map(|id| self.target.tree().path(*id))
            .collect();
        let tree = self.source.tree();
        self.steps.retain(|step| {
            let mut at = step.source;
            while at != EntryTree::ROOT {
                if paths.contains(&tree.path(at)) {
                    return false;
                }
                at = tree.parent(at);
            }
            true
        });
    }

    /// Keeps these entries, which would have been deleted.
    pub fn spare(&mut self, entries: &BTreeSet<TreeEntryId>) {
        self.deletions.retain(|id| !entries.contains(id));
    }

    /// Notes the result of a checksum for every step that was unsure: `equal` is asked for each.
    pub fn settle(&mut self, mut equal: impl FnMut(&SyncStep) -> bool) {
        let mut same = 0;
        self.steps.retain_mut(|step| {
            let SyncAction::Unsure(why) = step.action else {
                return true;
            };
            if !equal(step) {
                step.action = SyncAction::Replace(why.with(DifferenceReasons::CONTENT));
                return true;
            }
            if why.is_empty() {
                same += 1;
                return false;
            }
            step.action = SyncAction::SetAttributes(why);
            true
        });
        self.equal += same;
    }

    /// Returns the files and directories that the target has with the same data and that are not
    /// skipped, as pairs (source, target), the roots included.
    pub fn with_equal_data(&self, rules: &ComparisonRules) -> Vec<(TreeEntryId, TreeEntryId)> {
        let mut changed = vec![false; self.source.tree().len() + 1];
        for step in &self.steps {
            if let Some(changed) = changed.get_mut(step.source.index()) {
                *changed = !matches!(step.action, SyncAction::SetAttributes(_));
            }
        }
        let mut pairs = Vec::new();
        let mut open = vec![(EntryTree::ROOT, EntryTree::ROOT)];
        while let Some((ours, theirs)) = open.pop() {
            let (entry, other) = (
                self.source.tree().entry(ours),
                self.target.tree().entry(theirs),
            );
            let is_compared = entry.kind == other.kind
                && matches!(entry.kind, TreeEntryKind::File | TreeEntryKind::Directory)
                && !changed.get(ours.index()).copied().unwrap_or(true);
            if is_compared && !rules.is_skipped(entry, other) {
                pairs.push((ours, theirs));
            }
            let below = self.source.children(ours).filter_map(|id| {
                let there = self.target.child(theirs, self.source.tree().name(id))?;
                Some((id, there))
            });
            let below: Vec<_> = below.collect();
            open.extend(below.into_iter().rev());
        }
        pairs
    }

    /// Notes what was found of entries with equal data ([`with_equal_data`](Self::with_equal_data)).
    /// Those that differ get the attributes of the source, or are copied if they grant privileges.
    pub fn note(&mut self, found: &[FoundDifference], rules: &ComparisonRules) {
        let mut found: BTreeMap<TreeEntryId, &FoundDifference> =
            found.iter().map(|found| (found.source, found)).collect();
        let action = |source: &SortedTree, found: &FoundDifference, why: DifferenceReasons| {
            let entry = source.tree().entry(found.source);
            match found.grants || rules.is_privileged(entry) {
                // The file of this size and time at the target may be somebody else's.
                true => SyncAction::Replace(why.with(DifferenceReasons::CONTENT)),
                false => SyncAction::SetAttributes(why),
            }
        };
        for step in &mut self.steps {
            if let SyncAction::SetAttributes(before) = step.action
                && let Some(found) = found.remove(&step.source)
            {
                step.action = action(&self.source, found, before.with(found.why));
            }
        }
        found.retain(|_, found| !found.why.is_empty());
        if found.is_empty() {
            return;
        }
        self.equal -= found.keys().filter(|id| **id != EntryTree::ROOT).count() as u64;
        let steps = found.into_values().map(|found| SyncStep {
            action: action(&self.source, found, found.why),
            source: found.source,
            target: Some(found.target),
        });
        self.steps.extend(steps);
        let ranks = self.source_ranks();
        let rank = |step: &SyncStep| ranks.get(step.source.index()).copied();
        self.steps.sort_by_key(rank);
    }

    /// Returns the rank of each entry of the source in the order of the steps, by its number.
    fn source_ranks(&self) -> Vec<u32> {
        let mut ranks = vec![0; self.source.tree().len() + 1];
        let mut open = vec![EntryTree::ROOT];
        let mut next = 0;
        while let Some(id) = open.pop() {
            if let Some(rank) = ranks.get_mut(id.index()) {
                *rank = next;
            }
            next += 1;
            let below: Vec<TreeEntryId> = self.source.children(id).collect();
            open.extend(below.into_iter().rev());
        }
        ranks
    }

    /// Links new files for which `equal` finds an equal file elsewhere at the target.
    pub fn link(&mut self, mut equal: impl FnMut(TreeEntryId) -> bool) {
        for step in &mut self.steps {
            let is_file = self.source.tree().entry(step.source).kind == TreeEntryKind::File;
            if step.action == SyncAction::Create && is_file && equal(step.source) {
                step.action = SyncAction::Link;
            }
        }
    }

    /// Leaves names that have equal data and could not be linked as separate files, which get the
    /// attributes that differ.
    pub fn leave_separate(&mut self, sources: &BTreeSet<TreeEntryId>) {
        let mut same = 0;
        self.steps.retain_mut(|step| {
            let SyncAction::HardLink { why, .. } = step.action else {
                return true;
            };
            if !sources.contains(&step.source) {
                return true;
            }
            let why = why.without(DifferenceReasons::NAMES);
            step.action = SyncAction::SetAttributes(why);
            same += u64::from(why.is_empty());
            !why.is_empty()
        });
        self.equal += same;
    }

    /// Sets the action of the step at a position. Returns the one before.
    pub(crate) fn set_action(&mut self, at: usize, action: SyncAction) -> Option<SyncAction> {
        let step = self.steps.get_mut(at)?;
        Some(std::mem::replace(&mut step.action, action))
    }

    /// Replaces the steps by more of them: the entries that are added did not differ before.
    pub(crate) fn replace_steps(&mut self, steps: Vec<SyncStep>) {
        let added = steps.len().saturating_sub(self.steps.len()) as u64;
        self.equal = self.equal.saturating_sub(added);
        self.steps = steps;
    }

    /// Deletes further entries of the target.
    pub(crate) fn add_deletions(&mut self, entries: &[TreeEntryId]) {
        self.deletions.extend(entries);
    }

    /// Copies these entries of the source after all, which could not be linked.
    pub fn unlink(&mut self, sources: &BTreeSet<TreeEntryId>) {
        for step in &mut self.steps {
            if step.action == SyncAction::Link && sources.contains(&step.source) {
                step.action = SyncAction::Create;
            }
        }
    }

    /// Returns the entries of the source that exist at the target and have no step.
    pub fn unchanged(&self) -> Vec<TreeEntryId> {
        let mut stepped = vec![false; self.source.tree().len() + 1];
        for step in &self.steps {
            if let Some(stepped) = stepped.get_mut(step.source.index()) {
                *stepped = true;
            }
        }
        let mut unchanged = Vec::new();
        let mut open = vec![(EntryTree::ROOT, EntryTree::ROOT)];
        while let Some((ours, theirs)) = open.pop() {
            let mut below = Vec::new();
            for id in self.source.children(ours) {
                let name = self.source.tree().name(id);
                let Some(there) = self.target.child(theirs, name) else {
                    continue;
                };
                if !stepped.get(id.index()).copied().unwrap_or(true) {
                    unchanged.push(id);
                }
                below.push((id, there));
            }
            open.extend(below.into_iter().rev());
        }
        unchanged
    }

    /// Keeps the entries that exist at the target only. Files are then copied instead of moved, and
    /// a directory with entries is not replaced by a file.
    pub fn keep_others(&mut self) {
        for step in &mut self.steps {
            if let SyncAction::MoveFrom(_) = step.action {
                step.action = SyncAction::Create;
            }
        }
        self.deletions.clear();
        self.in_the_way.clear();
        let (source, target) = (&self.source, &self.target);
        let (in_the_way, blocked) = (&mut self.in_the_way, &mut self.blocked);
        self.steps.retain(|step| {
            let Some(there) = step.target.filter(|_| step.action.replaces_type()) else {
                return true;
            };
            let was_dir = target.tree().entry(there).kind == TreeEntryKind::Directory;
            if was_dir && target.children(there).len() > 0 {
                blocked.push(there);
                return false;
            }
            if was_dir || source.tree().entry(step.source).kind == TreeEntryKind::Directory {
                in_the_way.push(there);
            }
            true
        });
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[SyncStep] {
        &self.steps
    }

    /// Returns the target entries without a counterpart, deepest first.
    pub fn deletions(&self) -> &[TreeEntryId] {
        &self.deletions
    }

    /// Returns the target entries that must go before an entry of another type takes their name,
    /// deepest first.
    pub fn in_the_way(&self) -> &[TreeEntryId] {
        &self.in_the_way
    }

    /// Returns the target directories that cannot be replaced by a file, because they contain
    /// excluded entries.
    pub fn blocked(&self) -> &[TreeEntryId] {
        &self.blocked
    }

    /// Returns the number of entries that are created.
    pub fn created(&self) -> usize {
        self.steps
            .iter()
            .filter(|step| step.action == SyncAction::Create)
            .count()
    }

    /// Returns the number of entries in which nothing differs.
    pub fn equal(&self) -> u64 {
        self.equal
    }

    /// Returns the source's tree.
    pub fn source(&self) -> &SortedTree {
        &self.source
    }

    /// Returns the target's tree.
    pub fn target(&self) -> &SortedTree {
        &self.target
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
