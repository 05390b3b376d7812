//! Creates a symlink at the far end.

use sftp::{Reply, Request, StatusCode, temp_name};

use super::{LaneContext, TaskStep, end};
use crate::lane::messages::{self, refused, remote};
use crate::lane::replace::{Replace, ReplaceProgress};
use crate::lane::request_tag::RequestTag;
use crate::lane::task::attributes;
use crate::{EntryKind, Fault, JobId, LaneEvent};

/// Creates a symlink; if the name is taken, creates it under a temporary name and renames it.
#[derive(Debug)]
pub(in crate::lane) struct MakeSymlink {
    id: JobId,
    path: Vec<u8>,
    points_to: Vec<u8>,
    stage: Stage,
}

/// Request in flight.
#[derive(Debug)]
enum Stage {
    /// SYMLINK under the final name.
    Creating,
    /// LSTAT of what stands there; holds the refusal in case it does not explain it.
    Looking(Fault),
    /// SYMLINK under a temporary name.
    Beside(Vec<u8>),
    /// The temporary is renamed.
    Replacing(Vec<u8>, Box<Replace>),
    /// The temporary is removed after this failure.
    Removing(Vec<u8>, Option<Fault>),
    Over,
}

const MAKING: &str = "cannot make the symlink";

impl MakeSymlink {
    pub(in crate::lane) fn new(id: JobId, path: Vec<u8>, points_to: Vec<u8>) -> Self {
        Self {
            id,
            path,
            points_to,
            stage: Stage::Creating,
        }
    }

    pub(in crate::lane) fn start(&self, core: &mut LaneContext) -> TaskStep {
        core.send_symlink(self.id, 0, &self.path, &self.points_to);
        TaskStep::Goes
    }

    pub(in crate::lane) fn on_reply(&mut self, core: &mut LaneContext, reply: &Reply) -> TaskStep {
        let done = messages::status(reply);
        let fault = match (std::mem::replace(&mut self.stage, Stage::Over), done) {
            (Stage::Creating, Err(status)) => {
                let fault = remote(status.to_string());
                if status.code == StatusCode::FAILURE {
                    let path = &self.path;
                    core.send(self.id, RequestTag::Step(1), &Request::Lstat { path });
                    self.stage = Stage::Looking(fault);
                    return TaskStep::Goes;
                }
                Some(fault)
            }
            (Stage::Looking(fault), _) => match reply {
                Reply::Attrs(attrs) if attributes(attrs).kind() == EntryKind::Directory => {
                    Some(remote("a directory is in the way: remove it"))
                }
                Reply::Attrs(_) => {
                    let temp = temp_name(&self.path, core.random());
                    core.send_symlink(self.id, 2, &temp, &self.points_to);
                    self.stage = Stage::Beside(temp);
                    return TaskStep::Goes;
                }
                _ => Some(fault),
            },
            (Stage::Beside(_), Err(status)) => Some(refused(MAKING, status)),
            (Stage::Beside(temp), Ok(())) => {
                let names = (temp.as_slice(), self.path.as_slice());
                let replace = Replace::begin(core, self.id, names, true);
                self.stage = Stage::Replacing(temp, Box::new(replace));
                return TaskStep::Goes;
            }
            (Stage::Replacing(temp, mut replace), _) => {
                let replaced = replace.on_reply(core, self.id, reply);
                if let ReplaceProgress::Goes = replaced {
                    self.stage = Stage::Replacing(temp, replace);
                    return TaskStep::Goes;
                }
                let mut left = None;
                let (fault, warning) = replaced.told(MAKING, &mut left);
                if let Some(text) = warning {
                    core.event(LaneEvent::Warning(self.id, text));
                }
                if let Some(path) = left {
                    let request = Request::Remove { path: &path };
                    core.send(self.id, RequestTag::Step(4), &request);
                    self.stage = Stage::Removing(path, fault);
                    return TaskStep::Goes;
                }
                fault
            }
            (Stage::Removing(temp, fault), done) => {
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
            (Stage::Creating | Stage::Over, _) => None,
        };
        end(core, self.id, fault)
    }

    /// Returns the temporary that may exist now.
    pub(in crate::lane) fn temporary(&self) -> Option<(JobId, &[u8])> {
        match &self.stage {
            Stage::Beside(temp) | Stage::Replacing(temp, _) | Stage::Removing(temp, _) => {
                Some((self.id, temp))
            }
            Stage::Creating | Stage::Looking(_) | Stage::Over => None,
        }
    }
}
