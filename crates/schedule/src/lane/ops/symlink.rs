//! Creates a symlink at the far end.

use sftp::{Reply, Request, StatusCode, temp_name};

use super::{JobProgress, LaneContext, end};
use crate::lane::messages::{self, refused, remote};
use crate::lane::replace::{ReplaceFile, ReplaceProgress};
use crate::lane::request_tag::RequestTag;
use crate::lane::task::attributes;
use crate::{EntryKind, JobFailure, JobId, LaneEvent};

/// Creates a symlink; if the name is taken, creates it under a temporary name and renames it.
#[derive(Debug)]
pub(in crate::lane) struct MakeSymlink {
    id: JobId,
    path: Vec<u8>,
    points_to: Vec<u8>,
    stage: SymlinkStage,
}

/// Request in flight.
#[derive(Debug)]
enum SymlinkStage {
    /// SYMLINK under the final name.
    Creating,
    /// LSTAT of what stands there; holds the refusal in case it does not explain it.
    Looking(JobFailure),
    /// SYMLINK under a temporary name.
    CreatingTemp(Vec<u8>),
    /// The temporary is renamed.
    Replacing(Vec<u8>, Box<ReplaceFile>),
    /// The temporary is removed after this failure.
    Removing(Vec<u8>, Option<JobFailure>),
    Finished,
}

const MAKING: &str = "cannot make the symlink";

impl MakeSymlink {
    pub(in crate::lane) fn new(id: JobId, path: Vec<u8>, points_to: Vec<u8>) -> Self {
        Self {
            id,
            path,
            points_to,
            stage: SymlinkStage::Creating,
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
        let fault = match (
            std::mem::replace(&mut self.stage, SymlinkStage::Finished),
            done,
        ) {
            (SymlinkStage::Creating, Err(status)) => {
                let fault = remote(status.to_string());
                if status.code == StatusCode::FAILURE {
                    let path = &self.path;
                    core.send(self.id, RequestTag::Step(1), &Request::Lstat { path });
                    self.stage = SymlinkStage::Looking(fault);
                    return JobProgress::Continues;
                }
                Some(fault)
            }
            (SymlinkStage::Looking(fault), _) => match reply {
                Reply::Attrs(attrs) if attributes(attrs).kind() == EntryKind::Directory => {
                    Some(remote("a directory is in the way: remove it"))
                }
                Reply::Attrs(_) => {
                    let temp = temp_name(&self.path, core.random());
                    core.send_symlink(self.id, 2, &temp, &self.points_to);
                    self.stage = SymlinkStage::CreatingTemp(temp);
                    return JobProgress::Continues;
                }
                _ => Some(fault),
            },
            (SymlinkStage::CreatingTemp(_), Err(status)) => Some(refused(MAKING, status)),
            (SymlinkStage::CreatingTemp(temp), Ok(())) => {
                let names = (temp.as_slice(), self.path.as_slice());
                let replace = ReplaceFile::begin(core, self.id, names, true);
                self.stage = SymlinkStage::Replacing(temp, Box::new(replace));
                return JobProgress::Continues;
            }
            (SymlinkStage::Replacing(temp, mut replace), _) => {
                let replaced = replace.on_reply(core, self.id, reply);
                if let ReplaceProgress::InProgress = replaced {
                    self.stage = SymlinkStage::Replacing(temp, replace);
                    return JobProgress::Continues;
                }
                let mut left = None;
                let (fault, warning) = replaced.told(MAKING, &mut left);
                if let Some(text) = warning {
                    core.event(LaneEvent::Warning(self.id, text));
                }
                if let Some(path) = left {
                    let request = Request::Remove { path: &path };
                    core.send(self.id, RequestTag::Step(4), &request);
                    self.stage = SymlinkStage::Removing(path, fault);
                    return JobProgress::Continues;
                }
                fault
            }
            (SymlinkStage::Removing(temp, fault), done) => {
                let left = done.is_err_and(|status| status.code != StatusCode::NO_SUCH_FILE);
                fault.map(|mut fault| {
                    if left {
                        let name = sftp::printable(&temp, 4096);
                        let text = format!("; cannot remove the temporary file {name}");
                        fault.what.push_str(&text);
                    }
                    fault
                })
            }
            (SymlinkStage::Creating | SymlinkStage::Finished, _) => None,
        };
        end(core, self.id, fault)
    }

    /// Returns the temporary that may exist now.
    pub(in crate::lane) fn temporary(&self) -> Option<(JobId, &[u8])> {
        match &self.stage {
            SymlinkStage::CreatingTemp(temp)
            | SymlinkStage::Replacing(temp, _)
            | SymlinkStage::Removing(temp, _) => Some((self.id, temp)),
            SymlinkStage::Creating | SymlinkStage::Looking(_) | SymlinkStage::Finished => None,
        }
    }
}
