//! Files between two hosts: a Get and a Put joined by a relay.

use std::path::PathBuf;
use std::sync::Arc;

use schedule::{FileMeta, Job, JobFailure, JobKind, LocalPath, PutOptions, RemotePath};

use super::file::{ActiveFiles, FileId, FileTask, JobRole};
use super::jobs::JobPurpose;
use super::ports::CopyPorts;
use super::sides::CopySide;
use crate::disk::HostToHostBuffer;
use crate::sums::FileSums;

/// Bytes that relays may hold for all files between two hosts.
const RELAY_BUDGET: u64 = 256 << 20;
/// Largest share in bytes that one file counts for; also the share of a file of unknown size.
const RELAY_SHARE: u64 = 64 << 20;
const RELAY_FILES: usize = 512;
/// Number of attempts after which a file whose connections were lost has failed.
const MOST_ATTEMPTS: u32 = 8;
/// Fault of the job at one host when the other host's connection was lost.
const CONNECTION_LOST: &str = "the connection to a host was lost while the file was copied";

/// State of the two jobs of a relayed file.
pub(super) struct RelayedFileJobs {
    relay: Arc<HostToHostBuffer>,
    share: u64,
    jobs: u8,
    fault: Option<JobFailure>,
    put_done: bool,
    /// The upload writes under the final name.
    in_place: bool,
    /// A connection was lost, so that the file has to be read again.
    lost: bool,
    /// Number of attempts so far.
    attempts: u32,
}

impl std::fmt::Debug for RelayedFileJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayedFileJobs")
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

/// Consequence of the end of one of the two jobs.
#[derive(Debug)]
pub(super) enum RelayOutcome {
    /// The other job is not over.
    Waits,
    Done,
    /// The file is copied again.
    Again,
    Failed(JobFailure),
    /// Neither job has said why the file was not copied.
    NotCopied,
}

impl ActiveFiles {
    /// True if another file between two hosts may begin.
    pub(super) fn relay_has_room(&self, ports: &CopyPorts<'_>) -> bool {
        self.relayed() < RELAY_BUDGET
            && (!ports.source_is_remote() || !ports.target_is_remote() || self.len() < RELAY_FILES)
    }

    /// Starts both jobs of a file, whose data is summed in `sums`.
    pub(super) fn start_relayed(
        &mut self,
        ports: &mut CopyPorts<'_>,
        sums: Option<Arc<FileSums>>,
        id: FileId,
        mut options: PutOptions,
    ) {
        let Some(task) = self.get_mut(&id) else {
            return;
        };
        // Without a loss, the upload asked for another attempt because it writes in place.
        let before = task
            .relay()
            .map(|relay| (relay.in_place || !relay.lost, relay.attempts));
        let (in_place, attempts) = before.unwrap_or_default();
        options.inplace |= in_place;
        let attributes = task.attributes().unwrap_or_default();
        let share = task.size().unwrap_or(RELAY_SHARE).min(RELAY_SHARE);
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
            in_place,
            lost: false,
            attempts: attempts + 1,
        });
        self.hold_for_relay(share);
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
        ports.submit_with(
            CopySide::Source,
            JobPurpose::File(id, JobRole::RelayGet),
            |session, id| {
                session.submit_relayed(Job { id, kind: get }, bound);
            },
        );
        ports.submit_with(
            CopySide::Target,
            JobPurpose::File(id, JobRole::RelayPut),
            |session, id| {
                session.submit_relayed(Job { id, kind: put }, relay);
            },
        );
    }

    /// Notes that one of the two jobs starts over because its connection was lost. The data that the
    /// other one has passed on or taken are gone, so both end, and the file is copied again.
    pub(super) fn on_relay_lost(&mut self, id: FileId) {
        if let Some(relay) = self.get_mut(&id).and_then(FileTask::relay) {
            relay.lost = true;
            relay
                .relay
                .break_off(JobFailure::new(CONNECTION_LOST, true));
            relay.relay.abandon();
        }
    }

    /// Handles the end of one of the two jobs.
    pub(super) fn on_relayed(
        &mut self,
        id: FileId,
        role: JobRole,
        result: Result<(), JobFailure>,
    ) -> RelayOutcome {
        let Some(relay) = self.get_mut(&id).and_then(FileTask::relay) else {
            return RelayOutcome::Waits;
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
            return RelayOutcome::Waits;
        }
        let (done, fault) = (relay.put_done, relay.fault.take());
        // The target is a symlink, a device or in a directory that allows no temporaries, so the
        // upload restarted under its final name. The relayed data is gone by then and must be read
        // again.
        let reopened = relay.relay.was_reopened() && !relay.in_place;
        let again = match relay.lost {
            true => relay.attempts < MOST_ATTEMPTS,
            false => reopened,
        };
        let share = relay.share;
        self.release_from_relay(share);
        match fault {
            _ if done => RelayOutcome::Done,
            Some(_) if again => RelayOutcome::Again,
            Some(fault) => RelayOutcome::Failed(fault),
            None => RelayOutcome::NotCopied,
        }
    }
}
