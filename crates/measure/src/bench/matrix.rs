//! Lists the settings that are possible between two ends, the most useful first.

use super::{BenchCompression, BenchData, BenchSetting, StorageKind, UnmeasuredAlgorithm};
use crate::result::CopyDirection;

/// The algorithms that both ends have, in a copy's order of preference.
#[derive(Debug, Clone, Default)]
pub struct MutualAlgorithms {
    /// Ciphers, each with true if it needs no separate MAC.
    pub ciphers: Vec<(String, bool)>,
    /// MACs.
    pub macs: Vec<String>,
    /// The other end supports zlib@openssh.com.
    pub zlib: bool,
    /// A longhaul can be started at the other end, which allows zstd.
    pub zstd: bool,
}

/// Kinds of data and numbers of lanes that the user wants to be measured.
#[derive(Debug, Clone)]
pub struct BenchDataSelection {
    /// Kinds of data; the first is used if a single one suffices.
    pub data: Vec<BenchData>,
    /// (connections, channels); the first is used if lanes are not compared.
    pub lanes: Vec<(u32, u32)>,
    /// Measure files on disk too.
    pub disk: bool,
}

impl MutualAlgorithms {
    /// Compressions that both ends have.
    fn compressions(&self) -> Vec<BenchCompression> {
        let zlib = self.zlib.then_some(BenchCompression::Zlib);
        let zstd = self.zstd.then_some(BenchCompression::Zstd);
        zlib.into_iter().chain(zstd).collect()
    }
}

/// Copies of `plain` with each cipher, and with the first MAC where the cipher needs one.
fn each_cipher(offer: &MutualAlgorithms, plain: &BenchSetting) -> Vec<BenchSetting> {
    let with = |(cipher, alone): &(String, bool)| {
        let mac = match alone {
            true => None,
            false => Some(offer.macs.first()?.clone()),
        };
        Some(BenchSetting {
            cipher: cipher.clone(),
            mac,
            ..plain.clone()
        })
    };
    offer.ciphers.iter().filter_map(with).collect()
}

/// Copy of `row` with this data and compression.
fn compressed(row: &BenchSetting, data: BenchData, compression: BenchCompression) -> BenchSetting {
    BenchSetting {
        data,
        compression,
        both_ours: compression == BenchCompression::Zstd,
        ..row.clone()
    }
}

/// Copy of `row` as a download.
fn down(row: &BenchSetting) -> BenchSetting {
    BenchSetting {
        way: CopyDirection::Down,
        ..row.clone()
    }
}

/// The settings, and the number of leading ones that run even if time is short: each cipher once.
pub fn settings(
    offer: &MutualAlgorithms,
    wanted: &BenchDataSelection,
) -> (Vec<BenchSetting>, usize) {
    let mut all = SettingList::default();
    let Some(plain) = base(offer, wanted) else {
        return (Vec::new(), 0);
    };
    let ciphers = each_cipher(offer, &plain);
    ciphers.iter().for_each(|row| all.add(row.clone()));
    let must = all.0.len();
    let compressions = offer.compressions();
    // Compression, with each kind of data.
    for data in &wanted.data {
        all.add(compressed(&plain, *data, BenchCompression::None));
        for compression in &compressions {
            all.add(compressed(&plain, *data, *compression));
        }
    }
    all.add(down(&plain));
    for (connections, channels) in &wanted.lanes {
        let lanes = BenchSetting {
            connections: *connections,
            channels: *channels,
            ..plain.clone()
        };
        all.add(lanes.clone());
        all.add(down(&lanes));
    }
    if offer.zstd {
        all.add(BenchSetting {
            both_ours: true,
            ..plain.clone()
        });
    }
    if wanted.disk {
        let disk = BenchSetting {
            place: StorageKind::Disk,
            ..plain.clone()
        };
        all.add(disk.clone());
        all.add(down(&disk));
        for compression in &compressions {
            for data in wanted
                .data
                .iter()
                .filter(|data| **data != BenchData::Random)
            {
                all.add(compressed(&disk, *data, *compression));
            }
        }
    }
    ciphers.iter().for_each(|row| all.add(down(row)));
    // MACs, with the first cipher that needs one.
    let needs_mac = ciphers.iter().find(|row| row.mac.is_some());
    for mac in needs_mac.iter().flat_map(|_| &offer.macs) {
        all.add(BenchSetting {
            mac: Some(mac.clone()),
            cipher: needs_mac.map_or_else(String::new, |row| row.cipher.clone()),
            ..plain.clone()
        });
    }
    // The table of the report: each cipher with and without compression, for each kind of data.
    for way in [CopyDirection::Up, CopyDirection::Down] {
        for row in &ciphers {
            for data in &wanted.data {
                for compression in &compressions {
                    all.add(BenchSetting {
                        way,
                        ..compressed(row, *data, *compression)
                    });
                }
            }
        }
    }
    (all.0, must)
}

/// Settings for OpenSSH's ssh: each algorithm of `named` that it knows (`ciphers` and `macs`),
/// uncompressed and on one lane. They are removed from `named`, the list of algorithms not
/// measured.
pub fn carried(
    named: &mut Vec<UnmeasuredAlgorithm>,
    like: &BenchSetting,
    (ciphers, macs): (&[String], &[String]),
    offer: &MutualAlgorithms,
) -> Vec<BenchSetting> {
    let plain = BenchSetting {
        compression: BenchCompression::None,
        connections: 1,
        channels: 1,
        both_ours: false,
        carried: true,
        ..like.clone()
    };
    // A cipher without its own tag is measured with the first MAC, and a MAC with the first cipher
    // that needs one.
    let mac = offer.macs.first().or_else(|| macs.first());
    let bare = offer.ciphers.iter().find(|(_, alone)| !alone);
    let bare = bare.map(|(name, _)| name).or_else(|| ciphers.first());
    let mut settings = Vec::new();
    named.retain(|named| {
        let known = match named.what.as_str() {
            "cipher" => ciphers,
            _ => macs,
        };
        if !known.contains(&named.name) {
            return true;
        }
        let (cipher, mac) = match named.what.as_str() {
            "cipher" => (Some(&named.name), mac),
            _ => (bare, Some(&named.name)),
        };
        let (Some(cipher), Some(mac)) = (cipher, mac) else {
            return true;
        };
        settings.push(BenchSetting {
            cipher: cipher.clone(),
            mac: Some(mac.clone()),
            ..plain.clone()
        });
        false
    });
    settings
}

fn base(offer: &MutualAlgorithms, wanted: &BenchDataSelection) -> Option<BenchSetting> {
    let (cipher, alone) = offer.ciphers.first()?;
    let (connections, channels) = wanted.lanes.first().copied().unwrap_or((1, 1));
    Some(BenchSetting {
        cipher: cipher.clone(),
        mac: match alone {
            true => None,
            false => Some(offer.macs.first()?.clone()),
        },
        compression: BenchCompression::None,
        data: wanted.data.first().copied().unwrap_or(BenchData::Random),
        way: CopyDirection::Up,
        place: StorageKind::Memory,
        connections,
        channels,
        both_ours: false,
        carried: false,
    })
}

/// A list of settings without duplicates.
#[derive(Default)]
struct SettingList(Vec<BenchSetting>);

impl SettingList {
    fn add(&mut self, setting: BenchSetting) {
        if !self.0.contains(&setting) {
            self.0.push(setting);
        }
    }
}

/// Parts of the names of algorithms that should not be used: short keys or blocks, SSH's CBC,
/// broken hashes, and none at all.
const WEAK: &[&str] = &[
    "3des", "arcfour", "blowfish", "cast128", "des", "idea", "rc4", "-cbc", "rijndael", "md5",
    "sha1", "umac-64", "ripemd", "-96", "none",
];

/// Returns true if the algorithm is broken or outdated.
pub fn is_weak(name: &str) -> bool {
    WEAK.iter().any(|word| name.contains(word))
}

/// The algorithms in the other end's list that are not measured.
pub fn named(what: &str, theirs: &str, measured: &[&str]) -> Vec<UnmeasuredAlgorithm> {
    let theirs = theirs.split(',').filter(|name| !name.is_empty());
    theirs
        .filter(|name| !measured.contains(name))
        .map(|name| UnmeasuredAlgorithm {
            what: what.to_owned(),
            name: name.to_owned(),
            weak: is_weak(name),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> MutualAlgorithms {
        MutualAlgorithms {
            ciphers: vec![
                ("aes128-gcm@openssh.com".into(), true),
                ("aes128-ctr".into(), false),
                ("aes256-ctr".into(), false),
            ],
            macs: vec![
                "hmac-sha2-256-etm@openssh.com".into(),
                "hmac-sha2-512".into(),
            ],
            zlib: true,
            zstd: false,
        }
    }

    fn wanted() -> BenchDataSelection {
        BenchDataSelection {
            data: vec![BenchData::Random, BenchData::Text, BenchData::Gzipped],
            lanes: vec![(1, 1), (2, 1)],
            disk: true,
        }
    }

    #[test]
    fn every_cipher_comes_first_and_nothing_twice() {
        let (all, must) = settings(&offer(), &wanted());
        assert_eq!(must, 3);
        let first: Vec<&str> = all.iter().take(must).map(|s| s.cipher.as_str()).collect();
        assert_eq!(
            first,
            ["aes128-gcm@openssh.com", "aes128-ctr", "aes256-ctr"]
        );
        for (at, setting) in all.iter().enumerate() {
            assert!(!all[..at].contains(setting), "{setting:?}");
            assert_eq!(setting.mac.is_none(), setting.cipher.contains("gcm"));
        }
        let any = |is: &dyn Fn(&BenchSetting) -> bool| all.iter().any(is);
        assert!(any(
            &|s| s.way == CopyDirection::Down && s.cipher == "aes256-ctr"
        ));
        assert!(any(&|s| s.mac.as_deref() == Some("hmac-sha2-512")));
        assert!(any(&|s| s.connections == 2) && any(&|s| s.place == StorageKind::Disk));
        assert!(!any(
            &|s| s.compression == BenchCompression::Zstd || s.both_ours
        ));
    }

    #[test]
    fn with_longhaul_at_both_ends_there_is_zstd() {
        let ours = MutualAlgorithms {
            zstd: true,
            ..offer()
        };
        let (all, _) = settings(&ours, &wanted());
        let zstd = |s: &&BenchSetting| s.compression == BenchCompression::Zstd;
        assert!(all.iter().filter(zstd).all(|s| s.both_ours));
        assert!(all.iter().filter(zstd).count() >= 3);
    }

    #[test]
    fn ends_with_nothing_in_common_give_no_settings() {
        assert_eq!(settings(&MutualAlgorithms::default(), &wanted()).0, []);
        let no_mac = MutualAlgorithms {
            ciphers: vec![("aes128-ctr".into(), false)],
            ..MutualAlgorithms::default()
        };
        assert_eq!(settings(&no_mac, &wanted()).0, []);
    }

    #[test]
    fn what_is_not_measured_is_named_and_the_weak_is_marked() {
        let theirs = "aes128-ctr,aes128-cbc,3des-cbc,camellia256-ctr,,";
        let named = named("cipher", theirs, &["aes128-ctr"]);
        let names: Vec<(&str, bool)> = named.iter().map(|n| (n.name.as_str(), n.weak)).collect();
        assert_eq!(
            names,
            [
                ("aes128-cbc", true),
                ("3des-cbc", true),
                ("camellia256-ctr", false)
            ]
        );
        for strong in [
            "aes256-gcm@openssh.com",
            "chacha20-poly1305@openssh.com",
            "hmac-sha2-256",
            "umac-128-etm@openssh.com",
        ] {
            assert!(!is_weak(strong), "{strong}");
        }
        for weak in [
            "hmac-md5",
            "hmac-sha1-96",
            "arcfour128",
            "none",
            "umac-64@openssh.com",
        ] {
            assert!(is_weak(weak), "{weak}");
        }
    }
}
