use super::*;

const RATE: u64 = 1_000_000;

fn limited(now: Instant) -> SessionRateLimits {
    SessionRateLimits::new(Some(RATE), false, now)
}

#[test]
fn without_a_limit_nothing_is_held_back() {
    let now = Instant::now();
    let mut pacing = SessionRateLimits::new(None, false, now);
    pacing.begin_turn();
    assert!(pacing.may_receive(now));
    assert_eq!(pacing.room(now, 12_345), 12_345);
    pacing.spend(usize::MAX);
    assert!(pacing.may_receive(now));
    assert!(!pacing.holds_back() && !pacing.divides());
    assert_eq!(pacing.poll_timeout(true), None);
}

#[test]
fn bytes_of_both_directions_count_against_one_limit() {
    let mut now = Instant::now();
    let mut pacing = limited(now);
    let (began, mut moved) = (now, 0);
    while moved < 3 * RATE {
        pacing.begin_turn();
        if pacing.may_receive(now) {
            pacing.spend(10_000);
            moved += 10_000;
        }
        let room = pacing.room(now, 40_000);
        pacing.spend(room);
        moved += room as u64;
        pacing.end_turn(now);
        if let Some(at) = pacing.poll_timeout(true) {
            now = now.max(at);
        }
    }
    let took = (now - began).as_secs_f64();
    assert!((2.8..3.2).contains(&took), "{took}");
}

/// Bug: the part of a host that had failed or needed nothing was used by nobody.
#[test]
fn a_limit_is_shared_again_when_a_session_is_over() {
    // 50 ms of it are more than the packet that is always admitted.
    const SHARED: u64 = 10 * RATE;
    let now = Instant::now();
    let shared = SharedRateLimit::new(SHARED);
    let share = || SessionRateLimits::new(Some(SHARED / 2), false, now).shared_by(Some(&shared));
    let (mut one, other) = (share(), share());
    let mut room_after_a_second = |now: Instant| {
        let room = one.room(now, usize::MAX);
        one.spend(room);
        one.end_turn(now);
        one.room(now + Duration::from_millis(50), usize::MAX) as u64
    };
    assert_eq!(
        room_after_a_second(now + Duration::from_secs(1)),
        SHARED / 40
    );
    drop(other);
    assert_eq!(
        room_after_a_second(now + Duration::from_secs(2)),
        SHARED / 20
    );
}

#[test]
fn a_lane_gets_room_for_a_whole_packet_on_credit() {
    let now = Instant::now();
    let mut pacing = limited(now);
    pacing.begin_turn();
    let soon = now + Duration::from_millis(1);
    assert_eq!(
        pacing.room(soon, 1 << 20),
        PACKET,
        "of a credit of 1,000 bytes"
    );
    assert!(pacing.holds_back());
    pacing.spend(PACKET);
    assert_eq!(pacing.room(soon, 1 << 20), 0, "until the debt is paid");
    let paid = soon + Duration::from_millis(40);
    assert!(pacing.room(paid, 1 << 20) > 0);
}

#[test]
fn what_waited_in_one_turn_does_not_wait_in_the_next() {
    let now = Instant::now();
    let mut pacing = limited(now);
    pacing.begin_turn();
    assert!(!pacing.may_receive(now), "there is no credit yet");
    assert!(pacing.poll_timeout(true).is_some());
    pacing.end_turn(now);
    pacing.begin_turn();
    assert!(!pacing.holds_back());
    assert_eq!(pacing.poll_timeout(true), None);
}

#[test]
fn the_share_of_waiting_is_that_of_the_limit() {
    let now = Instant::now();
    let mut pacing = limited(now);
    let second = |n| now + Duration::from_secs(n);
    pacing.take_share(now);
    pacing.begin_turn();
    pacing.may_receive(now);
    pacing.end_turn(now);
    let share = pacing.take_share(second(1));
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    pacing.begin_turn();
    pacing.end_turn(second(1));
    assert!(pacing.take_share(second(2)).abs() < 1e-9);
}

#[test]
fn requests_under_a_limit_fill_the_path_and_a_tenth_of_a_second() {
    let latency = Duration::from_millis(50);
    assert_eq!(left_of_limit(RATE, latency, 0), 200_000);
    assert_eq!(left_of_limit(RATE, latency, 150_000), 50_000);
    assert_eq!(left_of_limit(RATE, latency, 250_000), 0);
    assert_eq!(
        left_of_limit(RATE, Duration::ZERO, 0),
        100_000,
        "not measured"
    );
}

#[test]
fn a_budget_is_the_smaller_of_both_bounds_and_is_spent_by_all_lanes() {
    let mut budget = TurnByteBudget {
        left: Some(100),
        level: Some(60),
    };
    assert_eq!(budget.of_lane(0), Some(60));
    assert_eq!(budget.of_lane(50), Some(10));
    assert_eq!(budget.of_lane(80), Some(0));
    budget.spend(70);
    assert_eq!(budget.of_lane(0), Some(30));
    budget.spend(70);
    assert_eq!(budget.of_lane(0), Some(0));
    let none = TurnByteBudget {
        left: None,
        level: None,
    };
    assert_eq!(none.of_lane(7), None);
}

#[test]
fn silence_means_nothing_under_a_limit_that_a_request_takes_long_for() {
    let now = Instant::now();
    let counts = |limit| SessionRateLimits::new(limit, false, now).silence_counts();
    assert!(counts(None) && counts(Some(SILENCE_COUNTS_FROM)));
    assert!(!counts(Some(SILENCE_COUNTS_FROM - 1)));
}

#[test]
fn a_background_copy_samples_while_it_is_busy() {
    let now = Instant::now();
    let mut pacing = SessionRateLimits::new(None, true, now);
    assert!(pacing.is_background() && pacing.holds_back() && pacing.divides());
    assert_eq!(pacing.poll_timeout(false), None);
    assert_eq!(pacing.poll_timeout(true), Some(now));
    pacing.yield_to_others(now, &mut [], 0, || None, false);
    assert!(pacing.poll_timeout(true).is_some_and(|at| at > now));
}
