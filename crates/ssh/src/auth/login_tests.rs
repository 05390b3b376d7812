use std::sync::Arc;

use super::super::{AuthConfig, AuthMethod, OfferedIdentity, request};
use super::*;
use crate::key::PrivateKey;
use wire::RemainingBytes;

const SESSION: &[u8] = b"session";
const HOST_KEY: &[u8] = b"host key";

fn login() -> ServerAuth {
    ServerAuth::new(Bytes::from_static(SESSION), Bytes::from_static(HOST_KEY))
}

/// Returns a login after the service request.
fn begun() -> ServerAuth {
    let mut login = login();
    let ask = ServiceRequest { name: SERVICE };
    login.handle(&ask.to_bytes().into()).unwrap();
    let accept = login.poll_message().unwrap();
    assert_eq!(ServiceAccept::decode(&accept).unwrap().name, SERVICE);
    login
}

fn config(key: &PrivateKey, hostbound: bool) -> AuthConfig {
    let public = key.public();
    AuthConfig {
        user: "bob".to_owned(),
        methods: vec![AuthMethod::PublicKey],
        identities: vec![OfferedIdentity {
            blob: public.blob().to_vec(),
            algorithms: public
                .algorithms()
                .iter()
                .map(|a| (*a).to_owned())
                .collect(),
            direct: true,
        }],
        session_id: Bytes::from_static(SESSION),
        host_key: Bytes::from_static(HOST_KEY),
        hostbound,
        signature_algorithms: None,
        max_prompts: 0,
    }
}

/// Returns a signed request as the client of this crate makes it.
fn signed(key: &PrivateKey, config: &AuthConfig) -> Bytes {
    let identity = &config.identities[0];
    let unsigned = request::public_key(config, identity, 0, true);
    let covered = request::to_be_signed(config, &unsigned);
    let signature = key.sign(&identity.algorithms[0], &covered).unwrap();
    request::with_signature(unsigned, &signature).into()
}

fn plain(user: &[u8], service: &[u8], method: &[u8]) -> Bytes {
    let data = RemainingBytes(b"");
    let request = UserauthRequest {
        user,
        service,
        method,
        data,
    };
    request.to_bytes().into()
}

/// Returns the number of the next message.
fn says(login: &mut ServerAuth) -> Option<u8> {
    login.poll_message().map(|m| m[0])
}

const FAILURE: Option<u8> = Some(UserauthFailure::NUMBER);
const SUCCESS: Option<u8> = Some(UserauthSuccess::NUMBER);
const PK_OK: Option<u8> = Some(UserauthPkOk::NUMBER);

fn keys() -> Vec<Arc<PrivateKey>> {
    let made = [
        PrivateKey::generate_ed25519(),
        PrivateKey::generate_ecdsa("nistp256"),
        PrivateKey::generate_rsa(),
    ];
    made.map(|key| Arc::new(key.unwrap())).to_vec()
}

#[test]
fn a_key_of_any_kind_lets_in_whoever_signs_with_it() {
    for key in keys() {
        for hostbound in [false, true] {
            let config = config(&key, hostbound);
            let mut login = begun();
            let query = request::public_key(&config, &config.identities[0], 0, false);
            login.handle(&query.into()).unwrap();
            assert!(login.waits());
            login.decide(true).unwrap();
            assert_eq!(says(&mut login), PK_OK);
            login.poll_event();

            login.handle(&signed(&key, &config)).unwrap();
            assert_eq!(says(&mut login), None, "before the owner has decided");
            login.decide(true).unwrap();
            assert_eq!(says(&mut login), SUCCESS);
            let (user, public) = (b"bob".to_vec(), key.public().clone());
            let (asked, over) = (login.poll_event(), login.poll_event());
            let (whose, proof) = match asked {
                Some(ServerAuthEvent::Key {
                    user: asked,
                    key,
                    proof: Some(proof),
                }) if asked == user => (key, proof),
                other => panic!("{other:?}"),
            };
            assert_eq!(whose, public);
            // Another verifier comes to the same result, and only for this account.
            let claim = |user| ProofContext {
                session_id: &config.session_id,
                host_key: &config.host_key,
                user,
                key: &public,
            };
            assert_eq!(proof.check(claim(b"bob")), Ok(None));
            assert!(proof.check(claim(b"eve")).is_err());
            assert_eq!(over, Some(ServerAuthEvent::Success { user, key: public }));
        }
    }
}

#[test]
fn nobody_gets_in_without_the_owner_or_without_the_right_signature() {
    let key = PrivateKey::generate_ed25519().unwrap();
    let other = PrivateKey::generate_ed25519().unwrap();
    let right = config(&key, false);
    let with = |change: &dyn Fn(&mut AuthConfig)| {
        let mut config = config(&key, true);
        change(&mut config);
        signed(&key, &config)
    };
    let mut cut = signed(&key, &right).to_vec();
    let last = cut.len() - 1;
    cut[last] ^= 1;
    for (request, allowed) in [
        (signed(&key, &right), false),
        (signed(&other, &right), true),
        (cut.into(), true),
        (
            with(&|c| c.session_id = Bytes::from_static(b"another")),
            true,
        ),
    ] {
        let mut login = begun();
        login.handle(&request).unwrap();
        login.decide(allowed).unwrap();
        assert_eq!(says(&mut login), FAILURE);
        let success = |e: &ServerAuthEvent| matches!(e, ServerAuthEvent::Success { .. });
        assert!(!std::iter::from_fn(|| login.poll_event()).any(|e| success(&e)));
    }
    // The signature of a login at another host; no key at all; an algorithm of another key.
    for request in [
        with(&|c| c.host_key = Bytes::from_static(b"another")),
        with(&|c| c.identities[0].blob = b"no key".to_vec()),
        with(&|c| c.identities[0].blob = other_blob()),
    ] {
        let mut login = begun();
        login.handle(&request).unwrap();
        assert!(!login.waits(), "the owner is not even asked");
        assert_eq!(says(&mut login), FAILURE);
    }
}

/// Regression in x/crypto: its callback was called for several keys, and the last key it was asked
/// about was taken for the one that had signed.
#[test]
fn cve_2024_45337_the_account_is_that_of_the_key_that_signed() {
    let (mine, theirs) = (
        PrivateKey::generate_ed25519().unwrap(),
        PrivateKey::generate_ed25519().unwrap(),
    );
    let (mine_asked, theirs_asked) = (config(&mine, false), config(&theirs, false));
    for before in [true, false] {
        let mut login = begun();
        let query = request::public_key(&theirs_asked, &theirs_asked.identities[0], 0, false);
        let ask = |login: &mut ServerAuth| {
            login.handle(&query.clone().into()).unwrap();
            login.decide(true).unwrap();
            assert_eq!(says(login), PK_OK);
        };
        if before {
            ask(&mut login);
        }
        login.handle(&signed(&mine, &mine_asked)).unwrap();
        // Between a signature and the decision about it no other key can be queried.
        if !before {
            let handled = login.handle(&query.clone().into());
            assert!(handled.is_err() || says(&mut login).is_none());
        }
        login.decide(true).unwrap();
        let last = std::iter::from_fn(|| login.poll_event()).last();
        match last {
            Some(ServerAuthEvent::Success { key, .. }) => assert_eq!(key, *mine.public()),
            // The login waits for the decision about the second request, or has ended.
            other => assert!(!before, "{other:?}"),
        }
    }
    // A signature by one key with the blob of another is invalid.
    let mut mixed = config(&mine, false);
    mixed.identities[0].blob = theirs.public_blob().to_vec();
    let mut login = begun();
    login.handle(&signed(&mine, &mixed)).unwrap();
    login.decide(true).unwrap();
    assert_eq!(says(&mut login), FAILURE);
}

/// Regression in x/crypto: it read as many mechanisms as the request claimed.
#[test]
fn cve_2025_58181_a_gssapi_request_is_not_read_at_all() {
    let mut data = u32::MAX.to_be_bytes().to_vec();
    data.extend_from_slice(&[0; 64]);
    let request = UserauthRequest {
        user: b"bob",
        service: CONNECTION,
        method: b"gssapi-with-mic",
        data: RemainingBytes(&data),
    };
    let mut login = begun();
    login.handle(&request.to_bytes().into()).unwrap();
    assert_eq!(says(&mut login), FAILURE);
    assert!(!login.waits());
}

fn other_blob() -> Vec<u8> {
    let key = PrivateKey::generate_ecdsa("nistp256").unwrap();
    key.public_blob().to_vec()
}

#[test]
fn whoever_tries_too_often_is_out() {
    let mut login = begun();
    // Clients ask for the methods this way, which is free once.
    login.handle(&plain(b"bob", CONNECTION, b"none")).unwrap();
    assert_eq!(says(&mut login), FAILURE);
    for n in 1..=MAX_TRIES {
        let handled = login.handle(&plain(b"bob", CONNECTION, b"password"));
        let out = PeerMisbehaved::TooManyTries.into();
        assert_eq!(handled.err(), (n == MAX_TRIES).then_some(out));
    }
}

#[test]
fn what_no_honest_client_sends_ends_the_connection() {
    for (first, then) in [
        (
            plain(b"bob", CONNECTION, b"none"),
            plain(b"eve", CONNECTION, b"none"),
        ),
        (
            plain(b"bob", CONNECTION, b"none"),
            plain(b"bob", b"ssh-shell", b"none"),
        ),
    ] {
        let mut login = begun();
        login.handle(&first).unwrap();
        assert!(login.handle(&then).is_err());
    }
    for payload in [
        UserauthSuccess {}.to_bytes(),
        ServiceRequest { name: SERVICE }.to_bytes(),
        vec![61, 0, 0, 0, 0],
        vec![UserauthRequest::NUMBER],
        plain(&[b'x'; 257], CONNECTION, b"none").to_vec(),
    ] {
        assert!(begun().handle(&payload.into()).is_err());
    }
    let shell = ServiceRequest {
        name: b"ssh-connection",
    };
    assert!(login().handle(&shell.to_bytes().into()).is_err());
    assert!(login().handle(&plain(b"bob", CONNECTION, b"none")).is_err());
}
