//! Drives a file that is cut over lanes through its stages.

use super::file::{AfterDisk, SplitFile, SplitStage};
use super::spans::ByteRanges;
use super::split_record::NOT_CONTINUED;
use super::{Assigned, LaneOrder, Queued, Scheduler, SchedulerEvent};
use crate::{DiskReply, DiskRequest, Fault, FileMeta, FileState, JobId, JobKind, LaneEvent};

impl Scheduler {
    pub(super) fn on_disk(&mut self, reply: DiskReply) {
        let id = reply.job();
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match reply {
            // The job may have been given up already.
            DiskReply::Opened { .. } | DiskReply::Created { .. } | DiskReply::Adopted { .. }
                if file.stage != SplitStage::Opening => {}
            DiskReply::Opened { meta, .. } => self.on_opened(id, meta),
            DiskReply::Adopted { .. } => self.on_adopted(id),
            DiskReply::Synced { mtime, .. } => self.on_disk_synced(id, mtime),
            DiskReply::Created { seekable, .. } => {
                file.seekable = seekable;
                let keep = file.options_ref().and_then(|o| o.keep.as_ref());
                if keep.is_some_and(|keep| keep.left.is_some()) {
                    self.tell_restarted(id);
                }
                self.state(id, FileState::Created);
                self.begin_moving(id);
            }
            DiskReply::Finished { stored, .. } => {
                file.held = false;
                let renamed = !stored.in_place;
                stored.events(id).for_each(|event| self.tell(event));
                self.on_named(id, renamed);
            }
            DiskReply::Released { .. } => {
                file.held = false;
                self.go_on(id);
            }
            DiskReply::Failed { fault, .. } => {
                file.fail(fault);
                if file.stage == SplitStage::Naming && !file.is_put() {
                    file.stage = SplitStage::GivingUp;
                }
                self.go_on(id);
            }
            _ => {}
        }
    }

    fn on_opened(&mut self, id: JobId, meta: FileMeta) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.attributes = meta.attributes;
        let small = file.size() < self.options.split_from;
        if (small || meta.stream) && file.stage == SplitStage::Opening {
            self.do_whole(id);
            return;
        }
        let keep = file.options_ref().and_then(|o| o.keep.as_ref());
        let left = keep.and_then(|keep| keep.left.as_ref());
        // The source has changed since the earlier run; a mix of both versions must not result.
        let changed = left.is_some_and(|left| !left.is_of(&meta.attributes));
        self.tell(LaneEvent::Attributes(id, meta.attributes));
        if changed {
            self.leave_aside(id);
        }
        if !self.ask_to_adopt(id) {
            self.begin_moving(id);
        }
    }

    pub(super) fn begin_moving(&mut self, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if file.stage == SplitStage::Opening {
            file.stage = SplitStage::Moving;
            self.stats.cut += 1;
        }
        self.go_on(id);
    }

    pub(super) fn on_part(&mut self, id: JobId, part: JobId, event: LaneEvent) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::Progress(_, n) => {
                if let Some(running) = file.running.get_mut(&part) {
                    running.progress += n;
                }
                self.tell_news(id);
            }
            LaneEvent::Written(_, offset, len) => self.on_written(id, offset, len),
            LaneEvent::Temp(_, temp) => {
                file.temp = Some(temp.clone());
                self.tell(LaneEvent::Temp(id, temp));
                self.state(id, FileState::Created);
                self.go_on(id);
            }
            LaneEvent::Ended(_, at) => {
                file.ends(at);
                self.go_on(id);
            }
            LaneEvent::Attributes(_, seen) => {
                let same = (file.attributes.size, file.attributes.times.map(|t| t.1))
                    == (seen.size, seen.times.map(|t| t.1));
                let first = !std::mem::replace(&mut file.seen, true);
                if first && (same || !file.keeping.adopted) {
                    file.attributes.size = seen.size.or(file.attributes.size);
                    file.attributes.mode = seen.mode.or(file.attributes.mode);
                    file.attributes.times = seen.times.or(file.attributes.times);
                    file.attributes.nanoseconds = seen.nanoseconds.or(file.attributes.nanoseconds);
                } else if !same && file.stage == SplitStage::Moving {
                    // Parts of two versions must not be mixed. One lane that opens the file once
                    // reads one version.
                    self.do_whole(id);
                }
            }
            LaneEvent::NotKept(_, parts, why) => self.tell(LaneEvent::NotKept(id, parts, why)),
            LaneEvent::Refused(_, found, why) => self.tell(LaneEvent::Refused(id, found, why)),
            LaneEvent::Done(_) => {
                file.set |= file.alone == Some(part);
                let part = file.part_over(part, true);
                // No temporary can be created for this target.
                if file.is_put() && file.temp.is_none() && file.stage == SplitStage::Moving {
                    file.safe = ByteRanges::default();
                    self.do_whole(id);
                    return;
                }
                self.tell_news(id);
                self.tell_safe(id, part.map(|part| part.from));
                self.go_on(id);
            }
            LaneEvent::Abandoned(_) => {
                let part = file.part_over(part, false);
                self.tell_safe(id, part.map(|part| part.from));
                self.go_on(id);
            }
            // A server that takes data in order only, as into an object store, continues no file.
            LaneEvent::Failed(_, fault) if file.starts_anew_after(&fault) => {
                file.part_over(part, false);
                self.tell(LaneEvent::Warning(id, NOT_CONTINUED.to_owned()));
                self.do_whole(id);
            }
            // Even if others have completed the range: no request of a file may have been refused
            // when it gets its name.
            LaneEvent::Failed(_, fault) => {
                file.part_over(part, false);
                match file.stage {
                    SplitStage::Moving => self.fail_file(id, fault),
                    _ => self.go_on(id),
                }
            }
            _ => {}
        }
    }

    pub(super) fn tell_news(&mut self, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let news = match file.stage {
            SplitStage::Moving => file.news(),
            _ => 0,
        };
        if news > 0 {
            self.tell(LaneEvent::Progress(id, news));
        }
    }

    /// Reports the settled range around `offset` after a part has ended.
    fn tell_safe(&mut self, id: JobId, offset: Option<u64>) {
        let file = self
            .files
            .get(&id)
            .filter(|f| f.stage == SplitStage::Moving);
        let settled = file.and_then(|f| f.settled(self.now, offset?));
        if let Some((from, to)) = settled {
            self.tell(LaneEvent::Safe(id, from, to));
        }
    }

    fn state(&mut self, id: JobId, state: FileState) {
        self.tell(LaneEvent::State(id, state));
    }

    /// Moves a file to its next stage, if nothing is pending.
    pub(super) fn go_on(&mut self, id: JobId) {
        self.dirty = true;
        self.abandon_needless(id);
        let now = self.now;
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if !file.running.is_empty() {
            return;
        }
        match file.stage {
            SplitStage::Moving if file.is_complete() && file.late.is_over(now) => self.name(id),
            SplitStage::GivingUp => self.clean(id),
            SplitStage::Cleaning(then) if !file.held => self.over(id, then),
            _ => {}
        }
    }

    /// Abandons parts whose bytes others have completed, and all parts of a file that is given up.
    fn abandon_needless(&mut self, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let (end, moving) = (file.end, file.stage == SplitStage::Moving);
        // Without its temporary even an empty file is not complete.
        let made = !file.is_put() || file.temp.is_some();
        for (part, running) in &mut file.running {
            let to = running.to.min(end.unwrap_or(u64::MAX));
            // Only the last part can tell the end of the file.
            let needed = end.is_none() && running.to == u64::MAX;
            let done = made && !needed && file.safe.contains(running.from, to);
            if (done || !moving) && !running.abandoned {
                running.abandoned = true;
                self.orders
                    .push_back(LaneOrder::Abandon(running.lane, *part));
            }
        }
    }

    /// Starts the rename: all bytes are there and every part has ended.
    fn name(&mut self, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let shrank = file.end.unwrap_or(0) < file.size();
        if shrank && !file.is_put() {
            // One lane that opens the file once asks for its size again.
            return self.do_whole(id);
        }
        file.stage = SplitStage::Naming;
        if file.is_kept() {
            // After the rename, the file is found again only if all ranges were reported.
            self.tell_written();
        }
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let end = file.end.unwrap_or(0);
        let news = file.tell_up_to(end);
        let put = file.is_put();
        if news > 0 {
            self.tell(LaneEvent::Progress(id, news));
        }
        if shrank {
            let text = "the file was truncated while it was read".to_owned();
            self.tell(LaneEvent::Warning(id, text));
        }
        if put {
            self.state(id, FileState::Written);
            self.state(id, FileState::Closed);
            self.release(id);
            self.send_finish(id);
            return;
        }
        let Some(file) = self.files.get(&id) else {
            return;
        };
        let options = file.options();
        self.disk.push_back(DiskRequest::FinishTarget {
            job: id,
            size: end,
            attributes: options.kept(file.attributes),
            preserve: options.preserve,
            fsync: options.fsync || file.sync_before_name(),
            beyond: options.beyond.clone(),
        });
    }

    pub(super) fn send_finish(&mut self, id: JobId) {
        let Some(kind) = self.files.get(&id).and_then(SplitFile::finish) else {
            return;
        };
        let own = self.own_id();
        self.urgent.push_back((own, kind, Assigned::Finish(id)));
    }

    pub(super) fn on_finish(&mut self, id: JobId, event: LaneEvent) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::State(_, state) if state >= FileState::Synced => self.state(id, state),
            LaneEvent::Warning(_, text) => self.tell(LaneEvent::Warning(id, text)),
            LaneEvent::NotKept(_, parts, why) => self.tell(LaneEvent::NotKept(id, parts, why)),
            LaneEvent::Belonged(_, owner) => self.tell(LaneEvent::Belonged(id, owner)),
            LaneEvent::OtherNames(_, names) => self.tell(LaneEvent::OtherNames(id, names)),
            LaneEvent::Refused(_, found, why) => self.tell(LaneEvent::Refused(id, found, why)),
            LaneEvent::Abandoned(_) => {
                file.temp = None;
                file.write_in_place();
                file.stage = SplitStage::Cleaning(match file.fault {
                    Some(_) => AfterDisk::Fail,
                    None => AfterDisk::Whole,
                });
                self.go_on(id);
            }
            LaneEvent::Path(_, path) => self.tell(LaneEvent::Path(id, path)),
            LaneEvent::Done(_) => {
                self.files.remove(&id);
                self.tell(LaneEvent::Done(id));
            }
            LaneEvent::Failed(..) if file.finish_lost && file.fault.is_none() => self.anew(id),
            LaneEvent::Failed(_, fault) => {
                // The temporary was removed, or the error names it.
                file.temp = None;
                file.fault.get_or_insert(fault);
                file.stage = SplitStage::Cleaning(AfterDisk::Fail);
                self.go_on(id);
            }
            _ => {}
        }
    }

    /// Handles the check for a temporary whose rename was lost with its lane.
    pub(super) fn on_checked(&mut self, id: JobId, event: &LaneEvent) {
        match event {
            LaneEvent::Done(_) => self.send_finish(id),
            LaneEvent::Failed(..) => self.anew(id),
            _ => {}
        }
    }

    /// Starts the file over, since the rename of the lost lane may or may not have happened.
    fn anew(&mut self, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.finish_lost = false;
        file.temp = None;
        file.stage = SplitStage::Cleaning(match file.fault {
            Some(_) => AfterDisk::Fail,
            None => AfterDisk::Again,
        });
        self.go_on(id);
    }

    /// Completes a download whose local file has its final name.
    fn on_named(&mut self, id: JobId, renamed: bool) {
        let Some(file) = self.files.remove(&id) else {
            return;
        };
        self.state(id, FileState::Written);
        self.state(id, FileState::Closed);
        if file.options().fsync {
            self.state(id, FileState::Synced);
        }
        if renamed {
            self.state(id, FileState::Renamed);
        }
        self.tell(LaneEvent::Done(id));
    }

    pub(super) fn fail_file(&mut self, id: JobId, fault: Fault) {
        if let Some(file) = self.files.get_mut(&id) {
            // A rename in flight cannot be stopped; its answer decides.
            file.fail(fault);
            if let SplitStage::Cleaning(then) = &mut file.stage {
                *then = AfterDisk::Fail;
            }
            self.go_on(id);
        }
    }

    /// Gives up the parts so that one lane copies the whole file.
    pub(super) fn do_whole(&mut self, id: JobId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.unclaimed = ByteRanges::default();
            file.stage = SplitStage::GivingUp;
            self.go_on(id);
        }
    }

    /// Removes the temporary and closes the file, once no part is running.
    pub(super) fn clean(&mut self, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let then = match file.fault {
            Some(_) => AfterDisk::Fail,
            None => AfterDisk::Whole,
        };
        file.stage = SplitStage::Cleaning(then);
        if then == AfterDisk::Fail && file.stays(self.leaving) {
            file.temp = None;
            // Reports ranges that were answered after the cancellation, while running parts ended.
            self.tell_written();
        }
        let Some(file) = self.files.get(&id) else {
            return;
        };
        if let Some(path) = file.temporary() {
            let own = self.own_id();
            let kind = JobKind::Remove { path };
            self.urgent.push_back((own, kind, Assigned::Clean(id)));
        }
        self.release(id);
        self.go_on(id);
    }

    /// Handles the answer to the removal of the temporary.
    pub(super) fn on_cleaned(&mut self, id: JobId, event: LaneEvent) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::Done(_) => {}
            LaneEvent::Failed(_, why) => {
                let name = file.temporary().unwrap_or(crate::RemotePath(Vec::new()));
                let name = sftp::printable(&name.0, 4096);
                let text = format!("cannot remove the temporary file {name}: {}", why.what);
                match &mut file.fault {
                    Some(fault) => fault.what.push_str(&format!("; {text}")),
                    None => self.tell(LaneEvent::Warning(id, text)),
                }
            }
            _ => return,
        }
        if let Some(file) = self.files.get_mut(&id) {
            file.temp = None;
        }
        self.go_on(id);
    }

    /// Asks the disk side to close the file.
    fn release(&mut self, id: JobId) {
        if let Some(file) = self.files.get(&id)
            && file.held
        {
            let request = match file.is_put() {
                true => DiskRequest::CloseSource { job: id },
                false if file.stays(self.leaving) => DiskRequest::Leave { job: id },
                false => DiskRequest::Discard { job: id },
            };
            self.disk.push_back(request);
        }
    }

    /// Asks the disk side to close the file of a job that is no longer tracked.
    pub(super) fn let_go(&mut self, file: &SplitFile) {
        let job = file.job.id;
        self.disk.push_back(match file.is_put() {
            true => DiskRequest::CloseSource { job },
            false if self.leaving && file.is_kept() => DiskRequest::Leave { job },
            false => DiskRequest::Discard { job },
        });
    }

    fn over(&mut self, id: JobId, then: AfterDisk) {
        if self.files.get(&id).is_some_and(|f| f.temp.is_some()) {
            return;
        }
        let Some(mut file) = self.files.remove(&id) else {
            return;
        };
        file.another_name();
        if let (AfterDisk::Fail, Some(fault)) = (then, file.fault) {
            self.tell(LaneEvent::Failed(id, fault));
            return;
        }
        if file.told > 0 || then == AfterDisk::Again {
            self.events.push_back(SchedulerEvent::Restarted(id));
        }
        let queued = Queued {
            job: file.job,
            hint: file.hint,
            losses: file.losses.min(1),
            whole: then == AfterDisk::Whole,
        };
        self.queue(queued, true);
    }
}
