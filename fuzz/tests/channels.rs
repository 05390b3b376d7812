//! Two ends of the connection protocol with windows down to one byte. Data arrives as sent, no
//! window is exceeded (the receiver checks), every answer belongs to a request, and once the owner
//! has consumed everything, nothing is left waiting.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use fuzz::operate;
use ssh::EndpointRole;
use ssh::channel::{ChannelEvent, ChannelId, Channels, ChannelsConfig, OutgoingRequest};
use wire::{PacketPool, PayloadBlock};

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    Open,
    Write {
        end: bool,
        channel: u8,
        len: u16,
    },
    WriteBlock {
        end: bool,
        channel: u8,
        len: u16,
        slot: u16,
    },
    Request {
        channel: u8,
        want_reply: bool,
    },
    Eof {
        end: bool,
        channel: u8,
    },
    Close {
        end: bool,
        channel: u8,
        sure: u8,
    },
    Consume {
        end: bool,
        channel: u8,
        most: u16,
    },
    Deliver {
        end: bool,
        messages: u8,
    },
    Keepalive,
    Wait {
        ms: u8,
    },
}

/// State of one channel at one end.
#[derive(Default)]
struct Half {
    /// Bytes given to the channel, as a running count; byte `n` of a stream is the hash of `n`.
    written: u64,
    received: u64,
    unconsumed: usize,
    eof_sent: bool,
    eof_received: bool,
    close_asked: bool,
    gone: bool,
    asked: usize,
    answered: usize,
}

struct End {
    channels: Channels,
    halves: BTreeMap<u32, Half>,
    /// Messages on their way to this end.
    path: VecDeque<Bytes>,
    alive: usize,
}

struct Pair {
    /// Both ends: client, server.
    ends: [End; 2],
    /// Channel numbers of client and server for each of the client's channels, in the order of
    /// opening.
    matches: Vec<(u32, Option<u32>)>,
    now: Instant,
    pool: PacketPool,
    predicted: bool,
    /// Maximum bytes of a write; with a window of a few bytes each write takes many messages.
    most: u16,
    keepalives: usize,
}

fn byte(at: u64, seed: u64) -> u8 {
    ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Pair {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let predicted = u.ratio(1, 3)?;
        let pool = PacketPool::new(u.int_in_range(1..=40_000)?, 8);
        let mut most = u16::MAX;
        let mut end = |role| -> Result<End> {
            let largest = *u.choose(&[1, 3, 100, 5000, 40_000, 300_000])?;
            let mut window = u.int_in_range(1..=largest)?;
            if predicted && role == EndpointRole::Server {
                // sshd's window, which a predicting client relies on.
                window = 2 << 20;
            }
            if window < 2000 {
                most = 700;
            }
            let config = ChannelsConfig {
                window,
                max_window: u.int_in_range(1..=4 << 20)?,
                ..ChannelsConfig::default()
            };
            let mut channels = Channels::new(role, config, pool.clone());
            if u.arbitrary()? {
                channels.set_rtt(Duration::from_millis(50));
            }
            Ok(End {
                channels,
                halves: BTreeMap::new(),
                path: VecDeque::new(),
                alive: 0,
            })
        };
        let ends = [end(EndpointRole::Client)?, end(EndpointRole::Server)?];
        Ok(Self {
            ends,
            matches: Vec::new(),
            now: Instant::now(),
            pool,
            predicted,
            most,
            keepalives: 0,
        })
    }

    /// Returns this end's number of the nth channel, if the channel exists here.
    fn number(&self, end: usize, nth: u8) -> Option<u32> {
        let (client, server) = *self
            .matches
            .get(usize::from(nth) % self.matches.len().max(1))?;
        match end {
            0 => Some(client),
            _ => server,
        }
    }

    fn seed(&self, writer: usize, number: u32) -> u64 {
        let position = self.matches.iter().position(|m| match writer {
            0 => m.0 == number,
            _ => m.1 == Some(number),
        });
        (position.unwrap_or_default() * 2 + writer) as u64 * 1_000_003
    }

    fn peer(&self, end: usize, number: u32) -> Option<u32> {
        let found = self.matches.iter().find(|m| match end {
            0 => m.0 == number,
            _ => m.1 == Some(number),
        })?;
        match end {
            0 => found.1,
            _ => Some(found.0),
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Open => {
                if self.matches.len() < 6 {
                    let channels = &mut self.ends[0].channels;
                    let id = match self.predicted {
                        true => channels.open_session_predicted(),
                        false => channels.open_session(),
                    };
                    self.ends[0].halves.insert(id.0, Half::default());
                    self.matches.push((id.0, None));
                }
            }
            Op::Write { end, channel, len } => self.write(end.into(), channel, len, None),
            Op::WriteBlock {
                end,
                channel,
                len,
                slot,
            } => self.write(end.into(), channel, len, Some(slot.into())),
            Op::Request {
                channel,
                want_reply,
            } => {
                if let Some(number) = self.number(0, channel)
                    && let Some(half) = self.ends[0].halves.get_mut(&number)
                    && !half.gone
                    && !half.close_asked
                {
                    half.asked += usize::from(want_reply);
                    let request = OutgoingRequest::Exec(b"true".to_vec());
                    self.ends[0]
                        .channels
                        .request(ChannelId(number), request, want_reply);
                }
            }
            Op::Eof { end, channel } => {
                let end = usize::from(end);
                if let Some(number) = self.number(end, channel)
                    && let Some(half) = self.ends[end].halves.get_mut(&number)
                    && !std::mem::replace(&mut half.eof_sent, true)
                {
                    self.ends[end].channels.send_eof(ChannelId(number));
                }
            }
            // Rare, as otherwise no channel would live for long. A predicted number equals the
            // peer's only while no channel has been closed.
            Op::Close { end, channel, sure } => {
                let end = usize::from(end);
                if sure < 32
                    && !self.predicted
                    && let Some(number) = self.number(end, channel)
                    && let Some(half) = self.ends[end].halves.get_mut(&number)
                    && !std::mem::replace(&mut half.close_asked, true)
                {
                    self.ends[end].channels.close(ChannelId(number));
                }
            }
            Op::Consume { end, channel, most } => {
                let end = usize::from(end);
                if let Some(number) = self.number(end, channel) {
                    self.consume(end, number, most.into());
                }
            }
            Op::Deliver { end, messages } => {
                for _ in 0..=messages % 16 {
                    self.deliver(end.into());
                }
            }
            Op::Keepalive => {
                self.keepalives += 1;
                self.ends[0].channels.send_keepalive();
            }
            Op::Wait { ms } => self.now += Duration::from_millis(ms.into()),
        }
        self.flush();
    }

    fn write(&mut self, end: usize, channel: u8, len: u16, slot: Option<usize>) {
        let Some(number) = self.number(end, channel) else {
            return;
        };
        let seed = self.seed(end, number);
        let Some(half) = self.ends[end].halves.get_mut(&number) else {
            return;
        };
        if half.eof_sent || half.close_asked || half.gone {
            return;
        }
        let from = half.written;
        half.written += u64::from(len % self.most);
        let data: Vec<u8> = (from..half.written).map(|at| byte(at, seed)).collect();
        let channels = &mut self.ends[end].channels;
        match slot {
            None => channels.write(ChannelId(number), &data),
            Some(slot) => {
                let mut block = PayloadBlock::new(&self.pool, slot.min(32 * 1024), 0, data.len());
                assert_eq!(block.append(&data), data.len());
                channels.write_block(ChannelId(number), block);
            }
        }
    }

    fn consume(&mut self, end: usize, number: u32, most: usize) {
        if let Some(half) = self.ends[end].halves.get_mut(&number) {
            let n = most.min(half.unconsumed);
            half.unconsumed -= n;
            self.ends[end]
                .channels
                .consumed(self.now, ChannelId(number), n);
        }
    }

    fn flush(&mut self) {
        for end in 0..2 {
            while let Some(packet) = self.ends[end].channels.poll_packet() {
                let payload = Bytes::copy_from_slice(packet.payload());
                self.ends[1 - end].path.push_back(payload);
            }
        }
    }

    fn deliver(&mut self, end: usize) {
        let Some(payload) = self.ends[end].path.pop_front() else {
            return;
        };
        let handled = self.ends[end].channels.handle(self.now, payload);
        handled.unwrap_or_else(|e| panic!("the other end is honest: {e}"));
        while let Some(event) = self.ends[end].channels.poll_event() {
            self.event(end, event);
        }
        self.flush();
    }

    fn event(&mut self, end: usize, event: ChannelEvent) {
        match event {
            ChannelEvent::SessionOpened(id) => {
                // Confirmations arrive in this order, so that this is the first one without a
                // number.
                let unmatched = self.matches.iter_mut().find(|m| m.1.is_none());
                unmatched.expect("an open that was asked for").1 = Some(id.0);
                self.ends[end].halves.insert(id.0, Half::default());
                self.ends[end].channels.accept(id);
            }
            ChannelEvent::Data(id, data) => {
                let writer = self.peer(end, id.0).expect("a channel with a peer");
                let seed = self.seed(1 - end, writer);
                let half = self.ends[end]
                    .halves
                    .get_mut(&id.0)
                    .expect("an open channel");
                assert!(!half.eof_received && !half.gone, "data behind the end");
                for got in &data {
                    assert_eq!(*got, byte(half.received, seed), "at {}", half.received);
                    half.received += 1;
                }
                half.unconsumed += data.len();
            }
            ChannelEvent::Eof(id) => {
                let half = self.ends[end]
                    .halves
                    .get_mut(&id.0)
                    .expect("an open channel");
                half.eof_received = true;
                // Data that arrives after our own close() is dropped.
                let (received, left) = (half.received, half.close_asked);
                let peer = self.peer(end, id.0).expect("a channel with a peer");
                let sent = &self.ends[1 - end].halves[&peer];
                assert!(sent.eof_sent);
                assert!(left || received == sent.written, "EOF came before the data");
            }
            ChannelEvent::Closed(id) => {
                let half = self.ends[end]
                    .halves
                    .get_mut(&id.0)
                    .expect("an open channel");
                assert!(!std::mem::replace(&mut half.gone, true), "closed twice");
                let (received, asked) = (half.received, half.close_asked);
                let peer = self.peer(end, id.0).expect("a channel with a peer");
                let sent = &self.ends[1 - end].halves[&peer];
                if !asked {
                    assert!(sent.close_asked, "closed unasked");
                    assert_eq!(received, sent.written, "CLOSE came before the data");
                }
            }
            ChannelEvent::Request { id, want_reply, .. } => {
                if want_reply {
                    self.ends[end].channels.answer(id, id.0 % 2 == 0);
                }
            }
            ChannelEvent::RequestSucceeded(id) | ChannelEvent::RequestFailed(id) => {
                let half = self.ends[end]
                    .halves
                    .get_mut(&id.0)
                    .expect("an open channel");
                half.answered += 1;
                assert!(half.answered <= half.asked);
            }
            ChannelEvent::Opened(_) => {}
            ChannelEvent::Alive => self.ends[end].alive += 1,
            other => panic!("{other:?} among honest ends"),
        }
    }

    /// Consumes and delivers until nothing moves.
    fn settle(&mut self) {
        for _ in 0..5_000_000 {
            self.flush();
            for end in 0..2 {
                let numbers: Vec<u32> = self.ends[end].halves.keys().copied().collect();
                for number in numbers {
                    self.consume(end, number, usize::MAX);
                }
            }
            self.flush();
            if self.ends.iter().all(|e| e.path.is_empty()) {
                return;
            }
            for end in 0..2 {
                for _ in 0..self.ends[end].path.len() {
                    self.deliver(end);
                }
            }
        }
        panic!("the ends never stop talking");
    }

    fn judge(&self) {
        for (client, server) in &self.matches {
            let server = server.expect("every open was answered");
            let halves = [&self.ends[0].halves[client], &self.ends[1].halves[&server]];
            let closed = halves.iter().any(|h| h.close_asked);
            for (end, number) in [(0, *client), (1, server)] {
                let (mine, theirs) = (halves[end], halves[1 - end]);
                let id = ChannelId(number);
                let channels = &self.ends[end].channels;
                assert!(theirs.received <= mine.written);
                if closed {
                    assert!(!channels.exists(id), "a closed channel is still there");
                    continue;
                }
                assert_eq!(
                    theirs.received,
                    mine.written,
                    "stuck: {}",
                    channels.window(id)
                );
                assert_eq!(channels.queued(id), 0);
                assert!(!channels.is_stalled(id));
                assert_eq!(mine.answered, mine.asked);
                assert_eq!(mine.eof_sent, theirs.eof_received);
            }
        }
        assert_eq!(self.ends[0].alive, self.keepalives);
    }
}

#[test]
fn what_goes_in_comes_out_and_nothing_sticks() {
    operate(1024, |u| {
        let mut pair = Pair::new(u)?;
        pair.step(Op::Open);
        while !u.is_empty() {
            let op = u.arbitrary()?;
            pair.step(op);
        }
        pair.settle();
        pair.judge();
        Ok(())
    });
}
