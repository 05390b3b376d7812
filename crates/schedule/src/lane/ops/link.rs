//! Creates a symlink or a hard link at the far end.

use sftp::{Reply, Request, StatusCode};

use super::{JobProgress, LaneContext, end};
use crate::lane::messages::{
    self, MAKING_HARD_LINK, MAKING_SYMLINK, REPLACING_BY_SYMLINK, left_temporary, refused, remote,
};
use crate::lane::replace::{FileReplacement, ReplaceProgress};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::lane::task::attributes;
use crate::{EntryKind, FailedTemporary, JobFailure, JobFailureKind, JobId, LaneEvent};

/// Creates a link; if the name is taken, creates it under a temporary name and renames it.
#[derive(Debug)]
pub(in crate::lane) struct MakeLink {
    id: JobId,
    path: Vec<u8>,
    to: LinkTarget,
    /// Number from which the temporary's name is made, until a leftover of that name is removed.
    tag: Option<u64>,
    stage: MakeLinkStage,
}

/// Target of a link.
#[derive(Debug)]
pub(in crate::lane) enum LinkTarget {
    /// Text of a symlink.
    Text(Vec<u8>),
    /// Path of the existing file that gets another name.
    File(Vec<u8>),
}

/// Request of a [`MakeLink`] that is in flight.
#[derive(Debug)]
enum MakeLinkStage {
    /// Creates the link under the final name.
    Creating,
    /// LSTAT of what stands there; holds the refusal in case it does not explain it.
    Looking(JobFailure),
    /// Creates the link under a temporary name.
    CreatingTemp(Vec<u8>),
    /// A leftover of an interrupted run is removed from the temporary name.
    Clearing(Vec<u8>),
    /// The temporary is renamed.
    Replacing(Vec<u8>, Box<FileReplacement>),
    /// The temporary is removed, after this failure if there is one.
    Removing(Vec<u8>, Option<JobFailure>),
    Finished,
}

const CREATE: u8 = 0;
const LOOK: u8 = 1;
const CREATE_TEMP: u8 = 2;
const CLEAR: u8 = 3;
const REMOVE: u8 = 4;

impl MakeLink {
    pub(in crate::lane) fn new(id: JobId, path: Vec<u8>, to: LinkTarget, tag: Option<u64>) -> Self {
        Self {
            id,
            path,
            to,
            tag,
            stage: MakeLinkStage::Creating,
        }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) -> JobProgress {
        if self.is_hard() && !core.can(ServerCapabilities::HARDLINK) {
            let fault = remote("the server does not support hard links");
            return end(
                core,
                self.id,
                Some(fault.of_kind(JobFailureKind::Unsupported)),
            );
        }
        self.create(core, CREATE, &self.path);
        JobProgress::Continues
    }

    fn is_hard(&self) -> bool {
        matches!(self.to, LinkTarget::File(_))
    }

    /// Returns what was not done if the server refuses the link.
    fn making(&self) -> &'static str {
        match self.to {
            LinkTarget::Text(_) => MAKING_SYMLINK,
            LinkTarget::File(_) => MAKING_HARD_LINK,
        }
    }

    /// Returns what was not done if the server refuses to put the link in place of another entry.
    fn replacing(&self) -> &'static str {
        match self.to {
            LinkTarget::Text(_) => REPLACING_BY_SYMLINK,
            LinkTarget::File(_) => MAKING_HARD_LINK,
        }
    }

    /// Sends the request that creates the link under a name.
    fn create(&self, core: &mut LaneContext, step: u8, name: &[u8]) {
        match &self.to {
            LinkTarget::Text(text) => core.send_symlink(self.id, step, name, text),
            LinkTarget::File(from) => {
                let request = Request::Hardlink { from, to: name };
                core.send(self.id, RequestPurpose::Step(step), &request);
            }
        }
    }

    fn create_temp(&mut self, core: &mut LaneContext, temp: Vec<u8>) -> JobProgress {
        self.create(core, CREATE_TEMP, &temp);
        self.stage = MakeLinkStage::CreatingTemp(temp);
        JobProgress::Continues
    }

    /// Sends REMOVE of the temporary name.
    fn remove(&self, core: &mut LaneContext, step: u8, temp: &[u8]) {
        let request = Request::Remove { path: temp };
        core.send(self.id, RequestPurpose::Step(step), &request);
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> JobProgress {
        let done = messages::status(reply);
        let stage = std::mem::replace(&mut self.stage, MakeLinkStage::Finished);
        let fault = match (stage, done) {
            (MakeLinkStage::Creating, Err(status)) if status.code == StatusCode::FAILURE => {
                let path = &self.path;
                let request = Request::Lstat { path };
                core.send(self.id, RequestPurpose::Step(LOOK), &request);
                self.stage = MakeLinkStage::Looking(refused(self.making(), status));
                return JobProgress::Continues;
            }
            (MakeLinkStage::Looking(fault), _) => match reply {
                Reply::Attrs(attrs) if attributes(attrs).kind() == EntryKind::Directory => {
                    Some(remote("a directory is in the way: remove it"))
                }
                Reply::Attrs(_) => {
                    let temp = core.temp_name(&self.path, self.tag);
                    return self.create_temp(core, temp);
                }
                _ => Some(fault),
            },
            (MakeLinkStage::CreatingTemp(temp), Err(status))
                if status.code == StatusCode::FAILURE && self.tag.take().is_some() =>
            {
                self.remove(core, CLEAR, &temp);
                self.stage = MakeLinkStage::Clearing(temp);
                return JobProgress::Continues;
            }
            (MakeLinkStage::Clearing(temp), _) => {
                let temp = match left_temporary(&temp, reply) {
                    Some(_) => core.temp_name(&self.path, None),
                    None => temp,
                };
                return self.create_temp(core, temp);
            }
            (MakeLinkStage::Creating | MakeLinkStage::CreatingTemp(_), Err(status)) => {
                Some(refused(self.making(), status))
            }
            (MakeLinkStage::CreatingTemp(temp), Ok(())) => {
                let names = (temp.as_slice(), self.path.as_slice());
                let replace = FileReplacement::begin(core, self.id, names, true);
                self.stage = MakeLinkStage::Replacing(temp, Box::new(replace));
                return JobProgress::Continues;
            }
            (MakeLinkStage::Replacing(temp, replace), _) => {
                return self.on_replaced(core, reply, temp, replace);
            }
            (MakeLinkStage::Removing(temp, fault), _) => match left_temporary(&temp, reply) {
                Some(text) => self.leaves(core, fault, &text),
                None => fault,
            },
            (MakeLinkStage::Creating | MakeLinkStage::Finished, _) => None,
        };
        end(core, self.id, fault)
    }

    fn on_replaced(
        &mut self,
        core: &mut LaneContext,
        reply: &Reply,
        temp: Vec<u8>,
        mut replace: Box<FileReplacement>,
    ) -> JobProgress {
        let replaced = replace.on_reply(core, self.id, reply);
        if let ReplaceProgress::InProgress = replaced {
            self.stage = MakeLinkStage::Replacing(temp, replace);
            return JobProgress::Continues;
        }
        // rename(2) does nothing if both names are links of one file.
        let mut left = self.is_hard().then_some(temp);
        let (fault, warning) = replaced.told(self.replacing(), &mut left);
        if let Some(text) = warning {
            core.event(LaneEvent::Warning(self.id, text));
        }
        let Some(temp) = left else {
            return end(core, self.id, fault);
        };
        self.remove(core, REMOVE, &temp);
        self.stage = MakeLinkStage::Removing(temp, fault);
        JobProgress::Continues
    }

    /// Tells that the temporary could not be removed. The failure of a hard link is not always shown,
    /// because its file is copied then.
    fn leaves(
        &self,
        core: &mut LaneContext,
        fault: Option<JobFailure>,
        text: &str,
    ) -> Option<JobFailure> {
        match fault {
            Some(mut fault) if !self.is_hard() => {
                fault.what.push_str(&format!("; {text}"));
                fault.note_temporary(FailedTemporary::MayBeLeft);
                Some(fault)
            }
            fault => {
                core.event(LaneEvent::Warning(self.id, text.to_owned()));
                fault
            }
        }
    }

    /// Returns the temporary that may exist now.
    pub(in crate::lane) fn temporary(&self) -> Option<(JobId, &[u8])> {
        match &self.stage {
            MakeLinkStage::CreatingTemp(temp)
            | MakeLinkStage::Clearing(temp)
            | MakeLinkStage::Replacing(temp, _)
            | MakeLinkStage::Removing(temp, _) => Some((self.id, temp)),
            MakeLinkStage::Creating | MakeLinkStage::Looking(_) | MakeLinkStage::Finished => None,
        }
    }
}
