//! CVE-2018-10933 seen from the client, and unlimited prompts.

use ssh::msg::{ServiceAccept, UserauthInfoRequest, UserauthPkOk, UserauthSuccess};
use ssh::{Error, PeerMisbehaved};
use testkit::sshd_model::{SshdModelSettings, Step, Way};
use wire::RemainingBytes;

use crate::client::Setup;
use crate::world::{World, bytes, keys, known, setup, sshd};

fn slipped(setup: Setup, config: SshdModelSettings) -> Error {
    let mut world = World::new(setup, config);
    world.client.put(bytes(10, 1), "file");
    world.refused()
}

fn success() -> Vec<u8> {
    UserauthSuccess {}.to_bytes()
}

#[test]
fn cve_2018_10933_success_before_the_service_is_refused() {
    let error = slipped(setup(), sshd().slip(Step::Keys, vec![success()]));
    assert!(
        matches!(error, Error::PeerMisbehaved(PeerMisbehaved::Unexpected(52))),
        "{error:?}"
    );
}

#[test]
fn cve_2018_10933_success_while_a_signature_is_awaited_is_refused() {
    let setup = Setup {
        direct: false,
        ..setup()
    };
    let error = slipped(setup, sshd().slip(Step::PkOk, vec![success()]));
    assert!(
        matches!(error, Error::PeerMisbehaved(PeerMisbehaved::Unexpected(52))),
        "{error:?}"
    );
}

#[test]
fn cve_2018_10933_authentication_does_not_go_on_after_success() {
    let accept = ServiceAccept {
        name: b"ssh-userauth",
    };
    for payload in [success(), accept.to_bytes(), vec![51, 0, 0, 0, 0, 0]] {
        let error = slipped(setup(), sshd().slip(Step::Success, vec![payload]));
        assert!(matches!(error, Error::PeerMisbehaved(_)), "{error:?}");
    }
}

#[test]
fn messages_of_channels_before_success_are_refused() {
    let confirmation = [91, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 0];
    let global = [80, 0, 0, 0, 1, b'x', 1];
    for payload in [
        &confirmation[..],
        &global[..],
        &[94, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let config = sshd().slip(Step::Answer, vec![payload.to_vec()]);
        let error = slipped(setup(), config.clone());
        assert!(
            matches!(
                error,
                Error::PeerMisbehaved(PeerMisbehaved::OutOfPhase { .. })
            ),
            "{error:?}"
        );
        // Answers sent too early are not accepted either: the client connects again, and refuses
        // them again.
        let mut world = World::new(known(), config);
        world.client.put(bytes(10, 1), "file");
        world.refused();
        assert_eq!(world.restarts, 1);
    }
}

#[test]
fn a_key_that_was_not_offered_is_not_signed_with() {
    let other = keys()[2].public_blob();
    let ok = UserauthPkOk {
        algorithm: b"ssh-ed25519",
        blob: other,
    };
    let setup = Setup {
        direct: false,
        ..setup()
    };
    let error = slipped(setup, sshd().slip(Step::Answer, vec![ok.to_bytes()]));
    assert!(
        matches!(error, Error::PeerMisbehaved(PeerMisbehaved::WrongKeyOk)),
        "{error:?}"
    );
}

/// Counts from the peer are not trusted, as in CVE-2015-5600 and the client's CVE-2016-0777.
#[test]
fn keyboard_interactive_with_a_huge_prompt_count_is_refused() {
    let config = SshdModelSettings {
        ways: vec![Way::Prompts(vec![("Code: ".to_owned(), "1".to_owned())])],
        ..sshd()
    };
    for count in [33, 65_536, u32::MAX] {
        let ask = UserauthInfoRequest {
            name: b"",
            instruction: b"",
            language: b"",
            count,
            prompts: RemainingBytes(&[]),
        };
        // Sent in place of the answer to the method's request, which follows the request for
        // `none`.
        let setup = Setup {
            keys: Vec::new(),
            answers: Some(vec!["1".to_owned()]),
            ..setup()
        };
        let mut world = World::new(setup, config.clone());
        world.client.put(bytes(10, 1), "file");
        world.on_log = Some((3, ask.to_bytes()));
        let error = world.refused();
        assert!(
            matches!(error, Error::PeerMisbehaved(PeerMisbehaved::TooMany(_))),
            "{count}: {error:?}"
        );
    }
}
