//! Examines the target of an upload and moves the new file to that name.

use sftp::{Attrs, OpenFlags, Parts, Reply, Request, Status, StatusCode};
use wire::Block;

use super::Refusals;
use super::core::{LaneContext, RequestTag};
use super::messages::{
    self, CREATING, CREATING_IN_TEMP_DIR, READ_ONLY, RENAMING, RENAMING_FROM_TEMP_DIR, refused,
};
use super::put::{Attempt, Put, ReplacedAttributes, RetryReason, UploadPart, UploadTarget};
use super::replace::{Replace, ReplaceProgress};
use super::task::TaskStep;
use crate::{JobId, LaneEvent};

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const OWNER_WRITE: u32 = 0o200;
/// Number of temporary names tried: one of 50 random bits is hardly ever taken, and more tries
/// would only repeat another failure.
const NAME_TRIES: u8 = 2;
/// Length of a file name in bytes above which a server may refuse the temporary because of its
/// length.
const SHORT_NAME: usize = 64;

impl Put {
    /// Handles an answer about the target or the rename.
    pub(super) fn on_target(&mut self, core: &mut LaneContext, what: RequestTag, reply: &Reply) {
        match what {
            RequestTag::Look => self.on_look(core, reply),
            RequestTag::Follow => self.on_follow(reply),
            RequestTag::Resolve => self.on_resolve(reply),
            RequestTag::Replace => self.on_replace(core, reply),
            RequestTag::SyncName => self.on_name_synced(core, reply),
            RequestTag::RemoveTemp => {
                let gone = match messages::status(reply) {
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

    /// Handles the LSTAT of the target.
    fn on_look(&mut self, core: &mut LaneContext, reply: &Reply) {
        match reply {
            Reply::Attrs(attrs) => self.decide(attrs),
            // Without attributes (the user may lack the right to look at the file), the server
            // decides at the rename.
            _ => {
                self.missing = matches!(reply, Reply::Status(status)
                    if status.code == StatusCode::NO_SUCH_FILE);
                self.target = UploadTarget::New;
            }
        }
        if std::mem::take(&mut self.waits) && !self.given_up() {
            if core.refusals.in_place() && self.options.temp_dir.is_none() {
                self.again(RetryReason::InPlace);
                core.tell_in_place(self.id);
            } else {
                core.openers.push_back(self.id);
            }
        }
    }

    fn decide(&mut self, attrs: &Attrs) {
        let owner = attrs.owner;
        let Some(mode) = attrs.permissions else {
            // A server without modes: it is only known that a file exists.
            self.target = UploadTarget::Existing(ReplacedAttributes { mode: None, owner });
            return;
        };
        match mode & TYPE {
            // Some servers omit the type.
            REGULAR | 0 => {
                // scp can open the file for writing as root or by its group's rights, so the server
                // decides. A copy with all mode bits replaces it, as rsync does.
                let protected = mode & OWNER_WRITE == 0;
                if protected && !self.writable && !self.options.special_bits {
                    self.redo = Some(RetryReason::Probe);
                }
                let mode = Some(mode & 0o777);
                self.target = UploadTarget::Existing(ReplacedAttributes { mode, owner });
            }
            DIRECTORY => self.fail_remote("it is a directory at the far end"),
            SYMLINK if self.options.replace_link => {
                self.is_link = true;
                self.target = UploadTarget::New;
            }
            SYMLINK if self.hops == 0 => self.redo = Some(RetryReason::Follow),
            SYMLINK => self.redo = Some(RetryReason::Direct(OpenFlags::WRITE | OpenFlags::TRUNC)),
            _ => self.redo = Some(RetryReason::Direct(OpenFlags::WRITE)),
        }
    }

    /// Handles the STAT through the symlink at the target.
    fn on_follow(&mut self, reply: &Reply) {
        let create = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
        match reply {
            Reply::Attrs(Attrs {
                permissions: Some(mode),
                ..
            }) => match mode & TYPE {
                REGULAR | 0 => {}
                DIRECTORY => self.fail_remote("it is a directory at the far end"),
                _ => self.target = UploadTarget::Direct(OpenFlags::WRITE),
            },
            // A dangling symlink: open(2) creates the file that it points to.
            _ => self.target = UploadTarget::Direct(create),
        }
    }

    fn on_resolve(&mut self, reply: &Reply) {
        if self.target != UploadTarget::Unknown {
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
                self.target = UploadTarget::Direct(OpenFlags::WRITE | OpenFlags::TRUNC);
            }
            _ => self.target = UploadTarget::Direct(OpenFlags::WRITE | OpenFlags::TRUNC),
        }
    }

    /// Writes the file under its final name if the server is known to take no temporaries.
    pub(super) fn go_in_place(&mut self, core: &mut LaneContext) {
        let decided = matches!(self.target, UploadTarget::Direct(_));
        // A symlink that is to be replaced is looked at first, since its target must not be
        // overwritten.
        let looks = self.options.replace_link && !self.options.fresh;
        let has_dir = self.options.temp_dir.is_some();
        if !core.refusals.in_place() || has_dir || decided || looks || self.is_piece() {
            return;
        }
        self.target = UploadTarget::Direct(OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC);
        core.tell_in_place(self.id);
    }

    /// Queues the job for OPEN, unless the answer about the target is needed first.
    pub(super) fn queue_open(&mut self, core: &mut LaneContext) {
        let needs = core.refusals.attributes || core.refusals.in_place();
        match needs && self.target == UploadTarget::Unknown {
            true => self.waits = true,
            false => core.openers.push_back(self.id),
        }
    }

    /// Returns the permission bits for creating the file: those of the replaced file if they cannot
    /// be set afterwards, otherwise those of the source.
    pub(super) fn mode_to_open_with(&self, core: &LaneContext) -> u32 {
        let source = self.attempt.meta.attributes.mode.unwrap_or(0o666) & 0o777;
        match self.target {
            UploadTarget::Existing(ReplacedAttributes {
                mode: Some(mode), ..
            }) if core.refusals.attributes && !self.options.preserve => mode,
            _ => source,
        }
    }

    /// Handles a refused OPEN.
    pub(super) fn open_refused(&mut self, core: &LaneContext, status: &Status) {
        // The temporary belongs to other jobs; the job that renames it also removes it.
        match self.part {
            UploadPart::Range { .. } | UploadPart::Finish { .. } | UploadPart::Sync => {
                self.fail(refused("cannot reopen the temporary file", status));
                return;
            }
            UploadPart::Whole { .. } | UploadPart::Head { .. } => {}
        }
        if self.probing {
            self.probing = false;
            match status.code {
                StatusCode::PERMISSION_DENIED => self.fail_remote(READ_ONLY),
                _ => self.fail(refused(CREATING, status)),
            }
            return;
        }
        self.attempt.temp = None;
        // OpenSSH knows every flag, and reports a full disk as FAILURE.
        let known = core.server.in_order;
        let exclusive = !self.unexclusive && !core.refusals.exclusive;
        let in_temp_dir = self.options.temp_dir.is_some();
        match (self.target, status.code) {
            (UploadTarget::Direct(_), _) => self.fail(refused(CREATING, status)),
            (_, StatusCode::OP_UNSUPPORTED) if exclusive => self.create_plainly(),
            (_, StatusCode::FAILURE) if self.tries < NAME_TRIES => {
                self.tries += 1;
                self.again(RetryReason::NewName);
            }
            (_, StatusCode::FAILURE | StatusCode::NO_SUCH_FILE) if known => {
                let what = match in_temp_dir {
                    true => CREATING_IN_TEMP_DIR,
                    false => CREATING,
                };
                self.fail(refused(what, status));
            }
            // The user wants no file that is written under its final name.
            (_, StatusCode::PERMISSION_DENIED | StatusCode::NO_SUCH_FILE) if in_temp_dir => {
                self.fail(refused(CREATING_IN_TEMP_DIR, status));
            }
            // Overwriting the old file would only truncate it.
            _ if messages::says_full(status) => self.fail(refused(CREATING, status)),
            (_, StatusCode::FAILURE | StatusCode::BAD_MESSAGE) if exclusive && !known => {
                self.create_plainly();
            }
            _ if in_temp_dir => self.fail(refused(CREATING_IN_TEMP_DIR, status)),
            // The server may admit the final name but no others, or an existing file in a directory
            // that is not writable: scp would have overwritten it.
            _ => {
                self.refused_temp = Some(status.clone());
                self.again(RetryReason::InPlace);
            }
        }
    }

    /// Repeats OPEN without EXCL, which not every server supports. The name is random.
    fn create_plainly(&mut self) {
        self.unexclusive = true;
        self.again(RetryReason::NewName);
    }

    /// Handles a successful OPEN.
    pub(super) fn open_allowed(&mut self, core: &mut LaneContext) {
        if self.attempt.temp.is_some() && self.unexclusive {
            let found = Refusals {
                exclusive: true,
                ..Refusals::default()
            };
            core.learn(self.id, found, "");
        }
        let Some(status) = self.refused_temp.take() else {
            return;
        };
        // If the file exists, the server may admit only this name because the directory is not
        // writable.
        let fresh = self.missing || self.options.fresh;
        let at = self
            .path
            .iter()
            .rposition(|b| *b == b'/')
            .map_or(0, |at| at + 1);
        if fresh && self.path.len() - at <= SHORT_NAME {
            let found = Refusals {
                temporaries: true,
                ..Refusals::default()
            };
            core.learn(self.id, found, &status.to_string());
        } else {
            self.warn(
                core,
                &messages::in_place("cannot create a temporary file in its directory", &status),
            );
        }
    }

    /// Handles a refusal to set permissions and times.
    pub(super) fn attributes_refused(&mut self, core: &mut LaneContext, status: &Status) {
        let found = Refusals {
            attributes: true,
            ..Refusals::default()
        };
        core.learn(self.id, found, "");
        let why = status.to_string();
        if self.options.preserve {
            let parts = Parts(Parts::MODE.0 | Parts::TIMES.0);
            return core.not_kept(self.id, vec![(parts, why)]);
        }
        let UploadTarget::Existing(ReplacedAttributes {
            mode: Some(was), ..
        }) = self.target
        else {
            return;
        };
        let has = match self.part {
            UploadPart::Finish { .. } => self.attempt.meta.attributes.mode.unwrap_or(0o666) & 0o777,
            _ => self.attempt.mode,
        };
        // Replacing a file must not make it readable for others: it is created anew with the
        // permissions of the old one.
        let wider = has & !was != 0 && matches!(self.part, UploadPart::Whole { .. });
        if wider {
            self.again(RetryReason::NewName);
        } else if has != was {
            core.not_kept(self.id, vec![(Parts::MODE, why)]);
        }
    }

    /// Starts over once pending requests are answered.
    fn again(&mut self, redo: RetryReason) {
        if self.fault.is_none() {
            self.redo.get_or_insert(redo);
        }
    }

    fn on_replace(&mut self, core: &mut LaneContext, reply: &Reply) {
        let Some(mut replace) = self.attempt.replace.take() else {
            return;
        };
        let atomic = replace.is_atomic();
        match replace.on_reply(core, self.id, reply) {
            ReplaceProgress::Goes => {
                self.pending += 1;
                if let Some(old) = replace.moves_aside() {
                    if !std::mem::replace(&mut self.attempt.aside, true) {
                        core.event(LaneEvent::Path(self.id, old.to_vec()));
                    }
                } else {
                    self.is_not_aside(core);
                }
                self.attempt.replace = Some(replace);
            }
            ReplaceProgress::Done { left } => {
                self.attempt.temp = None;
                if self.syncs_name(core) && !atomic {
                    let path = self.path.clone();
                    self.sync_name(core, &path);
                }
                if let Some(old) = left {
                    self.warn(core, &messages::old_is_left(&old));
                }
            }
            ReplaceProgress::Refused {
                status,
                temp,
                always,
            } => {
                self.attempt.temp = Some(temp);
                self.attempt.renaming = false;
                self.is_not_aside(core);
                self.rename_refused(core, &status, always);
            }
            ReplaceProgress::Stranded { status, old, temp } => {
                self.attempt.temp = None;
                let mut fault = refused(RENAMING, &status);
                let (old, temp) = (sftp::printable(&old, 4096), sftp::printable(&temp, 4096));
                let text = format!("; the old file is now {old}, the new one {temp}");
                fault.what.push_str(&text);
                self.fail(fault);
            }
        }
    }

    fn is_not_aside(&mut self, core: &mut LaneContext) {
        if std::mem::take(&mut self.attempt.aside) {
            core.event(LaneEvent::Path(self.id, Vec::new()));
        }
    }

    /// Handles a refused rename: the new file is complete under its temporary name, and the old one
    /// unchanged.
    fn rename_refused(&mut self, core: &mut LaneContext, status: &Status, always: bool) {
        if self.is_link || messages::says_full(status) {
            return self.fail(refused(RENAMING, status));
        }
        if self.options.temp_dir.is_some() {
            return self.fail(refused(RENAMING_FROM_TEMP_DIR, status));
        }
        if always {
            let found = Refusals {
                renames: true,
                ..Refusals::default()
            };
            core.learn(self.id, found, &status.to_string());
        } else {
            self.warn(
                core,
                &messages::in_place("cannot rename the temporary file to its name", status),
            );
        }
        match self.part {
            // The scheduler has the file written anew.
            UploadPart::Finish { .. } => self.abandoned = true,
            _ => self.again(RetryReason::InPlace),
        }
    }

    /// Renames the file after all data are confirmed and it is closed.
    pub(super) fn name(&mut self, core: &mut LaneContext) -> TaskStep {
        let Some(temp) = self.attempt.temp.clone() else {
            return self.done(core);
        };
        let (from, to) = (temp.as_slice(), self.path.clone());
        let to = to.as_slice();
        let owner = self.keep_owner(core, from);
        if let UploadTarget::Existing(ReplacedAttributes {
            mode: Some(mode), ..
        }) = self.target
            && !self.attempt.mode_set
            && !core.refusals.attributes
        {
            // The LSTAT's answer came after FSETSTAT was sent.
            self.attempt.mode_set = true;
            let attrs = Attrs::with_permissions(mode);
            self.send(
                core,
                RequestTag::Mode,
                &Request::Setstat { path: from, attrs },
            );
        } else if owner {
            // The answer decides the next step.
        } else {
            self.attempt.renaming = true;
            let replaces = self.is_link || matches!(self.target, UploadTarget::Existing(_));
            let replace = Replace::begin(core, self.id, (from, to), replaces);
            self.pending += 1;
            self.attempt.replace = Some(replace);
            if core.server.posix_rename && self.syncs_name(core) {
                self.sync_name(core, to);
            }
        }
        TaskStep::Goes
    }

    /// Closes the file, waits for all answers and removes the temporary; then fails or starts over.
    pub(super) fn give_up(&mut self, core: &mut LaneContext) -> TaskStep {
        self.release_prefetch(core);
        // Unsent data are useless, and sending them takes long on a slow path.
        let withdrawn = core.withdraw_writes(self.id);
        self.pending -= withdrawn;
        self.attempt.writes = self.attempt.writes.saturating_sub(withdrawn);
        if !self.attempt.opening || core.server.predict {
            self.close(core);
        }
        if self.pending > 0 || self.disk_pending > 0 {
            return TaskStep::Goes;
        }
        self.forget_reads(core);
        if let (true, false, Some(path)) = (
            self.attempt.opened || matches!(self.part, UploadPart::Finish { .. }),
            self.attempt.removing,
            self.attempt.temp.clone(),
        ) {
            self.attempt.removing = true;
            self.send(
                core,
                RequestTag::RemoveTemp,
                &Request::Remove { path: &path },
            );
            return TaskStep::Goes;
        }
        if let Some(mut fault) = self.fault.take() {
            if self.spoiled() {
                fault
                    .what
                    .push_str("; the file is incomplete, because it was written in place");
            }
            core.event(LaneEvent::Failed(self.id, fault));
            return TaskStep::Over;
        }
        if self.abandoned {
            core.event(LaneEvent::Abandoned(self.id));
            return TaskStep::Over;
        }
        self.begin_again(core)
    }

    fn begin_again(&mut self, core: &mut LaneContext) -> TaskStep {
        let in_place = matches!(
            self.redo,
            Some(RetryReason::Direct(_) | RetryReason::InPlace)
        );
        if in_place && self.is_link {
            let text = "cannot replace the symlink: the server refuses a temporary file in its \
                 directory";
            core.event(LaneEvent::Failed(self.id, messages::remote(text)));
            return TaskStep::Over;
        }
        if in_place && matches!(self.part, UploadPart::Head { .. }) {
            core.event(LaneEvent::Done(self.id));
            return TaskStep::Over;
        }
        match self.redo.take() {
            Some(RetryReason::Follow) => {
                self.attempt = Attempt::default();
                self.hops += 1;
                self.target = UploadTarget::Unknown;
                // Kept until both answers have come; then the next attempt starts.
                self.redo = Some(RetryReason::NewName);
                let path = self.path.clone();
                self.send(core, RequestTag::Follow, &Request::Stat { path: &path });
                self.send(
                    core,
                    RequestTag::Resolve,
                    &Request::Realpath { path: &path },
                );
            }
            Some(RetryReason::Probe) => {
                self.probing = true;
                self.attempt = Attempt {
                    first: Some(Block::default()),
                    end: Some(0),
                    ..Attempt::default()
                };
                core.openers.push_back(self.id);
            }
            Some(redo) => {
                let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
                match (redo, self.target) {
                    (RetryReason::Direct(flags), _) => self.target = UploadTarget::Direct(flags),
                    (RetryReason::InPlace, UploadTarget::Existing(_)) => {
                        self.target = UploadTarget::Direct(flags)
                    }
                    (RetryReason::InPlace, _) => {
                        self.target = UploadTarget::Direct(flags | OpenFlags::CREAT)
                    }
                    _ => {}
                }
                self.attempt = Attempt::default();
                self.start(core);
            }
            None => {}
        }
        TaskStep::Goes
    }

    /// Reports a temporary that could not be removed.
    fn left_behind(&mut self, core: &mut LaneContext) {
        let Some(temp) = &self.attempt.temp else {
            return;
        };
        let name = sftp::printable(temp, 4096);
        let text = format!("cannot remove the temporary file {name}");
        match &mut self.fault {
            Some(fault) => fault.what.push_str(&format!("; {text}")),
            None => core.event(LaneEvent::Warning(self.id, text)),
        }
    }

    /// Returns the temporary that may exist now.
    pub(super) fn temporary(&self) -> Option<(JobId, &[u8])> {
        let stays = matches!(self.part, UploadPart::Finish { .. });
        let temp = self.attempt.temp.as_deref().filter(|_| !stays)?;
        Some((self.id, temp))
    }
}
