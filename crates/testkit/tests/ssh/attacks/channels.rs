//! Attacks with overflowing windows and unsolicited channels.

use ssh::msg::{ChannelData, ChannelOpen, ChannelWindowAdjust};
use ssh::{Error, PeerMisbehaved};
use testkit::sshd_model::Step;
use wire::RemainingBytes;

use crate::world::{World, bytes, setup, sshd};

fn slipped(step: Step, payloads: Vec<Vec<u8>>) -> World {
    let mut world = World::new(setup(), sshd().slip(step, payloads));
    world.client.put(bytes(300_000, 1), "file");
    world
}

#[test]
fn a_window_that_overflows_is_refused() {
    let adjust = |bytes| {
        ChannelWindowAdjust {
            recipient: 0,
            bytes,
        }
        .to_bytes()
    };
    for payloads in [
        vec![adjust(u32::MAX)],
        vec![adjust(u32::MAX / 2), adjust(u32::MAX / 2), adjust(2)],
        vec![adjust(1 << 31); 4],
    ] {
        let error = slipped(Step::Subsystem, payloads).refused();
        assert!(
            matches!(error, Error::PeerMisbehaved(PeerMisbehaved::WindowOverflow)),
            "{error:?}"
        );
    }
    let other = ChannelWindowAdjust {
        recipient: 77,
        bytes: 1,
    };
    let error = slipped(Step::Subsystem, vec![other.to_bytes()]).refused();
    assert!(
        matches!(
            error,
            Error::PeerMisbehaved(PeerMisbehaved::UnknownChannel(77))
        ),
        "{error:?}"
    );
}

#[test]
fn more_data_than_the_window_is_refused() {
    let data = vec![0; 32 * 1024];
    let data = ChannelData {
        recipient: 1,
        data: &data,
    };
    // The channel does not exist.
    assert!(matches!(
        slipped(Step::Subsystem, vec![data.to_bytes()]).refused(),
        Error::PeerMisbehaved(PeerMisbehaved::UnknownChannel(1))
    ));
    // The data is longer than the maximum packet.
    let long = vec![0; 100_000];
    let long = ChannelData {
        recipient: 0,
        data: &long,
    };
    assert!(matches!(
        slipped(Step::Subsystem, vec![long.to_bytes()]).refused(),
        Error::PeerMisbehaved(PeerMisbehaved::DataTooLong(_))
    ));
}

/// An SFTP message that announces 4 GiB allocates nothing.
#[test]
fn an_sftp_message_of_4_gib_ends_the_channel() {
    let data = ChannelData {
        recipient: 0,
        data: &[0xff; 16],
    };
    let mut world = slipped(Step::Subsystem, vec![data.to_bytes()]);
    let end = world.run();
    assert!(matches!(end, Err(crate::client::End::Lane(_))), "{end:?}");
}

/// The attack of CVE-2023-38408 needs the client's agent: the server opens agent, X11 and forwarded
/// channels that were never requested.
#[test]
fn agent_x11_and_forwarded_channels_unasked_are_refused_and_the_copy_goes_on() {
    let open = |kind: &[u8], data: &[u8]| {
        ChannelOpen {
            kind,
            sender: 9,
            window: 1 << 20,
            max_packet: 32768,
            data: RemainingBytes(data),
        }
        .to_bytes()
    };
    let payloads = vec![
        open(b"auth-agent@openssh.com", b""),
        open(b"x11", b"\0\0\0\x01a\0\0\0\x01"),
        open(
            b"forwarded-tcpip",
            b"\0\0\0\x01a\0\0\0\x01\0\0\0\x01a\0\0\0\x01",
        ),
        open(b"forwarded-streamlocal@openssh.com", b""),
        open(b"session", b""),
        open(b"direct-tcpip", b""),
        open(b"tun@openssh.com", b""),
    ];
    let count = payloads.len();
    let mut world = slipped(Step::Subsystem, payloads);
    world.run().expect("it ends well");
    let refusals = world.server.log().iter().filter(|n| **n == 92).count();
    assert_eq!(refusals, count);
}
