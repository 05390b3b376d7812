use std::io;
use std::time::{Duration, Instant};

use mio::Token;
use schedule::{ConnectionId, LaneId};

use super::driver::{STALLED, SessionLoop, first_token};
use super::{ChannelId, Command, Link, LinkError, NoMoreConnections};
use crate::timeline::ConnectionSampler;

/// Number of mio tokens reserved for each link.
pub(super) const TOKENS: usize = 64;

/// Lifetime below which a lost connection counts as refused. Replacing it every time would cost a
/// login each time.
const YOUNG: Duration = Duration::from_secs(30);

/// One connection to the host, with its link and state.
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) link: Box<dyn Link>,
    /// Number of lanes opened on the connection so far.
    pub(super) opened: u32,
    /// The link refused a channel for listings, or carries one channel only.
    pub(super) one_channel: bool,
    /// The connection closes as soon as its lanes have no work left.
    pub(super) retiring: bool,
    /// Direct connection: made to a port of the remote longhaul, without a login at the host's SSH
    /// server.
    pub(super) straight: bool,
    /// BBR was requested for this connection.
    pub(super) bears_losses: bool,
    since: Instant,
    /// Samples the connection for the timeline.
    pub(super) sampler: Option<ConnectionSampler>,
}

impl Connection {
    pub(super) fn has_token(&self, token: Token) -> bool {
        let first = first_token(self.id.0).0;
        (first..first + TOKENS).contains(&token.0)
    }
}

impl SessionLoop {
    /// Adds a connection to the loop.
    pub(super) fn adopt(&mut self, mut link: Box<dyn Link>) -> io::Result<ConnectionId> {
        let id = ConnectionId(self.next_connection);
        link.register(self.poll.registry(), first_token(id.0))?;
        self.spread.set_cuts(link.cuts());
        self.next_connection += 1;
        if let Some(rate) = self.options.limit {
            // One read takes at most a fiftieth of a second's worth. A read of 1 MB would arrive at
            // once, and if it were the last one its debt to the rate limit would never be paid.
            let most = usize::try_from(rate / 50).unwrap_or(usize::MAX);
            link.limit_receive(most.clamp(1024, 1 << 20));
        }
        self.connections.push(Connection {
            id,
            straight: link.is_straight(),
            sampler: link.track().map(ConnectionSampler::new),
            link,
            opened: 0,
            one_channel: false,
            retiring: false,
            bears_losses: false,
            since: Instant::now(),
        });
        Ok(id)
    }

    pub(super) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|on| on.id == id)
    }

    /// Handles the result of a further connection: a link, or the reason that there is none.
    pub(super) fn joined(&mut self, now: Instant, link: Result<Box<dyn Link>, NoMoreConnections>) {
        self.reaching = self.reaching.saturating_sub(1);
        let adopted = match link {
            Ok(link) => self
                .adopt(link)
                .map_err(|e| NoMoreConnections::Connection(e.to_string())),
            Err(why) => Err(why),
        };
        if let Ok(id) = &adopted
            && self.is_late(*id)
        {
            return self.connections.retain(|on| on.id != *id);
        }
        self.straight_joined(now, &adopted);
        let opened = match adopted {
            Ok(id) if self.open_lane(now, id, self.predict, false).is_some() => Ok(id),
            Ok(id) => {
                self.connections.retain(|on| on.id != id);
                Err(NoMoreConnections::Connection(
                    "it carries no SFTP channel".to_owned(),
                ))
            }
            Err(why) => Err(why),
        };
        self.note_joined(now, opened);
    }

    /// Opens one more connection on a thread of its own.
    pub(super) fn reach_out(&mut self, now: Instant) {
        let Some(reach) = self.options.reach.clone() else {
            let none = NoMoreConnections::Login("this session has one connection only".to_owned());
            return self.note_joined(now, Err(none));
        };
        self.reaching += 1;
        let brief = self.is_brief();
        let (orders, bell) = (self.ends.orders.clone(), self.ends.bell.clone());
        let thread = std::thread::Builder::new().name("connect".to_owned());
        let spawned = thread.spawn(move || {
            // After the end of the session the send fails and the link is dropped.
            let _ = orders.send(Command::Joined(reach.another(brief)));
            bell.ring();
        });
        if let Err(e) = spawned {
            self.joined(now, Err(NoMoreConnections::Connection(e.to_string())));
        }
    }

    /// Handles the loss of a connection: other connections take over the work of its lanes, if
    /// there are any.
    pub(super) fn connection_lost(&mut self, now: Instant, id: ConnectionId, error: LinkError) {
        if !self.connections.iter().any(|on| on.id != id) {
            return self.last_connection_lost(now, error);
        }
        let why = error.to_string();
        tracing::info!("a connection was lost: {why}; the others go on");
        self.cut_lanes(now, id);
        while let Some(at) = self.lanes.iter().position(|on| on.id.connection == id) {
            self.lane_gone(now, at, schedule::LaneError::Closed(why.clone()));
        }
        if let Some((gone, _)) = self.take_connection(id, &why) {
            if let LinkError::Lost(why) = error {
                self.note_lost(now, &gone, why);
            }
            gone.link.cut();
        }
        self.keep_some();
        self.recover(now);
    }

    /// Tells the scheduler that the unsent data of the connection's lanes will not leave this
    /// machine.
    pub(super) fn cut_lanes(&mut self, now: Instant, id: ConnectionId) {
        if self.connection(id).is_some_and(|on| on.link.cuts()) {
            for on in self.lanes.iter().filter(|on| on.id.connection == id) {
                self.spread.lane_is_cut(now, on.id);
            }
        }
    }

    /// Gives up a connection whose lanes are stalled. Other lanes have sent the data again and the
    /// rename waits, so the unsent data must not arrive. A link that cannot discard it is retired
    /// instead and stays open until the server has answered.
    pub(super) fn cut_connection(&mut self, now: Instant, id: ConnectionId) {
        if let Some(on) = self.connection(id).filter(|on| !on.link.cuts()) {
            on.retiring = true;
            return self.keep_some();
        }
        let Some((gone, lanes)) = self.take_connection(id, STALLED) else {
            return;
        };
        gone.link.cut();
        for lane in lanes {
            self.spread.lane_is_cut(now, lane);
        }
        self.keep_some();
    }

    /// Removes a connection and returns it with the closed lanes on it whose channels have not
    /// ended yet.
    fn take_connection(
        &mut self,
        id: ConnectionId,
        why: &str,
    ) -> Option<(Connection, Vec<LaneId>)> {
        // First, because it notes on the connection if the server closed it because of the probe
        // for a remote longhaul.
        self.asked_lost(id);
        let at = self.connections.iter().position(|on| on.id == id)?;
        let gone = self.connections.remove(at);
        self.execs_lost(id, why);
        let of = |on: &ConnectionId| *on == id;
        let lanes = self.closed.iter().filter(|((on, _), _)| of(on));
        let lanes = lanes.map(|(_, lane)| *lane).collect();
        self.closed.retain(|(on, _), _| !of(on));
        Some((gone, lanes))
    }

    /// Drops a connection without lanes while others exist.
    pub(super) fn drop_connection(&mut self, now: Instant, id: ConnectionId, why: String) {
        let Some((gone, _)) = self.take_connection(id, &why) else {
            return;
        };
        self.note_lost(now, &gone, why);
        gone.link.finish();
        self.keep_some();
    }

    fn note_lost(&mut self, now: Instant, gone: &Connection, why: String) {
        let young = now.saturating_duration_since(gone.since) < YOUNG;
        if young && gone.straight {
            self.straight_broken(&why);
        }
        if young && !gone.retiring {
            self.note_joined(now, Err(NoMoreConnections::Connection(why)));
        }
    }

    fn keep_some(&mut self) {
        // If only retiring connections are left, keep them.
        if self.connections.iter().all(|on| on.retiring) {
            for on in &mut self.connections {
                on.retiring = false;
            }
        }
        self.turns.stir();
    }

    /// Closes retired lanes and connections that have no work left.
    pub(super) fn close_what_is_free(&mut self, now: Instant) {
        let free = |on: &super::lanes::LaneOnChannel, spread: &schedule::Scheduler| {
            on.retiring && on.lane.is_idle() && spread.lane_is_free(on.id)
        };
        while let Some(at) = self.lanes.iter().position(|on| free(on, &self.spread)) {
            let on = self.lanes.remove(at);
            self.gone.add(&on.lane.stats());
            let (id, channel) = (on.id, on.channel);
            self.spread.lane_lost(now, id, Vec::new(), "given back");
            if let Some(on) = self.connection(id.connection) {
                on.link.close_channel(channel);
            }
        }
        let lanes = &self.lanes;
        let (execs, far) = (&self.execs, &self.far);
        let closed = &self.closed;
        let unused = |on: &Connection| {
            let lanes = lanes.iter().any(|lane| lane.id.connection == on.id);
            let ending = closed.keys().any(|(of, _)| *of == on.id);
            on.retiring && !lanes && !ending && !execs.any_on(on.id) && !far.any_on(on.id)
        };
        if let Some(at) = self.connections.iter().position(unused) {
            self.connections.remove(at).link.finish();
        }
    }

    /// Index of the lane on `channel` of `connection`.
    pub(super) fn lane_on(&self, connection: ConnectionId, channel: ChannelId) -> Option<usize> {
        let on = |on: &super::lanes::LaneOnChannel| {
            on.id.connection == connection && on.channel == channel
        };
        self.lanes.iter().position(on)
    }
}
