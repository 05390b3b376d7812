//! Tests of the agent client against scripted replies and a real ssh-agent.

use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread;

use super::*;

/// Answers one request with `reply`, given as framed bytes, and returns the request.
fn with_reply(reply: Vec<u8>, ask: impl FnOnce(&mut Agent)) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut request = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(&reply).unwrap();
        request
    });
    let mut agent = Agent::connect(&AgentChoice::Path(path)).unwrap().unwrap();
    ask(&mut agent);
    server.join().unwrap()
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    message.write(&mut out);
    out
}

fn answer(keys: u32, fields: &[&[u8]]) -> Vec<u8> {
    let mut pairs = Vec::new();
    for field in fields {
        field.write(&mut pairs);
    }
    let message = IdentitiesAnswer {
        keys,
        pairs: RemainingBytes(&pairs),
    };
    framed(&message.to_bytes())
}

#[test]
fn keys_are_listed_in_order() {
    let reply = answer(2, &[b"blob1", b"one", b"blob2", b"\xff"]);
    let request = with_reply(reply, |agent| {
        let keys = agent.keys().unwrap();
        assert_eq!(keys[0].blob, b"blob1");
        assert_eq!(keys[1].comment, b"\xff");
        assert_eq!(keys.len(), 2);
    });
    assert_eq!(request, [11]);
}

#[test]
fn answers_that_lie_about_their_length_are_errors() {
    for reply in [
        answer(3, &[b"blob", b"comment"]),
        answer(1, &[b"blob", b"comment", b"more"]),
        answer(u32::MAX, &[]),
        framed(&[12]),
        framed(&[200]),
        vec![0xff; 4],
        vec![0; 4],
        vec![0, 0, 0, 9, 12],
    ] {
        with_reply(reply, |agent| assert!(agent.keys().is_err()));
    }
}

#[test]
fn rsa_signatures_are_asked_for_and_checked_by_name() {
    let mut signature = Vec::new();
    b"ssh-rsa".as_slice().write(&mut signature);
    b"sig".as_slice().write(&mut signature);
    let reply = AgentSignResponse {
        signature: &signature,
    };
    let request = with_reply(framed(&reply.to_bytes()), |agent| {
        let error = agent.sign(b"k", b"d", "rsa-sha2-512-cert-v01@openssh.com");
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("signed with ssh-rsa")
        );
    });
    let sent = SignRequest::decode(&request).unwrap();
    assert_eq!(
        (sent.blob, sent.data, sent.flags),
        (&b"k"[..], &b"d"[..], 4)
    );
}

#[test]
fn a_refusal_is_told_apart_from_a_broken_agent() {
    with_reply(framed(&[FAILURE]), |agent| {
        assert!(
            agent
                .sign(b"k", b"d", "ssh-ed25519")
                .unwrap_err()
                .is_refusal()
        );
    });
    with_reply(framed(&[EXTENSION_FAILURE]), |agent| {
        assert!(!agent.bind(b"h", b"s", b"g", false).unwrap());
    });
    with_reply(framed(&[SUCCESS]), |agent| {
        assert!(agent.bind(b"h", b"s", b"g", true).unwrap());
    });
    let gone = Agent::connect(&AgentChoice::Path("/nonexistent/agent".into()));
    assert!(gone.unwrap_err().to_string().contains("/nonexistent/agent"));
    assert!(Agent::connect(&AgentChoice::None).unwrap().is_none());
}

/// x/crypto's client panicked on an agent that answers SUCCESS where keys or a signature are
/// expected.
#[test]
fn cve_2025_47913_success_without_what_was_asked_for_is_an_error() {
    for reply in [framed(&[SUCCESS]), framed(&[SUCCESS, 0, 0, 0, 1, 0])] {
        with_reply(reply.clone(), |agent| assert!(agent.keys().is_err()));
        with_reply(reply, |agent| {
            let error = agent.sign(b"k", b"d", "ssh-ed25519").unwrap_err();
            assert!(!error.is_refusal(), "{error}");
        });
    }
}

/// An ssh-agent that the test starts and ends.
struct RealAgent(Child);

impl Drop for RealAgent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn openssh_s_agent_lists_and_signs() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent");
    let agent = Command::new("ssh-agent")
        .args(["-D", "-a"])
        .arg(&socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(agent) = agent else {
        eprintln!("skipped: ssh-agent is not installed");
        return;
    };
    let _agent = RealAgent(agent);
    testkit::wait::until(
        Duration::from_secs(10),
        || UnixStream::connect(&socket).is_ok(),
        || "ssh-agent does not come up".to_owned(),
    );
    let mut agent = Agent::connect(&AgentChoice::Path(socket.clone()))
        .unwrap()
        .unwrap();
    assert_eq!(agent.keys().unwrap(), []);
    for (kind, algorithm) in [
        ("ed25519", "ssh-ed25519"),
        ("ecdsa", "ecdsa-sha2-nistp256"),
        ("rsa", "rsa-sha2-256"),
    ] {
        let key = dir.path().join(kind);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-C", kind, "-t", kind, "-f"])
            .arg(&key)
            .status();
        assert!(made.unwrap().success());
        let added = Command::new("ssh-add")
            .arg("-q")
            .arg(&key)
            .env("SSH_AUTH_SOCK", &socket)
            .status();
        assert!(added.unwrap().success());
        let keys = agent.keys().unwrap();
        let held = keys.iter().find(|k| k.comment == kind.as_bytes()).unwrap();
        let signature = agent.sign(&held.blob, b"data", algorithm).unwrap();
        let key = ssh::key::PublicKey::from_blob(&held.blob).unwrap();
        assert!(key.verify(algorithm, b"data", &signature).is_ok());
        assert!(key.verify(algorithm, b"other", &signature).is_err());
    }
    assert!(
        agent
            .sign(b"unknown key", b"data", "ssh-ed25519")
            .unwrap_err()
            .is_refusal()
    );
}
