use super::*;

fn progress(id: u64, n: u64) -> SessionEvent {
    SessionEvent::Lane(LaneEvent::Progress(JobId(id), n))
}

fn told(batcher: &mut EventBatcher) -> Vec<String> {
    let events = std::iter::from_fn(|| batcher.poll_event());
    events.map(|event| format!("{event:?}")).collect()
}

#[test]
fn progress_of_one_file_is_summed_for_an_interval() {
    let now = Instant::now();
    let mut batcher = EventBatcher::new(now);
    for _ in 0..10 {
        batcher.tell(now, progress(1, 100));
    }
    assert!(told(&mut batcher).is_empty());
    assert_eq!(batcher.poll_timeout(), Some(now + INTERVAL));
    batcher.handle_timeout(now + INTERVAL);
    assert_eq!(told(&mut batcher), [format!("{:?}", progress(1, 1000))]);
    assert_eq!(batcher.poll_timeout(), None);
}

#[test]
fn progress_is_told_before_the_event_that_follows_it() {
    let now = Instant::now();
    let mut batcher = EventBatcher::new(now);
    batcher.tell(now, progress(1, 7));
    batcher.tell(now, SessionEvent::Reconnected);
    let rejoined = format!("{:?}", SessionEvent::Reconnected);
    assert_eq!(
        told(&mut batcher),
        [format!("{:?}", progress(1, 7)), rejoined]
    );
}

#[test]
fn progress_of_two_files_is_not_mixed() {
    let now = Instant::now();
    let mut batcher = EventBatcher::new(now);
    batcher.tell(now, progress(1, 7));
    batcher.tell(now, progress(2, 8));
    batcher.handle_timeout(now + INTERVAL);
    let all = [progress(1, 7), progress(2, 8)].map(|event| format!("{event:?}"));
    assert_eq!(told(&mut batcher), all);
}

/// No byte of progress is lost or told twice, no event overtakes another one, and none waits longer
/// than the interval.
#[test]
fn batched_progress_adds_up_and_nothing_is_overtaken() {
    let mut seed = testkit::Seed::new(20);
    for _ in 0..200 {
        let mut now = Instant::now();
        let mut batcher = EventBatcher::new(now);
        // Bytes of each file since the last other event.
        let mut expected: Vec<(u64, u64)> = Vec::new();
        let mut found: Vec<(u64, u64)> = Vec::new();
        let push = |all: &mut Vec<(u64, u64)>, id, n| match all.last_mut() {
            Some((last, sum)) if *last == id && id > 0 => *sum += n,
            _ => all.push((id, n)),
        };
        for _ in 0..60 {
            now += Duration::from_millis(seed.below(30));
            match seed.below(8) {
                0 => {
                    batcher.tell(now, SessionEvent::Reconnected);
                    push(&mut expected, 0, 0);
                }
                _ => {
                    let (id, n) = (1 + seed.below(2), seed.below(100));
                    batcher.tell(now, progress(id, n));
                    push(&mut expected, id, n);
                }
            }
            let held = batcher.poll_timeout();
            assert!(
                held.is_none_or(|at| at > now && at <= now + INTERVAL),
                "{held:?}"
            );
            while let Some(event) = batcher.poll_event() {
                match event {
                    SessionEvent::Lane(LaneEvent::Progress(id, n)) => push(&mut found, id.0, n),
                    _ => push(&mut found, 0, 0),
                }
            }
        }
        batcher.handle_timeout(now + INTERVAL);
        while let Some(event) = batcher.poll_event() {
            match event {
                SessionEvent::Lane(LaneEvent::Progress(id, n)) => push(&mut found, id.0, n),
                _ => push(&mut found, 0, 0),
            }
        }
        assert_eq!(found, expected);
    }
}
