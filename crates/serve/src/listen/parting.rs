//! The last that a client hears.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// For so long a client may take its time to go that was told to.
const MOMENT: Duration = Duration::from_millis(500);

/// Reads what a client still sends that was told why it has to go, until it has gone or for a moment.
/// A socket that is closed with something unread is reset, and what was said last is lost with that
/// (RFC 2525 section 2.17): who was in the middle of sending would not know why.
pub(super) fn hear_out(stream: &TcpStream) {
    let until = Instant::now() + MOMENT;
    let mut unheard = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(stream, PollFlags::IN)];
        if left.is_zero() || !matches!(poll(&mut fds, time.as_ref()), Ok(1..) | Err(Errno::INTR)) {
            return;
        }
        match rustix::io::read(stream, &mut unheard) {
            Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}
