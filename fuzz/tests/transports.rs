//! Two transports back to back: data, pings and key exchanges started by either end at any time,
//! delivered in pieces of any size. Every payload arrives once and in order, and neither end
//! reports an error.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::{Bytes, BytesMut};
use fuzz::operate;
use fuzz::peers::{config, drain, proposal, transport};
use ssh::EndpointRole;
use ssh::transport::{KexGuess, Transport, TransportEvent};
use wire::PacketBuf;

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Op {
    /// Sends a payload, held back while a key exchange forbids it.
    Send {
        end: bool,
        len: u16,
    },
    Rekey {
        end: bool,
    },
    Ping {
        end: bool,
    },
    /// Delivers bytes that are on their way to this end.
    Deliver {
        end: bool,
        most: u16,
    },
    DeliverOne {
        end: bool,
    },
    /// Lets time pass.
    Wait {
        ms: u16,
    },
}

struct End {
    transport: Transport,
    /// Bytes on their way to this end.
    path: VecDeque<u8>,
    buf: BytesMut,
    waiting: VecDeque<Vec<u8>>,
    /// Payloads that the other end has sent to this one.
    due: VecDeque<Vec<u8>>,
    keys: usize,
    pings: usize,
    pongs: usize,
    sent: u32,
}

impl End {
    fn new(
        role: EndpointRole,
        u: &mut Unstructured<'_>,
        offer: &ssh::transport::AlgorithmProposal,
    ) -> Result<Self> {
        let mut config = config(role, offer.clone());
        if role == EndpointRole::Client {
            let guesses = [KexGuess::Never, KexGuess::Remembered, KexGuess::ByVersion];
            config.guess = *u.choose(&guesses)?;
        }
        config.rekey_bytes = match u.ratio(1, 3)? {
            true => Some(u.int_in_range(2000..=200_000)?),
            false => None,
        };
        config.rekey_time = match u.ratio(1, 4)? {
            true => Some(Duration::from_millis(u.int_in_range(1000..=100_000)?)),
            false => None,
        };
        Ok(Self {
            transport: transport(role, config),
            path: VecDeque::new(),
            buf: BytesMut::new(),
            waiting: VecDeque::new(),
            due: VecDeque::new(),
            keys: 0,
            pings: 0,
            pongs: 0,
            sent: 0,
        })
    }

    /// Processes arrived bytes.
    fn read(&mut self, now: Instant, most: usize) {
        let n = most.min(self.path.len());
        self.buf.extend(self.path.drain(..n));
        loop {
            let payload = self.transport.next_payload(now, &mut self.buf);
            match payload.unwrap_or_else(|e| panic!("the other end is honest: {e}")) {
                Some(payload) => self.take(&payload),
                None => {
                    let mut approved = false;
                    while let Some(event) = self.transport.poll_event() {
                        match event {
                            TransportEvent::HostKey(_) => {
                                self.transport.accept_host_key().expect("a key to accept");
                                approved = true;
                            }
                            TransportEvent::Keys { .. } => self.keys += 1,
                            TransportEvent::Pong => self.pongs += 1,
                            _ => {}
                        }
                    }
                    if !approved {
                        return;
                    }
                }
            }
        }
    }

    fn take(&mut self, payload: &Bytes) {
        let due = self.due.pop_front().expect("nothing more was sent");
        assert!(
            *payload == due,
            "{:?} came for {:?}",
            payload.get(..5),
            due.get(..5)
        );
    }
}

struct Pair {
    ends: [End; 2],
    now: Instant,
}

impl Pair {
    fn other(&mut self, end: usize) -> &mut End {
        &mut self.ends[1 - end]
    }

    fn flush(&mut self) {
        for end in 0..2 {
            while self.ends[end].transport.may_send()
                && let Some(payload) = self.ends[end].waiting.pop_front()
            {
                let packet = PacketBuf::from_payload(&payload);
                self.ends[end].transport.send(packet).expect("sends");
                self.other(end).due.push_back(payload);
            }
            let bytes = drain(&mut self.ends[end].transport);
            self.other(end).path.extend(bytes);
        }
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.flush();
            if self.ends.iter().all(|e| e.path.is_empty()) {
                return;
            }
            for end in &mut self.ends {
                end.read(self.now, usize::MAX);
            }
        }
        panic!("the ends never stop talking");
    }

    fn step(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Send { end, len } => {
                let end = &mut self.ends[usize::from(end)];
                end.sent += 1;
                let mut payload = vec![94];
                payload.extend_from_slice(&end.sent.to_be_bytes());
                payload.extend((0..len.min(33_000)).map(|i| (i / 3) as u8));
                end.waiting.push_back(payload);
            }
            Op::Rekey { end } => {
                let transport = &mut self.ends[usize::from(end)].transport;
                // A key exchange may already be under way.
                let _ = transport.rekey().expect("rekeys");
            }
            Op::Ping { end } => {
                let end = &mut self.ends[usize::from(end)];
                let sent = end.transport.ping(b"are you there").expect("pings");
                end.pings += usize::from(sent);
            }
            Op::Deliver { end, most } => self.ends[usize::from(end)].read(now, most.into()),
            Op::DeliverOne { end } => self.ends[usize::from(end)].read(now, 1),
            Op::Wait { ms } => self.now += Duration::from_millis(ms.into()),
        }
        for end in &mut self.ends {
            end.transport.handle_timeout(self.now).expect("in time");
        }
        self.flush();
    }
}

#[test]
fn data_arrive_whole_and_in_order_around_key_exchanges() {
    let (mut exchanges, mut pongs) = (0, 0);
    operate(2048, |u| {
        let offer = proposal(u)?;
        let ends = [
            End::new(EndpointRole::Client, u, &offer)?,
            End::new(EndpointRole::Server, u, &offer)?,
        ];
        let now = Instant::now();
        let mut pair = Pair { ends, now };
        pair.flush();
        // The first key exchange, in pieces.
        for _ in 0..u.int_in_range(0..=40)? {
            let (end, most) = (u.choose_index(2)?, u.int_in_range(1..=3000)?);
            pair.ends[end].read(now, most);
            pair.flush();
        }
        pair.settle();
        for end in &mut pair.ends {
            assert_eq!(end.keys, 1);
            end.transport.set_authenticated();
        }
        let session = pair.ends[0].transport.session_id().cloned();
        while !u.is_empty() {
            pair.step(u.arbitrary()?);
        }
        pair.settle();
        for end in &pair.ends {
            assert!(end.transport.may_send(), "a key exchange did not end");
            assert!(
                end.waiting.is_empty() && end.due.is_empty(),
                "data are left"
            );
            assert!(end.buf.is_empty(), "bytes are left");
            // A ping during a key exchange is not answered.
            assert!(end.pongs <= end.pings);
            assert_eq!(end.transport.session_id().cloned(), session);
            pongs += end.pongs;
        }
        assert_eq!(pair.ends[0].keys, pair.ends[1].keys);
        exchanges += pair.ends[0].keys - 1;
        Ok(())
    });
    assert!(
        exchanges > 0 && pongs > 0,
        "{exchanges} key exchanges, {pongs} pongs"
    );
}
