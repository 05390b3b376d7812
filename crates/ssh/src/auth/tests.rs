//! Tests of each authentication state with each message that the server may and may not send.

use super::*;
use crate::msg::{UserauthInfoResponse, UserauthRequest};
use wire::{Field, RemainingBytes};

const SUCCESS: &[u8] = &[52];

fn blob(key_type: &str, id: u8) -> Vec<u8> {
    let mut blob = Vec::new();
    key_type.as_bytes().write(&mut blob);
    [id; 8].as_slice().write(&mut blob);
    blob
}

fn identity(id: u8, direct: bool) -> OfferedIdentity {
    OfferedIdentity {
        blob: blob("ssh-ed25519", id),
        algorithms: vec!["ssh-ed25519".to_owned()],
        direct,
    }
}

fn rsa(direct: bool) -> OfferedIdentity {
    OfferedIdentity {
        blob: blob("ssh-rsa", 9),
        algorithms: vec!["rsa-sha2-512".to_owned(), "rsa-sha2-256".to_owned()],
        direct,
    }
}

fn config(identities: Vec<OfferedIdentity>) -> AuthConfig {
    AuthConfig {
        user: "bob".to_owned(),
        methods: vec![
            AuthMethod::PublicKey,
            AuthMethod::KeyboardInteractive,
            AuthMethod::Password,
        ],
        identities,
        session_id: Bytes::from_static(b"session"),
        host_key: Bytes::from_static(b"host key"),
        hostbound: false,
        signature_algorithms: None,
        max_prompts: 3,
    }
}

fn accept() -> Bytes {
    Bytes::from(ServiceAccept { name: SERVICE }.to_bytes())
}

fn failure(methods: &str, partial_success: bool) -> Bytes {
    let methods = NameList::new(methods).unwrap();
    Bytes::from(
        UserauthFailure {
            methods,
            partial_success,
        }
        .to_bytes(),
    )
}

fn pk_ok(identity: &OfferedIdentity, algorithm: &str) -> Bytes {
    let ok = UserauthPkOk {
        algorithm: algorithm.as_bytes(),
        blob: &identity.blob,
    };
    Bytes::from(ok.to_bytes())
}

fn info_request(count: u32, prompts: &[(&str, bool)]) -> Bytes {
    let mut rest = Vec::new();
    for (text, echo) in prompts {
        text.as_bytes().write(&mut rest);
        echo.write(&mut rest);
    }
    let request = UserauthInfoRequest {
        name: b"",
        instruction: b"",
        language: b"",
        count,
        prompts: RemainingBytes(&rest),
    };
    Bytes::from(request.to_bytes())
}

/// Returns the method and the fields of a request.
fn method_of(message: &[u8]) -> (String, Vec<u8>) {
    let m = UserauthRequest::decode(message).unwrap();
    assert_eq!((m.user, m.service), (&b"bob"[..], &b"ssh-connection"[..]));
    (
        String::from_utf8(m.method.to_vec()).unwrap(),
        m.data.0.to_vec(),
    )
}

/// Returns the fields of a publickey request: signed, algorithm, blob, the rest.
fn key_fields(data: &[u8]) -> (bool, String, Vec<u8>, Vec<u8>) {
    let mut r = FieldReader::new(data);
    let signed = r.u8().unwrap() != 0;
    let algorithm = String::from_utf8(r.string().unwrap().to_vec()).unwrap();
    let blob = r.string().unwrap().to_vec();
    (signed, algorithm, blob, r.rest().to_vec())
}

/// Returns a started authentication, with the service accepted and the service request removed.
fn started(config: AuthConfig) -> UserAuth {
    let mut auth = UserAuth::new(config);
    auth.start();
    let first = auth.poll_message().unwrap();
    assert_eq!(ServiceRequest::decode(&first).unwrap().name, SERVICE);
    auth.handle(&accept()).unwrap();
    auth
}

fn sent(auth: &mut UserAuth) -> (String, Vec<u8>) {
    let message = auth.poll_message().expect("a request is sent");
    assert!(auth.poll_message().is_none(), "one request at a time");
    method_of(&message)
}

fn secret(text: &str) -> Zeroizing<String> {
    Zeroizing::new(text.to_owned())
}

#[test]
fn service_and_first_request_leave_together() {
    let mut auth = UserAuth::new(config(vec![identity(1, false)]));
    auth.start();
    assert!(ServiceRequest::decode(&auth.poll_message().unwrap()).is_ok());
    assert_eq!(sent(&mut auth).0, "publickey");
}

#[test]
fn a_ready_key_signs_without_a_query() {
    let key = identity(1, true);
    let mut auth = started(config(vec![key.clone()]));
    assert!(auth.poll_message().is_none());
    let Some(ClientAuthEvent::Sign {
        identity: 0,
        algorithm,
        data,
    }) = auth.poll_event()
    else {
        panic!("a signature is asked for");
    };
    assert_eq!(algorithm, "ssh-ed25519");
    auth.sign(Some(b"signature"));
    let message = auth.poll_message().unwrap();
    // RFC 4252 section 7: the session identifier, then the request up to the signature.
    let mut covered = Vec::new();
    b"session".as_slice().write(&mut covered);
    covered.extend_from_slice(&message[..message.len() - 4 - 9]);
    assert_eq!(data, covered);
    let (method, fields) = method_of(&message);
    let (signed, _, offered, rest) = key_fields(&fields);
    assert_eq!(
        (method.as_str(), signed, offered),
        ("publickey", true, key.blob)
    );
    assert_eq!(rest, b"\0\0\0\x09signature");
    auth.handle(&Bytes::from_static(SUCCESS)).unwrap();
    assert_eq!(auth.poll_event(), Some(ClientAuthEvent::Success));
}

#[test]
fn the_hostbound_form_holds_the_host_key_and_is_what_gets_signed() {
    let mut settings = config(vec![identity(1, true)]);
    settings.hostbound = true;
    let mut auth = started(settings);
    let Some(ClientAuthEvent::Sign { data, .. }) = auth.poll_event() else {
        panic!("a signature is asked for");
    };
    // An EXT_INFO in between must not change the request that is being signed.
    auth.set_extensions(false, None);
    auth.sign(Some(b"signature"));
    let message = auth.poll_message().unwrap();
    assert_eq!(data[4 + 7..], message[..message.len() - 4 - 9]);
    let (method, fields) = method_of(&message);
    assert_eq!(method, "publickey-hostbound-v00@openssh.com");
    let (_, _, _, rest) = key_fields(&fields);
    assert_eq!(rest, b"\0\0\0\x08host key\0\0\0\x09signature");
}

#[test]
fn a_key_that_asks_its_owner_is_only_asked_after_pk_ok() {
    let keys = [identity(1, false), identity(2, false)];
    let mut auth = started(config(keys.to_vec()));
    let (signed, _, offered, rest) = key_fields(&sent(&mut auth).1);
    assert_eq!(
        (signed, offered, rest),
        (false, keys[0].blob.clone(), vec![])
    );
    auth.handle(&failure("publickey", false)).unwrap();
    assert_eq!(auth.poll_event(), None);
    assert_eq!(key_fields(&sent(&mut auth).1).2, keys[1].blob);
    auth.handle(&pk_ok(&keys[1], "ssh-ed25519")).unwrap();
    assert!(matches!(
        auth.poll_event(),
        Some(ClientAuthEvent::Sign { identity: 1, .. })
    ));
}

#[test]
fn without_a_key_none_is_sent_and_may_succeed() {
    let mut auth = started(config(vec![]));
    assert_eq!(sent(&mut auth), ("none".to_owned(), vec![]));
    auth.handle(&Bytes::from_static(SUCCESS)).unwrap();
    assert_eq!(auth.poll_event(), Some(ClientAuthEvent::Success));
}

#[test]
fn rsa_follows_server_sig_algs_and_never_uses_sha1() {
    let mut settings = config(vec![rsa(false)]);
    settings.signature_algorithms = Some(vec!["ssh-rsa".into(), "rsa-sha2-256".into()]);
    let mut auth = started(settings.clone());
    assert_eq!(key_fields(&sent(&mut auth).1).1, "rsa-sha2-256");
    // No algorithm matches: the key is not offered.
    settings.signature_algorithms = Some(vec!["ssh-rsa".into()]);
    assert_eq!(sent(&mut started(settings)).0, "none");
    // Without server-sig-algs the algorithms are tried one after the other.
    let mut auth = started(config(vec![rsa(false)]));
    assert_eq!(key_fields(&sent(&mut auth).1).1, "rsa-sha2-512");
    auth.handle(&failure("publickey", false)).unwrap();
    assert_eq!(key_fields(&sent(&mut auth).1).1, "rsa-sha2-256");
    auth.handle(&failure("publickey", false)).unwrap();
    assert!(matches!(
        auth.poll_event(),
        Some(ClientAuthEvent::Failed { .. })
    ));
}

#[test]
fn rsa_certificates_follow_the_plain_name_and_other_keys_no_list() {
    let mut certificate = rsa(false);
    certificate.algorithms = vec![
        "rsa-sha2-512-cert-v01@openssh.com".into(),
        "rsa-sha2-256-cert-v01@openssh.com".into(),
    ];
    let mut settings = config(vec![certificate, identity(1, false)]);
    settings.signature_algorithms = Some(vec!["rsa-sha2-256".into()]);
    let mut auth = started(settings);
    assert_eq!(
        key_fields(&sent(&mut auth).1).1,
        "rsa-sha2-256-cert-v01@openssh.com"
    );
    auth.handle(&failure("publickey", false)).unwrap();
    assert_eq!(key_fields(&sent(&mut auth).1).1, "ssh-ed25519");
}

#[test]
fn the_second_ext_info_decides_what_follows() {
    let mut auth = started(config(vec![identity(1, false), rsa(false)]));
    sent(&mut auth);
    auth.set_extensions(true, Some(vec!["rsa-sha2-256".into()]));
    auth.handle(&failure("publickey", false)).unwrap();
    let (method, fields) = sent(&mut auth);
    assert_eq!(method, "publickey-hostbound-v00@openssh.com");
    assert_eq!(key_fields(&fields).1, "rsa-sha2-256");
}

#[test]
fn a_key_that_cannot_sign_makes_room_for_exactly_the_next() {
    let keys = vec![identity(1, false), identity(2, true), identity(3, true)];
    let mut auth = started(config(keys.clone()));
    sent(&mut auth);
    auth.handle(&pk_ok(&keys[0], "ssh-ed25519")).unwrap();
    for expected in 0..3 {
        let Some(ClientAuthEvent::Sign { identity, .. }) = auth.poll_event() else {
            panic!("key {expected} is asked");
        };
        assert_eq!(identity, expected);
        auth.sign(None);
    }
    assert_eq!(sent(&mut auth).0, "keyboard-interactive");
}

/// The setting AuthenticationMethods publickey,publickey,keyboard-interactive.
#[test]
fn partial_success_goes_on_and_no_key_counts_twice() {
    let keys = vec![identity(1, true), identity(2, false)];
    let mut auth = started(config(keys.clone()));
    auth.poll_event();
    auth.sign(Some(b"1"));
    sent(&mut auth);
    auth.handle(&failure("publickey", true)).unwrap();
    assert_eq!(key_fields(&sent(&mut auth).1).2, keys[1].blob);
    auth.handle(&pk_ok(&keys[1], "ssh-ed25519")).unwrap();
    auth.poll_event();
    auth.sign(Some(b"2"));
    sent(&mut auth);
    auth.handle(&failure("keyboard-interactive", true)).unwrap();
    assert_eq!(sent(&mut auth).0, "keyboard-interactive");
    auth.handle(&info_request(1, &[("Code: ", true)])).unwrap();
    assert_eq!(
        auth.poll_event(),
        Some(ClientAuthEvent::Prompts {
            name: String::new(),
            instruction: String::new(),
            prompts: vec![InteractivePrompt {
                text: "Code: ".to_owned(),
                echo: true,
            }],
        })
    );
    auth.answers(Some(&[secret("42")]));
    let answer = auth.poll_message().unwrap();
    assert!(answer.is_secret());
    let answer = UserauthInfoResponse::decode(&answer).unwrap();
    assert_eq!((answer.count, answer.answers.0), (1, &b"\0\0\0\x0242"[..]));
    auth.handle(&Bytes::from_static(SUCCESS)).unwrap();
    assert_eq!(auth.poll_event(), Some(ClientAuthEvent::Success));
}

#[test]
fn a_server_that_never_has_enough_is_left() {
    let keys = (0..50).map(|i| identity(i, true)).collect();
    let mut auth = started(config(keys));
    let mut steps = 0;
    let end = loop {
        auth.poll_event();
        auth.sign(Some(b"s"));
        steps += 1;
        if let Err(e) = auth.handle(&failure("publickey", true)) {
            break e;
        }
        assert!(steps < 50);
    };
    assert_eq!(end, PeerMisbehaved::TooMany("authentication steps").into());
}

#[test]
fn partial_success_of_what_proves_nothing_is_refused() {
    let mut none = started(config(vec![]));
    assert!(none.handle(&failure("password", true)).is_err());
    let mut query = started(config(vec![identity(1, false)]));
    assert!(query.handle(&failure("password", true)).is_err());
}

#[test]
fn passwords_are_asked_for_a_bounded_number_of_times() {
    let mut auth = started(config(vec![]));
    sent(&mut auth);
    for attempt in 1..=3 {
        auth.handle(&failure("password", false)).unwrap();
        assert_eq!(
            auth.poll_event(),
            Some(ClientAuthEvent::Password { attempt })
        );
        auth.password(Some(&secret("guess")));
        let (method, fields) = sent(&mut auth);
        assert_eq!(
            (method.as_str(), &fields[..]),
            ("password", &b"\0\0\0\0\x05guess"[..])
        );
    }
    auth.handle(&failure("password,hostbased", false)).unwrap();
    assert_eq!(
        auth.poll_event(),
        Some(ClientAuthEvent::Failed {
            server: vec!["password".to_owned(), "hostbased".to_owned()],
            why: None,
        })
    );
    assert!(auth.handle(&failure("password", false)).is_err());
}

#[test]
fn who_has_no_password_is_not_asked_again() {
    let mut auth = started(config(vec![]));
    sent(&mut auth);
    auth.handle(&failure("password", false)).unwrap();
    auth.poll_event();
    auth.password(None);
    assert!(matches!(
        auth.poll_event(),
        Some(ClientAuthEvent::Failed { .. })
    ));
    assert!(auth.poll_message().is_none());
}

#[test]
fn an_expired_password_ends_with_a_sentence() {
    let mut auth = started(config(vec![]));
    sent(&mut auth);
    auth.handle(&failure("password", false)).unwrap();
    auth.poll_event();
    auth.password(Some(&secret("old")));
    let change = UserauthPasswdChangereq {
        prompt: b"new?",
        language: b"",
    };
    auth.handle(&Bytes::from(change.to_bytes())).unwrap();
    let Some(ClientAuthEvent::Failed { why: Some(why), .. }) = auth.poll_event() else {
        panic!("authentication ends");
    };
    assert!(why.contains("expired"));
}

fn interactive() -> UserAuth {
    let mut auth = started(config(vec![]));
    sent(&mut auth);
    auth.handle(&failure("keyboard-interactive,password", false))
        .unwrap();
    assert_eq!(sent(&mut auth).0, "keyboard-interactive");
    auth
}

#[test]
fn no_prompts_are_answered_at_once() {
    let mut auth = interactive();
    auth.handle(&info_request(0, &[])).unwrap();
    assert_eq!(auth.poll_event(), None);
    assert_eq!(&auth.poll_message().unwrap()[..], [61, 0, 0, 0, 0]);
}

#[test]
fn a_huge_prompt_count_is_refused_before_it_allocates() {
    for count in [33, u32::MAX] {
        assert_eq!(
            interactive().handle(&info_request(count, &[("x", false)])),
            Err(PeerMisbehaved::TooMany("prompts").into())
        );
    }
    // A small count that is wrong.
    assert!(
        interactive()
            .handle(&info_request(2, &[("x", false)]))
            .is_err()
    );
    assert!(
        interactive()
            .handle(&info_request(0, &[("x", false)]))
            .is_err()
    );
}

#[test]
fn prompts_without_end_are_refused() {
    let mut auth = interactive();
    let end = (0..1000).find_map(|_| {
        auth.poll_message();
        auth.handle(&info_request(0, &[])).err()
    });
    assert_eq!(end, Some(PeerMisbehaved::TooMany("prompts").into()));
}

#[test]
fn prompts_from_the_server_do_not_reach_the_terminal_raw() {
    let mut auth = interactive();
    auth.handle(&info_request(1, &[("bob's \x1b[2Jpassword: ", false)]))
        .unwrap();
    let Some(ClientAuthEvent::Prompts { prompts, .. }) = auth.poll_event() else {
        panic!("prompts are shown");
    };
    assert_eq!(prompts[0].text, "bob's \\x1b[2Jpassword: ");
}

#[test]
fn a_method_refused_without_a_prompt_is_not_tried_again() {
    let mut auth = interactive();
    auth.handle(&failure("keyboard-interactive,password", false))
        .unwrap();
    assert_eq!(
        auth.poll_event(),
        Some(ClientAuthEvent::Password { attempt: 1 })
    );
}

#[test]
fn answers_that_do_not_fit_the_prompts_give_the_method_up() {
    let mut auth = interactive();
    auth.handle(&info_request(2, &[("a", false), ("b", false)]))
        .unwrap();
    auth.poll_event();
    auth.answers(Some(&[secret("only one")]));
    assert!(auth.poll_message().is_none());
    assert_eq!(
        auth.poll_event(),
        Some(ClientAuthEvent::Password { attempt: 1 })
    );
}

#[test]
fn banners_are_escaped_and_bounded() {
    let mut auth = started(config(vec![identity(1, true)]));
    auth.poll_event();
    let banner = UserauthBanner {
        text: b"hi\n\x1b]0;x\x07\n",
        language: b"",
    };
    for _ in 0..100 {
        auth.handle(&Bytes::from(banner.to_bytes())).unwrap();
    }
    let mut shown = 0;
    while let Some(event) = auth.poll_event() {
        assert_eq!(
            event,
            ClientAuthEvent::Banner("hi\n\\x1b]0;x\\x07\n".to_owned())
        );
        shown += 1;
    }
    assert_eq!(shown, MAX_BANNERS);
}

/// Each state refuses each message that is illegal there (CVE-2018-10933 and its relatives: a
/// client must not accept an unsolicited success).
#[test]
fn each_state_refuses_what_it_did_not_ask_for() {
    type Make = fn() -> UserAuth;
    let key = identity(1, false);
    let states: [(&str, Make, &[&str]); 9] = [
        ("none", || started(config(vec![])), &["success", "failure"]),
        (
            "query",
            || started(config(vec![identity(1, false)])),
            &["failure", "pk_ok"],
        ),
        (
            "signature",
            || started(config(vec![identity(1, true)])),
            &[],
        ),
        (
            "signed",
            || {
                let mut auth = started(config(vec![identity(1, true)]));
                auth.sign(Some(b"s"));
                auth
            },
            &["success", "failure"],
        ),
        (
            "password asked",
            || {
                let mut auth = started(config(vec![]));
                auth.handle(&failure("password", false)).unwrap();
                auth
            },
            &[],
        ),
        (
            "password sent",
            || {
                let mut auth = started(config(vec![]));
                auth.handle(&failure("password", false)).unwrap();
                auth.password(Some(&secret("x")));
                auth
            },
            // PASSWD_CHANGEREQ has the number and the fields of PK_OK.
            &["success", "failure", "pk_ok"],
        ),
        ("interactive", interactive, &["success", "failure", "info"]),
        (
            "prompts asked",
            || {
                let mut auth = interactive();
                auth.handle(&info_request(1, &[("x", false)])).unwrap();
                auth
            },
            &[],
        ),
        (
            "over",
            || {
                let mut auth = started(config(vec![]));
                auth.handle(&Bytes::from_static(SUCCESS)).unwrap();
                auth
            },
            &[],
        ),
    ];
    let messages: [(&str, Bytes); 7] = [
        ("success", Bytes::from_static(SUCCESS)),
        ("failure", failure("publickey,password", false)),
        ("pk_ok", pk_ok(&key, "ssh-ed25519")),
        ("info", info_request(1, &[("x", false)])),
        ("accept", accept()),
        ("request", Bytes::from(request::none(&config(vec![])))),
        ("empty", Bytes::new()),
    ];
    for (state, make, legal) in states {
        for (name, message) in &messages {
            let result = make().handle(message);
            assert_eq!(
                result.is_ok(),
                legal.contains(name),
                "{name} in {state}: {result:?}"
            );
        }
    }
}

#[test]
fn nothing_counts_before_the_service_is_accepted() {
    for message in [
        Bytes::from_static(SUCCESS),
        failure("password", false),
        Bytes::from(
            UserauthBanner {
                text: b"",
                language: b"",
            }
            .to_bytes(),
        ),
    ] {
        let mut auth = UserAuth::new(config(vec![]));
        auth.start();
        assert!(auth.handle(&message).is_err());
    }
    let mut auth = UserAuth::new(config(vec![]));
    assert!(auth.handle(&Bytes::from_static(SUCCESS)).is_err());
    let other = ServiceAccept {
        name: b"ssh-connection",
    };
    assert!(auth.handle(&Bytes::from(other.to_bytes())).is_err());
}

#[test]
fn pk_ok_for_another_key_is_refused() {
    let key = identity(1, false);
    let query = || started(config(vec![key.clone()]));
    let wrong = Err(PeerMisbehaved::WrongKeyOk.into());
    assert_eq!(
        query().handle(&pk_ok(&identity(2, false), "ssh-ed25519")),
        wrong
    );
    assert_eq!(query().handle(&pk_ok(&key, "ssh-rsa")), wrong);
    let mut auth = started(config(vec![rsa(false)]));
    // Some servers name the key type instead of the algorithm.
    assert_eq!(auth.handle(&pk_ok(&rsa(false), "ssh-rsa")), Ok(()));
    assert!(
        matches!(auth.poll_event(), Some(ClientAuthEvent::Sign { algorithm, .. })
        if algorithm == "rsa-sha2-512")
    );
}

#[test]
fn trailing_bytes_are_refused() {
    let mut auth = started(config(vec![]));
    assert!(auth.handle(&Bytes::from_static(&[52, 0])).is_err());
}

#[test]
fn answers_nobody_asked_for_send_nothing() {
    let mut auth = started(config(vec![]));
    sent(&mut auth);
    auth.sign(Some(b"s"));
    auth.password(Some(&secret("x")));
    auth.answers(Some(&[]));
    assert!(auth.poll_message().is_none());
}
