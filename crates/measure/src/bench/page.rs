//! Formats a result as one self-contained HTML page that prints well.

use std::fmt::Write as _;

use super::{BenchCompression, BenchResult, BenchRow, PrimitiveResult, StorageKind};
use super::{interval::ConfidenceInterval, text};
use crate::RunStatistics;
use crate::html::escaped;
use crate::page::STYLE;
use crate::plot::{BarPlot, BarRow, BarStyle, Svg};
use crate::result::CopyDirection;
use crate::shown;

/// The page as HTML.
pub fn page(bench: &BenchResult) -> String {
    let what = match &bench.host {
        Some(host) => host.name.clone(),
        None => "this machine".to_owned(),
    };
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>longhaul bench: {what}</title><style>{STYLE}{}</style></head><body>\n\
         <svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">{}</svg>\n\
         <h1>Ciphers and compression: {what}</h1>\n",
        Svg::STYLE,
        Svg::PATTERNS,
        what = escaped(&what),
    );
    for line in text::head(bench).lines() {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escaped(line));
    }
    html.push_str(
        "<p class=\"note\">Bars are medians; whiskers are the 95 % confidence interval of the \
         median, with six runs or more. 1 MB is 10<sup>6</sup> bytes.</p>\n",
    );
    if let Some(why) = &bench.partial {
        let _ = writeln!(html, "<p><strong>Partial: {}.</strong></p>", escaped(why));
    }
    for warning in &bench.warnings {
        let _ = writeln!(
            html,
            "<p><strong>Warning:</strong> {}.</p>",
            escaped(warning)
        );
    }
    advice(&mut html, bench);
    for (title, bars) in plots(bench) {
        let _ = writeln!(
            html,
            "<h2>{}</h2>\n{}",
            escaped(&title),
            bars.draw().element()
        );
    }
    if !bench.rows.is_empty() {
        html.push_str("<h2>All figures</h2>\n");
        table(&mut html, &text::rows(bench));
    }
    if !bench.primitives.is_empty() {
        html.push_str("<h2>All primitives</h2>\n");
        table(&mut html, &text::primitives(&bench.primitives));
    }
    named(&mut html, bench);
    html.push_str("</body></html>\n");
    html
}

fn advice(html: &mut String, bench: &BenchResult) {
    for advice in &bench.advice {
        let _ = write!(
            html,
            "<h3>For {} data</h3>\n<p>{}.</p>\n<p><code>{}</code></p>\n<p><code>",
            advice.data,
            escaped(&advice.reason),
            escaped(&advice.longhaul)
        );
        let lines: Vec<String> = advice.ssh_config.iter().map(|l| escaped(l)).collect();
        let _ = writeln!(html, "{}</code></p>", lines.join("<br>"));
    }
}

/// Plots of rows that differ in one property, each with a title.
fn plots(bench: &BenchResult) -> Vec<(String, BarPlot)> {
    let mut plots = Vec::new();
    let first = bench.rows.first().map(|row| row.setting.clone());
    let mut add = |title: &str, rows: Vec<BarRow>| {
        if rows.len() > 1 {
            plots.push((
                title.to_owned(),
                BarPlot {
                    title: title.to_owned(),
                    unit: "MB/s".to_owned(),
                    rows,
                },
            ));
        }
    };
    if let Some(first) = &first {
        plots_of_copies(bench, first, &mut add);
    }
    for (kind, title) in [
        ("cipher", "Ciphers on one core, encryption"),
        ("compression", "Compression on one core"),
        ("hash", "Checksums on one core"),
    ] {
        let rows: Vec<BarRow> = bench
            .primitives
            .iter()
            .filter(|p| p.kind == kind && p.threads == 1 && p.what != "open")
            .map(|p| bar(primitive_label(p), p.rate(), String::new()))
            .collect();
        add(title, rows);
    }
    plots
}

/// Adds the plots of the copies that differ from `first` in one respect.
fn plots_of_copies(
    bench: &BenchResult,
    first: &super::BenchSetting,
    add: &mut dyn FnMut(&str, Vec<BarRow>),
) {
    for (way, title) in [
        (CopyDirection::Up, "Ciphers, uncompressed, upload"),
        (CopyDirection::Down, "Ciphers, uncompressed, download"),
    ] {
        let rows = of(bench, |s| {
            s.way == way
                && s.compression == BenchCompression::None
                && s.place == StorageKind::Memory
                && s.data == first.data
                && s.lanes() == first.lanes()
                && !s.both_ours
        });
        add(
            title,
            bars(&rows, |row| {
                short(&row.setting.protection()) + text::carried(&row.setting)
            }),
        );
    }
    let rows = of(bench, |s| {
        s.way == CopyDirection::Up
            && s.place == StorageKind::Memory
            && s.cipher == first.cipher
            && s.lanes() == first.lanes()
            && (!s.both_ours || s.compression == BenchCompression::Zstd)
    });
    add(
        "Data and compression, upload",
        bars(&rows, |row| {
            format!("{}, {}", row.setting.data, row.setting.compression)
        }),
    );
    let rows = of(bench, |s| {
        s.way == CopyDirection::Up
            && s.place == StorageKind::Memory
            && s.cipher == first.cipher
            && s.compression == BenchCompression::None
            && s.data == first.data
            && !s.both_ours
    });
    add(
        "Connections and channels",
        bars(&rows, |row| row.setting.lanes()),
    );
    let rows = of(bench, |s| s.place == StorageKind::Disk);
    add(
        "Disk to disk",
        bars(&rows, |row| {
            let s = &row.setting;
            format!("{}, {}, {}", s.data, s.compression, s.way)
        }),
    );
}

fn of(bench: &BenchResult, is: impl Fn(&super::BenchSetting) -> bool) -> Vec<&BenchRow> {
    bench.rows.iter().filter(|row| is(&row.setting)).collect()
}

fn bars(rows: &[&BenchRow], label: impl Fn(&BenchRow) -> String) -> Vec<BarRow> {
    rows.iter()
        .map(|row| {
            let note = match (row.rate(), &row.trouble) {
                (None, Some(_)) => "not measured".to_owned(),
                (None, None) => "no time".to_owned(),
                (Some(rate), _) => {
                    let far = row
                        .far_cpu()
                        .map(|cpu| format!(" + {}", shown::number(cpu)));
                    format!(
                        "{} ({}{} s/GB)",
                        shown::number(rate.median / 1e6),
                        shown::number(row.near_cpu().unwrap_or_default()),
                        far.unwrap_or_default()
                    )
                }
            };
            bar(label(row), row.rate(), note)
        })
        .collect()
}

fn bar(label: String, rate: Option<ConfidenceInterval>, note: String) -> BarRow {
    BarRow {
        label,
        value: rate.map(|rate| RunStatistics {
            min: rate.low / 1e6,
            median: rate.median / 1e6,
            max: rate.high / 1e6,
            count: rate.count,
        }),
        note,
        fill: BarStyle::Other,
    }
}

fn primitive_label(p: &PrimitiveResult) -> String {
    match p.what.as_str() {
        "seal" => short(&p.name),
        what => format!("{} {what}", short(&p.name)),
    }
}

/// Shortens a name to fit beside a bar.
fn short(name: &str) -> String {
    name.replace("@openssh.com", "").replace(" hmac-", "+")
}

/// Converts a Markdown table to HTML.
fn table(html: &mut String, markdown: &str) {
    html.push_str("<table>");
    for (number, line) in markdown
        .lines()
        .enumerate()
        .filter(|(number, _)| *number != 1)
    {
        let tag = if number == 0 { "th" } else { "td" };
        html.push_str("<tr>");
        for cell in line.trim_matches('|').split('|') {
            let _ = write!(html, "<{tag}>{}</{tag}>", escaped(cell.trim()));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
}

fn named(html: &mut String, bench: &BenchResult) {
    if bench.named.is_empty() {
        return;
    }
    html.push_str("<h2>Offered by the far end, not measured</h2>\n<p>");
    let names: Vec<String> = bench
        .named
        .iter()
        .map(|named| {
            let weak = if named.weak { " (weak)" } else { "" };
            format!("{}{weak}", escaped(&named.name))
        })
        .collect();
    let _ = writeln!(html, "{}</p>", names.join(", "));
}
