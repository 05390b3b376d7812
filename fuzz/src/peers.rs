//! Transports for fuzzing: settings, seeded randomness, and the bytes between two ends.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arbitrary::{Result, Unstructured};
use bytes::BytesMut;
use ssh::EndpointRole;
use ssh::cipher::{CIPHERS, MACS};
use ssh::key::PrivateKey;
use ssh::transport::{AlgorithmProposal, KexGuess, Transport, TransportConfig};

/// Returns a host key, which is created once.
pub fn host_key() -> Arc<PrivateKey> {
    static KEY: OnceLock<Arc<PrivateKey>> = OnceLock::new();
    let made = || Arc::new(PrivateKey::from_ed25519_seed(&[7; 32]).expect("a key of 32 bytes"));
    Arc::clone(KEY.get_or_init(made))
}

/// Returns one cipher, one MAC and a cheap key exchange, sometimes with compression.
pub fn proposal(u: &mut Unstructured<'_>) -> Result<AlgorithmProposal> {
    let kex = match u.ratio(1, 16)? {
        true => "mlkem768x25519-sha256",
        false => *u.choose(&["curve25519-sha256", "ecdh-sha2-nistp256"])?,
    };
    Ok(AlgorithmProposal {
        kex: vec![kex.into()],
        host_key: vec!["ssh-ed25519".into()],
        ciphers: vec![u.choose(CIPHERS)?.name.into()],
        macs: vec![u.choose(MACS)?.name.into()],
        compress: u.ratio(1, 4)?,
    })
}

/// Returns the settings of either end.
pub fn config(role: EndpointRole, proposal: AlgorithmProposal) -> TransportConfig {
    TransportConfig {
        software: "longhaul_fuzz".into(),
        proposal,
        guess: KexGuess::Never,
        rekey_bytes: None,
        rekey_time: None,
        host_keys: match role {
            EndpointRole::Client => Vec::new(),
            EndpointRole::Server => vec![host_key()],
        },
    }
}

/// Creates an end of a connection.
pub fn transport(role: EndpointRole, config: TransportConfig) -> Transport {
    Transport::new(role, config, Box::new(|to| to.fill(7))).expect("sound settings")
}

/// Returns all pending output.
pub fn drain(transport: &mut Transport) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(output) = transport.poll_output() {
        let sealed = output.seal().expect("a packet that seals");
        bytes.extend(sealed.to_vec().expect("it is in memory"));
    }
    bytes
}

/// Returns the bytes that a server with these settings sends until it waits for the client's
/// NEWKEYS, and those that the client sends.
pub fn first_flights(proposal: AlgorithmProposal) -> (Vec<u8>, Vec<u8>) {
    let mut client = transport(
        EndpointRole::Client,
        config(EndpointRole::Client, proposal.clone()),
    );
    let mut server = transport(EndpointRole::Server, config(EndpointRole::Server, proposal));
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let (mut to_server, mut to_client) = (BytesMut::new(), BytesMut::new());
    let now = Instant::now();
    for _ in 0..4 {
        let (a, b) = (drain(&mut client), drain(&mut server));
        up.extend_from_slice(&a);
        down.extend_from_slice(&b);
        to_server.extend_from_slice(&a);
        to_client.extend_from_slice(&b);
        while let Ok(Some(_)) = server.next_payload(now, &mut to_server) {}
        while let Ok(Some(_)) = client.next_payload(now, &mut to_client) {}
        let _ = client.accept_host_key();
    }
    (up, down)
}
