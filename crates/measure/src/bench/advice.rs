//! What to use, for each kind of data, and why.

use serde::{Deserialize, Serialize};

use super::{Bench, Compression, Data, Place, Row, Setting};
use crate::result::Way;
use crate::shown;

/// What is slower than the fastest by less than this counts as equal, and costs decide.
const EQUAL: f64 = 0.03;

/// What to use for one kind of data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Which data.
    pub data: Data,
    /// What was the best.
    pub setting: Setting,
    /// Why, in a sentence or two.
    pub reason: String,
    /// The command line's beginning for longhaul.
    pub longhaul: String,
    /// Lines for ssh_config, for everything that uses ssh.
    pub ssh_config: Vec<String>,
}

/// What follows from the rows; nothing of what has none.
pub fn advise(bench: &Bench) -> Vec<Advice> {
    let mut kinds: Vec<Data> = Vec::new();
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

fn advise_for(bench: &Bench, data: Data) -> Option<Advice> {
    let candidates: Vec<&Row> = bench
        .rows
        .iter()
        .filter(|row| usable(row) && fits(&row.setting, data))
        .collect();
    let best = best(&candidates)?;
    let plain: Vec<&Row> = candidates
        .iter()
        .copied()
        .filter(|row| {
            let s = &row.setting;
            s.compression != Compression::Zstd && !s.both_ours && s.lanes() == "1x1"
        })
        .collect();
    Some(Advice {
        data,
        setting: best.setting.clone(),
        reason: reason(bench, data, best, &candidates),
        longhaul: command(&best.setting),
        ssh_config: self::best(&plain).map_or_else(Vec::new, |row| lines(&row.setting, &plain)),
    })
}

/// Uploads between memories: what the path and the processors do, without disks.
fn usable(row: &Row) -> bool {
    let s = &row.setting;
    // What longhaul does not have is never advised.
    let ours = !s.carried && row.trouble.is_none();
    ours && !row.runs.is_empty() && s.way == Way::Up && s.place == Place::Memory
}

/// Without compression all data are the same.
fn fits(setting: &Setting, data: Data) -> bool {
    setting.data == data || setting.compression == Compression::None
}

fn median(row: &Row) -> f64 {
    row.rate().map_or(0.0, |rate| rate.median)
}

/// Processor seconds for 10^9 bytes, of both ends as far as they are known.
fn cost(row: &Row) -> f64 {
    row.near_cpu().unwrap_or_default() + row.far_cpu().unwrap_or_default()
}

/// The fastest; of those that are as fast, the one that costs least.
fn best<'a>(rows: &[&'a Row]) -> Option<&'a Row> {
    let fastest = rows.iter().map(|row| median(row)).fold(0.0, f64::max);
    rows.iter()
        .copied()
        .filter(|row| median(row) >= fastest * (1.0 - EQUAL))
        .min_by(|a, b| {
            let lanes = |row: &Row| row.setting.connections * row.setting.channels;
            lanes(a).cmp(&lanes(b)).then(cost(a).total_cmp(&cost(b)))
        })
}

fn reason(bench: &Bench, data: Data, best: &Row, candidates: &[&Row]) -> String {
    let mut said = vec![about_compression(bench, data, best, candidates)];
    // Its like with other ciphers.
    let like = |row: &&&Row| {
        let (a, b) = (&row.setting, &best.setting);
        a.compression == b.compression && a.lanes() == b.lanes() && a.both_ours == b.both_ours
    };
    let like: Vec<&Row> = candidates.iter().filter(like).copied().collect();
    let others = like
        .iter()
        .filter(|row| row.setting.protection() != best.setting.protection());
    let second = others.clone().map(|row| median(row)).fold(0.0, f64::max);
    let name = best.setting.protection();
    let equal = others
        .clone()
        .filter(|row| median(row) >= median(best) * (1.0 - EQUAL));
    match (others.count(), equal.count()) {
        (0, _) => {}
        (_, 0) => said.push(format!(
            "{name} is faster by {:.0} % than any other cipher",
            (median(best) / second - 1.0) * 100.0
        )),
        (_, _) => said.push(format!(
            "{name} costs the least processor time of those that are as fast"
        )),
    }
    let lanes = best.setting.connections * best.setting.channels;
    if lanes > 1 {
        said.push(format!(
            "{} connections with {} channels each are faster than fewer",
            best.setting.connections, best.setting.channels
        ));
    }
    said.join("; ")
}

fn about_compression(bench: &Bench, data: Data, best: &Row, candidates: &[&Row]) -> String {
    let of = |compression: Compression, data: Option<Data>| {
        let is = |row: &&&Row| {
            let s = &row.setting;
            s.compression == compression && data.is_none_or(|data| s.data == data)
        };
        let rates = candidates.iter().filter(is).map(|row| median(row));
        rates.fold(0.0, f64::max)
    };
    let mb = |rate: f64| shown::number(rate / 1e6);
    let chosen = best.setting.compression;
    let none = of(Compression::None, None);
    let shrinks = |compression: Compression| match bench.ratio(data, compression) {
        Some(ratio) if ratio < 0.98 => {
            format!("{data} data become {:.0} % of their size", ratio * 100.0)
        }
        Some(_) => format!("{data} data do not become smaller"),
        None => String::new(),
    };
    if chosen != Compression::None {
        return format!(
            "{chosen} pays: {} MB/s against {} without it; {}",
            mb(median(best)),
            mb(none),
            shrinks(chosen)
        );
    }
    let measured = [Compression::Zlib, Compression::Zstd]
        .into_iter()
        .map(|compression| (compression, of(compression, Some(data))))
        .filter(|(_, rate)| *rate > 0.0)
        .max_by(|a, b| a.1.total_cmp(&b.1));
    match measured {
        Some((compression, rate)) => format!(
            "compression does not pay: {} MB/s with {compression} against {} without it; {}",
            mb(rate),
            mb(median(best)),
            shrinks(compression)
        ),
        None => format!("{} MB/s without compression", mb(median(best))),
    }
}

fn command(setting: &Setting) -> String {
    let mut words = vec!["longhaul cp -c".to_owned(), setting.cipher.clone()];
    if let Some(mac) = &setting.mac {
        words.push(format!("-o MACs={mac}"));
    }
    if setting.compression != Compression::None {
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

/// The best cipher first, then the others that were measured, the faster ones first.
fn lines(best: &Setting, rows: &[&Row]) -> Vec<String> {
    let mut rows: Vec<&Row> = rows
        .iter()
        .copied()
        .filter(|row| row.setting.compression == best.compression)
        .collect();
    rows.sort_by(|a, b| median(b).total_cmp(&median(a)));
    let of = |name: &dyn Fn(&Setting) -> Option<String>| {
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
        Compression::Zlib => "Compression yes".to_owned(),
        Compression::None | Compression::Zstd => "Compression no".to_owned(),
    });
    lines
}
