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
