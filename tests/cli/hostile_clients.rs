//! `longhaul serve --listen` with clients that send what no honest client sends: the running
//! program gets what other tests send to its parts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use longhaul_tests::stranger::Stranger;
use longhaul_tests::{Scene, longhaul};
use rustix::process::Signal;
use ssh::msg::{
    ChannelData, ChannelOpen, ChannelRequest, GlobalRequest, Ignore, Ping, ServiceRequest,
    UserauthSuccess,
};
use testkit::peer::PeerBuilder;
use wire::RemainingBytes;

use crate::accounts::{Machine, fact};
use crate::serving::openssh;

/// Starts a server that also authorizes the key of [`Stranger`].
pub(crate) fn listening(flags: &[&str]) -> Scene {
    let builder = PeerBuilder::longhaul(longhaul(), flags.iter().copied());
    let builder = builder.authorize_line(Stranger::public_line());
    Scene::with(builder).expect("longhaul is there")
}

pub(crate) fn stranger(scene: &Scene) -> Stranger {
    Stranger::connect(scene.peer.port()).expect("it listens")
}

pub(crate) fn friend(scene: &Scene) -> Stranger {
    let mut friend = stranger(scene);
    friend.log_in(scene.peer.user()).expect("it is let in");
    friend
}

/// Asserts that an honest client is served.
#[track_caller]
pub(crate) fn is_served(scene: &Scene) {
    let outcome = openssh(scene, "sftp").arg("peer").stdin("pwd\n").run();
    outcome.expect_code(0);
}

pub(crate) fn open_session() -> Vec<u8> {
    ChannelOpen {
        kind: b"session",
        sender: 0,
        window: 1 << 20,
        max_packet: 1 << 15,
        data: RemainingBytes(&[]),
    }
    .to_bytes()
}

pub(crate) fn request(name: &[u8], data: &[u8]) -> Vec<u8> {
    ChannelRequest {
        recipient: 0,
        name,
        want_reply: true,
        data: RemainingBytes(data),
    }
    .to_bytes()
}

/// Returns channel messages that a client may not send before the login. Erlang's server executed
/// them.
fn of_channels(touched: &str) -> Vec<Vec<u8>> {
    let command = format!("touch {touched}");
    let mut exec = (command.len() as u32).to_be_bytes().to_vec();
    exec.extend_from_slice(command.as_bytes());
    let data = ChannelData {
        recipient: 0,
        data: b"x",
    };
    let global = GlobalRequest {
        name: b"keepalive@openssh.com",
        want_reply: true,
        data: RemainingBytes(&[]),
    };
    vec![
        open_session(),
        request(b"exec", &exec),
        request(b"subsystem", b"\0\0\0\x04sftp"),
        data.to_bytes(),
        global.to_bytes(),
    ]
}

#[test]
fn cve_2025_32433_channels_before_a_login_end_the_connection_and_nothing_is_done() {
    let scene = listening(&[]);
    let touched = scene.path("touched");
    let messages = of_channels(&touched.display().to_string());
    let service = ServiceRequest {
        name: b"ssh-userauth",
    };
    for asked in [false, true] {
        for message in &messages {
            let mut stranger = stranger(&scene);
            if asked {
                stranger.say(&service.to_bytes()).expect("it listens");
                stranger.hear().expect("SERVICE_ACCEPT");
            }
            stranger.say(message).expect("it listens");
            let end = stranger.end();
            let words = end.words();
            let told = words.starts_with("the peer sent ") && words.contains("authenti");
            assert!(told, "{}: {end:?}", message[0]);
        }
        // All messages of the attack at once.
        let mut stranger = stranger(&scene);
        for message in &messages {
            let _ = stranger.say(message);
        }
        stranger.end();
    }
    assert!(!touched.exists());
    assert!(!scene.peer.log().contains("logged in"));
    is_served(&scene);
}

/// CVE-2018-10933: libssh's server accepted USERAUTH_SUCCESS from a client.
#[test]
fn cve_2018_10933_success_from_a_client_ends_the_connection() {
    let scene = listening(&[]);
    let mut stranger = stranger(&scene);
    let success = UserauthSuccess {}.to_bytes();
    stranger.say(&success).expect("it listens");
    // The connection may already be closed.
    let _ = stranger.say(&open_session());
    let end = stranger.end();
    assert!(
        end.words().contains("only this machine may send"),
        "{end:?}"
    );
    assert!(!scene.peer.log().contains("logged in"));
}

/// Returns a packet from before the first keys.
pub(crate) fn plain(payload: &[u8]) -> Vec<u8> {
    let padding = 8 - (5 + payload.len()) % 8 + 8;
    let len = (1 + payload.len() + padding) as u32;
    let mut packet = len.to_be_bytes().to_vec();
    packet.push(padding as u8);
    packet.extend_from_slice(payload);
    packet.resize(packet.len() + padding, 0);
    packet
}

/// Returns a client's KEXINIT with these key exchange, host key, cipher and MAC lists.
pub(crate) fn kexinit([kex, host_key, cipher, mac]: [&str; 4]) -> Vec<u8> {
    let mut payload = vec![20];
    payload.extend([1; 16]);
    for list in [
        kex, host_key, cipher, cipher, mac, mac, "none", "none", "", "",
    ] {
        payload.extend((list.len() as u32).to_be_bytes());
        payload.extend(list.as_bytes());
    }
    payload.extend([0; 5]);
    payload
}

/// Sends this, and returns everything that the server sends until it disconnects.
pub(crate) fn told(scene: &Scene, said: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(scene.peer.addr()).expect("it listens");
    let time = Some(Duration::from_secs(20));
    stream.set_read_timeout(time).expect("a timeout");
    stream.write_all(b"SSH-2.0-x\r\n").expect("it listens");
    // The server may already have disconnected.
    let _ = stream.write_all(&said.concat());
    let mut told = Vec::new();
    let ended = stream.read_to_end(&mut told);
    let reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(ended.as_ref().err().is_none_or(reset), "{ended:?}");
    String::from_utf8_lossy(&told).into_owned()
}

#[test]
fn cve_2023_48795_what_is_slipped_in_before_the_keys_ends_the_connection() {
    let scene = listening(&[]);
    let ignore = plain(&Ignore { data: b"" }.to_bytes());
    let kexinit = plain(&kexinit([
        "mlkem768x25519-sha256,kex-strict-c-v00@openssh.com",
        "ssh-ed25519",
        "chacha20-poly1305@openssh.com",
        "hmac-sha2-256",
    ]));
    for said in [[&ignore, &kexinit], [&kexinit, &ignore]] {
        let told = told(&scene, &[said[0], said[1]]);
        let noticed = ["strict key exchange forbids", "a strict first key exchange"];
        assert!(noticed.iter().any(|words| told.contains(words)), "{told:?}");
    }
    is_served(&scene);
}

#[test]
fn cve_2025_26466_pings_before_a_login_cost_nothing_and_have_no_answer() {
    let scene = listening(&[]);
    let mut stranger = stranger(&scene);
    let data = vec![1; 10_000];
    let ping = Ping { data: &data }.to_bytes();
    for _ in 0..100 {
        stranger.say_often(&ping, 20).expect("it listens");
        for pid in scene.peer.sessions() {
            let memory = longhaul_tests::processes::memory(pid, "Private_Dirty");
            assert!(memory < 4 << 20, "{} KiB", memory >> 10);
        }
    }
    let service = ServiceRequest {
        name: b"ssh-userauth",
    };
    stranger.say(&service.to_bytes()).expect("it listens");
    let answer = stranger.hear().expect("SERVICE_ACCEPT");
    assert_eq!(answer[0], 6);
    let pong = |event| matches!(event, ssh::transport::TransportEvent::Pong);
    assert!(!std::iter::from_fn(|| stranger.transport.poll_event()).any(pong));
}

/// Each limit has an error text of its own.
#[test]
fn whoever_floods_behind_a_login_reads_with_what() {
    let scene = listening(&[]);
    let ping = Ping { data: b"" }.to_bytes();
    let request = GlobalRequest {
        name: b"x",
        want_reply: true,
        data: RemainingBytes(&[]),
    };
    for (flood, sentence) in [
        (
            ping,
            "the peer sent too many pings without reading the replies",
        ),
        (
            request.to_bytes(),
            "the peer sent too many requests without reading the replies",
        ),
    ] {
        let end = friend(&scene).flood(&flood, 100_000);
        let end = end.expect("it has keys");
        assert_eq!(end.words(), sentence, "{end:?}");
        scene.logs(sentence);
    }
    is_served(&scene);
}

/// Returns the numbers of the signals for which a process has handlers.
fn handled(pid: u32) -> Vec<u32> {
    let mask = fact(pid, "SigCgt").expect("it runs").concat();
    let mask = u64::from_str_radix(&mask, 16).expect("a mask");
    (1..=64).filter(|n| mask >> (n - 1) & 1 == 1).collect()
}

/// CVE-2024-6387: sshd's handler of SIGALRM freed and allocated memory while its process was in any
/// state. longhaul's loop checks the clock instead, and the remaining signal handlers do no work.
#[test]
fn cve_2024_6387_no_signal_has_work_done_beside_what_reads_a_client() {
    let Some(machine) = Machine::start(&[]) else {
        return;
    };
    // Handlers of Rust's runtime, which end the process on a stack overflow.
    let of_runtime = [Signal::SEGV, Signal::BUS].map(|s| s.as_raw().cast_unsigned());
    let mut stranger = TcpStream::connect(("127.0.0.1", machine.port)).expect("it listens");
    stranger
        .read_exact(&mut [0; 8])
        .expect("its identification");
    for number in handled(machine.only_one()) {
        assert!(
            of_runtime.contains(&number),
            "signal {number} before a login"
        );
    }
    drop(stranger);
    let session = machine.sftp_with(&machine.key, "alice", &[]);
    let session = session.in_terminal().spawn();
    assert!(session.shows("sftp>"), "{}", machine.daemon.log());
    // Each of these handlers sets a flag that nothing in this process reads (leave_to_others and
    // too_long_is_an_error of the program's signals.rs): the server ends its processes itself.
    let flags = [Signal::HUP, Signal::INT, Signal::TERM, Signal::XFSZ];
    let flags = flags.map(|s| s.as_raw().cast_unsigned());
    for number in handled(machine.process_of(54_001)) {
        let known = of_runtime.contains(&number) || flags.contains(&number);
        assert!(known, "signal {number} behind a login");
    }
    let mut all = machine.daemon.descendants();
    all.push(machine.daemon.pid());
    for pid in all {
        for signal in [Signal::ALARM, Signal::CHILD] {
            let number = signal.as_raw().cast_unsigned();
            assert!(!handled(pid).contains(&number), "signal {number} in {pid}");
        }
    }
    drop(session);
}
