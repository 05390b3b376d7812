use std::io;
use std::time::{Duration, Instant};

use mio::Token;
use schedule::{ConnectionId, LaneId};

use super::driver::{Driver, STALLED, first_token};
use super::{ChannelId, Command, Link, LinkError, NoMoreConnections};

/// Tokens that a link may use.
pub(super) const TOKENS: usize = 64;

/// A connection that is lost sooner counts as refused: to make another each time would be a login
/// for each.
const YOUNG: Duration = Duration::from_secs(30);

/// A connection to the host with the lanes on it.
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) link: Box<dyn Link>,
    /// Lanes that were opened on it so far.
    pub(super) opened: u32,
    /// The link refused a channel for listings, or carries one channel only.
    pub(super) one_channel: bool,
    /// Closed as soon as its lanes have nothing left.
    pub(super) retiring: bool,
    /// It goes beside the server's own logins.
    pub(super) straight: bool,
    /// It was asked to bear losses.
    pub(super) bears_losses: bool,
    since: Instant,
}

impl Connection {
    pub(super) fn has_token(&self, token: Token) -> bool {
        let first = first_token(self.id.0).0;
        (first..first + TOKENS).contains(&token.0)
    }
}

impl Driver {
    /// Takes a connection into the loop.
    pub(super) fn adopt(&mut self, mut link: Box<dyn Link>) -> io::Result<ConnectionId> {
        let id = ConnectionId(self.next_connection);
        link.register(self.poll.registry(), first_token(id.0))?;
        self.spread.set_cuts(link.cuts());
        self.next_connection += 1;
        if let Some(rate) = self.options.limit {
            // A read takes a fiftieth of a second's worth: one of a megabyte would come at once,
            // and its debt be forgotten where it was the last.
            let most = usize::try_from(rate / 50).unwrap_or(usize::MAX);
            link.limit_receive(most.clamp(1024, 1 << 20));
        }
        self.connections.push(Connection {
            id,
            straight: link.is_straight(),
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

    /// A further connection has come about, or not.
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

    /// Asks for one more connection, from a thread of its own.
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
            // Nobody waits for it any more when the session has ended; the link is dropped then.
            let _ = orders.send(Command::Joined(reach.another(brief)));
            bell.ring();
        });
        if let Err(e) = spawned {
            self.joined(now, Err(NoMoreConnections::Connection(e.to_string())));
        }
    }

    /// A connection is gone: what its lanes had to do is done by others, if there are any.
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

    /// Nothing more of what was sent on the connection's lanes leaves from here.
    pub(super) fn cut_lanes(&mut self, now: Instant, id: ConnectionId) {
        if self.connection(id).is_some_and(|on| on.link.cuts()) {
            for on in self.lanes.iter().filter(|on| on.id.connection == id) {
                self.spread.lane_is_cut(now, on.id);
            }
        }
    }

    /// Gives up a connection whose lanes stand still. What they had sent shall not arrive: others
    /// have sent it, and the file waits for its name. Where it arrives in any case, the connection
    /// is kept until the server has said that it has.
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

    /// Takes it out, with the lanes on it that were closed and whose channels are not over.
    fn take_connection(
        &mut self,
        id: ConnectionId,
        why: &str,
    ) -> Option<(Connection, Vec<LaneId>)> {
        // First: whether the server ended it for the question is noted on it.
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

    /// Lets go of a connection without lanes, where there are others.
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
        // What was to be given back is all there is now.
        if self.connections.iter().all(|on| on.retiring) {
            for on in &mut self.connections {
                on.retiring = false;
            }
        }
        self.turns.stir();
    }

    /// Closes what was retired and has nothing left to do.
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

    /// The lane on `channel` of `connection`.
    pub(super) fn lane_on(&self, connection: ConnectionId, channel: ChannelId) -> Option<usize> {
        let on = |on: &super::lanes::LaneOnChannel| {
            on.id.connection == connection && on.channel == channel
        };
        self.lanes.iter().position(on)
    }
}
