//! Boot ID of the receiving machine: data that was only in memory is lost when the machine
//! restarts.

use std::path::{Path, PathBuf};

use schedule::journal::JournalRecord;
use schedule::{Attributes, JobKind, RemotePath};

use super::super::engine::{CopyEngine, CopySide, JobPurpose};
use super::super::jobs::QueryAnswer;
use super::{BootQuery, RecordHandling};
use crate::connect::ConnectError;
use crate::copy::local_ops::LocalOps;

/// File with the boot ID of a Linux kernel.
const BOOT: &[u8] = b"/proc/sys/kernel/random/boot_id";
/// Length in bytes of a UUID and a line feed.
const BOOT_LEN: u64 = 37;

impl CopyEngine<'_> {
    /// Reads the receiver's boot ID once the target's session is open, to learn if data that was
    /// only in its memory may be lost.
    pub(in crate::copy) async fn ask_for_boot(&mut self) {
        if self.keeper.log.is_none() || !self.target_is_remote() {
            return;
        }
        let boot = self.boot_there().await;
        self.keeper.state.started(boot.clone());
        self.keeper.boot.clone_from(&boot);
        self.keeper.write(JournalRecord::Run { boot });
    }

    /// Requests the receiver's boot ID, so that the answer arrives in one round trip with those of
    /// other requests. [`CopyEngine::ask_for_boot`] takes it.
    pub(in crate::copy) fn request_boot(&mut self) {
        if !self.target_is_remote() {
            return;
        }
        if let Some((kind, file)) = self.boot_job()
            && let Some(id) = self.begin_asking(CopySide::Target, kind, QueryAnswer::default())
        {
            self.keeper.boot_requested = Some((id, file));
        }
    }

    /// Removes the answer to a request that nothing has taken.
    pub(in crate::copy) fn forget_boot_request(&mut self) {
        if let Some((_, file)) = self.keeper.boot_requested.take() {
            self.local().remove_file(&file);
        }
    }

    async fn boot_there(&mut self) -> Vec<u8> {
        if self.keeper.boot_requested.is_none() {
            self.request_boot();
        }
        let Some((id, file)) = self.keeper.boot_requested.take() else {
            return Vec::new();
        };
        // If the file cannot be read, the boot ID stays unknown.
        let _ = self.answer(id).await;
        read_boot(&*self.local(), &file)
    }

    /// Creates a job that downloads the receiver's boot ID to a file beside the journal. Returns
    /// `None` without a journal.
    pub(super) fn boot_job(&self) -> Option<(JobKind, PathBuf)> {
        let mut file = self.keeper.log()?.path().as_os_str().to_owned();
        file.push(".boot");
        // Remove a leftover of a killed run, which must not be taken for the answer.
        self.local().remove_file(Path::new(&file));
        let kind = JobKind::Get {
            source: RemotePath(BOOT.to_vec()),
            target: PathBuf::from(file.clone()).into(),
            // Known attributes save a query before the OPEN, whose round trip may queue behind
            // data.
            known: Some(Attributes {
                size: Some(BOOT_LEN),
                mode: Some(0o100_444),
                ..Attributes::default()
            }),
            options: schedule::PutOptions::default(),
        };
        Some((kind, file.into()))
    }

    pub(super) fn learn_boot(&mut self) {
        if !self.target_is_remote() || self.keeper.boot_query != BootQuery::NotSent {
            return;
        }
        self.keeper.boot_query = BootQuery::Sent;
        if let Some((kind, file)) = self.boot_job() {
            self.submit(CopySide::Target, kind, JobPurpose::Boot(file));
        }
    }

    pub(in crate::copy) fn on_boot(&mut self, file: &Path) {
        let boot = read_boot(&*self.local(), file);
        if !boot.is_empty() {
            self.keeper.boot.clone_from(&boot);
            // If the lane was lost, the machine may have restarted in between.
            self.keeper.write(match self.keeper.boot_query {
                BootQuery::Repeated => JournalRecord::Run { boot },
                _ => JournalRecord::Boot { boot },
            });
        }
    }

    /// Holds back claims after a reconnect until the receiver's boot ID is known. A restarted
    /// machine has lost data that was answered and not synced, and a later sync would not reveal
    /// it.
    pub(in crate::copy) fn on_rejoined(&mut self, end: CopySide) {
        if end == CopySide::Target {
            // An answer from before the reconnect may be that of an earlier boot.
            self.forget_boot_request();
        }
        let under_way = !matches!(self.keeper.claims, RecordHandling::Written);
        if end != CopySide::Target || self.keeper.boot.is_empty() || under_way {
            return;
        }
        if let Some((kind, file)) = self.boot_job() {
            self.keeper.claims = RecordHandling::Held(Vec::new());
            self.submit(CopySide::Target, kind, JobPurpose::BootAgain(file));
        }
    }

    pub(in crate::copy) fn on_boot_again(&mut self, file: &Path) {
        let boot = read_boot(&*self.local(), file);
        let claims = std::mem::replace(&mut self.keeper.claims, RecordHandling::Discarded);
        if boot == self.keeper.boot {
            self.keeper.claims = RecordHandling::Written;
            if let RecordHandling::Held(held) = claims {
                held.into_iter().for_each(|record| {
                    self.keeper.write(record);
                });
            }
            return;
        }
        let name = self
            .side(CopySide::Target)
            .map(|side| side.name().to_owned());
        let why = format!(
            "{}: the machine was rebooted while the connection was lost, and lost unsynced data",
            name.unwrap_or_default()
        );
        self.ports.lose(ConnectError::unreachable(why));
        self.drop_what_waits();
        for side in self.ports.sides().iter() {
            side.session().leave("the machine was rebooted");
        }
    }
}

/// Reads the downloaded boot ID, limited to its length because a server may send anything.
fn read_boot(local: &dyn LocalOps, file: &Path) -> Vec<u8> {
    let text = local.take_text(file, BOOT_LEN);
    text.trim_ascii().to_vec()
}
