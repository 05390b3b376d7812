//! `--verify` and `--manifest`: compares the data that passed with the files at the far end.

mod early;
mod file_check;
mod list_program;
mod longhaul_sums;
mod remote_sums;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use schedule::{FileCopyOptions, Job, JobFailure, JobId, JobKind, RemotePath};

pub(super) use self::early::ChecksumRequest;
use self::early::{EarlyChecksumFile, EarlyChecksumFiles};
use self::file_check::{CheckedFile, FileCheck};
use self::remote_sums::RemoteSumRequests;
use super::CopyOptions;
use super::context::CopyContext;
use super::file::{ActiveFiles, CopyFileId, FileTask};
use super::jobs::JobPurpose;
use super::local_file_ops::ReadAt;
use super::sides::CopySide;
use crate::disk::{ReadBackCheck, os_words};
use crate::report::{CopyEvent, EscapedName, VerifyResult};
use crate::session::RemoteCommandId;
use crate::sums::{ChecksumLedger, FileChecksums, FinishedSums, Manifest};
use crate::walk::local_path;

/// Number of files waiting for comparison at which starting further files is paused.
const MOST_WAITING: usize = 16 << 10;
/// Number of files read back at the same time.
const READ_BACK: usize = 8;
/// Rate in bytes per second and processor of the far end up to which ranges are summed during the
/// copy. A core sums ranges at about 1 GB/s through a pipe, and a whole file at 7 GB/s without one.
const EARLY_RATE: f64 = 64e6;
/// Largest number of times that a file is copied again.
const REPEATS: u8 = 2;

/// State of the files between copy and verification.
pub(super) struct Verification {
    ledger: Option<Arc<ChecksumLedger>>,
    wanted: bool,
    manifest: Option<Manifest>,
    files: BTreeMap<CopyFileId, FileCheck>,
    /// Files that are being copied.
    moving: EarlyChecksumFiles,
    outcomes: VecDeque<VerifyOutcome>,
    far: RemoteSumRequests,
    /// Number of files being read back.
    reading: usize,
    next_exec: u64,
    /// Arrival time of the first bytes, and the bytes since then.
    pace: Option<(Instant, u64)>,
}

/// Consequence of a comparison, or of the lack of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum VerifyOutcome {
    /// The file is right, or was not to be compared.
    Verified(CopyFileId),
    /// The file is complete under its final name, and the run ends before its comparison.
    NotVerified(CopyFileId),
    /// The file failed at this end.
    Failed(CopyFileId, CopySide, String),
    /// The file differs from its source and is copied again.
    CopyAgain(CopyFileId),
}

impl Verification {
    pub(super) fn new(options: &CopyOptions, ledger: Option<Arc<ChecksumLedger>>) -> Self {
        Self {
            wanted: options.verify && ledger.is_some(),
            ledger,
            manifest: None,
            files: BTreeMap::new(),
            moving: EarlyChecksumFiles::default(),
            outcomes: VecDeque::new(),
            far: RemoteSumRequests::default(),
            reading: 0,
            next_exec: 1,
            pace: None,
        }
    }

    /// True if checksums of files are needed.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted || self.manifest.is_some()
    }

    /// Sums for a file that no session's disk threads copy.
    pub(super) fn sums(&self) -> Option<Arc<FileChecksums>> {
        self.ledger
            .as_ref()
            .map(|ledger| FileChecksums::new(ledger))
    }

    pub(super) fn has_room(&self) -> bool {
        self.files.len() < MOST_WAITING
    }

    /// True if no file is being compared.
    pub(super) fn is_quiet(&self) -> bool {
        self.files.is_empty()
    }

    /// Time by which the far end must answer.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let waits = !self.is_quiet() || !self.moving.is_empty();
        self.far.deadline().filter(|_| waits)
    }

    /// Notes that `bytes` more have arrived at their target.
    pub(super) fn note_progress(&mut self, now: Instant, bytes: u64) {
        let (_, moved) = self.pace.get_or_insert((now, 0));
        *moved += bytes;
    }

    /// True if processors limit the copy, so that checksums of whole files are cheaper than those
    /// of ranges, which need a pipe.
    fn compares_whole(&self, now: Instant) -> bool {
        let Some((since, moved)) = self.pace else {
            return false;
        };
        // A longhaul sums ranges without a pipe.
        if self.far.program().is_some_and(|program| program.is_ours()) {
            return false;
        }
        let took = now.saturating_duration_since(since);
        let took = took.as_secs_f64().max(0.001);
        let most = EARLY_RATE * f64::from(self.far.processors());
        let whole = moved as f64 / took > most;
        if let Some(ledger) = self.ledger.as_ref().filter(|_| whole) {
            ledger.choose_whole();
        }
        whole
    }

    /// Resets the state at the end of a session.
    pub(super) fn end(&mut self) {
        self.far = RemoteSumRequests::default();
        self.moving.clear();
        if let Some(ledger) = &self.ledger {
            ledger.choose(None);
        }
    }

    fn exec_id(&mut self) -> RemoteCommandId {
        self.next_exec += 1;
        RemoteCommandId(self.next_exec)
    }
}

impl Verification {
    /// Opens the manifest. Returns false, after reporting it, on failure.
    pub(super) fn begin_manifest(&mut self, context: &mut CopyContext<'_>) -> bool {
        if self.wanted {
            context.summary_mut().verified = Some(VerifyResult::default());
        }
        let Some(path) = &context.options().manifest else {
            return true;
        };
        match Manifest::create(path) {
            Ok(manifest) => self.manifest = Some(manifest),
            Err(e) => {
                let what = format!("cannot write the manifest: {}", os_words(&e));
                context.fail(None, EscapedName::from(path.as_path()), what);
                return false;
            }
        }
        true
    }

    pub(super) fn end_manifest(&mut self, context: &mut CopyContext<'_>) {
        if let (Some(manifest), Some(path)) = (self.manifest.take(), &context.options().manifest)
            && let Err(e) = manifest.finish()
        {
            let what = format!("cannot write the manifest: {}", os_words(&e));
            context.fail(None, EscapedName::from(path.as_path()), what);
        }
    }

    /// Takes the checksums of a finished job.
    pub(super) fn take_sums(&self, job: JobId) -> Option<Arc<FileChecksums>> {
        self.ledger.as_ref()?.take(job)
    }

    /// Verifies a file that has its final name.
    pub(super) fn verify_file(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
    ) {
        let Some(ledger) = self.ledger.clone() else {
            return self.outcomes.push_back(VerifyOutcome::Verified(id));
        };
        if self.wanted && context.stopped() {
            // Nothing is asked any more, so it would wait for its comparison for ever.
            return self.not_verified(context, id);
        }
        let local = context.local();
        let sums = task.take_sums();
        let mut seen = sums.as_ref().map(|sums| sums.finish()).unwrap_or_default();
        // An earlier run may have sent other parts of the file, or all of it.
        seen.grow_to(task.confirmed());
        let here = match (context.source_is_remote(), context.target_is_remote()) {
            (false, _) => Some(local_path(task.source())),
            (true, false) => Some(local_path(task.target())),
            (true, true) => None,
        };
        let (source, target) = (task.source().to_vec(), task.target().to_vec());
        let completed = match &here {
            Some(path) => {
                let file = local.reader(path);
                let complete = |file: Box<dyn ReadAt>| seen.complete(&*file, &ledger);
                file.and_then(complete).map_err(|e| os_words(&e))
            }
            None if !seen.holes().is_empty() => Err(
                "some of the file was not transferred in this run, so its checksum is unknown"
                    .to_owned(),
            ),
            None => Ok(()),
        };
        let lacks = self.manifest.is_some() && seen.manifest_digest().is_none();
        let completed = completed.and_then(|()| match lacks {
            true => Err(
                "its parts were transferred out of order, so the manifest's checksum is unknown"
                    .to_owned(),
            ),
            false => Ok(()),
        });
        if let Err(what) = completed {
            return self.failed(
                id,
                CopySide::Target,
                format!("cannot compute the checksum of the copy: {what}; copy the file again"),
            );
        }
        if !self.wanted {
            return self.verified(context, id, &CheckedFile::of(task), &seen);
        }
        let (attempt, told, whole) = self.moving.copied(id, sums.as_ref());
        let path = match context.far_end() {
            Some(CopySide::Source) => source,
            _ => target,
        };
        let file = CheckedFile::of(task);
        let checking = FileCheck::new(file, path, seen, attempt, told, whole);
        self.files.insert(id, checking);
        let far = context.far_end();
        if let Some(verified) = &mut context.summary_mut().verified {
            verified.download |= far == Some(CopySide::Source);
        }
        match far {
            Some(_) => self.far.queue(id),
            None => self.read_here(context, id),
        }
    }

    /// Completes a file whose verification succeeded or was not wanted.
    fn verified(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        file: &CheckedFile,
        seen: &FinishedSums,
    ) {
        if let (Some(manifest), Some(digest)) = (&mut self.manifest, seen.manifest_digest())
            && let Err(e) = manifest.add(digest, &file.target)
        {
            self.manifest = None;
            let path = context.options().manifest.clone().unwrap_or_default();
            let what = format!("cannot write the manifest: {}", os_words(&e));
            context.fail(None, EscapedName::from(path.as_path()), what);
        }
        if let Some(verified) = &mut context.summary_mut().verified {
            verified.files += 1;
            verified.repaired += u64::from(file.was_repaired);
        }
        self.outcomes.push_back(VerifyOutcome::Verified(id));
    }

    /// Completes a file whose checksums at the far end match.
    fn is_right(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        if let Some(checking) = self.files.remove(&id) {
            if checking.was_read_back()
                && let Some(verified) = &mut context.summary_mut().verified
            {
                verified.read_back += 1;
            }
            self.verified(context, id, checking.file(), checking.seen());
        }
    }

    /// Verifies a local copy by reading the target again.
    fn read_here(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        let Some(checking) = self.files.get_mut(&id) else {
            return;
        };
        let Some(check) = checking.begin_check() else {
            return self.unverified(
                id,
                CopySide::Target,
                "no checksum was computed during the transfer",
            );
        };
        let path = local_path(checking.path());
        let file = context.local().reader(&path);
        match file.and_then(|file| feed(&*file, &check)) {
            Ok(()) => self.judge_read_back(context, id),
            Err(e) => self.unverified(id, CopySide::Target, &os_words(&e)),
        }
    }

    /// Verifies a file by reading it back over SFTP.
    fn read_back(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        let Some(end) = context.far_end() else { return };
        let found = self.files.get_mut(&id);
        let Some(checking) = found.filter(|c| !c.is_read_back()) else {
            return;
        };
        let Some(check) = checking.begin_check() else {
            return self.unverified(id, end, "no checksum was computed during the transfer");
        };
        let kind = JobKind::Get {
            source: RemotePath(checking.path().to_vec()),
            target: schedule::LocalTargetPath::default(),
            known: None,
            options: FileCopyOptions::default(),
        };
        self.reading += 1;
        let submitted = context.submit_with(end, JobPurpose::Check(id), |session, id| {
            session.submit_check(Job { id, kind }, check);
        });
        if submitted.is_none() {
            self.reading -= 1;
            self.unverified(id, end, "the command ended before the copy was read back");
        }
    }

    /// Handles the end of reading back.
    pub(super) fn on_read_back(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        result: Result<(), JobFailure>,
    ) {
        self.reading = self.reading.saturating_sub(1);
        let end = context.far_end().unwrap_or(CopySide::Target);
        let Some(checking) = self.files.get(&id) else {
            return;
        };
        let longer = checking.check().is_some_and(|check| check.is_longer());
        match result {
            Err(fault) if !longer => self.unverified(id, end, &fault.what),
            _ => self.judge_read_back(context, id),
        }
    }

    fn judge_read_back(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        let Some(checking) = self.files.get(&id) else {
            return;
        };
        let Some(wrong) = checking.check().map(|check| check.wrong()) else {
            return;
        };
        tracing::debug!(
            "read back: {} of {} checksums differ",
            wrong.len(),
            checking.seen().runs().len()
        );
        let Some((from, len)) = wrong.first().copied() else {
            // A longhaul reads the same file that SFTP shows, so there the file was modified
            // between the two.
            let ours = |program: crate::sums::SumProgram| program.is_ours();
            if checking.differs() && !self.far.program().is_some_and(ours) {
                let path = checking.path().to_vec();
                let why = "the checksum program at the far end reads a different file than the \
                           SFTP server shows";
                self.no_program(context, why);
                let path = EscapedName(path);
                context.warn(Some(path), format!("{why}: reading files back instead"));
            }
            return self.is_right(context, id);
        };
        if let Some(checking) = self.files.remove(&id) {
            self.is_wrong(context, id, checking.file(), (from, len));
        }
    }

    fn is_wrong(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        file: &CheckedFile,
        (from, len): (u64, u64),
    ) {
        let again = file.repeats < REPEATS;
        let path = match context.far_end() {
            Some(CopySide::Source) => file.source_name.clone(),
            _ => context.shown(CopySide::Target, &file.target),
        };
        context.tell(CopyEvent::Mismatch {
            id: id.0,
            path,
            from,
            len,
            again,
        });
        if again {
            return self.outcomes.push_back(VerifyOutcome::CopyAgain(id));
        }
        let end = from + len;
        let copies = REPEATS + 1;
        self.failed(
            id,
            CopySide::Target,
            format!(
                "verification failed: bytes {from} to {end} differ from the source after {copies} \
                 copies; check the disks and memory of both ends"
            ),
        );
    }

    fn unverified(&mut self, id: CopyFileId, end: CopySide, what: &str) {
        self.files.remove(&id);
        let what = format!("copied, but cannot be verified: {what}; copy it again");
        self.failed(id, end, what);
    }

    fn failed(&mut self, id: CopyFileId, end: CopySide, what: String) {
        self.outcomes
            .push_back(VerifyOutcome::Failed(id, end, what));
    }

    /// Ends all comparisons when the run ends early.
    pub(super) fn stop(&mut self, context: &mut CopyContext<'_>) {
        self.far = RemoteSumRequests::default();
        self.moving.clear();
        for id in std::mem::take(&mut self.files).into_keys() {
            self.not_verified(context, id);
        }
    }

    /// Ends a copied file without its comparison, because the run ends.
    fn not_verified(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        if let Some(verified) = &mut context.summary_mut().verified {
            verified.unverified += 1;
        }
        self.outcomes.push_back(VerifyOutcome::NotVerified(id));
    }

    fn note_reason(context: &mut CopyContext<'_>, why: &str) {
        if let Some(verified) = &mut context.summary_mut().verified {
            verified.reason.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Takes the next consequence of a comparison, which is to be carried out.
    pub(super) fn next_outcome(&mut self) -> Option<VerifyOutcome> {
        self.outcomes.pop_front()
    }

    /// Drops a file that is no longer being copied.
    pub(super) fn forget(&mut self, id: CopyFileId) {
        self.moving.forget(id);
    }

    /// Returns the file of `job` and the data that has passed, if checksums can be requested.
    fn moving(
        &mut self,
        context: &CopyContext<'_>,
        job: JobId,
    ) -> Option<(CopyFileId, &mut EarlyChecksumFile)> {
        if !self.wanted || self.far.is_given_up() {
            return None;
        }
        let id = moving_file(context, job)?;
        let sums = self.ledger.as_ref()?.get(job)?;
        Some((id, self.moving.of(id, sums)))
    }

    /// Notes the temporary that the far end writes for `job`.
    pub(super) fn note_temporary(&mut self, context: &CopyContext<'_>, job: JobId, path: &[u8]) {
        if let Some((_, moving)) = self.moving(context, job) {
            moving.has_temporary(path);
        }
    }

    /// Requests checksums of bytes that are stored at the target, with no unanswered writes to
    /// their range.
    pub(super) fn verify_early(
        &mut self,
        context: &mut CopyContext<'_>,
        files: &ActiveFiles,
        job: JobId,
        (from, to): (u64, u64),
    ) {
        let upload = context.far_end() == Some(CopySide::Target);
        // A file that ends in a hole gets its length last, and a program would find less than was
        // skipped.
        if upload && context.options().sparse {
            return;
        }
        self.find_ours(context);
        let by_whole = self.compares_whole(context.now());
        let size = moving_file(context, job).and_then(|id| files.get(&id)?.size());
        let Some((file, moving)) = self.moving(context, job) else {
            return;
        };
        if upload && !moving.is_readable() {
            return;
        }
        let asks = match moving.stored((from, to), by_whole, size.unwrap_or(0)) {
            true => moving.ask_ranges(file, from, to),
            // A source is complete from the start. A target's whole checksum is requested at its
            // end.
            false if upload => Vec::new(),
            false => moving.ask_whole(file).into_iter().collect(),
        };
        asks.into_iter().for_each(|ask| self.far.want(ask));
    }
}

/// File that `job` copies from or to the end at which files are read again.
fn moving_file(context: &CopyContext<'_>, job: JobId) -> Option<CopyFileId> {
    match context.jobs().get(&job)? {
        (end, JobPurpose::File(id, _)) if Some(*end) == context.far_end() => Some(*id),
        _ => None,
    }
}

fn feed(file: &dyn ReadAt, check: &ReadBackCheck) -> io::Result<()> {
    let mut part = vec![0; 256 << 10];
    let mut at = 0;
    loop {
        match file.read_at(at, &mut part)? {
            0 => return Ok(()),
            n => {
                check.take(&part[..n]);
                at += n as u64;
            }
        }
    }
}
