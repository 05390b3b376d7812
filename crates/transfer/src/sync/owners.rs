//! Owners that a sync compares and sets: those that the copy would give to new files.

use std::collections::{BTreeMap, BTreeSet};

use schedule::{Job, JobId, JobKind, LaneEvent};
use sync::{EntryTree, OwnerIds};

use crate::copy::{PlannedCopy, PlannedCopySide};

/// Number of the first job, above those of operations on names.
const FIRST_JOB: u64 = 1 << 42;
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
    let map = |own: Vec<u32>, names: &[Vec<u8>], ids: &[u32]| -> BTreeMap<u32, u32> {
        let named = own.into_iter().zip(names).zip(ids);
        let known = named.filter(|((_, name), id)| !name.is_empty() && **id != u32::MAX);
        known.map(|((own, _), id)| (own, *id)).collect()
    };
    OwnerIds::new(
        map(users, &names[0], &ids[0]),
        map(groups, &names[1], &ids[1]),
    )
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
    let user_jobs = users.chunks(AT_ONCE).map(|ids| JobKind::Names {
        users: ids.to_vec(),
        groups: Vec::new(),
    });
    let group_jobs = groups.chunks(AT_ONCE).map(|ids| JobKind::Names {
        users: Vec::new(),
        groups: ids.to_vec(),
    });
    let answers = answers(run, end, user_jobs.chain(group_jobs), |event| match event {
        LaneEvent::Names(id, users, groups) => Some((id, [users, groups].concat())),
        _ => None,
    });
    let mut answers = answers.await;
    [users, groups].map(|ids| take(&mut answers, ids.len(), &Vec::new()))
}

/// IDs of names at the target; `u32::MAX` for those that are unknown there.
async fn ids_of(run: &mut PlannedCopy<'_>, names: &[Vec<Vec<u8>>; 2]) -> [Vec<u32>; 2] {
    let end = PlannedCopySide::Target;
    let [users, groups] = names;
    if run.is_local(end) {
        let (users, groups) = run.owner_ids_here(users, groups);
        return [users, groups];
    }
    let user_jobs = users.chunks(AT_ONCE).map(|names| JobKind::Ids {
        users: names.to_vec(),
        groups: Vec::new(),
    });
    let group_jobs = groups.chunks(AT_ONCE).map(|names| JobKind::Ids {
        users: Vec::new(),
        groups: names.to_vec(),
    });
    let answers = answers(run, end, user_jobs.chain(group_jobs), |event| match event {
        LaneEvent::Ids(id, users, groups) => Some((id, [users, groups].concat())),
        _ => None,
    });
    let mut answers = answers.await;
    [users, groups].map(|names| take(&mut answers, names.len(), &u32::MAX))
}

/// Returns the answers to jobs, in the order of the jobs.
async fn answers<T>(
    run: &mut PlannedCopy<'_>,
    end: PlannedCopySide,
    jobs: impl Iterator<Item = JobKind>,
    answer: impl Fn(LaneEvent) -> Option<(JobId, Vec<T>)>,
) -> Vec<Vec<T>> {
    let mut answers = BTreeMap::new();
    let jobs = jobs.zip(FIRST_JOB..).map(|(kind, number)| {
        let id = JobId(number);
        Job { id, kind }
    });
    let jobs: Vec<Job> = jobs.collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    run.carry_out(end, jobs.into_iter(), IN_FLIGHT, |event| {
        answers.extend(answer(event));
    })
    .await;
    let answer = |id| answers.remove(id).unwrap_or_default();
    ids.iter().map(answer).collect()
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
