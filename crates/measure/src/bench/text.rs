//! Formats a result as text.

use std::fmt::Write as _;

use super::interval::ConfidenceInterval;
use super::{BenchResult, BenchRow, BenchSetting, PrimitiveResult, matrix};
use crate::shown;
use crate::table::MarkdownTable;

/// The description of a setting in one line.
pub fn name(setting: &BenchSetting) -> String {
    format!(
        "{}{}, {}{}, {}, {}, {}, {}",
        setting.protection(),
        carried(setting),
        setting.compression,
        if setting.both_ours {
            " (longhaul there)"
        } else {
            ""
        },
        setting.data,
        setting.way,
        setting.place,
        setting.lanes()
    )
}

/// Marks settings that longhaul itself lacks.
pub fn carried(setting: &BenchSetting) -> &'static str {
    let weak = |name: &str| matrix::is_weak(name);
    match setting.carried {
        true if weak(&setting.cipher) || setting.mac.as_deref().is_some_and(weak) => {
            " (WEAK, by ssh)"
        }
        true => " (by ssh)",
        false => "",
    }
}

/// The whole result.
pub fn text(bench: &BenchResult) -> String {
    let mut text = head(bench);
    if !bench.primitives.is_empty() {
        let _ = writeln!(text, "\n{}", primitives(&bench.primitives));
    }
    if !bench.rows.is_empty() {
        let _ = writeln!(text, "\n{}", rows(bench));
    }
    if bench.not_reached > 0 {
        let _ = writeln!(
            text,
            "Not measured, and reached with a longer --time: {} more {}.",
            bench.not_reached,
            if bench.not_reached == 1 {
                "setting"
            } else {
                "settings"
            }
        );
    }
    for row in &bench.rows {
        if let Some(trouble) = &row.trouble {
            let _ = writeln!(text, "Not measured: {}: {trouble}", name(&row.setting));
        }
    }
    named(&mut text, bench);
    for advice in &bench.advice {
        let _ = writeln!(text, "\nFor {} data: {}.", advice.data, advice.reason);
        let _ = writeln!(text, "  {}", advice.longhaul);
        for line in &advice.ssh_config {
            let _ = writeln!(text, "  {line}");
        }
    }
    if !bench.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &bench.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    if let Some(why) = &bench.partial {
        let _ = writeln!(text, "\nPARTIAL: {why}. The results above are from before.");
    }
    text
}

/// The lines about date, machines and data.
pub fn head(bench: &BenchResult) -> String {
    let machine = &bench.machine;
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    let mut text = format!(
        "longhaul bench {}, {}, {:.0} s\nThis end: {cpu}, {} processors, {}\n",
        bench.software, bench.date, bench.seconds, machine.cores, machine.kernel
    );
    if let Some(host) = &bench.host {
        let ours = match &host.longhaul {
            Some(version) => format!(", longhaul {version} there"),
            None => String::new(),
        };
        let _ = writeln!(text, "Far end: {} ({}{ours})", host.name, host.banner);
        let _ = writeln!(
            text,
            "memory: {} here, {} there. CPU there: {}.",
            host.near_memory, host.far_memory, host.far_cpu
        );
        if let Some((here, there)) = &host.disk {
            let _ = writeln!(text, "disk: {here} here, {there} there.");
        }
    }
    text
}

/// The table of measured rows.
pub fn rows(bench: &BenchResult) -> String {
    let mut table = MarkdownTable::new(&[
        "cipher and MAC",
        "compression",
        "data",
        "way",
        "where",
        "lanes",
        "MB/s",
        "+-%",
        "CPU s/GB here",
        "CPU s/GB there",
        "runs",
    ]);
    for row in &bench.rows {
        let Some(cells) = cells(row) else { continue };
        table.row(cells);
    }
    table.markdown()
}

fn cells(row: &BenchRow) -> Option<Vec<String>> {
    let s = &row.setting;
    let rate = row.rate()?;
    let ours = if s.both_ours { " (ours)" } else { "" };
    Some(vec![
        format!("{}{}", s.protection(), carried(s)),
        format!("{}{ours}", s.compression),
        s.data.to_string(),
        s.way.to_string(),
        s.place.to_string(),
        s.lanes(),
        shown::number(rate.median / 1e6),
        spread(&rate),
        // The processor time of ssh is not counted.
        row.near_cpu()
            .filter(|_| !s.carried)
            .map_or_else(|| "-".to_owned(), shown::number),
        row.far_cpu()
            .map_or_else(|| "unknown".to_owned(), shown::number),
        row.counted().len().to_string(),
    ])
}

/// Half width of an interval in percent; a single run has none.
fn spread(rate: &ConfidenceInterval) -> String {
    match rate.count {
        1 => "one run".to_owned(),
        _ => format!("{:.1}", rate.half_width() * 100.0),
    }
}

/// The table of primitives.
pub fn primitives(all: &[PrimitiveResult]) -> String {
    let mut table = MarkdownTable::new(&["what", "name", "", "threads", "MB/s", "+-%", "runs"]);
    for primitive in all {
        let Some(rate) = primitive.rate() else {
            continue;
        };
        table.row(vec![
            primitive.kind.clone(),
            primitive.name.clone(),
            primitive.what.clone(),
            primitive.threads.to_string(),
            shown::number(rate.median / 1e6),
            spread(&rate),
            rate.count.to_string(),
        ]);
    }
    table.markdown()
}

fn named(text: &mut String, bench: &BenchResult) {
    for what in ["cipher", "MAC"] {
        let names: Vec<String> = bench
            .named
            .iter()
            .filter(|named| named.what == what)
            .map(|named| match named.weak {
                true => format!("{} (WEAK)", named.name),
                false => named.name.clone(),
            })
            .collect();
        if !names.is_empty() {
            let _ = writeln!(
                text,
                "{what}s that the far end offers and longhaul does not support, not measured: \
                 {}.",
                names.join(", ")
            );
        }
    }
}
