//! Fuzzes the answers of an ssh-agent.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use fuzz::{Corpus, assert_shown_safely, parse};
use transfer::agent::{Agent, AgentChoice};
use wire::Field;

/// Serves an agent that answers every request with `reply`, until its socket is gone.
fn serve(listener: UnixListener, reply: Arc<Mutex<Vec<u8>>>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let mut request = [0; 4096];
        if !matches!(stream.read(&mut request), Ok(1..)) {
            continue;
        }
        let bytes = reply.lock().expect("no panic under the lock").clone();
        let _ = stream.write_all(&bytes);
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    body.write(&mut out);
    out
}

#[test]
fn replies() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("agent");
    let listener = UnixListener::bind(&path).expect("a socket");
    let reply = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&reply);
    std::thread::spawn(move || serve(listener, shared));

    let mut list = vec![12, 0, 0, 0, 2];
    for field in [b"blob".as_slice(), b"comment", b"other", b"\x1b[2J"] {
        field.write(&mut list);
    }
    let mut signature = Vec::new();
    b"ssh-ed25519".as_slice().write(&mut signature);
    [7; 64].as_slice().write(&mut signature);
    let mut signed = vec![14];
    signature.as_slice().write(&mut signed);
    let corpus = Corpus(vec![
        ("IDENTITIES_ANSWER", framed(&list)),
        ("SIGN_RESPONSE", framed(&signed)),
        ("FAILURE", framed(&[5])),
        ("SUCCESS", framed(&[6])),
        ("EXTENSION_FAILURE", framed(&[28])),
    ]);
    let socket = AgentChoice::Path(path);
    parse(512, |u| {
        *reply.lock().expect("no panic under the lock") = corpus.mutant(u)?;
        let mut agent = Agent::connect(&socket)
            .expect("connects")
            .expect("an agent");
        let error = match u.int_in_range(0..=2)? {
            0 => agent.keys().err(),
            1 => agent
                .sign(b"blob", b"data", "ssh-ed25519")
                .map(|s| assert!(s.starts_with(b"\0\0\0\x0bssh-ed25519")))
                .err(),
            _ => agent.bind(b"key", b"id", b"signature", false).err(),
        };
        if let Some(error) = error {
            assert_shown_safely(&error.to_string(), false);
        }
        Ok(())
    });
}
