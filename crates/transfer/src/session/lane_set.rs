use std::collections::BTreeMap;

use schedule::{ConnectionId, LaneId};

use super::LinkChannelId;
use super::explain::EndedLanes;
use super::lane::LaneOnChannel;

/// Lanes of a session, and the channels of ended lanes that the other side has not closed yet.
#[derive(Default)]
pub(super) struct LaneSet {
    lanes: Vec<LaneOnChannel>,
    /// Channels of lanes that this side has closed and the other side has not.
    closing: BTreeMap<(ConnectionId, LinkChannelId), LaneId>,
    /// Totals of the lanes that have ended.
    ended: EndedLanes,
    /// Position of the lane that is served first in a turn whose limits may not suffice for all.
    first: usize,
}

impl LaneSet {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn as_slice(&self) -> &[LaneOnChannel] {
        &self.lanes
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [LaneOnChannel] {
        &mut self.lanes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LaneOnChannel> {
        self.lanes.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LaneOnChannel> {
        self.lanes.iter_mut()
    }

    pub(super) fn get(&self, id: LaneId) -> Option<&LaneOnChannel> {
        self.lanes.iter().find(|on| on.id() == id)
    }

    pub(super) fn get_mut(&mut self, id: LaneId) -> Option<&mut LaneOnChannel> {
        self.lanes.iter_mut().find(|on| on.id() == id)
    }

    /// Lane on `channel` of `connection`.
    pub(super) fn on_channel(
        &mut self,
        connection: ConnectionId,
        channel: LinkChannelId,
    ) -> Option<&mut LaneOnChannel> {
        let is = |on: &&mut LaneOnChannel| on.connection() == connection && on.channel() == channel;
        self.lanes.iter_mut().find(is)
    }

    /// True if a lane is open on the connection.
    pub(super) fn any_on(&self, connection: ConnectionId) -> bool {
        self.lanes.iter().any(|on| on.connection() == connection)
    }

    /// True if another lane is open on the connection of lane `id`.
    pub(super) fn any_other_on(&self, id: LaneId) -> bool {
        let mut others = self.lanes.iter().filter(|on| on.id() != id);
        others.any(|on| on.connection() == id.connection)
    }

    /// First lane that carries files and keeps getting jobs.
    pub(super) fn working(&self) -> Option<&LaneOnChannel> {
        self.lanes.iter().find(|on| on.is_working())
    }

    /// Number of lanes that carry files.
    pub(super) fn data_lanes(&self) -> usize {
        self.lanes.iter().filter(|on| !on.is_listing()).count()
    }

    pub(super) fn push(&mut self, lane: LaneOnChannel) {
        self.lanes.push(lane);
    }

    /// Removes a lane and adds its figures to the totals.
    pub(super) fn remove(&mut self, id: LaneId) -> Option<LaneOnChannel> {
        let at = self.lanes.iter().position(|on| on.id() == id)?;
        let on = self.lanes.remove(at);
        self.ended.add(&on.lane().stats());
        Some(on)
    }

    /// Removes all lanes.
    pub(super) fn take_all(&mut self) -> Vec<LaneOnChannel> {
        std::mem::take(&mut self.lanes)
    }

    /// Totals of all lanes, ended and open.
    pub(super) fn totals(&self) -> EndedLanes {
        let mut all = self.ended;
        for on in &self.lanes {
            all.add(&on.lane().stats());
        }
        all
    }

    /// Notes that this side has closed the lane's channel.
    pub(super) fn channel_closed(&mut self, channel: LinkChannelId, lane: LaneId) {
        self.closing.insert((lane.connection, channel), lane);
    }

    /// Takes the other side's close of a channel; returns the ended lane that was on it.
    pub(super) fn channel_over(
        &mut self,
        connection: ConnectionId,
        channel: LinkChannelId,
    ) -> Option<LaneId> {
        self.closing.remove(&(connection, channel))
    }

    /// True if the other side has not closed a channel of an ended lane on the connection.
    pub(super) fn is_closing_on(&self, connection: ConnectionId) -> bool {
        self.closing.keys().any(|(on, _)| *on == connection)
    }

    /// Forgets the closing channels of a connection that is gone; returns their lanes.
    pub(super) fn forget_closing(&mut self, connection: ConnectionId) -> Vec<LaneId> {
        let of = |(on, _): &(ConnectionId, LinkChannelId)| *on == connection;
        let lanes = self.closing.iter().filter(|(key, _)| of(key));
        let lanes = lanes.map(|(_, lane)| *lane).collect();
        self.closing.retain(|key, _| !of(key));
        lanes
    }

    /// Position of the lane that is served first.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Chooses the lane that is served first in this turn: the next one if the limits may not
    /// suffice for all, otherwise always the same.
    pub(super) fn rotate(&mut self, divides: bool) {
        self.first = match divides && !self.lanes.is_empty() {
            true => (self.first + 1) % self.lanes.len(),
            false => 0,
        };
    }
}
