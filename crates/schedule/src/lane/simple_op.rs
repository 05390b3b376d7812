use sftp::{Attrs, Parts, Reply, Request, StatusCode, temp_name};

use super::core::{LaneContext, RequestTag};
use super::messages::{self, refused, remote};
use super::replace::{Replace, ReplaceProgress};
use super::task::{TaskStep, attributes};
use crate::journal::ExistingFile;
use crate::{Attributes, EntryKind, Fault, JobId, JobKind, LaneEvent, Temp};

/// A job of one request, with a few more after a refusal.
#[derive(Debug)]
pub(super) struct SimpleOp {
    pub(super) id: JobId,
    pub(super) kind: JobKind,
    pub(super) pending: usize,
    temp: Option<Vec<u8>>,
    replace: Option<Replace>,
    pub(super) fault: Option<Fault>,
    /// For an adoption: attributes of the temporary, and of the file at its final name.
    seen: Option<Attributes>,
    replaces: Option<Option<Attributes>>,
}

/// Step number of the job's own request.
pub(super) const ITSELF: u8 = 0;
/// Look at the existing file after a refusal.
const LOOK: u8 = 1;
/// Create the symlink under a temporary name.
const BESIDE: u8 = 2;
const CLEAN: u8 = 4;
const MAKING_SYMLINK: &str = "cannot make the symlink";
/// Set the owner before the other attributes.
pub(super) const OWNER: u8 = 6;

impl SimpleOp {
    pub(super) fn new(id: JobId, kind: JobKind) -> Self {
        Self {
            id,
            kind,
            pending: 0,
            temp: None,
            replace: None,
            fault: None,
            seen: None,
            replaces: None,
        }
    }

    pub(super) fn start(&mut self, core: &mut LaneContext) -> TaskStep {
        match self.kind.clone() {
            JobKind::MakeDir { path, mode, .. } => {
                let attrs = Attrs::with_permissions(mode & 0o777);
                self.send(
                    core,
                    ITSELF,
                    &Request::Mkdir {
                        path: &path.0,
                        attrs,
                    },
                );
            }
            JobKind::SetAttributes {
                path,
                attributes,
                follow,
                xattrs,
            } => {
                let of = (path.0.as_slice(), follow);
                return self.set_attributes(core, of, &attributes, xattrs.as_deref());
            }
            JobKind::MakeSymlink { path, points_to } => {
                self.pending += 1;
                core.send_symlink(self.id, ITSELF, &path.0, &points_to);
            }
            JobKind::ReadSymlink { path } => {
                self.send(core, ITSELF, &Request::Readlink { path: &path.0 });
            }
            JobKind::Stat { path, follow } => {
                let path = path.0.as_slice();
                let request = match follow {
                    true => Request::Stat { path },
                    false => Request::Lstat { path },
                };
                self.send(core, ITSELF, &request);
            }
            JobKind::RealPath { path } => return self.real_path(core, &path.0),
            JobKind::MakeDurable { paths } => return self.make_durable(core, &paths),
            JobKind::GetXattrs { .. } | JobKind::Names { .. } | JobKind::Ids { .. } => {
                return self.ask(core);
            }
            JobKind::Remove { path } => {
                self.send(core, ITSELF, &Request::Remove { path: &path.0 });
            }
            JobKind::RemoveDir { path } => {
                self.send(core, ITSELF, &Request::Rmdir { path: &path.0 });
            }
            JobKind::Rename { from, to } => {
                // Unlike posix-rename@openssh.com it replaces nothing.
                let (from, to) = (from.0.as_slice(), to.0.as_slice());
                self.send(core, ITSELF, &Request::Rename { from, to });
            }
            JobKind::AdoptTemp { target, temp, .. } => {
                self.send(core, ITSELF, &Request::Lstat { path: &temp.0 });
                self.send(core, LOOK, &Request::Lstat { path: &target.0 });
            }
            // These kinds have state machines of their own.
            JobKind::Put { .. }
            | JobKind::PutDelta { .. }
            | JobKind::Get { .. }
            | JobKind::GetDelta { .. }
            | JobKind::Sum { .. }
            | JobKind::List { .. }
            | JobKind::ListTree { .. }
            | JobKind::MakeHardLink { .. }
            | JobKind::CreateTemp { .. }
            | JobKind::PutRange { .. }
            | JobKind::FinishTemp { .. }
            | JobKind::SyncTemp { .. }
            | JobKind::GetRange { .. } => {}
        }
        TaskStep::Goes
    }

    fn real_path(&mut self, core: &mut LaneContext, path: &[u8]) -> TaskStep {
        let home = path.first() == Some(&b'~');
        if home && core.server.expand_path {
            self.send(core, ITSELF, &Request::ExpandPath { path });
            return TaskStep::Goes;
        }
        // An SFTP session starts in the home directory, so `~` is the working directory.
        let path = match path {
            b"~" | b"~/" => b".".as_slice(),
            [b'~', b'/', rest @ ..] => rest,
            [b'~', ..] => {
                self.fault = Some(remote("the server cannot expand the home of another user"));
                return self.end(core);
            }
            path => path,
        };
        self.send(core, ITSELF, &Request::Realpath { path });
        TaskStep::Goes
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: Reply,
    ) -> TaskStep {
        self.pending -= 1;
        if what == RequestTag::Replace {
            return self.on_replace(core, &reply);
        }
        let RequestTag::Step(step) = what else {
            return TaskStep::Goes;
        };
        if let JobKind::AdoptTemp { .. } = self.kind {
            let there = match &reply {
                Reply::Attrs(attrs) => Some(attributes(attrs)),
                _ => None,
            };
            let missing = matches!(&reply, Reply::Status(s) if s.code == StatusCode::NO_SUCH_FILE);
            match step {
                ITSELF => self.seen = there,
                // A file that may not be looked at cannot be resumed.
                _ if there.is_some() || missing => self.replaces = Some(there),
                _ => {}
            }
            return match self.pending {
                0 => self.adopt(core),
                _ => TaskStep::Goes,
            };
        }
        match (step, reply) {
            (OWNER, reply) => core.on_set(self.id, RequestTag::Owner, &reply),
            (ITSELF, reply @ Reply::Set { .. }) => self.on_set(core, &reply),
            (ITSELF, Reply::Xattrs(list)) => self.on_xattrs(core, list),
            (ITSELF, Reply::UsersGroups { users, groups }) => {
                core.event(LaneEvent::Names(self.id, users, groups));
            }
            (ITSELF, Reply::Ids { users, groups }) => {
                core.event(LaneEvent::Ids(self.id, users, groups));
            }
            (ITSELF, Reply::Attrs(attrs)) => {
                core.event(LaneEvent::Attributes(self.id, attributes(&attrs)));
            }
            (ITSELF, Reply::Names(names)) => match <[_; 1]>::try_from(names) {
                Ok([name]) if !name.filename.is_empty() && !name.filename.contains(&0) => {
                    core.event(LaneEvent::Path(self.id, name.filename));
                }
                _ => self.fail(remote("the server answered with no path or several")),
            },
            (ITSELF, reply) if matches!(self.kind, JobKind::MakeDurable { .. }) => {
                self.on_durable(core, &reply);
            }
            (ITSELF, reply) => self.on_status(core, &reply),
            (LOOK, reply) => self.on_look(core, &reply),
            (step, reply) => self.on_symlink_step(core, step, &reply),
        }
        if self.pending > 0 {
            return TaskStep::Goes;
        }
        self.end(core)
    }

    /// Reports the temporary if it can be resumed, once both answers are known.
    fn adopt(&mut self, core: &mut LaneContext) -> TaskStep {
        let JobKind::AdoptTemp {
            target,
            temp,
            left,
            replace_link,
        } = self.kind.clone()
        else {
            return self.end(core);
        };
        let stands = self.replaces.map(|there| there.map(|a| (a.kind(), a.mode)));
        let owner = self.replaces.flatten().and_then(|there| there.owner);
        let replaces = match stands {
            Some(None) => Some((false, None)),
            Some(Some((EntryKind::File, mode))) if mode.is_some_and(|m| m & 0o200 != 0) => {
                Some((true, mode.map(|m| m & 0o777)))
            }
            Some(Some((EntryKind::Symlink, _))) if replace_link => Some((false, None)),
            _ => None,
        };
        let file = self.seen.filter(|seen| seen.kind() == EntryKind::File);
        let seen = file.map(|seen| ExistingFile {
            size: seen.size.unwrap_or(0),
            mtime: seen.times.map_or(0, |(_, m)| u64::from(m) * 1_000_000_000),
        });
        if let (Some((replaces, mode)), Some(seen)) = (replaces, seen)
            && left.may_go_on(seen)
        {
            let temp = Temp {
                temp,
                target,
                replaces,
                mode,
                owner: owner.filter(|_| replaces),
            };
            core.event(LaneEvent::Temp(self.id, temp));
        }
        self.end(core)
    }

    fn on_status(&mut self, core: &mut LaneContext, reply: &Reply) {
        let Err(status) = messages::status(reply) else {
            return;
        };
        if let JobKind::SetAttributes { attributes, .. } = &self.kind
            && status.code != StatusCode::NO_SUCH_FILE
        {
            // As in scp: the contents are copied, and metadata that is not kept is reported.
            let parts = Parts::default()
                .with(Parts::MODE, attributes.mode.is_some())
                .with(Parts::TIMES, attributes.times.is_some());
            return core.not_kept(self.id, vec![(parts, status.to_string())]);
        }
        // Kept in case the existing file does not explain the refusal.
        let fault = remote(status.to_string());
        let look = match (&self.kind, status.code) {
            (JobKind::MakeDir { path, follow, .. }, _) => Some((path.0.clone(), *follow)),
            (JobKind::MakeSymlink { path, .. }, StatusCode::FAILURE) => {
                Some((path.0.clone(), false))
            }
            _ => None,
        };
        self.fault = Some(fault);
        if let Some((path, follow)) = look {
            let path = path.as_slice();
            let request = match follow {
                true => Request::Stat { path },
                false => Request::Lstat { path },
            };
            self.send(core, LOOK, &request);
        }
    }

    /// Handles the attributes of the existing file where the server refused to create one.
    fn on_look(&mut self, core: &mut LaneContext, reply: &Reply) {
        let Reply::Attrs(attrs) = reply else { return };
        let kind = attributes(attrs).kind();
        match self.kind.clone() {
            JobKind::MakeDir { .. } if kind == EntryKind::Directory => {
                self.fault = None;
                core.event(LaneEvent::Attributes(self.id, attributes(attrs)));
            }
            JobKind::MakeDir { .. } => {
                self.fault = Some(remote("a file that is not a directory is in the way"));
            }
            JobKind::MakeSymlink { .. } if kind == EntryKind::Directory => {
                self.fault = Some(remote("a directory is in the way"));
            }
            JobKind::MakeSymlink { path, points_to } => {
                self.fault = None;
                let temp = temp_name(&path.0, &mut *core.config.random);
                self.pending += 1;
                core.send_symlink(self.id, BESIDE, &temp, &points_to);
                self.temp = Some(temp);
            }
            _ => {}
        }
    }

    fn on_symlink_step(&mut self, core: &mut LaneContext, step: u8, reply: &Reply) {
        let JobKind::MakeSymlink { path, .. } = self.kind.clone() else {
            return;
        };
        match (step, messages::status(reply)) {
            (BESIDE, Ok(())) => {
                let from = self.temp.clone().unwrap_or_default();
                self.pending += 1;
                let names = (from.as_slice(), path.0.as_slice());
                self.replace = Some(Replace::begin(core, self.id, names, true));
            }
            (BESIDE, Err(status)) => {
                self.temp = None;
                self.fail(refused(MAKING_SYMLINK, status));
            }
            (CLEAN, Err(status)) if status.code != StatusCode::NO_SUCH_FILE => self.left_behind(),
            _ => self.temp = None,
        }
    }

    fn on_replace(&mut self, core: &mut LaneContext, reply: &Reply) -> TaskStep {
        if let Some(mut replace) = self.replace.take() {
            let replaced = replace.on_reply(core, self.id, reply);
            if let ReplaceProgress::Goes = replaced {
                self.pending += 1;
                self.replace = Some(replace);
                return TaskStep::Goes;
            }
            self.temp = None;
            let (fault, warning) = replaced.told(MAKING_SYMLINK, &mut self.temp);
            self.fault = fault;
            if let Some(text) = warning {
                core.event(LaneEvent::Warning(self.id, text));
            }
            if let Some(path) = self.temp.clone() {
                self.send(core, CLEAN, &Request::Remove { path: &path });
                return TaskStep::Goes;
            }
        }
        self.end(core)
    }

    /// Adds a temporary that could not be removed to the fault.
    fn left_behind(&mut self) {
        if let (Some(fault), Some(temp)) = (&mut self.fault, self.temp.take()) {
            let name = sftp::printable(&temp, 4096);
            let text = format!("; cannot remove the temporary file {name}");
            fault.what.push_str(&text);
        }
    }

    pub(super) fn end(&mut self, core: &mut LaneContext) -> TaskStep {
        core.event(match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Done(self.id),
        });
        TaskStep::Over
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Returns the temporary that may exist now.
    pub(super) fn temporary(&self) -> Option<(JobId, &[u8])> {
        self.temp.as_deref().map(|temp| (self.id, temp))
    }

    pub(super) fn send(&mut self, core: &mut LaneContext, step: u8, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, RequestTag::Step(step), request);
    }
}
