//! Boot ID of the receiving machine: data that was only in memory is lost when the machine
//! restarts.

use std::path::{Path, PathBuf};

use schedule::journal::JournalRecord;
use schedule::{Attributes, JobId, JobKind, RemotePath};

use super::records::RunJournal;
use crate::copy::context::CopyContext;
use crate::copy::jobs::{JobPurpose, PathQueryAnswer};
use crate::copy::local_file_ops::LocalFileOps;
use crate::copy::sides::CopySide;

/// File with the boot ID of a Linux kernel.
const BOOT: &[u8] = b"/proc/sys/kernel/random/boot_id";
/// Length in bytes of a UUID and a line feed.
const BOOT_LEN: u64 = 37;

/// Query for the receiver's boot ID at the start of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BootIdQuery {
    #[default]
    NotSent,
    Sent,
    /// The lane that asked was lost, and another one repeats the request.
    Repeated,
}

/// Boot ID of a server's kernel.
#[derive(Debug, Default)]
pub(super) struct ReceiverBootId {
    query: BootIdQuery,
    /// Request for the boot ID before the copy begins, and the file of its answer.
    requested: Option<(JobId, PathBuf)>,
    /// The boot ID; empty if unknown.
    id: Vec<u8>,
}

impl ReceiverBootId {
    /// Requests the boot ID, so that the answer arrives in one round trip with those of other
    /// requests. [`Self::take_request`] takes the request.
    pub(super) fn request(&mut self, context: &mut CopyContext<'_>, records: &RunJournal) {
        if !context.target_is_remote() {
            return;
        }
        if let Some((kind, file)) = boot_job(context, records)
            && let Some(id) =
                context.begin_asking(CopySide::Target, kind, PathQueryAnswer::default())
        {
            self.requested = Some((id, file));
        }
    }

    /// Takes the request for the boot ID and the file of its answer, after a request if there was
    /// none.
    pub(super) fn take_request(
        &mut self,
        context: &mut CopyContext<'_>,
        records: &RunJournal,
    ) -> Option<(JobId, PathBuf)> {
        if self.requested.is_none() {
            self.request(context, records);
        }
        self.requested.take()
    }

    /// Removes the answer to a request that nothing has taken.
    pub(super) fn forget_request(&mut self, context: &CopyContext<'_>) {
        if let Some((_, file)) = self.requested.take() {
            context.local().remove_file(&file);
        }
    }

    /// Notes the answer to the request, which `file` has. If it cannot be read, the boot ID stays
    /// unknown.
    pub(super) fn answered(&mut self, context: &CopyContext<'_>, file: Option<&Path>) -> Vec<u8> {
        let read = |file| read_boot(&*context.local(), file);
        self.id = file.map_or_else(Vec::new, read);
        self.id.clone()
    }

    /// Notes that the lane that asked for the boot ID was lost.
    pub(super) fn lose(&mut self) {
        self.query = BootIdQuery::Repeated;
    }

    /// Requests the boot ID for the journal of this run.
    pub(super) fn learn(&mut self, context: &mut CopyContext<'_>, records: &RunJournal) {
        if !context.target_is_remote() || self.query != BootIdQuery::NotSent {
            return;
        }
        self.query = BootIdQuery::Sent;
        if let Some((kind, file)) = boot_job(context, records) {
            context.submit(CopySide::Target, kind, JobPurpose::Boot(file));
        }
    }

    pub(super) fn learned(
        &mut self,
        context: &CopyContext<'_>,
        records: &mut RunJournal,
        file: &Path,
    ) {
        let boot = read_boot(&*context.local(), file);
        if !boot.is_empty() {
            self.id.clone_from(&boot);
            // If the lane was lost, the machine may have restarted in between.
            records.write(match self.query {
                BootIdQuery::Repeated => JournalRecord::Run { boot },
                _ => JournalRecord::Boot { boot },
            });
        }
    }

    /// Holds back claims after a reconnect until the receiver's boot ID is known. A restarted
    /// machine has lost data that was answered and not synced, and a later sync would not reveal
    /// it.
    pub(super) fn rejoined(&mut self, context: &mut CopyContext<'_>, records: &mut RunJournal) {
        // An answer from before the reconnect may be that of an earlier boot.
        self.forget_request(context);
        if self.id.is_empty() || !records.writes_claims() {
            return;
        }
        if let Some((kind, file)) = boot_job(context, records) {
            records.hold_claims();
            context.submit(CopySide::Target, kind, JobPurpose::BootAgain(file));
        }
    }

    /// Handles the boot ID after a reconnect. Returns false if the machine was restarted.
    pub(super) fn is_unchanged(
        &self,
        context: &CopyContext<'_>,
        records: &mut RunJournal,
        file: &Path,
    ) -> bool {
        let unchanged = read_boot(&*context.local(), file) == self.id;
        match unchanged {
            true => records.write_held(),
            false => records.discard_claims(),
        }
        unchanged
    }
}

/// Creates a job that downloads the receiver's boot ID to a file beside the journal. Returns `None`
/// without a journal.
fn boot_job(context: &CopyContext<'_>, records: &RunJournal) -> Option<(JobKind, PathBuf)> {
    let mut file = records.log()?.path().as_os_str().to_owned();
    file.push(".boot");
    // Remove a leftover of a killed run, which must not be taken for the answer.
    context.local().remove_file(Path::new(&file));
    let kind = JobKind::Get {
        source: RemotePath(BOOT.to_vec()),
        target: PathBuf::from(file.clone()).into(),
        // Known attributes save a query before the OPEN, whose round trip may queue behind data.
        known: Some(Attributes {
            size: Some(BOOT_LEN),
            mode: Some(0o100_444),
            ..Attributes::default()
        }),
        // Two of these may be under way, so that one does not write into the answer of the other.
        options: schedule::FileCopyOptions {
            most: Some(BOOT_LEN),
            ..schedule::FileCopyOptions::default()
        },
    };
    Some((kind, file.into()))
}

/// Reads the downloaded boot ID, limited to its length because a server may send anything.
fn read_boot(local: &dyn LocalFileOps, file: &Path) -> Vec<u8> {
    let text = local.take_text(file, BOOT_LEN);
    text.trim_ascii().to_vec()
}
