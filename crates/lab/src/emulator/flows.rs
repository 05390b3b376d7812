use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::packet::{Headers, ResetSegment, TcpHeader};
use crate::path::Direction;

/// Most connections that are tracked; others are not reset.
const MOST: usize = 65_536;

/// The TCP connections on the path, tracked in order to reset them.
#[derive(Debug, Default)]
pub(super) struct Flows {
    flows: BTreeMap<FlowEndpoints, Flow>,
}

/// Address and port of the near and the far end.
type FlowEndpoints = [(IpAddr, u16); 2];

#[derive(Debug, Default)]
struct Flow {
    /// The connection was reset; nothing passes any more.
    dead: bool,
    /// State of each direction, indexed by direction.
    ways: [FlowDirection; 2],
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct FlowDirection {
    /// Next sequence number after all that was sent, and after all that has arrived.
    sent: Option<u32>,
    arrived: Option<u32>,
    finished: bool,
}

/// The treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketVerdict {
    Pass,
    Drop,
    /// Drop the packet, and send this reset back.
    Answer(ResetSegment),
}

impl Flows {
    /// Decides on a frame of `len` IP bytes that enters the path. A connection is tracked from its
    /// SYN on.
    pub(super) fn sets_out(
        &mut self,
        direction: Direction,
        headers: &Headers,
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
        if flow.dead {
            return match tcp.has(TcpHeader::RST) {
                true => PacketVerdict::Drop,
                false => PacketVerdict::Answer(answer(direction, &ends, &tcp, len)),
            };
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
    pub(super) fn arrives(&mut self, direction: Direction, headers: &Headers, len: usize) -> bool {
        let Some((ends, tcp)) = ends(direction, headers) else {
            return true;
        };
        let Some(flow) = self.flows.get_mut(&ends) else {
            return true;
        };
        if !flow.dead {
            later(
                &mut flow.ways[direction as usize].arrived,
                tcp.next_seq(len),
            );
        }
        !flow.dead
    }

    /// Resets every connection. The resets go to each end that already takes part, in its
    /// direction.
    pub(super) fn reset_all(&mut self) -> Vec<(Direction, ResetSegment)> {
        let mut resets = Vec::new();
        for (ends, flow) in self.flows.iter_mut().filter(|(_, flow)| !flow.dead) {
            flow.dead = true;
            for direction in Direction::BOTH {
                let there = flow.ways[direction as usize];
                let back = flow.ways[direction.opposite() as usize];
                if there.arrived.is_none() && back.sent.is_none() {
                    continue;
                }
                resets.push((
                    direction,
                    ResetSegment {
                        from: ends[direction as usize],
                        to: ends[direction.opposite() as usize],
                        seq: there.arrived.unwrap_or(0),
                        ack: back.sent,
                    },
                ));
            }
        }
        resets
    }

    /// Starts tracking a connection at its SYN, also if an earlier one with these ends was reset.
    fn begin(&mut self, ends: FlowEndpoints) {
        let full = self.flows.len() >= MOST;
        match self.flows.entry(ends) {
            Entry::Occupied(mut entry) if entry.get().dead => {
                entry.insert(Flow::default());
            }
            Entry::Vacant(entry) if !full => {
                entry.insert(Flow::default());
            }
            _ => {}
        }
    }
}

/// The reset that a host without this connection sends (RFC 9293 section 3.10.7.1), back to the
/// origin of `direction`.
fn answer(direction: Direction, ends: &FlowEndpoints, tcp: &TcpHeader, len: usize) -> ResetSegment {
    ResetSegment {
        from: ends[direction.opposite() as usize],
        to: ends[direction as usize],
        seq: tcp.ack.unwrap_or(0),
        ack: Some(tcp.next_seq(len)),
    }
}

/// The ends of a TCP packet's connection, near end first, and its TCP header.
fn ends(direction: Direction, headers: &Headers) -> Option<(FlowEndpoints, TcpHeader)> {
    let (source, destination) = headers.addresses?;
    let (from, to) = headers.ports?;
    let mut ends = [(source, from), (destination, to)];
    if direction == Direction::FarToNear {
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
