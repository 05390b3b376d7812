//! Claims a shard, and renews the lease while it is copied.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use shard::{
    ClaimDecision, Claimant, Lease, LeaseAction, LeaseHolder, ShardState, ShardWorkerCounts,
};

use super::folder::PlanFolder;
use super::place::{here, is_gone};
use crate::cancel::CancelToken;
use crate::disk::os_words;

/// Longest time between two looks at the lease of another worker.
const LOOK: Duration = Duration::from_secs(1);
/// Time until the next try after a renewal that failed.
const RETRY: Duration = Duration::from_millis(500);
/// Longest reason that a lease keeps, in bytes.
const LONGEST_REASON: usize = 1024;

/// Result of claiming a shard: this worker holds it, or it is complete.
#[derive(Debug)]
pub enum LeaseClaimResult {
    /// This worker holds the shard.
    Held(Box<ShardLease>),
    /// The shard is complete.
    Done(ShardWorkerCounts),
}

/// Reason why the lease of a shard could not be taken, or not be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardLeaseError {
    /// Another worker copies the shard.
    Busy(String),
    /// A signal ended the wait.
    Interrupted,
    /// The folder of the plan cannot be read or written; another try may help.
    Io(String),
    /// The leases are not to be trusted, or there is no number for another one; another try does not
    /// help.
    Unusable(String),
    /// Another worker took over, or the lease could not be renewed in time.
    Lost(String),
}

impl fmt::Display for ShardLeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Busy(what) | Self::Io(what) | Self::Unusable(what) | Self::Lost(what) => {
                f.write_str(what)
            }
        }
    }
}

impl std::error::Error for ShardLeaseError {}

/// Lease of a shard. A thread renews it until the lease ends.
#[derive(Debug)]
pub struct ShardLease {
    plan: Arc<PlanFolder>,
    lease: Lease,
    shared: Arc<SharedLease>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<u64>>,
}

/// Called with the reason when a lease is lost, on any thread. It should end the process: files
/// that a follower has taken over must be neither written nor removed any more.
pub type LostLeaseCallback = Arc<dyn Fn(&str) + Send + Sync>;

/// Time of a worker's leases, and the reaction to their loss.
#[derive(Clone)]
pub struct LeaseTerms {
    /// Time after which a lease that is not renewed expires.
    pub time: Duration,
    /// Called when a lease is lost.
    pub on_loss: LostLeaseCallback,
}

impl fmt::Debug for LeaseTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseTerms").finish_non_exhaustive()
    }
}

/// State that the renewing thread and the copy share.
struct SharedLease {
    start: Instant,
    on_loss: LostLeaseCallback,
    /// Milliseconds since `start` until which the copy may write without another renewal.
    valid_until: AtomicU64,
    lost: Mutex<Option<String>>,
    cancel: CancelToken,
}

impl fmt::Debug for SharedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLease").finish_non_exhaustive()
    }
}

impl PlanFolder {
    /// Claims a shard on these terms. Waits while the lease of another worker may have expired, and
    /// tells so.
    ///
    /// # Errors
    /// Another worker copies the shard, a signal ended the wait, or the folder cannot be used.
    pub fn claim(
        self: &Arc<Self>,
        shard: u32,
        terms: &LeaseTerms,
        cancel: &CancelToken,
        tell: &mut dyn FnMut(String),
    ) -> Result<LeaseClaimResult, ShardLeaseError> {
        let io = |error: std::io::Error| {
            let folder = super::shown(&self.folder());
            let subject = subject(self, shard);
            let why = format!("{folder}: {subject}: {}", os_words(&error));
            match error.kind() {
                std::io::ErrorKind::PermissionDenied => ShardLeaseError::Unusable(why),
                _ => ShardLeaseError::Io(why),
            }
        };
        let place = here();
        let start = Instant::now();
        let mut claimant = Claimant::default();
        let mut told = false;
        loop {
            let newest = self.newest_lease(shard).map_err(io)?;
            let seen = newest.as_ref().map(|(fence, lease)| {
                let gone = lease
                    .as_ref()
                    .is_some_and(|lease| is_gone(&lease.place, &place));
                (*fence, lease.as_ref(), gone)
            });
            match claimant.look(start.elapsed(), seen) {
                ClaimDecision::Done(figures) => return Ok(LeaseClaimResult::Done(figures)),
                ClaimDecision::Exhausted => {
                    let why = format!(
                        "{}: {}: it was started too often: make a new plan in another folder",
                        super::shown(&self.folder()),
                        subject(self, shard)
                    );
                    return Err(ShardLeaseError::Unusable(why));
                }
                ClaimDecision::Held => {
                    let holder = newest.and_then(|(_, lease)| lease);
                    return Err(ShardLeaseError::Busy(busy(shard, holder.as_ref())));
                }
                ClaimDecision::Take(fence) => {
                    let lease = Lease {
                        plan: self.id().to_owned(),
                        shard,
                        fence,
                        state: ShardState::Running,
                        beat: 0,
                        seconds: terms.time.as_secs().max(1),
                        place: place.clone(),
                        figures: ShardWorkerCounts::default(),
                        reason: Vec::new(),
                    };
                    let began = Instant::now();
                    if self.create_lease(&lease).map_err(io)? {
                        let on_loss = Arc::clone(&terms.on_loss);
                        let held =
                            ShardLease::start(Arc::clone(self), lease, (began, cancel), on_loss);
                        return held
                            .map(|held| LeaseClaimResult::Held(Box::new(held)))
                            .map_err(io);
                    }
                }
                ClaimDecision::Wait(left) => {
                    if !std::mem::replace(&mut told, true) {
                        let holder = newest.and_then(|(_, lease)| lease);
                        tell(waiting(&subject(self, shard), left, holder.as_ref()));
                    }
                    // A cancel disconnects the channel.
                    let wait = cancel.receiver().recv_timeout(left.min(LOOK));
                    if let Err(RecvTimeoutError::Disconnected) = wait {
                        return Err(ShardLeaseError::Interrupted);
                    }
                }
            }
        }
    }
}

fn holder_words(holder: Option<&Lease>) -> String {
    match holder {
        Some(lease) => {
            let host = crate::escape::name(lease.place.host.as_bytes()).to_string();
            format!("process {} on {host}", lease.place.process)
        }
        None => "another worker".to_owned(),
    }
}

fn busy(shard: u32, holder: Option<&Lease>) -> String {
    format!(
        "shard {shard}: {} is copying this shard: choose another shard, or try again later",
        holder_words(holder)
    )
}

fn waiting(subject: &str, left: Duration, holder: Option<&Lease>) -> String {
    format!(
        "{subject}: {} is copying it or has died; waiting up to {} s to find out",
        holder_words(holder),
        left.as_secs().max(1)
    )
}

impl ShardLease {
    fn start(
        plan: Arc<PlanFolder>,
        lease: Lease,
        (began, cancel): (Instant, &CancelToken),
        on_loss: LostLeaseCallback,
    ) -> std::io::Result<Self> {
        let time = Duration::from_secs(lease.seconds);
        let shared = Arc::new(SharedLease {
            start: began,
            on_loss,
            valid_until: AtomicU64::new(millis(time / 2)),
            lost: Mutex::default(),
            cancel: cancel.clone(),
        });
        let (stop, stopped) = bounded(0);
        let renewal = LeaseRenewal {
            plan: Arc::clone(&plan),
            lease: lease.clone(),
            holder: LeaseHolder::new(lease.fence, time, Duration::ZERO),
            time,
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || renewal.run(&stopped))?;
        Ok(Self {
            plan,
            lease,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Terms of this lease, for a lease of the same worker.
    pub(super) fn terms(&self) -> LeaseTerms {
        LeaseTerms {
            time: Duration::from_secs(self.lease.seconds),
            on_loss: Arc::clone(&self.shared.on_loss),
        }
    }

    /// Number of the shard.
    pub fn shard(&self) -> u32 {
        self.lease.shard
    }

    /// Plan of the shard.
    pub fn plan(&self) -> &Arc<PlanFolder> {
        &self.plan
    }

    /// True while this worker may write. A process that was stopped for long finds its lease
    /// expired.
    pub(super) fn is_valid(&self) -> bool {
        let now = millis(self.shared.start.elapsed());
        let valid = now < self.shared.valid_until.load(Ordering::SeqCst) && self.lost().is_none();
        if !valid && self.lost().is_none() {
            self.shared.lose(expired(&self.plan, &self.lease));
        }
        valid
    }

    /// Returns why the lease was lost, if it was.
    pub fn lost(&self) -> Option<String> {
        let lost = self.shared.lost.lock();
        lost.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the lease with this result. Returns why it was lost, if it was.
    ///
    /// # Errors
    /// The lease was lost before, or cannot be written.
    pub fn end(
        mut self,
        state: ShardState,
        figures: ShardWorkerCounts,
        reason: Option<&[u8]>,
    ) -> Result<(), ShardLeaseError> {
        let valid = self.is_valid();
        self.stop.take();
        let beat = self.thread.take().and_then(|thread| thread.join().ok());
        let followed = self.plan.has_successor(self.lease.shard, self.lease.fence);
        if let Ok(true) = followed {
            return Err(ShardLeaseError::Lost(superseded(&self.plan, &self.lease)));
        }
        if !valid && state == ShardState::Done {
            let why = self.lost();
            let why = why.unwrap_or_else(|| expired(&self.plan, &self.lease));
            return Err(ShardLeaseError::Lost(why));
        }
        self.lease.beat = beat.unwrap_or_default() + 1;
        self.lease.state = state;
        self.lease.figures = figures;
        let reason = reason.unwrap_or_default();
        let reason = reason.get(..LONGEST_REASON).unwrap_or(reason);
        self.lease.reason = reason.to_vec();
        let written = self.plan.write_lease(&self.lease);
        written.map_err(|error| {
            let folder = super::shown(&self.plan.folder());
            ShardLeaseError::Io(format!(
                "{folder}: cannot write the result of the shard: {}",
                os_words(&error)
            ))
        })
    }
}

impl Drop for ShardLease {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl SharedLease {
    /// Notes why the lease was lost, and ends the copy.
    fn lose(&self, why: String) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| why.clone());
        drop(lost);
        (self.on_loss)(&why);
        self.cancel.cancel();
    }
}

/// Renews a lease on its own thread.
struct LeaseRenewal {
    plan: Arc<PlanFolder>,
    lease: Lease,
    holder: LeaseHolder,
    time: Duration,
    shared: Arc<SharedLease>,
}

impl LeaseRenewal {
    /// Renews until `stop` is dropped or the lease is lost. Returns the last beat.
    fn run(mut self, stop: &Receiver<()>) -> u64 {
        loop {
            let follower = self.plan.has_successor(self.lease.shard, self.lease.fence);
            let newest = follower
                .ok()
                .map(|follower| self.lease.fence + u64::from(follower));
            let now = self.shared.start.elapsed();
            let rest = match self.holder.turn(now, newest) {
                LeaseAction::Superseded(_) => {
                    self.shared.lose(superseded(&self.plan, &self.lease));
                    return self.lease.beat;
                }
                LeaseAction::Expired => {
                    self.shared.lose(expired(&self.plan, &self.lease));
                    return self.lease.beat;
                }
                LeaseAction::Rest(rest) => rest,
                LeaseAction::Renew(beat) => {
                    self.lease.beat = beat;
                    match self.plan.write_lease(&self.lease) {
                        Ok(()) => {
                            self.holder.renewed(now);
                            let until = millis(now + self.time / 2);
                            self.shared.valid_until.store(until, Ordering::SeqCst);
                            // The write has refreshed what this machine knows of the folder.
                            Duration::ZERO
                        }
                        Err(_) => RETRY,
                    }
                }
            };
            match stop.recv_timeout(rest) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return self.lease.beat,
            }
        }
    }
}

/// Names a shard, or the lease number behind the last shard, which is that of the sealing.
fn subject(plan: &PlanFolder, shard: u32) -> String {
    match shard < plan.shards() {
        true => format!("shard {shard}"),
        false => "the last step of the plan, which names the split files".to_owned(),
    }
}

fn superseded(plan: &PlanFolder, lease: &Lease) -> String {
    format!(
        "{}: another process took over (lease {} follows this one): stopped before writing more; \
         the other process goes on",
        subject(plan, lease.shard),
        lease.fence + 1
    )
}

fn expired(plan: &PlanFolder, lease: &Lease) -> String {
    format!(
        "{}: the lease in the plan's folder could not be renewed for {} s: stopped, since another \
         process may take over; check the folder's file system, then try again",
        subject(plan, lease.shard),
        lease.seconds.div_ceil(2)
    )
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn plan() -> (tempfile::TempDir, Arc<PlanFolder>) {
        let dir = tempfile::tempdir().expect("a folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("its mode");
        let plan = PlanFolder::of_one_shard(dir.path());
        (dir, Arc::new(plan))
    }

    fn claim(plan: &Arc<PlanFolder>) -> Result<LeaseClaimResult, ShardLeaseError> {
        let terms = LeaseTerms {
            time: Duration::from_secs(60),
            on_loss: Arc::new(|_| {}),
        };
        plan.claim(0, &terms, &CancelToken::default(), &mut |_| {})
    }

    /// Bug: a lease that is not to be trusted ended the shard with the exit code for another try, so
    /// that a scheduler tried for ever. The plan's other files end it for good.
    #[test]
    fn a_distrusted_lease_was_taken_for_a_passing_failure() {
        let (dir, plan) = plan();
        let lease = dir.path().join("00000.lease-1");
        fs::write(&lease, b"").expect("a lease");
        fs::set_permissions(&lease, fs::Permissions::from_mode(0o666)).expect("its mode");
        let claimed = claim(&plan);
        let is_unusable = matches!(claimed, Err(ShardLeaseError::Unusable(_)));
        assert!(is_unusable, "{claimed:?}");
    }

    /// Bug: a worker that named the split files and was superseded reported that entries failed,
    /// although the other worker goes on.
    #[test]
    fn a_superseded_lease_was_taken_for_failed_entries() {
        let (dir, plan) = plan();
        let Ok(LeaseClaimResult::Held(lease)) = claim(&plan) else {
            panic!("the shard was not claimed");
        };
        let followed = Lease {
            fence: 2,
            ..lease.lease.clone()
        };
        assert!(matches!(plan.create_lease(&followed), Ok(true)));
        let ended = lease.end(ShardState::Stopped, ShardWorkerCounts::default(), None);
        assert!(matches!(ended, Err(ShardLeaseError::Lost(_))), "{ended:?}");
        drop(dir);
    }
}
