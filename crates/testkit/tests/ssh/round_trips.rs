//! Round trips of a file of 1 KiB, from connect() to its confirmed final name.

use ssh::transport::{AlgorithmProposal, KexGuess};
use testkit::sshd_model::{SshdModelSettings, Way};

use crate::client::Setup;
use crate::world::{RTT, World, bytes, keys, known, setup, sshd};

/// Returns the number of round trips until the file is confirmed.
fn measure(what: &str, setup: Setup, ways: Vec<Way>) -> f64 {
    measure_with(what, setup, SshdModelSettings { ways, ..sshd() })
}

fn measure_with(what: &str, setup: Setup, config: SshdModelSettings) -> f64 {
    let mut world = World::new(setup, config);
    let data = bytes(1024, 5);
    let job = world.client.put(data.clone(), "file");
    world.run().expect("it ends well");
    assert_eq!(world.server.sftp.fs.data("file"), Some(data.as_slice()));
    assert_eq!(world.restarts, 0);
    let at = world.client.done_at(job).expect("it is done") - world.start;
    let rtts = at.as_secs_f64() / RTT.as_secs_f64();
    println!("{what}: {rtts:.2} RTT");
    rtts
}

fn key() -> Vec<Way> {
    sshd().ways
}

#[test]
fn first_contact() {
    assert!(measure("first contact, key", setup(), key()) <= 11.5);
}

/// sshd's KEXINIT arrives a round trip after its identification, from which the client can predict
/// the key exchange.
#[test]
fn first_contact_with_the_key_exchange_that_its_version_prefers() {
    let setup = Setup {
        guess: KexGuess::ByVersion,
        ..setup()
    };
    let step_by_step = measure("first contact, key", self::setup(), key());
    let guessed = measure("first contact, guessed by version", setup, key());
    assert!(guessed <= step_by_step - 0.9, "{guessed} {step_by_step}");
}

/// The subsystem request makes sshd disable Nagle's algorithm, so that USERAUTH_SUCCESS is not held
/// back either.
#[test]
fn first_contact_with_the_channel_opened_with_authentication() {
    let setup = Setup {
        guess: KexGuess::ByVersion,
        opening: true,
        ..setup()
    };
    assert!(measure("first contact, channel at once", setup, key()) <= 6.0);
}

/// An sshd with changed preferences costs no more round trips than without the prediction.
#[test]
fn first_contact_where_the_version_says_nothing_of_what_is_preferred() {
    let config = SshdModelSettings {
        software: "OpenSSH_8.9p1".to_owned(),
        ..sshd()
    };
    let wrong = Setup {
        guess: KexGuess::ByVersion,
        ..setup()
    };
    let plain = measure_with("first contact, key", setup(), config.clone());
    let wrong = measure_with("first contact, guessed wrong", wrong, config);
    assert!(wrong <= plain + 0.05, "{wrong} {plain}");
}

#[test]
fn first_contact_with_a_key_that_must_be_queried() {
    let setup = Setup {
        direct: false,
        ..setup()
    };
    assert!(measure("first contact, key with a query", setup, key()) <= 12.5);
}

#[test]
fn first_contact_with_a_password() {
    let setup = Setup {
        keys: Vec::new(),
        password: Some("secret".to_owned()),
        ..setup()
    };
    let ways = vec![Way::Password("secret".to_owned())];
    assert!(measure("first contact, password", setup, ways) <= 12.5);
}

#[test]
fn where_host_and_key_worked_before() {
    assert!(measure("host and key known", known(), key()) <= 6.8);
}

#[test]
fn with_a_right_guess() {
    let setup = Setup {
        guess: KexGuess::Remembered,
        ..known()
    };
    assert!(measure("host and key known, right guess", setup, key()) <= 5.8);
}

#[test]
fn a_wrong_guess_costs_no_more_than_none() {
    let proposal = AlgorithmProposal {
        kex: vec!["ecdh-sha2-nistp256".into(), "curve25519-sha256".into()],
        ..setup().proposal
    };
    let setup = Setup {
        guess: KexGuess::Remembered,
        proposal,
        ..known()
    };
    assert!(measure("host and key known, wrong guess", setup, key()) <= 6.8);
}

#[test]
fn a_key_and_then_a_password_and_then_prompts() {
    let setup = Setup {
        password: Some("secret".to_owned()),
        answers: Some(vec!["one".to_owned(), "two".to_owned()]),
        ..setup()
    };
    let prompt = |text: &str, answer: &str| (text.to_owned(), answer.to_owned());
    let ways = vec![
        Way::Key(keys()[1].public_blob().to_vec()),
        Way::Password("secret".to_owned()),
        Way::Prompts(vec![prompt("First: ", "one"), prompt("Second: ", "two")]),
    ];
    assert!(measure("key, password and prompts", setup, ways) <= 16.0);
}
