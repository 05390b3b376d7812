use std::collections::BTreeMap;

use super::*;
use crate::lease::tests::lease;

const TIME: u64 = 30;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_free_shard_is_taken_at_once() {
    assert_eq!(
        Claimant::default().look(seconds(5), None),
        ClaimDecision::Take(1)
    );
    for state in [ShardState::Stopped, ShardState::Failed] {
        let left = lease(4, state);
        let claim = Claimant::default().look(seconds(5), Some((4, Some(&left), false)));
        assert_eq!(claim, ClaimDecision::Take(5));
    }
    let done = lease(4, ShardState::Done);
    let claim = Claimant::default().look(seconds(5), Some((4, Some(&done), true)));
    assert_eq!(claim, ClaimDecision::Done(done.figures));
}

#[test]
fn the_lease_of_a_dead_process_is_taken_at_once() {
    let held = lease(4, ShardState::Running);
    let claim = Claimant::default().look(seconds(5), Some((4, Some(&held), true)));
    assert_eq!(claim, ClaimDecision::Take(5));
}

#[test]
fn a_lease_is_taken_only_after_its_whole_time_without_renewal() {
    let mut claimant = Claimant::default();
    let mut held = lease(4, ShardState::Running);
    assert_eq!(
        claimant.look(seconds(100), Some((4, Some(&held), false))),
        ClaimDecision::Wait(seconds(TIME))
    );
    assert_eq!(
        claimant.look(seconds(129), Some((4, Some(&held), false))),
        ClaimDecision::Wait(seconds(1))
    );
    let mut patient = claimant.clone();
    assert_eq!(
        patient.look(seconds(130), Some((4, Some(&held), false))),
        ClaimDecision::Take(5)
    );
    held.beat += 1;
    assert_eq!(
        claimant.look(seconds(130), Some((4, Some(&held), false))),
        ClaimDecision::Held
    );
}

/// The worker was killed between the creation of the file and its contents.
#[test]
fn a_lease_without_contents_expires_too() {
    let mut claimant = Claimant::default();
    assert_eq!(
        claimant.look(seconds(0), Some((1, None, false))),
        ClaimDecision::Wait(seconds(UNREADABLE))
    );
    assert_eq!(
        claimant.look(seconds(UNREADABLE), Some((1, None, false))),
        ClaimDecision::Take(2)
    );
}

#[test]
fn fencing_numbers_do_not_wrap_around() {
    let left = lease(u64::MAX, ShardState::Stopped);
    let claim = Claimant::default().look(seconds(5), Some((u64::MAX, Some(&left), false)));
    assert_eq!(claim, ClaimDecision::Exhausted);
}

#[test]
fn a_holder_stops_when_it_is_superseded_or_cannot_renew() {
    let mut holder = LeaseHolder::new(3, seconds(TIME), seconds(100));
    assert_eq!(
        holder.turn(seconds(101), Some(3)),
        LeaseAction::Rest(seconds(4))
    );
    assert_eq!(holder.turn(seconds(105), Some(3)), LeaseAction::Renew(1));
    holder.renewed(seconds(105));
    assert_eq!(holder.turn(seconds(119), None), LeaseAction::Renew(2));
    assert_eq!(holder.turn(seconds(120), None), LeaseAction::Expired);
    assert_eq!(
        holder.turn(seconds(106), Some(4)),
        LeaseAction::Superseded(4)
    );
}

/// A shared folder in virtual time. Each change is seen by others after a delay, as with the caches
/// of a network file system; the creation of a name is atomic.
#[derive(Default)]
struct Folder {
    /// Fencing numbers, with their leases over time: when each becomes visible to other machines.
    leases: BTreeMap<u64, Vec<(u64, Lease)>>,
}

impl Folder {
    fn create(&mut self, fence: u64, visible: u64) -> bool {
        let free = !self.leases.contains_key(&fence);
        if free {
            self.write(fence, 0, visible);
        }
        free
    }

    fn write(&mut self, fence: u64, beat: u64, visible: u64) {
        let mut held = lease(fence, ShardState::Running);
        held.beat = beat;
        self.leases.entry(fence).or_default().push((visible, held));
    }

    fn newest(&self, now: u64) -> Option<(u64, Lease)> {
        self.leases.iter().rev().find_map(|(fence, versions)| {
            let seen = versions.iter().rev().find(|(visible, _)| *visible <= now);
            seen.map(|(_, lease)| (*fence, lease.clone()))
        })
    }
}

enum Worker {
    Claiming(Claimant),
    Holding(LeaseHolder),
    Gone,
}

/// Workers of one shard that pause, die and see each other late. While one holds the lease and may
/// write, no other one may. Time is in tenths of a second.
#[test]
fn no_two_workers_may_write_at_the_same_time() {
    let mut takeovers = 0;
    arbtest::arbtest(|u| {
        let mut folder = Folder::default();
        let mut workers: Vec<(Worker, u64)> = (0..4)
            .map(|_| (Worker::Claiming(Claimant::default()), 0))
            .collect();
        // Changes are seen after at most a quarter of the time of a lease.
        let most_delay = TIME * 10 / 4;
        let tenths = |n: u64| Duration::from_millis(n * 100);
        // Clocks of the workers differ.
        let skews = [0, 1_000_000, 77, 500];
        for now in 0..3000 {
            let mut writers = 0;
            for (at, (worker, wakes)) in workers.iter_mut().enumerate() {
                if *wakes > now {
                    continue;
                }
                let clock = tenths(now + skews[at]);
                *worker = match std::mem::replace(worker, Worker::Gone) {
                    Worker::Gone => Worker::Claiming(Claimant::default()),
                    Worker::Claiming(mut claimant) => {
                        let newest = folder.newest(now);
                        let seen = newest.as_ref().map(|(f, lease)| (*f, Some(lease), false));
                        match claimant.look(clock, seen) {
                            ClaimDecision::Take(fence) => {
                                let visible = now + u.int_in_range(0..=most_delay)?;
                                match folder.create(fence, visible) {
                                    true => {
                                        takeovers += u64::from(fence > 1);
                                        Worker::Holding(LeaseHolder::new(
                                            fence,
                                            seconds(TIME),
                                            clock,
                                        ))
                                    }
                                    false => Worker::Claiming(claimant),
                                }
                            }
                            ClaimDecision::Held => Worker::Claiming(Claimant::default()),
                            _ => Worker::Claiming(claimant),
                        }
                    }
                    Worker::Holding(mut holder) => {
                        // Its own folder may show a follower late.
                        let newest = folder.newest(now).map(|(fence, _)| fence);
                        match holder.turn(clock, newest) {
                            LeaseAction::Superseded(_) | LeaseAction::Expired => Worker::Gone,
                            LeaseAction::Rest(_) => {
                                writers += 1;
                                Worker::Holding(holder)
                            }
                            LeaseAction::Renew(beat) => {
                                writers += 1;
                                let visible = now + u.int_in_range(0..=most_delay)?;
                                folder.write(holder.fence(), beat, visible);
                                holder.renewed(clock);
                                Worker::Holding(holder)
                            }
                        }
                    }
                };
                // Pauses and deaths.
                match u.int_in_range(0..=400)? {
                    0 => *wakes = now + u.int_in_range(0..=900)?,
                    1 => *worker = Worker::Gone,
                    _ => {}
                }
            }
            assert!(writers <= 1, "{writers} workers write at {now}");
        }
        Ok(())
    })
    .size_max(1 << 16)
    .budget_ms(1500);
    assert!(takeovers > 0, "the test never took a lease over");
}
