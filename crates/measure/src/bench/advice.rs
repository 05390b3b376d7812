//! Recommends settings for each kind of data, with reasons.
//!
//! All advice follows one rule. Two settings are compared only if they differ in one property:
//! cipher and MAC, compression, lanes, or the server at the other end. One is faster than the other
//! only if at least [`ENOUGH`] runs of each lie apart and the medians differ by more than
//! [`EQUAL`]. The search starts at the plainest setting and moves to a faster neighbour while there
//! is one; among equally fast ciphers, processor time decides. So no row that differs in one
//! property is faster than the advised one, and each statement about two rows holds for these two.

use serde::{Deserialize, Serialize};

use super::{BenchCompression, BenchData, BenchResult, BenchRow, BenchSetting, StorageKind};
use crate::result::CopyDirection;
use crate::shown;

/// Rates within this share of the fastest count as equal, and costs decide.
const EQUAL: f64 = 0.03;
/// Runs of each of two settings that must lie apart: with three each, chance alone separates two
/// settings once in twenty tables; with two each, once in six.
const ENOUGH: usize = 3;
/// Factor over the lowest cost within which the first setting is taken, which is the default if
/// that is among them. Processor time is counted too coarsely to decide below it.
const AS_CHEAP: f64 = 1.25;
/// Compression that leaves data larger than this share does not count as making them smaller.
const SHRUNK: f64 = 0.98;

/// The recommendation for one kind of data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchAdvice {
    /// The kind of data.
    pub data: BenchData,
    /// The recommended setting.
    pub setting: BenchSetting,
    /// The reason, in a sentence or two.
    pub reason: String,
    /// The beginning of the longhaul command line.
    pub longhaul: String,
    /// Lines for ssh_config, for all programs that use ssh.
    pub ssh_config: Vec<String>,
}

/// Derives the advice from the rows; kinds of data without rows get none.
pub fn advise(bench: &BenchResult) -> Vec<BenchAdvice> {
    let mut kinds: Vec<BenchData> = Vec::new();
    for row in bench.rows.iter().filter(|row| usable(row)) {
        if !kinds.contains(&row.setting.data) {
            kinds.push(row.setting.data);
        }
    }
    kinds.sort_unstable();
    kinds
        .into_iter()
        .filter_map(|data| advise_for(bench, data))
        .collect()
}

fn advise_for(bench: &BenchResult, data: BenchData) -> Option<BenchAdvice> {
    let usable = bench.rows.iter().filter(|row| usable(row));
    let all: Vec<&BenchRow> = usable.filter(|row| fits(bench, row, data)).collect();
    let best = choose(&all)?;
    let is_plain = |row: &&&BenchRow| {
        let s = &row.setting;
        s.compression != BenchCompression::Zstd && !s.both_ours && s.lanes() == "1x1"
    };
    let plain: Vec<&BenchRow> = all.iter().filter(is_plain).copied().collect();
    Some(BenchAdvice {
        data,
        setting: best.setting.clone(),
        reason: reason(bench, data, best, &all),
        longhaul: command(&best.setting),
        ssh_config: choose(&plain).map_or_else(Vec::new, |row| lines(&row.setting, &plain)),
    })
}

/// Starts at the plainest setting and follows faster neighbours.
fn choose<'a>(all: &[&'a BenchRow]) -> Option<&'a BenchRow> {
    let simplest = all
        .iter()
        .copied()
        .min_by_key(|row| plainness(&row.setting))?;
    let level = |row: &&&BenchRow| plainness(&row.setting) == plainness(&simplest.setting);
    let first: Vec<&BenchRow> = all.iter().filter(level).copied().collect();
    let mut chosen = cheapest_of_the_fastest(&first)?;
    // Each step goes to a row that is significantly faster, so this ends.
    loop {
        let next = all
            .iter()
            .copied()
            .filter(|row| differs_in_one(row, chosen));
        let next = next.filter(|row| faster(row, chosen));
        match next.max_by(|a, b| median(a).total_cmp(&median(b))) {
            Some(next) => chosen = next,
            None => break,
        }
    }
    // Take the cheapest among equally fast ciphers, unless that row has a faster neighbour.
    let like = |row: &&&BenchRow| {
        difference(&row.setting, &chosen.setting) == Some(SettingProperty::Cipher)
    };
    let mut like: Vec<&BenchRow> = all.iter().filter(like).copied().collect();
    like.push(chosen);
    let place = |row: &BenchRow| all.iter().position(|other| std::ptr::eq(*other, row));
    like.sort_by_key(|row| place(row));
    like.retain(|row| {
        let mut others = all.iter();
        !others.any(|other| differs_in_one(other, row) && faster(other, row))
    });
    cheapest_of_the_fastest(&like)
}

/// Sort key: settings that require less from the user come first.
fn plainness(setting: &BenchSetting) -> (bool, bool, u32) {
    (
        setting.both_ours,
        setting.compression != BenchCompression::None,
        setting.connections * setting.channels,
    )
}

/// A property in which two settings may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingProperty {
    Cipher,
    Compression,
    Lanes,
    Server,
}

/// The single property in which two settings differ; `None` if there is none or several. The kind
/// of data is not one, since it does not matter without compression.
fn difference(a: &BenchSetting, b: &BenchSetting) -> Option<SettingProperty> {
    let things = [
        (SettingProperty::Cipher, a.protection() != b.protection()),
        (SettingProperty::Compression, a.compression != b.compression),
        (SettingProperty::Lanes, a.lanes() != b.lanes()),
        (SettingProperty::Server, a.both_ours != b.both_ours),
    ];
    let mut differ = things.iter().filter(|(_, differs)| *differs);
    match (differ.next(), differ.next()) {
        (Some((thing, _)), None) => Some(*thing),
        _ => None,
    }
}

fn differs_in_one(a: &BenchRow, b: &BenchRow) -> bool {
    difference(&a.setting, &b.setting).is_some()
}

/// Returns true if `a` is faster than `b` beyond chance.
fn faster(a: &BenchRow, b: &BenchRow) -> bool {
    let (Some(one), Some(other)) = (a.rate(), b.rate()) else {
        return false;
    };
    let enough = one.count >= ENOUGH && other.count >= ENOUGH;
    enough && one.low > other.high && one.median > other.median * (1.0 + EQUAL)
}

/// Returns true if the advice compares rows of this setting. `plain` is the first setting of the
/// table.
pub fn decides(setting: &BenchSetting, plain: &BenchSetting) -> bool {
    let compared = setting.way == CopyDirection::Up
        && setting.place == StorageKind::Memory
        && !setting.carried;
    let level = plainness(setting) == plainness(plain);
    compared && (level || setting.protection() == plain.protection())
}

/// Selects uploads between memories: they show path and processors, without disks.
fn usable(row: &BenchRow) -> bool {
    let s = &row.setting;
    // Algorithms that longhaul lacks are never advised.
    let ours = !s.carried && row.trouble.is_none();
    ours && !row.runs.is_empty() && s.way == CopyDirection::Up && s.place == StorageKind::Memory
}

/// Selects rows that apply to a kind of data: all without compression, and those with a compression
/// that makes these data smaller.
fn fits(bench: &BenchResult, row: &BenchRow, data: BenchData) -> bool {
    let setting = &row.setting;
    match setting.compression {
        BenchCompression::None => true,
        with => setting.data == data && shrunk(bench, data, with),
    }
}

fn median(row: &BenchRow) -> f64 {
    row.rate().map_or(0.0, |rate| rate.median)
}

/// Processor seconds for 10^9 bytes, summed over the ends for which they are known.
fn cost(row: &BenchRow) -> f64 {
    row.near_cpu().unwrap_or_default() + row.far_cpu().unwrap_or_default()
}

/// The first row that is nearly the cheapest among those that are as fast as the fastest.
fn cheapest_of_the_fastest<'a>(rows: &[&'a BenchRow]) -> Option<&'a BenchRow> {
    let fastest = rows.iter().map(|row| median(row)).fold(0.0, f64::max);
    let equal = rows.iter().copied();
    let mut equal = equal.filter(|row| median(row) >= fastest * (1.0 - EQUAL));
    let least = equal.clone().map(cost).fold(f64::INFINITY, f64::min);
    equal.find(|row| cost(row) <= least * AS_CHEAP)
}

fn reason(bench: &BenchResult, data: BenchData, best: &BenchRow, all: &[&BenchRow]) -> String {
    let rest = [
        about_ciphers(best, all),
        about_lanes(best, all),
        about_the_server(best, all),
    ];
    let mut rest: Vec<String> = rest.into_iter().flatten().collect();
    let measured = best.setting.data;
    if let Some(first) = rest.first_mut().filter(|_| measured != data) {
        *first = format!("measured with {measured} data, {first}");
    }
    let compression = about_compression(bench, data, best, all);
    let said: Vec<String> = compression.into_iter().chain(rest).collect();
    said.join("; ")
}

fn mb(row: &BenchRow) -> String {
    shown::number(median(row) / 1e6)
}

/// The fastest row that differs from `row` in this property only.
fn neighbour<'a>(
    all: &[&'a BenchRow],
    row: &BenchRow,
    thing: SettingProperty,
) -> Option<&'a BenchRow> {
    let like = all.iter().copied();
    let like = like.filter(|other| difference(&other.setting, &row.setting) == Some(thing));
    like.max_by(|a, b| median(a).total_cmp(&median(b)))
}

/// Describes the chosen row relative to another.
fn verdict(best: &BenchRow, other: &BenchRow) -> &'static str {
    match faster(best, other) {
        true => "faster",
        false => "not measurably slower",
    }
}

fn about_ciphers(best: &BenchRow, all: &[&BenchRow]) -> Option<String> {
    let second = neighbour(all, best, SettingProperty::Cipher)?;
    let (name, other) = (best.setting.protection(), second.setting.protection());
    // A row with a lower median may be too uncertain to be called slower.
    let mut others = all.iter();
    let fastest = others.all(|row| {
        difference(&row.setting, &best.setting) != Some(SettingProperty::Cipher)
            || faster(best, row)
    });
    Some(match (fastest, cost(best) <= cost(second)) {
        (true, _) => format!(
            "{name} is faster than any other cipher: {} MB/s against {} with {other}",
            mb(best),
            mb(second)
        ),
        (false, true) => format!(
            "no cipher is measurably faster than {name}, which takes less processor time than {other}"
        ),
        (false, false) => format!("no cipher is measurably faster than {name}"),
    })
}

fn about_lanes(best: &BenchRow, all: &[&BenchRow]) -> Option<String> {
    let one = |setting: &BenchSetting| setting.connections * setting.channels == 1;
    if one(&best.setting) {
        let other = neighbour(all, best, SettingProperty::Lanes)?;
        return Some(format!(
            "one connection with one channel is {} than {}: {} MB/s against {}",
            verdict(best, other),
            other.setting.lanes(),
            mb(best),
            mb(other)
        ));
    }
    let single = all.iter().copied().find(|row| {
        one(&row.setting) && difference(&row.setting, &best.setting) == Some(SettingProperty::Lanes)
    })?;
    let BenchSetting {
        connections,
        channels,
        ..
    } = best.setting;
    let lanes = match (connections, channels) {
        (1, _) => format!("one connection with {channels} channels is"),
        (_, 1) => format!("{connections} connections with one channel each are"),
        _ => format!("{connections} connections with {channels} channels each are"),
    };
    Some(format!(
        "{lanes} {} than one with one: {} MB/s against {}",
        verdict(best, single),
        mb(best),
        mb(single)
    ))
}

fn about_the_server(best: &BenchRow, all: &[&BenchRow]) -> Option<String> {
    let other = neighbour(all, best, SettingProperty::Server)?;
    let (with, without) = match best.setting.both_ours {
        true => (best, other),
        false => (other, best),
    };
    let than = match best.setting.both_ours {
        true => format!("longhaul at the far end is {}", verdict(best, other)),
        false => format!(
            "the server's own SFTP server is {} than longhaul there",
            verdict(best, other)
        ),
    };
    Some(format!(
        "{than}: {} MB/s with it against {} without",
        mb(with),
        mb(without)
    ))
}

fn about_compression(
    bench: &BenchResult,
    data: BenchData,
    best: &BenchRow,
    all: &[&BenchRow],
) -> Option<String> {
    let shrinks = |compression: BenchCompression| match bench.ratio(data, compression) {
        Some(ratio) if ratio < SHRUNK => {
            format!("; {data} data shrinks to {:.0} %", ratio * 100.0)
        }
        Some(_) => format!("; {data} data does not shrink"),
        None => String::new(),
    };
    let chosen = best.setting.compression;
    if chosen != BenchCompression::None {
        let none = neighbour(all, best, SettingProperty::Compression)
            .filter(|row| row.setting.compression == BenchCompression::None);
        return Some(match none {
            Some(none) => format!(
                "{chosen} pays: {} MB/s against {} without it{}",
                mb(best),
                mb(none),
                shrinks(chosen)
            ),
            None => format!("{} MB/s with {chosen}{}", mb(best), shrinks(chosen)),
        });
    }
    // Compression that does not make data smaller is no candidate, but its rows are shown.
    let measured = bench.rows.iter().filter(|row| {
        let s = &row.setting;
        usable(row) && s.data == data && s.compression != BenchCompression::None
    });
    let like = measured.filter(|row| {
        difference(&row.setting, &best.setting) == Some(SettingProperty::Compression)
    });
    let with = like.max_by(|a, b| median(a).total_cmp(&median(b)));
    // The rate without compression may have been measured with other data.
    let same = |row: &&BenchRow| {
        row.setting.data == data && difference(&row.setting, &best.setting).is_none()
    };
    let without = all.iter().copied().find(same).unwrap_or(best);
    Some(match with {
        Some(with) => {
            let compression = with.setting.compression;
            let verdict = match faster(best, with) && faster(without, with) {
                true => "compression does not pay",
                false if !shrunk(bench, data, compression) => "compression gains nothing",
                false if median(with) > median(without) => "compression is not measurably faster",
                false => "compression does not seem to pay, from few or uneven runs",
            };
            format!(
                "{verdict}: {} MB/s with {compression} against {} without it{}",
                mb(with),
                mb(without),
                shrinks(compression)
            )
        }
        None => format!("{} MB/s without compression", mb(without)),
    })
}

fn shrunk(bench: &BenchResult, data: BenchData, compression: BenchCompression) -> bool {
    bench
        .ratio(data, compression)
        .is_none_or(|ratio| ratio < SHRUNK)
}

fn command(setting: &BenchSetting) -> String {
    let mut words = vec!["longhaul cp -c".to_owned(), setting.cipher.clone()];
    if let Some(mac) = &setting.mac {
        words.push(format!("-o MACs={mac}"));
    }
    if setting.compression != BenchCompression::None {
        words.push("-C".to_owned());
    }
    if setting.both_ours {
        words.push("--far-end=exec".to_owned());
    }
    if setting.connections * setting.channels > 1 {
        words.push(format!(
            "--connections {} --channels {}",
            setting.connections, setting.channels
        ));
    }
    words.join(" ")
}

/// The names to list: the best cipher, then the other measured ones from fast to slow.
fn lines(best: &BenchSetting, rows: &[&BenchRow]) -> Vec<String> {
    let mut rows: Vec<&BenchRow> = rows
        .iter()
        .copied()
        .filter(|row| row.setting.compression == best.compression)
        .collect();
    rows.sort_by(|a, b| median(b).total_cmp(&median(a)));
    let of = |name: &dyn Fn(&BenchSetting) -> Option<String>| {
        let mut names: Vec<String> = Vec::new();
        let all = rows.iter().map(|row| &row.setting);
        for name in [best].into_iter().chain(all).filter_map(name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(",")
    };
    let mut lines = vec![format!("Ciphers {}", of(&|s| Some(s.cipher.clone())))];
    if best.mac.is_some() {
        lines.push(format!("MACs {}", of(&|s| s.mac.clone())));
    }
    lines.push(match best.compression {
        BenchCompression::Zlib => "Compression yes".to_owned(),
        BenchCompression::None | BenchCompression::Zstd => "Compression no".to_owned(),
    });
    lines
}
