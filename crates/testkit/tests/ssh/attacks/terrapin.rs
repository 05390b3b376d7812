//! Terrapin (CVE-2023-48795) and its relatives: packets injected before the keys are in use, and
//! removed after that.

use ssh::msg::{ExtInfo, Ignore, ServiceAccept, UserauthBanner, UserauthSuccess};
use ssh::transport::{AlgorithmProposal, KexGuess};
use ssh::{Error, PeerMisbehaved};
use testkit::sshd_model::{Edit, SshdModelSettings, plain_packet};
use wire::RemainingBytes;

use crate::client::Setup;
use crate::world::{World, bytes, known, setup, sshd};

const CIPHERS: [&str; 3] = [
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes128-gcm@openssh.com",
];

fn with_cipher(cipher: &str) -> (Setup, SshdModelSettings) {
    let proposal = AlgorithmProposal {
        ciphers: vec![cipher.to_owned()],
        ..sshd().proposal
    };
    let config = SshdModelSettings {
        proposal: proposal.clone(),
        ..sshd()
    };
    let setup = Setup {
        proposal,
        ..setup()
    };
    (setup, config)
}

/// Runs a copy while packets are changed on the way, and returns the error.
fn attacked(setup: Setup, config: SshdModelSettings) -> Error {
    let mut world = World::new(setup, config);
    world.client.put(bytes(1000, 1), "file");
    let error = world.refused();
    assert!(!world.client.conn.is_authenticated());
    error
}

fn slipped_in(payload: &[u8]) {
    // Before KEXINIT, KEX_ECDH_REPLY and NEWKEYS.
    for at in 1..=3 {
        for guess in [KexGuess::Never, KexGuess::Remembered, KexGuess::ByVersion] {
            let setup = Setup { guess, ..setup() };
            let config = sshd().edit(at, Edit::Before(plain_packet(payload)));
            let error = attacked(setup, config);
            assert!(
                matches!(
                    error,
                    Error::PeerMisbehaved(
                        PeerMisbehaved::StrictKex(_)
                            | PeerMisbehaved::OutOfPhase { .. }
                            | PeerMisbehaved::Unimplemented(_)
                            | PeerMisbehaved::Unexpected(_)
                    )
                ),
                "message {} in front of packet {at}: {error:?}",
                payload[0]
            );
        }
    }
}

#[test]
fn cve_2023_48795_nothing_is_slipped_into_the_first_exchange() {
    slipped_in(&Ignore { data: b"x" }.to_bytes());
    slipped_in(&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    slipped_in(&[3, 0, 0, 0, 0]);
    slipped_in(&[200]);
}

#[test]
fn cve_2023_48795_ext_info_cannot_be_cut_out() {
    for cipher in CIPHERS {
        let (setup, config) = with_cipher(cipher);
        let error = attacked(setup, config.edit(4, Edit::Drop));
        assert!(
            matches!(error, Error::PeerMisbehaved(PeerMisbehaved::BadPacket(_))),
            "{cipher}: {error:?}"
        );
    }
}

#[test]
fn cve_2023_48795_the_whole_attack() {
    for cipher in CIPHERS {
        for at in 1..=3 {
            let (setup, config) = with_cipher(cipher);
            let ignore = plain_packet(&Ignore { data: b"" }.to_bytes());
            let config = config.edit(at, Edit::Before(ignore)).edit(4, Edit::Drop);
            let error = attacked(setup, config);
            assert!(
                !matches!(error, Error::PeerMisbehaved(PeerMisbehaved::BadPacket(_))),
                "{cipher}, {at}: only the tag noticed: {error:?}"
            );
        }
    }
}

#[test]
fn cve_2023_48795_strict_kex_cannot_be_taken_away() {
    let strict = b"kex-strict-s-v00@openssh.com".to_vec();
    let other = b"kex-strict-x-v00@openssh.com".to_vec();
    let config = sshd().edit(1, Edit::Swap(strict, other));
    let error = attacked(setup(), config);
    assert!(
        matches!(error, Error::PeerMisbehaved(PeerMisbehaved::HostKey(_))),
        "{error:?}"
    );
}

/// CVE-2023-46445: an attacker injects EXT_INFO in the clear.
#[test]
fn cve_2023_46445_ext_info_before_the_keys_is_refused() {
    let mut pairs = Vec::new();
    wire::Field::write(&b"server-sig-algs".as_slice(), &mut pairs);
    wire::Field::write(&b"ssh-rsa".as_slice(), &mut pairs);
    let ext_info = ExtInfo {
        count: 1,
        pairs: RemainingBytes(&pairs),
    };
    slipped_in(&ext_info.to_bytes());
    // Also from a server that does not seem to support strict KEX.
    let strict = b"kex-strict-s-v00@openssh.com".to_vec();
    let other = b"kex-strict-x-v00@openssh.com".to_vec();
    for at in 2..=3 {
        let config = sshd()
            .edit(1, Edit::Swap(strict.clone(), other.clone()))
            .edit(at, Edit::Before(plain_packet(&ext_info.to_bytes())));
        let mut world = World::new(known(), config);
        world.client.put(bytes(1000, 1), "file");
        let error = world.refused();
        assert!(matches!(error, Error::PeerMisbehaved(_)), "{error:?}");
        assert_eq!(world.client.conn.extensions().sig_algs, None);
    }
}

/// CVE-2023-46446: authentication and channel messages in the clear.
#[test]
fn cve_2023_46446_authentication_before_the_keys_is_refused() {
    slipped_in(
        &ServiceAccept {
            name: b"ssh-userauth",
        }
        .to_bytes(),
    );
    slipped_in(&UserauthSuccess {}.to_bytes());
    let banner = UserauthBanner {
        text: b"hello",
        language: b"",
    };
    slipped_in(&banner.to_bytes());
    slipped_in(&[50, 0, 0, 0, 0]);
    slipped_in(&[91, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}
