//! Large WRITEs without cipher and MAC, which `longhaul serve --listen` moves from the socket to
//! the file without copying them to its memory.

use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul_tests::Scene;
use longhaul_tests::stranger::Stranger;
use sftp::{
    Attrs, Init, MessageSplitter, MessageSplitterOutput, OpenFlags, Request, RequestId, Response,
    StatusCode,
};
use ssh::msg::{
    ChannelData, ChannelOpen, ChannelOpenConfirmation, ChannelRequest, ChannelWindowAdjust, Ignore,
};
use ssh::transport::DisabledProtection;
use testkit::tree::write_file;
use testkit::{Seed, wait};
use wire::{PacketBuf, RemainingBytes};

use crate::hostile_clients::{friend, listening};

const FLAG: &str = "--insecure-none-mac";
/// Largest data packet that longhaul's server accepts from a longhaul client.
const LARGEST: usize = 256 * 1024 - 512;

/// Client with channels to SFTP servers, without encryption and authentication.
struct Client {
    stranger: Stranger,
    channels: Vec<Channel>,
}

struct Channel {
    splitter: MessageSplitter,
    /// Remaining window of the server in bytes.
    window: usize,
    answers: Vec<Bytes>,
}

impl Client {
    fn new(scene: &Scene, channels: u32) -> Self {
        let mut stranger = friend(scene);
        stranger
            .transport
            .renounce(DisabledProtection::CipherAndMac);
        stranger.transport.rekey().expect("it has keys");
        stranger.flush().expect("it listens");
        let clear = |stranger: &Stranger| {
            let chosen = stranger.transport.negotiated();
            chosen.is_some_and(|n| n.c2s.cipher.is_none() && n.c2s.mac.is_none())
        };
        while !clear(&stranger) || !stranger.transport.may_send() {
            stranger.read().expect("new keys");
            stranger.flush().expect("it listens");
        }
        let mut new = Self {
            stranger,
            channels: Vec::new(),
        };
        (0..channels).for_each(|n| new.open_channel(n));
        new
    }

    /// Opens a channel; both ends use equal channel numbers.
    fn open_channel(&mut self, n: u32) {
        let open = ChannelOpen {
            kind: b"session",
            sender: n,
            window: 1 << 20,
            max_packet: 1 << 15,
            data: RemainingBytes(&[]),
        };
        self.stranger.say(&open.to_bytes()).expect("it listens");
        let confirmed = self.stranger.hear().expect("it goes on");
        let confirmed = ChannelOpenConfirmation::decode(&confirmed).expect("it is one");
        assert_eq!((confirmed.recipient, confirmed.sender), (n, n));
        self.channels.push(Channel {
            splitter: MessageSplitter::new(1 << 20),
            window: confirmed.window as usize,
            answers: Vec::new(),
        });
        let subsystem = ChannelRequest {
            recipient: n,
            name: b"subsystem",
            want_reply: true,
            data: RemainingBytes(b"\0\0\0\x04sftp"),
        };
        self.stranger
            .say(&subsystem.to_bytes())
            .expect("it listens");
        self.hear();
    }

    /// Receives one message of the server.
    fn hear(&mut self) {
        let message = self.stranger.hear().expect("it goes on");
        match message[0] {
            ChannelWindowAdjust::NUMBER => {
                let adjust = ChannelWindowAdjust::decode(&message).expect("it is one");
                self.channels[adjust.recipient as usize].window += adjust.bytes as usize;
            }
            ChannelData::NUMBER => {
                let data = ChannelData::decode(&message).expect("it is one");
                let channel = &mut self.channels[data.recipient as usize];
                let mut data = Bytes::copy_from_slice(data.data);
                while let Some(piece) = channel.splitter.next(&mut data).expect("sound lengths") {
                    if let MessageSplitterOutput::Message(message) = piece {
                        channel.answers.push(message);
                    }
                }
            }
            _ => {}
        }
    }

    fn wait_for(&mut self, n: usize, answers: usize) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.channels[n].answers.len() < answers {
            assert!(Instant::now() < until, "not {answers} answers");
            self.hear();
        }
    }

    /// Sends part of a stream in one packet, as soon as the window allows.
    fn send(&mut self, n: usize, data: &[u8]) {
        while self.channels[n].window < data.len() {
            self.hear();
        }
        self.channels[n].window -= data.len();
        let recipient = n as u32;
        self.queue(&ChannelData { recipient, data }.to_bytes());
    }

    fn queue(&mut self, payload: &[u8]) {
        let packet = PacketBuf::from_payload(payload);
        self.stranger.transport.send(packet).expect("it may");
    }

    /// Opens a file for writing, and returns its handle.
    fn open(&mut self, n: usize, path: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let init = Init {
            version: 3,
            extensions: RemainingBytes(&[]),
        };
        sftp::frame(&mut bytes, |out| init.encode(out));
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
        Request::Open {
            path,
            flags,
            attrs: Attrs::default(),
        }
        .encode(RequestId(1), &mut bytes);
        self.send(n, &bytes);
        self.stranger.flush().expect("it listens");
        self.wait_for(n, 2);
        match Response::decode(&self.channels[n].answers[1]) {
            Ok((_, Response::Handle { handle })) => handle.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a stream, cut into packets of any size, which leave in pieces of any size.
    fn send_cut(&mut self, seed: &mut Seed, n: usize, stream: &mut Stream) {
        let left = &stream.bytes[stream.at..];
        let head = stream.heads.iter().find(|head| **head > stream.at);
        let most = match (seed.below(6), head) {
            (0, _) => between(seed, 1..100),
            (1, _) => between(seed, 1..40_000),
            (2, Some(head)) => (head - stream.at).min(LARGEST),
            _ => LARGEST,
        };
        let packet = &left[..most.min(left.len())];
        stream.at += packet.len();
        self.send(n, packet);
        if seed.below(8) == 0 {
            self.queue(&Ignore { data: &[7; 300] }.to_bytes());
        }
        let all = self.stranger.output().expect("it has keys");
        let cut = between(seed, 0..all.len() as u64 + 1);
        for part in [&all[..cut], &all[cut..]] {
            self.stranger.stream.write_all(part).expect("it listens");
            if seed.below(10) == 0 {
                // The server reads the pieces one by one.
                let patience = Duration::from_secs(30);
                let taken = wait::taken(&self.stranger.stream, patience);
                assert!(taken, "the server reads no more");
            }
        }
    }
}

/// Bytes that a client sends.
struct Stream {
    bytes: Vec<u8>,
    /// Number of bytes sent.
    at: usize,
    /// Offsets at which the data of WRITEs begins.
    heads: Vec<usize>,
    requests: u32,
}

/// Returns WRITEs of all sizes and other requests, which write this content to a file.
fn stream(seed: &mut Seed, handle: &[u8], content: &[u8]) -> Stream {
    let (mut stream, mut heads, mut at, mut asked) = (Vec::new(), Vec::new(), 0, 0);
    while at < content.len() {
        let most = match seed.below(5) {
            0 => between(seed, 1..5_000),
            1 => between(seed, 100_000..300_000),
            _ => 1 << 20,
        };
        let data = &content[at..content.len().min(at + most)];
        Request::Write {
            handle,
            offset: at as u64,
            data,
        }
        .encode(RequestId(asked), &mut stream);
        heads.push(stream.len() - data.len());
        (at, asked) = (at + data.len(), asked + 1);
        if seed.below(5) == 0 {
            Request::Fstat { handle }.encode(RequestId(asked), &mut stream);
            asked += 1;
        }
    }
    Stream {
        bytes: stream,
        at: 0,
        heads,
        requests: asked,
    }
}

fn between(seed: &mut Seed, range: Range<u64>) -> usize {
    (range.start + seed.below(range.end - range.start)) as usize
}

/// Files arrive intact, however WRITEs are cut into packets and packets into reads of the socket,
/// and whatever comes in between.
#[test]
fn files_are_what_was_sent_however_it_was_cut() {
    let scene = listening(&[FLAG]);
    for run in 0..8 {
        let mut seed = Seed::new(run);
        let count = 1 + run as usize % 3;
        let mut client = Client::new(&scene, count as u32);
        let name = |n: usize| scene.path(&format!("file-{run}-{n}"));
        let contents: Vec<_> = (0..count).map(|n| seed.bytes(8_000_000 + n)).collect();
        let mut streams = Vec::new();
        for (n, content) in contents.iter().enumerate() {
            let handle = client.open(n, name(n).as_os_str().as_bytes());
            streams.push(stream(&mut seed, &handle, content));
        }
        while streams.iter().any(|s| s.at < s.bytes.len()) {
            let n = seed.below(count as u64) as usize;
            client.send_cut(&mut seed, n, &mut streams[n]);
        }
        for (n, content) in contents.iter().enumerate() {
            let asked = streams[n].requests;
            client.wait_for(n, 2 + asked as usize);
            for (id, answer) in (0..asked).zip(&client.channels[n].answers[2..]) {
                let (answered, response) = Response::decode(answer).expect("an answer");
                assert_eq!(answered, RequestId(id));
                let fine = match response {
                    Response::Status { code, .. } => code == StatusCode::OK,
                    other => matches!(other, Response::Attrs { .. }),
                };
                assert!(fine, "{id}: {answer:?}");
            }
            let there = fs::read(name(n)).expect("it is there");
            assert!(there == *content, "{run}, {n}: another file");
        }
    }
}

/// Complete WRITEs before the client disconnects are kept, and an incomplete one does not affect
/// later data.
#[test]
fn a_client_that_goes_in_the_middle_of_a_write_harms_nobody() {
    let scene = listening(&[FLAG]);
    let path = scene.path("file");
    let content = Seed::new(1).bytes(1 << 20);
    for cut in [40, 300_000, 900_000] {
        let mut client = Client::new(&scene, 1);
        let handle = client.open(0, path.as_os_str().as_bytes());
        let mut stream = Vec::new();
        for n in 0..4 {
            Request::Write {
                handle: &handle,
                offset: u64::from(n) << 20,
                data: &content,
            }
            .encode(RequestId(n), &mut stream);
        }
        let whole = stream.len() / 4 * 3 + cut;
        for packet in stream[..whole].chunks(LARGEST) {
            client.send(0, packet);
            client.stranger.flush().expect("it listens");
        }
        client.wait_for(0, 2 + 3);
        drop(client);
        let there = fs::read(&path).expect("it is there");
        assert!(there[..3 << 20] == content.repeat(3), "{cut}");
    }
    write_file(&scene.path("from"), &content);
    let from = scene.path("from");
    scene.copies(&[FLAG, "--connections", "1"], from, scene.remote("to"));
}

/// Verifies that the data does bypass memory; otherwise the other tests prove nothing.
#[test]
fn large_files_do_not_come_to_the_servers_memory() {
    let scene = listening(&[FLAG, "-v"]);
    if scene.client.is_scp() {
        return;
    }
    let content = Seed::new(3).bytes(64 << 20);
    write_file(&scene.path("from"), &content);
    let passed = || {
        let log = scene.peer.log();
        let bytes = |line: &str| {
            let told = line
                .split_once("received into files by splice(2) bytes=")?
                .1;
            told.trim().parse::<u64>().ok()
        };
        log.lines().filter_map(bytes).sum::<u64>()
    };
    for (flag, passes) in [("--insecure-none-cipher", false), (FLAG, true)] {
        let flags = ["--connections", "1", "--compress=never", flag];
        scene.copies(&flags, scene.path("from"), scene.remote("to"));
        assert!(fs::read(scene.path("to")).expect("it is there") == content);
        // The total is logged in the last line of a connection.
        scene.logs("session closed");
        wait::up_to(Duration::from_secs(10), || !passes || passed() != 0);
        let passed = passed();
        assert_eq!(passed > 48 << 20, passes, "{flag}: {passed} bytes");
        assert!(passes || passed == 0, "{flag}: {passed} bytes");
    }
}
