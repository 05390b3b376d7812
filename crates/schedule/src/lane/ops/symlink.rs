//! Creates a symlink at the far end.

use sftp::{Reply, Request, Status, StatusCode};

use super::{JobProgress, LaneContext, end};
use crate::lane::messages::{self, MAKING_SYMLINK, REPLACING_BY_SYMLINK, refused, remote};
use crate::lane::replace::{FileReplacement, ReplaceProgress};
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::task::attributes;
use crate::{EntryKind, FailedTemporary, JobFailure, JobId, LaneEvent};

/// Creates a symlink; if the name is taken, creates it under a temporary name and renames it.
#[derive(Debug)]
pub(in crate::lane) struct MakeSymlink {
    id: JobId,
    path: Vec<u8>,
    points_to: Vec<u8>,
    /// Number from which the temporary's name is made, until a leftover of that name is removed.
    tag: Option<u64>,
    stage: MakeSymlinkStage,
}

/// Request of a [`MakeSymlink`] that is in flight.
#[derive(Debug)]
enum MakeSymlinkStage {
    /// SYMLINK under the final name.
    Creating,
    /// LSTAT of what stands there; holds the refusal in case it does not explain it.
    Looking(JobFailure),
    /// A leftover of an interrupted run is removed from the temporary name.
    Clearing(Vec<u8>),
    /// SYMLINK under a temporary name.
    CreatingTemp(Vec<u8>),
    /// The temporary is renamed.
    Replacing(Vec<u8>, Box<FileReplacement>),
    /// The temporary is removed after this failure.
    Removing(Vec<u8>, Option<JobFailure>),
    Finished,
}

impl MakeSymlink {
    pub(in crate::lane) fn new(
        id: JobId,
        path: Vec<u8>,
        points_to: Vec<u8>,
        tag: Option<u64>,
    ) -> Self {
        Self {
            id,
            path,
            points_to,
            tag,
            stage: MakeSymlinkStage::Creating,
        }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) -> JobProgress {
        core.send_symlink(self.id, 0, &self.path, &self.points_to);
        JobProgress::Continues
    }

    pub(in crate::lane) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        reply: &Reply,
    ) -> JobProgress {
        let done = messages::status(reply);
        let stage = std::mem::replace(&mut self.stage, MakeSymlinkStage::Finished);
        let fault = match (stage, done) {
            (MakeSymlinkStage::Creating, Err(status)) => {
                let fault = refused(MAKING_SYMLINK, status);
                if status.code == StatusCode::FAILURE {
                    let path = &self.path;
                    core.send(self.id, RequestPurpose::Step(1), &Request::Lstat { path });
                    self.stage = MakeSymlinkStage::Looking(fault);
                    return JobProgress::Continues;
                }
                Some(fault)
            }
            (MakeSymlinkStage::Looking(fault), _) => match reply {
                Reply::Attrs(attrs) if attributes(attrs).kind() == EntryKind::Directory => {
                    Some(remote("a directory is in the way: remove it"))
                }
                Reply::Attrs(_) => {
                    let temp = core.temp_name(&self.path, self.tag);
                    return self.create_temp(core, temp);
                }
                _ => Some(fault),
            },
            (MakeSymlinkStage::CreatingTemp(temp), Err(status))
                if status.code == StatusCode::FAILURE && self.tag.take().is_some() =>
            {
                let request = Request::Remove { path: &temp };
                core.send(self.id, RequestPurpose::Step(5), &request);
                self.stage = MakeSymlinkStage::Clearing(temp);
                return JobProgress::Continues;
            }
            (MakeSymlinkStage::Clearing(temp), removed) => {
                let temp = match is_left(removed) {
                    true => core.temp_name(&self.path, None),
                    false => temp,
                };
                return self.create_temp(core, temp);
            }
            (MakeSymlinkStage::CreatingTemp(_), Err(status)) => {
                Some(refused(MAKING_SYMLINK, status))
            }
            (MakeSymlinkStage::CreatingTemp(temp), Ok(())) => {
                let names = (temp.as_slice(), self.path.as_slice());
                let replace = FileReplacement::begin(core, self.id, names, true);
                self.stage = MakeSymlinkStage::Replacing(temp, Box::new(replace));
                return JobProgress::Continues;
            }
            (MakeSymlinkStage::Replacing(temp, mut replace), _) => {
                let replaced = replace.on_reply(core, self.id, reply);
                if let ReplaceProgress::InProgress = replaced {
                    self.stage = MakeSymlinkStage::Replacing(temp, replace);
                    return JobProgress::Continues;
                }
                let mut left = None;
                let (fault, warning) = replaced.told(REPLACING_BY_SYMLINK, &mut left);
                if let Some(text) = warning {
                    core.event(LaneEvent::Warning(self.id, text));
                }
                if let Some(path) = left {
                    let request = Request::Remove { path: &path };
                    core.send(self.id, RequestPurpose::Step(4), &request);
                    self.stage = MakeSymlinkStage::Removing(path, fault);
                    return JobProgress::Continues;
                }
                fault
            }
            (MakeSymlinkStage::Removing(temp, fault), removed) => match is_left(removed) {
                true => fault.map(|fault| with_leftover(fault, &temp)),
                false => fault,
            },
            (MakeSymlinkStage::Creating | MakeSymlinkStage::Finished, _) => None,
        };
        end(core, self.id, fault)
    }

    fn create_temp(&mut self, core: &mut LaneContext, temp: Vec<u8>) -> JobProgress {
        core.send_symlink(self.id, 2, &temp, &self.points_to);
        self.stage = MakeSymlinkStage::CreatingTemp(temp);
        JobProgress::Continues
    }

    /// Returns the temporary that may exist now.
    pub(in crate::lane) fn temporary(&self) -> Option<(JobId, &[u8])> {
        match &self.stage {
            MakeSymlinkStage::CreatingTemp(temp)
            | MakeSymlinkStage::Clearing(temp)
            | MakeSymlinkStage::Replacing(temp, _)
            | MakeSymlinkStage::Removing(temp, _) => Some((self.id, temp)),
            MakeSymlinkStage::Creating
            | MakeSymlinkStage::Looking(_)
            | MakeSymlinkStage::Finished => None,
        }
    }
}

/// True if an entry is still there after the answer to REMOVE.
fn is_left(removed: Result<(), &Status>) -> bool {
    removed.is_err_and(|status| status.code != StatusCode::NO_SUCH_FILE)
}

/// Adds to a failure that the temporary could not be removed.
fn with_leftover(mut fault: JobFailure, temp: &[u8]) -> JobFailure {
    let name = sftp::printable(temp, 4096);
    let text = format!("; cannot remove the temporary file {name}: remove it by hand");
    fault.what.push_str(&text);
    fault.note_temporary(FailedTemporary::MayBeLeft);
    fault
}
