//! Large WRITEs without cipher and MAC, which `longhaul serve --listen` does not bring to memory.

use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use longhaul_tests::Scene;
use longhaul_tests::stranger::Stranger;
use sftp::{Attrs, Init, OpenFlags, Piece, Request, RequestId, Response, Splitter, StatusCode};
use ssh::msg::{ChannelData, ChannelWindowAdjust, Ignore};
use ssh::transport::Renounced;
use testkit::Seed;
use testkit::tree::write_file;
use wire::Rest;

use crate::hostile_clients::{friend, listening, open_session, request};

const FLAG: &str = "--insecure-none-mac";
/// The largest packet of data that our server takes of a longhaul.
const LARGEST: usize = 256 * 1024 - 512;

/// A client with a channel to the SFTP server, which is neither enciphered nor authenticated.
struct Client {
    stranger: Stranger,
    splitter: Splitter,
    /// What the server still takes.
    window: usize,
    answers: Vec<bytes::Bytes>,
}

impl Client {
    fn new(scene: &Scene) -> Self {
        let mut stranger = friend(scene);
        stranger.transport.renounce(Renounced::CipherAndMac);
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
            splitter: Splitter::new(1 << 20),
            window: 0,
            answers: Vec::new(),
        };
        new.stranger.say(&open_session()).expect("it listens");
        // Both are answered, and the first one tells the window.
        let confirmed = new.stranger.hear().expect("CHANNEL_OPEN_CONFIRMATION");
        new.window = u32::from_be_bytes(confirmed[9..13].try_into().expect("four")) as usize;
        let subsystem = request(b"subsystem", b"\0\0\0\x04sftp");
        new.stranger.say(&subsystem).expect("it listens");
        new.hear();
        new
    }

    /// One message of the server.
    fn hear(&mut self) {
        let message = self.stranger.hear().expect("it goes on");
        match message[0] {
            93 => {
                let adjust = ChannelWindowAdjust::decode(&message).expect("it is one");
                self.window += adjust.bytes as usize;
            }
            94 => {
                let data = ChannelData::decode(&message).expect("it is one");
                let mut data = bytes::Bytes::copy_from_slice(data.data);
                while let Some(piece) = self.splitter.next(&mut data).expect("sound lengths") {
                    if let Piece::Message(message) = piece {
                        self.answers.push(message);
                    }
                }
            }
            _ => {}
        }
    }

    fn wait_for(&mut self, answers: usize) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.answers.len() < answers {
            assert!(
                Instant::now() < until,
                "{} of {answers}",
                self.answers.len()
            );
            self.hear();
        }
    }

    /// Sends some of a stream in one packet, as the window allows.
    fn send(&mut self, data: &[u8]) {
        while self.window < data.len() {
            self.hear();
        }
        self.window -= data.len();
        let data = ChannelData { recipient: 0, data };
        let packet = wire::PacketBuf::from_payload(&data.to_bytes());
        self.stranger.transport.send(packet).expect("it may");
    }

    /// Opens a file to be written to; its handle.
    fn open(&mut self, path: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let init = Init {
            version: 3,
            extensions: Rest(&[]),
        };
        sftp::frame(&mut bytes, |out| init.encode(out));
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
        Request::Open {
            path,
            flags,
            attrs: Attrs::default(),
        }
        .encode(RequestId(1), &mut bytes);
        self.send(&bytes);
        self.stranger.flush().expect("it listens");
        self.wait_for(2);
        match Response::decode(&self.answers[1]) {
            Ok((_, Response::Handle { handle })) => handle.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

fn between(seed: &mut Seed, range: Range<u64>) -> usize {
    (range.start + seed.below(range.end - range.start)) as usize
}

/// However WRITEs are cut into packets and packets into what a socket has at once, and whatever comes in between.
#[test]
fn files_are_what_was_sent_however_it_was_cut() {
    let scene = listening(&[FLAG]);
    for n in 0..6 {
        let mut seed = Seed::new(n);
        let path = scene.path(&format!("file-{n}"));
        let mut client = Client::new(&scene);
        let handle = client.open(path.as_os_str().as_bytes());
        let content = seed.bytes(12_000_000 + n as usize);
        let (mut stream, mut at, mut asked) = (Vec::new(), 0, 0);
        while at < content.len() {
            let most = match seed.below(4) {
                0 => between(&mut seed, 1..5_000),
                1 => between(&mut seed, 100_000..300_000),
                _ => 1 << 20,
            };
            let data = &content[at..content.len().min(at + most)];
            let handle = &handle[..];
            Request::Write {
                handle,
                offset: at as u64,
                data,
            }
            .encode(RequestId(asked), &mut stream);
            (at, asked) = (at + data.len(), asked + 1);
            if seed.below(5) == 0 {
                Request::Fstat { handle }.encode(RequestId(asked), &mut stream);
                asked += 1;
            }
        }
        let mut left = &stream[..];
        while !left.is_empty() {
            let most = match seed.below(6) {
                0 => between(&mut seed, 1..100),
                1 => between(&mut seed, 1..40_000),
                _ => LARGEST,
            };
            let (packet, rest) = left.split_at(most.min(left.len()));
            client.send(packet);
            left = rest;
            if seed.below(8) == 0 {
                let nothing = Ignore { data: &[7; 300] }.to_bytes();
                let packet = wire::PacketBuf::from_payload(&nothing);
                client.stranger.transport.send(packet).expect("it may");
            }
            // Some of it leaves alone, wherever that ends.
            let all = client.stranger.output().expect("it has keys");
            let cut = between(&mut seed, 0..all.len() as u64 + 1);
            for part in [&all[..cut], &all[cut..]] {
                client.stranger.stream.write_all(part).expect("it listens");
                if seed.below(10) == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
        client.wait_for(2 + asked as usize);
        for (n, answer) in (0..asked).zip(&client.answers[2..]) {
            let (id, response) = Response::decode(answer).expect("an answer");
            assert_eq!(id, RequestId(n));
            let fine = match response {
                Response::Status { code, .. } => code == StatusCode::OK,
                other => matches!(other, Response::Attrs { .. }),
            };
            assert!(fine, "{n}: {answer:?}");
        }
        let there = fs::read(&path).expect("it is there");
        assert!(there == content, "{n}: another file");
    }
}

/// What came whole before the client went is kept, and what did not makes nothing of what comes next.
#[test]
fn a_client_that_goes_in_the_middle_of_a_write_harms_nobody() {
    let scene = listening(&[FLAG]);
    let path = scene.path("file");
    let content = Seed::new(1).bytes(1 << 20);
    for cut in [40, 300_000, 900_000] {
        let mut client = Client::new(&scene);
        let handle = client.open(path.as_os_str().as_bytes());
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
            client.send(packet);
            client.stranger.flush().expect("it listens");
        }
        client.wait_for(2 + 3);
        drop(client);
        let there = fs::read(&path).expect("it is there");
        assert!(there[..3 << 20] == content.repeat(3), "{cut}");
    }
    write_file(&scene.path("from"), &content);
    let from = scene.path("from");
    scene.copies(&[FLAG, "--connections", "1"], from, scene.remote("to"));
}

/// Otherwise nothing of this is tested.
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
            let told = line.split_once("without coming to memory bytes=")?.1;
            told.trim().parse::<u64>().ok()
        };
        log.lines().filter_map(bytes).sum::<u64>()
    };
    for (flag, passes) in [("--insecure-none-cipher", false), (FLAG, true)] {
        let flags = ["--connections", "1", "--compress=never", flag];
        scene.copies(&flags, scene.path("from"), scene.remote("to"));
        assert!(fs::read(scene.path("to")).expect("it is there") == content);
        let until = Instant::now() + Duration::from_secs(10);
        while !scene.peer.processes().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let passed = passed();
        assert_eq!(passed > 48 << 20, passes, "{flag}: {passed} bytes");
        assert!(passes || passed == 0, "{flag}: {passed} bytes");
    }
}
