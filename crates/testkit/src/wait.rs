//! Waits for what another process or thread does, always with a deadline.
//!
//! A descriptor and the end of a process are waited for in poll(2). A condition that the kernel
//! does not announce is checked repeatedly, by [`up_to`], which holds the only pause.

use std::net::{SocketAddr, TcpStream};
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

/// Waits for `patience` at most until the peer, on this machine and with IPv4, has read everything
/// that was sent to it. A peer that has closed its socket reads nothing more.
pub fn taken(stream: &TcpStream, patience: Duration) -> bool {
    let ours = stream.local_addr().expect("a connected socket");
    let theirs = stream.peer_addr().expect("a connected socket");
    up_to(patience, || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
        // Bytes that are not acknowledged have not reached the peer's queue yet.
        let sent =
            queues(&table, ours, theirs).is_none_or(|[unacknowledged, _]| unacknowledged == 0);
        sent && queues(&table, theirs, ours).is_none_or(|[_, unread]| unread == 0)
    })
}

/// Finds the socket at `local` that is connected to `remote` in /proc/net/tcp (proc_net(5)). Returns
/// the bytes in its send queue and in its receive queue.
fn queues(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<[u64; 2]> {
    let [local, remote] = [local, remote].map(|address| match address {
        SocketAddr::V4(v4) => {
            let ip = u32::from_ne_bytes(v4.ip().octets());
            format!("{ip:08X}:{:04X}", v4.port())
        }
        SocketAddr::V6(_) => panic!("{address} is in another table"),
    });
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next()? != local || words.next()? != remote {
            return None;
        }
        let (sending, received) = words.nth(1)?.split_once(':')?;
        let bytes = |queue| u64::from_str_radix(queue, 16).ok();
        Some([bytes(sending)?, bytes(received)?])
    })
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
    fn bytes_are_taken_once_the_peer_has_read_them() {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let patience = Duration::from_secs(60);
        assert!(taken(&stream, patience));
        stream.write_all(&[7; 1000]).unwrap();
        assert!(!taken(&stream, Duration::from_millis(10)));
        peer.read_exact(&mut [0; 999]).unwrap();
        assert!(!taken(&stream, Duration::ZERO));
        peer.read_exact(&mut [0]).unwrap();
        assert!(taken(&stream, patience));
        drop(peer);
        assert!(taken(&stream, patience));
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
