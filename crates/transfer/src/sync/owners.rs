//! Owners that a sync compares and sets: those that the copy would give to new files.

use std::collections::BTreeSet;

use schedule::{JobKind, LaneEvent};
use sync::{EntryTree, OwnerIds};

use crate::copy::{PlannedCopy, PlannedCopySide, ids_by_name};

/// IDs in one request.
const AT_ONCE: usize = 200;
/// Requests in flight at a server.
const IN_FLIGHT: usize = 16;

/// Returns the IDs that the owners of `source` have at the target, as rsync maps them: those of the
/// same names, where both ends tell names and IDs.
pub(super) async fn ids_at_target(run: &mut PlannedCopy<'_>, source: &EntryTree) -> OwnerIds {
    // Root is root everywhere.
    let others = |ids: BTreeSet<u32>| ids.into_iter().filter(|id| *id != 0).collect::<Vec<u32>>();
    let [users, groups] = source.owner_ids().map(others);
    if users.is_empty() && groups.is_empty() {
        return OwnerIds::default();
    }
    for end in [PlannedCopySide::Source, PlannedCopySide::Target] {
        run.settle(end).await;
    }
    if !run.maps_owners() {
        return OwnerIds::default();
    }
    let names = names_of(run, &users, &groups).await;
    let ids = ids_of(run, &names).await;
    let users = ids_by_name(&users, &names[0], &ids[0]).collect();
    let groups = ids_by_name(&groups, &names[1], &ids[1]).collect();
    run.knows_owners(&users, &groups);
    OwnerIds::new(users, groups)
}

/// Names of users and groups at the source; empty for those without one.
async fn names_of(run: &mut PlannedCopy<'_>, users: &[u32], groups: &[u32]) -> [Vec<Vec<u8>>; 2] {
    let end = PlannedCopySide::Source;
    if run.is_local(end) {
        let user = |id: &u32| run.owner_names_here(*id, 0).0;
        let group = |id: &u32| run.owner_names_here(0, *id).1;
        return [
            users.iter().map(user).collect(),
            groups.iter().map(group).collect(),
        ];
    }
    let job = |users, groups| JobKind::Names { users, groups };
    let answer = |event| match event {
        LaneEvent::Names(_, users, groups) => Some([users, groups].concat()),
        _ => None,
    };
    ask(run, end, [users, groups], job, answer, &Vec::new()).await
}

/// IDs of names at the target; `u32::MAX` for those that are unknown there.
async fn ids_of(run: &mut PlannedCopy<'_>, names: &[Vec<Vec<u8>>; 2]) -> [Vec<u32>; 2] {
    let end = PlannedCopySide::Target;
    let [users, groups] = names;
    if run.is_local(end) {
        return run.owner_ids_here(users, groups).into();
    }
    let job = |users, groups| JobKind::Ids { users, groups };
    let answer = |event| match event {
        LaneEvent::Ids(_, users, groups) => Some([users, groups].concat()),
        _ => None,
    };
    ask(run, end, [users, groups], job, answer, &u32::MAX).await
}

/// Asks a server about users and groups, and returns an answer, or `missing`, for each.
async fn ask<I: Clone, A: Clone>(
    run: &mut PlannedCopy<'_>,
    end: PlannedCopySide,
    about: [&[I]; 2],
    job: impl Fn(Vec<I>, Vec<I>) -> JobKind,
    answer: impl Fn(LaneEvent) -> Option<Vec<A>>,
    missing: &A,
) -> [Vec<A>; 2] {
    let requests = about.map(|items| items.len().div_ceil(AT_ONCE));
    let mut answers = vec![Vec::new(); requests.into_iter().sum()];
    let [users, groups] = about.map(|items| items.chunks(AT_ONCE));
    let users = users.map(|users| job(users.to_vec(), Vec::new()));
    let groups = groups.map(|groups| job(Vec::new(), groups.to_vec()));
    let heard = |at: usize, event| {
        if let (Some(slot), Some(answer)) = (answers.get_mut(at), answer(event)) {
            *slot = answer;
        }
    };
    run.carry_out(end, users.chain(groups), IN_FLIGHT, heard)
        .await;
    about.map(|items| take(&mut answers, items.len(), missing))
}

/// Takes the answers about `count` items, each answer about [`AT_ONCE`] of them, and fills in what a
/// server left out.
fn take<T: Clone>(answers: &mut Vec<Vec<T>>, count: usize, missing: &T) -> Vec<T> {
    let requests = count.div_ceil(AT_ONCE).min(answers.len());
    let mut all = Vec::with_capacity(count);
    for mut answer in answers.drain(..requests) {
        let asked = (count - all.len()).min(AT_ONCE);
        answer.resize(asked, missing.clone());
        all.append(&mut answer);
    }
    all.resize(count, missing.clone());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_answer_shifts_no_other() {
        let mut answers = vec![vec![1; AT_ONCE], vec![2], vec![3, 4, 5]];
        let users = take(&mut answers, AT_ONCE + 3, &0);
        assert_eq!(users[AT_ONCE - 1..], [1, 2, 0, 0]);
        assert_eq!(take(&mut answers, 2, &0), [3, 4]);
        assert_eq!(take(&mut answers, 1, &0), [0]);
    }
}
