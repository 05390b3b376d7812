//! Chooses the settings to measure from what both ends support and the flags ask for.

use std::process::Command;

use measure::bench::matrix::{self, BenchDataSelection, MutualAlgorithms};
use measure::bench::{BenchData, BenchSetting, StorageKind, UnmeasuredAlgorithm};
use ssh::cipher::{CIPHERS, MACS};
use transfer::connect::ConnectionFacts;

use crate::command_error::CommandError;
use crate::flags::low::{BenchArgs, BenchStorageChoice};

/// The (connections, channels) that are measured by default.
const LANES: &[(u32, u32)] = &[(1, 1), (1, 2), (2, 1), (4, 1)];

/// The algorithms that both ends have, and those that only the host has.
pub(super) struct CommonAlgorithms {
    pub(super) offer: MutualAlgorithms,
    pub(super) named: Vec<UnmeasuredAlgorithm>,
}

pub(super) fn find(args: &BenchArgs, facts: &ConnectionFacts) -> CommonAlgorithms {
    let has = |list: &str, name: &str| list.split(',').any(|theirs| theirs == name);
    let offers = &facts.offers;
    let wanted =
        |name: &str| args.ciphers.is_empty() || args.ciphers.iter().any(|wanted| wanted == name);
    let ciphers = CIPHERS
        .iter()
        .filter(|cipher| has(&offers.ciphers, cipher.name) && wanted(cipher.name));
    let macs = MACS.iter().filter(|mac| has(&offers.macs, mac.name));
    let ours: Vec<&str> = CIPHERS.iter().map(|cipher| cipher.name).collect();
    let our_macs: Vec<&str> = MACS.iter().map(|mac| mac.name).collect();
    let mut named = matrix::named("cipher", &offers.ciphers, &ours);
    named.extend(matrix::named("MAC", &offers.macs, &our_macs));
    CommonAlgorithms {
        offer: MutualAlgorithms {
            ciphers: ciphers.map(|c| (c.name.to_owned(), c.is_aead())).collect(),
            macs: macs.map(|mac| mac.name.to_owned()).collect(),
            zlib: has(&offers.compression, "zlib@openssh.com"),
            zstd: false,
        },
        named,
    }
}

/// The ciphers and MACs that OpenSSH's ssh knows.
///
/// # Errors
/// There is no ssh; one sentence.
pub(super) fn known_to_ssh() -> Result<(Vec<String>, Vec<String>), CommandError> {
    let ask = |what: &str| {
        let said = Command::new("ssh").args(["-Q", what]).output();
        let said = said.ok().filter(|said| said.status.success());
        let said = said.ok_or("--insecure-too needs OpenSSH's ssh, which is not installed")?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        Ok::<_, CommandError>(text.split_whitespace().map(str::to_owned).collect())
    };
    Ok((ask("cipher")?, ask("mac")?))
}

/// The kinds of data to send, generated ones first.
pub(super) fn data(args: &BenchArgs) -> Vec<BenchData> {
    let mut data = match args.data.is_empty() {
        true => vec![BenchData::Random, BenchData::Text, BenchData::Gzipped],
        false => args.data.clone(),
    };
    if args.file.is_some() {
        data.push(BenchData::File);
    }
    data
}

pub(super) fn wanted(args: &BenchArgs, data: Vec<BenchData>) -> BenchDataSelection {
    BenchDataSelection {
        data,
        lanes: match args.lanes.is_empty() {
            true => LANES.to_vec(),
            false => args.lanes.clone(),
        },
        disk: args.places == BenchStorageChoice::Both,
    }
}

/// Moves all settings to disk if `--place disk` asks for it.
pub(super) fn placed(
    mut settings: Vec<BenchSetting>,
    places: BenchStorageChoice,
) -> Vec<BenchSetting> {
    if places == BenchStorageChoice::Disk {
        for setting in &mut settings {
            setting.place = StorageKind::Disk;
        }
    }
    settings
}
