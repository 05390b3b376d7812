//! zlib@openssh.com, which starts after USERAUTH_SUCCESS: nothing that the client sends may cross
//! that message.

use std::sync::Arc;
use std::time::Duration;

use ssh::transport::{AlgorithmProposal, KexGuess};
use testkit::sim::{Path, Seeded};
use testkit::sshd_model::{SshdModelSettings, Step, Way};

use crate::client::Setup;
use crate::world::{World, bytes, keys, known, setup, sshd};

fn compressing() -> AlgorithmProposal {
    AlgorithmProposal {
        kex: vec!["curve25519-sha256".to_owned()],
        compress: true,
        ..sshd().proposal
    }
}

/// Returns text that zlib compresses, or bytes that it does not, by the seed.
fn content(len: usize, seed: u64) -> Vec<u8> {
    match seed % 2 {
        0 => b"a line of text\n"
            .iter()
            .copied()
            .cycle()
            .take(len)
            .collect(),
        _ => bytes(len, seed),
    }
}

/// Uploads a file and downloads it again.
fn copies(mut world: World, len: usize, seed: u64) {
    let data = content(len, seed);
    world.place("there", &data);
    world.client.put(data.clone(), "here");
    world.client.get("there");
    world
        .run()
        .unwrap_or_else(|end| panic!("{len} bytes, seed {seed}: {end:?}"));
    assert!(world.server.sftp.fs.data("here") == Some(data.as_slice()));
    let got = world
        .client
        .disk
        .files
        .get(std::path::Path::new("/dst/there"));
    assert!(got.is_some_and(|(got, _)| *got == data));
    assert_eq!(world.restarts, 0, "{len} bytes, seed {seed}");
}

/// Bytes that fill TCP's congestion window during the login do not break zlib. From a round trip of
/// 20 ms on, uploads with zlib ended with "invalid format" at the server: the link sends IGNOREs
/// while the login is being answered.
#[test]
fn bytes_that_fill_the_window_during_the_login_do_not_break_zlib() {
    let mut seed = 0;
    for delay in [0, 1, 10, 15, 20, 60, 300] {
        for len in [0, 1, 1000, 32 << 10, 300_000, 3 << 20] {
            for filler in [1, 1000, 16 << 10, 100 << 10] {
                seed += 1;
                let fragment = Seeded::new(seed).below(8) == 0 && len < 1 << 20;
                let begins = [setup(), known()][seed as usize % 2].clone();
                let client = Setup {
                    proposal: compressing(),
                    filler,
                    opening: seed % 3 == 0,
                    guess: [KexGuess::Never, KexGuess::ByVersion][seed as usize / 2 % 2],
                    ..begins
                };
                let server = SshdModelSettings {
                    proposal: compressing(),
                    ..sshd()
                };
                let path = Path {
                    rate: 20_000_000,
                    fragment,
                    ..Path::rtt(Duration::from_millis(delay))
                };
                copies(World::on(client, server, path, seed), len, seed);
            }
        }
    }
}

/// With a refused login, and one of several steps, zlib starts after the last step.
#[test]
fn zlib_starts_behind_the_last_step_of_a_login() {
    let [_, old, new] = keys();
    let way = |key: &Arc<ssh::key::PrivateKey>| Way::Key(key.public_blob().to_vec());
    let password = || Way::Password("secret".to_owned());
    for ways in [vec![way(new)], vec![way(old), password()], vec![password()]] {
        let client = Setup {
            keys: vec![Arc::clone(old), Arc::clone(new)],
            password: Some("secret".to_owned()),
            proposal: compressing(),
            filler: 4000,
            ..setup()
        };
        let server = SshdModelSettings {
            proposal: compressing(),
            ways,
            ..sshd()
        };
        copies(World::new(client, server), 200_000, 2);
    }
}

/// The client's answer to an unknown message may also cross USERAUTH_SUCCESS.
#[test]
fn a_message_that_nobody_knows_during_the_login_does_not_break_zlib() {
    const UNKNOWN: u8 = 200;
    for step in [Step::Keys, Step::ServiceAccept, Step::Answer, Step::Success] {
        let client = Setup {
            proposal: compressing(),
            ..setup()
        };
        let server = SshdModelSettings {
            proposal: compressing(),
            ..sshd()
        };
        let server = server.slip(step, vec![vec![UNKNOWN, 1, 2, 3]]);
        let mut world = World::new(client, server);
        let data = content(10_000, 2);
        world.client.put(data.clone(), "here");
        // The model rejects UNIMPLEMENTED after the login, and ignores it before.
        match world.run() {
            Ok(()) => assert!(world.server.sftp.fs.data("here") == Some(data.as_slice())),
            Err(end) => assert!(
                step == Step::Success,
                "{step:?}: {end:?} {:?}",
                world.server.error()
            ),
        }
    }
}

/// A key exchange that is due during the login waits until zlib has started.
#[test]
fn new_keys_that_are_due_during_the_login_do_not_break_zlib() {
    for (client_limit, server_limit) in [
        (Some(2000), None),
        (Some(2000), Some(2000)),
        (None, Some(2000)),
    ] {
        let client = Setup {
            proposal: compressing(),
            rekey_bytes: client_limit,
            filler: 1000,
            ..setup()
        };
        let server = SshdModelSettings {
            proposal: compressing(),
            rekey_bytes: server_limit,
            ..sshd()
        };
        copies(World::new(client, server), 50_000, 2);
    }
}
