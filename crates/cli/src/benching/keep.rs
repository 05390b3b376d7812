//! Converts a measurement into the findings that copies use.

use std::time::{SystemTime, UNIX_EPOCH};

use measure::CopyDirection;
use measure::bench::{self, BenchCompression, BenchResult, BenchRow, StorageKind};
use schedule::TransferDirection;
use transfer::memory::findings::{
    BenchDataKind, BenchFindings, CipherRate, CompressionMethod, CompressionResult,
};
use transfer::memory::processor;

/// Extracts the findings of a measurement in the form in which copies read them.
pub(super) fn findings(bench: &BenchResult) -> BenchFindings {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let one_lane = |row: &&BenchRow| {
        row.setting.place == StorageKind::Memory
            && row.setting.lanes() == "1x1"
            && !row.runs.is_empty()
    };
    let rows: Vec<&BenchRow> = bench.rows.iter().filter(one_lane).collect();
    BenchFindings {
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
    let plain =
        s.compression == BenchCompression::None && s.way == CopyDirection::Up && !s.both_ours;
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

fn compressed(
    bench: &BenchResult,
    rows: &[&BenchRow],
    row: &BenchRow,
) -> Option<CompressionResult> {
    let s = &row.setting;
    let method = match s.compression {
        BenchCompression::None => return None,
        BenchCompression::Zlib => CompressionMethod::Zlib,
        BenchCompression::Zstd => CompressionMethod::Zstd,
    };
    let alike = |other: &&&BenchRow| {
        let o = &other.setting;
        o.compression == BenchCompression::None && o.cipher == s.cipher && o.way == s.way
    };
    let plain = rows
        .iter()
        .filter(alike)
        .filter_map(|row| rate(row))
        .max()?;
    Some(CompressionResult {
        data: match s.data {
            bench::BenchData::Random => BenchDataKind::Random,
            bench::BenchData::Text => BenchDataKind::Text,
            bench::BenchData::Gzipped => BenchDataKind::Gzipped,
            bench::BenchData::File => BenchDataKind::Own,
        },
        method,
        direction: match s.way {
            CopyDirection::Up => TransferDirection::Up,
            CopyDirection::Down => TransferDirection::Down,
        },
        left: (bench.ratio(s.data, s.compression)? * 1000.0) as u32,
        rate: rate(row)?,
        plain,
    })
}
