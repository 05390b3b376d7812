//! Waits for what another process does, by asking again and again.

use std::time::{Duration, Instant};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `done` returns true. Fails with the words of `state` if it does not within
/// `patience`.
///
/// # Panics
/// After `patience`.
#[track_caller]
pub fn until(patience: Duration, done: impl FnMut() -> bool, state: impl FnOnce() -> String) {
    assert!(up_to(patience, done), "{}", state());
}

/// Waits for `patience` at most until `done` returns true, and returns what it said last.
pub fn up_to(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        // Asked after the clock was read, so that a machine that stood still is not late.
        let late = Instant::now() > deadline;
        let is_done = done();
        if is_done || late {
            return is_done;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until `find` returns a value. Fails with the words of `state` if it does not within
/// `patience`.
///
/// # Panics
/// After `patience`.
#[track_caller]
pub fn found<T>(
    patience: Duration,
    mut find: impl FnMut() -> Option<T>,
    state: impl FnOnce() -> String,
) -> T {
    let mut last = None;
    up_to(patience, || {
        last = find();
        last.is_some()
    });
    last.unwrap_or_else(|| panic!("{}", state()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_the_wait_and_the_limit_does() {
        let mut asked = 0;
        let third = || {
            asked += 1;
            asked == 3
        };
        assert!(up_to(Duration::from_secs(60), third));
        assert!(!up_to(Duration::ZERO, || false));
        assert_eq!(found(Duration::ZERO, || Some(7), String::new), 7);
    }

    #[test]
    #[should_panic(expected = "it went on")]
    fn the_state_is_told_at_the_limit() {
        until(Duration::ZERO, || false, || "it went on".to_owned());
    }
}
