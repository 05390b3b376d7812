//! `--verify` and `--manifest`: compares the data that passed with the files at the far end.

mod early;
mod file_check;
mod longhaul_sums;
mod remote_sums;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use schedule::{Job, JobFailure, JobId, JobKind, PutOptions, RemotePath};

use self::early::CopyingFile;
pub(super) use self::early::SumRequest;
use self::file_check::FileCheck;
use self::remote_sums::RemoteSumRequests;
use super::CopyOptions;
use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::file::FileId;
use super::local_ops::ReadAt;
use crate::disk::{ReadBackCheck, os_words};
use crate::report::{CopyEvent, EscapedName, VerifyResult};
use crate::session::RemoteCommandId;
use crate::sums::{FileSums, FinishedSums, Manifest, SumLedger};
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
    ledger: Option<Arc<SumLedger>>,
    wanted: bool,
    manifest: Option<Manifest>,
    files: BTreeMap<FileId, FileCheck>,
    /// Files that are being copied.
    moving: BTreeMap<FileId, CopyingFile>,
    far: RemoteSumRequests,
    /// Number of files being read back.
    reading: usize,
    next_exec: u64,
    next_attempt: u64,
    /// Arrival time of the first bytes, and the bytes since then.
    pace: Option<(Instant, u64)>,
}

impl Verification {
    pub(super) fn new(options: &CopyOptions, ledger: Option<Arc<SumLedger>>) -> Self {
        Self {
            wanted: options.verify && ledger.is_some(),
            ledger,
            manifest: None,
            files: BTreeMap::new(),
            moving: BTreeMap::new(),
            far: RemoteSumRequests::default(),
            reading: 0,
            next_exec: 1,
            next_attempt: 1,
            pace: None,
        }
    }

    /// True if checksums of files are needed.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted || self.manifest.is_some()
    }

    /// Sums for a file that no session's disk threads copy.
    pub(super) fn sums(&self) -> Option<Arc<FileSums>> {
        self.ledger.as_ref().map(|ledger| FileSums::new(ledger))
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

impl CopyEngine<'_> {
    /// Opens the manifest. Returns false, after reporting it, on failure.
    pub(super) fn begin_manifest(&mut self) -> bool {
        if self.verify.wanted {
            self.ports.summary_mut().verified = Some(VerifyResult::default());
        }
        let Some(path) = &self.options.manifest else {
            return true;
        };
        match Manifest::create(path) {
            Ok(manifest) => self.verify.manifest = Some(manifest),
            Err(e) => {
                let what = format!("cannot write the manifest: {}", os_words(&e));
                self.fail(None, EscapedName::from(path.as_path()), what);
                return false;
            }
        }
        true
    }

    pub(super) fn end_manifest(&mut self) {
        if let (Some(manifest), Some(path)) = (self.verify.manifest.take(), &self.options.manifest)
            && let Err(e) = manifest.finish()
        {
            let what = format!("cannot write the manifest: {}", os_words(&e));
            self.fail(None, EscapedName::from(path.as_path()), what);
        }
    }

    /// End at which files are read again: the target, or the source if the target is local.
    pub(super) fn far_end(&self) -> Option<CopySide> {
        let mut ends = [CopySide::Target, CopySide::Source].into_iter();
        ends.find(|end| self.ports.sides().is_remote(*end))
    }

    /// Takes the checksums of a finished job of `file`.
    pub(super) fn take_sums(&mut self, job: JobId, file: FileId) {
        let Some(sums) = self.verify.ledger.as_ref().and_then(|l| l.take(job)) else {
            return;
        };
        if let Some(task) = self.files.get_mut(&file) {
            task.set_sums(Some(sums));
        }
    }

    /// Verifies a file that has its final name.
    pub(super) fn verify_file(&mut self, id: FileId) {
        let Some(ledger) = self.verify.ledger.clone() else {
            return self.file_kept(id);
        };
        if self.verify.wanted && self.stopped() {
            // Nothing is asked any more, so it would wait for its comparison for ever.
            return self.not_verified(id);
        }
        let local = self.local();
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        let sums = task.take_sums();
        let mut seen = sums.as_ref().map(|sums| sums.finish()).unwrap_or_default();
        // An earlier run may have sent other parts of the file, or all of it.
        seen.grow_to(task.confirmed());
        let is_remote = |end| self.ports.sides().is_remote(end);
        let here = match (is_remote(CopySide::Source), is_remote(CopySide::Target)) {
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
        let lacks = self.verify.manifest.is_some() && seen.whole.is_none();
        let completed = completed.and_then(|()| match lacks {
            true => Err(
                "its parts were transferred out of order, so the manifest's checksum is unknown"
                    .to_owned(),
            ),
            false => Ok(()),
        });
        if let Err(what) = completed {
            return self.file_failed(
                id,
                CopySide::Target,
                format!("cannot compute the checksum of the copy: {what}; copy the file again"),
            );
        }
        if !self.verify.wanted {
            return self.verified(id, &seen);
        }
        let (attempt, told, whole) = self.verify.copied(id, sums.as_ref());
        let path = match self.far_end() {
            Some(CopySide::Source) => source,
            _ => target,
        };
        let checking = FileCheck::new(path, seen, attempt, told, whole);
        self.verify.files.insert(id, checking);
        let far = self.far_end();
        if let Some(verified) = &mut self.ports.summary_mut().verified {
            verified.download |= far == Some(CopySide::Source);
        }
        match far {
            Some(_) => self.verify.far.queue(id),
            None => self.read_here(id),
        }
    }

    /// Completes a file whose verification succeeded or was not wanted.
    fn verified(&mut self, id: FileId, seen: &FinishedSums) {
        if let (Some(manifest), Some(digest)) = (&mut self.verify.manifest, &seen.whole)
            && let Some(task) = self.files.get(&id)
            && let Err(e) = manifest.add(digest, task.target())
        {
            self.verify.manifest = None;
            let path = self.options.manifest.clone().unwrap_or_default();
            let what = format!("cannot write the manifest: {}", os_words(&e));
            self.fail(None, EscapedName::from(path.as_path()), what);
        }
        let repaired = self.files.get(&id).is_some_and(|task| task.was_repaired());
        if let Some(verified) = &mut self.ports.summary_mut().verified {
            verified.files += 1;
            verified.repaired += u64::from(repaired);
        }
        self.file_kept(id);
    }

    /// Completes a file whose checksums at the far end match.
    fn is_right(&mut self, id: FileId) {
        if let Some(checking) = self.verify.files.remove(&id) {
            if checking.was_read_back()
                && let Some(verified) = &mut self.ports.summary_mut().verified
            {
                verified.read_back += 1;
            }
            self.verified(id, checking.seen());
        }
    }

    /// Verifies a local copy by reading the target again.
    fn read_here(&mut self, id: FileId) {
        let Some(checking) = self.verify.files.get_mut(&id) else {
            return;
        };
        let Some(check) = checking.begin_check() else {
            return self.unverified(
                id,
                "no checksum was computed during the transfer".to_owned(),
            );
        };
        let path = local_path(checking.path());
        let file = self.local().reader(&path);
        match file.and_then(|file| feed(&*file, &check)) {
            Ok(()) => self.judge_read_back(id),
            Err(e) => self.unverified(id, os_words(&e)),
        }
    }

    /// Verifies a file by reading it back over SFTP.
    fn read_back(&mut self, id: FileId) {
        let Some(end) = self.far_end() else { return };
        let found = self.verify.files.get_mut(&id);
        let Some(checking) = found.filter(|c| !c.is_read_back()) else {
            return;
        };
        let Some(check) = checking.begin_check() else {
            return self.unverified(
                id,
                "no checksum was computed during the transfer".to_owned(),
            );
        };
        let kind = JobKind::Get {
            source: RemotePath(checking.path().to_vec()),
            target: schedule::LocalPath::default(),
            known: None,
            options: PutOptions::default(),
        };
        self.verify.reading += 1;
        let submitted = self.submit_with(end, JobPurpose::Check(id), |session, id| {
            session.submit_check(Job { id, kind }, check);
        });
        if submitted.is_none() {
            self.verify.reading -= 1;
            self.unverified(
                id,
                "the command ended before the copy was read back".to_owned(),
            );
        }
    }

    /// Handles the end of reading back.
    pub(super) fn on_read_back(&mut self, id: FileId, result: Result<(), JobFailure>) {
        self.verify.reading = self.verify.reading.saturating_sub(1);
        let Some(checking) = self.verify.files.get(&id) else {
            return;
        };
        let longer = checking.check().is_some_and(|check| check.is_longer());
        match result {
            Err(fault) if !longer => self.unverified(id, fault.what),
            _ => self.judge_read_back(id),
        }
    }

    fn judge_read_back(&mut self, id: FileId) {
        let Some(checking) = self.verify.files.get(&id) else {
            return;
        };
        let Some(wrong) = checking.check().map(|check| check.wrong()) else {
            return;
        };
        tracing::debug!(
            "read back: {} of {} checksums differ",
            wrong.len(),
            checking.seen().sums.len()
        );
        let Some((from, len)) = wrong.first().copied() else {
            // A longhaul reads the same file that SFTP shows, so there the file was modified
            // between the two.
            let ours = |program: crate::sums::SumProgram| program.is_ours();
            if checking.differs() && !self.verify.far.program().is_some_and(ours) {
                let path = checking.path().to_vec();
                let why = "the checksum program at the far end reads a different file than the \
                           SFTP server shows";
                self.no_program(why);
                let path = EscapedName(path);
                self.warn(Some(path), format!("{why}: reading files back instead"));
            }
            return self.is_right(id);
        };
        self.verify.files.remove(&id);
        self.is_wrong(id, from, len);
    }

    fn is_wrong(&mut self, id: FileId, from: u64, len: u64) {
        let Some(task) = self.files.get(&id) else {
            return;
        };
        let again = task.repeats() < REPEATS;
        let path = match self.far_end() {
            Some(CopySide::Source) => task.name().clone(),
            _ => self.shown(CopySide::Target, task.target()),
        };
        self.tell(CopyEvent::Mismatch {
            id: id.0,
            path,
            from,
            len,
            again,
        });
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        if again {
            self.progress.take_back(task.repeat());
            self.forget_earlier(id);
            return self.start_file(id);
        }
        let end = from + len;
        let copies = REPEATS + 1;
        self.file_failed(
            id,
            CopySide::Target,
            format!(
                "verification failed: bytes {from} to {end} differ from the source after \
                 {copies} copies"
            ),
        );
    }

    fn unverified(&mut self, id: FileId, what: String) {
        self.verify.files.remove(&id);
        let end = self.far_end().unwrap_or(CopySide::Target);
        self.file_failed(
            id,
            end,
            format!("copied, but cannot be verified: {what}; copy it again"),
        );
    }

    /// Fails all unverified files when the run ends early.
    pub(super) fn stop_verifying(&mut self) {
        self.verify.far = RemoteSumRequests::default();
        self.verify.moving.clear();
        for id in std::mem::take(&mut self.verify.files).into_keys() {
            self.not_verified(id);
        }
    }

    /// Reports a copied file as failed because the run ends before its comparison.
    fn not_verified(&mut self, id: FileId) {
        let why = self.why_stopped();
        let what = format!("copied, but not verified: {why}");
        self.file_failed(id, CopySide::Target, what);
    }

    fn note_reason(&mut self, why: &str) {
        if let Some(verified) = &mut self.ports.summary_mut().verified {
            verified.reason.get_or_insert_with(|| why.to_owned());
        }
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
