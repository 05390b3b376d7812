//! Two relays of a pair over a simulated network that cuts the byte stream anywhere, delays stripes
//! differently and drops them.

#![allow(clippy::unwrap_used, reason = "what cannot be decoded ends the test")]

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use pair::{FrameDecoder, StripeFrame, StripeId, StripedConnection, StripedConnectionConfig};
use testkit::Seed;

const MOST: u64 = 256 << 10;

/// One direction of a stripe.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<(Instant, Vec<u8>)>,
    parser: FrameDecoder,
    held: usize,
}

/// One relay of the pair: its session, the bytes that it sends and those that it has received.
struct Half {
    session: StripedConnection,
    source: Vec<u8>,
    written: usize,
    found: Vec<u8>,
    ended: bool,
}

/// Simulated network between both relays: a delay and two byte pipes for each stripe, in virtual
/// time.
struct Net {
    seed: Seed,
    now: Instant,
    halves: [Half; 2],
    legs: BTreeMap<StripeId, ([Pipe; 2], Duration)>,
    next: u32,
    dropped: u32,
    /// Percentage of the steps in which the reader reads.
    reads: u64,
}

impl Net {
    fn new(seed: u64, sizes: [usize; 2], text: bool) -> Self {
        let mut seed = Seed::new(seed);
        let halves = sizes.map(|size| {
            let source = match text {
                true => b"a line of text, again and again\n".repeat(size / 32),
                false => seed.bytes(size),
            };
            Half {
                session: StripedConnection::new(StripedConnectionConfig {
                    most: MOST,
                    zstd: true,
                    answers: true,
                }),
                source,
                written: 0,
                found: Vec::new(),
                ended: false,
            }
        });
        #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
        let now = Instant::now();
        Self {
            reads: 20 + seed.below(80),
            seed,
            now,
            halves,
            legs: BTreeMap::new(),
            next: 0,
            dropped: 0,
        }
    }

    fn add_leg(&mut self) {
        let id = StripeId(self.next);
        self.next += 1;
        let delay = Duration::from_micros(100 + self.seed.below(40_000));
        self.legs.insert(id, (Default::default(), delay));
        for half in &mut self.halves {
            half.session.add(id);
        }
    }

    fn drop_leg(&mut self) {
        let nth = self.seed.below(self.legs.len() as u64) as usize;
        let id = *self.legs.keys().nth(nth).unwrap();
        self.legs.remove(&id);
        self.dropped += 1;
        for half in &mut self.halves {
            half.session.remove(id);
        }
    }

    /// Sends the frames of a relay on its stripes, as far as they accept them.
    fn send(&mut self, side: usize) {
        let now = self.now;
        let mut all_full = true;
        for (id, (pipes, delay)) in &mut self.legs {
            let pipe = &mut pipes[side];
            while pipe.held < 60_000 {
                let half = &mut self.halves[side];
                let Some(bytes) = half.session.poll(*id, &mut || now) else {
                    all_full = false;
                    break;
                };
                pipe.held += bytes.len();
                pipe.bytes.push_back((now + *delay, bytes.to_vec()));
            }
        }
        let session = &mut self.halves[side].session;
        if all_full && session.wants_leg() {
            session.note_full(now);
        }
    }

    /// Delivers received bytes to a relay, in chunks of any length.
    fn receive(&mut self, side: usize) {
        let now = self.now;
        for (id, (pipes, _)) in &mut self.legs {
            let pipe = &mut pipes[1 - side];
            while let Some((at, bytes)) = pipe.bytes.front_mut() {
                if *at > now || self.seed.below(10) == 0 {
                    break;
                }
                let n = 1 + self.seed.below(bytes.len() as u64) as usize;
                let part: Vec<u8> = bytes.drain(..n).collect();
                if bytes.is_empty() {
                    pipe.bytes.pop_front();
                }
                pipe.held -= n;
                pipe.parser.push(&part);
                while let Some(frame) = pipe.parser.poll().unwrap() {
                    let session = &mut self.halves[side].session;
                    session.handle(*id, &frame, now).unwrap();
                }
            }
        }
    }

    fn apply(&mut self, side: usize) {
        let now = self.now;
        let half = &mut self.halves[side];
        let rest = half.source.len() - half.written;
        let n = match self.seed.below(3) {
            0 => 1,
            1 => 1000,
            _ => 200_000,
        };
        let from = half.written;
        half.written += half.session.write(&half.source[from..from + n.min(rest)]);
        if half.written == half.source.len() {
            half.session.finish();
        }
        if self.seed.below(100) < self.reads {
            let mut part = vec![0; 1 + self.seed.below(100_000) as usize];
            let n = half.session.read(&mut part, now);
            half.found.extend_from_slice(&part[..n]);
            if half.session.is_ended() {
                half.ended = true;
                half.session.pass_on_end();
            }
        }
    }

    fn run(mut self) -> Self {
        self.add_leg();
        for step in 0..2_000_000 {
            for side in [0, 1] {
                self.apply(side);
                self.send(side);
                self.receive(side);
                let [one, other] = &self.halves;
                for (from, to) in [(one, other), (other, one)] {
                    // Neither relay holds more than the configured maximum.
                    assert!(from.written - to.found.len() <= MOST as usize, "{step}");
                    assert!(!to.ended || to.found.len() == from.source.len());
                }
            }
            self.now += Duration::from_micros(self.seed.below(3000));
            if self.legs.len() < 4 && self.seed.below(50) == 0 || self.legs.is_empty() {
                self.add_leg();
            }
            if self.seed.below(60) == 0 && self.legs.len() > 1 || self.seed.below(600) == 0 {
                self.drop_leg();
            }
            if self.halves.iter().all(|half| half.session.is_over()) {
                return self;
            }
        }
        panic!(
            "it stands still with {:?}",
            self.halves.map(|half| (half.written, half.found.len()))
        );
    }
}

#[test]
fn bytes_are_in_order_and_whole_whatever_becomes_of_legs() {
    let mut dropped = 0;
    for seed in 0..60 {
        let sizes = [
            (seed as usize * 37_003) % 3_000_000,
            (seed as usize * 11_003) % 200_000,
        ];
        let net = Net::new(seed, sizes, seed % 3 == 0).run();
        let [one, other] = &net.halves;
        assert!(one.found == other.source, "{seed}");
        assert!(other.found == one.source, "{seed}");
        dropped += net.dropped;
    }
    assert!(dropped > 100, "legs were dropped {dropped} times only");
}

/// Feeds frames to a session with one stripe.
fn told(frames: &[StripeFrame]) -> Result<(), pair::PairError> {
    let mut session = StripedConnection::new(StripedConnectionConfig {
        most: MOST,
        zstd: true,
        answers: false,
    });
    session.add(StripeId(0));
    #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
    let now = Instant::now();
    frames
        .iter()
        .try_for_each(|frame| session.handle(StripeId(0), frame, now))
}

#[test]
fn what_the_other_half_must_not_do_ends_it() {
    let piece = |offset: u64, len: usize| {
        StripeFrame::Data(pair::DataFrame {
            offset,
            len: len as u32,
            packed: false,
            bytes: vec![1; len].into(),
        })
    };
    assert!(told(&[piece(10, 10), piece(0, 10), piece(0, 10)]).is_ok());
    let credit = pair::FIRST_CREDIT;
    for frames in [
        vec![piece(credit, 1)],
        vec![piece(10, 10), piece(15, 10)],
        vec![piece(10, 10), piece(5, 10)],
        vec![piece(10, 10), piece(10, 11)],
        vec![piece(0, 10), piece(5, 10)],
        vec![StripeFrame::End(5), piece(0, 6)],
        vec![StripeFrame::End(5), StripeFrame::End(6)],
        vec![piece(10, 10), StripeFrame::End(5)],
        vec![StripeFrame::Ack {
            received: 1,
            limit: 1,
        }],
        vec![StripeFrame::Bye, piece(0, 1)],
        vec![StripeFrame::Hello {
            token: [0; 16],
            joins: true,
        }],
    ] {
        assert!(told(&frames).is_err(), "{frames:?}");
    }
}

/// The stripe that has the first missing frame stalls: another one repeats it.
#[test]
fn a_leg_that_stands_still_holds_nothing_up() {
    #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
    let mut now = Instant::now();
    let config = StripedConnectionConfig {
        most: MOST,
        zstd: false,
        answers: false,
    };
    let (mut one, mut other) = (
        StripedConnection::new(config),
        StripedConnection::new(config),
    );
    for leg in [StripeId(0), StripeId(1)] {
        one.add(leg);
        other.add(leg);
    }
    one.write(b"first");
    while one.poll(StripeId(0), &mut || now).is_some() {}
    one.write(b"second");
    let mut found = [0; 11];
    for _ in 0..30 {
        let mut parser = FrameDecoder::default();
        while let Some(bytes) = one.poll(StripeId(1), &mut || now) {
            parser.push(&bytes);
        }
        while let Some(frame) = parser.poll().unwrap() {
            other.handle(StripeId(1), &frame, now).unwrap();
        }
        if other.read(&mut found, now) == 11 {
            assert_eq!(&found, b"firstsecond");
            return;
        }
        now = one.deadline().unwrap().max(now + Duration::from_millis(1));
    }
    panic!("what is missing is not sent again");
}

/// A frame of a silent stripe is repeated on the stripe that was heard last, not on another silent
/// one.
#[test]
fn what_is_missing_goes_on_the_leg_that_was_heard_of_last() {
    #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
    let mut now = Instant::now();
    let config = StripedConnectionConfig {
        most: MOST,
        zstd: false,
        answers: false,
    };
    let mut one = StripedConnection::new(config);
    let legs = [StripeId(0), StripeId(1), StripeId(2)];
    let ack = |received| StripeFrame::Ack {
        received,
        limit: 1000,
    };
    for leg in legs {
        one.add(leg);
        one.handle(leg, &ack(0), now).unwrap();
    }
    while one.poll(StripeId(0), &mut || now).is_some() {}
    one.write(b"first");
    let first = one.poll(StripeId(0), &mut || now).unwrap();
    now += Duration::from_millis(100);
    one.handle(StripeId(2), &ack(0), now).unwrap();
    now = one.deadline().unwrap();
    assert_eq!(one.poll(StripeId(0), &mut || now), None);
    assert_eq!(one.poll(StripeId(1), &mut || now), None);
    assert_eq!(one.poll(StripeId(2), &mut || now), Some(first.clone()));
    // The preferred stripe does not deliver it either and takes nothing more: any other one will
    // do.
    now = one.deadline().unwrap() + Duration::from_secs(10);
    assert_eq!(one.poll(StripeId(0), &mut || now), Some(first));
}

#[test]
fn a_leg_that_both_have_taken_leave_of_has_brought_all() {
    #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
    let now = Instant::now();
    let config = StripedConnectionConfig {
        most: MOST,
        zstd: false,
        answers: false,
    };
    let (mut one, mut other) = (
        StripedConnection::new(config),
        StripedConnection::new(config),
    );
    for leg in [StripeId(0), StripeId(1)] {
        one.add(leg);
        other.add(leg);
    }
    one.write(b"bytes");
    one.retire(StripeId(0));
    let mut parser = FrameDecoder::default();
    for answers in [false, true] {
        let (sender, receiver) = match answers {
            false => (&mut one, &mut other),
            true => (&mut other, &mut one),
        };
        while let Some(bytes) = sender.poll(StripeId(0), &mut || now) {
            parser.push(&bytes);
        }
        while let Some(frame) = parser.poll().unwrap() {
            receiver.handle(StripeId(0), &frame, now).unwrap();
        }
    }
    assert!(one.has_parted(StripeId(0)) && other.has_parted(StripeId(0)));
    assert_eq!(one.carrying(), 1);
}

#[test]
fn a_last_word_that_cannot_come_any_more_is_presumed_where_all_else_is_done() {
    #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
    let now = Instant::now();
    let config = StripedConnectionConfig {
        most: MOST,
        zstd: false,
        answers: true,
    };
    let mut session = StripedConnection::new(config);
    session.add(StripeId(0));
    session
        .handle(StripeId(0), &StripeFrame::End(0), now)
        .unwrap();
    assert_eq!(session.read(&mut [0], now), 0);
    session.write(b"bytes");
    session.pass_on_end();
    assert!(!session.presume_over(), "there may be more");
    session.finish();
    assert!(!session.presume_over(), "the end was never sent");
    while session.poll(StripeId(0), &mut || now).is_some() {}
    session.remove(StripeId(0));
    assert!(!session.is_over());
    assert!(session.presume_over() && session.is_over());

    let mut session = StripedConnection::new(config);
    session.add(StripeId(0));
    session.finish();
    while session.poll(StripeId(0), &mut || now).is_some() {}
    assert!(!session.presume_over(), "no end has come");
    session
        .handle(StripeId(0), &StripeFrame::End(0), now)
        .unwrap();
    assert_eq!(session.read(&mut [0], now), 0);
    assert!(!session.presume_over(), "it is not passed on");
    session.pass_on_end();
    assert!(session.presume_over());
}
