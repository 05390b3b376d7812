//! Jobs of one request.

use sftp::xattrs::Xattr;
use sftp::{Reply, Request};
use wire::{Field as _, RemainingBytes};

use super::{JobProgress, LaneContext, end};
use crate::lane::messages::{self, SYNCING_NAME, answered, refused, remote};
use crate::lane::metadata::NOT_OURS;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::attributes;
use crate::{JobFailure, JobFailureKind, JobId, JobKind, LaneEvent, RemotePath};

/// Asks the server one thing: attributes, a path, a file system, names, a removal or a sync.
#[derive(Debug)]
pub(in crate::lane) struct QueryJob {
    id: JobId,
    kind: JobKind,
}

/// Only step of the job.
const ONLY: RequestPurpose = RequestPurpose::Step(0);

impl QueryJob {
    pub(in crate::lane) fn new(id: JobId, kind: JobKind) -> Self {
        Self { id, kind }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) -> JobProgress {
        match &self.kind {
            JobKind::ReadSymlink { path } => {
                core.send(self.id, ONLY, &Request::Readlink { path: &path.0 });
            }
            JobKind::Stat { path, follow } => {
                let path = path.0.as_slice();
                let request = match follow {
                    true => Request::Stat { path },
                    false => Request::Lstat { path },
                };
                core.send(self.id, ONLY, &request);
            }
            JobKind::Remove { path } => {
                core.send(self.id, ONLY, &Request::Remove { path: &path.0 });
            }
            JobKind::RemoveDir { path } => {
                core.send(self.id, ONLY, &Request::Rmdir { path: &path.0 });
            }
            JobKind::Rename { from, to } => {
                // Unlike posix-rename@openssh.com it replaces nothing.
                let (from, to) = (from.0.as_slice(), to.0.as_slice());
                core.send(self.id, ONLY, &Request::Rename { from, to });
            }
            JobKind::RealPath { path } => return self.real_path(core, &path.0),
            JobKind::FileSystem { path } => {
                if !core.can(ServerCapabilities::STATVFS) {
                    let fault = remote(
                        "the server does not tell on which file system a path lies (no \
                         statvfs@openssh.com)",
                    )
                    .of_kind(JobFailureKind::Unsupported);
                    return end(core, self.id, Some(fault));
                }
                core.send(self.id, ONLY, &Request::Statvfs { path: &path.0 });
            }
            JobKind::MakeDurable { paths } => return self.make_durable(core, paths),
            _ => return self.ask(core),
        }
        JobProgress::Continues
    }

    fn real_path(&self, core: &mut LaneContext, path: &[u8]) -> JobProgress {
        let home = path.first() == Some(&b'~');
        if home && core.can(ServerCapabilities::EXPAND_PATH) {
            core.send(self.id, ONLY, &Request::ExpandPath { path });
            return JobProgress::Continues;
        }
        // An SFTP session starts in the home directory, so `~` is the working directory.
        let path = match path {
            b"~" | b"~/" => b".".as_slice(),
            [b'~', b'/', rest @ ..] => rest,
            [b'~', ..] => {
                let fault = remote(
                    "the server cannot expand ~NAME (no expand-path@openssh.com): write the full \
                     path",
                )
                .of_kind(JobFailureKind::Unsupported);
                return end(core, self.id, Some(fault));
            }
            path => path,
        };
        core.send(self.id, ONLY, &Request::Realpath { path });
        JobProgress::Continues
    }

    /// Sends the sync; other servers have no request for it, and the job succeeds.
    fn make_durable(&self, core: &mut LaneContext, paths: &[RemotePath]) -> JobProgress {
        if !core.can(ServerCapabilities::FSYNC_SET) {
            return end(core, self.id, None);
        }
        let mut bytes = Vec::new();
        for path in paths {
            path.0.as_slice().write(&mut bytes);
        }
        let paths = RemainingBytes(&bytes);
        core.send(self.id, ONLY, &Request::FsyncSet { paths });
        JobProgress::Continues
    }

    /// Sends a query that only a longhaul server understands.
    fn ask(&self, core: &mut LaneContext) -> JobProgress {
        let can = match &self.kind {
            JobKind::GetXattrs { .. } => ServerCapabilities::XATTRS,
            JobKind::Names { .. } => ServerCapabilities::NAMES_BY_ID,
            _ => ServerCapabilities::IDS_BY_NAME,
        };
        if !core.can(can) {
            return end(
                core,
                self.id,
                Some(remote(NOT_OURS).of_kind(JobFailureKind::Unsupported)),
            );
        }
        match &self.kind {
            JobKind::GetXattrs { path, flags } => {
                let (path, flags) = (path.0.as_slice(), *flags);
                core.send(self.id, ONLY, &Request::GetXattrs { path, flags });
            }
            JobKind::Names { users, groups } => {
                let bytes = |ids: &[u32]| ids.iter().flat_map(|id| id.to_be_bytes()).collect();
                let (users, groups): (Vec<u8>, Vec<u8>) = (bytes(users), bytes(groups));
                let (users, groups) = (users.as_slice(), groups.as_slice());
                core.send(self.id, ONLY, &Request::UsersGroupsById { users, groups });
            }
            JobKind::Ids { users, groups } => {
                let (users, groups) = (strings(users), strings(groups));
                let (users, groups) = (users.as_slice(), groups.as_slice());
                core.send(self.id, ONLY, &Request::IdsByName { users, groups });
            }
            _ => {}
        }
        JobProgress::Continues
    }

    pub(in crate::lane) fn on_reply(&self, core: &mut LaneContext, reply: Reply) -> JobProgress {
        let fault = self.answered(core, reply);
        end(core, self.id, fault)
    }

    fn answered(&self, core: &mut LaneContext, reply: Reply) -> Option<JobFailure> {
        match reply {
            Reply::Xattrs(list) => return self.on_xattrs(core, list),
            Reply::UsersGroups { users, groups } => {
                core.event(LaneEvent::Names(self.id, users, groups));
            }
            Reply::Ids { users, groups } => {
                core.event(LaneEvent::Ids(self.id, users, groups));
            }
            Reply::Attrs(attrs) => {
                core.event(LaneEvent::Attributes(self.id, attributes(&attrs)));
            }
            Reply::Statvfs(found) => {
                core.event(LaneEvent::FileSystem(self.id, found.id));
            }
            Reply::Names(names) => match <[_; 1]>::try_from(names) {
                Ok([name]) if !name.filename.is_empty() && !name.filename.contains(&0) => {
                    core.event(LaneEvent::Path(self.id, name.filename));
                }
                _ => {
                    return Some(remote(
                        "the server did not answer REALPATH with exactly one valid path (SFTP \
                         protocol error)",
                    ));
                }
            },
            reply => {
                let status = messages::status(&reply).err()?;
                if !matches!(self.kind, JobKind::MakeDurable { .. }) {
                    return Some(answered(status));
                }
                if !messages::is_told_only(status) {
                    return Some(refused(SYNCING_NAME, status));
                }
                let text = format!(
                    "cannot fsync a directory of the target ({status}): if the server crashes now, \
                     new files may be lost"
                );
                core.event(LaneEvent::Warning(self.id, text));
            }
        }
        None
    }

    /// Reports extended attributes. Names that were not requested are an error, since setting them
    /// could have effects.
    fn on_xattrs(&self, core: &mut LaneContext, list: Vec<Xattr>) -> Option<JobFailure> {
        let JobKind::GetXattrs { flags, .. } = self.kind else {
            return None;
        };
        let asked = |(name, _): &Xattr| sftp::xattrs::is_asked(name, true, flags);
        if !list.iter().all(asked) {
            let text = "the server sent extended attributes that were not requested";
            return Some(remote(text));
        }
        core.event(LaneEvent::Xattrs(self.id, list));
        None
    }
}

fn strings(names: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        name.as_slice().write(&mut out);
    }
    out
}
