//! Connections of a probe, and the channels on them.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use diagnose::TransferStall;
use mio::{Events, Poll, Token};
use sftp::{Attrs, Handle, OpenFlags, Reply, Request, RequestId, SftpClient, SftpClientOptions};
use wire::PayloadBlock;

use super::measurement_error::MeasurementError;
use crate::session::{Link, LinkChannelId, LinkEvent, LinkSample};

/// Distance between the first tokens of two connections.
const TOKENS: usize = 64;
/// Size of a READ or WRITE in bytes, which every server accepts.
pub(super) const REQUEST: u32 = 32 << 10;
/// Requests of a channel in flight at most.
const MOST_REQUESTS: u64 = (128 << 20) / REQUEST as u64;
/// Requests in flight while nothing is known about the path.
const FIRST_REQUESTS: u64 = (256 << 10) / REQUEST as u64;
/// Time without an acknowledgement after which a connection is broken.
const SILENT: Duration = Duration::from_secs(4);
/// Longest output of a command in bytes.
const MOST_OUTPUT: usize = 64 << 10;
/// Time whose tokens a limited load may save up: a late turn must not lower its rate.
const LATE_TURN: f64 = 0.01;
/// Shortest wait in one turn: the load of a limited channel may wait for room instead of tokens.
const SHORTEST_TURN: Duration = Duration::from_millis(1);
/// Longest wait in one turn.
const TICK: Duration = Duration::from_millis(20);

/// Load that a channel of a probe carries: WRITEs, READs or none.
#[derive(Debug)]
pub(super) enum ChannelUse {
    /// WRITEs to a handle.
    Writing { file: Handle, advances: bool },
    /// READs of a handle.
    Reading { file: Handle },
    /// No load.
    Idle,
}

/// One SFTP channel of a probe, with its load and the requests that have no answer yet.
#[derive(Debug)]
pub(super) struct ProbeChannel {
    id: LinkChannelId,
    client: SftpClient,
    purpose: ChannelUse,
    /// Load requests without an answer.
    awaited: BTreeMap<u32, u32>,
    /// Load requests that may be in flight.
    allowed: u64,
    /// Bytes that were confirmed or received.
    moved: u64,
    /// `moved` at the last adjustment of `allowed`.
    adjusted: (Instant, u64),
    /// Answers to other requests.
    answers: BTreeMap<u32, (Reply, Instant)>,
    offset: u64,
    blocked: Duration,
    /// Reason for the channel's end.
    failed: Option<MeasurementError>,
    /// Reason for which the server refused a load request. Other requests may go on.
    refused: Option<MeasurementError>,
    /// Limit of the load on purpose.
    limit: Option<RateLimit>,
}

/// Token bucket of a load that stays below the path's rate on purpose.
#[derive(Clone, Copy, Debug)]
struct RateLimit {
    /// Bytes per second.
    rate: f64,
    /// Bytes that may be queued now.
    tokens: f64,
}

impl RateLimit {
    /// Adds the tokens of some time, at most those of a request and a late turn: several requests at
    /// once would overflow a short queue.
    fn refill(&mut self, since: Duration) {
        let most = f64::from(REQUEST) + self.rate * LATE_TURN;
        self.tokens = (self.tokens + self.rate * since.as_secs_f64()).min(most);
    }

    /// Time until there are tokens for a request.
    fn wait(&self) -> Duration {
        let missing = (f64::from(REQUEST) - self.tokens).max(0.0);
        Duration::try_from_secs_f64(missing / self.rate).unwrap_or(TICK)
    }

    /// Takes the tokens of a request; false if they are missing.
    fn take(&mut self) -> bool {
        let pays = self.tokens >= f64::from(REQUEST);
        if pays {
            self.tokens -= f64::from(REQUEST);
        }
        pays
    }
}

/// Output of a probe's command so far, and its end.
#[derive(Debug, Default)]
struct CommandOutput {
    text: Vec<u8>,
    ended: Option<Result<(), MeasurementError>>,
}

/// One connection of a probe, with its channels and its command.
struct ProbeConnection {
    link: Box<dyn Link>,
    channels: Vec<ProbeChannel>,
    command: Option<(LinkChannelId, CommandOutput)>,
    began: Instant,
    /// Bytes that passed in both directions, as last seen: a broken connection has no counters.
    passed: u64,
    /// Bytes that are known to have arrived at either end.
    known: u64,
    /// Time at which the peer's TCP last acknowledged or sent something.
    heard: Instant,
    /// Reason for its end.
    lost: Option<MeasurementError>,
}

/// All connections of a probe, with the loop that moves their bytes.
pub(super) struct ProbeConnections {
    poll: Poll,
    events: Events,
    all: Vec<ProbeConnection>,
    /// Round trip to the host, for connections without TCP counters: through a jump host or a
    /// program.
    carried_rtt: Duration,
    /// TCP ends before the host, so that its counters are those of another path.
    tcp_ends_early: bool,
    turned: Instant,
}

/// A channel, by the number of its connection and its own.
pub(super) type ChannelIndex = (usize, usize);

impl ProbeConnections {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            poll: Poll::new()?,
            events: Events::with_capacity(64),
            all: Vec::new(),
            carried_rtt: Duration::ZERO,
            tcp_ends_early: false,
            turned: Instant::now(),
        })
    }

    /// Adds a connection; returns its number.
    pub(super) fn add(&mut self, mut link: Box<dyn Link>) -> io::Result<usize> {
        let number = self.all.len();
        link.register(self.poll.registry(), Token(number * TOKENS))?;
        self.all.push(ProbeConnection {
            link,
            channels: Vec::new(),
            command: None,
            began: Instant::now(),
            passed: 0,
            known: 0,
            heard: Instant::now(),
            lost: None,
        });
        Ok(number)
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the reason for the end of a connection.
    pub(super) fn loss(&self, connection: usize) -> Option<&MeasurementError> {
        self.all.get(connection)?.lost.as_ref()
    }

    /// Marks a connection as lost, for this reason.
    pub(super) fn lose(&mut self, connection: usize, why: MeasurementError) {
        if let Some(connection) = self.all.get_mut(connection) {
            connection.lost = Some(why);
        }
    }

    /// Returns age and bytes of a connection that broke, after silence or with an error.
    pub(super) fn stall(&self, connection: usize, silent: bool) -> Option<TransferStall> {
        let found = self.all.get(connection);
        found.map(|connection| connection.stall(silent))
    }

    /// Sets the round trip of connections without TCP counters.
    pub(super) fn set_carried_rtt(&mut self, rtt: Duration) {
        self.carried_rtt = rtt;
    }

    /// Round trip of connections without TCP counters.
    pub(super) fn carried_rtt(&self) -> Duration {
        self.carried_rtt
    }

    /// Limits the load on a channel to `rate` bytes per second; `None` lifts the limit.
    pub(super) fn limit_rate(&mut self, at: ChannelIndex, rate: Option<f64>) {
        if let Some(channel) = self.channel_mut(at) {
            channel.limit = rate.map(|rate| RateLimit { rate, tokens: 0.0 });
        }
    }

    pub(super) fn sample(&self, connection: usize) -> LinkSample {
        let found = self.all.get(connection);
        found
            .map(|c| c.sample(self.tcp_ends_early))
            .unwrap_or_default()
    }

    /// Leaves TCP's counters out from now on: they end at a proxy on the way.
    pub(super) fn leave_tcp_out(&mut self) {
        self.tcp_ends_early = true;
    }

    /// Round trip of a request that sshd answers by itself; `None` without an answer.
    pub(super) fn echo(&mut self, connection: usize, until: Instant) -> Option<Duration> {
        let link = &mut self.all.get_mut(connection)?.link;
        let (before, sent) = (link.alive_answers(), Instant::now());
        if !link.ask_alive() {
            return None;
        }
        let answered = self.wait(until, |all| {
            let answers = all.all.get(connection)?.link.alive_answers();
            (answers > before).then(|| sent.elapsed())
        });
        answered.ok()
    }

    pub(super) fn channel(&self, at: ChannelIndex) -> Option<&ProbeChannel> {
        self.all.get(at.0)?.channels.get(at.1)
    }

    fn channel_mut(&mut self, at: ChannelIndex) -> Option<&mut ProbeChannel> {
        self.all.get_mut(at.0)?.channels.get_mut(at.1)
    }

    /// Returns the largest window of a channel, and the bytes that wait in this process.
    pub(super) fn window(&mut self, at: ChannelIndex) -> (u64, u64) {
        let Some(connection) = self.all.get_mut(at.0) else {
            return (0, 0);
        };
        let Some(id) = connection.channels.get(at.1).map(|c| c.id) else {
            return (0, 0);
        };
        let window = connection.link.send_window(id);
        (window.largest, window.queued)
    }

    /// Opens a channel with an SFTP server; returns its number on the connection.
    pub(super) fn open(
        &mut self,
        connection: usize,
        until: Instant,
    ) -> Result<ChannelIndex, MeasurementError> {
        let gone = || MeasurementError::lost("the connection was lost");
        let found = self.all.get_mut(connection).ok_or_else(gone)?;
        let refused = || {
            MeasurementError::refused(
                "the server admits only one channel per connection (MaxSessions in its sshd_config)",
            )
        };
        let id = found.link.open_channel().ok_or_else(refused)?;
        found.channels.push(ProbeChannel::new(id));
        let at = (connection, found.channels.len() - 1);
        self.wait(until, |all| {
            let channel = all.channel(at)?;
            if let Some(why) = &channel.failed {
                return Some(Err(why.clone()));
            }
            channel.client.info().map(|_| Ok(at))
        })?
    }

    /// Sends a request that is not load; returns its number.
    fn request(&mut self, at: ChannelIndex, request: &Request<'_>) -> Option<RequestId> {
        let channel = self.channel_mut(at)?;
        Some(channel.client.request(request))
    }

    /// Sends a request and waits for its answer; returns the answer and its time.
    pub(super) fn ask(
        &mut self,
        at: ChannelIndex,
        request: &Request<'_>,
        until: Instant,
    ) -> Result<(Reply, Duration), MeasurementError> {
        let sent = Instant::now();
        let id = self.request(at, request);
        let id = id.ok_or_else(|| MeasurementError::channel_ended("the channel was closed"))?;
        self.wait(until, |all| {
            let channel = all.channel_mut(at)?;
            if let Some((reply, came)) = channel.answers.remove(&id.0) {
                return Some(Ok((reply, came.saturating_duration_since(sent))));
            }
            channel.failed.clone().map(Err)
        })?
    }

    /// Sends a request whose answer [`ProbeConnections::answered`] returns later.
    pub(super) fn ping(&mut self, at: ChannelIndex) -> Option<(RequestId, Instant)> {
        let id = self.request(at, &Request::Realpath { path: b"." })?;
        Some((id, Instant::now()))
    }

    /// Returns the time of the answer to a ping.
    pub(super) fn answered(&mut self, at: ChannelIndex, id: RequestId) -> Option<Instant> {
        let channel = self.channel_mut(at)?;
        channel.answers.remove(&id.0).map(|(_, came)| came)
    }

    /// Opens a file at the server.
    pub(super) fn open_file(
        &mut self,
        at: ChannelIndex,
        path: &[u8],
        flags: OpenFlags,
        until: Instant,
    ) -> Result<Handle, MeasurementError> {
        let request = Request::Open {
            path,
            flags,
            attrs: Attrs::default(),
        };
        match self.ask(at, &request, until)?.0 {
            Reply::Handle(handle) => Ok(handle),
            Reply::Status(status) => Err(status.into()),
            _ => Err(MeasurementError::refused(
                "the server sent an unexpected answer to OPEN (SFTP protocol error)",
            )),
        }
    }

    /// Changes the load on a channel.
    pub(super) fn set_use(&mut self, at: ChannelIndex, purpose: ChannelUse) {
        if let Some(channel) = self.channel_mut(at) {
            channel.purpose = purpose;
            channel.refused = None;
            channel.allowed = channel.allowed.max(FIRST_REQUESTS);
            channel.adjusted = (Instant::now(), channel.moved);
        }
    }

    /// Requests of load without an answer on a connection.
    pub(super) fn pending(&self, connection: usize) -> usize {
        let channels = self.all.get(connection).map(|c| &c.channels);
        channels.map_or(0, |list| list.iter().map(|c| c.awaited.len()).sum())
    }

    /// Runs a command at the server and returns its standard output.
    pub(super) fn run(
        &mut self,
        connection: usize,
        command: &[u8],
        until: Instant,
    ) -> Result<String, MeasurementError> {
        let none = || MeasurementError::refused("the server does not run commands");
        let found = self.all.get_mut(connection).ok_or_else(none)?;
        let id = found.link.open_exec(command).ok_or_else(none)?;
        found.link.end_input(id);
        found.command = Some((id, CommandOutput::default()));
        let ended = self.wait(until, |all| {
            let (_, output) = all.all.get_mut(connection)?.command.as_mut()?;
            output.ended.take()
        });
        let found = self.all.get_mut(connection).ok_or_else(none)?;
        let output = found.command.take();
        if ended.is_err() {
            found.link.close_channel(id);
        }
        ended??;
        let text = output.map(|(_, output)| output.text).unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Turns until `done` returns something.
    pub(super) fn wait<T>(
        &mut self,
        until: Instant,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, MeasurementError> {
        loop {
            if let Some(result) = done(self) {
                return Ok(result);
            }
            if Instant::now() >= until {
                return Err(MeasurementError::no_answer());
            }
            self.turn(until);
            if let Some(why) = self.all.iter().find_map(|c| c.lost.clone()) {
                return Err(why);
            }
        }
    }

    /// Moves what can be moved, and waits at most [`TICK`] for more.
    pub(super) fn turn(&mut self, until: Instant) {
        let now = Instant::now();
        let since = now.saturating_duration_since(self.turned);
        self.turned = now;
        let mut more = false;
        let (carried, hidden) = (self.carried_rtt, self.tcp_ends_early);
        for connection in &mut self.all {
            if connection.lost.is_none() {
                match connection.turn(now, since, carried, hidden) {
                    Ok(busy) => more |= busy,
                    Err(why) => connection.lost = Some(why),
                }
            }
        }
        let timeout = match more {
            true => Duration::ZERO,
            false => self.next_turn().min(until.saturating_duration_since(now)),
        };
        // An interrupted wait is a short one.
        let _ = self.poll.poll(&mut self.events, Some(timeout));
        for event in &self.events {
            let token = event.token();
            if let Some(connection) = self.all.get_mut(token.0 / TOKENS) {
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                let writable = event.is_writable() || event.is_write_closed();
                connection.link.ready(token, readable, writable);
            }
        }
    }

    /// Time until the next turn is due: a limited load sends its requests one by one.
    fn next_turn(&self) -> Duration {
        let channels = self.all.iter().flat_map(|connection| &connection.channels);
        let writing =
            channels.filter(|channel| matches!(channel.purpose, ChannelUse::Writing { .. }));
        let waits = writing.filter_map(|channel| channel.limit.map(|limit| limit.wait()));
        waits.fold(TICK, Duration::min).max(SHORTEST_TURN)
    }

    /// A connection that was lost, or on which nothing is acknowledged any more.
    pub(super) fn broken(&self) -> Option<TransferStall> {
        let broken = self.all.iter().find_map(|c| {
            let silent = c.heard.elapsed() > SILENT;
            (c.lost.is_some() || silent).then(|| c.stall(silent))
        });
        broken.filter(|stall| stall.bytes > 0)
    }

    /// Makes a connection look as if it had moved data, and nothing was acknowledged for long.
    #[cfg(test)]
    pub(super) fn set_silent(&mut self, connection: usize) {
        if let Some(connection) = self.all.get_mut(connection) {
            connection.passed = 1 << 20;
            connection.heard = Instant::now() - 2 * SILENT;
        }
    }

    /// Ends all connections.
    pub(super) fn finish(self) {
        for connection in self.all {
            match connection.lost {
                None => connection.link.finish(),
                Some(_) => connection.link.cut(),
            }
        }
    }

    /// Ends the connections from this number on without waiting for data in flight.
    pub(super) fn cut_from(&mut self, number: usize) {
        for connection in self.all.drain(number.min(self.all.len())..) {
            connection.link.cut();
        }
    }
}

impl ProbeConnection {
    /// Age and bytes of a connection that broke.
    fn stall(&self, silent: bool) -> TransferStall {
        TransferStall {
            seconds: self.began.elapsed().as_secs_f64(),
            bytes: self.passed,
            reset: !silent,
            in_handshake: false,
        }
    }

    /// Counters of the connection. Those of TCP are `hidden` if they end before the host.
    fn sample(&self, hidden: bool) -> LinkSample {
        let sample = self.link.sample();
        LinkSample {
            tcp: sample.tcp.filter(|_| !hidden),
            ..sample
        }
    }

    /// Receives and sends once, and updates the counters. Returns true if there is more to receive
    /// or send at once. `carried` is the round trip to assume without TCP counters; `hidden` ignores
    /// these counters, because the TCP connection ends before the host.
    ///
    /// # Errors
    /// The connection was lost.
    fn turn(
        &mut self,
        now: Instant,
        since: Duration,
        carried: Duration,
        hidden: bool,
    ) -> Result<bool, MeasurementError> {
        let mut events = Vec::new();
        let more = self.link.receive(now, &mut events)?;
        for event in events {
            self.handle(event)?;
        }
        self.link.handle_timeout(now)?;
        let sample = self.sample(hidden);
        if let Some(tcp) = sample.tcp {
            let under_way = u64::from(tcp.unacked) * u64::from(tcp.snd_mss);
            let passed = tcp.bytes_acked + tcp.bytes_received + under_way;
            if passed - under_way != self.known || under_way == 0 {
                (self.known, self.heard) = (passed - under_way, now);
            }
            self.passed = self.passed.max(passed);
        }
        let rtt = sample.tcp.map_or(carried, |tcp| tcp.rtt);
        let unsent = sample.tcp.map_or(0, |tcp| u64::from(tcp.notsent_bytes)) + sample.unwritten;
        let pool = self.link.pool();
        for channel in &mut self.channels {
            channel.adjust(now, rtt);
            if self.link.send_window(channel.id).stalled {
                channel.blocked += since;
            }
            // What slow start leaves in the socket would be sent at once, above the limit, later.
            if let Some(limit) = channel
                .limit
                .as_mut()
                .filter(|_| unsent < u64::from(REQUEST))
            {
                limit.refill(since);
            }
            channel.load(&pool, self.link.room(channel.id));
            if let ChannelUse::Reading { .. } = channel.purpose {
                let bytes = channel.allowed * u64::from(REQUEST);
                self.link.expect(channel.id, bytes);
            }
            while let Some(output) = channel.client.poll_output() {
                self.link.send(channel.id, output);
            }
        }
        let flushed = self.link.flush(now)?;
        Ok(more || flushed)
    }

    fn handle(&mut self, event: LinkEvent) -> Result<(), MeasurementError> {
        let now = Instant::now();
        match event {
            LinkEvent::Data(id, bytes) => {
                if let Some((_, output)) = self.command.as_mut().filter(|(c, _)| *c == id) {
                    let room = MOST_OUTPUT.saturating_sub(output.text.len());
                    let part = bytes.get(..bytes.len().min(room)).unwrap_or_default();
                    output.text.extend_from_slice(part);
                } else if let Some(channel) = self.channels.iter_mut().find(|c| c.id == id) {
                    channel.receive(bytes, now);
                }
            }
            LinkEvent::Closed(id, why) => {
                let why = why.unwrap_or_else(|| "the server closed the channel".to_owned());
                self.fail(id, MeasurementError::channel_ended(why));
            }
            LinkEvent::Refused(id, why) => self.fail(id, MeasurementError::refused(why)),
            LinkEvent::Exited(id, how) => {
                if let Some((_, output)) = self.command.as_mut().filter(|(c, _)| *c == id) {
                    output.ended = Some(how.map(drop).map_err(MeasurementError::from));
                }
            }
            LinkEvent::Restarted => {
                let why = "the server ended the login before it was complete";
                return Err(MeasurementError::lost(why));
            }
            LinkEvent::Ended(_) | LinkEvent::Message(_) => {}
        }
        Ok(())
    }

    fn fail(&mut self, id: LinkChannelId, why: MeasurementError) {
        if let Some(channel) = self.channels.iter_mut().find(|c| c.id == id) {
            // What the server has sent says more than the end of the channel.
            channel.failed.get_or_insert(why);
        }
    }
}

impl ProbeChannel {
    fn new(id: LinkChannelId) -> Self {
        Self {
            id,
            client: SftpClient::new(SftpClientOptions::default()),
            purpose: ChannelUse::Idle,
            awaited: BTreeMap::new(),
            allowed: FIRST_REQUESTS,
            moved: 0,
            adjusted: (Instant::now(), 0),
            answers: BTreeMap::new(),
            offset: 0,
            blocked: Duration::ZERO,
            failed: None,
            refused: None,
            limit: None,
        }
    }

    /// Returns the bytes that were confirmed or received.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns the time in which the channel's window held the load back.
    pub(super) fn blocked(&self) -> Duration {
        self.blocked
    }

    /// Returns the reason for the channel's end, or for which the server refused its load.
    pub(super) fn failure(&self) -> Option<MeasurementError> {
        self.failed.clone().or_else(|| self.refusal())
    }

    /// Returns the reason for which the server refused a load request.
    pub(super) fn refusal(&self) -> Option<MeasurementError> {
        self.refused.clone()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.awaited.len() as u64 * u64::from(REQUEST)
    }

    /// Allows twice the requests that a round trip completes, so that the requests are no limit,
    /// and a slow path is not left with many seconds of data.
    fn adjust(&mut self, now: Instant, rtt: Duration) {
        let (then, before) = self.adjusted;
        let span = now.saturating_duration_since(then);
        if span < rtt.max(Duration::from_millis(5)) {
            return;
        }
        self.adjusted = (now, self.moved);
        let done = self.moved.saturating_sub(before) / u64::from(REQUEST);
        let per_trip = done as f64 * rtt.as_secs_f64().max(0.005) / span.as_secs_f64();
        let wanted = FIRST_REQUESTS + (2.0 * per_trip) as u64;
        self.allowed = wanted
            .max(self.allowed - self.allowed / 8)
            .min(MOST_REQUESTS);
    }

    /// Queues load as far as it is allowed.
    fn load(&mut self, pool: &wire::PacketPool, mut room: usize) {
        if self.failed.is_some() || self.refused.is_some() || self.client.info().is_none() {
            return;
        }
        while (self.awaited.len() as u64) < self.allowed {
            let id = match &self.purpose {
                ChannelUse::Idle => return,
                ChannelUse::Reading { file } => self.client.request(&Request::Read {
                    handle: file.as_bytes(),
                    offset: 0,
                    len: REQUEST,
                }),
                ChannelUse::Writing { file, advances } => {
                    let size = REQUEST as usize;
                    if room < size + 1024 || self.limit.as_mut().is_some_and(|l| !l.take()) {
                        return;
                    }
                    room -= size;
                    let reserve = SftpClient::write_reserve(file.as_bytes().len());
                    let mut block = PayloadBlock::new(pool, pool.slot(), reserve, size);
                    for slice in block.grow(size) {
                        slice.fill(0xa5);
                    }
                    let offset = self.offset;
                    if *advances {
                        self.offset += u64::from(REQUEST);
                    }
                    self.client.write(file, offset, block)
                }
            };
            self.awaited.insert(id.0, 0);
        }
    }

    fn receive(&mut self, bytes: bytes::Bytes, now: Instant) {
        if let Err(e) = self.client.handle_input(bytes) {
            self.failed = Some(MeasurementError::channel_ended(e.to_string()));
            return;
        }
        while let Some((id, reply)) = self.client.poll_reply() {
            let Some(got) = self.awaited.get_mut(&id.0) else {
                self.answers.insert(id.0, (reply, now));
                continue;
            };
            match reply {
                Reply::Data { bytes, last, .. } => {
                    *got += bytes.len() as u32;
                    self.moved += bytes.len() as u64;
                    if last {
                        self.awaited.remove(&id.0);
                    }
                }
                Reply::Status(status) => {
                    self.awaited.remove(&id.0);
                    match status.is_ok() {
                        true => self.moved += u64::from(REQUEST),
                        false => self.refused = Some(status.into()),
                    }
                }
                _ => {
                    self.awaited.remove(&id.0);
                }
            }
        }
    }
}
