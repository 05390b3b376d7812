//! The result of `longhaul doctor`, as text, as a page and as data.

use std::fmt::Write as _;

use diagnose::{
    DiagnosisFinding, Evidence, PathDiagnosis, ThroughputMeasurement, ThroughputScaling,
    compare_hops, diagnose,
};
use serde::Serialize;
use wire::escape::name;

use crate::RunStatistics;
use crate::html::escaped;
use crate::page::STYLE;
use crate::plot::{BarPlot, BarRow, BarStyle, Svg};

/// The `kind` of a stored result.
pub const KIND: &str = "longhaul-doctor";
/// Version of the format; raised when a field changes its meaning.
pub const SCHEMA: u32 = 1;
/// Width of the longest bar in characters.
const BAR: f64 = 30.0;
/// Rungs that are drawn at most; a stored result may have any number.
const MOST_RUNGS: usize = 32;

/// Result of one run of `longhaul doctor`, which is shown as text or page and stored as JSON.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// [`KIND`].
    pub kind: &'static str,
    /// [`SCHEMA`].
    pub schema: u32,
    /// The host as the user wrote it.
    pub host: String,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Verdict and findings.
    pub diagnosis: PathDiagnosis,
    /// Evidence behind them; empty for a finished transfer.
    pub evidence: Evidence,
    /// The way to the first jump host, if there is one.
    pub jump: Option<JumpHostReport>,
    /// Further hosts of a copy to or from several.
    pub others: Vec<OtherHost>,
}

/// Diagnosis of the transfer with a further host of one copy.
#[derive(Debug, Serialize)]
pub struct OtherHost {
    /// The host.
    pub host: String,
    /// Verdict and findings of the transfer with it.
    pub diagnosis: PathDiagnosis,
}

/// Diagnosis of the way to the first jump host, beside that of the whole way to the host.
#[derive(Debug, Serialize)]
pub struct JumpHostReport {
    /// The jump host.
    pub host: String,
    /// Verdict and findings of the way to it.
    pub diagnosis: PathDiagnosis,
    /// Comparison with the whole way.
    pub compared: Vec<String>,
}

impl DoctorReport {
    /// Diagnoses a path.
    pub fn new(host: String, seconds: f64, evidence: Evidence) -> Self {
        Self {
            diagnosis: diagnose(&evidence),
            evidence,
            ..Self::of_copy(host, seconds, diagnose(&Evidence::default()))
        }
    }

    /// Reports on a finished transfer.
    pub fn of_copy(host: String, seconds: f64, diagnosis: PathDiagnosis) -> Self {
        Self {
            kind: KIND,
            schema: SCHEMA,
            host,
            seconds,
            diagnosis,
            evidence: Evidence::default(),
            jump: None,
            others: Vec::new(),
        }
    }

    /// Adds another host of the same copy.
    #[must_use]
    pub fn and_host(mut self, other: Self) -> Self {
        self.others.push(OtherHost {
            host: other.host,
            diagnosis: other.diagnosis,
        });
        self
    }

    /// Adds the way to the jump host.
    #[must_use]
    pub fn through(self, host: String, first: &Evidence) -> Self {
        let compared = compare_hops(&host, first, &self.evidence);
        let diagnosis = diagnose(first);
        let jump = JumpHostReport {
            host,
            diagnosis,
            compared,
        };
        Self {
            jump: Some(jump),
            ..self
        }
    }

    /// Names the further hosts, each with its verdict.
    fn further_verdicts(&self) -> impl Iterator<Item = String> {
        let others = self.others.iter();
        others.map(|other| format!("{}: {}", other.host, other.diagnosis.verdict))
    }
}

/// The result as text for a terminal, without colors.
pub fn text(report: &DoctorReport) -> String {
    let d = &report.diagnosis;
    let mut text = format!("{}: {}\n", shown(&report.host), shown(&d.verdict));
    for verdict in report.further_verdicts() {
        let _ = writeln!(text, "{}", shown(&verdict));
    }
    if let Some(jump) = &report.jump {
        let _ = writeln!(
            text,
            "\nThe way to the jump host {}: {}",
            shown(&jump.host),
            shown(&jump.diagnosis.verdict)
        );
        for what in &jump.compared {
            let _ = writeln!(text, "  {}", shown(what));
        }
    }
    if !d.findings.is_empty() {
        let of = match report.others.is_empty() {
            true => String::new(),
            false => format!(" of {}", shown(&report.host)),
        };
        let _ = writeln!(text, "\nLimits{of}, the lowest first:");
    }
    for finding in &d.findings {
        let _ = writeln!(text, "  {}", line(finding));
        let _ = writeln!(text, "      {}", shown(&finding.evidence));
        for remedy in &finding.remedies {
            let _ = writeln!(
                text,
                "      {}: {}",
                remedy.by.heading(),
                shown(&remedy.text)
            );
        }
    }
    for (title, ladder) in ladders(report) {
        let _ = writeln!(text, "\n{title}:");
        let best = ladder.best().map_or(1.0, |best| best.rate.max(1.0));
        for rung in ladder.rungs.iter().take(MOST_RUNGS) {
            let bar = "#".repeat((rung.rate / best * BAR).clamp(0.0, BAR) as usize);
            let _ = writeln!(text, "  {:<26} {:>9}  {bar}", label(rung), rate(rung.rate));
        }
        if let Some(loaded) = ladder.loaded {
            let _ = writeln!(text, "  idle connection meanwhile: {:.0} ms", loaded * 1e3);
        }
    }
    if let Some(idle) = report.evidence.idle {
        let _ = writeln!(
            text,
            "\nRound trip: {:.1} ms (lowest {:.1}, highest {:.1})",
            idle.median * 1e3,
            idle.low * 1e3,
            idle.high * 1e3
        );
    }
    if !d.unseen.is_empty() {
        text.push_str("\nNot seen:\n");
        for what in &d.unseen {
            let _ = writeln!(text, "  {}", shown(what));
        }
    }
    text
}

fn line(finding: &DiagnosisFinding) -> String {
    let what = match (finding.limit, finding.direction) {
        (Some(limit), Some(direction)) => format!("{} {}", rate(limit), direction.transfers()),
        (Some(limit), None) => rate(limit),
        (None, _) => "time".to_owned(),
    };
    format!("{what}: {} ({})", finding.cause, finding.certainty.word())
}

fn ladders(report: &DoctorReport) -> Vec<(&'static str, &ThroughputScaling)> {
    let both = [
        ("Uploads", &report.evidence.up),
        ("Downloads", &report.evidence.down),
    ];
    both.into_iter()
        .filter(|(_, ladder)| !ladder.rungs.is_empty())
        .collect()
}

fn label(rung: &ThroughputMeasurement) -> String {
    let of = |n: u32, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    match rung.channels {
        0 | 1 => of(rung.connections, "connection"),
        n => format!(
            "{}, {}",
            of(rung.connections, "connection"),
            of(n, "channel")
        ),
    }
}

fn rate(bytes: f64) -> String {
    match bytes {
        b if b >= 9.95e6 => format!("{:.0} MB/s", b / 1e6),
        b if b >= 9.95e4 => format!("{:.1} MB/s", b / 1e6),
        b => format!("{:.0} kB/s", b / 1e3),
    }
}

/// Text that may come from a server or a file, escaped for a terminal.
fn shown(text: &str) -> String {
    name(text.as_bytes()).to_string()
}

/// The result as a self-contained HTML page.
pub fn page(report: &DoctorReport) -> String {
    let d = &report.diagnosis;
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>longhaul doctor: {host}</title><style>{STYLE}{}</style></head><body>\n\
         <svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">{}</svg>\n\
         <h1>The path to {host}</h1>\n<p><strong>{}</strong></p>\n",
        Svg::STYLE,
        Svg::PATTERNS,
        escaped(&d.verdict),
        host = escaped(&report.host),
    );
    for verdict in report.further_verdicts() {
        let _ = writeln!(html, "<p><strong>{}</strong></p>", escaped(&verdict));
    }
    if let Some(jump) = &report.jump {
        let _ = writeln!(
            html,
            "<h2>The way to the jump host {}</h2>\n<p>{}</p><ul>",
            escaped(&jump.host),
            escaped(&jump.diagnosis.verdict)
        );
        for what in &jump.compared {
            let _ = writeln!(html, "<li>{}</li>", escaped(what));
        }
        html.push_str("</ul>\n");
    }
    if !d.findings.is_empty() {
        html.push_str("<h2>Limits, the lowest first</h2>\n");
    }
    for finding in &d.findings {
        let _ = writeln!(
            html,
            "<p><strong>{}</strong><br>{}</p><ul>",
            escaped(&line(finding)),
            escaped(&finding.evidence)
        );
        for remedy in &finding.remedies {
            let _ = writeln!(
                html,
                "<li>{}: <code>{}</code></li>",
                remedy.by.heading(),
                escaped(&remedy.text)
            );
        }
        html.push_str("</ul>\n");
    }
    for (title, ladder) in ladders(report) {
        let _ = writeln!(
            html,
            "<h2>{title}</h2>\n{}",
            plot(title, ladder).draw().element()
        );
    }
    if !d.unseen.is_empty() {
        html.push_str("<h2>Not seen</h2>\n<ul>\n");
        for what in &d.unseen {
            let _ = writeln!(html, "<li>{}</li>", escaped(what));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</body></html>\n");
    html
}

fn plot(title: &str, ladder: &ThroughputScaling) -> BarPlot {
    let usable = |r: &&ThroughputMeasurement| r.rate.is_finite() && r.rate >= 0.0;
    let rungs = ladder.rungs.iter().filter(usable).take(MOST_RUNGS);
    BarPlot {
        title: format!("{title}: rate by number of connections"),
        unit: "MB/s".to_owned(),
        rows: rungs
            .map(|rung| BarRow {
                label: label(rung),
                value: RunStatistics::of([rung.rate / 1e6]),
                note: rate(rung.rate),
                fill: BarStyle::Ours,
            })
            .collect(),
    }
}
