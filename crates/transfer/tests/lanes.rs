//! Tests sessions whose channels end during a transfer: the jobs run again.

mod world;

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mio::{Registry, Token};
use sftp::ClientOutput;
use transfer::cancel::CancelToken;
use transfer::connect::{ConnectError, ConnectStep};
use transfer::copy::{self, CopyOptions, CopyRequest, HostId, SessionConnector, TransferEstimate};
use transfer::report::{CopyOutcome, ProgressCounters};
use transfer::session::{
    InitialServerFacts, Link, LinkChannelId, LinkError, LinkEvent, Session, SessionOptions,
    SftpProgramLink,
};
use world::{Result, World, differences};

/// A link in which each channel is its own sftp-server; some end after a number of bytes sent.
struct Channels {
    server: String,
    links: Vec<Option<SftpProgramLink>>,
    registry: Option<(Registry, usize)>,
    /// The byte counts after which the first channels end.
    ends_after: Vec<usize>,
    sent: Vec<usize>,
    opened: Arc<AtomicU32>,
    /// The number of channels; further ones are refused.
    most: usize,
}

/// The number of tokens of one SftpProgramLink.
const TOKENS: usize = 3;

impl Channels {
    fn link(&mut self, channel: LinkChannelId) -> Option<&mut SftpProgramLink> {
        self.links.get_mut(channel.0 as usize)?.as_mut()
    }
}

impl Link for Channels {
    fn limit_receive(&mut self, _: usize) {}

    fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()> {
        self.registry = Some((registry.try_clone()?, first.0));
        Ok(())
    }

    fn peer(&self) -> Option<InitialServerFacts> {
        Some(InitialServerFacts {
            openssh: true,
            remembered: None,
            ..InitialServerFacts::default()
        })
    }

    fn pool(&self) -> wire::PacketPool {
        wire::PacketPool::new(32_768, 64)
    }

    fn open_channel(&mut self) -> Option<LinkChannelId> {
        if self.links.iter().flatten().count() >= self.most {
            return None;
        }
        let mut link = SftpProgramLink::spawn(self.server.clone().into(), Vec::new()).ok()?;
        let (registry, first) = self.registry.as_ref()?;
        let number = self.links.len();
        link.register(registry, Token(first + TOKENS * number))
            .ok()?;
        link.open_channel();
        self.links.push(Some(link));
        self.sent.push(0);
        self.opened.fetch_add(1, Ordering::SeqCst);
        Some(LinkChannelId(number as u32))
    }

    fn close_channel(&mut self, channel: LinkChannelId) {
        self.links[channel.0 as usize] = None;
    }

    fn ready(&mut self, token: Token, readable: bool, writable: bool) {
        let first = self.registry.as_ref().map_or(0, |r| r.1);
        let number = (token.0 - first) / TOKENS;
        if let Some(link) = self.link(LinkChannelId(number as u32)) {
            link.ready(token, readable, writable);
        }
    }

    fn receive(
        &mut self,
        now: Instant,
        events: &mut Vec<LinkEvent>,
    ) -> std::result::Result<bool, LinkError> {
        let mut more = false;
        for number in 0..self.links.len() {
            let channel = LinkChannelId(number as u32);
            let ends = self.ends_after.get(number).copied().unwrap_or(usize::MAX);
            let Some(link) = self.links[number].as_mut() else {
                continue;
            };
            if self.sent[number] > ends {
                self.links[number] = None;
                events.push(LinkEvent::Closed(
                    channel,
                    Some("as the test wants".to_owned()),
                ));
                continue;
            }
            let mut own = Vec::new();
            more |= link.receive(now, &mut own)?;
            events.extend(own.into_iter().map(|event| match event {
                LinkEvent::Data(_, bytes) => LinkEvent::Data(channel, bytes),
                LinkEvent::Closed(_, why) => LinkEvent::Closed(channel, why),
                says => says,
            }));
        }
        Ok(more)
    }

    fn room(&self, channel: LinkChannelId) -> usize {
        let link = self.links.get(channel.0 as usize).and_then(Option::as_ref);
        link.map_or(0, |link| link.room(channel))
    }

    fn send(&mut self, channel: LinkChannelId, output: ClientOutput) {
        self.sent[channel.0 as usize] += output.len();
        if let Some(link) = self.link(channel) {
            link.send(channel, output);
        }
    }

    fn flush(&mut self, now: Instant) -> std::result::Result<bool, LinkError> {
        let mut wrote = false;
        for link in self.links.iter_mut().flatten() {
            wrote |= link.flush(now)?;
        }
        Ok(wrote)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) -> std::result::Result<(), LinkError> {
        Ok(())
    }

    fn finish(self: Box<Self>) {}
}

struct Over {
    link: Mutex<Option<Channels>>,
    options: SessionOptions,
}

impl SessionConnector for Over {
    fn connect(
        &self,
        _: HostId,
        _: Option<TransferEstimate>,
        _: &CancelToken,
    ) -> std::result::Result<Session, ConnectError> {
        let failed = |why| ConnectError::this_machine(ConnectStep::Session, why);
        let link = self.link.lock().map_err(|e| failed(e.to_string()))?.take();
        let link = link.ok_or_else(|| failed("connected twice".to_owned()))?;
        Session::start(Box::new(link), self.options.clone()).map_err(|e| failed(e.to_string()))
    }

    fn name(&self, _: HostId) -> String {
        "host".to_owned()
    }
}

fn over(server: &str, ends_after: &[usize], most: usize) -> (Over, Arc<AtomicU32>) {
    let opened = Arc::new(AtomicU32::new(0));
    let channels = Channels {
        server: server.to_owned(),
        links: Vec::new(),
        registry: None,
        ends_after: ends_after.to_vec(),
        sent: Vec::new(),
        opened: Arc::clone(&opened),
        most,
    };
    let over = Over {
        link: Mutex::new(Some(channels)),
        options: SessionOptions::default(),
    };
    (over, opened)
}

fn request(sources: copy::CopyLocation, target: copy::CopyLocation) -> CopyRequest {
    CopyRequest {
        sources: vec![sources],
        target,
        options: CopyOptions {
            recursive: true,
            preserve: true,
            ..CopyOptions::default()
        },
    }
}

fn plant(world: &World) -> Result {
    fs::create_dir_all(world.path("source/sub"))?;
    for i in 0..400_usize {
        fs::write(
            world.path(&format!("source/sub/f{i}")),
            vec![i as u8; i * 40],
        )?;
    }
    fs::write(world.path("source/large"), vec![9; 5_000_000])?;
    world::age(&world.path("source"))
}

#[test]
fn channels_that_end_in_the_middle_cost_nothing_but_time() -> Result {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    plant(&world)?;
    for (ends, upload) in [
        (&[2_000_000, 300_000, 1000][..], true),
        (&[20_000, 3_000, 1000], false),
    ] {
        let name = if upload { "up" } else { "down" };
        let (source, target) = match upload {
            true => (world.here("source"), world.there(name)),
            false => (world.there("source"), world.here(name)),
        };
        let (connect, opened) = over(world.server(), ends, 8);
        let progress = ProgressCounters::default();
        let summary = copy::run(
            request(source, target),
            &connect,
            &progress,
            &mut |_| {},
            &CancelToken::default(),
        );
        assert_eq!(
            summary.outcome,
            CopyOutcome::Complete,
            "{:?}",
            summary.failures
        );
        assert_eq!(differences(&world.path("source"), &world.path(name))?, "");
        assert!(opened.load(Ordering::SeqCst) >= 4);
        assert_eq!(progress.bytes_done(), summary.bytes);
        assert_eq!(progress.bytes_done(), progress.bytes_total());
    }
    Ok(())
}

/// Listings that need more than one flight of READDIRs go to a lane without predictions, in
/// addition to the others or, if no further channel is available, in place of them.
#[test]
fn a_long_listing_has_its_own_channel_or_prediction_ends() -> Result {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    plant(&world)?;
    for (most, names, expected) in [(8, 0, 1), (1, 0, 1), (8, 1000, 2), (1, 1000, 2)] {
        fs::create_dir_all(world.path("source/long"))?;
        for i in 0..names {
            fs::write(world.path(&format!("source/long/f{i}")), [])?;
        }
        world::age(&world.path("source"))?;
        let name = format!("down{most}-{names}");
        let (mut connect, opened) = over(world.server(), &[], most);
        // On a busy machine there might be another channel for data.
        connect.options.channels = Some(1);
        let summary = copy::run(
            request(world.there("source"), world.here(&name)),
            &connect,
            &ProgressCounters::default(),
            &mut |_| {},
            &CancelToken::default(),
        );
        assert_eq!(
            summary.outcome,
            CopyOutcome::Complete,
            "{:?}",
            summary.failures
        );
        assert_eq!(differences(&world.path("source"), &world.path(&name))?, "");
        let opened = opened.load(Ordering::SeqCst);
        assert_eq!(opened, expected, "{most} channels, {names} names");
    }
    Ok(())
}

#[test]
fn a_host_that_ends_every_channel_is_given_up() -> Result {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    plant(&world)?;
    // The first channel ends with jobs done, and the others before their first answer.
    let mut ends = [20; 20];
    ends[0] = 5000;
    let (mut connect, opened) = over(world.server(), &ends, 8);
    connect.options.channels = Some(1);
    let summary = copy::run(
        request(world.here("source"), world.there("up")),
        &connect,
        &ProgressCounters::default(),
        &mut |_| {},
        &CancelToken::default(),
    );
    let CopyOutcome::NoConnection(why) = summary.outcome else {
        panic!(
            "{:?}, {opened:?} channels, {:?}",
            summary.outcome, summary.failures
        );
    };
    assert!(why.contains("as the test wants"), "{why}");
    Ok(())
}
