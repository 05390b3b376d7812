//! Decides which entries of a tree are copied, and what makes one tree equal to another. Pure: both
//! trees come as data, and the decisions leave as data.
//!
//! - [`Filter`] selects entries by rules in gitignore's syntax, by size, time and list of names.
//! - [`EntryTree`] holds one end's entries in memory, about 70 bytes each.
//! - [`SyncPlan`] pairs the trees of both ends and says what to create, replace, move and delete.
//! - [`DeletionLimits`] refuses deletions that look like a mistake.
//!
//! ```
//! use sync::{ComparisonRules, TreeEntry, TreeEntryKind, SyncPlan, EntryTree};
//!
//! let mut source = EntryTree::new();
//! source.add(EntryTree::ROOT, b"a.txt", TreeEntry::file(5, 1_700_000_000));
//! let mut target = EntryTree::new();
//! target.add(EntryTree::ROOT, b"old", TreeEntry::new(TreeEntryKind::Directory));
//! let plan = SyncPlan::new(source.sorted(), target.sorted(), &ComparisonRules::default());
//! assert_eq!((plan.created(), plan.deletions().len()), (1, 1));
//! ```

mod alike;
mod compare;
mod deletion;
mod filter;
mod hard_links;
mod inside;
mod moves;
mod names;
mod plan;
mod tree;

pub use alike::{alike_entries, alike_hash, alike_names, alike_path, has_alike, to_nfc};
pub use compare::{
    ComparisonResult, ComparisonRules, DifferenceReasons, MetadataRules, OwnerIds, SkipRules,
    TimeGranularity,
};
pub use deletion::{DeletionCount, DeletionLimits, DeletionRefusal};
pub use filter::{Filter, FilterBuilder, FilterDecision, FilterRuleError, RuleOrigin};
pub use hard_links::{FileIdentity, LinkedEntries};
pub use inside::source_lookalikes;
pub use names::{ListedNameError, ListedNames};
pub use plan::{FoundDifference, SyncAction, SyncPlan, SyncStep};
pub use tree::{
    EntryTree, ModifiedTime, SortedTree, TreeEntry, TreeEntryId, TreeEntryKind, parent_path,
};
