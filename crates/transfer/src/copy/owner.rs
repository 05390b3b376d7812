//! Owners, which `-a` keeps if permitted: mapped by name if both ends can resolve names, as rsync
//! does, otherwise by numeric ID.
//!
//! IDs that a walk finds are translated before any other code sees them. A walk pauses until the
//! few new IDs have been queried.

use std::collections::{BTreeMap, VecDeque};

use schedule::{Attributes, JobKind};

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::source::{SourceRoot, WalkId};
use crate::walk::WalkEntry;

/// Maps user and group IDs of the source to those of the target.
#[derive(Debug, Default)]
pub(super) struct OwnerMap {
    users: BTreeMap<u32, u32>,
    groups: BTreeMap<u32, u32>,
    waiting: VecDeque<EntryAwaitingOwner>,
    asked: Option<OwnerQuery>,
    /// Setting an owner was refused once and is not tried again.
    refused: bool,
}

/// Entry that waits until its owner is mapped.
#[derive(Debug)]
pub(super) enum EntryAwaitingOwner {
    Found(WalkId, WalkEntry, Vec<u8>),
    Root(SourceRoot, Attributes),
}

/// Query in progress: IDs at the source and their names there.
#[derive(Debug, Default)]
struct OwnerQuery {
    users: Vec<u32>,
    groups: Vec<u32>,
    names: (Vec<Vec<u8>>, Vec<Vec<u8>>),
    ids: (Vec<u32>, Vec<u32>),
}

impl OwnerMap {
    /// Notes that setting an owner was refused.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }

    /// True if setting an owner was refused.
    pub(super) fn are_refused(&self) -> bool {
        self.refused
    }

    pub(super) fn drop_waiting(&mut self) {
        self.waiting.clear();
    }

    /// True if entries wait.
    pub(super) fn holds(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn of(&self, (user, group): (u32, u32)) -> Option<(u32, u32)> {
        Some((of(&self.users, user)?, of(&self.groups, group)?))
    }
}

/// Maps one ID; root is root everywhere.
fn of(known: &BTreeMap<u32, u32>, id: u32) -> Option<u32> {
    match id {
        0 => Some(0),
        id => known.get(&id).copied(),
    }
}

impl EntryAwaitingOwner {
    fn attributes(&mut self) -> Option<&mut Attributes> {
        match self {
            Self::Found(_, WalkEntry::Directory { at, .. }, _)
            | Self::Found(_, WalkEntry::File(at) | WalkEntry::Symlink(at), _) => {
                Some(&mut at.attributes)
            }
            Self::Found(..) => None,
            Self::Root(_, attributes) => Some(attributes),
        }
    }
}

impl CopyEngine<'_> {
    /// Starts the next entry that waited for its owner. Returns false if none waits, and `None`
    /// while a query is in progress.
    pub(super) fn feed_waiting(&mut self) -> Option<bool> {
        if self.owners.asked.is_some() {
            return None;
        }
        match self.owners.waiting.pop_front() {
            Some(next) => {
                self.begin_owned(next);
                Some(true)
            }
            None => Some(false),
        }
    }

    /// Starts a found entry once its owner is mapped to an ID of the target.
    pub(super) fn begin_owned(&mut self, mut next: EntryAwaitingOwner) {
        let maps = self.options.archive && !self.options.numeric_ids && self.can.map_owners;
        let here = !self.source_is_remote() && !self.target_is_remote();
        if maps
            && !here
            && let Some(attributes) = next.attributes()
            && let Some(owner) = attributes.owner
        {
            let Some(mapped) = self
                .owners
                .of(owner)
                .filter(|_| self.owners.asked.is_none())
            else {
                // Keep its place in the queue, because the contents of a directory come after it.
                match self.owners.asked {
                    None => self.owners.waiting.push_front(next),
                    Some(_) => self.owners.waiting.push_back(next),
                }
                return self.ask_owner(owner);
            };
            attributes.owner = Some(mapped);
        }
        match next {
            EntryAwaitingOwner::Found(walk, found, root) => self.on_found(walk, found, &root),
            EntryAwaitingOwner::Root(root, attributes) => self.begin_root_item(root, attributes),
        }
    }

    fn ask_owner(&mut self, (user, group): (u32, u32)) {
        if self.owners.asked.is_some() {
            return;
        }
        let asked = OwnerQuery {
            users: vec![user],
            groups: vec![group],
            ..OwnerQuery::default()
        };
        let (users, groups) = (asked.users.clone(), asked.groups.clone());
        self.owners.asked = Some(asked);
        if self.source_is_remote() {
            let kind = JobKind::Names { users, groups };
            self.submit(CopySide::Source, kind, JobPurpose::OwnerNames);
            return;
        }
        let (user, group) = self.local().owner_names(user, group);
        self.on_owner_names((vec![user], vec![group]));
        self.on_names_over();
    }

    /// Stores the owners' names at the source.
    pub(super) fn on_owner_names(&mut self, names: (Vec<Vec<u8>>, Vec<Vec<u8>>)) {
        if let Some(asked) = &mut self.owners.asked {
            asked.names = names;
        }
    }

    pub(super) fn on_names_over(&mut self) {
        let Some(asked) = &self.owners.asked else {
            return;
        };
        let (users, groups) = asked.names.clone();
        if self.target_is_remote() {
            let kind = JobKind::Ids { users, groups };
            self.submit(CopySide::Target, kind, JobPurpose::OwnerIds);
            return;
        }
        let ids = self.local().owner_ids(&users, &groups);
        self.on_owner_ids(ids);
        self.on_ids_over();
    }

    /// Stores the IDs that the names have at the target.
    pub(super) fn on_owner_ids(&mut self, ids: (Vec<u32>, Vec<u32>)) {
        if let Some(asked) = &mut self.owners.asked {
            asked.ids = ids;
        }
    }

    /// Completes a query. An owner without a name, or with a name unknown at the target, keeps its
    /// ID.
    pub(super) fn on_ids_over(&mut self) {
        let Some(asked) = self.owners.asked.take() else {
            return;
        };
        let owners = &mut self.owners;
        learn(
            &mut owners.users,
            &asked.users,
            &asked.names.0,
            &asked.ids.0,
        );
        learn(
            &mut owners.groups,
            &asked.groups,
            &asked.names.1,
            &asked.ids.1,
        );
    }
}

fn learn(known: &mut BTreeMap<u32, u32>, asked: &[u32], names: &[Vec<u8>], ids: &[u32]) {
    for (at, id) in asked.iter().enumerate() {
        let named = names.get(at).is_some_and(|name| !name.is_empty());
        let found = ids.get(at).filter(|found| named && **found != u32::MAX);
        known.insert(*id, found.copied().unwrap_or(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_who_has_the_name_there_or_else_the_number() {
        let mut known = BTreeMap::new();
        let names = [b"ann".to_vec(), b"bob".to_vec(), Vec::new()];
        learn(
            &mut known,
            &[1000, 1001, 1002],
            &names,
            &[2000, u32::MAX, 7],
        );
        assert_eq!(of(&known, 1000), Some(2000));
        assert_eq!(of(&known, 1001), Some(1001));
        assert_eq!(of(&known, 1002), Some(1002));
        assert_eq!((of(&known, 0), of(&known, 5)), (Some(0), None));
        // If the source does not answer, the IDs stay as they are.
        learn(&mut known, &[5, 6], &[], &[]);
        assert_eq!(of(&known, 6), Some(6));
    }
}
