//! Packets of impossible sizes, and decompression bombs.

use ssh::msg::ExtInfo;
use ssh::transport::AlgorithmProposal;
use ssh::{Error, PeerMisbehaved};
use testkit::sshd_model::{Edit, SshdModelSettings, Step, plain_packet};
use wire::RemainingBytes;

use crate::client::Setup;
use crate::world::{World, bytes, setup, sshd};

#[test]
fn sizes_and_paddings_that_may_not_be_are_refused() {
    let sized = |length: u32, padding: u8, fill: usize| {
        let mut packet = length.to_be_bytes().to_vec();
        packet.push(padding);
        packet.resize(5 + fill, 2);
        packet
    };
    let rows = [
        sized(0, 0, 100),
        sized(1, 0, 100),
        sized(4, 4, 100),
        sized(u32::MAX, 4, 100),
        sized(0x8000_0000, 4, 100),
        // One cipher block above 256 KiB.
        sized(256 * 1024 + 4, 4, 100),
        // Not a multiple of the cipher block.
        sized(13, 4, 100),
        sized(12, 0, 100),
        sized(12, 3, 100),
        sized(12, 12, 100),
        sized(12, 255, 100),
    ];
    for (number, row) in rows.into_iter().enumerate() {
        let config = sshd().edit(1, Edit::Replace(row));
        let mut world = World::new(setup(), config);
        world.client.put(bytes(10, 1), "file");
        let error = world.refused();
        assert!(
            matches!(error, Error::PeerMisbehaved(PeerMisbehaved::BadPacket(_))),
            "row {number}: {error:?}"
        );
    }
    // A packet with padding only.
    let config = sshd().edit(1, Edit::Replace(plain_packet(b"")));
    let mut world = World::new(setup(), config);
    world.client.put(bytes(10, 1), "file");
    let error = world.refused();
    assert!(matches!(
        error,
        Error::PeerMisbehaved(PeerMisbehaved::EmptyPacket)
    ));
}

/// CVE-2026-55199: libssh2 trusted the extension count in EXT_INFO and looped for a minute.
#[test]
fn cve_2026_55199_an_ext_info_that_lies_about_its_count_ends_at_once() {
    for count in [17, 1 << 20, u32::MAX] {
        for pairs in [&b""[..], &[0; 4096]] {
            let info = ExtInfo {
                count,
                pairs: RemainingBytes(pairs),
            };
            let config = sshd().slip(Step::Keys, vec![info.to_bytes()]);
            let mut world = World::new(setup(), config);
            world.client.put(bytes(10, 1), "file");
            let error = world.refused();
            assert!(matches!(error, Error::PeerMisbehaved(_)), "{error:?}");
        }
    }
}

#[test]
fn a_zlib_bomb_is_refused() {
    let proposal = AlgorithmProposal {
        compress: true,
        ..sshd().proposal
    };
    let config = SshdModelSettings {
        proposal: proposal.clone(),
        ..sshd()
    };
    // 64 MiB of zeros compress to one packet of 64 KiB.
    let mut bomb = vec![0; 64 << 20];
    bomb[0] = 2;
    let config = config.slip(Step::Subsystem, vec![bomb]);
    let setup = Setup {
        proposal,
        ..setup()
    };
    let mut world = World::new(setup, config);
    world.client.put(bytes(10, 1), "file");
    let error = world.refused();
    assert!(
        matches!(
            error,
            Error::PeerMisbehaved(PeerMisbehaved::BadCompression(_))
        ),
        "{error:?}"
    );
    assert!(world.client.most_input < 1 << 20);
}
