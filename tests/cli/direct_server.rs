//! `longhaul serve --once` over pipes, with OpenSSH's client at its port.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ssh::direct_control::{
    DirectMessageSplitter, DirectServerMessage, DirectStartRequest, MoreLoginKeysRequest,
};
use testkit::keys::{KeyKind, KeyPair};
use testkit::process::words;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::{longhaul, names_in};
use ssh::direct_control::{self, VERSION};
use testkit::tree::write_file;
use testkit::{Outcome, Run, wait};

use super::direct::until;

struct Once {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    frames: DirectMessageSplitter,
    folder: tempfile::TempDir,
}

struct At {
    port: u16,
    user: String,
    known_hosts: PathBuf,
}

impl Once {
    fn start(flags: &[&str]) -> Self {
        Self::connected(flags, "127.0.0.1 50000 127.0.0.1 22")
    }

    fn connected(flags: &[&str], connection: &str) -> Self {
        let mut child = Command::new(longhaul())
            .args(["serve", "--once"])
            .args(flags)
            .env("SSH_CONNECTION", connection)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("longhaul");
        Self {
            input: child.stdin.take(),
            output: child.stdout.take().expect("a pipe"),
            child,
            frames: DirectMessageSplitter::of_server(),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn key(&self, name: &str) -> (KeyPair, Vec<u8>) {
        let pair = KeyPair::generate(self.folder.path(), name, KeyKind::Ed25519);
        let line = pair.public_line();
        let encoded = line.split_whitespace().nth(1).expect("a key");
        let blob = ssh_blob(encoded);
        (pair, blob)
    }

    fn say(&mut self, message: &[u8]) {
        let input = self.input.as_mut().expect("it is open");
        input
            .write_all(&direct_control::framed(message))
            .expect("it listens");
    }

    fn begin(&mut self, version: u32, keys: &[&[u8]]) {
        let keys = direct_control::write_keys(keys.iter().copied());
        let begin = DirectStartRequest {
            version,
            first_port: 0,
            last_port: 0,
            bear_losses: false,
            keys: &keys,
        };
        self.say(&begin.to_bytes());
    }

    /// Returns the next message of the server.
    fn hears(&mut self) -> DirectServerMessage {
        loop {
            if let Some(message) = self.frames.next_message().expect("a message") {
                return DirectServerMessage::decode(&message).expect("a message of its");
            }
            let mut bytes = [0; 4096];
            let n = self.output.read(&mut bytes).expect("it is there");
            assert!(n > 0, "it has ended");
            self.frames.push(&bytes[..n]).expect("messages");
        }
    }

    fn listens(&mut self, keys: &[&[u8]]) -> At {
        self.begin(VERSION, keys);
        let DirectServerMessage::Listening {
            port,
            user,
            host_key,
            ..
        } = self.hears()
        else {
            panic!("it does not listen");
        };
        let known_hosts = self.folder.path().join("known_hosts");
        let encoded = base64(host_key.blob());
        let line = format!("[127.0.0.1]:{port} {} {encoded}\n", host_key.key_type());
        write_file(&known_hosts, line.as_bytes());
        At {
            port,
            user,
            known_hosts,
        }
    }

    fn refuses(&mut self) -> String {
        match self.hears() {
            DirectServerMessage::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the process and its descendants.
    fn family(&self) -> Vec<u32> {
        let mut found = vec![self.child.id()];
        let all = names_in(Path::new("/proc")).into_iter();
        for pid in all.filter_map(|name| name.to_str()?.parse::<u32>().ok()) {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
            if parent == Some(self.child.id()) {
                found.push(pid);
            }
        }
        found
    }

    /// Asserts that all of its processes end.
    #[track_caller]
    fn ends(mut self, family: &[u32]) {
        let ended = wait::exit(&mut self.child, Duration::from_secs(10));
        assert!(ended.is_some(), "it has not ended");
        let gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
        assert!(until(|| family.iter().all(gone)), "a process is left");
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prepares OpenSSH's client, which knows the host and has only `key`.
fn client(program: &str, at: &At, key: &KeyPair) -> Run {
    let options = [
        format!("UserKnownHostsFile={}", at.known_hosts.display()),
        format!("IdentityFile={}", key.private.display()),
        "GlobalKnownHostsFile=/dev/null".to_owned(),
        "IdentitiesOnly=yes".to_owned(),
        "IdentityAgent=none".to_owned(),
        "BatchMode=yes".to_owned(),
        "StrictHostKeyChecking=yes".to_owned(),
        format!("Port={}", at.port),
    ];
    let run = Run::new(program).args(["-F", "none"]);
    let options = options.iter().flat_map(|o| ["-o".to_owned(), o.clone()]);
    run.args(options).timeout(Duration::from_secs(30))
}

fn sftp(once: &Once, at: &At, key: &KeyPair, user: &str) -> Outcome {
    let batch = once.folder.path().join("batch");
    write_file(&batch, b"ls /\n");
    let run = client("sftp", at, key).arg("-b").arg(&batch);
    run.arg(format!("{user}@127.0.0.1")).run()
}

fn ssh_blob(encoded: &str) -> Vec<u8> {
    let out = Run::new("base64").arg("-d").stdin(encoded).run();
    out.stdout
}

fn base64(bytes: &[u8]) -> String {
    Run::new("base64")
        .args(["-w", "0"])
        .stdin(bytes)
        .run()
        .out()
}

#[test]
fn each_key_lets_in_once_and_nobody_else_comes_in() {
    let mut once = Once::start(&[]);
    let (key, blob) = once.key("key");
    let (other, other_blob) = once.key("other");
    let (strange, _) = once.key("strange");
    let at = once.listens(&[&blob]);
    // This key was not announced to the server.
    let outcome = sftp(&once, &at, &strange, &at.user);
    assert!(outcome.err().contains("Permission denied"), "{outcome}");
    // The right key admits only the right user, and is not used up by a wrong attempt.
    let outcome = sftp(&once, &at, &key, "somebody-else");
    assert!(outcome.err().contains("Permission denied"), "{outcome}");
    sftp(&once, &at, &key, &at.user).expect_code(0);
    // The key is used a second time.
    let outcome = sftp(&once, &at, &key, &at.user);
    assert!(outcome.code != Some(0), "{outcome}");
    // More keys are sent over the same channel. There is no shell, no command and no forwarding.
    let keys = direct_control::write_keys([&other_blob[..]]);
    once.say(
        &MoreLoginKeysRequest {
            number: 5,
            keys: &keys,
        }
        .to_bytes(),
    );
    assert!(matches!(once.hears(), DirectServerMessage::KeysAccepted(5)));
    let run = client("ssh", &at, &other).arg("-l").arg(&at.user);
    let outcome = run.args(["127.0.0.1", "echo ran"]).run();
    assert!(
        !outcome.out().contains("ran") && outcome.code != Some(0),
        "{outcome}"
    );
    assert!(outcome.err().contains("files only"), "{outcome}");
}

#[test]
fn nothing_is_forwarded() {
    let mut once = Once::start(&[]);
    let (key, blob) = once.key("key");
    let at = once.listens(&[&blob]);
    let echo = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("127.0.0.1:{}", echo.local_addr().unwrap().port());
    let run = client("ssh", &at, &key)
        .args(["-W", &to])
        .arg("-l")
        .arg(&at.user);
    let outcome = run.arg("127.0.0.1").run();
    assert!(outcome.code != Some(0), "{outcome}");
    echo.set_nonblocking(true).unwrap();
    assert!(echo.accept().is_err());
}

#[test]
fn it_ends_with_its_channel_wherever_that_ends() {
    // The input ends before any message.
    let mut once = Once::start(&[]);
    let family = once.family();
    drop(once.input.take());
    once.ends(&family);
    // The input ends in the middle of a message.
    let mut once = Once::start(&[]);
    once.input.as_mut().unwrap().write_all(&[0, 0, 0]).unwrap();
    drop(once.input.take());
    once.ends(&[]);
    // The input ends while the server listens.
    let mut once = Once::start(&[]);
    let (_, blob) = once.key("key");
    let at = once.listens(&[&blob]);
    assert!(until(|| once.family().len() > 1), "nothing stands ready");
    let family = once.family();
    drop(once.input.take());
    once.ends(&family);
    assert!(TcpStream::connect(("127.0.0.1", at.port)).is_err());
    // The input ends while a client logs in.
    let mut once = Once::start(&[]);
    let (_, blob) = once.key("key");
    let at = once.listens(&[&blob]);
    let mut stranger = TcpStream::connect(("127.0.0.1", at.port)).unwrap();
    let mut ident = [0; 4];
    stranger.read_exact(&mut ident).unwrap();
    let family = once.family();
    drop(once.input.take());
    once.ends(&family);
    // The server is killed.
    let mut once = Once::start(&[]);
    let (_, blob) = once.key("key");
    let at = once.listens(&[&blob]);
    let mut stranger = TcpStream::connect(("127.0.0.1", at.port)).unwrap();
    stranger.read_exact(&mut ident).unwrap();
    let family = once.family();
    once.child.kill().unwrap();
    once.ends(&family);
}

#[test]
fn connections_end_with_the_channel() {
    let mut once = Once::start(&[]);
    let (key, blob) = once.key("key");
    let at = once.listens(&[&blob]);
    // A client has an SFTP session open.
    let mut open = Command::new("ssh");
    let args = words(&[&"-F", &"none"]);
    let mut sftp = open
        .args(args)
        .args([
            "-o",
            &format!("UserKnownHostsFile={}", at.known_hosts.display()),
        ])
        .args(["-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"])
        .args([
            "-o",
            "IdentityAgent=none",
            "-o",
            &format!("Port={}", at.port),
        ])
        .arg("-i")
        .arg(&key.private)
        .args(["-l", &at.user, "127.0.0.1", "-s", "sftp"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("ssh");
    let mut input = sftp.stdin.take().unwrap();
    input.write_all(&[0, 0, 0, 5, 1, 0, 0, 0, 3]).unwrap();
    let mut version = [0; 5];
    sftp.stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut version)
        .unwrap();
    let family = once.family();
    drop(once.input.take());
    once.ends(&family);
    let ended = wait::exit(&mut sftp, Duration::from_secs(10)).is_some();
    let _ = sftp.kill();
    let _ = sftp.wait();
    assert!(ended, "a connection is left");
}

#[test]
fn what_makes_no_sense_ends_it_with_a_sentence() {
    let mut once = Once::start(&[]);
    once.begin(7, &[]);
    assert!(once.refuses().contains("upgrade this end"));
    once.ends(&[]);
    let mut once = Once::start(&[]);
    once.say(b"\x63garbage");
    assert!(once.refuses().contains("message 99"));
    once.ends(&[]);
    let mut once = Once::start(&[]);
    once.input
        .as_mut()
        .unwrap()
        .write_all(&[0xff; 100])
        .unwrap();
    assert!(once.refuses().contains("exceeds the limit"));
    once.ends(&[]);
    let mut once = Once::start(&["--root", "/no/such/folder"]);
    once.begin(VERSION, &[]);
    assert!(once.refuses().contains("/no/such/folder"));
    once.ends(&[]);
    let mut once = Once::connected(&[], "UNKNOWN 65535 UNKNOWN 65535");
    once.begin(VERSION, &[]);
    assert!(once.refuses().contains("SSH_CONNECTION"));
    once.ends(&[]);
}

#[test]
fn it_waits_at_ipv6_too() {
    let mut once = Once::connected(&[], "::1 50000 ::1 22");
    let (_, blob) = once.key("key");
    let at = once.listens(&[&blob]);
    let mut stranger = TcpStream::connect(("::1", at.port)).unwrap();
    let mut ident = [0; 4];
    stranger.read_exact(&mut ident).unwrap();
    assert_eq!(&ident, b"SSH-");
    // The server does not listen on other addresses.
    assert!(TcpStream::connect(("127.0.0.1", at.port)).is_err());
}

#[test]
fn whoever_comes_when_no_key_waits_is_turned_away() {
    let mut once = Once::start(&[]);
    let at = once.listens(&[]);
    let mut stranger = TcpStream::connect(("127.0.0.1", at.port)).unwrap();
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).unwrap();
    // An identification and a DISCONNECT, which clients show.
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("SSH-2.0-longhaul_"), "{said:?}");
    assert!(said.contains("no login is expected now"), "{said:?}");
}
