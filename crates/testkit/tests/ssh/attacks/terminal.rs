//! CVE-2019-6109 and CVE-2019-6110: text from a server cannot control the terminal.

use ssh::msg::{ChannelOpenFailure, Debug, Disconnect, UserauthBanner};
use testkit::sshd_model::{Edit, SshdModelSettings, Step, Way, plain_packet};
use wire::Field;

use crate::client::{End, Setup};
use crate::world::{World, bytes, setup, sshd};

/// Bytes that clear the screen, set the title, color and hide text, reverse the line and ring the
/// bell.
const STEER: &[u8] = b"\x1b[2J\x1b]0;title\x07\xc2\x9b31m \xe2\x80\xae \x08\x7f\r hello";

fn check(texts: &[String]) {
    assert!(!texts.is_empty());
    assert!(texts.iter().any(|t| t.contains("hello")), "{texts:?}");
    for text in texts {
        assert!(
            !text
                .chars()
                .any(|c| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}'),
            "{text:?}"
        );
    }
}

#[test]
fn cve_2019_6109_banner_debug_and_refusal_are_escaped() {
    let banner = UserauthBanner {
        text: STEER,
        language: b"",
    };
    let debug = Debug {
        always_display: true,
        text: STEER,
        language: b"",
    };
    for (step, payload) in [
        (Step::Answer, banner.to_bytes()),
        (Step::Subsystem, debug.to_bytes()),
    ] {
        let mut world = World::new(setup(), sshd().slip(step, vec![payload]));
        world.client.put(bytes(10, 1), "file");
        world.run().expect("it ends well");
        check(&world.client.shown);
    }
    let refusal = ChannelOpenFailure {
        recipient: 0,
        reason: 1,
        description: STEER,
        language: b"",
    };
    let config = sshd().slip(Step::Success, vec![refusal.to_bytes()]);
    let mut world = World::new(setup(), config);
    world.client.put(bytes(10, 1), "file");
    assert!(world.run().is_err());
}

#[test]
fn cve_2019_6109_disconnect_and_exit_signal_are_escaped() {
    let disconnect = Disconnect {
        reason: 2,
        description: STEER,
        language: b"",
    };
    let disconnect = disconnect.to_bytes();
    let before = sshd().edit(2, Edit::Before(plain_packet(&disconnect)));
    let later = sshd().slip(Step::Subsystem, vec![disconnect]);
    for config in [before, later] {
        let mut world = World::new(setup(), config);
        world.client.put(bytes(10, 1), "file");
        check(&[world.refused().to_string()]);
    }
    let mut signal = vec![98, 0, 0, 0, 0];
    b"exit-signal".as_slice().write(&mut signal);
    false.write(&mut signal);
    STEER.write(&mut signal);
    signal.extend([0; 9]);
    let mut world = World::new(setup(), sshd().slip(Step::Subsystem, vec![signal]));
    world.client.put(bytes(10, 1), "file");
    world.run().expect("it ends well");
    check(&world.client.shown);
}

#[test]
fn cve_2019_6109_prompts_are_escaped() {
    let prompts = vec![(String::from_utf8_lossy(STEER).into_owned(), "1".to_owned())];
    let config = SshdModelSettings {
        ways: vec![Way::Prompts(prompts)],
        ..sshd()
    };
    let setup = Setup {
        keys: Vec::new(),
        answers: Some(vec!["1".to_owned()]),
        ..setup()
    };
    let mut world = World::new(setup, config);
    world.client.put(bytes(10, 1), "file");
    world.run().expect("it ends well");
    check(&world.client.shown);
}

#[test]
fn cve_2019_6109_errors_that_quote_the_peer_are_escaped() {
    let ident = SshdModelSettings {
        software: String::from_utf8_lossy(STEER).into_owned(),
        ..sshd()
    };
    let mut world = World::new(setup(), ident);
    world.client.put(bytes(10, 1), "file");
    match world.run() {
        // An identification string that is not printable ASCII is rejected.
        Err(End::Ssh(e)) => assert!(!e.to_string().contains('\x1b'), "{e}"),
        other => panic!("{other:?}"),
    }
}
