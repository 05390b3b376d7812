use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::packet::{PacketHeaders, ResetSegment, TcpHeader};
use crate::path::{Middlebox, MiddleboxAction, MiddleboxLimit, PacketDirection};

/// Maximum number of connections that are tracked; others are not reset.
const MOST: usize = 65_536;

/// The TCP connections on the path, tracked in order to reset or stall them.
#[derive(Debug, Default)]
pub(super) struct ConnectionTracker {
    flows: BTreeMap<ConnectionEndpoints, TrackedConnection>,
    middlebox: Option<Middlebox>,
}

/// Address and port of the near and the far end.
type ConnectionEndpoints = [(IpAddr, u16); 2];

/// TCP connection since its SYN, with the sequence numbers that a reset of it needs.
#[derive(Debug, Default)]
struct TrackedConnection {
    /// The connection was reset or stalled; nothing passes any more.
    dead: Option<MiddleboxAction>,
    /// Time of the SYN in nanoseconds, and IP bytes in both directions.
    began: u64,
    bytes: u64,
    /// State of each direction, indexed by direction.
    ways: [TrackedDirection; 2],
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct TrackedDirection {
    /// Next sequence number after all that was sent, and after all that has arrived.
    sent: Option<u32>,
    arrived: Option<u32>,
    finished: bool,
}

/// Treatment of a packet that enters the path, by the state of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketVerdict {
    Pass,
    Drop,
    /// Drop the packet of a stalled connection.
    Stall,
    /// Drop the packet, and send this reset back.
    Answer(ResetSegment),
}

impl ConnectionTracker {
    pub(super) fn new(middlebox: Option<Middlebox>) -> Self {
        Self {
            flows: BTreeMap::new(),
            middlebox,
        }
    }

    /// Counts a frame of `bytes` on the wire, and lets the middlebox break its connection if that
    /// is due. Returns the resets for both ends, with their directions.
    pub(super) fn break_if_due(
        &mut self,
        direction: PacketDirection,
        headers: &PacketHeaders,
        now: u64,
        bytes: u64,
    ) -> Vec<(PacketDirection, ResetSegment)> {
        let (Some(middlebox), Some((ends, tcp))) = (self.middlebox, ends(direction, headers))
        else {
            return Vec::new();
        };
        if tcp.has(TcpHeader::SYN) && tcp.ack.is_none() {
            self.begin(ends);
            if let Some(flow) = self.flows.get_mut(&ends).filter(|flow| flow.bytes == 0) {
                flow.began = now;
            }
        }
        let Some(flow) = self.flows.get_mut(&ends).filter(|f| f.dead.is_none()) else {
            return Vec::new();
        };
        flow.bytes = flow.bytes.saturating_add(bytes);
        let due = match middlebox.after {
            MiddleboxLimit::Age(age) => {
                u128::from(now.saturating_sub(flow.began)) >= age.as_nanos()
            }
            MiddleboxLimit::Bytes(most) => flow.bytes > most,
        };
        if !due {
            return Vec::new();
        }
        flow.dead = Some(middlebox.action);
        match middlebox.action {
            MiddleboxAction::Reset => flow.resets(&ends).collect(),
            MiddleboxAction::Stall => Vec::new(),
        }
    }

    /// Decides on a frame of `len` IP bytes that enters the path. A connection is tracked from its
    /// SYN on.
    pub(super) fn sets_out(
        &mut self,
        direction: PacketDirection,
        headers: &PacketHeaders,
        len: usize,
    ) -> PacketVerdict {
        let Some((ends, tcp)) = ends(direction, headers) else {
            return PacketVerdict::Pass;
        };
        if tcp.has(TcpHeader::SYN) && tcp.ack.is_none() {
            self.begin(ends);
        }
        let Entry::Occupied(mut entry) = self.flows.entry(ends) else {
            return PacketVerdict::Pass;
        };
        let flow = entry.get_mut();
        match flow.dead {
            Some(MiddleboxAction::Stall) => return PacketVerdict::Stall,
            Some(MiddleboxAction::Reset) if tcp.has(TcpHeader::RST) => return PacketVerdict::Drop,
            Some(MiddleboxAction::Reset) => {
                return PacketVerdict::Answer(answer(direction, &ends, &tcp, len));
            }
            None => {}
        }
        let way = &mut flow.ways[direction as usize];
        later(&mut way.sent, tcp.next_seq(len));
        way.finished |= tcp.has(TcpHeader::FIN);
        let over = flow.ways.iter().all(|way| way.finished);
        if over || tcp.has(TcpHeader::RST) {
            entry.remove();
        }
        PacketVerdict::Pass
    }

    /// Decides if a frame may arrive.
    pub(super) fn arrives(
        &mut self,
        direction: PacketDirection,
        headers: &PacketHeaders,
        len: usize,
    ) -> bool {
        let Some((ends, tcp)) = ends(direction, headers) else {
            return true;
        };
        let Some(flow) = self.flows.get_mut(&ends) else {
            return true;
        };
        if flow.dead.is_none() {
            later(
                &mut flow.ways[direction as usize].arrived,
                tcp.next_seq(len),
            );
        }
        flow.dead.is_none()
    }

    /// Resets every connection. The resets go to each end that already takes part, in its
    /// direction.
    pub(super) fn reset_all(&mut self) -> Vec<(PacketDirection, ResetSegment)> {
        let alive = self.flows.iter_mut().filter(|(_, f)| f.dead.is_none());
        let reset = alive.flat_map(|(ends, flow)| {
            flow.dead = Some(MiddleboxAction::Reset);
            flow.resets(ends)
        });
        reset.collect()
    }

    /// Starts tracking a connection at its SYN, also if an earlier one with these ends was reset.
    fn begin(&mut self, ends: ConnectionEndpoints) {
        let full = self.flows.len() >= MOST;
        match self.flows.entry(ends) {
            Entry::Occupied(mut entry) if entry.get().dead.is_some() => {
                entry.insert(TrackedConnection::default());
            }
            Entry::Vacant(entry) if !full => {
                entry.insert(TrackedConnection::default());
            }
            _ => {}
        }
    }
}

impl TrackedConnection {
    /// Resets for each end that already takes part, in its direction.
    fn resets(
        &self,
        ends: &ConnectionEndpoints,
    ) -> impl Iterator<Item = (PacketDirection, ResetSegment)> {
        let (ends, ways) = (*ends, self.ways);
        PacketDirection::BOTH
            .into_iter()
            .filter_map(move |direction| {
                let there = ways[direction as usize];
                let back = ways[direction.opposite() as usize];
                if there.arrived.is_none() && back.sent.is_none() {
                    return None;
                }
                let reset = ResetSegment {
                    from: ends[direction as usize],
                    to: ends[direction.opposite() as usize],
                    seq: there.arrived.unwrap_or(0),
                    ack: back.sent,
                };
                Some((direction, reset))
            })
    }
}

/// The reset that a host without this connection sends (RFC 9293 section 3.10.7.1), back to the
/// origin of `direction`.
fn answer(
    direction: PacketDirection,
    ends: &ConnectionEndpoints,
    tcp: &TcpHeader,
    len: usize,
) -> ResetSegment {
    ResetSegment {
        from: ends[direction.opposite() as usize],
        to: ends[direction as usize],
        seq: tcp.ack.unwrap_or(0),
        ack: Some(tcp.next_seq(len)),
    }
}

/// The ends of a TCP packet's connection, near end first, and its TCP header.
fn ends(
    direction: PacketDirection,
    headers: &PacketHeaders,
) -> Option<(ConnectionEndpoints, TcpHeader)> {
    let (source, destination) = headers.addresses?;
    let (from, to) = headers.ports?;
    let mut ends = [(source, from), (destination, to)];
    if direction == PacketDirection::FarToNear {
        ends.reverse();
    }
    Some((ends, headers.tcp?))
}

/// Raises a sequence number to `new` if that is later; numbers wrap (RFC 9293 section 3.4).
fn later(seq: &mut Option<u32>, new: u32) {
    match seq {
        Some(old) if (new.wrapping_sub(*old) as i32) < 0 => {}
        _ => *seq = Some(new),
    }
}
