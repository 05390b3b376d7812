//! Wrong predictions, and connections that break.

use std::sync::Arc;

use ssh::transport::{AlgorithmProposal, KexGuess};
use testkit::sim::Path;
use testkit::sshd_model::{SshdModelSettings, Way};

use crate::client::{End, Setup};
use crate::world::{World, bytes, keys, known, path, setup, sshd};

/// Uploads a file and checks that it arrived complete.
fn put(world: &mut World) {
    let data = bytes(100_000, 3);
    world.client.put(data.clone(), "file");
    world.run().expect("it ends well");
    assert_eq!(world.server.sftp.fs.data("file"), Some(data.as_slice()));
}

#[test]
fn a_wrong_guess_goes_on() {
    for kex in ["ecdh-sha2-nistp384", "curve25519-sha256"] {
        let proposal = AlgorithmProposal {
            kex: vec![kex.to_owned()],
            ..setup().proposal
        };
        let setup = Setup {
            guess: KexGuess::Remembered,
            proposal,
            ..known()
        };
        let mut world = World::new(setup, sshd());
        put(&mut world);
        assert_eq!(world.restarts, 0);
    }
}

/// A session that was opened with a refused key does not exist; the login continues on the same
/// connection.
#[test]
fn a_channel_opened_with_an_authentication_that_is_refused_is_opened_again() {
    let [_, old, new] = keys();
    let ways = |ways| SshdModelSettings { ways, ..sshd() };
    let new_key = || Way::Key(new.public_blob().to_vec());
    let old_key = || Way::Key(old.public_blob().to_vec());
    let password = || Way::Password("secret".to_owned());
    for ways in [
        ways(vec![new_key()]),
        ways(vec![old_key(), password()]),
        ways(vec![password()]),
    ] {
        let setup = Setup {
            keys: vec![Arc::clone(old), Arc::clone(new)],
            password: Some("secret".to_owned()),
            opening: true,
            ..setup()
        };
        let mut world = World::new(setup, ways);
        put(&mut world);
        assert_eq!(world.restarts, 0);
        // CHANNEL_OPEN, the subsystem request and INIT are each sent twice: in vain, and again.
        let early = |of: u8| world.server.log().iter().filter(|n| **n == of).count();
        assert_eq!((early(90), early(98)), (2, 2));
    }
}

/// User data waits for USERAUTH_SUCCESS.
#[test]
fn nothing_of_the_users_leaves_with_an_authentication_that_may_fail() {
    let config = SshdModelSettings {
        ways: vec![Way::Key(keys()[2].public_blob().to_vec())],
        ..sshd()
    };
    let setup = Setup {
        opening: true,
        ..setup()
    };
    let mut world = World::new(setup, config);
    world.client.stat("a name");
    world.client.put(bytes(100_000, 3), "file");
    assert!(matches!(world.run(), Err(End::Denied(_))));
    let log = world.server.log();
    assert_eq!(
        log.iter()
            .filter(|n| **n >= 80)
            .copied()
            .collect::<Vec<_>>(),
        [90, 98, 94]
    );
    assert_eq!(world.server.early_data(), sftp::INIT);
}

#[test]
fn a_refused_early_authentication_begins_anew_with_the_next_key() {
    let [_, old, new] = keys();
    let config = SshdModelSettings {
        ways: vec![Way::Key(new.public_blob().to_vec())],
        ..sshd()
    };
    let setup = Setup {
        keys: vec![Arc::clone(old), Arc::clone(new)],
        ..known()
    };
    let mut world = World::new(setup, config);
    put(&mut world);
    assert_eq!(world.restarts, 1);
}

#[test]
fn a_refused_early_authentication_without_another_key_is_denied() {
    let config = SshdModelSettings {
        ways: vec![Way::Key(keys()[2].public_blob().to_vec())],
        ..sshd()
    };
    let mut world = World::new(known(), config);
    world.client.put(bytes(1000, 3), "file");
    let end = world.run();
    assert!(matches!(end, Err(End::Denied(_))), "{end:?}");
    assert_eq!(world.restarts, 1);
}

#[test]
fn a_channel_of_another_number_begins_anew() {
    for setup in [known(), setup()] {
        let config = SshdModelSettings {
            channel_offset: 7,
            ..sshd()
        };
        let mut world = World::new(setup, config);
        put(&mut world);
        assert_eq!(world.restarts, 1);
    }
}

#[test]
fn any_fragmentation_will_do() {
    for (seed, mss) in [(1, 1), (2, 7), (3, 1448), (4, 1448), (5, 1448)] {
        let path = Path {
            mss,
            fragment: true,
            ..path()
        };
        for setup in [known(), setup()] {
            let mut world = World::on(setup, sshd(), path, seed);
            world.client.put(bytes(5000, seed), "file");
            world.run().expect("it ends well");
            let data = world.server.sftp.fs.data("file");
            assert_eq!(data, Some(bytes(5000, seed).as_slice()));
        }
    }
}

/// Returns the bytes that pass each way in a run without failures.
fn whole_run(setup: &Setup) -> (u64, u64) {
    let mut world = World::new(setup.clone(), sshd());
    world.client.put(bytes(3000, 1), "file");
    world.run().expect("it ends well");
    world.delivered
}

#[test]
fn a_break_at_any_byte_ends_with_an_error_and_never_with_half_a_file() {
    let mut ended = 0;
    for setup in [setup(), known()] {
        let (up, down) = whole_run(&setup);
        let step = 151;
        let ups = (0..up).step_by(step).map(|at| (Some(at), None));
        let downs = (0..down).step_by(step).map(|at| (None, Some(at)));
        for cut in ups.chain(downs) {
            let mut world = World::new(setup.clone(), sshd());
            world.cut = cut;
            let data = bytes(3000, 1);
            let job = world.client.put(data.clone(), "file");
            // A hang makes the world panic.
            match world.run() {
                // Early data to a known host is sent again, step by step.
                Ok(()) => assert!(world.client.done_at(job).is_some(), "{cut:?}"),
                Err(end) => {
                    assert!(matches!(end, End::Closed), "{cut:?}: {end:?}");
                    ended += 1;
                }
            }
            let found = world.server.sftp.fs.data("file");
            assert!(found.is_none_or(|found| found == data), "{cut:?}");
        }
    }
    assert!(ended > 20, "{ended}");
}
