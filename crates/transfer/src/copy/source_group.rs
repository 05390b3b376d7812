//! Sources of a command, grouped by the end at which they are.

use std::os::unix::ffi::OsStrExt;

use sftp::pattern;

use super::context::CopyContext;
use super::equal_names::SourceOperand;
use super::names::{RemotePathForm, written};
use super::sides::{CopySide, RemoteSide};
use super::{CopyLocation, HostId};

/// Consecutive sources at the same end.
pub(super) struct SourceGroup {
    host: Option<HostId>,
    /// Paths as the user wrote them.
    paths: Vec<Vec<u8>>,
    /// Matches of each path.
    found: Vec<Vec<Vec<u8>>>,
    /// Session with the host, if the paths had to be expanded there.
    side: Option<RemoteSide>,
}

impl SourceGroup {
    /// Groups the sources of a command.
    pub(super) fn all_of(sources: Vec<CopyLocation>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for source in sources {
            let (host, path) = match source {
                CopyLocation::Local(path) => (None, path.as_os_str().as_bytes().to_vec()),
                CopyLocation::Remote { host, path } => (Some(host), path),
            };
            match groups.last_mut() {
                Some(group) if group.host == host => group.paths.push(path),
                _ => groups.push(Self {
                    host,
                    paths: vec![path],
                    found: Vec::new(),
                    side: None,
                }),
            }
        }
        groups
    }

    /// Host of the sources; `None` for this machine.
    pub(super) fn host(&self) -> Option<HostId> {
        self.host
    }

    /// Paths as the user wrote them.
    pub(super) fn paths(&self) -> &[Vec<u8>] {
        &self.paths
    }

    /// Path of a group that is a single source on this machine.
    pub(super) fn only_local_path(&self) -> Option<&[u8]> {
        match (&self.paths[..], self.host) {
            ([path], None) => Some(path),
            _ => None,
        }
    }

    /// True if the host must expand the paths.
    pub(super) fn has_patterns(&self) -> bool {
        let asks = |path: &Vec<u8>| match written(path) {
            RemotePathForm::Plain(path) => pattern::parse(&path).is_some(),
            RemotePathForm::Home { .. } => true,
        };
        self.host.is_some() && self.paths.iter().any(asks)
    }

    /// Sources as the user wrote them.
    pub(super) fn operands(&self) -> impl Iterator<Item = SourceOperand> {
        of_host(self.host, self.paths.iter())
    }

    /// Sources that were found.
    pub(super) fn sources(&self) -> impl Iterator<Item = SourceOperand> {
        of_host(self.host, self.found.iter().flatten())
    }

    /// Adds the matches of the next path.
    pub(super) fn add_found(&mut self, matches: Vec<Vec<u8>>) {
        self.found.push(matches);
    }

    /// Matches of each path.
    pub(super) fn found(&self) -> &[Vec<Vec<u8>>] {
        &self.found
    }

    /// True if no source was found.
    pub(super) fn is_empty(&self) -> bool {
        self.found.iter().all(Vec::is_empty)
    }

    /// Keeps the session that has expanded the paths, if there is one.
    pub(super) fn keep_session(&mut self, side: Option<RemoteSide>) {
        self.side = side;
    }

    /// Takes the session that has expanded the paths.
    pub(super) fn take_session(&mut self) -> Option<RemoteSide> {
        self.side.take()
    }

    /// Reports that no source of the group can be copied.
    pub(super) fn fail(&self, context: &mut CopyContext<'_>, why: &str) {
        for source in self.operands() {
            let name = source.shown(context);
            context.fail(None, name, why.to_owned());
        }
    }

    /// Returns true if any of the sources, which are all on this machine, exists. Otherwise reports
    /// each missing one.
    pub(super) fn some_exist(groups: &[Self], context: &mut CopyContext<'_>) -> bool {
        let paths: Vec<&Vec<u8>> = groups.iter().flat_map(|group| &group.paths).collect();
        let local = context.local();
        if paths.iter().any(|path| local.stat(path).is_ok()) {
            return true;
        }
        for path in paths {
            if let Err(what) = local.stat(path) {
                context.fail_at(CopySide::Source, path, what);
            }
        }
        false
    }
}

fn of_host<'p>(
    host: Option<HostId>,
    paths: impl Iterator<Item = &'p Vec<u8>>,
) -> impl Iterator<Item = SourceOperand> {
    paths.map(move |path| SourceOperand {
        host,
        path: path.clone(),
    })
}
