//! Growth of a session's receive window over a long path.

#![allow(clippy::unwrap_used, reason = "what cannot be decoded ends the test")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pair::{FrameDecoder, StripeId, StripedConnection, StripedConnectionConfig};

/// Length of a step; 119,000 bytes in each are about 1 Gbit/s.
const STEP: Duration = Duration::from_millis(1);
const EACH_STEP: usize = 119_000;
const ONE_WAY: Duration = Duration::from_millis(57);

/// One direction of the stripe.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<(Instant, Bytes)>,
    parser: FrameDecoder,
    room: usize,
}

impl Pipe {
    /// Carries one step; `source` writes whenever there is room.
    fn carry(
        &mut self,
        from: &mut StripedConnection,
        to: &mut StripedConnection,
        source: bool,
        now: Instant,
    ) {
        self.room = (self.room + EACH_STEP).min(2 * EACH_STEP);
        while self.room > 0 {
            if source {
                from.write(&[0; 64 << 10]);
            }
            let Some(bytes) = from.poll(StripeId(0), &mut || now) else {
                break;
            };
            self.room = self.room.saturating_sub(bytes.len());
            self.bytes.push_back((now + ONE_WAY, bytes));
        }
        while self.bytes.front().is_some_and(|(at, _)| *at <= now) {
            let (_, bytes) = self.bytes.pop_front().unwrap();
            self.parser.push(&bytes);
            while let Some(frame) = self.parser.poll().unwrap() {
                to.handle(StripeId(0), &frame, now).unwrap();
            }
        }
    }
}

/// Reports of a limit that is too low arrive long after newer limits were granted; the window still
/// grows until the path is full.
#[test]
fn the_window_grows_until_the_path_is_full() {
    #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
    let mut now = Instant::now();
    let config = StripedConnectionConfig {
        most: 64 << 20,
        zstd: false,
        answers: false,
    };
    let (mut one, mut other) = (
        StripedConnection::new(config),
        StripedConnection::new(config),
    );
    one.add(StripeId(0));
    other.add(StripeId(0));
    let (mut there, mut back) = (Pipe::default(), Pipe::default());
    let mut into = vec![0; 1 << 20];
    let (mut read, mut second) = (0, 0);
    for step in 0..4000 {
        there.carry(&mut one, &mut other, true, now);
        back.carry(&mut other, &mut one, false, now);
        loop {
            match other.read(&mut into, now) {
                0 => break,
                n => read += n,
            }
        }
        now += STEP;
        if step == 2999 {
            second = read;
        }
    }
    let last = read - second;
    let full = 1000 * EACH_STEP;
    assert!(last > full * 9 / 10, "{last} bytes in a second of {full}");
}
