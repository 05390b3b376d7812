//! Random operations on a client's and a server's channels, connected back to back.

use std::collections::BTreeMap;
use std::time::Duration;

use arbtest::arbitrary::{Result, Unstructured};

use super::*;

/// One end with the expectations to check.
struct End {
    channels: Channels,
    /// Bytes written and bytes received, by our channel number.
    written: BTreeMap<ChannelId, u64>,
    received: BTreeMap<ChannelId, u64>,
    unread: BTreeMap<ChannelId, usize>,
    eof: Vec<ChannelId>,
    closed: Vec<ChannelId>,
    /// Maximum payload that this end is told to send.
    max_packet: u32,
}

impl End {
    fn new(role: EndpointRole, window: u32, max_packet: u32) -> Self {
        let config = ChannelsConfig {
            window,
            max_window: window.saturating_mul(4),
            ..ChannelsConfig::default()
        };
        Self {
            channels: Channels::new(role, config, PacketPool::new(1000, 4)),
            written: BTreeMap::new(),
            received: BTreeMap::new(),
            unread: BTreeMap::new(),
            eof: Vec::new(),
            closed: Vec::new(),
            max_packet,
        }
    }

    /// Writes bytes whose pattern depends on their offset, so that the other end detects lost,
    /// repeated or displaced bytes.
    fn write(&mut self, id: ChannelId, len: usize, as_block: bool) {
        let from = self.written.entry(id).or_default();
        let bytes: Vec<u8> = (*from..*from + len as u64).map(pattern).collect();
        *from += len as u64;
        match as_block {
            true => {
                let pool = PacketPool::new(1000, 0);
                self.channels.write_block(id, block(&pool, 1000, &bytes));
            }
            false => self.channels.write(id, &bytes),
        }
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.channels.poll_event() {
            match event {
                ChannelEvent::Data(id, bytes) => {
                    let from = self.received.entry(id).or_default();
                    for (at, byte) in bytes.iter().enumerate() {
                        assert_eq!(*byte, pattern(*from + at as u64));
                    }
                    *from += bytes.len() as u64;
                    *self.unread.entry(id).or_default() += bytes.len();
                }
                ChannelEvent::SessionOpened(id) => self.channels.accept(id),
                ChannelEvent::Eof(id) => self.eof.push(id),
                ChannelEvent::Closed(id) => self.closed.push(id),
                ChannelEvent::Opened(_) => {}
                other => panic!("{other:?} was not to happen"),
            }
        }
    }

    fn consume(&mut self, now: Instant, id: ChannelId, n: usize) {
        if let Some(unread) = self.unread.get_mut(&id) {
            let n = n.min(*unread);
            *unread -= n;
            self.channels.consumed(now, id, n);
        }
    }
}

fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

/// Carries up to `n` messages over, with the maximum packet rewritten to the test's value.
fn carry(now: Instant, from: &mut End, to: &mut End, n: usize) -> bool {
    for _ in 0..n {
        let Some(packet) = from.channels.poll_packet() else {
            return false;
        };
        let mut message = packet.payload().to_vec();
        if let Ok(m) = ChannelOpen::decode(&message) {
            let max_packet = to.max_packet;
            message = ChannelOpen { max_packet, ..m }.to_bytes();
        } else if let Ok(m) = ChannelOpenConfirmation::decode(&message) {
            let max_packet = to.max_packet;
            message = ChannelOpenConfirmation { max_packet, ..m }.to_bytes();
        } else if let Ok(m) = ChannelData::decode(&message) {
            assert!(m.data.len() <= from.max_packet as usize);
            assert!(!m.data.is_empty());
        }
        // The receiving end checks its window itself.
        to.channels
            .handle(now, Bytes::from(message))
            .expect("neither end misbehaves");
        to.drain_events();
    }
    true
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let mut now = start();
    let mut sizes = || -> Result<u32> {
        Ok(match u.int_in_range(0..=3)? {
            0 => u.int_in_range(1..=10)?,
            1 => u.int_in_range(11..=3000)?,
            _ => u.int_in_range(3001..=300_000)?,
        })
    };
    let mut a = End::new(EndpointRole::Client, sizes()?, sizes()?.min(32768));
    let mut b = End::new(EndpointRole::Server, sizes()?, sizes()?.min(32768));
    for end in [&mut a, &mut b] {
        end.channels.set_rtt(Duration::from_millis(10));
    }
    let ids: Vec<ChannelId> = (0..u.int_in_range(1..=3)?)
        .map(|_| a.channels.open_session())
        .collect();
    let steps = u.int_in_range(1..=200)?;
    for _ in 0..steps {
        let id = *u.choose(&ids)?;
        let n = u.int_in_range(1..=5000)?;
        let (this, that) = match u.arbitrary()? {
            true => (&mut a, &mut b),
            false => (&mut b, &mut a),
        };
        // Both ends count from 0 and close no channel while they open others, so their numbers
        // agree.
        match u.int_in_range(0..=5)? {
            0 if this.channels.exists(id) => this.write(id, n, false),
            1 if this.channels.exists(id) => this.write(id, n, true),
            2 => this.consume(now, id, n),
            3 => now += Duration::from_millis(n as u64 % 50),
            _ => {
                carry(now, this, that, n % 20);
            }
        }
    }
    // In the end everything written arrives, followed by EOF, and then the channels close.
    carry(now, &mut a, &mut b, ids.len());
    for end in [&mut a, &mut b] {
        for id in &ids {
            end.channels.send_eof(*id);
        }
    }
    settle(now, &mut a, &mut b, &ids);
    for (this, that) in [(&a, &b), (&b, &a)] {
        for id in &ids {
            let sent = this.written.get(id).copied().unwrap_or_default();
            let got = that.received.get(id).copied().unwrap_or_default();
            assert_eq!(sent, got, "bytes on channel {id:?}");
            assert_eq!(this.channels.queued(*id), 0);
        }
        assert_eq!(that.eof.len(), ids.len());
    }
    for id in &ids {
        a.channels.close(*id);
    }
    settle(now, &mut a, &mut b, &ids);
    for end in [&a, &b] {
        assert_eq!(end.closed.len(), ids.len());
        assert!(ids.iter().all(|id| !end.channels.exists(*id)));
    }
    Ok(())
}

/// Runs until nothing changes; each turn carries or consumes something, so this ends.
fn settle(now: Instant, a: &mut End, b: &mut End, ids: &[ChannelId]) {
    loop {
        let mut moved = false;
        for _ in 0..2 {
            moved |= carry(now, a, b, 100);
            moved |= carry(now, b, a, 100);
        }
        for id in ids {
            for end in [&mut *a, &mut *b] {
                moved |= end.unread.get(id).is_some_and(|n| *n > 0);
                end.consume(now, *id, usize::MAX);
            }
        }
        if !moved {
            break;
        }
    }
}

#[test]
fn whatever_the_order_all_bytes_arrive_within_the_windows() {
    arbtest::arbtest(run).size_max(4096).budget_ms(3000);
}
