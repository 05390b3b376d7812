use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use mio::{Events, Poll, Token};
use plan::{JobId, Lane, LaneConfig, LaneError, LaneEvent};
use sftp::ServerInfo;

use super::jobs::Jobs;
use super::throttle::Throttle;
use super::{Bell, ChannelId, Command, Link, LinkEvent, SessionEvent, SessionOptions};
use crate::disk::DiskPool;

pub(super) const WAKER: Token = Token(0);
const LINK: Token = Token(1);

/// The largest channel packet (OpenSSH's CHAN_SES_PACKET_DEFAULT).
const PACKET: usize = 32 * 1024;

/// Most that answers may wait for company before they are looked at, and the least worth it.
const NAP: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_millis(1);
/// In flight, below which answers are looked at as they come.
const BULK: u64 = 1 << 20;

/// What answers may hold beyond the depth: one READ more, and headers.
const ANSWERS_BEYOND: u64 = 512 << 10;

/// How often progress within a file is told.
const TELL_INTERVAL: Duration = Duration::from_millis(50);

/// The loop's ends of what the handle holds.
pub(super) struct Ends {
    pub(super) commands: Receiver<Command>,
    pub(super) events: Sender<SessionEvent>,
    pub(super) bell: Arc<Bell>,
    pub(super) server: Arc<OnceLock<ServerInfo>>,
}

/// The loop of a session: moves bytes between link and lanes, requests between lanes and disk,
/// jobs and events between lanes and the handle. It decides only which lane gets a job.
pub(super) struct Driver {
    pub(super) link: Box<dyn Link>,
    poll: Poll,
    pub(super) disk: DiskPool,
    pub(super) lanes: Vec<LaneOnChannel>,
    pub(super) jobs: Jobs,
    ends: Ends,
    pub(super) predict: bool,
    /// The link refused a channel for listings, or carries one channel only.
    pub(super) one_channel: bool,
    pub(super) restarts: u32,
    throttle: Option<Throttle>,
    /// Something waits for the throttle.
    throttled: bool,
    /// How the last channel ended.
    pub(super) ended: Option<LaneError>,
    pub(super) over: bool,
    /// Progress that has not been told yet, and when some was last.
    progress: Option<(JobId, u64)>,
    told: Instant,
}

pub(super) struct LaneOnChannel {
    pub(super) channel: ChannelId,
    pub(super) lane: Lane,
    /// Only listings, beside a lane that predicts handles.
    pub(super) listing: bool,
}

impl Driver {
    pub(super) fn new(
        mut link: Box<dyn Link>,
        poll: Poll,
        options: SessionOptions,
        ends: Ends,
    ) -> io::Result<Self> {
        link.register(poll.registry(), LINK)?;
        if let Some(rate) = options.limit {
            // A read takes a fiftieth of a second's worth: one of a megabyte would come at once,
            // and its debt be forgotten where it was the last.
            let most = usize::try_from(rate / 50).unwrap_or(usize::MAX);
            link.limit_receive(most.clamp(1024, 1 << 20));
        }
        let bell = Arc::clone(&ends.bell);
        Ok(Self {
            link,
            poll,
            disk: DiskPool::new(options.disk_threads.max(1), move || bell.ring())?,
            lanes: Vec::new(),
            jobs: Jobs::default(),
            ends,
            predict: options.predict,
            one_channel: false,
            restarts: 0,
            throttle: options.limit.map(|l| Throttle::new(l, Instant::now())),
            throttled: false,
            ended: None,
            over: false,
            progress: None,
            told: Instant::now(),
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut at_once = true;
        while !self.over {
            let now = Instant::now();
            let wait = if at_once { Some(now) } else { self.deadline() };
            let timeout = wait.map(|at| at.saturating_duration_since(now));
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                self.lose(format!("waiting for the connection failed: {e}"));
                break;
            }
            for event in &events {
                if event.token() != WAKER {
                    let readable =
                        event.is_readable() || event.is_read_closed() || event.is_error();
                    let writable = event.is_writable() || event.is_write_closed();
                    self.link.ready(event.token(), readable, writable);
                }
            }
            at_once = self.turn();
            if let Some(nap) = self.nap().filter(|_| !at_once) {
                std::thread::sleep(nap);
            }
        }
        drop(self.lanes);
        self.link.finish();
    }

    /// How long answers may be left to gather, as a network card gathers packets before it
    /// interrupts: sshd answers each 96 KiB with a message of its own, and to wake for each cost
    /// 57,000 context switches for 4 GiB, paid for by both ends. A fifth of what is in flight
    /// still being worked on when we look again, nobody waits for us.
    fn nap(&self) -> Option<Duration> {
        let stats: Vec<_> = self.lanes.iter().map(|on| on.lane.stats()).collect();
        let in_flight: u64 = stats.iter().map(|s| s.bytes_in_flight).sum();
        let rate: f64 = stats.iter().filter_map(|s| s.rate).sum();
        if in_flight < BULK || rate <= 0.0 {
            return None;
        }
        let lasts = Duration::try_from_secs_f64(in_flight as f64 / rate).ok()?;
        Some((lasts / 5).min(*NAP.end())).filter(|nap| nap >= NAP.start())
    }

    fn deadline(&self) -> Option<Instant> {
        let throttle = self.throttle.as_ref().filter(|_| self.throttled);
        let throttle = throttle.map(Throttle::ready_at);
        [self.link.poll_timeout(), throttle]
            .into_iter()
            .flatten()
            .min()
    }

    /// One turn of the loop; true when the next should come without waiting.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        self.throttled = false;
        // Before looking at what it announces: what comes later rings again.
        self.ends.bell.answer();
        self.take_commands(now);
        self.take_replies(now);
        let more = self.receive(now);
        if self.over {
            return false;
        }
        self.give_jobs(now);
        self.drain_lanes();
        match self.link.flush(now) {
            Ok(wrote) => more || wrote,
            Err(e) => {
                self.lose(e.0);
                false
            }
        }
    }

    fn take_commands(&mut self, now: Instant) {
        loop {
            match self.ends.commands.try_recv() {
                Ok(Command::Push(job)) => self.jobs.push(job),
                Ok(Command::Bind(id, relay)) => {
                    self.jobs.set_relayed(id);
                    self.disk.bind(id, relay);
                }
                Ok(Command::Cancel(reason)) => {
                    self.fail_waiting(&reason);
                    for on in &mut self.lanes {
                        on.lane.cancel(now, &reason);
                    }
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.over = true;
                    return;
                }
            }
        }
    }

    fn take_replies(&mut self, now: Instant) {
        while let Some(reply) = self.disk.poll_reply() {
            let lane = self.jobs.replied(&reply);
            if let Some(at) = lane.and_then(|channel| self.lane_on(channel)) {
                self.lanes[at].lane.handle_disk(now, reply);
            }
        }
        self.recover();
    }

    fn receive(&mut self, now: Instant) -> bool {
        if let Err(e) = self.link.handle_timeout(now) {
            self.lose(e.0);
            return false;
        }
        if self.throttle.as_mut().is_some_and(|t| t.credit(now) == 0) {
            self.throttled = true;
            return false;
        }
        let mut received = Vec::new();
        let more = match self.link.receive(now, &mut received) {
            Ok(more) => more,
            Err(e) => {
                self.handle_received(now, received);
                self.lose(e.0);
                return false;
            }
        };
        self.handle_received(now, received);
        more
    }

    fn handle_received(&mut self, now: Instant, received: Vec<LinkEvent>) {
        for event in received {
            match event {
                LinkEvent::Data(channel, bytes) => {
                    if let Some(throttle) = &mut self.throttle {
                        throttle.spend(bytes.len());
                    }
                    let Some(at) = self.lane_on(channel) else {
                        continue;
                    };
                    if let Err(e) = self.lanes[at].lane.handle_input(now, bytes) {
                        self.lane_ended(at, e);
                    }
                    self.note_server();
                }
                LinkEvent::Closed(channel, why) => {
                    let Some(at) = self.lane_on(channel) else {
                        continue;
                    };
                    let why = why.unwrap_or_else(|| "without a reason".to_owned());
                    self.lanes[at].lane.handle_closed(&why);
                    self.lane_ended(at, LaneError::Closed(why));
                }
                LinkEvent::Says(line) => self.tell(SessionEvent::Says(line)),
            }
        }
    }

    fn lane_on(&self, channel: ChannelId) -> Option<usize> {
        self.lanes.iter().position(|on| on.channel == channel)
    }

    fn note_server(&mut self) {
        if self.ends.server.get().is_none()
            && let Some(info) = self.lanes.iter().find_map(|on| on.lane.server_info())
        {
            self.link.server_seen(info);
            let _ = self.ends.server.set(info.clone());
        }
    }

    /// Gives lanes the jobs they have use for.
    fn give_jobs(&mut self, now: Instant) {
        if self.jobs.has_jobs() {
            let Some(at) = self.data_lane(now) else {
                return;
            };
            for _ in 0..self.lanes[at].lane.wants_jobs() {
                let Some(job) = self.jobs.next() else { break };
                if let Err(job) = self.lanes[at].lane.push(now, job) {
                    self.jobs.push(job);
                }
            }
        }
        while self.jobs.has_lists() {
            let Some(at) = self.listing_lane(now) else {
                return;
            };
            if self.lanes[at].lane.wants_jobs() == 0 {
                return;
            }
            let Some(job) = self.jobs.next_list() else {
                return;
            };
            if let Err(job) = self.lanes[at].lane.push(now, job) {
                // Handles are predicted there and no other channel is to be had.
                self.jobs.push_front(job);
                let surprise = "a directory has to be listed on the only channel";
                self.lane_ended(at, LaneError::Surprise(surprise));
            }
        }
    }

    fn data_lane(&mut self, now: Instant) -> Option<usize> {
        match self.lanes.iter().position(|on| !on.listing) {
            Some(at) => Some(at),
            None => {
                let opened = self.open_lane(now, self.predict, false);
                if opened.is_none() && self.link.peer().is_some() {
                    let why = self.ended.as_ref().map(LaneError::to_string);
                    let none = || "the connection carries no SFTP channel".to_owned();
                    self.lose(why.unwrap_or_else(none));
                }
                opened
            }
        }
    }

    /// The lane for listings: one beside the data lane where that one predicts handles.
    fn listing_lane(&mut self, now: Instant) -> Option<usize> {
        let data = self.data_lane(now)?;
        if !self.lanes[data].lane.predicts() {
            return Some(data);
        }
        if let Some(at) = self.lanes.iter().position(|on| on.listing) {
            return Some(at);
        }
        if self.one_channel {
            return Some(data);
        }
        match self.open_lane(now, false, true) {
            Some(at) => Some(at),
            None => {
                self.one_channel = true;
                Some(data)
            }
        }
    }

    fn open_lane(&mut self, now: Instant, predict: bool, listing: bool) -> Option<usize> {
        let peer = self.link.peer()?;
        let channel = self.link.open_channel()?;
        let random = Box::new(|bytes: &mut [u8]| {
            // Names of temporaries: O_EXCL decides, randomness only makes meetings rare.
            let _ = aws_lc_rs::rand::fill(bytes);
        });
        let mut config = LaneConfig::new(self.link.pool(), random);
        config.openssh = peer.openssh;
        config.remembered = peer.remembered;
        config.predict = predict && peer.openssh;
        self.lanes.push(LaneOnChannel {
            channel,
            lane: Lane::new(config, now),
            listing,
        });
        Some(self.lanes.len() - 1)
    }

    /// Takes from the lanes what they have for link, disk and handle.
    fn drain_lanes(&mut self) {
        for at in 0..self.lanes.len() {
            self.drain_events(at);
            let on = &mut self.lanes[at];
            while let Some(request) = on.lane.poll_disk() {
                self.jobs.asked_disk(&request, on.channel);
                self.disk.submit(request);
            }
            let mut room = self.link.room(on.channel);
            if let Some(throttle) = &mut self.throttle {
                let credit = throttle.credit(Instant::now());
                self.throttled |= credit < room;
                // A lane sends whole packets: with less room than that it would wait for room
                // that nothing announces. What is sent on credit is paid back before the next.
                room = match credit {
                    0 => 0,
                    credit => room.min(credit.max(PACKET)),
                };
            }
            on.lane.set_output_room(room);
            let stats = on.lane.stats();
            // Answers come with headers; the lane runs a little beyond its depth.
            let beyond = stats.bytes_depth / 64 + ANSWERS_BEYOND;
            self.link.expect(on.channel, stats.bytes_depth + beyond);
            while let Some(output) = on.lane.poll_output() {
                if let Some(throttle) = &mut self.throttle {
                    throttle.spend(output.len());
                }
                self.link.send(on.channel, output);
            }
        }
    }

    pub(super) fn drain_events(&mut self, at: usize) {
        while let Some(event) = self.lanes[at].lane.poll_event() {
            let (id, last) = (event.job(), event.is_last());
            if last && self.jobs.ended(id) {
                self.disk.release(id);
            }
            if !Jobs::is_own(id) {
                self.tell(SessionEvent::Lane(event));
            }
        }
    }

    pub(super) fn tell(&mut self, event: SessionEvent) {
        if let SessionEvent::Lane(LaneEvent::Progress(id, n)) = event {
            return self.tell_progress(id, n);
        }
        self.flush_progress();
        self.send_event(event);
    }

    /// Progress is gathered: to tell of each write wakes the other thread 4,000 times a gigabyte.
    fn tell_progress(&mut self, id: JobId, n: u64) {
        match &mut self.progress {
            Some((same, sum)) if *same == id => *sum += n,
            _ => {
                self.flush_progress();
                self.progress = Some((id, n));
            }
        }
        let now = Instant::now();
        if now.duration_since(self.told) >= TELL_INTERVAL {
            self.told = now;
            self.flush_progress();
        }
    }

    fn flush_progress(&mut self) {
        if let Some((id, n)) = self.progress.take() {
            self.send_event(SessionEvent::Lane(LaneEvent::Progress(id, n)));
        }
    }

    fn send_event(&self, event: SessionEvent) {
        // Nobody listens any more when the handle is being dropped.
        let _ = self.ends.events.send(event);
    }
}
