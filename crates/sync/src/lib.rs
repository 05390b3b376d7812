//! Decides which entries of a tree are copied, and what makes one tree equal to another. Pure: both
//! trees come as data, and the decisions leave as data.
//!
//! - [`Filter`] selects entries by rules in gitignore's syntax, by size, time and list of names.
//! - [`Tree`] holds one end's entries in memory, about 70 bytes each.
//! - [`Plan`] pairs the trees of both ends and says what to create, replace, move and delete.
//! - [`DeletionLimits`] refuses deletions that look like a mistake.
//!
//! ```
//! use sync::{Comparison, Entry, Kind, Plan, Tree};
//!
//! let mut source = Tree::new();
//! source.add(Tree::ROOT, b"a.txt", Entry::file(5, 1_700_000_000));
//! let mut target = Tree::new();
//! target.add(Tree::ROOT, b"old", Entry::new(Kind::Directory));
//! let plan = Plan::new(source.sorted(), target.sorted(), &Comparison::default());
//! assert_eq!((plan.created(), plan.deletions().len()), (1, 1));
//! ```

mod alike;
mod compare;
mod deletion;
mod filter;
mod inside;
mod moves;
mod names;
mod plan;
mod tree;

pub use alike::{alike_entries, to_nfc};
pub use compare::{Comparison, Difference, Grain, Reasons};
pub use deletion::{DeletionCount, DeletionLimits, Refused};
pub use filter::{Filter, FilterBuilder, RuleError, RuleOrigin, Selection};
pub use inside::source_lookalikes;
pub use names::{ListedNames, NameError};
pub use plan::{Action, Plan, Step};
pub use tree::{Entry, Kind, NodeId, SortedTree, Time, Tree};
