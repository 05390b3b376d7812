//! What stands at an upload's final name, and how the new file gets there.

use sftp::{Attrs, OpenFlags, Reply, Request, Status, StatusCode};

use super::core::{Core, What};
use super::put::{Attempt, Part, Put, Redo, Target, Was};
use super::task::Step;
use super::words::{self, CREATING, RENAMING, refused};
use crate::disk::UNWRITABLE;
use crate::{JobId, LaneEvent};

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const OWNER_WRITE: u32 = 0o200;
/// A name of 50 random bits is not taken twice; more tries would only repeat another failure.
const NAME_TRIES: u8 = 2;

impl Put {
    /// An answer about the target or its naming.
    pub(super) fn on_target(&mut self, core: &mut Core, what: What, reply: &Reply) {
        match what {
            What::Look => self.on_look(reply),
            What::Follow => self.on_follow(reply),
            What::Resolve => self.on_resolve(reply),
            What::ClearTarget => match words::status(reply) {
                // One that is gone was removed by a lane that was lost before it could rename.
                Err(status) if status.code != StatusCode::NO_SUCH_FILE => {
                    self.fail(refused("cannot replace the old file", status));
                }
                _ => {
                    self.attempt.stranded = true;
                    if let Some(temp) = self.attempt.temp.clone() {
                        core.event(LaneEvent::Path(self.id, temp));
                    }
                }
            },
            What::Rename => match words::status(reply) {
                Ok(()) => self.attempt.temp = None,
                Err(status) => self.fail(refused(RENAMING, status)),
            },
            What::SyncName => self.on_name_synced(core, reply),
            What::RemoveTemp => {
                let gone = match words::status(reply) {
                    Ok(()) => true,
                    Err(status) => status.code == StatusCode::NO_SUCH_FILE,
                };
                if !gone {
                    self.left_behind(core);
                }
                self.attempt.temp = None;
            }
            _ => {}
        }
    }

    /// LSTAT of the target.
    fn on_look(&mut self, reply: &Reply) {
        match reply {
            Reply::Attrs(attrs) => self.decide(attrs),
            // Without an answer, as where only the file itself may not be looked at, the server
            // decides at the rename.
            _ => self.target = Target::New,
        }
    }

    fn decide(&mut self, attrs: &Attrs) {
        let owner = attrs.owner;
        let Some(mode) = attrs.permissions else {
            // A server without modes; all that is known is that something is there.
            self.target = Target::Existing(Was { mode: None, owner });
            return;
        };
        match mode & TYPE {
            // Some servers leave the type out.
            REGULAR | 0 if mode & OWNER_WRITE == 0 => {
                // scp could not have opened it for writing, unless as root, which nothing here
                // can tell: a file that its owner protected is not replaced behind a rename.
                self.fail_remote("permission denied: the existing file is read-only");
            }
            REGULAR | 0 => {
                let mode = Some(mode & 0o777);
                self.target = Target::Existing(Was { mode, owner });
            }
            DIRECTORY => self.fail_remote("it is a directory at the far end"),
            SYMLINK if self.options.replace_link => self.target = Target::New,
            SYMLINK if self.hops == 0 => self.redo = Some(Redo::Follow),
            SYMLINK => self.redo = Some(Redo::Direct(OpenFlags::WRITE | OpenFlags::TRUNC)),
            _ => self.redo = Some(Redo::Direct(OpenFlags::WRITE)),
        }
    }

    /// STAT through the symlink that the target is.
    fn on_follow(&mut self, reply: &Reply) {
        let create = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
        match reply {
            Reply::Attrs(Attrs {
                permissions: Some(mode),
                ..
            }) => match mode & TYPE {
                REGULAR | 0 => {}
                DIRECTORY => self.fail_remote("it is a directory at the far end"),
                _ => self.target = Target::Direct(OpenFlags::WRITE),
            },
            // It dangles: open(2) creates what it points to.
            _ => self.target = Target::Direct(create),
        }
    }

    fn on_resolve(&mut self, reply: &Reply) {
        if self.target != Target::Unknown {
            return;
        }
        match reply {
            Reply::Names(names) if names.len() == 1 => {
                if let Some(name) = names
                    .first()
                    .filter(|n| !n.filename.is_empty() && !n.filename.contains(&0))
                {
                    self.path = name.filename.clone();
                    return;
                }
                self.target = Target::Direct(OpenFlags::WRITE | OpenFlags::TRUNC);
            }
            _ => self.target = Target::Direct(OpenFlags::WRITE | OpenFlags::TRUNC),
        }
    }

    /// OPEN was answered with a failure.
    pub(super) fn open_refused(&mut self, core: &mut Core, status: &Status) {
        // A part opens what others have made; whoever names it removes it as well.
        match self.part {
            Part::Range { .. } | Part::Finish { .. } | Part::Sync => {
                self.fail(refused("cannot open the temporary again", status));
                return;
            }
            Part::Whole { .. } | Part::Head { .. } => {}
        }
        self.attempt.temp = None;
        match (self.target, status.code) {
            (Target::Direct(_), _) => self.fail(refused(CREATING, status)),
            // A file that may be written in a directory that may not: scp would have written
            // into it.
            (Target::Existing(_), StatusCode::PERMISSION_DENIED) => {
                self.warn(core, UNWRITABLE);
                self.again(Redo::Direct(OpenFlags::WRITE | OpenFlags::TRUNC));
            }
            (_, StatusCode::FAILURE) if self.tries < NAME_TRIES => {
                self.tries += 1;
                self.again(Redo::NewName);
            }
            _ => self.fail(refused(CREATING, status)),
        }
    }

    fn again(&mut self, redo: Redo) {
        if self.fault.is_none() {
            self.redo.get_or_insert(redo);
        }
    }

    /// All data are confirmed and the file is closed: gives it its name.
    pub(super) fn name(&mut self, core: &mut Core) -> Step {
        let Some(temp) = self.attempt.temp.clone() else {
            return self.done(core);
        };
        let (from, to) = (temp.as_slice(), self.path.clone());
        let to = to.as_slice();
        let owner = self.keep_owner(core, from);
        if let Target::Existing(Was {
            mode: Some(mode), ..
        }) = self.target
            && !self.attempt.mode_set
        {
            // LSTAT's answer came after FSETSTAT had left.
            self.attempt.mode_set = true;
            let attrs = Attrs::with_permissions(mode);
            self.send(core, What::Mode, &Request::Setstat { path: from, attrs });
        } else if owner {
            // Behind its answer it is seen what is left to do.
        } else if core.server.posix_rename {
            self.attempt.renaming = true;
            self.send(core, What::Rename, &Request::PosixRename { from, to });
            if self.syncs_name(core) {
                self.sync_name(core, to);
            }
        } else if matches!(self.target, Target::Existing(_)) && !self.attempt.stranded {
            // RENAME of version 3 fails where the new name exists. Between the two the name is
            // missing: the price of a server without posix-rename@openssh.com.
            self.send(core, What::ClearTarget, &Request::Remove { path: to });
        } else {
            self.attempt.renaming = true;
            self.send(core, What::Rename, &Request::Rename { from, to });
        }
        Step::Goes
    }

    /// Closes, waits until nothing is on its way, removes the temporary; then fails or begins
    /// again.
    pub(super) fn give_up(&mut self, core: &mut Core) -> Step {
        self.release_prefetch(core);
        // Nobody will read it, and on a slow path it takes long to send.
        let withdrawn = core.withdraw_writes(self.id);
        self.pending -= withdrawn;
        self.attempt.writes = self.attempt.writes.saturating_sub(withdrawn);
        if !self.attempt.opening || core.server.predict {
            self.close(core);
        }
        if self.pending > 0 || self.disk_pending > 0 {
            return Step::Goes;
        }
        self.forget_reads(core);
        if self.attempt.stranded && self.attempt.temp.is_some() {
            self.keep_stranded();
        }
        if let (true, false, Some(path)) = (
            self.attempt.opened || matches!(self.part, Part::Finish { .. }),
            self.attempt.removing,
            self.attempt.temp.clone(),
        ) {
            self.attempt.removing = true;
            self.send(core, What::RemoveTemp, &Request::Remove { path: &path });
            return Step::Goes;
        }
        if let Some(mut fault) = self.fault.take() {
            if self.spoiled() {
                fault
                    .what
                    .push_str("; the file is left incomplete, since it was written in place");
            }
            core.event(LaneEvent::Failed(self.id, fault));
            return Step::Over;
        }
        if self.abandoned {
            core.event(LaneEvent::Abandoned(self.id));
            return Step::Over;
        }
        self.begin_again(core)
    }

    fn begin_again(&mut self, core: &mut Core) -> Step {
        if let (Part::Head { .. }, Some(Redo::Direct(_))) = (&self.part, self.redo) {
            core.event(LaneEvent::Done(self.id));
            return Step::Over;
        }
        match self.redo.take() {
            Some(Redo::Follow) => {
                self.attempt = Attempt::default();
                self.hops += 1;
                self.target = Target::Unknown;
                // Kept until both answers are there; the next attempt begins then.
                self.redo = Some(Redo::NewName);
                let path = self.path.clone();
                self.send(core, What::Follow, &Request::Stat { path: &path });
                self.send(core, What::Resolve, &Request::Realpath { path: &path });
            }
            Some(redo) => {
                if let Redo::Direct(flags) = redo {
                    self.target = Target::Direct(flags);
                }
                self.attempt = Attempt::default();
                self.start(core);
            }
            None => {}
        }
        Step::Goes
    }

    /// The temporary could not be removed.
    fn left_behind(&mut self, core: &mut Core) {
        let Some(temp) = &self.attempt.temp else {
            return;
        };
        let name = sftp::printable(temp, 4096);
        let text = format!("the temporary {name} could not be removed");
        match &mut self.fault {
            Some(fault) => fault.what.push_str(&format!("; {text}")),
            None => core.event(LaneEvent::Warning(self.id, text)),
        }
    }

    /// The old file was removed and RENAME failed: the temporary holds the only copy.
    fn keep_stranded(&mut self) {
        if let (Some(fault), Some(temp)) = (&mut self.fault, self.attempt.temp.take()) {
            let name = sftp::printable(&temp, 4096);
            fault
                .what
                .push_str(&format!("; the data are whole in {name}"));
        }
    }

    /// The temporary that may exist now.
    pub(super) fn temporary(&self) -> Option<(JobId, &[u8])> {
        let stays = self.attempt.stranded || matches!(self.part, Part::Finish { .. });
        let temp = self.attempt.temp.as_deref().filter(|_| !stays)?;
        Some((self.id, temp))
    }
}
