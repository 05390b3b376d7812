use std::collections::BTreeMap;

use super::LaneId;
use crate::{JobId, JobKind};

/// Lanes on which a job may run, with regard to its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirReadiness {
    /// The directory exists: any lane.
    Exists,
    /// The MKDIR is in flight on this lane.
    MakeInFlight(LaneId),
    /// The MKDIR is not assigned to a lane yet.
    Unassigned,
}

/// Directories to be made. Jobs in a directory wait until a lane has its MKDIR; before the answer,
/// they must follow on the same lane, whose server handles requests in order.
#[derive(Debug, Default)]
pub(super) struct PendingDirs {
    making: BTreeMap<Vec<u8>, (JobId, Option<LaneId>)>,
    begun: usize,
}

impl PendingDirs {
    /// Adds a directory that no lane makes yet.
    pub(super) fn wanted(&mut self, path: &[u8], job: JobId) {
        let before = self.making.insert(trimmed(path).to_vec(), (job, None));
        self.begun -= usize::from(before.is_some_and(|(_, lane)| lane.is_some()));
    }

    pub(super) fn begin(&mut self, path: &[u8], job: JobId, lane: LaneId) {
        let before = self
            .making
            .insert(trimmed(path).to_vec(), (job, Some(lane)));
        self.begun += usize::from(before.is_none_or(|(_, lane)| lane.is_none()));
    }

    /// Returns the number of MKDIRs that lanes have.
    pub(super) fn begun(&self) -> usize {
        self.begun
    }

    /// Removes a directory whose MKDIR was answered, dropped or lost with its lane.
    pub(super) fn end(&mut self, path: &[u8], job: JobId) {
        let path = trimmed(path);
        if let Some((_, lane)) = self.making.get(path).filter(|(id, _)| *id == job) {
            self.begun -= usize::from(lane.is_some());
            self.making.remove(path);
        }
    }

    /// Returns the readiness of the nearest pending directory above `path`.
    pub(super) fn place(&self, path: &[u8]) -> DirReadiness {
        if self.making.is_empty() {
            return DirReadiness::Exists;
        }
        let mut path = trimmed(path);
        while let Some(at) = path.iter().rposition(|b| *b == b'/') {
            path = path.get(..at).unwrap_or_default();
            if let Some((_, lane)) = self.making.get(path) {
                return lane.map_or(DirReadiness::Unassigned, DirReadiness::MakeInFlight);
            }
        }
        DirReadiness::Exists
    }
}

fn trimmed(mut path: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = path {
        path = rest;
    }
    path
}

/// Returns the remote path that a job creates or changes.
pub(super) fn target(kind: &JobKind) -> Option<&[u8]> {
    match kind {
        JobKind::Put { target, .. }
        | JobKind::PutDelta { target, .. }
        | JobKind::CreateTemp { target, .. } => Some(&target.0),
        JobKind::MakeDir { path, .. }
        | JobKind::SetAttributes { path, .. }
        | JobKind::SetOwnerWrite { path, .. }
        | JobKind::MakeSymlink { path, .. }
        | JobKind::MakeHardLink { path, .. } => Some(&path.0),
        _ => None,
    }
}

/// Returns the lanes on which a job may run.
pub(super) fn place(dirs: &PendingDirs, kind: &JobKind) -> DirReadiness {
    target(kind).map_or(DirReadiness::Exists, |path| dirs.place(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_directory_follows_it() {
        let lane = LaneId::default();
        let mut dirs = PendingDirs::default();
        assert_eq!(dirs.place(b"a/b/c"), DirReadiness::Exists);
        dirs.wanted(b"a/b", JobId(1));
        assert_eq!(dirs.place(b"a/b/c/d"), DirReadiness::Unassigned);
        assert_eq!(dirs.begun(), 0);
        dirs.begin(b"a/b/", JobId(1), lane);
        assert_eq!(dirs.begun(), 1);
        assert_eq!(dirs.place(b"a/b/c/d"), DirReadiness::MakeInFlight(lane));
        assert_eq!(dirs.place(b"a/b"), DirReadiness::Exists, "not itself");
        assert_eq!(dirs.place(b"a/bc/d"), DirReadiness::Exists);
        dirs.end(b"a/b", JobId(2));
        assert_eq!(
            dirs.place(b"a/b/c"),
            DirReadiness::MakeInFlight(lane),
            "another job's"
        );
        dirs.end(b"a/b", JobId(1));
        assert_eq!(dirs.place(b"a/b/c"), DirReadiness::Exists);
        assert_eq!(dirs.begun(), 0);
        dirs.wanted(b"a", JobId(3));
        dirs.begin(b"a", JobId(3), lane);
        dirs.wanted(b"a", JobId(4));
        assert_eq!(
            (dirs.place(b"a/b"), dirs.begun()),
            (DirReadiness::Unassigned, 0),
            "once more"
        );
        dirs.end(b"a", JobId(3));
        dirs.begin(b"a", JobId(4), lane);
        assert_eq!(dirs.begun(), 1);
    }
}
