//! Files between two hosts: a Get and a Put joined by a relay.

use std::path::PathBuf;
use std::sync::Arc;

use schedule::{FileMeta, Job, JobFailure, JobKind, LocalPath, PutOptions, RemotePath};

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::file::{FileId, FileTask, JobRole};
use crate::disk::HostToHostBuffer;

/// Bytes that relays may hold for all files between two hosts.
const RELAY_BUDGET: u64 = 256 << 20;
/// Largest share in bytes that one file counts for; also the share of a file of unknown size.
const RELAY_SHARE: u64 = 64 << 20;
const RELAY_FILES: usize = 512;

/// State of the two jobs of a relayed file.
pub(super) struct RelayedFileJobs {
    relay: Arc<HostToHostBuffer>,
    share: u64,
    jobs: u8,
    fault: Option<JobFailure>,
    put_done: bool,
    /// Second attempt, written in place.
    again: bool,
}

impl std::fmt::Debug for RelayedFileJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayedFileJobs")
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

impl CopyEngine<'_> {
    pub(super) fn relay_has_room(&self) -> bool {
        self.files.relayed() < RELAY_BUDGET
            && (!self.source_is_remote()
                || !self.target_is_remote()
                || self.files.len() < RELAY_FILES)
    }

    pub(super) fn start_relayed(&mut self, id: FileId, mut options: PutOptions) {
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        let again = task.relay().is_some();
        options.inplace |= again;
        let attributes = task.attributes().unwrap_or_default();
        let share = task.size().unwrap_or(RELAY_SHARE).min(RELAY_SHARE);
        let sums = self.verify.sums();
        task.set_sums(sums.clone());
        let meta = FileMeta {
            attributes,
            stream: attributes.size.is_none(),
        };
        let relay = HostToHostBuffer::summed(meta, sums);
        let (source, target) = (
            RemotePath(task.source().to_vec()),
            RemotePath(task.target().to_vec()),
        );
        task.set_relay(RelayedFileJobs {
            relay: Arc::clone(&relay),
            share,
            jobs: 2,
            fault: None,
            put_done: false,
            again,
        });
        self.files.hold_for_relay(share);
        let get = JobKind::Get {
            source,
            target: LocalPath::default(),
            known: Some(attributes),
            options: PutOptions {
                fsync: false,
                keep: None,
                ..options.clone()
            },
        };
        let put = JobKind::Put {
            source: PathBuf::new(),
            target,
            options,
        };
        let bound = Arc::clone(&relay);
        self.submit_with(
            CopySide::Source,
            JobPurpose::File(id, JobRole::RelayGet),
            |session, id| {
                session.submit_relayed(Job { id, kind: get }, bound);
            },
        );
        self.submit_with(
            CopySide::Target,
            JobPurpose::File(id, JobRole::RelayPut),
            |session, id| {
                session.submit_relayed(Job { id, kind: put }, relay);
            },
        );
    }

    /// Handles the end of one of the two jobs.
    pub(super) fn on_relayed(&mut self, id: FileId, role: JobRole, result: Result<(), JobFailure>) {
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        let Some(relay) = task.relay() else {
            return;
        };
        relay.jobs -= 1;
        match (role, result) {
            (JobRole::RelayGet, Err(fault)) => {
                relay.relay.break_off(fault.clone());
                relay.fault.get_or_insert(fault);
            }
            (_, Err(fault)) => {
                relay.relay.abandon();
                relay.fault.get_or_insert(fault);
            }
            (JobRole::RelayPut, Ok(())) => relay.put_done = true,
            (_, Ok(())) => {}
        }
        if relay.jobs > 0 {
            return;
        }
        let (done, fault) = (relay.put_done, relay.fault.take());
        // The target is a symlink, a device or in a directory that allows no temporaries, so the
        // upload restarted under its final name. The relayed data is gone by then and must be read
        // again.
        let again = relay.relay.was_reopened() && !relay.again;
        let share = relay.share;
        self.files.release_from_relay(share);
        match fault {
            _ if done => self.file_done(id),
            Some(_) if again => {
                let confirmed = self.files.get_mut(&id).map_or(0, FileTask::take_back);
                self.progress.take_back(confirmed);
                self.start_file(id);
            }
            Some(fault) => self.file_fault(id, fault),
            None => self.file_failed(
                id,
                CopySide::Source,
                "internal error: the file was not copied".to_owned(),
            ),
        }
    }
}
