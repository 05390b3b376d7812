//! Renames a temporary to its final name without losing the existing file.

use sftp::{Reply, Request, Status, StatusCode, temp_name};

use super::context::LaneContext;
use super::messages::{self, refused};
use super::request_purpose::RequestPurpose;
use super::server::ServerCapabilities;
use crate::{JobFailure, JobId};

/// The renames that put a temporary in place of an existing file.
///
/// posix-rename@openssh.com replaces in one step. RENAME of version 3 fails if the new name exists:
/// the old file is moved aside, the new one renamed, and only then the old one removed. If the
/// second rename fails, the old file is put back.
///
/// A server that permits posix-rename@openssh.com, but not onto this file, is not asked to move the
/// file aside: OpenSSH's RENAME makes a link and removes the old name, and where it may not, as for
/// a file of another user in a sticky directory, both names stay.
#[derive(Debug)]
pub(super) struct FileReplacement {
    from: Vec<u8>,
    to: Vec<u8>,
    /// A file or symlink exists at `to`, as far as known. A directory is never moved aside.
    replaces: bool,
    aside: Vec<u8>,
    stage: ReplaceStage,
    /// Reason why the temporary cannot be renamed to `to`.
    refusal: Option<Status>,
}

/// Request in flight while a temporary is renamed to its final name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplaceStage {
    /// posix-rename@openssh.com.
    Atomic,
    /// posix-rename@openssh.com of the temporary to another temporary name, to test if the refusal
    /// concerns the old file.
    ProbeAtomic,
    /// RENAME of the temporary to the final name.
    Plain,
    /// RENAME of the old file to a temporary name.
    Aside,
    /// LSTAT of the final name after that failed: a server may have renamed the old file, and have
    /// reported a failure.
    CheckAside,
    /// RENAME of the temporary to the final name, which is now free.
    Named,
    /// RENAME of the old file back to its name.
    PutBack,
    /// LSTAT of the old file's temporary name after that failed.
    CheckPutBack,
    /// REMOVE of the old file, after the new one's RENAME.
    RemoveOld,
    /// RENAME of the temporary to another temporary name, to test if the server allows any rename.
    Probe,
}

/// State of a [`FileReplacement`] after an answer.
#[derive(Debug)]
pub(super) enum ReplaceProgress {
    /// Another request was sent.
    InProgress,
    /// The new file has its name. The old one could not be removed and is at `left`.
    Done { left: Option<Vec<u8>> },
    /// The old file is unchanged and the new one is at `temp`. `always` has the status with which
    /// the server refuses every rename in the directory.
    Refused {
        status: Status,
        temp: Vec<u8>,
        always: Option<StatusCode>,
    },
    /// The old file is at `old`, the new one at `temp`, and the final name is free.
    Stranded {
        status: Status,
        old: Vec<u8>,
        temp: Vec<u8>,
    },
}

impl ReplaceProgress {
    /// Returns fault and warning for a link that was to be renamed; `temp` is set to the name that
    /// must be removed.
    pub(super) fn told(
        self,
        doing: &str,
        temp: &mut Option<Vec<u8>>,
    ) -> (Option<JobFailure>, Option<String>) {
        match self {
            Self::InProgress | Self::Done { left: None } => (None, None),
            Self::Done { left: Some(old) } => (None, Some(messages::old_is_left(&old))),
            Self::Refused {
                status, temp: at, ..
            } => {
                *temp = Some(at);
                (Some(refused(doing, &status)), None)
            }
            Self::Stranded { status, old, .. } => {
                let mut fault = refused(doing, &status);
                let old = sftp::printable(&old, 4096);
                fault.what.push_str(&format!(
                    "; the old file was renamed to {old}: rename it back"
                ));
                (Some(fault), None)
            }
        }
    }
}

impl FileReplacement {
    /// Sends the first request.
    pub(super) fn begin(
        core: &mut LaneContext,
        job: JobId,
        (from, to): (&[u8], &[u8]),
        replaces: bool,
    ) -> Self {
        let mut replace = Self {
            from: from.to_vec(),
            to: to.to_vec(),
            replaces,
            aside: Vec::new(),
            stage: ReplaceStage::Atomic,
            refusal: None,
        };
        let first = match core.can(ServerCapabilities::POSIX_RENAME) {
            true => ReplaceStage::Atomic,
            false => ReplaceStage::Plain,
        };
        replace.rename(core, job, first);
        replace
    }

    /// Returns the old file's temporary name, from the request that moves it there until no file
    /// has it.
    pub(super) fn moves_aside(&self) -> Option<&[u8]> {
        let moves = matches!(
            self.stage,
            ReplaceStage::Aside
                | ReplaceStage::CheckAside
                | ReplaceStage::Named
                | ReplaceStage::PutBack
                | ReplaceStage::CheckPutBack
                | ReplaceStage::RemoveOld
        );
        moves.then_some(self.aside.as_slice())
    }

    /// Returns the path beside which the old file is moved: the final one, but in the directory of
    /// the temporary, since the server may admit no other name in that of the file.
    fn place(&self) -> Vec<u8> {
        let name_at = |path: &[u8]| path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let dir = self.from.get(..name_at(&self.from)).unwrap_or_default();
        let name = self.to.get(name_at(&self.to)..).unwrap_or_default();
        [dir, name].concat()
    }

    /// Returns true if posix-rename@openssh.com is in flight.
    pub(super) fn is_atomic(&self) -> bool {
        self.stage == ReplaceStage::Atomic
    }

    fn rename(&mut self, core: &mut LaneContext, job: JobId, stage: ReplaceStage) {
        self.stage = stage;
        if matches!(
            stage,
            ReplaceStage::Aside | ReplaceStage::Probe | ReplaceStage::ProbeAtomic
        ) {
            self.aside = temp_name(&self.place(), core.random());
        }
        let (from, to) = match stage {
            ReplaceStage::Aside => (&self.to, &self.aside),
            ReplaceStage::PutBack => (&self.aside, &self.to),
            ReplaceStage::Probe | ReplaceStage::ProbeAtomic => (&self.from, &self.aside),
            ReplaceStage::Atomic
            | ReplaceStage::Plain
            | ReplaceStage::Named
            | ReplaceStage::RemoveOld
            | ReplaceStage::CheckAside
            | ReplaceStage::CheckPutBack => (&self.from, &self.to),
        };
        let request = match stage {
            ReplaceStage::Atomic | ReplaceStage::ProbeAtomic => Request::PosixRename { from, to },
            _ => Request::Rename { from, to },
        };
        core.send(job, RequestPurpose::Replace, &request);
    }

    /// Asks if the old file is still where a failed rename was to take it from.
    fn check(&mut self, core: &mut LaneContext, job: JobId, stage: ReplaceStage) {
        self.stage = stage;
        let path = match stage {
            ReplaceStage::CheckPutBack => &self.aside,
            _ => &self.to,
        };
        core.send(job, RequestPurpose::Replace, &Request::Lstat { path });
    }

    /// Handles the answer to the request in flight.
    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        job: JobId,
        reply: &Reply,
    ) -> ReplaceProgress {
        let done = messages::status(reply);
        let next = match (self.stage, done) {
            (ReplaceStage::Atomic | ReplaceStage::Plain, Ok(())) => {
                return ReplaceProgress::Done { left: None };
            }
            (ReplaceStage::Atomic, Err(status)) => {
                self.refusal = Some(status.clone());
                match self.replaces && status.code == StatusCode::PERMISSION_DENIED {
                    true => ReplaceStage::ProbeAtomic,
                    false => ReplaceStage::Plain,
                }
            }
            (ReplaceStage::ProbeAtomic, Err(_)) => ReplaceStage::Plain,
            (ReplaceStage::Plain, Err(status)) => {
                self.refusal.get_or_insert_with(|| status.clone());
                match self.replaces {
                    true => ReplaceStage::Aside,
                    false => ReplaceStage::Probe,
                }
            }
            (ReplaceStage::Aside, Ok(())) => ReplaceStage::Named,
            (ReplaceStage::Aside, Err(_)) => {
                self.check(core, job, ReplaceStage::CheckAside);
                return ReplaceProgress::InProgress;
            }
            (ReplaceStage::CheckAside, Err(status)) if status.code == StatusCode::NO_SUCH_FILE => {
                ReplaceStage::Named
            }
            (ReplaceStage::CheckAside, _) => ReplaceStage::Probe,
            (ReplaceStage::Named, Ok(())) => {
                self.stage = ReplaceStage::RemoveOld;
                let path = &self.aside;
                core.send(job, RequestPurpose::Replace, &Request::Remove { path });
                return ReplaceProgress::InProgress;
            }
            (ReplaceStage::Named, Err(status)) => {
                self.refusal = Some(status.clone());
                ReplaceStage::PutBack
            }
            (ReplaceStage::PutBack, Ok(())) => return self.refused(None),
            (ReplaceStage::PutBack, Err(_)) => {
                self.check(core, job, ReplaceStage::CheckPutBack);
                return ReplaceProgress::InProgress;
            }
            (ReplaceStage::CheckPutBack, Err(status))
                if status.code == StatusCode::NO_SUCH_FILE =>
            {
                return self.refused(None);
            }
            (ReplaceStage::CheckPutBack, _) => {
                return self.stranded();
            }
            (ReplaceStage::RemoveOld, done) => {
                let stays = done.is_err_and(|status| status.code != StatusCode::NO_SUCH_FILE);
                let left = stays.then(|| self.aside.clone());
                return ReplaceProgress::Done { left };
            }
            (ReplaceStage::Probe | ReplaceStage::ProbeAtomic, Ok(())) => {
                self.from = std::mem::take(&mut self.aside);
                return self.refused(None);
            }
            // A temporary that is gone, perhaps with its directory, says nothing about the server.
            (ReplaceStage::Probe, Err(status)) => {
                let gone = status.code == StatusCode::NO_SUCH_FILE;
                return self.refused((!gone).then_some(status.code));
            }
        };
        self.rename(core, job, next);
        ReplaceProgress::InProgress
    }

    fn why(&mut self) -> Status {
        self.refusal.take().unwrap_or_else(|| Status {
            code: StatusCode::FAILURE,
            message: String::new(),
        })
    }

    fn stranded(&mut self) -> ReplaceProgress {
        ReplaceProgress::Stranded {
            status: self.why(),
            old: self.aside.clone(),
            temp: self.from.clone(),
        }
    }

    fn refused(&mut self, always: Option<StatusCode>) -> ReplaceProgress {
        ReplaceProgress::Refused {
            status: self.why(),
            temp: self.from.clone(),
            always,
        }
    }
}
