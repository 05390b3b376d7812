//! Waits for what another process or thread does, always with a deadline.
//!
//! A descriptor and the end of a process are waited for in poll(2). A condition that the kernel
//! does not announce is checked repeatedly, by [`up_to`], which holds the only pause.

use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Shortest and longest pause between two checks of a condition. The pause grows with the time
/// waited: short waits end at once, and long ones leave the processors to others.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];

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
    let begun = Instant::now();
    let deadline = begun + patience;
    loop {
        // Asked after the clock was read, so that a machine that stood still is not late.
        let late = Instant::now() > deadline;
        let is_done = done();
        if is_done || late {
            return is_done;
        }
        std::thread::sleep((begun.elapsed() / 16).clamp(PAUSES[0], PAUSES[1]));
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

/// Waits until `value` has stayed equal for `quiet`, and returns it; `None` after `patience`.
pub fn steady<T: PartialEq>(
    quiet: Duration,
    patience: Duration,
    mut value: impl FnMut() -> T,
) -> Option<T> {
    let (mut last, mut since) = (value(), Instant::now());
    let is_steady = up_to(patience, || {
        let now = value();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() >= quiet
    });
    is_steady.then_some(last)
}

/// Waits for `patience` at most until a read or an accept would not block.
pub fn readable(descriptor: impl AsFd, patience: Duration) -> bool {
    ready(descriptor, PollFlags::IN, patience)
}

/// Waits for `patience` at most until a write would not block.
pub fn writable(descriptor: impl AsFd, patience: Duration) -> bool {
    ready(descriptor, PollFlags::OUT, patience)
}

fn ready(descriptor: impl AsFd, flags: PollFlags, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    let mut descriptors = [PollFd::new(&descriptor, flags)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a test does not wait for centuries");
        match poll(&mut descriptors, Some(&left)) {
            Ok(count) => return count > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Waits for `patience` at most until the process ends, and returns its exit status.
pub fn exit(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let ended = child.try_wait().expect("a child can be waited for");
    if ended.is_some() || patience.is_zero() {
        return ended;
    }
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    readable(pidfd.expect("a child keeps its id"), patience)
        .then(|| child.wait().expect("a child can be waited for"))
}

/// Runs `work`, and calls `sample` every `every` until it has ended.
pub fn sampled<T>(every: Duration, mut sample: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        // Dropped at the end of the work, even if that panics.
        let (_works, ended) = channel::<()>();
        scope.spawn(move || {
            loop {
                sample();
                if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        work()
    })
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
    fn a_value_is_steady_once_it_has_stopped_changing() {
        let mut left = 20;
        let value = || {
            left = u32::saturating_sub(left, 1);
            left
        };
        let (quiet, patience) = (Duration::from_millis(20), Duration::from_secs(60));
        assert_eq!(steady(quiet, patience, value), Some(0));
        let mut changes = 0;
        let value = || {
            changes += 1;
            changes
        };
        assert_eq!(steady(quiet, Duration::from_millis(60), value), None);
    }

    #[test]
    fn a_child_is_waited_for_no_longer_than_the_limit() {
        let mut command = std::process::Command::new("cat");
        let piped = std::process::Stdio::piped;
        let mut child = command.stdin(piped()).stdout(piped()).spawn().unwrap();
        assert_eq!(exit(&mut child, Duration::from_millis(10)), None);
        drop(child.stdin.take());
        for _ in 0..2 {
            let status = exit(&mut child, Duration::from_secs(60));
            assert!(status.is_some_and(|status| status.success()));
        }
    }

    #[test]
    fn samples_are_taken_until_the_work_ends() {
        let (sender, taken) = channel();
        let sample = move || sender.send(()).unwrap();
        let work = || (0..3).for_each(|_| taken.recv().unwrap());
        sampled(Duration::from_millis(1), sample, work);
    }

    #[test]
    #[should_panic(expected = "it went on")]
    fn the_state_is_told_at_the_limit() {
        until(Duration::ZERO, || false, || "it went on".to_owned());
    }
}
