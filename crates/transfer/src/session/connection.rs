use std::time::{Duration, Instant};

use schedule::{ConnectionId, LaneId};

use super::Link;
use crate::timeline::ConnectionSampler;

/// Lifetime below which a lost connection counts as refused. Replacing it every time would cost a
/// login each time.
const YOUNG: Duration = Duration::from_secs(30);

/// One connection to the host, with its link and state.
pub(super) struct SessionConnection {
    id: ConnectionId,
    link: Box<dyn Link>,
    /// Number of lanes opened on the connection so far.
    opened: u32,
    /// The link refused a channel for listings, or carries one channel only.
    one_channel: bool,
    /// The connection closes as soon as its lanes have no work left.
    retiring: bool,
    /// BBR was requested for this connection.
    bears_losses: bool,
    since: Instant,
    /// Time since which the server has permitted channels: the end of the login.
    open_since: Option<Instant>,
    /// Samples the connection for the timeline.
    sampler: Option<ConnectionSampler>,
}

impl SessionConnection {
    pub(super) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(super) fn link(&self) -> &dyn Link {
        self.link.as_ref()
    }

    pub(super) fn link_mut(&mut self) -> &mut dyn Link {
        self.link.as_mut()
    }

    pub(super) fn into_link(self) -> Box<dyn Link> {
        self.link
    }

    /// True for a direct connection: made to a port of the remote longhaul, without a login at the
    /// host's SSH server.
    pub(super) fn is_direct(&self) -> bool {
        self.link.is_straight()
    }

    pub(super) fn is_retiring(&self) -> bool {
        self.retiring
    }

    pub(super) fn retire(&mut self) {
        self.retiring = true;
    }

    /// True if the connection may carry another channel beside its lanes.
    pub(super) fn takes_side_channels(&self) -> bool {
        !self.one_channel
    }

    /// Notes that the server grants no further channel.
    pub(super) fn note_one_channel(&mut self) {
        self.one_channel = true;
    }

    /// Id for the next lane on this connection.
    pub(super) fn next_lane(&mut self) -> LaneId {
        let id = LaneId {
            connection: self.id,
            channel: self.opened,
        };
        self.opened += 1;
        id
    }

    /// Notes if the login is over.
    pub(super) fn note_login(&mut self, now: Instant) {
        if self.open_since.is_none() && self.link.peer().is_some() {
            self.open_since = Some(now);
        }
    }

    /// Time since which the server has permitted channels, if it does.
    pub(super) fn open_since(&self) -> Option<Instant> {
        self.open_since
    }

    /// True if the connection was opened less than [`YOUNG`] ago.
    pub(super) fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < YOUNG
    }

    /// Requests a congestion control that tolerates losses, once. Returns true if it was set.
    pub(super) fn bear_losses(&mut self) -> bool {
        !std::mem::replace(&mut self.bears_losses, true) && self.link.bear_losses()
    }

    /// Smoothed round trip, or zero if the link has none.
    pub(super) fn round_trip(&self) -> Duration {
        self.link.sample().tcp.map_or(Duration::ZERO, |tcp| tcp.rtt)
    }

    /// Takes a sample for the timeline if one is due. `lanes` says if a lane of the connection was
    /// answered, is blocked by its window, and awaits answers.
    pub(super) fn record(&mut self, now: Instant, lanes: impl FnOnce() -> (bool, bool, bool)) {
        if let Some(sampler) = self.sampler.as_mut().filter(|s| s.is_due(now)) {
            sampler.sample(now, &self.link.sample(), lanes());
        }
    }

    /// Bytes that the connection has moved: acknowledged bytes from the kernel if available,
    /// otherwise bytes written, plus bytes received.
    pub(super) fn moved(&self) -> u64 {
        let sample = self.link.sample();
        let sent = sample.tcp.map_or(sample.sent, |tcp| tcp.bytes_acked);
        sent.saturating_add(sample.received)
    }
}

/// Connections of a session, in the order in which they were opened.
#[derive(Default)]
pub(super) struct ConnectionSet {
    all: Vec<SessionConnection>,
    next: u32,
    /// Bytes that one read may take, for a rate limit.
    read_limit: Option<usize>,
}

impl ConnectionSet {
    /// Creates an empty set. `rate` is the session's rate limit in bytes per second.
    pub(super) fn new(rate: Option<u64>) -> Self {
        // One read takes at most a fiftieth of a second's worth. A read of 1 MB would arrive at
        // once, and if it were the last one its debt to the rate limit would never be paid.
        let most = |rate: u64| usize::try_from(rate / 50).unwrap_or(usize::MAX);
        Self {
            read_limit: rate.map(|rate| most(rate).clamp(1024, 1 << 20)),
            ..Self::default()
        }
    }

    /// Id that [`ConnectionSet::add`] will assign next.
    pub(super) fn next_id(&self) -> ConnectionId {
        ConnectionId(self.next)
    }

    /// Adds a connection.
    pub(super) fn add(&mut self, now: Instant, mut link: Box<dyn Link>) -> ConnectionId {
        let id = self.next_id();
        self.next += 1;
        if let Some(most) = self.read_limit {
            link.limit_receive(most);
        }
        self.all.push(SessionConnection {
            id,
            sampler: link.track().map(ConnectionSampler::new),
            open_since: link.peer().map(|_| now),
            link,
            opened: 0,
            one_channel: false,
            retiring: false,
            bears_losses: false,
            since: now,
        });
        id
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SessionConnection> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SessionConnection> {
        self.all.iter_mut()
    }

    pub(super) fn first(&self) -> Option<&SessionConnection> {
        self.all.first()
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut SessionConnection> {
        self.all.first_mut()
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&SessionConnection> {
        self.all.iter().find(|on| on.id == id)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut SessionConnection> {
        self.all.iter_mut().find(|on| on.id == id)
    }

    /// True if a connection other than `id` exists.
    pub(super) fn has_others(&self, id: ConnectionId) -> bool {
        self.all.iter().any(|on| on.id != id)
    }

    /// True if a direct connection exists.
    pub(super) fn any_direct(&self) -> bool {
        self.all.iter().any(SessionConnection::is_direct)
    }

    /// True if `id` is a direct connection.
    pub(super) fn is_direct(&self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(SessionConnection::is_direct)
    }

    /// Usable connections in order of preference, direct ones first.
    pub(super) fn preferred(&self, may: impl Fn(&SessionConnection) -> bool) -> Vec<ConnectionId> {
        let mut all: Vec<_> = self.all.iter().filter(|on| may(on)).collect();
        all.sort_by_key(|on| !on.is_direct());
        all.into_iter().map(|on| on.id).collect()
    }

    /// Ids of all connections, beginning at position `first` (modulo their number).
    pub(super) fn ids_from(&self, first: usize) -> Vec<ConnectionId> {
        let mut ids: Vec<_> = self.all.iter().map(|on| on.id).collect();
        ids.rotate_left(first % self.all.len().max(1));
        ids
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<SessionConnection> {
        let at = self.all.iter().position(|on| on.id == id)?;
        Some(self.all.remove(at))
    }

    /// Removes all connections.
    pub(super) fn take_all(&mut self) -> Vec<SessionConnection> {
        std::mem::take(&mut self.all)
    }

    /// Keeps the remaining connections if all of them are retiring.
    pub(super) fn keep_some(&mut self) {
        if self.all.iter().all(|on| on.retiring) {
            for on in &mut self.all {
                on.retiring = false;
            }
        }
    }
}
