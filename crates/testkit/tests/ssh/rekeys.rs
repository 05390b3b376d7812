//! Key exchanges under load, in either direction and started by either side.

use ssh::transport::AlgorithmProposal;
use testkit::sim::Path;
use testkit::sshd_model::SshdModelSettings;

use crate::client::Setup;
use crate::world::{World, bytes, known, path, setup, sshd};

const SIZE: usize = 6 << 20;

fn busy(client: Option<u64>, server: Option<u64>, cipher: &str, compress: bool) {
    let proposal = AlgorithmProposal {
        ciphers: vec![cipher.to_owned()],
        kex: vec!["curve25519-sha256".to_owned()],
        compress,
        ..sshd().proposal
    };
    let config = SshdModelSettings {
        rekey_bytes: server,
        proposal: proposal.clone(),
        ..sshd()
    };
    let setup = Setup {
        rekey_bytes: client,
        proposal,
        ..known()
    };
    let path = Path {
        rate: 20_000_000,
        ..path()
    };
    let mut world = World::on(setup, config, path, 3);
    let (up, down) = (bytes(SIZE, 1), bytes(SIZE, 2));
    world.place("there", &down);
    world.client.put(up.clone(), "here");
    world.client.get("there");
    world.run().expect("it ends well");
    assert!(world.server.sftp.fs.data("here") == Some(up.as_slice()));
    let got = world
        .client
        .disk
        .files
        .get(std::path::Path::new("/dst/there"));
    assert!(got.is_some_and(|(data, _)| *data == down));
    let exchanges = world.client.key_exchanges;
    println!("{client:?} {server:?} {cipher}: {exchanges} key exchanges");
    assert!(exchanges > 5, "{exchanges}");
    assert!(world.server.key_exchanges().abs_diff(exchanges) <= 1);
    assert_eq!(world.restarts, 0);
}

#[test]
fn the_client_rekeys() {
    busy(Some(500_000), None, "aes128-gcm@openssh.com", false);
}

#[test]
fn the_server_rekeys() {
    busy(None, Some(500_000), "chacha20-poly1305@openssh.com", false);
}

#[test]
fn both_rekey_and_meet() {
    for cipher in ["aes128-gcm@openssh.com", "aes256-ctr"] {
        busy(Some(400_000), Some(400_000), cipher, false);
        busy(Some(300_000), Some(700_000), cipher, false);
    }
}

#[test]
fn both_rekey_with_compression() {
    busy(Some(400_000), Some(500_000), "aes128-gcm@openssh.com", true);
}

#[test]
fn a_rekey_in_every_round_of_a_first_contact_is_no_hindrance() {
    let config = SshdModelSettings {
        rekey_bytes: Some(2000),
        ..sshd()
    };
    let mut world = World::new(setup(), config);
    let data = bytes(50_000, 9);
    world.client.put(data.clone(), "file");
    world.run().expect("it ends well");
    assert_eq!(world.server.sftp.fs.data("file"), Some(data.as_slice()));
}
