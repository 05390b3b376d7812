//! Owners, which `-a` keeps if permitted: mapped by name if both ends can resolve names, as rsync
//! does, otherwise by numeric ID.
//!
//! IDs that a walk finds are translated before any other code sees them. A walk pauses until the
//! few new IDs have been queried.

use std::collections::{BTreeMap, VecDeque};

use schedule::{Attributes, JobKind};

use super::CopyOptions;
use super::context::CopyContext;
use super::jobs::JobPurpose;
use super::sides::CopySide;
use super::source::{SourceRoot, WalkId};
use crate::walk::WalkEntry;

/// Maps user and group IDs of the source to those of the target.
#[derive(Debug, Default)]
pub(super) struct OwnerMap {
    users: BTreeMap<u32, u32>,
    groups: BTreeMap<u32, u32>,
    waiting: VecDeque<EntryAwaitingOwner>,
    asked: Option<OwnerQuery>,
    /// Owners are mapped by name if both ends can resolve names.
    maps_names: bool,
}

/// Result of [`OwnerMap::next`].
#[derive(Debug)]
pub(super) enum NextOwnerResult {
    /// No entry waits.
    Nothing,
    /// A query is in progress.
    Asking,
    /// An entry has waited; `None` if it waits again.
    Entry(Box<Option<EntryAwaitingOwner>>),
}

/// Entry that waits until its owner is mapped.
#[derive(Debug)]
pub(super) enum EntryAwaitingOwner {
    Found(WalkId, WalkEntry, Vec<u8>),
    Root(SourceRoot, Attributes),
}

/// Query in progress for the names of IDs at the source. IDs at the source and their names there.
#[derive(Debug, Default)]
struct OwnerQuery {
    users: Vec<u32>,
    groups: Vec<u32>,
    names: (Vec<Vec<u8>>, Vec<Vec<u8>>),
    ids: (Vec<u32>, Vec<u32>),
}

impl OwnerMap {
    pub(super) fn new(options: &CopyOptions) -> Self {
        Self {
            maps_names: options.archive && !options.numeric_ids,
            ..Self::default()
        }
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

impl OwnerMap {
    /// Takes the next entry that waited for its owner. `can_map` tells if both ends can translate
    /// owners between names and IDs.
    pub(super) fn next(&mut self, context: &mut CopyContext<'_>, can_map: bool) -> NextOwnerResult {
        if self.asked.is_some() {
            return NextOwnerResult::Asking;
        }
        match self.waiting.pop_front() {
            Some(next) => NextOwnerResult::Entry(Box::new(self.map(context, can_map, next))),
            None => NextOwnerResult::Nothing,
        }
    }

    /// Maps the owner of a found entry to an ID of the target. Returns `None` if the entry waits
    /// for a query.
    pub(super) fn map(
        &mut self,
        context: &mut CopyContext<'_>,
        can_map: bool,
        mut next: EntryAwaitingOwner,
    ) -> Option<EntryAwaitingOwner> {
        let here = !context.source_is_remote() && !context.target_is_remote();
        if self.maps_names
            && can_map
            && !here
            && let Some(attributes) = next.attributes()
            && let Some(owner) = attributes.owner
        {
            let Some(mapped) = self.of(owner).filter(|_| self.asked.is_none()) else {
                // Keep its place in the queue, because the contents of a directory come after it.
                match self.asked {
                    None => self.waiting.push_front(next),
                    Some(_) => self.waiting.push_back(next),
                }
                self.ask(context, owner);
                return None;
            };
            attributes.owner = Some(mapped);
        }
        Some(next)
    }

    fn ask(&mut self, context: &mut CopyContext<'_>, (user, group): (u32, u32)) {
        if self.asked.is_some() {
            return;
        }
        let asked = OwnerQuery {
            users: vec![user],
            groups: vec![group],
            ..OwnerQuery::default()
        };
        let (users, groups) = (asked.users.clone(), asked.groups.clone());
        self.asked = Some(asked);
        if context.source_is_remote() {
            let kind = JobKind::Names { users, groups };
            context.submit(CopySide::Source, kind, JobPurpose::OwnerNames);
            return;
        }
        let (user, group) = context.local().owner_names(user, group);
        self.on_names((vec![user], vec![group]));
        self.on_names_over(context);
    }

    /// Stores the owners' names at the source.
    pub(super) fn on_names(&mut self, names: (Vec<Vec<u8>>, Vec<Vec<u8>>)) {
        if let Some(asked) = &mut self.asked {
            asked.names = names;
        }
    }

    pub(super) fn on_names_over(&mut self, context: &mut CopyContext<'_>) {
        let Some(asked) = &self.asked else {
            return;
        };
        let (users, groups) = asked.names.clone();
        if context.target_is_remote() {
            let kind = JobKind::Ids { users, groups };
            context.submit(CopySide::Target, kind, JobPurpose::OwnerIds);
            return;
        }
        let ids = context.local().owner_ids(&users, &groups);
        self.on_ids(ids);
        self.on_ids_over();
    }

    /// Stores the IDs that the names have at the target.
    pub(super) fn on_ids(&mut self, ids: (Vec<u32>, Vec<u32>)) {
        if let Some(asked) = &mut self.asked {
            asked.ids = ids;
        }
    }

    /// Completes a query. An owner without a name, or with a name unknown at the target, keeps its
    /// ID.
    pub(super) fn on_ids_over(&mut self) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        let (names, ids) = (&asked.names, &asked.ids);
        self.users
            .extend(ids_by_name(&asked.users, &names.0, &ids.0));
        self.groups
            .extend(ids_by_name(&asked.groups, &names.1, &ids.1));
    }

    /// Notes owners that were mapped elsewhere, so that they are not asked about.
    pub(super) fn knows(&mut self, users: &BTreeMap<u32, u32>, groups: &BTreeMap<u32, u32>) {
        self.users.extend(users);
        self.groups.extend(groups);
    }
}

/// Returns `asked`, IDs at the source, each with the ID that its name has at the target. An owner
/// without a name, or with a name unknown there, keeps its ID.
pub(crate) fn ids_by_name<'q>(
    asked: &'q [u32],
    names: &'q [Vec<u8>],
    ids: &'q [u32],
) -> impl Iterator<Item = (u32, u32)> + 'q {
    asked.iter().enumerate().map(|(at, id)| {
        let named = names.get(at).is_some_and(|name| !name.is_empty());
        let found = ids.get(at).filter(|found| named && **found != u32::MAX);
        (*id, found.copied().unwrap_or(*id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_who_has_the_name_there_or_else_the_number() {
        let mut known = BTreeMap::new();
        let names = [b"ann".to_vec(), b"bob".to_vec(), Vec::new()];
        known.extend(ids_by_name(
            &[1000, 1001, 1002],
            &names,
            &[2000, u32::MAX, 7],
        ));
        assert_eq!(of(&known, 1000), Some(2000));
        assert_eq!(of(&known, 1001), Some(1001));
        assert_eq!(of(&known, 1002), Some(1002));
        assert_eq!((of(&known, 0), of(&known, 5)), (Some(0), None));
        // If the source does not answer, the IDs stay as they are.
        known.extend(ids_by_name(&[5, 6], &[], &[]));
        assert_eq!(of(&known, 6), Some(6));
    }

    /// A server that answers with too few names or IDs, or with more, maps no owner to another one's
    /// ID.
    #[test]
    fn an_answer_of_another_length_maps_no_owner_wrongly() {
        let mut seed = testkit::Seed::new(11);
        for _ in 0..2000 {
            let count = |seed: &mut testkit::Seed| seed.below(5) as usize;
            let asked: Vec<u32> = (0..count(&mut seed))
                .map(|_| seed.below(3000) as u32)
                .collect();
            let names: Vec<Vec<u8>> = (0..count(&mut seed))
                .map(|_| [&b""[..], b"ann"][seed.below(2) as usize].to_vec())
                .collect();
            let ids: Vec<u32> = (0..count(&mut seed))
                .map(|_| [u32::MAX, 7, 8][seed.below(3) as usize])
                .collect();
            let mapped: Vec<_> = ids_by_name(&asked, &names, &ids).collect();
            assert_eq!(mapped.len(), asked.len(), "each that was asked has an ID");
            for (nth, (id, at_target)) in mapped.iter().enumerate() {
                assert_eq!(*id, asked[nth]);
                let has_name = names.get(nth).is_some_and(|name| !name.is_empty());
                let known = ids.get(nth).filter(|id| has_name && **id != u32::MAX);
                assert_eq!(
                    at_target,
                    known.unwrap_or(id),
                    "{asked:?} {names:?} {ids:?}"
                );
            }
        }
    }

    #[test]
    fn root_is_root_everywhere_and_an_unknown_half_maps_nothing() {
        let mut owners = OwnerMap::default();
        owners.knows(
            &BTreeMap::from([(5, 50), (0, 9)]),
            &BTreeMap::from([(6, 60)]),
        );
        for (owner, expected) in [
            ((5, 6), Some((50, 60))),
            ((0, 6), Some((0, 60))),
            ((5, 0), Some((50, 0))),
            ((0, 0), Some((0, 0))),
            ((5, 7), None),
            ((8, 6), None),
        ] {
            assert_eq!(owners.of(owner), expected, "{owner:?}");
        }
    }
}
