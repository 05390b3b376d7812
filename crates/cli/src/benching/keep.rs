//! Converts a measurement into the findings that copies use.

use std::time::{SystemTime, UNIX_EPOCH};

use measure::CopyDirection;
use measure::bench::{self, Bench, BenchRow, Compression, FilePlace};
use schedule::Direction;
use transfer::memory::findings::{CipherRate, CompressionResult, Data, Findings, Method};
use transfer::memory::processor;

/// Extracts the findings of a measurement in the form in which copies read them.
pub(super) fn findings(bench: &Bench) -> Findings {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let one_lane = |row: &&BenchRow| {
        row.setting.place == FilePlace::Memory
            && row.setting.lanes() == "1x1"
            && !row.runs.is_empty()
    };
    let rows: Vec<&BenchRow> = bench.rows.iter().filter(one_lane).collect();
    Findings {
        at: now.map_or(0, |now| now.as_secs()),
        by: concat!("longhaul bench ", env!("CARGO_PKG_VERSION")).to_owned(),
        processor: processor::model(),
        ciphers: rows.iter().filter_map(|row| cipher(row)).collect(),
        compression: rows
            .iter()
            .filter_map(|row| compressed(bench, &rows, row))
            .collect(),
    }
}

fn rate(row: &BenchRow) -> Option<u64> {
    row.rate().map(|rate| rate.median as u64)
}

/// Bytes for each second of processor time.
fn per_second(cpu_per_gb: Option<f64>) -> Option<u64> {
    let cpu = cpu_per_gb.filter(|cpu| *cpu > 0.0)?;
    Some((1e9 / cpu) as u64)
}

fn cipher(row: &BenchRow) -> Option<CipherRate> {
    let s = &row.setting;
    let plain = s.compression == Compression::None && s.way == CopyDirection::Up && !s.both_ours;
    if !plain {
        return None;
    }
    Some(CipherRate {
        cipher: s.cipher.clone(),
        mac: s.mac.clone(),
        rate: rate(row)?,
        here: per_second(row.near_cpu()),
        there: per_second(row.far_cpu()),
    })
}

fn compressed(bench: &Bench, rows: &[&BenchRow], row: &BenchRow) -> Option<CompressionResult> {
    let s = &row.setting;
    let method = match s.compression {
        Compression::None => return None,
        Compression::Zlib => Method::Zlib,
        Compression::Zstd => Method::Zstd,
    };
    let alike = |other: &&&BenchRow| {
        let o = &other.setting;
        o.compression == Compression::None && o.cipher == s.cipher && o.way == s.way
    };
    let plain = rows
        .iter()
        .filter(alike)
        .filter_map(|row| rate(row))
        .max()?;
    Some(CompressionResult {
        data: match s.data {
            bench::Data::Random => Data::Random,
            bench::Data::Text => Data::Text,
            bench::Data::Gzipped => Data::Gzipped,
            bench::Data::File => Data::Own,
        },
        method,
        direction: match s.way {
            CopyDirection::Up => Direction::Up,
            CopyDirection::Down => Direction::Down,
        },
        left: (bench.ratio(s.data, s.compression)? * 1000.0) as u32,
        rate: rate(row)?,
        plain,
    })
}
