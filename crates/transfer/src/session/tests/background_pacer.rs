use super::*;

/// Path with a bottleneck and a queue before it, in steps of a millisecond.
struct QueuedPath {
    /// Bytes per millisecond.
    rate: u64,
    /// Round trip without a queue.
    delay: Duration,
    /// Bytes in the queue: the copy's and those of others.
    queued: u64,
    acknowledged: u64,
}

impl QueuedPath {
    fn tcp(&self) -> TcpInfo {
        let queueing = Duration::from_millis(self.queued / self.rate);
        TcpInfo {
            rtt: self.delay + queueing,
            bytes_acked: self.acknowledged,
            ..TcpInfo::default()
        }
    }
}

/// Runs a copy over the path for so many milliseconds, while others send `others` bytes in each of
/// them. Returns the bytes moved and the longest queue of the second half, in milliseconds.
fn run(
    pacer: &mut BackgroundPacer,
    now: &mut Instant,
    path: &mut QueuedPath,
    others: u64,
    ms: u64,
) -> (u64, u64) {
    let (mut moved, mut longest) = (0, 0);
    for step in 0..ms {
        *now += Duration::from_millis(1);
        if pacer.is_due(*now) {
            let answer = Some(path.tcp().rtt);
            pacer.sample(*now, answer, Some(path.tcp()));
        }
        let room = pacer.allowed(*now, path.queued.saturating_sub(others), u64::MAX);
        pacer.spend(room);
        path.queued += room + others;
        let served = path.queued.min(path.rate);
        path.queued -= served;
        let own = served.saturating_sub(others);
        path.acknowledged += own;
        pacer.answered(own);
        moved += own;
        if step > ms / 2 {
            longest = longest.max(path.queued / path.rate);
        }
    }
    (moved, longest)
}

fn path(rate: u64, delay: u64) -> QueuedPath {
    QueuedPath {
        rate,
        delay: Duration::from_millis(delay),
        queued: 0,
        acknowledged: 0,
    }
}

#[test]
fn a_background_copy_uses_an_idle_path_without_filling_its_queue() {
    for (rate, delay) in [(250, 20), (1_000, 5), (1_250, 60), (12_500, 100)] {
        let mut now = Instant::now();
        let mut pacer = BackgroundPacer::new(now);
        let mut path = path(rate, delay);
        let (moved, queue) = run(&mut pacer, &mut now, &mut path, 0, 40_000);
        let share = moved as f64 / (rate * 40_000) as f64;
        assert!(share > 0.5, "{rate}, {delay} ms: {share}");
        assert!(queue < 75, "{rate}, {delay} ms: a queue of {queue} ms");
    }
}

/// Others come while the copy runs, and go again.
#[test]
fn a_background_copy_makes_room_for_others_and_takes_it_back() {
    let mut now = Instant::now();
    let mut pacer = BackgroundPacer::new(now);
    let mut path = path(1_250, 40);
    let (alone, _) = run(&mut pacer, &mut now, &mut path, 0, 20_000);
    let (beside, queue) = run(&mut pacer, &mut now, &mut path, 1_000, 20_000);
    assert!(queue < 120, "others wait {queue} ms");
    assert!(beside < alone / 2, "{beside} of {alone}");
    let (after, _) = run(&mut pacer, &mut now, &mut path, 0, 20_000);
    assert!(after > alone / 2, "{after} of {alone}");
}

/// The kernel's round trip is that of the last acknowledgement: while none comes, it tells of the path
/// as it was before the queue that the answers show.
#[test]
fn a_round_trip_without_new_acknowledgements_counts_for_nothing() {
    let start = Instant::now();
    let mut pacers = [BackgroundPacer::new(start), BackgroundPacer::new(start)];
    for nth in 1..200 {
        let now = start + Duration::from_millis(20 * nth);
        for (pacer, stale) in pacers.iter_mut().zip([false, true]) {
            pacer.answered(4_000);
            let answer = Duration::from_millis(if nth > 40 { 130 } else { 30 });
            let tcp = stale.then(|| TcpInfo {
                rtt: Duration::from_millis(30),
                bytes_acked: nth.min(40) * 4_000,
                ..TcpInfo::default()
            });
            pacer.sample(now, Some(answer), tcp);
        }
    }
    let now = start + Duration::from_secs(5);
    let allowed = pacers.map(|mut pacer| pacer.allowed(now, 0, u64::MAX));
    assert_eq!(allowed[0], allowed[1]);
}

#[test]
fn bytes_in_flight_and_the_callers_limit_bound_what_may_be_sent() {
    let mut now = Instant::now();
    let mut pacer = BackgroundPacer::new(now);
    now += Duration::from_secs(1);
    let all = pacer.allowed(now, 0, u64::MAX);
    assert!(all > 0, "nothing may begin");
    assert_eq!(pacer.allowed(now, 0, 100), 100);
    assert_eq!(pacer.allowed(now, 70, 100), 30);
    assert_eq!(pacer.allowed(now, 101, 100), 0);
    assert_eq!(pacer.allowed(now, all, u64::MAX), 0, "the window is full");
    pacer.spend(100 * all);
    assert_eq!(pacer.allowed(now, 0, u64::MAX), 0, "the rate is used up");
    // A session that waits for the rate wakes up for it, and not only for the next sample.
    pacer.note_waiting(now, true);
    assert!(pacer.poll_timeout() <= now + Duration::from_millis(100));
    assert!(pacer.take_share(now + Duration::from_millis(1)) > 0.0);
}
